"""The metrics against constants computed with scikit-learn 1.9 and SciPy 1.17, and the scores of
broken input."""
import math

import numpy as np
import pytest

from common import metrics

NAN = math.nan


def numbers(seed, count, top):
    """Integers below top, the same with every version of numpy."""
    return np.random.RandomState(seed).randint(top, size=count)


def test_class_metrics_agree_with_scikit_learn():
    predictions = numbers(7, 1000, 10)
    labels = numbers(8, 1000, 10)
    right = numbers(15, 1000, 3) == 0
    predictions = np.where(right, labels, predictions)
    expected = {
        metrics.accuracy: 0.389,
        metrics.f1: 0.39408866995073893,
        metrics.matthews: 0.3213748217351067,
    }
    for metric, score in expected.items():
        assert metric(predictions, labels) == pytest.approx(score, abs=1e-9)


def test_correlations_agree_with_scipy():
    """For numbers with many ties."""
    x = numbers(3, 50, 7) / 7
    y = numbers(4, 50, 7) + x * 3.5
    assert metrics.pearson(x, y) == pytest.approx(0.5002655864454885, abs=1e-9)
    assert metrics.spearman(x, y) == pytest.approx(0.4509859166962411, abs=1e-9)


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
    ("The  C.at!", "cat", 1, 1),
    ("cat cat", "cat", 0, 2 / 3),
    ("“cat”", "cat", 0, 0),
    ("an", "the", 1, 1),
])
def test_squad_definitions(prediction, answer, exact, f1):
    assert metrics.squad_exact(prediction, answer) == exact
    assert metrics.squad_f1(prediction, answer) == pytest.approx(f1)
