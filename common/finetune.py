"""Fine-tuning on GLUE and SQuAD: tasks, the training loop, prediction, and several runs per task. A
paper file supplies a model, its loss and a table of recipes.

    task = open_task("CoLA", cfg, tokenizer, RECIPES)
    tuning = Tuning(task, optimizer, schedule, key=(seed,))
    state = fine_tune(model, tuning, cfg, device)
    outputs = predict(model, task, "dev", cfg, device)      # in the order of the file
    task.score("dev", outputs)                              # {"main": 0.61, "matthews": 0.61}
    task.write("test", outputs, folder)                     # the leaderboard's file

A model maps a batch to outputs, model(batch), and to a loss, model.loss(batch). A batch is a
dictionary of tensors: ids, token_type_ids (B, T), lengths (B,) unless all are full, labels (B,).
Spans have start, end (B,), p_mask (B, T), impossible (B,). With C choices, ids is (B, C, T).

A fine-tuning command is a list of jobs, each one run of a task. The processes share the jobs.
jobs/JOB.json has the metrics of a job, and jobs/JOB/ its predictions and model. TASK/ is a copy of
the median job's folder.
"""
import csv
import dataclasses
import functools
import hashlib
import io
import math
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch.nn.functional import pad

from common import folder_task, glue, squad
from common.cli import Diverged, UserError
from common.files import existing, read_json, write_atomic, write_json
from common.folder_task import FolderName
from common.launch import (
    Ranks, autocast, on_main, print0, seed_everything, send, to_host)
from common.run import Loop, keep_model, progress, set_rate
from common.tasks import Recipe, Task, batches

# tasks by duration, the longest first
LONGEST_FIRST = "QQP MNLI RACE QNLI SQuAD2.0 SQuAD1.1 SST-2 CoLA STS-B WNLI MRPC RTE".split()
EVALUATED = 2 ** 15  # tokens in an evaluated batch. ALBERT xxlarge makes tensors of 2.7 GB of them
CLIP = 1.0  # largest gradient norm, as in BERT
SQUADS = ("SQuAD1.1", "SQuAD2.0")
CORRELATIONS = "pearson", "spearman", "pearson+spearman", "matthews"  # 0 for a constant
NEAR = 0.05  # a correlation that counts as 0
OWN_EPOCHS = 3  # passes over a user's own task, BERT's
ENDINGS = (".tsv", ".csv", ".txt", ".json")  # of an --out of --predict that is a file, not a folder
RECORD = "predicted.json"  # in a folder of predictions: their origin, and a hash of each file


def parse_tasks(text, recipes, cfg, groups=()):
    """The tasks of a text such as "CoLA,squad1.1", in that order. "glue", "squad" and `groups`
    ({word: names}) stand for several. Folders are the user's own tasks, read with --columns and
    --labels. Raises UserError for an unknown name."""
    known = task_words(recipes, groups)
    by_word = {word.lower(): names for word, names in known.items()}
    names = []
    for word in map(str.strip, text.split(",")):
        if word.lower() in by_word:
            names += by_word[word.lower()]
        elif word and Path(word).is_dir():
            name = FolderName(word, cfg.columns, cfg.labels)
            check_name(name, recipes, names)
            names.append(name)
        else:
            raise UserError(f"{word!r}: no such folder or task; choose from {', '.join(known)}, or "
                            "name a folder with train and dev files of your own")
    own = any(isinstance(name, FolderName) for name in names)
    if not own and (cfg.columns or cfg.labels != "auto"):
        raise UserError("--columns, --labels: they are for a folder of your own; leave them out")
    return list(dict.fromkeys(names))


def task_words(recipes, groups):
    """{word: the names of its tasks}."""
    words = {name: [name] for name in recipes}
    words["glue"] = [name for name in recipes if name in glue.TASKS]
    if squads := [name for name in recipes if name in SQUADS]:
        words["squad"] = squads
    return words | dict(groups)


def data_flags(names):
    """The data flags of tasks. The user's own tasks have none."""
    flags = {"RACE": "race", **dict.fromkeys(SQUADS, "squad"), **dict.fromkeys(glue.TASKS, "glue")}
    return sorted({flags[name] for name in names if name in flags})


def data_folder(name, cfg):
    """The value of a task's data flag, "" for the user's own tasks."""
    return "".join(getattr(cfg, flag) for flag in data_flags([name]))


def check_name(name, recipes, names):
    """UserError if another task, known or in `names`, has the name of a user's own task, or if a
    file is missing."""
    if name.lower() in {each.lower() for each in recipes} or data_flags([name]):
        raise UserError(f"{name.path}: {name} is the name of a known task; rename the folder, or "
                        f"give --finetune {name} with the folder that holds it")
    for other in names:
        if other == name and other.path != name.path:
            raise UserError(f"{name.path}: {other.path} has the same name; rename one of them")
    name.files()


def own_recipe(recipes, cfg):
    """The Recipe of a user's own task: SST-2's, with three passes if SST-2's has a number of steps.
    The data determine its main metric."""
    # SST-2 is GLUE's plain classification of one sentence
    recipe = recipes["SST-2"]
    steps = recipe.steps if cfg.dry_run else 0
    return dataclasses.replace(recipe, steps=steps, epochs=recipe.epochs or OWN_EPOCHS, main="")


def task_class(name, kinds=None):
    """The class of a task. kinds: {name: class} of tasks besides GLUE and SQuAD."""
    known = {**dict.fromkeys(glue.TASKS, glue.GlueTask), **dict.fromkeys(SQUADS, squad.SquadTask)}
    return (known | (kinds or {})).get(name, folder_task.FolderTask)


def open_task(name, cfg, tokenizer, recipes, kinds=None, search=False):
    """The Task of a name. Flags finetune_lr, finetune_batch, ... override the recipe.
    --train_examples limits train, and in a dry run every split. kinds: as in task_class. search:
    read only train and dev."""
    flags = {field.name: getattr(cfg, f"finetune_{field.name}", None)
             for field in dataclasses.fields(Recipe)}
    given = {name: value for name, value in flags.items() if value is not None}
    if "epochs" in given:
        given["steps"] = 0
    recipe = recipes.get(name) or own_recipe(recipes, cfg)
    recipe = dataclasses.replace(recipe, **given)
    kind = task_class(name, kinds)
    source = kind.read(name, data_folder(name, cfg), search)
    for split, examples in source.examples.items():
        if cfg.train_examples and (split == "train" or cfg.dry_run):
            source.examples[split] = kind.choose(examples, cfg.train_examples)
    return kind(name, source, tokenizer, recipe)


def training_texts(names, cfg):
    """The different texts of the training examples of tasks, in order."""
    texts = {}
    for name in names:
        kind = task_class(name)
        for example in kind.read(name, data_folder(name, cfg), search=True).examples["train"]:
            texts |= dict.fromkeys(kind.texts(example))
    return [*texts]


def task_files(names, flag, folder, search):
    """The files and folders of tasks in --glue or --squad. Raises UserError if one is missing."""
    if flag == "squad":
        return [path for name in names if name in SQUADS
                for path in squad.files(folder, name).values()]
    there = [name for name in glue.TASKS if Path(folder, name).is_dir()]
    missing = sorted({*names} & {*glue.TASKS} - {*there})
    if there and missing:
        raise UserError(f"--glue {folder}: it lacks {', '.join(missing)}; name tasks that it "
                        f"has: {','.join(there)}")
    return [path for name in names if name in glue.TASKS
            for path in glue.files(folder, name, search).values()]


# Training and prediction


@torch.no_grad()
def predict(model, task, split, cfg, device, size=None):
    """model(batch) for all examples of a split in the order of the file, float32 on the CPU. size:
    of a batch, or None. Raises Diverged if an output is NaN or infinite.

    A model gives a tensor (B, ...) or a tuple of them. Spans (B, T, ...) of shorter batches are
    padded with -1e4.
    """
    features = task.splits[split]
    longest = int(features.lengths.max())
    inputs = features.lengths[0].size  # an example of RACE has four
    size = size or min(4 * task.recipe.batch, max(1, EVALUATED // longest // inputs))
    index = []
    collected = []
    model.eval()
    number = math.ceil(len(features) / size)
    bar = progress(Ranks(0, 1, device), number, f"{task.name} {split}", inside=True)
    for batch in batches(features, size):
        with autocast(cfg.dtype, device):
            output = model(send(batch, device))
        width = batch["ids"].shape[1]
        parts = output if isinstance(output, tuple) else (output,)
        index.append(batch["index"])
        collected.append([
            pad_width(part.float(), longest) if task.kind == "span" and part.shape[1:2] == (width,)
            else part.float() for part in parts])
        bar.update()
    bar.close()
    order = torch.cat(index).argsort()
    # the only wait for a GPU
    outputs = [torch.cat(column).cpu()[order] for column in zip(*collected)]
    if not all(part.isfinite().all() for part in outputs):
        raise Diverged(f"{task.name}: a prediction for {split} is NaN or infinite")
    return tuple(outputs) if isinstance(output, tuple) else outputs[0]


def pad_width(part, longest):
    """(B, T, ...) -> (B, longest, ...): padded with -1e4, or cut if T was rounded up."""
    return pad(part, (0, 0) * (part.dim() - 2) + (0, longest - part.shape[1]), value=-1e4)


@dataclasses.dataclass
class Tuning:
    """The settings for fine-tuning a model on a task."""
    task: Task
    optimizer: torch.optim.Optimizer
    schedule: Callable  # schedule(step, steps, warmup): fraction of the peak learning rate
    key: tuple  # the seed and other parts of the random key
    accumulate: int = 1  # micro-batches per step
    evaluate_at: Collection = ()  # steps after which dev is scored


def backward(model, batch, accumulate, cfg, device):
    """Add the gradients of the mean loss of a batch, in `accumulate` micro-batches. Returns the
    loss."""
    total = 0.0
    columns = [value.chunk(accumulate) for value in batch.values()]
    for values in zip(*columns):
        micro_batch = dict(zip(batch, values))
        weight = len(micro_batch["ids"]) / len(batch["ids"])
        with autocast(cfg.dtype, device):
            loss = model.loss(micro_batch) * weight
        loss.backward()
        total += loss.detach()
    return total


def fine_tune(model, tuning, cfg, device, run=None, file=None):
    """Train a model on a task. Returns a dictionary: "diverged", None or the reason, and with
    evaluate_at also "best", the weights with the best score, and "score".

    run: the run of the job, whose log gets a line at each evaluation, or None. file: the checkpoint
    to continue from, or None."""
    task = tuning.task
    loop = Loop(
        run, "finetune", cfg, ranks=Ranks(0, 1, device), steps=task.steps, file=file,
        evaluate_at=tuning.evaluate_at, save_at=tuning.evaluate_at, model=model,
        optimizer=tuning.optimizer)
    state = loop.state
    sent = (send(batch, device) for batch in task.batches(tuning.key[0], loop.begin))
    diverged = None
    try:
        for step, batch in loop(sent):
            model.train()
            rate = task.recipe.lr * tuning.schedule(step, task.steps, task.recipe.warmup)
            set_rate(tuning.optimizer, rate)
            seed_everything(*tuning.key, step)
            loss = backward(model, batch, tuning.accumulate, cfg, device)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            tuning.optimizer.step()
            tuning.optimizer.zero_grad()
            dev = {}
            if loop.evaluates(step):
                dev["score"] = task.score("dev", predict(model, task, "dev", cfg, device))["main"]
                if dev["score"] > state.get("score", -math.inf):
                    state |= {**dev, "best": to_host(model.state_dict())}
            loop.after(step, {"loss": loss, "norm": norm}, dev=dev, lr=rate)
    except Diverged as error:
        diverged = f"{task.name}: {error}"
    return {"diverged": diverged, "best": state.get("best"), "score": state.get("score")}


def finetune_job(model, tuning, cfg, folder, run):
    """One run of a task, continued if stopped. Returns (result, outputs by split). `folder` gets
    the official files. If training diverges, uses the best weights so far. Without any, scores are
    -1 and there are no outputs. run: run.alone(job)."""
    task = tuning.task
    device = run.ranks.device
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "training.pt"
    state = fine_tune(model, tuning, cfg, device, run, checkpoint.absolute())
    metrics = dict.fromkeys(task.metrics, -1.0)
    outputs = {}
    if state["best"]:
        model.load_state_dict(send(state["best"], device))
    try:
        if state["best"] or not state["diverged"]:
            outputs = {name: predict(model, task, name, cfg, device) for name in task.splits
                       if name != "train"}
            metrics = write_outputs(task, outputs, folder)
    except Diverged as error:
        state["diverged"] = str(error)
    checkpoint.unlink(missing_ok=True)
    result = {"job": folder.name, "task": task.name, "metrics": metrics,
              "diverged": state["diverged"], **task.context()}
    return result, outputs


def write_outputs(task, outputs, folder):
    """Write the official files of {split: outputs}. Returns dev's metrics, and for other labelled
    splits "SPLIT METRIC"."""
    metrics = task.score("dev", outputs["dev"])
    for split, each in outputs.items():
        task.write(split, each, folder)
        if split != "dev" and task.splits[split].labels is not None:
            scores = task.score(split, each)
            metrics |= {f"{split} {name}": value for name, value in scores.items()
                        if name != "main"}
    return metrics


# --predict: a file of the user's own


def open_file(command, cfg, tokenizer, recipes, kinds=None):
    """The Task with one split, the examples of --predict's file, for the model of --init: RUN/TASK,
    or in albert.py a folder of --export."""
    path = existing(command.value, "name a file of your own")
    record = read_json(Path(cfg.init) / "config.json", "name RUN/TASK, a model of --finetune")
    settings = record.get("settings", record)
    name = record.get("task") or record.get("finetuning_task", "")
    own = folder_task.read_spec(cfg.init)
    tuned = record.get("action") == "finetune" or "program" not in record
    if not tuned or not own and name not in recipes:
        raise UserError(f"--init {cfg.init}: not a fine-tuned model with a head; name "
                        "RUN/TASK of a --finetune")
    length = settings.get("finetune_length")
    if "finetune_length" in command.given:
        length = cfg.finetune_length
    recipe = own_recipe(recipes, cfg) if own else recipes[name]
    recipe = dataclasses.replace(recipe, length=length or recipe.length)
    kind = folder_task.FolderTask if own else task_class(name, kinds)
    return kind(name, kind.read_file(name, path, cfg.init), tokenizer, recipe)


def answer_path(command, cfg):
    """The path for the predictions of --predict: --out, or MODEL-predictions/FILE next to the
    model. Those of --evaluate are in MODEL-evaluation/."""
    model = Path(cfg.init)
    if model.name in ("", ".."):  # such as "."
        model = model.resolve()
    kind = "evaluation" if command.action == "evaluate" else "predictions"
    folder = model.with_name(f"{model.name}-{kind}") / Path(command.value).stem
    return Path(cfg.out) if "out" in command.given else folder


def is_file_name(path, endings):
    """Whether --predict writes one file, not a folder."""
    return not path.is_dir() and (path.suffix.lower() in endings or path.exists())


def origin_of(command, cfg):
    """The model and the file of predictions."""
    return {"model": str(Path(cfg.init).resolve()), "file": str(Path(command.value).resolve())}


def hashes(folder):
    """{name: hash} of the files in a folder of predictions, without RECORD and hidden files."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files if path.name != RECORD and path.name[0] != "."}


def check_answers(command, cfg, endings=ENDINGS):
    """UserError if the predictions of --predict would replace anything but earlier ones of the same
    file by the same model. Call it before the work."""
    path = answer_path(command, cfg)
    if is_file_name(path, endings):
        if path.exists():
            raise UserError(f"--out {path}: it exists already; choose another name")
        return
    if (path / "config.json").exists():
        raise UserError(f"--out {path}: it has a run or a model; choose another folder")
    record = read_json(path / RECORD) if (path / RECORD).exists() else {}
    origin = record.get("origin", origin_of(command, cfg))
    if origin != origin_of(command, cfg):
        raise UserError(f"{path}: it has the predictions for {origin['file']} by "
                        f"{origin['model']}; choose another --out")
    for name, content in hashes(path).items():
        if record.get("files", {}).get(name) != content:
            raise UserError(f"{path / name}: --{command.action} has not written this file; choose "
                            "another --out")


def keep_answers(command, cfg, write, endings=ENDINGS):
    """Write the predictions of --predict: write(folder) writes files and returns the path of the
    first, of which alone a file of --out has the content. Returns the path."""
    path = answer_path(command, cfg)
    if not is_file_name(path, endings):
        path.mkdir(parents=True, exist_ok=True)
        first = write(path)
        write_json(path / RECORD, {"origin": origin_of(command, cfg), "files": hashes(path)})
        return first
    with tempfile.TemporaryDirectory() as folder:
        first = write(Path(folder))
        text = first.read_bytes().decode()
    ending = path.suffix.lower()
    if ending == ".csv" and first.suffix == ".tsv":
        lines = text.split("\n")[:-1]
        text = folder_task.csv_text(line.split("\t") for line in lines)
    elif ending == ".tsv" and first.suffix == ".csv":  # has no place for tabs and line ends
        rows = csv.reader(io.StringIO(text, newline=""))
        text = "".join("\t".join(map(one_line, row)) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
    return path


def one_line(text):
    """A text with spaces for its tabs and line ends."""
    return re.sub(r"[\t\r\n]+", " ", text)


def answer_file(command, cfg, task, outputs):
    """Write the predictions for open_file's task. Returns a line that names the file."""
    split, = task.examples
    path = keep_answers(command, cfg, lambda folder: task.write(split, outputs, folder))
    return f"{path}: predictions of {cfg.init} for {command.value}"


# Several runs of several tasks


@dataclasses.dataclass(frozen=True)
class Method:
    """What a paper supplies for fine-tuning and prediction.

    recipes(cfg): {task: Recipe}. load_pretrained(cfg, command): as in the paper file.
    begin(task, source, cfg, number, device): the model of run `number` of a task, moved to the
    device, its Tuning, a line on its weights, and the number of trained positions or None.
    load(task, source, cfg): the model of a fine-tuned source, to predict. keep(task, outputs,
    folder): keeps more files of a job, or None. means: as in summarise. kinds: {name: class} of
    tasks besides GLUE and SQuAD. from_mnli: tasks that start from MNLI's best run, if it is among
    the tasks."""
    recipes: Callable
    load_pretrained: Callable
    begin: Callable
    load: Callable
    keep: Callable | None = None
    means: dict = dataclasses.field(default_factory=dict)
    kinds: dict = dataclasses.field(default_factory=dict)
    from_mnli: tuple = ()


def finetune_tasks(method, names, source, data, cfg, run):
    """Fine-tune all tasks, cfg.runs times each, distributed over the processes. Returns the
    summary."""
    jobs = {f"{name}-{number}": name for name in names for number in range(cfg.runs)}
    after_mnli = {job for job, name in jobs.items() if name in method.from_mnli and "MNLI" in names}

    @functools.lru_cache(maxsize=1)  # the runs of a task follow each other
    def task(name):
        return open_task(name, cfg, data.tokenizer, method.recipes(cfg), method.kinds)

    def run_jobs(chosen, start):
        return run.each(
            "jobs", [job for job in jobs if job in chosen],
            lambda job: train_task(method, start, task(jobs[job]), data, cfg, run, job),
            cost=lambda job: -[*LONGEST_FIRST, jobs[job]].index(jobs[job]))  # an unknown task last

    results = run_jobs(jobs.keys() - after_mnli, source)
    if after_mnli:
        mnli = [result for result in results.values()
                if result["task"] == "MNLI" and not result["diverged"]]
        if mnli:
            best = run.folder / "jobs" / max(mnli, key=main_score)["job"]
            settings = dataclasses.replace(cfg, init=str(best))
            source = method.load_pretrained(settings, run.command)
        results |= run_jobs(after_mnli, source)
    return on_main(run.ranks, summarise, run.folder, [*results.values()], method.means)


def train_task(method, source, task, data, cfg, run, job):
    """Run TASK-NUMBER of a task: training, then predictions. jobs/JOB/ keeps the model, predictions
    and official files."""
    folder = run.folder / "jobs" / job
    number = int(job.rpartition("-")[2])
    model, tuning, note, trained = method.begin(task, source, cfg, number, run.ranks.device)
    print0(run.ranks, f"{job}: {run.start_line(note, f'jobs/{job}/training.pt')}")
    result, outputs = finetune_job(model, tuning, cfg, folder, run.alone(job))
    if outputs:
        if method.keep:
            method.keep(task, outputs, folder)
        keep_model(folder, run.command, cfg, data.tokenizer, trained, task.name, model=model)
    return result


def predict_file(method, source, tokenizer, cfg, command, ranks):
    """--predict: the user's own file, with RUN/TASK of --init. Prints the file of the
    predictions."""
    on_main(ranks, check_answers, command, cfg)
    task = open_file(command, cfg, tokenizer, method.recipes(cfg), method.kinds)
    model = method.load(task, source, cfg).to(ranks.device)
    outputs = predict(model, task, *task.splits, cfg, ranks.device)
    print0(ranks, on_main(ranks, answer_file, command, cfg, task, outputs))


def summarise(folder, results, means):
    """The summary of run_jobs' results: {"tasks": {task: the median job's entries, median, mean,
    sd, n, diverged}, "means": {name: mean}}. Copies the median job's folder to folder/TASK.
    Includes the scores of diverged jobs.

    means: {name: its numbers}. A number is a task's main score ("RTE"), one of its metrics
    ("SQuAD1.1 f1"), or a tuple of numbers, for their mean. A mean without all of its numbers is
    left out."""
    folder = Path(folder)
    tasks = {}
    for name in dict.fromkeys(result["task"] for result in results):
        runs = sorted((result for result in results if result["task"] == name), key=main_score)
        scores = [main_score(run) for run in runs]
        median = runs[(len(runs) - 1) // 2]
        tasks[name] = {
            **median,
            "median": main_score(median),
            "mean": statistics.mean(scores),
            "sd": statistics.stdev(scores) if len(runs) > 1 else None,
            "n": len(runs),
            "diverged": sum(bool(run["diverged"]) for run in runs),
        }
        shutil.copytree(folder / "jobs" / median["job"], folder / name, dirs_exist_ok=True)
    numbers = {name: main_score(entry) for name, entry in tasks.items()}
    for name, entry in tasks.items():
        numbers |= {f"{name} {metric}": value for metric, value in entry["metrics"].items()}
    computed = {name: mean_of(numbers, names) for name, names in means.items()}
    computed = {name: mean for name, mean in computed.items() if not math.isnan(mean)}
    return {"tasks": tasks, "means": computed}


def mean_of(numbers, name):
    """The number of a name, or the mean of a tuple of names. NaN if one is missing."""
    if isinstance(name, tuple):
        return statistics.mean(mean_of(numbers, part) for part in name)
    return numbers.get(name, math.nan)


def main_score(result):
    return result["metrics"]["main"]


def is_demo(paths):
    """Whether the value of a data flag is demo data: demo.json is in it or in a parent folder."""
    paths = [paths] if isinstance(paths, str) else paths
    return all(any(Path(folder, "demo.json").is_file()
                   for folder in Path(path, "file").resolve().parents)
               for path in paths)


def shown_name(name, cfg):
    """The printed name of a task: CoLA-demo on demo data, whose scores are not CoLA's."""
    folder = data_folder(name, cfg)
    return f"{name}-demo" if folder and is_demo(folder) else name


def percent(scores):
    """Scores, which are fractions, as percent."""
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())


def score_hint(entry):
    """A hint on a task's score in a summary, "" for a good score."""
    near = NEAR if entry["headline"] in CORRELATIONS else 0
    if entry.get("constant"):
        return "all labels of dev are equal, so its score shows nothing; add other labels to dev"
    baselines = {"the majority baseline": entry["majority_baseline"] + near}
    if entry.get("words_baseline"):
        baselines["a bag of words"] = entry["words_baseline"]["main"]
    above = [name for name, score in baselines.items() if entry["median"] <= score]
    if not above:
        return ""
    return (f"no better than {' and '.join(above)}; start from a released model (--init), raise "
            "--finetune_epochs, or pre-train longer")


def print_summary(run, cfg):
    """Print the scores of a finished fine-tuning in percent, next to their baselines, and their
    means."""
    result = run.result
    kept = [name for name in result["tasks"] if (run.folder / name / "checkpoint.pt").exists()]
    for name, entry in result["tasks"].items():
        scores = {entry["headline"]: entry["median"]} | {
            key: value for key, value in entry["metrics"].items()
            if key != "main" and "thresh" not in key}
        line = f"{shown_name(name, cfg):14} {percent(scores)}"
        line += f"; majority baseline {100 * entry['majority_baseline']:.2f}"
        if words := entry.get("words_baseline"):
            line += f", bag of words {100 * words['main']:.2f} ({words['examples']:,} examples)"
        if entry["n"] > 1:
            kind = "median" if entry["n"] % 2 else "lower median"
            line += f"; {kind} of {entry['n']}, mean {100 * entry['mean']:.2f}"
            line += f", sd {100 * entry['sd']:.2f}"
        if entry["diverged"]:
            line += f"; {entry['diverged']} diverged, lower --finetune_lr"
        for split, count in entry.get("skipped", {}).items():
            line += f"; {count} malformed lines of {split} were skipped"
        print0(run.ranks, line)
        hint = score_hint(entry)
        if hint and not cfg.dry_run:
            print0(run.ranks, f"{name}: {hint}")
        if "description" in entry:
            print0(run.ranks, f"{name}: {entry['description']}")
        if name in kept:
            words = "--predict", entry.get("file", "FILE"), "--init", run.folder / name
            run.print_next(cfg, f"{name}/checkpoint.pt", *words)
        elif not entry["diverged"]:  # --ensemble has only predictions
            run.print_next(cfg, name)
    if kept:
        print0(run.ranks, "--predict takes a file of your own in this format; it needs no labels")
    if result["means"]:
        print0(run.ranks, percent(result["means"]))
