"""A user's own task: a folder with train, dev and perhaps test as .tsv or .csv.

    reviews/train.csv        id,text,label
                             1,"Good, really good.",pleased
                             2,"It broke.",angry

The first line names the columns. "label" is the label. Columns named id, idx or index are ignored.
The other columns, one or two, are the texts. Labels are words, which are classes. If all labels are
numbers and one has a decimal point, the task is a regression. In .tsv files nothing is quoted. The
csv module reads .csv files. A test file needs no labels.
"""
import csv
import dataclasses
import io
import re
import statistics
import warnings
from pathlib import Path

from common import glue, tasks
from common.cli import UserError
from common.files import read_json, read_text, write_json

SPLITS = ("train", "dev", "test")
ENDINGS = (".tsv", ".csv")
IGNORED = ("id", "idx", "index")  # columns
LABEL = "label"
SEPARATORS = {";": "a semicolon", "\t": "a tab", ",": "a comma", "|": "a bar"}
SPEC = "task.json"  # next to a fine-tuned model: its OwnSpec
FIX = "a folder with a task of your own needs a train and a dev file, .tsv or .csv"
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
RESERVED = {"", "jobs", "tensorboard"}  # other folders in the run folder of a fine-tuning
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
        kind = f"classes {', '.join(self.labels)}" if self.labels else "a regression"
        return f"{kind}; texts: {', '.join(self.text)}"


class FolderName(str):
    """The name of a user's own task, which is its folder's name. path: the folder."""

    def __new__(cls, path):
        name = super().__new__(cls, Path(path).resolve().name)
        name.path = Path(path)
        if name in RESERVED or name[0] == "." or name.endswith(RUN_FILES):
            raise UserError(f"{path}: a task cannot be called {str(name)!r}; rename the folder")
        return name

    def files(self, search=False):
        """{split: path}. search: only train and dev. UserError if one of these is missing."""
        found = {}
        for split in SPLITS:
            paths = [self.path / f"{split}{ending}" for ending in ENDINGS]
            there = [path for path in paths if path.is_file()]
            if len(there) > 1:
                raise UserError(f"{there[0]}: there is {there[1].name} too; remove one of them")
            if there and not (search and split == "test"):
                found[split] = there[0]
            if not there and split != "test":
                raise UserError(f"{self.path / split}{' or '.join(ENDINGS)}: no such file; {FIX}")
        return found


def read_table(path):
    """(column names, [(line number, cells)]) of a .tsv or .csv file. UserError if a line has
    another number of columns than the first."""
    path = Path(path)
    text = read_text(path, FIX).rstrip("\n")
    suspect_separator(path, text.split("\n")[0])
    lines = [(number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1)]
    if path.suffix == ".csv":
        lines = csv_lines(path, text)
    if len(lines) < 2:
        raise UserError(f"{path}: no line follows the names of the columns; {FIX}")
    header = [name.strip() for name in lines[0][1]]
    header = [LABEL if name.lower() == LABEL else name for name in header]
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            hint = "quote texts with commas" if path.suffix == ".csv" else (
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


def suspect_separator(path, line):
    """UserError if the first line has another separator than the file's."""
    own = "," if path.suffix == ".csv" else "\t"
    for separator, name in SEPARATORS.items():
        if separator in line and own not in line:
            raise UserError(f"{path}:1: one column, {line!r}; is the separator {name}? A .csv file "
                            "has commas, a .tsv file tabs")


def text_columns(path, header):
    """The names of the columns with texts, one or two."""
    if "" in header:  # pandas writes its index so
        raise UserError(f"{path}:1: column {header.index('') + 1} has no name; call it id, which "
                        "is ignored, or name it as a text, or leave it out")
    columns = [name for name in header if name != LABEL and name.lower() not in IGNORED]
    if len(columns) not in (1, 2):
        raise UserError(f"{path}:1: {len(columns)} columns of texts ({', '.join(columns)}); there "
                        f"must be one or two besides {LABEL}, {', '.join(IGNORED)}")
    return tuple(columns)


def read_examples(path, task, labelled=True):
    """The glue.Example list of a file, with the columns of an OwnSpec. labelled: reads a column
    "label"."""
    header, lines = read_table(path)
    for name in (*task.text, *[LABEL] * labelled):
        if header.count(name) != 1:
            raise UserError(f"{path}:1: {header.count(name)} columns are named {name}; the texts "
                            f"of {task.name} are in {', '.join(task.text)}; the columns here are "
                            f"{', '.join(header)}")
    more = [name or "without a name" for name in header
            if name not in (*task.text, LABEL) and name.lower() not in IGNORED]
    if labelled and more:
        raise UserError(f"{path}:1: train has no column {', '.join(more)}; leave it out")
    examples = []
    for number, cells in lines:
        row = dict(zip(header, cells))
        texts = tuple(row[name] for name in task.text)
        if not all(text.strip() for text in texts):
            raise UserError(f"{path}:{number}: an empty text; write one, or leave the line out")
        label = parse_label(row[LABEL], task, f"{path}:{number}") if labelled else None
        examples.append(glue.Example(texts, label))
    return examples


def read_folder(name, search=False):
    """(OwnSpec, {split: examples}) of a FolderName. A test file has labels if it has the column."""
    task = infer_task(name)
    splits = {}
    for split, path in name.files(search).items():
        labelled = split != "test" or LABEL in read_table(path)[0]
        splits[split] = read_examples(path, task, labelled)
    there = {example.label for example in splits["dev"]}
    lacking = [label for number, label in enumerate(task.labels) if number not in there]
    if lacking:
        warnings.warn(f"{name.files()['dev']}: no example of the label {', '.join(lacking)}, so "
                      "its score does not cover it")
    return task, splits


def parse_label(cell, task, place):
    """A label as class number, or as value with mean 0 and deviation 1 over the training file."""
    word = " ".join(cell.split())
    if task.regression:
        if not NUMBER.fullmatch(word):
            raise UserError(f"{place}: the label {cell!r} is not a number, and the others are; "
                            "correct it, or leave the line out")
        if abs(float(word)) > LARGEST:
            raise UserError(f"{place}: the label {cell!r} is too large; divide all labels so that "
                            f"none is above {LARGEST:g}")
        return (float(word) - task.mean) / task.deviation
    if word not in task.labels:
        known = ", ".join(task.labels[:20])
        raise UserError(f"{place}: train has no label {cell!r}; it has {known}; correct it, or add "
                        "such an example to train")
    return task.labels.index(word)


def infer_task(name):
    """The OwnSpec of a FolderName, from its training file: columns, labels and metrics."""
    path = name.files()["train"]
    header, lines = read_table(path)
    if header.count(LABEL) != 1:
        raise UserError(f"{path}:1: {header.count(LABEL)} columns are named {LABEL}, not one; the "
                        f"columns are {', '.join(header)}")
    words = [" ".join(cells[header.index(LABEL)].split()) for _, cells in lines]
    text = text_columns(path, header)
    if "" in words:
        raise UserError(f"{path}:{lines[words.index('')][0]}: an empty label; write one, or leave "
                        "the line out")
    numbers = [word for word in words if NUMBER.fullmatch(word)]
    not_finite = [word for word in words if NOT_FINITE.fullmatch(word)]
    if not_finite and len(numbers) + len(not_finite) == len(words):
        line, _ = lines[words.index(not_finite[0])]
        raise UserError(f"{path}:{line}: the label {not_finite[0]!r} is not a finite number; the "
                        "others are numbers: write one, or leave the line out")
    labels = tuple(sorted(set(words)))
    if len(labels) < 2:
        raise UserError(f"{path}: all labels are {labels[0]!r}; a task needs two classes; add "
                        "examples of another one")
    decimal = any("." in word for word in numbers)
    if any(map(DECIMAL_COMMA.fullmatch, words)):
        warnings.warn(f"{path}: labels with a decimal comma are classes; write a decimal point for "
                      "a regression")
    # one word among numbers is a mistake, many words are classes
    if not decimal or len(numbers) < 0.9 * len(words):
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


def write_predictions(path, task, outputs):
    """Write the predicted word, or value, of each example. Returns the path."""
    predictions = glue.predictions_of(task, outputs)
    if task.regression:
        cells = [f"{value * task.deviation + task.mean:.6g}" for value in predictions]
    else:
        cells = [task.labels[number] for number in predictions]
    return glue.write_cells(path, cells)


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
        return write_predictions(Path(folder, f"{split}.tsv"), self.task, outputs)
