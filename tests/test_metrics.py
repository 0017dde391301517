"""The metrics against constants computed with scikit-learn 1.9 and SciPy 1.17, and the scores of
broken input."""
import math

import numpy as np
import pytest

from common import metrics

NAN = math.nan


def numbers(seed, count, top):
    """Reproducible integers below top: the input of the reference libraries."""
    values = []
    for _ in range(count):
        seed = (1103515245 * seed + 12345) % 2 ** 31
        values.append((seed >> 16) % top)
    return np.array(values)


@pytest.mark.parametrize("count, classes, seed, expected", [
    (200, 2, 1, [0.71, 0.7542372881355932, 0.4011690974799177]),
    (1000, 10, 7, [0.404, 0.4019607843137255, 0.3374577910680533]),
])
def test_class_metrics_agree_with_scikit_learn(count, classes, seed, expected):
    predictions = numbers(seed, count, classes)
    labels = numbers(seed + 1, count, classes)
    right = numbers(2 * seed + 1, count, 3) == 0
    predictions = np.where(right, labels, predictions)
    scores = [metric(predictions, labels)
              for metric in (metrics.accuracy, metrics.f1, metrics.matthews)]
    assert scores == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("count, top, seed, expected", [
    (50, 7, 3, [0.5875955600576713, 0.5727535893152236]),
    (1500, 30000, 7, [0.442660831929323, 0.4207757729598786]),
])
def test_correlations_agree_with_scipy(count, top, seed, expected):
    x = numbers(seed, count, top) / 7
    y = numbers(seed + 1, count, top) + numbers(seed, count, top) * 0.5
    scores = [metrics.pearson(x, y), metrics.spearman(x, y)]
    assert scores == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", [metrics.pearson, metrics.spearman, metrics.matthews])
def test_constant_input_scores_zero(metric):
    assert metric([], []) == 0.0
    assert metric([0.1] * 10, range(10)) == 0.0


def test_nan_predictions_are_wrong():
    for metric in (metrics.pearson, metrics.spearman):
        assert metric([0, 0, 1, NAN], [0, 0, 1, 1]) == 0.0
    for metric in (metrics.accuracy, metrics.f1):
        assert metric([NAN, 1, 0], [1, 1, 0]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("prediction, answer, exact, f1", [
    ("The  Cat!", "cat", 1, 1),
    ("U.S.", "us", 1, 1),
    ("cat cat", "cat", 0, 2 / 3),
    ("“cat”", "cat", 0, 0),
    ("an", "the", 1, 1),
    ("the", "cat", 0, 0),
])
def test_squad_definitions(prediction, answer, exact, f1):
    assert metrics.squad_exact(prediction, answer) == exact
    assert metrics.squad_f1(prediction, answer) == pytest.approx(f1, abs=1e-12)
    assert metrics.squad_f1(answer, prediction) == pytest.approx(f1, abs=1e-12)
