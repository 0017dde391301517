"""Parallel text (PREFIX.en and PREFIX.de, one sentence per line) as token ids in files, batches
of about equally many tokens, and BLEU.

    sources, targets = zip(*read_pairs("data/train", ("en", "de")))
    encode_pairs("data/train", ("en", "de"), tokenizer, folder, longest=256)
    text = ParallelText(folder)
    batches = TokenBatches(text.longest_side(), tokens=4400)
    for index in range(start, stop):              # an endless stream: resuming needs the index only
        examples = batches.batch(index, seed=0)   # their numbers
        source, lengths = pad(text.ids(0, examples), tokenizer.pad_id)
    corpus_bleu(hypotheses, references)           # percent, as sacrebleu computes it of raw text
"""
import contextlib
import functools
import hashlib
import itertools
import json
import math
import re
import warnings
from array import array
from collections import Counter
from pathlib import Path

import numpy as np
import sentencepiece
import torch

from common.cli import UserError
from common.files import existing, fingerprints, read_json, waiting_lock, write_json
from common.launch import generator_of, print0, send
from common.tokenization import load_tokenizer
from data.text import FORMAT, train_sentencepiece

BLOCK = 10_000  # lines read and encoded at once
SIDES = "source", "target"
MODEL = "spiece.model"  # the vocabulary


# --- files ---------------------------------------------------------------------------------------

def find_sides(prefix, endings):
    """The files PREFIX.source and PREFIX.target. UserError if one is missing, or their numbers of
    lines differ."""
    fix = f"a PREFIX stands for PREFIX.{endings[0]} and PREFIX.{endings[1]} (--languages)"
    paths = [existing(f"{prefix}.{ending}", fix) for ending in endings]
    source, target = map(count_lines, paths)
    if source != target:
        raise UserError(f"{prefix}: {source} lines of {endings[0]} and {target} of {endings[1]}; "
                        "the two files must be aligned line by line")
    if not source:
        raise UserError(f"{paths[0]}: the file is empty")
    return paths


def count_lines(path):
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def count_pairs(prefix, endings):
    """The number of pairs of PREFIX.source and PREFIX.target."""
    return count_lines(find_sides(prefix, endings)[0])


def read_lines(path):
    """The lines of a UTF-8 file, one at a time, without blanks at their ends."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}: not UTF-8 ({error.reason}); save the file as "
                                "UTF-8") from None
            yield line.strip()


def read_pairs(prefix, endings):
    """The pairs of lines of PREFIX.source and PREFIX.target, one at a time."""
    return zip(*map(read_lines, find_sides(prefix, endings)))


class ParallelText:
    """Token ids of sentence pairs in a folder of encode_pairs, without special tokens."""

    def __init__(self, folder):
        self.tokens = [np.memmap(folder / f"{side}.bin", np.int32, "r").view(np.ndarray)
                       for side in SIDES]
        self.starts = [np.load(folder / f"{side}.starts.npy") for side in SIDES]

    def __len__(self):
        return len(self.starts[0]) - 1

    def ids(self, side, examples):
        """Token ids, one array per example, of the source (side 0) or the target (side 1)."""
        starts = self.starts[side]
        return [self.tokens[side][starts[i]:starts[i + 1]] for i in examples]

    def longest_side(self):
        """(N,) tokens of each pair's longer sentence."""
        return np.maximum(*(np.diff(starts) for starts in self.starts))


def encode_pairs(prefix, endings, tokenizer, folder, longest):
    """Encode two files into `folder`, once. Drops pairs with an empty sentence or with one of more
    than `longest` tokens, and warns of their number. Memory: 8 bytes per pair, and a block of
    lines."""
    meta = folder / "meta.json"  # written last
    if meta.exists():
        warn_of_dropped(prefix, read_json(meta))
        return
    folder.mkdir(parents=True, exist_ok=True)
    pairs = read_pairs(prefix, endings)
    lengths = [array("i") for _ in SIDES]
    total = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(folder / f"{side}.bin", "wb")) for side in SIDES]
        while block := [*itertools.islice(pairs, BLOCK)]:
            total += len(block)
            encoded = map(tokenizer.encode_batch, zip(*block))
            kept = [pair for pair in zip(*encoded) if all(1 <= len(ids) <= longest for ids in pair)]
            for file, counts, side in zip(files, lengths, zip(*kept)):
                counts.extend(map(len, side))
                array("i", itertools.chain.from_iterable(side)).tofile(file)
    if not lengths[0]:
        raise UserError(f"{prefix}: no pair has between 1 and {longest} tokens on both sides; "
                        "raise --length")
    for side, counts in zip(SIDES, lengths):
        np.save(folder / f"{side}.starts.npy", np.concatenate([[0], np.cumsum(counts)]))
    about = {"longest": longest, "pairs": total, "dropped": total - len(lengths[0])}
    write_json(meta, about)
    warn_of_dropped(prefix, about)


def warn_of_dropped(prefix, about):
    """Warn of pairs that encode_pairs left out, also if the cache has the others already."""
    if about["dropped"]:
        warnings.warn(f"{prefix}: {about['dropped']:,} of {about['pairs']:,} pairs are not used, "
                      f"since a sentence is empty or has more than {about['longest']} tokens "
                      "(--length)")


# --- batches -------------------------------------------------------------------------------------

class TokenBatches:
    """An endless stream of batches: examples of similar length, with examples x longest <= tokens.

    batch(i, seed) depends only on i and the seed. Every epoch shuffles the examples of equal
    length, and the batches. The sorted lengths stay the same, so every epoch has the same number of
    batches, len(batches).
    """

    def __init__(self, lengths, tokens):
        self.lengths = np.asarray(lengths)
        self.cuts = [0]
        for i, length in enumerate(np.sort(self.lengths).tolist()):
            if i > self.cuts[-1] and (i + 1 - self.cuts[-1]) * length > tokens:
                self.cuts.append(i)
        self.cuts.append(len(self.lengths))

    def __len__(self):
        return len(self.cuts) - 1

    @functools.lru_cache(maxsize=1)
    def epoch(self, seed, epoch):
        """(the examples in order of length, the order of the batches)."""
        rng = np.random.default_rng([seed, epoch])
        examples = np.lexsort((rng.random(len(self.lengths)), self.lengths))
        return examples, rng.permutation(len(self))

    def batch(self, index, seed):
        """The numbers of the examples of batch `index`."""
        epoch, number = divmod(index, len(self))
        examples, order = self.epoch(seed, epoch)
        batch = order[number]
        return examples[self.cuts[batch]:self.cuts[batch + 1]]


def pad(sequences, pad_id, before=(), after=()):
    """(ids (B, T), lengths (B,)) of arrays of ids, each between `before` and `after`, padded with
    pad_id."""
    sequences = [
        torch.from_numpy(np.concatenate([before, ids, after]).astype(np.int64))
        for ids in sequences]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=pad_id)
    return ids, torch.tensor([len(sequence) for sequence in sequences])


def cached_pairs(cache, train_text, valid_text, languages, tokenizer, vocab_size, longest):
    """The folder of the cache with the vocabulary and the pairs of parallel text, made once:
    spiece.model, text/ and, with valid_text, valid/. The vocabulary is a copy of `tokenizer` (a
    file or a folder), or for "" trained on both sides of the training text. The folder's name is a
    hash of what determines its content. Other processes wait for the one that makes it."""
    texts = {"text": train_text, "valid": valid_text} if valid_text else {"text": train_text}
    given = load_tokenizer(tokenizer, lower=False) if tokenizer else None
    if given and given.file_name != MODEL:
        raise UserError(f"--tokenizer {tokenizer}: translation needs a {MODEL}")
    key = [{name: fingerprints(find_sides(text, languages)) for name, text in texts.items()},
           given.fingerprint if given else vocab_size, longest, sentencepiece.__version__, FORMAT]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    folder = Path(cache, f"pairs-{digest}")
    folder.mkdir(parents=True, exist_ok=True)
    with waiting_lock(Path(cache, f"pairs-{digest}.lock")):
        if not given and not (folder / MODEL).exists():
            files = find_sides(train_text, languages)
            train_sentencepiece(files, folder / MODEL, vocab_size, lower=False)
        loaded = given or load_tokenizer(folder / MODEL, lower=False)
        loaded.save(folder)  # all files, even if a kill left only the first
        for name, text in texts.items():
            encode_pairs(text, languages, loaded, folder / name, longest)
    return folder


class Translations:
    """Sentences as input of a network. languages: endings of the files of the source and the
    target. length: tokens of the longest sentence, with its end mark."""
    unit = "tokens"

    def __init__(self, ranks, tokenizer, languages, length):
        self.ranks = ranks
        self.device = ranks.device
        self.tokenizer = tokenizer
        self.languages = languages
        self.longest = length - 1
        self.predictions_file = f"translations.{languages[1]}"
        self.settings = {"vocab_size": tokenizer.vocab_size}  # settings that follow from the data
        self.files = {}  # {data flag: paths}

    def example_batches(self, lines):
        """(numbers of the lines, batch) for each batch of lines of this process. A batch has lines
        of similar length. Empty lines are skipped."""
        encoded = self.tokenizer.encode_batch(lines)
        lengths = np.array([len(ids) for ids in encoded])
        if lengths.max() > self.longest:
            print0(self.ranks, f"longer sentences are cut at {self.longest} tokens (--length)")
        order = lengths.clip(max=self.longest).argsort(kind="stable")[(lengths == 0).sum():]
        starts = range(0, len(order), 64)
        for start in starts[self.ranks.rank::self.ranks.size]:
            numbers = order[start:start + 64].tolist()
            sources = [encoded[number][:self.longest] for number in numbers]
            source, lengths = pad(sources, self.tokenizer.pad_id, after=[self.tokenizer.eos_id])
            yield numbers, send({"source": source, "lengths": lengths}, self.device)

    def prediction_text(self, ids):
        """The translation with these token ids."""
        return self.tokenizer.decode(ids)

    def read_examples(self, path):
        """The lines of a file to translate, without references."""
        lines = [*read_lines(existing(path, "name a text file, one sentence per line"))]
        if not any(lines):
            raise UserError(f"{path}: the file is empty")
        return lines

    def read_test(self, flag, prefix):
        """(source lines, target lines) of a data flag."""
        if not prefix:
            raise UserError(f"--{flag}: missing; give the PREFIX of the test text")
        return [list(side) for side in zip(*read_pairs(prefix, self.languages))]


class TrainingTranslations(Translations):
    """The pairs of a folder of cached_pairs. They are an endless stream of micro-batches of `size`
    tokens, each a function of its number and the seed. Validation losses use `held_out` pairs of
    the validation text (0: all), or without one of the training text. train_examples: how many
    pairs to use (0: all)."""

    def __init__(self, ranks, folder, languages, length, train_text, size, *, held_out,
                 train_examples, seed):
        super().__init__(ranks, load_tokenizer(folder / MODEL, lower=False), languages, length)
        self.train_text = train_text
        self.seed = seed
        self.text = ParallelText(folder / "text")
        used = self.permutation(self.text)
        if (folder / "valid").exists():
            self.held_text = ParallelText(folder / "valid")
            held = self.permutation(self.held_text)[:held_out or None]
        else:
            self.held_text = self.text
            held = used[:held_out]
            used = used[held_out:]
        self.examples = used[:train_examples or None]
        if not len(self.examples):
            raise UserError(f"--held_out {held_out}: none of {len(self.text)} pairs is left to "
                            "train on")
        self.stream = TokenBatches(self.text.longest_side()[self.examples] + 1, size)
        self.held = held[self.held_text.longest_side()[held].argsort(kind="stable")]
        self.num_held_out = len(held)

    def facts(self):
        """A line about the training pairs."""
        return (f"{self.train_text}: {len(self.examples):,} training pairs, vocabulary of "
                f"{self.tokenizer.vocab_size:,} tokens")

    def permutation(self, text):
        generator = generator_of(self.seed, "held out")
        return torch.randperm(len(text), generator=generator).numpy()

    def pairs(self, text, examples):
        """Examples as a batch: source (B, S), lengths (B,), target (B, T), and labels (B, T), the
        next tokens of target, with -100 as padding."""
        pad_id = self.tokenizer.pad_id
        end = [self.tokenizer.eos_id]
        targets = text.ids(1, examples)
        source, lengths = pad(text.ids(0, examples), pad_id, after=end)
        target_in, _ = pad(targets, pad_id, before=[self.tokenizer.bos_id])
        target_out, _ = pad(targets, -100, after=end)
        batch = {"source": source, "lengths": lengths, "target": target_in, "labels": target_out}
        return send(batch, self.device)

    def batch(self, number):
        """The tensors of micro-batch `number` of the stream of epochs."""
        examples = self.stream.batch(number, self.seed)
        return self.pairs(self.text, self.examples[examples])

    @functools.cache
    def held_batches(self):
        """The tensors of the held-out pairs, short ones first. Made once."""
        starts = range(0, len(self.held), 64)
        return [self.pairs(self.held_text, self.held[start:start + 64]) for start in starts]


# --- scores --------------------------------------------------------------------------------------

ENTITIES = {"<skipped>": "", "-\n": "", "\n": " ", "&quot;": '"', "&amp;": "&", "&lt;": "<",
            "&gt;": ">"}
SPLITS = (
    (r"([!-&(-+/:-@\[-`{-~])", r" \1 "),  # ASCII punctuation without ' , - .
    (r"([^0-9])([.,])", r"\1 \2 "),
    (r"([.,])([^0-9])", r" \1 \2"),
    (r"([0-9])(-)", r"\1 \2 "),
)


def tokenize_13a(line):
    """The tokens of mteval-v13a, which published BLEU uses: splits off symbols, "." and "," except
    inside numbers, and "-" after a digit."""
    for text, replacement in ENTITIES.items():
        line = line.replace(text, replacement)
    line = f" {line} "
    for pattern, replacement in SPLITS:
        line = re.sub(pattern, replacement, line)
    return line.split()


def ngrams(tokens, size):
    return Counter(zip(*(tokens[shift:] for shift in range(size))))


def corpus_bleu(hypotheses, references):
    """BLEU-4 of a corpus in percent, one reference per sentence: case-sensitive, 13a tokens,
    exponential smoothing (sacrebleu's default). 0.0 if the corpus has no 4-gram or nothing matches.
    hypotheses, references: lists of raw sentences, of equal length."""
    matched = np.zeros(4)
    total = np.zeros(4)
    lengths = np.zeros(2)
    for pair in zip(hypotheses, references, strict=True):
        ours, theirs = map(tokenize_13a, pair)
        lengths += len(ours), len(theirs)
        for size in range(1, 5):
            matched[size - 1] += (ngrams(ours, size) & ngrams(theirs, size)).total()
            total[size - 1] += max(0, len(ours) - size + 1)
    if not matched.any() or not total.all():
        return 0.0
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    # the k-th order without a match counts as 1/2^k matches
    missed = np.cumsum(matched == 0)
    precisions = np.where(matched > 0, matched, 0.5 ** missed) / total
    return float(100 * brevity * math.exp(np.log(precisions).mean()))
