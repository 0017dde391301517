"""ALBERT: A Lite BERT for Self-supervised Learning of Language Representations (Lan, Chen, Goodman, Gimpel, Sharma,
Soricut; ICLR 2020, arXiv:1909.11942).

BERT with far fewer parameters: words are embedded in E dimensions and mapped to H, and all layers share one set of
weights. Next-sentence prediction gives way to sentence-order prediction: are two consecutive segments in their order or
swapped? The model can then be made wide.

Run:     python albert.py --pretrain                                          on demo data, minutes on two CPU cores
         python albert.py --finetune CoLA,SQuAD2.0,RACE --init runs/albert-pretrain-demo
         torchrun --nproc_per_node=8 albert.py --pretrain --preset base --accumulate 64 --corpus TEXTS      the paper's
         python albert.py --finetune paper --init albert-base-v2/ --preset base --glue G --squad S --race R --runs 5
Map:     Sec. 3.1 -> Encoder (E, sharing), sentence_pairs (SOP)     Sec. 4.1 -> mask_tokens, Lamb, pretrain
         Table 1 -> PRESETS     Tables 1, 3, 4, 12 -> PUBLISHED     Table 2 -> compare_speed, paper_average
         Table 5 -> evaluate_language_model     Table 14 -> TABLE14, finetune     Figure 1 -> compare_layers
Differs: D1  SOP: a run of text without a sentence boundary inside has no label. The paper does not say; the official
             code pairs it with text from another document and calls that "swapped".
         D2  N-grams of words stay inside one segment (official code: they run across [SEP]); a nearly spent budget
             shortens them (as there).
         D3  15% of the tokens are predicted; the paper gives no number, the official code 20 a sequence
             (--max_predictions 20).
         D4  The intrinsic evaluation reads held-out documents of the corpus; the paper's is made of SQuAD's and RACE's
             dev text. So does Figure 1, with masks as in training; the paper does not say what it read.
         D5  MLM accuracy is measured on pairs in their order for every objective, so that the same tokens are scored.
             With --objective none the pooler and the order head stay as initialised: their accuracies are chance.
         D6  The gradient is clipped once, averaged over the batch; the official code clips each replica's and adds
             them up.
         D7  Fine-tuning shuffles whole epochs and puts rows of like length together; the official code shuffles a
             buffer of 100 rows.
         D8  Early stopping looks at the dev set at --evaluations evenly spaced steps, the official code at every 100th;
             it goes by F1 (SQuAD), Matthews' (CoLA) and Pearson's (STS-B) correlation, accuracy elsewhere.
         D9  Where E = H there is no mapping from E to H (as in the official code; Hugging Face has one, an exported
             folder an identity).
         D10 The leaderboard's special treatment of WNLI and QNLI is not built.
         D11 Of a segment that is cut, the beginning or the end is whole, by a coin, so that the cut does not give the
             order away; the official code takes tokens off at random ends.
         D12 xlarge has the 32 heads of Sec. 3.1 (H / 64); the released one has 16, which its config.json says.
         D13 SQuAD v1.1's head has no dropout, as in the official code; Table 14 gives it 0.1.
"""
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import re
import statistics
import sys
import time
from collections import namedtuple
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

# B batch, T tokens, E embedding, H hidden, N heads, D head dim, V vocab, M masked positions, L layers, K beams

# --- configuration -------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    """Every knob. The comment is the help text; a preset overrides the default, a flag the preset."""
    preset: str = "demo"  # demo (minutes, 2 cores) | base | large | xlarge | xxlarge | bert-base | bert-large (Table 1)
    out: str = ""  # run folder; default runs/albert-ACTION-PRESET
    restart: bool = False  # begin anew in a run folder that is there
    seed: int = 0  # of everything drawn
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = "auto"  # auto (bfloat16 autocast on GPUs that have it) | float32 | bfloat16
    compile: bool = False  # torch.compile the model of --pretrain
    accumulate: int = 1  # parts in which a batch is worked off, at least one a process in --pretrain
    recompute: bool = False  # gradient checkpointing: keep each layer's input only
    dry_run: bool = False  # two real steps of every phase
    init: str = ""  # weights to start from: a run folder, a task's folder in one, or a Hugging Face ALBERT folder
    # data
    corpus: tuple[str, ...] = ()  # text files or folders to pre-train on; default: the demo text
    glue: str = ""  # folder with the GLUE tasks in their official layout; default: the demo tasks
    squad: str = ""  # folder with train- and dev-v1.1.json, train- and dev-v2.0.json; default: the demo questions
    race: str = ""  # folder with train, dev, test / middle, high; default: the demo questions
    tokenizer: str = ""  # spiece.model or vocab.txt to use; default: that of --init, else one trained on the corpus
    vocab_size: int = 30000  # pieces of the vocabulary, Sec. 4.1
    train_rows: int = 0  # use only so many training rows of each task; 0: all
    # model; taken from --init where it is given, but --layers (depth warm start, Table 11), --init_std and dropouts may
    # differ from it
    layers: int = 12  # L, Table 1
    hidden: int = 768  # H
    heads: int = 12  # H / 64, Sec. 3.1
    ffn: int = 3072  # 4 H, Sec. 3.1
    embedding: int = 128  # E, Table 3
    share: str = "all"  # parameters shared across layers: all | attention | ffn | none (Table 4)
    groups: int = 1  # groups of neighbouring layers that share, Sec. 4.5; L / groups is the group size M
    activation: str = "gelu_new"  # gelu_new (tanh form, ALBERT's) | gelu (erf) | relu
    mapping: bool = False  # keep the mapping E to H even where E = H, as Hugging Face does
    positions: int = 512  # longest input
    init_std: float = 0.02  # deviation of new weights
    dropout: float = 0.1  # hidden and attention dropout of --pretrain: 0.1, xxlarge 0 (v1); 0 everywhere (v2)
    dropout_steps: int = 0  # updates after which dropout is taken out (Sec. 4.8, Fig. 2b); 0: never
    classifier_dropout: float = 0.1  # before a task's head, Table 14
    # pre-training
    objective: str = "sop"  # sentence-pair loss: sop | nsp | none (Table 5) | shuffled (control: SOP, random labels)
    length: int = 512  # tokens a sequence, special ones included, Sec. 4.1
    steps: int = 125000  # updates, Sec. 4.1
    batch: int = 4096  # sequences an update, Sec. 4.1
    lr: float = 1.76e-3  # peak learning rate at --lr_batch sequences, Sec. 4.1
    lr_batch: int = 4096  # the peak is scaled by the square root of batch / lr_batch; 0: not
    warmup: float = 3125  # updates (official code); below 1: share of the steps
    weight_decay: float = 0.01  # not on biases and LayerNorms (official code), --finetune too
    clip: float = 1.0  # largest gradient norm (official code), --finetune too
    bias_correction: bool = False  # LAMB with Adam's bias correction, which ALBERT's has not
    ngram: int = 3  # longest masked n-gram of words, Sec. 4.1
    mask_rate: float = 0.15  # share of the tokens predicted (D3)
    max_predictions: int = 0  # most predictions a sequence; 0: mask_rate x length. The official code has 20
    save_every: int = 1000  # steps between checkpoints
    eval_every: int = 5000  # steps between evaluations on held-out text
    dev_rows: int = 1024  # held-out sequences of an evaluation
    # fine-tuning
    finetune_epochs: float = 0  # 0: Table 14's steps
    finetune_batch: int = 0  # rows an update; 0: Table 14's
    finetune_lr: float = 0  # 0: Table 14's
    finetune_warmup: float = 0  # updates; below 1: share of the steps; 0: Table 14's
    finetune_length: int = 0  # tokens an input; 0: Table 14's
    finetune_dropout: float = -1.0  # hidden and attention dropout; -1: Table 14's
    runs: int = 1  # of each task; their median is reported, Sec. 4.2.2
    evaluations: int = 20  # on the dev set in each run; the best counts (early stopping, Sec. 4.2.2)
    mnli_start: bool = False  # RTE, STS-B and MRPC start from the MNLI model of the same command (Sec. 4.9, footnote 4)
    ensemble: tuple[str, ...] = ()  # run folders of --finetune; averages their predictions, trains nothing (Sec. 4.9)


PRESETS = {
    "demo": dict(vocab_size=2000, layers=4, hidden=96, heads=2, ffn=384, embedding=32, positions=128, init_std=0.06,
                 dropout=0.0, length=64, steps=1500, batch=32, lr=5e-3, lr_batch=0, warmup=0.1, save_every=250,
                 eval_every=500, dev_rows=512, finetune_epochs=2, finetune_batch=32, finetune_lr=1e-3,
                 finetune_warmup=0.1, finetune_length=128, finetune_dropout=0.0, evaluations=4, train_rows=2000),
    "base": dict(),
    "large": dict(layers=24, hidden=1024, heads=16, ffn=4096),
    "xlarge": dict(layers=24, hidden=2048, heads=32, ffn=8192),  # D12
    "xxlarge": dict(layers=12, hidden=4096, heads=64, ffn=16384, dropout=0.0),
    "bert-base": dict(embedding=768, share="none"),
    "bert-large": dict(layers=24, hidden=1024, heads=16, ffn=4096, embedding=1024, share="none"),
}
MODEL_FIELDS = ("vocab_size", "hidden", "heads", "ffn", "embedding", "share", "groups", "activation", "mapping",
                "positions", "layers", "init_std", "dropout", "classifier_dropout")
FREE_FIELDS = MODEL_FIELDS[-4:]  # a flag may differ from --init in these: any number of layers takes its weights


def check_shape(cfg):
    """ValueError where no model can be built from these settings, which may be a stranger's."""
    for name in MODEL_FIELDS:
        value, kind = getattr(cfg, name), type(getattr(Config, name))
        if (kind is int and (type(value) is not int or value < 1)
                or kind is float and (type(value) not in (int, float) or not 0 <= value < 1)):
            raise ValueError(f"{name} {value!r}: sizes are whole numbers above 0, dropouts and init_std shares below 1")
    if cfg.hidden % cfg.heads:
        raise ValueError(f"hidden {cfg.hidden} is no multiple of heads {cfg.heads}")
    if cfg.embedding > cfg.hidden:
        raise ValueError(f"embedding {cfg.embedding} is larger than hidden {cfg.hidden}; "
                         "ALBERT maps from a smaller E up to H")
    if cfg.layers % cfg.groups:
        raise ValueError(f"groups {cfg.groups} do not divide the {cfg.layers} layers evenly")
    if cfg.share not in ("all", "attention", "ffn", "none"):
        raise ValueError(f"share {cfg.share!r}; choose all, attention, ffn or none")
    if cfg.share == "none" and cfg.groups > 1:
        raise ValueError(f"groups {cfg.groups} with share none: nothing is shared; leave one of them out")
    if cfg.activation not in ACTIVATIONS:
        raise ValueError(f"activation {cfg.activation!r}; choose {', '.join(ACTIVATIONS)}")

# --- model ---------------------------------------------------------------------------------------


def gelu_new(x):
    """The tanh form of GELU, which ALBERT's English models have."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {"gelu_new": gelu_new, "gelu": F.gelu, "relu": F.relu}


def init_weights(root, std):
    """Truncated normal, cut at twice its deviation, 0.02; biases 0 (official code). That suits H of 768 and more:
    signals through a map shrink by about std sqrt(H), so a model of H = 96 starts with a deviation of 0.06, or it takes
    long to notice its input."""
    for module in root.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class Attention(nn.Module):
    """Multi-head attention, residual, LayerNorm. Query, key and value are matrices of their own: LAMB adapts each.
    (B, T, H), mask (B, 1, 1, T) of what is seen, or None -> (B, T, H)."""

    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.query, self.key, self.value, self.output = (nn.Linear(cfg.hidden, cfg.hidden) for _ in range(4))
        self.norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, mask):
        B, T, H = x.shape
        q, k, v = (part(x).view(B, T, self.heads, H // self.heads).transpose(1, 2)  # (B, N, T, D)
                   for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, mask, self.dropout.p if self.training else 0.0)
        # (B, N, T, D) -> (B, T, H)
        return self.norm(x + self.dropout(self.output(mixed.transpose(1, 2).reshape(B, T, H))))


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


class Encoder(nn.Module):
    """Factorised embeddings, and L layers made of fewer blocks. forward: ids, segments (B, T), lengths (B,) real tokens
    or None -> (B, T, H); with every_layer the input of the first layer and the output of each, L + 1 times (B, T, H).

    What is shared is a list of blocks shorter than L (Sec. 3.1, 4.5): layer l runs block l * blocks // L of each list.
    Sharing saves memory for weights, gradients and optimizer, and their exchange between processes; it saves no
    computation: every layer still runs.
    """

    def __init__(self, cfg):
        super().__init__()
        check_shape(cfg)
        self.depth, self.recompute = cfg.layers, cfg.recompute
        self.words = nn.Embedding(cfg.vocab_size, cfg.embedding)  # V x E, Sec. 3.1
        self.positions = nn.Embedding(cfg.positions, cfg.embedding)
        self.segments = nn.Embedding(2, cfg.embedding)
        self.norm = nn.LayerNorm(cfg.embedding, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        if cfg.mapping or cfg.embedding != cfg.hidden:  # D9
            self.mapping = nn.Linear(cfg.embedding, cfg.hidden)  # E x H, Sec. 3.1
        self.attentions = nn.ModuleList(
            Attention(cfg) for _ in range(cfg.groups if cfg.share in ("all", "attention") else cfg.layers))
        self.ffns = nn.ModuleList(
            FeedForward(cfg) for _ in range(cfg.groups if cfg.share in ("all", "ffn") else cfg.layers))
        init_weights(self, cfg.init_std)

    def layer(self, number, x, mask):
        """Layer `number`, from 0: which blocks it runs is all there is to cross-layer sharing."""
        attention = self.attentions[number * len(self.attentions) // self.depth]
        return self.ffns[number * len(self.ffns) // self.depth](attention(x, mask))

    def forward(self, ids, segments, lengths=None, every_layer=False):
        T = ids.shape[1]
        places = torch.arange(T, device=ids.device)
        mask = None if lengths is None else (places < lengths[:, None])[:, None, None]  # (B, 1, 1, T)
        x = self.words(ids) + self.segments(segments) + self.positions(places)  # (B, T, E)
        x = self.dropout(self.norm(x))
        if hasattr(self, "mapping"):
            x = self.mapping(x)  # (B, T, E) -> (B, T, H)
        states = [x]
        for number in range(self.depth):
            if self.recompute and self.training:
                x = recompute(self.layer, number, x, mask, use_reentrant=False)
            else:
                x = self.layer(number, x, mask)
            states.append(x)
        return states if every_layer else x


class MaskedHead(nn.Module):
    """H -> E, activation, LayerNorm, E -> V with the word embeddings (V, E) as its matrix. (B, M, H) -> (B, M, V)."""

    def __init__(self, cfg):
        super().__init__()
        self.transform = nn.Linear(cfg.hidden, cfg.embedding)
        self.norm = nn.LayerNorm(cfg.embedding, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))
        self.activation = ACTIVATIONS[cfg.activation]
        init_weights(self, cfg.init_std)

    def forward(self, x, words):
        return F.linear(self.norm(self.activation(self.transform(x))), words, self.bias)


class LanguageModel(nn.Module):
    """Encoder with the heads of pre-training: masked words, and the order of two segments (SOP; or NSP)."""

    kind = "pretraining"

    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.mlm = MaskedHead(cfg)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.order = nn.Linear(cfg.hidden, 2)
        init_weights(self.pooler, cfg.init_std)
        init_weights(self.order, cfg.init_std)

    def forward(self, ids, segments, lengths, positions):
        """positions (B, M): where words are to be predicted. Returns MLM logits (B, M, V) and order logits (B, 2)."""
        x = self.encoder(ids, segments, lengths)  # (B, T, H)
        masked = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))  # (B, M, H)
        return self.mlm(masked, self.encoder.words.weight), self.order(torch.tanh(self.pooler(x[:, 0])))


class Classifier(nn.Module):
    """Encoder, pooler, dropout and a linear head: logits (B, outputs). One output is a regression."""

    kind = "classification"

    def __init__(self, cfg, outputs):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.dropout = nn.Dropout(cfg.classifier_dropout)
        self.head = nn.Linear(cfg.hidden, outputs)
        init_weights(self.pooler, cfg.init_std)
        init_weights(self.head, cfg.init_std)

    def forward(self, ids, segments, lengths):
        return self.head(self.dropout(torch.tanh(self.pooler(self.encoder(ids, segments, lengths)[:, 0]))))

    def predict(self, batch):
        """Logits of a batch of common.glue or common.race."""
        return self(batch["ids"], batch["segments"], batch["lengths"])

    def loss(self, batch):
        logits = self.predict(batch).float()
        return (F.mse_loss(logits[:, 0], batch["labels"]) if logits.shape[1] == 1
                else F.cross_entropy(logits, batch["labels"]))


class MultipleChoice(Classifier):
    """One score an option, softmax over the options (App. A.3, RACE).
    ids, segments (B, C, T), lengths (B, C) -> (B, C)."""

    kind = "choice"

    def __init__(self, cfg):
        super().__init__(cfg, 1)

    def forward(self, ids, segments, lengths):
        # (B * C, 1) -> (B, C)
        return super().forward(ids.flatten(0, 1), segments.flatten(0, 1), lengths.flatten()).view(lengths.shape)


class SpanModel(nn.Module):
    """SQuAD v1.1: a start and an end logit for each token (App. A.3; D13). forward -> two (B, T)."""

    kind = "span"

    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.span = nn.Linear(cfg.hidden, 2)
        init_weights(self.span, cfg.init_std)

    def forward(self, ids, segments, lengths):
        return self.span(self.encoder(ids, segments, lengths)).unbind(-1)  # (B, T, 2) -> 2 x (B, T)

    def predict(self, batch):
        return self(batch["ids"], batch["segments"], batch["lengths"])

    def loss(self, batch):
        start, end = self.predict(batch)
        return (F.cross_entropy(start.float(), batch["start"]) + F.cross_entropy(end.float(), batch["end"])) / 2


class AnswerModel(nn.Module):
    """SQuAD v2.0, the head of XLNet: the end is scored given the start, and a classifier says whether there is an
    answer (App. A.3)."""

    kind = "answer"

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
        self.dropout = nn.Dropout(cfg.classifier_dropout)
        init_weights(self.answer, cfg.init_std)

    def read(self, batch):
        """Token states (B, T, H), start logits (B, T) and the score of "no answer" (B,), high where there is none."""
        x = self.encoder(batch["ids"], batch["segments"], batch["lengths"])
        start = self.answer["start"](x)[..., 0].float().masked_fill(batch["p_mask"], -1e30)  # (B, T)
        summary = torch.einsum("bt,bth->bh", start.softmax(-1).to(x.dtype), x)  # where an answer would start
        mixed = torch.tanh(self.answer["null_mix"](torch.cat([summary, x[:, 0]], dim=-1)))  # (B, 2H) -> (B, H)
        return x, start, self.answer["null"](self.dropout(mixed))[:, 0].float()

    def end_logits(self, x, starts, p_mask):
        """End logits (B, K, T) given the starts (B, K). The map of [token; start], 2H wide, is the sum of a map of the
        token and one of the start, so the pairs need not be laid out: K times less memory."""
        H, mix = x.shape[-1], self.answer["end_mix"]
        at_start = x.gather(1, starts[..., None].expand(-1, -1, H))  # (B, K, H)
        mixed = (F.linear(x, mix.weight[:, :H])[:, None]
                 + F.linear(at_start, mix.weight[:, H:], mix.bias)[:, :, None])  # (B, K, T, H)
        logits = self.answer["end"](self.answer["end_norm"](torch.tanh(mixed)))[..., 0]  # (B, K, T)
        return logits.float().masked_fill(p_mask[:, None], -1e30)

    def loss(self, batch):
        """Training knows the start: the end is scored given the true one."""
        x, start, null = self.read(batch)
        end = self.end_logits(x, batch["start"][:, None], batch["p_mask"])[:, 0]  # (B, T)
        spans = F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])
        return spans / 2 + F.binary_cross_entropy_with_logits(null, batch["impossible"]) / 2

    def predict(self, batch):
        """The spans of a beam search, the best ends of each of the best starts: starts, ends, scores (B, K * K), and
        null scores (B,)."""
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
    """Parameters of the pre-training model by part; built without memory."""
    with torch.device("meta"):
        model = LanguageModel(cfg)
    encoder = model.encoder
    embeddings = sum(count(module) for module in (encoder.words, encoder.positions, encoder.segments, encoder.norm))
    return {"embeddings": embeddings, "mapping": count(encoder.mapping) if hasattr(encoder, "mapping") else 0,
            "attention": count(encoder.attentions), "ffn": count(encoder.ffns), "pooler": count(model.pooler),
            "mlm head": count(model.mlm), "order head": count(model.order)}


def flops(cfg):
    """FLOPs of one forward pass over one sequence of `length`, the heads of pre-training included: matrix products,
    2 a multiply-add."""
    T, H, E, M = cfg.length, cfg.hidden, cfg.embedding, predictions(cfg)
    layer = 2 * T * (4 * H * H + 2 * H * cfg.ffn) + 4 * T * T * H
    mapping = 2 * T * E * H if cfg.mapping or E != H else 0
    return mapping + cfg.layers * layer + 2 * H * H + 4 * H + 2 * M * (H * E + E * cfg.vocab_size)


# Hugging Face names of our modules. A layer group there is one attention and one feed-forward block, which are lists of
# their own here, since Table 4 shares one and not the other. Where names match, weights are taken as they are: both
# sides store a linear map as (outputs, inputs).

HF_MODULES = {"encoder.words": "albert.embeddings.word_embeddings",
              "encoder.positions": "albert.embeddings.position_embeddings",
              "encoder.segments": "albert.embeddings.token_type_embeddings",
              "encoder.norm": "albert.embeddings.LayerNorm",
              "encoder.mapping": "albert.encoder.embedding_hidden_mapping_in", "pooler": "albert.pooler",
              "mlm": "predictions", "mlm.transform": "predictions.dense", "mlm.norm": "predictions.LayerNorm",
              "order": "sop_classifier.classifier", "head": "classifier", "span": "qa_outputs"}
HF_BLOCKS = {"attentions.{}.query": "attention.query", "attentions.{}.key": "attention.key",
             "attentions.{}.value": "attention.value", "attentions.{}.output": "attention.dense",
             "attentions.{}.norm": "attention.LayerNorm", "ffns.{}.expand": "ffn", "ffns.{}.shrink": "ffn_output",
             "ffns.{}.norm": "full_layer_layer_norm"}
HF_HEADS = {"pretraining": "AlbertForPreTraining", "classification": "AlbertForSequenceClassification",
            "choice": "AlbertForMultipleChoice", "span": "AlbertForQuestionAnswering", "answer": "AlbertModel",
            "encoder": "AlbertModel"}
HF_IGNORED = re.compile(  # buffers, tied weights
    r"(albert\.)?embeddings\.(position_ids|token_type_ids)|predictions\.decoder\.(weight|bias)")


def hf_modules(groups):
    """{our module: Hugging Face's} for a model of so many layer groups."""
    blocks = {f"encoder.{ours.format(group)}": f"albert.encoder.albert_layer_groups.{group}.albert_layers.0.{theirs}"
              for group in range(groups) for ours, theirs in HF_BLOCKS.items()}
    return {**HF_MODULES, **blocks}


def from_hf(weights, cfg):
    """A Hugging Face state dict under our names. ValueError lists the names that belong to no ALBERT of this shape."""
    if "embeddings.word_embeddings.weight" in weights:  # a bare AlbertModel
        weights = {f"albert.{name}": value for name, value in weights.items()}
    ours = {theirs: mine for mine, theirs in hf_modules(cfg.groups).items()}
    tied = weights.get("predictions.decoder.weight")
    words = weights.get("albert.embeddings.word_embeddings.weight")
    if tied is not None and words is not None and not torch.equal(tied, words):
        raise ValueError("predictions.decoder.weight differs from the word embeddings; ALBERT's are tied")
    kept = {name: value for name, value in weights.items() if not HF_IGNORED.fullmatch(name)}
    strange = [name for name in kept if name.rpartition(".")[0] not in ours]
    if strange:
        raise ValueError(f"unexpected weights: {', '.join(strange)}")
    return {f"{ours[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": value.float() for name, value in kept.items()}


def to_hf(weights, cfg):
    """Our state dict under Hugging Face's names. What is shared in parts is written out as one group a layer, which
    computes the same; where E = H the mapping is an identity (D9). Parts that Hugging Face's ALBERT lacks (the SQuAD
    v2.0 head) are left out."""
    groups, result = cfg.groups if cfg.share == "all" else cfg.layers, {}
    for ours, theirs in hf_modules(groups).items():
        block = re.fullmatch(r"(encoder\.(?:attentions|ffns))\.(\d+)(\..*)", ours)
        if block:
            blocks = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith(block[1] + "."))
            ours = f"{block[1]}.{int(block[2]) * blocks // groups}{block[3]}"
        for leaf in ("weight", "bias"):
            if f"{ours}.{leaf}" in weights:
                result[f"{theirs}.{leaf}"] = weights[f"{ours}.{leaf}"].clone()
    if "encoder.mapping.weight" not in weights:
        result["albert.encoder.embedding_hidden_mapping_in.weight"] = torch.eye(cfg.hidden)
        result["albert.encoder.embedding_hidden_mapping_in.bias"] = torch.zeros(cfg.hidden)
    return result


def hf_config(cfg, kind, outputs):
    """config.json for transformers."""
    return {"architectures": [HF_HEADS[kind]], "model_type": "albert", "vocab_size": cfg.vocab_size,
            "embedding_size": cfg.embedding, "hidden_size": cfg.hidden, "num_hidden_layers": cfg.layers,
            "num_attention_heads": cfg.heads, "intermediate_size": cfg.ffn,
            "num_hidden_groups": cfg.groups if cfg.share == "all" else cfg.layers, "inner_group_num": 1,
            "hidden_act": cfg.activation, "max_position_embeddings": cfg.positions, "type_vocab_size": 2,
            "hidden_dropout_prob": cfg.dropout, "attention_probs_dropout_prob": cfg.dropout,
            "classifier_dropout_prob": cfg.classifier_dropout, "layer_norm_eps": 1e-12,
            "initializer_range": cfg.init_std, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
            "id2label": {str(i): f"LABEL_{i}" for i in range(outputs)},
            "label2id": {f"LABEL_{i}": i for i in range(outputs)}}


def shape_of_hf(config):
    """Our model fields of a Hugging Face config.json. ValueError where it describes what this file cannot build."""
    if not isinstance(config, dict) or config.get("model_type") != "albert":
        raise ValueError("model_type is not albert")
    needed = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
              "intermediate_size")
    missing = [name for name in needed if name not in config]  # Hugging Face would fill these in with xxlarge's
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    act = str(config.get("hidden_act", "gelu_new"))
    act = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}.get(act, act)
    if act not in ACTIVATIONS or config.get("inner_group_num", 1) != 1 or config.get("type_vocab_size", 2) != 2:
        raise ValueError(f"hidden_act {act}, inner_group_num {config.get('inner_group_num', 1)}, "
                         f"type_vocab_size {config.get('type_vocab_size', 2)}: "
                         f"only {', '.join(ACTIVATIONS)}, 1 and 2 are built")
    V, E, H, L, N, ffn = (config[name] for name in needed)
    return dict(vocab_size=V, embedding=E, hidden=H, layers=L, heads=N, ffn=ffn, share="all",
                groups=config.get("num_hidden_groups", 1), activation=act, mapping=E == H,
                positions=config.get("max_position_embeddings", 512), init_std=config.get("initializer_range", 0.02),
                dropout=config.get("hidden_dropout_prob", 0.0),
                classifier_dropout=config.get("classifier_dropout_prob", 0.1))

# --- objective -----------------------------------------------------------------------------------
# A training example is a run of text in two segments (common.corpus.Segments). Here it gets its label (which segment
# came first?), its special pieces and its mask. All of it works on whole batches, and all chance comes from one
# generator: an example depends on its place in the stream alone.


def join(first, a, second, b, tokenizer):
    """[CLS] first [SEP] second [SEP], or [CLS] first [SEP] where b is 0: ids, segments (R, T), lengths (R,), with
    T = the segments' width + 3."""
    width = first.shape[1]
    place, a = torch.arange(width + 3)[None].expand(len(first), -1), a[:, None]  # (R, T)
    end = a + torch.where(b > 0, b + 2, 1)[:, None]  # the place of the last [SEP]
    ids = first.gather(1, (place - 1).clamp(0, width - 1))
    ids = torch.where(place > a + 1, second.gather(1, (place - a - 2).clamp(0, width - 1)), ids)
    ids = ids.masked_fill((place == a + 1) | (place == end), tokenizer.sep_id)
    ids = ids.masked_fill(place > end, tokenizer.pad_id).masked_fill(place == 0, tokenizer.cls_id)
    return ids, ((place > a + 1) & (place <= end)).long(), end[:, 0] + 1


def sentence_pairs(segments, tokenizer, objective, generator):
    """Two segments as one input, and what is to be told about them (Sec. 3.1, Inter-sentence coherence loss).

    sop: 0 in their order, 1 swapped; nsp: 0 consecutive, 1 the second from another document; none: always in order;
    shuffled: as sop, but the label is drawn apart from the order. -100: no label, as for a run without a sentence
    boundary, which is one segment (D1).
    segments: common.corpus.Segments. Returns ids, segments (R, T), lengths (R,), labels (R,).
    """
    first, a, second, b = segments.first, segments.first_length, segments.second, segments.second_length
    pair, labels = b > 0, (torch.rand(len(a), generator=generator) < 0.5).long()
    changed = pair & labels.bool()  # (R,)
    if objective in ("sop", "shuffled"):
        first, second = (torch.where(changed[:, None], *two) for two in ((second, first), (first, second)))
        a, b = torch.where(changed, b, a), torch.where(changed, a, b)
        labels = torch.randint(2, labels.shape, generator=generator) if objective == "shuffled" else labels
    elif objective == "nsp":
        second = torch.where(changed[:, None], segments.other, second)
        b = torch.where(changed, segments.other_length, b)
    labels = labels.masked_fill(~pair | (b == 0) | (objective == "none"), -100)
    return *join(first, a, second, b, tokenizer), labels


def ngram_lengths(shape, longest, generator):
    """Lengths of n-grams, p(n) = (1 / n) / sum of 1 / k over k = 1..longest (Sec. 4.1)."""
    weights = 1 / torch.arange(1, longest + 1).double()
    edges = (weights.cumsum(0) / weights.sum())[:-1]
    return torch.bucketize(torch.rand(shape, generator=generator, dtype=torch.float64), edges, right=True) + 1


def pick_ngrams(ids, segments, tokenizer, budget, longest, generator):
    """Which pieces are to be predicted, (B, T) bool: n-grams of whole words at random places until each row's budget
    (B,) of pieces is spent.

    Follows the official code: an n-gram that does not fit the budget is shortened, one that meets a taken word is
    refused; D2.
    """
    B, T = ids.shape
    text = (ids != tokenizer.pad_id) & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)
    # a segment begins with a word
    begins = text & (torch.from_numpy(tokenizer.starts_word)[ids] | ~F.pad(text, (1, 0))[:, :T])
    word = (begins.cumsum(1) - 1).clamp(min=0)  # (B, T) the number of the word that a piece belongs to
    spare = T + longest  # a column for what is no word
    size = torch.zeros(B, spare + 1, dtype=torch.long).scatter_add_(1, word, text.long())  # (B, words) pieces
    side = torch.full((B, spare + 1), -1).scatter_(1, torch.where(begins, word, spare), segments)  # each word's segment
    taken, left, reach = torch.zeros(B, spare + 1, dtype=torch.bool), budget.clone(), torch.arange(longest)
    words = begins.sum(1)
    order = torch.rand(B, T, generator=generator).masked_fill(torch.arange(T) >= words[:, None], 2.0).argsort(1)
    drawn = ngram_lengths((B, T), longest, generator)
    for turn in range(int(words.max())):
        ngram = order[:, turn, None] + reach  # (B, n) the words that it may cover
        pieces, here = size.gather(1, ngram), side.gather(1, ngram)
        fits = ((reach < drawn[:, turn, None]) & (pieces.cumsum(1) <= left[:, None])
                & (here == here[:, :1]) & (here >= 0))
        fits &= ~(taken.gather(1, ngram) & fits).any(1, keepdim=True)
        taken.scatter_(1, ngram, taken.gather(1, ngram) | fits)
        left -= (pieces * fits).sum(1)
        if turn % 8 == 7 and not left.any():
            break
    return text & taken.gather(1, word)


def predictions(cfg):
    """M, predictions of a full sequence (D3)."""
    most = max(1, round(cfg.mask_rate * cfg.length))
    return min(cfg.max_predictions, most) if cfg.max_predictions else most


def mask_tokens(ids, segments, tokenizer, cfg, generator):
    """N-gram masking (Sec. 4.1); each chosen piece becomes [MASK] in 80%, a random piece in 10% of the cases, and stays
    in the rest.

    ids, segments (B, T). Returns the changed ids, positions (B, M) and labels (B, M); M is the same for all batches,
    -100 marks what is unused.
    """
    B, M = len(ids), predictions(cfg)
    budget = (cfg.mask_rate * (ids != tokenizer.pad_id).sum(1)).round().long().clamp(1, M)
    chosen = pick_ngrams(ids, segments, tokenizer, budget, cfg.ngram, generator)
    positions = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :M]  # the chosen ones first
    used, originals = chosen.gather(1, positions), ids.gather(1, positions)
    kind = torch.rand(B, M, generator=generator)
    random_piece = torch.randint(tokenizer.vocab_size, (B, M), generator=generator)
    changed = torch.where(kind < 0.8, tokenizer.mask_id, torch.where(kind < 0.9, random_piece, originals))
    return (ids.scatter(1, positions, torch.where(used, changed, originals)), positions,
            originals.masked_fill(~used, -100))


def mean_loss(logits, labels):
    """Mean cross-entropy of logits (R, C) over the labels (R,) that are not -100; 0 where there is none."""
    return (F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")
            / (labels != -100).sum().clamp(min=1))

# --- training ------------------------------------------------------------------------------------


class Diverged(Exception):
    """A loss, a gradient or a prediction became infinite or not a number."""


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2019; Sec. 4.1) as ALBERT's code has it, a step of one tensor w with gradient g being

        m = b1 m + (1 - b1) g                 v = b2 v + (1 - b2) g^2
        u = m / (sqrt(v) + eps) + decay w     w = w - lr |w| / |u| u

    so a tensor moves by about the share lr of its own length, whatever the size of its gradient; a shared tensor's
    gradient is the sum over all the layers that use it. There is no bias correction of m and v (bias_correction=True
    adds it) and no bound on the trust ratio |w| / |u|, which is 1 where a norm is 0. Without correction u is up to 6.6
    times too long in the first updates: the ratio cancels that for matrices, the warm-up hides it for the rest. Biases
    and LayerNorms, the tensors of less than two dimensions, have neither decay nor ratio. adapt=False leaves the ratio
    out everywhere: BERT's AdamW, ALBERT's optimizer of fine-tuning.
    """

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, bias_correction=False,
                 adapt=True):
        chosen = [value for value in parameters if value.requires_grad]
        groups = [{"params": [value for value in chosen if value.dim() > 1], "weight_decay": weight_decay,
                   "adapt": adapt},
                  {"params": [value for value in chosen if value.dim() <= 1], "weight_decay": 0.0, "adapt": False}]
        super().__init__(groups, dict(lr=lr, betas=betas, eps=eps, bias_correction=bias_correction, step=0))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] += 1
            (b1, b2), t = group["betas"], group["step"]
            weights = [value for value in group["params"] if value.grad is not None]
            if not weights:
                continue
            grads = [value.grad for value in weights]
            for value in weights:
                if value not in self.state:
                    self.state[value] = {"m": torch.zeros_like(value), "v": torch.zeros_like(value)}
            m, v = ([self.state[value][key] for value in weights] for key in ("m", "v"))
            torch._foreach_lerp_(m, grads, 1 - b1)
            torch._foreach_mul_(v, b2)
            torch._foreach_addcmul_(v, grads, grads, 1 - b2)
            root = torch._foreach_sqrt(v)
            if group["bias_correction"]:
                torch._foreach_div_(root, math.sqrt(1 - b2 ** t))
            torch._foreach_add_(root, group["eps"])
            update = torch._foreach_div(m, root)
            if group["bias_correction"]:
                torch._foreach_div_(update, 1 - b1 ** t)
            torch._foreach_add_(update, weights, alpha=group["weight_decay"])
            if group["adapt"]:
                norms = zip(torch._foreach_norm(weights), torch._foreach_norm(update))
                torch._foreach_mul_(update, [torch.where((w > 0) & (u > 0), w / u, 1.0) for w, u in norms])
            torch._foreach_add_(weights, update, alpha=-group["lr"])


def schedule(step, steps, warmup):
    """Share of the peak learning rate at an update, from 0 (official code): step / warmup at first, so the first update
    is 0, then the straight line that goes from 1 at update 0 to 0 at the last. The two do not meet: with 3,125 of
    125,000 the rate falls by 2.5% where the warm-up ends."""
    return step / warmup if step < warmup else 1 - step / steps


def warmup_updates(share, steps):
    """Updates of the warm-up: a share of the steps below 1, else a number."""
    return round(share * steps) if share < 1 else int(share)


def peak_rate(cfg):
    """The peak learning rate of --pretrain: lr for lr_batch sequences, with the square root of the batch
    (You et al. 2019)."""
    return cfg.lr * math.sqrt(cfg.batch / cfg.lr_batch) if cfg.lr_batch else cfg.lr


def language_batch(corpus, tokenizer, cfg, objective, position, rows, device):
    """Training examples position .. position + rows - 1 of the endless stream, on the device: ids, segments (R, T),
    lengths (R,), positions, labels (R, M) of the masked words, order (R,)."""
    from common.distributed import seed_of
    generator = torch.Generator().manual_seed(seed_of(cfg.seed, "mask", objective, position))
    segments = corpus.segments(position, rows, cfg.length - 3, cfg.seed, alike=True)  # D11
    ids, kinds, lengths, order = sentence_pairs(segments, tokenizer, objective, generator)
    ids, positions, labels = mask_tokens(ids, kinds, tokenizer, cfg, generator)
    batch = (ids, kinds, lengths, positions, labels, order)
    return [(tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
            for tensor in batch]


def train_language_model(model, text, cfg, ranks, run, checkpoint, optimizer, start):
    """Pre-training from update `start` on. Raises Diverged, and Stop after SIGTERM (state saved).

    A batch is cut into --accumulate logical shards, at least one a process, each with its own text, masks and dropout:
    the same for any number of processes. Nothing in an update waits for the device; losses are read, and looked at for
    NaN, where they are logged.
    """
    from common.distributed import Stop, autocast, gather, peak_memory, progress, seed_everything, shard_range, stopping
    shards = shard_range(ranks, cfg.accumulate)  # logical parts of a batch, those of this process
    rows, parallel = cfg.batch // (len(shards) * ranks.size), distribute(model, cfg, ranks)
    peak, warmup, log_every = peak_rate(cfg), warmup_updates(cfg.warmup, cfg.steps), max(1, min(100, cfg.steps // 20))
    bar, sums = progress(ranks, cfg.steps, "pretrain", start), torch.zeros(3, device=ranks.device)
    began, first_logged = time.perf_counter(), start
    for step in range(start, cfg.steps):
        model.train()
        if cfg.dropout_steps and step >= cfg.dropout_steps:
            set_dropout(model, 0.0)  # Sec. 4.8
        for group in optimizer.param_groups:
            group["lr"] = peak * schedule(step, cfg.steps, warmup)
        for shard in shards:
            seed_everything(cfg.seed, "pretrain", step, shard)
            position = step * cfg.batch + shard * rows
            *inputs, labels, order = language_batch(text.train, text.tokenizer, cfg, cfg.objective, position, rows,
                                                    ranks.device)
            # processes meet once an update
            with contextlib.nullcontext() if ranks.size == 1 or shard == shards[-1] else parallel.no_sync():
                with autocast(cfg.dtype, ranks.device):
                    logits, order_logits = parallel(*inputs)
                losses = torch.stack([mean_loss(logits.flatten(0, 1), labels.flatten()),
                                      mean_loss(order_logits, order)]) / len(shards)
                losses.sum().backward()
            sums[:2] += losses.detach()
        sums[2] += nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)  # D6
        optimizer.step()
        optimizer.zero_grad()
        bar.update()
        done, stop = step + 1, (ranks.size == 1 or step % 20 == 0) and stopping(ranks)
        if done % log_every == 0 or done % cfg.save_every == 0 or done == cfg.steps or stop:
            everywhere = torch.tensor(gather(ranks, sums.tolist())).mean(0) / (done - first_logged)
            mlm, order_loss, norm = everywhere.tolist()
            if not math.isfinite(mlm + order_loss + norm):
                raise Diverged(f"the loss or its gradient is not finite at update {done}")
            rate = (done - first_logged) * cfg.batch * cfg.length / (time.perf_counter() - began)
            run.log(phase="pretrain", step=done, mlm_loss=mlm, order_loss=order_loss, norm=norm, lr=group["lr"],
                    tokens_per_second=round(rate), memory_mb=round(peak_memory(ranks.device)))
            bar.set_postfix(mlm=f"{mlm:.3f}", order=f"{order_loss:.3f}", tokens_s=f"{rate:.0f}")
            sums.zero_()
            first_logged, began = done, time.perf_counter()
        if done % cfg.eval_every == 0 and done < cfg.steps:  # before it is saved: a resumed run repeats what is lost
            paused = time.perf_counter()
            run.log(phase="dev", step=done, **evaluate_language_model(model, text, cfg, ranks))
            began += time.perf_counter() - paused
        if done % cfg.save_every == 0 or done == cfg.steps or stop:
            checkpoint.save(step=done)
        if stop:
            raise Stop
    bar.close()


def distribute(model, cfg, ranks):
    """The model as the loop calls it: compiled with --compile, its gradients averaged over the processes where there
    are several."""
    model = torch.compile(model) if cfg.compile else model
    if ranks.size == 1:
        return model
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None)


def set_dropout(model, rate):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate


@torch.no_grad()
def evaluate_language_model(model, text, cfg, ranks):
    """Table 5's intrinsic tasks on held-out text: accuracy in percent of masked words, NSP and SOP, whatever the model
    was trained for. The one two-way head answers both: 0 is "in order" in either."""
    from common.distributed import autocast, gather
    model.eval()
    rows, totals, cfg = min(64, cfg.dev_rows), {}, dataclasses.replace(cfg, seed=0)  # the same examples for every seed
    for objective in ("none", "nsp", "sop"):  # D4; masked words are scored on pairs in their order (D5)
        right = torch.zeros(4, device=ranks.device)  # words found, words asked, labels found, labels asked
        for position in range(ranks.rank * rows, cfg.dev_rows, ranks.size * rows):
            *inputs, places, labels, order = language_batch(text.dev, text.tokenizer, cfg, objective, position, rows,
                                                            ranks.device)
            asked = None if objective == "none" else 0  # words are scored once
            with autocast(cfg.dtype, ranks.device):
                logits, order_logits = model(*inputs, places[:, :asked])
            pairs = ((logits, labels[:, :asked]), (order_logits, order))
            right += torch.stack([number for scores, truth in pairs
                                  for number in ((scores.argmax(-1) == truth).sum(), (truth != -100).sum())])
        totals[objective] = [sum(column) for column in zip(*gather(ranks, right.tolist()))]
    shares = {"mlm": totals["none"][:2], "nsp": totals["nsp"][2:], "sop": totals["sop"][2:]}
    return {**{name: round(100 * hits / total, 3) if total else None for name, (hits, total) in shares.items()},
            "scored": {name: int(total) for name, (_, total) in shares.items()}}


def open_corpus(cfg, ranks, action="pretrain"):
    """The run folder of --pretrain or --analyze layers, and its common.inputs.Text. UserError for unordered text."""
    import numpy as np
    from common.cli import UserError
    from common.distributed import RunFolder
    from common.inputs import fill_in, open_text
    settings, vocabulary = dataclasses.asdict(cfg), cfg.vocab_size
    demo = fill_in(cfg, ranks, "corpus")
    run = RunFolder(cfg.out, settings, action, ranks, cfg.restart, demo)
    cfg.tokenizer = cfg.tokenizer or cfg.init
    text = open_text(cfg, ranks, run.folder)
    if cfg.init:
        fit_vocabulary(text.tokenizer, vocabulary)
        cfg.vocab_size = vocabulary
    elif "vocab_size" in cfg.given and cfg.vocab_size != vocabulary:
        raise UserError(f"--vocab_size {vocabulary}: {text.tokenizer.path} has {cfg.vocab_size} pieces; leave it out")
    if cfg.objective != "none" and np.diff(text.train.documents)[text.train.ids].max() < 2:
        raise UserError(f"{cfg.corpus[0]}: no document has two sentences, so there is no order to predict; "
                        "put one sentence on a line and a blank line between documents, or use --objective none")
    return run, text


def fit_vocabulary(tokenizer, vocab_size):
    """UserError where a tokenizer has ids that the model has no embedding for."""
    from common.cli import UserError
    if tokenizer.vocab_size > vocab_size:
        raise UserError(f"{tokenizer.path}: {tokenizer.vocab_size} pieces where the model of --init has {vocab_size}; "
                        "give the model's own tokenizer")


def pretrain(cfg):
    """Pre-train (Sec. 4.1) and evaluate on held-out text."""
    from common.distributed import Checkpoint, launch, say, seed_everything
    with launch(cfg.device) as ranks:
        check_pretraining(cfg, ranks)
        run, text = open_corpus(cfg, ranks)
        if run.finished:
            say(ranks, f"{run.folder}: this pre-training is finished (--restart begins anew)")
            return show_intrinsic(run.finished, ranks)
        seed_everything(cfg.seed, "pretrain", "weights")
        model = LanguageModel(cfg)
        if cfg.objective == "none":  # D5
            for part in (model.pooler, model.order):
                part.requires_grad_(False)
        start_from(model, cfg.init, cfg, lambda line: say(ranks, line))
        model.to(ranks.device)
        optimizer = Lamb(model.parameters(), cfg.lr, weight_decay=cfg.weight_decay, bias_correction=cfg.bias_correction)
        checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, model=model, optimizer=optimizer)
        start = checkpoint.restore().get("step", 0)
        say(ranks, f"{count(model):,} parameters, {cfg.steps} updates of {cfg.batch} x {cfg.length} tokens")
        train_language_model(model, text, cfg, ranks, run, checkpoint, optimizer, start)
        result = {"steps": cfg.steps, "parameters": count(model), **evaluate_language_model(model, text, cfg, ranks)}
        run.log(phase="dev", step=cfg.steps, **result)
        if ranks.main:
            save_model(run.folder, model, cfg, text.tokenizer, 2)
        run.finish(result)
        show_intrinsic(result, ranks)


def check_pretraining(cfg, ranks):
    """UserError for settings that cannot be trained with. Sets accumulate to what it is, and a dry run's batch."""
    from common.cli import UserError
    cfg.accumulate = max(cfg.accumulate, ranks.size)  # a setting of the run: another number has other masks
    if cfg.batch % cfg.accumulate:
        raise UserError(f"--batch {cfg.batch} is no multiple of its {cfg.accumulate} parts (--accumulate, processes)")
    if cfg.dry_run:
        cfg.batch = min(cfg.batch, 8 * cfg.accumulate)
    elif cfg.warmup > cfg.steps:
        raise UserError(f"--warmup {cfg.warmup:g}: more than --steps {cfg.steps}; choose fewer, or a share such as 0.1")
    if not 8 <= cfg.length <= cfg.positions:
        raise UserError(f"--length {cfg.length}: choose 8 to {cfg.positions}, the model's positions (--positions)")
    if cfg.objective not in ("sop", "nsp", "none", "shuffled"):
        raise UserError(f"--objective {cfg.objective}: choose sop, nsp, none or shuffled")


def show_intrinsic(result, ranks):
    from common.distributed import say
    say(ranks, "held-out accuracy in percent: "
        + ", ".join(f"{name} {result[name]:.1f} (of {total})" for name, total in result["scored"].items() if total))

# Models on disk: model.pt (ours) beside the tokenizer's file, or a Hugging Face folder.


def save_model(folder, model, cfg, tokenizer, outputs, task=""):
    """Write what --init reads: model.pt and the tokenizer. outputs: of its head; task: whose head it is, if one's."""
    from common.distributed import save_file
    tokenizer.save(folder)
    save_file(Path(folder) / "model.pt", {"kind": model.kind, "outputs": outputs, "task": task,
                                          "config": {name: getattr(cfg, name) for name in MODEL_FIELDS},
                                          "weights": {name: value.cpu() for name, value in model.state_dict().items()}})


def load_own(path):
    """What save_model wrote. UserError where it is something else."""
    from common.cli import UserError
    from common.distributed import load_file
    stored = load_file(path)
    if not isinstance(stored, dict) or not {"kind", "outputs", "config", "weights"} <= stored.keys():
        raise UserError(f"{path}: no model of albert.py; name the folder of one, or a Hugging Face folder")
    return stored


def read_shape(path):
    """The model fields of --init. UserError where the folder holds no model."""
    from common.cli import UserError
    folder = Path(path)
    if (folder / "model.pt").is_file():
        config = load_own(folder / "model.pt")["config"]
        return {name: config.get(name, getattr(Config, name)) for name in MODEL_FIELDS}
    tasks = sorted(found.parent.name for found in folder.glob("*/model.pt")) if folder.is_dir() else []
    if tasks:
        raise UserError(f"{path}: a run of --finetune; name one of its models: "
                        f"{', '.join(f'{path}/{task}' for task in tasks)}")
    if not (folder / "config.json").is_file():
        raise UserError(f"{path}: no model is here; --init takes a finished run folder or a Hugging Face folder "
                        "(config.json and weights)")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if isinstance(config, dict) and "settings" in config:
            raise ValueError("the run is not finished; the command that made it continues it")
        return shape_of_hf(config)
    except ValueError as error:
        raise UserError(f"{folder / 'config.json'}: {error}") from None


def read_model(path, cfg):
    """{"kind", "outputs", "weights"} of --init, the weights under our names."""
    from common.cli import UserError
    from common.weights import read_weights
    if (Path(path) / "model.pt").is_file():
        return load_own(Path(path) / "model.pt")
    try:
        weights = from_hf(read_weights(path), cfg)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    config, head = Path(path) / "config.json", weights.get("head.weight")
    choice = config.is_file() and HF_HEADS["choice"] in config.read_text(encoding="utf-8")
    kind = ("span" if "span.weight" in weights else "pretraining" if "mlm.bias" in weights
            else "encoder" if head is None else "choice" if choice else "classification")
    return {"kind": kind, "outputs": 2 if head is None else len(head), "weights": weights}


def start_from(model, path, cfg, tell, task=""):
    """Copy the weights of --init into a model. Encoder, pooler and the heads of pre-training must fit name by name
    where they are there; the head of a task is taken over where it is this very task's and fits, else made anew.
    tell: prints one line that says what was taken over, made anew or left out. UserError lists what does not fit."""
    from common.cli import UserError
    if not path:
        return
    stored, own = read_model(path, cfg), model.state_dict()
    weights = stored["weights"]
    there, here = ({name.split(".")[0] for name in names} for names in (weights, own))
    same_task = stored["kind"] == model.kind and stored.get("task", "") in ("", task)
    free = {head for head in ("head", "span", "answer") if head not in there or not same_task or any(
        name not in weights or weights[name].shape != own[name].shape for name in own if name.startswith(head + "."))}
    needed = [name for name in own if name.split(".")[0] in ({"encoder"} | there) - free]
    faults = [f"missing {name}" for name in needed if name not in weights]
    faults += [f"unexpected {name}" for name in weights if name.startswith("encoder.") and name not in own]
    faults += [f"{name} is {tuple(weights[name].shape)} there, {tuple(own[name].shape)} here" for name in needed
               if name in weights and weights[name].shape != own[name].shape]
    faults += [f"{name} is not finite" for name in needed if name in weights and not weights[name].isfinite().all()]
    if faults:
        raise UserError(f"{path}: its weights do not fit this model: {'; '.join(faults)}")
    model.load_state_dict({**own, **{name: weights[name] for name in needed}})
    taken = {name.split(".")[0] for name in needed}
    anew = [f"{head} ({len(weights[f'{head}.weight'])} outputs there, {len(own[f'{head}.weight'])} here)"
            if f"{head}.weight" in weights else head for head in sorted(here - taken)]
    tell(f"{path}: taken over: {', '.join(sorted(taken))}; made anew: {', '.join(anew) or 'nothing'}; "
         f"left out: {', '.join(sorted(there - here)) or 'nothing'}")


def adopt(cfg):
    """Take the model's shape from --init; flags may not contradict it, FREE_FIELDS aside."""
    from common.cli import UserError
    shape = read_shape(cfg.init)
    for name, value in shape.items():
        free = name in FREE_FIELDS and (name != "layers" or shape["share"] == "all")  # each layer's own do not multiply
        if name in cfg.given and getattr(cfg, name) != value and not free:
            raise UserError(f"--{name} {getattr(cfg, name)}: the model in {cfg.init} has {value}; leave the flag out")
        if name not in cfg.given or not free:
            setattr(cfg, name, value)


def export(cfg, folder):
    """Write the model of --init as a Hugging Face folder."""
    from common.cli import UserError
    from common.distributed import write_atomic
    from common.tokenization import load_tokenizer
    from common.weights import write_weights
    if not cfg.init:
        raise UserError("--export needs --init: the run folder whose model is to be written")
    tokenizer, source, target = load_tokenizer(cfg.tokenizer or cfg.init), read_model(cfg.init, cfg), Path(folder)
    if target.resolve() == Path(cfg.init).resolve() or any(
            (target / name).exists() for name in ("model.pt", "log.jsonl", "result.json")):
        raise UserError(f"--export {folder}: a model or a run is there; name another folder")
    start_from(LanguageModel(cfg), cfg.init, cfg, lambda line: None)  # a UserError lists what does not fit
    weights = to_hf(source["weights"], cfg)
    target.mkdir(parents=True, exist_ok=True)
    if HF_HEADS[source["kind"]] == "AlbertModel":
        weights = {name.removeprefix("albert."): value for name, value in weights.items()}
    if source["kind"] == "answer":
        print("left out: the SQuAD v2.0 head, which Hugging Face's ALBERT has not; its encoder is written")
    write_weights(target / "model.safetensors", weights)
    write_atomic(target / "config.json", json.dumps(hf_config(cfg, source["kind"], source["outputs"]), indent=2))
    write_atomic(target / "tokenizer_config.json", json.dumps(
        {"tokenizer_class": "AlbertTokenizer", "do_lower_case": tokenizer.lower, "keep_accents": False,
         "model_max_length": cfg.positions}, indent=2))
    tokenizer.save(target)
    print(f"{target}: {HF_HEADS[source['kind']]}, {sum(value.numel() for value in weights.values()):,} numbers "
          "in model.safetensors")


# Fine-tuning. A task is a name, a row of TABLE14, a module of common/ that reads its files and makes its batches, and
# one of four models. Each run of a task trains on one process and looks at the dev set now and then; runs are shared
# out over the processes, so that "the median of 5 runs" of nine tasks keeps 45 GPUs busy and needs no communication. A
# run folder holds one folder a task: result.json, model.pt, predictions and submission files.

Recipe = namedtuple("Recipe", "lr batch dropout classifier_dropout steps warmup length")
TABLE14 = {  # the v2 models take the same, but for RACE: --finetune_lr 1e-5 --finetune_dropout 0 (official README)
    "CoLA": Recipe(1e-5, 16, 0.0, 0.1, 5336, 320, 512),
    "STS-B": Recipe(2e-5, 16, 0.0, 0.1, 3598, 214, 512),
    "SST-2": Recipe(1e-5, 32, 0.0, 0.1, 20935, 1256, 512),
    "MNLI": Recipe(3e-5, 128, 0.0, 0.1, 10000, 1000, 512),
    "QNLI": Recipe(1e-5, 32, 0.0, 0.1, 33112, 1986, 512),
    "QQP": Recipe(5e-5, 128, 0.1, 0.1, 14000, 1000, 512),
    "RTE": Recipe(3e-5, 32, 0.1, 0.1, 800, 200, 512),
    "MRPC": Recipe(2e-5, 32, 0.0, 0.1, 800, 200, 512),
    "WNLI": Recipe(2e-5, 16, 0.1, 0.1, 2000, 250, 512),
    "SQuAD1.1": Recipe(5e-5, 48, 0.0, 0.1, 3649, 365, 384),
    "SQuAD2.0": Recipe(3e-5, 48, 0.0, 0.1, 8144, 814, 512),
    "RACE": Recipe(2e-5, 32, 0.1, 0.1, 12000, 1000, 512),
}
GROUPS = {"glue": tuple(TABLE14)[:9], "squad": ("SQuAD1.1", "SQuAD2.0"),
          "paper": ("SQuAD1.1", "SQuAD2.0", "MNLI", "SST-2", "RACE")}
MNLI_STARTS = ("RTE", "STS-B", "MRPC")  # Sec. 4.9, footnote 4
MAIN = {"CoLA": "matthews", "STS-B": "pearson", "SQuAD1.1": "f1", "SQuAD2.0": "f1"}  # else accuracy (D8)


def parse_tasks(text):
    """The tasks that "CoLA,squad2.0" or a name of GROUPS stands for. UserError on an unknown name."""
    from common.cli import UserError
    known, chosen = {name.lower(): (name,) for name in TABLE14} | GROUPS, []
    for name in text.replace(",", " ").split() or [text]:
        if name.lower() not in known:
            raise UserError(f"{name}: there is no such task; choose from {', '.join(TABLE14)}, or {', '.join(GROUPS)}")
        chosen += known[name.lower()]
    return list(dict.fromkeys(chosen))


def family(name):
    """The flag, and module of common/, that a task belongs to."""
    return "squad" if name.startswith("SQuAD") else "race" if name == "RACE" else "glue"


def load_examples(cfg, name):
    """{split: examples} of a task; test files, which are not always there, only where they are."""
    from common import glue, race, squad
    if family(name) == "squad":
        return {split: squad.load(Path(cfg.squad) / f"{split}-v{name[5:]}.json") for split in ("train", "dev")}
    if family(name) == "race":
        splits = ("train", "dev", "test") if (Path(cfg.race) / "test").is_dir() else ("train", "dev")
        return {split: race.load(cfg.race, split) for split in splits}
    splits = glue.SPLITS + (("dev_mismatched", "test_mismatched") if name == "MNLI" else ())
    files = {split: glue.MNLI_FILES.get(split, split) if name == "MNLI" else split for split in splits}
    return {split: glue.load(cfg.glue, name, split) for split, file in files.items()
            if split in ("train", "dev") or (Path(cfg.glue) / name / f"{file}.tsv").is_file()}


def encode_examples(name, examples, split, tokenizer, length):
    """One split as token features."""
    from common import glue, race, squad
    if family(name) == "squad":
        return squad.features(examples, tokenizer, length, training=split == "train")
    if family(name) == "race":
        return race.features(examples, tokenizer, length)
    return glue.encode(examples, tokenizer, length)


def thin_out(name, examples, rows):
    """So many examples of a split, evenly spaced; all if rows is 0. RACE's files have one level after the other."""
    if not rows or len(examples) <= rows:
        return examples
    chosen = [place * len(examples) // rows for place in range(rows)]
    if family(name) != "glue":
        return [examples[place] for place in chosen]
    first, second = (texts and [texts[place] for place in chosen] for texts in (examples.first, examples.second))
    labels = None if examples.labels is None else examples.labels[chosen]
    return dataclasses.replace(examples, first=first, second=second, labels=labels)


def make_model(name, cfg):
    """The model of a task, its head fresh, and the number of its outputs."""
    from common import glue
    if name == "SQuAD1.1":
        return SpanModel(cfg), 2
    if name == "SQuAD2.0":
        return AnswerModel(cfg), 2
    if name == "RACE":
        return MultipleChoice(cfg), 1
    return Classifier(cfg, glue.TASKS[name].classes), glue.TASKS[name].classes


def make_batches(name, *args, **kwargs):
    """The batches of a task's module."""
    from common import glue, race, squad
    return {"squad": squad, "race": race, "glue": glue}[family(name)].batches(*args, **kwargs)


@torch.no_grad()
def predict(model, name, features, cfg, rows, device):
    """What a model says about a split: probabilities (n, C), or scores (n, 1) of a regression; SQuAD: {"nbest",
    "null_odds"}. Raises Diverged where that is no number."""
    from common import squad
    from common.distributed import autocast
    model.eval()
    found = None
    for batch in make_batches(name, features, 2 * rows):
        batch = {key: value.to(device) for key, value in batch.items()}
        with autocast(cfg.dtype, device):
            output = model.predict(batch)
        output = [part.float().cpu() for part in (output if isinstance(output, tuple) else (output,))]
        if found is None:
            width = int(features.lengths.max()) if name == "SQuAD1.1" else None  # shorter batches are filled up
            found = [torch.full((len(features), width or part.shape[1]) if part.dim() > 1 else (len(features),), -1e30)
                     for part in output]
        index = batch["index"].cpu()
        for place, part in zip(found, output):
            if part.dim() > 1:  # a batch may be padded beyond the longest
                place[index, :part.shape[1]] = part[:, :place.shape[1]]
            else:
                place[index] = part
    if not all(part.isfinite().all() for part in found):
        raise Diverged(f"a prediction on {name} is not finite")
    if family(name) != "squad":
        return found[0] if name == "STS-B" else found[0].softmax(-1)
    if name == "SQuAD1.1":
        answers = squad.extract(features, *found)
    else:
        starts, ends, scores, null = (part.numpy() for part in found)
        answers = squad.rank(features, starts.astype(int), ends.astype(int), scores, null)
    return {"nbest": answers.nbest, "null_odds": answers.null_odds}


def score(name, examples, predictions):
    """Metrics in percent of predictions on a labelled split; "main" is the one early stopping looks at. SQuAD v2.0: at
    the threshold of the no-answer score that is best for this very split, one of the metrics (official code)."""
    from common import glue, race, squad
    if family(name) == "squad":
        texts = {key: found[0]["text"] for key, found in predictions["nbest"].items()}
        found = squad.evaluate(examples, texts, predictions["null_odds"] if name == "SQuAD2.0" else None)
        if "best_f1_thresh" in found:  # where some questions have no answer
            found = {**squad.evaluate(examples, texts, predictions["null_odds"], found["best_f1_thresh"]),
                     "null_threshold": found["best_f1_thresh"]}
    elif family(name) == "race":
        found = {key: 100 * value for key, value in race.evaluate(examples, predictions).items()}
    else:
        found = {key: 100 * value for key, value in glue.score(name, predictions, examples.labels).items()}
    return {**found, "main": found[MAIN.get(name, "accuracy")]}


def score_all(name, examples, predictions):
    """score() of dev, and of the other splits that have labels (MNLI mismatched, RACE test) with the split before each
    metric's name."""
    metrics = score(name, examples["dev"], predictions["dev"])
    for split, found in predictions.items():
        if split != "dev" and has_labels(examples[split]):
            metrics |= {f"{split} {key}": value for key, value in score(name, examples[split], found).items()
                        if key != "main"}
    return metrics


def recipe_of(name, rows, cfg):
    """Table 14's row of a task with what the flags override. rows: of the training set."""
    paper = TABLE14[name]
    batch = cfg.finetune_batch or paper.batch
    steps = max(1, round(cfg.finetune_epochs * math.ceil(rows / batch))) if cfg.finetune_epochs else paper.steps
    steps = 2 if cfg.dry_run else steps
    warmup = warmup_updates(cfg.finetune_warmup or paper.warmup / paper.steps, steps)
    return Recipe(cfg.finetune_lr or paper.lr, batch,
                  paper.dropout if cfg.finetune_dropout < 0 else cfg.finetune_dropout, cfg.classifier_dropout,
                  steps, warmup, min(cfg.finetune_length or paper.length, cfg.positions))


@dataclasses.dataclass
class Job:
    """A task as --finetune works on it."""
    name: str
    examples: dict  # {split: raw examples}
    features: dict  # {split: token features}
    recipe: Recipe


def open_job(name, cfg, tokenizer, labelled=True):
    """Read and encode those splits of a task whose labels are known, or those to submit predictions of."""
    examples = {split: thin_out(name, rows, cfg.train_rows if split == "train" else 64 * cfg.dry_run)
                for split, rows in load_examples(cfg, name).items() if has_labels(rows) == labelled}
    length = recipe_of(name, 1, cfg).length
    features = {split: encode_examples(name, rows, split, tokenizer, length) for split, rows in examples.items()}
    return Job(name, examples, features, recipe_of(name, len(features.get("train", ())), cfg))


def has_labels(examples):
    """False for GLUE's test splits."""
    return getattr(examples, "labels", ()) is not None


def endless(job, seed, start):
    """Training batches from update `start` on."""
    per_epoch = math.ceil(len(job.features["train"]) / job.recipe.batch)
    for epoch in itertools.count(start // per_epoch):
        batches = make_batches(job.name, job.features["train"], job.recipe.batch, seed=seed, epoch=epoch)  # D7
        yield from itertools.islice(batches, start % per_epoch if epoch == start // per_epoch else 0, None)


def pieces_of(batch, pieces):
    """A batch as up to so many smaller ones."""
    chunks = {key: value.chunk(pieces) for key, value in batch.items()}
    return [{key: value[i] for key, value in chunks.items()} for i in range(len(chunks["ids"]))]


def look_at_dev(model, job, cfg, device, state, path):
    """Score a model on the dev set; the best so far is written to `path`."""
    from common.distributed import save_file
    found = predict(model, job.name, job.features["dev"], cfg, job.recipe.batch, device)
    main = score(job.name, job.examples["dev"], found)["main"]
    state["curve"].append([state["step"], main])
    if main > state["main"]:
        state["main"] = main
        weights = {name: value.cpu() for name, value in model.state_dict().items()}
        save_file(path, {"weights": weights, "step": state["step"], "predictions": {"dev": found}})


def finetune_once(job, number, init, cfg, folder, device, tell):
    """One run of a task: train, look at the dev set at evenly spaced updates, keep the best model (Sec. 4.2.2).

    Leaves runN.pt, the best model with its predictions, and runN.json with its metrics, which comes last and says that
    the run is done. The state is saved at each look, after the best model: killed in between, the look is repeated.
    Raises Stop after SIGTERM (state saved).
    """
    from common.distributed import Checkpoint, Ranks, Stop, autocast, seed_everything, seed_of, stop_requested
    if (folder / f"run{number}.json").exists():
        return
    recipe, seed = job.recipe, seed_of(cfg.seed, "fine-tuning", job.name, number)
    seed_everything(seed, "weights")
    model, _ = make_model(job.name, dataclasses.replace(cfg, dropout=recipe.dropout))
    start_from(model, init, cfg, lambda line: tell(f"{job.name}, run {number + 1}: {line}"), job.name)
    model.to(device)
    optimizer = Lamb(model.parameters(), recipe.lr, weight_decay=cfg.weight_decay, adapt=False)
    checkpoint = Checkpoint(folder / f"run{number}.training.pt", Ranks(0, 1, device), model=model, optimizer=optimizer)
    state = {"step": 0, "main": -math.inf, "curve": [], **checkpoint.restore()}
    looks = {max(1, round(recipe.steps * (i + 1) / cfg.evaluations)) for i in range(cfg.evaluations)} | {recipe.steps}
    diverged = False
    for step, batch in zip(range(state["step"], recipe.steps), endless(job, seed, state["step"])):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * schedule(step, recipe.steps, recipe.warmup)
        seed_everything(seed, step)
        for part in pieces_of(batch, cfg.accumulate):
            part = {key: value.to(device) for key, value in part.items()}
            with autocast(cfg.dtype, device):
                loss = model.loss(part) * len(part["ids"]) / len(batch["ids"])
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)  # one that is no number shows at the next look
        optimizer.step()
        optimizer.zero_grad()
        state["step"] = step + 1
        if step + 1 in looks:  # D8
            try:
                look_at_dev(model, job, cfg, device, state, folder / f"run{number}.pt")
            except Diverged as error:  # the run ends with the best it had
                tell(f"{job.name}, run {number + 1}: {error} at update {step + 1}; the run ends here")
                diverged = True
                break
        if step + 1 in looks or stop_requested():
            checkpoint.save(**state)
        if stop_requested():
            raise Stop
    close_run(model, job, number, cfg, folder, device, state, diverged)
    checkpoint.remove()


def close_run(model, job, number, cfg, folder, device, state, diverged):
    """Let the best model of a run predict the other splits with labels, and write runN.json. A run that diverged before
    its first look has a score below all, -100."""
    from common.distributed import load_file, save_file, write_atomic
    path, metrics, best_step = folder / f"run{number}.pt", {"main": -100.0}, 0
    if path.exists():
        best = load_file(path)
        model.load_state_dict(best["weights"])
        best["predictions"] |= {split: predict(model, job.name, job.features[split], cfg, job.recipe.batch, device)
                                for split in job.features if split not in ("train", "dev")}
        metrics, best_step = score_all(job.name, job.examples, best["predictions"]), best["step"]
        save_file(path, {**best, "metrics": metrics})
    record = {"metrics": metrics, "best_step": best_step, "steps": job.recipe.steps, "diverged": diverged,
              "curve": state["curve"]}
    write_atomic(folder / f"run{number}.json", json.dumps(record))
    (folder / f"run{number}.pt.previous").unlink(missing_ok=True)


def close_task(name, cfg, folder, tokenizer, device):
    """Medians over the runs of a task; its best run becomes model.pt, and predicts the test split too. Returns the
    task's line of the result."""
    from common.distributed import load_file, read_json, save_file
    lines = [read_json(folder / f"run{number}.json") for number in range(cfg.runs)]
    best = max(range(cfg.runs), key=lambda number: lines[number]["metrics"]["main"])
    medians = {key: statistics.median(line["metrics"].get(key, 0.0) for line in lines)
               for key in lines[best]["metrics"]}
    if (folder / f"run{best}.pt").exists():
        kept = load_file(folder / f"run{best}.pt")
        model, outputs = make_model(name, cfg)
        model.load_state_dict(kept["weights"])
        save_model(folder, model, cfg, tokenizer, outputs, name)
        job, found = open_job(name, cfg, tokenizer, labelled=False), kept["predictions"]
        found |= {split: predict(model.to(device), name, features, cfg, job.recipe.batch, device)
                  for split, features in job.features.items()}
        save_file(folder / "predictions.pt", found)
        write_predictions(name, folder, found, kept["metrics"])
        for number in range(cfg.runs):
            (folder / f"run{number}.pt").unlink(missing_ok=True)
    return {"median": medians, "runs": [line["metrics"]["main"] for line in lines],
            "diverged": sum(line["diverged"] for line in lines),
            "data": {} if cfg.dry_run else fingerprints(load_examples(cfg, name))}


def write_predictions(name, folder, predictions, metrics):
    """The official files: GLUE's submission of each test split; SQuAD's predictions.json, nbest_predictions.json and
    null_odds.json, answers above the no-answer threshold withdrawn; RACE's chosen options."""
    from common import glue
    from common.distributed import write_atomic
    for split, found in predictions.items():
        if family(name) == "glue" and split.startswith("test"):  # D10: QNLI and WNLI like the others
            glue.write_submission(folder, name, found, split)
        elif family(name) == "race":
            write_atomic(folder / f"{split}_predictions.txt",
                         "".join("ABCD"[choice] + "\n" for choice in found.argmax(1).tolist()))
        elif family(name) == "squad":
            limit = metrics.get("null_threshold", math.inf)
            texts = {key: "" if found["null_odds"][key] > limit else spans[0]["text"]
                     for key, spans in found["nbest"].items()}
            for file, content in (("predictions", texts), ("nbest_predictions", found["nbest"]),
                                  ("null_odds", found["null_odds"])):
                write_atomic(folder / f"{file}.json", json.dumps(content, indent=1))
            write_atomic(folder / "null_threshold.json", json.dumps(metrics.get("null_threshold")))


def paper_average(results):
    """The Avg column (Table 2): the mean over five tasks, SQuAD's F1 and EM averaged first, MNLI matched. None where
    one is missing, or has diverged in all its runs."""
    if not all({"f1", "accuracy"} & set(results.get(name, {}).get("median", ())) for name in GROUPS["paper"]):
        return None
    return statistics.mean((found["f1"] + found["exact"]) / 2 if family(name) == "squad" else found["accuracy"]
                           for name, found in ((name, results[name]["median"]) for name in GROUPS["paper"]))


def average_predictions(name, several):
    """An ensemble's predictions (Sec. 4.9): probabilities are averaged; SQuAD: the scores of a span over the models
    that have it among their best, and the scores of "no answer" over all."""
    if family(name) != "squad":
        return torch.stack(list(several)).mean(0)
    nbest, odds = {}, {}
    for key in several[0]["nbest"]:
        scores = {}
        for member in several:
            for span in member["nbest"][key]:
                scores.setdefault(span["text"], []).append(span["probability"])
        ranked = sorted(((statistics.mean(values), text) for text, values in scores.items()), key=lambda pair: -pair[0])
        nbest[key] = [{"text": text, "score": value, "probability": value} for value, text in ranked]
        odds[key] = statistics.mean(member["null_odds"][key] for member in several)
    return {"nbest": nbest, "null_odds": odds}


def fingerprints(examples):
    """{split: a hash of its examples}, of those that are predicted."""
    return {split: hashlib.sha256(repr(rows).encode()).hexdigest()[:16] for split, rows in examples.items()
            if split != "train"}


def ensemble_task(name, cfg, folder):
    """Average the predictions that the run folders of --ensemble hold for a task, score and write them."""
    from common.cli import UserError
    from common.distributed import load_file, read_json
    members, examples = ([load_file(Path(member) / name / "predictions.pt") for member in cfg.ensemble],
                         load_examples(cfg, name))
    for member in cfg.ensemble:
        if read_json(Path(member) / name / "result.json").get("data") != fingerprints(examples):
            raise UserError(f"--ensemble {member}: its predictions on {name} are for other data than is given here")
    found = {split: average_predictions(name, [member[split] for member in members]) for split in members[0]}
    metrics = score_all(name, examples, found)
    folder.mkdir(exist_ok=True)
    write_predictions(name, folder, found, metrics)
    return {"median": metrics, "runs": [metrics["main"]], "members": len(members)}


def finetune(cfg, text):
    """Fine-tune tasks, several runs of each, or ensemble what other folders hold. Runs are shared out over the
    processes."""
    from common.cli import UserError
    from common.distributed import RunFolder, launch, on_main, say
    from common.inputs import fill_in
    with launch(cfg.device) as ranks:
        names = parse_tasks(text)
        if bool(cfg.init) == bool(cfg.ensemble):
            raise UserError("--finetune needs --init (a finished run folder of --pretrain, or a Hugging Face ALBERT "
                            "folder), or --ensemble, which trains nothing, without --init")
        settings = {**dataclasses.asdict(cfg), "tasks": names}
        demo = fill_in(cfg, ranks, *sorted({family(name) for name in names}))
        run = RunFolder(cfg.out, settings, "finetune", ranks, cfg.restart, demo)
        if run.finished:
            say(ranks, f"{run.folder}: this fine-tuning is finished (--restart begins anew)")
            return show_tasks(run.finished, ranks)
        if cfg.ensemble:
            tasks = {name: on_main(ranks, ensemble_task, name, cfg, run.folder / name) for name in names}
        else:
            tasks = train_tasks(names, cfg, run, ranks)
        result = {"tasks": tasks, "average": paper_average(tasks)}
        run.finish(result)
        show_tasks(result, ranks)


def train_tasks(names, cfg, run, ranks):
    """All runs of all tasks: first those that start from --init, then those that start from this command's MNLI model.
    {task: its line}."""
    from common.cli import UserError
    from common.distributed import barrier, on_main, say
    from common.tokenization import load_tokenizer
    if cfg.mnli_start and "MNLI" not in names:
        raise UserError("--mnli_start needs MNLI among the tasks; an earlier MNLI model is given with --init RUN/MNLI")
    if cfg.finetune_length > cfg.positions:
        raise UserError(f"--finetune_length {cfg.finetune_length}: the model has {cfg.positions} positions; use fewer")
    tokenizer, results = load_tokenizer(cfg.tokenizer or cfg.init), {}
    fit_vocabulary(tokenizer, cfg.vocab_size)
    late = [name for name in names if cfg.mnli_start and name in MNLI_STARTS]
    for stage, init in (([name for name in names if name not in late], cfg.init), (late, str(run.folder / "MNLI"))):
        mine = [(name, number) for name in stage for number in range(cfg.runs)][ranks.rank::ranks.size]
        for name, pairs in itertools.groupby(mine, key=lambda pair: pair[0]):
            (run.folder / name).mkdir(exist_ok=True)
            job = open_job(name, cfg, tokenizer)
            for _, number in pairs:
                finetune_once(job, number, init, cfg, run.folder / name, ranks.device, lambda line: say(ranks, line))
        barrier(ranks)
        for name in stage:
            results[name] = on_main(ranks, finish_task, name, cfg, run.folder / name, tokenizer, ranks.device)
            run.log(phase="finetune", task=name, **results[name])
    return {name: results[name] for name in names}


def finish_task(name, cfg, folder, tokenizer, device):
    """close_task, once: result.json says that it is done."""
    from common.distributed import read_json, write_atomic
    path = folder / "result.json"
    if not path.exists():
        write_atomic(path, json.dumps(close_task(name, cfg, folder, tokenizer, device), indent=1))
    return read_json(path)


def show_tasks(result, ranks):
    """Print the tasks' medians."""
    from common.distributed import say
    for name, line in result["tasks"].items():
        shown = ", ".join(f"{key} {value:.2f}" for key, value in line["median"].items()
                          if key != "main" and "total" not in key and "best" not in key)
        runs = f"{len(line['runs'])} runs" if "members" not in line else f"ensemble of {line['members']}"
        diverged = f", {line['diverged']} diverged" if line.get("diverged") else ""
        say(ranks, f"{name:9} {shown}  ({runs}{diverged})")
    if result["average"] is not None:
        say(ranks, f"Avg       {result['average']:.2f}")


# Analyses.

PUBLISHED = (  # (table, configuration, settings, parameters that the paper gives in millions)
    ("Table 1", "BERT base", PRESETS["bert-base"], 108), ("Table 1", "BERT large", PRESETS["bert-large"], 334),
    *(("Table 1", f"ALBERT {name}", PRESETS[name], size)
      for name, size in (("base", 12), ("large", 18), ("xlarge", 60), ("xxlarge", 235))),
    *(("Table 3", f"not-shared E={E}", dict(embedding=E, share="none"), size)
      for E, size in ((64, 87), (128, 89), (256, 93), (768, 108))),
    *(("Table 3", f"all-shared E={E}", dict(embedding=E), size)
      for E, size in ((64, 10), (128, 12), (256, 16), (768, 31))),
    *(("Table 4", f"{name} E={E}", dict(embedding=E, share=share), size)
      for E, sizes in ((768, (31, 83, 57, 108)), (128, (12, 64, 38, 89)))
      for name, share, size in zip(("all-shared", "shared-attention", "shared-FFN", "not-shared"),
                                   ("all", "attention", "ffn", "none"), sizes)),
    ("Table 12", "H=4096, 3 layers", dict(PRESETS["xxlarge"], layers=3), 225),
    ("Table 12", "H=6144, 3 layers", dict(layers=3, hidden=6144, heads=96, ffn=24576), 499),
)


def countings(cfg):
    """Four ways to count a model's parameters: A without pooler and heads, B with the pooler, C with the pooler and
    both heads, D like B with the position and segment tables and their LayerNorm H wide, as an older layout had them
    (arithmetic; no model of ours)."""
    found = parts(cfg)
    A = found["embeddings"] + found["mapping"] + found["attention"] + found["ffn"]
    B = A + found["pooler"]
    return {"A": A, "B": B, "C": B + found["mlm head"] + found["order head"],
            "D": B + (cfg.positions + 2 + 2) * (cfg.hidden - cfg.embedding)}


def compare_parameters(cfg):
    """--analyze parameters: our counts beside the published ones, the countings that agree, or how far off the nearest
    is."""
    from common.report import write_report
    columns = ["table", "configuration", "paper", "A no pooler", "B with pooler", "C with heads", "D wide positions",
               "agrees"]
    rows = []
    for table, name, settings, published in PUBLISHED:
        found = countings(Config(**settings))
        agrees = ", ".join(key for key, value in found.items() if round(value / 1e6) == published)
        nearest = min((value / 1e6 - published for value in found.values()), key=abs)
        rows.append([table, name, f"{published}M", *(f"{value:,}" for value in found.values()),
                     agrees or f"none; nearest: {nearest:+.1f}M"])
    write_report(cfg.out, "parameters", columns, rows)


@torch.no_grad()
def layer_distances(model, batches):
    """Figure 1: for each layer the mean over all real tokens of the L2 distance and of the angle, in degrees, between
    its input and its output.

    model: an Encoder; batches: of (ids, segments, lengths). Returns [{"layer", "l2", "degrees"}].
    """
    model.eval()
    totals, tokens = torch.zeros(model.depth, 2, dtype=torch.float64), 0
    for ids, segments, lengths in batches:
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        states = [state[real].double() for state in model(ids, segments, lengths, every_layer=True)]  # (tokens, H)
        for number, (before, after) in enumerate(zip(states, states[1:])):
            cosine = F.cosine_similarity(before, after, dim=-1).clamp(-1, 1)
            totals[number] += torch.stack([(after - before).norm(dim=-1).sum(),
                                           torch.rad2deg(cosine.acos()).sum()]).cpu()
        tokens += int(real.sum())
    return [{"layer": number, "l2": l2, "degrees": degrees}
            for number, (l2, degrees) in enumerate((totals / tokens).tolist(), 1)]


def compare_layers(cfg):
    """--analyze layers: Figure 1 for the model of --init and, as a control, for the same model with random weights, on
    held-out text with its masks (D4)."""
    from common.distributed import launch, seed_everything
    from common.report import write_report
    with launch(cfg.device) as ranks:
        check_pretraining(cfg, ranks)
        run, text = open_corpus(cfg, ranks, "analyze")
        rows, curves = min(16, cfg.dev_rows), {}
        batches = [language_batch(text.dev, text.tokenizer, cfg, "none", position, rows, ranks.device)[:3]
                   for position in range(0, cfg.dev_rows, rows)]
        for name, init in (("trained", cfg.init), ("random", "")):
            if name == "random" or init:
                seed_everything(cfg.seed, "pretrain", "weights")
                model = LanguageModel(cfg)
                start_from(model, init, cfg, print)
                curves[name] = layer_distances(model.encoder.to(ranks.device), batches)

    def draw(axes):
        for side, key, style, label in ((axes, "l2", "-", "L2 distance of input and output (solid)"),
                                        (axes.twinx(), "degrees", "--", "their angle in degrees (dashed)")):
            for name, lines in curves.items():
                side.plot([line["layer"] for line in lines], [line[key] for line in lines], style, label=name)
            side.set(xlabel="layer", ylabel=label, ylim=(0, None))
        axes.legend(frameon=False)

    table = [[lines[0]["layer"], *(line[key] for line in lines for key in ("l2", "degrees"))]
             for lines in zip(*curves.values())]
    write_report(cfg.out, "layers", ["layer", *(f"{name} {key}" for name in curves for key in ("L2", "degrees"))],
                 table, draw=draw)


def compare_speed(cfg, turns=8):
    """--analyze speed: training throughput of this model and of BERT of the same shape at batch / accumulate sequences
    (Table 2).

    The two take turns, so that a machine that slows down slows both; the ratio is the median over the turns, "from" and
    "to" the second-lowest and second-highest. One process: what ALBERT saves in communication does not show.
    """
    from common.distributed import Ranks, autocast, pick_device
    from common.report import write_report
    device = pick_device(cfg.device)
    check_pretraining(cfg, Ranks(0, 1, device))
    rows, M = cfg.batch // cfg.accumulate, predictions(cfg)
    shapes = {"ALBERT": cfg, "BERT": dataclasses.replace(cfg, share="none", groups=1, embedding=cfg.hidden,
                                                         mapping=False)}
    models = {name: LanguageModel(shape).to(device).train() for name, shape in shapes.items()}
    optimizers = {name: Lamb(model.parameters(), 1e-4) for name, model in models.items()}
    ids, lengths = (torch.randint(5, cfg.vocab_size, (rows, cfg.length), device=device),
                    torch.full((rows,), cfg.length, device=device))
    positions, order = (torch.arange(M, device=device).expand(rows, M),
                        torch.zeros(rows, dtype=torch.long, device=device))
    seconds = {name: [] for name in models}
    for name in list(models) * (1 + turns):  # the first turn warms up
        began = time.perf_counter()
        with autocast(cfg.dtype, device):
            logits, order_logits = models[name](ids, torch.zeros_like(ids), lengths, positions)
        loss = mean_loss(logits.flatten(0, 1), ids[:, :M].flatten()) + mean_loss(order_logits, order)
        loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad()
        next(models[name].parameters()).sum().item()  # wait for the device
        seconds[name].append(time.perf_counter() - began)
    rates = {name: rows * cfg.length / statistics.median(times[1:]) for name, times in seconds.items()}
    ratios = {name: sorted(bert / own for own, bert in zip(times[1:], seconds["BERT"][1:]))
              for name, times in seconds.items()}
    table = [[name, f"{count(models[name]):,}", round(rate),
              round(3 * flops(shapes[name]) / cfg.length * rate / 1e9, 1),
              statistics.median(ratios[name]), ratios[name][1], ratios[name][-2]]
             for name, rate in rates.items()]
    write_report(cfg.out, "speed", ["model", "parameters", "tokens/s", "GFLOP/s", "to BERT", "from", "to"], table,
                 {"seconds": seconds})


def analyze(cfg, name):
    """One of the analyses; each writes a table and its numbers into --out."""
    from common.cli import UserError
    analyses = {"layers": compare_layers, "parameters": compare_parameters, "speed": compare_speed}
    if name not in analyses:
        raise UserError(f"--analyze {name}: choose {', '.join(analyses)}")
    analyses[name](cfg)


def describe(cfg):
    """One JSON object about the model."""
    found = parts(cfg)
    print(json.dumps({"parameters": sum(found.values()), "parts": found, "countings": countings(cfg),
                      "flops": flops(cfg),
                      "flops_counting": f"one forward pass over {cfg.length} tokens: matrix products of encoder, "
                                        f"pooler and both heads ({predictions(cfg)} predictions), 2 a multiply-add"},
                     indent=2))

# --- command line --------------------------------------------------------------------------------


ACTIONS = {
    "pretrain": ("pre-train with masked words and sentence order (Sec. 3, 4.1)", None),
    "finetune": ("fine-tune the model of --init: tasks such as CoLA,SQuAD2.0,RACE, or glue, squad, paper "
                 "(the five of Table 2)", "TASKS"),
    "export": ("write the model of --init as a Hugging Face folder", "DIR"),
    "analyze": ("layers (Figure 1) | parameters (Tables 1, 3, 4, 12) | speed (Table 2)", "NAME"),
    "describe": ("print the model's parameters and FLOPs as JSON", None),
}


def shrink(cfg):
    """--dry_run: two real steps of every phase."""
    cfg.steps, cfg.dev_rows, cfg.runs, cfg.evaluations = 2, 32, 1, 1
    cfg.train_rows = 2 * (cfg.finetune_batch or 32)
    cfg.out = cfg.out.rstrip("/") + "-dry"


def main(argv=None):
    """Run one action of the command line."""
    from common.cli import UserError, parse
    from common.distributed import Stop
    argv = sys.argv[1:] if argv is None else argv
    action, value, cfg = parse(Config, PRESETS, ACTIONS, __doc__, argv)
    if action is None:
        return 0
    cfg.out = cfg.out or f"runs/albert-{value if action == 'analyze' else action}-{cfg.preset}"
    if cfg.init:
        adopt(cfg)
    try:
        check_shape(cfg)
    except ValueError as error:
        raise UserError(f"{cfg.init or 'the model'}: {error}") from None
    if cfg.dry_run:
        shrink(cfg)
    act = {"pretrain": pretrain, "finetune": finetune, "export": export, "analyze": analyze, "describe": describe}
    try:
        act[action](cfg, *([] if value is True else [value]))
    except Diverged as error:
        raise UserError(f"{cfg.out}: {error}; begin anew with a smaller --lr or --finetune_lr") from None
    except Stop:
        print("stopped; the same command continues")
    return 0


if __name__ == "__main__":
    from common.cli import run
    run(main)
