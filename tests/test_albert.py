"""albert.py: published counts, parity with transformers, LAMB, masking, sentence order, resuming, fine-tuning, errors."""
import ast
import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import albert
from common import weights as weight_files
from common.cli import UserError
from conftest import ROOT

TINY = albert.Config(vocab_size=60, layers=4, hidden=16, heads=2, ffn=32, embedding=8, dropout=0.0, positions=40, length=16)


def tiny(**changes):
    return dataclasses.replace(TINY, **changes)


def example(vocab=60, B=3, T=12):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocab, (B, T), generator=generator)
    lengths = torch.tensor([T, T - 3, T - 7])[:B]
    segments = (torch.arange(T) >= 5).long().expand(B, T).contiguous()
    return ids.masked_fill(torch.arange(T) >= lengths[:, None], 0), segments, lengths


# --- parameters ----------------------------------------------------------------------------------

COUNTS = [  # settings, A, B, C of the facts behind Tables 1, 3, 4, 12
    (albert.PRESETS["bert-base"], 108_490_752, 109_081_344, 109_705_010), (albert.PRESETS["bert-large"], 333_557_760, 334_607_360, 335_691_058),
    ({}, 11_092_992, 11_683_584, 11_813_810), (albert.PRESETS["large"], 16_634_368, 17_683_968, 17_847_474),
    (albert.PRESETS["xlarge"], 54_528_512, 58_724_864, 59_021_490), (albert.PRESETS["xxlarge"], 205_814_272, 222_595_584, 223_158_450),
    (dict(layers=3, hidden=6144, heads=96, ffn=24576), 457_763_328, 495_518_208, 496_347_314),
    (dict(share="none", embedding=64), 87_057_408, 87_648_000, 87_728_882), (dict(share="none"), 89_059_584, 89_650_176, 89_780_402),
    (dict(share="none", embedding=256), 93_063_936, 93_654_528, 93_883_442), (dict(embedding=64), 9_090_816, 9_681_408, 9_762_290),
    (dict(embedding=256), 15_097_344, 15_687_936, 15_916_850), (dict(embedding=768), 30_524_160, 31_114_752, 31_738_418),
    (dict(embedding=768, share="attention"), 82_487_808, 83_078_400, 83_702_066),
    (dict(embedding=768, share="ffn"), 56_527_104, 57_117_696, 57_741_362),
    (dict(share="attention"), 63_056_640, 63_647_232, 63_777_458), (dict(share="ffn"), 37_095_936, 37_686_528, 37_816_754)]


@pytest.mark.parametrize("settings, A, B, C", COUNTS)
def test_parameter_counts_to_the_unit(settings, A, B, C):
    found = albert.countings(albert.Config(**settings))
    assert (found["A"], found["B"], found["C"]) == (A, B, C)


def test_other_countings():
    wide = {name: albert.countings(albert.Config(**albert.PRESETS[name]))["D"] for name in ("base", "large", "xlarge", "xxlarge")}
    assert wide == {"base": 12_013_824, "large": 18_146_304, "xlarge": 59_715_584, "xxlarge": 224_643_072}
    groups = [round(albert.countings(albert.Config(groups=G))["B"] / 1e4) / 100 for G in (1, 2, 3, 4, 6, 12)]
    assert groups == [11.68, 18.77, 25.86, 32.95, 47.12, 89.65]
    settings = [settings for table, _, settings, _ in albert.PUBLISHED if table == "Table 3"]
    wide = [albert.countings(albert.Config(**each))["D"] for each in settings]
    assert wide == [88_011_264, 89_980_416, 93_918_720, 109_081_344, 10_044_672, 12_013_824, 15_952_128, 31_114_752]
    assert albert.countings(albert.Config(**albert.PUBLISHED[-1][2]))["D"] == 498_622_464  # H = 6144
    odd = [name for _, name, settings, size in albert.PUBLISHED
           if size not in [round(value / 1e6) for value in albert.countings(albert.Config(**settings)).values()]]
    assert odd == ["ALBERT xxlarge"] and len(albert.PUBLISHED) == 24
    with torch.device("meta"):
        cfg = albert.Config()
        assert albert.count(albert.LanguageModel(cfg)) == 11_813_810
        assert albert.count(albert.Classifier(cfg, 2)) == 11_685_122
        assert albert.count(albert.MultipleChoice(cfg)) == 11_684_353
        assert albert.count(albert.SpanModel(cfg)) == 11_094_530
        assert albert.count(albert.AnswerModel(cfg).answer) == 2_364_674
        assert albert.count(albert.AnswerModel(albert.Config(**albert.PRESETS["xxlarge"])).answer) == 67_137_538


# --- model ---------------------------------------------------------------------------------------

def test_untrained_loss_is_that_of_guessing():
    torch.manual_seed(0)
    cfg = albert.Config(layers=2, hidden=128, heads=2, ffn=256, dropout=0.0)
    ids = torch.randint(5, 30000, (4, 32))
    logits, order = albert.LanguageModel(cfg)(ids, torch.zeros_like(ids), None, torch.arange(32).expand(4, 32))
    loss = albert.mean_loss(logits.flatten(0, 1), ids.flatten()) + albert.mean_loss(order, torch.tensor([0, 1, 0, 1]))
    assert loss.item() == pytest.approx(math.log(30000) + math.log(2), abs=0.05)


@pytest.mark.parametrize("share, groups, blocks", [("all", 1, (1, 1)), ("all", 2, (2, 2)), ("attention", 1, (1, 4)), ("ffn", 2, (4, 2)),
                                                   ("none", 1, (4, 4))])
def test_layers_share_what_they_should(share, groups, blocks):
    encoder = albert.Encoder(tiny(share=share, groups=groups))
    assert (len(encoder.attentions), len(encoder.ffns)) == blocks
    used = Counter()
    for block in (*encoder.attentions, *encoder.ffns):
        block.register_forward_hook(lambda module, *_: used.update([module]))
    encoder(*example())
    assert sum(used.values()) == 8 and set(used.values()) <= {4 // blocks[0], 4 // blocks[1]}


def test_sharing_computes_what_equal_layers_compute():
    shared, apart = albert.Encoder(tiny()), albert.Encoder(tiny(share="none"))
    apart.load_state_dict({name: shared.state_dict()[name.replace(f"s.{name.split('.')[1]}.", "s.0.") if name[:4] in ("atte", "ffns") else name]
                           for name in apart.state_dict()})
    torch.testing.assert_close(shared(*example()), apart(*example()))


def test_padding_changes_nothing_and_recomputing_changes_no_gradient():
    torch.manual_seed(0)
    model = albert.LanguageModel(tiny())
    ids, segments, lengths = example()
    positions = torch.tensor([[1, 2], [3, 4], [0, 2]])
    logits, order = model(ids, segments, lengths, positions)
    for row, n in enumerate(lengths.tolist()):
        alone, alone_order = model(ids[row:row + 1, :n], segments[row:row + 1, :n], None, positions[row:row + 1])
        torch.testing.assert_close(alone[0], logits[row], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(alone_order[0], order[row], rtol=1e-5, atol=1e-6)
    (logits.sum() + order.sum()).backward()
    again = albert.LanguageModel(tiny(recompute=True))
    again.load_state_dict(model.state_dict())
    (sum(part.sum() for part in again(ids, segments, lengths, positions))).backward()
    for one, other in zip(model.parameters(), again.parameters()):
        torch.testing.assert_close(one.grad, other.grad)


def test_dropout_of_the_ffn_output_is_applied():
    torch.manual_seed(0)
    block = albert.FeedForward(tiny(dropout=0.5)).train()
    x = torch.randn(1, 4, 16)
    assert not torch.equal(block(x), block(x))
    albert.set_dropout(block, 0.0)
    assert torch.equal(block(x), block(x))


def formula_weights(shapes):
    """Weights that are a function of their names' order alone, so that expected numbers can be stored."""
    return {name: (torch.arange(math.prod(shape), dtype=torch.float64) * (0.37 + 0.011 * index)).sin().mul(0.4).float().view(shape)
            + (1.0 if name.endswith("norm.weight") else 0.0) for index, (name, shape) in enumerate(sorted(shapes.items()))}


def formula_model(kind, cfg, *args):
    model = kind(cfg, *args)
    model.load_state_dict(formula_weights({name: tuple(value.shape) for name, value in model.state_dict().items()}))
    return model.eval()


PARITY = tiny(embedding=8, groups=2)
STORED = json.loads((ROOT / "tests" / "albert_parity.json").read_text())  # by transformers 5.23.0, torch 2.13.0


def our_numbers():
    """Logits and losses of every head on one example; the same numbers were computed by transformers and stored."""
    ids, segments, lengths = example()
    labels = torch.where(torch.arange(12) % 3 == 1, ids, -100).masked_fill(torch.arange(12) >= lengths[:, None], -100)
    everywhere, order = torch.arange(12).expand(3, 12), torch.tensor([0, 1, 1])
    model = formula_model(albert.LanguageModel, PARITY)
    logits, order_logits = model(ids, segments, lengths, everywhere)
    result = {"pretraining": [logits, order_logits, albert.mean_loss(logits.flatten(0, 1), labels.flatten()) + albert.mean_loss(order_logits, order)]}
    result["masked"] = [logits, albert.mean_loss(logits.flatten(0, 1), labels.flatten())]
    batch = {"ids": ids, "segments": segments, "lengths": lengths, "labels": torch.tensor([2, 0, 1])}
    model = formula_model(albert.Classifier, PARITY, 3)
    result["classification"] = [model.predict(batch), model.loss(batch)]
    model = formula_model(albert.Classifier, PARITY, 1)
    result["regression"] = [model.predict(batch), model.loss({**batch, "labels": torch.tensor([2.5, 0.0, 1.0])})]
    model = formula_model(albert.MultipleChoice, PARITY)
    several = {"ids": ids[None], "segments": segments[None], "lengths": lengths[None], "labels": torch.tensor([1])}
    result["choice"] = [model.predict(several), model.loss(several)]
    model = formula_model(albert.SpanModel, PARITY)
    batch |= {"start": torch.tensor([2, 0, 1]), "end": torch.tensor([4, 0, 3])}
    result["span"] = [*model.predict(batch), model.loss(batch)]
    return result


@torch.no_grad()
def test_numbers_equal_those_that_transformers_gave():
    for kind, numbers in our_numbers().items():
        for ours, theirs in zip(numbers, STORED[kind], strict=True):
            theirs = torch.tensor(theirs)
            ours = ours[:, :theirs.shape[1], :theirs.shape[2]] if ours.dim() == 3 else ours  # a corner of the word logits is stored
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def their_numbers(transformers, folder):
    """our_numbers() from transformers, its models read from folders that --export's functions wrote."""
    ids, segments, lengths = example()
    mask = (torch.arange(12) < lengths[:, None]).long()
    labels = torch.where(torch.arange(12) % 3 == 1, ids, -100).masked_fill(mask == 0, -100)
    inputs, result = dict(input_ids=ids, token_type_ids=segments, attention_mask=mask), {}
    several = {name: value[None] for name, value in inputs.items()}
    spans = dict(start_positions=torch.tensor([2, 0, 1]), end_positions=torch.tensor([4, 0, 3]))
    for kind, ours, outputs, name, call, keys in (
            ("pretraining", albert.LanguageModel, 2, "AlbertForPreTraining",
             dict(inputs, labels=labels, sentence_order_label=torch.tensor([0, 1, 1])), ("prediction_logits", "sop_logits", "loss")),
            ("masked", albert.LanguageModel, 2, "AlbertForMaskedLM", dict(inputs, labels=labels), ("logits", "loss")),
            ("classification", albert.Classifier, 3, "AlbertForSequenceClassification",
             dict(inputs, labels=torch.tensor([2, 0, 1])), ("logits", "loss")),
            ("regression", albert.Classifier, 1, "AlbertForSequenceClassification",
             dict(inputs, labels=torch.tensor([2.5, 0, 1])), ("logits", "loss")),
            ("choice", albert.MultipleChoice, 1, "AlbertForMultipleChoice", dict(several, labels=torch.tensor([1])), ("logits", "loss")),
            ("span", albert.SpanModel, 2, "AlbertForQuestionAnswering", dict(inputs, **spans), ("start_logits", "end_logits", "loss"))):
        model = formula_model(ours, PARITY, outputs) if ours is albert.Classifier else formula_model(ours, PARITY)
        weight_files.write_weights(folder / "model.safetensors", albert.to_hf(model.state_dict(), PARITY))
        (folder / "config.json").write_text(json.dumps(albert.hf_config(PARITY, model.kind, outputs)))
        theirs, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["mismatched_keys"]
        found = theirs.eval()(**call)
        result[kind] = [found[key] for key in keys]
    return result


@torch.no_grad()
def test_parity_with_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face: pip install transformers")
    theirs = their_numbers(transformers, tmp_path)
    for kind, numbers in our_numbers().items():
        for ours, other in zip(numbers, theirs[kind], strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, dict(layers=6, groups=3), dict(embedding=16, mapping=True), dict(share="attention"),
                                      dict(share="ffn", groups=2),
                                      dict(embedding=16, share="none"), dict(activation="relu")])
@torch.no_grad()
def test_round_trip_through_a_hugging_face_state_dict(settings, tmp_path):
    cfg = tiny(**settings)
    torch.manual_seed(0)
    model = albert.LanguageModel(cfg).eval()
    weight_files.write_weights(tmp_path / "model.safetensors", albert.to_hf(model.state_dict(), cfg))
    (tmp_path / "config.json").write_text(json.dumps(albert.hf_config(cfg, "pretraining", 2)))
    shape = albert.read_shape(tmp_path)
    back = dataclasses.replace(cfg, **shape)
    again, lines = albert.LanguageModel(back).eval(), []
    albert.start_from(again, str(tmp_path), back, lines.append)
    assert "taken over: encoder, mlm, order, pooler; made anew: nothing" in lines[0]
    inputs = (*example(), torch.arange(12).expand(3, 12))
    for one, other in zip(model(*inputs), again(*inputs)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_parity_with_transformers_in_the_other_direction(tmp_path):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face: pip install transformers")
    torch.manual_seed(0)
    ids, segments, lengths = example()
    for act, E, groups in (("gelu_new", 8, 2), ("gelu", 16, 1)):
        config = transformers.AlbertConfig(vocab_size=60, embedding_size=E, hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
                                           intermediate_size=32, num_hidden_groups=groups, max_position_embeddings=40, hidden_act=act)
        theirs = transformers.AlbertForPreTraining(config).eval()
        theirs.save_pretrained(tmp_path)
        cfg = tiny(**albert.read_shape(tmp_path))
        ours = albert.LanguageModel(cfg).eval()
        albert.start_from(ours, str(tmp_path), cfg, print)
        logits, order = ours(ids, segments, lengths, torch.arange(12).expand(3, 12))
        found = theirs(input_ids=ids, token_type_ids=segments, attention_mask=(torch.arange(12) < lengths[:, None]).long())
        real = torch.arange(12) < lengths[:, None]
        torch.testing.assert_close(logits[real], found.prediction_logits[real], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(order, found.sop_logits, rtol=1e-5, atol=1e-5)
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")  # with the tied decoder in it
        (tmp_path / "model.safetensors").unlink()
        albert.start_from(ours, str(tmp_path), cfg, print)


def test_weight_files(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3), "c": torch.randn(5).bfloat16(), "d": torch.zeros(0, 4)}
    weight_files.write_weights(tmp_path / "x.safetensors", tensors)
    back = weight_files.read_weights(tmp_path / "x.safetensors")
    assert list(back) == list(tensors) and all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)
    cut = (tmp_path / "x.safetensors").read_bytes()[:-3]
    (tmp_path / "x.safetensors").write_bytes(cut)
    with pytest.raises(UserError, match="x.safetensors"):
        weight_files.read_weights(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="no model.safetensors"):
        weight_files.read_weights(tmp_path)
    torch.save([1], tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="pytorch_model.bin: this holds something else than tensors by name"):
        weight_files.read_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="index.json: no weight_map"):
        weight_files.read_weights(tmp_path)


def test_weights_that_do_not_fit_are_listed(tmp_path):
    model = albert.LanguageModel(TINY)
    state = albert.to_hf(model.state_dict(), TINY)
    state.pop("albert.embeddings.LayerNorm.bias")
    state["albert.embeddings.position_embeddings.weight"] = torch.zeros(7, 8)
    weight_files.write_weights(tmp_path / "model.safetensors", state)
    with pytest.raises(UserError, match=r"missing encoder.norm.bias; encoder.positions.weight is \(7, 8\) there, \(40, 8\) here"):
        albert.start_from(model, str(tmp_path), TINY, print)
    weight_files.write_weights(tmp_path / "model.safetensors", {**state, "albert.extra.weight": torch.zeros(1)})
    with pytest.raises(UserError, match="unexpected weights: albert.extra.weight"):
        albert.start_from(model, str(tmp_path), TINY, print)
    with pytest.raises(UserError, match="encoder.words.weight is not finite"):
        weight_files.write_weights(tmp_path / "model.safetensors", {**albert.to_hf(model.state_dict(), TINY),
                                   "albert.embeddings.word_embeddings.weight": torch.full((60, 8), math.nan)})
        albert.start_from(model, str(tmp_path), TINY, print)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", "vocab_size": 60}))
    with pytest.raises(UserError, match="lacks .*num_attention_heads"):
        albert.read_shape(tmp_path)


@pytest.mark.parametrize("change, message", [
    ({"num_attention_heads": 0}, "heads 0: sizes are"), ({"hidden_size": "16"}, "hidden '16': sizes are"), (5, "model_type is not albert"),
    ({"max_position_embeddings": None}, "positions None: sizes are"), ({"classifier_dropout_prob": 2}, "classifier_dropout 2: .*below 1"),
    ({"initializer_range": None}, "init_std None"), ({"hidden_act": ["gelu"]}, "hidden_act"), ({"max_position_embeddings": 7}, "is .40, 8. there, .7, 8. here")])
def test_configurations_that_make_no_sense(change, message, tmp_path):
    """Each ends in one line, whatever the action; the last fits no weights."""
    config = albert.hf_config(TINY, "pretraining", 2)
    (tmp_path / "config.json").write_text(json.dumps({**config, **change} if isinstance(change, dict) else change))
    weight_files.write_weights(tmp_path / "model.safetensors", albert.to_hf(albert.LanguageModel(TINY).state_dict(), TINY))
    with pytest.raises(UserError, match=message):
        run_main("--describe", "--init", tmp_path)
        cfg = tiny(**albert.read_shape(tmp_path))
        albert.start_from(albert.LanguageModel(cfg), str(tmp_path), cfg, print)


def test_a_strangers_model_file_is_refused(tmp_path):
    for content in ([1], {"weights": {}}):
        torch.save(content, tmp_path / "model.pt")
        with pytest.raises(UserError, match="model.pt: no model of albert.py"):
            run_main("--describe", "--init", tmp_path)
    torch.save({"kind": "pretraining", "outputs": 2, "weights": {}, "config": {"hidden": 24, "steps": 7}}, tmp_path / "model.pt")
    assert set(albert.read_shape(tmp_path)) == set(albert.MODEL_FIELDS)  # and no other setting can be slipped in


# --- figure 1 ------------------------------------------------------------------------------------

def test_untrained_shared_stack_converges_as_figure_1s_control_says():
    torch.manual_seed(0)
    encoder = albert.Encoder(albert.Config(**{**albert.PRESETS["large"], "layers": 12, "vocab_size": 1000, "dropout": 0.0}))
    for name, value in encoder.named_parameters():
        if value.dim() > 1:  # Hugging Face's plain normal, with which the expected numbers were measured
            torch.nn.init.normal_(value, std=0.02)
    ids = torch.randint(5, 1000, (1, 64))
    curve = albert.layer_distances(encoder, [(ids, torch.zeros_like(ids), torch.tensor([64]))])
    for layer, degrees, l2 in ((1, 29.4, 25.9), (2, 22.9, 12.7), (3, 19.0, 10.6), (4, 17.0, 9.4), (12, 8.4, 4.7)):
        assert curve[layer - 1]["degrees"] == pytest.approx(degrees, rel=0.15) and curve[layer - 1]["l2"] == pytest.approx(l2, rel=0.15)


def test_figure_1s_picture_has_both_measures(monkeypatch, tmp_path, corpus):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="draws: pip install matplotlib")
    from common import report
    drawn = []
    monkeypatch.setattr(report, "draw_figure", lambda path, draw: drawn.append(draw) or "")
    run_main("--analyze", "layers", *SMALL, "--corpus", corpus, "--out", tmp_path)
    figure, axes = pyplot.subplots()
    drawn[0](axes)
    assert [(len(side.lines), side.get_ylabel()[:8]) for side in figure.axes] == [(1, "L2 dista"), (1, "their an")]


# --- LAMB and the schedule -----------------------------------------------------------------------

def numpy_lamb(weights, gradients, lrs, bias_correction=False, adapt=True):
    """The update of ALBERT's lamb_optimizer.py in numpy, tensor by tensor."""
    state = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items()}
    for t, (step, lr) in enumerate(zip(gradients, lrs), 1):
        for name, g in step.items():
            m, v = state[name]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            state[name] = m, v
            if bias_correction:
                m, v = m / (1 - 0.9 ** t), v / (1 - 0.999 ** t)
            u, w = m / (np.sqrt(v) + 1e-6), weights[name]
            excluded = "bias" in name or "norm" in name
            if not excluded:
                u = u + 0.01 * w
            wn, un = np.linalg.norm(w), np.linalg.norm(u)
            ratio = wn / un if wn > 0 and un > 0 and adapt and not excluded else 1.0
            weights[name] = w - lr * ratio * u
    return weights


@pytest.mark.parametrize("bias_correction, adapt", [(False, True), (True, True), (False, False)])
def test_lamb_is_its_numpy_transcription(bias_correction, adapt):
    torch.manual_seed(0)
    model = albert.LanguageModel(tiny()).double()
    torch.nn.init.zeros_(model.order.weight)  # a norm of 0: the ratio is 1
    optimizer = albert.Lamb(model.parameters(), lr=0.1, bias_correction=bias_correction, adapt=adapt)
    assert [len(group["params"]) for group in optimizer.param_groups] == [13, 19]
    weights = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    gradients, lrs, shapes = [], [0.01 * albert.schedule(step, 20, 5) for step in range(20)], {name: value.shape for name, value in weights.items()}
    for lr in lrs:
        gradients.append({name: torch.randn(shape, dtype=torch.float64).numpy() for name, shape in shapes.items()})
        for name, value in model.named_parameters():
            value.grad = torch.from_numpy(gradients[-1][name].copy())
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    expected = numpy_lamb(weights, gradients, lrs, bias_correction, adapt)
    for name, value in model.named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), expected[name], atol=1e-6, rtol=1e-6)


def test_schedule_is_the_official_one():
    lr = [1.76e-3 * albert.schedule(step, 125000, 3125) for step in (0, 3124, 3125, 62500, 125000)]
    assert lr == pytest.approx([0, 0.0017594, 0.0017160, 0.00088, 0], abs=5e-8)
    rates = [albert.peak_rate(albert.Config(batch=batch)) for batch in (64, 256, 512, 1024, 4096)]
    assert rates == pytest.approx([2.2e-4, 4.4e-4, 6.22e-4, 8.8e-4, 1.76e-3], rel=1e-3)
    assert albert.peak_rate(albert.Config(batch=64, lr_batch=0)) == 1.76e-3
    assert albert.warmup_updates(0.1, 50) == 5 and albert.warmup_updates(3125.0, 50) == 3125


# --- objective -----------------------------------------------------------------------------------

class FakeTokenizer:
    vocab_size, pad_id, cls_id, sep_id, mask_id = 1000, 0, 2, 3, 4
    starts_word = np.arange(1000) % 3 != 0  # every third piece continues a word


def text_batch(rows, T=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 1000, (rows, T), generator=generator)
    ids[:, 0], ids[:, 30], ids[:, -1] = 2, 3, 3
    return ids, (torch.arange(T) > 30).long().expand(rows, T).contiguous(), generator


def test_ngram_lengths_follow_the_papers_distribution():
    n = 100_000
    counts = torch.bincount(albert.ngram_lengths((n,), 3, torch.Generator().manual_seed(0)), minlength=4)
    for length, share in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        assert abs(counts[length].item() - n * share) < 4 * math.sqrt(n * share * (1 - share))
    assert counts[0] == 0 and counts.sum() == n
    assert albert.ngram_lengths((50,), 1, torch.Generator()).unique().tolist() == [1]


def masked_runs(chosen, ids, segments):
    """Lengths, in words, of the chosen n-grams of a batch in which no two n-grams touch; a check that words are whole."""
    words = (torch.from_numpy(FakeTokenizer.starts_word)[ids] | ~torch.nn.functional.pad(ids > 4, (1, 0))[:, :-1]) & (ids > 4)
    number = words.cumsum(1)
    for row in range(len(ids)):
        for word in number[row, chosen[row]].unique():
            whole = (number[row] == word) & (ids[row] > 4)
            assert chosen[row, whole].all()
    return words


def test_masked_ngrams_are_whole_words_of_one_segment():
    ids, segments, generator = text_batch(3000)
    budget = torch.full((3000,), 3)
    chosen = albert.pick_ngrams(ids, segments, FakeTokenizer, budget, 3, generator)
    assert not chosen[:, [0, 30, 63]].any() and chosen.sum(1).max() <= 3
    masked_runs(chosen[:400], ids[:400], segments[:400])
    full = albert.pick_ngrams(ids, segments, FakeTokenizer, torch.full((3000,), 10), 3, generator)
    assert (full.sum(1) == 10).float().mean() > 0.95  # single pieces are common enough to fill what is left
    masked_runs(full[:400], ids[:400], segments[:400])
    # one n-gram a row: a budget that the first one spends or nearly so; words of one piece, so its length in words is what was drawn
    single = FakeTokenizer.starts_word[ids.numpy()].all()
    assert not single
    ids = torch.where(ids > 4, (ids // 3) * 3 + 1, ids).clamp(max=997)
    one = albert.pick_ngrams(ids, segments, FakeTokenizer, torch.full((3000,), 1), 3, generator)
    assert (one.sum(1) == 1).all()
    place = one.int().argmax(1)
    assert place.unique().numel() == 61  # every place of text, none of the special pieces


def test_neighbouring_words_are_masked_together_more_often_than_by_chance():
    ids, segments, generator = text_batch(4000)
    ids = torch.where(ids > 4, (ids // 3) * 3 + 1, ids).clamp(max=997)
    together = {}
    for longest in (1, 3):
        chosen = albert.pick_ngrams(ids, segments, FakeTokenizer, torch.full((4000,), 6), longest, generator)
        assert (chosen.sum(1) == 6).all()
        together[longest] = (chosen[:, 1:] & chosen[:, :-1]).float().mean().item()
    assert together[3] > 3 * together[1]
    assert together[1] == pytest.approx(6 / 61 * 5 / 60 * 59 / 63, rel=0.1)  # places drawn without n-grams


def test_masking_is_80_10_10():
    ids, segments, generator = text_batch(3000)
    cfg = albert.Config(length=64)
    changed, positions, labels = albert.mask_tokens(ids, segments, FakeTokenizer, cfg, generator)
    assert positions.shape == (3000, 10)
    used = labels != -100
    originals, now = ids.gather(1, positions), changed.gather(1, positions)
    assert torch.equal(labels[used], originals[used]) and (labels[used] > 4).all() and used.float().mean() > 0.98
    n, masked, kept = used.sum().item(), (now[used] == 4).sum().item(), (now == originals)[used].sum().item()
    assert abs(masked - 0.8 * n) < 4 * math.sqrt(0.16 * n) + n / 1000 and abs(kept - 0.1 * n) < 4 * math.sqrt(0.09 * n) + n / 1000
    untouched = torch.ones_like(ids, dtype=torch.bool).scatter(1, positions, ~used)
    assert torch.equal(changed[untouched], ids[untouched])
    assert albert.predictions(albert.Config()) == 77 and albert.predictions(albert.Config(max_predictions=20)) == 20
    assert albert.predictions(albert.Config(length=128, max_predictions=20)) == 19


@dataclasses.dataclass
class FakeSegments:
    first: torch.Tensor
    first_length: torch.Tensor
    second: torch.Tensor
    second_length: torch.Tensor
    other: torch.Tensor
    other_length: torch.Tensor


def fake_segments(rows=600):
    """The first 400 rows have two parts, the next 199 are one run, the last is a single piece."""
    first = torch.tensor([[10, 11, 12, 0, 0, 0]]).repeat(rows, 1)
    second = torch.tensor([[20, 21, 0, 0, 0, 0]]).repeat(rows, 1)
    two = torch.arange(rows) < 400
    first_length = torch.where(torch.arange(rows) == rows - 1, 1, 3)
    return FakeSegments(first, first_length, second, 2 * two.long(), torch.full_like(first, 30), torch.full((rows,), 3))


def test_sentence_order_labels_are_never_wrong():
    ids, kinds, lengths, labels = albert.sentence_pairs(fake_segments(), FakeTokenizer, "sop", torch.Generator().manual_seed(0))
    ordered, swapped = (labels[:400] == value for value in (0, 1))
    assert 0.4 < swapped.float().mean() < 0.6 and (ordered | swapped).all()
    assert (ids[:400][ordered] == torch.tensor([2, 10, 11, 12, 3, 20, 21, 3, 0])).all()
    assert (ids[:400][swapped] == torch.tensor([2, 20, 21, 3, 10, 11, 12, 3, 0])).all()
    assert (kinds[:400][ordered] == torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 0])).all()
    assert (kinds[:400][swapped] == torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 0])).all()
    assert (labels[400:] == -100).all() and (ids[400:-1] == torch.tensor([2, 10, 11, 12, 3, 0, 0, 0, 0])).all()  # D1
    assert (kinds[400:] == 0).all() and (lengths[400:-1] == 5).all() and (lengths[:400] == 8).all()


def test_nsp_and_no_objective():
    ids, _, _, labels = albert.sentence_pairs(fake_segments(), FakeTokenizer, "nsp", torch.Generator().manual_seed(0))
    assert (labels[400:] == -100).all() and 0.4 < labels[:400].float().mean() < 0.6
    assert (ids[:400][labels[:400] == 0] == torch.tensor([2, 10, 11, 12, 3, 20, 21, 3, 0])).all()
    assert (ids[:400][labels[:400] == 1] == torch.tensor([2, 10, 11, 12, 3, 30, 30, 30, 3])).all()
    ids, _, _, labels = albert.sentence_pairs(fake_segments(), FakeTokenizer, "none", torch.Generator().manual_seed(0))
    assert (labels == -100).all() and (ids[:400] == torch.tensor([2, 10, 11, 12, 3, 20, 21, 3, 0])).all()


@pytest.mark.parametrize("objective, least, most", [("sop", 0.95, 1.0), ("shuffled", 0.3, 0.7)])
def test_order_is_learnt_from_true_labels_and_not_from_shuffled_ones(objective, least, most):
    """Segments whose words tell which comes first: the whole way from segments over masking to the order head."""
    torch.manual_seed(0)
    cfg = tiny(vocab_size=1000, layers=2, length=15, init_std=0.15)
    model, generator = albert.LanguageModel(cfg), torch.Generator().manual_seed(0)
    optimizer = albert.Lamb(model.parameters(), 0.005, bias_correction=True)

    def batch(objective, rows):
        six = torch.full((rows,), 6)
        texts = [torch.randint(low, low + 40, (rows, 12), generator=generator) for low in (100, 200, 300)]
        segments = FakeSegments(texts[0], six, texts[1], six, texts[2], six)
        ids, kinds, lengths, order = albert.sentence_pairs(segments, FakeTokenizer, objective, generator)
        ids, positions, _ = albert.mask_tokens(ids, kinds, FakeTokenizer, cfg, generator)
        return (ids, kinds, lengths, positions), order

    for _ in range(120):
        inputs, order = batch(objective, 32)
        albert.mean_loss(model(*inputs)[1], order).backward()
        optimizer.step()
        optimizer.zero_grad()
    inputs, order = batch("sop", 256)
    with torch.no_grad():
        assert least <= (model(*inputs)[1].argmax(1) == order).float().mean().item() <= most


# --- training ------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A small prepared corpus with its tokenizer: 60 documents of numbered sentences, in which order can be told."""
    from common.corpus import prepare_corpus
    from common.tokenization import load_tokenizer, train_sentencepiece
    folder, rng = tmp_path_factory.mktemp("albert"), np.random.default_rng(0)
    words = ["stone", "river", "lamp", "green", "small", "house", "winter", "paper", "garden", "quiet", "early", "bread", "north", "letter"]
    lines = []
    for _ in range(60):
        lines += [f"{name} the {rng.choice(words)} {rng.choice(words)} was {rng.choice(words)}."
                  for name in ("First", "Second", "Then", "After", "Finally")] + [""]
    (folder / "text.txt").write_text("\n".join(lines))
    tokenizer = load_tokenizer(train_sentencepiece([folder / "text.txt"], folder / "corpus" / "spiece.model", 50))
    prepare_corpus([folder / "text.txt"], tokenizer, folder / "corpus", progress=False)
    return folder / "corpus"


SMALL = ["--layers", "2", "--hidden", "16", "--heads", "2", "--ffn", "32", "--embedding", "8", "--length", "32", "--batch", "8", "--steps", "6",
         "--save_every", "2", "--eval_every", "100", "--dev_rows", "16", "--positions", "64", "--device", "cpu"]


def run_main(*words):
    assert albert.main([str(word) for word in words]) == 0


def pretrain(corpus, out, *words):
    run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", out, *words)
    return torch.load(out / "model.pt", weights_only=True)["weights"]


def test_kill_and_resume_equals_an_uninterrupted_run(corpus, tmp_path, monkeypatch):
    whole = pretrain(corpus, tmp_path / "whole", "--dropout", "0.1", "--dropout_steps", "5")
    calls, real = [], albert.language_batch

    def killed(*args):
        calls.append(1)
        if len(calls) == 5:  # in update 5, after the checkpoint of update 4
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(albert, "language_batch", killed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(corpus, tmp_path / "parts", "--dropout", "0.1", "--dropout_steps", "5")
    parts = pretrain(corpus, tmp_path / "parts", "--dropout", "0.1", "--dropout_steps", "5")
    assert len(calls) > 6 and all(torch.equal(whole[name], parts[name]) for name in whole)
    logged = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in logged if line.get("phase") == "pretrain") == 6
    before = (tmp_path / "whole" / "model.pt").stat().st_mtime_ns
    pretrain(corpus, tmp_path / "whole", "--dropout", "0.1", "--dropout_steps", "5")
    assert (tmp_path / "whole" / "model.pt").stat().st_mtime_ns == before  # finished: says so and does nothing
    with pytest.raises(UserError, match="steps"):
        run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", tmp_path / "whole", "--steps", "7")


def test_a_kill_at_an_evaluation_loses_none(corpus, tmp_path, monkeypatch):
    calls, real = [], albert.evaluate_language_model

    def killed(*args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(albert, "evaluate_language_model", killed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(corpus, tmp_path / "run", "--eval_every", "2")
    pretrain(corpus, tmp_path / "run", "--eval_every", "2")
    logged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if line.get("phase") == "dev"] == [2, 4, 6]


def test_evaluation_says_how_much_it_scored_and_is_the_same_for_every_seed(corpus, monkeypatch):
    from common.corpus import Corpus
    from common.distributed import Ranks
    from common.inputs import Text
    from common.tokenization import load_tokenizer
    tokenizer, ranks = load_tokenizer(corpus), Ranks(0, 1, torch.device("cpu"))
    text, cfg = Text(tokenizer, *Corpus(corpus, tokenizer).split()), tiny(layers=1, vocab_size=50, length=32, dev_rows=16)
    model = albert.LanguageModel(cfg)
    found = [albert.evaluate_language_model(model, text, dataclasses.replace(cfg, seed=seed), ranks) for seed in (0, 1)]
    assert found[0] == found[1] and 16 < found[0]["scored"]["mlm"] <= 80 and 0 < found[0]["scored"]["sop"] <= 16
    real = albert.sentence_pairs
    monkeypatch.setattr(albert, "sentence_pairs", lambda *args: (*real(*args)[:3], torch.full((16,), -100)))
    blind = albert.evaluate_language_model(model, text, cfg, ranks)
    assert blind["sop"] is None and blind["scored"] == {**found[0]["scored"], "nsp": 0, "sop": 0} and blind["mlm"] == found[0]["mlm"]


def test_a_dry_run_is_small_on_any_number_of_processes(corpus, tmp_path):
    from common.distributed import Ranks
    for processes, batch in ((1, 8), (16, 128)):
        cfg = albert.Config(dry_run=True)
        albert.check_pretraining(cfg, Ranks(0, processes, torch.device("cpu")))
        assert cfg.batch == batch
    run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", f"{tmp_path}/run/", "--dry_run")
    assert (tmp_path / "run-dry" / "done.json").exists()


def test_accumulated_parts_give_the_same_update_as_processes(corpus, tmp_path):
    """One process with two parts a batch, and two processes: the same weights to rounding."""
    one = pretrain(corpus, tmp_path / "one", "--accumulate", "2", "--recompute")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", ROOT / "albert.py", "--pretrain", *SMALL,
               "--corpus", corpus, "--out", tmp_path / "two", "--accumulate", "2", "--recompute"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    two = torch.load(tmp_path / "two" / "model.pt", weights_only=True)["weights"]
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
    results = [json.loads((tmp_path / run / "done.json").read_text()) for run in ("one", "two")]
    assert results[0]["steps"] == 6 and results[0]["mlm"] == pytest.approx(results[1]["mlm"], abs=1.0)


def test_depth_warm_start_takes_everything_over(corpus, tmp_path, capsys):
    shallow = pretrain(corpus, tmp_path / "shallow")
    deep = pretrain(corpus, tmp_path / "deep", "--init", tmp_path / "shallow", "--layers", "4", "--lr", "1e-30")
    assert "taken over: encoder, mlm, order, pooler; made anew: nothing; left out: nothing" in capsys.readouterr().out
    assert all(torch.allclose(shallow[name], deep[name]) for name in shallow)
    assert json.loads((tmp_path / "deep" / "config.json").read_text())["settings"]["layers"] == 4


def test_a_diverged_run_ends_in_one_line(corpus, tmp_path):
    with pytest.raises(UserError, match="not finite at update .*--lr"):
        pretrain(corpus, tmp_path / "out", "--lr", "1e30", "--warmup", "1")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Tiny CoLA, MNLI, RTE, SQuAD v1.1 and v2.0, and RACE in their official layouts."""
    folder = tmp_path_factory.mktemp("tasks")
    for task in ("CoLA", "MNLI", "RTE"):
        (folder / "glue" / task).mkdir(parents=True)
    for split in ("train", "dev"):
        rows = [f"s\t{i % 2}\t\tthe {('quiet lamp', 'stone river')[i % 2]} was small {i}\n" for i in range(24)]
        (folder / "glue" / "CoLA" / f"{split}.tsv").write_text("".join(rows))
    rows = [f"{i}\tthe {('quiet lamp', 'stone river')[i % 2]}\n" for i in range(6)]
    (folder / "glue" / "CoLA" / "test.tsv").write_text("index\tsentence\n" + "".join(rows))
    names = ("contradiction", "entailment", "neutral")
    for split in ("train", "dev_matched", "dev_mismatched"):
        rows = ["\t".join(["x"] * 8 + ["the stone was small", "the lamp was green", names[i % 3]]) for i in range(12)]
        (folder / "glue" / "MNLI" / f"{split}.tsv").write_text("\n".join(["\t".join("h" * 11), *rows]) + "\n")
    for split in ("train", "dev"):
        rows = [f"{i}\tthe stone was small\tthe lamp\t{('entailment', 'not_entailment')[i % 2]}" for i in range(10)]
        (folder / "glue" / "RTE" / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")
    context, squad = "The stone river was small. The winter house was green. The quiet lamp was early.", folder / "squad"
    squad.mkdir()
    for version in ("1.1", "2.0"):
        for split in ("train", "dev"):
            asked = [{"id": f"q{i}", "question": "what was green?", "answers": [{"text": "winter house", "answer_start": context.index("winter")}],
                      "is_impossible": False} for i in range(6)]
            if version == "2.0":
                asked += [{"id": f"n{i}", "question": "what was bread?", "answers": [], "is_impossible": True} for i in range(6)]
            content = {"version": version, "data": [{"title": "t", "paragraphs": [{"context": context, "qas": asked}]}]}
            (squad / f"{split}-v{version}.json").write_text(json.dumps(content))
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            (folder / "race" / split / level).mkdir(parents=True)
            lines = [{"id": f"{level}{i}", "article": "The stone was small.", "questions": ["the lamp was _ ."],
                      "options": [["green", "small", "quiet", "early"]], "answers": ["A"]} for i in range(4)]
            (folder / "race" / split / level / "all.txt").write_text("\n".join(map(json.dumps, lines)))
    return folder


FAST = ["--finetune_epochs", "2", "--finetune_batch", "4", "--finetune_lr", "1e-3", "--finetune_length", "48",
        "--evaluations", "2", "--device", "cpu"]


def test_finetuning_every_kind_of_task(corpus, tasks, tmp_path, capsys):
    pretrain(corpus, tmp_path / "lm")
    data = ["--glue", tasks / "glue", "--squad", tasks / "squad", "--race", tasks / "race"]
    names = ("CoLA", "MNLI", "RTE", "SQuAD1.1", "SQuAD2.0", "RACE")
    for seed in (0, 1):
        run_main("--finetune", ",".join(names), *FAST, *data, "--init", tmp_path / "lm", "--out", tmp_path / f"ft{seed}",
                 "--runs", "2" if seed else "1", "--mnli_start", "--seed", seed)
    out = capsys.readouterr().out
    assert "RTE, run 1: " in out and "made anew: head (3 outputs there, 2 here)" in out  # from this command's MNLI model
    result = json.loads((tmp_path / "ft1" / "done.json").read_text())["tasks"]
    assert set(result) == set(names) and all(len(line["runs"]) == 2 and not line["diverged"] for line in result.values())
    assert result["CoLA"]["median"]["matthews"] == pytest.approx(np.median(result["CoLA"]["runs"]))
    assert {"f1", "exact"} <= set(result["SQuAD1.1"]["median"]) and "null_threshold" in result["SQuAD2.0"]["median"]
    assert {"middle", "high", "test middle", "test accuracy"} <= set(result["RACE"]["median"])
    assert "dev_mismatched accuracy" in result["MNLI"]["median"]
    assert (tmp_path / "ft1" / "CoLA" / "CoLA.tsv").read_text().startswith("index\tprediction\n0\t")
    answers, odds, limit = (json.loads((tmp_path / "ft1" / "SQuAD2.0" / f"{name}.json").read_text())
                            for name in ("predictions", "null_odds", "null_threshold"))
    assert set(answers) == {f"{kind}{i}" for kind in "qn" for i in range(6)} and all((odds[key] > limit) == (answers[key] == "") for key in answers)
    run_main("--finetune", ",".join(names), *FAST, *data, "--out", tmp_path / "both", "--ensemble", tmp_path / "ft0", tmp_path / "ft1")
    averaged = sum(torch.load(tmp_path / run / "CoLA" / "predictions.pt")["test"] / 2 for run in ("ft0", "ft1"))
    expected = "".join(f"{i}\t{row.argmax().item()}\n" for i, row in enumerate(averaged))
    assert (tmp_path / "both" / "CoLA" / "CoLA.tsv").read_text() == "index\tprediction\n" + expected
    for task, name in (("CoLA", "AlbertForSequenceClassification"), ("SQuAD1.1", "AlbertForQuestionAnswering"), ("SQuAD2.0", "AlbertModel")):
        run_main("--export", tmp_path / "hf" / task, "--init", tmp_path / "ft0" / task)
        assert json.loads((tmp_path / "hf" / task / "config.json").read_text())["architectures"] == [name]
    hf = tmp_path / "hf"
    for target, source, name in ((hf / "RACE", tmp_path / "ft0" / "RACE", "AlbertForMultipleChoice"),
                                 (hf / "again", hf / "RACE", "AlbertForMultipleChoice"), (hf / "bare", hf / "SQuAD2.0", "AlbertModel")):
        run_main("--export", target, "--init", source)
        assert json.loads((target / "config.json").read_text())["architectures"] == [name]
    for folder in (tmp_path / "lm", hf / "RACE"):
        with pytest.raises(UserError, match="a model or a run is there"):
            run_main("--export", folder, "--init", folder)
    with pytest.raises(UserError, match="--ensemble, which trains nothing"):
        run_main("--finetune", "CoLA", *FAST, *data, "--ensemble", tmp_path / "ft0", "--init", tmp_path / "lm")
    model = albert.Classifier(tiny(layers=2, vocab_size=50, positions=64), 2)  # the head of another task of as many classes
    lines, cfg = [], tiny(layers=2, vocab_size=50, positions=64)
    for task in ("CoLA", "RTE"):
        albert.start_from(model, tmp_path / "ft0" / "CoLA", cfg, lines.append, task)
    assert "taken over: encoder, head, pooler" in lines[0] and "taken over: encoder, pooler; made anew: head" in lines[1]
    shutil.copytree(tasks / "glue", tmp_path / "glue")
    dev = (tmp_path / "glue" / "CoLA" / "dev.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "glue" / "CoLA" / "dev.tsv").write_text("".join(dev[::-1]))
    with pytest.raises(UserError, match="its predictions on CoLA are for other data"):
        run_main("--finetune", "CoLA", *FAST, "--glue", tmp_path / "glue", "--out", tmp_path / "other", "--ensemble", tmp_path / "ft0", tmp_path / "ft1")
    with pytest.raises(UserError, match="a run of --finetune; name one of its models: .*CoLA"):
        run_main("--export", tmp_path / "hf", "--init", tmp_path / "ft0")


def test_finetuning_resumes_to_the_same_result(corpus, tasks, tmp_path, monkeypatch):
    pretrain(corpus, tmp_path / "lm")
    words = ["--finetune", "CoLA", *FAST, "--glue", tasks / "glue", "--init", tmp_path / "lm", "--finetune_dropout", "0.1", "--accumulate", "2"]
    run_main(*words, "--out", tmp_path / "whole")
    calls, real = [], albert.pieces_of

    def killed(*args):
        calls.append(1)
        if len(calls) == 9:  # of 12 updates; the checkpoint is update 6's
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(albert, "pieces_of", killed)
    with pytest.raises(KeyboardInterrupt):
        run_main(*words, "--out", tmp_path / "parts")
    run_main(*words, "--out", tmp_path / "parts")
    assert len(calls) == 9 + 6
    one, two = (torch.load(tmp_path / run / "CoLA" / "model.pt")["weights"] for run in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (tmp_path / "whole" / "CoLA" / "result.json").read_text() == (tmp_path / "parts" / "CoLA" / "result.json").read_text()


def test_spans_where_batches_are_padded_beyond_the_longest_window(corpus, tasks):
    from common import squad
    from common.tokenization import load_tokenizer
    cfg, examples = tiny(vocab_size=50, positions=256), squad.load(tasks / "squad" / "dev-v1.1.json")
    asked = [[example._replace(text=example.text + " the" * more) for example in examples] for more in (0, 1)]
    several = [squad.features(questions, load_tokenizer(corpus), 256) for questions in asked]
    features = next(found for found in several if found.lengths.max() % 8)  # batches are padded to a multiple of 8
    found = albert.predict(albert.SpanModel(cfg), "SQuAD1.1", features, cfg, 4, torch.device("cpu"))
    assert set(found["nbest"]) == {example.id for example in examples}


def test_rows_are_thinned_out_evenly():
    from common.glue import Examples
    assert albert.thin_out("RACE", list(range(10)), 4) == [0, 2, 5, 7] and albert.thin_out("RACE", [1, 2], 4) == [1, 2]
    found = albert.thin_out("CoLA", Examples(list("abcdefghij"), None, np.arange(10), None), 4)
    assert (found.first, found.second, found.labels.tolist()) == (["a", "c", "f", "h"], None, [0, 2, 5, 7])


def test_questions_that_all_have_answers_need_no_threshold(tasks):
    from common import squad
    questions = [question for question in squad.load(tasks / "squad" / "dev-v2.0.json") if question.answers]
    found = {"nbest": {question.id: [{"text": "winter house"}] for question in questions}, "null_odds": {question.id: 9.0 for question in questions}}
    metrics = albert.score("SQuAD2.0", questions, found)
    assert metrics["main"] == metrics["f1"] == 100.0 and "null_threshold" not in metrics


def test_a_diverged_fine_tuning_scores_below_all_and_is_said(corpus, tasks, tmp_path, capsys):
    pretrain(corpus, tmp_path / "lm")
    run_main("--finetune", "CoLA", *FAST, "--glue", tasks / "glue", "--init", tmp_path / "lm", "--out", tmp_path / "ft", "--finetune_lr", "1e30")
    out = capsys.readouterr().out
    assert "a prediction on CoLA is not finite" in out and "(1 runs, 1 diverged)" in out
    line = json.loads((tmp_path / "ft" / "done.json").read_text())["tasks"]["CoLA"]
    assert line["runs"] == [-100.0] and line["diverged"] == 1 and not (tmp_path / "ft" / "CoLA" / "model.pt").exists()


def test_ensembles_of_spans_average_what_several_models_propose():
    def member(first, second, share, odds):
        spans = [{"text": first, "score": 1.0, "probability": share}, {"text": second, "score": 0.0, "probability": 1 - share}]
        return {"nbest": {"q": spans}, "null_odds": {"q": odds}}

    members = [member("a", "b", 0.7, 1.0), member("b", "a", 0.9, -2.0)]
    found = albert.average_predictions("SQuAD2.0", members)
    assert [(span["text"], span["probability"]) for span in found["nbest"]["q"]] == [("b", pytest.approx(0.6)), ("a", pytest.approx(0.4))]
    assert found["null_odds"] == {"q": -0.5}


def test_beam_search_of_the_answer_head_is_exhaustive_where_it_is_wide_enough():
    torch.manual_seed(0)
    model = albert.AnswerModel(tiny(), beams=12).eval()
    ids, segments, lengths = example()
    p_mask = (torch.arange(12) >= lengths[:, None]) | ((torch.arange(12) > 0) & (torch.arange(12) < 5))
    batch = {"ids": ids, "segments": segments, "lengths": lengths, "p_mask": p_mask}
    starts, ends, scores, null = model.predict(batch)
    x, start, _ = model.read(batch)
    for row in range(3):
        for s in (0, 6):  # the loss's score of a span, given its start, is the beam's
            if p_mask[row, s]:
                continue
            end = model.end_logits(x, torch.full((3, 1), s), p_mask)[row, 0].log_softmax(-1)
            found = scores[row][(starts[row] == s) & (ends[row] == 0)]
            torch.testing.assert_close(found, (start[row].log_softmax(-1)[s] + end[0])[None], rtol=1e-5, atol=1e-5)
    assert scores.shape == (3, 144) and null.shape == (3,)
    whole = torch.cat([x, x[:, 6:7].expand_as(x)], dim=-1)  # the map of [token; start] as it is written in the paper's sources
    mixed = model.answer["end_norm"](torch.tanh(model.answer["end_mix"](whole)))
    torch.testing.assert_close(model.end_logits(x, torch.full((3, 1), 6), p_mask)[:, 0],
                               model.answer["end"](mixed)[..., 0].masked_fill(p_mask, -1e30), rtol=1e-5, atol=1e-5)


def test_paper_average_averages_squads_two_numbers_first():
    results = {"SQuAD1.1": {"f1": 89.3, "exact": 82.3}, "SQuAD2.0": {"f1": 80.0, "exact": 77.1}, "MNLI": {"accuracy": 81.6},
               "SST-2": {"accuracy": 90.3}, "RACE": {"accuracy": 64.0}}
    assert albert.paper_average({name: {"median": line} for name, line in results.items()}) == pytest.approx(80.05)  # Table 2: 80.1
    assert albert.paper_average({}) is None


def test_recipes_are_table_14():
    cfg = albert.Config()
    assert albert.recipe_of("RTE", 2490, cfg) == albert.Recipe(3e-5, 32, 0.1, 0.1, 800, 200, 512)
    assert albert.recipe_of("SQuAD1.1", 1, cfg) == albert.Recipe(5e-5, 48, 0.0, 0.1, 3649, 365, 384)
    shorter = albert.recipe_of("RTE", 100, dataclasses.replace(cfg, finetune_epochs=2, finetune_batch=10))
    assert (shorter.steps, shorter.warmup) == (20, 5)  # the warm-up keeps its share
    assert albert.recipe_of("RTE", 2490, dataclasses.replace(cfg, finetune_warmup=300)).warmup == 300


# --- mistakes ------------------------------------------------------------------------------------

@pytest.mark.parametrize("words, message", [
    (["--describe", "--embedding", "256"], "embedding 256 is larger than hidden 96"),
    (["--describe", "--groups", "3"], "groups 3 do not divide the 4 layers"),
    (["--describe", "--share", "some"], "share 'some'"),
    (["--describe", "--heads", "5"], "hidden 96 is no multiple of heads 5"),
    (["--pretrain", "--length", "600"], "--length 600"),
    (["--pretrain", "--batch", "10", "--accumulate", "4"], "--batch 10 is no multiple of its 4 parts"),
    (["--pretrain", "--objective", "order"], "--objective order: choose"),
    (["--finetune", "CoLa,xyz"], "xyz: there is no such task"),
    (["--finetune", "CoLA"], "--finetune needs --init"),
    (["--analyze", "width"], "--analyze width"),
    (["--export", "x"], "--export needs --init"),
    (["--pretrain", "--warmup", "50", "--steps", "40"], "--warmup 50: more than --steps 40"),
    (["--analyze", "speed", "--length", "600"], "--length 600"),
    (["--analyze", "layers", "--length", "600"], "--length 600"),
    (["--describe", "--init", "nowhere"], "nowhere: no model is here"),
])
def test_mistakes_end_in_one_line(words, message, tmp_path, monkeypatch, tasks):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as found:
        albert.main(words + (["--glue", str(tasks / "glue")] if "--finetune" in words else []))
    assert message in str(found.value) and "\n" not in str(found.value)


def test_a_corpus_of_single_sentences_and_a_misplaced_answer(corpus, tasks, tmp_path):
    from common.corpus import prepare_corpus
    from common.tokenization import load_tokenizer
    folder = tmp_path / "lone"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text("the stone river was small.")
    tokenizer = load_tokenizer(corpus)
    tokenizer.save(tmp_path / "prepared")
    prepare_corpus([folder], tokenizer, tmp_path / "prepared", progress=False)
    with pytest.raises(UserError, match="prepared: no document has two sentences"):
        run_main("--pretrain", *SMALL, "--corpus", tmp_path / "prepared", "--out", tmp_path / "run")
    (tmp_path / "prepared" / "meta.json").write_text("{")
    with pytest.raises(UserError, match="prepared: no finished corpus is here"):
        run_main("--pretrain", *SMALL, "--corpus", tmp_path / "prepared", "--out", tmp_path / "run")
    with pytest.raises(UserError, match="--vocab_size 77: .*spiece.model has 50 pieces"):
        run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", tmp_path / "run", "--vocab_size", "77")
    (tmp_path / "lines.txt").write_text("\n\n".join(f"the {word} river was small." for word in ("stone", "green", "early", "quiet") * 200))
    with pytest.raises(UserError, match="lines.txt: no document has two sentences"):
        run_main("--pretrain", *SMALL, "--corpus", tmp_path / "lines.txt", "--out", tmp_path / "lines", "--tokenizer", corpus)
    pretrain(corpus, tmp_path / "lm")
    broken = json.loads((tasks / "squad" / "train-v1.1.json").read_text())
    broken["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1
    (tmp_path / "squad").mkdir()
    (tmp_path / "squad" / "train-v1.1.json").write_text(json.dumps(broken))
    with pytest.raises(UserError, match="train-v1.1.json.*question q0.*'winter house' is not at character"):
        run_main("--finetune", "SQuAD1.1", *FAST, "--squad", tmp_path / "squad", "--init", tmp_path / "lm", "--out", tmp_path / "ft")


def test_shape_comes_from_init_and_may_not_be_contradicted(corpus, tmp_path, capsys):
    pretrain(corpus, tmp_path / "lm")
    capsys.readouterr()
    run_main("--describe", "--init", tmp_path / "lm")
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == sum(found["parts"].values()) == albert.count(albert.LanguageModel(tiny(layers=2, vocab_size=50, positions=64)))
    with pytest.raises(UserError, match="--hidden 32: the model in .* has 16"):
        run_main("--describe", "--init", tmp_path / "lm", "--hidden", "32")
    apart = tiny(share="none")
    torch.save({"kind": "pretraining", "outputs": 2, "weights": {}, "config": dataclasses.asdict(apart)}, tmp_path / "model.pt")
    with pytest.raises(UserError, match="--layers 8: the model in .* has 4"):  # layers of their own: another number does not fit
        run_main("--describe", "--init", tmp_path, "--layers", "8")


# --- one file alone ------------------------------------------------------------------------------

def test_file_copied_alone_builds_its_model_and_takes_a_step(tmp_path):
    (tmp_path / "albert.py").write_bytes((ROOT / "albert.py").read_bytes())
    code = """
import sys, torch, albert
cfg = albert.Config(vocab_size=50, layers=2, hidden=16, heads=2, ffn=32, embedding=8)
model = albert.LanguageModel(cfg)
optimizer = albert.Lamb(model.parameters(), 0.01)
ids = torch.randint(50, (2, 8))
logits, order = model(ids, torch.zeros_like(ids), torch.tensor([8, 5]), torch.tensor([[1, 2], [0, 3]]))
(logits.sum() + order.sum()).backward()
before = model.encoder.words.weight.clone()
optimizer.step()
assert logits.shape == (2, 2, 50) and order.shape == (2, 2) and not torch.equal(before, model.encoder.words.weight)
assert "common" not in sys.modules
print("alone")
"""
    top = [node for node in ast.parse((tmp_path / "albert.py").read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {name.split(".")[0] for node in top for name in ([each.name for each in node.names] if isinstance(node, ast.Import) else [node.module])}
    assert modules - set(sys.stdlib_module_names) == {"torch"}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "alone\n", result.stderr
