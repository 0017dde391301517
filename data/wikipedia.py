"""A Wikipedia dump -> plain text, one document an article, one sentence a line, a blank line between articles.

    extract(["enwiki-20260101-pages-articles-multistream.xml.bz2"], "wiki/", workers=8)

A multistream dump is some hundred thousand bz2 streams one behind the other, 100 pages each. Where they begin stands in
the index beside the dump, or is found by looking for the beginnings of streams; workers take ranges of them. A dump
that is one stream, or plain XML, is read from its beginning by the parent, and workers only remove the markup. Text
comes out in the order of the dump, so the number of workers does not change it.

The same command goes on where it was stopped (data/outputs.py: TO/wiki-0000.txt, ..., TO/extract.json).
"""
import bz2
import itertools
import mmap
import re
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from common.cli import UserError
from data.outputs import TextFiles
from data.text import in_order, split_sentences
from data.wikitext import MOST_FAULTS, Names, plain

SHARE = 1 << 21  # bytes of bz2 a worker takes at once, or of XML where the parent unpacks
LONGEST_STREAM = 1 << 26  # bytes of bz2; a dump with a longer stream is unpacked by the parent
SHORTEST = 200  # characters of prose; what has less is a stub or was a list (of links, of what a name may mean)
STREAM = re.compile(rb"BZh[1-9]1AY&SY")
PAGE = re.compile(r"<page>.*?</page>", re.DOTALL)
FIELDS = {name: re.compile(rf"<{name}(?: [^>]*)?>([^<]*)</{name}>") for name in ("ns", "model", "text")}
REDIRECT = re.compile(r"\s*#\s*\w+\s*:?\s*\[\[")  # "#REDIRECT [[...", "#WEITERLEITUNG [[..."
ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&"))  # of XML; & comes last
LOST = {"redirect": "redirects", "namespace": "outside the articles", "model": "not wikitext",
        "broken": "markup too broken", "short": f"less than {SHORTEST} characters of prose"}


# --- pages -----------------------------------------------------------------------------------------------------------
def read_page(page, names):
    """(article text or "", {count: number}) of the XML of one page."""
    fields = {name: match.group(1) if (match := field.search(page)) else "" for name, field in FIELDS.items()}
    if fields["ns"] != "0":
        return "", {"namespace": 1}
    if "<redirect " in page or REDIRECT.match(fields["text"]):
        return "", {"redirect": 1}
    if fields["model"] not in ("", "wikitext"):
        return "", {"model": 1}
    markup = fields["text"]
    for entity, sign in ENTITIES:
        markup = markup.replace(entity, sign)
    found, faults = plain(markup, names)
    lost = {"unbalanced_pages": int(faults > 0), "unbalanced": faults, "markup_characters": len(markup)}
    if faults > MOST_FAULTS:
        return "", {"broken": 1, **lost}
    text = "\n".join(itertools.chain.from_iterable(map(split_sentences, found)))
    if len(text) < SHORTEST:
        return "", {"short": 1, **lost}
    return text + "\n\n", {"articles": 1, "text_characters": len(text), **lost}


def read_pages(xml, names):
    """(text of the articles, Counter) of a stretch of XML with whole pages."""
    texts, counts = [], Counter()
    for match in PAGE.finditer(xml):
        text, count = read_page(match.group(), names)
        texts.append(text)
        counts.update({"pages": 1, **count})
    return "".join(texts), counts


# --- streams ---------------------------------------------------------------------------------------------------------
def cut_short(path, place):
    return UserError(f"{path}: the bz2 data is cut short or damaged near byte {place:,}; fetch the file again")


def unpacked(path, start=0, end=None, piece=1 << 20):
    """The bytes of the bz2 streams from byte `start` to `end` (the end of the file), in pieces. UserError names what is
    cut short."""
    unpacker = bz2.BZ2Decompressor()
    with open(path, "rb") as file:
        file.seek(start)
        while data := file.read(piece if end is None else min(piece, end - file.tell())):
            while data:
                if unpacker.eof:
                    unpacker = bz2.BZ2Decompressor()
                try:
                    yield unpacker.decompress(data)
                except (OSError, ValueError):
                    raise cut_short(path, file.tell()) from None
                data = unpacker.unused_data
        if not unpacker.eof:
            raise cut_short(path, file.tell())


def index_beside(path):
    """The index of a multistream dump, or None: multistream1.xml-p1p2.bz2 -> multistream-index1.txt-p1p2.bz2."""
    name = re.sub(r"multistream(\d*)\.xml", r"multistream-index\1.txt", path.name)
    beside = path.with_name(name)
    return beside if name != path.name and beside.is_file() else None


def stream_starts(path):
    """Where the bz2 streams of a dump begin, in bytes: [0, ...]; from its index, or by looking for their beginnings."""
    starts, index = {0}, index_beside(path)
    if index:
        rest = b""
        for data in unpacked(index):
            *lines, rest = (rest + data).split(b"\n")
            try:
                starts.update(int(line.split(b":", 1)[0]) for line in lines)
            except ValueError:
                raise UserError(f"{index}: not the index of a multistream dump; take it away") from None
        with open(path, "rb") as file:
            for start in (max(starts), min(starts - {0}, default=0)):
                file.seek(start)
                if not STREAM.match(file.read(10)):
                    raise UserError(f"{index}: no stream begins at byte {start:,} of {path.name}; "
                                    "fetch both files again, or take the index away")
    else:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            starts.update(match.start() for match in STREAM.finditer(content))
    return sorted(starts)


def shares(path):
    """[(start, end)] of runs of whole streams, about SHARE bytes each; None for a dump that the parent must unpack."""
    starts = stream_starts(path)
    bounds = [*starts, path.stat().st_size]
    if len(starts) < 2 or max(end - start for start, end in zip(bounds, bounds[1:])) > LONGEST_STREAM:
        return None
    check_end(path, b"".join(unpacked(path, starts[-2])))
    cuts = [0]
    for bound in bounds[1:]:
        if bound - cuts[-1] >= SHARE or bound == bounds[-1]:
            cuts.append(bound)
    return list(zip(cuts, cuts[1:]))


def read_share(names, job):
    """read_pages of the pages that begin between two bytes of a dump; what of the last one lies behind is read too."""
    path, start, end = job
    xml = b"".join(unpacked(path, start, end))
    own, behind = len(xml), unpacked(path, end)
    if b"<page>".startswith(xml[max(0, xml.rfind(b"<")):] or b"?"):  # cut inside the tag
        xml += next(behind, b"")
    last = xml.rfind(b"<page>", 0, own + len(b"<page>") - 1)
    while last >= 0 and xml.find(b"</page>", last) < 0:
        data = next(behind, None)
        if data is None:
            raise cut_short(path, end)
        xml += data
    return read_run(names, xml[:xml.find(b"</page>", last) + 7] if last >= 0 else b"")


def read_run(names, xml):
    """read_pages of bytes."""
    text, counts = read_pages(xml.decode("utf-8", errors="replace"), names)
    return text, counts + Counter({"xml_bytes": len(xml)})


def page_runs(path):
    """Stretches of about SHARE bytes of XML with whole pages, of a dump that is read from its beginning."""
    xml = b""
    for data in unpacked(path) if is_bz2(path) else read_pieces(path):
        xml += data
        if len(xml) >= SHARE and (end := xml.rfind(b"</page>")) >= 0:
            yield xml[:end + 7]
            xml = xml[end + 7:]
    check_end(path, xml)
    yield xml


def read_pieces(path, piece=1 << 20):
    with open(path, "rb") as file:
        while data := file.read(piece):
            yield data


def is_bz2(path):
    with open(path, "rb") as file:
        return file.read(3) == b"BZh"


def check_end(path, xml):
    """UserError where a dump does not end as dumps do; xml: its last bytes."""
    if b"</mediawiki>" not in xml:
        raise UserError(f"{path}: the dump ends without </mediawiki>, so it was cut short; fetch the file again")


def header_of(path):
    """The beginning of a dump's XML, with its namespaces. UserError for what is no dump."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; fetch a dump with data/prepare.py download wikipedia")
    head = b""
    for data in unpacked(path) if is_bz2(path) else read_pieces(path):
        head += data
        if b"<page>" in head or len(head) > 1 << 20:
            break
    if b"<mediawiki" not in head:
        raise UserError(f"{path}: this is no dump of a wiki (no <mediawiki> at its beginning); "
                        "take a ...-pages-articles....xml.bz2")
    return head.decode("utf-8", errors="replace")


# --- extraction ------------------------------------------------------------------------------------------------------
def results(path, done, workers):
    """What read_run gives of each job of a dump but the first `done`, in order."""
    names, found = Names.of(header_of(path)), shares(path) if is_bz2(path) else None
    jobs = page_runs(path) if found is None else [(path, *share) for share in found]
    read = read_run if found is None else read_share
    yield from in_order(read, names, itertools.islice(jobs, done, None), workers)


def extract(dumps, folder, workers=1, progress=True):
    """Turn dumps (pages-articles XML, in bz2 or plain) into text files in `folder`; returns what extract.json says.

    The same call after an interruption goes on where it stopped. UserError: no dump, a dump that is cut short, a folder
    with something else in it.
    """
    dumps = [Path(path) for path in dumps]
    for path in dumps:
        header_of(path)
    out = TextFiles(folder, "wiki", dumps)
    if out.state["finished"]:
        return out.state
    with out:
        for number in range(out.state["source"], len(dumps)):
            with tqdm(initial=out.state["done"], desc=dumps[number].name, unit=" shares",
                      disable=None if progress else True) as bar:
                for text, counts in results(dumps[number], out.state["done"], workers):
                    out.add(text, counts)
                    bar.update()
                    bar.set_postfix(articles=out.counts["articles"])
            out.next_source()
        out.finish()
    return out.state


def summary(state):
    """What an extraction kept and lost, a few lines."""
    counts = Counter(state["counts"])
    lost = ", ".join(f"{counts[key]:,} {words}" for key, words in LOST.items())
    return (f"{counts['articles']:,} articles of {counts['pages']:,} pages, "
            f"{counts['text_characters'] / 1e6:,.1f} million characters of {counts['markup_characters'] / 1e6:,.1f} "
            "million of markup\n"
            f"left out: {lost}; {counts['unbalanced']:,} brackets without a partner on "
            f"{counts['unbalanced_pages']:,} pages")
