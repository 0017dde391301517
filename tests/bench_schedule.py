"""python tests/bench.py schedule: how much of their time many processes work, simulated. No run, no clock: the same on
every machine. Jobs of one round (of one stage, in fine-tuning) wait for those of the round before.

fixed: process r of n does jobs r, r + n, ... ; claims: whoever is free takes the next in their order; longest first:
the next that takes longest. share_out of common/distributed.py is `claims`, and of fine-tuning's jobs longest first as
common/tasks.py orders the tasks.
"""
import heapq
import random

import albert
from common.glue import TASKS
from common.tasks import FROM_MNLI, LONGEST

# seconds of the 24 candidates of a demo search, two threads, on an idle machine
ZERO = (7.31, 7.237, 7.898, 9.706, 9.409, 11.261, 11.347, 12.004, 9.125, 9.649, 9.87, 6.619, 7.404, 7.512, 8.695,
        11.111, 11.141, 13.701, 9.973, 9.947, 9.202, 8.348, 10.166, 13.754)  # autobert_zero.py at bb4504d
TINY = (0.99, 1.111, 0.994, 1.06, 1.229, 0.815, 0.881, 0.847, 0.825, 0.938, 0.942, 0.984, 0.843, 1.272, 1.038, 0.827,
        0.614, 0.835, 0.73, 0.785, 0.881, 0.695, 0.905, 1.568)  # autotinybert.py at d13b259
ROWS = {"CoLA": 8551, "SST-2": 67349, "MRPC": 3668, "STS-B": 5749, "QQP": 363846, "MNLI": 392702, "QNLI": 104743,
        "RTE": 2490, "WNLI": 635}  # GLUE's training rows


def rounds_of(seconds, rounds, size, seed=0):
    """Rounds of jobs [(cost, seconds)], drawn from measured ones."""
    rng = random.Random(seed)
    return [[(second, second) for second in rng.choices(seconds, k=size)] for _ in range(rounds)]


def stages(seconds, runs):
    """Stages of fine-tuning jobs: {task: seconds}, so many runs of each, those that start from MNLI last."""
    jobs = {late: [(-LONGEST.index(name), second) for name, second in seconds.items() for _ in range(runs)
                   if (name in FROM_MNLI) == late] for late in (False, True)}
    return [stage for stage in jobs.values() if stage]


def fixed(jobs, processes):
    """Seconds of a round."""
    return max(sum(second for _, second in jobs[rank::processes]) for rank in range(processes))


def claims(jobs, processes, longest=False):
    """Seconds of a round; each job goes to who is free first."""
    free = [0.0] * processes
    for _, second in sorted(jobs, key=lambda job: -job[0] * longest):
        heapq.heapreplace(free, free[0] + second)
    return max(free)


def busy(rounds, processes):
    """Shares of the processes' time in which they work: fixed, claims, longest first."""
    work = sum(second for jobs in rounds for _, second in jobs) / processes
    took = (fixed, claims, lambda jobs, processes: claims(jobs, processes, True))
    return [work / sum(way(jobs, processes) for jobs in rounds) for way in took]


def cases():
    """{what: (rounds, numbers of processes)}."""
    recipes = {name: steps * batch * length * (4 if name == "RACE" else 1)
               for name, (_, batch, _, steps, _, length, _) in albert.TABLE14.items()}
    glue = {name: ROWS[name] for name in TASKS}
    return {"AutoBERT-Zero's search, 775 candidates in rounds of 25": (rounds_of(ZERO, 31, 25), (1, 8, 64, 256)),
            "AutoTinyBERT's search, 4 generations of 25": (rounds_of(TINY, 4, 25), (1, 8, 16, 64)),
            "ALBERT's tasks (Table 14), 5 runs each": (stages(recipes, 5), (1, 8, 16, 64)),
            "GLUE with AutoBERT-Zero, 3 runs each": (stages(glue, 3), (1, 8, 16, 64))}


def table():
    """The table as Markdown."""
    lines = ["| jobs | processes | fixed | claims | longest first |", "|---|---|---|---|---|"]
    for what, (rounds, numbers) in cases().items():
        for processes in numbers:
            shares = " | ".join(f"{100 * share:.0f}%" for share in busy(rounds, processes))
            lines.append(f"| {what} | {processes} | {shares} |")
    return "\n".join(lines)


def main(argv):
    print(table())
