"""Parallel text without the pairs that hurt: the filters of the usual preparation of WMT (Moses' clean-corpus-n.perl,
as fairseq's prepare-wmt14en2de.sh calls it: 1 to 250 pieces a side, at most 1.5 times as many on one side).

    counts = filter_pairs("wmt14/train", "wmt14/clean", longest=250, ratio=1.5)
"""
import itertools
from pathlib import Path

from tqdm import tqdm

from common.cli import UserError
from common.files import atomic

BLOCK = 10_000  # pairs counted at once
REASONS = ("empty", "too long", "ratio")


def lines_of(path):
    """The lines of a UTF-8 file, stripped, one after the other. UserError where it is missing or no UTF-8."""
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            for line in file:
                if "\0" in line:
                    raise UserError(f"{path}: UTF-16 or binary, since it has zero bytes; save the file as UTF-8 text")
                yield line.strip()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; --text PREFIX stands for PREFIX.en and PREFIX.de") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: UTF-16, binary or else no UTF-8 ({error.reason}); save it as UTF-8 text") from None


def reason(first, second, shortest, longest, ratio):
    """Why a pair of these lengths goes, "" where it stays."""
    low, high = sorted((first, second))
    if low < max(1, shortest):
        return "empty"
    if longest and high > longest:
        return "too long"
    return "ratio" if ratio and high > ratio * low else ""


def filter_pairs(source, target, endings=("en", "de"), shortest=1, longest=250, ratio=1.5, tokenizer=None,
                 progress=True):
    """Copy the pairs of source.en and source.de that pass to target.en and target.de; returns {"pairs", "kept", ...}.

    A length counts words, or pieces where a tokenizer is given (fairseq counts them after BPE). longest, ratio: 0 for
    no limit. Streams; the new files appear when they are whole. UserError: files of unequal length, target is source.
    """
    source, target = Path(source), Path(target)
    if source.resolve() == target.resolve():
        raise UserError(f"{target}: the filtered text would overwrite the text itself; choose another --to")
    counts = dict.fromkeys(("pairs", "kept", *REASONS), 0)
    target.parent.mkdir(parents=True, exist_ok=True)
    measure = tokenizer.encode_batch if tokenizer else lambda lines: list(map(str.split, lines))
    pairs = itertools.zip_longest(*(lines_of(f"{source}.{ending}") for ending in endings))
    with (atomic(f"{target}.{endings[0]}") as first, atomic(f"{target}.{endings[1]}") as second,
          tqdm(pairs, unit=" pairs", unit_scale=True, disable=None if progress else True) as bar):
        bar = iter(bar)
        while block := list(itertools.islice(bar, BLOCK)):
            if None in block[-1]:
                raise UserError(f"{source}: .{endings[0]} and .{endings[1]} differ in their number of lines; "
                                "they must be aligned line by line")
            lengths = [list(map(len, measure(list(side)))) for side in zip(*block)]
            for pair, left, right in zip(block, *lengths):
                why = reason(left, right, shortest, longest, ratio)
                counts["pairs"] += 1
                counts[why or "kept"] += 1
                if not why:
                    first.write(pair[0].encode() + b"\n")
                    second.write(pair[1].encode() + b"\n")
        if not counts["kept"]:
            raise UserError(f"{source}: no pair passes the filters; make them wider")
    return counts
