"""Searches replayed on the table of search_table.py: thousands of seeds in minutes.

A replayed search follows autobert_zero.propose in the closed space. It draws from the exact
distribution of a parent's children, without children outside the space or already trained, which a
search would redraw. A search sees the scores of one training seed. The mean of the other seeds
judges its result. Searches of a seed see the same scores and the same initial population.
"""
import functools
import itertools
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

import autobert_zero as abz
from tests.claims.search_table import ATTENTIONS, LAYERS
from tests.claims.study import interval

KERNELS = len(abz.KERNELS)  # lower layer numbers are convolutions
COUNTS = (20, 30, 50, 70, 100, 200, 400, 775)  # numbers of candidates at which a search is judged
SIZE = len(LAYERS)  # a network is the number first layer x SIZE + second layer


class Settings(NamedTuple):
    """The settings of a replay. The defaults are the search's own."""
    strategy: str = "op-nas"  # op-nas, evolution or random
    alpha: float = 0.01  # of Eq. 3
    sharpness: float = 1.0  # factor of Eq. 3 in the softmax
    standardised: bool = False  # scores in standard deviations, not fractions (D36)
    uniform: float = 0.0  # the uniform fraction of the probability
    prior: float = 0.0  # pseudo-samples of the mean score per option (D34)
    change_kind: float = 0.5  # probability that a layer's kind changes (D40)
    attentions: float = 1 / 3  # probability of an attention in a random layer (D32)
    population: int = 100
    parents: int = 5
    children: int = 5
    trainings: int = 1  # of each candidate. Its score is their mean
    again: bool = False  # candidates that may become parents are trained again


OURS = Settings()


class Edits(NamedTuple):
    """The edits of all attentions that stay in the space. A cell is an edit of an operation. An
    entry is one of its children inside the space."""
    legal: np.ndarray  # (cells, operations): whether the cell has a child of the operation
    position: np.ndarray  # (cells,) of the new operation
    cell: np.ndarray  # (entries,)
    parent: np.ndarray  # (entries,) in LAYERS
    child: np.ndarray  # (entries,) in LAYERS
    operation: np.ndarray  # (entries,) in OPS, -1 for an edit without a new operation
    chance: np.ndarray  # (entries,) of the child, given its cell and operation


@functools.cache
def edits():
    """The Edits, with the chances of abz.edit_attention."""
    expressions = [abz.parse_formula(text) for text in ATTENTIONS]
    numbers = {expression: KERNELS + index for index, expression in enumerate(expressions)}
    legal = []
    positions = []
    entries = []
    for expression, parent in numbers.items():
        for edit, index in itertools.product(abz.EDITS, range(len(abz.path_of(expression)))):
            children = abz.legal_children(expression, edit, index)
            position = index + (edit is abz.append)
            codes = [-1] * len(children)  # delete and rewire are drawn uniformly (D38)
            if edit not in (abz.delete, abz.rewire):
                ends = [[*abz.path_of(child)][:position + 1][-1] for child in children]
                codes = [abz.OPS.index(op) for op, *_ in ends]
            for code, child in zip(codes, children):
                if child in numbers:
                    chance = 1 / codes.count(code)
                    entries.append((len(legal), parent, numbers[child], code, chance))
            legal.append([code in codes for code in range(len(abz.OPS))])
            positions.append(position)
    columns = [np.array(column) for column in zip(*entries)]
    return Edits(np.array(legal, float), np.array(positions), *columns)


def neighbours():
    """{number of an attention: numbers of the attentions one edit away}."""
    table = edits()
    return {number: {*table.child[table.parent == number].tolist()}
            for number in range(KERNELS, SIZE)}


@functools.cache
def operations():
    """(layers, positions, operations): 1 if an attention has an operation at a position."""
    has = np.zeros((SIZE, abz.MAX_PATH + 1, len(abz.OPS)))
    for number, text in enumerate(ATTENTIONS, KERNELS):
        for position, (op, *_) in enumerate(abz.path_of(abz.parse_formula(text))):
            has[number, position, abz.OPS.index(op)] = 1
    return has


def normalised(weights):
    """Rows that sum to 1. Rows of zeros stay."""
    total = weights.sum(-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def priorities(totals, counts, settings):
    """The softmax (Sec. 3.2) of Eq. 3, not normalised: (rows, options), from the summed scores and
    the numbers of samples of the options in each distribution."""
    N = counts.sum(-1, keepdims=True)
    mean = totals.sum(-1, keepdims=True) / np.maximum(N, 1)
    prior = np.where(counts == 0, 1.0, settings.prior)  # an untried option has a mean
    means = (totals + prior * mean) / (counts + prior)
    bonus = settings.alpha * np.sqrt(2 * np.log(np.maximum(N, 1)) / np.maximum(counts, 1))
    scores = settings.sharpness * (means + bonus)
    return np.exp(scores - scores.max(-1, keepdims=True)) + 1e-12


def mixed(weights, legal, settings):
    """Probabilities of the legal options, with a uniform fraction settings.uniform."""
    return ((1 - settings.uniform) * normalised(weights * legal)
            + settings.uniform * normalised(legal))


def layer_edits(networks, scores, settings):
    """Two (SIZE, SIZE) matrices, the probabilities of an intra-layer mutation of the first and of
    the second layer, from the networks so far, (candidates,), and their scores."""
    layers = np.divmod(networks, SIZE)
    values = scores
    if settings.standardised:
        values = (scores - scores.mean()) / (scores.std() or 1.0)
    amounts = np.array([values, np.ones_like(values)]) * (settings.strategy == "op-nas")
    sums = np.array([[np.bincount(layer, amount, SIZE) for layer in layers] for amount in amounts])
    table = edits()
    by_position = np.tensordot(sums.sum(1), operations(), 1)  # totals and counts
    chosen = mixed(priorities(*by_position, settings)[table.position], table.legal, settings)
    chances = table.chance * np.where(
        table.operation < 0, 1.0, chosen[table.cell, table.operation])
    flat = np.bincount(table.parent * SIZE + table.child, chances, SIZE * SIZE)
    attentions = normalised(flat.reshape(SIZE, SIZE))
    kernels = mixed(priorities(*sums[:, :, :KERNELS], settings), np.ones((2, KERNELS)), settings)
    results = np.array([attentions, attentions])
    results[:, :KERNELS, :KERNELS] = kernels[:, None]
    return results


def kind_changes(parent, settings):
    """(SIZE, SIZE): the probability of each network after the inter-layer mutation of a parent."""
    result = np.zeros((SIZE, SIZE))
    layers = divmod(parent, SIZE)
    result[layers] = 1 - settings.change_kind
    for changed, layer in enumerate(layers):
        other = layers[1 - changed]
        options = np.zeros(SIZE)
        if layer >= KERNELS:
            options[:KERNELS] = 1 / KERNELS
        else:
            copied = 0.5 if other >= KERNELS else 0.0  # half of them are the other layer's (D41)
            options[KERNELS:] = (1 - copied) / len(ATTENTIONS)
            options[other] += copied
        place = (slice(None), other) if changed == 0 else (other, slice(None))
        result[place] += settings.change_kind / 2 * options
    return result


def children_of(parent, changes, settings):
    """(networks,): the probability of each child of a parent, as in abz.mutate."""
    first, second = changes
    after = kind_changes(parent, settings)
    return (first.T @ after / 2 + after @ second / 2).ravel()


def random_networks(settings):
    """(networks,): the probability of each random network, as in abz.sample_arch."""
    layer = np.full(SIZE, settings.attentions / len(ATTENTIONS))
    layer[:KERNELS] = (1 - settings.attentions) / KERNELS
    return np.outer(layer, layer).ravel()


def draw(probabilities, free, number, rng):
    """`number` different free networks, drawn uniformly if too few have a probability."""
    chances = np.where(free, probabilities, 0.0)
    if (chances > 0).sum() < number:
        chances = np.where(free, probabilities + 1e-9, 0.0)
    return rng.choice(len(free), number, replace=False, p=chances / chances.sum())


def replay(scores, settings, seed, budget=COUNTS[-1]):
    """[(number of trainings so far, network, its score)] of a search. A network that is trained
    again appears twice. scores: (networks, trainings), NaN outside the table."""
    free = ~np.isnan(scores[:, 0])
    by_chance = random_networks(settings)
    rng = np.random.default_rng([seed, 0])
    trained = np.zeros(len(scores), int)
    seen = np.full(len(scores), -np.inf)
    steps = []
    spent = 0

    def train(networks, trainings):
        nonlocal spent
        for network in networks.tolist():
            spent += trainings - trained[network]
            trained[network] = trainings
            seen[network] = scores[network, :trainings].mean()
            free[network] = False
            steps.append((spent, network, seen[network]))

    train(draw(by_chance, free, settings.population // settings.trainings, rng),
          settings.trainings)
    rng = np.random.default_rng([seed, 1])
    while spent < budget:
        parents = np.argsort(-seen, kind="stable")[:settings.parents]
        if settings.again:
            train(parents[trained[parents] == 1], 2)
            parents = np.argsort(-seen, kind="stable")[:settings.parents]
        if settings.strategy == "random":
            train(draw(by_chance, free, settings.parents * settings.children, rng),
                  settings.trainings)
            continue
        known = np.flatnonzero(trained)
        changes = layer_edits(known, seen[known], settings)
        proposals = []
        for parent in parents.tolist():
            chances = children_of(parent, changes, settings)
            found = draw(chances, free, settings.children, rng)
            free[found] = False
            proposals.append(found)
        train(np.concatenate(proposals), settings.trainings)
    return steps


def judge(steps, truth, counts=COUNTS):
    """(counts, 2): the true score of the best, and the mean of the five best, at each number of
    trainings. The best are chosen by the score that the search saw."""
    results = []
    for count in counts:
        seen = {network: score for spent, network, score in steps if spent <= count}
        best = sorted(seen, key=seen.get, reverse=True)[:5]
        results.append((truth[best[0]], truth[best].mean()))
    return results


def replay_all(scores, settings, seeds, views=1, budget=COUNTS[-1]):
    """(searches, counts, 2): judge() of a replay with each seed. scores: (networks, seeds). views:
    the number of training seeds that a search may see. The others are the truth."""
    results = []
    counts = [count for count in COUNTS if count <= budget]
    for seed in seeds:
        order = np.roll(np.arange(scores.shape[1]), seed)
        truth = scores[:, order[views:]].mean(1)
        results.append(judge(replay(scores[:, order], settings, seed, budget), truth, counts))
    return np.array(results)


# --- experiments -------------

STRATEGIES = {
    "OP-NAS": OURS,
    "evolution": OURS._replace(strategy="evolution"),
    "random search": OURS._replace(strategy="random"),
}
# the demo's rounds, up to 100 candidates, and the paper's, up to 775
SHAPES = {
    "100": (100, {"population": 8, "parents": 2, "children": 2}),
    "775": (775, {"population": 100, "parents": 5, "children": 5}),
}
# (claim, task, strategy that OP-NAS is compared with). The ICC of SST-2 allows no judgement
CLAIMS = (
    ("replay-random", "MNLI", "random search"),
    ("replay-second", "STS-B", "random search"),
    ("replay-evolution", "MNLI", "evolution"),
    ("replay-evolution", "STS-B", "evolution"))
JUDGED = (("100", 20), ("100", 100), ("775", 775))  # shape, number of candidates
# one change each of OP-NAS
VARIANTS = {
    "scores in percent (D36)": {"sharpness": 100.0, "alpha": 0.0001},
    **{f"scores in standard deviations times {value}": {"standardised": True, "sharpness": value}
       for value in (1, 4, 16)},
    **{f"alpha {value}": {"alpha": value} for value in (0.1, 1.0)},
    "uniform part 0.1": {"uniform": 0.1},
    "a pseudo-sample of the mean": {"prior": 1.0},
    "the rule of earlier versions": {
        "standardised": True, "sharpness": 4.0, "uniform": 0.1, "prior": 1.0},
    **{f"a kind changes with probability {value} (D40)": {"change_kind": value}
       for value in (0.0, 1.0)},
    **{f"attentions with probability {value} (D32)": {"attentions": value}
       for value in (0.5, 0.8)},
    "one parent of all children": {"parents": 0},
    "twice as many parents, half the children": {"parents": 2},
    "half the population": {"population": 0.5},
    "twice the population": {"population": 2},
}
# these see two training seeds. The third is the truth
TWO_VIEWS = {
    "two trainings of each candidate": {"trainings": 2},
    "parents are trained once more": {"again": True},
}
SEEDS = 1000  # searches per strategy
VARIANT_SEEDS = 100  # searches per variant


def varied(shape, change):
    """The settings of a variant. Changes of a shape are factors. The number of children per round
    stays."""
    settings = dict(shape)
    for name, value in change.items():
        settings[name] = max(1, round(value * shape[name])) if name in shape else value
    settings["children"] = shape["parents"] * shape["children"] // settings["parents"]
    return OURS._replace(**settings)


def plan(networks, views):
    """{(shape, name): (settings, views, searches)} of all experiments that need at most these
    numbers of networks and of training seeds."""
    calls = {}
    for size, (budget, shape) in SHAPES.items():
        if budget > networks:
            continue
        for name, settings in STRATEGIES.items():
            calls[size, name] = settings._replace(**shape), 1, SEEDS
        for name, change in VARIANTS.items():
            calls[size, name] = varied(shape, change), 1, VARIANT_SEEDS
        if views > 1:
            calls[size, "OP-NAS, judged by one"] = OURS._replace(**shape), 2, VARIANT_SEEDS
            for name, change in TWO_VIEWS.items():
                calls[size, name] = varied(shape, change), 2, VARIANT_SEEDS
    return calls


def experiment(call):
    """replay_all of (scores, settings, views, seeds, budget)."""
    scores, settings, views, seeds, budget = call
    return replay_all(scores, settings, seeds, views, budget)


def run_experiments(scores, jobs):
    """{task: {(shape, name): (searches, counts, 2)}}. scores: {task: (networks, seeds)}."""
    edits()  # once, in the parent of all processes
    keys = []
    calls = []
    for task, array in scores.items():
        networks = np.isfinite(array[:, 0]).sum()
        for key, (settings, views, searches) in plan(networks, array.shape[1] - 1).items():
            for first in range(0, searches, 100):
                keys.append((task, key))
                calls.append((array, settings, views, range(first, min(first + 100, searches)),
                              SHAPES[key[0]][0]))
    results = {}
    with get_context("fork").Pool(jobs) as pool:
        for (task, key), part in zip(keys, pool.imap(experiment, calls)):
            results.setdefault(task, {}).setdefault(key, []).append(part)
    return {task: {key: np.concatenate(parts) for key, parts in each.items()}
            for task, each in results.items()}


def difference(results, one, other, point=-1):
    """The Interval of the difference in the five best, over searches that both have. point: the
    index in COUNTS."""
    pairs = zip(results[one][:, point, 1], results[other][:, point, 1])
    return interval([float(a - b) for a, b in pairs])


def report(scores, results):
    """The record of a study: values, intervals, curves, variants and lines of a picture."""
    intervals = {}
    curves = {}
    variants = {}
    best = {}
    for task, experiments in results.items():
        best[task] = float(np.nanmax(scores[task].mean(1)))
        for size, name in experiments:
            means = experiments[size, name].mean(0).round(4)
            key = f"{task}, up to {size}"
            if name in STRATEGIES:
                counts = COUNTS[:len(means)]
                curves.setdefault(key, {})[name] = {
                    str(count): row.tolist() for count, row in zip(counts, means)}
                continue
            base = "OP-NAS, judged by one" if name in TWO_VIEWS else "OP-NAS"
            if name != "OP-NAS, judged by one":
                measured = difference(experiments, (size, name), (size, base))
                variants.setdefault(key, {})[name] = [round(each, 4) for each in measured]
    for (claim, task, other), (size, count) in itertools.product(CLAIMS, JUDGED):
        experiments = results.get(task, {})
        if (size, other) in experiments:
            intervals.setdefault(claim, {})[f"{task}, {count} candidates"] = difference(
                experiments, (size, "OP-NAS"), (size, other), COUNTS.index(count))
    points = curves["MNLI, up to 775"]
    return {
        "values": {name: [[*each.values()][-1][1]] for name, each in points.items()},
        "intervals": intervals,
        "best of the table": best,
        "curves": curves,
        "variants": variants,
        "lines": {name: [[int(count), row[1]] for count, row in each.items()]
                  for name, each in points.items()},
    }
