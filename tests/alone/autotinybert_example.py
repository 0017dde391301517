"""AutoTinyBERT on a toy: a SuperPLM and its sub-models, their latency, and a generation of the
search. Copy autotinybert.py next to this file. Both need only PyTorch."""
import random
import statistics

import torch

import autotinybert as atb

torch.manual_seed(0)
cfg = atb.Config(largest="2-64-128-4-64", smallest="1-32-32-1-16", population=4, latency_length=32)
space = atb.search_space(cfg)
rng = random.Random(0)
model = atb.LanguageModel(atb.parse_arch(cfg.largest), 30)
optimizer = atb.make_optimizer(model, weight_decay=0.01)  # of torch, with its learning rate

# words that count upwards. 0 is [MASK], and the masked word follows from its neighbours
ids = 1 + (torch.randint(28, (32, 1)) + torch.arange(12)) % 28
positions = torch.randint(12, (32, 2))
masked = ids.scatter(1, positions, 0)
labels = ids.gather(1, positions)
batch = {"ids": masked, "token_type_ids": torch.zeros_like(ids), "masked_positions": positions}


def loss_of(arch):
    logits = model(batch, arch)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


for step in range(60):
    for _ in range(3):  # M of Alg. 1: each sub-model trains the weights that it is cut from
        loss_of(atb.sample_arch(space, rng)).backward()
    optimizer.step()
    optimizer.zero_grad()
for arch in (atb.smallest_arch(space), model.encoder.arch):
    print(f"{arch} has a loss of {loss_of(arch):.3f}")

measured = [atb.sample_arch(space, rng) for _ in range(12)]
times = [atb.time_model(arch, cfg) for arch in measured]
predict = atb.Predictor(cfg.latency_length).fit(measured, times)
limit = statistics.median(times)
for parent, arch in atb.propose([], 0, cfg, predict, limit):  # the first generation of Alg. 2
    print(f"{arch} takes {predict([arch])[0] / limit:.2f} of the limit")
