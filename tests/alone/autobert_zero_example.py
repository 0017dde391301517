"""A searched attention in somebody's model. Copy autobert_zero.py beside this; PyTorch is all that both need."""
import torch
from torch import nn

from autobert_zero import AttentionMixer, parse_formula

FOUND = parse_formula("cos(dist(Q, Q), cos(softsign(softmax(P)), V)) @ K")  # as best.json of a search has it


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(width), AttentionMixer(FOUND, width, heads=4, dropout=0.1)

    def forward(self, x, mask):
        return x + self.mixer(self.norm(x), mask)


block, mask = Block(64), torch.arange(20) < torch.tensor([[20], [13]])  # (B, T), True at real tokens
y = block(torch.randn(2, 20, 64), mask)  # (B, T, 64)
y[mask].square().mean().backward()
print(tuple(y.shape), "gradients:", all(value.grad.isfinite().all() for value in block.parameters()))
