"""Fetch the real data sets and published models from their official addresses, check them, and put them into the
layouts that the loaders read.

TABLE has everything that is fetched, with the SHA-256 that each file must have. A file with another is thrown away. A
set appears under its name only when it is complete; until then the same command keeps what had come whole.

    DIR/archives/...                 what was fetched, until its set is complete
    DIR/glue, squad, race, cifar10   the official layouts, with source.json: addresses and digests
    DIR/bert-base, ...               a folder in Hugging Face's layout, for --tokenizer, --init, --teacher
"""
import hashlib
import http.client
import json
import pathlib
import shutil
import socket
import sys
import tarfile
import tempfile
import zipfile
import zlib

import torch

from common.cli import UserError
from common.checkpoint import write_atomic

TIMEOUT = 60  # seconds without a byte
# Digests of glue, squad, race and cifar10: the public records of TensorFlow Datasets and Hugging Face Datasets; of the
# models: their pages, where they are known.
HUB = "https://huggingface.co/{}/resolve/main/"
TABLE = {  # set: (address of its files, [(file there, its SHA-256 or "", its place in the set's folder)])
    "glue": ("https://dl.fbaipublicfiles.com/", [
        ("glue/data/CoLA.zip", "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff", "CoLA"),
        ("glue/data/SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa", "SST-2"),
        ("glue/data/STS-B.zip", "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85", "STS-B"),
        ("glue/data/QQP-clean.zip", "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0", "QQP"),
        ("glue/data/MNLI.zip", "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633", "MNLI"),
        ("glue/data/QNLIv2.zip", "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5", "QNLI"),
        ("glue/data/RTE.zip", "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee", "RTE"),
        ("glue/data/WNLI.zip", "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46", "WNLI"),
        ("glue/data/AX.tsv", "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",
         "diagnostic/diagnostic.tsv")]),
    "squad": ("https://rajpurkar.github.io/SQuAD-explorer/dataset/", [
        ("train-v1.1.json", "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955", ""),
        ("dev-v1.1.json", "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9", ""),
        ("train-v2.0.json", "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002", ""),
        ("dev-v2.0.json", "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8", "")]),
    "race": ("http://www.cs.cmu.edu/~glai1/data/race/", [
        ("RACE.tar.gz", "b2769cc9fdc5c546a693300eb9a966cec6870bd349fbc44ed5225f8ad33006e5", "")]),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/", [
        ("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", "")]),
    "bert-vocab": (HUB.format("google-bert/bert-base-uncased"), [
        ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", "")]),
    "bert-base": (HUB.format("google-bert/bert-base-uncased"), [
        ("config.json", "7160e1553ad2ca51d8c1cb066be533db31826e12d173824c1bb0cb1a4f187d20", ""),
        ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", ""),
        ("model.safetensors", "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3", "")]),
    "electra-base": (HUB.format("google/electra-base-discriminator"), [
        ("config.json", "", ""), ("vocab.txt", "", ""), ("pytorch_model.bin", "", "")]),
    **{f"albert-v2{end}": (HUB.format(f"albert/albert-{size}-v2"), [
        ("config.json", "", ""),
        ("spiece.model", "fefb02b667a6c5c2fe27602d28e5fb3428f66ab89c7d6f388e7c8d44a02d0336", ""),
        ("pytorch_model.bin", "", "")])
       for end, size in (("", "base"), ("-large", "large"), ("-xlarge", "xlarge"), ("-xxlarge", "xxlarge"))},
}
SETS = tuple(TABLE)


# --- transfer and unpacking ------------------------------------------------------------------------------------------
def fetch(url, digest, folder):
    """The path of the file in `folder`, fetched unless it is there, and checked if a digest is on record."""
    path = folder / url.rsplit("/", 1)[-1]
    if not path.exists():
        try:
            torch.hub.download_url_to_file(url, str(path), digest or None, progress=sys.stderr.isatty())
        except (OSError, http.client.HTTPException, RuntimeError) as error:  # RuntimeError: another digest
            raise UserError(f"{url}: {error or type(error).__name__}; check the network and run the same command "
                            "again") from None
    return path


def unpack(path, folder):
    """Unpack an archive into `folder`. Neither kind writes outside of it."""
    try:
        shutil.unpack_archive(path, folder, **({} if path.suffix == ".zip" else {"filter": "data"}))
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: broken archive ({error}); delete the file and run the same command again") from None


def put(path, place):
    """Put a file at its place in a set, of an archive what is in its top folder."""
    if path.suffix not in (".zip", ".gz"):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        unpack(path, scratch)
        for top in pathlib.Path(scratch).iterdir():
            if top.is_dir() and top.name != "__MACOSX":
                shutil.copytree(top, place, copy_function=shutil.move, dirs_exist_ok=True)


# --- sets ------------------------------------------------------------------------------------------------------------
def download(name, folder, table=TABLE):
    """Fetch the set `name` into folder/name and return that path; nothing is done where it is complete.

    UserError: no network, a wrong checksum, a broken archive.
    """
    target, archives = pathlib.Path(folder) / name, pathlib.Path(folder) / "archives" / name
    if (target / "source.json").exists():
        return target
    if target.exists():
        raise UserError(f"{target}: not made by this command; move it away, or choose another folder with --to")
    made = archives / "made"
    shutil.rmtree(made, ignore_errors=True)  # of a process that was killed
    made.mkdir(parents=True)
    socket.setdefaulttimeout(TIMEOUT)
    (base, rows), sources, unknown = table[name], [], []
    for file, digest, place in rows:
        path = fetch(base + file, digest, archives)
        put(path, made / place)
        sources.append({"url": base + file, "digest": digest or hashlib.sha256(path.read_bytes()).hexdigest()})
        unknown += [] if digest else [path.name]
    if unknown:
        print(f"{target}: no digest is on record for {', '.join(unknown)}; compare the one in source.json with the "
              "publisher's")
    write_atomic(made / "source.json", json.dumps({"files": sources}, indent=1))
    made.rename(target)
    shutil.rmtree(archives)
    return target
