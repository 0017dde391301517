"""autotinybert.py: the search space, extraction, one-shot training, latencies, Algorithm 2,
folders, and whole runs on tiny data."""
import functools
import json
import math
import random
import re
import shlex
import statistics
import sys
import types
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from conftest import filled
from small_runs import ALONE, RUNS, FakeTokenizer, call, next_command, pretended_latency

import autotinybert as atb
from common import cli
from common.cli import Command
from common.files import load_file, read_json, read_jsonl
from common.run import Run, keep_model
from common.tokenization import load_tokenizer
from data import hf_models
from data.inputs import Data

BASE = atb.Config()
TINY = atb.Config(
    largest="3-24-40-4-24",
    smallest="1-8-8-1-8",
    dropout=0.0,
    vocab_size=50,
    length=16,
    batch=8,
    accumulate=2,
)
OWN = Command("autotinybert", "further_train")
DISTILL = replace(TINY, setting="distill")
POSITIONS = torch.tensor([
    [1, 2],
    [0, 3],
    [0, 1],
])  # masked ones of tiny_batch
LABELS = torch.tensor([
    [5, 6],
    [7, 8],
    [9, -100],
])
close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def tiny_model(fit=0, seed=0):
    """A small SuperPLM whose biases and LayerNorms are random too."""
    torch.manual_seed(seed)
    model = atb.LanguageModel(atb.parse_arch(TINY.largest), 50, 0.0, fit)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(std=0.3)
    return model.eval()


def at_positions(states):
    """The states at POSITIONS."""
    return states.take_along_dim(POSITIONS[..., None], 1)


def tiny_batch():
    """With padding."""
    ids = torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(1))
    return {
        "ids": ids,
        "token_type_ids": (ids > 25).long(),
        "lengths": torch.tensor([9, 6, 2]),
        "masked_positions": POSITIONS,
        "labels": LABELS,
    }


# --- search space ---------

@pytest.mark.parametrize("setting", ["mlm", "distill"])
def test_the_space_is_within_the_superplm(setting):
    cfg = replace(BASE, setting=setting)
    space = atb.search_space(cfg)
    rng = random.Random(0)
    for arch in [atb.sample_arch(space, rng) for _ in range(1000)]:
        assert arch.qkv == 64 * arch.heads if setting == "mlm" else arch.heads == 12
        assert atb.why_outside(arch, atb.parse_arch(cfg.largest)) is None


@pytest.mark.parametrize("cfg", [TINY, DISTILL])
def test_mutation_stays_in_the_space_and_reaches_every_variable(cfg):
    space = atb.search_space(cfg)
    rng = random.Random(0)
    start = atb.sample_arch(space, rng)
    children = [atb.mutate(start, space, rng).genes for _ in range(300)]
    assert start.genes not in children
    for name, choices in space.items():
        assert {start.genes[name]} < {child[name] for child in children} <= {*choices}
        positions = [[*choices].index(child[name]) for child in [start.genes, *children]]
        reach = max(1, len(choices) // 10)  # D23
        assert max(abs(each - positions[0]) for each in positions) == reach


MILLIONS = """
12-768-3072-12-768 109.48
8-768-3072-12-768   81.13
5-564-1054-8-512    29.57
4-396-624-6-384     16.87
4-432-384-4-256     16.71
3-320-608-4-256     12.20
5-564-1024-12-528   29.59
5-324-600-12-324    14.22
5-280-512-12-276    11.76
4-256-480-12-192     9.79
"""


@pytest.mark.parametrize("row", MILLIONS.strip().split("\n"))
def test_parameter_counts(row):
    text, millions = row.split()
    count = sum(atb.count_parts(atb.parse_arch(text), 30522).values())
    assert f"{count / 1e6:.2f}" == millions


# --- extraction -----------

CASES = [
    ("ebl", atb.parse_arch("2-11-13-3-15")),
    ("ebl", atb.parse_arch("3-24-40-4-24")),
]
for base in (TINY, DISTILL):
    for each in atb.VARIANTS:
        drawn_from = replace(base, variant=each)
        arch, *_ = atb.draw_archs(drawn_from, 0, 0)
        CASES.append((each, arch))


@pytest.mark.parametrize("variant, arch", CASES, ids=str)
def test_extracted_models_equal_sub_models(variant, arch):
    """Logits, states and scores are bit-equal."""
    batch = tiny_batch()
    alone = atb.extract(tiny_model(), arch, variant)
    assert torch.equal(alone(batch), tiny_model()(batch, arch))
    student = atb.extract(tiny_model(fit=20), arch, variant).student(batch)
    assert all(map(torch.equal, student, tiny_model(fit=20).student(batch, arch)))
    count = sum(value.numel() for value in alone.encoder.parameters())
    assert count == sum(atb.count_parts(arch, 50).values())


def test_the_last_layer_only_at_masked_positions():
    batch = tiny_batch()
    encoder = tiny_model().encoder
    close(encoder(batch, encoder.arch, POSITIONS), at_positions(encoder(batch)))


# --- one-shot training ----

def test_weight_decay_is_berts():
    """None on biases and LayerNorms. The pooler, which the loss does not read, is not trained."""
    model = tiny_model()
    names = {value: name for name, value in model.named_parameters() if "pooler" not in name}
    decayed, plain = atb.make_optimizer(model, 0.1).param_groups
    assert decayed["weight_decay"] == 0.1
    assert plain["weight_decay"] == 0.0
    for group in (decayed, plain):
        for value in group["params"]:
            name = names.pop(value)
            assert ("bias" in name or "norm" in name) == (group is plain)
    assert not names


def test_a_step_is_algorithm_1(monkeypatch):
    """The gradient is the average over M sub-models of the mean over the labels of N micro-batches,
    clipped. Unused weights have zeros, not None, so that they decay (D12)."""
    archs = list(map(atb.parse_arch, ("2-12-16-2-12", "1-8-8-1-6", "2-16-40-4-24")))
    monkeypatch.setattr(atb, "draw_archs", lambda cfg, step, micro: archs)
    batch = tiny_batch()
    other = {**batch, "ids": batch["ids"].flip(0), "labels": LABELS.where(LABELS > 6, -100)}
    mirror = tiny_model()
    losses = [
        torch.nn.functional.cross_entropy(
            mirror(each, arch).flatten(0, 1), each["labels"].flatten(), reduction="sum")
        for each in (batch, other)
        for arch in archs
    ]
    expected_loss = sum(losses) / (3 * (5 + 3))
    expected_loss.backward()
    expected_norm = torch.nn.utils.clip_grad_norm_(mirror.parameters(), atb.CLIP)
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    numbers = atb.train_step(0, model, optimizer, [batch, other], TINY, ALONE)
    close(numbers["loss"], expected_loss.detach())
    close(numbers["norm"], expected_norm)
    for ours, theirs in zip(model.parameters(), mirror.parameters()):
        close(ours.grad, torch.zeros_like(ours) if theirs.grad is None else theirs.grad)


# --- objective ------------

def test_distillation_compares_scores_and_states_of_real_tokens():
    batch = tiny_batch()
    del batch["labels"]
    batch = atb.add_targets(batch, tiny_model(seed=3).encoder, DISTILL)
    model = tiny_model(fit=24)
    arch = atb.parse_arch("2-12-16-4-8")
    student = model.student(batch, arch)
    targets = batch["states"], batch["scores"]
    states, scores = [(ours - theirs) ** 2 for ours, theirs in zip(student, targets)]
    lengths = batch["lengths"].tolist()
    real = [states[row, :length].flatten() for row, length in enumerate(lengths)]
    pairs = [scores[row, :, :length, :length].flatten() for row, length in enumerate(lengths)]
    expected = torch.stack([torch.cat(real).mean(), torch.cat(pairs).mean()])
    losses = atb.summed_losses(model, batch, DISTILL, arch)
    close(losses / atb.count_labels(batch), expected)


# --- latency and search ---

def predict(archs):
    return list(map(pretended_latency, archs))


def test_predictors_learn_a_machine():
    space = atb.search_space(BASE)
    rng = random.Random(0)
    archs = [atb.sample_arch(space, rng) for _ in range(300)]
    unseen = archs[240:]
    learnt = atb.Predictor(128).fit(archs[:240], predict(archs[:240]))
    assert learnt(unseen) == pytest.approx(predict(unseen), rel=0.05)


@pytest.mark.parametrize("setting", ["mlm", "distill"])
@pytest.mark.parametrize("strategy", ["evolution", "random"])
def test_algorithm_2(setting, strategy):
    """With simulated latencies and scores."""
    cfg = replace(BASE, setting=setting, strategy=strategy)
    history = []
    for number in range(4):
        for parent, arch in atb.propose(history, number, cfg, predict, 30.0):
            assert pretended_latency(arch) <= 30.0
            score = -abs(arch.hidden - 400)
            history.append({
                "id": len(history),
                "round": number,
                "parent": parent,
                "arch": str(arch),
                "score": score,
                "diverged": False,
            })
    assert len({line["arch"] for line in history}) == 100  # all new
    mutants = [line for line in history if line["parent"] is not None]
    assert all(history[line["parent"]]["round"] == line["round"] - 1 for line in mutants)
    expected = range(20, 55) if strategy == "evolution" else [0]  # p_m = p_e: about half of 75
    assert len(mutants) in expected


def test_the_fitness_is_the_mean_over_the_tasks(monkeypatch):
    """D26"""
    monkeypatch.setattr(atb, "proxy_score", lambda model, name, *_: (float(name), 0.1))
    result = atb.judge(None, ["0.5", "1.0"], None, None)
    assert result["score"] == 0.75
    assert result["standard_error"] == pytest.approx(0.1 / math.sqrt(2))


def test_a_latency_is_the_median_of_three_passes(monkeypatch):
    """After one that warms up."""
    ticks = iter([0.0, 0.090, 1.0, 1.002, 2.0, 2.003, 3.0, 3.009])
    monkeypatch.setattr(atb, "time", types.SimpleNamespace(
        process_time=ticks.__next__, perf_counter=None))
    cfg = replace(TINY, latency_threads=1, latency_length=8)
    assert atb.time_model(atb.parse_arch("1-8-8-1-8"), cfg) == pytest.approx(3)


def test_fast_rule():
    candidates = atb.fast_candidates(atb.search_space(BASE), predict, 30.0)
    assert len({arch.layers for arch in candidates}) == len(candidates) >= 5
    for arch in candidates:
        assert 25.0 < pretended_latency(arch) <= 28.5  # D24


def test_fast_without_shapes_is_told_before_anything_is_measured():
    """No limit would help."""
    narrow = "--largest 2-96-96-6-96 --smallest 1-96-96-1-48"  # d^f = d^m
    with pytest.raises(atb.UserError, match="--strategy fast: no shape"):
        run_here(f"--search --strategy fast {narrow} --out run")
    assert not Path("run").exists()


def measured(load, monkeypatch, **settings):
    """(cfg, run, Latency) on a machine that is slower by the factor load()."""
    timed = lambda arch, cfg: pretended_latency(arch) * load()  # noqa: E731
    monkeypatch.setattr(atb, "time_model", timed)
    cfg = replace(TINY, reference="6-128-512-4-128", speedup=8, out="run", **settings)
    run = Run(cfg, replace(OWN, action="latency"), ALONE, Data(ALONE.device))
    lat = atb.learn_latency(atb.open_latencies(cfg, run), cfg, ALONE)
    atb.check_limit(lat, cfg, run)
    return cfg, run, lat


def test_a_process_that_comes_and_goes_changes_no_latency(monkeypatch):
    """It slows each of three phases of the measurement by another factor."""
    loads = iter([1.0] * 60 + [1.8] * 80 + [1.2] * 1000)
    with pytest.warns(UserWarning, match="the machine is busy"):
        cfg, _, lat = measured(lambda: next(loads), monkeypatch, latency_archs=40)
    timings = read_json("run/latency.json")["times"]
    reference = pretended_latency(atb.parse_arch(cfg.reference))
    for arch, each in timings.items():
        ratio = pretended_latency(atb.parse_arch(arch)) / reference
        assert statistics.median(atb.ratios_of(each)) == pytest.approx(ratio)
    assert len(timings) == 41
    assert lat.reference in (reference * 1.2, reference * 1.0, reference * 1.8)


def test_finalists_keep_the_limit_that_is_printed(monkeypatch, capsys):
    rng = random.Random(0)
    load = lambda: rng.uniform(0.8, 1.25)  # noqa: E731
    cfg, run, lat = measured(load, monkeypatch, winners=60, latency_archs=40)
    limit = float(re.search(r"--speedup 8 is ([\d.]+) ms", capsys.readouterr().out)[1])
    archs = {str(atb.sample_arch(atb.search_space(cfg), rng)) for _ in range(60)}
    lines = [
        {"arch": arch, "round": 0, "score": 0.0, "diverged": False} for arch in sorted(archs)]
    table = run.once("finalists.json", atb.confirm, lines, lat, cfg, run)
    finalists = table["searched"]
    assert table["random sample"] == finalists[:1]  # one measurement for one shape
    assert 0 < len(finalists) < len(lines)
    assert limit == pytest.approx(lat.limit, rel=1e-3)
    for line in finalists:
        assert line["milliseconds"] <= line["limit_milliseconds"] == lat.limit
        assert line["speedup"] == pytest.approx(lat.reference / line["milliseconds"])


def test_a_doubtful_predictor_is_told(monkeypatch, capsys):
    rng = random.Random(0)
    measured(lambda: rng.uniform(0.3, 3), monkeypatch, latency_archs=6, latency_rounds=1)
    assert re.search("wrong by [0-9]+%.* raise --latency_archs", capsys.readouterr().out)


# --- folders --------------

@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A WordPiece tokenizer of 50 tokens."""
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    path.write_text("\n".join([*special, *(f"w{number}" for number in range(45))]))
    return load_tokenizer(path)


def run_here(flags):
    assert atb.main(shlex.split(flags)) == 0


def exported(folder, model, words):
    """The --export folder of a training or fine-tuning."""
    tuned = isinstance(model, atb.TaskModel)
    task = "SQuAD1.1" if tuned and model.spans else "SST-2"
    arch = str(model.encoder.arch)
    settings = replace(TINY, arch=arch, dropout=0.3)
    kind = Command("autotinybert", "finetune" if tuned else "further_train")
    keep_model(folder / "kept", kind, settings, words, task=task if tuned else "", model=model)
    run_here(f"--export {folder}/exported --init {folder}/kept")
    return folder / "exported"


def opened(folder):
    """start_model of a folder, of 50 tokens."""
    source = atb.read_pretrained(folder, TINY, OWN)
    return atb.start_model(source, "", TINY)[0]


def test_models_come_back_bit_for_bit_from_both_layouts(words):
    model = atb.extract(tiny_model(), atb.parse_arch("2-12-16-3-18"))
    exported(Path(), model, words)
    for folder in ("kept", "exported"):
        again = opened(folder)
        torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    config = read_json("exported/config.json")
    assert config["hidden_dropout_prob"] == 0.3  # the training's, not the preset's


def test_a_search_that_was_stopped_has_no_model_yet(words):
    model = tiny_model()
    own = replace(OWN, action="superplm")
    keep_model(Path("superplm"), own, TINY, words, model=model)
    export = "--export exported --init ."
    with pytest.raises(atb.UserError, match="not finished .* --arch, or name .*superplm"):
        run_here(export)
    run_here(f"{export} --arch 1-8-8-1-6")
    assert read_json("exported/config.json")["qkv_size"] == 6


def inputs_of_both():
    """tiny_batch, the mask of its real tokens, and the same inputs for transformers."""
    batch = tiny_batch()
    real = torch.arange(9) < batch["lengths"][:, None]
    theirs = {
        "input_ids": batch["ids"],
        "attention_mask": real.long(),
        "token_type_ids": batch["token_type_ids"],
    }
    return batch, real, theirs


@pytest.mark.peers
@pytest.mark.parametrize("kind, width, tokens", [
    ("bert", 24, 50),
    ("bert", 24, 56),
    ("electra", 24, 50),
    ("electra", 16, 56),
])
def test_hugging_face_models_are_read(kind, width, tokens, words):
    """The states of transformers' BERT and ELECTRA, and a BERT's logits. An ELECTRA with narrower
    embeddings is only a teacher. Tokens that the vocabulary of 50 lacks are not predicted."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": tokens,
        "embedding_size": width,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
    }
    config = transformers.AutoConfig.for_model(kind, **sizes)
    theirs = transformers.AutoModelForPreTraining.from_config(config).eval()
    theirs.save_pretrained(".")
    words.save(Path())
    batch, real, inputs = inputs_of_both()
    expected = theirs(**inputs, output_hidden_states=True)
    cfg = replace(TINY, teacher=".")
    states = atb.load_teacher(cfg, OWN, ALONE, words)(batch)
    close(states[real], expected.hidden_states[-1][real])
    with pytest.raises(atb.UserError, match="32 positions"):
        atb.load_teacher(replace(cfg, length=33), OWN, ALONE, words)
    if kind == "bert":
        logits = opened(".").eval()(batch)
        close(logits, at_positions(expected.prediction_logits)[..., :50])


@pytest.mark.peers
@pytest.mark.parametrize(
    "kind", ["", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("text", ["2-24-40-4-24", "2-20-16-3-18"])  # the second needs own code
def test_exports_open_with_auto_model(kind, text, words):
    """All four heads give the same states and logits as here."""
    transformers = pytest.importorskip("transformers")
    model = atb.extract(tiny_model(), atb.parse_arch(text)).eval()
    batch, real, inputs = inputs_of_both()
    spans = kind == "ForQuestionAnswering"
    if kind in ("", "ForMaskedLM"):
        everywhere = {**batch, "masked_positions": torch.arange(9).expand(3, 9)}
        expected = model(everywhere) if kind else model.encoder(batch)
    else:
        model = atb.TaskModel(model.encoder, 2, spans).eval()
        expected = model(batch)
    auto = getattr(transformers, f"AutoModel{kind}")
    folder = exported(Path(), model, words)
    theirs = auto.from_pretrained(folder, trust_remote_code=True).eval()(**inputs)
    outputs = torch.stack(theirs[:2], -1) if spans else theirs[0]
    where = real if expected.dim() == 3 else ...
    close(outputs[where], expected[where])


@pytest.mark.peers
def test_an_export_measures_the_folder_like_the_encoder(finished, works, monkeypatch, capsys):
    """On the tokens and threads of the search, or of flags. What is not installed is told."""
    pytest.importorskip("transformers")
    timed = []

    def passes(run, cfg):
        output = run()
        exported = not isinstance(output, tuple)
        timed.append((exported, cfg.latency_threads, output[0].shape[:-1]))
        return 2.5 if exported else 1.25

    monkeypatch.setattr(atb, "time_passes", passes)
    search = finished("autotinybert search")
    for flags, threads, tokens in (("", 1, 16), ("--latency_length 24 --latency_threads 2", 2, 24)):
        timed.clear()
        works(f"autotinybert --export hf{tokens} --init {{search}} {flags}", search=search)
        assert timed[-2:] == [(False, threads, (1, tokens)), (True, threads, (1, tokens))]
        *_, line, limit = capsys.readouterr().out.splitlines()
        assert limit.startswith("the limit of its search: ")
        assert line == (
            "latency: as in a search 1.25 ms; the exported folder with transformers 2.5 ms (all "
            f"states, one sequence of {tokens} tokens, no padding, cpu, {threads} thread(s))")
    monkeypatch.setitem(sys.modules, "transformers", None)
    works("autotinybert --export without --init {search}", search=search)
    assert "transformers: not measured (pip install transformers)" in capsys.readouterr().out


# --- whole runs -----------

@pytest.fixture
def flags(ready, monkeypatch):
    """The flags of `whole`, with simulated latencies."""
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    return filled(RUNS["autotinybert search"], **ready).removeprefix("autotinybert --search ")


@pytest.fixture
def whole(finished):
    """The folder of a search."""
    return finished("autotinybert search")


def test_the_history_has_the_result_of_each_candidate(whole):
    history = read_jsonl(whole / "history.jsonl")
    results = [read_json(whole / "candidates" / f"{line['arch']}.json") for line in history]
    assert len({result["score"] for result in results}) > 1
    for line, result in zip(history, results):
        assert line.items() >= result.items()


def test_the_result_has_the_baselines_of_its_tasks(whole, capsys):
    """A score that is not above them is told, with what helps."""
    best = read_json(whole / "best.json")
    assert best["baselines"]["reviews"].keys() == {"majority", "bag of words"}
    run = types.SimpleNamespace(
        ranks=ALONE, folder=whole, result=best, print_next=lambda *words, **more: None)
    for score, weak in ((0.5, True), (0.51, False)):
        best["scores"] = {"reviews": score}
        best["baselines"] = {"reviews": {"majority": 0.25, "bag of words": 0.5}}
        atb.print_best(run, TINY)
        printed = capsys.readouterr().out
        assert "baselines of reviews: majority 25.00, bag of words 50.00" in printed
        assert ("reviews: no better than its baselines; start from a released" in printed) == weak


def test_a_comparison_that_scored_higher_is_named_with_its_folder(whole, capsys):
    best = read_json(whole / "best.json")
    run = types.SimpleNamespace(
        ranks=ALONE, folder=whole, result=best, print_next=lambda *words, **more: None)
    rule = best["table"]["BERT's rule"]
    for score, higher in ((best["score"] + 0.01, True), (best["score"], False)):
        rule["score"] = score
        atb.print_best(run, TINY)
        folder = whole / "tuned" / rule["arch"]
        assert (f"BERT's rule scored higher: {folder} has it" in capsys.readouterr().out) == higher
    assert (folder / "reviews/config.json").exists()


def test_masked_words_stand_next_to_the_frequencies_of_words(monkeypatch):
    """By hand: three of four tokens are the first of two words, with one more of each."""
    corpus = types.SimpleNamespace(tokens=torch.tensor([0, 0, 0, 1]).numpy())
    data = types.SimpleNamespace(
        train=corpus, tokenizer=types.SimpleNamespace(vocab_size=2), device=ALONE.device)
    batch = {"labels": torch.tensor([[0, 1, -100]])}
    monkeypatch.setattr(atb, "held_out_batches", lambda *_: [batch])
    loss = -(math.log(4 / 6) + math.log(2 / 6)) / 2
    score = atb.frequency_baseline(data, TINY)
    assert score == pytest.approx(1 - loss / math.log(2), abs=1e-6)


def part(action, flags, without=()):
    """The flags that an action reads."""
    kept = []
    for words in re.findall(r"--\w+(?: [^-]\S*)*", flags):
        name = words.split()[0].removeprefix("--")
        group = cli.group_of(atb.Config, name)
        if group in atb.ACTIONS[action][2] and name not in without:
            kept.append(words)
    return " ".join(kept)


def test_phases_alone_are_the_whole_search(flags, whole, monkeypatch, capsys):
    """The SuperPLM of --superplm, and the latencies of --latency. Both print the next command."""
    assert not call(f"autotinybert --latency {part('latency', flags)} --out timed", monkeypatch)
    command = next_command(capsys.readouterr().out)
    assert "--search --latencies timed" in command and "--latency_length 16" in command
    assert read_json("timed/done.json") == read_json("timed/latency.json")
    assert not call(f"autotinybert --superplm {part('superplm', flags)} --out super", monkeypatch)
    command = next_command(capsys.readouterr().out)
    assert "--search --init super" in command and "--length 24" in command
    assert "--steps" not in command
    assert not call(f"{command} {flags} --latencies timed --out run", monkeypatch)
    assert not Path("run/superplm").exists()
    best, expected = [read_json(f"{run}/best.json") for run in ("run", whole)]
    assert best == expected


def test_another_search_starts_from_a_finished_ones_superplm(flags, whole, monkeypatch, capsys):
    """It also uses the latencies, if measured on the same machine."""
    limit = 0.5 * read_json(whole / "best.json")["reference_milliseconds"] / 1.5
    flags = flags.replace("--speedup 2", "")
    more = f"--init {whole} --latency_limit {limit} --strategy fast"
    run_here(f"--search {flags} {more} --out run")
    printed = capsys.readouterr().out
    assert f"{whole / 'latency.json'}: its 25 latencies are used" in printed
    assert f"limit of --latency_limit {limit:g} is" in printed
    assert "timed: all states, one sequence of 16 tokens, no padding" in printed
    assert "baselines of reviews: majority" in printed
    best = read_json("run/best.json")
    assert best["milliseconds"] <= limit == best["limit_milliseconds"]
    expected = pretended_latency(atb.parse_arch(best["arch"]))
    assert best["milliseconds"] == pytest.approx(expected)
    assert not Path("run/superplm").exists()
    for kind in ("searched", "BERT's rule"):
        line = re.search(rf"^{kind}\b.*", printed, re.MULTILINE)[0]
        assert best["table"][kind]["arch"] in line
        assert f"{best['table'][kind]['loss']:.4f}" in line
    rule = atb.parse_arch(best["table"]["BERT's rule"]["arch"])
    assert (rule.qkv, rule.ffn) == (rule.hidden, 4 * rule.hidden)
    assert "--export" in next_command(printed)


def test_latencies_of_another_machine_are_not_used(flags, whole, monkeypatch, capsys):
    """Those of --init's run are measured again. Those of --latencies are an error."""
    monkeypatch.setattr(atb, "processor", lambda: "abacus")
    with pytest.raises(atb.UserError, match="another processor .*abacus here.* leave --latencies"):
        run_here(f"--search {flags} --latencies {whole} --out run")
    with pytest.raises(atb.UserError, match="finds nothing that is that fast"):
        run_here(f"--search {flags} --init {whole} --speedup 1000 --out run")
    assert "another processor" in capsys.readouterr().out
    assert read_json("run/latency.json")["machine"]["processor"] == "abacus"
    with pytest.raises(atb.UserError, match="none/latency.json: no such file"):
        run_here(f"--search {flags} --latencies none --out other")


@pytest.mark.parametrize("kind", ["SuperPLM", "fixed model"])
def test_a_search_uses_the_superplm_that_was_trained_from_init(
        kind, ready, flags, whole, monkeypatch, capsys):
    """Not --init's own weights. A SuperPLM keeps its search space."""
    init = whole / "superplm" if kind == "SuperPLM" else ready["autotinybert"]
    flags = part("search", flags, without=("largest", "smallest"))
    shapes = "--largest 1-16-16-2-16 --smallest 1-8-8-1-8" if kind == "fixed model" else ""
    assert not call(
        f"autotinybert --superplm {part('superplm', flags)} {shapes} --init {init} --out super",
        monkeypatch)
    assert read_json("super/done.json")["arch"] == ("1-16-16-2-16" if shapes else "2-24-40-4-24")
    command = next_command(capsys.readouterr().out)
    searched = []
    evolve = atb.evolve
    monkeypatch.setattr(
        atb, "evolve", lambda model, *rest: searched.append(model) or evolve(model, *rest))
    assert not call(f"{command} {flags} --out run", monkeypatch)
    expected = load_file("super/checkpoint.pt")["owned"]["model"]
    torch.testing.assert_close(searched[0].state_dict(), expected, rtol=0, atol=0)


def test_a_part_of_a_fixed_model_is_told(words):
    model = tiny_model()
    keep_model(Path("kept"), OWN, replace(TINY, arch=TINY.largest), words, model=model)
    with pytest.warns(UserWarning, match="not a SuperPLM, so its part 1-8-8-1-6"):
        run_here("--export exported --init kept --arch 1-8-8-1-6")


def test_a_search_in_which_all_diverge_names_a_way_that_keeps_the_superplm(flags):
    words = "all candidates diverged.*--init run/superplm and a new --out"
    with pytest.raises(atb.UserError, match=words):
        run_here(f"--search {flags} --finetune_lr 1e30 --out run")


def test_winners_that_all_diverged_are_told():
    result = {"score": -1.0, "scores": {}, "diverged": True}
    with pytest.raises(atb.UserError, match="all winners diverged; lower --lr"):
        run = types.SimpleNamespace(folder=Path("run"))
        atb.choose_best(
            {"searched": [{"arch": "1-8-8-1-8"}]}, {"1-8-8-1-8": result}, None, None, TINY, run)


def test_a_missing_architecture_file_says_what_to_give():
    with pytest.raises(atb.UserError, match="none.json: no such file; name a best.json"):
        atb.read_arch("none.json", "--arch")


def test_the_front_is_what_no_faster_shape_surpasses():
    points = [(3, 0.5), (1, 0.2), (2, 0.6), (4, 0.7), (2, 0.1)]
    history = [
        {"arch": f"shape-{ms}-{score}", "predicted_ms": ms, "score": score}
        for ms, score in points]
    text, drawing = atb.pareto(history)
    front = [line.split()[-1] for line in text.split("\n") if line[:1] == "*"]
    assert front == ["shape-1-0.2", "shape-2-0.6", "shape-4-0.7"]
    circles = [each for each in ElementTree.fromstring(drawing) if each.tag.endswith("circle")]
    assert len(circles) == len(points)
    assert [each[0].text.split(":")[0] for each in circles if each.get("class") == "best"] == front
    assert atb.pareto([history[0]])[1].count("<circle") == 1


def test_the_table_says_of_how_many_shapes_a_row_is_the_best_and_which_kind_has_none():
    best = {"of": 3, "arch": "1-32-32-1-48", "milliseconds": 1.5, "parameters": 1000,
            "loss": 4.0, "scores": {"MNLI": 0.5}, "score": 0.5, "standard_error": 0.01}
    near = {"of": 1, "arch": "1-8-8-1-8", "score": 0.472}
    far = {"of": 1, "arch": "1-8-8-1-8", "score": 0.471}
    table = {"searched": best, "BERT's rule": {"of": 0}, "random": best | {"of": 1},
             "near": best | near, "far": best | far}
    _, searched, rule, *rows, last = atb.comparison(table).split("\n")
    assert searched.startswith("searched, best of 3 ")
    assert rule.split(maxsplit=2)[2] == "none drawn, or none within the limit"
    assert rows[0].split()[1] == "1-32-32-1-48"
    assert [row.endswith("(tie)") for row in rows] == [False, True, False]
    assert last.startswith("scores that differ by less than 2.83 are a tie")


def test_a_limit_that_a_strategy_cannot_meet_is_told_before_the_training(flags, monkeypatch):
    """In a space where only a few of the smallest architectures meet it. The latencies serve
    another search."""
    flags = flags.replace("--speedup 2", "--largest 8-256-512-12-384")
    for strategy in ("evolution", "random", "fast"):
        out = Path(strategy)
        more = f"{flags} --strategy {strategy}"
        with pytest.raises(atb.UserError, match=f"{strategy} finds nothing") as error:
            run_here(f"--search {more} --speedup 24 --out {out}")
        assert not (out / "superplm").exists()
    for action in ("--search", "--finetune SST-2"):
        with pytest.raises(atb.UserError, match="no model yet; first run its command again"):
            run_here(f"{action} --init {out} --out other")
    works = re.search(r"--latency_limit ([\d.]+) with", str(error.value))[1]
    monkeypatch.setattr(atb, "open_superplm", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_here(f"--search {more} --latency_limit {works} --latencies {out} --out other")


def test_latencies_of_two_processors_are_named(monkeypatch):
    """A run that goes on on another machine keeps its latencies."""
    cfg, run, _ = measured(lambda: 1.0, monkeypatch, latency_archs=20)
    first = read_json("run/latency.json")["machine"]["processor"]
    for path in ("run/latency.json", "run/latencies/4-2.json"):
        Path(path).unlink()
    monkeypatch.setattr(atb, "processor", lambda: "abacus")
    latencies = atb.open_latencies(cfg, run)
    assert {*latencies["machine"]["processor"].split(" and ")} == {first, "abacus"}
    with pytest.warns(UserWarning, match="the winners are measured on abacus"):
        atb.learn_latency(latencies, cfg, ALONE)


def test_zero_steps_are_the_papers_passes_over_the_corpus():
    """Sec. 4.1: 5, and 10 from scratch."""
    text = types.SimpleNamespace(slots=lambda length: 16 * length)  # 26 steps a pass
    data = Data(ALONE.device, FakeTokenizer, text)
    scratch = replace(TINY, arch="1-8-8-1-8")
    assert atb.complete(TINY, data).steps == 130
    assert atb.complete(TINY, data).further_steps == 130
    assert atb.complete(scratch, data).further_steps == 260


def test_a_fine_tuning_scores_tasks_and_masked_words(ready, flags, whole):
    """For a part of a finished search's SuperPLM."""
    run_here(f"--finetune SST-2,MLM-saved {part('finetune', flags)} --glue {ready['glue']} "
             f"--init {whole} --arch 1-8-8-1-6 --out run")
    result = read_json("run/done.json")
    mlm = result["mlm"]
    assert mlm["main"] == pytest.approx(1 - mlm["loss"] / math.log(300))


@pytest.mark.parametrize("flags, arch", [("", "1-16-16-2-16"), ("--arch 1-8-8-1-6", "1-8-8-1-6")])
def test_a_description_of_a_model_has_its_vocabulary_and_positions(flags, arch, works, capsys):
    """Of a run or a Hugging Face folder, though it is no SuperPLM."""
    works("autotinybert --export hf --init {autotinybert}")
    weights = hf_models.read_weights("hf")
    table = "bert.embeddings.position_embeddings.weight"
    weights[table] = weights[table][:32]
    hf_models.write_weights("hf/model.safetensors", weights)
    tokens = read_json("hf/config.json")["vocab_size"]
    hidden = atb.parse_arch(arch).hidden
    for init, positions in (("hf", 32), ("{autotinybert}", 512)):
        capsys.readouterr()
        works(f"autotinybert --describe --init {init} {flags}")
        described = json.loads(capsys.readouterr().out)
        assert described["arch"] == arch
        assert described["parts"]["token_embedding"] == tokens * hidden
        assert described["parts"]["position_embedding"] == positions * hidden
