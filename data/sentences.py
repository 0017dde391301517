"""Runs of whole sentences from a data.corpus.Corpus: what albert.py trains on."""
import numpy as np

from data.corpus import below, mix

EIGHT = np.arange(1, 9, dtype=np.uint64)


def sentence_runs(corpus, position, rows, length, seed, short_prob=0.1):
    """A stream like that of `segments`, of runs of whole sentences, parted at one of the boundaries inside by its
    index. No text is missing between the parts, and neither their sizes nor their ends tell which came first: a run
    begins at a sentence that is drawn by its index in the document, and has as many more as fit (at its document's
    end, before it too). Drawn by its tokens, or cut, it would give the order away.

    A run has two sentences where `length` has room for them, also if its drawn size has not. Where it has none
    (and in a document of one sentence) the example is a single part, a stretch of the two that is cut at both ends:
    second_length is 0. `other` is as whole, from the end of a run elsewhere; other_length is 0 where it does not
    fit beside `first`.
    """
    table, _, slot, document, target, draws = corpus.drawn(position, rows, length, seed, short_prob)
    low, high = (corpus.documents[corpus.ids[document] + part] for part in (0, 1))
    # the document's slots share out its sentences but the last evenly, by number
    slots = table[document + 1] - table[document]
    share = (slot - table[document] + (draws[2] >> np.uint64(11)) * 2.0**-53) / slots
    place = share * np.maximum(high - low - 1, 1)
    start = low + place.astype(np.int64)
    token, after = corpus.sentences[start], corpus.sentences[np.minimum(start + 2, high)]
    stop = whole(corpus, start, high, target)
    pair = (after - token <= length) & (high - low > 1)
    stop = np.where(pair, np.maximum(stop, start + 2), stop)
    before = corpus.first_after(corpus.sentences[high] - target - 1, low, start)
    start = np.where(pair & (stop == high), before, start)
    middle = start + 1 + below(np.maximum(stop - start - 1, 1), draws[3])
    begin, cut, end = (corpus.sentences[number] for number in (start, middle * pair, stop))
    lone = np.minimum(target, after - token)
    begin = np.where(pair, begin, token + ((place % 1) * (after - token - lone + 1)).astype(np.int64))
    first, second = np.where(pair, cut - begin, lone), np.where(pair, end - cut, 0)
    columns = (array[:, None] for array in (document, start, stop, second, target - first, length - first))
    place, other = run_elsewhere(corpus, table, *columns, [mix(draw[:, None] + EIGHT) for draw in draws[4:]])
    return corpus.collect(length, (begin, first), (cut, second), (place, other), np.where(pair, stop - start, 1))


def whole(corpus, start, high, room):
    """Where the longest run of sentences ends that begins with `start`, ends before sentence `high` and has no more
    than `room` tokens; `start` where no sentence fits. All of one shape."""
    limit = corpus.sentences[start] + room
    stop = corpus.first_after(np.minimum(limit, corpus.sentences[high] - 1), start, high)
    return stop - (corpus.sentences[stop] > limit)


def run_elsewhere(corpus, table, document, start, stop, want, room, most, draws):
    """(first token, tokens), (R,) each, of runs of whole sentences in the place of a second part: not from another
    document's beginning, of up to `room` tokens, or one sentence of up to `most`. Of eight that are drawn the one
    whose size is nearest to `want`, the second part's; 0 tokens where none fits or none is wanted.

    In a corpus of one document: from before or after its run, sentences start .. stop - 1. (R, 1), draws: (R, 8).
    """
    if len(corpus.ids) == 1:
        low, high = corpus.documents[corpus.ids[document]], corpus.documents[corpus.ids[document] + 1]
        left = high - low - (stop - start)
        begin = low + below(np.maximum(left, 1), draws[0])
        high = np.where(begin < start, start, high)
        begin = np.minimum(begin + (begin >= start) * (stop - start), high - 1)
    else:
        foreign = table[document + 1] + below(table[-1] - table[document + 1] + table[document], draws[0])
        there = corpus.ids[np.searchsorted(table, foreign % table[-1], side="right") - 1]
        low, high = corpus.documents[there], corpus.documents[there + 1]
        left = high - low - 1
        begin = np.minimum(low + 1 + below(np.maximum(left, 1), draws[1]), high - 1)
    end = np.maximum(whole(corpus, begin, high, room), begin + 1)
    size = corpus.sentences[end] - corpus.sentences[begin]
    size = np.where((left > 0) & (size <= most) & (want > 0), size, 0)
    best = np.where(size > 0, abs(size - want), 2**40).argmin(1)[:, None]
    return [np.take_along_axis(array, best, 1)[:, 0] for array in (corpus.sentences[begin], size)]
