"""A training step on tensors without content: what will fit and how long it will take, before a card is rented.

build(cfg) returns (optimizer, step, look): step(rows, shards) is the training loop's own update, look() the largest
evaluation. What a kernel takes while it runs is not seen, nor what the allocator loses: cards hold 5 to 7% more than
their name says, which is left to both.
"""
import contextlib
import dataclasses
import math
import os
import weakref
from collections import Counter
from unittest import mock

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

CARDS = {  # GB; dense matrix products a second in bfloat16, and in float32 without TF32 (data sheets)
    "RTX A4000": (16, 76.7e12, 19.2e12), "RTX 4090": (24, 165.2e12, 82.6e12), "A100": (40, 312e12, 19.5e12),
    "H100": (80, 989e12, 67e12)}
SHARES = (0.2, 0.35, 0.5)  # of a card's peak: a small model or short rows, a usual run, a large model well fed
KINDS = ("weights", "gradients", "optimizer", "activations")
FLOAT32 = ("layer_norm", "softmax", "normalize", "mse_loss")  # what CUDA's autocast runs in it, of what is used here


def ids(*shape):
    """Token ids that say nothing."""
    return torch.zeros(shape, dtype=torch.long)


class Ledger(TorchDispatchMode):
    """Follows every storage from the operation that makes it to its end, and counts FLOPs as torch's FlopCounterMode
    does (which itself keeps what --recompute lets go, until Python looks for cycles)."""

    def __init__(self):
        super().__init__()
        self.clock = self.held = self.peak = self.when = self.flops = 0
        self.open, self.lines = {}, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result, self.clock = func(*args, **kwargs), self.clock + 1
        if func._overloadpacket in flop_registry:
            self.flops += flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)
        for storage in [part.untyped_storage() for part in tree_leaves(result) if isinstance(part, torch.Tensor)]:
            if storage._cdata not in self.open:
                line = self.open[storage._cdata] = [self.clock, math.inf, storage.nbytes(), "activations"]
                self.held, _ = self.held + line[2], self.lines.append(line)
                weakref.finalize(storage, self.close, storage._cdata)
        if self.held > self.peak:
            self.peak, self.when = self.held, self.clock
        return result

    def close(self, key):
        line = self.open.pop(key)
        line[1], self.held = self.clock, self.held - line[2]

    def mark(self, kind, tensor):
        self.open[tensor.untyped_storage()._cdata][3] = kind

    def watch(self, function, *args):
        """({kind: bytes at the peak}, bytes of the largest activation, FLOPs) of function(*args)."""
        self.lines, self.peak, self.flops, kinds = list(self.open.values()), 0, 0, Counter()
        function(*args)
        for born, died, size, kind in self.lines:
            kinds[kind] += size if born <= self.when <= died else 0
        largest = max((size for *_, size, kind in self.lines if kind == "activations"), default=0)
        return {kind: kinds[kind] for kind in KINDS}, largest, self.flops


@contextlib.contextmanager
def on_card():
    """CUDA's ways where they keep other bytes than the CPU's: dropout keeps one a number, attention not its matrix, and
    autocast runs FLOAT32 in float32."""
    def dropout(x, p=0.5, training=True, inplace=False):
        return torch.native_dropout(x, p, True)[0] if training and p else x

    others = {name: in_float32(getattr(F, name)) for name in FLOAT32}
    with (mock.patch.multiple(F, dropout=dropout, scaled_dot_product_attention=attention, **others),
          mock.patch.object(torch.Tensor, "softmax", in_float32(torch.Tensor.softmax))):
        yield


def in_float32(function):
    """The function as CUDA's autocast calls it."""
    def called(*args, **kwargs):
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        args = [value.float() if torch.is_tensor(value) and value.is_floating_point() else value for value in args]
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)
    return called


def attention(query, key, value, bias=None, p=0.0, is_causal=False, scale=None):
    """By the kernel that takes a bias; the others keep no more."""
    lower = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    query, key, value = (x.to(lower) for x in (query, key, value))
    if bias is not None:
        bias = torch.zeros_like(bias, dtype=lower) if bias.dtype == torch.bool else bias.to(lower)
        bias = bias.expand(*query.shape[:3], key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, p, is_causal,
                                                                  scale=scale)[0]


def rehearse(cfg, build, *sizes, card=True):
    """For each (rows, shards): bytes by kind at the peak of an update, with the optimizer's state; the peaks of the
    update and of the evaluation; the largest activation and FLOPs of both. card=False: on a CPU."""
    found = []
    with FakeTensorMode(), on_card() if card else contextlib.nullcontext(), Ledger() as ledger:
        with mock.patch("torch.nn.init.trunc_normal_", lambda tensor, **others: tensor):  # it reads what it has drawn
            optimizer, step, look = build(cfg)
        for line in ledger.open.values():
            line[3] = "weights"
        for value in [value for group in optimizer.param_groups for value in group["params"]]:
            value.register_post_accumulate_grad_hook(lambda value: ledger.mark("gradients", value.grad))
            if value.grad is not None:
                ledger.mark("gradients", value.grad)
        step(*sizes[-1])
        for state in optimizer.state.values():
            for part in state.values():
                ledger.mark("optimizer", part)
        for size in sizes:
            kinds, largest, flops = ledger.watch(step, *size)
            with torch.no_grad():
                seen, most, seen_flops = ledger.watch(look)
            found.append({**kinds, "update": sum(kinds.values()), "largest": largest, "flops": flops,
                          "evaluation": sum(seen.values()), "evaluation_largest": most, "evaluation_flops": seen_flops})
    return found


def forecast(cfg, build, updates, least=1):
    """What --describe says of so many updates of --batch, `least` rows in the smallest shard, on $WORLD_SIZE processes
    of a card each. For other --accumulate the peak is read off a line from the smallest shard to the largest: it is the
    larger of sums that grow with the rows, so never above the line. Where a run counts in passes over a corpus, updates
    is 0, and the days are those of 1,000."""
    updates = updates or 1000
    processes = int(os.environ.get("WORLD_SIZE", 1))
    given, dtype = math.lcm(cfg.accumulate, processes), "bfloat16" if cfg.dtype == "auto" else cfg.dtype
    choices = [number for number in range(processes, max(given, cfg.batch // least) + 1, processes)
               if cfg.batch % number == 0]
    rows = [max(1, cfg.batch // number) for number in (given, choices[0], choices[-1])]
    shards = [min(2, given // processes), 2, 2]  # the second meets the gradients of the first
    memory, large, small = rehearse(dataclasses.replace(cfg, dtype=dtype), build, *zip(rows, shards))
    peak, most, smallest = (max(each["update"], each["evaluation"]) for each in (memory, large, small))
    buckets = (processes > 1) * small["weights"]  # in which gradients travel
    slope, fits, days = (most - smallest) / max(1, rows[1] - rows[2]), {}, {}
    for name, (size, *peaks) in CARDS.items():
        enough = [number for number in choices
                  if smallest + slope * (cfg.batch // number - rows[2]) + buckets <= size * 1e9]
        fits[f"{size} GB"] = {"fits": peak + buckets <= size * 1e9, "accumulate": min(enough, default=None)}
        seconds = memory["flops"] / shards[0] * given * updates / processes / peaks[dtype == "float32"]
        days[name] = {f"{share:.0%}": float(f"{seconds / share / 86400:.3g}") for share in SHARES}
    return {"memory": {**memory, "buckets": buckets, "rows": rows[0], "dtype": dtype, "processes": processes},
            "fits": fits, "days": {"updates": updates, **days}}
