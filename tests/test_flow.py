"""torch.compile: a training step of each file has no graph break, and the losses and gradients of
eager mode. `bench.py` looks for waits on a GPU, under torch.cuda.set_sync_debug_mode."""
import shutil

import pytest
import torch

import albert
import autobert_zero
import autotinybert
import mformer

CPU = torch.device("cpu")
SMALL = dict(hidden=16, heads=2, ffn=32, vocab_size=50, length=16, dropout=0.0, dtype="float32")
IMAGES = "layers=2 hidden=16 ffn=32,32 heads=2,2 types=softmax,linear"
TEXTS = IMAGES + (
    " decoder_layers=2 decoder_hidden=16 decoder_ffn=32,32 decoder_heads=2,2"
    " decoder_types=softmax,softmax cross_heads=2,2 connect=1,2 cross_types=softmax,linear")


def numbers(*shape, below=50):
    return torch.randint(below, shape)


def text():
    """ids, segments, lengths"""
    return [numbers(4, 16), numbers(4, 16, below=2), torch.full((4,), 14)]


def step_of_albert():
    cfg = albert.Config(**SMALL, layers=2, embedding=8, positions=16)
    M = albert.masked_count(cfg)
    batch = [*text(), numbers(4, M, below=14), numbers(4, M)]

    def loss(network, batch):
        words, order = network(*batch[:4])
        return albert.summed_loss(words.flatten(0, 1), batch[4].flatten()) + order.square().mean()
    return albert.LanguageModel(cfg), loss, [batch] * 3


def step_of_autobert_zero():
    cfg = autobert_zero.Config(**SMALL, layers=12)
    batch = [*text(), numbers(9, below=64), numbers(9), numbers(4, below=2)]

    def loss(network, batch):
        return sum(autobert_zero.language_losses(network, batch, cfg, CPU)[0])
    arch = autobert_zero.read_arch("autobert-zero", 12)
    return autobert_zero.LanguageModel(arch, cfg), loss, [batch] * 3


def step_of_autotinybert():
    ids, segments, lengths = text()
    masked = [numbers(4, 2, below=14), numbers(4, 2)]
    batches = [[ids, segments, each, *masked] for each in (None, lengths, None, lengths)]
    model = autotinybert.LanguageModel(autotinybert.parse_arch("2-32-64-2-32"), 50)
    return model, autotinybert.masked_loss, batches


def step_of_mformer_on_images():
    cfg = mformer.Config(task="cifar10", image=16, patch=4, dtype="float32")
    batch = [torch.randn(4, 3, 16, 16), numbers(4, below=10)]
    return mformer.make_model(mformer.parse_arch(IMAGES, cfg), cfg), mean_loss, [batch] * 3


def step_of_mformer_on_text():
    """Batches of several lengths."""
    cfg = mformer.Config(task="wmt14", vocab_size=50, length=16, qkv=16, relative=2,
                         dtype="float32")
    batches = [[numbers(B, T), torch.full((B,), T), numbers(B, T + 1), numbers(B, T + 1)]
               for B, T in ((6, 8), (4, 12), (3, 15))]
    return mformer.make_model(mformer.parse_arch(TEXTS, cfg), cfg), mean_loss, batches


def mean_loss(network, batch):
    total, count = mformer.smoothed_loss(network, batch)
    return total / count


STEPS = [step_of_albert, step_of_autobert_zero, step_of_autotinybert, step_of_mformer_on_images,
         step_of_mformer_on_text]
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


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
    model, loss, batches = make_step()
    network = torch.compile(model.train(), fullgraph=True)
    for batch in batches:
        losses = []
        gradients = []
        for each in (model, network):
            model.zero_grad()
            losses.append(loss(each, batch))
            losses[-1].backward()
            gradients.append([one.grad for one in model.parameters() if one.grad is not None])
        torch.testing.assert_close(*losses, rtol=0, atol=1e-4)
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-3)
    counts = torch._dynamo.utils.counters
    assert not counts["graph_break"]
    assert 1 <= counts["stats"]["unique_graphs"] <= 3
