"""Starts runs as separate processes, and compares the folders of two runs."""
import contextlib
import importlib
import json
import multiprocessing.forkserver
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from small_runs import hold_out_few, pretend

from common import cli

OWN = {  # entries that may differ: times and places
    "seconds", "search_seconds", "milliseconds", "reference_milliseconds", "limit_milliseconds",
    "speedup", "speedup_range", "argv", "environment",
    "digest", "out"}
TWO = ("--standalone", "--nproc_per_node=2")  # processes
NOT_COMPARED = re.compile(r"lock$|log\.jsonl$|latency\.json$")


def start(command, out, *launch):
    """The process of a command, leader of its own group. launch: torchrun's flags."""
    program, *words = shlex.split(command)
    torchrun = ["-m", "torch.distributed.run", *launch] if launch else []
    with open(f"{out}.txt", "a") as log:
        return subprocess.Popen(
            [sys.executable, *torchrun, f"{program}.py", *words, "--out", str(out)],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"})


def finish(command, out, *launch):
    """Run a command, which must succeed."""
    assert start(command, out, *launch).wait(900) == 0, Path(f"{out}.txt").read_text()[-2000:]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def together(log, function, *arguments, size=2):
    """Call a function in processes that can form a group. They are forked from a server that has
    imported the slow modules: the paper files, and torch's imports for the first optimizer. It has
    computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["albert", "autobert_zero", "autotinybert", "mformer", "torch._dynamo"])
    with contextlib.chdir(ROOT):  # where the server finds them
        multiprocessing.forkserver.ensure_running()
    shared = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = []
    for rank in range(size):
        own = {**shared, "RANK": rank, "LOCAL_RANK": rank}
        processes.append(context.Process(target=member, args=(own, log, function, *arguments)))
        processes[-1].start()
    for process in processes:
        process.join(900)
    assert [process.exitcode for process in processes] == [0] * size, log.read_text()[-2000:]


def member(variables, log, function, *arguments):
    """One of the processes of together()."""
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    function(*arguments)


def run_command(command, out):
    """Run a command in this process, as its __main__ would."""
    program, *words = shlex.split(command)
    main = importlib.import_module(program).main
    for change in (hold_out_few, pretend):
        change(pytest.MonkeyPatch())
    cli.run(lambda: main([*words, "--out", str(out)]))


def finish_two(command, out):
    """Run a command in two processes, which must succeed."""
    together(Path(f"{out}.txt"), run_command, command, out)


def begin(whole, out):
    """A folder for the same run again. AutoTinyBERT's search starts with the measurements of the
    first, which no seed determines."""
    out.mkdir()
    if (whole / "latency.json").exists():
        for part in ("config.json", "latency.json"):
            shutil.copy(whole / part, out)
        shutil.copytree(whole / "latencies", out / "latencies")
    return out


def without_own(entries):
    return {name: entries[name] for name in entries.keys() - OWN}


def content(path):
    """The content of a file, without entries that may differ."""
    if path.suffix == ".pt":
        text = json.dumps(torch.load(path), default=torch.Tensor.tolist)
    elif path.suffix in (".json", ".jsonl"):
        text = path.read_text().strip()
    else:
        return path.read_bytes()
    documents = re.split(r"\n(?={)", text)
    return [json.loads(each, object_hook=without_own, parse_constant=str) for each in documents]


def files_of(folder):
    files = {path for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(folder)) for path in files if not NOT_COMPARED.search(path.name)}


def differences(whole, other):
    """Names of files that differ, or are in one folder only."""
    one = files_of(whole)
    two = files_of(other)
    changed = {name for name in one & two if content(whole / name) != content(other / name)}
    return sorted((one ^ two) | changed)


def children_of(process):
    """The processes of torchrun."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [*map(int, children.split())]
