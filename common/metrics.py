"""The official metrics of GLUE and SQuAD, in numpy alone.

Definitions follow scikit-learn, SciPy and the official SQuAD scripts, whose numbers the tests hold as constants. Where
those give NaN or stop (no data, a constant input), the value here is 0.0: a broken model must look useless, never good.
For the same reason NaN among the inputs makes every correlation 0.0, and a NaN prediction simply wrong for accuracy and
F1. Everything is a share (0..1) or a correlation (-1..1). BLEU is in data/translation.py.
"""
import math
import re
import string
from collections import Counter

import numpy as np


def two_arrays(predictions, labels):
    """Both inputs as equally long float64 vectors; ValueError where the lengths differ."""
    predictions, labels = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (predictions, labels))
    if len(predictions) != len(labels):
        raise ValueError(f"{len(predictions)} predictions for {len(labels)} labels")
    return predictions, labels


def accuracy(predictions, labels):
    """Share of equal entries."""
    predictions, labels = two_arrays(predictions, labels)
    return float(np.mean(predictions == labels)) if len(labels) else 0.0


def f1(predictions, labels):
    """F1 of the positive class 1; 0.0 where neither side has a positive."""
    predictions, labels = two_arrays(predictions, labels)
    guessed, real = predictions == 1, labels == 1
    total = np.sum(guessed) + np.sum(real)
    return float(2 * np.sum(guessed & real) / total) if total else 0.0


def matthews(predictions, labels):
    """Matthews correlation, any number of classes (Gorodkin's R_K); 0.0 where a side has one class only."""
    predictions, labels = two_arrays(predictions, labels)
    if np.isnan([predictions, labels]).any() or not len(labels):
        return 0.0
    classes, codes = np.unique(np.concatenate([predictions, labels]), return_inverse=True)
    guessed, real = (np.bincount(part, minlength=len(classes)).astype(np.float64) for part in np.split(codes, 2))
    n, right = float(len(labels)), float(np.sum(predictions == labels))
    spread = (n * n - guessed @ guessed) * (n * n - real @ real)
    return float((right * n - guessed @ real) / math.sqrt(spread)) if spread else 0.0


def pearson(predictions, labels):
    """Pearson correlation; 0.0 for constant, infinite or NaN input and below two points."""
    predictions, labels = two_arrays(predictions, labels)
    sides = []
    for values in (predictions, labels):
        if len(values) < 2 or not np.isfinite(values).all() or values.min() == values.max():
            return 0.0
        centred = values / np.abs(values).max()  # first to the unit scale, so that squares neither overflow nor vanish
        centred -= centred.mean()
        sides.append(centred / np.linalg.norm(centred))
    return float(np.clip(sides[0] @ sides[1], -1.0, 1.0))


def ranks(values):
    """Ranks from 1; tied values share their mean rank."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def spearman(predictions, labels):
    """Spearman's rank correlation, ties at their mean rank; infinite values are only the largest or smallest."""
    predictions, labels = two_arrays(predictions, labels)
    if np.isnan([predictions, labels]).any():
        return 0.0
    return pearson(ranks(predictions), ranks(labels))


ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text):
    """Lower case, no ASCII punctuation, no articles, single spaces: the form in which SQuAD compares answers."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def squad_exact(prediction, answer):
    """1.0 where prediction and answer are equal after normalize_answer, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def squad_f1(prediction, answer, version=2):
    """F1 over the words of two answers. Where a side has none: 1.0 in version 2 if both have none, else 0.0."""
    guessed, real = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not guessed or not real:
        return float(version == 2 and guessed == real)
    common = sum((Counter(guessed) & Counter(real)).values())
    return 2 * common / (len(guessed) + len(real))
