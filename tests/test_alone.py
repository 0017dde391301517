"""One paper file in another project: copied into an empty folder, without common/ and data/, it runs its example."""
import os
import pty
import re
import runpy
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT


def run_alone(name, folder):
    """What tests/alone/NAME_example.py prints in a folder that has NAME.py and nothing else."""
    for path in (ROOT / f"{name}.py", ROOT / "tests" / "alone" / f"{name}_example.py"):
        shutil.copy(path, folder)
    result = subprocess.run([sys.executable, "-E", f"{name}_example.py"], cwd=folder, capture_output=True, text=True)
    assert not result.returncode, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", ["albert", "autobert_zero", "autotinybert", "mformer"])
def test_a_command_of_a_file_alone_says_what_it_lacks(name, tmp_path, monkeypatch, capsys):
    shutil.copy(ROOT / f"{name}.py", tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--describe"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(tmp_path / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert "to be imported" in printed.err and "common/ and data/" in printed.err
    assert printed.err.count("\n") == 1 and not printed.out


@pytest.mark.parametrize("name", ["albert", "autobert_zero", "autotinybert", "mformer"])
def test_a_terminal_shows_a_line_before_torch_is_imported(name, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    ours, theirs = pty.openpty()
    command = [sys.executable, ROOT / f"{name}.py", "--help"]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, stderr=theirs)
    os.close(theirs)  # so that reading nothing is an error and not a wait
    assert result.returncode == 7 and os.read(ours, 99).startswith(b"importing torch")


def test_autotinybert(tmp_path):
    """The smallest part and the whole have learnt (guessing is 3.4), and a generation keeps the limit."""
    lines = run_alone("autotinybert", tmp_path).splitlines()
    assert len(lines) == 6 and max(float(line.split()[-1]) for line in lines[:2]) < 2.5
    assert all(0 < float(line.split()[2]) <= 1 for line in lines[2:])


def test_autobert_zero(tmp_path):
    """Of d = 768: a convolution's projection d -> 2d, and the attention's K, Q, P, V, each with biases."""
    first, second, *candidates = run_alone("autobert_zero", tmp_path).splitlines()
    assert first == "(2, 20, 64) gradients: True"
    network, parameters, projections, flops = re.fullmatch(r"(.*) (\d+) (\d+) (\d+)", second).groups()
    assert network == "conv9 | cos(dist(Q, Q), cos(softsign(softmax(P)), V)) @ K"
    assert int(projections) == 6 * (768 * 768 + 768) and int(parameters) > 30000 * 768 and int(flops) > 1e9
    assert len(set(candidates)) == 4


def test_albert(tmp_path):
    """Sentence order is learnt from text that tells it. 12 layers are made of 1 block, of 3, of 1 attention and 12
    feed-forward blocks, of 12."""
    *updates, one, three, attention_alone, twelve = run_alone("albert", tmp_path).splitlines()
    assert float(updates[0].split()[-1]) < 0.8 and float(updates[-1].split()[-1]) > 0.9
    lines = [one, three, attention_alone, twelve]
    sizes = [int(line.split("}")[1].split()[0]) for line in lines]
    attention, ffn = 4 * (32 * 32 + 32) + 64, 2 * 32 * 64 + 32 + 64 + 64
    assert [size - sizes[0] for size in sizes] == [0, 2 * (attention + ffn), 11 * ffn, 11 * (attention + ffn)]
    assert all(line.endswith("gradients everywhere: True") for line in lines)


def test_mformer(tmp_path):
    shape, order, first, wall, flops = run_alone("mformer", tmp_path).splitlines()
    assert shape == "(2, 300, 64), without its padding the same: True"
    assert order.startswith("best of 40 new ones: layers 3, hidden 64, types ('linear', 'linear', 'linear')")
    assert first == "what matters most: types"
    assert float(wall.split()[-1]) > 0 and float(flops.split()[-1]) == pytest.approx(2.6, abs=0.3)
