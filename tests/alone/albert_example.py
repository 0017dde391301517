"""ALBERT on the letters of a text file, in another program: python albert_example.py FILE. Copy
albert.py next to this file. Both need only PyTorch."""
import random
import sys
from pathlib import Path
from string import ascii_letters
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from albert import (
    Config, Encoder, Lamb, LanguageModel, count_parameters, mask_tokens, sentence_pairs)

# Half a line is a segment: are two halves in their order or swapped? Without FILE, lines are made
# in which the letters of the second half follow the first's.
made = random.Random(0)
text = "\n".join(
    "".join(made.choices(ascii_letters[:26], k=8) + made.choices(ascii_letters[26:], k=8))
    for _ in range(4096))
if len(sys.argv) > 1:
    text = Path(sys.argv[1]).read_text()
letters = sorted(set(text))
lines = [line[:16] for line in text.split("\n") if len(line) >= 16]
ids = torch.tensor([[5 + letters.index(letter) for letter in line] for line in lines])
tokenizer = SimpleNamespace(  # anything with these names. Here each token is a letter, and a word
    vocab_size=5 + len(letters), pad_id=0, cls_id=2, sep_id=3, mask_id=4,
    starts_word=torch.ones(5 + len(letters), dtype=bool))
SHAPE = dict(
    vocab_size=tokenizer.vocab_size, hidden=32, heads=2, ffn=64, embedding=16, positions=19,
    dropout=0.0, init_std=0.1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = LanguageModel(Config(layers=2, **SHAPE))
optimizer = Lamb(model.parameters(), lr=0.005)
half = torch.full((64,), 8)
for step in range(81):
    batch = ids[torch.randint(len(ids), (64,), generator=generator)]
    segments = SimpleNamespace(
        segment_a=batch[:, :8], length_a=half, segment_b=batch[:, 8:], length_b=half)
    pairs, token_types, _, order = sentence_pairs(segments, tokenizer, "sop", generator)
    changed, masked_positions, labels = mask_tokens(pairs, tokenizer, generator)
    logits, order_logits = model({
        "ids": changed, "token_type_ids": token_types, "masked_positions": masked_positions})
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
    print(share, count_parameters(Encoder(Config(layers=12, share=share, **SHAPE))))
