"""One paper file in another project: copied into a folder without data/, next to another package
common, it runs its example."""
import importlib
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from conftest import ROOT

FILES = ["albert", "autobert_zero", "autotinybert", "mformer"]


@pytest.fixture
def run_alone(tmp_path, monkeypatch, capsys):
    """run_alone(name): the lines printed by tests/alone/NAME_example.py next to NAME.py alone. It
    runs in this process, as if nothing of the repository had been imported, next to another package
    common."""
    def run(name):
        example = f"{name}_example.py"
        shutil.copy(ROOT / f"{name}.py", tmp_path)
        shutil.copy(ROOT / "tests" / "alone" / example, tmp_path)
        (tmp_path / "common").mkdir()
        (tmp_path / "common/__init__.py").write_text("theirs = 1\n")
        others = [path for path in sys.path if ROOT not in (Path(path), Path(path).parent)]
        monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
        monkeypatch.setattr(sys, "argv", [example])
        for module in [*sys.modules]:
            if module.split(".")[0] in (*FILES, "common", "data"):
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.chdir(tmp_path)
        try:
            runpy.run_path(example, run_name="__main__")
            assert importlib.import_module("common").theirs == 1
        finally:
            for module in (name, "common"):
                sys.modules.pop(module, None)
        return capsys.readouterr().out.splitlines()
    return run


@pytest.mark.parametrize("name", FILES)
def test_a_command_of_a_file_alone_names_what_it_lacks(name, tmp_path, monkeypatch, capsys):
    shutil.copy(ROOT / f"{name}.py", tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--describe"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(tmp_path / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().err
    assert "common/ and data/" in printed
    assert printed.count("\n") == 1


def losses_of(lines):
    """Losses of training steps: the first is the highest, the last the lowest."""
    losses = [float(re.fullmatch(r"step \d+: loss ([\d.]+)", line)[1]) for line in lines]
    assert losses[0] == max(losses) and losses[-1] == min(losses) < 0.8 * losses[0]
    return losses


def test_autotinybert(run_alone):
    """The loss falls, and three generations of sub-models are within the limit."""
    printed = run_alone("autotinybert")
    losses_of(printed[:4])
    *candidates, best = printed[4:]
    found = [re.fullmatch(r"([\d-]+) takes ([\d.]+) of the limit, loss ([\d.]+)", line).groups()
             for line in candidates]
    assert len({arch for arch, *_ in found}) == 15
    assert all(0 < float(fraction) <= 1 for _, fraction, _ in found)
    lowest = min(float(loss) for *_, loss in found)
    assert best.removeprefix("best: ") in {
        arch for arch, _, loss in found if float(loss) == lowest}


def test_autobert_zero(run_alone):
    """Candidates that start from the super-net's weights get better."""
    *candidates, best = run_alone("autobert_zero")
    rounds = {}
    for line in candidates:
        number, loss = re.match(r"round (\d), parent \w+: loss ([\d.]+)  ", line).groups()
        rounds.setdefault(number, []).append((float(loss), line.split("  ", 1)[1]))
    losses = [min(each)[0] for each in rounds.values()]
    assert [len(each) for each in rounds.values()] == [4, 4, 4]
    assert losses[-1] < losses[0] - 0.1
    assert best == f"best: {min(sum(rounds.values(), []))[1]}"


def test_albert(run_alone):
    """Losses fall, order is learnt from text that reveals it, and shared blocks count once."""
    *steps, shared, apart = run_alone("albert")
    losses = [float(re.search(r"loss ([\d.]+)", step)[1]) for step in steps]
    assert losses == sorted(losses, reverse=True)
    assert float(steps[0].split()[-1]) < 0.8
    assert float(steps[-1].split()[-1]) > 0.9
    block = 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    assert int(apart.split()[1]) - int(shared.split()[1]) == 11 * block


def test_mformer(run_alone):
    """The loss falls, and the best sub-net is within the limit and as good as the super-net."""
    *steps, best = run_alone("mformer")
    losses = losses_of(steps)
    fraction, loss = re.match(r"best: ([\d.]+) of the limit, loss ([\d.]+): layers=", best).groups()
    assert float(fraction) <= 1
    assert float(loss) < losses[0] / 2
