"""autobert_zero.py: search space, padding, layers, published counts, super-net, searcher,
objective, the network as code."""
import builtins
import dis
import functools
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_runs import ALONE, FakeTokenizer
from torch.testing import assert_close

import autobert_zero as abz
from common.files import read_jsonl
from data.network_code import fill_marks, write_network

TINY = abz.Config(
    vocab_size=50,
    layers=2,
    hidden=16,
    heads=2,
    ffn=32,
    dropout=0.0,
    length=32,
    init_std=0.14)


@functools.cache
def random_attentions():
    rng = random.Random(0)
    return [abz.sample_attention(rng, TINY) for _ in range(60)]


def random_inputs():
    torch.manual_seed(0)
    values = torch.randn(4, 2, 2, 7, 4).double()
    return dict(zip(abz.INPUTS, values))  # (B, N, T, D) each


def run(attention, inputs, mask=None):
    """The value of an attention, operation by operation."""
    return abz.run_graph(abz.path_of(attention), inputs, mask)[attention]


# Search space


def test_sampled_attentions_are_legal_and_varied():
    lengths = set()
    names = set()
    for attention in random_attentions():
        path = abz.path_of(attention)
        lengths.add(len(path))
        names |= {op for op, *_ in path}
        assert abz.canonical(attention) == attention
        assert 0.001 < abz.gain(attention, TINY) < 0.5  # D31
    assert lengths >= {*range(3, 13)}
    assert names == {*abz.OPS}


def test_a_search_proposes_attentions_in_which_tokens_see_each_other():
    """Changing the last token affects others, or none."""
    texts = ["Q + K", "softmax(neg(Q)) + scale(K)", "softsign(Q.T).T + V"]
    apart = [abz.parse_formula(text) for text in texts]
    for attention in [*random_attentions(), *apart]:
        inputs = random_inputs()
        before = run(attention, inputs)
        for value in inputs.values():
            last = value[:, :, -1]
            last.sin_().add_(1)
        others = (before != run(attention, inputs))[:, :, :-1]
        changed = bool(others.any())
        assert changed == (attention not in apart)
        assert abz.searchable(attention) == changed


def test_the_text_form_is_read_back_and_shares_sub_expressions():
    rng = random.Random(3)
    for _ in range(20):
        arch = abz.sample_arch(rng, TINY)
        assert abz.parse_arch(abz.arch_text(arch)) == arch
    attention = abz.parse_formula("a = logsigmoid(Q); softmax(scale(a @ K.T)) @ a")
    assert attention == abz.parse_formula("softmax(scale(logsigmoid(Q) @ K.T)) @ logsigmoid(Q)")
    assert abz.parse_formula("Q @ K.T @ V") != abz.parse_formula("K @ Q.T @ V")


@pytest.mark.parametrize("text", [
    "Q",
    "cos(Q)",
    "__import__('os')",
    "Q @ K",
    "softmax(Q)",
    "conv4",
    "softmax(Q, dim=0) + K",
    "Q" + " + K" * 600,
    "d0 = V + V;" + "".join(
        f"d{number + 1} = d{number} + d{number};" for number in range(600)) + "d600 + Q",
    "Q = K + V; softmax(scale(Q @ K.T)) @ V",
])
def test_illegal_text_is_refused(text):
    with pytest.raises(ValueError, match="layer 1: "):
        abz.parse_arch(text)


def test_a_simplified_attention_computes_the_same():
    for attention in random_attentions():
        inputs = random_inputs()
        assert_close(run(abz.simplify(attention), inputs), run(attention, inputs))


def test_published_architecture():
    arch = abz.read_arch("autobert-zero", 12)
    assert arch[0::2] == (65, 9, 3, 7, 7, 3)  # Figure 7
    large = abz.read_arch("autobert-zero", 24)  # App. D.2: each pair repeats
    assert large[:4] == arch[:2] * 2
    small = abz.read_arch("autobert-zero", 4)
    assert small == arch[:2] + arch[-2:]
    with pytest.raises(ValueError, match="3 layer.s."):  # not pairs
        abz.read_arch("conv3 | conv5 | conv7", 6)


@pytest.mark.parametrize("name, preset, embedding, total, attention", [
    ("autobert-zero", "base", 0, 103_800_218, 15_355_392),  # 104M, 15.4M in print
    ("bert", "base", 0, 109_705_010, 21_261_312),  # 110M, 21.3M
    ("autobert-zero", "large", 0, 314_702_066, None),
    ("autobert-zero", "small", 128, 12_888_106, None),
])
def test_counts(name, preset, embedding, total, attention):
    settings = {}
    for key, value in abz.PRESETS[preset].items():
        if not isinstance(value, dict):
            settings[key] = value
    cfg = abz.Config(**settings, embedding=embedding)
    arch = abz.read_arch(name, cfg.layers)
    counts = abz.count(arch, cfg)
    assert counts["parameters"] == total
    assert sum(counts["parts"].values()) == total
    assert attention in (None, counts["attention_parameters"])


def test_flops_of_every_operation():
    """BERT's, and three products of 128 x 128 x 64 in each of 12 heads."""
    bert = abz.count(abz.read_arch("bert", 12), abz.Config())
    assert bert["flops"] == pytest.approx(2.235e10, rel=1e-3)
    attention = abz.parse_formula("cos(Q, K) @ dist(Q, V) @ V")
    counts = abz.count((attention,), abz.Config(layers=1))
    projections = 2 * 128 * 768 * (4 * 768 + 2 * 3072)
    mixer = 12 * 2 * 128 * 128 * (64 + 64 + 128 + 64)
    assert counts["flops"] == projections + mixer


# Padding


@pytest.mark.parametrize("name", ["autobert-zero", "bert", *range(9)])
def test_padding_changes_nothing_in_whole_models(name):
    cfg = replace(TINY, layers=4)
    if isinstance(name, int):
        arch = abz.sample_arch(random.Random(name), cfg)
    else:
        arch = abz.read_arch(name, 4)
    torch.manual_seed(0)
    encoder = abz.Encoder(arch, cfg).eval()
    lengths = torch.tensor([9, 6, 1])
    ids = torch.randint(50, (3, 30))
    types = torch.zeros_like(ids)
    for width in (9, 30):
        together = encoder(ids[:, :width], types[:, :width], lengths)
        for row, length in enumerate(lengths):
            one = slice(row, row + 1)
            alone = encoder(ids[one, :length], types[one, :length], None)
            states = together[one, :length]
            assert_close(states, alone, rtol=1e-3, atol=1e-4)


# Attention and convolution


@pytest.mark.parametrize("text, fused", [
    ("softmax(scale(Q @ (scale(K) + V).T)) @ V", True),
    ("a = softmax(scale(Q @ K.T)); a @ (a @ V)", False),
    ("softmax(Q @ K.T) @ V", False),
    ("softmax(scale(Q @ K.T)) @ V + Q", False),
])
def test_softmax_attention_runs_fused_as_operation_by_operation(text, fused):
    torch.manual_seed(0)
    attention = abz.parse_formula(text)
    mixer = abz.AttentionMixer(attention, 16, 2, 0.0)
    assert bool(mixer.fused) == fused
    apart = abz.AttentionMixer(attention, 16, 2, 0.0)
    apart.load_state_dict(mixer.state_dict())
    apart.fused = None
    apart.path = abz.path_of(attention)
    x = torch.randn(2, 7, 16)
    lengths = torch.tensor([[7], [4]])
    for mask in (None, torch.arange(7) < lengths):
        assert_close(mixer(x, mask), apart(x, mask))


def test_the_gradient_of_a_distance_is_finite_where_rows_coincide():
    x = torch.randn(2, 3, 40, 16, requires_grad=True)
    abz.euclidean(x, x).sum().backward()
    assert x.grad.isfinite().all()


def test_bert_attention_is_torch_attention():
    """Eq. 2 against torch's multi-head attention with the same weights."""
    torch.manual_seed(0)
    mixer = abz.AttentionMixer(abz.parse_formula(abz.BERT_ATTENTION), 16, 2, 0.0)
    reference = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    reference.in_proj_weight.data = mixer.inputs.weight.data
    reference.in_proj_bias.data = mixer.inputs.bias.data
    reference.out_proj.load_state_dict(mixer.output.state_dict())
    x = torch.randn(2, 6, 16)
    lengths = torch.tensor([[6], [3]])
    mask = torch.arange(6) < lengths
    expected, _ = reference(x, x, x, key_padding_mask=~mask)
    assert_close(mixer(x, mask), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [3, 9, 65])
@pytest.mark.parametrize("band_from", [1, 99])
def test_light_convolution_is_the_sum_it_stands_for(size, band_from, monkeypatch):
    monkeypatch.setattr(abz, "BAND_FROM", band_from)
    torch.manual_seed(size)
    x = torch.randn(2, 11, 6)
    kernel = torch.randn(3, size)
    weights = kernel.softmax(1).repeat_interleave(2, 0)
    half = size // 2
    padded = torch.nn.functional.pad(x, (0, 0, half, half))
    windows = padded.unfold(1, size, 1)  # (B, T, H, K)
    expected = (windows * weights).sum(-1)
    actual = abz.light_conv(x, kernel)
    assert_close(actual, expected, rtol=1e-5, atol=1e-5)


# Super-net


MIXER = abz.parse_formula("softmax(scale(Q @ P.T)) @ Q")
KERNEL = "encoder.layers.0.conv.kernel"
PROJECTIONS = "encoder.layers.1.attention.inputs.weight"


def test_the_best_candidate_writes_a_weight():
    """No other candidate writes it."""
    supernet = abz.SuperNet(TINY)
    weights = supernet.weights
    before = {name: value.clone() for name, value in weights.items()}
    states = []
    for value, arch in ((1.0, (9, MIXER)), (2.0, (3, MIXER))):
        model = abz.LanguageModel(arch, TINY, shared=True)
        state = model.state_dict()
        for each in state.values():
            each.fill_(value)
        states.append((arch, state))
    supernet.write_back(states)
    centre = weights[KERNEL][0, 28:37].tolist()
    assert centre == [1] * 3 + [2] * 3 + [1] * 3
    outside = before[KERNEL][:, :28]
    assert torch.equal(weights[KERNEL][:, :28], outside)
    rows = (weights[PROJECTIONS] == 2).all(1)
    expected = [True] * 16 + [False] * 32 + [True] * 16
    assert rows.tolist() == expected
    unused = re.compile(r"layers\.1\.conv|layers\.0\.attention|conv\.transform\.(?![39]$)")
    for name, value in before.items():
        kept = torch.equal(weights[name], value)
        assert kept == bool(unused.search(name))


def test_a_search_from_a_tuned_model_begins_the_same_in_every_process():
    """Independent of earlier draws. The model has no language-model heads, so they are random."""
    arch = (9, MIXER)
    tuned = abz.TaskModel(arch, TINY, 2, False).state_dict()
    source = abz.Pretrained("run", {"length": 32}, tuned, abz.arch_text(arch), 32, "")
    run = SimpleNamespace(ranks=ALONE)
    one, two = [
        abz.first_super_net(source, run, None, TINY).weights
        for _ in range(2)]
    assert_close(one, two, rtol=0, atol=0)


# Searcher


def line(number, text, score, diverged=False):
    return {"id": number, "arch": text, "score": score, "diverged": diverged}


def test_with_the_papers_alpha_operations_are_almost_equally_probable():
    """D36, as the docstring of the file says."""
    priority = abz.OperationPriority([], abz.Config())
    for number, operation in enumerate(abz.OPS):
        priority.samples[0, operation] = [0.77 + 0.06 * number / 9] * 20
    chances = priority.probabilities(abz.OPS, 0)
    assert (min(chances), max(chances)) == pytest.approx((0.097, 0.103), abs=0.0005)


def test_priorities_follow_scores_by_position():
    history = [
        line(0, "softmax(Q) + K | conv3", 0.9),
        line(1, "neg(Q) + K | conv65", 0.5),
        line(2, "softsign(Q) + K | conv3", 0.0, diverged=True),
    ]
    priority = abz.OperationPriority(history, abz.Config(alpha=0.0))
    first = dict(zip(abz.OPS, priority.probabilities(abz.OPS, 0)))
    assert first["softmax"] > first["neg"] > first["add"] > first["softsign"]
    # the softmax of the means. conv3 has 0.9 and 0, conv65 0.5, and the others the mean (D34)
    weights = [math.exp(score) for score in (0.45, *[1.4 / 3] * 5, 0.5)]
    expected = [weight / sum(weights) for weight in weights]
    assert priority.probabilities(abz.KERNELS, 1) == pytest.approx(expected)


def test_an_edit_is_legal_and_its_operation_stands_where_it_was_drawn():
    rng = random.Random(0)
    drawn = []

    class Priority:
        def probabilities(self, options, position, legal):
            drawn.append((position, rng.choice(sorted(legal))))
            return [option == drawn[-1][1] for option in options]

    longer = 0
    for parent in random_attentions():
        drawn.clear()
        child = abz.edit_attention(parent, rng, Priority())
        assert child != parent
        assert abz.searchable(child)
        path = [*abz.path_of(child)]
        for position, op in drawn:  # none for delete and rewire (D38)
            assert path[min(position, len(path) - 1)][0] == op
            assert position <= len(abz.path_of(parent))  # Sec. 3.2, D39
        longer += len(path) > len(abz.path_of(parent))
    assert longer > 12


def test_proposals_are_new_legal_reproducible_and_descend_from_the_best():
    cfg = replace(
        TINY,
        population=5,
        rounds=2,
        parents=2,
        children=2)
    rng = random.Random(0)
    history = []
    for index in range(5):
        text = abz.arch_text(abz.sample_arch(rng, TINY))
        history.append(line(index, text, index / 10, diverged=index == 4))
    proposals = abz.propose(history, 2, cfg)
    assert [parent for parent, _ in proposals] == [3, 3, 2, 2]  # 4 diverged
    texts = {abz.arch_text(arch) for _, arch in proposals}
    assert len(texts - {each["arch"] for each in history}) == 4
    assert proposals == abz.propose(history, 2, cfg)
    assert proposals != abz.propose(history, 2, replace(cfg, seed=1))


def test_half_of_the_children_change_the_kind_of_a_layer():
    """D40"""
    rng = random.Random(0)
    priority = abz.OperationPriority([], TINY)
    children = [abz.mutate((9, MIXER), rng, priority, TINY) for _ in range(100)]
    changed = [[*map(type, child)] != [int, tuple] for child in children]
    assert 30 < sum(changed) < 70


def test_a_score_is_the_mean_over_tasks_which_start_from_the_trained_candidate(monkeypatch):
    """A negative metric counts as 0 (D45)."""
    started = []

    def fine_tune(tuned, *_):
        started.append(tuned.pooler.bias[0].item())
        return {"diverged": None}

    monkeypatch.setattr(abz, "train_candidate", lambda model, *_: model.pooler.bias.data.fill_(7))
    monkeypatch.setattr(abz, "fine_tune", fine_tune)
    monkeypatch.setattr(abz, "predict_split", lambda *_: None)
    tasks = {name: SimpleNamespace(
        name=name, outputs=2, recipe=None, score=lambda *_, main=main: {"main": main})
        for name, main in {"RTE": 0.5, "CoLA": -0.5}.items()}
    data = SimpleNamespace(device=ALONE.device, tasks=tasks)
    supernet = abz.SuperNet(TINY)
    result = abz.score_candidate((9, 3), 0, supernet, data, TINY, Path("0"))
    assert result["scores"] == {"RTE": 0.5, "CoLA": 0.0}
    assert result["score"] == 0.25
    assert started == [7.0, 7.0]


def test_a_round_writes_its_best_candidate_back_last(monkeypatch):
    """Diverged candidates are not written."""
    written = []
    supernet = SimpleNamespace(write_back=lambda pairs: written.append([key for _, key in pairs]))
    run = SimpleNamespace(ranks=ALONE, folder=Path())
    rounds = []
    loop = SimpleNamespace(
        state={}, steps=2, after=lambda number, *_, **values: rounds.append(values["candidates"]))
    data = SimpleNamespace(tasks={"RTE": SimpleNamespace(majority_baseline=0.5)})
    monkeypatch.setattr(abz, "load_file", lambda path: int(path.stem))
    monkeypatch.setattr(abz, "score_candidates", lambda archs, *_: {
        key: {"score": key % 3, "diverged": key == 2} for key in archs})
    cfg = replace(TINY, population=4, rounds=1, parents=2, children=2)

    class Loop(SimpleNamespace):
        def __call__(self):
            return enumerate([None, None])

    history = abz.op_nas(supernet, Loop(**vars(loop)), run, data, cfg)
    assert written == [[3, 0, 1], [6, 7, 4, 5]]
    assert rounds == [4, 8]
    assert [line["id"] for line in read_jsonl("history.jsonl")] == [*range(len(history))]


# Objective


def test_next_sentence_pairs():
    """Half of the second segments are from elsewhere. Without a continuation there is no label."""
    segments = SimpleNamespace(
        segment_b=torch.full((400, 5), 20),
        length_b=torch.tensor([2] * 300 + [0] * 100),
        other=torch.full((400, 5), 30),
        length_other=torch.ones(400))
    generator = torch.Generator().manual_seed(0)
    second, length, labels = abz.draw_next_sentence(segments, generator)
    assert (labels[300:] == -100).all()
    elsewhere = labels[:300] == 1
    assert 120 < elsewhere.sum() < 180
    assert torch.equal(second[:300, 0], 20 + 10 * elsewhere)
    assert torch.equal(length[:300], 2.0 - 1.0 * elsewhere)


# The network as code


def global_names(code):
    """The names that a module reads at its top level or in a function of it."""
    names = {each.argval for each in dis.get_instructions(code) if "LOAD_" in each.opname
             and each.opname.endswith(("GLOBAL", "NAME"))}
    return names.union(*[global_names(part) for part in code.co_consts if hasattr(part, "co_code")])


def test_a_template_takes_a_value_for_each_mark():
    values = {"x": "FILL_y", "y": 2}
    assert fill_marks("FILL_x, FILL_y", values) == "FILL_y, 2"
    for text in ("FILL_x", "FILL_x, FILL_y, FILL_x", "FILL_x, FILL_y, FILL_z"):
        with pytest.raises(ValueError, match="the marks"):
            fill_marks(text, values)


@pytest.mark.parametrize("number", range(3))
def test_the_written_module_gives_our_outputs(number):
    """On padded batches. The module imports only torch."""
    cfg = replace(TINY, layers=12, embedding=8 * number)
    rng = random.Random(number)
    arch = abz.sample_arch(rng, cfg) if number else abz.parse_arch(abz.PUBLISHED)
    torch.manual_seed(number)
    model = abz.LanguageModel(arch, cfg).double().eval()
    path = Path("net.py")
    write_network(path, model, cfg, FakeTokenizer, None, cfg.length)
    source = path.read_text()
    assert not re.search("^(import|from) (?!math|unicodedata|types|torch)", source, re.MULTILINE)
    written = {}
    exec(source, written)
    read = global_names(compile(source, "net.py", "exec"))
    assert read <= {*written, *dir(builtins)}
    defined = {name for name in written if hasattr(written[name], "__code__")}
    assert defined - read == {"encode", "load"}
    load = written["load"]
    network = load(path.with_suffix(".pt")).double().eval()
    ids = torch.randint(50, (4, 11))
    lengths = torch.tensor([11, 7, 2, 1])
    mask = torch.arange(11) < lengths[:, None]
    real = mask.flatten().nonzero()[:, 0]
    batch = {"ids": ids, "token_type_ids": ids % 2, "lengths": lengths, "masked_positions": real}
    for ours, theirs in zip(model(batch), network(batch)):
        assert_close(theirs, ours, rtol=1e-6, atol=1e-6)
