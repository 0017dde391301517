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
from data import demo as making
from data.demo import german, make_demo


def lines_of(*path):
    """The lines of a text file; the path in parts."""
    return Path(*path).read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_every_build_is_equal(demo, tmp_path):
    """Also in a process that hashes strings differently, and in any folder."""
    command = [sys.executable, ROOT / "data" / "prepare.py", "demo", "--to", tmp_path / "demo"]
    subprocess.run(
        command,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "1"}
    )
    about = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert about["sha256"] == demo["sha256"]
    assert not list(tmp_path.glob("*.part"))


def test_corpus_is_docstrings_of_sentences_without_the_tasks_text(demo):
    texts = [path.read_text() for path in Path(demo["corpus"]).glob("*.txt")]
    sentences = {*"\n".join(texts).split("\n")} - {""}
    assert sum(map(len, sentences)) > 2_000_000
    assert all(line[-1] in ".!?" and not line[0].islower() for line in sentences)
    assert not {*glue.load(demo["glue"], "CoLA", "dev").first} & sentences


def pairs(data):
    """The texts of examples."""
    return list(zip(data.first, data.second or data.first))


@pytest.mark.parametrize("task", making.GLUE)
def test_glue_is_balanced_and_no_example_is_in_two_splits(demo, task):
    splits = ["train", "dev", *["dev_mismatched"] * (task == "MNLI")]
    seen = []
    for split in splits:
        data = glue.load(demo["glue"], task, split)
        counts = np.unique(data.labels, return_counts=True)[1]
        assert len(counts) == len(making.GLUE[task][1])
        assert max(counts) - min(counts) <= 1
        assert len(data) == (making.TRAIN_EXAMPLES if split == "train" else making.DEV_EXAMPLES)
        seen += pairs(data)
    seen += pairs(glue.load(demo["glue"], task, "test"))
    assert len({*seen}) == len(seen)


@pytest.mark.parametrize("task", [name for name in making.GLUE if name != "STS-B"])
def test_the_length_does_not_tell_the_label(demo, task):
    """The difference between labels is below 4.5 standard errors."""
    data = glue.load(demo["glue"], task, "train")
    sizes = np.array([len("".join(texts)) for texts in pairs(data)])
    groups = [sizes[data.labels == label] for label in np.unique(data.labels)]
    means = [group.mean() for group in groups]
    error = sizes.std() * (2 / len(groups[0])) ** 0.5
    assert max(means) - min(means) <= 4.5 * error


@pytest.mark.parametrize("name", ["train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"])
def test_squad_answers_stand_at_their_offsets(demo, name):
    questions = squad.load(Path(demo["squad"], f"{name}.json"))  # which checks every offset
    impossible = np.mean([question.impossible for question in questions])
    assert len(questions) > (2000 if "train" in name else 500)
    assert 0.2 < impossible < 0.4 if "v2" in name else impossible == 0


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


def test_complete_demo_data_is_only_read(demo, monkeypatch):
    monkeypatch.setattr(making, "lock", None)  # a read-only disk has no locks
    assert make_demo(ROOT / "data" / "demo") == demo
