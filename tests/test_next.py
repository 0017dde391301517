"""What a finished run prints last: its folder, its best file, and the next command, which works when it is pasted and
goes on with the data that the run had."""
import json
import re
import shutil
from pathlib import Path

import pytest
from small_runs import TRAINED, TUNED, call
from test_bad_input import the_line


@pytest.mark.parametrize("run", [*TRAINED, "tuned"])
def test_the_next_command_works_when_it_is_pasted(run, ready, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(ready[run], tmp_path / "run")
    command = {**TRAINED, "tuned": TUNED}[run].format(**ready)
    assert not call(f"{command} --out {out}", monkeypatch)
    printed = capsys.readouterr().out
    assert f"{out}: finished" in printed and Path(re.search("best: (.+)", printed)[1]).exists()
    program, words = re.search(r"^next: python (\w+)\.py (.+)$", printed, re.MULTILINE).groups()
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.rglob("*"), *ready["glue"].rglob("*")}
    assert not call(f"{program} {words}", monkeypatch)
    made = {*tmp_path.rglob("*"), *ready["glue"].rglob("*")} - before
    assert made
    for path in [path for path in made if path.name == "config.json" and run == "mformer"]:
        assert json.loads(path.read_text())["settings"]["test_text"] == f"{ready['pairs']}/train"  # no demo text
    for path in ready["glue"].glob("*/*-predictions"):
        shutil.rmtree(path)


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_model_of_text_of_ones_own_goes_on_with_no_demo_task(program, ready, tmp_path, monkeypatch, capsys):
    """But with its own text, where a command reads text."""
    command = f"{program} --finetune RTE --init {ready[program]} --finetune_length 16 --out {tmp_path}/out"
    assert call(command, monkeypatch) == 2 and not (tmp_path / "out").exists()
    assert "--glue: missing" in the_line(capsys.readouterr().err)
    train = {"autotinybert": "--further_train --further_steps 2 --accumulate 1 --batch 2"}.get(
        program, "--pretrain --steps 2 --batch 2")
    assert not call(f"{program} {train} --init {ready[program]} --out {tmp_path}/more", monkeypatch)
    assert f"--corpus {ready['corpus']}" in capsys.readouterr().out
