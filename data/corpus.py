"""Token files on disk, and training segments cut from them on the fly. data/text.py makes the files.

    train, dev = Corpus("cache/", tokenizer).split(held_out=0.05)
    parts = train.segments(position=0, rows=256, length=125, seed=0)
    ids, kinds, lengths = join(parts.first, parts.first_length, parts.second, parts.second_length, tokenizer)

A prepared folder holds tokens.bin (uint16, or uint32 for more than 65,536 pieces), sentences.bin (int64: the token at
which each sentence starts, then the total), documents.bin (int64: the sentence at which each document starts, then the
total) and meta.json, which is written last: a folder without it was cut short.
"""
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from common.cli import UserError
from common.files import fingerprint, read_json

NAMES = ("tokens", "sentences", "documents")


def read_meta(folder):
    """meta.json of a prepared folder, {} where there is none that can be read."""
    try:
        meta = read_json(folder / "meta.json", dict)
    except UserError:
        return {}
    sound = all(type(meta.get(name)) is int and 0 < meta[name] < 1 << 48 for name in NAMES) and (
        meta.get("dtype") in ("uint16", "uint32") and {"tokenizer", "lower"} <= meta.keys())
    return meta if sound and meta.get("format") == 1 else {}


def mix(x):
    """A 64-bit hash of each element (the finaliser of SplitMix64); x: uint64 array."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(seed, stream, *arrays):
    """uint64 hash of (seed, stream, each array's element): the stateless stand-in for a random generator."""
    value = mix(np.array([seed % 2**64], np.uint64)) + np.uint64(stream)
    for array in arrays:
        value = mix(value) + array.astype(np.uint64)
    return mix(value)


def below(limit, hashes):
    """Uniform integers in [0, limit): int64; limit: positive int64 array or int."""
    return ((hashes >> np.uint64(11)) * (2.0**-53) * limit).astype(np.int64)


def permute(index, total, key):
    """Where a pseudo-random permutation of range(total) sends each index, without a table, however large total is. Four
    Feistel rounds on the next power of two, repeated until the value is below total. index: (R,) int64; key: (R,)
    uint64, a permutation for each value. Returns (R,) int64."""
    bits = max(2, (total - 1).bit_length())
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << bits - bits // 2) - 1)
    out, todo = index.astype(np.uint64), np.arange(len(index))
    while len(todo):
        high, rest, keys = out[todo] >> low, out[todo] & low_mask, key[todo]
        for turn in range(2):
            high ^= mix(rest + keys + np.uint64(2 * turn)) & high_mask
            rest ^= mix(high + keys + np.uint64(2 * turn + 1)) & low_mask
        out[todo] = high << low | rest
        todo = todo[out[todo] >= total]
    return out.astype(np.int64)


@dataclass
class Segments:
    """R training examples; int64 tensors, rows filled up with 0. first and second are one run of text."""
    first: torch.Tensor  # (R, length)
    first_length: torch.Tensor  # (R,)
    second: torch.Tensor  # (R, length)
    second_length: torch.Tensor  # (R,) 0 where the run has no sentence boundary inside
    other: torch.Tensor  # (R, length) text of another document in the place of second
    other_length: torch.Tensor  # (R,)


class Corpus:
    """A prepared folder, or a part. tokens, sentences, documents: memory maps; ids: (D,) the documents in view."""

    def __init__(self, folder, tokenizer=None, ids=None):
        self.folder, self.meta, self.slot_tables = Path(folder), read_meta(Path(folder)), {}
        if not self.meta:
            raise UserError(f"{folder}: no finished corpus is here (meta.json is missing or broken); "
                            "make it with data/prepare.py corpus")
        made_by = self.meta["tokenizer"], self.meta["lower"]
        if tokenizer is not None and (tokenizer.fingerprint, tokenizer.lower) != made_by:
            raise UserError(f"{folder}: the corpus was made with another tokenizer than {tokenizer.path}; "
                            "prepare it anew, or give the tokenizer it was made with")
        self.ids = np.arange(self.meta["documents"]) if ids is None else ids
        for name, dtype, extra in zip(NAMES, (self.meta["dtype"], "int64", "int64"), (0, 1, 1)):  # extra: the total
            path, count = self.folder / f"{name}.bin", self.meta[name] + extra
            if not path.is_file() or path.stat().st_size != count * np.dtype(dtype).itemsize:
                raise UserError(f"{path}: the file is missing or cut short; delete the folder and prepare it anew")
            if tokenizer is not None and self.meta.get("files", {}).get(name) not in (None, fingerprint(path)):
                raise UserError(f"{path}: the file is damaged; delete the folder and prepare it anew")
            setattr(self, name, np.memmap(path, dtype, "r").view(np.ndarray))

    def split(self, held_out=0.05, cap=1000):
        """(train, dev): a share of the documents, evenly spread, is held out, at most `cap` of them (0: any number).
        UserError for one document."""
        total = len(self.ids)
        if total < 2:
            raise UserError(f"{self.folder}: one document cannot be split; add text, or a blank line "
                            "between documents")
        count = max(1, min(total - 1, round(held_out * total), cap or total))
        held = np.zeros(total, bool)
        held[(np.arange(count) * total + total // 2) // count] = True
        return Corpus(self.folder, ids=self.ids[~held]), Corpus(self.folder, ids=self.ids[held])

    @cached_property
    def bounds(self):
        """(starts, ends), each (D,): the first token of each document in view, and the one after its last."""
        return self.sentences[self.documents[self.ids]], self.sentences[self.documents[self.ids + 1]]

    def slot_table(self, length):
        """(D + 1,) the first slot of each document, and the total: stretches of `length` tokens that cover it."""
        if length not in self.slot_tables:
            starts, ends = self.bounds
            self.slot_tables[length] = np.concatenate([[0], np.cumsum(-((starts - ends) // length))])
        return self.slot_tables[length]

    def slots(self, length):
        """Examples in an epoch."""
        return int(self.slot_table(length)[-1])

    def commonest(self):
        """The share of the most frequent piece: what the best single answer to all masked words finds."""
        pieces = np.concatenate([self.tokens[start:end] for start, end in zip(*self.bounds)])
        return float(np.bincount(pieces).max() / len(pieces))

    def segments(self, position, rows, length, seed, short_prob=0.1):
        """Examples position .. position + rows - 1 of an endless stream, as Segments.

        A function of its arguments alone, so resuming needs only the position, and ranks take ranges of their own.
        length: room for the text of both parts, in tokens, at least 2. The size of an example is `length`, or with
        short_prob uniform in 2..length, and never more than its slot's stretch of a document.
        """
        document, left, right, target, draws = self.drawn(position, rows, length, seed, short_prob)
        size = np.minimum(target, right - left)
        start = left + below(right - left - size + 1, draws[2])
        first, last = (self.documents[self.ids[document] + part] for part in (0, 1))  # its sentences
        boundary = self.first_after(start, first, last)
        inside = self.first_after(start + size - 1, boundary, last) - boundary
        chosen = self.sentences[boundary + below(np.maximum(inside, 1), draws[3])]
        middle = np.where(inside > 0, chosen, start + size)
        other = self.elsewhere(document, start, start + size - middle, draws[4:])
        return self.collect(length, (start, middle - start), (middle, start + size - middle), other)

    def drawn(self, position, rows, length, seed, short_prob):
        """What each example of the stream begins with: (its document, the first token of its slot's stretch and the one
        behind the last, the size it is to have, six hashes).

        Each epoch takes the slots in another order. The slots of a document part it, so that an epoch shows each token
        once, those at its beginning and its end too. They overhang both ends by what they have to spare, in each epoch
        in other shares, neither under a quarter: the cuts move, and no stretch is a mere rest.
        """
        table = self.slot_table(length)
        number = position + np.arange(rows, dtype=np.int64)
        epoch, index = np.divmod(number, table[-1])
        slot = permute(index, int(table[-1]), hashed(seed, 0, epoch))
        base = hashed(seed, 1, number)
        draws = [mix(base + np.uint64(stream)) for stream in range(6)]
        short = below(2**30, draws[0]) < short_prob * 2**30
        target = np.where(short, 2 + below(length - 1, draws[1]), length)
        document = np.searchsorted(table, slot, side="right") - 1
        begin, end = (bound[document] for bound in self.bounds)
        spare = (table[document + 1] - table[document]) * length - (end - begin)
        cut = begin + (slot - table[document]) * length - spare // 4
        cut -= below(spare // 2 + 1, hashed(seed, 2, epoch, document))
        return document, np.maximum(cut, begin), np.minimum(cut + length, end), target, draws

    def first_after(self, token, low, high):
        """The first of sentences low .. high that starts after `token`; sentence `high` does. (R,) each. numpy's
        searchsorted would miss the cache at each of its steps through a large file."""
        while (low < high).any():
            middle = (low + high) // 2
            after = self.sentences[middle] > token
            low, high = np.where(after, low, middle + 1), np.where(after, middle, high)
        return low

    def collect(self, length, *parts):
        """Segments of three parts' (first tokens, sizes), each (R,)."""
        column, tensors = np.arange(length), []
        for begin, size in parts:
            block = self.tokens.take(begin[:, None] + column, mode="clip").astype(np.int64)
            tensors += [torch.from_numpy(block * (column < size[:, None])), torch.from_numpy(size)]
        return Segments(*tensors)

    def elsewhere(self, document, start, want, draws):
        """(start, length) of runs of `want` tokens from a sentence's start in another document, to stand where a text's
        continuation would: as long as it is, and like it never the beginning of a document, or a classifier could tell
        the two apart. 0 tokens where none of eight documents has such a run, or there is no other document."""
        starts, ends = self.bounds
        found, length, todo = start.copy(), np.zeros_like(want), np.flatnonzero(want * (len(starts) > 1))
        for turn in range(8):
            chosen = below(len(starts) - 1, mix(draws[0][todo] + np.uint64(turn)))
            chosen += chosen >= document[todo]
            first, stop = self.documents[self.ids[chosen]], self.documents[self.ids[chosen] + 1]
            # sentences that leave room, but for the first
            fitting = self.first_after(ends[chosen] - want[todo], first, stop) - first - 1
            sentence = first + 1 + below(np.maximum(fitting, 1), mix(draws[1][todo] + np.uint64(turn)))
            good = fitting > 0
            found[todo[good]], length[todo[good]] = self.sentences[sentence[good]], want[todo[good]]
            todo = todo[~good]
        return found, length


def join(first, first_length, second, second_length, tokenizer, empty_second=False):
    """[CLS] A [SEP] B [SEP] of a batch of text parts.

    first, second: (R, width) int64 ids, of which the first first_length, second_length (R,) count. Where second_length
    is 0 a row is one part, [CLS] A [SEP]; with empty_second it keeps its second [SEP], [CLS] A [SEP] [SEP].
    Returns ids (R, T), kinds (R, T): 1 in B and the [SEP] behind it, 0 elsewhere, and lengths (R,), all int64, with
    T = width + 3; rows are filled up with the padding piece.
    """
    rows, width = first.shape
    place, a, b = torch.arange(width + 3).expand(rows, -1), first_length[:, None], second_length[:, None]
    two = (b > 0) | empty_second  # (R, 1)
    end = a + torch.where(two, b + 2, 1)  # the place of the last [SEP]
    ids = first.gather(1, (place - 1).clamp(0, width - 1))
    ids = torch.where(place > a + 1, second.gather(1, (place - a - 2).clamp(0, width - 1)), ids)
    ids = ids.masked_fill((place == a + 1) | (place == end), tokenizer.sep_id)
    ids = ids.masked_fill(place > end, tokenizer.pad_id).masked_fill(place == 0, tokenizer.cls_id)
    return ids, ((place > a + 1) & (place <= end)).long(), end[:, 0] + 1
