"""What does each step of a compression bring? Accuracy against milliseconds of a released BERT.

    python -m tests.claims.autotinybert compress --init path/to/bert --glue GLUE      2.5 core-hours

The plan, written before any run of the study:
- Model: all-MiniLM-L6-v2 (6-384-1536-12-384). Tasks: SST-2, trained on the first 3,000 examples and
  scored on the other 3,920 and on dev (a score's standard error is .6 points), and MRPC, trained on
  all 3,668 and scored on the 408 of dev (2.2 points).
- Time: one sequence of 64 tokens, one thread, the exported module of a classifier, int8. Limits are
  speed-ups over the whole model in int8. For MRPC the middle one alone.
- Shapes: for each limit one search of 48 candidates by States-saved on SST-2's text, seed 0. Its
  best, the best of its first generation ("random") and the slowest of BERT's rule. States-saved was
  chosen in a pilot from some twenty scores, by 13 shapes.
- Starts, on SST-2: leading slices of the released model (unsorted), of the sorted model, and of the
  sorted model after Algorithm 1 (400 steps of 16 sequences of the task's text, one training for
  each seed).
- Fine-tuning: 3 epochs with labels. Distilled: 6 epochs at twice the learning rate, from the
  fine-tuned whole model of the same seed.
- For comparison: the whole model, its first 2, 3 and 4 layers (MRPC: 3), and logistic regression on
  a bag of words.
- Power: in a pilot two seeds of one model differed by .1 to .8 points on SST-2, so that a mean
  difference of 6 pairs (2 shapes, 3 seeds) has a 95% interval of about +-.7 points.
- Test: paired differences by shape and seed, Student's t. Three seeds, no further batch.
- Cut for time when a quarter had run, before any score was read: distilled models have two seeds,
  MRPC has one, and Algorithm 1 has no distilled models.

What pilots found before the plan (SST-2 as above, sorted units, no Algorithm 1 unless named):
- Importance that sorts the units, by accuracy at 4-384-768-12-192 and at 6-384-768-12-384: changes
  of the last states (no labels) 82.5 (n = 3) and 85.6 (n = 2), changes of a fine-tuned model's loss
  82.8 (3) and 85.5 (2), norms of the weights 79.7 (2) and 82.5 (1).
- Scores of 13 shapes with like FLOPs, 3 to 5 layers, by Kendall's tau with the accuracy of one
  fine-tuning: States-saved .72 [.39, .94], depth times width .66 [.26, .97], depth .64 [.20, .87],
  token states by a linear map .31, squared error of the last states .15, the paper's two losses
  .13, width .09, parameters .05, a linear probe of the sentiment .05, the paper's losses at the same
  depth -.64. Fine-tunings of 30 to 60 steps learned nothing. Two implementations of the same
  fine-tuning agreed by .92. Twenty scores were tried, so that the best one looks too good.
- Why Algorithm 1 brings nothing to a released model: its targets are the last layer's. Sub-models
  of fewer layers pull the lower layers towards it, and the whole model drifts: after 40 steps its
  held-out states have moved by .019 of a square of .157, with targets of the same depth by .006, and
  with the whole model in every step too by .002. 150 steps with these changes gave 82.8 and 83.0 at
  4-384-768-12-192 (two seeds), sorting alone 82.5 and 82.6: not shown to be better.
"""
import statistics
from itertools import product
from pathlib import Path

import torch

import autotinybert as atb
from common.cli import Command
from common.finetune import open_task, parse_tasks, predict
from common.tokenization import load_tokenizer
from tests.claims.pictures import lines
from tests.claims.study import Claim, in_turns, read, read_by, run_all, run_name, study

SPEEDUPS = {"SST-2": (2, 3), "MRPC": (2,)}  # limits
OWN_NAMES = {"SST-2": "sst2", "MRPC": "mrpc-own"}  # mrpc would be GLUE's own
LENGTH = 64  # tokens of what is timed
FIRST = {"SST-2": (2, 3, 4), "MRPC": (3,)}  # layers of the practitioner's models
STEPS = 400  # of Algorithm 1
KINDS = ("searched", "random sample", "BERT's rule")
SETTINGS = (
    f"--preset released --dtype bfloat16 --length 64 --held_out 0.05 --finetune_length 64 "
    "--labels classes "
    f"--latency_length {LENGTH} --quantize").split()
COMPARED = {  # (start, distilled) of searched shapes, next to (sorted, distilled)
    "SST-2": [("unsorted", False), ("sorted", False), ("Algorithm 1", False)],
    "MRPC": [("sorted", False)],
}
DISTILLED = 2  # seeds
STARTS = {"SST-2": ("unsorted", "sorted", "Algorithm 1"), "MRPC": ("sorted",)}


def command(action, *flags):
    """The command of an action with the flags that it reads."""
    name, *value = action.split(" ", 1)
    groups = atb.ACTIONS[name][2]
    return ["autotinybert.py", f"--{name}", *value, *read_by(atb.Config, groups, flags)]


def write_tasks(folder, glue):
    """Write the two tasks as folders of the user's own. Returns {task: folder}."""
    folders = {}
    for name in SPEEDUPS:
        read_lines = lambda split: [  # noqa: E731
            line.split("\t") for line in
            Path(glue, name, f"{split}.tsv").read_text(encoding="utf-8-sig").splitlines()[1:]]
        train, dev = read_lines("train"), read_lines("dev")
        header = ["text", "label"]
        if name == "SST-2":
            train, dev = train[:3000], train[3000:] + dev
        else:
            header = ["text1", "text2", "label"]
            train, dev = [[(*texts, label) for label, _, _, *texts in part]
                          for part in (train, dev)]
        folders[name] = folder / OWN_NAMES[name]
        folders[name].mkdir(parents=True, exist_ok=True)
        for split, part in (("train", train), ("dev", dev)):
            rows = ["\t".join(cell.strip() for cell in row) for row in [header, *part]]
            (folders[name] / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        texts = "\n\n".join(cell.strip() for row in train for cell in row[:-1])
        (folders[name] / "text.txt").write_text(texts + "\n", encoding="utf-8")
    return folders


def starts_of(options, bert, tasks):
    """{(task, start, seed): folder of a SuperPLM}."""
    commands = {}
    keys = {}
    for task, folder in tasks.items():
        for start in STARTS[task]:
            trained = start == "Algorithm 1"
            for seed in range(1, options.seeds + 1):
                name = run_name("start", task, start, seed if trained else "")
                keys[task, start, seed] = name
                commands[name] = command(
                    "superplm", *SETTINGS, "--init", bert, "--corpus", folder / "text.txt",
                    "--sort", "none" if start == "unsorted" else "taylor",
                    "--steps", STEPS if trained else 0, "--seed", seed if trained else 0)
    folders = run_all(options, commands)
    return {key: folders[name] for key, name in keys.items()}


def search_shapes(options, sorted_model, folder):
    """{speed-up: {kind: shape}} of a search for each limit."""
    few = "--train_examples 32 --finetune_epochs 1 --winners 1".split()  # only shapes are used
    commands = {
        run_name("search", speedup): command(
            "search", *SETTINGS, *few, "--init", sorted_model, "--tasks", folder,
            "--speedup", speedup, "--corpus", folder / "text.txt")
        for speedup in SPEEDUPS["SST-2"]
    }
    folders = run_all(options, commands)
    shapes = {}
    for speedup, name in zip(SPEEDUPS["SST-2"], commands):
        finalists = read(folders[name] / "finalists.json")
        shapes[speedup] = {kind: finalists[kind][0]["arch"] for kind in KINDS if finalists[kind]}
    return shapes


def planned(bert, tasks, starts, shapes, seeds):
    """{(task, title, shape, distilled, seed): start folder} of all fine-tunings."""
    top = str(read_shape(bert))
    rest = top.partition("-")[2]
    jobs = {}
    for seed, task in product(seeds, tasks):
        if task == "MRPC" and seed > 1:
            continue
        jobs[task, "whole", top, False, seed] = bert
        for count in FIRST[task]:
            jobs[task, f"first {count} layers", f"{count}-{rest}", False, seed] = bert
        for speedup in SPEEDUPS[task]:
            for kind, arch in shapes[speedup].items():
                title = f"{kind}, {speedup}"
                if seed <= DISTILLED:
                    jobs[task, f"{title}, sorted", arch, True, seed] = starts[task, "sorted", seed]
                if kind == "searched":
                    for start, distilled in COMPARED[task]:
                        jobs[task, f"{title}, {start}", arch, distilled, seed] = (
                            starts[task, start, seed])
    return jobs


def read_shape(bert):
    """The Arch of a released BERT."""
    return atb.read_pretrained(bert, atb.Config(), Command("autotinybert", "finetune")).arch


def tune_all(options, bert, tasks, jobs):
    """{key of `planned`: run folder}."""
    commands = {}
    names = {}
    for key, start in sorted(jobs.items(), key=lambda item: item[0][3]):  # teachers first
        task, _, arch, distilled, seed = key
        origin = "released" if start == bert else Path(start).name
        names[key] = run_name("tune", task, arch, origin, "distilled" * distilled, seed)
        teacher = []
        if distilled:
            whole = run_name("tune", task, read_shape(bert), "released", "", seed)
            teacher = ["--task_teacher", options.runs / whole]
        commands[names[key]] = command(
            f"finetune {tasks[task]}", *SETTINGS, "--init", start, "--arch", arch,
            "--seed", seed, *teacher)
    with_labels = {name: words for name, words in commands.items()
                   if "--task_teacher" not in words}
    folders = run_all(options, with_labels)
    folders |= run_all(options, commands)
    return {key: folders[name] for key, name in names.items()}


def int8_score(folder, task_folder, bert):
    """The score of a fine-tuned model whose linear layers are int8, kept next to its run."""
    path = folder / "int8.txt"
    if not path.exists():
        cfg = atb.Config(finetune_length=64, labels="classes", dtype="float32")
        names = parse_tasks(str(task_folder), atb.recipes(cfg), cfg)
        task = open_task(names[0], cfg, load_tokenizer(bert), atb.recipes(cfg), search=True)
        model = atb.read_teacher(task, folder, cfg)
        outputs = predict(atb.quantize(atb.plain(model)), task, "dev", cfg, torch.device("cpu"))
        path.write_text(str(task.score("dev", outputs)["main"]))
    return float(path.read_text())


def milliseconds(shapes):
    """{(shape, int8): median ms of 15 alternating turns}."""
    calls = {}
    for arch in shapes:
        for int8 in (False, True):
            cfg = atb.Config(latency_length=LENGTH, latency_states="first", quantize=int8)
            calls[arch, int8] = timed_pass(atb.parse_arch(arch), cfg)
    with torch.no_grad():
        return {key: statistics.median(each) for key, each in in_turns(calls, 15).items()}


def timed_pass(arch, cfg):
    """A function that runs the exported module of a shape once."""
    model = atb.PlainBert(arch.hidden, arch.shapes, 64, LENGTH, 2).eval()
    if cfg.quantize:
        model = atb.quantize(model)
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    return lambda: model({"ids": ids, "token_type_ids": ids})


def title_of(key):
    """The name of an arm."""
    _, title, _, distilled, _ = key
    return title + ", distilled" * distilled


def pooled(scores, task, kind, start, distilled):
    """Scores of the kind's shapes, by limit and seed."""
    return [100 * score for key, score in sorted(scores.items())
            if key[0] == task and key[1].startswith(f"{kind}, ") and key[3] == distilled
            and key[1].endswith(f", {start}")]


@study(
    "2.5 core-hours",
    Claim("compress-sort", "Sorted units make better sub-models than the order of a released BERT",
          "no numbers (DynaBERT's rewiring)", [("sorted", "unsorted")]),
    Claim("compress-distill", "A fine-tuned teacher's outputs make better sub-models than labels",
          "no numbers (TinyBERT's second stage)", [("sorted, distilled", "sorted, two seeds")]),
    Claim("compress-alg1", "Algorithm 1 makes better sub-models than sorting alone", "no numbers",
          [("Algorithm 1", "sorted")]),
    Claim("compress-shape", "A searched shape is better than BERT's rule and than the best of a "
          "random sample", "78.9 against 77.1 (Table 1)",
          [("sorted, distilled", "BERT's rule"), ("sorted, distilled", "random sample")]),
    picture=lines("ms for 64 tokens, one thread", "accuracy on SST-2, %", "o"))
def compress(options):
    """A released BERT, smaller: what sorting, Algorithm 1, distillation and the search bring. The
    plan stands in tests/claims/compress.py."""
    given = dict(zip(options.flags[::2], options.flags[1::2]))
    bert = given["--init"]
    tasks = write_tasks(options.runs.absolute() / "tasks", given["--glue"])
    starts = starts_of(options, bert, tasks)
    shapes = search_shapes(options, starts["SST-2", "sorted", 1], tasks["SST-2"])
    jobs = planned(bert, tasks, starts, shapes, range(1, options.seeds + 1))
    folders = tune_all(options, bert, tasks, jobs)
    done = {key: read(folder / "done.json")["tasks"] for key, folder in folders.items()}
    scores = {key: next(iter(entry.values()))["median"] for key, entry in done.items()}
    int8 = {key: int8_score(folder, tasks[key[0]], bert) for key, folder in folders.items()
            if key[-1] <= DISTILLED and (key[3] or key[1].startswith(("whole", "first")))}
    times = milliseconds({key[2] for key in jobs})
    return report(scores, int8, times, shapes)


def report(scores, int8, times, shapes):
    """The record: arms by shape and seed on SST-2, a table of all means, and the picture."""
    values = {
        "unsorted": pooled(scores, "SST-2", "searched", "unsorted", False),
        "sorted": pooled(scores, "SST-2", "searched", "sorted", False),
        "Algorithm 1": pooled(scores, "SST-2", "searched", "Algorithm 1", False),
        "sorted, distilled": pooled(scores, "SST-2", "searched", "sorted", True),
        "sorted, two seeds": [
            100 * score for key, score in sorted(scores.items())
            if key[0] == "SST-2" and key[1].startswith("searched") and not key[3]
            and key[1].endswith(", sorted") and key[-1] <= DISTILLED],
        "BERT's rule": pooled(scores, "SST-2", "BERT's rule", "sorted", True),
        "random sample": pooled(scores, "SST-2", "random sample", "sorted", True),
    }
    table = []
    for task, title in dict.fromkeys((key[0], title_of(key)) for key in scores):
        keys = [key for key in scores if (key[0], title_of(key)) == (task, title)]
        arch = keys[0][2]
        row = {"task": task, "model": title, "shape": arch, "ms": round(times[arch, False], 2),
               "scores": [round(100 * scores[key], 2) for key in keys]}
        if keys[0] in int8:
            row |= {"int8_ms": round(times[arch, True], 2),
                    "int8_scores": [round(100 * int8[key], 2) for key in keys if key in int8]}
        table.append(row)
    points = {}
    for row in table:
        name = row["model"].split(",")[0].replace("whole", "released").split(" 2")[0]
        name = "first layers" if name.startswith("first") else name
        if row["task"] == "SST-2" and "int8_ms" in row and "Algorithm" not in row["model"]:
            mean = statistics.mean(row["int8_scores"])
            points.setdefault(f"{name} int8", []).append([row["int8_ms"], mean])
            if row["model"] == "whole" or name == "first layers":
                points.setdefault(f"{name} float32", []).append(
                    [row["ms"], statistics.mean(row["scores"])])
    return {"values": values, "table": table, "lines": points, "networks": shapes}
