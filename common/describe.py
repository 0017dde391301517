"""--describe runs a training step on tensors without content: it says what will fit on a card and how long a run will
take, before the card is rented.

build(cfg) returns (optimizer, step, look): step(rows, shards) is the training loop's own update, and look() is the
largest evaluation. What a kernel allocates while it runs is not seen, nor what the allocator loses; the 5 to 7% that
cards hold beyond their nominal size are left for these two.
"""
import contextlib
import dataclasses
import math
import weakref
from collections import Counter
from unittest import mock

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from common.distributed import from_environment

CARDS = {  # GB; FLOP/s of dense matrix products in bfloat16, and in float32 without TF32, from the data sheets
    "RTX A4000": (16, 76.7e12, 19.2e12), "RTX 4090": (24, 165.2e12, 82.6e12), "A100": (40, 312e12, 19.5e12),
    "H100": (80, 989e12, 67e12)}
SHARES = (0.2, 0.35, 0.5)  # of a card's peak, which a small model, a usual run and a large model reach
KINDS = ("weights", "gradients", "optimizer", "activations")
FLOAT32 = ("layer_norm", "softmax", "normalize", "mse_loss")  # CUDA's autocast runs these in float32


def ids(*shape):
    """Token ids without a meaning: zeros."""
    return torch.zeros(shape, dtype=torch.long)


class Ledger(TorchDispatchMode):
    """Follows every storage from the operation that makes it to its end, and counts FLOPs as torch's FlopCounterMode
    does. That mode itself is not used because it keeps what --recompute frees until Python collects cycles."""

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
        """Call function(*args); returns ({kind: bytes at the peak}, bytes of the largest activation, FLOPs)."""
        self.lines, self.peak, self.flops, kinds = list(self.open.values()), 0, 0, Counter()
        function(*args)
        for born, died, size, kind in self.lines:
            kinds[kind] += size if born <= self.when <= died else 0
        largest = max((size for *_, size, kind in self.lines if kind == "activations"), default=0)
        return {kind: kinds[kind] for kind in KINDS}, largest, self.flops


@contextlib.contextmanager
def on_card():
    """A context in which the CPU keeps for the backward pass what CUDA keeps: dropout a byte a number, attention no
    matrix of scores, and autocast runs what FLOAT32 names in float32."""
    def dropout(x, p=0.5, training=True, inplace=False):
        return torch.native_dropout(x, p, True)[0] if training and p else x

    others = {name: in_float32(getattr(F, name)) for name in FLOAT32}
    with (mock.patch.multiple(F, dropout=dropout, scaled_dot_product_attention=attention, **others),
          mock.patch.object(torch.Tensor, "softmax", in_float32(torch.Tensor.softmax))):
        yield


def in_float32(function):
    """The function as CUDA's autocast calls it: in float32 where autocast is on."""
    def called(*args, **kwargs):
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        args = [value.float() if torch.is_tensor(value) and value.is_floating_point() else value for value in args]
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)
    return called


def attention(query, key, value, bias=None, p=0.0, is_causal=False, scale=None):
    """Attention by CUDA's kernel that takes a bias; its other kernels keep no more than this one."""
    lower = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    query, key, value = (x.to(lower) for x in (query, key, value))
    if bias is not None:
        bias = torch.zeros_like(bias, dtype=lower) if bias.dtype == torch.bool else bias.to(lower)
        bias = bias.expand(*query.shape[:3], key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, p, is_causal,
                                                                  scale=scale)[0]


def rehearse(cfg, build, *sizes, card=True):
    """A dictionary for each of sizes, (rows, shards): the bytes by kind at the peak of an update, with the optimizer's
    state; the peaks of the update and of the evaluation; the largest activation and the FLOPs of both. card=False
    leaves out what on_card changes."""
    found = []
    with FakeTensorMode(), on_card() if card else contextlib.nullcontext(), Ledger() as ledger:
        # trunc_normal_ reads what it has drawn, which has no content here
        with mock.patch("torch.nn.init.trunc_normal_", lambda tensor, **others: tensor):
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
    """What --describe says of so many updates of --batch on $WORLD_SIZE processes with a card each.

    Memory is measured at the --accumulate that is given. For the others the peak is read off a straight line between
    the largest shard and the smallest one, which has `least` rows: the peak is the larger of two sums that grow with
    the rows, so it is never above that line. Where a run counts in passes over a corpus, updates is 0 and the days are
    those of 1,000 updates.
    """
    updates = updates or 1000
    processes = from_environment("WORLD_SIZE", 1)
    given, dtype = math.lcm(cfg.accumulate, processes), "bfloat16" if cfg.dtype == "auto" else cfg.dtype
    choices = [number for number in range(processes, max(given, cfg.batch // least) + 1, processes)
               if cfg.batch % number == 0]
    rows = [max(1, cfg.batch // number) for number in (given, choices[0], choices[-1])]
    shards = [min(2, given // processes), 2, 2]  # in a second shard the gradients of the first are there too
    memory, large, small = rehearse(dataclasses.replace(cfg, dtype=dtype), build, *zip(rows, shards))
    peak, most, smallest = (max(each["update"], each["evaluation"]) for each in (memory, large, small))
    buckets = (processes > 1) * small["weights"]  # DistributedDataParallel's copy of the gradients
    slope, fits, days = (most - smallest) / max(1, rows[1] - rows[2]), {}, {}
    for name, (size, *peaks) in CARDS.items():
        enough = [number for number in choices
                  if smallest + slope * (cfg.batch // number - rows[2]) + buckets <= size * 1e9]
        fits[f"{size} GB"] = {"fits": peak + buckets <= size * 1e9, "accumulate": min(enough, default=None)}
        seconds = memory["flops"] / shards[0] * given * updates / processes / peaks[dtype == "float32"]
        days[name] = {f"{share:.0%}": float(f"{seconds / share / 86400:.3g}") for share in SHARES}
    return {"memory": {**memory, "buckets": buckets, "rows": rows[0], "dtype": dtype, "processes": processes},
            "fits": fits, "days": {"updates": updates, **days}}
