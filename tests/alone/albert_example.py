"""ALBERT's objectives and shared layers in another program. Copy albert.py next to this file. Both
need only PyTorch."""
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from albert import (
    Config, Encoder, Lamb, LanguageModel, count_parameters, mask_tokens, sentence_pairs)

# Sentence order and masked words on texts where the letters of the second sentence follow the
# first's. A tokenizer is anything with these names. Here each token is a letter, and a word.
tokenizer = SimpleNamespace(
    vocab_size=56,
    pad_id=0, cls_id=2, sep_id=3, mask_id=4,
    starts_word=torch.ones(56, dtype=bool))
SHAPE = dict(
    vocab_size=56, hidden=32, heads=2, ffn=64, embedding=16,
    positions=19, length=19, dropout=0.0, init_std=0.1)
cfg = Config(layers=2, **SHAPE)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = LanguageModel(cfg)
optimizer = Lamb(model.parameters(), lr=0.005)
eight = torch.full((64,), 8)
for step in range(81):
    segments = SimpleNamespace(
        segment_a=torch.randint(6, 31, (64, 8)),
        length_a=eight,
        segment_b=torch.randint(31, 56, (64, 8)),
        length_b=eight)
    ids, token_types, lengths, order = sentence_pairs(segments, tokenizer, "sop", generator)
    ids, masked_positions, labels = mask_tokens(ids, tokenizer, generator)
    logits, order_logits = model({
        "ids": ids,
        "token_type_ids": token_types,
        "lengths": lengths,
        "masked_positions": masked_positions,
    })
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss = loss + F.cross_entropy(order_logits, order)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 40 == 0:
        accuracy = (order_logits.argmax(1) == order).float().mean()
        print(f"step {step}: loss {loss.item():.2f}, order {accuracy:.2f}")

# 12 layers of one block, or of 12
for share in ("all", "none"):
    encoder = Encoder(Config(layers=12, share=share, **SHAPE))
    states = encoder(ids, token_types, lengths)  # (B, T, H)
    print(share, count_parameters(encoder))
