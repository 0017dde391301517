"""What every claim needs: runs as a user would start them, statistics, a table, a picture, and the page of a paper.

A claim is one command from data to verdict,

    python -m tests.claims.albert sharing --corpus path/to/corpus --jobs 2

It runs the paper file's own command lines (run_all: run folders that are finished are skipped, so that a killed study
goes on), reads the run folders, and writes results/PAPER/NAME.json with every raw number. pictures.py draws NAME.png
from that file where matplotlib is installed, and `python -m tests.claims.PAPER redraw` draws all again. PAPER.md is
made of the JSON files and of listed.py, where every claim of a paper stands, by `python -m tests.claims.PAPER page`.
There a claim is judged by the intervals in the JSON file: no verdict is typed. results/changes.json lists the commits
that changed results: what was measured before them is deleted, and its claim is "not run" again.

Every study is declared in one shape (Study), answers with one (Found), and is run by run_study. What it asks stands
above its function and was written down before its runs: the hypothesis, the settings, the seeds, and when to stop. Arms
of a study differ in one thing and share the seed's text, order, masks and first weights where they can; what is judged
are their differences, paired by seed, by the 95% interval.
"""
import argparse
import functools
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

from common import cli, distributed, metrics
from common.cli import UserError, run
from common.files import read_json, write_atomic
from common.runs import environment
from tests.claims.listed import CLAIMS
from tests.claims.pictures import draw_figure

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
DAYS = re.compile(r"\{days: ([^{}:]+), (\d) shards?: ([\de.]+)\}")
PLACE = re.compile(r"\{((?:Table|Figure|Sec\.|App\.) [^:{}]+): ([^{}]+)\}")  # {Table 5: SOP, average}
VERDICTS = ("holds", "open", "opposite", "not run")
ABOUT = """\
Every claim has one verdict, which belongs to the size that stands beside it. That size is never the paper's own.

- **Holds**: the whole 95% interval lies on the paper's side, or what is counted agrees with the paper.
- **Open**: the interval also holds what would contradict the paper, or the study is too small to tell.
- **Opposite**: the whole interval lies on the other side, or what is counted differs from the paper.
- **Not run**: nothing was run on today's code. Where older code had a result, a line says what it was.

A number behind ± is the standard deviation over n seeds; two numbers in brackets are a 95% interval of Student's t.
Where nothing else is said, one thread of a two-core x86-64 processor did the work, with torch 2.13 in float32. Days of
an H100 are counted from [rehearsed FLOPs](rehearsal.md) at 35% of the card's peak; no card has confirmed them. Words
and symbols are explained in the [manual](../../MANUAL.md#words), and [ten questions](questions/{paper}.md) test how
well you have read the file."""


class Study(NamedTuple):
    """What a study declares."""
    ask: Callable  # ask(options): its Found, or None where there is nothing to write yet
    claim: str  # what the paper claims, in a sentence
    flags: dict = {}  # {its own flag: default}, which become options; a default of () takes several words
    settings: tuple = ()  # flags of the paper file that it gives, before those of the command line
    picture: Callable | None = None  # picture(axes, record): a function of pictures.py


class Found(NamedTuple):
    """What a study has found. An interval (mean, low, high) is of a difference that the paper says to be positive."""
    columns: list  # of its table
    rows: list
    gaps: dict = {}  # {what: interval}
    facts: dict = {}  # {"what: the paper's number and ours": whether they agree} of what is counted or timed
    n: int = 0  # of what an interval is of: seeds, landscapes, architectures; 1: a single run; 0: nothing is drawn
    says: str = ""  # a sentence that the table does not show
    numbers: dict = {}  # what else the JSON file keeps, every seed's raw number


@functools.cache
def published_numbers():
    """{(paper, table, row): entry} of published.json: what the papers print and this repository quotes.

    paper: name of the file that implements it; table: a table, a figure or a section; row: the row and what of it;
    value: a number, a list of numbers or an architecture, as printed, in `unit`; used: where it stands here
    (tests/test_claims.py looks there).
    """
    entries = read_json(Path(__file__).resolve().parent / "published.json", list)
    return {(entry["paper"], entry["table"], entry["row"]): entry for entry in entries}


def published(paper, table, row):
    """The value of an entry; KeyError where there is none."""
    return published_numbers()[paper, table, row]["value"]


def table(columns, rows):
    """A Markdown table; floats get four significant digits, None an empty cell."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row]
             for row in [columns, *rows]]
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


def paired(values, one, other):
    """interval of the differences of two arms, seed by seed. values: {arm: [value of each seed]}."""
    return interval([mine - theirs for mine, theirs in zip(values[one], values[other])])


def side(found, least=0.0, n=3):
    """The verdict of an interval or a fact: "holds", "open" or "opposite"; fewer than three seeds decide nothing."""
    if isinstance(found, bool):
        return "holds" if found else "opposite"
    _, low, high = found
    if low is None or n < 3:
        return "open"
    return "holds" if low > least else "opposite" if high < least else "open"


def show_gap(what, found, digits):
    """An interval, or a fact, in words."""
    if isinstance(found, bool):
        return what
    mean, low, high = found
    return f"{what}: {mean:+.{digits}f}" + ("" if low is None else f" [{low:+.{digits}f}, {high:+.{digits}f}]")


def bootstrap(statistic, *columns, draws=2000):
    """(statistic(*columns), low, high): the 95% percentile interval over the rows, drawn again with replacement."""
    columns, generator = [np.asarray(column) for column in columns], np.random.default_rng(0)
    rows = generator.integers(len(columns[0]), size=(draws, len(columns[0])))
    low, high = np.percentile([statistic(*(column[each] for column in columns)) for each in rows], [2.5, 97.5])
    return statistic(*columns), float(low), float(high)


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


def read_flags(file, options, action="describe", presets=None):
    """Config of a paper file's flags as that action reads them."""
    return cli.parse(file.Config, presets or file.PRESETS, file.ACTIONS, "", [f"--{action}", *options.flags])[2]


def named(options, one=False):
    """The run folders of --folders; UserError where there are none, or several and one is wanted."""
    if not options.folders or one and len(options.folders) > 1:
        raise UserError(f"{options.name}: name {'one run' if one else 'the runs'} to look at with --folders")
    return options.folders


def in_turns(calls, turns, clock=time.perf_counter, warm_up=3):
    """{name: [ms of each turn]} of {name: function}: a turn calls each once, in an order of its own, so that a busy
    moment of the machine meets all alike."""
    times = {name: [] for name in calls}
    for turn in range(warm_up + turns):
        for name in random.Random(turn).sample([*calls], len(calls)):
            began = clock()
            calls[name]()
            times[name].append(1000 * (clock() - began))
    return {name: values[warm_up:] for name, values in times.items()}


def run_settings(folder, Config, **others):
    """The Config of a run folder's settings, with these in the place of its own."""
    settings = read_json(folder / "config.json")["settings"].items()
    return Config(**{key: tuple(value) if isinstance(value, list) else value for key, value in settings} | others)


def run_all(options, commands, done="done.json"):
    """Run commands of paper files, options.jobs at a time with one thread each; {name: run folder}.

    commands: {name: [file or module, argument, ...]}; each gets --out options.runs/NAME, and is skipped where that run
    is finished, which the file `done` says. What a command prints goes to NAME.txt beside its folder. UserError where
    one fails.
    """
    folders = {name: options.runs / name for name in commands}

    def work(name):
        if (folders[name] / done).exists():
            return
        folders[name].parent.mkdir(parents=True, exist_ok=True)
        program, *words = map(str, commands[name])
        start = [str(ROOT / program)] if program.endswith(".py") else ["-m", program]
        argv = [sys.executable, *start, *words, "--out", folders[name]]
        began = time.time()
        with open(folders[name].with_name(f"{folders[name].name}.txt"), "a") as log:
            status = subprocess.run(argv, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        if status or not (folders[name] / done).exists():
            raise UserError(f"{log.name}: the run {name} ended with status {status}; read there why; "
                            "the same command goes on")
        write_atomic(folders[name].with_name(f"{folders[name].name}.seconds"), f"{time.time() - began:.1f}")
        print(f"finished: {name}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(work, name) for name in commands]:
            future.result()
    return folders


def run_study(study, options):
    """Ask a study: read its own flags, print the table that it finds, write it as NAME.json and draw its picture."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, default in study.flags.items():
        several = {"nargs": "+"} if default == () else {"type": type(default)}
        parser.add_argument(f"--{name}", default=default, **several)
    _, flags = parser.parse_known_args(options.flags, options)
    options.flags = [*map(str, study.settings), *flags]
    found = study.ask(options)
    if not found:
        return
    options.results.mkdir(parents=True, exist_ok=True)
    print(table(found.columns, found.rows))
    here, runs = environment(torch.device("cpu")), [*options.runs.glob("*.seconds")]
    record = {"claim": study.claim, "columns": found.columns, "rows": found.rows,
              "differences": found.gaps, "facts": found.facts, "n": found.n, "says": found.says, **found.numbers,
              "command": f"python -m tests.claims.{options.paper} {' '.join(options.argv)}",
              "picture": None, "seconds": round(time.time() - options.began, 1),
              **({"run_seconds": sum(float(path.read_text()) for path in runs)} if runs else {}),
              **{key: here[key] for key in ("commit", "hardware", "torch")}}
    path = options.results / f"{options.name}.json"
    write_atomic(path, json.dumps(record, indent=1))
    draw_again(study, path)
    said = [show_gap(what, gap, 3) for what, gap in {**found.gaps, **found.facts}.items()]
    print(*said, f"written: {path}", sep="\n")


def draw_again(study, path):
    """Draw the picture of a result from its JSON file, and name it there."""
    record = read_json(path)
    if study.picture and draw_figure(path.with_suffix(".png"), lambda axes: study.picture(axes, record)):
        write_atomic(path, json.dumps({**record, "picture": f"{path.stem}.png"}, indent=1))
        print(f"drawn: {path.with_suffix('.png')}")


def fill(text, paper):
    """A text whose {Table: row} are the values of published.json, and whose {days: phase, shards: rows} are days_of."""
    def value(found):
        number = published(paper, *found.groups())
        return f"{number / 1e9:.3g}G" if isinstance(number, float) and number >= 1e6 else str(number)

    def days(found):
        number = days_of(found[1], int(found[2]), float(found[3]))
        return f"{number:.0f} days" if number >= 10 else f"{number:.2g} days"

    return DAYS.sub(days, PLACE.sub(value, text))


def days_of(phase, shards, rows):
    """Days of one H100 at 35% of its peak for so many rows, by the FLOPs of a phase in results/rehearsal.json, which
    are those of so many shards of as many rows as its name says."""
    flops = read_json(RESULTS / "rehearsal.json")[phase]["flops"]
    own = shards * int(re.search(r"(\d+) (rows|pictures)", phase)[1])
    return flops / own * rows / (distributed.CARDS["H100"] * 0.35) / 86400


def capital(text):
    return text[:1].upper() + text[1:]


def sentence(text):
    """With a capital letter and a full stop; "" stays so."""
    return capital(text) + "." * bool(text and not text.endswith("."))


def count_of(record):
    """What n is in a record."""
    return record["n"] if "n" in record else len(record["seeds"])


def judge(claim, record):
    """(one of VERDICTS, {what: interval or fact} that it follows from) of a claim and the JSON record of its study, or
    None. A claim of several differences holds, or is opposite, where all of them are."""
    all_found = {**record["differences"], **record.get("facts", {})} if record else {}
    found = {what: gap for what, gap in all_found.items() if re.search(claim.asks, what)}
    sides = {side(gap, claim.least, count_of(record)) for gap in found.values()} or {"not run"}
    return sides.pop() if len(sides) == 1 else "open", found


def show_claim(paper, number, claim, record, leads):
    """The lines of a claim on its page. leads: {study: (number, the first claim that it judges)}; under that stand its
    table and, for all claims that have no other, its size and command."""
    word, found = judge(claim, record)
    beyond = f", where more than {claim.least:g} is asked" if claim.least else ""
    said = "; ".join(show_gap(what, gap, claim.digits) for what, gap in found.items()) + beyond
    count = f" (n {count_of(record)})" if record and count_of(record) else ""
    lines = ["", f'## {number}. {claim.claim} <a id="{claim.name}"></a>', "",
             f"**{capital(word)}.** {capital(said) + count + '.' if found else sentence(claim.older)}".rstrip(), "",
             f"The paper ({claim.where}): {sentence(fill(claim.paper, paper))}"]
    lines += ["", f"Size: {sentence(claim.size)}"] if found and claim.size else []
    first, lead = leads.setdefault(claim.study or number, (number, claim))
    if claim is not lead:
        lines += ["", f"The rest stands under [claim {first}](#{lead.name})."]
    elif found:
        lines += ["", sentence(record["says"])] if record.get("says") else []
        lines += show_result(paper, record)
    needed = claim.needs and word in ("open", "not run")
    return lines + (["", f"To run it: {sentence(fill(claim.needs, paper))}"] if needed else [])


def show_result(paper, record):
    """The lines of one result on the page: its table, its picture, its command and where it was measured."""
    lines = ["", record["text"] if "text" in record else table(record["columns"], record["rows"])]
    if record.get("picture"):
        lines += ["", f"![{record['claim']}](results/{paper}/{record['picture']})"]
    took = record.get("run_seconds", record.get("seconds"))
    told = ", ".join(filter(None, [f"at {record['commit'][:7]}", record.get("hardware"),
                                   took is not None and f"{took / 60:.1f} minutes"]))
    return lines + ["", f"`{record['command']}` ({told})" if record.get("command") else f"({told})"]


def page(paper, results=RESULTS):
    """The Markdown page of a paper: how many claims hold, an overview, every claim of listed.py with the result that
    judges it, then the results that belong to none."""
    records = {path.stem: read_json(path) for path in sorted((results / paper).glob("*.json"))}
    lines, overview, leads, words = [], [], {}, []
    for number, claim in enumerate(CLAIMS[paper], 1):
        words.append(judge(claim, records.get(claim.study))[0])
        overview.append([number, f"[{claim.claim}](#{claim.name})", claim.where, words[-1]])
        lines += show_claim(paper, number, claim, records.get(claim.study), leads)
    rest = {name: record for name, record in records.items() if name not in leads}
    lines += ["", "## Beside the claims"] if rest else []
    for name, record in rest.items():
        lines += ["", f'### {record["claim"]} <a id="{name}"></a>', *show_result(paper, record)]
    hold, wide, other, none = (words.count(word) for word in VERDICTS)
    head = [f"# {paper}.py: what the paper claims, measured", "",
            f"**{len(words)} claims: holds {hold}, open {wide}, opposite {other}, not run {none}.**", "",
            ABOUT.format(paper=paper), "", table(["", "claim", "in the paper", "verdict"], overview)]
    made = (f"This page is made by `python -m tests.claims.{paper} page` of listed.py, published.json and "
            f"results/{paper}/*.json. `python -m tests.claims.{paper} --help` lists the studies.")
    return "\n".join([*head, *lines, "", "---", "", made]) + "\n"


def main(paper, claims, argv=None):
    """The command line of a paper's claims: NAME, `redraw` or `page`. Flags that are no study's go to the paper file.

    claims: {name: Study}; options: name, paper, folders, jobs, seeds, runs, results, flags (the paper file's), argv,
    began, and the study's own flags.
    """
    argv = sys.argv[1:] if argv is None else argv
    words = "\n".join(f"  {name:14} {study.claim}" for name, study in claims.items())
    parser = argparse.ArgumentParser(prog=f"python -m tests.claims.{paper}", allow_abbrev=False, epilog=words,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*claims, "redraw", "page"], metavar="NAME",
                        help="a claim (below); redraw: pictures from the results that stand here; page: write the page")
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
    elif options.name == "redraw":
        for path in sorted(options.results.glob("*.json")):
            if path.stem in claims:
                draw_again(claims[path.stem], path)
    else:
        run_study(claims[options.name], options)
    return 0


def as_program(paper, claims):
    """main as a program: mistakes end in one line."""
    run(lambda: main(paper, claims))
