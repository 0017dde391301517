"""OP-NAS on the letters of a text file, in another program: python autobert_zero_example.py FILE.
Copy autobert_zero.py next to this file. Both need only PyTorch."""
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from autobert_zero import (
    Config, LanguageModel, SuperNet, arch_text, learning_rate, make_optimizer, mask_tokens, propose,
    ranked, round_sizes, summed_loss)

text = Path(sys.argv[1] if len(sys.argv) > 1 else "autobert_zero.py").read_text()
letters = sorted(set(text))
ids = torch.tensor([5 + letters.index(letter) for letter in text])
tokenizer = SimpleNamespace(  # anything with these names. Here each token is a letter
    vocab_size=5 + len(letters), pad_id=0, cls_id=2, sep_id=3, mask_id=4)
cfg = Config(
    layers=2, hidden=32, heads=2, ffn=64, vocab_size=tokenizer.vocab_size, length=32, dropout=0.0,
    init_std=0.1, steps=40, batch=32, lr=1e-2, warmup=0.1,
    population=4, rounds=2, parents=2, children=2)


def loss_of(model, generator):
    """The loss of masked letters in random places of the text."""
    starts = torch.randint(len(ids) - cfg.length, (cfg.batch, 1), generator=generator)
    batch = ids[starts + torch.arange(cfg.length)]
    changed, positions, labels = mask_tokens(batch, tokenizer, generator)
    types = torch.zeros_like(changed)
    logits, _ = model({"ids": changed, "token_type_ids": types, "masked_positions": positions})
    return summed_loss(logits, labels) / len(labels)


torch.manual_seed(0)
supernet = SuperNet(cfg)
history = []
for number in range(len(round_sizes(cfg))):
    states = {}
    for parent, arch in propose(history, number, cfg):
        model = LanguageModel(arch, cfg, shared=True)
        supernet.fetch(model)
        optimizer = make_optimizer(model, 0.01)
        generator = torch.Generator().manual_seed(number)  # the same text for all of a round
        for step in range(cfg.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, cfg)
            loss_of(model, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
        loss = loss_of(model, torch.Generator().manual_seed(99)).item()
        line = {"id": len(history), "arch": arch_text(arch), "score": -loss, "diverged": False}
        print(f"round {number}, parent {parent}: loss {loss:.2f}  {line['arch']}")
        history.append(line)
        states[line["id"]] = arch, model.state_dict()
    worst_first = reversed(ranked(history))
    supernet.write_back(states[line["id"]] for line in worst_first if line["id"] in states)
print("best:", ranked(history)[0]["arch"])
