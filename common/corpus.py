"""Text -> token files on disk, and training segments cut from them on the fly.

    corpus = prepare_corpus(["books/", "wiki.txt"], tokenizer, "cache/", workers=8)
    train, dev = corpus.split(held_out=0.05)
    batch = train.segments(position=0, rows=256, length=125, seed=0)

A prepared folder holds tokens.bin (uint16, or uint32 for more than 65,536 pieces), sentences.bin (int64: the token at which each sentence starts, and
the total), documents.bin (int64: the sentence at which each document starts, and the total) and meta.json, which is written last: a folder without
it was cut short. Everything streams, so memory grows neither with the corpus nor with the number of files, and workers do not change the result.

How text is read. Each file's first 128 KiB decides its layout:
- wrapped: lines are as full as a fixed width allows (the next line's first word would not have fitted): lines of a paragraph are joined, then split into sentences;
- split: lines hold several sentences each (WikiText): each line is split into sentences; otherwise a line is a sentence (BERT's input format);
- blank_ends: blank lines end documents (BERT's format). Not so in wrapped text, in files with ` = Title = ` lines and where paragraphs are single
  lines: there a file is a document, cut before titles, before headings in capitals once it has 2,000 characters, and after 100,000 characters.
Any file is also cut, at a document's end where one is near, every 4 MiB, the unit that workers share out.
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

CHUNK, WINDOW, SAMPLE = 4 << 20, 1 << 18, 1 << 17  # bytes: a worker's share, where its end is looked for, what decides the layout
HEADING_AFTER, LONGEST_DOCUMENT = 2_000, 100_000  # characters
TITLE = re.compile(r"= [^=\s](.*[^=\s])? =")
CUTS = [re.compile(rb"\n(?=[ \t]*= [^=\s][^\n=]* =[ \t]*\r?\n)"), re.compile(rb"\n[ \t\r]*\n"), re.compile(rb"\n"), re.compile(rb" "),
        re.compile(rb"(?=[\x00-\x7f\xc2-\xf4])")]  # best first; the last finds the start of a character
SENTENCE_END = re.compile(r"""[.!?…؟।]+["'”’»)\]_*]*\s+|[。！？]+["”’」』）]*\s*""")
OPENING = " \"'“‘«([_*¿¡-–—"
ABBREVIATIONS = frozenset("""mr mrs ms messrs mme mlle dr st prof rev hon capt col gen lt sgt maj cmdr gov sen rep pres esq jr sr vs no nos vol
    vols fig figs ch pp cf viz ed eds eg ie al approx dept univ assn bros inc ltd corp co mt ft jan feb mar apr jun jul aug sep sept oct nov dec""".split())


class Layout(NamedTuple):
    """How a file's lines are to be read (see the module's docstring)."""
    wrapped: bool
    split: bool
    blank_ends: bool


# --- text -> sentences ------------------------------------------------------------------------------------------------

def ends_sentence(text, match):
    """Whether a SENTENCE_END match is one: the next word is not lower-case, and the full stop does not belong to an abbreviation or initial."""
    following = text[match.end():match.end() + 8].lstrip(OPENING)
    if following[:1].islower():
        return False
    if match.group().rstrip() != ".":
        return True
    word = text[max(text.rfind(" ", 0, match.start()), match.start() - 20) + 1:match.start()].lstrip(OPENING)
    initial = len(word) == 1 and word.isupper() and word != "I" or "." in word
    if word.lower() in ("no", "nos"):  # an abbreviation only before a number
        return not following[:1].isdigit()
    return not initial and word.lower() not in ABBREVIATIONS


def split_sentences(text):
    """The sentences of one paragraph, stripped, none empty."""
    found, start = [], 0
    for match in SENTENCE_END.finditer(text):
        end = match.end()
        if end < len(text) and ends_sentence(text, match):
            if text.startswith('" ', end) and text.count('"', start, end) % 2:  # tokenised text: the blank parts the closing quote
                end += 2
            found.append(text[start:end].strip())
            start = end
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


def text_blocks(text):
    """Blocks of non-blank lines, each a list of stripped lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = ([line.strip() for line in block.split("\n") if line.strip()] for block in re.split(r"\n[^\S\n]*\n", text))
    return [block for block in blocks if block]


def layout_of(path):
    """The Layout that a file's first 128 KiB shows. UserError for what is not text."""
    with open(path, "rb") as file:
        head = file.read(SAMPLE)
    if b"\0" in head:
        raise UserError(f"{path}: this is not UTF-8 text (it has zero bytes); convert it to UTF-8, or take it out")
    blocks = text_blocks(head.decode("utf-8", errors="replace"))
    lines = list(chain.from_iterable(blocks))
    followed = [(len(line), len(line) + 1 + len(after.split(None, 1)[0])) for block in blocks for line, after in zip(block, block[1:])]
    width = np.percentile([size for size, _ in followed], 90) if followed else 0
    wrapped = bool(sum(size > width for _, size in followed) > 0.6 * len(followed))
    split = wrapped or sum(len(split_sentences(line)) for line in lines) > 1.5 * len(lines)
    titled = any(TITLE.fullmatch(line) for line in lines)
    return Layout(wrapped, split, not wrapped and not titled and len(lines) >= 2 * len(blocks))


def read_documents(text, layout):
    """Documents, each a list of sentences, of one chunk of a file."""
    documents, size = [[]], 0
    for block in text_blocks(text):
        for unit in [" ".join(block)] if layout.wrapped else block:
            heading = len(unit) < 80 and unit.isupper() and size >= HEADING_AFTER
            if not layout.blank_ends and (heading or TITLE.fullmatch(unit)) or size >= LONGEST_DOCUMENT:
                documents.append([])
                size = 0
            documents[-1] += split_sentences(unit) if layout.split else [unit]
            size += len(unit)
        if layout.blank_ends:
            documents.append([])
            size = 0
    return [document for document in documents if document]


# --- sentences -> token files -------------------------------------------------------------------------------------------

def chunks(path):
    """(path, start byte, end byte, layout) of pieces of about CHUNK bytes; a function of the file alone."""
    size, start, layout = os.path.getsize(path), 0, layout_of(path)
    with open(path, "rb") as file:
        while start < size:
            end = size
            if start + CHUNK + WINDOW < size:
                file.seek(start + CHUNK)
                window = file.read(WINDOW)
                matches = (cut.search(window) for cut in CUTS[layout.blank_ends:])
                end = start + CHUNK + next((match.end() for match in matches if match), 0)
            yield str(path), start, end, layout
            start = end


def encode_chunk(tokenizer, job):
    """(path, bytes, token array, sentence lengths, sentences per document, undecodable sequences) of one chunk."""
    path, start, end, layout = job
    with open(path, "rb") as file:
        file.seek(start)
        raw = file.read(end - start)
    text = raw.decode("utf-8", errors="replace")
    broken = text.count("\ufffd") - raw.count("\ufffd".encode())
    documents = read_documents(text.lstrip("\ufeff") if start == 0 else text, layout)
    rows = tokenizer.encode_batch(list(chain.from_iterable(documents)))
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    tokens = np.fromiter(chain.from_iterable(rows), token_dtype(tokenizer), int(lengths.sum()))
    owner = np.repeat(np.arange(len(documents)), [len(document) for document in documents])[lengths > 0]
    counts = np.bincount(owner, minlength=1)
    return path, end - start, tokens, lengths[lengths > 0], counts[counts > 0], broken


def token_dtype(tokenizer):
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 65536 else np.uint32)


def start_worker(tokenizer):
    """Keep the tokenizer in this worker process, and end with the parent, however that ends."""
    encode_in_worker.tokenizer = tokenizer
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def encode_in_worker(job):
    return encode_chunk(encode_in_worker.tokenizer, job)


def encode_all(jobs, tokenizer, workers):
    """encode_chunk of each job, in order; at most 2 chunks a worker are in flight, so that a slow disk does not fill the memory."""
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
            raise UserError("corpus: a worker process was killed, perhaps for want of memory; use fewer --workers") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def write_token_files(results, folder, bar):
    """Write the three .part files from encode_chunk's results; returns the counts."""
    count = {"tokens": 0, "sentences": 0, "documents": 0, "replaced": 0}
    names = [folder / f"{name}.bin.part" for name in ("tokens", "sentences", "documents")]
    with open(names[0], "wb") as tokens, open(names[1], "wb") as sentences, open(names[2], "wb") as documents:
        for path, size, ids, lengths, per_document, broken in results:
            if broken and not count["replaced"]:
                print(f"{path}: not all of it is UTF-8; what cannot be read becomes U+FFFD (counted in meta.json)", file=sys.stderr)
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


def prepare_corpus(paths, tokenizer, out_folder, workers=1, progress=True):
    """Turn text files and folders (their *.txt) into token files in out_folder; returns the Corpus. Reuses a folder made from the same files.

    Interrupted at any point, it leaves a folder that Corpus refuses; the next call makes it anew. UserError: a missing path, no sentence at all.
    """
    folder, files = Path(out_folder), text_files(paths)
    sources = [{"file": str(path.resolve()), "bytes": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns} for path in files]
    made_from = {"format": 1, "tokenizer": tokenizer.fingerprint, "lower": tokenizer.lower, "dtype": token_dtype(tokenizer).name,
                 "fingerprint": hashlib.sha256(json.dumps(sources).encode()).hexdigest()}
    meta = folder / "meta.json"
    if meta.is_file() and made_from.items() <= json.loads(meta.read_text()).items():
        return Corpus(folder, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f"{name}.bin.part" for name in ("tokens", "sentences", "documents")]
    jobs = chain.from_iterable(map(chunks, files))
    try:
        with tqdm(total=sum(s["bytes"] for s in sources), unit="B", unit_scale=True, desc="tokens", disable=None if progress else True) as bar:
            count = write_token_files(encode_all(jobs, tokenizer, workers), folder, bar)
        if not count["sentences"]:
            raise UserError(f"{files[0]}: there is no sentence in the corpus; give files with text")
        meta.unlink(missing_ok=True)  # from here until the new one is written the folder is no corpus
        for part in parts:
            os.replace(part, part.with_suffix(""))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    write_whole(meta, json.dumps({**made_from, **count, "sources": sources}, indent=1).encode())
    return Corpus(folder, tokenizer)


# --- segments -----------------------------------------------------------------------------------------------------------

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
    """Where a pseudo-random permutation of range(total) sends each index: a four-round Feistel network over the next power of two, walked until
    it falls below total. It needs no memory, whatever total is. index: (R,) int64; key: (R,) uint64, one permutation for each value."""
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
    """R training examples; all int64 tensors, rows filled up with 0. first + second is one run of text of one document."""
    first: torch.Tensor  # (R, length)
    first_length: torch.Tensor  # (R,)
    second: torch.Tensor  # (R, length)
    second_length: torch.Tensor  # (R,) 0 where the run has no sentence boundary inside
    other: torch.Tensor  # (R, length) text of another document in the place of second
    other_length: torch.Tensor  # (R,)
    sentences: torch.Tensor  # (R,) sentences, whole or in part, in first + second


class Corpus:
    """A prepared folder, or some of its documents. tokens, sentences, documents: memory maps; ids: (D,) the documents in view."""

    def __init__(self, folder, tokenizer=None, ids=None):
        self.folder = Path(folder)
        try:
            self.meta = json.loads((self.folder / "meta.json").read_text())
        except (OSError, ValueError):
            raise UserError(f"{self.folder}: no finished corpus is here (meta.json is missing or broken); make it with data/prepare.py corpus") from None
        if tokenizer is not None and (tokenizer.fingerprint, tokenizer.lower) != (self.meta["tokenizer"], self.meta["lower"]):
            raise UserError(f"{self.folder}: the corpus was made with another tokenizer than {tokenizer.path}; prepare it anew, or give its own tokenizer")
        self.tokens = self.open("tokens", self.meta["dtype"], self.meta["tokens"])
        self.sentences = self.open("sentences", "int64", self.meta["sentences"] + 1)
        self.documents = self.open("documents", "int64", self.meta["documents"] + 1)
        self.ids = np.arange(self.meta["documents"]) if ids is None else ids
        self.slot_tables = {}

    def __reduce__(self):
        whole = len(self.ids) == self.meta["documents"]
        return Corpus, (str(self.folder), None, None if whole else self.ids)

    def open(self, name, dtype, count):
        path = self.folder / f"{name}.bin"
        if not path.is_file() or path.stat().st_size != count * np.dtype(dtype).itemsize:
            raise UserError(f"{path}: the file is missing or cut short; delete the folder and prepare it anew")
        return np.memmap(path, dtype, "r").view(np.ndarray)

    def split(self, held_out=0.05):
        """(train, dev): every n-th document is held out, at least one. UserError where there is only one document."""
        count, total = max(1, min(len(self.ids) - 1, round(held_out * len(self.ids)))), len(self.ids)
        if total < 2:
            raise UserError(f"{self.folder}: a corpus of one document cannot be split; add text")
        held = np.zeros(total, bool)
        held[(np.arange(count) * total + total // 2) // count] = True
        return Corpus(self.folder, ids=self.ids[~held]), Corpus(self.folder, ids=self.ids[held])

    @cached_property
    def bounds(self):
        """(starts, ends): the first token of each document in view, and the one after its last."""
        return self.sentences[self.documents[self.ids]], self.sentences[self.documents[self.ids + 1]]

    def slot_table(self, length):
        """(D + 1,) the first slot of each document, and the total: a document has as many slots as stretches of `length` tokens cover it."""
        if length not in self.slot_tables:
            starts, ends = self.bounds
            self.slot_tables[length] = np.concatenate([[0], np.cumsum(-((starts - ends) // length))])
        return self.slot_tables[length]

    def slots(self, length):
        """Examples in an epoch."""
        return int(self.slot_table(length)[-1])

    def segments(self, position, rows, length, seed, short_prob=0.1):
        """Examples position .. position + rows - 1 of an endless stream, as Segments: a function of its arguments, so resuming needs only the position.

        length: room for the text of both parts, in tokens, at least 2. Each epoch takes the slots in another order and cuts the documents elsewhere.
        A target length is `length`, or with short_prob uniform in 2..length; a shorter document comes whole.
        """
        if length < 2:
            raise UserError(f"corpus.segments: length {length} leaves no room for two parts; make sequences longer")
        table = self.slot_table(length)
        number = position + np.arange(rows, dtype=np.int64)
        epoch, index = np.divmod(number, table[-1])
        slot = permute(index, int(table[-1]), hashed(seed, 0, epoch))
        document = np.searchsorted(table, slot, side="right") - 1
        begin, end = self.bounds[0][document], self.bounds[1][document]
        target = np.where(below(2**30, hashed(seed, 1, number)) < short_prob * 2**30, 2 + below(length - 1, hashed(seed, 2, number)), length)
        size = np.minimum(target, end - begin)
        spare = (table[document + 1] - table[document]) * length - (end - begin)
        shift = below(spare + 1, hashed(seed, 3, epoch, document)) - below(length - target + 1, hashed(seed, 4, number))
        start = begin + np.clip((slot - table[document]) * length - shift, 0, end - begin - size)
        return self.cut(document, start, size, target, length, lambda stream: hashed(seed, stream, number))

    def cut(self, document, start, size, target, length, draw):
        """Segments of the runs [start, start + size), parted at a sentence boundary inside, each as likely as the next."""
        first_boundary = np.searchsorted(self.sentences, start, side="right")
        inside = np.searchsorted(self.sentences, start + size, side="left") - first_boundary
        chosen = self.sentences[first_boundary + below(np.maximum(inside, 1), draw(5))]
        middle = np.where(inside > 0, chosen, start + size)
        first, second = middle - start, start + size - middle
        other_start, other = self.elsewhere(document, start, size, np.where(inside > 0, second, target - first), draw)
        gathered = [self.gather(s, n, length) for s, n in ((start, first), (middle, second), (other_start, other))]
        parts = [tensor for part, n in zip(gathered, (first, second, other)) for tensor in (part, torch.from_numpy(n))]
        return Segments(*parts, torch.from_numpy(inside + 1))

    def elsewhere(self, document, start, size, want, draw):
        """(start, length) of runs of up to `want` tokens from another document, from a sentence's start; in a lone document, from before or after the run."""
        starts, ends = self.bounds
        if len(starts) == 1:
            before, after = np.maximum(0, start - starts - want + 1), np.maximum(0, ends - start - size - want + 1)
            place = below(np.maximum(before + after, 1), draw(6))
            found = np.where(place < before, starts + place, start + size + place - before)
            return found, np.where(before + after > 0, want, 0)
        chosen = below(len(starts) - 1, draw(6))
        chosen += chosen >= document
        first = self.documents[self.ids[chosen]]
        last = np.maximum(first, np.searchsorted(self.sentences, ends[chosen] - want, side="right") - 1)  # the last start that leaves room
        found = self.sentences[first + below(last - first + 1, draw(7))]
        return found, np.minimum(want, ends[chosen] - found)

    def gather(self, start, size, length):
        """(R, length) tokens start .. start + size - 1, then zeros."""
        column = np.arange(length)
        block = self.tokens.take(start[:, None] + column, mode="clip").astype(np.int64)
        return torch.from_numpy(block * (column < size[:, None]))
