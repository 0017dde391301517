"""The open space: OP-NAS against random search with four layers. Planned, and not run yet:

    python -m tests.claims.open_space reliability --jobs 2     about 0.7 core-hours
    python -m tests.claims.open_space pairs --jobs 2           about 11 core-hours

The plan, written before any run:
- Hypothesis: of 56 candidates each, the five best of OP-NAS, by the score that the search saw, have
  a higher mean accuracy than the five best of random search.
- Task: `reach` of search_tasks.py. A search trains on the first part of its training examples and
  scores candidates on HELD_OUT others; the dev examples, which no search sees, judge.
- Go or no go: 16 random networks with both kinds of layers are trained with seeds 0 and 1, at a
  candidate's budget and at five times. `pairs` is run only if ICC(1,1) is at least .65 at both and
  Kendall's tau between the two at least .5. At the demo's 50 steps the ICC is .15
  (results/autobert_zero/reliability.json), so a candidate has STEPS steps here. If that fails too,
  the answer is that this space can't be judged at this cost; no other budget is tried.
- Pairs: 20 seeds, 100 to 119. Both searches of a seed have the same first eight candidates.
- Judge: each of the five best is trained once more at five times the budget, with the seed of its
  search plus 1000, and fine-tuned once.
- Test: the mean of the paired differences over the 20 seeds and its 95% interval (Student's t). The
  hypothesis holds if the interval is above 0, and is refuted if it is below.
- Stopping: exactly 20 pairs, no look in between, no further batch. If time ends the study, the
  first complete pairs in the order of their seeds are reported with their number.
"""
import random
import statistics
from itertools import product

import autobert_zero as abz
from common import glue
from tests.claims.autobert_zero import HELD_OUT, PROGRAM, candidates
from tests.claims.search_table import reliability as icc
from tests.claims.search_tasks import write_tasks
from tests.claims.study import (
    Claim, bootstrap, kendall, main, read, run_all, run_name, study)

TASK = "MNLI"
STEPS = 200  # of a candidate's pre-training; the demo has 50
EXAMPLES = 5000
TIMES = 5  # the judge's budget in a candidate's
FIRST = 100  # seed of the first pair
PAIRS = 20
BEST = 5
SEARCH = ["--tasks", TASK, "--population", 8, "--rounds", 12, "--parents", 2, "--children", 2,
          "--steps", STEPS, "--train_examples", EXAMPLES,
          # no warm start: candidates and the judge's networks are trained alike
          "--finalists", 0, "--warm_times", 0]
TUNING = ["--finetune_lr", 2e-3, "--finetune_batch", 16, "--runs", 1]


def search_folder(options):
    """A GLUE folder for searches: its train and dev are parts of the train of `reach`."""
    source = write_tasks(options.runs / "tasks")
    target = options.runs / "search-tasks"
    text = glue.path_of(source, TASK, "train").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    cut = len(lines) - HELD_OUT
    for split, part in {"train": lines[:cut], "dev": lines[:1] + lines[cut:]}.items():
        path = glue.path_of(target, TASK, split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(part), encoding="utf-8")
    return source.resolve(), target.resolve()


def train(options, networks, times, folder):
    """{(name, seed): accuracy on dev} of {(name, seed): architecture}, trained alone from scratch
    at this multiple of a candidate's budget."""
    budget = ["--steps", STEPS * times, "--batch", 8, "--lr", 3e-3]
    pretraining = {
        key: [PROGRAM, "--pretrain", "--arch", arch, "--seed", key[1], *budget, *options.flags]
        for key, arch in networks.items()}
    names = {key: run_name(*key, times) for key in networks}
    folders = run_all(options, {f"pretrain-{names[key]}": each
                                for key, each in pretraining.items()})
    finetuning = {}
    for key, start in zip(networks, folders.values()):
        finetuning[f"tune-{names[key]}"] = [
            PROGRAM, "--finetune", TASK, "--init", start, "--seed", key[1], "--glue", folder,
            "--train_examples", EXAMPLES, "--finetune_epochs", times, *TUNING, *options.flags]
    results = run_all(options, finetuning).values()
    return {key: read(each / "done.json")["tasks"][TASK]["mean"]
            for key, each in zip(networks, results)}


@study(
    "0.7 core-hours",
    Claim("open-reliability", "A score ranks random networks of four layers", "our question",
          least=0.65),
    Claim("open-budgets", "A candidate's score ranks them as five times the budget does",
          "our question", least=0.5))
def reliability(options):
    """16 random networks of four layers with both kinds, two seeds, at a candidate's budget and at
    five times. Estimates decide (the plan above), not intervals."""
    source, _ = search_folder(options)
    cfg = abz.Config(**{name: value for name, value in abz.PRESETS["demo"].items()
                        if not isinstance(value, dict)})
    rng = random.Random("reliability 4 layers")
    archs = []
    while len(archs) < 16:
        arch = abz.sample_arch(rng, cfg)
        if len({isinstance(layer, int) for layer in arch}) == 2:
            archs.append(abz.arch_text(arch))
    networks = {(f"random {number}", seed): arch
                for number, arch in enumerate(archs) for seed in range(2)}
    measured = {}
    means = {}
    values = {}
    for times in (1, TIMES):
        scores = train(options, networks, times, source)
        pairs = [[scores[f"random {number}", seed] for seed in range(2)] for number in range(16)]
        values[f"{times} x budget"] = pairs
        means[times] = [statistics.mean(pair) for pair in pairs]
        measured[f"ICC at {times} x budget"] = bootstrap(
            lambda *columns: icc(list(zip(*columns)))[0], *zip(*pairs))
    tau = bootstrap(kendall, *means.values())
    intervals = {"open-reliability": measured, "open-budgets": {"tau": tau}}
    return {"values": values, "intervals": intervals, "networks": archs}


@study("11 core-hours after `reliability`", Claim(
    "open-random", "OP-NAS finds better networks than random search", "curves (Figure 6)",
    [("OP-NAS", "random search")]))
def pairs(options):
    """The plan above."""
    source, target = search_folder(options)
    names = {"op-nas": "OP-NAS", "random": "random search"}
    keys = [*product(range(FIRST, FIRST + PAIRS), names)]
    commands = {
        run_name("search", strategy, seed): [
            PROGRAM, "--search", "--strategy", strategy, "--seed", seed, *SEARCH, "--glue", target,
            *options.flags]
        for seed, strategy in keys}
    folders = run_all(options, commands).values()
    networks = {}
    for (seed, strategy), folder in zip(keys, folders):
        scores = candidates(folder)
        for rank, arch in enumerate(sorted(scores, key=scores.get, reverse=True)[:BEST]):
            networks[f"{strategy} {rank}", seed + 1000] = arch
    judged = train(options, networks, TIMES, source)
    values = {}
    for seed, strategy in keys:
        five = [judged[f"{strategy} {rank}", seed + 1000] for rank in range(BEST)]
        values.setdefault(names[strategy], []).append(statistics.mean(five))
    return {"values": values, "judged": {run_name(*key): score for key, score in judged.items()}}


if __name__ == "__main__":
    main("open_space", globals())
