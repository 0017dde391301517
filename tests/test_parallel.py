"""data/parallel.py and data/cifar10.py: reading, errors, batches."""
import numpy as np
import pytest
import torch

from common.cli import UserError
from data.cifar10 import class_names, load_cifar10
from data.parallel import TokenBatches, encode_pairs, pad, read_pairs


class Words:
    """A tokenizer that gives each word its length."""
    fingerprint = "words"

    def encode_batch(self, texts):
        return [[len(word) for word in text.split()] for text in texts]


def write(folder, source, target):
    (folder / "p.en").write_text(source, encoding="utf-8")
    (folder / "p.de").write_text(target, encoding="utf-8")
    return folder / "p"


def test_pairs_are_encoded_once_and_filtered(tmp_path):
    prefix = write(tmp_path, "a bb\n\nccc dddd e\nlast", "x\ny\nz z z z\nzz\n")
    assert read_pairs(prefix, "en", "de") == [["a bb", "", "ccc dddd e", "last"], ["x", "y", "z z z z", "zz"]]
    text = encode_pairs(prefix, ("en", "de"), Words(), tmp_path / "all")
    assert len(text) == 4 and text.source(2) == [3, 4, 1] and text.target(2) == [1, 1, 1, 1] and text.source(1) == []
    assert text.longest_side().tolist() == [2, 1, 4, 1]
    short = encode_pairs(prefix, ("en", "de"), Words(), tmp_path / "short", longest=3)
    assert [short.source(row) for row in range(len(short))] == [[1, 2], [4]]
    written = (tmp_path / "short" / "source.npy").stat().st_mtime_ns
    encode_pairs(prefix, ("en", "de"), Words(), tmp_path / "short", longest=3)
    assert (tmp_path / "short" / "source.npy").stat().st_mtime_ns == written
    assert len(encode_pairs(prefix, ("en", "de"), Words(), tmp_path / "short", longest=4)) == 3
    for name in ("source.npy", "meta.json"):
        (tmp_path / "short" / name).write_text("{")
        with pytest.raises(UserError, match="damaged.* delete th"):
            encode_pairs(prefix, ("en", "de"), Words(), tmp_path / "short", longest=4)


@pytest.mark.parametrize("source, target, message", [
    ("a\nb\n", "x\n", r"p\.de:2: the file ends here, but the other one has 2 lines"),
    ("", "", r"p\.en: the file is empty"),
    (b"a\n\xff\n", "x\ny\n", r"p\.en:2: not UTF-8"), (None, "x\n", r"p\.en: no such file")])
def test_mistakes_are_named(tmp_path, source, target, message):
    write(tmp_path, "", target)
    if source is None:
        (tmp_path / "p.en").unlink()
    else:
        (tmp_path / "p.en").write_bytes(source if isinstance(source, bytes) else source.encode())
    with pytest.raises(UserError, match=message):
        read_pairs(tmp_path / "p", "en", "de")


def test_batches_hold_every_example_once_an_epoch_within_their_tokens():
    lengths = np.random.default_rng(0).integers(1, 60, 1000)
    batches = TokenBatches(lengths, 400)
    epochs = [[batches.batch(epoch * len(batches) + place, 3) for place in range(len(batches))] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(np.concatenate(epoch).tolist()) == list(range(1000))
        assert all(len(rows) * lengths[rows].max() <= 400 for rows in epoch)
    assert any(sorted(one) != sorted(two) for one, two in zip(*epochs))
    assert batches.batch(0, 4).tolist() != batches.batch(0, 3).tolist()
    padded = sum(len(rows) * lengths[rows].max() for rows in epochs[0])
    assert padded < 1.03 * lengths.sum()  # hardly any padding
    again = TokenBatches(lengths, 400)
    assert again.batch(len(batches) + 5, 3).tolist() == epochs[1][5].tolist()  # a function of the number alone
    alone = TokenBatches([500, 2], 400)  # one that is too long stands alone
    assert [len(alone.batch(index, 0)) for index in range(2)] == [1, 1]


def test_pad():
    ids, lengths = pad([[5, 6, 7], [8]], 0)
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]] and lengths.tolist() == [3, 1]


def test_cifar10(tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (30, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    (tmp_path / "data_batch_1.bin").write_bytes(records[:20].tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(records[20:].tobytes())
    images, labels = load_cifar10(tmp_path, "train")
    assert images.shape == (30, 3, 32, 32) and images.dtype == torch.uint8 and labels.tolist() == records[:, 0].tolist()
    assert images[25, 1, 2, 3] == records[25, 1 + 1024 + 2 * 32 + 3]  # planes: red, green, blue
    assert class_names(tmp_path) == [str(number) for number in range(10)]
    with pytest.raises(UserError, match="there is no test_batch.bin"):
        load_cifar10(tmp_path, "test")
    (tmp_path / "test_batch.bin").write_bytes(records[:2].tobytes()[:-1])
    with pytest.raises(UserError, match="6145 bytes are not a whole number of 3073-byte records"):
        load_cifar10(tmp_path, "test")
    records[1, 0] = 77
    (tmp_path / "test_batch.bin").write_bytes(records[:2].tobytes())
    with pytest.raises(UserError, match="record 2 has the label 77"):
        load_cifar10(tmp_path, "test")
