"""Runs that die end as undisturbed ones, by the same command: in this process after every few
writes, and where torchrun starts them again. Two processes, on one machine or two, leave what one
leaves, to rounding."""
import importlib
import os
import re
import shlex
import signal
import socket
import sys
import time

import pytest
import torch
from conftest import filled, slow
from kills import begin, children_of, differences, end, finish, start
from small_runs import SEARCHES, TRAINED, TUNED

import autotinybert
import mformer
from common.checkpoint import read_jsonl, release_locks

RUNS = {
    name: f"{command} --steps 6 --save_every 2 --accumulate 2" for name, command in TRAINED.items()}
RUNS["tuned"] = f"{TUNED} --finetune_dropout 0.1 --finetune_epochs 6 --eval_every 2"
for name, words in SEARCHES.items():
    RUNS[f"{name} search"] = f"{name} --search {words} --save_every 2 --device cpu"
LONG = {  # long enough to be killed in the middle
    "albert": RUNS["albert"] + " --steps 200 --save_every 20",
    "autobert_zero search": RUNS["autobert_zero search"] + " --steps 12 --rounds 2",
    "autotinybert search": RUNS["autotinybert search"] + " --steps 30 --further_steps 30",
    "mformer": RUNS["mformer"] + " --steps 90 --save_every 10",
}
TWO = ("--standalone", "--nproc_per_node=2")


class Killed(Exception):
    """Where a process would have died."""


SELDOM = ("autobert_zero", "autotinybert")


@pytest.mark.parametrize("name", [slow(name) if name in SELDOM else name for name in RUNS])
def test_a_run_that_dies_every_few_writes_ends_as_an_undisturbed_one(
        name, ready, tmp_path, monkeypatch):
    program, *words = shlex.split(filled(RUNS[name], **ready))
    main = importlib.import_module(program).main
    lives = 0
    deaths = 0
    latency = lambda arch, cfg: arch.layers + autotinybert.flops(arch) / 5e7  # noqa: E731
    monkeypatch.setattr(autotinybert, "time_model", latency)
    monkeypatch.setattr(mformer.Ranker.__init__, "__defaults__", (0, 20))  # need not be good
    monkeypatch.setattr(mformer.Ranker.importance, "__defaults__", (2,))

    def mortal(write):
        def call(*args, **more):
            nonlocal lives
            write(*args, **more)
            lives -= 1
            if lives == 0:
                raise Killed
        return call

    assert main([*words, "--out", f"{tmp_path}/whole"]) == 0
    for module in [*sys.modules]:
        if re.fullmatch(r"(common|data)\.\w+|a\w+|mformer", module):
            for write in ("save_file", "write_atomic"):
                if hasattr(sys.modules[module], write):
                    instead = mortal(getattr(sys.modules[module], write))
                    monkeypatch.setattr(sys.modules[module], write, instead)
    while not (tmp_path / "killed" / "done.json").exists():
        lives = 3 * 2 ** deaths  # more each time: a run that begins again writes a few files first
        try:
            main([*words, "--out", f"{tmp_path}/killed"])
        except Killed:
            deaths += 1
            release_locks()
    assert deaths >= 2
    assert differences(tmp_path / "whole", tmp_path / "killed") == []


OFTEN = ("autobert_zero search",)  # test_autotinybert.py has a training


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else slow(name) for name in RUNS if name != "tuned"])
def test_two_processes_end_as_one_to_rounding(name, ready, tmp_path):
    """Weights, and in a search the same candidates in the same order."""
    command = filled(RUNS[name], **ready)
    one = tmp_path / "one"
    two = tmp_path / "two"
    finish(command, one)
    finish(command, begin(one, two), *TWO)
    for path in one.rglob("checkpoint.pt"):
        ours = torch.load(path)["owned"]
        theirs = torch.load(two / path.relative_to(one))["owned"]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    if "search" in name:
        histories = [
            [line["arch"] for line in read_jsonl(run / "history.jsonl")] for run in (one, two)]
        assert histories[0] == histories[1]
        assert len(histories[0]) > 4
    assert '"processes": 2' in (two / "config.json").read_text() + (two / "log.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_torchrun_starts_again_what_was_killed(name, ready, tmp_path):
    """--max-restarts: one of two processes is killed, and nobody gives the command again."""
    command = filled(LONG[name], **ready)
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    seconds = finish(command, whole, *TWO)
    process = start(command, begin(whole, killed), *TWO, "--max-restarts=2")
    time.sleep(seconds / 3)
    os.kill(children_of(process)[1], signal.SIGKILL)
    assert end(process) == 0
    assert '"resumed"' in (killed / "log.jsonl").read_text()
    assert differences(whole, killed) == []


@pytest.mark.slow
@pytest.mark.parametrize("told", ["a process", "torchrun"])
def test_a_run_of_torchrun_that_sigterm_stops_is_continued(told, ready, tmp_path):
    """A process that is told to stop lets both save and end with 143, which torchrun counts as a
    failure: it starts them again. torchrun itself passes SIGTERM on, starts nothing again, and
    fails; the same command continues."""
    command = filled(LONG["albert"], **ready)
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    finish(command, whole, *TWO)
    process = start(command, killed, *TWO, "--max-restarts=1")
    while process.is_alive() and not (killed / "checkpoint.pt").exists():
        time.sleep(0.01)
    os.kill(process.pid if told == "torchrun" else children_of(process)[1], signal.SIGTERM)
    if told == "torchrun":
        assert end(process) != 0
        assert not (killed / "done.json").exists()
        process = start(command, killed, *TWO)
    assert end(process) == 0
    assert (killed / "log.jsonl").read_text().count('"resumed"') == 1
    assert differences(whole, killed) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", OFTEN)
def test_two_machines_end_as_one(name, ready, tmp_path):
    """Two torchrun groups of one process each, which meet as those of two machines do."""
    command = filled(RUNS[name], **ready)
    one = tmp_path / "one"
    two = tmp_path / "two"
    finish(command, one, *TWO)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch = (
        "--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_id=7",
        f"--rdzv_endpoint=127.0.0.1:{port}")
    groups = [start(command, two, *launch, wait=False) for _ in range(2)]
    assert [end(process) for process in groups] == [0, 0]
    assert differences(one, two) == []
