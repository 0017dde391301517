"""A super-net of your own: every narrower network cut out of it works. Copy autotinybert.py beside this; PyTorch is all
that both need."""
import random

import torch
from torch import nn

from autotinybert import leading

torch.manual_seed(0)
net, rng = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)), random.Random(0)
# what is cut of each weight: H the first hidden width, F the second, * nothing
axes = {"0.weight": "H*", "0.bias": "H", "2.weight": "FH", "2.bias": "F", "4.weight": "*F", "4.bias": "*"}


def loss_of(sizes, x):  # of the part with these sizes, whose weights are views of the whole's
    part = {name: leading(value, axes[name], sizes) for name, value in net.named_parameters()}
    return (torch.func.functional_call(net, part, x)[:, 0] - torch.sin(3 * x).prod(1)).square().mean()


optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
for step in range(300):
    for _ in range(2):  # M of Alg. 1: a part, another part, one update
        loss_of({"H": rng.randrange(8, 65, 4), "F": rng.randrange(8, 65, 4)}, torch.rand(64, 2)).backward()
    optimizer.step()
    optimizer.zero_grad()
for width in (8, 32, 64):
    print(f"{width} wide: {loss_of({'H': width, 'F': width}, torch.rand(1000, 2)).item():.4f}")
