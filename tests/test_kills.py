"""Runs that are killed end as undisturbed ones: tests/kills.py with few kills, and torchrun starting again by itself."""
import os
import random
import signal
import time

import kills
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("program", kills.COMMANDS)
def test_killed_and_continued_runs_leave_what_undisturbed_ones_leave(program, demo, tmp_path):
    assert kills.attack(program, 2, random.Random(0), tmp_path) == 0


RESTARTED = [("albert", "pretrain"), ("autobert_zero", "search"), ("autotinybert", "search"), ("mformer", "train")]


@pytest.mark.slow
@pytest.mark.parametrize("program, name", RESTARTED)
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
