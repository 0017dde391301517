"""autotinybert.py: the search space, extraction, one-shot training, latencies, Algorithm 2, folders, and whole runs on
tiny data."""
import copy
import dataclasses
import functools
import itertools
import json
import math
import os
import random
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch
from conftest import ROOT, filled
from small_runs import SEARCHES

import autotinybert as atb
from common import distributed, tasks, weights as common_weights
from common.cli import UserError
from common.files import load_file, read_json, read_jsonl
from common.tokenization import WordPieceTokenizer, load_tokenizer
from data import hf_models, inputs

BASE = atb.Config(preset="base")
TINY = atb.Config(largest="3-24-40-4-24", smallest="1-8-8-1-8", dropout=0.0, vocab_size=50, length=16, batch=8,
                  accumulate=2)
DISTILL = dataclasses.replace(TINY, setting="distill")
PLACES, LABELS = torch.tensor([[1, 2], [0, 3], [0, 1]]), torch.tensor([[5, 6], [7, 8], [9, -100]])
CPU = torch.device("cpu")
HERE = distributed.Ranks(0, 1, CPU)


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


# --- search space ---------

def test_the_space_is_that_of_table_b1():
    for setting, size in (("mlm", 8 * 161 * 737 * 12), ("distill", 8 * 161 * 737 * 50)):
        cfg = dataclasses.replace(BASE, setting=setting)
        space, rng, top = atb.search_space(cfg), random.Random(0), atb.parse_arch(cfg.largest)
        assert math.prod(map(len, space.values())) == size
        archs = [atb.sample_arch(space, rng) for _ in range(5000)]
        assert {arch.layers for arch in archs} == set(range(1, 9))
        assert {(arch.heads, arch.qkv) for arch in archs} == set(space["attention"])
        for arch in archs:
            assert arch.hidden in range(128, 769, 4) and arch.ffn in range(128, 3073, 4)
            assert arch.qkv == 64 * arch.heads if setting == "mlm" else arch.heads == 12
            assert atb.why_outside(arch, top) is None


def test_mutation_stays_in_the_space_moves_and_reaches_every_variable():
    for cfg in (TINY, DISTILL):
        space, rng = atb.search_space(cfg), random.Random(0)
        start = atb.sample_arch(space, rng)
        children = [atb.mutate(start, space, rng) for _ in range(300)]
        assert start not in children and atb.make_arch(start.genes) == start
        for name, choices in space.items():
            assert {start.genes[name]} < {child.genes[name] for child in children} <= {*choices}


@pytest.mark.parametrize("text, millions", [
    ("12-768-3072-12-768", 109.48), ("8-768-3072-12-768", 81.13), ("5-564-1054-8-512", 29.57),
    ("4-396-624-6-384", 16.87), ("4-432-384-4-256", 16.71), ("3-320-608-4-256", 12.20), ("5-564-1024-12-528", 29.59),
    ("5-324-600-12-324", 14.22), ("5-280-512-12-276", 11.76), ("4-256-480-12-192", 9.79)])
def test_parameter_counts(text, millions):
    arch = atb.parse_arch(text)
    assert round(sum(atb.parameters(arch, 30522).values()) / 1e6, 2) == millions
    assert millions != 109.48 or atb.flops(arch) == pytest.approx(22.35e9, rel=1e-3)  # BERT-base


# --- extraction -----------

def all_variants():
    """[(variant, an architecture that it trains)]."""
    cases = [(variant, arch) for cfg in (TINY, DISTILL) for variant in atb.VARIANTS for step in range(4)
             for arch in atb.draw_archs(dataclasses.replace(cfg, variant=variant), step, 0)[:1]]
    return cases + [("ebl", atb.parse_arch(text)) for text in (
        "2-11-13-3-15", "3-24-40-4-24", "1-1-1-1-1")] + [("ils", atb.parse_arch("3-23-39-2-24"))]


def test_extracted_models_equal_sub_models():
    """For 36 architectures of all settings and ablations, with padding: logits, states and scores are bit-equal."""
    ids, segments, lengths = tiny_batch()
    models = {fit: tiny_model(fit=fit) for fit in (0, 20)}
    for variant, arch in all_variants():
        alone, student = (atb.extract(models[fit], arch, variant) for fit in (0, 20))
        part, taught = (atb.sub_model(models[fit], arch, variant) for fit in (0, 20))
        assert torch.equal(alone(ids, segments, lengths, PLACES), part(ids, segments, lengths, PLACES))
        for mine, theirs in zip(student.student(ids, segments, lengths), taught.student(ids, segments, lengths)):
            assert torch.equal(mine, theirs)
        assert alone.encoder.arch == arch and len(alone.encoder.layers) == arch.layers
        assert sum(value.numel() for value in alone.encoder.parameters()) == sum(atb.parameters(arch, 50).values())
        assert all(value.is_leaf and value.requires_grad for value in copy.deepcopy(alone).parameters())


def test_padding_and_chosen_places_change_nothing():
    """A row alone has the same states; so have the masked places where the last layer computes no others."""
    ids, segments, lengths = tiny_batch()
    model = tiny_model()
    for part in (model, atb.sub_model(model, atb.parse_arch("2-12-16-3-18"))):
        together = part.encoder(ids, segments, lengths)
        chosen = together.gather(1, PLACES[..., None].expand(-1, -1, together.shape[-1]))
        torch.testing.assert_close(part.encoder(ids, segments, lengths, PLACES), chosen, rtol=1e-4, atol=1e-5)
        for row, length in enumerate(lengths.tolist()):
            alone = part.encoder(ids[row:row + 1, :length], segments[row:row + 1, :length])
            torch.testing.assert_close(together[row:row + 1, :length], alone, rtol=1e-4, atol=1e-5)


def test_figure_3():
    """Extraction takes the first heads whole, or the leading part of every head; rows of q, k, v and columns of the
    output alike."""
    weight = torch.arange(24.0)[:, None].expand(24, 24).reshape(4, 6, 24).expand(3, 4, 6, 24).contiguous()

    def rows(heads, width):
        return atb.leading(weight, "*NDH", {"N": heads, "D": width, "H": 24})[1, ..., 0].flatten().tolist()
    assert rows(2, 6) == list(range(12))  # (b)
    assert rows(4, 3) == [0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20]  # (c)
    assert rows(2, 12) == list(range(24))  # no SME: two heads share all rows
    assert rows(3, 2) == [0, 1, 6, 7, 12, 13]  # both at once, for any --arch
    output = atb.leading(weight[0].permute(2, 0, 1), "HND", {"N": 4, "D": 3, "H": 24})
    assert output[0].flatten().tolist() == rows(4, 3)


@pytest.mark.parametrize("text, reason", [
    ("4-24-40-4-24", "layers"), ("3-28-40-4-24", "hidden"), ("3-24-44-4-24", "ffn"), ("3-24-40-2-16", "heads of 8"),
    ("3-24-40-2-24", "heads of 12"), ("ils 3-24-40-2-12", "all of qkv 24")])
def test_architectures_outside_the_superplm_are_refused(text, reason):
    """Sub-matrices of heads no wider than the SuperPLM's; without SME its heads are regrouped, and all rows used."""
    *variant, arch = text.split()
    with pytest.raises(ValueError, match=reason):
        atb.extract(tiny_model(), atb.parse_arch(arch), *variant)


# --- one-shot training ----

def test_architectures_differ_by_shard_and_follow_from_step_and_shard_alone():
    drawn = [atb.draw_archs(TINY, step, shard) for step in range(20) for shard in range(4)]
    assert all(len(archs) == TINY.samples for archs in drawn)
    assert len({str(arch) for archs in drawn for arch in archs}) > 150
    assert atb.draw_archs(TINY, 7, 2) == drawn[30]
    hat, ils, sme, _ = (dataclasses.replace(TINY, variant=variant) for variant in atb.VARIANTS)
    one = atb.draw_archs(sme, 7, 2)  # for the whole batch
    assert one == atb.draw_archs(sme, 7, 0) and len(one) == 1
    assert all(arch.qkv == 24 for step in range(20) for arch in atb.draw_archs(ils, step, 0))
    assert any(len(set(arch.ffn)) > 1 for step in range(20) for arch in atb.draw_archs(hat, step, 0))


def test_weight_decay_is_berts():
    """None on biases and LayerNorms; the pooler, which pre-training does not read, is left alone."""
    model = tiny_model()
    names = {id(value): name for name, value in model.named_parameters()}
    groups = atb.make_optimizer(model, 0.1).param_groups
    decayed, plain = ({names[id(value)] for value in group["params"]} for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert plain == {name for name in names.values() if "bias" in name or "norm" in name} - {"encoder.pooler.bias"}
    assert decayed == {*names.values()} - plain - {"encoder.pooler.weight", "encoder.pooler.bias"}


ODD = [*map(atb.parse_arch, ("2-12-16-2-12", "2-12-16-4-12", "3-24-40-2-24")),
       atb.Arch(2, 12, (16, 24), (2, 4), (24, 24))]


@pytest.mark.parametrize("arch, variant", [*zip(ODD, ("ebl", "ebl", "ils", "hat"))], ids=str)
def test_a_sub_model_trains_what_it_is_cut_from_and_nothing_else(arch, variant):
    """Three updates through sub_model change the whole exactly where and as they change an extracted model."""
    batch, model = (*tiny_batch(), PLACES, LABELS), tiny_model()
    cut = functools.partial(atb.extract, arch=arch, variant=variant)
    before, alone = copy.deepcopy(model), cut(model)
    for whole, part in ((model, lambda: atb.sub_model(model, arch, variant)), (alone, lambda: alone)):
        optimizer = torch.optim.SGD(whole.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            atb.masked_loss(part(), batch).backward()
            optimizer.step()

    def changed(model, before):
        return sum((value != old).sum().item() for value, old in zip(model.parameters(), before.parameters()))
    for mine, theirs in zip(cut(model).parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert changed(model, before) == changed(cut(model), cut(before)) > 1000


def test_an_update_is_algorithm_1():
    """The gradient is the average over N sub-batches and M sub-models, clipped; what none of them used has zeros, not
    None, so that it decays (D6). Without architectures it is an ordinary update of the model."""
    ids, segments, lengths = tiny_batch()
    batches = [[ids, segments, lengths, PLACES, LABELS], [ids.flip(0), segments, None, PLACES, LABELS]]
    small = [atb.parse_arch(text) for text in ("2-12-16-2-12", "1-8-8-1-6", "2-16-40-4-24")]
    for archs in (small, []):
        model = tiny_model()
        mirror, data = copy.deepcopy(model), atb.Data(CPU)
        losses = [atb.masked_loss(part, batch) for batch in batches
                  for part in [atb.sub_model(mirror, arch) for arch in archs] or [mirror]]
        (sum(losses) / len(losses)).backward()
        expected = atb.make_optimizer(mirror, 0.1)
        trained = [value for group in expected.param_groups for value in group["params"]]
        for value in trained:
            value.grad = torch.zeros_like(value) if value.grad is None else value.grad
        norm = torch.nn.utils.clip_grad_norm_(trained, atb.CLIP)
        expected.step()

        def networks(number):
            return [atb.sub_model(model, arch) for arch in archs] or [model]
        loss, found = atb.update(
            atb.make_optimizer(model, 0.1), dict(enumerate(batches)), networks, data, TINY, HERE, "test")
        torch.testing.assert_close((loss, found), (sum(losses).detach() / len(losses), norm))
        for one, other in zip(model.parameters(), mirror.parameters()):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert all(value.grad is None for value in model.parameters())
    assert (model.encoder.layers[2].expand.weight != tiny_model().encoder.layers[2].expand.weight).all()


# --- objective ------------

def test_masking_is_80_10_10_and_never_touches_special_pieces():
    generator, pieces = torch.Generator().manual_seed(0), types.SimpleNamespace(
        vocab_size=1000, pad_id=0, cls_id=2, sep_id=3, mask_id=4)
    ids = torch.randint(5, 1000, (2000, 64), generator=generator)
    ids[:, 0], ids[:, 30], ids[::2, 40:] = 2, 3, 0
    changed, places, labels = atb.mask_tokens(ids, pieces, generator)
    chosen, originals = labels != -100, ids.gather(1, places)
    assert chosen[::2].sum(1).unique().tolist() == [6] and chosen[1::2].sum(1).unique().tolist() == [9]  # 15% of 38, 62
    assert torch.equal(labels[chosen], originals[chosen]) and (labels[chosen] >= 5).all()
    now = changed.gather(1, places)[chosen]
    for hits, share in ((now == 4, 0.8), (now == labels[chosen], 0.1)):
        assert hits.float().mean().item() == pytest.approx(share, abs=0.01)


def test_distillation_loss_compares_scores_and_states_of_real_tokens():
    teacher = tiny_model(seed=3).encoder.requires_grad_(False)
    student = tiny_model(DISTILL, fit=24)
    ids, segments, lengths = tiny_batch()
    part = atb.sub_model(student, atb.parse_arch("2-12-16-4-8"))
    theirs, mine = teacher(ids, segments, lengths, with_scores=True), part.student(ids, segments, lengths)
    assert theirs[1].shape == mine[1].shape == (3, 4, 9, 9) and mine[0].shape == theirs[0].shape == (3, 9, 24)
    assert atb.distillation_loss(theirs, theirs, lengths) == 0
    states, scores = ((one - other) ** 2 for one, other in zip(mine, theirs))
    states = sum(states[row, :n].sum() for row, n in enumerate(lengths)) / (lengths.sum() * 24)
    scores = sum(scores[row, :, :n, :n].sum() for row, n in enumerate(lengths)) / ((lengths ** 2).sum() * 4)
    loss = atb.distillation_loss(mine, theirs, lengths)
    assert loss.item() == pytest.approx((states + scores).item(), rel=1e-5)
    loss.backward()
    assert all(value.grad is None for value in teacher.parameters()) and student.fit.weight.grad.abs().max() > 0


# --- latency and search ---

def pretended_latency(arch):
    """Milliseconds of a machine that does 50 GFLOP/s and pays for each layer and each head."""
    return atb.flops(arch) / 5e7 + 0.3 * arch.layers + 0.02 * arch.layers * arch.heads + 0.001 * arch.hidden


def predict(archs):
    return list(map(pretended_latency, archs))


def test_predictors_learn_a_machine():
    space, rng = atb.search_space(BASE), random.Random(0)
    archs = [atb.sample_arch(space, rng) for _ in range(300)]
    seen, times, unseen = archs[:240], predict(archs[:240]), archs[240:]
    linear = atb.Predictor(128).fit(seen, times)
    assert sum(abs(mine / took - 1) for mine, took in zip(linear(unseen), predict(unseen))) / len(unseen) < 0.01
    assert atb.Predictor(128, linear.weights)(unseen) == linear(unseen) and min(linear([atb.smallest_arch(space)])) > 0


def played_search(cfg, limit, score=lambda arch: 0.0):
    """A whole Alg. 2 with pretended latencies and scores."""
    history = []
    for number in range(cfg.generations):
        for parent, arch in atb.propose(history, number, cfg, predict, limit):
            history.append({"id": len(history), "round": number, "parent": parent, "arch": str(arch),
                            "score": score(arch), "diverged": False})
    return history


@pytest.mark.parametrize("setting", ["mlm", "distill"])
def test_algorithm_2(setting):
    def score(arch):
        return -abs(arch.hidden - 400) - abs(arch.ffn - 700) / 4
    cfg = dataclasses.replace(BASE, setting=setting)
    history = played_search(cfg, 30.0, score)
    assert len(history) == len({line["arch"] for line in history}) == 100  # T = 4 of S = 25, all new
    assert all(pretended_latency(atb.parse_arch(line["arch"])) <= 30.0 for line in history)
    assert [sum(line["round"] == number for line in history) for number in range(4)] == [25] * 4
    assert all(line["parent"] is None or history[line["parent"]]["round"] == line["round"] - 1 for line in history)
    assert 20 < sum(line["parent"] is not None for line in history[25:]) < 55  # p_m = p_e: about half are mutants
    random_only = played_search(dataclasses.replace(cfg, strategy="random"), 30.0)
    assert len(random_only) == 100 and all(line["parent"] is None for line in random_only)


def test_a_generation_is_smaller_where_the_limit_leaves_no_more():
    """D3: only the fastest architecture is within this one."""
    space = atb.search_space(TINY)
    fastest = min(predict([atb.make_arch(dict(zip(space, genes))) for genes in itertools.product(*space.values())]))
    assert len(played_search(dataclasses.replace(TINY, generations=1), fastest)) == 1


def test_a_generation_near_the_fastest_architecture_takes_few_predictions():
    """The limit leaves a few architectures of 11 million: after DRAWS draws in a row without one of
    them the generation ends, with one prediction for many draws."""
    fastest = pretended_latency(atb.smallest_arch(atb.search_space(BASE)))
    calls = []

    def counted(archs):
        calls.append(len(archs))
        return predict(archs)
    for share in (1.003, 1.25):
        calls.clear()
        found = atb.propose([], 0, BASE, counted, share * fastest)
        assert all(pretended_latency(arch) <= share * fastest for _, arch in found)
        assert 1 <= len(found) < 25 and len(calls) < 200 and sum(calls) < 20 * atb.DRAWS


@pytest.mark.parametrize("variant", atb.VARIANTS)
def test_a_search_proposes_nothing_that_its_superplm_has_not_trained(variant):
    """Every choice of every proposal was drawn while the variant's SuperPLM trained; so without SME all of d^q|k|v."""
    cfg = dataclasses.replace(TINY, variant=variant, population=12, generations=3)
    drawn = [arch for step in range(600) for arch in atb.draw_archs(cfg, step, 0)]
    trained = {name: {getattr(arch, name) for arch in drawn} for name in ("layers", "hidden")}
    trained["layer"] = {arch.shape(layer) for arch in drawn for layer in range(arch.layers)}
    for line in played_search(cfg, 100.0):
        arch = atb.parse_arch(line["arch"])
        assert arch.layers in trained["layers"] and arch.hidden in trained["hidden"]
        assert arch.shape(0) in trained["layer"] and atb.why_outside(arch, atb.parse_arch(cfg.largest), variant) is None


def test_roulette_prefers_the_better_and_leaves_out_nobody():
    lines = [{"score": score} for score in (0.5, 0.6, 0.9)]
    rng, counts = random.Random(0), [0, 0, 0]
    for _ in range(3000):
        counts[lines.index(atb.roulette(lines, rng))] += 1
    assert counts[2] > 3 * counts[1] > 9 * counts[0] > 0


def test_fast_rule():
    found = atb.fast_candidates(atb.search_space(BASE), predict, 30.0)
    assert len({arch.layers for arch in found}) == len(found) >= 5
    for arch in found:
        assert 1.6 * arch.hidden <= arch.ffn <= 1.9 * arch.hidden and 0.7 * arch.hidden <= arch.qkv <= arch.hidden
        assert 25.0 < pretended_latency(arch) <= 28.5  # D11


# --- folders --------------

@functools.cache
def Vocabulary():
    """A WordPiece tokenizer of 50 pieces."""
    path = Path(tempfile.mkdtemp()) / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(45))]))
    return WordPieceTokenizer(path)


def keep(folder, model):
    """What a training leaves in a run's model/, or a fine-tuning in a task's folder."""
    tuned = isinstance(model, atb.TaskModel)
    settings = dataclasses.replace(TINY, arch=str(model.encoder.arch),
                                   tasks="SQuAD1.1" if tuned and model.spans else "SST-2")
    common_weights.keep_model(folder, "finetune" if tuned else "further_train", settings, Vocabulary(), model=model)


def write_hugging_face(folder, model):
    """What --export writes."""
    weights, source = model.state_dict(), folder.with_name(f"{folder.name}-source")
    keep(source, model)
    head, shape = {name: weights[name] for name in weights if "head." in name}, dataclasses.astuple(model.encoder.arch)
    return hf_models.write_bert(folder, weights, shape, 0.0, Vocabulary(), source, head)


def opened(folder, train=None, **more):
    """start_model of a folder, as for a fine-tuning."""
    cfg = dataclasses.replace(TINY, init=str(folder), **more)
    data = atb.Data(CPU, Vocabulary(), train=train, tasks={"SST-2": None})
    return atb.start_model("", cfg, data, HERE)


def test_models_come_back_bit_for_bit_from_both_layouts(tmp_path, capsys):
    """A distilled one has no head for a training on masked words, and no more positions than it has."""
    for fit, text in ((0, "2-12-16-3-18"), (20, "3-24-40-4-16")):
        model = atb.extract(tiny_model(fit=fit), atb.parse_arch(text))
        keep(tmp_path / text, model)
        write_hugging_face(tmp_path / f"{text}-export", model)
        for folder in (text, f"{text}-export"):
            again = opened(tmp_path / folder)
            assert str(again.encoder.arch) == text and "made anew: none; left out: none" in capsys.readouterr().out
            assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    for more, message in (({}, "no masked-language-model head"), ({"length": 600}, "512 positions are too few")):
        with pytest.raises(UserError, match=message):
            opened(tmp_path / text, train=object(), **more)


def test_the_padding_of_a_teachers_embedding_is_cut(tmp_path, capsys):
    """50 tokens in 56 or 64 rows, multiples of 8 and of 64. 60 rows are another vocabulary."""
    for rows in (56, 64, 60):
        model = tiny_model(dataclasses.replace(TINY, vocab_size=rows))
        write_hugging_face(tmp_path / f"{rows}", model)
        cfg = dataclasses.replace(TINY, teacher=str(tmp_path / f"{rows}"))
        load = functools.partial(atb.load_teacher, cfg, HERE, 50, 4)
        if rows == 60:
            with pytest.raises(UserError, match="words.weight is"):
                load()
            return
        assert torch.equal(load()(*tiny_batch()), model.encoder(*tiny_batch()))
        assert f"the last {rows - 50} rows" in capsys.readouterr().out


def test_an_export_counts_parameters_and_names_what_is_not_exported(tmp_path, capsys):
    """Of a tuned model nothing is missing; of a distilled one the projection to its teacher is."""
    encoder = atb.extract(tiny_model(), atb.parse_arch("2-12-16-3-18")).encoder
    count = sum(atb.parameters(encoder.arch, 50).values())
    keep(tmp_path / "tuned", atb.TaskModel(encoder, 2))
    text = run_here(["--export", tmp_path / "one", "--init", tmp_path / "tuned"], capsys)
    assert f"{count:,} parameters of the encoder and 26 of the head" in text
    assert text.count("trust_remote_code=True") == 2 and "AutoTokenizer" in text
    assert "made anew" not in text and "left out" not in text and "not exported" not in text
    keep(tmp_path / "distilled", tiny_model(fit=20))
    text = run_here(["--export", tmp_path / "two", "--init", tmp_path / "distilled"], capsys)
    assert "not exported: fit.bias, fit.weight" in text and "trust_remote_code" not in text


def test_a_vocabulary_of_equal_pieces_and_other_scores_is_refused(ready, tmp_path):
    own = load_tokenizer(ready["corpus"])
    content = own.path.read_bytes()
    place = content.index("▁the\x15".encode()) + len("▁the\x15".encode())
    score, = struct.unpack("<f", content[place:place + 4])
    (tmp_path / "spiece.model").write_bytes(
        content[:place] + struct.pack("<f", score - 1) + content[place + 4:])
    other = load_tokenizer(tmp_path / "spiece.model")
    assert other.names == own.names
    with pytest.raises(UserError, match="other pieces, scores or case"):
        inputs.check_vocabulary(ready["corpus"], other)
    inputs.check_vocabulary(Path(own.save(tmp_path / "same")).parent, own)


@pytest.mark.peers
@pytest.mark.parametrize("kind, width", [("bert", 24), ("electra", 24), ("electra", 16)])
def test_hugging_face_models_are_read(kind, width, tmp_path):
    """transformers' own BERT and ELECTRA give the states and logits that their folders give here. What --export makes
    of an ELECTRA has no masked-language-model head; one of narrower embeddings is a teacher alone."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=32)
    torch.manual_seed(0)
    theirs = (transformers.BertForMaskedLM(transformers.BertConfig(**sizes)) if kind == "bert" else
              transformers.ElectraForPreTraining(transformers.ElectraConfig(**sizes, embedding_size=width))).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    Vocabulary().save(tmp_path / "theirs")
    (ids, segments, lengths), real, inputs = inputs_of_both()
    expected = theirs(**inputs, output_hidden_states=True)
    encoder = atb.load_teacher(dataclasses.replace(TINY, teacher=str(tmp_path / "theirs")), HERE, 50, 4)
    close(encoder(ids, segments, lengths)[real], expected.hidden_states[-1][real])
    if kind == "bert":
        mine = opened(tmp_path / "theirs").eval()
        close(mine(ids, segments, lengths, PLACES), expected.logits.gather(1, PLACES[..., None].expand(-1, -1, 50)))
    export = ["--export", tmp_path / "ours", "--init", tmp_path / "theirs"]
    if width == 16:
        with pytest.raises(UserError, match="words.weight is"):
            run_here(export)
        return
    run_here(export)
    auto = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModel
    again, loading = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not [name for name in (*loading["missing_keys"], *loading["unexpected_keys"]) if "pooler" not in name]
    close(again(**inputs, output_hidden_states=True).hidden_states[-1][real], expected.hidden_states[-1][real])


close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)


def inputs_of_both():
    """tiny_batch, which of its tokens are real, and the same as the arguments of transformers."""
    ids, segments, lengths = tiny_batch()
    real = torch.arange(9) < lengths[:, None]
    return (ids, segments, lengths), real, dict(input_ids=ids, attention_mask=real.long(), token_type_ids=segments)


@pytest.mark.peers
@pytest.mark.parametrize("text", ["2-24-40-4-24", "2-20-16-3-18"])  # plain, and of a width that needs code of its own
@pytest.mark.parametrize("kind", ["", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
def test_exports_open_with_auto_model(kind, text, tmp_path, monkeypatch):
    """All four shapes of heads give the states and logits that they give here."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, spans = atb.extract(tiny_model(), atb.parse_arch(text)).eval(), kind == "ForQuestionAnswering"
    if kind.endswith(("ion", "ing")):
        model = atb.TaskModel(model.encoder, 2 if spans else 3, spans).eval()
    write_hugging_face(tmp_path / "ours", model)
    own, auto = text != "2-24-40-4-24", getattr(transformers, f"AutoModel{kind}")
    if own:
        with pytest.raises(ValueError, match="trust_remote_code"):
            auto.from_pretrained(tmp_path / "ours", trust_remote_code=False)
    back = auto.from_pretrained(tmp_path / "ours", **{"trust_remote_code": True} if own else {}).eval()
    batch, real, inputs = inputs_of_both()
    theirs = back(**inputs)
    if kind == "ForMaskedLM":
        close(model(*batch, PLACES), theirs.logits.gather(1, PLACES[..., None].expand(-1, -1, 50)))
    elif spans:
        close(model(*batch)[real], torch.stack([theirs.start_logits, theirs.end_logits], -1)[real])
    elif kind:
        close(model(*batch), theirs.logits)
    else:
        close(model.encoder(*batch)[real], theirs.last_hidden_state[real])


@pytest.mark.peers
@pytest.mark.parametrize("trust", ["", ", trust_remote_code=True", ", trust_remote_code=False"])
def test_a_tokenizer_opens_without_a_terminal(trust, tmp_path):
    """The width of an AutoTinyBERT needs code of its own; without stdin nobody is asked."""
    pytest.importorskip("transformers")
    write_hugging_face(tmp_path / "ours", atb.extract(tiny_model(), atb.parse_arch("2-20-16-3-18")))
    code = ("from transformers import AutoTokenizer\n"
            f"print(AutoTokenizer.from_pretrained('ours'{trust})('w3 w7')['input_ids'])")
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, env=environment)
    assert "[2, 8, 12, 3]" in done.stdout, done.stderr


# --- whole runs -----------

@pytest.fixture(scope="module")
def flags(ready):
    """Those of a run on small data that takes seconds."""
    words = SEARCHES["autotinybert"].replace("MLM-saved", "SQuAD1.1,SST-2") + (
        " --glue {glue} --squad {squad} --vocab_size 300 --save_every 1 --finetune_epochs 1 --finetune_length 32 "
        "--finetune_batch 12")
    return shlex.split(filled(words, **ready))


def run_here(argv, capsys=None, status=0):
    assert atb.main([str(word) for word in argv]) == status
    return capsys.readouterr().out if capsys else None


def weights_of(folder):
    """The weights of a model that a run has kept."""
    return load_file(folder / "checkpoint.pt")["owned"]["model"]


@pytest.fixture
def clock(monkeypatch):
    """Measuring by pretended_latency. After clock["kill"] more measurements this process gets SIGTERM; clock["count"]:
    how many there were."""
    state = {"count": 0, "kill": -1}

    def time_model(arch, cfg):
        state["count"], state["kill"] = state["count"] + 1, state["kill"] - 1
        if state["kill"] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return pretended_latency(arch)
    monkeypatch.setattr(distributed, "_stop_requested", False)  # and back to False afterwards
    monkeypatch.setattr(atb, "time_model", time_model)
    return state


def test_a_training_goes_on_with_another_number_of_processes(ready, tmp_path, monkeypatch):
    """Without --accumulate: killed after a step of one process and continued by two, a further
    training leaves what one process leaves."""
    words = ["--further_train", "--corpus", ready["corpus"], "--arch", "2-16-16-2-16", "--smallest",
             "1-8-8-1-8", "--largest", "2-16-16-2-16", "--batch", 8, "--length", 32,
             "--dropout", 0.1, "--further_steps", 3, "--eval_every", 2, "--save_every", 1,
             "--device", "cpu", "--out"]
    words = list(map(str, words))
    run_here([*words, tmp_path / "whole"])
    with monkeypatch.context() as patch:
        save = atb.Checkpoint.save

        def save_and_stop(checkpoint, **values):
            save(checkpoint, **values)
            raise atb.Stop
        patch.setattr(atb.Checkpoint, "save", save_and_stop)
        run_here([*words, tmp_path / "killed"], status=143)
    distributed.release_locks()
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                           "--nproc_per_node=2", "autotinybert.py", *words, tmp_path / "killed"],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    log = (tmp_path / "killed" / "log.jsonl").read_text()
    assert '"event": "resumed"' in log and '"processes": 2' in log
    one, two = (weights_of(tmp_path / name / "model") for name in ("whole", "killed"))
    torch.testing.assert_close(one, two)


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory):
    """The folder of an uninterrupted search in one process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("search") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atb, "time_model", lambda arch, cfg: pretended_latency(arch))
        run_here(["--search", *flags, "--out", folder])
    return folder


def test_a_search_reads_train_and_dev_alone(ready, whole, tmp_path):
    """Of MNLI neither the mismatched rows nor the tests, which --finetune has all."""
    for action, more in (("search", set()), ("finetune", {"dev_mismatched", "test", "test_mismatched"})):
        cfg = dataclasses.replace(TINY, glue=str(ready["glue"]), tokenizer=str(whole), out=str(tmp_path / action),
                                  finetune_length=32)
        opened = atb.open_data(cfg, action, HERE, tasks="MNLI")[1]
        assert opened.tasks["MNLI"].splits.keys() == {"train", "dev"} | more


def test_averages_are_those_of_table_1():
    """AutoTinyBERT-S1. Of WNLI, which the paper leaves out, nothing counts; without SQuAD there is a Score alone."""
    order = "SQuAD1.1 SST-2 MNLI MRPC CoLA QNLI QQP STS-B RTE WNLI".split()
    numbers = 83.3, 89.4, 79.4, 85.5, 42.4, 87.3, 88.8, 87.5, 66.3, 56.3
    found = {name: {"median": number} for name, number in zip(order, numbers)}
    assert {name: round(mean, 1) for name, mean in atb.table_1(found).items()} == {"Score": 78.3, "Avg.": 78.9}
    del found["SQuAD1.1"]
    assert atb.table_1(found).keys() == {"Score"}


def test_another_search_starts_from_a_finished_ones_superplm(flags, whole, tmp_path, clock):
    """With --init RUN nothing is trained or measured again but what another limit asks for, five rounds of the
    reference and the finalists. A plain BERT or a winner is no SuperPLM, nor is one of another space."""
    second = tmp_path / "second"
    run_here(["--evolve", *flags, "--init", whole, "--speedup", "3", "--winners", "1", "--out", second])
    assert clock["count"] % 5 == 0 and clock["count"] <= 5 * 7
    assert read_json(second / "best.json")["speedup"] >= 3 and not (second / "superplm").exists()
    run_here(["--export", tmp_path / "bert", "--init", whole / "superplm"])
    for init, flag, message in ((tmp_path / "bert", "--evolve", "parts of this model were never trained"),
                                (whole / "model", "--search", "parts of this model were never trained"),
                                (whole, "--variant=ils", "--variant ils: .* has ebl"),
                                (whole, "--smallest=1-4-8-1-8", "has 1-8-8-1-8")):
        with pytest.raises(UserError, match=message):
            run_here([*["--search"] * ("=" in flag), *flags, flag, "--init", init, "--out", tmp_path / "run"])


def test_a_model_smaller_than_the_superplm_is_answered_before_the_corpus_is_read(
        ready, flags, whole, tmp_path):
    """The line names the flag that makes a SuperPLM of it."""
    small = tmp_path / "small"
    run_here(["--export", small, "--init", whole, "--arch", "1-16-16-2-12"])
    for action in ("--search", "--superplm"):
        with pytest.raises(UserError, match="--largest 1-16-16-2-12"):
            run_here([action, *flags, "--init", small, "--out", tmp_path / "run"])
    assert not (tmp_path / "run").exists()


def test_a_search_prints_milliseconds_with_the_limit_and_the_reference(
        flags, whole, tmp_path, clock, capsys, monkeypatch):
    """A finished search what its winner takes; measuring, the error of the predictor; an evolution
    that the limit cuts short, that it is."""
    best = read_json(whole / "best.json")
    reference = pretended_latency(atb.parse_arch("6-128-512-4-128"))
    limit = f"the limit of --speedup 2 is {reference / 2:.3g} ms"
    words = run_here(["--search", *flags, "--out", whole], capsys)
    assert f"{best['arch']} takes {best['milliseconds']:.3g} ms; {limit}; 6-128-512-4-128" in words
    assert f" takes {reference:.3g} ms: {best['speedup']:.3g} times as fast (" in words
    assert f"{best['parameters']:,} parameters" in words
    monkeypatch.setattr(atb, "judge", lambda *others: {
        "score": 0.2, "error": 0.1, "scores": {"MLM-saved": 0.2}, "mlm_loss": 4.5,
        "diverged": False, "seconds": 1.0})
    words = run_here(["--evolve", *flags, "--init", whole, "--population", "400", "--generations",
                      "1", "--out", tmp_path], capsys)
    count = len(read_jsonl(tmp_path / "history.jsonl"))
    assert limit in words and "the predictor's mean error is " in words and 100 < count <= 360
    assert f"generation 1 has {count} of 400 architectures: 10,000 draws in a row" in words
    assert "MLM loss 4.5000 nats per masked token (20.00% below a uniform guess)" in words
    ties = read_json(tmp_path / "best.json")["ties"]
    assert f"from the best: {', '.join(ties[:5])} and {count - 6} more (best.json)" in words


def test_parts_of_a_finished_search_come_from_its_superplm(whole, tmp_path):
    """An architecture that is not the winner's is cut out of the SuperPLM, even where it would fit into the winner."""
    best = read_json(whole / "best.json")
    assert best["speedup"] >= 2 and best["evaluated"] == 6 == len(read_jsonl(whole / "history.jsonl"))
    superplm = atb.LanguageModel(atb.parse_arch("2-24-40-4-24"), 300)
    superplm.load_state_dict(weights_of(whole / "superplm"))
    for arch in ("1-8-8-1-6", "2-24-40-3-18"):
        run_here(["--export", tmp_path / arch, "--init", whole, "--arch", arch])
        exported = hf_models.read_bert(tmp_path / arch, atb.parse_arch(arch).heads)
        for name, value in atb.extract(superplm, atb.parse_arch(arch)).state_dict().items():
            assert torch.equal(exported[name], value)


def test_scores_within_their_noise_are_called_ties(whole):
    """Half right of 100 rows are 50 +- 5%; every candidate has its error."""
    lines = [{"arch": arch, "score": score, "error": 0.02 * (score > 0)}
             for arch, score in (("a", 0.46), ("b", 0.5), ("c", 0.4), ("d", -1.0))]
    assert atb.ties(lines) == ["a"] and atb.ties(lines[1:]) == []
    task = types.SimpleNamespace(rows={"dev": range(100)}, recipe=types.SimpleNamespace(main="accuracy"))
    assert tasks.Task.standard_error(task, 0.5) == pytest.approx(0.05)
    assert all(0.01 < line["error"] < 0.3 for line in read_jsonl(whole / "history.jsonl"))


def test_zero_steps_are_the_papers_passes_over_the_corpus(ready, whole, tmp_path):
    """Sec. 4.1: 5 for the SuperPLM and for further training, 10 from scratch."""
    for init, passes in (("", 10), (str(whole), 5)):
        cfg = dataclasses.replace(TINY, vocab_size=300, out=str(tmp_path / f"{passes}"), init=init,
                                  corpus=(str(ready["corpus"]),))
        _, data = atb.open_data(cfg, "further_train", HERE, text=True)
        a_pass = data.train.slots(cfg.length - 3) / cfg.batch
        assert (cfg.steps, cfg.further_steps) == (math.ceil(5 * a_pass), math.ceil(passes * a_pass)) and a_pass > 3


def test_the_grid_is_that_of_the_paper_and_its_best_setting_stands(
        flags, whole, tmp_path, monkeypatch, capsys):
    """MLM-saved is a task without fine-tuning, with the same masked pieces for every seed. No task starts from MNLI."""
    assert len(atb.GRID) == 9 and all((lr, epochs) in atb.GRID for _, lr, epochs, _ in atb.TABLE_D1.values())
    monkeypatch.setattr(atb, "GRID", [(1e-5, 1), (0.1, 3)])
    words = run_here(["--finetune", "SST-2,MLM-saved", *flags, "--init", whole, "--grid", "--runs",
                      "2", "--out", tmp_path], capsys)
    assert " nats per masked token" in words and "SST-2     accuracy" in words
    jobs = {path.stem: read_json(path) for path in (tmp_path / "jobs").glob("*.json")}
    assert jobs.keys() == {"MLM-saved-0", "MLM-saved-1", "SST-2-0-1e-05-1", "SST-2-1-1e-05-1",
                           "SST-2-0-0.1-3", "SST-2-1-0.1-3"}
    found = read_json(tmp_path / "done.json")["tasks"]
    medians = {key: min(job["metrics"]["main"] for job in jobs.values() if job["setting"] == list(key))
               for key in atb.GRID}
    assert found["SST-2"]["median"] == max(medians.values()) == medians[tuple(found["SST-2"]["setting"])]
    assert found["SST-2"]["n"] == 2 and 0.5 <= found["SST-2"]["constant"] < 1 and "constant" not in found["MLM-saved"]
    assert found["MLM-saved"]["sd"] == 0
    assert found["MLM-saved"]["median"] == pytest.approx(1 - found["MLM-saved"]["metrics"]["loss"] / math.log(300))
    for task in ("RTE,MNLI", "RTE"):
        run_here(["--finetune", task, *flags, "--init", whole, "--out", tmp_path / task])
    torch.testing.assert_close(*(weights_of(tmp_path / run / "RTE") for run in ("RTE,MNLI", "RTE")), rtol=0, atol=0)


def test_sigterm_is_obeyed_between_two_measurements(flags, tmp_path, clock):
    """The one that was running when the signal came is not kept."""
    clock.update(kill=3)
    run_here(["--latency", *flags, "--out", tmp_path], status=143)
    assert clock["count"] == 3 and not (tmp_path / "predictor.pt").exists()
    assert sum(map(len, read_json(tmp_path / "latency.json")["milliseconds"].values())) == 2


def test_measurements_hold_for_their_setting(flags, whole, tmp_path, clock):
    """--init takes the measurements of another run, but not those of another number of threads."""
    for threads, count in (("1", 0), ("2", 24)):
        clock.update(count=0)
        words = ["--latency", *flags, "--latency_threads", threads, "--init", whole]
        run_here([*words, "--out", tmp_path / threads])
        assert clock["count"] >= count and (clock["count"] > 0) == (threads == "2")
    setting = read_json(tmp_path / "2" / "latency.json")["setting"]
    assert setting["clock"] == "wall" and setting["threads"] == 2


def test_an_impossible_limit_ends_before_any_training(flags, tmp_path, clock):
    for calls in (1, 2):
        with pytest.raises(UserError, match="the fastest, 1-8-8-1-6, takes"):
            run_here(["--search", *flags, "--latency_archs", "3", "--speedup", "1e5", "--out", tmp_path / "run"])
    assert clock["count"] == 3 + 2 * 5 and not (tmp_path / "run" / "superplm").exists()


def test_speedup_takes_an_architecture(flags, tmp_path, clock):
    """As fast as that one, wherever the reference is."""
    run_here(["--latency", *flags, "--latency_archs", "3", "--speedup", "2-12-16-2-12", "--out", tmp_path])
    assert load_file(tmp_path / "predictor.pt")["limit"] == pretended_latency(atb.parse_arch("2-12-16-2-12"))
    cfg = dataclasses.replace(TINY, reference="6-128-512-4-128", speedup="2-12-16-2-12", winners=3)
    history = [{"id": 0, "score": 1.0, "diverged": False, "arch": "3-24-40-4-24"},
               {"id": 1, "score": 0.5, "diverged": False, "arch": "1-12-16-2-12"}]
    line, = atb.confirm(history, cfg, types.SimpleNamespace(ranks=HERE, folder=tmp_path))
    assert line["arch"] == "1-12-16-2-12" and line["rounds"] == 5
    assert line["speedup_range"][0] <= line["speedup"] <= line["speedup_range"][1]


def test_a_speedup_may_have_an_exponent():
    for text, limit in (("1e-1", 10.0), ("2e0", 0.5), ("+4", 0.25)):
        cfg = dataclasses.replace(TINY, speedup=text)
        atb.check_flags(cfg)
        assert atb.limit_of(cfg, {cfg.reference: 1.0}) == limit
    for text in ("-1e-1", "0e-1", "1e"):
        with pytest.raises(UserError, match="--speedup"):
            atb.check_flags(dataclasses.replace(TINY, speedup=text))


def test_describe(flags, capsys, clock):
    described = json.loads(run_here(["--describe", *flags, "--arch", "2-12-16-2-12"], capsys))
    assert described["parameters"] == sum(atb.parameters(atb.parse_arch("2-12-16-2-12"), 300).values())
    assert described["speedup"] > 0 and described["space"]["architectures"] == 2 * 5 * 9 * 4


def test_sizes_of_the_search_spaces():
    """App. B prints 46 M for pre-training and 10 M for distillation: evidently swapped."""
    sizes = [math.prod(map(len, atb.search_space(dataclasses.replace(BASE, setting=setting)).values()))
             for setting in ("mlm", "distill")]
    assert sizes == [11_391_072, 47_462_800]
