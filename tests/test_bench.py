"""tests/bench.py: each part at its smallest size prints a row for everything that it measures."""
import dataclasses
import functools
import importlib
import json
import re
import shlex
import sys

import numpy as np
import pytest
import torch

import albert
import autobert_zero as abz
import autotinybert
import bench
import bench_curves
import bench_gpu
import bench_page
import bench_peers
import bench_schedule
import mformer
from common.tasks import LONGEST
from data import rehearsals
from test_flow import mformer_of
from test_rehearsal import ALBERT, TINY, albert_at


def numbers(line):
    """The numbers of a printed row, its name aside."""
    return [float(found) for found in re.findall(r"(?<=[ :])\d+(?:\.\d+)?", line)]


def test_graphs(capsys):
    bench.graphs(sizes=((128, 1),), heads=1, rounds=1)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["BERT", *(f"layer {number}" for number in range(2, 14, 2))]
    assert all(numbers(row)[-1] > 1 for row in rows)  # node by node keeps more


def test_convolutions(capsys):
    bench.convolutions(rows=1, tokens=8, rounds=1)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [numbers(row)[0] for row in rows] == list(abz.KERNELS)


@pytest.fixture
def corpus(tmp_path):
    sentences = [f"sentence {number} of the text is about the number {number * number}." for number in range(4000)]
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(sentences[k:k + 20]) for k in range(0, 4000, 20)))
    return (str(tmp_path / "text.txt"),)


def test_data(capsys, corpus):
    bench.data(sizes=(4, 8), rounds=2, corpus=corpus)
    lines = [line for line in capsys.readouterr().out.splitlines() if "million tokens/s" in line]
    assert [line.split(":")[0] for line in lines] == [f"{rows} x 128, {name}" for rows in (4, 8)
                                                      for name in ("cut", "cut, paired and masked")]
    assert all(numbers(line)[-1] > 0 for line in lines)


@pytest.mark.slow
def test_steps(capsys, corpus, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    bench.steps(updates=60, batch=2, length=16, corpus=corpus)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["bert", "autobert-zero"]
    assert all(numbers(line)[0] > 0 for line in lines)


def test_peers(tmp_path, capsys):
    pytest.importorskip("transformers", reason="peers compares with it: pip install transformers")
    found = bench_peers.main(["--tiny", "--rounds", "2", "--threads", "1", "--out", str(tmp_path / "peers.json")])
    assert json.loads((tmp_path / "peers.json").read_text()) == found
    assert {"processor", "threads", "torch", "transformers", "command"} <= found.keys()
    assert found["rows"].keys() == bench_peers.ROWS.keys()
    for name, row in found["rows"].items():
        count = row["parameters"]
        assert row["n"] == 2 and row["lowest"] <= row["ratio"] <= row["highest"] and len(row["load"]) == 2
        if name not in ("autobert-zero-base", "beam-search"):  # their layers differ
            assert count["ours"] == count["theirs"]
    assert found["rows"]["beam-search"]["parameters"]["steps"] == count["their_steps"] == 16
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(found["rows"])


def test_peers_names_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match="pip install transformers"):
        bench_peers.main([])


def test_lengths_of_peers_fine_tuning():
    text = bench_peers.Sentences(1000, 128, 100)
    assert 8 <= text.lengths.min() and text.lengths.max() <= 128 and 30 <= np.median(text.lengths) <= 36


def test_gpu_lists_every_phase(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bench_gpu.main(["--card", "A100"])
    said, *rows = capsys.readouterr().out.split("\n|")
    phases = json.loads(bench_gpu.RESULTS.read_text())
    assert said.startswith("no GPU here") and len(rows) == 2 + len(phases)
    for source in ("rehearsal.json", "test_rehearsal.py 'PHASE'", "A100's 312 TFLOP/s", "tests/test_flow.py"):
        assert source in said  # of each expected figure
    assert all("`python tests/bench.py gpu '" in row and not re.search(r"[|] nan|inf", row) for row in rows[2:])
    base = next(row + "|" for row in rows if "'albert, base, pre-training, 64 rows of 512'" in row)
    found = phases["albert | base | pre-training, 64 rows of 512"]
    assert f"| {found['peak'] / 1e9:.1f} |" in base
    assert f"| {2 * 64 * 512 * 0.35 * 312e12 / found['flops']:,.0f} tokens |" in base


def test_gpu_runs_a_phase():
    """On the CPU, where neither memory nor waits are counted."""
    cfg, cpu, before = albert_at(**TINY, length=64, embedding=64, dev_rows=2), torch.device("cpu"), rehearsals.ids
    found = bench_gpu.on_device(cpu, cfg, ALBERT, (2, 2), "albert", steps=1)
    assert found["seconds"] > 0 and found["waits"] == 0 and rehearsals.ids is before


def test_gpu_times_what_has_no_update():
    """A beam search, with the rehearsal's mocks, on real tensors."""
    cfg, arch, _ = mformer_of("wmt14")
    cfg.length, cpu = 6, torch.device("cpu")
    build = functools.partial(rehearsals.beams, mformer, arch)
    found = bench_gpu.on_device(cpu, cfg, build, (64, 1), "mformer", updates=False)
    assert found["seconds"] > 0 and found["waits"] == 0


def test_schedule_is_bounded():
    assert {*albert.TABLE14, *abz.recipes(abz.Config()), *autotinybert.TABLE_D1} == {*LONGEST}  # what can be fine-tuned
    for rounds, numbers in bench_schedule.cases().values():
        for processes in numbers:
            shares = bench_schedule.busy(rounds, processes)
            assert all(0 < share <= 1.000001 for share in shares) and (processes > 1 or min(shares) > 0.999)
            bound = sum(max(sum(second for _, second in jobs) / processes, max(second for _, second in jobs))
                        for jobs in rounds)  # no way is faster
            assert max(shares) <= sum(second for jobs in rounds for _, second in jobs) / processes / bound + 1e-9
    assert bench_schedule.claims([(0, 1.0), (0, 1.0), (0, 4.0)], 2) == 5
    assert bench_schedule.claims([(1, 1.0), (1, 1.0), (4, 4.0)], 2, longest=True) == 4
    assert bench_schedule.fixed([(0, 1.0), (0, 1.0), (0, 4.0)], 2) == 5


def test_the_page_is_made_from_what_was_found():
    """Nothing in tests/claims/rehearsal.md is written by hand."""
    assert (bench_page.CLAIMS / "rehearsal.md").read_text() == bench_page.page()


def test_demos_of_curves_are_commands():
    """Their flags are those of the paper files."""
    for command in (*bench_curves.DEMOS, bench_curves.SEARCH, bench_curves.TRAIN):
        file, *words = shlex.split(command.format(updates=3, candidates=2))
        module = importlib.import_module(file.removesuffix(".py"))
        flags = {word[2:] for word in words if word.startswith("--")}
        assert flags <= {*(field.name for field in dataclasses.fields(module.Config)), *module.ACTIONS}


@pytest.mark.slow
def test_curves(tmp_path, capsys, demo):
    found = bench_curves.main(["--tiny", "--out", str(tmp_path / "curves.json")])
    assert json.loads((tmp_path / "curves.json").read_text()) == found
    assert [line["processes"] for line in found["processes"]["training"]] == [1, 2]
    speed = found["demos"][0]
    assert speed["a_second"] > 0 and speed["unit"] == "tokens" and 100 < speed["peak_mb"] < 2000
    assert found["length"]["microseconds a token"].keys() == bench_curves.NETWORKS.keys()
    assert capsys.readouterr().out.count("| `") == 7
    picture = tmp_path / "curves.png"
    assert not picture.exists() or picture.stat().st_size < 60_000
