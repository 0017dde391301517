"""A searched attention in somebody's model. Copy autobert_zero.py beside this; PyTorch is all that both need."""
import json

import torch
from torch import nn

from autobert_zero import (AttentionMixer, Config, LanguageModel, SuperNet, arch_text, count, parse_formula, propose,
                           read_arch)

FOUND = "cos(dist(Q, Q), cos(softsign(softmax(P)), V)) @ K"  # as best.json of a search has it


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(width), AttentionMixer(parse_formula(FOUND), width, heads=4, dropout=0.1)

    def forward(self, x, mask):
        return x + self.mixer(self.norm(x), mask)


block, mask = Block(64), torch.arange(20) < torch.tensor([[20], [13]])  # (B, T), True at real tokens
y = block(torch.randn(2, 20, 64), mask)  # (B, T, 64)
y[mask].square().mean().backward()
print(tuple(y.shape), "gradients:", all(value.grad.isfinite().all() for value in block.parameters()))

# A whole network from a search's best.json, and what it would cost.
with open("best.json", "w") as file:
    json.dump({"arch": f"conv9 | {FOUND}"}, file)
arch = read_arch("best.json", layers=2)
found = count(arch, Config(layers=2))
print(arch_text(arch), found["parameters"], found["attention_parameters"], found["flops"])

# A round of the search: candidates that take their weights from the super-net.
cfg = Config(layers=2, hidden=16, heads=2, ffn=32, vocab_size=50, population=4, parents=2)
supernet = SuperNet(cfg)
for _, arch in propose([], 0, cfg):
    model = LanguageModel(arch, cfg, shared=True)
    supernet.fetch(model)
    print("candidate:", arch_text(arch))
