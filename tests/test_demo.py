"""Demo data: the same whenever it is made, in the official layouts, with labels that no shortcut
tells."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from common import glue, squad
from common.cli import UserError
from data import demo as making
from data.cifar10 import load_cifar10
from data.demo import german, make_demo, shapes
from data.inputs import is_demo


def lines_of(*path):
    """The lines of a text file; the path in parts."""
    return Path(*path).read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_every_build_is_equal(demo, tmp_path):
    """Also in a process that hashes strings differently, and in any folder."""
    command = [sys.executable, ROOT / "data" / "prepare.py", "demo", "--to", tmp_path / "demo"]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "1"})
    about = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert about["sha256"] == demo["sha256"]
    assert not list(tmp_path.glob("*.part"))


def test_corpus_is_docstrings_of_sentences_without_the_tasks_text(demo):
    texts = [path.read_text() for path in Path(demo["corpus"]).glob("*.txt")]
    documents = [text.splitlines() for text in "\n".join(texts).split("\n\n")]
    sentences = {line for document in documents for line in document}
    assert min(map(len, documents)) >= 2
    assert len(documents) > 5000
    assert sum(map(len, sentences)) > 2_000_000
    assert all(line[-1] in ".!?" and not line[0].islower() for line in sentences)
    examples = glue.load(demo["glue"], "CoLA", "dev")
    assert not {example.texts[0] for example in examples} & sentences


@pytest.mark.parametrize("task", making.GLUE)
def test_glue_is_balanced_and_no_example_is_in_two_splits(demo, task):
    splits = ["train", "dev", *["dev_mismatched"] * (task == "MNLI")]
    seen = []
    for split in splits:
        data = glue.load(demo["glue"], task, split)
        counts = np.unique([example.label for example in data], return_counts=True)[1]
        assert len(counts) == len(making.GLUE[task][1])
        assert max(counts) - min(counts) <= 1
        assert len(data) == (making.TRAIN_EXAMPLES if split == "train" else making.DEV_EXAMPLES)
        seen += [example.texts for example in data]
    seen += [example.texts for example in glue.load(demo["glue"], task, "test")]
    assert len({*seen}) == len(seen)


@pytest.mark.parametrize("task", [name for name in making.GLUE if name != "STS-B"])
def test_lengths_and_single_words_do_not_tell_the_label(demo, task):
    """The difference between labels, in standard errors, of the length and of the most frequent
    words."""
    data = glue.load(demo["glue"], task, "train")
    texts = [" ".join(example.texts).lower() for example in data]
    labels = np.array([example.label for example in data])
    frequent = ("a", "the", "of", "list", "file", "is", "default", "row", "one")
    columns = [[len(text) for text in texts]]
    columns += [[text.split().count(word) for text in texts] for word in frequent]
    for column in np.array(columns, float):
        groups = [column[labels == label] for label in np.unique(labels)]
        means = [group.mean() for group in groups]
        error = column.std() * (2 / len(groups[0])) ** 0.5
        assert max(means) - min(means) <= 4.5 * error


def test_rules_decide_the_labels(demo):
    """Read back from the texts."""

    def examples(task):
        data = glue.load(demo["glue"], task, "dev")
        return [(texts[0], texts[-1], label) for texts, label in data]

    def states(text):
        return re.findall(r"(?:is|an) (open|empty|large)\b", text)

    for text, _, label in examples("SST-2"):
        now = states(text.split(" now ")[1])
        assert label == (now.count("open") > len(now) / 2)
    for asked, text, label in examples("QNLI"):
        number = making.ORDINALS.index(asked.split()[2])
        assert ("open", "empty")[label] == states(text)[number]
    for text, _, label in examples("MNLI"):
        marked = len(states(text.split("default")[0]))
        assert ("empty", "open", "large")[label] == states(text)[marked]
    for text, _, label in examples("RTE"):
        marked = len(states(text.split("default")[0]))
        assert ("open", "empty")[label] == states(text)[marked + 1]


def test_a_package_without_sources_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(making.np, "__path__", [str(tmp_path)])
    monkeypatch.setattr(making.torch, "__path__", [str(tmp_path)])
    monkeypatch.setattr(making.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="0 docstrings, too few for the demo data; install python"):
        list(making.raw_documents())


@pytest.mark.parametrize("name", ["train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"])
def test_squad_answers_stand_at_their_offsets(demo, name):
    questions = squad.load(Path(demo["squad"], f"{name}.json"))  # which checks every offset
    impossible = np.mean([question.impossible for question in questions])
    assert len(questions) > (2000 if "train" in name else 500)
    assert 0.2 < impossible < 0.4 if "v2" in name else impossible == 0


def test_cifar10_records(demo):
    assert "\n".join(lines_of(demo["cifar10"], "batches.meta.txt")).split() == list(shapes(0, 0))
    _, labels = load_cifar10(demo["cifar10"], "train")
    _, test_labels = load_cifar10(demo["cifar10"], "test")
    assert np.bincount(labels).tolist() == [400] * 10
    assert np.bincount(test_labels).tolist() == [100] * 10


@pytest.mark.parametrize("part, least", [
    ("train_text", 8000),
    ("valid_text", 300),
    ("test_text", 300),
])
def test_parallel_text_is_aligned_word_by_word(demo, part, least):
    english = lines_of(demo[part] + ".en")
    translated = lines_of(demo[part] + ".de")
    assert len(english) == len(translated) >= least
    for left, right in zip(english, translated):
        words = re.findall(r"\w+", left.lower())
        assert 4 <= len(words) <= 25
        assert sorted(map(german, words)) == sorted(re.findall(r"\w+", right.lower()))


def small_build(monkeypatch):
    """Demo data of one short file a set; returns one item for each file that was made."""
    made = []

    def files(parts=None):
        made.append(1)
        return [("a.txt", "A")]

    monkeypatch.setattr(making, "read_documents", list)
    for name in ("corpus", "glue", "squad", "race", "cifar10", "translation"):
        monkeypatch.setattr(making, f"{name}_files", files)
    return made


def test_demo_data_replaces_no_folder_of_others_and_follows_links(tmp_path, monkeypatch):
    made = small_build(monkeypatch)
    (tmp_path / "texts.part").mkdir()
    (tmp_path / "texts.part" / "mine").write_text("mine")
    with pytest.raises(UserError, match="texts.part: in the way"):
        make_demo(tmp_path / "texts")
    assert (tmp_path / "texts.part" / "mine").read_text() == "mine" and not made
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to("far")
    assert make_demo(tmp_path / "near")["corpus"] == str(tmp_path / "near" / "corpus")
    assert (tmp_path / "near").is_symlink()
    assert (tmp_path / "far" / "demo.json").exists()
    monkeypatch.setattr(making, "cifar10_files", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_demo(tmp_path / "killed")
    monkeypatch.undo()
    small_build(monkeypatch)
    assert make_demo(tmp_path / "killed")["sha256"]
    (tmp_path / "killed" / "demo.json").write_text('{"recipe": 1}')
    with pytest.raises(UserError, match="killed: made by another version"):
        make_demo(tmp_path / "killed")


def test_complete_demo_data_is_only_read(demo, monkeypatch):
    monkeypatch.setattr(making, "lock", None)  # a read-only disk has no locks
    assert make_demo(ROOT / "data" / "demo") == demo


def test_demo_data_is_known_by_what_is_there_and_not_by_its_name(demo, tmp_path, monkeypatch):
    mine = tmp_path / "data" / "demographics"
    mine.mkdir(parents=True)
    assert not is_demo(str(mine)) and not is_demo((demo["corpus"], str(mine)))
    monkeypatch.chdir(ROOT)
    (tmp_path / "link").symlink_to(demo["glue"])
    assert is_demo(demo["train_text"]) and is_demo(("data/demo/corpus", str(tmp_path / "link")))
