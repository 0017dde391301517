"""Text -> token files on disk, and training segments cut from them on the fly.

    corpus = prepare_corpus(["books/", "wiki.txt"], tokenizer, "cache/", workers=8)
    train, dev = corpus.split(held_out=0.05)
    batch = train.segments(position=0, rows=256, length=125, seed=0)

A prepared folder holds tokens.bin (uint16, or uint32 for more than 65,536 pieces), sentences.bin (int64: the token at
which each sentence starts, then the total), documents.bin (int64: the sentence at which each document starts, then the
total) and meta.json, which is written last: a folder without it was cut short. Everything streams, so memory does not
grow with the corpus, and the number of workers does not change the result.

How text is read. A file's first 128 KiB decide its layout:
- wrapped: most lines are so full that the next line's first word would not have fitted, and most do not end a
  sentence. The lines of a paragraph are joined and split into sentences.
- split: lines hold several sentences each (WikiText), so each line is split. Otherwise a line is a sentence (BERT).
- blank_ends: blank lines end documents (BERT). Not so in wrapped text, in files with ` = Title = ` lines and where
  most paragraphs are single lines (of several sentences here and there): there the file is one document, cut before
  titles and before headings in capitals that come after 2,000 characters or more.
A document also ends after 100,000 characters, and where workers' shares meet, every 4 MiB, at a document's end if one
is near.
"""
import hashlib
import json
import multiprocessing
import os
import re
import sys
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from common.cli import UserError
from common.tokenization import text_files, write_whole

# bytes: what decides the layout, a worker's share, where its end is looked for
SAMPLE, CHUNK, WINDOW = 1 << 17, 1 << 22, 1 << 18
HEADING_AFTER, LONGEST_DOCUMENT = 2_000, 100_000  # characters
TITLE = re.compile(r"= [^=\s](.*[^=\s])? =")
CUTS = [re.compile(pattern) for pattern in (  # where a share may end, best first: before a title, after a blank line..
    rb"\n(?=[ \t]*= [^=\s][^\n=]* =[ \t]*\r?\n)", rb"\n[ \t\r]*\n", rb"\n", rb" ", rb"(?=[\x00-\x7f\xc2-\xf4])")]
SENTENCE_END = re.compile(r"""[.!?…؟।]+["'”’»)\]_*]*\s+|[。！？]+["”’」』）]*\s*""")
OPENING = " \"'“‘«([_*¿¡-–—"
ABBREVIATIONS = frozenset("""mr mrs ms messrs mme mlle dr st prof rev hon capt col gen lt sgt maj cmdr gov sen rep pres
    esq jr sr vs vol vols fig figs ch pp cf viz ed eds eg ie al approx dept univ assn bros inc ltd corp co mt ft jan feb
    mar apr jun jul aug sep sept oct nov dec""".split())
NAMES = ("tokens", "sentences", "documents")


class Layout(NamedTuple):
    """How a file's lines are to be read: see the module's docstring."""
    wrapped: bool
    split: bool
    blank_ends: bool


def ends_sentence(text, match):
    """Whether a SENTENCE_END match is one: no lower-case word follows, no abbreviation or initial before it."""
    following = text[match.end():match.end() + 8].lstrip(OPENING)
    if following[:1].islower() or match.group().rstrip() != ".":
        return not following[:1].islower()
    near = max(0, match.start() - 20)
    word = text[max(near, text.rfind(" ", near, match.start()) + 1):match.start()].lstrip(OPENING)
    if word.lower() in ("no", "nos"):  # an abbreviation only before a number
        return not following[:1].isdigit()
    initial = len(word) == 1 and word.isupper() and word != "I" or "." in word
    return not initial and word.lower() not in ABBREVIATIONS


def split_sentences(text):
    """The sentences of one paragraph, stripped, none empty."""
    found, start = [], 0
    for match in SENTENCE_END.finditer(text):
        end = match.end()
        if end < len(text) and ends_sentence(text, match):
            if text.startswith('" ', end) and text.count('"', start, end) % 2:
                end += 2  # a closing quote that a tokeniser set apart
            found.append(text[start:end].strip())
            start = end
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


def text_blocks(text):
    """Blocks of non-blank lines, each a list of stripped lines."""
    blocks = re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n").replace("\r", "\n"))
    blocks = ([line.strip() for line in block.split("\n") if line.strip()] for block in blocks)
    return [block for block in blocks if block]


def layout_of(path):
    """The Layout that the beginning of a file shows. UserError for what is not text."""
    with open(path, "rb") as file:
        head = file.read(SAMPLE)
    if b"\0" in head:
        raise UserError(f"{path}: this is not UTF-8 text (it has zero bytes); convert it to UTF-8, or take it out")
    blocks = text_blocks(head.decode("utf-8", errors="replace"))
    lines = list(chain.from_iterable(blocks))
    inner = [(line, after.split(None, 1)[0]) for block in blocks for line, after in zip(block, block[1:])]
    width = np.percentile([len(line) for line, _ in inner], 90) if inner else 0
    full = sum(len(line) + 1 + len(word) > width for line, word in inner) > 0.6 * len(inner)
    ended = sum(line[-1] in ".!?" for line, _ in inner) > 0.5 * len(inner)
    wrapped = bool(full and not ended and width >= 30)
    sentences = sum(len(split_sentences(line)) for line in lines)
    titled = any(TITLE.fullmatch(line) for line in lines)
    apart = len(lines) >= 1.5 * len(blocks) or sentences <= 1.05 * len(blocks)  # or each block is a sentence
    return Layout(wrapped, wrapped or sentences > 1.5 * len(lines), not wrapped and not titled and apart)


def read_documents(text, layout):
    """Documents, each a list of sentences, of one chunk of a file."""
    documents, size = [[]], 0
    for block in text_blocks(text):
        for unit in [" ".join(block)] if layout.wrapped else block:
            heading = TITLE.fullmatch(unit) or len(unit) < 80 and unit.isupper() and size >= HEADING_AFTER
            size = LONGEST_DOCUMENT if heading and not layout.blank_ends else size
            for sentence in split_sentences(unit) if layout.split else [unit]:
                if size >= LONGEST_DOCUMENT:
                    documents.append([])
                    size = 0
                documents[-1].append(sentence)
                size += len(sentence)
        size = LONGEST_DOCUMENT if layout.blank_ends else size
    return [document for document in documents if document]


def chunks(path):
    """(path, start byte, end byte, layout) of pieces of about CHUNK bytes; a function of the file alone."""
    size, start, layout = os.path.getsize(path), 0, layout_of(path)
    with open(path, "rb") as file:
        while start < size:
            end = size
            if start + CHUNK + WINDOW < size:
                file.seek(start + CHUNK)
                window = file.read(WINDOW)
                matches = (cut.search(window) for cut in CUTS[layout.blank_ends:])  # BERT's format has no titles
                end = start + CHUNK + next((match.end() for match in matches if match), 0)
            yield str(path), start, end, layout
            start = end


def token_dtype(tokenizer):
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 65536 else np.uint32)


def encode_chunk(tokenizer, job):
    """(path, bytes, token array, tokens per sentence, sentences per document, undecodable sequences) of one chunk."""
    path, start, end, layout = job
    with open(path, "rb") as file:
        file.seek(start)
        raw = file.read(end - start)
    text = raw.decode("utf-8", errors="replace")
    broken = text.count("\ufffd") - raw.count("\ufffd".encode())
    documents = read_documents(text.removeprefix("\ufeff"), layout)
    rows = tokenizer.encode_batch(list(chain.from_iterable(documents)))
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    tokens = np.fromiter(chain.from_iterable(rows), token_dtype(tokenizer), int(lengths.sum()))
    owner = np.repeat(np.arange(len(documents)), [len(document) for document in documents])[lengths > 0]
    counts = np.bincount(owner, minlength=1)
    return path, end - start, tokens, lengths[lengths > 0], counts[counts > 0], broken


def start_worker(tokenizer):
    """Keep the tokenizer in this worker process, and end when the parent does, however it ends."""
    encode_in_worker.tokenizer = tokenizer
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def encode_in_worker(job):
    return encode_chunk(encode_in_worker.tokenizer, job)


def encode_all(jobs, tokenizer, workers):
    """encode_chunk of each job, in order; 2 chunks a worker in flight, so that a slow disk does not fill the memory."""
    if workers <= 1:
        yield from (encode_chunk(tokenizer, job) for job in jobs)
        return
    with ProcessPoolExecutor(workers, initializer=start_worker, initargs=(tokenizer,)) as pool:
        pending = deque()
        try:
            for job in jobs:
                pending.append(pool.submit(encode_in_worker, job))
                if len(pending) >= 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise UserError("corpus: a worker was killed, perhaps for want of memory; use fewer workers") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def write_parts(results, parts, bar):
    """Write the .part files from encode_chunk's results, synced to disk; returns the counts."""
    count = {"tokens": 0, "sentences": 0, "documents": 0, "replaced": 0}
    with open(parts[0], "wb") as tokens, open(parts[1], "wb") as sentences, open(parts[2], "wb") as documents:
        for path, size, ids, lengths, per_document, broken in results:
            if broken and not count["replaced"]:
                print(f"{path}: not all is UTF-8; each bad spot becomes U+FFFD (see meta.json)", file=sys.stderr)
            tokens.write(ids)
            sentences.write(count["tokens"] + np.cumsum(lengths) - lengths)
            documents.write(count["sentences"] + np.cumsum(per_document) - per_document)
            for key, more in zip(count, (len(ids), len(lengths), len(per_document), broken)):
                count[key] += int(more)
            bar.update(size)
        sentences.write(np.int64(count["tokens"]))
        documents.write(np.int64(count["sentences"]))
        for file in (tokens, sentences, documents):
            file.flush()
            os.fsync(file.fileno())
    return count


def read_meta(folder):
    """meta.json of a prepared folder, {} where there is none that can be read."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) and meta.get("format") == 1 else {}


def prepare_corpus(paths, tokenizer, out_folder, workers=1, progress=True):
    """Turn text files and folders (their *.txt) into token files in out_folder; returns the Corpus.

    A folder made from the same files (path, size, time of change) by the same tokenizer is reused. Interrupted at any
    point, a folder holds what it held before, or what Corpus refuses. UserError: a missing path, no sentence at all.
    """
    folder, files = Path(out_folder), text_files(paths)
    sources = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    made_from = {"format": 1, "tokenizer": tokenizer.fingerprint, "lower": tokenizer.lower,
                 "dtype": token_dtype(tokenizer).name,
                 "fingerprint": hashlib.sha256(json.dumps(sources).encode()).hexdigest()}
    if made_from.items() <= read_meta(folder).items():
        return Corpus(folder, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f"{name}.bin.part" for name in NAMES]
    total, jobs = sum(size for _, size, _ in sources), chain.from_iterable(map(chunks, files))
    try:
        with tqdm(total=total, unit="B", unit_scale=True, desc="tokens", disable=None if progress else True) as bar:
            count = write_parts(encode_all(jobs, tokenizer, workers), parts, bar)
        if not count["sentences"]:
            raise UserError(f"{files[0]}: there is no sentence in the corpus; give files with text")
        (folder / "meta.json").unlink(missing_ok=True)  # until the new one is written the folder is no corpus
        for part in parts:
            os.replace(part, part.with_suffix(""))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    write_whole(folder / "meta.json", json.dumps({**made_from, **count, "sources": sources}, indent=1).encode())
    return Corpus(folder, tokenizer)


def mix(x):
    """A 64-bit hash of each element (the finaliser of SplitMix64); x: uint64 array."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(seed, stream, *arrays):
    """uint64 hash of (seed, stream, each array's element): the stateless stand-in for a random generator."""
    value = mix(np.array([seed % 2**64], np.uint64)) + np.uint64(stream)
    for array in arrays:
        value = mix(value) + array.astype(np.uint64)
    return mix(value)


def below(limit, hashes):
    """Uniform integers in [0, limit): int64; limit: positive int64 array or int."""
    return ((hashes >> np.uint64(11)) * (2.0**-53) * limit).astype(np.int64)


def permute(index, total, key):
    """Where a pseudo-random permutation of range(total) sends each index, without a table, however large total is.

    Four Feistel rounds on the next power of two, repeated until the value is below total.
    index: (R,) int64; key: (R,) uint64, a permutation for each value. Returns (R,) int64.
    """
    bits = max(2, (total - 1).bit_length())
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << bits - bits // 2) - 1)
    out, todo = index.astype(np.uint64), np.arange(len(index))
    while len(todo):
        high, rest, keys = out[todo] >> low, out[todo] & low_mask, key[todo]
        for turn in range(2):
            high ^= mix(rest + keys + np.uint64(2 * turn)) & high_mask
            rest ^= mix(high + keys + np.uint64(2 * turn + 1)) & low_mask
        out[todo] = high << low | rest
        todo = todo[out[todo] >= total]
    return out.astype(np.int64)


@dataclass
class Segments:
    """R training examples; int64 tensors, rows filled up with 0. first and second are one run of text."""
    first: torch.Tensor  # (R, length)
    first_length: torch.Tensor  # (R,)
    second: torch.Tensor  # (R, length)
    second_length: torch.Tensor  # (R,) 0 where the run has no sentence boundary inside
    other: torch.Tensor  # (R, length) text of another document in the place of second
    other_length: torch.Tensor  # (R,)
    sentences: torch.Tensor  # (R,) sentences, whole or in part, in first and second


class Corpus:
    """A prepared folder, or a part. tokens, sentences, documents: memory maps; ids: (D,) the documents in view."""

    def __init__(self, folder, tokenizer=None, ids=None):
        self.folder, self.meta, self.slot_tables = Path(folder), read_meta(Path(folder)), {}
        if not self.meta:
            raise UserError(f"{folder}: no finished corpus is here (meta.json is missing or broken); "
                            "make it with data/prepare.py corpus")
        made_by = self.meta["tokenizer"], self.meta["lower"]
        if tokenizer is not None and (tokenizer.fingerprint, tokenizer.lower) != made_by:
            raise UserError(f"{folder}: the corpus was made with another tokenizer than {tokenizer.path}; "
                            "prepare it anew, or give the tokenizer it was made with")
        dtypes, extra = (self.meta["dtype"], "int64", "int64"), (0, 1, 1)
        self.tokens, self.sentences, self.documents = map(self.open, NAMES, dtypes, extra)
        self.ids = np.arange(self.meta["documents"]) if ids is None else ids

    def open(self, name, dtype, extra):
        """Memory map of one file, of as many elements as meta.json says, and `extra`."""
        path, count = self.folder / f"{name}.bin", self.meta[name] + extra
        if not path.is_file() or path.stat().st_size != count * np.dtype(dtype).itemsize:
            raise UserError(f"{path}: the file is missing or cut short; delete the folder and prepare it anew")
        return np.memmap(path, dtype, "r").view(np.ndarray)

    def __reduce__(self):  # travels to other processes as a path
        return Corpus, (str(self.folder), None, None if len(self.ids) == self.meta["documents"] else self.ids)

    def split(self, held_out=0.05):
        """(train, dev): a share of the documents, evenly spread, is held out. UserError for one document."""
        total = len(self.ids)
        if total < 2:
            raise UserError(f"{self.folder}: a corpus of one document cannot be split; add text")
        count = max(1, min(total - 1, round(held_out * total)))
        held = np.zeros(total, bool)
        held[(np.arange(count) * total + total // 2) // count] = True
        return Corpus(self.folder, ids=self.ids[~held]), Corpus(self.folder, ids=self.ids[held])

    @cached_property
    def bounds(self):
        """(starts, ends), each (D,): the first token of each document in view, and the one after its last."""
        return self.sentences[self.documents[self.ids]], self.sentences[self.documents[self.ids + 1]]

    def slot_table(self, length):
        """(D + 1,) the first slot of each document, and the total: stretches of `length` tokens that cover it."""
        if length not in self.slot_tables:
            starts, ends = self.bounds
            self.slot_tables[length] = np.concatenate([[0], np.cumsum(-((starts - ends) // length))])
        return self.slot_tables[length]

    def slots(self, length):
        """Examples in an epoch."""
        return int(self.slot_table(length)[-1])

    def segments(self, position, rows, length, seed, short_prob=0.1, alike=False):
        """Examples position .. position + rows - 1 of an endless stream, as Segments.

        A function of its arguments alone, so resuming needs only the position, and ranks take ranges of their own.
        length: room for the text of both parts, in tokens, at least 2. Each epoch takes the slots in another order
        and moves the cuts. The size of an example is `length`, or with short_prob uniform in 2..length; a document
        shorter than that comes whole.
        alike: the run cuts the beginning of its first part and the end of its second, which gives their order away.
        Move the parts so that each begins, or else ends, with a sentence, by a coin of its own.
        """
        if length < 2:
            raise UserError(f"corpus.segments: length {length} leaves no room for two parts; make sequences longer")
        table = self.slot_table(length)
        number = position + np.arange(rows, dtype=np.int64)
        epoch, index = np.divmod(number, table[-1])
        slot = permute(index, int(table[-1]), hashed(seed, 0, epoch))
        document = np.searchsorted(table, slot, side="right") - 1
        begin, end = (bound[document] for bound in self.bounds)
        base = hashed(seed, 1, number)
        draws = [mix(base + np.uint64(stream)) for stream in range(6)]
        short = below(2**30, draws[0]) < short_prob * 2**30
        target = np.where(short, 2 + below(length - 1, draws[1]), length)
        size = np.minimum(target, end - begin)
        # a document's slots overhang its end by `spare`: each epoch another part of it is moved before the beginning
        spare = (table[document + 1] - table[document]) * length - (end - begin)
        offset = (slot - table[document]) * length - below(spare + 1, hashed(seed, 2, epoch, document))
        offset += below(length - target + 1, draws[2])
        start = begin + np.clip(offset, 0, end - begin - size)
        return self.cut(document, start, size, target, length, draws[3:], alike)

    def first_after(self, token, low, high):
        """The first of sentences low .. high that starts after `token`; sentence `high` does. (R,) each.

        numpy's searchsorted would miss the cache at each of its steps through a large file.
        """
        while (low < high).any():
            middle = (low + high) // 2
            after = self.sentences[middle] > token
            low, high = np.where(after, low, middle + 1), np.where(after, middle, high)
        return low

    def cut(self, document, start, size, target, length, draws, alike):
        """Segments of the runs [start, start + size), each parted at a random sentence boundary inside."""
        ids = self.ids[document]
        boundary = self.first_after(start, self.documents[ids], self.documents[ids + 1])
        inside = self.first_after(start + size - 1, boundary, self.documents[ids + 1]) - boundary
        chosen = self.sentences[boundary + below(np.maximum(inside, 1), draws[0])]
        middle = np.where(inside > 0, chosen, start + size)
        first, second = middle - start, start + size - middle
        # as long as second, or a classifier could tell the two apart by their lengths
        place, other = self.elsewhere(document, start, size, np.where(inside > 0, second, target - first), draws)
        if alike:
            coins = [below(2, mix(draws[0] + np.uint64(number))) for number in range(1, 4)]
            start = start + coins[0] * (self.sentence_around(start)[0] - start)
            middle = middle + coins[1] * (self.sentence_around(middle + second - 1)[1] - middle - second)
            place = place + coins[2] * (self.sentence_around(place + other - 1)[1] - place - other)
        tensors = []
        for begin, count in ((start, first), (middle, second), (place, other)):
            tensors += [self.gather(begin, count, length), torch.from_numpy(count)]
        return Segments(*tensors, torch.from_numpy(inside + 1))

    def sentence_around(self, token):
        """(begin, end) of the sentences that tokens of documents in view are in."""
        owner = self.ids[np.searchsorted(self.bounds[0], token, side="right") - 1]
        number = self.first_after(token, self.documents[owner], self.documents[owner + 1])
        return self.sentences[number - 1], self.sentences[number]

    def elsewhere(self, document, start, size, want, draws):
        """(start, length) of runs of up to `want` tokens from a sentence's start in another document.

        In a corpus of one document: from before or after the run, 0 tokens where there is no room.
        """
        starts, ends = self.bounds
        if len(starts) == 1:
            before, after = np.maximum(0, start - starts - want + 1), np.maximum(0, ends - start - size - want + 1)
            place = below(np.maximum(before + after, 1), draws[1])
            place += np.where(place < before, starts, start + size - before)
            return place, np.where(before + after > 0, want, 0)
        chosen = below(len(starts) - 1, draws[1])
        chosen += chosen >= document
        first, stop = self.documents[self.ids[chosen]], self.documents[self.ids[chosen] + 1]
        fitting = self.first_after(ends[chosen] - np.maximum(want, 1), first, stop) - first  # starts that leave room
        found = self.sentences[first + below(np.maximum(fitting, 1), draws[2])]
        return found, np.minimum(want, ends[chosen] - found)

    def gather(self, start, size, length):
        """(R, length) int64: tokens start .. start + size - 1, then zeros."""
        column = np.arange(length)
        block = self.tokens.take(start[:, None] + column, mode="clip").astype(np.int64)
        return torch.from_numpy(block * (column < size[:, None]))
