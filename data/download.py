"""What is fetched: the real data sets and published models from their official addresses, and text
of the Hugging Face Hub.

TABLE has everything that download() fetches, with the SHA-256 that each file must have; a file with
another is deleted. A set appears under its name only when it is complete. Until then the same
command keeps the files that are complete.

    DIR/archives/...                 fetched files, until their set is complete
    DIR/glue, squad, race, cifar10   the official layouts, with source.json: addresses and digests
    DIR/bert-base, ...               a folder in Hugging Face's layout, for --tokenizer, --init, ...

fetch_text() streams text of the Hub, or of local parquet and JSON-lines files, into text files for
data/text.py. It needs the package `datasets`.
"""
import hashlib
import http.client
import shutil
import socket
import sys
import tarfile
import tempfile
import zipfile
import zlib
from itertools import chain
from pathlib import Path

import torch
from tqdm import tqdm

from common.cli import UserError
from common.checkpoint import atomic, first_line, partials, read_json, write_json
from data.text import SAMPLE, Layout, find_layout, read_documents, text_blocks

# Digests: of glue, squad, race and cifar10 from the public records of TensorFlow Datasets and
# Hugging Face Datasets; of the models from their pages, "" where none is on record.
BERT = "https://huggingface.co/google-bert/bert-base-uncased/resolve/main/"
ELECTRA = "https://huggingface.co/google/electra-base-discriminator/resolve/main/"
ALBERT = "https://huggingface.co/albert/albert-{}-v2/resolve/main/"
BERT_VOCABULARY = "vocab.txt 07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
ALBERT_FILES = """
config.json
spiece.model             fefb02b667a6c5c2fe27602d28e5fb3428f66ab89c7d6f388e7c8d44a02d0336
pytorch_model.bin
"""
TABLE = {  # set: (address of its files, lines of: file there, its SHA-256, its place in the folder)
    "glue": ("https://dl.fbaipublicfiles.com/", """
glue/data/CoLA.zip       f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff CoLA
glue/data/SST-2.zip      d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa SST-2
glue/data/STS-B.zip      e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85 STS-B
glue/data/QQP-clean.zip  40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0 QQP
glue/data/MNLI.zip       e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633 MNLI
glue/data/QNLIv2.zip     e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5 QNLI
glue/data/RTE.zip        6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee RTE
glue/data/WNLI.zip       ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46 WNLI
glue/data/AX.tsv         0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd \
diagnostic/diagnostic.tsv
"""),
    "squad": ("https://rajpurkar.github.io/SQuAD-explorer/dataset/", """
train-v1.1.json          3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
dev-v1.1.json            95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
train-v2.0.json          68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002
dev-v2.0.json            80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8
"""),
    "race": ("http://www.cs.cmu.edu/~glai1/data/race/", """
RACE.tar.gz              b2769cc9fdc5c546a693300eb9a966cec6870bd349fbc44ed5225f8ad33006e5
"""),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/", """
cifar-10-binary.tar.gz   c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
"""),
    "bert-vocab": (BERT, BERT_VOCABULARY),
    "bert-base": (BERT, BERT_VOCABULARY + """
config.json              7160e1553ad2ca51d8c1cb066be533db31826e12d173824c1bb0cb1a4f187d20
model.safetensors        68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3
"""),
    "electra-base": (ELECTRA, "config.json\nvocab.txt\npytorch_model.bin"),
    "albert-v2": (ALBERT.format("base"), ALBERT_FILES),
    "albert-v2-large": (ALBERT.format("large"), ALBERT_FILES),
    "albert-v2-xlarge": (ALBERT.format("xlarge"), ALBERT_FILES),
    "albert-v2-xxlarge": (ALBERT.format("xxlarge"), ALBERT_FILES),
}


# --- sets and models -----------------------------------------------------------------------------

def fetch(url, digest, folder):
    """The path of the file in `folder`, fetched unless it is there, and checked if a digest is on
    record."""
    path = folder / url.rpartition("/")[-1]
    if not path.exists():
        progress = sys.stderr.isatty()
        try:
            torch.hub.download_url_to_file(url, str(path), digest or None, progress)
        except (OSError, http.client.HTTPException, RuntimeError) as error:  # or another digest
            raise UserError(f"{url}: {error or type(error).__name__}; check the network and run "
                            "the same command again") from None
    return path


def unpack(path, folder):
    """Unpack an archive into `folder`. Neither kind writes outside of it."""
    options = {} if path.suffix == ".zip" else {"filter": "data"}
    try:
        shutil.unpack_archive(path, folder, **options)
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: broken archive ({error}); delete the file and run the same "
                        "command again") from None


def put(path, place):
    """Copy a file to its place in a set; of an archive the content of its top folder."""
    if path.suffix not in (".zip", ".gz"):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        unpack(path, scratch)
        for top in Path(scratch).iterdir():
            if top.is_dir() and top.name != "__MACOSX":
                shutil.copytree(top, place, copy_function=shutil.move, dirs_exist_ok=True)


def download(name, folder, table=TABLE):
    """Fetch the set `name` into folder/name, unless it is complete, and return that path."""
    target = Path(folder) / name
    archives = Path(folder) / "archives" / name
    if (target / "source.json").exists():
        return target
    if target.exists():
        raise UserError(f"{target}: not made by this command; choose another --to")
    made = archives / "made"
    shutil.rmtree(made, ignore_errors=True)  # of a process that was killed
    made.mkdir(parents=True)
    socket.setdefaulttimeout(60)  # seconds without a byte
    address, lines = table[name]
    sources = []
    for line in lines.strip().splitlines():
        file, digest, place = [*line.split(), "", ""][:3]
        path = fetch(address + file, digest, archives)
        put(path, made / place)
        if not digest:
            print(f"{path.name}: no digest is on record; compare the one in source.json with the "
                  "publisher's")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sources.append({"url": address + file, "digest": digest})
    write_json(made / "source.json", {"files": sources})
    made.rename(target)
    shutil.rmtree(archives)
    return target


# --- text of the Hugging Face Hub ----------------------------------------------------------------

READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}  # of local files


def local_files(path):
    """(reader, files) of a file or folder on this machine."""
    files = path.rglob("*") if path.is_dir() else [path]
    files = sorted(file for file in files if file.suffix in READERS)
    readers = {READERS[file.suffix] for file in files}
    if len(readers) != 1:
        raise UserError(f"{path}: neither parquet nor JSON-lines files; name one kind")
    return readers.pop(), [str(file) for file in files]


def open_rows(source, config, split):
    """The rows of a set, as an IterableDataset."""
    try:
        import datasets
    except ImportError:
        raise UserError("hub: this needs the package datasets: pip install datasets") from None
    files = None
    if Path(source).exists():
        source, files = local_files(Path(source))
    return datasets.load_dataset(
        source, config or None, data_files=files, split=split, streaming=True)


def sentences_of(text):
    """The sentences of one document. Lines that were wrapped at a width are joined first."""
    text = text.replace("\0", "")
    several_lines = max(map(len, text_blocks(text)), default=0) > 1
    wrapped = several_lines and find_layout(text[:SAMPLE]).wrapped
    return list(chain.from_iterable(read_documents(text, Layout(wrapped, True, False))))


def write_shard(rows, column, path, bar):
    """Write the text of some rows as the file `path`; rows without text are left out."""
    with atomic(path) as file:
        for row in rows:
            if column not in row:
                raise UserError(f"--column {column}: no such column; one of {', '.join(row)}")
            sentences = sentences_of(row[column] or "")
            if sentences:
                file.write("\n".join([*sentences, "", ""]).encode(errors="replace"))
                bar.update()


def fetch_text(source, config, folder, column="text", split="train"):
    """Write the text of a set into `folder`; returns the paths.

    source: the name of a set on the Hub, or a file or folder on this machine; config: which part
    of a set of the Hub. Every shard of the set becomes a file: one sentence per line, a blank line
    between documents. The rows are streamed, so neither memory nor disk holds the set. A file gets
    its name when it is complete, so a command that was killed continues with the shard it was at.
    """
    folder = Path(folder)
    known = folder / "hub.json"
    if not known.exists() and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: not empty, and not made by this command; choose another --to")
    try:
        rows = open_rows(source, config, split)
        about = {"source": str(source), "config": config, "column": column, "split": split,
                 "shards": rows.num_shards}
        if known.exists() and read_json(known) != about:
            raise UserError(f"{folder}: made from another set; choose another --to")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(known, about)
        for partial in partials(folder, "*.txt"):  # of a process that was killed
            partial.unlink()
        paths = [folder / f"{number:05}.txt" for number in range(rows.num_shards)]
        with tqdm(desc=folder.name, unit=" documents", disable=None) as bar:
            for number, path in enumerate(paths):
                if not path.exists():
                    write_shard(rows.shard(rows.num_shards, number), column, path, bar)
    except UserError:
        raise
    except Exception as error:  # of many kinds: no such set or part, no network, a broken file
        raise UserError(f"{source}: {type(error).__name__}: {first_line(error)}; check the name, "
                        "the part, --split and the network; the same command continues") from None
    return paths
