"""Layers that share their weights in somebody's model: 12 layers of one block. Copy albert.py beside this; PyTorch is
all that both need."""
import torch
from torch import nn

from albert import Config, Encoder, count

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
