"""mFormer: Neural Architecture Search on Efficient Transformers and Beyond (Liu, Li, Lu, Qin, Sun, Xu, Zhong;
arXiv:2207.13955v1).

Linear attention (cosFormer) costs O(N) and softmax attention scores better. mFormer lets a search decide, layer by
layer, which of the two stands where, together with widths, heads, depth and which encoder layers the decoder sees. The
search is RankNAS: a super-net holds every architecture, two rankers trained on pairs of its sub-nets order
architectures by loss and by latency, unimportant features are pruned from the space, and an evolution walks through
what is left.

Run:     python mformer.py --search                           search on demo pictures, minutes on two CPU cores
         python mformer.py --train --arch runs/mformer-search-cifar10-demo/best.json
                                                              the winner from scratch; then --evaluate --init
         torchrun --nproc_per_node=8 mformer.py --task wmt14 --search --preset base
                  --train_text wmt16/train ...                the paper's search
         python mformer.py --evaluate --init runs/mformer-train-wmt14-demo --task wmt14 --translate sentences.en
Map:     Eq. 1 -> softmax_attention    Eq. 2, 3 -> linear_attention    Table 1, 2 -> FEATURES, space_of
         Table 3, 4, 5 -> PUBLISHED    Sec. 3.1.2 -> Ranker, prune, evolve    Sec. 3.2.2 -> search
         Sec. 4.1.4 -> beam_search, average    Sec. 6 -> PRESETS, learning_rate    Table 5 -> retype, --analyze types
         Sec. 7 -> Ranker.importance    Sec. 8 -> --analyze decoder    Fig. 1, 5, 6 -> --analyze pareto, shape
Differs: D1  Linear attention leaves padding out of both sums and takes the true length for its cosine; the released one
             takes the padded length, so a sentence's output depends on its batch. Causal and cross linear attention
             take a fixed length (--length): with the true one a prefix's output would depend on what follows.
         D2  "Softmax" of Tables 1 and 2 has relative positions on the keys, clipped at 8 (text) or 14 (images), in
             self-attention. Cross-attention, where a distance means nothing, has none. "plain" (none anywhere) belongs
             to the vanilla rows and to no search.
         D3  Queries, keys and values have a weight each and every slice takes leading rows and columns; the released
             code takes thirds of one matrix, so that a row changes its meaning with the sampled width.
         D4  197 tokens an image (196 patches and one for the class), not the 256 of Sec. 4.1.3, which contradict its
             14 x 14.
         D5  The search's losses are measured on --valid_text, or on examples carved out of the training set; test sets
             are read by --evaluate and the tables of --analyze only. The released CIFAR-10 search reads the test split.
         D6  The ranker is a small network g with P(a before b) = sigmoid(g(a) - g(b)), a binary classifier over pairs
             that is always transitive; the released code regresses with boosted trees. Importance is what a feature's
             shuffling costs in pair accuracy.
         D7  Pruning keeps the features that come first when the rankings by loss and by latency are read in turn, and
             freezes the others at their commonest value among the better tenth of the sampled sub-nets; the paper does
             not say how. CIFAR-10 keeps 3 of 5 (the paper ranks all 5, which prunes nothing), translation 7, as many as
             the two top fives of Sec. 7.1 hold.
         D8  "Discarding the fastest and slowest 10% models" has two readings: --drop_architectures does what the
             sentence says, --trim_timings what the released code does (10% of one architecture's timings at either
             end). Both are on.
         D9  The evolution's ten best are measured (loss, latency) and the best measured loss wins; --finalists 1 trusts
             the ranker.
         D10 Cosine floor, warm-up and betas as Sec. 6 lists them, for the super-net as well (HAT: a cosine); its 4,400
             tokens are read as those of one of 8 GPUs. AdamW's weight decay spares biases and norms. Dropout is not
             listed: 0.1 for text, none on attention weights.
         D11 RankNAS trains its super-net with HAT's scaled dropout; here dropout does not depend on the sampled width.
         D12 New weights: uniform with Xavier's bound for the widest network, each block of a joint projection on its
             own; an image's patches, class token and positions start at like sizes behind the factor sqrt(H), which
             would drown positions of deviation 0.02. Neither paper nor appendix lists any of it.
         D13 "All linear" (Table 5) means the encoder's layers, "all softmax" every layer; Sec. 4.5.2 does not say.
         D14 Not in the paper: connected encoder layers share the final LayerNorm; sinusoids are those of the sampled
             width; beams may end at every step (fairseq: among the 2K best continuations) and must after 1.5 S + 10
             tokens; gradients are clipped at norm 1; pictures are turned, sheared and shifted with the strength of the
             released code, whose RandAugment has more operations; BLEU is that of plain text (13a), HAT's of tokenised.
"""
import collections
import dataclasses
import functools
import json
import math
import random
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

# B batch, T tokens, S source tokens (keys), H hidden, N heads, D head dim, V vocab, K beams, C chunks

# --- configuration -------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    """Every knob. The comment is the help text; a preset (by task) overrides the default, a flag the preset."""
    preset: str = "demo"  # demo (minutes on two cores) | small (real data on a small machine) | base (the paper)
    task: str = "cifar10"  # cifar10 | wmt14 (translation of any parallel text)
    out: str = ""  # run folder; default runs/mformer-ACTION-TASK-PRESET
    restart: bool = False  # begin anew in a run folder that is there
    seed: int = 0  # of everything drawn
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = "auto"  # auto (bfloat16 autocast on GPUs that have it) | float32 | bfloat16
    compile: bool = False  # torch.compile the model of --train (a super-net changes its shape with every update)
    accumulate: int = 1  # logical shards of an update, shared out over processes; results do not depend on their number
    dry_run: bool = False  # two real steps of every phase, on tiny budgets
    init: str = ""  # run folder to start from: weights, or the search that an analysis looks at
    arch: str = ""  # a name (mformer, cosformer*, ...), JSON, or a best.json; default: what this preset's search found
    # data
    cifar10: str = ""  # folder of CIFAR-10's binary version; default: demo pictures
    train_text: str = ""  # PREFIX of PREFIX.en and PREFIX.de to train on; default: the demo text
    valid_text: str = ""  # PREFIX of the text of validation losses; default: --held_out pairs of the training text
    test_text: str = ""  # PREFIX of the test text
    source: str = "en"  # ending of the source files
    target: str = "de"  # ending of the target files
    tokenizer: str = ""  # spiece.model; default: a joint one trained on both sides of --train_text
    vocab_size: int = 32768  # pieces of the joint vocabulary
    train_rows: int = 0  # use only so many training examples; 0: all
    held_out: int = 0  # training examples, or pairs of --valid_text (0: all), for validation losses (D5)
    # search space (Tables 1 and 2); several values are choices
    space: str = "mixed"  # mixed (mFormer) | linear (cosFormer*, linear everywhere) | softmax (Transformer*)
    decoder_softmax: bool = False  # with --space linear: the decoder keeps softmax
    layers: tuple[int, ...] = (12, 13, 14)  # Enc Layer Num, Table 2
    hidden: tuple[int, ...] = (320, 384, 448)  # Enc Emb Dim
    ffn: tuple[int, ...] = (672, 896, 1344, 1568, 1792)  # Enc FFN Dim, each layer its own
    heads: tuple[int, ...] = (5, 6, 7)  # Enc Head Num, each layer its own
    decoder_layers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)  # Dec Layer Num, Table 1
    decoder_hidden: tuple[int, ...] = (768, 1024)  # Dec Emb Dim
    decoder_ffn: tuple[int, ...] = (2048, 3072, 4096, 5120)  # Dec FFN Dim
    decoder_heads: tuple[int, ...] = (4, 8, 16)  # Dec Head Num
    cross_heads: tuple[int, ...] = (4, 8, 16)  # En-De Head Num
    connect: tuple[int, ...] = (1, 2, 3)  # En-De Connect: last encoder layers that a decoder layer sees
    head_dim: int = 64  # a head's width where --qkv is 0
    qkv: int = 0  # width of queries, keys, values, which heads only re-partition (translation); 0: heads x head_dim
    relative: int = 14  # farthest relative position of softmax attention, Sec. 6
    image: int = 224  # width of the images, in pixels
    patch: int = 16  # width of a patch
    length: int = 256  # longest sentence in pieces, end mark included; the cosine's fixed length (D1)
    dropout: float = 0.0  # on embeddings, attention and feed-forward outputs
    # training: the super-net's in --search, the network's in --train
    steps: int = 140000  # updates, Sec. 6.2
    batch: int = 64  # images, or tokens of the longer side, an update
    lr: float = 1e-3  # peak learning rate, Sec. 6.2
    lr_start: float = 1e-6  # at the start of the warm-up, and the cosine's end, Sec. 6.2
    warmup: int = 976  # updates, Sec. 6.2
    schedule: str = "cosine"  # cosine | inverse_sqrt
    weight_decay: float = 0.05  # AdamW, Sec. 6.2
    clip: float = 1.0  # largest gradient norm
    label_smoothing: float = 0.1  # Sec. 6
    save_every: int = 1000  # updates between checkpoints
    average: int = 10  # last checkpoints averaged at the end of --train, Sec. 4.1.4
    crop_area: float = 0.08  # smallest area of a random crop; 1: none
    magnitude: float = 9.0  # RandAugment strength of 10: turns, shears, shifts; 0: none
    jitter: float = 0.4  # random brightness, contrast, colour
    erase: float = 0.25  # chance that a random box is erased
    stability: float = 0.0  # stop a super-net when tau of its sub-nets' losses at two looks is above this (0.9); 0: off
    look_every: int = 5000  # updates between these looks
    look_nets: int = 100  # sub-nets looked at
    # search
    samples: int = 2000  # sub-nets whose loss and latency teach the rankers
    latency: str = "measure"  # measure (on this device) | cpu (CPU time: busy machines) | flops (repeats exactly)
    latency_runs: int = 20  # timed runs of an architecture, after 5 untimed ones
    trim_timings: float = 0.1  # share of an architecture's timings cut at either end (D8)
    drop_architectures: float = 0.1  # share of the fastest and the slowest architectures that the search discards (D8)
    latency_limit: float = 0.0  # slowest architecture allowed, in ms (--latency flops: GFLOPs); 0: no limit
    keep: int = 3  # most important features, by loss and by latency in turn, that stay free (D7); 0: no pruning
    generations: int = 30  # of the evolution
    population: int = 125  # of which a fifth are parents, and two fifths each mutants and crossovers
    mutation: float = 0.3  # chance that a gene is drawn anew
    finalists: int = 10  # best-ranked architectures that are measured (D9)
    # evaluation and analysis
    beam: int = 4  # Sec. 4.1.4
    length_penalty: float = 0.6  # Sec. 4.1.4
    translate: str = ""  # with --evaluate: a file of sentences to translate
    runs: int = 3  # seeds of an analysis that trains
    compare: tuple[str, ...] = ()  # architectures (shape) or run folders (pareto) to set side by side


TINY_IMAGE = dict(image=32, patch=4, head_dim=16, magnitude=0.0, jitter=0.0, erase=0.0)
TINY_TEXT = dict(layers=(2,), hidden=(64, 96), ffn=(96, 128, 192), heads=(2, 4),
                 decoder_layers=(1, 2), decoder_hidden=(64, 96), decoder_ffn=(96, 128, 192), decoder_heads=(2, 4),
                 cross_heads=(2, 4), connect=(1, 2), qkv=64, relative=8, length=64, schedule="inverse_sqrt", keep=5)
QUICK = dict(latency_runs=5, generations=10, finalists=5)
PRESETS = {  # by task; a sub-dictionary holds for one action
    "demo": {
        "cifar10": {**TINY_IMAGE, **QUICK, "layers": (2, 3), "hidden": (48, 64), "ffn": (64, 96, 128),
                    "heads": (2, 3, 4), "crop_area": 0.7, "accumulate": 2, "lr": 2e-3, "warmup": 50, "steps": 400,
                    "save_every": 20, "runs": 1,
                    "search": dict(steps=400, save_every=100, held_out=500, samples=80)},
        "wmt14": {**TINY_TEXT, **QUICK, "vocab_size": 2000, "batch": 2000, "accumulate": 2, "lr": 4e-3, "warmup": 100,
                  "weight_decay": 0.1, "steps": 900, "save_every": 50, "runs": 1,
                  "search": dict(steps=500, save_every=100, held_out=200, samples=80)}},
    "small": {
        "cifar10": {**TINY_IMAGE, **QUICK, "layers": (2, 3, 4), "hidden": (48, 64, 80), "ffn": (96, 128, 192, 224, 256),
                    "heads": (3, 4, 5), "crop_area": 0.5, "lr": 2e-3, "warmup": 50, "steps": 600, "save_every": 20,
                    "search": dict(steps=600, save_every=100, held_out=500, samples=120)},
        "wmt14": {**TINY_TEXT, **QUICK, "layers": (3,), "hidden": (48, 64), "ffn": (64, 128, 192, 256),
                  "heads": (2, 4, 8), "decoder_layers": (1, 2, 3), "decoder_hidden": (48, 64),
                  "decoder_ffn": (64, 128, 192, 256), "decoder_heads": (2, 4, 8), "cross_heads": (2, 4, 8),
                  "connect": (1, 2, 3), "vocab_size": 2000, "batch": 1024, "lr": 4e-3, "warmup": 200,
                  "weight_decay": 0.1, "steps": 1200, "save_every": 40,
                  "search": dict(steps=1200, save_every=100, held_out=300, samples=120)}},
    "base": {
        "cifar10": {"search": dict(held_out=5000)},
        "wmt14": dict(layers=(6,), hidden=(768, 1024), ffn=(2048, 3072, 4096, 5120), heads=(4, 8, 16), qkv=1024,
                      relative=8, dropout=0.1, batch=35200,
                      accumulate=8, lr=7e-4, lr_start=1e-7, warmup=4000, schedule="inverse_sqrt", weight_decay=0.1,
                      steps=200000, keep=7,  # Sec. 6.1
                      search=dict(steps=40000, held_out=3000))},
}


def mistake(text):
    """The UserError of a mistake that can be mended: one line, exit status 2."""
    from common.cli import UserError
    return UserError(text)

# --- search space --------------------------------------------------------------------------------
# An architecture has one value for each depth and embedding width, and one value a layer for everything else. A space
# is a table {feature: choices}; sampling, mutation, crossover, pruning, the features of the rankers and the size of the
# space all read it.

KINDS = ("softmax", "linear", "plain")  # softmax has relative positions, plain has not (D2)
PARTS = ("types", "decoder_types", "cross_types")  # where an attention stands


class Feature(NamedTuple):
    title: str  # as in Tables 1 to 4
    depth: str | None  # the feature that says how many layers it has a value for; None: one value


FEATURES = {  # in an order in which depths come before what they rule
    "layers": Feature("Enc Layer Num", None), "hidden": Feature("Enc Emb Dim", None),
    "ffn": Feature("Enc FFN Dim", "layers"),
    "heads": Feature("Enc Head Num", "layers"), "types": Feature("Enc Attn Type", "layers"),
    "decoder_layers": Feature("Dec Layer Num", None), "decoder_hidden": Feature("Dec Emb Dim", None),
    "decoder_ffn": Feature("Dec FFN Dim", "decoder_layers"), "decoder_heads": Feature("Dec Head Num", "decoder_layers"),
    "decoder_types": Feature("Dec Attn Type", "decoder_layers"),
    "cross_heads": Feature("En-De Head Num", "decoder_layers"), "connect": Feature("En-De Connect", "decoder_layers"),
    "cross_types": Feature("En-De Attn Type", "decoder_layers"),
}


@dataclasses.dataclass(frozen=True)
class Arch:
    """An architecture; tuples hold one value a layer. The decoder's part is empty for images."""
    layers: int
    hidden: int
    ffn: tuple
    heads: tuple
    types: tuple
    decoder_layers: int = 0
    decoder_hidden: int = 0
    decoder_ffn: tuple = ()
    decoder_heads: tuple = ()
    decoder_types: tuple = ()
    cross_heads: tuple = ()
    connect: tuple = ()
    cross_types: tuple = ()


def space_of(cfg):
    """The search space of a configuration: {feature: choices}. Only the encoder's types are searched in a mixed space
    (Sec. 4.1.2)."""
    types = {"mixed": ("softmax", "linear"), "linear": ("linear",), "softmax": ("softmax",)}[cfg.space]
    decoder = ("linear",) if cfg.space == "linear" and not cfg.decoder_softmax else ("softmax",)  # Sec. 3.2.2
    given = {"types": types, "decoder_types": decoder, "cross_types": decoder}
    names = list(FEATURES)[:5] if cfg.task == "cifar10" else list(FEATURES)
    return {name: given.get(name) or getattr(cfg, name) for name in names}


def space_size(space):
    """Number of architectures in a space."""
    sizes = 1
    for depth in ("layers", "decoder_layers"):
        ruled = math.prod(len(space[name]) for name in space if FEATURES[name].depth == depth)
        sizes *= sum(ruled ** layers for layers in space.get(depth, (0,)))
    return sizes * math.prod(len(space[name]) for name in ("hidden", "decoder_hidden") if name in space)


def build_arch(space, value, per_layer):
    """An Arch from value(name, choices) for single genes and per_layer(name, choices, slot) for those of a layer."""
    genes = {}
    for name, choices in space.items():
        depth = FEATURES[name].depth
        genes[name] = (tuple(per_layer(name, choices, slot) for slot in range(genes[depth])) if depth
                       else value(name, choices))
    return Arch(**genes)


def widest(space):
    """The architecture that holds all others: the super-net's own sizes. Softmax has a table that linear lacks, so it
    is the wider type."""
    def largest(name, choices, slot=0):
        return ("softmax" if "softmax" in choices else choices[0]) if name.endswith("types") else max(choices)
    return build_arch(space, largest, largest)


def sample_arch(space, rng):
    """A random architecture, every gene uniform over its choices."""
    return build_arch(space, lambda name, choices: rng.choice(choices), lambda name, choices, slot: rng.choice(choices))


def mutate(parent, space, chance, rng):
    """Every gene is drawn anew with this chance; layers that the parent lacks are drawn."""
    def redraw(name, choices, slot=None):
        old = getattr(parent, name)
        if slot is not None:
            old = old[slot] if slot < len(old) else None
        return rng.choice(choices) if old is None or rng.random() < chance else old
    return build_arch(space, redraw, redraw)


def crossover(one, two, space, rng):
    """Every gene from one of two parents, with equal chance; a layer that only the deeper one has comes from it."""
    def inherit(name, choices, slot=None):
        pool = [getattr(parent, name) for parent in (one, two)]
        if slot is not None:
            pool = [values[slot] for values in pool if slot < len(values)]
        return rng.choice(pool)
    return build_arch(space, inherit, inherit)


def retype(arch, kind, parts=PARTS[:1]):
    """The architecture with one attention type in all layers of these parts (Table 5)."""
    return dataclasses.replace(arch, **{part: (kind,) * len(getattr(arch, part)) for part in parts})


def why_illegal(arch, cfg):
    """None for an architecture that can be built, else the reason in words."""
    for name, (_, depth) in FEATURES.items():
        value = getattr(arch, name)
        if isinstance(value, tuple) != bool(depth):
            return f"{name}: {value} must be {'a list, one value a layer' if depth else 'one number'}"
        values = value if depth else (value,)
        if depth and len(value) != getattr(arch, depth):
            return f"{name} has {len(value)} values for {getattr(arch, depth)} {depth}"
        if name.endswith("types") and not all(each in KINDS for each in values):
            return f"{name}: there are the types {', '.join(KINDS)}"
        least = 0 if name.startswith("decoder") and not arch.decoder_layers else 1
        if not name.endswith("types") and not all(isinstance(each, int) and each >= least for each in values):
            return f"{name}: {value} must be whole numbers from 1"
        if name.endswith("heads") and cfg.qkv and any(cfg.qkv % each for each in values):
            return f"{name}: {value} do not all divide --qkv {cfg.qkv}"
    if arch.decoder_layers and (arch.hidden % 2 or arch.decoder_hidden % 2):
        return f"hidden, decoder_hidden: {arch.hidden}, {arch.decoder_hidden} must be even (sines and cosines)"
    if (cfg.task == "wmt14") != bool(arch.decoder_layers):
        return f"--task {cfg.task} {'needs a' if cfg.task == 'wmt14' else 'has no'} decoder"
    return (f"connect: {max(arch.connect)} of {arch.layers} encoder layers"
            if arch.connect and max(arch.connect) > arch.layers else None)


def arch_json(arch):
    """The text form: JSON, one key a feature."""
    return json.dumps({name: value for name, value in dataclasses.asdict(arch).items() if value})


def arch_of(genes):
    """The Arch of a JSON object."""
    return Arch(**{name: tuple(value) if isinstance(value, list) else value for name, value in genes.items()})


def parse_arch(text, cfg):
    """The architecture that a name, JSON or the text of a best.json stands for; ValueError says what is wrong."""
    if text in PUBLISHED.get(cfg.task, {}):
        return PUBLISHED[cfg.task][text]
    try:
        genes = json.loads(text)
        arch = arch_of(genes.get("arch", genes))
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{text[:60]!r} is no architecture; give one of {', '.join(PUBLISHED[cfg.task])}, "
                         "a best.json, or JSON with the "
                         f"keys {', '.join(list(FEATURES)[:5 if cfg.task == 'cifar10' else None])}") from None
    if reason := why_illegal(arch, cfg):
        raise ValueError(reason)
    return arch


def image_arch(hidden, ffn, heads, linear=()):
    """An image architecture; ffn in units of 224; linear: the layers, from 1, that have linear attention."""
    types = tuple("linear" if layer in linear else "softmax" for layer in range(1, len(ffn) + 1))
    return Arch(len(ffn), hidden, tuple(224 * width for width in ffn), heads, types)


def text_arch(ffn, heads, decoder_ffn, decoder_heads, cross_heads, linear=()):
    """A translation architecture, all 1024 wide and connected to the last encoder layer, the decoder softmax; ffn in
    units of 1024."""
    types = tuple("linear" if layer in linear else "softmax" for layer in range(1, len(ffn) + 1))
    depth = len(decoder_ffn)
    return Arch(len(ffn), 1024, tuple(1024 * width for width in ffn), heads, types, depth, 1024,
                tuple(1024 * width for width in decoder_ffn), decoder_heads, ("softmax",) * depth,
                cross_heads, (1,) * depth, ("softmax",) * depth)


# cosFormer*'s lists for images are published; the others are made to the totals of Table 4 and the averages of Table 3,
# whose "Enc Layer Num 3" is a misprint for 6
M_IMAGE = image_arch(384, (8, 8, 7, 6, 4, 4, 6, 7, 6, 4, 3, 3), (6, 6, 6, 6, 7, 7, 6, 6, 6, 7, 7, 6), (3, 7, 11))
C_IMAGE = image_arch(448, (8, 8, 6, 7, 6, 6, 6, 6, 7, 3, 7, 6), (7, 7, 6, 7, 5, 7, 5, 7, 5, 6, 7, 6))
T_IMAGE = image_arch(384, (3, 4, 4, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7), (6, 6) + (7,) * 12)
V_IMAGE = Arch(6, 512, (2048,) * 6, (8,) * 6, ("plain",) * 6)
M_TEXT = text_arch((2, 3, 3, 4, 3, 3), (16, 8, 8, 8, 8, 16), (4, 3), (16, 16), (4, 4), (2, 4))
C_TEXT = text_arch((3, 3, 3, 3, 4, 4), (8,) * 6, (4, 4), (16, 4), (8, 4))
T_TEXT = text_arch((3, 4, 4, 4, 4, 4), (8,) * 6, (4, 4, 3), (16, 16, 8), (16, 16, 8))
V_TEXT = retype(text_arch((4,) * 6, (16,) * 6, (4,) * 6, (16,) * 6, (16,) * 6), "plain", PARTS)  # Transformer-big
PUBLISHED = {  # Tables 3, 4 and 5; twins as D13 reads them
    "cifar10": {
        "mformer": M_IMAGE, "mformer-linear": retype(M_IMAGE, "linear"), "mformer-softmax": retype(M_IMAGE, "softmax"),
        "cosformer*": retype(C_IMAGE, "linear"), "cosformer*-softmax": C_IMAGE, "transformer*": T_IMAGE,
        "transformer*-linear": retype(T_IMAGE, "linear"), "transformer": V_IMAGE,
        "cosformer": retype(V_IMAGE, "linear")},
    "wmt14": {
        "mformer": M_TEXT, "mformer-linear": retype(M_TEXT, "linear"), "mformer-softmax": retype(M_TEXT, "softmax"),
        "cosformer*": retype(C_TEXT, "linear", PARTS), "cosformer*-softmax": C_TEXT, "transformer*": T_TEXT,
        "transformer*-linear": retype(T_TEXT, "linear"), "transformer": V_TEXT,
        "cosformer": retype(V_TEXT, "linear", PARTS)},
}

# --- model ---------------------------------------------------------------------------------------
# Every module is as wide as the widest architecture it has to serve and cuts what a call needs from the leading rows
# and columns of its weights (D3). So a super-net is a model that is called with an architecture, and a stand-alone
# network one that is called with its own.

FLOOR = 1e-6  # smallest denominator of linear attention


def full_precision(function):
    """Run in float32 even under autocast: sums over many tokens lose too much in bfloat16."""
    @functools.wraps(function)
    def wrapped(x, *args, **kwargs):
        with torch.autocast(x.device.type if x.device.type != "meta" else "cpu", enabled=False):
            return function(x.float(), *args, **kwargs)
    return wrapped


@full_precision
def reweight(x, positions, longest):
    """[ReLU(x) cos a; ReLU(x) sin a] with a = pi/2 i/M: the product of two of them is
    ReLU(q) ReLU(k) cos(pi/2 (i - j)/M), Eq. 3.

    x (B, N, T, D), positions (T,), longest M: a number or (B,). -> (B, N, T, 2D)
    """
    longest = longest.view(-1, 1, 1, 1) if torch.is_tensor(longest) else longest
    places = positions[:, None].clamp(max=longest - 1)  # padding behind the end must not turn its cosine negative
    angle = (math.pi / 2) * places / longest  # (T, 1) or (B, 1, T, 1)
    x = F.relu(x)
    return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)


def with_ones(v):
    """(B, N, S, D) -> (B, N, S, D + 1): one product then gives numerator and denominator of the normalisation."""
    return torch.cat([v.float(), v.new_ones(*v.shape[:-1], 1, dtype=torch.float32)], dim=-1)


@full_precision
def linear_state(k, v, mask=None):
    """sum_j k_j [v_j, 1]^T over the real tokens (D1). k (B, N, S, 2D) reweighted, v (B, N, S, D), mask (B, S). ->
    (B, N, 2D, D + 1)"""
    if mask is not None:
        k = k.masked_fill(~mask[:, None, :, None], 0.0)
    return k.transpose(-1, -2) @ with_ones(v)


def normalise(sums):
    """Numerator by denominator, the last column, which has a floor. (..., D + 1) -> (..., D)"""
    return sums[..., :-1] / sums[..., -1:].clamp(min=FLOOR)


@full_precision
def linear_read(q, state):
    """The output at reweighted queries q (B, N, T, 2D): Eq. 2, keys and values first. -> (B, N, T, D)"""
    return normalise(q @ state)


def linear_attention(q, k, v, lengths=None):
    """cosFormer attention (Eq. 3 with its normalisation) in O(N) time and memory. q, k, v (B, N, T, D), lengths (B,) or
    None. -> the same"""
    positions = torch.arange(q.shape[2], device=q.device)
    longest = q.shape[2] if lengths is None else lengths
    mask = None if lengths is None else positions < lengths[:, None]
    return linear_read(reweight(q, positions, longest), linear_state(reweight(k, positions, longest), v, mask))


@full_precision
def causal_linear_attention(q, k, v, longest, chunk=64):
    """cosFormer attention to what is not later, in O(N): a running sum over chunks, the quadratic product inside each.
    (B, N, T, D) -> the same"""
    B, N, T, D = q.shape
    positions, chunk = torch.arange(T, device=q.device), min(chunk, T)
    room = -T % chunk
    parts = reweight(q, positions, longest), reweight(k, positions, longest), with_ones(v)
    q, k, v = (F.pad(x, (0, 0, 0, room)).view(B, N, -1, chunk, x.shape[-1]) for x in parts)  # (B, N, C, chunk, *)
    states = k.transpose(-1, -2) @ v  # (B, N, C, 2D, D + 1)
    before = F.pad(states[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))  # what stands in the chunks before
    sums = q @ before + (q @ k.transpose(-1, -2)).tril() @ v  # (B, N, C, chunk, D + 1)
    return normalise(sums).reshape(B, N, -1, D)[:, :, :T]


def relative_scores(q, table, keys, first=0):
    """q_i . r_(j - i), distances clipped at the table's ends. q (B, N, T, D) at positions from `first`, table
    (2R + 1, D). -> (B, N, T, S)"""
    reach = len(table) // 2
    places = torch.arange(keys, device=q.device) - first - torch.arange(q.shape[2], device=q.device)[:, None]  # (T, S)
    return (q @ table.to(q.dtype).T).gather(-1, (places.clamp(-reach, reach) + reach).expand(*q.shape[:2], -1, -1))


def softmax_attention(q, k, v, table=None, visible=None, first=0):
    """Eq. 1. table: relative positions on the keys, or None; visible: bool, broadcasts to (B, N, T, S), or None.
    (B, N, T, D) -> the same"""
    q = q / math.sqrt(q.shape[-1])
    bias = visible
    if table is not None:
        bias = relative_scores(q, table, k.shape[2], first)
        bias = bias if visible is None else bias.masked_fill(~visible, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, bias, scale=1.0)


class Linear(nn.Module):
    """`blocks` linear maps of one input, side by side. (..., inputs) -> (..., blocks * outputs)"""

    def __init__(self, inputs, outputs, blocks=1):
        super().__init__()
        bound = math.sqrt(6 / (inputs + outputs))  # D12
        self.weight = nn.Parameter(torch.empty(blocks, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))

    def forward(self, x, outputs):
        return F.linear(x, self.weight[:, :outputs, :x.shape[-1]].flatten(0, 1), self.bias[:, :outputs].flatten())


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight[:x.shape[-1]], self.bias[:x.shape[-1]])


class Form(NamedTuple):
    """How an attention runs in one call."""
    kind: str  # of KINDS
    heads: int
    dim: int  # a head's width


def head_width(heads, cfg):
    return cfg.qkv // heads if cfg.qkv else cfg.head_dim


class Attention(nn.Module):
    """One attention of a layer: self-attention (forward), causal (causal), or cross-attention (remember, read).
    (B, T, H) -> (B, T, H).

    heads: all numbers of heads it has to serve. keys: width of what it attends to; has_table: with relative positions.
    """

    def __init__(self, width, keys, heads, has_table, cfg):
        super().__init__()
        qkv = max(count * head_width(count, cfg) for count in heads)
        self.query, self.key_value, self.output = Linear(width, qkv), Linear(keys, qkv, blocks=2), Linear(qkv, width)
        table = (2 * cfg.relative + 1, max(head_width(count, cfg) for count in heads))
        self.relative = nn.Parameter(torch.randn(table) * table[1] ** -0.5) if has_table else None

    def project(self, layer, x, form, blocks):
        B, T, _ = x.shape
        x = layer(x, form.heads * form.dim).view(B, T, blocks, form.heads, form.dim)
        return x.permute(2, 0, 3, 1, 4)  # (blocks, B, N, T, D)

    def table(self, form):
        return self.relative[:, :form.dim] if form.kind == "softmax" else None

    def join(self, mixed, width):
        return self.output(mixed.transpose(1, 2).flatten(2), width)  # (B, N, T, D) -> (B, T, H)

    def forward(self, x, form, lengths=None):
        (q,), (k, v) = self.project(self.query, x, form, 1), self.project(self.key_value, x, form, 2)
        if form.kind == "linear":
            return self.join(linear_attention(q, k, v, lengths), x.shape[-1])
        visible = (None if lengths is None else
                   (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, None, None])
        return self.join(softmax_attention(q, k, v, self.table(form), visible), x.shape[-1])

    def causal(self, x, form, longest, cache=None, first=0):
        """cache: None for a whole sequence; else a dict with what earlier calls kept, x being the one token at position
        `first`."""
        (q,), (k, v) = self.project(self.query, x, form, 1), self.project(self.key_value, x, form, 2)
        if form.kind == "linear" and cache is None:
            return self.join(causal_linear_attention(q, k, v, longest), x.shape[-1])
        if form.kind == "linear":
            place = torch.tensor([first], device=x.device)
            state = linear_state(reweight(k, place, longest), v)
            cache["self"] = (state + cache["self"][0] if "self" in cache else state,)
            return self.join(linear_read(reweight(q, place, longest), cache["self"][0]), x.shape[-1])
        if cache is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache["self"], (k, v))) if "self" in cache else (k, v)
            cache["self"] = (k, v)
        steps = torch.arange(k.shape[2], device=x.device)
        visible = steps <= steps[first:first + x.shape[1], None]  # (T, S)
        return self.join(softmax_attention(q, k, v, self.table(form), visible, first), x.shape[-1])

    def remember(self, memory, mask, copies, form, longest):
        """What cross-attention keeps of the encoder's output, `copies` layers one after the other in memory
        (B, copies * S, H): tensors."""
        k, v = self.project(self.key_value, memory, form, 2)
        if form.kind == "linear":
            positions = torch.arange(memory.shape[1] // copies, device=memory.device).repeat(copies)
            return (linear_state(reweight(k, positions, longest), v, mask),)  # D1
        return k, v, mask[:, None, None]

    def read(self, x, kept, form, longest, first=0):
        """Cross-attention from tokens at positions from `first` to what remember() kept."""
        (q,) = self.project(self.query, x, form, 1)
        if form.kind == "linear":
            mixed = linear_read(reweight(q, first + torch.arange(x.shape[1], device=x.device), longest), *kept)
        else:
            mixed = softmax_attention(q, kept[0], kept[1], visible=kept[2])
        return self.join(mixed, x.shape[-1])


class FeedForward(nn.Module):
    """ReLU network. (B, T, H) -> (B, T, H)"""

    def __init__(self, width, inner):
        super().__init__()
        self.expand, self.shrink = Linear(width, inner), Linear(inner, width)

    def forward(self, x, inner):
        return self.shrink(F.relu(self.expand(x, inner)), x.shape[-1])


class EncoderLayer(nn.Module):
    """LayerNorm, attention, residual, LayerNorm, feed-forward, residual. (B, T, H) -> the same"""

    def __init__(self, number, arch, cfg, space):
        super().__init__()
        self.number, self.cfg = number, cfg
        heads = space["heads"] if space else (arch.heads[number],)
        self.attention = Attention(arch.hidden, arch.hidden, heads, arch.types[number] == "softmax", cfg)
        self.feed_forward = FeedForward(arch.hidden, arch.ffn[number])
        self.attention_norm, self.ffn_norm = LayerNorm(arch.hidden), LayerNorm(arch.hidden)

    def forward(self, x, arch, lengths=None):
        number, drop = self.number, functools.partial(F.dropout, p=self.cfg.dropout, training=self.training)
        form = Form(arch.types[number], arch.heads[number], head_width(arch.heads[number], self.cfg))
        x = x + drop(self.attention(self.attention_norm(x), form, lengths))
        return x + drop(self.feed_forward(self.ffn_norm(x), arch.ffn[number]))


class DecoderLayer(nn.Module):
    """Causal attention, cross-attention, feed-forward, each with a LayerNorm before and a residual around it.
    (B, T, H) -> the same"""

    def __init__(self, number, arch, cfg, space):
        super().__init__()
        self.number, self.cfg, width = number, cfg, arch.decoder_hidden
        heads, cross_heads = (space[name] if space else (getattr(arch, name)[number],)
                              for name in ("decoder_heads", "cross_heads"))
        self.attention = Attention(width, width, heads, arch.decoder_types[number] == "softmax", cfg)
        self.cross = Attention(width, arch.hidden, cross_heads, False, cfg)  # D2
        self.feed_forward = FeedForward(width, arch.decoder_ffn[number])
        self.attention_norm, self.cross_norm, self.ffn_norm = LayerNorm(width), LayerNorm(width), LayerNorm(width)

    def forms(self, arch):
        """The forms of its two attentions."""
        number = self.number
        own, cross = arch.decoder_heads[number], arch.cross_heads[number]
        return (Form(arch.decoder_types[number], own, head_width(own, self.cfg)),
                Form("plain" if arch.cross_types[number] == "softmax" else arch.cross_types[number], cross,
                     head_width(cross, self.cfg)))

    def remember(self, states, mask, arch):
        """What it keeps of the last encoder layers, En-De Connect many (Table 1)."""
        copies = arch.connect[self.number]
        return self.cross.remember(torch.cat(states[-copies:], dim=1), mask.repeat(1, copies), copies,
                                   self.forms(arch)[1], self.cfg.length)

    def forward(self, x, memory, arch, cache=None, first=0):
        drop, (own, cross) = functools.partial(F.dropout, p=self.cfg.dropout, training=self.training), self.forms(arch)
        x = x + drop(self.attention.causal(self.attention_norm(x), own, self.cfg.length, cache, first))
        x = x + drop(self.cross.read(self.cross_norm(x), memory, cross, self.cfg.length, first))
        return x + drop(self.feed_forward(self.ffn_norm(x), arch.decoder_ffn[self.number]))


class ImageModel(nn.Module):
    """Encoder over patches and a class token; the mean of the patches is classified. Images (B, 3, image, image) ->
    logits (B, 10).

    arch: the largest sizes. space: build a super-net for it. forward(images, arch) runs a sub-net, forward(images) the
    whole.
    """

    def __init__(self, arch, cfg, space=None):
        super().__init__()
        self.arch, self.cfg, self.tokens = arch, cfg, (cfg.image // cfg.patch) ** 2 + 1  # D4
        self.patches = Linear(3 * cfg.patch ** 2, arch.hidden)
        self.token = nn.Parameter(torch.randn(arch.hidden) * arch.hidden ** -0.5)
        self.positions = nn.Parameter(torch.randn(self.tokens, arch.hidden) * 0.5)
        with torch.no_grad():
            self.patches.weight.mul_(arch.hidden ** -0.5)  # D12: forward multiplies by sqrt(H)
        self.layers = nn.ModuleList(EncoderLayer(number, arch, cfg, space) for number in range(arch.layers))
        self.norm, self.head = LayerNorm(arch.hidden), Linear(arch.hidden, 10)

    def forward(self, images, arch=None):
        arch = arch or self.arch
        B, side, width = len(images), self.cfg.image // self.cfg.patch, arch.hidden
        patches = (images.view(B, 3, side, self.cfg.patch, side, self.cfg.patch)
                   .permute(0, 2, 4, 1, 3, 5).reshape(B, side * side, -1))
        x = torch.cat([self.token[:width].expand(B, 1, -1), self.patches(patches, width)], dim=1)  # (B, T, H)
        x = F.dropout(x * math.sqrt(width) + self.positions[:, :width], self.cfg.dropout, self.training)  # D11
        for layer in self.layers[:arch.layers]:
            x = layer(x, arch)
        return self.head(self.norm(x)[:, 1:].mean(1), 10)


def sinusoids(first, count, width, device):
    """Position vectors (count, width) from position `first` on."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10000.0) / width))
    angles = (first + torch.arange(count, device=device))[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class Translator(nn.Module):
    """Encoder and decoder with one embedding for source, target and output. forward -> logits (B, T, V)."""

    def __init__(self, arch, cfg, space=None):
        super().__init__()
        self.arch, self.cfg, width = arch, cfg, max(arch.hidden, arch.decoder_hidden)
        self.words = nn.Parameter(torch.randn(cfg.vocab_size, width) * width ** -0.5)
        self.layers = nn.ModuleList(EncoderLayer(number, arch, cfg, space) for number in range(arch.layers))
        self.decoder_layers = nn.ModuleList(DecoderLayer(number, arch, cfg, space)
                                            for number in range(arch.decoder_layers))
        self.norm, self.decoder_norm = LayerNorm(arch.hidden), LayerNorm(arch.decoder_hidden)

    def embed(self, ids, width, first=0):
        x = (F.embedding(ids, self.words[:, :width]) * math.sqrt(width)
             + sinusoids(first, ids.shape[1], width, ids.device))  # D14
        return F.dropout(x, self.cfg.dropout, self.training)

    def encode(self, source, lengths, arch=None):
        """source (B, S), lengths (B,). Returns what each decoder layer keeps of the encoder: a list of tuples of
        tensors with B rows."""
        arch = arch or self.arch
        x, states = self.embed(source, arch.hidden), []
        for layer in self.layers[:arch.layers]:
            x = layer(x, arch, lengths)
            states.append(x)
        states = [self.norm(x) for x in states[-max(arch.connect):]]  # D14
        mask = torch.arange(source.shape[1], device=source.device) < lengths[:, None]  # (B, S)
        return [layer.remember(states, mask, arch) for layer in self.decoder_layers[:arch.decoder_layers]]

    def decode(self, target, memories, arch=None, caches=None, first=0):
        """Logits (B, T, V) behind target (B, T). caches: None for whole sequences; else a list of dicts, target the
        token at position `first`."""
        arch = arch or self.arch
        x = self.embed(target, arch.decoder_hidden, first)
        for number, layer in enumerate(self.decoder_layers[:arch.decoder_layers]):
            x = layer(x, memories[number], arch, caches[number] if caches else None, first)
        return F.linear(self.decoder_norm(x), self.words[:, :arch.decoder_hidden])

    def forward(self, source, lengths, target, arch=None):
        return self.decode(target, self.encode(source, lengths, arch), arch)


def make_model(arch, cfg, space=None):
    """The model of a task: stand-alone, or a super-net over a space."""
    return (ImageModel if cfg.task == "cifar10" else Translator)(arch, cfg, space)


@torch.no_grad()
def beam_search(model, source, lengths, bos, eos, barred=(), arch=None, beam=4, penalty=0.6):
    """The best translation of each row of source (B, S), lengths (B,), as (ids without end mark, score):
    log-probability / tokens ** penalty, as fairseq scores (Sec. 4.1.4).

    A beam may end at every step without giving up its place. A row is finished when no living beam can still win:
    log-probabilities only fall, so one's score is never above what it would be at the greatest length. barred: ids that
    are never produced.
    """
    B, device = len(source), source.device
    limits = (lengths + lengths // 2 + 10).clamp(max=model.cfg.length - 1).tolist()  # D14
    memories = [tuple(part.repeat_interleave(beam, 0) for part in kept) for kept in model.encode(source, lengths, arch)]
    caches = [{} for _ in memories]
    tokens, history = (torch.full((B * beam, 1), bos, device=device),
                       torch.zeros(B, beam, 0, dtype=torch.long, device=device))
    scores = torch.full((B, beam), float("-inf"), device=device)
    scores[:, 0] = 0.0  # all beams start alike: only one of them counts
    rows, best = list(range(B)), [([], float("-inf"))] * B
    for step in range(max(limits)):
        logits = model.decode(tokens, memories, arch, caches, step)[:, -1].float()
        total = scores[..., None] + F.log_softmax(logits, dim=-1).view(len(rows), beam, -1)  # (B, K, V)
        ends, beams = (total[..., eos] / (step + 1) ** penalty).max(1)  # D14
        for place, (end, which) in enumerate(zip(ends.tolist(), beams.tolist())):
            if end > best[rows[place]][1]:
                best[rows[place]] = (history[place, which].tolist(), end)
        total[..., [eos, *barred]] = float("-inf")
        scores, flat = total.flatten(1).topk(beam)  # (B, K)
        parents, tokens = flat // total.shape[-1], flat % total.shape[-1]
        history = torch.cat([history.gather(1, parents[..., None].expand_as(history)), tokens[..., None]], dim=-1)
        open_rows = [place for place, (row, top) in enumerate(zip(rows, scores[:, 0].tolist()))
                     if step + 1 < limits[row] and top / limits[row] ** penalty > best[row][1]]
        if not open_rows:
            break
        chosen = torch.tensor(open_rows, device=device)
        lines = (chosen[:, None] * beam + parents[chosen]).flatten()
        memories = [tuple(part[lines] for part in kept) for kept in memories]
        caches = [{"self": tuple(part[lines] for part in cache["self"])} for cache in caches]
        rows, scores, history, tokens = ([rows[place] for place in open_rows], scores[chosen], history[chosen],
                                         tokens[chosen].view(-1, 1))
    return best


# The paper's way of counting, and the honest one.

def paper_parameters(arch, cfg):
    """Parameters as the paper's tables count them: CIFAR-10 as its code sums them up, translation by the rule that
    gives the three numbers of Table 3. Table 5's vanilla rows are whole, with 37,000 pieces: 0.6% above its 213 M."""
    if cfg.task == "wmt14":
        E, widths = arch.hidden, (*arch.ffn, *arch.decoder_ffn)
        attention, ffn, inputs = 4 * E * E + 4 * E, [2 * E * width + width + E for width in widths], 3 * E * E + 3 * E
        encoder = sum(ffn[:arch.layers]) + arch.layers * (attention + 4 * E)
        if retype(arch, "plain", PARTS) == V_TEXT:
            return encoder + sum(ffn[arch.layers:]) + arch.decoder_layers * (2 * attention + 6 * E) + 37000 * E
        return encoder + arch.decoder_layers * 2 * inputs + 4 * E  # no more of a decoder than its attentions' inputs
    E, total = arch.hidden, 768 * arch.hidden + arch.hidden + 2 * arch.hidden + 10 * arch.hidden + 10
    widest_qkv = 512 if E == 512 else 448  # of the network that the row was cut from
    for width, heads, kind in zip(arch.ffn, arch.heads, arch.types):
        Q, extra = 64 * heads, {"linear": 4096, "softmax": 29 * 448, "plain": 0}[kind]
        total += 4 * E * Q + 3 * widest_qkv + E + 2 * E * width + width + E + 4 * E + extra
    return total


def paper_flops(arch, cfg, honest=False):
    """2 x multiply-adds as the paper's tables count them. Its profiler did not see the products of linear attention;
    honest adds them.

    Translation: 30 source and 30 target tokens and an output layer of 32,768 pieces: the vanilla Transformer's 12.65 G
    (12.7 printed); the searched ones come out 3 to 5% below the paper, whose rule is not public, cosFormer 6%.
    """
    if cfg.task == "wmt14":
        E, N, total = arch.hidden, 30, 30 * 32768 * arch.hidden
        for width, heads, kind in zip(arch.ffn, arch.heads, arch.types):
            total += N * (4 * E * E + 2 * E * width) + mixing(kind, N, N, E, heads, honest)
        for layer in range(arch.decoder_layers):
            keys = N * arch.connect[layer]
            total += N * (6 * E * E + 2 * E * arch.decoder_ffn[layer]) + 2 * keys * E * E
            total += mixing(arch.decoder_types[layer], N, N, E, arch.decoder_heads[layer], honest)
            total += mixing(arch.cross_types[layer], N, keys, E, arch.cross_heads[layer], honest)
        return 2 * total
    E, T = arch.hidden, 197
    total = 196 * 768 * E + T * E * (2 * arch.layers + 1) + T * E + 10 * E
    for width, heads, kind in zip(arch.ffn, arch.heads, arch.types):
        Q = 64 * heads
        total += T * (4 * E * Q + 2 * E * width)
        total += {"linear": 5 * T * Q, "softmax": T * Q + 3 * T * T * Q, "plain": T * Q + 2 * T * T * Q}[kind]
        if honest and kind == "linear":
            total += mixing(kind, T, T, Q, heads, honest)
    return 2 * total


def mixing(kind, queries, keys, qkv, heads, honest):
    """Multiply-adds of an attention behind its projections: quadratic for softmax; for linear keys x 2D x D and back,
    seen by honest counts only."""
    if kind == "linear":
        width = qkv // heads
        return honest * heads * ((queries + keys) * 2 * width * width + queries * 2 * width)
    return 2 * queries * keys * qkv


def model_flops(arch, cfg, tokens=30):
    """2 x multiply-adds of all matrix products that this file's model really does for one image, or for `tokens` source
    and target tokens each."""
    E, T = arch.hidden, (cfg.image // cfg.patch) ** 2 + 1 if cfg.task == "cifar10" else tokens
    total = ((T - 1) * 3 * cfg.patch ** 2 * E + 10 * E if cfg.task == "cifar10"
             else T * arch.decoder_hidden * cfg.vocab_size)
    for layer in range(arch.layers):
        heads = arch.heads[layer]
        Q = heads * head_width(heads, cfg)
        total += T * (4 * E * Q + 2 * E * arch.ffn[layer]) + products(arch.types[layer], T, T, heads, Q, cfg.relative)
    for layer in range(arch.decoder_layers):
        H, S, own, cross = (arch.decoder_hidden, T * arch.connect[layer], arch.decoder_heads[layer],
                            arch.cross_heads[layer])
        Q, C = own * head_width(own, cfg), cross * head_width(cross, cfg)
        total += T * (4 * H * Q + 2 * H * C + 2 * H * arch.decoder_ffn[layer]) + 2 * S * E * C
        total += (products(arch.decoder_types[layer], T, T, own, Q, cfg.relative, causal=True)
                  + products(arch.cross_types[layer], T, S, cross, C))
    return 2 * total


def products(kind, queries, keys, heads, qkv, relative=None, causal=False):
    """Multiply-adds of an attention of this file behind its projections; causal linear attention of up to one chunk of
    tokens."""
    if kind != "linear":
        return 2 * queries * keys * qkv + (queries * qkv * (2 * relative + 1) if kind == "softmax" and relative else 0)
    width = qkv // heads
    return heads * ((queries + keys) * 2 * width * (width + 1) + causal * queries * keys * (3 * width + 1))


def count_parameters(arch, cfg):
    """{part: parameters} of the stand-alone network, everything included."""
    with torch.device("meta"):
        model, parts = make_model(arch, cfg), collections.Counter()
    for name, value in model.named_parameters():
        parts[name.split(".")[0]] += value.numel()
    return dict(parts)

# --- supernet ------------------------------------------------------------------------------------


def make_supernet(space, cfg):
    """One network that holds every architecture of the space (Sec. 3.2.2)."""
    return make_model(widest(space), cfg, space)


@torch.no_grad()
def extract(model, arch, space=None):
    """The stand-alone network of an architecture (with a space, its super-net) with the weights that it has inside a
    larger model: all slices are leading ones. ValueError where that one does not hold it."""
    own, network = model.state_dict(), make_model(arch, model.cfg, space)
    for name, value in network.state_dict().items():
        if name not in own or any(one > two for one, two in zip(value.shape, own[name].shape)):
            raise ValueError(f"does not hold {'the space' if space else '--arch'}; it has {name} as "
                             f"{tuple(own[name].shape) if name in own else 'nothing'}, not {tuple(value.shape)}")
        value.copy_(own[name][tuple(slice(size) for size in value.shape)])
    return network.to(next(model.parameters()).device)


def draw_subnet(space, cfg, step):
    """The sub-net of an update: a function of the step, so that every rank and every shard trains the same one."""
    return sample_arch(space, random.Random(f"{cfg.seed} sub-net {step}"))

# --- search --------------------------------------------------------------------------------------

WORST = 1e9  # loss of a sub-net that has diverged: infinity is no JSON


def feature_columns(space):
    """{feature: its columns in describe_archs}; features without a choice have none."""
    columns, start = {}, 0
    for name, choices in space.items():
        if len(choices) > 1:
            depth = FEATURES[name].depth
            columns[name] = slice(start, start + (1 + max(space[depth]) if depth else 1))
            start = columns[name].stop
    return columns


def describe_archs(archs, space):
    """What a ranker sees, (A, columns): each feature as a share of its largest choice; one a layer as its mean and its
    layers, filled up with the mean, so that a width says nothing about the depth: importance could not tell the two
    apart."""
    rows = []
    for arch in archs:
        row = []
        for name in feature_columns(space):
            value, depth = getattr(arch, name), FEATURES[name].depth
            if name.endswith("types"):
                value = [float(kind == "linear") for kind in value]
            else:
                value = [each / max(space[name]) for each in (value if depth else (value,))]
            mean = sum(value) / len(value)
            row += [mean, *value, *[mean] * (max(space[depth]) - len(value))] if depth else value
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float32)


def agreement(found, wanted):
    """(Kendall's tau-b, share of the pairs with different `wanted` that `found` orders alike, ties counting half) of
    two lists of numbers."""
    found, wanted = (torch.tensor(values, dtype=torch.float64) for values in (found, wanted))
    one, two = (torch.sign(values[:, None] - values).triu() for values in (found, wanted))
    agree, pairs, decided = (one * two).sum().item(), one.abs().sum().item(), two.abs().sum().item()
    return agree / max(1.0, math.sqrt(pairs * decided)), 0.5 + 0.5 * agree / max(1.0, decided)


class Ranker:
    """A binary classifier over pairs of architectures (Sec. 3.1.2): P(a before b) = sigmoid(g(a) - g(b)), g a small
    network (D6).

    Fitted to 80% of the (architecture, value) rows; 10% choose when to stop, 10% are never fitted to and give `tau` and
    `pairs`. Low values come first: score() orders architectures as their values would.
    """

    def __init__(self, space, archs, values, seed=0, steps=400):
        self.space, generator = space, torch.Generator().manual_seed(seed)
        x, y = describe_archs(archs, space), torch.tensor(values, dtype=torch.float64)
        order = torch.randperm(len(y), generator=generator)
        tenth = max(2, len(y) // 10)
        self.fresh, self.stop, fit = order[:tenth], order[tenth:2 * tenth], order[2 * tenth:]
        self.x, self.y, self.mean, self.scale = x, y, x[fit].mean(0), x[fit].std(0).clamp(min=1e-3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))
        self.fit(fit, generator, steps)
        self.tau, self.pairs = agreement(self.predict(x[self.fresh]).tolist(), y[self.fresh].tolist())

    def fit(self, rows, generator, steps):
        """Cross-entropy over random pairs; the weights that order the stopping rows best are kept."""
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=3e-3, weight_decay=0.1, fused=True)
        best, kept = -1.0, None
        for step in range(steps + 1):
            if step % 20 == 0:
                accuracy = self.pair_accuracy(self.x, self.stop)
                if accuracy > best:
                    best, kept = accuracy, {name: value.clone() for name, value in self.network.state_dict().items()}
            one, two = rows[torch.randint(len(rows), (2, 512), generator=generator)]
            later = (self.y[one] > self.y[two]).float() + 0.5 * (self.y[one] == self.y[two])
            loss = F.binary_cross_entropy_with_logits(self.raw(self.x[one]) - self.raw(self.x[two]), later)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.network.load_state_dict(kept)

    def raw(self, x):
        return self.network((x - self.mean) / self.scale)[:, 0]

    @torch.no_grad()
    def predict(self, x):
        return self.raw(x)

    def score(self, archs):
        """g of each architecture; lower comes first."""
        return self.predict(describe_archs(archs, self.space)).tolist()

    def pair_accuracy(self, x, rows):
        return agreement(self.predict(x[rows]).tolist(), self.y[rows].tolist())[1]

    def importance(self, seed=0, shuffles=20):
        """{feature: pair accuracy lost when the feature is shuffled among the rows that were not fitted to}, the most
        important first."""
        generator, rows = torch.Generator().manual_seed(seed), torch.cat([self.fresh, self.stop])
        whole, lost = self.pair_accuracy(self.x, rows), {}
        for name, columns in feature_columns(self.space).items():
            total = 0.0
            for _ in range(shuffles):
                shuffled = self.x.clone()
                shuffled[rows, columns] = self.x[rows[torch.randperm(len(rows), generator=generator)], columns]
                total += whole - self.pair_accuracy(shuffled, rows)
            lost[name] = total / shuffles
        return dict(sorted(lost.items(), key=lambda item: -item[1]))


def prune(space, importances, archs, losses, keep):
    """Sec. 3.1.2, search space pruning: only `keep` features stay free, the first of these importances read in turn.
    The others are frozen at their commonest value among the better tenth of the sampled architectures (D7). The result
    is a smaller space."""
    if not keep:
        return space
    free = list(dict.fromkeys(name for names in zip(*importances) for name in names))[:keep]
    better = [archs[index] for index in sorted(range(len(archs)), key=losses.__getitem__)[:max(5, len(archs) // 10)]]
    pruned = {}
    for name, choices in space.items():
        values = [value for arch in better
                  for value in (getattr(arch, name) if FEATURES[name].depth else (getattr(arch, name),))]
        pruned[name] = choices if name in free else (max(choices, key=values.count),)
    return pruned


def quantile(values, share):
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * (len(ordered) - 1))))]


def latency_window(scores, latencies, cfg):
    """(lowest, highest) latency score that the search allows: without the fastest and the slowest architectures (D8),
    none beyond --latency_limit. ValueError where nothing is left."""
    low, high = cfg.drop_architectures, 1 - cfg.drop_architectures
    if cfg.latency_limit:
        share = sum(each <= cfg.latency_limit for each in latencies) / len(latencies)
        if share <= low:
            raise ValueError(f"--latency_limit {cfg.latency_limit}: the fastest of {len(latencies)} sampled "
                             f"architectures takes {latency_text(min(latencies), cfg)} and --drop_architectures "
                             f"starts at {latency_text(quantile(latencies, low), cfg)}; raise the limit")
        high = min(high, share)
    return quantile(scores, low), quantile(scores, high)


def evolve(space, fitness, allowed, cfg):
    """Evolution over a space: {architecture: fitness} of all that it looked at, lower is better. fitness: list of Arch
    -> list of numbers; allowed: Arch -> bool. ValueError where the space seems to hold no allowed architecture."""
    rng, seen = random.Random(f"{cfg.seed} evolution"), {}

    def collect(make, count):
        """`count` allowed architectures; new ones as long as there are any to be found."""
        found = []
        for attempt in range(200 * count):
            arch = make()
            if (attempt >= 50 * count or arch not in seen and arch not in found) and allowed(arch):
                found.append(arch)
            if len(found) == count:
                break
        if not found:
            raise ValueError("no architecture of the pruned space meets the latency constraint; "
                             "raise --latency_limit, --keep or --samples")
        seen.update(zip(found, fitness(found)))
        return found

    part = max(1, cfg.population // 5)
    population = collect(lambda: sample_arch(space, rng), cfg.population)
    for _ in range(cfg.generations):
        parents = sorted(dict.fromkeys(population), key=seen.__getitem__)[:part]
        mutants = collect(lambda: mutate(rng.choice(parents), space, cfg.mutation, rng), 2 * part)
        crossed = collect(lambda: crossover(rng.choice(parents), rng.choice(parents), space, rng), 2 * part)
        population = parents + mutants + crossed
    return seen


def latency_text(value, cfg):
    return f"{value:.4g} {'GFLOPs' if cfg.latency == 'flops' else 'ms'}"


def clock_of(cfg, device):
    """A function that gives seconds, when all work given to the device is done; with --latency cpu the CPU time of this
    process, which other processes do not lengthen."""
    if device.type == "cpu":
        return time.process_time if cfg.latency == "cpu" else time.perf_counter

    def clock():
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return clock


@torch.no_grad()
def measure_latency(arch, cfg, device):
    """Milliseconds of an architecture on this device, batch 1: an image; or 30 source tokens, and 30 steps of the
    decoder with its cache and a beam. With --latency flops its GFLOPs.

    As HAT measures: 5 untimed runs, then --latency_runs, sorted, cut at both ends (D8), the rest averaged.
    """
    from common.distributed import autocast
    if cfg.latency == "flops":
        return model_flops(arch, cfg) / 1e9
    with torch.device("meta"):  # what the weights are does not matter: none are drawn
        model, times = make_model(arch, cfg), []
    model = model.to_empty(device=device).eval()
    for value in model.parameters():
        value.fill_(0.01)
    source, lengths = torch.zeros(1, 30, dtype=torch.long, device=device), torch.tensor([30], device=device)
    image, tokens = (torch.zeros(1, 3, cfg.image, cfg.image, device=device),
                     torch.zeros(cfg.beam, 1, dtype=torch.long, device=device))

    def once():
        if cfg.task == "cifar10":
            return model(image)
        memories = [tuple(part.expand(cfg.beam, *part.shape[1:]) for part in kept)
                    for kept in model.encode(source, lengths)]
        caches = [{} for _ in memories]
        for step in range(30):
            model.decode(tokens, memories, None, caches, step)

    clock = clock_of(cfg, device)
    for run in range(5 + cfg.latency_runs):
        began = clock()
        with autocast(cfg.dtype, device):
            once()
        times.append(1000 * (clock() - began))
    times = sorted(times[5:])
    cut = int(cfg.trim_timings * len(times))
    kept = times[cut:len(times) - cut]
    return sum(kept) / len(kept)


def measure_archs(archs, first, kind, supernet, task, cfg, ranks):
    """History lines of architectures: loss with the super-net's weights, shared out over the processes, and latency, on
    the first alone, so that no two are timed at once; seconds: what one of them took on average."""
    from common.distributed import gather, on_main
    began = time.perf_counter()
    own = [(index, task.held_out_loss(supernet, archs[index])) for index in range(ranks.rank, len(archs), ranks.size)]
    losses = dict(pair for part in gather(ranks, own) for pair in part)
    latencies = on_main(ranks, lambda: [measure_latency(arch, cfg, ranks.device) for arch in archs])
    seconds = round((time.perf_counter() - began) / len(archs), 3)
    return [{"id": first + index, "round": kind, "parent": None, "arch": json.loads(arch_json(arch)),
             "score": -losses[index], "scores": {"loss": losses[index], "latency": latencies[index]},
             "seconds": seconds} for index, arch in enumerate(archs)]


def collect_samples(supernet, task, space, cfg, ranks, run):
    """--samples random sub-nets with loss and latency as history lines; resumes behind the last block that
    history.jsonl holds."""
    from common.distributed import Stop, on_main, progress, stopping, write_atomic
    history = on_main(ranks, read_samples, run.folder)
    archs = list(dict.fromkeys(sample_arch(space, random.Random(f"{cfg.seed} sample {number}"))
                               for number in range(2 * cfg.samples)))[:cfg.samples]
    if len(archs) < 20:
        raise mistake(f"--samples {cfg.samples}: {len(archs)} different sub-nets cannot "
                      "teach a ranker; it takes 20, and a space that has them")
    bar, block = progress(ranks, len(archs), "measuring sub-nets", len(history)), 4 * ranks.size
    while len(history) < len(archs):
        history += measure_archs(archs[len(history):len(history) + block], len(history), "sample", supernet, task, cfg,
                                 ranks)
        if ranks.main:
            write_atomic(run.folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
        bar.update(len(history) - bar.n)
        if stopping(ranks):
            raise Stop
    bar.close()
    return history


def read_samples(folder):
    """The lines of a history.jsonl that tell of sampled sub-nets; none where there is no such file."""
    from common.distributed import read_jsonl
    path = Path(folder) / "history.jsonl"
    try:
        lines = [line for line in read_jsonl(path) if line["round"] == "sample"]
        return [line for line in lines if arch_of(line["arch"]) and {"loss", "latency"} <= line["scores"].keys()]
    except (KeyError, TypeError, AttributeError):
        raise mistake(f"{path}: not written by --search; take another folder, or begin anew with --restart") from None


def read_history(lines):
    """(architectures, losses, latencies) of the history lines whose losses are numbers."""
    lines = [line for line in lines if line["scores"]["loss"] < WORST]
    if len(lines) < 20:
        raise mistake(f"only {len(lines)} sub-nets have a loss that is a number; it takes 20: lower --lr, or raise "
                      "--warmup or --samples")
    return [arch_of(line["arch"]) for line in lines], *([line["scores"][name] for line in lines]
                                                        for name in ("loss", "latency"))


def rank_and_evolve(space, history, cfg):
    """From measured sub-nets to the finalists, best first, and what was learned on the way."""
    archs, losses, latencies = read_history(history)
    by_loss = Ranker(space, archs, losses, cfg.seed)
    by_latency = Ranker(space, archs, latencies, cfg.seed)
    importances = {"loss": by_loss.importance(), "latency": by_latency.importance()}
    pruned = prune(space, importances.values(), archs, losses, cfg.keep)
    try:
        low, high = latency_window(by_latency.score(archs), latencies, cfg)
        seen = evolve(pruned, by_loss.score, lambda arch: low <= by_latency.score([arch])[0] <= high, cfg)
    except ValueError as error:
        raise mistake(str(error)) from None
    about = {"rankers": {name: {"tau": ranker.tau, "pair_accuracy": ranker.pairs,
                                "fitted_to": len(ranker.y) - len(ranker.stop) - len(ranker.fresh),
                                "held_out": len(ranker.fresh)}
                         for name, ranker in (("loss", by_loss), ("latency", by_latency))},
             "importance": importances, "space": space, "pruned": pruned, "architectures": float(space_size(space)),
             "architectures_pruned": float(space_size(pruned)), "looked_at": len(seen)}
    return sorted(seen, key=seen.__getitem__)[:max(1, cfg.finalists)], about


def search(cfg):
    """Sec. 3.2.2: train the super-net, sample loss and latency, rank, prune, evolve. --train takes best.json."""
    from common.distributed import Checkpoint, launch, say, seed_everything, write_atomic
    with launch(cfg.device) as ranks:
        given = load_model(cfg.init, cfg)[0] if cfg.init else None
        space = checked_space(cfg)
        run, task = open_run(cfg, "search", ranks)
        if not task.set_aside:
            raise mistake("--held_out: a search needs examples for its losses; set some aside, or give --valid_text")
        if run.finished:
            say(ranks, f"{run.folder}: this search is finished (--restart begins anew)")
            return show_search(run.finished, ranks, cfg)
        say(ranks, f"a space of {float(space_size(space)):.2e} architectures")
        seed_everything(cfg.seed, "weights")
        supernet = inherited(cfg, given, widest(space), space) if given else make_supernet(space, cfg)
        supernet = supernet.to(ranks.device)
        checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, model=supernet)
        train_network(supernet, task, cfg, ranks, run, checkpoint, space, "super-net")
        if ranks.main and not (run.folder / "model.pt").exists():
            save_model(run.folder / "model.pt", supernet, space)
        history = collect_samples(supernet.eval(), task, space, cfg, ranks, run)
        finalists, about = rank_and_evolve(space, history, cfg)
        history += measure_archs(finalists, len(history), "finalist", supernet, task, cfg, ranks)
        allowed = [line for line in history
                   if not cfg.latency_limit or line["scores"]["latency"] <= cfg.latency_limit]
        best = max([line for line in allowed if line["round"] == "finalist"] or allowed,
                   key=lambda line: line["score"])  # D9; a sample within the limit is there: see latency_window
        result = {"arch": best["arch"], "score": best["score"], "scores": best["scores"], "id": best["id"], **about}
        if ranks.main:
            write_atomic(run.folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
            write_atomic(run.folder / "best.json", json.dumps(result, indent=1))
        run.log(phase="search",
                **{key: about[key] for key in ("rankers", "importance", "architectures_pruned", "looked_at")})
        run.finish(result)
        checkpoint.remove()
        show_search(result, ranks, cfg)


def checked_space(cfg):
    """space_of(cfg); UserError where one of its values cannot be built."""
    space = space_of(cfg)
    for name, one in ((name, one) for name, choices in space.items() for one in choices):
        def smallest(own, choices, slot=0):
            return one if own == name else min(choices)
        if reason := why_illegal(build_arch(space, smallest, smallest), cfg):
            raise mistake(f"the search space holds what cannot be built: {reason}")
    return space


def show_search(result, ranks, cfg):
    """Print what a search found."""
    from common.distributed import say
    for name, ranker in result["rankers"].items():
        first = ", ".join(f"{FEATURES[feature].title} {lost:.3f}"
                          for feature, lost in result["importance"][name].items())
        say(ranks, f"{name} ranker: Kendall's tau {ranker['tau']:.3f}, pair accuracy {ranker['pair_accuracy']:.3f} "
                   f"on {ranker['held_out']} sub-nets "
                   f"that it never saw, after {ranker['fitted_to']}; importance: {first}")
    say(ranks, f"pruned from {result['architectures']:.2e} to {result['architectures_pruned']:.2e} "
               f"architectures; looked at {result['looked_at']}")
    say(ranks, f"best: loss {result['scores']['loss']:.4f}, latency {latency_text(result['scores']['latency'], cfg)}")
    for name, value in result["arch"].items():
        say(ranks, f"  {FEATURES[name].title:16s} {value}")

# --- objective -----------------------------------------------------------------------------------

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's channels


def normal_pixels(x):
    """Pixels 0..1 with mean 0 and deviation 1 a channel. (B, 3, *, *)"""
    return (x - x.new_tensor(MEAN)[:, None, None]) / x.new_tensor(DEVIATION)[:, None, None]


def resample(images, theta, size):
    """Images (B, 3, 32, 32) uint8 under affine maps theta (B, 2, 3) as (B, 3, size, size) pixels 0..1, bicubic."""
    grid = F.affine_grid(theta, (len(images), 3, size, size), align_corners=False)
    return F.grid_sample(images.float() / 255, grid, mode="bicubic", padding_mode="reflection",
                         align_corners=False).clamp(0, 1)


def plain_images(images, cfg):
    """Images for evaluation. Enlarged ones lose their rim (resized to 256, the middle 224 of it)."""
    zoom = 224 / 256 if cfg.image > 32 else 1.0
    theta = torch.tensor([[zoom, 0, 0], [0, zoom, 0]], device=images.device).expand(len(images), -1, -1)
    return normal_pixels(resample(images, theta, cfg.image))


def augment(images, cfg):
    """Images for training: crop, flip, turn, shear, shift in one resampling; colours; an erased box (D14).
    (B, 3, 32, 32) uint8 -> (B, 3, I, I)"""
    B, device = len(images), images.device

    def draw(low, high):
        return torch.empty(B, device=device).uniform_(low, high)

    area, ratio, strength = draw(cfg.crop_area, 1), draw(math.log(3 / 4), math.log(4 / 3)).exp(), cfg.magnitude / 10
    width, height = (((area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)) if cfg.crop_area < 1
                     else (area, area))
    turn, shear, flip = strength * draw(-math.pi / 6, math.pi / 6), strength * draw(-0.3, 0.3), draw(-1, 1).sign()
    across = (1 - width) * draw(-1, 1) + strength * draw(-0.2, 0.2)
    down = (1 - height) * draw(-1, 1) + strength * draw(-0.2, 0.2)
    rows = [torch.stack([flip * width * turn.cos(), height * (shear - turn.sin()), across], 1),
            torch.stack([flip * width * turn.sin(), height * turn.cos(), down], 1)]
    x = resample(images, torch.stack(rows, 1), cfg.image)
    brightness, contrast, colour = (draw(1 - cfg.jitter, 1 + cfg.jitter)[:, None, None, None] for _ in range(3))
    x = x * brightness
    x = (x - x.mean((1, 2, 3), keepdim=True)) * contrast + x.mean((1, 2, 3), keepdim=True)
    grey = x.mean(1, keepdim=True)
    return erase(normal_pixels(((x - grey) * colour + grey).clamp(0, 1)), cfg.erase)


def erase(x, chance):
    """With this chance an image has a box of 2% to 33% of it filled with noise. x (B, 3, I, I)"""
    B, size, device = len(x), x.shape[-1], x.device
    area, ratio = (torch.empty(B, device=device).uniform_(0.02, 1 / 3),
                   torch.empty(B, device=device).uniform_(math.log(0.3), math.log(3.3)).exp())
    extent = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()]).clamp(max=1.0)  # (2, B) shares of the width
    corner = torch.rand(2, B, device=device) * (1 - extent)
    place = torch.arange(size, device=device) / size
    inside = (place >= corner[..., None]) & (place < (corner + extent)[..., None])  # (2, B, I)
    box = inside[0][:, :, None] & inside[1][:, None] & (torch.rand(B, device=device) < chance)[:, None, None]
    return torch.where(box[:, None], torch.randn_like(x), x)


def smoothed_loss(logits, labels, smoothing, ignore=-100):
    """Label-smoothed cross-entropy summed over the labels, and how many there are. logits (..., V), labels (...)"""
    loss = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=ignore,
                           label_smoothing=smoothing, reduction="sum")
    return loss, (labels != ignore).sum()


def learning_rate(step, cfg):
    """Sec. 6 (D10): warm-up from lr_start to lr; then a cosine down to lr_start, or the inverse square root of the
    step."""
    if step < cfg.warmup:
        return cfg.lr_start + (cfg.lr - cfg.lr_start) * step / cfg.warmup
    if cfg.schedule == "inverse_sqrt":
        return cfg.lr * math.sqrt(max(1, cfg.warmup) / max(1, step))
    done = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return cfg.lr_start + (cfg.lr - cfg.lr_start) * 0.5 * (1 + math.cos(math.pi * done))

# --- training ------------------------------------------------------------------------------------


class ImageTask:
    """CIFAR-10. The images stay on the device as bytes."""
    score_name, unit = "accuracy", "images"

    def __init__(self, cfg, ranks, folder, training=True):
        from common.cifar10 import load_cifar10
        from common.distributed import seed_of
        self.cfg, self.ranks, self.device = cfg, ranks, ranks.device
        if not training:
            return
        images, labels = load_cifar10(cfg.cifar10, "train")
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed_of(cfg.seed, "held out")))
        order, held = order[cfg.held_out:], order[:cfg.held_out]
        order, self.set_aside = order[:cfg.train_rows or None], len(held)
        self.size = cfg.batch // cfg.accumulate
        if len(order) < self.size:
            raise ValueError(f"--batch {cfg.batch}: {len(order)} training images are fewer than a shard of {self.size}")
        self.images, self.labels = images[order].to(self.device), labels[order].to(self.device)
        self.held = images[held].to(self.device), labels[held].to(self.device)

    def batch(self, number, seed):
        """Shard `number` of an endless stream of shuffled epochs."""
        from common.distributed import seed_of
        epoch, place = divmod(number, len(self.labels) // self.size)
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed_of(seed, "order", epoch)))
        rows = order[place * self.size:(place + 1) * self.size].to(self.device)
        return augment(self.images[rows], self.cfg), self.labels[rows]

    def loss(self, model, batch, arch=None, smoothing=0.0):
        return smoothed_loss(model(batch[0], *([arch] if arch else [])), batch[1], smoothing)

    @torch.no_grad()
    def logits(self, model, images, arch=None):
        from common.distributed import autocast
        with autocast(self.cfg.dtype, self.device):
            return torch.cat([model(plain_images(part, self.cfg), arch).float() for part in images.split(500)])

    def held_out_loss(self, model, arch=None):
        """Cross-entropy on the images set aside (D5); WORST where it is no number."""
        loss = F.cross_entropy(self.logits(model, self.held[0], arch), self.held[1]).item()
        return loss if math.isfinite(loss) else WORST

    def test_data(self):
        """(images, labels) of the test split; UserError where it is missing."""
        from common.cifar10 import load_cifar10
        return [part[:64 if self.cfg.dry_run else None] for part in load_cifar10(self.cfg.cifar10, "test")]

    def score(self, model, arch=None):
        """{"accuracy": share of the test images}."""
        images, labels = self.test_data()
        found = self.logits(model.eval(), images.to(self.device), arch).argmax(1).cpu()
        return {"accuracy": (found == labels).double().mean().item(), "examples": len(labels)}


class TextTask:
    """Translation of parallel text with a joint vocabulary."""
    score_name, unit = "bleu", "tokens"

    def __init__(self, cfg, ranks, folder, training=True):
        from common.distributed import on_main
        from common.tokenization import load_tokenizer
        self.cfg, self.ranks, self.device, self.folder = cfg, ranks, ranks.device, folder
        on_main(ranks, self.make_tokenizer)
        self.tokenizer = load_tokenizer(folder / "spiece.model", lower=False)
        if cfg.init and self.tokenizer.vocab_size != cfg.vocab_size:
            raise mistake(f"{cfg.init}: a model of {cfg.vocab_size} pieces beside a spiece.model of "
                          f"{self.tokenizer.vocab_size}; it needs its own")
        cfg.vocab_size = self.tokenizer.vocab_size
        if training:
            self.open_training()

    def open_training(self):
        """The pairs to train on, and those of validation losses: of --valid_text, else carved out (D5)."""
        from common.distributed import seed_of
        from common.parallel import TokenBatches
        cfg = self.cfg

        def shuffled(text):
            generator = torch.Generator().manual_seed(seed_of(cfg.seed, "held out"))
            return torch.randperm(len(text), generator=generator).numpy()
        self.text = self.held_text = self.encode(cfg.train_text, "text")
        order = shuffled(self.text)
        if cfg.valid_text:
            self.held_text = self.encode(cfg.valid_text, "valid")
            held = shuffled(self.held_text)[:cfg.held_out or None]
        else:
            order, held = order[cfg.held_out:], order[:cfg.held_out]
        self.order, self.set_aside = order[:cfg.train_rows or None], len(held)
        if not len(order):
            raise ValueError(f"--held_out {cfg.held_out}: none of {len(self.text)} pairs is left to train on")
        self.batches = TokenBatches(self.text.longest_side()[self.order] + 1, cfg.batch // cfg.accumulate)
        self.held = held[self.held_text.longest_side()[held].argsort(kind="stable")]

    def encode(self, prefix, name):
        """Two files as token ids, kept in the run folder."""
        from common.distributed import on_main
        from common.parallel import encode_pairs
        cfg = self.cfg
        arguments = prefix, (cfg.source, cfg.target), self.tokenizer, self.folder / name, cfg.length - 1
        on_main(self.ranks, lambda: len(encode_pairs(*arguments)))
        return encode_pairs(*arguments)

    def make_tokenizer(self):
        """The joint vocabulary in the run folder: that of --init, else --tokenizer, or trained on both sides of the
        training text."""
        from common.parallel import read_pairs
        from common.tokenization import load_tokenizer, train_sentencepiece
        cfg, target = self.cfg, self.folder / "spiece.model"
        if cfg.init and cfg.tokenizer:
            raise mistake("--tokenizer: the weights of --init have a vocabulary of their own; leave one of them out")
        if target.exists():
            return
        if cfg.init or cfg.tokenizer:
            home = Path(cfg.init) if Path(cfg.init).is_dir() else Path(cfg.init).parent
            return load_tokenizer(cfg.tokenizer or home / "spiece.model", lower=False).save(self.folder)
        read_pairs(cfg.train_text, cfg.source, cfg.target)
        train_sentencepiece([f"{cfg.train_text}.{cfg.source}", f"{cfg.train_text}.{cfg.target}"], target,
                            cfg.vocab_size, lower=False)

    def tensors(self, sources, targets):
        """(source (B, S), lengths (B,), target in (B, T), target out (B, T), -100 behind the end) of lists of ids."""
        from common.parallel import pad
        tokenizer = self.tokenizer
        source, lengths = pad([[*row, tokenizer.eos_id] for row in sources], tokenizer.pad_id)
        given, _ = pad([[tokenizer.bos_id, *row] for row in targets], tokenizer.pad_id)
        wanted, _ = pad([[*row, tokenizer.eos_id] for row in targets], -100)
        return [tensor.to(self.device, non_blocking=True) for tensor in (source, lengths, given, wanted)]

    def batch(self, number, seed):
        """Shard `number` of an endless stream of shuffled epochs."""
        rows = self.order[self.batches.batch(number, seed)]
        return self.tensors([self.text.source(row) for row in rows], [self.text.target(row) for row in rows])

    def loss(self, model, batch, arch=None, smoothing=0.0):
        return smoothed_loss(model(*batch[:3], *([arch] if arch else [])), batch[3], smoothing)

    @torch.no_grad()
    def held_out_loss(self, model, arch=None):
        """Cross-entropy a token on the sentences set aside (D5); WORST where it is no number."""
        from common.distributed import autocast
        total = count = 0
        for start in range(0, len(self.held), 64):
            rows = self.held[start:start + 64]
            with autocast(self.cfg.dtype, self.device):
                loss, tokens = self.loss(model, self.tensors([self.held_text.source(row) for row in rows],
                                                             [self.held_text.target(row) for row in rows]), arch)
            total, count = total + loss, count + tokens
        loss = (total / count).item()
        return loss if math.isfinite(loss) else WORST

    def translate(self, model, lines, arch=None):
        """Translations of raw sentences, of an empty one nothing; the processes share them out. Sentences of like
        length stand in one batch."""
        from common.distributed import autocast, gather, progress, say
        tokenizer, longest = self.tokenizer, self.cfg.length - 1
        rows = tokenizer.encode_batch(lines)
        if cut := sum(len(row) > longest for row in rows):
            say(self.ranks, f"{cut} sentences are cut at {longest} pieces (--length)")
        rows = [row[:longest] for row in rows]
        order = sorted((index for index in range(len(rows)) if rows[index]), key=lambda index: len(rows[index]))
        chunks, found = [order[start:start + 64] for start in range(0, len(order), 64)], {}
        bar = progress(self.ranks, len(chunks), "translating")
        for chunk in chunks[self.ranks.rank::self.ranks.size]:
            source, lengths, _, _ = self.tensors([rows[index] for index in chunk], [[]] * len(chunk))
            with autocast(self.cfg.dtype, self.device):
                best = beam_search(model, source, lengths, tokenizer.bos_id, tokenizer.eos_id,
                                   (tokenizer.pad_id, tokenizer.bos_id), arch, self.cfg.beam, self.cfg.length_penalty)
            found.update((index, tokenizer.decode(ids)) for index, (ids, _) in zip(chunk, best))
            bar.update(self.ranks.size)
        bar.close()
        found = dict(pair for part in gather(self.ranks, list(found.items())) for pair in part)
        return [found.get(index, "") for index in range(len(lines))]

    def test_data(self):
        """(source lines, target lines) of --test_text; UserError where it is missing."""
        from common.parallel import read_pairs
        if not self.cfg.test_text:
            raise mistake("--test_text: missing; give the PREFIX of the text to be scored on")
        return [side[:64 if self.cfg.dry_run else None]
                for side in read_pairs(self.cfg.test_text, self.cfg.source, self.cfg.target)]

    def score(self, model, arch=None):
        """{"bleu": percent on the test text, ...}; the first twenty translations go with it."""
        from common.metrics import corpus_bleu
        sources, references = self.test_data()
        found = self.translate(model.eval(), sources, arch)
        shown = [{"source": one, "reference": two, "found": three}
                 for one, two, three in list(zip(sources, references, found))[:20]]
        return {"bleu": corpus_bleu(found, references), "examples": len(sources), "translations": shown}  # D14


def make_optimizer(model, cfg):
    """AdamW with Sec. 6's betas; no weight decay on biases and LayerNorms (D10)."""
    plain = [value for name, value in model.named_parameters() if name.endswith("bias") or "norm" in name]
    decayed = [value for name, value in model.named_parameters() if not (name.endswith("bias") or "norm" in name)]
    groups = [{"params": decayed, "weight_decay": cfg.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=(0.9, 0.998), fused=True)


def accumulate_gradients(network, model, task, cfg, ranks, step, arch):
    """Gradients of the mean loss of one update, summed over the logical shards in order: the same on any number of
    processes. Returns the loss and the number of labels."""
    from common.distributed import ShardSum, autocast, seed_everything, shard_range
    total = ShardSum(ranks)
    for shard in shard_range(ranks, cfg.accumulate):
        seed_everything(cfg.seed, "train", step, shard)
        batch = task.batch(step * cfg.accumulate + shard, cfg.seed)
        with autocast(cfg.dtype, ranks.device):
            loss, count = task.loss(network, batch, arch, cfg.label_smoothing)
        loss.backward()
        used = [value for value in model.parameters() if value.grad is not None]
        total.add([*(value.grad for value in used), loss.detach(), count.float()])
        if shard + 1 < shard_range(ranks, cfg.accumulate).stop:
            model.zero_grad()
    *parts, loss, count = total.total().split([*(value.numel() for value in used), 1, 1])
    for value, part in zip(used, parts):
        value.grad = part.view_as(value) / count
    return loss / count, count


def train_network(model, task, cfg, ranks, run, checkpoint, space=None, name="train"):
    """Train a network; with a space, its super-net, one random sub-net an update. Resumes; raises Stop after SIGTERM,
    UserError where it diverges.

    A network's last --average checkpoints are kept beside the checkpoint as weights-STEP.pt.
    """
    from common.distributed import Stop, peak_memory, progress, save_file, stopping
    optimizer = checkpoint.owned["optimizer"] = make_optimizer(model, cfg)
    state = checkpoint.restore()
    start, looked = (cfg.steps if state.get("stopped") else state.get("step", 0)), state.get("looked", [])
    network, bar = torch.compile(model) if cfg.compile and not space else model, progress(ranks, cfg.steps, name, start)
    seen, began = 0, time.perf_counter()
    for step in range(start, cfg.steps):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, cfg)
        loss, count = accumulate_gradients(network, model, task, cfg, ranks, step,
                                           draw_subnet(space, cfg, step) if space else None)
        seen += count
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)  # D14
        optimizer.step()
        optimizer.zero_grad()
        bar.update()
        saves = (step + 1) % cfg.save_every == 0 or step + 1 == cfg.steps
        stop = (step + 1) % 10 == 0 and stopping(ranks)
        stopped = False
        if space and cfg.stability and (step + 1) % cfg.look_every == 0:
            looked, stopped = look_at_ranking(model, task, space, cfg, ranks, run, step, looked)
        if saves or stop or stopped or (step + 1) % 50 == 0:
            value = loss.item()
            if not math.isfinite(value):
                raise mistake(f"{run.folder}: the loss became {value} before update {step + 1}; "
                              "lower --lr or raise --warmup")
            bar.set_postfix(loss=f"{value:.3f}", lr=f"{learning_rate(step, cfg):.1e}")
            speed = {f"{task.unit}_per_second": round(float(seen) / (time.perf_counter() - began), 1)}
            run.log(phase=name, step=step + 1, loss=value, lr=learning_rate(step, cfg), **speed,
                    memory_mb=round(peak_memory(ranks.device)))
            seen, began = 0, time.perf_counter()
        if saves and not space and ranks.main:
            if task.set_aside:
                run.log(phase=f"{name} validation", step=step + 1, loss=task.held_out_loss(model.eval()))
            save_file(checkpoint.path.with_name(f"weights-{step + 1}.pt"), model.state_dict())
        if saves or stop or stopped:
            checkpoint.save(step=step + 1, looked=looked, stopped=stopped)
        if saves and not space and ranks.main:
            for path in weight_files(checkpoint.path.parent)[:-cfg.average]:
                path.unlink()
        if stop:
            raise Stop
        if stopped:
            break
    bar.close()


def look_at_ranking(model, task, space, cfg, ranks, run, step, before):
    """(losses of a fixed set of sub-nets, whether their order is as stable as --stability asks): the option to stop a
    super-net early."""
    from common.distributed import gather
    archs = [sample_arch(space, random.Random(f"{cfg.seed} look {number}")) for number in range(cfg.look_nets)]
    model.eval()
    own = [(index, task.held_out_loss(model, archs[index])) for index in range(ranks.rank, len(archs), ranks.size)]
    losses = [loss for _, loss in sorted(pair for part in gather(ranks, own) for pair in part)]
    tau = agreement(before, losses)[0] if before else 0.0
    run.log(phase="ranking", step=step + 1, tau=tau)
    return losses, tau > cfg.stability


def weight_files(folder):
    """weights-STEP.pt files of a folder, oldest first."""
    return sorted(Path(folder).glob("weights-*.pt"), key=lambda path: int(path.stem.split("-")[1]))


def average(paths):
    """The mean of several files of weights (Sec. 4.1.4)."""
    from common.distributed import load_file
    total = None
    for path in paths:
        state = load_file(path)
        total = state if total is None else {name: total[name] + value for name, value in state.items()}
    return {name: value / len(paths) for name, value in total.items()}


# what a model needs beside its Arch
GEOMETRY = ("task", "head_dim", "qkv", "relative", "image", "patch", "length", "vocab_size", "source", "target")


def save_model(path, model, space=None):
    from common.distributed import save_file
    save_file(path, {"arch": arch_json(model.arch), "space": space,
                     "settings": {name: getattr(model.cfg, name) for name in GEOMETRY},
                     "weights": {name: value.cpu() for name, value in model.state_dict().items()}})


def load_model(path, cfg):
    """(the model of a run folder or a model.pt, the space of a super-net or None); cfg takes over its geometry.
    UserError where the file holds no model, or another one than a flag says."""
    from common.distributed import load_file
    saved = load_file(Path(path) / "model.pt" if Path(path).is_dir() else path)
    try:
        for name in GEOMETRY:
            own, value = saved["settings"][name], getattr(cfg, name)
            if type(own) is not type(value) or own != value and name in ("task", *getattr(cfg, "given", ())):
                raise mistake(f"{path}: a model of --{name} {own}, not of --{name} {value}")
            setattr(cfg, name, own)
        arch, space = arch_of(json.loads(saved["arch"])), saved["space"]
        if reason := why_illegal(arch, cfg):
            raise ValueError(reason)
        model = make_model(arch, cfg, space)
        model.load_state_dict(saved["weights"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise mistake(f"{path}: no model of --train or --search ({(str(error).splitlines() or [''])[0]})") from None
    return model, space


def train_from_scratch(cfg, arch, task, ranks, run, folder, name):
    """Train one architecture in a folder, or load what was trained there. Returns its last checkpoints' average."""
    from common.distributed import Checkpoint, barrier, on_main, seed_everything
    done = folder / "model.pt"
    if not on_main(ranks, done.exists):
        folder.mkdir(parents=True, exist_ok=True)
        seed_everything(cfg.seed, "weights")
        model = inherited(cfg, load_model(cfg.init, cfg)[0], arch) if cfg.init else make_model(arch, cfg)
        checkpoint = Checkpoint(folder / "checkpoint.pt", ranks, model=model.to(ranks.device))
        train_network(model, task, cfg, ranks, run, checkpoint, name=name)
        model.load_state_dict(average(weight_files(folder)[-cfg.average:]))
        barrier(ranks)
        if ranks.main:
            save_model(done, model)
            for path in folder.glob("weights-*"):
                path.unlink()
            checkpoint.remove()
        barrier(ranks)
    return load_model(done, cfg)[0].to(ranks.device).eval()


def inherited(cfg, model, arch, space=None):
    """extract() from the model of --init; UserError where it does not hold the architecture."""
    try:
        return extract(model, arch, space)
    except ValueError as error:
        raise mistake(f"{cfg.init}: {error}") from None


def train(cfg):
    """The winner from scratch (Sec. 3.2.2), or from inherited weights with --init. model.pt is the average of the last
    checkpoints."""
    from common.distributed import launch, say
    with launch(cfg.device) as ranks:
        arch = chosen_arch(cfg, ranks, load_model(cfg.init, cfg) if cfg.init else None)
        run, task = open_run(cfg, "train", ranks, arch=arch)
        if run.finished:
            say(ranks, f"{run.folder}: this training is finished (--restart begins anew)")
        else:
            train_from_scratch(cfg, arch, task, ranks, run, run.folder, "train")
            run.finish({"arch": json.loads(arch_json(arch)), "parameters": sum(count_parameters(arch, cfg).values())})
        say(ranks, f"{run.folder}: trained; score it with --evaluate --init {run.folder}")


def chosen_arch(cfg, ranks, loaded=None):
    """The architecture that --arch names; without it that of a network in --init (loaded: its load_model), what the
    search in --init, or of this task and preset, found, or in the preset base an mFormer of the paper's size."""
    from common.distributed import say
    if loaded and not (loaded[1] or cfg.arch):
        return loaded[0].arch
    text, found = cfg.arch, Path(cfg.init or f"runs/mformer-search-{cfg.task}-{cfg.preset}") / "best.json"
    if not text and found.exists():
        text = str(found)
    elif not text and cfg.preset == "base":
        text = "mformer"
    elif not text:
        raise mistake(f"{found}: no such file; run --search first, or give --arch")
    if text != cfg.arch:
        say(ranks, f"no --arch: taking {text}")
    path = Path(text)
    try:
        known = text in PUBLISHED[cfg.task] or text.lstrip().startswith("{")
        return parse_arch(text if known or not path.is_file() else path.read_text(encoding="utf-8"), cfg)
    except ValueError as error:
        raise mistake(f"--arch {text}: {error}") from None


def open_run(cfg, action, ranks, with_data=True, arch=None):
    """Open the run folder and the data. Returns (common.distributed.RunFolder, task); the task's class where no data is
    wanted. arch: what a folder was made for; one made for another architecture is refused."""
    from common.distributed import RunFolder
    from common.inputs import fill_in
    settings, kind = dataclasses.asdict(cfg), ImageTask if cfg.task == "cifar10" else TextTask
    settings.update({"arch": arch_json(arch)} if arch else {})
    if not with_data:
        return RunFolder(cfg.out, settings, action, ranks, cfg.restart), kind
    names = ("cifar10",) if cfg.task == "cifar10" else ("train_text", "valid_text", "test_text")
    demo = {} if cfg.translate or any(getattr(cfg, name) for name in names) else fill_in(cfg, ranks, *names)
    training = action not in ("evaluate", "translate")
    if cfg.task == "wmt14" and training and not cfg.train_text:
        raise mistake("--train_text: missing; give the PREFIX of the parallel text to train on")
    run = RunFolder(cfg.out, settings, action, ranks, cfg.restart, demo)
    try:
        return run, kind(cfg, ranks, run.folder, training)
    except ValueError as error:
        raise mistake(str(error)) from None


def table_row(name, arch, model, task, cfg, ranks):
    """What the tables of the analyses hold for a trained network."""
    from common.distributed import on_main
    scores = task.score(model)
    return {"name": name, "parameters": sum(count_parameters(arch, cfg).values()), "flops": model_flops(arch, cfg),
            "latency": on_main(ranks, measure_latency, arch, cfg, ranks.device), **scores,
            "arch": json.loads(arch_json(arch))}


def evaluate(cfg):
    """Accuracy on the test images, or BLEU on the test text (Sec. 4.1.4); --translate FILE turns a file of sentences
    into translations."""
    from common.distributed import launch, say
    if not cfg.init:
        raise mistake("--evaluate: --init is missing; give the run folder of --train, or of --search with --arch")
    with launch(cfg.device) as ranks:
        loaded = load_model(cfg.init, cfg)
        arch = chosen_arch(cfg, ranks, loaded)
        model = inherited(cfg, loaded[0], arch).to(ranks.device).eval()
        run, task = open_run(cfg, "translate" if cfg.translate else "evaluate", ranks, arch=arch)
        result = (translate_file(cfg, model, task, run, ranks) if cfg.translate
                  else table_row("evaluated", arch, model, task, cfg, ranks))
        run.finish(result)  # never taken from a folder: the model or the file may have changed
        if cfg.translate:
            return
        for shown in result.get("translations", []):
            say(ranks, f"  {shown['source']}\n    {shown['found']}\n    ({shown['reference']})")
        say(ranks, f"{task.score_name} {result[task.score_name]:.4f} on {result['examples']} test examples, "
                   f"{result['parameters']:,} parameters, "
                   f"{result['flops'] / 1e9:.4g} GFLOPs, latency {latency_text(result['latency'], cfg)}")


def translate_file(cfg, model, task, run, ranks):
    """Translate the lines of a file, to the screen and into translations.TARGET of the run folder."""
    from common.distributed import on_main, say, write_atomic
    from common.parallel import read_lines
    lines = on_main(ranks, read_lines, cfg.translate)
    found = task.translate(model, lines)
    if ranks.main:
        write_atomic(run.folder / f"translations.{cfg.target}", "".join(line + "\n" for line in found))
    say(ranks, "\n".join(found))
    return {"sentences": len(lines)}


def searched(cfg):
    """(space, history lines of the samples) of the search folder that --init names."""
    lines = read_samples(cfg.init) if cfg.init else []
    if not lines:
        raise mistake(f"--init {cfg.init or '(not given)'}: no history.jsonl with samples; "
                      "give the run folder of a finished --search")
    return load_model(cfg.init, cfg)[1], lines


def analyze_importance(cfg, ranks, run, task):
    """Sec. 7: the features ranked for accuracy and for efficiency."""
    space, lines = searched(cfg)
    archs, losses, latencies = read_history(lines)
    rows = []
    for name, values in (("accuracy", losses), ("efficiency", latencies)):
        per_seed = [Ranker(space, archs, values, seed).importance() for seed in range(5)]  # five cuts of the samples
        means = {feature: sum(each[feature] for each in per_seed) / len(per_seed) for feature in per_seed[0]}
        rows += [{"regarding": name, "rank": rank, "feature": FEATURES[feature].title, "pair_accuracy_lost": lost}
                 for rank, (feature, lost) in enumerate(sorted(means.items(), key=lambda item: -item[1]), 1)]
    return rows


def analyze_ranker(cfg, ranks, run, task):
    """How good the rankers are for how many sub-nets, on five parts that each were not fitted to; and what pruning
    brings: the pruned and the whole space searched at equal cost, for several seeds on the same sub-nets."""
    space, lines = searched(cfg)
    model = load_model(cfg.init, cfg)[0].to(ranks.device).eval()
    archs, losses, latencies = read_history(lines)
    rows = []
    for share in (0.25, 0.5, 1.0):
        for name, values in (("loss", losses), ("latency", latencies)):
            pairs, scores = list(zip(archs, values)), []
            for part in range(5):
                known = [pair for place, pair in enumerate(pairs) if place % 5 != part]
                known = known[:max(20, round(share * len(known)))]  # fewer teach nothing
                unseen, wanted = zip(*pairs[part::5])
                scores.append(agreement(Ranker(space, *zip(*known), part).score(unseen), wanted))
            taus, accuracies = zip(*scores)
            rows.append({"ranker": name, "sub-nets": len(known), "unseen": len(unseen),
                         **mean_and_deviation("tau", taus), **mean_and_deviation("pair_accuracy", accuracies)})
    for keep in (cfg.keep or 3, 0):
        best, means, sizes = [], [], []
        for seed in range(cfg.runs):
            found, about = rank_and_evolve(space, lines, dataclasses.replace(cfg, keep=keep, seed=seed))
            measured = [task.held_out_loss(model, arch) for arch in found]
            best, means, sizes = (best + [min(measured)], means + [sum(measured) / len(measured)],
                                  sizes + [about["architectures_pruned"]])
        rows.append({"search": f"keep {keep}" if keep else "whole space", "architectures": sum(sizes) / len(sizes),
                     "runs": cfg.runs,
                     **mean_and_deviation("best_loss", best), **mean_and_deviation("finalists_loss", means)})
    return rows


def mean_and_deviation(name, values):
    mean = sum(values) / len(values)
    return {name: mean, f"{name}_sd": math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))}


def train_variants(cfg, ranks, run, task, variants):
    """Train {name: architecture} from scratch with --runs seeds each; a row each, with mean and deviation of scores."""
    from common.distributed import on_main, read_json, write_atomic
    task.test_data()  # a missing one ends the run here, not after the training
    rows = []
    for name, arch in variants.items():
        scored = []
        for seed in range(cfg.runs):
            folder, own = (run.folder / f"{name.replace(' ', '-')}-{seed}",
                           dataclasses.replace(cfg, seed=cfg.seed + seed))
            model, path = train_from_scratch(own, arch, task, ranks, run, folder, f"{name} {seed}"), folder / "row.json"
            if not on_main(ranks, path.exists):  # a resumed analysis does not score again
                row = table_row(name, arch, model, task, own, ranks)
                on_main(ranks, lambda: write_atomic(path, json.dumps(row)))
            scored.append(on_main(ranks, read_json, path))
        values = [row[task.score_name] for row in scored]
        rows.append({**scored[0], "runs": len(values), **mean_and_deviation(task.score_name, values), "each": values})
        run.log(phase="variant", name=name, values=values)
    return rows


def analyze_types(cfg, ranks, run, task):
    """Table 5: the architecture found with its own types, with softmax everywhere and with linear attention in all
    encoder layers (D13); one that is another over again is left out."""
    arch = chosen_arch(cfg, ranks)
    variants = {"as found": arch, "all softmax": retype(arch, "softmax", PARTS),
                "all linear": retype(arch, "linear")}
    return train_variants(cfg, ranks, run, task, {name: one for number, (name, one) in enumerate(variants.items())
                                                  if one not in list(variants.values())[:number]})


def analyze_decoder(cfg, ranks, run, task):
    """Sec. 8: linear attention in the decoder; self-attention, cross-attention, both."""
    if cfg.task != "wmt14":
        raise mistake("--analyze decoder: images have no decoder; add --task wmt14")
    arch = retype(chosen_arch(cfg, ranks), "softmax", ("decoder_types", "cross_types"))
    cases = {"none": (), "self": ("decoder_types",), "cross": ("cross_types",),
             "both": ("decoder_types", "cross_types")}
    return train_variants(cfg, ranks, run, task, {f"linear in decoder {name}": retype(arch, "linear", parts)
                                                  for name, parts in cases.items()})


def analyze_shape(cfg, ranks, run, task):
    """Figures 5 and 6: widths, heads, types and connections layer by layer."""
    from common.distributed import say
    names = cfg.compare or ((cfg.arch,) if cfg.arch else tuple(PUBLISHED[cfg.task]))
    if set(names) & set(PUBLISHED[cfg.task]):
        say(ranks, "published is cosFormer*'s list for CIFAR-10 alone; the others are made to the paper's totals")
    rows = []
    for name in names:
        arch = chosen_arch(dataclasses.replace(cfg, arch=name), ranks)
        for feature, (title, depth) in FEATURES.items():
            values = getattr(arch, feature)
            if depth and values:
                rows.append({"architecture": name, "feature": title,
                             **{f"layer {layer}": value for layer, value in enumerate(values, 1)}})
    return rows


def analyze_pareto(cfg, ranks, run, task):
    """Figure 1: score against FLOPs; a row is on the front if none is as good in both and better in one. --compare:
    folders of --evaluate or --analyze types."""
    from common.distributed import on_main, read_json
    score, rows = task.score_name, []
    keep = ("name", "parameters", "flops", "latency", score)
    for folder in cfg.compare:
        done = on_main(ranks, read_json, Path(folder) / "done.json")
        done = done if isinstance(done, list) else [done]
        rows += [{"from": folder, **{key: row[key] for key in keep}} for row in done
                 if isinstance(row, dict) and {*keep} <= row.keys()]
    if not rows:
        raise mistake(f"--compare: no folder given holds any {score}; --analyze pareto needs finished folders of "
                      "--evaluate, --analyze types or --analyze decoder")
    return [{**row, "on_front": not any(other[score] >= row[score] and other["flops"] <= row["flops"]
                                 and (other[score], other["flops"]) != (row[score], row["flops"]) for other in rows)}
            for row in rows]


def attention_cost(kind, tokens, device, clock, runs=3):
    """What one attention costs, 8 heads of 64, batch 1: {forward_ms, backward_ms: least of several runs; kept_mb: what
    stays for the backward pass; peak_mb: all that was allocated at once, where the device counts it}."""
    heads, dim, best, kept = 8, 64, [float("inf")] * 2, {}
    q, k, v = (torch.randn(1, heads, tokens, dim, device=device, requires_grad=True) for _ in range(3))
    table, lengths = torch.randn(29, dim, device=device, requires_grad=True), torch.tensor([tokens], device=device)
    attend = {"plain softmax": lambda: softmax_attention(q, k, v),
              "relative softmax": lambda: softmax_attention(q, k, v, table),
              "linear": lambda: linear_attention(q, k, v, lengths),
              "causal linear": lambda: causal_linear_attention(q, k, v, tokens)}[kind]

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attend()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(runs):
        began = clock()
        out = attend()
        middle = clock()
        out.sum().backward()
        best = [min(best[0], middle - began), min(best[1], clock() - middle)]
    peak = {"peak_mb": torch.cuda.max_memory_allocated(device) / 1e6} if device.type == "cuda" else {}
    return {"forward_ms": 1000 * best[0], "backward_ms": 1000 * best[1], "kept_mb": sum(kept.values()) / 1e6, **peak}


def analyze_length(cfg, ranks, run, task):
    """Time and memory of the attention types by sequence length, forward and backward."""
    rows, clock = [], clock_of(cfg, ranks.device)
    for tokens in (256, 512, 1024, 2048, 4096, 8192)[:4 if cfg.dry_run else None]:
        for kind in ("plain softmax", "relative softmax", "linear", "causal linear"):
            if kind != "relative softmax" or tokens <= 4096:  # its scores would fill more than 8 GB
                rows.append({"type": kind, "tokens": tokens, **attention_cost(kind, tokens, ranks.device, clock)})
                run.log(phase="length", **rows[-1])
    return rows + length_summary(rows)


def length_summary(rows):
    """For each type the power of the length with which time and kept memory grow from 1,024 tokens on, and where linear
    gets faster than it."""
    summary, kinds = [], list(dict.fromkeys(row["type"] for row in rows))
    costs = {kind: {row["tokens"]: (row["forward_ms"] + row["backward_ms"], row["kept_mb"])
                    for row in rows if row["type"] == kind} for kind in kinds}
    for kind, cost in costs.items():
        powers = [math.log(cost[max(cost)][part] / cost[1024][part]) / math.log(max(cost) / 1024) for part in (0, 1)]
        cheaper = [tokens for tokens in cost if costs["linear"][tokens][0] < cost[tokens][0]]
        from_here = [tokens for tokens in cost if set(each for each in cost if each >= tokens) <= set(cheaper)]
        summary.append({"type": kind, "power_of_time": powers[0], "power_of_memory": powers[1],
                        "linear_faster_from": min(from_here, default=None)})
    return summary


ANALYSES = {name: globals()[f"analyze_{name}"]
            for name in ("importance", "types", "decoder", "shape", "pareto", "length", "ranker")}


def plot_rows(rows, name, path):
    """A picture of an analysis, where matplotlib is there: layers, lengths or scores as they come."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    titles = [""] if name != "shape" else list(dict.fromkeys(row["feature"] for row in rows
                                                             if "Type" not in row["feature"]))
    figure, (panels,) = pyplot.subplots(1, len(titles), figsize=(8 * len(titles), 5), squeeze=False)
    axes = panels[0]
    if name == "length":
        for kind in dict.fromkeys(row["type"] for row in rows):
            own = [row for row in rows if row["type"] == kind and "tokens" in row]
            axes.loglog([row["tokens"] for row in own], [row["forward_ms"] + row["backward_ms"] for row in own],
                        marker="o", label=kind)
        axes.set(xlabel="tokens", ylabel="forward and backward, ms")
    elif name == "shape":
        for title, axes in zip(titles, panels):
            for row in (row for row in rows if row["feature"] == title):
                values = [value for key, value in row.items() if key.startswith("layer ")]
                axes.plot(range(1, len(values) + 1), values, marker="o", label=row["architecture"])
            axes.set(xlabel="layer", ylabel=title)
    else:
        score = next((key for key in ("bleu", "accuracy", "pair_accuracy_lost", "tau") if key in rows[0]), None)
        for row in (row for row in rows if score in row):
            label = row.get("name") or (f"{row.get('feature', row.get('ranker'))} "
                                        f"({row.get('regarding', row.get('sub-nets'))})")
            place = row.get("flops", row.get("rank", row.get("sub-nets", 0)))
            axes.scatter(place, row[score], s=row.get("parameters", 4e6) / 4e4, label=label, alpha=0.6)
        axes.set(xlabel="FLOPs" if "flops" in rows[0] else "rank or sub-nets", ylabel=score)
    for axes in panels:
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    return True


def take_settings(cfg):
    """What the search in --init was given: another cut would hold out examples that its super-net was trained on."""
    from common.distributed import read_json
    path = Path(cfg.init) / "config.json"
    try:
        for name in ("seed", "held_out", "train_rows", "cifar10", "train_text", "valid_text", "test_text"):
            setattr(cfg, name, read_json(path)["settings"][name])
    except (OSError, KeyError, TypeError):
        raise mistake(f"{path}: no settings of a --search; --init takes its run folder") from None


def analyze(cfg, name):
    """One of ANALYSES: a table on the screen, rows.json, and a picture where matplotlib is there."""
    from common.distributed import launch, say, write_atomic
    if name not in ANALYSES:
        raise mistake(f"--analyze {name}: choose from {', '.join(ANALYSES)}")
    with launch(cfg.device) as ranks:
        loaded = load_model(cfg.init, cfg) if cfg.init else None
        if cfg.init and name in ("importance", "ranker"):
            take_settings(cfg)
        arch = chosen_arch(cfg, ranks, loaded) if name in ("types", "decoder") else None
        cfg.arch = arch_json(arch) if arch else cfg.arch
        run, task = open_run(cfg, f"analyze {name}", ranks, arch or name == "ranker", arch)
        rows = run.finished if name not in ("pareto", "shape") else None  # what those two compare may have changed
        if rows:
            say(ranks, f"{run.folder}: this analysis is finished (--restart begins anew)")
        rows = rows or ANALYSES[name](cfg, ranks, run, task)
        run.finish(rows)
        if ranks.main:
            write_atomic(run.folder / "rows.json", json.dumps(rows, indent=1))
            if not plot_rows(rows, name, run.folder / f"{name}.png"):
                say(ranks, "no picture: pip install matplotlib")
        show_rows(rows, ranks)


def show_rows(rows, ranks):
    """Rows as text, one block for rows with the same keys."""
    from common.distributed import say
    hidden = ("arch", "translations", "each", "examples")
    before = None
    for row in rows:
        keys = [key for key in row if key not in hidden]
        if keys != before:
            say(ranks, "  ".join(f"{key:>14s}" for key in keys))
        before = keys
        say(ranks, "  ".join(f"{row[key]:14.4g}" if isinstance(row[key], float) else f"{str(row[key]):>14s}"
                             for key in keys))

# --- command line --------------------------------------------------------------------------------


def describe(cfg):
    """Parameters and FLOPs as JSON, in the paper's counting and the honest one: of --arch, of the model in --init, else
    of the paper's mFormer (preset base) or the widest architecture of the preset."""
    from common.distributed import Ranks
    model = load_model(cfg.init, cfg)[0] if cfg.init else None
    space, paper = space_of(cfg), paper_geometry(cfg)
    arch = (chosen_arch(cfg, Ranks(0, 1, None)) if cfg.arch else model.arch if model else
            PUBLISHED[cfg.task]["mformer"] if cfg.preset == "base" else widest(space))
    if arch in PUBLISHED[cfg.task].values() and not model:
        cfg = dataclasses.replace(paper, **{name: getattr(cfg, name) for name in GEOMETRY if name in cfg.given})
    parts, published = count_parameters(arch, cfg), {}
    for name, row in PUBLISHED[cfg.task].items():
        published[name] = {"paper": {"parameters": paper_parameters(row, paper), "flops": paper_flops(row, paper)},
                           "honest": {"parameters": sum(count_parameters(row, paper).values()),
                                      "flops": paper_flops(row, paper, True),
                                      "flops_done_here": model_flops(row, paper)}}
    print(json.dumps({
        "parameters": sum(parts.values()), "parts": parts, "flops": model_flops(arch, cfg),
        "flops_counting": "2 x multiply-adds of every matrix product that the model does for one image, or for 30 "
                          "source and 30 target tokens; in `published`: `paper` counts as its tables do, "
                          "`honest` adds the products of linear attention it left out",
        "space": {"architectures": float(space_size(space)), **space}, "arch": json.loads(arch_json(arch)),
        "published": published}))


def paper_geometry(cfg):
    """The configuration in which the paper's architectures live."""
    settings = {key: value for key, value in PRESETS["base"][cfg.task].items() if not isinstance(value, dict)}
    return Config(**{**settings, "task": cfg.task})


ACTIONS = {
    "search": ("search for an architecture: super-net, rankers, pruning, evolution", None),
    "train": ("train an architecture from scratch", None),
    "evaluate": ("score a trained network on the test data, or --translate a file", None),
    "analyze": (f"one of {', '.join(ANALYSES)}", "NAME"),
    "describe": ("parameters and FLOPs as JSON", None),
}


def shrink(cfg):
    """--dry_run: two real steps of every phase."""
    cfg.steps, cfg.save_every, cfg.samples, cfg.generations, cfg.population, cfg.finalists, cfg.runs = (
        2, 1, 20, 1, 10, 2, 1)
    cfg.held_out, cfg.latency_runs, cfg.look_nets = min(cfg.held_out, 50), 2, 5
    cfg.vocab_size = cfg.vocab_size if cfg.train_text else min(cfg.vocab_size, 2000)  # the demo text gives no more
    cfg.out = cfg.out.rstrip("/") + "-dry"


def main(argv=None):
    """Run one action of the command line."""
    import argparse
    from common.cli import parse
    from common.distributed import Stop
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--task", default=Config.task)
    task = first.parse_known_args(argv)[0].task  # a preset's values depend on it
    if task not in PRESETS["base"]:
        raise mistake(f"--task {task}: choose from {', '.join(PRESETS['base'])}")
    presets = {name: by_task[task] for name, by_task in PRESETS.items()}
    action, value, cfg = parse(Config, presets, ACTIONS, __doc__, argv)
    if action is None:
        return 0
    name = value if action == "analyze" else "translate" if cfg.translate else action
    cfg.out = cfg.out or f"runs/mformer-{name}-{cfg.task}-{cfg.preset}"
    if cfg.dry_run:
        shrink(cfg)
    check_choices(cfg, action, value)
    try:
        ({"search": search, "train": train, "evaluate": evaluate, "describe": describe}[action](cfg)
         if action != "analyze" else analyze(cfg, value))
    except Stop:
        print("stopped; the same command continues")
    return 0


def check_choices(cfg, action, value):
    """UserError where a flag that names a choice names none, or where flags contradict each other."""
    tasks = {"cifar10": "cifar10 image patch crop_area magnitude jitter erase",
             "wmt14": "train_text valid_text test_text source target tokenizer vocab_size decoder_layers "
                      "decoder_hidden decoder_ffn decoder_heads cross_heads connect length beam length_penalty"}
    reads = {"decoder_softmax": cfg.task == "wmt14" and cfg.space == "linear", "arch": action != "search",
             "translate": cfg.task == "wmt14" and action == "evaluate", "compare": value in ("shape", "pareto"),
             **{name: False for task, names in tasks.items() if task != cfg.task for name in names.split()}}
    for name in sorted(cfg.given):
        if not reads.get(name, True):
            raise mistake(f"--{name}: --{action} with --task {cfg.task} has no use for it; leave it out")
    for name, choices in {"space": ("mixed", "linear", "softmax"), "schedule": ("cosine", "inverse_sqrt"),
                          "latency": ("measure", "cpu", "flops")}.items():
        if getattr(cfg, name) not in choices:
            raise mistake(f"--{name} {getattr(cfg, name)}: choose from {', '.join(choices)}")
    for name in ("trim_timings", "drop_architectures"):
        if getattr(cfg, name) >= 0.5:
            raise mistake(f"--{name} {getattr(cfg, name)}: nothing is left of a half at either end; choose less")
    if cfg.task == "cifar10" and cfg.image % cfg.patch:
        raise mistake(f"--image {cfg.image}: it is no multiple of --patch {cfg.patch}")
    if cfg.length < 2:
        raise mistake(f"--length {cfg.length}: a piece and the end mark take 2")
    if cfg.batch % cfg.accumulate:
        raise mistake(f"--batch {cfg.batch}: it cannot be cut into --accumulate {cfg.accumulate} equal shards")
    if cfg.init and Path(cfg.init).resolve() == Path(cfg.out).resolve():
        raise mistake(f"--out {cfg.out}: holds the weights of --init; choose another folder")


if __name__ == "__main__":
    from common.cli import run
    run(main)
