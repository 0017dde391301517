"""data/translation.py and data/cifar10.py: reading, errors, batches, BLEU."""
import numpy as np
import pytest
from small_runs import write

from common.cli import UserError
from data.cifar10 import load_cifar10
from data.translation import ParallelText, TokenBatches, corpus_bleu, encode_pairs, read_pairs


class Words:
    """A tokenizer that gives each word its length."""

    def encode_batch(self, texts):
        return [[len(word) for word in text.split()] for text in texts]


def write_pairs(folder, source, target):
    write(folder / "p.en", source)
    write(folder / "p.de", target)
    return folder / "p"


def encode(prefix, folder, longest):
    encode_pairs(prefix, ("en", "de"), Words(), folder, longest)
    return ParallelText(folder)


def test_pairs_are_encoded_once_and_filtered(tmp_path):
    prefix = write_pairs(tmp_path, "a bb\n\nccc dddd e\nlast", "x\ny\nz z z z\nzz\n")
    text = encode(prefix, tmp_path / "all", longest=9)
    first, second = text.ids(0, (0, 1))
    assert first.tolist() == [1, 2]
    assert second.tolist() == [3, 4, 1]
    assert text.longest_side().tolist() == [2, 4, 1]
    made = (tmp_path / "all" / "source.npy").stat()
    encode(prefix, tmp_path / "all", longest=9)
    assert (tmp_path / "all" / "source.npy").stat() == made
    assert encode(prefix, tmp_path / "short", longest=3).longest_side().tolist() == [2, 1]


def test_other_ends_of_lines_do_not_misalign_the_sides(tmp_path):
    prefix = write_pairs(tmp_path, "a\rb\r\nc\u2028d\x85e\x0bf\ng\n", "x\ny\r\nz\n")
    source, target = read_pairs(prefix, ("en", "de"))
    assert source == ["a\rb", "c\u2028d\x85e\x0bf", "g"]
    assert target == ["x", "y", "z"]
    write_pairs(tmp_path, "a\nb\n", "x\n")
    with pytest.raises(UserError, match="2 lines of en and 1 of de"):
        read_pairs(prefix, ("en", "de"))


def test_batches_have_every_example_once_an_epoch_within_their_tokens():
    """A batch is a function of its number and the seed."""
    lengths = np.random.default_rng(0).integers(1, 60, 1000)
    batches = TokenBatches(lengths, 400)
    epochs = []
    for first in (0, len(batches)):
        epoch = [batches.batch(first + number, 3) for number in range(len(batches))]
        assert all(len(batch) * lengths[batch].max() <= 400 for batch in epoch)
        epochs.append(np.concatenate(epoch))
        assert sorted(epochs[-1]) == list(range(1000))
    assert not np.array_equal(*epochs)
    assert len(batches) * 400 < 1.1 * lengths.sum()
    assert not np.array_equal(batches.batch(5, 4), batches.batch(5, 3))


# --- BLEU, against constants computed with sacrebleu 2.6

@pytest.mark.parametrize("hypotheses, references, bleu", [
    (["The cat sat on the mat.", "It costs $1,000.50, \"really\"?"],
     ["The cat is sitting on the mat.", "It cost $1,000.50 - \"really\"!"], 29.231386414219934),
    (["Zwei junge Männer sind im Freien, nahe Büschen.", "Ein 5-jähriges Kind &amp; ein Hund."],
     ["Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
      "Ein 5-jähriges Kind & ein kleiner Hund."], 45.30597462115186),
    (["a b c d e"], ["a x c y e"], 14.058533129758727),  # orders without a match: smoothed
    (["well-\nknown <skipped>words, 3.14 and e.g. this/that"],
     ["wellknown words, 3.14 and e.g. this / that"], 100.0),
    (["a b c"], ["a b c"], 0.0),  # no 4-gram
    ([""], ["something"], 0.0),
])
def test_bleu_agrees_with_sacrebleu(hypotheses, references, bleu):
    assert corpus_bleu(hypotheses, references) == pytest.approx(bleu, abs=1e-9)


# --- CIFAR-10

def test_cifar10(tmp_path):
    records = np.random.default_rng(0).integers(0, 10, (30, 3073), dtype=np.uint8)
    for number, part in enumerate(np.split(records, [20]), 1):
        write(tmp_path / f"data_batch_{number}.bin", part.tobytes())
    images, labels = load_cifar10(tmp_path, "train")
    assert labels.tolist() == records[:, 0].tolist()
    assert images[25, 1, 2, 3] == records[25, 1 + 1024 + 2 * 32 + 3]  # planes: red, green, blue
