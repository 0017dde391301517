"""AutoTinyBERT on the letters of a text file, in another program: python autotinybert_example.py
FILE. Copy autotinybert.py next to this file. Both need only PyTorch."""
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from autotinybert import (
    Config, LanguageModel, Predictor, draw_archs, extract, learning_rate, make_optimizer,
    mask_tokens, parse_arch, propose, time_model)

text = Path(sys.argv[1] if len(sys.argv) > 1 else "autotinybert.py").read_text()
letters = sorted(set(text))
ids = torch.tensor([5 + letters.index(letter) for letter in text])
tokenizer = SimpleNamespace(  # anything with these names. Here each token is a letter
    vocab_size=5 + len(letters), pad_id=0, cls_id=2, sep_id=3, mask_id=4)
cfg = Config(
    largest="3-64-128-4-64", smallest="1-32-32-1-16", length=32, batch=32, steps=121, lr=3e-3,
    population=5, generations=3, latency_length=32)


def loss_of(model, arch, generator):
    """The loss of masked letters in random places of the text."""
    starts = torch.randint(len(ids) - cfg.length, (cfg.batch, 1), generator=generator)
    batch = ids[starts + torch.arange(cfg.length)]
    changed, positions, labels = mask_tokens(batch, tokenizer, generator)
    types = torch.zeros_like(changed)
    logits = model({"ids": changed, "token_type_ids": types, "masked_positions": positions}, arch)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


torch.manual_seed(0)
supernet = LanguageModel(parse_arch(cfg.largest), tokenizer.vocab_size)
optimizer = make_optimizer(supernet, weight_decay=0.01)
for step in range(cfg.steps):  # Alg. 1
    for arch in draw_archs(cfg, step, 0):
        loss = loss_of(supernet, arch, torch.Generator().manual_seed(step))
        (loss / cfg.samples).backward()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, cfg)
    optimizer.step()
    optimizer.zero_grad()
    if step % 40 == 0:
        loss = loss_of(supernet, None, torch.Generator().manual_seed(99))
        print(f"step {step}: loss {loss.item():.2f}")

measured = [arch for step in range(8) for arch in draw_archs(cfg, step, 1)]
times = [time_model(arch, cfg) for arch in measured]
predict_ms = Predictor(cfg.latency_length).fit(measured, times)
limit = sorted(times)[len(times) // 2]
history = []
for number in range(cfg.generations):  # Alg. 2
    for parent, arch in propose(history, number, cfg, predict_ms, limit):
        loss = loss_of(extract(supernet, arch), None, torch.Generator().manual_seed(99)).item()
        history.append({"id": len(history), "round": number, "parent": parent, "arch": str(arch),
                        "score": -loss, "diverged": False})
        print(f"{arch} takes {predict_ms([arch])[0] / limit:.2f} of the limit, loss {loss:.2f}")
print("best:", max(history, key=lambda line: line["score"])["arch"])
