"""What others publish and change: Wikipedia's dumps, and vocabularies and models in Hugging Face's layout.

    download_dump("downloads/", language="en", date="20260101")    -> downloads/wikipedia/enwiki-20260101/
    download_model("bert-base", "downloads/")    -> downloads/bert-base/, for --tokenizer, --init, --teacher

A dump's checksums are read from the file that the mirror keeps beside it. Of a model's files the digests that are on
record are in MODELS; of the others the one computed after the first download is kept in source.json, which says so, and
the same command compares what is there with it. Where a machine has no network, the files can be put in place by hand:
the error lists them.
"""
import json
import re
import time
from pathlib import Path

from common.cli import UserError
from common.files import read_json, write_atomic
from data.download import File, connect, digest_of, fetch

WIKIMEDIA = "https://dumps.wikimedia.org"  # official mirrors have the same layout: dumps.wikimedia.org/mirrors.html
HUB = "https://huggingface.co"
BERT_VOCAB = (231_508, "sha256:07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3")
ALBERT_VOCAB = (760_289, "sha256:fefb02b667a6c5c2fe27602d28e5fb3428f66ab89c7d6f388e7c8d44a02d0336")
UNKNOWN = (0, "")  # size and digest are not on record
# {name: (repository, {file: (bytes, digest)})}
MODELS = {
    "bert-vocab": ("google-bert/bert-base-uncased", {"vocab.txt": BERT_VOCAB}),
    "bert-base": ("google-bert/bert-base-uncased", {
        "config.json": (570, "sha256:7160e1553ad2ca51d8c1cb066be533db31826e12d173824c1bb0cb1a4f187d20"),
        "vocab.txt": BERT_VOCAB, "model.safetensors": (
            440_449_768, "sha256:68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3")}),
    "electra-base": ("google/electra-base-discriminator", {
        "config.json": UNKNOWN, "vocab.txt": UNKNOWN, "pytorch_model.bin": UNKNOWN}),
    **{f"albert-v2{end}": (f"albert/albert-{size}-v2", {
        "config.json": UNKNOWN, "spiece.model": ALBERT_VOCAB, "pytorch_model.bin": UNKNOWN})
       for end, size in (("", "base"), ("-large", "large"), ("-xlarge", "xlarge"), ("-xxlarge", "xxlarge"))},
}


def check(path, digest):
    """UserError where a file is not what its digest says."""
    found = digest_of(path, digest.partition(":")[0])
    if found != digest:
        raise UserError(f"{path}: checksum mismatch, {found} instead of {digest}; delete the file and run the same "
                        "command again")


def by_hand(error, files, target):
    """The error of a machine that cannot reach a server, after the list of the files to fetch elsewhere."""
    print(f"These files can be fetched elsewhere and put into {target}; then give the same command again:")
    for file in files:
        size = f"  {file.size:,} bytes" if file.size else ""
        print(f"  {file.url}{size}{f'  {file.digest}' if file.digest else ''}")
    return error


def get(files, target):
    """Fetch files into `target`, each checked where its digest is known, one that is there already too; returns
    [(path, digest)]. Without a network the list of what to fetch by hand is printed."""
    target.mkdir(parents=True, exist_ok=True)
    found = []
    for file in files:
        path = target / file.name
        there = path.exists()
        if not there:
            try:
                fetch(file, target)
            except UserError as error:
                raise by_hand(error, files, target) from None
        if there and file.digest:
            check(path, file.digest)
        found.append((path, file.digest or digest_of(path, "sha256")))
    return found


def keep(target, files, found):
    """Write source.json: where each file came from, its digest, and whether that was on record before."""
    day = time.strftime("%Y-%m-%d")
    rows = [{"url": file.url, "bytes": path.stat().st_size, "digest": digest,
             "digest_from": "on record" if file.digest else f"computed at the first download, {day}"}
            for file, (path, digest) in zip(files, found)]
    write_atomic(target / "source.json", json.dumps({"files": rows}, indent=1) + "\n")


def download_model(name, folder, hub=HUB):
    """Fetch one of MODELS into folder/name and return that path. What is there is compared with source.json."""
    repository, wanted = MODELS[name]
    target = Path(folder) / name
    recorded = {}
    if (target / "source.json").exists():
        recorded = {row["url"].rsplit("/", 1)[-1]: row["digest"] for row in read_json(target / "source.json")["files"]}
    files = [File(name, f"{hub}/{repository}/resolve/main/{file}", size, recorded.get(file, digest), "")
             for file, (size, digest) in wanted.items()]
    found = get(files, target)
    if not recorded:
        keep(target, files, found)
        unknown = [file.name for file in files if not file.digest]
        if unknown:
            print(f"{target}: no official checksum is on record for {', '.join(unknown)}; the digests of what came are "
                  "kept in source.json, compare them with the publisher's")
    return target


def checksums(url, path):
    """{file name: SHA-1} of a mirror's checksum file, kept at `path` (or put there by hand)."""
    if not path.exists():
        with connect(url, 0) as response:
            path.write_bytes(response.read())
    found = re.findall(r"^([0-9a-f]{40}) [ *](\S+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    if not found:
        path.unlink()
        raise UserError(f"{url}: no list of SHA-1 checksums; choose another --mirror, or run the same command again")
    return {name: digest for digest, name in found}


def download_dump(folder, language="en", date="latest", mirror=WIKIMEDIA):
    """Fetch the multistream dump of pages and articles and its index into folder/wikipedia/XXwiki-DATE; returns the
    path of the dump.

    date: YYYYMMDD, one of those that the mirror lists, or "latest", which stands for the newest complete one.
    UserError: no such dump, a dump that is still being made, a wrong checksum, no network.
    """
    if not re.fullmatch(r"\d{8}|latest", date) or not re.fullmatch(r"[a-z]+([-_][a-z]+)*", language):
        raise UserError(f"--date {date}, --language {language}: a date is YYYYMMDD or latest, a language as "
                        "in en, simple")
    wiki = language.replace("-", "_") + "wiki"
    place, store = f"{mirror.rstrip('/')}/{wiki}", Path(folder) / "wikipedia"
    store.mkdir(parents=True, exist_ok=True)
    ends = ("pages-articles-multistream.xml.bz2", "pages-articles-multistream-index.txt.bz2")
    sums = f"{wiki}-{date}-sha1sums.txt"
    try:
        digests = checksums(f"{place}/{date}/{sums}", store / sums)
    except UserError as error:
        names = [sums, *(f"{wiki}-{date}-{end}" for end in ends)]
        files = [File("wikipedia", f"{place}/{date}/{name}", 0, "", "") for name in names]
        raise by_hand(error, files, f"{store} (the first) and {store / f'{wiki}-{date}'} (the others)") from None
    if date == "latest":  # its names and files are those of a date
        (store / sums).unlink()
        dates = [match.group(1) for name in digests if (match := re.fullmatch(rf"{wiki}-(\d{{8}})-{ends[0]}", name))]
        date = max(dates, default=date)
    names = [f"{wiki}-{date}-{end}" for end in ends]
    if missing := [name for name in names if name not in digests]:
        (store / sums).unlink(missing_ok=True)
        raise UserError(f"{place}/{date}/: the dump has no {missing[0]} (yet); choose an earlier --date")
    files = [File("wikipedia", f"{place}/{date}/{name}", 0, f"sha1:{digests[name]}", "") for name in names]
    target = store / f"{wiki}-{date}"
    if not (target / "source.json").exists():
        keep(target, files, get(files, target))
    return target / names[0]
