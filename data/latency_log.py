"""Measurements of latency, a line each in latency.jsonl of a run folder: a killed run goes on behind the last one, and
another run takes over with --init what was measured on its machine with its settings."""
import json
import math
import statistics
import time
from pathlib import Path

import torch
from tqdm import tqdm

from common.cli import Stop, UserError
from common.distributed import milliseconds, pick_device, stop_requested
from common.files import read_jsonl, write_atomic
from common.runs import environment


def setting(cfg):
    """What a measurement holds for; those of other settings are left alone."""
    device = pick_device(cfg.latency_device)
    return {"device": str(device), "threads": cfg.latency_threads, "batch": cfg.latency_batch,
            "length": cfg.latency_length, "hardware": environment(device)["hardware"]}


def time_pass(forward, cfg):
    """Milliseconds of forward(ids (B, T)) on the target's device and threads, after two that warm up, of nine as in the
    released code; the fastest and the slowest quarter are left out. Raises Stop after SIGTERM."""
    device, threads = torch.device(cfg.latency_device), torch.get_num_threads()
    ids = torch.arange(cfg.latency_batch * cfg.latency_length, device=device).view(cfg.latency_batch, -1) % 64
    # a single CPU thread's own seconds: other processes do not lengthen them
    clock = time.process_time if (device.type, cfg.latency_threads) == ("cpu", 1) else time.perf_counter
    torch.set_num_threads(cfg.latency_threads)
    took = milliseconds(lambda: forward(ids), device, 9, 2, clock=clock)
    torch.set_num_threads(threads)
    if stop_requested():
        raise Stop
    return took


def read(cfg, folder, parse):
    """{architecture: [milliseconds]} of --init's run and of the run folder, in this order. parse(text): an
    architecture; UserError names a line that is no measurement."""
    found, wanted = {}, setting(cfg)
    for path in dict.fromkeys(Path(place) / "latency.jsonl" for place in (cfg.init, folder) if place):
        for number, line in enumerate(read_jsonl(path), 1):
            try:
                arch, took = parse(line["arch"]), float(line["milliseconds"])
                if not 0 < took < math.inf:
                    raise ValueError(f"{took} milliseconds")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{path}, line {number}: no measurement ({error}); delete the line") from None
            if all(line.get(key) == value for key, value in wanted.items()):
                found.setdefault(arch, []).append(took)
    return found


def measure(cfg, folder, found, rounds, time_model):
    """{architecture: the lowest of its milliseconds}, after each was measured as often as rounds, {architecture:
    times}, says, one round after the other. found: what read() gave; time_model(arch, cfg): milliseconds."""
    path, here = Path(folder) / "latency.jsonl", setting(cfg)
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomic(path, kept[:kept.rfind("\n") + 1])  # a last line that a crash tore off goes
    jobs = [arch for done in range(max(rounds.values())) for arch in rounds
            if len(found.get(arch, [])) <= done < rounds[arch]]
    for arch in tqdm(jobs, desc="latency", disable=None):
        found.setdefault(arch, []).append(time_model(arch, cfg))
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"arch": str(arch), "milliseconds": found[arch][-1], **here}) + "\n")
    # one order, so that what is learnt does not depend on the file's
    return {arch: min(found[arch]) for arch in sorted(rounds, key=str)}


def beside(reference, took, cfg):
    """What is said of a model: medians, and the range of its speed-up, over rounds in each of which the reference and
    it were measured one after the other. reference, took: [milliseconds of each round]."""
    ratios = sorted(theirs / mine for theirs, mine in zip(reference, took))
    return {"milliseconds": statistics.median(took), "speedup": statistics.median(ratios),
            "speedup_range": [ratios[0], ratios[-1]], "rounds": len(ratios), **setting(cfg)}
