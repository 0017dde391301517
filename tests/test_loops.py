"""The training loops of the paper files, one table: functions with the same name behave alike."""
import random
import shlex
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from kills import together
from small_runs import ALONE, ARCH
from torch.testing import assert_close

import albert
import autobert_zero
import autotinybert
import mformer
from common.launch import Ranks, prepare_model
from common.tokenization import load_tokenizer
from data.corpus import Corpus
from data.inputs import Data

# of a step: the file, a model, settings, the batch, its micro-batches, whether the model is a
# super-net, and more arguments of train_step
Step = namedtuple("Step", "file model cfg batch parts supernet more", defaults=[False, ()])
SHAPE = dict(
    vocab_size=60, layers=2, hidden=16, heads=2, ffn=32, embedding=8, length=16, dropout=0.0,
    batch=8, steps=1)


def numbers(end, *shape):
    """Random int64 below `end`, the same in each call."""
    return torch.randint(end, shape, generator=torch.Generator().manual_seed(0))


def language_logits(model, batch):
    """Those of masked tokens."""
    logits = model(batch)
    return logits if torch.is_tensor(logits) else logits[0]


def split(batch, sizes=(2, 2, 2, 2)):
    """A batch as micro-batches."""
    columns = [value.split(sizes) for value in batch.values()]
    return [dict(zip(batch, values)) for values in zip(*columns)]


def language_batch():
    """Few labels in the first half."""
    labels = numbers(60, 8, 5)
    labels[:4, 1:] = -100
    return {
        "ids": numbers(60, 8, 16),
        "token_type_ids": torch.zeros(8, 16, dtype=torch.long),
        "masked_positions": numbers(16, 8, 5),
        "labels": labels,
        "order_labels": torch.tensor([0, 1, -100, -100, -100, -100, 1, 0]),
    }


def albert_step():
    cfg = albert.Config(**SHAPE, positions=16)
    batch = language_batch()
    return Step(albert, albert.LanguageModel(cfg), cfg, batch, split(batch))


def autobert_zero_step():
    """Masked positions index the flattened micro-batch."""
    batch = language_batch()
    parts = split(batch)
    for each in (batch, *parts):
        each["next_labels"] = each.pop("order_labels")
        first = 16 * torch.arange(len(each["ids"]))[:, None]
        each["masked_positions"] = (each["masked_positions"] + first).flatten()
        each["labels"] = each["labels"].flatten()
    cfg = autobert_zero.Config(**SHAPE)
    arch = autobert_zero.parse_arch(f"conv3 | {autobert_zero.BERT_ATTENTION}")
    return Step(autobert_zero, autobert_zero.LanguageModel(arch, cfg), cfg, batch, parts)


def autotinybert_step():
    """A SuperPLM whose step trains one sub-model, with the batch of albert_step."""
    cfg = autotinybert.Config(
        largest="2-16-32-2-16", smallest="1-8-8-1-8", dropout=0.0, batch=8,
        variant="sme")  # one sub-model for all micro-batches
    model = autotinybert.LanguageModel(autotinybert.parse_arch(cfg.largest), 60)
    batch = language_batch()
    return Step(autotinybert, model, cfg, batch, split(batch), True)


def image_step():
    """A super-net whose step trains a sub-net. Micro-batches have other sizes."""
    cfg = mformer.Config(
        layers=(1, 2), hidden=(16, 24), ffn=(16, 32), heads=(1, 2), head_dim=8, image=8, patch=4,
        dropout=0.0, clip=0.0)
    space = mformer.space_of(cfg)
    model = mformer.make_model(mformer.widest(space), cfg, space)
    batch = {"images": torch.randn(8, 3, 8, 8), "labels": numbers(10, 8)}
    arch = mformer.sample_arch(space, random.Random(1))
    return Step(mformer, model, cfg, batch, split(batch, (1, 2, 2, 3)), True, [arch])


def translation_step():
    cfg = mformer.Config(task="wmt14", vocab_size=60, qkv=16, length=16, dropout=0.0, clip=0.0)
    model = mformer.make_model(mformer.parse_arch(shlex.split(ARCH)[0], cfg), cfg)
    labels = numbers(60, 8, 6)
    labels[:4, 2:] = -100
    batch = {
        "source": numbers(60, 8, 5),
        "lengths": torch.tensor([5, 3, 5, 5, 2, 4, 1, 5]),
        "target": numbers(60, 8, 6),
        "labels": labels,
    }
    return Step(mformer, model, cfg, batch, split(batch))


STEPS = [albert_step, autobert_zero_step, autotinybert_step, image_step, translation_step]


def gradients(make, ranks=ALONE, whole=False):
    """{name: gradient} of train_step, kept by an optimizer that changes nothing. whole: the batch
    is one micro-batch."""
    torch.manual_seed(0)
    file, model, cfg, batch, parts, supernet, more = make()
    assert len({tuple(file.count_labels(part).tolist()) for part in parts}) > 1
    batches = [batch] if whole else parts
    cfg = replace(cfg, accumulate=len(batches))
    kept = {}

    class Keep(torch.optim.SGD):
        def step(self):
            kept.update({name: value.grad.clone() for name, value in model.named_parameters()
                         if value.grad is not None})

    network = model if supernet else prepare_model(model, ranks)  # super-nets average by themselves
    optimizer = Keep(model.parameters(), 0.0)
    own = batches[ranks.rank::ranks.size]
    file.train_step(0, network, optimizer, own, cfg, ranks, *more)
    return kept


def save_gradients(folder):
    """The gradients of one of two processes, for all files."""
    dist.init_process_group("gloo")
    ranks = Ranks(dist.get_rank(), 2, ALONE.device)
    result = {make.__name__: gradients(make, ranks) for make in STEPS}
    torch.save(result, folder / f"{ranks.rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """{name of a step: gradients} of each of two processes."""
    folder = tmp_path_factory.mktemp("gradients")
    together(folder / "log", save_gradients, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("make", STEPS)
def test_the_gradient_is_that_of_one_micro_batch(make, of_two):
    """For four micro-batches with unequal numbers of labels, also divided over two processes: a
    loss is a sum, divided by the labels of the step."""
    whole = gradients(make, whole=True)
    for others in (gradients(make), *(each[make.__name__] for each in of_two)):
        assert whole.keys() == others.keys()
        for name in whole:
            assert_close(others[name], whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make, counts", [
    (albert_step, [24, 8]),  # all sequences (D7)
    (autobert_zero_step, [24, 4]),  # those with a label
    (image_step, [8]),
    (translation_step, [32]),
])
def test_losses_are_sums_over_labels_and_a_step_returns_their_means(make, counts):
    file, model, cfg, batch, _, _, more = make()
    assert file.count_labels(batch).tolist() == counts
    outputs = model(batch, *more)
    outputs = [outputs] if torch.is_tensor(outputs) else outputs
    labels = [value.flatten() for name, value in batch.items() if "labels" in name]
    smoothing = {"label_smoothing": mformer.SMOOTHING} if file is mformer else {}
    expected = [
        F.cross_entropy(logits.flatten(0, -2), each, reduction="sum", **smoothing) / count
        for logits, each, count in zip(outputs, labels, counts)]
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    cfg = replace(cfg, accumulate=1)
    values = file.train_step(0, model, optimizer, [batch], cfg, ALONE, *more)
    losses = [value for name, value in values.items() if "_loss" in name]
    assert_close(values["loss"], sum(expected))
    assert_close(torch.stack(losses or [values["loss"]]), torch.stack(expected))
    assert values.get("ordered", 0.5) == 0.5


PAPER = [  # the published settings, and {step: the learning rate}
    (albert, {"batch": 4096, "lr": 1.76e-3, "warmup": 3125 / 125000, "steps": 125000}, {
        0: 0,
        3124: 0.0017594,
        3125: 0.0017160,  # the official schedule drops here
        62500: 0.00088,
        125000: 0}),
    # D12: with the root of the batch
    (albert, {"batch": 1024, "lr": 1.76e-3, "warmup": 0, "steps": 100}, {50: 0.00044}),
    (autobert_zero, {"lr": 1e-4, "warmup": 0.1, "steps": 100_000}, {
        4_999: 0.5e-4,
        10_000: 1e-4,
        55_000: 0.5e-4,
        100_000: 0}),
    (autotinybert, {"lr": 1.0, "warmup": 0.25, "steps": 8}, {0: 0.5, 1: 1, 2: 1, 7: 1 / 6}),
    (mformer, mformer.PRESETS["cifar10"]["base"], {
        0: 1e-6,
        976: 1e-3,
        (140000 + 976) // 2: 5.005e-4,
        140000: 1e-6}),
    (mformer, {"task": "wmt14", **mformer.PRESETS["wmt14"]["base"]}, {
        0: 1e-7,
        4000: 7e-4,
        16000: 3.5e-4}),
]


@pytest.mark.parametrize("file, settings, rates", PAPER)
def test_learning_rates_are_the_papers(file, settings, rates):
    settings = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    cfg = file.Config(**settings)
    for step, rate in rates.items():
        assert file.learning_rate(step, cfg) == pytest.approx(rate, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("file", [albert, autobert_zero])
def test_new_positions_are_copies_of_those_that_the_model_was_trained_on(file):
    """D27 of albert.py, D50 of autobert_zero.py: --init of a run with a shorter --length."""
    cfg = file.Config(**SHAPE)
    arch = [file.parse_arch("conv3 | conv3")] if file is autobert_zero else []
    model = file.LanguageModel(*arch, cfg)
    before = model.encoder.position_embedding.weight.detach().clone()
    line = file.extend_positions(model, 5, 13)
    after = model.encoder.position_embedding.weight
    assert "positions 5 to 12 are copies of 0 to 4" in line
    for position in range(13):
        assert torch.equal(after[position], before[position % 5])
    assert torch.equal(after[13:], before[13:])
    assert file.extend_positions(model, 5, 5) == ""


def test_new_positions_of_a_student_are_copies_too():
    """D25 of autotinybert.py. A new model has no trained positions. A part has those of its
    SuperPLM."""
    model = autotinybert.LanguageModel(autotinybert.parse_arch("2-16-32-2-16"), 60)
    before = model.encoder.position_embedding.weight.detach().clone()
    assert autotinybert.extend_positions(model, 5) == ""
    part = autotinybert.extract(model, autotinybert.parse_arch("1-8-8-1-8"))
    assert "positions 5 to 12 are copies of 0 to 4" in autotinybert.extend_positions(part, 13)
    after = part.encoder.position_embedding.weight
    assert torch.equal(model.encoder.position_embedding.weight, before)
    for position in range(13):
        assert torch.equal(after[position], before[position % 5, :8])
    assert (model.encoder.trained, part.encoder.trained) == (5, 13)


@pytest.mark.parametrize("make", STEPS[:3])
def test_embeddings_are_sums_of_those_of_tokens_positions_and_types(make):
    _, model, _, batch, *_ = make()
    summed = []
    encoder = model.encoder
    encoder.norm.register_forward_pre_hook(lambda norm, inputs: summed.append(inputs[0]))
    types = batch["token_type_ids"]
    types[:, 5:] = 1
    model(batch)
    expected = (encoder.token_embedding.weight[batch["ids"]]
                + encoder.position_embedding.weight[:types.shape[1]]
                + encoder.token_type_embedding.weight[types])
    assert_close(summed[0], expected)


@pytest.mark.parametrize("make", [albert_step, autotinybert_step])
@torch.no_grad()
def test_padding_changes_nothing(make):
    _, model, _, batch, *_ = make()
    model.eval()
    lengths = torch.arange(16, 0, -2)
    batch = {name: batch[name] for name in ("ids", "token_type_ids")}
    everywhere = torch.arange(16).expand(8, 16)
    logits = language_logits(model, {**batch, "lengths": lengths, "masked_positions": everywhere})
    for row, length in zip(range(8), lengths.tolist()):
        alone = {name: value[[row], :length] for name, value in batch.items()}
        alone["masked_positions"] = everywhere[[row], :length]
        assert_close(
            logits[[row], :length], language_logits(model, alone), rtol=1e-4, atol=1e-5)


def span_models():
    arch = autotinybert.parse_arch("1-8-8-1-8")
    return [
        albert.SpanModel(albert.Config(**SHAPE, positions=16)),
        autobert_zero.TaskModel((3, 3), autobert_zero.Config(**SHAPE), 2, True),
        autotinybert.TaskModel(autotinybert.Encoder(arch, 60), 2, True),
    ]


@pytest.mark.parametrize("model", span_models(), ids=lambda model: model.__module__)
def test_the_loss_of_a_span_is_the_mean_of_those_of_start_and_end(model):
    logits = torch.randn(3, 7, 2)
    model.forward = lambda batch: logits
    start = torch.tensor([4, 0, 2])
    end = torch.tensor([5, 0, 6])
    loss = model.loss({"start": start, "end": end, "p_mask": torch.zeros(3, 7).bool()})
    expected = F.cross_entropy(logits[..., 0], start) + F.cross_entropy(logits[..., 1], end)
    assert_close(loss, expected / 2)


class Oracle(torch.nn.Module):
    """Predicts the labels of a batch plus `shift`: all right for 0, all wrong for 1."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.seen = []

    def forward(self, batch):
        self.seen.append(batch["ids"])
        pair_labels = batch["next_labels" if "next_labels" in batch else "order_labels"]
        return [20.0 * F.one_hot((labels.clamp(min=0) + self.shift) % classes, classes)
                for labels, classes in [(batch["labels"], 2000), (pair_labels, 2)]]


@pytest.mark.parametrize("shift, accuracy", [(0, 1.0), (1, 0.0)])
@pytest.mark.parametrize("file, names", [
    (albert, ("mlm_accuracy", "nsp_accuracy", "sop_accuracy")),
    (autobert_zero, ("mlm_accuracy", "nsp_accuracy")),
])
def test_accuracies_on_held_out_text_are_of_the_labels(file, names, shift, accuracy, ready):
    tokenizer = load_tokenizer(ready["corpus"], True)
    text = Corpus(ready["corpus"], tokenizer)
    data = Data(ALONE.device, tokenizer, text, text)
    cfg = file.Config(length=128, dtype="float32", vocab_size=tokenizer.vocab_size)
    if file is albert:
        cfg = replace(cfg, dev_examples=128)
    oracle = Oracle(shift)
    result = file.evaluate_language_model(oracle, data, cfg, ALONE)
    again = Oracle(shift)
    file.evaluate_language_model(again, data, replace(cfg, seed=1), ALONE)
    assert all(map(torch.equal, oracle.seen, again.seen))  # the same text for all seeds
    assert [result[name] for name in names] == [accuracy] * len(names)
    assert result["mlm_loss"] == pytest.approx(20.0 * shift, abs=1e-3)
