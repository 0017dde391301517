"""GLUE: files of every layout, batches and leaderboard files."""
import random
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import write

from common import glue, tasks
from common.cli import UserError
from data import demo


def table(task, examples, labelled=True):
    """A TSV file of a task, as in the demo data. examples: (sentence A, sentence B, label)."""
    columns = demo.GLUE[task.replace("WNLI", "RTE")][2 if labelled else 3]
    count = len(glue.TASKS[task].text)
    lines = [(label, sentences[:count]) for *sentences, label in examples]
    return demo.tsv(columns, lines, header=task != "CoLA" or not labelled)


# Files


@pytest.mark.parametrize("task", glue.TASKS.values(), ids=glue.TASKS)
def test_every_official_layout(task):
    labels = task.labels or ("0.0", "3.25", "5.000")
    values = range(len(labels)) if task.labels else (0.0, 3.25, 5.0)
    content = [(f'He said "{label}', label, label) for label in labels]
    for split in ("train", "dev", "test"):
        labelled = split != "test"
        write(glue.path_of(".", task.name, split), table(task.name, content, labelled))
        examples, _ = glue.load(".", task.name, split)
        assert examples == [
            glue.Example(
                row[:len(task.text)],
                value if labelled else None,
            )
            for row, value in zip(content, values)
        ]
    read = glue.GlueTask.read(task.name, ".", search=True)
    assert read.examples.keys() == {"train", "dev"}


def texts_of(task, split):
    return [example.texts for example in glue.load(".", task, split)[0]]


def test_quotes_and_line_ends_inside_a_sentence_are_text():
    first = ['He said "no', "two\u2028three\x85four\rfive", "  a"]
    second = ['it\'s ""', '"', "b "]
    content = table("MRPC", [*zip(first, second, "101")]).replace("\n", "\r\n")
    write("MRPC/train.tsv", "\ufeff" + content + "\r\n\r\n")
    assert texts_of("MRPC", "train") == [*zip(first, second)]


def test_malformed_lines_are_skipped_in_train_and_kept_in_test():
    examples = [(f"a{i}", f"b{i}", "1") for i in range(200)]
    lines = table("QQP", examples).split("\n")
    lines[2] = "lost"
    lines[4] = "1\t2\t3\ta\tb\t1\tsurplus"
    lines[5] += "\t\t"  # empty cells at the end are ignored
    write("QQP/train.tsv", "\n".join(lines))
    with pytest.warns(UserWarning, match="train.tsv:3: 2 lines do not have 6 columns"):
        pairs = texts_of("QQP", "train")
    assert [first for first, _ in pairs] == ["a0", "a2", *[f"a{i}" for i in range(4, 200)]]
    write("QQP/dev.tsv", table("QQP", examples))
    with pytest.warns(UserWarning, match="were skipped"):
        assert glue.GlueTask.read("QQP", ".", search=True).skipped == {"train": 2}
    write("QQP/dev.tsv", "\n".join(lines[:150]))
    with pytest.raises(UserError, match="dev.tsv:3: 2 of 149 lines do not have 6 columns"):
        texts_of("QQP", "dev")
    write("QQP/test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n\n1\tlost\n\n")
    assert texts_of("QQP", "test") == [
        ("a", "b"),
        ("", ""),  # an empty line has its own prediction
        ("lost", ""),
    ]


def test_columns_are_found_by_their_names():
    write("RTE/train.tsv", "label\tsentence2\tsentence1\nentailment\tb\ta\n")
    assert texts_of("RTE", "train") == [("a", "b")]


def test_mistakes_name_file_and_line():
    write("RTE/train.tsv", table("RTE", [("a", "b", "maybe")]))
    with pytest.raises(UserError, match="train.tsv:2: RTE has no label 'maybe'"):
        glue.load(".", "RTE", "train")


# Batches


def encode(texts, longest):
    """Features of pairs of token ids, or of single ones. The label is the number."""
    identity = SimpleNamespace(
        specials=(2, 3, 0),
        encode_batch=list,
    )
    examples = [glue.Example(ids, number) for number, ids in enumerate(texts)]
    return glue.encode(examples, identity, longest)


@pytest.mark.parametrize("a, b, kept_a, kept_b", [
    (3, 10, 3, 6),
    (10, 9, 5, 4),
])
def test_the_longer_sequence_is_cut_at_its_end(a, b, kept_a, kept_b):
    """As in BERT, one token at a time."""
    first = range(100, 100 + a)
    second = range(200, 200 + b)
    batch = encode([(first, second)], 12).batch(np.array([0]), 12)
    assert batch["ids"][0].tolist() == [
        2,
        *first[:kept_a],
        3,
        *second[:kept_b],
        3,
    ]
    assert batch["token_type_ids"][0].tolist() == [0] * (kept_a + 2) + [1] * (kept_b + 1)


def test_batches_have_every_example_once_in_an_order_of_seed_and_epoch():
    """They are padded to the longest, rounded up to 8."""
    sizes = random.Random(0).choices(range(1, 61), k=203)
    features = encode([(range(size),) for size in sizes], 100)

    def order(seed, epoch=0):
        seen = []
        for batch in tasks.batches(features, 16, seed, epoch):
            longest = max(sizes[i] + 2 for i in batch["index"])
            assert batch["ids"].shape[1] == -(-longest // 8) * 8
            assert batch["labels"].tolist() == batch["index"].tolist()
            seen += batch["index"].tolist()
        assert sorted(seen) == [*range(203)]
        return seen

    assert order(5) == order(5)
    assert len({*map(tuple, (order(5), order(5, 1), order(6), order(None)))}) == 4


# Scores


@pytest.mark.parametrize("task, split, outputs, name, lines", [
    ("RTE", "test", [[0.0, 1.0]], "RTE.tsv", "0\tnot_entailment\n"),
    ("STS-B", "test", [[-1.0], [2.5], [7.0]], "STS-B.tsv", "0\t0.000\n1\t2.500\n2\t5.000\n"),
    ("MNLI", "test_mismatched", [[0.0, 0.0, 1.0]], "MNLI-mm.tsv", "0\tneutral\n"),
])
def test_submissions_have_the_leaderboard_format(task, split, outputs, name, lines):
    path = glue.write_submission(".", glue.TASKS[task], outputs, split)
    assert path.name == name
    assert path.read_text() == "index\tprediction\n" + lines
