"""ALBERT's objectives and layers that share their weights, in somebody's own program. Copy albert.py beside this;
PyTorch is all that both need."""
from types import SimpleNamespace

import torch
from torch import nn

from albert import Config, Encoder, Lamb, LanguageModel, count, mask_tokens, mean_loss, sentence_pairs

# Sentence order and masked words on texts in which the letters of the second sentence follow those of the first. A
# tokenizer is anything that has these names; here a piece is a letter, and each begins a word.
tokenizer = SimpleNamespace(vocab_size=56, pad_id=0, cls_id=2, sep_id=3, mask_id=4,
                            starts_word=torch.ones(56, dtype=bool))
cfg = Config(vocab_size=56, layers=2, hidden=32, heads=2, ffn=64, embedding=16, positions=19, length=19,
             dropout=0.0, init_std=0.1)
torch.manual_seed(0)
generator, model = torch.Generator().manual_seed(0), LanguageModel(cfg)
optimizer = Lamb(model.parameters(), lr=0.005)
for step in range(121):
    early, late = torch.randint(6, 31, (64, 8)), torch.randint(31, 56, (64, 8))
    eight = torch.full((64,), 8)
    parts = SimpleNamespace(segment_a=early, length_a=eight, segment_b=late, length_b=eight)
    ids, segments, lengths, order = sentence_pairs(parts, tokenizer, "sop", generator)
    ids, places, labels = mask_tokens(ids, segments, tokenizer, cfg, generator)
    logits, order_logits = model(ids, segments, lengths, places)
    loss = mean_loss(logits.flatten(0, 1), labels.flatten()) + mean_loss(order_logits, order)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 60 == 0:
        print(f"update {step}: loss {loss.item():.2f}, order {(order_logits.argmax(1) == order).float().mean():.2f}")

# Layers that share in a model of one's own: 12 layers of one block
shape = dict(vocab_size=256, hidden=32, heads=2, ffn=64, embedding=16, positions=64, init_std=0.1)


class Reader(nn.Module):  # of bytes: which of two kinds of text?
    def __init__(self, **own):
        super().__init__()
        self.encoder, self.head = Encoder(Config(**shape, **own)), nn.Linear(32, 2)

    def forward(self, ids, lengths):  # (B, T), (B,) real tokens -> (B, 2)
        return self.head(self.encoder(ids, torch.zeros_like(ids), lengths)[:, 0])


for own in (dict(share="all"), dict(groups=3), dict(share="attention"), dict(share="none")):
    model = Reader(layers=12, dropout=0.0, **own)
    model(torch.randint(256, (2, 20)), torch.tensor([20, 13])).sum().backward()
    whole = all(value.grad is not None for value in model.parameters())
    print(own, f"{count(model)} parameters, gradients everywhere: {whole}")
