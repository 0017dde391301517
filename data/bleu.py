"""BLEU of a corpus, as sacrebleu prints it."""
import math
import re
from collections import Counter

import numpy as np

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
