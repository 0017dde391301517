"""A user's own task: a folder with train and dev files and any labels."""
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import FEW, REVIEWS, call, next_command, write

from common import folder_task, metrics
from common.files import read_json, write_json
from common.cli import Command, UserError
from common.finetune import answer_path, parse_tasks


def make(folder, train=REVIEWS["train"], dev=REVIEWS["dev"], ending="csv"):
    write(f"{folder}/train.{ending}", train)
    write(f"{folder}/dev.{ending}", dev)
    return folder_task.FolderName(folder)


def test_classes_are_words_and_csv_has_quotes():
    name = make("reviews")
    task = folder_task.infer_task(name)
    assert (task.name, task.text) == ("reviews", ("text",))
    assert task.labels == ("angry", "meh", "pleased")
    examples = folder_task.read_examples(name.files()["train"], task)
    assert examples[0] == (('Good, "really" good.',), 2)
    assert examples[2].texts == ("Two\nli\u2028nes",)
    assert [label for _, label in folder_task.read_examples(name.files()["dev"], task)] == [0, 2]


def test_numbers_with_a_decimal_point_are_a_regression():
    train = "a\tb\tlabel\nx\ty\t100.5\nz\tw\t200.5\n"
    name = make("t", train, "a\tb\tlabel\nx\ty\t350\n", "tsv")
    task, splits = folder_task.read_folder(name)
    assert (task.regression, task.text) == (True, ("a", "b"))
    assert [example.label for example in splits["train"]] == [-1, 1]
    path = folder_task.write_predictions(Path("dev.tsv"), task, [[splits["dev"][0].label]])
    assert path.read_text().split()[2:] == ["0", "350"]
    whole = make("u", "a\tlabel\nx\t-100\nz\t2\n", "a\tlabel\nx\t-100\n", "tsv")
    task, splits = folder_task.read_folder(whole)
    assert task.labels == ("-100", "2")  # numbers without a decimal point are classes
    assert splits["dev"][0].label == 0


@pytest.mark.parametrize("train, dev, message", [
    ("text\tlabel\nA\tB\tgood\n", "", "train.tsv:2: 3 columns, and the first line has 2.*.csv"),
    ("text\tclass\nA\tgood\n", "", "train.tsv:1: 0 columns are named label"),
    ("a\tb\tc\tlabel\nA\tB\tC\tgood\n", "", "3 columns of texts"),
    ("text\tlabel\nA\tgood\nB\tgood\n", "", "all labels are 'good'"),
    ("text\tlabel\nA\tgood\nB\t\n", "", "train.tsv:3: an empty label"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "text\tlabel\nA\tworse\n", "dev.tsv:2: train has no label"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "text\tlabel\n \tgood\n", "dev.tsv:2: an empty text"),
    ("text\tlabel\nA\t1.5\nB\t2.5\n", "text\tlabel\nA\tnan\n", "dev.tsv:2: the label 'nan' is no"),
    ("text\tlabel\n" + "A\t1.5\n" * 99 + "A\tx\n", "", "train.tsv:101: the label 'x' is no"),
    ("text\tlabel\nA\t1\nB\t2\nC\tNaN\n", "", "train.tsv:4: the label 'NaN' is not a finite"),
    ("text\tlabel\nA\t1.5\nB\t-inf\n", "", "train.tsv:3: the label '-inf' is not.*leave the line"),
    ("text\tlabel\nA\t1.5\nB\t1.5\n", "", "all labels are '1.5'"),
    ("text\tlabel\nA\t1\nB\t1.0\n", "", "all labels are the number 1; add"),
    ("text\tlabel\nA\tgood\n\nB\tbad\n", "", "train.tsv:3: 1 columns"),
    ("text\ttext\tlabel\nA\tB\tgood\nA\tB\tbad\n", "", "2 columns are named text"),
    ("text\tlabel\n", "", "no line follows"),
    ("a\tclass\nA\tgood\n", "", "named label, not one; the columns are a, class"),
    ("\ttext\tlabel\n0\tA\tgood\n", "", "train.tsv:1: column 1 has no name"),  # of pandas
    ("text;label\nA;good\n", "", "train.tsv:1: one column, 'text;label'; is the separator a semi"),
    ("text,label\nA,good\n", "", "is the separator a comma.*a .tsv file tabs"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "text\tlang\tlabel\nA\tde\tgood\n",
     "dev.tsv:1: train has no column lang"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "\ttext\tlabel\n0\tA\tgood\n",
     "dev.tsv:1: train has no column without a name; leave it out"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "words\tlabel\nA\tgood\n",
     "dev.tsv:1: 0 columns are named text.*the columns here are words, label"),
])
def test_mistakes_are_named_with_file_and_line(train, dev, message):
    name = make("t", train, dev, "tsv")
    with pytest.raises(UserError, match=message):
        task = folder_task.infer_task(name)
        folder_task.read_examples(name.files()["train"], task)
        folder_task.read_examples(name.files()["dev"], task)


def test_files_that_are_missing_or_twice_are_named():
    name = make("t")
    write("t/dev.tsv", REVIEWS["dev"])
    with pytest.raises(UserError, match="there is dev.csv too"):
        name.files()
    Path("t/dev.tsv").unlink()
    Path("t/dev.csv").unlink()
    with pytest.raises(UserError, match="dev.tsv or .csv: no such file"):
        name.files()
    Path("t/train.csv").rename("t/dev.csv")
    with pytest.raises(UserError, match="train.tsv or .csv: no such file"):
        name.files()


def test_semicolons_in_a_csv_file_are_suspected():
    name = make("t", "text;label\n\"Good, really\";good\nBad, bad;bad\n")
    with pytest.raises(UserError, match="train.csv:1: one column.*is the separator a semicolon"):
        folder_task.infer_task(name)


def test_a_text_in_csv_may_be_a_book_and_an_open_quote_is_named_where_it_opens():
    book = "word " * 100_000
    name = make("books", f'text,label\n"{book}",long\nA,short\n')
    assert folder_task.read_table(name.files()["train"])[1][0] == (2, [book, "long"])
    name = make("open", 'text,label\n"A\nB",x\n"C,y\nD,x\nE,y\n')
    with pytest.raises(UserError, match="train.csv:4: not CSV"):
        folder_task.infer_task(name)


def test_a_decimal_comma_and_a_class_that_dev_lacks_are_told():
    train = "text\tlabel\nA\t0,5\nB\t1,5\n"
    name = make("t", train, "text\tlabel\nA\t0,5\n", "tsv")
    with pytest.warns(UserWarning) as told:
        task, _ = folder_task.read_folder(name)
    assert task.labels == ("0,5", "1,5")
    comma, lacking = [str(each.message) for each in told]
    assert "train.tsv: labels with a decimal comma are classes" in comma
    assert "dev.tsv: no example of the label 1,5" in lacking


@pytest.mark.parametrize("text, message", [
    ("my/ticket", "'my/ticket': no such folder or task; choose from"),
    ("rte,./s", "'./s': no such folder"),
    ("Ticket", "'Ticket': no such folder"),
    ("a/mood,b/mood", "has the same name"),
    ("./rte", "name of a known task"),
    ("./jobs", "cannot be called 'jobs'"),
])
def test_a_name_without_folder_or_that_something_else_has_is_refused(text, message):
    for name in ("a/mood", "b/mood", "rte", "jobs"):
        write(f"{name}/train.tsv", "")
        write(f"{name}/dev.tsv", "")
    with pytest.raises(UserError, match=message):
        parse_tasks(text, {"RTE": None})
    assert parse_tasks("rte,a/mood/", {"RTE": None}) == ["RTE", "mood"]


@pytest.mark.parametrize("model, folder", [
    ("run/reviews/", "run/reviews-predictions/new"),
    ("/run/reviews", "/run/reviews-predictions/new"),
    (".", "{here}-predictions/new"),
])
def test_predictions_are_next_to_the_model_as_it_was_named(model, folder, tmp_path):
    command = Command("albert", "predict", "my/new.csv")
    expected = folder.format(here=tmp_path)
    assert str(answer_path(command, SimpleNamespace(init=model))) == expected


def test_predictions_replace_nothing_but_earlier_ones_of_the_same_file(
        ready, monkeypatch, capsys):
    """Nor with the files of other tasks, which it would not replace."""
    write("a/new.tsv", "sentence\nGood.\n")
    write("b/new.tsv", "sentence\nIt broke.\n")
    write("a/new.en", "Good.\n")
    write("b/new.en", "It broke.\n")
    for program, model, ending in (("albert", ready["tuned"] / "CoLA", "tsv"),
                                   ("mformer", ready["mformer"], "en")):
        def ends(status, words="", folder="a", program=program, model=model, ending=ending):
            command = f"{program} --predict {folder}/new.{ending} --init {model} --device cpu"
            assert call(f"{command} {words}", monkeypatch) == status
            return capsys.readouterr().err

        for name in ("test.tsv", "CoLA.tsv", "classes.txt", "translations.de", "notes"):
            theirs = write(f"{program}-theirs/{name}", "theirs")
            line = ends(2, f"--out {theirs.parent}")
            assert f"{theirs}: --predict has not written this file" in line
            assert f"--out {theirs}: it exists already" in ends(2, f"--out {theirs}")
            assert theirs.read_text() == "theirs"
            theirs.unlink()
        assert "it has a run or a model" in ends(2, f"--out {ready['albert']}")
        out = Path(f"{program}-out")
        for _ in range(2):
            ends(0, f"--out {out}")
        assert "it has the predictions for" in ends(2, f"--out {out}", folder="b")
        answers = next(path for path in out.iterdir() if path.name != "predicted.json")
        answers.write_text("edited")
        assert "has not written this file" in ends(2, f"--out {out}")
        assert answers.read_text() == "edited"


def test_a_file_name_in_out_is_a_file_of_predictions(ready, works):
    write("new.tsv", "sentence\nGood.\nIt broke.\n")
    write("new.en", "Good.\nIt broke.\n")
    predict = f"albert --predict new.tsv --init {ready['tuned']}/CoLA --device cpu --out"
    for out in ("p.csv", "new/p.TSV", "folder"):
        works(f"{predict} {out}")
    lines = Path("folder/CoLA.tsv").read_text()
    assert Path("new/p.TSV").read_text() == lines
    assert Path("p.csv").read_text() == lines.replace("\t", ",")
    works("mformer --predict new.en --init {mformer} --device cpu --out p.de")
    assert Path("p.de").read_text().count("\n") == 2


@pytest.mark.parametrize("predictions, labels, expected", [
    ([0, 1, 2, 2], [0, 2, 2, 1], 0.5), ([0, 0, 0], [0, 1, 2], 1 / 6), ([1, 1], [1, 1], 1.0)])
def test_macro_f1_is_scikit_learns(predictions, labels, expected):
    assert metrics.macro_f1(predictions, labels) == pytest.approx(expected)


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_folder_is_fine_tuned_predicted_and_exported(
        program, works, monkeypatch, capsys):
    make("reviews")
    write("new.csv", "text,label\nIt broke.,?\nGood.,\n")  # labels are not read
    few = FEW.removeprefix("--finetune_epochs 1 ") + " --runs 2 --device cpu"
    tune = f"{program} --finetune reviews/ --init {{{program}}} --out run {few}"
    works(tune)
    printed = capsys.readouterr().out
    assert "classes angry, meh, pleased; texts: text; examples: 3 train, 2 dev" in printed
    assert "macro_f1" in printed
    assert read_json("run/done.json")["tasks"]["reviews"]["headline"] == "accuracy"
    one, two = [path.read_bytes() for path in Path("run/jobs").glob("*/checkpoint.pt")]
    assert one != two  # seeds of their own
    works(next_command(printed))
    config = read_json("run/config.json")
    assert "reviews" in config["writes"]
    write_json("run/config.json", config | {"writes": ["older"]})
    write("run/older/dev.tsv", "of a run of another task")
    works(f"{tune} --restart")
    assert not Path("run/older").exists()
    if program == "albert":
        capsys.readouterr()
        works("albert --finetune reviews --ensemble run --out mean --device cpu")
        printed = capsys.readouterr().out
        assert "mean: finished (--restart begins again); result: mean/reviews\n" in printed
        assert "--predict" not in printed
        shutil.copytree("run", "other")
        spec = read_json("other/reviews/task.json")
        write_json("other/reviews/task.json", spec | {"labels": ["bad", "meh", "good"]})
        assert call("albert --finetune reviews --ensemble run other --out no", monkeypatch) == 2
        printed = capsys.readouterr().err
        assert "--ensemble run other" in printed and "angry, meh, pleased" in printed
    works(f"{program} --predict new.csv --init run/reviews")
    lines = Path("run/reviews-predictions/new/test.tsv").read_text().split()[2:]
    assert {*lines[1::2]} <= {"angry", "meh", "pleased"}
    works(f"{program} --export hf --init run/reviews")
    assert read_json("hf/config.json")["id2label"]["2"] == "pleased"
    if program != "autobert_zero":  # the others predict with an exported folder too
        works(f"{program} --predict new.csv --init hf --out again")
        assert Path("again/test.tsv").read_text().split()[2:] == lines
    if program == "albert":
        exported = read_json("hf/config.json")
        settings = read_json("run/reviews/config.json")["settings"]
        assert exported["finetune_length"] == settings["finetune_length"] == 64
        assert exported["recipe"] == settings["recipe"]
