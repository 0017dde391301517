"""common/distributed.py, files.py, runs.py: run folders, checkpoints, sums and seeds that do not depend on the number
of processes."""
import dataclasses
import functools
import json
import os
import signal
import threading
import time

import pytest
import torch

from common.cli import Stop, UserError
from common.distributed import Pace, Ranks, ShardSum, prefetch, share_out, shard_range
from common.files import fingerprints, lock, read_json, release_locks, write_atomic
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


def test_a_run_folder_is_taken_up_again_and_refused_to_others(tmp_path):
    run = open_run(tmp_path / "run", lr=1.0, widths=(1, 2))
    (run.folder / "checkpoint.pt").touch()
    run.began -= 100
    run.log("train", 1, loss=2.0)
    run.discard()  # what a mistake does before anything has begun; of this run nothing goes
    (run.folder / "log.jsonl").open("a").write('{"phase": "train", "st\n')  # torn by a crash
    open_run(tmp_path / "run", lr=1.0, widths=(1, 2)).log("train", 2, loss=1.0)  # the same settings: taken up
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


@pytest.mark.parametrize("content", ["[" * 100_000, f'{{"a": {"9" * 5000}}}', '{"a": "\\ud800"}', "[1]", "", "\x00"])
def test_a_json_file_that_is_none_is_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match="a.json: (no JSON|UTF-16)"):
        read_json(tmp_path / "a.json", dict)


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
