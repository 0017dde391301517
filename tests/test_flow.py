"""Each file trains with --compile, and in bfloat16, as without."""
import math
import shutil

import pytest
import torch
from small_runs import TRAINED

from common.files import read_jsonl

IMAGES = (
    "mformer --train --cifar10 {cifar10} --patch 8 "
    "--batch 8 --held_out 16 --device cpu "
    "--arch 'layers=2 hidden=16 ffn=16,16 heads=2,2 types=softmax,linear'")
COMMANDS = {**TRAINED, "images": IMAGES}
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


@pytest.fixture(params=COMMANDS)
def losses(request, works, monkeypatch):
    """losses(flags): the losses of three steps, as the log has them."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str("cache"))
    steps = "--further_steps 3" if request.param == "autotinybert" else "--steps 3"
    command = f"{COMMANDS[request.param]} {steps} --dropout 0 --lr 0.01 --save_every 1"

    def run(flags):
        out = f"run{flags}"
        works(f"{command} {flags} --out {{out}}", out=out)
        values = [line["loss"] for line in read_jsonl(f"{out}/log.jsonl") if "loss" in line]
        assert all(map(math.isfinite, values))
        return values
    return run


@pytest.mark.skipif(not COMPILER, reason="the inductor needs a C++ compiler")
@pytest.mark.slow
def test_compiled_is_eager(losses):
    """The inductor's code on a CPU, without graph breaks."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    assert losses("--compile") == pytest.approx(losses(""), rel=1e-4)
    counts = torch._dynamo.utils.counters
    assert counts["stats"]["unique_graphs"] >= 1
    assert not counts["graph_break"]


def test_bfloat16_is_float32_to_rounding(losses):
    assert losses("--dtype bfloat16") == pytest.approx(losses("--dtype float32"), rel=0.02)
