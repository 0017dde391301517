"""Run folders, checkpoints, jobs, prefetched batches, SIGTERM."""
import dataclasses
import datetime
import functools
import math
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from small_runs import ALONE, write

from common.cli import Command, Diverged, Stop, UserError
from common.files import read_jsonl
from common.run import Checkpoint, RunFolder, share_out
from common.launch import (
    Means, Pace, accelerator, autocast, join_group, launch, pick_device, prefetch, seed_everything,
    seed_of)


@dataclasses.dataclass
class Config:
    out: str
    restart: bool = False
    lr: float = 1.0
    widths: tuple = ()
    device: str = "cpu"
    dry_run: bool = False
    tensorboard: bool = False


def open_run(folder, reads=None, **settings):
    command = Command("albert", "search")
    return RunFolder(Config(str(folder), **settings), command, ALONE, reads or {})


def test_a_run_folder_is_resumed_and_refused_to_others():
    run = open_run(".", widths=(1, 2))
    write("checkpoint.pt", "")
    partial = write("finalists/0.training.pt.partial-7", "torn")
    run.log("train", 1, loss=2.0)
    with open("log.jsonl", "a") as log:
        log.write('{"phase": "train", "st')  # cut short by a crash
    open_run(".", widths=(1, 2), device="cuda")
    lines = read_jsonl("log.jsonl")
    assert [line.get("event") for line in lines] == [None, "resumed"]
    assert not partial.exists()
    with pytest.raises(UserError, match=r"lr \(1.0 there, 2.0 here"):
        open_run(".", lr=2.0, widths=(1, 2))
    with pytest.raises(UserError, match="not a run folder"):  # --dry_run would delete a real run
        open_run(".", widths=(1, 2), dry_run=True, restart=True)


def test_a_folder_in_which_nothing_was_computed_is_taken_over():
    """A corpus records its text. Other files made from other data are deleted."""
    begin = functools.partial(open_run, "run")
    made = [write(f"run/{name}", "") for name in ("corpus/tokens.bin", "spiece.model")]
    with pytest.raises(UserError, match="not a run folder"):
        begin()  # no run made it
    shutil.copy(open_run("other").folder / "config.json", "run")
    assert begin().new
    assert all(path.exists() for path in made)
    assert begin(lr=2.0).new
    assert [path.exists() for path in made] == [True, False]
    begin(lr=2.0).log("train", 1)
    assert not begin(lr=2.0).new
    with pytest.raises(UserError, match="lr"):
        begin()


def test_data_that_change_are_refused_in_every_phase():
    """A phase can read more than the one before. The files that one has read must be unchanged in
    the next."""
    data = Path("data")
    glue = write("glue.tsv", "1")
    write("data/a/1.txt", "1")
    begin = functools.partial(open_run, "run")
    reads = {"corpus": [data], "glue": [glue]}
    write(begin(reads={"corpus": [data]}).folder / "checkpoint.pt", "")
    write("data/a/1.txt", "1")  # at another time
    begin(reads=reads)
    for flag, path in {"glue": glue, "corpus": data / "2.txt"}.items():
        write(path, "other")
        with pytest.raises(UserError, match=f"the files of --{flag} have changed"):
            begin(reads={flag: reads[flag]})


def test_a_torn_checkpoint_gives_way_to_the_one_before():
    model = torch.nn.Linear(2, 2)
    path = Path("checkpoint.pt")
    checkpoint = Checkpoint(path, ALONE, model=model)
    checkpoint.save(step=1)
    first = model.weight.clone()
    with torch.no_grad():
        model.weight += 1
    checkpoint.save(step=2)
    assert checkpoint.restore() == {"step": 2}
    path.write_bytes(path.read_bytes()[:1000])
    assert checkpoint.restore() == {"step": 1}
    assert torch.equal(model.weight, first)


def test_jobs_are_done_once_each_and_a_stop_reaches_all(monkeypatch):
    done = []

    def work(name):
        done.append(name)
        if name == "c" and done.count("c") == 1:
            raise Stop
        return {"name": name}

    monkeypatch.setattr("common.launch._stop_requested", False)
    monkeypatch.setattr("common.run.stopping", lambda ranks: done.count("c") == 1)
    jobs = functools.partial(
        share_out, ALONE, list("dcba"), Path(), "jobs", work, cost=list("dcba").index)
    with pytest.raises(Stop):
        jobs()
    assert done == list("abc")  # the highest cost first
    assert jobs() == [{"name": name} for name in "dcba"]
    assert done == list("abccd")


def test_items_made_ahead_are_the_same_and_one_ahead():
    made = [threading.Event() for _ in range(6)]

    def items():
        for number, event in enumerate(made):
            event.set()
            yield number
        raise UserError("line 3: broken")

    ahead = prefetch(items(), SimpleNamespace(type="cuda"))
    for number in range(5):
        assert next(ahead) == number
        assert made[number + 1].wait(10)
        assert not any(event.is_set() for event in made[number + 2:])
    with pytest.raises(UserError, match="line 3"):
        list(ahead)


def test_means_are_over_the_steps_since_the_last():
    means = Means(ALONE)
    for losses in ([1.0, 2.0, 6.0], [4.0]):
        for loss in losses:
            means.add({"loss": torch.tensor(loss)}, tokens=8)
        assert means.take(7)["loss"] == sum(losses) / len(losses)
    means.add({"loss": torch.tensor(math.nan)}, tokens=8)
    with pytest.raises(Diverged, match="loss is NaN or infinite at step 9"):
        means.take(9)


@pytest.mark.parametrize("variables, words", [
    ("RANK=1", "smaller"),
    ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=here", "without MASTER_PORT"),
])
def test_leftovers_of_torchrun_end_in_one_line(variables, words, monkeypatch):
    for word in variables.split():
        monkeypatch.setenv(*word.split("="))
    with pytest.raises(UserError, match=words), launch("cpu"):
        pass


@pytest.fixture
def mac(monkeypatch):
    """A machine with an accelerator that is not CUDA."""
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    accelerator.cache_clear()
    yield
    accelerator.cache_clear()


def test_another_accelerator_than_cuda_is_taken_and_runs_in_float32(mac, monkeypatch):
    device = torch.device("mps:0")
    assert pick_device("mps") == pick_device("mps:0") == device
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    for name, local_rank in [("mps", 1), ("cuda", 0), ("mips", 0)]:
        with pytest.raises(UserError, match=f"device {name}.*: this machine has cpu, mps:0"):
            pick_device(name, local_rank)
    assert not autocast("auto", device)._enabled
    seeds = []
    monkeypatch.setattr(torch.mps, "manual_seed", seeds.append)
    seed_everything("step", 1)
    assert seeds == [seed_of("step", 1)]


def test_a_process_that_waits_for_others_says_so(monkeypatch, capfd):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.setattr("common.launch.NOTICE", 0.1)
    with pytest.raises(dist.DistError):
        join_group("gloo", 0, 2, datetime.timedelta(seconds=1))
    assert "for the others of WORLD_SIZE=2" in capfd.readouterr().err


def test_a_system_without_locks_runs_without_them(monkeypatch):
    monkeypatch.setattr("common.files.fcntl", None)
    with pytest.warns(UserWarning, match="no locks"):
        open_run(".")


@pytest.fixture
def tell_to_stop(monkeypatch):
    """Stop this process, with a grace period of half a second."""
    monkeypatch.setattr("common.launch._stop_requested", False)
    monkeypatch.setattr("common.launch.GRACE", 0.5)
    before = signal.getsignal(signal.SIGTERM)
    yield functools.partial(os.kill, os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_what_no_loop_saves_but_not_a_save(tell_to_stop):
    slow = SimpleNamespace(
        state_dict=lambda: time.sleep(1) or {}, load_state_dict=lambda state: None)
    checkpoint = Checkpoint("checkpoint.pt", ALONE, slow=slow)
    with pytest.raises(Stop), launch("cpu"):
        tell_to_stop()
        checkpoint.save(step=7)
        time.sleep(20)  # such as an evaluation
    assert checkpoint.restore() == {"step": 7}


def test_a_loop_ends_its_step_however_slow_and_saves(tell_to_stop):
    with launch("cpu") as ranks:
        pace = Pace(ranks, steps=100)
        time.sleep(0.6)
        assert pace(1) == (False, False, False)
        tell_to_stop()
        time.sleep(0.8)  # a step like the one before, longer than GRACE
        assert pace(2)[0]
        time.sleep(1)  # it evaluates, before it saves


def test_tensorboard_has_the_numbers_of_the_log():
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = open_run(".", tensorboard=True)
    run.log("finetune", 7, job="CoLA-1", loss=0.5, dev={"score": 0.25})
    scalars = events.EventAccumulator("tensorboard").Reload().Scalars("finetune/CoLA-1/dev_score")
    assert [(scalar.step, scalar.value) for scalar in scalars] == [(7, 0.25)]
