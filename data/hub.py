"""Text of the Hugging Face Hub, or of parquet and JSON-lines files on this machine -> text files for data/text.py.

    fetch_text("wikimedia/wikipedia", "20231101.en", "texts/wiki")    # -> texts/wiki/00000.txt, ..., hub.json

Every shard of the set (on the Hub one of its files) becomes one text file: a sentence a line, a blank line between
documents. Rows are streamed, so neither memory nor disk holds the set, and a file gets its name when it is whole. So a
command that was killed goes on with the shard that it was at, and writes the same bytes. The package `datasets` reads.
"""
import json
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from common.cli import UserError
from common.checkpoint import atomic, partials, read_json, write_atomic
from data.text import SAMPLE, Layout, find_layout, read_documents, text_blocks

READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}  # of local files, by their endings


def open_rows(source, config, split):
    """The rows of a set, as an IterableDataset. UserError where there is none, or where `datasets` is missing."""
    try:
        import datasets
    except ImportError:
        raise UserError("hub: this needs the package datasets: pip install datasets") from None
    path, files = Path(source), None
    if path.exists():
        files = sorted(file for file in (path.rglob("*") if path.is_dir() else [path]) if file.suffix in READERS)
        readers = {READERS[file.suffix] for file in files}
        if len(readers) != 1:
            raise UserError(f"{source}: name a .parquet or a .jsonl file, or a folder that holds one of the two kinds")
        source, files = readers.pop(), list(map(str, files))
    try:
        return datasets.load_dataset(source, config or None, data_files=files, split=split, streaming=True)
    except Exception as error:  # its kinds are many: no such set, no such part, no network, a broken file
        raise UserError(f"{path}: {reason(error)}; check the name, its part, --split and the network") from None


def reason(error):
    """The first line of what `datasets` says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def sentences_of(text):
    """The sentences of one document. Lines that were wrapped at a width are joined first."""
    text = text.replace("\0", "")
    wrapped = max(map(len, text_blocks(text)), default=0) > 1 and find_layout(text[:SAMPLE]).wrapped
    return list(chain.from_iterable(read_documents(text, Layout(wrapped, split=True, blank_ends=False))))


def write_shard(rows, column, path, bar):
    """Write the text of some rows as the file `path`; rows without text are left out."""
    with atomic(path) as file:
        for row in rows:
            if column not in row:
                raise UserError(f"--column {column}: the set has no such column; choose from {', '.join(row)}")
            if isinstance(row[column], str) and (found := sentences_of(row[column])):
                file.write(("\n".join(found) + "\n\n").encode(errors="replace"))
                bar.update()


def fetch_text(source, config, folder, column="text", split="train"):
    """Write the text of a set into `folder`, a file a shard; returns the paths.

    source: the name of a set on the Hub, or a file or folder on this machine; config: which part of a set of the Hub.
    UserError: no such set, split or column, a folder with something else in it.
    """
    folder = Path(folder)
    about = {"source": str(source), "config": config, "column": column, "split": split}
    known = read_json(folder / "hub.json", dict) if (folder / "hub.json").exists() else {}
    if not known and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: not empty, and not made by this command; choose another folder with --to")
    rows = open_rows(source, config, split)
    about["shards"] = rows.num_shards
    if known not in ({}, about):
        raise UserError(f"{folder}: its text was made from something else ({known}); choose another folder with --to")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "hub.json", json.dumps(about, indent=1))
    for torn in partials(folder, "*.txt"):  # of a process that was killed
        torn.unlink()
    paths = [folder / f"{number:05}.txt" for number in range(rows.num_shards)]
    with tqdm(desc=folder.name, unit=" documents", disable=None) as bar:
        for number, path in enumerate(paths):
            try:
                if not path.exists():
                    write_shard(rows.shard(rows.num_shards, number), column, path, bar)
            except UserError:
                raise
            except Exception as error:  # a connection that breaks, a file that is cut short
                raise UserError(f"{source}, shard {number}: {reason(error)}; the same command goes on there") from None
    return paths
