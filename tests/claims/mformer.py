"""Studies of mFormer: python -m tests.claims.mformer NAME (see study.py)"""
import json
import statistics

import numpy as np
import torch

import mformer as mf
from tests.claims.pictures import dots, lines
from tests.claims.study import (
    Claim, counted, in_turns, main, read, read_by, run_all, run_name, study)

PROGRAM = "mformer.py"


def command(action, task, *flags):
    """The command of an action, with the flags that it reads."""
    groups = mf.actions_of(task)[action][2]
    return [PROGRAM, f"--{action}", *read_by(mf.Config, groups, ["--task", task, *flags])]


def train_and_score(options, task, flags, archs, metric):
    """{arm: [test score of each seed]} of {arm: architecture}, trained from scratch."""
    training = {
        run_name(arm, seed): command(
            "train", task, *flags, "--arch", arch, *options.flags, "--seed", seed)
        for arm, arch in archs.items() for seed in range(options.seeds)
    }
    scoring = {
        f"{name}-score": command("evaluate", task, *flags, "--init", folder, *options.flags)
        for name, folder in run_all(options, training).items()
    }
    folders = run_all(options, scoring, "scores.json").values()
    scores = [read(folder / "scores.json")[metric] for folder in folders]
    return {arm: scores[row * options.seeds:(row + 1) * options.seeds]
            for row, arm in enumerate(archs)}


PERIODS = (2, 3, 4, 5)


def striped_images(count, seed):
    """(count, 3073) uint8 in CIFAR-10's layout: eight rows of eight black or white squares. Each
    row repeats after 2, 3, 4 or 5 squares, which is the class, so that exact positions matter."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(PERIODS), size=count)
    squares = rng.integers(2, size=(count, 8, 8))
    columns = np.arange(8) % np.take(PERIODS, labels)[:, None]  # (count, 8)
    rows = np.take_along_axis(squares, columns[:, None], 2)
    plane = 255 * rows.repeat(4, 1).repeat(4, 2).reshape(count, -1)
    return np.concatenate([labels[:, None], plane, plane, plane], 1).astype(np.uint8)


def make_stripes(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("data_batch_1", 10_000, 0), ("test_batch", 2_000, 1)):
        striped_images(count, seed).tofile(folder / f"{name}.bin")
    return folder.resolve()


MIXTURE = "--preset small --cost flops --batch 32 --steps 1600 --augment 1 0 0 --held_out 0".split()
SPACE = "--layers 3 --hidden 64 --ffn 64 96 128 --heads 4 --latency_limit 0.016".split()
DATA = ("stripes", "demo images")


def found_networks(options, flags, data):
    """{arm: architecture}: the result of a search of each space under one limit, and the best
    random sample of the mixed space."""
    commands = {
        space: command("search", "cifar10", *flags, *SPACE, "--space", space, "--samples", 100,
                       "--held_out", 250, "--seed", 0, *options.flags)
        for space in ("mixed", "softmax", "linear")
    }
    names = {run_name(data, "search", space): words for space, words in commands.items()}
    folders = dict(zip(commands, run_all(options, names).values()))
    archs = {f"{data}: {space} search": read(folder / "best.json")["arch"]
             for space, folder in folders.items()}
    limit = read(folders["mixed"] / "best.json")["latency_limit"]
    history = (folders["mixed"] / "history.jsonl").read_text().splitlines()
    samples = [line for line in map(json.loads, history) if line["round"] == "sample"]
    allowed = [line for line in samples if line["scores"]["latency"] <= limit]
    archs[f"{data}: random sample"] = max(allowed, key=lambda line: line["score"])["arch"]
    return archs


@study(
    "2 core-hours",
    Claim("mixture-linear", "A mixture is better than linear attention alone at equal FLOPs",
          "CIFAR-10: 93.59% against 88.4% (Table 5)",
          [(f"{data}: mixed search", f"{data}: linear search") for data in DATA]),
    picture=dots("test accuracy"))
def mixture(options):
    """Three layers of width 64, images of 65 tokens, a limit of 0.016 GFLOPs, 1,600 steps of 32
    images for super-nets and networks, 100 samples per search. The class of the stripes is the
    period at which rows repeat, so that exact positions matter."""
    sources = {
        "stripes": ["--cifar10", make_stripes(options.runs / "stripes")],
        "demo images": [],
    }
    values = {}
    networks = {}
    for data, source in sources.items():
        flags = [*MIXTURE, *source]
        archs = found_networks(options, flags, data)
        values.update(train_and_score(options, "cifar10", flags, archs, "accuracy"))
        networks.update(archs)
    return {"values": values, "networks": networks}


SENTENCES = ["--preset", "small", "--steps", 1500]
TRANSLATOR = (
    "layers=3 hidden=64 ffn=128,128,128 heads=4,4,4 types={} decoder_layers=2 decoder_hidden=64 "
    "decoder_ffn=128,128 decoder_heads=4,4 decoder_types=softmax,softmax cross_heads=4,4 "
    "connect=1,1 cross_types=softmax,softmax")


@study(
    "0.6 core-hours",
    Claim("translation-linear", "A linear encoder collapses in translation, to half the BLEU",
          "3.05 against 28.34 BLEU (Table 5)", [("half of softmax", "linear encoder")]),
    Claim("translation-mixture", "A mixture is better than a linear encoder in translation",
          "25.79 against 3.53 BLEU (Table 5)", [("mixture", "linear encoder")]),
    picture=dots("BLEU"))
def translation(options):
    """Three encoder and two decoder layers of width 64, 1,500 steps of 1,024 tokens, four beams. In
    the mixture the second encoder layer is linear. All decoders are softmax. The default text is
    demo sentences."""
    types = {
        "softmax": "softmax,softmax,softmax",
        "mixture": "softmax,linear,softmax",
        "linear encoder": "linear,linear,linear",
    }
    archs = {arm: TRANSLATOR.format(each) for arm, each in types.items()}
    values = train_and_score(options, "wmt14", SENTENCES, archs, "bleu")
    values["half of softmax"] = [bleu / 2 for bleu in values["softmax"]]
    return {"values": values}


LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def attention_step(kind, tokens, device):
    """A function: one attention, 8 heads of 64, one sequence, forward and backward."""
    shape = (1, 8, tokens, 64)
    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    positions = torch.arange(tokens, device=device)
    cosines = mf.cosines_at(positions, torch.tensor([tokens], device=device))
    visible = positions <= positions[:, None]
    forward = {
        "softmax": lambda: mf.softmax_attention(q, k, v),
        "linear": lambda: mf.linear_attention(q, k, v, cosines),
        "causal softmax": lambda: mf.softmax_attention(q, k, v, visible),
        "causal linear": lambda: mf.causal_linear_attention(q, k, v, cosines),
    }[kind]
    return lambda: forward().sum().backward()


@study(
    "0.2 core-hours",
    Claim("length", "Linear attention is faster than softmax attention on long sequences",
          "complexity T against T squared (Sec. 1, Figure 3)",
          [("softmax, 4096", "linear, 4096"), ("causal softmax, 4096", "causal linear, 4096")]),
    picture=lines("tokens", "ms, forward and backward", scale="log"))
def length(options):
    """One attention of eight heads of 64, one sequence, on one CPU thread (CPU time) or a GPU. Five
    alternating rounds, in milliseconds."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    values = {}
    kinds = ("softmax", "linear", "causal softmax", "causal linear")
    for tokens in LENGTHS:
        calls = {f"{kind}, {tokens}": attention_step(kind, tokens, device) for kind in kinds}
        values.update(in_turns(calls, 5))
    curves = {
        kind: [[T, statistics.median(values[f"{kind}, {T}"])] for T in LENGTHS] for kind in kinds}
    return {"values": values, "lines": curves}


# --- counts

def paper_parameters(arch, cfg):
    """Parameters as in the tables: images as in the released code, translation by the rule that
    gives Table 3. Table 5's vanilla rows are whole, with 37,000 tokens (0.6% above its 213 M)."""
    E = arch.hidden
    widths = (*arch.ffn, *arch.decoder_ffn)
    ffn = [2 * E * width + width + E for width in widths]
    if cfg.task == "wmt14":
        attention = 4 * E * E + 4 * E
        encoder = sum(ffn[:arch.layers]) + arch.layers * (attention + 4 * E)
        vanilla = mf.parse_arch("transformer", cfg)
        if mf.retype(arch, "plain", mf.PARTS) == vanilla:
            decoder = sum(ffn[arch.layers:]) + arch.decoder_layers * (2 * attention + 6 * E)
            return encoder + decoder + 37000 * E
        inputs = 6 * (E * E + E)  # of a decoder layer, only the inputs of its attentions
        return encoder + arch.decoder_layers * inputs + 4 * E
    widest = 512 if E == 512 else 448  # of the network that the row was cut from
    tables = {"linear": 4096, "softmax": 29 * 448, "plain": 0}
    total = 768 * E + 13 * E + 10
    for inner, heads, kind in zip(ffn, arch.heads, arch.types):
        total += 4 * E * 64 * heads + 3 * widest + 5 * E + inner + tables[kind]
    return total


def mixing(kind, queries, keys, qkv, heads, honest):
    """Multiply-adds after the projections: quadratic for softmax. For linear attention its
    products, if honest."""
    if kind == "linear":
        width = qkv // heads
        return 2 * honest * heads * width * ((queries + keys) * width + queries)
    return 2 * queries * keys * qkv


def paper_flops(arch, cfg, honest=False):
    """2 x multiply-adds as in the tables. The paper's profiler did not see the products of linear
    attention, which honest adds. Translation: 30 source and 30 target tokens, 32,768 subwords. The
    searched networks are 3 to 5% below the paper, whose rule is not public, cosFormer 6%."""
    E = arch.hidden
    images = cfg.task == "cifar10"
    T = 197 if images else 30
    total = 196 * 768 * E + T * E * (2 * arch.layers + 2) + 10 * E if images else T * 32768 * E
    for width, heads, kind in zip(arch.ffn, arch.heads, arch.types):
        Q = 64 * heads if images else E
        total += T * (4 * E * Q + 2 * E * width) + mixing(kind, T, T, Q, heads, honest)
        if images:  # the paper's profiler saw some element-wise products
            total += T * Q * {"linear": 5, "softmax": 1 + T, "plain": 1}[kind]
    for layer in range(arch.decoder_layers):
        keys = T * arch.connect[layer]
        total += T * (6 * E * E + 2 * E * arch.decoder_ffn[layer]) + 2 * keys * E * E
        kinds = {"decoder": T, "cross": keys}
        for part, size in kinds.items():
            kind = getattr(arch, f"{part}_types")[layer]
            heads = getattr(arch, f"{part}_heads")[layer]
            total += mixing(kind, T, size, E, heads, honest)
    return 2 * total


TWINS = {  # rows of Table 5 that differ only in the type of attention
    "mFormer": ("mformer-linear", "mformer-softmax"),
    "cosFormer*": ("cosformer*", "cosformer*-softmax"),
    "Transformer*": ("transformer*-linear", "transformer*"),
}


@study(
    "seconds",
    Claim("flops", "Linear attention costs fewer FLOPs than softmax attention, on images (197 "
          "tokens) and in translation (30 tokens)", "mFormer all linear 7.55, all softmax 8.67 G; "
          "8.081 and 8.09 G (Table 5)"))
def counts(options):
    """GFLOPs of the networks of Table 5 in all rows that differ only in the type of attention. The
    paper does not count the products of linear attention."""
    measured = {}
    values = {}
    for data, task in {"images": "cifar10", "translation": "wmt14"}.items():
        base = mf.PRESETS[task]["base"]
        settings = {name: value for name, value in base.items() if not isinstance(value, dict)}
        cfg = mf.Config(**settings, task=task)
        for title, twins in TWINS.items():
            archs = [mf.parse_arch(name, cfg) for name in twins]
            paper = [paper_flops(arch, cfg) / 1e9 for arch in archs]
            linear, softmax = [paper_flops(arch, cfg, honest=True) / 1e9 for arch in archs]
            label = f"{data}, {title}: linear {linear:.2f}, softmax {softmax:.2f} G"
            label += " (as the paper counts, {:.2f} and {:.2f})".format(*paper)
            measured[label] = counted(softmax - linear)
            values[f"{data}, {title}"] = [linear, softmax]
    return {"values": values, "intervals": {"flops": measured}}


if __name__ == "__main__":
    main("mformer", globals())
