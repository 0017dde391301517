"""Runs that are killed end as undisturbed ones: tests/kills.py with few kills, and torchrun starting again by itself."""
import os
import random
import signal
import time

import kills
import pytest


def test_a_killed_training_leaves_what_an_undisturbed_one_leaves(demo, tmp_path, monkeypatch):
    """Killed between two checkpoints."""
    commands, out = kills.COMMANDS["albert"], tmp_path / "killed"
    monkeypatch.setitem(commands, "pretrain", commands["pretrain"] + "--steps 45")
    whole, _ = kills.undisturbed("albert", "pretrain", tmp_path, 1)
    process = kills.start("albert", "pretrain", out, 1)
    while process.is_alive() and not (out / "checkpoint.pt").exists():
        time.sleep(0.01)
    assert kills.kill(process, "SIGKILL", random)
    assert kills.end(kills.start("albert", "pretrain", out, 1)) == 0
    assert (out / "log.jsonl").read_text().count('"resumed"') == 1 and kills.differences(whole, out) == []


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
