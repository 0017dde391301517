"""Text files -> a SentencePiece vocabulary, and token files on disk for data/corpus.py.

    path = train_sentencepiece(["books/"], "spiece.model", vocab_size=8000)
    corpus = prepare_corpus(["books/", "wiki.txt"], load_tokenizer(path), "cache/", workers=8)

Everything streams, so memory does not grow with the corpus, and the number of workers does not
change the result.

How text is read (D24 of albert.py). The first 128 KiB of a file decide its layout:
- wrapped: most lines are so full that the first word of the next line would not have fitted, and
  most do not end a sentence. The lines of a paragraph are joined and split into sentences.
- split: lines hold several sentences each, so each line is split. Otherwise a line is a sentence,
  as in BERT.
- blank_ends: blank lines end documents, as in BERT. Not so in wrapped text, and where most
  paragraphs are single lines, some of several sentences: there the file is one document.
A document also ends after 100,000 characters, and where the chunks of workers meet: every 4 MiB, at
the end of a document if one is near.
"""
import contextlib
import io
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections import namedtuple
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path

import numpy as np
import sentencepiece
from tqdm import tqdm

from common.cli import UserError
from common.checkpoint import (
    atomic, fingerprint, fingerprints, partials, read_json, write_atomic, write_json)
from common.tokenization import load_tokenizer, preprocess
from data.corpus import NAMES, Corpus, read_meta

SAMPLE = 1 << 17  # bytes that decide the layout
CHUNK = 1 << 22  # bytes that a worker reads at once
WINDOW = 1 << 18  # bytes in which the end of a chunk is looked for
LONGEST_DOCUMENT = 100_000  # characters
CUTS = [re.compile(pattern) for pattern in (  # where a chunk may end, best first
    rb"\n[ \t\r]*\n",  # after a blank line
    rb"\n",
    rb" ",
    rb"(?=[\x00-\x7f\xc2-\xf4])",  # at the first byte of a character
)]
SENTENCE_END = re.compile(  # one set of signs at its beginning: twice as fast as two alternatives
    r"""[.!?…؟।。！？](?:(?<=[.!?…؟।])[.!?…؟।]*["'”’»)\]_*]*\s+|(?<=[。！？])[。！？]*["”’」』）]*\s*)""")
OPENING = " \"'“‘«([_*¿¡-–—"
ABBREVIATIONS = frozenset("""
    mr mrs ms messrs mme mlle dr st prof rev hon capt col gen lt sgt maj cmdr gov sen rep pres esq
    jr sr vs vol vols fig figs ch pp cf viz ed eds eg ie al approx dept univ assn bros inc ltd corp
    co mt ft jan feb mar apr jun jul aug sep sept oct nov dec
""".split())
SAMPLE_BYTES = 200_000_000  # of text from which a vocabulary is trained
DELIMITER = "\ue000"  # a private character; in training no token of SentencePiece crosses it


# --- reading text --------------------------------------------------------------------------------

def text_files(paths):
    """The files that `paths` stand for: files as they are, and *.txt in folders at any depth,
    sorted, except for a vocabulary's vocab.txt."""
    files = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder; check the path")
        inside = [path]
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*.txt") if each.name != "vocab.txt")
        if not inside:
            raise UserError(f"{path}: no *.txt file is in it")
        files += inside
    for path in files:
        with open(path, "rb") as file:
            if b"\0" in file.read(SAMPLE):
                raise UserError(f"{path}: UTF-16 or binary, since it has zero bytes; save it as "
                                "UTF-8 text")
    return files


# how a file is read, as the docstring of the module says
Layout = namedtuple("Layout", "wrapped split blank_ends")


def ends_sentence(text, start, end):
    """Whether a match text[start:end] of SENTENCE_END ends a sentence: no lower-case word follows,
    and no abbreviation or initial precedes."""
    following = text[end]
    if following in OPENING:
        following = text[end:end + 8].lstrip(OPENING)[:1]
    if following.islower():
        return False
    if text[start] != "." or end - start > 2 and not text[start + 1:end].isspace():
        return True
    near = max(0, start - 20)
    word = text[max(near, text.rfind(" ", near, start) + 1):start].lstrip(OPENING)
    if word.lower() in ("no", "nos"):  # an abbreviation only before a number
        return not following.isdigit()
    initial = len(word) == 1 and word.isupper() and word != "I"
    return not initial and "." not in word and word.lower() not in ABBREVIATIONS


def split_sentences(text):
    """The sentences of one paragraph, stripped, none empty."""
    sentences = []
    start = 0
    for match in SENTENCE_END.finditer(text):
        end = match.end()
        if end < len(text) and ends_sentence(text, match.start(), end):
            if text.startswith('" ', end) and text.count('"', start, end) % 2:
                end += 2  # a closing quote that a tokeniser set apart
            sentences.append(text[start:end].strip())
            start = end
    sentences.append(text[start:].strip())
    return list(filter(None, sentences))


def text_blocks(text):
    """Blocks of non-blank lines, each a list of stripped lines."""
    lines = [line.strip() for line in re.split("\r\n|\r|\n", text)]
    return [list(block) for filled, block in groupby(lines, bool) if filled]


def layout_of(path):
    """The Layout of a file, by its beginning."""
    with open(path, "rb") as file:
        return find_layout(file.read(SAMPLE).decode("utf-8", errors="replace"))


def find_layout(text):
    """The Layout of a text."""
    blocks = text_blocks(text)
    lines = list(chain.from_iterable(blocks))
    # each line of a block but the last, with the first word of the next line
    inner = [(line, after.split(None, 1)[0])
             for block in blocks for line, after in zip(block, block[1:])]
    width = np.percentile([len(line) for line, _ in inner], 90) if inner else 0
    full = sum(len(line) + 1 + len(word) > width for line, word in inner) > 0.6 * len(inner)
    ended = sum(line[-1] in ".!?" for line, _ in inner) > 0.5 * len(inner)
    wrapped = bool(full and not ended and width >= 30)
    sentences = sum(len(split_sentences(line)) for line in lines)
    split = wrapped or sentences > 1.5 * len(lines)
    several_lines = len(lines) >= 1.5 * len(blocks)
    single_sentences = sentences <= 1.05 * len(blocks)
    return Layout(wrapped, split, not wrapped and (several_lines or single_sentences))


def read_documents(text, layout):
    """Documents, each a list of sentences, of one chunk of a file."""
    documents = [[]]
    size = 0
    for block in text_blocks(text):
        for unit in [" ".join(block)] if layout.wrapped else block:
            for sentence in split_sentences(unit) if layout.split else [unit]:
                if size >= LONGEST_DOCUMENT:
                    documents.append([])
                    size = 0
                documents[-1].append(sentence)
                size += len(sentence)
        if layout.blank_ends:
            size = LONGEST_DOCUMENT
    return list(filter(None, documents))


def chunks(path):
    """(path, start byte, end byte, layout) of chunks of about CHUNK bytes; a function of the file
    alone."""
    layout = layout_of(path)
    size = os.path.getsize(path)
    start = 0
    with open(path, "rb") as file:
        while start < size:
            end = size
            if start + CHUNK + WINDOW < size:
                file.seek(start + CHUNK)
                window = file.read(WINDOW)
                ends = [match.end() for cut in CUTS if (match := cut.search(window))]
                end = start + CHUNK + (ends[0] if ends else 0)
            yield str(path), start, end, layout
            start = end


# --- a vocabulary --------------------------------------------------------------------------------

def sample_lines(files, lower):
    """Lines of the files, evenly spread, about SAMPLE_BYTES of them; parts of an overlong line, to
    bound memory."""
    rate = min(1.0, SAMPLE_BYTES / max(1, sum(os.path.getsize(path) for path in files)))
    count = 0
    for path in files:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            for line in iter(lambda: file.readline(1 << 16), ""):
                count += 1
                if int(count * rate) > int((count - 1) * rate):
                    yield preprocess(line) if lower else line.strip()


def train_sentencepiece(files, out_path, vocab_size=30000, lower=True, threads=1):
    """Train a unigram model on text files or folders; returns out_path (a file to be written).

    Ids: 0 <pad>, 1 <unk>, 2 [CLS], 3 [SEP], 4 [MASK]. Settings are ALBERT's, with two differences:
    - ALBERT's vocabulary has ( ) " - . – £ € as user-defined symbols. Here they are ordinary
      characters, since transformers 5 cuts a text at such symbols and puts a "▁" after each.
    - With lower, no token has a digit before a comma. ALBERT's tokenizer alone cuts those again.

    Memory: 24 bytes a byte of text, so of more than SAMPLE_BYTES only every n-th line is used
    (ALBERT used 10 million lines). The same text, settings, threads and sentencepiece version: the
    same file. UserError where the text cannot fill vocab_size: it names the largest that works.
    """
    files = text_files(files)
    try:  # in another process, which a signal can end: SentencePiece lets none through
        train = partial(sentencepiece_model, vocab_size, lower, threads)
        model, = in_order(train, [files], 1)
    except (RuntimeError, ValueError) as error:
        reason = str(error).rpartition("] ")[2].strip()  # without the line of SentencePiece's code
        raise UserError(f"{files[0]}: no vocab_size {vocab_size} can be trained on this text: "
                        f"{reason}") from None
    out_path = Path(out_path)
    out_path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out_path, model)
    return out_path


def sentencepiece_model(vocab_size, lower, threads, files):
    """The model (bytes) that SentencePiece trains on text files."""
    lines = list(filter(None, sample_lines(files, lower)))
    if not lines:
        raise UserError(f"{files[0]}: there is no text to train on")
    if lower:
        lines = [re.sub("(?<=[0-9]),", DELIMITER + ",", line) for line in lines]
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(0)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="unigram",
        vocab_size=vocab_size, character_coverage=0.99995, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"], pretokenization_delimiter=DELIMITER,
        num_threads=threads, input_sentence_size=10_000_000, max_sentence_length=1 << 20,
        minloglevel=2)
    return model.getvalue()


# --- worker processes ----------------------------------------------------------------------------

def be_worker():
    """In a worker process: leave signals to the parent, and end when it does, however it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def in_order(work, jobs, workers):
    """Yield work(job) of each job, in order, by worker processes. At most eight jobs per worker
    wait, so that a slow disk does not fill the memory. Kills the workers where this process is told
    to stop, or the caller ends early."""
    jobs = iter(jobs)
    with ProcessPoolExecutor(workers, initializer=be_worker) as pool:
        try:
            while some := list(islice(jobs, 8 * workers)):
                yield from pool.map(work, some)
        except BrokenProcessPool:
            raise UserError("a worker process was killed, perhaps for lack of memory; use fewer "
                            "--workers") from None
        except BaseException:
            for process in list(pool._processes.values()):
                process.kill()
            raise


# --- token files ---------------------------------------------------------------------------------

def token_dtype(tokenizer):
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 65536 else np.uint32)


def encode_chunk(tokenizer, job):
    """(path, bytes, undecodable sequences, tokens, tokens per sentence, sentences per document) of
    one chunk."""
    path, start, end, layout = job
    with open(path, "rb") as file:
        file.seek(start)
        raw = file.read(end - start)
    text = raw.decode("utf-8", errors="replace")
    broken = text.count("\ufffd") - raw.count("\ufffd".encode())
    documents = read_documents(text.removeprefix("\ufeff"), layout)
    ids = tokenizer.encode_batch(list(chain.from_iterable(documents)))
    lengths = np.array([len(row) for row in ids], np.int64)
    tokens = np.fromiter(chain.from_iterable(ids), token_dtype(tokenizer), int(lengths.sum()))
    owner = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    counts = np.bincount(owner[lengths > 0], minlength=1)
    return path, end - start, broken, tokens, lengths[lengths > 0], counts[counts > 0]


def write_tokens(results, tokens, sentences, documents, bar):
    """Write the three files from encode_chunk's results; returns the counts."""
    count = dict.fromkeys((*NAMES, "replaced"), 0)
    for path, size, broken, ids, lengths, per_document in results:
        if broken and not count["replaced"]:
            print(f"{path}: not all is UTF-8; bad bytes become U+FFFD", file=sys.stderr)
        tokens.write(ids)
        sentences.write(count["tokens"] + np.cumsum(lengths) - lengths)
        documents.write(count["sentences"] + np.cumsum(per_document) - per_document)
        count["tokens"] += len(ids)
        count["sentences"] += len(lengths)
        count["documents"] += len(per_document)
        count["replaced"] += broken
        bar.update(size)
    sentences.write(np.int64(count["tokens"]))
    documents.write(np.int64(count["sentences"]))
    return count


def prepare_corpus(paths, tokenizer, out_folder, workers=1):
    """Turn text files and folders (their *.txt) into token files in out_folder; returns the Corpus.

    A folder made from the same files (path, size, time of change) by the same tokenizer is reused.
    Interrupted at any point, a folder holds what it held before, or what Corpus refuses.
    """
    folder = Path(out_folder)
    files = text_files(paths)
    sources = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns]
               for path in files]
    made_from = {"format": 1, "tokenizer": tokenizer.fingerprint, "lower": tokenizer.lower,
                 "dtype": token_dtype(tokenizer).name, "sources": sources}
    if made_from.items() <= read_meta(folder).items():
        return Corpus(folder, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    for left in partials(folder, "*.bin"):  # of a process that was killed
        left.unlink()
    total = sum(size for _, size, _ in sources)
    with contextlib.ExitStack() as stack:  # at its end the files get their names
        jobs = chain.from_iterable(map(chunks, files))
        results = in_order(partial(encode_chunk, tokenizer), jobs, workers)
        stack.enter_context(contextlib.closing(results))
        made = [stack.enter_context(atomic(folder / f"{name}.bin")) for name in NAMES]
        bar = tqdm(total=total, unit="B", unit_scale=True, desc="tokens", disable=None)
        count = write_tokens(results, *made, stack.enter_context(bar))
        if not count["sentences"]:
            raise UserError(f"{files[0]}: there is no sentence in the corpus")
        (folder / "meta.json").unlink(missing_ok=True)  # until the new one is written no corpus
    prints = {name: fingerprint(folder / f"{name}.bin") for name in NAMES}
    write_json(folder / "meta.json", {**made_from, **count, "files": prints})
    return Corpus(folder, tokenizer)


def make_corpus(paths, folder, vocab_size, tokenizer="", lower=None, workers=1):
    """Make a tokenizer, trained on the text or copied from the path `tokenizer`, and the token
    files, all in a folder; returns (tokenizer, Corpus).

    A vocabulary trained on the same files before is reused: vocabulary.json, which is written
    first, says what it is made from. UserError where the folder holds a file of others under a name
    that is written here.
    """
    folder = Path(folder)
    files = text_files(paths)
    given = tokenizer and load_tokenizer(tokenizer, lower)
    about = {"pieces": vocab_size, "lower": lower is not False, "sources": fingerprints(files)}
    if given:
        about["tokenizer"] = given.fingerprint
    model = folder / "spiece.model"
    mark = folder / "vocabulary.json"
    before = read_json(mark, dict) if mark.exists() else {}
    if not read_meta(folder) and "sources" not in before:
        refuse_others(folder, given)
    folder.mkdir(parents=True, exist_ok=True)
    if before != about:
        if not given:
            model.unlink(missing_ok=True)
        write_json(mark, about)
    if given:
        given.save(folder)
    elif not model.exists():
        print(f"training a vocabulary of {vocab_size} tokens", flush=True)
        train_sentencepiece(files, model, vocab_size, lower is not False, threads=workers)
    tokenizer = given or load_tokenizer(model, lower)
    return tokenizer, prepare_corpus(files, tokenizer, folder, workers=workers)


def refuse_others(folder, given):
    """UserError where the folder has a file that make_corpus would write, other than the given
    vocabulary."""
    names = [*(f"{name}.bin" for name in NAMES), "meta.json", "vocabulary.json", "spiece.model",
             "vocab.txt"]
    for path in [folder / name for name in names]:
        if path.exists() and not (given and path.samefile(given.path)):
            raise UserError(f"{path}: in the way, and this command has not made it; choose another "
                            "folder")
