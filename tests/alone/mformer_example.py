"""mFormer on images made in place, in another program: python mformer_example.py. Copy mformer.py
next to this file. Both need only PyTorch."""
import random

import torch
import torch.nn.functional as F

from mformer import (
    Config, arch_text, learning_rate, make_model, make_optimizer, model_flops, parse_arch, rank_nas,
    sample_arch, space_of, widest, winner)

cfg = Config(
    image=16, patch=4, classes=4, layers=(1, 2), hidden=(16, 32), ffn=(32, 64), heads=(1, 2),
    head_dim=16, relative=4, steps=161, batch=32, lr=3e-3, warmup=0.1, samples=40, population=20,
    generations=3, finalists=4, cost="flops")
space = space_of(cfg)
generator = torch.Generator().manual_seed(0)


def draw_batch(count):
    """Noisy images, brighter in one of four corners, and the number of the corner."""
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    for image, corner in zip(images.unflatten(3, (2, 8)).unflatten(2, (2, 8)), labels.tolist()):
        image[:, corner // 2, :, corner % 2] += 2
    return {"images": images, "labels": labels}


def loss_of(batch, arch):
    return F.cross_entropy(supernet(batch, arch), batch["labels"])


torch.manual_seed(0)
supernet = make_model(widest(space), cfg, space)
optimizer = make_optimizer(supernet, cfg.weight_decay)
held_out = draw_batch(128)
for step in range(cfg.steps):  # a random sub-net in each step
    loss_of(draw_batch(cfg.batch), sample_arch(space, random.Random(step))).backward()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, cfg)
    optimizer.step()
    optimizer.zero_grad()
    if step % 40 == 0:
        print(f"step {step}: loss {loss_of(held_out, widest(space)).item():.2f}")


@torch.no_grad()
def measure(arch):
    loss = loss_of(held_out, arch).item()
    latency = model_flops(arch, cfg) / 1e9
    return {"arch": arch_text(arch), "score": -loss, "scores": {"loss": loss, "latency": latency}}


samples = {sample_arch(space, random.Random(f"sample {number}")) for number in range(60)}
history = [measure(arch) for arch in sorted(samples)]
found = rank_nas(space, history, cfg)  # rankers, pruning and evolution
ranked = [measure(parse_arch(text, cfg)) for text in found["ranked"][:cfg.finalists]]
best = winner(history + ranked, found["latency_limit"])
fraction = best["scores"]["latency"] / found["latency_limit"]
print(f"best: {fraction:.2f} of the limit, loss {-best['score']:.2f}: {best['arch']}")
