"""common/distributed.py, files.py, runs.py: run folders, checkpoints, jobs, batches made ahead."""
import dataclasses
import functools
import json
import os
import shutil
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from small_runs import write

from common.cli import Stop, UserError
from common.distributed import Pace, Ranks, launch, prefetch, share_out
from common.files import read_json
from common.runs import Checkpoint, RunFolder
from data.inputs import find_data

ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclasses.dataclass
class Config:
    out: str
    restart: bool = False
    lr: float = 1.0
    widths: tuple = ()
    save_every: int = 10
    save_minutes: float = 0
    dry_run: bool = False
    program = "albert"


def open_run(folder, action="search", reads=(), **settings):
    return RunFolder(Config(str(folder), **settings), action, ALONE, reads=reads)


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


def test_a_knob_that_a_file_compares_may_not_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(Config, "compared", ("save_every",), raising=False)
    (open_run(tmp_path / "run").folder / "checkpoint.pt").touch()
    open_run(tmp_path / "run", save_minutes=1)
    with pytest.raises(UserError, match=r"save_every \(10 there, 5 here\)"):
        open_run(tmp_path / "run", save_every=5)


@pytest.mark.parametrize("change", [lambda record: record.pop("format"), lambda record: record["settings"].pop("lr")])
def test_a_run_of_another_version_is_refused_in_one_line(tmp_path, change):
    config = open_run(tmp_path / "run").folder / "config.json"
    (tmp_path / "run" / "done.json").touch()
    record = read_json(config)
    change(record)
    config.write_text(json.dumps(record))
    with pytest.raises(UserError, match="another version of this program.*--restart would delete this run"):
        open_run(tmp_path / "run", lr=2.0)


def test_files_that_come_or_go_are_other_data(tmp_path):
    data, out = tmp_path / "data", tmp_path / "run"
    for number in (1, 2):
        for level in ("middle", "high"):
            write(data / "train" / level / f"{number}.txt", "")
            write(data / "dev" / level / f"{number}.txt", "")
        write(data / f"data_batch_{number}.bin", f"{number}")
    cfg = SimpleNamespace(cifar10=str(data), race=str(data))

    def begin():
        return open_run(out, reads=find_data(cfg, ["cifar10", "race"], (), "train"))

    (begin().folder / "checkpoint.pt").touch()
    (data / "notes.txt").touch()  # which no reader opens
    shutil.copytree(data, tmp_path / "copy")
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data, copy_function=shutil.copy)  # with other times
    begin()
    for name, words in (("data_batch_3.bin", "was not there"), ("train/high/0.txt", "was not there"),
                        ("dev/middle/2.txt", "is not there now"), ("data_batch_1.bin", "has changed since")):
        path = data / name
        kept = path.read_text() if path.exists() else None
        if "not there now" in words:
            path.unlink()
        else:
            path.write_text("another")
        with pytest.raises(UserError, match=f"{name} {words}; choose"):
            begin()
        path.unlink(missing_ok=True)
        if kept is not None:
            path.write_text(kept)
        begin()


@pytest.fixture
def told_to_stop(monkeypatch):
    """Tell this process to stop, with a tenth of a second to do it; returns the time."""
    monkeypatch.setattr("common.distributed._stop_requested", False)
    monkeypatch.setattr("common.distributed._busy_until", 0.0)
    monkeypatch.setattr("common.distributed.GRACE", 0.1)

    def tell():
        os.kill(os.getpid(), signal.SIGTERM)
        return time.monotonic()
    before = signal.getsignal(signal.SIGTERM)
    yield tell
    signal.signal(signal.SIGTERM, before)


def test_what_no_loop_saves_is_left_soon_and_what_is_being_saved_is_not(told_to_stop, tmp_path):
    with pytest.raises(Stop), launch("cpu"):  # as in reading, or in an evaluation
        began = told_to_stop()
        time.sleep(20)
    assert time.monotonic() - began < 2
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", ALONE, thing=SimpleNamespace(
        state_dict=lambda: time.sleep(1) or {}, load_state_dict=lambda state: None))
    with pytest.raises(Stop), launch("cpu"):
        told_to_stop()
        checkpoint.save(step=7)
        time.sleep(20)
    assert checkpoint.restore() == {"step": 7}


def test_a_loop_ends_its_step_and_saves(told_to_stop):
    saved = []
    with pytest.raises(Stop), launch("cpu") as ranks:
        pace = Pace(ranks)
        pace()
        told_to_stop()
        while not pace()[0]:
            time.sleep(0.5)  # a step, five times as long as what else may be under way
        time.sleep(0.5)
        saved.append("all")
        raise Stop
    assert saved


def test_a_run_may_be_started_from_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.extend(launch("cpu").__enter__() and "a"))
    thread.start()
    thread.join()
    assert found == ["a"]
