"""data/: the demo data is the same whenever it is made and has the official layouts; downloads survive what
networks do."""
import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from common import glue, squad
from common.cli import UserError
from data import download, translation
from data.cifar10 import load_cifar10
from data.demo import GLUE_DEV_ROWS, SHAPES, german
from data.prepare import main

ROOT = pathlib.Path(__file__).resolve().parent.parent


def lines_of(*path):
    """The lines of a text file; the path in parts."""
    return pathlib.Path(*path).read_text(encoding="utf-8").splitlines()


def test_passages_of_the_dev_sets_become_text(tmp_path, monkeypatch, capsys):
    """Each once, a sentence a line, a blank line between: so they are read as documents."""
    def answers(text):
        return {"id": text, "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}
    (tmp_path / "dev.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [
        {"context": "Ann came.  She left.", "qas": [answers("a"), answers("b")]}]}]}))
    for level in ("middle", "high"):
        (tmp_path / "dev" / level).mkdir(parents=True)
        (tmp_path / "dev" / level / "1.txt").write_text(json.dumps({
            "id": level, "article": f"In {level} school\nthey read. It rained.", "questions": ["Why?"],
            "options": [list("abcd")], "answers": ["A"]}))
    words = ["passages", "--squad", tmp_path / "dev.json", "--race", tmp_path, "--to", tmp_path / "dev.txt"]
    monkeypatch.setattr(sys, "argv", ["prepare.py", *map(str, words)])
    main()
    assert lines_of(tmp_path, "dev.txt") == [
        "Ann came.", "She left.", "", "In middle school they read.", "It rained.", "",
        "In high school they read.", "It rained."]
    assert "3 passages" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["prepare.py", "passages", "--to", str(tmp_path / "none")])
    with pytest.raises(UserError, match="give --squad"):
        main()


# --- demo data -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_build_is_equal(seed, demo, tmp_path):
    """Also in processes that hash the strings of sets and dictionaries differently, and in any folder."""
    command = [sys.executable, ROOT / "data" / "prepare.py", "demo", "--to", tmp_path / "demo"]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed})
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["sha256"] == demo["sha256"]
    assert not list(tmp_path.glob("*.part"))


def test_corpus_is_sentences_and_documents_without_the_tasks_text(demo):
    lines = [line for path in sorted(pathlib.Path(demo["corpus"]).glob("*.txt")) for line in lines_of(path)]
    corpus = {line for line in lines if line}
    assert sum(len(line) + 1 for line in lines) > 2_000_000 and sum(1 for line in lines if not line) > 500
    assert all(line[-1] in ".!?" and not line[0].islower() for line in corpus)
    assert not any(">>>" in line or "::" in line or "\\" in line for line in corpus if line.count(" ") < 7)
    held_out = {line.split("\t")[3] for line in lines_of(demo["glue"], "CoLA", "dev.tsv")}
    assert len(held_out) == GLUE_DEV_ROWS and not held_out & corpus


@pytest.mark.parametrize("task", ["CoLA", "SST-2", "MRPC", "QQP", "MNLI", "QNLI", "RTE"])
def test_glue_is_balanced_and_lengths_give_nothing_away(demo, task):
    seen = {}
    for part, least in (("train", 2000), ("dev", 500)):
        rows = glue.load(demo["glue"], glue.TASKS[task], part)
        counts = np.bincount(rows.labels, minlength=len(glue.TASKS[task].labels))
        assert len(rows) >= least and max(counts) <= 1.02 * min(counts) + 1
        lengths = [np.mean([len(text) for text, own in zip(rows.first, rows.labels) if own == label])
                   for label in range(len(counts))]
        assert max(lengths) < 1.2 * min(lengths)
        seen[part] = {*rows.first}
    assert len(seen["train"] & seen["dev"]) < 20


@pytest.mark.parametrize("name", ["train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"])
def test_squad_answers_stand_at_their_offsets(demo, name):
    questions = squad.load(pathlib.Path(demo["squad"], f"{name}.json"))  # which looks at every offset
    assert len(questions) > (2000 if "train" in name else 500)
    impossible = np.mean([question.impossible for question in questions])
    assert 0.2 < impossible < 0.4 if "v2" in name else impossible == 0


def test_cifar10_records(demo):
    folder = pathlib.Path(demo["cifar10"])
    assert folder.joinpath("batches.meta.txt").read_text().split() == list(SHAPES)
    train, test = (load_cifar10(folder, split) for split in ("train", "test"))
    assert [np.bincount(labels).tolist() for _, labels in (train, test)] == [[400] * 10, [100] * 10]
    # the mean colour says nothing: the nearest class mean is no better than a guess
    colours = [images.float().mean((2, 3)).numpy() for images, _ in (train, test)]
    means = np.stack([colours[0][train[1] == label].mean(0) for label in range(10)])
    nearest = ((colours[1][:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == test[1].numpy()).mean() < 0.2


def test_parallel_text_is_aligned_word_by_word(demo):
    for part, least in (("train_text", 8000), ("valid_text", 300), ("test_text", 300)):
        english, translated = lines_of(demo[part] + ".en"), lines_of(demo[part] + ".de")
        assert len(english) == len(translated) >= least
        for left, right in zip(english, translated):
            words = [re.findall(r"\w+", line.lower()) for line in (left, right)]
            assert 4 <= len(words[0]) <= 25 and sorted(map(german, words[0])) == sorted(words[1])


# --- download --------------------------------------------------------------------------------------------------------
def row(folder, name, content, place=""):
    """A row of the table for a file that is offered in `folder` from now on."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return name, hashlib.sha256(content).hexdigest(), place


def tar(names):
    """A .tar.gz with files of these names and contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def test_a_set_is_made_once_of_files_and_archives_without_their_top_folder(tmp_path):
    content, there = io.BytesIO(), tmp_path / "there"
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("MNLI/dev_matched.tsv", "a row")
    table = {"glue": (f"file://{there}/", [
        row(there, "MNLI.zip", content.getvalue(), "MNLI"),
        row(there, "AX.tsv", b"index", "diagnostic/diagnostic.tsv"),
        row(there, "binary.tar.gz", tar({"top/test_batch.bin": b"a", "__MACOSX/top/b": b"b", "stray": b"c"}))])}
    folder = download.download("glue", tmp_path, table)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "MNLI/dev_matched.tsv", "diagnostic/diagnostic.tsv", "test_batch.bin", "source.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"archives", "glue", "there"}
    shutil.rmtree(there)
    assert download.download("glue", tmp_path, table) == folder


def test_what_cannot_be_fetched_ends_in_one_line_and_what_came_whole_is_kept(tmp_path):
    there = tmp_path / "there"
    good, bad = row(there, "a.json", b"a"), row(there, "b.json", b"b")
    for wrong, message in ((("gone.json", "", ""), "gone.json: .*No such file"),
                           ((bad[0], "0" * 64, ""), "b.json: invalid hash value .*; check the network")):
        with pytest.raises(UserError, match=message):
            download.download("squad", tmp_path, {"squad": (f"file://{there}/", [good, wrong])})
        assert not (tmp_path / "squad").exists()
    with pytest.raises(UserError, match="127.0.0.1:9/b.json: .*check the network"):
        download.fetch("http://127.0.0.1:9/b.json", "", tmp_path)
    (there / "a.json").unlink()  # it is not asked for again
    folder = download.download("squad", tmp_path, {"squad": (f"file://{there}/", [good, bad])})
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json", "source.json"]


def test_the_lines_of_the_page_write_mrpc_and_wmt14(tmp_path, monkeypatch):
    rows = {"nyu-mll/glue": [{"label": 1, "sentence1": 'A "quote.', "sentence2": "B."}],
            "wmt/wmt14": [{"translation": {"en": "One\u2028line. ", "de": "Eine."}}]}
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda name, *part, split: rows[name]))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(from pathlib .*?)```", page, re.DOTALL)[1], {})
    for split in ("train", "dev", "test"):
        found = glue.load("glue", "MRPC", split)
        assert (found.first, found.second) == (['A "quote.'], ["B."])
    assert translation.read_pairs("wmt14/valid", "en", "de") == [["One line."], ["Eine."]]


@pytest.mark.parametrize("member", ["../a", "top/../../a", "/a"])
def test_archives_cannot_write_elsewhere(member, tmp_path):
    tmp_path.joinpath("a.tgz").write_bytes(tar({member: b"x"}))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(member, "x")
    for name in ("a.tgz", "a.zip"):
        with contextlib.suppress(UserError):
            download.unpack(tmp_path / name, tmp_path / "deep" / "to")
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - {tmp_path / "a.tgz", tmp_path / "a.zip"}
    assert all(path.is_relative_to(tmp_path / "deep" / "to") for path in written) and not os.path.exists("/a")
