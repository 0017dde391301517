"""Files that are there whole or not at all, and readers that name what is wrong with a file in one line."""
import contextlib
import json
import os
import sys
from pathlib import Path

import torch

from common.cli import UserError


@contextlib.contextmanager
def atomic(path):
    """A binary file under a temporary name, synced and renamed to `path` at the end: a reader or a crash sees the old
    file or the new one, never half of it."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path, text):
    """Write a small text file, whole or not at all."""
    with atomic(path) as file:
        file.write(text.encode())


def read_json(path):
    """The object in a .json file; UserError where it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError):
        raise UserError(f"{path}: damaged, no JSON; delete the folder or choose another --out") from None


def read_jsonl(path):
    """The objects of a .jsonl file, [] where there is none; a last line that a crash tore off is left out. UserError
    names a line that is none."""
    lines, records = Path(path).read_text(encoding="utf-8").split("\n") if Path(path).exists() else [""], []
    for number, line in enumerate(lines[:-1], 1):
        try:
            records += [json.loads(line)] if line else []
        except ValueError:
            raise UserError(f"{path}, line {number}: no JSON; delete the line, or begin anew with --restart") from None
    return records


def save_file(path, state):
    """torch.save, whole or not at all; the file that stood there before is kept as NAME.previous."""
    path = Path(path)
    try:
        with atomic(path) as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                os.replace(path, path.with_name(path.name + ".previous"))
    except RuntimeError as error:  # torch reports a full disk as a RuntimeError of its zip writer
        raise UserError(f"{path}: cannot be written ({str(error).splitlines()[0]}); "
                        "free disk space, the same command continues") from error


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


def load_newest(path, device="cpu"):
    """load_file of a checkpoint, or of the one before it where the newest is missing or torn."""
    path = Path(path)
    previous = path.with_name(path.name + ".previous")
    try:
        return load_file(path, device)
    except UserError as error:
        if not previous.exists():
            raise
        print(f"warning: {error}; taking the checkpoint before it", file=sys.stderr)
        return load_file(previous, device)
