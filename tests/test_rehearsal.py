"""--describe's memory, fits and days: the rehearsal on fake tensors against real peaks and the files' own FLOPs."""
import dataclasses
import functools

import pytest
import torch
from conftest import slow
from torch.profiler import ProfilerActivity, profile

import albert
import autobert_zero
import autotinybert
import mformer
from common import describe



def albert_at(preset="base", **settings):
    return albert.Config(**{**albert.PRESETS[preset], "preset": preset, "accumulate": 1, **settings})


ALBERT = albert.rehearsal
TINY = dict(layers=2, hidden=128, heads=4, ffn=512, vocab_size=500)
WHOLE = autotinybert.parse_arch("2-128-512-4-128")
IMAGES = mformer.parse_arch("layers=2 hidden=128 ffn=256,256 heads=2,2 types=softmax,linear", mformer.Config())
TEXTS = mformer.parse_arch("layers=2 hidden=128 ffn=256,256 heads=2,2 types=softmax,linear decoder_layers=1 "
                           "decoder_hidden=128 decoder_ffn=256 decoder_heads=2 decoder_types=softmax cross_heads=2 "
                           "connect=2 cross_types=softmax", mformer.Config(task="wmt14"))
PLANS = {
    "albert": (lambda **own: albert_at(**TINY, length=64, embedding=64, **own), ALBERT),
    "autobert_zero": (lambda **own: autobert_zero.Config(**TINY, length=64, **own),
                      functools.partial(autobert_zero.rehearsal, arch=autobert_zero.read_arch("autobert-zero", 2))),
    "autotinybert": (lambda **own: autotinybert.Config(vocab_size=500, length=64, largest="3-128-512-4-128",
                                                       smallest="1-32-32-1-128", **own),
                     functools.partial(autotinybert.rehearsal, arch=WHOLE, samples=2)),
    "images": (lambda **own: mformer.Config(image=32, patch=4, **own),
               functools.partial(mformer.rehearsal, arch=IMAGES)),
    "translation": (lambda **own: mformer.Config(task="wmt14", vocab_size=500, length=64, qkv=128, **own),
                    functools.partial(mformer.rehearsal, arch=TEXTS)),
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


QUICK = ("albert-float32", "autobert_zero-float32", "autotinybert-float32", "images-float32")


@pytest.mark.parametrize("name, dtype", [
    (name, dtype) if f"{name}-{dtype}" in QUICK else slow(name, dtype)
    for name in PLANS for dtype in ("float32", "bfloat16")])
def test_peaks_are_the_real_ones(name, dtype):
    settings, build = PLANS[name]
    cfg, shards = settings(dtype=dtype, batch=16), 2
    rows = 512 if name == "translation" else 8
    memory, = describe.rehearse(cfg, build, (rows, shards), card=False)
    optimizer, step, look = build(cfg)
    standing = memory["weights"] + memory["optimizer"]
    step(rows, shards)
    real = standing + allocated(step, rows, shards)
    assert memory["update"] == pytest.approx(real, rel=0.1)
    with torch.no_grad():
        real = standing + allocated(look)
    # the CPU's attention makes a float32 copy of a bfloat16 bias inside, which no operation shows
    inside = dtype == "bfloat16" and name in ("images", "translation")
    assert memory["evaluation"] == pytest.approx(real, rel=0.2 if inside else 0.1)


def test_recompute_keeps_less_and_costs_a_third_more():
    cfg = albert_at("base", dtype="bfloat16", layers=3)
    plain, again = (describe.rehearse(dataclasses.replace(cfg, recompute=way), ALBERT, (8, 1))[0]
                    for way in (False, True))
    assert again["activations"] < plain["activations"] / 1.5
    assert 1.2 < again["flops"] / plain["flops"] < 1.34


def test_flops_are_the_files_own():
    cfg = albert_at("base", layers=2, dev_rows=4)
    found, = describe.rehearse(cfg, ALBERT, (1, 1))
    assert found["evaluation_flops"] == 4 * albert.flops(cfg)


def test_flops_of_autotinybert_are_the_files_own():
    """The difference: no pooler, the head, the last layer at I places; backwards the kernel's q @ k again."""
    cfg = PLANS["autotinybert"][0](batch=4)
    found, = describe.rehearse(cfg, functools.partial(autotinybert.rehearsal, arch=WHOLE, samples=0), (4, 1))
    T, I, H, Q, F, V = cfg.length, round(autotinybert.MASK_RATE * cfg.length), 128, 128, 512, 500
    own = autotinybert.flops(WHOLE, T) - 2 * H * H
    own += 2 * I * (H * H + H * V) - 2 * (T - I) * (2 * H * Q + 2 * H * F + 2 * T * Q)
    assert found["evaluation_flops"] == 4 * own
    assert found["flops"] == 4 * (3 * own + 2 * (T * T * Q + I * T * Q))


@pytest.mark.parametrize("text, banded", [
    slow("autobert-zero", 65), ("conv65 | conv3 | conv9 | cos(dist(Q, Q), cos(softsign(softmax(P)), V)) @ K", 65 + 9)])
def test_flops_of_searched_layers_are_the_files_own(text, banded):
    """But for convolutions that run as bands: all T x T numbers are multiplied, a file counts the K in each row."""
    layers = 2 if text == "autobert-zero" else 4
    cfg = autobert_zero.Config(layers=layers, hidden=64, heads=4, ffn=96, vocab_size=50, length=128, batch=2)
    arch, T, H, M = autobert_zero.read_arch(text, layers), 128, 64, round(0.15 * 2 * 128)
    found, = describe.rehearse(cfg, functools.partial(autobert_zero.rehearsal, arch=arch), (1, 1))
    heads = M * (H * H + H * 50) + 2 * (H * H + H * 2)  # masked words, and pairs of sentences
    wide = [layer for layer in arch if isinstance(layer, int) and layer >= autobert_zero.BAND_FROM]
    bands = 2 * T * H * (len(wide) * T - banded)
    own = 2 * autobert_zero.count(arch, cfg)["flops"]
    assert found["evaluation_flops"] == own + 2 * (heads + bands)


@pytest.mark.parametrize("kind", ["softmax", slow("linear")])
def test_flops_of_pictures_are_the_files_own(kind):
    """Of an evaluation of 500 exactly. An update has three times as many, less the patches' gradient, which nobody
    needs, and more the scores, which the kernel of softmax attention makes anew on its way back."""
    cfg, arch = mformer.Config(image=32, patch=4, dtype="float32"), mformer.retype(IMAGES, kind)
    found, = describe.rehearse(cfg, functools.partial(mformer.rehearsal, arch=arch), (8, 1))
    own, scores, patches = mformer.model_flops(arch, cfg), 2 * 2 * 65 * 65 * 128, 2 * 64 * 48 * 128
    assert found["evaluation_flops"] == 500 * own
    assert found["flops"] == 8 * (3 * own - patches + (kind != "linear") * scores)


@pytest.mark.parametrize("encoder, decoder", [("linear", "softmax"), slow("softmax", "linear")])
def test_flops_of_translation_are_the_files_own(encoder, decoder):
    """Of 64 sentences as long as the file's own count takes them, and of an update of 17, with the scores made anew."""
    cfg = mformer.Config(task="wmt14", vocab_size=500, length=30, qkv=128, dtype="float32")
    arch = mformer.retype(mformer.retype(TEXTS, encoder), decoder, ("decoder_types", "cross_types"))
    found, = describe.rehearse(cfg, functools.partial(mformer.rehearsal, arch=arch), (512, 1))
    own, score = mformer.model_flops(arch, cfg), 2 * 30 * 30 * 128  # cross-attention sees two layers
    assert found["evaluation_flops"] == 64 * own
    assert found["flops"] == 17 * (3 * own + score * (2 * (encoder == "softmax") + 3 * (decoder == "softmax")))


def test_on_a_card_layer_norms_are_float32_and_masks_bytes():
    x, norm = torch.zeros(2, 64, requires_grad=True), torch.nn.LayerNorm(64)
    with describe.on_card(), torch.autocast("cpu", torch.bfloat16):
        assert norm(x.bfloat16()).dtype == torch.float32 and x.bfloat16().softmax(-1).dtype == torch.float32
        assert torch.nn.functional.dropout(x, 0.5).grad_fn.name() == "NativeDropoutBackward0"
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16  # and nothing stays changed


def test_forecast(monkeypatch):
    cfg = albert_at(**{**TINY, "layers": 1}, length=64, embedding=64, batch=4096, dtype="bfloat16")
    found = describe.forecast(cfg, ALBERT, updates=1000)
    memory, days = found["memory"], found["days"]
    assert sum(memory[kind] for kind in describe.KINDS) == memory["update"] and memory["rows"] == 4096
    fits, accumulate = found["fits"]["16 GB"].values()
    least, = describe.rehearse(cfg, ALBERT, (4096 // accumulate, min(2, accumulate)))
    assert max(least["update"], least["evaluation"]) <= 16e9 and fits == (accumulate == 1)
    assert days["H100"]["20%"] > days["H100"]["50%"] > 0 and days["updates"] == 1000
    monkeypatch.setenv("WORLD_SIZE", "4")
    shared = describe.forecast(cfg, ALBERT, updates=1000)
    assert shared["memory"]["rows"] == 1024 and shared["memory"]["buckets"] == memory["weights"]
    assert shared["days"]["H100"]["50%"] == pytest.approx(days["H100"]["50%"] / 4, rel=0.01, abs=0.001)
