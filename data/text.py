"""Text -> token files on disk, for data/corpus.py.

    corpus = prepare_corpus(["books/", "wiki.txt"], tokenizer, "cache/", workers=8)

Everything streams, so memory does not grow with the corpus, and the number of workers does not change the result.

How text is read. A file's first 128 KiB decide its layout:
- wrapped: most lines are so full that the next line's first word would not have fitted, and most do not end a
  sentence. The lines of a paragraph are joined and split into sentences.
- split: lines hold several sentences each (WikiText), so each line is split. Otherwise a line is a sentence (BERT).
- blank_ends: blank lines end documents (BERT). Not so in wrapped text, in files with ` = Title = ` lines and where
  most paragraphs are single lines (of several sentences here and there): there the file is one document, cut before
  titles and before headings in capitals that come after 2,000 characters or more.
A document also ends after 100,000 characters, and where workers' shares meet, every 4 MiB, at a document's end if one
is near. The licence that Project Gutenberg puts before and behind its books is left out.
"""
import gc
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
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from common.cli import UserError
from common.files import fingerprint, fingerprints, read_json, write_atomic
from common.tokenization import load_tokenizer
from data.corpus import NAMES, Corpus, read_meta
from data.vocabulary import text_files, train_sentencepiece
from data.words import WordCache, token_dtype

# bytes: what decides the layout, a worker's share, where its end is looked for
SAMPLE, CHUNK, WINDOW = 1 << 17, 1 << 22, 1 << 18
HEADING_AFTER, LONGEST_DOCUMENT = 2_000, 100_000  # characters
TITLE = re.compile(r"= [^=\s](.*[^=\s])? =")
CUTS = [re.compile(pattern) for pattern in (  # where a share may end, best first: before a title, after a blank line..
    rb"\n(?=[ \t]*= [^=\s][^\n=]* =[ \t]*\r?\n)", rb"\n[ \t\r]*\n", rb"\n", rb" ", rb"(?=[\x00-\x7f\xc2-\xf4])")]
SENTENCE_END = re.compile(  # one set of signs at its beginning: twice as fast as two alternatives
    r"""[.!?…؟।。！？](?:(?<=[.!?…؟।])[.!?…؟।]*["'”’»)\]_*]*\s+|(?<=[。！？])[。！？]*["”’」』）]*\s*)""")
OPENING = " \"'“‘«([_*¿¡-–—"
ABBREVIATIONS = frozenset("""mr mrs ms messrs mme mlle dr st prof rev hon capt col gen lt sgt maj cmdr gov sen rep pres
    esq jr sr vs vol vols fig figs ch pp cf viz ed eds eg ie al approx dept univ assn bros inc ltd corp co mt ft jan feb
    mar apr jun jul aug sep sept oct nov dec""".split())
LONGEST_ABBREVIATION = max(map(len, ABBREVIATIONS))

# How Project Gutenberg's files begin and end. Where a wrapped line goes on, the marker ends with "***" on the next one.
LICENCE_WINDOW = 1 << 16  # bytes; its footer is 20 kB long, its header 1 kB, before 2004 up to 15 kB
LICENCE_BEFORE = re.compile(rb"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG[^\n]*\n(?:[^*\n]+\*\*\*[ \t\r]*\n)?"
                            rb"|^\*END[* ]+THE SMALL PRINT![^\n]*\n", re.MULTILINE | re.IGNORECASE)
LICENCE_BEHIND = re.compile(rb"^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG"
                            rb"|^End of (?:the |this )?Project Gutenberg", re.MULTILINE | re.IGNORECASE)


class Layout(NamedTuple):
    """How a file's lines are to be read: see the module's docstring."""
    wrapped: bool
    split: bool
    blank_ends: bool


def ends_sentence(text, start, end):
    """Whether a SENTENCE_END match text[start:end] is one: no lower-case word follows, no abbreviation or initial
    before it."""
    following = text[end]
    if following in OPENING:
        following = text[end:end + 8].lstrip(OPENING)[:1]
    if following.islower():
        return False
    if text[start] != "." or end - start > 2 and not text[start + 1:end].isspace():
        return True
    near = max(0, start - 20)
    word = text[max(near, text.rfind(" ", near, start) + 1):start].lstrip(OPENING)
    if len(word) > LONGEST_ABBREVIATION:
        return "." not in word
    if (lower := word.lower()) in ("no", "nos"):  # an abbreviation only before a number
        return not following.isdigit()
    initial = len(word) == 1 and word.isupper() and word != "I" or "." in word
    return not initial and lower not in ABBREVIATIONS


def split_sentences(text):
    """The sentences of one paragraph, stripped, none empty."""
    found, start = [], 0
    for match in SENTENCE_END.finditer(text):
        end = match.end()
        if end < len(text) and ends_sentence(text, match.start(), end):
            if text.startswith('" ', end) and text.count('"', start, end) % 2:
                end += 2  # a closing quote that a tokeniser set apart
            found.append(text[start:end].strip())
            start = end
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


def text_blocks(text):
    """Blocks of non-blank lines, each a list of stripped lines."""
    blocks, after_blank = [], True
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = line.strip()
        if line and after_blank:
            blocks.append([line])
        elif line:
            blocks[-1].append(line)
        after_blank = not line
    return blocks


def body_of(path):
    """(start, end) in bytes of a file without the licence that Project Gutenberg puts before and behind a book."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(LICENCE_WINDOW)
        starts = [match.end() for match in LICENCE_BEFORE.finditer(head)]
        file.seek(max(0, size - LICENCE_WINDOW))
        tail = LICENCE_BEHIND.search(file.read())
    start = starts[-1] if starts else 0
    end = max(0, size - LICENCE_WINDOW) + tail.start() if tail else size
    return (start, end) if start < end else (0, size)


def layout_of(path, start=0, end=None):
    """The Layout that a file shows from byte `start` on. UserError for what is not text."""
    with open(path, "rb") as file:
        file.seek(start)
        head = file.read(SAMPLE if end is None else min(SAMPLE, end - start))
    if b"\0" in head:
        raise UserError(f"{path}: UTF-16 or binary, since it has zero bytes; save it as UTF-8 text, or take it out")
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
    start, size = body_of(path)
    layout = layout_of(path, start, size)
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


def encode_chunk(words, job):
    """(path, bytes, token array, tokens per sentence, sentences per document, undecodable sequences) of one chunk."""
    path, start, end, layout = job
    with open(path, "rb") as file:
        file.seek(start)
        raw = file.read(end - start)
    text = raw.decode("utf-8", errors="replace")
    broken = text.count("\ufffd") - raw.count("\ufffd".encode())
    documents = read_documents(text.removeprefix("\ufeff"), layout)
    tokens, lengths = words.encode(list(chain.from_iterable(documents)))
    owner = np.repeat(np.arange(len(documents)), [len(document) for document in documents])[lengths > 0]
    counts = np.bincount(owner, minlength=1)
    return path, end - start, tokens, lengths[lengths > 0], counts[counts > 0], broken


def start_worker(work, shared):
    """Keep what every job needs in this worker process, and end when the parent does, however it ends."""
    run_in_worker.work, run_in_worker.shared = work, shared
    gc.disable()  # what a job makes holds no cycles, and looking for them in lists of ids takes a twentieth of the time
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def run_in_worker(job):
    return run_in_worker.work(run_in_worker.shared, job)


def in_order(work, shared, jobs, workers):
    """work(shared, job) of each job, in order; 2 jobs a worker in flight, so that a slow disk does not fill the memory.
    """
    if workers <= 1:
        yield from (work(shared, job) for job in jobs)
        return
    with ProcessPoolExecutor(workers, initializer=start_worker, initargs=(work, shared)) as pool:
        pending = deque()
        try:
            for job in jobs:
                pending.append(pool.submit(run_in_worker, job))
                if len(pending) >= 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise UserError("a worker process was killed, perhaps for want of memory; use fewer --workers") from None
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
    bodies = [end - start for start, end in map(body_of, files)]
    if licences := [size - body for (_, size, _), body in zip(sources, bodies) if body < size]:
        print(f"corpus: {len(licences)} of {len(files)} files have Project Gutenberg's licence before or behind the "
              f"text; it is left out ({sum(licences):,} bytes)", file=sys.stderr)
    total, jobs = sum(bodies), chain.from_iterable(map(chunks, files))
    try:
        with tqdm(total=total, unit="B", unit_scale=True, desc="tokens", disable=None if progress else True) as bar:
            count = write_parts(in_order(encode_chunk, WordCache(tokenizer), jobs, workers), parts, bar)
        if not count["sentences"]:
            raise UserError(f"{files[0]}: there is no sentence in the corpus; give files with text")
        (folder / "meta.json").unlink(missing_ok=True)  # until the new one is written the folder is no corpus
        for part in parts:
            os.replace(part, part.with_suffix(""))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    found = {name: fingerprint(folder / f"{name}.bin") for name in NAMES}
    write_atomic(folder / "meta.json", json.dumps({**made_from, **count, "sources": sources, "files": found}, indent=1))
    return Corpus(folder, tokenizer)


def make_corpus(paths, folder, vocab_size, tokenizer="", lower=None, workers=1, tell=print):
    """A tokenizer, trained on the text or copied from the path `tokenizer`, and the token files, all in a folder;
    returns (tokenizer, Corpus). A vocabulary trained on the same files before is used again (vocabulary.json beside
    it). UserError before any work where a file is no text, and for another command's vocabulary in the folder.
    """
    folder, files = Path(folder), text_files(paths)
    for path in files:
        layout_of(path)
    model, made_from = folder / "spiece.model", folder / "vocabulary.json"
    about = {"pieces": vocab_size, "lower": lower is not False, "sources": fingerprints(files)}
    if model.exists() and not made_from.exists() and not (tokenizer and model.samefile(load_tokenizer(tokenizer).path)):
        raise UserError(f"{model}: another command made this vocabulary; choose another folder, or give it as "
                        "--tokenizer")
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer:
        found = load_tokenizer(tokenizer, lower)
        found.save(folder)
    else:
        if not (model.exists() and read_json(made_from) == about):
            tell(f"training a vocabulary of {vocab_size} pieces")
            made_from.unlink(missing_ok=True)
            train_sentencepiece(files, model, vocab_size, lower is not False, threads=workers)
            write_atomic(made_from, json.dumps(about, indent=1))
        found = load_tokenizer(model, lower)
    return found, prepare_corpus(files, found, folder, workers=workers)
