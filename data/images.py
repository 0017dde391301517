"""Images as tensors (CIFAR-10's binary version, or the user's own npz files), batches for training,
and augmentation.

    images, labels = load_cifar10("cifar-10-batches-bin", "train")  # (N, 3, 32, 32) uint8, (N,)
    images, words = read_npz("my/train.npz")                        # (N, 3, H, H) uint8, (N,) str

CIFAR-10: a record has one label byte and 3,072 pixel bytes, in red, green and blue planes of 32 x
32. Training records are in data_batch_*.bin (all files, ordered by name), test records in
test_batch.bin.

npz: a folder with train.npz and test.npz. Each has `images`, uint8 (n, h, h, 3) or (n, h, h) for
grey images, and `labels` (n,), integers or words.
"""
import functools
import math
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from common.cli import UserError, listed
from common.launch import generator_of, on_main, send
from common.files import existing, read_json, write_json
from common.tasks import sorted_labels
from data.pixel_baseline import pixel_baseline

LAYOUT = ("np.savez writes it, with images, uint8 (n, h, h, 3) or (n, h, h), and labels (n,), "
          "integers or words: data/README.md")
RECORD = 1 + 3 * 32 * 32  # bytes


# --- files ---------------------------------------------------------------------------------------

def find_batches(folder, split):
    """The files of "train" or "test"."""
    pattern = "data_batch_*.bin" if split == "train" else "test_batch.bin"
    files = sorted(filter(Path.is_file, Path(folder).glob(pattern)))
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


def read_array(path, name):
    """An array of a user's own npz file."""
    if not zipfile.is_zipfile(existing(path, LAYOUT)):
        raise UserError(f"{path}: not an .npz file; data/README.md has the lines that make one of "
                        "pictures")
    try:
        with np.load(path, allow_pickle=False) as file:
            array = file[name]
        if not isinstance(array, np.ndarray):  # the bytes of a file that is no array
            raise ValueError("not an array")
        return array
    except Exception as error:  # numpy, zipfile and zlib raise many kinds for a damaged file
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        raise UserError(f"{path}: {name} cannot be read ({reason}); {LAYOUT}") from None


def read_images(path):
    """The images (N, 3, H, H) uint8 of a user's own npz file."""
    images = read_array(path, "images")
    channels = images.ndim in (3, 4) and images.shape[3:] in ((), (3,))
    square = channels and images.shape[1] == images.shape[2]
    if channels and not square:
        raise UserError(f"{path}: images are {images.shape[1]} x {images.shape[2]}; they must be "
                        "square: crop or resize them, as the lines in data/README.md do")
    if images.dtype != np.uint8 or not square or not images.size:
        raise UserError(f"{path}: images are {images.dtype} {images.shape}; {LAYOUT}")
    images = torch.from_numpy(images)
    if images.ndim == 3:
        return images[:, None].expand(-1, 3, -1, -1)
    return images.permute(0, 3, 1, 2)


def read_npz(path):
    """(images as in read_images, labels (N,) as integers or words) of a user's own npz file."""
    images = read_images(path)
    labels = read_array(path, "labels")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iuU":
        raise UserError(f"{path}: labels are {labels.dtype} {labels.shape} for {len(images)} "
                        f"images; {LAYOUT}")
    for label in np.unique(labels).astype(str).tolist():
        if len(label.splitlines()) != 1:
            raise UserError(f"{path}: the label {label!r} is empty or has a line break, but "
                            "predictions have one label per line; rename it")
    return images, labels


def class_numbers(labels, classes, path):
    """The numbers (N,) of labels in a list of classes. UserError for an unknown label."""
    number = {name: index for index, name in enumerate(classes)}
    labels = labels.astype(str).tolist()
    unknown = [label for label in labels if label not in number]
    if unknown:
        raise UserError(f"{path}: the label {unknown[0]!r} is none of the training images' "
                        f"classes: {listed(classes)[:200]}")
    return torch.tensor([number[label] for label in labels])


def find_images(flag, folder, split):
    """The files of "train" or "test" for a data flag, "cifar10" or "images"."""
    if flag == "cifar10":
        return find_batches(folder, split)
    path = Path(folder, f"{split}.npz")
    _, labels = read_npz(path)  # finds mistakes before a run folder is made
    test = Path(folder, "test.npz")
    if split == "train" and test.exists():
        tested = read_array(test, "labels")  # without its images
        class_numbers(tested.ravel(), classes_of(labels), test)
    return [path]


def classes_of(labels):
    """The sorted names of the classes of labels."""
    return sorted_labels(np.unique(labels).astype(str).tolist())


def read_training(flag, folder):
    """(images, class numbers, classes) of the training images of a data flag."""
    if flag == "cifar10":
        images, labels = load_cifar10(folder, "train")
        return images, labels, classes_of(range(10))
    path = Path(folder, "train.npz")
    images, labels = read_npz(path)
    classes = classes_of(labels)
    if len(classes) < 2:
        raise UserError(f"{path}: all labels are {classes[0]!r}; give images of at least two "
                        "classes")
    return images, class_numbers(labels, classes, path), classes


def count_images(flag, folder):
    """The number of training images of a data flag."""
    if flag == "cifar10":
        return sum(path.stat().st_size for path in find_batches(folder, "train")) // RECORD
    return len(read_array(Path(folder, "train.npz"), "labels"))


def width_of(folder):
    """The width of the training images of --images."""
    return read_images(Path(folder, "train.npz")).shape[-1]


def read_spec(run):
    """The data that the network of a run folder needs: {"classes", "mean", "deviation"} of its
    training images."""
    return read_json(Path(run, "images.json"), "train the network again")


def save_spec(run, spec):
    """Write the data for read_spec."""
    write_json(Path(run, "images.json"), spec)


def print_differences(path, images, width, spec):
    """Warn if the images of a file differ in size or colour from the network's."""
    if images.shape[-1] != width:
        side = images.shape[-1]
        print(f"warning: {path}: images of {side} x {side} are resampled to the network's "
              f"{width} x {width}")
    grey = bool((images == images[:, :1]).all())
    if grey != (len({*spec["mean"]}) == 1):
        ours, theirs = ("grey", "coloured") if grey else ("coloured", "grey")
        print(f"warning: {path}: the images are {ours}, the network was trained on {theirs} ones")


# --- batches -------------------------------------------------------------------------------------

class Pictures:
    """Images as input of a network, `image` pixels wide. spec: {"classes", "mean", "deviation"} of
    its training images, kept as images.json in its run folder."""
    unit = "images"
    predictions_file = "classes.txt"

    def __init__(self, ranks, image, spec):
        self.ranks = ranks
        self.device = ranks.device
        self.image = image
        self.spec = spec
        self.classes = spec["classes"]
        self.settings = {"classes": len(self.classes)}  # settings that follow from the data
        self.files = {}  # {data flag: paths}

    def pixels(self, images):
        """The pixels of images (B, 3, H, H) uint8, not augmented, on the device."""
        return plain_images(send(images, self.device), self.image, self.spec)

    def example_batches(self, images):
        """(numbers of the images, batch) for each batch of images of this process."""
        batches = torch.arange(len(images)).split(500)
        for numbers in batches[self.ranks.rank::self.ranks.size]:
            yield numbers.tolist(), {"images": self.pixels(images[numbers])}

    def prediction_text(self, number):
        """The name of a class."""
        return self.classes[number]

    def read_examples(self, path):
        """The images of a user's own npz file."""
        images = read_images(path)
        on_main(self.ranks, print_differences, path, images, self.image, self.spec)
        return images

    def read_test(self, flag, folder):
        """(images, names of their classes) of the test images of a data flag."""
        path = Path(folder)
        if flag == "cifar10":
            images, labels = load_cifar10(path, "test")
            labels = labels.numpy()
        else:
            path = path / "test.npz"
            images, labels = read_npz(path)
            on_main(self.ranks, print_differences, path, images, self.image, self.spec)
        class_numbers(labels, self.classes, path)  # UserError for an unknown one
        return images, labels.astype(str).tolist()

    def test_baseline(self, flag, folder, images, names):
        """The accuracy on test images of a linear classifier of the training images in the same
        folder, or None without any there."""
        if flag == "images" and not Path(folder, "train.npz").exists():
            return None
        if flag == "cifar10" and not [*Path(folder).glob("data_batch_*.bin")]:
            return None
        training, labels, classes = read_training(flag, folder)
        number = {name: index for index, name in enumerate(classes)}
        wanted = torch.tensor([number.get(name, -1) for name in names])
        return pixel_baseline(training, labels, images, wanted)


class TrainingPictures(Pictures):
    """The training images of a data flag: bytes on the device, `held_out` of them for validation
    losses, and an endless stream of micro-batches of `size` images, each a function of its number
    and the seed. train_examples: how many to use (0: all). augmentation: as in augment()."""

    def __init__(self, ranks, image, flag, folder, size, augmentation, *, held_out,
                 train_examples, seed):
        images, labels, classes = read_training(flag, folder)
        mean, deviation = pixel_statistics(images)
        super().__init__(
            ranks, image, {"classes": classes, "mean": mean, "deviation": deviation})
        self.folder = folder
        self.augmentation = augmentation
        self.size = size
        self.seed = seed
        order = self.permutation(len(labels), "held out")
        held = order[:held_out]
        used = order[held_out:][:train_examples or None]
        if len(used) < size:
            raise UserError(f"--batch: a micro-batch has {size} images; {len(used)} are left to "
                            f"train on (--held_out {held_out})")
        self.images = images[used].to(self.device)
        self.labels = labels[used].to(self.device)
        self.held = images[held], labels[held]
        self.num_held_out = len(held)

    def facts(self):
        """A line about the training images."""
        width = self.images.shape[-1]
        return (f"{self.folder}: {len(self.labels):,} training images of {width} x {width}, "
                f"{len(self.classes)} classes ({listed(self.classes)[:100]})")

    def permutation(self, count, *key):
        return torch.randperm(count, generator=generator_of(self.seed, *key))

    @functools.lru_cache(maxsize=1)
    def order(self, epoch):
        """The order of the images in an epoch, on the device."""
        return send(self.permutation(len(self.labels), "order", epoch), self.device)

    def batch(self, number):
        """Micro-batch `number` of the stream of epochs: images (B, 3, I, I), labels (B,)."""
        epoch, index = divmod(number, len(self.labels) // self.size)
        chosen = self.order(epoch)[index * self.size:(index + 1) * self.size]
        generator = generator_of(self.seed, "augment", number)
        images = augment(
            self.images[chosen], self.image, self.augmentation, self.spec, generator)
        return {"images": images, "labels": self.labels[chosen]}

    def baselines(self):
        """The accuracies on the held-out images of the commonest class and of a linear classifier
        of the training images."""
        images, labels = self.held
        return {
            "majority_baseline": (labels == labels.mode()[0]).double().mean().item(),
            "pixel_baseline": pixel_baseline(self.images.cpu(), self.labels.cpu(), images, labels),
        }

    @functools.cache
    def held_batches(self):
        """The held-out images, not augmented. Made once (5,000 images of 224 pixels: 3 GB)."""
        return [{"images": self.pixels(images), "labels": labels.to(self.device)}
                for images, labels in zip(*(values.split(500) for values in self.held))]


# --- images as a network sees them ---------------------------------------------------------------

def pixel_statistics(images):
    """(means, deviations) of the channels of images (N, 3, H, H) uint8 as pixels 0..1."""
    counts = torch.zeros(3, 256, dtype=torch.float64)
    for part in images.split(1000):
        for channel, pixels in zip(counts, part.unbind(1)):
            channel += torch.bincount(pixels.flatten(), minlength=256)
    values = torch.arange(256) / 255
    shares = counts / counts.sum(1, keepdim=True)
    mean = shares @ values.double()
    deviation = (shares @ values.double().square() - mean.square()).clamp(min=1e-6).sqrt()
    # four digits, as published for CIFAR-10
    return [[round(value, 4) for value in numbers.tolist()] for numbers in (mean, deviation)]


def normal_pixels(x, spec):
    """Pixels 0..1, normalised to mean 0 and deviation 1 per channel. (B, 3, *, *)"""
    numbers = torch.tensor([spec["mean"], spec["deviation"]])
    mean, deviation = send(numbers[..., None, None], x.device)
    return (x - mean).div_(deviation)


def resample(images, theta, size):
    """Images (B, 3, H, H) uint8 under affine maps theta (B, 2, 3) as pixels 0..1
    (B, 3, size, size), bicubic."""
    grid = F.affine_grid(theta, (len(images), 3, size, size), align_corners=False)
    pixels = F.grid_sample(images.float() / 255, grid, mode="bicubic", padding_mode="reflection",
                           align_corners=False)
    return pixels.clamp_(0, 1)


def plain_images(images, size, spec):
    """Images for evaluation. Enlarged images lose their rim: they are resized to 256 pixels, and
    the middle 224 are used."""
    zoom = 224 / 256 if size > images.shape[-1] else 1.0
    theta = torch.tensor([[zoom, 0, 0], [0, zoom, 0]], device=images.device)
    return normal_pixels(resample(images, theta.expand(len(images), -1, -1), size), spec)


def augment(images, size, augmentation, spec, generator):
    """Images for training: crop, flip, rotation, shear and shift in one resampling, then an erased
    box. (B, 3, H, H) uint8 -> (B, 3, size, size). augmentation: the smallest crop, the strength of
    the others, the chance to erase. generator: draws everything on the CPU, so that a GPU sees the
    same images.

    D1 in mformer.py compares it with the released code.
    """
    smallest, strength, erasing = augmentation

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
    theta = send(theta.view(-1, 2, 3), images.device)
    pixels = normal_pixels(resample(images, theta, size), spec)
    return erase(pixels, erasing, generator)


def erase(x, chance, generator):
    """Fill a box of 2% to 33% of an image with noise, with this chance, in place. x (B, 3, I, I)"""
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
