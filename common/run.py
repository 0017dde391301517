"""Run folders, training loops that can be stopped, queues of jobs, and initial weights.

    run = Run(cfg, command, ranks, data)          # refuses the results of other settings or data
    run.once(file, function, *arguments)          # one JSON value, computed once
    run.each(folder, jobs, work)                  # one JSON value per job, shared by the processes
    loop = Loop(run, "pretrain", cfg, model=model, optimizer=optimizer)
    for step, batches in loop(batches):           # a training with checkpoint, bar, log and stop
        ...
        loop.after(step, numbers, batches)

Results are saved only through once, each, Loop and finish. The same command continues a stopped
run. A run folder holds config.json, log.jsonl, checkpoint.pt and done.json. log.jsonl grows line by
line, and a line that a crash cut short is dropped. Every other file is written whole or not at all
(common/files.py).
"""
import atexit
import contextlib
import copy
import dataclasses
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import namedtuple
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from common.cli import Diverged, Stop, UserError, group_of
from common.files import (
    fingerprints, load_file, lock, partials, read_json, read_value, save_file, write_atomic,
    write_json)
from common.launch import (
    agree, broadcast, noting_sigterm, on_main, peak_memory, prefetch, print0, reduce_mean, to_host)

LOCK = "run.lock"
EXECUTION = "execution"  # the group of settings that may differ when a run continues
KIND = ("program", "action")  # a folder of another kind is refused, even with --restart
# flags that name models or runs
MODELS = ("init", "teacher", "task_teacher", "tokenizer", "latencies", "ensemble")


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


def model_files(cfg):
    """{flag: files} of the models, runs and tokenizers that the settings name. A run folder is
    represented by its checkpoints, for --latencies by its latencies."""
    reads = {}
    for flag in MODELS:
        value = getattr(cfg, flag, ())
        files = []
        for path in filter(None, [value] if isinstance(value, str) else value):
            name = "latency.json" if flag == "latencies" else "checkpoint.pt"
            inside = [*Path(path).glob(name)]  # else the checkpoints of its parts
            files += map(str, inside or sorted(Path(path).glob("*/checkpoint.pt")) or [path])
        if files and files not in reads.values():  # the tokenizer is often --init's
            reads[flag] = files
    return reads


def temporary_folder(program):
    """A new folder below runs/ that is deleted when this process ends."""
    Path("runs").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f"{program}-dry-run-", dir="runs")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Run:
    """The folder of one run. Rank 0 makes it and holds its lock.

    A run is identified by its program, action and settings, except the group EXECUTION, and by the
    content of the files that it reads. Results of another run are refused. A folder that has no
    results yet, for example after a failed start, is used again. --restart renames the folder. A
    dry run has a temporary folder, unless --out is given.

    cfg: all settings, with those that follow from the data. data: has files, {flag: paths that are
    read}. facts: more entries of config.json.

    result: what finish() was given, by this process or an earlier one, else None.
    """

    def __init__(self, cfg, command, ranks, data, **facts):
        self.command = command
        self.ranks = ranks
        self.job = ""
        self.began = time.time()
        self.restart = cfg.restart
        out = cfg.out or on_main(ranks, temporary_folder, command.program)
        self.folder = Path(out)
        self.may_differ = {field.name for field in dataclasses.fields(cfg)
                           if group_of(type(cfg), field.name) == EXECUTION}
        self.record = {
            "program": command.program,
            "action": command.action,
            "value": command.value,
            "computed": False,
            "settings": as_json(dataclasses.asdict(cfg)),
            "argv": sys.argv,
            "processes": ranks.size,
            **environment(),
            **facts,
        }
        writer = tensorboard_writer() if cfg.tensorboard else None
        self.result = on_main(ranks, self._open, {**data.files, **model_files(cfg)})
        self.board = writer(self.folder / "tensorboard") if writer and ranks.main else None
        if getattr(data, "tokenizer", None):
            on_main(ranks, data.tokenizer.save, self.folder)

    def _open(self, reads):
        """Make the folder, or open it and check that it is the same run's. Returns the result of a
        finished run."""
        self._refuse_overlap(reads)
        config = self.folder / "config.json"
        old = read_json(config) if config.exists() else {}
        same_kind = all(old.get(key) == self.record[key] for key in KIND)
        if self._has_files() and not same_kind:
            raise UserError(f"{self.folder}: not a run folder of {self.command.program}.py "
                            f"--{self.command.action}; choose another --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        lock(self.folder / LOCK)
        # torchrun runs the same command again after a failure
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if self.restart and first and old:
            self._rename()
            old = {}
        self.record["read"] = {flag: fingerprints(files) for flag, files in reads.items()}
        if old.get("computed"):
            self._resume(old)
        else:
            (self.folder / "log.jsonl").unlink(missing_ok=True)
        for left in partials(self.folder):
            left.unlink()
        write_json(config, self.record)
        done = self.folder / "done.json"
        return read_json(done) if done.exists() else None

    def _refuse_overlap(self, reads):
        """UserError if a file or folder that is read and the run folder contain each other."""
        own = self.folder.resolve()
        for path in sum(reads.values(), []):
            read = Path(path).resolve()
            if read.is_relative_to(own) or own.is_relative_to(read):
                raise UserError(f"{path} is read, {self.folder} is written, and one contains the "
                                "other; choose another --out")

    def _has_files(self):
        return any(path.is_file() and path.name != LOCK for path in self.folder.rglob("*"))

    def _rename(self):
        """Move the folder out of the way, with its lock held, and make a new one."""
        while (old := Path(f"{self.folder.absolute()}{time.strftime('-%Y%m%d-%H%M%S')}")).exists():
            time.sleep(0.1)
        self.folder.rename(old)
        self.folder.mkdir()
        lock(self.folder / LOCK)
        print(f"{self.folder}: the old run is now {old}", flush=True)

    def _resume(self, old):
        """Continue the record and the log of a run with results. UserError if it is another."""
        difference = self._difference(old)
        if difference:
            raise UserError(f"{self.folder}: {difference}")
        changed = {name: self.record["settings"][name] for name in self.may_differ}
        self.record = old | {"settings": old["settings"] | changed}
        log = self.folder / "log.jsonl"
        text = log.read_bytes() if log.exists() else b""
        write_atomic(log, text[:text.rfind(b"\n") + 1])  # without a line that a crash cut short
        self._append({"event": "resumed", "time": time.time(), "processes": self.ranks.size,
                      **environment()})

    def _difference(self, old):
        """How the run in the folder differs from this one, with a fix, or ""."""
        before = {**old["settings"], "--" + old["action"]: old["value"]}
        now = {**self.record["settings"], "--" + old["action"]: self.command.value}
        if before.keys() != now.keys():
            return ("made by another version of this program, which alone can continue it; choose "
                    "another --out, or --restart, which renames this run")
        differ = [f"{name} ({before[name]} there, {value} here)" for name, value in now.items()
                  if name not in self.may_differ and before[name] != value]
        differ += [f"the files of --{flag} have changed"
                   for flag in sorted(old["read"].keys() | self.record["read"].keys())
                   if old["read"].get(flag) != self.record["read"].get(flag)]
        if not differ:
            return ""
        return (f"made with other settings or data: {'; '.join(differ)}; give those (--accumulate "
                "if the number of processes differs), choose another --out, or --restart, which "
                "renames this run and begins again")

    def alone(self, job=""):
        """This run as seen from a job in one process. `job` is in the lines of its log."""
        own = copy.copy(self)
        own.ranks = self.ranks.alone()
        own.job = job
        return own

    def mark_computed(self):
        """Note in config.json that the folder has results, so that other settings are refused."""
        if not self.record["computed"]:
            self.record["computed"] = True
            if self.ranks.main:
                write_json(self.folder / "config.json", self.record)

    def _append(self, record):
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def log(self, phase, step, dev=None, **values):
        """Write one line of log.jsonl, on rank 0 or in a job. values: listed in data/README.md.
        dev: {name: number} on held-out data, written as dev_NAME."""
        if self.job:
            values = {"job": self.job, **values}
        if self.ranks.main:
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

    def once(self, file, function, *arguments):
        """function(*arguments), a JSON value, computed on rank 0 and kept in a file of the folder.
        Loaded if the file is there."""
        path = self.folder / file

        def value():
            if not path.exists():
                result = function(*arguments)
                self.mark_computed()
                write_json(path, result)
            return read_value(path)

        return on_main(self.ranks, value)

    def each(self, folder, jobs, work, cost=lambda name: 0, report=None, processes=None):
        """{name: work(name)} of jobs, JSON values, kept as FOLDER/NAME.json of the run and not
        computed again.

        The next free process runs the remaining job with the highest cost. processes: how many
        work, or None for all. 1 for what is timed. report(name, value): called on rank 0 for each
        value. A job calls no collective operation: it runs on one process, in run.alone(). Raises
        Stop on every rank after SIGTERM on any, between jobs or where a Loop in a job has saved.
        """
        self.mark_computed()
        place = self.folder / folder
        place.mkdir(parents=True, exist_ok=True)
        paths = {name: place / f"{name}.json" for name in jobs}
        order = sorted(jobs, key=cost, reverse=True)
        queue = _Queue(self.ranks, len(order), processes)
        unreported = list(paths) if self.ranks.main else []

        def update(bar):
            for name in [name for name in unreported if paths[name].exists()]:
                unreported.remove(name)
                if report:
                    report(name, read_value(paths[name]))
            bar.update(len(paths) - len(unreported) - bar.n)

        made = sum(path.exists() for path in paths.values())
        with noting_sigterm(), progress(self.ranks, len(paths), folder, made) as bar:
            update(bar)
            with contextlib.suppress(Stop):  # a stopped rank meets the others below
                for turn in queue:
                    path = paths[order[turn]]
                    if not path.exists():
                        write_json(path, work(order[turn]))
                    update(bar)
            queue.close()
            if agree(self.ranks)[0]:
                raise Stop
            update(bar)
        return {name: read_value(path) for name, path in paths.items()}

    def start_line(self, start, checkpoint="checkpoint.pt"):
        """A line on the start of a training: `start`, or the checkpoint that it continues from."""
        path = self.folder / checkpoint
        return f"continues from {path}" if path.exists() else start

    def finish(self, result):
        """Mark the run as finished with its result, a JSON object."""
        self.mark_computed()
        if self.ranks.main:
            write_json(self.folder / "done.json", result)
        self.result = as_json(result)

    def print_next(self, cfg, result, *words, same=("task", "device")):
        """Print the folder and the main file of a finished run, and the next command: these words,
        and the given flags among `same`."""
        if not cfg.out:
            print0(self.ranks, f"dry run of --{self.command.action}: passed")
            return
        print0(self.ranks, f"{self.folder}: finished (--restart begins again); "
                           f"result: {self.folder / result}")
        if not words or cfg.dry_run:
            return
        for name in [name for name in same if name in self.command.given]:
            value = getattr(cfg, name)
            values = value if isinstance(value, tuple) else [value]
            words = [*words, f"--{name}", *([] if value is True else values)]
        print0(self.ranks, f"next: python {self.command.program}.py {shlex.join(map(str, words))}")


class _Queue:
    """Turns 0, 1, ... of a queue that processes share, until SIGTERM. Each turn is drawn once."""

    def __init__(self, ranks, length, processes=None):
        self.ranks = ranks
        self.length = length
        self.idle = processes is not None and ranks.rank >= processes
        self.store = ranks.store or dist.HashStore()
        # a new counter per queue: a process that died has drawn nothing
        self.counter = broadcast(ranks, f"queue {time.time_ns()}")

    def __iter__(self):
        while not self.idle and not self.ranks.stop.is_set():
            turn = self.store.add(self.counter, 1)
            if turn > self.length:
                return
            yield turn - 1

    def close(self):
        """No process draws another turn."""
        if not self.idle:
            self.store.add(self.counter, self.length)


# Training loops

SAVE_MINUTES = 30  # between checkpoints at most, so that a kill loses no more
TEMPORARY = ("optimizer", "average")  # objects that a finished loop does not leave


def set_rate(optimizer, rate):
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def progress(ranks, total, label, start=0, inside=False):
    """A tqdm bar on rank 0, drawn at most once per second to keep logs short. inside: below another
    bar. A loop of less than a second shows nothing there, and a finished bar disappears."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    return tqdm(total=total, initial=start, desc=label, disable=not (ranks.main and first),
                mininterval=1, leave=not inside, delay=1 if inside else 0)


class Loop:
    """A training of `steps` steps that continues where it was stopped. See the top of this file.

    run: the log gets a line at least twenty times, every 100 steps, every minute, and with each
    evaluation and save. In a job it is run.alone(). None: nothing is logged, and `ranks` is given.
    name: of the phase, in bars and in the log. cfg: has steps and save_every, unless given. file:
    the checkpoint in the run folder, or a path, or None for none. evaluate_at: numbers of steps
    after which evaluates() is true. Default: the planned saves before the last. save_at: planned
    saves. Default: every save_every steps, counted back from the last. unit: what a step is counted
    in. owned: objects with state_dict and load_state_dict.

    begin: finished steps. state: a small dictionary that is saved too. speed: units per second.

    A checkpoint is also saved every SAVE_MINUTES, and after SIGTERM on any process, which raises
    Stop. When a loop ends, its checkpoint keeps only weights and state, and a new Loop on that
    checkpoint runs no steps.
    The host waits for a GPU only to log, evaluate and save.
    """

    def __init__(self, run, name, cfg, *, ranks=None, steps=None, file="checkpoint.pt",
                 evaluate_at=None, save_at=None, unit="tokens", **owned):
        self.run = run
        self.name = name
        self.ranks = ranks or run.ranks
        self.steps = cfg.steps if steps is None else steps
        self.path = Path(run.folder if run else "", file) if file else None
        self.owned = owned
        self.unit = unit
        self.save_at = save_at
        if save_at is None:
            self.save_at = range(self.steps, 0, -(getattr(cfg, "save_every", 0) or self.steps or 1))
        self.evaluate_at = evaluate_at
        if evaluate_at is None:
            self.evaluate_at = [*self.save_at][1:]
        log_every = max(1, min(100, self.steps // 20))
        self.log_at = {*range(log_every, self.steps + 1, log_every)}
        self.means = Means(self.ranks, unit)
        self.speed = None
        self.begin = 0
        self.state = {}
        self._restore()

    def _restore(self):
        """Load the checkpoint, if there is one."""
        if not self.path or not on_main(self.ranks, self.path.exists):
            return
        try:
            saved = load_file(self.path, self.ranks.device)
        except UserError as error:
            raise UserError(f"{error}; --restart begins its run again") from None
        for name, each in self.owned.items():
            if name in saved["owned"]:  # a finished loop has no optimizer
                each.load_state_dict(saved["owned"][name])
        self.state = saved["state"]
        self.begin = saved["step"]

    def _save(self, step, names):
        """Write the checkpoint, with the objects of these names."""

        def write():
            owned = {name: self.owned[name].state_dict() for name in names}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_file(self.path, {"step": step, "state": self.state, "owned": owned})

        if self.path:
            if self.run:
                self.run.mark_computed()
            on_main(self.ranks, write)

    def finish(self):
        """Write the weights and the state of a finished loop, without what only training needs."""
        self._save(self.steps, [name for name in self.owned if name not in TEMPORARY])

    def saves(self, step):
        """Whether a save is planned after this step, counted from 0."""
        return step + 1 in self.save_at

    def evaluates(self, step):
        """Whether the model is to be evaluated after this step, counted from 0. Evaluations come
        before the save, since a resumed run repeats them."""
        return step + 1 in self.evaluate_at

    def __call__(self, items=None):
        """Yield (step, item) for each step that is left. items: of the steps from `begin`, made
        ahead on a GPU. Default: None for each."""
        if self.begin == self.steps:
            return
        ranks = self.ranks
        steps = range(self.begin, self.steps)
        inside = not self.run or bool(self.run.job)
        label = self.run.job if self.run and self.run.job else self.name
        items = [None] * len(steps) if items is None else prefetch(items, ranks.device)
        now = time.monotonic()
        self.saved = now
        self.logged = now
        with (noting_sigterm(),
              progress(ranks, self.steps, label, self.begin, inside) as self.bar):
            for step, item in zip(steps, items):
                yield step, item
        self.finish()

    def after(self, step, numbers, batches=(), dev=None, **values):
        """End a step: show, log and save what is due. Raises Diverged, and Stop after SIGTERM.

        numbers: the tensors () of train_step. batches: of this process, to count units. dev:
        numbers of an evaluation. values: more numbers for the log."""
        done = step + 1
        self.means.add(numbers, batches)
        self.bar.update()
        now = time.monotonic()
        save = self.ranks.main and now - self.saved >= 60 * SAVE_MINUTES
        log = self.ranks.main and now - self.logged >= 60
        stop, save, log = agree(self.ranks, save, log)
        save = save or stop or self.saves(step)
        if log or save or dev or done in self.log_at:
            self.logged = now
            self._log(done, dev, values)
        if save and done < self.steps:  # after the last step only weights are saved
            self.saved = now
            self._save(done, self.owned)
            if stop:
                raise Stop

    def _log(self, done, dev, values):
        means = self.means.take(done)
        self.speed = means.get(f"{self.unit}_per_second")
        if self.run:
            self.run.log(self.name, done, dev=dev, **values, **means)
        shown = {**(dev or {}), "loss": means.get("loss"), "per_s": self.speed}
        shown = {name: value for name, value in shown.items() if isinstance(value, (int, float))}
        self.bar.set_postfix(shown, refresh=False)


class Means:
    """Means of the results of train_step over the steps since the last take() and over the
    processes. The host does not wait for a GPU before take()."""

    def __init__(self, ranks, unit="tokens"):
        self.ranks = ranks
        self.unit = unit
        self.began = math.inf  # the first steps, which may compile, do not count
        self._reset()

    def _reset(self):
        self.sums = {}
        self.steps = 0
        self.units = 0

    def add(self, numbers, batches=()):
        """numbers: {name: tensor ()} of one step. batches: of this process."""
        for name, value in numbers.items():
            self.sums[name] = self.sums.get(name, 0) + value
        self.steps += 1
        for batch in batches:
            self.units += batch["ids" if "ids" in batch else "labels"].numel()

    def take(self, step):
        """{name: mean}, and the speed of all processes if there were units, None at first. Raises
        Diverged on every rank if a mean is NaN or infinite at this step."""
        sums = [value / self.steps for value in self.sums.values()]
        sums = torch.stack(sums).tolist() if sums else []
        means = dict(zip(self.sums, reduce_mean(self.ranks, *sums)))
        passed = time.perf_counter() - self.began  # 0 if the clock of a virtual machine stands
        units = self.units
        self._reset()
        self.began = time.perf_counter()
        for name, value in means.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is NaN or infinite at step {step}")
        if units:
            speed = round(self.ranks.size * units / passed) if passed > 0 else None
            means[f"{self.unit}_per_second"] = speed
        return means


# Weights that a model starts from


def finite(weights, path):
    """Return the weights. Raises UserError if one is NaN or infinite."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise UserError(f"{path}: {name} is NaN or infinite; this model has diverged")
    return weights


def settings_from(cfg, command, settings, source, names, overridable=()):
    """The settings that a Config takes from a model, {name: value}: `names`, where a different flag
    is a UserError, and `overridable`, which flags override."""
    taken = {}
    for name in (*names, *overridable):
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


# a run folder's config.json, and the objects in its checkpoint, {name: weights}
Saved = namedtuple("Saved", "record owned")


def read_run(path, cfg, program, actions):
    """The Saved of a run folder from one of these actions of this program. Raises UserError for
    other folders."""
    folder = Path(path)
    config = folder / "config.json"
    record = read_json(config) if config.exists() else {}
    if record.get("action") not in actions or record["program"] != program:
        raise UserError(f"{folder}: not a run folder of {program}.py --{' or --'.join(actions)}; "
                        "name another")
    defaults = dataclasses.asdict(type(cfg)())  # of settings that are newer than the run
    record["settings"] = {**defaults, **record["settings"]}
    path = folder / "checkpoint.pt"
    if not path.exists():
        raise UserError(f"{folder}: no checkpoint.pt; for a fine-tuning name one of its models, "
                        f"{folder}/TASK; for another run, wait until it has saved")
    saved = load_file(path)
    if not (folder / "done.json").exists():
        warnings.warn(f"{folder}: not finished; its checkpoint is used")
    owned = {name: model if name == "optimizer" else finite(model, folder)
             for name, model in saved["owned"].items()}
    return Saved(record, owned)


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


def keep_model(folder, command, cfg, tokenizer, trained=None, task="", **owned):
    """Write a folder for read_run: config.json, the tokenizer's file, checkpoint.pt, done.json.

    trained: the number of trained positions, if known. task: the name of the task whose head is
    included. owned: {name: module, or weights by name}. Without them a Loop has written the
    checkpoint."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in partials(folder):  # of a process that was killed here
        left.unlink()
    tokenizer.save(folder)
    record = {"program": command.program, "action": command.action, "task": task,
              "settings": dataclasses.asdict(cfg)}
    write_json(folder / "config.json", record | ({"trained": trained} if trained else {}))
    states = {name: to_host(each.state_dict() if hasattr(each, "state_dict") else each)
              for name, each in owned.items()}
    if states:
        save_file(folder / "checkpoint.pt", {"step": 0, "state": {}, "owned": states})
    write_json(folder / "done.json", {})
