"""albert.py: published counts, parity with transformers, LAMB, masking, sentence order, resuming, fine-tuning, errors."""
import argparse
import ast
import dataclasses
import functools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import albert
from common.cli import UserError
from common.tokenization import load_tokenizer
from conftest import ROOT
from data import hf_models
from data.corpus import Corpus
from data.hf_folder import read_weights, write_tokenizer, write_weights
from tests.claims import albert as claims
from tests.claims import study

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
    (dict(embedding=256), 15_097_344, 15_687_936, 15_916_850), (dict(embedding=0), 30_524_160, 31_114_752, 31_738_418),
    (dict(embedding=0, share="attention"), 82_487_808, 83_078_400, 83_702_066),
    (dict(embedding=0, share="ffn"), 56_527_104, 57_117_696, 57_741_362),
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
    settings = [settings for table, _, settings, _ in claims.PUBLISHED if table == "Table 3"]
    wide = [albert.countings(albert.Config(**each))["D"] for each in settings]
    assert wide == [88_011_264, 89_980_416, 93_918_720, 109_081_344, 10_044_672, 12_013_824, 15_952_128, 31_114_752]
    assert albert.countings(albert.Config(**claims.PUBLISHED[-1][2]))["D"] == 498_622_464  # H = 6144
    odd = [name for _, name, settings, size in claims.PUBLISHED
           if size not in [round(value / 1e6) for value in albert.countings(albert.Config(**settings)).values()]]
    assert odd == ["ALBERT xxlarge"] and len(claims.PUBLISHED) == 24
    with torch.device("meta"):
        cfg = albert.Config()
        assert albert.count(albert.LanguageModel(cfg)) == 11_813_810
        assert albert.count(albert.Classifier(cfg, 2)) == 11_685_122
        assert albert.count(albert.MultipleChoice(cfg, 1)) == 11_684_353
        assert albert.count(albert.SpanModel(cfg)) == 11_094_530
        assert albert.count(albert.LanguageModel(albert.Config(embedding=768))) == 31_738_418 + 590_592  # mapped, as Hugging Face's
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


@pytest.mark.parametrize("changes", [{}, {"share": "none", "embedding": 0}, {"layers": 1}, {"recompute": True}])
def test_the_last_layer_is_worked_out_only_where_it_is_read(changes):
    """The same states, [CLS] first, and the same gradients, padding or none."""
    torch.manual_seed(0)
    encoder, places = albert.Encoder(tiny(**changes)).train(), torch.tensor([[3, 1], [5, 5], [2, 6]])
    ids, segments = torch.randint(5, 60, (3, 8)), torch.randint(2, (3, 8))
    for lengths in (None, torch.tensor([8, 6, 7])):
        whole, part = encoder(ids, segments, lengths), encoder(ids, segments, lengths, places)
        expected = whole.gather(1, F.pad(places, (1, 0))[..., None].expand(-1, -1, 16))
        torch.testing.assert_close(part, expected, rtol=0, atol=1e-6)
        for one, two in zip(*(torch.autograd.grad(states.square().sum(), [*encoder.parameters()]) for states in (part, expected))):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_dropout_of_the_ffn_output_is_applied():
    torch.manual_seed(0)
    block = albert.FeedForward(tiny(dropout=0.5)).train()
    x = torch.randn(1, 4, 16)
    assert not torch.equal(block(x), block(x))
    block.dropout.p = 0.0
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
    result["classification"] = [model(batch), model.loss(batch)]
    model = formula_model(albert.Classifier, PARITY, 1)
    result["regression"] = [model(batch), model.loss({**batch, "labels": torch.tensor([2.5, 0.0, 1.0])})]
    model = formula_model(albert.MultipleChoice, PARITY, 1)
    several = {"ids": ids[None], "segments": segments[None], "lengths": lengths[None], "labels": torch.tensor([1])}
    result["choice"] = [model(several), model.loss(several)]
    model = formula_model(albert.SpanModel, PARITY)
    batch |= {"start": torch.tensor([2, 0, 1]), "end": torch.tensor([4, 0, 3])}
    result["span"] = [*model(batch).unbind(-1), model.loss(batch)]
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
        model = formula_model(ours, PARITY, *[outputs] * issubclass(ours, albert.Classifier))
        write_weights(folder / "model.safetensors", hf_models.rename_albert(model.state_dict(), 2))
        (folder / "config.json").write_text(json.dumps(hf_models.albert_config(PARITY, name, outputs, 2)))
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


HARD = ["“Curly” quotes… — dashes, £5 (1,000, 2,500)", "In 2011, he said ``hello'' to 3, 4, and 5.", "naïve café Ångström ﬁne ½ ²",
        "日本語 テスト", "a\u200bb\tc\x85d  e", "emoji 👩\u200d👩\u200d👧 x", "don't \"quote\" -- x - y.", "tab\there ", "e\u0301 \u0308a", ""]


@pytest.mark.parametrize("kind", ["spiece", "cased", "vocab"])
def test_an_exported_tokenizer_cuts_text_as_ours_does(kind, tmp_path):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face: pip install transformers")
    from data.text import train_sentencepiece
    rng, words = np.random.default_rng(0), "the stone (river) 2011, was small. quiet £5 – Winter, house-paper 17, 1,000 Early".split()
    lines = [" ".join(rng.choice(words, 12)) for _ in range(300)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    if kind == "vocab":
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(33, 127)), *(f"##{chr(n)}" for n in range(97, 123)), "stone"]))
    else:
        path = train_sentencepiece([tmp_path / "text.txt"], tmp_path / "spiece.model", 45, lower=kind == "spiece")
    ours = load_tokenizer(path, kind == "spiece" or kind == "vocab")
    write_tokenizer(tmp_path, ours, 77)
    write_config(tmp_path, {"model_type": "albert"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for line, row in zip(lines + HARD, ours.encode_batch(lines + HARD)):
        assert theirs(line, add_special_tokens=False)["input_ids"] == row, line
    pair = theirs("the stone", "was small")
    first, second = ours.encode_batch(["the stone", "was small"])
    assert pair["input_ids"] == [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id] and theirs.model_max_length == 77
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1) and theirs.mask_token_id == ours.mask_id


@pytest.mark.parametrize("text", ["demo", "real"])
def test_an_exported_tokenizer_agrees_on_1000_lines(text, request, tmp_path):
    """With a vocabulary of ours, trained on text with runs of "=" and digits with commas; lines in which a special piece
    is written out aside, which Hugging Face reads as one."""
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face: pip install transformers")
    from common.tokenization import load_tokenizer
    from data.text import train_sentencepiece
    if text == "demo":
        files = sorted((Path(request.getfixturevalue("demo")["corpus"])).glob("*.txt"))
    else:
        files = sorted((request.getfixturevalue("real_data") / "corpus").rglob("*.txt"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    lines = [line for line in lines[::len(lines) // 1200] if "<unk>" not in line][:1000]
    hard = [f"{'=' * k} In {2000 + k}, {k},{100 + k} of {k},5{'-' * k}" for k in range(1, 60)]
    (tmp_path / "text.txt").write_text("\n".join([*lines, *hard]), encoding="utf-8")
    ours = load_tokenizer(train_sentencepiece([tmp_path / "text.txt"], tmp_path / "spiece.model", 1000))
    write_tokenizer(tmp_path, ours, 512)
    write_config(tmp_path, {"model_type": "albert"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = theirs(lines + hard, add_special_tokens=False)["input_ids"]
    differ = [line for line, one, other in zip(lines + hard, ours.encode_batch(lines + hard), found) if one != other]
    assert len(lines) == 1000 and not differ


def test_the_exported_tokenizer_files(corpus, tmp_path):
    """What can be seen without transformers."""
    ours = load_tokenizer(corpus)
    write_tokenizer(tmp_path, ours, 64)
    found, settings = (json.loads((tmp_path / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    assert [name for name, _ in found["model"]["vocab"]] == ours.names and found["model"]["unk_id"] == ours.unk_id
    assert [token["id"] for token in found["added_tokens"]] == list(ours.special_ids) and settings["model_max_length"] == 64
    assert settings["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"] and settings["mask_token"] == "[MASK]"


def read_back(folder):
    """(Config, Source) of a folder given as --init."""
    cfg = tiny(init=str(folder))
    return cfg, albert.read_source(cfg)


@pytest.mark.parametrize("settings", [{}, dict(layers=6, groups=3), dict(embedding=16), dict(share="attention"), dict(share="ffn", groups=2),
                                      dict(embedding=0, share="none"), dict(activation="relu")])
@torch.no_grad()
def test_round_trip_through_a_hugging_face_state_dict(settings, tmp_path):
    cfg = tiny(**settings)
    torch.manual_seed(0)
    model = albert.LanguageModel(cfg).eval()
    write_weights(tmp_path / "model.safetensors", hf_models.rename_albert(model.state_dict(), max(albert.blocks(cfg))))
    (tmp_path / "config.json").write_text(json.dumps(hf_models.albert_config(cfg, "AlbertForPreTraining", 2, max(albert.blocks(cfg)))))
    back, source = read_back(tmp_path)
    again = albert.LanguageModel(back).eval()
    assert "made anew: none; left out: none" in albert.start_from(again, source)
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
        cfg, source = read_back(tmp_path)
        ours = albert.LanguageModel(cfg).eval()
        albert.start_from(ours, source)
        logits, order = ours(ids, segments, lengths, torch.arange(12).expand(3, 12))
        found = theirs(input_ids=ids, token_type_ids=segments, attention_mask=(torch.arange(12) < lengths[:, None]).long())
        real = torch.arange(12) < lengths[:, None]
        torch.testing.assert_close(logits[real], found.prediction_logits[real], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(order, found.sop_logits, rtol=1e-5, atol=1e-5)
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")  # with the tied decoder in it
        (tmp_path / "model.safetensors").unlink()
        again = albert.LanguageModel(cfg)
        assert "made anew: none; left out: none" in albert.start_from(again, read_back(tmp_path)[1])
        assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), again.parameters()))


def test_weight_files(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3), "c": torch.randn(5).bfloat16(), "d": torch.zeros(0, 4)}
    write_weights(tmp_path / "x.safetensors", tensors)
    back = read_weights(tmp_path / "x.safetensors")
    assert list(back) == list(tensors) and all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)
    cut = (tmp_path / "x.safetensors").read_bytes()[:-3]
    (tmp_path / "x.safetensors").write_bytes(cut)
    with pytest.raises(UserError, match="x.safetensors"):
        read_weights(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="no model.safetensors"):
        read_weights(tmp_path)
    torch.save([1], tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="pytorch_model.bin: this holds something else than tensors by name"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="index.json: no weight_map"):
        read_weights(tmp_path)


def test_weights_that_do_not_fit_are_listed(tmp_path):
    model = albert.LanguageModel(TINY)
    (tmp_path / "config.json").write_text(json.dumps(hf_models.albert_config(TINY, "AlbertForPreTraining", 2, 1)))
    good, words = hf_models.rename_albert(model.state_dict(), 1), "albert.embeddings.word_embeddings.weight"
    missing = {name: value for name, value in good.items() if name != "albert.embeddings.LayerNorm.bias"}
    for state, message in ((missing, "missing encoder.norm.bias"),
                           ({**good, "albert.embeddings.position_embeddings.weight": torch.zeros(7, 8)},
                            r"encoder.positions.weight is \(7, 8\) there and \(40, 8\) here"),
                           ({**good, "albert.extra.weight": torch.zeros(1)}, "unexpected weights: albert.extra.weight"),
                           ({**good, "predictions.decoder.weight": torch.zeros(60, 8)}, "ALBERT's are tied"),
                           ({**good, words: torch.full((60, 8), math.nan)}, "word_embeddings.weight holds numbers that are not finite")):
        write_weights(tmp_path / "model.safetensors", state)
        with pytest.raises(UserError, match=message):
            albert.start_from(model, read_back(tmp_path)[1])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", "vocab_size": 60}))
    with pytest.raises(UserError, match="lacks .*num_attention_heads"):
        read_back(tmp_path)


@pytest.mark.parametrize("change, message", [
    ({"num_attention_heads": 0}, "heads 0: choose"), ({"hidden_size": "16"}, "hidden '16': must be of type int"), (5, "model_type is not albert"),
    ({"max_position_embeddings": None}, "positions None: must be"), ({"hidden_dropout_prob": 2, "attention_probs_dropout_prob": 2}, "dropout 2: choose a number in .0, 1"),
    ({"initializer_range": None}, "init_std None"), ({"hidden_act": ["gelu"]}, "activation"), ({"hidden_act": "swish"}, "activation 'swish'"),
    ({"inner_group_num": 2}, "only 1 and 2 are built"), ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05: only 1e-12 is built"),
    ({"attention_probs_dropout_prob": 0.3}, "attention_probs_dropout_prob 0.3: hidden_dropout_prob is 0.0"),
    ({"max_position_embeddings": 7}, "is .40, 8. there and .7, 8. here")])
def test_configurations_that_make_no_sense(change, message, tmp_path):
    """Each ends in one line, whatever the action; the last fits no weights."""
    config = hf_models.albert_config(TINY, "AlbertForPreTraining", 2, 1)
    (tmp_path / "config.json").write_text(json.dumps({**config, **change} if isinstance(change, dict) else change))
    write_weights(tmp_path / "model.safetensors", hf_models.rename_albert(albert.LanguageModel(TINY).state_dict(), 1))
    with pytest.raises(UserError, match=message):
        run_main("--describe", "--init", tmp_path)
        cfg, source = read_back(tmp_path)
        albert.start_from(albert.LanguageModel(cfg), source)


def test_a_strangers_checkpoint_is_refused(tmp_path):
    settings = {**dataclasses.asdict(TINY), "steps": 7}
    (tmp_path / "config.json").write_text(json.dumps({"program": "albert", "action": "pretrain", "settings": settings}))
    for content, message in (([1], "no checkpoint of albert.py"), ({"weights": {}}, "no checkpoint"),
                             ({"owned": {"model": {}}}, "encoder.words.weight")):
        torch.save(content, tmp_path / "checkpoint.pt")
        with pytest.raises(UserError, match=message):
            run_main("--describe", "--init", tmp_path)
    torch.save({"owned": {"model": albert.LanguageModel(TINY).state_dict()}}, tmp_path / "checkpoint.pt")
    cfg, _ = read_back(tmp_path)
    assert (cfg.hidden, cfg.steps) == (16, 125000)  # and no other setting can be slipped in


# --- claims --------------------------------------------------------------------------------------

def run_claim(name, tmp_path, *words):
    """The JSON file that a claim writes."""
    results = tmp_path / "results"
    study.main("albert", claims.CLAIMS, [name, "--results", str(results), "--runs", str(tmp_path / "runs"), *map(str, words)])
    return json.loads((results / f"{name}.json").read_text())


def test_published_parameters_agree_but_for_one(tmp_path):
    found = run_claim("parameters", tmp_path)
    assert len(found["rows"]) == 24 and [row[1] for row in found["rows"] if row[-1].startswith("none")] == ["ALBERT xxlarge"]


def test_layers_and_speed_at_the_smallest_size(tmp_path, corpus):
    small = [*SMALL, "--corpus", corpus]
    found = run_claim("layers", tmp_path, *small)
    assert found["columns"] == ["layer", "random L2", "random degrees"] and len(found["rows"]) == 2
    found = run_claim("speed", tmp_path, *small, "--vocab_size", "50")
    assert [row[0] for row in found["rows"]] == ["ALBERT", "BERT of its shape"] and len(found["seconds_each"]["ALBERT"]) == 9
    assert found["rows"][1][3:] == [1.0, 1.0, 1.0, 1.0] and found["rows"][0][6] == pytest.approx(1, rel=0.1)
    for name in ("layers", "speed"):
        with pytest.raises(UserError, match="--length 600"):
            run_claim(name, tmp_path, "--length", "600")


def test_flops_of_table_2(tmp_path):
    """By FLOPs ALBERT large is as fast as BERT large; the paper says 1.7 times. xxlarge: H is 4 times larger, and L halved."""
    rows = {row[0]: row for row in run_claim("flops", tmp_path)["rows"]}
    assert rows["large"][2] == pytest.approx(1.0127, abs=1e-4) and rows["xxlarge"][2] == pytest.approx(0.1388, abs=1e-4)
    assert rows["bert-large"][2:] == [1.0, 1.0, 1.0]


def test_speed_is_against_bert_large_too(tmp_path, corpus, monkeypatch):
    """Table 2's rows are. By FLOPs ALBERT base is 1.03 of BERT base (heads on masked pieces alone), the paper 1.19."""
    monkeypatch.setattr(claims, "training_seconds", lambda models, cfg, device, turns: {name: [1.0] * 9 for name in models})
    monkeypatch.setattr(albert, "LanguageModel", lambda shape: torch.nn.Linear(1, 1))
    found = run_claim("speed", tmp_path, "--preset", "base", "--corpus", corpus, "--length", "128", "--batch", "2")
    assert [row[0] for row in found["rows"]] == ["ALBERT", "BERT of its shape", "BERT large"] and found["columns"][-4] == "to BERT large"
    assert found["rows"][0][6] == pytest.approx(1.034, abs=0.001) and found["rows"][0][10] == pytest.approx(3.669, abs=0.001)


@pytest.fixture
def run_here(monkeypatch):
    """study.run_all in this process: [the arguments of each run that was made]."""
    made = []

    def run_all(options, commands):
        for name, (_, *words) in commands.items():
            if not (options.runs / name / "done.json").exists():
                made.append([name, *map(str, words)])
                run_main(*words, "--out", options.runs / name)
        return {name: options.runs / name for name in commands}

    monkeypatch.setattr(study, "run_all", run_all)
    return made


CLAIMED = ["--seeds", "1", "--updates", "2", "--layers", "2", "--hidden", "16", "--heads", "2", "--ffn", "32", "--device", "cpu"]


def test_claim_of_table_5(corpus, tmp_path, run_here):
    text = corpus.parent / "text.txt"
    arguments = [*CLAIMED, "--embedding", "8", "--fitting", "64", "--few", text, "--pieces", "50"]
    found = run_claim("order", tmp_path, *arguments)
    assert [row[0] for row in found["rows"]] == list(claims.ARMS) and "few sentences" in found["claim"]
    assert len(run_here) == 5 and all("--init" in words for name, *words in run_here if "-words-" not in name)
    scores = found["seeds"][0]["sop"]
    assert {"mlm", "nsp", "sop", "own nsp", "own sop", "seconds"} < scores.keys() and scores["asked"]["sop"] > 20
    assert run_claim("order", tmp_path, *arguments)["seeds"] == found["seeds"] and len(run_here) == 5  # done before


def test_a_fitted_head_tells_what_a_state_tells():
    """Also where the states are far from the origin and of unlike scales; of labels that they do not tell, nothing."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (4000,), generator=generator)
    states = torch.randn(4000, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.01]) + 7
    states[:, 2] += 0.02 * labels
    for truth, low, high in ((labels, 0.80, 0.88), (labels[torch.randperm(4000, generator=generator)], 0.46, 0.54)):
        weight, bias = claims.fit_head(states[:2000], truth[:2000])
        right = ((states[2000:] @ weight + bias > 0) == truth[2000:].bool()).double().mean()
        assert low < right < high


def test_table_5_is_judged_by_what_was_written_down():
    """Three seeds of the paper's numbers hold; an SOP model that knows no order does not."""
    seeds = [{"sop": {"mlm": 0.540 + x, "nsp": 0.789 + x, "sop": 0.865 + x}, "nsp": {"mlm": 0.545, "nsp": 0.905, "sop": 0.520},
              "none": {"mlm": 0.545 + x, "nsp": 0.524, "sop": 0.533}, "shuffled": {"mlm": 0.5, "nsp": 0.5, "sop": 0.5}}
             for x in (0, 0.01, -0.01)]
    holds, gaps = claims.judge_order(seeds)
    assert all(holds.values()) and gaps["SOP model - NSP model on SOP"][0] == pytest.approx(34.5)
    for seed, value in zip(seeds, (0.50, 0.53, 0.49)):
        seed["sop"]["sop"] = value
    holds, _ = claims.judge_order(seeds)
    assert [name for name, value in holds.items() if not value] == ["H2", "H3"]
    assert claims.judged_by(holds) == "holds in part"


def test_claim_of_tables_3_and_4(corpus, tmp_path, run_here):
    found = run_claim("sharing", tmp_path, *CLAIMED, "--few", corpus.parent / "text.txt", "--rows", "64", "--pieces", "50",
                      "--hidden", "64")  # E is 64 in a third of the runs
    assert len(run_here) == 12 and [row[0] for row in found["rows"]] == list(claims.SHARES)
    assert len(found["seeds"]) == 12 and len(found["differences"]) == 8 and found["asked"] > 50
    sizes = [int(size.replace(",", "")) for size in found["rows"][0][4:]]
    assert sizes == sorted(sizes)


def test_contrasts_are_judged_by_their_intervals(corpus, tmp_path, run_here):
    """Words found are made up: 2 layers are ahead of 1 in every seed, by the same; 4 and 8 are as 2."""
    flags = [*CLAIMED[2:], "--embedding", "8", "--few", corpus.parent / "text.txt", "--rows", "64", "--pieces", "50"]
    del flags[2:4]  # --layers is what an arm says
    found = run_claim("depth", tmp_path, "--seeds", "1", *flags)
    assert len(run_here) == 4 and [row[0] for row in found["rows"]] == list(claims.ARMS_OF["depth"])
    assert found["verdict"].startswith("not judged: 1 of 3 seeds")
    layers = [words[words.index("--layers") + 1] for words in run_here]
    assert layers == ["1", "2", "4", "8"]
    for (arm, seed), value in {(arm, seed): 0.1 * seed + 0.2 * (arm != "1 layer") for seed in range(3) for arm in
                               claims.ARMS_OF["depth"]}.items():
        folder = tmp_path / "runs" / f"{arm}-{seed}".replace(" ", "")
        folder.mkdir(exist_ok=True)
        (folder / "done.json").write_text(json.dumps({"mlm": value, "parameters": 5, "scored": {"mlm": 100}}))
    found = run_claim("depth", tmp_path, *flags)
    assert found["hypotheses"] == {"2 layers beat 1": True, "4 beat 2": False, "8 beat 4": False, "less to gain": True}
    assert found["verdict"].startswith("holds in part: 2 layers beat 1 +20.00 [+20.00, +20.00]")


@pytest.mark.parametrize("name, grown", [("dropout", [0, 0]), ("groups", [0, 0.3, 1]), ("width", [0, 0.2, 1])])
def test_claims_of_one_difference(corpus, tmp_path, run_here, name, grown):
    """Each arm is its own network: groups add blocks, width adds to everything, dropout adds nothing."""
    found = run_claim(name, tmp_path, "--seeds", "1", "--updates", "2", "--rows", "64", "--pieces", "50", "--few",
                      corpus.parent / "text.txt", "--device", "cpu", "--batch", "2")
    assert [row[0] for row in found["rows"]] == list(claims.ARMS_OF[name]) and len(run_here) == len(grown)
    counts = [int(row[2].replace(",", "")) for row in found["rows"]]
    assert [round((count - counts[0]) / max(1, counts[-1] - counts[0]), 1) for count in counts] == grown


def test_equal_time_gives_the_slower_network_fewer_updates(corpus, tmp_path, run_here):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "slowness.json").write_text("2.0")
    found = run_claim("equal_time", tmp_path, "--seeds", "1", "--updates", "2", "--rows", "64", "--pieces", "50", "--few",
                      corpus.parent / "text.txt", "--device", "cpu", "--batch", "2")
    assert [(row[0], row[-1]) for row in found["rows"]] == [("BERT, 1", 2), ("ALBERT, 1", 1), ("BERT, 2", 4), ("ALBERT, 2", 2),
                                                           ("BERT, 4", 8), ("ALBERT, 4", 4)]


def test_slowness_is_measured_once(tmp_path):
    options = argparse.Namespace(runs=tmp_path / "runs")
    shapes = {"wide": ["--hidden", 128, "--heads", 4, "--ffn", 512], "narrow": ["--hidden", 32, "--ffn", 32]}
    threads = torch.get_num_threads()
    try:
        assert claims.slowness(options, shapes, turns=3) > 1
    finally:
        torch.set_num_threads(threads)
    (options.runs / "slowness.json").write_text("7.5")
    assert claims.slowness(options, shapes) == 7.5


def test_smoothness_of_figure_1(corpus, tmp_path, run_here):
    def curve(*degrees):
        return [{"layer": number, "l2": 1.0, "degrees": value} for number, value in enumerate(degrees, 1)]
    assert claims.roughness(curve(40, 30, 20, 10)) == 0 and claims.roughness(curve(20, 10, 20, 10)) == pytest.approx(10 / 15)
    found = run_claim("smoothness", tmp_path, "--seeds", "1", "--updates", "2", "--rows", "64", "--pieces", "50", "--few",
                      corpus.parent / "text.txt", "--device", "cpu", "--hidden", "16", "--heads", "2", "--ffn", "32",
                      "--embedding", "8")
    assert len(run_here) == 2 and len(found["rows"]) == 4 and len(found["columns"]) == 10
    assert found["curves"]["8 layers, seed 0"][0] != found["curves"]["8 layers, seed 0"][1], "trained and random are one model"


def test_the_picture_of_sharing_has_a_line_for_each():
    figure = pytest.importorskip("matplotlib.figure", reason="draws: pip install matplotlib").Figure()
    axes = figure.add_subplot()
    claims.draw_sharing(axes, {(name, E): [0.2, 0.3] for name in claims.SHARES for E in claims.WIDTHS})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(claims.SHARES) and len(axes.lines) == 8


def test_page_is_made_from_the_results():
    assert (ROOT / "tests" / "claims" / "albert.md").read_text() == study.page("albert")


def test_untrained_shared_stack_converges_as_figure_1s_control_says():
    torch.manual_seed(0)
    encoder = albert.Encoder(albert.Config(**{**albert.PRESETS["large"], "layers": 12, "vocab_size": 1000, "dropout": 0.0}))
    for name, value in encoder.named_parameters():
        if value.dim() > 1:  # Hugging Face's plain normal, with which the expected numbers were measured
            torch.nn.init.normal_(value, std=0.02)
    ids = torch.randint(5, 1000, (1, 64))
    curve = claims.layer_distances(encoder, [(ids, torch.zeros_like(ids), torch.tensor([64]))])
    for layer, degrees, l2 in ((1, 29.4, 25.9), (2, 22.9, 12.7), (3, 19.0, 10.6), (4, 17.0, 9.4), (12, 8.4, 4.7)):
        assert curve[layer - 1]["degrees"] == pytest.approx(degrees, rel=0.15) and curve[layer - 1]["l2"] == pytest.approx(l2, rel=0.15)


def test_figure_1s_picture_has_both_measures():
    figure = pytest.importorskip("matplotlib.figure", reason="draws: pip install matplotlib").Figure()
    claims.draw_layers(figure.add_subplot(), {"random": [{"layer": 1, "l2": 2.0, "degrees": 30.0}]})
    assert [(len(side.lines), side.get_ylabel()[:8]) for side in figure.axes] == [(1, "L2 dista"), (1, "their an")]


# --- LAMB and the schedule -----------------------------------------------------------------------

def numpy_lamb(weights, gradients, lrs, adapt=True):
    """The update of ALBERT's lamb_optimizer.py in numpy, tensor by tensor."""
    state = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items()}
    for step, lr in zip(gradients, lrs):
        for name, g in step.items():
            m, v = state[name]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            state[name] = m, v
            u, w = m / (np.sqrt(v) + 1e-6), weights[name]
            excluded = "bias" in name or "norm" in name
            if not excluded:
                u = u + 0.01 * w
            wn, un = np.linalg.norm(w), np.linalg.norm(u)
            ratio = wn / un if wn > 0 and un > 0 and adapt and not excluded else 1.0
            weights[name] = w - lr * ratio * u
    return weights


@pytest.mark.parametrize("adapt", [True, False])
def test_lamb_is_its_numpy_transcription(adapt):
    torch.manual_seed(0)
    model = albert.LanguageModel(tiny()).double()
    torch.nn.init.zeros_(model.order.weight)  # a norm of 0: the ratio is 1
    optimizer = albert.Lamb(model.parameters(), lr=0.1, adapt=adapt)
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
    expected = numpy_lamb(weights, gradients, lrs, adapt)
    for name, value in model.named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), expected[name], atol=1e-6, rtol=1e-6)


def test_schedule_is_the_official_one():
    lr = [1.76e-3 * albert.schedule(step, 125000, 3125) for step in (0, 3124, 3125, 62500, 125000)]
    assert lr == pytest.approx([0, 0.0017594, 0.0017160, 0.00088, 0], abs=5e-8)
    assert round(albert.Config().warmup * albert.Config().steps) == 3125


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
    assert albert.masked_count(albert.Config()) == 77


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
    optimizer = albert.Lamb(model.parameters(), 0.005)

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
    from data.text import prepare_corpus
    from data.text import train_sentencepiece
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


SMALL = ["--layers", "2", "--hidden", "16", "--heads", "2", "--ffn", "32", "--embedding", "8", "--length", "64", "--batch", "8", "--steps", "6",
         "--save_every", "2", "--dev_rows", "16", "--positions", "64", "--device", "cpu"]


def run_main(*words):
    assert albert.main([str(word) for word in words]) == 0


def owned(folder):
    """What the checkpoint of a run folder, or of a task's folder, holds."""
    return torch.load(folder / "checkpoint.pt", weights_only=True)["owned"]


def pretrain(corpus, out, *words):
    run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", out, *words)
    return owned(out)["model"]


def dev_steps(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line.get("phase") == "dev"]


def kill(monkeypatch, name, at):
    """Let the call number `at` of a function of albert.py end like Ctrl-C; returns the list that counts the calls."""
    calls, real = [], getattr(albert, name)

    def killed(*args):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(albert, name, killed)
    return calls


def test_kill_and_resume_equals_an_uninterrupted_run(corpus, tmp_path, monkeypatch):
    dropout, thread = ["--dropout", "0.1", "--dropout_steps", "5"], albert.prefetch
    monkeypatch.setattr(albert, "prefetch", iter)  # batches that no thread makes are the same
    whole = pretrain(corpus, tmp_path / "whole", *dropout)
    monkeypatch.setattr(albert, "prefetch", thread)
    calls = kill(monkeypatch, "mean_loss", 9)  # in update 5, after the checkpoint of update 4
    with pytest.raises(KeyboardInterrupt):
        pretrain(corpus, tmp_path / "parts", *dropout)
    parts = pretrain(corpus, tmp_path / "parts", *dropout)
    assert len(calls) == 9 + 4 and all(torch.equal(whole[name], parts[name]) for name in whole)
    assert dev_steps(tmp_path / "parts") == [2, 4, 6]
    before = (tmp_path / "whole" / "done.json").stat().st_mtime_ns
    pretrain(corpus, tmp_path / "whole", *dropout)
    assert (tmp_path / "whole" / "done.json").stat().st_mtime_ns == before  # finished: says so and does nothing
    with pytest.raises(UserError, match="steps"):
        run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", tmp_path / "whole", "--steps", "7")


def test_a_batch_draws_from_generators_of_its_own(corpus):
    """A thread makes it while dropout draws from those that are seeded."""
    text, tokenizer = Corpus(corpus), load_tokenizer(corpus)
    cfg = tiny(vocab_size=50, length=64)
    for objective in ("sop", "nsp", "none", "shuffled"):
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        one = albert.language_batch(text, tokenizer, cfg, objective, 32, 16, torch.device("cpu"))
        after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
        assert torch.equal(before[0], after[0]) and before[1] == after[1] and (before[2] == after[2]).all()
        torch.manual_seed(9)
        again = albert.language_batch(text, tokenizer, cfg, objective, 32, 16, torch.device("cpu"))
        assert all(torch.equal(*pair) for pair in zip(one, again))


def test_dropout_is_taken_out_of_a_compiled_model_that_recomputes(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    words = ["--dropout", "0.1", "--dropout_steps", "2", "--steps", "4", "--layers", "1", "--recompute", "--dev_rows", "8"]
    compiled, plain = pretrain(corpus, tmp_path / "compiled", *words, "--compile"), pretrain(corpus, tmp_path / "plain", *words)
    assert all(compiled[name].isfinite().all() and compiled[name].shape == plain[name].shape for name in plain)


def test_the_demos_recipe_is_for_the_demo_alone(tmp_path):
    def chosen(preset, *given):
        write_config(tmp_path, {"settings": {"preset": preset}} if preset else {"model_type": "albert"})
        cfg = albert.Config(**{**albert.PRESETS["demo"], "init": str(tmp_path), "finetune_lr": 7.0})
        cfg.given = frozenset(given)
        return cfg, albert.choose_recipe(cfg, {"glue"})

    cfg, line = chosen("demo")
    assert cfg.finetune_batch == albert.PRESETS["demo"]["finetune_batch"] and f"--finetune_batch {cfg.finetune_batch}" in line
    for preset, given in (("demo", ["glue"]), ("", []), ("base", [])):
        cfg, line = chosen(preset, *given)
        assert (cfg.finetune_batch, cfg.finetune_epochs, cfg.eval_every, cfg.train_rows) == (None, None, 0, 0)
        assert line == "fine-tuning: Table 14, but --finetune_lr 7.0"


def write_config(folder, content):
    (folder / "config.json").write_text(json.dumps(content))


def test_rows_that_are_all_full_need_no_mask(monkeypatch):
    torch.manual_seed(0)
    seen, real = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, mask, p: seen.append(mask) or real(q, k, v, mask, p))
    ids, segments, lengths = example()
    for model in (albert.Classifier(tiny(), 2), albert.MultipleChoice(tiny(), 1)):
        model, several = model.eval(), isinstance(model, albert.MultipleChoice)
        batch = {"ids": ids[None] if several else ids, "segments": segments[None] if several else segments}
        for size, masked in ((torch.full((3,), 12), False), (lengths, True)):
            seen.clear()
            found = model(albert.to_device({**batch, "lengths": size[None] if several else size}, torch.device("cpu")))
            assert all((mask is not None) == masked for mask in seen) and found.shape == ((1, 3) if several else (3, 2))


def test_a_kill_at_an_evaluation_loses_none(corpus, tmp_path, monkeypatch):
    kill(monkeypatch, "evaluate_language_model", 2)
    with pytest.raises(KeyboardInterrupt):
        pretrain(corpus, tmp_path / "run")
    pretrain(corpus, tmp_path / "run")
    assert dev_steps(tmp_path / "run") == [2, 4, 6]


def test_evaluation_says_how_much_it_scored_and_is_the_same_for_every_seed(corpus, monkeypatch):
    from common.distributed import Ranks
    from data.inputs import Data
    tokenizer, ranks = load_tokenizer(corpus), Ranks(0, 1, torch.device("cpu"))
    text, cfg = Data(ranks.device, tokenizer, *Corpus(corpus, tokenizer).split(0.05)), tiny(layers=1, vocab_size=50, positions=64, length=64, dev_rows=16)
    model = albert.LanguageModel(cfg)
    found = [albert.evaluate_language_model(model, text, dataclasses.replace(cfg, seed=seed), ranks) for seed in (0, 1)]
    assert found[0] == found[1] and 16 < found[0]["scored"]["mlm"] <= 160 and 0 < found[0]["scored"]["sop"] <= 16
    assert all(0 <= found[0][name] <= 1 for name in ("mlm", "nsp", "sop"))  # shares
    real = albert.sentence_pairs
    monkeypatch.setattr(albert, "sentence_pairs", lambda *args: (*real(*args)[:3], torch.full((16,), -100)))
    blind = albert.evaluate_language_model(model, text, cfg, ranks)
    assert blind["sop"] is None and blind["scored"] == {**found[0]["scored"], "nsp": 0, "sop": 0} and blind["mlm"] == found[0]["mlm"]


def test_text_to_evaluate_on_can_be_given(corpus, tmp_path):
    """Sec. 4.2.1: then nothing of the corpus is held out, and changed text is another run's."""
    text = tmp_path / "dev.txt"
    text.write_text("\n\n".join(f"the {a} river was small.\nthe house was {b}." for a in ("stone", "green", "early") for b in ("quiet", "old")))
    pretrain(corpus, tmp_path / "run", "--dev_corpus", text)
    scored = json.loads((tmp_path / "run" / "done.json").read_text())["scored"]
    assert json.loads((tmp_path / "run" / "corpus" / "dev" / "meta.json").read_text())["documents"] == 6 and scored["mlm"] > 0
    shutil.rmtree(tmp_path / "run" / "corpus")
    (tmp_path / "run" / "done.json").unlink()
    text.write_text(text.read_text().replace("stone", "green"))
    with pytest.raises(UserError, match="begun with other data: .*dev.txt"):
        pretrain(corpus, tmp_path / "run", "--dev_corpus", text)


def test_the_first_line_of_the_log_has_no_speed(corpus, tmp_path):
    """The start (compiling, first batches) is in it."""
    pretrain(corpus, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    speeds = [line.get("tokens_per_second") for line in lines if line.get("phase") == "pretrain"]
    assert len(speeds) == 6 and speeds[0] is None and all(speed > 0 for speed in speeds[1:])


@pytest.mark.parametrize("preset, steps, dropout", [("xxlarge", 125_000, 0.1), ("xxlarge-1m", 1_000_000, 0.0), ("xxlarge-1.5m", 1_500_000, 0.0)])
def test_xxlarge_is_trained_as_long_as_the_paper_says(preset, steps, dropout):
    """Table 2: like the others; Tables 8 to 10: longer, and then without dropout."""
    cfg = albert.Config(**albert.PRESETS[preset])
    assert (cfg.steps, cfg.dropout, cfg.hidden, cfg.heads) == (steps, dropout, 4096, 64)


def test_a_dry_run_is_small(corpus, tmp_path):
    run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", f"{tmp_path}/run/", "--dry_run", "--batch", "32", "--accumulate", "2")
    settings = json.loads((tmp_path / "run-dry" / "config.json").read_text())["settings"]
    assert (settings["batch"], settings["steps"]) == (16, 2) and (tmp_path / "run-dry" / "done.json").exists()


@pytest.mark.parametrize("flags, batch, peak", [([], 64, 0.05 / 8), (["--lr", "1.76e-3"], 64, 2.2e-4), (["--lr", "1.76e-3"], 16, 1.1e-4)])
def test_learning_rate_goes_with_the_root_of_the_batch(flags, batch, peak, corpus, tmp_path):
    pretrain(corpus, tmp_path, *flags, "--batch", batch, "--steps", "1", "--warmup", "0")
    first = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert first["lr"] == pytest.approx(peak, rel=1e-3) and (flags or first["lr"] == peak)


def test_accumulated_parts_give_the_same_update_as_processes(corpus, tmp_path):
    """One process with two parts a batch, and two processes: the same weights to rounding."""
    one = pretrain(corpus, tmp_path / "one", "--accumulate", "2", "--recompute")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", ROOT / "albert.py", "--pretrain", *SMALL,
               "--corpus", corpus, "--out", tmp_path / "two", "--accumulate", "2", "--recompute"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    two = owned(tmp_path / "two")["model"]
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
    results = [json.loads((tmp_path / run / "done.json").read_text()) for run in ("one", "two")]
    assert results[0]["steps"] == 6 and results[0]["mlm"] == pytest.approx(results[1]["mlm"], abs=0.01)


def test_depth_warm_start_takes_everything_over(corpus, tmp_path, capsys):
    shallow = pretrain(corpus, tmp_path / "shallow")
    deep = pretrain(corpus, tmp_path / "deep", "--init", tmp_path / "shallow", "--layers", "4", "--lr", "1e-30")
    assert f"{len(shallow)} weights taken over; made anew: none; left out: none" in capsys.readouterr().out
    assert all(torch.allclose(shallow[name], deep[name]) for name in shallow)
    assert json.loads((tmp_path / "deep" / "config.json").read_text())["settings"]["layers"] == 4


def test_a_diverged_run_ends_in_one_line(corpus, tmp_path):
    with pytest.raises(UserError, match="not finite at update .*learning rate"):
        pretrain(corpus, tmp_path / "out", "--lr", "1e30", "--warmup", "0")


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


FAST = ["--finetune_epochs", "2", "--finetune_batch", "4", "--finetune_lr", "1e-3", "--finetune_length", "48", "--device", "cpu"]
KINDS = ("CoLA", "MNLI", "RTE", "SQuAD1.1", "SQuAD2.0", "RACE")


@pytest.fixture(scope="module")
def language_model(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model") / "lm"
    pretrain(corpus, folder)
    return folder


def data_flags(tasks):
    return ["--glue", tasks / "glue", "--squad", tasks / "squad", "--race", tasks / "race"]


@pytest.fixture(scope="module")
def finetuned(language_model, tasks, tmp_path_factory):
    """Two run folders of --finetune with every kind of task, the second with two runs of each."""
    folder = tmp_path_factory.mktemp("finetuned")
    for seed in (0, 1):
        run_main("--finetune", ",".join(KINDS), *FAST, *data_flags(tasks), "--eval_every", "3", "--init", language_model,
                 "--out", folder / f"ft{seed}", "--runs", seed + 1, "--seed", seed)
    return folder


@pytest.mark.slow
def test_finetuning_every_kind_of_task(finetuned):
    result = json.loads((finetuned / "ft1" / "done.json").read_text())["tasks"]
    assert set(result) == set(KINDS) and all(line["n"] == 2 and not line["diverged"] for line in result.values())
    assert "made anew: head.bias, head.weight" in result["RTE"]["start"] and "jobs/MNLI-" in result["RTE"]["start"]  # MNLI's best run
    scores = [json.loads((finetuned / "ft1" / "jobs" / f"CoLA-{number}.json").read_text())["metrics"]["main"] for number in (0, 1)]
    assert result["CoLA"]["median"] == pytest.approx(np.median(scores)) and result["CoLA"]["metrics"]["main"] == min(scores)
    assert result["RACE"]["curve"][-1][0] == 4 and result["MNLI"]["curve"][0][0] == 3
    assert {"f1", "exact"} <= set(result["SQuAD1.1"]["metrics"]) and "best_f1_thresh" in result["SQuAD2.0"]["metrics"]
    assert result["SQuAD2.0"]["metrics"]["f1"] == pytest.approx(result["SQuAD2.0"]["metrics"]["main"])
    assert {"middle", "high", "test middle", "test accuracy"} <= set(result["RACE"]["metrics"])
    assert {"dev_mismatched accuracy", "mismatched"} <= set(result["MNLI"]["metrics"])
    assert (finetuned / "ft1" / "CoLA" / "CoLA.tsv").read_text().startswith("index\tprediction\n0\t")
    answers, odds = (json.loads((finetuned / "ft1" / "SQuAD2.0" / f"{name}.json").read_text()) for name in ("predictions", "null_odds"))
    limit = result["SQuAD2.0"]["metrics"]["best_f1_thresh"]
    assert set(answers) == {f"{kind}{i}" for kind in "qn" for i in range(6)} and all((odds[key] > limit) == (answers[key] == "") for key in answers)


@pytest.mark.slow
def test_ensembles_average_what_run_folders_predict(finetuned, tasks, language_model, tmp_path):
    members = [finetuned / "ft0", finetuned / "ft1"]
    run_main("--finetune", ",".join(KINDS), *FAST, *data_flags(tasks), "--out", tmp_path / "both", "--ensemble", *members)
    chosen = json.loads((tmp_path / "both" / "jobs" / "CoLA-0.json").read_text())["members"]
    assert chosen and set(chosen) <= set(map(str, members))
    averaged = sum(torch.load(Path(run) / "CoLA" / "predictions.pt")["found"]["test"] / len(chosen) for run in chosen)
    expected = "".join(f"{i}\t{row.argmax().item()}\n" for i, row in enumerate(averaged))
    assert (tmp_path / "both" / "CoLA" / "CoLA.tsv").read_text() == "index\tprediction\n" + expected
    with pytest.raises(UserError, match="or --ensemble, which trains nothing"):
        run_main("--finetune", "CoLA", *FAST, *data_flags(tasks), "--ensemble", members[0], "--init", language_model)
    with pytest.raises(UserError, match="ft0/WNLI/predictions.pt: no such file"):  # what is missing, not its tokenizer
        run_main("--finetune", "WNLI", *FAST, *data_flags(tasks), "--out", tmp_path / "none", "--ensemble", *members)
    shutil.copytree(tasks / "glue", tmp_path / "glue")
    dev = (tmp_path / "glue" / "CoLA" / "dev.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "glue" / "CoLA" / "dev.tsv").write_text("".join(dev[::-1]))
    with pytest.raises(UserError, match="its predictions on CoLA are for other data"):
        run_main("--finetune", "CoLA", *FAST, "--glue", tmp_path / "glue", "--out", tmp_path / "other", "--ensemble", *members)


@pytest.mark.slow
def test_models_of_tasks_are_exported_and_start_others(finetuned, language_model, tmp_path):
    hf = tmp_path / "hf"
    for target, source, name in (("CoLA", "CoLA", "AlbertForSequenceClassification"), ("SQuAD1.1", "SQuAD1.1", "AlbertForQuestionAnswering"),
                                 ("SQuAD2.0", "SQuAD2.0", "AlbertModel"), ("RACE", "RACE", "AlbertForMultipleChoice"),
                                 ("again", hf / "RACE", "AlbertForMultipleChoice"), ("bare", hf / "SQuAD2.0", "AlbertModel")):
        run_main("--export", hf / target, "--init", finetuned / "ft0" / source)
        config = json.loads((hf / target / "config.json").read_text())
        labels = ["0", "1"] if target == "CoLA" else ["LABEL_0"] if "MultipleChoice" in name else ["LABEL_0", "LABEL_1"]  # one a choice
        assert config["architectures"] == [name] and list(config["id2label"].values()) == labels
    with pytest.raises(UserError, match="not empty; name another folder"):
        run_main("--export", hf / "RACE", "--init", hf / "RACE")
    with pytest.raises(UserError, match="not empty; name another folder"):
        run_main("--export", language_model, "--init", hf / "RACE")
    with pytest.raises(UserError, match="name one of its models: .*CoLA"):
        run_main("--export", tmp_path / "none", "--init", finetuned / "ft0")
    cfg = tiny(init=str(finetuned / "ft0" / "CoLA"))
    source = albert.read_source(cfg)
    model = albert.Classifier(cfg, 2)  # the head of another task of as many classes is not taken
    assert "made anew: none" in albert.start_from(model, source, "CoLA")
    assert "made anew: head.bias, head.weight" in albert.start_from(model, source, "RTE")


def test_finetuning_resumes_to_the_same_result(language_model, tasks, tmp_path, monkeypatch):
    words = ["--finetune", "CoLA", *FAST, "--glue", tasks / "glue", "--init", language_model, "--finetune_dropout", "0.1", "--accumulate", "2",
             "--eval_every", "6"]
    run_main(*words, "--out", tmp_path / "whole")
    calls = kill(monkeypatch, "schedule", 17)  # for two groups of weights: in update 9 of 12, after the checkpoint of update 6
    with pytest.raises(KeyboardInterrupt):
        run_main(*words, "--out", tmp_path / "parts")
    run_main(*words, "--out", tmp_path / "parts")
    assert len(calls) == 17 + 12
    one, two = (owned(tmp_path / run / "CoLA")["CoLA"] for run in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (tmp_path / "whole" / "jobs" / "CoLA-0.json").read_text() == (tmp_path / "parts" / "jobs" / "CoLA-0.json").read_text()
    with pytest.raises(UserError, match="made with other settings: tasks"):
        run_main(*words[:1], "CoLA,RTE", *words[2:], "--out", tmp_path / "whole")


def open_task(name, tasks, tokenizer, **changes):
    from common import tasks as common_tasks
    cfg = tiny(glue=str(tasks / "glue"), squad=str(tasks / "squad"), race=str(tasks / "race"), finetune_batch=4, finetune_epochs=1.0, **changes)
    return cfg, common_tasks.open_task(name, cfg, tokenizer, albert.recipes(cfg), {"RACE": albert.RaceTask})


@pytest.mark.parametrize("name", ["SQuAD1.1", "SQuAD2.0", "RACE"])
def test_predictions_of_tasks_that_are_no_classes(name, corpus, tasks, tmp_path):
    cfg, task = open_task(name, tasks, load_tokenizer(corpus), vocab_size=50, positions=90)  # batches are padded to a multiple of 8
    model = {"SQuAD1.1": albert.SpanModel, "SQuAD2.0": albert.AnswerModel, "RACE": lambda cfg: albert.MultipleChoice(cfg, 1)}[name](cfg)
    found = albert.predict(model, task, "dev", cfg, torch.device("cpu"))
    metrics = albert.write_predictions(task, {"dev": found}, tmp_path)
    assert 0 <= metrics["main"] <= 1
    if name == "RACE":
        assert found.sum(1) == pytest.approx(1) and (tmp_path / "dev_predictions.txt").exists()
    else:
        assert set(found.nbest) == {question.id for question in task.rows["dev"]} == set(json.loads((tmp_path / "predictions.json").read_text()))


def test_questions_that_all_have_answers_need_no_threshold(corpus, tasks, tmp_path):
    from common import squad
    _, task = open_task("SQuAD2.0", tasks, load_tokenizer(corpus))
    task.rows["dev"] = [question for question in task.rows["dev"] if question.answers]
    ids = [question.id for question in task.rows["dev"]]
    found = squad.Predictions(dict.fromkeys(ids, "winter house"), dict.fromkeys(ids, [{"text": "winter house"}]), dict.fromkeys(ids, 9.0))
    metrics = albert.write_predictions(task, {"dev": found}, tmp_path)
    assert metrics["main"] == metrics["f1"] == 1.0 and "best_f1_thresh" not in metrics


def test_a_diverged_fine_tuning_scores_below_all_and_is_said(language_model, tasks, tmp_path, capsys):
    run_main("--finetune", "CoLA", *FAST, "--glue", tasks / "glue", "--init", language_model, "--out", tmp_path / "ft", "--finetune_lr", "1e30",
             "--eval_every", "12")
    out = capsys.readouterr().out
    assert "a prediction on CoLA is not finite" in out and "1 diverged" in out
    line = json.loads((tmp_path / "ft" / "done.json").read_text())["tasks"]["CoLA"]
    assert line["metrics"]["main"] == -1.0 and line["diverged"] == 1 and not (tmp_path / "ft" / "CoLA" / "checkpoint.pt").exists()


def test_ensembles_take_the_members_that_are_best_on_dev():
    """Sec. 4.9. The right class of four rows is 0; a is right on all but the last, b on all but the first, c on none."""
    def rows(*shares):
        return torch.tensor([[share, 1 - share] for share in shares])

    class Task:
        @staticmethod
        def score(split, found):
            assert split == "dev"
            return {"main": (found.argmax(-1) == 0).double().mean().item()}

    members = {"c": rows(0.0, 0.0, 0.0, 0.0), "b": rows(0.4, 0.9, 0.9, 0.9), "a": rows(0.7, 0.9, 0.9, 0.4)}
    assert albert.choose_members(members, Task) == ["b", "a"]
    assert albert.choose_members({"c": members["c"]}, Task) == ["c"]
    assert albert.choose_members({"a": members["a"], "also a": members["a"]}, Task) == ["a", "also a"]  # of equals the larger ensemble


def test_ensembles_of_spans_average_what_several_models_propose():
    def member(first, second, share, odds):
        spans = [{"text": first, "score": 1.0, "probability": share}, {"text": second, "score": 0.0, "probability": 1 - share}]
        return {"nbest": {"q": spans}, "null_odds": {"q": odds}}

    members = [member("a", "b", 0.7, 1.0), member("b", "a", 0.9, -2.0)]
    found = albert.average_predictions(members)
    assert [(span["text"], span["probability"]) for span in found.nbest["q"]] == [("b", pytest.approx(0.6)), ("a", pytest.approx(0.4))]
    assert found.null_odds == {"q": -0.5} and found.texts == {"q": "b"}


def test_beam_search_of_the_answer_head_is_exhaustive_where_it_is_wide_enough():
    torch.manual_seed(0)
    model = albert.AnswerModel(tiny(), beams=12).eval()
    ids, segments, lengths = example()
    p_mask = (torch.arange(12) >= lengths[:, None]) | ((torch.arange(12) > 0) & (torch.arange(12) < 5))
    batch = {"ids": ids, "segments": segments, "lengths": lengths, "p_mask": p_mask}
    starts, ends, scores, null = model(batch)
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
    results = {"SQuAD1.1": {"f1": 0.893, "exact": 0.823}, "SQuAD2.0": {"f1": 0.8, "exact": 0.771}, "MNLI": {"accuracy": 0.816},
               "SST-2": {"accuracy": 0.903}, "RACE": {"accuracy": 0.64}}
    tasks = {name: {"metrics": line} for name, line in results.items()}
    assert albert.paper_average(tasks) == pytest.approx(0.8005)  # Table 2: 80.1
    assert albert.paper_average({}) is None and albert.paper_average({**tasks, "RACE": {"metrics": {"main": -1.0}}}) is None


def test_recipes_are_table_14(corpus, tasks):
    from common.tasks import Recipe
    recipes = albert.recipes(albert.Config())
    assert recipes["RTE"] == Recipe(3e-5, 32, steps=800, warmup=0.25, dropout=0.1, length=512)
    assert recipes["SQuAD1.1"] == Recipe(5e-5, 48, steps=3649, warmup=365 / 3649, dropout=0.0, length=384, main="f1")
    assert all(round(recipes[name].warmup * recipes[name].steps) == row[4] for name, row in albert.TABLE14.items())
    _, task = open_task("RTE", tasks, load_tokenizer(corpus), finetune_warmup=0.1)
    assert (task.steps, task.recipe.warmup, task.recipe.length, task.recipe.lr) == (3, 0.1, 40, 3e-5)  # 10 rows, batches of 4, 40 positions


# --- mistakes ------------------------------------------------------------------------------------

@pytest.mark.parametrize("words, message", [
    (["--describe", "--embedding", "256"], "embedding 256 is larger than hidden 64"),
    (["--describe", "--groups", "3"], "groups 3 do not divide the 2 layers"),
    (["--describe", "--share", "none", "--groups", "2"], "groups 2 with share none"),
    (["--describe", "--heads", "5"], "hidden 64 is no multiple of heads 5"),
    (["--pretrain", "--length", "600"], "--length 600"),
    (["--pretrain", "--batch", "10", "--accumulate", "4"], "--batch 10 is no multiple of its 4 parts"),
    (["--finetune", "CoLa,xyz"], "xyz: choose from CoLA"),
    (["--finetune", "CoLA"], "--finetune needs either --init"),
    (["--export", "x"], "--export needs --init"),
    (["--pretrain", "--warmup", "50"], "--warmup 50"),
    (["--describe", "--init", "nowhere"], "nowhere: no run folder is here"),
])
def test_mistakes_end_in_one_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as found:
        albert.main(words)
    assert message in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize("words", [["--describe", "--share", "some"], ["--pretrain", "--objective", "order"], ["--describe", "--width", "3"]])
def test_choices_and_unknown_flags(words, capsys):
    with pytest.raises(SystemExit) as found:
        albert.main(words)
    assert found.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_departures_are_numbered_in_both_places():
    """Every D-number of the docstring stands where it happens, and the other way round."""
    source = (ROOT / "albert.py").read_text()
    listed, code = re.findall(r"\bD(\d+) ", albert.__doc__.split("Differs:")[1]), source.split('"""', 2)[2]
    assert listed == [str(number) for number in range(1, 18)]
    assert {number for number in re.findall(r"\bD(\d+)\b", code)} == set(listed)


def test_the_ten_questions_name_what_is_there():
    text = (ROOT / "tests" / "claims" / "questions" / "albert.md").read_text()
    answers = re.findall(r"\(((?:`[\w.]+`(?:, )?)+)\)$", text, re.MULTILINE)
    names = [name for answer in answers for name in re.findall(r"`([\w.]+)`", answer)]
    assert len(answers) == 10 and all(functools.reduce(getattr, name.split("."), albert) for name in names)


def test_a_corpus_of_single_sentences_and_a_misplaced_answer(corpus, tasks, language_model, tmp_path):
    from data.text import prepare_corpus
    folder = tmp_path / "lone"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text("the stone river was small.")
    tokenizer = load_tokenizer(corpus)
    tokenizer.save(tmp_path / "prepared")
    prepare_corpus([folder], tokenizer, tmp_path / "prepared", progress=False)
    with pytest.raises(UserError, match="prepared: no two sentences"):
        run_main("--pretrain", *SMALL, "--corpus", tmp_path / "prepared", "--out", tmp_path / "run0")
    (tmp_path / "prepared" / "meta.json").write_text("{")
    with pytest.raises(UserError, match="prepared: no finished corpus is here"):
        run_main("--pretrain", *SMALL, "--corpus", tmp_path / "prepared", "--out", tmp_path / "run")
    with pytest.raises(UserError, match="--vocab_size 77: .*spiece.model has 50 pieces"):
        run_main("--pretrain", *SMALL, "--corpus", corpus, "--out", tmp_path / "run", "--vocab_size", "77")
    (tmp_path / "lines.txt").write_text("\n\n".join(f"the {word} river was small." for word in ("stone", "green", "early", "quiet") * 200))
    with pytest.raises(UserError, match="lines.txt: no two sentences"):
        run_main("--pretrain", *SMALL, "--corpus", tmp_path / "lines.txt", "--out", tmp_path / "lines", "--tokenizer", corpus)
    broken = json.loads((tasks / "squad" / "train-v1.1.json").read_text())
    broken["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1
    (tmp_path / "squad").mkdir()
    shutil.copytree(tasks / "squad", tmp_path / "squad", dirs_exist_ok=True)
    (tmp_path / "squad" / "train-v1.1.json").write_text(json.dumps(broken))
    with pytest.raises(UserError, match="train-v1.1.json.*question q0.*'winter house' is not at character"):
        run_main("--finetune", "SQuAD1.1", *FAST, "--squad", tmp_path / "squad", "--init", language_model, "--out", tmp_path / "ft")


def test_shape_comes_from_init_and_may_not_be_contradicted(language_model, corpus, tmp_path, capsys):
    run_main("--describe", "--init", language_model)
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == sum(found["parts"].values()) == albert.count(albert.LanguageModel(tiny(layers=2, vocab_size=50, positions=64)))
    for flag in (["--hidden", "32"], ["--vocab_size", "77"]):
        with pytest.raises(UserError, match=f"{flag[0]} {flag[1]}: .* has"):
            run_main("--describe", "--init", language_model, *flag)
    pretrain(corpus, tmp_path / "apart", "--share", "none", "--steps", "1")
    with pytest.raises(UserError, match="--layers 8: .* has 2"):  # layers of their own: another number does not fit
        run_main("--describe", "--init", tmp_path / "apart", "--layers", "8")


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
