"""Processes, run folders and checkpoints: what a training loop needs around it, so that the loop itself stays plain.

    with distributed.launch(cfg.device) as ranks:             # torchrun or plain python, CPU or CUDA
        run = RunFolder(cfg.out, vars(cfg), "pretrain", ranks, cfg.restart)
        checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, model=model, optimizer=optimizer)
        start = checkpoint.restore().get("step", 0)
        for step in range(start, cfg.steps):
            seed_everything(cfg.seed, "pretrain", step)         # stateless: no generator has to be saved
            ...
            if stopping(ranks): checkpoint.save(step=step + 1); raise Stop

Randomness is a function of (seed, phase, step, shard), never of what was drawn before: that is why a checkpoint holds
no generator state, why a resumed run repeats an uninterrupted one, and why the number of processes does not matter.
"""
import contextlib
import dataclasses
import datetime
import gc
import hashlib
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from common.cli import UserError

NOT_COMPARED = {"out", "restart", "device", "dry_run", "compile", "recompute",  # in which a resumed run may differ
                "latency_archs", "latency_rounds"}  # measurements are added to


# --- processes -----------------------------------------------------------------------------------

@dataclasses.dataclass
class Ranks:
    """Who this process is. rank 0 writes files and talks."""
    rank: int
    size: int
    device: torch.device

    @property
    def main(self):
        return self.rank == 0


@contextlib.contextmanager
def launch(device="auto"):
    """Join the process group that torchrun describes (none: a single process) and yield Ranks; SIGTERM is turned into a
    request to stop."""
    rank, size, local = (int(os.environ.get(key, default))
                         for key, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    ranks = Ranks(rank, size, pick_device(device, local))
    signal.signal(signal.SIGTERM, _note_sigterm)
    if size > 1:  # gloo carries Python objects; the time-out is long because ranks evaluate candidates of unequal cost
        backend = "cpu:gloo,cuda:nccl" if ranks.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=datetime.timedelta(days=2))
    try:
        yield ranks
    finally:
        if size > 1:
            gc.collect()  # a DDP left in a cycle keeps gloo's threads running: some runs aborted when they had finished
            dist.destroy_process_group()


def pick_device(name, local_rank=0):
    """torch.device of "auto" (CUDA where there is one), "cpu", "cuda" (this process's own) or "cuda:1"; UserError where
    it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name}: torch knows no such device; use auto, cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"--device {name}: this machine has no CUDA device; use --device cpu")
        if device.index is None:
            device = torch.device("cuda", local_rank)
        if device.index >= torch.cuda.device_count():
            raise UserError(f"--device {device}: there are {torch.cuda.device_count()} CUDA devices; "
                            "start fewer processes")
        torch.cuda.set_device(device)
    return device


def pick_dtype(name, device):
    """torch.dtype of --dtype: "auto" is bfloat16 on GPUs that have it and float32 elsewhere (CPUs can be 100 times
    slower in bfloat16)."""
    if name not in ("auto", "float32", "bfloat16"):
        raise UserError(f"--dtype {name}: choose auto, float32 or bfloat16")
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return getattr(torch, name)


def autocast(dtype, device):
    """The autocast context of --dtype."""
    return torch.autocast(device.type, torch.bfloat16, enabled=pick_dtype(dtype, device) == torch.bfloat16)


def on_main(ranks, function, *args, **kwargs):
    """function(*args) on rank 0 alone; every rank gets its (small) result, or raises its UserError or Stop, so that no
    rank waits for a dead one."""
    outcome = None
    if ranks.main:
        try:
            outcome = (function(*args, **kwargs), None)
        except (UserError, OSError, Stop) as error:
            outcome = (None, error if isinstance(error, (UserError, Stop))
                       else UserError(f"{error.filename or 'disk'}: {error.strerror}"))
    result, error = broadcast(ranks, outcome)
    if error:
        raise error
    return result


def broadcast(ranks, value):
    """rank 0's value of a small Python object, on every rank."""
    if ranks.size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather(ranks, value):
    """[rank 0's value, rank 1's value, ...] of small Python objects, on every rank."""
    if ranks.size == 1:
        return [value]
    box = [None] * ranks.size
    dist.all_gather_object(box, value)
    return box


def barrier(ranks):
    if ranks.size > 1:
        dist.barrier()


def reduce_mean(ranks, *values):
    """Mean over the ranks of each number, as floats."""
    rows = gather(ranks, [float(value) for value in values])
    return [sum(column) / len(column) for column in zip(*rows)]


def shard_range(ranks, shards):
    """The logical shards of this rank: a contiguous block of range(shards), so that sums in the order of the shards can
    be built in parts."""
    if shards % ranks.size:
        raise UserError(f"{shards} shards cannot be shared out evenly to {ranks.size} processes; "
                        "make one a multiple of the other (--accumulate)")
    share = shards // ranks.size
    return range(ranks.rank * share, (ranks.rank + 1) * share)


class ShardSum:
    """Sum of the shards' tensors in one fixed order, bit for bit the same on 1, 2, 4, ... processes.

    The order is a binary tree over the shards: ((s0 + s1) + (s2 + s3)) + .... A rank adds its block of the tree with
    add() (at most log2(block) buffers are alive), total() joins the blocks across ranks, each pair of partners
    exchanging its partial sums. Blocks that are no power of two are added in rank order instead.
    """

    def __init__(self, ranks):
        self.ranks, self.stack = ranks, []  # [(number of shards in it, flat tensor)], sizes falling

    def add(self, tensors):
        """Put one shard's tensors (None counts as zeros are not allowed: give zeros) on the tree."""
        size, flat = 1, torch.cat([tensor.reshape(-1) for tensor in tensors])
        while self.stack and self.stack[-1][0] == size:
            other_size, other = self.stack.pop()
            size, flat = size + other_size, other.add_(flat)
        self.stack.append((size, flat))

    def total(self):
        """The flat sum over all shards of all ranks; empties the tree."""
        flat = self.stack.pop()[1]
        while self.stack:
            flat = self.stack.pop()[1].add_(flat)
        if self.ranks.size & (self.ranks.size - 1):
            parts = [torch.empty_like(flat) for _ in range(self.ranks.size)]
            dist.all_gather(parts, flat)
            for part in parts[1:]:
                parts[0].add_(part)
            return parts[0]
        distance, other = 1, torch.empty_like(flat)
        while distance < self.ranks.size:
            partner = self.ranks.rank ^ distance
            requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, flat, partner),
                                               dist.P2POp(dist.irecv, other, partner)])
            for request in requests:
                request.wait()
            flat = flat + other  # a + b == b + a: both partners get the same bits
            distance *= 2
        return flat


# --- randomness and hardware ---------------------------------------------------------------------

def seed_of(*key):
    """A 63-bit seed that depends on every part of key (numbers and strings)."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1


def seed_everything(*key):
    """Seed torch (all devices) and random from key; one call before each micro-batch makes dropout a function of the
    step."""
    seed = seed_of(*key)
    torch.manual_seed(seed)
    random.seed(seed)


def peak_flops(device, dtype="auto", seconds=0.5):
    """Matrix-product FLOP/s that this device reaches (best of several): the measured roof against which runs are
    judged."""
    size = 8192 if device.type == "cuda" else 1024
    left = torch.randn(size, size, device=device, dtype=pick_dtype(dtype, device))
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        (left @ left).flatten()[0].item()
        best = min(best, time.perf_counter() - start)
    return 2 * size ** 3 / best


def peak_memory(device):
    """Peak memory of this process in MB: the device's where it counts, else the resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def processor_name():
    """The CPU's model name where Linux tells it, else what the platform module knows."""
    try:
        return re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1].strip()
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


def environment(device):
    """What config.json keeps about the machine and the code."""
    source = Path(__file__).resolve().parent.parent
    git = (subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True)
           if shutil.which("git") else None)
    commit = git.stdout.strip() if git and git.returncode == 0 else None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return {"python": platform.python_version(), "torch": torch.__version__, "commit": commit, "device": str(device),
            "hardware": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(),
            "platform": platform.platform()}


# --- run folder ----------------------------------------------------------------------------------

class Stop(Exception):
    """Raised by a loop that has saved its state because SIGTERM asked it to stop."""


_stop_requested = False


def _note_sigterm(signum, frame):
    global _stop_requested
    _stop_requested = True


def write_atomic(path, text):
    """Write a small text file so that a reader or a crash sees the old one or the new one, never half of it."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_jsonl(path):
    """The objects of a .jsonl file; a last line that a crash tore off is left out. UserError names a line that is none.
    """
    lines, records = Path(path).read_text(encoding="utf-8").split("\n") if Path(path).exists() else [""], []
    for number, line in enumerate(lines[:-1], 1):
        try:
            records += [json.loads(line)] if line else []
        except ValueError:
            raise UserError(f"{path}, line {number}: no JSON; delete the line, or begin anew with --restart") from None
    return records


def read_json(path):
    """The object in a .json file; UserError where it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path}: damaged, no JSON; delete the folder or choose another --out") from None


class RunFolder:
    """The folder of one run: config.json, log.jsonl, done.json. Made by rank 0; a folder made with other settings is
    refused.

    settings: every knob; compared with the folder's, but for NOT_COMPARED. restart: begin anew, everything in the
    folder that a run writes goes.
    """

    def __init__(self, out, settings, action, ranks, restart=False, extra=None):
        self.folder, self.ranks, self.began = Path(out), ranks, time.time()
        on_main(ranks, self._open, dict(settings), action, restart, extra or {})

    def _open(self, settings, action, restart, extra):
        if restart:
            self._clear(action)
        self.folder.mkdir(parents=True, exist_ok=True)
        config, here = self.folder / "config.json", environment(self.ranks.device)
        settings = json.loads(json.dumps(settings))  # tuples become lists, as they come back from the file
        content = {path.name for path in self.folder.iterdir() if ".tmp" not in path.name}  # .tmp: of a killed write
        if content - {"config.json", "log.jsonl"} and not config.exists():
            raise UserError(f"{self.folder}: not empty and no run folder; choose another --out")
        if content - {"config.json", "log.jsonl"}:  # else a run that ended before it began, by a mistake in its flags
            self._compare(read_json(config), settings, action)
            self._write("log.jsonl", {"event": "resumed", "time": time.time(), **here, "processes": self.ranks.size})
        else:
            if config.exists():
                self._compare_action(read_json(config), action)
            record = {"action": action, "settings": settings, "argv": sys.argv, "environment": here,
                      "processes": self.ranks.size, **extra}
            write_atomic(config, json.dumps(record, indent=2))

    def _clear(self, action):
        """Begin anew: delete the folder if it is a run of this program's action, and nothing else."""
        try:
            old = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(old, dict) and "settings" in old and old.get("action") == action:
            program = Path(old.get("argv", sys.argv)[0]).name
            if program != Path(sys.argv[0]).name:
                raise UserError(f"{self.folder}: a run of {program}; choose another --out")
            shutil.rmtree(self.folder)

    def _compare_action(self, old, action):
        if not isinstance(old, dict) or "settings" not in old:
            raise UserError(f"{self.folder}: its config.json is none of a run; choose another --out")
        if old["action"] != action:
            raise UserError(f"{self.folder}: holds a run of --{old['action']}; choose another --out")

    def _compare(self, old, settings, action):
        self._compare_action(old, action)
        names = [f"{name} ({old['settings'].get(name)} there, {value} here)" for name, value in settings.items()
                 if name not in NOT_COMPARED and old["settings"].get(name) != value]
        if names:
            raise UserError(f"{self.folder}: made with other settings: {'; '.join(names)}; "
                            "choose another --out, or --restart to begin anew")

    def _write(self, name, record):
        with open(self.folder / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def log(self, **record):
        """One line of log.jsonl (rank 0)."""
        if self.ranks.main:
            self._write("log.jsonl", {**record, "elapsed": round(time.time() - self.began, 3)})

    @property
    def finished(self):
        """The result of finish(), or None while the run is not finished."""
        path = self.folder / "done.json"
        return on_main(self.ranks, lambda: read_json(path) if path.exists() else None)

    def finish(self, result):
        """Mark the run as finished with its (JSON) result."""
        if self.ranks.main:
            write_atomic(self.folder / "done.json", json.dumps(result, indent=2))


def stop_requested():
    """True once SIGTERM reached this process; no communication."""
    return _stop_requested


def stopping(ranks):
    """True on every rank once SIGTERM reached any rank; a collective call, so all ranks must ask at the same places."""
    return any(gather(ranks, _stop_requested))


def say(ranks, *words):
    """print on rank 0, above any progress bar."""
    if ranks.main:
        from tqdm import tqdm
        tqdm.write(" ".join(str(word) for word in words), file=sys.stdout)
        sys.stdout.flush()


def progress(ranks, total, label, start=0):
    """A tqdm bar on rank 0; where stderr is no terminal it prints a line now and then instead of flooding a log."""
    from tqdm import tqdm
    return tqdm(total=total, initial=start, desc=label, disable=not ranks.main, dynamic_ncols=True,
                mininterval=0.2 if sys.stderr.isatty() else 10)


# --- checkpoints ---------------------------------------------------------------------------------

def save_file(path, state):
    """torch.save to a temporary name, synced and renamed; the file that stood there before is kept as NAME.previous."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, path.with_name(path.name + ".previous"))
        os.replace(temporary, path)
    except RuntimeError as error:  # torch reports a full disk as a RuntimeError of its zip writer
        raise UserError(f"{path}: cannot be written ({str(error).splitlines()[0]}); "
                        "free disk space, the same command continues") from error
    finally:
        temporary.unlink(missing_ok=True)


def load_file(path, device="cpu"):
    """torch.load with weights_only=True: a checkpoint from a stranger cannot run code. UserError where it cannot be
    read."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # torch raises many kinds for a torn or foreign file
        raise UserError(f"{path}: no readable checkpoint ({type(error).__name__}: "
                        f"{(str(error).splitlines() or [''])[0][:100]})") from None


def load_newest(path):
    """load_file of a checkpoint, or of the one before it where the newest is missing or torn."""
    path = Path(path)
    previous = path.with_name(path.name + ".previous")
    try:
        return load_file(path)
    except UserError as error:
        if not previous.exists():
            raise
        print(f"warning: {error}; taking the checkpoint before it", file=sys.stderr)
        return load_file(previous)


class Checkpoint:
    """Saves and restores named objects that have state_dict / load_state_dict, plus small values.

    save(step=..., ...) on every rank (rank 0 writes); restore() returns the values of the last save, {} where there is
    none. A torn or missing newest file falls back to the one before it.
    """

    def __init__(self, path, ranks, **owned):
        self.path, self.ranks, self.owned = Path(path), ranks, owned

    def save(self, **values):
        def write():
            owned = {name: thing.state_dict() for name, thing in self.owned.items()}
            save_file(self.path, {"values": values, "owned": owned})
        on_main(self.ranks, write)

    def restore(self):
        name = on_main(self.ranks, self._newest)
        if name is None:
            return {}
        state = load_file(name, self.ranks.device)
        for key, thing in self.owned.items():
            thing.load_state_dict(state["owned"][key])
        return state["values"]

    def _newest(self):
        candidates = [path for path in (self.path, self.path.with_name(self.path.name + ".previous")) if path.exists()]
        for path in candidates:
            try:
                load_file(path)
                return str(path)
            except UserError as error:
                print(f"warning: {error}; trying the checkpoint before it", file=sys.stderr)
        if candidates:
            raise UserError(f"{self.path}: neither it nor the one before can be read; --restart begins anew")
        return None

    def remove(self):
        """Delete the files (a finished candidate needs none)."""
        if self.ranks.main:
            for path in [self.path, *self.path.parent.glob(f"{self.path.name}.*")]:  # .previous, .tmp of killed writes
                path.unlink(missing_ok=True)
