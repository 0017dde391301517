"""Books as plain text, in the layout of Project Gutenberg -> text files, one book one document.

    extract_books(["gutenberg/"], "books/", workers=8)

The stand-in for BooksCorpus, which has no official download. Left out: the licence before and behind a book, who
produced the file, pictures, rows of asterisks, the underscores of italics, and every book that is there already: half
of a sample of its paragraphs is, letters alone compared, so that other encodings and editions of a text count as one.

The lines of a paragraph are joined and cut into sentences, one a line; a blank line ends a book. The same command goes
on where it was stopped (data/outputs.py: TO/books-0000.txt, ..., TO/extract.json).
"""
import hashlib
import itertools
import re
from collections import Counter

import numpy as np
from tqdm import tqdm

from data.outputs import TextFiles
from data.text import body_of, in_order, layout_of, split_sentences, text_blocks
from data.vocabulary import text_files

SHARE = 1 << 22  # bytes of books that a worker takes at once
SHORTEST = 5_000  # characters of prose: less is an index, a notice, a picture's caption
SKETCH = 16  # paragraphs of a book by which it is known: those of the smallest hashes
LETTERS = 60  # of a paragraph that counts for it
CREDIT = re.compile(r"(?:Produced|E-?text prepared|Prepared|Transcribed|Scanned|This etext was)\b.{0,300}",
                    re.IGNORECASE)
CREDITED = 5  # paragraphs at the beginning among which the credit may be
PICTURE = re.compile(r"\[(?:Illustration|Picture|Frontispiece)[^\]]*\]", re.IGNORECASE)
NO_LETTER = re.compile(r"[\W\d_]+")


def decoded(raw):
    """(text, whether it is no UTF-8): files from before 2005 are in Latin-1 or Windows' variant of it."""
    try:
        return raw.decode("utf-8-sig"), False
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace"), True


def paragraphs_of(path):
    """([paragraph: [sentence]] of a book, Counter)."""
    start, end = body_of(path)
    with open(path, "rb") as file:
        file.seek(start)
        raw = file.read(end - start)
    text, foreign = decoded(raw)
    wrapped, found = layout_of(path, start, end).wrapped, []
    blocks = text_blocks(PICTURE.sub("", text))
    for number, block in enumerate(blocks):
        for unit in [" ".join(block)] if wrapped else block:
            if number < CREDITED and CREDIT.fullmatch(unit) or not any(map(str.isalnum, unit)):
                continue
            found.append(split_sentences(unit.replace("_", "")))
    licence = path.stat().st_size - len(raw)
    return found, Counter(books=1, book_bytes=path.stat().st_size, licence_bytes=licence,
                          with_licence=int(licence > 0), not_utf8=int(foreign))


def sketch(paragraphs):
    """(SKETCH,) uint64: the smallest hashes of its paragraphs' letters; of the whole text where those are too few."""
    letters = [NO_LETTER.sub("", "".join(paragraph)).lower() for paragraph in paragraphs]
    units = [text for text in letters if len(text) >= LETTERS]
    units = units if len(units) >= SKETCH else ["".join(letters)]
    hashes = {int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in units}
    found = np.zeros(SKETCH, np.uint64)  # 0: nothing
    smallest = sorted(hashes)[:SKETCH]
    found[:len(smallest)] = smallest
    return found


def read_books(_, paths):
    """([(text, sketch)], Counter) of some books."""
    books, counts = [], Counter()
    for path in paths:
        paragraphs, count = paragraphs_of(path)
        counts += count
        text = "\n".join(itertools.chain.from_iterable(paragraphs))
        if len(text) < SHORTEST:
            counts["short"] += 1
        else:
            books.append((text, sketch(paragraphs)))
    return books, counts


def batches(paths):
    """Lists of books of about SHARE bytes; a function of the paths alone."""
    batch, size = [], 0
    for path in paths:
        batch.append(path)
        size += path.stat().st_size
        if size >= SHARE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Known:
    """The sketches of the books that were kept, 128 bytes a book, also in a file, so that they outlive a stop."""

    def __init__(self, path, kept):
        self.path, self.books, self.kept = path, {}, 0
        if kept:
            for row in np.fromfile(path, np.uint64, kept * SKETCH).reshape(kept, SKETCH):
                self.enter(row)
        self.file = open(path, "ab")
        self.file.truncate(kept * row_bytes())

    def enter(self, row):
        self.books.update((int(value), self.kept) for value in row if value)
        self.kept += 1

    def add(self, row):
        """False where half of a book's sketch is in that of one before; else it is kept."""
        values = [int(value) for value in row if value]
        hits = Counter(self.books[value] for value in values if value in self.books)
        if hits and max(hits.values()) * 2 >= len(values):
            return False
        self.enter(row)
        self.file.write(row.tobytes())
        return True


def row_bytes():
    return SKETCH * np.dtype(np.uint64).itemsize


def extract_books(paths, folder, workers=1, progress=True):
    """Turn books (files, or folders of .txt files) into text files in `folder`; returns what extract.json says.

    Of equal books the first in the order of the paths is kept. UserError: a missing path, a folder with something else.
    """
    files = text_files(paths)
    out = TextFiles(folder, "books", files)
    if out.state["finished"]:
        return out.state
    known = Known(out.folder / "sketches.bin", out.state.get("kept", 0))
    jobs = itertools.islice(batches(files), out.state["done"], None)
    with out, known.file, tqdm(total=len(files), initial=out.counts["books"], desc="books", unit=" books",
                               disable=None if progress else True) as bar:
        for books, counts in in_order(read_books, None, jobs, workers):
            new = [text for text, row in books if known.add(row)]
            known.file.flush()
            counts.update(kept=len(new), duplicates=len(books) - len(new), text_characters=sum(map(len, new)))
            out.add("".join(f"{text}\n\n" for text in new), counts, kept=known.kept)
            bar.update(counts["books"])
        out.finish()
    return out.state


def summary(state):
    """What was kept and lost, in two lines."""
    counts = Counter(state["counts"])
    return (f"{counts['kept']:,} of {counts['books']:,} books, {counts['text_characters'] / 1e6:,.1f} million "
            f"characters\nleft out: {counts['duplicates']:,} that are there already, {counts['short']:,} with less "
            f"than {SHORTEST:,} characters; the licences of {counts['with_licence']:,} "
            f"({counts['licence_bytes']:,} bytes); "
            f"{counts['not_utf8']:,} were not UTF-8 and read as Windows-1252")
