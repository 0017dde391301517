"""torch.compile: each file trains with --compile as without it."""
import math
import shutil

import pytest
import torch
from conftest import filled
from small_runs import TRAINED, call

from common.checkpoint import read_jsonl

IMAGES = (
    "mformer --train --cifar10 {cifar10} --layers 2 --hidden 16 --ffn 16 --heads 2 --patch 8 "
    "--batch 8 --held_out 16 --augment 1 0 0 0 --device cpu "
    "--arch 'layers=2 hidden=16 ffn=16,16 heads=2,2 types=softmax,linear'")
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


@pytest.mark.skipif(not COMPILER, reason="the inductor needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRAINED, "images"])
def test_compiled_is_eager(name, ready, tmp_path, monkeypatch):
    """The inductor's code on a CPU: no graph break, and the losses of eager mode."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    command = {**TRAINED, "images": IMAGES}[name] + " --dropout 0 --lr 0.01 --save_every 1"
    command += " --further_steps 3" if name == "autotinybert" else " --steps 3"
    losses = []
    for way in ("", "--compile"):
        out = tmp_path / f"run{way}"
        assert not call(filled(f"{command} {way} --out {{out}}", out=out, **ready), monkeypatch)
        losses.append([line["loss"] for line in read_jsonl(out / "log.jsonl") if "loss" in line])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert all(map(math.isfinite, losses[0]))
    counts = torch._dynamo.utils.counters
    assert counts["stats"]["unique_graphs"] >= 1
    assert not counts["graph_break"]
