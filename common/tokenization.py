"""Text to token ids and back: ALBERT's SentencePiece and BERT's WordPiece with one interface.

    tokenizer = load_tokenizer("books/spiece.model")     # or a vocab.txt, or a folder with one
    tokenizer.encode_batch(["A man.", "He sat."])        # [[32, 101, ...], ...]
    ids, spans = tokenizer.encode_with_offsets("A man.") # (start, end) of each token in the text

SentencePiece follows the slow Hugging Face ALBERT tokenizer: white space collapsed, `` and ''
replaced by ", NFKD, combining marks dropped, lower case. A token that ends in a digit and a comma
("▁2011,") is split again without its comma, which becomes a separate token. Vocabularies of
data/text.py have no such token. With lower=False, for translation, case, accents and quotes are
kept, without the comma rule. WordPiece follows BERT's code. Unlike Hugging Face's tokenizers,
neither reads "[MASK]" or "<unk>" in a text as a special token.
"""
import functools
import hashlib
import re
import unicodedata
from collections import namedtuple
from pathlib import Path

import numpy as np
import sentencepiece

from common.cli import UserError
from common.files import read_json, read_text, write_atomic, write_json

SPECIALS = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
SETTINGS = "tokenizer_config.json"  # next to a vocabulary: its Rules
FAST = "tokenizer.json"  # a vocabulary and its rules in one file, from transformers 5
LONGEST_WORD = 100  # characters. BERT makes longer words unknown
MEMO_WORDS = 200_000  # words that WordPiece remembers, about 50 MB
# includes combining marks, but not dashes and quotes
MARKS = re.compile("[\u0300-\u1fff\u20d0-\U0010ffff]")
# a run of characters without BERT's white space
WORD = re.compile("[^ \t\n\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
CJK = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
                 "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]")


# The preprocessing of a tokenizer. lower: drop case. strip_accents: drop accents. chinese: each
# Chinese character is a word (WordPiece).
Rules = namedtuple("Rules", "lower strip_accents chinese")


def rules_of(lower, strip_accents=None, chinese=None):
    """Rules. As in BERT, accents are dropped with case unless strip_accents says otherwise."""
    strip_accents = lower if strip_accents is None else strip_accents
    return Rules(lower, strip_accents, chinese is not False)


def without_marks(text):
    """NFKD without combining marks."""
    return MARKS.sub(lambda match: "" if unicodedata.combining(match[0]) else match[0],
                     unicodedata.normalize("NFKD", text))


def preprocess(text):
    """ALBERT's normalisation of a text."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    return without_marks(text).lower()


def preprocess_aligned(text):
    """preprocess(text), and the start and the end in the text of each of its characters. A part
    that yields no character, such as an accent, belongs to the character before it."""
    chars = []
    starts = []
    # the second quote becomes a combining mark, which is dropped
    for i, raw in enumerate(text.replace("``", '"\u0301').replace("''", '"\u0301')):
        new = " " if raw.isspace() else without_marks(raw)
        if new != " " or chars[-1:] not in ([], [" "]):
            chars += new
            starts += [i] * len(new)
    if chars[-1:] == [" "]:
        del chars[-1], starts[-1]
    edges = sorted({*starts, len(text.rstrip())})
    ends = dict(zip(edges, edges[1:]))
    return "".join(chars).lower(), starts, [ends[start] for start in starts]


class Tokenizer:
    """The common part of SentencePiece and WordPiece.

    names: the subwords in the order of their ids. vocab_size. pad_id, unk_id, cls_id, sep_id, and
    mask_id, which may be None. bos_id and eos_id, for sequence-to-sequence models, are cls_id and
    sep_id. specials: cls_id, sep_id, pad_id, for tasks.join. special_ids: sorted. starts_word: (V,)
    bool, True for subwords that begin a word, and for special tokens. rules: Rules. fingerprint:
    SHA-256 of content().
    """

    def __init__(self, path, rules, names):
        self.path = Path(path)
        self.rules = rules
        self.lower = rules.lower
        self.names = names
        self.vocab_size = len(names)
        self.fingerprint = hashlib.sha256(self.content()).hexdigest()
        self.index = {name: number for number, name in enumerate(names)}
        for role, choices in SPECIALS.items():
            known = [self.index[name] for name in choices if name in self.index]
            if not known and role != "mask":
                raise UserError(f"{path}: the vocabulary lacks {choices[0]}; take another, "
                                "or train one with data/prepare.py corpus")
            setattr(self, f"{role}_id", known[0] if known else None)
        self.bos_id = self.cls_id
        self.eos_id = self.sep_id
        self.specials = self.cls_id, self.sep_id, self.pad_id
        ids = {getattr(self, f"{role}_id") for role in SPECIALS}
        self.special_ids = tuple(sorted(ids - {None}))
        self.starts_word = np.array([self.begins_word(name) for name in names])
        self.starts_word[list(self.special_ids)] = True

    def __reduce__(self):  # sent to worker processes as a path
        return opened, (type(self), str(self.path), self.rules)

    def encode(self, text):
        """Ids of one text, without special tokens."""
        return self.encode_batch([text])[0]

    def save(self, folder):
        """Copy the vocabulary into a folder for load_tokenizer, with its rules unless they are the
        default, lower case. Returns the path."""
        target = Path(folder) / self.file_name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, self.content())
        settings = target.with_name(SETTINGS)
        if self.rules != rules_of(True) and not settings.exists():
            write_json(settings, self.settings())
        return target

    def content(self):
        """The bytes of the vocabulary's file."""
        return self.path.read_bytes()


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, our own or a released one."""

    file_name = "spiece.model"

    def __init__(self, path, rules):
        if rules.strip_accents != rules.lower:
            raise UserError(f"{path}: {SETTINGS} has keep_accents {not rules.strip_accents} with "
                            f"do_lower_case {rules.lower}; only lower case without accents, or "
                            "case with accents, can be read")
        try:
            self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError):
            raise UserError(f"{path}: not a SentencePiece model; give a spiece.model or a vocab.txt"
                            ) from None
        super().__init__(path, rules, [self.model.id_to_piece(i) for i in range(len(self.model))])
        self.without_comma = {  # {id of "▁2011,": ids of "▁2011" and ","}
            i: self.split_comma(name) for i, name in enumerate(self.names)
            if rules.lower and re.search(r"\d,$", name) and not self.model.is_unused(i)}

    def settings(self):
        """The rules in tokenizer_config.json's form."""
        return {"do_lower_case": self.lower, "keep_accents": not self.lower}

    @staticmethod
    def begins_word(name):
        """ALBERT's rule: "▁..", "<..", one ASCII punctuation mark, or not all ASCII letters and
        punctuation."""
        rule = r"[▁<].*|[!-/:-@\[-`{-~]|.*[^!-/:-~].*"
        return re.fullmatch(rule, name, re.DOTALL) is not None

    def split_comma(self, name):
        """The digit-comma rule: the ids that replace a subword such as "▁2011,"."""
        parts = self.model.encode(name[:-1].replace("▁", ""), out_type=str)
        if not name.startswith("▁"):  # inside a word: without the ▁ that encode adds
            parts[0] = parts[0].removeprefix("▁")
        return [self.model.piece_to_id(part) for part in [*parts, ","] if part]

    def encode_batch(self, texts):
        """Ids of each text. Faster than one at a time. One thread, since several processes use
        several cores better."""
        texts = [preprocess(text) if self.lower else text for text in texts]
        encoded = self.model.encode(texts, out_type=int, num_threads=1)
        if not self.without_comma:
            return encoded
        return [[j for i in ids for j in self.without_comma.get(i, (i,))] for ids in encoded]

    def encode_with_offsets(self, text):
        """(ids, spans): encode(text), and the (start, end) of each token in the text. A lone "▁"
        has an empty span."""
        clean = text
        starts = range(len(text))
        ends = range(1, len(text) + 1)
        if self.lower:
            clean, starts, ends = preprocess_aligned(text)
        starts = [*starts, len(text)]
        tokens = []
        spans = []
        encoded = self.model.encode(clean, out_type="offset_mapping")
        for token, (begin, end) in zip(encoded["ids"], encoded["offsets"]):
            begin = end - len(clean[begin:end].lstrip())  # "▁he" also spans the blank before it
            ids = self.without_comma.get(token, [token])
            # after the digit-comma rule the digits divide the span one by one
            sizes = [len(self.names[i].replace("▁", "")) for i in ids[:-1]]
            cuts = np.minimum(begin + np.cumsum([0, *sizes]), end).tolist()
            tokens += ids
            spans += zip(cuts, [*cuts[1:], end])
        return tokens, [(starts[begin], ends[end - 1] if end > begin else starts[begin])
                        for begin, end in spans]

    def decode(self, ids):
        """The text of some ids, without special tokens except the unknown one."""
        return self.model.decode(
            [int(i) for i in ids if i == self.unk_id or i not in self.special_ids])


class WordPieceTokenizer(Tokenizer):
    """A BERT vocabulary, vocab.txt or tokenizer.json: subwords, with "##" if they continue a
    word."""

    file_name = "vocab.txt"

    def __init__(self, path, rules):
        if Path(path).name == FAST:
            names = fast_names(path)
        else:
            content = read_text(path, "give a vocab.txt or a spiece.model")
            names = content.removesuffix("\n").split("\n")
        super().__init__(path, rules, names)
        self.word_ids = functools.lru_cache(MEMO_WORDS)(self.word_ids)

    def content(self):
        """The bytes of a vocab.txt: one subword per line."""
        if self.path.name != FAST:
            return super().content()
        return "".join(f"{name}\n" for name in self.names).encode()

    def settings(self):
        """The rules in tokenizer_config.json's form."""
        return {
            "do_lower_case": self.lower,
            "strip_accents": self.rules.strip_accents,
            "tokenize_chinese_chars": self.rules.chinese,
        }

    @staticmethod
    def begins_word(name):
        return not name.startswith("##")

    def characters(self, word):
        """[(character, index in word)] without control characters and, by the rules, without case
        and accents."""
        kept = [(char, i) for i, char in enumerate(word)
                if char != "\ufffd" and unicodedata.category(char)[0] != "C"]
        if self.lower:
            # as a whole: a final Greek sigma depends on its neighbours
            lowered = "".join(char for char, _ in kept).lower()
            indices = [i for char, i in kept for _ in char.lower()]  # "İ" becomes two characters
            kept = list(zip(lowered, indices))
        if self.rules.strip_accents:
            kept = [(part, i) for char, i in kept for part in unicodedata.normalize("NFD", char)
                    if unicodedata.category(part) != "Mn"]
        return kept

    def greedy(self, word):
        """[(id, start, end)] of the longest subwords from the left, or the unknown token if they do
        not reach the end."""
        unknown = [(self.unk_id, 0, len(word))]
        if len(word) > LONGEST_WORD:
            return unknown
        spans = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = (end for end in range(len(word), start, -1)
                    if prefix + word[start:end] in self.index)
            end = next(ends, None)
            if end is None:
                return unknown
            spans.append((self.index[prefix + word[start:end]], start, end))
            start = end
        return spans

    def split(self, word):
        """[(id, start, end)] of a stretch without white space. A dropped character belongs to the
        character before it."""
        chars = self.characters(word)
        starts = [0, *(i for _, i in chars[1:]), len(word)]
        edges = [0]  # of BERT's words
        for k, (char, _) in enumerate(chars):
            if is_word(char, self.rules.chinese):
                edges += [k, k + 1]
        edges = sorted({*edges, len(chars)})
        spans = []
        for first, last in zip(edges, edges[1:]):
            for i, begin, end in self.greedy("".join(char for char, _ in chars[first:last])):
                begin += first
                end += first
                stop = next(start for start in starts[end:] if start > starts[end - 1])
                spans.append((i, starts[begin], stop))
        return spans

    def word_ids(self, word):
        """Ids of a stretch without white space."""
        return [i for i, _, _ in self.split(word)]

    def encode_batch(self, texts):
        """Ids of each text."""
        return [[i for word in WORD.findall(text) for i in self.word_ids(word)] for text in texts]

    def encode_with_offsets(self, text):
        """(ids, spans): encode(text), and the (start, end) of each token in the text."""
        ids = []
        spans = []
        for match in WORD.finditer(text):
            for i, start, end in self.split(match.group()):
                ids.append(i)
                spans.append((match.start() + start, match.start() + end))
        return ids, spans


def is_word(char, chinese):
    """Whether a character is a separate word in BERT: punctuation (Unicode's P*, and all ASCII
    signs) and, by the rules, Chinese characters."""
    return (char.isascii() and not char.isalnum() or unicodedata.category(char)[0] == "P"
            or chinese and CJK.match(char) is not None)


def fast_names(path):
    """The subwords of a tokenizer.json in the order of their ids. UserError if it has no
    WordPiece."""
    content = read_json(path, "give a vocab.txt or a spiece.model")
    model = content.get("model", {})
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{path}: a vocabulary of type {model.get('type')}, and only WordPiece can "
                        "be read from it; put the spiece.model that the model was trained with "
                        "next to it")
    ids = dict(model["vocab"])
    ids |= {entry["content"]: entry["id"] for entry in content.get("added_tokens", [])}
    names = sorted(ids, key=ids.get)
    if [ids[name] for name in names] != [*range(len(names))]:
        raise UserError(f"{path}: its ids are not 0 to {len(names) - 1}; give a vocab.txt")
    return names


def read_rules(path):
    """The Rules of a vocabulary, from tokenizer.json or from the tokenizer_config.json next to it.
    Default: lower case without accents."""
    settings = path.with_name(SETTINGS)
    config = read_json(settings) if settings.is_file() else {}
    normalizer = read_json(path).get("normalizer") if path.name == FAST else None
    if normalizer and normalizer.get("type") == "BertNormalizer":
        return rules_of(normalizer["lowercase"], normalizer["strip_accents"],
                        normalizer["handle_chinese_chars"])
    strip_accents = config.get("strip_accents")
    if "keep_accents" in config:
        strip_accents = not config["keep_accents"]
    return rules_of(config.get("do_lower_case", True), strip_accents,
                    config.get("tokenize_chinese_chars"))


def load_tokenizer(path, lower=None):
    """The tokenizer in a file, or in a folder with spiece.model, vocab.txt or tokenizer.json.

    lower=False: for cased models and translation. None: by read_rules.
    """
    given = Path(path)
    names = SentencePieceTokenizer.file_name, WordPieceTokenizer.file_name, FAST
    files = [file for file in (given, *(given / name for name in names)) if file.is_file()]
    if not files:
        raise UserError(f"{given}: there is no {', '.join(names[:-1])} or {names[-1]}; "
                        "make one with data/prepare.py corpus")
    rules = read_rules(files[0]) if lower is None else rules_of(lower)
    word_piece = files[0].suffix in (".txt", ".json")
    return (WordPieceTokenizer if word_piece else SentencePieceTokenizer)(files[0], rules)


@functools.lru_cache(maxsize=1)
def opened(kind, path, rules):
    """A tokenizer for this process, opened once for all jobs."""
    return kind(path, rules)
