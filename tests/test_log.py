"""log.jsonl has one schema: what data/README.md lists, in the runs of all four files."""
import json
import math
import re
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

from common.runs import LOGGED

PAGE = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
ALWAYS = {"phase", "step", "memory_mb", "seconds"}


def lines_of(folder):
    """The lines of a run's log, checked: their keys, numbers that are some, and seconds that go on."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "event" not in line]
    for line in lines:
        assert ALWAYS <= line.keys() and {key for key in line if not key.startswith("dev_")} <= LOGGED
        assert all(math.isfinite(value) for key, value in line.items() if key not in ("phase", "job") and value is not None)
    seconds = [line["seconds"] for line in lines]
    assert lines and seconds == sorted(seconds)
    return lines


@pytest.mark.parametrize("run, phase, keys", [
    ("albert", "pretrain", {"loss", "mlm_loss", "order_loss", "norm", "lr", "tokens_per_second"}),
    ("autobert_zero", "pretrain", {"loss", "mlm_loss", "order_loss", "lr", "tokens_per_second", "dev_mlm_accuracy"}),
    ("autotinybert", "model", {"loss", "mlm_loss", "lr", "tokens_per_second", "dev_loss"}),
    ("mformer", "train", {"loss", "norm", "lr", "tokens_per_second", "dev_loss"}),
    ("tuned", "finetune", {"job", "loss", "lr", "dev_score"})])
def test_the_keys_of_a_run(run, phase, keys, ready):
    lines = [line for line in lines_of(ready[run]) if line["phase"] == phase]
    assert {key for line in lines for key in line} >= keys


def test_the_table_lists_the_keys():
    table = re.search(r"\| key \| what \|\n(.*?)\n\n", PAGE, re.DOTALL)[1]
    first = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.split("\n")))
    assert {name for name in first if not name.startswith("dev_")} == LOGGED


def test_the_curves_of_two_runs_are_drawn_from_it(ready, monkeypatch, capsys):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    drawn, plt = [], SimpleNamespace(legend=lambda: 0, savefig=lambda name: 0)
    plt.plot = lambda steps, losses, label: drawn.append((steps, losses))
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace(pyplot=plt))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", plt)
    exec(code.replace("runs/one", str(ready["albert"])).replace("runs/two", str(ready["autobert_zero"])), {})
    assert [steps for steps, _ in drawn] == [(1, 2), (1, 2)] and all(1 < loss < 9 for _, losses in drawn for loss in losses)
    assert str(drawn[1][1][-1]) in capsys.readouterr().out
