"""What is rehearsed of each paper file: its model and optimizer, an update as its training loop does it and its largest
evaluation, on batches of the right shapes. file: the paper file's module. Returns what common.rehearsal takes.
"""
import dataclasses
import functools
import sys

import torch
from torch import nn

from common import rehearsal

CPU = torch.device("cpu")


def ids(*shape):
    return torch.zeros(shape, dtype=torch.long)


def forecast(name, cfg, updates, *more, least=1):
    """common.rehearsal.forecast of the paper file whose module has this name; more: what its function below takes."""
    build = functools.partial({"albert": albert, "autobert_zero": autobert_zero}[cfg.program], sys.modules[name], *more)
    return rehearsal.forecast(cfg, build, updates, least)


def albert(file, cfg):
    """An update of --pretrain, and a look at held-out text."""
    model = file.LanguageModel(cfg)
    optimizer, ranks = file.Lamb(model.parameters(), cfg.lr, weight_decay=cfg.weight_decay), file.Ranks(0, 1, CPU)

    def batch(rows):
        T, M = cfg.length, file.predictions(cfg)
        return ids(rows, T), ids(rows, T), ids(rows), ids(rows, M), ids(rows, M), ids(rows)

    def step(rows, shards):
        own = dataclasses.replace(cfg, accumulate=shards)
        file.update(model.train(), model, optimizer, map(batch, [rows] * shards), torch.zeros(3), own, ranks)

    def look():
        with file.autocast(cfg.dtype, CPU):
            return model.eval()(*batch(min(64, cfg.dev_rows))[:4])[0].argmax(-1)

    return optimizer, step, look


def autobert_zero(file, arch, cfg):
    """An update of pre-training, and a look at held-out text."""
    model = file.LanguageModel(arch, cfg)
    optimizer = file.make_optimizer(model, cfg.weight_decay)

    def batch(rows):
        T, M = cfg.length, max(1, round(file.MASK_RATE * rows * cfg.length))
        return ids(rows, T), ids(rows, T), ids(rows), ids(M), ids(M), ids(rows)

    def step(rows, shards):
        model.train()
        for _ in range(shards):
            losses, _ = file.language_losses(model, batch(rows), cfg, CPU)
            (sum(losses) / shards).backward()
        nn.utils.clip_grad_norm_(model.parameters(), file.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    def look():
        _, answers = file.language_losses(model.eval(), batch(min(32, cfg.batch)), cfg, CPU)
        return [logits.argmax(-1) for logits, _ in answers]

    return optimizer, step, look
