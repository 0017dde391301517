"""GLUE files of every shape, batches, scores and leaderboard files."""
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import write
from test_squad import WORDS, tokenizer  # noqa: F401  (tokenizer is a fixture)

from common import glue
from common.cli import UserError
from data import demo


def table(task, rows, labelled=True):
    """A TSV file of a task as the demo data have it; rows: (sentence A, sentence B, label)."""
    columns = demo.GLUE[task.replace("WNLI", "RTE")][2 if labelled else 3]
    count = len(glue.TASKS[task].text)
    rows = [(label, sentences[:count]) for *sentences, label in rows]
    return demo.tsv(columns, rows, header=task != "CoLA" or not labelled)


# --- files

@pytest.mark.parametrize("task", glue.TASKS.values(), ids=glue.TASKS)
def test_every_official_layout(task, tmp_path):
    labels = task.labels or ("0.0", "3.25", "5.000")
    values = list(range(len(labels))) if task.labels else [0.0, 3.25, 5.0]
    matched = "_matched" if task.name == "MNLI" else ""
    rows = [(f'He said "{i}', f"B{i}", label) for i, label in enumerate(labels)]
    first = [row[0] for row in rows]
    second = [row[1] for row in rows] if len(task.text) == 2 else None
    for split in ("train", "dev", "test"):
        name = split + matched * (split != "train")
        content = table(task.name, rows, labelled=split != "test")
        write(tmp_path / f"{task.name}/{name}.tsv", content)
        loaded = glue.load(tmp_path, task, split)
        unlabelled = glue.load_unlabelled(loaded.path, task)  # any of them can be predicted
        assert loaded.first == unlabelled.first == first
        assert loaded.second == unlabelled.second == second
        assert (loaded.labels is None) == (split == "test")
        if split != "test":
            assert loaded.labels.tolist() == values
            assert loaded.labels.dtype == (np.int64 if task.labels else np.float32)


def test_mnli_dev_has_more_columns_and_two_parts(tmp_path):
    columns = [*demo.MNLI_COLUMNS.split("|"), *(f"label{i}" for i in range(1, 6)), "gold_label"]
    row = "0\t1\t2\tg\tx\tx\tx\tx\t{}\tb" + "\tneutral" * 5 + "\tentailment"
    for split, part in (("dev", "matched"), ("dev_mismatched", "mismatched")):
        content = "\t".join(columns) + f"\n{row.format(part)}\n"
        write(tmp_path / f"MNLI/dev_{part}.tsv", content)
        loaded = glue.load(tmp_path, "MNLI", split)
        assert loaded.first == [part]
        assert loaded.labels.tolist() == [1]


def test_marks_line_ends_and_quotes_are_not_interpreted(tmp_path):
    first = ['He said "no', "two\u2028three\x85four\rfive", "  a"]
    second = ['it\'s ""', '"', "b "]
    content = table("MRPC", [*zip(first, second, "101")]).replace("\n", "\r\n")
    write(tmp_path / "MRPC/train.tsv", b"\xef\xbb\xbf" + content.encode() + b"\r\n\r\n")
    loaded = glue.load(tmp_path, "MRPC", "train")
    assert loaded.first == first
    assert loaded.second == second
    assert loaded.labels.tolist() == [1, 0, 1]


def test_malformed_rows_are_skipped_with_one_warning_and_keep_their_place_in_test(tmp_path):
    lines = table("QQP", [(f"a{i}", f"b{i}", "1") for i in range(5)]).split("\n")
    lines[2] = "lost"
    lines[4] = "1\t2\t3\ta\tb\t1\tsurplus"
    lines[5] += "\t\t"  # empty cells at the end are ignored
    write(tmp_path / "QQP/train.tsv", "\n".join(lines))
    with pytest.warns(UserWarning, match="train.tsv:3: 2 rows do not have 6 columns") as caught:
        assert glue.load(tmp_path, "QQP", "train").first == ["a0", "a2", "a4"]
    assert len(caught) == 1
    write(tmp_path / "QQP/test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n1\tlost\n2\tc\td\n")
    with pytest.warns(UserWarning, match=r"test.tsv:3: 1 rows .* keep their place"):
        loaded = glue.load(tmp_path, "QQP", "test")
    assert loaded.first == ["a", "lost", "c"]


@pytest.mark.parametrize("task, content, message", [
    ("RTE", table("RTE", [("a", "b", "maybe")]), "train.tsv:2: RTE has no label 'maybe'"),
    ("STS-B", table("STS-B", [("a", "b", "5.1")]), "train.tsv:2: STS-B has no score '5.1'"),
    ("QQP", "a\tb\n1\t2\n", "train.tsv:1: 2 columns"),
    ("SST-2", "fine\t1\nbad\t0\n", "train.tsv:1: .*header is missing"),
], ids=["label", "score", "columns", "header"])
def test_mistakes_name_file_and_line(task, content, message, tmp_path):
    write(tmp_path / f"{task}/train.tsv", content)
    with pytest.raises(UserError, match=message):
        glue.load(tmp_path, task, "train")


def test_labels_of_a_users_file_are_read_where_every_row_has_one(tmp_path):
    task, path = glue.TASKS["RTE"], tmp_path / "mine.tsv"
    write(path, "sentence1\tsentence2\tlabel\na\tb\tentailment\nc\td\tnot_entailment\n")
    assert glue.load_unlabelled(path, task).labels is None  # of an official test file nothing else is read
    assert glue.load_unlabelled(path, task, labelled=True).labels.tolist() == [0, 1]
    write(path, "sentence1\tsentence2\tlabel\na\tb\tentailment\nc\td\t-1\n")
    with pytest.warns(UserWarning, match="mine.tsv:3: RTE has no label '-1'.*no score is computed"):
        assert glue.load_unlabelled(path, task, labelled=True).labels is None
    write(path, "sentence1\tsentence2\na\tb\n")
    assert glue.load_unlabelled(path, task, labelled=True).labels is None


@pytest.mark.parametrize("positions, hint", [(512, "use --finetune_length 24$"), (20, "use --finetune_length 20$"),
                                             (12, "the model has 12 positions$")])
def test_one_warning_says_how_many_examples_are_cut_and_what_keeps_them(positions, hint):
    splits = [given(range(10), range(size), 12) for size in (8, 2, 1)]  # 21, 15 and 14 tokens
    with pytest.warns(UserWarning, match=f"CoLA: 3 of 3 .* longer than 12 tokens .* longest has 21; {hint}") as caught:
        glue.warn_about_cuts("CoLA", splits, positions)
    assert len(caught) == 1


# --- batches

def given(first, second, longest):
    """Features of one example whose tokens are given."""
    tokens = {"first": first, "second": second}
    encode = lambda texts: [tokens[text] for text in texts]  # noqa: E731
    tokenizer = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0, encode_batch=encode)
    data = glue.Examples(["first"], second and ["second"], None, Path("X/train.tsv"))
    return glue.encode(data, tokenizer, longest)


@pytest.mark.parametrize("a, b, longest", [
    (10, 3, 12),
    (3, 10, 12),
    (10, 9, 18),
    (9, 9, 14),
    (0, 9, 8),
    (5, None, 5),
])
def test_pair_cuts_the_longer_from_its_end(a, b, longest):
    first = list(range(100, 100 + a))
    second = None if b is None else list(range(200, 200 + b))
    ids, segments = row_of(given(first, second, longest), 0)
    kept = [first, second or []]
    while len(kept[0]) + len(kept[1]) > longest - (2 if b is None else 3):  # BERT's loop
        longer = 0 if len(kept[0]) > len(kept[1]) else 1
        kept[longer] = kept[longer][:-1]
    tail = [] if b is None else [*kept[1], 3]
    assert ids == [2, *kept[0], 3, *tail]
    assert segments == [0] * (len(kept[0]) + 2) + [1] * len(tail)


def row_of(features, i):
    """(ids, segments) of an example, without padding."""
    batch = features.batch(np.array([i]), features.max_length)
    size = features.lengths[i]
    return batch["ids"][0, :size].tolist(), batch["segments"][0, :size].tolist()


def test_batches_hold_every_example_once_in_an_order_of_seed_and_epoch(tokenizer):  # noqa: F811
    draw = random.Random(0)
    first, second = (
        [" ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for _ in range(203)]
        for _ in range(2))
    data = glue.Examples(first, second, np.arange(203) % 2, Path("X/train.tsv"))
    features = glue.encode(data, tokenizer, max_length=100)

    def order(seed, epoch=0):
        found = []
        for batch in glue.batches(features, 16, seed=seed, epoch=epoch):
            longest = int(batch["lengths"].max())
            assert batch["ids"].shape[1] == min(-(-longest // 8) * 8, 100)
            for row, i in enumerate(batch["index"].tolist()):
                n = int(batch["lengths"][row])
                ids, segments = row_of(features, i)
                assert batch["ids"][row, :n].tolist() == ids
                assert batch["segments"][row, :n].tolist() == segments
                assert (batch["ids"][row, n:] == tokenizer.pad_id).all()
                assert batch["labels"][row] == features.labels[i]
                found.append(i)
        assert sorted(found) == list(range(203))
        return found

    assert order(5) == order(5)
    assert len({*map(tuple, (order(5), order(5, 1), order(6), order(None)))}) == 4
    assert features.lengths[order(None)].tolist() == sorted(features.lengths.tolist())


# --- scores

def scores_of(names):
    """0.1, 0.2 ... for the main metric, and half of it for a second one."""
    found = {}
    for i, name in enumerate(names, 1):
        first, *second = glue.TASKS[name.removesuffix("-mm")].metrics
        found[name] = {first: i / 10, **{each: i / 20 for each in second}, "main": i / 10}
    return found


def test_averages():
    names = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "MNLI-mm", "QNLI", "RTE", "WNLI"]
    found = glue.averages(scores_of(names))
    assert found["paper_avg"] == pytest.approx(0.5)  # all but WNLI
    # MRPC, STS-B, QQP: two metrics; MNLI: two parts
    board = [0.1, 0.2, 0.225, 0.3, 0.375, 0.65, 0.8, 0.9, 1.0]
    assert found["glue_avg"] == pytest.approx(sum(board) / 9)
    assert found["paper_missing"] == found["glue_missing"] == []
    few = glue.averages(scores_of(["CoLA", "MNLI"]))
    assert few["paper_avg"] == few["glue_avg"] == pytest.approx(0.15)
    assert few["glue_missing"][-1] == "MNLI-mm"
    assert glue.averages(scores_of(["WNLI"]))["paper_avg"] is None


@pytest.mark.parametrize("task, split, outputs, name, lines", [
    ("RTE", "test", [[1.0, 0.0], [0.0, 1.0]], "RTE.tsv", "0\tentailment\n1\tnot_entailment\n"),
    ("CoLA", "test", [[1.0, 2.0]], "CoLA.tsv", "0\t1\n"),
    ("STS-B", "test", [[-1.0], [2.5], [7.0]], "STS-B.tsv", "0\t0.000\n1\t2.500\n2\t5.000\n"),
    ("MNLI", "test", [[0.0, 0.0, 1.0]], "MNLI-m.tsv", "0\tneutral\n"),
    ("MNLI", "test_mismatched", [[0.0, 0.0, 1.0]], "MNLI-mm.tsv", "0\tneutral\n"),
])
def test_submissions_have_the_leaderboard_format(task, split, outputs, name, lines, tmp_path):
    path = glue.write_submission(tmp_path / "new", glue.TASKS[task], np.array(outputs), split)
    assert path.name == name
    assert path.read_text() == "index\tprediction\n" + lines
