"""AutoTinyBERT: Automatic Hyper-parameter Optimization for Efficient Pre-trained Language Models
(Yin, Chen, Shang, Jiang, Chen, Liu; ACL 2021, arXiv:2107.13686v1).

How deep and wide should a BERT be that has to answer within a given number of milliseconds? One
large model, the SuperPLM, is trained so that all smaller models cut out of it work (one-shot
learning, Alg. 1). An evolution (Alg. 2) then searches for the best shape within the limit. The best
shapes take their weights from the SuperPLM and are trained further.

Run:     python autotinybert.py --search --dry_run        a few steps of every phase on demo data
         python autotinybert.py --search --speedup 7.2    from text to a tiny model, on two cores
         python autotinybert.py --search --init BERT --tasks FOLDER --speedup 2
                                                          a released BERT becomes a small classifier
         torchrun --nproc_per_node=16 autotinybert.py --search --preset base --speedup 7.2 \\
             --corpus TEXTS --glue GLUE --squad SQUAD     the paper's sizes and budget (Sec. 4.1)
Map:     Table B.1 -> search_space               Eq. 1, 2, 3 -> Layer     Table 3 -> VARIANTS
         Sec. 3.4, Fig. 3 -> leading, extract    Alg. 1 -> train_language_model, train_step
         Eq. 4 -> find_architecture, judge, Predictor                     Alg. 2 -> evolve, propose
         Sec. 3.6 -> train_further               Sec. 4.4 -> fast_candidates
         Table D.1 -> TABLE_D1                   App. A -> export         Eq. 5 -> EXERCISES.md
         Beyond the paper: a released BERT -> tuned_start, sort_units, score_states, PlainBert
         Tables 1, 3 and Fig. 4 in small -> tests/claims
         Tables 2, 5, F.1 and Fig. 5 need trainings of 5 or 10 epochs, 58 GPU hours each: not here
Symbols: the paper's           here                       shape, or meaning
         l^t, d^m|o, d^f       layers, hidden, ffn        H is hidden
         h, d^q|k|v            heads, qkv                 N, Q = N D
         W^q, W^k, W^v         qkv                        (3, N, D, H) of Layer
         W^o                   output                     (H, N, D)
         W^1, W^2              fc1, fc2                   (ffn, H), (H, ffn)
         alpha, A              arch, space                Eq. 4
         Perf, Lat, T          judge, predict_ms, limit   Eq. 4
         N, M                  accumulate, samples        Alg. 1
         G_t, V_t              proposals, results         Alg. 2
         T, S                  generations, population    Alg. 2
         p_m, p_e              MUTATION, EXPLORATION      Alg. 2
         Mut                   mutate                     Alg. 2
Tour:    search_space, leading, Layer, train_step, Predictor, propose, evolve, find_architecture
         (the whole method). Skip at first: HAT and the other variants, distillation, fine-tuning,
         what is beyond the paper.
Differs: There are 31 departures, D1 to D31, where this file differs from the paper or the paper is
         silent: grep -n '# D[0-9]' autotinybert.py
         A * marks a departure from the released code, huawei-noah/Pretrained-Language-Model,
         AutoTinyBERT at 0598f02. HAT (Table 3) is Wang et al. 2020, arXiv:2005.14187.
"""
import copy
import dataclasses
import functools
import json
import math
import random
import re
import shutil
import statistics
import sys
import time
import warnings
from collections import namedtuple
from itertools import product
from pathlib import Path
from typing import Literal
import torch
import torch.nn.functional as F
from torch import nn

if (Path(__file__).parent / "common" / "launch.py").exists():  # a copy of this file has no commands
    from common import cli, folder_task
    from common.cli import Diverged, UserError
    from common.files import existing, jsonl, read_json, write_atomic, write_json
    from common.finetune import (
        Method, Recipe, Tuning, fine_tune, finetune_tasks, open_task, parse_tasks, percent,
        predict_file, print_summary)
    from common.finetune import predict as predict_split
    from common.launch import (
        Ranks, autocast, average_gradients, fit_accumulate, generator_of, launch,
        layer_activations, micro_batch_numbers, move, on_main, pick_device, print0,
        print_device_use, seed_everything, seed_of, send, total_over, training_cost)
    from common.run import Loop, Run, keep_model, processor, read_run, set_rate, settings_from
    from data import hf_models
    from data.bert_code import open_module, write_module
    from data.corpus import join
    from data.drawing import scatter
    from data.inputs import (
        Data, check_vocabulary, open_data, open_tokenizer, print_after_training, tuned_task)
    from data.network_code import SPAN, refuse_to_overwrite

# B batch, T tokens, H hidden (d^m), Q query/key/value width, N heads, D head width, V vocabulary,
# I masked positions, E embedding width (H except in small teachers), W teacher's hidden width

# --- configuration --------


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings. A trailing comment is the help text of the flag and ends in its range. Flags
    override presets, and presets override defaults. The defaults are the preset base. The command
    line starts from the preset demo."""
    preset: str = "base"  # demo (minutes on two cores) | base (the paper's) | released (of --init)
    seed: int = 0  # random seed
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs that have it
    dry_run: bool = False  # run a few steps of every phase, unless flags say otherwise
    init: str = ""  # run or Hugging Face folder to start from. --search makes it a SuperPLM
    # D1* (silent): the vocabulary is a SentencePiece model, unless a flag names a vocab.txt. The
    # released code has WordPiece
    tokenizer: str = ""  # spiece.model or vocab.txt. Default: --init's, --teacher's, or a new one
    dropout: float = 0.1  # on hidden states and attention [0, 1)
    weight_decay: float = 0.01  # of AdamW, BERT's, except for biases and LayerNorms
    # execution: may differ when a run continues
    out: str = ""  # run folder. Default: runs/autotinybert-ACTION-PRESET
    restart: bool = False  # rename the run in the run folder and start again
    device: str = "auto"  # auto (cuda, else cpu) | cpu | cuda | mps, xpu (not tested)
    compile: bool = False  # torch.compile further training, not the SuperPLM
    save_every: int = 1000  # steps between checkpoints [>= 1]
    tensorboard: bool = False  # also log to RUN/tensorboard (pip install tensorboard)
    cache: str = ""  # folder of vocabularies and token files. Default: data/cache
    # text
    corpus: tuple[str, ...] = ()  # text files or folders. Default: demo text
    vocab_size: int = 30522  # tokens in the vocabulary [>= 1]
    # D2 (silent): 5% of the documents are held out, at most 1,000
    held_out: float = 0.05  # held-out documents: fraction (below 1, capped at 1,000) or count [> 0]
    # D3 (silent): sequences have 128 tokens, as the released code makes them by default. The paper
    # times 128 and names no other length
    length: int = 128  # tokens per sequence, special ones included (D3) [8, 512]
    # architecture
    arch: str = ""  # architecture layers-hidden-ffn-heads-qkv (Table 4), or a best.json
    # objective
    setting: Literal["mlm", "distill"] = "mlm"  # Table B.1: fewer heads, or narrower ones (distill)
    teacher: str = ""  # folder of a BERT or ELECTRA, or of a run, for --setting distill
    # search space (with --init, that of its SuperPLM)
    largest: str = "8-768-3072-12-768"  # architecture of the SuperPLM, Sec. 3.4
    smallest: str = "1-128-128-1-180"  # smallest choices, Table B.1. mlm reads heads, distill qkv
    variant: Literal["ebl", "sme", "ils", "hat"] = "ebl"  # row of Table 3. ebl: the paper's method
    # training on text
    accumulate: int = 16  # micro-batches per step, N of Alg. 1. Raised to fit the processes [>= 1]
    batch: int = 256  # sequences per step, Sec. 4.1 [>= 1]
    lr: float = 1e-5  # peak learning rate, Sec. 4.1 [> 0]
    warmup: float = 0.1  # fraction of the steps. Further training of weights: 0, Sec. 4.1 [0, 1]
    init_std: float = 0.02  # standard deviation of new weights, larger for narrow models [> 0]
    eval_every: int = 32000  # steps between evaluations on held-out text [>= 1]
    # one-shot training
    samples: int = 3  # M of Alg. 1: sub-models per micro-batch [1, 10000]
    steps: int | None = None  # of the SuperPLM. Default: 5 passes over the corpus, Sec. 4.1
    sort: Literal["taylor", "none"] = "taylor"  # units of --init by importance. none: the paper
    # further training
    further_steps: int | None = None  # of one model. Default: 5 passes, from scratch 10 (BERT-S*)
    # tasks, by default the demo data
    glue: str = ""  # folder of the GLUE tasks
    squad: str = ""  # folder of train-v1.1.json and dev-v1.1.json
    columns: str = ""  # text columns of your own task: NAME[,NAME]. Default: usual names
    labels: Literal["auto", "classes", "numbers"] = "auto"  # of your own task
    train_examples: int = 0  # training examples of each task (0: all)
    # fine-tuning, by default as in Table D.1
    finetune_epochs: int | None = None  # passes over the task [>= 1]
    finetune_batch: int | None = None  # examples per step [>= 1]
    finetune_lr: float | None = None  # peak learning rate [> 0]
    finetune_length: int | None = None  # tokens (128, for SQuAD 384, MLM-saved --length) [8, 512]
    # distillation on tasks
    task_teacher: str = ""  # run of --finetune whose outputs are learned, or none
    # scores of --finetune
    runs: int = 1  # seeds of each fine-tuning [>= 1]
    # what is timed
    latency_device: Literal["cpu", "cuda"] = "cpu"  # device that latencies are measured on
    latency_threads: int = 1  # CPU threads. With 1, CPU seconds are measured (D20) [1, 1024]
    latency_batch: int = 1  # sequences at a time, Table 1 [>= 1]
    latency_length: int = 128  # tokens per sequence, Table 1 [>= 1]
    latency_states: Literal["all", "first"] = "all"  # of the last layer; classes need the first
    quantize: bool = False  # time, score and export linear layers with 8-bit integers (CPU)
    # latency
    reference: str = "12-768-3072-12-768"  # architecture that --speedup counts from: BERT-base
    latency_rounds: int = 5  # measurements of an architecture [1, 10000]
    latency_archs: int = 400  # measured architectures for the predictor [2, 1000000]
    # search
    latencies: str = ""  # run of --latency or --search. Default: --init's, or measured
    speedup: float = 7.2  # over --reference, Table 1, unless --latency_limit is given [> 0]
    latency_limit: float | None = None  # ms of the exported module, no padding [> 0]
    tasks: str = "SQuAD1.1,MNLI"  # proxy tasks, Sec. 3.5, or folders. MLM-saved: masked words (D16)
    proxy: str = ""  # what scores candidates: some of --tasks, MLM-saved, States-saved (D17)
    strategy: Literal["evolution", "random", "fast"] = "evolution"  # Alg. 2, random, or Sec. 4.4
    population: int = 25  # architectures of a generation, S of Alg. 2 [1, 1000000]
    generations: int = 4  # T of Alg. 2, with the first one [>= 1]
    winners: int | None = None  # trained further. Default: 3, Sec. 4.1, for fast 1 [>= 1]


PRESETS = {"base": {}}

# --- search space ---------


MOST_LAYERS = 1000  # of an architecture that is given
WIDTH_STEP = 4  # between choices of d^m and of d^f, Table B.1


@dataclasses.dataclass(frozen=True)
class Arch:
    """An architecture, printed as in Table 4: 5-564-1054-8-512. In HAT (Table 3) the last three are
    tuples, with a number per layer."""
    layers: int  # l^t
    hidden: int  # d^m|o
    ffn: object  # d^f
    heads: object  # h
    qkv: object  # d^q|k|v

    @property
    def shapes(self):
        """[(d^f, h, d^q|k|v)] of the layers."""
        sizes = self.ffn, self.heads, self.qkv
        if isinstance(self.ffn, tuple):
            return list(zip(*sizes))
        return [sizes] * self.layers

    @property
    def genes(self):
        """{variable of the search space: choice}."""
        return {"layers": self.layers, "hidden": self.hidden, "ffn": self.ffn,
                "attention": (self.heads, self.qkv)}

    def __str__(self):
        return "-".join(map(str, dataclasses.astuple(self)))


def parse_arch(text):
    """The Arch of a text such as 5-564-1054-8-512. Raises ValueError with the reason."""
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*){4}", text):
        raise ValueError(f"{text!r} is not an architecture; write layers-hidden-ffn-heads-qkv, "
                         "such as 5-564-1054-8-512")
    arch = Arch(*map(int, text.split("-")))
    if arch.layers > MOST_LAYERS:
        raise ValueError(f"{arch}: more than {MOST_LAYERS} layers")
    if arch.qkv % arch.heads:
        raise ValueError(f"{arch}: its heads do not divide the width of query, key and value")
    return arch


# Table 3. ILS: identical layers. SME: sub-matrix extraction. EBL: batch-wise training
# D4* (silent): without SME the heads divide the full width of query, key and value, and without
# EBL a micro-batch has one sub-model. The paper says of HAT only that its layers are not identical
VARIANTS = {"hat": "", "ils": "ILS", "sme": "ILS SME", "ebl": "ILS SME EBL"}


def search_space(cfg):
    """Table B.1: {variable: its choices}. Raises ValueError if a variable has no choices.

    Published architectures are outside the table: S1's d^f of 1054 (5-564-1054-8-512) is not
    128 + 4 k, and S5's d^m of 450 (5-450-636-6-384) neither. A search proposes only identical
    layers (Sec. 3.3). HAT's training samples others too.

    "attention" pairs heads with d^q|k|v. mlm: fewer heads of full width. distill: all heads,
    narrower. Without SME the heads divide the full d^q|k|v.

    >>> shapes = dict(largest="4-16-24-3-12", smallest="2-8-16-1-6")
    >>> [list(choices) for choices in search_space(Config(**shapes)).values()]
    [[2, 3, 4], [8, 12, 16], [16, 20, 24], [(1, 4), (2, 8), (3, 12)]]
    >>> for change in (dict(setting="distill"), dict(variant="ils")):
    ...     print(search_space(Config(**shapes, **change))["attention"])
    [(3, 6), (3, 9), (3, 12)]
    [(1, 12), (2, 12), (3, 12)]
    """
    low = parse_arch(cfg.smallest)
    high = parse_arch(cfg.largest)
    heads = range(low.heads, high.heads + 1)
    if cfg.setting == "distill":
        heads = [high.heads]
        if low.qkv % high.heads:
            raise ValueError(f"--smallest {low}: its qkv must be a multiple of the {high.heads} "
                             f"heads of {high}")
    if "SME" not in VARIANTS[cfg.variant]:
        attention = [(count, high.qkv) for count in heads if high.qkv % count == 0]
    elif cfg.setting == "mlm":
        attention = [(count, count * (high.qkv // high.heads)) for count in heads]
    else:
        attention = [(high.heads, qkv) for qkv in range(low.qkv, high.qkv + 1, high.heads)]
    space = {
        "layers": range(low.layers, high.layers + 1),
        "hidden": range(low.hidden, high.hidden + 1, WIDTH_STEP),
        "ffn": range(low.ffn, high.ffn + 1, WIDTH_STEP),
        "attention": attention,
    }
    for name, choices in space.items():
        if not choices:
            raise ValueError(f"--smallest {low}: larger than --largest {high} in {name}")
    return space


def make_arch(layers, hidden, ffn, attention):
    """The inverse of Arch.genes."""
    return Arch(layers, hidden, ffn, *attention)


def smallest_arch(space):
    """The smallest and so fastest architecture."""
    return make_arch(**{name: choices[0] for name, choices in space.items()})


def sample_arch(space, rng, identical=True):
    """Draw all variables uniformly and independently. identical=False draws ffn and attention per
    layer (HAT)."""
    arch = make_arch(**{name: rng.choice(choices) for name, choices in space.items()})
    if identical:
        return arch
    ffn = [rng.choice(space["ffn"]) for _ in range(arch.layers)]
    attention = [rng.choice(space["attention"]) for _ in range(arch.layers)]
    heads, qkv = zip(*attention)
    return Arch(arch.layers, arch.hidden, tuple(ffn), heads, qkv)


def flops(arch, tokens=128):
    """FLOPs of the matrix products of encoder and pooler for a sequence, 2 for a multiply-add.

    By hand, for H = 2, d^f = 3, Q = 2 and 4 tokens: 2 (4 (4 H Q + 2 H d^f) + 2 * 4 * 4 Q + H H)

    >>> flops(Arch(layers=1, hidden=2, ffn=3, heads=1, qkv=2), tokens=4)
    360
    """
    count = arch.hidden ** 2  # pooler
    for ffn, _, qkv in arch.shapes:
        count += tokens * (4 * arch.hidden * qkv + 2 * arch.hidden * ffn)
        count += 2 * tokens * tokens * qkv
    return 2 * count

# --- model ----------------


def leading(weight, shape):
    """The leading part of every axis of a weight (Sec. 3.4, "bottom-left" there). It is a slice, so
    that gradients reach the weight. A weight of this shape is returned unchanged.

    In attention weights, axis 1 is the head and axis 2 the width of a head. Figure 3 has four heads
    of three. (b) keeps heads, (c) a part of each head. Without sub-matrix extraction (HAT and ILS
    of Table 3) all of d^q|k|v is used, split into another number of heads:

        (a) all         (b) 2 heads     (c) 2 of each 3   2 heads without SME
        0   1   2       0   1   2       0   1   .         0   1   2   3   4   5
        3   4   5       3   4   5       3   4   .         6   7   8   9  10  11
        6   7   8       .   .   .       6   7   .
        9  10  11       .   .   .       9  10   .

    >>> weight = torch.arange(12).view(1, 4, 3)
    >>> for heads, width in ((2, 3), (4, 2), (2, 6)):
    ...     print(leading(weight, (1, heads, width)).tolist())
    [[[0, 1, 2], [3, 4, 5]]]
    [[[0, 1], [3, 4], [6, 7], [9, 10]]]
    [[[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]]
    """
    if weight.shape == shape:
        return weight
    if weight.dim() > 2 and weight.shape[1] * weight.shape[2] == shape[1] * shape[2]:
        weight = weight.flatten(1, 2).unflatten(1, shape[1:3])
    return weight[tuple(map(slice, shape))]


class Linear(nn.Linear):
    """A linear map to the first `outputs`, with the weights of the present inputs."""

    def forward(self, x, outputs=None):
        outputs = outputs or self.out_features
        weight = leading(self.weight, (outputs, x.shape[-1]))
        return F.linear(x, weight, leading(self.bias, (outputs,)))


class LayerNorm(nn.LayerNorm):
    """LayerNorm whose mean and variance are taken over the dimensions in use."""

    def forward(self, x):
        width = x.shape[-1:]
        return F.layer_norm(
            x, width, leading(self.weight, width), leading(self.bias, width), self.eps)


class Layer(nn.Module):
    """A Transformer layer, Eq. 1 to 3, or a part of one. (B, T, H) -> (B, T, H). Attention weights
    have an axis of heads."""

    def __init__(self, hidden, ffn, heads, qkv, dropout):
        super().__init__()
        D = qkv // heads
        self.qkv = nn.Parameter(torch.empty(3, heads, D, hidden))
        self.qkv_bias = nn.Parameter(torch.zeros(3, heads, D))
        self.output = nn.Parameter(torch.empty(hidden, heads, D))
        self.output_bias = nn.Parameter(torch.zeros(hidden))
        self.attention_norm = LayerNorm(hidden, eps=1e-12)
        self.fc1 = Linear(hidden, ffn)
        self.fc2 = Linear(ffn, hidden)
        self.ffn_norm = LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, shape, mask, positions=None, with_scores=False):
        """shape: d^f, h and d^q|k|v of the part in use. mask: (B, 1, 1, T), True at real tokens, or
        None. positions: (B, I), the tokens whose states are computed, or None for all. with_scores:
        also returns the unmasked input of the softmax (B, N, T, T)."""
        ffn, N, Q = shape
        D = Q // N
        H = x.shape[-1]
        weight = leading(self.qkv, (3, N, D, H)).flatten(0, 2)  # (3 N D, H)
        bias = leading(self.qkv_bias, (3, N, D)).flatten()
        projected = F.linear(x, weight, bias).unflatten(-1, (3, N, D))  # (B, T, 3, N, D)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (B, N, T, D)
        if positions is not None:
            x = x.take_along_dim(positions[..., None], 1)  # (B, I, H)
            query = query.take_along_dim(positions[:, None, :, None], 2)  # (B, N, I, D)
        dropout = self.dropout.p if self.training else 0.0
        if with_scores:
            scores = query @ key.transpose(-1, -2) / math.sqrt(D)  # (B, N, T, T)
            visible = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
            mixed = F.dropout(visible.softmax(-1), dropout) @ value  # Eq. 1
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout)  # Eq. 1
        # Eq. 1: the sum of each head times its W^o. (B, N, T, D) -> (B, T, Q) -> (B, T, H)
        mixed = mixed.transpose(1, 2).flatten(2)
        weight = leading(self.output, (H, N, D)).flatten(1)  # (H, Q)
        mixed = F.linear(mixed, weight, leading(self.output_bias, (H,)))
        x = self.attention_norm(x + self.dropout(mixed))  # Eq. 2
        # D5 (conflict): the activation is GELU, as in BERT and the released code. Eq. 3 prints a
        # ReLU
        x = self.ffn_norm(x + self.dropout(self.fc2(F.gelu(self.fc1(x, ffn)), H)))  # Eq. 3
        return (x, scores) if with_scores else x


class Encoder(nn.Module):
    """BERT without its pre-training heads. A batch {"ids", "token_type_ids" (B, T), "lengths" (B,)
    unless all are full, ...} -> (B, T, H). embedding: the width E of the embeddings if it is not H,
    as in small ELECTRA teachers. Such a model cannot be cut."""

    def __init__(self, arch, vocab_size, dropout=0.0, positions=512, embedding=None):
        super().__init__()
        E = embedding or arch.hidden
        self.arch = arch
        self.trained = 0  # the number of trained positions
        self.token_embedding = nn.Embedding(vocab_size, E)
        self.position_embedding = nn.Embedding(positions, E)
        self.token_type_embedding = nn.Embedding(2, E)
        self.norm = LayerNorm(E, eps=1e-12)
        self.project = nn.Linear(E, arch.hidden) if E != arch.hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(arch.hidden, *shape, dropout) for shape in arch.shapes)
        self.pooler = nn.Linear(arch.hidden, arch.hidden)
        self.apply(init_weights)

    def token_table(self, arch=None):
        """The token embedding (V, E) of a sub-model."""
        weight = self.token_embedding.weight
        return weight if arch is None else leading(weight, (len(weight), arch.hidden))

    def embed(self, batch, table):
        """(B, T, E)"""
        T = batch["ids"].shape[1]
        E = table.shape[1]
        positions = self.position_embedding.weight[:T, :E]
        types = self.token_type_embedding(batch["token_type_ids"])[..., :E]
        return self.dropout(self.norm(F.embedding(batch["ids"], table) + positions + types))

    def forward(self, batch, arch=None, positions=None, with_scores=False, table=None):
        """arch: the sub-model to run, or None for all. positions: (B, I), the tokens whose states
        are returned, or None for all. with_scores: also returns the last layer's raw attention
        scores (B, N, T, T). table: the token_table of `arch`, if the caller uses it too. Sharing
        one slice saves a copy of its gradient."""
        x = self.embed(batch, self.token_table(arch) if table is None else table)
        if arch is None:
            x = self.project(x)  # (B, T, H)
            arch = self.arch
        mask = None
        lengths = batch.get("lengths")
        if lengths is not None:
            # an empty sequence sees its first token, since a softmax over nothing is NaN
            numbers = torch.arange(x.shape[1], device=x.device)
            visible = numbers < lengths.clamp(min=1)[:, None]  # (B, T)
            mask = visible[:, None, None]  # (B, 1, 1, T)
        *first, last = zip(self.layers, arch.shapes)  # the first l^t layers, Sec. 3.4
        for layer, shape in first:
            x = layer(x, shape, mask)
        layer, shape = last
        return layer(x, shape, mask, positions, with_scores)

    def pool(self, x):
        """(B, T, H) -> (B, H), the input of classifiers."""
        return torch.tanh(self.pooler(x[:, 0]))


def init_weights(module):
    """BERT's initialisation."""
    # D6 (silent): initial weights are normal, not truncated at two deviations
    for name, value in module.named_parameters(recurse=False):
        if "bias" in name:
            nn.init.zeros_(value)
        elif not isinstance(module, nn.LayerNorm):
            nn.init.normal_(value, std=0.02)


class LanguageModel(nn.Module):
    """Encoder with the masked-language-model head or, for distillation, a projection to the
    teacher's width W (fit). arch: the sub-model to run, or None for all."""

    def __init__(self, arch, vocab_size, dropout=0.0, fit=0, positions=512):
        super().__init__()
        self.sizes = vocab_size, dropout, fit, positions
        self.encoder = Encoder(arch, vocab_size, dropout, positions)
        if fit:
            self.fit = Linear(arch.hidden, fit)
            init_weights(self.fit)
        else:
            self.transform = Linear(arch.hidden, arch.hidden)
            self.transform_norm = LayerNorm(arch.hidden, eps=1e-12)
            self.decoder_bias = nn.Parameter(torch.zeros(vocab_size))
            init_weights(self.transform)

    def forward(self, batch, arch=None):
        """MLM logits (B, I, V) at the batch's masked_positions (B, I)."""
        table = self.encoder.token_table(arch)  # (V, H)
        x = self.encoder(batch, arch, batch["masked_positions"], table=table)  # (B, I, H)
        x = self.transform_norm(F.gelu(self.transform(x, x.shape[-1])))
        return F.linear(x, table, self.decoder_bias)  # (B, I, V)

    def student(self, batch, arch=None):
        """The last layer's states (B, T, W) and raw attention scores (B, N, T, T)."""
        x, scores = self.encoder(batch, arch, with_scores=True)
        return self.fit(x), scores


class TaskModel(nn.Module):
    """Encoder with a linear head. A batch -> logits (B, outputs), or (B, T, 2) of spans. One output
    is a regression."""

    def __init__(self, encoder, outputs, spans=False):
        super().__init__()
        self.encoder = encoder
        self.spans = spans
        self.dropout = nn.Dropout(encoder.dropout.p)
        self.head = nn.Linear(encoder.arch.hidden, outputs)
        self.targets = None  # a fine-tuned teacher's outputs for the training examples
        init_weights(self.head)

    def forward(self, batch):
        if self.spans:
            return self.head(self.dropout(self.encoder(batch)))  # (B, T, 2)
        first = torch.zeros_like(batch["ids"][:, :1])
        cls = self.encoder(batch, positions=first)  # (B, 1, H), the state of [CLS]
        return self.head(self.dropout(self.encoder.pool(cls)))

    def loss(self, batch):
        """Cross-entropy of classes, squared error of a regression, or the mean cross-entropy of a
        span's start and end. With a teacher, the squared error of its outputs."""
        logits = self(batch).float()
        if self.targets is not None:
            # D7 (ours): the outputs of a fine-tuned teacher are learned instead of labels, by
            # the squared error, twice as long and at twice the learning rate. TinyBERT (Jiao et al.
            # 2020) learns outputs, too. The paper fine-tunes on labels
            targets = self.targets[batch["index"]]
            if self.spans:  # padded with large negative numbers
                targets = targets[:, :logits.shape[1]].clamp(min=logits.min().item())
            return F.mse_loss(logits, targets)
        if self.spans:
            start, end = logits.unbind(-1)  # 2 x (B, T)
            return (F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])) / 2
        if logits.shape[1] == 1:
            return F.mse_loss(logits[:, 0], batch["labels"])
        return F.cross_entropy(logits, batch["labels"])


# What is exported, and so what is timed


class PlainLayer(nn.Module):
    """A Layer of one architecture in standard modules. (B, T, H) -> (B, T or count, H)."""

    def __init__(self, hidden, ffn, heads, qkv):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * qkv)
        self.output = nn.Linear(qkv, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.fc1 = nn.Linear(hidden, ffn)
        self.fc2 = nn.Linear(ffn, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x, mask, count=None):
        """mask: (B, 1, 1, T), True at real tokens, or None. count: of the first tokens, whose
        states are computed, or None for all."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, N, D)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (B, N, T, D)
        mixed = F.scaled_dot_product_attention(query[:, :, :count], key, value, mask)
        x = x[:, :count]
        x = self.attention_norm(x + self.output(mixed.transpose(1, 2).flatten(2)))
        return self.ffn_norm(x + self.fc2(F.gelu(self.fc1(x))))


class PlainBert(nn.Module):
    """An Encoder with a TaskModel's head, of one architecture, in standard modules. A batch
    {"ids", "token_type_ids" (B, T), "lengths" (B,) unless all are full} -> logits (B, outputs), or
    (B, T, 2) of spans. Without outputs: states (B, T, H), and pooled ones (B, H).

    shapes: d^f, h and d^q|k|v of each layer. Classes need the last state of the first token
    alone."""

    def __init__(self, hidden, shapes, vocab_size, positions, outputs=0, spans=False):
        super().__init__()
        self.outputs = outputs
        self.spans = spans
        self.token_embedding = nn.Embedding(vocab_size, hidden)
        self.position_embedding = nn.Embedding(positions, hidden)
        self.token_type_embedding = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(PlainLayer(hidden, *shape) for shape in shapes)
        self.pooler = nn.Linear(hidden, hidden)
        if outputs:
            self.head = nn.Linear(hidden, outputs)

    def forward(self, batch):
        ids = batch["ids"]
        T = ids.shape[1]
        x = self.token_embedding(ids) + self.position_embedding.weight[:T]
        x = self.norm(x + self.token_type_embedding(batch["token_type_ids"]))
        mask = None
        if "lengths" in batch:
            visible = torch.arange(T, device=ids.device) < batch["lengths"].clamp(min=1)[:, None]
            mask = visible[:, None, None]  # (B, 1, 1, T)
        *before, last = self.layers
        for layer in before:
            x = layer(x, mask)
        x = last(x, mask, None if self.spans or not self.outputs else 1)
        if self.spans:
            return self.head(x)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return self.head(pooled) if self.outputs else (x, pooled)


class Int8Linear(nn.Module):
    """A linear map with 8-bit weights, one scale for each output, and inputs that are rounded to 7
    bits, one scale in each call (dynamic quantisation). By torch's integer engine, on CPUs."""

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach()
        scales = weight.abs().amax(1).clamp(min=1e-9).double() / 127
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # torch 2.13 plans to move these types to torchao
            warnings.simplefilter("ignore")
            weight = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(weight, linear.bias.detach())

    def forward(self, x):
        # 8 bits would overflow on CPUs without VNNI
        return torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=True)


def quantize(module):
    """Replace the linear maps of a module by Int8Linear. Returns it. Raises RuntimeError on a CPU
    for which torch has no integer engine."""
    for name, part in module.named_children():
        if isinstance(part, nn.Linear):
            setattr(module, name, Int8Linear(part))
        else:
            quantize(part)
    return module


def check_engine(cfg):
    """UserError if --quantize cannot run here."""
    if not cfg.quantize:
        return
    if cfg.latency_device != "cpu":
        raise UserError(f"--quantize: for CPUs, not --latency_device {cfg.latency_device}; leave "
                        "one of them out")
    try:
        Int8Linear(nn.Linear(8, 8))(torch.zeros(1, 8))
    except (RuntimeError, AttributeError) as error:
        raise UserError("--quantize: torch has no integer engine on this machine "
                        f"({str(error).splitlines()[0]}); leave it out") from None


@torch.no_grad()
def plain(model):
    """The PlainBert of a TaskModel or an Encoder, with its weights, on the CPU."""
    encoder = getattr(model, "encoder", model)
    head = getattr(model, "head", None)
    weights = {}
    for name, value in model.state_dict().items():
        name = name.removeprefix("encoder.")
        place, _, leaf = name.rpartition(".")
        kind = "bias" if leaf.endswith("bias") else "weight"
        if leaf in ("qkv", "qkv_bias"):  # (3, N, D, H) and (3, N, D)
            weights[f"{place}.qkv.{kind}"] = value.flatten(0, 2)
        elif leaf in ("output", "output_bias"):  # (H, N, D) and (H,)
            weights[f"{place}.output.{kind}"] = value.flatten(1) if kind == "weight" else value
        else:
            weights[name] = value
    vocab_size = len(weights["token_embedding.weight"])
    positions = len(weights["position_embedding.weight"])
    outputs = head.out_features if head else 0
    with torch.device("meta"):
        result = PlainBert(encoder.arch.hidden, encoder.arch.shapes, vocab_size, positions,
                           outputs, getattr(model, "spans", False))
    weights = {name: value.float().cpu().clone() for name, value in weights.items()}
    result.load_state_dict(weights, assign=True)
    return result.eval()


def count_parts(arch, vocab_size, positions=512):
    """{part: parameters} of an encoder."""
    with torch.device("meta"):
        encoder = Encoder(arch, vocab_size, positions=positions)
    return {name: sum(value.numel() for value in part.parameters())
            for name, part in encoder.named_children()}

# --- supernet -------------


def draw_archs(cfg, step, micro_batch):
    """Alg. 1, line 7: the architectures of the M sub-models of a micro-batch. Without EBL one
    architecture for the whole batch. With --arch only that one (Sec. 3.6).

    Different ones in a step of 16 micro-batches, and in two steps:

    >>> for variant in VARIANTS:
    ...     cfg = Config(variant=variant)
    ...     drawn = [draw_archs(cfg, step, micro) for step in range(2) for micro in range(16)]
    ...     print(variant, len({*sum(drawn[:16], [])}), len({*sum(drawn, [])}))
    hat 1 2
    ils 1 2
    sme 1 2
    ebl 48 96
    """
    if cfg.arch:
        return [parse_arch(cfg.arch)]
    batch_wise = "EBL" in VARIANTS[cfg.variant]
    rng = random.Random(f"{cfg.seed} sub-models {step} {micro_batch if batch_wise else 0}")
    space = search_space(cfg)
    identical = "ILS" in VARIANTS[cfg.variant]
    return [sample_arch(space, rng, identical) for _ in range(cfg.samples if batch_wise else 1)]


def why_outside(arch, top, variant="ebl"):
    """None if `arch` can be cut out of `top`, trained as a variant of Table 3, else the reason."""
    for ffn, heads, qkv in arch.shapes:
        limits = {
            "layers": (arch.layers, top.layers),
            "hidden": (arch.hidden, top.hidden),
            "ffn": (ffn, top.ffn),
        }
        if "SME" in VARIANTS[variant]:
            limits["heads"] = heads, top.heads
            limits["width of a head"] = qkv // heads, top.qkv // top.heads
        elif qkv != top.qkv:
            return (f"without sub-matrix extraction (--variant {variant}) all of qkv {top.qkv} is "
                    f"used, not {qkv}")
        for name, (size, limit) in limits.items():
            if size > limit:
                return f"{name} {size} of {arch} is more than the {limit} of {top}"


@torch.no_grad()
def extract(model, arch, variant="ebl"):
    """The sub-model `arch` of a LanguageModel, with its own weights. It computes model(batch,
    arch). Raises ValueError if `arch` is not within the model."""
    if reason := why_outside(arch, model.encoder.arch, variant):
        raise ValueError(reason)
    with torch.device("meta"):
        sub_model = LanguageModel(arch, *model.sizes)
    weights = model.state_dict()
    parts = {name: leading(weights[name], value.shape).clone()
             for name, value in sub_model.state_dict().items()}
    sub_model.load_state_dict(parts, assign=True)
    sub_model.encoder.trained = model.encoder.trained
    return sub_model

# Sorted units, for a SuperPLM that starts from a released model

# D8 (ours): the units of --init are permuted so that the important ones lead, as in DynaBERT (Hou
# et al. 2020, arXiv:2004.04037), since `leading` keeps these. The model computes the same. The
# paper starts from random weights, whose order has no meaning: --sort none


def gate(parameter):
    """The derivative of a loss by a factor of 1 on each weight."""
    return parameter * parameter.grad


def unit_importance(model, batches, cfg):
    """{"hidden": (H,), "ffn": (L, F), "query_key", "value": (L, N, D)}: the importance of the units
    of an encoder for its last states, without labels.

    A unit is multiplied by a gate of 1. Its importance is the sum over batches of the squared
    derivative of r . states by this gate, with random r. To first order that is the change of the
    states if the unit is removed."""
    encoder = model.encoder.eval()
    layers = encoder.layers
    norms = [encoder.norm, *(layer.attention_norm for layer in layers),
             *(layer.ffn_norm for layer in layers[:-1])]
    totals = {}
    for number, batch in enumerate(batches):
        seed_everything(cfg.seed, "importance", number)
        encoder.zero_grad()
        states = encoder(batch)  # (B, T, H)
        B, T = batch["ids"].shape
        lengths = batch.get("lengths", torch.full((B,), T, device=states.device))
        real = torch.arange(T, device=states.device) < lengths[:, None]  # (B, T)
        (states * torch.randn_like(states))[real].sum().backward()
        gates = {
            "hidden": sum(gate(norm.weight) + gate(norm.bias) for norm in norms),
            "ffn": torch.stack([gate(layer.fc2.weight).sum(0) for layer in layers]),
            "query_key": torch.stack([gate(layer.qkv)[0].sum(-1) + gate(layer.qkv_bias)[0]
                                      for layer in layers]),
            "value": torch.stack([gate(layer.output).sum(0) for layer in layers]),
        }
        for name, value in gates.items():
            totals[name] = totals.get(name, 0) + value.detach().square()
    encoder.zero_grad()
    return totals


def reorder(parameter, axis, order):
    """Permute a parameter along an axis. order: (n,), or (N, n) for the axis after the heads'."""
    if order.dim() == 2:  # each head has its own
        shape = [1] * parameter.dim()
        shape[axis - 1], shape[axis] = order.shape
        order = order.view(shape).expand_as(parameter)
        parameter.copy_(parameter.gather(axis, order))
    else:
        parameter.copy_(parameter.index_select(axis, order))


@torch.no_grad()
def reorder_units(model, order):
    """Permute the units of a LanguageModel, which then computes the same with its hidden dimensions
    permuted. order: {name: indices}, with the names and shapes of unit_importance."""
    encoder = model.encoder
    order = {name: torch.tensor(value, device=encoder.norm.weight.device)
             for name, value in order.items()}
    hidden = order["hidden"]
    inputs = [encoder.token_embedding.weight, encoder.position_embedding.weight,
              encoder.token_type_embedding.weight, encoder.pooler.weight]
    vectors = [encoder.norm.weight, encoder.norm.bias]
    if hasattr(model, "fit"):
        inputs.append(model.fit.weight)
    else:
        inputs.append(model.transform.weight)
        vectors += [model.transform_norm.weight, model.transform_norm.bias, model.transform.bias]
        reorder(model.transform.weight, 0, hidden)  # its outputs meet the token embedding
    for number, layer in enumerate(encoder.layers):
        ffn, query_key, value = (order[name][number] for name in ("ffn", "query_key", "value"))
        for part, heads in zip(range(3), (query_key, query_key, value)):
            reorder(layer.qkv[part], 1, heads)
            reorder(layer.qkv_bias[part], 1, heads)
        reorder(layer.output, 2, value)
        reorder(layer.fc1.weight, 0, ffn)
        reorder(layer.fc1.bias, 0, ffn)
        reorder(layer.fc2.weight, 1, ffn)
        reorder(layer.output, 0, hidden)
        reorder(layer.fc2.weight, 0, hidden)
        inputs += [layer.qkv, layer.fc1.weight]
        vectors += [layer.output_bias, layer.fc2.bias, layer.attention_norm.weight,
                    layer.attention_norm.bias, layer.ffn_norm.weight, layer.ffn_norm.bias]
    for parameter in inputs:
        reorder(parameter, parameter.dim() - 1, hidden)
    for parameter in vectors:
        reorder(parameter, 0, hidden)

# --- objective ------------


MASK_RATE = 0.15  # fraction of the tokens that are masked, BERT's


def mask_tokens(ids, tokenizer, generator):
    """BERT's masking of ids (B, T): MASK_RATE of each sequence's text is predicted. 80% of it
    becomes [MASK], 10% a random token, and 10% stays. Returns the changed ids, masked positions and
    labels (B, I). Filler in sequences with less text has the label -100.

    >>> class tokenizer:
    ...     pad_id, cls_id, sep_id, mask_id, vocab_size = 0, 2, 3, 4, 1000
    >>> ids = torch.tensor([[2, *range(10, 28), 3]] * 4000)
    >>> ids[0, 8:] = 0
    >>> changed, positions, labels = mask_tokens(ids, tokenizer, torch.Generator())
    >>> (labels != -100).sum(1)[:2].tolist()  # 15% of 7 tokens of text, and of 18
    [1, 3]
    >>> shown = changed.gather(1, positions)[1:]
    >>> [round((shown == one).float().mean().item(), 1) for one in (4, labels[1:])]
    [0.8, 0.1]
    """
    B, T = ids.shape
    I = max(1, round(MASK_RATE * T))
    special = torch.tensor([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id])
    text = ~torch.isin(ids, special)
    order = torch.where(text, torch.rand(B, T, generator=generator), 2.0)  # special tokens last
    drawn, positions = order.topk(I, dim=1, largest=False)  # (B, I)
    count = (MASK_RATE * text.sum(1, keepdim=True)).round().clamp(1, I)
    masked = (torch.arange(I) < count) & (drawn < 1)  # (B, I)
    originals = ids.gather(1, positions)
    kind = torch.rand(B, I, generator=generator)
    random_tokens = torch.randint(tokenizer.vocab_size, (B, I), generator=generator)
    changed = torch.where(kind < 0.8, tokenizer.mask_id, random_tokens)
    changed = torch.where(masked & (kind < 0.9), changed, originals)
    return ids.scatter(1, positions, changed), positions, originals.masked_fill(~masked, -100)


def distillation_losses(student, batch):
    """The two losses of TinyBERT's first stage, for the last layer alone (Sec. 4.1), (2,). First,
    the squared error of the states (B, T, W), averaged over W and summed over tokens. Second, the
    squared error of the raw attention scores (B, N, T, T), averaged over N and summed over pairs of
    tokens. batch: has the teacher's states and scores, and lengths (B,) unless all are full.

    Two tokens, and a teacher of zeros. (1 + 4) / 2 = 2.5 and 3 * 3 = 9 if the second is padding:

    >>> states = torch.tensor([[[1.0, 2.0], [9.0, 9.0]]])
    >>> scores = torch.tensor([[[[3.0, 5.0], [5.0, 5.0]]]])
    >>> for lengths in ([1], [2]):
    ...     batch = {"states": torch.zeros_like(states), "scores": torch.zeros_like(scores)}
    ...     batch |= {"lengths": torch.tensor(lengths), "ids": torch.zeros(1, 2)}
    ...     losses = distillation_losses((states, scores), batch)
    ...     print(losses.tolist(), "of", count_labels(batch).tolist())
    [2.5, 9.0] of [1, 1]
    [83.5, 84.0] of [2, 4]
    """
    # D9* (silent): padding is excluded from the means, since it depends on the batching, and the
    # teacher's input is not masked. The released code averages over padding
    states, scores = student
    state_errors = (states.float() - batch["states"].float()).square().mean(-1)  # (B, T)
    score_errors = (scores.float() - batch["scores"].float()).square().mean(1)  # (B, T, T)
    if "lengths" in batch:
        positions = torch.arange(states.shape[1], device=states.device)
        real = positions < batch["lengths"][:, None]  # (B, T)
        state_errors = torch.where(real, state_errors, 0)
        score_errors = torch.where(real[:, :, None] & real[:, None], score_errors, 0)
    return torch.stack([state_errors.sum(), score_errors.sum()])

# --- training -------------


# D10* (silent): the gradient is clipped as a whole, as in the released pre-training. The released
# fine-tuning clips each parameter's
CLIP = 1.0  # largest gradient norm
EVALUATION_BATCH = 64  # sequences per batch of an evaluation
FITTED = 1024  # sequences on which States-saved fits a linear map
RIDGE = 0.01  # its penalty, relative to the mean square of an input
COUNTED = 10_000_000  # tokens of the training text whose frequencies are a baseline


def schedule(step, steps, warmup):
    """Fraction of the peak learning rate at a step: linear warm-up, then linear decay to 0, as in
    BERT. The paper gives the peak and the warm-up.

    >>> [schedule(step, 8, 0.5) for step in range(9)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return (steps - step) / max(1, steps - rise)


def learning_rate(step, cfg):
    """The learning rate of a step of training on text (Sec. 4.1)."""
    return cfg.lr * schedule(step, cfg.steps, cfg.warmup)


def is_matrix(name):
    return "bias" not in name and "norm" not in name


def make_optimizer(model, weight_decay):
    """AdamW with BERT's eps, without decay of biases and LayerNorms. The pooler of a LanguageModel
    is not trained, since the loss does not read it."""
    # D11* (silent): AdamW has bias correction. The released code, like BERT's, has none
    # D12 (silent): entries that no sub-model of a step used still decay, and move by their moments,
    # as in the released code
    named = [(name, value) for name, value in model.named_parameters()
             if isinstance(model, TaskModel) or "pooler" not in name]
    matrices = [value for name, value in named if is_matrix(name)]
    others = [value for name, value in named if not is_matrix(name)]
    groups = [{"params": matrices, "weight_decay": weight_decay},
              {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, eps=1e-6, fused=True)


def phase_of(cfg):
    """"superplm", or "further_train" of one architecture: the random numbers differ."""
    return "further_train" if cfg.arch else "superplm"


def cut_segments(corpus, cfg, phase, number, size):
    """The text of `size` sequences of the endless stream of a phase, from sequence `number`, as
    data.corpus.Segments."""
    # D13* (silent): sequences are pairs, [CLS] A [SEP] B [SEP] with B after A, so that fine-tuning
    # meets a trained token type embedding. The released code has no pairs. One long sentence is
    # [CLS] A [SEP]. A tenth are shorter, as in BERT, and there is no next-sentence loss
    return corpus.segments(number, size, cfg.length - 3, seed_of(cfg.seed, phase), others=False)


def language_batch(segments, tokenizer, cfg, seed_number, device):
    """Segments as a batch on the device: ids, token_type_ids (B, T), lengths (B,) unless there is
    no padding and, without a teacher, masked_positions and labels (B, I). seed_number: unique among
    batches of a phase."""
    ids, token_type_ids, lengths = join(
        segments.segment_a, segments.length_a, segments.segment_b, segments.length_b, tokenizer)
    # rounds T up, so that torch.compile and GPUs meet few widths
    multiple = max(8, cfg.length // 8)
    width = min(cfg.length, multiple * math.ceil(int(lengths.max()) / multiple))
    batch = {"ids": ids[:, :width], "token_type_ids": token_type_ids[:, :width]}
    if (lengths < width).any():  # GPUs have flash attention for full sequences only
        batch["lengths"] = lengths
    if cfg.setting == "mlm":
        generator = generator_of(cfg.seed, "mask", seed_number)
        batch["ids"], batch["masked_positions"], batch["labels"] = mask_tokens(
            batch["ids"], tokenizer, generator)
    return send(batch, device)


def training_batches(data, cfg, ranks, begin):
    """Yield this process's list of micro-batches for each step from `begin`. A micro-batch is the
    same for any number of processes."""
    # D14* (silent): the sequences of a step are sorted by length into its --accumulate
    # micro-batches, so that few are padded. The released code does not sort
    size = cfg.batch // cfg.accumulate
    for step in range(begin, cfg.steps):
        first = step * cfg.batch
        segments = cut_segments(data.train, cfg, phase_of(cfg), first, cfg.batch)
        lengths = segments.length_a + segments.length_b
        micro_batches = lengths.argsort(stable=True).split(size)
        batches = []
        for micro in micro_batch_numbers(ranks, cfg.accumulate):  # Alg. 1, lines 3, 4
            examples = segments[micro_batches[micro]]
            seed_number = first + micro * size
            batches.append(language_batch(
                examples, data.tokenizer, cfg, seed_number, ranks.device))
        yield batches


def count_labels(batch):
    """The divisors of the losses: masked tokens (1,), or with a teacher real tokens and pairs of
    them (2,)."""
    if "labels" in batch:
        return (batch["labels"] != -100).sum()[None]
    B, T = batch["ids"].shape
    lengths = batch.get("lengths", torch.full((B,), T, device=batch["ids"].device))
    return torch.stack([lengths.sum(), lengths.square().sum()])


def summed_losses(network, batch, cfg, arch=None):
    """The loss of masked words (1,), or with a teacher the losses of states and scores (2,), summed
    over the labels of count_labels. arch: the sub-network, or None for all."""
    with autocast(cfg.dtype, batch["ids"].device):
        if "labels" in batch:
            logits = network(batch, arch).flatten(0, 1)  # (B I, V)
            labels = batch["labels"].flatten()
            return F.cross_entropy(logits.float(), labels, reduction="sum")[None]
        return distillation_losses(network.student(batch, arch), batch)


@torch.no_grad()
def add_targets(batch, teacher, cfg):
    """A batch with the teacher's states and scores, computed once for all sub-models. Without a
    teacher the batch is unchanged."""
    if teacher is None:
        return batch
    with autocast(cfg.dtype, batch["ids"].device):
        states, scores = teacher(batch, with_scores=True)
    return {**batch, "states": states, "scores": scores}


def train_step(step, network, optimizer, batches, cfg, ranks, teacher=None):
    """One step of Alg. 1 on this process's micro-batches. Returns {name: tensor ()}. Their means
    over the processes are the loss and the gradient norm."""
    trained = [value for group in optimizer.param_groups for value in group["params"]]
    totals = total_over(ranks, sum(map(count_labels, batches)))  # (1,) or (2,) of all processes
    totals = totals.clamp(min=1) / ranks.size  # gradients are averaged over the processes
    losses = torch.zeros_like(totals)
    optimizer.zero_grad()  # Alg. 1, line 5
    for micro, batch in zip(micro_batch_numbers(ranks, cfg.accumulate), batches):
        batch = add_targets(batch, teacher, cfg)
        archs = draw_archs(cfg, step, micro)  # Alg. 1, lines 7, 8
        for sample, arch in enumerate(archs):  # Alg. 1, lines 6, 10
            seed_everything(cfg.seed, cfg.arch or "superplm", step, micro, sample)  # dropout
            loss = summed_losses(network, batch, cfg, arch) / totals
            # D15* (conflict): the gradient is the mean over the M sub-models. Line 11 of Alg. 1 can
            # also mean the mean over threads alone, and the released code adds the M gradients
            loss = loss / len(archs)
            loss.sum().backward()  # Alg. 1, line 9
            losses += loss.detach()
    for value in trained:
        if value.grad is None:  # no sub-model of this process uses it
            value.grad = torch.zeros_like(value)
    average_gradients(trained, ranks)
    norm = nn.utils.clip_grad_norm_(trained, CLIP)
    optimizer.step()  # Alg. 1, line 11
    return {"loss": losses.sum(), "norm": norm}


def train_language_model(model, data, cfg, run, start, file="checkpoint.pt"):
    """Train a model on a data.inputs.Data, from the checkpoint `file` of the run: the SuperPLM
    (Alg. 1) or, with cfg.arch, one architecture as usual (Sec. 3.6). start: a line on its weights.
    Raises Diverged, and Stop after SIGTERM. The lines of Alg. 1:

         1      for E epochs, here as a number of steps (`complete`)
         2      for each batch of the text
         3          divide the batch into N micro-batches (`training_batches`)
         4          hand them to N threads, here processes, or one after the other
         5          clear the gradients (`train_step`)
         6          repeat M times
         7              draw a sub-model for each micro-batch (`draw_archs`)
         8              hand the sub-models to the threads
         9              add the gradients of each thread
        10          end of line 6, which is the inner loop here: a micro-batch has M sub-models
        11          change the weights by the average of the gradients (D15)
        12      end of line 2
        13      end of line 1
    """
    ranks = run.ranks
    phase = cfg.arch or "superplm"
    start += extend_positions(model, cfg.length)
    count = sum(value.numel() for value in model.parameters())
    print0(ranks, f"{phase}: {run.start_line(start, file)}; {count:,} parameters, "
                  f"{cfg.steps} steps")
    optimizer = make_optimizer(model.to(ranks.device), cfg.weight_decay)
    evaluate_at = {*range(cfg.eval_every, cfg.steps, cfg.eval_every), cfg.steps}
    loop = Loop(run, phase, cfg, file=file, evaluate_at=evaluate_at, model=model,
                optimizer=optimizer)
    if not cfg.steps:
        loop.finish()
    # Alg. 1, lines 1, 2, 12, 13
    for step, batches in loop(training_batches(data, cfg, ranks, loop.begin)):
        rate = learning_rate(step, cfg)
        set_rate(optimizer, rate)
        model.train()
        numbers = train_step(step, model, optimizer, batches, cfg, ranks, data.teacher)
        dev = evaluate_language_model(model, data, cfg, ranks) if loop.evaluates(step) else {}
        loop.after(step, numbers, batches, dev, lr=rate)
    if cfg.dry_run:
        print_device_use(ranks, loop.speed, step_flops(cfg) / cfg.length)


def train_further(model, data, cfg, run, start, file="checkpoint.pt", warmup=0.0):
    """Sec. 3.6: train one architecture as usual, without a warm-up (Sec. 4.1)."""
    if cfg.compile:
        torch.compiler.reset()  # torch would give up after eight networks
        model.encoder.compile()
    cfg = dataclasses.replace(
        cfg, arch=str(model.encoder.arch), steps=cfg.further_steps, warmup=warmup)
    train_language_model(model, data, cfg, run, start, file)


def held_out_batches(data, cfg, ranks, sequences):
    """Yield this process's batches of held-out text, with a teacher's targets. They are the same
    for all models, seeds and numbers of processes."""
    cfg = dataclasses.replace(cfg, seed=0)
    stride = ranks.size * EVALUATION_BATCH
    for number in range(ranks.rank * EVALUATION_BATCH, sequences, stride):
        segments = cut_segments(data.dev, cfg, "held out", number, EVALUATION_BATCH)
        batch = language_batch(segments, data.tokenizer, cfg, number, ranks.device)
        yield add_targets(batch, data.teacher, cfg)


@torch.no_grad()
def evaluate_language_model(model, data, cfg, ranks, sequences=256):
    """{"loss"} of held-out text. A job passes one process. Raises Diverged. The host waits for a
    GPU once."""
    model.eval()
    losses = torch.zeros(1 if cfg.setting == "mlm" else 2, device=ranks.device)
    labels = torch.zeros_like(losses)
    for batch in held_out_batches(data, cfg, ranks, sequences):
        losses += summed_losses(model, batch, cfg)
        labels += count_labels(batch)
    losses, labels = total_over(ranks, torch.stack([losses, labels]))
    loss = (losses / labels).sum().item()
    if not math.isfinite(loss):
        raise Diverged("the held-out loss is NaN or infinite")
    return {"loss": loss}


def saved(losses, bounds):
    """{"main": 1 - loss / bound, "error": its standard error} of the losses and bounds of batches.
    Raises Diverged."""
    losses = torch.stack(losses).double()
    bounds = torch.stack(bounds).double()
    main = 1 - (losses.sum() / bounds.sum()).item()
    if not math.isfinite(main):
        raise Diverged("the held-out loss is NaN or infinite")
    ratios = losses / bounds
    return {"main": main, "error": ratios.std().item() / math.sqrt(len(ratios))}


@torch.no_grad()
def score_mlm(model, data, cfg):
    """The task "MLM-saved", saved() by the loss of masked words and that of a uniform guess, ln
    V."""
    # D16 (ours): masked tokens can be a proxy task. After minutes of pre-training SQuAD and MNLI
    # show no difference
    model = model.to(data.device).eval()
    uniform = math.log(data.tokenizer.vocab_size)
    losses = []
    bounds = []
    for batch in held_out_batches(data, cfg, Ranks(0, 1, data.device), 1024):
        losses.append(summed_losses(model, batch, cfg)[0])
        bounds.append(uniform * count_labels(batch)[0])
    result = saved(losses, bounds)
    return {**result, "loss": uniform * (1 - result["main"])}


def frequency_baseline(data, cfg):
    """MLM-saved of a guess by the frequencies of words in the text."""
    tokens = torch.from_numpy(data.train.tokens[:COUNTED].astype("int64"))
    counts = 1.0 + torch.bincount(tokens, minlength=data.tokenizer.vocab_size)
    logs = (counts / counts.sum()).log()
    labels = torch.cat([batch["labels"].flatten().cpu() for batch in
                        held_out_batches(data, cfg, Ranks(0, 1, data.device), 1024)])
    loss = -logs[labels[labels != -100]].mean().item()
    return 1 - loss / math.log(data.tokenizer.vocab_size)


@torch.no_grad()
def mean_states(encoder, data, cfg):
    """The last states of an Encoder, averaged over each sequence (n, H), of FITTED sequences of the
    training text and of 256 held-out ones."""
    means = []
    ranks = Ranks(0, 1, data.device)
    for corpus, count in ((data.train, FITTED), (data.dev, 256)):
        text = dataclasses.replace(data, dev=corpus, teacher=None)  # without its targets
        for batch in held_out_batches(text, cfg, ranks, count):
            with autocast(cfg.dtype, data.device):
                states = encoder(batch).double()  # (B, T, H)
            B, T = batch["ids"].shape
            lengths = batch.get("lengths", torch.full((B,), T, device=data.device))[:, None]
            real = torch.arange(T, device=data.device) < lengths  # (B, T)
            means.append((states * real[..., None]).sum(1) / lengths)
    return torch.cat(means)


def explained(inputs, targets, fitted):
    """{"main": the fraction of the variance of targets (n, W) that a linear map of inputs (n, H)
    explains, "error": its standard error}. The map is a ridge regression on the first `fitted`.

    >>> inputs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).double()
    >>> targets = inputs[:, :2] @ torch.ones(2, 3).double()  # of equal variances
    >>> for known in (inputs, inputs[:, :1]):
    ...     print(round(explained(known, targets, fitted=200)["main"], 1))
    1.0
    0.5
    """
    inputs = inputs - inputs[:fitted].mean(0)
    targets = targets - targets[:fitted].mean(0)
    products = inputs[:fitted].T @ inputs[:fitted]
    products += RIDGE * products.diagonal().mean() * torch.eye(len(products)).to(products)
    weights = torch.linalg.solve(products, inputs[:fitted].T @ targets[:fitted])
    left = (targets[fitted:] - inputs[fitted:] @ weights).square().sum(1)
    total = targets[fitted:].square().sum(1)
    main = 1 - (left.sum() / total.sum()).item()
    if not math.isfinite(main):
        raise Diverged("the states are NaN or infinite")
    spread = (left - (1 - main) * total).std() / total.mean() / math.sqrt(len(total))
    return {"main": main, "error": spread.item()}


def score_states(model, data, cfg):
    """The task "States-saved": explained() by the model's mean states of those of the teacher."""
    # D17 (ours): a candidate is scored in seconds, without a fine-tuning, by the states that it
    # keeps. It ranks random shapes of one limit as their fine-tuned accuracy does, but the number
    # of layers alone does so as well (compress_proxy in tests/claims/README.md)
    if data.means is None:
        data.means = mean_states(data.teacher, data, cfg)
    means = mean_states(model.to(data.device).eval().encoder, data, cfg)
    return explained(means, data.means, len(means) - 256)


SAVED = {"MLM-saved": score_mlm, "States-saved": score_states}  # without a fine-tuning

# Fine-tuning (Sec. 4.1)

# task: (batch, learning rate, epochs, metric of Table 1), chosen as in Sec. 4.1. WNLI is not in the
# paper and has RTE's
TABLE_D1 = {
    "SQuAD1.1": (16, 3e-5, 4, "f1"),
    "SST-2": (32, 2e-5, 4, "accuracy"),
    "MNLI": (32, 3e-5, 4, "accuracy"),
    "MRPC": (32, 2e-5, 10, "accuracy"),
    "CoLA": (32, 1e-5, 10, "matthews"),
    "QNLI": (32, 2e-5, 10, "accuracy"),
    "QQP": (32, 2e-5, 5, "accuracy"),
    "STS-B": (32, 3e-5, 10, "pearson+spearman"),
    "RTE": (32, 2e-5, 10, "accuracy"),
    "WNLI": (32, 2e-5, 10, "accuracy"),
}
EIGHT = ("SST-2", "MNLI", "MRPC", "CoLA", "QNLI", "QQP", "STS-B", "RTE")
MEANS = {"Score": EIGHT, "Avg.": ("SQuAD1.1", *EIGHT)}  # Table 1


def recipes(cfg):
    """{task: Recipe} of Table D.1."""
    table = {"MLM-saved": Recipe(0.0, 1)}
    for name, (batch, lr, epochs, metric) in TABLE_D1.items():
        length = 384 if name == "SQuAD1.1" else 128  # D31
        table[name] = Recipe(lr, batch, epochs, length=length, main=metric)
    return table


def prepare_tuning(model, task, cfg, seed, device, teacher=None):
    """A TaskModel with a copy of the model's encoder, its Tuning on the task, and the line of
    extend_positions. teacher: a TaskModel of the same task, whose outputs are learned, or None."""
    # D18* (silent): a fine-tuning is scored after its last step. The released code takes the best
    # evaluation on dev
    seed_everything(seed, "head", task.name)
    tuned = TaskModel(copy.deepcopy(model.encoder), task.outputs, task.kind == "span")
    line = extend_positions(tuned, task.recipe.length)
    tuned = move(tuned, device)
    if teacher:
        teacher = move(teacher, device)
        tuned.targets = predict_split(teacher, task, "train", cfg, device).to(device)
        # outputs are learned more slowly than labels (D7)
        task = copy.copy(task)
        task.recipe = dataclasses.replace(
            task.recipe, lr=2 * task.recipe.lr, epochs=2 * task.recipe.epochs)
        line += "; learns the outputs of a fine-tuned teacher"
    optimizer = make_optimizer(tuned, cfg.weight_decay)
    return tuned, Tuning(task, optimizer, schedule, (seed, "fine-tuning", task.name)), line


def begin_task(task, source, cfg, number, device):
    """The model of run `number` of a task on a device, its Tuning, a line on its weights, and the
    number of trained positions."""
    model, note = start_model(source, cfg.arch, cfg)
    teacher = read_teacher(task, cfg.task_teacher, cfg) if cfg.task_teacher else None
    tuned, tuning, line = prepare_tuning(model, task, cfg, cfg.seed + number, device, teacher)
    return tuned, tuning, note + line, tuned.encoder.trained


def teacher_folder(name, folder):
    """The model of a task in --task_teacher, a run or the model itself."""
    return Path(folder) if tuned_task(folder) == name else Path(folder, name)


def read_teacher(task, folder, cfg):
    """The fine-tuned TaskModel of a task in teacher_folder. UserError if it has other outputs."""
    folder = teacher_folder(task.name, folder)
    command = cli.Command("autotinybert", "finetune")
    model = load_task(task, read_pretrained(folder, cfg, command), cfg)
    spec = folder_task.read_spec(folder)
    same = ("labels", "mean", "deviation")
    if spec and any(getattr(spec, name) != getattr(task.task, name) for name in same):
        raise UserError(f"--task_teacher {folder}: it was fine-tuned for other labels than those "
                        f"of {task.name}; fine-tune it again")
    return model

# --- search ---------------


# Latency

SORTED = 256  # sequences that sort the units of --init
GROUP = 8  # shapes timed per timing of the reference
# settings of what is timed
TIMED = ("latency_device", "latency_threads", "latency_batch", "latency_length", "latency_states",
         "quantize")
# settings of the search space
SPACE = ("largest", "smallest", "setting", "variant")
DRIFT = 0.1  # relative change of the reference's latency that causes a warning
DOUBTFUL = 0.2  # mean relative error of a predictor that causes a warning
FINAL_ROUNDS = 5  # of the latency of a finalist
TINY = 1e-300  # against a division by zero


def time_model(arch, cfg):
    """Milliseconds of the module that --export writes, with random weights and without padding."""
    # D19* (silent): encoder and pooler are timed. The paper does not say what is
    outputs = 2 if cfg.latency_states == "first" else 0
    model = PlainBert(arch.hidden, arch.shapes, 64, cfg.latency_length, outputs).eval()
    if cfg.quantize:
        model = quantize(model)
    return time_module(model, cfg)


def time_module(model, cfg):
    """Milliseconds of a PlainBert, without padding."""
    ids = torch.zeros(
        cfg.latency_batch, cfg.latency_length, dtype=torch.long, device=cfg.latency_device)
    batch = {"ids": ids, "token_type_ids": ids}
    model = model.to(cfg.latency_device)
    return time_passes(lambda: model(batch), cfg)


@torch.no_grad()
def time_passes(run, cfg):
    """Milliseconds of run() on the target device: the median of three passes after a warm-up."""
    # D20* (ours): a single CPU thread is measured in CPU seconds, without the time that it waits
    # for other processes. The paper speaks of inference time, and its code reads the wall clock
    single = cfg.latency_device == "cpu" and cfg.latency_threads == 1
    clock = time.process_time if single else time.perf_counter
    threads = torch.get_num_threads()
    torch.set_num_threads(cfg.latency_threads)
    times = []
    for _ in range(1 + 3):
        start = clock()
        run()
        if cfg.latency_device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (clock() - start))
    torch.set_num_threads(threads)
    return statistics.median(times[1:])


def time_group(archs, cfg):
    """{architecture (text): [milliseconds, milliseconds of the reference shortly before]}."""
    reference = time_model(parse_arch(cfg.reference), cfg)
    return {arch: [time_model(parse_arch(arch), cfg), reference] for arch in archs}


def sample_timed(cfg):
    """The architectures (text) to time: the smallest and random ones."""
    space = search_space(cfg)
    rng = random.Random(f"{cfg.seed} latency")
    archs = {str(smallest_arch(space)): None}
    while len(archs) < min(cfg.latency_archs + 1, math.prod(map(len, space.values()))):
        archs.setdefault(str(sample_arch(space, rng)))
    return [*archs]


def timing_groups(archs, cfg):
    """{name: architectures (text) to time} of all measurements. Each round has a new random order,
    so that another process on the machine affects all equally."""
    groups = {}
    for number in range(cfg.latency_rounds):
        order = random.Random(f"{cfg.seed} round {number}").sample(archs, len(archs))
        for first in range(0, len(order), GROUP):
            groups[f"{number}-{first // GROUP}"] = order[first:first + GROUP]
    return groups


def machine_of(cfg):
    """The processor and the settings that latencies depend on. UserError without such a device."""
    device = pick_device(cfg.latency_device)
    here = torch.cuda.get_device_name() if device.type == "cuda" else processor()
    settings = {name: getattr(cfg, name) for name in (*TIMED, "reference", *SPACE)}
    return {"processor": here, **settings}


def measure_latencies(cfg, run):
    """{"machine": as in machine_of, "times": {arch: the timings of time_group, one per round}},
    kept in latency.json. One process measures, and a stopped run continues with the next group."""
    machine = on_main(run.ranks, machine_of, cfg)
    archs = sample_timed(cfg)
    groups = timing_groups(archs, cfg)

    def work(name):
        return {"processor": machine["processor"], "times": time_group(groups[name], cfg)}

    results = run.each("latencies", list(groups), work, processes=1).values()
    processors = sorted({result["processor"] for result in results})
    times = {arch: [result["times"][arch] for result in results if arch in result["times"]]
             for arch in archs}
    latencies = {"machine": {**machine, "processor": " and ".join(processors)}, "times": times}
    return run.once("latency.json", dict, latencies)


def find_latencies(cfg, run):
    """The latencies that the run has, those of --latencies, or those of --init's run if they are
    from this machine and search space. None if there are none. UserError if those of --latencies
    are from another machine or search space."""
    own = run.folder / "latency.json"
    path = Path(cfg.latencies or Path(cfg.init).parent, "latency.json")  # --init is RUN/superplm
    if own.exists():
        return read_json(own)
    if not cfg.latencies and not (cfg.init and path.exists()):
        return None
    latencies = read_json(path)
    there = latencies["machine"]
    differ = [f"{name} ({there[name]} there, {value} here)"
              for name, value in machine_of(cfg).items() if there[name] != value]
    if not differ:
        print(f"{path}: its {len(latencies['times'])} latencies are used")
        return latencies
    line = f"{path}: latencies with another {'; '.join(differ)}"
    if cfg.latencies:
        raise UserError(f"{line}; leave --latencies out, which measures new ones")
    print(f"{line}; new ones are measured")
    return None


def open_latencies(cfg, run):
    """The content of the run's latency.json: latencies of another run, or measured ones."""
    latencies = on_main(run.ranks, find_latencies, cfg, run)
    if latencies:
        return run.once("latency.json", dict, latencies)
    return measure_latencies(cfg, run)


def ratios_of(timings):
    """Latencies relative to the reference, one per round."""
    # D21* (silent): a latency is the median ratio to the reference over rounds. The released code
    # averages nine passes of one shape after another
    return [milliseconds / reference for milliseconds, reference in timings]


def references_of(times):
    """All timings of the reference, in milliseconds."""
    return [reference for timings in times.values() for _, reference in timings]


class Predictor:
    """Lat(.) of Eq. 4: milliseconds of architectures with identical layers, learnt from
    measurements."""
    # D22 (ours): the predictor is a least-squares fit of a Transformer's costs to hundreds of
    # measurements. The paper has 10k and a feed-forward network

    def __init__(self, tokens, first=False):
        self.tokens = tokens
        self.first = first  # whether the last layer computes the first token's state alone

    def costs(self, archs):
        """(n, 11 or 12) costs of a token: eight of the layers, those of embeddings, pooler and
        start, and of the queries, keys and values of a last layer with one state."""
        costs = []
        for layers, hidden, ffn, heads, qkv in map(dataclasses.astuple, archs):
            each = [
                hidden * qkv,  # projections
                self.tokens * qkv,  # attention
                hidden * ffn,  # feed-forward
                heads * self.tokens,  # softmax
                hidden,  # LayerNorm
                ffn,  # GELU
                qkv,  # copies
                1,  # calls
            ]
            once = [hidden, hidden * hidden / self.tokens, 1]
            if self.first:
                once.append(hidden * qkv)
            costs.append([(layers - self.first) * cost for cost in each] + once)
        return torch.tensor(costs).double()

    def __call__(self, archs):
        """[milliseconds] of architectures."""
        return (self.costs(archs) @ self.weights).tolist()

    def fit(self, archs, milliseconds):
        """Non-negative least squares on the relative errors, by the multiplicative updates of Lee
        and Seung (2001). Returns itself."""
        examples = self.costs(archs) / torch.tensor(milliseconds).double()[:, None]
        scale = examples.norm(dim=0).clamp(min=TINY)  # one layer with one state has no costs
        examples /= scale
        products = examples.T @ examples
        goal = examples.sum(0)  # examples @ weights = 1 is exact
        weights = torch.ones_like(scale)
        for _ in range(10_000):
            weights *= goal / (products @ weights).clamp(min=TINY)
        self.weights = weights / scale
        return self


def fit_predictor(archs, milliseconds, cfg):
    """(Predictor, its mean relative error). The last fifth of the architectures measures the
    error."""
    unseen = math.ceil(len(archs) / 5)
    predict_ms = Predictor(cfg.latency_length, cfg.latency_states == "first").fit(
        archs[:-unseen] or archs, milliseconds[:-unseen] or milliseconds)
    guesses = predict_ms(archs[-unseen:])
    error = statistics.fmean(
        abs(guess / ms - 1) for guess, ms in zip(guesses, milliseconds[-unseen:]))
    return predict_ms, error


def warn_of_drift(low, high, cfg):
    """Warn if two timings of the reference differ by more than DRIFT."""
    if high > (1 + DRIFT) * low:
        warnings.warn(f"the reference {cfg.reference} takes {low:.3g} to {high:.3g} ms: the "
                      "machine is busy; latencies are relative to the reference")


# predict_ms([Arch]) -> [milliseconds]. reference and limit are in milliseconds
Latency = namedtuple("Latency", "predict_ms reference limit")


def learn_latency(latencies, cfg, ranks):
    """The Latency of a machine from the content of latency.json."""
    here = machine_of(cfg)["processor"]
    if latencies["machine"]["processor"] != here:
        warnings.warn(f"latencies of {latencies['machine']['processor']}; the winners are measured "
                      f"on {here}")
    times = latencies["times"]
    references = sorted(references_of(times))
    reference = statistics.median(references)
    warn_of_drift(references[len(references) // 4], references[3 * len(references) // 4], cfg)
    archs = list(map(parse_arch, times))
    ratios = list(map(ratios_of, times.values()))
    milliseconds = [reference * statistics.median(each) for each in ratios]
    predict_ms, error = fit_predictor(archs, milliseconds, cfg)
    spread = statistics.median(max(each) / min(each) - 1 for each in ratios)
    print0(ranks, f"{len(times)} latencies: the rounds of one differ by {spread:.1%} (median); "
                  f"the predictor's mean error is {error:.1%}")
    if error > DOUBTFUL:
        print0(ranks, f"warning: the predictor is wrong by {error:.0%}, so that the search may "
                      "miss the best shapes; raise --latency_archs or --latency_rounds")
    smallest = smallest_arch(search_space(cfg))
    fastest, slowest = predict_ms([smallest, parse_arch(cfg.largest)])
    print0(ranks, f"the fastest shape, {smallest}, takes {fastest:.4g} ms, the slowest, "
                  f"{cfg.largest}, {slowest:.4g} ms; the reference {cfg.reference} takes "
                  f"{reference:.4g} ms")
    return Latency(predict_ms, reference, cfg.latency_limit or reference / cfg.speedup)


def limit_flag(cfg):
    """The flag that sets the limit, as written."""
    if cfg.latency_limit:
        return f"--latency_limit {cfg.latency_limit:g}"
    return f"--speedup {cfg.speedup:g}"


def check_limit(lat, cfg, run):
    """Print the limit. Raises UserError, which names a limit that works, if the strategy finds
    nothing within the limit."""
    flag = limit_flag(cfg)
    print0(run.ranks, f"the limit of {flag} is {lat.limit:.4g} ms")
    smallest = smallest_arch(search_space(cfg))
    fastest, = lat.predict_ms([smallest])
    works = lat.limit
    while not propose([], 0, cfg, lat.predict_ms, works):
        works = float(f"{1.05 * max(works, fastest):.3g}")
    if works > lat.limit:
        raise UserError(f"{flag}: --strategy {cfg.strategy} finds nothing that is that fast; the "
                        f"fastest in the search space, {smallest}, takes {fastest:.5g} ms here, "
                        f"and the limit is {lat.limit:.5g} ms; a smaller --smallest, or "
                        f"--latency_limit {works:.3g} with --latencies {run.folder} and a new "
                        "--out, finds some")


# Algorithm 2

MUTATION = 0.5  # Alg. 2, line 1: p_m
EXPLORATION = 0.5  # Alg. 2, line 1: p_e
DRAWS = 100  # random architectures per proposal


def mutate(arch, space, rng):
    """Mut() of Alg. 2. Each variable with several choices moves with probability 1/2, and at least
    one moves, by up to a tenth of its choices, at least one. (p_m decides whether an architecture
    mutates.)"""
    # D23* (silent): what Mut() moves and how far, and the probabilities of the roulette, are chosen
    # here. The released code explores or mutates, one of both, and its parents are the best of all
    # history
    genes = arch.genes
    movable = [name for name in space if len(space[name]) > 1]
    moved = [name for name in movable if rng.random() < 0.5]
    if movable and not moved:
        moved = [rng.choice(movable)]
    for name in moved:
        choices = list(space[name])
        index = choices.index(genes[name])
        reach = max(1, len(choices) // 10)
        near = choices[max(0, index - reach):index] + choices[index + 1:index + reach + 1]
        genes[name] = rng.choice(near or choices)
    return make_arch(**genes)


def fast_shapes(space):
    """The layers (d^m, d^f, h, d^q|k|v) by the rule of Sec. 4.4: 1.6 d^m <= d^f <= 1.9 d^m and
    0.7 d^m <= d^q|k|v <= d^m.

    >>> attention = [(1, 64), (1, 96), (2, 128)]
    >>> [*fast_shapes({"hidden": [100], "attention": attention, "ffn": range(100, 401, 30)})]
    [(100, 160, 1, 96), (100, 190, 1, 96)]
    """
    for hidden, (heads, qkv) in product(space["hidden"], space["attention"]):
        if 0.7 * hidden <= qkv <= hidden:
            for ffn in space["ffn"]:
                if 1.6 * hidden <= ffn <= 1.9 * hidden:
                    yield hidden, ffn, heads, qkv


def fast_candidates(space, predict_ms, limit):
    """Sec. 4.4: one architecture per depth."""
    # D24* (silent): "fast" takes, at each depth, the architecture predicted slowest within 95% of
    # the limit. The released code draws at random
    candidates = []
    shapes = list(fast_shapes(space))
    for layers in space["layers"]:
        archs = [Arch(layers, *shape) for shape in shapes]
        times = predict_ms(archs) if archs else []
        within = [(ms, index) for index, ms in enumerate(times) if ms <= 0.95 * limit]
        if within:
            candidates.append(archs[max(within)[1]])
    return candidates


def roulette(lines, rng):
    """Draw a line of the history. The probability is proportional to its score minus the worst,
    plus a hundredth of the range (D23).

    >>> class wheel:
    ...     def choices(lines, weights):
    ...         return [[round(weight, 2) for weight in weights]]
    >>> roulette([{"score": 5.0}, {"score": 5.5}, {"score": 6.0}], wheel)
    [0.01, 0.51, 1.01]
    """
    scores = [line["score"] for line in lines]
    worst = min(scores)
    offset = 0.01 * (max(scores) - worst) + 1e-9
    return rng.choices(lines, [score - worst + offset for score in scores])[0]


def sample_within(space, rng, predict_ms, limit):
    """A random architecture, predicted within the limit if any of DRAWS is."""
    archs = [sample_arch(space, rng) for _ in range(DRAWS)]
    within = [arch for arch, ms in zip(archs, predict_ms(archs)) if ms <= limit]
    return (within or archs)[-1]


def propose(history, number, cfg, predict_ms, limit):
    """Generation `number` (from 0) of Alg. 2: [(parent's id or None, arch)].

    history: dicts of "id", "round", "arch" (text), "score" and "diverged".

    One generation of four. Mutants move to neighbouring choices of their parent, others are new.
    All meet the limit l^t d^m <= 24:

    >>> cfg = Config(largest="3-16-16-2-16", smallest="1-8-8-1-8", population=4, seed=3)
    >>> history = [
    ...     {"id": 0, "round": 0, "arch": "2-8-8-1-8", "score": 0.2, "diverged": False},
    ...     {"id": 1, "round": 0, "arch": "1-12-12-2-16", "score": 0.9, "diverged": False}]
    >>> predict_ms = lambda archs: [arch.layers * arch.hidden for arch in archs]
    >>> for parent, arch in propose(history, 1, cfg, predict_ms, limit=24):
    ...     print(parent, arch)
    0 1-8-8-2-16
    None 1-12-8-2-16
    1 2-12-12-2-16
    None 2-12-8-2-16
    """
    # D25 (ours): all proposals are new, parents that diverged have no children, and a generation
    # has fewer than S architectures if 20 S attempts find no more. Alg. 2 as printed can propose
    # one twice. Sec. 3.5 filters by latency
    rng = random.Random(f"{cfg.seed} generation {number}")
    space = search_space(cfg)
    if cfg.strategy == "fast":
        return [(None, arch) for arch in fast_candidates(space, predict_ms, limit)]
    parents = []
    if cfg.strategy == "evolution":  # Alg. 2, line 2: the first generation has none
        parents = [line for line in history
                   if line["round"] == number - 1 and not line["diverged"]]
    seen = {line["arch"] for line in history}
    proposals = []  # Alg. 2, line 4
    for _ in range(20 * cfg.population):
        drawn = []
        if parents:
            parent = roulette(parents, rng)  # Alg. 2, line 6
            if rng.random() < MUTATION:  # Alg. 2, line 7
                drawn.append((parent["id"], mutate(parse_arch(parent["arch"]), space, rng)))
        if not parents or rng.random() < EXPLORATION:  # Alg. 2, line 8
            drawn.append((None, sample_within(space, rng, predict_ms, limit)))
        for parent_id, arch in drawn:  # Alg. 2, line 9
            if str(arch) not in seen and predict_ms([arch])[0] <= limit:
                seen.add(str(arch))
                proposals.append((parent_id, arch))
        if len(proposals) >= cfg.population:  # Alg. 2, lines 5, 10
            break
    return proposals[:cfg.population]


def open_tasks(names, cfg, data):
    """The data with the train and dev examples of a search's tasks."""
    tasks = {name: None if name in SAVED else
             open_task(name, cfg, data.tokenizer, recipes(cfg), search=True) for name in names}
    return dataclasses.replace(data, tasks=tasks)


def tune(model, task, cfg, device, teacher=None):
    """The TaskModel of a fine-tuning within a search. Raises Diverged."""
    tuned, tuning, _ = prepare_tuning(model, task, cfg, cfg.seed, device, teacher)
    state = fine_tune(tuned, tuning, cfg, device)
    if state["diverged"]:
        raise Diverged(state["diverged"])
    return tuned


def dev_score(tuned, task, cfg, device):
    """The dev score of a TaskModel, with --quantize that of the module that is exported, for single
    examples, whose scales differ from a batch's, and its standard error."""
    size = None
    if cfg.quantize:
        tuned = quantize(plain(tuned))
        device = torch.device("cpu")
        cfg = dataclasses.replace(cfg, dtype="float32")
        size = 1
    score = task.score("dev", predict_split(tuned, task, "dev", cfg, device, size))["main"]
    return score, task.standard_error(score)


def proxy_score(model, name, data, cfg, keep_tuned=None):
    """The dev score of a copy of the model, fine-tuned on a task, and its standard error.
    keep_tuned(name, tuned): keeps the TaskModel, or None. Raises Diverged."""
    if name in SAVED:
        result = SAVED[name](model, data, cfg)
        return result["main"], result["error"]
    task = data.tasks[name]
    tuned = tune(model, task, cfg, data.device, data.task_teachers.get(name))
    if keep_tuned:
        keep_tuned(name, tuned)
    return dev_score(tuned, task, cfg, data.device)


def judge(model, names, data, cfg, keep_tuned=None):
    """Perf(.) of Eq. 4 on tasks: {score, its standard_error, scores by task, diverged}."""
    # D26 (silent): the fitness is the mean over the tasks. The paper names its two proxy tasks
    # (Sec. 3.5), but not how they form one fitness
    try:
        results = {name: proxy_score(model, name, data, cfg, keep_tuned) for name in names}
    except Diverged:  # the worst score
        return {"score": -1.0, "standard_error": 0.0, "scores": {}, "diverged": True}
    return mean_score(results)


def mean_score(results):
    """The result of judge() from {task: (score, standard error)}."""
    scores, errors = zip(*results.values())
    return {"score": statistics.fmean(scores), "standard_error": math.hypot(*errors) / len(errors),
            "scores": dict(zip(results, scores)), "diverged": False}


def proxies_of(cfg):
    """The tasks that score candidates."""
    return (cfg.proxy or cfg.tasks).split(",")


def score_of(line):
    return line["score"]


def evolve(supernet, lat, data, cfg, run):
    """Algorithm 2, or another strategy. Returns the history. Its lines:

         1      given T generations of S architectures, p_m and p_e
         2      draw the first generation (`propose`) and score it (`judge`)
         3      for each further generation t, until the T-th
         4          it is empty at first (`propose`)
         5          until it has S architectures
         6              draw a parent from generation t - 1 by its score (`roulette`)
         7              with probability p_m, mutate the parent (`mutate`)
         8              with probability p_e, draw a random architecture (`sample_within`)
         9              add what is new: none, one or two
        10          end of line 5
        11          score the generation (`judge`)
        12      end of line 3
        13      the result is the best of all, here several, which are measured (`confirm`)
    """
    history = []

    def work(arch):
        return judge(extract(supernet, parse_arch(arch), cfg.variant), proxies, data, cfg)

    proxies = proxies_of(cfg)
    for number in range(1 if cfg.strategy == "fast" else cfg.generations):  # Alg. 2, lines 3, 12
        proposals = propose(history, number, cfg, lat.predict_ms, lat.limit)
        # Alg. 2, line 11
        results = run.each("candidates", [str(arch) for _, arch in proposals], work)
        for parent, arch in proposals:
            predicted_ms, = lat.predict_ms([arch])
            history.append({"id": len(history), "round": number, "parent": parent,
                            "arch": str(arch), "predicted_ms": round(predicted_ms, 6),
                            **results[str(arch)]})
        on_main(run.ranks, write_atomic, run.folder / "history.jsonl", jsonl(history))
        best = max(history, key=score_of)  # Alg. 2, line 13
        print0(run.ranks, f"{len(history)} architectures evaluated; the best is {best['arch']}: "
                          f"{percent(best['scores'])}")
    return history


# Around Algorithm 2: the SuperPLM, and the winners

def keep(part, action, trained, data, cfg, run, **owned):
    """Make a folder of the run one that --init reads, as keep_model does. Without `owned` a
    training has written its checkpoint."""
    command = dataclasses.replace(run.command, action=action)
    on_main(run.ranks, keep_model, run.folder / part, command, cfg, data.tokenizer, trained,
            **owned)


def sort_units(model, data, cfg, run):
    """Sort the units of a LanguageModel by importance, on held-out text."""

    def compute():
        size = EVALUATION_BATCH // 8
        unmasked = dataclasses.replace(cfg, setting="distill")
        batches = []
        for number in range(0, SORTED, size):
            segments = cut_segments(data.dev, cfg, "importance", number, size)
            batches.append(language_batch(
                segments, data.tokenizer, unmasked, number, run.ranks.device))
        importance = unit_importance(model, batches, cfg)
        return {name: value.argsort(dim=-1, descending=True).tolist()
                for name, value in importance.items()}

    reorder_units(model, run.once("units.json", compute))


def train_superplm(source, data, cfg, run, file):
    """A SuperPLM: a new model, or a Pretrained with sorted units, after Alg. 1. The checkpoint is
    the file `file` of the run."""
    model, start = start_model(source, "" if source else cfg.largest, cfg, data.teacher)
    model.to(run.ranks.device)
    if source and cfg.teacher == cfg.init:  # its states are the teacher's
        nn.init.eye_(model.fit.weight)
    if source and source.action != "superplm" and cfg.sort == "taylor":
        sort_units(model, data, cfg, run)
        start += "; its units are sorted by importance"
    model = extract(model, parse_arch(cfg.largest), cfg.variant)
    train_language_model(model, data, cfg, run, start, file)
    return model


def open_superplm(source, data, cfg, run):
    """The SuperPLM: --init's as it is, or one trained in the folder superplm."""
    if source and source.action == "superplm":
        model, start = start_model(source, cfg.largest, cfg, data.teacher)
        print0(run.ranks, start)
        return model.to(run.ranks.device)
    model = train_superplm(source, data, cfg, run, "superplm/checkpoint.pt")
    keep("superplm", "superplm", model.encoder.trained, data, cfg, run)
    return model


def tunes_init(names, cfg):
    """Whether --init is fine-tuned on tasks, which it teaches, before the search."""
    return bool(names) and cfg.task_teacher == cfg.init and names != [tuned_task(cfg.init)]


def open_teachers(source, lat, data, cfg, run):
    """({task: the TaskModel that teaches it}, the line of the whole --init for best.json's table or
    None). --init itself is fine-tuned and kept in teachers/TASK."""
    names = [name for name, task in data.tasks.items() if task and cfg.task_teacher]
    folder = cfg.task_teacher
    whole = None
    if tunes_init(names, cfg):
        folder = run.folder / "teachers"
        whole = tune_init(folder, source, lat, names, data, cfg, run)
    return {name: read_teacher(data.tasks[name], folder, cfg) for name in names}, whole


def tuned_start(source, data, cfg, run):
    """The start of the SuperPLM, and the settings with it: --init, after its fine-tuning if the
    search has one task, or else as it is. It becomes the teacher, too."""
    # D27 (ours): a SuperPLM that starts from a fine-tuned model makes better winners
    # (tests/claims/README.md). In the paper all start from one for all tasks
    names = [*data.task_teachers]
    if len(names) != 1 or cfg.teacher != cfg.init or not tunes_init(names, cfg):
        return source, cfg
    folder = str(run.folder / "teachers" / names[0])
    cfg = dataclasses.replace(cfg, init=folder, teacher=folder)
    data.teacher = load_teacher(cfg, run.command, run.ranks, data.tokenizer)
    return read_pretrained(folder, cfg, run.command), cfg


def tune_init(folder, source, lat, names, data, cfg, run):
    """Fine-tune --init on tasks. Returns its line for best.json's table."""

    def work(name):
        model, _ = start_model(source, "", cfg)
        tuned = tune(model, data.tasks[name], cfg, data.device)
        keep_tuned(folder / name, name, tuned, data, cfg, run)
        return dev_score(tuned, data.tasks[name], cfg, data.device)

    results = run.each("teachers", names, work)
    timed = run.once("init.json", time_finalist, str(source.arch), lat, cfg)
    return {**timed, **mean_score(results)}


def keep_tuned(folder, name, tuned, data, cfg, run):
    """Make a folder that --predict and --export read."""
    command = dataclasses.replace(run.command, action="finetune")
    settings = dataclasses.replace(cfg, arch=str(tuned.encoder.arch))
    keep_model(folder, command, settings, data.tokenizer, tuned.encoder.trained, name, model=tuned)
    if isinstance(task := data.tasks[name], folder_task.FolderTask):
        folder_task.write_spec(folder, task.task)


def time_finalist(arch, lat, cfg):
    """The latency of an architecture (text), for best.json."""
    timings = [time_group([arch], cfg)[arch] for _ in range(FINAL_ROUNDS)]
    milliseconds = lat.reference * statistics.median(ratios_of(timings))
    reference = statistics.median(references_of({arch: timings}))
    warn_of_drift(*sorted([lat.reference, reference]), cfg)
    return {
        "arch": arch,
        "milliseconds": milliseconds,
        "limit_milliseconds": lat.limit,
        "reference_milliseconds": lat.reference,
        "speedup": lat.reference / milliseconds,
    }


def within_limit(archs, timed, limit, count):
    """The first `count` architectures (text) with a measured latency within the limit, as lines of
    time_finalist. timed(arch): the line of an architecture."""
    lines = []
    for arch in archs:
        line = timed(arch)
        if line["milliseconds"] <= limit:
            lines.append(line)
        if len(lines) == count:
            break
    return lines


def berts_rule(cfg, predict_ms, limit):
    """BERT's rule, d^f = 4 d^m and d^q|k|v = d^m: its architectures within the SuperPLM that are
    predicted within the limit, the slowest first. If the width is not searched, these are the first
    layers."""
    space = search_space(cfg)
    widths = space["hidden"]
    top = parse_arch(cfg.largest)
    archs = [Arch(layers, qkv, 4 * qkv, heads, qkv)
             for layers in space["layers"] for heads, qkv in space["attention"]
             if len(widths) > 1 or qkv == widths[0]]
    archs = [arch for arch in archs if not why_outside(arch, top, cfg.variant)]
    times = dict(zip(archs, predict_ms(archs))) if archs else {}
    return sorted((arch for arch in archs if times[arch] <= limit), key=times.get, reverse=True)


def reuse_hint(cfg, run):
    """Words on another search with the SuperPLM of this one."""
    own = run.folder / "superplm"
    return (f"; with --init {own if own.exists() else cfg.init} and a new --out, the SuperPLM is "
            "used again")


def confirm(history, lat, cfg, run):
    """{kind: lines}: "searched", at most --winners best architectures of the history with a
    measured latency within the limit. For comparison, "BERT's rule" and "random sample", the best
    of the first generation. Raises UserError if nothing meets the limit."""
    # D28 (ours): the evolution checks the limit by predictions, as in the paper. The winners are
    # measured
    ranked = sorted(history, key=score_of, reverse=True)
    ranked = [line for line in ranked if not line["diverged"]]
    # kinds may share an architecture, which is measured once
    timed = functools.cache(lambda arch: time_finalist(arch, lat, cfg))
    winners = cfg.winners or (1 if cfg.strategy == "fast" else 3)  # Sec. 4.1, Table 5
    searched = within_limit([line["arch"] for line in ranked], timed, lat.limit, winners)
    if not ranked:
        raise UserError(f"{run.folder}: all candidates diverged; lower --finetune_lr"
                        f"{reuse_hint(cfg, run)}")
    if not searched:
        fastest = min(timed(line["arch"])["milliseconds"] for line in ranked)
        raise UserError(f"{limit_flag(cfg)}: no candidate meets it when measured; the fastest "
                        f"takes {fastest:.4g} ms; the same command measures again, or choose a "
                        f"larger limit{reuse_hint(cfg, run)}")
    rule = map(str, berts_rule(cfg, lat.predict_ms, lat.limit))
    drawn = [line["arch"] for line in ranked if line["round"] == 0 and cfg.strategy != "fast"]
    return {
        "searched": searched,
        "BERT's rule": within_limit(rule, timed, lat.limit, 1),
        "random sample": within_limit(drawn, timed, lat.limit, 1),
    }


def train_finalists(supernet, finalists, data, cfg, run):
    """Sec. 3.6: {architecture (text): its LanguageModel}, cut out and trained further."""
    models = {}
    archs = [line["arch"] for lines in finalists.values() for line in lines]
    for arch in dict.fromkeys(archs):  # kinds may share one
        model = extract(supernet, parse_arch(arch), cfg.variant)
        models[arch] = model
        folder = f"further/{arch}"
        try:
            train_further(model, data, cfg, run, "cut out of the SuperPLM",
                          f"{folder}/checkpoint.pt")
            settings = dataclasses.replace(cfg, arch=arch)
            keep(folder, "further_train", model.encoder.trained, data, settings, run)
        except Diverged as error:  # judge() gives it the worst score
            print0(run.ranks, f"further training diverged: {error}")
    return models


def judge_finalists(models, data, cfg, run):
    """{architecture (text): the result of judge() and the held-out loss}. The fine-tuned models are
    kept in tuned/ARCH/TASK."""

    def work(arch):
        result = judge(
            models[arch], list(data.tasks), data, cfg,
            lambda name, tuned: keep_tuned(run.folder / "tuned" / arch / name, name, tuned, data,
                                           cfg, run))
        if not result["diverged"]:
            alone = run.ranks.alone()
            result["loss"] = evaluate_language_model(models[arch], data, cfg, alone)["loss"]
        return result

    return run.each("finals", list(models), work)


def choose_best(finalists, results, whole, data, cfg, run):
    """best.json: the best of the searched finalists, and a table of the best of each kind. whole:
    the line of --init, or None. Raises UserError if all searched ones diverged."""
    # D29 (silent): the best winner is chosen by the search's own dev examples, so best.json's score
    # is not an estimate for new ones. The paper does not say how it chooses among three
    table = {}
    for kind, lines in finalists.items():
        table[kind] = {"of": len(lines)}
        if lines:
            best = max(lines, key=lambda line: results[line["arch"]]["score"])
            table[kind] |= {**best, **results[best["arch"]]}
    if whole:
        table["--init"] = {"of": 1, **whole}
    for line in table.values():
        if line["of"]:
            parts = count_parts(parse_arch(line["arch"]), cfg.vocab_size)
            line["parameters"] = sum(parts.values())
    best = table["searched"]
    if best["diverged"]:
        raise UserError(f"{run.folder}: all winners diverged; lower --lr{reuse_hint(cfg, run)}")
    return {**best, "baselines": baselines_of(data, cfg), "table": table}


def baselines_of(data, cfg):
    """{task: {baseline: score}}."""
    baselines = {}
    for name, task in data.tasks.items():
        if name == "MLM-saved":
            baselines[name] = {"frequencies of words": frequency_baseline(data, cfg)}
        elif task:
            baselines[name] = {"majority": task.majority_baseline}
            if task.words_baseline:
                baselines[name]["bag of words"] = task.words_baseline["main"]
    return baselines


def keep_best(best, data, cfg, run):
    """Copy the fine-tuned models of the best architecture to RUN/TASK."""
    for name, task in data.tasks.items():
        if task:
            tuned = run.folder / "tuned" / best["arch"] / name
            shutil.copytree(tuned, run.folder / name, dirs_exist_ok=True)


def find_architecture(source, data, cfg, run):
    """The method (Sec. 3, Figure 1). Keeps the best model in the folder model. Returns the content
    of best.json."""
    latencies = open_latencies(cfg, run)
    lat = on_main(run.ranks, learn_latency, latencies, cfg, run.ranks)
    on_main(run.ranks, check_limit, lat, cfg, run)  # before the training
    data.task_teachers, whole = open_teachers(source, lat, data, cfg, run)
    source, cfg = tuned_start(source, data, cfg, run)
    supernet = open_superplm(source, data, cfg, run)  # Alg. 1
    history = evolve(supernet, lat, data, cfg, run)  # Alg. 2
    finalists = run.once("finalists.json", confirm, history, lat, cfg, run)
    models = train_finalists(supernet, finalists, data, cfg, run)  # Sec. 3.6
    results = judge_finalists(models, data, cfg, run)
    best = choose_best(finalists, results, whole, data, cfg, run)
    on_main(run.ranks, keep_best, best, data, cfg, run)
    model = models[best["arch"]]
    settings = dataclasses.replace(cfg, arch=best["arch"])
    keep("model", "search", model.encoder.trained, data, settings, run, model=model)
    on_main(run.ranks, write_best, run.folder, best, history)
    return best

# --- the run --------------


# The paper ends here. The functions below need common/ and data/.

PRESETS["demo"] = dict(  # minutes on two cores
    vocab_size=2000,
    largest="4-96-384-6-96", smallest="1-32-32-1-48", reference="8-96-384-6-96",
    dropout=0.0, init_std=0.07,
    length=48, batch=32, accumulate=2, lr=3e-3, steps=600, further_steps=300,
    eval_every=50, save_every=100,
    tasks="MLM-saved,MNLI",
    finetune_epochs=1, finetune_lr=1e-3, finetune_batch=16, finetune_length=96,
    population=8, generations=3,
    latency_archs=120,
    finetune=dict(finetune_epochs=2, finetune_length=128))
PRESETS["released"] = dict(  # minutes on two cores, for a released BERT
    length=64, batch=16, accumulate=1, samples=2, lr=1e-4, steps=0, further_steps=0,
    eval_every=200, save_every=100,
    tasks="SST-2", proxy="States-saved",
    finetune_epochs=3, finetune_lr=1e-4, finetune_batch=32,
    held_out=0.2,
    population=12, generations=4, winners=2,
    latency_archs=100, latency_rounds=3, latency_states="first")
PRESETS["dry_run"] = dict(
    steps=2, further_steps=2,
    population=2, generations=2, winners=1,
    latency_archs=20, latency_rounds=1,
    finetune_epochs=1, finetune_batch=16, train_examples=32, runs=1)


# Weights to start from

# settings: of the run that made it, {} for a Hugging Face folder. weights: by our names. trained:
# the number of trained positions. action: of the run, or "". task: whose head is included, or ""
Pretrained = namedtuple("Pretrained", "path settings weights arch trained action task")


def read_arch(text, source):
    """The Arch of a text or a best.json. Raises UserError that names the source."""
    if text.endswith(".json"):
        text = read_json(text, "name a best.json, or write layers-hidden-ffn-heads-qkv").get("arch")
    try:
        return parse_arch(text)
    except (ValueError, TypeError) as error:
        raise UserError(f"{source}: not an architecture ({error})") from None


def choose_part(path, arch):
    """The folder of a run with the weights of an architecture (text, or "" for the model): its
    model/, or its superplm/, which contains all architectures. Other folders have no such parts."""
    folder = hf_models.model_folder(path)
    own = read_json(folder / "config.json").get("settings", {}).get("arch")
    if arch and arch != own:
        return hf_models.model_folder(path, "superplm")
    if not arch and folder == Path(path, "superplm"):
        raise UserError(f"{path}: its search is not finished and has no model yet; run it again, "
                        f"choose a part with --arch, or name the SuperPLM, {folder}")
    return folder


def read_pretrained(path, cfg, command, arch=""):
    """The Pretrained in a run folder or a Hugging Face folder. arch: as in choose_part."""
    folder = choose_part(path, arch)
    config = read_json(folder / "config.json")
    if "program" in config:  # a run of ours
        record, owned = read_run(
            folder, cfg, command.program, ("search", "superplm", "further_train", "finetune"))
        settings = record["settings"]
        trained = record.get("trained", settings["length"])
        arch = parse_arch(settings["arch"] or settings["largest"])  # a SuperPLM has no --arch
        return Pretrained(folder, settings, owned["model"], arch, trained, record["action"],
                          record.get("task", ""))
    try:
        sizes = hf_models.bert_sizes(folder, config)
        weights = hf_models.read_bert(folder, sizes[3])
    except ValueError as error:
        raise UserError(f"{folder}: not a supported BERT: {error}") from None
    positions = len(weights.get("encoder.position_embedding.weight", ()))
    return Pretrained(folder, {}, weights, Arch(*sizes), positions, "", "")


def load_pretrained(cfg, command):
    """The model of --init as Pretrained, or None without --init. For a search, the SuperPLM."""
    if not cfg.init:
        return None
    if command.action not in ("search", "latency", "describe"):
        arch = str(read_arch(cfg.arch, "--arch")) if cfg.arch else ""
        return read_pretrained(cfg.init, cfg, command, arch)
    return read_pretrained(hf_models.model_folder(cfg.init, "superplm"), cfg, command)


def resolve(cfg, command, ranks, source):
    """Fill in the settings that follow from the model of --init, the action and the number of
    processes. UserError if flags contradict each other. complete() fills in what follows from the
    data."""
    changes = settings_of_source(source, cfg, command) if source else {}
    if not cfg.tokenizer and (source or cfg.teacher):
        changes["tokenizer"] = str(source.path if source else hf_models.model_folder(cfg.teacher))
    if cfg.latencies:
        existing(f"{cfg.latencies}/latency.json", "name a run of --latency or --search")
    cfg = dataclasses.replace(cfg, **changes)
    if command.action in ("search", "superplm", "further_train"):
        if (cfg.setting == "distill") != bool(cfg.teacher):
            raise UserError("--setting distill and --teacher DIR need each other")
        cfg = dataclasses.replace(cfg, proxy=proxy_of(cfg, command))
        check_length(source, cfg.length)
        cfg = dataclasses.replace(cfg, accumulate=fit_accumulate(cfg, command, ranks))
    check_engine(cfg)
    if cfg.task_teacher == "none":
        cfg = dataclasses.replace(cfg, task_teacher="")
    archs = {}
    for name in ("arch", "largest", "smallest", "reference"):
        if text := getattr(cfg, name):
            archs[name] = str(read_arch(text, f"--{name} {text}"))
    cfg = dataclasses.replace(cfg, **archs)
    if "search space" in ACTIONS[command.action][2]:
        check_space(cfg)
    return cfg


def settings_of_source(source, cfg, command):
    """The settings that follow from a Pretrained. UserError if a flag contradicts it."""
    settings = source.settings
    is_superplm = source.action == "superplm"
    if command.action == "superplm" and is_superplm:  # trains it further
        return settings_from(
            cfg, command, settings, source.path, (), (*SPACE, "teacher", "reference"))
    if command.action not in ("search", "superplm", "latency", "describe"):
        return {"arch": cfg.arch or str(source.arch)}
    changes = {"init": str(source.path)}
    if is_superplm:
        changes |= settings_from(
            cfg, command, settings, source.path, (*SPACE, "vocab_size"), ["teacher", "reference"])
        teacher = cfg.teacher or settings["teacher"]
        if teacher and settings["init"]:  # it started from a released or fine-tuned model
            changes |= learns_from(teacher, source, cfg, command)
        return changes
    rows, width = source.weights["encoder.token_embedding.weight"].shape
    if width != source.arch.hidden:
        raise UserError(f"{source.path}: its embeddings have the width {width}, not "
                        f"{source.arch.hidden}; such a model is only a --teacher")
    changes |= settings_from(cfg, command, {"vocab_size": rows}, source.path, ["vocab_size"])
    if command.action == "describe":
        return {**changes, "arch": cfg.arch or str(source.arch)}
    return changes | settings_of_start(source, cfg, command)


def proxy_of(cfg, command):
    """--proxy, with the names of folders. UserError if it names another task than those of --tasks
    and SAVED."""
    if "proxy" not in command.given:
        return "MLM-saved" if cfg.proxy and cfg.setting == "mlm" else cfg.proxy
    tasks, proxies = ([Path(name).name for name in text.split(",")]
                      for text in (cfg.tasks, cfg.proxy))
    for name in proxies:
        if name not in (*SAVED, *tasks):
            raise UserError(f"--proxy {name}: choose from {', '.join(SAVED)} and --tasks")
    if "States-saved" in proxies and cfg.setting == "mlm":
        raise UserError("--proxy States-saved: it compares states with a teacher's; add --setting "
                        "distill and --teacher DIR, or take MLM-saved")
    return ",".join(proxies)


def learns_from(folder, source, cfg, command):
    """The setting of a search whose winners learn from the model in a folder, if that is fine-tuned
    on the task, or else from --init, which then is fine-tuned first."""
    if command.action != "search" or "task_teacher" in command.given:
        return {}
    own = tuned_task(folder) == Path(cfg.tasks).name
    return {"task_teacher": str(folder if own else source.path)}


def settings_of_start(source, cfg, command):
    """The settings with which a model that is not a SuperPLM becomes one, unless flags say
    otherwise: its shape is the largest, a released or fine-tuned model is its own teacher, and in a
    search, fine-tuned, that of the winners."""
    top = parse_arch(cfg.largest) if "largest" in command.given else source.arch
    if reason := why_outside(top, source.arch):
        raise UserError(f"--largest {cfg.largest}: {reason}, the shape of {source.path}")
    changes = {"largest": str(top), "reference": str(source.arch)}
    setting = cfg.setting
    if source.action in ("", "finetune") and (
            "setting" not in command.given or setting == "distill"):
        setting = "distill"
        changes |= {"setting": setting, "teacher": cfg.teacher or str(source.path)}
        changes |= learns_from(source.path, source, cfg, command)
    if setting == "mlm" and cfg.steps == 0 and "decoder_bias" not in source.weights:
        raise UserError(f"{source.path}: it has no head for masked words, which --setting mlm "
                        "needs; leave --setting out, or train it (--steps)")
    low_ffn = WIDTH_STEP * math.ceil(top.ffn / 4 / WIDTH_STEP)
    size = top.qkv // top.heads
    heads = top.heads if setting == "distill" else math.ceil(top.heads / 2)
    width = heads * (math.ceil(size / 2) if setting == "distill" else size)
    # D30 (ours): the hidden width of --init is not searched, as in DynaBERT. Shapes of its full
    # width were better than others as fast (tests/claims/README.md)
    smallest = Arch(math.ceil(top.layers / 3), top.hidden, low_ffn, heads, width)
    changes["smallest"] = str(smallest)
    return {name: value for name, value in changes.items() if name not in command.given}


def check_space(cfg):
    """UserError if a variable of the search space has no choices, or the strategy no shapes."""
    try:
        space = search_space(cfg)
    except ValueError as error:
        raise UserError(str(error)) from None
    if cfg.strategy == "fast" and not any(fast_shapes(space)):
        raise UserError(f"--strategy fast: no shape from --smallest {cfg.smallest} to --largest "
                        f"{cfg.largest} has an ffn of 1.6 to 1.9 times and a qkv of 0.7 to 1 times "
                        "its hidden width; choose another strategy")


def positions_of(source):
    """The number of positions of a Pretrained."""
    return len(source.weights.get("encoder.position_embedding.weight", ()))


def check_length(source, longest):
    """UserError if inputs of `longest` tokens have more than the positions of a Pretrained."""
    positions = positions_of(source) if source else 0
    if longest > positions > 0:
        raise UserError(f"inputs of {longest} tokens: {source.path} has {positions} positions; "
                        "choose a smaller --length, or --finetune_length for tasks")


def check_tasks(names, source, cfg):
    """UserError if inputs of the tasks are too long for a Pretrained, or if masked words are a task
    of a distilled model."""
    table = recipes(cfg)
    for name in names:
        recipe = table.get(name, table["SST-2"])  # of a user's own task
        check_length(source, cfg.finetune_length or recipe.length)
    distilled = source and source.settings.get("setting") == "distill"
    if "MLM-saved" in names:
        check_length(source, cfg.length)
        if cfg.setting == "distill" or distilled:
            raise UserError("MLM-saved: a distilled model has no head for masked words; give other "
                            "tasks, such as SST-2")


def given(value, default):
    """A setting, or its default if it is None."""
    return default if value is None else value


def check_teacher(names, cfg, data):
    """UserError if --task_teacher has no model of a task, or another vocabulary."""
    for name in names:
        if cfg.task_teacher not in ("", cfg.init) and name not in SAVED:
            folder = teacher_folder(name, cfg.task_teacher)
            existing(folder / "config.json", f"--task_teacher is a run of --finetune {name}")
            check_vocabulary(folder, data.tokenizer)


def complete(cfg, data):
    """The settings with the paths of the data, the vocabulary size, and steps computed from passes
    over the text."""
    cfg = dataclasses.replace(cfg, **data.flags, vocab_size=data.tokenizer.vocab_size)
    if not data.train:
        return cfg
    # Sec. 4.1: 5 passes, and from scratch 10, like BERT-S*
    further = 10 if cfg.arch and not cfg.init else 5
    examples = data.train.slots(cfg.length - 3)
    return dataclasses.replace(
        cfg,
        steps=given(cfg.steps, math.ceil(5 * examples / cfg.batch)),
        further_steps=given(cfg.further_steps, math.ceil(further * examples / cfg.batch)))


def trained_positions(source, cfg):
    """The number of trained positions after a training on text."""
    return max(source.trained if source else 0, cfg.length)


def without_padding(weights, vocab_size):
    """Weights without the rows of tokens that the vocabulary lacks, so that these are never
    predicted. Many released models have up to 127 such rows, for a round table size."""
    names = "encoder.token_embedding.weight", "decoder_bias"
    rows = len(weights.get(names[0], ()))
    if not vocab_size < rows < vocab_size + 128:
        return weights
    return {name: value[:vocab_size] if name in names else value
            for name, value in weights.items()}


def load_teacher(cfg, command, ranks, tokenizer):
    """The frozen Encoder of --teacher, or None without. UserError if it has another number of heads
    than the student."""
    if not cfg.teacher:
        return None
    source = read_pretrained(cfg.teacher, cfg, command)
    check_length(source, cfg.length)
    check_vocabulary(source.path, tokenizer)
    heads = source.arch.heads
    student = parse_arch(cfg.arch or cfg.largest)
    if heads != student.heads:
        raise UserError(f"--teacher {cfg.teacher}: it has {heads} heads and the student "
                        f"{student.heads}; attention is compared head by head: give a student, "
                        f"--largest in a search, with {heads} heads, such as 4-96-384-{heads}-96")
    weights = without_padding(source.weights, tokenizer.vocab_size)
    width = weights["encoder.token_embedding.weight"].shape[1]
    teacher = Encoder(source.arch, tokenizer.vocab_size, 0.0, positions_of(source), width)
    model = nn.ModuleDict({"encoder": teacher})
    hf_models.load_bert(model, weights, source.path)
    teacher.trained = source.trained
    extend_positions(model, cfg.length)
    return teacher.to(ranks.device).eval().requires_grad_(False)


def load_model(source, fit, cfg):
    """The LanguageModel of a Pretrained, and a line on its weights. UserError if they do not
    fit."""
    seed_everything(cfg.seed, "weights made anew")
    model = LanguageModel(source.arch, cfg.vocab_size, cfg.dropout, fit, positions_of(source))
    weights = without_padding(source.weights, cfg.vocab_size)
    line = hf_models.load_bert(model, weights, source.path)
    model.encoder.trained = source.trained
    if source.settings:
        line += f"; trained on sequences of {source.trained} tokens"
    return model, line


@torch.no_grad()
def extend_positions(model, length):
    """Copy the rows of the trained positions of a model, unless it is new, to those after them, up
    to `length`. A training follows, after which these count as trained. Returns a line about it, or
    "" if there are none."""
    # D31 (silent): new position embeddings are repeated copies, as in Longformer (Beltagy et al.
    # 2020). SQuAD has 384 tokens, as in the released code, and a SuperPLM has --length (D3). The
    # paper does not mention the positions in between
    trained = model.encoder.trained
    model.encoder.trained = max(trained, length)
    if not 0 < trained < length:
        return ""
    rows = model.encoder.position_embedding.weight
    rows[trained:length] = rows[torch.arange(trained, length) % trained]
    return f"; positions {trained} to {length - 1} are copies of 0 to {trained - 1}"


def new_model(arch, fit, cfg):
    """A LanguageModel of an architecture (text) with new weights."""
    seed_everything(cfg.seed, "weights", arch)
    model = LanguageModel(parse_arch(arch), cfg.vocab_size, cfg.dropout, fit)
    for name, value in model.named_parameters():
        if is_matrix(name):
            value.data *= cfg.init_std / 0.02
    return model


def start_model(source, arch, cfg, teacher=None):
    """The LanguageModel of a Pretrained, cut to `arch` (text, or "" for all), or a new
    LanguageModel, and a line on its weights. UserError if the weights do not fit."""
    fit = teacher.arch.hidden if teacher else 0
    if not source:
        return new_model(arch, fit, cfg), "from scratch"
    model, line = load_model(source, fit, cfg)
    if arch in ("", str(model.encoder.arch)):
        return model, line
    if source.action != "superplm":
        warnings.warn(f"{source.path}: not a SuperPLM, so its part {arch} was never trained")
    try:
        return extract(model, parse_arch(arch), source.settings.get("variant", "ebl")), line
    except ValueError as error:
        raise UserError(f"{cfg.init}: {error}") from None


# Actions

def search(cfg, command):
    """From text to a further-trained tiny model within the limit."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        names = parse_tasks(cfg.tasks, recipes(cfg), cfg)
        check_tasks([*names, *proxies_of(cfg)], source, cfg)
        cfg = dataclasses.replace(cfg, tasks=",".join(names))
        if "SQuAD1.1" in names and "latency_states" not in command.given:
            cfg = dataclasses.replace(cfg, latency_states="all")  # a span needs all
        own = [name for name in names if name not in SAVED]
        data = open_data(cfg, command, ranks, own, text=True)
        check_teacher(names, cfg, data)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data)
        if not run.result:
            data = open_tasks(names, cfg, data)
            data.teacher = load_teacher(cfg, command, ranks, data.tokenizer)
            run.finish(find_architecture(source, data, cfg, run))
        print_best(run, cfg)


def latency(cfg, command):
    """Measure latencies of this machine, and learn to predict them."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        run = Run(cfg, command, ranks, Data(ranks.device))
        if not run.result:
            run.finish(measure_latencies(cfg, run))
        on_main(ranks, learn_latency, run.result, cfg, ranks)
        run.print_next(cfg, "latency.json", "--search", "--latencies", run.folder,
                       same=("preset", "device", "init", "reference", *TIMED, *SPACE))


def superplm(cfg, command):
    """Train a SuperPLM (Alg. 1), from scratch or from --init's weights."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        data = open_data(cfg, command, ranks, text=True)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data, trained=trained_positions(source, cfg))
        if not run.result:
            data.teacher = load_teacher(cfg, command, ranks, data.tokenizer)
            model = train_superplm(source, data, cfg, run, "checkpoint.pt")
            run.finish(held_out_loss(model, data, cfg, ranks))
        print_held_out(run, cfg)
        only_here = ("out", "restart", "init", "dry_run", "steps", "samples")
        run.print_next(cfg, "checkpoint.pt", "--search", "--init", run.folder,
                       same=sorted(command.given.difference(only_here)))


def further_train(cfg, command):
    """Train --init's architecture, or one from scratch (Sec. 3.6)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        data = open_data(cfg, command, ranks, text=True)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data, trained=trained_positions(source, cfg))
        if not run.result:
            data.teacher = load_teacher(cfg, command, ranks, data.tokenizer)
            model, start = start_model(source, cfg.arch, cfg, data.teacher)
            warmup = 0.0 if source else cfg.warmup
            train_further(model, data, cfg, run, start, warmup=warmup)
            run.finish(held_out_loss(model, data, cfg, ranks))
        print_held_out(run, cfg)
        print_after_training(run, cfg, "checkpoint.pt")


def held_out_loss(model, data, cfg, ranks):
    """The result of a training on text."""
    loss = evaluate_language_model(model, data, cfg, ranks)["loss"]
    return {"arch": str(model.encoder.arch), "held_out": loss}


def method():
    """What common/finetune.py needs from this paper. No task starts from MNLI's model."""
    return Method(recipes, load_pretrained, begin_task, load_task, means=MEANS)


def load_task(task, source, cfg):
    """The model of a fine-tuned source."""
    check_length(source, task.recipe.length)
    vocab_size = len(source.weights["encoder.token_embedding.weight"])
    encoder = Encoder(source.arch, vocab_size, 0.0, positions_of(source))
    model = TaskModel(encoder, task.outputs, task.kind == "span")
    hf_models.check_complete(model, source.weights, source.path)
    print(hf_models.load_bert(model, source.weights, source.path))
    return model


def finetune(cfg, command):
    """Fine-tune --init's model on tasks, --runs times, and score masked words."""
    with launch(cfg.device, cfg.dtype) as ranks:
        names = parse_tasks(command.value, recipes(cfg), cfg)
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        check_tasks(names, source, cfg)
        masked = "MLM-saved" in names
        data = open_data(cfg, command, ranks, names, text=masked)
        check_teacher(names, cfg, data)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data)
        if not run.result:
            model, _ = start_model(source, cfg.arch, cfg)  # a mistake ends the command here
            tasks = [name for name in names if name != "MLM-saved"]
            result = finetune_tasks(method(), tasks, source, data, cfg, run)
            mlm = score_mlm(model, data, cfg) if masked else None
            if masked:
                mlm["baseline"] = frequency_baseline(data, cfg)
            run.finish({**result, "mlm": mlm})
        if mlm := run.result["mlm"]:
            print0(ranks, f"MLM-saved: the loss of masked words is {mlm['loss']:.4f}, "
                          f"{mlm['main']:.2%} below a uniform guess; the frequencies of words are "
                          f"{mlm['baseline']:.2%} below")
        print_summary(run, cfg)


def predict(cfg, command):
    """Predict a file of the user with RUN/TASK of --init."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        tokenizer = open_tokenizer(cfg.tokenizer, cfg.init)
        predict_file(method(), source, tokenizer, cfg, command, ranks)


def export(cfg, command):
    """Write --init's model with its head, or its sub-model --arch, as a Hugging Face folder or as a
    module FILE.py."""
    source = load_pretrained(cfg, command)
    cfg = resolve(cfg, command, None, source)
    tokenizer = open_tokenizer(cfg.tokenizer, cfg.init)
    cfg = dataclasses.replace(cfg, vocab_size=tokenizer.vocab_size)
    model, _ = start_model(source, cfg.arch, cfg)
    arch = model.encoder.arch
    head = {name: value for name, value in source.weights.items()
            if name.startswith("head.") and arch == source.arch}
    length = longest_input(source, head, cfg)
    if source.settings:  # those of a search
        cfg = dataclasses.replace(
            cfg, **settings_from(cfg, command, source.settings, source.path, (), TIMED))
    cfg = dataclasses.replace(
        cfg, latency_length=min(cfg.latency_length, positions_of(source)))
    if command.value.endswith(".py"):
        classifies = head and source.task != "SQuAD1.1"
        cfg = dataclasses.replace(cfg, latency_states="first" if classifies else "all")
        others = export_module(Path(command.value), source, model.encoder, head, tokenizer, length,
                               cfg)
    else:
        others = export_folder(command, source, model, head, tokenizer, length, cfg)
    print(compare_latencies(others, arch, cfg))
    best = source.path.parent / "best.json"
    if best.exists():
        print(f"the limit of its search: {read_json(best)['limit_milliseconds']:.4g} ms")


def export_folder(command, source, model, head, tokenizer, length, cfg):
    """Write a Hugging Face folder. Returns {name: a function that runs it, or None}, to time."""
    if "quantize" in command.given:
        raise UserError(f"--quantize: {command.value} is a folder of float32 weights for "
                        "transformers; name a file, FILE.py")
    # without newly initialised weights, such as the MLM head that an ELECTRA lacks
    state = {name: value for name, value in model.state_dict().items() if name in source.weights}
    shape = dataclasses.astuple(model.encoder.arch)
    print(hf_models.write_bert(
        command.value, state, shape, tokenizer, length, source.path, head))
    run = None
    if can_time(cfg):
        run = hf_models.open_exported(
            command.value, cfg.latency_batch, cfg.latency_length, cfg.latency_device)
    return {"the exported folder with transformers": run}


def export_module(path, source, encoder, head, tokenizer, length, cfg):
    """Write a module, weights and vocabulary. Returns {name: a function that runs it}, to time."""
    refuse_to_overwrite(path, tokenizer)
    if "encoder.project.weight" in source.weights:
        raise UserError(f"{source.path}: its embeddings are narrower than its layers; export a "
                        "folder instead of a file")
    check_engine(cfg)
    own = folder_task.read_spec(source.path)
    labels = label_names(source, head, own)
    network = encoder
    if head:
        network = TaskModel(encoder, len(head["head.weight"]), labels == SPAN)
        network.load_state_dict(folder_task.export_head(head, own)[0], strict=False)
    write_module(path, plain(network), encoder.arch, tokenizer, labels, length, cfg.quantize)
    print(f"{path}: written, with {path.with_suffix('.pt').name} and {tokenizer.file_name}; it "
          f"needs torch{' and sentencepiece' * (tokenizer.file_name == 'spiece.model')}, and its "
          "first lines say how to call it")
    model = open_module(path).load().to(cfg.latency_device)
    ids = torch.zeros(cfg.latency_batch, cfg.latency_length, dtype=torch.long,
                      device=cfg.latency_device)
    return {path.name: lambda: model({"ids": ids, "token_type_ids": ids})}


def label_names(source, head, own):
    """The names of the outputs of a Pretrained's head, () without a head."""
    if not head:
        return ()
    if source.task == "SQuAD1.1":
        return SPAN
    return tuple(hf_models.label_names(source.task, head, own))


def longest_input(source, head, cfg):
    """Tokens of the longest input of a Pretrained's training: its task's, with a head, or the
    pre-training's. All positions if a Hugging Face folder does not say."""
    settings = source.settings
    if not head:
        return settings.get("length") or positions_of(source)
    if not settings:
        config = read_json(source.path / "config.json")
        return config.get("finetune_length") or positions_of(source)
    table = recipes(cfg)
    recipe = table.get(source.task, table["SST-2"])  # of a user's own task
    return settings["finetune_length"] or recipe.length


def can_time(cfg):
    """Whether this machine has the device that latencies are measured on."""
    return cfg.latency_device == "cpu" or torch.cuda.is_available()


def compare_latencies(others, arch, cfg):
    """A line with the latency of an architecture as a search measures it, and of exported models
    {name: a function that runs it, or None}, measured alternately."""
    if not can_time(cfg):
        return "latency: not measured, since there is no GPU; --latency_device cpu measures one"
    calls = {"as in a search": lambda: time_model(arch, cfg)}
    for name, run in others.items():
        calls[name] = functools.partial(time_passes, run, cfg) if run else None
    times = {name: [] for name in calls}
    for _ in range(FINAL_ROUNDS):
        for name, call in calls.items():
            if call:
                times[name].append(call())
    shown = [f"{name} {statistics.median(each):.4g} ms" if each else
             f"{name}: not measured (pip install transformers)" for name, each in times.items()]
    return f"latency: {'; '.join(shown)} ({what_is_timed(cfg)})"


def step_flops(cfg):
    """FLOPs of the forward passes of a sequence in a step, for all sub-models, averaged over 1,000
    steps. Excludes a teacher. An upper estimate: it includes the pooler, the last layer at all
    positions and, with a teacher, a head for masked words."""
    masked = round(MASK_RATE * cfg.length)  # the head runs only at masked positions
    total = 0
    for step in range(1000):
        for arch in draw_archs(cfg, step, 0):
            total += flops(arch, cfg.length)
            total += 2 * masked * arch.hidden * (arch.hidden + cfg.vocab_size)
    return total / 1000


def describe(cfg, command):
    """Print one JSON object on --arch or the model of --init, which may be a SuperPLM, and its
    training."""
    source = load_pretrained(cfg, command)
    cfg = resolve(cfg, command, None, source)
    arch = parse_arch(cfg.arch or cfg.largest)
    parts = count_parts(arch, cfg.vocab_size, positions_of(source) if source else 512)
    count = sum(parts.values())
    # without reading the corpus: 5 passes over BERT's 3.3 billion words stand for 0 steps
    passes = round(5 * 3.3e9 / (cfg.length - 3) / cfg.batch)
    steps = given(cfg.further_steps if cfg.arch else cfg.steps, passes)
    activations = [layer_activations(cfg.length, arch.hidden, ffn) for ffn, _, _ in arch.shapes]
    logits = round(MASK_RATE * cfg.length) * cfg.vocab_size
    print(json.dumps({
        "arch": str(arch),
        "parameters": count,
        "parts": parts,
        "steps": steps,  # for the days
        "flops": flops(arch, cfg.latency_length),
        "flops_counting": flops.__doc__.split("\n")[0],
        **training_cost(cfg, count, step_flops(cfg), activations, logits, steps, cfg.batch),
    }, indent=2))


# What is printed

def print_held_out(run, cfg):
    """Print the result of held_out_loss."""
    result = run.result
    print0(run.ranks, f"{result['arch']}: held-out loss {result['held_out']:.4f} at --length "
                      f"{cfg.length}; losses at other lengths do not compare")


def comparison(table):
    """The text of best.json's table. "of" is the number of trained shapes. A row has the best. A
    tie is a difference of less than two standard errors."""
    lines = [f"{'':22} {'shape':20} {'ms':>8} {'parameters':>12} {'loss':>7}  scores"]
    best = table["searched"]
    margin = 2 * math.sqrt(2) * best["standard_error"]
    for kind, line in table.items():
        if not line["of"]:
            lines.append(f"{kind:22} none drawn, or none within the limit")
            continue
        title = f"{kind}, best of {line['of']}" if line["of"] > 1 else kind
        loss = f"{line['loss']:7.4f}" if "loss" in line else "diverged" * line["diverged"]
        same = line["arch"] == best["arch"]
        tie = " (tie)" if not same and abs(line["score"] - best["score"]) < margin else ""
        lines.append(f"{title:22} {line['arch']:20} {line['milliseconds']:8.4g} "
                     f"{line['parameters']:12,} {loss:7}  {percent(line['scores'])}{tie}")
    lines.append(f"scores that differ by less than {100 * margin:.2f} are a tie, by the number of "
                 "held-out examples; another seed can change more")
    return "\n".join(lines)


def pareto(history):
    """All candidates as text, the fastest first, and as an SVG drawing. A * and a line mark those
    with a better score than all faster ones."""
    lines = ["  predicted ms    score  shape"]
    points = []
    front = []
    highest = -math.inf
    for line in sorted(history, key=lambda line: (line["predicted_ms"], -line["score"])):
        mark = " "
        if line["score"] > highest:
            mark = "*"
            highest = line["score"]
            front.append(len(points))
        points.append((line["predicted_ms"], line["score"], line["arch"]))
        lines.append(f"{mark} {line['predicted_ms']:12.4f} {line['score']:8.4f}  {line['arch']}")
    return "\n".join(lines) + "\n", scatter(points, front, "predicted ms", "score")


def write_best(folder, best, history):
    """Write best.json, and all candidates as text and as a drawing."""
    write_json(folder / "best.json", best)
    text, drawing = pareto(history)
    write_atomic(folder / "pareto.txt", text)
    write_atomic(folder / "pareto.svg", drawing)


def print_best(run, cfg):
    """Print best.json of a finished search, and the next command."""
    best = run.result
    print0(run.ranks, comparison(best["table"]))
    print0(run.ranks, f"{best['arch']} takes {best['milliseconds']:.4g} ms, {best['speedup']:.3g} "
                      f"times as fast as {cfg.reference}: {percent(best['scores'])}")
    for name, baselines in best["baselines"].items():
        print0(run.ranks, f"baselines of {name}: {percent(baselines)}")
        if best["scores"][name] <= max(baselines.values()) and not cfg.dry_run:
            helps = ("choose a larger limit, or raise --finetune_epochs" if cfg.init else
                     "start from a released BERT (--init), or train longer (--steps, "
                     "--finetune_epochs)")
            print0(run.ranks, f"{name}: no better than its baselines; {helps}")
    tuned = [name for name in best["scores"] if name not in SAVED]
    for kind, line in best["table"].items():
        if kind != "--init" and line["of"] and line["score"] > best["score"]:
            folder = run.folder / ("tuned" if tuned else "further") / line["arch"]
            print0(run.ranks, f"{kind} scored higher: {folder} has it")
    print0(run.ranks, f"timed: {what_is_timed(cfg)}; --export FILE.py measures the file, too")
    print0(run.ranks, f"{run.folder / 'pareto.svg'}: all candidates, score against latency")
    init = run.folder / tuned[0] if tuned and cfg.task_teacher else run.folder
    run.print_next(cfg, "best.json", "--export", f"{run.folder}-exported/model.py", "--init", init,
                   same=())


def what_is_timed(cfg):
    """The meaning of a latency in words."""
    sequences = "one sequence" if cfg.latency_batch == 1 else f"{cfg.latency_batch} sequences"
    states = "all states" if cfg.latency_states == "all" else "a classifier"
    bits = ", int8" if cfg.quantize else ""
    return (f"{states}{bits}, {sequences} of {cfg.latency_length} tokens, no padding, "
            f"{cfg.latency_device}, {cfg.latency_threads} thread(s)")


# Command line

# groups of settings
TEXT = ("run", "execution", "text", "objective", "training on text")
SUPERPLM = ("search space", "one-shot training")
ACTIONS = {  # the function, its help, and the groups of settings that it reads
    "search": (
        search, "all phases: text to a further-trained tiny model within the limit",
        (*TEXT, *SUPERPLM, "further training", "tasks", "fine-tuning", "distillation on tasks",
         "what is timed", "latency", "search")),
    "superplm": (superplm, "one-shot training alone (Alg. 1)", (*TEXT, *SUPERPLM)),
    "latency": (
        latency, "measure latencies alone, learn to predict them",
        ("run", "execution", "objective", "search space", "what is timed", "latency")),
    "further_train": (
        further_train, "train --arch from --init's weights, or from scratch",
        (*TEXT, "architecture", "further training")),
    "finetune": (
        finetune, "fine-tune --init's model on SQuAD and GLUE tasks (Table D.1), or on a folder of "
        "your own with train and dev files",
        ("run", "execution", "text", "architecture", "tasks", "fine-tuning",
         "distillation on tasks", "scores of --finetune"), "TASKS"),
    "predict": (
        predict, "predict a file of your own (TSV or SQuAD JSON) with RUN/TASK of --init",
        ("run", "execution", "fine-tuning"), "FILE"),
    "export": (
        export, "write --init's model, or its part --arch, as a Hugging Face folder, or as FILE.py "
        "in plain PyTorch",
        ("run", "architecture", "what is timed"), "DIR"),
    "describe": (
        describe, "parameters, FLOPs, memory and days of training of --arch as JSON",
        (*TEXT, *SUPERPLM, "architecture", "further training", "what is timed")),
}


def check(cfg, command):
    """UserError if flags contradict each other."""
    action = command.action
    if {"speedup", "latency_limit"} <= command.given:
        raise UserError("--speedup and --latency_limit: give one of them")
    reads_weights = action in ("finetune", "predict", "export", "further_train")
    from_scratch = cfg.arch and action == "further_train"
    if reads_weights and not (cfg.init or from_scratch):
        raise UserError(f"--{action} needs weights: give a folder with --init (or train --arch "
                        "from scratch)")


def main(argv=None):
    """Run one action."""
    return cli.start(Config, PRESETS, ACTIONS, __doc__, check, argv)


if __name__ == "__main__":
    if "cli" not in globals():
        print("autotinybert.py alone can be imported: model, one-shot training, searcher and "
              "distillation; its commands need common/ and data/ of its repository",
              file=sys.stderr)
        sys.exit(2)
    cli.run(main)
