"""Speed on a GPU.  python tests/bench.py, --help

Two steps of every action, then each training at the paper's size: its speed, its memory, and the
lines that wait for the GPU. The first failure ends it. Compare with --describe of the same command.
"""
import argparse
import contextlib
import importlib
import io
import shlex
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import torch
from conftest import ROOT, filled
from torch.optim.optimizer import register_optimizer_step_post_hook

from common import distributed
from data.prepare import make_demo

# The files' own commands run in this process, so that a hook behind every step sees them.

DRY = """
albert.py --pretrain --out {to}/lite
albert.py --finetune CoLA,SQuAD2.0,RACE --init {to}/lite-dry --out {to}/lite-tasks
albert.py --predict {demo}/glue/CoLA/test.tsv --init {to}/lite-tasks-dry/CoLA --out {to}/answers
albert.py --export {to}/lite-hf --init {to}/lite-dry
autobert_zero.py --search --out {to}/zero
autobert_zero.py --pretrain --init {to}/zero-dry --out {to}/zero-text
autobert_zero.py --finetune CoLA,SQuAD2.0 --init {to}/zero-text-dry --out {to}/zero-tasks
autobert_zero.py --export {to}/zero.py --init {to}/zero-text-dry
autotinybert.py --search --latency_device cuda --out {to}/tiny
autotinybert.py --further_train --arch 2-32-64-2-32 --out {to}/tiny-text
autotinybert.py --finetune SST-2,SQuAD1.1 --init {to}/tiny-text-dry --out {to}/tiny-tasks
autotinybert.py --export {to}/tiny-hf --init {to}/tiny-text-dry
mformer.py --search --out {to}/images
mformer.py --train --arch {to}/images-dry/best.json --out {to}/images-net
mformer.py --evaluate --init {to}/images-net-dry --out {to}/images-score
mformer.py --task wmt14 --search --out {to}/texts
mformer.py --task wmt14 --train --arch {to}/texts-dry/best.json --out {to}/texts-net
mformer.py --task wmt14 --evaluate --init {to}/texts-net-dry --out {to}/texts-score
"""
TRAININGS = """
albert.py --pretrain --batch 512 --accumulate 8 --vocab_size 2000 --out {to}/0
albert.py --finetune SST-2 --init {to}/0 --out {to}/1
autobert_zero.py --pretrain --vocab_size 2000 --out {to}/2
autobert_zero.py --finetune SST-2 --init {to}/2 --out {to}/3
autotinybert.py --superplm --vocab_size 2000 --out {to}/4
mformer.py --train --arch mformer --out {to}/5
mformer.py --task wmt14 --train --arch mformer --vocab_size 2000 --out {to}/6
"""  # at --preset base, but for the vocabulary: the demo text is small


def output_of(command):
    """What a command of a paper file prints; SIGTERM may end it early."""
    file, *words = shlex.split(command)
    text = io.StringIO()
    with contextlib.redirect_stdout(text), mock.patch.object(distributed, "_stop_requested", False):
        importlib.import_module(file.removesuffix(".py")).main(words)
    return text.getvalue()


def train_on_card(command, seconds):
    """Steps 3 to 6 say where the host waits for the card (only lines of the log may). After so many
    seconds SIGTERM, on which a run saves and ends."""
    times = []

    def watch(*_):
        times.append(time.perf_counter())
        torch.cuda.set_sync_debug_mode("warn" if 3 <= len(times) < 6 else "default")
        if len(times) > 6 and times[-1] - times[0] > seconds:
            signal.raise_signal(signal.SIGTERM)
    torch.cuda.reset_peak_memory_stats()
    hook = register_optimizer_step_post_hook(watch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            output_of(command)
        finally:
            hook.remove()
            torch.cuda.set_sync_debug_mode("default")
    waits = {
        f"{Path(each.filename).name}:{each.lineno}" for each in caught
        if "synchroniz" in str(each.message)}
    speed = (len(times) - 4) / (times[-1] - times[3])
    peak = torch.cuda.max_memory_allocated() / 1e9
    return f"{speed:.3g} steps a second, {peak:.3g} GB, waits at {sorted(waits)}"


def main(argv):
    parser = argparse.ArgumentParser(
        prog="bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="demo sizes")
    parser.add_argument("--seconds", type=float, default=30, help="of each training")
    own = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("bench.py: torch sees no CUDA device on this machine")
    demo = ROOT / "data" / "demo"
    make_demo(demo)
    to = tempfile.mkdtemp()
    print(torch.cuda.get_device_name(), torch.__version__, to)
    for line in DRY.strip().split("\n"):
        print(line, flush=True)
        output_of(filled(f"{line} --dry_run", to=to, demo=demo))
    preset = "demo" if own.small else "base"
    for line in TRAININGS.strip().split("\n"):
        result = train_on_card(filled(f"{line} --preset {preset}", to=to), own.seconds)
        print(line, result, sep="\n  ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
