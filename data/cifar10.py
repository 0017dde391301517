"""CIFAR-10's binary version as tensors, and what a training sees of it.

    images, labels = load_cifar10("cifar-10-batches-bin", "train")       # (N, 3, 32, 32) uint8, (N,) int64

A record is one label byte and 3,072 pixel bytes: the red, the green and the blue plane of 32 x 32. Training records
stand in data_batch_*.bin (all that are there are read, in the order of their names), test records in test_batch.bin.
"""
import functools
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from common.cli import UserError
from common.distributed import progress, seed_of, send

RECORD = 1 + 3 * 32 * 32


def load_cifar10(folder, split):
    """(images (N, 3, 32, 32) uint8, labels (N,) int64) of "train" or "test". A UserError names the
    file that is wrong. """
    records = np.concatenate([read_records(path) for path in find_batches(folder, split)])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


def find_batches(folder, split):
    """The files of "train" or "test"; UserError where there is none."""
    pattern = "data_batch_*.bin" if split == "train" else "test_batch.bin"
    files = sorted(Path(folder).glob(pattern))
    if not files:
        raise UserError(f"{folder}: there is no {pattern}; "
                        "--cifar10 takes the folder of CIFAR-10's binary version (cifar-10-batches-bin)")
    return files


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


class Pictures:
    """What a training reads of CIFAR-10: its images on the device as bytes, --held_out of them set
    aside for validation losses, and an endless stream of batches, each a function of its number and
    the seed."""
    unit = "images"

    def __init__(self, cfg, ranks, folder, training=True):
        self.cfg, self.ranks, self.device = cfg, ranks, ranks.device
        if not training:
            return
        images, labels = load_cifar10(cfg.cifar10, "train")
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed_of(cfg.seed, "held out")))
        rows, held = rows[cfg.held_out:], rows[:cfg.held_out]
        rows, self.size = rows[:cfg.train_examples or None], cfg.batch // cfg.accumulate
        if len(rows) < self.size:
            raise UserError(f"--batch {cfg.batch}: {len(rows)} training images are fewer than a shard of {self.size}")
        self.images, self.labels = images[rows].to(self.device), labels[rows].to(self.device)
        self.held, self.set_aside, self.made, self.epoch = (images[held], labels[held]), len(held), [], None

    def batch(self, number):
        """(images (B, 3, I, I), labels (B,)) of shard `number` of the stream of shuffled epochs."""
        epoch, index = divmod(number, len(self.labels) // self.size)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(seed_of(self.cfg.seed, "order", epoch))
            shuffled = torch.randperm(len(self.labels), generator=generator)
            (self.shuffled,), self.epoch = send([shuffled], self.device), epoch
        rows = self.shuffled[index * self.size:(index + 1) * self.size]
        generator = torch.Generator(self.device).manual_seed(seed_of(self.cfg.seed, "augment", number))
        return augment(self.images[rows], self.cfg, generator), self.labels[rows]

    def plain_batches(self, images, labels):
        for part, wanted in zip(images.split(500), labels.split(500)):
            part, wanted = send((part, wanted), self.device)
            yield plain_images(part, self.cfg), wanted

    def held_batches(self):
        """What is set aside, as batch() gives it but not augmented; made once (5,000 images of 224
        pixels: 3 GB)."""
        self.made = self.made or list(self.plain_batches(*self.held))
        return self.made

    def test_batches(self):
        """The test images, with a progress bar; in a dry run the first of them."""
        images, labels = (part[:64 if self.cfg.dry_run else None] for part in load_cifar10(self.cfg.cifar10, "test"))
        bar = progress(self.ranks, len(labels), "evaluating")
        for batch in self.plain_batches(images, labels):
            yield batch
            bar.update(len(batch[1]))
        bar.close()


# --- images as a network sees them ---------------------------------------------------------------

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's channels


@functools.cache  # so that they go to a GPU once
def channels(device):
    """MEAN and DEVIATION, each (3, 1, 1), on the device."""
    return torch.tensor([MEAN, DEVIATION], device=device)[..., None, None]


def normal_pixels(x):
    """Pixels 0..1 with mean 0 and deviation 1 a channel. (B, 3, *, *)"""
    mean, deviation = channels(x.device)
    return (x - mean) / deviation


def resample(images, theta, size):
    """Images (B, 3, 32, 32) uint8 under affine maps theta (B, 2, 3) as (B, 3, size, size) pixels
    0..1, bicubic."""
    grid = F.affine_grid(theta, (len(images), 3, size, size), align_corners=False)
    return F.grid_sample(images.float() / 255, grid, mode="bicubic", padding_mode="reflection",
                         align_corners=False).clamp(0, 1)


def plain_images(images, cfg):
    """Images for evaluation. Enlarged ones lose their rim (resized to 256, the middle 224 of
    it)."""
    zoom = 224 / 256 if cfg.image > 32 else 1.0
    theta = torch.tensor([[zoom, 0, 0], [0, zoom, 0]], device=images.device).expand(len(images), -1, -1)
    return normal_pixels(resample(images, theta, cfg.image))


def augment(images, cfg, generator=None):
    """Images for training: crop, flip, turn, shear, shift in one resampling; colours; an erased
    box. (B, 3, 32, 32) uint8 -> (B, 3, I, I). generator: draws everything; default: torch's own

    The strength is that of mFormer's released code, whose RandAugment has more operations; the
    paper mentions none. """
    (smallest, magnitude, jitter, erasing), B, device = cfg.augment, len(images), images.device

    def draw(low, high):
        return torch.empty(B, device=device).uniform_(low, high, generator=generator)

    area, ratio, strength = draw(smallest, 1), draw(math.log(3 / 4), math.log(4 / 3)).exp(), magnitude / 10
    width = height = area  # the whole image
    if smallest < 1:
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    turn, shear, flip = strength * draw(-math.pi / 6, math.pi / 6), strength * draw(-0.3, 0.3), draw(-1, 1).sign()
    across = (1 - width) * draw(-1, 1) + strength * draw(-0.2, 0.2)
    down = (1 - height) * draw(-1, 1) + strength * draw(-0.2, 0.2)
    rows = [torch.stack([flip * width * turn.cos(), height * (shear - turn.sin()), across], 1),
            torch.stack([flip * width * turn.sin(), height * turn.cos(), down], 1)]
    x = resample(images, torch.stack(rows, 1), cfg.image)
    brightness, contrast, colour = (draw(1 - jitter, 1 + jitter)[:, None, None, None] for _ in range(3))
    x = x * brightness
    x = (x - x.mean((1, 2, 3), keepdim=True)) * contrast + x.mean((1, 2, 3), keepdim=True)
    grey = x.mean(1, keepdim=True)
    return erase(normal_pixels(((x - grey) * colour + grey).clamp(0, 1)), erasing, generator)


def erase(x, chance, generator=None):
    """With this chance an image has a box of 2% to 33% of it filled with noise. x (B, 3, I, I)"""
    B, size, device = len(x), x.shape[-1], x.device
    area, ratio = (torch.empty(B, device=device).uniform_(*ends, generator=generator)
                   for ends in ((0.02, 1 / 3), (math.log(0.3), math.log(3.3))))
    ratio = ratio.exp()
    extent = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()]).clamp(max=1.0)  # (2, B) shares of the width
    corner = torch.rand(2, B, device=device, generator=generator) * (1 - extent)
    place = torch.arange(size, device=device) / size
    inside = (place >= corner[..., None]) & (place < (corner + extent)[..., None])  # (2, B, I)
    hit = torch.rand(B, device=device, generator=generator) < chance
    box = inside[0][:, :, None] & inside[1][:, None] & hit[:, None, None]
    return torch.where(box[:, None], torch.randn(x.shape, device=device, generator=generator), x)
