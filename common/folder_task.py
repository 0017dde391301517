"""A task of one's own: a folder with train, dev and perhaps test as .tsv or .csv.

    reviews/train.csv        id,text,label
                             1,"Good, really good.",pleased
                             2,"It broke.",angry

The first line names the columns. "label" is the label, columns named id, idx or index are left out,
and one or two columns are left: the texts. Labels are any words, which are classes; where all are
numbers and one has a decimal point, the task is a regression. In .tsv files nothing is quoted; .csv
files are read by the csv module. A test file needs no labels.
"""
import csv
from pathlib import Path

from common import glue
from common.cli import UserError
from common.files import existing, read_json, read_text, write_atomic, write_json

SPLITS = ("train", "dev", "test")
ENDINGS = (".tsv", ".csv")
LEFT_OUT = ("id", "idx", "index")  # columns
LABEL = "label"
SPEC = "task.json"  # next to a fine-tuned model: its glue.Task
FIX = "a folder of one's own has train and dev, as .tsv or .csv"


class FolderName(str):
    """The name of a task of one's own, that of its folder; path: the folder."""

    def __new__(cls, path):
        name = super().__new__(cls, Path(path).resolve().name)
        name.path = Path(path)
        return name

    def files(self, search=False):
        """{split: path}. search: train and dev alone. UserError where one of these is missing."""
        found = {}
        for split in SPLITS:
            paths = [self.path / f"{split}{ending}" for ending in ENDINGS]
            there = [path for path in paths if path.is_file()]
            if len(there) > 1:
                raise UserError(f"{there[0]}: there is {there[1].name} too; remove one of them")
            if there and not (search and split == "test"):
                found[split] = there[0]
            if not there and split != "test":
                raise UserError(f"{paths[0]}: no such file; {FIX}")
        return found


def read_table(path):
    """(column names, [(line number, cells)]) of a .tsv or .csv file. UserError where a line has
    another number of columns than the first."""
    text = read_text(existing(path, FIX), FIX)
    if path.suffix == ".csv":
        reader = csv.reader(text.splitlines(keepends=True), strict=True)
        lines = []
        try:
            for cells in reader:
                lines.append((reader.line_num, cells))
        except csv.Error as error:
            raise UserError(f"{path}:{reader.line_num}: no CSV ({error}); put texts with commas or "
                            "quotes into quotes, and double the quotes in them") from None
    else:
        lines = [(number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, cells) for number, cells in lines if any(cells)]
    if len(lines) < 2:
        raise UserError(f"{path}: no line follows the names of the columns")
    header = [name.strip() for name in lines[0][1]]
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            hint = "quote texts with commas" if path.suffix == ".csv" else (
                "a tab in a text separates columns: use .csv")
            raise UserError(f"{path}:{number}: {len(cells)} columns, and the first line has "
                            f"{len(header)}; {hint}")
    return header, lines[1:]


def text_columns(path, header):
    """The names of the columns with texts, one or two."""
    columns = [name for name in header if name != LABEL and name.lower() not in LEFT_OUT]
    if len(columns) not in (1, 2):
        raise UserError(f"{path}:1: {len(columns)} columns of texts ({', '.join(columns)}); besides "
                        f"{LABEL}, {', '.join(LEFT_OUT)} there must be one or two")
    return tuple(columns)


def read_examples(path, task, labelled=True):
    """The glue.Example list of a file, with the columns and labels of a glue.Task. labelled: a
    column "label" must be there; elsewhere it is read if it is."""
    header, lines = read_table(path)
    missing = [name for name in task.text if name not in header]
    if missing:
        raise UserError(f"{path}:1: no column is named {missing[0]}; the texts of {task.name} are "
                        f"in {', '.join(task.text)}")
    if labelled and LABEL not in header:
        raise UserError(f"{path}:1: no column is named {LABEL}")
    examples = []
    for number, cells in lines:
        row = dict(zip(header, cells))
        texts = tuple(row[name] for name in task.text)
        if not all(text.strip() for text in texts):
            raise UserError(f"{path}:{number}: an empty text; write one, or leave the line out")
        label = parse_label(row[LABEL], task, f"{path}:{number}") if LABEL in header else None
        examples.append(glue.Example(texts, label))
    return examples


def parse_label(cell, task, place):
    """A label as class number or value."""
    word = cell.strip()
    if task.regression:
        try:
            return float(word)
        except ValueError:
            raise UserError(f"{place}: the label {cell!r} is no number, as the others are"
                            ) from None
    if word not in task.labels:
        raise UserError(f"{place}: train has no label {cell!r}; it has {', '.join(task.labels[:20])}")
    return task.labels.index(word)


def is_number(word):
    try:
        float(word)
    except ValueError:
        return False
    return True


def infer_task(name):
    """The glue.Task of a folder, from its training file: columns, labels and metrics."""
    path = name.files()["train"]
    header, lines = read_table(path)
    if LABEL not in header:
        raise UserError(f"{path}:1: no column is named {LABEL}")
    words = [cells[header.index(LABEL)].strip() for _, cells in lines]
    text = text_columns(path, header)
    if all(map(is_number, words)) and any("." in word for word in words):
        return glue.Task(str(name), (), text, ("pearson", "spearman"))
    labels = tuple(sorted(set(words)))
    if "" in labels:
        raise UserError(f"{path}:{lines[words.index('')][0]}: an empty label")
    if len(labels) < 2:
        raise UserError(f"{path}: all labels are {labels[0]!r}; a task needs two classes")
    return glue.Task(str(name), labels, text, ("accuracy", "macro_f1"))


def write_spec(folder, task):
    """Keep a glue.Task next to a model."""
    spec = {"name": task.name, "labels": task.labels, "text": task.text, "metrics": task.metrics}
    write_json(Path(folder) / SPEC, spec)


def read_spec(folder):
    """The glue.Task that write_spec kept in a folder, None where there is none."""
    path = Path(folder) / SPEC
    if not path.is_file():
        return None
    spec = read_json(path, dict)
    return glue.Task(spec["name"], *(tuple(spec[key]) for key in ("labels", "text", "metrics")))


def write_predictions(path, task, outputs):
    """Write the predicted word, or value, of each example; returns the path."""
    predictions = glue.predictions_of(task, outputs)
    cells = [f"{value:.6g}" if task.regression else task.labels[value] for value in predictions]
    lines = [f"{index}\t{cell}\n" for index, cell in enumerate(cells)]
    write_atomic(path, "index\tprediction\n" + "".join(lines))
    return path
