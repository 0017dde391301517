"""Demo data: the same whenever it is made, in the official layouts, with labels that no shortcut
tells."""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from common import glue
from data import demo as making
from data.demo import make_demo


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


def test_complete_demo_data_is_only_read(demo, monkeypatch):
    monkeypatch.setattr(making, "lock", None)  # a read-only disk has no locks
    assert make_demo(ROOT / "data" / "demo") == demo
