"""Killed runs have the results of undisturbed ones, by the same command: in this process after
every few writes, and where torchrun restarts them. Two processes, on one machine or two, have the
results of one, up to rounding."""
import importlib
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
import torch
from conftest import filled, release_locks, slow
from kills import TWO, begin, children_of, differences, finish, finish_two, free_port, start
from small_runs import RUNS, TRAINED, TUNED, call, pretend

from common import launch
from common.cli import Stop
from common.files import read_jsonl
from common.run import Loop

LONG = {  # long enough to be killed in the middle
    "albert": RUNS["albert"] + " --steps 200 --save_every 20",
    "autobert_zero search": RUNS["autobert_zero search"] + " --steps 12 --rounds 2",
    "autotinybert search": RUNS["autotinybert search"] + " --steps 30 --further_steps 30",
    "mformer": RUNS["mformer"] + " --steps 90 --save_every 10",
}


class Killed(Exception):
    """The point where a process would have died."""


SELDOM = ("autobert_zero", "autotinybert")


@pytest.mark.parametrize("name", [slow(name) if name in SELDOM else name for name in RUNS])
def test_a_run_that_dies_every_few_writes_ends_as_an_undisturbed_one(
        name, ready, finished, tmp_path, monkeypatch):
    whole = finished(name)
    pretend(monkeypatch)
    program, *words = shlex.split(filled(RUNS[name], **ready))
    main = importlib.import_module(program).main
    out = tmp_path / "killed"
    done = out / "done.json"
    lives = 0
    deaths = 0
    rename = Path.replace

    def mortal(source, target):
        nonlocal lives
        lives -= 1
        if lives == 0:
            raise Killed
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", mortal)  # gives every file its name
    while not done.exists():
        lives = int(4 * 1.25 ** deaths)  # more: a run that begins again writes a few files first
        try:
            main([*words, "--out", str(out)])
        except Killed:
            deaths += 1
            release_locks()
    assert deaths >= 2
    lives = 0  # no more deaths
    done.unlink()  # as if it had died before its last write
    assert main([*words, "--out", str(out)]) == 0
    assert differences(whole, out) == []
    # a training that goes on may need the checkpoint before the newest
    assert {path.name for path in out.rglob("*.previous")} <= {"checkpoint.pt.previous"}
    assert not [*out.glob("*/*/*.previous")]


@pytest.mark.parametrize("name", [*TRAINED, "tuned"])
def test_sigterm_in_the_last_step_loses_no_step(name, ready, tmp_path, monkeypatch):
    """The loop is finished. A training goes on to its end, a fine-tuning stops after the job."""
    command = {**TRAINED, "tuned": TUNED}[name] + " --save_every 9 --out {out}"
    command = command.replace(" --save_every 9", "") if name == "tuned" else command
    steps = []
    after = Loop.after

    def stop_at_last(loop, step, *numbers, **values):
        steps.append(step)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGTERM)
        return after(loop, step, *numbers, **values)

    monkeypatch.setattr(Loop, "after", stop_at_last)
    command = filled(command, out=tmp_path, **ready)
    assert call(command, monkeypatch) == (143 if name == "tuned" else 0)
    launch.SIGTERM.clear()
    assert call(command, monkeypatch) == 0
    assert len(steps) == 2


OFTEN = ("autobert_zero search", "autotinybert")


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else slow(name) for name in RUNS if name != "tuned"])
def test_two_processes_end_as_one_to_rounding(name, ready, finished, tmp_path, monkeypatch):
    """Weights, and in a search the same candidates in the same order. One process starts a training
    and is stopped at its first save. Two continue it."""
    command = filled(RUNS[name], **ready)
    one = finished(name)
    two = begin(one, tmp_path / "two")
    if name in TRAINED:
        save = Loop._save

        def save_and_stop(*arguments):
            save(*arguments)
            raise Stop

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "_save", save_and_stop)
            assert call(f"{command} --out {two}", patch) == 143
    finish_two(command, two)
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
@pytest.mark.parametrize("name, sign, to", [
    *((name, signal.SIGKILL, "process") for name in LONG),
    ("albert", signal.SIGTERM, "process"),
    ("albert", signal.SIGTERM, "torchrun"),
])
def test_torchrun_continues_what_was_stopped(name, sign, to, ready, tmp_path):
    """One of two processes is killed, or stopped so that both save. torchrun restarts them.
    torchrun itself passes SIGTERM on and fails, and the same command continues."""
    command = filled(LONG[name], **ready)
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    finish(command, whole, *TWO)
    process = start(command, begin(whole, killed), *TWO, "--max-restarts=2")
    while process.poll() is None and not [*killed.rglob("checkpoint.pt")]:
        time.sleep(0.01)
    os.kill(process.pid if to == "torchrun" else children_of(process)[1], sign)
    if to == "torchrun":
        assert process.wait(900) != 0
        process = start(command, killed, *TWO)
    assert process.wait(900) == 0
    assert '"resumed"' in (killed / "log.jsonl").read_text()
    assert differences(whole, killed) == []


@pytest.mark.slow
def test_two_machines_end_as_one(ready, tmp_path):
    """Two torchrun groups of one process each, as on two machines."""
    command = filled(RUNS["autobert_zero search"], **ready)
    one = tmp_path / "one"
    two = tmp_path / "two"
    finish(command, one, *TWO)
    launch = (
        "--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_id=7",
        f"--rdzv_endpoint=127.0.0.1:{free_port()}")
    groups = [start(command, two, *launch) for _ in range(2)]
    assert [process.wait(900) for process in groups] == [0, 0]
    assert differences(one, two) == []
