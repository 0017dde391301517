"""common/distributed.py, files.py, runs.py: run folders, checkpoints, sums and seeds that do not depend on the number
of processes."""
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
from common.distributed import Pace, Ranks, ShardSum, launch, prefetch, share_out, shard_range
from common.files import fingerprints, lock, read_json, release_locks, write_atomic
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


def test_a_run_folder_is_taken_up_again_and_refused_to_others(tmp_path):
    run = open_run(tmp_path / "run", lr=1.0, widths=(1, 2))
    (run.folder / "checkpoint.pt").touch()
    run.began -= 100
    run.log("train", 1, loss=2.0)
    run.discard()  # what a mistake does before anything has begun; of this run nothing goes
    (run.folder / "log.jsonl").open("a").write('{"phase": "train", "st\n')  # torn by a crash
    resumed = open_run(tmp_path / "run", lr=1.0, widths=(1, 2), save_every=5, save_minutes=1)  # as good as the same
    resumed.log("train", 2, loss=1.0)
    first, _, resumed, last = (run.folder / "log.jsonl").read_text().splitlines()
    assert json.loads(resumed)["event"] == "resumed"
    assert 100 <= json.loads(first)["seconds"] <= json.loads(last)["seconds"] < 160  # in all
    with pytest.raises(KeyError, match="mlm"):  # no key has a second name
        run.log("train", 3, mlm=1.0)
    with pytest.raises(UserError, match=r"lr \(1.0 there, 2.0 here\)"):
        open_run(tmp_path / "run", lr=2.0, widths=(1, 2))
    with pytest.raises(UserError, match="holds a run of albert.py --search"):
        open_run(tmp_path / "run", "train", lr=1.0)
    open_run(tmp_path / "run", restart=True, lr=2.0)
    assert not (run.folder / "checkpoint.pt").exists()


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


def test_what_killed_writes_left_bars_no_run_and_goes_with_the_checkpoint(tmp_path):
    (tmp_path / "config.json.partial-7").write_text("{")
    assert open_run(tmp_path).folder == tmp_path
    for name in ("checkpoint.pt", "checkpoint.pt.previous", "checkpoint.pt.partial-7", "checkpoint2.pt"):
        (tmp_path / name).touch()
    Checkpoint(tmp_path / "checkpoint.pt", Ranks(0, 1, torch.device("cpu"))).remove()
    assert {path.name for path in tmp_path.glob("check*")} == {"checkpoint2.pt"}


def test_a_failed_write_keeps_the_old_file(tmp_path):
    write_atomic(tmp_path / "a", "old")
    with pytest.raises(AttributeError):
        write_atomic(tmp_path / "a", object())
    assert (tmp_path / "a").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path):
    model = torch.nn.Linear(2, 2)
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", ALONE, model=model)
    assert checkpoint.restore() == {}
    checkpoint.save(step=1)
    first = model.weight.clone()
    with torch.no_grad():
        model.weight += 1
    checkpoint.save(step=2)
    assert checkpoint.restore() == {"step": 2} and torch.equal(model.weight, first + 1)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(whole[:len(whole) // 2])
    assert checkpoint.restore() == {"step": 1} and torch.equal(model.weight, first)
    (tmp_path / "checkpoint.pt.previous").write_bytes(b"")
    with pytest.raises(UserError, match="previous: no readable checkpoint.*--restart"):
        checkpoint.restore()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_are_shared_out_once_each_and_their_sum_does_not_depend_on_the_ranks(ranks):
    """Each rank adds up a block of shards; sums of blocks, taken in order, are bit for bit the sum of all of them."""
    torch.manual_seed(0)
    shards = [torch.randn(50) * 10.0 ** (place % 7) for place in range(8)]
    blocks = [shard_range(Ranks(rank, ranks, torch.device("cpu")), 8) for rank in range(ranks)]
    assert [shard for block in blocks for shard in block] == list(range(8))

    def total(tensors):
        sums = ShardSum(ALONE)
        for tensor in tensors:
            sums.add([tensor])
        return sums.total()[0]

    assert torch.equal(total(total(shards[place] for place in block) for block in blocks), total(shards))


def test_jobs_are_done_once_each_and_a_stop_reaches_all(tmp_path, monkeypatch):
    done = []

    def work(name):
        done.append(name)
        if name == "c" and done.count("c") == 1:
            raise Stop
        return {"name": name}

    monkeypatch.setattr("common.distributed._stop_requested", False)
    monkeypatch.setattr("common.distributed.stopping", lambda ranks: done.count("c") == 1)
    jobs = functools.partial(share_out, ALONE, list("dcba"), tmp_path, "jobs", work, cost=lambda name: -ord(name))
    with pytest.raises(Stop):
        jobs()
    assert done == ["a", "b", "c"]  # of the highest cost first
    assert jobs() == [{"name": name} for name in "dcba"]
    assert done == ["a", "b", "c", "c", "d"]


def test_fingerprints_are_of_the_content_and_not_of_the_place(tmp_path):
    for place, middle in ("a.txt", b"x"), ("b.txt", b"x"), ("c.txt", b"y"):
        (tmp_path / place).write_bytes(b"a" * 250_000 + middle + b"a" * 250_000)
    one, copy, other = fingerprints([tmp_path]).values()
    assert one == copy != other


@pytest.mark.parametrize("content", ["[" * 100_000, f'{{"a": {"9" * 5000}}}', '{"a": "\\ud800"}', "[1]", "", "\x00"])
def test_a_json_file_that_is_none_is_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match="a.json: (no JSON|UTF-16)"):
        read_json(tmp_path / "a.json", dict)


def test_a_loop_asks_by_the_clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("common.distributed.time.monotonic", lambda: now[0])
    pace, meetings, saves, logs = Pace(ALONE, save_minutes=2), 0, 0, 0
    monkeypatch.setattr("common.distributed.stopping", lambda ranks: now[0] > 600)
    for update in range(100_000):
        now[0] += 0.01
        stop, save, log = pace()
        saves, logs = saves + save, logs + log
        if stop:
            break
    assert 600 < now[0] < 605 and saves in (4, 5) and logs in (9, 10)


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


def test_an_evaluation_in_a_loop_is_left_though_others_took_as_long(told_to_stop):
    with pytest.raises(Stop), launch("cpu") as ranks:
        pace = Pace(ranks)
        for seconds in (0, 1, 0, 1):
            time.sleep(seconds)
            pace()
        began = told_to_stop()
        time.sleep(20)
    assert time.monotonic() - began < 7


def test_a_run_may_be_started_from_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.extend(launch("cpu").__enter__() and "a"))
    thread.start()
    thread.join()
    assert found == ["a"]


def test_items_made_ahead_are_the_same_and_one_ahead():
    made = []

    def items():
        for number in range(5):
            made.append((number, threading.current_thread().name))
            yield number
    seen = []
    for item in prefetch(items()):
        deadline = time.monotonic() + 10
        while len(made) < min(item + 2, 5) and time.monotonic() < deadline:  # the next one comes unasked
            time.sleep(0.001)
        assert len(made) == min(item + 2, 5)  # and only the next one
        seen.append(item)
    assert seen == [number for number, _ in made] == list(range(5)) and {name for _, name in made} == {"prefetch_0"}
    assert list(prefetch([])) == [] and list(prefetch(iter([None, 0]))) == [None, 0]


def test_what_goes_wrong_ahead_is_raised_in_its_place_and_no_thread_is_left():
    def items():
        yield 1
        yield 2
        raise UserError("line 3: broken")
    seen = []
    with pytest.raises(UserError, match="line 3"):
        for item in prefetch(items()):
            seen.append(item)
    assert seen == [1, 2]
    for item in prefetch(range(10 ** 9)):
        if item == 3:
            break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("name", ["run.lock", "log.jsonl"])
def test_nothing_is_written_through_a_link(tmp_path, name):
    open_run(tmp_path / "run").log("pretrain", 1)
    release_locks()
    theirs = (tmp_path / "run" / name).rename(tmp_path / "theirs")
    (tmp_path / "run" / name).symlink_to(theirs)
    before = theirs.read_text()
    with pytest.raises(UserError, match=f"{name}: a link"):
        open_run(tmp_path / "run").log("pretrain", 2)
    assert theirs.read_text() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_lock_is_given_back_while_a_forked_worker_lives(tmp_path):
    lock(tmp_path / "lock")
    worker = os.fork()
    if worker == 0:
        time.sleep(30)
        os._exit(0)
    try:
        release_locks()
        lock(tmp_path / "lock")  # raised UserError: the worker holds the file open too
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
    finally:
        release_locks()
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
