"""Text files that a long extraction writes, so that it can be stopped at any moment and go on.

    FOLDER/STEM-0000.txt, ...   100 MB each; the one being written ends in .part
    FOLDER/extract.json         how far they are right, what has been read, the counts

    out = TextFiles(folder, "wiki", sources)
    with out:
        for text, counts in jobs[out.state["done"]:]:
            out.add(text, counts)
        out.finish()
"""
import hashlib
import json
import os
from collections import Counter
from pathlib import Path

from common.cli import UserError
from common.files import read_json, write_atomic

FILE_BYTES = 100_000_000  # of a text file


class TextFiles:
    """state: "source" and "done" jobs of it that are written, "file" and "bytes" where the text ends, "finished",
    "counts"; own entries may be added."""

    def __init__(self, folder, stem, sources):
        self.folder, self.stem, self.path, self.open_file = Path(folder), stem, Path(folder) / "extract.json", None
        listed = json.dumps([[path.name, path.stat().st_size] for path in sources])
        about = {"format": 1, "sources": len(sources), "fingerprint": hashlib.sha256(listed.encode()).hexdigest()}
        if self.path.exists():
            self.state = read_json(self.path)
            if not about.items() <= self.state.items():
                raise UserError(f"{folder}: its text was made from other files; choose another folder with --to")
        else:
            if self.folder.exists() and any(self.folder.iterdir()):
                raise UserError(f"{folder}: not empty, and not made by this command; choose another folder with --to")
            self.state = {**about, "source": 0, "done": 0, "file": 0, "bytes": 0, "finished": False, "counts": {}}
            self.folder.mkdir(parents=True, exist_ok=True)
            self.save()
        self.counts = Counter(self.state["counts"])

    @property
    def part(self):
        return self.folder / f"{self.stem}-{self.state['file']:04}.txt.part"

    def save(self):
        write_atomic(self.path, json.dumps(self.state, indent=1))

    def __enter__(self):
        """Open the file being written, cut to what extract.json vouches for."""
        if self.part.with_suffix("").exists():  # stopped after it was full, before extract.json said so
            os.replace(self.part.with_suffix(""), self.part)
        self.open_file = open(self.part, "ab")
        self.open_file.truncate(self.state["bytes"])
        return self

    def __exit__(self, *_):
        self.open_file.close()

    def close_file(self):
        """Give the file its name; the next one begins."""
        self.open_file.close()
        if self.state["bytes"]:
            os.replace(self.part, self.part.with_suffix(""))
        else:
            self.part.unlink()
        self.state |= {"file": self.state["file"] + 1, "bytes": 0}

    def add(self, text, counts, **own):
        """Write the text of one job; it is on the disk before extract.json says so. own: further entries of state."""
        data = text.encode()
        self.open_file.write(data)
        self.open_file.flush()
        os.fsync(self.open_file.fileno())
        self.counts.update(counts)
        self.state |= {"done": self.state["done"] + 1, "bytes": self.state["bytes"] + len(data),
                       "counts": dict(self.counts), **own}
        if self.state["bytes"] >= FILE_BYTES:
            self.close_file()
            self.__enter__()
        self.save()

    def next_source(self):
        self.state |= {"source": self.state["source"] + 1, "done": 0}
        self.save()

    def finish(self):
        self.close_file()
        self.state["finished"] = True
        self.save()
