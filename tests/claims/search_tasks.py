"""Graded tasks that judge networks of the closed space (search_table.py), in GLUE's layout.

`reach` was chosen by test-retest reliability. results/autobert_zero/reliability.json has the
figures, also of the designs that failed. Scores rise smoothly with skill: each task has easy and
hard examples, and partial rules pay.
"""
from pathlib import Path

from data import demo
from data.demo import GLUE, NOUNS, STATES, TRUE, enumerated

COUNTED = 5  # things of `tally`
LONGEST = {"MNLI": 200, "SST-2": 200, "STS-B": 230}  # characters of an example


def reach(text, label):
    """MNLI: four to seven things have a state. Text 2 names the state of the marked thing, its
    opposite, or another state. The state is next to the marker ("the default open list"), or up to
    six phrases after it (20 words), with a quarter of the examples for each of four distances."""
    rng = text.rng
    answer = {"entailment": "open", "contradiction": "empty", "neutral": "large"}[label]
    nouns = rng.sample(NOUNS, rng.randint(4, 7))
    marked = rng.randrange(len(nouns))
    distance = rng.randrange(4)
    items = []
    for number, noun in enumerate(nouns):
        if number == marked:
            state = answer
            kind = distance
            phrases = [0, rng.randint(0, 1), rng.randint(2, 3), rng.randint(4, 6)][kind]
            mark = "default "
        else:
            state = rng.choice(STATES)
            kind = rng.randrange(4)
            phrases = [0, 0, 1, 2][kind] if rng.random() < 0.5 else 0
            mark = ""
        if kind == 0:
            items.append(f"the {mark}{state} {noun}")
        else:
            between = rng.choices(text.phrases, k=phrases)
            items.append(" ".join([f"the {mark}{noun}", *between, "is", state]))
    return [enumerated(items).capitalize() + ".", "The default one is open."]


def scope(text, label):
    """SST-2: are most of the things that it has now open? A clause begins with "now" or "once" and
    has one to three things. What it once had does not count. Three to six clauses."""
    rng = text.rng
    clauses = rng.randint(3, 6)
    kinds = [rng.random() < 0.5]  # whether a clause counts
    while len(kinds) < clauses:
        kinds.append(not kinds[-1])
    counted = 0
    while counted % 2 == 0:  # no ties
        sizes = [rng.randint(1, 3) for _ in kinds]
        counted = sum(size for size, kind in zip(sizes, kinds) if kind)
    counts = [kind for size, kind in zip(sizes, kinds) for _ in range(size)]
    states = rng.choices(STATES[:2], k=len(counts))
    votes = [state for state, count in zip(states, counts) if count]
    if (votes.count("open") > counted / 2) != (label in TRUE):
        states = [STATES[state == "open"] if count else state
                  for state, count in zip(states, counts)]
    nouns = rng.sample(NOUNS, len(counts))
    items = iter([f"{state} {noun}" for state, noun in zip(states, nouns)])
    parts = [f"{'now' if kind else 'once'} {enumerated([next(items) for _ in range(size)])}"
             for size, kind in zip(sizes, kinds)]
    return ["; ".join(parts).capitalize() + "."]


def sizes_of(total, rng):
    """Numbers from 1 to 3 with this sum."""
    sizes = []
    while sum(sizes) < total:
        sizes.append(min(rng.randint(1, 3), total - sum(sizes)))
    return sizes


def tally(text, label):
    """STS-B: how many of the five things that it has now are open? A clause begins with "now" or
    "once" and has one to three things. The four to seven things that it once had do not count."""
    rng = text.rng
    open_now = round(float(label))  # of COUNTED, the largest label
    states = {"now": ["open"] * open_now + ["empty"] * (COUNTED - open_now)}
    before = rng.randint(4, 7)
    open_before = rng.randint(0, before)
    states["once"] = ["open"] * open_before + ["empty"] * (before - open_before)
    nouns = iter(rng.sample(NOUNS, COUNTED + before))
    clauses = []
    for word, drawn in states.items():
        rng.shuffle(drawn)
        for size in sizes_of(len(drawn), rng):
            items = [f"{drawn.pop()} {next(nouns)}" for _ in range(size)]
            clauses.append(f"{word} {enumerated(items)}")
    rng.shuffle(clauses)
    return ["; ".join(clauses).capitalize() + ".", "How much is open now?"]


RULES = {"MNLI": reach, "SST-2": scope, "STS-B": tally}


def write_tasks(folder):
    """Write train and dev of each task below a folder, unless they exist. Returns it."""
    folder = Path(folder)
    absent = [name for name in RULES if not (folder / name / "made").exists()]
    parts = demo.deal(demo.read_documents()) if absent else {}
    for name in absent:
        task = {name: (RULES[name], *GLUE[name][1:])}
        for path, content in demo.glue_files(parts, task, LONGEST[name]):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content, encoding="utf-8")
        (folder / name / "made").touch()
    return folder
