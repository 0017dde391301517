"""What --describe rehearses of each paper file: its model and optimizer, the update of its training loop and its largest
evaluation, on batches of the right shapes. file: the paper file's module. Returns what common.rehearsal takes.
"""
import dataclasses

import torch

CPU = torch.device("cpu")


def ids(*shape):
    return torch.zeros(shape, dtype=torch.long)


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
