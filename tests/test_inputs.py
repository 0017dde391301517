"""What a command works out of its flags and data is settled before config.json is written, and stands there."""
import dataclasses
import importlib
import json
import shlex

import pytest
from conftest import filled

from common.runs import RunFolder

TINY = {"albert": "--layers 1", "autobert_zero": "--layers 2 --runs 1",
        "mformer": "--cost flops --layers 1 --hidden 16 24 --ffn 16 24 32",
        "autotinybert": "--largest 2-32-64-2-32 --smallest 1-16-16-1-16"}
SETTLED = {  # actions that open a run folder, in their order: {run0} is the folder of the first; whether they read text
    "albert": [("--pretrain", True), ("--finetune RTE --init {run0}", False)],
    "autobert_zero": [("--search --tasks CoLA", True), ("--pretrain --arch bert --steps 0", True),
                      ("--finetune CoLA --init {run1}", False)],
    "autotinybert": [("--superplm", True), ("--further_train --arch 1-32-64-2-32", True),
                     ("--finetune SST-2 --init {run1}", False)],
    "mformer": [("--search", False), ("--train --arch {run0}/best.json", False), ("--evaluate --init {run1}", False)]}


@pytest.mark.parametrize("file", SETTLED)
def test_config_json_says_what_is_computed_and_nothing_is_assigned_behind_it(file, ready, tmp_path, monkeypatch):
    settled, settle = [], RunFolder.settle
    monkeypatch.setattr(RunFolder, "settle", lambda run, cfg: (settle(run, cfg), settled.append(cfg)))
    folders = {f"run{number}": tmp_path / f"{number}-dry" for number in range(len(SETTLED[file]))}
    for number, (command, reads_text) in enumerate(SETTLED[file]):
        glue = " --glue {glue}" * ("--finetune" in command)
        data = " --corpus {corpus} --length 60 --batch 8" if reads_text else glue
        words = filled(f"{command} {TINY[file]}{data} --dry_run --device cpu", **folders, **ready)
        importlib.import_module(file).main([*shlex.split(words), "--out", f"{tmp_path}/{number}"])
        cfg, record = settled[number], json.loads((tmp_path / f"{number}-dry" / "config.json").read_text())
        with pytest.raises(AttributeError, match="settled before config.json"):
            cfg.seed = 1
        assert len(settled) == number + 1  # and as it was written it still stands: nothing has assigned to it since
        assert record["settings"] | json.loads(json.dumps(dataclasses.asdict(cfg))) == record["settings"]
        assert all(record["settings"][name] for name in record.get("asked", ())) and record["settings"].get("steps", 1)
        assert not reads_text or record["vocabulary"]["pieces"] == 300 == cfg.vocab_size
