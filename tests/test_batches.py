"""Masking and micro-batches of the files that predict masked tokens."""
import pytest
import torch
from small_runs import ALONE, FakeTokenizer

import albert
import autobert_zero
import autotinybert
from common.launch import Ranks
from common.tokenization import load_tokenizer
from data.corpus import Corpus
from data.inputs import Data


@pytest.mark.parametrize("file, total, longest", [
    (albert, range(15_680, 16_001), 10),  # D8: 15% of all tokens. n-grams may leave some out
    (autobert_zero, [15_000], 64),  # D23: 15% of the text of a batch
    (autotinybert, [15_000], 9),  # 15% of the text of each sequence, 38 or 62 tokens
])
def test_masking_is_80_10_10_and_never_of_special_tokens(file, total, longest):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (2000, 64), generator=generator)
    ids[:, 0] = 2  # [CLS]
    ids[:, 30] = 3  # [SEP]
    ids[::2, 40:] = 0  # padding
    changed, positions, labels = file.mask_tokens(ids, FakeTokenizer, generator)
    if file is not autobert_zero:  # whose positions are of the flattened batch
        positions = positions + 64 * torch.arange(2000)[:, None]
    chosen = labels != -100
    positions = positions[chosen]
    labels = labels[chosen]
    assert len(positions.unique()) in total
    assert (positions // 64).bincount().max() <= longest
    assert (labels >= 5).all()
    changed = changed.flatten()
    now = changed[positions]
    for those, share in ((now == 4, 0.8), (now == labels, 0.1)):
        assert those.sum() / len(now) == pytest.approx(share, abs=0.01)
    changed[positions] = labels
    assert torch.equal(changed, ids.flatten())


@pytest.mark.parametrize("file", [albert, autobert_zero, autotinybert])
def test_micro_batches_are_sorted_and_the_same_for_any_number_of_processes(file, ready):
    tokenizer = load_tokenizer(ready["corpus"])
    data = Data(ALONE.device, tokenizer, Corpus(ready["corpus"], tokenizer))
    cfg = file.Config(vocab_size=300, length=128, batch=64, accumulate=16, steps=4)
    one = next(file.training_batches(data, cfg, ALONE, 3))
    widths = [batch["ids"].shape[1] for batch in one]
    assert len(widths) == 16
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]
    for rank in range(2):
        ranks = Ranks(rank, 2, ALONE.device)
        own = next(file.training_batches(data, cfg, ranks, 3))
        torch.testing.assert_close(own, one[rank::2], rtol=0, atol=0)
