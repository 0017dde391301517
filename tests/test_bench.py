"""tests/bench.py: each comparison runs at its smallest size; commands of gpu name real flags."""
import dataclasses
import importlib
import shlex

import bench
import pytest


@pytest.mark.peers
def test_peers():
    pytest.importorskip("transformers")
    results = bench.main("peers --small --rounds 2 --threads 1".split())
    assert results.keys() == bench.PEERS.keys()
    for row in results.values():
        assert 0 < row["lowest"] <= row["ratio"] <= row["highest"]


@pytest.mark.parametrize("line", (bench.DRY + bench.TRAININGS).split("\n"))
def test_commands_of_gpu_have_flags_of_the_files(line):
    file, *words = shlex.split(line.format(to="", demo="")) or ["albert.py"]
    module = importlib.import_module(file.removesuffix(".py"))
    known = {field.name for field in dataclasses.fields(module.Config)}
    known.update(module.ACTIONS)
    flags = {word[2:] for word in words if word.startswith("--")}
    assert flags <= known
