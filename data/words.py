"""Sentences -> token ids word by word, for data/text.py: nearly every word of a text has come before.

    ids, lengths = WordCache(tokenizer).encode(sentences)

The same ids as tokenizer.encode_batch's, sooner. A word's pieces do not depend on its neighbours: no piece goes past a
blank, and neither does what is done before (NFKD, lower case, SentencePiece's own rules). Sums of scores do depend on
them where they are rounded. So SentencePiece models whose scores do not add up exactly, as those of data/vocabulary.py
do, are given whole sentences, and so are all models where a sentence is too long for exact sums.
"""
from itertools import chain

import numpy as np

from common.tokenization import SentencePieceTokenizer
from data.corpus import mix
from data.vocabulary import STEP, steady

SLOTS, IDS = 1 << 21, 1 << 22  # room for words and for their ids: 50 and 8 MB; for ids up to twice that for a while
BLOCK = 1000  # sentences at a time: what they need stays in the processor's cache
INSIDE = 15  # bytes of the longest word that is remembered
SLOT = np.dtype([("low", "u8"), ("high", "u8"), ("place", "i4"), ("count", "i4")])
MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # the first bytes of eight


def token_dtype(tokenizer):
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 65536 else np.uint32)


def longest_apart(tokenizer):
    """Bytes of the longest sentence whose words may be encoded apart."""
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return 1 << 62
    raw, model = tokenizer.path.read_bytes(), tokenizer.model
    exact = "▁" in tokenizer.index and steady(raw, tokenizer.lower) == raw
    if not exact or any("▁" in name[1:] for name in tokenizer.names) or model.encode("a  a") != 2 * model.encode("a"):
        return 0
    worst = 10 - min(map(model.get_score, range(tokenizer.vocab_size)))  # what an unknown character takes off
    return int(2 ** 24 * STEP / worst)  # float32 is exact to 2^24 steps; few characters become more than their bytes


class WordCache:
    """Ids of words, remembered as a processor remembers memory: each word has one slot, and the last to come has it."""

    def __init__(self, tokenizer):
        self.tokenizer, self.longest = tokenizer, longest_apart(tokenizer)
        self.forget()

    def __reduce__(self):  # travels to worker processes empty
        return WordCache, (self.tokenizer,)

    def forget(self):
        self.slots = np.zeros(SLOTS, SLOT)  # a slot of zeros holds the word of no bytes, which has no ids
        self.ids, self.used = np.empty(IDS, token_dtype(self.tokenizer)), 0

    def encode(self, sentences):
        """(ids of all sentences, how many each has); sentences: list of str without line ends."""
        if not self.longest:
            return self.ask(sentences)
        blocks = [self.encode_block(sentences[k:k + BLOCK]) for k in range(0, len(sentences), BLOCK)]
        empty = np.empty(0, self.ids.dtype), np.empty(0, np.int64)
        return tuple(map(np.concatenate, zip(empty, *blocks)))

    def encode_block(self, sentences):
        text = "\n".join([*sentences, ""]).encode()
        starts, ends, last = self.cut(np.frombuffer(text, np.uint8))
        place, count = self.look_up(text, starts, ends)
        after = np.cumsum(count)
        ids = self.ids.take(np.arange(after[-1]) + np.repeat(place - after + count, count))
        return ids, np.diff(after[last], prepend=0)

    def cut(self, text):
        """(first byte of each word, the one after it, (S,) number of each sentence's last word). Too long a sentence is
        one word."""
        ends = np.flatnonzero((text == ord(" ")) | (text == ord("\n")))
        last = np.flatnonzero(text[ends] == ord("\n"))
        long = np.diff(ends[last], prepend=-1) > self.longest
        if long.any():
            keep = ~np.repeat(long, np.diff(last, prepend=-1))
            keep[last] = True
            ends, last = ends[keep], np.cumsum(keep)[last] - 1
        return np.concatenate([[0], ends[:-1] + 1]), ends, last

    def look_up(self, text, starts, ends):
        """(where each word's ids begin in self.ids, how many there are); words that are not there are put there."""
        if self.used > IDS:
            self.forget()
        sizes = ends - starts
        eights = np.ndarray(len(text) + 8, "<u8", text + bytes(15), strides=1)  # from each byte on
        low = eights[starts] & MASKS.take(sizes, mode="clip")
        high = eights[starts + 8] & MASKS.take(sizes - 8, mode="clip") | sizes.astype(np.uint64) << np.uint64(56)
        slots = mix(low ^ mix(high)) % np.uint64(SLOTS)
        found = self.slots.take(slots.astype(np.int64))
        place, count = found["place"], found["count"]
        new = np.flatnonzero((found["low"] != low) | (found["high"] != high) | (sizes > INSIDE))
        if len(new):
            place[new], count[new] = self.learn([text[a:b].decode() for a, b in zip(starts[new], ends[new])])
            short = new[sizes[new] <= INSIDE]
            found["low"], found["high"] = low, high
            self.slots[slots[short]] = found[short]
        return place, count

    def learn(self, words):
        """Put the words' ids at the end of self.ids; returns what look_up does."""
        index = {word: number for number, word in enumerate(dict.fromkeys(words))}
        ids, count = self.ask(list(index))
        end = self.used + len(ids)
        if end > len(self.ids):
            self.ids = np.concatenate([self.ids[:self.used], np.empty(len(ids) + IDS, self.ids.dtype)])
        self.ids[self.used:end] = ids
        place, self.used = self.used + np.cumsum(count) - count, end
        numbers = [index[word] for word in words]
        return place[numbers], count[numbers]

    def ask(self, texts):
        """(ids, how many each text has), of the tokenizer."""
        rows = self.tokenizer.encode_batch(texts)
        count = np.array([len(row) for row in rows], np.int64)
        return np.fromiter(chain.from_iterable(rows), self.ids.dtype, int(count.sum())), count
