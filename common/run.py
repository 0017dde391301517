"""Run folders, checkpoints, a queue of jobs, and initial weights.

A run folder holds config.json, log.jsonl, checkpoint.pt and done.json. The same command continues a
stopped run. log.jsonl and mformer.py's history.jsonl grow line by line, and a line that a crash cut
short is dropped. Every other file is written whole or not at all (common/files.py).
"""
import contextlib
import dataclasses
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections import namedtuple
from pathlib import Path

import torch
import torch.distributed as dist

from common.cli import Stop, UserError
from common.distributed import (
    broadcast, on_main, peak_memory, progress, print0, stop_requested, stopping, to_host,
    uninterrupted)
from common.files import (
    fingerprints, load_file, lock, newest, partials, previous, read_json, save_file, write_atomic,
    write_json)

LOCK = "run.lock"
# settings that a resumed run may change. They are recorded again
MAY_DIFFER = {"out", "restart", "device", "compile", "recompute", "save_every", "tensorboard"}
# names in a run folder that --restart deletes, besides `writes`
WRITES = ("log.jsonl", "history.jsonl", "done.json", "best.json", "best.py",
          "best.pt", "best.mmd", "checkpoint.pt", "checkpoint.pt.previous", "corpus", "jobs",
          "spiece.model", "vocab.txt", "tokenizer_config.json", "tensorboard")
# files that a run may have before its first step. "text" and later names are mformer.py's
PREPARED = {LOCK, "config.json", "log.jsonl", "tensorboard", "corpus", "spiece.model", "vocab.txt",
            "tokenizer_config.json", "text", "valid", "images.json"}
KIND = ("program", "action", "dry_run")  # a folder of another kind is refused, even with --restart


# Run folders


def processor():
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def environment():
    """Facts about the code and the machine for config.json."""
    here = shlex.quote(str(Path(__file__).resolve().parent))
    return {
        "torch": torch.__version__,
        "commit": subprocess.getoutput(f"git -C {here} rev-parse HEAD 2>/dev/null"),
        "machine": platform.platform(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
    }


def tensorboard_writer():
    """torch's SummaryWriter. Raises UserError if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard: it is not installed; pip install tensorboard") from None
    return SummaryWriter


def as_json(value):
    """A value as read back from a JSON file: tuples become lists."""
    return json.loads(json.dumps(value))


def identity(record):
    """{name: value}: the kind of a run and its settings as given."""
    return {key: record.get(key) for key in KIND} | record.get("asked", {})


def is_plain(name):
    """Whether a name is that of a file or folder, not a path or a pattern."""
    return name not in ("", ".", "..") and not {*name} & {*"/\\*?["}


def remove_copies(folder, files):
    """Delete these files, relative to a folder, and then its empty folders."""
    for file in files:
        (folder / file).unlink(missing_ok=True)
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


class Result(dict):
    """The result of the finished run in a folder. Raises UserError for a missing key."""

    def __init__(self, folder):
        super().__init__(read_json(folder / "done.json"))
        self.folder = folder

    def __missing__(self, key):
        raise UserError(f"{self.folder / 'done.json'}: lacks {key}; made by an older version of "
                        "this program; choose another --out, or --restart to begin again")


class RunFolder:
    """The folder of one run. Rank 0 makes it and holds its lock.

    Refuses the folder of another run (another identity or other data) that has computed something.
    If it has computed nothing, as after a mistake, the folder is reused. With cfg.restart, deletes
    the files of a run of the same kind.

    reads: {flag: files and folders that the run reads}. Their fingerprints are compared, unless
    earlier commands read nothing of the flag: a search can run one phase at a time. settings: of
    the run's identity. Default: all of cfg. compared: settings of MAY_DIFFER that must agree.
    replaces: more settings that may differ. hint: another fix, for the message that refuses other
    settings. writes: more names that --restart deletes.
    """

    def __init__(self, cfg, command, ranks, reads, settings=None, compared=(), writes=(),
                 replaces=(), hint=""):
        self.command = command
        self.may_differ = (MAY_DIFFER - {*compared}) | {*replaces}
        self.hint = hint
        self.writes = tuple(map(str, writes))  # pathlib refuses subclasses of str
        self.folder = Path(cfg.out)
        self.ranks = ranks
        self.began = time.time()
        asked = as_json(settings or dataclasses.asdict(cfg))
        self.record = {
            "program": command.program,
            "action": command.action,
            "dry_run": cfg.dry_run,
            "asked": asked,
            "settings": {**asked},
            "argv": sys.argv,
            "processes": ranks.size,
            "writes": self.writes,
            **environment(),
        }
        writer = tensorboard_writer() if asked.get("tensorboard") else None
        self.new = on_main(ranks, self._open, cfg.restart, reads)  # nothing is computed
        self.board = writer(self.folder / "tensorboard") if writer and ranks.main else None

    def _open(self, restart, reads):
        """Make the folder, or open it and check that it is the same run's. Returns whether nothing
        has been computed in it."""
        self._refuse_overlap(reads)
        config = self.folder / "config.json"
        old = read_json(config) if config.exists() else {}
        names = self._names()
        computed = bool(names - PREPARED) or b'"phase"' in self._log_text()
        same_kind = all(old.get(key) == self.record[key] for key in KIND)
        if not same_kind and (computed or "asked" not in old and names - {LOCK}):
            raise UserError(f"{self.folder}: not a run folder of {self.command.program}.py "
                            f"--{self.record['action']}; choose another --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        lock(self.folder / LOCK)
        self.record["read"] = {flag: fingerprints(files) for flag, files in reads.items()}
        difference = "" if restart or not old else self._difference(old)
        if computed and difference:
            raise UserError(f"{self.folder}: {difference}")
        if restart:
            self._clear({*WRITES, *self._earlier_tasks(old)})
        elif difference:  # data.inputs.open_corpus replaces a corpus that was made from other text
            self._clear({*WRITES} - {"corpus"})
        elif computed:
            self._resume(old)
        for left in partials(self.folder):
            left.unlink()
        write_json(config, self.record)
        return restart or not computed

    def _refuse_overlap(self, reads):
        """UserError if a file or folder that is read and the run folder contain each other."""
        own = self.folder.resolve()
        for path in sum(reads.values(), []):
            read = Path(path).resolve()
            if read.is_relative_to(own) or own.is_relative_to(read):
                raise UserError(f"{path} is read, {self.folder} is written, and one contains the "
                                "other; choose another --out")

    def _names(self):
        """Names of files, and of folders with a file, in the folder."""
        files = {*filter(Path.is_file, self.folder.rglob("*"))} - {*partials(self.folder)}
        return {path.relative_to(self.folder).parts[0] for path in files}

    def _log_text(self):
        log = self.folder / "log.jsonl"
        return log.read_bytes() if log.exists() else b""

    def _resume(self, old):
        """Continue the record and the log of the folder, without a line that a crash cut short."""
        asked = self.record["asked"]
        new = {name: asked[name] for name in self.may_differ & asked.keys()}
        self.record = old | {
            "read": old["read"] | self.record["read"],
            "asked": old["asked"] | new,
            "settings": old["settings"] | new,
        }
        text = self._log_text()
        write_atomic(self.folder / "log.jsonl", text[:text.rfind(b"\n") + 1])
        self._append({"event": "resumed", "time": time.time(), "processes": self.ranks.size,
                      **environment()})

    def _difference(self, old):
        """How the run in the folder differs from this one, with a fix, or ""."""
        before = identity(old)
        now = identity(self.record)
        if before.keys() != now.keys():
            return ("made by another version of this program, which alone can continue it; choose "
                    "another --out (--restart would delete this run)")
        differ = [f"{name} ({before[name]} there, {value} here)" for name, value in now.items()
                  if name not in self.may_differ and before[name] != value]
        differ += [f"the files of --{flag} have changed"
                   for flag, files in self.record["read"].items()
                   if old["read"].get(flag, files) != files]
        if not differ:
            return ""
        return (f"made with other settings or data: {'; '.join(differ)}; give those (--accumulate "
                "if the number of processes differs), choose another --out, or --restart to begin "
                f"again{self.hint}")

    def _earlier_tasks(self, old):
        """What the run in the folder writes, which may have had other tasks."""
        names = {*old.get("writes", ())} - {*self.writes}
        for name in names:
            if not is_plain(name):
                raise UserError(f"{self.folder / 'config.json'}: writes: {name!r} is not the plain "
                                "name of a file in the folder, so --restart does not delete it; "
                                "correct it, or choose another --out")
        return names

    def _clear(self, names):
        """Delete these names and `writes`. Removes links, not their targets. Of TASK/, a copy of a
        folder in jobs/, only the copied files."""
        jobs = [path for path in self.folder.glob("jobs/*") if path.is_dir()]
        copied = {path.relative_to(job)
                  for job in jobs for path in job.rglob("*") if not path.is_dir()}
        tasks = self.record["action"] == "finetune"
        # jobs/ after its copies, since a kill may come in between
        for name in sorted({*names, *self.writes}, key=lambda name: name in WRITES):
            for path in self.folder.glob(name):
                if path.is_symlink() or not path.is_dir():
                    path.unlink()
                elif tasks and name not in WRITES:
                    remove_copies(path, copied)
                else:
                    shutil.rmtree(path)

    def _append(self, record):
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def log(self, phase, step, every_rank=False, dev=None, **values):
        """Write one line of log.jsonl, on rank 0, or with every_rank on each calling rank. values:
        listed in data/README.md. dev: {name: number} on held-out data, written as dev_NAME."""
        if self.ranks.main or every_rank:
            held_out = {f"dev_{name}": value for name, value in (dev or {}).items()}
            values |= {**held_out, "memory_mb": round(peak_memory(self.ranks.device)),
                       "seconds": round(time.time() - self.began, 3)}
            self._append({"phase": phase, "step": step, **values})
        if self.board:
            prefix = f"{phase}/{values.get('job', '')}".rstrip("/")
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self.board.add_scalar(f"{prefix}/{name}", value, step)
            self.board.flush()

    def save_settings(self, cfg, **facts):
        """Write the resolved settings and more facts to config.json, once the data are open.
        `asked` keeps the settings as given."""
        if self.ranks.main:
            asked = self.record["asked"]
            # a phase that opens no data keeps the settings that another phase resolved
            self.record["settings"] |= {
                name: value for name, value in as_json(dataclasses.asdict(cfg)).items()
                if value != asked[name]}
            self.record |= facts
            write_json(self.folder / "config.json", self.record)

    def start_line(self, start, checkpoint=None):
        """The line on the start of a training: `start`, or if there is a checkpoint (default: the
        run's) that the training continues."""
        path = checkpoint or self.folder / "checkpoint.pt"
        return f"continues from {path}" if path.exists() else start

    def finished(self):
        """The result of finish(), or None for an unfinished run."""
        there = (self.folder / "done.json").exists
        return on_main(self.ranks, lambda: Result(self.folder) if there() else None)

    def finish(self, result):
        """Mark the run as finished with its (JSON) result."""
        if self.ranks.main:
            write_json(self.folder / "done.json", result)

    def print_result(self, cfg, result, *words, same=("preset", "task", "device")):
        """Print the folder and the main file of a finished run, and the next command: these words,
        and the given flags among `same`."""
        print0(self.ranks, f"{self.folder}: finished (--restart begins again); "
                           f"result: {self.folder / result}")
        if not words or cfg.dry_run:
            return
        for name in [name for name in same if name in self.command.given]:
            value = getattr(cfg, name)
            values = value if isinstance(value, tuple) else [value]
            words = [*words, f"--{name}", *([] if value is True else values)]
        print0(self.ranks, f"next: python {self.command.program}.py {shlex.join(map(str, words))}")


class Checkpoint:
    """Saves and restores named objects that have state_dict and load_state_dict, and small values.

    save(step=..., ...) runs on every rank, and rank 0 writes. restore() returns the values of the
    last save, or {}. If the newest file is missing or damaged, the previous one is used."""

    def __init__(self, path, ranks, **owned):
        self.path = Path(path)
        self.ranks = ranks
        self.owned = owned

    def save(self, **values):
        def write():
            owned = {name: each.state_dict() for name, each in self.owned.items()}
            save_file(self.path, {"values": values, "owned": owned}, keep=True)

        with uninterrupted():
            on_main(self.ranks, write)

    def restore(self):
        """Load the newest readable save into the owned objects. Returns its values."""
        # rank 0 reads the files to choose one, and each rank reads that one onto its device
        name = on_main(self.ranks, lambda: newest(self.path).path)
        if not name:
            return {}
        state = load_file(name, self.ranks.device)
        for key, each in self.owned.items():
            each.load_state_dict(state["owned"][key])
        return state["values"]

    def remove(self):
        """Delete the files, which a finished job does not need."""
        if self.ranks.main:
            for path in (self.path, previous(self.path)):
                path.unlink(missing_ok=True)


def share_out(ranks, names, folder, label, work, cost=lambda name: 0, report=None):
    """[work(name) for each name], JSON objects. The next free process runs the remaining name with
    the highest cost. Results are kept as folder/NAME.json and not computed again. label: of the
    bar. report(name, result): called on rank 0 for the results of all processes. Raises Stop on
    every rank after SIGTERM on any."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.json" for name in names}
    order = sorted(names, key=cost, reverse=True)
    store = ranks.store or dist.HashStore()
    # a new counter per call: a process that died has claimed nothing
    counter = broadcast(ranks, f"share_out {time.time_ns()}")
    unreported = list(names) if ranks.main else []
    made = sum(path.exists() for path in paths.values())

    def update(bar):
        for name in [name for name in unreported if paths[name].exists()]:
            unreported.remove(name)
            if report:
                report(name, read_json(paths[name]))
        bar.update(len(names) - len(unreported) - bar.n)

    with progress(ranks, len(names), label, made) as bar:
        with contextlib.suppress(Stop):  # a stopped rank meets the others below
            update(bar)
            while (turn := store.add(counter, 1)) <= len(order) and not stop_requested():
                path = paths[order[turn - 1]]
                if not path.exists():
                    write_json(path, work(order[turn - 1]))
                update(bar)
        store.add(counter, len(order))  # no other rank starts a job
        if stopping(ranks):
            raise Stop
        update(bar)
    return [read_json(paths[name]) for name in names]


# Weights that a model starts from


def finite(weights, path):
    """Return the weights. Raises UserError if one is NaN or infinite."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise UserError(f"{path}: {name} is NaN or infinite; this model has diverged")
    return weights


def settings_from(cfg, command, settings, source, names, also=()):
    """The settings that a Config takes from a model, {name: value}: `names`, where a different flag
    is a UserError, and `also`, which flags override."""
    taken = {}
    for name in (*names, *also):
        value = settings[name]
        if isinstance(value, list):
            value = tuple(value)
        given = name in command.given
        if name in names and given and getattr(cfg, name) != value:
            raise UserError(f"--{name} {getattr(cfg, name)}: {source} has {value}; "
                            f"leave --{name} out")
        if name in names or not given:
            taken[name] = value
    return taken


# a run folder's config.json, and the objects in its newest checkpoint, {name: weights}
Run = namedtuple("Run", "record owned")


def read_run(path, cfg, program, actions):
    """The Run of a folder from one of these actions of this program. Raises UserError for other
    folders."""
    folder = Path(path)
    config = folder / "config.json"
    record = read_json(config) if config.exists() else {}
    if record.get("action") not in actions or record["program"] != program:
        raise UserError(f"{folder}: not a run folder of {program}.py --{' or --'.join(actions)}; "
                        "name another")
    if dataclasses.asdict(cfg).keys() - record["settings"].keys():
        raise UserError(f"{folder}: made by another version of this program; name another run")
    saved = newest(folder / "checkpoint.pt")
    if not saved.path:
        raise UserError(f"{folder}: no checkpoint.pt; for a fine-tuning name one of its models, "
                        f"{folder}/TASK; for another run, wait until it has saved")
    if not (folder / "done.json").exists():
        warnings.warn(f"{folder}: not finished; its newest checkpoint is used")
    owned = {name: model if name == "optimizer" else finite(model, folder)
             for name, model in saved.content["owned"].items()}
    return Run(record, owned)


@torch.no_grad()
def load_weights(model, weights, source, heads=()):
    """Copy weights into a model by name. Returns a line about loaded, new and ignored weights.
    heads: first parts of names whose shape may differ. They are newly initialised. Raises UserError
    for any other mismatch."""
    state = model.state_dict()
    loaded = set()
    for name in [name for name in state if name in weights]:
        if weights[name].shape == state[name].shape:
            state[name].copy_(weights[name])
            loaded.add(name)
        elif name.split(".")[0] not in heads:
            raise UserError(f"{source}: {name} is {tuple(weights[name].shape)} there and "
                            f"{tuple(state[name].shape)} here; use the same sizes and the same "
                            "tokenizer")
    new = sorted(state.keys() - loaded)
    ignored = sorted(weights.keys() - loaded)
    return (f"{source}: {len(loaded)} weights loaded; "
            f"newly initialised: {', '.join(new) or 'none'}; "
            f"ignored: {', '.join(ignored) or 'none'}")


def keep_model(folder, command, cfg, tokenizer, trained=None, /, **owned):
    """Write a folder for read_run: config.json, the tokenizer's file, checkpoint.pt, done.json.
    trained: the number of trained positions, if known. owned: {name: module, or weights by name}.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in partials(folder):  # of a process that was killed here
        left.unlink()
    tokenizer.save(folder)
    record = {"program": command.program, "action": command.action,
              "settings": dataclasses.asdict(cfg)}
    write_json(folder / "config.json", record | ({"trained": trained} if trained else {}))
    states = {name: to_host(each.state_dict() if hasattr(each, "state_dict") else each)
              for name, each in owned.items()}
    save_file(folder / "checkpoint.pt", {"values": {}, "owned": states})
    write_json(folder / "done.json", {})
