"""A task of one's own: a folder with train and dev files, any labels."""
import pytest
from conftest import filled
from small_runs import FEW, call, write

from common import folder_task, metrics
from common.files import read_json
from common.cli import UserError

TRAIN = 'id,text,label\n1,"Good, ""really"" good.",pleased\n2,It broke.,angry\n3,"Two\nlines",meh\n'
DEV = "text,label,id\nIt broke.,angry,1\nGood.,pleased,2\n"


def make(folder, train=TRAIN, dev=DEV, ending="csv"):
    write(folder / f"train.{ending}", train)
    write(folder / f"dev.{ending}", dev)
    return folder_task.FolderName(folder)


def test_classes_are_words_and_csv_has_quotes(tmp_path):
    name = make(tmp_path / "reviews")
    task = folder_task.infer_task(name)
    assert (task.name, task.labels, task.text) == ("reviews", ("angry", "meh", "pleased"), ("text",))
    examples = folder_task.read_examples(name.files()["train"], task)
    assert examples[0] == (('Good, "really" good.',), 2)
    assert examples[2].texts == ("Two\nlines",)
    assert [label for _, label in folder_task.read_examples(name.files()["dev"], task)] == [0, 2]


def test_numbers_with_a_decimal_point_are_a_regression(tmp_path):
    name = make(tmp_path / "t", "a\tb\tlabel\nx\ty\t1.5\nz\tw\t2\n", "a\tb\tlabel\nx\ty\t1\n", "tsv")
    task = folder_task.infer_task(name)
    assert (task.regression, task.text) == (True, ("a", "b"))
    whole = make(tmp_path / "u", "a\tlabel\nx\t1\nz\t2\n", "a\tlabel\nx\t1\n", "tsv")
    assert folder_task.infer_task(whole).labels == ("1", "2")


@pytest.mark.parametrize("train, dev, message", [
    ("text\tlabel\nA\tB\tgood\n", "", "train.tsv:2: 3 columns, and the first line has 2.*.csv"),
    ("text\tclass\nA\tgood\n", "", "train.tsv:1: no column is named label"),
    ("a\tb\tc\tlabel\nA\tB\tC\tgood\n", "", "3 columns of texts"),
    ("text\tlabel\nA\tgood\nB\tgood\n", "", "all labels are 'good'"),
    ("text\tlabel\nA\tgood\nB\t\n", "", "train.tsv:3: an empty label"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "text\tlabel\nA\tworse\n", "dev.tsv:2: train has no label"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "text\tlabel\n \tgood\n", "dev.tsv:2: an empty text"),
    ("text\tlabel\nA\t1.5\nB\t2.5\n", "text\tlabel\nA\tx\n", "dev.tsv:2: the label 'x' is no number"),
    ("text\tlabel\n", "", "no line follows"),
])
def test_mistakes_are_named_with_file_and_line(train, dev, message, tmp_path):
    name = make(tmp_path / "t", train, dev, "tsv")
    with pytest.raises(UserError, match=message):
        task = folder_task.infer_task(name)
        folder_task.read_examples(name.files()["train"], task)
        folder_task.read_examples(name.files()["dev"], task)


def test_files_that_are_missing_or_twice_are_named(tmp_path):
    name = make(tmp_path / "t")
    write(tmp_path / "t" / "dev.tsv", DEV)
    with pytest.raises(UserError, match="there is dev.csv too"):
        name.files()
    (tmp_path / "t" / "dev.tsv").unlink()
    (tmp_path / "t" / "dev.csv").unlink()
    with pytest.raises(UserError, match="dev.tsv: no such file"):
        name.files()


@pytest.mark.parametrize("predictions, labels, expected", [
    ([0, 1, 2, 2], [0, 2, 2, 1], 0.5), ([0, 0, 0], [0, 1, 2], 1 / 6), ([1, 1], [1, 1], 1.0)])
def test_macro_f1_is_scikit_learns(predictions, labels, expected):
    assert metrics.macro_f1(predictions, labels) == pytest.approx(expected)


def test_a_folder_is_fine_tuned_predicted_and_exported(ready, tmp_path, monkeypatch, capsys):
    make(tmp_path / "reviews")
    write(tmp_path / "new.csv", "text\nIt broke.\nGood.\n")
    monkeypatch.chdir(tmp_path)
    tune = f"albert --finetune {{here}}/reviews --init {{albert}} --out run --device cpu {FEW}"
    assert not call(filled(tune, here=tmp_path, **ready), monkeypatch)
    printed = capsys.readouterr().out
    assert "macro_f1" in printed and "first line names text" in printed
    assert read_json(tmp_path / "run/done.json")["tasks"]["reviews"]["headline"] == "accuracy"
    assert not call("albert --predict new.csv --init run/reviews", monkeypatch)
    lines = (tmp_path / "new-predictions/test.tsv").read_text().split()[2:]
    assert {*lines[1::2]} <= {"angry", "meh", "pleased"}
    assert not call("albert --export hf --init run/reviews", monkeypatch)
    assert read_json(tmp_path / "hf/config.json")["id2label"]["2"] == "pleased"
    assert not call("albert --predict new.csv --init hf --out again", monkeypatch)
    assert (tmp_path / "again/test.tsv").read_text().split()[2:] == lines
