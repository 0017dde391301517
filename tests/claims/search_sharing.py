"""Do scores with shared weights (BIWS, Sec. 3.2) rank networks better than scores without?

The table (search_table.py) has the truth: a network's score with other seeds. It also has scores
without sharing at the same cost: 50 steps of pre-training from a warm start. With sharing, a
candidate starts from the super-net, which each round updates (Algorithm 1).
"""
import random
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import autobert_zero as abz
from common.files import load_file
from tests.claims import search_table
from tests.claims.study import Claim, bootstrap, kendall, read, study

TASK = "MNLI"
NETWORKS = 64
ROUNDS = (8, *[4] * 14)  # candidates per round


def chosen(scores):
    """The numbers of NETWORKS random networks with the scores of all seeds."""
    known = np.flatnonzero(np.isfinite(scores).all(1)).tolist()
    return random.Random("sharing").sample(known, min(NETWORKS, len(known)))


def shared_scores(seed, numbers, folder):
    """The scores of networks that share weights, trained in rounds in this order."""
    cfg = search_table.settings(seed)
    data = search_table.open_data(folder / "corpus", folder / "tasks", (TASK,))
    supernet = abz.SuperNet(cfg)
    supernet.load_rest(load_file(folder / f"warm-{seed}.pt"))
    archs = [abz.parse_arch(text) for text in search_table.networks().values()]
    scores = []
    for number, size in enumerate(ROUNDS):
        part = numbers[len(scores):len(scores) + size]
        lines = []
        with tempfile.TemporaryDirectory() as scratch:
            for key in part:
                path = Path(scratch) / str(key)
                result = abz.score_candidate(archs[key], number, supernet, data, cfg, path)
                lines.append({"id": key, **result})
            supernet.write_back((archs[line["id"]], load_file(Path(scratch) / f"{line['id']}.pt"))
                                for line in reversed(abz.ranked(lines)))
        scores += [line["score"] for line in lines]
    return scores


def mean_tau(columns, truths):
    """Kendall's tau of each seed's column with its truth, averaged over the seeds."""
    return statistics.mean(kendall(*pair) for pair in zip(columns, truths))


def gain(*columns):
    """mean_tau with shared weights minus mean_tau without, of columns (shared, alone, truth) of
    each seed."""
    shared, alone, truths = columns[0::3], columns[1::3], columns[2::3]
    return mean_tau(shared, truths) - mean_tau(alone, truths)


@study("0.5 core-hours after `table`", Claim(
    "biws", "At equal cost, scores with shared weights (BIWS) rank better than without",
    "saves 80% of the cost (Sec. 3.2)"))
def sharing(options):
    """64 random networks of the table, of two layers, in rounds of 8, 4, 4, ..., with three seeds.
    The truth is a network's mean score with the two other seeds, trained without sharing. Kendall's
    tau with it is averaged over the seeds. The interval is a bootstrap over networks."""
    folder = options.runs / "table"
    packed = read(options.results / "table.json")["scores"]
    scores = search_table.unpack(packed)[TASK]
    numbers = chosen(scores)
    seeds = search_table.SEEDS
    torch.set_num_threads(1)  # before the pool is made, so that each process uses one thread
    search_table.open_data(folder / "corpus", folder / "tasks", (TASK,))
    with ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        jobs = [pool.submit(shared_scores, seed, numbers, folder) for seed in seeds]
        shared = [job.result() for job in jobs]
    columns = []
    for number, each in enumerate(shared):
        others = np.delete(scores[numbers], number, 1).mean(1)
        columns += [each, scores[numbers, number], others]
    taus = {name: mean_tau(columns[first::3], columns[2::3])
            for first, name in enumerate(("shared", "alone"))}
    label = f"tau, shared {taus['shared']:.3f} - alone {taus['alone']:.3f}"
    return {"values": {"shared": shared, "alone": scores[numbers].T.tolist()},
            "intervals": {"biws": {label: bootstrap(gain, *columns)}},
            "networks": numbers}
