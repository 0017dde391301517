"""tests/bench.py: its commands name real flags."""
import dataclasses
import importlib
import shlex

import bench
import pytest


@pytest.mark.parametrize("line", (bench.DRY + bench.TRAININGS).split("\n"))
def test_commands_of_the_benchmark_have_flags_of_the_files(line):
    file, *words = shlex.split(line.format(to="", demo="")) or ["albert.py"]
    module = importlib.import_module(file.removesuffix(".py"))
    fields = {field.name for field in dataclasses.fields(module.Config)}
    flags = {word[2:] for word in words if word.startswith("--")}
    assert flags <= fields | {*module.ACTIONS}
