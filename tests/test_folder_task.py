"""A user's own task: a folder with train and dev files and any labels."""
import csv
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_runs import FEW, REVIEWS, call, next_command, write

from common import folder_task, metrics
from common.files import read_json, write_json
from common.cli import Command, UserError
from common.finetune import answer_path, keep_answers, parse_tasks
from common.tasks import Recipe
from common.tokenization import load_tokenizer

OWN = SimpleNamespace(columns="", labels="auto")  # the flags of own tasks


def make(folder, train=REVIEWS["train"], dev=REVIEWS["dev"], ending="csv", **flags):
    write(f"{folder}/train.{ending}", train)
    write(f"{folder}/dev.{ending}", dev)
    return folder_task.FolderName(folder, **flags)


def test_classes_are_words_and_csv_has_quotes():
    name = make("reviews")
    task = folder_task.infer_task(name)
    assert (task.name, task.text) == ("reviews", ("text",))
    assert task.labels == ("angry", "meh", "pleased")
    examples = folder_task.read_examples(name.files()["train"], task)
    assert examples[0][:2] == (('Good, "really" good.',), 2)
    assert examples[2].texts == ("Two\nli\u2028nes",)
    dev = folder_task.read_examples(name.files()["dev"], task)
    assert [example.label for example in dev] == [0, 2]


def test_equal_labels_in_dev_are_in_the_result(ready):
    one = "text,label,id\nIt broke.,angry,1\nGood.,angry,2\n"
    source = folder_task.FolderTask.read(make("reviews", dev=one), "")
    task = folder_task.FolderTask("reviews", source, load_tokenizer(ready["corpus"]), Recipe(1, 1))
    assert task.context()["constant"]


def test_numbers_with_a_decimal_point_are_a_regression():
    train = "Text1\ttext2\tlabel\nx\ty\t100.5\nz\tw\t200.5\n"
    name = make("t", train, "Text1\ttext2\tlabel\nx\ty\t350\n", "tsv")
    task, splits = folder_task.read_folder(name)
    assert (task.regression, task.text) == (True, ("Text1", "text2"))
    assert [example.label for example in splits["train"]] == [-1, 1]
    path = Path("dev.csv")
    folder_task.write_predictions(path, task, splits["dev"], [[splits["dev"][0].label]])
    assert path.read_text() == "Text1,text2,predicted\nx,y,350\n"
    whole = make("u", "a\tlabel\nx\t-100\nz\t2\n", "a\tlabel\nx\t-100\n", "tsv")
    task, splits = folder_task.read_folder(whole)
    assert task.labels == ("-100", "2")  # numbers without a decimal point are classes
    assert splits["dev"][0].label == 0


@pytest.mark.parametrize("words, flag, labels, other", [
    ("10 9 2", "auto", "2 9 10", "--labels numbers"),  # not in the order of the text
    ("b 10 9", "auto", "10 9 b", ""),
    ("0.0 1.0", "auto", "", "--labels classes"),
    ("1.0 0.0", "classes", "0.0 1.0", "--labels numbers"),
    ("1 2", "numbers", "", "--labels classes"),
    ("nan x", "classes", "nan x", ""),
])
def test_labels_are_classes_or_numbers(words, flag, labels, other):
    lines = "".join(f"A\t{word}\n" for word in words.split())
    task = folder_task.infer_task(make("t", "text\tlabel\n" + lines, "", "tsv", labels=flag))
    assert task.labels == tuple(labels.split())
    assert (other in task.other_kind) and bool(other) == bool(task.other_kind)


def own_task(header, columns):
    """(task, examples by split) of a task whose texts are the names of their columns."""
    lines = [header.replace("label", word) for word in ("label", "x", "y")]
    table = "".join(f"{line}\n" for line in lines)
    return folder_task.read_folder(make("t", table, table, columns=columns))


@pytest.mark.parametrize("header, columns, text", [
    ("sentence,source,label", "sentence", "sentence"),
    ("a,b,label", "b, a", "b a"),
    ("Premise,HYPOTHESIS,label", "", "Premise HYPOTHESIS"),
    ("review,id,label", "", "review"),
])
def test_texts_are_in_columns_with_usual_names_or_named_ones(header, columns, text):
    task, splits = own_task(header, columns)
    assert task.text == splits["dev"][0].texts == tuple(text.split())


@pytest.mark.parametrize("header, columns, message", [
    ("source,sentence,label", "", "which columns are texts: source, sentence"),
    ("question,answer,passage,label", "", "which columns are texts"),
    ("a,b,label", "c", "--columns c: name one or two columns"),
    ("a,b,label", "label", "--columns label: name"),
    ("a,b,label", "a,a", "--columns a,a: name"),
])
def test_other_columns_than_those_of_texts_are_no_texts(header, columns, message):
    with pytest.raises(UserError, match=message):
        own_task(header, columns)


def first_text(file, content):
    """The text of a file's only example."""
    task = folder_task.OwnSpec("t", ("x", "y"), ("text",), ("accuracy",))
    example, = folder_task.read_examples(write(file, content), task, labelled=False)
    return example.texts[0]


@pytest.mark.parametrize("file, content, text", [
    ("p.CSV", 'text,label\n"A, ""b""",x\n', 'A, "b"'),
    ("p.txt", 'text,label\n"A, ""b""",x\n', 'A, "b"'),
    ("p.txt", 'text\tlabel\n"A, b"\tx\n', '"A, b"'),
    ("p.TSV", 'text\tlabel\n"A, b"\tx\n', '"A, b"'),
    ("p.csv", 'text\n"A, b"\n', "A, b"),
])
def test_commas_or_tabs_are_those_of_the_suffix_or_the_first_line(file, content, text):
    assert first_text(file, content) == text


@pytest.mark.parametrize("content", ['text\n"A, b"\n', "text\tlabel, of mine\nA\tx\n"])
def test_a_file_that_may_have_commas_or_tabs_is_refused(content):
    with pytest.raises(UserError, match="p.txt: name it .csv .commas, quotes. or .tsv"):
        first_text("p.txt", content)


def test_a_suffix_has_any_case():
    name = make("t", ending="CSV")
    assert folder_task.infer_task(name).labels == ("angry", "meh", "pleased")


@pytest.mark.parametrize("train, dev, message", [
    ("text\tlabel\nA\tB\tgood\n", "", "train.tsv:2: 3 columns, and the first line has 2.*.csv"),
    ("text\tclass\nA\tgood\n", "", "train.tsv:1: 0 columns are named label"),
    ("a\tb\tc\tlabel\nA\tB\tC\tgood\n", "", "which columns are texts: a, b, c.*--columns"),
    ("text\tlabel\nA\tgood\nB\tgood\n", "", "all labels are 'good'"),
    ("text\tlabel\nA\tgood\nB\t\n", "", "train.tsv:3: an empty label"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "text\tlabel\nA\tworse\n", "dev.tsv:2: train has no label"),
    ("text\tlabel\nA\tgood\nB\tbad\n", "text\tlabel\n \tgood\n", "dev.tsv:2: an empty text"),
    ("text\tlabel\nA\t1.5\nB\t2.5\n", "text\tlabel\nA\tnan\n", "dev.tsv:2: the label 'nan' is no"),
    ("text\tlabel\n" + "A\t1.5\n" * 99 + "A\tx\n", "", "train.tsv:101: the label 'x' is no"),
    ("text\tlabel\nA\t1\nB\t2\nC\tNaN\n", "", "train.tsv:4: the label 'NaN' is not a finite"),
    ("text\tlabel\nA\t1.5\nB\t-inf\n", "", "train.tsv:3: the label '-inf' is not.*leave the line"),
    ("text\tlabel\nA\t1.5\nB\t-1.7e308\n", "", "train.tsv:3: the label '-1.7e308' is too large"),
    ("text\tlabel\nA\t1.5\nB\t2\n", "text\tlabel\nA\t1e999\n", "dev.tsv:2: .* is too large"),
    ("text\tlabel\nA\t1.5\nB\t1.5\n", "", "all labels are '1.5'"),
    ("text\tlabel\nA\t1\nB\t1.0\n", "", "all labels are the number 1; add"),
    ("text\tlabel\nA\tgood\n\nB\tbad\n", "", "train.tsv:3: 1 columns"),
    ("text\ttext\tlabel\nA\tB\tgood\nA\tB\tbad\n", "", "2 columns are named text"),
    ("text\tlabel\n", "", "no line follows"),
    ("a\tclass\nA\tgood\n", "", "named label, not one; the columns are a, class"),
    ("\ttext\tlabel\n0\tA\tgood\n", "", "train.tsv:1: column 1 has no name"),  # of pandas
    ("text;label\nA;good\n", "", "train.tsv:1: one column, 'text;label'; is the separator a semi"),
    ("text,label\nA,good\n", "", "is the separator a comma.*a .tsv file tabs"),
    ("text\tlabel\nA\tgood, old\nB\tbad\n", "text\tlabel\nA\tgood\n",
     'it has bad, "good, old"; correct it, or add such an example to train'),
    ("text\tlabel\nA\tgood\nB\tbad\n", "words\tlabel\nA\tgood\n",
     "dev.tsv:1: 0 columns are named text.*the columns here are words, label"),
])
def test_mistakes_are_named_with_file_and_line(train, dev, message):
    name = make("t", train, dev, "tsv")
    with pytest.raises(UserError, match=message):
        task = folder_task.infer_task(name)
        folder_task.read_examples(name.files()["train"], task)
        folder_task.read_examples(name.files()["dev"], task)


@pytest.mark.parametrize("numbers, label", [("01", "-1"), ("01", ""), (("0.5", "1.5"), "")])
def test_labels_of_a_test_file_that_mean_none_are_told_to_be_left_out(numbers, label):
    table = "text,label\nA,{}\nB,{}\n".format(*numbers)
    make("t", table, table)
    write("t/test.csv", f"text,label\nA,{label}\n")
    with pytest.raises(UserError, match="test.csv:2: .*leave the column label out of a test file"):
        folder_task.read_folder(folder_task.FolderName("t"))


def test_files_that_are_missing_or_twice_are_named():
    name = make("t")
    write("t/dev.tsv", REVIEWS["dev"])
    with pytest.raises(UserError, match="there is dev.tsv too"):
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
    assert 'dev.tsv: no example of the label "1,5"' in lacking


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
        parse_tasks(text, {"RTE": None}, OWN)
    assert parse_tasks("rte,a/mood/", {"RTE": None}, OWN) == ["RTE", "mood"]
    with pytest.raises(UserError, match="--columns, --labels: they are for a folder of your own"):
        parse_tasks("rte", {"RTE": None}, SimpleNamespace(columns="text", labels="auto"))


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


@pytest.mark.parametrize("header, added", [
    ("id,text,note", "predicted,p(bad),p(good)"),
    ("Label,text,label", "predicted,p(bad),p(good)"),  # ignored, as a label is
    ("bad,text,good", "predicted,p(bad),p(good)"),
    ("predicted,text,p(bad)", "predicted_,p(bad)_,p(good)"),  # earlier predictions
])
def test_predictions_have_the_columns_of_the_file_and_a_probability_of_each_class(header, added):
    task = folder_task.OwnSpec("t", ("bad", "good"), ("text",), ("accuracy",))
    path = write("new.csv", f'{header}\n"a, ""b""","Two\nli\tnes","c\rd"\n')
    examples = folder_task.read_examples(path, task, labelled=False)
    folder_task.write_predictions("out.csv", task, examples, torch.tensor([[0.25, 0.75]]).log())
    [names, cells] = csv.reader(Path("out.csv").open(newline=""))
    kept = {name: cell for name, cell in zip(header.split(","), ['a, "b"', "Two\nli\tnes", "c\rd"])
            if name.lower() != "label"}
    assert names == [*kept, *added.split(",")]
    assert cells == [*kept.values(), "good", "0.250000", "0.750000"]


def test_predictions_in_a_tsv_file_have_a_line_for_each_example():
    command = Command("albert", "predict", "new.csv", given={"out"})
    write("made.csv", 'text,predicted\n"Two\nli\tnes, ""b""",good\n')
    cfg = SimpleNamespace(init="run", out="out.tsv")
    path = keep_answers(command, cfg, lambda folder: Path("made.csv"))
    assert path.read_text() == 'text\tpredicted\nTwo li nes, "b"\tgood\n'


@pytest.mark.parametrize("predictions, labels, expected", [
    ([0, 1, 2, 2], [0, 2, 2, 1], 0.5), ([0, 0, 0], [0, 1, 2], 1 / 6), ([1, 1], [1, 1], 1.0)])
def test_macro_f1_is_scikit_learns(predictions, labels, expected):
    assert metrics.macro_f1(predictions, labels) == pytest.approx(expected)


def probabilities(path):
    """The last three columns of predictions."""
    _, *rows = csv.reader(Path(path).read_text().splitlines())
    return [float(cell) for row in rows for cell in row[-3:]]


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_folder_is_fine_tuned_predicted_and_exported(
        program, works, monkeypatch, capsys):
    make("reviews", REVIEWS["train"].replace("ID,", "source,"))
    write("new.csv", "text,label,number\nIt broke.,?,7\n\"Good, \",,8\n")  # labels are not read
    few = FEW.removeprefix("--finetune_epochs 1 ") + " --runs 2 --device cpu --columns text"
    tune = f"{program} --finetune reviews/ --init {{{program}}} --out run {few}"
    works(tune)
    printed = capsys.readouterr().out
    assert "classes angry, meh, pleased; texts: text; examples: 3 train, 2 dev" in printed
    assert "macro_f1" in printed
    assert read_json("run/done.json")["tasks"]["reviews"]["headline"] == "accuracy"
    one, two = [path.read_bytes() for path in Path("run/jobs").glob("*/checkpoint.pt")]
    assert one != two  # seeds of their own
    works(next_command(printed))
    if program == "albert":
        capsys.readouterr()
        works("albert --finetune reviews --ensemble run --out mean --device cpu --columns text")
        of_member = probabilities("run/reviews/dev.csv")
        assert probabilities("mean/reviews/dev.csv") == pytest.approx(of_member, abs=2e-6)
        printed = capsys.readouterr().out
        assert "mean: finished (--restart begins again); result: mean/reviews\n" in printed
        assert "--predict" not in printed
        shutil.copytree("run", "other")
        spec = read_json("other/reviews/task.json")
        write_json("other/reviews/task.json", spec | {"labels": ["bad", "meh", "good"]})
        both = "albert --finetune reviews --columns text --ensemble run other --out no"
        assert call(both, monkeypatch) == 2
        printed = capsys.readouterr().err
        assert "--ensemble run other" in printed and "angry, meh, pleased" in printed
    works(f"{program} --predict new.csv --init run/reviews")
    predictions = Path("run/reviews-predictions/new/test.csv").read_text()
    header, *rows = csv.reader(predictions.splitlines())
    assert header == "text number predicted p(angry) p(meh) p(pleased)".split()
    assert [row[:2] for row in rows] == [["It broke.", "7"], ["Good, ", "8"]]
    for _, _, label, *numbers in rows:
        numbers = [*map(float, numbers)]
        assert sum(numbers) == pytest.approx(1, abs=1e-5)
        assert ("angry", "meh", "pleased")[numbers.index(max(numbers))] == label
    assert Path("run/reviews/dev.csv").read_text().startswith("text,id,predicted,p(angry)")
    works(f"{program} --export hf --init run/reviews")
    assert read_json("hf/config.json")["id2label"]["2"] == "pleased"
    if program != "autobert_zero":  # the others predict with an exported folder too
        works(f"{program} --predict new.csv --init hf --out again")
        assert Path("again/test.csv").read_text() == predictions
        exported = read_json("hf/config.json")
        settings = read_json("run/reviews/config.json")["settings"]
        assert exported["finetune_length"] == settings["finetune_length"] == 64
        assert exported.get("recipe") == settings.get("recipe")
