"""--describe's memory, fits and days: the rehearsal on fake tensors against real peaks and the files' own FLOPs."""
import dataclasses
import functools
import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import albert
import autobert_zero
from common import rehearsal
from data import rehearsals

ALBERT = functools.partial(rehearsals.albert, albert)
TINY = dict(layers=3, hidden=128, heads=4, ffn=512, vocab_size=500)


def albert_at(preset="base", **settings):
    return albert.Config(**{**albert.PRESETS[preset], "preset": preset, "accumulate": 1, **settings})


PLANS = {
    "albert": (lambda **own: albert_at(**TINY, length=64, embedding=64, **own), ALBERT),
    "autobert_zero": (lambda **own: autobert_zero.Config(**TINY, length=64, **own),
                      functools.partial(rehearsals.autobert_zero, autobert_zero,
                                        autobert_zero.read_arch("autobert-zero", 3))),
}


def allocated(function, *args):
    """The most bytes that torch's allocator had given out at once during function(*args), beyond those at its start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        function(*args)
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PLANS)
def test_peaks_are_the_real_ones(name, dtype):
    settings, build = PLANS[name]
    cfg, shards = settings(dtype=dtype), 2
    memory, = rehearsal.rehearse(cfg, build, (8, shards), card=False)
    optimizer, step, look = build(cfg)
    step(8, shards)
    real = memory["weights"] + memory["optimizer"] + allocated(step, 8, shards)
    assert memory["update"] == pytest.approx(real, rel=0.1)
    with torch.no_grad():
        real = memory["weights"] + memory["optimizer"] + allocated(look)
    assert memory["evaluation"] == pytest.approx(real, rel=0.1)


def test_recompute_keeps_less_and_costs_a_third_more():
    cfg = albert_at("base", dtype="bfloat16", layers=6)
    plain, again = (rehearsal.rehearse(dataclasses.replace(cfg, recompute=way), ALBERT, (8, 1))[0]
                    for way in (False, True))
    assert again["activations"] < plain["activations"] / 2
    assert 1.25 < again["flops"] / plain["flops"] < 1.34


def test_flops_are_the_files_own():
    cfg = albert_at("base", layers=2, dev_rows=4)
    found, = rehearsal.rehearse(cfg, ALBERT, (1, 1))
    assert found["evaluation_flops"] == 4 * albert.flops(cfg)


def test_on_a_card_layer_norms_are_float32_and_masks_bytes():
    x, norm = torch.zeros(2, 64, requires_grad=True), torch.nn.LayerNorm(64)
    with rehearsal.on_card(), torch.autocast("cpu", torch.bfloat16):
        assert norm(x.bfloat16()).dtype == torch.float32 and x.bfloat16().softmax(-1).dtype == torch.float32
        assert torch.nn.functional.dropout(x, 0.5).grad_fn.name() == "NativeDropoutBackward0"
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16  # and nothing stays changed


def test_forecast(monkeypatch):
    cfg = albert_at(**TINY, length=64, embedding=64, batch=4096, dtype="bfloat16")
    found = rehearsal.forecast(cfg, ALBERT, updates=1000)
    json.dumps(found)
    memory, days = found["memory"], found["days"]
    assert sum(memory[kind] for kind in rehearsal.KINDS) == memory["update"] and memory["rows"] == 4096
    for size, (fits, accumulate) in {size: fit.values() for size, fit in found["fits"].items()}.items():
        least, = rehearsal.rehearse(cfg, ALBERT, (4096 // accumulate, min(2, accumulate)))
        assert max(least["update"], least["evaluation"]) <= float(size.split()[0]) * 1e9 and fits == (accumulate == 1)
    assert days["H100"]["20%"] > days["H100"]["50%"] > 0 and days["updates"] == 1000
    monkeypatch.setenv("WORLD_SIZE", "4")
    shared = rehearsal.forecast(cfg, ALBERT, updates=1000)
    assert shared["memory"]["rows"] == 1024 and shared["memory"]["buckets"] == memory["weights"]
    assert shared["days"]["H100"]["50%"] == pytest.approx(days["H100"]["50%"] / 4, rel=0.01, abs=0.001)
