"""Text to token ids and back: ALBERT's SentencePiece and BERT's WordPiece behind one small interface.

    path = train_sentencepiece(["books/"], "spiece.model", vocab_size=8000)
    tokenizer = load_tokenizer(path)                # a spiece.model, a BERT vocab.txt, or a folder that holds one of them
    ids, segments = pair(tokenizer.encode("A man."), tokenizer.encode("He sat."), 128, tokenizer)

SentencePiece follows the slow Hugging Face ALBERT tokenizer: white space collapsed, `` and '' made ", NFKD, combining marks dropped, lower case;
a piece that ends in a digit and a comma ("▁2011,") is cut again without its comma, so that numbers do not drag commas along.
With lower=False it is plain SentencePiece (case, accents and quotes kept, no comma rule), as translation wants it.
WordPiece follows BERT's own code. Unlike Hugging Face's wrappers, neither reads "[MASK]" or "<unk>" written out in a text as a special token.
"""
import hashlib
import io
import os
import re
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import sentencepiece

from common.cli import UserError

ALBERT_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")  # always pieces of their own (ALBERT's training command)
SPECIALS = {"pad": ("<pad>", "[PAD]"), "unk": ("<unk>", "[UNK]"), "cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>"), "mask": ("[MASK]", "<mask>")}
LONGEST_WORD = 100  # characters; BERT gives up on longer words
MEMO_WORDS = 200_000  # words remembered by WordPiece, about 50 MB


class CharacterTable(dict):
    """A lazily filled table for str.translate: code point -> rule(character)."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def __missing__(self, code):
        value = self[code] = self.rule(chr(code))
        return value


RAW_UNIT = re.compile(r"\s+|``|''|.", re.DOTALL)
DROP_COMBINING = CharacterTable(lambda c: None if unicodedata.combining(c) else c)


def text_files(paths):
    """The text files that `paths` (files or folders) stand for: a file as it is, a folder's *.txt at any depth, sorted. UserError if there is none."""
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


def preprocess(text):
    """ALBERT's clean-up of one text (the slow Hugging Face tokenizer's)."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).translate(DROP_COMBINING)
    return text.lower()


def preprocess_aligned(text):
    """preprocess(text) and, for each of its characters, the start and the end in the raw text that it stands for."""
    chars, starts, ends = [], [], []
    begin = base = len(text) - len(text.lstrip())
    for match in RAW_UNIT.finditer(text, base, len(text.rstrip())):
        raw = match.group()
        if raw.isspace():
            new = " "
        else:
            new = '"' if len(raw) == 2 else unicodedata.normalize("NFKD", raw).translate(DROP_COMBINING)
        if not new and chars and chars[-1] != " ":
            ends[-1] = begin = match.end()  # a dropped accent belongs to the letter before it
        if new:
            chars += new
            starts += [begin] * len(new)
            ends += [match.end()] * len(new)
            begin = match.end()
    return "".join(chars).lower(), starts, ends


class Tokenizer:
    """What both kinds share. `bos_id` and `eos_id`, for sequence-to-sequence models, are the ids of [CLS] and [SEP].

    vocab_size, pad_id, unk_id, cls_id, sep_id: ints; mask_id: int, or None where the vocabulary has none; special_ids: those that exist, sorted;
    starts_word: (V,) bool, True where a piece begins a word (whole-word masking; True for special pieces); fingerprint: SHA-256 of the file.
    """

    def __init__(self, path, lower, names):
        """names: the V pieces in the order of their ids."""
        self.path, self.lower, self.vocab_size = Path(path), lower, len(names)
        self.fingerprint = hashlib.sha256(self.path.read_bytes()).hexdigest()
        self.names = names
        self.index = {name: number for number, name in enumerate(names)}
        for role, choices in SPECIALS.items():
            setattr(self, f"{role}_id", next((self.index[name] for name in choices if name in self.index), None))
        missing = [choices[0] for role, choices in SPECIALS.items() if role != "mask" and getattr(self, f"{role}_id") is None]
        if missing:
            raise UserError(f"{path}: the vocabulary lacks the special piece(s) {', '.join(missing)}; train one with data/prepare.py corpus")
        ids = {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}
        self.special_ids = tuple(sorted(ids - {None}))
        self.bos_id, self.eos_id = self.cls_id, self.sep_id
        self.starts_word = np.array([self.begins_word(name) for name in names])
        self.starts_word[list(self.special_ids)] = True

    def __reduce__(self):  # travels to worker processes as a path
        return type(self), (str(self.path), self.lower)

    def pieces(self, ids):
        """The written form of each id."""
        return [self.names[i] for i in ids]

    def save(self, folder):
        """Copy the model file into `folder` under the name that load_tokenizer looks for; returns the new path."""
        target = Path(folder) / self.file_name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (target.exists() and target.samefile(self.path)):
            shutil.copyfile(self.path, target.with_suffix(".part"))
            os.replace(target.with_suffix(".part"), target)
        return target


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, our own or a released one."""

    file_name = "spiece.model"

    def __init__(self, path, lower=True):
        try:
            self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError):
            raise UserError(f"{path}: this is not a SentencePiece model; give a spiece.model or a BERT vocab.txt") from None
        super().__init__(path, lower, [self.model.id_to_piece(i) for i in range(len(self.model))])
        self.recut = {i: self.without_comma(name) for i, name in enumerate(self.names) if lower and name[-1:] == "," and name[-2:-1].isdigit()}

    @staticmethod
    def begins_word(piece):
        """ALBERT's rule: "▁..." and "<...", a lone ASCII punctuation mark, and whatever is not all ASCII letters and punctuation."""
        return piece[:1] in "▁<" or len(piece) == 1 and not piece.isalpha() or not re.fullmatch(r"[!-/:-~]+", piece)

    def without_comma(self, piece):
        """The digit-comma rule: ids that replace a piece such as "▁2011,"."""
        parts = self.model.encode(piece[:-1].replace("▁", ""), out_type=str)
        if not piece.startswith("▁") and parts[0].startswith("▁"):  # inside a word: the ▁ was not there
            parts = ([] if parts[0] == "▁" else [parts[0][1:]]) + parts[1:]
        return [self.model.piece_to_id(part) for part in [*parts, ","]]

    def encode(self, text):
        """Ids of one text, without special pieces."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts):
        """Ids of each text; faster than one at a time. One thread: processes are the way to use more cores."""
        rows = self.model.encode([preprocess(text) for text in texts] if self.lower else list(texts), out_type=int, num_threads=1)
        return [row if self.recut.keys().isdisjoint(row) else [j for i in row for j in self.recut.get(i, (i,))] for row in rows]

    def model_spans(self, clean):
        """[(id, start, end)] of SentencePiece itself, in characters of `clean`."""
        if hasattr(self.model, "EncodeAsOffsetMapping"):  # sentencepiece 0.2.3 and newer
            found = self.model.encode(clean, out_type="offset_mapping")
            return [(i, *span) for i, span in zip(found["ids"], found["offsets"])]
        return [(piece.id, piece.begin, piece.end) for piece in self.model.encode(clean, out_type="immutable_proto").pieces]

    def recut_span(self, i, begin, end):
        """[(id, start, end)] after the digit-comma rule; the digits share the span one by one."""
        if i not in self.recut:
            return [(i, begin, end)]
        sizes = [len(self.names[j].replace("▁", "")) for j in self.recut[i]]
        cuts = np.minimum(begin + np.cumsum([0, *sizes]), end).tolist()
        return list(zip(self.recut[i], cuts, cuts[1:]))

    def encode_with_offsets(self, text):
        """(ids, spans): encode(text) and the (start, end) characters of the raw text that each piece stands for; empty for a lone "▁"."""
        clean, starts, ends = preprocess_aligned(text) if self.lower else (text, range(len(text)), range(1, len(text) + 1))
        starts, found, stop = [*starts, len(text)], [], len(clean)
        for i, begin, end in reversed(self.model_spans(clean)):
            begin += len(clean[begin:end]) - len(clean[begin:end].lstrip())  # "▁he" spans the blank before it too
            if begin == end and self.names[i] != "▁":
                end = stop  # one character became several pieces ("½" is 1 ⁄ 2): each of them gets it
            stop = end
            found += reversed(self.recut_span(i, begin, end))
        found.reverse()
        return [i for i, _, _ in found], [(starts[b], ends[e - 1] if e > b else starts[b]) for _, b, e in found]

    def decode(self, ids):
        """The text of some ids; special pieces but the unknown one are left out."""
        return self.model.decode([int(i) for i in ids if i == self.unk_id or i not in self.special_ids])


WORD = re.compile("[^ \\t\\n\\r\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+")  # BERT's white space; other controls vanish
CJK = re.compile("[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]")


def stands_alone(char):
    """Punctuation (all ASCII that is neither letter, digit nor blank, and Unicode's P*) and Chinese characters are words of their own."""
    return char.isascii() and not char.isalnum() or unicodedata.category(char)[0] == "P" or CJK.match(char) is not None


class WordPieceTokenizer(Tokenizer):
    """A BERT vocab.txt: one piece a line, "##" marks a piece that continues a word. lower=False for cased vocabularies."""

    file_name = "vocab.txt"

    def __init__(self, path, lower=True):
        try:
            with open(path, encoding="utf-8") as file:
                names = [line.rstrip("\n") for line in file]
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: this is not UTF-8 text ({error.reason}); give a BERT vocab.txt or a spiece.model") from None
        super().__init__(path, lower, names)
        self.memo = {}

    @staticmethod
    def begins_word(piece):
        return not piece.startswith("##")

    def characters(self, word):
        """[(character, index in word)] after control characters and accents are dropped and case is lowered."""
        kept = [(c, i) for i, c in enumerate(word) if c != "\ufffd" and unicodedata.category(c)[0] != "C"]
        if not self.lower:
            return kept
        owners = [i for c, i in kept for _ in c.lower()]  # "İ" becomes two characters
        lowered = "".join(c for c, _ in kept).lower()  # as a whole: a final Greek sigma depends on its neighbours
        return [(d, i) for c, i in zip(lowered, owners) for d in unicodedata.normalize("NFD", c) if unicodedata.category(d) != "Mn"]

    def greedy(self, word):
        """[(id, start, end)] of the longest pieces from the left; the unknown piece where there is no way through."""
        found, start = [], 0
        while start < len(word) <= LONGEST_WORD:
            prefix, end = "##" if start else "", len(word)
            while end > start and prefix + word[start:end] not in self.index:
                end -= 1
            if end == start:
                break
            found.append((self.index[prefix + word[start:end]], start, end))
            start = end
        return found if start == len(word) else [(self.unk_id, 0, len(word))]

    def split(self, word):
        """[(id, start, end)] of a stretch without white space, in characters of it; dropped characters go with the one before."""
        chars = self.characters(word)
        starts = [0, *(i for _, i in chars[1:]), len(word)]
        alone = [stands_alone(c) for c, _ in chars]
        edges = [k for k in range(len(chars)) if k == 0 or alone[k] or alone[k - 1]] + [len(chars)]
        found = []
        for first, last in zip(edges, edges[1:]):
            for i, a, b in self.greedy("".join(c for c, _ in chars[first:last])):
                a, b = first + a, first + b
                found.append((i, starts[a], next(s for s in starts[b:] if s > starts[b - 1])))
        return found

    def word_ids(self, word):
        """Ids of a stretch without white space, kept for the next time it is met."""
        ids = tuple(i for i, _, _ in self.split(word))
        if len(self.memo) >= MEMO_WORDS:
            self.memo.clear()
        if len(word) <= LONGEST_WORD:
            self.memo[word] = ids
        return ids

    def encode(self, text):
        """Ids of one text, without special pieces."""
        known = self.memo.get
        return [i for word in WORD.findall(text) for i in known(word) or self.word_ids(word)]

    def encode_batch(self, texts):
        """Ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text):
        """(ids, spans): encode(text) and the (start, end) characters of the raw text that each piece stands for."""
        found = [(i, match.start() + a, match.start() + b) for match in WORD.finditer(text) for i, a, b in self.split(match.group())]
        return [i for i, _, _ in found], [(a, b) for _, a, b in found]

    def decode(self, ids):
        """The words of some ids, blanks between; special pieces but the unknown one are left out."""
        names = self.pieces(i for i in ids if i == self.unk_id or i not in self.special_ids)
        return " ".join(names).replace(" ##", "")


def load_tokenizer(path, lower=True):
    """The tokenizer in a file, or in a folder that holds spiece.model or vocab.txt. lower=False for cased models and for translation."""
    path = Path(path)
    kinds = {kind.file_name: kind for kind in (SentencePieceTokenizer, WordPieceTokenizer)}
    if path.is_dir():
        path = next((path / name for name in kinds if (path / name).is_file()), path)
    if not path.is_file():
        raise UserError(f"{path}: there is no spiece.model and no vocab.txt here; make one with data/prepare.py corpus")
    return (WordPieceTokenizer if path.suffix == ".txt" else SentencePieceTokenizer)(path, lower)


def pair(first_ids, second_ids, max_length, tokenizer):
    """(ids, segments) of [CLS] A [SEP], or [CLS] A [SEP] B [SEP]: lists of at most max_length, the longer part cut first, from its end (tie: B)."""
    room = max_length - (2 if second_ids is None else 3)
    if room < 1:
        raise UserError(f"max_length {max_length}: no room for text beside the special pieces; choose at least 8")
    keep = min(len(first_ids), room if second_ids is None else max(room - len(second_ids), (room + 1) // 2))
    first = [tokenizer.cls_id, *first_ids[:keep], tokenizer.sep_id]
    second = [] if second_ids is None else [*second_ids[:room - keep], tokenizer.sep_id]
    return first + second, [0] * len(first) + [1] * len(second)


def sample_lines(files, lower, sample_bytes):
    """The files' lines, evenly thinned out to about sample_bytes; an overlong line comes in parts, so memory stays bounded."""
    rate = min(1.0, sample_bytes / max(1, sum(os.path.getsize(path) for path in files)))
    count = 0
    for path in files:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            for line in iter(lambda: file.readline(1 << 16), ""):
                count += 1
                if int(count * rate) > int((count - 1) * rate) and line.strip():
                    yield preprocess(line) if lower else line.strip()


def train_sentencepiece(files, out_path, vocab_size=30000, lower=True, threads=1, input_sentence_size=10_000_000, extra_symbols=(),
                        sample_bytes=200_000_000):
    """Train a unigram model with ALBERT's settings on text files or folders, write it to out_path (or spiece.model in that folder), return the path.

    Ids: 0 <pad>, 1 <unk>, 2 [CLS], 3 [SEP], 4 [MASK], then extra_symbols and, with lower, ALBERT_SYMBOLS, each always a piece of its own.
    Memory: about 20 bytes for each sampled byte, so beyond sample_bytes only every n-th line is used (D: ALBERT took 10 M lines).
    The same files, settings, number of threads and sentencepiece version give the same file. UserError where the text cannot fill vocab_size.
    """
    files, out_path = text_files(files), Path(out_path)
    out_path = out_path / "spiece.model" if out_path.is_dir() else out_path
    failures, model = [], io.BytesIO()

    def lines():  # sentencepiece hides an iterator's exceptions: keep the first and raise it afterwards
        try:
            yield from sample_lines(files, lower, sample_bytes)
        except BaseException as error:
            failures.append(error)

    sentencepiece.set_random_generator_seed(0)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(), model_writer=model, model_type="unigram", vocab_size=vocab_size, character_coverage=0.99995,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            user_defined_symbols=[*extra_symbols, *(ALBERT_SYMBOLS if lower else ())], input_sentence_size=input_sentence_size,
            shuffle_input_sentence=True, max_sentence_length=1 << 20, num_threads=threads, minloglevel=2)
    except RuntimeError as error:
        if not failures:
            raise UserError(training_mistake(str(error), files[0], vocab_size)) from None
    if failures:
        raise failures[0]
    write_whole(out_path, model.getvalue())
    return out_path


def training_mistake(message, file, vocab_size):
    """SentencePiece's complaint as one line that says what to do."""
    if most := re.search(r"value <= (\d+)", message):
        return f"{file}: the text supports at most {most[1]} pieces, not {vocab_size}; use vocab_size {most[1]} or less, or more text"
    if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"{file}: its characters alone need {least[1]} pieces; use a vocab_size of more than {least[1]}, not {vocab_size}"
    if "sentences_.empty()" in message:
        return f"{file}: there is no text to train on; give files with text"
    return f"{file}: SentencePiece cannot train on this text ({message.strip().splitlines()[0]}); check vocab_size and the text"


def write_whole(path, content):
    """Write bytes so that the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
