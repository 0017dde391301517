"""Runs that are killed end as undisturbed ones: tests/kills.py with few kills, and torchrun starting again by itself."""
import os
import random
import signal
import time
from pathlib import Path

import kills
import pytest

from data.text import make_corpus


def test_a_killed_training_leaves_what_an_undisturbed_one_leaves(demo, tmp_path, monkeypatch):
    """Killed between two checkpoints."""
    commands, out = kills.COMMANDS["albert"], tmp_path / "killed"
    (tmp_path / "text.txt").write_text(Path(demo["corpus"], "language.txt").read_text()[:40_000])
    make_corpus([tmp_path / "text.txt"], tmp_path / "made", 300, workers=1)  # once, not in each of three runs
    monkeypatch.setitem(commands, "pretrain", commands["pretrain"] + f"--steps 45 --corpus {tmp_path}/made")
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
