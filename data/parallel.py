"""Parallel text: PREFIX.en and PREFIX.de, one sentence a line, as token ids in memory-mapped files, and batches of
about as many tokens each.

    sources, targets = read_pairs("data/train", "en", "de")
    text = encode_pairs("data/train", ("en", "de"), tokenizer, cache_folder, longest=256)     # ParallelText
    batches = TokenBatches(text.longest_side(), tokens=4400)
    for index in range(start, stop):              # an endless stream: nothing but the number is needed to go on
        rows = batches.batch(index, seed=0)       # example numbers
        source, lengths = pad([text.source(row) for row in rows], tokenizer.pad_id)
"""
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from common.cli import UserError
from common.files import read_json, read_text, write_atomic

BLOCK = 100_000  # lines encoded at once


def read_lines(path):
    """The lines of a UTF-8 text file without their ends; UserError where it is missing or no UTF-8."""
    text = read_text(path, "a PREFIX stands for PREFIX.en and PREFIX.de (--source, --target name other endings)")
    lines = [line.strip() for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


def read_pairs(prefix, source, target):
    """(source lines, target lines) of PREFIX.source and PREFIX.target; UserError where their numbers of lines differ.
    """
    sides = [read_lines(f"{prefix}.{ending}") for ending in (source, target)]
    if len(sides[0]) != len(sides[1]):
        shorter = source if len(sides[0]) < len(sides[1]) else target
        raise UserError(f"{prefix}.{shorter}:{min(map(len, sides)) + 1}: the file ends here, but the other one has "
                        f"{max(map(len, sides))} lines; the two must be aligned line by line")
    if not sides[0]:
        raise UserError(f"{prefix}.{source}: the file is empty; give at least one sentence pair")
    return sides


class ParallelText:
    """Token ids of sentence pairs in a folder that encode_pairs made; without special pieces."""

    def __init__(self, folder):
        try:
            self.tokens = [np.load(Path(folder) / f"{side}.npy", mmap_mode="r") for side in ("source", "target")]
            self.starts = [np.load(Path(folder) / f"{side}.starts.npy") for side in ("source", "target")]
        except (ValueError, EOFError):
            raise UserError(f"{folder}: damaged token files; delete this folder, it is made anew") from None

    def __len__(self):
        return len(self.starts[0]) - 1

    def row(self, side, number):
        return self.tokens[side][self.starts[side][number]:self.starts[side][number + 1]].tolist()

    def source(self, number):
        """Token ids of a source sentence, a list."""
        return self.row(0, number)

    def target(self, number):
        """Token ids of a target sentence, a list."""
        return self.row(1, number)

    def longest_side(self):
        """(N,) tokens of each pair's longer sentence."""
        return np.maximum(*(np.diff(starts) for starts in self.starts))


def encode_pairs(prefix, endings, tokenizer, folder, longest=0):
    """Encode a pair of files into `folder`, once, and open it. longest > 0 leaves out pairs with an empty sentence or
    one of more than so many tokens (training); 0 keeps all of them (validation, test)."""
    folder = Path(folder)
    about = {"prefix": str(prefix), "endings": list(endings), "tokenizer": tokenizer.fingerprint, "longest": longest}
    done = folder / "meta.json"
    if not done.exists() or {**read_json(done), "pairs": 0} != {**about, "pairs": 0}:
        folder.mkdir(parents=True, exist_ok=True)
        lines = read_pairs(prefix, *endings)
        # arrays: of millions of sentences lists would not fit
        rows = [[np.array(row, dtype=np.int32) for start in range(0, len(side), BLOCK)
                 for row in tokenizer.encode_batch(side[start:start + BLOCK])] for side in lines]
        if longest:
            rows = list(zip(*(pair for pair in zip(*rows)
                              if 1 <= min(map(len, pair)) and max(map(len, pair)) <= longest)))
        if not rows:
            raise UserError(f"{prefix}.{endings[0]}: no pair has between 1 and {longest} tokens on both sides; "
                            "raise --length")
        for side, sentences in zip(("source", "target"), rows):
            np.save(folder / f"{side}.npy", np.concatenate(sentences))
            np.save(folder / f"{side}.starts.npy", np.cumsum([0, *map(len, sentences)]))
        write_atomic(done, json.dumps({**about, "pairs": len(rows[0])}))
    return ParallelText(folder)


class TokenBatches:
    """An endless stream of batches: examples of like length, so many that rows x longest <= tokens. batch(i, seed) is a
    function of i and the seed.

    Every epoch deals the examples of equal length out anew and shuffles the batches. The lengths in sorted order are
    always the same, so an epoch always has the same number of batches, len(batches).
    """

    def __init__(self, lengths, tokens):
        self.lengths, self.dealt = np.asarray(lengths), None
        ordered, self.cuts = np.sort(self.lengths), [0]
        while self.cuts[-1] < len(ordered):
            start = self.cuts[-1]
            size = max(1, min(tokens // max(1, int(ordered[start])), len(ordered) - start))
            while size > 1 and size * int(ordered[start + size - 1]) > tokens:
                size = max(1, min(size - 1, tokens // int(ordered[start + size - 1])))
            self.cuts.append(start + size)

    def __len__(self):
        return len(self.cuts) - 1

    def batch(self, index, seed):
        """The numbers of the examples of batch `index`."""
        epoch, place = divmod(index, len(self))
        if (seed, epoch) != self.dealt:
            rng = np.random.default_rng([seed, epoch])
            self.examples = np.lexsort((rng.random(len(self.lengths)), self.lengths))
            self.order, self.dealt = rng.permutation(len(self)), (seed, epoch)
        batch = self.order[place]
        return self.examples[self.cuts[batch]:self.cuts[batch + 1]]


def pad(rows, pad_id):
    """(ids (B, T), lengths (B,)) of lists of ids, filled up with pad_id."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max())), pad_id)
    for number, row in enumerate(rows):
        ids[number, :len(row)] = torch.tensor(row, dtype=torch.long)
    return ids, lengths


# --- BLEU

SYMBOLS = re.compile(r"([!-&(-+/:-@\[-`{-~])")  # ASCII punctuation without ' , - .
MARK_AFTER_OTHER = re.compile(r"([^0-9])([.,])")
MARK_BEFORE_OTHER = re.compile(r"([.,])([^0-9])")
DASH_AFTER_DIGIT = re.compile(r"([0-9])(-)")
ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))


def tokenize_13a(line):
    """The tokens of mteval-v13a, in which BLEU is quoted: symbols stand alone, '.' and ',' except inside numbers, '-'
    after a digit."""
    line = line.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in ENTITIES:
        line = line.replace(entity, character)
    line = SYMBOLS.sub(r" \1 ", f" {line} ")
    line = MARK_BEFORE_OTHER.sub(r" \1 \2", MARK_AFTER_OTHER.sub(r"\1 \2 ", line))
    return DASH_AFTER_DIGIT.sub(r"\1 \2 ", line).split()


def ngrams(tokens, size):
    return Counter(zip(*(tokens[shift:] for shift in range(size))))


def corpus_bleu(hypotheses, references):
    """BLEU-4 of a corpus in percent, one reference a sentence: case-sensitive, 13a tokens, exponential smoothing
    (sacrebleu's default).

    hypotheses, references: equally long lists of raw sentences. 0.0 where the corpus has no 4-gram or nothing matches.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    matched, total, lengths = np.zeros(4), np.zeros(4), np.zeros(2)
    for hypothesis, reference in zip(hypotheses, references):
        ours, theirs = tokenize_13a(hypothesis), tokenize_13a(reference)
        lengths += len(ours), len(theirs)
        for size in range(1, 5):
            matched[size - 1] += sum((ngrams(ours, size) & ngrams(theirs, size)).values())
            total[size - 1] += max(0, len(ours) - size + 1)
    if not matched.any() or not total.all():
        return 0.0
    missed = np.cumsum(matched == 0)  # the k-th order without a match counts as half a match, a quarter, ...
    precisions = np.where(matched > 0, matched, 0.5 ** missed) / total
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    return float(100 * brevity * math.exp(np.log(precisions).mean()))
