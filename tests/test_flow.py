"""The training step of each file: under torch.compile it has no graph break, and the losses and
gradients of eager mode; sequences without tokens give finite numbers, on a GPU where there is one.
`bench.py` looks for waits on a GPU, under torch.cuda.set_sync_debug_mode."""
import shutil

import pytest
import torch

import albert
import autobert_zero
import autotinybert
import mformer
from common.distributed import launch, send

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = {
    "hidden": 16,
    "heads": 2,
    "ffn": 32,
    "vocab_size": 50,
    "length": 16,
    "dropout": 0.0,
    "dtype": "float32",
}
IMAGES = "layers=2 hidden=16 ffn=32,32 heads=2,2 types=softmax,linear"
TEXTS = IMAGES + (
    " decoder_layers=2 decoder_hidden=16 decoder_ffn=32,32 decoder_heads=2,2"
    " decoder_types=softmax,softmax cross_heads=2,2 connect=1,2 cross_types=softmax,linear")


def numbers(*shape, below=50):
    return torch.randint(below, shape)


def text(shortest):
    """ids, segments, lengths"""
    return [
        numbers(4, 16),
        numbers(4, 16, below=2),
        torch.tensor([14, 14, shortest, 14])
    ]


def step_of_albert(shortest):
    cfg = albert.Config(**SMALL, layers=2, embedding=8, positions=16)
    M = albert.masked_count(cfg.length)
    batch = [
        *text(shortest),
        numbers(4, M, below=14),
        numbers(4, M)
    ]

    def loss(network, batch):
        words, order = network(*batch[:4])
        loss = albert.summed_loss(words.flatten(0, 1), batch[4].flatten())
        return loss + order.square().mean()
    return albert.LanguageModel(cfg), loss, [batch] * 3


def step_of_autobert_zero(shortest):
    cfg = autobert_zero.Config(**SMALL, layers=12)
    batch = [
        *text(shortest),
        numbers(9, below=64),
        numbers(9),
        numbers(4, below=2)
    ]

    def loss(network, batch):
        return sum(autobert_zero.language_losses(network, batch, cfg, batch[0].device)[0])
    arch = autobert_zero.read_arch("autobert-zero", 12)
    return autobert_zero.LanguageModel(arch, cfg), loss, [batch] * 3


def step_of_autotinybert(shortest):
    ids, segments, lengths = text(shortest)
    masked = [numbers(4, 2, below=14), numbers(4, 2)]
    batches = [[ids, segments, each, *masked] for each in (lengths, None, lengths)]
    model = autotinybert.LanguageModel(autotinybert.parse_arch("2-32-64-2-32"), 50)
    return model, autotinybert.masked_loss, batches


def step_of_mformer_on_images(shortest):
    cfg = mformer.Config(task="cifar10", image=16, patch=4, dtype="float32")
    batch = [torch.randn(4, 3, 16, 16), numbers(4, below=10)]
    return mformer.make_model(mformer.parse_arch(IMAGES, cfg), cfg), mean_loss, [batch] * 3


def step_of_mformer_on_text(shortest):
    """Batches of several lengths."""
    cfg = mformer.Config(
        task="wmt14", vocab_size=50, length=16, qkv=16, relative=2, dtype="float32")
    batches = []
    for B, T in ((6, 8), (4, 12), (3, 15)):
        lengths = torch.full((B,), T)
        lengths[1] = min(T, shortest)
        batches.append([numbers(B, T), lengths, numbers(B, T + 1), numbers(B, T + 1)])
    return mformer.make_model(mformer.parse_arch(TEXTS, cfg), cfg), mean_loss, batches


def mean_loss(network, batch):
    total, count = mformer.smoothed_loss(network, batch)
    return total / count


STEPS = [
    step_of_albert,
    step_of_autobert_zero,
    step_of_autotinybert,
    step_of_mformer_on_images,
    step_of_mformer_on_text,
]
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


def gradients_of(model):
    return [value.grad for value in model.parameters() if value.grad is not None]


@pytest.mark.skipif(not COMPILER, reason="the inductor needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize("make_step", STEPS)
def test_compiled_is_eager(make_step, tmp_path, monkeypatch):
    """At most three graphs. Decoders have softmax attention as the published ones do: torch 2.13
    generates no code for the backward pass of linear attention in decoders at varying lengths."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model, loss, batches = make_step(14)
    network = torch.compile(model.train(), fullgraph=True)
    for batch in batches:
        losses = []
        gradients = []
        for each in (model, network):
            model.zero_grad()
            losses.append(loss(each, batch))
            losses[-1].backward()
            gradients.append(gradients_of(model))
        torch.testing.assert_close(*losses, rtol=0, atol=1e-4)
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-3)
    counts = torch._dynamo.utils.counters
    assert not counts["graph_break"]
    assert 1 <= counts["stats"]["unique_graphs"] <= 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make_step", STEPS)
def test_a_sequence_without_tokens_gives_a_finite_loss_and_gradients(make_step, dtype):
    torch.manual_seed(0)
    model, loss, (batch, *_) = make_step(0)
    model = model.to(DEVICE)
    with torch.autocast(DEVICE.type, dtype, enabled=dtype is not torch.float32):
        value = loss(model, send(batch, DEVICE))
    value.backward()
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients_of(model))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_float32_is_multiplied_in_tf32_only_on_a_gpu(dtype):
    before = torch.get_float32_matmul_precision()
    with launch("auto", dtype):
        high = dtype == "float32" and DEVICE.type == "cuda"
        assert torch.get_float32_matmul_precision() == ("high" if high else before)
    torch.set_float32_matmul_precision(before)
