"""Files that are there whole or not at all, and readers that name what is wrong with a file in one line."""
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import sys
import zipfile
from pathlib import Path

import torch

from common.cli import MissingFile, UserError


@contextlib.contextmanager
def atomic(path, keep=False):
    """A binary file under a temporary name, synced and renamed to `path` at the end: a reader or a crash sees the old
    file or the new one, never half of it. keep: what stood there before stays as NAME.previous."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep and path.exists():
            os.replace(path, previous(path))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path, content):
    """Write a small file, text or bytes, whole or not at all."""
    with atomic(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def existing(path, mend):
    """The path; MissingFile, with the mend, where no file is there."""
    if not Path(path).exists() or Path(path).is_dir():
        raise MissingFile(f"{path}: no such file; {mend}")
    return Path(path)


def partials(folder, name="*"):
    """What killed writes of atomic() left in a folder. Files of others that are only named alike are not among them."""
    return [path for path in Path(folder).glob(f"{name}.partial-*")
            if re.fullmatch(r".*\.partial-\d+", path.name) and path.is_file() and not path.is_symlink()]


def no_link(path, flags):
    """An opener for files that grow: a link is never followed, for what it points to is not ours. Raises UserError."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path}: a link, and nothing is written through links; delete it or choose another --out"
                        ) from None


def read_text(path, mend):
    """The text of a UTF-8 file without its byte-order mark; "\\r\\n" becomes "\\n". UserError where there is no file,
    with the mend, or where it is no UTF-8, with the line."""
    try:
        content = existing(path, mend).read_bytes()
        if b"\0" in content:
            raise UserError(f"{path}: UTF-16 or binary, since it has zero bytes; save the file as UTF-8 text")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
    return text.replace("\r\n", "\n")


def parse_json(text, place, kind=object, mend="fetch it again"):
    """The value of a JSON text, of a kind (dict, list). UserError, with its place and the mend, where it is none, is
    nested too deeply, or holds half a surrogate pair, which would break whoever writes it."""
    try:
        value = json.loads(text)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) and "\n" in text.strip() else ""
        reason = getattr(error, "msg", None) or str(error).partition(";")[0]
        raise UserError(f"{place}{line}: no JSON ({reason}); {mend}") from None
    if not isinstance(value, kind):
        raise UserError(f"{place}: no JSON {'object' if kind is dict else kind.__name__}; {mend}")
    return value


def read_json(path, kind=object, mend="correct or delete it"):
    """parse_json of a file."""
    return parse_json(read_text(path, mend), path, kind, mend)


def digest(value):
    """A hash of a JSON value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def write_result(path, result):
    """Write a JSON object that a resumed run builds on, with its digest."""
    result = json.loads(json.dumps(result))
    write_atomic(path, json.dumps({**result, "digest": digest(result)}, indent=1))


def read_result(path):
    """What write_result() wrote. UserError where it was changed since."""
    mend = "delete it, the same command makes it anew"
    result = read_json(path, dict, mend)
    if result.pop("digest", None) != digest(result):
        raise UserError(f"{path}: damaged, or changed by hand; {mend}")
    return result


def read_jsonl(path):
    """The objects of a .jsonl file, [] where there is none; a last line that a crash tore off is left out. UserError
    names a line that is none, or no object."""
    mend = "a run cannot go on from it; begin anew with --restart, or choose another --out"
    lines = read_text(path, mend).split("\n") if Path(path).exists() else [""]
    return [parse_json(line, f"{path}, line {number}", dict, mend) for number, line in enumerate(lines[:-1], 1) if line]


def previous(path):
    """Where save_file keeps the checkpoint before the newest."""
    return Path(f"{path}.previous")


def save_file(path, state):
    """torch.save, whole or not at all; the file that stood there before is kept as NAME.previous."""
    try:
        with atomic(path, keep=True) as file:
            torch.save(state, file)
    except RuntimeError as error:  # torch reports a full disk as a RuntimeError of its zip writer
        raise UserError(f"{path}: cannot be written ({str(error).splitlines()[0]}); "
                        "free disk space, the same command continues") from error


def load_file(path, device="cpu"):
    """torch.load with weights_only=True: a checkpoint from a stranger cannot run code. UserError where it cannot be
    read, or where a bit of it has flipped: torch writes checksums and does not look at them."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"the checksum of {damaged} does not fit")
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a torn or foreign file
        raise UserError(f"{path}: no readable checkpoint ({type(error).__name__}: "
                        f"{(str(error).splitlines() or [''])[0][:100]})") from None


def newest(path, run=None):
    """(path, content) of a checkpoint, or of the one before it where the newest is missing, torn, or not of this
    `run`."""
    places = [place for place in (Path(path), previous(path)) if place.exists()]
    for place in places:
        try:
            state = load_file(place)
            if run is None or isinstance(state, dict) and state.get("run") == run:
                return str(place), state
            raise UserError(f"{place}: a checkpoint of another run")
        except UserError as error:
            if place == places[-1]:
                raise UserError(f"{error}; --restart begins its run anew") from None
            print(f"warning: {error}; trying the checkpoint before it", file=sys.stderr)


_locks = {}  # {path: open file}, of this process


def lock(path, wait=False, what="the run"):
    """Hold the lock file `path` until release_locks() or the end of this process, however it comes. UserError names the
    host and the process that hold it; with wait they are waited for. On a shared folder it reaches as far as the file
    system's flock does: where that is local to each machine, both get the lock, and neither can tell."""
    path = Path(path).absolute()
    if path in _locks:
        return
    file = open(path, "a+", encoding="utf-8", opener=no_link)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "another process"
        if not wait:
            file.close()
            raise UserError(f"{path.parent}: {what} is in the hands of {owner}; wait for it, or choose another --out"
                            ) from None
        print(f"waiting for {what}, which is in the hands of {owner}", file=sys.stderr, flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        print(f"warning: {path.parent}: this file system has no locks ({error.strerror}); start one run a folder",
              file=sys.stderr)
    file.truncate(0)
    print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
    _locks[path] = file


def release_locks(*paths):
    """Give back these locks, or all."""
    for path in [Path(path).absolute() for path in paths] or list(_locks):
        if path in _locks:
            file = _locks.pop(path)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_UN)  # a worker that was forked meanwhile may still hold the file open
            file.close()


def fingerprint(path, part=1 << 16, whole=1 << 25):
    """A hash of a file's size and content: of up to `whole` bytes all, of a larger file `part` bytes at its beginning,
    middle and end. It is the same for a copy."""
    size = os.path.getsize(path)
    found = hashlib.blake2b(str(size).encode(), digest_size=16)
    with open(path, "rb") as file:
        if size <= whole:
            found.update(file.read())
        else:
            for place in (0, size // 2 - part // 2, size - part):
                file.seek(place)
                found.update(file.read(part))
    return found.hexdigest()


def fingerprints(paths, without=None):
    """{path: fingerprint} of files and of what is in folders, at any depth, but for the folder `without`, to which the
    run itself writes; of more than 500 files one for all."""
    files, without = [], without and Path(without).resolve()
    for path in map(Path, paths):
        files += sorted(inside for inside in path.rglob("*") if inside.is_file()) if path.is_dir() else [path]
    found = {str(path): fingerprint(path) for path in files
             if path.exists() and without not in path.resolve().parents}
    if len(found) <= 500:
        return found
    return {f"{len(found)} files from {next(iter(found))} on": digest(found)}
