"""Runs on tiny settings are killed at random moments, continued by the same command until they end, and compared with
an undisturbed one: every file that they leave, weights bit by bit, what was timed aside.

    python tests/kills.py [albert autobert_zero autotinybert mformer data/prepare] --kills 20 --seed 0

How a run dies: SIGKILL, SIGTERM, `rank` (SIGKILL of one of torchrun's two processes), `all` (of torchrun and both).
"""
import argparse
import collections
import contextlib
import functools
import json
import multiprocessing
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from conftest import ROOT, filled

TEXT = "--corpus data/demo/corpus/language.txt --vocab_size 300 --length 24 --batch 8 --dropout 0.1 "
TUNE = "--train_rows 80 --finetune_batch 8 --finetune_epochs 2 --finetune_length 32 "
ZERO = "--layers 2 --hidden 16 --heads 2 --ffn 32 --save_every 3 "
IMAGES = ("--layers 1 2 --hidden 16 --ffn 16 32 --heads 1 2 --dropout 0.1 --patch 8 --batch 8 --train_rows 99 "
          "--held_out 32 --save_every 5 --cost flops ")
COMMANDS = {  # {program: {name: arguments}}; {name} there is the undisturbed run of that name
    "albert": {
        "pretrain": "--pretrain --layers 2 --hidden 32 --heads 2 --ffn 32 --embedding 16 --positions 64 --steps 150 "
                    "--accumulate 2 --save_every 20 --dev_rows 32 " + TEXT,
        "finetune": "--finetune CoLA,MRPC --init {pretrain} --eval_every 9 --finetune_dropout 0.1 --runs 2 " + TUNE},
    "autobert_zero": {
        "pretrain": "--pretrain --arch 'conv3 | softmax(scale(Q @ K.T)) @ V' --steps 90 --accumulate 2 " + ZERO + TEXT,
        "search": "--search --tasks MLM,CoLA --steps 12 --population 3 --rounds 2 --parents 2 " + ZERO + TEXT + TUNE,
        "finetune": "--finetune CoLA,MRPC --init {pretrain} --eval_every 9 --save_every 3 --runs 2 " + TUNE},
    "autotinybert": {
        "search": "--search --tasks MLM-saved,SST-2 --steps 30 --further_steps 30 --population 3 --generations 2 "
                  "--winners 1 --largest 2-32-64-4-32 --smallest 1-16-16-1-8 --reference 4-64-128-4-64 --speedup 1 "
                  "--latency_archs 8 --save_every 5 --eval_every 10 --accumulate 2 " + TEXT + TUNE,
        "finetune": "--finetune SST-2,CoLA --init {search} --runs 2 " + TUNE},
    "mformer": {
        "search": "--search --samples 24 --steps 60 --generations 2 --population 10 --finalists 2 " + IMAGES,
        "train": "--train --arch 'layers=2 hidden=16 ffn=16,32 heads=1,2 types=linear,softmax' --steps 90 " + IMAGES},
    "data/prepare": {"corpus": "corpus --corpus data/demo/corpus --vocab_size 500 --workers 2"},
}
OWN = {"seconds", "search_seconds", "milliseconds", "speedup", "speedup_range", "argv", "environment", "digest",
       "out"}  # what may differ: times, and what says where a run was
# Forks of a server that has imported what a run imports, its first step too: that takes longer than these runs. A fork
# of a process that has computed with torch may wait for ever for a thread that it lacks.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["albert", "torch._dynamo"])
NOT_COMPARED = re.compile(r"lock$|log\.jsonl$|latency\.jsonl$|\.previous$")


def as_program(words, log):
    """Be `python words`, in a fork of the server."""
    os.setsid()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    sys.argv, sys.path[0] = words, str(ROOT)
    run = runpy.run_path if words[0].endswith(".py") else functools.partial(runpy.run_module, alter_sys=True)
    run(words[0], run_name="__main__")


def start(program, name, out, ranks, restarts=0):
    """The process of a command, leader of a group of its own. What a run starts from stands beside its folder."""
    made = {each: out.parent / f"{each}-1" for each in ("pretrain", "search")}
    words = shlex.split(filled(COMMANDS[program][name], **made))
    launch = ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", f"--max-restarts={restarts}"]
    words = [f"{program}.py", *words, "--to" if program.startswith("data") else "--out", str(out)]
    command = [*launch * (ranks > 1), *words]
    process = SERVER.Process(target=as_program, args=(command, out.parent / "log.txt"))
    process.start()
    before, lock = time.time(), out / "run.lock"
    while "--out" in command and process.is_alive() and not (lock.exists() and lock.stat().st_mtime > before):
        time.sleep(0.01)  # a run begins when it takes its lock; what it imports is not worth killing
    return process


def end(process):
    """The exit status of a process."""
    process.join(900)
    return process.exitcode


def undisturbed(program, name, folder, ranks):
    """(the run folder, seconds of the run), made once, with what it starts from."""
    for each in re.findall(r"{(\w+)}", COMMANDS[program][name]):
        undisturbed(program, each, folder, 1)
    out, kept = folder / f"{name}-{ranks}", folder / f"{name}-{ranks}.seconds"
    if not kept.exists():
        process, began = start(program, name, out, ranks), time.time()
        assert end(process) == 0, (folder / "log.txt").read_text()[-2000:]
        kept.write_text(str(time.time() - began))
    return out, float(kept.read_text())


def begin(program, name, whole, out):
    """A run's folder: AutoTinyBERT's search begins with what the undisturbed one measured, no function of a seed."""
    out.mkdir(exist_ok=True)
    if (program, name) == ("autotinybert", "search"):
        for part in ("config.json", "latency.json", "predictor.pt"):
            shutil.copy(whole / part, out)
    return out


def kill(process, kind, rng):
    """Let a process die; False where it has ended before."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    ranks = children.read_text().split() if kind in ("rank", "all") and process.is_alive() else [process.pid]
    if not process.is_alive() or not ranks:  # or torchrun is about to end
        return False
    # torchrun starts each rank in a session of its own: left alive they would go on
    victims = {"rank": [rng.choice(ranks)], "all": [process.pid, *ranks]}.get(kind, [process.pid])
    for each in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(each), getattr(signal, kind, signal.SIGKILL))
    return end(process) is not None


def content(path):
    """What a file says."""
    if path.suffix in (".json", ".jsonl"):
        return [json.loads(line) for line in re.split(r"\n(?={)", path.read_text().strip())]
    return torch.load(path, weights_only=True) if path.suffix == ".pt" else path.read_bytes()


def same(one, two):
    """Whether two contents are the same, tensors bit by bit, what was timed aside."""
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(key in OWN or same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def differences(whole, other):
    """Names of the files that are not in both folders, or not the same there."""
    one, two = ({str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
                 and not NOT_COMPARED.search(path.name)} for folder in (whole, other))
    return sorted((one ^ two) | {name for name in one & two if not same(content(whole / name), content(other / name))})


def attack(program, kills, rng, folder):
    """Kill so many times, print what came out; the number of runs that differ."""
    died, runs, wrong = collections.Counter(), 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    while died.total() < kills:
        name, ranks = rng.choice([*COMMANDS[program]]), 1 if program.startswith("data") else rng.choice((1, 1, 2))
        out, (whole, seconds) = folder / f"{name}-killed-{runs}", undisturbed(program, name, folder, ranks)
        begin(program, name, whole, out)
        for _ in range(min(kills - died.total(), rng.randint(1, 3))):
            process = start(program, name, out, ranks)
            kind = rng.choice(("SIGKILL", "SIGTERM") if ranks == 1 else ("rank", "rank", "SIGTERM", "all"))
            time.sleep(rng.uniform(0, seconds))
            died[kind] += kill(process, kind, rng)
        status = end(start(program, name, out, ranks))
        differ = differences(whole, out) if not status else [f"exit status {status}"]
        runs, wrong = runs + 1, wrong + bool(differ)
        print(f"{program} {name} on {ranks}, {died.total()} kills: {', '.join(differ) or 'the same'}", flush=True)
    print(f"{program}: {died.total()} kills {dict(died)} in {runs} runs, {wrong} differ", flush=True)
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="FILE", default=[*COMMANDS], help="default: all",
                        type=lambda name: name.removesuffix(".py"))
    parser.add_argument("--kills", type=int, default=20, help="of each file (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: %(default)s)")
    options, place = parser.parse_args(), Path(tempfile.mkdtemp(prefix="kills-"))
    if unknown := {*options.programs} - {*COMMANDS}:
        parser.error(f"{min(unknown)}: unknown; choose from {', '.join(COMMANDS)}")
    os.nice(10)
    subprocess.run([sys.executable, "data/prepare.py", "demo"], check=True, cwd=ROOT)
    found = [attack(program, options.kills, random.Random(f"{options.seed} {program}"), place / program)
             for program in options.programs]
    if not any(found):
        shutil.rmtree(place)
    sys.exit(any(found))
