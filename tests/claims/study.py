"""The common parts of studies: runs as a user would start them, intervals, verdicts, a JSON record.

A study is a function below a decorator with the paper's claim and numbers:

    @study(
        "0.2 core-hours",
        Claim("dropout", "Dropout hurts", "90.4 -> 90.7 (Table 8)",
              [("no dropout", "dropout 0.1")]),
        picture=dots("accuracy, %"))
    def dropout(options):
        ...  # commands of the paper file, two at a time
        return {"values": {arm: [value of each seed]}}

`python -m tests.claims.PAPER NAME --jobs 2` runs it and writes results/PAPER/NAME.json. Unknown
flags go to the paper file. Every run has a run folder below runs/claims/PAPER. The same command
again skips finished runs and resumes the others. Studies of one paper share runs. `python -m
tests.claims.page` writes README.md from the records. Verdicts follow from intervals.
"""
import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
import torch

from common.cli import group_of
from common.run import processor

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class Claim(NamedTuple):
    name: str  # its anchor on the page
    says: str  # the paper's claim
    paper: str  # the paper's numbers and their source
    pairs: tuple = ()  # pairs of arms. The first is claimed to be larger
    least: float = 0.0  # the difference of a pair must exceed it


class Study(NamedTuple):
    function: Callable  # function(options): {"values": {arm: [one for each seed]}, ...}
    hours: str  # the cost
    claims: tuple
    picture: Callable | None = None  # picture(axes, record)

    @property
    def name(self):
        return self.function.__name__


class Interval(NamedTuple):
    mean: float
    low: float  # the 95% interval
    high: float
    n: int  # pairs (0: a count, whose interval is a point)


def study(hours, *claims, picture=None):
    """Decorator: make a Study of a function."""
    return lambda function: Study(function, hours, claims, picture)


# --- statistics and verdicts

# 97.5% quantiles by degrees of freedom. Other degrees use the quantile of 5, so that an interval is
# rather too wide
STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 8: 2.306, 9: 2.262,
           11: 2.201, 19: 2.093, 199: 1.972, 999: 1.962}


def interval(differences):
    """Mean and 95% interval (Student's t) of paired differences."""
    n = len(differences)
    mean = statistics.mean(differences)
    half = 0.0
    if n > 1:
        half = STUDENT.get(n - 1, 2.571) * statistics.stdev(differences) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def counted(value):
    """The interval of a number without spread."""
    return Interval(value, value, value, 0)


def bootstrap(statistic, *columns):
    """The statistic and its 95% percentile interval, by resampling rows with replacement."""
    columns = [np.asarray(column) for column in columns]
    n = len(columns[0])
    draw = np.random.default_rng(0).integers(n, size=(2000, n))
    values = [statistic(*(column[rows] for column in columns)) for rows in draw]
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(statistic(*columns), float(low), float(high), n)


def kendall(one, other):
    """Kendall's tau-b, or 0 if one side is constant."""
    first = np.sign(np.subtract.outer(one, one))
    second = np.sign(np.subtract.outer(other, other))
    untied = np.sqrt(np.sum(first ** 2) * np.sum(second ** 2))
    return float(np.sum(first * second) / untied) if untied else 0.0


def verdict(intervals, least=0.0):
    """Verdict of the intervals of a claim: holds, opposite, mixed, or open.

    An interval holds if all of it is above `least`, and is opposite if all of it is below.
    Otherwise, or with fewer than three pairs, it is open. A claim holds, or is opposite, if all its
    intervals are. It is mixed if some hold and some are opposite.
    """
    sides = set()
    for mean, low, high, n in intervals:
        side = "holds" if low > least else "opposite" if high < least else "open"
        sides.add("open" if 0 < n < 3 else side)
    if len(sides) == 1:
        return sides.pop()
    return "mixed" if {"holds", "opposite"} <= sides else "open"


def differences(claim, values):
    """{"arm mean, arm mean": Interval} of the measured pairs of a claim."""
    intervals = {}
    for one, other in claim.pairs:
        if one in values and other in values:
            label = ", ".join(f"{arm} {statistics.mean(values[arm]):.3f}" for arm in (one, other))
            intervals[label] = interval([a - b for a, b in zip(values[one], values[other])])
    return intervals


def show(label, measured):
    """A measured interval in words. For a count, only the label."""
    mean, low, high, n = measured
    return label if n == 0 else f"{label}: {mean:+.3f} [{low:+.3f}, {high:+.3f}], n = {n}"


# --- runs

def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def run_name(*parts):
    """The name of a run folder: words and numbers joined by dashes."""
    return "-".join(re.findall(r"[\w.=]+", " ".join(map(str, parts))))


def read_by(config_class, groups, flags):
    """The words of `flags` whose settings are in these groups, which an action reads whole."""
    words = []
    for word in map(str, flags):
        if word.startswith("--"):
            read = group_of(config_class, word[2:]) in groups
        if read:
            words.append(word)
    return words


def run_all(options, commands, done="done.json"):
    """Run {name: [program, argument, ...]}, options.jobs at a time, one thread each.

    Returns {name: run folder}. Skips runs whose folder has the file `done`. The output of a command
    goes to NAME.txt, next to the folder.
    """
    options.runs.mkdir(parents=True, exist_ok=True)
    folders = {name: options.runs / name for name in commands}

    def work(name):
        if (folders[name] / done).exists():
            return
        program, *words = map(str, commands[name])
        command = [sys.executable, ROOT / program, *words, "--out", folders[name]]
        with open(options.runs / f"{name}.txt", "a") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            status = subprocess.run(command, stdout=log, stderr=log, env=environment).returncode
        if status or not (folders[name] / done).exists():
            sys.exit(f"{log.name}: status {status}; the same command resumes the study")
        print(f"finished: {name}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, commands))
    return folders


def in_turns(calls, turns):
    """{name: [ms of each turn]} of {name: function}. A turn calls each once, in random order. Three
    more turns warm up.

    CPU time, or wall time with a GPU."""
    times = {name: [] for name in calls}
    gpu = torch.cuda.is_available()
    clock = time.perf_counter if gpu else time.process_time
    for turn in range(3 + turns):
        for name in random.Random(turn).sample([*calls], len(calls)):
            began = clock()
            calls[name]()
            if gpu:
                torch.cuda.synchronize()
            times[name].append(1000 * (clock() - began))
    return {name: values[3:] for name, values in times.items()}


# --- records

def ask(one, options):
    """Run a study, and write its record and its picture."""
    from tests.claims.pictures import draw

    result = one.function(options)
    intervals = result.pop("intervals", {})
    for claim in one.claims:
        if measured := differences(claim, result["values"]):
            intervals[claim.name] = measured
        for label, measured in intervals.get(claim.name, {}).items():
            print(f"{claim.name}: {verdict([measured], claim.least)}: {show(label, measured)}")
    git = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    # folders of this machine mean nothing elsewhere
    words = [re.sub(r"^/.*/", "path/to/", word) for word in options.argv]
    record = {
        "intervals": intervals,
        **result,
        "command": f"python -m tests.claims.{options.paper} {' '.join(words)}",
        "commit": git.stdout.strip(),
        "hardware": processor(),
        "torch": torch.__version__,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{one.name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if one.picture:
        draw(path.with_suffix(".png"), one.picture, record)
    print(f"written: {path}; python -m tests.claims.page writes the page")
    return record


def studies_of(namespace):
    """{name: Study} of a module's names, in the order of definition."""
    return {each.name: each for each in namespace.values() if isinstance(each, Study)}


def main(paper, namespace, argv=None):
    """The command line of a paper's studies."""
    argv = sys.argv[1:] if argv is None else argv
    studies = studies_of(namespace)
    parser = argparse.ArgumentParser(prog=f"python -m tests.claims.{paper}", allow_abbrev=False)
    parser.add_argument("name", choices=studies)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each arm (default: 3)")
    parser.add_argument("--runs", type=Path, default=Path("runs/claims") / paper)
    parser.add_argument("--results", type=Path, default=HERE / "results" / paper)
    options, options.flags = parser.parse_known_args(argv)
    options.paper = paper
    options.argv = argv
    return ask(studies[options.name], options)
