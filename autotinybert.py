"""AutoTinyBERT: Automatic Hyper-parameter Optimization for Efficient Pre-trained Language Models
(Yin, Chen, Shang, Jiang, Chen, Liu; ACL 2021, arXiv:2107.13686v1).

How deep and how wide should a BERT be that has to answer within so many milliseconds? One big model, the SuperPLM, is
trained so that every smaller one cut out of it works at once (one-shot learning, Alg. 1). An evolution (Alg. 2) then
looks for the best shape below the limit, and the weights of the winners, taken from the SuperPLM, are trained further.

Run:     torchrun autotinybert.py --search --speedup 7.2         text to a tiny model on demo data, minutes on two cores
         torchrun --nproc_per_node=16 autotinybert.py --search --preset base --speedup 7.2
                  --corpus TEXTS --glue GLUE --squad SQUAD
         torchrun --nproc_per_node=16 autotinybert.py --search --preset base --setting distill --teacher ELECTRA
                  --speedup 4.6 --corpus TEXTS ...
         python autotinybert.py --finetune SQuAD,MNLI,RTE --init runs/x --glue GLUE --squad SQUAD
         python autotinybert.py --export DIR --arch 5-564-1054-8-512 --init runs/x
Map:     Table B.1 -> search_space               Eq. 1, 2, 3 -> Layer
         Sec. 3.4, Figure 3 -> Cut, extract      Alg. 1 -> sub_models, pretrain
         Lat(.), Sec. 3.5 -> Predictor, time_model
         Alg. 2 -> propose, evolve               Sec. 4.4 -> fast_candidates      Table D.1 -> FINE_TUNING
Differs: D1  The feed-forward activation is BERT's GELU; Eq. 3 prints the ReLU of the generic Transformer.
         D2  Mut() of Alg. 2 is not given. Here each of the four variables moves with chance 1/2, by up to a tenth of
             its range (mutate). The roulette leaves the worst a hundredth of the range of scores.
         D3  Alg. 2 can draw an architecture twice or one that is too slow; here all are new and within the limit: a
             draw is repeated, and the last of 300 in vain made smaller.
         D4  The limit is checked by predicting before, and by measuring after the evolution; only what measures within
             it is trained further.
         D5  The latency predictor learns from hundreds of measurements instead of 10k, and is by default a
             least-squares fit; the network (--predictor mlp) has HAT's three layers of 400 and predicts logarithms.
         D6  Entries that no sub-model of an update used get no update of any kind (the paper does not say). See
             SlicedAdamW.
         D7  Pairwise accuracy is over unordered pairs, one tied in one score alone counts half; Eq. 5 divides by the
             ordered ones and could never reach 1.
         D8  Pre-training rows are [CLS] A [SEP] B [SEP] with B the continuation of A, so that fine-tuning on pairs
             meets a trained segment embedding; there is no next-sentence loss, as in the released code.
         D9  Distillation leaves padding out of both means, and its input is not masked.
         D10 SentencePiece vocabulary unless --tokenizer, --teacher or --init bring a vocab.txt; the paper has
             WordPiece.
         D11 Of the rule's candidates at one depth (Sec. 4.4) the one is tested that is predicted slowest within 95% of
             the limit: with four or eight candidates in all, most must still meet it when they are measured.
         D12 --tasks takes MLM beside GLUE's and SQuAD: held-out masked-word accuracy. The demo uses it, since minutes
             of pre-training are too little for the paper's proxy tasks.
"""
import contextlib
import copy
import dataclasses
import itertools
import json
import math
import random
import re
import shutil
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

# B batch, T tokens, H hidden (d^m), Q query/key/value width, N heads, D head width, V vocabulary, I masked positions,
# W teacher's hidden width

# --- configuration -------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    """Every knob. The comment is the help text; a preset overrides the default, a flag the preset."""
    preset: str = "demo"  # demo (minutes on two cores) | base (the paper's)
    out: str = ""  # run folder; default runs/autotinybert-ACTION-PRESET
    restart: bool = False  # begin anew in a run folder that is there
    seed: int = 0  # of everything drawn
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = "auto"  # auto (bfloat16 autocast on GPUs that have it) | float32 | bfloat16
    compile: bool = False  # torch.compile the further training; the SuperPLM changes its shape with every step
    accumulate: int = 16  # N of Alg. 1: sub-batches with sub-models of their own, shared out over the processes
    dry_run: bool = False  # two real steps of every phase, on tiny budgets
    init: str = ""  # start from these weights: run or Hugging Face folder; in --search and --evolve, the SuperPLM
    # data
    corpus: tuple[str, ...] = ()  # text files or folders to pre-train on; default: the demo text
    glue: str = ""  # folder with the GLUE tasks in their official layout; default: the demo tasks
    squad: str = ""  # folder with train-v1.1.json and dev-v1.1.json; default: the demo questions
    tokenizer: str = ""  # spiece.model or vocab.txt; default: the teacher's or --init's, else trained on the corpus
    vocab_size: int = 30522  # pieces of the vocabulary
    tasks: str = "SQuAD,MNLI"  # proxy tasks of the search, Sec. 3.5; MLM: held-out text (D12)
    train_rows: int = 0  # use only so many training rows of each task; 0: all
    # SuperPLM
    arch: str = ""  # architecture layers-hidden-ffn-heads-qkv (Table 4), or a best.json
    layers: int = 8  # l^t of the SuperPLM, Sec. 3.4
    hidden: int = 768  # d^m and d^q|k|v of the SuperPLM
    heads: int = 12  # h of the SuperPLM
    ffn: int = 3072  # d^f of the SuperPLM
    min_hidden: int = 128  # smallest d^m and d^f, Table B.1
    min_qkv: int = 180  # smallest d^q|k|v of --setting distill, Table B.1
    width_step: int = 4  # between choices of d^m and of d^f, Table B.1
    dropout: float = 0.1  # hidden and attention dropout
    init_std: float = 0.02  # deviation of new weights; BERT's 0.02 suits widths near 768, narrow models want more
    setting: str = "mlm"  # mlm (pre-training, heads of full width) | distill (all heads, each narrower); Table B.1
    teacher: str = ""  # teacher of --setting distill: BERT or ELECTRA folder in Hugging Face layout, or a run folder
    variant: str = "ebl"  # Table 3: hat | ils | sme | ebl (the paper's); --analyze ranking: several; sme*3: 3 x steps
    # one-shot and further training
    samples: int = 3  # M of Alg. 1: sub-models on each sub-batch
    length: int = 128  # tokens a sequence, special ones included
    steps: int = 640000  # updates of the SuperPLM: 5 epochs of BooksCorpus and Wikipedia, Sec. 4.1
    further_steps: int = 640000  # updates of a single architecture: 5 epochs; the paper's BERT-S* had 10
    batch: int = 256  # sequences an update
    lr: float = 1e-5  # peak learning rate
    warmup: float = 0.1  # share of the steps; 0 where weights are taken over (Sec. 4.1)
    weight_decay: float = 0.01  # AdamW, not on biases and LayerNorms
    clip: float = 1.0  # largest gradient norm
    mask_rate: float = 0.15  # share of the tokens predicted
    save_every: int = 1000  # steps between checkpoints
    # fine-tuning; 0 takes the task's own number from Table D.1
    finetune_epochs: int = 0  # passes over the task
    finetune_batch: int = 0  # examples an update
    finetune_lr: float = 0.0  # peak learning rate
    finetune_warmup: float = 0.1  # share of the steps
    squad_length: int = 384  # tokens of a SQuAD window
    runs: int = 1  # fine-tunings with other seeds: --finetune, --analyze ranking and pareto
    # latency
    speedup: float = 7.2  # how much faster than --reference a model must be (Table 1)
    speedups: tuple[float, ...] = (7.2, 15.7, 20.2)  # the limits of --analyze pareto
    reference: str = "12-768-3072-12-768"  # speed-ups are counted from its latency: BERT-base
    latency_device: str = "cpu"  # target device
    latency_threads: int = 1  # CPU threads there
    latency_batch: int = 1  # sequences at a time there
    latency_length: int = 128  # tokens a sequence there
    latency_clock: str = "wall"  # wall | cpu (the process's own seconds: for one thread on a busy machine)
    latency_runs: int = 9  # timed runs of a measurement, after two to warm up; fastest and slowest quarter are left out
    latency_rounds: int = 2  # times that each architecture is measured; the lower value counts
    latency_archs: int = 400  # architectures to measure for the predictor
    latency_data: str = ""  # file of measurements, kept and added to; default: latency.jsonl in the run folder
    predictor: str = "linear"  # mlp (the paper's network) | linear (least squares of FLOP terms); both are reported
    # search
    strategy: str = "evolution"  # evolution (Alg. 2) | random | fast (Sec. 4.4)
    population: int = 25  # S of Alg. 2
    generations: int = 4  # T of Alg. 2, the first one included
    mutation: float = 0.5  # p_m of Alg. 2
    exploration: float = 0.5  # p_e of Alg. 2
    winners: int = 3  # architectures trained further, Sec. 4.1


PHASES = ("search", "superplm", "latency", "evolve")  # share one run folder
DEMO_SEARCH = dict(steps=600, further_steps=300, population=8, generations=3, latency_archs=120)
PRESETS = {
    # The paper's proxy tasks stay at chance after minutes of pre-training; MLM and SST-2 do not (D12). About half of
    # the search space is 7.2 times as fast as this reference.
    "demo": {"vocab_size": 2000, "layers": 4, "hidden": 96, "heads": 6, "ffn": 384, "min_hidden": 32, "min_qkv": 48,
             "dropout": 0.0, "init_std": 0.07, "accumulate": 2, "length": 48, "squad_length": 96, "batch": 32,
             "lr": 3e-3, "steps": 600, "further_steps": 300, "save_every": 100, "tasks": "MLM,SST-2",
             "finetune_epochs": 2, "finetune_lr": 1e-3, "finetune_batch": 32,
             "reference": "8-96-384-6-96", "speedups": (7.2, 12.0), **{phase: DEMO_SEARCH for phase in PHASES},
             "analyze": dict(steps=150, further_steps=100, train_rows=640, population=4, generations=2,
                             latency_archs=60)},
    "base": dict(),
}

# --- search space --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Arch:
    """An architecture, printed as in Table 4: 5-564-1054-8-512. In the HAT baseline of Table 3 the last three are
    tuples, one number a layer, and print as 2-564-1054/800-8/4-512/512."""
    layers: int  # l^t
    hidden: int  # d^m|o
    ffn: object  # d^f
    heads: object  # h
    qkv: object  # d^q|k|v

    def shape(self, layer):
        """(d^f, h, d^q|k|v) of a layer."""
        return tuple(value[layer] if isinstance(value, tuple) else value for value in (self.ffn, self.heads, self.qkv))

    def __str__(self):
        widths = ["/".join(map(str, value)) if isinstance(value, tuple) else str(value)
                  for value in (self.ffn, self.heads, self.qkv)]
        return "-".join([str(self.layers), str(self.hidden), *widths])


def parse_arch(text):
    """The Arch of a text such as 5-564-1054-8-512, any sizes that the heads divide; ValueError says what is wrong."""
    parts = text.strip().split("-")
    if len(parts) != 5 or not all(re.fullmatch(r"[1-9]\d*(/[1-9]\d*)*", part) for part in parts):
        raise ValueError(f"{text!r} is no architecture; write layers-hidden-ffn-heads-qkv, such as 5-564-1054-8-512")
    numbers = [tuple(map(int, part.split("/"))) for part in parts]
    arch = Arch(*(value[0] if len(value) == 1 else value for value in numbers))
    if any(len(value) not in (1, arch.layers) for value in numbers[2:]) or max(len(value) for value in numbers[:2]) > 1:
        raise ValueError(f"{text!r}: give one number for all layers, or {parts[0]} of them")
    for layer in range(arch.layers):
        ffn, heads, qkv = arch.shape(layer)
        if qkv % heads:
            raise ValueError(f"{text!r}: {heads} heads do not divide the query/key/value width {qkv}; "
                             f"use a multiple of {heads}")
    return arch


TABLE_4 = {  # name: (architecture, published speed-up over BERT-base); Table 1 prints 31.3 and 31.0 for S4
    "BERT-S1": ("4-512-2048-8-512", 7.1), "BERT-S2": ("4-320-1280-5-320", 14.8), "BERT-S3": ("4-256-1024-4-256", 20.1),
    "BERT-S4": ("4-192-768-3-192", 28.4),
    "AutoTinyBERT-S1": ("5-564-1054-8-512", 7.2), "AutoTinyBERT-S2": ("4-396-624-6-384", 15.7),
    "AutoTinyBERT-S3": ("4-432-384-4-256", 20.2), "AutoTinyBERT-S4": ("3-320-608-4-256", 27.2),
    "BERT-KD-S1": ("4-512-2048-12-516", 4.9), "BERT-KD-S2": ("4-312-1200-12-312", 9.8),
    "BERT-KD-S3": ("4-264-1056-12-264", 11.7), "BERT-KD-S4": ("4-192-768-12-192", 17.0),
    "AutoTinyBERT-KD-S1": ("5-564-1024-12-528", 4.6), "AutoTinyBERT-KD-S2": ("5-324-600-12-324", 9.0),
    "AutoTinyBERT-KD-S3": ("5-280-512-12-276", 10.7), "AutoTinyBERT-KD-S4": ("4-256-480-12-192", 17.0),
}
TABLE_F1 = {  # Table 5 prints 9.9 for BERT-S5
    "BERT-S5": ("4-384-1536-6-384", 9.3), "AutoTinyBERT-S5": ("5-450-636-6-384", 10.8),
    "AutoTinyBERT-Fast-S5": ("5-432-720-6-384", 10.3)}
PF = {  # Table 1; Turc et al. keep heads of 64
    "PF-4L512": ("4-512-2048-8-512", 7.1), "PF-2L768": ("2-768-3072-12-768", 7.0),
    "PF-2L512": ("2-512-2048-8-512", 12.8), "PF-6L256": ("6-256-1024-4-256", 13.3),
    "PF-6L128": ("6-128-512-2-128", 28.2)}
VARIANTS = {  # Table 3: (identical layers, sub-matrix extraction, effective batch-wise training)
    "hat": (False, False, False), "ils": (True, False, False), "sme": (True, True, False), "ebl": (True, True, True)}


def super_arch(cfg):
    """The architecture of the whole SuperPLM."""
    return Arch(cfg.layers, cfg.hidden, cfg.ffn, cfg.heads, cfg.hidden)


def search_space(cfg, variant="ebl"):
    """Table B.1: {variable: its choices}, the one definition that sampling, mutation, the rule of Section 4.4 and
    counting read.

    "attention" pairs the number of heads with d^q|k|v: whole heads in pre-training, all heads with less of each in
    distillation, and without SME (Table 3) every number of heads that divides the full width.
    """
    if variant not in VARIANTS:
        raise ValueError(f"{variant!r} is no variant; choose from {', '.join(VARIANTS)}")
    if cfg.hidden % cfg.heads:
        raise ValueError(f"--hidden {cfg.hidden} is no multiple of --heads {cfg.heads}")
    if cfg.min_hidden > min(cfg.hidden, cfg.ffn):
        raise ValueError(f"--min_hidden {cfg.min_hidden} is more than the SuperPLM's {cfg.hidden} or ffn {cfg.ffn}")
    if cfg.setting == "distill" and (cfg.min_qkv % cfg.heads or cfg.min_qkv > cfg.hidden):
        raise ValueError(f"--min_qkv {cfg.min_qkv} must be a multiple of --heads {cfg.heads}, at most {cfg.hidden}")
    if cfg.setting == "mlm":
        attention = [(heads, heads * (cfg.hidden // cfg.heads)) for heads in range(1, cfg.heads + 1)]
    elif cfg.setting == "distill":
        attention = [(cfg.heads, qkv) for qkv in range(cfg.min_qkv, cfg.hidden + 1, cfg.heads)]
    else:
        raise ValueError(f"setting {cfg.setting!r}: choose mlm or distill")
    if not VARIANTS[variant][1]:
        attention = [(heads, cfg.hidden) for heads, _ in attention if cfg.hidden % heads == 0]
    return {"layers": range(1, cfg.layers + 1), "hidden": range(cfg.min_hidden, cfg.hidden + 1, cfg.width_step),
            "ffn": range(cfg.min_hidden, cfg.ffn + 1, cfg.width_step), "attention": attention}


def space_size(space):
    """Number of architectures with identical layers."""
    return math.prod(map(len, space.values()))


def make_arch(genes):
    """The Arch of {variable: choice}."""
    return Arch(genes["layers"], genes["hidden"], genes["ffn"], *genes["attention"])


def genes_of(arch):
    """{variable: choice} of an Arch; make_arch(genes_of(a)) == a."""
    return {"layers": arch.layers, "hidden": arch.hidden, "ffn": arch.ffn, "attention": (arch.heads, arch.qkv)}


def sample_arch(space, rng, identical=True):
    """Every variable uniformly and independently; identical=False draws ffn and attention anew for each layer (HAT)."""
    genes = {name: rng.choice(choices) for name, choices in space.items()}
    if identical:
        return make_arch(genes)
    ffn, attention = ([rng.choice(space[name]) for _ in range(genes["layers"])] for name in ("ffn", "attention"))
    return Arch(genes["layers"], genes["hidden"], tuple(ffn), *map(tuple, zip(*attention)))


def flops(arch, tokens=128):
    """Floating-point operations of the encoder and the pooler for one sequence: matrix products, 2 a multiply-add."""
    count = arch.hidden ** 2
    for ffn, _, qkv in map(arch.shape, range(arch.layers)):
        count += tokens * (4 * arch.hidden * qkv + 2 * arch.hidden * ffn) + 2 * tokens * tokens * qkv
    return 2 * count

# --- model ---------------------------------------------------------------------------------------
# The same modules are the SuperPLM and every stand-alone model. forward(..., arch) runs the sub-model `arch`, of which
# nothing is stored; without arch the whole model runs, plainly.

AXES = {  # module: what its weight's axes, (out, in), are widths of; a bias has the first
    "words": ("", "hidden"), "positions": ("", "hidden"), "segments": ("", "hidden"), "norm": ("hidden",),
    "query": ("qkv", "hidden"), "key": ("qkv", "hidden"), "value": ("qkv", "hidden"), "output": ("hidden", "qkv"),
    "attention_norm": ("hidden",), "expand": ("ffn", "hidden"), "shrink": ("hidden", "ffn"), "ffn_norm": ("hidden",),
    "pooler": ("hidden", "hidden"), "transform": ("hidden", "hidden"), "transform_norm": ("hidden",),
    "fit": ("", "hidden")}


class Cut:
    """What one layer of sub-model `arch` uses of the weights of `top`: the leading part of every axis (Sec. 3.4).

    Attention, Figure 3: of the top's heads the first `heads`, of each of them the leading part. With heads of full
    width this is extraction (b), with all heads extraction (c). A sub-model with the full d^q|k|v uses every row, in
    however many heads (no SME: HAT, Table 3).
    """

    def __init__(self, arch, top, layer=0):
        ffn, heads, qkv = arch.shape(layer)
        _, self.top_heads, top_qkv = top.shape(layer)
        head = (self.top_heads, top_qkv // self.top_heads) if qkv == top_qkv else (heads, qkv // heads)
        self.heads, self.widths = heads, {"": (), "hidden": (arch.hidden,), "ffn": (ffn,), "qkv": head}

    def sizes(self, axes):
        """The numbers that rule the part taken of a tensor with these axes."""
        return sum((self.widths[axis] for axis in axes), ())

    def __call__(self, tensor, axes, view=False):
        """The part of a weight of `top`. view: heads stay an axis, so that what is written arrives in the tensor."""
        for place in reversed(range(len(axes))):
            width = self.widths[axes[place]]
            if axes[place] == "qkv":
                tensor = (tensor.unflatten(place, (self.top_heads, -1))
                          .narrow(place, 0, width[0]).narrow(place + 1, 0, width[1]))
                tensor = tensor if view else tensor.flatten(place, place + 1)
            elif width:
                tensor = tensor.narrow(place, 0, width[0])
        return tensor


def why_outside(arch, top):
    """None where `arch` can be cut out of `top`, else the reason in words."""
    for name in ("layers", "hidden"):
        if getattr(arch, name) > getattr(top, name):
            return f"{name} {getattr(arch, name)} of {arch} is more than the {getattr(top, name)} of {top}"
    for layer in range(arch.layers):
        (ffn, heads, qkv), (top_ffn, top_heads, top_qkv) = arch.shape(layer), top.shape(layer)
        if ffn > top_ffn:
            return f"ffn {ffn} of {arch} is more than the {top_ffn} of {top}"
        if qkv != top_qkv and (heads > top_heads or qkv // heads > top_qkv // top_heads):
            return (f"{heads} heads of {qkv // heads} of {arch} are not within "
                    f"the {top_heads} heads of {top_qkv // top_heads} of {top}")
    return None


def apply(module, name, x, cut):
    """module(x) with the part of its weights that cut takes; all of them where it is None. Linear and LayerNorm."""
    if cut is None:
        return module(x)
    weight, bias = cut(module.weight, AXES[name]), cut(module.bias, AXES[name][:1])
    return (F.layer_norm(x, bias.shape, weight, bias, module.eps) if isinstance(module, nn.LayerNorm)
            else F.linear(x, weight, bias))


class Layer(nn.Module):
    """A Transformer layer, Eq. 1 to 3. (B, T, H) -> (B, T, H)."""

    def __init__(self, hidden, ffn, heads, qkv, dropout):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.query, self.key, self.value = (nn.Linear(hidden, qkv) for _ in range(3))
        self.output = nn.Linear(qkv, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.expand, self.shrink = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, cut=None, with_scores=False):
        """mask: (B, 1, 1, T) True at real tokens, None: all are. with_scores: the raw attention (B, N, T, T) too."""

        def run(name, x):
            return apply(getattr(self, name), name, x, cut)

        heads = cut.heads if cut else self.heads
        query, key, value = (run(name, x).unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, N, T, D)
                             for name in ("query", "key", "value"))
        rate = self.rate if self.training else 0.0
        scores = None
        if with_scores:
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, N, T, T)
            weights = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)
            mixed = F.dropout(weights, rate) @ value  # Eq. 1
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, mask, rate)  # Eq. 1
        # Eq. 2; (B, N, T, D) -> (B, T, Q) -> (B, T, H)
        x = run("attention_norm", x + self.dropout(run("output", mixed.transpose(1, 2).flatten(2))))
        x = run("ffn_norm", x + self.dropout(run("shrink", F.gelu(run("expand", x)))))  # Eq. 3, D1
        return (x, scores) if with_scores else x


class Encoder(nn.Module):
    """BERT without its pre-training heads: embeddings, layers, pooler. ids, segments (B, T), lengths (B,) -> (B, T, H).

    embedding: width of the embeddings where it is not `hidden` (small ELECTRA teachers); such a model is not cut.
    """

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

    def forward(self, ids, segments, lengths=None, arch=None, with_scores=False):
        """lengths: real tokens of each row; None: all are. with_scores: (states, the last layer's raw attention scores
        (B, N, T, T))."""
        T = ids.shape[1]
        cuts = ([None] * len(self.layers) if arch is None
                else [Cut(arch, self.arch, layer) for layer in range(arch.layers)])  # the first l^t layers
        places = torch.arange(T, device=ids.device)
        mask = None if lengths is None else (places < lengths[:, None])[:, None, None]  # (B, 1, 1, T)
        x = sum(F.embedding(at, table.weight if arch is None else cuts[0](table.weight, AXES["words"]))
                for at, table in ((ids, self.words), (places, self.positions), (segments, self.segments)))  # (B, T, H)
        x = self.dropout(apply(self.norm, "norm", x, cuts[0]))
        x = x if self.project is None else self.project(x)
        for layer, cut in zip(self.layers, cuts[:-1]):
            x = layer(x, mask, cut)
        return self.layers[len(cuts) - 1](x, mask, cuts[-1], with_scores)

    def pool(self, x):
        """(B, T, H) -> (B, H), what classifiers read."""
        return torch.tanh(self.pooler(x[:, 0]))


def init_weights(module):
    """BERT's initialisation: normal, deviation 0.02, zero biases."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class LanguageModel(nn.Module):
    """Encoder with the masked-language-model head or, for distillation, a projection to the teacher's width fit = W."""

    def __init__(self, arch, vocab_size, dropout=0.0, fit=0, positions=512):
        super().__init__()
        self.encoder = Encoder(arch, vocab_size, dropout, positions)
        if fit:
            self.fit = nn.Linear(arch.hidden, fit)
            init_weights(self.fit)
        else:
            self.transform = nn.Linear(arch.hidden, arch.hidden)
            self.transform_norm = nn.LayerNorm(arch.hidden, eps=1e-12)
            self.decoder_bias = nn.Parameter(torch.zeros(vocab_size))  # the output matrix is the word embedding
            init_weights(self.transform)

    def forward(self, ids, segments, lengths, positions, arch=None):
        """MLM logits (B, I, V) at `positions` (B, I), of the sub-model `arch`."""
        cut = None if arch is None else Cut(arch, self.encoder.arch)
        x = self.encoder(ids, segments, lengths, arch)  # (B, T, H)
        x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))  # (B, I, H)
        x = apply(self.transform_norm, "transform_norm", F.gelu(apply(self.transform, "transform", x, cut)), cut)
        words = self.encoder.words.weight
        return F.linear(x, words if cut is None else cut(words, AXES["words"]), self.decoder_bias)  # (B, I, V)

    def student(self, ids, segments, lengths, arch=None):
        """What distillation compares: the last layer's states at the teacher's width (B, T, W), and its raw attention
        scores (B, N, T, T)."""
        x, scores = self.encoder(ids, segments, lengths, arch, with_scores=True)
        return apply(self.fit, "fit", x, None if arch is None else Cut(arch, self.encoder.arch)), scores


class TaskModel(nn.Module):
    """Encoder with a linear head: logits (B, outputs) of the pooled state; spans: (B, T, 2), start and end."""

    def __init__(self, encoder, outputs, spans=False):
        super().__init__()
        self.encoder, self.spans, self.dropout = encoder, spans, nn.Dropout(encoder.dropout.p)
        self.head = nn.Linear(encoder.arch.hidden, outputs)
        init_weights(self.head)

    def forward(self, ids, segments, lengths):
        x = self.encoder(ids, segments, lengths)
        return self.head(self.dropout(x if self.spans else self.encoder.pool(x)))


def parameters(arch, vocab_size, positions=512):
    """{part: parameters} of a stand-alone encoder, built on the meta device: nothing is counted twice or by formula."""
    with torch.device("meta"):
        encoder = Encoder(arch, vocab_size, positions=positions)
    counts = {"embeddings": 0, "layers": 0, "pooler": 0}
    for name, value in encoder.named_parameters():
        counts[next((part for part in ("layers", "pooler") if name.startswith(part)), "embeddings")] += value.numel()
    return counts

# --- supernet ------------------------------------------------------------------------------------


def sub_models(cfg, variant, step, shard):
    """Alg. 1, line 7: the sub-models that sub-batch `shard` of update `step` trains, M others on every sub-batch. A
    function of its arguments, so the result does not depend on which process does what. Without EBL one sub-model is
    trained on the whole batch."""
    identical, _, batch_wise = VARIANTS[variant]
    rng = random.Random(f"{cfg.seed} sub-models {step} {shard if batch_wise else 0}")
    space = search_space(cfg, variant)
    return [sample_arch(space, rng, identical) for _ in range(cfg.samples if batch_wise else 1)]


def axes_of(name):
    """AXES of a parameter such as encoder.layers.3.query.bias, and the number of its layer (None: it is in none)."""
    parts = name.split(".")
    axes = AXES.get(parts[-2], ("",)) if len(parts) > 1 else ("",)
    return (axes[:1] if parts[-1] == "bias" else axes), int(parts[2]) if "layers" in parts else None


def cut_state(model, arch):
    """{name: the part that sub-model `arch` uses} of a LanguageModel's weights; layers left out are not in it."""
    state = {}
    for name, value in model.state_dict().items():
        axes, layer = axes_of(name)
        if layer is None or layer < arch.layers:
            state[name] = Cut(arch, model.encoder.arch, layer or 0)(value, axes)
    return state


def extract(model, arch):
    """The stand-alone LanguageModel of a sub-model, with its own copy of the weights; ValueError where `arch` is not
    within the model."""
    encoder = model.encoder
    reason = why_outside(arch, encoder.arch)
    if reason:
        raise ValueError(reason)
    fit = model.fit.out_features if hasattr(model, "fit") else 0
    sub = LanguageModel(arch, encoder.words.num_embeddings, encoder.dropout.p, fit,
                        encoder.positions.num_embeddings).to(encoder.words.weight.device)
    sub.load_state_dict(cut_state(model, arch))
    return sub


def mark_used(model, archs, used):
    """Set to 1 the entries that any of `archs` uses (None: all of the model). used: {name: tensor of zeros like the
    parameter}. Of parts that lie inside one another only the outer ones are written."""
    for name, target in used.items():
        axes, layer = axes_of(name)
        if "pooler" in name:  # no part of pre-training (no NSP)
            continue
        if None in archs:
            target.fill_(1)
            continue
        cuts = [Cut(arch, model.encoder.arch, layer or 0) for arch in archs if layer is None or layer < arch.layers]
        parts = {cut.sizes(axes): cut for cut in cuts}
        for sizes, cut in parts.items():
            if not any(other != sizes and all(a >= b for a, b in zip(other, sizes)) for other in parts):
                cut(target, axes, view=True).fill_(1)


class SlicedAdamW:
    """AdamW in which an entry that no sub-model of the update used is left alone (D6): its weight with its decay, both
    its moments, and the count of its updates, which rules its own bias correction.

    All parameters of the model become views of one flat tensor, and their gradients views of another (`grads`), so that
    a sub-batch's gradients are one tensor to sum, and an update a handful of operations.
    """

    def __init__(self, model, weight_decay, betas=(0.9, 0.999), eps=1e-6):
        named = list(model.named_parameters())
        self.weight_decay, self.betas, self.eps = weight_decay, betas, eps
        self.values = torch.cat([value.detach().reshape(-1) for _, value in named])
        self.grads, self.first, self.second, self.count, self.decayed, self.used = (
            torch.zeros_like(self.values) for _ in range(6))
        self.used_views, start = {}, 0
        for name, value in named:
            span = slice(start, start + value.numel())
            value.data, value.grad = self.values[span].view_as(value), self.grads[span].view_as(value)
            self.used_views[name] = self.used[span].view_as(value)
            self.decayed[span] = float(value.dim() > 1)  # no decay on biases and LayerNorms
            start = span.stop

    @torch.no_grad()
    def step(self, gradient, used, lr, clip):
        """One update with the flat mean gradient; used: flat, 1 where an entry takes part. Returns the gradient's norm
        before clipping, a tensor."""
        norm = gradient.norm()
        gradient = gradient * (clip / (norm + 1e-6)).clamp(max=1.0)
        beta1, beta2 = self.betas
        self.count += used
        self.first.lerp_(gradient, (1 - beta1) * used)
        self.second.lerp_(gradient * gradient, (1 - beta2) * used)
        count = self.count.clamp(min=1)
        change = self.first / (1 - beta1 ** count) / ((self.second / (1 - beta2 ** count)).sqrt() + self.eps)
        self.values.sub_(lr * used * (change + self.weight_decay * self.decayed * self.values))
        return norm

    def state_dict(self):
        return {"first": self.first, "second": self.second, "count": self.count}

    def load_state_dict(self, state):
        for name, value in state.items():
            getattr(self, name).copy_(value)

# --- search --------------------------------------------------------------------------------------


@torch.no_grad()
def time_model(arch, cfg):
    """Milliseconds of one forward pass of encoder and pooler as a stand-alone model: the mean of the middle half of the
    timed runs, after two that warm up. Weights are random, and the vocabulary is small: neither changes the time."""
    device = torch.device(cfg.latency_device)
    with torch.device("meta"):
        encoder = Encoder(arch, 64, positions=max(512, cfg.latency_length))
    encoder = encoder.to_empty(device=device).eval()
    for value in encoder.parameters():
        value.uniform_(-0.05, 0.05)
    ids = torch.arange(cfg.latency_batch * cfg.latency_length, device=device).view(cfg.latency_batch, -1) % 64
    times, clock = [], time.process_time if cfg.latency_clock == "cpu" else time.perf_counter
    for _ in range(cfg.latency_runs + 2):
        began = clock()
        encoder.pool(encoder(ids, torch.zeros_like(ids)))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1000 * (clock() - began))
    times, cut = sorted(times[2:]), cfg.latency_runs // 4
    return sum(times[cut:len(times) - cut]) / (len(times) - 2 * cut)


@contextlib.contextmanager
def target_threads(cfg):
    """Inside, torch uses as many threads as the target has."""
    before = torch.get_num_threads()
    torch.set_num_threads(cfg.latency_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def latency_terms(kind, archs, tokens, top):
    """(n, terms) what a predictor sees of each architecture. linear: the costs that a Transformer's time is made of;
    flops: their matrix products; mlp: the variables as shares of the largest architecture `top`, as in HAT."""
    rows = []
    for arch in archs:
        l, d, f, h, q = arch.layers, arch.hidden, arch.ffn, arch.heads, arch.qkv
        if kind == "mlp":
            rows.append([l / top.layers, d / top.hidden, f / top.ffn, h / top.heads, q / top.qkv])
        elif kind == "flops":
            rows.append([flops(arch, tokens)])
        else:  # projections, attention, feed-forward; softmax, LayerNorm, GELU and copies; one call of each layer;
            # once: embeddings, pooler, start
            rows.append([l * d * q, l * tokens * q, l * d * f, l * h * tokens, l * d, l * f, l * q, l, d,
                         d * d / tokens, 1])
    return torch.tensor(rows, dtype=torch.float64)


class Predictor:
    """Lat(.) of Eq. 4: milliseconds of architectures, learnt from measurements (D5). kind: mlp, linear, or flops (time
    proportional to FLOPs)."""

    def __init__(self, kind, top, tokens):
        self.kind, self.top, self.tokens, self.weights = kind, top, tokens, {}

    def fit(self, archs, milliseconds, steps=600):
        """Learn from measured architectures; relative errors count."""
        terms, target = (latency_terms(self.kind, archs, self.tokens, self.top),
                         torch.tensor(milliseconds, dtype=torch.float64))
        if self.kind == "mlp":
            self._train(terms.float(), target.float(), steps)
            return self
        scale, kept = terms.abs().amax(0), torch.ones(terms.shape[1], dtype=torch.bool)
        rows = terms / scale / target[:, None]  # rows @ weights = 1 is an exact prediction
        while True:  # no cost is negative: terms that come out so are left out, and the others are fitted again
            chosen = rows[:, kept]
            # keeps terms that say nearly the same from growing against each other
            ridge = 1e-3 * torch.diag(chosen.norm(dim=0))
            goal = torch.cat([torch.ones(len(rows)), torch.zeros(len(ridge))]).double()
            weights = torch.zeros(len(kept), dtype=torch.double)
            weights[kept] = torch.linalg.lstsq(torch.cat([chosen, ridge]), goal[:, None]).solution[:, 0]
            if (weights >= 0).all():
                break
            kept &= weights > weights.min()
        # the last bits of a fit vary with where its arrays lie in memory
        exact = [float(f"{weight:.9g}") for weight in (weights / scale).tolist()]
        self.weights = {"weights": torch.tensor(exact, dtype=torch.float64)}
        return self

    def _train(self, terms, target, steps):
        """The paper's feed-forward network, for the logarithm of the time: three hidden layers of 400, as in HAT."""
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            widths = [terms.shape[1], 400, 400, 400, 1]
            net = nn.Sequential(*itertools.chain(*((nn.Linear(a, b), nn.ReLU())
                                                   for a, b in zip(widths, widths[1:]))))[:-1]
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / steps)
                loss = (net(terms)[:, 0] - (target / target.mean()).log()).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.weights = {"mean": target.mean(), **{name: value.detach() for name, value in net.state_dict().items()}}

    def __call__(self, archs):
        """[milliseconds] of architectures with identical layers."""
        x = latency_terms(self.kind, archs, self.tokens, self.top)
        if self.kind != "mlp":
            return (x @ self.weights["weights"]).tolist()
        x = x.float()
        for layer in (0, 2, 4, 6):
            x = F.linear(x, self.weights[f"{layer}.weight"], self.weights[f"{layer}.bias"])
            x = x if layer == 6 else x.relu()
        return (x[:, 0].exp() * self.weights["mean"]).tolist()


def smallest(space):
    """The smallest architecture of a space, and so the fastest."""
    return make_arch({name: choices[0] for name, choices in space.items()})


def mutate(arch, space, rng):
    """Mut() of Alg. 2 (D2): each variable moves with chance 1/2 (not p_m, which rules whether this is called), at least
    one does, to a choice at most a tenth of its range away."""
    def size(choice):  # pairs of heads and d^q|k|v compare by the latter
        return choice[-1] if isinstance(choice, tuple) else choice

    genes = genes_of(arch)
    moving = [name for name in space if rng.random() < 0.5] or [rng.choice(list(space))]
    for name in moving:
        choices = space[name]
        place = min(range(len(choices)), key=lambda index: abs(size(choices[index]) - size(genes[name])))
        reach = max(1, len(choices) // 10)
        near = [at for at in range(place - reach, place + reach + 1) if 0 <= at < len(choices) and at != place]
        genes[name] = choices[rng.choice(near)] if near else choices[place]
    return make_arch(genes)


def sample_within(space, rng, allowed):
    """A random architecture for which allowed(arch); where 300 are not, one is made smaller, variable by variable,
    until it is or there is nothing smaller (D3)."""
    for _ in range(300):
        arch = sample_arch(space, rng)
        if allowed(arch):
            return arch
    while not allowed(arch) and arch != smallest(space):
        genes = genes_of(arch)
        name = rng.choice([name for name in space if genes[name] != space[name][0]])
        genes[name] = space[name][rng.randrange(list(space[name]).index(genes[name]))]
        arch = make_arch(genes)
    return arch


def fast_candidates(space, predict, limit):
    """Section 4.4: architectures by the rule 1.6 d^m <= d^f <= 1.9 d^m, 0.7 d^m <= d^q|k|v <= d^m, one for each depth:
    the one predicted slowest of those within 95% of the limit (D11)."""
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
    """One line of the history; its chance is its score over the worst one's, and the worst has a little too (D2)."""
    scores = [line["score"] for line in lines]
    return rng.choices(lines, [score - min(scores) + 0.01 * (max(scores) - min(scores)) + 1e-9 for score in scores])[0]


def propose(history, number, cfg, predict, limit):
    """Generation `number` (from 0) of Alg. 2: [(parent's id or None, arch)], a function of the history, the seed and
    the predictor alone, so that a resumed search and every process propose the same. All are new and predicted within
    the limit (D3); a generation is smaller than S only where the limit leaves no more."""
    rng, space = random.Random(f"{cfg.seed} generation {number}"), search_space(cfg)
    if cfg.strategy == "fast":
        return [(None, arch) for arch in fast_candidates(space, predict, limit)] if number == 0 else []
    last = [line for line in history if line["round"] == number - 1 and not line["diverged"]]
    seen, proposals = {line["arch"] for line in history}, []

    def allowed(arch):
        return str(arch) not in seen and predict([arch])[0] <= limit

    def append(parent, arch):
        if allowed(arch) and len(proposals) < cfg.population:
            seen.add(str(arch))
            proposals.append((parent, arch))

    tries = 0
    while len(proposals) < cfg.population and tries < 20 + 20 * len(proposals):  # Alg. 2, line 5
        tries += 1  # they end where next to nothing new is left
        if not last or cfg.strategy == "random":  # Alg. 2, line 2
            append(None, sample_within(space, rng, allowed))
            continue
        parent = roulette(last, rng)  # Alg. 2, line 6
        if rng.random() < cfg.mutation:  # Alg. 2, line 7
            append(parent["id"], mutate(parse_arch(parent["arch"]), space, rng))
        if rng.random() < cfg.exploration:  # Alg. 2, line 8
            append(None, sample_within(space, rng, allowed))
    return proposals


def bert_rule(space, predict, limit):
    """The conventional rule d^q|k|v = d^m, d^f = 4 d^m at each depth: the widest within the limit."""
    found = []
    for layers in space["layers"]:
        archs = [Arch(layers, qkv, 4 * qkv, heads, qkv) for heads, qkv in space["attention"]
                 if 4 * qkv <= max(space["ffn"])]
        within = [arch for arch, time in zip(archs, predict(archs)) if time <= limit] if archs else []
        found += within[-1:]
    return found

# --- objective -----------------------------------------------------------------------------------


def join_sentences(segments, tokenizer):
    """[CLS] A [SEP] B [SEP] with B the text that follows A, or [CLS] A [SEP] where a row is one sentence (D8).

    segments: common.corpus.Segments. Returns ids, segments (R, T), lengths (R,), with T = the segments' width + 3.
    """
    R, width = segments.first.shape
    a, b = segments.first_length[:, None], segments.second_length[:, None]  # (R, 1)
    place = torch.arange(width + 3)[None].expand(R, -1)  # (R, T)
    ids = segments.first.gather(1, (place - 1).clamp(0, width - 1))
    ids = torch.where(place > a + 1, segments.second.gather(1, (place - a - 2).clamp(0, width - 1)), ids)
    lengths = a + b + 2 + (b > 0)
    ids = ids.masked_fill((place == a + 1) | (place == lengths - 1), tokenizer.sep_id)
    ids = ids.masked_fill(place >= lengths, tokenizer.pad_id).masked_fill(place == 0, tokenizer.cls_id)
    return ids, ((place > a + 1) & (place < lengths)).long(), lengths[:, 0]


def mask_tokens(ids, tokenizer, rate, generator):
    """BERT's masking: `rate` of each row's text is predicted; of it 80% becomes [MASK], 10% a random piece, 10% stays.

    ids (B, T). Returns the changed ids, positions (B, I) and labels (B, I); I is the same for all batches of one width,
    -100 marks what a row shorter than T leaves over.
    """
    B, T = ids.shape
    text = (ids != tokenizer.pad_id) & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)
    most = max(1, round(rate * T))
    chance, positions = torch.where(  # (B, I)
        text, torch.rand(B, T, generator=generator), 2.0).topk(most, dim=1, largest=False)
    wanted = (rate * text.sum(1, keepdim=True)).round().clamp(1, most)
    chosen = (torch.arange(most) < wanted) & (chance < 1)  # (B, I)
    originals = ids.gather(1, positions)
    kind = torch.rand(B, most, generator=generator)
    random_piece = torch.randint(tokenizer.vocab_size, (B, most), generator=generator)
    changed = torch.where(kind < 0.8, tokenizer.mask_id, torch.where(kind < 0.9, random_piece, originals))
    return (ids.scatter(1, positions, torch.where(chosen, changed, originals)), positions,
            originals.masked_fill(~chosen, -100))


def masked_loss(model, batch, arch=None):
    """Cross-entropy of sub-model `arch` at the masked positions. batch: ids, segments, lengths, positions, labels."""
    ids, segments, lengths, positions, labels = batch
    logits = model(ids, segments, lengths, positions, arch)  # (B, I, V)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def distillation_loss(student, teacher, lengths):
    """The first stage of TinyBERT on the last layer alone (Sec. 4.1): mean squared differences of the raw attention
    scores (B, N, T, T) and of the states (B, T, W), equally weighted. Pairs and places that are padding are no part of
    the means (D9)."""
    real = torch.arange(student[0].shape[1], device=lengths.device) < lengths[:, None]  # (B, T)
    pairs = (real[:, None, :, None] & real[:, None, None, :]).expand_as(student[1])  # (B, N, T, T)
    states, scores = ((mine.float() - theirs.float()).square() for mine, theirs in zip(student, teacher))
    return (torch.where(pairs, scores, 0).sum() / pairs.sum()
            + torch.where(real[..., None], states, 0).sum() / (real.sum() * states.shape[-1]))

# --- training ------------------------------------------------------------------------------------


class Diverged(Exception):
    """A loss or a gradient became infinite or not a number."""


@dataclasses.dataclass
class Data:
    """What a run reads, on one device."""
    tokenizer: object
    train: object  # common.corpus.Corpus to train on
    dev: object  # held-out part
    tasks: list  # of Task
    teacher: object  # Encoder, or None
    device: torch.device


def schedule(step, steps, warmup):
    """Share of the peak learning rate at a step: linear up over warmup x steps, then linear down to 0."""
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else (steps - step) / max(1, steps - rise)


def text_batch(corpus, data, cfg, position, rows):
    """Training examples position .. position + rows - 1 of the endless stream, on the device; masked unless there is a
    teacher (D9)."""
    from common.distributed import seed_of
    ids, kinds, lengths = join_sentences(corpus.segments(position, rows, cfg.length - 3, cfg.seed), data.tokenizer)
    batch = [ids, kinds, lengths]
    if not data.teacher:
        generator = torch.Generator().manual_seed(seed_of(cfg.seed, "mask", position))
        ids, positions, labels = mask_tokens(ids, data.tokenizer, cfg.mask_rate, generator)
        batch = [ids, kinds, lengths, positions, labels]
    return [tensor.to(data.device, non_blocking=True) for tensor in batch]


def make_objective(data, cfg, batch):
    """loss(model, arch) on a batch. The teacher is asked once, without gradients, and serves every sub-model."""
    from common.distributed import autocast
    if data.teacher:
        with torch.no_grad(), autocast(cfg.dtype, data.device):
            target = data.teacher(*batch, with_scores=True)

    def loss(model, arch):
        with autocast(cfg.dtype, data.device):
            return (distillation_loss(model.student(*batch, arch), target, batch[2]) if data.teacher
                    else masked_loss(model, batch, arch))

    return loss


@torch.no_grad()
def held_out_loss(model, data, cfg, arch=None, rows=256):
    """The training objective on held-out text."""
    model.eval()
    size = min(rows, cfg.batch)
    losses = [make_objective(data, cfg, text_batch(data.dev, data, cfg, start, size))(model, arch).item()
              for start in range(0, rows, size)]
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def held_out_accuracy(model, data, cfg, rows=1024, size=64):
    """The task "MLM" (D12): the share of masked pieces of held-out text, the same for every model, that are found."""
    from common.distributed import autocast
    model.to(data.device).eval()
    found = count = 0
    for start in range(0, rows, size):
        *inputs, labels = text_batch(data.dev, data, cfg, start, size)
        with autocast(cfg.dtype, data.device):
            guesses = model(*inputs).argmax(-1)  # (B, I)
        found, count = found + (guesses == labels).sum().item(), count + (labels != -100).sum().item()
    return found / count


def pretrain(model, draw, data, cfg, run, folder, steps, warmup, probes=(None,)):
    """Alg. 1. Train the model in place, or load what an earlier call left in `folder`, and return [(step, held-out loss
    of each probe)].

    draw(step, shard): the sub-models of a sub-batch; [None] is the model as it is, which makes this an ordinary
    training. probes: sub-models whose held-out loss is followed. Raises Diverged, and Stop after SIGTERM (state saved).
    """
    from common.distributed import (Checkpoint, ShardSum, Stop, peak_memory, progress, read_json, reduce_mean,
                                    seed_everything, shard_range, stopping)
    ranks, N, rows = run.ranks, cfg.accumulate, cfg.batch // cfg.accumulate
    if (folder / "curve.json").exists():
        model.load_state_dict(load_model(folder, cfg)[0].state_dict())
        return read_json(folder / "curve.json")
    folder.mkdir(parents=True, exist_ok=True)
    model.to(data.device).train()
    optimizer = SlicedAdamW(model, cfg.weight_decay)
    checkpoint = Checkpoint(folder / "checkpoint.pt", ranks, model=model, optimizer=optimizer)
    saved = checkpoint.restore()
    start, curve, every = saved.get("step", 0), saved.get("curve", []), max(1, steps // 20)
    if cfg.compile and probes == (None,):
        model.encoder.compile()
    bar, began, first = progress(ranks, steps, folder.name, start), time.perf_counter(), start
    for step in range(start, steps):
        archs = [draw(step, shard) for shard in range(N)]  # Alg. 1, line 7: the same list on every process
        total, losses = ShardSum(ranks), []
        for shard in shard_range(ranks, N):  # Alg. 1, lines 3, 4 and 8
            loss_of = make_objective(data, cfg, text_batch(data.train, data, cfg, (step * N + shard) * rows, rows))
            optimizer.grads.zero_()  # Alg. 1, line 5
            for sample, arch in enumerate(archs[shard]):  # Alg. 1, line 6
                seed_everything(cfg.seed, folder.name, step, shard, sample)
                loss = loss_of(model, arch) / (N * len(archs[shard]))
                loss.backward()  # Alg. 1, line 9
                losses.append(loss.detach())
            total.add([optimizer.grads])
        optimizer.used.zero_()
        mark_used(model, set(itertools.chain(*archs)), optimizer.used_views)
        lr = cfg.lr * schedule(step, steps, warmup)
        norm = optimizer.step(total.total(), optimizer.used, lr, cfg.clip)  # Alg. 1, line 11
        bar.update(1)
        if (step + 1) % every == 0 or step + 1 == steps:
            curve.append([step + 1, *(held_out_loss(model, data, cfg, probe) for probe in probes)])
            loss, = reduce_mean(ranks, ranks.size * sum(losses).item())
            speed = (step + 1 - first) * cfg.batch * cfg.length / (time.perf_counter() - began)
            if not math.isfinite(norm.item() + loss + curve[-1][1]):
                raise Diverged(f"{folder.name}: loss {loss:.4g}, gradient norm {norm.item():.4g} at step {step + 1}")
            run.log(phase=folder.name, step=step + 1, loss=loss, held_out=curve[-1][1:], lr=lr, tokens_per_second=speed,
                    memory=peak_memory(data.device))
            bar.set_postfix(loss=f"{loss:.3f}", held_out=f"{curve[-1][1]:.3f}", tok_s=f"{speed:.0f}")
        stop = (ranks.size == 1 or step % 10 == 0) and stopping(ranks)  # a collective question
        if stop or (step + 1) % cfg.save_every == 0 and step + 1 < steps:
            if not math.isfinite(norm.item()):
                raise Diverged(f"{folder.name}: gradient norm {norm.item():.4g} at step {step + 1}")
            checkpoint.save(step=step + 1, curve=curve)
        if stop:
            raise Stop
    bar.close()
    finish_training(model, data, run, folder, curve)
    checkpoint.remove()
    return curve


def finish_training(model, data, run, folder, curve):
    """Write the trained model into its folder; curve.json, last, says that it is complete."""
    from common.distributed import barrier, on_main, write_atomic
    model.zero_grad(set_to_none=True)  # the gradients were views of one tensor as large as the model
    on_main(run.ranks, save_model, folder, model, data.tokenizer)
    on_main(run.ranks, write_atomic, folder / "curve.json", json.dumps(curve))
    barrier(run.ranks)


# Weights on disk are in Hugging Face layout, SuperPLMs, stand-alone models and exports alike, so one reader serves
# --init and --teacher.

HF_LAYER = {"query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
            "output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
            "expand": "intermediate.dense", "shrink": "output.dense", "ffn_norm": "output.LayerNorm"}
HF_OTHER = {"encoder.words": "bert.embeddings.word_embeddings",
            "encoder.positions": "bert.embeddings.position_embeddings",
            "encoder.segments": "bert.embeddings.token_type_embeddings", "encoder.norm": "bert.embeddings.LayerNorm",
            "encoder.project": "bert.embeddings_project", "encoder.pooler": "bert.pooler.dense",
            "transform": "cls.predictions.transform.dense", "transform_norm": "cls.predictions.transform.LayerNorm",
            "fit": "fit"}


def hf_name(name, spans=False):
    """The Hugging Face name of a parameter of LanguageModel, or of TaskModel."""
    if name == "decoder_bias":
        return "cls.predictions.bias"
    if name.startswith("head."):
        return name.replace("head", "qa_outputs" if spans else "classifier")
    module, kind = name.rsplit(".", 1)
    if ".layers." in module:
        _, _, layer, module = module.split(".")
        return f"bert.encoder.layer.{layer}.{HF_LAYER[module]}.{kind}"
    return f"{HF_OTHER[module]}.{kind}"


def read_folder(path, names=("model", "superplm")):
    """(folder, config.json, {Hugging Face name: tensor}) of a Hugging Face folder, or of a run's first of `names`."""
    from common.cli import UserError
    from common.weights import read_weights
    folder = next((Path(path) / name for name in names if (Path(path) / name / "config.json").exists()), Path(path))
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{folder}: no readable config.json; give a run folder with a finished model, or a "
                        "Hugging Face folder") from None
    config = config if isinstance(config, dict) else {}
    if "settings" in config:
        raise UserError(f"{folder}: this run has no finished model ({' or '.join(names)}) yet")
    for key, default, readable in (("model_type", None, ("bert", "electra")), ("hidden_act", "gelu", ("gelu",)),
                                   ("layer_norm_eps", 1e-12, (1e-12,)),
                                   ("position_embedding_type", "absolute", ("absolute",))):
        if config.get(key, default) not in readable:
            raise UserError(f"{folder / 'config.json'}: {key} is {config.get(key)!r}; only "
                            f"{' and '.join(map(str, readable))} can be read here")
    try:
        arch_of(config)
    except (KeyError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: this describes no architecture ({error})") from None
    weights = {}
    for name, value in read_weights(folder).items():
        name = re.sub(r"^(electra\.|(?=embeddings|encoder\.layer|pooler))", "bert.", name)
        weights[name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = value
    return folder, config, weights


def arch_of(config):
    """The Arch that a config.json describes; KeyError or ValueError where it does not."""
    names = "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"
    return parse_arch("-".join(str(size) for size in (*(config[name] for name in names),
                                                      config.get("qkv_size", config["hidden_size"]))))


def table_sizes(weights):
    """(pieces, positions) of weights under Hugging Face names; 1 for a table that is missing, which take_over names."""
    return [len(weights.get(f"bert.embeddings.{name}_embeddings.weight", [0])) for name in ("word", "position")]


def take_over(module, weights, place, prefix=""):
    """Copy weights under Hugging Face names into a LanguageModel (an Encoder with prefix "encoder."); returns a line
    that says what was done."""
    from common.cli import UserError
    state, anew = module.state_dict(), []
    for name, value in state.items():
        found = weights.get(hf_name(prefix + name))
        if found is None:
            anew.append(name)
            if (prefix + name).startswith("encoder.") and "pooler" not in name:
                raise UserError(f"{place}: {hf_name(prefix + name)} is missing; this is no whole BERT")
        elif found.shape != value.shape:
            raise UserError(f"{place}: {hf_name(prefix + name)} is {tuple(found.shape)}, "
                            f"but config.json asks for {tuple(value.shape)}")
        else:
            value.copy_(found)
    left = set(weights) - {hf_name(prefix + name) for name in state}
    return (f"{place}: {len(state) - len(anew)} tensors taken over; made anew: {', '.join(anew) or 'none'}; left out: "
            f"{', '.join(sorted(left)) or 'none'}")


def load_model(path, cfg, names=("model", "superplm"), fit=0):
    """(LanguageModel, note) from a Hugging Face or run folder, in its own architecture; note: what was taken over.
    fit: the width of the teacher that it will follow, whatever it learnt from before."""
    folder, config, weights = read_folder(path, names)
    fit = fit or (weights["fit.weight"].shape[0] if "fit.weight" in weights else 0)
    vocab, positions = table_sizes(weights)
    model = LanguageModel(arch_of(config), vocab, cfg.dropout, fit, positions)
    return model, take_over(model, weights, folder)


def load_teacher(cfg, ranks, heads):
    """The Encoder of --teacher, frozen; UserError where a student with so many heads cannot follow its attention."""
    from common.cli import UserError
    from common.distributed import say
    if cfg.setting != "distill":
        if cfg.teacher:
            raise UserError(f"--teacher {cfg.teacher}: --setting {cfg.setting} drops heads, and a teacher is "
                            "followed head by head; use --setting distill, which keeps all heads and narrows each")
        return None
    if not cfg.teacher:
        raise UserError("--setting distill follows a teacher: give --teacher DIR, a BERT, ELECTRA or run folder")
    folder, config, weights = read_folder(cfg.teacher)
    arch, (vocab, positions) = arch_of(config), table_sizes(weights)
    if arch.heads != heads:
        raise UserError(f"{folder}: the teacher has {arch.heads} heads and the student {heads}; attention is compared "
                        "head by head, so use --setting distill, which keeps all heads, "
                        f"with --heads {arch.heads} (and a --hidden that it divides)")
    width = weights.get("bert.embeddings.word_embeddings.weight", torch.zeros(1, arch.hidden)).shape[-1]
    teacher = Encoder(arch, vocab, 0.0, positions, width)
    say(ranks, "teacher", take_over(teacher, weights, folder, "encoder."))
    if positions < cfg.length:
        raise UserError(f"{folder}: the teacher has {positions} positions, too few for --length {cfg.length}")
    return teacher.to(ranks.device).eval().requires_grad_(False)


def make_model(arch, cfg, data):
    """A LanguageModel with fresh weights, a function of the seed and the architecture."""
    from common.distributed import seed_everything
    seed_everything(cfg.seed, "weights", str(arch))
    model = LanguageModel(arch, data.tokenizer.vocab_size, cfg.dropout, data.teacher.arch.hidden if data.teacher else 0)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(cfg.init_std / 0.02 if value.dim() > 1 else 1)
    return model


def start_model(arch, cfg, data, ranks, names=("model", "superplm")):
    """The LanguageModel to start from: --init's weights, cut to `arch` (None: as they are), or fresh ones; UserError
    where it does not fit to the data."""
    from common.cli import UserError
    from common.distributed import say, seed_everything
    if not cfg.init:
        return make_model(arch, cfg, data)
    if arch and arch_of(read_folder(cfg.init, names)[1]) != arch:
        names = ("superplm", "model")  # sub-models are parts of the SuperPLM, not of the model that came out of it
    seed_everything(cfg.seed, "weights made anew")
    model, note = load_model(cfg.init, cfg, names, data.teacher.arch.hidden if data.teacher else 0)
    say(ranks, note)
    longest = max([cfg.length, *(cfg.squad_length for task in data.tasks if task.name == "SQuAD")])
    if (data.train or data.tasks) and model.encoder.positions.num_embeddings < longest:
        raise UserError(f"{cfg.init}: the model has {model.encoder.positions.num_embeddings} positions, too few for "
                        f"--length or --squad_length {longest}")
    if data.train and not data.teacher and hasattr(model, "fit"):
        raise UserError(f"{cfg.init}: a distilled model has no masked-language-model head; go on with --setting "
                        "distill and its --teacher, or name other tasks than MLM")
    if model.encoder.words.num_embeddings != data.tokenizer.vocab_size:
        raise UserError(f"{cfg.init}: {model.encoder.words.num_embeddings} pieces in the model, "
                        f"{data.tokenizer.vocab_size} in {data.tokenizer.path}; give its own with --tokenizer")
    if arch and arch != model.encoder.arch:
        reason = why_outside(arch, model.encoder.arch)
        if reason:
            raise UserError(f"{cfg.init}: {reason}; choose a smaller --arch")
        model = extract(model, arch)
    return model


def save_model(folder, model, tokenizer):
    """Write a LanguageModel or a TaskModel as a Hugging Face folder: weights, vocabulary, config.json (last)."""
    from common.distributed import write_atomic
    from common.weights import write_weights
    arch, encoder = model.encoder.arch, model.encoder
    Path(folder).mkdir(parents=True, exist_ok=True)
    tuned, spans = hasattr(model, "head"), getattr(model, "spans", False)
    kind = (("BertForQuestionAnswering" if spans else "BertForSequenceClassification") if tuned
            else "BertForMaskedLM" if hasattr(model, "transform") else "BertModel")
    write_weights(Path(folder) / "model.safetensors",
                  {hf_name(name, spans): value for name, value in model.state_dict().items()})
    name = tokenizer.save(folder).name
    reader = {"vocab.txt": "BertTokenizer", "spiece.model": "AlbertTokenizer"}[name]
    write_atomic(Path(folder) / "tokenizer_config.json", json.dumps({"tokenizer_class": reader, "do_lower_case":
                 tokenizer.lower, "model_max_length": encoder.positions.num_embeddings}))
    config = {"model_type": "bert", "architectures": [kind],
              **({"num_labels": model.head.out_features} if tuned else {}),
              "num_hidden_layers": arch.layers, "hidden_size": arch.hidden, "intermediate_size": arch.ffn,
              "num_attention_heads": arch.heads, "qkv_size": arch.qkv, "hidden_act": "gelu",
              "hidden_dropout_prob": encoder.dropout.p, "attention_probs_dropout_prob": encoder.dropout.p,
              "layer_norm_eps": 1e-12, "initializer_range": 0.02,
              "max_position_embeddings": encoder.positions.num_embeddings, "type_vocab_size": 2,
              "vocab_size": encoder.words.num_embeddings, "pad_token_id": tokenizer.pad_id}
    write_atomic(Path(folder) / "config.json", json.dumps(config, indent=2))


# Fine-tuning.

FINE_TUNING = {  # Table D.1: task: (batch, learning rate, epochs); WNLI, which the paper leaves out, takes RTE's
    "SQuAD": (16, 3e-5, 4), "SST-2": (32, 2e-5, 4), "MNLI": (32, 3e-5, 4), "MRPC": (32, 2e-5, 10),
    "CoLA": (32, 1e-5, 10), "QNLI": (32, 2e-5, 10), "QQP": (32, 2e-5, 5), "STS-B": (32, 3e-5, 10),
    "RTE": (32, 2e-5, 10)}


@dataclasses.dataclass
class Task:
    """A task of --tasks: SQuAD v1.1 (kind None), or one of GLUE (kind a common.glue.Task)."""
    name: str
    kind: object
    features: dict  # {split: common.squad.Features or common.glue.Features}
    batch: int
    lr: float
    epochs: int

    @property
    def module(self):
        """common.squad or common.glue, which have batches() alike."""
        from common import glue, squad
        return glue if self.kind else squad

    def steps(self):
        return self.epochs * math.ceil(len(self.features["train"]) / self.batch)

    def loss(self, logits, batch):
        """Fine-tuning loss of a batch on the logits' device."""
        if not self.kind:
            return sum(F.cross_entropy(logits[..., side], batch[name].to(logits.device))
                       for side, name in enumerate(("start", "end"))) / 2
        labels = batch["labels"].to(logits.device)
        return F.mse_loss(logits[:, 0], labels) if self.kind.regression else F.cross_entropy(logits, labels)

    def score(self, logits, split="dev"):
        """The number of Table 1 as a share: F1 for SQuAD, Matthews for CoLA, the mean of both correlations for STS-B,
        accuracy for the rest."""
        from common import glue, squad
        features = self.features[split]
        if not self.kind:
            if not torch.isfinite(logits).all():
                return 0.0
            answers = squad.extract(features, logits[..., 0], logits[..., 1])
            return squad.evaluate(features.questions, answers.texts)["f1"] / 100
        values = glue.score(self.kind, logits.numpy(), features.labels)
        return ((values["pearson"] + values["spearman"]) / 2 if self.kind.regression
                else values.get("matthews", values.get("accuracy")))


def parse_task_names(text):
    """Names in FINE_TUNING's spelling, and MLM; "glue" is all of GLUE's."""
    from common import glue
    others, chosen = {"squad": "SQuAD", "mlm": "MLM"}, []
    for name in text.replace(",", " ").split() or [""]:
        chosen += [others[name.lower()]] if name.lower() in others else [task.name for task in glue.parse_tasks(name)]
    return list(dict.fromkeys(chosen))


def load_task(name, cfg, tokenizer, every=False):
    """A Task with its features; --train_rows cuts the training part, flags override Table D.1. every: also GLUE's test
    parts and MNLI's mismatched ones, where the files are there."""
    from common import glue, squad
    if name == "MLM":  # nothing to fine-tune
        return Task(name, None, {}, 0, 0.0, 0)
    batch, lr, epochs = FINE_TUNING.get(name, FINE_TUNING["RTE"])
    recipe = cfg.finetune_batch or batch, cfg.finetune_lr or lr, cfg.finetune_epochs or epochs
    rows = cfg.train_rows or None
    if name == "SQuAD":
        questions = {split: squad.load(Path(cfg.squad) / f"{split}-v1.1.json") for split in ("train", "dev")}
        questions["train"] = questions["train"][:rows]
        windows = {split: squad.features(part, tokenizer, cfg.squad_length, training=split == "train")
                   for split, part in questions.items()}
        return Task(name, None, windows, *recipe)
    files = {split: glue.MNLI_FILES.get(split, split) if name == "MNLI" else split
             for split in ("dev_mismatched", "test", "test_mismatched")}
    others = [split for split, file in files.items() if every and (Path(cfg.glue) / name / f"{file}.tsv").exists()]
    examples = {split: glue.load(cfg.glue, name, split) for split in ("train", "dev", *others)}
    examples["train"] = examples["train"].head(cfg.train_rows)
    return Task(name, glue.TASKS[name],
                {split: glue.encode(part, tokenizer, cfg.length) for split, part in examples.items()}, *recipe)


def fine_tune(encoder, task, cfg, device, seed):
    """Fine-tune a copy of the encoder on a task. Returns the TaskModel; raises Diverged, and Stop after SIGTERM."""
    from common.distributed import Stop, autocast, seed_everything, stop_requested
    seed_everything(seed, "head", task.name)
    model = TaskModel(copy.deepcopy(encoder), task.kind.classes if task.kind else 2, not task.kind).to(device).train()
    groups = [{"params": [value for value in model.parameters() if (value.dim() > 1) == decayed],
               "weight_decay": cfg.weight_decay * decayed} for decayed in (True, False)]
    optimizer, steps = torch.optim.AdamW(groups, lr=task.lr, eps=1e-6, fused=True), task.steps()
    batches = (batch for epoch in range(task.epochs)
               for batch in task.module.batches(task.features["train"], task.batch, seed=seed, epoch=epoch))
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = task.lr * schedule(step, steps, cfg.finetune_warmup)
        seed_everything(seed, "fine-tuning", task.name, step)
        with autocast(cfg.dtype, device):
            logits = model(*(batch[key].to(device) for key in ("ids", "segments", "lengths"))).float()
        loss = task.loss(logits, batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        optimizer.zero_grad()
        if (step % 50 == 0 or step + 1 == steps) and not math.isfinite(norm + loss.detach()):
            raise Diverged(f"{task.name}: loss {loss:.4g} at step {step}")
        if stop_requested():
            raise Stop
    return model


@torch.no_grad()
def predict_task(model, task, cfg, device, split="dev"):
    """Logits of a split in the order of its rows, on the CPU: (rows, classes), or (windows, longest, 2)."""
    from common.distributed import autocast
    features = task.features[split]
    model.eval()
    shape = (len(features), task.kind.classes) if task.kind else (len(features), int(features.lengths.max()), 2)
    logits = torch.zeros(shape)
    for batch in task.module.batches(features, 4 * task.batch):
        with autocast(cfg.dtype, device):
            output = model(*(batch[key].to(device) for key in ("ids", "segments", "lengths"))).float().cpu()
        if task.kind:
            logits[batch["index"]] = output
        else:
            # the batch's width, rounded up, may pass the longest window
            logits[batch["index"], :output.shape[1]] = output[:, :shape[1]]
    return logits


def keep_tuned(tuned, task, data, cfg, folder):
    """Write a TaskModel's folder: its weights, the leaderboard's files of GLUE's test parts, or SQuAD's
    predictions.json of dev. Returns further scores: MNLI's mismatched one."""
    from common import glue, squad
    from common.distributed import write_atomic
    save_model(folder, tuned, data.tokenizer)
    logits = {split: predict_task(tuned, task, cfg, data.device, split) for split in task.features if split != "train"}
    if not task.kind:
        texts = squad.extract(task.features["dev"], logits["dev"][..., 0], logits["dev"][..., 1]).texts
        write_atomic(folder / "predictions.json", json.dumps(texts))
    for split in logits:
        if split.startswith("test"):
            glue.write_submission(folder, task.kind, logits[split], split)
    return {"MNLI-mm": task.score(logits[split], split) for split in logits if split == "dev_mismatched"}


def judge(model, data, cfg, seed=0, folder=None):
    """What a trained LanguageModel is worth: fine-tuned on each task, scored on its dev part. Returns {score, scores,
    diverged, seconds}. folder: keep the fine-tuned model there."""
    began, result = time.perf_counter(), {"score": -1.0, "scores": {}, "diverged": False}
    try:
        for task in data.tasks:
            if task.name == "MLM":
                result["scores"]["MLM"] = held_out_accuracy(model, data, cfg)
                continue
            tuned = fine_tune(model.encoder, task, cfg, data.device, cfg.seed + seed)
            result["scores"][task.name] = task.score(predict_task(tuned, task, cfg, data.device))
            if folder:
                result["scores"] |= keep_tuned(tuned, task, data, cfg, folder)
        result["score"] = sum(result["scores"][task.name] for task in data.tasks) / len(data.tasks)  # Sec. 3.5
    except Diverged:  # the worst score, and the search goes on
        result["diverged"] = True
    return {**result, "seconds": round(time.perf_counter() - began, 3)}


def share_out(names, folder, run, work):
    """[work(0), work(1), ...] for len(names) jobs, shared out over the processes. Each JSON result is kept as
    folder/NAME.json, and what is there is not done again. Raises Stop on every process after SIGTERM on any."""
    from common.distributed import Stop, read_json, stop_requested, stopping, write_atomic
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(Stop):  # who left here alone would leave the others waiting
        for index in range(run.ranks.rank, len(names), run.ranks.size):
            if not stop_requested() and not (folder / f"{names[index]}.json").exists():
                write_atomic(folder / f"{names[index]}.json", json.dumps(work(index)))
    if stopping(run.ranks):  # waits for all
        raise Stop
    return [read_json(folder / f"{name}.json") for name in names]


# The phases of --search.


def open_run(cfg, action, ranks, text=True, tasks=None):
    """Open the run folder and what the action reads. Returns (common.distributed.RunFolder, Data); Data is None where
    nothing is to be read, or the run is finished, which is said."""
    from common.cli import UserError
    from common.distributed import RunFolder, say, shard_range
    from common.inputs import fill_in, open_text
    from common.tokenization import load_tokenizer
    settings, names = dataclasses.asdict(cfg), [] if tasks is None else parse_task_names(tasks)
    if not 8 <= cfg.length <= 512 or "SQuAD" in names and not 8 <= cfg.squad_length <= 512:
        raise UserError(f"--length {cfg.length}, --squad_length {cfg.squad_length}: choose 8 to 512 positions")
    if cfg.batch % cfg.accumulate:
        raise UserError(f"--batch {cfg.batch} cannot be cut in --accumulate {cfg.accumulate} equal sub-batches")
    if text and action != "finetune":
        shard_range(ranks, cfg.accumulate)  # a UserError now rather than in the first step
    if "MLM" in names and cfg.setting == "distill":
        raise UserError("--tasks MLM: --setting distill trains no masked-language-model head; name other tasks")
    needed = ["corpus"] * text + ["squad"] * ("SQuAD" in names) + ["glue"] * bool(set(names) - {"SQuAD", "MLM"})
    run = RunFolder(cfg.out, settings, action, ranks, cfg.restart, fill_in(cfg, ranks, *needed))
    if run.finished:
        say(ranks, f"{run.folder}: finished (--restart begins anew)\n{json.dumps(run.finished, indent=2)}")
    if run.finished or not text and not names:
        return run, None
    sources = [read_folder(source)[0] for source in (cfg.init, cfg.teacher) if source]
    own = {folder: next((folder / name for name in ("vocab.txt", "spiece.model") if (folder / name).exists()), None)
           for folder in sources}
    for folder, path in own.items():
        if not cfg.tokenizer and not path:
            raise UserError(f"{folder}: no vocab.txt and no spiece.model is here; give its vocabulary with --tokenizer")
        cfg.tokenizer = cfg.tokenizer or str(path)
    student = (parse_arch(cfg.arch) if cfg.arch else
               arch_of(read_folder(cfg.init)[1]) if cfg.init and action == "further_train" else super_arch(cfg))
    teacher = load_teacher(cfg, ranks, student.heads) if text else None
    opened = open_text(cfg, ranks, run.folder) if text else None  # D10
    tokenizer = opened.tokenizer if opened else load_tokenizer(cfg.tokenizer)
    for folder, path in own.items():
        mine = path and load_tokenizer(path)
        if path and (mine.fingerprint, mine.lower) != (tokenizer.fingerprint, tokenizer.lower):
            raise UserError(f"{path}: another vocabulary (or case) than {tokenizer.path}; a model, its teacher and the "
                            "corpus must share one: give it with --tokenizer, and a --corpus of plain text")
    if teacher and teacher.words.num_embeddings != tokenizer.vocab_size:
        raise UserError(f"{cfg.teacher}: {teacher.words.num_embeddings} pieces in the teacher, "
                        f"{tokenizer.vocab_size} in {tokenizer.path}; give the teacher's own")
    if opened and not teacher and tokenizer.mask_id is None:
        raise UserError(f"{tokenizer.path}: the vocabulary lacks [MASK]; take another")
    loaded = [load_task(name, cfg, tokenizer, every=action == "finetune") for name in names]
    return run, Data(tokenizer, opened and opened.train, opened and opened.dev, loaded, teacher, ranks.device)


def checked_space(cfg, variant="ebl"):
    """search_space, its ValueError as a UserError."""
    from common.cli import UserError
    try:
        return search_space(cfg, variant)
    except ValueError as error:
        raise UserError(str(error)) from None


def checked_arch(text, needed=True):
    """The Arch of --arch: its text form, or a best.json. None where there is no text and none is needed; UserError
    where it is no architecture, or one whose layers differ, which no config.json can describe."""
    from common.cli import UserError
    if not text and not needed:
        return None
    if not text:
        raise UserError("give --arch layers-hidden-ffn-heads-qkv, such as 5-564-1054-8-512, or the path of a best.json")
    try:
        arch = parse_arch(json.loads(Path(text).read_text())["arch"] if text.endswith(".json") else text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{text}: no architecture is here ({error})") from None
    if "/" in str(arch):
        raise UserError(f"{arch}: give one number for all layers; layers of their own are for --variant hat alone")
    return arch


def train_superplm(variant, steps, data, cfg, run, folder):
    """One-shot training (Alg. 1), or loading what it left in `folder`. Returns the SuperPLM."""
    space, arch = checked_space(cfg, variant), super_arch(cfg)
    model = start_model(arch, cfg, data, run.ranks) if cfg.init else make_model(arch, cfg, data)
    least = (space["attention"] if VARIANTS[variant][1] else space["attention"][-1:])[0]
    probes = (arch, make_arch({**{name: choices[0] for name, choices in space.items()}, "attention": least}))
    pretrain(model, lambda step, shard: sub_models(cfg, variant, step, shard), data, cfg, run, folder, steps,
             cfg.warmup, probes)
    return model


def latency_setting(cfg):
    """What a measurement holds for; measurements of other settings are left alone."""
    from common.distributed import environment, pick_device
    device = pick_device(cfg.latency_device)
    return {"device": str(device), "threads": cfg.latency_threads, "batch": cfg.latency_batch,
            "length": cfg.latency_length, "clock": cfg.latency_clock, "hardware": environment(device)["hardware"]}


def whole_lines(path):
    """The lines of the latency file; a last one that a crash tore off is left out."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    try:
        json.loads(lines[-1])
        return lines
    except ValueError:
        return lines[:-1]


def read_measurements(cfg, folder):
    """{Arch: [milliseconds]} of the latency file, in its order; UserError names a line that is no measurement."""
    from common.cli import UserError
    found, setting, path, number = {}, latency_setting(cfg), Path(cfg.latency_data or folder / "latency.jsonl"), 0
    try:
        for number, text in enumerate(whole_lines(path), 1):
            line = json.loads(text)
            arch, took = parse_arch(line["arch"]), float(line["milliseconds"])
            if not 0 < took < math.inf:
                raise ValueError(f"{took} milliseconds")
            if all(line.get(key) == value for key, value in setting.items()):
                found.setdefault(arch, []).append(took)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}, line {number}: no measurement ({error}); delete the line, or name another file with "
                        "--latency_data") from None
    return found


def measure_latency(cfg, folder, space, again=0):
    """Measure the reference, the smallest and --latency_archs random architectures of the whole space, --latency_rounds
    times each, one round after the other; what the file holds already counts. again: further measurements of the
    first two. Returns {Arch: [milliseconds]}."""
    from common.cli import UserError
    from common.distributed import Stop, stop_requested, write_atomic
    from tqdm import tqdm
    rng, found, setting = random.Random(f"{cfg.seed} latency"), read_measurements(cfg, folder), latency_setting(cfg)
    archs = dict.fromkeys([checked_arch(cfg.reference), smallest(space)])
    archs.update(dict.fromkeys(arch for arch in found if why_outside(arch, super_arch(cfg)) is None))
    while len(archs) < min(cfg.latency_archs + 2, space_size(space)):
        archs[sample_arch(space, rng)] = None
    if len(archs) < 4:  # the reference, and three for report_predictors to learn from and to predict
        raise UserError(f"--latency_archs {cfg.latency_archs} of {space_size(space)}: too few to learn from")
    jobs = [arch for round_ in range(cfg.latency_rounds) for arch in archs if len(found.get(arch, [])) <= round_]
    jobs += again * [checked_arch(cfg.reference), smallest(space)]
    path = Path(cfg.latency_data or folder / "latency.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_bytes()[-1:] != b"\n":
        write_atomic(path, "".join(line + "\n" for line in whole_lines(path)))
    with target_threads(cfg), open(path, "a", encoding="utf-8") as file:
        for arch in tqdm(jobs, desc="latency", disable=None):
            found.setdefault(arch, []).append(time_model(arch, cfg))
            file.write(json.dumps({"arch": str(arch), "milliseconds": found[arch][-1], **setting}) + "\n")
            file.flush()
            if stop_requested():
                raise Stop
    # one order, so that what is learnt does not depend on the file's
    return {arch: found[arch] for arch in sorted(archs, key=str)}


def time_together(archs, cfg, rounds=5):
    """{arch: milliseconds}: medians over rounds, in each of which all are measured one after the other: drift of the
    machine meets all alike. Raises Stop after SIGTERM."""
    from common.distributed import Stop, stop_requested
    times = {arch: [] for arch in archs}
    with target_threads(cfg):
        for arch in rounds * list(times):
            times[arch].append(time_model(arch, cfg))
            if stop_requested():
                raise Stop
    return {arch: sorted(column)[rounds // 2] for arch, column in times.items()}


def report_predictors(measured, cfg, folder):
    """Fit each kind of predictor on four fifths of the architectures and report its error on the rest: tables on the
    screen and in the folder."""
    from common.metrics import kendall
    from common.report import write_report
    archs = [arch for arch in measured if str(arch) != cfg.reference]
    unseen, seen = archs[::5], [arch for index, arch in enumerate(archs) if index % 5]
    target, rows, predictions = [min(measured[arch]) for arch in unseen], [], {}
    for kind in ("linear", "mlp", "flops"):
        predictor = Predictor(kind, super_arch(cfg), cfg.latency_length)
        predictor.fit(seen, [min(measured[arch]) for arch in seen])
        predictions[kind] = predictor(unseen)
        errors = [abs(guess / real - 1) for guess, real in zip(predictions[kind], target)]
        rows.append([kind, len(seen), len(unseen), 100 * sum(errors) / len(errors), 100 * max(errors),
                     kendall(predictions[kind], target)])
    twice = [times[:2] for times in (measured[arch] for arch in archs) if len(times) > 1]
    noise = [200 * abs(a - b) / (a + b) for a, b in twice] or [0.0]
    rows.append(["one measurement against another", "", len(twice), sum(noise) / len(noise), max(noise),
                 kendall(*zip(*twice)) if twice else 0.0])
    columns = ["predictor", "learnt from", "unseen", "MAPE %", "worst %", "Kendall's tau"]
    write_report(folder, "predictor", columns, rows)
    table = [[str(arch), real, *guesses] for arch, real, *guesses in zip(unseen, target, *predictions.values())]
    write_report(folder, "predicted", ["unseen architecture", "measured ms", *(f"{kind} ms" for kind in predictions)],
                 table[::max(1, len(table) // 20)], {"all": table})


def learn_latency(cfg, run):
    """Measure, learn, report; again where other --latency_archs or --latency_rounds are asked of a folder without
    candidates. Returns (predict, limit in ms); UserError where nothing meets the limit."""
    from common.cli import UserError
    from common.distributed import load_file, on_main, save_file
    space, folder, reference = checked_space(cfg), run.folder, checked_arch(cfg.reference)
    path, predict = folder / "predictor.pt", Predictor(cfg.predictor, super_arch(cfg), cfg.latency_length)
    asked = [cfg.latency_archs, cfg.latency_rounds]

    def learn(again):
        measured = measure_latency(cfg, folder, space, again)
        report_predictors(measured, cfg, folder)
        archs = [arch for arch in measured if why_outside(arch, super_arch(cfg)) is None]
        predict.fit(archs, [min(measured[arch]) for arch in archs])
        save_file(path, {"weights": predict.weights, "reference": min(measured[reference]),
                         "smallest": min(measured[smallest(space)]), "asked": asked})

    for again in (0, 5):  # before a limit is called impossible, what says so is measured again
        known = on_main(run.ranks, lambda: load_file(path).get("asked", asked) if path.exists() else None)
        if known not in (None, asked) and any(folder.rglob("candidates")):
            raise UserError(f"{folder}: its candidates were proposed with --latency_archs {known[0]} --latency_rounds "
                            f"{known[1]}; go on with these, or choose another --out")
        if again or known != asked:
            on_main(run.ranks, learn, again)
        saved = load_file(path)
        predict.weights = saved["weights"]
        limit, fastest = saved["reference"] / cfg.speedup, max(saved["smallest"], *predict([smallest(space)]))
        if fastest <= limit:
            return predict, limit
    raise UserError(f"--speedup {cfg.speedup}: nothing in the search space is so fast; the fastest, {smallest(space)}, "
                    f"reaches {saved['reference'] / fastest:.1f} x {cfg.reference} here")


def evolve(superplm, predict, limit, data, cfg, run, folder):
    """Alg. 2, or one of the other strategies: the history, one dictionary for each evaluated architecture. The
    candidates of a generation are shared out over the processes; all else is the same on each of them."""
    from common.cli import UserError
    from common.distributed import say, write_atomic
    history = []
    for number in range(1 if cfg.strategy == "fast" else cfg.generations):  # Alg. 2, line 3
        proposals = propose(history, number, cfg, predict, limit)
        names = [str(len(history) + index) for index in range(len(proposals))]
        results = share_out(names, folder / "candidates", run,
                            lambda index: judge(extract(superplm, proposals[index][1]), data, cfg))  # Alg. 2, line 11
        for (parent, arch), result in zip(proposals, results):
            history.append({"id": len(history), "round": number, "parent": parent, "arch": str(arch),
                            "predicted_ms": round(predict([arch])[0], 6), **result})
        if run.ranks.main:
            write_atomic(folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
        best = max(history, key=lambda line: line["score"], default=None)
        if best is None:
            raise UserError(f"--strategy {cfg.strategy}: it has no candidate within {limit:.2f} ms; "
                            "use --strategy evolution, or a lower --speedup")
        run.log(phase="evolve", generation=number, candidates=len(history), best=best["score"], arch=best["arch"])
        say(run.ranks, f"generation {number + 1}: {len(history)} architectures, "
                       f"best {best['arch']} with {best['score']:.4f}")
    return history


def confirm(history, cfg, run, folder):
    """The best architectures that meet the limit when they are measured beside the reference (D4): [{arch, score,
    milliseconds, speedup}], at most --winners. UserError where none does."""
    from common.cli import UserError
    from common.distributed import on_main, read_json, say, write_atomic
    path, reference = folder / "finalists.json", checked_arch(cfg.reference)

    def measure():
        ranked, found = sorted((line for line in history if not line["diverged"]),
                               key=lambda line: (-line["score"], line["id"])), []
        if not ranked:
            raise UserError(f"{folder}: the fine-tuning of every candidate has diverged; lower --finetune_lr")
        while ranked and len(found) < cfg.winners:
            tried, ranked = ranked[:cfg.winners], ranked[cfg.winners:]
            times = time_together([reference, *(parse_arch(line["arch"]) for line in tried)], cfg)
            for line in tried:
                took = times[parse_arch(line["arch"])]
                speedup = times[reference] / took
                say(run.ranks, f"{line['arch']}: {took:.2f} ms, {speedup:.2f} x, "
                               f"{'within' if speedup >= cfg.speedup else 'NOT within'} the limit")
                if speedup >= cfg.speedup:
                    found.append(dict(arch=line["arch"], one_shot=line["score"], milliseconds=took, speedup=speedup))
        if not found:
            raise UserError(f"--speedup {cfg.speedup}: none of {len(history)} candidates that were predicted to "
                            "meet it does when measured; the same command measures again, best on an idle machine")
        write_atomic(path, json.dumps(found[:cfg.winners], indent=2))

    if not path.exists():
        on_main(run.ranks, measure)
    return read_json(path)


def train_further(superplm, arch, data, cfg, run, folder):
    """Extract an architecture from the SuperPLM (None: fresh weights) and train it as one model (Sec. 3.6). Returns
    (model, curve)."""
    model = extract(superplm, arch) if superplm else make_model(arch, cfg, data)
    curve = pretrain(model, lambda step, shard: [None], data, cfg, run, folder, cfg.further_steps,
                     0.0 if superplm else cfg.warmup)
    return model, curve


def search(cfg, action="search"):
    """Text to an extracted, further-trained tiny model within the limit: SuperPLM, latency predictor, evolution,
    further training of the winners."""
    from common.cli import UserError
    from common.distributed import barrier, launch, on_main, say, write_atomic
    with launch(cfg.device) as ranks:
        run, data = open_run(cfg, "search", ranks, action != "latency",
                             cfg.tasks if action in ("search", "evolve") else None)
        if run.finished:
            return
        superplm = None
        if action == "evolve" and not cfg.init and not (run.folder / "superplm" / "curve.json").exists():
            raise UserError(f"{run.folder}: there is no SuperPLM yet; run --superplm first, or give one with --init")
        if cfg.init and action in ("search", "evolve"):
            superplm = start_model(None, cfg, data, ranks, ("superplm", "model")).to(data.device)
            if superplm.encoder.arch != super_arch(cfg):
                raise UserError(f"{cfg.init}: a SuperPLM {superplm.encoder.arch}, but "
                                f"--layers, --hidden, --ffn and --heads say {super_arch(cfg)}")
        if action != "superplm":  # before the training, so that a limit that nothing meets costs none
            predict, limit = learn_latency(cfg, run)
        if action == "latency":
            return say(ranks, f"{run.folder}: measured; {cfg.speedup} x {cfg.reference} is {limit:.2f} ms")
        if not superplm:
            superplm = train_superplm(cfg.variant, cfg.steps, data, cfg, run, run.folder / "superplm")
        if action == "superplm":
            return say(ranks, f"{run.folder / 'superplm'}: trained")
        history = evolve(superplm, predict, limit, data, cfg, run, run.folder)
        finalists = confirm(history, cfg, run, run.folder)
        cost = {"evaluated": len(history), "search_seconds": round(sum(line["seconds"] for line in history), 1)}
        if action == "evolve":
            on_main(ranks, write_atomic, run.folder / "best.json", json.dumps({**finalists[0], **cost}, indent=2))
            return say(ranks, f"{run.folder / 'best.json'}: {finalists[0]['arch']}")
        models = []
        for line in finalists:
            try:
                models.append(train_further(superplm, parse_arch(line["arch"]), data, cfg, run,
                                            run.folder / "further" / line["arch"])[0])
            except Diverged as error:  # the others go on; this one keeps the SuperPLM's weights
                say(ranks, f"{error}; its training is left out")
                models.append(extract(superplm, parse_arch(line["arch"])))
        results = share_out([line["arch"] for line in finalists], run.folder / "finals", run,
                            lambda index: judge(models[index], data, cfg))
        winner = max(range(len(finalists)), key=lambda index: results[index]["score"])
        encoder = models[winner].encoder
        count = parameters(encoder.arch, encoder.words.num_embeddings, encoder.positions.num_embeddings)
        result = {**finalists[winner], **results[winner], **cost, "parameters": sum(count.values())}
        on_main(ranks, save_model, run.folder / "model", models[winner], data.tokenizer)
        on_main(ranks, write_atomic, run.folder / "best.json", json.dumps(result, indent=2))
        barrier(ranks)
        run.finish(result)
        say(ranks, f"{result['arch']}: score {result['score']:.4f} ({result['one_shot']:.4f} before further training), "
                   f"{result['milliseconds']:.2f} ms, {result['speedup']:.2f} x {cfg.reference}, "
                   f"{result['parameters']:,} parameters: {run.folder / 'model'}")


def further_train(cfg):
    """Train one architecture: from --init's weights (a SuperPLM's, cut out), or from scratch."""
    from common.distributed import launch, say
    arch = checked_arch(cfg.arch, needed=not cfg.init)
    with launch(cfg.device) as ranks:
        run, data = open_run(cfg, "further_train", ranks)
        if run.finished:
            return
        model = start_model(arch, cfg, data, ranks)
        curve = pretrain(model, lambda step, shard: [None], data, cfg, run, run.folder / "model", cfg.further_steps,
                         0.0 if cfg.init else cfg.warmup)
        run.finish({"arch": str(model.encoder.arch), "held_out": curve[-1][1]})
        say(ranks, f"{model.encoder.arch}: held-out loss {curve[-1][1]:.4f}: {run.folder / 'model'}")


def mean_and_deviation(values):
    """(mean, sample standard deviation; 0 for one value)."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))


def finetune(cfg, tasks):
    """Fine-tune --init's model on tasks with Table D.1's settings, --runs times with other seeds; dev scores as in
    Table 1. Each task's best run stays in the folder TASK: the model, for --init, and its predictions."""
    from common.cli import UserError
    from common.distributed import launch, on_main, say
    from common.report import table
    if not cfg.init:
        raise UserError("--finetune needs weights: give a run folder or a Hugging Face folder with --init")
    with launch(cfg.device) as ranks:
        run, data = open_run(cfg, "finetune", ranks, "MLM" in parse_task_names(tasks), tasks)
        if run.finished:
            return
        model = start_model(checked_arch(cfg.arch, needed=False), cfg, data, ranks)
        jobs = [(task, seed) for task in data.tasks for seed in range(cfg.runs)]
        names, tuned = [f"{task.name}-{seed}" for task, seed in jobs], run.folder / "tuned"
        results = share_out(names, run.folder / "scores", run,
                            lambda index: judge(model, dataclasses.replace(data, tasks=[jobs[index][0]]), cfg,
                                                jobs[index][1], tuned / names[index]))
        scores = {}
        for (task, _), result in zip(jobs, results):
            for name, value in ({task.name: -1.0} if result["diverged"] else result["scores"]).items():
                scores.setdefault(name, []).append(value)

        def keep_best():
            for task in data.tasks:
                best = tuned / f"{task.name}-{max(range(cfg.runs), key=scores[task.name].__getitem__)}"
                if best.exists():
                    best.replace(run.folder / task.name)
            shutil.rmtree(tuned, ignore_errors=True)

        on_main(ranks, keep_best)
        means = {name: sum(values) / len(values) for name, values in scores.items()}
        counted = {label: [value for name, value in means.items() if name in FINE_TUNING and name not in without]
                   for label, without in (("Score", {"SQuAD"}), ("Avg.", ()))}  # Table 1
        rows = [[name, *(100 * value for value in mean_and_deviation(values)), len(values)]
                for name, values in scores.items()]
        rows += [[f"{name} of {len(values)}", 100 * sum(values) / len(values), "", ""]
                 for name, values in counted.items() if values]
        say(ranks, table(["task", "dev score %", "deviation", "runs"], rows))
        run.finish({"arch": str(model.encoder.arch), "scores": scores, "mean": means})


CHANGE = (
    "\nThe query/key/value width (`qkv_size`, {qkv}) of this model is not its hidden width ({hidden}), which plain "
    "`transformers` takes for granted.\nEither load it with `autotinybert.py` (`--init`), or change two lines of "
    "`transformers/models/bert/modeling_bert.py` (Figure B.1):\n\n"
    '- `BertSelfAttention.__init__`: `self.attention_head_size = getattr(config, "qkv_size", config.hidden_size) '
    "// config.num_attention_heads`\n"
    "  (and leave out the check above it that the hidden size is a multiple of the number of heads)\n"
    '- `BertSelfOutput.__init__`: `self.dense = nn.Linear(getattr(config, "qkv_size", config.hidden_size), '
    "config.hidden_size)`\n")


def export(cfg, folder):
    """Write --init's model, or the part --arch of it, as a Hugging Face folder with a README."""
    from common.cli import UserError
    from common.distributed import launch, say, write_atomic
    from common.tokenization import load_tokenizer
    if not cfg.init:
        raise UserError("--export needs weights: give a run folder or a Hugging Face folder with --init")
    if Path(folder).exists() and any(Path(folder).iterdir()):
        raise UserError(f"{folder}: not empty; choose another folder")
    with launch(cfg.device) as ranks:
        tokenizer = load_tokenizer(cfg.tokenizer or read_folder(cfg.init)[0])
        data = Data(tokenizer, None, None, [], None, ranks.device)
        model = start_model(checked_arch(cfg.arch, needed=False), cfg, data, ranks)
        arch = model.encoder.arch
        if hasattr(model, "fit"):
            del model.fit  # belongs to the training, not to the model; then the folder holds the encoder alone
        plain = arch.qkv == arch.hidden
        use = ("`BertModel.from_pretrained` of plain `transformers` loads this folder.\n" if plain
               else CHANGE.format(qkv=arch.qkv, hidden=arch.hidden))
        count = sum(parameters(arch, tokenizer.vocab_size, model.encoder.positions.num_embeddings).values())
        if ranks.main:
            save_model(folder, model, tokenizer)
            write_atomic(Path(folder) / "README.md",
                         f"# AutoTinyBERT {arch}\n\nlayers-hidden-ffn-heads-qkv {arch}, {count:,} parameters "
                         f"(encoder and pooler), trained with `autotinybert.py`.\n{use}")
        say(ranks, f"{folder}: {arch}, {count:,} parameters; its README says how transformers loads it")


def describe(cfg):
    """One JSON object on --arch, --init's model or the SuperPLM: parameters, FLOPs, measured latency, the predicted one
    (null without 20 measurements in --latency_data, --init or --out), and the search space."""
    arch, reference, space = checked_arch(cfg.arch, needed=False), checked_arch(cfg.reference), checked_space(cfg)
    vocab, positions, setting = cfg.vocab_size, 512, latency_setting(cfg)
    if cfg.init:
        _, config, weights = read_folder(cfg.init)
        arch, (vocab, positions) = arch or arch_of(config), table_sizes(weights)
    arch = arch or super_arch(cfg)
    parts, times = parameters(arch, vocab, positions), time_together([reference, arch], cfg, rounds=3)
    result = {"arch": str(arch), "parameters": sum(parts.values()), "parts": parts,
              "flops": flops(arch, cfg.latency_length), "flops_counting": "matrix products of encoder and pooler, "
              f"one sequence of {cfg.latency_length}, 2 for each multiply-add",
              "measured_ms": times[arch], "reference": cfg.reference, "reference_ms": times[reference],
              "speedup": times[reference] / times[arch], "predicted_ms": None,
              "latency": setting, "space": {"setting": cfg.setting, "architectures": space_size(space)}}
    measured = read_measurements(cfg, Path(cfg.init or cfg.out))
    inside = [each for each in measured if why_outside(each, super_arch(cfg)) is None]
    if len(inside) >= 20 and why_outside(arch, super_arch(cfg)) is None:
        predictor = Predictor(cfg.predictor, super_arch(cfg), cfg.latency_length).fit(
            inside, [min(measured[each]) for each in inside])
        result["predicted_ms"] = predictor([arch])[0]
    print(json.dumps(result, indent=2))


# Analyses.


def ranking_archs(cfg):
    """The architectures of Sec. 4.3: four depths x four widths of BERT's rule; from the paper's, 2L128D to 8L768D."""
    heads = sorted({max(1, round(cfg.heads * share)) for share in (1 / 6, 1 / 3, 2 / 3, 1)})
    layers = sorted({max(1, round(cfg.layers * share)) for share in (1 / 4, 1 / 2, 3 / 4, 1)})
    head = cfg.hidden // cfg.heads
    return [Arch(depth, head * count, min(4 * head * count, cfg.ffn), count, head * count)
            for depth in layers for count in heads]


def analyze_ranking(cfg, run, data):
    """Table 3 and Figure 4: each variant's one-shot scores against the scores of models trained on their own."""
    from common.cli import UserError
    from common.metrics import kendall, pairwise_accuracy
    from common.report import write_report
    if cfg.setting == "distill":
        raise UserError("--analyze ranking: Table 3 is about --setting mlm; distillation has no other number of heads")
    archs, folder = ranking_archs(cfg), run.folder
    variants = [name.partition("*") for name in cfg.variant.split(",")]
    for name, star, times in variants:
        checked_space(cfg, name)
        if star and not times.isdigit():
            raise UserError(f"--variant {name}*{times}: write a whole number of times its steps, such as sme*3")

    def scores_of(label, model_of):
        """{task: [score of each architecture]}, means over the runs."""
        results = share_out([f"{arch}-{seed}" for arch in archs for seed in range(cfg.runs)],
                            folder / "scores" / label, run,
                            lambda index: judge(model_of(archs[index // cfg.runs]), data, cfg, index % cfg.runs))
        by_arch = [results[start:start + cfg.runs] for start in range(0, len(results), cfg.runs)]
        return {task.name: [sum(result["scores"].get(task.name, -1.0) for result in part) / cfg.runs
                            for part in by_arch] for task in data.tasks}

    alone = {arch: train_further(None, arch, data, cfg, run, folder / "standalone" / str(arch))[0] for arch in archs}
    table = {"stand-alone": scores_of("standalone", alone.__getitem__)}
    for name, _, times in variants:
        label = f"{name}x{times}" if times else name
        superplm = train_superplm(name, cfg.steps * int(times or 1), data, cfg, run, folder / "superplm" / label)

        def part(arch):
            if not VARIANTS[name][1]:  # no SME: the full width of q, k and v, in as many heads as divide it
                heads, qkv = max(pair for pair in checked_space(cfg, name)["attention"] if pair[0] <= arch.heads)
                arch = dataclasses.replace(arch, heads=heads, qkv=qkv)
            return extract(superplm, arch)

        table[label] = scores_of(label, part)
    for by_task in table.values():
        by_task["mean"] = [sum(column) / len(column) for column in zip(*by_task.values())]
    rows = [[label, len(archs)] for label in table]
    for row, by_task in zip(rows, table.values()):
        for task, values in by_task.items():
            truth = table["stand-alone"][task]
            pairwise = pairwise_accuracy(values, truth)  # D7
            row += [100 * sum(values) / len(values), 100 * pairwise, kendall(values, truth)]
    columns = ["training", "archs",
               *(f"{task} {what}" for task in table["stand-alone"] for what in ("score", "pairwise %", "tau"))]

    def draw(axes):
        for label, by_task in table.items():
            axes.scatter(table["stand-alone"]["mean"], by_task["mean"], label=label)
        axes.set(xlabel="stand-alone", ylabel="one-shot", title="Figure 4")
        axes.legend()

    if run.ranks.main:
        write_report(folder, "ranking", columns, rows, {"archs": list(map(str, archs)), "scores": table}, draw)


def analyze_pareto(cfg, run, data):
    """Figure 1: score against measured speed-up of searched, BERT-rule and random architectures, each trained further
    from the SuperPLM alike. The rule's architecture is chosen like the searched one: of the widest within the limit at
    each depth, the best one-shot score that measures within it."""
    from common.distributed import on_main
    from common.report import write_report
    superplm = start_model(super_arch(cfg), cfg, data, run.ranks, ("superplm", "model")).to(data.device)
    space, chosen = checked_space(cfg), []
    goals = [dataclasses.replace(cfg, speedup=speedup, winners=1) for speedup in cfg.speedups]
    for inner, (predict, limit) in zip(goals, [learn_latency(inner, run) for inner in goals]):
        speedup, folder = inner.speedup, run.folder / f"{inner.speedup}x"
        history = evolve(superplm, predict, limit, data, inner, run, folder)
        chosen.append(("searched", speedup, confirm(history, inner, run, folder)[0]["arch"]))
        rule = bert_rule(space, predict, limit)
        results = share_out([str(arch) for arch in rule], folder / "rule" / "candidates", run,
                            lambda index: judge(extract(superplm, rule[index]), data, cfg))
        lines = [{"id": index, "arch": str(arch), **result} for index, (arch, result) in enumerate(zip(rule, results))]
        if rule:
            chosen.append(("BERT rule", speedup, confirm(lines, inner, run, folder / "rule")[0]["arch"]))
        rng = random.Random(f"{cfg.seed} random {speedup}")
        near = [sample_within(space, rng, lambda arch: 0.9 * limit < predict([arch])[0] <= limit
                              or arch == smallest(space)) for _ in range(2)]
        chosen += [("random", speedup, str(arch)) for arch in near]
    archs = list(dict.fromkeys(arch for _, _, arch in chosen))
    models = {arch: train_further(superplm, parse_arch(arch), data, cfg, run, run.folder / "further" / arch)[0]
              for arch in archs}
    results = share_out([f"{arch}-{seed}" for arch in archs for seed in range(cfg.runs)],
                        run.folder / "finals", run,
                        lambda index: judge(models[archs[index // cfg.runs]], data, cfg, index % cfg.runs))
    reference = checked_arch(cfg.reference)
    times = on_main(run.ranks, time_together, [reference, *map(parse_arch, archs)], cfg)
    rows = []
    for kind, speedup, arch in chosen:
        scores = [results[archs.index(arch) * cfg.runs + seed]["score"] for seed in range(cfg.runs)]
        took = times[parse_arch(arch)]
        rows.append([kind, float(speedup), arch, took, times[reference] / took,
                     *(100 * value for value in mean_and_deviation(scores)), cfg.runs])

    def draw(axes):
        for kind in ("searched", "BERT rule", "random"):
            part = [row for row in rows if row[0] == kind]
            axes.scatter([row[4] for row in part], [row[5] for row in part], label=kind)
        axes.set(xlabel=f"speed-up over {cfg.reference}", ylabel="score %", title="Figure 1")
        axes.legend()

    if run.ranks.main:
        columns = ["kind", "limit", "architecture", "measured ms", "speed-up", "score %", "deviation", "runs"]
        write_report(run.folder, "pareto", columns, rows, draw=draw)


def analyze_convergence(cfg, run, data):
    """Figure 5: held-out loss of one architecture trained from the SuperPLM's weights and from scratch; where the
    former reaches the latter's end."""
    from common.cli import UserError
    from common.report import write_report
    arch = checked_arch(cfg.arch)
    superplm = start_model(super_arch(cfg), cfg, data, run.ranks, ("superplm", "model"))
    reason = why_outside(arch, superplm.encoder.arch)
    if reason:
        raise UserError(f"--arch {arch}: {reason}")
    inherited = train_further(superplm, arch, data, cfg, run, run.folder / "inherited")[1]
    scratch = train_further(None, arch, data, cfg, run, run.folder / "scratch")[1]
    reached = next((step for step, loss in inherited if loss <= scratch[-1][1]), None)
    rows = [[step, loss, other] for (step, loss), (_, other) in zip(inherited, scratch)]

    def draw(axes):
        for label, curve in (("from the SuperPLM", inherited), ("from scratch", scratch)):
            axes.plot(*zip(*curve), label=label)
        axes.set(xlabel="step", ylabel="held-out loss", title=f"Figure 5: {arch}")
        axes.legend()

    if run.ranks.main:
        write_report(run.folder, "convergence", ["step", "from the SuperPLM", "from scratch"], rows,
                     {"arch": str(arch), "reached": reached}, draw)
        share = (f"{reached} from the SuperPLM, {100 * (1 - reached / cfg.further_steps):.0f}% saved" if reached
                 else "more from the SuperPLM")
        print(f"{arch}: the loss that {cfg.further_steps} steps from scratch reach takes {share}")


def analyze_latency(cfg, run, data):
    """Tables 1, 4 and F.1: speed-ups over BERT-base, all measured in the same rounds, beside the published ones."""
    from common.distributed import on_main
    from common.metrics import kendall, spearman
    from common.report import write_report
    published = {**TABLE_4, **TABLE_F1, **PF}
    archs = {name: parse_arch(text) for name, (text, _) in published.items()}
    reference, setting = parse_arch("12-768-3072-12-768"), latency_setting(cfg)
    times = on_main(run.ranks, time_together, [reference, *archs.values()], cfg, rounds=max(3, cfg.latency_rounds))
    speedups = {name: times[reference] / times[arch] for name, arch in archs.items()}
    rows = [["BERT-base", str(reference), times[reference], 1.0, 1.0, 0.0]]
    for name, (text, number) in published.items():
        rows.append([name, text, times[archs[name]], speedups[name], number, 100 * (speedups[name] / number - 1)])
    plain = [name for name in TABLE_4 if "KD" not in name]
    pair = [speedups[name] for name in plain], [published[name][1] for name in plain]
    worst = max((name for name in plain if "S4" not in name),
                key=lambda name: abs(speedups[name] / published[name][1] - 1))
    ordered = all(speedups[f"{family}-S{size}"] < speedups[f"{family}-S{size + 1}"]
                  for family in ("BERT-KD", "AutoTinyBERT-KD") for size in (1, 2, 3))
    numbers = {"pre-training rows": len(plain), "spearman": spearman(*pair), "kendall": kendall(*pair),
               "worst of S1 to S3": worst, "distillation rows ordered": ordered, **setting}
    if not run.ranks.main:
        return
    columns = ["model", "architecture", "ms", "speed-up", "published", "difference %"]
    write_report(run.folder, "speedups", columns, rows, numbers)
    print(f"Table 4, {len(plain)} pre-training rows: Spearman's correlation {numbers['spearman']:.3f}, "
          f"Kendall's {numbers['kendall']:.3f}; of S1 to S3 {worst} differs most, by "
          f"{100 * (speedups[worst] / published[worst][1] - 1):.0f}%; distillation rows ordered: {ordered}")


ANALYSES = {"ranking": analyze_ranking, "pareto": analyze_pareto, "convergence": analyze_convergence,
            "latency": analyze_latency}


def analyze(cfg, name):
    """Run one of ANALYSES in its own run folder."""
    from common.cli import UserError
    from common.distributed import launch
    if name not in ANALYSES:
        raise UserError(f"--analyze {name}: choose from {', '.join(ANALYSES)}")
    if name in ("pareto", "convergence") and not cfg.init:
        raise UserError(f"--analyze {name} needs a SuperPLM: give the run folder of a --search or --superplm by --init")
    with launch(cfg.device) as ranks:
        run, data = open_run(cfg, f"analyze {name}", ranks, name != "latency",
                             cfg.tasks if name in ("ranking", "pareto") else None)
        if run.finished:
            return
        ANALYSES[name](cfg, run, data)
        run.finish({"analysis": name})

# --- command line --------------------------------------------------------------------------------

ACTIONS = {
    "search": ("all phases: text to a further-trained tiny model within the latency limit", None),
    "superplm": ("phase 1 of --search alone: one-shot training (Algorithm 1)", None),
    "latency": ("phase 2 alone: measure architectures on this machine, learn to predict", None),
    "evolve": ("phase 3 alone: the search (Algorithm 2)", None),
    "further_train": ("train --arch further from --init's weights, or from scratch", None),
    "finetune": ("fine-tune --init's model on SQuAD and GLUE tasks (Table D.1)", "TASKS"),
    "export": ("write --init's model, or its part --arch, as a Hugging Face folder", "DIR"),
    "analyze": (f"one of {', '.join(ANALYSES)}", "NAME"),
    "describe": ("parameters, FLOPs, latency of --arch and the size of the search space, as JSON", None),
}
CHOICES = {"setting": ("mlm", "distill"), "variant": VARIANTS, "latency_clock": ("wall", "cpu"), "predictor":
           ("linear", "mlp"), "strategy": ("evolution", "random", "fast"), "dtype": ("auto", "float32", "bfloat16")}


def shrink(cfg):
    """--dry_run: two real steps of every phase."""
    cfg.steps = cfg.further_steps = 2
    (cfg.population, cfg.generations, cfg.winners, cfg.runs,
     cfg.latency_archs, cfg.latency_runs, cfg.latency_rounds) = 2, 2, 1, 1, 20, 3, 1
    cfg.finetune_epochs, cfg.finetune_batch = 1, cfg.finetune_batch or 16
    cfg.train_rows, cfg.speedups = 2 * cfg.finetune_batch, cfg.speedups[:1]
    cfg.out = cfg.out.rstrip("/") + "-dry"


def main(argv=None):
    """Run one action of the command line."""
    from common.cli import UserError, parse
    from common.distributed import Stop
    action, value, cfg = parse(Config, PRESETS, ACTIONS, __doc__, argv)
    if action is None:
        return 0
    shared = "search" if action in PHASES else action
    cfg.out = cfg.out or f"runs/autotinybert-{shared}{'-' + value if action == 'analyze' else ''}-{cfg.preset}"
    if cfg.dry_run:
        shrink(cfg)
    for name, choices in CHOICES.items():
        if getattr(cfg, name) not in choices and (name, value) != ("variant", "ranking"):
            raise UserError(f"--{name} {getattr(cfg, name)}: choose from {', '.join(choices)}")
    if not re.fullmatch("cpu" + r"|cuda(:\d+)?" * torch.cuda.is_available(), cfg.latency_device):
        raise UserError(f"--latency_device {cfg.latency_device}: no such device is here; choose cpu or cuda")
    if cfg.latency_clock == "cpu" and (cfg.latency_device != "cpu" or cfg.latency_threads > 1):
        raise UserError("--latency_clock cpu counts the seconds of one CPU thread; with others choose wall")
    if cfg.warmup > 1 or cfg.finetune_warmup > 1:
        raise UserError("--warmup, --finetune_warmup: a share of the steps, at most 1")
    if cfg.arch and action in PHASES:
        raise UserError(f"--arch {cfg.arch}: --{action} takes none; --further_train trains one architecture")
    cfg.arch, cfg.reference = cfg.arch and str(checked_arch(cfg.arch)), str(checked_arch(cfg.reference))
    try:
        if action in PHASES:
            search(cfg, action)
        else:
            {"further_train": further_train, "finetune": finetune, "export": export, "analyze": analyze,
             "describe": describe}[action](cfg, *([value] if value is not True else []))
    except Stop:
        print("stopped; the same command continues")
    except Diverged as error:
        raise UserError(f"{error}: the training has diverged; lower --lr") from None
    except torch.OutOfMemoryError:
        raise UserError("out of device memory; raise --accumulate, lower --batch or --finetune_batch") from None
    return 0


if __name__ == "__main__":
    from common.cli import run
    run(main)
