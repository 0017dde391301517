"""The training loops of the paper files, one table: what they share by name, they do alike."""
import copy
import dataclasses

import pytest
import torch
from small_runs import ALONE, ARCH

import albert
import autobert_zero
import autotinybert
import mformer

SHAPE = dict(
    vocab_size=60, layers=2, hidden=16, heads=2, ffn=32, embedding=8, length=16, dropout=0.0,
    batch=8, steps=1)


def chunks(batch):
    """A batch as four micro-batches."""
    parts = zip(*(value.chunk(4) for value in batch.values()))
    return [dict(zip(batch, values)) for values in parts]


def albert_step():
    """A network, settings, a batch with few labels in its first half, and its micro-batches."""
    generator = torch.Generator().manual_seed(0)
    cfg = albert.Config(**SHAPE, positions=16)
    labels = torch.randint(60, (8, 5), generator=generator)
    labels[:4, 1:] = -100
    order = torch.tensor([0, 1, -100, -100, -100, -100, 1, 0])
    batch = {
        "ids": torch.randint(60, (8, 16), generator=generator),
        "token_type_ids": torch.zeros(8, 16, dtype=torch.long),
        "masked_positions": torch.randint(16, (8, 5), generator=generator),
        "labels": labels,
        "order_labels": order,
    }
    return albert, albert.LanguageModel(cfg), cfg, batch, chunks(batch)


def autobert_zero_step():
    """As above. Masked positions are of the flattened micro-batch."""
    *_, batch, parts = albert_step()
    cfg = autobert_zero.Config(**SHAPE)
    for part in (batch, *parts):
        part["next_labels"] = part.pop("order_labels")
        first = 16 * torch.arange(len(part["ids"]))[:, None]
        part["masked_positions"] = (part["masked_positions"] + first).flatten()
        part["labels"] = part["labels"].flatten()
    arch = autobert_zero.parse_arch(f"conv3 | {autobert_zero.BERT_ATTENTION}")
    return autobert_zero, autobert_zero.LanguageModel(arch, cfg), cfg, batch, parts


def mformer_step():
    """As above, of sentences of unequal lengths."""
    generator = torch.Generator().manual_seed(0)
    arch = mformer.parse_arch(ARCH.strip("'"), mformer.Config(task="wmt14"))
    cfg = mformer.Config(task="wmt14", vocab_size=60, head_dim=16, length=16, steps=1)
    labels = torch.randint(60, (8, 9), generator=generator)
    labels[:4, 3:] = -100
    batch = {
        "source": torch.randint(60, (8, 7), generator=generator),
        "lengths": torch.tensor([7, 3, 5, 7, 2, 4, 6, 7]),
        "target": torch.randint(60, (8, 9), generator=generator),
        "labels": labels,
    }
    return mformer, mformer.make_model(arch, cfg), cfg, batch, chunks(batch)


def autotinybert_step():
    """A SuperPLM, of which a step trains one sub-model, with the batch of albert_step."""
    *_, batch, parts = albert_step()
    cfg = autotinybert.Config(
        largest="2-16-32-2-16", smallest="1-8-8-1-8", dropout=0.0, batch=8, accumulate=1,
        variant="sme")  # one sub-model for all micro-batches
    model = autotinybert.LanguageModel(autotinybert.parse_arch(cfg.largest), 60)
    return autotinybert, model, cfg, batch, parts


def gradients(file, network, micro_batches, cfg, ranks=ALONE):
    """The gradients of train_step, which an optimizer that changes nothing keeps."""
    network = copy.deepcopy(network)
    kept = {}

    class Keep(torch.optim.SGD):
        def step(self):
            kept.update({name: value.grad.clone() for name, value in network.named_parameters()
                         if value.grad is not None})

    file.train_step(0, network, Keep(network.parameters(), 0.0), micro_batches, cfg, ranks)
    return kept


@pytest.mark.parametrize("make", [albert_step, autobert_zero_step, autotinybert_step, mformer_step])
def test_the_gradient_is_the_same_for_any_number_of_micro_batches(make):
    """Also with unequal numbers of labels: a loss is a sum, divided by the labels of the step."""
    torch.manual_seed(0)
    file, network, cfg, batch, parts = make()
    whole = gradients(file, network, [batch], cfg)
    counts = [file.count_labels(part).tolist() for part in parts]
    assert len(set(map(tuple, counts))) > 1
    four = gradients(file, network, parts, dataclasses.replace(cfg, accumulate=4))
    assert whole.keys() == four.keys()
    for name in whole:
        torch.testing.assert_close(four[name], whole[name], rtol=1e-4, atol=1e-6)
