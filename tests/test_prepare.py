"""data/: the demo data is the same whenever it is made and has the official layouts; downloads
survive what networks do."""
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from small_runs import write

from common import glue, squad
from common.cli import UserError
from data import download
from data.cifar10 import load_cifar10
from data.demo import SHAPES, german, make_demo
from data.inputs import is_demo


def lines_of(*path):
    """The lines of a text file; the path in parts."""
    return Path(*path).read_text(encoding="utf-8").splitlines()


# --- demo data

@pytest.mark.slow
def test_every_build_is_equal(demo, tmp_path):
    """Also in a process that hashes strings differently, and in any folder."""
    command = [sys.executable, ROOT / "data" / "prepare.py", "demo", "--to", tmp_path / "demo"]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "1"})
    about = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert about["sha256"] == demo["sha256"]
    assert not list(tmp_path.glob("*.part"))


def test_corpus_is_sentences_and_documents_without_the_tasks_text(demo):
    files = sorted(Path(demo["corpus"]).glob("*.txt"))
    lines = [line for path in files for line in lines_of(path)]
    corpus = {*lines} - {""}
    assert sum(map(len, lines)) > 2_000_000
    assert lines.count("") > 500
    assert all(line[-1] in ".!?" and not line[0].islower() for line in corpus)
    held_out = {line.split("\t")[3] for line in lines_of(demo["glue"], "CoLA", "dev.tsv")}
    assert not held_out & corpus


@pytest.mark.parametrize("task", ["CoLA", "SST-2", "MRPC", "QQP", "MNLI", "QNLI", "RTE"])
def test_glue_is_balanced_and_lengths_give_nothing_away(demo, task):
    seen = []
    for part, least in (("train", 2000), ("dev", 500)):
        data = glue.load(demo["glue"], glue.TASKS[task], part)
        counts = np.bincount(data.labels, minlength=len(glue.TASKS[task].labels))
        lengths = np.array([len(text) for text in data.first])
        means = [lengths[data.labels == label].mean() for label in range(len(counts))]
        assert len(data) >= least
        assert max(counts) <= 1.02 * min(counts) + 1
        assert max(means) < 1.2 * min(means)
        seen.append({*data.first})
    assert len(seen[0] & seen[1]) < 20


@pytest.mark.parametrize("name", ["train-v1.1", "dev-v2.0"])
def test_squad_has_unanswerable_questions_in_2_0_alone(demo, name):
    questions = squad.load(Path(demo["squad"], f"{name}.json"))  # checks every offset
    impossible = np.mean([question.impossible for question in questions])
    assert len(questions) > 500
    assert 0.2 < impossible < 0.4 if "v2" in name else impossible == 0


def test_cifar10_records(demo):
    assert lines_of(demo["cifar10"], "batches.meta.txt")[:10] == list(SHAPES)
    for split, count in (("train", 400), ("test", 100)):
        _, labels = load_cifar10(demo["cifar10"], split)
        assert np.bincount(labels).tolist() == [count] * 10


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


# --- download

def offered(folder, name, content, place=""):
    """A line of the table for a file that is offered in `folder` from now on."""
    write(folder / name, content)
    return f"{name} {hashlib.sha256(content).hexdigest()} {place}\n"


def tar(names):
    """A .tar.gz with files of these names and contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_set_is_made_once_of_files_and_archives_without_their_top_folder(tmp_path):
    there = tmp_path / "there"
    members = {"top/test_batch.bin": b"a", "__MACOSX/top/b": b"b", "stray": b"c"}
    lines = offered(there, "AX.tsv", b"index", "diagnostic/diagnostic.tsv")
    lines += offered(there, "binary.tar.gz", tar(members), "binary")
    table = {"glue": (f"file://{there}/", lines)}
    folder = download.download("glue", tmp_path, table)
    made = {"diagnostic/diagnostic.tsv", "binary/test_batch.bin", "source.json"}
    assert files_of(folder) == made
    assert {path.name for path in tmp_path.iterdir()} == {"archives", "glue", "there"}
    shutil.rmtree(there)
    assert download.download("glue", tmp_path, table) == folder


@pytest.mark.parametrize("wrong, message", [
    ("gone.json", "gone.json: .*No such file"),
    (f"b.json {'0' * 64}", "b.json: invalid hash value"),
])
def test_complete_files_are_kept_when_another_cannot_be_fetched(wrong, message, tmp_path):
    there = tmp_path / "there"
    good = offered(there, "a.json", b"a")
    both = good + offered(there, "b.json", b"b")
    with pytest.raises(UserError, match=message):
        download.download("squad", tmp_path, {"squad": (f"file://{there}/", good + wrong)})
    assert not (tmp_path / "squad").exists()
    (there / "a.json").unlink()  # it is not fetched again
    folder = download.download("squad", tmp_path, {"squad": (f"file://{there}/", both)})
    assert files_of(folder) == {"a.json", "b.json", "source.json"}


def test_the_table_has_a_digest_or_none_for_each_file():
    lines = [line for _, text in download.TABLE.values() for line in text.strip().split("\n")]
    assert all(re.fullmatch(r"\S+\.\w+( +[0-9a-f]{64}( \S+)?)?", line) for line in lines)


@pytest.mark.parametrize("member", ["../a", "top/../../a", "/a"])
def test_archives_cannot_write_elsewhere(member, tmp_path):
    write(tmp_path / "a.tgz", tar({member: b"x"}))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(member, "x")
    for name in ("a.tgz", "a.zip"):
        with contextlib.suppress(UserError):
            download.unpack(tmp_path / name, tmp_path / "deep" / "to")
    outside = {name for name in files_of(tmp_path) if not name.startswith("deep/to/")}
    assert outside == {"a.tgz", "a.zip"}
    assert not os.path.exists("/a")


@pytest.fixture
def quick_build(demo, monkeypatch):
    """Demo data are made quickly: the mark of complete ones alone."""
    def build(folder):
        write(folder / "demo.json", (ROOT / "data" / "demo" / "demo.json").read_text())
    monkeypatch.setattr("data.demo.build", build)


def test_demo_data_replace_no_folder_of_others_and_follow_links(quick_build, tmp_path):
    theirs = write(tmp_path / "texts.part" / "mine", "mine")
    with pytest.raises(UserError, match="texts.part: in the way"):
        make_demo(tmp_path / "texts")
    assert theirs.read_text() == "mine"
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to("far")
    make_demo(tmp_path / "near")
    assert (tmp_path / "near").is_symlink()
    mark = tmp_path / "far" / "demo.json"
    mark.write_text('{"recipe": 1}')
    with pytest.raises(UserError, match="near: made by another version"):
        make_demo(tmp_path / "near")


def test_what_a_killed_build_left_is_made_again(quick_build, tmp_path):
    write(tmp_path / "demo.part" / "demo.json", "")
    make_demo(tmp_path / "demo")
    assert files_of(tmp_path) == {"demo/demo.json", "demo.lock"}


def test_complete_demo_data_are_only_read(demo, monkeypatch):
    """A read-only disk has no locks."""
    monkeypatch.delattr("data.demo.lock")
    assert make_demo(ROOT / "data" / "demo") == demo


def test_demo_data_are_known_by_their_mark_and_not_by_their_name(demo, tmp_path, monkeypatch):
    mine = tmp_path / "data" / "demographics"
    mine.mkdir(parents=True)
    monkeypatch.chdir(ROOT)
    (tmp_path / "link").symlink_to(demo["glue"])
    assert not is_demo((demo["corpus"], str(mine)))
    assert is_demo(("data/demo/corpus", str(tmp_path / "link")))
    assert is_demo(demo["train_text"])
