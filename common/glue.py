"""GLUE: nine tasks from their official TSV files, as token batches, scores and leaderboard files.

A task is one row of TASKS: its label names, where the text and the label stand in the files, its metrics. The official
files are not CSV: quotes are plain text and often unbalanced, a file may begin with a byte-order mark and end its lines
the Windows way, and some rows of QQP have lost columns. So a row is a line cut at its tabs, and nothing else is
interpreted.

    train = encode(load(folder, "CoLA", "train"), tokenizer, max_length=128)
    for batch in batches(train, 32, seed=1, epoch=0): ...

Padding all sentences to 128 costs two to four times the work: `batches` puts those of about the same length together.
"""
import warnings
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from common import metrics
from common.cli import UserError
from common.checkpoint import existing, read_text, write_atomic


@dataclass(frozen=True)
class Task:
    """One GLUE task. Column numbers count from 0, -1 is the last; `metrics` begins with the main one."""
    name: str
    labels: tuple  # names in the order of the class numbers; () = a score from 0 to 5
    text: tuple  # columns of the sentences in train and dev, one or two
    label: int  # column of the label in train and dev
    test_text: tuple  # names of the sentences' columns in test, and in a file of the user's own
    metrics: tuple
    columns: int = 0  # train and dev have no header and this many columns; 0 = a header tells

    @property
    def classes(self):
        """Outputs that a model needs: the number of labels, 1 for regression."""
        return len(self.labels) or 1

    @property
    def regression(self):
        return not self.labels


LABELS = ("label", "Quality", "score", "is_duplicate", "gold_label")  # columns of labels
PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {task.name: task for task in (
    Task("CoLA", ("0", "1"), (3,), 1, ("sentence",), ("matthews",), columns=4),
    Task("SST-2", ("0", "1"), (0,), 1, ("sentence",), ("accuracy",)),
    Task("MRPC", ("0", "1"), (3, 4), 0, ("#1 String", "#2 String"), ("f1", "accuracy")),
    Task("STS-B", (), (7, 8), -1, PAIR, ("spearman", "pearson")),
    Task("QQP", ("0", "1"), (3, 4), 5, ("question1", "question2"), ("f1", "accuracy")),
    Task("MNLI", ("contradiction", "entailment", "neutral"), (8, 9), -1, PAIR, ("accuracy",)),
    Task("QNLI", ENTAILMENT, (1, 2), -1, ("question", "sentence"), ("accuracy",)),
    Task("RTE", ENTAILMENT, (1, 2), -1, PAIR, ("accuracy",)),
    Task("WNLI", ("0", "1"), (1, 2), -1, PAIR, ("accuracy",)),
)}
MEND = "point --glue at the folder that holds the tasks' folders"
MNLI_FILES = {"dev": "dev_matched", "test": "test_matched",
              "dev_mismatched": "dev_mismatched", "test_mismatched": "test_mismatched",
              "test_diagnostic": "../diagnostic/diagnostic"}  # AX: what else the leaderboard asks an MNLI model
PAPER_AVERAGE = ("CoLA", "MRPC", "MNLI", "MNLI-mm", "STS-B", "RTE", "QQP", "QNLI", "SST-2")  # AutoBERT-Zero, Appendix C


@dataclass
class Examples:
    """The rows of one file."""
    first: list  # raw sentences
    second: list | None  # None in tasks of one sentence
    labels: np.ndarray | None  # (n,) int64 or float32; None in test
    path: Path = field(repr=False)  # so that equal data print alike wherever they lie

    def __len__(self):
        return len(self.first)

    def head(self, rows):
        """The first rows alone; all of them for 0."""
        rows = rows or len(self)
        return Examples(self.first[:rows], self.second and self.second[:rows],
                        None if self.labels is None else self.labels[:rows], self.path)


def path_of(folder, name, split):
    """A task's file; MNLI's dev and test are the matched ones."""
    return Path(folder) / name / f"{MNLI_FILES.get(split, split) if name == 'MNLI' else split}.tsv"


def files(folder, name, search=False):
    """What is read of a task: its folder, and for MNLI that of AX. MissingFile where train or dev is not there."""
    for split in ("train", "dev", *["dev_mismatched"] * (name == "MNLI" and not search)):
        existing(path_of(folder, name, split), MEND)
    diagnostic = Path(folder) / "diagnostic"
    return [Path(folder) / name, *[diagnostic] * (name == "MNLI" and diagnostic.exists())]


def read_label(task, cell, place):
    """A label cell as class number or score."""
    try:
        if task.labels:
            return task.labels.index(cell.strip())
        score = float(cell)
        if 0 <= score <= 5:
            return score
    except ValueError:
        pass
    kind, choices = ("label", f"one of {', '.join(task.labels)}") if task.labels else ("score", "a number from 0 to 5")
    raise UserError(f"{place}: {task.name} has no {kind} {cell!r}; it must be {choices}")


def read_rows(path):
    """(number of the line, cells) of each line of a TSV file that is not empty."""
    lines = enumerate(read_text(path, MEND).split("\n"), 1)
    return ((number, line.rstrip("\r").split("\t")) for number, line in lines if line.strip())


def load(folder, task, split):
    """Read one split of a task.

    folder: holds one folder a task; task: a Task or its name; split: train, dev, test, and for MNLI (whose dev and test
    are the matched ones) dev_mismatched, test_mismatched and test_diagnostic. Rows of train and dev whose number of
    columns is not the header's are skipped; one warning counts them. UserError on a label that the task does not know.
    """
    task = TASKS.get(task, task)
    path = path_of(folder, task.name, split)
    if split.startswith("test"):
        return load_unlabelled(path, task)
    rows, width, text = read_rows(path), task.columns, task.text
    if not width:
        _, header = next(rows, (1, []))
        width, needed = len(header), max(*text, task.label, 0) + 1
        if width < needed:
            raise UserError(f"{path}:1: {width} columns, {task.name} has {needed} or more; take the official file")
        if header[task.label] in task.labels or header[task.label].replace(".", "", 1).isdecimal():
            raise UserError(f"{path}:1: this row is data, the header is missing; put the official header line first")
    first, second, labels, bad = [], [], [], []
    for number, cells in rows:
        if len(cells) < width or any(cells[width:]):
            bad.append(number)
            continue
        first.append(cells[text[0]])
        second.append(cells[text[-1]])
        labels.append(read_label(task, cells[:width][task.label], f"{path}:{number}"))
    if not first:
        raise UserError(f"{path}:1: no row has the {width} columns of {task.name}; take the official GLUE file")
    if bad:
        warnings.warn(f"{path}:{bad[0]}: {len(bad)} rows do not have {width} columns and were skipped (this is the "
                      "first)", stacklevel=2)
    kind = np.float32 if task.regression else np.int64
    return Examples(first, second if len(text) == 2 else None, np.array(labels, kind), path)


def load_unlabelled(path, task, labelled=False):
    """Read a test file, or one of the user's own, in whose first line the task's text columns are named. Every row
    needs a prediction: of those of another length, which one warning counts, the text that is missing is empty.
    labelled: read the labels too, if a column of LABELS has one in every row; otherwise a warning
    names the first row without one."""
    rows = list(read_rows(path))
    header = rows.pop(0)[1] if rows else []
    if 0 < len(header) == task.columns and not {*header} & {*task.test_text}:  # CoLA's train and dev have no header
        rows.insert(0, (1, header))
        header = ["source", "label", "star", *task.test_text]
    if missing := [name for name in task.test_text if name not in header]:
        raise UserError(f"{path}:1: no column is named {' or '.join(missing)}; the first line of a file without labels "
                        f"names {task.name}'s columns, {' and '.join(task.test_text)}, between tabs")
    bad = [number for number, cells in rows if len(cells) < len(header) or any(cells[len(header):])]
    if bad:
        warnings.warn(f"{path}:{bad[0]}: {len(bad)} rows do not have {len(header)} columns and keep their place, what "
                      "is missing is empty (this is the first)", stacklevel=2)
    if not rows:
        raise UserError(f"{path}: no row follows the first line, so nothing is asked")
    sides = [[(cells + [""] * len(header))[header.index(name)] for _, cells in rows] for name in task.test_text]
    labels = read_labels(path, task, header, rows) if labelled else None
    return Examples(sides[0], sides[1] if len(sides) == 2 else None, labels, path)


def read_labels(path, task, header, rows):
    """Labels of all rows as an array; None if no column has labels, or a row has none."""
    column = next((header.index(name) for name in LABELS if name in header), None)
    if column is None:
        return None
    try:
        labels = [read_label(task, "".join(cells[column:column + 1]), f"{path}:{number}")
                  for number, cells in rows]
    except UserError as error:
        warnings.warn(f"{error}; no score is computed", stacklevel=2)
        return None
    return np.array(labels, np.float32 if task.regression else np.int64)


class Rows:
    """Many short rows of integers in one flat buffer: rows[i] is a list, but a token takes 4 bytes and no object."""

    def __init__(self, rows=()):
        self.flat, self.starts = array("i"), array("q", [0])
        for row in rows:
            self.append(row)

    def append(self, row):
        self.flat.extend(row)
        self.starts.append(len(self.flat))

    def __len__(self):
        return len(self.starts) - 1

    def __getitem__(self, i):
        i = range(len(self))[i]
        return self.flat[self.starts[i]:self.starts[i + 1]].tolist()

    @cached_property
    def lengths(self):
        """(n,) int64; asked for when all rows are there."""
        return np.diff(np.asarray(self.starts))

    def put(self, out, index, column, start, length):
        """Write rows[index][start:start + length] into out (B, T), from the given column on. index, length: (B,) int64;
        column, start: (B,) or a number."""
        at = np.arange(out.shape[1]) - np.broadcast_to(column, index.shape)[:, None]  # (B, T) place inside the row
        inside = (at >= 0) & (at < length[:, None])
        source = (np.asarray(self.starts)[index] + start)[:, None] + at
        out[inside] = np.asarray(self.flat)[source[inside]]


def join(parts, specials, width):
    """[CLS] A [SEP] B [SEP] of a batch, or [CLS] A [SEP]. parts: of A and B (Rows, index (B,), start, length (B,)).
    specials: ids of [CLS], [SEP], padding. Returns int64 arrays ids (B, width), segments (B, width): 1 in B and the
    [SEP] behind it, 0 elsewhere."""
    ids, ends, column = np.full((len(parts[0][1]), width), specials[2], dtype=np.int64), [], 1
    for rows, index, start, length in parts:
        rows.put(ids, index, column, start, length)
        column = column + length + 1
        ids[np.arange(len(ids)), column - 1] = specials[1]
        ends.append(column[:, None])
    ids[:, 0], places = specials[0], np.arange(width)
    return ids, ((places >= ends[0]) & (places < ends[-1])).astype(np.int64)


@dataclass
class Features:
    """Token ids of the sentences, cut to what fits; labels as in Examples."""
    sides: list  # Rows of the first sentences and, in tasks of two, of the second ones
    labels: np.ndarray | None
    specials: tuple  # ids of [CLS], [SEP], padding
    max_length: int
    cut: int = 0  # examples that were longer than max_length
    longest: int = 0  # tokens of the longest example before it was cut

    def __len__(self):
        return len(self.sides[0])

    @cached_property
    def lengths(self):
        """(n,) int64 tokens of the input, special ones included."""
        return 1 + sum(rows.lengths + 1 for rows in self.sides)

    def batch(self, index, width):
        """ids, segments (B, width) int64, lengths (B,) int64, and labels (B,) int64 or float32 where there are any."""
        ids, segments = join([(rows, index, 0, rows.lengths[index]) for rows in self.sides], self.specials, width)
        labels = {} if self.labels is None else {"labels": self.labels[index]}
        return {"ids": ids, "segments": segments, "lengths": self.lengths[index], **labels}


def encode(examples, tokenizer, max_length, block=10_000):
    """Examples -> Features: [CLS] A [SEP] (B [SEP]) of at most max_length tokens, cut from the longer sentence's end
    (in a tie: B's). UserError where max_length leaves no room."""
    texts = [side for side in (examples.first, examples.second) if side]
    sides, room = [Rows() for _ in texts], max_length - 1 - len(texts)
    cut = 0
    longest = 0
    if room < 2:
        raise UserError(f"max_length {max_length}: too little room beside the special pieces; choose 8 or more")
    name = examples.path.parent.name
    for start in tqdm(range(0, len(examples), block), desc=f"encode {name}", disable=None, leave=False):
        for row in zip(*(tokenizer.encode_batch(side[start:start + block]) for side in texts)):
            first, second = len(row[0]), len(row[-1]) * (len(row) - 1)
            keep = min(first, max(room - second, (room + 1) // 2))
            for rows, ids, most in zip(sides, row, (keep, room - keep)):
                rows.append(ids[:most])
            cut += first + second > room
            longest = max(longest, first + second + 1 + len(texts))
    specials = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    return Features(sides, examples.labels, specials, max_length, cut, longest)


def warn_about_cuts(name, splits, positions):
    """One warning where examples of a task were cut, with the length that keeps them whole, or the
    most that the model has positions for. splits: its Features."""
    cut = sum(features.cut for features in splits)
    if not cut:
        return
    length = splits[0].max_length
    longest = max(features.longest for features in splits)
    total = sum(map(len, splits))
    better = min(positions, -(-longest // 8) * 8)
    hint = f"use --finetune_length {better}"
    if better <= length:
        hint = f"the model has {positions} positions"
    warnings.warn(f"{name}: {cut} of {total} examples are longer than {length} tokens and are cut; "
                  f"the longest has {longest}; {hint}", stacklevel=2)


def batch_indices(lengths, batch_size, seed=None, epoch=0, pool=50):
    """Yield the row numbers of each batch. With a seed: shuffled by (seed, epoch), cut into pools of `pool` batches,
    sorted by length inside a pool, and the batches shuffled. The same arguments give the same batches. Without one: all
    rows from short to long."""
    lengths = np.asarray(lengths)
    order, starts = np.argsort(lengths, kind="stable"), np.arange(0, len(lengths), batch_size)
    if seed is not None:
        random = np.random.default_rng([seed % 2 ** 63, epoch])  # numpy takes no negative seed
        order = random.permutation(len(lengths))
        pools = np.split(order, np.arange(pool * batch_size, len(order), pool * batch_size))
        order = np.concatenate([rows[np.argsort(lengths[rows], kind="stable")] for rows in pools])
        starts = random.permutation(starts)
    for start in starts:
        yield order[start:start + batch_size]


def batches(features, batch_size, seed=None, epoch=0):
    """Yield features.batch(index, width) as dicts of CPU tensors, and index (B,) int64, the rows' numbers; features of
    any task. Order as in batch_indices. The width is the longest row, rounded up to a multiple of 8, which GPUs like,
    where max_length allows it."""
    longest = features.lengths.reshape(len(features), -1).max(axis=1)  # of RACE's four inputs
    for index in batch_indices(longest, batch_size, seed, epoch):
        width = int(longest[index].max())
        batch = features.batch(index, max(width, min(-(-width // 8) * 8, features.max_length)))
        yield {name: torch.from_numpy(value) for name, value in (batch | {"index": index}).items()}


def score(task, predictions, labels):
    """{metric: value} of the Task's official metrics; shares, not percent. predictions: logits (n, classes), or scores
    (n,) or (n, 1) for regression."""
    predictions = torch.as_tensor(predictions).detach().double().cpu().numpy()
    predictions = predictions.reshape(-1) if task.regression else predictions.argmax(axis=-1)
    return {name: getattr(metrics, name)(predictions, labels) for name in task.metrics}


def averages(results):
    """The two averages over the tasks present, and what is missing.

    results: {task name: its score}, MNLI mismatched under "MNLI-mm". paper_avg: the mean of the nine main numbers
    of AutoBERT-Zero's Appendix C (no WNLI); glue_avg: the leaderboard's mean over nine tasks, two metrics (and MNLI's
    two parts) averaged first. None where nothing is present.
    """
    paper = [results[name]["main"] for name in PAPER_AVERAGE if name in results]
    by_task = {name: [value for metric, value in result.items() if metric != "main"]
               for name, result in results.items()}
    by_task["MNLI"] = by_task.get("MNLI", []) + by_task.pop("MNLI-mm", [])
    board = [float(np.mean(by_task[name])) for name in TASKS if by_task.get(name)]
    return {"paper_avg": float(np.mean(paper)) if paper else None, "glue_avg": float(np.mean(board)) if board else None,
            "paper_missing": [name for name in PAPER_AVERAGE if name not in results],
            "glue_missing": [name for name in (*TASKS, "MNLI-mm") if name not in results]}


def write_submission(folder, task, predictions, split="test"):
    """Write the leaderboard's file of a Task, such as CoLA.tsv or MNLI-mm.tsv (split "test_mismatched"), and return its
    path. predictions: logits as for score, in the order of the test file. Labels are written by name, scores clipped to
    0..5."""
    predictions = torch.as_tensor(predictions).detach().double().cpu().numpy()
    parts = {"test": "MNLI-m", "test_mismatched": "MNLI-mm", "test_diagnostic": "AX"}
    name = parts[split] if task.name == "MNLI" else task.name
    path = Path(folder) / f"{name}.tsv"
    cells = [f"{value:.3f}" for value in np.clip(predictions.reshape(-1), 0, 5)] if task.regression else [
        task.labels[number] for number in predictions.argmax(axis=-1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "index\tprediction\n" + "".join(f"{i}\t{cell}\n" for i, cell in enumerate(cells)))
    return path
