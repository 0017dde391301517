"""tests/bench.py: each part at its smallest size measures everything that it names."""
import dataclasses
import functools
import importlib
import json
import re
import shlex
import shutil

import numpy as np
import pytest
import torch

import albert
import bench
from test_flow import mformer_of
from test_rehearsal import ALBERT, TINY
from tests.claims.rehearsal import albert_at, beams


@pytest.mark.peers
def test_peers(tmp_path, capsys):
    pytest.importorskip("transformers", reason="peers compares with it: pip install -r tests/requirements-peers.txt")
    found = bench.main(["peers", "--tiny", "--rounds", "2", "--threads", "1", "--out", str(tmp_path / "peers.json")])
    written = json.loads((tmp_path / "peers.json").read_text())
    assert written["rows"] == found["rows"] and {"processor", "threads", "torch", "transformers"} <= written.keys()
    assert found["rows"].keys() == bench.PEERS.keys()
    for name, row in found["rows"].items():
        count = row["parameters"]
        assert row["n"] == 2 and row["lowest"] <= row["ratio"] <= row["highest"] and len(row["load"]) == 2
        if name not in ("autobert-zero-base", "beam-search"):  # their layers differ
            assert count["ours"] == count["theirs"]
    assert found["rows"]["beam-search"]["parameters"]["steps"] == count["their_steps"] == 16
    assert len(re.findall(r"^\|", capsys.readouterr().out, re.MULTILINE)) == 2 + len(found["rows"])


def test_sentences_are_as_long_as_those_of_tasks():
    text = bench.sentences(1000, 128, 100)
    assert 8 <= text.lengths.min() and text.lengths.max() <= 128 and 30 <= np.median(text.lengths) <= 36


def test_gpu_lists_every_phase(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = bench.main(["gpu", "--card", "A100"])["rows"]
    phases = json.loads((bench.CLAIMS / "results" / "rehearsal.json").read_text())
    assert len(rows) == len(phases) and "no GPU here" in capsys.readouterr().out
    base = next(row for row in rows if "'albert, base, pre-training, 64 rows of 512'" in row[0])
    found = phases["albert | base | pre-training, 64 rows of 512"]
    assert base[1] == f"{found['peak'] / 1e9:.1f}" and base[3] == f"{1e3 * found['flops'] / (0.35 * 312e12):,.0f}"


def test_gpu_times_a_phase():
    """On the CPU, where neither memory nor waits are counted; of a beam search, which has no update, the evaluation."""
    cfg, cpu = albert_at(**TINY, length=64, embedding=64, dev_rows=2), torch.device("cpu")
    seconds, waits = bench.timed(cpu, cfg, ALBERT, (2, 2), steps=1)
    assert seconds > 0 and waits == 0
    cfg, arch, _ = mformer_of("wmt14")
    cfg.length, build = 6, functools.partial(beams, arch=arch)
    assert bench.timed(cpu, cfg, build, (64, 1), updates=False)[0] > 0


def test_the_tables_of_the_page_are_those_of_the_results(tmp_path):
    shutil.copytree(bench.CLAIMS / "results", tmp_path / "results")
    page = (bench.CLAIMS / "rehearsal.md").read_text()
    old = re.sub(r"(<!-- (?!end)\w+ -->).*?(?=\n<!-- end)", r"\1\nold", page, flags=re.DOTALL)
    (tmp_path / "rehearsal.md").write_text(old)
    bench.page(folder=tmp_path)
    assert (tmp_path / "rehearsal.md").read_text() == page


def test_demos_of_curves_are_commands():
    """Their flags are those of the paper files."""
    for command in (*bench.DEMOS, bench.SEARCH, bench.TRAIN):
        file, *words = shlex.split(command.format(updates=3, candidates=2))
        module = importlib.import_module(file.removesuffix(".py"))
        flags = {word[2:] for word in words if word.startswith("--")}
        assert flags <= {*(field.name for field in dataclasses.fields(module.Config)), *module.ACTIONS}


@pytest.mark.slow
def test_curves(tmp_path, demo):
    found = bench.main(["curves", "--tiny", "--out", str(tmp_path / "curves.json")])
    assert [line["processes"] for line in found["processes"]["training"]] == [1, 2]
    speed = found["demos"][0]
    assert speed["a_second"] > 0 and speed["unit"] == "tokens" and 100 < speed["peak_mb"] < 2000
    assert found["length"]["microseconds a token"].keys() == bench.NETWORKS.keys()
