"""Token files on disk, and training segments cut from them. data/text.py makes the files.

    train, dev = Corpus("cache/", tokenizer).split(0.05)
    examples = train.segments(position=0, num_examples=256, length=125, seed=0)
    ids, token_type_ids, lengths = join(examples.segment_a, examples.length_a, examples.segment_b,
                                        examples.length_b, tokenizer)

A prepared folder contains
    tokens.bin       uint16, or uint32 for a vocabulary of more than 65,536
    sentences.bin    int64: the token at which each sentence starts, then the total
    documents.bin    int64: the sentence at which each document starts, then the total
    meta.json        written last: a folder without it is incomplete
"""
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from common.cli import UserError
from common.files import read_json
from common.tokenization import rules_of

NAMES = ("tokens", "sentences", "documents")
MOST_HELD_OUT = 1000  # documents, as a cap on a fraction: 5% of Wikipedia are 300,000
FEW_SENTENCES = 4  # a book with a blank line after each paragraph has fewer
# Many documents in a file, all of them short, are probably paragraphs of books. Among as many
# Wikipedia articles, some are far longer than the median.
MANY_DOCUMENTS = 100  # in a file
PARAGRAPH = 12  # sentences
ALIKE = 10  # the longest document, in medians
BLOCK = 64  # examples whose random numbers are drawn together, for speed
DRAWS = 20  # random numbers per example: sentence_runs draws at most 20, segments at most 13


def read_meta(folder):
    """meta.json of a prepared folder, or {} without one of this format."""
    try:
        meta = read_json(folder / "meta.json")
    except UserError:
        return {}
    return meta if meta.get("format") == 1 else {}


@lru_cache(maxsize=2)
def epoch_order(seed, epoch, slots, documents):
    """(a permutation of the slots, a number in [0, 1) per document) of one epoch. 4 bytes per slot:
    100 MB for Wikipedia and books in sequences of 128 tokens."""
    rng = np.random.default_rng([seed, 0, epoch])
    order = np.arange(slots, dtype=np.uint32)
    rng.shuffle(order)
    return order, rng.random(documents)


@lru_cache(maxsize=16)
def draw_block(seed, block):
    """The random numbers of each of BLOCK examples."""
    return np.random.default_rng([seed, 1, block]).random((BLOCK, DRAWS)).tolist()


@dataclass
class Segments:
    """B examples as int64 tensors, padded with 0. Text B follows text A."""
    segment_a: torch.Tensor  # (B, length)
    length_a: torch.Tensor  # (B,)
    segment_b: torch.Tensor  # (B, length)
    length_b: torch.Tensor  # (B,) 0 if the text has no sentence boundary inside
    other: torch.Tensor  # (B, length) text of another document, to replace segment_b
    length_other: torch.Tensor  # (B,)

    def __getitem__(self, chosen):
        """The Segments of the chosen examples."""
        return Segments(*(value[chosen] for value in vars(self).values()))


class Corpus:
    """A prepared folder, or a part of its documents.

    tokens, sentences, documents: memory maps. ids: (D,) the documents in view.
    """

    def __init__(self, folder, tokenizer=None, ids=None):
        self.folder = Path(folder)
        self.meta = read_meta(self.folder)
        if not self.meta:
            raise UserError(f"{folder}: not a complete corpus (meta.json is missing or broken); "
                            "make it with data/prepare.py corpus")
        rules = self.meta.get("rules") or rules_of(self.meta["lower"])
        made_by = self.meta["tokenizer"], tuple(rules)
        if tokenizer and (tokenizer.fingerprint, tuple(tokenizer.rules)) != made_by:
            raise UserError(f"{folder}: made with another tokenizer than {tokenizer.path}; "
                            "prepare it again, or give the tokenizer it was made with")
        self.ids = np.arange(self.meta["documents"]) if ids is None else ids
        self.tokens = self.open_file("tokens", self.meta["dtype"], self.meta["tokens"])
        self.sentences = self.open_file("sentences", "int64", self.meta["sentences"] + 1)
        self.documents = self.open_file("documents", "int64", self.meta["documents"] + 1)
        # a memoryview gives Python numbers, and indexing is three times as fast as for an array
        self.starts = memoryview(self.sentences)
        self.document_starts = memoryview(self.documents)
        self.id_view = memoryview(self.ids)

    def open_file(self, name, dtype, count):
        """A memory map of one file."""
        path = self.folder / f"{name}.bin"
        if not path.is_file() or path.stat().st_size != count * np.dtype(dtype).itemsize:
            raise UserError(f"{path}: missing or cut short; delete the folder and prepare it again")
        return np.memmap(path, dtype, "r").view(np.ndarray)

    def summary(self, held_out=0, hint=True):
        """The counts of the whole corpus as a sentence. held_out: number of held-out documents.
        hint: add a hint if the documents are short."""
        counts = ", ".join(f"{self.meta[name]:,} {name}" for name in NAMES)
        sizes = np.diff(self.documents)
        median = float(np.median(sizes))
        line = f"{counts} (median of {median:g} sentences)"
        if held_out:
            line += f", {held_out:,} documents held out"
        paragraphs = (
            len(sizes) >= MANY_DOCUMENTS * self.meta.get("files", math.inf)
            and median < PARAGRAPH and sizes.max() <= ALIKE * median)
        if hint and (median < FEW_SENTENCES or paragraphs):
            line += ("; hint: short documents leave little context; if each file or line is one, "
                     "data/prepare.py corpus --documents file|line")
        return line

    def split(self, held_out):
        """(train, dev), with evenly spaced held-out documents. held_out: a fraction if below 1,
        capped at MOST_HELD_OUT, else a number."""
        total = len(self.ids)
        count = int(held_out) or min(max(1, round(held_out * total)), MOST_HELD_OUT)
        if count >= total:
            raise UserError(f"--held_out {count}: {self.folder} has {total} documents; hold out "
                            "fewer, or put a blank line between documents")
        held = np.zeros(total, bool)
        held[(np.arange(count) * total + total // 2) // count] = True
        return Corpus(self.folder, ids=self.ids[~held]), Corpus(self.folder, ids=self.ids[held])

    @cached_property
    def bounds(self):
        """(starts, ends), each (D,): the first token of each document in view, and the one after
        its last."""
        starts = self.sentences[self.documents[self.ids]]
        ends = self.sentences[self.documents[self.ids + 1]]
        return starts, ends

    @cache
    def slot_table(self, length):
        """(D + 1,) the first slot of each document, and the total. Slots are stretches of `length`
        tokens that cover a document."""
        starts, ends = self.bounds
        counts = -((starts - ends) // length)  # (ends - starts) / length, rounded up
        return memoryview(np.concatenate([[0], np.cumsum(counts)]))

    def slots(self, length):
        """The number of examples in an epoch."""
        return self.slot_table(length)[-1]

    def commonest(self):
        """The fraction of the most frequent token: the majority baseline of masked tokens."""
        tokens = np.concatenate([self.tokens[start:end] for start, end in zip(*self.bounds)])
        return float(np.bincount(tokens).max() / len(tokens))

    def segments(self, position, num_examples, length, seed, short_prob=0.1, others=True):
        """Examples from number `position` of an endless stream, as Segments: consecutive tokens of
        one document, split at a sentence boundary inside.

        An example depends only on the seed and its number. So resuming needs only the position, and
        each process makes its own range. length: tokens of both segments together, at least 2. An
        example has `length` tokens, or with probability short_prob a uniform number in 2..length,
        and never more than its slot's stretch of a document. others=False omits `other`.
        """
        parts = []
        for random, document, left, right, size in self.examples(
                position, num_examples, length, seed, short_prob):
            size = min(size, right - left)
            start = left + int(random() * (right - left - size + 1))
            stop = start + size
            # sentences low .. high - 1 start inside
            low = bisect_right(self.starts, start)
            high = bisect_left(self.starts, stop)
            middle = self.starts[low + int(random() * (high - low))] if low < high else stop
            wanted = stop - middle if others else 0
            other = self.elsewhere(random, document, wanted)
            parts.append((start, middle - start, middle, stop - middle, *other))
        return self.collect(length, parts)

    def sentence_runs(self, position, num_examples, length, seed, short_prob=0.1, others=True):
        """Like segments, but whole sentences, split between two of them. The sizes of the segments
        and their ends do not reveal which came first.

        The slots of a document divide its sentences by number, so that each appears equally often.
        (If divided by tokens, an example would often begin or end with a long sentence, since a cut
        is more likely to hit one, and the outer sentences of a pair would reveal its order.) An
        example takes as many sentences of its slot as fit into its drawn size, from the beginning
        or up to the end, at random, but at least two if `length` has room for them.

        Without room for two, or in a document of one sentence, the example is one segment, cut out
        of the slot's stretch. others=False omits `other`, which takes most of the time.
        """
        parts = []
        for random, document, left, right, size in self.examples(
                position, num_examples, length, seed, short_prob):
            start, stop = self.choose_sentences(random, document, left, right, size)
            begin = self.starts[start]
            end = self.starts[stop]
            if stop - start > 1 and end - begin <= length:
                middle = self.starts[start + 1 + int(random() * (stop - start - 1))]
            else:
                size = min(size, right - left)
                begin = left + int(random() * (right - left - size + 1))
                middle = end = begin + size
            length_a = middle - begin
            length_b = end - middle
            wanted = length_b if others else 0
            other = self.run_elsewhere(random, document, wanted, length - length_a, length)
            parts.append((begin, length_a, middle, length_b, *other))
        return self.collect(length, parts)

    def examples(self, position, num_examples, length, seed, short_prob):
        """For each example from number `position`: (a source of random numbers, the document, the
        first token of the stretch, the one after its last, the size of the example: `length`, or
        with probability short_prob uniform in 2..length)."""
        for number in range(position, position + num_examples):
            random = iter(draw_block(seed, number // BLOCK)[number % BLOCK]).__next__
            short = random() < short_prob
            size = 2 + int(random() * (length - 1)) if short else length
            yield random, *self.stretch(number, length, seed), size

    def choose_sentences(self, random, document, left, right, size):
        """(first, one after the last) of the sentences for up to `size` tokens within the stretch
        left .. right."""
        low, high = self.sentence_range(document)
        begin = self.starts[low]
        end = self.starts[high]
        start = low + round((left - begin) * (high - low) / (end - begin))
        stop = low + round((right - begin) * (high - low) / (end - begin))
        # at least two sentences
        if random() < 0.5:
            stop = min(high, max(stop, low + 2))
            start = max(low, min(start, stop - 2))
            earliest = self.starts[stop] - size
            return bisect_left(self.starts, earliest, start, max(start, stop - 2)), stop
        start = max(low, min(start, high - 2))
        stop = min(high, max(stop, start + 2))
        latest = self.starts[start] + size
        return start, min(stop, bisect_right(self.starts, latest, start + 3, stop + 1) - 1)

    def stretch(self, number, length, seed):
        """(document, first token, one after the last) of the stretch of text of example `number`.

        Each epoch takes the slots in another order. The slots of a document divide it, so that an
        epoch shows each token once. Together they are longer than the document, and extend beyond
        its two ends in a ratio that varies by epoch, each by at least a quarter of the difference.
        So the cuts move, and no stretch is very short.
        """
        table = self.slot_table(length)
        total = table[-1]
        epoch, index = divmod(number, total)
        order, shifts = epoch_order(seed, epoch, total, len(self.ids))
        slot = int(order[index])
        document = bisect_right(table, slot) - 1
        low, high = self.sentence_range(document)
        begin = self.starts[low]
        end = self.starts[high]
        spare = (begin - end) % length
        overhang = spare // 4 + int(shifts[document] * (spare // 2 + 1))
        cut = begin + (slot - table[document]) * length - overhang
        return document, max(cut, begin), min(cut + length, end)

    def sentence_range(self, document):
        """(first, one after the last) of the sentences of a document in view."""
        number = self.id_view[document]
        return self.document_starts[number], self.document_starts[number + 1]

    def elsewhere(self, random, document, size):
        """(start, size) of text from a sentence's start in another document, to replace segment_b.
        Like segment_b, it is never the beginning of a document, and it is as long, so that a
        classifier cannot use these features. Size 0 if none of eight documents has such text, or
        there is no other document."""
        for _ in range(8 if size and len(self.ids) > 1 else 0):
            chosen = int(random() * (len(self.ids) - 1))
            low, high = self.sentence_range(chosen + (chosen >= document))
            latest = self.starts[high] - size
            fitting = bisect_right(self.starts, latest, low + 1, high) - (low + 1)
            if fitting:
                return self.starts[low + 1 + int(random() * fitting)], size
        return 0, 0

    def run_elsewhere(self, random, document, size, room, length):
        """(start, size) of whole sentences of another document, not from its beginning, to replace
        segment_b. Draws eight candidates of at most `room` tokens and takes the one with the size
        nearest to `size`. Size 0 if none fits or `size` is 0."""
        table = self.slot_table(length)
        first = table[document]
        stop = table[document + 1]
        total = table[-1]
        if not size or stop - first == total:
            return 0, 0
        runs = []
        for _ in range(8):
            slot = (stop + int(random() * (total - (stop - first)))) % total
            low, high = self.sentence_range(bisect_right(table, slot) - 1)
            start = low + 1 + int(random() * (high - low - 1))
            begin = self.starts[start]
            last = bisect_right(self.starts, begin + room, start, high + 1) - 1
            nearest = bisect_left(self.starts, begin + size, start + 2, last)
            for end in range(nearest - 1, last + 1)[:2]:
                tokens = self.starts[end] - begin
                runs.append((abs(tokens - size), begin, tokens))
        return min(runs)[1:] if runs else (0, 0)

    def collect(self, length, parts):
        """Segments from (first token, size) of segment_a, segment_b and other, per example."""
        tensors = []
        column = np.arange(length)
        for begin, size in np.array(parts, np.int64).reshape(-1, 3, 2).transpose(1, 2, 0):
            block = self.tokens.take(begin[:, None] + column, mode="clip").astype(np.int64)
            tensors.append(torch.from_numpy(block * (column < size[:, None])))
            tensors.append(torch.from_numpy(size.copy()))
        return Segments(*tensors)


def join(segment_a, length_a, segment_b, length_b, tokenizer, empty_b=False):
    """[CLS] A [SEP] B [SEP] of a batch.

    segment_a, segment_b: (B, width) int64 ids, with text in the first length_a, length_b (B,). If
    length_b is 0, an example is [CLS] A [SEP], or with empty_b [CLS] A [SEP] [SEP]. Returns ids (B,
    T), token_type_ids (B, T), which are 1 in B and the [SEP] after it, and lengths (B,), all int64,
    with T = width + 3.
    """
    width = segment_a.shape[1]
    position = torch.arange(width + 3)
    a = length_a[:, None]
    b = length_b[:, None]
    end = a + torch.where((b > 0) | empty_b, b + 2, 1)  # (B, 1) the position of the last [SEP]
    in_b = position > a + 1  # (B, T)
    index = torch.where(in_b, position - a - 2 + width, position - 1).clamp(0, 2 * width - 1)
    ids = torch.cat([segment_a, segment_b], dim=1).gather(1, index)
    ids[(position == a + 1) | (position == end)] = tokenizer.sep_id
    ids[position > end] = tokenizer.pad_id
    ids[:, 0] = tokenizer.cls_id
    return ids, (in_b & (position <= end)).long(), end[:, 0] + 1
