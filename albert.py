"""ALBERT: A Lite BERT for Self-supervised Learning of Language Representations (Lan, Chen, Goodman, Gimpel, Sharma,
Soricut; ICLR 2020, arXiv:1909.11942). Official code: google-research/ALBERT at b772393.

BERT with far fewer parameters: words are embedded in E dimensions and mapped to H, and all layers share one set of
weights. Next-sentence prediction gives way to sentence-order prediction: are two segments in their order or swapped?

Run:     python albert.py --pretrain --length 16 --objective none --batch 64 --lr 0.08 --steps 4500 --out runs/16
           words alone, in short rows: a good minute of a core
         python albert.py --pretrain --init runs/16 --out runs/64  sentence order too: four minutes more
         python albert.py --finetune MNLI,RTE,MRPC --init runs/64  scores, each beside that of one answer to every row
         torchrun --nproc_per_node=8 albert.py --pretrain --preset base --accumulate 64 --corpus TEXTS      the paper's
Map:     Sec. 3.1 -> Encoder (E, sharing), sentence_pairs (SOP)     Sec. 4.1 -> mask_tokens, Lamb, pretrain
         Table 5 -> evaluate_language_model     Sec. 4.9 -> finetune (MNLI first), ensemble_job
         Figure 1, Tables 1-5, 12 -> tests/claims/albert.py
Tour:    read Encoder, sentence_pairs, mask_tokens, Lamb, update: that is ALBERT. For later: pick_ngrams, AnswerModel
         (SQuAD v2.0's head), and from read_source on what fine-tunes
Differs: from the paper's text; with a * from the official code where the text leaves it open. D1* segments without an
         order have no label · D2* n-grams stay inside a segment · D3* 15% of the tokens are predicted, 77 of 512; the
         official 20 are --max_predictions 20 · D4 intrinsic evaluation on held-out text of the corpus
         · D5 masked words are scored on pairs in their order · D6* one clip of the averaged gradient
         · D7* fine-tuning shuffles whole epochs · D8* evenly spaced looks at dev · D9 a
         mapping where E = H only for Hugging Face's · D10 WNLI and QNLI like the others · D11* segments are whole
         sentences, two that do not fit have no label · D12* xlarge has 32 heads · D13 no dropout before SQuAD v1.1's
         head · D14* masks are drawn anew in each pass · D15* one dropout for attention and hidden states · D16 an
         ensemble is the n members best on dev · D17 xxlarge is trained from scratch · D18 LAMB has no bias correction
         · D19 the learning rate goes with the root of the batch · D20 one run a task in place of the median of five
         · D21* a sequence that is drawn short keeps two sentences, which may be longer than drawn
         · D22 a span that a member of an ensemble does not list has probability 0 there
         · D23* in a vocabulary made here, scores are rounded, symbols are plain pieces, and pieces that
         end in a digit and a comma are unused (data/text.py)
         · D24* how lines become sentences and documents; no document is longer than 100,000 characters
         (data/text.py)
"""
import dataclasses
import functools
import hashlib
import json
import math
import os
import statistics
import sys
import time
from collections import Counter, namedtuple
from pathlib import Path
from typing import Literal

if __name__ == "__main__" and os.isatty(2) and os.environ.get("RANK", "0") == "0":
    print("importing torch ...", file=sys.stderr)  # takes seconds

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

# B batch, T tokens, E embedding, H hidden, N heads, D head dim, V vocab, M masked, L layers, K beams, C choices

# --- configuration --------


@dataclasses.dataclass
class Config:
    """Every knob. Its comment is the help text and ends in the range; a preset overrides the default, a flag both."""
    preset: str = "base"  # demo (minutes, 2 cores), base, large, xlarge, xxlarge(-1m, -1.5m), bert-base, bert-large
    out: str = ""  # run folder; default runs/albert-ACTION-PRESET
    restart: bool = False  # begin anew in the run folder
    seed: int = 0  # of everything that is drawn by chance
    device: str = "auto"  # auto | cpu | cuda
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs that have it
    compile: bool = False  # torch.compile the model of --pretrain
    accumulate: int = 1  # parts of a batch; in --pretrain, if not given, raised to a multiple of the processes [>= 1]
    recompute: bool = False  # gradient checkpointing: keep layers' inputs only
    dry_run: bool = False  # two real steps of every phase
    init: str = ""  # weights to start from: a run folder, a task's folder in one, or a Hugging Face folder
    # data; what is left out is the demo data
    corpus: tuple[str, ...] = ()  # text files or folders to pre-train on
    dev_corpus: tuple[str, ...] = ()  # text to evaluate on, Sec. 4.2.1; default: documents held out of the corpus (D4)
    glue: str = ""  # folder of the GLUE tasks, official layout
    squad: str = ""  # folder of train- and dev-v1.1.json, train- and dev-v2.0.json
    race: str = ""  # folder with train, dev, test / middle, high
    tokenizer: str = ""  # spiece.model or vocab.txt; default: that of --init, else one trained on the corpus
    vocab_size: int = 30000  # pieces, Sec. 4.1 [>= 1]
    held_out: float = 0.05  # share of the documents held out, at most 1,000; from 1 on how many [> 0]
    train_rows: int = 0  # training rows of each task; 0: all
    # model; with --init that model's, but what FREE names may differ
    layers: int = 12  # L, Table 1; more than --init's is a depth warm start (Table 11) [>= 1]
    hidden: int = 768  # H [>= 1]
    heads: int = 12  # H / 64, Sec. 3.1 [>= 1]
    ffn: int = 3072  # 4 H, Sec. 3.1 [>= 1]
    embedding: int = 128  # E, Table 3; 0: H; words that are H wide are not mapped, as in BERT
    mapped: bool = False  # a mapping even where E = H, as Hugging Face's ALBERT has it (D9)
    share: Literal["all", "attention", "ffn", "none"] = "all"  # what the layers share, Table 4
    groups: int = 1  # groups of layers that share; L / groups is Sec. 4.5's group size [>= 1]
    activation: Literal["gelu_new", "gelu", "relu"] = "gelu_new"  # gelu_new: the tanh form, ALBERT's; gelu: erf
    positions: int = 512  # longest input [>= 1]
    init_std: float = 0.02  # of new weights; 0.1 where H is 64 (0, 1)
    dropout: float = 0.1  # hidden and attention dropout of --pretrain; 0 in long runs (Sec. 4.8) and all of v2 [0, 1)
    dropout_steps: int = 0  # updates after which dropout is taken out (Sec. 4.8, Fig. 2b); 0: never
    # pre-training
    objective: Literal["sop", "nsp", "none", "shuffled"] = "sop"  # Table 5; shuffled (control): SOP with random labels
    length: int = 512  # tokens a sequence, special ones included, Sec. 4.1 [>= 8]
    max_predictions: int = 0  # masked tokens a sequence, at most; official code: 20; 0: 15% (D3)
    steps: int = 125000  # updates, Sec. 4.1 [>= 1]
    batch: int = 4096  # sequences an update, Sec. 4.1 [>= 1]
    lr: float = 1.76e-3  # peak learning rate of 4,096 sequences, Sec. 4.1; goes with the root of the batch [> 0]
    warmup: float = 0.025  # share of the steps: 3,125 of 125,000 (official code) [0, 1)
    weight_decay: float = 0.01  # not on biases and LayerNorms (official code), --finetune too
    save_every: int = 1000  # updates between checkpoints and looks at held-out text [>= 1]
    save_minutes: float = 0  # minutes between further checkpoints; 0: none
    dev_rows: int = 1024  # held-out sequences of an evaluation [>= 1]
    # fine-tuning; what is not given is Table 14's
    finetune_epochs: float | None = None  # passes over the training rows, in place of Table 14's steps [> 0]
    finetune_batch: int | None = None  # rows an update [>= 1]
    finetune_lr: float | None = None  # peak learning rate [> 0]
    finetune_warmup: float | None = None  # share of the steps [0, 1)
    finetune_length: int | None = None  # tokens an input [>= 8]
    finetune_dropout: float | None = None  # hidden and attention dropout [0, 1)
    runs: int = 1  # of each task, the median is reported; D20: the paper has five, Sec. 4.2.2 [>= 1]
    eval_every: int = 0  # updates between looks at dev, the best counts (Sec. 4.2.2); 0: up to 20 looks in all
    ensemble: tuple[str, ...] = ()  # run folders of --finetune whose predictions are averaged (Sec. 4.9)
    given, program = frozenset(), "albert"  # the flags that were given, the file's name
    models = "init", "tokenizer", "ensemble"  # flags that name what is read beside the data


# D17: the paper starts from 6 layers (footnote 5, no more is said): --layers 6, --init --layers 12
XXLARGE = dict(layers=12, hidden=4096, heads=64, ffn=16384)
PRESETS = {
    "demo": dict(vocab_size=1000, layers=2, hidden=64, heads=2, ffn=128, embedding=60, positions=128, init_std=0.1,
                 dropout=0.0, length=64, steps=10000, batch=32, lr=0.05, warmup=0.1,  # lr: 4.4e-3 for batch 32
                 finetune_epochs=5, finetune_batch=16, finetune_lr=1e-3, finetune_warmup=0.1, finetune_length=128,
                 finetune_dropout=0.0, eval_every=200),
    "base": dict(),
    "large": dict(layers=24, hidden=1024, heads=16, ffn=4096),
    "xlarge": dict(layers=24, hidden=2048, heads=32, ffn=8192),  # D12: H / 64 heads, Sec. 3.1; the released one has 16
    "xxlarge": XXLARGE,
    "xxlarge-1m": dict(XXLARGE, dropout=0.0, steps=1_000_000),  # Sec. 4.8, 4.9
    "xxlarge-1.5m": dict(XXLARGE, dropout=0.0, steps=1_500_000),  # Tables 9, 10
    "bert-base": dict(embedding=0, share="none"),
    "bert-large": dict(layers=24, hidden=1024, heads=16, ffn=4096, embedding=0, share="none"),
    "dry_run": dict(steps=2, dev_rows=32, train_rows=64, runs=1, finetune_epochs=None),
}
SHAPE = ("hidden", "heads", "ffn", "embedding", "mapped", "share", "groups", "activation", "positions")  # --init's hold
FREE = ("layers", "init_std", "dropout")  # --init's too, unless a flag differs
FEWEST = 50  # pairs of an accuracy of sentence order
CLIP = 1.0  # largest gradient norm (official code)
MASKED = 0.15  # D3: fraction of the tokens to predict, 77 of 512; in the official code at most 20
NGRAM = 3  # longest masked n-gram of words, Sec. 4.1
SHORT = 0.1  # share of shorter sequences, Sec. 4.1
HEAD_DROPOUT = 0.1  # before a task's head, Table 14


def check_shape(cfg):
    """ValueError where no model can be built from these settings."""
    if cfg.hidden % cfg.heads:
        raise ValueError(f"hidden {cfg.hidden} is no multiple of heads {cfg.heads}")
    if cfg.embedding > cfg.hidden:
        raise ValueError(f"embedding {cfg.embedding} is larger than hidden {cfg.hidden}")
    if cfg.layers % cfg.groups:
        raise ValueError(f"groups {cfg.groups} do not divide the {cfg.layers} layers evenly")
    if cfg.share == "none" and cfg.groups > 1:
        raise ValueError(f"groups {cfg.groups} with share none; leave one of them out")

# --- model ----------------


ACTIVATIONS = {"gelu_new": functools.partial(F.gelu, approximate="tanh"), "gelu": F.gelu, "relu": F.relu}


def init_weights(std, *roots):
    """Truncated normal, cut at twice its deviation; biases 0 (official code)."""
    for module in nn.ModuleList(roots).modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def pick(x, places):
    """(B, T, H) at places (B, M) -> (B, M, H)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


class Attention(nn.Module):
    """Multi-head attention, residual, LayerNorm. Query, key and value are matrices of their own: LAMB adapts each.
    D15: one dropout everywhere, as in all configurations of the paper; the official code has two settings.
    asked (B, M, H) of x (B, T, H), mask (B, 1, 1, T) of what is seen, or None -> (B, M, H)."""

    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.query, self.key, self.value, self.output = (nn.Linear(cfg.hidden, cfg.hidden) for _ in range(4))
        self.norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, asked, x, mask):
        q, k, v = self.query(asked), self.key(x), self.value(x)  # (B, M, H), 2 x (B, T, H)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))  # (B, N, M or T, D)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, self.dropout.p if self.training else 0.0)
        return self.norm(asked + self.dropout(self.output(mixed.transpose(1, 2).flatten(2))))


class FeedForward(nn.Module):
    """Two linear maps with an activation between, residual, LayerNorm. (B, T, H) -> (B, T, H)."""

    def __init__(self, cfg):
        super().__init__()
        self.expand = nn.Linear(cfg.hidden, cfg.ffn)
        self.shrink = nn.Linear(cfg.ffn, cfg.hidden)
        self.norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        self.activation = ACTIVATIONS[cfg.activation]

    def forward(self, x):
        return self.norm(x + self.dropout(self.shrink(self.activation(self.expand(x)))))  # (B, T, 4H) inside


def blocks(cfg):
    """[attention blocks, feed-forward blocks] of which a model makes its L layers (Table 4)."""
    return [cfg.groups if cfg.share in ("all", part) else cfg.layers for part in ("attention", "ffn")]


class Encoder(nn.Module):
    """Factorised embeddings, and L layers made of fewer blocks. forward: ids, segments (B, T), and lengths (B,), the
    real tokens, or None where every row is full -> (B, T, H). With places (B, M) the last layer is worked out only at
    [CLS] and these places, (B, 1 + M, H).

    Layers share where a list of blocks is shorter than L (Sec. 3.1, 4.5): layer l runs block l * blocks // L of each
    list. So all of 12 layers run a single block; of two blocks the first makes layers 0 to 5, the second 6 to 11.
    """

    def __init__(self, cfg):
        super().__init__()
        check_shape(cfg)
        E, (attentions, ffns) = cfg.embedding or cfg.hidden, blocks(cfg)
        self.depth, self.recompute = cfg.layers, cfg.recompute
        self.words = nn.Embedding(cfg.vocab_size, E)  # V x E, Sec. 3.1
        self.positions = nn.Embedding(cfg.positions, E)
        self.segments = nn.Embedding(2, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        # E x H, Sec. 3.1. D9: none where E = H (Table 3's 31M, the official code), but for Hugging Face's folders
        self.mapping = nn.Linear(E, cfg.hidden) if cfg.mapped or E != cfg.hidden else nn.Identity()
        self.attentions = nn.ModuleList(Attention(cfg) for _ in range(attentions))
        self.ffns = nn.ModuleList(FeedForward(cfg) for _ in range(ffns))
        init_weights(cfg.init_std, self)

    def layer(self, number, x, mask, places=None):
        attention = self.attentions[number * len(self.attentions) // self.depth]
        ffn = self.ffns[number * len(self.ffns) // self.depth]
        asked = x if places is None else pick(x, F.pad(places, (1, 0)))  # (B, 1 + M, H), [CLS] is at 0
        return ffn(attention(asked, x, mask))

    def forward(self, ids, segments, lengths=None, places=None):
        positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        # an empty row sees its first piece: a softmax over nothing would be no number
        mask = None if lengths is None else (positions < lengths.clamp(min=1)[:, None])[:, None, None]  # (B, 1, 1, T)
        x = self.words(ids) + self.segments(segments) + self.positions(positions)  # (B, T, E)
        x = self.mapping(self.dropout(self.norm(x)))  # (B, T, E) -> (B, T, H)
        layer = self.layer
        if self.recompute and self.training:
            layer = functools.partial(recompute, self.layer, use_reentrant=False)
        for number in range(self.depth - 1):
            x = layer(number, x, mask)
        return layer(self.depth - 1, x, mask, places)


class MaskedHead(nn.Module):
    """H -> E, activation, LayerNorm, E -> V with the word embeddings (V, E) as its matrix. (B, M, H) -> (B, M, V)."""

    def __init__(self, cfg):
        super().__init__()
        E = cfg.embedding or cfg.hidden
        self.transform = nn.Linear(cfg.hidden, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))
        self.activation = ACTIVATIONS[cfg.activation]
        init_weights(cfg.init_std, self)

    def forward(self, x, words):
        return F.linear(self.norm(self.activation(self.transform(x))), words, self.bias)


class LanguageModel(nn.Module):
    """Encoder with the heads of pre-training: masked words, and the order of two segments (SOP; or NSP)."""

    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.mlm = MaskedHead(cfg)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.order = nn.Linear(cfg.hidden, 2)
        init_weights(cfg.init_std, self.pooler, self.order)

    def forward(self, ids, segments, lengths, places):
        """places (B, M): where words are to be predicted. Returns MLM logits (B, M, V) and order logits (B, 2)."""
        x = self.encoder(ids, segments, lengths, places)  # (B, 1 + M, H)
        return self.mlm(x[:, 1:], self.encoder.words.weight), self.order(torch.tanh(self.pooler(x[:, 0])))


# Models of tasks, with their losses. A batch has ids, segments (B, T), lengths (B,) unless all are full, and more;
# SQuAD's p_mask (B, T) is True where no answer can be.


class Classifier(nn.Module):
    """Encoder, pooler, dropout and a linear head: logits (B, outputs). One output is a regression."""

    def __init__(self, cfg, outputs):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.dropout = nn.Dropout(HEAD_DROPOUT)
        self.head = nn.Linear(cfg.hidden, outputs)
        init_weights(cfg.init_std, self.pooler, self.head)

    def forward(self, batch):
        x = self.encoder(batch["ids"], batch["segments"], batch.get("lengths"), batch["ids"][:, :0])  # (B, 1, H)
        return self.head(self.dropout(torch.tanh(self.pooler(x[:, 0]))))

    def loss(self, batch):
        logits, labels = self(batch).float(), batch["labels"]
        return F.mse_loss(logits[:, 0], labels) if logits.shape[1] == 1 else F.cross_entropy(logits, labels)


class MultipleChoice(Classifier):
    """RACE (App. A.3): one output for each option, softmax over them. ids, segments (B, C, T) -> (B, C)."""

    def forward(self, batch):
        options = {name: batch[name].flatten(0, 1) for name in ("ids", "segments", "lengths") if name in batch}
        return super().forward(options).view(batch["ids"].shape[:2])  # (B * C, 1) -> (B, C)


class SpanModel(nn.Module):
    """SQuAD v1.1 (App. A.3): a start and an end logit for each token, (B, T, 2). D13: no dropout before the head, as in
    the official code; Table 14 gives it 0.1."""

    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.span = nn.Linear(cfg.hidden, 2)
        init_weights(cfg.init_std, self.span)

    def forward(self, batch):
        return self.span(self.encoder(batch["ids"], batch["segments"], batch.get("lengths")))

    def loss(self, batch):
        start, end = self(batch).float().unbind(-1)  # 2 x (B, T)
        return (F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])) / 2


class AnswerModel(nn.Module):
    """SQuAD v2.0, XLNet's head (App. A.3): the end is scored given the start, and a classifier of "no answer"."""

    def __init__(self, cfg, beams=5):
        super().__init__()
        self.encoder, self.beams = Encoder(cfg), beams
        self.answer = nn.ModuleDict({
            "start": nn.Linear(cfg.hidden, 1),
            "end_mix": nn.Linear(2 * cfg.hidden, cfg.hidden),
            "end_norm": nn.LayerNorm(cfg.hidden, eps=1e-12),
            "end": nn.Linear(cfg.hidden, 1),
            "null_mix": nn.Linear(2 * cfg.hidden, cfg.hidden),
            "null": nn.Linear(cfg.hidden, 1, bias=False)})
        self.dropout = nn.Dropout(HEAD_DROPOUT)
        init_weights(cfg.init_std, self.answer)

    def read(self, batch):
        """Token states (B, T, H), start logits (B, T) and the score of "no answer" (B,), high where there is none."""
        x = self.encoder(batch["ids"], batch["segments"], batch.get("lengths"))
        start = self.answer["start"](x)[..., 0].float().masked_fill(batch["p_mask"], -1e30)  # (B, T)
        summary = torch.einsum("bt,bth->bh", start.softmax(-1).to(x.dtype), x)  # where an answer would start
        mixed = torch.tanh(self.answer["null_mix"](torch.cat([summary, x[:, 0]], dim=-1)))  # (B, 2H) -> (B, H)
        return x, start, self.answer["null"](self.dropout(mixed))[:, 0].float()

    def end_logits(self, x, starts, p_mask):
        """End logits (B, K, T) given the starts (B, K). The map of [token; start] is a map of the token plus one of the
        start, so the pairs need not be laid out."""
        H, mix = x.shape[-1], self.answer["end_mix"]
        mixed = (F.linear(x, mix.weight[:, :H])[:, None]
                 + F.linear(pick(x, starts), mix.weight[:, H:], mix.bias)[:, :, None])  # (B, K, T, H)
        logits = self.answer["end"](self.answer["end_norm"](torch.tanh(mixed)))[..., 0]  # (B, K, T)
        return logits.float().masked_fill(p_mask[:, None], -1e30)

    def loss(self, batch):
        """The end is scored given the true start."""
        x, start, null = self.read(batch)
        end = self.end_logits(x, batch["start"][:, None], batch["p_mask"])[:, 0]  # (B, T)
        spans = F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])
        return spans / 2 + F.binary_cross_entropy_with_logits(null, batch["impossible"]) / 2

    def forward(self, batch):
        """Beam search, the best ends of each of the best starts: starts, ends, scores (B, K * K), null scores (B,)."""
        x, start, null = self.read(batch)
        K = min(self.beams, start.shape[1])
        start_scores, starts = start.log_softmax(-1).topk(K, dim=1)  # (B, K)
        end_scores, ends = self.end_logits(x, starts, batch["p_mask"]).log_softmax(-1).topk(K, dim=2)  # (B, K, K)
        scores = start_scores[..., None] + end_scores
        return starts[..., None].expand_as(ends).flatten(1), ends.flatten(1), scores.flatten(1), null


def count(module):
    """Parameters of a module, shared ones once."""
    return sum(value.numel() for value in module.parameters())


def parts(cfg):
    """Parameters of the pre-training model by part."""
    with torch.device("meta"):
        model = LanguageModel(cfg)
    modules = {"mapping": model.encoder.mapping, "attention": model.encoder.attentions, "ffn": model.encoder.ffns,
               "pooler": model.pooler, "mlm head": model.mlm, "order head": model.order}
    found = {name: count(module) for name, module in modules.items()}
    return {"embeddings": count(model) - sum(found.values()), **found}


def flops(cfg):
    """FLOPs of a forward pass over `length` tokens with both heads: matrix products, 2 a multiply-add."""
    T, H, E, M = cfg.length, cfg.hidden, cfg.embedding or cfg.hidden, masked_count(cfg)
    states = (cfg.layers - 1) * T + 1 + M  # of all layers; the last one's are those of [CLS] and of masked words
    layers = 4 * cfg.layers * T * H * H + 4 * states * (H * H + H * cfg.ffn + T * H)  # keys and values; the rest
    return (2 * T * E * H * (cfg.mapped or E != H) + layers + 2 * H * H + 4 * H  # mapping, layers, pooler, order
            + 2 * M * (H * E + E * cfg.vocab_size))

# --- objective ------------
# All chance comes from one generator: an example depends on its number in the stream alone.


def join(first, first_length, second, second_length, tokenizer):
    """[CLS] first [SEP] second [SEP] (Sec. 4.1), or [CLS] first [SEP] where second_length is 0.

    first, second: (B, width) pieces, of which first_length and second_length (B,) count. Returns ids (B, T), with T =
    width + 3, segments (B, T), which are 1 in the second part and its [SEP], and lengths (B,).
    """
    rows, width = first.shape
    positions, a, b = torch.arange(width + 3).expand(rows, -1), first_length[:, None], second_length[:, None]
    end = a + torch.where(b > 0, b + 2, 1)  # (B, 1) the position of the last [SEP]
    ids = first.gather(1, (positions - 1).clamp(0, width - 1))  # (B, width) -> (B, T)
    ids = torch.where(positions > a + 1, second.gather(1, (positions - a - 2).clamp(0, width - 1)), ids)
    ids = ids.masked_fill((positions == a + 1) | (positions == end), tokenizer.sep_id)
    ids = ids.masked_fill(positions > end, tokenizer.pad_id).masked_fill(positions == 0, tokenizer.cls_id)
    return ids, ((positions > a + 1) & (positions <= end)).long(), end[:, 0] + 1


def sentence_pairs(parts, tokenizer, objective, generator):
    """Two segments as one input, and their label (Sec. 3.1, Inter-sentence coherence loss).

    parts: data.corpus.Segments, that is first, second and other (from another document), each (B, width), with their
    lengths first_length, second_length, other_length (B,), 0 for none. Returns ids, segments (B, T), lengths (B,) and
    labels (B,), -100 for none. D1: a text without a sentence boundary is one segment and has no label; the official
    code pairs it with another document and calls that "swapped".
    """
    first, first_length, second, second_length = parts.first, parts.first_length, parts.second, parts.second_length
    labels = (torch.rand(len(first), generator=generator) < 0.5).long()
    pair = second_length > 0  # (B,)
    if objective == "nsp":  # 0: consecutive, 1: the second is from another document
        pair = pair & (parts.other_length > 0)
        foreign = pair & labels.bool()
        second = torch.where(foreign[:, None], parts.other, second)
        second_length = torch.where(foreign, parts.other_length, second_length)
    elif objective in ("sop", "shuffled"):  # 0: in their order, 1: swapped
        swapped = pair & labels.bool()
        first, second = (torch.where(swapped[:, None], second, first), torch.where(swapped[:, None], first, second))
        first_length, second_length = (torch.where(swapped, second_length, first_length),
                                       torch.where(swapped, first_length, second_length))
        if objective == "shuffled":  # the label says nothing about the order
            labels = torch.randint(2, labels.shape, generator=generator)
    else:  # none: always in their order
        pair = torch.zeros_like(pair)
    return *join(first, first_length, second, second_length, tokenizer), labels.masked_fill(~pair, -100)


def ngram_lengths(shape, longest, generator):
    """Lengths of n-grams, p(n) = (1 / n) / sum of 1 / k over k = 1..longest (Sec. 4.1)."""
    weights = 1 / torch.arange(1, longest + 1).double()
    edges = (weights.cumsum(0) / weights.sum())[:-1]
    return torch.bucketize(torch.rand(shape, generator=generator, dtype=torch.float64), edges, right=True) + 1


def pick_ngrams(ids, segments, tokenizer, budget, longest, generator):
    """Which pieces are to be predicted, (B, T) bool: n-grams of whole words at random places until each row's budget
    (B,) of pieces is spent. As in the official code, an n-gram that does not fit the budget is shortened, and one that
    meets a taken word is refused. D2: n-grams stay inside one segment; there they run across [SEP].

    A row with a budget of 6 pieces and 6 words, of which word 3 has three pieces and words 4 and 5 are segment 1:

        [CLS]  the  white  house  corre ##spon ##dents  [SEP]  left  home  [SEP]
                0     1      2      3     3      3               4     5

    Say n-grams are tried that begin with words 2, 1, 5 and 0, in this order, the first of 3 words, the others of 2.
    From word 2: words 2 and 3 are taken, 4 pieces; word 4 is not, as it is another segment's. From word 1: words 1 and
    2 are refused, as 2 is taken. From word 5: it has no neighbour and is taken alone. From word 0: one piece of the
    budget is left, so that the n-gram is shortened to word 0, which spends it.
    """
    B, T = ids.shape
    text = (ids != tokenizer.pad_id) & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)
    # (B, T) where a word begins: by its piece, starts_word (V,), or with the segment
    begins = text & (torch.as_tensor(tokenizer.starts_word)[ids] | ~F.pad(text, (1, 0))[:, :T])
    word = (begins.cumsum(1) - 1).clamp(min=0)  # (B, T) the number of each piece's word
    spare = T + longest  # a column for what is no word
    size = torch.zeros(B, spare + 1, dtype=torch.long).scatter_add_(1, word, text.long())  # (B, words) pieces
    side = torch.full((B, spare + 1), -1).scatter_(1, torch.where(begins, word, spare), segments)  # each word's segment
    taken, left, reach = torch.zeros(B, spare + 1, dtype=torch.bool), budget.clone(), torch.arange(longest)
    words = begins.sum(1)  # (B,) words of each row
    chance = torch.rand(B, T, generator=generator).masked_fill(torch.arange(T) >= words[:, None], 2.0)
    tried = chance.argsort(1)  # (B, T) each row's words in random turns, what is no word last
    drawn = ngram_lengths((B, T), longest, generator)
    for turn in range(int(words.max())):
        ngram = tried[:, turn, None] + reach  # (B, n) the words that it may cover
        pieces, here = size.gather(1, ngram), side.gather(1, ngram)
        fits = ((reach < drawn[:, turn, None]) & (pieces.cumsum(1) <= left[:, None])
                & (here == here[:, :1]) & (here >= 0))
        fits &= ~(taken.gather(1, ngram) & fits).any(1, keepdim=True)
        taken.scatter_(1, ngram, taken.gather(1, ngram) | fits)
        left -= (pieces * fits).sum(1)
        if not left.any():
            break
    return text & taken.gather(1, word)


def masked_count(cfg):
    """M, predictions of a full sequence (D3)."""
    most = max(1, round(MASKED * cfg.length))
    return min(most, cfg.max_predictions or most)


def mask_tokens(ids, segments, tokenizer, cfg, generator):
    """N-gram masking (Sec. 4.1): a chosen piece becomes [MASK] in 80% of the cases, a random piece in 10%, or stays.

    ids, segments (B, T). Returns the changed ids, the places of the chosen pieces, and as labels what stood there, both
    (B, M). A row with fewer has labels of -100 in the rest. D14: masks are drawn anew in each pass; the official data
    hold 40 copies of each text, whose masks are fixed.
    """
    B, M = len(ids), masked_count(cfg)
    budget = (MASKED * (ids != tokenizer.pad_id).sum(1)).round().long().clamp(1, M)
    chosen = pick_ngrams(ids, segments, tokenizer, budget, NGRAM, generator)
    places = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :M]  # the chosen first, from left to right
    used, originals = chosen.gather(1, places), ids.gather(1, places)
    chance = torch.rand(B, M, generator=generator)
    random_piece = torch.randint(tokenizer.vocab_size, (B, M), generator=generator)
    changed = torch.where(chance < 0.8, tokenizer.mask_id, torch.where(chance < 0.9, random_piece, originals))
    changed = torch.where(used, changed, originals)
    return ids.scatter(1, places, changed), places, originals.masked_fill(~used, -100)


def mean_loss(logits, labels):
    """Mean cross-entropy of logits (rows, classes) over labels (rows,) that are not -100; 0 where there is none."""
    return F.cross_entropy(logits.float(), labels, reduction="sum") / (labels != -100).sum().clamp(min=1)

# --- training -------------

if (Path(__file__).parent / "common").is_dir():  # this file alone imports, builds its model and steps
    import numpy as np

    from common import cli, squad
    from common.cli import Diverged, Stop, UserError
    from common.distributed import (
        Pace, autocast, gather, launch, layer_activations, move, no_sync_until, on_main,
        per_second, prefetch, prepare_model, print_device_use, progress, say, seed_everything,
        seed_of, send, set_shards, shard_range, training_cost)
    from common.files import load_file, read_json, save_file
    from common.runs import Checkpoint
    from common.finetune import (Recipe, answer_file, finetune_job, open_file, open_task, parse_tasks,
                                 predict, print_summary, run_jobs, summarise, write_outputs)
    from common.tokenization import load_tokenizer
    from common.weights import keep_model, read_init, take_over, take_settings
    from data import hf_models
    from data.corpus import below, mix
    from data.inputs import open_run, words_after_training
    from data.race import RaceTask


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2019; Sec. 4.1) as ALBERT's code has it, a step of one tensor w with gradient g being

        m = b1 m + (1 - b1) g                 v = b2 v + (1 - b2) g^2
        u = m / (sqrt(v) + eps) + decay w     w = w - lr |w| / |u| u

    so a tensor moves by about the share lr of its own length. There is no bound on the trust ratio |w| / |u|, which is
    1 where a norm is 0, and no bias correction of m and v (D18). Biases and LayerNorms have neither decay nor ratio.
    adapt=False leaves the ratio out everywhere: BERT's AdamW, for fine-tuning (official code).
    """

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, adapt=True):
        chosen = [value for value in parameters if value.requires_grad]
        matrices = [value for value in chosen if value.dim() > 1]
        vectors = [value for value in chosen if value.dim() <= 1]  # biases and LayerNorms
        super().__init__([dict(params=matrices, weight_decay=weight_decay, adapt=adapt),
                          dict(params=vectors, weight_decay=0.0, adapt=False)], dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for w in group["params"]:
                if w.grad is None:
                    continue
                state, g = self.state[w], w.grad
                if not state:
                    state |= {"m": torch.zeros_like(w), "v": torch.zeros_like(w)}
                state["m"].lerp_(g, 1 - b1)
                state["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                u = (state["m"] / (state["v"].sqrt() + group["eps"])).add_(w, alpha=group["weight_decay"])
                if group["adapt"]:
                    w_norm, u_norm = w.norm(), u.norm()
                    u *= torch.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, 1.0)
                w.add_(u, alpha=-group["lr"])


def schedule(step, steps, warmup):
    """Share of the peak learning rate at an update, from 0: a warm-up, then a linear decay that counts from update 0,
    so the rate drops between (official code)."""
    return step / warmup if step < warmup else 1 - step / steps


def sentence_runs(corpus, number, rows, room, seed, short_prob=SHORT):
    """Examples number .. number + rows - 1 of an endless stream, as data.corpus.Segments: runs of whole sentences of up
    to `room` tokens, each parted at a sentence boundary inside (D11). No text is missing between the parts, and neither
    their sizes nor their ends tell which came first.

    The slots of a document share out its sentences by number, so that all are shown as often. (Shared out by tokens, a
    run would begin or end with a long sentence, as a cut falls into one more easily, and the outer sentences of a pair
    would tell its order.) Of a share that is more than the size drawn, a run takes as many sentences as fit, from the
    share's beginning or up to its end, as a coin has it.

    D21: a run, also a short one, has two sentences where `room` allows, even if the size drawn for it
    or its share does not, so that it has an order. Where `room` does not, and in a document of one
    sentence, the example is one part, cut out of the slot's stretch of the document: second_length
    is 0. `other`, for NSP, is as whole, the end of a run elsewhere; other_length is 0 where none
    fits.
    """
    document, left, right, target, draws = corpus.drawn(number, rows, room, seed, short_prob)
    low, high = (corpus.documents[corpus.ids[document] + part] for part in (0, 1))
    begin, end = corpus.sentences[low], corpus.sentences[high]
    count = high - low
    start, stop = (low + ((cut - begin) * count * 2 + end - begin) // (end - begin) // 2 for cut in (left, right))
    backwards = below(2, draws[2]) == 1
    start = np.where(backwards, np.clip(stop - 2, low, start), start)  # two sentences at least
    stop = np.clip(start + 2, stop, high)
    start = np.clip(stop - 2, low, start)
    after = np.maximum(fitting_stop(corpus, start, stop, target), np.minimum(start + 2, stop))
    before = corpus.first_after(corpus.sentences[stop] - target - 1, start, stop)
    before = np.minimum(before, np.maximum(stop - 2, start))
    start, stop = np.where(backwards, before, start), np.where(backwards, stop, after)
    pair = (stop - start > 1) & (corpus.sentences[stop] - corpus.sentences[start] <= room)
    middle = start + 1 + below(np.maximum(stop - start - 1, 1), draws[3])
    begin, cut, end = (corpus.sentences[sentence] for sentence in (start, middle * pair, stop))
    lone = np.minimum(target, right - left)  # the size of an example of one part
    begin = np.where(pair, begin, left + below(right - left - lone + 1, draws[2]))
    first, second = np.where(pair, cut - begin, lone), np.where(pair, end - cut, 0)
    columns = (array[:, None] for array in (document, second, room - first))
    eight = [mix(draw[:, None] + np.arange(1, 9, dtype=np.uint64)) for draw in draws[4:]]
    other, other_length = run_elsewhere(corpus, corpus.slot_table(room), *columns, eight)
    return corpus.collect(room, (begin, first), (cut, second), (other, other_length))


def fitting_stop(corpus, start, high, room):
    """Where the longest run of whole sentences stops that begins with sentence `start`, lies before sentence `high` and
    has no more than `room` tokens; `start` where no sentence fits."""
    limit = corpus.sentences[start] + room
    stop = corpus.first_after(np.minimum(limit, corpus.sentences[high] - 1), start, high)
    return stop - (corpus.sentences[stop] > limit)


def run_elsewhere(corpus, table, document, want, most, draws):
    """(first token, tokens), (R,) each, of runs of whole sentences in the place of NSP's second part: from another
    document, but, like that part, not from its beginning, of about `want` tokens, the second part's, and `most` at
    most. Of eight that are drawn it is the one whose size is nearest; 0 tokens where none fits or none is wanted.

    The other arguments are (R, 1), draws two of (R, 8).
    """
    foreign = table[document + 1] + below(table[-1] - table[document + 1] + table[document], draws[0])
    there = corpus.ids[np.searchsorted(table, foreign % table[-1], side="right") - 1]
    low, high = corpus.documents[there], corpus.documents[there + 1]
    choices = (high - low - 1) * (len(corpus.ids) > 1)
    begin = np.minimum(low + 1 + below(np.maximum(choices, 1), draws[1]), high - 1)
    end = fitting_stop(corpus, begin, high, want)
    below_want, above = (corpus.sentences[np.minimum(end + more, high)] - corpus.sentences[begin] for more in (0, 1))
    size = np.where((below_want == 0) | (above - want < want - below_want), above, below_want)
    size = np.where((choices > 0) & (size <= most) & (want > 0), size, 0)
    best = np.where(size > 0, abs(size - want), 2**40).argmin(1)[:, None]
    return [np.take_along_axis(array, best, 1)[:, 0] for array in (corpus.sentences[begin], size)]


def language_batch(corpus, tokenizer, cfg, objective, number, rows, device):
    """Examples number .. number + rows - 1 of the endless stream, on the device: ids, segments (B, T), lengths (B,),
    places, labels (B, M) of the masked words, order (B,)."""
    generator = torch.Generator().manual_seed(seed_of(cfg.seed, "mask", objective, number))
    # D11: whole sentences with nothing between them, so that no cut gives their order away; two that do not fit have no
    # label. The official code takes tokens off at random ends
    parts = sentence_runs(corpus, number, rows, cfg.length - 3, cfg.seed)
    ids, segments, lengths, order = sentence_pairs(parts, tokenizer, objective, generator)
    ids, places, labels = mask_tokens(ids, segments, tokenizer, cfg, generator)
    return send((ids, segments, lengths, places, labels, order), device)


def update(network, model, optimizer, batches, sums, cfg, ranks):
    """One step on this process's batches. Adds to sums (4,): both losses as they are optimized, the
    fraction of sequences with an order, and the norm of the gradient."""
    share = cfg.accumulate // ranks.size
    for number, (*inputs, labels, order) in enumerate(batches, 1):
        with no_sync_until(network, ranks, number == share):  # processes meet once an update
            with autocast(cfg.dtype, ranks.device):
                logits, order_logits = network(*inputs)
            # D1: sequences without an order count in the mean, as 0; few labels would drown the
            # words in their noise
            labelled = (order != -100).float().mean()
            losses = torch.stack([mean_loss(logits.flatten(0, 1), labels.flatten()),
                                  mean_loss(order_logits, order) * labelled]) / share
            losses.sum().backward()
        sums[:2] += losses.detach()
        sums[2] += labelled / share
    # D6: clipped once, averaged over the batch; the official code clips each replica's gradient and adds them up
    sums[3] += nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()


def train_language_model(model, text, cfg, ranks, run, checkpoint, optimizer):
    """Pre-training on text, a data.inputs.Data, from the newest checkpoint on. Raises Diverged, and Stop after SIGTERM.

    Each of a batch's --accumulate shards has its own text, masks and dropout: the same for any number of processes. The
    host waits for a GPU where it logs, looks and saves.
    """
    start, shards = checkpoint.restore().get("step", 0), shard_range(ranks, cfg.accumulate)
    rows, network = cfg.batch // cfg.accumulate, prepare_model(model, ranks, cfg.compile)
    peak = cfg.lr * math.sqrt(cfg.batch / 4096)  # D19: You et al.'s rule; the paper has batches of 4,096 alone
    warmup, log_every = round(cfg.warmup * cfg.steps), max(1, min(100, cfg.steps // 20))
    bar, sums = progress(ranks, cfg.steps, "pretrain", start), torch.zeros(4, device=ranks.device)
    began, logged, pace = None, start, Pace(ranks, cfg.save_minutes)

    # a thread makes the next batch; it draws from generators of its own
    made = prefetch(
        language_batch(text.train, text.tokenizer, cfg, cfg.objective, step * cfg.batch + shard * rows, rows,
                       ranks.device)
        for step in range(start, cfg.steps) for shard in shards)

    def batches(step):
        for shard in shards:
            seed_everything(cfg.seed, "pretrain", step, shard)  # dropout
            yield next(made)

    for step in range(start, cfg.steps):
        model.train()
        if cfg.dropout_steps and step == max(start, cfg.dropout_steps):  # Sec. 4.8
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            torch.compiler.reset()  # what was compiled fails at it with --recompute
        for group in optimizer.param_groups:
            group["lr"] = peak * schedule(step, cfg.steps, warmup)
        update(network, model, optimizer, batches(step), sums, cfg, ranks)
        bar.update()
        done, (stop, save, log) = step + 1, pace()  # SIGTERM, --save_minutes or a minute over
        saved = done % cfg.save_every == 0 or done == cfg.steps or stop or save
        if done % log_every == 0 or saved or log:
            means = torch.tensor(gather(ranks, sums.tolist())).mean(0) / (done - logged)
            mlm, order, labelled, norm = means.tolist()
            if not math.isfinite(mlm + order + norm):
                raise Diverged(f"the loss or its gradient is not finite at update {done}")
            rate = per_second((done - logged) * cfg.batch * cfg.length, began)
            look = done % cfg.save_every == 0 and done < cfg.steps  # before it is saved: a resumed run repeats it
            order_loss = order / labelled if labelled else None  # mean over labelled sequences
            run.log("pretrain", done, loss=mlm + order, mlm_loss=mlm, order_loss=order_loss, norm=norm,
                    lr=group["lr"], tokens_per_second=rate,
                    dev=accuracies(evaluate_language_model(model, text, cfg, ranks)) if look else None)
            bar.set_postfix(mlm_loss=f"{mlm:.3f}", tok_s=rate or "-",
                            order_loss=f"{order_loss:.3f}" if labelled else "-")
            if cfg.dry_run:
                print_device_use(ranks, rate, flops(cfg) / cfg.length)
            sums.zero_()
            logged, began = done, time.perf_counter()
        if saved:
            checkpoint.save(step=done)
        if stop:
            raise Stop
    bar.close()


def by_first_piece(text, cfg):
    """What a guess is worth that sees the first piece of each segment alone, {"nsp", "sop": accuracy} on the held-out
    segments of a look: only what a model scores above it is order that it has read. Naive Bayes, by the pieces that
    begin a first segment, a second one and one from elsewhere in 8,192 rows of the training text; a tie is half right.
    """
    def begins(corpus, rows):
        parts = sentence_runs(corpus, 0, rows, cfg.length - 3, 0)
        pair = parts.second_length > 0
        return parts.first[pair, 0], parts.second[pair, 0], parts.other[parts.other_length > 0, 0]

    counts = (1 + pieces.bincount(minlength=cfg.vocab_size) for pieces in begins(text.train, 8192))
    first, second, other = ((count / count.sum()).log() for count in counts)  # 3 x (V,)
    one, two, foreign = begins(text.dev, cfg.dev_rows)
    margins = {"nsp": torch.cat([(second - other)[two], (other - second)[foreign]]),
               "sop": (first - second)[one] - (first - second)[two]}
    return {name: (1 + margin.sign().mean().item()) / 2 for name, margin in margins.items() if len(margin)}


@torch.no_grad()
def evaluate_language_model(model, text, cfg, ranks):
    """Table 5's intrinsic tasks: accuracy of masked words, NSP and SOP, which one two-way head answers.

    D4: held-out documents of the corpus, or --dev_corpus; the paper reads SQuAD's and RACE's dev text. D5: words are
    scored on pairs in their order, the same tokens for every objective; with none the order head stays untrained.
    None where fewer than FEWEST pairs, or no words, are scored.
    """
    model.eval()
    cfg = dataclasses.replace(cfg, seed=0)  # the same examples for every seed
    rows, shares, scored = min(64, cfg.dev_rows), {}, {}
    for name, objective in (("mlm", "none"), ("nsp", "nsp"), ("sop", "sop")):
        found = torch.zeros(2, device=ranks.device)  # right, asked
        for number in range(ranks.rank * rows, cfg.dev_rows, ranks.size * rows):
            *inputs, places, labels, order = language_batch(text.dev, text.tokenizer, cfg, objective, number,
                                                            min(rows, cfg.dev_rows - number), ranks.device)
            with autocast(cfg.dtype, ranks.device):
                logits, order_logits = model(*inputs, places if name == "mlm" else places[:, :0])
            guesses, truths = (logits, labels) if name == "mlm" else (order_logits, order)
            found += torch.stack([(guesses.argmax(-1) == truths).sum(), (truths != -100).sum()])
        right, asked = torch.tensor(gather(ranks, found.tolist())).sum(0).tolist()
        shares[name] = right / asked if asked >= (1 if name == "mlm" else FEWEST) else None
        scored[name] = int(asked)
    return {**shares, "scored": scored}


def accuracies(found):
    """What evaluate_language_model found, as log.jsonl names it."""
    return {f"{name}_accuracy": found[name] for name in found["scored"]}


def accuracy_line(found, objective):
    """What a finished pre-training prints: accuracies of what it trained."""
    beside = {name: f", {100 * share:.1f} by the first piece alone" for name, share in
              found["by_first_piece"].items()}
    if "mlm_constant" in found:
        beside["mlm"] = f", one answer to all has {100 * found['mlm_constant']:.1f}"
    trained = ["mlm"] if objective == "none" else list(found["scored"])
    return "held-out accuracy in percent: " + ", ".join(
        f"{name} {100 * found[name]:.1f} (of {found['scored'][name]}{beside.get(name, '')})"
        if found[name] is not None else f"{name} not scored ({found['scored'][name]} held out)"
        for name in trained)


def pretrain(cfg):
    """Pre-train (Sec. 4.1)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source, pieces = read_source(cfg), cfg.vocab_size
        set_shards(cfg, ranks)
        cfg.batch = min(cfg.batch, 8 * cfg.accumulate) if cfg.dry_run else cfg.batch
        if cfg.length > cfg.positions:
            raise UserError(f"--length {cfg.length}: the model has {cfg.positions} positions; "
                            f"give --positions {cfg.length}")
        run, text = open_run(cfg, "pretrain", ranks, "corpus")
        if not run.finished:
            cfg.vocab_size = table_size(text.tokenizer, pieces) if source else text.tokenizer.vocab_size
            run.settle(cfg)
            labelled = sentence_runs(text.train, 0, 8192, cfg.length - 3, cfg.seed).second_length > 0
            if cfg.objective != "none" and not labelled.any():
                raise UserError(f"{cfg.corpus[0]}: no two sentences of a document fit into --length {cfg.length}; raise"
                                " it, put one on a line, blank lines between documents, or use --objective none")
            say(ranks, f"{100 * labelled.float().mean():.0f}% of the sequences hold two sentences or more (D1, D11)")
            seed_everything(cfg.seed, "pretrain", "weights")
            model = LanguageModel(cfg)
            nn.ModuleList([model.pooler, model.order]).requires_grad_(cfg.objective != "none")  # D5
            say(ranks, start_from(model, source) if source else "from scratch")
            say(ranks, f"{count(model):,} parameters, {cfg.steps} updates of {cfg.batch} x {cfg.length} tokens")
            optimizer = Lamb(model.to(ranks.device).parameters(), cfg.lr, weight_decay=cfg.weight_decay)
            checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, model=model, optimizer=optimizer)
            train_language_model(model, text, cfg, ranks, run, checkpoint, optimizer)
            found = {"parameters": count(model), **evaluate_language_model(model, text, cfg, ranks),
                     "mlm_constant": text.dev.commonest(), "by_first_piece": by_first_piece(text, cfg)}
            beside = {f"{name}_by_first_piece": share for name, share in found["by_first_piece"].items()}
            run.log("pretrain", cfg.steps, dev=accuracies(found) | beside)
            run.finish({"steps": cfg.steps, **found})
        say(ranks, accuracy_line(run.finished, cfg.objective))
        run.ends(cfg, "checkpoint.pt", *words_after_training(cfg, run.folder, f"{run.folder}-exported"))


# What a model starts from

Source = namedtuple("Source", "path weights task")  # weights under our names; task: whose head is among them, or ""
HEADS = ("head", "span", "answer")


def read_run(cfg, settings):
    """A run folder of ours, or a task's folder in one, as a Source; cfg takes over the model's shape and tokenizer."""
    shape = SHAPE if settings.get("share") == "all" else (*SHAPE, "layers")  # only shared layers can be added to
    owned = read_init(cfg, dict.fromkeys(("pretrain", "finetune"), shape), FREE)
    task = next(iter(owned.keys() - {"model", "optimizer"}), "")
    weights, path = owned[task or "model"], Path(cfg.init)
    take_settings(cfg, {"vocab_size": len(weights["encoder.words.weight"])}, path, ("vocab_size",))
    return Source(path, weights, task)


def read_hugging_face(cfg, config):
    """The same of a Hugging Face folder, whose config.json this is."""
    take_settings(cfg, hf_models.albert_settings(config), Path(cfg.init), ("vocab_size", *SHAPE), FREE)
    weights, task = hf_models.read_albert(Path(cfg.init), config, cfg.groups)
    cfg.tokenizer = cfg.tokenizer or cfg.init
    return Source(Path(cfg.init), weights, task)


def check_size(cfg):
    """UserError where this machine cannot hold the model."""
    (attentions, ffns), E, H = blocks(cfg), cfg.embedding or cfg.hidden, cfg.hidden
    cli.check_memory(", ".join(f"{name} {getattr(cfg, name)}" for name in ("layers", "vocab_size", *SHAPE)), cfg.layers,
                     H * (4 * H * attentions + 2 * cfg.ffn * ffns) + E * (cfg.vocab_size + cfg.positions))


def read_source(cfg):
    """The model of --init, whose shape cfg takes over, as a Source, or None without --init. UserError where a flag says
    otherwise, and where the model cannot be built."""
    source, path = None, Path(cfg.init) / "config.json"
    try:
        if cfg.init:
            config = read_json(path) if path.exists() else {"settings": {}}
            ours = isinstance(config, dict) and "settings" in config
            source = read_run(cfg, config["settings"]) if ours else read_hugging_face(cfg, config)
        check_shape(cfg)
    except (KeyError, ValueError) as error:
        raise UserError(f"{cfg.init or 'the model'}: {error}") from None
    check_size(cfg)
    return source


def table_size(tokenizer, pieces):
    """The pieces of --init's word embeddings: a released model may have up to 127 more than its tokenizer. UserError
    where the tokenizer cannot be the model's."""
    if not pieces - 128 < tokenizer.vocab_size <= pieces:
        raise UserError(f"{tokenizer.path}: {tokenizer.vocab_size} pieces, and the model of --init has {pieces}; give "
                        "the model's own vocabulary with --tokenizer")
    return pieces


def start_from(model, source, task=""):
    """Copy a Source's weights into a model; returns a line on it. Encoder, pooler and pre-training's heads must
    fit where they are there (UserError); a task's head is taken over where it is this task's and fits."""
    own, weights = model.state_dict(), source.weights
    if source.task not in ("", task):
        weights = {name: value for name, value in weights.items() if not name.startswith(HEADS)}
    needed = {"encoder", *(name.split(".")[0] for name in weights)} - {*HEADS}
    faults = [f"missing {name}" for name in own if name.split(".")[0] in needed and name not in weights]
    faults += [f"unexpected {name}" for name in weights if name.startswith("encoder.") and name not in own]
    if faults:
        raise UserError(f"{source.path}: its weights do not fit this model: {'; '.join(faults)}")
    foreign = len(weights) < len(source.weights)
    return take_over(model, weights, source.path, HEADS) + f"; the head of {source.task} is left out too" * foreign


def export(cfg, folder):
    """Write the model of --init as a Hugging Face folder."""
    source = read_source(cfg)
    if not source:
        raise UserError("--export needs --init, whose model is written")
    start_from(LanguageModel(cfg), source)  # a check
    config = read_json(Path(cfg.init) / "config.json")
    cfg.finetune_length = config.get("settings", config).get("finetune_length")  # for --predict
    tokenizer = load_tokenizer(cfg.tokenizer)
    print(hf_models.write_albert(folder, source.weights, source.task, cfg, max(blocks(cfg)), tokenizer))


# Fine-tuning (App. A.4). A job is one run of one task

TABLE14 = {  # learning rate, batch, dropout, steps, warm-up steps, longest input; what counts (official code)
    "CoLA": (1e-5, 16, 0.0, 5336, 320, 512, "matthews"),
    "STS-B": (2e-5, 16, 0.0, 3598, 214, 512, "pearson"),
    "SST-2": (1e-5, 32, 0.0, 20935, 1256, 512, "accuracy"),
    "MNLI": (3e-5, 128, 0.0, 10000, 1000, 512, "accuracy"),
    "QNLI": (1e-5, 32, 0.0, 33112, 1986, 512, "accuracy"),
    "QQP": (5e-5, 128, 0.1, 14000, 1000, 512, "accuracy"),
    "RTE": (3e-5, 32, 0.1, 800, 200, 512, "accuracy"),
    "MRPC": (2e-5, 32, 0.0, 800, 200, 512, "accuracy"),
    "WNLI": (2e-5, 16, 0.1, 2000, 250, 512, "accuracy"),  # D10: no test-set tricks for it and QNLI (App. A.3)
    "SQuAD1.1": (5e-5, 48, 0.0, 3649, 365, 384, "f1"),
    "SQuAD2.0": (3e-5, 48, 0.0, 8144, 814, 512, "f1"),
    "RACE": (2e-5, 32, 0.1, 12000, 1000, 512, "accuracy"),
}
# The released v2 models had no dropout; Table 14's, and its rate for RACE, let them diverge (official README)
V2 = {name: (1e-5 if name == "RACE" else lr, batch, 0.0, *others) for name, (lr, batch, _, *others) in TABLE14.items()}
FINE_TUNING = ("finetune_", "eval_", "train_")  # its flags begin so
Config.writes = tuple(TABLE14)  # --restart deletes a run's folders of tasks
PAPER = ("SQuAD1.1", "SQuAD2.0", "MNLI", "SST-2", "RACE")  # Table 2's tasks: --finetune paper


def recipes(cfg, table=TABLE14):
    """Table 14, or V2, for a model, whose positions no input may pass: {task: Recipe}."""
    return {name: Recipe(lr, batch, steps=2 if cfg.dry_run else steps, warmup=warmup / steps, dropout=dropout,
                         length=min(length, cfg.positions), main=main)
            for name, (lr, batch, dropout, steps, warmup, length, main) in table.items()}


def task_model(task, cfg):
    """The model that a task is fine-tuned with."""
    shape = dataclasses.replace(cfg, dropout=task.recipe.dropout)
    if task.kind == "span":
        return SpanModel(shape) if task.name == "SQuAD1.1" else AnswerModel(shape)
    return (MultipleChoice if task.kind == "choice" else Classifier)(shape, task.outputs)


def probabilities(task, outputs):
    """What --ensemble averages: probabilities (n, C) of a "class" or "choice", scores (n, 1) of a "value",
    squad.Predictions of a "span"."""
    if task.kind == "span":
        return task.answers(outputs)
    return outputs if task.kind == "value" else outputs.softmax(-1)


def save_predictions(task, outputs, folder):
    """Write predictions.pt for --ensemble: {split: probabilities}, and which examples they are for."""
    plain = {split: each._asdict() if task.kind == "span" else each for split, each in outputs.items()}
    save_file(folder / "predictions.pt", {"data": fingerprint(task), "found": plain})


def train_task(task, number, source, cfg, tokenizer, folder, run):
    """One run of a task: training, the best weights' predictions (Sec. 4.2.2)."""
    seed = seed_of(cfg.seed, "fine-tuning", task.name, number)
    seed_everything(seed, "weights")
    model = task_model(task, cfg)
    note = start_from(model, source, task.name)
    say(run.ranks, f"{folder.name}: {note}")
    model = move(model, run.ranks.device)
    optimizer = Lamb(model.parameters(), task.recipe.lr, weight_decay=cfg.weight_decay, adapt=False)
    warmup = round(task.recipe.warmup * task.steps)

    def rate(step):
        return task.recipe.lr * schedule(step, task.steps, warmup)

    # D7: whole epochs are shuffled, examples of like length together; the official code shuffles a
    # buffer of 100 examples. D8: evaluations are evenly spaced; the official code has every 100th step
    result, outputs = finetune_job(model, task, optimizer, rate, cfg, run.ranks.device, (seed,), folder, run,
                                   accumulate=cfg.accumulate,
                                   evaluate_at=task.evaluation_steps(cfg.eval_every))
    if outputs:
        outputs = {split: probabilities(task, each) for split, each in outputs.items()}
        save_predictions(task, outputs, folder)
        keep_model(folder, "finetune", cfg, tokenizer, **{task.name: model})
    return {**result, "start": note}


def answer(cfg, path):
    """Predict a file of the user's own with RUN/TASK of --init."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = read_source(cfg)
        if not source:
            raise UserError("--predict needs --init, a model of --finetune: RUN/TASK or its --export")
        tokenizer = load_tokenizer(cfg.tokenizer)
        task = open_file(path, cfg, tokenizer, recipes(cfg), {"RACE": RaceTask}, source.task)
        model = task_model(task, cfg).to(ranks.device)
        start_from(model, source, task.name)
        outputs = predict(model, task, *task.splits, cfg, ranks.device)
        say(ranks, on_main(ranks, answer_file, path, cfg, task, outputs))


def fingerprint(task):
    """A hash of the examples that are predicted."""
    predicted = [examples for split, examples in task.examples.items() if split != "train"]
    return hashlib.sha256(repr(predicted).encode()).hexdigest()


def ensemble_job(name, cfg, folder):
    """Average what the best run folders of --ensemble predict for a task (Sec. 4.9)."""
    members = {path: load_file(Path(path) / name / "predictions.pt") for path in cfg.ensemble}
    tokenizer, kinds = load_tokenizer(Path(cfg.ensemble[0]) / name), {"RACE": RaceTask}
    task = open_task(name, dataclasses.replace(cfg, train_rows=1), tokenizer, recipes(cfg), kinds)
    for path, member in members.items():
        if member["data"] != fingerprint(task):
            raise UserError(f"--ensemble {path}: its predictions on {name} are for other data")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = choose_members({path: member["found"]["dev"] for path, member in members.items()}, task)
    outputs = {split: average_predictions([members[path]["found"][split] for path in chosen])
               for split in task.splits if split != "train"}
    save_predictions(task, outputs, folder)
    return {"job": folder.name, "task": name, "setting": [], "members": chosen, "diverged": None,
            "metrics": write_outputs(task, outputs, folder), **task.context(outputs["dev"])}


def choose_members(found, task):
    """Of {member: its predictions on dev} the best, as many as score best together. D16: the paper chooses by dev's
    score too (Sec. 4.9), but does not say how."""
    def score(names):
        return task.score("dev", average_predictions([found[name] for name in names]))["main"]

    ranked = sorted(found, key=lambda name: -score([name]))
    return max((ranked[:size] for size in range(len(ranked), 0, -1)), key=score)


def average_predictions(several):
    """Sec. 4.9: mean probabilities; SQuAD: of a span, and of "no answer" the mean odds. D22: a span
    that a model does not list has probability 0 there. The paper averages spans "that have multiple
    probabilities", where a span of one model alone could beat one that all others agree on."""
    if isinstance(several[0], torch.Tensor):
        return torch.stack(several).mean(0)
    result = squad.Predictions({}, {}, {})
    for key in several[0]["nbest"]:
        scores = Counter()
        for member in several:
            for span in member["nbest"][key]:
                scores[span["text"]] += span["probability"] / len(several)
        ranked = [(value, text) for text, value in scores.most_common()]
        result.texts[key] = ranked[0][1]
        result.nbest[key] = [{"text": text, "score": value, "probability": value} for value, text in ranked]
        result.null_odds[key] = statistics.mean(member["null_odds"][key] for member in several)
    return result


def paper_average(tasks):
    """The Avg column (Table 2): the mean over five tasks, SQuAD's F1 and EM averaged first, MNLI matched.
    None where a task is missing, or has diverged."""
    try:
        found = {name: tasks[name]["metrics"] for name in PAPER}
        return statistics.mean((scores["f1"] + scores["exact"]) / 2 if name.startswith("SQuAD") else scores["accuracy"]
                               for name, scores in found.items())
    except KeyError:
        return None


def choose_recipe(cfg):
    """(TABLE14, or V2 where --init is a Hugging Face folder whose config.json is that of the v2 models, a line on it).
    The demo's settings hold for networks of its preset, whatever the data: at Table 14's rates so narrow ones learn
    nothing. For others only flags that are given do."""
    config = read_json(path) if (path := Path(cfg.init) / "config.json").exists() else {}
    demo = config.get("settings", {}).get("preset") == "demo"
    if not demo:
        for name, value in PRESETS["demo"].items():
            if name.startswith(FINE_TUNING) and getattr(cfg, name) == value and name not in cfg.given:
                setattr(cfg, name, getattr(Config, name))
    others = " ".join(f"--{field.name} {getattr(cfg, field.name)}" for field in dataclasses.fields(cfg)
                      if field.name.startswith(FINE_TUNING) and getattr(cfg, field.name) != field.default)
    if demo and cfg.preset == "demo":
        return TABLE14, f"fine-tuning: as suits the demo's narrow networks, not by Table 14: {others}"
    table, line = TABLE14, "fine-tuning: Table 14"
    if "model_type" in config and not config.get("hidden_dropout_prob") and cfg.activation == "gelu_new":
        table = V2
        line += " with no dropout and RACE at 1e-5: by its config.json (no dropout, gelu_new) --init is a v2 model"
    return table, line + f", but {others}" * bool(others)


def finetune(cfg, words):
    """Fine-tune tasks, --runs of each, or ensemble. MNLI's best run, if any, starts RTE, STS-B and MRPC (Sec. 4.9,
    footnote 4)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        names = parse_tasks(words, TABLE14, {"paper": PAPER})
        if bool(cfg.init) == bool(cfg.ensemble):
            raise UserError("--finetune needs either --init, or --ensemble, which trains nothing")
        source, pieces = read_source(cfg), cfg.vocab_size
        if (cfg.finetune_length or 0) > cfg.positions:
            raise UserError(f"--finetune_length {cfg.finetune_length}: the model has {cfg.positions} positions; "
                            f"pre-train with --positions {cfg.finetune_length}")
        flags = {{"SQuAD1.1": "squad", "SQuAD2.0": "squad", "RACE": "race"}.get(name, "glue") for name in names}
        table, line = choose_recipe(cfg) if source else (TABLE14, f"an ensemble of {len(cfg.ensemble)}")
        run, data = open_run(cfg, "finetune", ranks, *sorted(flags), *["tokenizer"] * bool(source), tasks=names)
        longest = cfg.finetune_length or max(table[name][5] for name in names)
        if longest > cfg.positions:
            line += (f"; inputs are cut to the model's {cfg.positions} positions: "
                     f"pre-train with --positions {longest} for whole ones")
        say(ranks, line)
        cfg.vocab_size = table_size(data.tokenizer, pieces) if data.tokenizer else pieces
        run.settle(cfg)
        jobs = {f"{name}-{number}": (name, number) for name in names for number in range(cfg.runs if source else 1)}
        task = functools.lru_cache(maxsize=1)(  # the runs of a task follow each other
            lambda name: open_task(name, cfg, data.tokenizer, recipes(cfg, table), {"RACE": RaceTask}))

        def work(job, mnli):
            (name, number), folder = jobs[job], run.folder / "jobs" / job
            if cfg.ensemble:
                return ensemble_job(name, cfg, folder)
            begin = Source(mnli, load_file(mnli / "checkpoint.pt")["owned"]["MNLI"], "MNLI") if mnli else source
            return train_task(task(name), number, begin, cfg, data.tokenizer, folder, run)

        if not run.finished:
            results = run_jobs(ranks, run.folder, {job: name for job, (name, _) in jobs.items()}, work)
            result = on_main(ranks, summarise, run.folder, results)
            run.finish({**result, "average": paper_average(result["tasks"])})
        if run.finished["average"] is not None:
            say(ranks, f"Avg (Table 2) {100 * run.finished['average']:.2f}")
        print_summary(run, cfg)


def describe(cfg):
    """The model as JSON, and what training it takes."""
    read_source(cfg)
    by_part = parts(cfg)
    total = sum(by_part.values())
    activations = cfg.layers * [layer_activations(cfg.length, cfg.hidden, cfg.ffn)]
    logits = masked_count(cfg) * cfg.vocab_size
    print(json.dumps({
        "parameters": total,
        "parts": by_part,
        "flops": flops(cfg),
        "flops_counting": flops.__doc__,
        **training_cost(cfg, total, flops(cfg), activations, logits, cfg.steps, cfg.batch),
    }, indent=2))

# --- command line ---------


ACTIONS = {
    "pretrain": (pretrain, "pre-train with masked words and sentence order (Sec. 3, 4.1)"),
    "finetune": (finetune, "fine-tune the model of --init: CoLA,RACE,... | glue | squad | paper (Table 2)", "TASKS"),
    "predict": (answer, "answer a file of your own (TSV, SQuAD or RACE JSON) with RUN/TASK of --init, "
                "or with the folder that --export wrote of it", "FILE"),
    "export": (export, "write the model of --init as a Hugging Face folder", "DIR"),
    "describe": (describe, "parameters, FLOPs, memory, cards and days as JSON"),
}


def main(argv=None):
    """Run one action."""
    return cli.start(Config, PRESETS, ACTIONS, __doc__, argv=argv)


if __name__ == "__main__":
    if "cli" not in globals():
        print("albert.py alone is to be imported: model, masks, sentence order and optimizer; "
              "its commands need common/ and data/ of its repository beside it", file=sys.stderr)
        sys.exit(2)
    cli.run(main)
