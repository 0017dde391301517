"""The closed space, its table and the replay of searches (tests/claims/search_*.py)."""
import collections
import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import autobert_zero as abz
from tests.claims import autobert_zero, search_replay, search_sharing, search_table
from tests.claims.search_replay import KERNELS, OURS, SIZE

BERT = KERNELS + search_table.ATTENTIONS.index(abz.BERT_ATTENTION)


@pytest.fixture(scope="module")
def table():
    """An artificial table (networks, 3 seeds), without networks 0 and 1."""
    rng = np.random.default_rng(0)
    layers = rng.normal(0, 0.05, (2, SIZE))
    truth = 0.6 + layers[0][:, None] + layers[1] + rng.normal(0, 0.02, (SIZE, SIZE))
    scores = truth.reshape(-1, 1) + rng.normal(0, 0.02, (SIZE * SIZE, 3))
    scores[:2] = np.nan
    return scores


def history_of(networks, scores):
    texts = [*search_table.networks().values()]
    return [{"arch": texts[network], "score": score, "diverged": False}
            for network, score in zip(networks, scores)]


def test_each_attention_of_the_closed_space_is_legal_and_has_three_neighbours():
    expressions = [abz.parse_formula(text) for text in search_table.ATTENTIONS]
    assert all(map(abz.searchable, expressions))
    assert len(set(expressions)) == len(expressions)
    published = [layer for layer in abz.parse_arch(abz.PUBLISHED) if not isinstance(layer, int)]
    assert set(published) < set(expressions)
    assert min(map(len, search_replay.neighbours().values())) >= 3


def test_a_replay_has_the_priorities_of_the_search(table):
    networks = np.random.default_rng(1).choice(np.arange(2, SIZE * SIZE), 60, replace=False)
    scores = table[networks, 0]
    priority = abz.OperationPriority(history_of(networks, scores), abz.Config())
    first, second = search_replay.layer_edits(networks, scores, OURS)
    for number, matrix in enumerate((first, second)):
        expected = priority.probabilities(abz.KERNELS, number)
        np.testing.assert_allclose(matrix[0, :KERNELS], expected)
    drawn = collections.Counter()
    rng = random.Random(0)
    numbers = {abz.parse_formula(text): KERNELS + index
               for index, text in enumerate(search_table.ATTENTIONS)}
    parent = abz.parse_formula(abz.BERT_ATTENTION)
    for _ in range(600):
        drawn[numbers.get(abz.edit_attention(parent, rng, priority))] += 1
    outside = drawn.pop(None)
    frequencies = np.array([drawn[number] for number in range(SIZE)]) / (600 - outside)
    assert abs(frequencies - first[BERT]).sum() < 0.25


@pytest.mark.parametrize("settings", [
    OURS, OURS._replace(sharpness=4.0, standardised=True, uniform=0.1, prior=1.0),
    OURS._replace(strategy="evolution"), OURS._replace(strategy="random"),
    OURS._replace(trainings=2), OURS._replace(again=True)])
def test_a_replay_trains_each_network_of_the_table_once(settings, table):
    steps = search_replay.replay(table, settings, seed=0, budget=300)
    networks = [network for _, network, _ in steps]
    again = len(networks) - len(set(networks))
    assert again == 0 or settings.again
    assert steps[-1][0] >= 300
    assert min(networks) >= 2
    first = [network for _, network, _ in search_replay.replay(table, OURS, seed=0, budget=100)]
    if settings.trainings == 1:
        assert networks[:100] == first  # searches of a seed have the same initial population


def test_each_search_of_an_experiment_has_its_seed(table):
    """Searches 0 and 3 see and judge by the same training seeds, but draw other networks."""
    results = search_replay.replay_all(table, OURS._replace(population=8), range(4), budget=20)
    assert results.shape == (4, 1, 2)
    assert (results[0] != results[3]).any()


def test_children_are_a_distribution_near_the_parent(table):
    networks = np.arange(2, 62)
    changes = search_replay.layer_edits(networks, table[networks, 0], OURS)
    parent = 2 * SIZE + BERT
    chances = search_replay.children_of(parent, changes, OURS).reshape(SIZE, SIZE)
    assert chances.sum() == pytest.approx(1)
    same = search_replay.children_of(parent, changes, OURS._replace(change_kind=0.0))
    kept = same.reshape(SIZE, SIZE)
    assert kept[2].sum() + kept[:, BERT].sum() - kept[2, BERT] == pytest.approx(1)


def test_a_search_that_trains_all_networks_finds_what_its_seed_says(table):
    steps = search_replay.replay(table, OURS, seed=0, budget=SIZE * SIZE - 2 - 25)
    results = search_replay.judge(steps, table[:, 1], counts=(20, 10_000))
    best = np.nanargmax(table[:, 0])
    seen = {network for _, network, _ in steps}
    assert best not in seen or results[1][0] == table[best, 1]
    assert results[1][1] > results[0][1]


def test_reliability_of_made_scores():
    rng = np.random.default_rng(0)
    columns = rng.normal(0, 2, (4000, 1)) + rng.normal(0, 1, (4000, 3))
    single, mean = search_table.reliability(columns)
    assert single == pytest.approx(4 / 5, abs=0.02)
    assert mean == pytest.approx(12 / 13, abs=0.02)
    assert search_table.deviations(columns) == pytest.approx((2, 1), abs=0.1)


def test_a_packed_table_comes_back():
    rng = random.Random(0)
    lines = [{"network": [first, second], "seed": seed, "diverged": False,
              "scores": {task: round(rng.random(), 4) for task in search_table.TASKS}}
             for seed in (10, 11) for first in range(SIZE) for second in range(SIZE)
             if (first, second, seed) != (0, 1, 11)]
    packed = json.loads(json.dumps(search_table.pack(lines)))
    for task, scores in search_table.unpack(packed).items():
        assert np.isnan(scores[1]).all()
        expected = search_table.scores_of(lines, task)
        assert expected[3, 4] == scores[3 * SIZE + 4].tolist()
        assert (0, 1) not in expected and len(expected) == SIZE * SIZE - 1


def test_the_record_of_replays_answers_its_claims(table, monkeypatch):
    monkeypatch.setattr(search_replay, "SEEDS", 3)
    monkeypatch.setattr(search_replay, "VARIANT_SEEDS", 1)
    shape = {"population": 10, "parents": 2, "children": 5}
    monkeypatch.setattr(search_replay, "SHAPES", {"100": (30, shape), "775": (20, shape)})
    monkeypatch.setattr(search_replay, "JUDGED", (("100", 20), ("100", 30), ("775", 20)))
    scores = {"MNLI": table, "SST-2": table, "STS-B": table}
    record = search_replay.report(scores, search_replay.run_experiments(scores, jobs=1))
    for claim in autobert_zero.replay.claims:
        assert {measured.n for measured in record["intervals"][claim.name].values()} == {3}
    assert len(record["variants"]["MNLI, up to 100"]) == len(search_replay.VARIANTS) + 2
    best = [*record["curves"]["MNLI, up to 100"]["OP-NAS"].values()]
    assert best[0] < best[-1]


@pytest.mark.slow
def test_a_table_is_continued(ready, monkeypatch):
    """Only a line that was cut off is trained again."""
    pairs = [*search_table.networks().items()][:3]
    settings = search_table.settings
    monkeypatch.setattr(search_table, "TASKS", {"MNLI": 32, "SST-2": 16, "STS-B": 16})
    monkeypatch.setattr(search_table, "networks", lambda: dict(pairs))
    monkeypatch.setattr(search_table, "settings", lambda *given: dataclasses.replace(
        settings(*given), steps=2, warm_times=1, vocab_size=300))
    path = Path("table.jsonl")
    words = path, ready["corpus"], ready["glue"], 1
    which = {"tasks": ("MNLI", "SST-2"), "seeds": (10,)}
    assert search_table.train_table(*words, minutes=0, **which) == 3
    assert search_table.train_table(*words, minutes=60, **which) == 0
    text = path.read_text()
    path.write_text(text[:-9])
    assert search_table.train_table(*words, minutes=60, **which) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    whole = [json.loads(line) for line in text.splitlines()]
    assert [line["scores"] for line in lines] == [line["scores"] for line in whole]
    assert sorted(tuple(line["network"]) for line in lines) == [pair for pair, _ in pairs]


def test_scores_with_shared_weights_are_those_of_a_search(monkeypatch):
    """The first round starts from the super-net, later ones from the write-back of the round
    before."""
    started = []
    written = []

    def score(arch, number, supernet, data, cfg, path):
        started.append((number, len(written)))
        torch.save({}, path.with_suffix(".pt"))
        return {"score": len(started) / 100, "diverged": False}

    monkeypatch.setattr(search_sharing, "ROUNDS", (3, 2))
    monkeypatch.setattr(abz, "score_candidate", score)
    monkeypatch.setattr(search_table, "open_data", lambda *_: None)
    monkeypatch.setattr(abz.SuperNet, "load_rest", lambda *_: None)
    monkeypatch.setattr(abz.SuperNet, "write_back", lambda _, pairs: written.append([*pairs]))
    monkeypatch.setattr(search_sharing, "load_file", lambda path: path.name)
    scores = search_sharing.shared_scores(10, [5, 9, 7, 8, 6], Path())
    assert scores == [0.01, 0.02, 0.03, 0.04, 0.05]
    assert started == [(0, 0)] * 3 + [(1, 1)] * 2
    assert [[name for _, name in pairs] for pairs in written] == [
        ["5.pt", "9.pt", "7.pt"], ["8.pt", "6.pt"]]  # the best last


def test_the_gain_of_sharing_is_a_difference_of_rank_correlations():
    truth = [1, 2, 3, 4]
    columns = [truth, [2, 1, 3, 4], truth] * 2  # shared, alone, truth of two seeds
    assert search_sharing.gain(*columns) == pytest.approx(1 - 4 / 6)
