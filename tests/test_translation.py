"""data/translation.py and data/images.py: reading, errors, batches, BLEU."""
import zipfile
from pathlib import Path

import numpy as np
import pytest
from small_runs import ALONE, write

from common.cli import UserError
from data import translation
from data.images import (
    Pictures, TrainingPictures, class_numbers, classes_of, find_images, load_cifar10,
    pixel_statistics, print_differences, read_images, read_npz)
from data.translation import ParallelText, TokenBatches, corpus_bleu, encode_pairs, read_pairs


class Words:
    """A tokenizer that gives each word its length."""

    def encode_batch(self, texts):
        return [[len(word) for word in text.split()] for text in texts]


def write_pairs(source, target):
    write("p.en", source)
    write("p.de", target)
    return "p"


@pytest.mark.parametrize("longest, second, sides", [
    (9, [3, 4, 1], [2, 4, 1]),
    (3, [4], [2, 1]),
])
@pytest.mark.parametrize("block", [1, 2, 10])
def test_pairs_are_encoded_and_filtered(block, longest, second, sides, monkeypatch):
    monkeypatch.setattr(translation, "BLOCK", block)
    prefix = write_pairs("a bb\n\nccc dddd e\nlast", "x\ny\nz z z z\nzz\n")
    for _ in range(2):  # also where they are encoded already
        with pytest.warns(UserWarning, match=f"p: {4 - len(sides)} of 4 pairs are not used"):
            encode_pairs(prefix, ("en", "de"), Words(), Path(), longest)
    text = ParallelText(Path())
    (ids,) = text.ids(0, [1])
    assert ids.tolist() == second
    assert text.longest_side().tolist() == sides


def test_other_ends_of_lines_do_not_misalign_the_sides():
    prefix = write_pairs("a\rb\r\nc\u2028d\x85e\x0bf\ng\n", "x\ny\r\nz\n")
    assert [*read_pairs(prefix, ("en", "de"))] == [
        ("a\rb", "x"),
        ("c\u2028d\x85e\x0bf", "y"),
        ("g", "z"),
    ]


@pytest.mark.parametrize("source, target, message", [
    ("a\nb\n", "x\n", "2 lines of en and 1 of de"),
    ("", "", "p.en: the file is empty"),
    ("a\n", b"\xffx\n", "p.de:1: not UTF-8"),
])
def test_unusable_pairs_are_named(source, target, message):
    prefix = write_pairs(source, target)
    with pytest.raises(UserError, match=message):
        list(read_pairs(prefix, ("en", "de")))


def test_batches_have_every_example_once_an_epoch_within_their_tokens():
    lengths = np.random.default_rng(0).integers(1, 60, 1000)
    batches = TokenBatches(lengths, 400)
    made = [batches.batch(number, 3) for number in range(2 * len(batches))]
    for batch in made:
        assert len(batch) * lengths[batch].max() <= 400
    epochs = np.concatenate(made).reshape(2, 1000)
    assert (np.sort(epochs) == np.arange(1000)).all()
    assert not np.array_equal(*epochs)
    assert len(batches) * 400 < 1.1 * lengths.sum()


# --- BLEU, against constants computed with sacrebleu 2.6

@pytest.mark.parametrize("hypotheses, references, bleu", [
    (["The cat sat on the mat.", "It costs $1,000.50, \"really\"?"],
     ["The cat is sitting on the mat.", "It cost $1,000.50 - \"really\"!"],
     29.231386414219934),
    (["Zwei junge Männer sind im Freien, nahe Büschen.", "Ein 5-jähriges Kind &amp; ein Hund."],
     ["Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
      "Ein 5-jähriges Kind & ein kleiner Hund."], 45.30597462115186),
    (["a b c d e"], ["a x c y e"], 14.058533129758727),  # orders without a match: smoothed
    (["well-\nknown <skipped>words, 3.14 and e.g. this/that"],
     ["wellknown words, 3.14 and e.g. this / that"], 100.0),
])
def test_bleu_agrees_with_sacrebleu(hypotheses, references, bleu):
    assert corpus_bleu(hypotheses, references) == pytest.approx(bleu, abs=1e-9)


# --- CIFAR-10

def test_cifar10():
    generator = np.random.default_rng(0)
    records = generator.integers(0, 10, (30, 3073), np.uint8)
    for number, part in enumerate(np.split(records, [20]), 1):
        part.tofile(f"data_batch_{number}.bin")
    images, labels = load_cifar10(".", "train")
    assert labels.tolist() == [*records[:, 0]]
    assert images[25, 1, 2, 3] == records[25, 1 + 1024 + 2 * 32 + 3]  # planes: red, green, blue


# --- images of one's own

def test_grey_images_with_words():
    generator = np.random.default_rng(0)
    grey = generator.integers(0, 256, (5, 8, 8), np.uint8)
    np.savez("a.npz", images=grey, labels=["b", "a", "ö", "a", "b"])
    images, labels = read_npz("a.npz")
    assert class_numbers(labels, ["a", "b", "ö"], "a.npz").tolist() == [1, 0, 2, 0, 1]
    assert (images.numpy() == grey[:, None]).all() and images.shape == (5, 3, 8, 8)
    mean, deviation = pixel_statistics(images)
    assert mean == pytest.approx(3 * [grey.mean() / 255], abs=1e-4)
    assert deviation == pytest.approx(3 * [grey.std() / 255], abs=1e-4)
    with pytest.raises(UserError, match="'ö' is none of the training images' classes: a, b"):
        class_numbers(labels, ["a", "b"], "a.npz")


def test_images_are_held_out_and_normalised():
    """Each of 20 images has its own grey value."""
    values = np.arange(20, dtype=np.uint8)
    images = np.broadcast_to(values[:, None, None], (20, 8, 8))
    np.savez("train.npz", images=images, labels=values % 2)
    pictures = TrainingPictures(
        ALONE, 8, "images", ".", augmentation=(1.0, 0.0, 0.0), size=5, held_out=6,
        train_examples=0, seed=0)
    trained = pictures.images[:, 0, 0, 0].tolist()
    (batch,) = pictures.held_batches()
    deviation = values.std()
    held = batch["images"][:, 0, 4, 4] * deviation + values.mean()
    assert sorted([*trained, *held.round().int().tolist()]) == [*range(20)]
    assert batch["labels"].tolist() == (held.round() % 2).tolist()
    assert batch["images"].std() < 2


GREY = np.zeros((2, 8, 8), np.uint8)


@pytest.mark.parametrize("arrays, message", [
    (dict(images=GREY), "labels is not a file"),
    (dict(images=GREY, labels=[1, 2, 3]), r"labels are int64 \(3,\) for 2 images"),
    (dict(images=GREY, labels=[0.5, 1.0]), "labels are float64"),
    (dict(images=GREY / 255, labels=[0, 1]), "images are float64"),
    (dict(images=GREY[:, None], labels=[0, 1]), r"images are uint8 \(2, 1, 8, 8\)"),
    (dict(images=np.zeros((2, 8, 8, 4), np.uint8), labels=[0, 1]), r"uint8 \(2, 8, 8, 4\)"),
    (dict(images=GREY, labels=np.array(["a", None], object)), "allow_pickle"),
])
def test_unusable_npz_files_are_named(arrays, message):
    np.savez("a.npz", **arrays)
    with pytest.raises(UserError, match=f"a.npz: .*{message}.*; np.savez writes it"):
        read_npz("a.npz")


@pytest.mark.parametrize("images, labels, message", [
    (GREY[:, :4], [0, 1], "images are 4 x 8; they must be square: crop or resize"),
    (np.zeros((2, 4, 8, 3), np.uint8), [0, 1], "images are 4 x 8; they must be square"),
    (GREY, ["a\nb", "c"], r"the label 'a\\nb' is empty or has a line break"),
    (GREY, ["", "c"], "the label '' is empty or has"),
])
def test_oblong_images_and_labels_of_two_lines_are_named(images, labels, message):
    np.savez("a.npz", images=images, labels=labels)
    with pytest.raises(UserError, match=f"a.npz: {message}"):
        read_npz("a.npz")


def with_bytes(content, changes):
    """Bytes with changes {position: byte}."""
    content = bytearray(content)
    for position, byte in changes.items():
        content[position] = byte
    return bytes(content)


def entry(archive, field):
    """The positions of a field of the first file in a zip: in its header and in the directory."""
    return archive.index(b"PK\3\4") + field, archive.index(b"PK\1\2") + field + 2


@pytest.mark.parametrize("change", [
    lambda archive: with_bytes(archive, {100 + i: 255 for i in range(20)}),  # damaged
    lambda archive: with_bytes(archive, {at: 1 for at in entry(archive, 6)}),  # encrypted
    lambda archive: with_bytes(archive, {at: 99 for at in entry(archive, 8)}),  # compressed by 99
])
def test_damaged_npz_files_are_named(change):
    noise = np.random.default_rng(0).integers(0, 256, (9, 8, 8), np.uint8)
    np.savez_compressed("a.npz", images=noise, labels=[*range(9)])
    write("a.npz", change(Path("a.npz").read_bytes()))
    with pytest.raises(UserError, match="a.npz: images cannot be read .*; np.savez writes it"):
        read_npz("a.npz")


@pytest.mark.parametrize("length", [0, 5, 30, 100])
def test_npz_files_with_a_cut_array_are_named(length):
    np.save("images.npy", GREY)
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("images.npy", Path("images.npy").read_bytes()[:length])
    with pytest.raises(UserError, match="a.npz: images cannot be read "):
        read_npz("a.npz")


def test_classes_that_are_numbers_are_in_their_order():
    assert classes_of(np.array(["10", "9", "2"])) == ["2", "9", "10"]
    assert classes_of(np.array([10, 9, -2])) == ["-2", "9", "10"]
    assert classes_of(np.array(["10", "9", "b"])) == ["10", "9", "b"]


def save_images(path, labels, shape=(24, 24)):
    pictures = np.random.default_rng(0).integers(0, 256, (len(labels), *shape), np.uint8)
    np.savez(path, images=pictures, labels=labels)


def test_an_unknown_class_of_test_images_is_found_before_a_training():
    save_images("train.npz", ["a", "b"])
    save_images("test.npz", ["a", "c"])
    with pytest.raises(UserError, match="test.npz: the label 'c' is none of"):
        find_images("images", ".", "train")


@pytest.mark.parametrize("flag, label", [("images", "c"), ("cifar10", "0")])
def test_test_images_of_other_classes_are_no_test(flag, label):
    save_images("test.npz", ["a", "c"])
    np.zeros(3073, np.uint8).tofile("test_batch.bin")
    spec = {"classes": ["a", "b"], "mean": [0.5, 0.5, 0.5], "deviation": [0.2, 0.2, 0.2]}
    with pytest.raises(UserError, match=f"the label '{label}' is none of"):
        Pictures(ALONE, 8, spec).read_test(flag, ".")


def test_a_picture_is_no_npz_file():
    write("a.png", "PNG")
    with pytest.raises(UserError, match="a.png: not an .npz file; data/README.md has the lines"):
        read_images("a.png")


def test_images_of_another_size_or_colour_are_named(capsys):
    save_images("a.npz", ["a", "b"])
    grey, _ = read_npz("a.npz")
    print_differences("a.npz", grey, 24, {"mean": [0.5, 0.5, 0.5]})
    assert not capsys.readouterr().out
    print_differences("a.npz", grey, 32, {"mean": [0.5, 0.4, 0.5]})
    size, colour = capsys.readouterr().out.splitlines()
    assert "images of 24 x 24 are resampled to the network's 32 x 32" in size
    assert "the images are grey, the network was trained on coloured ones" in colour
    save_images("test.npz", ["a", "b"])
    spec = {"classes": ["a", "b"], "mean": [0.5, 0.5, 0.5], "deviation": [0.2, 0.2, 0.2]}
    Pictures(ALONE, 32, spec).read_test("images", ".")
    assert "test.npz: images of 24 x 24 are resampled" in capsys.readouterr().out


def test_a_wrong_prefix_names_the_endings_of_the_languages():
    with pytest.raises(UserError, match="PREFIX.fr and PREFIX.en"):
        translation.find_sides("p", ("fr", "en"))
