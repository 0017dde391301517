"""albert.py: published counts, parity with transformers, LAMB, masking, sentence order, resuming, fine-tuning."""
import dataclasses
import json
import math
import shlex
import shutil
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import albert
from common import finetune as common_finetune
from common.cli import UserError
from common.distributed import Ranks
from common.files import read_json, read_jsonl
from common.tokenization import load_tokenizer
from conftest import ROOT, filled
from small_runs import TRAINED, write
from test_corpus import made_by_hand
from data import hf_folder, hf_models
from data.corpus import Corpus
from data.inputs import Data
from data.text import train_sentencepiece
from tests.claims import albert as claims

CPU = torch.device("cpu")
TINY = albert.Config(vocab_size=60, layers=4, hidden=16, heads=2, ffn=32, embedding=8, dropout=0.0, positions=40,
                     length=16)


def tiny(**changes):
    return dataclasses.replace(TINY, **changes)


def example(vocab=60, B=3, T=12):
    """ids, segments (B, T), lengths (B,) with padding."""
    ids = torch.randint(5, vocab, (B, T), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([T, T - 3, T - 7])
    segments = (torch.arange(T) >= 5).long().expand(B, T).contiguous()
    return ids.masked_fill(torch.arange(T) >= lengths[:, None], 0), segments, lengths


def run_main(*words):
    assert albert.main([str(word) for word in words]) == 0


# --- parameters ----------------------------------------------------------------------------------

COUNTS = [  # settings, A, B, C of the facts behind Tables 1, 3, 4, 12
    ("bert-base", {}, 108_490_752, 109_081_344, 109_705_010), ("bert-large", {}, 333_557_760, 334_607_360, 335_691_058),
    ("base", {}, 11_092_992, 11_683_584, 11_813_810), ("large", {}, 16_634_368, 17_683_968, 17_847_474),
    ("xlarge", {}, 54_528_512, 58_724_864, 59_021_490), ("xxlarge", {}, 205_814_272, 222_595_584, 223_158_450),
    ("base", dict(layers=3, hidden=6144, heads=96, ffn=24576), 457_763_328, 495_518_208, 496_347_314),
    ("base", dict(share="none", embedding=64), 87_057_408, 87_648_000, 87_728_882),
    ("base", dict(share="none"), 89_059_584, 89_650_176, 89_780_402),
    ("base", dict(share="none", embedding=256), 93_063_936, 93_654_528, 93_883_442),
    ("base", dict(embedding=64), 9_090_816, 9_681_408, 9_762_290),
    ("base", dict(embedding=256), 15_097_344, 15_687_936, 15_916_850),
    ("base", dict(embedding=0), 30_524_160, 31_114_752, 31_738_418),
    ("base", dict(embedding=768), 30_524_160, 31_114_752, 31_738_418),  # Table 3's 31M
    ("base", dict(embedding=768, mapped=True), 31_114_752, 31_705_344, 32_329_010),  # as Hugging Face has it
    ("base", dict(embedding=0, share="attention"), 82_487_808, 83_078_400, 83_702_066),
    ("base", dict(embedding=0, share="ffn"), 56_527_104, 57_117_696, 57_741_362),
    ("base", dict(share="attention"), 63_056_640, 63_647_232, 63_777_458),
    ("base", dict(share="ffn"), 37_095_936, 37_686_528, 37_816_754)]


def test_parameter_counts_to_the_unit():
    for preset, settings, *expected in COUNTS:
        found = claims.countings(albert.Config(**albert.PRESETS[preset], **settings))
        assert [found[name] for name in "ABC"] == expected, (preset, settings)


def test_other_countings():
    """D: position and segment tables H wide; grouped sharing; one published count that no counting gives."""
    presets = [albert.PRESETS[name] for name in ("base", "large", "xlarge", "xxlarge")]
    wide = [claims.countings(albert.Config(**preset))["D"] for preset in presets]
    assert wide == [12_013_824, 18_146_304, 59_715_584, 224_643_072]
    groups = [round(claims.countings(albert.Config(groups=G))["B"] / 1e4) / 100 for G in (1, 2, 3, 4, 6, 12)]
    assert groups == [11.68, 18.77, 25.86, 32.95, 47.12, 89.65]
    odd = [name for name, (cfg, size) in claims.published().items()
           if size not in [round(value / 1e6) for value in claims.countings(cfg).values()]]
    assert odd == ["xxlarge"] and len(claims.published()) == 20
    with torch.device("meta"):  # heads of tasks, as transformers counts them
        assert albert.count(albert.Classifier(albert.Config(), 2)) == 11_685_122
        assert albert.count(albert.SpanModel(albert.Config())) == 11_094_530
        assert albert.count(albert.AnswerModel(albert.Config()).answer) == 2_364_674


# --- model ---------------------------------------------------------------------------------------


def test_padding_changes_nothing_and_recomputing_changes_no_gradient():
    torch.manual_seed(0)
    model = albert.LanguageModel(tiny())
    ids, segments, lengths = example()
    places = torch.tensor([[1, 2], [3, 4], [0, 2]])
    logits, order = model(ids, segments, lengths, places)
    for row, n in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        alone, alone_order = model(ids[one, :n], segments[one, :n], None, places[one])
        torch.testing.assert_close(alone[0], logits[row], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(alone_order[0], order[row], rtol=1e-5, atol=1e-6)
    (logits.sum() + order.sum()).backward()
    again = albert.LanguageModel(tiny(recompute=True))
    again.load_state_dict(model.state_dict())
    (sum(part.sum() for part in again(ids, segments, lengths, places))).backward()
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
        gradients = [torch.autograd.grad(states.square().sum(), [*encoder.parameters()]) for states in (part, expected)]
        for one, two in zip(*gradients):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_dropout_of_the_ffn_output_is_applied():
    """Hugging Face builds it and never calls it."""
    block, x = albert.FeedForward(tiny(dropout=0.5)).train(), torch.randn(1, 4, 16)
    assert not torch.equal(block(x), block(x))


def test_beam_search_of_the_answer_head_is_exhaustive_where_it_is_wide_enough():
    torch.manual_seed(0)
    model = albert.AnswerModel(tiny(), beams=12).eval()
    ids, segments, lengths = example()
    p_mask = (torch.arange(12) >= lengths[:, None]) | ((torch.arange(12) > 0) & (torch.arange(12) < 5))
    batch = {"ids": ids, "segments": segments, "lengths": lengths, "p_mask": p_mask}
    starts, ends, scores, null = model(batch)
    assert scores.shape == (3, 144) and null.shape == (3,)
    x, start, _ = model.read(batch)
    for row, s in ((row, s) for row in range(3) for s in (0, 6) if not p_mask[row, s]):
        # the loss's score of a span, given its start, is the beam's
        end = model.end_logits(x, torch.full((3, 1), s), p_mask)[row, 0].log_softmax(-1)
        found = scores[row][(starts[row] == s) & (ends[row] == 0)]
        torch.testing.assert_close(found, (start[row].log_softmax(-1)[s] + end[0])[None], rtol=1e-5, atol=1e-5)
    whole = torch.cat([x, x[:, 6:7].expand_as(x)], dim=-1)  # the map of [token; start] as XLNet's code writes it
    mixed = model.answer["end_norm"](torch.tanh(model.answer["end_mix"](whole)))
    expected = model.answer["end"](mixed)[..., 0].masked_fill(p_mask, -1e30)
    torch.testing.assert_close(model.end_logits(x, torch.full((3, 1), 6), p_mask)[:, 0], expected, rtol=1e-5, atol=1e-5)


# --- Hugging Face --------------------------------------------------------------------------------

PARITY = tiny(embedding=8, groups=2)
STORED = json.loads((ROOT / "tests" / "albert_parity.json").read_text())  # by transformers 5.23.0, torch 2.13.0


def formula_model(kind, cfg, *args):
    """A model whose weights are a function of their names' order alone, so that expected numbers can be stored."""
    model, state = kind(cfg, *args), {}
    for index, (name, value) in enumerate(sorted(model.state_dict().items())):
        waves = (torch.arange(value.numel(), dtype=torch.float64) * (0.37 + 0.011 * index)).sin().mul(0.4).float()
        state[name] = waves.view(value.shape) + (1.0 if name.endswith("norm.weight") else 0.0)
    model.load_state_dict(state)
    return model.eval()


def inputs_of_heads():
    """(batch of ours, inputs of transformers) with the labels of every head."""
    ids, segments, lengths = example()
    real = torch.arange(12) < lengths[:, None]
    words = torch.where(torch.arange(12) % 3 == 1, ids, -100).masked_fill(~real, -100)
    spans = torch.tensor([2, 0, 1]), torch.tensor([4, 0, 3])
    batch = {"ids": ids, "segments": segments, "lengths": lengths, "words": words, "start": spans[0], "end": spans[1]}
    return batch, {"input_ids": ids, "token_type_ids": segments, "attention_mask": real.long()}


def pretraining_numbers(model, batch):
    logits, order = model(batch["ids"], batch["segments"], batch["lengths"], torch.arange(12).expand(3, 12))
    words, swapped = albert.mean_loss(logits.flatten(0, 1), batch["words"].flatten()), torch.tensor([0, 1, 1])
    return [logits, order, words + albert.mean_loss(order, swapped), words]


def one_example(values):
    """Three inputs as the choices of one."""
    return {name: value[None] for name, value in values.items()}


HEADS = {  # name: (our model, its outputs, the end of their class's name, labels)
    "pretraining": (albert.LanguageModel, 2, "PreTraining", None),
    "masked": (albert.LanguageModel, 2, "MaskedLM", None),
    "classification": (albert.Classifier, 3, "SequenceClassification", torch.tensor([2, 0, 1])),
    "regression": (albert.Classifier, 1, "SequenceClassification", torch.tensor([2.5, 0.0, 1.0])),
    "choice": (albert.MultipleChoice, 1, "MultipleChoice", torch.tensor([1])),
    "span": (albert.SpanModel, 2, "QuestionAnswering", None)}


def our_numbers(kind):
    """(the model, its logits and its loss) of a head on one example."""
    make, outputs, _, labels = HEADS[kind]
    model, (batch, _) = formula_model(make, PARITY, *[outputs] * issubclass(make, albert.Classifier)), inputs_of_heads()
    if make is albert.LanguageModel:
        logits, order, loss, words = pretraining_numbers(model, batch)
        return model, [logits, order, loss] if kind == "pretraining" else [logits, words]
    batch = {**(one_example(batch) if kind == "choice" else batch), "labels": labels}
    found = model(batch)
    return model, [*(found.unbind(-1) if kind == "span" else [found]), model.loss(batch)]


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_numbers_equal_those_that_transformers_gave(kind):
    for ours, theirs in zip(our_numbers(kind)[1], map(torch.tensor, STORED[kind]), strict=True):
        if ours.dim() == 3:  # a corner of the word logits is stored
            ours = ours[:, :theirs.shape[1], :theirs.shape[2]]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_parity_with_transformers(kind, tmp_path):
    """Of a folder that we write, which they read."""
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face: pip install transformers")
    (model, ours), (batch, call), (_, outputs, name, labels) = our_numbers(kind), inputs_of_heads(), HEADS[kind]
    hf_folder.write_weights(tmp_path / "model.safetensors", hf_models.rename_albert(model.state_dict(), 2))
    write(tmp_path / "config.json", hf_models.albert_config(PARITY, f"AlbertFor{name}", outputs, 2))
    theirs, info = getattr(transformers, f"AlbertFor{name}").from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    call = one_example(call) if kind == "choice" else call
    call |= {"pretraining": {"labels": batch["words"], "sentence_order_label": torch.tensor([0, 1, 1])},
             "masked": {"labels": batch["words"]},
             "span": {"start_positions": batch["start"], "end_positions": batch["end"]}}.get(kind, {"labels": labels})
    found = theirs.eval()(**call)
    keys = {"pretraining": ["prediction_logits", "sop_logits"], "span": ["start_logits", "end_logits"]}
    for one, key in zip(ours, [*keys.get(kind, ["logits"]), "loss"], strict=True):
        torch.testing.assert_close(one, found[key], rtol=1e-5, atol=1e-5)


def read_back(folder):
    """(Config, Source) of a folder given as --init."""
    cfg = tiny(init=str(folder))
    return cfg, albert.read_source(cfg)


@pytest.mark.peers
@pytest.mark.parametrize("act, E, groups", [("gelu_new", 8, 2), ("gelu", 16, 1)])
@torch.no_grad()
def test_parity_with_transformers_in_the_other_direction(act, E, groups, tmp_path):
    """Of a folder that they write; E = H has a mapping there."""
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face: pip install transformers")
    torch.manual_seed(0)
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(
        vocab_size=60, embedding_size=E, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, hidden_act=act,
        intermediate_size=32, num_hidden_groups=groups, max_position_embeddings=40)).eval()
    theirs.save_pretrained(tmp_path)
    (cfg, source), (batch, call) = read_back(tmp_path), inputs_of_heads()
    ours = albert.LanguageModel(cfg).eval()
    albert.start_from(ours, source)
    (logits, order, *_), found, real = pretraining_numbers(ours, batch), theirs(**call), call["attention_mask"].bool()
    torch.testing.assert_close(logits[real], found.prediction_logits[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(order, found.sop_logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [
    {}, dict(layers=6, groups=3), dict(embedding=16), dict(embedding=16, mapped=True), dict(share="attention"),
    dict(share="ffn", groups=2),
    dict(embedding=0, share="none"), dict(activation="relu")])
@torch.no_grad()
def test_round_trip_through_a_hugging_face_folder(settings, tmp_path):
    cfg, model = tiny(**settings), albert.LanguageModel(tiny(**settings)).eval()
    groups = max(albert.blocks(cfg))
    hf_folder.write_weights(tmp_path / "model.safetensors", hf_models.rename_albert(model.state_dict(), groups))
    write(tmp_path / "config.json", hf_models.albert_config(cfg, "AlbertForPreTraining", 2, groups))
    back, source = read_back(tmp_path)
    again = albert.LanguageModel(back).eval()
    assert "made anew: none; left out: none" in albert.start_from(again, source)
    inputs = (*example(), torch.arange(12).expand(3, 12))
    for one, other in zip(model(*inputs), again(*inputs)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


HARD = [
    "“Curly” quotes… — dashes, £5 (1,000, 2,500)", "In 2011, he said ``hello'' to 3, 4, and 5.", "日本語 テスト", "",
    "naïve café Ångström ﬁne ½ ²", "a\u200bb\tc\x85d  e", "emoji 👩\u200d👩\u200d👧 x", "don't \"quote\" -- x - y.",
    "tab\there ", "e\u0301 \u0308a",
    *(f"{'=' * k} In {2000 + k}, {k},{100 + k} of {k},5{'-' * k}" for k in range(1, 60))]


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["spiece", "cased"])
def test_an_exported_tokenizer_cuts_text_as_ours_does(kind, tmp_path):
    """On 1,000 lines of Python's documentation and on hard ones."""
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face: pip install transformers")
    lines = [line for _, text in sorted(topics.items()) for line in text.split("\n") if line.strip()]
    lines = [*lines[::len(lines) // 1000][:1000], *HARD]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    path = train_sentencepiece([tmp_path / "text.txt"], tmp_path / "spiece.model", 1000, lower=kind == "spiece")
    ours = load_tokenizer(path, kind != "cased")
    hf_folder.write_tokenizer(tmp_path, ours, 77)
    write(tmp_path / "config.json", {"model_type": "albert"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = theirs(lines, add_special_tokens=False)["input_ids"]
    assert [line for line, one, other in zip(lines, ours.encode_batch(lines), found) if one != other] == []
    pair, (first, second) = theirs("the stone", "was small"), ours.encode_batch(["the stone", "was small"])
    assert pair["input_ids"] == [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs.model_max_length == 77 and theirs.mask_token_id == ours.mask_id


@pytest.mark.parametrize("task, kept", [("CoLA", True), ("RTE", False), ("", False)])
def test_a_head_of_another_task_is_left_out_and_said(task, kept, ready, tmp_path):
    """Whatever its labels are; and it is exported as what it is."""
    name, heads = "AlbertForSequenceClassification", albert.Classifier(tiny(), 2).state_dict()
    hf_folder.write_weights(tmp_path / "model.safetensors", hf_models.rename_albert(heads, 1))
    write(tmp_path / "config.json", hf_models.albert_config(TINY, name, 2, 1, ("NEG", "POS"), task))
    cfg, source = read_back(tmp_path)
    model = albert.Classifier(cfg, 2)
    line = albert.start_from(model, source, "CoLA")
    assert torch.equal(model.head.weight, heads["head.weight"]) == kept == ("made anew: none" in line)
    assert (f"the head of {task or name} is left out" in line) != kept
    tokenizer = load_tokenizer(ready["corpus"])
    said = hf_models.write_albert(tmp_path / "again", source.weights, source.task, cfg, 1, tokenizer)
    assert f": {name}, " in said and read_json(tmp_path / "again" / "config.json")["architectures"] == [name]


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
    gradients, lrs = [], [0.01 * albert.schedule(step, 20, 5) for step in range(20)]
    for lr in lrs:
        gradients.append({name: torch.randn(value.shape).double().numpy() for name, value in weights.items()})
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


def text_batch(rows, T=64):
    """Two segments in each row."""
    generator = torch.Generator().manual_seed(0)
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


@pytest.mark.parametrize("budget", [3, 10])
def test_masked_ngrams_are_whole_words_of_one_segment(budget):
    ids, segments, generator = text_batch(2000)
    chosen = albert.pick_ngrams(ids, segments, FakeTokenizer, torch.full((2000,), budget), 3, generator)
    assert not chosen[:, [0, 30, 63]].any() and chosen.sum(1).max() <= budget
    assert (chosen.sum(1) == budget).float().mean() > 0.9  # single pieces are common enough to fill what is left
    text = ids > 4
    begins = text & (torch.from_numpy(FakeTokenizer.starts_word)[ids] | ~F.pad(text, (1, 0))[:, :-1])
    assert not (text[:, 1:] & ~begins[:, 1:] & (chosen[:, 1:] != chosen[:, :-1])).any()  # a word is taken whole, or not


def test_ngrams_of_the_worked_row(monkeypatch):
    """What pick_ngrams' docstring works out: shortened to the budget, refused where a word is taken, in one segment."""
    ids = torch.tensor([[2, 7, 7, 7, 7, 6, 6, 3, 7, 7, 3]])  # 6 continues a word
    segments = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]])
    turns = torch.tensor([[0.4, 0.2, 0.1, 0.6, 0.5, 0.3, 0, 0, 0, 0, 0]])  # words 2, 1, 5, 0, 4, 3
    monkeypatch.setattr(torch, "rand", lambda *shape, generator: turns)
    monkeypatch.setattr(albert, "ngram_lengths", lambda *args: torch.tensor([[3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1]]))
    chosen = albert.pick_ngrams(ids, segments, FakeTokenizer, torch.tensor([6]), 3, None)
    assert chosen[0].nonzero()[:, 0].tolist() == [1, 3, 4, 5, 6, 9]


def test_masking_is_80_10_10():
    ids, segments, generator = text_batch(3000)
    changed, places, labels = albert.mask_tokens(ids, segments, FakeTokenizer, albert.Config(length=64), generator)
    used, originals, now = labels != -100, ids.gather(1, places), changed.gather(1, places)
    assert places.shape == (3000, 10) and used.float().mean() > 0.98
    assert torch.equal(labels[used], originals[used]) and (labels[used] > 4).all()
    n, masked, kept = used.sum().item(), (now[used] == 4).sum().item(), (now == originals)[used].sum().item()
    assert abs(masked - 0.8 * n) < 4 * math.sqrt(0.16 * n) + n / 1000
    assert abs(kept - 0.1 * n) < 4 * math.sqrt(0.09 * n) + n / 1000
    untouched = torch.ones_like(ids, dtype=torch.bool).scatter(1, places, ~used)
    assert torch.equal(changed[untouched], ids[untouched])
    assert albert.masked_count(albert.Config()) == 77


def test_the_number_of_predictions_can_be_the_official_20():
    """D3: min(20, 15% of the tokens)."""
    counts = [albert.masked_count(albert.Config(length=length, max_predictions=20)) for length in (128, 512)]
    assert counts == [19, 20]
    ids, segments, generator = text_batch(100)
    cfg = albert.Config(length=64, max_predictions=4)
    _, places, labels = albert.mask_tokens(ids, segments, FakeTokenizer, cfg, generator)
    assert places.shape == (100, 4) and ((labels != -100).sum(1) == 4).float().mean() > 0.9


def fake_parts(rows=600):
    """The first 400 rows have two parts, the others are one."""
    first, second = torch.tensor([[10, 11, 12, 0, 0, 0]]), torch.tensor([[20, 21, 0, 0, 0, 0]])
    return SimpleNamespace(
        first=first.repeat(rows, 1), first_length=torch.full((rows,), 3), second=second.repeat(rows, 1),
        second_length=2 * (torch.arange(rows) < 400).long(), other=torch.full((rows, 6), 30),
        other_length=torch.full((rows,), 3))


INPUTS = {"in order": ([2, 10, 11, 12, 3, 20, 21, 3, 0], [0, 0, 0, 0, 0, 1, 1, 1, 0]),
          "swapped": ([2, 20, 21, 3, 10, 11, 12, 3, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0]),
          "foreign": ([2, 10, 11, 12, 3, 30, 30, 30, 3], [0, 0, 0, 0, 0, 1, 1, 1, 1])}


@pytest.mark.parametrize("objective, other", [("sop", "swapped"), ("nsp", "foreign"), ("none", None),
                                              ("shuffled", "swapped")])
def test_inputs_of_sentence_pairs_and_their_labels(objective, other):
    ids, segments, lengths, labels = albert.sentence_pairs(fake_parts(), FakeTokenizer, objective,
                                                           torch.Generator().manual_seed(0))
    plain = (ids[:400] == torch.tensor(INPUTS["in order"][0])).all(1)
    for name, rows in (("in order", plain), (other, ~plain)):
        if rows.any():
            assert (ids[:400][rows] == torch.tensor(INPUTS[name][0])).all()
            assert (segments[:400][rows] == torch.tensor(INPUTS[name][1])).all()
    assert plain.all() if other is None else 0.4 < plain.float().mean() < 0.6
    assert (lengths[:400] == torch.where(plain, 8, 9 if objective == "nsp" else 8)).all()
    assert (labels[400:] == -100).all() and not segments[400:].any() and (lengths[400:] == 5).all()  # D1
    assert (ids[400:] == torch.tensor([2, 10, 11, 12, 3, 0, 0, 0, 0])).all()
    if objective == "none":
        assert (labels == -100).all()
    else:  # never wrong; shuffled: right by chance
        right = (labels[:400] == (~plain).long()).float().mean()
        assert 0.4 < right < 0.6 if objective == "shuffled" else right == 1
        assert 0.4 < (labels[:400] == 1).float().mean() < 0.6


# --- pre-training --------------------------------------------------------------------------------

def owned(folder):
    """What the checkpoint of a run folder, or of a task's folder, holds."""
    return torch.load(folder / "checkpoint.pt", weights_only=True)["owned"]


def pretrain(ready, out, *words):
    program, *small = shlex.split(filled(TRAINED["albert"], **ready))
    run_main(*small, "--out", out, *words)
    return owned(out)["model"]


def lines_of(folder, phase):
    return [line for line in read_jsonl(folder / "log.jsonl") if line.get("phase") == phase]


def test_evaluation_says_how_much_it_scored_and_is_the_same_for_every_seed(ready, monkeypatch):
    ranks, tokenizer = Ranks(0, 1, CPU), load_tokenizer(ready["corpus"])
    text = Data(CPU, tokenizer, *Corpus(ready["corpus"], tokenizer).split(0.5))
    cfg = tiny(layers=1, vocab_size=300, positions=64, length=64, dev_rows=16)
    model = albert.LanguageModel(cfg)
    first, second = (albert.evaluate_language_model(model, text, dataclasses.replace(cfg, seed=seed), ranks)
                     for seed in (0, 1))
    assert first == second and 16 < first["scored"]["mlm"] <= 160 and 0 < first["scored"]["sop"] <= 16
    assert 0 <= first["mlm"] <= 1 and first["nsp"] is first["sop"] is None  # no accuracy of 16 pairs
    more = albert.evaluate_language_model(model, text, dataclasses.replace(cfg, dev_rows=400), ranks)
    assert more["scored"]["sop"] >= 50 and 0 <= more["nsp"] <= 1 and 0 <= more["sop"] <= 1
    batch, rows = albert.language_batch, []
    monkeypatch.setattr(albert, "language_batch", lambda *all: rows.append(all[5]) or batch(*all))
    albert.evaluate_language_model(model, text, dataclasses.replace(cfg, dev_rows=100), ranks)
    assert rows == [64, 36] * 3  # --dev_rows is what is scored, also where it fills no whole batch


@pytest.mark.parametrize("opening, share", [(50, 0.5), (51, 1.0)])
def test_order_by_the_first_piece_alone(opening, share, tmp_path):
    """Nothing in text whose sentences all begin alike; all of SOP where documents of two sentences open with a piece of
    their own, and nothing of NSP, whose second parts all come second."""
    tokens = np.random.default_rng(0).integers(5, 50, 4000 * 5)
    tokens[::5] = 50
    tokens[::10] = opening
    corpus = made_by_hand(tmp_path, [5] * 4000, [2] * 2000, tokens)
    text = Data(CPU, None, *corpus.split(0.2))
    assert albert.by_first_piece(text, tiny(dev_rows=200)) == {"nsp": 0.5, "sop": share}
    pieces = np.bincount(np.concatenate([text.dev.tokens[start:end] for start, end in zip(*text.dev.bounds)]))
    assert text.dev.commonest() == pieces.max() / pieces.sum()


def test_text_to_evaluate_on_can_be_given(ready, tmp_path):
    """Sec. 4.2.1: then nothing of the corpus is held out."""
    text = tmp_path / "dev.txt"
    text.write_text("\n\n".join(f"the {a} river was small.\nthe house was {b}." for a in ("stone", "green", "early")
                                for b in ("quiet", "old")))
    pretrain(ready, tmp_path / "run", "--dev_corpus", text)
    assert read_json(tmp_path / "run" / "corpus" / "dev" / "meta.json")["documents"] == 6
    found, look = read_json(tmp_path / "run" / "done.json"), lines_of(tmp_path / "run", "pretrain")[-1]
    assert found["scored"]["mlm"] > 0 and found["sop"] == look["dev_sop_accuracy"]


def test_only_what_was_trained_is_printed():
    """And no accuracy of fewer than 50 pairs."""
    found = {"mlm": 0.5, "nsp": None, "sop": 0.6, "scored": {"mlm": 9, "nsp": 1, "sop": 50},
             "by_first_piece": {"nsp": 0.5}}
    assert albert.accuracy_line(found, "none") == "held-out accuracy in percent: mlm 50.0 (of 9)"
    line = albert.accuracy_line(found, "sop")
    assert line.endswith("mlm 50.0 (of 9), nsp not scored (1 held out), sop 60.0 (of 50)")


def test_order_loss_is_the_mean_over_labelled_sequences():
    """Chance is ln 2 for any share of them; the loss that is optimized counts the others as 0 (D1)."""
    torch.manual_seed(0)
    model, (ids, segments, lengths) = albert.LanguageModel(tiny()), example()
    torch.nn.init.zeros_(model.order.weight)
    batch = ids, segments, lengths, torch.tensor([[1], [2], [3]]), ids[:, :1]
    sums, optimizer = torch.zeros(4), albert.Lamb(model.parameters(), 0.0)
    batches = [(*batch, torch.tensor(order)) for order in ([1, -100, -100], [-100, 0, -100])]
    albert.update(model, model, optimizer, batches, sums, tiny(accumulate=2), Ranks(0, 1, CPU))
    order, labelled = sums[1:3].tolist()
    assert order == pytest.approx(math.log(2) / 3) and labelled == pytest.approx(1 / 3)


def test_order_loss_in_the_log(ready, tmp_path):
    pretrain(ready, tmp_path / "sop", "--steps", "1", "--batch", "64")
    line = lines_of(tmp_path / "sop", "pretrain")[0]
    assert line["order_loss"] == pytest.approx(math.log(2), abs=0.02)
    assert line["loss"] <= line["mlm_loss"] + line["order_loss"] + 1e-6
    pretrain(ready, tmp_path / "none", "--steps", "1", "--objective", "none")
    line = lines_of(tmp_path / "none", "pretrain")[0]
    assert line["order_loss"] is None and line["loss"] == line["mlm_loss"]


def test_learning_rate_goes_with_the_root_of_the_batch(ready, tmp_path):
    pretrain(ready, tmp_path, "--lr", "1.76e-3", "--batch", "16", "--steps", "1", "--warmup", "0")
    assert lines_of(tmp_path, "pretrain")[0]["lr"] == pytest.approx(1.1e-4, rel=1e-3)


def test_depth_warm_start_takes_everything_over(ready, tmp_path, capsys):
    """Table 11."""
    shallow = owned(ready["albert"])["model"]
    deep = pretrain(ready, tmp_path, "--init", ready["albert"], "--layers", "4", "--lr", "1e-30", "--steps", "1")
    assert f"{len(shallow)} weights taken over; made anew: none; left out: none" in capsys.readouterr().out
    assert all(torch.allclose(shallow[name], deep[name]) for name in shallow)
    assert read_json(tmp_path / "config.json")["settings"]["layers"] == 4


# --- fine-tuning ---------------------------------------------------------------------------------

FAST = ["--finetune_epochs", "2", "--finetune_batch", "4", "--finetune_lr", "1e-3", "--finetune_length", "48",
        "--device", "cpu"]
KINDS = ("CoLA", "MNLI", "RTE", "SQuAD1.1", "SQuAD2.0", "RACE")


def data_flags(ready):
    return [word for name in ("glue", "squad", "race") for word in (f"--{name}", ready[name])]


@pytest.fixture(scope="module")
def finetuned(ready, tmp_path_factory):
    """Two run folders of --finetune with every kind of task, the second with two runs of each."""
    folder = tmp_path_factory.mktemp("finetuned")
    for seed in (0, 1):
        run_main("--finetune", ",".join(KINDS), *FAST, *data_flags(ready), "--eval_every", "1",
                 "--init", ready["albert"], "--out", folder / f"ft{seed}", "--runs", seed + 1, "--seed", seed)
    return folder


@pytest.mark.slow
def test_finetuning_every_kind_of_task(finetuned):
    folder = finetuned / "ft1"
    result = read_json(folder / "done.json")["tasks"]
    assert set(result) == set(KINDS) and all(line["n"] == 2 and not line["diverged"] for line in result.values())
    assert "made anew: head.bias, head.weight" in result["RTE"]["start"]
    assert "jobs/MNLI-" in result["RTE"]["start"]  # MNLI's best run
    scores = [read_json(folder / "jobs" / f"CoLA-{number}.json")["metrics"]["main"] for number in (0, 1)]
    assert result["CoLA"]["median"] == pytest.approx(np.median(scores))
    metrics = {name: line["metrics"] for name, line in result.items()}
    assert {"f1", "exact"} <= set(metrics["SQuAD1.1"]) and metrics["SQuAD2.0"]["f1"] == metrics["SQuAD2.0"]["main"]
    assert {"middle", "high", "test middle", "test accuracy"} <= set(metrics["RACE"])
    assert "mismatched" in metrics["MNLI"] and "dev_mismatched accuracy" not in metrics["MNLI"]  # it stands there once
    assert (folder / "CoLA" / "CoLA.tsv").read_text().startswith("index\tprediction\n0\t")
    answers, odds = (read_json(folder / "SQuAD2.0" / f"{name}.json") for name in ("predictions", "null_odds"))
    limit = metrics["SQuAD2.0"]["threshold"]
    assert answers.keys() == odds.keys() and all((odds[key] > limit) == (answers[key] == "") for key in answers)


@pytest.mark.slow
def test_ensembles_average_what_run_folders_predict(finetuned, ready, tmp_path):
    members = [finetuned / "ft0", finetuned / "ft1"]
    words = ["--finetune", ",".join(KINDS), *FAST, *data_flags(ready), "--ensemble", *members]
    run_main(*words, "--out", tmp_path / "both")
    chosen = read_json(tmp_path / "both" / "jobs" / "CoLA-0.json")["members"]
    averaged = sum(torch.load(Path(run) / "CoLA" / "predictions.pt")["found"]["test"] / len(chosen) for run in chosen)
    expected = "".join(f"{i}\t{row.argmax().item()}\n" for i, row in enumerate(averaged))
    assert (tmp_path / "both" / "CoLA" / "CoLA.tsv").read_text() == "index\tprediction\n" + expected
    shutil.copytree(ready["glue"], tmp_path / "glue")
    dev = tmp_path / "glue" / "CoLA" / "dev.tsv"
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[::-1]))
    with pytest.raises(UserError, match="its predictions on CoLA are for other data"):
        run_main("--finetune", "CoLA", *FAST, "--glue", tmp_path / "glue", "--out", tmp_path / "other", "--ensemble",
                 *members)


def test_an_exported_model_answers_as_the_folder_of_its_task(ready, tmp_path):
    hf, file = tmp_path / "hf", ready["glue"] / "CoLA" / "test.tsv"
    run_main("--export", hf, "--init", ready["tuned"] / "CoLA")
    assert read_json(hf / "config.json")["finetune_length"] == 16  # of the fine-tuning
    for init, out in ((ready["tuned"] / "CoLA", "ours"), (hf, "theirs")):
        run_main("--predict", file, "--init", init, "--out", tmp_path / out)
    ours, theirs = ((tmp_path / out / "CoLA.tsv").read_text() for out in ("ours", "theirs"))
    assert ours == theirs and len(ours.splitlines()) > 5
    with pytest.raises(UserError, match="no model that was fine-tuned on a task, with its head"):
        run_main("--predict", file, "--init", ready["hf"], "--out", tmp_path / "none")


@pytest.mark.slow
def test_models_of_tasks_are_exported(finetuned, ready, tmp_path):
    hf, ours = tmp_path / "hf", finetuned / "ft0"
    for target, source, name, labels in (
            ("CoLA", ours / "CoLA", "AlbertForSequenceClassification", ["0", "1"]),
            ("SQuAD1.1", ours / "SQuAD1.1", "AlbertForQuestionAnswering", ["LABEL_0", "LABEL_1"]),
            ("SQuAD2.0", ours / "SQuAD2.0", "AlbertModel", ["LABEL_0", "LABEL_1"]),
            ("RACE", ours / "RACE", "AlbertForMultipleChoice", ["LABEL_0"]),
            ("again", hf / "RACE", "AlbertForMultipleChoice", ["LABEL_0"])):
        run_main("--export", hf / target, "--init", source)
        config = read_json(hf / target / "config.json")
        assert config["architectures"] == [name] and list(config["id2label"].values()) == labels
    file = ready["squad"] / "dev-v1.1.json"
    for init, out in ((ours / "SQuAD1.1", "ours"), (hf / "SQuAD1.1", "theirs")):
        run_main("--predict", file, "--init", init, "--out", tmp_path / out)
    answers = [read_json(tmp_path / out / "predictions.json") for out in ("ours", "theirs")]
    assert answers[0] == answers[1] and len(answers[0]) > 1


def test_ensembles_take_the_members_that_are_best_on_dev():
    """Sec. 4.9. Four rows of class 0; a is right on all but the last, b on all but the first, c on none."""
    def rows(*shares):
        return torch.tensor([[share, 1 - share] for share in shares])

    def score(split, found):
        return {"main": (found.argmax(-1) == 0).double().mean().item()}

    task = SimpleNamespace(score=score)
    members = {"c": rows(0.0, 0.0, 0.0, 0.0), "b": rows(0.4, 0.9, 0.9, 0.9), "a": rows(0.7, 0.9, 0.9, 0.4)}
    assert albert.choose_members(members, task) == ["b", "a"]
    assert albert.choose_members({"a": members["a"], "too": members["a"]}, task) == ["a", "too"]  # equal: the larger


def test_ensembles_of_spans_average_what_several_models_propose():
    def member(first, second, share, odds):
        spans = [{"text": first, "score": 1.0, "probability": share},
                 {"text": second, "score": 0.0, "probability": 1 - share}]
        return {"nbest": {"q": spans}, "null_odds": {"q": odds}}

    found = albert.average_predictions([member("a", "b", 0.7, 1.0), member("b", "a", 0.9, -2.0)])
    assert [(span["text"], span["probability"]) for span in found.nbest["q"]] == [("b", pytest.approx(0.6)),
                                                                                 ("a", pytest.approx(0.4))]
    assert found.null_odds == {"q": -0.5} and found.texts == {"q": "b"}
    agreed = [member("a", f"b{number}", 0.5, 0.0) for number in range(4)]  # D22: one model does not beat four
    assert albert.average_predictions([*agreed, member("z", "y", 0.9, 0.0)]).texts == {"q": "a"}


def test_paper_average_averages_squads_two_numbers_first():
    results = {"SQuAD1.1": {"f1": 0.893, "exact": 0.823}, "SQuAD2.0": {"f1": 0.8, "exact": 0.771},
               "MNLI": {"accuracy": 0.816}, "SST-2": {"accuracy": 0.903}, "RACE": {"accuracy": 0.64}}
    found = {name: {"metrics": line} for name, line in results.items()}
    assert albert.paper_average(found) == pytest.approx(0.8005)  # Table 2: 80.1
    assert albert.paper_average({**found, "RACE": {"metrics": {"main": -1.0}}}) is None


def test_recipes_are_table_14():
    recipes = albert.recipes(albert.Config())
    assert recipes["RTE"] == common_finetune.Recipe(3e-5, 32, steps=800, warmup=0.25, dropout=0.1, length=512)
    assert recipes["SQuAD1.1"] == common_finetune.Recipe(5e-5, 48, steps=3649, warmup=365 / 3649, dropout=0.0, length=384,
                                                      main="f1")
    assert all(round(recipes[name].warmup * recipes[name].steps) == row[4] for name, row in albert.TABLE14.items())


@pytest.mark.parametrize("preset, demo", [("demo", True), ("", False), ("base", False)])
def test_the_demos_recipe_is_for_networks_of_its_preset(preset, demo, tmp_path):
    write(tmp_path / "config.json", {"settings": {"preset": preset}} if preset else {"model_type": "albert"})
    cfg = albert.Config("demo", **{**albert.PRESETS["demo"], "init": str(tmp_path), "finetune_lr": 7.0})
    table, line = albert.choose_recipe(cfg)
    expected = albert.PRESETS["demo"] if demo else {"finetune_batch": None, "finetune_epochs": None, "eval_every": 0}
    assert all(getattr(cfg, name) == expected[name] for name in ("finetune_batch", "finetune_epochs", "eval_every"))
    assert "--finetune_lr 7.0" in line and ("not by Table 14" in line) == demo
    assert table == (albert.TABLE14 if preset else albert.V2)


def test_v2_models_have_a_recipe_of_their_own(tmp_path):
    """Known by their config.json: no dropout, and half the learning rate for RACE, at which they would diverge."""
    for dropout, kept, lr in ((0, [0, 0, 0], 1e-5), (0.1, [0.1, 0.1, 0], 2e-5)):
        write(tmp_path / "config.json", {"model_type": "albert", "hidden_dropout_prob": dropout})
        table, line = albert.choose_recipe(albert.Config(init=str(tmp_path)))
        found = albert.recipes(albert.Config(), table)
        assert [found[name].dropout for name in ("RACE", "RTE", "CoLA")] == kept
        assert (found["RACE"].lr, found["RTE"].lr, "a v2 model" in line) == (lr, 3e-5, not dropout)
