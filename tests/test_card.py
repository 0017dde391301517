"""Sequences without tokens give finite numbers, in bfloat16 too. With a GPU these tests run on
it."""
import random

import pytest
import torch

import albert
import autobert_zero as abz
import autotinybert as atb
import mformer as mf
from common.distributed import launch, send

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = torch.tensor([9, 0, 3])  # the second sequence is empty
SHAPE = dict(vocab_size=50, layers=2, hidden=16, heads=2, ffn=32, dropout=0.1)
OVER_TOKENS = "(K @ softmax(Q.T)).T.T @ V + dist(Q, P) @ softsign(V)"  # a softmax of "dn"


def text():
    """ids, segments (3, 9), lengths (3,)"""
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    return send((ids, (ids > 25).long(), LENGTHS), DEVICE)


def make_autobert(arch):
    model = abz.LanguageModel(abz.read_arch(arch, 2), abz.Config(**SHAPE)).to(DEVICE)
    return model, lambda: model(*text(), torch.arange(8, device=DEVICE))


def make_autotinybert(fit):
    model = atb.LanguageModel(atb.parse_arch("2-16-32-2-16"), 50, 0.1, fit).to(DEVICE)

    def distill():
        states, scores = model.student(*text())
        teacher = (states.detach() + 1, scores.detach() + 1)
        return atb.distillation_loss((states, scores), teacher, text()[2])
    return model, distill


def make_albert(embedding):
    model = albert.SpanModel(albert.Config(embedding=embedding, positions=16, **SHAPE)).to(DEVICE)
    batch = dict(zip(("ids", "segments", "lengths"), text()))
    batch["p_mask"] = torch.arange(9, device=DEVICE) >= batch["lengths"][:, None]
    return model, lambda: model(batch)


def make_mformer(attn_type):
    cfg = mf.Config(
        task="wmt14", layers=(3,), hidden=(24,), ffn=(32,), heads=(2,), decoder_layers=(1,),
        qkv=32, relative=3, length=40, vocab_size=50)
    arch = mf.retype(mf.sample_arch(mf.space_of(cfg), random.Random(0)), attn_type, mf.PARTS)
    model = mf.Translator(arch, cfg).to(DEVICE)
    ids, target, lengths = text()
    return model, lambda: model(ids, lengths, target)


CASES = [
    (make_autobert, "bert"),
    (make_autobert, f"conv9 | {OVER_TOKENS}"),
    (make_autotinybert, 24),
    (make_albert, 8),
    *((make_mformer, attn_type) for attn_type in mf.TYPES),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make, kind", CASES)
def test_a_sequence_without_tokens_gives_finite_outputs_and_gradients(make, kind, dtype):
    torch.manual_seed(0)
    model, forward = make(kind)
    with torch.autocast(DEVICE.type, dtype, enabled=dtype is not torch.float32):
        outputs = forward()
    if not isinstance(outputs, tuple):
        outputs = (outputs,)
    sum(part.float().square().sum() for part in outputs).backward()
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    assert all(part.isfinite().all() for part in (*outputs, *gradients))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_float32_is_multiplied_in_tf32_only_on_a_gpu(dtype):
    before = torch.get_float32_matmul_precision()
    with launch("auto", dtype):
        high = dtype == "float32" and DEVICE.type == "cuda"
        assert torch.get_float32_matmul_precision() == ("high" if high else before)
    torch.set_float32_matmul_precision(before)
