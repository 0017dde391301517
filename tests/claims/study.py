"""What every claim needs: runs as a user would start them, statistics, a table, a picture, and the page of a paper.

A claim is one command from data to verdict,

    python -m tests.claims.albert sharing --corpus path/to/corpus --jobs 2

It runs the paper file's own command lines (run_all: run folders that are finished are skipped, so that a killed study
goes on), reads the run folders, and writes results/PAPER/NAME.json with every raw number, and NAME.png where matplotlib
is installed. PAPER.md is made from the JSON files by `python -m tests.claims.PAPER page`.
"""
import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from common import metrics
from common.cli import UserError, run
from common.files import read_json, write_atomic
from common.runs import environment

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
COUNTED = ("layer", "rank", "step", "evaluated candidates")  # how the label of an axis of whole numbers begins


@functools.cache
def published_numbers():
    """{(paper, table, row): entry} of published.json: what the papers print and this repository quotes.

    paper: name of the file that implements it; table: a table, a figure or a section; row: the row and what of it;
    value: a number, a list of numbers or an architecture, as printed, in `unit`; used: where it stands here
    (tests/test_published.py looks there).
    """
    entries = read_json(Path(__file__).resolve().parent / "published.json", list)
    return {(entry["paper"], entry["table"], entry["row"]): entry for entry in entries}


def published(paper, table, row):
    """The value of an entry; KeyError where there is none."""
    return published_numbers()[paper, table, row]["value"]


def table(columns, rows):
    """A Markdown table; floats get four significant digits."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def mean_sd(values):
    """(mean, standard deviation or None of one value)."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def show_mean(values):
    """"mean ± standard deviation" of several values, the value of one."""
    mean, sd = mean_sd(values)
    return f"{mean:.3f}" if sd is None else f"{mean:.3f} ± {sd:.3f}"


def interval(differences):
    """(mean, low, high) of paired differences: the 95% interval of Student's t, whose quantiles stand here up to ten
    pairs; None, None for a single pair."""
    mean, sd = mean_sd(differences)
    quantile = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
    if sd is None:
        return mean, None, None
    half = quantile.get(len(differences) - 1, 1.96) * sd / math.sqrt(len(differences))
    return mean, mean - half, mean + half


def pair_signs(values):
    """(n, n) int8: 1 where the row's value is larger than the column's, -1 where it is smaller, 0 where they tie."""
    values = values[:, None]
    return (values > values.T).astype(np.int8) - (values < values.T)


def kendall(predictions, labels):
    """Kendall's tau-b; 0.0 where a side is constant. Time and memory grow with n^2."""
    predictions, labels = metrics.two_arrays(predictions, labels)
    if np.isnan([predictions, labels]).any():
        return 0.0
    one, two = pair_signs(predictions), pair_signs(labels)
    untied = math.sqrt(np.count_nonzero(one)) * math.sqrt(np.count_nonzero(two))
    return float(np.sum(one * two, dtype=np.int64) / untied) if untied else 0.0


def pairwise_accuracy(predictions, labels):
    """Share of the unordered pairs that both sides order alike. Tied in both counts 1 (they agree), tied in one only
    counts 1/2 (a coin would decide), so that a constant prediction of distinct labels scores 0.5, which is chance."""
    predictions, labels = metrics.two_arrays(predictions, labels)
    n = len(labels)
    if np.isnan([predictions, labels]).any() or n < 2:
        return 0.0
    one, two = pair_signs(predictions), pair_signs(labels)
    both_tied = np.sum((one == 0) & (two == 0)) - n  # an item with itself is no pair
    return float(0.5 + 0.5 * (np.sum(one * two, dtype=np.int64) + both_tied) / (n * (n - 1)))


def run_all(options, commands, done="done.json"):
    """Run commands of paper files, options.jobs at a time with one thread each; {name: run folder}.

    commands: {name: [file, argument, ...]}; each gets --out options.runs/NAME, and is skipped where that run is
    finished, which the file `done` says. What a command prints goes to NAME.txt beside its folder. UserError where one
    fails.
    """
    folders = {name: options.runs / name for name in commands}

    def work(name):
        if (folders[name] / done).exists():
            return
        folders[name].parent.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, str(ROOT / commands[name][0]), *map(str, commands[name][1:]), "--out", folders[name]]
        with open(folders[name].with_name(f"{folders[name].name}.txt"), "a") as log:
            status = subprocess.run(argv, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        if status or not (folders[name] / done).exists():
            raise UserError(f"{log.name}: the run {name} ended with status {status}; read there why; "
                            "the same command goes on")
        print(f"finished: {name}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(work, name) for name in commands]:
            future.result()
    return folders


def write(options, columns, rows, *, claim, paper="", verdict="not judged", numbers=None, draw=None):
    """Print the table of a claim and write it as NAME.json, with a picture by draw(axes) where matplotlib is installed.

    claim: what the paper claims, in a sentence; paper: its number; verdict: holds | holds in part | does not hold | not
    run | not judged, and a few words; numbers: what else the JSON file keeps, every seed's raw number.
    """
    options.results.mkdir(parents=True, exist_ok=True)
    print(table(columns, rows))
    picture = options.results / f"{options.name}.png"
    shown = draw_figure(picture, draw) if draw else False
    here = environment(torch.device("cpu"))
    record = {"claim": claim, "paper": paper, "verdict": verdict, "columns": columns, "rows": rows,
              **(numbers or {}), "command": f"python -m tests.claims.{options.paper} {' '.join(options.argv)}",
              "picture": picture.name if shown else None, "seconds": round(time.time() - options.began, 1),
              **{key: here[key] for key in ("commit", "hardware", "torch")}}
    write_atomic(options.results / f"{options.name}.json", json.dumps(record, indent=1))
    print(f"verdict: {verdict}\nwritten: {options.results / options.name}.json")


def draw_figure(path, draw):
    """Save what draw(axes) draws, with whole numbers where things are counted; False, with a word, where matplotlib is
    missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no picture {path.name}: pip install matplotlib")
        return False
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    draw(figure.add_subplot())
    for axes in figure.axes:
        if axes.get_xlabel().startswith(COUNTED) and axes.get_xscale() == "linear":
            axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=110)
    return True


def page(paper, results=RESULTS):
    """The Markdown page of a paper, made from its JSON files: first what the present code has measured, then the older
    tables with the commit that they were measured at."""
    records = {path.stem: read_json(path) for path in sorted((results / paper).glob("*.json"))}
    lines = [f"# {paper}.py: what the paper claims, measured", "",
             f"Made from results/{paper}/*.json by `python -m tests.claims.{paper} page`."]
    for name, record in sorted(records.items(), key=lambda item: ("text" in item[1], item[0])):
        lines += ["", f"## {record['claim']}", "", f"**{record['verdict'][:1].upper() + record['verdict'][1:]}.**"]
        if record.get("paper"):
            lines += ["", f"The paper: {record['paper']}"]
        lines += ["", record["text"] if "text" in record else table(record["columns"], record["rows"])]
        if record.get("picture"):
            lines += ["", f"![{record['claim']}](results/{paper}/{record['picture']})"]
        if record.get("command"):
            seconds = f", {record['seconds']:.0f} s" if "seconds" in record else ""
            lines += ["", f"`{record['command']}` (at {(record.get('commit') or 'unknown')[:7]}{seconds})"]
    return "\n".join(lines) + "\n"


def main(paper, claims, argv=None):
    """The command line of a paper's claims: NAME, or `page`. Flags that are not a study's go to the paper file.

    claims: {name: function(options)}; options: name, paper, folders, jobs, seeds, runs, results, flags (the paper
    file's), argv, began.
    """
    argv = sys.argv[1:] if argv is None else argv
    words = "\n".join(f"  {name:14} {(function.__doc__ or '').strip().splitlines()[0]}"
                      for name, function in claims.items())
    parser = argparse.ArgumentParser(prog=f"python -m tests.claims.{paper}", allow_abbrev=False, epilog=words,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*claims, "page"], metavar="NAME", help="a claim (below), or page: write the page")
    parser.add_argument("--folders", nargs="+", type=Path, default=[], help="run folders to read, for what reads only")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each (default: 1)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each outcome (default: 3)")
    parser.add_argument("--runs", type=Path, help=f"where run folders go (default: runs/claims/{paper}/NAME)")
    parser.add_argument("--results", type=Path, default=RESULTS / paper, help="where results go (default: %(default)s)")
    options, options.flags = parser.parse_known_args(argv)
    options.paper, options.argv, options.began = paper, argv, time.time()
    options.runs = options.runs or Path("runs") / "claims" / paper / options.name
    if options.name == "page":
        write_atomic(Path(__file__).parent / f"{paper}.md", page(paper))
    else:
        claims[options.name](options)
    return 0


def as_program(paper, claims):
    """main as a program: mistakes end in one line."""
    run(lambda: main(paper, claims))
