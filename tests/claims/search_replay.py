"""Searches replayed on the table of search_table.py: thousands of seeds in minutes.

A replayed search follows autobert_zero.propose in the closed space. Children outside the space are
drawn again: the chance of each child inside it is computed and normalised. A search sees the scores
of one training seed; the mean of the other seeds judges what it found. Searches of a seed see the
same scores and the same initial population.
"""
import collections
import functools
import math
import random
from typing import NamedTuple

import numpy as np

import autobert_zero as abz
from tests.claims.search_table import ATTENTIONS, LAYERS

KERNELS = len(abz.KERNELS)  # a layer below this number is a convolution
COUNTS = (20, 50, 100, 200, 400, 775)  # candidates at which a search is judged
TRIES = 100  # draws of a new child; then a random network takes its place


class Settings(NamedTuple):
    """What a replay may change; the defaults are the search's own."""
    strategy: str = "op-nas"  # op-nas, evolution or random
    sharpness: float = abz.SHARPNESS  # of the priorities (D9)
    alpha: float = 0.01  # of Eq. 3
    standardised: bool = True  # scores in standard deviations (D9); else as they are
    uniform: float = 0.1  # the part of the probability that is uniform (D9)
    prior: float = 1.0  # samples of the mean score that each option has more (D8)
    change_kind: float = 0.5  # probability of an inter-layer mutation (D16); the paper's is 1
    attentions: float = 1 / 3  # probability of an attention in a random layer (D23)
    population: int = 100
    parents: int = 5
    children: int = 5
    trainings: int = 1  # of each candidate: its score is their mean
    again: bool = False  # the candidates that may become parents are trained once more


OURS = Settings()
# Eq. 3 with mean scores in 0..1, alpha 0.01 and a plain softmax; every child changes a kind
PRINTED = Settings(sharpness=1.0, standardised=False, uniform=0.0, prior=0.0, change_kind=1.0)


class Edits(NamedTuple):
    """The edits of an attention that stay in the space, one entry for each child of each cell, an
    edit at a position."""
    legal: np.ndarray  # (cells, operations): whether the cell has a legal child of the operation
    position: np.ndarray  # (cells,) of the new operation
    cell: np.ndarray  # (entries,)
    operation: np.ndarray  # (entries,) in OPS; -1 for an edit without a new operation
    chance: np.ndarray  # (entries,) of the child, given its cell and operation
    child: np.ndarray  # (entries,) in LAYERS


def legal_children(parent):
    """{(edit, position): {new operation or None: [legal children]}} as in abz.edit_attention."""
    parts = [*abz.INPUTS, *abz.path_of(parent)]
    cells = collections.defaultdict(lambda: collections.defaultdict(list))
    for edit in abz.EDITS:
        for number in range(len(abz.INPUTS), len(parts)):
            position = number - len(abz.INPUTS) + (edit is abz.append)
            for op, new in edit(parts[number], parts[:number]):
                child = abz.canonical(abz.substitute(parent, parts[number], new))
                if child == parent or not abz.searchable(child):
                    continue
                path = [*abz.path_of(child)]
                if op is None or position < len(path) and path[position][0] == op:
                    cells[edit.__name__, number, position][op].append(child)
    return cells


@functools.cache
def edits():
    """{number in LAYERS: Edits} of the attentions."""
    expressions = [abz.parse_formula(text) for text in ATTENTIONS]
    numbers = {expression: KERNELS + index for index, expression in enumerate(expressions)}
    tables = {}
    for expression, number in numbers.items():
        cells = legal_children(expression)
        legal = [[op in cell for op in abz.OPS] for cell in cells.values()]
        entries = []
        for index, cell in enumerate(cells.values()):
            for op, children in cell.items():
                inside = [numbers[child] for child in children if child in numbers]
                code = -1 if op is None else abz.OPS.index(op)
                entries += [(index, code, 1 / len(children), child) for child in inside]
        positions = [position for _, _, position in cells]
        columns = [np.array(column) for column in zip(*entries)]
        tables[number] = Edits(np.array(legal), np.array(positions), *columns)
    return tables


def neighbours():
    """{number of an attention: numbers of the attentions one edit away}."""
    return {number: set(table.child.tolist()) for number, table in edits().items()}


@functools.cache
def operations():
    """(layers, positions, operations): 1 where an attention has an operation at a position."""
    has = np.zeros((len(LAYERS), abz.MAX_PATH + 1, len(abz.OPS)))
    for number, text in enumerate(ATTENTIONS, KERNELS):
        for position, (op, *_) in enumerate(abz.path_of(abz.parse_formula(text))):
            has[number, position, abz.OPS.index(op)] = 1
    return has


def weights_of(totals, counts, settings):
    """The softmax (Sec. 3.2) of Eq. 3 before normalisation: (rows, options) of the summed scores
    and the numbers of samples of the options in each distribution."""
    N = counts.sum(-1, keepdims=True)
    mean = totals.sum(-1, keepdims=True) / np.maximum(N, 1)
    prior = np.where(counts == 0, 1.0, settings.prior)  # an option that was never tried has a mean
    means = (totals + prior * mean) / (counts + prior)
    bonus = settings.alpha * np.sqrt(2 * np.log(np.maximum(N, 1)) / np.maximum(counts, 1))
    scores = settings.sharpness * (means + bonus)
    return np.exp(scores - scores.max(-1, keepdims=True)) + 1e-12


class Priority:
    """The distributions of a round: over operations at each position, over kernels in each
    layer."""

    def __init__(self, pairs, scores, settings):
        self.settings = settings
        self.draws = {}
        kernels = np.zeros((2, 2, KERNELS))  # totals and counts, layer, kernel
        ops = np.zeros((2, abz.MAX_PATH + 1, len(abz.OPS)))
        if settings.strategy == "op-nas":
            values = np.array(scores)
            if settings.standardised:
                values = (values - values.mean()) / (values.std() or 1.0)
            layers = np.array(pairs)  # (candidates, 2)
            for kind, amounts in enumerate((values, np.ones_like(values))):
                by_layer = np.zeros(len(LAYERS))
                for layer in range(2):
                    sums = np.bincount(layers[:, layer], amounts, len(LAYERS))
                    kernels[kind, layer] = sums[:KERNELS]
                    by_layer += sums
                ops[kind] = np.tensordot(by_layer, operations(), 1)
        self.kernels = weights_of(*kernels, settings)
        self.ops = weights_of(*ops, settings)

    def mix(self, weights, legal):
        """Probabilities of the legal options, with the uniform part."""
        weights = weights * legal
        each = legal / np.maximum(legal.sum(-1, keepdims=True), 1)
        total = np.maximum(weights.sum(-1, keepdims=True), 1e-300)
        uniform = self.settings.uniform
        return (1 - uniform) * weights / total + uniform * each

    def draw(self, key, rng):
        """A kernel for the layer key = ("conv", layer), or a child of the attention `key`."""
        if key not in self.draws:
            if isinstance(key, tuple):
                chances = self.mix(self.kernels[key[1]], np.ones(KERNELS))
                options = range(KERNELS)
            else:
                table = edits()[key]
                chosen = self.mix(self.ops[table.position], table.legal.astype(float))
                chances = table.chance * np.where(
                    table.operation < 0, 1.0, chosen[table.cell, table.operation])
                options = table.child.tolist()
            self.draws[key] = options, np.cumsum(chances).tolist()
        options, cumulative = self.draws[key]
        return rng.choices(options, cum_weights=cumulative)[0]


def random_layer(rng, settings):
    if rng.random() < settings.attentions:
        return rng.randrange(KERNELS, len(LAYERS))
    return rng.randrange(KERNELS)


def random_network(rng, settings):
    return random_layer(rng, settings), random_layer(rng, settings)


def mutate(parent, rng, priority):
    """As abz.mutate."""
    child = [*parent]
    if rng.random() < priority.settings.change_kind:
        layer = rng.randrange(2)
        attentions = [other for other in parent if other >= KERNELS]
        if child[layer] >= KERNELS:
            child[layer] = rng.randrange(KERNELS)
        elif attentions and rng.random() < 0.5:
            child[layer] = rng.choice(attentions)
        else:
            child[layer] = rng.randrange(KERNELS, len(LAYERS))
    layer = rng.randrange(2)
    key = ("conv", layer) if child[layer] < KERNELS else child[layer]
    child[layer] = priority.draw(key, rng)
    return tuple(child)


def replay(scores, order, seed, settings, budget=COUNTS[-1]):
    """[(number of trainings, network, score that the search sees)] of a search.

    scores: {network: scores of the training seeds}. order: the training seeds that the search uses
    of them, one after the other."""
    rng = random.Random(f"population {seed}")
    seen = {}  # {network: score}
    spent = 0
    trained = []

    def train(network, trainings):
        nonlocal spent
        spent += trainings - seen.get(network, (0, 0.0))[0]
        values = [scores[network][number] for number in order[:trainings]]
        seen[network] = trainings, sum(values) / trainings
        trained.append((spent, network, seen[network][1]))

    while spent < min(settings.population, budget):
        network = random_network(rng, settings)
        if network not in seen:
            train(network, settings.trainings)
    rng = random.Random(f"children {seed}")
    while spent < budget:
        ranking = sorted(seen, key=lambda network: -seen[network][1])
        if settings.again and settings.strategy != "random":
            for network in ranking[:2 * settings.parents]:
                if seen[network][0] == 1:
                    train(network, 2)
            ranking = sorted(seen, key=lambda network: -seen[network][1])
        priority = Priority([*seen], [score for _, score in seen.values()], settings)
        found = []
        for number in range(settings.parents * settings.children):
            parent = ranking[number // settings.children % len(ranking)]
            for _ in range(TRIES):
                child = random_network(rng, settings)
                if settings.strategy != "random":
                    child = mutate(parent, rng, priority)
                if child not in seen and child not in found:
                    break
            while child in seen or child in found:  # all children of the parent are known
                child = rng.randrange(len(LAYERS)), rng.randrange(len(LAYERS))
            found.append(child)
        for child in found:
            train(child, settings.trainings)
    return trained


def judge(trained, truth, counts=COUNTS):
    """(true score of the best, mean true score of the five best) at each number of trainings; best
    by the score that the search saw."""
    results = []
    latest = {}
    position = 0
    for count in counts:
        while position < len(trained) and trained[position][0] <= count:
            _, network, score = trained[position]
            latest[network] = score
            position += 1
        best = sorted(latest, key=lambda network: -latest[network])[:5]
        values = [truth[network] for network in best]
        results.append((values[0], sum(values) / len(values)))
    return results


def study(scores, settings, seeds, seen=1):
    """(searches, counts, 2): judge() of replays with these search seeds. seen: the number of
    training seeds that a search may use; the others are the truth."""
    number = len(next(iter(scores.values())))
    results = []
    for seed in seeds:
        order = [(seed + step) % number for step in range(number)]
        truth = {network: sum(values[other] for other in order[seen:]) / (number - seen)
                 for network, values in scores.items()}
        results.append(judge(replay(scores, order, seed, settings), truth))
    return np.array(results)
