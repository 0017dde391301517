"""Demo data: reproducible, in the official layouts, with labels that no shortcut reveals."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from small_runs import write

from common import glue, squad
from common.cli import UserError
from data import demo as making
from data.images import load_cifar10
from data.demo import german, make_demo
from data.inputs import is_demo


@pytest.mark.slow
def test_every_build_is_equal(demo):
    """Also with another string hash, and in any folder."""
    script = ROOT / "data" / "prepare.py"
    folder = Path("demo")
    command = [sys.executable, script, "demo", "--to", folder]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run(command, check=True, env=environment)
    about = json.loads((folder / "demo.json").read_text())
    assert about["sha256"] == demo["sha256"]


def test_corpus_is_docstrings_of_sentences_without_the_tasks_text(demo):
    files = Path(demo["corpus"]).glob("*.txt")
    text = "\n".join(path.read_text() for path in files)
    sentences = {*text.split("\n")} - {""}
    documents = text.split("\n\n")
    assert len(documents) > 5000
    assert sum(map(len, sentences)) > 2_000_000
    assert all(line[-1] in ".!?" for line in sentences)
    examples, _ = glue.load(demo["glue"], "CoLA", "dev")
    held_out = {example.texts[0] for example in examples}
    assert not held_out & sentences


@pytest.mark.parametrize("task", making.GLUE)
def test_glue_is_balanced_and_no_example_is_in_two_splits(demo, task):
    sizes = {"train": making.TRAIN_EXAMPLES, "dev": making.DEV_EXAMPLES}
    data, _ = glue.load(demo["glue"], task, "test")
    seen = [example.texts for example in data]
    for split, size in sizes.items():
        data, _ = glue.load(demo["glue"], task, split)
        assert len(data) == size
        labels = [example.label for example in data]
        counts = np.unique(labels, return_counts=True)[1]
        assert len(counts) == len(making.GLUE[task][1])
        assert np.ptp(counts) <= 1
        seen += [example.texts for example in data]
    assert len({*seen}) == len(seen)


@pytest.mark.parametrize("task", [name for name in making.GLUE if name != "STS-B"])
def test_lengths_and_single_words_do_not_tell_the_label(demo, task):
    """The difference between labels, in standard errors, of the length and of the most frequent
    words."""
    data, _ = glue.load(demo["glue"], task, "train")
    texts = [" ".join(example.texts).lower() for example in data]
    labels = np.array([example.label for example in data])
    frequent = "a the of list file is default row one".split()
    columns = [[*map(len, texts)]]
    for word in frequent:
        columns.append([text.split().count(word) for text in texts])
    for column in np.array(columns, float):
        groups = [column[labels == label] for label in np.unique(labels)]
        means = [group.mean() for group in groups]
        size = len(groups[0])
        error = column.std() * (2 / size) ** 0.5
        assert np.ptp(means) <= 4.5 * error


def test_rules_decide_the_labels(demo):
    """Read back from the texts."""

    def examples(task):
        data, _ = glue.load(demo["glue"], task, "dev")
        return [(texts[0], texts[-1], label) for texts, label in data]

    def states(text):
        return re.findall(r"(?:is|an) (open|empty|large)\b", text)

    for text, _, label in examples("SST-2"):
        now = text.split(" now ")[1]
        present = states(now)
        more = present.count("open") > len(present) / 2
        assert label == more
    for asked, text, label in examples("QNLI"):
        ordinal = asked.split()[2]
        number = making.ORDINALS.index(ordinal)
        assert ("open", "empty")[label] == states(text)[number]
    for text, _, label in examples("MNLI"):
        before = text.split("default")[0]
        marked = len(states(before))
        assert ("empty", "open", "large")[label] == states(text)[marked]


@pytest.mark.parametrize("name", [
    "train-v1.1",
    "dev-v1.1",
    "train-v2.0",
    "dev-v2.0",
])
def test_squad_answers_stand_at_their_offsets(demo, name):
    file = Path(demo["squad"], f"{name}.json")
    questions = squad.load(file)  # which checks every offset
    assert len(questions) > (2000 if "train" in name else 500)
    impossible = [not question.answers for question in questions]
    if "v2" in name:
        assert 0.2 < np.mean(impossible) < 0.4
    else:
        assert not any(impossible)


def test_cifar10_records(demo):
    for split, count in (("train", 400), ("test", 100)):
        _, labels = load_cifar10(demo["cifar10"], split)
        assert np.bincount(labels).tolist() == [count] * 10


@pytest.mark.parametrize("part, least", [
    ("train_text", 8000),
    ("valid_text", 300),
    ("test_text", 300),
])
def test_parallel_text_is_aligned_word_by_word(demo, part, least):
    files = [Path(f"{demo[part]}.{side}") for side in ("en", "de")]
    english, translated = [file.read_text().splitlines() for file in files]
    assert len(english) == len(translated) >= least
    for left, right in zip(english, translated):
        words = re.findall(r"\w+", left.lower())
        expected = map(german, words)
        words = re.findall(r"\w+", right.lower())
        assert sorted(expected) == sorted(words)


@pytest.fixture
def small_build(monkeypatch):
    """Demo data with one short file per set."""
    monkeypatch.setattr(making, "read_documents", list)
    names = "corpus glue squad race cifar10 translation"
    for name in names.split():
        monkeypatch.setattr(making, f"{name}_files", lambda parts=None: [("a.txt", "A")])


def test_demo_data_are_whole_or_absent_and_of_this_recipe(small_build, monkeypatch):
    folder = Path("demo")
    with monkeypatch.context() as patch:
        patch.setattr(making, "cifar10_files", None)
        with pytest.raises(TypeError):
            make_demo(folder)
    assert not [*Path().iterdir()]
    assert make_demo(folder)["sha256"]
    write(folder / "demo.json", {"recipe": 1})
    with pytest.raises(UserError, match="made by another version"):
        make_demo(folder)


def test_of_two_processes_the_first_keeps_its_demo_data(small_build, monkeypatch):
    build = making.build

    def later(made):
        build(made)
        build(Path("demo"))  # another process ends first
        write("demo/first.txt", "")

    monkeypatch.setattr(making, "build", later)
    assert make_demo(Path("demo"))["sha256"]
    assert Path("demo/first.txt").exists()
    assert [*Path().iterdir()] == [Path("demo")]


def test_what_a_killed_process_has_left_is_removed_after_an_hour(small_build, monkeypatch):
    """Before, it may be another process's. A user's folders stay."""
    def stop(folder):
        write(folder / "corpus/a.txt", "A")
        os._exit(9)  # without clean-up

    with monkeypatch.context() as patch:
        patch.setattr(making, "build", stop)
        if not (child := os.fork()):
            make_demo(Path("demo"))
        os.waitpid(child, 0)
    (left,) = Path().iterdir()
    Path("demo-mine").mkdir()
    os.utime("demo-mine", (0, 0))
    make_demo(Path("demo"))
    assert {path.name for path in Path().iterdir()} == {"demo", "demo-mine", left.name}
    os.utime(left, (0, 0))
    make_demo(Path("demo"))  # complete
    assert {path.name for path in Path().iterdir()} == {"demo", "demo-mine"}


def test_demo_data_is_known_by_what_is_there_and_not_by_its_name(demo):
    Path("data/demographics").mkdir(parents=True)
    assert not is_demo("data/demographics")
    Path("link").symlink_to(demo["glue"])
    assert is_demo((demo["train_text"], "link"))
    assert is_demo(str(Path(demo["glue"]).parent))
