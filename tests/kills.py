"""Starts runs as processes of their own, and compares the folders of two runs."""
import contextlib
import json
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import sys
import time
from pathlib import Path

import torch
from conftest import ROOT

# Forks of a server that has imported what a run imports, which takes longer than these runs. A fork
# of a process that has computed with torch may wait for ever for a thread that it lacks.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["albert", "torch._dynamo"])
OWN = {  # entries that may differ: times and places
    "seconds", "search_seconds", "milliseconds", "reference_milliseconds", "limit_milliseconds",
    "speedup", "speedup_range", "argv", "environment",
    "digest", "out"}
NOT_COMPARED = re.compile(r"lock$|log\.jsonl$|latency\.json$|\.previous$")


def as_program(words, log):
    """Be `python words`, in a fork of the server."""
    os.setsid()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    sys.argv = words
    sys.path[0] = str(ROOT)
    if words[0].endswith(".py"):
        runpy.run_path(words[0], run_name="__main__")
    else:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def start(command, out, *launch):
    """The process of a command, leader of a group of its own; launch: torchrun's flags. Waits until
    the run has taken its lock: what it imports is not worth killing."""
    program, *words = shlex.split(command)
    words = [f"{program}.py", *words, "--out", str(out)]
    if launch:
        words = ["torch.distributed.run", *launch, *words]
    process = SERVER.Process(target=as_program, args=(words, f"{out}.txt"))
    process.start()
    lock = out / "run.lock"
    before = time.time()
    while process.is_alive() and not (lock.exists() and lock.stat().st_mtime > before):
        time.sleep(0.01)
    return process


def end(process):
    """The exit status of a process."""
    process.join(900)
    return process.exitcode


def finish(command, out, *launch):
    """Run a command to its end, which must be a good one; the seconds that it took."""
    began = time.time()
    assert end(start(command, out, *launch)) == 0, Path(f"{out}.txt").read_text()[-2000:]
    return time.time() - began


def begin(whole, out):
    """A folder for the same run again. AutoTinyBERT's search begins with what the first measured,
    which is no function of a seed."""
    out.mkdir()
    if (whole / "latency.json").exists():
        for part in ("config.json", "latency.json"):
            shutil.copy(whole / part, out)
    return out


def content(path):
    """The content of a file."""
    if path.suffix in (".json", ".jsonl"):
        return [
            json.loads(line)
            for line in re.split(r"\n(?={)", path.read_text().strip())
        ]
    return torch.load(path, weights_only=True) if path.suffix == ".pt" else path.read_bytes()


def same(one, two):
    """Whether two contents are the same, tensors bit by bit, except OWN."""
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        keys = one.keys() - OWN
        return keys == two.keys() - OWN and all(
            same(one[key], two[key])
            for key in keys
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def files_of(folder):
    files = {path for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(folder)) for path in files if not NOT_COMPARED.search(path.name)}


def differences(whole, other):
    """Names of the files that are not in both folders, or not the same there."""
    one = files_of(whole)
    two = files_of(other)
    changed = {
        name
        for name in one & two
        if not same(content(whole / name), content(other / name))
    }
    return sorted((one ^ two) | changed)


def children_of(process):
    """The processes that torchrun has started."""
    with contextlib.suppress(FileNotFoundError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return [*map(int, children.split())]
    return []
