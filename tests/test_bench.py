"""tests/bench.py: each part at its smallest size prints a row for everything that it measures."""
import re

import pytest

import autobert_zero as abz
import bench


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
