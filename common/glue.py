"""GLUE: nine tasks from their official TSV files, as token batches, scores and leaderboard files.

The official files are not CSV: quotes are plain text and often unbalanced, a file may begin with a
byte-order mark and have Windows line ends, and some lines of QQP have lost columns. So a line is
split at its tabs, and nothing else is interpreted.

    examples, skipped = load(folder, "CoLA", "train")
    train = encode(examples, tokenizer, max_length=128)
    for batch in tasks.batches(train, 32, seed=1, epoch=0): ...
"""
import contextlib
import dataclasses
import statistics
import warnings
from array import array
from collections import namedtuple
from functools import cached_property
from pathlib import Path

import numpy as np

from common import metrics, tasks
from common.cli import UserError
from common.files import existing, read_text, write_atomic


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """The labels, columns and metrics of a task, for Source.spec."""
    name: str
    labels: tuple  # names in the order of the class numbers, () for a score from 0 to 5
    text: tuple  # names of the columns of the sentences, one or two
    metrics: tuple  # the main one first
    header: tuple = ()  # names of the columns of train and dev, for files without them

    @property
    def classes(self):
        """Outputs of a model: the number of labels, 1 for regression."""
        return len(self.labels) or 1

    @property
    def regression(self):
        return not self.labels


LABELS = ("label", "Quality", "score", "is_duplicate", "gold_label")  # columns of labels
PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {task.name: task for task in (
    TaskSpec("CoLA", ("0", "1"), ("sentence",), ("matthews",),
             header=("source", "label", "mark", "sentence")),
    TaskSpec("SST-2", ("0", "1"), ("sentence",), ("accuracy",)),
    TaskSpec("MRPC", ("0", "1"), ("#1 String", "#2 String"), ("f1", "accuracy")),
    TaskSpec("STS-B", (), PAIR, ("spearman", "pearson")),
    TaskSpec("QQP", ("0", "1"), ("question1", "question2"), ("f1", "accuracy")),
    TaskSpec("MNLI", ("contradiction", "entailment", "neutral"), PAIR, ("accuracy",)),
    TaskSpec("QNLI", ENTAILMENT, ("question", "sentence"), ("accuracy",)),
    TaskSpec("RTE", ENTAILMENT, PAIR, ("accuracy",)),
    TaskSpec("WNLI", ("0", "1"), PAIR, ("accuracy",)),
)}
MOST_SKIPPED = 0.01  # fraction of malformed lines in train or dev
FIX = "point --glue at the folder that holds the tasks' folders"
MNLI_FILES = {
    "dev": "dev_matched",
    "test": "test_matched",
    "test_diagnostic": "../diagnostic/diagnostic",  # AX, for the leaderboard
}


# texts: one or two sentences. label: class number or score, None in test
Example = namedtuple("Example", "texts label")


# Files


def path_of(folder, name, split):
    """The file of a split. MNLI's dev and test are the matched ones."""
    file = MNLI_FILES.get(split, split) if name == "MNLI" else split
    return Path(folder) / name / f"{file}.tsv"


def files(folder, name, search=False):
    """{split: path} of a task. search: only train and dev. Test files and AX are optional. Raises
    UserError if another file is missing."""
    splits = ["train", "dev", "test"]
    if name == "MNLI":
        splits = ["train", "dev", "dev_mismatched", "test", "test_mismatched", "test_diagnostic"]
    if search:
        splits = ["train", "dev"]
    paths = {split: path_of(folder, name, split) for split in splits}
    return {split: existing(path, FIX) for split, path in paths.items()
            if not split.startswith("test") or path.exists()}


def read_lines(path):
    """(line number, cells) of each line of a TSV file, without empty lines at its end."""
    for number, line in enumerate(read_text(path, FIX).rstrip("\r\n").split("\n"), 1):
        yield number, line.rstrip("\r").split("\t")


def warn_about_lines(path, numbers, width, treatment):
    """One warning for all lines with another number of columns than `width`."""
    if numbers:
        warnings.warn(f"{path}:{numbers[0]}: {len(numbers)} lines do not have {width} columns and "
                      f"{treatment} (this is the first)", stacklevel=3)


def parse_label(task, cell, place):
    """A label as class number or score. Raises UserError for other text."""
    with contextlib.suppress(ValueError):
        value = task.labels.index(cell.strip()) if task.labels else float(cell)
        if task.labels or 0 <= value <= 5:
            return value
    choices = ", ".join(task.labels) or "a number from 0 to 5"
    raise UserError(f"{place}: {task.name} has no label {cell!r}; it must be {choices}")


def load(folder, name, split):
    """Read one split of a task: (a list of Example, number of skipped lines).

    folder: has one folder per task. split: train, dev, test, and for MNLI also dev_mismatched,
    test_mismatched and test_diagnostic. Skips lines of train and dev with fewer columns than the
    header, or with text in more, up to a hundredth of the file. Raises UserError for more, and for
    an unknown label.
    """
    task = TASKS[name]
    path = path_of(folder, name, split)
    if split.startswith("test"):
        return load_unlabelled(path, task), 0
    lines = read_lines(path)
    header = task.header or next(lines, (1, []))[1]
    width = len(header)
    labels = [name for name in header if name in LABELS]
    if not {*task.text} <= {*header} or len(labels) != 1:
        raise UserError(f"{path}:1: the first line must name the columns {', '.join(task.text)} "
                        f"and label, separated by tabs, as in the official file of {task.name}")
    columns = [header.index(name) for name in (*task.text, *labels)]
    examples = []
    skipped = []
    for number, cells in lines:
        if len(cells) < width or any(cells[width:]):
            skipped.append(number)
            continue
        *texts, label = [cells[column] for column in columns]
        label = parse_label(task, label, f"{path}:{number}")
        examples.append(Example(tuple(texts), label))
    if not examples:
        raise UserError(f"{path}: no line has the {width} columns of {task.name}; "
                        "take the official GLUE file")
    if len(skipped) > MOST_SKIPPED * (len(skipped) + len(examples)):
        raise UserError(
            f"{path}:{skipped[0]}: {len(skipped)} of {len(skipped) + len(examples)} lines do not "
            f"have {width} columns (this is the first); a tab in a text separates columns; take "
            "the official GLUE file, or give your own task as a folder of .csv files")
    warn_about_lines(path, skipped, width, "were skipped")
    return examples, len(skipped)


def load_unlabelled(path, task):
    """Read a test file, or a user's own file, whose first line names the task's text columns.

    Every line needs a prediction. Missing text counts as empty, text after the last column is
    ignored, and one warning counts such lines.
    """
    if Path(path).suffix.lower() == ".csv":  # its quotes would stay in the text
        raise UserError(f"{path}: {task.name} reads .tsv files: tabs, no quotes; save it as one")
    lines = list(read_lines(path))
    header = lines.pop(0)[1] if lines else []
    if not {*task.text} <= {*header} or not lines:
        raise UserError(f"{path}:1: no column is named {' or '.join(task.text)}, or no line "
                        f"follows; the first line must name {task.name}'s columns, separated by "
                        "tabs")
    width = len(header)
    odd = [number for number, cells in lines if len(cells) != width]
    warn_about_lines(path, odd, width, "are kept, filled with empty text or cut")
    columns = [header.index(name) for name in task.text]
    return [Example(tuple((cells + [""] * width)[column] for column in columns), None)
            for _, cells in lines]


# Features


@dataclasses.dataclass
class Features:
    """Tokenised examples, cut to max_length."""
    pairs: list  # (A, B) or (A,) of each example: token ids in arrays, 4 bytes per token
    labels: np.ndarray | None  # (n,) int64 or float32, None in test
    specials: tuple  # ids of [CLS], [SEP], padding
    max_length: int

    def __len__(self):
        return len(self.pairs)

    @cached_property
    def lengths(self):
        """(n,) int64 tokens of the input, special ones included."""
        return np.array([1 + sum(len(part) + 1 for part in pair) for pair in self.pairs])

    def batch(self, index, width):
        """ids, token_type_ids (B, width), lengths (B,), all int64, and labels (B,) if any."""
        ids, token_type_ids = tasks.join([self.pairs[i] for i in index], self.specials, width)
        batch = {"ids": ids, "token_type_ids": token_type_ids, "lengths": self.lengths[index]}
        if self.labels is not None:
            batch["labels"] = self.labels[index]
        return batch


def cut_pair(first, second, room):
    """Cut the longer of two sequences at its end until both together have at most `room` tokens. On
    a tie the second is cut."""
    kept = min(len(first), max(room - len(second), (room + 1) // 2))
    return first[:kept], second[:room - kept]


def encode(examples, tokenizer, max_length):
    """Examples -> Features: [CLS] A [SEP] (B [SEP]) of at most max_length tokens. A warning counts
    cut examples."""
    sides = [tokenizer.encode_batch(texts)
             for texts in zip(*(example.texts for example in examples))]
    room = max_length - 1 - len(sides)
    pairs = []
    too_long = 0
    for pair in zip(*sides):
        too_long += sum(map(len, pair)) > room
        cut = cut_pair(*pair, room) if pair[1:] else [pair[0][:room]]
        pairs.append([array("i", ids) for ids in cut])
    if too_long:
        warnings.warn(f"{too_long} of {len(pairs)} examples are longer than {max_length} tokens "
                      "and are cut (--finetune_length)", stacklevel=2)
    labels = None
    if examples[0].label is not None:
        kind = np.float32 if isinstance(examples[0].label, float) else np.int64
        labels = np.array([example.label for example in examples], kind)
    return Features(pairs, labels, tokenizer.specials, max_length)


# Scores


def predictions_of(task, outputs):
    """Class numbers, or scores of a regression, (n,). outputs: logits (n, classes), or scores (n,)
    or (n, 1)."""
    outputs = np.asarray(outputs, dtype=np.float64)
    return outputs.reshape(-1) if task.regression else outputs.argmax(axis=-1)


def score(task, outputs, labels):
    """{metric: value} of the official metrics, as fractions. outputs: as in predictions_of."""
    predictions = predictions_of(task, outputs)
    return {name: getattr(metrics, name)(predictions, labels) for name in task.metrics}


def write_submission(folder, task, outputs, split):
    """Write the leaderboard's file of a task, such as CoLA.tsv or MNLI-mm.tsv. Returns its path.

    outputs: as in predictions_of, in the order of the test file. Labels are written by name, scores
    clipped to 0..5.
    """
    names = {"test": "MNLI-m", "test_mismatched": "MNLI-mm", "test_diagnostic": "AX"}
    name = names[split] if task.name == "MNLI" else task.name
    predictions = predictions_of(task, outputs)
    if task.regression:
        cells = [f"{value:.3f}" for value in np.clip(predictions, 0, 5)]
    else:
        cells = [task.labels[number] for number in predictions]
    return write_cells(Path(folder) / f"{name}.tsv", cells)


def write_cells(path, cells):
    """Write one prediction per line, after its number. Returns the path."""
    lines = [f"{index}\t{cell}\n" for index, cell in enumerate(cells)]
    write_atomic(path, "index\tprediction\n" + "".join(lines))
    return path


# The task


class GlueTask(tasks.Task):
    """A task of GLUE. Its splits are those with a file. The file of --predict is the only split,
    "test"."""

    def __init__(self, name, source, tokenizer, recipe):
        self.task = source.spec
        splits = {split: encode(part, tokenizer, recipe.length)
                  for split, part in source.examples.items()}
        kind = "value" if self.task.regression else "class"
        metrics = *self.task.metrics, "main"
        if not recipe.main:  # of a user's own task
            recipe = dataclasses.replace(recipe, main=self.task.metrics[0])
        super().__init__(
            self.task.name, kind, self.task.classes, metrics, recipe, source, splits)

    @staticmethod
    def read(name, folder, search=False):
        paths = files(folder, name, search)
        examples = {}
        skipped = {}
        for split in paths:
            examples[split], count = load(folder, name, split)
            if count:
                skipped[split] = count
        return tasks.Source(examples, paths.get("test", "FILE"), TASKS[name], skipped)

    @staticmethod
    def read_file(name, path, model):
        return tasks.Source({"test": load_unlabelled(path, TASKS[name])}, path, TASKS[name])

    def context(self):
        labels = self.splits["dev"].labels
        return {**super().context(), "constant": bool((labels == labels[0]).all())}

    def score(self, split, outputs):
        """The official metrics as fractions, and "main". outputs: logits (n, classes) or scores (n,
        1)."""
        scores = score(self.task, outputs, self.splits[split].labels)
        main = statistics.mean(scores[name] for name in self.recipe.main.split("+"))
        return {**scores, "main": main}

    def write(self, split, outputs, folder):
        """Write the leaderboard's file of a test split. Returns its path."""
        if split.startswith("test"):
            return write_submission(folder, self.task, outputs, split)
