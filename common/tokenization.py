"""Text to token ids and back: ALBERT's SentencePiece and BERT's WordPiece behind one small interface.

    tokenizer = load_tokenizer("books/spiece.model")    # or a BERT vocab.txt, or a folder that holds one of them
    rows = tokenizer.encode_batch(["A man.", "He sat."])
    ids, spans = tokenizer.encode_with_offsets("A man.")     # spans: (start, end) of each piece in the raw text

SentencePiece follows the slow Hugging Face ALBERT tokenizer: white space collapsed, `` and '' made ", NFKD, combining
marks dropped, lower case; and a piece that ends in a digit and a comma ("▁2011,") is cut again without its comma, so
that numbers do not drag commas along; vocabularies of data/text.py use no such piece. With lower=False it is
plain SentencePiece, as translation wants it: case, accents and quotes kept, no comma rule. WordPiece follows BERT's own
code. Unlike Hugging Face's tokenizers, neither reads "[MASK]" or "<unk>" written out in a text as a special piece.
"""
import functools
import hashlib
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import sentencepiece

from common.cli import UserError
from common.checkpoint import read_json, read_text, write_atomic

SPECIALS = {"pad": ("<pad>", "[PAD]"), "unk": ("<unk>", "[UNK]"), "cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>"),
            "mask": ("[MASK]", "<mask>")}
SETTINGS = "tokenizer_config.json"  # beside a vocabulary: whether case is kept
LONGEST_WORD = 100  # characters; BERT gives up on longer words
MEMO_WORDS = 200_000  # words that WordPiece remembers, about 50 MB
MARKS = re.compile("[\u0300-\u1fff\u20d0-\U0010ffff]")  # combining marks are among these; dashes and quotes are not
RAW_UNIT = re.compile(r"\s+|``|''|.", re.DOTALL)
WORD = re.compile("[^ \t\n\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")  # between BERT's white space
CJK = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
                 "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]")


def without_marks(text):
    """NFKD, combining marks dropped."""
    return MARKS.sub(lambda found: "" if unicodedata.combining(found[0]) else found[0],
                     unicodedata.normalize("NFKD", text))


def preprocess(text):
    """ALBERT's clean-up of one text (the slow Hugging Face tokenizer's)."""
    if "  " in text or text != text.strip() or not text.isprintable():  # to look costs less than to split
        text = " ".join(text.split())
    text = text.replace("``", '"').replace("''", '"')
    return (text if text.isascii() else without_marks(text)).lower()


def preprocess_aligned(text):
    """preprocess(text) and, for each of its characters, the start and the end of what it stands for in the raw text."""
    chars, starts, ends = [], [], []
    begin = len(text) - len(text.lstrip())
    for match in RAW_UNIT.finditer(text, begin, max(begin, len(text.rstrip()))):
        raw, end = match.group(), match.end()
        new = " " if raw.isspace() else '"' if len(raw) == 2 else without_marks(raw)
        if new:
            chars += new
            starts += [begin] * len(new)
            ends += [end] * len(new)
        elif chars and chars[-1] != " ":
            ends[-1] = end  # a dropped accent belongs to the letter before it
        begin = end if new or chars and chars[-1] != " " else begin
    return "".join(chars).lower(), starts, ends


class Tokenizer:
    """What both kinds share. bos_id and eos_id, for sequence-to-sequence models, are the ids of [CLS] and [SEP].

    vocab_size, pad_id, unk_id, cls_id, sep_id: ints; mask_id: int, or None where the vocabulary has none; special_ids:
    those that exist, sorted; starts_word: (V,) bool, True where a piece begins a word (whole-word masking; True for
    special pieces too); fingerprint: SHA-256 of the file. `names` are the V pieces in the order of their ids.
    """

    def __init__(self, path, lower, names):
        self.path, self.lower, self.names, self.vocab_size = Path(path), lower, names, len(names)
        self.fingerprint = hashlib.sha256(self.path.read_bytes()).hexdigest()
        self.index = {name: number for number, name in enumerate(names)}
        found = {role: next((self.index[name] for name in choices if name in self.index), None)
                 for role, choices in SPECIALS.items()}
        missing = [SPECIALS[role][0] for role, number in found.items() if number is None and role != "mask"]
        if missing:
            raise UserError(f"{path}: the vocabulary lacks {', '.join(missing)}; take another, or train one with "
                            "data/prepare.py corpus")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = found.values()
        self.bos_id, self.eos_id = self.cls_id, self.sep_id
        self.special_ids = tuple(sorted(set(found.values()) - {None}))
        self.starts_word = np.array([self.begins_word(name) for name in names])
        self.starts_word[list(self.special_ids)] = True

    def __reduce__(self):  # travels to worker processes as a path
        return arrived, (type(self), str(self.path), self.lower)

    def encode(self, text):
        """Ids of one text, without special pieces."""
        return self.encode_batch([text])[0]

    def describe(self, file):
        """What config.json keeps about a vocabulary's file, by which load_tokenizer sees that it is the same."""
        return {"file": file.name, "pieces": self.vocab_size, "fingerprint": self.fingerprint}

    def save(self, folder):
        """Copy the model file to where load_tokenizer looks for it, with a note if case is kept; returns the path."""
        target = Path(folder) / self.file_name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (target.exists() and target.samefile(self.path)):
            write_atomic(target, self.path.read_bytes())
        if not self.lower and not (beside := target.with_name(SETTINGS)).exists():
            write_atomic(beside, json.dumps({"do_lower_case": False}))
        return target


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, our own or a released one."""

    file_name = "spiece.model"

    def __init__(self, path, lower=True):
        try:
            self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError):
            raise UserError(f"{path}: this is not a SentencePiece model; give a spiece.model or a vocab.txt") from None
        super().__init__(path, lower, [self.model.id_to_piece(i) for i in range(len(self.model))])
        commas = [i for i, name in enumerate(self.names) if name[-1:] == "," and name[-2:-1].isdigit()]
        self.recut = {i: self.without_comma(self.names[i]) for i in commas if lower and not self.model.is_unused(i)}

    @staticmethod
    def begins_word(piece):
        """ALBERT's rule: "▁..", "<..", one ASCII punctuation mark, or what is not all ASCII letters and punctuation."""
        return piece[:1] in ("▁", "<") or re.fullmatch(r"[!-/:-@\[-`{-~]|.*[^!-/:-~].*", piece, re.DOTALL) is not None

    def without_comma(self, piece):
        """The digit-comma rule: the ids that replace a piece such as "▁2011,"."""
        parts = self.model.encode(piece[:-1].replace("▁", ""), out_type=str)
        if not piece.startswith("▁") and parts[0].startswith("▁"):  # inside a word: take back the ▁ that encode adds
            parts = [part for part in [parts[0][1:], *parts[1:]] if part]
        return [self.model.piece_to_id(part) for part in [*parts, ","]]

    def encode_batch(self, texts):
        """Ids of each text. Faster than one at a time; one thread, since processes are the way to use more cores."""
        texts = [preprocess(text) for text in texts] if self.lower else list(texts)
        rows = self.model.encode(texts, out_type=int, num_threads=1)
        if not self.recut:
            return rows
        return [row if self.recut.keys().isdisjoint(row) else [j for i in row for j in self.recut.get(i, (i,))]
                for row in rows]

    def model_spans(self, clean):
        """[(id, start, end)] of SentencePiece itself, in characters of `clean`."""
        if hasattr(self.model, "EncodeAsOffsetMapping"):  # sentencepiece 0.2.3 and newer
            found = self.model.encode(clean, out_type="offset_mapping")
            return [(i, *span) for i, span in zip(found["ids"], found["offsets"])]
        return [(p.id, p.begin, p.end) for p in self.model.encode(clean, out_type="immutable_proto").pieces]

    def recut_span(self, i, begin, end):
        """[(id, start, end)] after the digit-comma rule; the digits share the span one by one."""
        if i not in self.recut:
            return [(i, begin, end)]
        sizes = [len(self.names[j].replace("▁", "")) for j in self.recut[i]]
        cuts = np.minimum(begin + np.cumsum([0, *sizes]), end).tolist()
        return list(zip(self.recut[i], cuts, cuts[1:]))

    def encode_with_offsets(self, text):
        """(ids, spans): encode(text), and the raw text's (start, end) of each piece; empty for a "▁" by itself."""
        clean, starts, ends = text, range(len(text)), range(1, len(text) + 1)
        if self.lower:
            clean, starts, ends = preprocess_aligned(text)
        starts, found, stop = [*starts, len(text)], [], len(clean)
        for i, begin, end in reversed(self.model_spans(clean)):
            begin += len(clean[begin:end]) - len(clean[begin:end].lstrip())  # "▁he" spans the blank before it too
            if begin == end and self.names[i] != "▁":
                end = stop  # one character became several pieces ("…" is three full stops): each of them gets it
            stop = end
            found += reversed(self.recut_span(i, begin, end))
        found.reverse()
        return [i for i, _, _ in found], [(starts[b], ends[e - 1] if e > b else starts[b]) for _, b, e in found]

    def decode(self, ids):
        """The text of some ids; special pieces but the unknown one are left out."""
        return self.model.decode([int(i) for i in ids if i == self.unk_id or i not in self.special_ids])


class WordPieceTokenizer(Tokenizer):
    """A BERT vocab.txt: one piece a line, "##" where a piece continues a word. lower=False for cased vocabularies."""

    file_name = "vocab.txt"

    def __init__(self, path, lower=True):
        content = read_text(path, "give a vocab.txt or a spiece.model")
        super().__init__(path, lower, content.removesuffix("\n").split("\n"))
        self.memo = {}

    @staticmethod
    def begins_word(piece):
        return not piece.startswith("##")

    def characters(self, word):
        """[(character, index in word)] without control characters and, with lower, without case and accents."""
        kept = [(c, i) for i, c in enumerate(word) if c != "\ufffd" and unicodedata.category(c)[0] != "C"]
        if not self.lower:
            return kept
        lowered = "".join(c for c, _ in kept).lower()  # as a whole: a final Greek sigma depends on its neighbours
        owners = [i for c, i in kept for _ in c.lower()]  # "İ" becomes two characters
        return [(d, i) for c, i in zip(lowered, owners) for d in unicodedata.normalize("NFD", c)
                if unicodedata.category(d) != "Mn"]

    def greedy(self, word):
        """[(id, start, end)] of the longest pieces from the left; the unknown piece where they do not reach the end."""
        found, start, end = [], 0, len(word) if len(word) <= LONGEST_WORD else 0
        while start < end:
            piece = "##" * (start > 0) + word[start:end]
            if piece in self.index:
                found.append((self.index[piece], start, end))
                start, end = end, len(word)
            else:
                end -= 1
        return found if start == len(word) else [(self.unk_id, 0, len(word))]

    def split(self, word):
        """[(id, start, end)] of a stretch without white space; what was dropped goes with the character before it."""
        chars = self.characters(word)
        starts = [0, *(i for _, i in chars[1:]), len(word)]
        # punctuation (Unicode's P*, and all ASCII signs) and Chinese characters are words of their own in BERT
        alone = [c.isascii() and not c.isalnum() or unicodedata.category(c)[0] == "P" or bool(CJK.match(c))
                 for c, _ in chars]
        edges = [k for k in range(len(chars)) if k == 0 or alone[k] or alone[k - 1]] + [len(chars)]
        found = []
        for first, last in zip(edges, edges[1:]):
            for i, a, b in self.greedy("".join(c for c, _ in chars[first:last])):
                a, b = first + a, first + b
                found.append((i, starts[a], next(s for s in starts[b:] if s > starts[b - 1])))
        return found

    def word_ids(self, word):
        """Ids of a stretch without white space, remembered."""
        ids = tuple(i for i, _, _ in self.split(word))
        if len(self.memo) >= MEMO_WORDS:
            self.memo.clear()
        if len(word) <= LONGEST_WORD:
            self.memo[word] = ids
        return ids

    def encode_batch(self, texts):
        """Ids of each text."""
        known = self.memo.get
        return [[i for word in WORD.findall(text) for i in known(word) or self.word_ids(word)] for text in texts]

    def encode_with_offsets(self, text):
        """(ids, spans): encode(text), and the raw text's (start, end) of each piece."""
        words = ((match.start(), self.split(match.group())) for match in WORD.finditer(text))
        found = [(i, start + a, start + b) for start, pieces in words for i, a, b in pieces]
        return [i for i, _, _ in found], [(a, b) for _, a, b in found]


def load_tokenizer(path, lower=None):
    """The tokenizer in a file, or a folder with spiece.model or vocab.txt. lower=False: cased models, translation;
    None: what tokenizer_config.json beside it says, True where there is none."""
    given = Path(path)
    candidates = given, given / SentencePieceTokenizer.file_name, given / WordPieceTokenizer.file_name
    path = next((file for file in candidates if file.is_file()), None)
    if not path:
        raise UserError(f"{given}: there is no spiece.model and no vocab.txt; make one with data/prepare.py corpus")
    beside = path.with_name(SETTINGS)
    if lower is None and beside.is_file():
        lower = read_json(beside, dict, "fetch it again").get("do_lower_case", True)
    kind = WordPieceTokenizer if path.suffix == ".txt" else SentencePieceTokenizer
    found, record = kind(path, lower is not False), path.with_name("config.json")
    kept = read_json(record, dict, "fetch it again").get("vocabulary") if record.is_file() else None
    if isinstance(kept, dict) and kept.get("file") == path.name and kept.get("fingerprint") != found.fingerprint:
        raise UserError(f"{path}: damaged or changed since the run in {path.parent} kept it; take it from a copy")
    return found


@functools.lru_cache(maxsize=1)
def arrived(kind, path, lower):
    """A tokenizer that was sent to this process, with each of its jobs; it is opened once."""
    return kind(path, lower)
