"""CIFAR-10's binary version as tensors.

    images, labels = load_cifar10("cifar-10-batches-bin", "train")       # (N, 3, 32, 32) uint8, (N,) int64

A record is one label byte and 3,072 pixel bytes: the red, the green and the blue plane of 32 x 32. Training records
stand in data_batch_*.bin (all that are there are read, in the order of their names), test records in test_batch.bin.
"""
from pathlib import Path

import numpy as np
import torch

from common.cli import UserError
from common.distributed import seed_of

RECORD = 1 + 3 * 32 * 32


def load_cifar10(folder, split):
    """(images (N, 3, 32, 32) uint8, labels (N,) int64) of "train" or "test". UserError names the file and what is wrong
    with it."""
    folder, pattern = Path(folder), "data_batch_*.bin" if split == "train" else "test_batch.bin"
    files = sorted(folder.glob(pattern))
    if not files:
        raise UserError(f"{folder}: there is no {pattern}; "
                        "--cifar10 takes the folder of CIFAR-10's binary version (cifar-10-batches-bin)")
    records = np.concatenate([read_records(path) for path in files])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


def read_records(path):
    """(N, 3073) uint8 of one file."""
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % RECORD:
        raise UserError(f"{path}: {len(content)} bytes are not a whole number of {RECORD}-byte records; "
                        "fetch the file again")
    records = content.reshape(-1, RECORD)
    wrong = np.flatnonzero(records[:, 0] > 9)
    if len(wrong):
        raise UserError(f"{path}: record {wrong[0] + 1} has the label {records[wrong[0], 0]}, not 0 to 9; "
                        "this is not CIFAR-10's binary version")
    return records


def class_names(folder):
    """The ten names of batches.meta.txt; "0" to "9" where the file is not there."""
    path = Path(folder) / "batches.meta.txt"
    names = path.read_text(encoding="utf-8").split() if path.exists() else []
    return names if len(names) == 10 else [str(number) for number in range(10)]


class Pictures:
    """What a training reads of CIFAR-10: its images on the device as bytes, --held_out of them set aside for validation
    losses, and an endless stream of batches, each a function of its number and the seed."""

    def __init__(self, cfg, device):
        images, labels = load_cifar10(cfg.cifar10, "train")
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed_of(cfg.seed, "held out")))
        order, held = order[cfg.held_out:], order[:cfg.held_out]
        order, self.size, self.seed = order[:cfg.train_rows or None], cfg.batch // cfg.accumulate, cfg.seed
        if len(order) < self.size:
            raise UserError(f"--batch {cfg.batch}: {len(order)} training images are fewer than a shard of {self.size}")
        self.images, self.labels = images[order].to(device), labels[order].to(device)
        self.held = images[held].to(device), labels[held].to(device)

    def batch(self, number):
        """(images (B, 3, 32, 32) uint8, labels (B,)) of shard `number` of the stream of shuffled epochs."""
        epoch, place = divmod(number, len(self.labels) // self.size)
        generator = torch.Generator().manual_seed(seed_of(self.seed, "order", epoch))
        rows = torch.randperm(len(self.labels), generator=generator)[place * self.size:(place + 1) * self.size]
        rows = rows.to(self.images.device)
        return self.images[rows], self.labels[rows]
