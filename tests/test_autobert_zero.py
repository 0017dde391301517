"""autobert_zero.py: the search space, padding, layers, published counts, the searcher."""
import ast
import dataclasses
import functools
import itertools
import math
import random
import re
from types import SimpleNamespace

import pytest
import torch

import autobert_zero as abz

TINY = abz.Config(vocab_size=50, layers=2, hidden=16, heads=2, ffn=32, dropout=0.0)


@functools.cache
def random_graphs():
    rng = random.Random(0)
    return [abz.sample_graph(rng) for _ in range(300)]


# --- search space --------------------------------------------------------------------------------

def test_sampled_graphs_are_legal_and_varied():
    graphs = random_graphs()
    for graph in graphs:
        assert abz.why_illegal(graph, 12) is None and abz.canonical(graph) == graph
    assert {len(graph) for graph in graphs} == set(range(2, 13))  # a single operation mixes no tokens
    assert {op for graph in graphs for op, *_ in graph} == set(abz.OPS)
    assert {len(abz.used_inputs(graph)) for graph in graphs} == {2, 3, 4}


def test_sampled_attentions_mix_tokens_and_the_rest_can_be_read():
    """A change of one token reaches others in what a search draws; of what it rejects, in none."""
    graphs = random_graphs()
    apart = ["Q + K", "softmax(neg(Q)) + scale(K)", "softsign(Q.T).T + V", "logsigmoid(Q + K) + softmax(P)"]
    for graph in [*graphs, *map(abz.parse_formula, apart)]:
        inputs = {key: value.double() for key, value in padded_inputs(graph, batch=1).items()}
        before = abz.run_graph(graph, inputs)
        after = abz.run_graph(graph, {key: torch.cat([value[:, :, :-1], value[:, :, -1:].sin() + 1], 2)
                                      for key, value in inputs.items()})
        changed = bool((before != after)[:, :, :-1].any())
        assert changed == (graph in graphs), abz.formula(graph)
        assert (abz.why_illegal(graph, 12) is None) == (graph in graphs) and abz.why_illegal(graph) is None


def test_an_operation_stands_where_the_graph_says_not_the_names_of_its_inputs():
    """Equal graphs that list their operations in another order are one; those that call their inputs by other names
    have the same operation at each position."""
    rng = random.Random(1)
    for graph in random_graphs():
        names = dict(enumerate(rng.sample(range(4), 4)))
        renamed = abz.canonical(tuple((op, *[names.get(each, each) for each in operands]) for op, *operands in graph))
        assert [op for op, *_ in renamed] == [op for op, *_ in graph]
        turned = [(op, *operands[::-1 if op == "add" else 1]) for op, *operands in graph]
        assert abz.canonical(abz.in_order((*turned, ("neg", 0)), 3 + len(turned), range(4))) == graph
    for pair in (("Q @ K.T @ neg(V) + P", "P + Q @ K.T @ neg(V)"), ("neg(Q) + softmax(K)", "softmax(V) + neg(P)")):
        assert len({tuple(op for op, *_ in abz.parse_formula(text)) for text in pair}) == 1


def names(graph):
    return sorted(op for op, *_ in graph)


def neighbours(graph, edits=abz.EDITS, like=None):
    """Every legal graph one edit away; `like`: of those alone that have its operations."""
    found = {abz.in_order(*child, range(4)) for edit in edits for index in range(len(graph))
             for _, *child in edit(graph, index)}
    return {abz.canonical(child) for child in found if not abz.why_illegal(child, 12)
            and (not like or names(child) == names(like))} - {graph}


def test_random_attentions_are_neither_loud_nor_silent():
    """D38: what sums over tokens unscaled, or adds nothing, is drawn again; BERT's, Figure 7's and some of all lengths
    are not."""
    for text in ("dist(Q, K) @ V", "Q @ K.T @ V", "dist(K, P) @ (V + neg(V))"):
        assert not 0.001 < abz.gain(abz.parse_formula(text)) < 0.5
    published = [layer for layer in abz.parse_arch(abz.PUBLISHED) if not isinstance(layer, int)]
    for graph in (*random_graphs()[:100], *published, abz.parse_formula(abz.BERT_ATTENTION)):
        assert 0.001 < abz.gain(graph) < 0.5


def test_random_edits_reach_every_way_to_compare_tokens():
    """A product of tokens, as in BERT's scores, a cosine, a distance: from random attentions without it 40% or more of
    the lineages of 30 uniform edits reach it."""
    uniform = abz.OperationPriority([], abz.Config())

    def has(graph, *kind):
        shapes = abz.infer_graph(graph)
        return kind in {(op, *(shapes[each] for each in operands if op == "matmul")) for op, *operands in graph}

    for kind in (("matmul", "nd", "dn"), ("cosine",), ("euclidean",)):
        rng, reached = random.Random(20), 0
        drawn = (abz.sample_graph(rng) for _ in itertools.count())
        for graph in itertools.islice((graph for graph in drawn if not has(graph, *kind)), 20):
            lineage = [graph := abz.edit_graph(graph, rng, uniform) or graph for _ in range(30)]
            reached += any(has(graph, *kind) for graph in lineage)
        assert reached >= 8


@pytest.mark.parametrize("layer, edits, path", [
    (2, 5, ["Q @ K.T @ K", "Q @ K.T @ (K + Q)", "Q @ logsigmoid(K).T @ (K + Q)", "Q @ logsigmoid(neg(K)).T @ (K + Q)"]),
    (4, 6, ["Q @ K.T @ Q", "Q @ (K + Q).T @ Q", "Q @ (Q + (Q + K)).T @ Q", "Q @ (logsigmoid(Q) + (Q + K)).T @ Q",
            "Q @ logsigmoid(logsigmoid(Q) + (Q + K)).T @ Q"]),
    (6, 3, ["Q @ K.T @ Q", "Q @ logsigmoid(K).T @ Q"]), (8, 3, ["Q @ K.T @ Q", "Q @ logsigmoid(K).T @ Q"]),
    (10, 6, ["Q @ scale(K).T @ V", "Q @ (scale(K) + V).T @ V", "Q @ (scale(K) + (K + V)).T @ V",
             "Q @ (scale(K) + (softsign(K) + V)).T @ V", "Q @ (scale(K) + (softsign(softsign(K)) + V)).T @ V"]),
    (12, 2, ["Q @ scale(K).T @ V"])])
def test_figure_7_is_a_few_edits_from_bert(layer, edits, path):
    """On paths of this many edits; scores @ values stands for softmax(scale(scores)) @ values."""
    steps = [abz.parse_formula(abz.BERT_ATTENTION)]
    for text in path:
        scores, values = re.fullmatch(r"(.*) @ (\w|\(.*?\))", text).groups()
        steps.append(abz.parse_formula(f"softmax(scale({scores})) @ {values}"))
    steps.append(abz.read_arch("autobert-zero", 12)[layer - 1])
    assert len(steps) - 1 == edits
    assert all(after in neighbours(before, like=after) for before, after in itertools.pairwise(steps))


def test_an_edit_is_legal_and_its_new_operation_drawn_by_the_first_k_priorities():
    rng, drawn, lengths = random.Random(0), [], set()

    class Priority:
        def probabilities(self, options, position, legal):
            drawn.append((position, rng.choice(sorted(legal))))
            return [option == drawn[-1][1] for option in options]
    for graph in random_graphs()[:150]:
        before = len(drawn)
        child = abz.edit_graph(graph, rng, Priority())
        assert child != graph and abz.why_illegal(child, 12) is None
        lengths.add(len(child) - len(graph))
        for position, _ in drawn[before:]:
            assert 0 <= position < len(graph)  # Sec. 3.2
    assert len(drawn) > 75 and lengths >= {-1, 0, 1}


def test_the_text_form_is_read_back_and_shares_sub_expressions():
    rng = random.Random(3)
    for _ in range(30):
        arch = abz.sample_arch(rng, 6)
        assert abz.parse_arch(abz.arch_text(arch)) == arch
    graph = abz.parse_formula("a = logsigmoid(Q); softmax(scale(a @ K.T)) @ a")
    assert sum(op == "logsigmoid" for op, *_ in graph) == 1
    assert graph == abz.parse_formula("softmax(scale(logsigmoid(Q) @ K.T)) @ logsigmoid(Q)")
    assert abz.parse_formula("Q + K") == abz.parse_formula("K + Q")
    assert abz.parse_formula("Q @ K.T @ V") != abz.parse_formula("K @ Q.T @ V")


@pytest.mark.parametrize("text, simple", [
    ("neg(cos(Q, K)) @ neg(P)", "cos(Q, K) @ P"),
    ("neg(neg(Q)) + K", "Q + K"),
    ("cos(scale(Q), neg(K)) @ V", "neg(cos(Q, K) @ V)"),
    ("dist(neg(Q), neg(K)) @ softsign(neg(V))", "neg(dist(Q, K) @ softsign(V))"),
])
def test_a_formula_is_shown_without_signs_that_cancel(text, simple):
    assert abz.formula(abz.simplify(abz.parse_formula(text))) == simple


def test_a_simplified_graph_computes_the_same():
    rng = random.Random(0)
    values = dict(enumerate(torch.randn(4, 2, 2, 5, 3, dtype=torch.float64)))
    shorter = 0
    for _ in range(150):
        graph = abz.sample_graph(rng)
        simple = abz.simplify(graph)
        shorter += len(simple) < len(graph)
        torch.testing.assert_close(abz.run_graph(simple, values), abz.run_graph(graph, values))
    assert shorter > 10


@pytest.mark.parametrize("text, words", [
    ("Q", "end in an operation"), ("a = Q + K", "end in an operation"), ("Q.T", "not tokens x head dim"),
    ("cos(Q)", r"cos\(x, y\)"), ("Q +", "not a formula"), ("Q @ K", "do not fit"), ("softmax(Q)", "reads 2 to 4"),
    ("a = b = Q; a + K", "give a name other"), ("Q = K; Q + K", "give a name other"), ("__import__('os')", "none of Q, K, V, P"),
    ("conv4", "kernel size 4")])
def test_illegal_text_is_refused(text, words):
    with pytest.raises(ValueError, match=f"layer 1: .*{words}"):
        abz.parse_arch(text)


def test_published_architecture():
    arch = abz.read_arch("autobert-zero", 12)
    assert list(arch[0::2]) == [65, 9, 3, 7, 7, 3]  # Figure 7
    assert [len(layer) for layer in arch[1::2]] == [9, 10, 7, 7, 11, 7]
    assert [len(abz.used_inputs(layer)) for layer in arch[1::2]] == [2, 2, 2, 2, 3, 3]
    large = abz.read_arch("autobert-zero", 24)
    assert large[:4] == arch[:2] * 2 and large[-4:] == arch[-2:] * 2  # App. D.2: each pair right after itself
    # Sec. 4.2, ablation
    assert abz.read_arch("autobert-zero/att-only", 12) == tuple(layer for layer in arch[1::2] for _ in range(2))
    assert abz.read_arch("autobert-zero/conv-only", 12) == tuple(layer for layer in arch[0::2] for _ in range(2))
    assert abz.read_arch("autobert-zero", 4) == arch[:2] + arch[-2:]


@pytest.mark.parametrize("name, preset, change, total, attention, flops, published", [
    ("autobert-zero", "base", {}, 103_800_218, 15_355_392, 2.055e10, (104, 15.4)),
    ("bert", "base", {}, 109_705_010, 21_261_312, 2.235e10, (110, 21.3)),
    ("autobert-zero/att-only", "base", {}, 104_980_274, 16_536_576, None, (None, None)),
    ("autobert-zero/conv-only", "base", {}, 102_620_162, 14_174_208, None, (None, None)),  # the paper: 15.4M
    ("autobert-zero", "large", {}, 314_702_066, None, None, (None, None)),
    ("bert", "large", {}, 335_691_058, None, None, (None, None)),
    ("autobert-zero", "small", {}, 16_794_282, None, None, (None, None)),
    ("autobert-zero", "small", {"embedding": 128}, 12_888_106, None, None, (None, None))])
def test_counts(name, preset, change, total, attention, flops, published):
    """Ours to the unit, and rounded as Tables 2 and 3 print them; FLOPs of 128 tokens, whose head takes 6.0e9 more."""
    settings = {key: value for key, value in abz.PRESETS[preset].items() if not isinstance(value, dict)}
    cfg = abz.Config(**{**settings, **change})
    found = abz.count(abz.read_arch(name, cfg.layers), cfg)
    assert found["parameters"] == sum(found["parts"].values()) == total
    assert attention in (None, found["attention_parameters"])
    if flops:
        assert found["flops"] == pytest.approx(flops, rel=1e-3)
        assert found["flops_with_vocabulary_head"] == pytest.approx(flops + 6e9, rel=0.01)
        assert (round(total / 1e6), round(attention / 1e6, 1)) == published  # Tables 2, 3


# --- padding -------------------------------------------------------------------------------------

def padded_inputs(graph, batch=2, heads=2, tokens=7, dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {index: torch.randn(batch, heads, tokens, dim, generator=generator) for index in abz.used_inputs(graph)}


def test_padding_changes_nothing_in_random_graphs():
    """Outputs at real tokens are those of the unpadded input, for any filling and any amount of padding; padded inputs
    get no gradient. In float64: in float32 rounding at distance 0 is 0.002 and would hide what this test is after."""
    real = 5
    for number, graph in enumerate(random_graphs()[:100]):
        plain = {key: value.double() for key, value in padded_inputs(graph, tokens=real, seed=number).items()}
        expected = abz.run_graph(graph, plain)
        for extra, filling in ((2, 0.0), (2, 30.0), (9, -3.0)):
            padded = {key: torch.cat([value, filling * torch.randn(2, 2, extra, 4).double()], 2).requires_grad_()
                      for key, value in plain.items()}
            mask = (torch.arange(real + extra) < real)[None].expand(2, -1)
            output = abz.run_graph(graph, padded, mask)[:, :, :real]
            torch.testing.assert_close(output, expected, rtol=1e-8, atol=1e-8,
                                       msg=lambda text: f"{abz.formula(graph)}: {text}")
            output.square().sum().backward()
            for value in padded.values():
                gradient = torch.zeros(1) if value.grad is None else value.grad[:, :, real:]
                assert gradient.abs().max() == 0, abz.formula(graph)


def test_padding_changes_nothing_in_whole_models():
    rng = random.Random(11)
    cfg = dataclasses.replace(TINY, layers=4)
    architectures = [abz.sample_arch(rng, 4) for _ in range(6)]
    architectures += [(3, 65, 9, 31), abz.read_arch("autobert-zero", 4), abz.read_arch("bert", 4)]
    for number, arch in enumerate(architectures):
        torch.manual_seed(number)
        encoder = abz.Encoder(arch, cfg).eval()
        ids, lengths = torch.randint(50, (3, 9)), torch.tensor([9, 6, 1])
        for row, length in enumerate(lengths):
            alone = encoder(ids[row:row + 1, :length], torch.zeros(1, length, dtype=torch.long), lengths[row:row + 1])
            for width in (9, 30):
                wide = torch.randint(50, (3, width))
                wide[:, :9] = torch.where(torch.arange(9) < lengths[:, None], ids, torch.randint(50, (3, 9)))
                together = encoder(wide, torch.zeros(3, width, dtype=torch.long), lengths)[row, :length]
                torch.testing.assert_close(together, alone[0], rtol=1e-3, atol=1e-4)


# --- fused attention and convolution --------------------------------------------------------------

def test_softmax_attention_runs_fused_as_node_by_node_and_not_where_its_parts_are_read_again():
    fused = {*abz.read_arch("autobert-zero", 12)[1::2], *abz.read_arch("bert", 1),
             abz.parse_formula("softmax(scale(V @ V.T)) @ K")}
    others = map(abz.parse_formula, (
        "a = softmax(scale(Q @ K.T)); a @ (a @ V)", "a = softmax(scale(Q @ K.T)) @ V; a + a",
        "softmax(Q @ K.T) @ V", "softmax(scale(Q @ K.T)) @ V + Q"))
    mask = torch.arange(7)[None] < torch.tensor([7, 4])[:, None]
    for graph in (*fused, *others):
        assert bool(abz.find_softmax_attention(graph)) == (graph in fused)
        inputs, by_node = padded_inputs(graph), (abz.infer_graph(graph), None)
        for visible in (None, mask):
            plain = abz.run_graph(graph, inputs, visible, plan=by_node)
            torch.testing.assert_close(abz.run_graph(graph, inputs, visible), plain, rtol=1e-5, atol=1e-5)


def test_euclidean_is_cdist_and_has_finite_gradients_where_rows_coincide():
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 40, 16, requires_grad=True), torch.randn(2, 3, 30, 16, requires_grad=True)
    ours, slow = abz.run_op("euclidean", [x, y], ["nd", "nd"], None, 0.0), torch.cdist(x, y)
    torch.testing.assert_close(ours, slow, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(slow.sum(), x), rtol=1e-4,
                               atol=1e-4)
    same = abz.run_op("euclidean", [x, x], ["nd", "nd"], None, 0.0)
    assert torch.autograd.grad(same.sum(), x)[0].isfinite().all()
    assert same.diagonal(dim1=-2, dim2=-1).max() < 0.02


def test_bert_attention_is_torch_attention():
    """Eq. 2 against torch's own multi-head attention with the same weights."""
    torch.manual_seed(0)
    mixer = abz.AttentionMixer(abz.parse_formula(abz.BERT_ATTENTION), 16, 2, 0.0)
    reference = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    reference.in_proj_weight.data, reference.in_proj_bias.data = mixer.inputs.weight.data, mixer.inputs.bias.data
    reference.out_proj.load_state_dict(mixer.output.state_dict())
    x, mask = torch.randn(2, 6, 16), torch.arange(6)[None] < torch.tensor([[6], [3]])
    expected = reference(x, x, x, key_padding_mask=~mask, need_weights=False)[0]
    torch.testing.assert_close(mixer(x, mask), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [3, 9, 65])
def test_light_convolution_is_the_sum_it_stands_for(size, monkeypatch):
    torch.manual_seed(size)
    x, kernel = torch.randn(2, 11, 6), torch.randn(3, size)
    weights = kernel.softmax(1)
    expected = torch.zeros_like(x)
    for i in range(11):
        for k in range(size):
            j = i + k - size // 2
            if 0 <= j < 11:
                expected[:, i] += weights[:, k].repeat_interleave(2) * x[:, j]
    for smallest in (1, 99):  # as a product with a band matrix, and as a convolution
        monkeypatch.setattr(abz, "BAND_FROM", smallest)
        torch.testing.assert_close(abz.light_conv(x, kernel), expected, rtol=1e-5, atol=1e-5)


# --- super-net -----------------------------------------------------------------------------------

def test_supernet_gives_and_takes_the_right_slices():
    cfg, arch = TINY, (9, abz.parse_formula("softmax(scale(Q @ P.T)) @ Q"))
    supernet, model = abz.SuperNet(cfg), None
    model = abz.LanguageModel(arch, cfg, shared=True)
    supernet.weights["encoder.layers.0.conv.kernel"] = torch.arange(130.0).view(2, 65)
    supernet.fetch(model)
    # Figure 3: the centre of the kernels; Q and P of Q, K, V, P
    assert model.encoder.layers[0].conv.kernel.tolist() == [list(range(28, 37)), list(range(93, 102))]
    full = supernet.weights["encoder.layers.1.attention.inputs.weight"]
    assert torch.equal(model.encoder.layers[1].attention.inputs.weight.data, torch.cat([full[:16], full[48:]]))
    state = {name: value + 1 for name, value in model.state_dict().items()}
    before = {name: value.clone() for name, value in supernet.weights.items()}
    supernet.write_back([(arch, state)])
    changed = {name for name in before if not torch.equal(before[name], supernet.weights[name])}
    assert "encoder.layers.0.conv.transform.9" in changed and "encoder.layers.0.conv.transform.7" not in changed
    kernel = supernet.weights["encoder.layers.0.conv.kernel"] - before["encoder.layers.0.conv.kernel"]
    assert kernel.sum() == 18 and kernel[:, 28:37].sum() == 18
    name = "encoder.layers.1.attention.inputs.weight"
    rows = (supernet.weights[name] - before[name]).abs().sum(1)
    assert (rows[:16] > 0).all() and (rows[16:48] == 0).all() and (rows[48:] > 0).all()
    assert not any("layers.1.conv" in name or "layers.0.attention" in name for name in changed)
    supernet.take_rest({name: 0 * value for name, value in state.items()})
    kept = {name for name, value in supernet.weights.items() if value.any() and ".layers." in name}
    assert kept and all(".conv." in name or ".attention." in name for name in kept)
    assert supernet.weights[name].any() and not supernet.weights["encoder.words.weight"].any()


def test_transforms_do_not_decay():
    """Without a gradient the weights shrink towards 0, but the matrices that adapt a kernel stay the identity."""
    model = abz.LanguageModel((9, 65), TINY, shared=True)
    optimizer = abz.make_optimizer(model, 0.5)
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    before = model.encoder.words.weight.norm()
    optimizer.step()
    assert torch.equal(model.encoder.layers[0].conv.transform.data, torch.eye(9))
    assert model.encoder.words.weight.norm() < before


def test_write_back_prefers_the_best():
    cfg, supernet = TINY, abz.SuperNet(TINY)
    states = []
    for value, arch in ((2.0, (3, 9)), (1.0, (9, 9))):
        model = abz.LanguageModel(arch, cfg, shared=True)
        states.append((arch, {name: torch.full_like(each, value) for name, each in model.state_dict().items()}))
    before = supernet.weights["encoder.layers.0.conv.kernel"].clone()
    supernet.write_back(states)
    kernel = supernet.weights["encoder.layers.0.conv.kernel"]
    assert (kernel[:, 31:34] == 2).all() and (kernel[:, 28:31] == 1).all() and (kernel[:, 34:37] == 1).all()
    assert torch.equal(kernel[:, :28], before[:, :28])
    assert (supernet.weights["encoder.layers.0.conv.transform.9"] == 1).all()
    assert (supernet.weights["encoder.layers.1.conv.kernel"][:, 28:37] == 2).all()


# --- searcher ------------------------------------------------------------------------------------

def test_ucb_is_equation_3():
    """Each mean with one sample more, the mean of all (D8)."""
    scores = abz.ucb([3.0, 0.5, 0.0], [4, 1, 0], alpha=0.1)
    assert scores[0] == pytest.approx((3.0 + 0.7) / 5 + 0.1 * math.sqrt(2 * math.log(5) / 4))
    assert scores[1] == pytest.approx((0.5 + 0.7) / 2 + 0.1 * math.sqrt(2 * math.log(5)))
    assert scores[2] == pytest.approx(0.7 + 0.1 * math.sqrt(2 * math.log(5)))


def priority_of(*samples, **settings):
    """{operation: probability} at a position with samples (operation, score)."""
    priority = abz.OperationPriority([], abz.Config(**settings))
    for op, score in samples:
        priority.add(abz.OPS, 1, op, score)
    return dict(zip(abz.OPS, priority.probabilities(abz.OPS, 1)))


def test_probabilities_explore_and_exploit():
    """The bonus of what was tried seldom is in the unit of the scores, a better mean leads, one sample says nothing,
    and no option dies out (D8, D9)."""
    samples = [(op, 0.5) for number, op in enumerate(abz.OPS[:4]) for _ in range(1 + 5 * number)]
    plain, exploring = priority_of(*samples, alpha=0.0), priority_of(*samples, alpha=1.0)
    assert exploring[abz.OPS[0]] > 3 * exploring[abz.OPS[3]] and plain[abz.OPS[3]] > exploring[abz.OPS[3]] + 0.05
    better = priority_of(*[("neg", -1), ("add", 1)] * 10)
    assert better["add"] > 5 * better["neg"] and min(better.values()) >= 0.01
    assert [*priority_of(("neg", 0.9)).values()] == pytest.approx([0.1] * 10)
    legal = abz.OperationPriority([], abz.Config()).probabilities(abz.OPS, 0, ("neg", "add"))
    assert [value for value in legal if value] == pytest.approx([0.5, 0.5])
    assert sum(priority_of(*samples, alpha=1000.0).values()) == pytest.approx(1)  # the largest allowed


def test_priorities_do_not_depend_on_the_unit_of_the_scores():
    """D9: shares, percent, and scores that differ by a thousandth are followed alike."""
    rng, found = random.Random(0), []
    archs = [abz.sample_arch(rng, 2) for _ in range(9)]
    for unit, level in ((1, 0), (100, 0), (0.001, 0.5)):
        history = [line(number, arch, level + unit * (number % 4) / 4) for number, arch in enumerate(archs)]
        found.append(abz.OperationPriority(history, abz.Config()).probabilities(abz.OPS, 0))
    assert found[1] == pytest.approx(found[0]) and found[2] == pytest.approx(found[0])
    ties = abz.OperationPriority([line(number, arch, 0.5) for number, arch in enumerate(archs)], abz.Config(alpha=0))
    assert ties.probabilities(abz.OPS, 0) == pytest.approx([0.1] * 10)


def line(number, arch, score, diverged=False):
    return {"id": number, "round": 0, "parent": None, "arch": abz.arch_text(arch), "score": score, "scores": {},
            "diverged": diverged, "seconds": 0}


def test_priorities_follow_scores_by_position():
    good, bad = abz.parse_arch("softmax(Q) + K | conv3"), abz.parse_arch("neg(Q) + K | conv65")
    history = [line(0, good, 0.9), line(1, bad, 0.5)]
    priority = abz.OperationPriority(history, abz.Config(alpha=0.01))
    first = dict(zip(abz.OPS, priority.probabilities(abz.OPS, 0)))
    assert first["softmax"] > first["add"] > first["neg"] and sum(first.values()) == pytest.approx(1)
    kernels = dict(zip(abz.KERNELS, priority.probabilities(abz.KERNELS, 1)))
    assert kernels[3] > kernels[7] > kernels[65]
    assert priority.probabilities(abz.OPS, 2) == pytest.approx([0.1] * 10)  # longer than any path seen
    uniform = abz.OperationPriority(history, abz.Config(strategy="evolution"))
    assert uniform.probabilities(abz.OPS, 0) == pytest.approx([0.1] * 10)
    # D31: one that diverged does not banish what it was made of; it counts as the worst finite score, not as 0
    diverged = line(2, abz.parse_arch("softsign(Q) + K | conv3"), 0.0, diverged=True)
    first = dict(zip(abz.OPS, abz.OperationPriority([*history, diverged], abz.Config()).probabilities(abz.OPS, 0)))
    assert first["softsign"] == pytest.approx(first["neg"])


def test_a_mutation_without_priorities_is_uniform():
    """As a file copied alone calls it."""
    rng = random.Random(0)
    attention = abz.parse_formula("softmax(scale(Q @ K.T)) @ V")
    children = [abz.mutate((3, attention), rng, None) for _ in range(400)]
    assert {child[0] for child in children if isinstance(child[0], int)} == {*abz.KERNELS}
    assert len({child[1] for child in children}) > 50


def test_proposals_are_new_legal_reproducible_and_descend_from_the_best():
    cfg = dataclasses.replace(TINY, population=5, rounds=2, parents=2, children=2)
    assert abz.round_sizes(cfg) == [4, 1, 4, 4]
    rng = random.Random(0)
    history = [line(index, abz.sample_arch(rng, 2), index / 10, diverged=index == 4) for index in range(5)]
    proposals = abz.propose(history, 2, cfg)
    assert [parent for parent, _ in proposals] == [3, 3, 2, 2]  # 4 diverged
    texts = [abz.arch_text(arch) for _, arch in proposals]
    assert len(set(texts)) == 4 and not set(texts) & {each["arch"] for each in history}
    assert proposals == abz.propose(history, 2, cfg)
    assert all(parent is None for parent, _ in abz.propose(history, 2, dataclasses.replace(cfg, strategy="random")))


# --- objective -----------------------------------------------------------------------------------

class FakeTokenizer:
    vocab_size, pad_id, unk_id, cls_id, sep_id, mask_id = 1000, 0, 1, 2, 3, 4
    file_name, lower, save = "spiece.model", True, staticmethod(print)


def test_masking_is_80_10_10_and_never_touches_special_pieces():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (2000, 64), generator=generator)
    ids[:, 0], ids[:, 30], ids[::2, 40:] = 2, 3, 0  # [CLS], [SEP], padding
    changed, positions, labels = abz.mask_tokens(ids, FakeTokenizer, 0.15, generator)
    chosen = labels != -100
    assert positions.shape == labels.shape == (round(0.15 * 2000 * 64),)  # constant for the shape of the batch
    assert chosen.sum() == round(0.15 * (1000 * 62 + 1000 * 38)) == len(set(positions[chosen].tolist()))
    assert torch.equal(labels[chosen], ids.flatten()[positions[chosen]]) and (labels[chosen] >= 5).all()
    now = changed.flatten()[positions[chosen]]
    assert (now == 4).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (now == labels[chosen]).float().mean().item() == pytest.approx(0.1, abs=0.01)
    untouched = torch.ones(ids.numel(), dtype=torch.bool)
    untouched[positions[chosen]] = False
    assert torch.equal(changed.flatten()[untouched], ids.flatten()[untouched])
    short_rows = (positions[chosen] // 64 % 2 == 0).float().mean().item()
    assert short_rows == pytest.approx(38 / 100, abs=0.02)  # every piece of text is as likely as any other


def test_next_sentence_pairs():
    """Half of the second parts are from elsewhere; where nothing follows there is no label. test_corpus.py joins."""
    lengths = torch.tensor([2] * 300 + [0] * 100)
    segments = SimpleNamespace(segment_b=torch.full((400, 5), 20), length_b=lengths,
                               other=torch.full((400, 5), 30), length_other=torch.ones(400, dtype=torch.long))
    second, length, labels = abz.draw_next_sentence(segments, torch.Generator().manual_seed(0))
    assert (labels[300:] == -100).all() and not length[300:].any()
    assert set(labels[:300].tolist()) == {0, 1} and 0.4 < labels[:300].float().mean() < 0.6
    elsewhere = labels[:300] == 1
    assert ((second[:300] == 30).all(1) == elsewhere).all() and ((second[:300] == 20).all(1) != elsewhere).all()
    assert (length[:300] == torch.where(elsewhere, 1, 2)).all()


def test_short_rows_come_first_and_no_example_twice():
    cfg, found = dataclasses.replace(TINY, steps=4, batch=8, accumulate=2, length=64, short=0.5), {16: [], 64: []}
    for rank, step in itertools.product(range(2), range(4)):
        for own, first, rows in abz.micro_batches(cfg, abz.Ranks(rank, 2, torch.device("cpu")), 40, step):
            assert (own.length, rows) == ((16, 16) if step < 2 else (64, 4))
            found[own.length] += range(first, first + rows)
    assert sorted(found[16]) == [*range(160, 224)] and sorted(found[64]) == [*range(56, 72)]


def test_a_batch_without_labels_has_a_loss():
    logits, labels = torch.randn(3, 2, requires_grad=True), torch.full((3,), -100)
    (none, some), _ = abz.language_losses(lambda *inputs: (logits, logits), [None] * 4 + [
        labels, torch.tensor([1, -100, 0])], TINY, torch.device("cpu"))
    assert none == 0 and some.isclose(torch.nn.functional.cross_entropy(logits[[0, 2]], torch.tensor([1, 0])))


# --- the network as code -------------------------------------------------------------------------

def test_the_written_module_gives_our_outputs(tmp_path):
    """Six random architectures and the published one, on padded batches; the module imports torch alone."""
    rng = random.Random(0)
    for number, arch in enumerate([abz.read_arch("autobert-zero", 12), *(abz.sample_arch(rng, 5) for _ in range(6))]):
        cfg = dataclasses.replace(TINY, layers=len(arch), embedding=8 if number % 2 else 0, init_std=0.2)
        torch.manual_seed(number)
        model, path = abz.LanguageModel(arch, cfg).double().eval(), tmp_path / f"net{number}.py"
        abz.write_best(path, arch, (model.state_dict(), arch, "test"), cfg, FakeTokenizer)
        source, written = path.read_text(), {}
        imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert {ast.unparse(node) for node in imports} == {
            "import math", "import unicodedata", "from types import SimpleNamespace", "import torch",
            "import torch.nn.functional as F", "from torch import nn",
            "from torch.utils.checkpoint import checkpoint as recompute"}
        exec(compile(source, path, "exec"), written)
        network = written["load"](path.with_suffix(".pt")).double().eval()
        ids, lengths = torch.randint(50, (4, 11)), torch.tensor([11, 7, 2, 1])
        real = (torch.arange(11)[None] < lengths[:, None]).flatten().nonzero()[:, 0]
        words, pairs = network(ids, ids % 2, lengths, real)
        expected, expected_pairs = model(ids, ids % 2, lengths, real)
        torch.testing.assert_close(words, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(pairs, expected_pairs, rtol=1e-6, atol=1e-6)
