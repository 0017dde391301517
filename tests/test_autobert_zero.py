"""autobert_zero.py: search space, padding, layers, published counts, super-net, searcher,
objective, the network as code."""
import ast
import dataclasses
import functools
import importlib.util
import itertools
import math
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import autobert_zero as abz
from common.cli import UserError
from data.network_code import write_code

TINY = abz.Config(
    vocab_size=50, layers=2, hidden=16, heads=2, ffn=32, dropout=0.0, length=32, init_std=0.14)


@functools.cache
def random_graphs():
    rng = random.Random(0)
    return [abz.sample_graph(rng, TINY) for _ in range(100)]


def random_inputs(graph, batch=2, heads=2, tokens=7, dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        index: torch.randn(batch, heads, tokens, dim, generator=generator, dtype=torch.float64)
        for index in abz.used_inputs(graph)}


# Search space


def test_sampled_graphs_are_legal_and_varied():
    graphs = random_graphs()
    for graph in graphs:
        assert abz.why_illegal(graph, 12) is None
        assert abz.canonical(graph) == graph
        assert 0.001 < abz.gain(graph, TINY) < 0.5  # D38
    assert {len(graph) for graph in graphs} >= set(range(3, 13))
    assert {op for graph in graphs for op, *_ in graph} == set(abz.OPS)
    assert {len(abz.used_inputs(graph)) for graph in graphs} == {2, 3, 4}


def test_a_legal_search_graph_is_one_in_which_tokens_see_each_other():
    """A change of the last token reaches others, or none of them."""
    apart = ["Q + K", "softmax(neg(Q)) + scale(K)", "softsign(Q.T).T + V"]
    apart = [abz.parse_formula(text) for text in apart]
    for graph in [*random_graphs(), *apart]:
        inputs = random_inputs(graph)
        before = abz.run_graph(graph, inputs)
        for value in inputs.values():
            value[:, :, -1] = value[:, :, -1].sin() + 1
        after = abz.run_graph(graph, inputs)
        changed = bool((before != after)[:, :, :-1].any())
        assert changed == (graph not in apart), abz.formula(graph)
        assert (abz.why_illegal(graph, 12) is None) == changed


def test_the_text_form_is_read_back_and_shares_sub_expressions():
    rng = random.Random(3)
    for _ in range(20):
        arch = abz.sample_arch(rng, TINY)
        assert abz.parse_arch(abz.arch_text(arch)) == arch
    graph = abz.parse_formula("a = logsigmoid(Q); softmax(scale(a @ K.T)) @ a")
    assert sum(op == "logsigmoid" for op, *_ in graph) == 1
    assert graph == abz.parse_formula("softmax(scale(logsigmoid(Q) @ K.T)) @ logsigmoid(Q)")
    assert abz.parse_formula("Q + K") == abz.parse_formula("K + Q")
    assert abz.parse_formula("Q @ K.T @ V") != abz.parse_formula("K @ Q.T @ V")


@pytest.mark.parametrize("text, words", [
    ("Q", "end in an operation"),
    ("Q.T", "not tokens x head dim"),
    ("cos(Q)", "not a formula"),
    ("__import__('os')", "not a formula"),
    ("Q @ K", "do not fit"),
    ("softmax(Q)", "reads 2 to 4"),
    ("conv4", "kernel size 4"),
])
def test_illegal_text_is_refused(text, words):
    with pytest.raises(ValueError, match=f"layer 1: .*{words}"):
        abz.parse_arch(text)


@pytest.mark.parametrize("text, simple", [
    ("neg(cos(Q, K)) @ neg(P)", "cos(Q, K) @ P"),
    ("neg(neg(Q)) + K", "Q + K"),
    ("cos(scale(Q), neg(K)) @ V", "neg(cos(Q, K) @ V)"),
    ("dist(neg(Q), neg(K)) @ softsign(neg(V))", "neg(dist(Q, K) @ softsign(V))"),
])
def test_a_formula_is_shown_without_signs_that_cancel(text, simple):
    assert abz.formula(abz.simplify(abz.parse_formula(text))) == simple


def test_a_simplified_graph_computes_the_same():
    shorter = 0
    for graph in random_graphs():
        simple = abz.simplify(graph)
        shorter += len(simple) < len(graph)
        inputs = random_inputs(graph)
        assert_close(abz.run_graph(simple, inputs), abz.run_graph(graph, inputs))
    assert shorter > 10


def test_published_architecture():
    arch = abz.read_arch("autobert-zero", 12)
    assert list(arch[0::2]) == [65, 9, 3, 7, 7, 3]  # Figure 7
    assert [len(layer) for layer in arch[1::2]] == [9, 10, 7, 7, 11, 7]
    assert [len(abz.used_inputs(layer)) for layer in arch[1::2]] == [2, 2, 2, 2, 3, 3]
    large = abz.read_arch("autobert-zero", 24)  # App. D.2: each pair right after itself
    assert large[:4] == arch[:2] * 2
    assert large[-4:] == arch[-2:] * 2
    for kind, first in (("att-only", 1), ("conv-only", 0)):  # Sec. 4.2, ablation
        twice = [layer for layer in arch[first::2] for _ in range(2)]
        assert list(abz.read_arch(f"autobert-zero/{kind}", 12)) == twice
    assert abz.read_arch("autobert-zero", 4) == arch[:2] + arch[-2:]


@pytest.mark.parametrize("name, preset, embedding, total, attention, flops", [
    ("autobert-zero", "base", 0, 103_800_218, 15_355_392, 2.055e10),  # 104M, 15.4M in print
    ("bert", "base", 0, 109_705_010, 21_261_312, 2.235e10),  # 110M, 21.3M
    ("autobert-zero/att-only", "base", 0, 104_980_274, 16_536_576, None),
    ("autobert-zero/conv-only", "base", 0, 102_620_162, 14_174_208, None),  # 15.4M in print
    ("autobert-zero", "large", 0, 314_702_066, None, None),
    ("bert", "large", 0, 335_691_058, None, None),
    ("autobert-zero", "small", 0, 16_794_282, None, None),
    ("autobert-zero", "small", 128, 12_888_106, None, None),
])
def test_counts(name, preset, embedding, total, attention, flops):
    settings = {
        key: value for key, value in abz.PRESETS[preset].items() if not isinstance(value, dict)}
    cfg = abz.Config(**settings, embedding=embedding)
    counts = abz.count(abz.read_arch(name, cfg.layers), cfg)
    assert counts["parameters"] == sum(counts["parts"].values()) == total
    assert attention in (None, counts["attention_parameters"])
    if flops:
        assert counts["flops"] == pytest.approx(flops, rel=1e-3)
        assert counts["flops_with_vocabulary_head"] == pytest.approx(flops + 6e9, rel=0.01)


def test_flops_of_every_operation():
    """Three products of 128 x 128 x 64 in each of 12 heads."""
    graph = abz.parse_formula("cos(Q, K) @ dist(Q, V) @ V")
    cfg = abz.Config(layers=1)
    mixer = abz.count((graph,), cfg)["flops"] - 2 * 128 * 768 * (4 * 768 + 2 * 3072)
    assert mixer == 12 * 2 * 128 * 128 * (64 + 64 + 128 + 64)


def test_activations_of_a_fused_attention_are_not_counted():
    """The transpose alone, of 12 heads of 128 x 64 in 2 bytes; or it and three of 128 x 128."""
    cfg = abz.Config()
    fused = abz.graph_activations(abz.parse_formula(abz.BERT_ATTENTION), cfg)
    assert fused == 2 * 12 * 128 * 64
    apart = abz.graph_activations(abz.parse_formula("softmax(neg(Q @ K.T)) @ V"), cfg)
    assert apart == fused + 2 * 12 * (3 * 128 * 128 + 128 * 64)


@pytest.mark.parametrize("words, message", [
    ("--finetune CoLA --grid --finetune_lr 1", "--finetune_lr: --grid"),
    ("--finetune CoLA --grid --weight_decay 1", "--weight_decay: --grid"),
    ("--finetune CoLA --grid --eval_every 1", "--eval_every: --grid"),
    ("--predict x.tsv", "--predict: .* --init"),
    ("--export x.py", "--export: .* --init"),
    ("--search --arch bert", "--arch bert: "),
])
def test_flags_that_do_not_go_together_are_refused(words, message):
    with pytest.raises(UserError, match=message):
        abz.main(words.split())


# Padding


@pytest.mark.parametrize("number", range(12))
def test_padding_changes_nothing_in_whole_models(number):
    cfg = dataclasses.replace(TINY, layers=4)
    fixed = [(3, 65, 9, 31), abz.read_arch("autobert-zero", 4), abz.read_arch("bert", 4)]
    rng = random.Random(number)
    arch = fixed[number] if number < 3 else abz.sample_arch(rng, cfg)
    torch.manual_seed(number)
    encoder = abz.Encoder(arch, cfg).eval()
    lengths = torch.tensor([9, 6, 1])
    ids = torch.randint(50, (3, 30))
    for width in (9, 30):
        together = encoder(ids[:, :width], torch.zeros_like(ids[:, :width]), lengths)
        for index, length in enumerate(lengths):
            one = ids[index:index + 1, :length]
            alone = encoder(one, torch.zeros_like(one), lengths[index:index + 1])
            assert_close(together[index, :length], alone[0], rtol=1e-3, atol=1e-4)


# Attention and convolution


@pytest.mark.parametrize("text, fused", [
    ("softmax(scale(V @ V.T)) @ K", True),
    ("softmax(scale(Q @ (scale(K) + V).T)) @ V", True),
    ("a = softmax(scale(Q @ K.T)); a @ (a @ V)", False),
    ("a = softmax(scale(Q @ K.T)) @ V; a + a", False),
    ("softmax(Q @ K.T) @ V", False),
    ("softmax(scale(Q @ K.T)) @ V + Q", False),
])
def test_softmax_attention_runs_fused_as_operation_by_operation(text, fused):
    graph = abz.parse_formula(text)
    assert bool(abz.find_softmax_attention(graph)) == fused
    inputs = random_inputs(graph)
    apart = (abz.infer_graph(graph), None)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    for visible in (None, mask):
        expected = abz.run_graph(graph, inputs, visible, plan=apart)
        assert_close(abz.run_graph(graph, inputs, visible), expected)


def test_the_gradient_of_a_distance_is_finite_where_rows_coincide():
    x = torch.randn(2, 3, 40, 16, requires_grad=True)
    same = abz.euclidean(x, x)
    assert torch.autograd.grad(same.sum(), x)[0].isfinite().all()
    assert same.diagonal(dim1=-2, dim2=-1).max() < 0.02


def test_bert_attention_is_torch_attention():
    """Eq. 2 against torch's multi-head attention with the same weights."""
    torch.manual_seed(0)
    mixer = abz.AttentionMixer(abz.parse_formula(abz.BERT_ATTENTION), 16, 2, 0.0)
    reference = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    reference.in_proj_weight.data = mixer.inputs.weight.data
    reference.in_proj_bias.data = mixer.inputs.bias.data
    reference.out_proj.load_state_dict(mixer.output.state_dict())
    x = torch.randn(2, 6, 16)
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    expected = reference(x, x, x, key_padding_mask=~mask, need_weights=False)[0]
    assert_close(mixer(x, mask), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [3, 9, 65])
@pytest.mark.parametrize("band_from", [1, 99])
def test_light_convolution_is_the_sum_it_stands_for(size, band_from, monkeypatch):
    monkeypatch.setattr(abz, "BAND_FROM", band_from)
    torch.manual_seed(size)
    x = torch.randn(2, 11, 6)
    kernel = torch.randn(3, size)
    weights = kernel.softmax(1).repeat_interleave(2, 0)
    expected = torch.zeros_like(x)
    for i, k in itertools.product(range(11), range(size)):
        j = i + k - size // 2
        if 0 <= j < 11:
            expected[:, i] += weights[:, k] * x[:, j]
    assert_close(abz.light_conv(x, kernel), expected, rtol=1e-5, atol=1e-5)


# Super-net


def test_the_super_net_gives_and_takes_the_right_slices():
    arch = (9, abz.parse_formula("softmax(scale(Q @ P.T)) @ Q"))
    kernels = "encoder.layers.0.conv.kernel"
    inputs = "encoder.layers.1.attention.inputs.weight"
    supernet = abz.SuperNet(TINY)
    supernet.weights[kernels] = torch.arange(130.0).view(2, 65)
    before = {name: value.clone() for name, value in supernet.weights.items()}
    model = abz.LanguageModel(arch, TINY, shared=True)
    supernet.fetch(model)
    # Figure 3: the centre of the kernels; Q and P of Q, K, V, P
    state = model.state_dict()
    assert state[kernels].tolist() == [list(range(28, 37)), list(range(93, 102))]
    assert torch.equal(state[inputs], torch.cat([before[inputs][:16], before[inputs][48:]]))
    supernet.write_back([(arch, {name: value + 1 for name, value in state.items()})])
    change = {name: supernet.weights[name] - value for name, value in before.items()}
    assert change[kernels].sum() == change[kernels][:, 28:37].sum() == 18
    assert change["encoder.layers.0.conv.transform.9"].all()
    assert not change["encoder.layers.0.conv.transform.7"].any()
    rows = change[inputs].any(1)
    assert rows.tolist() == [True] * 16 + [False] * 32 + [True] * 16
    for name, value in change.items():
        assert not ("layers.1.conv" in name or "layers.0.attention" in name) or not value.any()
    supernet.take_rest({name: 0 * value for name, value in state.items()})
    for name, value in supernet.weights.items():
        mixer = ".conv." in name or ".attention." in name
        assert bool(value.any()) == mixer or name.endswith("bias")


def test_the_best_candidate_writes_a_weight():
    supernet = abz.SuperNet(TINY)
    kernels = "encoder.layers.0.conv.kernel"
    before = supernet.weights[kernels].clone()
    states = []
    for value, arch in ((2.0, (3, 9)), (1.0, (9, 9))):
        state = abz.LanguageModel(arch, TINY, shared=True).state_dict()
        states.append((arch, {name: torch.full_like(each, value) for name, each in state.items()}))
    supernet.write_back(states)
    kernel = supernet.weights[kernels]
    assert kernel[0, 28:37].tolist() == [1, 1, 1, 2, 2, 2, 1, 1, 1]
    assert torch.equal(kernel[:, :28], before[:, :28])
    assert (supernet.weights["encoder.layers.0.conv.transform.9"] == 1).all()
    assert (supernet.weights["encoder.layers.1.conv.kernel"][:, 28:37] == 2).all()


# Searcher


def line(number, arch, score, diverged=False):
    text = arch if isinstance(arch, str) else abz.arch_text(arch)
    return {"id": number, "round": 0, "arch": text, "score": score, "diverged": diverged}


def test_ucb_is_equation_3():
    """Each mean with one sample more, the mean of all (D8)."""
    scores = abz.ucb([3.0, 0.5, 0.0], [4, 1, 0], alpha=0.1)
    bonus = 0.1 * math.sqrt(2 * math.log(5))
    expected = [3.7 / 5 + bonus / 2, 1.2 / 2 + bonus, 0.7 + bonus]
    assert scores == pytest.approx(expected)


def test_priorities_follow_scores_by_position():
    history = [
        line(0, "softmax(Q) + K | conv3", 0.9),
        line(1, "neg(Q) + K | conv65", 0.5),
        line(2, "softsign(Q) + K | conv3", 0.0, diverged=True),  # counts as the worst score (D31)
    ]
    priority = abz.OperationPriority(history, abz.Config(alpha=0.01))
    first = dict(zip(abz.OPS, priority.probabilities(abz.OPS, 0)))
    assert first["softmax"] > first["add"] > first["neg"]
    assert first["softsign"] == pytest.approx(first["neg"])
    assert sum(first.values()) == pytest.approx(1)
    kernels = dict(zip(abz.KERNELS, priority.probabilities(abz.KERNELS, 1)))
    assert kernels[3] > kernels[7] > kernels[65]
    assert priority.probabilities(abz.OPS, 2) == pytest.approx([0.1] * 10)  # longer than any path
    uniform = abz.OperationPriority(history, abz.Config(strategy="evolution"))
    assert uniform.probabilities(abz.OPS, 0) == pytest.approx([0.1] * 10)


def test_the_gain_is_that_of_the_config():
    """D38: what sums over tokens without a softmax is louder in longer sequences."""
    graph = abz.parse_formula("cos(Q, K) @ V")
    assert 0.001 < abz.gain(graph, dataclasses.replace(TINY, length=8)) < 0.5
    assert abz.gain(graph, abz.Config(length=512)) > 0.5


def test_an_edit_is_legal_and_its_operation_stands_where_it_was_drawn():
    rng = random.Random(0)
    drawn = []
    lengths = set()

    class Priority:
        def probabilities(self, options, position, legal):
            drawn.append((position, rng.choice(sorted(legal))))
            return [option == drawn[-1][1] for option in options]

    for graph in random_graphs():
        drawn.clear()
        child = abz.edit_graph(graph, rng, Priority())
        assert child != graph
        assert abz.why_illegal(child, 12) is None
        lengths.add(len(child) - len(graph))
        if len(child) > len(graph):  # by an insertion, which draws last
            position, op = drawn[-1]
            assert child[position][0] == op
        assert all(0 <= position <= len(graph) for position, _ in drawn)  # Sec. 3.2, D41
    assert lengths >= {-1, 0, 1}


def test_proposals_are_new_legal_reproducible_and_descend_from_the_best():
    cfg = dataclasses.replace(TINY, population=5, rounds=2, parents=2, children=2)
    assert abz.round_sizes(cfg) == [4, 1, 4, 4]
    rng = random.Random(0)
    history = [line(index, abz.sample_arch(rng, TINY), index / 10, diverged=index == 4)
               for index in range(5)]
    proposals = abz.propose(history, 2, cfg)
    assert [parent for parent, _ in proposals] == [3, 3, 2, 2]  # 4 diverged
    texts = {abz.arch_text(arch) for _, arch in proposals}
    assert len(texts - {each["arch"] for each in history}) == 4
    assert proposals == abz.propose(history, 2, cfg)
    others = abz.propose(history, 2, dataclasses.replace(cfg, strategy="random"))
    assert all(parent is None for parent, _ in others)


# Objective


class FakeTokenizer:
    vocab_size = 1000
    pad_id = 0
    unk_id = 1
    cls_id = 2
    sep_id = 3
    mask_id = 4
    file_name = "spiece.model"
    lower = True
    save = staticmethod(print)


def test_masking_is_80_10_10_and_never_of_special_tokens():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (2000, 64), generator=generator)
    ids[:, 0] = 2  # [CLS]
    ids[:, 30] = 3  # [SEP]
    ids[::2, 40:] = 0  # padding
    changed, positions, labels = abz.mask_tokens(ids, FakeTokenizer, 0.15, generator)
    chosen = labels != -100
    assert positions.shape == labels.shape == (round(0.15 * 2000 * 64),)
    positions = positions[chosen]
    labels = labels[chosen]
    assert len(labels) == round(0.15 * (1000 * 62 + 1000 * 38)) == len(positions.unique())
    assert torch.equal(labels, ids.flatten()[positions])
    assert (labels >= 5).all()
    now = changed.flatten()[positions]
    assert (now == 4).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (now == labels).float().mean().item() == pytest.approx(0.1, abs=0.01)
    untouched = torch.ones(ids.numel(), dtype=torch.bool)
    untouched[positions] = False
    assert torch.equal(changed.flatten()[untouched], ids.flatten()[untouched])


def test_next_sentence_pairs():
    """Half of the second segments are from elsewhere; where nothing follows there is no label."""
    segments = SimpleNamespace(
        segment_b=torch.full((400, 5), 20),
        length_b=torch.tensor([2] * 300 + [0] * 100),
        other=torch.full((400, 5), 30),
        length_other=torch.ones(400, dtype=torch.long))
    second, length, labels = abz.draw_next_sentence(segments, torch.Generator().manual_seed(0))
    assert (labels[300:] == -100).all()
    assert not length[300:].any()
    elsewhere = labels[:300] == 1
    assert 0.4 < elsewhere.float().mean() < 0.6
    assert torch.equal(second[:300, 0], torch.where(elsewhere, 30, 20))
    assert torch.equal(length[:300], torch.where(elsewhere, 1, 2))


def test_a_batch_without_labels_has_a_loss():
    logits = torch.randn(3, 2, requires_grad=True)
    none = torch.full((3,), -100)
    some = torch.tensor([1, -100, 0])
    batch = [None] * 4 + [none, some]
    model = lambda *inputs: (logits, logits)  # noqa: E731
    losses, _ = abz.language_losses(model, batch, TINY, torch.device("cpu"))
    assert losses[0] == 0
    assert_close(losses[1], torch.nn.functional.cross_entropy(logits[[0, 2]], some[[0, 2]]))


# The network as code


@pytest.mark.parametrize("number", range(3))
def test_the_written_module_gives_our_outputs(number, tmp_path):
    """On padded batches; the module imports torch alone."""
    cfg = dataclasses.replace(TINY, layers=12, embedding=8 if number % 2 else 0)
    rng = random.Random(number)
    arch = abz.sample_arch(rng, cfg) if number else abz.parse_arch(abz.PUBLISHED)
    torch.manual_seed(number)
    model = abz.LanguageModel(arch, cfg).double().eval()
    path = tmp_path / "net.py"
    abz.write_best(path, arch, (model.state_dict(), arch, "test"), cfg, FakeTokenizer)
    source = path.read_text()
    names = {"math", "unicodedata", "types", "torch", "torch.nn.functional",
             "torch.utils.checkpoint"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            assert names >= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module in names
    written = {}
    exec(compile(source, path, "exec"), written)
    network = written["load"](path.with_suffix(".pt")).double().eval()
    ids = torch.randint(50, (4, 11))
    lengths = torch.tensor([11, 7, 2, 1])
    real = (torch.arange(11) < lengths[:, None]).flatten().nonzero()[:, 0]
    inputs = (ids, ids % 2, lengths, real)
    for ours, theirs in zip(model(*inputs), network(*inputs)):
        assert_close(theirs, ours, rtol=1e-6, atol=1e-6)


def test_the_written_module_does_not_depend_on_line_numbers(tmp_path, monkeypatch):
    """The file may be edited while a search runs."""
    path = tmp_path / "copied.py"
    source = Path(abz.__file__).read_text()
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("copied", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "copied", module)
    spec.loader.exec_module(module)
    network = (module, abz.parse_arch("conv9 | cos(Q, K) @ V"), "net.pt", TINY, FakeTokenizer)
    before = write_code(*network, None, 32)
    path.write_text("# a comment\n" * 9 + source)
    assert write_code(*network, None, 32) == before
