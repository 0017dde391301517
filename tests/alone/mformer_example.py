"""cosFormer attention in another model, and the ranker on other scores. Copy mformer.py next to
this file. Both need only PyTorch."""
import random

import torch
from torch import nn

from mformer import Ranker, cosines_at, linear_attention, sample_arch


class LinearAttention(nn.Module):  # time and memory are linear in the length
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x, lengths):  # (B, T, H), (B,) -> (B, T, H)
        inputs = self.inputs(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = inputs.permute(2, 0, 3, 1, 4)  # each (B, heads, T, D)
        positions = torch.arange(x.shape[1], device=x.device)
        mask = positions < lengths[:, None]
        mixed = linear_attention(q, k, v, cosines_at(positions, lengths), mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(2))


attention = LinearAttention(64, heads=4)
x = torch.randn(2, 300, 64)
y = attention(x, torch.tensor([300, 170]))
alone = attention(x[1:, :170], torch.tensor([170]))
same = torch.allclose(y[1:, :170], alone, atol=1e-5)
print(f"{tuple(y.shape)}, without its padding the same: {same}")

# Measured networks: a table of choices and scores (low ones are good)
types = ("softmax", "linear")
space = dict(
    layers=(2, 3),
    hidden=(32, 48, 64),
    ffn=(128,),
    heads=(2, 4),
    types=types
)
measured = {}
for number in range(200):
    arch = sample_arch(space, random.Random(number))
    linear = arch.types.count("linear") / arch.layers
    measured[arch] = 3 - 0.2 * arch.layers - arch.hidden / 100 - 0.5 * linear
ranker = Ranker(space, [*measured], [*measured.values()])
new = [sample_arch(space, random.Random(f"new {number}")) for number in range(40)]
best = min(zip(ranker.rank_scores(new), new))[1]
print(f"best of 40 new ones: layers {best.layers}, hidden {best.hidden}, types {best.types}")
print("what matters most:", next(iter(ranker.importance())))
