"""Parallel text: PREFIX.en and PREFIX.de, one sentence a line, as token ids in memory-mapped files, batches of about as
many tokens each, and BLEU.

    sources, targets = read_pairs("data/train", "en", "de")
    text = encode_pairs("data/train", ("en", "de"), tokenizer, cache_folder, longest=256)     # ParallelText
    batches = TokenBatches(text.longest_side(), tokens=4400)
    for index in range(start, stop):              # an endless stream: nothing but the number is needed to go on
        rows = batches.batch(index, seed=0)       # example numbers
        source, lengths = pad(text.ids(0, rows), tokenizer.pad_id)
    corpus_bleu(hypotheses, references)           # percent; what sacrebleu prints of raw text
"""
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from common.cli import UserError
from common.checkpoint import existing, read_json, read_text, write_atomic
from common.distributed import gather, on_main, progress, print0, seed_of, send
from common.tokenization import load_tokenizer
from data.text import train_sentencepiece

MEND = "a PREFIX stands for PREFIX.en and PREFIX.de (--languages names other endings)"
BLOCK = 100_000  # lines encoded at once


def find_sides(prefix, endings):
    """The files PREFIX.source and PREFIX.target; MissingFile where one is not there."""
    return [existing(f"{prefix}.{ending}", MEND) for ending in endings]


def read_pairs(prefix, source, target):
    """(source lines, target lines) of PREFIX.source and PREFIX.target; UserError where their
    numbers of lines differ. """
    sides = []
    for ending in (source, target):
        lines = [line.strip() for line in read_text(f"{prefix}.{ending}", MEND).split("\n")]
        sides.append(lines if lines[-1] else lines[:-1])
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

    def ids(self, side, rows):
        """The token ids of these source sentences (side 0) or target sentences (side 1), an array
        each."""
        return [self.tokens[side][self.starts[side][row]:self.starts[side][row + 1]] for row in rows]

    def longest_side(self):
        """(N,) tokens of each pair's longer sentence."""
        return np.maximum(*(np.diff(starts) for starts in self.starts))


def encode_pairs(prefix, endings, tokenizer, folder, longest):
    """Encode a pair of files into `folder`, once, and open it. Pairs with an empty sentence, or one
    of more than `longest` tokens, are left out."""
    folder = Path(folder)
    about = {"prefix": str(prefix), "endings": list(endings), "tokenizer": tokenizer.fingerprint, "longest": longest}
    done = folder / "meta.json"
    if not done.exists() or read_json(done) != about:
        folder.mkdir(parents=True, exist_ok=True)
        done.unlink(missing_ok=True)  # it never stands beside other arrays than its own
        lines = read_pairs(prefix, *endings)
        # arrays: of millions of sentences lists would not fit
        rows = [[np.array(row, dtype=np.int32) for start in range(0, len(side), BLOCK)
                 for row in tokenizer.encode_batch(side[start:start + BLOCK])] for side in lines]
        rows = list(zip(*(pair for pair in zip(*rows)
                          if 1 <= min(map(len, pair)) and max(map(len, pair)) <= longest)))
        if not rows:
            raise UserError(f"{prefix}.{endings[0]}: no pair has between 1 and {longest} tokens on both sides; "
                            "raise --length")
        for side, sentences in zip(("source", "target"), rows):
            np.save(folder / f"{side}.npy", np.concatenate(sentences))
            np.save(folder / f"{side}.starts.npy", np.cumsum([0, *map(len, sentences)]))
        write_atomic(done, json.dumps(about))
    return ParallelText(folder)


class TokenBatches:
    """An endless stream of batches: examples of like length, so many that rows x longest <= tokens.
    batch(i, seed) is a function of i and the seed.

    Every epoch deals the examples of equal length out anew and shuffles the batches. The lengths in
    sorted order are always the same, so an epoch always has the same number of batches,
    len(batches). """

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
        epoch, number = divmod(index, len(self))
        if (seed, epoch) != self.dealt:
            rng = np.random.default_rng([seed, epoch])
            self.examples = np.lexsort((rng.random(len(self.lengths)), self.lengths))
            self.shuffled, self.dealt = rng.permutation(len(self)), (seed, epoch)
        batch = self.shuffled[number]
        return self.examples[self.cuts[batch]:self.cuts[batch + 1]]


def pad(rows, pad_id, before=(), behind=()):
    """(ids (B, T), lengths (B,)) of lists or arrays of ids, each between `before` and `behind`,
    filled up with pad_id. """
    lengths = torch.tensor([len(row) for row in rows]) + len(before) + len(behind)
    ids = torch.full((len(rows), int(lengths.max())), pad_id)
    joined = np.concatenate([np.asarray(part, dtype=np.int64) for row in rows for part in (before, row, behind)])
    ids[torch.arange(ids.shape[1]) < lengths[:, None]] = torch.from_numpy(joined)
    return ids, lengths


class Translations:
    """What a run reads of --train_text and --valid_text: the joint vocabulary and, for a training,
    an endless stream of batches, each a function of its number and the seed, and pairs set aside
    for validation losses. All of it is kept in the run folder.

    The pairs set aside are those of --valid_text, or --held_out of the training text.
    """
    unit = "tokens"

    def __init__(self, cfg, ranks, folder, training=True):
        self.cfg, self.ranks, self.device, self.folder, self.made = cfg, ranks, ranks.device, folder, []
        if training and not cfg.train_text:
            raise UserError("--train_text: missing; give the PREFIX of the parallel text to train on")
        on_main(ranks, self.make_tokenizer)
        self.tokenizer = load_tokenizer(folder / "spiece.model", lower=False)
        if cfg.init and self.tokenizer.vocab_size != cfg.vocab_size:
            raise UserError(f"{cfg.init}: a model of {cfg.vocab_size} pieces beside a spiece.model of "
                            f"{self.tokenizer.vocab_size}; it needs its own")
        cfg.vocab_size = self.tokenizer.vocab_size
        if not training:
            return
        self.text = self.held_text = self.encode(cfg.train_text, "text")
        rows = self.shuffled(self.text)
        if cfg.valid_text:
            self.held_text = self.encode(cfg.valid_text, "valid")
            held = self.shuffled(self.held_text)[:cfg.held_out or None]
        else:
            rows, held = rows[cfg.held_out:], rows[:cfg.held_out]
        self.rows = rows[:cfg.train_examples or None]
        if not len(self.rows):
            raise UserError(f"--held_out {cfg.held_out}: none of {len(self.text)} pairs is left to train on")
        self.stream = TokenBatches(self.text.longest_side()[self.rows] + 1, cfg.batch // cfg.accumulate)
        self.held, self.set_aside = held[self.held_text.longest_side()[held].argsort(kind="stable")], len(held)

    def make_tokenizer(self):
        """The joint vocabulary in the run folder: that of --tokenizer (with --init its own), or
        trained on both sides of the training text."""
        cfg, target = self.cfg, self.folder / "spiece.model"
        if target.exists():
            return
        if cfg.tokenizer:
            load_tokenizer(cfg.tokenizer, lower=False).save(self.folder)
            return
        read_pairs(cfg.train_text, *cfg.languages)
        train_sentencepiece([f"{cfg.train_text}.{ending}" for ending in cfg.languages], target, cfg.vocab_size,
                            lower=False)

    def encode(self, prefix, name):
        """Two files as token ids."""
        arguments = prefix, self.cfg.languages, self.tokenizer, self.folder / name, self.cfg.length - 1
        on_main(self.ranks, lambda: len(encode_pairs(*arguments)))
        return encode_pairs(*arguments)

    def shuffled(self, text):
        generator = torch.Generator().manual_seed(seed_of(self.cfg.seed, "held out"))
        return torch.randperm(len(text), generator=generator).numpy()

    def tensors(self, sources, targets):
        """(source (B, S), lengths (B,), target in (B, T), target out (B, T), -100 behind the end)
        of lists of ids."""
        tokenizer, end = self.tokenizer, [self.tokenizer.eos_id]
        tensors = (*pad(sources, tokenizer.pad_id, behind=end), pad(targets, tokenizer.pad_id, [tokenizer.bos_id])[0],
                   pad(targets, -100, behind=end)[0])
        return send(tensors, self.device)

    def pairs(self, text, rows):
        return self.tensors(text.ids(0, rows), text.ids(1, rows))

    def batch(self, number):
        """The tensors of shard `number` of the stream of shuffled epochs."""
        return self.pairs(self.text, self.rows[self.stream.batch(number, self.cfg.seed)])

    def held_batches(self):
        """The tensors of the pairs set aside, the shorter first; made once."""
        if not self.made:
            self.made = [self.pairs(self.held_text, self.held[start:start + 64])
                         for start in range(0, len(self.held), 64)]
        return self.made

    def translate(self, lines, search):
        """Translations of raw sentences, shared out over the processes; that of an empty one is
        empty. Sentences of like length stand in one batch. search: source (B, S), lengths (B,) ->
        [(ids, what they score)]."""
        longest, ranks, tokenizer = self.cfg.length - 1, self.ranks, self.tokenizer
        rows = tokenizer.encode_batch(lines)
        if cut := sum(len(row) > longest for row in rows):
            print0(ranks, f"{cut} sentences are cut at {longest} pieces (--length)")
        rows = [row[:longest] for row in rows]
        by_length = sorted((index for index in range(len(rows)) if rows[index]), key=lambda index: len(rows[index]))
        chunks, found = [by_length[start:start + 64] for start in range(0, len(by_length), 64)], {}
        bar = progress(ranks, len(chunks), "translating")
        for chunk in chunks[ranks.rank::ranks.size]:
            source, lengths, *_ = self.tensors([rows[index] for index in chunk], [[]] * len(chunk))
            found.update((index, tokenizer.decode(ids)) for index, (ids, _) in zip(chunk, search(source, lengths)))
            bar.update(ranks.size)
        bar.close()
        found = dict(pair for part in gather(ranks, list(found.items())) for pair in part)
        return [found.get(index, "") for index in range(len(lines))]

    def test_lines(self):
        """(source lines, target lines) of --test_text; in a dry run the first of them."""
        if not self.cfg.test_text:
            raise UserError("--test_text: missing; give the PREFIX of the text to be scored on")
        return [side[:64 if self.cfg.dry_run else None]
                for side in read_pairs(self.cfg.test_text, *self.cfg.languages)]


# --- scores --------------------------------------------------------------------------------------

SYMBOLS = re.compile(r"([!-&(-+/:-@\[-`{-~])")  # ASCII punctuation without ' , - .
MARK_AFTER_OTHER = re.compile(r"([^0-9])([.,])")
MARK_BEFORE_OTHER = re.compile(r"([.,])([^0-9])")
DASH_AFTER_DIGIT = re.compile(r"([0-9])(-)")
ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))


def tokenize_13a(line):
    """The tokens of mteval-v13a, in which BLEU is quoted: symbols stand alone, "." and "," except
    inside numbers, "-" after a digit."""
    line = line.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in ENTITIES:
        line = line.replace(entity, character)
    line = SYMBOLS.sub(r" \1 ", f" {line} ")
    line = MARK_BEFORE_OTHER.sub(r" \1 \2", MARK_AFTER_OTHER.sub(r"\1 \2 ", line))
    return DASH_AFTER_DIGIT.sub(r"\1 \2 ", line).split()


def ngrams(tokens, size):
    return Counter(zip(*(tokens[shift:] for shift in range(size))))


def corpus_bleu(hypotheses, references):
    """BLEU-4 of a corpus in percent, one reference a sentence: case-sensitive, 13a tokens,
    exponential smoothing (sacrebleu's default).

    hypotheses, references: lists of raw sentences, equally long, else ValueError. 0.0 where the
    corpus has no 4-gram or nothing matches. """
    matched, total, lengths = np.zeros(4), np.zeros(4), np.zeros(2)
    for pair in zip(hypotheses, references, strict=True):
        ours, theirs = map(tokenize_13a, pair)
        lengths += len(ours), len(theirs)
        for size in range(1, 5):
            matched[size - 1] += sum((ngrams(ours, size) & ngrams(theirs, size)).values())
            total[size - 1] += max(0, len(ours) - size + 1)
    if not matched.any() or not total.all():
        return 0.0
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    missed = np.cumsum(matched == 0)  # the k-th order without a match counts as half a match, a quarter, ...
    precisions = np.where(matched > 0, matched, 0.5 ** missed) / total
    return float(100 * brevity * math.exp(np.log(precisions).mean()))


def repeated_words(lines):
    """The share of the words of these sentences, their first ones aside, that repeat the word
    before them."""
    repeats = [one == two for line in lines for one, two in zip(line.split(), line.split()[1:])]
    return sum(repeats) / max(1, len(repeats))
