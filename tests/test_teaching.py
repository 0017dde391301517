"""The paper files as teaching code: worked examples, tables of symbols, numbered algorithms, and
the exercises of EXERCISES.md."""
import doctest
import itertools
import re
import tokenize
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

import albert
import autobert_zero as abz

# functions whose docstring has an example
EXAMPLES = {
    albert: (
        "blocks join sentence_pairs ngram_lengths pick_ngrams mask_tokens Lamb schedule "
        "average_predictions"),
    abz: (
        "infer path_of canonical band_matrix slot mask_tokens schedule ucb replace delete "
        "round_sizes simplify"),
}
ALGORITHMS = {abz: ("op_nas", 13)}  # the function that runs an algorithm, and its lines
EXERCISES = (ROOT / "EXERCISES.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file, name", [
    (file, name) for file, names in EXAMPLES.items() for name in names.split()])
def test_the_examples_of_a_function_hold(file, name):
    test, = doctest.DocTestFinder(recurse=False).find(
        getattr(file, name), name, globs={**vars(file)})
    failed, tried = doctest.DocTestRunner().run(test)
    assert tried and not failed


def test_no_other_function_has_examples():
    for file, names in EXAMPLES.items():
        found = {each.name.split(".")[1] for each in doctest.DocTestFinder().find(file)
                 if each.examples}
        assert found == {*names.split()}


@pytest.mark.parametrize("file", EXAMPLES)
def test_symbols_name_what_exists(file):
    """The second column of the table has names of the file."""
    table = re.search(r"^Symbols: .*\n((?: {9}.*\n)+)", file.__doc__, re.MULTILINE)[1]
    with tokenize.open(file.__file__) as source:
        names = {token.string for token in tokenize.generate_tokens(source.readline)
                 if token.type == tokenize.NAME}
    for row in table.splitlines():
        symbols, ours, *_ = re.split(r" {2,}", row.strip())
        assert names.issuperset(ours.split(", ")), row


@pytest.mark.parametrize("file", ALGORITHMS)
def test_the_code_carries_the_lines_of_its_algorithm(file):
    """The docstring lists all lines, and comments name them."""
    name, last = ALGORITHMS[file]
    numbers = re.findall(r"^ +(\d+) {3,}", getattr(file, name).__doc__, re.MULTILINE)
    assert [*map(int, numbers)] == [*range(1, last + 1)]
    named = set()
    for text in re.findall(r"# lines? ([\d, to]+)", Path(file.__file__).read_text("utf-8")):
        for first, end in re.findall(r"(\d+)(?: to (\d+))?", text):
            named |= {*range(int(first), int(end or first) + 1)}
    assert named == {*range(1, last + 1)}


# Solutions. Each returns what its exercise expects.


def smallest_attentions():
    def every(*operands):
        for op in abz.OPS:
            for parts in itertools.product(operands, repeat=1 if op in abz.UNARY else 2):
                yield abz.canonical((op, *parts))

    two = {second for first in every(*abz.INPUTS) for second in every(*abz.INPUTS, first)
           if first in second}
    legal = [each for each in two if not abz.why_illegal(each)]
    return f"{len(legal)} legal, {len([*filter(abz.searchable, legal)])} searchable"


def unit_of_a_score():
    chances = [torch.tensor(abz.ucb([[0.83 * unit], *[[0.8 * unit]] * 9], 0.01)).softmax(0)[0]
               for unit in (1, 100)]
    return "{:.3f} and {:.3f}".format(*chances)


def one_mutation():
    bert = abz.parse_formula(abz.BERT_ATTENTION)
    children = {edit: {child for index in range(5)
                       for child in abz.legal_children(bert, edit, index)} for edit in abz.EDITS}
    return f"{len(children[abz.rewire])} and {len(set().union(*children.values()))}"


def variants():
    arch = abz.parse_arch(abz.PUBLISHED)
    counts = [abz.count(sum(zip(layers, layers), ()), abz.Config())["attention_parameters"]
              for layers in (arch[1::2], arch[::2])]
    return "{:,} and {:,}".format(*counts)


def uniformity(x):
    """(relative norm of the residual, mean cosine of different tokens) of states (T, H)."""
    T = len(x)
    unit = F.normalize(x, dim=-1)
    cosines = (unit @ unit.T).fill_diagonal_(0.0)
    return (x - x.mean(0)).norm() / x.norm(), cosines.sum() / (T * (T - 1))


@torch.no_grad()
def figure_5():
    cosines = []
    for name in ("bert", "autobert-zero"):
        torch.manual_seed(0)
        cfg = abz.Config(hidden=64, heads=1, ffn=256, vocab_size=1000, init_std=0.14)
        encoder = abz.Encoder(abz.read_arch(name, 12), cfg).eval()
        states = []
        for layer in encoder.layers:
            layer.register_forward_hook(lambda *call: states.append(call[-1][0]))
        ids = torch.randint(5, 1000, (1, 64))
        encoder(ids, torch.zeros_like(ids), None)
        cosines.append(uniformity(states[5])[1])
    more = "BERT" if cosines[0] > cosines[1] else "AutoBERT-Zero"
    return "{:.3f} and {:.3f}; {}'s are more alike".format(*uniformity(torch.eye(2)), more)


def embedding_of_the_hidden_width():
    return f"{sum(albert.count_parts(albert.Config(embedding=0)).values()):,}"


def neighbours():
    class tokenizer:
        pad_id, cls_id, sep_id = 0, 2, 3
        starts_word = torch.ones(10, dtype=torch.bool)

    ids = torch.tensor([[2, *[9] * 510, 3]] * 1000)
    chosen = albert.pick_ngrams(ids, tokenizer, torch.full((1000,), 2), torch.Generator())
    adjacent = (chosen[:, 1:] & chosen[:, :-1]).any(1).float().mean()
    return f"{11 * adjacent:.0f} of 11"


def missing_bias_correction():
    bias = torch.nn.Parameter(torch.zeros(1))
    optimizer = albert.Lamb([bias], lr=1.0)
    moves = []
    for _ in range(100):
        before = bias.item()
        bias.grad = torch.ones(1)
        optimizer.step()
        moves.append(before - bias.item())
    farthest = max(moves)
    return (f"{moves[0]:.2f} in step 1, {farthest:.2f} in step "
            f"{1 + moves.index(farthest)}")


def depth():
    large, wide = [
        {layers: albert.Config(**{**albert.PRESETS[preset], "layers": layers}) for layers in depths}
        for preset, depths in {"large": (1, 3, 6, 12, 24, 48), "xxlarge": (12, 24)}.items()]
    counts = [{sum(albert.count_parts(cfg).values()) for cfg in each.values()}
              for each in (large, wide)]
    ratio = albert.flops(large[24]) / albert.flops(large[12])
    return "{:,} and {:,}; {:.2f} times".format(*counts[0], *counts[1], ratio)


@torch.no_grad()
def figure_1():
    angles = {}
    for share in ("all", "none"):
        torch.manual_seed(0)
        encoder = albert.Encoder(albert.Config(
            vocab_size=1000, layers=24, hidden=64, heads=1, ffn=256, init_std=0.1, share=share))
        states = []
        for ffn in encoder.ffns:
            ffn.register_forward_hook(lambda *call: states.append(call[-1]))
        ids = torch.randint(5, 1000, (8, 64))
        encoder.eval()(ids, torch.zeros_like(ids))
        before, after = states[-2:]
        angle = F.cosine_similarity(before, after, dim=-1).acos()
        ratio = (after - before).norm(dim=-1) / (angle / 2).sin()
        angles[share] = angle.rad2deg().mean()
    shared = "below 15" if angles["all"] < 15 else "above 15"
    apart = "above 30" if angles["none"] > 30 else "below 30"
    return f"{ratio.mean():.1f}; shared {shared} degrees in the last layer, not shared {apart}"


SOLUTIONS = {
    "AutoBERT-Zero": (smallest_attentions, unit_of_a_score, one_mutation, variants, figure_5),
    "ALBERT": (
        embedding_of_the_hidden_width, neighbours, missing_bias_correction, depth, figure_1),
}


@pytest.mark.parametrize("paper, number", [
    (paper, number) for paper in SOLUTIONS for number in range(5)])
def test_an_exercise_has_the_expected_number(paper, number):
    section = re.search(rf"^## {paper}\n(.*?)(?=^## |\Z)", EXERCISES, re.DOTALL | re.MULTILINE)[1]
    texts = re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]
    assert len(texts) == 5
    expected = re.search(r"Expected: \*\*(.+?)\*\*", texts[number], re.DOTALL)[1]
    assert SOLUTIONS[paper][number]() == " ".join(expected.split())
