"""Processes, devices, prefetched batches, SIGTERM."""
import datetime
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from common.cli import UserError
from common.launch import (
    Ranks, accelerator, autocast, join_group, launch, noting_sigterm, pick_device, prefetch,
    seed_everything, seed_of)


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


def test_sigterm_is_noted_inside_and_ends_the_process_elsewhere():
    before = signal.getsignal(signal.SIGTERM)
    job = Ranks(1, 2, torch.device("cpu")).alone()
    with noting_sigterm():
        with noting_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert job.stop.is_set() and job.main and job.size == 1
