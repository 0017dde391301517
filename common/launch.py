"""Processes, devices, gradients over processes, batches on a device, random numbers, and estimates
of cost: what a training needs and no paper describes.

    with launch(cfg.device, cfg.dtype) as ranks:     # torchrun or plain python, CPU or CUDA
        ...

Random numbers depend only on (seed, phase, step, micro-batch), not on earlier draws. So a
checkpoint needs no generator state, a resumed run repeats an uninterrupted one, and the number of
processes does not matter.
"""
import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import gc
import hashlib
import math
import os
import random
import signal
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from tqdm import tqdm

from common.cli import Stop, UserError


NOTICE = 30  # seconds before a process reports that it waits for others
SIGTERM = threading.Event()  # set by the signal while a loop or a queue of jobs runs
UNSET = "start all processes with torchrun, or unset RANK and WORLD_SIZE to run one"


# Processes


@dataclasses.dataclass
class Ranks:
    """The identity of this process. Rank 0 writes files and prints."""
    rank: int
    size: int
    device: torch.device
    store: object = None  # a dist.Store that the processes share
    stop: threading.Event = SIGTERM

    @property
    def main(self):
        return self.rank == 0

    def alone(self):
        """This process by itself, for a job."""
        return dataclasses.replace(self, rank=0, size=1, store=None)


@contextlib.contextmanager
def launch(device, dtype="auto"):
    """Join the process group of torchrun, if any, and yield Ranks.

    With --dtype float32 CUDA multiplies matrices in TF32, with a mantissa of 10 bits, unless
    torch.set_float32_matmul_precision was called before. NVIDIA_TF32_OVERRIDE=0 keeps all bits."""
    rank, size, local_rank = read_launch()
    ranks = Ranks(rank, size, pick_device(device, local_rank))
    cuda = ranks.device.type == "cuda"
    if cuda and dtype == "float32" and torch.get_float32_matmul_precision() == "highest":
        torch.set_float32_matmul_precision("high")
    if size > 1:
        ranks.store = join_group(backend_of(ranks.device), rank, size)
    try:
        yield ranks
    except RuntimeError:
        if size > 1 and ranks.stop.is_set():  # another rank, which this one waited for, has stopped
            raise Stop from None
        raise
    finally:
        if size > 1:
            gc.collect()  # else gloo threads of a DDP module in a cycle may abort the run
            dist.destroy_process_group()


@contextlib.contextmanager
def noting_sigterm():
    """A context in which SIGTERM sets ranks.stop. Loops and queues of jobs look at it, save and
    stop. Elsewhere SIGTERM ends the process at once."""
    before = signal.signal(signal.SIGTERM, lambda *_: SIGTERM.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def agree(ranks, *flags):
    """[whether SIGTERM has reached any rank, whether each flag is True on any rank], equal on every
    rank. All ranks must call it at the same points."""
    flags = torch.tensor([ranks.stop.is_set(), *flags], dtype=torch.uint8)
    if ranks.size > 1:
        dist.all_reduce(flags, dist.ReduceOp.MAX)
    return flags.bool().tolist()


def read_launch():
    """(rank, number of processes, local rank) from torchrun's environment variables. Raises
    UserError if they are inconsistent."""
    rank = int(os.environ.get("RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))
    if rank >= size:
        raise UserError(f"RANK={rank} in WORLD_SIZE={size}: the rank must be smaller; {UNSET}")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if size > 1 and missing:
        raise UserError(f"WORLD_SIZE={size} without {' and '.join(missing)}; {UNSET}")
    return rank, size, int(os.environ.get("LOCAL_RANK", 0))


def backend_of(device):
    """The backend of a process group: gloo for tensors on the CPU and Python objects and, with a
    GPU, also torch's default for its kind, such as NCCL for CUDA."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.Backend.default_device_backend_map[device.type]}"


def join_group(backend, rank, size, timeout=datetime.timedelta(days=2)):
    """Call init_process_group and return its store.

    torch 2.13 keeps one store when torchrun restarts the processes, so a new process could wait for
    a dead one. So each start uses its own names. Only the processes of one machine know the number
    of restarts."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    note = f"process {rank} waits at {address} for the others of WORLD_SIZE={size}; {UNSET}"
    notice = threading.Timer(NOTICE, print, [note], {"file": sys.stderr, "flush": True})
    notice.daemon = True
    notice.start()
    store = next(dist.rendezvous("env://", rank, size, timeout=timeout))[0]
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        store = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    notice.cancel()
    return store


# Devices


def pick_device(name, local_rank=0):
    """The torch.device of a name: "auto" (CUDA, else the CPU), "cpu", "cuda" or another kind of
    accelerator (the device of this process), "cuda:1"."""
    kind = accelerator()
    if name == "auto":
        name = kind if kind == "cuda" else "cpu"  # other kinds were not tested
    if name == kind != "cpu":
        name = f"{kind}:{local_rank}"
    choices = ["cpu", *(f"{kind}:{i}" for i in range(torch.accelerator.device_count()))]
    if name not in choices:
        raise UserError(f"device {name}: this machine has {', '.join(choices)}; start no more "
                        "processes than devices")
    device = torch.device(name)
    if device.type not in ("cpu", "mps"):  # there is one mps
        torch.get_device_module(device).set_device(device)
    return device


@functools.cache
def accelerator():
    """The kind of GPU that torch reports, such as "cuda", "mps" or "xpu", or "cpu" without one."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return device.type if device else "cpu"


def autocast(dtype, device):
    """The autocast context of --dtype. "auto" is bfloat16 on GPUs that support it, else float32,
    since CPUs can be 100 times slower in bfloat16."""
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    enabled = dtype == "bfloat16" or dtype == "auto" and has_it
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


# Python objects between processes


def on_main(ranks, function, *args, **kwargs):
    """Call function(*args) on rank 0 only. Every rank returns its (pickled) result, or raises its
    UserError, Stop or OSError, so that no rank waits for a dead one."""
    result = error = None
    if ranks.main:
        try:
            result = function(*args, **kwargs)
        except (UserError, Stop, OSError) as mistake:
            error = mistake
    result, error = broadcast(ranks, (result, error))
    if error:
        raise error
    return result


def broadcast(ranks, value):
    """rank 0's Python object, on every rank."""
    box = [value]
    if ranks.size > 1:  # gathering would allocate a large object per rank
        dist.broadcast_object_list(box)
    return box[0]


def gather(ranks, value):
    """[rank 0's value, rank 1's value, ...] of small Python objects, on every rank."""
    box = [value] * ranks.size
    if ranks.size > 1:
        dist.all_gather_object(box, value)
    return box


def reduce_mean(ranks, *values):
    """The mean over the ranks of each number, as floats."""
    columns = zip(*gather(ranks, [float(value) for value in values]))
    return [sum(column) / ranks.size for column in columns]


# Micro-batches and gradients


def micro_batch_numbers(ranks, accumulate):
    """The numbers of this process's micro-batches: every n-th of `accumulate`, so that all n
    processes have similar lengths."""
    return range(ranks.rank, accumulate, ranks.size)


def fit_accumulate(cfg, command, ranks):
    """--accumulate, raised to a multiple of the number of processes unless given. It is a setting
    of the run, since masks and dropout depend on it. UserError if it does not fit the processes or
    the batch."""
    accumulate = cfg.accumulate
    if "accumulate" not in command.given:
        accumulate = math.lcm(accumulate, ranks.size)
    if accumulate % ranks.size:
        raise UserError(f"--accumulate {accumulate}: must be a multiple of the {ranks.size} "
                        "processes")
    if cfg.batch % accumulate:
        raise UserError(f"--batch {cfg.batch}: must be a multiple of --accumulate {accumulate}")
    return accumulate


def total_over(ranks, values):
    """The sum over the processes of a tensor on their devices."""
    if ranks.size > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values


def average_gradients(parameters, ranks):
    """Average the gradients over the processes, in place, with one flat all_reduce.

    For training loops of super-nets, where each step trains another part of the model. A parameter
    must have a gradient in all processes or in none. Other loops use prepare_model.
    """
    if ranks.size == 1:
        return
    gradients = [value.grad for value in parameters if value.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= ranks.size
    for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients])):
        gradient.copy_(mean.view_as(gradient))


def prepare_model(model, ranks, compile=False):
    """The model for a training loop: compiled if `compile`, and with several processes wrapped in
    DistributedDataParallel, which averages the gradients."""
    if compile:
        torch.compiler.reset()  # after eight networks, as in a search, torch gives up
        model = torch.compile(model)
    return model if ranks.size == 1 else nn.parallel.DistributedDataParallel(model)


def no_sync_until(network, ranks, last):
    """A context where a DistributedDataParallel network exchanges gradients only for the last
    micro-batch of a step."""
    synced = isinstance(network, nn.parallel.DistributedDataParallel)
    return network.no_sync() if synced and not last else contextlib.nullcontext()


# Batches and models on a device


def prefetch(items, device):
    """Yield the items of an iterator. A thread makes the next item while the caller uses this one.

    Errors are raised at their item. A caller that leaves early waits for the thread. The iterator
    must not draw from the generators of seed_everything(), since the caller draws from them at the
    same time. device: of the model. Only CUDA uses a thread: on a CPU it costs more time than it
    saves."""
    if device.type != "cuda":
        yield from items
        return
    items = iter(items)
    end = object()
    # a new thread would use device 0. -1 changes nothing
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else -1
    pool = concurrent.futures.ThreadPoolExecutor
    with pool(1, "prefetch", torch.cuda.set_device, (current,)) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item


def send(batch, device):
    """A tensor, or a dictionary of tensors, on the device. For CUDA it is pinned, so that the host
    does not wait for the device."""
    if isinstance(batch, dict):
        return {name: send(value, device) for name, value in batch.items()}
    cuda = device.type == "cuda"
    pinned = batch.pin_memory() if cuda and batch.is_cpu else batch
    return pinned.to(device, non_blocking=cuda)


def move(model, device):
    """Move a model to the device as send() does. Call it before making an optimizer, since it
    replaces the parameters."""
    model.load_state_dict(send(model.state_dict(), device), assign=True)
    return model


def to_host(tensors):
    """Copies of {name: tensor} on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


# Random numbers


def seed_of(*key):
    """A 63-bit seed that depends on all parts of the key (numbers and strings)."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_of(*key):
    """A CPU generator with the seed of a key."""
    return torch.Generator().manual_seed(seed_of(*key))


def seed_everything(*key):
    """Seed torch (CPU and GPU) and random. Called before each micro-batch, so that dropout is a
    function of the step. torch.manual_seed is slow, since it records the stack for each missing
    kind of device."""
    seed = seed_of(*key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    elif accelerator() not in ("cpu", "cuda"):
        torch.get_device_module(accelerator()).manual_seed(seed)
    torch.default_generator.manual_seed(seed)
    random.seed(seed)


# Estimates and measurements of cost

CARDS = {"A100": 312e12, "H100": 989e12}  # FLOP/s of dense bfloat16 products, from the data sheets
UTILIZATION = 0.35  # fraction of a card's peak in a usual training run


def layer_activations(tokens, hidden, ffn):
    """Bytes that a Transformer layer keeps for the backward pass of one example, in bfloat16:
    Korthikanti et al. 2022, Sec. 4.1, without the tokens x tokens term, since fused attention keeps
    no scores."""
    return tokens * (18 * hidden + 4 * ffn)


def training_cost(cfg, parameters, flops, activations, logits, steps, examples):
    """The estimates of --describe for a training run on one GPU: {"memory_gb": {...}, "days":
    {...}}. --dry_run on a GPU measures two steps.

    parameters: of the model. flops: of the forward pass of one example. activations: bytes that
    each layer keeps of one example, in bfloat16. logits: numbers in the output of one example.
    examples: in one step.

    Memory has three parts. Parameters take 16 bytes each: float32 weights, gradients and two
    moments of the optimizer. Activations are of one micro-batch, with --recompute of its largest
    layer. Logits, their log-softmax and its gradient are float32. Days: a step costs 3 forward
    passes, with --recompute 4, at UTILIZATION of the peak."""
    recompute = getattr(cfg, "recompute", False)
    kept = max(activations) if recompute else sum(activations)
    if cfg.dtype == "float32":
        kept *= 2
    micro_batch = math.ceil(examples / cfg.accumulate)
    memory = {
        "parameters_and_optimizer": 16 * parameters,
        "activations": micro_batch * kept,
        "logits": micro_batch * 12 * logits,
    }
    memory["total"] = sum(memory.values())
    seconds = (3 + recompute) * flops * examples * steps / UTILIZATION
    return {
        "memory_gb": {name: float(f"{value / 1e9:.3g}") for name, value in memory.items()},
        "days": {card: float(f"{seconds / peak / 86400:.3g}") for card, peak in CARDS.items()},
    }


def print_device_use(ranks, speed, flops):
    """Print the measurements of --dry_run on a GPU: tokens (or images) per second, peak memory, and
    the fraction of the card's bfloat16 peak. speed: of this run, or None. flops: of the forward
    pass of one token (or image)."""
    if ranks.device.type != "cuda" or speed is None:
        return
    name = torch.cuda.get_device_name(ranks.device)
    used = 3 * flops * speed / ranks.size
    fractions = [f", {used / peak:.1%} of its peak" for card, peak in CARDS.items() if card in name]
    memory = peak_memory(ranks.device) / 1e3
    print0(ranks, f"{name}: {speed:,} per second, peak memory {memory:.3g} GB", *fractions)


def peak_memory(device):
    """Peak memory of this process in MB: allocated memory on a GPU, or the resident set size on a
    CPU or mps, which share memory."""
    if device.type not in ("cpu", "mps"):
        return torch.get_device_module(device).max_memory_allocated(device) / 1e6
    try:
        import resource
    except ImportError:  # Windows has none
        return 0.0
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


# What is printed


def print0(ranks, *words):
    """Print on rank 0, above any progress bar."""
    if ranks.main:
        tqdm.write(" ".join(str(word) for word in words), file=sys.stdout)
        sys.stdout.flush()
