"""The official metrics of GLUE and SQuAD, in numpy alone.

Definitions follow scikit-learn, SciPy and the official SQuAD scripts. Where those give NaN or stop
(no data, a constant input), the value is 0.0, since a broken model must never look good. So NaN in
the input makes pearson and spearman 0.0, and a NaN prediction is wrong for accuracy, F1 and
matthews. Values are fractions (0 to 1) or correlations (-1 to 1). BLEU is in
data/translation.py.
"""
import math
import re
import string
from collections import Counter

import numpy as np


def two_arrays(predictions, labels):
    """Both inputs as float64, (2, n). Raises ValueError if the lengths differ."""
    return np.array([np.ravel(predictions), np.ravel(labels)], dtype=np.float64)


def accuracy(predictions, labels):
    """Fraction of equal entries."""
    predictions, labels = two_arrays(predictions, labels)
    return float(np.mean(predictions == labels)) if len(labels) else 0.0


def f1(predictions, labels):
    """F1 of the positive class 1, or 0.0 if neither side has a positive."""
    predicted, actual = two_arrays(predictions, labels) == 1
    total = np.sum(predicted) + np.sum(actual)
    return float(2 * np.sum(predicted & actual) / total) if total else 0.0


def macro_f1(predictions, labels):
    """The mean F1 of the classes that predictions or labels have."""
    pair = two_arrays(predictions, labels)
    return float(np.mean([f1(*(pair == value)) for value in np.unique(pair)])) if pair.size else 0.0


def matthews(predictions, labels):
    """Matthews correlation for any number of classes (Gorodkin's R_K): the correlation of one-hot
    vectors. 0.0 if all predictions or all labels are equal."""
    pair = two_arrays(predictions, labels)
    one_hot = (pair[:, :, None] == np.unique(pair)).astype(np.float64)  # (2, n, classes)
    predicted, actual = one_hot - one_hot.mean(axis=1, keepdims=True)
    spread = np.sum(predicted ** 2) * np.sum(actual ** 2)
    return float(np.sum(predicted * actual) / math.sqrt(spread)) if spread > 0 else 0.0


def pearson(predictions, labels):
    """Pearson correlation. 0.0 for constant, infinite or NaN input and for fewer than two
    points."""
    pair = two_arrays(predictions, labels)
    if pair.shape[1] < 2 or not np.isfinite(pair).all() or (np.ptp(pair, axis=1) == 0).any():
        return 0.0
    return float(np.corrcoef(pair)[0, 1])


def ranks(values):
    """Ranks from 1. Equal values have their mean rank."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[codes]


def spearman(predictions, labels):
    """Spearman's rank correlation."""
    pair = two_arrays(predictions, labels)
    return 0.0 if np.isnan(pair).any() else pearson(*map(ranks, pair))


ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text):
    """The form for comparing SQuAD answers: lower case, no ASCII punctuation, no articles, single
    spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def squad_exact(prediction, answer):
    """1.0 if prediction and answer are equal after normalize_answer, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def squad_f1(prediction, answer, version=2):
    """F1 over the words of two answers. If one has no words: 1.0 in version 2 if both have none,
    else 0.0."""
    predicted = normalize_answer(prediction).split()
    actual = normalize_answer(answer).split()
    if not predicted or not actual:
        return float(version == 2 and predicted == actual)
    common = (Counter(predicted) & Counter(actual)).total()
    return 2 * common / (len(predicted) + len(actual))
