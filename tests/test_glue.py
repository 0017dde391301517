"""GLUE files of every shape, batches, scores and leaderboard files."""
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import write
from test_squad import WORDS, tokenizer  # noqa: F401  (tokenizer is a fixture)

from common import glue
from common.cli import UserError
from data import demo

def table(task, rows, labelled=True):
    """The content of a TSV file of a task, as the demo data have it; rows: (sentence A, sentence B, label)."""
    columns = demo.GLUE[task.replace("WNLI", "RTE")][3 if labelled else 4]
    rows = [(label, sentences[:len(glue.TASKS[task].text)]) for *sentences, label in rows]
    return demo.tsv(columns, rows, header=task != "CoLA" or not labelled)


def examples(count, longest=60):
    draw = random.Random(0)
    sides = [[" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)] for _ in range(2)]
    return glue.Examples(*sides, np.arange(count, dtype=np.int64) % 2, Path("X/train.tsv"))


# --- files

@pytest.mark.parametrize("task", glue.TASKS.values(), ids=glue.TASKS)
def test_every_official_layout(task, tmp_path):
    labels, matched = task.labels or ("0.0", "3.25", "5.000"), "_matched" * (task.name == "MNLI")
    rows = [(f'He said "{i}', f"B{i}", label) for i, label in enumerate(labels)]
    for split, name in (("train", "train"), ("dev", f"dev{matched}"), ("test", f"test{matched}")):
        write(tmp_path / f"{task.name}/{name}.tsv", table(task.name, rows, labelled=split != "test"))
        loaded = glue.load(tmp_path, task, split)
        assert loaded.first == [row[0] for row in rows] and len(loaded) == len(rows)
        assert loaded.second == ([row[1] for row in rows] if len(task.text) == 2 else None)
        asked = glue.load_unlabelled(loaded.path, task)  # a tuned model can answer any of them
        assert (asked.first, asked.second) == (loaded.first, loaded.second)
        if split == "test":
            assert loaded.labels is None
        else:
            assert loaded.labels.tolist() == (list(range(len(rows))) if task.labels else [0.0, 3.25, 5.0])
            assert loaded.labels.dtype == (np.int64 if task.labels else np.float32)


def test_mnli_dev_has_more_columns_and_two_parts(tmp_path):
    header = "\t".join([*demo.MNLI_COLUMNS.split("|"), *(f"label{rater}" for rater in range(1, 6)), "gold_label"])
    row = "0\t1\t2\tg\tx\tx\tx\tx\t{}\tb\tneutral\tneutral\tneutral\tneutral\tneutral\tentailment"
    for split, part in (("dev", "matched"), ("dev_mismatched", "mismatched")):
        write(tmp_path / f"MNLI/dev_{part}.tsv", f"{header}\n{row.format(part)}\n")
        loaded = glue.load(tmp_path, "MNLI", split)
        assert loaded.first == [part] and loaded.labels.tolist() == [1]


def test_marks_line_ends_and_quotes_are_not_interpreted(tmp_path):
    rows = [('He said "no', 'it\'s ""', "1"), ("two\u2028three\x85four\rfive", '"', "0"), ("  a", "b ", "1")]
    content = table("MRPC", rows)
    write(tmp_path / "MRPC/train.tsv", b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    loaded = glue.load(tmp_path, "MRPC", "train")
    assert loaded.first == ['He said "no', "two\u2028three\x85four\rfive", "  a"]
    assert loaded.second == ['it\'s ""', '"', "b "] and loaded.labels.tolist() == [1, 0, 1]


def test_malformed_rows_are_skipped_with_one_warning_and_keep_their_place_in_test(tmp_path):
    lines = table("QQP", [(f"a{i}", f"b{i}", "1") for i in range(5)]).split("\n")
    lines[2], lines[4] = "lost", "1\t2\t3\ta\tb\t1\tsurplus"
    lines[5] += "\t\t"  # empty cells at the end are no harm
    path = write(tmp_path / "QQP/train.tsv", "\n".join(lines))
    with pytest.warns(UserWarning) as caught:
        assert glue.load(tmp_path, "QQP", "train").first == ["a0", "a2", "a4"]
    assert [str(w.message) for w in caught] == [
        f"{path}:3: 2 rows do not have 6 columns and were skipped (this is the first)"]
    write(tmp_path / "QQP/test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n1\tlost\n2\tc\td\n")
    with pytest.warns(UserWarning, match=r"test.tsv:3: 1 rows .* keep their place"):
        loaded = glue.load(tmp_path, "QQP", "test")
    assert loaded.first == ["a", "lost", "c"] and loaded.second == ["b", "", "d"]


@pytest.mark.parametrize("task, content, message", [
    ("RTE", table("RTE", [("a", "b", "entailment"), ("a", "b", "maybe")]),
     r"RTE/train.tsv:3: RTE has no label 'maybe'; .*not_entailment"),
    ("STS-B", table("STS-B", [("a", "b", "5.1")]), r"STS-B/train.tsv:2: STS-B has no score '5.1'; .* 0 to 5"),
    ("QQP", "a\tb\n1\t2\n", r"QQP/train.tsv:1: 2 columns, QQP has 6 or more"),
    ("SST-2", "fine\t1\nbad\t0\n", r"SST-2/train.tsv:1: this row is data, the header is missing")],
    ids=lambda value: value if value in glue.TASKS else "")
def test_mistakes_name_file_line_and_mend(task, content, message, tmp_path):
    write(tmp_path / f"{task}/train.tsv", content)
    with pytest.raises(UserError, match=message):
        glue.load(tmp_path, task, "train")


# --- batches

def given(first, second, longest):
    """Features of one example whose tokens are given."""
    tokens = {"first": first, "second": second}
    tokenizer = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0,
                                encode_batch=lambda texts: [tokens[text] for text in texts])
    data = glue.Examples(["first"], second and ["second"], None, Path("X/train.tsv"))
    return glue.encode(data, tokenizer, longest)


@pytest.mark.parametrize("a, b, longest", [(10, 3, 12), (3, 10, 12), (10, 9, 18), (9, 9, 14), (0, 9, 8), (5, None, 5)])
def test_pair_cuts_the_longer_from_its_end(a, b, longest):
    first, second = list(range(100, 100 + a)), None if b is None else list(range(200, 200 + b))
    ids, segments = row_of(given(first, second, longest), 0)
    kept = [first, second or []]
    while len(kept[0]) + len(kept[1]) > longest - (2 if b is None else 3):  # BERT's loop
        longer = 0 if len(kept[0]) > len(kept[1]) else 1
        kept[longer] = kept[longer][:-1]
    tail = [] if b is None else [*kept[1], 3]
    assert ids == [2, *kept[0], 3, *tail]
    assert segments == [0] * (len(kept[0]) + 2) + [1] * len(tail)


def row_of(features, i):
    """(ids, segments) of a row, without padding."""
    batch, size = features.batch(np.array([i]), features.max_length), features.lengths[i]
    return batch["ids"][0, :size].tolist(), batch["segments"][0, :size].tolist()


def test_batches_hold_every_row_once_in_an_order_of_seed_and_epoch(tokenizer):  # noqa: F811
    features = glue.encode(examples(203), tokenizer, max_length=100)
    orders = []
    for seed, epoch in ((None, 0), (5, 0), (5, 1), (6, 0), (5, 0)):
        orders.append([])
        for batch in glue.batches(features, 16, seed=seed, epoch=epoch):
            longest = int(batch["lengths"].max())
            assert batch["ids"].shape[1] == min(-(-longest // 8) * 8, 100)
            for row, i in enumerate(batch["index"].tolist()):
                n = int(batch["lengths"][row])
                assert (batch["ids"][row, :n].tolist(), batch["segments"][row, :n].tolist()) == row_of(features, i)
                assert (batch["ids"][row, n:] == tokenizer.pad_id).all() and (batch["segments"][row, n:] == 0).all()
                assert batch["labels"][row] == features.labels[i]
                orders[-1].append(i)
        assert sorted(orders[-1]) == list(range(203))
    assert orders[1] == orders[4] and len({*map(tuple, orders)}) == 4
    assert features.lengths[orders[0]].tolist() == sorted(features.lengths.tolist())


# --- scores

def test_score_has_the_official_metrics():
    logits, labels = np.array([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0], [5.0, 1.0]]), np.array([0, 1, 0, 0])
    assert glue.score(glue.TASKS["MRPC"], logits, labels) == {"f1": pytest.approx(2 / 3), "accuracy": 0.75}
    assert glue.score(glue.TASKS["CoLA"], torch.tensor(logits, dtype=torch.bfloat16), labels) == {
        "matthews": pytest.approx(1 / 3 ** 0.5)}
    result = glue.score(glue.TASKS["STS-B"], np.array([[1.0], [2.0], [4.0]]), np.array([0.0, 2.5, 5.0]))
    assert result["spearman"] == pytest.approx(1.0) and 0.97 < result["pearson"] < 0.99


def test_averages():
    """Scores that tell the tasks apart: 0.1, 0.2 ... for the main metric, and half of it for a second one."""
    def scores(names):
        return {name: dict(zip((*glue.TASKS[name.removesuffix("-mm")].metrics, "main"), (
            (i / 10, i / 20, i / 10) if name in ("MRPC", "STS-B", "QQP") else (i / 10, i / 10))))
            for i, name in enumerate(names, 1)}
    found = glue.averages(scores(["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "MNLI-mm", "QNLI", "RTE", "WNLI"]))
    assert found["paper_avg"] == pytest.approx(sum(i / 10 for i in range(1, 10)) / 9)  # all but WNLI
    board = [0.1, 0.2, 0.225, 0.3, 0.375, 0.65, 0.8, 0.9, 1.0]  # MRPC, STS-B, QQP: two metrics; MNLI: two parts
    assert found["glue_avg"] == pytest.approx(sum(board) / 9)
    assert found["paper_missing"] == found["glue_missing"] == []
    few = glue.averages(scores(["CoLA", "MNLI"]))
    assert few["paper_avg"] == few["glue_avg"] == pytest.approx(0.15) and few["glue_missing"][-1] == "MNLI-mm"
    assert glue.averages(scores(["WNLI"]))["paper_avg"] is None


def test_submissions_have_the_leaderboard_format(tmp_path):
    assert glue.write_submission(tmp_path, glue.TASKS["RTE"], np.array([[1.0, 0.0], [0.0, 1.0]])).read_text() == (
        "index\tprediction\n0\tentailment\n1\tnot_entailment\n")
    path = glue.write_submission(tmp_path / "new", glue.TASKS["CoLA"], torch.tensor([[1.0, 2.0]]))
    assert path.read_text() == "index\tprediction\n0\t1\n"
    assert glue.write_submission(tmp_path, glue.TASKS["STS-B"], np.array([[-1.0], [2.5], [7.0]])).read_text() == (
        "index\tprediction\n0\t0.000\n1\t2.500\n2\t5.000\n")
    for split, name in (("test", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv")):
        path = glue.write_submission(tmp_path, glue.TASKS["MNLI"], np.array([[0.0, 0.0, 1.0]]), split)
        assert path.name == name and path.read_text().endswith("0\tneutral\n")
