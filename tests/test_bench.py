"""tests/bench.py: each part at its smallest size measures everything that it names."""
import dataclasses
import importlib
import json
import re
import shlex

import bench
import pytest


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


def test_commands_of_gpu_have_flags_of_the_files():
    gpu = [f"{line} {base} {small}" for line, base, small in bench.TRAININGS]
    for command in (*bench.DRY.split("\n")[1:], *gpu):
        file, *words = shlex.split(command.format(to="", demo=""))
        module = importlib.import_module(file.removesuffix(".py"))
        flags = {word[2:] for word in words if word.startswith("--")}
        assert flags <= {*(field.name for field in dataclasses.fields(module.Config)), *module.ACTIONS}
