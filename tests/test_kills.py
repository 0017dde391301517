"""Runs that die end as undisturbed ones, by the same command: in this process after every few writes, by tests/kills.py
with few kills, and where torchrun starts them again. Two processes leave what one leaves, to rounding."""
import importlib
import os
import random
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import kills
import pytest
import torch
from conftest import filled, slow
from small_runs import SEARCHES, TRAINED, TUNED

import autotinybert
import mformer
from common.files import read_jsonl, release_locks

RUNS = {**{program: f"{command} --steps 6 --save_every 2 --accumulate 2" for program, command in TRAINED.items()},
        "tuned": f"{TUNED} --finetune_dropout 0.1 --finetune_epochs 6 --eval_every 2", **{
            f"{program} search": f"{program} --search {words} --save_every 2 --device cpu"
            for program, words in SEARCHES.items()}}


class Killed(Exception):
    """Where a process would have died."""


@pytest.mark.parametrize("name", [slow(name) if name in ("autobert_zero", "autotinybert") else name for name in RUNS])
def test_a_run_that_dies_every_few_writes_ends_as_an_undisturbed_one(name, ready, tmp_path, monkeypatch):
    program, *words = shlex.split(filled(RUNS[name], **ready))
    main, lives, deaths = importlib.import_module(program).main, [0], 0
    monkeypatch.setattr(autotinybert, "time_model", lambda arch, cfg: arch.layers + autotinybert.flops(arch) / 5e7)
    monkeypatch.setattr(mformer.Ranker.__init__, "__defaults__", (0, 20))  # rankers need not be good
    monkeypatch.setattr(mformer.Ranker.importance, "__defaults__", (2,))

    def mortal(write):
        def call(*args, **more):
            write(*args, **more)
            lives[0] -= 1
            if lives[0] == 0:
                raise Killed
        return call

    assert main([*words, "--out", f"{tmp_path}/whole"]) == 0
    for module in [sys.modules[each] for each in sys.modules if re.fullmatch(r"(common|data)\.\w+|a\w+|mformer", each)]:
        for write in ("save_file", "write_atomic"):
            if hasattr(module, write):
                monkeypatch.setattr(module, write, mortal(getattr(module, write)))
    while not (tmp_path / "killed" / "done.json").exists():
        lives[0] = 3 * 2 ** deaths  # more each time: a run that begins again writes a few files first
        try:
            main([*words, "--out", f"{tmp_path}/killed"])
        except Killed:
            deaths += 1
            release_locks()
    assert deaths >= 2 and kills.differences(tmp_path / "whole", tmp_path / "killed") == []


@pytest.mark.parametrize("name", [name if name in ("albert", "autobert_zero search") else slow(name)
                                  for name in RUNS if name != "tuned"])
def test_two_processes_end_as_one_to_rounding(name, ready, tmp_path, monkeypatch):
    """Weights, and in a search the same candidates in the same order."""
    program, words = filled(RUNS[name], **ready).split(" ", 1)
    kind, one, two = "search" if "--search" in words else "pretrain", tmp_path / "one", tmp_path / "two"
    monkeypatch.setitem(kills.COMMANDS[program], kind, words)
    assert kills.end(kills.start(program, kind, one, 1)) == 0, (tmp_path / "log.txt").read_text()[-2000:]
    assert kills.end(kills.start(program, kind, kills.begin(program, kind, one, two), 2)) == 0
    for path in one.rglob("checkpoint.pt"):
        ours, theirs = (torch.load(place)["owned"] for place in (path, two / path.relative_to(one)))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    if kind == "search":
        histories = [[line["arch"] for line in read_jsonl(run / "history.jsonl")] for run in (one, two)]
        assert histories[0] == histories[1] and len(histories[0]) > 4
    assert '"processes": 2' in (two / "config.json").read_text() + (two / "log.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("program", kills.COMMANDS)
def test_killed_and_continued_runs_leave_what_undisturbed_ones_leave(program, demo, tmp_path):
    assert kills.attack(program, 2, random.Random(0), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("program, name", [
    ("albert", "pretrain"), ("autobert_zero", "search"), ("autotinybert", "search"), ("mformer", "train")])
def test_torchrun_starts_again_what_was_killed(program, name, demo, tmp_path):
    """--max-restarts: one of two processes is killed in the middle, and nobody gives the command again."""
    whole, seconds = kills.undisturbed(program, name, tmp_path, 2)
    process = kills.start(program, name, kills.begin(program, name, whole, tmp_path / "killed"), 2, restarts=2)
    time.sleep(seconds / 2)
    ranks = open(f"/proc/{process.pid}/task/{process.pid}/children").read().split()
    os.kill(int(ranks[1]), signal.SIGKILL)
    assert kills.end(process) == 0, (tmp_path / "log.txt").read_text()[-2000:]
    starts = 2 if name == "search" and program == "autotinybert" else 1  # whose folder had something in it
    assert (tmp_path / "killed" / "log.jsonl").read_text().count('"resumed"') == starts
    assert kills.differences(whole, tmp_path / "killed") == []


@pytest.mark.slow
@pytest.mark.parametrize("told", ["a process", "torchrun"])
def test_a_run_of_torchrun_that_sigterm_stops_is_continued(told, demo, tmp_path):
    """A process that is told to stop lets both save and end with 143, which torchrun counts as a failure: it starts
    them again. torchrun itself passes SIGTERM on, starts nothing again, and fails; the same command continues."""
    (whole, _), out = kills.undisturbed("albert", "pretrain", tmp_path, 2), tmp_path / "killed"
    process = kills.start("albert", "pretrain", out, 2, restarts=1)
    while process.is_alive() and not (out / "checkpoint.pt").exists():
        time.sleep(0.01)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid if told == "torchrun" else int(ranks[1]), signal.SIGTERM)
    if told == "torchrun":
        assert kills.end(process) != 0 and not (out / "done.json").exists()
        process = kills.start("albert", "pretrain", out, 2)
    assert kills.end(process) == 0, (tmp_path / "log.txt").read_text()[-2000:]
    assert (out / "log.jsonl").read_text().count('"resumed"') == 1 and kills.differences(whole, out) == []
