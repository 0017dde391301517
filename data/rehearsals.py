"""What is rehearsed of each paper file: its model and optimizer, an update as its training loop does it and its largest
evaluation, on batches of the right shapes. file: the paper file's module. Returns what common.describe takes.
"""
import dataclasses
import functools
import math
import sys
from types import SimpleNamespace

import torch
from torch import nn

from common import describe
from common.describe import ids
from common.tasks import EVALUATED

CPU = torch.device("cpu")


def fine_tuning(file, task, cfg, arch=None):
    """An update of fine-tuning on a task in rows of the recipe's length, and a batch of its prediction, of as many rows
    as common.tasks.Task.collect takes. arch: the architecture, but of ALBERT."""
    recipe = file.recipes()[task] if cfg.program == "autotinybert" else file.recipes(cfg)[task]
    kind = "span" if task.startswith("SQuAD") else "choice" if task == "RACE" else "class"
    outputs, shape = 1 if kind == "choice" else 2, (4, recipe.length) if kind == "choice" else (recipe.length,)
    if cfg.program == "albert":
        own = dataclasses.replace(cfg, dropout=recipe.dropout)
        model = (file.MultipleChoice(own, 1) if kind == "choice" else file.Classifier(own, outputs) if kind == "class"
                 else file.SpanModel(own) if task == "SQuAD1.1" else file.AnswerModel(own))
        optimizer = file.Lamb(model.parameters(), recipe.lr, adapt=False)
    else:
        model = file.TaskModel(file.Encoder(arch, cfg.vocab_size, cfg.dropout), outputs, kind == "span")
        optimizer = file.make_optimizer(model, cfg.weight_decay)

    def forward(batch):
        return model(batch) if cfg.program == "albert" else model(batch["ids"], batch["segments"], batch["lengths"])

    def loss_of(batch):
        with file.autocast(cfg.dtype, CPU):
            found = model.loss(batch) if cfg.program == "albert" else forward(batch).float()
        return found if cfg.program == "albert" else file.task_loss(SimpleNamespace(kind=kind), found, batch)

    def batch(rows):
        zeros = ids(rows)
        return {"ids": ids(rows, *shape), "segments": ids(rows, *shape), "lengths": ids(rows, *shape[:-1]),
                "labels": zeros, "start": zeros, "end": zeros, "impossible": torch.zeros(rows, device=CPU),
                "p_mask": torch.zeros(rows, recipe.length, dtype=torch.bool, device=CPU)}

    def step(rows, shards):
        model.train()
        for _ in range(shards):
            loss_of(batch(rows)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), file.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    def look():
        model.eval()
        with file.autocast(cfg.dtype, CPU):
            return forward(batch(min(4 * recipe.batch, EVALUATED // math.prod(shape))))

    return optimizer, step, look
