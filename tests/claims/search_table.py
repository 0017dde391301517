"""A table of all networks of a closed space, each trained with several seeds, and its report.

Noisy searches are commonly studied on a tabular benchmark (Ying et al. 2019, NAS-Bench-101; Dong
and Yang 2020, NAS-Bench-201): train every network of a small space once, then replay searches. Here
a network has two layers. A layer is one of the seven convolutions or one of ATTENTIONS: BERT's,
those of Figure 7, and others, so that each is one edit of a search away from at least three others.

A network is trained as a candidate of the demo's search: from a warm start of its seed, 50 steps of
pre-training, then fine-tuning on each task. Seeds change the warm start, the text, the masks, the
heads and the order of the examples.

The plan for STS-B (`tally`), written before its runs:
- Question: is OP-NAS better than random search and evolution on a second task that ranks networks?
- Networks: the 400 of plain layers, with two seeds. If time ends the study, those with both seeds.
- Go or no go: after 30 networks the ICC of one training is at least .65.
- The strategies are replayed as they are, and judged at 20 and at 100 candidates. Nothing of the
  search is chosen on it.
- SST-2 has an ICC of .35. It stays in the record but judges no strategy.
"""
import dataclasses
import functools
import itertools
import json
import math
import random
import statistics
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import autobert_zero as abz
from common.files import load_file
from common.tokenization import load_tokenizer
from data.corpus import Corpus
from data.inputs import Data

ATTENTIONS = (
    "softmax(scale(Q @ K.T)) @ V",
    "softmax(Q @ K.T) @ V",
    "scale(Q @ K.T) @ V",
    "softmax(scale(dist(Q, K))) @ V",
    "softmax(cos(Q, K)) @ V",
    "cos(Q, K) @ V",
    "softmax(scale(neg(dist(Q, K)))) @ V",
    "softsign(scale(Q @ K.T)) @ V",
    "softmax(scale(Q @ softsign(K).T)) @ V",
    "softmax(scale(Q @ neg(logsigmoid(neg(K)).T))) @ (Q + K)",
    "softmax(scale(Q @ neg(logsigmoid(Q + K + logsigmoid(Q)).T))) @ Q",
    "softmax(scale(Q @ neg(logsigmoid(K).T))) @ Q",
    "softmax(scale(Q @ (scale(K) + (V + softsign(scale(softsign(K))))).T)) @ V",
    "softmax(scale(Q @ (V + scale(K)).T)) @ V",
    "softmax(scale(Q @ neg(logsigmoid(neg(K)).T))) @ Q",
    "softmax(scale(Q @ neg(logsigmoid(Q + K).T))) @ Q",
    "softmax(scale(Q @ (K + V).T)) @ V",
    "softmax(scale(Q @ neg(logsigmoid(neg(K)).T))) @ K",
    "scale(cos(Q, K)) @ V",
    "softmax(scale(Q @ neg(K.T))) @ Q",
    "softmax(neg(dist(Q, K))) @ V",
    "softmax(scale(Q @ neg(K.T))) @ K",
    "softmax(scale(Q @ neg(K.T))) @ (Q + K)",
    "softmax(scale(Q @ K.T)) @ K",
    "softmax(scale(Q @ K.T)) @ (Q + K)",
    "softmax(dist(Q, K)) @ V",
    "softsign(Q @ K.T) @ V",
    "softmax(scale(Q @ (V + softsign(K)).T)) @ V",
    "softsign(cos(Q, K)) @ V",
)
LAYERS = (*(f"conv{size}" for size in abz.KERNELS), *ATTENTIONS)  # the choices of a layer
TASKS = {"MNLI": 5000, "SST-2": 1200, "STS-B": 5000}  # numbers of training examples
SEEDS = (10, 11, 12)  # the tasks' reliability was measured with seeds 0 and 1


def networks():
    """{(numbers of both layers in LAYERS): text form} of all networks."""
    pairs = itertools.product(range(len(LAYERS)), repeat=2)
    return {pair: " | ".join(LAYERS[number] for number in pair) for pair in pairs}


def plain(layer):
    """Whether a layer is a convolution, or an attention that compares Q and K themselves and
    weights V: 20 of the layers. Each of these attentions has three neighbours among them."""
    if layer.startswith("conv"):
        return True
    return layer.endswith("@ V") and ("Q @ K.T" in layer or "(Q, K)" in layer)


def networks_of(task):
    """[(numbers of both layers)] that the table has of a task: all, or for STS-B the plain ones."""
    if task != "STS-B":
        return [*networks()]
    numbers = [number for number, layer in enumerate(LAYERS) if plain(layer)]
    return [*itertools.product(numbers, repeat=2)]


# --- training -------------


def settings(seed, glue=""):
    """The Config of a candidate of the demo's search with two layers."""
    preset = {**abz.PRESETS["demo"], **abz.PRESETS["demo"]["search"]}
    flat = {name: value for name, value in preset.items() if not isinstance(value, dict)}
    flat |= {"preset": "demo", "layers": 2, "seed": seed, "glue": str(glue), "dtype": "float32"}
    return abz.Config(**flat)


@functools.cache
def open_data(corpus, glue, tasks=tuple(TASKS)):
    """The prepared corpus and these proxy tasks from the two folders."""
    cfg = settings(0, glue)
    tokenizer = load_tokenizer(str(corpus), True)
    text = Corpus(corpus, tokenizer).split(cfg.held_out)
    data = Data(torch.device("cpu"), tokenizer, *text)
    for name in tasks:
        limited = dataclasses.replace(cfg, train_examples=TASKS[name])
        data.tasks |= abz.open_proxies([name], limited, data).tasks
    return data


def warm_start(seed, corpus, glue, folder):
    """Train the common start of a seed's candidates (D47), unless the folder has it."""
    path = Path(folder) / f"warm-{seed}"
    if path.with_suffix(".pt").exists():
        return
    cfg = settings(seed, glue)
    longer = dataclasses.replace(cfg, steps=cfg.warm_times * cfg.steps)
    text = dataclasses.replace(open_data(corpus, glue), tasks={})
    hybrid = abz.hand_designed(cfg.layers)["hybrid"]
    abz.score_candidate(hybrid, 0, abz.SuperNet(cfg), text, longer, path)


def train_network(network, seed, corpus, glue, tasks, folder, end):
    """The line of a network in the table, or None after the time `end`. A network that diverged
    scores 0."""
    if time.time() > end:
        return None
    cfg = settings(seed, glue)
    first = abz.SuperNet(cfg)
    first.load_rest(load_file(Path(folder) / f"warm-{seed}.pt"))
    arch = abz.parse_arch(networks()[network])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "candidate"
        data = open_data(corpus, glue, tasks)
        result = abz.score_candidate(arch, 0, first, data, cfg, path)
    return {
        "network": network,
        "seed": seed,
        "scores": {name: round(result["scores"].get(name, 0.0), 4) for name in tasks},
        "seconds": round(result["seconds"], 2),
    }


def run_call(call):
    """A call (function, arguments) in a process of a pool."""
    function, *arguments = call
    return function(*arguments)


def read_lines(path):
    """The complete lines of a table."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def missing(lines, tasks, seeds):
    """[(network, seed)] without a score of one of the tasks, network by network in a random
    order."""
    done = {(*line["network"], line["seed"], task) for line in lines for task in line["scores"]}
    pairs = networks_of(tasks[0])
    order = random.Random("table").sample(pairs, len(pairs))
    return [(network, seed) for network in order for seed in seeds
            if not done.issuperset((*network, seed, task) for task in tasks)]


def train_table(path, corpus, glue, jobs, minutes, tasks, seeds):
    """Train the networks of the first task that the file lacks, and append a line for each
    training, with its scores on `tasks`. Ends after `minutes`. The same call continues. Returns the
    number of missing lines."""
    torch.set_num_threads(1)  # before the pool is made, so that each process uses one thread
    end = time.time() + 60 * minutes
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    lines = read_lines(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    wanted = missing(lines, tasks, seeds)
    for names in (tasks, tuple(TASKS)):
        open_data(corpus, glue, names)  # once, in the parent of all processes
    calls = [(train_network, *key, corpus, glue, tasks, folder, end) for key in wanted]
    warm_starts = [(warm_start, seed, corpus, glue, folder) for seed in seeds]
    began = time.time()
    count = 0
    with get_context("fork").Pool(jobs) as pool, open(path, "a", encoding="utf-8") as file:
        pool.map(run_call, warm_starts, chunksize=1)
        print(f"warm starts: {time.time() - began:.0f} s", flush=True)
        for line in pool.imap_unordered(run_call, calls, chunksize=1):
            if line is None:
                continue
            file.write(json.dumps(line) + "\n")
            file.flush()
            count += 1
            if count % 50 == 0:
                each = (time.time() - began) / count
                print(f"{count} of {len(wanted)} lines, {each:.2f} s each; "
                      f"{each * (len(wanted) - count) / 60:.0f} minutes to go", flush=True)
    print(f"{len(wanted) - count} lines are missing", flush=True)
    return len(wanted) - count


# --- the table and its report -------------


def columns_of(lines, task):
    """{seed: (networks,)} of a task, NaN if the table has no score."""
    columns = {}
    for line in lines:
        if task in line["scores"]:
            first, second = line["network"]
            column = columns.setdefault(line["seed"], np.full(len(LAYERS) ** 2, np.nan))
            column[first * len(LAYERS) + second] = line["scores"][task]
    return columns


def complete(columns):
    """(networks, seeds) of {seed: (networks,)}: the seeds with three fifths of the scores of the
    fullest. NaN if a network lacks one of them."""
    counts = {seed: np.isfinite(column).sum() for seed, column in columns.items()}
    kept = [columns[seed] for seed in sorted(columns) if counts[seed] > 0.6 * max(counts.values())]
    array = np.stack(kept, 1)
    array[np.isnan(array).any(1)] = np.nan
    return array


def scores_of(lines, task):
    """{(first layer, second layer): scores} of the networks that complete() keeps."""
    array = complete(columns_of(lines, task))
    return {pair: row.tolist() for pair, row in zip(networks(), array) if np.isfinite(row).all()}


def pack(lines):
    """{"TASK SEED": [text of a row]}: the table, with a row per first layer. A row has the scores
    of each second layer in units of 0.0001, or "-"."""
    packed = {}
    for task in TASKS:
        for seed, column in sorted(columns_of(lines, task).items()):
            packed[f"{task} {seed}"] = [
                " ".join("-" if np.isnan(score) else str(round(10_000 * score)) for score in row)
                for row in column.reshape(len(LAYERS), len(LAYERS))]
    return packed


def unpack(packed):
    """{task: (networks, seeds)} of pack()'s result, as in complete()."""
    columns = {}
    for name, rows in packed.items():
        task, seed = name.split()
        scores = [math.nan if word == "-" else int(word) / 10_000
                  for row in rows for word in row.split()]
        columns.setdefault(task, {})[int(seed)] = np.array(scores)
    return {task: complete(each) for task, each in columns.items()}


def reliability(columns):
    """(ICC of one training, ICC of the mean of all) of (networks, trainings): one-way random
    effects, Shrout and Fleiss 1979, ICC(1,1) and ICC(1,k)."""
    columns = np.asarray(columns)
    n, k = columns.shape
    means = columns.mean(1)
    between = k * means.var(ddof=1)
    within = columns.var(1, ddof=1).mean()
    return (between - within) / (between + (k - 1) * within), (between - within) / between


def reliability_of(*seeds):
    """ICC of one training of columns (networks,), one per seed."""
    return reliability(np.stack(seeds, 1))[0]


def deviations(columns):
    """Standard deviations (between networks without the noise of their trainings, between the
    trainings of a network)."""
    columns = np.asarray(columns)
    within = columns.var(1, ddof=1).mean()
    between = columns.mean(1).var(ddof=1) - within / columns.shape[1]
    return math.sqrt(max(between, 0.0)), math.sqrt(within)


def describe(scores):
    """The statistics of one score in a table: numbers by name."""
    columns = np.array([*scores.values()])
    means = columns.mean(1)
    single, mean = reliability(columns)
    between, within = deviations(columns)
    names = networks()
    texts = {network: names[network] for network in scores}
    by_text = {text: columns[index].mean() for index, text in enumerate(texts.values())}
    ranking = sorted(by_text, key=by_text.get, reverse=True)
    bert = abz.BERT_ATTENTION
    known = {"BERT": f"{bert} | {bert}", "hybrid": f"conv3 | {bert}",
             "hybrid, attention first": f"{bert} | conv3"}
    standing = {name: {"score": by_text[text], "rank": 1 + ranking.index(text)}
                for name, text in known.items() if text in by_text}
    convolutions = [text for text in ranking if "Q" not in text]
    if convolutions:
        best = convolutions[0]
        standing["best convolutions alone"] = {
            "network": best, "score": by_text[best], "rank": 1 + ranking.index(best)}
    worth = {}
    for layer, name in itertools.product(range(2), LAYERS):
        chosen = [by_text[text] for network, text in texts.items()
                  if LAYERS[network[layer]] == name]
        if chosen:
            worth.setdefault(name, []).append(statistics.mean(chosen) - means.mean())
    quantiles = (0, 5, 10, 25, 50, 75, 90, 95, 100)
    return {
        "networks": len(scores),
        "trainings": columns.shape[1],
        "ICC of one training": single,
        "ICC of the mean": mean,
        "sd between networks": between,
        "sd between trainings": within,
        "fraction above 0.97": (means > 0.97).mean(),
        "quantiles": dict(zip(map(str, quantiles), np.percentile(means, quantiles))),
        "histogram": np.histogram(means, 20, (0, 1))[0].tolist(),
        "best": {text: by_text[text] for text in ranking[:10]},
        "standing": standing,
        "worth as first and second layer": worth,
    }


def rounded(value, digits=4):
    """The same structure with rounded numbers."""
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each, digits) for each in value]
    return round(float(value), digits) if isinstance(value, float) else value
