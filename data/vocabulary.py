"""Text files -> a SentencePiece vocabulary, for common/tokenization.py.

    path = train_sentencepiece(["books/"], "spiece.model", vocab_size=8000)

What is trained is then made `steady`, so that every program cuts a text with it into the same pieces.
"""
import io
import os
import re
import struct
from pathlib import Path

import sentencepiece

from common.cli import UserError
from common.files import write_atomic
from common.tokenization import preprocess

ALBERT_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]  # pieces of their own in ALBERT's vocabulary
SAMPLE_BYTES = 200_000_000  # of text from which a vocabulary is trained
STEP = 2.0 ** -10  # of scores: float32 adds them up exactly to 16,384, which is the score of about 2,000 pieces
NORMAL, SYMBOL, UNUSED = 1, 4, 5  # types of a piece in SentencePiece's model file; 4: user-defined


def text_files(paths):
    """The files that `paths` stand for: a file as it is, a folder's *.txt at any depth, sorted. UserError if none."""
    found = []
    for path in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder; check the path")
        inside = sorted(p for p in path.rglob("*.txt") if p.is_file()) if path.is_dir() else [path]
        if not inside:
            raise UserError(f"{path}: the folder holds no *.txt file; name the files, or rename them to end in .txt")
        found += inside
    if not found:
        raise UserError("corpus: no text file was given; name at least one file or folder")
    return found


def sample_lines(files, lower):
    """The files' lines, evenly thinned out to about SAMPLE_BYTES; an overlong one comes in parts, to bound memory."""
    rate, count, lines = min(1.0, SAMPLE_BYTES / max(1, sum(os.path.getsize(path) for path in files))), 0, []
    for path in files:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            for line in iter(lambda: file.readline(1 << 16), ""):
                count += 1
                if int(count * rate) > int((count - 1) * rate):
                    lines.append(preprocess(line) if lower else line.strip())
    return [line for line in lines if line]


def fields(message):
    """(number, value, all its bytes) of the fields of a protobuf message, in which SentencePiece writes its models. A
    value is an int, 4 or 8 bytes, or the bytes of what has a length."""
    place = 0

    def varint():
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < len(message):
        start, key = place, varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
            value, place = message[place:place + size], place + size
        yield key >> 3, value, message[start:place]


def with_length(number, content):
    """A field of a protobuf message that holds the bytes `content`."""
    size, sizes = len(content), b""
    while size > 127:
        sizes, size = sizes + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + sizes + bytes([size]) + content


def steady(model, lower):
    """A trained model (bytes) that every program reads alike. Three things differ from what SentencePiece writes:

    - Scores are multiples of STEP, so that sums are exact whether they are kept in float32 (SentencePiece) or float64
      (Hugging Face's tokenizers), and the same of two cuts wins, also of those that score the same ("==" + "=").
    - ALBERT_SYMBOLS, which occur in no other piece, are normal pieces: as user-defined ones their scores would be no
      such multiples, and transformers would take them out of a text before anything else.
    - With lower, pieces that end in a digit and a comma are not used: ALBERT's tokenizer cuts them again, others do not.
    """
    pieces = [{number: value for number, value, _ in fields(value)} for key, value, _ in fields(model) if key == 1]
    scores = [round(struct.unpack("<f", piece[2])[0] / STEP) * STEP for piece in pieces]
    best = max(score for score, piece in zip(scores, pieces) if piece.get(3, NORMAL) == NORMAL)
    made = []
    for piece, score in zip(pieces, scores):
        name, kind = piece[1], piece.get(3, NORMAL)
        if kind == SYMBOL:
            score, kind = best, NORMAL
        elif lower and kind == NORMAL and name[-1:] == b"," and name.decode()[-2:-1].isdigit():
            kind = UNUSED
        content = with_length(1, name) + b"\x15" + struct.pack("<f", score)
        made.append(with_length(1, content + (b"" if kind == NORMAL else bytes([3 << 3, kind]))))
    return b"".join(made) + b"".join(whole for key, _, whole in fields(model) if key != 1)


def training_mistake(message, file, vocab_size):
    """SentencePiece's complaint as one line that says what to do."""
    if most := re.search(r"value <= (\d+)", message):
        return f"{file}: the text gives at most {most[1]} pieces, not {vocab_size}; use {most[1]}, or more text"
    if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"{file}: the characters alone need {least[1]} pieces; use a vocab_size well above, not {vocab_size}"
    return f"{file}: SentencePiece cannot train vocab_size {vocab_size} ({message.splitlines()[0]}); change vocab_size"


def train_sentencepiece(files, out_path, vocab_size=30000, lower=True, threads=1):
    """Train a unigram model with ALBERT's settings on text files or folders; returns out_path (a file to be written).

    Ids: 0 <pad>, 1 <unk>, 2 [CLS], 3 [SEP], 4 [MASK], then, with lower, ALBERT_SYMBOLS, each always a piece of its own.
    Memory: 24 bytes a byte of text, so of more than SAMPLE_BYTES only every n-th line is taken (ALBERT took 10 million
    lines). The same text, settings, threads and sentencepiece version: the same file.
    UserError where the text cannot fill vocab_size: it names the largest that works.
    """
    files, out_path, model = text_files(files), Path(out_path), io.BytesIO()
    lines = sample_lines(files, lower)
    if not lines:
        raise UserError(f"{files[0]}: there is no text to train on; give files with text")
    sentencepiece.set_random_generator_seed(0)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="unigram", vocab_size=vocab_size,
            character_coverage=0.99995, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            user_defined_symbols=ALBERT_SYMBOLS if lower else [], num_threads=threads, input_sentence_size=10_000_000,
            max_sentence_length=1 << 20, minloglevel=2)
    except (RuntimeError, ValueError) as error:
        raise UserError(training_mistake(str(error), files[0], vocab_size)) from None
    out_path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out_path, steady(model.getvalue(), lower))
    return out_path
