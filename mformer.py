"""mFormer: Neural Architecture Search on Efficient Transformers and Beyond (Liu, Li, Lu, Qin, Sun,
Xu, Zhong; arXiv:2207.13955v1).

Linear attention (cosFormer) costs O(T) for T tokens. Softmax attention costs O(T^2) and scores
better. mFormer searches the type of attention of each layer, together with widths, heads, depth
and the encoder layers that the decoder sees. The search is RankNAS: a super-net contains every
architecture. Two rankers learn from pairs of its sub-nets to order them by loss and by latency.
Unimportant features are pruned, and an evolution searches the others.

Run:     python mformer.py --search --dry_run    every phase of a search but the pruning
         python mformer.py --search              on demo images, in minutes on two CPU cores
         python mformer.py --train --arch runs/mformer-search-cifar10-demo/best.json
         torchrun --nproc_per_node=8 mformer.py --task wmt14 --search --preset base \\
             --train_text wmt16/train --valid_text wmt16/newstest2013    as in the paper
Map:     Eq. 1 -> softmax_attention              Sec. 3.1.2 -> Ranker, prune, latency_window
         Eq. 2 -> linear_state, linear_read      Sec. 3.2.2 -> find_architecture, evolve
         Eq. 3 -> reweight, causal_weights       Sec. 4.1.4 -> AVERAGED, beam_search
         Table 1, 2 -> FEATURES, space_of        Sec. 6 -> PRESETS, learning_rate
         Table 3, 4, 5 -> PUBLISHED (D8)        Sec. 7 -> Ranker.importance
         Fig. 3 -> linear_attention              Fig. 3, Table 5 -> tests/claims
         Sec. 8 -> --search_decoder, EXERCISES.md
         Fig. 1, 5 and 6 draw the tables, and lists that they average: PUBLISHED has some (D8)
Symbols: the paper's         here                      shape
         N, d                T, D                      tokens, width of a head
         Q, K, V             q, k, v                   (B, N, T, D) each
         rho(QK^T) V         softmax_attention         (B, N, T, D)
         phi                 reweight                  (B, N, T, D) -> (B, N, T, 2D)
         phi(K)^T V          state                     (B, N, 2D, D)
         i, pi/2 i/N         positions, angles         (T,), (B, T)
         N of Eq. 3          M                         (B,)
         O                   linear_read               (B, N, T, D)
         supernet            space, widest             a model called with an arch
Tour:    The paper is reweight, linear_state, linear_read, Layer, train_step, Ranker, prune, evolve
         and find_architecture. Skip at first the translator and the beam search.
Differs: There are 33 departures from the paper, D1 to D33: grep -n '# D[0-9]' mformer.py
         A * marks a departure from released code, not from the text of the paper.
Others:  The released code is OpenNLPLab/mixFormer at c1c57c5. HAT is Wang et al. 2020,
         arXiv:2005.14187. RankNAS is Hu et al. 2021, arXiv:2109.07383. cosFormer is Qin et al.
         2022, arXiv:2202.08791.
"""
import argparse
import collections
import copy
import dataclasses
import itertools
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.flop_counter import FlopCounterMode

if (Path(__file__).parent / "common" / "launch.py").exists():  # a copy of this file has no commands
    from common import cli
    from common.cli import UserError
    from common.files import jsonl, read_json, write_atomic, write_json
    from common.finetune import ENDINGS, check_answers, keep_answers
    from common.launch import (
        Ranks, autocast, average_gradients, fit_accumulate, gather, launch, layer_activations,
        micro_batch_numbers, no_sync_until, on_main, prepare_model, print0, print_device_use,
        seed_everything, to_host, total_over, training_cost)
    from common.run import Loop, Run, progress, read_run, set_rate, settings_from
    from common.tokenization import load_tokenizer
    from data.images import (
        Pictures, TrainingPictures, count_images, read_spec, save_spec, width_of)
    from data.inputs import CACHE, NEAR, find_data, pick
    from data.mformer_code import check_export, write_network
    from data.translation import (
        TrainingTranslations, Translations, cached_pairs, corpus_bleu, count_pairs)
else:
    UserError = ValueError

# B batch, T tokens, S source tokens (keys), H hidden, N heads, D head dim, V vocab, C chunks,
# I image, P patch, K beams, M length in the cosine (Eq. 3's N), R --relative, A architectures


# --- configuration --------

Kept = Literal["auto", "average", "lowest"]  # auto: lowest with held-out images, else average


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings. A trailing comment is the help text of the flag and ends in its range. Flags
    override presets (by task), and presets override defaults. The defaults are the preset base for
    images, with the batch of one GPU (D5). The command line starts from the preset demo."""
    preset: str = "base"  # demo (minutes) | small (real data) | base (paper)
    task: Literal["cifar10", "wmt14"] = "cifar10"  # wmt14: translation of any parallel text
    seed: int = 0  # random seed
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs that have it
    accumulate: int = 1  # micro-batches per step. Default: raised to fit the processes [>= 1]
    dry_run: bool = False  # run a few steps of every phase, unless flags say otherwise
    init: str = ""  # run folder of --search or --train to start from
    # execution: may differ when a run continues
    out: str = ""  # run folder. Default: runs/mformer-ACTION-DATA-PRESET, or next to --init
    restart: bool = False  # rename the run in the run folder and start again
    device: str = "auto"  # auto (cuda, else cpu) | cpu | cuda | mps, xpu (not tested)
    compile: bool = False  # torch.compile the model of --train
    tensorboard: bool = False  # also log to RUN/tensorboard (pip install tensorboard)
    cache: str = ""  # folder of vocabularies and token files. Default: data/cache
    # images (--task cifar10)
    cifar10: str = ""  # folder of CIFAR-10's binary version. Default: demo images
    images: str = ""  # folder of train.npz and test.npz, your own images, instead of --cifar10
    classes: int = 10  # classes of the images, read from the data in a run [>= 2]
    image: int = 224  # width of an image in pixels. Default with --images: theirs [>= 1]
    patch: int = 16  # width of a patch [>= 1]
    # D1* (silent): crop, flip, rotation, shear, a weaker shift and erasing. The released code's
    # RandAugment has more operations, some of colours.
    augment: tuple[float, float, float] = (0.08, 0.9, 0.25)  # crop, strength of the others, erasing
    # translation (--task wmt14)
    train_text: str = ""  # PREFIX of PREFIX.en and PREFIX.de to train on. Default: demo text
    valid_text: str = ""  # PREFIX to validate on. Default: demo text, or --held_out training pairs
    test_text: str = ""  # PREFIX of the test text
    languages: tuple[str, str] = ("en", "de")  # endings of the source and target files
    tokenizer: str = ""  # spiece.model. Default: trained on both sides of --train_text
    # D2 (silent): the vocabulary is a SentencePiece unigram model.
    vocab_size: int = 32768  # tokens of the joint SentencePiece vocabulary [>= 1]
    qkv: int = 0  # width of all heads together. 0: heads x head_dim
    # D3 (silent): pairs with a sentence longer than --length are ignored.
    length: int = 256  # tokens of a sentence with its end mark, and the decoder's M [>= 2]
    # beam search (--task wmt14)
    beam: int = 4  # beams of a translation, Sec. 4.1.4 [>= 1]
    # architecture
    arch: str = ""  # a best.json, a name (mformer, cosformer*-softmax, ...), or --describe's text
    # search space (Tables 1 and 2). Several values are the choices of a search. hidden, ffn and
    # heads are the decoder's too
    space: Literal["mixed", "linear", "softmax"] = "mixed"  # mFormer, cosFormer*, Transformer*
    layers: tuple[int, ...] = (12, 13, 14)  # encoder layers, Table 2 (Enc Layer Num) [1, 1000]
    hidden: tuple[int, ...] = (320, 384, 448)  # widths of both sides (Enc and Dec Emb Dim) [>= 1]
    ffn: tuple[int, ...] = (672, 896, 1344, 1568, 1792)  # of each layer (FFN Dim) [>= 1]
    heads: tuple[int, ...] = (5, 6, 7)  # heads of each attention (Head Num) [>= 1]
    # decoder in the search space (--task wmt14)
    search_decoder: bool = False  # search the decoder's types, as in Table 1 but not Sec. 4.1.2
    decoder_layers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)  # Table 1 (Dec Layer Num) [1, 1000]
    connect: tuple[int, ...] = (1, 2, 3)  # number of last encoder layers it sees (Table 1) [>= 1]
    # model (with --init, that of its model)
    head_dim: int = 64  # width of a head, unless --qkv is given [>= 1]
    relative: int = 14  # farthest relative position of softmax attention, Sec. 6 [>= 1]
    # training: the super-net's in --search, the network's in --train
    train_examples: int = 0  # training examples (0: all)
    held_out: int = 0  # held-out examples. 0: none, or all --valid_text. Default: up to a tenth
    dropout: float = 0.0  # on embeddings, attention and feed-forward outputs [0, 1)
    steps: int = 140000  # optimizer steps, Sec. 6.2 [>= 1]
    batch: int = 64  # images, or tokens of the longer side, per step [>= 1]
    lr: float = 1e-3  # peak learning rate, Sec. 6.2 [> 0]
    lr_start: float = 1e-6  # learning rate where the warm-up starts and the cosine ends, Sec. 6.2
    warmup: float = 976 / 140000  # fraction of the steps, Sec. 6.2 [0, 1)
    weight_decay: float = 0.05  # of AdamW, Sec. 6.2
    # D4 (silent): gradients are clipped, because a small denominator of linear attention makes
    # them large. Usual norms, 0.5 to 8 in the demos, are below the limit.
    clip: float = 10.0  # largest gradient norm of a step (0: no limit)
    save_every: int = 1000  # steps between checkpoints. --train averages the last ones (D23) [>= 1]
    weights: Kept = "auto"  # kept by --train: average of the last saves, or lowest held-out loss
    # search
    samples: int = 2000  # sub-nets that train the rankers, as in the released code [>= 20]
    latency_limit: float | None = None  # in the unit of --cost. Default: 0.9 of the median [> 0]
    keep: int = 5  # features to search: the most important, and types. 0, or --samples < 160: all
    generations: int = 30  # of the evolution, as in HAT [>= 1]
    population: int = 125  # a fifth parents, two fifths mutants, two fifths crossovers [>= 1]
    finalists: int = 10  # measured architectures within the limit, in ranked order [>= 1]
    # latency
    cost: Literal["wall", "flops"] = "wall"  # latency: milliseconds by the wall clock, or GFLOPs
    latency_runs: int = 20  # timed runs of an architecture, after 5 untimed ones [>= 1]


PRESETS = {  # of each task. A sub-dictionary holds for one action
    "cifar10": {
        # D5 (silent): the batches of Sec. 6 are per GPU: 64 images on each of 4, as in the
        # released code, and 4,400 tokens on each of 8. Sec. 6.2's 100,000 tokens are no limit: 64
        # images have 12,608.
        "base": dict(batch=256, accumulate=4, search=dict(held_out=5000)),
    },
    "wmt14": {
        # D6 (ours): settings that Sec. 6 does not list are RankNAS's: dropout of 0.3, and 50,000
        # super-net steps with 8,000 of warm-up. Not used: RankNAS's dropout on attention and after
        # ReLU (for images too), its early end of the super-net, its 16 batches per step and its 800
        # epochs.
        "base": dict(
            layers=(6,),
            hidden=(768, 1024),
            ffn=(2048, 3072, 4096, 5120),
            heads=(4, 8, 16),
            qkv=1024,
            relative=8,
            dropout=0.3,
            batch=35200,
            accumulate=8,
            lr=7e-4,
            lr_start=1e-7,
            warmup=1 / 50,
            weight_decay=0.1,
            steps=200000,
            keep=7,
            search=dict(warmup=4 / 25, steps=50000, held_out=3000)),
    },
}


# --- search space ---------

# D7 (silent): the "softmax" of Tables 1 and 2 has relative positions on the keys, except in
# cross-attention, where a distance means nothing. "plain" has none, like the vanilla Transformer of
# Table 5.
TYPES = ("softmax", "linear", "plain")
PARTS = ("types", "decoder_types", "cross_types")  # features that name a type of attention
# {feature: the feature with its number of layers, or None}. An architecture has a value per layer,
# or with None a single value. A depth precedes the features of its layers. The comments are the
# names in Tables 1 to 4.
FEATURES = {
    "layers": None,  # Enc Layer Num
    "hidden": None,  # Enc Emb Dim
    "ffn": "layers",  # Enc FFN Dim
    "heads": "layers",  # Enc Head Num
    "types": "layers",  # Enc Self-Attn
    "decoder_layers": None,  # Dec Layer Num
    "decoder_hidden": None,  # Dec Emb Dim
    "decoder_ffn": "decoder_layers",  # Dec FFN Dim
    "decoder_heads": "decoder_layers",  # Dec Head Num
    "decoder_types": "decoder_layers",  # Dec Self-Attn
    "cross_heads": "decoder_layers",  # En-De Head Num
    "connect": "decoder_layers",  # En-De Connect
    "cross_types": "decoder_layers",  # En-De Cross-Attn
}
# An architecture: numbers, and tuples with a value per layer. A network for images has no decoder.
Arch = collections.namedtuple("Arch", FEATURES, defaults=(0, 0, (), (), (), (), (), ()))


def space_of(cfg):
    """The search space, {feature: choices}. UserError if a choice cannot be built."""
    types = ("softmax", "linear") if cfg.space == "mixed" else (cfg.space,)
    space = {
        "layers": cfg.layers,
        "hidden": cfg.hidden,
        "ffn": cfg.ffn,
        "heads": cfg.heads,
        "types": types,
    }
    if cfg.task == "wmt14":
        # Sec. 4.1.2 searches only the encoder's types, Table 1 also the decoder's. The decoder of
        # the space "linear" (cosFormer*) has softmax too (D9).
        decoder_types = types if cfg.search_decoder else ("softmax",)
        space |= {
            "decoder_layers": cfg.decoder_layers,
            "decoder_hidden": cfg.hidden,
            "decoder_ffn": cfg.ffn,
            "decoder_heads": cfg.heads,
            "decoder_types": decoder_types,
            "cross_heads": cfg.heads,
            "connect": cfg.connect,
            "cross_types": decoder_types,
        }
    space = {name: tuple(dict.fromkeys(choices)) for name, choices in space.items()}  # no repeats
    check_values(space, cfg)
    return space


def check_values(values, cfg):
    """UserError if an architecture cannot have all of these values, {feature: tuple}."""
    most = max(values.get("connect", ()), default=0)
    layers = min(values["layers"])
    if most > layers:
        raise UserError(f"connect {most}: more encoder layers than there are with layers {layers}; "
                        f"give connect of at most {layers}, or more layers")
    for name, choices in values.items():
        if name in PARTS and not {*choices} <= {*TYPES}:
            raise UserError(f"{name} {choices}: there are the types {', '.join(TYPES)}")
        if name.endswith("heads") and cfg.qkv and any(cfg.qkv % count for count in choices):
            raise UserError(f"{name} {choices}: they do not all divide --qkv {cfg.qkv}")


def space_size(space):
    """The number of architectures in a space.

    Three widths, and two choices of ffn and of type in each of one or two layers: 3 (4 + 4^2)

    >>> space_size({"layers": (1, 2), "hidden": (8, 16, 24), "ffn": (16, 32), "heads": (1,),
    ...             "types": ("softmax", "linear")})
    60
    """
    size = len(space["hidden"]) * len(space.get("decoder_hidden", (0,)))
    for depth in ("layers", "decoder_layers"):
        # the choices of one layer. Without a decoder there are 0 layers
        per_layer = math.prod(len(space[name]) for name in space if FEATURES[name] == depth)
        size *= sum(per_layer ** layers for layers in space.get(depth, (0,)))
    return size


def build_arch(space, choose):
    """An Arch of the values that choose(name, choices, layer) returns. A feature with one value
    has the layer 0."""
    values = {}
    for name, choices in space.items():
        depth = FEATURES[name]
        if depth:
            values[name] = tuple(choose(name, choices, layer) for layer in range(values[depth]))
        else:
            values[name] = choose(name, choices, 0)
    return Arch(**values)


def values_of(arch, name):
    """The values of a feature by layer. A single value gives a tuple of one."""
    values = getattr(arch, name)
    return values if FEATURES[name] else (values,)


def widest(space):
    """The architecture that contains all others. Where softmax is a choice, it is the attention: it
    has more weights than linear attention, and is the last by name."""
    return build_arch(space, lambda name, choices, layer: max(choices))


def smallest(space, pick_heads, pick_type):
    """The architecture of the smallest widths and depths. pick_heads, pick_type: min or max."""
    def choose(name, choices, layer):
        if name.endswith("heads"):
            return pick_heads(choices)
        return pick_type(choices) if name in PARTS else min(choices)
    return build_arch(space, choose)


def sample_arch(space, rng):
    return build_arch(space, lambda name, choices, layer: rng.choice(choices))


def retype(arch, attn_type, parts):
    """The architecture with one type of attention in these parts."""
    return arch._replace(**{part: (attn_type,) * len(getattr(arch, part)) for part in parts})


def arch_text(arch):
    """The text form of --arch: layers=2 hidden=64 ffn=96,128 heads=2,4 types=..."""
    return " ".join(
        f"{name}={','.join(map(str, values_of(arch, name)))}"
        for name, value in arch._asdict().items() if value)


# The networks of Tables 3 to 5, names for --arch. The lists of cosformer* for images are from the
# released code (its commit 2d21d66).
# D8 (silent): the other lists are ours, since the paper prints averages and only draws the lists
# (Fig. 5, 6). Ours have the averages of Tables 3 and 4 ("Enc Layer Num 3" is a misprint for 6) and
# fit the text: mFormer's layers 3, 7 and 11 (Sec. 4.4.2) or 2 and 4 (Sec. 4.4.1) are linear, its
# first decoder layer has more heads than cosFormer*'s, and all decoders see only the last encoder
# layer. The paper counts parameters differently (tests/claims/mformer.py). mFormer, cosFormer* and
# Transformer* for images have 19.27, 24.36 and 24.19 million here, and 19.31, 24.31 and 24.26 in
# Table 4. For translation they have 128.1, 134.3 and 155.3 million here, and 75.59, 79.78 (79.98 is
# a misprint) and 92.38 in Table 3, which seems to count a part of the decoder and no embedding.
PUBLISHED = {
    "cifar10": {
        "mformer":
            "layers=12 hidden=384 ffn=1792,1792,1568,1344,896,896,1344,1568,1344,896,672,672 "
            "heads=6,6,6,6,7,7,6,6,6,7,7,6 "
            "types=softmax,softmax,linear,softmax,softmax,softmax,linear,softmax,"
            "softmax,softmax,linear,softmax",
        "cosformer*":
            "layers=12 hidden=448 ffn=1792,1792,1344,1568,1344,1344,1344,1344,1568,672,1568,1344 "
            "heads=7,7,6,7,5,7,5,7,5,6,7,6 "
            "types=linear,linear,linear,linear,linear,linear,linear,linear,linear,"
            "linear,linear,linear",
        "transformer*":
            "layers=14 hidden=384 "
            "ffn=672,896,896,1344,1344,1344,1344,1344,1568,1568,1568,1568,1568,1568 "
            "heads=6,6,7,7,7,7,7,7,7,7,7,7,7,7 "
            "types=softmax,softmax,softmax,softmax,softmax,softmax,softmax,softmax,"
            "softmax,softmax,softmax,softmax,softmax,softmax",
        "transformer":
            "layers=6 hidden=512 ffn=2048,2048,2048,2048,2048,2048 heads=8,8,8,8,8,8 "
            "types=plain,plain,plain,plain,plain,plain",
    },
    "wmt14": {
        "mformer":
            "layers=6 hidden=1024 ffn=2048,3072,3072,4096,3072,3072 heads=16,8,8,8,8,16 "
            "types=softmax,linear,softmax,linear,softmax,softmax decoder_layers=2 "
            "decoder_hidden=1024 decoder_ffn=4096,3072 decoder_heads=16,16 "
            "decoder_types=softmax,softmax cross_heads=4,4 connect=1,1 "
            "cross_types=softmax,softmax",
        # D9 (conflict): cosFormer*'s decoder has softmax, although Sec. 3.2.2 replaces "all
        # Softmax". It has 3.05 BLEU, and a linear decoder 0 (Sec. 8). In Table 5 "all Softmax" adds
        # 0.02 GFLOPs, which fits the six linear layers of an encoder, but not four more in the
        # decoder.
        "cosformer*":
            "layers=6 hidden=1024 ffn=3072,3072,3072,3072,4096,4096 heads=8,8,8,8,8,8 "
            "types=linear,linear,linear,linear,linear,linear decoder_layers=2 "
            "decoder_hidden=1024 decoder_ffn=5120,3072 decoder_heads=4,16 "
            "decoder_types=softmax,softmax cross_heads=8,4 connect=1,1 "
            "cross_types=softmax,softmax",
        "transformer*":
            "layers=6 hidden=1024 ffn=3072,4096,4096,4096,4096,4096 heads=8,8,8,8,8,8 "
            "types=softmax,softmax,softmax,softmax,softmax,softmax decoder_layers=3 "
            "decoder_hidden=1024 decoder_ffn=4096,4096,3072 decoder_heads=16,16,8 "
            "decoder_types=softmax,softmax,softmax cross_heads=16,16,8 connect=1,1,1 "
            "cross_types=softmax,softmax,softmax",
        "transformer":
            "layers=6 hidden=1024 ffn=4096,4096,4096,4096,4096,4096 heads=16,16,16,16,16,16 "
            "types=plain,plain,plain,plain,plain,plain decoder_layers=6 decoder_hidden=1024 "
            "decoder_ffn=4096,4096,4096,4096,4096,4096 decoder_heads=16,16,16,16,16,16 "
            "decoder_types=plain,plain,plain,plain,plain,plain cross_heads=16,16,16,16,16,16 "
            "connect=1,1,1,1,1,1 cross_types=plain,plain,plain,plain,plain,plain",
    },
}
# The vanilla cosFormer has the vanilla Transformer's shape. Its decoder is linear too: Table 5 has
# no BLEU for it.
for texts in PUBLISHED.values():
    texts["cosformer"] = texts["transformer"].replace("plain", "linear")


def read_text_form(text):
    """The Arch of a text form. Raises ValueError, KeyError or TypeError for other text."""
    values = {}
    for word in text.split():
        name, _, value = word.partition("=")
        kind = str if name in PARTS else int
        values[name] = tuple(map(kind, value.split(",")))
        if kind is int and min(values[name]) < 1:
            raise ValueError
        if not FEATURES[name]:
            (values[name],) = values[name]
    return Arch(**values)


def parse_arch(text, cfg):
    """The architecture of a text form, a name of PUBLISHED, or a name with -linear or -softmax: the
    same network with one type of attention (Table 5)."""
    published = PUBLISHED[cfg.task]
    name, _, attn_type = text.partition("-")
    named = name in published and attn_type in ("", "linear", "softmax")
    try:
        arch = read_text_form(published[name] if named else text)
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"--arch {text[:60]!r} is not an architecture; give one of {', '.join(published)}, "
            "RUN/best.json of a search, or a text like --describe's") from None
    if named and attn_type:
        # D10 (silent): "all linear" is all layers of the encoder, "all softmax" every attention.
        parts = PARTS if attn_type == "softmax" else ["types"]
        arch = retype(arch, attn_type, parts)
    check_arch(arch, text, cfg)
    return arch


def check_arch(arch, text, cfg):
    """UserError if an architecture, given as `text`, does not fit the task or is inconsistent."""
    has_decoder = arch.decoder_layers > 0 and arch.decoder_hidden > 0
    if has_decoder != (cfg.task == "wmt14"):
        task = "wmt14" if arch.decoder_layers else "cifar10"
        raise UserError(f"--arch {text[:60]}: a translator has a decoder, a network for images has "
                        f"none; --task {task} fits it")
    values = {name: values_of(arch, name) for name in FEATURES}
    for name, depth in FEATURES.items():
        if depth and len(values[name]) != getattr(arch, depth):
            raise UserError(f"--arch {text}: {name} needs as many values as {depth} says")
    check_values(values, cfg)


# --- model ----------------

# A super-net is a model that is called with an architecture. Every module slices the leading rows
# and columns of its weights.

# Attention


def softmax_attention(q, k, v, visible=None, table=None, first=0):
    """Eq. 1. q (B, N, T, D), k and v (B, N, S, D) -> (B, N, T, D)

    visible: bool, broadcasts to (B, N, T, S), or None. table (2R + 1, D): relative positions on the
    keys, or None. They add a bias with a gradient, for which GPUs have no flash kernel. first: the
    position of the first query.

    Two equal keys, and a table that gives the next token a weight of 3. The first token mixes its
    value with the next one's by 1 to 3:

    >>> q = torch.ones(1, 1, 2, 1)
    >>> k = torch.zeros(1, 1, 2, 1)
    >>> v = torch.tensor([10.0, 20.0]).view(1, 1, 2, 1)
    >>> table = torch.tensor([[0.0], [0.0], [3.0]]).clamp(min=1).log()  # distances -1, 0, 1
    >>> [round(value, 2) for value in softmax_attention(q, k, v, table=table).flatten().tolist()]
    [17.5, 15.0]
    """
    # D11 (silent): scores are divided by the square root of D, as in the Transformer. Eq. 1 prints
    # no divisor
    q = q / math.sqrt(q.shape[-1])
    if table is None:
        return F.scaled_dot_product_attention(q, k, v, visible, scale=1.0)
    # The table adds q_i . r_(j - i) to the score of query i and key j, with distances clipped to R.
    T = q.shape[2]
    S = k.shape[2]
    farthest = len(table) // 2
    query_positions = torch.arange(first, first + T, device=q.device)
    distances = torch.arange(S, device=q.device) - query_positions[:, None]  # (T, S)
    index = (distances + farthest).clamp(0, 2 * farthest).expand(*q.shape[:2], T, S)
    bias = (q @ table.to(q.dtype).T).gather(-1, index)  # (B, N, T, S)
    if visible is not None:
        bias = bias.masked_fill(~visible, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, bias, scale=1.0)


def cosines_at(positions, M):
    """cos a_i and sin a_i of the angles a_i = pi/2 i/M in Eq. 3, for reweight(). positions i (T,),
    M (B,) -> (B, T, 2). B is 1 if all sentences have the same M.

    Angles of 0, 30 and 60 degrees:

    >>> cosines = cosines_at(torch.arange(3), torch.tensor([3]))
    >>> [[round(value, 2) for value in pair] for pair in cosines[0].tolist()]
    [[1.0, 0.0], [0.87, 0.5], [0.5, 0.87]]
    """
    M = M[:, None]
    positions = positions.clamp(max=M - 1)  # in padding, cosines would be negative
    angles = (math.pi / 2) * positions / M  # (B, T)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def reweight(x, cosines):
    """[ReLU(x_i) cos a_i; ReLU(x_i) sin a_i] for queries or keys x. The product of query i and key
    j is ReLU(q_i) ReLU(k_j) cos(a_i - a_j), Eq. 3, since cos(a_i - a_j) = cos a_i cos a_j + sin a_i
    sin a_j. x (B, N, T, D), cosines (B, T, 2) -> (B, N, T, 2D)

    The tokens (1, -2) and (3, 4), 45 degrees apart. Their product is 1 * 3 cos 45:

    >>> x = torch.tensor([[1.0, -2.0], [3.0, 4.0]]).view(1, 1, 2, 2)
    >>> one, two = reweight(x, cosines_at(torch.arange(2), torch.tensor([2])))[0, 0]
    >>> [[round(value, 2) for value in each.tolist()] for each in (one, two, one[:, None].T @ two)]
    [[1.0, 0.0, 0.0, 0.0], [2.12, 2.83, 2.12, 2.83], [2.12]]
    """
    cosines = cosines[:, None, ..., None].to(x.dtype)  # (B, 1, T, 2, 1)
    return (F.relu(x)[..., None, :] * cosines).flatten(-2)


def linear_state(k, v, mask):
    """The first product of Eq. 2, over tokens without padding: (state, total, count).

    k (B, N, S, 2D) is reweighted. v (B, N, S, D). mask (B, S), True where there is no padding.
    state: sum_j k_j v_j^T (B, N, 2D, D). total, for the denominator: sum_j k_j (B, N, 1, 2D).
    count: the number of keys (B, 1, 1, 1).
    """
    # D12* (silent): padding stays out of both sums, and M is the true length. cosFormer's code
    # takes the padded length, so the output of a sentence depends on its batch. In cross-attention
    # M is the source's length for keys and queries: later target tokens have the position of the
    # source's end. In causal attention M is --length, since a prefix must not know where its
    # sentence ends. There Eq. 3's re-weighting has little effect: with M = 256 all cosines of a
    # sentence of 30 tokens are at least 0.984.
    count = k.new_full((len(k), 1, 1, 1), k.shape[-2], dtype=torch.float32)
    if mask is not None:
        k = k.masked_fill(~mask[:, None, :, None], 0.0)
        count = mask.sum(-1).clamp(min=1).view(-1, 1, 1, 1)  # for padding alone, the result is 0
    return k.mT @ v, k.sum(-2, keepdim=True, dtype=torch.float32), count


# D13* (silent): the denominator of linear attention is at least FLOOR times the number of visible
# keys. In the released code the minimum is 1e-3 (in cosFormer's 1e-6). The gradient of a query
# grows with the inverse of the denominator. Sums grow with the number of keys, so that a fixed
# minimum would bound it less in long sequences.
FLOOR = 1e-3


def normalise(numerators, denominators, count):
    """The quotients (..., D). denominators (..., 1). count: the number of visible keys."""
    denominators = torch.maximum(denominators, FLOOR * count)
    return (numerators / denominators).to(numerators.dtype)


def linear_read(q, state, total, count):
    """The second product of Eq. 2, for reweighted queries q (B, N, T, 2D) and the results of
    linear_state. -> (B, N, T, D)"""
    return normalise(q @ state.to(q.dtype), (q * total).sum(-1, keepdim=True), count)


def linear_attention(q, k, v, cosines, mask=None):
    """cosFormer attention (Eq. 3 with its normalisation) in O(T) time and memory. Attention does
    the same in two steps, since several queries of a beam search read one state.

    q, k, v (B, N, T, D). cosines (B, T, 2). mask (B, T), True where there is no padding.
    -> (B, N, T, D). Figure 3, with the multiply-adds of a head:

        softmax   (q k^T) v     (T, D) (D, T) -> (T, T)       (T, T) (T, D)      2 T T D
        linear    q (k^T v)     (2D, T) (T, D) -> (2D, D)     (T, 2D) (2D, D)    4 T D D

    Two tokens, 45 degrees apart, with queries 1 and 1, keys 1 and 3, values 10 and 20. The first
    has the weights 1 and 3 cos 45 = 2.12, so that its output is (10 + 42.4) / 3.12. If the second
    is padding, only 10 is left (D12):

    >>> q, k, v = torch.tensor([[1.0, 1.0], [1.0, 3.0], [10.0, 20.0]]).view(3, 1, 1, 2, 1)
    >>> for M, mask in ((2, None), (1, torch.tensor([[True, False]]))):
    ...     cosines = cosines_at(torch.arange(2), torch.tensor([M]))
    ...     outputs = linear_attention(q, k, v, cosines, mask)
    ...     print([round(output, 1) for output in outputs.flatten().tolist()])
    [16.8, 18.1]
    [10.0, 10.0]
    """
    return linear_read(reweight(q, cosines), *linear_state(reweight(k, cosines), v, mask))


# Layers


class Linear(nn.Module):
    """`blocks` linear maps of one input, concatenated. (..., inputs) -> (..., blocks * outputs)"""

    def __init__(self, inputs, outputs, blocks=1):
        super().__init__()
        # D14 (silent): initial weights are uniform, with Xavier's bound for the widest network.
        # ImageModel scales patches, class token and positions to similar sizes.
        bound = math.sqrt(6 / (inputs + outputs))
        self.weight = nn.Parameter(torch.empty(blocks, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))

    def forward(self, x, outputs):
        weight = self.weight[:, :outputs, :x.shape[-1]]  # (blocks, outputs, inputs)
        bias = self.bias[:, :outputs]
        return F.linear(x, weight.flatten(0, 1), bias.flatten())


class LayerNorm(nn.LayerNorm):
    def forward(self, x):
        width = x.shape[-1]  # with "...", autograd does not copy the gradient of a full slice
        return F.layer_norm(x, (width,), self.weight[..., :width], self.bias[..., :width])


def head_width(heads, cfg):
    return cfg.qkv // heads if cfg.qkv else cfg.head_dim


class Attention(nn.Module):
    """Self-attention of the encoder, and cross-attention of the decoder. (B, T, H) -> the same.
    remember() computes the keys and values of a sentence once. read() computes the output for any
    queries.

    key_width: the width of the states for keys. heads: all numbers of heads that it is called with.
    has_table: whether it has relative positions.
    """
    # D15* (silent): queries, keys and values are sliced separately. The released code slices their
    # joint matrix.

    def __init__(self, width, key_width, heads, cfg, has_table=False):
        super().__init__()
        self.cfg = cfg
        qkv = cfg.qkv or max(heads) * cfg.head_dim
        dim = head_width(min(heads), cfg)  # the widest head: with --qkv, fewer heads are wider
        self.query = Linear(width, qkv)
        self.key_value = Linear(key_width, qkv, blocks=2)
        self.output = Linear(qkv, width)
        self.relative = None
        if has_table:
            table = torch.randn(2 * cfg.relative + 1, dim)
            self.relative = nn.Parameter(table * dim ** -0.5)

    def split(self, linear, x, heads, blocks=1):
        """A linear map of x (B, T, H), split into heads -> (blocks, B, N, T, D)"""
        B, T, _ = x.shape
        dim = head_width(heads, self.cfg)
        return linear(x, heads * dim).view(B, T, blocks, heads, dim).permute(2, 0, 3, 1, 4)

    def remember(self, x, attn_type, heads, cosines, mask=None):
        """What queries read of x (B, S, H): the sums of Eq. 2, or keys, values and their mask.
        cosines (B, S, 2). mask (B, S), or None"""
        k, v = self.split(self.key_value, x, heads, blocks=2)
        if attn_type == "linear":
            return linear_state(reweight(k, cosines), v, mask)
        visible = None if mask is None else mask[:, None, None]  # (B, 1, 1, S)
        return k, v, visible

    def read(self, x, memory, attn_type, heads, cosines):
        """The output for x (B, T, H). memory: the result of remember(). cosines (B, T, 2)"""
        (q,) = self.split(self.query, x, heads)
        if attn_type == "linear":
            mixed = linear_read(reweight(q, cosines), *memory)
        else:
            mixed = softmax_attention(q, *memory, self.table(q))
        return self.join(mixed, x)

    def table(self, q):
        """The relative positions (2R + 1, D) for queries (B, N, T, D), or None."""
        return None if self.relative is None else self.relative[:, :q.shape[-1]]

    def join(self, mixed, x):
        """The output projection of heads (B, N, T, D), as wide as x (B, T, H)."""
        return self.output(mixed.transpose(1, 2).flatten(2), x.shape[-1])

    def forward(self, x, attn_type, heads, cosines, mask=None):
        memory = self.remember(x, attn_type, heads, cosines, mask)
        return self.read(x, memory, attn_type, heads, cosines)


class Layer(nn.Module):
    """A pre-norm encoder layer: attention and a ReLU feed-forward network, each with a residual
    connection. (B, T, H) -> the same."""
    # D16 (silent): LayerNorm precedes each part, and the mean of the patches is classified, as in
    # the released code.

    def __init__(self, attention, width, ffn, cfg):
        super().__init__()
        self.cfg = cfg
        self.attention = attention
        self.fc1 = Linear(width, ffn)
        self.fc2 = Linear(ffn, width)
        self.attention_norm = LayerNorm(width)
        self.ffn_norm = LayerNorm(width)

    def residual(self, x, change):
        """x plus the output of a part of the layer after dropout."""
        # D17* (silent): dropout is the same for all sampled widths. HAT and RankNAS scale it by the
        # width.
        return x + F.dropout(change, self.cfg.dropout, self.training)

    def feed_forward(self, x, ffn):
        """The ReLU network of width ffn."""
        inner = F.relu(self.fc1(self.ffn_norm(x), ffn))
        return self.residual(x, self.fc2(inner, x.shape[-1]))

    def forward(self, x, attn_type, heads, ffn, cosines, mask=None):
        mixed = self.attention(self.attention_norm(x), attn_type, heads, cosines, mask)
        return self.feed_forward(self.residual(x, mixed), ffn)


class Encoder(nn.ModuleList):
    """The layers of an encoder. space: a super-net's, or None."""

    def __init__(self, arch, cfg, space):
        super().__init__()
        width = arch.hidden
        for attn_type, heads, ffn in zip(arch.types, arch.heads, arch.ffn):
            choices = space["heads"] if space else [heads]
            attention = Attention(width, width, choices, cfg, attn_type == "softmax")
            self.append(Layer(attention, width, ffn, cfg))

    def forward(self, x, arch, cosines, mask=None):
        """The outputs of all layers that arch has, each (B, T, H)."""
        outputs = []
        for layer, attn_type, heads, ffn in zip(self, arch.types, arch.heads, arch.ffn):
            x = layer(x, attn_type, heads, ffn, cosines, mask)
            outputs.append(x)
        return outputs


class ImageModel(nn.Module):
    """An encoder of patches and a class token. The mean of the patches is classified.
    A batch with images (B, 3, I, I) -> logits (B, classes). space: a super-net's, or None."""

    def __init__(self, arch, cfg, space=None):
        super().__init__()
        self.arch = arch
        self.cfg = cfg
        # D18 (conflict): images are enlarged to 224 pixels and cut into 14 x 14 patches, as in the
        # released code. Sec. 4.1.3 mentions "convolutional layers" and 256 elements, which
        # contradicts 14 x 14. One convolution, a linear map of patches of 16 x 16, gives 197 tokens
        # with the class token.
        self.tokens = (cfg.image // cfg.patch) ** 2 + 1
        width = arch.hidden
        self.patches = Linear(3 * cfg.patch ** 2, width)
        self.token = nn.Parameter(torch.randn(width) * width ** -0.5)
        self.position_embedding = nn.Parameter(torch.randn(self.tokens, width) * 0.5)
        with torch.no_grad():
            self.patches.weight.mul_(width ** -0.5)
        self.layers = Encoder(arch, cfg, space)
        self.norm = LayerNorm(width)
        self.head = Linear(width, cfg.classes)

    def forward(self, batch, arch=None):
        arch = arch or self.arch
        images = batch["images"]
        P = self.cfg.patch
        width = arch.hidden
        patches = F.unfold(images.to(self.token.dtype), P, stride=P)
        patches = patches.mT.contiguous()  # (B, T - 1, 3 * P * P)
        token = self.token[:width].expand(len(images), 1, width)
        x = torch.cat([token, self.patches(patches, width)], dim=1)  # (B, T, H)
        x = x * math.sqrt(width) + self.position_embedding[:, :width]
        x = F.dropout(x, self.cfg.dropout, self.training)
        # D19 (silent): positions count the class token, then the patches row by row, as in the
        # released code. So the patch below is 14 positions away, for the cosine and for relative
        # positions.
        M = torch.full((1,), self.tokens, device=x.device)  # for all images
        cosines = cosines_at(torch.arange(self.tokens, device=x.device), M)
        x = self.layers(x, arch, cosines)[-1]
        return self.head(self.norm(x)[:, 1:].mean(1), self.head.bias.shape[1])


# A translator


def causal_weights(q, k, cosines):
    """Eq. 3 as written, in O(T^2). The weight of key j for query i is
    ReLU(q_i) ReLU(k_j) cos(pi/2 (i - j)/M), or 0 if j > i.
    q, k (B, N, T, D), cosines (1, T, 2) -> (B, N, T, T)

    >>> one = torch.ones(1, 1, 3, 1)
    >>> weights = causal_weights(one, one, cosines_at(torch.arange(3), torch.tensor([3])))
    >>> [[round(value, 2) for value in row] for row in weights[0, 0].tolist()]
    [[1.0, 0.0, 0.0], [0.87, 1.0, 0.0], [0.5, 0.87, 1.0]]
    """
    of_distances = (cosines[:, :, None] * cosines[:, None]).sum(-1)  # (1, T, T): cos(a_i - a_j)
    return F.relu(q) @ F.relu(k).mT * of_distances.tril().to(q.dtype)


def chunked_sums(q, k, v, cosines, size):
    """causal_weights(q, k, cosines) @ v in O(T): these weights within a chunk of `size` tokens, and
    a running sum of keys times values over earlier chunks, Eq. 2.

    With chunks of two, the weights of queries (rows) for keys are of a chunk (c) or the sum (s):

        c . | . . | .
        c c | . . | .
        s s | c . | .
        s s | c c | .
        s s | s s | c

    >>> q, k, v = torch.arange(30.0).view(3, 1, 1, 5, 2)
    >>> cosines = cosines_at(torch.arange(5), torch.tensor([8]))
    >>> expected = causal_weights(q, k, cosines) @ v
    >>> torch.allclose(chunked_sums(q, k, v, cosines, size=2), expected)
    True
    """
    T = q.shape[2]
    padding = (0, 0, 0, -T % size)  # of tokens, the axis before the last
    q, k, v, cosines = (  # (B, N, C, size, D), and cosines (1, C, size, 2)
        F.pad(x, padding).unflatten(-2, (-1, size)) for x in (q, k, v, cosines))
    within = causal_weights(q, k, cosines[:, 0]) @ v  # distances are the same in all chunks
    states = reweight(k[:, :, :-1], cosines[:, :-1]).mT @ v[:, :, :-1]
    states = states.cumsum(2, dtype=torch.float32).to(q.dtype)  # (B, N, C - 1, 2D, D)
    earlier = reweight(q[:, :, 1:], cosines[:, 1:]) @ states  # the first chunk has none
    sums = torch.cat([within[:, :, :1], within[:, :, 1:] + earlier], dim=2)
    return sums.flatten(2, 3)[:, :, :T]


def causal_linear_attention(q, k, v, cosines):
    """cosFormer attention of each token to itself and earlier ones, in O(T).
    q, k, v (B, N, T, D), cosines (1, T, 2) -> (B, N, T, D)"""
    T, D = q.shape[2:]
    chunks = math.ceil(T / max(64, 2 * D))  # with shorter chunks the running sum costs more
    v = F.pad(v, (0, 1), value=1.0)  # the column of ones gives the denominators
    if chunks > 1:
        sums = chunked_sums(q, k, v, cosines, math.ceil(T / chunks))
    else:
        sums = causal_weights(q, k, cosines) @ v
    count = torch.arange(1, T + 1, device=v.device)[:, None]
    return normalise(sums[..., :-1], sums[..., -1:], count)


class CausalAttention(Attention):
    """Self-attention of the decoder. Without a cache it reads whole sequences. With one, a list
    that is empty at first, it reads one token, at position `first`, and updates the cache."""

    def forward(self, x, attn_type, heads, cosines, cache=None, first=0):
        (q,) = self.split(self.query, x, heads)
        k, v = self.split(self.key_value, x, heads, blocks=2)
        if attn_type == "linear":
            mixed = self.read_linear(q, k, v, cosines, cache)
        else:
            mixed = self.read_softmax(q, k, v, cache, first)
        return self.join(mixed, x)

    def read_linear(self, q, k, v, cosines, cache):
        """The cache holds the sums of Eq. 2 over the tokens so far."""
        if cache is None:
            return causal_linear_attention(q, k, v, cosines)
        new = linear_state(reweight(k, cosines), v, None)
        so_far = cache or (0, 0, 0)  # state, total, count
        cache[:] = [old + part.float() for old, part in zip(so_far, new)]
        return linear_read(reweight(q, cosines), *cache)

    def read_softmax(self, q, k, v, cache, first):
        """The cache holds the keys and values of the tokens so far."""
        table = self.table(q)
        if cache is None:
            T = q.shape[2]
            visible = q.new_ones(T, T, dtype=torch.bool).tril()
            return softmax_attention(q, k, v, visible, table)
        if cache:
            earlier_k, earlier_v = cache
            k = torch.cat([earlier_k, k], dim=2)
            v = torch.cat([earlier_v, v], dim=2)
        cache[:] = [k, v]
        return softmax_attention(q, k, v, None, table, first)


class DecoderLayer(Layer):
    """A decoder layer: an encoder layer with cross-attention in its middle."""

    def __init__(self, number, arch, cfg, space):
        width = arch.decoder_hidden
        heads = space["decoder_heads"] if space else [arch.decoder_heads[number]]
        has_table = arch.decoder_types[number] == "softmax"
        attention = CausalAttention(width, width, heads, cfg, has_table)
        cross_heads = space["cross_heads"] if space else [arch.cross_heads[number]]
        cross = Attention(width, arch.hidden, cross_heads, cfg)  # without table: D7
        super().__init__(attention, width, arch.decoder_ffn[number], cfg)
        self.number = number
        self.cross = cross
        self.cross_norm = LayerNorm(width)

    def remember(self, states, cosines, mask, arch):
        """What cross-attention reads of the last En-De Connect encoder layers, one after the other.
        states: list of (B, S, H). cosines (B, S, 2). mask (B, S)

        The 2 S keys of six encoder layers, three tokens and connect 2. The positions begin again:

            layer       1   2   3   4   5           6
            keys                        x_1 x_2 x_3 y_1 y_2 y_3
            cosines                     a_0 a_1 a_2 a_0 a_1 a_2
        """
        n = self.number
        connect = arch.connect[n]
        tokens = torch.cat(states[-connect:], dim=1)  # (B, connect * S, H)
        cosines = cosines.repeat(1, connect, 1)
        mask = mask.repeat(1, connect)
        return self.cross.remember(
            tokens, arch.cross_types[n], arch.cross_heads[n], cosines, mask)

    def forward(self, x, arch, cosines, memory, cross_cosines, cache=None, first=0):
        """x (B * K, T, H): K beams of each of B sentences, or K = 1. memory: the result of
        remember(). cosines (1, T, 2), cross_cosines (B, T, 2)"""
        n = self.number
        mixed = self.attention(
            self.attention_norm(x), arch.decoder_types[n], arch.decoder_heads[n], cosines, cache,
            first)
        x = self.residual(x, mixed)
        B = len(cross_cosines)
        queries = self.cross_norm(x).reshape(B, -1, x.shape[-1])  # beams are tokens: (B, K * T, H)
        mixed = self.cross.read(
            queries, memory, arch.cross_types[n], arch.cross_heads[n], cross_cosines)
        return self.feed_forward(self.residual(x, mixed.view(x.shape)), arch.decoder_ffn[n])


def sinusoids(positions, width):
    """Sines and cosines of positions (T,) -> (T, H)"""
    exponents = torch.arange(0, width, 2, device=positions.device)
    angles = positions[:, None] * torch.exp(exponents * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


class Translator(nn.Module):
    """Encoder and decoder with one embedding for source, target and output. A batch with source (B,
    S), lengths (B,) and target (B, T) -> logits (B, T, V). space: a super-net's, or None."""

    def __init__(self, arch, cfg, space=None):
        super().__init__()
        self.arch = arch
        self.cfg = cfg
        width = max(arch.hidden, arch.decoder_hidden)
        self.token_embedding = nn.Parameter(torch.randn(cfg.vocab_size, width) * width ** -0.5)
        self.layers = Encoder(arch, cfg, space)
        self.decoder_layers = nn.ModuleList(
            DecoderLayer(number, arch, cfg, space) for number in range(arch.decoder_layers))
        self.norm = LayerNorm(arch.hidden)
        self.decoder_norm = LayerNorm(arch.decoder_hidden)

    def embed(self, ids, width, first=0):
        """Embeddings of tokens and their positions, from `first`. (B, T) -> (B, T, H)"""
        positions = torch.arange(first, first + ids.shape[1], device=ids.device)
        x = F.embedding(ids, self.token_embedding[:, :width]) * math.sqrt(width)
        # D20* (silent): sinusoids are made for the sampled width. HAT slices the widest network's.
        x = x + sinusoids(positions, width).to(x.dtype)
        return F.dropout(x, self.cfg.dropout, self.training)

    def encode(self, source, lengths, arch=None):
        """(lengths, memories) of source (B, S) with lengths (B,), each at least 1. memories: the
        result of remember() of each decoder layer."""
        arch = arch or self.arch
        positions = torch.arange(source.shape[1], device=source.device)
        mask = positions < lengths[:, None]  # (B, S), True where there is no padding
        cosines = cosines_at(positions, lengths)
        states = self.layers(self.embed(source, arch.hidden), arch, cosines, mask)
        # D21 (silent): all connected layers share one LayerNorm.
        states = [self.norm(x) for x in states[-max(arch.connect):]]
        layers = self.decoder_layers[:arch.decoder_layers]
        return lengths, [layer.remember(states, cosines, mask, arch) for layer in layers]

    def decode(self, target, encoded, arch=None, caches=None, first=0):
        """Logits (B, T, V) of the tokens after target (B, T). encoded: the result of encode().

        caches: None for whole sequences. In a beam search a list per layer, empty at first. Then
        target (B * K, 1) has the token at position `first` of each beam, sentence by sentence.
        """
        arch = arch or self.arch
        lengths, memories = encoded
        x = self.embed(target, arch.decoder_hidden, first)
        positions = torch.arange(first, first + x.shape[1], device=x.device)
        M = lengths.new_full((1,), self.cfg.length)  # for all sentences (D12)
        cosines = cosines_at(positions, M)
        cross_cosines = cosines_at(positions, lengths)  # M is the length of each source (D12)
        caches = caches or [None] * len(memories)
        for layer, memory, cache in zip(self.decoder_layers, memories, caches):
            x = layer(x, arch, cosines, memory, cross_cosines, cache, first)
        return F.linear(self.decoder_norm(x), self.token_embedding[:, :arch.decoder_hidden])

    def forward(self, batch, arch=None):
        encoded = self.encode(batch["source"], batch["lengths"], arch)
        return self.decode(batch["target"], encoded, arch)


# Beam search


LENGTH_PENALTY = 0.6  # of beam search, Sec. 4.1.4
# Continuations of the beams of B sentences, each entry (B, 2K): the log-probability of the
# translation, the beam that it continues, its new token, and whether this token ends it
Candidates = collections.namedtuple("Candidates", "sums beams tokens ends")


class Beams:
    """K unfinished translations and the best finished one of each of B sentences."""

    def __init__(self, limits, beam, bos, eos, penalty):
        """limits (B,): the largest number of tokens, with the end mark."""
        B = len(limits)
        self.limits = limits
        self.size = beam
        self.eos = eos
        self.penalty = penalty
        self.going = limits > 0  # sentences that are not done
        with torch.device(limits.device):
            self.first = beam * torch.arange(B)[:, None]  # the first beam of each sentence
            self.tokens = torch.full((B * beam, 1), bos)  # the last of each beam
            self.history = torch.zeros(B * beam, 0, dtype=torch.long)  # all, without bos
            self.sums = torch.full((B, beam), -math.inf)  # log-probabilities
            self.sums[:, 0] = 0.0  # all beams start alike, so only one counts
            self.finished = torch.zeros(B, dtype=torch.long)  # finished translations
            self.best = torch.full((B, int(limits.max()) + 1), eos)
            self.best_scores = torch.full((B,), -math.inf)

    def expand(self, logits, barred, step):
        """The 2K best continuations of each sentence, of which K may end. logits (B * K, V). A
        translation must end at its limit, and not at its first token. barred: ids that are never
        produced."""
        B = len(self.limits)
        V = logits.shape[-1]
        sums = logits.log_softmax(-1).view(B, self.size, V).add_(self.sums[..., None])
        sums.index_fill_(-1, barred, -math.inf)
        no_end = torch.arange(V, device=sums.device) != self.eos
        at_limit = step + 1 >= self.limits
        sums.masked_fill_(at_limit[:, None, None] & no_end, -math.inf)
        if step == 0:
            sums[..., self.eos] = -math.inf
        sums, index = sums.flatten(1).topk(2 * self.size)  # of K * V
        beams = self.first + index // V
        tokens = index % V
        ends = (tokens == self.eos) & sums.isfinite()
        return Candidates(sums, beams, tokens, ends)

    def finish(self, candidates, step):
        """Finish the translations among the K best candidates that end. A sentence is done with K
        finished translations, or at its limit."""
        ends = candidates.ends[:, :self.size]
        sums = candidates.sums[:, :self.size].masked_fill(~ends, -math.inf)
        sums, which = sums.max(1, keepdim=True)  # (B, 1)
        scores = sums[:, 0] / (step + 1) ** self.penalty
        better = self.going & (scores > self.best_scores)
        self.best_scores = torch.where(better, scores, self.best_scores)
        beams = candidates.beams.gather(1, which)[:, 0]
        ids = self.history[beams]  # (B, step)
        self.best[:, :step] = torch.where(better[:, None], ids, self.best[:, :step])
        self.finished += ends.sum(1)
        self.going &= (step + 1 < self.limits) & (self.finished < self.size)

    def resume(self, candidates):
        """Continue the K best candidates that do not end. Returns their beams."""
        sums = candidates.sums.masked_fill(candidates.ends, -math.inf)
        self.sums, chosen = sums.topk(self.size)
        parents = candidates.beams.gather(1, chosen).flatten()
        self.tokens = candidates.tokens.gather(1, chosen).view(-1, 1)
        self.history = torch.cat([self.history[parents], self.tokens], dim=1)
        return parents


@torch.no_grad()
def beam_search(model, source, lengths, longest, bos, eos, barred, beam,
                penalty=LENGTH_PENALTY):
    """The best translation of each source (B, S), lengths (B,), as (ids without end mark, score).
    The score is log-probability / tokens ** penalty, as in fairseq. barred: ids that are never
    produced. The host waits for a GPU every eighth step, to check whether all are done."""
    encoded = model.encode(source, lengths)
    caches = [[] for _ in model.decoder_layers]
    barred = torch.tensor([*barred], dtype=torch.long, device=source.device)
    # D22 (silent): a translation has at most 1.5 S + 10 tokens, or `longest`.
    limits = (lengths + lengths // 2 + 10).clamp(max=longest)
    beams = Beams(limits, beam, bos, eos, penalty)
    for step in range(beams.best.shape[1] - 1):
        logits = model.decode(beams.tokens, encoded, None, caches, step)[:, -1].float()
        candidates = beams.expand(logits, barred, step)
        beams.finish(candidates, step)
        if step % 8 == 7 and not beams.going.any():
            break
        parents = beams.resume(candidates)
        caches = [[part[parents] for part in cache] for cache in caches]
    best = [ids[:ids.index(eos)] for ids in beams.best.tolist()]
    return [*zip(best, beams.best_scores.tolist())]


# Networks of both tasks


def make_model(arch, cfg, space=None):
    """The network of a task, or its super-net if there is a space."""
    model_class = ImageModel if cfg.task == "cifar10" else Translator
    return model_class(arch, cfg, space)


# batch: of one example. units: images, or tokens of the longer side, in it (--batch counts them).
# tokens: of the encoder. logits: numbers in its output
Example = collections.namedtuple("Example", "batch units tokens logits")


def blank_example(cfg):
    """An Example without content: an image, or 30 tokens of source and target."""
    if cfg.task == "cifar10":
        images = torch.zeros(1, 3, cfg.image, cfg.image)
        return Example({"images": images}, 1, (cfg.image // cfg.patch) ** 2 + 1, cfg.classes)
    T = min(30, cfg.length)
    ids = torch.zeros(1, T, dtype=torch.long)
    batch = {"source": ids, "lengths": torch.tensor([T]), "target": ids}
    return Example(batch, T, T, T * cfg.vocab_size)


def count_parts(arch, cfg):
    """{part: parameters} of the network alone, a Counter."""
    with torch.device("meta"):
        model = make_model(arch, cfg)
    parts = collections.Counter()
    for name, value in model.named_parameters():
        parts[name.split(".")[0]] += value.numel()
    return parts


def model_flops(arch, cfg):
    """2 x multiply-adds of all matrix products for an image, or for 30 source and target tokens."""
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), torch.no_grad(), counter:
        make_model(arch, cfg)(blank_example(cfg).batch)
    return counter.get_total_flops()


# --- supernet -------------

@torch.no_grad()
def extract(weights, arch, cfg, space=None):
    """A network, or with a space a super-net, with the leading weights of a larger model. UserError
    if that model is too small."""
    model = make_model(arch, cfg, space)
    for name, value in model.state_dict().items():
        part = tuple(map(slice, value.shape))
        if name not in weights or weights[name][part].shape != value.shape:
            raise UserError(f"--init {cfg.init}: its model is smaller than --arch or the space: "
                            f"{name} does not have the shape {tuple(value.shape)}")
        value.copy_(weights[name][part])
    return model


# --- objective ------------

SMOOTHING = 0.1  # label smoothing, Sec. 6


def summed_loss(logits, labels, smoothing=SMOOTHING):
    """The label-smoothed cross-entropy (), summed over labels. logits (M, classes), labels (M,)"""
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing, reduction="sum")


# --- training -------------

WORST = 1e9  # the loss of a diverged sub-net, since JSON has no infinity
# D23 (silent): a training ends with the weights of the lowest loss on held-out images, if there are
# any. Otherwise it ends with the average of the last saves (Sec. 4.1.4), which the paper may mean
# for translation alone. From the first to the last of them are 4.5 or 6.4% of the steps with base,
# 9 or 10% with demo. Means of three seeds of the demos: images 67.2% with the last weights, 67.0%
# averaged over 9% of the steps, 65.5% over 45%, and of another network 65.3% with the lowest loss
# and with the average. Translation 91.1 BLEU with the last weights, 91.9 over 10%, 90.8 over 50%.
# A low loss is not a high accuracy: after 96 passes over 1,000 images of CIFAR-10 the lowest loss,
# 1.81, has 33.0%, and the average, 2.25, has 35.4% (two seeds).
AVERAGED = 10
EVALUATIONS = 20  # of a training, at most, each after a save


def learning_rate(step, cfg):
    """Sec. 6: a warm-up from lr_start to lr, then a cosine to lr_start (images) or the inverse
    square root of the step.

    >>> for task in ("cifar10", "wmt14"):
    ...     cfg = Config(task=task, steps=8, warmup=0.25, lr=1.0, lr_start=0.0)
    ...     print([round(learning_rate(step, cfg), 2) for step in range(9)])
    [0.0, 0.5, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07, 0.0]
    [0.0, 0.5, 1.0, 0.82, 0.71, 0.63, 0.58, 0.53, 0.5]
    """
    # D24 (conflict): the cosine ends at 1e-6. Sec. 6.2 lists lr 1e-6, where fairseq's cosine ends,
    # and a minimum of 1e-7, where fairseq would stop training. Sec. 6.1's minimum, 1e-9, is never
    # reached, and its "max lr: 1" contradicts lr 7e-4: both are ignored.
    warmup = round(cfg.warmup * cfg.steps)
    if step < warmup:
        return cfg.lr_start + (cfg.lr - cfg.lr_start) * step / warmup
    if cfg.task == "wmt14":
        return cfg.lr * math.sqrt(max(1, warmup) / max(1, step))
    done = (step - warmup) / max(1, cfg.steps - warmup)
    return cfg.lr_start + (cfg.lr - cfg.lr_start) * 0.5 * (1 + math.cos(math.pi * done))


def make_optimizer(model, weight_decay):
    """AdamW. Sec. 6's "adam" is fairseq's, which also decays all parameters, biases and norms
    included."""
    return torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.998), weight_decay=weight_decay, fused=True)


def training_batches(data, cfg, ranks, begin):
    """Yield this process's list of micro-batches for each step from `begin`. A micro-batch is the
    same for any number of processes."""
    for step in range(begin, cfg.steps):
        yield [data.batch(step * cfg.accumulate + micro)
               for micro in micro_batch_numbers(ranks, cfg.accumulate)]


def count_labels(batch):
    """The divisor of the loss (1,): labels that are not -100."""
    return (batch["labels"] != -100).sum()[None]


def summed_losses(network, batch, cfg, arch=None, smoothing=SMOOTHING):
    """The loss of a batch (1,), summed over labels. arch: a sub-net of a super-net, or None."""
    with autocast(cfg.dtype, batch["labels"].device):
        logits = network(batch, arch)  # (B, classes), or (B, T, V)
    return summed_loss(logits.flatten(0, -2), batch["labels"].flatten(), smoothing)[None]


def train_step(step, network, optimizer, batches, cfg, ranks, arch=None):
    """One step on this process's micro-batches. arch: the sub-net of a super-net, or None. Returns
    {name: tensor ()}. Their means over the processes are the loss and the gradient norm."""
    totals = total_over(ranks, sum(map(count_labels, batches)))  # (1,) of all processes
    totals = totals.clamp(min=1) / ranks.size  # gradients are averaged over the processes
    losses = torch.zeros_like(totals)
    for micro, batch in zip(micro_batch_numbers(ranks, cfg.accumulate), batches):
        seed_everything(cfg.seed, "train", step, micro)  # dropout
        with no_sync_until(network, ranks, last=batch is batches[-1]):  # one exchange a step
            loss = summed_losses(network, batch, cfg, arch) / totals
            loss.sum().backward()
        losses += loss.detach()
    if arch:
        average_gradients(network.parameters(), ranks)
    norm = nn.utils.clip_grad_norm_(network.parameters(), cfg.clip or math.inf)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": losses[0], "norm": norm}


def train_network(model, data, cfg, run, space=None):
    """Train a network, or with a space a super-net, one random sub-net per step. A network ends as
    the average of the last saves (Sec. 4.1.4) or with the weights of the lowest held-out loss
    (D23). Raises Diverged, and Stop after SIGTERM. Returns the "lowest" held-out loss of a network,
    {"loss", "step"}, and the "last", or {} without any."""
    ranks = run.ranks
    optimizer = make_optimizer(model, cfg.weight_decay)
    owned = {"model": model, "optimizer": optimizer}
    if not space:
        average = owned["average"] = AveragedModel(model)
    loop = Loop(run, "super-net" if space else "train", cfg, unit=data.unit,
                evaluate_at=evaluation_steps(cfg), **owned)
    network = model if space else prepare_model(model, ranks, cfg.compile)
    arch = None
    for step, batches in loop(training_batches(data, cfg, ranks, loop.begin)):
        if space:
            # a function of the step, so that all micro-batches and processes train the same sub-net
            arch = sample_arch(space, random.Random(f"{cfg.seed} sub-net {step}"))
        rate = learning_rate(step, cfg)
        set_rate(optimizer, rate)
        model.train()
        numbers = train_step(step, network, optimizer, batches, cfg, ranks, arch)
        dev = {}
        if not space and data.num_held_out and loop.evaluates(step):
            dev = evaluate_step(step, model, data, cfg, loop)
        if not space and loop.saves(step) and step >= cfg.steps - AVERAGED * cfg.save_every:
            average.update_parameters(model)
        loop.after(step, numbers, batches, dev, lr=rate)
        if step + 1 == cfg.steps and not space:
            lowest = loop.state.pop("weights", None)
            model.load_state_dict(lowest or average.module.state_dict())
    if cfg.dry_run:
        flops = model_flops(arch or model.arch, cfg)
        print_device_use(ranks, loop.speed, flops / blank_example(cfg).units)
    return loop.state


def evaluation_steps(cfg):
    """The steps after which a network is evaluated: of the saves, the last among them."""
    saves = range(cfg.steps, 0, -cfg.save_every)
    return saves[::math.ceil(len(saves) / EVALUATIONS)]


def ends_lowest(data, cfg):
    """Whether a training ends with the weights of the lowest held-out loss (D23)."""
    if cfg.weights == "auto":
        return cfg.task == "cifar10" and data.num_held_out > 0
    return cfg.weights == "lowest"


def evaluate_step(step, model, data, cfg, loop):
    """The numbers of an evaluation for the log. Keeps the lowest loss, and its weights if they are
    needed, in the state of the loop."""
    loss = evaluate_network(model, data, cfg, loop.ranks)["loss"]
    loop.state["last"] = loss
    lowest = loop.state.get("lowest")
    if lowest is None or loss < lowest["loss"]:
        lowest = loop.state["lowest"] = {"loss": loss, "step": step + 1}
        if ends_lowest(data, cfg):
            loop.state["weights"] = to_host(model.state_dict())
    return {"loss": loss, "lowest_step": lowest["step"]}


@torch.no_grad()
def evaluate_network(model, data, cfg, ranks, arch=None):
    """{"loss"}: the held-out cross-entropy, or WORST if it is NaN or infinite. The processes share
    the batches. arch: as in train_step."""
    # D25* (ours): only --evaluate reads test examples. The released search reads CIFAR-10's.
    model.eval()
    losses = torch.zeros(1, device=ranks.device)
    labels = torch.zeros(1, dtype=torch.long, device=ranks.device)
    for batch in data.held_batches()[ranks.rank::ranks.size]:
        losses += summed_losses(model, batch, cfg, arch, smoothing=0.0)
        labels += count_labels(batch)
    loss = (total_over(ranks, losses) / total_over(ranks, labels)).item()
    return {"loss": loss if math.isfinite(loss) else WORST}


@torch.no_grad()
def held_out_scores(model, data, cfg, ranks, arch=None):
    """The accuracy on held-out images next to two baselines, or {} without images. arch: as in
    train_step."""
    if cfg.task != "cifar10" or not data.num_held_out:
        return {}
    model.eval()
    right = torch.zeros(1, device=ranks.device)
    for batch in data.held_batches()[ranks.rank::ranks.size]:
        with autocast(cfg.dtype, ranks.device):
            right += (model(batch, arch).argmax(1) == batch["labels"]).sum()
    accuracy = total_over(ranks, right).item() / data.num_held_out
    return {"accuracy": accuracy, **on_main(ranks, data.baselines)}


# Predictions


def cast(model, cfg, device):
    """The model for inference in the type of --dtype. Autocast would cast the weights again at
    every step of a decoder."""
    with autocast(cfg.dtype, device):
        bfloat16 = torch.is_autocast_enabled(device.type)
    return model.to(device, torch.bfloat16 if bfloat16 else torch.float32).eval()


def predict_batch(model, batch, data, cfg):
    """The prediction for each example of a batch: its class number, or the token ids of its
    translation."""
    if cfg.task == "cifar10":
        return model(batch).argmax(1).tolist()
    ids = data.tokenizer
    best = beam_search(
        model, batch["source"], batch["lengths"], longest=cfg.length - 1, bos=ids.bos_id,
        eos=ids.eos_id, barred=(ids.pad_id, ids.bos_id), beam=cfg.beam)
    return [translation for translation, score in best]


@torch.no_grad()
def predict_examples(model, examples, data, cfg, ranks):
    """The predictions for images or lines as text: class names, or translations. An empty line
    gives "". The processes share the batches."""
    own = {}
    empty = sum(len(example) == 0 for example in examples)  # lines without a prediction
    with progress(ranks, len(examples), "predicting", empty) as bar:
        for numbers, batch in data.example_batches(examples):
            for number, prediction in zip(numbers, predict_batch(model, batch, data, cfg)):
                own[number] = data.prediction_text(prediction)
            bar.update(len(numbers) * ranks.size)
    predictions = collections.ChainMap(*gather(ranks, own))
    return [predictions.get(number, "") for number in range(len(examples))]


def score_predictions(predictions, references, cfg):
    """Sec. 4.1.4: BLEU in percent, or the accuracy and, as a baseline, the fraction of the
    commonest class."""
    # D26 (silent): BLEU is of plain text in 13a tokens.
    if cfg.task == "wmt14":
        return {"bleu": corpus_bleu(predictions, references)}
    right = [ours == theirs for ours, theirs in zip(predictions, references, strict=True)]
    return {
        "accuracy": statistics.fmean(right),
        "majority_baseline": references.count(statistics.mode(references)) / len(references),
    }


# --- search ---------------

FEWEST = 20  # sub-nets that the rankers need


def draw_samples(space, cfg):
    """Different architectures for the rankers. The same ones after a kill, since each is a function
    of its number and the seed."""
    count = min(cfg.samples, space_size(space))
    archs = {}  # in order
    number = 0
    while len(archs) < count:
        archs[sample_arch(space, random.Random(f"{cfg.seed} sample {number}"))] = None
        number += 1
    return [*archs]


# Measurements

UNTIMED = 5  # runs before the timed ones, as in HAT
# D27 (conflict): the evolution discards the fastest and slowest 10% of the architectures, and a
# measurement of 10 runs or more those of its timings. "discarding the fastest and slowest 10%
# models" (Sec. 3.1.2) can mean the former or, as in the released code, the latter.
DROPPED = 0.1


def forward_once(model, batch, cfg):
    """The computation that a latency measures: one image, or as in HAT a sentence of 30 source
    tokens and as many decoder steps with cache and beam."""
    if cfg.task == "cifar10":
        return model(batch)
    encoded = model.encode(batch["source"], batch["lengths"])
    caches = [[] for _ in model.decoder_layers]
    tokens = batch["target"][:, :1].expand(cfg.beam, 1)
    for step in range(batch["source"].shape[1]):
        model.decode(tokens, encoded, None, caches, step)


@torch.no_grad()
def measure_latency(arch, cfg, device):
    """Milliseconds of forward_once: the mean without the fastest and slowest tenth (D27). With
    --cost flops, GFLOPs."""
    # D28* (ours): architectures with noisy timings are kept. The released code drops one if the
    # standard deviation of its timings is at least 1.5% of their mean.
    if cfg.cost == "flops":
        return model_flops(arch, cfg) / 1e9
    with torch.device(device):
        model = cast(make_model(arch, cfg), cfg, device)
        batch = blank_example(cfg).batch
    times = []
    for _ in range(UNTIMED + cfg.latency_runs):
        began = time.perf_counter()
        forward_once(model, batch, cfg)
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        times.append(1000 * (time.perf_counter() - began))
    dropped = int(DROPPED * cfg.latency_runs)
    return statistics.fmean(sorted(times[UNTIMED:])[dropped:cfg.latency_runs - dropped])


def timed(function):
    """{"value": of function(), "seconds": that it took}"""
    began = time.perf_counter()
    return {"value": function(), "seconds": time.perf_counter() - began}


def measure_archs(archs, name, supernet, data, cfg, run, limit=math.inf, enough=math.inf):
    """The history lines of these architectures, in order, until `enough` of them are within the
    latency limit. An architecture over the limit has no loss.

    The folder NAMEs of the run keeps the results. The processes share the losses and, on GPUs, the
    latencies. On a CPU they would slow each other down, so the first process measures all
    latencies."""
    # D29 (ours): losses and latencies are measured on the same sub-nets. Sec. 3.2.2 collects them
    # separately, the released code on 2,000 sub-nets each.
    ranks = run.ranks
    timers = None if ranks.device.type == "cuda" else 1  # processes that measure latencies

    def latency_of(number):
        return timed(lambda: measure_latency(archs[number], cfg, ranks.device))

    def loss_of(number):
        arguments = supernet, data, cfg, ranks.alone(), archs[number]
        return timed(lambda: evaluate_network(*arguments)["loss"])

    latencies = {}
    within = []
    while len(latencies) < len(archs) and len(within) < enough:
        missing = enough - len(within)  # measures no more than these
        numbers = range(len(latencies), min(len(archs), len(latencies) + missing))
        latencies |= run.each(f"{name}s/latency", numbers, latency_of, processes=timers)
        within = [number for number, each in latencies.items() if each["value"] <= limit]
    losses = run.each(f"{name}s/loss", within, loss_of)
    lines = []
    for number, latency in latencies.items():
        loss = losses.get(number, {"value": None, "seconds": 0})
        value = loss["value"]
        lines.append({
            "round": name,
            "parent": None,
            "arch": arch_text(archs[number]),
            "score": None if value is None else -value,
            "scores": {"loss": value, "latency": latency["value"]},
            "seconds": latency["seconds"] + loss["seconds"],
        })
    return lines


# RankNAS, 1. Pairwise ranking (Sec. 3.1.2)


def features_of(arch, space):
    """The inputs of a ranker, {feature with several choices: numbers}.

    A number is a fraction of the largest choice. Linear attention is 1.0 and softmax 0.0. A feature
    by layer has the mean over the layers first, then the value of each layer. Missing layers have
    the mean, so that these numbers do not reveal the depth.

    >>> space = {"layers": (1, 2), "hidden": (8,), "ffn": (2, 4), "types": ("softmax", "linear")}
    >>> features_of(Arch(2, 8, (2, 4), (1, 1), ("softmax", "linear")), space)
    {'layers': [1.0], 'ffn': [0.75, 0.5, 1.0], 'types': [0.5, 0.0, 1.0]}
    >>> features_of(Arch(1, 8, (2,), (1,), ("linear",)), space)
    {'layers': [0.5], 'ffn': [0.5, 0.5, 0.5], 'types': [1.0, 1.0, 1.0]}
    """
    features = {}
    for name, choices in space.items():
        if len(choices) == 1:
            continue
        values = values_of(arch, name)
        if name in PARTS:
            numbers = [float(value == "linear") for value in values]
        else:
            numbers = [value / max(choices) for value in values]
        depth = FEATURES[name]
        if depth:
            mean = sum(numbers) / len(numbers)
            missing = max(space[depth]) - len(numbers)
            numbers = [mean, *numbers, *[mean] * missing]
        features[name] = numbers
    return features


def kendall_tau(predicted, wanted):
    """Kendall's tau-b of two lists of numbers: the cosine of the signs of all differences.

    Two of three pairs in the right order, one in the wrong order: (2 - 1) / 3

    >>> round(kendall_tau([1, 2, 3], [10, 30, 20]), 3)
    0.333
    """
    signs = []
    for values in (predicted, wanted):
        values = torch.as_tensor(values, dtype=torch.float64)
        signs.append(torch.sign(values[:, None] - values).flatten())  # (A * A,)
    return F.cosine_similarity(*signs, dim=0).item()


class Ranker:
    """Pairwise ranking (Sec. 3.1.2), in two stages. First, `fit` learns a binary classifier of
    pairs of architectures: P(a has a greater value than b) = sigmoid(g(a) - g(b)), where g is a
    small network. Then `rank_scores` sorts any number of architectures by g, without pairs.

    It is fitted to 80% of the architectures. 10% choose the weights to keep. The last 10% are held
    out for Kendall's tau.
    """
    # D30* (conflict): the ranker compares pairs, as in the paper. The released one is a regression
    # by boosted trees. It reads only the means over the layers, and measures the importance of a
    # feature by its own |tau| with the values. The paper names no settings. The size of g and its
    # training are ours, the 80% and 10% RankNAS's.

    def __init__(self, space, archs, values, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.space = space
        self.x = self.inputs(archs)
        self.y = torch.tensor(values, dtype=torch.float64)
        tenth = max(2, len(archs) // 10)
        rows = torch.randperm(len(archs), generator=generator)
        self.held_out, self.validation, self.fitted_to = rows.tensor_split([tenth, 2 * tenth])
        self.mean = self.x[self.fitted_to].mean(0)
        self.scale = self.x[self.fitted_to].std(0).clamp(min=1e-3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = nn.Sequential(
                nn.Linear(self.x.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))
        self.fit(generator)
        self.tau = self.quality(self.x, self.held_out)

    def fit(self, generator):
        """Minimise the cross-entropy of random pairs. Keep the weights with the best Kendall's tau
        on self.validation."""
        optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=3e-3, weight_decay=0.1, fused=True)
        best = -math.inf
        for step in range(401):
            if step % 20 == 0:
                tau = self.quality(self.x, self.validation)
                if tau > best:
                    best = tau
                    weights = copy.deepcopy(self.network.state_dict())
            pairs = torch.randint(len(self.fitted_to), (2, 512), generator=generator)
            one, two = self.fitted_to[pairs]
            greater = 0.5 + 0.5 * torch.sign(self.y[one] - self.y[two])  # 1, 0, or 0.5 if equal
            scores = self.g(self.x[one]) - self.g(self.x[two])
            F.binary_cross_entropy_with_logits(scores, greater.float()).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.network.load_state_dict(weights)

    def inputs(self, archs):
        """The features of each architecture, (A, columns)."""
        rows = [features_of(arch, self.space).values() for arch in archs]
        return torch.tensor([[*itertools.chain(*numbers)] for numbers in rows])

    def g(self, x):
        return self.network((x - self.mean) / self.scale)[:, 0]

    def rank_scores(self, archs):
        """g of each architecture. A lower score predicts a smaller value."""
        return self.g(self.inputs(archs)).tolist()

    def quality(self, x, chosen):
        """Kendall's tau of g with the true values of these architectures. chosen: row numbers."""
        return kendall_tau(self.g(x[chosen]), self.y[chosen])

    def importance(self, shuffles=20):
        """Permutation importance (the lists of Sec. 7), {feature: how much Kendall's tau drops if
        its values are shuffled}, the largest drop first. The values are shuffled among the
        architectures that the ranker is not fitted to."""
        generator = torch.Generator().manual_seed(0)
        unseen = torch.cat([self.held_out, self.validation])
        intact = self.quality(self.x, unseen)
        drops = collections.Counter()
        end = 0
        for name, numbers in features_of(widest(self.space), self.space).items():
            start = end
            end += len(numbers)
            for _ in range(shuffles):
                shuffled = unseen[torch.randperm(len(unseen), generator=generator)]
                x = self.x.clone()
                x[unseen, start:end] = self.x[shuffled, start:end]
                drops[name] += (intact - self.quality(x, unseen)) / shuffles
        return dict(drops.most_common())


# 2. Search space pruning (Sec. 3.1.2)


def prune(space, importances, samples, keep):
    """Search space pruning (Sec. 3.1.2): the space with only `keep` searched features (0: all).

    importances: two lists of features, for the loss and the latency, the most important first.
    samples: (loss, architecture) of the sub-nets within the latency limit.

    Of the lists, keep=2 takes layers and hidden, and types stays. Of the five best samples three
    have an ffn of 4, and four have two heads:

    >>> space = {"layers": (1, 2), "hidden": (8, 16), "ffn": (2, 4), "heads": (1, 2),
    ...          "types": ("softmax", "linear")}
    >>> lists = ["layers types ffn hidden heads".split(), "hidden layers ffn heads types".split()]
    >>> samples = [(loss, Arch(1, 8, (ffn,), (heads,), ("linear",))) for loss, ffn, heads in [
    ...     (1, 4, 2), (2, 2, 2), (3, 4, 1), (4, 4, 2), (5, 2, 2), (6, 2, 1), (7, 2, 1)]]
    >>> [len(choices) for choices in prune(space, lists, samples, keep=2).values()]
    [2, 2, 1, 1, 2]
    >>> prune(space, lists, samples, keep=2)["ffn"], prune(space, lists, samples, keep=2)["heads"]
    ((4,), (2,))
    """
    # D31 (silent): `keep` features are searched, alternating between the lists by importance for
    # the loss and for the latency. The attention types are always searched. Other features get
    # their commonest value in the best tenth of the samples within the limit, at least 5. With
    # base, `keep` is the number of features in the two lists of Sec. 7: 7 for translation, and for
    # CIFAR-10 all 5, so that its space is not pruned.
    if not keep:
        return space
    alternating = itertools.chain(*zip(*importances))
    important = [*dict.fromkeys(alternating)]  # each once, in order
    searched = {*important[:keep], *PARTS}
    ranked = sorted(samples, key=lambda sample: sample[0])
    best = [arch for _, arch in ranked[:max(5, len(samples) // 10)]]
    pruned = {}
    for name, choices in space.items():
        pruned[name] = choices
        if name not in searched:
            values = [value for arch in best for value in values_of(arch, name)]
            commonest = max(choices, key=values.count)
            pruned[name] = (commonest,)
    return pruned


# 3. Hardware-aware search (Sec. 3.1.2, 3.2.2)

# D32 (silent): without --latency_limit the limit is this fraction of the samples' median latency,
# or the latency of the fastest sample if none is below it. The released search for images uses
# 15.06 ms.
LIMIT_FRACTION = 0.9


def find_limit(latencies, cfg):
    """--latency_limit, or the limit of D32. UserError if no sample is within it."""
    fastest = min(latencies)
    limit = cfg.latency_limit or max(fastest, LIMIT_FRACTION * statistics.median(latencies))
    if fastest > limit:
        raise UserError(
            f"--latency_limit {limit}: the fastest of {len(latencies)} samples takes {fastest}; "
            f"raise it; --init {cfg.out} starts from this super-net")
    return limit


def latency_window(rank_scores, latencies, limit):
    """Hardware-aware search (Sec. 3.1.2): the lowest and the highest rank score for latency that
    the evolution allows. rank_scores, latencies: of the samples.

    For the latencies 0 to 10 ms and three limits. Within 0 ms there is only the fastest tenth:

    >>> scores = range(0, 101, 10)
    >>> [latency_window(scores, range(11), limit) for limit in (math.inf, 5, 0)]
    [(10, 90), (10, 50), (0, 10)]
    """
    # The window excludes the slowest tenth of the samples, and those over the limit (D27). It
    # excludes the fastest tenth too, unless no others remain.
    within = sum(latency <= limit for latency in latencies) / len(latencies)
    end = min(1 - DROPPED, within)  # fractions of the samples, the fastest first
    begin = DROPPED if DROPPED < end else 0
    rank_scores = sorted(rank_scores)
    last = len(rank_scores) - 1
    return rank_scores[round(begin * last)], rank_scores[round(end * last)]


def mutate(parent, space, chance, rng):
    """Redraw each value with this chance, and always the values of layers that the parent lacks."""
    def redraw(name, choices, layer):
        values = values_of(parent, name)
        if layer >= len(values) or rng.random() < chance:
            return rng.choice(choices)
        return values[layer]
    return build_arch(space, redraw)


def crossover(one, two, space, rng):
    """Take each value from one of two parents, at random, or from the only one with the layer.

    >>> space = {"layers": (1, 2), "hidden": (8,), "ffn": (2, 4), "heads": (1,), "types": TYPES}
    >>> one = Arch(1, 8, (2,), (1,), ("linear",))
    >>> two = Arch(2, 8, (4, 4), (1, 1), ("softmax", "softmax"))
    >>> sorted({crossover(one, two, space, random.Random(seed)).ffn for seed in range(100)})
    [(2,), (2, 4), (4,), (4, 4)]
    """
    def inherit(name, choices, layer):
        of_parents = [values_of(parent, name) for parent in (one, two)]
        return rng.choice([values[layer] for values in of_parents if layer < len(values)])
    return build_arch(space, inherit)


ATTEMPTS = 50  # draws for each new architecture of a generation. The released code has no limit


def draw_new(draw, count, allowed, drawn):
    """Up to `count` architectures of draw() that are allowed and new. drawn: the set of all
    architectures so far, updated in place."""
    new = []
    for _ in range(ATTEMPTS * count):
        arch = draw()
        if arch not in drawn and allowed(arch):
            new.append(arch)
        drawn.add(arch)
        if len(new) == count:
            break
    return new


MUTATION = 0.3  # the chance to redraw a value of an architecture, as in HAT


def evolve(space, fitness, allowed, cfg):
    """The evolution (Sec. 3.2.2): {architecture: fitness, lower is better} of all architectures
    that it scores. It ends early after a generation without new architectures.

    fitness: architectures -> numbers. allowed: architecture -> bool.

    A population of 10 in Table 2's space has 2 parents, 4 mutants and 4 children. The lowest sum of
    ffn is 12 * 672 = 8064:

    >>> def total_ffn(archs):
    ...     return [sum(arch.ffn) for arch in archs]
    >>> for generations in (0, 1, 5):
    ...     cfg = Config(population=10, generations=generations)
    ...     scores = evolve(space_of(cfg), total_ffn, lambda arch: True, cfg)
    ...     print(len(scores), min(scores.values()))
    10 12320
    18 10976
    44 10304
    """
    rng = random.Random(f"{cfg.seed} evolution")
    drawn = set()
    scores = {}
    fifth = max(1, cfg.population // 5)
    for generation in range(1 + cfg.generations):
        if generation == 0:
            new = draw_new(lambda: sample_arch(space, rng), cfg.population, allowed, drawn)
        else:
            parents = sorted(scores, key=scores.get)[:fifth]
            new = draw_new(
                lambda: mutate(rng.choice(parents), space, MUTATION, rng),
                2 * fifth, allowed, drawn)
            new += draw_new(
                lambda: crossover(rng.choice(parents), rng.choice(parents), space, rng),
                2 * fifth, allowed, drawn)
        if not new:
            break
        scores |= zip(new, fitness(new))
    return scores


# The whole search (Sec. 3.2.2)

PRUNES_FROM = 160  # samples. A fifth of them measures the importance of features: 32 are enough


def rank_nas(space, history, cfg):
    """RankNAS after the measurements: the three parts of Sec. 3.1.2. history: lines of samples.
    Returns the texts of the best-ranked new architectures, in order, the rankers' figures, the
    pruned space and the limit."""
    archs = [parse_arch(line["arch"], cfg) for line in history]
    losses = [line["scores"]["loss"] for line in history]
    latencies = [line["scores"]["latency"] for line in history]
    if min(losses) == WORST:
        raise UserError("no sub-net has a finite loss: lower --lr")
    limit = find_limit(latencies, cfg)
    # step 3: pairwise ranking
    by_loss = Ranker(space, archs, losses, cfg.seed)
    by_latency = Ranker(space, archs, latencies, cfg.seed)
    # step 4: search space pruning
    importance = {"loss": by_loss.importance(), "latency": by_latency.importance()}
    within = [(loss, arch) for loss, latency, arch in zip(losses, latencies, archs)
              if latency <= limit]
    keep = cfg.keep if len(history) >= PRUNES_FROM else 0
    pruned = prune(space, importance.values(), within, keep)
    # step 5: hardware-aware search
    low, high = latency_window(by_latency.rank_scores(archs), latencies, limit)

    def allowed(arch):
        (rank_score,) = by_latency.rank_scores([arch])
        return low <= rank_score <= high

    scores = evolve(pruned, by_loss.rank_scores, allowed, cfg)
    ranked = [arch for arch in sorted(scores, key=scores.get) if arch not in archs]
    return {
        "ranked": [arch_text(arch) for arch in ranked[:max(cfg.finalists, cfg.samples // 4)]],
        "tau": {"loss": by_loss.tau, "latency": by_latency.tau},
        "compared": len(by_loss.held_out),
        "importance": importance,
        "pruned": pruned,
        "latency_limit": limit,
    }


def within_limit(history, limit):
    """The history lines within the latency limit."""
    return [line for line in history if line["scores"]["latency"] <= limit]


def winner(history, limit):
    """The history line with the best loss within the limit."""
    # D33 (ours): the winner is chosen by measurements, of the samples and of the best-ranked
    # architectures, not by the rankers.
    return max(within_limit(history, limit), key=lambda line: line["score"])


def find_architecture(supernet, space, data, cfg, run):
    """The search (Sec. 3.2.2). Returns the content of best.json. The paper has no algorithm. Its
    steps, in our numbers:

        1      train a super-net, a random sub-net in each step (`train_network`)
        2      measure the loss and the latency of random sub-nets (`measure_archs`)
        3      learn two rankers from pairs of them, of the loss and of the latency (`rank_nas`)
        4      search only the features that both rankers need most (`prune`)
        5      evolve architectures with a low predicted loss and an allowed latency (`evolve`)
        6      measure the best-ranked ones, and take the best of all measured ones (`winner`)
        7      train it from scratch, with --train
    """
    train_network(supernet, data, cfg, run, space)  # step 1
    supernet.eval()
    # step 2
    samples = measure_archs(draw_samples(space, cfg), "sample", supernet, data, cfg, run)
    write_history(run, samples)
    learned = run.once("rankers.json", rank_nas, space, samples, cfg)  # steps 3 to 5
    ranked = [parse_arch(text, cfg) for text in learned.pop("ranked")]
    # The latency ranker errs, and the evolution prefers architectures whose latency it
    # underestimates. So the best-ranked ones are measured, in order, until --finalists are within
    # the limit. This may take a quarter of the samples' time.
    limit = learned["latency_limit"]
    finalists = measure_archs(  # step 6
        ranked, "finalist", supernet, data, cfg, run, limit, cfg.finalists)
    history = write_history(run, samples + finalists)
    result = {
        **winner(history, limit),
        **learned,
        "finalists": len(finalists),
        "within": len(within_limit(finalists, limit)),
    }
    on_main(run.ranks, write_json, run.folder / "best.json", result)
    return result


def write_history(run, lines):
    """Number the lines, write them as history.jsonl, and return them."""
    history = [{"id": number, **line} for number, line in enumerate(lines)]
    on_main(run.ranks, write_atomic, run.folder / "history.jsonl", jsonl(history))
    return history


# --- the run --------------

# The paper ends here. The functions below need common/ and data/.

TINY = dict(latency_runs=5, generations=10, finalists=5, samples=160)
TINY_IMAGE = dict(
    TINY,
    image=32,
    patch=4,
    head_dim=16,
    lr=2e-3,
    keep=3,
    held_out=500,
    search=dict(save_every=100))
TINY_TEXT = dict(
    TINY,
    qkv=64,
    relative=8,
    length=64,
    vocab_size=2000,
    lr=4e-3,
    weight_decay=0.1,
    keep=5)
PRESETS["cifar10"] |= {
    "demo": dict(
        TINY_IMAGE,
        layers=(2, 3),
        hidden=(48, 64),
        ffn=(64, 96, 128),
        heads=(2, 3, 4),
        accumulate=2,
        augment=(0.7, 0.0, 0.0),
        warmup=1 / 8,
        steps=400,
        save_every=4,
        held_out=250),
    "small": dict(
        TINY_IMAGE,
        layers=(2, 3, 4),
        hidden=(48, 64, 80),
        ffn=(96, 128, 192, 224, 256),
        heads=(3, 4, 5),
        augment=(0.5, 0.0, 0.0),
        warmup=1 / 12,
        steps=600,
        save_every=6),
}
PRESETS["wmt14"] |= {
    "demo": dict(
        TINY_TEXT,
        layers=(2,),
        hidden=(64, 96),
        ffn=(96, 128, 192),
        heads=(2, 4),
        decoder_layers=(1, 2),
        connect=(1, 2),
        batch=2000,
        accumulate=2,
        warmup=1 / 9,
        steps=900,
        save_every=10,
        search=dict(warmup=1 / 5, steps=500, save_every=100, held_out=100)),
    "small": dict(
        TINY_TEXT,
        layers=(3,),
        hidden=(48, 64),
        ffn=(64, 128, 192, 256),
        heads=(2, 4, 8),
        decoder_layers=(1, 2, 3),
        batch=1024,
        warmup=1 / 6,
        steps=1200,
        save_every=12,
        search=dict(save_every=100, held_out=300)),
}
DRY_RUN = dict(
    steps=2,
    samples=20,
    generations=1,
    finalists=2,
    latency_runs=2,
    search=dict(held_out=50))


# Weights to start from

# settings: the run's. weights: its model's. arch: its network's as text, or "" for an unfinished
# search
Pretrained = collections.namedtuple("Pretrained", "path settings weights arch")
SHAPE = (  # taken from --init
    "task", "head_dim", "qkv", "relative", "image", "patch", "length", "languages")


def load_pretrained(cfg, command):
    """The model of --init as Pretrained: the network of --train, or the super-net of --search with
    the architecture that it found. None without --init."""
    if not cfg.init:
        return None
    record, owned = read_run(cfg.init, cfg, command.program, ("search", "train"))
    arch = record["settings"]["arch"]
    best = Path(cfg.init) / "best.json"
    if record["action"] == "search" and best.exists():
        arch = read_json(best)["arch"]
    return Pretrained(cfg.init, record["settings"], owned["model"], arch)


def resolve(cfg, command, ranks, source):
    """Fill in the settings that follow from others, from --init and from the number of processes.
    UserError if a flag contradicts the model of --init, or if it is too small. complete() fills in
    what follows from the data."""
    changes = {}
    if cfg.dry_run and not cfg.train_text:  # the demo text gives no more tokens
        changes["vocab_size"] = min(cfg.vocab_size, 2000)
    if source:
        changes |= settings_from(
            cfg, command, source.settings, source.path, SHAPE, ("vocab_size", "classes"))
        if not cfg.cifar10 and not cfg.images:
            changes["images"] = source.settings["images"]
        if cfg.task == "wmt14":
            changes["tokenizer"] = cfg.tokenizer or source.path
    if command.action in ("search", "train"):
        changes["accumulate"] = fit_accumulate(cfg, command, ranks)
    cfg = dataclasses.replace(cfg, **changes)
    if "out" not in command.given and not cfg.dry_run:
        data = "images" if cfg.images else cfg.task
        out = f"runs/mformer-{command.action}-{data}-{cfg.preset}"
        cfg = dataclasses.replace(cfg, out=out)
    if command.action == "search":
        check_space(cfg, source)
        return cfg
    if command.action == "train":
        print_published(cfg.arch, cfg, ranks)
    arch = read_arch(cfg, command, source)
    if source and command.action != "describe":
        check_weights(cfg, source, arch)
    return dataclasses.replace(cfg, arch=arch_text(arch))


def check_space(cfg, source):
    """UserError if a search space is too small for the rankers, or too large for a Pretrained."""
    space = space_of(cfg)
    if space_size(space) < FEWEST:
        raise UserError(f"the space has {space_size(space)} architectures, the rankers need "
                        f"{FEWEST}: widen it")
    if source:
        check_weights(cfg, source, widest(space), space)


def check_weights(cfg, source, arch, space=None):
    """UserError if the model of a Pretrained is smaller than a network or a space."""
    with torch.device("meta"):
        extract(source.weights, arch, cfg, space)


def read_arch(cfg, command, source):
    """The architecture of --arch or of --init's run. The default of --describe is the paper's
    mFormer with --preset base and its space, otherwise the widest of the space."""
    text = cfg.arch or (source.arch if source else "")
    if command.action == "describe" and not text:
        text = arch_text(widest(space_of(cfg)))
        if cfg.preset == "base" and not space_flags(command):
            text = "mformer"
    if text.endswith(".json"):
        text = str(read_json(text, "--search first").get("arch", text))
    if not text:
        raise UserError(f"--{command.action}: --arch is missing; give RUN/best.json of a search, "
                        f"or one of {', '.join(PUBLISHED[cfg.task])}")
    return parse_arch(text, cfg)


def space_flags(command):
    """The given flags of the search space."""
    return [name for name in sorted(command.given)
            if cli.group_of(Config, name) in ("search space", "decoder in the search space")]


# The data of the two tasks


def data_flags(cfg, action):
    """{data flag of an action: its value}. Images have one flag, and so has the text of an
    evaluation. The user's own parallel text may lack a part."""
    if cfg.task == "cifar10":
        return pick(cfg, ["images" if cfg.images else "cifar10"])
    if action == "evaluate":
        return pick(cfg, ["test_text"])
    flags = pick(cfg, ["train_text", "valid_text", "test_text"])
    given = {flag: value for flag, value in flags.items() if value}
    return given or flags


def open_data(cfg, command, ranks):
    """The training data, with `files`, {data flag: paths}, and `settings`, those that follow from
    the data. UserError for a missing or unsuitable file, before a run folder is touched."""
    found = find_data(
        cfg, command, ranks, data_flags(cfg, command.action), languages=cfg.languages)
    cfg = dataclasses.replace(cfg, **found.flags)
    settings = {**found.flags, **on_main(ranks, fit_to_data, cfg, command)}
    cfg = dataclasses.replace(cfg, **settings)
    size = cfg.batch // cfg.accumulate
    examples = pick(cfg, ["held_out", "train_examples", "seed"])
    if cfg.task == "cifar10":
        flag, = data_flags(cfg, command.action)
        data = TrainingPictures(
            ranks, cfg.image, flag, getattr(cfg, flag), size, cfg.augment, **examples)
    else:
        folder = on_main(
            ranks, cached_pairs, cfg.cache or CACHE, cfg.train_text, cfg.valid_text, cfg.languages,
            cfg.tokenizer, cfg.vocab_size, longest=cfg.length - 1)
        data = TrainingTranslations(
            ranks, folder, cfg.languages, cfg.length, cfg.train_text, size, **examples)
    if not data.num_held_out and (command.action == "search" or cfg.weights == "lowest"):
        needs = "--weights lowest" if cfg.weights == "lowest" else "a search"
        raise UserError(f"--held_out 0: {needs} needs examples for its losses; give a number")
    data.files = found.files
    data.settings |= settings
    return data


def fit_to_data(cfg, command):
    """The settings that follow from the data: the width of the user's own images, unless --init has
    one, and at most a tenth of the examples as --held_out."""
    settings = {}
    if cfg.images and not cfg.init and "image" not in command.given:
        settings["image"] = width_of(cfg.images)
        check_patches(settings["image"], cfg.patch)
    if cfg.held_out and "held_out" not in command.given:
        settings["held_out"] = min(cfg.held_out, most_held_out(cfg))
    return settings


def check_patches(image, patch):
    """UserError if patches do not fill an image."""
    if image % patch:
        raise UserError(f"--image {image}: not a multiple of --patch {patch}; give another "
                        "--patch, or an --image to which the images are resampled")


def most_held_out(cfg):
    """The most training examples that may be held out: a tenth, at least one. There is no limit
    with --valid_text."""
    if cfg.valid_text:
        return math.inf
    if cfg.task == "wmt14":
        examples = count_pairs(cfg.train_text, cfg.languages)
    else:
        flag = "images" if cfg.images else "cifar10"
        examples = count_images(flag, getattr(cfg, flag))
    return max(1, examples // 10)


def complete(cfg, data):
    """The settings with those that follow from the data: paths, the width and the classes of
    images, the vocabulary size and the number of held-out examples."""
    return dataclasses.replace(cfg, **data.settings)


def open_inputs(cfg, ranks):
    """The data that the predictions of --init's network need."""
    if cfg.task == "cifar10":
        return Pictures(ranks, cfg.image, read_spec(cfg.init))
    tokenizer = load_tokenizer(cfg.tokenizer, lower=False)
    return Translations(ranks, tokenizer, cfg.languages, cfg.length)


# Actions


def search(cfg, command):
    """Train a super-net and search for an architecture in it."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        data = open_data(cfg, command, ranks)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data)
        if not run.result:
            space = space_of(cfg)
            on_main(ranks, check_limit, space, cfg, run)
            supernet = start_model(source, widest(space), data, cfg, run, space)
            result = find_architecture(supernet, space, data, cfg, run)
            arch = parse_arch(result["arch"], cfg)
            scores = held_out_scores(supernet, data, cfg, ranks, arch)
            run.finish({**result, "held_out": scores})
        print_best(run, cfg)


def check_limit(space, cfg, run):
    """UserError if the fastest architecture breaks --latency_limit, before a new search computes
    anything. It has the smallest widths and depths. The fastest number of heads and type depend on
    the device, so each end is measured."""
    if not cfg.latency_limit or run.record["computed"]:
        return
    latencies = [measure_latency(smallest(space, *picks), cfg, run.ranks.device)
                 for picks in itertools.product((min, max), repeat=2)]
    fastest = min(latencies)
    if fastest > cfg.latency_limit:
        raise UserError(f"--latency_limit {cfg.latency_limit}: the fastest architecture takes "
                        f"{latency_text(fastest, cfg)}; raise it or widen the space")


def start_model(source, arch, data, cfg, run, space=None):
    """The model at the start of a training, new or with the weights of a Pretrained. It has a new
    head if the images have other classes. Prints facts about the data and the model."""
    ranks = run.ranks
    start = "from scratch"
    if source:
        start = f"the weights of {source.path}"
        same = dataclasses.replace(cfg, classes=source.settings["classes"])
        model = extract(source.weights, arch, same, space)
    seed_everything(cfg.seed, "weights")
    if not source:
        model = make_model(arch, cfg, space)
    elif cfg.task == "cifar10" and data.classes != read_spec(source.path)["classes"]:
        model.head = Linear(model.head.weight.shape[-1], cfg.classes)
        print0(ranks, f"newly initialised: head, since {source.path} has other classes")
    if cfg.task == "cifar10":
        on_main(ranks, save_spec, run.folder, data.spec)  # for predictions
    held_out = f"{data.num_held_out:,}" if data.num_held_out else "none, so no held-out loss"
    parameters = sum(value.numel() for value in model.parameters())
    print0(ranks, f"{data.facts()}; held out: {held_out} (--held_out)")
    print0(ranks, f"{run.start_line(start)}; {parameters:,} parameters, {cfg.steps} steps")
    return model.to(ranks.device)


def train(cfg, command):
    """Train the winner from scratch (Sec. 3.2.2), or from --init's weights."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        data = open_data(cfg, command, ranks)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data)
        if not run.result:
            model = start_model(source, parse_arch(cfg.arch, cfg), data, cfg, run)
            losses = train_network(model, data, cfg, run)  # step 7 of find_architecture
            loss = None
            if data.num_held_out:
                loss = evaluate_network(model, data, cfg, ranks)["loss"]
            scores = held_out_scores(model, data, cfg, ranks)
            run.finish({"arch": cfg.arch, "held_out_loss": loss, **losses, "held_out": scores,
                        "ends_lowest": ends_lowest(data, cfg)})
        print_scores(run, cfg)


def evaluate(cfg, command):
    """Accuracy or BLEU (Sec. 4.1.4) and latency of --init's network. Keeps its predictions for the
    test data and scores.json."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        flags = data_flags(cfg, command.action)
        found = find_data(cfg, command, ranks, flags, languages=cfg.languages)
        flag, = flags
        path = found.flags.get(flag, flags[flag])
        command = dataclasses.replace(command, value=path)  # names the folder of the predictions
        on_main(ranks, check_answers, command, cfg, endings(cfg))
        data = open_inputs(cfg, ranks)
        examples, references = data.read_test(flag, path)
        if cfg.dry_run:
            examples = examples[:64]
            references = references[:64]
        arch = parse_arch(cfg.arch, cfg)
        model = cast(extract(source.weights, arch, cfg), cfg, ranks.device)
        predictions = predict_examples(model, examples, data, cfg, ranks)
        scores = score_predictions(predictions, references, cfg)
        if cfg.task == "cifar10":
            scores["pixel_baseline"] = on_main(
                ranks, data.test_baseline, flag, path, examples, references)
        scores["latency"] = on_main(ranks, measure_latency, arch, cfg, ranks.device)
        print_evaluation(scores, len(examples), cfg, ranks)
        if cfg.out:  # not in a dry run
            path = on_main(ranks, write_predictions, predictions, scores, data, cfg, command)
            print0(ranks, f"{path}: the predictions")
            print0(ranks, "next, with a FILE of your own: python mformer.py --predict FILE --init "
                          f"{cfg.init}")


def predict(cfg, command):
    """Translate or classify a file of the user with the network of --init."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        on_main(ranks, check_answers, command, cfg, endings(cfg))
        data = open_inputs(cfg, ranks)
        file = Path(command.value)
        examples = data.read_examples(file)
        model = extract(source.weights, parse_arch(cfg.arch, cfg), cfg)
        model = cast(model, cfg, ranks.device)
        predictions = predict_examples(model, examples, data, cfg, ranks)
        path = on_main(ranks, write_predictions, predictions, None, data, cfg, command)
        print0(ranks, f"{path}: predictions of {cfg.init} for {file}, one per line")


def export(cfg, command):
    """Write the network of --init as FILE.py in plain torch, with its weights next to it."""
    source = load_pretrained(cfg, command)
    cfg = resolve(cfg, command, None, source)
    data = open_inputs(cfg, Ranks(0, 1, torch.device("cpu")))
    path = Path(command.value)
    check_export(path, data)
    model = extract(source.weights, parse_arch(cfg.arch, cfg), cfg)
    write_network(path, model, cfg, data)
    print(f"{path}: written, with weights; its first lines say how to use it")


def endings(cfg):
    """The endings of an --out of --predict and --evaluate that is a file, not a folder."""
    return *ENDINGS, f".{cfg.languages[1]}"


def write_predictions(predictions, scores, data, cfg, command):
    """Write one prediction per line and, of an evaluation, scores.json. Returns the path of the
    predictions."""

    def write(folder):
        path = folder / data.predictions_file
        write_atomic(path, "".join(f"{prediction}\n" for prediction in predictions))
        if scores:
            write_json(folder / "scores.json", {**scores, "arch": cfg.arch})
        return path

    return keep_answers(command, cfg, write, endings(cfg))


def describe(cfg, command):
    """Parameters, FLOPs, memory and days of a run, as JSON. (python -m tests.claims.mformer counts
    has Table 5's networks as the paper counts them, without the products of linear attention.)"""
    cfg = resolve(cfg, command, None, load_pretrained(cfg, command))
    arch = parse_arch(cfg.arch, cfg)
    parts = count_parts(arch, cfg)
    total = sum(parts.values())
    flops = model_flops(arch, cfg)
    example = blank_example(cfg)
    tokens = example.tokens
    activations = [layer_activations(tokens, arch.hidden, ffn) for ffn in arch.ffn]
    activations += [layer_activations(tokens, arch.decoder_hidden, ffn) for ffn in arch.decoder_ffn]
    examples = cfg.batch / example.units  # of a step
    print(json.dumps({
        "parameters": total,
        "parts": parts,
        "flops": flops,
        "flops_counting": model_flops.__doc__,
        "arch": cfg.arch,
        **training_cost(cfg, total, flops, activations, example.logits, cfg.steps, examples),
    }, indent=2))


# What is printed

FEWEST_COMPARED = 8  # held-out sub-nets for a rank correlation
OVERFITTED = 0.02  # of a held-out loss: above the lowest by this fraction, it is worse


def latency_text(value, cfg, device=None):
    """A latency with its unit and, if given, the device that measured it."""
    if cfg.cost == "flops":
        return f"{value:.4g} GFLOPs"
    if device is None:
        return f"{value:.4g} ms"
    name = device.type
    if name == "cpu":
        name = f"a CPU, {torch.get_num_threads()} threads"
    elif name == "cuda":
        name = torch.cuda.get_device_name(device)
    return f"{value:.4g} ms ({name})"


def loss_text(name, loss, cfg):
    """A held-out loss next to that of a uniform guess."""
    choices = cfg.classes if cfg.task == "cifar10" else cfg.vocab_size
    return f"{name} {loss:.4f} (a uniform guess: {math.log(choices):.4f})"


def print_best(run, cfg):
    """Print the result of a search, the quality of the rankers, and the next command."""
    ranks = run.ranks
    result = run.result
    for name, importance in result["importance"].items():
        lost = ", ".join(f"{feature} {value:.3f}" for feature, value in importance.items())
        tau = f"Kendall's tau {result['tau'][name]:.3f} on {result['compared']} held-out sub-nets"
        if result["compared"] < FEWEST_COMPARED:
            tau = f"too few held-out sub-nets ({result['compared']}) for a rank correlation"
        print0(ranks, f"{name} ranker: {tau}; importance: {lost}")
    print0(ranks, f"finalists: {result['finalists']} measured, {result['within']} within the limit")
    scores = result["scores"]
    print0(ranks, f"best: {result['arch']}\n{loss_text('loss', scores['loss'], cfg)}, latency "
                  f"{latency_text(scores['latency'], cfg, ranks.device)}, limit "
                  f"{latency_text(result['latency_limit'], cfg)}")
    print_held_out(run, cfg)
    # The training uses the same data and shapes, but not the search's budget.
    data = [field.name for field in dataclasses.fields(Config)
            if cli.group_of(Config, field.name) in ("images", "translation", "model")]
    run.print_next(
        cfg, "best.json", "--train", "--arch", run.folder / "best.json",
        same=("preset", "task", "device", *data, "train_examples", "dropout"))


def print_published(name, cfg, ranks):
    """Print a note if --arch is a network of the paper and the preset suits smaller ones."""
    if cfg.preset != "base" and name.partition("-")[0] in PUBLISHED[cfg.task]:
        parameters = sum(count_parts(parse_arch(name, cfg), cfg).values())
        print0(ranks, f"--arch {name}: the paper's network, {parameters:,} parameters, slow on a "
                      f"CPU; --preset base has its settings, --search with --preset {cfg.preset} "
                      "finds a small one")


def print_scores(run, cfg):
    """Print the held-out losses of a finished training, which weights it has kept, whether it
    overfits, and the next command."""
    ranks = run.ranks
    result = run.result
    lowest = result.get("lowest")
    if result["held_out_loss"] is None:
        print0(ranks, "no held-out examples (--held_out)")
    else:
        print0(ranks, loss_text("held-out loss", result["held_out_loss"], cfg))
    if lowest:
        print0(ranks, f"lowest held-out loss {lowest['loss']:.4f}, after step {lowest['step']} of "
                      f"{cfg.steps}")
    saves = min(AVERAGED, math.ceil(cfg.steps / cfg.save_every))
    kept = "these weights" if result["ends_lowest"] else f"the average of the last {saves} saves"
    print0(ranks, f"kept: {kept} (--weights)")
    if lowest and result["last"] > (1 + OVERFITTED) * lowest["loss"]:
        fix = "" if result["ends_lowest"] else "--weights lowest --restart, "
        print0(ranks, f"the loss rose to {result['last']:.4f} by the last step (overfitting): use "
                      f"{fix}more data, a larger --dropout or a smaller network")
    print_held_out(run, cfg)
    run.print_next(cfg, "checkpoint.pt", *next_action(cfg), "--init", run.folder)


def print_held_out(run, cfg):
    """Print the held-out accuracy of a finished search (of its sub-net) or training."""
    scores = run.result["held_out"]
    if scores:
        print0(run.ranks, f"held out: {score_text(scores)}")
        print_hint(scores, cfg, run.ranks)


def next_action(cfg):
    """The action after a training, as words of a command: --evaluate, or --predict without test
    data."""
    if cfg.task == "wmt14":
        tested = cfg.test_text
        file = f"{cfg.valid_text or cfg.train_text}.{cfg.languages[0]}"
    else:
        tested = cfg.cifar10 or Path(cfg.images, "test.npz").exists()
        file = Path(cfg.images, "train.npz")
    return ["--evaluate"] if tested else ["--predict", file]


def print_evaluation(scores, number, cfg, ranks):
    """Print the scores and the latency of an evaluation on `number` examples."""
    print0(ranks, f"{score_text(scores)} on {number} test examples, "
                  f"latency {latency_text(scores['latency'], cfg, ranks.device)}")
    print_hint(scores, cfg, ranks)


def score_text(scores):
    """The scores of an evaluation as words."""
    if "bleu" in scores:
        return f"bleu {scores['bleu']:.2f}"
    text = f"accuracy {scores['accuracy']:.2%} (majority baseline {scores['majority_baseline']:.2%}"
    if scores["pixel_baseline"] is not None:
        text += f", linear classifier on pixels {scores['pixel_baseline']:.2%}"
    return f"{text})"


def print_hint(scores, cfg, ranks):
    """Print what helps if an accuracy is not above its baselines."""
    baseline = baseline_not_beaten(scores)
    if baseline and not cfg.dry_run:
        print0(ranks, f"{baseline}; raise --steps of the training, or give more images")


def baseline_not_beaten(scores):
    """How an accuracy compares with a baseline that it does not beat, else ""."""
    if "accuracy" not in scores:
        return ""
    if scores["accuracy"] < scores["majority_baseline"] + NEAR:
        return "near the majority baseline: the network has learned little"
    if scores["accuracy"] <= (scores["pixel_baseline"] or 0):
        return "not above a linear classifier on pixels"
    return ""


# Command line


def check(cfg, command):
    """UserError if flags contradict each other."""
    reasons = {}  # {flag: why it must not be given}
    if cfg.images:
        reasons["cifar10"] = "--images are given; leave one of them out"
    if cfg.tokenizer:
        reasons["vocab_size"] = "--tokenizer has its own; leave it out"
    if cfg.init:
        reasons |= dict.fromkeys(("tokenizer", "vocab_size"), "--init has its own; leave it out")
    if cfg.arch:
        reasons |= dict.fromkeys(
            space_flags(command), "the architecture comes from --arch; leave it out")
    if command.action != "describe":
        reasons["classes"] = "the images have their own number of classes; leave it out"
    for name, reason in reasons.items():
        if name in command.given:
            raise UserError(f"--{name}: {reason}")
    if len({*cfg.languages}) < 2:
        raise UserError(f"--languages {' '.join(cfg.languages)}: give two different endings, of "
                        "the source files and of the target files")
    if command.action in ("evaluate", "predict", "export") and not cfg.init:
        raise UserError(f"--{command.action}: --init is missing; give a run folder of --train or "
                        "--search")
    if cfg.task == "cifar10" and not (cfg.images and "image" not in command.given):
        check_patches(cfg.image, cfg.patch)


def actions_of(task):
    """{action: the function, its help, and the groups of settings that it reads} for a task."""
    network = ("run", "execution", "architecture")
    space = ("search space",)
    beam = ()
    data = "images"
    if task == "wmt14":
        space = ("search space", "decoder in the search space")
        beam = ("beam search",)
        data = "translation"
    return {
        "search": (
            search, "super-net, rankers, pruning, evolution: finds an architecture",
            ("run", "execution", data, *space, "model", "training", "search", "latency", *beam)),
        "train": (
            train, "train an architecture from scratch, or from the weights of --init",
            (*network, data, "model", "training")),
        "evaluate": (
            evaluate, "score a trained network on the test data",
            (*network, data, "latency", *beam)),
        "predict": (
            predict, "classify the images of an npz file, or translate the lines of a text file, "
            "with the network of --init RUN, into RUN-predictions/FILE or --out",
            (*network, *beam), "FILE"),
        "export": (
            export, "write the network of --init as plain torch, with its weights next to it",
            ("run", "architecture"), "FILE.py"),
        "describe": (
            describe, "parameters, FLOPs, memory, cards and days as JSON",
            (*network, data, *space, "model", "training")),
    }


def task_of(argv):
    """--task, or the task of --init."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task")
    parser.add_argument("--init")
    flags = parser.parse_known_args(argv)[0]
    task = flags.task or cli.settings_of(flags.init).get("task")
    return task if task in PRESETS else Config.task  # another is refused later


def presets_of(argv):
    """The presets of the task. For the help, each also has what the other task takes."""
    task = task_of(argv)
    other, = PRESETS.keys() - {task}
    titles = cli.field_groups(Config)
    defaults = {field.name: field.default for field in dataclasses.fields(Config)
                if field.name != "preset" and f"--task {task}" not in titles[field.name]}
    presets = {"dry_run": DRY_RUN}
    for name, preset in PRESETS[task].items():
        of_other = defaults | {"task": task, **PRESETS[other][name]}
        presets[name] = {**preset, "task": task, f"task {other}": of_other}
    return presets


def main(argv=None):
    """Run one action."""
    actions = actions_of(task_of(argv))
    return cli.start(Config, presets_of(argv), actions, __doc__, check, argv)


if __name__ == "__main__":
    if "cli" not in globals():
        print("mformer.py alone can be imported: model, super-net, ranker and searcher; "
              "its commands need common/ and data/ of its repository", file=sys.stderr)
        sys.exit(2)
    cli.run(main)
