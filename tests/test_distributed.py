"""Run folders, checkpoints, jobs, batches made ahead, SIGTERM."""
import dataclasses
import functools
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from small_runs import write

from common.cli import Stop, UserError
from common.checkpoint import Checkpoint, RunFolder, read_jsonl, share_out
from common.distributed import Pace, Ranks, launch, prefetch

ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclasses.dataclass
class Config:
    out: str
    restart: bool = False
    lr: float = 1.0
    widths: tuple = ()
    device: str = "cpu"
    dry_run: bool = False
    save_every: int = 1
    tensorboard: bool = False
    program = "albert"


def open_run(folder, action="search", reads=None, **settings):
    return RunFolder(Config(str(folder), **settings), action, ALONE, reads=reads)


def test_a_run_folder_is_resumed_and_refused_to_others(tmp_path, monkeypatch):
    run = open_run(tmp_path, widths=(1, 2))
    checkpoint = write(tmp_path / "checkpoint.pt", "")
    run.log("train", 1, loss=2.0)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"phase": "train", "st')  # torn by a crash
    open_run(tmp_path, widths=(1, 2), device="cuda", save_every=7)
    lines = read_jsonl(tmp_path / "log.jsonl")
    assert [line.get("event") for line in lines] == [None, "resumed"]
    monkeypatch.setattr(Config, "compared", ("save_every",), raising=False)
    with pytest.raises(UserError, match=r"lr \(1.0 there, 2.0 here\); save_every \(1"):
        open_run(tmp_path, lr=2.0, widths=(1, 2), save_every=7)
    with pytest.raises(UserError, match="no run folder"):  # --dry_run would delete a real run
        open_run(tmp_path, widths=(1, 2), dry_run=True, restart=True)
    with pytest.raises(UserError, match="no run folder of albert.py --train"):
        open_run(tmp_path, "train", widths=(1, 2))
    open_run(tmp_path, restart=True, lr=2.0)
    assert not checkpoint.exists()


def test_tensorboard_has_the_numbers_of_the_log(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = open_run(tmp_path, tensorboard=True)
    run.log("finetune", 7, job="CoLA-1", loss=0.5, dev={"score": 0.25})
    accumulator = events.EventAccumulator(str(tmp_path / "tensorboard"))
    scalars = accumulator.Reload().Scalars("finetune/CoLA-1/dev_score")
    assert [(scalar.step, scalar.value) for scalar in scalars] == [(7, 0.25)]


def test_data_that_change_are_refused_in_every_phase(tmp_path):
    """A phase can read more than the one before; what one has read must be the same in the next."""
    data = tmp_path / "data"
    glue = tmp_path / "glue.tsv"
    begin = functools.partial(open_run, tmp_path / "run")
    write(data / "a/1.txt", "1")
    write(glue, "1")
    write(begin().folder / "checkpoint.pt", "")
    begin(reads={"corpus": [data]})
    write(data / "a/1.txt", "1")  # at another time
    begin(reads={"corpus": [data], "glue": [glue]})
    write(glue, "other")
    with pytest.raises(UserError, match="the files of --glue have changed"):
        begin(reads={"glue": [glue]})
    write(data / "2.txt", "2")
    with pytest.raises(UserError, match="the files of --corpus have changed"):
        begin(reads={"corpus": [data]})


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path):
    model = torch.nn.Linear(2, 2)
    path = tmp_path / "checkpoint.pt"
    checkpoint = Checkpoint(path, ALONE, model=model)
    assert checkpoint.restore() == {}
    checkpoint.save(step=1)
    first = model.weight.clone()
    with torch.no_grad():
        model.weight += 1
    checkpoint.save(step=2)
    assert checkpoint.restore() == {"step": 2}
    assert torch.equal(model.weight, first + 1)
    path.write_bytes(path.read_bytes()[:1000])
    assert checkpoint.restore() == {"step": 1}
    assert torch.equal(model.weight, first)
    write(tmp_path / "checkpoint.pt.previous", "")
    with pytest.raises(UserError, match="previous: no readable checkpoint.*--restart"):
        checkpoint.restore()


def test_jobs_are_done_once_each_and_a_stop_reaches_all(tmp_path, monkeypatch):
    done = []

    def work(name):
        done.append(name)
        if name == "c" and done.count("c") == 1:
            raise Stop
        return {"name": name}

    monkeypatch.setattr("common.distributed._stop_requested", False)
    monkeypatch.setattr("common.checkpoint.stopping", lambda ranks: done.count("c") == 1)
    jobs = functools.partial(
        share_out, ALONE, list("dcba"), tmp_path, "jobs", work, cost=lambda name: -ord(name))
    with pytest.raises(Stop):
        jobs()
    assert done == ["a", "b", "c"]  # the highest cost first
    reported = []
    assert jobs(report=lambda *result: reported.append(result)) == [
        {"name": name} for name in "dcba"]
    assert done == ["a", "b", "c", "c", "d"]
    assert sorted(reported) == [(name, {"name": name}) for name in "abcd"]


def test_items_made_ahead_are_the_same_and_one_ahead():
    made = []

    def items():
        for number in range(5):
            made.append(number)
            yield number
        raise UserError("line 3: broken")

    ahead = prefetch(items())
    for number in range(5):
        assert next(ahead) == number
        deadline = time.monotonic() + 10
        while len(made) < min(number + 2, 5) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(made) == min(number + 2, 5)
    with pytest.raises(UserError, match="line 3"):
        next(ahead)


@pytest.fixture
def tell_to_stop(monkeypatch):
    """Tell this process to stop, with half a second to do it; returns the time."""
    monkeypatch.setattr("common.distributed._stop_requested", False)
    monkeypatch.setattr("common.distributed.GRACE", 0.5)

    def tell():
        os.kill(os.getpid(), signal.SIGTERM)
        return time.monotonic()
    before = signal.getsignal(signal.SIGTERM)
    yield tell
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_what_no_loop_saves_but_not_a_save(tell_to_stop, tmp_path):
    with pytest.raises(Stop), launch("cpu"):  # such as an evaluation
        began = tell_to_stop()
        time.sleep(20)
    assert time.monotonic() - began < 2
    slow = SimpleNamespace(
        state_dict=lambda: time.sleep(1) or {}, load_state_dict=lambda state: None)
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", ALONE, slow=slow)
    with pytest.raises(Stop), launch("cpu"):
        tell_to_stop()
        checkpoint.save(step=7)
        time.sleep(20)
    assert checkpoint.restore() == {"step": 7}


def test_a_loop_ends_its_step_however_slow_and_saves(tell_to_stop):
    with launch("cpu") as ranks:
        pace = Pace(ranks)
        time.sleep(0.6)
        assert pace() == (False, False, False)
        tell_to_stop()
        time.sleep(0.8)  # a step like the one before, longer than GRACE
        assert pace()[0]
        time.sleep(1)  # it evaluates, before it saves
