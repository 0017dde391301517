"""Text files -> a SentencePiece vocabulary, and token files on disk for data/corpus.py.

    path = train_sentencepiece(["books/"], "spiece.model", vocab_size=8000)
    corpus = prepare_corpus(["books/", "wiki.txt"], load_tokenizer(path), "cache/", workers=8)

Everything streams, so memory does not grow with the corpus, and the number of workers does not
change the result.

How text is read (D30 of albert.py):
- A blank line ends a document, as in BERT, or the end of the file, or each line (DOCUMENTS).
- The lines of a document are joined and split into sentences. A line that ends in . ! ? or a
  similar sign ends a sentence too. So a file with one sentence per line is unchanged.
- In a document without such a line every line is a sentence.
- A document also ends with the sentence that reaches 100,000 characters, and at the end of a
  worker's chunk. Chunks have 4 MiB and end at a blank line if one is near.
"""
import hashlib
import io
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import sentencepiece
from tqdm import tqdm

from common.cli import UserError
from common.files import fingerprints, lock, read_json, waiting_lock, write_atomic, write_json
from common.run import LOCK
from common.tokenization import load_tokenizer, preprocess
from data.corpus import NAMES, Corpus, read_meta

MARK = "vocabulary.json"  # in the folder of a corpus: what it was made from
DOCUMENTS = ("blank", "file", "line")  # what ends a document
FORMAT = 1  # of the token files. Another number makes all caches anew
SMALL_TEXT = 1_000_000  # bytes
VOCABULARIES = ((8e6, 2000), (100e6, 8000), (math.inf, 30_000))  # (bytes of text, size)
CHUNK = 1 << 22  # bytes per read of a worker
WINDOW = 1 << 18  # bytes in which to find the end of a chunk
LONGEST_DOCUMENT = 100_000  # characters
CHUNK_END = re.compile(  # after a blank line, else at white space, or before a character
    rb"(?s)(?:.*?\n[ \t\r]*\n|.*?[\n ]|.*?(?=[\x00-\x7f\xc2-\xf4])|)")
SENTENCE_END = re.compile(  # one set of signs at its beginning is twice as fast as two alternatives
    r"""[.!?…؟।。！？](?:(?<=[.!?…؟।])[.!?…؟।]*["'”’»)\]_*]*\s+|(?<=[。！？])[。！？]*["”’」』）]*\s*)""")
ENDED_LINE = re.compile(r"""[.!?…؟।。！？]["'”’»)\]_*」』）]?\s*(?:\n|$)""")
OPEN_LINE_END = re.compile(  # the end of a line that does not end a sentence
    r"""(?<![\s.!?…؟।。！？])(?<![.!?…؟।。！？]["'”’»)\]_*」』）])\s*\n\s*""")
OPENING = " \"'“‘«([_*¿¡-–—"
ABBREVIATIONS = frozenset("""
    mr mrs ms messrs mme mlle dr st prof rev hon capt col gen lt sgt maj cmdr gov sen rep pres esq
    jr sr vs vol vols fig figs ch pp cf viz ed eds eg ie al approx dept univ assn bros inc ltd corp
    co mt ft jan feb mar apr jun jul aug sep sept oct nov dec
""".split())
SAMPLE_BYTES = 200_000_000  # of text to train a vocabulary on
DELIMITER = "\ue000"  # a private character. In training no token of SentencePiece crosses it


# --- reading text --------------------------------------------------------------------------------

def text_files(paths):
    """The files of `paths`: files themselves, and *.txt in folders at any depth, sorted. Warns of
    those that are no regular files, such as pipes, which would never end."""
    files = []
    for path in map(Path, paths):
        inside = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
        regular = [each for each in inside if each.is_file()]
        if not regular:
            raise UserError(f"{path}: there is no such file or folder, or no *.txt file is in it")
        for each in inside:
            if not each.is_file() and not each.is_dir():
                warnings.warn(f"{each}: not read, since it is not a regular file")
        files += regular
    for path in files:
        with open(path, "rb") as file:
            if b"\0" in file.read(WINDOW):
                raise UserError(f"{path}: UTF-16 or binary; save it as UTF-8 text")
    return files


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
                end += 2  # a closing quote after a space
            sentences.append(text[start:end].strip())
            start = end
    sentences.append(text[start:].strip())
    return list(filter(None, sentences))


def read_documents(text, end="blank"):
    """Documents, each a list of sentences, of one chunk of a file. end: one of DOCUMENTS."""
    documents = []
    size = LONGEST_DOCUMENT
    for block in re.split(r"\n" if end == "line" else r"\n\s*\n", text):
        if ENDED_LINE.search(block):
            block = OPEN_LINE_END.sub(" ", block)
        if end != "file":
            size = LONGEST_DOCUMENT
        for sentence in chain.from_iterable(map(split_sentences, block.split("\n"))):
            if size >= LONGEST_DOCUMENT:
                documents.append([])
                size = 0
            documents[-1].append(sentence)
            size += len(sentence)
    return documents


def chunks(path):
    """(path, start byte, end byte) of chunks of about CHUNK bytes, which depend only on the
    file."""
    size = os.path.getsize(path)
    start = 0
    with open(path, "rb") as file:
        while start < size:
            end = size
            if start + CHUNK + WINDOW < size:
                file.seek(start + CHUNK)
                end = start + CHUNK + CHUNK_END.match(file.read(WINDOW)).end()
            yield path, start, end
            start = end


# --- a vocabulary --------------------------------------------------------------------------------

def sample_lines(files, lower):
    """Lines of the files, or every n-th line if the text has more than SAMPLE_BYTES. Overlong lines
    are read in parts, to bound memory."""
    every = 1 + sum(map(os.path.getsize, files)) // SAMPLE_BYTES
    for path in files:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            lines = iter(lambda: file.readline(1 << 12), "")
            for line in islice(lines, 0, None, every):
                yield preprocess(line) if lower else line.strip()


def train_sentencepiece(files, out_path, vocab_size=30000, lower=True, exact=True):
    """Train a unigram model on text files or folders. Returns out_path, the file to write. exact:
    False for fewer tokens than vocab_size, if the text does not allow more.

    Ids: 0 <pad>, 1 <unk>, 2 [CLS], 3 [SEP], 4 [MASK]. Settings are ALBERT's, with two differences:
    - ALBERT's vocabulary has ( ) " - . – £ € as user-defined symbols. Here they are ordinary
      characters, since transformers 5 cuts a text at such symbols and puts a "▁" after each.
    - With lower, no token has a digit before a comma. Only ALBERT's tokenizer cuts those again.

    Memory: 24 bytes per byte of text, so of more than SAMPLE_BYTES only every n-th line is used
    (ALBERT used 10 million lines). The file depends only on the text, settings and
    sentencepiece version. UserError if the text cannot fill vocab_size, with the largest size that
    works.
    """
    files = text_files(files)
    try:  # in another process, since SentencePiece ignores signals
        train = partial(sentencepiece_model, vocab_size, lower, exact)
        model, = in_order(train, [files], 1)
    except (RuntimeError, ValueError) as error:
        fault = vocabulary_fault(vocab_size, fitting_vocabulary(files), error)
        raise UserError(f"{files[0]}: {fault}") from None
    write_atomic(out_path, model)
    return out_path


def vocabulary_fault(vocab_size, fitting, error):
    """SentencePiece's error on a text, as a line with a size that works. fitting: the size that
    suits the text."""
    if largest := re.search(r"too high .* <= (\d+)", str(error)):
        suits = f"; {fitting} suits it" if fitting < int(largest[1]) else ""
        return (f"too little text for a vocabulary of {vocab_size} tokens; give more text, or "
                f"--vocab_size {largest[1]}, the largest that it allows{suits}")
    if smallest := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
        return f"--vocab_size {vocab_size} is below {smallest[1]}, the characters of this text"
    return f"no --vocab_size {vocab_size} can be trained on this text: {error}"


def sentencepiece_model(vocab_size, lower, exact, files):
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
        num_threads=1,  # the result depends on their number
        input_sentence_size=10_000_000, max_sentence_length=1 << 20,
        hard_vocab_limit=exact, minloglevel=2)
    return model.getvalue()


# --- worker processes ----------------------------------------------------------------------------

def be_worker():
    """In a worker process: leave signals to the parent, and exit with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def in_order(work, jobs, workers):
    """Yield work(job) for each job, in order, from worker processes. At most eight jobs per worker
    wait, so that a slow disk does not fill the memory. Kills the workers if this process is
    stopped, or the caller ends early."""
    jobs = iter(jobs)
    with ProcessPoolExecutor(workers, initializer=be_worker) as pool:
        try:
            while some := list(islice(jobs, 8 * workers)):
                yield from pool.map(work, some)
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise


# --- token files ---------------------------------------------------------------------------------

def encode_chunk(tokenizer, dtype, end_of_document, job):
    """(tokens, the first token of each sentence, the first sentence of each document) of one chunk,
    as numbers."""
    path, start, end = job
    with open(path, "rb") as file:
        file.seek(start)
        text = file.read(end - start).decode("utf-8", errors="replace")
    if "\ufffd" in text:
        warnings.warn(f"{path}: not all UTF-8; invalid bytes become U+FFFD")
    documents = []
    for document in read_documents(text.lstrip("\ufeff"), end_of_document):
        # a sentence has no tokens if the tokenizer drops its characters
        sentences = list(filter(None, tokenizer.encode_batch(document)))
        if sentences:
            documents.append(sentences)
    sentences = list(chain.from_iterable(documents))
    tokens = np.fromiter(chain.from_iterable(sentences), dtype)
    starts = [np.cumsum([0, *map(len, parts)])[:-1] for parts in (sentences, documents)]
    return tokens, *starts


def write_tokens(folder, results):
    """Write the three files from encode_chunk's results. Returns the counts."""
    count = dict.fromkeys(NAMES, 0)
    with ExitStack() as stack:
        tokens, sentences, documents = [
            stack.enter_context(open(folder / f"{name}.bin", "wb")) for name in NAMES]
        for chunk in results:
            tokens.write(chunk[0])
            sentences.write(chunk[1] + count["tokens"])
            documents.write(chunk[2] + count["sentences"])
            for name, part in zip(NAMES, chunk):
                count[name] += len(part)
        sentences.write(np.int64(count["tokens"]))
        documents.write(np.int64(count["sentences"]))
    return count


def prepare_corpus(paths, tokenizer, out_folder, workers=1, documents="blank"):
    """Turn text files and folders (their *.txt) into token files in out_folder. Returns the Corpus.
    If interrupted, the folder has no meta.json, and Corpus refuses it. documents: the end of a
    document, one of DOCUMENTS."""
    files = text_files(paths)
    folder = Path(out_folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").unlink(missing_ok=True)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 65536 else np.uint32)
    work = partial(encode_chunk, tokenizer, dtype, documents)
    jobs = chain.from_iterable(map(chunks, files))
    with closing(in_order(work, jobs, workers)) as results:
        count = write_tokens(folder, tqdm(results, unit=" chunks of 4 MiB", disable=None))
    if not count["sentences"]:
        raise UserError(f"{files[0]}: there is no sentence in the corpus")
    write_json(folder / "meta.json", {
        "format": FORMAT, "tokenizer": tokenizer.fingerprint, "lower": tokenizer.lower,
        "rules": [*tokenizer.rules], "dtype": dtype.name, **count, "files": len(files),
        "sources": fingerprints(files)})
    return Corpus(folder, tokenizer)


def fitting_vocabulary(files):
    """The vocabulary size for this amount of text. With more, rare tokens are not learned."""
    size = sum(map(os.path.getsize, files))
    return next(vocabulary for most, vocabulary in VOCABULARIES if size < most)


def print_vocabulary_hint(files, vocab_size):
    """Print a size that suits the text better. A small text may not allow a larger vocabulary."""
    fitting = fitting_vocabulary(files)
    small = sum(map(os.path.getsize, files)) < SMALL_TEXT and vocab_size < fitting
    if not small and not fitting / 4 <= vocab_size <= 2 * fitting:
        print(f"hint: --vocab_size {fitting} suits this amount of text better")


def difference(before, about):
    """The difference between a folder's vocabulary.json and a command's, in words."""
    if before.get("sources") != about["sources"]:
        return "holds other files than a corpus of this text"
    parts = []
    for name, value in about.items():
        if before.get(name) != value:
            parts.append("another --tokenizer" if name == "tokenizer"
                         else f"--{name} {before.get(name)}, now {value}")
    return f"was made with {', '.join(parts)}"


def other_content(folder, about):
    """The difference between the content of a folder and a corpus with this vocabulary.json, in
    words. "" without one."""
    mark = folder / MARK
    # earlier versions left "blank" out
    before = {"documents": "blank", **read_json(mark)} if mark.exists() else {}
    own = {folder / LOCK} | ({mark} if "sources" in before else set())
    return difference(before, about) if {*folder.glob("*")} - own and before != about else ""


def check_folder(folder, about):
    """UserError if a folder has other content than a corpus with this vocabulary.json."""
    if words := other_content(folder, about):
        raise UserError(f"{folder}: {words}; choose another folder")


def make_corpus(paths, folder, vocab_size, tokenizer="", workers=1, documents="blank",
                replace=False):
    """Make a tokenizer, trained on the text or copied from the path `tokenizer`, and the token
    files, all in a folder. Returns (tokenizer, Corpus). documents: as in prepare_corpus.

    vocabulary.json, which is written first, records their sources, so that the same command
    continues. UserError if another process makes a corpus in the folder, or if the folder has other
    content, unless replace deletes it.
    """
    folder = Path(folder)
    files = text_files(paths)
    given = tokenizer and load_tokenizer(tokenizer)
    about = {"vocab_size": vocab_size, "tokenizer": given and given.fingerprint,
             "documents": documents, "sources": fingerprints(files)}
    if replace and other_content(folder, about):
        shutil.rmtree(folder)
    check_folder(folder, about)  # first, so that no lock file is left in a folder of the user
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder / LOCK)
    check_folder(folder, about)  # another process may have made a corpus before the lock
    write_json(folder / MARK, about)
    model = folder / "spiece.model"
    if given:
        given.save(folder)
    elif not model.exists():
        print(f"training a vocabulary of {vocab_size} tokens")
        train_sentencepiece(files, model, vocab_size)
        print_vocabulary_hint(files, vocab_size)  # after errors that name another size
    tokenizer = given or load_tokenizer(model)
    if not read_meta(folder):
        prepare_corpus(files, tokenizer, folder, workers, documents)
    return tokenizer, Corpus(folder, tokenizer)


def cached_corpus(paths, cache, vocab_size, tokenizer=""):
    """The folder of the cache with the vocabulary and the token files of a text, made once.
    Arguments as in make_corpus. The folder's name is a hash of what determines its content. Other
    processes wait for the one that makes it."""
    given = load_tokenizer(tokenizer) if tokenizer else None
    vocabulary = [given.fingerprint, *given.rules] if given else [vocab_size]
    key = [fingerprints(text_files(paths)), *vocabulary, sentencepiece.__version__, FORMAT]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    folder = Path(cache, f"corpus-{digest}")
    if not read_meta(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with waiting_lock(Path(cache, f"corpus-{digest}.lock")):
            if not read_meta(folder):  # the process that it waited for may have made it
                make_corpus(paths, folder, vocab_size, tokenizer, workers=os.cpu_count() or 1)
    return folder
