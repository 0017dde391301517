"""What autotinybert.py refuses before it allocates: sizes that this machine cannot hold."""
import dataclasses
import math
import re

from common import cli
from common.cli import UserError


def check_memory(shape, vocab, place, tokens=0):
    """UserError, which names the place, where weights and a pass of so many tokens need more memory than there is.
    shape: (layers, hidden, ffn, heads, qkv)."""
    layers, hidden, ffn, _, qkv = shape
    numbers = layers * hidden * (4 * qkv + 2 * ffn) + (vocab + hidden) * hidden + tokens * (hidden + ffn + 3 * qkv)
    cli.check_memory(place, layers, numbers)


def check(cfg, read_arch):
    """Read the flags that are architectures, by read_arch(text, place); UserError for what this machine cannot hold."""
    number = re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e\d+)?|nan|inf", cfg.speedup)
    if number and not 0 < float(cfg.speedup) < math.inf:
        raise UserError(f"--speedup {cfg.speedup}: choose a number > 0, or an architecture")
    for name in ("arch", "largest", "smallest", "reference", *([] if number else ["speedup"])):
        text = getattr(cfg, name)
        if text:
            arch = read_arch(text, f"--{name} {text}")
            check_memory(dataclasses.astuple(arch), 0, f"--{name} {text}")
            setattr(cfg, name, str(arch))
    largest = dataclasses.astuple(read_arch(cfg.largest, "--largest"))
    tokens = {"vocab_size": 0, "batch": cfg.batch * cfg.length / cfg.accumulate,
              "latency_length": cfg.latency_length * cfg.latency_batch,
              **{name: getattr(cfg, name) for name in ("accumulate", "samples", "population", "latency_archs",
                                                       "latency_rounds", "runs")}}
    for name, count in tokens.items():
        check_memory(largest, cfg.vocab_size, f"--{name} {getattr(cfg, name)}", count)
