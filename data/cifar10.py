"""CIFAR-10's binary version as tensors, batches for training, and augmentation.

    images, labels = load_cifar10("cifar-10-batches-bin", "train")  # (N, 3, 32, 32) uint8, (N,)

A record is one label byte and 3,072 pixel bytes: the red, the green and the blue plane of 32 x 32.
Training records are in data_batch_*.bin (all files, in the order of their names), test records in
test_batch.bin.
"""
import functools
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from common.cli import UserError
from common.distributed import seed_of, send

RECORD = 1 + 3 * 32 * 32  # bytes


# --- files ---------------------------------------------------------------------------------------

def find_batches(folder, split):
    """The files of "train" or "test"."""
    pattern = "data_batch_*.bin" if split == "train" else "test_batch.bin"
    files = sorted(Path(folder).glob(pattern))
    if not files:
        raise UserError(f"--cifar10 {folder}: there is no {pattern}, of CIFAR-10's binary version")
    return files


def read_records(path):
    """(N, 3073) uint8 of one file."""
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % RECORD:
        raise UserError(f"{path}: not a whole number of {RECORD}-byte records; fetch it again")
    records = content.reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise UserError(f"{path}: there are labels above 9; fetch it again")
    return records


def load_cifar10(folder, split):
    """(images (N, 3, 32, 32) uint8, labels (N,) int64) of "train" or "test"."""
    records = np.concatenate([read_records(path) for path in find_batches(folder, split)])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32))
    return images, torch.from_numpy(records[:, 0]).long()


# --- batches -------------------------------------------------------------------------------------

class Pictures:
    """CIFAR-10: the training images as bytes on the device, --held_out of them for validation
    losses, an endless stream of batches, each a function of its number and the seed, and the test
    images."""
    unit = "images"

    def __init__(self, cfg, ranks, folder, training=True):
        self.cfg = cfg
        self.ranks = ranks
        self.device = ranks.device
        if training:
            self.load_training()

    def load_training(self):
        cfg = self.cfg
        images, labels = load_cifar10(cfg.cifar10, "train")
        order = self.permutation(len(labels), "held out")
        held = order[:cfg.held_out]
        used = order[cfg.held_out:][:cfg.train_examples or None]
        self.size = cfg.batch // cfg.accumulate
        if len(used) < self.size:
            raise UserError(f"--batch {cfg.batch}: a micro-batch has {self.size} images; "
                            f"{len(used)} are left to train on")
        self.images = images[used].to(self.device)
        self.labels = labels[used].to(self.device)
        self.held = images[held], labels[held]
        self.num_held_out = len(held)

    def facts(self):
        """A line on the training images."""
        classes = len(self.labels.unique())
        return f"{self.cfg.cifar10}: {len(self.labels):,} training images, {classes} classes"

    def permutation(self, count, *key):
        generator = torch.Generator().manual_seed(seed_of(self.cfg.seed, *key))
        return torch.randperm(count, generator=generator)

    @functools.lru_cache(maxsize=1)
    def order(self, epoch):
        """The order of the images in an epoch, on the device."""
        order, = send([self.permutation(len(self.labels), "order", epoch)], self.device)
        return order

    def batch(self, number):
        """Micro-batch `number` of the stream of epochs: images (B, 3, I, I), labels (B,)."""
        epoch, index = divmod(number, len(self.labels) // self.size)
        chosen = self.order(epoch)[index * self.size:(index + 1) * self.size]
        seed = seed_of(self.cfg.seed, "augment", number)
        generator = torch.Generator().manual_seed(seed)
        return {
            "images": augment(self.images[chosen], self.cfg, generator),
            "labels": self.labels[chosen],
        }

    def plain_batches(self, images, labels):
        for batch in zip(images.split(500), labels.split(500)):
            images, labels = send(batch, self.device)
            yield {"images": plain_images(images, self.cfg), "labels": labels}

    @functools.cache
    def held_batches(self):
        """The held-out images, not augmented; made once (5,000 images of 224 pixels: 3 GB)."""
        return list(self.plain_batches(*self.held))

    def test_batches(self):
        """This process's part of the test images; in a dry run of the first 64."""
        count = 64 if self.cfg.dry_run else None
        own = [values[:count].tensor_split(self.ranks.size)[self.ranks.rank]
               for values in load_cifar10(self.cfg.cifar10, "test")]
        return self.plain_batches(*own)


# --- images as a network sees them ---------------------------------------------------------------

MEAN = 0.4914, 0.4822, 0.4465  # of CIFAR-10's channels
DEVIATION = 0.2470, 0.2435, 0.2616


def normal_pixels(x):
    """Pixels 0..1 with mean 0 and deviation 1 a channel. (B, 3, *, *)"""
    mean, deviation = send(torch.tensor([MEAN, DEVIATION])[..., None, None], x.device)
    return (x - mean).div_(deviation)


def resample(images, theta, size):
    """Images (B, 3, 32, 32) uint8 under affine maps theta (B, 2, 3) as pixels 0..1
    (B, 3, size, size), bicubic."""
    grid = F.affine_grid(theta, (len(images), 3, size, size), align_corners=False)
    pixels = F.grid_sample(images.float() / 255, grid, mode="bicubic", padding_mode="reflection",
                           align_corners=False)
    return pixels.clamp_(0, 1)


def plain_images(images, cfg):
    """Images for evaluation. An enlarged image loses its rim: it is resized to 256 pixels, and the
    middle 224 are taken."""
    zoom = 224 / 256 if cfg.image > 32 else 1.0
    theta = torch.tensor([[zoom, 0, 0], [0, zoom, 0]], device=images.device)
    return normal_pixels(resample(images, theta.expand(len(images), -1, -1), cfg.image))


def augment(images, cfg, generator):
    """Images for training: crop, flip, rotation, shear and shift in one resampling; an erased box.
    (B, 3, 32, 32) uint8 -> (B, 3, I, I). generator: draws everything, on the CPU, so that a GPU
    sees the same images.

    mformer.py's D20 says how it differs from the released code.
    """
    smallest, strength, erasing = cfg.augment

    def draw(low, high):
        return torch.empty(len(images)).uniform_(low, high, generator=generator)

    area = draw(smallest, 1)
    ratio = draw(math.log(3 / 4), math.log(4 / 3)).exp()
    width = height = area  # the whole image
    if smallest < 1:
        width = (area * ratio).sqrt().clamp(max=1)
        height = (area / ratio).sqrt().clamp(max=1)
    turn = strength * draw(-math.pi / 6, math.pi / 6)
    shear = strength * draw(-0.3, 0.3)
    flip = draw(-1, 1).sign()
    across = (1 - width) * draw(-1, 1) + strength * draw(-0.2, 0.2)
    down = (1 - height) * draw(-1, 1) + strength * draw(-0.2, 0.2)
    theta = torch.stack([
        flip * width * turn.cos(), height * (shear - turn.sin()), across,
        flip * width * turn.sin(), height * turn.cos(), down,
    ], 1)
    (theta,) = send([theta.view(-1, 2, 3)], images.device)
    return erase(normal_pixels(resample(images, theta, cfg.image)), erasing, generator)


def erase(x, chance, generator):
    """Fill a box of 2% to 33% of an image with noise, with this chance, in place.
    x (B, 3, I, I)"""
    size = x.shape[-1]
    draws = torch.rand(len(x), 5, generator=generator).tolist()
    for image, (chosen, top, left, area, ratio) in zip(x, draws):
        if chosen < chance:
            area = size * size * (0.02 + area * (1 / 3 - 0.02))
            ratio = 3.3 ** (2 * ratio - 1)  # of height and width
            height = min(size, round(math.sqrt(area * ratio)))
            width = min(size, round(math.sqrt(area / ratio)))
            top = round(top * (size - height))
            left = round(left * (size - width))
            box = image[:, top:top + height, left:left + width]
            box.copy_(torch.randn(box.shape, generator=generator))
    return x
