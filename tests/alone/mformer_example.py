"""cosFormer attention in somebody's model, and the ranker on somebody's scores. Copy mformer.py beside this; PyTorch is
all that both need."""
import random

import torch
from torch import nn

from mformer import Config, Ranker, cosines_at, linear_attention, measure_latency, parse_arch, sample_arch


class LinearAttention(nn.Module):  # time and memory grow with the length, not with its square
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.inputs, self.output = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, lengths):  # (B, T, H), (B,) -> (B, T, H)
        q, k, v = self.inputs(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, heads, T, D)
        positions = torch.arange(x.shape[1], device=x.device)
        mixed = linear_attention(q, k, v, cosines_at(positions, lengths), mask=positions < lengths[:, None])
        return self.output(mixed.transpose(1, 2).flatten(2))


attention, x = LinearAttention(64, heads=4), torch.randn(2, 300, 64)
y, alone = attention(x, torch.tensor([300, 170])), attention(x[1:, :170], torch.tensor([170]))
print(f"{tuple(y.shape)}, without its padding the same: {torch.allclose(y[1:, :170], alone, atol=1e-5)}")

# Networks that somebody has measured; your own table of choices and scores (low is good) stand here
space = dict(layers=(2, 3), hidden=(32, 48, 64), ffn=(128,), heads=(2, 4), types=("softmax", "linear"))
measured = {arch: 3 - 0.2 * arch.layers - arch.hidden / 100 - 0.5 * arch.types.count("linear") / arch.layers
            for arch in (sample_arch(space, random.Random(number)) for number in range(200))}
ranker = Ranker(space, [*measured], [*measured.values()])
new = [sample_arch(space, random.Random(f"new {number}")) for number in range(40)]
_, best = min(zip(ranker.rank_scores(new), new))
print(f"best of {len(new)} new ones: layers {best.layers}, hidden {best.hidden}, types {best.types}, "
      f"tau {ranker.tau:.2f}")
print("what matters most:", next(iter(ranker.importance())))

# So many milliseconds does the published network take here on a picture of 32 x 32, and so many GFLOPs
cfg = Config(image=32, patch=4, latency_runs=1)
published = parse_arch("mformer", cfg)
for cost in ("wall", "flops"):
    cfg.cost = cost
    print(f"mFormer, one image, {cost}: {measure_latency(published, cfg, torch.device('cpu'))[0]:.3g}")
