"""A user's own task: a folder with train, dev and perhaps test as .tsv or .csv.

    reviews/train.csv        id,text,label
                             1,"Good, really good.",pleased
                             2,"It broke.",angry

The first line names the columns. "label" is the label. Columns named id, idx or index are ignored.
The texts are one or two columns with the names TEXTS, or the only other column, or --columns.
Labels are words, which are classes. If all labels are numbers and one has a decimal point, the task
is a regression. --labels overrides this. In .tsv files nothing is quoted. The csv module reads .csv
files. A test file needs no labels.
"""
import csv
import dataclasses
import io
import re
import statistics
import warnings
from collections import namedtuple
from pathlib import Path

import torch

from common import glue, tasks
from common.cli import UserError, listed
from common.files import read_json, read_text, write_atomic, write_json

SPLITS = ("train", "dev", "test")
ENDINGS = {".tsv": "\t", ".csv": ","}  # {suffix: separator}
IGNORED = ("id", "idx", "index")  # columns
TEXTS = frozenset("""
    text text1 text2 text_a text_b sentence sentence1 sentence2 sentence_a sentence_b premise
    hypothesis question question1 question2 query answer context passage
""".split())  # usual names of columns with texts
LABEL = "label"
SEPARATORS = {";": "a semicolon", "\t": "a tab", ",": "a comma", "|": "a bar"}
SPEC = "task.json"  # next to a fine-tuned model: its OwnSpec
FIX = "a folder with a task of your own needs a train and a dev file, .tsv or .csv"
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
# other folders in the run folder of a fine-tuning or a search
RESERVED = {"", "jobs", "tensorboard", "model", "superplm", "teachers", "tuned", "further",
            "candidates", "finals", "latencies"}
RUN_FILES = (".json", ".jsonl", ".pt", ".model", ".txt", ".lock")  # endings of files there
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LARGEST = 1e30  # label of a regression, so that an exported head fits float32
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class OwnSpec(glue.TaskSpec):
    """A glue.TaskSpec. In training the labels of a regression have mean 0 and deviation 1. mean,
    deviation: of the labels in the training file."""
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def description(self):
        kind = f"classes {listed(self.labels)}" if self.labels else "a regression"
        return f"{kind}; texts: {listed(self.text)}"

    @property
    def other_kind(self):
        """How to choose the other kind of task, "" for labels that are not numbers."""
        if self.regression:
            return " (--labels classes makes the numbers classes)"
        numbers = all(map(NUMBER.fullmatch, self.labels))
        return " (--labels numbers makes it a regression)" if numbers else ""


# as glue.Example. columns: (name, cell) of each column of the file but the label
OwnExample = namedtuple("OwnExample", "texts label columns")


class FolderName(str):
    """The name of a user's own task, which is its folder's name. path: the folder. columns, labels:
    the flags --columns and --labels."""

    def __new__(cls, path, columns="", labels="auto"):
        name = super().__new__(cls, Path(path).resolve().name)
        name.path = Path(path)
        name.columns = tuple(map(str.strip, columns.split(","))) if columns else ()
        name.labels = labels
        if name in RESERVED or name[0] == "." or name.endswith(RUN_FILES):
            raise UserError(f"{path}: a task cannot be called {str(name)!r}; rename the folder")
        return name

    def files(self, search=False):
        """{split: path}. search: only train and dev. UserError if one of these is missing."""
        found = {}
        for split in SPLITS:
            there = [path for path in sorted(self.path.glob(f"{split}.*"))
                     if path.stem == split and path.suffix.lower() in ENDINGS and path.is_file()]
            if len(there) > 1:
                raise UserError(f"{there[0]}: there is {there[1].name} too; remove one of them")
            if there and not (search and split == "test"):
                found[split] = there[0]
            if not there and split != "test":
                raise UserError(f"{self.path / split}{' or '.join(ENDINGS)}: no such file; {FIX}")
        return found


def read_table(path):
    """(column names, [(line number, cells)]) of a .tsv or .csv file, or of a file whose first line
    has either tabs or commas. UserError if a line has another number of columns than the first."""
    path = Path(path)
    text = read_text(path, FIX).rstrip("\n")
    separator = separator_of(path, text.split("\n")[0])
    if separator == ",":
        lines = csv_lines(path, text)
    else:
        lines = [(number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1)]
    if len(lines) < 2:
        raise UserError(f"{path}: no line follows the names of the columns; {FIX}")
    header = [name.strip() for name in lines[0][1]]
    header = [LABEL if name.lower() == LABEL else name for name in header]
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            hint = "quote texts with commas" if separator == "," else (
                "a tab in a text separates columns: use .csv")
            if not any(cells):
                hint = "an empty line: delete it"
            raise UserError(f"{path}:{number}: {len(cells)} columns, and the first line has "
                            f"{len(header)}; {hint}")
    return header, lines[1:]


def csv_lines(path, text):
    """[(line number, cells)] of the text of a .csv file."""
    csv.field_size_limit(max(len(text), csv.field_size_limit()))  # a text may be a book
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines = []
    number = 1  # of the line where a row begins
    try:
        for cells in reader:
            lines.append((number, cells))
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{number}: not CSV ({error}); put texts with commas or quotes "
                        "into quotes, and double the quotes in them") from None
    return lines


def separator_of(path, line):
    """The separator of a file with this first line: by the suffix, or else by the line. UserError
    if the line has another one."""
    separator = ENDINGS.get(path.suffix.lower())
    if not separator:
        there = [each for each in ENDINGS.values() if each in line]
        if len(there) != 1:
            raise UserError(f"{path}: name it .csv (commas, quotes) or .tsv (tabs); its first line "
                            "does not show which it is")
        separator = there[0]
    for other, name in SEPARATORS.items():
        if other in line and separator not in line:
            raise UserError(f"{path}:1: one column, {line!r}; is the separator {name}? A .csv file "
                            "has commas, a .tsv file tabs")
    return separator


def text_columns(path, header, chosen=()):
    """The names of the columns with texts, one or two. chosen: of --columns."""
    if chosen:
        if len(chosen) > 2 or len({*chosen}) < len(chosen) or not {*chosen} <= {*header} - {LABEL}:
            raise UserError(f"--columns {','.join(chosen)}: name one or two columns of {path} with "
                            f"texts; it has {listed(header)}")
        return chosen
    if "" in header:  # pandas writes its index so
        raise UserError(f"{path}:1: column {header.index('') + 1} has no name; call it id, which "
                        "is ignored, or name it as a text, or leave it out")
    columns = [name for name in header if name != LABEL and name.lower() not in IGNORED]
    usual = all(name.lower() in TEXTS for name in columns)
    if len(columns) != 1 and not (len(columns) == 2 and usual):
        raise UserError(f"{path}:1: which columns are texts: {listed(columns)}? Name one or two, "
                        "as in --columns text or --columns question,answer; others are ignored")
    return tuple(columns)


def read_examples(path, task, labelled=True, fix="add such an example to train"):
    """The OwnExample list of a file, with the texts in the columns of an OwnSpec. labelled: reads a
    column "label". fix: for an unknown label."""
    header, lines = read_table(path)
    for name in (*task.text, *[LABEL] * labelled):
        if header.count(name) != 1:
            raise UserError(f"{path}:1: {header.count(name)} columns are named {name}; the texts "
                            f"of {task.name} are in {listed(task.text)}; the columns here are "
                            f"{listed(header)}")
    examples = []
    for number, cells in lines:
        row = dict(zip(header, cells))
        texts = tuple(row[name] for name in task.text)
        if not all(text.strip() for text in texts):
            raise UserError(f"{path}:{number}: an empty text; write one, or leave the line out")
        label = parse_label(row[LABEL], task, f"{path}:{number}", fix) if labelled else None
        columns = tuple((name, cell) for name, cell in zip(header, cells) if name != LABEL)
        examples.append(OwnExample(texts, label, columns))
    return examples


def read_folder(name, search=False):
    """(OwnSpec, {split: examples}) of a FolderName. A test file has labels if it has the column."""
    task = infer_task(name)
    splits = {}
    for split, path in name.files(search).items():
        if split == "test":
            labelled = LABEL in read_table(path)[0]
            fix = f"leave the column {LABEL} out of a test file without labels"
            splits[split] = read_examples(path, task, labelled, fix)
        else:
            splits[split] = read_examples(path, task)
    there = {example.label for example in splits["dev"]}
    lacking = [label for number, label in enumerate(task.labels) if number not in there]
    if lacking:
        warnings.warn(f"{name.files()['dev']}: no example of the label {listed(lacking)}, so its "
                      "score does not cover it")
    return task, splits


def parse_label(cell, task, place, fix="leave the line out"):
    """A label as class number, or as value with mean 0 and deviation 1 over the training file."""
    word = " ".join(cell.split())
    if task.regression:
        if not NUMBER.fullmatch(word):
            raise UserError(f"{place}: the label {cell!r} is not a number, and the task is a "
                            f"regression; correct it, or {fix}")
        if abs(float(word)) > LARGEST:
            raise UserError(f"{place}: the label {cell!r} is too large; divide all labels so that "
                            f"none is above {LARGEST:g}")
        return (float(word) - task.mean) / task.deviation
    if word not in task.labels:
        raise UserError(f"{place}: train has no label {cell!r}; it has {listed(task.labels[:20])}; "
                        f"correct it, or {fix}")
    return task.labels.index(word)


def read_words(path, header, lines, kind):
    """The labels of a training file as words. UserError for an empty one, or for one that is not
    finite among numbers."""
    if header.count(LABEL) != 1:
        raise UserError(f"{path}:1: {header.count(LABEL)} columns are named {LABEL}, not one; the "
                        f"columns are {listed(header)}")
    words = [" ".join(cells[header.index(LABEL)].split()) for _, cells in lines]
    if "" in words:
        raise UserError(f"{path}:{lines[words.index('')][0]}: an empty label; write one, or leave "
                        "the line out")
    not_finite = [word for word in words if NOT_FINITE.fullmatch(word)]
    numbers = sum(bool(NUMBER.fullmatch(word)) for word in words)
    if kind != "classes" and not_finite and numbers + len(not_finite) == len(words):
        line, _ = lines[words.index(not_finite[0])]
        raise UserError(f"{path}:{line}: the label {not_finite[0]!r} is not a finite number; the "
                        "others are numbers: write one, or leave the line out")
    return words


def is_regression(words, kind):
    """Whether labels are numbers of a regression. kind: --labels. auto: if one has a decimal point.
    One word among numbers is a mistake, many words are classes."""
    if kind != "auto":
        return kind == "numbers"
    numbers = [word for word in words if NUMBER.fullmatch(word)]
    return len(numbers) >= 0.9 * len(words) and any("." in word for word in numbers)


def infer_task(name):
    """The OwnSpec of a FolderName, from its training file and flags: columns, labels and
    metrics."""
    path = name.files()["train"]
    header, lines = read_table(path)
    words = read_words(path, header, lines, name.labels)
    text = text_columns(path, header, name.columns)
    labels = tuple(tasks.sorted_labels(words))
    if len(labels) < 2:
        raise UserError(f"{path}: all labels are {labels[0]!r}; a task needs two classes; add "
                        "examples of another one")
    if name.labels == "auto" and any(map(DECIMAL_COMMA.fullmatch, words)):
        warnings.warn(f"{path}: labels with a decimal comma are classes; write a decimal point for "
                      "a regression")
    if not is_regression(words, name.labels):
        return OwnSpec(str(name), labels, text, ("accuracy", "macro_f1"))
    task = OwnSpec(str(name), (), text, ("pearson", "spearman"))
    values = [parse_label(word, task, f"{path}:{number}")
              for word, (number, _) in zip(words, lines)]
    deviation = statistics.pstdev(values)
    if not deviation:  # 1 and 1.0
        raise UserError(f"{path}: all labels are the number {values[0]:g}; add examples with other "
                        "numbers")
    return dataclasses.replace(task, mean=statistics.fmean(values), deviation=deviation)


def write_spec(folder, task):
    """Keep an OwnSpec next to a model."""
    write_json(Path(folder) / SPEC, dataclasses.asdict(task))


def read_spec(folder):
    """The OwnSpec that write_spec kept in a folder, or None."""
    path = Path(folder) / SPEC
    if not folder or not path.is_file():
        return None
    return OwnSpec(**{key: tuple(value) if isinstance(value, list) else value
                      for key, value in read_json(path).items()})


def export_head(weights, task):
    """(weights, OwnSpec) of an exported model. The head of a regression gives values on the scale
    of the labels."""
    if not task or not task.regression:
        return weights, task
    head = {
        "head.weight": weights["head.weight"] * task.deviation,
        "head.bias": weights["head.bias"] * task.deviation + task.mean,
    }
    return {**weights, **head}, dataclasses.replace(task, mean=0.0, deviation=1.0)


def write_predictions(path, task, examples, outputs):
    """Write the columns of each of the user's examples, "predicted", and the probability "p(CLASS)"
    of each class, as .csv. An "_" is added to a name that the user's file has. Returns the path.
    """
    names = ["predicted", *[f"p({label})" for label in task.labels]]
    header = [name for name, _ in examples[0].columns]
    for name in names:
        while name in header:
            name += "_"
        header.append(name)
    rows = [header]
    predictions = glue.predictions_of(task, outputs)
    probabilities = torch.as_tensor(outputs).softmax(-1).tolist()
    for example, prediction, each in zip(examples, predictions, probabilities, strict=True):
        if task.regression:
            cells = [f"{prediction * task.deviation + task.mean:.6g}"]
        else:
            cells = [task.labels[prediction], *[f"{value:.6f}" for value in each]]
        rows.append([cell for _, cell in example.columns] + cells)
    write_atomic(path, csv_text(rows))
    return path


def csv_text(rows):
    """The text of a .csv file."""
    table = io.StringIO(newline="")
    # Python 3.11 quotes no "\r" that is not in lineterminator
    csv.writer(table, lineterminator="\r\n").writerows(rows)
    return table.getvalue().replace("\r\n", "\n")


class FolderTask(glue.GlueTask):
    """A user's own task, whose description is kept next to a tuned model."""

    @staticmethod
    def read(name, folder, search=False):
        task, examples = read_folder(name, search)
        return tasks.Source(examples, name.files()["dev"], task)

    @staticmethod
    def read_file(name, path, model):
        task = read_spec(model)
        return tasks.Source({"test": read_examples(path, task, labelled=False)}, path, task)

    def context(self):
        return {**super().context(), "description": self.task.description}

    def write(self, split, outputs, folder):
        """Write the predictions of dev or test, and the data for --predict. Returns the path."""
        if "train" in self.splits:
            write_spec(folder, self.task)
        path = Path(folder, f"{split}.csv")
        return write_predictions(path, self.task, self.examples[split], outputs)
