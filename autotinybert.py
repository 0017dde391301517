"""AutoTinyBERT: Automatic Hyper-parameter Optimization for Efficient Pre-trained Language Models
(Yin, Chen, Shang, Jiang, Chen, Liu; ACL 2021, arXiv:2107.13686v1).

How deep and how wide should a BERT be that has to answer within so many milliseconds? One big model, the SuperPLM, is
trained so that every smaller one cut out of it works at once (one-shot learning, Alg. 1). An evolution (Alg. 2) then
looks for the best shape below the limit, and the weights of the winners, taken from the SuperPLM, are trained further.

Run:     python autotinybert.py --search --dry_run             two steps of every phase on demo data
         python autotinybert.py --search --speedup 7.2         from text to a tiny model on demo data, on two cores
         torchrun --nproc_per_node=16 autotinybert.py --search --preset base --speedup 7.2
                  --corpus TEXTS --glue GLUE --squad SQUAD     the paper's sizes and budget (Sec. 4.1)
Map:     Table B.1 -> search_space                 Eq. 1, 2, 3 -> Layer         Table 3 -> VARIANTS
         Sec. 3.4, Figure 3 -> leading, sub_model  Alg. 1 -> draw_archs, update
         Lat(.) of Eq. 4 -> Predictor              Alg. 2 -> propose, evolve     Table D.1 -> TABLE_D1
         Sec. 4.4 -> fast_candidates               Sec. 3.6 -> train_winners     Eq. 5, figures -> tests/claims
Tour:    search_space, leading, sub_model, update, pretrain, Predictor, propose, evolve. Skip at first: what starts
         from other models, fine-tunes, or reads flags.
Differs: (reasons where it happens) D1 GELU · D2 Mut() and the roulette · D3 candidates are new and within
         the limit · D4 winners are measured · D5 latency by least squares from hundreds of measurements · D6 what no
         sub-model used decays and moves by its moments · D7 CPU seconds for the wall clock's · D8 rows of two segments,
         some short, no next-sentence loss · D9 no padding and no masks in distillation · D10 SentencePiece
         · D11 which fast candidate a depth · D12 MLM-saved is a task · D13 at most 1,000 documents are held out
         · D14 SQuAD trains positions above 128 · D15 a mean is the fitness
         · D16 AdamW with bias correction · D17 initial weights not truncated · D18 sequences of 128 tokens · D19 the
         best winner is chosen on the search's dev rows · D20 a timing is a trimmed mean
         · D21 the gradient is clipped as a whole
"""
import copy
import dataclasses
import functools
import itertools
import json
import math
import os
import random
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Literal

if __name__ == "__main__" and os.isatty(2) and os.environ.get("RANK", "0") == "0":
    print("importing torch ...", file=sys.stderr)  # takes seconds

import torch
import torch.nn.functional as F
from torch import nn

# B batch, T tokens, H hidden (d^m), Q query/key/value width, N heads (in pretrain Alg. 1's N), D head width,
# V vocabulary, I chosen places, E embedding width (H except in small teachers), W teacher's hidden width

# --- configuration --------


@dataclasses.dataclass
class Config:
    """Every knob. The comment is the help text; a preset overrides the default, a flag the preset."""
    given, program = frozenset(), "autotinybert"  # the flags that were given, the file's name; open_run adds run
    models = "init", "teacher", "tokenizer"  # flags that name what is read beside the data
    # --restart deletes these, beside common.runs.WRITES
    writes = ("superplm*", "model*", "further", "candidates", "finals", "latency.jsonl", "predictor.pt*",
              "finalists.json", "SQuAD1.1", "MLM-saved", "SST-2", "MNLI", "MRPC", "CoLA", "QNLI", "QQP", "STS-B", "RTE",
              "WNLI")
    preset: str = "demo"  # demo (minutes on two cores) | base (the paper's)
    out: str = ""  # run folder; default runs/autotinybert-ACTION-PRESET
    restart: bool = False  # begin anew in a run folder that is there
    seed: int = 0  # of everything drawn
    device: str = "auto"  # auto | cpu | cuda
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs that have it
    compile: bool = False  # torch.compile further training; the SuperPLM changes with every step
    accumulate: int = 16  # micro-batches a step, N of Alg. 1; raised to fit the processes [>= 1]
    dry_run: bool = False  # two real steps of every phase
    init: str = ""  # run or Hugging Face folder to start from; in --search and --evolve, the SuperPLM
    # data
    corpus: tuple[str, ...] = ()  # text files or folders; default: the demo text
    glue: str = ""  # folder with the GLUE tasks; default: the demo tasks
    squad: str = ""  # folder with train-v1.1.json and dev-v1.1.json; default: the demo questions
    tokenizer: str = ""  # spiece.model or vocab.txt; default: --init's or the teacher's, else a new one
    vocab_size: int = 30522  # pieces of the vocabulary [>= 1]
    held_out: float = 0.05  # share of the documents that is held out, at most 1,000; from 1 on their number [> 0]
    tasks: str = "SQuAD1.1,MNLI"  # proxy tasks of the search, Sec. 3.5; MLM-saved is masked words (D12)
    train_rows: int = 0  # training rows of each task that are used; 0: all
    # SuperPLM
    arch: str = ""  # architecture layers-hidden-ffn-heads-qkv (Table 4), or a best.json
    largest: str = "8-768-3072-12-768"  # architecture of the SuperPLM, Sec. 3.4
    smallest: str = "1-128-128-1-180"  # smallest choices, Table B.1; --setting mlm reads its heads, distill its qkv
    dropout: float = 0.1  # on hidden states and attention [0, 1)
    init_std: float = 0.02  # standard deviation of new weights; narrow models need more [> 0]
    setting: Literal["mlm", "distill"] = "mlm"  # pre-training (fewer heads), distillation (narrower heads), Table B.1
    teacher: str = ""  # folder of a BERT or ELECTRA, or of a run, for --setting distill
    variant: Literal["ebl", "sme", "ils", "hat"] = "ebl"  # one-shot training as in a row of Table 3; ebl is the paper's
    # one-shot and further training
    samples: int = 3  # M of Alg. 1: sub-models on each sub-batch [1, 10000]
    length: int = 128  # tokens a sequence, special ones included; D18: the paper times 128 and names no other [8, 512]
    steps: int = 0  # updates of the SuperPLM; 0: 5 passes over the corpus, Sec. 4.1
    further_steps: int = 0  # updates of one architecture; 0: 5 passes, from scratch 10 like the paper's BERT-S*
    batch: int = 256  # sequences an update, Sec. 4.1 [>= 1]
    lr: float = 1e-5  # peak learning rate, Sec. 4.1 [> 0]
    warmup: float = 0.1  # share of the steps; further training of --init's weights has none, Sec. 4.1 [0, 1]
    weight_decay: float = 0.01  # of AdamW, BERT's; biases and LayerNorms have none
    eval_every: int = 32000  # steps between looks at held-out text [>= 1]
    save_every: int = 1000  # steps between checkpoints [>= 1]
    save_minutes: float = 0  # minutes between checkpoints beside --save_every; 0: none
    # fine-tuning; Table D.1's number where not given
    finetune_epochs: int | None = None  # passes over the task [>= 1]
    finetune_batch: int | None = None  # examples an update [>= 1]
    finetune_lr: float | None = None  # peak learning rate [> 0]
    finetune_warmup: float = 0.1  # share of the steps [0, 1]
    finetune_length: int | None = None  # tokens a row; default: 128, SQuAD's windows 384 [8, 512]
    runs: int = 1  # fine-tunings with other seeds in --finetune [>= 1]
    grid: bool = False  # tune GLUE's tasks with every learning rate and number of epochs of Sec. 4.1, keep the best
    # latency
    speedup: str = "7.2"  # over --reference, Table 1; or an architecture: as fast as that one
    reference: str = "12-768-3072-12-768"  # what speed-ups are counted from: BERT-base
    latency_device: Literal["cpu", "cuda"] = "cpu"  # device that models are to be fast on
    latency_threads: int = 1  # CPU threads there; of a single one CPU seconds are measured (D7) [1, 1024]
    latency_batch: int = 1  # sequences at a time there [>= 1]
    latency_length: int = 128  # tokens a sequence there [>= 1]
    latency_rounds: int = 2  # measurements of each architecture, of which the lowest counts [1, 10000]
    latency_archs: int = 400  # architectures that are measured for the predictor [2, 1000000]
    # search
    strategy: Literal["evolution", "random", "fast"] = "evolution"  # Alg. 2, random draws, or the rule of Sec. 4.4
    population: int = 25  # architectures of a generation, S of Alg. 2 [1, 1000000]
    generations: int = 4  # T of Alg. 2, with the first one [>= 1]
    winners: int | None = None  # architectures trained further; default: 3, Sec. 4.1, but 1 of --strategy fast [>= 1]


MUTATION = EXPLORATION = 0.5  # p_m and p_e of Alg. 2
DRAWS = 10_000  # draws in a row without a legal architecture that end a generation of Alg. 2
WIDTH_STEP = 4  # between choices of d^m and of d^f, Table B.1
MASK_RATE = 0.15  # share of the tokens predicted, BERT's
CLIP = 1.0  # largest norm of the gradient. D21: the released code first clips each parameter to it

PRESETS = {
    # D12: so short a pre-training is not seen in the paper's proxy tasks
    "demo": {"vocab_size": 2000, "largest": "4-96-384-6-96", "smallest": "1-32-32-1-48", "dropout": 0.0,
             "init_std": 0.07, "accumulate": 2, "length": 48, "finetune_length": 96, "batch": 32, "lr": 3e-3,
             "steps": 600, "further_steps": 300, "eval_every": 50, "save_every": 100, "tasks": "MLM-saved,SST-2",
             "finetune_epochs": 2, "finetune_lr": 1e-3, "finetune_batch": 32, "reference": "8-96-384-6-96",
             "population": 8, "generations": 3, "latency_archs": 120,
             "finetune": {"finetune_length": 128}},
    "base": {},
    "dry_run": {"steps": 2, "further_steps": 2, "population": 2, "generations": 2, "winners": 1, "runs": 1,
                "latency_archs": 20, "latency_rounds": 1, "finetune_epochs": 1, "finetune_batch": 16,
                "train_rows": 32},
}

# --- search space ---------


@dataclasses.dataclass(frozen=True)
class Arch:
    """An architecture, printed as in Table 4: 5-564-1054-8-512. In HAT (Table 3) the last three are tuples."""
    layers: int  # l^t
    hidden: int  # d^m|o
    ffn: object  # d^f
    heads: object  # h
    qkv: object  # d^q|k|v

    def shape(self, layer):
        """(d^f, h, d^q|k|v) of a layer."""
        return tuple(value[layer] if isinstance(value, tuple) else value for value in (self.ffn, self.heads, self.qkv))

    @property
    def genes(self):
        """{variable of the search space: choice}."""
        return {"layers": self.layers, "hidden": self.hidden, "ffn": self.ffn, "attention": (self.heads, self.qkv)}

    def __str__(self):
        return "-".join(map(str, dataclasses.astuple(self)))


ARCH = re.compile(r"[1-9]\d*(-[1-9]\d*){4}")


def parse_arch(text):
    """The Arch of its text, any sizes that the heads divide; ValueError says what is wrong."""
    if not ARCH.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is no architecture; write layers-hidden-ffn-heads-qkv, such as 5-564-1054-8-512")
    arch = Arch(*map(int, text.split("-")))
    if arch.qkv % arch.heads:
        raise ValueError(f"{text!r}: {arch.heads} heads do not divide the query/key/value width {arch.qkv}")
    return arch


VARIANTS = {  # Table 3: (identical layers, sub-matrix extraction, effective batch-wise training)
    "hat": (False, False, False), "ils": (True, False, False), "sme": (True, True, False), "ebl": (True, True, True)}


def search_space(cfg):
    """Table B.1: {variable: its choices}; ValueError where --smallest and --largest leave nothing.

    "attention" pairs heads with d^q|k|v: whole heads in pre-training, all heads with less of each in distillation,
    without SME (Table 3) every number of heads that divides the full width. HAT trains layers of different shapes too;
    a search takes identical ones alone (Sec. 3.3).
    """
    low, high = parse_arch(cfg.smallest), parse_arch(cfg.largest)
    for name in ("layers", "hidden", "ffn", "heads" if cfg.setting == "mlm" else "qkv"):
        if getattr(low, name) > getattr(high, name):
            raise ValueError(f"--smallest {low}: its {name} is more than the SuperPLM's, {high}")
    if cfg.setting == "distill" and low.qkv % high.heads:
        raise ValueError(f"--smallest {low}: its qkv must be a multiple of the {high.heads} heads of {high}")
    attention = ([(heads, heads * high.qkv // high.heads) for heads in range(low.heads, high.heads + 1)]
                 if cfg.setting == "mlm" else [(high.heads, qkv) for qkv in range(low.qkv, high.qkv + 1, high.heads)])
    if not VARIANTS[cfg.variant][1]:
        attention = list(dict.fromkeys((heads, high.qkv) for heads, _ in attention if high.qkv % heads == 0))
    return {"layers": range(low.layers, high.layers + 1), "hidden": range(low.hidden, high.hidden + 1, WIDTH_STEP),
            "ffn": range(low.ffn, high.ffn + 1, WIDTH_STEP), "attention": attention}


def make_arch(genes):
    """The inverse of Arch.genes."""
    return Arch(genes["layers"], genes["hidden"], genes["ffn"], *genes["attention"])


def smallest_arch(space):
    """The smallest architecture, and so the fastest."""
    return make_arch({name: choices[0] for name, choices in space.items()})


def sample_arch(space, rng, identical=True):
    """Every variable uniformly and independently; identical=False draws ffn and attention anew for each layer (HAT)."""
    genes = {name: rng.choice(choices) for name, choices in space.items()}
    if identical:
        return make_arch(genes)
    ffn, attention = ([rng.choice(space[name]) for _ in range(genes["layers"])] for name in ("ffn", "attention"))
    return Arch(genes["layers"], genes["hidden"], tuple(ffn), *map(tuple, zip(*attention)))


def flops(arch, tokens=128):
    """Operations of encoder and pooler for one sequence, in matrix products, 2 a multiply-add."""
    count = arch.hidden ** 2  # pooler
    for ffn, _, qkv in map(arch.shape, range(arch.layers)):
        count += tokens * (4 * arch.hidden * qkv + 2 * arch.hidden * ffn) + 2 * tokens * tokens * qkv
    return 2 * count

# --- model ----------------


class Layer(nn.Module):
    """A Transformer layer, Eq. 1 to 3. (B, T, H) -> (B, T, H). Heads are an axis of the attention weights."""

    def __init__(self, hidden, ffn, heads, qkv, dropout):
        super().__init__()
        D = qkv // heads
        self.qkv, self.qkv_bias = nn.Parameter(torch.empty(3, heads, D, hidden)), nn.Parameter(torch.zeros(3, heads, D))
        self.output, self.output_bias = nn.Parameter(torch.empty(hidden, heads, D)), nn.Parameter(torch.zeros(hidden))
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.expand, self.shrink = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def project(self, x, weight, bias):
        """Query, key and value, or some of them: (B, T, H) -> (1 to 3, B, N, T, D)."""
        return F.linear(x, weight.flatten(0, 2), bias.flatten()).unflatten(-1, bias.shape).permute(2, 0, 3, 1, 4)

    def forward(self, x, mask, places=None, with_scores=False):
        """mask: (B, 1, 1, T) True at real tokens, None: all are. places: (B, I) what is computed, None: everything.
        with_scores: returns what goes into the softmax too, unmasked (B, N, T, T)."""
        if places is None:
            query, key, value = self.project(x, self.qkv, self.qkv_bias)  # (B, N, T, D)
        else:  # the gradient of a split is as large as what is split, that of three slices three times as large
            first, others = zip(self.qkv.split((1, 2)), self.qkv_bias.split((1, 2)))
            key, value = self.project(x, *others)
            x = x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))  # (B, I, H)
            query, = self.project(x, *first)  # (B, N, I, D)
        rate = self.dropout.p if self.training else 0.0
        if with_scores:
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, N, T, T)
            weights = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)
            mixed = F.dropout(weights, rate) @ value  # Eq. 1
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, mask, rate)  # Eq. 1
        # Eq. 1: each head by its W^o, and their sum; (B, N, T, D) -> (B, T, Q) -> (B, T, H)
        mixed = F.linear(mixed.transpose(1, 2).flatten(2), self.output.flatten(1), self.output_bias)
        x = self.attention_norm(x + self.dropout(mixed))  # Eq. 2
        # Eq. 3; D1: it prints the ReLU of the generic Transformer, BERT has GELU
        x = self.ffn_norm(x + self.dropout(self.shrink(F.gelu(self.expand(x)))))
        return (x, scores) if with_scores else x


class Encoder(nn.Module):
    """BERT without its pre-training heads. ids, segments (B, T), lengths (B,) -> (B, T, H). embedding: the width E of
    the embeddings where it is not H, as in small ELECTRA teachers; such a model is not cut."""

    def __init__(self, arch, vocab_size, dropout=0.0, positions=512, embedding=None):
        super().__init__()
        self.arch, E = arch, embedding or arch.hidden
        self.words, self.positions, self.segments = (
            nn.Embedding(vocab_size, E), nn.Embedding(positions, E), nn.Embedding(2, E))
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.project = nn.Linear(E, arch.hidden) if E != arch.hidden else None
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(arch.hidden, *arch.shape(layer), dropout) for layer in range(arch.layers))
        self.pooler = nn.Linear(arch.hidden, arch.hidden)
        self.apply(init_weights)

    def forward(self, ids, segments, lengths=None, places=None, with_scores=False):
        """lengths: real tokens of each row; None: all are. places: (B, I) whose states are wanted, None: all.
        with_scores: returns the last layer's raw attention scores (B, N, T, T) too."""
        T, mask = ids.shape[1], None
        if lengths is not None:
            # (B, 1, 1, T); an empty row sees its first piece: a softmax over nothing would be no number
            mask = (torch.arange(T, device=ids.device) < lengths.clamp(min=1)[:, None])[:, None, None]
        x = self.words(ids) + self.positions.weight[:T] + self.segments(segments)  # (B, T, E)
        x = self.dropout(self.norm(x))
        x = x if self.project is None else self.project(x)  # (B, T, H)
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        return self.layers[-1](x, mask, places, with_scores)

    def pool(self, x):
        """(B, T, H) -> (B, H), what classifiers read."""
        return torch.tanh(self.pooler(x[:, 0]))


def init_weights(module):
    """BERT's initialisation. D17: normal, not truncated at two deviations; the paper does not speak of it."""
    for name, value in module.named_parameters(recurse=False):
        if "bias" in name:
            nn.init.zeros_(value)
        elif not isinstance(module, nn.LayerNorm):
            nn.init.normal_(value, std=0.02)


class LanguageModel(nn.Module):
    """Encoder with the masked-language-model head or, for distillation, a projection to the teacher's width W."""

    def __init__(self, arch, vocab_size, dropout=0.0, fit=0, positions=512):
        super().__init__()
        self.encoder = Encoder(arch, vocab_size, dropout, positions)
        if fit:
            self.fit = nn.Linear(arch.hidden, fit)
            init_weights(self.fit)
        else:
            self.transform = nn.Linear(arch.hidden, arch.hidden)
            self.transform_norm = nn.LayerNorm(arch.hidden, eps=1e-12)
            self.decoder_bias = nn.Parameter(torch.zeros(vocab_size))
            init_weights(self.transform)

    def forward(self, ids, segments, lengths, places):
        """MLM logits (B, I, V) at places (B, I)."""
        x = self.encoder(ids, segments, lengths, places)  # (B, I, H)
        x = self.transform_norm(F.gelu(self.transform(x)))
        return F.linear(x, self.encoder.words.weight, self.decoder_bias)  # (B, I, V)

    def student(self, ids, segments, lengths):
        """The last layer's states (B, T, W) and raw attention scores (B, N, T, T)."""
        x, scores = self.encoder(ids, segments, lengths, with_scores=True)
        return self.fit(x), scores


class TaskModel(nn.Module):
    """Encoder with a linear head. A batch {"ids", "segments" (B, T), "lengths" (B,) unless all are full, ...}
    -> logits (B, outputs), or of spans (B, T, 2). One output is a regression."""

    def __init__(self, encoder, outputs, spans=False):
        super().__init__()
        self.encoder = encoder
        self.spans = spans
        self.dropout = nn.Dropout(encoder.dropout.p)
        self.head = nn.Linear(encoder.arch.hidden, outputs)
        init_weights(self.head)

    def forward(self, batch):
        ids = batch["ids"]
        inputs = ids, batch["segments"], batch.get("lengths")
        if self.spans:
            return self.head(self.dropout(self.encoder(*inputs)))  # (B, T, 2)
        cls = self.encoder(*inputs, torch.zeros_like(ids[:, :1]))  # (B, 1, H), the state of [CLS]
        return self.head(self.dropout(self.encoder.pool(cls)))

    def loss(self, batch):
        """Cross-entropy; of a regression the squared error; of spans the mean of start and end."""
        logits = self(batch).float()
        if self.spans:
            start, end = logits.unbind(-1)  # 2 x (B, T)
            return (F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])) / 2
        if logits.shape[1] == 1:
            return F.mse_loss(logits[:, 0], batch["labels"])
        return F.cross_entropy(logits, batch["labels"])


def parameters(arch, vocab_size, positions=512):
    """{part: parameters} of an encoder."""
    with torch.device("meta"):
        encoder = Encoder(arch, vocab_size, positions=positions)
    def count(module):
        return sum(value.numel() for value in module.parameters())
    layers, pooler = count(encoder.layers), count(encoder.pooler)
    return {"embeddings": count(encoder) - layers - pooler, "layers": layers, "pooler": pooler}

# --- supernet -------------


def draw_archs(cfg, step, shard):
    """Alg. 1, line 7: architectures of the M sub-models of sub-batch `shard` in update `step`; without EBL one of a
    single sub-model for the whole batch."""
    identical, _, batch_wise = VARIANTS[cfg.variant]
    rng = random.Random(f"{cfg.seed} sub-models {step} {shard if batch_wise else 0}")
    space = search_space(cfg)
    return [sample_arch(space, rng, identical) for _ in range(cfg.samples if batch_wise else 1)]


def why_outside(arch, top, variant="ebl"):
    """None where `arch` can be cut out of `top`, which was trained as this row of Table 3, else the reason in words."""
    for ffn, heads, qkv in map(arch.shape, range(arch.layers)):
        for name, mine, most in (("layers", arch.layers, top.layers), ("hidden", arch.hidden, top.hidden),
                                 ("ffn", ffn, top.ffn)):
            if mine > most:
                return f"{name} {mine} of {arch} is more than the {most} of {top}"
        if not VARIANTS[variant][1]:
            if qkv != top.qkv:
                return f"without sub-matrix extraction (--variant {variant}) all of qkv {top.qkv} is used, not {qkv}"
        elif heads > top.heads or qkv // heads > top.qkv // top.heads:
            return f"{heads} heads of {qkv // heads} of {arch} are not within {top.heads} of {top.qkv // top.heads}"
    return None


AXES = {  # by which size each axis is cut: H hidden, F ffn, N heads, D head width, * not at all; a bias has the first
    "qkv": "*NDH", "qkv_bias": "*ND", "output": "HND", "expand": "FH", "shrink": "HF", "pooler": "HH", "fit": "*H",
    "words": "*H", "positions": "*H", "segments": "*H", "transform": "HH", "decoder_bias": "*"}  # all others: "H"


def leading(weight, axes, sizes):
    """The leading part of every axis of a weight (Sec. 3.4, "bottom-left" there), as a slice that autograd follows.

    Attention keeps its first heads, and the leading part of each: Figure 3 (b) has fewer heads of full width, (c) all
    heads with less of each. Without sub-matrix extraction (HAT and ILS of Table 3) the full d^q|k|v stays in use, and
    its rows are dealt out to another number of heads.
    """
    if "N" in axes and weight.shape[1] * weight.shape[2] == sizes["N"] * sizes["D"]:
        weight = weight.flatten(1, 2).unflatten(1, (sizes["N"], sizes["D"]))
    return weight[tuple(slice(sizes.get(axis)) for axis in axes[:weight.dim()])]


def part_of(module, name, arch, layer=0):
    """A copy of a module, `name` in layer `layer`, with slices of its weights: the part that `arch` uses."""
    ffn, heads, qkv = arch.shape(layer)
    sizes, part = {"H": arch.hidden, "F": ffn, "N": heads, "D": qkv // heads}, copy.copy(module)
    # slices are no nn.Parameters, which assigning to a module's attributes would ask for
    part._parameters = {key: leading(value, AXES.get(name if key in ("weight", "bias") else key, "H"), sizes)
                        for key, value in module._parameters.items()}
    part._modules = {}
    for key, child in module._modules.items():
        number = int(key) if name == "layers" else layer
        if number < arch.layers:  # the first l^t layers, Sec. 3.4
            part._modules[key] = child and part_of(child, key, arch, number)
    if isinstance(part, nn.LayerNorm):
        part.normalized_shape = part.weight.shape
    return part


def sub_model(model, arch, variant="ebl"):
    """The sub-model `arch` of a LanguageModel, which trains the part of the whole that it is cut from. It holds for one
    forward and backward pass; ValueError where `arch` is not within the model."""
    if reason := why_outside(arch, model.encoder.arch, variant):
        raise ValueError(reason)
    sub = part_of(model, "", arch)
    sub.encoder.arch = arch
    return sub


def extract(model, arch, variant="ebl"):
    """A sub-model with weights of its own."""
    alone = sub_model(model, arch, variant)
    for module in alone.modules():
        module._parameters = {key: nn.Parameter(value.detach().clone()) for key, value in module._parameters.items()}
    return alone


def make_optimizer(model, weight_decay):
    """AdamW with BERT's eps, no decay of biases and LayerNorms. The pooler, which no LanguageModel reads, stays.

    D16: the paper names no optimizer; the released code's, BERT's, has no bias correction, PyTorch's AdamW has it.
    D6: entries that no sub-model of an update used decay, and move on by their moments, as in the released code;
    the paper does not say.
    """
    named = [(name, value) for name, value in model.named_parameters()
             if isinstance(model, TaskModel) or "pooler" not in name]
    groups = [{"params": [value for name, value in named if is_matrix(name) == decayed],
               "weight_decay": weight_decay * decayed} for decayed in (True, False)]
    return torch.optim.AdamW(groups, eps=1e-6, fused=True)


def is_matrix(name):
    return "bias" not in name and "norm" not in name

# --- search ---------------


def latency_clock(cfg):
    """The kind of seconds that are measured. D7: of a single CPU thread its CPU seconds, which other processes do not
    lengthen; the paper speaks of inference time, and its code reads the wall clock."""
    return "CPU" if (cfg.latency_device, cfg.latency_threads) == ("cpu", 1) else "wall"


def time_pass(forward, cfg):
    """Milliseconds of forward(ids (B, T)) on the target device: the mean of the middle five of nine
    passes, after two passes that warm up. D20: the released code makes ten passes, drops the first
    and takes the mean of all others; the paper does not say."""
    device, threads = torch.device(cfg.latency_device), torch.get_num_threads()
    ids = torch.arange(cfg.latency_batch * cfg.latency_length, device=device).view(cfg.latency_batch, -1) % 64
    clock = time.process_time if latency_clock(cfg) == "CPU" else time.perf_counter
    torch.set_num_threads(cfg.latency_threads)
    times = []
    for _ in range(2 + 9):
        began = clock()
        forward(ids)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1000 * (clock() - began))
    torch.set_num_threads(threads)
    if not sum(times):
        raise RuntimeError("the clock stands still: nothing can be timed")
    return statistics.fmean(sorted(times[2:])[2:-2])


@torch.no_grad()
def time_model(arch, cfg):
    """Milliseconds of encoder and pooler on the target; the values of weights and the vocabulary do not matter."""
    with torch.device("meta"):
        encoder = Encoder(arch, 64, positions=max(512, cfg.latency_length))
    encoder = encoder.to_empty(device=cfg.latency_device).eval()
    for value in encoder.parameters():
        value.uniform_(-0.05, 0.05)
    return time_pass(lambda ids: encoder.pool(encoder(ids, torch.zeros_like(ids))), cfg)


class Predictor:
    """Lat(.) of Eq. 4: milliseconds of architectures with identical layers, learnt from measurements.

    D5: hundreds where the paper has 10k, and least squares over a Transformer's costs where the paper has a
    feed-forward network (tests/claims compares them).
    """

    def __init__(self, tokens, weights=None):
        self.tokens, self.weights = tokens, weights

    def terms(self, archs):
        """(n, 11) costs of a token. Of each layer: projections, attention, feed-forward, softmax, LayerNorm, GELU,
        copies, calls; once: embeddings, pooler, start."""
        return torch.tensor([[l * d * q, l * self.tokens * q, l * d * f, l * h * self.tokens, l * d, l * f, l * q, l, d,
                              d * d / self.tokens, 1] for l, d, f, h, q in map(dataclasses.astuple, archs)]).double()

    def __call__(self, archs):
        """[milliseconds] of architectures."""
        return (self.terms(archs) @ self.weights).tolist()

    def fit(self, archs, milliseconds):
        """Learn weights, none negative, by least squares of the relative errors. Returns itself."""
        terms = self.terms(archs)
        scale, kept = terms.abs().amax(0), torch.ones(terms.shape[1], dtype=torch.bool)
        rows = terms / scale / torch.tensor(milliseconds).double()[:, None]
        while True:
            chosen = rows[:, kept]
            ridge = 1e-3 * torch.diag(chosen.norm(dim=0))  # similar terms stay alike
            goal = torch.cat([torch.ones(len(rows)), torch.zeros(len(ridge))]).double()  # rows @ weights = 1 is exact
            weights = torch.zeros(len(kept), dtype=torch.double)
            weights[kept] = torch.linalg.lstsq(torch.cat([chosen, ridge]), goal[:, None]).solution[:, 0]
            if not (weights < 0).any():
                break
            kept &= weights > weights.min()  # again without the most negative one
        # the last bits of a fit vary from run to run, and a search is to be the same
        self.weights = torch.tensor([float(f"{weight:.9g}") for weight in (weights / scale).tolist()]).double()
        return self


def mutate(arch, space, rng):
    """Mut() of Alg. 2, which the paper does not give (D2): each variable moves with chance 1/2, and at least one does,
    to a choice that is at most a tenth of its range away. (p_m rules whether an architecture mutates at all.)"""
    genes = arch.genes
    moving = [name for name in space if rng.random() < 0.5] or [rng.choice(list(space))]
    for name in moving:
        choices = list(space[name])
        place, reach = choices.index(genes[name]), max(1, len(choices) // 10)
        near = choices[max(0, place - reach):place] + choices[place + 1:place + reach + 1]
        genes[name] = rng.choice(near or choices)
    return make_arch(genes)


def draw_within(space, rng, predict, limit, seen):
    """Random architectures within the limit that are not in `seen` (D3). Draws and predicts
    DRAWS / 10 at a time; ends after DRAWS in a row without one."""
    misses = 0
    while misses < DRAWS:
        archs = [sample_arch(space, rng) for _ in range(DRAWS // 10)]
        misses += len(archs)
        for arch, milliseconds in zip(archs, predict(archs)):
            if milliseconds <= limit and str(arch) not in seen:
                misses = 0
                yield arch


def fast_candidates(space, predict, limit):
    """Sec. 4.4: architectures by the rule 1.6 d^m <= d^f <= 1.9 d^m, 0.7 d^m <= d^q|k|v <= d^m, one for each depth.

    D11: the one predicted slowest within 95% of the limit, so that most meet it when measured.
    """
    found = []
    for layers in space["layers"]:
        archs = [Arch(layers, hidden, ffn, heads, qkv)
                 for hidden in space["hidden"] for heads, qkv in space["attention"]
                 if 0.7 * hidden <= qkv <= hidden for ffn in space["ffn"] if 1.6 * hidden <= ffn <= 1.9 * hidden]
        times = predict(archs) if archs else []
        within = [(time, index) for index, time in enumerate(times) if time <= 0.95 * limit]
        found += [archs[max(within)[1]]] if within else []
    return found


def roulette(lines, rng):
    """One line of the history; its chance: what its score is above the worst, plus a hundredth of the range (D2)."""
    scores = [line["score"] for line in lines]
    return rng.choices(lines, [score - min(scores) + 0.01 * (max(scores) - min(scores)) + 1e-9 for score in scores])[0]


def propose(history, number, cfg, predict, limit):
    """Generation `number` (from 0) of Alg. 2: [(parent's id or None, arch)].

    D3: as printed, Alg. 2 can draw an architecture twice, or one that is too slow; here all are new and predicted
    within the limit, fewer than S where DRAWS draws in a row find no more.
    history: dicts of "id", "round", "parent" (an id or None), "arch" (text), "score" and what
    judge gives; id, round, arch, score and diverged are read.
    """
    rng, space = random.Random(f"{cfg.seed} generation {number}"), search_space(cfg)
    if cfg.strategy == "fast":
        return [(None, arch) for arch in fast_candidates(space, predict, limit)] if number == 0 else []
    last = [line for line in history if line["round"] == number - 1 and not line["diverged"]]
    seen, proposals = {line["arch"] for line in history}, []

    def append(parent, arch):
        legal = str(arch) not in seen and predict([arch])[0] <= limit
        if legal and len(proposals) < cfg.population:
            seen.add(str(arch))
            proposals.append((parent, arch))  # Alg. 2, line 9

    fresh = draw_within(space, rng, predict, limit, seen)
    count = misses = 0
    while len(proposals) < cfg.population and misses < DRAWS:  # Alg. 2, line 5
        misses = misses + 1 if len(proposals) == count else 0
        count = len(proposals)
        explores = not last or cfg.strategy == "random"  # Alg. 2, line 2
        if not explores:
            parent = roulette(last, rng)  # Alg. 2, line 6
            if rng.random() < MUTATION:  # Alg. 2, line 7
                append(parent["id"], mutate(parse_arch(parent["arch"]), space, rng))
            explores = rng.random() < EXPLORATION  # Alg. 2, line 8
        if explores and (arch := next(fresh, None)):
            append(None, arch)
    append(None, smallest_arch(space))  # if the draws have missed it; always within the limit
    return proposals

# --- objective ------------


def mask_tokens(ids, tokenizer, generator):
    """BERT's masking of ids (B, T): MASK_RATE of each row's text is predicted; 80% of it becomes [MASK], 10% a random
    piece, 10% stays. Returns the changed ids, places and labels (B, I); -100 marks what a shorter row leaves over.
    """
    B, T = ids.shape
    text = (ids != tokenizer.pad_id) & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)
    most = max(1, round(MASK_RATE * T))
    chance, places = torch.where(  # (B, I); with 2.0 special pieces come last and are never chosen
        text, torch.rand(B, T, generator=generator), 2.0).topk(most, dim=1, largest=False)
    wanted = (MASK_RATE * text.sum(1, keepdim=True)).round().clamp(1, most)
    chosen = (torch.arange(most) < wanted) & (chance < 1)  # (B, I)
    originals = ids.gather(1, places)
    kind = torch.rand(B, most, generator=generator)
    random_piece = torch.randint(tokenizer.vocab_size, (B, most), generator=generator)
    changed = torch.where(kind < 0.8, tokenizer.mask_id, torch.where(kind < 0.9, random_piece, originals))
    return (ids.scatter(1, places, torch.where(chosen, changed, originals)), places,
            originals.masked_fill(~chosen, -100))


def masked_loss(model, batch):
    """batch: ids, segments, lengths, places, labels."""
    *inputs, labels = batch
    logits = model(*inputs)  # (B, I, V)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def distillation_loss(student, teacher, lengths):
    """The first stage of TinyBERT on the last layer alone (Sec. 4.1): mean squared differences of the raw attention
    scores (B, N, T, T) and of the states (B, T, W), equally weighted. lengths: (B,), None: no padding. D9:
    padding is no part of the means, because it depends on the batching."""
    B, T, _ = student[0].shape
    places = torch.arange(T, device=student[0].device).expand(B, -1)
    real = places < (T if lengths is None else lengths[:, None])  # (B, T)
    pairs = (real[:, None, :, None] & real[:, None, None, :]).expand_as(student[1])  # (B, N, T, T)
    states, scores = ((mine.float() - theirs.float()).square() for mine, theirs in zip(student, teacher))
    return (torch.where(pairs, scores, 0).sum() / pairs.sum()
            + torch.where(real[..., None], states, 0).sum() / (real.sum() * states.shape[-1]))

# --- training -------------

if (Path(__file__).parent / "common").is_dir():  # a copy of this file alone builds its model and steps its searcher
    from common import glue
    from common.cli import Diverged, Stop, UserError, check_memory, run, start
    from common.distributed import (
        Pace, ShardSum, autocast, launch, layer_activations, move, on_main, per_second,
        pick_device, prefetch, print_device_use, progress, reduce_mean, say, seed_everything,
        seed_of, send, set_shards, shard_range, share_out, stop_requested, training_cost)
    from common.files import load_file, read_json, read_result, save_file, write_atomic, write_result
    from common.runs import Checkpoint, environment
    from common.finetune import (GlueTask, Recipe, answer_file, fine_tune, finetune_job, open_file, open_task,
                                 parse_tasks, predict, print_summary, run_jobs, summarise)
    from common.tokenization import load_tokenizer
    from common.weights import keep_model, take_settings
    from data import corpus, hf_models, latency_log
    from data.inputs import Data, check_vocabulary, open_run, words_after_training


def schedule(step, steps, warmup):
    """Share of the peak learning rate at a step: linear up, then linear down to 0."""
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else (steps - step) / max(1, steps - rise)


def text_batches(text, data, cfg, phase, position, rows, count):
    """`count` batches of `rows` examples, from `position` on in the phase's own endless stream from a Corpus: ids,
    segments (B, T), lengths (B,) or None where no row is padded, and places, labels (B, I) of what is masked. D9:
    what a teacher reads is not masked.

    D8: rows are [CLS] A [SEP] B [SEP] with B the text that follows A (one long sentence: [CLS] A [SEP]), so that pairs
    meet a trained segment embedding in fine-tuning; a tenth are shorter, as in BERT. There is no next-sentence loss.
    """
    cut = text.segments(position, count * rows, cfg.length - 3, seed_of(cfg.seed, phase))
    ids, segments, lengths = corpus.join(cut.first, cut.first_length, cut.second, cut.second_length, data.tokenizer)
    for first in range(0, count * rows, rows):
        part = slice(first, first + rows)
        batch = [ids[part], segments[part], None if (lengths[part] == cfg.length).all() else lengths[part]]
        if not data.teacher:
            generator = torch.Generator().manual_seed(seed_of(cfg.seed, phase, "mask", position + first))
            batch[0], *masked = mask_tokens(batch[0], data.tokenizer, generator)
            batch += masked
        yield batch


def make_objective(data, cfg, batch):
    """loss(model) on a batch. The teacher is asked once for all sub-models."""
    batch = send(batch, data.device)
    if data.teacher:
        with torch.no_grad(), autocast(cfg.dtype, data.device):
            target = data.teacher(*batch, with_scores=True)

    def loss(model):
        with autocast(cfg.dtype, data.device):
            return (distillation_loss(model.student(*batch), target, batch[2]) if data.teacher
                    else masked_loss(model, batch))

    return loss


@torch.no_grad()
def held_out_losses(model, data, cfg, rows=256, most=256):
    """[the objective on each batch of at most `most` rows, of `rows` held-out rows], the same rows for all models."""
    model.eval()
    size = min(most, cfg.batch)
    batches = text_batches(data.dev, data, cfg, "held out", 0, size, math.ceil(rows / size))
    losses = [make_objective(data, cfg, batch)(model) for batch in batches]
    model.train()
    return torch.stack(losses).tolist()  # here alone the host waits for a GPU


def score_mlm(model, data, cfg):
    """The task "MLM-saved": {"main": the share of a guesser's loss, ln V, that the model saves on held-out text,
    "loss", "standard_error" of main over batches}. Raises Diverged. D12: minutes of pre-training show in it, not in
    SQuAD."""
    losses, guessed = held_out_losses(model.to(data.device), data, cfg, 1024, 64), math.log(data.tokenizer.vocab_size)
    loss = statistics.fmean(losses)
    if not math.isfinite(loss):
        raise Diverged("MLM-saved: the loss is no number")
    return {"main": 1 - loss / guessed, "loss": loss,
            "standard_error": statistics.stdev(losses) / len(losses) ** 0.5 / guessed}


def update(model, optimizer, batches, count, data, cfg, ranks, *key):
    """One update of Alg. 1; (this process's share of the loss, the norm of the gradient).

    batches: of this process, (number of the sub-batch, the sub-batch, architectures of its sub-models); without any the
    model itself is trained, as usual. count: sub-batches of all processes. key: dropout is drawn from it and the seed.
    """
    trained = [value for group in optimizer.param_groups for value in group["params"]]
    total, losses = ShardSum(ranks), []
    for shard, batch, archs in batches:  # Alg. 1, lines 3, 4 and 8
        loss_of = make_objective(data, cfg, batch)
        parts = [sub_model(model, arch, cfg.variant) for arch in archs] or [model]
        optimizer.zero_grad()  # Alg. 1, line 5
        for sample, part in enumerate(parts):  # Alg. 1, line 6
            seed_everything(cfg.seed, *key, shard, sample)
            loss = loss_of(part) / (count * len(parts))
            loss.backward()  # Alg. 1, line 9
            losses.append(loss.detach())
        total.add([torch.zeros_like(value) if value.grad is None else value.grad for value in trained])
    for value, gradient in zip(trained, total.total().split([value.numel() for value in trained])):
        value.grad = gradient.view_as(value)
    norm = nn.utils.clip_grad_norm_(trained, CLIP)
    optimizer.step()  # Alg. 1, line 11
    optimizer.zero_grad()
    return sum(losses), norm


def pretrain(model, data, cfg, run, folder, steps, warmup, draw=None):
    """Train the model in place, or load what an earlier call left in `folder`: [(step, held-out loss)]. Raises
    Diverged, and Stop after SIGTERM, with the state saved.

    draw(step, shard): the architectures that a sub-batch trains, Alg. 1; None: an ordinary training. The host waits for
    a GPU where it logs, looks and saves.
    """
    # FOLDER.pt, the state of a training that goes on; FOLDER/checkpoint.pt is the trained model
    ranks, going = run.ranks, folder.with_name(f"{folder.name}.pt")
    if (folder / "curve.json").exists():
        Checkpoint(going, ranks).remove()  # a kill may have come just before the end did
        model.load_state_dict(load_file(folder / "checkpoint.pt")["owned"]["model"])
        return read_result(folder / "curve.json")["curve"]
    folder.mkdir(parents=True, exist_ok=True)
    optimizer = make_optimizer(model.to(data.device).train(), cfg.weight_decay)
    checkpoint = Checkpoint(going, ranks, model=model, optimizer=optimizer)
    saved, phase = checkpoint.restore(), "superplm" if draw else "further"
    first, curve, pace = saved.get("step", 0), saved.get("curve", []), Pace(ranks, cfg.save_minutes)
    # masks depend on the number of micro-batches N, so it is a setting, not the number of processes
    N = cfg.accumulate
    shards = shard_range(ranks, N)
    rows = cfg.batch // N
    if cfg.compile and not draw:
        torch.compiler.reset()  # after eight networks torch would give up
        model.encoder.compile()
    bar, began = progress(ranks, steps, folder.name, first), time.perf_counter()
    text = prefetch(  # a thread makes the next step's batches
        list(text_batches(data.train, data, cfg, phase, (step * N + shards.start) * rows, rows, len(shards)))
        for step in range(first, steps))
    for step, batches in zip(range(first, steps), text):
        for group in optimizer.param_groups:
            group["lr"] = lr = cfg.lr * schedule(step, steps, warmup)
        drawn = [(shard, batch, draw(step, shard) if draw else []) for shard, batch in zip(shards, batches)]
        share, norm = update(model, optimizer, drawn, N, data, cfg, ranks, folder.name, step)
        bar.update(1)
        done, (stop, save, log) = step + 1, pace()
        look, save = done % cfg.eval_every == 0 or done == steps, save or stop or done % cfg.save_every == 0
        if look or log or save or done % 100 == 0:
            loss, = reduce_mean(ranks, ranks.size * share.item())
            speed = per_second((done - first) * cfg.batch * cfg.length, began)
            found = statistics.fmean(held_out_losses(model, data, cfg)) if look else 0.0
            curve += [[done, found]] if look else []
            if not math.isfinite(norm.item() + found):
                raise Diverged(f"{folder.name}: gradient norm {norm.item():.4g} at step {done}")
            run.log(folder.name, done, loss=loss, **({} if data.teacher else {"mlm_loss": loss}), lr=lr,
                    tokens_per_second=speed, dev={"loss": found} if look else {})
            bar.set_postfix(loss=f"{loss:.3f}", held_out=f"{curve[-1][1]:.3f}" if curve else "", tok_s=speed or "?")
            if cfg.dry_run:
                samples = cfg.samples if draw else 0
                print_device_use(ranks, speed, step_flops(cfg, model.encoder.arch, samples) / cfg.length)
        if save and done < steps:
            checkpoint.save(step=done, curve=curve)
        if stop:
            raise Stop
    bar.close()
    action, settings = "superplm" if draw else "further_train", dataclasses.replace(cfg, arch=str(model.encoder.arch))
    on_main(ranks, keep_model, folder, action, settings, data.tokenizer, model=model)  # what --init reads
    on_main(ranks, write_result, folder / "curve.json", {"curve": curve})  # last: it says that all is there
    checkpoint.remove()
    return curve


# Where a model starts.


def check_sizes(arch, vocab, place):
    """UserError, which names the place, where the weights exceed this machine's memory."""
    weights = arch.layers * arch.hidden * (4 * arch.qkv + 2 * arch.ffn) + (vocab + arch.hidden) * arch.hidden
    check_memory(place, arch.layers, weights)


def read_model(path, cfg, arch="", first="model"):
    """(folder, Arch, {our name: weight}) that hf_models.read_model finds."""
    folder, text, weights = hf_models.read_model(path, cfg, arch, first)
    whole = read_arch(text, folder / "config.json")
    check_sizes(whole, cfg.vocab_size, folder)
    return folder, whole, weights


def load_teacher(cfg, ranks, vocab, heads):
    """The Encoder of --teacher, frozen; UserError where a student with so many heads cannot follow it."""
    folder, arch, weights = read_model(cfg.teacher, cfg)
    words, positions = (weights.get(f"encoder.{name}.weight", torch.zeros(1, 1)) for name in ("words", "positions"))
    if arch.heads != heads:
        raise UserError(f"{folder}: the teacher has {arch.heads} heads and the student {heads}; attention is compared "
                        "head by head")
    teacher = Encoder(arch, vocab, 0.0, len(positions), words.shape[1])
    say(ranks, "teacher", hf_models.fill(nn.ModuleDict({"encoder": teacher}), weights, folder))
    if len(positions) < cfg.length:
        raise UserError(f"{folder}: its {len(positions)} positions are too few for --length {cfg.length}; take a "
                        "shorter --length, or a teacher with more")
    return teacher.to(ranks.device).eval().requires_grad_(False)


def start_model(arch, cfg, data, ranks, first="model"):
    """A LanguageModel of --init's weights, cut to `arch` ("": as they are), or of fresh ones; UserError
    where it does not fit."""
    fit, vocab = data.teacher.arch.hidden if data.teacher else 0, data.tokenizer.vocab_size
    if not cfg.init:
        seed_everything(cfg.seed, "weights", arch)
        model = LanguageModel(parse_arch(arch), vocab, cfg.dropout, fit)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.mul_(cfg.init_std / 0.02 if is_matrix(name) else 1)
        return model
    folder, whole, weights = read_model(cfg.init, cfg, arch, first)
    positions = len(weights.get("encoder.positions.weight", [0]))
    longest = max([cfg.length, *(task.recipe.length for task in data.tasks.values() if task)])
    variant = read_json(folder / "config.json", dict).get("settings", {}).get("variant", "ebl")
    reason = arch and why_outside(parse_arch(arch), whole, variant)
    if data.train and not data.teacher and "fit.weight" in weights:
        reason = "a distilled model has no masked-language-model head; use --setting distill or other tasks"
    if (data.train or data.tasks) and positions < longest:
        reason = (f"its {positions} positions are too few for rows of {longest} tokens; take a shorter --length or "
                  "--finetune_length, or a model with more")
    if reason:
        raise UserError(f"{folder}: {reason}")
    seed_everything(cfg.seed, "weights made anew")
    model = LanguageModel(whole, vocab, cfg.dropout, fit or len(weights.get("fit.weight", ())), positions)
    words = hf_models.fill(model, weights, folder)
    if data.train or data.tasks:  # an export says itself what it leaves out
        say(ranks, words)
    return extract(model, parse_arch(arch), variant) if arch not in ("", str(whole)) else model


# Fine-tuning.

TABLE_D1 = {  # task: (batch, learning rate, epochs, metric of Table 1); WNLI, which the paper leaves out, takes RTE's
    "SQuAD1.1": (16, 3e-5, 4, "f1"), "SST-2": (32, 2e-5, 4, "accuracy"), "MNLI": (32, 3e-5, 4, "accuracy"),
    "MRPC": (32, 2e-5, 10, "accuracy"), "CoLA": (32, 1e-5, 10, "matthews"), "QNLI": (32, 2e-5, 10, "accuracy"),
    "QQP": (32, 2e-5, 5, "accuracy"), "STS-B": (32, 3e-5, 10, "pearson+spearman"), "RTE": (32, 2e-5, 10, "accuracy"),
    "WNLI": (32, 2e-5, 10, "accuracy")}
GRID = [(lr, epochs) for lr in (1e-5, 2e-5, 3e-5) for epochs in (4, 5, 10)]  # Sec. 4.1, GLUE's tasks


def recipes():
    """D14: SQuAD's 384 tokens, the released code's, use positions that 128 left untrained."""
    return {"MLM-saved": Recipe(0.0, 1), **{
        name: Recipe(lr, batch, epochs, length=384 if name == "SQuAD1.1" else 128, main=metric)
        for name, (batch, lr, epochs, metric) in TABLE_D1.items()}}


def tuning(encoder, task, cfg, device, seed):
    """What fine_tune takes: a TaskModel with a copy of the encoder, optimizer, learning rate by step, key."""
    seed_everything(seed, "head", task.name)
    model = TaskModel(copy.deepcopy(encoder), task.outputs, task.kind == "span")
    model = move(model, device)
    optimizer = make_optimizer(model, cfg.weight_decay)

    def rate(step):
        return task.recipe.lr * schedule(step, task.steps, task.recipe.warmup)

    return model, optimizer, rate, (seed, "fine-tuning", task.name)


def proxy_score(model, name, data, cfg, run):
    """Metrics on dev of a copy of the model that is fine-tuned on a proxy task. Raises Diverged."""
    if name == "MLM-saved":
        return score_mlm(model, data, cfg)
    task = data.tasks[name]
    tuned, optimizer, rate, key = tuning(model.encoder, task, cfg, data.device, cfg.seed)
    job = f"{model.encoder.arch} {name}"
    state = fine_tune(tuned, task, optimizer, rate, cfg, data.device, key, run=run, job=job)
    if state["diverged"]:
        raise Diverged(state["diverged"])
    return task.score("dev", predict(tuned, task, "dev", cfg, data.device))


def train_task(model, task, setting, number, data, cfg, folder, run):
    """One run of a task from the model's encoder; `folder` keeps the model and its predictions."""
    if setting:
        task = copy.copy(task)
        task.recipe = dataclasses.replace(task.recipe, lr=setting[0], epochs=setting[1])
    tuned, optimizer, rate, key = tuning(model.encoder, task, cfg, data.device, cfg.seed + number)
    result, outputs = finetune_job(tuned, task, optimizer, rate, cfg, data.device, key, folder, run)
    if outputs:
        settings = dataclasses.replace(cfg, arch=str(model.encoder.arch), tasks=task.name)
        keep_model(folder, "finetune", settings, data.tokenizer, model=tuned)
    return {**result, "setting": setting}


def judge(model, data, cfg, run):
    """Perf(.) of Eq. 4: {score, error, scores, mlm_loss, constants, diverged, seconds}. D15: the
    score is the mean over data.tasks; the paper names its two proxy tasks (Sec. 3.5), not how they
    make one fitness. error: its standard error; mlm_loss: nats, where MLM-saved is a task;
    constants: the majority baseline of each task."""
    began = time.perf_counter()
    score = -1.0
    scores = {}
    errors = []
    diverged = False
    mlm_loss = None
    constants = {name: task.majority_baseline for name, task in data.tasks.items() if task}
    try:
        for name, task in data.tasks.items():
            found = proxy_score(model, name, data, cfg, run)
            scores[name] = found["main"]
            mlm_loss = mlm_loss if task else found["loss"]
            errors.append(task.standard_error(found["main"]) if task else found["standard_error"])
        score = statistics.fmean(scores.values())
    except Diverged:  # the worst score, and the search goes on
        diverged = True
    return {"score": score, "error": 0.0 if diverged else math.hypot(*errors) / len(errors),
            "scores": scores, "mlm_loss": mlm_loss, "constants": constants, "diverged": diverged,
            "seconds": round(time.perf_counter() - began, 3)}


def mlm_words(share, loss):
    """The score of MLM-saved in words."""
    return f"MLM loss {loss:.4f} nats per masked token ({100 * share:.2f}% below a uniform guess)"


def score_words(line):
    """The scores of a judged architecture in words."""
    if line["diverged"]:
        return "diverged"
    words = {name: f"{name} {100 * share:.2f}%" for name, share in line["scores"].items()}
    if "MLM-saved" in words:
        words["MLM-saved"] = mlm_words(line["scores"]["MLM-saved"], line["mlm_loss"])
    return ", ".join(words.values())


def ties(lines):
    """Architectures whose scores cannot be told from the best: less than twice the standard error of the difference
    below it, as if independent."""
    best = max(lines, key=lambda line: line["score"])
    return [line["arch"] for line in lines if line is not best
            and best["score"] - line["score"] < 2 * math.hypot(best["error"], line["error"])]


def table_1(tasks):
    """{"Score": mean of GLUE's eight tasks, "Avg.": of these and SQuAD's F1}, those whose tasks {name: what summarise
    returned} are all there."""
    nine = [name for name in TABLE_D1 if name != "WNLI"]
    return {column: statistics.mean(tasks[name]["median"] for name in names)
            for column, names in (("Score", nine[1:]), ("Avg.", nine)) if {*names} <= tasks.keys()}


def print_tuned(run, cfg):
    mlm = run.finished["mlm"]
    if mlm:
        say(run.ranks, mlm_words(mlm["main"], mlm["loss"]))
    for column, score in run.finished["averages"].items():
        say(run.ranks, f"{column} of Table 1: {100 * score:.2f}")
    print_summary(run, cfg)


def finetune(cfg, text):
    """Fine-tune --init's model on tasks, --runs times; TASK/ keeps the median run."""
    with launch(cfg.device, cfg.dtype) as ranks:
        run, data = open_data(cfg, "finetune", ranks, tasks=text)
        if run.finished:
            return print_tuned(run, cfg)
        model = start_model(cfg.arch, cfg, data, ranks)
        mlm = score_mlm(model, data, cfg) if "MLM-saved" in data.tasks else None
        jobs = {}
        for name in data.tasks:
            settings = GRID if cfg.grid and name in glue.TASKS else [()]
            for number, setting in itertools.product(range(cfg.runs), settings):
                if name != "MLM-saved":
                    jobs["-".join(map(str, (name, number, *setting)))] = name, number, setting

        def work(job, _):
            name, number, setting = jobs[job]
            folder = run.folder / "jobs" / job
            return train_task(model, data.tasks[name], setting, number, data, cfg, folder, run)

        names = {job: name for job, (name, *_) in jobs.items()}  # none starts from MNLI's model, as in the paper
        results = run_jobs(ranks, run.folder, names, work, from_mnli=())
        result = on_main(ranks, summarise, run.folder, results)
        result["averages"] = table_1(result["tasks"])
        result["mlm"] = mlm
        run.finish(result)
        print_tuned(run, cfg)


def answer(cfg, path):
    """Answer a file of the user's own with RUN/TASK of --init."""
    with launch(cfg.device, cfg.dtype) as ranks:
        task = open_file(path, cfg, load_tokenizer(cfg.tokenizer or cfg.init), recipes())
        _, arch, weights = read_model(cfg.init, cfg)
        words, positions = (len(weights[f"encoder.{name}.weight"]) for name in ("words", "positions"))
        model = TaskModel(Encoder(arch, words, 0.0, positions), task.outputs, task.kind == "span")
        model.load_state_dict(weights)
        outputs = predict(model.to(ranks.device).eval(), task, *task.splits, cfg, ranks.device)
        say(ranks, on_main(ranks, answer_file, path, cfg, task, outputs))


# The phases of --search.


def show_found(run, cfg):
    """What a whole search found, and how its model is tuned on a task."""
    found = run.finished
    say(run.ranks, f"{found['arch']}: {found['parameters']:,} parameters; {score_words(found)}")
    say(run.ranks, latency_words(found, cfg))
    task = next((name for name in found["scores"] if name != "MLM-saved"), "")
    action = ["--finetune", task] if task else ["--export", f"{run.folder}-exported"]
    run.ends(cfg, "best.json", *action, "--init", run.folder)


def latency_words(found, cfg):
    """What time_finalists measured of an architecture, in words."""
    low, high = found["speedup_range"]
    return (f"{found['arch']} takes {found['milliseconds']:.3g} ms; the limit of --speedup "
            f"{cfg.speedup} is {found['limit_milliseconds']:.3g} ms; {found['reference']} takes "
            f"{found['reference_milliseconds']:.3g} ms: {found['speedup']:.3g} times as fast "
            f"({low:.3g} to {high:.3g} in {found['rounds']} rounds)")


def show_trained(run, cfg):
    say(run.ranks, f"{run.finished['arch']}: held-out loss {run.finished['held_out']:.4f}")
    run.ends(cfg, "model/checkpoint.pt", *words_after_training(cfg, run.folder, f"{run.folder}-exported"))


def open_data(cfg, action, ranks, text=False, tasks=""):
    """(RunFolder, Data), opened: text to train on, tasks (MLM-saved reads text too). Of a finished run no Data.

    D10: the vocabulary is a SentencePiece model where the paper has WordPiece, unless a flag brings a vocab.txt.
    D13: of the documents 5%, 1,000 at most, are held out.
    """
    names = parse_tasks(tasks, recipes()) if tasks else []
    if "MLM-saved" in names and cfg.setting == "distill":
        raise UserError("--tasks MLM-saved: --setting distill trains no head for it; give others, as in --tasks SST-2")
    if action == "finetune":
        cfg.tasks = ",".join(names)  # a setting of the run
    text = text or "MLM-saved" in names
    needs = {"corpus": text, "tokenizer": text or names, "squad": "SQuAD1.1" in names,
             "glue": {*names} - {"SQuAD1.1", "MLM-saved"}}
    folders = [hf_models.model_folder(path) for path in (cfg.init, cfg.teacher) if path and needs["tokenizer"]]
    cfg.tokenizer = cfg.tokenizer or str((folders or [""])[0])
    run, data = open_run(cfg, action, ranks, *[name for name in needs if needs[name]], tasks=names)
    if run.finished:
        return run, None
    for folder in folders:
        check_vocabulary(folder, data.tokenizer)
    if text:
        updates = data.train.slots(cfg.length - 3) / cfg.batch  # a pass over the corpus
        cfg.steps = cfg.steps or math.ceil(5 * updates)
        scratch = action == "further_train" and not cfg.init
        cfg.further_steps = cfg.further_steps or math.ceil((10 if scratch else 5) * updates)
    run.settle(cfg)
    if text and cfg.setting == "distill":
        further = action == "further_train" and not cfg.arch
        student = read_model(cfg.init, cfg)[1] if further else parse_arch(cfg.arch or cfg.largest)
        data.teacher = load_teacher(cfg, ranks, data.tokenizer.vocab_size, student.heads)
    kinds = {} if action == "finetune" else dict.fromkeys(glue.TASKS, functools.partial(GlueTask, search=True))
    data.tasks = {name: None if name == "MLM-saved" else on_main(
        ranks, open_task, name, cfg, data.tokenizer, recipes(), kinds) for name in names}
    return run, data


def latency_setting(cfg):
    """What a measurement holds for, beside the architecture; it says nothing about other settings or machines."""
    here = environment(pick_device(cfg.latency_device))
    return {**{name: getattr(cfg, f"latency_{name}") for name in ("threads", "batch", "length")},
            **{name: here[name] for name in ("device", "hardware", "torch")}, "clock": latency_clock(cfg),
            **({"float32_products": here["float32_products"]} if cfg.latency_device != "cpu" else {})}


def time_together(archs, cfg, rounds=5):
    """{arch: [milliseconds of each round]}; a round measures all, so that drift meets all alike."""
    found = {arch: [] for arch in archs}
    for arch in [*found] * rounds:
        found[arch].append(time_model(arch, cfg))
        if stop_requested():
            raise Stop
    return found


def yardsticks(cfg):
    """What the limit is counted from: --reference, and --speedup where it is an architecture."""
    texts = dict.fromkeys((cfg.reference, cfg.speedup))
    return [parse_arch(text) for text in texts if ARCH.fullmatch(text)]


def limit_of(cfg, times):
    """T of Eq. 4: milliseconds that a model may take, where the yardsticks take {Arch: milliseconds}."""
    last = times[yardsticks(cfg)[-1]]
    return last if ARCH.fullmatch(cfg.speedup) else last / float(cfg.speedup)


def learn_latency(cfg, run):
    """(Predictor, limit in ms), learnt or as predictor.pt keeps them. UserError where nothing meets
    the limit."""
    path = run.folder / "predictor.pt"
    on_main(run.ranks, lambda: path.exists() or save_file(path, measure_and_learn(cfg, run.folder)))
    saved = load_file(path)
    say(run.ranks, f"latency, in {latency_clock(cfg)} time of {cfg.latency_batch} x "
                   f"{cfg.latency_length} tokens: {cfg.reference} takes "
                   f"{saved['reference']:.3g} ms; "
                   f"the limit of --speedup {cfg.speedup} is {saved['limit']:.3g} ms; "
                   f"the predictor's mean error is {100 * saved['error']:.1f}%")
    return Predictor(cfg.latency_length, saved["weights"]), saved["limit"]


def measure_and_learn(cfg, folder):
    """What predictor.pt keeps. The architectures measured are drawn from the space; what the limit follows from is
    measured more often."""
    space, top, rng = search_space(cfg), parse_arch(cfg.largest), random.Random(f"{cfg.seed} latency")
    smallest, here = smallest_arch(space), latency_setting(cfg)
    known = latency_log.read([cfg.init, folder], here, parse_arch)
    rounds = dict.fromkeys([*yardsticks(cfg), smallest], max(5, cfg.latency_rounds))
    for arch in known:
        if not why_outside(arch, top, cfg.variant):
            rounds.setdefault(arch, cfg.latency_rounds)
    while len(rounds) < min(cfg.latency_archs + 2, math.prod(map(len, space.values()))):
        rounds.setdefault(sample_arch(space, rng), cfg.latency_rounds)
    times = latency_log.measure(folder, here, known, rounds, lambda arch: time_model(arch, cfg))
    inside = [arch for arch in times if not why_outside(arch, top, cfg.variant)]
    predict = Predictor(cfg.latency_length).fit(inside, [times[arch] for arch in inside])
    unseen = inside[::5]  # the error is another fit's, on architectures that it has not seen
    seen = [arch for arch in inside if arch not in unseen] or unseen
    guesses = Predictor(cfg.latency_length).fit(seen, [times[arch] for arch in seen])(unseen)
    errors = [abs(guess / times[arch] - 1) for arch, guess in zip(unseen, guesses)]
    limit, fastest = limit_of(cfg, times), max(times[smallest], *predict([smallest]))
    if fastest > limit:
        raise UserError(f"--speedup {cfg.speedup}: nothing in the search space is so fast; the fastest, {smallest}, "
                        f"takes {fastest:.3g} ms here, and the limit is {limit:.3g} ms")
    return {"weights": predict.weights, "limit": limit, "error": statistics.fmean(errors),
            "reference": times[parse_arch(cfg.reference)]}


def evolve(superplm, predict, limit, data, cfg, run):
    """Alg. 2, or another strategy: the history."""
    history, folder, generations = [], run.folder / "candidates", 1 if cfg.strategy == "fast" else cfg.generations
    for number in range(generations):  # Alg. 2, line 3
        proposals = {str(len(history) + index): proposal
                     for index, proposal in enumerate(propose(history, number, cfg, predict, limit))}
        if cfg.strategy != "fast" and len(proposals) < cfg.population:
            say(run.ranks, f"generation {number + 1} has {len(proposals)} of {cfg.population} "
                           f"architectures: {DRAWS:,} draws in a row gave no new one within "
                           f"{limit:.3g} ms")
        results = share_out(  # Alg. 2, line 11
            run.ranks, list(proposals), folder, f"generation {number + 1} of {generations}",
            lambda name: judge(extract(superplm, proposals[name][1], cfg.variant), data, cfg, run))
        for (parent, arch), result in zip(proposals.values(), results):
            history.append({"id": len(history), "round": number, "parent": parent, "arch": str(arch),
                            "predicted_ms": round(predict([arch])[0], 6), **result})
        if not history:
            raise UserError(f"--strategy {cfg.strategy}: no candidate is within {limit:.2f} ms; take another")
        on_main(run.ranks, write_atomic, run.folder / "history.jsonl",
                "".join(json.dumps(line) + "\n" for line in history))
        best = max(history, key=lambda line: line["score"])
        run.log("evolve", number, candidates=len(history), best=best["score"])
        say(run.ranks, f"{len(history)} architectures evaluated; the best is {best['arch']}, "
                       f"predicted {best['predicted_ms']:.3g} ms: {score_words(best)}")
    return history


def time_finalists(lines, cfg):
    """The history lines that keep the limit in the median round, with what was measured: medians, and the range of
    the speed-up over the rounds, in each of which the reference and the finalist were measured."""
    rounds, found = time_together([*yardsticks(cfg), *(parse_arch(line["arch"]) for line in lines)], cfg), []
    limits = [limit_of(cfg, dict(zip(rounds, times))) for times in zip(*rounds.values())]
    for line in lines:
        took = rounds[parse_arch(line["arch"])]
        speedups = sorted(base / mine for base, mine in zip(rounds[parse_arch(cfg.reference)], took))
        if statistics.median(mine / limit for mine, limit in zip(took, limits)) <= 1:
            found.append({"arch": line["arch"], "one_shot": line["score"], "run_by": f"Encoder of {cfg.program}.py",
                          "milliseconds": statistics.median(took), "speedup": statistics.median(speedups),
                          "speedup_range": [speedups[0], speedups[-1]], "reference": cfg.reference,
                          "reference_milliseconds": statistics.median(
                              rounds[parse_arch(cfg.reference)]),
                          "limit_milliseconds": statistics.median(limits),
                          "rounds": len(took), **latency_setting(cfg)})
    return found


def confirm(history, cfg, run):
    """The best architectures within the limit, at most --winners; UserError where there is none. D4: the evolution
    checks the limit by predicting alone; only what meets it when measured is trained further."""
    path = run.folder / "finalists.json"

    def measure():
        ranked, found = sorted((line for line in history if not line["diverged"]),
                               key=lambda line: (-line["score"], line["id"])), []
        while ranked and len(found) < cfg.winners:
            found, ranked = found + time_finalists(ranked[:cfg.winners], cfg), ranked[cfg.winners:]
        if not found:
            raise UserError(f"--speedup {cfg.speedup}: of {len(history)} candidates predicted to meet it "
                            f"{sum(line['diverged'] for line in history)} have diverged (lower --finetune_lr), and no "
                            "other does when measured; the same command measures again")
        write_result(path, {"finalists": found[:cfg.winners]})

    on_main(run.ranks, lambda: path.exists() or measure())
    return read_result(path)["finalists"]


def train_winners(superplm, finalists, data, cfg, run):
    """Sec. 3.6: train the finalists further, judge them, keep the best in model/. Returns best.json's entry.

    D19: the paper does not say what chooses one of its three; here the search's own dev rows do, so that best.json's
    score is no estimate for new rows.
    """
    models = {line["arch"]: extract(superplm, parse_arch(line["arch"]), cfg.variant) for line in finalists}
    for arch, model in models.items():
        try:
            pretrain(model, data, cfg, run, run.folder / "further" / arch, cfg.further_steps, warmup=0.0)  # Sec. 4.1
        except Diverged as error:
            say(run.ranks, f"{error}; its training is left out")
            models[arch] = extract(superplm, parse_arch(arch), cfg.variant)
    results = share_out(run.ranks, list(models), run.folder / "finals", "finals",
                        lambda arch: judge(models[arch], data, cfg))
    lines = [{**line, **result} for line, result in zip(finalists, results)]
    line = max(lines, key=lambda line: line["score"])
    best, cfg = models[line["arch"]], dataclasses.replace(cfg, arch=line["arch"])
    on_main(run.ranks, keep_model, run.folder / "model", "search", cfg, data.tokenizer, model=best)
    return {**line, "ties": ties(lines), "parameters": sum(value.numel() for value in best.encoder.parameters())}


def search(cfg, phase="search"):
    """SuperPLM, latency predictor, evolution, further training. phase: one of the first three alone."""
    with launch(cfg.device, cfg.dtype) as ranks:
        evolving = phase in ("search", "evolve")
        set_shards(cfg, ranks)
        run, data = open_data(cfg, "search", ranks, phase != "latency", cfg.tasks if evolving else "")
        if run.finished:
            return show_found(run, cfg)
        superplm = start_model("", cfg, data, ranks, "superplm").to(data.device) if cfg.init and evolving else None
        end_phase = functools.partial(run.ends, cfg, same=sorted(cfg.given - {"restart"}))
        trained = superplm or (run.folder / "superplm" / "curve.json").exists()
        if phase == "evolve" and not (trained or cfg.dry_run):
            raise UserError(f"{run.folder}: there is no SuperPLM yet; run --superplm, or give one with --init")
        if phase != "superplm":  # first, so that a limit that nothing meets costs no training
            predict, limit = learn_latency(cfg, run)
        if phase == "latency":
            return end_phase("predictor.pt", "--search")
        if not superplm:  # Alg. 1
            superplm = start_model(cfg.largest, cfg, data, ranks)
            pretrain(superplm, data, cfg, run, run.folder / "superplm", cfg.steps, cfg.warmup,
                     functools.partial(draw_archs, cfg))
        if phase == "superplm":
            return end_phase("superplm/checkpoint.pt", "--search")
        history = evolve(superplm, predict, limit, data, cfg, run)
        result = confirm(history, cfg, run)
        result = ({**result[0], "ties": ties(history)} if phase == "evolve"
                  else train_winners(superplm, result, data, cfg, run))
        result |= {"evaluated": len(history), "search_seconds": round(sum(line["seconds"] for line in history), 1)}
        on_main(ranks, write_atomic, run.folder / "best.json", json.dumps(result, indent=2))
        if result["ties"]:
            others = len(result["ties"]) - 5
            more = f" and {others} more (best.json)" if others > 0 else ""
            say(ranks, "scores within twice the standard error of the difference from the best: "
                       f"{', '.join(result['ties'][:5])}{more}")
        if phase == "evolve":
            say(ranks, latency_words(result, cfg))
            return end_phase("best.json", "--search")
        run.finish(result)
        show_found(run, cfg)


def further_train(cfg):
    """Train --init's architecture, or one from scratch."""
    with launch(cfg.device, cfg.dtype) as ranks:
        set_shards(cfg, ranks)
        run, data = open_data(cfg, "further_train", ranks, text=True)
        if run.finished:
            return show_trained(run, cfg)
        model = start_model(cfg.arch, cfg, data, ranks)
        curve = pretrain(model, data, cfg, run, run.folder / "model", cfg.further_steps,
                         warmup=0.0 if cfg.init else cfg.warmup)
        run.finish({"arch": str(model.encoder.arch), "held_out": curve[-1][1]})
        show_trained(run, cfg)


def export(cfg, folder):
    """Write --init's model (with its head), or the part --arch of it, as a Hugging Face folder."""
    with launch(cfg.device, cfg.dtype) as ranks:
        tokenizer = load_tokenizer(cfg.tokenizer or hf_models.model_folder(cfg.init))
        model = start_model(cfg.arch, cfg, Data(ranks.device, tokenizer), ranks)
        place, whole, weights = read_model(cfg.init, cfg, cfg.arch)
        # what was made anew is left out, such as the masked-language-model head that an ELECTRA lacks
        state = {name: value for name, value in model.state_dict().items()
                 if name in weights and not name.startswith("fit.")}
        head = {name: value for name, value in weights.items()
                if name.startswith("head.") and model.encoder.arch == whole}
        say(ranks, on_main(ranks, hf_models.write_bert, folder, state, dataclasses.astuple(model.encoder.arch),
                           model.encoder.dropout.p, tokenizer, place, head))
        others = sorted(weights.keys() - state.keys() - head.keys())
        if ignored := [name for name in others if not name.startswith("encoder.")]:
            say(ranks, f"not exported: {', '.join(ignored)}")


def step_flops(cfg, arch, samples):
    """FLOPs of the forward passes of one sequence in a step: of arch, or of the mean of so many sampled sub-models."""
    if not samples:
        return masked_flops(cfg, arch)
    space = search_space(cfg)
    rng = random.Random(0)
    return samples * statistics.fmean(masked_flops(cfg, sample_arch(space, rng)) for _ in range(200))


def masked_flops(cfg, arch):
    """flops() with the head at the masked tokens."""
    masked = round(MASK_RATE * cfg.length)
    return flops(arch, cfg.length) + 2 * masked * arch.hidden * (arch.hidden + cfg.vocab_size)


def describe(cfg):
    """One JSON object on --arch, --init's model or the SuperPLM, and on what its training needs and takes."""
    arch, vocab, positions = parse_arch(cfg.arch or cfg.largest), cfg.vocab_size, 512
    if cfg.init:
        _, whole, weights = read_model(cfg.init, cfg)
        arch = arch if cfg.arch else whole
        vocab, positions = (len(weights[f"encoder.{name}.weight"]) for name in ("words", "positions"))
    reference, parts = parse_arch(cfg.reference), parameters(arch, vocab, positions)
    alone = cfg.arch or cfg.init  # a sub-model is trained, not the SuperPLM
    samples = 0 if alone else cfg.samples
    steps = (cfg.further_steps if alone else cfg.steps) or 1000  # 0: passes over a corpus, whose size is not known
    ffns = [arch.shape(layer)[0] for layer in range(arch.layers)]
    activations = [layer_activations(cfg.length, arch.hidden, ffn) for ffn in ffns]
    times = {each: statistics.median(took) for each, took in time_together([reference, arch], cfg, rounds=3).items()}
    print(json.dumps({
        "arch": str(arch), "parameters": sum(parts.values()), "parts": parts, "flops": flops(arch, cfg.latency_length),
        "flops_counting": f"matrix products of encoder and pooler, {cfg.latency_length} tokens, 2 for a multiply-add",
        "measured_ms": times[arch], "reference": cfg.reference, "reference_ms": times[reference],
        "speedup": times[reference] / times[arch], "latency": latency_setting(cfg),
        "space": {"setting": cfg.setting, "architectures": math.prod(map(len, search_space(cfg).values()))},
        "days_counting": "arithmetic alone; small micro-batches on a GPU are bound by the launches "
                         "of kernels, and can take five times as long",
        **training_cost(cfg, sum(parts.values()), step_flops(cfg, arch, samples), activations,
                        round(MASK_RATE * cfg.length) * vocab, steps, cfg.batch),
    }, indent=2))

# --- command line ---------

PHASES = ("search", "superplm", "latency", "evolve")  # share one run folder
ACTIONS = {
    "search": (search, "all phases: text to a further-trained tiny model within the latency limit"),
    "superplm": (functools.partial(search, phase="superplm"), "phase 1 of it alone: one-shot training (Alg. 1)"),
    "latency": (functools.partial(search, phase="latency"), "phase 2: measure, learn to predict"),
    "evolve": (functools.partial(search, phase="evolve"), "phase 3: the search (Alg. 2)"),
    "further_train": (further_train, "train --arch from --init's weights, or from scratch"),
    "finetune": (finetune, "fine-tune --init's model on SQuAD and GLUE tasks (Table D.1)", "TASKS"),
    "predict": (answer, "answer a file of your own (TSV or SQuAD JSON) with RUN/TASK of --init", "FILE"),
    "export": (export, "write --init's model, or its part --arch, as a Hugging Face folder", "DIR"),
    "describe": (describe, "parameters, FLOPs, latency, memory, days of --arch, and the search space, as JSON"),
}


def read_arch(text, place):
    """The Arch of a text or of a best.json; UserError, which names the place."""
    try:
        return parse_arch(json.loads(Path(text).read_text())["arch"] if text.endswith(".json") else text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{place}: no architecture is here ({error})") from None


def check_flags(cfg):
    """UserError where a flag is no architecture, no speed-up, or asks for more than this machine can hold."""
    number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf", cfg.speedup)
    if not cfg.speedup or number and not 0 < float(cfg.speedup) < math.inf:
        raise UserError(f"--speedup {cfg.speedup}: choose a number > 0, or an architecture")
    for name in ("arch", "largest", "smallest", "reference", *([] if number else ["speedup"])):
        if text := getattr(cfg, name):
            arch = read_arch(text, f"--{name} {text}")
            check_sizes(arch, 0, f"--{name} {text}")
            setattr(cfg, name, str(arch))  # a best.json becomes what it holds
    check_sizes(parse_arch(cfg.largest), cfg.vocab_size, f"--vocab_size {cfg.vocab_size}")


def why_too_large(cfg):
    """(why --largest cannot be cut out of --init's model or None, that model's Arch)."""
    folder, whole, _ = read_model(cfg.init, cfg, cfg.largest)
    reason = why_outside(read_arch(cfg.largest, f"--largest {cfg.largest}"), whole)
    return reason and f"{folder}: {reason}", whole


def take_space(cfg):
    """Search where --init's SuperPLM was trained; UserError where a flag says otherwise, and where a plain model is:
    what its parts score says nothing, since Alg. 1 has not trained them (Sec. 3.4)."""
    folder = hf_models.model_folder(cfg.init, "superplm")
    record = read_json(folder / "config.json", dict)
    if record.get("action") != "superplm":
        reason, whole = why_too_large(cfg)
        raise UserError(f"{folder}: no SuperPLM, the parts of this model were never trained; make one of it with "
                        f"--superplm --init {cfg.init}" + f" --largest {whole}" * bool(reason))
    take_settings(cfg, record["settings"], folder, ("largest", "smallest", "setting", "variant"))


def check(cfg, action):
    """UserError where settings do not go together."""
    if cfg.init and action in ("search", "evolve"):
        take_space(cfg)
    if action in PHASES and "out" not in cfg.given:
        cfg.out = cfg.out.replace(f"-{action}-", "-search-", 1)
    cfg.winners = cfg.winners or (1 if cfg.strategy == "fast" else 3)  # Sec. 4.1, Table 5
    check_flags(cfg)
    if cfg.init and action == "superplm":  # before the corpus is prepared
        reason, whole = why_too_large(cfg)
        if reason:
            raise UserError(f"{reason}; give --largest {whole}, or a part of it")
    try:
        search_space(cfg)
    except ValueError as error:
        raise UserError(str(error)) from None
    trains, distills = action in ("search", "superplm", "evolve", "further_train"), cfg.setting == "distill"
    for mistake, message in (
            (cfg.arch and action in PHASES, f"--arch {cfg.arch}: --{action} takes none"),
            (action == "further_train" and not (cfg.arch or cfg.init),
             "give --arch layers-hidden-ffn-heads-qkv, or a best.json"),
            (action in ("finetune", "predict", "export") and not cfg.init,
             f"--{action} needs weights: give a folder with --init"),
            (cfg.teacher and not distills, f"--teacher {cfg.teacher}: use it with --setting distill"),
            (distills and not cfg.teacher and trains, "--setting distill needs --teacher DIR")):
        if mistake:
            raise UserError(message)


def main(argv=None):
    return start(Config, PRESETS, ACTIONS, __doc__, check, argv)


if __name__ == "__main__":
    if "run" not in globals():
        print("autotinybert.py alone is to be imported: model, one-shot training, searcher and distillation; "
              "its commands need common/ and data/ of its repository beside it", file=sys.stderr)
        sys.exit(2)
    run(main)
