"""Fetch the real data sets and published models from their official addresses, check them, and put them into the
layouts that the loaders read.

TABLE has everything that is fetched, and of each file the digest that it must have. A transfer that breaks off is
continued where it stopped, a file whose digest is wrong is thrown away, and a set appears under its name only when it
is complete:

    DIR/archives/...                 what was fetched, until its set is complete
    DIR/glue, squad, race, cifar10   the official layouts, with source.json: addresses and digests
    DIR/bert-base, ...               a folder in Hugging Face's layout, for --tokenizer, --init, --teacher
    DIR/wmt14/train.en, train.de, valid.*, test.*     one sentence a line, aligned
"""
import hashlib
import html
import http.client
import itertools
import json
import pathlib
import re
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from typing import NamedTuple

from tqdm import tqdm

from common.cli import UserError

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte
AGENT = "prepare.py (data and models for research; Python urllib)"


class File(NamedTuple):
    """One file to fetch, and what the table says of it."""
    data_set: str
    url: str
    digest: str  # in hexadecimal: SHA-256 or, of 32 digits, MD5; "" where none is on record
    holds: str  # what its set's finishing function must know

    @property
    def name(self):
        return self.url.rsplit("/", 1)[-1]


# Digests of glue, squad, race, cifar10 and the WMT training archives: the public records of TensorFlow Datasets and
# Hugging Face Datasets; of the WMT test sets: sacreBLEU's; of the models: their pages, where they are known. Every file
# is checked against its digest.
HUB = "https://huggingface.co/{}/resolve/main/"
TABLE = {  # set: (address of its files, [(file there, SHA-256 or MD5 or "", what its set must know)])
    "glue": ("https://dl.fbaipublicfiles.com/", [
        ("glue/data/CoLA.zip", "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff", "CoLA"),
        ("glue/data/SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa", "SST-2"),
        ("senteval/senteval_data/msr_paraphrase_train.txt",
         "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89", "MRPC"),
        ("senteval/senteval_data/msr_paraphrase_test.txt",
         "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784", "MRPC"),
        ("glue/data/mrpc_dev_ids.tsv", "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7", "MRPC"),
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
    "wmt14": ("https://", [
        ("www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
         "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
         "train europarl-v7.de-en.en europarl-v7.de-en.de"),
        ("www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
         "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
         "train commoncrawl.de-en.en commoncrawl.de-en.de"),
        ("data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz",
         "cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
         "train news-commentary-v11.de-en.en news-commentary-v11.de-en.de"),
        ("www.statmt.org/wmt13/test.tgz",
         "48eca5d02f637af44e85186847141f67", "valid newstest2013-src.en.sgm newstest2013-src.de.sgm"),
        ("www.statmt.org/wmt14/test-full.tgz",
         "a8cd784e006feb32ac6f3d9ec7eb389a", "test newstest2014-deen-src.en.sgm newstest2014-deen-ref.de.sgm")]),
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
FILES = tuple(File(name, base + path, *rest) for name, (base, rows) in TABLE.items() for path, *rest in rows)


# --- transfer and unpacking ------------------------------------------------------------------------------------------
def digest_of(path, like=""):
    """The digest of a file, of the kind of the digest `like`."""
    digest = hashlib.new("md5" if len(like) == 32 else "sha256")
    with open(path, "rb") as content:
        for chunk in iter(lambda: content.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(file, folder):
    """Make sure that `file` is in `folder`, whole and checked; returns its path. What an earlier command left of it, a
    .part file, is continued where the server can do that."""
    path = folder / file.name
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    start = part.stat().st_size if part.exists() else 0
    try:
        receive(file.url, part, start)
    except (OSError, http.client.HTTPException) as error:
        if getattr(error, "code", None) == 416:  # nothing comes after `start`: what is here is of another version
            part.unlink()
        raise UserError(f"{file.url}: {error or type(error).__name__}; check the network, the same command goes on "
                        "where the transfer broke off") from None
    found = digest_of(part, file.digest)
    if file.digest not in ("", found):
        part.unlink()
        raise UserError(f"{file.url}: checksum mismatch, {found} instead of {file.digest}; what came was removed, "
                        "run the same command again")
    part.rename(path)
    return path


def receive(url, part, start):
    """Append to the file `part`, which has `start` bytes, what comes after them. OSError where less came than there
    is."""
    request = urllib.request.Request(url, headers={"User-Agent": AGENT, "Range": f"bytes={start}-"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        start *= response.status == 206  # other servers begin at byte 0
        total = start + (response.length or 0)
        with open(part, "ab" if start else "wb") as out, tqdm.wrapattr(
                response, "read", total or None, initial=start, desc=part.stem, leave=False, disable=None) as source:
            shutil.copyfileobj(source, out, CHUNK)
    if part.stat().st_size < total:
        raise ConnectionError(f"{part.stat().st_size:,} of {total:,} bytes came")


def unpack(path, folder):
    """Unpack an archive into `folder`. Neither kind writes outside of it."""
    try:
        shutil.unpack_archive(path, folder, **({} if path.suffix == ".zip" else {"filter": "data"}))
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: broken archive ({error}); delete the file and run the same command again") from None


def unpack_inside(path, folder):
    """Unpack an archive into `folder`, without the archive's own top folder."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unpack(path, scratch)
        for top in pathlib.Path(scratch).iterdir():
            if top.is_dir() and top.name != "__MACOSX":
                shutil.copytree(top, folder, copy_function=shutil.move, dirs_exist_ok=True)


# --- what a set is made of -------------------------------------------------------------------------------------------
def make_mrpc(paths, folder):
    """GLUE's train.tsv, dev.tsv and test.tsv of MRPC from Microsoft's two text files and GLUE's list of the dev
    pairs."""
    texts = [path.read_bytes().decode("utf-8-sig") for path in paths]
    train, test, dev_ids = [[line.rstrip("\r").split("\t") for line in text.split("\n") if line] for text in texts]
    in_dev = {tuple(ids[:2]) for ids in dev_ids}
    rows = {"train": [row for row in train[1:] if tuple(row[1:3]) not in in_dev],
            "dev": [row for row in train[1:] if tuple(row[1:3]) in in_dev],
            "test": [[str(index), *row[1:]] for index, row in enumerate(test[1:])]}
    header = ["#1 ID", "#2 ID", "#1 String", "#2 String"]
    folder.mkdir()
    for part, lines in rows.items():
        first = ["index" if part == "test" else "Quality", *header]
        text = "".join("\t".join(line) + "\n" for line in [first, *lines])
        (folder / f"{part}.tsv").write_bytes(text.encode())
    return {f"MRPC {part}": len(lines) for part, lines in rows.items()}


def finish_files(fetched, folder):
    """Each file, or what is in an archive, at the place that its row names."""
    for file, path in fetched.items():
        target = folder / file.holds
        if path.suffix in (".zip", ".gz"):
            unpack_inside(path, target)
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
    return {}


def finish_glue(fetched, folder):
    """One folder a task, as GLUE's own downloads have them."""
    raw = [path for file, path in fetched.items() if file.holds == "MRPC"]
    finish_files({file: path for file, path in fetched.items() if path not in raw}, folder)
    return make_mrpc(raw, folder / "MRPC")


def segments(path):
    """The lines of a plain text file, or the segments of one in the SGML of the WMT test sets, as one-line strings."""
    if path.suffix == ".sgm":
        text = path.read_text(encoding="utf-8")
        for segment in re.findall(r"<seg[^>]*>(.*?)</seg>", text, re.DOTALL | re.IGNORECASE):
            yield " ".join(html.unescape(segment).split())
    else:
        with open(path, encoding="utf-8", newline="\n") as lines:  # only \n ends a line: Europarl has stray \r
            for line in lines:
                yield " ".join(line.split())


def append_pairs(english, german, prefix):
    """Append two aligned files to prefix.en and prefix.de; returns (pairs written, pairs dropped because a side was
    empty)."""
    counts = [0, 0]
    with open(f"{prefix}.en", "ab") as out_en, open(f"{prefix}.de", "ab") as out_de:
        pairs = itertools.zip_longest(segments(english), segments(german))
        for left, right in tqdm(pairs, desc=english.name, unit=" pairs", unit_scale=True, leave=False, disable=None):
            if left is None or right is None:
                raise UserError(f"{english}: {english.name} and {german.name} differ in their number of lines; delete "
                                "the archive and fetch it again")
            counts[not (left and right)] += 1
            if left and right:
                out_en.write(left.encode() + b"\n")
                out_de.write(right.encode() + b"\n")
    return counts


def finish_wmt14(fetched, folder):
    """train.*, valid.* and test.* with one sentence a line; pairs with an empty side are dropped and counted."""
    counts = {}
    for file, path in fetched.items():
        part, *names = file.holds.split()
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpack(path, scratch)
            found = {inside.name: inside for inside in pathlib.Path(scratch).rglob("*")}
            if missing := [name for name in names if name not in found]:
                raise UserError(f"{path}: the archive lacks {', '.join(missing)}; delete the file and fetch it again")
            kept, dropped = append_pairs(*(found[name] for name in names), folder / part)
        counts[f"{part} {file.name}"] = {"pairs": kept, "dropped": dropped}
    return counts


FINISH = {"glue": finish_glue, "wmt14": finish_wmt14}  # of all others finish_files


# --- sets ------------------------------------------------------------------------------------------------------------
def download(name, folder, files=FILES):
    """Fetch the set `name` into folder/name and return that path; nothing is done where it is complete.

    files: the table to read, for tests and mirrors. UserError: no network, a wrong checksum, a broken archive.
    """
    target, archives = pathlib.Path(folder) / name, pathlib.Path(folder) / "archives" / name
    if (target / "source.json").exists():
        return target
    if target.exists():
        raise UserError(f"{target}: not made by this command; move it away, or choose another folder with --to")
    archives.mkdir(parents=True, exist_ok=True)
    fetched = {file: fetch(file, archives) for file in files if file.data_set == name}
    made = target.with_name(f"{name}.part")
    shutil.rmtree(made, ignore_errors=True)  # of a process that was killed
    made.mkdir()
    try:
        counts = FINISH.get(name, finish_files)(fetched, made)
        rows = [{**file._asdict(), "digest": file.digest or digest_of(path)} for file, path in fetched.items()]
        about = {"files": rows, "counts": counts}
        if unknown := [file.name for file in fetched if not file.digest]:
            print(f"{target}: no digest is on record for {', '.join(unknown)}; compare the one in source.json with the "
                  "publisher's")
        (made / "source.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(archives)
    return target
