"""autotinybert.py: the search space, extraction, one-shot training, the latency predictor, Algorithm 2, folders, and whole runs on tiny data."""
import ast
import collections
import dataclasses
import functools
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import autotinybert as atb
from common import distributed, files, runs, tasks, weights as common_weights
from common.cli import Diverged, Stop, UserError
from common.files import load_file, read_jsonl
from common.tokenization import WordPieceTokenizer, load_tokenizer
from conftest import ROOT
from data import flat as flat_module, hf_models, latency_log
from data.hf_folder import read_weights, write_weights
from data.text import train_sentencepiece
from tests.claims import autotinybert as claims, study

BASE = atb.Config(preset="base")
TINY = atb.Config(largest="3-24-40-4-24", smallest="1-8-8-1-8", dropout=0.0, vocab_size=50, length=16, batch=8,
                  accumulate=2)
DISTILL = dataclasses.replace(TINY, setting="distill")


def tiny_model(cfg=TINY, fit=0, seed=0):
    """A small SuperPLM whose biases and LayerNorms are random too."""
    torch.manual_seed(seed)
    model = atb.LanguageModel(atb.parse_arch(cfg.largest), cfg.vocab_size, 0.0, fit)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(std=0.3)
    return model.eval()


def tiny_batch(rows=3, width=9, vocab=50):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(vocab, (rows, width), generator=generator)
    return ids, (ids > 25).long(), torch.tensor([width, 6, 2])[:rows]


# --- search space --------------------------------------------------------------------------------

def space_size(space):
    """Number of architectures with identical layers."""
    return math.prod(map(len, space.values()))


def test_size_of_table_b1():
    assert space_size(atb.search_space(BASE)) == 8 * 161 * 737 * 12 == 11_391_072
    assert space_size(atb.search_space(dataclasses.replace(BASE, setting="distill"))) == 8 * 161 * 737 * 50 == 47_462_800


def test_samples_cover_the_space_and_nothing_else():
    for cfg in (BASE, dataclasses.replace(BASE, setting="distill")):
        space, rng = atb.search_space(cfg), random.Random(0)
        archs = [atb.sample_arch(space, rng) for _ in range(5000)]
        assert {arch.layers for arch in archs} == set(range(1, 9))
        assert {(arch.heads, arch.qkv) for arch in archs} == set(space["attention"])
        assert all(arch.hidden % 4 == 0 and 128 <= arch.hidden <= 768 and 128 <= arch.ffn <= 3072 and arch.ffn % 4 == 0 for arch in archs)
        assert all((arch.qkv == 64 * arch.heads) if cfg.setting == "mlm" else arch.heads == 12 for arch in archs)
        assert all(atb.why_outside(arch, atb.parse_arch(cfg.largest)) is None for arch in archs)


def test_text_form():
    assert str(atb.parse_arch("5-564-1054-8-512")) == "5-564-1054-8-512"  # off the grid, as published
    assert atb.Arch(2, 564, (1054, 800), (8, 4), (512, 512)).shape(1) == (800, 4, 512)
    arch = atb.sample_arch(atb.search_space(BASE), random.Random(0))
    assert atb.parse_arch(str(arch)) == arch == atb.make_arch(arch.genes)
    for text in ("5-564-1054-8", "5-564-1054-7-512", "0-4-4-1-4", "a-b-c-d-e", "2-8-8/8/8-1-8", "2-8/8-8-1-8", ""):
        with pytest.raises(ValueError):
            atb.parse_arch(text)


@pytest.mark.parametrize("text, millions", [
    ("12-768-3072-12-768", 109.48), ("8-768-3072-12-768", 81.13), ("5-564-1054-8-512", 29.57), ("4-396-624-6-384", 16.87),
    ("4-432-384-4-256", 16.71), ("3-320-608-4-256", 12.20), ("5-564-1024-12-528", 29.59), ("5-324-600-12-324", 14.22),
    ("5-280-512-12-276", 11.76), ("4-256-480-12-192", 9.79)])
def test_parameter_counts(text, millions):
    counts = atb.parameters(atb.parse_arch(text), 30522)
    assert round(sum(counts.values()) / 1e6, 2) == millions
    if millions == 109.48:
        assert sum(counts.values()) == 109_482_240


def test_flops_of_bert_base():
    assert atb.flops(atb.parse_arch("12-768-3072-12-768")) == pytest.approx(22.35e9, rel=1e-3)


def test_mutation_stays_in_the_space_moves_and_reaches_every_variable():
    for cfg in (TINY, DISTILL):
        space, rng = atb.search_space(cfg), random.Random(0)
        start = atb.sample_arch(space, rng)
        children = [atb.mutate(start, space, rng) for _ in range(300)]
        assert all(gene in space[name] for child in children for name, gene in child.genes.items())
        assert sum(child == start for child in children) == 0
        assert all(any(child.genes[name] != start.genes[name] for child in children) for name in space)
    atb.mutate(atb.parse_arch("5-450-636-12-768"), atb.search_space(BASE), random.Random(1))  # twelve heads, and off the grid


# --- extraction ----------------------------------------------------------------------------------

def all_variants():
    rng = random.Random(5)
    cases = [(cfg, atb.sample_arch(atb.search_space(cfg, variant), rng, variant != "hat"))
             for cfg in (TINY, DISTILL) for variant in atb.VARIANTS for _ in range(4)]
    return cases + [(TINY, atb.parse_arch(text)) for text in ("2-11-13-3-15", "3-24-40-4-24", "1-1-1-1-1", "3-23-39-2-24")]


def test_extracted_models_equal_sub_models():
    """For 36 architectures of all settings and ablations, with padding: MLM logits, states and attention scores agree to 1e-6."""
    ids, segments, lengths = tiny_batch()
    models = {fit: tiny_model(fit=fit).double() for fit in (0, 20)}
    positions = torch.tensor([[1, 2], [0, 3], [0, 1]])
    for _, arch in all_variants():
        sub, student = (atb.extract(models[fit], arch).eval().double() for fit in (0, 20))
        part, taught = (atb.sub_model(models[fit], arch) for fit in (0, 20))
        torch.testing.assert_close(sub(ids, segments, lengths, positions), part(ids, segments, lengths, positions), rtol=0, atol=1e-6)
        for mine, theirs in zip(student.student(ids, segments, lengths), taught.student(ids, segments, lengths)):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        assert sub.encoder.arch == arch and len(sub.encoder.layers) == arch.layers
        assert sum(value.numel() for value in sub.encoder.parameters()) == sum(atb.parameters(arch, 50).values())


def test_padding_changes_nothing():
    ids, segments, lengths = tiny_batch()
    model = tiny_model()
    for part in (model, atb.sub_model(model, atb.parse_arch("2-12-16-3-18"))):
        together = part.encoder(ids, segments, lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = part.encoder(ids[row:row + 1, :length], segments[row:row + 1, :length])
            torch.testing.assert_close(together[row:row + 1, :length], alone, rtol=1e-4, atol=1e-5)


def test_the_last_layer_is_the_same_where_it_is_computed_alone():
    """At masked positions and at [CLS] only: states and gradients are those of the whole layer."""
    ids, segments, lengths = tiny_batch()
    at, gradients = torch.tensor([[1, 2], [0, 3], [0, 1]]), []
    for chosen in (None, at):
        model = tiny_model()
        states = model.encoder(ids, segments, lengths, chosen)
        states = states if chosen is not None else states.gather(1, at[..., None].expand(-1, -1, 24))
        states.square().sum().backward()
        gradients.append([states, *(value.grad for name, value in model.named_parameters() if value.grad is not None)])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_figure_3():
    """Extraction takes the first heads whole, or the leading part of every head; rows of q, k, v and columns of the output alike."""
    weight = torch.arange(24.0)[:, None].expand(24, 24).reshape(4, 6, 24).expand(3, 4, 6, 24).contiguous()
    rows = {shape: atb.leading(weight, "*NDH", dict(zip("NDH", (*shape, 24))))[1, ..., 0].flatten().tolist()
            for shape in ((2, 6), (4, 3), (2, 12), (3, 2))}
    assert rows[2, 6] == list(range(12))  # (b)
    assert rows[4, 3] == [0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20]  # (c)
    assert rows[2, 12] == list(range(24))  # no SME: two heads share all rows
    assert rows[3, 2] == [0, 1, 6, 7, 12, 13]  # both at once, for any --arch
    assert atb.leading(weight[0].permute(2, 0, 1), "HND", {"N": 4, "D": 3, "H": 24})[0].flatten().tolist() == rows[4, 3]


@pytest.mark.parametrize("text, reason", [
    ("4-24-40-4-24", "layers"), ("3-28-40-4-24", "hidden"), ("3-24-44-4-24", "ffn"), ("3-24-40-2-16", "heads of 8")])
def test_architectures_outside_the_superplm_are_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        atb.extract(tiny_model(), atb.parse_arch(text))


# --- one-shot training ---------------------------------------------------------------------------

def test_sub_models_differ_by_shard_and_follow_from_step_and_shard_alone():
    drawn = [atb.sub_models(TINY, "ebl", step, shard) for step in range(20) for shard in range(4)]
    assert all(len(archs) == TINY.samples for archs in drawn) and len({str(arch) for archs in drawn for arch in archs}) > 150
    assert atb.sub_models(TINY, "ebl", 7, 2) == drawn[30]
    assert atb.sub_models(TINY, "sme", 7, 2) == atb.sub_models(TINY, "sme", 7, 0) and len(atb.sub_models(TINY, "sme", 7, 0)) == 1
    assert all(arch.qkv == 24 for step in range(20) for arch in atb.sub_models(TINY, "ils", step, 0))
    assert any(isinstance(arch.ffn, tuple) and len(set(arch.ffn)) > 1 for step in range(20) for arch in atb.sub_models(TINY, "hat", step, 0))


def test_weight_decay_is_berts():
    """None on biases and LayerNorms; the pooler, which pre-training does not read, is left alone."""
    model = tiny_model()
    names = {id(value): name for name, value in model.named_parameters()}
    optimizer = atb.make_optimizer(model, 0.1)
    decayed, plain = ({names[id(value)] for value in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert all("bias" in name or "norm" in name for name in plain) and not any("bias" in name or "norm" in name for name in decayed)
    assert {*names.values()} - decayed - plain == {"encoder.pooler.weight", "encoder.pooler.bias"}


def test_gradients_of_a_sub_model_arrive_in_its_part_of_the_whole():
    """The gradients of a sub-model are those of the extracted model, in the leading part of every axis, and nothing else is touched."""
    ids, segments, lengths = tiny_batch()
    batch = ids, segments, lengths, torch.tensor([[1, 2], [0, 3], [0, 1]]), torch.tensor([[5, 6], [7, 8], [9, -100]])
    for arch in (*map(atb.parse_arch, ("2-12-16-2-12", "2-12-16-4-12", "3-24-40-2-24")), atb.Arch(2, 12, (16, 24), (2, 4), (12, 24))):
        model = tiny_model()
        optimizer = atb.make_optimizer(model, 0.0)
        flat = flat_module.lay_flat([value for group in optimizer.param_groups for value in group["params"]])[1]
        alone = atb.extract(model, arch)
        for part in (atb.sub_model(model, arch), alone):
            atb.masked_loss(part, batch).backward()
        rest = flat.clone()
        atb.masked_loss(atb.sub_model(model, arch), batch).backward()  # a second one is added
        torch.testing.assert_close(flat, 2 * rest)
        parts, share = dict(atb.sub_model(model, arch).named_parameters()), 0
        for name, value in alone.named_parameters():
            if "pooler" not in name:
                torch.testing.assert_close(parts[name].grad, 2 * value.grad, rtol=1e-4, atol=1e-5)
                share += value.grad.count_nonzero()
        assert flat.count_nonzero() == share > 0 and parts["encoder.pooler.weight"].grad is None


def test_a_sub_model_is_cut_without_slices():
    """One view a weight and one a gradient; backwards only the positions, which are longer than a row, are a slice: what
    a slice leaves out is filled up with zeros."""
    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[func._overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))
    model, counts = tiny_model(), collections.Counter()
    flat_module.lay_flat(list(model.parameters()))
    with Counter():
        sub = atb.sub_model(model, atb.parse_arch("2-12-16-2-12"))
    assert counts["as_strided"] == 2 * len(list(sub.parameters())) and not counts["slice"]
    ids, segments, lengths = tiny_batch()
    loss = atb.masked_loss(sub, (ids, segments, lengths, torch.tensor([[1, 2], [0, 3], [0, 1]]), torch.ones(3, 2, dtype=torch.long)))
    with Counter():
        loss.backward()
    assert counts["slice_backward"] == 1


def test_batches_are_sent_from_pinned_memory_without_waiting(monkeypatch):
    sent = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: sent.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *where, **how: sent.append((*where, how)) or tensor)
    tensor, card = torch.ones(2), torch.device("cuda", 0)
    assert atb.send([tensor, None], card) == [tensor, None] and sent == ["pinned", (card, {"non_blocking": True})]
    assert atb.send([tensor, None], torch.device("cpu")) == [tensor, None] and sent.count("pinned") == 1


def test_bfloat16_casts_weights_once_an_update_and_changes_no_bit():
    """The gradients of an update are those of autocast alone, bit for bit, with fewer casts; the weights stay float32."""
    ids, segments, lengths = tiny_batch()
    batch = ids, segments, lengths, torch.tensor([[1, 2], [0, 3], [0, 1]]), torch.tensor([[5, 6], [7, 8], [9, -100]])
    archs, data = [*map(atb.parse_arch, ("2-12-16-2-12", "3-16-40-4-24", "1-8-8-1-6")), None], atb.Data(torch.device("cpu"))
    cfg, found = dataclasses.replace(TINY, dtype="bfloat16"), []
    for half in (False, True):
        model = tiny_model().train()
        trained = [value for group in atb.make_optimizer(model, 0.0).param_groups for value in group["params"]]
        flat = flat_module.Flat(model, trained, atb.products if half else None)
        with torch.no_grad():
            flat.weights.mul_(1.01)  # an update
        with torch.profiler.profile() as profile:
            flat.cast()
            losses = atb.train_on(batch, archs, len(archs), flat, data, cfg)
        casts = sum(event.count for event in profile.key_averages() if event.key == "aten::_to_copy")
        found.append((casts, losses, {name: value.grad for name, value in model.named_parameters() if "pooler" not in name}))
        assert all(value.dtype == torch.float32 for value in model.parameters()) and (flat.used is model) == (not half)
    (many, losses, gradients), (few, others, twins) = found
    assert few < many / 2 and losses == others and all(torch.equal(value, twins[name]) for name, value in gradients.items())


# --- objective -----------------------------------------------------------------------------------

class FakeTokenizer:
    vocab_size, pad_id, cls_id, sep_id, mask_id = 1000, 0, 2, 3, 4


def test_masking_is_80_10_10_and_never_touches_special_pieces():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (2000, 64), generator=generator)
    ids[:, 0], ids[:, 30], ids[::2, 40:] = 2, 3, 0
    changed, positions, labels = atb.mask_tokens(ids, FakeTokenizer, generator)
    chosen, originals = labels != -100, ids.gather(1, positions)
    assert chosen[::2].sum(1).unique().tolist() == [6] and chosen[1::2].sum(1).unique().tolist() == [9]  # 15% of 38 and of 62 pieces of text
    assert torch.equal(labels[chosen], originals[chosen]) and (labels[chosen] >= 5).all()
    now = changed.gather(1, positions)[chosen]
    assert (now == 4).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (now == labels[chosen]).float().mean().item() == pytest.approx(0.1, abs=0.01)


def test_distillation_loss_compares_scores_and_states_of_real_tokens():
    teacher = tiny_model(seed=3).encoder.requires_grad_(False)
    student = tiny_model(DISTILL, fit=24)
    ids, segments, lengths = tiny_batch()
    part = atb.sub_model(student, atb.parse_arch("2-12-16-4-8"))
    theirs, mine = teacher(ids, segments, lengths, with_scores=True), part.student(ids, segments, lengths)
    assert theirs[1].shape == mine[1].shape == (3, 4, 9, 9) and mine[0].shape == theirs[0].shape == (3, 9, 24)
    assert atb.distillation_loss(theirs, theirs, lengths) == 0
    states = sum(((mine[0] - theirs[0])[row, :n] ** 2).sum() for row, n in enumerate(lengths)) / (lengths.sum() * 24)
    scores = sum(((mine[1] - theirs[1])[row, :, :n, :n] ** 2).sum() for row, n in enumerate(lengths)) / ((lengths ** 2).sum() * 4)
    loss = atb.distillation_loss(mine, theirs, lengths)
    assert loss.item() == pytest.approx((states + scores).item(), rel=1e-5)
    wide = F.pad(ids, (0, 5), value=7), F.pad(segments, (0, 5)), lengths
    padded = atb.distillation_loss(part.student(*wide), teacher(*wide, with_scores=True), lengths)
    assert padded.item() == pytest.approx(loss.item(), rel=1e-4)
    loss.backward()
    assert all(value.grad is None for value in teacher.parameters()) and part.fit.weight.grad.abs().max() > 0


# --- latency and search --------------------------------------------------------------------------

def pretended_latency(arch):
    """Milliseconds of a machine that does 50 GFLOP/s and pays for each layer and each head."""
    return atb.flops(arch) / 5e7 + 0.3 * arch.layers + 0.02 * arch.layers * arch.heads + 0.001 * arch.hidden


def test_predictors_learn_a_machine():
    space, rng, top = atb.search_space(BASE), random.Random(0), atb.parse_arch(BASE.largest)
    archs = [atb.sample_arch(space, rng) for _ in range(300)]
    times = list(map(pretended_latency, archs))
    linear, network = atb.Predictor(128).fit(archs[:240], times[:240]), claims.fit_network(archs[:240], times[:240], top, steps=150)
    for predict, most in ((linear, 0.01), (network, 0.1)):
        assert sum(abs(guess / took - 1) for guess, took in zip(predict(archs[240:]), times[240:])) / 60 < most
    assert atb.Predictor(128, linear.weights)(archs[:5]) == linear(archs[:5]) and min(linear([atb.smallest_arch(space)])) > 0


def test_measuring_gives_positive_times_that_grow_with_the_model():
    cfg = dataclasses.replace(TINY, latency_length=32)
    small, large = atb.parse_arch("1-8-8-1-6"), atb.parse_arch("6-256-1024-4-256")
    threads = torch.get_num_threads()
    times = atb.time_together([small, large], cfg, rounds=3)
    assert len(times[small]) == 3 and 0 < max(times[small]) < min(times[large]) and torch.get_num_threads() == threads


def played_search(cfg, limit, score):
    """A whole Alg. 2 with pretended latencies and scores."""
    history = []
    for number in range(cfg.generations):
        for parent, arch in atb.propose(history, number, cfg, lambda archs: list(map(pretended_latency, archs)), limit):
            history.append({"id": len(history), "round": number, "parent": parent, "arch": str(arch), "score": score(arch), "diverged": False})
    return history


@pytest.mark.parametrize("setting", ["mlm", "distill"])
def test_algorithm_2(setting):
    cfg = dataclasses.replace(BASE, setting=setting)
    history = played_search(cfg, 30.0, lambda arch: -abs(arch.hidden - 400) - abs(arch.ffn - 700) / 4)
    assert len(history) == len({line["arch"] for line in history}) == 100  # T = 4 of S = 25, all new
    assert all(pretended_latency(atb.parse_arch(line["arch"])) <= 30.0 for line in history)
    assert [sum(line["round"] == number for line in history) for number in range(4)] == [25] * 4
    assert all(line["parent"] is None or history[line["parent"]]["round"] == line["round"] - 1 for line in history)
    mutants = sum(line["parent"] is not None for line in history[25:])
    assert 20 < mutants < 55  # p_m = p_e: about half
    assert history == played_search(cfg, 30.0, lambda arch: -abs(arch.hidden - 400) - abs(arch.ffn - 700) / 4)
    random_only = played_search(dataclasses.replace(cfg, strategy="random"), 30.0, lambda arch: 0.0)
    assert len(random_only) == 100 and all(line["parent"] is None for line in random_only)


def test_a_generation_is_smaller_where_the_limit_leaves_no_more():
    space = atb.search_space(TINY)
    limit = sorted(pretended_latency(atb.make_arch(dict(zip(space, genes)))) for genes in itertools.product(*space.values()))[4]
    history = played_search(dataclasses.replace(TINY, population=10, generations=1), limit, lambda arch: 1.0)
    assert 1 <= len(history) <= 5 and all(pretended_latency(atb.parse_arch(line["arch"])) <= limit for line in history)


def test_roulette_prefers_the_better_and_leaves_out_nobody():
    lines = [{"score": score} for score in (0.5, 0.6, 0.9)]
    rng, counts = random.Random(0), [0, 0, 0]
    for _ in range(3000):
        counts[lines.index(atb.roulette(lines, rng))] += 1
    assert counts[2] > 3 * counts[1] > 9 * counts[0] > 0


def test_fast_rule():
    def predict(archs):
        return list(map(pretended_latency, archs))
    found = atb.fast_candidates(atb.search_space(BASE), predict, 30.0)
    assert len({arch.layers for arch in found}) == len(found) >= 5
    for arch in found:
        assert 1.6 * arch.hidden <= arch.ffn <= 1.9 * arch.hidden and 0.7 * arch.hidden <= arch.qkv <= arch.hidden
        assert 25.0 < pretended_latency(arch) <= 28.5  # D11


# --- folders -------------------------------------------------------------------------------------

@functools.cache
def Vocabulary():
    """A WordPiece tokenizer of 50 pieces."""
    path = Path(tempfile.mkdtemp()) / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(45))]))
    return WordPieceTokenizer(path)


def keep(folder, model):
    """What a training leaves in a run's model/."""
    common_weights.keep_model(folder, "further_train", dataclasses.replace(TINY, arch=str(model.encoder.arch)), Vocabulary(), model=model)


def write_hugging_face(folder, model):
    """What --export writes."""
    weights, source = model.state_dict(), folder.with_name(f"{folder.name}-source")
    common_weights.keep_model(source, "finetune", dataclasses.replace(TINY, tasks="SQuAD1.1" if getattr(model, "spans", False) else "SST-2"),
                              Vocabulary(), model=model)
    head = {name: value for name, value in weights.items() if name.startswith("head.")}
    return hf_models.write_bert(folder, weights, dataclasses.astuple(model.encoder.arch), 0.0, Vocabulary(), source, head)


def ranks_here():
    return distributed.Ranks(0, 1, torch.device("cpu"))


def opened(folder, **more):
    """start_model of a folder for data that is nothing but a vocabulary."""
    cfg = dataclasses.replace(TINY, init=str(folder))
    return atb.start_model("", cfg, atb.Data(torch.device("cpu"), Vocabulary(), **more), ranks_here())


def test_models_come_back_bit_for_bit_from_both_layouts(tmp_path, capsys):
    for fit, text in ((0, "2-12-16-3-18"), (20, "3-24-40-4-16")):
        model = atb.extract(tiny_model(fit=fit), atb.parse_arch(text))
        keep(tmp_path / text, model)
        write_hugging_face(tmp_path / f"{text}-export", model)
        for folder in (text, f"{text}-export"):
            again = opened(tmp_path / folder)
            assert str(again.encoder.arch) == text and "made anew: none; left out: none" in capsys.readouterr().out
            assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_models_that_do_not_fit_to_the_data_are_refused(tmp_path):
    """Too few positions, no masked-language-model head, no embeddings: words, and no traceback from inside a step."""
    write_hugging_face(tmp_path / "fit", tiny_model(fit=20))
    with pytest.raises(UserError, match="no masked-language-model head"):
        opened(tmp_path / "fit", train=object())
    with pytest.raises(UserError, match="512 positions are too few"):
        atb.start_model("", dataclasses.replace(TINY, init=str(tmp_path / "fit"), length=600),
                        atb.Data(torch.device("cpu"), Vocabulary(), train=object()), ranks_here())
    assert opened(tmp_path / "fit").encoder.arch == atb.parse_arch(TINY.largest)
    for part, ours in (("position", "positions"), ("token_type", "segments"), ("word", "words")):
        weights = read_weights(tmp_path / "fit")
        del weights[f"bert.embeddings.{part}_embeddings.weight"]
        shutil.copytree(tmp_path / "fit", tmp_path / part)
        write_weights(tmp_path / part / "model.safetensors", weights)
        with pytest.raises(UserError, match=f"{ours}.weight is missing"):
            opened(tmp_path / part)
        teaching = dataclasses.replace(TINY, setting="distill", teacher=str(tmp_path / part))
        with pytest.raises(UserError, match="is missing|too few"):
            atb.load_teacher(teaching, ranks_here(), 50, 4)


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_hugging_face_models_are_read_and_written(kind, tmp_path):
    """transformers' own BERT and ELECTRA (with narrower embeddings) give the states that their folders give here, and our folders open there."""
    transformers = pytest.importorskip("transformers", reason="compares with the transformers package, which is not needed otherwise")
    sizes = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, hidden_dropout_prob=0.0,
                 attention_probs_dropout_prob=0.0, max_position_embeddings=32)
    torch.manual_seed(0)
    theirs = (transformers.BertForMaskedLM(transformers.BertConfig(**sizes)) if kind == "bert"
              else transformers.ElectraModel(transformers.ElectraConfig(**sizes, embedding_size=16))).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ids, segments, lengths = tiny_batch()
    mask = (torch.arange(9) < lengths[:, None]).long()
    teaching = dataclasses.replace(TINY, teacher=str(tmp_path / "theirs"))
    encoder = atb.load_teacher(teaching, ranks_here(), 50, 4)
    expected = theirs(ids, attention_mask=mask, token_type_ids=segments, output_hidden_states=True).hidden_states[-1]
    real = mask.bool()
    torch.testing.assert_close(encoder(ids, segments, lengths)[real], expected[real], rtol=1e-4, atol=1e-5)
    if kind == "bert":
        model = opened(tmp_path / "theirs")
        positions = torch.tensor([[1, 2], [0, 3], [0, 1]])
        logits = theirs(ids, attention_mask=mask, token_type_ids=segments).logits.gather(1, positions[..., None].expand(-1, -1, 50))
        torch.testing.assert_close(model.eval()(ids, segments, lengths, positions), logits, rtol=1e-4, atol=1e-5)
        write_hugging_face(tmp_path / "ours", tiny_model())
        back = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
        logits = back(ids, attention_mask=mask, token_type_ids=segments).logits.gather(1, positions[..., None].expand(-1, -1, 50))
        torch.testing.assert_close(tiny_model()(ids, segments, lengths, positions), logits, rtol=1e-4, atol=1e-5)
        for outputs, spans, reader in ((3, False, "SequenceClassification"), (2, True, "QuestionAnswering")):
            tuned = atb.TaskModel(tiny_model().encoder, outputs, spans).eval()
            write_hugging_face(tmp_path / reader, tuned)
            back = getattr(transformers, f"BertFor{reader}").from_pretrained(tmp_path / reader).eval()(ids, attention_mask=mask, token_type_ids=segments)
            mine = tuned(ids, segments, lengths)
            pairs = [(mine[..., 0], back.start_logits), (mine[..., 1], back.end_logits)] if spans else [(mine, back.logits)]
            for one, other in pairs:
                torch.testing.assert_close(one[real] if spans else one, other[real] if spans else other, rtol=1e-4, atol=1e-5)


# --- whole runs ----------------------------------------------------------------------------------

WORDS = "the a big small red old new cat dog house river city sees finds likes builds near under with and but slowly today never".split()


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory):
    """A corpus, SST-2 and SQuAD of made-up sentences, and the flags of a run on them that takes seconds."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)

    def sentence():
        return " ".join(rng.choices(WORDS, k=rng.randint(5, 12))).capitalize() + "."
    (folder / "text.txt").write_text("\n\n".join("\n".join(sentence() for _ in range(12)) for _ in range(40)))
    (folder / "SST-2").mkdir()
    for split in ("train", "dev"):
        (folder / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(f"{sentence()}\t{rng.randrange(2)}\n" for _ in range(24)))
        for part in ("train",) if split == "train" else ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
            (folder / "MNLI").mkdir(exist_ok=True)
            rows = [[*"01234567", sentence(), sentence(), *[rng.choice(["neutral", "entailment"])] * (part[0] != "t" or split == "train")]
                    for _ in range(24)]
            header = ["column"] * len(rows[0])
            (folder / "MNLI" / f"{part}.tsv").write_text("".join("\t".join(row) + "\n" for row in [header, *rows]))
        (folder / "RTE").mkdir(exist_ok=True)
        (folder / "RTE" / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(
            f"{number}\t{sentence()}\t{sentence()}\t{rng.choice(['entailment', 'not_entailment'])}\n" for number in range(24)))
        paragraphs = []
        for number in range(6):
            context = sentence()
            word = context.rstrip(".").split()[2]
            answer = [{"text": word, "answer_start": context.index(f" {word}") + 1}]
            paragraphs.append({"context": context, "qas": [{"id": f"{split}{number}", "question": "Which word is the third?", "answers": answer}]})
        (folder / f"{split}-v1.1.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    flags = (f"--corpus {folder}/text.txt --glue {folder} --squad {folder} --tasks SQuAD1.1,SST-2 --vocab_size 46 --largest 2-24-40-4-24 "
             "--smallest 1-8-8-1-8 --length 24 --finetune_length 32 --batch 8 --accumulate 2 --samples 2 --steps 4 --further_steps 3 "
             "--save_every 1 --finetune_epochs 1 --finetune_batch 12 --train_rows 12 --population 3 --generations 2 --winners 2 "
             "--latency_archs 24 --latency_rounds 1 --latency_length 16 --reference 6-128-512-4-128 --speedup 2 --eval_every 1").split()
    return folder, flags


def run_here(argv, capsys=None):
    assert atb.main([str(word) for word in argv]) == 0
    return capsys.readouterr().out if capsys else None


def weights_of(folder):
    """The weights of a model that a run has kept."""
    return load_file(folder / "checkpoint.pt")["owned"]["model"]


class Killed(Exception):
    pass


@pytest.fixture
def clock(monkeypatch):
    """Measuring by pretended_latency. After clock["kill"] more measurements this process gets SIGTERM; clock["count"]: how many there were."""
    state = {"count": 0, "kill": -1}

    def time_model(arch, cfg):
        state["count"], state["kill"] = state["count"] + 1, state["kill"] - 1
        if state["kill"] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        if distributed.stop_requested():
            raise Stop
        return pretended_latency(arch)
    monkeypatch.setattr(distributed, "_stop_requested", False)  # and back to False afterwards
    monkeypatch.setattr(atb, "time_model", time_model)
    return state


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory):
    """The folder of an uninterrupted search in one process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("search") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atb, "time_model", lambda arch, cfg: pretended_latency(arch))
        run_here(["--search", *tiny_data[1], "--out", folder])
    return folder


def history_of(folder):
    """The search history of a run folder, without its seconds."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_jsonl(folder / "history.jsonl")]


def same_weights(one, other, tolerance=0.0):
    one, other = weights_of(one), weights_of(other)
    return one.keys() == other.keys() and all((value - other[name]).abs().max() <= tolerance for name, value in one.items())


def test_search_killed_anywhere_equals_an_uninterrupted_one(tiny_data, whole, tmp_path, clock, monkeypatch):
    """The search stopped dead after every few writes, and started again each time, ends with the same weights and history."""
    lives = [0]

    def mortal(function):
        def call(*args):
            function(*args)
            lives[0] -= 1
            if lives[0] == 0:
                raise Killed
        return call
    for module in (atb, distributed, runs, common_weights):
        for name in ("save_file", "write_atomic"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, mortal(getattr(files, name)))
    deaths = 0
    while True:
        lives[0] = 11
        try:
            run_here(["--search", *tiny_data[1], "--out", tmp_path / "killed"])
            break
        except Killed:
            deaths += 1
    assert deaths >= 2
    assert history_of(whole) == history_of(tmp_path / "killed") and len(history_of(whole)) == 6
    best, again = (json.loads((run / "best.json").read_text()) for run in (whole, tmp_path / "killed"))
    assert {**best, "seconds": 0, "search_seconds": 0} == {**again, "seconds": 0, "search_seconds": 0}
    assert same_weights(whole / "superplm", tmp_path / "killed" / "superplm") and same_weights(whole / "model", tmp_path / "killed" / "model")
    assert best["speedup"] >= 2 and best["evaluated"] == 6 and best["parameters"] > 0


def two(action, flags, out):
    """An action with two processes, as a user starts them."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(ROOT / "autotinybert.py")]
    result = subprocess.run([*launcher, action, *flags, "--out", str(out)], capture_output=True, text=True, cwd=ROOT,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr[-3000:]


def test_two_processes_train_the_same_superplm(tiny_data, whole, tmp_path):
    two("--superplm", tiny_data[1], tmp_path / "two")
    assert same_weights(whole / "superplm", tmp_path / "two" / "superplm", 1e-6)


@pytest.mark.slow
def test_two_processes_search_the_same_history(tiny_data, whole, tmp_path):
    two("--superplm", tiny_data[1], tmp_path / "two")
    shutil.copy(whole / "latency.jsonl", tmp_path / "two")
    two("--evolve", tiny_data[1], tmp_path / "two")
    one, other = history_of(whole), history_of(tmp_path / "two")
    assert [line["arch"] for line in one] == [line["arch"] for line in other] and len(one) == 6
    assert max(abs(a["score"] - b["score"]) for a, b in zip(one, other)) <= 1e-4


def test_a_search_reads_train_and_dev_alone(tiny_data, whole, tmp_path):
    """Of MNLI neither the mismatched rows nor the tests, which --finetune has all."""
    for action, splits in (("search", {"train", "dev"}), ("finetune", {"train", "dev", "dev_mismatched", "test", "test_mismatched"})):
        cfg = dataclasses.replace(TINY, glue=str(tiny_data[0]), tokenizer=str(whole), out=str(tmp_path / action), finetune_length=32)
        assert atb.open_data(cfg, action, ranks_here(), tasks="MNLI")[1].tasks["MNLI"].splits.keys() == splits
        files.release_locks()


@pytest.mark.slow
def test_further_training_distillation_and_export(tiny_data, tmp_path, capsys):
    folder, flags = tiny_data
    run_here(["--further_train", *flags, "--arch", "2-24-40-4-24", "--out", tmp_path / "teacher"])
    distill = [*flags, "--setting", "distill", "--teacher", tmp_path / "teacher"]
    run_here(["--superplm", *distill, "--out", tmp_path / "student"])
    run_here(["--further_train", *distill, "--arch", "1-12-16-4-16", "--init", tmp_path / "student", "--out", tmp_path / "further"])
    assert "fit.weight" in weights_of(tmp_path / "further" / "model")
    out = run_here(["--finetune", "MNLI,squad1.1", *flags, "--init", tmp_path / "further", "--runs", "2", "--out", tmp_path / "tuned"], capsys)
    tasks = json.loads((tmp_path / "tuned" / "done.json").read_text())["tasks"]
    assert "MNLI" in out and {name: entry["n"] for name, entry in tasks.items()} == {"MNLI": 2, "SQuAD1.1": 2}
    assert 0 <= tasks["MNLI"]["metrics"]["mismatched"] <= 1
    for name in ("MNLI-m", "MNLI-mm"):  # the leaderboard's files, of the median run
        assert len((tmp_path / "tuned" / "MNLI" / f"{name}.tsv").read_text().splitlines()) == 25
    assert len(json.loads((tmp_path / "tuned" / "SQuAD1.1" / "predictions.json").read_text())) == 6
    out = run_here(["--finetune", "SST-2", *flags, "--init", tmp_path / "tuned" / "MNLI", "--out", tmp_path / "again"], capsys)
    assert "left out: head.bias, head.weight" in out  # what was learnt on MNLI is where SST-2 starts
    for name, kind, head in (("MNLI", "BertForSequenceClassification", "classifier"), ("SQuAD1.1", "BertForQuestionAnswering", "qa_outputs")):
        run_here(["--export", tmp_path / f"export-{name}", *flags, "--init", tmp_path / "tuned" / name])
        exported = read_weights(tmp_path / f"export-{name}")
        assert torch.equal(exported[f"{head}.weight"], weights_of(tmp_path / "tuned" / name)["head.weight"])
        assert json.loads((tmp_path / f"export-{name}" / "config.json").read_text())["architectures"] == [kind]
    run_here(["--export", tmp_path / "export", *flags, "--init", tmp_path / "further"])
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert (config["model_type"], config["qkv_size"], config["hidden_size"]) == ("bert", 16, 12)
    assert (tmp_path / "export" / "spiece.model").exists() and config["architectures"] == ["BertModel"]  # no MLM head
    assert "qkv_size" in (tmp_path / "export" / "README.md").read_text() and "fit.weight" not in read_weights(tmp_path / "export")
    with pytest.raises(UserError, match="2 heads and the student 4"):
        run_here(["--further_train", *flags, "--arch", "1-24-40-2-24", "--out", tmp_path / "two"])
        run_here(["--superplm", *flags, "--setting", "distill", "--teacher", tmp_path / "two", "--out", tmp_path / "wrong"])


def test_small_tasks_start_from_mnli_which_is_tuned_first(tiny_data, whole, tmp_path):
    """D7: RTE's encoder starts as the best MNLI run's, and so does not end where it ends alone."""
    folder, flags = tiny_data
    for tasks, out in (("RTE,MNLI", "both"), ("RTE", "alone")):
        run_here(["--finetune", tasks, *flags, "--init", whole, "--out", tmp_path / out])
    both, alone = weights_of(tmp_path / "both" / "RTE"), weights_of(tmp_path / "alone" / "RTE")
    assert not torch.equal(both["encoder.words.weight"], alone["encoder.words.weight"])
    assert sorted(path.name for path in (tmp_path / "both" / "jobs").glob("*.json")) == ["MNLI-0.json", "RTE-0.json"]


def test_parts_of_a_finished_search_come_from_its_superplm(tiny_data, whole, tmp_path):
    """An architecture that is not the winner's is cut out of the SuperPLM, even where it would fit into the winner."""
    folder, flags = tiny_data
    run_here(["--export", tmp_path / "export", *flags, "--init", whole, "--arch", "1-8-8-1-6"])
    superplm = atb.LanguageModel(atb.parse_arch("2-24-40-4-24"), 46)
    superplm.load_state_dict(weights_of(whole / "superplm"))
    exported = hf_models.read_bert(tmp_path / "export", 1)
    for name, value in atb.extract(superplm, atb.parse_arch("1-8-8-1-6")).state_dict().items():
        assert torch.equal(exported[name], value)


def test_a_second_search_takes_over_superplm_and_measurements(tiny_data, whole, tmp_path, clock):
    """With --init RUN nothing is trained or measured again but what the other limit asks for."""
    run_here(["--evolve", *tiny_data[1], "--init", whole, "--speedup", "3", "--winners", "1", "--out", tmp_path / "second"])
    assert clock["count"] % 5 == 0 and clock["count"] <= 5 * 7  # five rounds of reference and finalists, no others
    assert json.loads((tmp_path / "second" / "best.json").read_text())["speedup"] >= 3 and not (tmp_path / "second" / "superplm").exists()


def test_mlm_is_a_task_without_fine_tuning(tiny_data, whole, tmp_path, monkeypatch):
    """The same masked pieces for every model; chance for an untrained one, all for one that knows the answers."""
    folder, flags = tiny_data
    run_here(["--finetune", "mlm", *flags, "--init", whole, "--runs", "2", "--out", tmp_path / "a"])
    entry = json.loads((tmp_path / "a" / "done.json").read_text())["tasks"]["MLM"]
    assert entry["sd"] == 0 and entry["n"] == 2
    assert entry["median"] == pytest.approx(1 - entry["metrics"]["loss"] / math.log(46)) and entry["median"] < 0.5

    def oracle(model, ids, segments, lengths, positions):
        return 100 * F.one_hot(answers[-1].clamp(min=0), 46).float()

    def text_batches(*args, real=atb.text_batches):
        for batch in real(*args):
            answers.append(batch[-1])
            yield batch
    answers = []
    monkeypatch.setattr(atb, "text_batches", text_batches)
    monkeypatch.setattr(atb.LanguageModel, "forward", oracle)
    run_here(["--finetune", "MLM", *flags, "--init", whole, "--out", tmp_path / "b"])
    assert json.loads((tmp_path / "b" / "done.json").read_text())["tasks"]["MLM"]["median"] == pytest.approx(1.0)


def test_scores_within_their_noise_are_called_ties(tiny_data, whole, tmp_path, clock, monkeypatch, capsys):
    """Half right of 100 rows are 50 +- 5%. Within a generation the bar shows the best so far; best.json and a line say what is tied."""
    lines = [{"arch": arch, "score": score, "error": 0.02 * (score > 0)} for arch, score in (("a", 0.46), ("b", 0.5), ("c", 0.4), ("d", -1.0))]
    assert atb.ties(lines) == ["a"] and atb.ties(lines[1:]) == []
    task = types.SimpleNamespace(rows={"dev": range(100)}, recipe=types.SimpleNamespace(main="accuracy"))
    assert tasks.Task.standard_error(task, 0.5) == pytest.approx(0.05) and tasks.Task.standard_error(task, 1.0) == 0
    task.recipe.main = "matthews"
    assert tasks.Task.standard_error(task, 0.5) == pytest.approx(0.075)
    labels, share_out = [], atb.share_out

    def spy(*args):
        results = share_out(*args)
        labels.append(args[3]())
        return results
    monkeypatch.setattr(atb, "share_out", spy)
    out = run_here(["--evolve", *tiny_data[1], "--init", whole, "--tasks", "MLM,SST-2", "--out", tmp_path / "run"], capsys)
    history, best = history_of(tmp_path / "run"), json.loads((tmp_path / "run" / "best.json").read_text())
    assert labels == [f"generation {number} of 2, best {max(line['score'] for line in history[:3 * number]):.4f}" for number in (1, 2)]
    assert all(0.01 < line["error"] < 0.2 for line in history) and best["ties"] == atb.ties(history)
    assert ("others are as good" in out) == bool(best["ties"])


def test_zero_steps_are_the_papers_passes_over_the_corpus(tiny_data, whole, tmp_path):
    """Sec. 4.1: 5 for the SuperPLM and for further training, 10 from scratch."""
    for name, init, passes in (("scratch", "", 10), ("taken", str(whole), 5)):
        cfg = dataclasses.replace(TINY, steps=0, further_steps=0, vocab_size=46, corpus=(f"{tiny_data[0]}/text.txt",), init=init, out=str(tmp_path / name))
        _, data = atb.open_data(cfg, "further_train", ranks_here(), text=True)
        files.release_locks()
        a_pass = data.train.slots(cfg.length - 3) / cfg.batch
        assert (cfg.steps, cfg.further_steps) == (math.ceil(5 * a_pass), math.ceil(passes * a_pass)) and a_pass > 10


def test_shards_grow_to_the_processes_and_further_training_takes_a_process_rows_at_once(tiny_data, tmp_path, monkeypatch):
    """Unless --accumulate was given; a checkpoint keeps how many there were."""
    for given, size, shards in (((), 8, 8), ((), 1, 2), (("accumulate",), 8, 2)):
        cfg = dataclasses.replace(TINY, batch=32)
        cfg.given = frozenset(given)
        atb.set_shards(cfg, distributed.Ranks(0, size, None))
        assert cfg.accumulate == shards
    with pytest.raises(UserError, match="--batch 32 cannot be cut in --accumulate 6"):
        atb.set_shards(dataclasses.replace(TINY, batch=32), distributed.Ranks(0, 3, None))
    sizes, text_batches = [], atb.text_batches

    def spy(text, data, cfg, phase, position, rows, count):
        sizes.append((phase, position, rows, count))
        return text_batches(text, data, cfg, phase, position, rows, count)

    def killed(*args):
        raise Killed
    monkeypatch.setattr(atb, "text_batches", spy)
    monkeypatch.setattr(atb, "keep_trained", killed)
    place = tiny_data[1].index("--accumulate")
    flags = [*tiny_data[1][:place], *tiny_data[1][place + 2:], "--eval_every", "9", "--arch", "1-8-8-1-8"]
    for name, more, rows in (("whole", [], 8), ("cut", ["--accumulate", "2"], 4)):
        sizes.clear()
        with pytest.raises(Killed):
            run_here(["--further_train", *flags, *more, "--out", tmp_path / name])
        files.release_locks()
        assert [size for size in sizes if size[0] == "further"] == [("further", 8 * step, rows, 8 // rows) for step in range(3)]
        assert load_file(tmp_path / name / "model.pt")["values"]["shards"] == 8 // rows


def test_the_grid_is_that_of_the_paper_and_its_best_setting_stands(tiny_data, whole, tmp_path, monkeypatch):
    assert len(atb.GRID) == 9 and all((lr, epochs) in atb.GRID for name, (_, lr, epochs, _) in atb.TABLE_D1.items())
    monkeypatch.setattr(atb, "GRID", [(1e-5, 1), (0.1, 3)])
    run_here(["--finetune", "SST-2,MLM", *tiny_data[1], "--init", whole, "--grid", "--runs", "2", "--out", tmp_path / "run"])
    jobs = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "run" / "jobs").glob("*.json")}
    assert jobs.keys() == {"MLM-0", "MLM-1", *(f"SST-2-{number}-{setting}" for number in (0, 1) for setting in ("1e-05-1", "0.1-3"))}
    found = json.loads((tmp_path / "run" / "done.json").read_text())["tasks"]["SST-2"]
    medians = {key: min(job["metrics"]["main"] for name, job in jobs.items() if job["setting"] == list(key)) for key in atb.GRID}
    assert found["n"] == 2 and found["median"] == max(medians.values()) and medians[tuple(found["setting"])] == found["median"]
    one, other = (weights_of(tmp_path / "run" / "jobs" / f"SST-2-0-{setting}")["head.weight"] for setting in ("1e-05-1", "0.1-3"))
    assert (one - other).abs().max() > 1e-2


@pytest.mark.slow
def test_distillation_starts_from_a_model_that_learnt_from_text(tiny_data, whole, tmp_path):
    """A new projection, drawn from the seed, and no MLM head; the same command again continues."""
    distill = [*tiny_data[1], "--setting", "distill", "--teacher", whole / "superplm", "--init", whole / "superplm"]
    for out in ("a", "b"):
        run_here(["--superplm", *distill, "--out", tmp_path / out])
    assert same_weights(tmp_path / "a" / "superplm", tmp_path / "b" / "superplm")
    names = weights_of(tmp_path / "a" / "superplm").keys()
    assert "fit.weight" in names and "transform.weight" not in names
    run_here(["--superplm", *distill, "--out", tmp_path / "a"])
    run_here(["--further_train", *distill, "--arch", "1-12-16-4-16", "--out", tmp_path / "c"])


def test_models_that_cannot_be_read_right_are_refused(tiny_data, whole, tmp_path):
    """Other LayerNorms, positions or vocabularies are answered in words, not with other numbers."""
    folder, flags = tiny_data
    run_here(["--export", tmp_path / "theirs", *flags, "--init", whole / "superplm"])

    def refused(change, message, *more):
        target = tmp_path / message.split()[0]
        shutil.copytree(tmp_path / "theirs", target)
        change(target)
        with pytest.raises(UserError, match=message):
            run_here(["--superplm", *flags, "--init", target, *more, "--out", tmp_path / f"out-{target.name}"])

    def config(**changes):
        def change(target):
            settings = json.loads((target / "config.json").read_text())
            (target / "config.json").write_text(json.dumps({name: value for name, value in {**settings, **changes}.items() if value is not None}))
        return change
    refused(config(layer_norm_eps=0.1), "layer_norm_eps is 0.1")
    refused(config(position_embedding_type="relative_key"), "position_embedding_type is 'relative_key'")
    refused(config(num_hidden_layers=None), "describes no architecture")
    refused(config(num_attention_heads=5), "5 heads do not divide")
    refused(lambda target: (target / "spiece.model").unlink(), "no spiece.model and no vocab.txt")
    train_sentencepiece([folder / "text.txt"], tmp_path / "spiece.model", 46, lower=False)
    refused(lambda target: (target / "spiece.model").write_bytes((tmp_path / "spiece.model").read_bytes()),
            "another vocabulary", "--tokenizer", whole / "superplm")


def test_sigterm_is_obeyed_between_two_measurements(tiny_data, tmp_path, clock, monkeypatch, capsys):
    folder, flags = tiny_data
    clock.update(kill=3)
    run_here(["--latency", *flags, "--out", tmp_path / "run"])
    assert "stopped" in capsys.readouterr().err and clock["count"] == 3 and not (tmp_path / "run" / "predictor.pt").exists()
    monkeypatch.setattr(distributed, "_stop_requested", False)
    run_here(["--latency", *flags, "--out", tmp_path / "run"])
    history = [{"id": number, "score": 1.0 - number, "diverged": False, "arch": f"1-8-{8 + 4 * number}-1-6"} for number in range(3)]
    cfg = dataclasses.replace(TINY, reference="6-128-512-4-128", speedup="2.0", winners=3)
    run = types.SimpleNamespace(ranks=ranks_here(), folder=tmp_path)
    clock.update(count=0, kill=2)
    with pytest.raises(Stop):  # the confirmation of the winners
        atb.confirm(history, cfg, run)
    assert clock["count"] == 2 and not (tmp_path / "finalists.json").exists()
    monkeypatch.setattr(distributed, "_stop_requested", False)
    assert [line["arch"] for line in atb.confirm(history, cfg, run)] == [line["arch"] for line in history]


def test_finished_runs_say_so_and_measurements_can_be_added(tiny_data, whole, tmp_path, clock, capsys):
    folder, flags = tiny_data
    assert "whole: finished" in run_here(["--search", *flags, "--out", whole], capsys) and clock["count"] == 0
    latency = ["--latency", *flags, "--latency_archs"]
    for out, number, more in (("a", 5, 5 + 2 * 5), ("a", 5, 0), ("b", 6, 1)):  # reference and smallest: five times each
        clock["count"] = 0
        init = ["--init", tmp_path / "a"] if out == "b" else []
        assert "measured" in run_here([*latency, number, "--out", tmp_path / out, *init], capsys) and clock["count"] == more
    with pytest.raises(UserError, match="latency_archs"):  # other candidates would be proposed
        run_here([*latency, 8, "--out", tmp_path / "a"])


@pytest.mark.parametrize("line", ['{"arch": "1-8-8-1-6", "mil', '{"step": 3}', "[1]", '{"arch": "1-8-8-1-6", "milliseconds": 0}',
                                  '{"arch": "1-8-8-1-6", "milliseconds": "x"}', '{"arch": "1-8", "milliseconds": 1}'])
def test_lines_that_are_no_measurements_are_named(tmp_path, line):
    good = json.dumps({"arch": "1-8-8-1-6", "milliseconds": 2.0, **latency_log.setting(TINY)})
    path = tmp_path / "latency.jsonl"
    path.write_text(f"{good}\n{good}\n{good[:20]}")  # a last line without its end is left out
    assert latency_log.read(TINY, tmp_path, atb.parse_arch) == {atb.parse_arch("1-8-8-1-6"): [2.0, 2.0]}
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(UserError, match="line 2: no (measurement|JSON)"):
        latency_log.read(TINY, tmp_path, atb.parse_arch)


def test_a_torn_last_line_goes_and_other_settings_stay(tiny_data, tmp_path, clock):
    flags = [*tiny_data[1], "--latency_archs", "3", "--out", tmp_path / "run"]
    run_here(["--latency", *flags])
    path = tmp_path / "run" / "latency.jsonl"
    lines = path.read_text().splitlines()
    (tmp_path / "run" / "predictor.pt").unlink()
    path.write_text("\n".join([json.dumps({**json.loads(lines[0]), "threads": 99}), *lines[:3], lines[3][:30]]))
    run_here(["--latency", *flags])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 1 + 3 + 2 * 5 and lines[0]["threads"] == 99


def test_an_impossible_limit_ends_before_any_training(tiny_data, tmp_path, clock):
    for calls in (1, 2):
        with pytest.raises(UserError, match="the fastest, 1-8-8-1-6, takes"):
            run_here(["--search", *tiny_data[1], "--latency_archs", "3", "--speedup", "100000", "--out", tmp_path / "run"])
    assert clock["count"] == 3 + 2 * 5 and not (tmp_path / "run" / "superplm").exists()


def test_speedup_takes_an_architecture(tiny_data, tmp_path, clock, capsys):
    """As fast as that one, wherever the reference is."""
    run_here(["--latency", *tiny_data[1], "--latency_archs", "3", "--speedup", "2-12-16-2-12", "--out", tmp_path / "run"])
    saved = load_file(tmp_path / "run" / "predictor.pt")
    assert saved["limit"] == pretended_latency(atb.parse_arch("2-12-16-2-12"))
    cfg = dataclasses.replace(TINY, reference="6-128-512-4-128", speedup="2-12-16-2-12", winners=3)
    history = [{"id": 0, "score": 1.0, "diverged": False, "arch": "3-24-40-4-24"}, {"id": 1, "score": 0.5, "diverged": False, "arch": "1-12-16-2-12"}]
    found = atb.confirm(history, cfg, types.SimpleNamespace(ranks=ranks_here(), folder=tmp_path))
    assert [line["arch"] for line in found] == ["1-12-16-2-12"] and found[0]["rounds"] == 5
    assert found[0]["speedup_range"][0] <= found[0]["speedup"] <= found[0]["speedup_range"][1]
    assert "Encoder of autotinybert.py" == found[0]["run_by"]


def test_absurd_sizes_are_refused_at_once(tiny_data, tmp_path):
    for words in ("--describe --arch 99999999999-8-8-1-8", "--describe --arch 2-8-8-1-99999999999", "--search --largest 9-99999999-8-1-8",
                  "--latency --reference 99999999999-8-8-1-8", "--search --speedup 99999999999-8-8-1-8", "--superplm --vocab_size 99999999999",
                  "--latency --latency_length 99999999999", "--superplm --batch 99999999998", "--superplm --samples 9999999999999"):
        with pytest.raises(UserError, match=r"GB of memory, this machine has|no machine has the memory"):
            run_here([*tiny_data[1], *words.split(), "--out", tmp_path / "run"])
    for words, message in (("0", "> 0"), ("nan", "> 0"), ("-1", "> 0"), ("inf", "> 0"), ("1.2.3", "--speedup"), ("fast", "--speedup"),
                           ("2-8-8-3-8", "--speedup")):
        with pytest.raises(UserError, match=message):
            run_here([*tiny_data[1], "--latency", f"--speedup={words}", "--out", tmp_path / "run"])
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number_ends_the_training_before_it_is_saved(tiny_data, tmp_path):
    folder, flags = tiny_data
    more = ["--lr", "1e30", "--steps", "400", "--save_every", "1000", "--eval_every", "1000"]
    with pytest.raises(UserError, match=r"diverged .*at step 100\b"):  # and not later
        run_here(["--superplm", *flags, *more, "--out", tmp_path / "run"])
    assert not (tmp_path / "run" / "superplm" / "curve.json").exists()


def test_mistakes_end_in_one_line_before_any_training(tiny_data, tmp_path, capsys):
    folder, flags = tiny_data
    mistakes = (("--further_train --arch 2-8-8-3-8", "do not divide"), ("--further_train", "give --arch"), ("--evolve", "no SuperPLM yet"),
                ("--superplm --smallest 1-99-8-1-8", "more than the SuperPLM"), ("--superplm --length 600", r"in \[8, 512\]"),
                ("--superplm --setting distill --teacher x --smallest 1-8-8-1-7", "a multiple of the 4 heads"),
                ("--search --tasks MLM --setting distill --teacher x", "no head for this task"),
                ("--finetune MLM --setting distill --init x", "no head for this task"), ("--latency --latency_device cuda", "no CUDA device"),
                ("--superplm --batch 7", "cannot be cut"),
                ("--evolve --dry_run --batch 1", "cannot be cut"), ("--finetune SST-2", "needs weights"), ("--search --tasks x", "choose from"),
                (f"--finetune SST-2 --init {folder}", "no model is here"), ("--search --arch 2-8-8-2-8", "takes none"),
                ("--further_train --arch 2-8-8/8-2-8", "no architecture is here"), ("--superplm --warmup 2", r"in \[0, 1\]"),
                ("--superplm --setting distill", "needs --teacher"), ("--superplm --teacher x", "setting distill"),
                ("--superplm --length 5", r"in \[8, 512\]"), ("--latency --latency_archs 1", ">= 2"), ("--search --tasks ,", "no task is named"),
                ("--latency --reference 8-8", "no architecture is here"))
    for number, (words, message) in enumerate(mistakes):
        with pytest.raises(UserError, match=message):
            run_here([*flags, *words.split(), "--out", tmp_path / str(number)])
    for words in ("--superplm --setting kd", "--superplm --variant x", "--search --strategy x", "--search --dtype x",
                  "--latency --latency_device meta"):
        with pytest.raises(SystemExit):
            run_here([*flags, *words.split()])
        assert "choose from" in capsys.readouterr().err


def test_describe(tiny_data, tmp_path, capsys, clock, recwarn):
    folder, flags = tiny_data
    described = json.loads(run_here(["--describe", *flags, "--arch", "2-12-16-2-12", "--out", tmp_path / "none"], capsys))
    assert described["parameters"] == sum(described["parts"].values()) == sum(atb.parameters(atb.parse_arch("2-12-16-2-12"), 46).values())
    assert described["speedup"] > 0 and described["flops_counting"]
    assert described["space"]["architectures"] == 2 * 5 * 9 * 4
    assert not [warning for warning in recwarn if "FakeTensor" in str(warning.message)]
    model = atb.LanguageModel(atb.parse_arch("2-12-16-2-12"), 46)
    twin = atb.products(model)  # their bfloat16 weights and gradients stand beside the others
    assert described["memory"]["weights"] == 4 * sum(value.numel() for value in [*model.parameters(), *twin])
    assert described["fits"]["16 GB"]["fits"] and "H100" in described["days"]
    model = atb.LanguageModel(atb.parse_arch("2-12-16-2-12"), 50, positions=64)
    write_hugging_face(tmp_path / "model", model)
    own = json.loads(run_here(["--describe", *flags, "--init", tmp_path / "model", "--out", tmp_path / "none"], capsys))
    assert own["arch"] == "2-12-16-2-12" and own["parameters"] == sum(value.numel() for value in model.encoder.parameters())


# --- claims --------------------------------------------------------------------------------------

def claimed(name, flags, tmp_path, *more):
    """The record that a claim leaves, made in tmp_path."""
    study.main("autotinybert", claims.CLAIMS, [name, "--runs", str(tmp_path / name), "--results", str(tmp_path), "--seeds", "1",
                                               *map(str, [*flags, *more])])
    return json.loads((tmp_path / f"{name}.json").read_text())


def test_published_tables_and_what_is_made_of_measurements(tiny_data, tmp_path, clock):
    for name, (text, speedup) in {**claims.TABLE_4, **claims.TABLE_F1, **claims.PF}.items():
        assert str(atb.parse_arch(text)) == text and 4 < speedup < 30
    rows = claimed("latency", ["--preset", "base"], tmp_path)["rows"]
    assert len(rows) == 1 + 16 + 3 + 5 and rows[0][3] == 1 and all(row[3] > 1 for row in rows[1:])
    assert {row[0]: row[6] for row in rows if row[6]} == {"BERT-S4": 31.3, "AutoTinyBERT-S4": 31.0, "BERT-S5": 9.9}
    assert all((row[6] == "") == (row[7] == "") for row in rows)
    lines = (tmp_path / "latency" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "latency" / "rounds.jsonl").write_text(lines[0] + lines[1][:40])  # killed in the second of three rounds
    count = clock["count"]
    assert claimed("latency", ["--preset", "base"], tmp_path)["rows"] == rows and clock["count"] - count == 2 * count / 3
    spaces = claimed("space", ["--preset", "base"], tmp_path)
    assert [row[1:] for row in spaces["rows"]] == [[11_391_072, 11.391072, 46], [47_462_800, 47.4628, 10]] and "swapped" in spaces["verdict"]
    run_here(["--latency", *tiny_data[1], "--out", tmp_path / "run"])
    rows = claimed("predictor", tiny_data[1], tmp_path, "--folders", tmp_path / "run")["rows"]
    assert [row[0] for row in rows[:3]] == ["proportional to FLOPs", "linear", "mlp"] and rows[1][3] < rows[0][3]


def test_the_bert_rule_stays_in_the_space_and_goes_on(monkeypatch, capsys):
    """No shape that is narrower or wider than the space; where one does not measure within the limit, the next one."""
    cfg = dataclasses.replace(BASE, largest="3-256-1024-4-256", smallest="1-128-128-1-64")
    space = atb.search_space(cfg)
    found = claims.bert_rule(space, lambda archs: [1.0] * len(archs), 2.0)
    assert [str(arch) for arch in found[1]] == ["1-256-1024-4-256", "1-192-768-3-192", "1-128-512-2-128"] and len(found) == 3
    monkeypatch.setattr(atb, "time_model", lambda arch, cfg: arch.hidden)
    cfg = dataclasses.replace(cfg, reference="3-256-1024-4-256")
    assert claims.widest_measured(found[2], 1.5, cfg) == [atb.parse_arch("2-128-512-2-128")]
    assert capsys.readouterr().out.count("the next narrower one is taken") == 2
    assert claims.widest_measured(found[2], 3, cfg) == []


def test_claims_name_what_is_wrong(tiny_data, tmp_path):
    for name, words, message in (("ranking", "--variants sme*x", "whole number"), ("convergence", "", "give --arch"),
                                 ("ranking", "--setting distill", "setting mlm")):
        with pytest.raises(UserError, match=message):
            claimed(name, tiny_data[1], tmp_path, *words.split())


@pytest.mark.slow
def test_claims_that_train(tiny_data, whole, tmp_path):
    flags = [*tiny_data[1], "--population", "2", "--steps", "2", "--further_steps", "1"]
    rows = claimed("ranking", flags, tmp_path, "--variants", "ebl,ils", "--largest", "1-24-40-2-24", "--tasks", "MLM")["rows"]
    assert [row[0] for row in rows] == ["stand-alone", "ebl", "ils"] and rows[0][3] == 100
    rows = claimed("pareto", [*flags, "--tasks", "MLM"], tmp_path, "--limits", "2", "--folders", whole)["rows"]
    assert {row[0] for row in rows} >= {"searched", "random"}
    rows = claimed("convergence", flags, tmp_path, "--arch", "2-12-16-2-12", "--folders", whole)["rows"]
    assert len(rows) == 1 and rows[0][1] > 0


@pytest.mark.slow
def test_the_searched_shape_is_compared_with_the_rules(tiny_data, tmp_path):
    """The whole study at the smallest size: measured first, alone; run again, it trains nothing."""
    flags = ("--largest 2-16-64-2-16 --smallest 1-8-8-1-8 --reference 2-16-64-2-16 --vocab_size 46 --latency_archs 6 --steps 2 "
             "--further_steps 1 --batch 8 --population 2 --generations 1 --winners 2 --held_out 0.3 --latency_length 16 "
             "--latency_rounds 1 --small 1-16-64-2-16 --deep 2-16-64-2-16").split()
    flags += ["--corpus", tiny_data[0] / "text.txt"]
    study.main("autotinybert", claims.CLAIMS, [*map(str, ["shape", *flags, "--only", "latency", "--runs", tmp_path / "shape"])])
    assert (tmp_path / "shape" / "superplm" / "predictor.pt").exists() and not (tmp_path / "shape" / "superplm" / "superplm").exists()
    record = claimed("shape", flags, tmp_path)
    assert [row[1] for row in record["rows"]] == ["rule", "searched"] * 2 and record["verdict"].startswith("not judged")
    assert all(len(losses) == 1 for losses in record["losses"].values()) and record["masked tokens reported"] > 0
    assert all(row[6] > row[5] > 0 for row in record["rows"])  # the head takes time too
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "shape").rglob("*") if path.is_file()}
    assert claimed("shape", flags, tmp_path)["losses"] == record["losses"]
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "shape").rglob("*") if path.is_file()}


def test_a_second_superplm_has_a_seed_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "shape", lambda options: (tmp_path / "shape_second.json").write_text(json.dumps(options.flags)))
    assert claimed("shape_second", ["--corpus", "text"], tmp_path) == ["--seed", "6", "--corpus", "text"]


def test_the_picture_of_speedups_is_drawn_from_the_json_alone(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="draws: pip install matplotlib")
    monkeypatch.setattr(atb, "time_model", None)  # nothing is measured
    record = json.loads((study.RESULTS / "autotinybert" / "latency.json").read_text())
    (tmp_path / "latency.json").write_text(json.dumps({**record, "picture": None}))
    study.main("autotinybert", claims.CLAIMS, ["speedups", "--results", str(tmp_path)])
    assert json.loads((tmp_path / "latency.json").read_text()) == {**record, "picture": "latency.png"}
    assert 10_000 < (tmp_path / "latency.png").stat().st_size < 60_000


def test_the_page_of_claims_is_that_of_its_results():
    assert (ROOT / "tests" / "claims" / "autotinybert.md").read_text() == study.page("autotinybert")


# --- the text of the file ------------------------------------------------------------------------

def test_every_departure_stands_in_the_docstring_and_where_it_happens():
    source = (ROOT / "autotinybert.py").read_text()
    code = source.replace(atb.__doc__, "") + (ROOT / "tests" / "claims" / "autotinybert.py").read_text()
    numbers = [int(number) for number in re.findall(r"\bD(\d+)\b", atb.__doc__.split("Differs:")[1])]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) == 16
    assert {int(number) for number in re.findall(r"\bD(\d+)\b", code)} == set(numbers)


def test_the_ten_questions_name_what_is_there():
    text = (ROOT / "tests" / "claims" / "questions" / "autotinybert.md").read_text()
    answers = re.findall(r"\(((?:`[\w.]+`(?:, )?)+)\)$", text, re.MULTILINE)
    names = [name for answer in answers for name in re.findall(r"`([\w.]+)`", answer)]
    assert len(answers) == 10 and all(functools.reduce(getattr, name.split("."), atb) for name in names)


# --- one file alone ------------------------------------------------------------------------------

def test_file_copied_alone_builds_its_model_and_steps_its_searcher(tmp_path):
    (tmp_path / "autotinybert.py").write_bytes((ROOT / "autotinybert.py").read_bytes())
    code = """
import random, sys, torch, autotinybert as atb
cfg = atb.Config(largest="2-24-40-4-24", smallest="1-8-8-1-8", population=4)
space, rng = atb.search_space(cfg), random.Random(0)
archs = [atb.sample_arch(space, rng) for _ in range(40)]
predict = atb.Predictor(128).fit(archs, [atb.flops(arch) / 1e6 for arch in archs])
proposals = atb.propose([], 0, cfg, predict, 2.0)
model = atb.LanguageModel(atb.parse_arch(cfg.largest), 50)
ids = torch.randint(50, (2, 8))
logits = atb.sub_model(model, proposals[0][1])(ids, torch.zeros_like(ids), torch.tensor([8, 5]), torch.tensor([[1, 2], [0, 3]]))
assert logits.shape == (2, 2, 50) and len(proposals) == 4 and atb.extract(model, proposals[1][1]).encoder.arch == proposals[1][1]
assert "common" not in sys.modules
print("alone")
"""
    top = [node for node in ast.parse((tmp_path / "autotinybert.py").read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {name.split(".")[0] for node in top for name in ([each.name for each in node.names] if isinstance(node, ast.Import) else [node.module])}
    assert modules - set(sys.stdlib_module_names) == {"torch"}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "alone\n", result.stderr
