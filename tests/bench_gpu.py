"""python tests/bench.py gpu [WORDS] [--card NAME]: what a GPU must still confirm. Every phase of test_rehearsal.py
(whose names hold WORDS) for real, without data: peak memory beside the rehearsal's, examples or tokens a second beside
what 35% of the card's peak would be, synchronisations of a step beside 0. Without a GPU: the list, for --card."""
import argparse
import gc
import json
import re
import time
import warnings
from pathlib import Path
from unittest import mock

import torch

import test_rehearsal
from common import describe
from data import rehearsals

RESULTS = Path(__file__).parent / "claims" / "results" / "rehearsal.json"
SOURCES = """Sources of a row, gpu 'PHASE'. Peak: {results}, made by `python tests/test_rehearsal.py 'PHASE'`, the
step on tensors without content. A second: 35% (a usual run's share) of {card}'s {peak:.0f} TFLOP/s in bfloat16 (its
data sheet: CARDS in common/describe.py) over the FLOPs of that row. Waits: 0, as `python -m pytest tests/test_flow.py`
counts them on a CPU in the files' own loops."""
HEAD = ("| command | peak GB, expected | measured | a second, expected | measured | waits in a step (0) |\n"
        "|---|---|---|---|---|---|")


def units(name, cfg, rows, shards):
    """(number, what) of which an update does so many: tokens, pictures, or rows of a task."""
    what = "tokens" if re.search(r"rows of \d{3}|tokens", name) else next(
        (word for word in ("pictures", "sentences") if word in name), "rows")
    return rows * shards * (cfg.length if "rows of" in name and what == "tokens" else 1), what


def on_device(device, cfg, build, size, file, steps=10, updates=True):
    """{"peak": bytes, "seconds" of a step, "waits" in one} of the update and the largest evaluation, as rehearsed.
    updates=False: seconds of the evaluation, where there is no update."""
    cuda, place = device.type == "cuda", torch.device("cpu") if file == "autotinybert" else device  # it sends them
    finish, debug = (torch.cuda.synchronize, torch.cuda.set_sync_debug_mode) if cuda else (bool, bool)
    with (torch.device(device), mock.patch.object(rehearsals, "CPU", device),
          mock.patch.object(rehearsals, "ids", lambda *shape: torch.zeros(shape, dtype=torch.long, device=place))):
        optimizer, step, look = build(cfg)
        step(*size)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            debug("warn")
            step(*size)
            debug("default")
        waits = sum("synchroniz" in str(warning.message) for warning in found)
        began = finish() or time.perf_counter()
        for _ in range(steps if updates else 0):
            step(*size)
        seconds = ((finish() or time.perf_counter()) - began) / steps
        with torch.no_grad():
            look()
            began = finish() or time.perf_counter()
            for _ in range(0 if updates else 1):
                look()
                seconds = (finish() or time.perf_counter()) - began
    return {"peak": torch.cuda.max_memory_allocated() if cuda else 0, "seconds": seconds, "waits": waits}


def main(argv):
    parser = argparse.ArgumentParser(prog="bench.py gpu", description=__doc__)
    parser.add_argument("words", nargs="?", default="", help="of the phases to run")
    parser.add_argument("--card", default="H100", choices=describe.CARDS)
    own, there, rows = parser.parse_args(argv), torch.cuda.is_available(), json.loads(RESULTS.read_text())
    name = torch.cuda.get_device_name() if there else "no GPU here: the list of what one must confirm"
    card = next((known for known in describe.CARDS if known in name), own.card)
    print(name + "\n" + SOURCES.format(results="tests/claims/results/rehearsal.json", card=card,
                                       peak=describe.CARDS[card][1] / 1e12) + "\n" + HEAD)
    chosen = {key: run for key, run in test_rehearsal.phases().items() if own.words in ", ".join(key)}
    for key, run in chosen.items():
        phase = rows[" | ".join(key)]
        with mock.patch.object(describe, "rehearse", lambda cfg, build, size: [(cfg, build, size)]):
            cfg, build, size = run()
        count, what = units(key[2], cfg, *size)
        work = phase["flops"] or phase["evaluation_flops"]
        rate, real = count * 0.35 * describe.CARDS[card][1] / work, ["", "", ""]
        if there and phase["peak"] > torch.cuda.get_device_properties(0).total_memory:
            real[0] = "does not fit"
        elif there:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                found = on_device(torch.device("cuda"), cfg, build, size, key[0], updates=bool(phase["flops"]))
                real = f"{found['peak'] / 1e9:.1f}", f"{count / found['seconds']:,.0f}", str(found["waits"])
            except torch.OutOfMemoryError:
                real[0] = "out of memory"
        print(f"| `python tests/bench.py gpu '{', '.join(key)}'` | {phase['peak'] / 1e9:.1f} | {real[0]} | "
              f"{rate:,.0f} {what} | {real[1]} | {real[2]} |", flush=True)
