"""Run folders and checkpoints: what a run leaves behind, and what lets the same command go on where it was stopped."""
import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from common.cli import UserError, freeze
from common.distributed import on_main, peak_memory, say, uninterrupted
from common.files import (digest, fingerprints, load_file, lock, newest, no_link, partials, previous, read_json,
                          read_result, save_file, write_atomic, write_result)

LOCK = "run.lock"
FORMAT = 1  # of a run folder; raised when this program cannot continue the runs of its older versions
# may differ in a resumed run, unless Config.compared names it
NOT_COMPARED = {"out", "restart", "device", "dry_run", "compile", "recompute", "save_every", "save_minutes"}
WRITES = ("config.json", "log.jsonl", "history.jsonl", "done.json", "best.json", "best.py", "best.pt",
          "best.mmd", "checkpoint.pt", "checkpoint.pt.previous", "corpus", "jobs", "spiece.model", "vocab.txt",
          "tokenizer_config.json")  # names in a run folder; also Config.writes
LOGGED = {"phase", "step", "job", "loss", "mlm_loss", "order_loss", "norm", "lr", "tokens_per_second",
          "images_per_second", "candidates", "best", "memory_mb", "seconds"}  # data/README.md says what each key is


def processor():
    """The name of the CPU, as Linux has it, or else what Python knows: often the family alone, such as x86_64."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text() if info.exists() else "", re.MULTILINE)
    return names[0].strip() if names else platform.processor() or platform.machine()


def environment(device):
    """What config.json keeps about the machine and the code."""
    git = (subprocess.run(["git", "-C", Path(__file__).resolve().parent, "rev-parse", "HEAD"], capture_output=True,
                          text=True) if shutil.which("git") else None)
    commit = git.stdout.strip() if git and git.returncode == 0 else None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {"python": platform.python_version(), "torch": torch.__version__, "commit": commit, "device": str(device),
            "hardware": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(),
            "float32_products": torch.get_float32_matmul_precision(),  # "high": TF32
            "platform": platform.platform()}


def as_json(value):
    """A value as it comes back from a JSON file: tuples are lists."""
    return json.loads(json.dumps(value))


class RunFolder:
    """The folder of one run: config.json, log.jsonl, done.json. Made by rank 0, which holds its lock; a folder made
    with other settings, or from other data, is refused. With cfg.restart what a run of the same action wrote goes.

    settings: what was asked for, which is compared with what the folder was asked for, NOT_COMPARED aside; default:
    every knob as it stands in cfg. reads: files and folders that the run reads; their names and the fingerprints of
    their contents are kept and compared, so that a copy of the data is the same. When the data are open the run calls settle(), and cfg is never assigned to again.
    """

    def __init__(self, cfg, action, ranks, settings=None, reads=(), **extra):
        self.folder, self.ranks, self.began = Path(cfg.out), ranks, time.time()
        self.asked = settings = as_json(settings or dataclasses.asdict(cfg))
        record = {"format": FORMAT, "program": cfg.program, "action": action, "settings": settings, "argv": sys.argv,
                  "processes": ranks.size, **extra}
        cfg.run, self.new, self.facts = self, False, {}
        free = NOT_COMPARED - {*getattr(cfg, "compared", ())}
        self.ruling = {name: value for name, value in settings.items() if name not in free}
        ranks.run = digest(self.ruling)
        self.began -= on_main(ranks, self._open, record, cfg, reads)

    def content(self):
        """Names in the folder that say that a run has begun; not what a killed write left."""
        names = {path.name for path in self.folder.glob("*")} - {path.name for path in partials(self.folder)}
        return names - {"config.json", "log.jsonl", LOCK}

    def _open(self, record, cfg, reads):
        """Make or find the folder; the seconds that the run has had in it before."""
        config, own = self.folder / "config.json", self.folder.resolve()
        for path in map(Path, reads):  # a run that reads what it writes would delete its own beginning
            if own in (path.resolve(), *path.resolve().parents):
                raise UserError(f"{path}: lies in {self.folder}, where this command writes; choose another --out")
        if not config.exists() and (self.content() or (self.folder / "log.jsonl").exists()):
            raise UserError(f"{self.folder}: not empty and no run folder; choose another --out")
        if config.exists():
            self._compare(read_json(config, dict), record, False)  # nothing is written into a stranger's folder
        self.folder.mkdir(parents=True, exist_ok=True)
        lock(self.folder / LOCK)
        begun, record["read"] = self.content(), fingerprints(reads, self.folder)
        if config.exists():
            self._compare(read_json(config, dict), record, begun and not cfg.restart)
            if cfg.restart:
                self._clear(getattr(cfg, "writes", ()))
        for left in partials(self.folder):
            left.unlink()
        here, self.new = environment(self.ranks.device), not begun or cfg.restart
        if self.new:
            write_atomic(config, json.dumps({**record, "environment": here}, indent=2))
            return 0
        self._write("log.jsonl", {"event": "resumed", "time": time.time(), **here, "processes": self.ranks.size})
        log = (self.folder / "log.jsonl").read_text(encoding="utf-8", errors="replace")  # a crash may have torn a line
        return float(["0", *re.findall(r'"seconds": ([\d.]+)}$', log, re.MULTILINE)][-1])

    def _compare(self, old, record, whole):
        """UserError where config.json is of another program or action or, if whole, of other settings or data."""
        if not {"program", "action", "settings"} <= old.keys() or not all(
                isinstance(old.get(name, {}), dict) for name in ("settings", "asked")):
            raise UserError(f"{self.folder}: its config.json is none of a run, or of an older version's; "
                            "choose another --out")
        if (old["program"], old["action"]) != (record["program"], record["action"]):
            made_by = f"{old['program']}.py --{old['action']}"
            raise UserError(f"{self.folder}: holds a run of {made_by}; choose another --out")
        if record["settings"].get("dry_run") and not old["settings"].get("dry_run"):
            raise UserError(f"{self.folder}: holds a real run, and --dry_run would delete it; choose another --out")
        if not whole:
            return
        asked = {**old["settings"], **old.get("asked", {})}
        if old.get("format") != FORMAT or asked.keys() != record["settings"].keys():
            raise UserError(f"{self.folder}: made by another version of this program, which alone can continue it; "
                            "choose another --out (--restart would delete this run)")
        differ = [f"{name} ({asked[name]} there, {value} here)" for name, value in self.ruling.items()
                  if asked[name] != value]
        if differ:
            raise UserError(f"{self.folder}: made with other settings: {'; '.join(differ)}; "
                            "choose another --out, or --restart to begin anew")
        before, now = old.get("read", {}), record["read"]
        changed = [path for path in {**before, **now} if before.get(path) != now.get(path)]
        if changed:
            how = "was not there" if changed[0] not in before else (
                "has changed since" if changed[0] in now else "is not there now")
            raise UserError(f"{self.folder}: begun with other data: {changed[0]} {how}"
                            + (f", and {len(changed) - 1} more" if changed[1:] else "")
                            + "; choose another --out, or --restart to begin anew")

    def _clear(self, others):
        """Delete what runs write (`others`: of this program alone), say what is left. UserError, before anything is
        deleted, where a name of ours is a link: what lies behind it may be somebody else's."""
        paths = [path for name in (*WRITES, *others) for path in self.folder.glob(name)]
        for path in paths:
            if path.is_symlink():
                raise UserError(f"{path}: a link, which --restart does not follow; delete it, or choose another --out")
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        left = sorted(path.name for path in self.folder.iterdir() if path.name != LOCK)
        if left:
            print(f"{self.folder}: left as it is, since no run writes it: {', '.join(left)}", file=sys.stderr)

    def _write(self, name, record):
        with open(self.folder / name, "a", encoding="utf-8", opener=no_link) as file:
            file.write(json.dumps(record) + "\n")

    def log(self, phase, step, every_rank=False, dev=None, **values):
        """One line of log.jsonl, of rank 0 alone but for jobs that ranks do on their own (every_rank). values: of the
        training, named as in LOGGED; dev: {name: number} that held-out rows give, which become dev_NAME."""
        if unknown := values.keys() - LOGGED:
            raise KeyError(f"log.jsonl has no {', '.join(unknown)}: LOGGED and data/README.md list its keys")
        self.new = False
        if self.ranks.main or every_rank:
            found = {f"dev_{name}": value for name, value in (dev or {}).items()}
            self._write("log.jsonl", {"phase": phase, "step": step, **values, **found,
                                      "memory_mb": round(peak_memory(self.ranks.device)),
                                      "seconds": round(time.time() - self.began, 3)})

    def settle(self, cfg):
        """Freeze cfg: now that the data are open, its knobs hold the paths and numbers that they stand for. config.json
        gets these as `settings`, what was asked for in their place as `asked`, and self.facts about the data."""
        freeze(cfg)
        path, settings = self.folder / "config.json", as_json(dataclasses.asdict(cfg))
        if self.ranks.main:
            record = read_json(path, dict)
            for name in [name for name in settings if settings[name] != self.asked[name]]:
                record["settings"][name] = settings[name]
                record.setdefault("asked", {})[name] = self.asked[name]
            write_atomic(path, json.dumps({**record, **self.facts}, indent=2))

    def discard(self):
        """Delete the folder of a run that a mistake ended before it began, so that the mended command just runs."""
        anew = {"corpus", "text", "spiece.model", "vocab.txt", "tokenizer_config.json"}
        made = [path for name in self.content() - anew
                for path in (self.folder / name, *(self.folder / name).rglob("*")) if path.is_file()]
        if self.ranks.main and self.new and not made and not self.folder.is_symlink():
            shutil.rmtree(self.folder)

    @property
    def finished(self):
        """The result of finish(), or None while the run is not finished. UserError where it was changed since."""
        path = self.folder / "done.json"
        return on_main(self.ranks, lambda: read_result(path) if path.exists() else None)

    def ends(self, cfg, best, *words, **same):
        """Print the folder and the best file or files of a finished run, and next(words)."""
        files = [best] if isinstance(best, str) else best
        best = ", ".join(str(self.folder / name) for name in files)
        say(self.ranks, f"{self.folder}: finished (--restart begins anew); best: {best}")
        if words:
            self.next(cfg, *words, **same)

    def next(self, cfg, *words, same=("preset", "task", "device")):
        """Print the command that comes next: these words, and of the flags that were given those
        that are the `same`."""
        for name in [name for name in same if name in cfg.given]:
            value = getattr(cfg, name)
            several = value if isinstance(value, tuple) else () if value is True else (value,)
            words = [*words, f"--{name}", *several]
        if not cfg.dry_run:
            say(self.ranks, f"next: python {cfg.program}.py {shlex.join(map(str, words))}")

    def finish(self, result):
        """Mark the run as finished with its (JSON) result."""
        if self.ranks.main:
            write_result(self.folder / "done.json", result)


class Checkpoint:
    """Saves and restores named objects that have state_dict / load_state_dict, plus small values. save(step=..., ...)
    on every rank (rank 0 writes); restore() returns the values of the last save, {} where there is none. A torn or
    missing newest file falls back to the one before it."""

    def __init__(self, path, ranks, **owned):
        self.path, self.ranks, self.owned = Path(path), ranks, owned

    def save(self, **values):
        def write():
            owned = {name: thing.state_dict() for name, thing in self.owned.items()}
            save_file(self.path, {"values": values, "owned": owned, "run": self.ranks.run})
        with uninterrupted():
            on_main(self.ranks, write)

    def restore(self):
        """The values of the newest save that can be read, after the owned objects have taken their state."""
        if not on_main(self.ranks, lambda: self.path.exists() or previous(self.path).exists()):
            return {}
        name = on_main(self.ranks, lambda: newest(self.path, self.ranks.run)[0])
        state = load_file(name, self.ranks.device)
        try:
            for key, thing in self.owned.items():
                thing.load_state_dict(state["owned"][key])
            return state["values"]
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            reason = (str(error).splitlines() or [""])[0][:100]
            raise UserError(f"{name}: does not fit this run ({type(error).__name__}: {reason}); --restart begins anew"
                            ) from None

    def remove(self):
        """Delete the files (a finished candidate needs none)."""
        if self.ranks.main:
            for path in [self.path, previous(self.path), *partials(self.path.parent, self.path.name)]:
                path.unlink(missing_ok=True)


class LastWeights:
    """The weights of a model at its last `count` saves, files weights-STEP.pt of a folder, and their mean. One more is
    kept: after a kill the checkpoint may be a save behind."""

    def __init__(self, folder, count):
        self.folder, self.count = Path(folder), count

    def files(self):
        return sorted(self.folder.glob("weights-*.pt"), key=lambda path: int(path.stem.split("-")[1]))

    def save(self, step, model):
        save_file(self.folder / f"weights-{step}.pt", model.state_dict())
        for path in self.files()[:-self.count - 1]:
            path.unlink()

    def mean(self):
        """{name: tensor}"""
        first, *others = [load_file(path) for path in self.files()[-self.count:]]
        return {name: sum((other[name] for other in others), value) / (len(others) + 1)
                for name, value in first.items()}

    def remove(self):
        for path in self.files():
            path.unlink(missing_ok=True)
