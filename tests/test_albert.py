"""albert.py: published counts, parity with transformers, LAMB, masking, sentence order, resuming,
fine-tuning."""
import dataclasses
import json
import math
import shlex
from pydoc_data.topics import topics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import albert
from common.checkpoint import read_json, read_jsonl
from common.distributed import Ranks
from common.finetune import Recipe
from common.tokenization import load_tokenizer
from conftest import ROOT, filled
from data import hf_models
from data.corpus import Corpus
from data.inputs import Data
from data.text import train_sentencepiece
from small_runs import TRAINED, write
from tests.claims import albert as claims

CPU = torch.device("cpu")
TINY = albert.Config(vocab_size=60, layers=4, hidden=16, heads=2, ffn=32, embedding=8, dropout=0.0,
                     positions=40, length=16)


def tiny(**changes):
    return dataclasses.replace(TINY, **changes)


def example():
    """ids, token_type_ids (3, 12), lengths (3,) with padding."""
    ids = torch.randint(5, 60, (3, 12), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([12, 9, 5])
    token_type_ids = (torch.arange(12) >= 5).long().repeat(3, 1)
    ids[torch.arange(12) >= lengths[:, None]] = 0
    return ids, token_type_ids, lengths


def run_main(*words):
    assert albert.main([str(word) for word in words]) == 0


def numbers(text):
    return [int(word) for word in text.split()]


def generator():
    return torch.Generator().manual_seed(0)


close = torch.testing.assert_close

# --- parameters ----------------------------------------------------------------------------------

COUNTS = """
bert-base                                       108,490,752 109,081,344 109,705,010
bert-large                                      333,557,760 334,607,360 335,691,058
base                                            11,092,992  11,683,584  11,813,810
large                                           16,634,368  17,683,968  17,847,474
xlarge                                          54,528,512  58,724,864  59,021,490
xxlarge                                         205,814,272 222,595,584 223,158,450
base layers=3 hidden=6144 heads=96 ffn=24576    457,763,328 495,518,208 496,347,314
base share=none embedding=64                    87,057,408  87,648,000  87,728,882
base share=none                                 89,059,584  89,650,176  89,780,402
base share=none embedding=256                   93,063,936  93,654,528  93,883,442
base embedding=64                               9,090,816   9,681,408   9,762,290
base embedding=256                              15,097,344  15,687,936  15,916,850
base embedding=0                                30,524,160  31,114,752  31,738,418
base embedding=768                              30,524,160  31,114,752  31,738,418
base embedding=768 mapped=1                     31,114,752  31,705,344  32,329,010
base embedding=0 share=attention                82,487,808  83,078,400  83,702,066
base embedding=0 share=ffn                      56,527,104  57,117,696  57,741,362
base share=attention                            63,056,640  63,647,232  63,777,458
base share=ffn                                  37,095,936  37,686,528  37,816,754
"""  # settings, then counts of the encoder, with its pooler, with all heads (Tables 1, 3, 4, 12)


@pytest.mark.parametrize("row", COUNTS.strip().split("\n"))
def test_parameter_counts_to_the_unit(row):
    preset, *words = row.split()
    changes = dict(word.split("=") for word in words[:-3])
    changes = {name: int(value) if value.isdigit() else value for name, value in changes.items()}
    cfg = albert.Config(**albert.PRESETS[preset] | changes)
    counts = claims.countings(cfg)
    assert [f"{counts[name]:,}" for name in "ABC"] == words[-3:]


def test_parameters_of_groups_and_of_task_heads():
    counts = [claims.countings(albert.Config(groups=groups))["B"] for groups in (1, 2, 3, 4, 6, 12)]
    millions = [round(count / 1e4) / 100 for count in counts]
    assert millions == [11.68, 18.77, 25.86, 32.95, 47.12, 89.65]
    with torch.device("meta"):  # as transformers counts them
        assert albert.count(albert.Classifier(albert.Config(), 2)) == 11_685_122
        assert albert.count(albert.SpanModel(albert.Config())) == 11_094_530
        assert albert.count(albert.AnswerModel(albert.Config()).answer) == 2_364_674


# --- model ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_padding_changes_nothing():
    torch.manual_seed(0)
    model = albert.LanguageModel(tiny())
    *inputs, lengths = example()
    positions = torch.tensor([[1, 2], [3, 4], [0, 2]])
    outputs = model(*inputs, lengths, positions)
    for number, length in enumerate(lengths):
        one = slice(number, number + 1)
        alone = model(*(value[one, :length] for value in inputs), None, positions[one])
        for ours, expected in zip(alone, outputs):
            close(ours, expected[one], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{"share": "none", "embedding": 0}, {"recompute": True}])
def test_the_last_layer_only_at_masked_positions_and_recomputation(changes):
    """The same states, [CLS] first, and the same gradients."""
    torch.manual_seed(0)
    part = albert.Encoder(tiny(**changes)).train()
    whole = albert.Encoder(tiny(**changes | {"recompute": False})).train()
    whole.load_state_dict(part.state_dict())
    positions = torch.tensor([[3, 1], [5, 5], [2, 4]])
    states = part(*example(), positions)
    expected = albert.gather_positions(whole(*example()), F.pad(positions, (1, 0)))
    close(states, expected, rtol=0, atol=1e-6)
    states.square().sum().backward()
    expected.square().sum().backward()
    for one, two in zip(part.parameters(), whole.parameters()):
        close(one.grad, two.grad, rtol=1e-4, atol=1e-5)


def test_dropout_of_the_ffn_output_is_applied_until_it_is_removed():
    """Hugging Face builds it and never calls it."""
    block = albert.FeedForward(tiny(dropout=0.5)).train()
    x = torch.randn(1, 4, 16)
    assert not torch.equal(block(x), block(x))
    albert.remove_dropout(block)
    assert torch.equal(block(x), block(x))


@torch.no_grad()
def test_the_answer_head_is_xlnets():
    """The end given the start: a map of [token; start]. The beam is wide enough for all spans."""
    torch.manual_seed(0)
    model = albert.AnswerModel(tiny(), beams=12).eval()
    ids, segments, lengths = example()
    p_mask = segments == 0
    batch = {"ids": ids, "token_type_ids": segments, "lengths": lengths, "p_mask": p_mask}
    starts, ends, scores, _ = model(batch)
    x, start, _ = model.read(batch)
    pairs = torch.cat([x, x[:, 6:7].expand_as(x)], dim=-1)
    mixed = model.answer.end_norm(torch.tanh(model.answer.end_mix(pairs)))
    end = model.answer.end(mixed)[..., 0].masked_fill(p_mask, -1e30)
    expected = start.log_softmax(-1)[:, 6] + end.log_softmax(-1)[:, 8]
    close(scores[(starts == 6) & (ends == 8)], expected, rtol=1e-5, atol=1e-5)


# --- Hugging Face --------------------------------------------------------------------------------

PARITY = tiny(groups=2)
# by transformers 5.23.0, torch 2.13.0
STORED = json.loads((ROOT / "tests" / "albert_parity.json").read_text())


def formula_model(kind, cfg, *args):
    """A model whose weights depend on the order of their names alone: its numbers can be stored."""
    model = kind(cfg, *args)
    for index, (name, value) in enumerate(sorted(model.state_dict().items())):
        angles = torch.arange(value.numel(), dtype=torch.float64) * (0.37 + 0.011 * index)
        waves = angles.sin().mul(0.4).float()
        value.copy_(waves.view(value.shape) + name.endswith("norm.weight"))
    return model.eval()


def inputs_of_heads():
    """(batch of ours, inputs of transformers) with the labels of every head."""
    ids, segments, lengths = example()
    real = torch.arange(12) < lengths[:, None]
    words = torch.where(torch.arange(12) % 3 == 1, ids, -100).masked_fill(~real, -100)
    batch = {"ids": ids, "token_type_ids": segments, "lengths": lengths, "words": words,
             "start": torch.tensor([2, 0, 1]), "end": torch.tensor([4, 0, 3])}
    return batch, {"input_ids": ids, "token_type_ids": segments, "attention_mask": real.long()}


ORDER = torch.tensor([0, 1, 1])


def pretraining_numbers(model, batch):
    """Logits of masked words and of the order, the sum of the losses, the loss of masked words."""
    everywhere = torch.arange(12).expand(3, 12)
    logits, order = model(batch["ids"], batch["token_type_ids"], batch["lengths"], everywhere)
    words = F.cross_entropy(logits.flatten(0, 1), batch["words"].flatten())
    return [logits, order, words + F.cross_entropy(order, ORDER), words]


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
    model = formula_model(make, PARITY, *[outputs] * issubclass(make, albert.Classifier))
    batch, _ = inputs_of_heads()
    if make is albert.LanguageModel:
        values = pretraining_numbers(model, batch)
        return model, values[:3] if kind == "pretraining" else values[::3]
    if kind == "choice":
        batch = one_example(batch)
    batch["labels"] = labels
    logits = model(batch)
    return model, [*(logits.unbind(-1) if kind == "span" else [logits]), model.loss(batch)]


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_numbers_equal_those_that_transformers_gave(kind):
    for ours, theirs in zip(our_numbers(kind)[1], map(torch.tensor, STORED[kind]), strict=True):
        if ours.dim() == 3:  # a corner of the word logits is stored
            ours = ours[:, :theirs.shape[1], :theirs.shape[2]]
        close(ours, theirs, rtol=1e-5, atol=1e-5)


def write_hf(folder, cfg, state, *config):
    """A Hugging Face folder without a tokenizer."""
    groups = max(albert.blocks(cfg))
    hf_models.write_weights(folder / "model.safetensors", hf_models.rename_albert(state, groups))
    name, outputs, *more = config
    write(folder / "config.json", hf_models.albert_config(cfg, name, outputs, groups, *more))


@pytest.mark.peers
@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_parity_with_transformers(kind, tmp_path):
    """Of a folder that we write, which they read."""
    transformers = pytest.importorskip("transformers")
    model, ours = our_numbers(kind)
    batch, call = inputs_of_heads()
    _, outputs, name, labels = HEADS[kind]
    write_hf(tmp_path, PARITY, model.state_dict(), f"AlbertFor{name}", outputs)
    kind_of_theirs = getattr(transformers, f"AlbertFor{name}")
    theirs, info = kind_of_theirs.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    if kind == "choice":
        call = one_example(call)
    named = {"pretraining": {"labels": batch["words"], "sentence_order_label": ORDER},
             "masked": {"labels": batch["words"]},
             "span": {"start_positions": batch["start"], "end_positions": batch["end"]}}
    result = theirs.eval()(**call, **named.get(kind, {"labels": labels}))
    keys = {"pretraining": ["prediction_logits", "sop_logits"],
            "span": ["start_logits", "end_logits"]}
    for one, key in zip(ours, [*keys.get(kind, ["logits"]), "loss"], strict=True):
        close(one, result[key], rtol=1e-5, atol=1e-5)


def read_back(folder):
    """(Config, Pretrained) of a folder given as --init."""
    cfg = tiny(init=str(folder))
    return cfg, albert.from_pretrained(cfg)


@pytest.mark.peers
@pytest.mark.parametrize("act, E, groups", [("gelu_new", 8, 2), ("gelu", 16, 1)])
@torch.no_grad()
def test_parity_with_transformers_in_the_other_direction(act, E, groups, tmp_path):
    """Of a folder that they write; E = H has a mapping there."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(
        vocab_size=60, embedding_size=E, hidden_size=16, num_hidden_layers=4,
        num_attention_heads=2, hidden_act=act, intermediate_size=32, num_hidden_groups=groups,
        max_position_embeddings=40)).eval()
    theirs.save_pretrained(tmp_path)
    cfg, source = read_back(tmp_path)
    ours = albert.LanguageModel(cfg).eval()
    albert.start_from(ours, source)
    batch, call = inputs_of_heads()
    logits, order, *_ = pretraining_numbers(ours, batch)
    result = theirs(**call)
    real = call["attention_mask"].bool()
    close(logits[real], result.prediction_logits[real], rtol=1e-5, atol=1e-5)
    close(order, result.sop_logits, rtol=1e-5, atol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize("lower", [True, False])
def test_transformers_reads_the_exported_vocabulary(lower, tmp_path):
    """It gives our ids for lines of Python's documentation."""
    pytest.importorskip("google.protobuf")
    transformers = pytest.importorskip("transformers")
    lines = [line for text in topics.values() for line in text.split("\n") if line.strip()][::20]
    write(tmp_path / "text" / "text.txt", "\n".join(lines))
    path = train_sentencepiece([tmp_path / "text"], tmp_path / "spiece.model", 1000, lower=lower)
    ours = load_tokenizer(path, lower)
    hf_models.write_tokenizer(tmp_path, ours, 77)
    write(tmp_path / "config.json", {"model_type": "albert"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = theirs(lines, add_special_tokens=False)["input_ids"]
    different = [line for line, one, other in zip(lines, ours.encode_batch(lines), ids)
                 if one != other]
    assert len(different) < len(lines) / 100  # rows of signs and quotes of two characters
    first, second = ours.encode_batch(["the stone", "was small"])
    pair = theirs("the stone", "was small")
    assert pair["input_ids"] == [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id]
    assert sum(pair["token_type_ids"]) == len(second) + 1
    assert theirs.model_max_length == 77
    assert theirs.mask_token_id == ours.mask_id


@pytest.mark.parametrize("task, kept", [("CoLA", True), ("RTE", False), ("", False)])
def test_a_head_of_another_task_is_ignored(task, kept, tmp_path):
    heads = albert.Classifier(tiny(), 2).state_dict()
    labels = ("NEG", "POS")
    write_hf(tmp_path, TINY, heads, "AlbertForSequenceClassification", 2, labels, task)
    cfg, source = read_back(tmp_path)
    model = albert.Classifier(cfg, 2)
    albert.start_from(model, source, "CoLA")
    assert torch.equal(model.head.weight, heads["head.weight"]) == kept


# --- LAMB and the schedule -----------------------------------------------------------------------

def numpy_lamb(w, gradients, lrs, excluded, adapt):
    """ALBERT's lamb_optimizer.py in numpy on one tensor, biases and LayerNorms excluded."""
    m = np.zeros_like(w)
    v = np.zeros_like(w)
    for g, lr in zip(gradients, lrs):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        u = m / (np.sqrt(v) + 1e-6)
        ratio = 1.0
        if not excluded:
            u = u + 0.01 * w
            if adapt and np.linalg.norm(w) > 0:
                ratio = np.linalg.norm(w) / np.linalg.norm(u)
        w = w - lr * ratio * u
    return w


@pytest.mark.parametrize("adapt", [True, False])
def test_lamb_is_its_numpy_transcription(adapt):
    torch.manual_seed(0)
    before = [torch.randn(3, 4).double(), torch.zeros(2, 2).double(), torch.randn(5).double()]
    parameters = [torch.nn.Parameter(value.clone()) for value in before]
    optimizer = albert.Lamb(parameters, lr=0.1, adapt=adapt)
    lrs = [0.01 * albert.schedule(step, 9, 3) for step in range(9)]
    gradients = [[torch.randn_like(value) for value in before] for _ in lrs]
    for lr, step in zip(lrs, gradients):
        for value, gradient in zip(parameters, step):
            value.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    for value, start, steps in zip(parameters, before, zip(*gradients)):
        own = [gradient.numpy() for gradient in steps]
        expected = numpy_lamb(start.numpy(), own, lrs, value.dim() == 1, adapt)
        np.testing.assert_allclose(value.detach(), expected, atol=1e-6, rtol=1e-6)


def test_schedule_is_the_official_one():
    steps = (0, 3124, 3125, 62500, 125000)
    rates = [1.76e-3 * albert.schedule(step, 125000, 3125) for step in steps]
    assert rates == pytest.approx([0, 0.0017594, 0.0017160, 0.00088, 0], abs=5e-8)
    assert round(albert.Config().warmup * albert.Config().steps) == 3125


# --- objective -----------------------------------------------------------------------------------

class FakeTokenizer:
    vocab_size = 1000
    pad_id = 0
    cls_id = 2
    sep_id = 3
    mask_id = 4
    starts_word = np.arange(1000) % 3 != 0  # every third token continues a word


def text_batch(size, T=64):
    """Sequences of two segments."""
    ids = torch.randint(5, 1000, (size, T), generator=generator())
    ids[:, 0] = 2
    ids[:, [30, -1]] = 3
    return ids, (torch.arange(T) > 30).long().expand(size, T).contiguous()


def test_ngram_lengths_follow_the_papers_distribution():
    lengths = albert.ngram_lengths((100, 1000), generator())
    fractions = torch.bincount(lengths.flatten()) / 100_000
    close(fractions, torch.tensor([0, 6, 3, 2]) / 11, rtol=0, atol=0.007)


@pytest.mark.parametrize("budget", [3, 10])
def test_masked_ngrams_are_whole_words(budget):
    ids, _ = text_batch(2000)
    budgets = torch.full((2000,), budget)
    chosen = albert.pick_ngrams(ids, FakeTokenizer, budgets, generator())
    assert not chosen[:, [0, 30, 63]].any()
    assert chosen.sum(1).max() <= budget
    assert (chosen.sum(1) == budget).float().mean() > 0.9  # single tokens fill what is left
    continues = (ids > 4) & (ids % 3 == 0)
    continues[:, [1, 31]] = False  # the first of a segment begins a word
    assert not (continues[:, 1:] & (chosen[:, 1:] != chosen[:, :-1])).any()


def test_the_example_of_pick_ngrams(monkeypatch):
    """Shortened to the budget, refused where a word is chosen, in one segment."""
    ids = torch.tensor([numbers("2 7 7 7 7 6 6 3 7 7 3")])  # 6 continues a word
    chance = torch.tensor([numbers("0 4 2 1 6 0 0 0 5 3 0")]) / 10  # words 3, 2, 7, 1, ...
    monkeypatch.setattr(torch, "rand", lambda *shape, generator: chance)
    lengths = torch.tensor([numbers("3 2 2 2 1 1 1 1 1 1 1")])
    monkeypatch.setattr(albert, "ngram_lengths", lambda *args: lengths)
    chosen = albert.pick_ngrams(ids, FakeTokenizer, torch.tensor([6]), None)
    assert chosen[0].nonzero()[:, 0].tolist() == numbers("1 3 4 5 6 9")


def test_masking_is_80_10_10():
    ids, _ = text_batch(3000)
    cfg = albert.Config(length=64)
    changed, positions, labels = albert.mask_tokens(ids, FakeTokenizer, cfg, generator())
    used = labels != -100
    originals = ids.gather(1, positions)
    now = changed.gather(1, positions)
    assert positions.shape == (3000, 10)
    assert used.float().mean() > 0.98
    assert torch.equal(labels[used], originals[used])
    assert (now[used] == 4).float().mean().item() == pytest.approx(0.8, abs=0.011)
    assert (now == originals)[used].float().mean().item() == pytest.approx(0.1, abs=0.009)
    untouched = torch.ones_like(ids, dtype=torch.bool).scatter(1, positions, ~used)
    assert torch.equal(changed[untouched], ids[untouched])


def test_the_number_of_predictions():
    """D3: 15% of the tokens, or min(20, 15%) as in the official code."""
    counts = [albert.masked_count(albert.Config(max_predictions=most), length)
              for length, most in [(512, 0), (512, 20), (128, 20)]]
    assert counts == [77, 20, 19]


def fake_segments():
    """data.corpus.Segments, of which the first 400 of 600 are pairs."""
    three = torch.full((600,), 3)
    return SimpleNamespace(
        segment_a=torch.tensor([numbers("10 11 12 0 0 0")] * 600),
        segment_b=torch.tensor([numbers("20 21 0 0 0 0")] * 600),
        other=torch.tensor([numbers("30 30 30 0 0 0")] * 600),
        length_a=three,
        length_b=2 * (torch.arange(600) < 400).long(),
        length_other=three)


INPUTS = {  # ids, token_type_ids, length
    "in order": ("2 10 11 12 3 20 21 3 0", "0 0 0 0 0 1 1 1 0", 8),
    "sop": ("2 20 21 3 10 11 12 3 0", "0 0 0 0 1 1 1 1 0", 8),
    "nsp": ("2 10 11 12 3 30 30 30 3", "0 0 0 0 0 1 1 1 1", 9),
    "single": ("2 10 11 12 3 0 0 0 0", "0 0 0 0 0 0 0 0 0", 5),
}


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
def test_inputs_of_sentence_pairs_and_their_labels(objective):
    """Label 0: in order; 1: swapped, or B from another document; -100: one segment (D1)."""
    *inputs, labels = albert.sentence_pairs(fake_segments(), FakeTokenizer, objective, generator())
    kinds = {-100: "single", 0: "in order", 1: objective}
    for number, label in enumerate(labels.tolist()):
        kind = kinds[label]
        if objective == "none":
            assert label == -100
            kind = "in order" if number < 400 else "single"
        ids, token_type_ids, length = INPUTS[kind]
        expected = [numbers(ids), numbers(token_type_ids), length]
        assert [part[number].tolist() for part in inputs] == expected
    if objective != "none":
        assert labels[:400].float().mean().item() == pytest.approx(0.5, abs=0.1)
        assert (labels[400:] == -100).all()


# --- pre-training --------------------------------------------------------------------------------

def owned(folder):
    """The checkpoint of a run folder, or of a task's folder."""
    return torch.load(folder / "checkpoint.pt", weights_only=True)["owned"]


def pretrain(ready, out, *words):
    _, *small = shlex.split(filled(TRAINED["albert"], **ready))
    run_main(*small, "--out", out, *words)
    return owned(out)["model"]


@pytest.fixture
def text(ready):
    tokenizer = load_tokenizer(ready["corpus"])
    return Data(CPU, tokenizer, *Corpus(ready["corpus"], tokenizer).split(0.5))


SMALL = tiny(vocab_size=300, positions=64, length=64, batch=16, accumulate=4, steps=1)


@pytest.mark.parametrize("processes", [2, 16])
def test_micro_batches_are_sorted_and_the_same_for_any_number_of_processes(processes, text):
    cfg = dataclasses.replace(SMALL, batch=64, accumulate=16)
    one = next(albert.training_batches(text, cfg, Ranks(0, 1, CPU), 0))
    widths = [ids.shape[1] for ids, *_ in one]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]
    for rank in range(processes):
        own = next(albert.training_batches(text, cfg, Ranks(rank, processes, CPU), 0))
        for ours, theirs in zip(own, one[rank::processes], strict=True):
            for left, right in zip(ours, theirs, strict=True):
                assert left is right is None or torch.equal(left, right)


def test_losses_and_gradients_are_means_over_the_step(text):
    """For any number of micro-batches; chance is ln 2 for any fraction of sequences with an
    order, and the optimized loss counts the others as 0."""
    torch.manual_seed(0)
    model = albert.LanguageModel(SMALL)
    torch.nn.init.zeros_(model.order.weight)
    batches = next(albert.training_batches(text, SMALL, Ranks(0, 1, CPU), 0))
    labels = torch.cat([batch[-1] for batch in batches])
    labelled = (labels != -100).float().mean().item()
    losses = []
    for *inputs, words, _ in batches:
        logits, _ = model(*inputs)
        losses.append(F.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none"))
    expected = torch.cat(losses).sum() / sum((batch[-2] != -100).sum() for batch in batches)
    sums = torch.zeros(4)
    optimizer = albert.Lamb(model.parameters(), 0.0)
    albert.train_step(0, model, model, optimizer, batches, sums, SMALL, Ranks(0, 1, CPU))
    wanted = [expected.item(), labelled * math.log(2), labelled]
    assert sums[:3].tolist() == pytest.approx(wanted, rel=1e-5)
    run = SimpleNamespace(log=lambda *words, **line: None)
    logged = albert.log_losses(run, 1, sums, 1, Ranks(0, 1, CPU))
    assert logged["order_loss"] == pytest.approx(math.log(2))


def test_evaluation_counts_what_it_scores_and_is_the_same_for_every_seed(text):
    model = albert.LanguageModel(SMALL)
    ranks = Ranks(0, 1, CPU)
    cfg = dataclasses.replace(SMALL, dev_examples=100)
    result = albert.evaluate_language_model(model, text, cfg, ranks)
    other = dataclasses.replace(cfg, seed=1)
    assert result == albert.evaluate_language_model(model, text, other, ranks)
    assert 128 < result["scored"]["mlm"] <= 1280
    assert 0 < result["scored"]["sop"] <= 128
    assert all(0 <= result[name] <= 1 for name in ("mlm", "nsp", "sop"))


def test_the_first_token_baseline_sees_all_sequences_of_an_evaluation(text):
    """--dev_examples is rounded up to 64s for both."""
    one, all_64 = [albert.first_token_baseline(text, dataclasses.replace(SMALL, dev_examples=size))
                   for size in (1, 64)]
    assert one == all_64


def test_text_to_evaluate_on_can_be_given(ready, tmp_path):
    """Sec. 4.2.1: then no document of the corpus is held out."""
    text = write(tmp_path / "dev.txt", "\n\n".join(["the river was small.\nit was quiet."] * 6))
    pretrain(ready, tmp_path / "run", "--dev_corpus", text)
    assert read_json(tmp_path / "run" / "corpus" / "dev" / "meta.json")["documents"] == 6


def test_without_sentence_order_its_loss_is_not_logged(ready, tmp_path):
    pretrain(ready, tmp_path, "--steps", "1", "--objective", "none", "--batch", "16",
             "--warmup", "0", "--lr", "1.76e-3")
    line = read_jsonl(tmp_path / "log.jsonl")[0]
    assert line["order_loss"] is None and line["loss"] == line["mlm_loss"]
    assert line["lr"] == pytest.approx(1.1e-4, rel=1e-3)  # D19: with the root of the batch


def test_depth_warm_start_loads_everything(ready, tmp_path):
    """Table 11."""
    shallow = owned(ready["albert"])["model"]
    deep = pretrain(ready, tmp_path, "--init", ready["albert"], "--layers", "4", "--lr", "1e-30",
                    "--steps", "1")
    assert shallow.keys() == deep.keys()
    assert all(torch.allclose(shallow[name], deep[name]) for name in shallow)
    assert read_json(tmp_path / "config.json")["settings"]["layers"] == 4


# --- fine-tuning ---------------------------------------------------------------------------------

def same_answers(file, name, folder, *models):
    """Whether models answer a file alike, in the output file `name`."""
    answers = []
    for number, model in enumerate(models):
        run_main("--predict", file, "--init", model, "--out", folder / f"answers{number}")
        answers.append((folder / f"answers{number}" / name).read_text())
    return answers[0] == answers[1] and len(answers[0]) > 20


def test_an_exported_model_answers_as_the_folder_of_its_task(ready, tmp_path):
    hf = tmp_path / "hf"
    file = ready["glue"] / "CoLA" / "test.tsv"
    run_main("--export", hf, "--init", ready["tuned"] / "CoLA")
    assert read_json(hf / "config.json")["finetune_length"] == 16  # of the fine-tuning
    assert same_answers(file, "CoLA.tsv", tmp_path, ready["tuned"] / "CoLA", hf)


def test_ensembles_take_the_members_that_are_best_on_dev():
    """Sec. 4.9. Four examples of class 0; a is wrong on the last, b on the first, c on all."""
    def score(split, outputs):
        return {"main": (outputs.argmax(-1) == 0).double().mean().item()}

    probabilities = {"c": [0.0] * 4, "b": [0.4, 0.9, 0.9, 0.9], "a": [0.7, 0.9, 0.9, 0.4]}
    members = {name: torch.tensor([[p, 1 - p] for p in values])
               for name, values in probabilities.items()}
    task = SimpleNamespace(score=score)
    assert albert.choose_members(members, task) == ["b", "a"]
    same = {"a": members["a"], "too": members["a"]}
    assert albert.choose_members(same, task) == ["a", "too"]  # equal: the larger


def test_ensembles_of_spans_average_what_several_models_propose():
    def member(first, second, probability, odds=0.0):
        spans = [{"text": first, "probability": probability},
                 {"text": second, "probability": 1 - probability}]
        return {"nbest": {"q": spans}, "null_odds": {"q": odds}}

    mean = albert.average_predictions([member("a", "b", 0.7, 1.0), member("b", "a", 0.9, -2.0)])
    spans = {span["text"]: span["probability"] for span in mean.nbest["q"]}
    assert spans == {"b": pytest.approx(0.6), "a": pytest.approx(0.4)}
    assert mean.null_odds == {"q": -0.5}
    assert mean.texts == {"q": "b"}
    agreed = [member("a", f"b{number}", 0.5) for number in range(4)]
    mean = albert.average_predictions([*agreed, member("z", "y", 0.9)])
    assert mean.texts == {"q": "a"}  # D22: one model does not beat four


def test_paper_average_averages_squads_two_numbers_first():
    results = {"SQuAD1.1": {"f1": 0.893, "exact": 0.823}, "SQuAD2.0": {"f1": 0.8, "exact": 0.771},
               "MNLI": {"accuracy": 0.816}, "SST-2": {"accuracy": 0.903},
               "RACE": {"accuracy": 0.64}}
    tasks = {name: {"metrics": line} for name, line in results.items()}
    assert albert.paper_average(tasks) == pytest.approx(0.8005)  # Table 2: 80.1
    del tasks["RACE"]
    assert albert.paper_average(tasks) is None


def test_recipes_are_table_14():
    recipes = albert.recipes(albert.Config())
    assert recipes["RTE"] == Recipe(3e-5, 32, steps=800, warmup=0.25, dropout=0.1, length=512)
    assert recipes["SQuAD1.1"] == Recipe(
        5e-5, 48, steps=3649, warmup=365 / 3649, dropout=0.0, length=384, main="f1")


@pytest.mark.parametrize("init, flag, expected", [
    ("albert", "auto", "demo"), ("albert", "table14", "table14"), ("hf", "auto", "table14")])
def test_the_recipe_of_a_model(init, flag, expected, ready):
    cfg = albert.Config("demo", init=str(ready[init]), recipe=flag, finetune_lr=7.0)
    cfg.given = {"finetune_lr"}
    albert.from_pretrained(cfg)
    assert cfg.recipe == expected
    assert (cfg.finetune_batch, cfg.eval_every) == ((16, 200) if expected == "demo" else (None, 0))
    assert cfg.finetune_lr == 7.0  # a flag overrides the recipe
    assert cfg.finetune_length is None  # by the positions of the model


def test_the_recipe_of_v2_models(tmp_path):
    """Known by their config.json: no dropout, and half the learning rate for RACE."""
    state = albert.LanguageModel(tiny()).state_dict()
    write_hf(tmp_path, tiny(dropout=0.0), state, "AlbertForPreTraining", 2)
    recipes = albert.recipes(read_back(tmp_path)[0])
    assert (recipes["RACE"].lr, recipes["RTE"].lr) == (1e-5, 3e-5)
    assert recipes["RACE"].dropout == recipes["RTE"].dropout == 0
