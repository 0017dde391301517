"""A searched attention in another model. Copy autobert_zero.py next to this file. Both need only
PyTorch."""
import json

import torch
from torch import nn

from autobert_zero import (
    AttentionMixer, Config, LanguageModel, SuperNet, arch_text, count, parse_formula, propose,
    read_arch)

FORMULA = "cos(dist(Q, Q), cos(softsign(softmax(P)), V)) @ K"  # as in a search's best.json


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixer = AttentionMixer(parse_formula(FORMULA), width, heads=4, dropout=0.1)

    def forward(self, x, mask):
        return x + self.mixer(self.norm(x), mask)


block = Block(64)
mask = torch.arange(20) < torch.tensor([[20], [13]])  # (B, T), True at real tokens
y = block(torch.randn(2, 20, 64), mask)  # (B, T, 64)
y[mask].square().mean().backward()
finite = all(value.grad.isfinite().all() for value in block.parameters())
print(tuple(y.shape), "gradients:", finite)

# A whole network from best.json, with its costs
with open("best.json", "w") as file:
    json.dump({"arch": f"conv9 | {FORMULA}"}, file)
arch = read_arch("best.json", layers=2)
costs = count(arch, Config(layers=2))
print(arch_text(arch), costs["parameters"], costs["attention_parameters"], costs["flops"])

# A round of the search: candidates with weights from the super-net
cfg = Config(layers=2, hidden=16, heads=2, ffn=32, vocab_size=50, population=4, parents=2)
supernet = SuperNet(cfg)
for _, arch in propose([], 0, cfg):
    model = LanguageModel(arch, cfg, shared=True)
    supernet.fetch(model)
    print("candidate:", arch_text(arch))
