"""common/distributed.py, files.py, runs.py: run folders, checkpoints, jobs, batches made ahead."""
import dataclasses
import functools
import json
import threading
import time

import pytest
import torch

from common.cli import Stop, UserError
from common.distributed import Ranks, prefetch, share_out
from common.runs import Checkpoint, RunFolder

ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclasses.dataclass
class Config:
    out: str
    restart: bool = False
    lr: float = 1.0
    widths: tuple = ()
    dry_run: bool = False
    program = "albert"


def open_run(folder, action="search", **settings):
    return RunFolder(Config(str(folder), **settings), action, ALONE)


def test_a_run_folder_is_resumed_and_refused_to_others(tmp_path):
    run = open_run(tmp_path / "run", widths=(1, 2))
    (run.folder / "checkpoint.pt").touch()
    run.began -= 100
    run.log("train", 1, loss=2.0)
    with (run.folder / "log.jsonl").open("a") as log:
        log.write('{"phase": "train", "st\n')  # torn by a crash
    open_run(tmp_path / "run", widths=(1, 2)).log("train", 2, loss=1.0)
    first, _, resumed, last = (run.folder / "log.jsonl").read_text().splitlines()
    assert json.loads(resumed)["event"] == "resumed"
    assert 100 <= json.loads(first)["seconds"] <= json.loads(last)["seconds"] < 160  # in all
    with pytest.raises(UserError, match=r"lr \(1.0 there, 2.0 here\)"):
        open_run(tmp_path / "run", lr=2.0, widths=(1, 2))
    with pytest.raises(UserError, match="holds a run of albert.py --search"):
        open_run(tmp_path / "run", "train", widths=(1, 2))
    open_run(tmp_path / "run", restart=True, lr=2.0)
    assert not (run.folder / "checkpoint.pt").exists()


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path):
    model = torch.nn.Linear(2, 2)
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", ALONE, model=model)
    assert checkpoint.restore() == {}
    checkpoint.save(step=1)
    first = model.weight.clone()
    with torch.no_grad():
        model.weight += 1
    checkpoint.save(step=2)
    assert checkpoint.restore() == {"step": 2}
    assert torch.equal(model.weight, first + 1)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(whole[:len(whole) // 2])
    assert checkpoint.restore() == {"step": 1}
    assert torch.equal(model.weight, first)
    (tmp_path / "checkpoint.pt.previous").write_bytes(b"")
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
    monkeypatch.setattr("common.distributed.stopping", lambda ranks: done.count("c") == 1)
    jobs = functools.partial(
        share_out, ALONE, list("dcba"), tmp_path, "jobs", work, cost=lambda name: -ord(name))
    with pytest.raises(Stop):
        jobs()
    assert done == ["a", "b", "c"]  # of the highest cost first
    assert jobs() == [{"name": name} for name in "dcba"]
    assert done == ["a", "b", "c", "c", "d"]


def test_items_made_ahead_are_the_same_and_one_ahead():
    made = []

    def items():
        for number in range(5):
            made.append(number)
            yield number
    seen = []
    for item in prefetch(items()):
        deadline = time.monotonic() + 10
        while len(made) < min(item + 2, 5) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(made) == min(item + 2, 5)
        seen.append(item)
    assert seen == made == list(range(5))
    assert list(prefetch([])) == []


def test_what_goes_wrong_ahead_is_raised_in_its_place_and_no_thread_is_left():
    def items():
        yield 1
        raise UserError("line 3: broken")
    made = prefetch(items())
    assert next(made) == 1
    with pytest.raises(UserError, match="line 3"):
        next(made)
    for item in prefetch(range(10 ** 9)):
        if item == 3:
            break
    assert not [each for each in threading.enumerate() if each.name.startswith("prefetch")]
