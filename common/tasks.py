"""GLUE and SQuAD behind one face: all that a fine-tuning needs of a task but its model, its loss and its loop.

    for task in (open_task(name, cfg, tokenizer, RECIPES) for name in parse_tasks("CoLA,SQuAD2.0", RECIPES)):
        for step, batch in zip(range(task.steps), task.batches(seed=0)): ...    # an endless stream
        outputs = task.collect("dev", lambda batch: model(batch))               # of all rows, in the order of the file
        task.score("dev", outputs)                                              # {"main": 0.61, "matthews": 0.61}
        task.write("test", outputs, folder)                                     # the leaderboard's file

A fine-tuning is a list of jobs, each one task at one setting with one seed. run_jobs shares them out over the
processes and summarise says what came out: jobs/JOB.json (metrics) and jobs/JOB/ (predictions, model) are one job's,
TASK/ is what the median job of a task wrote.
"""
import dataclasses
import functools
import itertools
import json
import math
import shutil
import statistics
from collections import defaultdict
from pathlib import Path

import torch
from torch.nn.functional import pad
from tqdm import tqdm

from common import glue, squad
from common.cli import MissingFile, UserError
from common.distributed import say, share_out
from common.files import existing, read_json, write_atomic

LONGEST = "QQP MNLI RACE QNLI SQuAD2.0 SQuAD1.1 SST-2 CoLA STS-B WNLI MRPC RTE".split()  # in the order of their time
FROM_MNLI = ("RTE", "STS-B", "MRPC")  # start from the best MNLI job, where MNLI is among the tasks
EVALUATED = 2 ** 15  # tokens at most of a batch that is predicted: an ALBERT xxlarge makes tensors of 2.7 GB of them


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a paper fine-tunes one task."""
    lr: float
    batch: int
    epochs: float = 0  # passes over the training rows; steps, where given, rule
    steps: int = 0
    warmup: float = 0.1  # share of the steps
    dropout: float = 0.1
    length: int = 128  # longest input, in tokens
    main: str = "accuracy"  # the metric that counts


def parse_tasks(text, recipes, groups=None):
    """The tasks that "CoLA,squad1.1" names, in the order of the words; "glue", "squad" and `groups` ({word: names})
    stand for several. UserError on an unknown name."""
    several = {"glue": [name for name in recipes if name in glue.TASKS],
               "squad": [name for name in recipes if name.startswith("SQuAD")], **(groups or {})}
    known = {**{name.lower(): [name] for name in recipes}, **{word: names for word, names in several.items() if names}}
    words = text.lower().replace(",", " ").split()
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        raise UserError(f"{unknown[0] if unknown else 'no task is named'}: "
                        f"choose from {', '.join([*recipes, *(word for word in several if several[word])])}")
    return list(dict.fromkeys(itertools.chain(*(known[word] for word in words))))


class Task:
    """name; kind: "class", "value" (a regression), "span" or "choice"; outputs: numbers that a head gives (a span's: of
    each token); metrics: names in a score; recipe: Recipe; splits: {split: features}, "train" and "dev" always. A task
    also keeps rows, {split: what was read}."""

    def __init__(self, name, kind, outputs, metrics, recipe, splits):
        self.name, self.kind, self.outputs, self.metrics = name, kind, outputs, metrics
        self.recipe, self.splits = recipe, splits

    @property
    def steps(self):
        """Updates of a fine-tuning."""
        per_epoch = math.ceil(len(self.splits["train"]) / self.recipe.batch)
        return self.recipe.steps or max(1, round(self.recipe.epochs * per_epoch))

    def looks(self, every=0, split="dev"):
        """The updates after which a fine-tuning looks at its dev rows, the last among them: each `every`th, or for 0 at
        most 20 at even distances, and no more than keep the rows that are predicted below those that are trained."""
        if every:
            return {*range(every, self.steps, every), self.steps}
        count = min(20, self.steps, self.steps * self.recipe.batch // len(self.splits[split])) or 1
        return {round(self.steps * number / count) for number in range(1, count + 1)}

    @functools.cached_property
    def constant(self):
        """The best "main" on dev of an answer that is the same for every row: a class, a value, an option, or "no
        answer". A score says something where it is above it."""
        if self.kind == "span":
            names = [question.id for question in self.rows["dev"]]
            answers = [squad.Predictions(dict.fromkeys(names, ""), {}, dict.fromkeys(names, 0.0))]
        else:
            width = self.splits["dev"].lengths[0].size if self.kind == "choice" else self.outputs
            answers = torch.eye(width).repeat(len(self.splits["dev"]), 1, 1).unbind(1)  # each (rows, width)
        return max(self.score("dev", answer)["main"] for answer in answers)

    def yardstick(self, outputs=None):
        """What is printed with a score: "headline", the names of the metrics whose mean is "main";
        "constant"; "one_answer": the answer that these outputs of dev give every example, or ""."""
        answer = "" if outputs is None else self.single_answer(outputs)
        return {"headline": self.recipe.main, "constant": self.constant, "one_answer": answer}

    def single_answer(self, outputs):
        """The answer that outputs of dev give every example, by name; "" if there are several."""
        answers = outputs if self.kind == "value" else outputs.argmax(-1)
        if (answers != answers[0]).any():
            return ""
        if self.kind == "value":
            return f"{answers[0].item():.2f}"
        names = "ABCD" if self.kind == "choice" else glue.TASKS[self.name].labels
        return names[answers[0]]

    def standard_error(self, score):
        """The standard error of a score over the dev rows. It is exact for a share, an upper bound for a mean of shares
        such as F1, and an approximation for a correlation."""
        spread = math.sqrt(score * (1 - score)) if self.recipe.main in ("accuracy", "f1") else 1 - score ** 2
        return spread / math.sqrt(len(self.rows["dev"]))

    def read(self, split, size, **order):
        """The batches of a split, without "lengths" where every row fills the width: attention needs no mask then, and
        a GPU has its flash kernels for it."""
        for batch in glue.batches(self.splits[split], size, **order):
            full = bool((batch["lengths"] == batch["ids"].shape[-1]).all())
            yield {key: value for key, value in batch.items() if key != "lengths" or not full}

    def batches(self, seed, start=0):
        """Training batches from update `start` on, without end: dicts of CPU tensors. Each epoch has its own order."""
        first, skipped = divmod(start, math.ceil(len(self.splits["train"]) / self.recipe.batch))
        for epoch in itertools.count(first):
            batches = self.read("train", self.recipe.batch, seed=seed, epoch=epoch)
            yield from itertools.islice(batches, skipped if epoch == first else 0, None)

    def collect(self, split, forward):
        """forward(batch) of all rows of a split in the order of the file, float32 on the CPU. It gives a tensor
        (B, ...) or a tuple of them; of spans (B, T, ...), shorter batches are filled up with -1e4."""
        features, index, rows, lengths = self.splits[split], [], [], self.splits[split].lengths
        longest, inputs = int(lengths.max()), lengths[0].size  # a row of RACE has four inputs
        size = min(4 * self.recipe.batch, max(1, EVALUATED // longest // inputs))
        for batch in tqdm(self.read(split, size), f"evaluating {self.name}",
                          math.ceil(len(features) / size), disable=None, leave=False):
            output, width = forward(batch), batch["ids"].shape[1]
            parts = [part.float() for part in (output if isinstance(output, tuple) else (output,))]
            if self.kind == "span":  # widened to the longest row; cut to it where the batch's width was rounded up
                parts = [pad(part, (0, 0) * (part.dim() - 2) + (0, longest - width), value=-1e4)
                         if part.dim() > 1 and part.shape[1] == width else part for part in parts]
            index.append(batch["index"])
            rows.append(parts)
        order = torch.cat(index).argsort()
        found = tuple(torch.cat(column).cpu()[order] for column in zip(*rows))  # here alone the host waits for a GPU
        return found if isinstance(output, tuple) else found[0]


class GlueTask(Task):
    """One of GLUE; splits with "test" where the file is there, MNLI's mismatched ones and AX too. search: train and dev
    alone, all that a search may look at. file: one of the user's own, which is all there is, as "test"."""

    def __init__(self, name, cfg, tokenizer, recipe, search=False, file=None):
        self.task = glue.TASKS[name]
        ends = ("", "_mismatched") if name == "MNLI" and not search else ("",)
        splits = ["train", *(part + end for part in (("dev",) if search else ("dev", "test")) for end in ends)]
        splits += ["test_diagnostic"] if "test_mismatched" in splits else []
        self.rows = {split: glue.load(cfg.glue, name, split).head(limit(split, cfg)) for split in splits
                     if not split.startswith("test") or glue.path_of(cfg.glue, name, split).exists()} if not file else {
                         "test": glue.load_unlabelled(file, self.task, labelled=True)}
        super().__init__(name, "value" if self.task.regression else "class", self.task.classes,
                         (*self.task.metrics, "main"), recipe,
                         {split: glue.encode(part, tokenizer, recipe.length) for split, part in self.rows.items()})
        glue.warn_about_cuts(name, [*self.splits.values()], getattr(cfg, "positions", 512))

    def score(self, split, outputs):
        """The official metrics as shares, and "main". outputs: logits (n, classes), or scores (n, 1)."""
        found = glue.score(self.task, outputs, self.splits[split].labels)
        return {**found, "main": statistics.mean(found[name] for name in self.recipe.main.split("+"))}

    def score_file(self, outputs):
        """The metrics on the user's own file; {} where it has no labels."""
        labels = self.rows["test"].labels
        return {} if labels is None else glue.score(self.task, outputs, labels)

    def write(self, split, outputs, folder):
        """Write the leaderboard's file of a test split; returns its path."""
        if split.startswith("test"):
            return glue.write_submission(folder, self.task, outputs, split)


class SquadTask(Task):
    """A span of the paragraph; in 2.0 [CLS] stands for "no answer". file: one of the user's own, which is all there is,
    as "dev", and with which goes the threshold of the questions that the model was tuned on."""

    def __init__(self, name, cfg, tokenizer, recipe, file=None):
        if recipe.length < 16:
            raise UserError(f"--finetune_length {recipe.length}: a question and an answer do not fit; use 16 or more")
        self.threshold = read_threshold(cfg.init, name) if file else None
        self.answered = squad.load_answered(file) if file else None
        self.rows = {"dev": squad.load(file, asked=True)} if file else {
            split: squad.load(path)[:limit(split, cfg) or None]
            for split, path in squad.files(cfg.squad, name).items()}
        windows = {split: squad.features(rows, tokenizer, recipe.length, min(128, recipe.length // 3),
                                         training=split == "train") for split, rows in self.rows.items()}
        super().__init__(name, "span", 2, ("exact", "f1", "main"), recipe, windows)

    def answers(self, outputs):
        """common.squad.Predictions on dev. outputs: start and end logits (windows, T, 2), or what squad.rank made of a
        beam, which is taken as it is."""
        if isinstance(outputs, squad.Predictions):
            return outputs
        return squad.extract(self.splits["dev"], outputs[..., 0], outputs[..., 1])

    def evaluated(self, outputs):
        """(predictions, the official scores in percent of the answers that `write` keeps)."""
        found = self.answers(outputs)
        odds = found.null_odds if self.name == "SQuAD2.0" else None
        return found, squad.evaluate(self.rows["dev"], found.texts, odds, threshold=None)

    def score(self, split, outputs):
        """The official scores as shares; "main" is F1. In 2.0 they are those of the answers that are
        written: above the threshold of "no answer" with the best F1 on dev they are withdrawn."""
        scores = {name: value if name.endswith(("total", "thresh", "threshold")) else value / 100
                  for name, value in self.evaluated(outputs)[1].items()}
        return {**scores, "main": scores["f1"]}

    def final(self, outputs):
        """(predictions, {id: its answer}), where those above the threshold that suits dev best are withdrawn."""
        if self.threshold is None:
            found, scores = self.evaluated(outputs)
            highest = scores.get("threshold", math.inf)
        else:
            found, highest = self.answers(outputs), self.threshold
        return found, {name: "" if found.null_odds.get(name, 0) > highest else text
                       for name, text in found.texts.items()}

    def single_answer(self, outputs):
        texts = {*self.final(outputs)[1].values()}
        return (min(texts) or "no answer") if len(texts) == 1 else ""

    def score_file(self, outputs):
        """The official scores of the user's own file at the tuned model's threshold; {} if it has
        no answers."""
        if not self.answered:
            return {}
        scores = squad.evaluate(self.answered, self.final(outputs)[1])
        return {name: scores[name] / 100 for name in ("exact", "f1")}

    def write(self, split, outputs, folder):
        """Write predictions.json, answers above the best threshold withdrawn,
        nbest_predictions.json and null_odds.json; returns the path of the first."""
        found, texts = self.final(outputs)
        for name, content in (("predictions", texts), ("nbest_predictions", found.nbest),
                              ("null_odds", found.null_odds)):
            write_atomic(Path(folder) / f"{name}.json", json.dumps(content, indent=1))
        return Path(folder) / "predictions.json"


def read_threshold(init, name):
    """The odds of "no answer" above which the job that made RUN/TASK or RUN/jobs/JOB withdraws an
    answer; of a folder without its run 0, the official script's. SQuAD1.1 withdraws none."""
    if name != "SQuAD2.0":
        return math.inf
    folder, found = Path(init).resolve(), {}
    if (path := folder.with_name(f"{folder.name}.json")).exists():
        found = read_json(path, dict)
    elif (path := folder.parent / "done.json").exists():
        found = read_json(path, dict)["tasks"][name]
    if not found:
        return 0.0
    scores = found["metrics"]
    return scores.get("threshold", scores.get("best_f1_thresh", math.inf))  # the latter: older runs


def open_file(path, cfg, tokenizer, recipes, kinds=None, name=""):
    """The Task, with a single split, that has the rows of a file of the user's own, for the model of
    --init: RUN/TASK, or the folder that --export wrote of it. name: of its task, if config.json does
    not have it."""
    existing(path, "name a file of your own")
    record = read_json(Path(cfg.init) / "config.json", dict, "name RUN/TASK, a model of --finetune")
    settings = record.get("settings", record)
    name = name or settings.get("tasks")
    tuned = record.get("action") == "finetune" or "model_type" in record
    if not tuned or name not in recipes:
        raise UserError(f"--init {cfg.init}: no model that was fine-tuned on a task, with its head; "
                        "name RUN/TASK of a --finetune")
    own = cfg.finetune_length if "finetune_length" in cfg.given else settings.get("finetune_length")
    recipe = dataclasses.replace(recipes[name], length=own or recipes[name].length)
    return task_class(name, kinds)(name, cfg, tokenizer, recipe, file=Path(path))


def answer_file(path, cfg, task, outputs):
    """Write what a model predicts for open_file's task, as fine-tuning writes it, to --out or to a
    folder beside the file. Returns lines that name the file written and, if the examples have
    labels, the scores."""
    path, (split, rows) = Path(path), *task.rows.items()
    folder = Path(cfg.out) if "out" in cfg.given else path.with_name(f"{path.stem}-predictions")
    folder.mkdir(parents=True, exist_ok=True)
    written = task.write(split, outputs, folder)
    lines = [f"{written}: predictions of {cfg.init} for the {len(rows)} examples of {path}"]
    scores = task.score_file(outputs)
    lines += [f"{task.name} on {path}: {shown(scores)}"] * bool(scores)
    return "\n".join(lines)


def task_class(name, kinds=None):
    """The class of a task. kinds: {name: class} in place of GlueTask and SquadTask."""
    return (kinds or {}).get(name, SquadTask if name.startswith("SQuAD") else GlueTask)


def limit(split, cfg):
    """Rows of a split to use, 0 for all: --train_rows of train, in a dry run of the others too."""
    return cfg.train_rows if split == "train" or cfg.dry_run else 0


def file_of(name, cfg):
    """A file of a task's data that its tuned model can answer."""
    if name == "RACE":
        return min(Path(cfg.race, "dev").rglob("*.txt"))
    if name.startswith("SQuAD"):
        return squad.files(cfg.squad, name)["dev"]
    test = glue.path_of(cfg.glue, name, "test")
    return test if test.exists() else glue.path_of(cfg.glue, name, "dev")


def task_files(names, cfg, flag, search):
    """What tasks read of --glue or --squad, as paths; MissingFile where a train or dev file is not there."""
    found = []
    for name in names:
        try:
            if flag == "squad" and name.startswith("SQuAD"):
                found += squad.files(cfg.squad, name).values()
            elif flag == "glue" and name in glue.TASKS:
                found += glue.files(cfg.glue, name, search)
        except MissingFile as error:
            if not search or "tasks" in cfg.given:
                raise
            raise UserError(f"{error}; the preset's --tasks names {name}") from None
    return found


def open_task(name, cfg, tokenizer, recipes, kinds=None):
    """The Task of a name. The flags finetune_lr, _batch, ... that are not None take the place of the recipe's numbers.
    kinds: as in task_class."""
    fields = [field.name for field in dataclasses.fields(Recipe)]
    own = {key: getattr(cfg, f"finetune_{key}", None) for key in fields}
    own = {key: value for key, value in own.items() if value is not None}
    recipe = dataclasses.replace(recipes[name], **({"steps": 0} if "epochs" in own else {}), **own)
    return task_class(name, kinds)(name, cfg, tokenizer, recipe)


def run_jobs(ranks, folder, jobs, work, from_mnli=FROM_MNLI):
    """[work(job, start) for each job], shared out over the processes, each kept as folder/jobs/JOB.json.

    jobs: {job: its task's name}. work returns {"job", "task", "setting", "metrics", "diverged", ...} and keeps its
    files in folder/jobs/JOB/. start: None, or for tasks of from_mnli, which come last, the folder of the best MNLI job.
    """
    folder, results, start = Path(folder) / "jobs", [], None
    late = [job for job, task in jobs.items() if task in from_mnli and "MNLI" in jobs.values()]
    for stage in ([job for job in jobs if job not in late], late):
        results += share_out(ranks, stage, folder, "fine-tuning", lambda job: work(job, start),
                             lambda job: -[*LONGEST, jobs[job]].index(jobs[job])) if stage else []
        found = [result for result in results if result["task"] == "MNLI" and not result["diverged"]]
        start = folder / max(found, key=lambda result: result["metrics"]["main"])["job"] if found else None
    return results


def summarise(folder, results):
    """{"tasks": {task: the median job's entries, median, mean, sd, n, diverged}, "averages": ...} of run_jobs' results.
    Of several settings of a task, the one with the best median stands for it; a diverged job counts with its score, the
    worst. What the median job wrote is copied to folder/TASK."""
    folder, tasks = Path(folder), {}
    for name in dict.fromkeys(result["task"] for result in results):
        settings = defaultdict(list)
        for result in (result for result in results if result["task"] == name):
            settings[str(result["setting"])].append(result)
        runs = max(settings.values(), key=lambda runs: statistics.median_low(run["metrics"]["main"] for run in runs))
        runs.sort(key=lambda run: run["metrics"]["main"])
        scores, middle = [run["metrics"]["main"] for run in runs], runs[(len(runs) - 1) // 2]
        tasks[name] = {**middle, "median": middle["metrics"]["main"], "mean": statistics.mean(scores),
                       "sd": statistics.stdev(scores) if len(runs) > 1 else None, "n": len(runs),
                       "diverged": sum(bool(run["diverged"]) for run in runs)}
        if (folder / "jobs" / middle["job"]).exists():
            shutil.copytree(folder / "jobs" / middle["job"], folder / name, dirs_exist_ok=True)
    scores = {name: entry["metrics"] for name, entry in tasks.items() if name in glue.TASKS}
    if "mismatched" in scores.get("MNLI", {}):
        scores["MNLI-mm"] = {"main": scores["MNLI"]["mismatched"]}
        scores["MNLI"] = {key: value for key, value in scores["MNLI"].items() if key != "mismatched"}
    return {"tasks": tasks, "averages": glue.averages(scores) if scores else {}}


def tells_nothing(scores, constants=None):
    """What a search says at the end of a round, from its candidates' [{task: score}] and constants, {task: what one
    answer to every row scores}: a line on the tasks at which all have the same score, or none more than that; or "".
    """
    names, parts = scores[0] if len(scores) > 1 else (), []
    tied = [name for name in names if len({found[name] for found in scores}) == 1]
    below = [name for name in names if max(found[name] for found in scores) <= (constants or {}).get(name, -math.inf)]
    if tied:
        parts.append(f"all {len(scores)} candidates have the same score on {', '.join(tied)}")
    if below:
        parts.append(f"none of {len(scores)} candidates is above one answer to every row on {', '.join(below)}")
    tail = "which tells nothing of them; take another task, or train longer"
    return f"warning: {', and '.join(parts)}, {tail}" if parts else ""


def end_tuning(run, cfg):
    """Print where a finished fine-tuning is, and for each task a command that predicts a file."""
    names = [name for name in run.finished["tasks"]
             if (run.folder / name / "checkpoint.pt").exists()]
    if names:
        run.ends(cfg, [f"{name}/checkpoint.pt" for name in names])
    for name in names:
        run.next(cfg, "--predict", file_of(name, cfg), "--init", run.folder / name,
                 "--out", f"{run.folder}-answers/{name}")


def shown(scores):
    """Scores, which are shares, as they are shown: in percent."""
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())


def show(result, ranks, nine=""):
    """Print what summarise returned, in percent, with the names of the metrics; averages where they are complete.
    nine: what to call AutoBERT-Zero's mean of nine numbers, which other papers have not."""
    for name, entry in result["tasks"].items():
        several = (f" (median of {entry['n']}, mean {100 * entry['mean']:.2f}, sd {100 * entry['sd']:.2f})"
                   if entry["n"] > 1 else "")
        found = {key: value for key, value in entry["metrics"].items()
                 if key != "main" and "total" not in key and "thresh" not in key}
        main = entry.get("headline", "score")
        headline = f"{'mean of ' * ('+' in main)}{main} {100 * entry['median']:.2f}"
        others = "".join(f", {shown({key: found[key]})}" for key in found if key != main)
        diverged = f"; {entry['diverged']} diverged" if entry["diverged"] else ""
        beside = f"; majority baseline {100 * entry['constant']:.2f}" if "constant" in entry else ""
        answer = entry.get("one_answer")
        alone = f", and every prediction is {answer}" if answer else ""
        say(ranks, f"{name:9} {headline}{several}{others}{beside}{alone}{diverged}")
    for name, words in (("paper_avg", nine), ("glue_avg", "mean of GLUE's nine tasks")):
        missing = result["averages"].get(name.replace("avg", "missing"))
        if words and result["averages"].get(name) is not None and not missing:
            say(ranks, f"{words}: {100 * result['averages'][name]:.2f}")
