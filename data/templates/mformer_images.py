# The template of the file that `python mformer.py --export FILE.py` writes for images. It is read
# as text and never imported. data/mformer_code.py replaces each mark FILL_*, and drops these lines.
"""A classifier of images (mFormer, arXiv:2207.13955), in plain PyTorch.

    network = load("FILL_weights").eval()
    logits = network({"images": prepare(images)})  # images (B, 3, H, H) uint8, RGB, of any H
    names = [CLASSES[number] for number in logits.argmax(1)]

The classes are from mformer.py. Comments D1, D2, ... are departures from the paper.
B batch, T tokens, H hidden, N heads, D head dim, I image, P patch, R CONFIG.relative.
"""
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = SimpleNamespace(
FILL_config
)
ARCH = SimpleNamespace(
FILL_arch
)
CLASSES = FILL_classes
MEAN = FILL_mean  # of the red, green and blue pixels of the training images
DEVIATION = FILL_deviation
FILL_sources

def prepare(images):
    """The network's input for images (B, 3, H, H) uint8. Enlarged images lose their rim."""
    size = CONFIG.image
    zoom = 224 / 256 if size > images.shape[-1] else 1.0
    theta = torch.tensor([[zoom, 0, 0], [0, zoom, 0]], device=images.device)
    grid = F.affine_grid(
        theta.expand(len(images), -1, -1), (len(images), 3, size, size), align_corners=False)
    pixels = F.grid_sample(
        images.float() / 255, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    mean, deviation = torch.tensor([MEAN, DEVIATION], device=images.device)[..., None, None]
    return (pixels.clamp(0, 1) - mean) / deviation


def load(path):
    """The network with the weights of a file."""
    network = ImageModel(ARCH, CONFIG)
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network
