"""The paper files as teaching code: worked examples, tables of symbols, numbered algorithms, and
the exercises of EXERCISES.md."""
import doctest
import itertools
import math
import re
import tokenize
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

import albert
import autobert_zero as abz
import autotinybert as atb
import mformer as mf

# functions whose docstring has an example
EXAMPLES = {
    albert: (
        "blocks join sentence_pairs ngram_lengths pick_ngrams mask_tokens Lamb schedule "
        "average_predictions"),
    abz: (
        "infer path_of canonical band_matrix slot mask_tokens schedule ucb replace delete "
        "round_sizes simplify"),
    atb: (
        "search_space flops leading draw_archs mask_tokens distillation_losses schedule "
        "explained fast_shapes roulette propose"),
    mf: (
        "space_size softmax_attention cosines_at reweight linear_attention causal_weights "
        "chunked_sums learning_rate features_of kendall_tau prune latency_window crossover "
        "evolve"),
}
# the function that runs an algorithm, what comments call its lines, and their number
ALGORITHMS = [
    (abz, "op_nas", "line", 13),
    (atb, "train_language_model", "Alg. 1, line", 13),
    (atb, "evolve", "Alg. 2, line", 13),
    (mf, "find_architecture", "step", 7),
]
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


@pytest.mark.parametrize("file, name, word, last", ALGORITHMS)
def test_the_code_carries_the_lines_of_its_algorithm(file, name, word, last):
    """The docstring lists all lines, and comments name them."""
    numbers = re.findall(r"^ +(\d+) {3,}", getattr(file, name).__doc__, re.MULTILINE)
    assert [*map(int, numbers)] == [*range(1, last + 1)]
    named = set()
    comments = rf"# {re.escape(word)}s? ([\d, to]+)"
    for text in re.findall(comments, Path(file.__file__).read_text("utf-8")):
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


def sizes_of_table_b1():
    return "{:,} and {:,}".format(*(
        math.prod(map(len, atb.search_space(atb.Config(setting=setting)).values()))
        for setting in ("mlm", "distill")))


SHAPES = {  # Tables 4 and F.1
    "S1": "5-564-1054-8-512", "S2": "4-396-624-6-384", "S3": "4-432-384-4-256",
    "S4": "3-320-608-4-256", "S5": "5-450-636-6-384", "KD-S1": "5-564-1024-12-528",
    "KD-S2": "5-324-600-12-324", "KD-S3": "5-280-512-12-276", "KD-S4": "4-256-480-12-192"}


def shapes_by_the_rule():
    space = atb.search_space(atb.Config())
    told = {"rule": [], "table": []}
    for name, text in SHAPES.items():
        arch = atb.parse_arch(text)
        one = {"hidden": [arch.hidden], "ffn": [arch.ffn], "attention": [(arch.heads, arch.qkv)]}
        if not [*atb.fast_shapes(one)]:
            told["rule"].append(name)
        if arch.hidden not in space["hidden"] or arch.ffn not in space["ffn"]:
            told["table"].append(name)
    return "{}; {}".format(*map(", ".join, told.values()))


def speedups_by_flops():
    base, bert, tiny = map(atb.flops, map(
        atb.parse_arch, ("12-768-3072-12-768", "4-512-2048-8-512", SHAPES["S1"])))
    return f"{base / 1e9:.2f} GFLOPs, {base / bert:.2f} and {base / tiny:.2f}"


def steps_of_the_last_layer():
    chances = []
    for variant, archs in (("sme", 1), ("ebl", 48)):
        cfg = atb.Config(variant=variant)
        micro_batches = range(archs // cfg.samples or 1)
        trained = [
            any(arch.layers == 8 for micro in micro_batches
                for arch in atb.draw_archs(cfg, step, micro))
            for step in range(500)]
        chances.append(1 - (7 / 8) ** archs)
        assert sum(trained) / 500 == pytest.approx(chances[-1], abs=0.05)
    return "{:.3f} and {:.3f}".format(*chances)


def equation_5(f, s):
    """(Eq. 5 as printed, the fraction of the unordered pairs in the same order)."""
    n = len(f)
    printed = sum(f[a] >= f[b] and s[a] >= s[b] for a in range(n) for b in range(n)) / n ** 2
    pairs = [*itertools.combinations(range(n), 2)]
    return printed, sum((f[a] > f[b]) == (s[a] > s[b]) for a, b in pairs) / len(pairs)


def pairwise_accuracy():
    printed, fraction = equation_5(range(16), range(16))
    assert fraction == 1
    swapped = [1, 0, 3, 2, 5, 4, 7, 6, *range(8, 16)]  # four pairs of neighbours
    return f"{printed:.3f}; {100 * equation_5(range(16), swapped)[1]:.1f}"


def linear_is_cheaper():
    def products(tokens, table):
        q = torch.empty(1, 1, tokens, 64, device="meta")
        with FlopCounterMode(display=False) as counter:
            if table == "linear":
                mf.linear_attention(q, q, q, torch.empty(1, tokens, 2, device="meta"))
            else:
                mf.softmax_attention(q, q, q, table=table)
        return counter.get_total_flops()

    first = [
        next(tokens for tokens in range(110, 135)
             if products(tokens, "linear") < products(tokens, table))
        for table in (None, torch.empty(29, 64, device="meta"))]
    return "{} and {}".format(*first)


def size_of_table_2():
    mixed, linear = [
        mf.space_size(mf.space_of(mf.Config(space=space))) for space in ("mixed", "linear")]
    return f"{mixed:.2e}, {mixed / linear:,.0f} times as many"


def sharper_queries():
    q, k, v = torch.tensor([
        [[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.5, 0.0]], [[1.0, 0.0], [0.0, 0.0]],
    ]).view(3, 1, 1, 2, 2)
    near = mf.cosines_at(torch.arange(2), torch.tensor([10 ** 6]))
    weights = []
    for read in (mf.softmax_attention, lambda *heads: mf.linear_attention(*heads, near)):
        weights += [read(scale * q, k, v)[0, 0, 0, 0] for scale in (1, 10)]
    return "{:.3f} and {:.3f}; {:.3f} and {:.3f}".format(*weights)


def attention_types_in_gigaflops():
    settings = {**mf.PRESETS["cifar10"]["base"]}
    settings.pop("search")
    cfg = mf.Config(**settings)
    arch = mf.parse_arch("mformer", cfg)
    archs = arch, mf.retype(arch, "softmax", ["types"]), mf.retype(arch, "plain", ["types"])
    return "{:.2f}, {:.2f} and {:.2f}".format(
        *(mf.model_flops(each, cfg) / 1e9 for each in archs))


def copied(kind):
    """The fraction of copied tokens after 150 steps with one type of attention in the decoder."""
    torch.manual_seed(0)
    cfg = mf.Config(task="wmt14", vocab_size=20, qkv=32, relative=8, length=16)
    arch = mf.Arch(
        1, 32, (64,), (2,), ("softmax",), 1, 32, (64,), (2,), (kind,), (2,), (1,), (kind,))
    model = mf.make_model(arch, cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        source = torch.randint(4, 20, (32, 8))
        target = F.pad(source[:, :-1], (1, 0), value=2)
        logits = model({"source": source, "lengths": torch.full((32,), 8), "target": target})
        F.cross_entropy(logits.flatten(0, 1), source.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (logits.argmax(-1) == source).float().mean()


def linear_decoder():
    softmax = "above 95%" if copied("softmax") > 0.95 else "below 95%"
    linear = "below 90%" if copied("linear") < 0.9 else "above 90%"
    return f"softmax {softmax}, linear {linear}"


SOLUTIONS = {
    "AutoBERT-Zero": (smallest_attentions, unit_of_a_score, one_mutation, variants, figure_5),
    "ALBERT": (
        embedding_of_the_hidden_width, neighbours, missing_bias_correction, depth, figure_1),
    "AutoTinyBERT": (
        sizes_of_table_b1, shapes_by_the_rule, speedups_by_flops, steps_of_the_last_layer,
        pairwise_accuracy),
    "mFormer": (
        linear_is_cheaper, size_of_table_2, sharper_queries, attention_types_in_gigaflops,
        linear_decoder),
}


@pytest.mark.parametrize("paper, number", [
    (paper, number) for paper in SOLUTIONS for number in range(5)])
def test_an_exercise_has_the_expected_number(paper, number):
    section = re.search(rf"^## {paper}\n(.*?)(?=^## |\Z)", EXERCISES, re.DOTALL | re.MULTILINE)[1]
    texts = re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]
    assert len(texts) == 5
    expected = re.search(r"Expected:\s+\*\*(.+?)\*\*", texts[number], re.DOTALL)[1]
    assert SOLUTIONS[paper][number]() == " ".join(expected.split())
