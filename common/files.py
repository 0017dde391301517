"""Files that are written whole or not at all, JSON, weights, fingerprints, and locks."""
import contextlib
import hashlib
import json
import os
import socket
import warnings
import zipfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

import torch

from common.cli import UserError


@contextlib.contextmanager
def atomic(path):
    """A binary file with a temporary name, synced and renamed to `path` at the end. A reader, or a
    crash, sees the old file or the new one."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path, content):
    """Write a small file, text or bytes."""
    with atomic(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def write_json(path, value):
    """Write a JSON value."""
    write_atomic(path, json.dumps(value, indent=1))


def partials(folder):
    """Temporary files of killed atomic() writes in a folder or below it."""
    return [path for path in Path(folder).rglob("*.partial-*")
            if path.suffix[9:].isdecimal() and path.is_file()]


def existing(path, fix):
    """The path. Raises UserError, with the fix, if there is no file."""
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; {fix}")
    return Path(path)


def read_text(path, fix):
    """The text of a UTF-8 file, without byte-order mark and with "\\n" line ends. Raises UserError,
    with the line, if it is not UTF-8."""
    content = existing(path, fix).read_bytes()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8"
                        ) from None


def parse_json(text, place, fix="correct or delete it"):
    """The object of a JSON text. Raises UserError with the place and the fix."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error}); {fix}") from None
    if not isinstance(value, dict):
        raise UserError(f"{place}: not a JSON object; {fix}")
    return value


def read_json(path, fix="correct or delete it"):
    """parse_json of a file."""
    return parse_json(read_text(path, fix), path, fix)


def read_value(path):
    """A JSON value of any kind, which a run has written."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_jsonl(path):
    """The objects of a .jsonl file, or [] without one. Ignores a last line that a crash cut
    short."""
    if not Path(path).exists():
        return []
    lines = read_text(path, "begin again with --restart").split("\n")[:-1]
    return [parse_json(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def jsonl(lines):
    """The text of a .jsonl file."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def save_file(path, state):
    """torch.save, whole or not at all."""
    try:
        with atomic(path) as file:
            torch.save(state, file)
    except RuntimeError as error:  # torch's error for a full disk
        raise UserError(f"{path}: cannot be written ({error}); "
                        "free disk space, the same command continues") from error


def load_file(path, device="cpu"):
    """torch.load with weights_only=True, so that a checkpoint cannot run code. Raises UserError if
    it is unreadable, or a checksum is wrong (torch writes checksums but does not verify them)."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"the checksum of {damaged} is wrong")
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        reason = f"{type(error).__name__}: {error}"[:100]
        raise UserError(f"{path}: not a readable checkpoint ({reason})") from None


WHOLE = 1 << 30  # bytes of a file whose content is hashed as a whole, at most
PART = 1 << 20  # bytes that are read at once


def fingerprints(paths):
    """A hash of the names, sizes and contents of files, and of the files in folders. Of a file
    above WHOLE bytes, a hash of its modification time and of its first and last part."""
    digest = hashlib.sha256()
    for path in map(Path, paths):
        for file in (path, *sorted(path.rglob("*"))):
            if not file.is_file():
                continue
            status = file.stat()
            size = status.st_size
            digest.update(os.fsencode(f"{file} {size}"))
            starts = range(0, size, PART)
            if size > WHOLE:
                digest.update(str(status.st_mtime_ns).encode())
                starts = (0, max(0, size - PART))
            with open(file, "rb") as content:
                for start in starts:
                    content.seek(start)
                    digest.update(content.read(PART))
    return digest.hexdigest()


_locks = {}  # {path: open file} of this process, whose end releases them


def lock(path):
    """Hold the lock file `path` of a folder until this process ends. Raises UserError with the host
    and process that hold it. On a shared folder it excludes other machines only if the file
    system's flock does."""
    path = Path(path).absolute()
    if path in _locks:
        return
    if not fcntl:
        warnings.warn(f"{path.parent}: this system has no locks of files; start one run per folder")
        return
    file = open(path, "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise UserError(f"{path.parent}: locked by {file.read().strip()}; wait for it, or choose "
                        "another folder") from None
    except OSError as error:
        warnings.warn(f"{path.parent}: this file system has no locks ({error.strerror}); start one "
                      "run per folder")
    file.truncate(0)
    print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
    _locks[path] = file


@contextlib.contextmanager
def waiting_lock(path):
    """A context that one process at a time is in. Others wait."""
    with open(path, "a+") as file:
        if fcntl:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
