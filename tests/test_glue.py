"""GLUE: files of every layout, batches, the paper's average and leaderboard files."""
import random
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import write

from common import glue
from common.cli import UserError
from data import demo


def table(task, examples, labelled=True):
    """A TSV file of a task as the demo data have it. examples: (sentence A, sentence B, label)."""
    columns = demo.GLUE[task.replace("WNLI", "RTE")][2 if labelled else 3]
    count = len(glue.TASKS[task].text)
    lines = [(label, sentences[:count]) for *sentences, label in examples]
    return demo.tsv(columns, lines, header=task != "CoLA" or not labelled)


# Files


@pytest.mark.parametrize("task", glue.TASKS.values(), ids=glue.TASKS)
def test_every_official_layout(task, tmp_path):
    labels = task.labels or ("0.0", "3.25", "5.000")
    values = [*range(len(labels))] if task.labels else [0.0, 3.25, 5.0]
    sentences = [(f'He said "{i}', f"B{i}") for i in range(len(labels))]
    content = [(*pair, label) for pair, label in zip(sentences, labels)]
    texts = [pair[:len(task.text)] for pair in sentences]
    for split in ("train", "dev", "test"):
        unlabelled = split == "test"
        write(glue.path_of(tmp_path, task.name, split), table(task.name, content, not unlabelled))
        examples = glue.load(tmp_path, task, split)
        assert [example.texts for example in examples] == texts
        expected = [None] * len(texts) if unlabelled else values
        assert [example.label for example in examples] == expected


def texts_of(folder, task, split):
    return [example.texts for example in glue.load(folder, task, split)]


def test_quotes_and_line_ends_inside_a_sentence_are_text(tmp_path):
    first = ['He said "no', "two\u2028three\x85four\rfive", "  a"]
    second = ['it\'s ""', '"', "b "]
    content = table("MRPC", [*zip(first, second, "101")]).replace("\n", "\r\n")
    write(tmp_path / "MRPC/train.tsv", b"\xef\xbb\xbf" + content.encode() + b"\r\n\r\n")
    assert texts_of(tmp_path, "MRPC", "train") == [*zip(first, second)]


def test_malformed_lines_are_skipped_in_train_and_kept_in_test(tmp_path):
    examples = [(f"a{i}", f"b{i}", "1") for i in range(5)]
    lines = table("QQP", examples).split("\n")
    lines[2] = "lost"
    lines[4] = "1\t2\t3\ta\tb\t1\tsurplus"
    lines[5] += "\t\t"  # empty cells at the end are ignored
    write(tmp_path / "QQP/train.tsv", "\n".join(lines))
    with pytest.warns(UserWarning, match="train.tsv:3: 2 lines do not have 6 columns") as caught:
        assert [texts[0] for texts in texts_of(tmp_path, "QQP", "train")] == ["a0", "a2", "a4"]
    assert len(caught) == 1
    write(tmp_path / "QQP/test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n1\tlost\n2\tc\td\n")
    with pytest.warns(UserWarning, match="test.tsv:3: 1 lines"):
        assert texts_of(tmp_path, "QQP", "test") == [("a", "b"), ("lost", ""), ("c", "d")]


@pytest.mark.parametrize("task, content, message", [
    ("RTE", table("RTE", [("a", "b", "maybe")]), "train.tsv:2: RTE has no label 'maybe'"),
    ("STS-B", table("STS-B", [("a", "b", "5.1")]), "train.tsv:2: STS-B has no label '5.1'"),
    ("SST-2", "fine\t1\nbad\t0\n", "train.tsv:1: no header"),
])
def test_mistakes_name_file_and_line(task, content, message, tmp_path):
    write(tmp_path / f"{task}/train.tsv", content)
    with pytest.raises(UserError, match=message):
        glue.load(tmp_path, task, "train")


# Batches


def encode(texts, longest):
    """Features of pairs of token ids, or of single ones; the label is the number."""
    identity = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0, encode_batch=list)
    examples = [glue.Example(ids, number) for number, ids in enumerate(texts)]
    return glue.encode(examples, identity, longest)


@pytest.mark.parametrize("a, b, kept", [
    (10, 3, (6, 3)),
    (3, 10, (3, 6)),
    (10, 9, (5, 4)),
    (20, 0, (10, 0)),
])
def test_the_longer_sequence_is_cut_at_its_end(a, b, kept):
    """As in BERT, one token at a time."""
    first = [*range(100, 100 + a)]
    second = [*range(200, 200 + b)]
    features = encode([(first, second) if second else (first,)], 12)
    batch = features.batch(np.array([0]), 12)
    tail = [*second[:kept[1]], 3] if second else []
    ids = [2, *first[:kept[0]], 3, *tail]
    assert batch["ids"][0].tolist() == ids
    assert batch["token_type_ids"][0].tolist() == [0] * (kept[0] + 2) + [1] * len(tail)


def test_batches_have_every_example_once_in_an_order_of_seed_and_epoch():
    """And are padded to the longest, rounded up to 8."""
    sizes = random.Random(0).choices(range(1, 61), k=203)
    features = encode([(range(5, 5 + size),) for size in sizes], 100)

    def order(seed, epoch=0):
        seen = []
        for batch in glue.batches(features, 16, seed=seed, epoch=epoch):
            longest = max(sizes[i] + 2 for i in batch["index"])
            assert batch["ids"].shape[1] == -(-longest // 8) * 8
            assert batch["labels"].tolist() == batch["index"].tolist()
            seen += batch["index"].tolist()
        assert sorted(seen) == [*range(203)]
        return seen

    assert order(5) == order(5)
    assert len({*map(tuple, (order(5), order(5, 1), order(6), order(None)))}) == 4


# Scores


def test_the_average_of_the_paper():
    names = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "MNLI-mm", "QNLI", "RTE", "WNLI"]
    scores = {name: number / 10 for number, name in enumerate(names, 1)}
    assert glue.paper_average(scores) == pytest.approx(0.5)  # all but WNLI
    del scores["CoLA"]
    assert glue.paper_average(scores) is None


@pytest.mark.parametrize("task, split, outputs, name, lines", [
    ("RTE", "test", [[1.0, 0.0], [0.0, 1.0]], "RTE", "0\tentailment\n1\tnot_entailment\n"),
    ("CoLA", "test", [[1.0, 2.0]], "CoLA", "0\t1\n"),
    ("STS-B", "test", [[-1.0], [2.5], [7.0]], "STS-B", "0\t0.000\n1\t2.500\n2\t5.000\n"),
    ("MNLI", "test", [[0.0, 0.0, 1.0]], "MNLI-m", "0\tneutral\n"),
    ("MNLI", "test_mismatched", [[0.0, 0.0, 1.0]], "MNLI-mm", "0\tneutral\n"),
])
def test_submissions_have_the_leaderboard_format(task, split, outputs, name, lines, tmp_path):
    path = glue.write_submission(tmp_path, glue.TASKS[task], outputs, split)
    assert path == tmp_path / f"{name}.tsv"
    assert path.read_text() == "index\tprediction\n" + lines
