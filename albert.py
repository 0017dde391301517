"""ALBERT: A Lite BERT for Self-supervised Learning of Language Representations (Lan, Chen, Goodman,
Gimpel, Sharma, Soricut; ICLR 2020, arXiv:1909.11942). Official code: google-research/ALBERT at
b772393.

BERT with far fewer parameters. Tokens are embedded in E dimensions and mapped to H, and all layers
share one set of weights. Sentence-order prediction replaces next-sentence prediction: are two
segments in their original order or swapped?

Run:     python albert.py --pretrain --length 16 --objective none --batch 64 --lr 0.08 \\
             --steps 4500 --out runs/16
           masked words alone, in short sequences: about a minute on one core
         python albert.py --pretrain --init runs/16 --length 128 --steps 2500 --out runs/128
           with sentence order: four more minutes
         python albert.py --finetune MNLI,RTE,MRPC --init runs/128
           scores, each next to its baselines
         torchrun --nproc_per_node=8 albert.py --pretrain --preset base --accumulate 64 \\
             --corpus TEXTS
           the paper's sizes (Sec. 4.1)
Map:     Sec. 3.1 -> Encoder (E, sharing), sentence_pairs (SOP)
         Sec. 4.1 -> mask_tokens, Lamb, pretrain       Table 5 -> evaluate_language_model
         Table 14 -> TABLE14                           Sec. 4.9 -> finetune, ensemble_job
         Tables 1, 3-5, 8, 12 -> tests/claims/albert.py
         Fig. 1, Tables 11, 13 -> EXERCISES.md         Fig. 2b -> remove_dropout
         Tables 2, 6, 7, 9, 10 and Fig. 2a are scores of trainings on 64 to 512 TPUs: not here
Symbols: the paper's         here                          shape, or value in base
         V, E, H, L          vocab_size, embedding, hidden, layers   30,000, 128, 768, 12
         H / 64, 4H          heads, ffn                    12, 3,072
         V x E, E x H        token_embedding, mapping      (V, E), (H, E)
         N groups of M       groups                        1 group of 12 layers (Sec. 4.5)
         x_1, x_2            segment_a, segment_b          (B, width)
         n, N, p(n)          sizes, NGRAM, ngram_lengths   (B, T), 3
Tour:    Encoder, sentence_pairs, mask_tokens, Lamb and train_step are ALBERT. Skip at first
         pick_ngrams, AnswerModel (the head for SQuAD v2.0) and fine-tuning.
Differs: There are 31 departures, D1 to D31, where this file differs from the paper or the paper
         is silent: grep -n '# D[0-9]' albert.py
         A * marks a departure from the official code.
"""
import dataclasses
import functools
import json
import math
import statistics
import sys
from collections import Counter, namedtuple
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute
from torch.utils.flop_counter import FlopCounterMode

if (Path(__file__).parent / "common" / "launch.py").exists():  # a copy of this file has no commands
    from common import cli, squad
    from common.cli import UserError
    from common.files import existing, load_file, read_json, save_file
    from common.finetune import (
        Method, Recipe, Tuning, finetune_tasks, open_task, parse_tasks, predict_file,
        print_summary, summarise, write_outputs)
    from common.folder_task import read_spec
    from common.launch import (
        autocast, fit_accumulate, generator_of, launch, layer_activations, micro_batch_numbers,
        move, no_sync_until, on_main, prepare_model, print0, print_device_use, reduce_mean,
        seed_everything, seed_of, send, total_over, training_cost)
    from common.run import Loop, Run, load_weights, read_run, set_rate, settings_from
    from data import hf_models
    from data.inputs import open_data, open_tokenizer, print_after_training, print_near_baseline
    from data.order_baseline import first_token_baseline
    from data.race import RaceTask

# B batch, T tokens, E embedding, H hidden, N heads, D head dim, V vocab, M masked positions,
# L layers, K beams, C choices

# --- configuration --------


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings. A trailing comment is the help text of the flag and ends in its range. Flags
    override presets, and presets override defaults. The defaults are the preset base. The command
    line starts from the preset demo."""
    preset: str = "base"  # demo | base | large | xlarge | xxlarge | bert-base | bert-large
    seed: int = 0  # random seed
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs that have it
    accumulate: int = 1  # micro-batches per step. Default: raised to fit the processes [>= 1]
    dry_run: bool = False  # run a few steps of every phase, unless flags say otherwise
    init: str = ""  # run folder, a task's folder in one, or Hugging Face folder to start from
    tokenizer: str = ""  # spiece.model or vocab.txt. Default: --init's, else trained on the corpus
    weight_decay: float = 0.01  # not for biases and LayerNorms (official code)
    # execution: may differ when a run continues
    out: str = ""  # run folder. Default: runs/albert-ACTION-PRESET
    restart: bool = False  # rename the run in the run folder and start again
    device: str = "auto"  # auto (cuda, else cpu) | cpu | cuda | mps, xpu (not tested)
    compile: bool = False  # torch.compile the model of --pretrain
    recompute: bool = False  # activation recomputation: store only the inputs of layers
    save_every: int = 1000  # steps between checkpoints and evaluations [>= 1]
    tensorboard: bool = False  # also log to RUN/tensorboard (pip install tensorboard)
    cache: str = ""  # folder of vocabularies and token files. Default: data/cache
    # text, by default the demo data
    corpus: tuple[str, ...] = ()  # text files or folders to pre-train on
    vocab_size: int = 30000  # subwords, Sec. 4.1 [>= 1]
    held_out: float = 0.05  # held-out documents: fraction (below 1, capped at 1,000) or count [> 0]
    # model (with --init, the shape of that model)
    layers: int = 12  # L, Table 1. More than in --init: a depth warm start, Table 11 [1, 1000]
    hidden: int = 768  # H [>= 1]
    heads: int = 12  # H / 64, Sec. 3.1 [>= 1]
    ffn: int = 3072  # 4 H, Sec. 3.1 [>= 1]
    embedding: int = 128  # E, Table 3. 0: H. E = H has no mapping, as in BERT
    mapped: bool = False  # a mapping even where E = H, as in Hugging Face's ALBERT (D5)
    share: Literal["all", "attention", "ffn", "none"] = "all"  # what the layers share, Table 4
    groups: int = 1  # groups of layers that share weights. L / groups is the M of Sec. 4.5 [>= 1]
    activation: Literal["gelu_new", "gelu", "relu"] = "gelu_new"  # gelu_new: tanh form, ALBERT's
    positions: int = 512  # longest input [>= 1]
    init_std: float = 0.02  # of new weights. 0.1 for H = 64 (0, 1)
    # recipe, kept by --pretrain for fine-tunings
    recipe: Literal["table14", "v2", "demo"] = "table14"  # default: as --init's model
    # pre-training
    dropout: float = 0.1  # hidden and attention. 0 in long runs (Sec. 4.8), v2 [0, 1)
    dropout_steps: int = 0  # steps after which dropout is removed (Sec. 4.8, Fig. 2b). 0: never
    objective: Literal["sop", "nsp", "none"] = "sop"  # next to masked words, Table 5
    length: int = 512  # tokens per sequence, special ones included, Sec. 4.1 [>= 8]
    steps: int = 125000  # Sec. 4.1 [>= 1]
    batch: int = 4096  # sequences per step, Sec. 4.1 [>= 1]
    lr: float = 1.76e-3  # peak learning rate for a batch of 4,096, Sec. 4.1 (D12) [> 0]
    warmup: float = 0.025  # fraction of the steps: 3,125 of 125,000 (official code) [0, 1)
    dev_examples: int = 1024  # held-out sequences of an evaluation, rounded up to 64s [>= 1]
    # tasks, by default the demo data
    glue: str = ""  # folder of the GLUE tasks, official layout
    squad: str = ""  # folder of train- and dev-v1.1.json, train- and dev-v2.0.json
    race: str = ""  # folder with train, dev, test / middle, high
    columns: str = ""  # text columns of your own task: NAME[,NAME]. Default: usual names
    labels: Literal["auto", "classes", "numbers"] = "auto"  # of your own task
    train_examples: int = 0  # training examples of each task (0: all)
    # fine-tuning, by default as in the recipe
    finetune_epochs: float | None = None  # passes over the examples, not Table 14's steps [> 0]
    finetune_batch: int | None = None  # examples per step [>= 1]
    finetune_lr: float | None = None  # peak learning rate [> 0]
    finetune_warmup: float | None = None  # fraction of the steps [0, 1)
    finetune_length: int | None = None  # tokens per input [>= 8]
    finetune_dropout: float | None = None  # hidden and attention dropout [0, 1)
    runs: int = 1  # seeds of each task. The median is reported (D20) [>= 1]
    eval_every: int = 0  # steps between evaluations (the best counts). 0: up to 20 in all
    ensemble: tuple[str, ...] = ()  # run folders of --finetune whose predictions are averaged


LARGE = dict(layers=24, hidden=1024, heads=16, ffn=4096)
PRESETS = {
    "base": dict(),
    "large": LARGE,
    # D1* (conflict): xlarge has H / 64 = 32 heads (Sec. 3.1). The released one has 16
    "xlarge": dict(layers=24, hidden=2048, heads=32, ffn=8192),
    # D2 (ours): xxlarge is trained from scratch. The paper warm-starts it from 6 layers (footnote
    # 5): train with --layers 6, then --init that run with --layers 12
    "xxlarge": dict(layers=12, hidden=4096, heads=64, ffn=16384),
    "bert-base": dict(embedding=0, share="none"),
    "bert-large": dict(LARGE, embedding=0, share="none"),
}


def check_shape(cfg):
    """Raise ValueError if no model can be built from these settings."""
    if cfg.activation not in ACTIVATIONS:
        raise ValueError(f"activation {cfg.activation}: choose from {', '.join(ACTIVATIONS)}")
    if cfg.hidden % cfg.heads:
        raise ValueError(f"hidden {cfg.hidden} is not a multiple of heads {cfg.heads}")
    if cfg.layers % cfg.groups:
        raise ValueError(f"groups {cfg.groups} do not divide the {cfg.layers} layers evenly")

# --- model ----------------


ACTIVATIONS = {
    "gelu_new": functools.partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}


def init_weights(module, std):
    """Truncated normal, cut at two standard deviations. Biases are 0 (official code)."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def gather_positions(x, positions):
    """The states (B, M, H) of x (B, T, H) at positions (B, M)."""
    index = positions[..., None].expand(-1, -1, x.shape[-1])  # (B, M, H)
    return x.gather(1, index)


def autocast_once(x):
    """x in autocast's dtype, to convert float32 states once for several linear maps."""
    kind = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind))


class Attention(nn.Module):
    """Multi-head attention, residual, LayerNorm.

    queries: (B, M, H), states of x to compute the output at. x: (B, T, H). mask: (B, 1, 1, T), True
    at visible tokens, or None. Returns (B, M, H)."""

    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        # separate matrices, since LAMB adapts the learning rate of each
        self.query = nn.Linear(cfg.hidden, cfg.hidden)
        self.key = nn.Linear(cfg.hidden, cfg.hidden)
        self.value = nn.Linear(cfg.hidden, cfg.hidden)
        self.output = nn.Linear(cfg.hidden, cfg.hidden)
        self.norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        # D3* (silent): one dropout rate for attention and hidden states, as in the released
        # configurations. The official code has two settings
        self.dropout = nn.Dropout(cfg.dropout)

    def split_heads(self, x):
        x = x.unflatten(2, (self.heads, -1))
        return x.transpose(1, 2)  # (B, T, H) -> (B, N, T, D)

    def forward(self, queries, x, mask):
        states = autocast_once(x)
        q = self.split_heads(self.query(states if queries is x else queries))  # (B, N, M, D)
        k = self.split_heads(self.key(states))  # (B, N, T, D)
        v = self.split_heads(self.value(states))  # (B, N, T, D)
        dropout = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)  # (B, N, M, D)
        mixed = self.output(mixed.transpose(1, 2).flatten(2))  # (B, M, H)
        return self.norm(queries + self.dropout(mixed))


class FeedForward(nn.Module):
    """Two linear maps with an activation between, residual, LayerNorm. (B, T, H) -> (B, T, H)."""

    def __init__(self, cfg):
        super().__init__()
        self.fc1 = nn.Linear(cfg.hidden, cfg.ffn)
        self.fc2 = nn.Linear(cfg.ffn, cfg.hidden)
        self.norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        self.activation = ACTIVATIONS[cfg.activation]

    def forward(self, x):
        wide = self.activation(self.fc1(x))  # (B, T, 4H)
        return self.norm(x + self.dropout(self.fc2(wide)))


def blocks(cfg):
    """The numbers of attention and feed-forward blocks for the L layers (Table 4).

    >>> blocks(Config()), blocks(Config(groups=2)), blocks(Config(share="attention"))
    ((1, 1), (2, 2), (1, 12))
    """
    attentions = cfg.groups if cfg.share in ("all", "attention") else cfg.layers
    ffns = cfg.groups if cfg.share in ("all", "ffn") else cfg.layers
    return attentions, ffns


class Encoder(nn.Module):
    """Factorised embeddings and L layers, built from fewer blocks if layers share weights.

    Layer l runs block l * blocks // L of each list of blocks (Sec. 3.1, 4.5):

        layer                           0   1   2   3   4   5   6   7   8   9  10  11
        default          attention, ffn 0   0   0   0   0   0   0   0   0   0   0   0
        groups=2         attention, ffn 0   0   0   0   0   0   1   1   1   1   1   1
        share=attention  attention      0   0   0   0   0   0   0   0   0   0   0   0
                         ffn            0   1   2   3   4   5   6   7   8   9  10  11"""

    def __init__(self, cfg):
        super().__init__()
        check_shape(cfg)
        E = cfg.embedding or cfg.hidden
        attentions, ffns = blocks(cfg)
        self.depth = cfg.layers
        self.recompute = cfg.recompute
        self.token_embedding = nn.Embedding(cfg.vocab_size, E)  # V x E, Sec. 3.1
        # D4 (conflict): positions and token types are embedded in E dimensions, as in the official
        # code. The 60M, 225M and 499M parameters of Tables 1 and 12 imply H dimensions. Table 1's
        # 235M and Sec. 3.2's 233M fit neither
        self.position_embedding = nn.Embedding(cfg.positions, E)
        self.token_type_embedding = nn.Embedding(2, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        # D5 (conflict): there is no mapping E x H (Sec. 3.1) if E = H. This matches Table 3's 31M
        # and the official code. Hugging Face folders have one
        mapped = cfg.mapped or E != cfg.hidden
        self.mapping = nn.Linear(E, cfg.hidden) if mapped else nn.Identity()
        self.attentions = nn.ModuleList(Attention(cfg) for _ in range(attentions))
        self.ffns = nn.ModuleList(FeedForward(cfg) for _ in range(ffns))
        init_weights(self, cfg.init_std)

    def layer(self, number, x, mask, masked_positions=None):
        attention = self.attentions[number * len(self.attentions) // self.depth]
        ffn = self.ffns[number * len(self.ffns) // self.depth]
        queries = x
        if masked_positions is not None:
            positions = F.pad(masked_positions, (1, 0))  # [CLS] is at 0
            queries = gather_positions(x, positions)  # (B, 1 + M, H)
        return ffn(attention(queries, x, mask))

    def forward(self, ids, token_type_ids, lengths=None, masked_positions=None):
        """ids, token_type_ids: (B, T). lengths: (B,) real tokens, or None if there is no padding.

        Returns states (B, T, H). With masked_positions (B, M) the last layer is computed only at
        [CLS], which is at 0, and at these positions: (B, 1 + M, H).
        """
        positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        mask = None
        if lengths is not None:
            mask = positions < lengths[:, None]  # (B, T)
            mask = mask[:, None, None]  # (B, 1, 1, T)
        x = self.token_embedding(ids) + self.token_type_embedding(token_type_ids)  # (B, T, E)
        x = x + self.position_embedding(positions)
        x = self.dropout(self.norm(x))
        x = self.mapping(x)  # (B, T, E) -> (B, T, H)
        layer = self.layer
        if self.recompute and self.training:
            layer = functools.partial(recompute, self.layer, use_reentrant=False)
        for number in range(self.depth - 1):
            x = layer(number, x, mask)
        return layer(self.depth - 1, x, mask, masked_positions)


class MaskedHead(nn.Module):
    """H -> E, activation, LayerNorm, E -> V with the token embedding (V, E) as its matrix.
    (B, M, H) -> (B, M, V)."""

    def __init__(self, cfg):
        super().__init__()
        E = cfg.embedding or cfg.hidden
        self.transform = nn.Linear(cfg.hidden, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))
        self.activation = ACTIVATIONS[cfg.activation]
        init_weights(self, cfg.init_std)

    def forward(self, x, embedding):
        x = self.norm(self.activation(self.transform(x)))  # (B, M, E)
        return F.linear(x, embedding, self.bias)


class LanguageModel(nn.Module):
    """Encoder with the heads of pre-training: masked words, and the order of two segments (SOP or
    NSP)."""

    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.mlm = MaskedHead(cfg)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.order = nn.Linear(cfg.hidden, 2)
        init_weights(self.pooler, cfg.init_std)
        init_weights(self.order, cfg.init_std)

    def forward(self, batch):
        """batch: ids, token_type_ids (B, T), masked_positions (B, M), and lengths (B,) unless there
        is no padding. Returns MLM logits (B, M, V) at masked_positions and order logits (B, 2)."""
        x = self.encoder(
            batch["ids"],
            batch["token_type_ids"],
            batch.get("lengths"),
            batch["masked_positions"],
        )  # (B, 1 + M, H)
        embedding = self.encoder.token_embedding.weight
        pooled = torch.tanh(self.pooler(x[:, 0]))  # (B, H)
        return self.mlm(x[:, 1:], embedding), self.order(pooled)


# Models of tasks, with their losses. A batch has ids, token_type_ids (B, T), lengths (B,) unless
# there is no padding, and more. SQuAD's p_mask (B, T) is True where no answer can start or end.


HEAD_DROPOUT = 0.1  # before a task's head, Table 14


class Classifier(nn.Module):
    """Encoder, pooler, dropout and a linear head: logits (B, outputs). One output is a
    regression."""

    def __init__(self, cfg, outputs):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.dropout = nn.Dropout(HEAD_DROPOUT)
        self.head = nn.Linear(cfg.hidden, outputs)
        init_weights(self.pooler, cfg.init_std)
        init_weights(self.head, cfg.init_std)

    def forward(self, batch):
        ids = batch["ids"]
        only_cls = ids[:, :0]  # (B, 0) masked positions
        x = self.encoder(ids, batch["token_type_ids"], batch.get("lengths"), only_cls)  # (B, 1, H)
        pooled = torch.tanh(self.pooler(x[:, 0]))  # (B, H)
        return self.head(self.dropout(pooled))

    def loss(self, batch):
        logits = self(batch).float()
        if logits.shape[1] == 1:
            return F.mse_loss(logits[:, 0], batch["labels"])
        return F.cross_entropy(logits, batch["labels"])


class MultipleChoice(Classifier):
    """RACE (App. A.3): one output per option, softmax over the options.

    ids, token_type_ids (B, C, T) -> (B, C).
    """

    def forward(self, batch):
        options = {name: batch[name].flatten(0, 1)
                   for name in ("ids", "token_type_ids", "lengths") if name in batch}
        logits = super().forward(options)  # (B C, 1)
        return logits.view(batch["ids"].shape[:2])


class SpanModel(nn.Module):
    """SQuAD v1.1 (App. A.3): a start and an end logit per token, (B, T, 2)."""

    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        # D6 (conflict): no dropout before SQuAD v1.1's head, as in the official code. Table 14
        # gives it 0.1
        self.span = nn.Linear(cfg.hidden, 2)
        init_weights(self.span, cfg.init_std)

    def forward(self, batch):
        return self.span(self.encoder(batch["ids"], batch["token_type_ids"], batch.get("lengths")))

    def loss(self, batch):
        start, end = self(batch).float().unbind(-1)  # 2 x (B, T)
        start_loss = F.cross_entropy(start, batch["start"])
        return (start_loss + F.cross_entropy(end, batch["end"])) / 2


class AnswerModel(nn.Module):
    """SQuAD v2.0, XLNet's head (App. A.3). The end is scored given the start, and a classifier
    scores "no answer"."""

    def __init__(self, cfg, beams=5):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.beams = beams
        self.answer = nn.ModuleDict({
            "start": nn.Linear(cfg.hidden, 1),
            "end_mix": nn.Linear(2 * cfg.hidden, cfg.hidden),
            "end_norm": nn.LayerNorm(cfg.hidden, eps=1e-12),
            "end": nn.Linear(cfg.hidden, 1),
            "null_mix": nn.Linear(2 * cfg.hidden, cfg.hidden),
            "null": nn.Linear(cfg.hidden, 1, bias=False)})
        self.dropout = nn.Dropout(HEAD_DROPOUT)
        init_weights(self.answer, cfg.init_std)

    def read(self, batch):
        """States (B, T, H), start logits (B, T) and scores of "no answer" (B,), high for
        unanswerable questions."""
        x = self.encoder(batch["ids"], batch["token_type_ids"], batch.get("lengths"))
        start = self.answer.start(x)[..., 0].float()  # (B, T)
        start = start.masked_fill(batch["p_mask"], -1e30)
        weights = start.softmax(-1).to(x.dtype)
        summary = torch.einsum("bt,bth->bh", weights, x)  # where an answer would start
        pair = torch.cat([summary, x[:, 0]], dim=-1)  # (B, 2H)
        mixed = torch.tanh(self.answer.null_mix(pair))  # (B, H)
        null = self.answer.null(self.dropout(mixed))[:, 0]
        return x, start, null.float()

    def end_logits(self, x, starts, p_mask):
        """End logits (B, K, T) given the starts (B, K).

        The map of [token; start] is a map of the token plus a map of the start, which avoids a (B,
        K, T, 2H) tensor."""
        H = x.shape[-1]
        mix = self.answer.end_mix
        tokens = F.linear(x, mix.weight[:, :H])  # (B, T, H)
        begins = gather_positions(x, starts)
        begins = F.linear(begins, mix.weight[:, H:], mix.bias)  # (B, K, H)
        mixed = tokens[:, None] + begins[:, :, None]  # (B, K, T, H)
        mixed = self.answer.end_norm(torch.tanh(mixed))
        logits = self.answer.end(mixed)[..., 0]  # (B, K, T)
        return logits.float().masked_fill(p_mask[:, None], -1e30)

    def loss(self, batch):
        """The end is scored given the true start."""
        x, start, null = self.read(batch)
        end = self.end_logits(x, batch["start"][:, None], batch["p_mask"])[:, 0]  # (B, T)
        start_loss = F.cross_entropy(start, batch["start"])
        end_loss = F.cross_entropy(end, batch["end"])
        null_loss = F.binary_cross_entropy_with_logits(null, batch["impossible"])
        return (start_loss + end_loss) / 2 + null_loss / 2

    def forward(self, batch):
        """Beam search, the best ends for each of the best starts. Returns starts, ends, scores (B,
        K * K), null scores (B,)."""
        x, start, null = self.read(batch)
        start_scores, starts = start.log_softmax(-1).topk(self.beams)  # (B, K)
        end = self.end_logits(x, starts, batch["p_mask"])  # (B, K, T)
        end_scores, ends = end.log_softmax(-1).topk(self.beams)  # (B, K, K)
        scores = start_scores[..., None] + end_scores
        starts = starts[..., None].expand_as(ends)  # (B, K, K)
        return starts.flatten(1), ends.flatten(1), scores.flatten(1), null


def count_parameters(module):
    """Parameters of a module, counting shared ones once."""
    return sum(value.numel() for value in module.parameters())


def count_parts(cfg):
    """{part: parameters} of the pre-training model."""
    with torch.device("meta"):
        model = LanguageModel(cfg)
    modules = {**dict(model.encoder.named_children()), **dict(model.named_children())}
    del modules["encoder"]
    return {name: count_parameters(module) for name, module in modules.items()}


def flops(cfg):
    """FLOPs of a forward pass over `length` tokens: matrix products, 2 a multiply-add."""
    ids = torch.zeros(1, cfg.length, dtype=torch.long, device="meta")
    masked_positions = ids[:, :masked_count(cfg.length)]
    batch = {"ids": ids, "token_type_ids": ids, "masked_positions": masked_positions}
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        LanguageModel(cfg).eval()(batch)
    return counter.get_total_flops()

# --- objective ------------
# All random numbers of a batch come from one generator.


def join(segment_a, length_a, segment_b, length_b, tokenizer):
    """[CLS] A [SEP] B [SEP] (Sec. 4.1), or [CLS] A [SEP] if length_b is 0.

    segment_a, segment_b: (B, width) tokens. length_a, length_b: (B,) their lengths. Returns ids (B,
    T), with T = width + 3, token_type_ids (B, T), which are 1 in B and its [SEP], and lengths
    (B,).

    >>> tokenizer = namedtuple("Tokenizer", "pad_id cls_id sep_id")(0, 2, 3)
    >>> a = torch.tensor([[11, 12, 0], [11, 12, 0]])
    >>> b = torch.tensor([[21, 0, 0], [0, 0, 0]])
    >>> ids, types, lengths = join(a, torch.tensor([2, 2]), b, torch.tensor([1, 0]), tokenizer)
    >>> ids.tolist()
    [[2, 11, 12, 3, 21, 3], [2, 11, 12, 3, 0, 0]]
    >>> types.tolist(), lengths.tolist()
    ([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]], [6, 4])
    """
    size, width = segment_a.shape
    positions = torch.arange(width + 3).expand(size, -1)  # (B, T)
    first_sep = length_a[:, None] + 1  # (B, 1) its position
    last_sep = first_sep + torch.where(length_b > 0, length_b + 1, 0)[:, None]
    index_a = (positions - 1).clamp(0, width - 1)
    index_b = (positions - first_sep - 1).clamp(0, width - 1)
    ids = segment_a.gather(1, index_a)  # (B, width) -> (B, T)
    ids = torch.where(positions > first_sep, segment_b.gather(1, index_b), ids)
    is_sep = (positions == first_sep) | (positions == last_sep)
    ids = ids.masked_fill(is_sep, tokenizer.sep_id)
    ids = ids.masked_fill(positions > last_sep, tokenizer.pad_id)
    ids = ids.masked_fill(positions == 0, tokenizer.cls_id)
    token_type_ids = (positions > first_sep) & (positions <= last_sep)
    return ids, token_type_ids.long(), last_sep[:, 0] + 1


def sentence_pairs(segments, tokenizer, objective, generator):
    """Two segments as one input, and their label (Sec. 3.1, Inter-sentence coherence loss).

    segments: data.corpus.Segments: segment_a, segment_b and other (from another document), each (B,
    width), with lengths length_a, length_b, length_other (B,), 0 for none. Returns ids,
    token_type_ids (B, T), lengths (B,) and labels (B,), -100 for none.

    Of 4,001 texts the last has no second segment. Half of the others are swapped, or get the other
    text. The fraction of label 1, and what occurs, label first:

    >>> tokenizer = namedtuple("Tokenizer", "pad_id cls_id sep_id")(0, 2, 3)
    >>> class segments:
    ...     segment_a, length_a = torch.tensor([[11, 12, 0]] * 4001), torch.full((4001,), 2)
    ...     segment_b, length_b = torch.tensor([[21, 0, 0]] * 4001), torch.ones(4001).long()
    ...     other, length_other = torch.tensor([[31, 0, 0]] * 4001), torch.ones(4001).long()
    >>> segments.length_b[-1] = 0
    >>> for objective in ("sop", "nsp", "none"):
    ...     ids, _, _, labels = sentence_pairs(segments, tokenizer, objective, torch.Generator())
    ...     rows = torch.cat([labels[:, None], ids], dim=1).unique(dim=0).tolist()
    ...     print(objective, round((labels == 1).float().mean().item(), 1), rows)
    sop 0.5 [[-100, 2, 11, 12, 3, 0, 0], [0, 2, 11, 12, 3, 21, 3], [1, 2, 21, 3, 11, 12, 3]]
    nsp 0.5 [[-100, 2, 11, 12, 3, 0, 0], [0, 2, 11, 12, 3, 21, 3], [1, 2, 11, 12, 3, 31, 3]]
    none 0.0 [[-100, 2, 11, 12, 3, 0, 0], [-100, 2, 11, 12, 3, 21, 3]]
    """
    a = segments.segment_a, segments.length_a
    b = segments.segment_b, segments.length_b
    original = *a, *b
    # D7* (conflict): a text without a sentence boundary is one segment and has no label. The order
    # loss is a mean over all sequences, so that it counts less. The official code pairs such a text
    # with another document and calls that "swapped"
    labelled = segments.length_b > 0  # (B,)
    if objective == "sop":  # 0: in their order, 1: swapped
        changed = *b, *a
    elif objective == "nsp":  # 0: consecutive, 1: B is from another document
        changed = *a, segments.other, segments.length_other
        labelled = labelled & (segments.length_other > 0)
    else:  # none: always in their order
        changed = original
        labelled = torch.zeros_like(labelled)
    chance = torch.rand(len(labelled), generator=generator)
    labels = (chance < 0.5).long().masked_fill(~labelled, -100)
    swap = labels > 0
    pairs = [one.index_put((swap,), other[swap]) for one, other in zip(original, changed)]
    ids, token_type_ids, lengths = join(*pairs, tokenizer)
    return ids, token_type_ids, lengths, labels


NGRAM = 3  # longest masked n-gram of words, Sec. 4.1
# D8* (silent): 15% of the tokens are predicted, 77 of 512. The official code has at most 20
MASKED = 0.15


def ngram_lengths(shape, generator):
    """Lengths of n-grams, p(n) = (1 / n) / sum of 1 / k over k = 1..NGRAM (Sec. 4.1): 6, 3 and 2
    of 11 have 1, 2 and 3 words.

    >>> lengths = ngram_lengths((110_000,), torch.Generator())
    >>> [round(count / 10_000, 1) for count in lengths.bincount().tolist()]
    [0.0, 6.0, 3.0, 2.0]
    """
    weights = 1 / torch.arange(1, NGRAM + 1)
    drawn = torch.multinomial(
        weights, math.prod(shape), replacement=True, generator=generator)
    return drawn.view(shape) + 1


def find_words(ids, tokenizer):
    """(B, T) bool, which tokens of ids (B, T) begin a word, and (B, T), the position after each
    token's word, -1 for special tokens."""
    T = ids.shape[1]
    text = ids != tokenizer.pad_id
    text &= ids != tokenizer.cls_id
    text &= ids != tokenizer.sep_id
    # a token begins a word if the vocabulary says so, starts_word (V,), or if it is the first of
    # its segment
    begins = torch.as_tensor(tokenizer.starts_word)[ids]
    begins |= ~F.pad(text, (1, 0))[:, :T]
    begins &= text
    # the next token that is not inside a word
    boundary = torch.where(begins | ~text, torch.arange(T), T)
    boundary = F.pad(boundary[:, 1:], (0, 1), value=T)
    ends = boundary.flip(1).cummin(1).values.flip(1)  # the nearest to the right
    return begins, ends.masked_fill(~text, -1)


def spend_budget(budget, starts, sizes, ends):
    """The chosen tokens of one sequence, T bytes of 0 or 1. starts: first tokens of words in random
    order. sizes: words of the n-gram at each. ends: where each token's word ends."""
    chosen = bytearray(len(ends))
    for start, size in zip(starts, sizes):
        stop = start
        for _ in range(size):
            # D9* (silent): n-grams stay inside a segment, since a special token is not a word. In
            # the official code they cross [SEP]
            end = ends[stop] if stop < len(ends) else -1
            if end < 0 or end - start > budget:
                break
            stop = end
        if not any(chosen[start:stop]):
            chosen[start:stop] = b"\1" * (stop - start)
            budget -= stop - start
        if not budget:
            break
    return chosen


def pick_ngrams(ids, tokenizer, budget, generator):
    """The tokens to predict, (B, T) bool: n-grams of whole words at random positions, until the
    budget (B,) of tokens of each sequence is spent.

    As in the official code, an n-gram that does not fit the budget is shortened, and an n-gram with
    a chosen word is refused. A sequence with a budget of 6 tokens, where each word shows the
    position after it:

              [CLS]  the  white  house  corre ##spon ##dents  [SEP]  left  home  [SEP]
    position    0     1     2      3      4     5      6        7     8     9     10
    ends       -1     2     3      4      7     7      7       -1     9    10     -1

    >>> class tokenizer:
    ...     pad_id, cls_id, sep_id = 0, 2, 3
    ...     starts_word = torch.arange(10) != 6  # 6 continues a word, but not as a segment's first
    >>> begins, ends = find_words(torch.tensor([[2, 9, 9, 9, 9, 6, 6, 3, 6, 9, 3]]), tokenizer)
    >>> begins[0].nonzero()[:, 0].tolist(), ends[0].tolist()
    ([1, 2, 3, 4, 8, 9], [-1, 2, 3, 4, 7, 7, 7, -1, 9, 10, -1])

    N-grams are tried at positions 3, 2, 9 and 1, the first of 3 words, the others of 2. At 3: house
    and correspondents are chosen, 4 tokens, since a [SEP] follows. At 2: white and house are
    refused, since house is chosen. At 9: home is chosen alone. At 1: one token of the budget is
    left, so the n-gram is shortened to "the".

    >>> chosen = spend_budget(6, [3, 2, 9, 1], [3, 2, 2, 2], ends[0].tolist())
    >>> [position for position, one in enumerate(chosen) if one]
    [1, 3, 4, 5, 6, 9]
    """
    begins, ends = find_words(ids, tokenizer)
    chance = torch.rand(ids.shape, generator=generator)
    order = chance.masked_fill(~begins, 2.0).argsort(1)  # (B, T) first tokens of words first
    sizes = ngram_lengths(ids.shape, generator)
    columns = [begins.sum(1), budget, order, sizes, ends]
    chosen = []
    for words, left, starts, counts, stops in zip(*(column.tolist() for column in columns)):
        chosen.append(spend_budget(left, starts[:words], counts, stops))
    return torch.tensor(chosen, dtype=torch.bool)


def masked_count(length):
    """M, the number of masked positions of a sequence (D8)."""
    return round(MASKED * length)


def mask_tokens(ids, tokenizer, generator):
    """N-gram masking (Sec. 4.1). As in BERT, a chosen token becomes [MASK] with probability 80%, a
    random token with 10%, and stays with 10%.

    ids: (B, T). Returns the changed ids, the masked positions and the original tokens there as
    labels, both (B, M). Filler in sequences with fewer masked tokens has the label -100.

    >>> class tokenizer:
    ...     pad_id, cls_id, sep_id, mask_id, vocab_size = 0, 2, 3, 4, 1000
    ...     starts_word = torch.ones(1000, dtype=torch.bool)
    >>> ids = torch.tensor([[2, *range(10, 28), 3]] * 4000)
    >>> ids[0, 8:] = 0
    >>> changed, positions, labels = mask_tokens(ids, tokenizer, torch.Generator())
    >>> (labels != -100).sum(1)[:2].tolist()  # 15% of 8 tokens, and of 20
    [1, 3]
    >>> shown = changed.gather(1, positions)[1:]
    >>> [round((shown == one).float().mean().item(), 1) for one in (4, labels[1:])]
    [0.8, 0.1]
    """
    B = len(ids)
    M = masked_count(ids.shape[1])
    budget = MASKED * (ids != tokenizer.pad_id).sum(1)  # (B,)
    budget = budget.round().long().clamp(1, M)
    # D10* (silent): masks are drawn again in each pass. The official data hold 40 copies of each
    # text with fixed masks
    chosen = pick_ngrams(ids, tokenizer, budget, generator)
    # chosen tokens first, from left to right
    masked_positions = chosen.int().argsort(dim=1, descending=True, stable=True)
    masked_positions = masked_positions[:, :M]
    used = chosen.gather(1, masked_positions)
    originals = ids.gather(1, masked_positions)
    chance = torch.rand(B, M, generator=generator)
    random_tokens = torch.randint(tokenizer.vocab_size, (B, M), generator=generator)
    changed = torch.where(chance < 0.9, random_tokens, originals)
    changed = torch.where(chance < 0.8, tokenizer.mask_id, changed)
    changed = torch.where(used, changed, originals)
    labels = originals.masked_fill(~used, -100)
    return ids.scatter(1, masked_positions, changed), masked_positions, labels


def summed_loss(logits, labels):
    """Cross-entropy of logits (n, classes), summed over labels (n,) other than -100."""
    return F.cross_entropy(logits.float(), labels, reduction="sum")

# --- training -------------


CLIP = 1.0  # largest gradient norm (official code)
EVALUATION_BATCH = 64  # sequences per batch of an evaluation


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2019; Sec. 4.1) as in ALBERT's code. A step of a tensor w with gradient g:

        m = b1 m + (1 - b1) g                 v = b2 v + (1 - b2) g^2
        u = m / (sqrt(v) + eps) + decay w     w = w - lr |w| / |u| u

    So a matrix moves by lr times its own norm. The trust ratio |w| / |u| is
    unbounded, and 1 if a norm is 0. Biases, LayerNorms and scalars have neither decay nor ratio.
    adapt=False omits the ratio everywhere: BERT's AdamW, for fine-tuning (official code).

    parameters: tensors or groups, as for the optimizers of torch. A group may have its own lr,
    weight_decay and adapt.

    A first step with gradient (7, 0): u = (0.1 * 7 / (sqrt(0.001) * 7), 0) = (3.16, 0). A bias
    moves by lr u. A matrix of norm 5 moves by 5 lr, however large its gradient is.

    >>> matrix = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    >>> bias = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> for w in (matrix, bias):
    ...     w.grad = torch.tensor([7.0, 0.0]).view_as(w)
    >>> Lamb([matrix, bias], lr=0.1, weight_decay=0.0).step()
    >>> [round(value, 2) for w in (matrix, bias) for value in w.flatten().tolist()]
    [2.5, 4.0, 2.68, 4.0]
    """
    B1 = 0.9
    B2 = 0.999
    EPS = 1e-6

    def __init__(self, parameters, lr, weight_decay=0.01, adapt=True):
        super().__init__(parameters, dict(lr=lr, weight_decay=weight_decay, adapt=adapt))

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters that have a gradient. closure: computes the loss and its gradients
        before the step. Returns its loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self.update(w, group)
        return loss

    def update(self, w, group):
        """A step of one tensor."""
        state = self.state[w]
        if not state:
            state["m"] = torch.zeros_like(w)
            state["v"] = torch.zeros_like(w)
        # D11 (conflict): LAMB has no bias correction of m and v, as in the official code. You et
        # al. have it
        state["m"].lerp_(w.grad, 1 - self.B1)
        state["v"].mul_(self.B2)
        state["v"].addcmul_(w.grad, w.grad, value=1 - self.B2)
        u = state["m"] / (state["v"].sqrt() + self.EPS)
        if w.dim() > 1:  # not a bias, LayerNorm or scalar
            u.add_(w, alpha=group["weight_decay"])
            if group["adapt"]:
                w_norm = w.norm()
                u_norm = u.norm()
                has_ratio = (w_norm > 0) & (u_norm > 0)
                u *= torch.where(has_ratio, w_norm / u_norm, 1.0)
        w.add_(u, alpha=-group["lr"])


def schedule(step, steps, warmup):
    """Fraction of the peak learning rate at a step, counted from 0. Linear warm-up over warmup x
    steps, then a linear decay counted from step 0, so the rate drops between them (official code).

    >>> [schedule(step, 8, 0.25) for step in range(9)]
    [0.0, 0.5, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]
    """
    rise = round(warmup * steps)
    if step < rise:
        return step / rise
    return 1 - step / steps


def learning_rate(step, cfg):
    """The learning rate of a step of pre-training (Sec. 4.1)."""
    # D12 (silent): the learning rate is scaled with the square root of the batch size (You et al.).
    # The paper has only batches of 4,096
    peak = cfg.lr * math.sqrt(cfg.batch / 4096)
    return peak * schedule(step, cfg.steps, cfg.warmup)


SHORT = 0.1  # fraction of shorter sequences, Sec. 4.1


def make_optimizer(model, weight_decay, adapt=True):
    """Lamb (Sec. 4.1), or with adapt=False AdamW, for fine-tuning. Each step sets the rate."""
    return Lamb(model.parameters(), lr=0.0, weight_decay=weight_decay, adapt=adapt)


def cut_segments(corpus, cfg, number, size):
    """The text of `size` examples of the endless stream, from example `number`, as
    data.corpus.Segments."""
    # D13* (silent): segments are adjacent whole sentences, so that the cut cannot reveal the order.
    # Two that do not fit have no label. The official code removes tokens at random ends
    # D14* (silent): a short sequence keeps two sentences, which may exceed the drawn length
    # D15* (silent): NSP's other segment has about the size of the segment that it replaces, so that
    # the size does not reveal the label. The official code fills the sequence up
    return corpus.sentence_runs(number, size, cfg.length - 3, cfg.seed, SHORT,
                                others=cfg.objective == "nsp")


def language_batch(segments, tokenizer, cfg, seed_number, device):
    """Segments as a batch on the device: ids, token_type_ids (B, T), lengths (B,) unless there is
    no padding, masked_positions and labels (B, M), order_labels (B,). Label -100: nothing to
    predict. seed_number: unique among training batches."""
    generator = generator_of(cfg.seed, "mask", cfg.objective, seed_number)
    ids, token_type_ids, lengths, order = sentence_pairs(
        segments, tokenizer, cfg.objective, generator)
    # rounds T up, so that torch.compile and GPUs meet few widths
    multiple = max(8, cfg.length // 8)
    width = math.ceil(int(lengths.max()) / multiple) * multiple
    ids, masked_positions, labels = mask_tokens(ids[:, :width], tokenizer, generator)
    batch = {
        "ids": ids,
        "token_type_ids": token_type_ids[:, :width],
        "masked_positions": masked_positions,
        "labels": labels,
        "order_labels": order,
    }
    if (lengths < ids.shape[1]).any():  # GPUs have flash attention for full sequences only
        batch["lengths"] = lengths
    return send(batch, device)


def training_batches(data, cfg, ranks, begin):
    """Yield this process's list of micro-batches for each step from `begin`. A micro-batch is the
    same for any number of processes."""
    size = cfg.batch // cfg.accumulate
    for step in range(begin, cfg.steps):
        first = step * cfg.batch
        segments = cut_segments(data.train, cfg, first, cfg.batch)
        # D16 (silent): the sequences of a step are sorted by length into its micro-batches, so that
        # few are padded
        lengths = segments.length_a + segments.length_b
        micro_batches = lengths.argsort(stable=True).split(size)
        batches = []
        for micro in micro_batch_numbers(ranks, cfg.accumulate):
            examples = segments[micro_batches[micro]]
            seed_number = first + micro * size
            batches.append(language_batch(
                examples, data.tokenizer, cfg, seed_number, ranks.device))
        yield batches


def count_labels(batch):
    """The divisors of the two losses (2,): masked tokens, and all sequences (D7). If few sequences
    are labelled, a mean over these alone would add noise that outweighs the masked words."""
    masked_tokens = (batch["labels"] != -100).sum()
    sequences = masked_tokens.new_tensor(len(batch["ids"]))
    return torch.stack([masked_tokens, sequences])


def summed_losses(network, batch, cfg):
    """The losses of masked words and of sentence order (2,), summed over labels (Sec. 3.1, 4.1)."""
    with autocast(cfg.dtype, batch["ids"].device):
        logits, order_logits = network(batch)
    masked_words = summed_loss(logits.flatten(0, 1), batch["labels"].flatten())
    order = summed_loss(order_logits, batch["order_labels"])
    return torch.stack([masked_words, order])


def train_step(step, network, optimizer, batches, cfg, ranks):
    """One step on this process's micro-batches. Returns {name: tensor ()}. Their means over the
    processes are the loss, its two parts, the fraction of sequences with an order and the gradient
    norm."""
    totals = total_over(ranks, sum(map(count_labels, batches)))  # (2,) of all processes
    totals = totals.clamp(min=1) / ranks.size  # gradients are averaged over the processes
    losses = torch.zeros_like(totals)
    for micro, batch in zip(micro_batch_numbers(ranks, cfg.accumulate), batches):
        seed_everything(cfg.seed, "pretrain", step, micro)  # dropout
        with no_sync_until(network, ranks, last=batch is batches[-1]):  # one exchange a step
            loss = summed_losses(network, batch, cfg) / totals
            loss.sum().backward()
        losses += loss.detach()
    # D17* (silent): the mean gradient of the batch is clipped once. The official code clips the
    # gradient of each replica and adds them
    norm = nn.utils.clip_grad_norm_(network.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    # totals[1] is all sequences / processes, so the mean over the processes is the overall fraction
    ordered = sum((batch["order_labels"] != -100).sum() for batch in batches) / totals[1]
    return {
        "loss": losses.sum(),
        "mlm_loss": losses[0],
        "order_loss": losses[1],
        "ordered": ordered,
        "norm": norm,
    }


def remove_dropout(model):
    """Train on without dropout (Sec. 4.8)."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.compiler.reset()  # compiled code with activation recomputation fails otherwise


def train_language_model(model, data, cfg, run):
    """Pre-train on data, a data.inputs.Data, from the checkpoint. Raises Diverged, and Stop after
    SIGTERM."""
    ranks = run.ranks
    optimizer = make_optimizer(model, cfg.weight_decay)
    loop = Loop(run, "pretrain", cfg, model=model, optimizer=optimizer)
    network = prepare_model(model, ranks, cfg.compile)
    for step, batches in loop(training_batches(data, cfg, ranks, loop.begin)):
        if cfg.dropout_steps and step == max(loop.begin, cfg.dropout_steps):
            remove_dropout(model)
        rate = learning_rate(step, cfg)
        set_rate(optimizer, rate)
        model.train()
        numbers = train_step(step, network, optimizer, batches, cfg, ranks)
        dev = evaluate_language_model(model, data, cfg, ranks) if loop.evaluates(step) else {}
        loop.after(step, numbers, batches, dev, lr=rate)
    if cfg.dry_run:
        print_device_use(ranks, loop.speed, flops(cfg) / cfg.length)


@torch.no_grad()
def evaluate_language_model(model, data, cfg, ranks):
    """The intrinsic tasks of Table 5: {"mlm_loss" in nats, "mlm_accuracy", "mlm_labels" (their
    number), and accuracy and labels of "nsp" and "sop"}. An accuracy is None if no sequence has a
    label. One two-way head serves both NSP and SOP."""
    # D18 (ours): pre-training is evaluated on held-out documents. The paper has dev text of SQuAD
    # and RACE (Sec. 4.2.1)
    # D19 (silent): masked words are scored on pairs in their order, on the same tokens for every
    # objective. With the objective none the order head is not trained
    model.eval()
    first = ranks.rank * EVALUATION_BATCH
    stride = ranks.size * EVALUATION_BATCH
    result = {}
    for name, objective in {"mlm": "none", "nsp": "nsp", "sop": "sop"}.items():
        # the same examples for every seed
        cfg = dataclasses.replace(cfg, seed=0, objective=objective)
        loss = 0
        correct = 0
        labelled = 0
        for number in range(first, cfg.dev_examples, stride):
            segments = cut_segments(data.dev, cfg, number, EVALUATION_BATCH)
            batch = language_batch(segments, data.tokenizer, cfg, number, ranks.device)
            with autocast(cfg.dtype, ranks.device):
                logits, order_logits = model(batch)
            labels = batch["labels"]
            if name != "mlm":
                logits = order_logits
                labels = batch["order_labels"]
            loss += summed_loss(logits.flatten(0, -2), labels.flatten())
            correct += (logits.argmax(-1) == labels).sum()
            labelled += (labels != -100).sum()
        loss, correct, labelled = reduce_mean(ranks, loss, correct, labelled)
        result[f"{name}_accuracy"] = correct / labelled if labelled else None
        result[f"{name}_labels"] = round(labelled * ranks.size)
        if name == "mlm":
            result["mlm_loss"] = loss / labelled
    return result


# Fine-tuning (App. A.4)

# D20 (ours): a task has one run, unless --runs asks for more. The paper reports the median of five
# (Sec. 4.9, and Sec. 4.2.2 for tasks with a large variance)
TABLE14 = {  # learning rate, batch, dropout, steps, warm-up steps, longest input, main metric
    "CoLA": (1e-5, 16, 0.0, 5336, 320, 512, "matthews"),
    "STS-B": (2e-5, 16, 0.0, 3598, 214, 512, "pearson"),
    "SST-2": (1e-5, 32, 0.0, 20935, 1256, 512, "accuracy"),
    "MNLI": (3e-5, 128, 0.0, 10000, 1000, 512, "accuracy"),
    "QNLI": (1e-5, 32, 0.0, 33112, 1986, 512, "accuracy"),
    "QQP": (5e-5, 128, 0.1, 14000, 1000, 512, "accuracy"),
    "RTE": (3e-5, 32, 0.1, 800, 200, 512, "accuracy"),
    "MRPC": (2e-5, 32, 0.0, 800, 200, 512, "accuracy"),
    # D21 (ours): WNLI and QNLI are trained like the other tasks, without the test-set tricks of
    # App. A.3
    "WNLI": (2e-5, 16, 0.1, 2000, 250, 512, "accuracy"),
    "SQuAD1.1": (5e-5, 48, 0.0, 3649, 365, 384, "f1"),
    "SQuAD2.0": (3e-5, 48, 0.0, 8144, 814, 512, "f1"),
    "RACE": (2e-5, 32, 0.1, 12000, 1000, 512, "accuracy"),
}
MEANS = {"Avg": (  # Table 2, "and everywhere else"
    ("SQuAD1.1 f1", "SQuAD1.1 exact"),
    ("SQuAD2.0 f1", "SQuAD2.0 exact"),
    "MNLI",
    "SST-2",
    "RACE",
)}
DEMO_RECIPE = dict(  # for narrow networks, which learn nothing at the rates of Table 14
    lr=1e-3, batch=16, epochs=2, steps=0, warmup=0.1, dropout=0.0)


def recipes(cfg):
    """{task: Recipe} for a model. No input exceeds its positions."""
    result = {}
    for name, (lr, batch, dropout, steps, warmup, length, main) in TABLE14.items():
        if cfg.recipe == "v2":
            # D22* (ours): with a v2 model all tasks have no dropout, like these models. The
            # official README has Table 14's values but for RACE: 1e-5 and no dropout, else it
            # diverges
            dropout = 0.0
            lr = 1e-5 if name == "RACE" else lr
        recipe = Recipe(
            lr,
            batch,
            steps=steps,
            warmup=warmup / steps,
            dropout=dropout,
            length=min(length, cfg.positions),
            main=main,
        )
        if cfg.recipe == "demo":
            recipe = dataclasses.replace(recipe, **DEMO_RECIPE)
        if cfg.dry_run:
            recipe = dataclasses.replace(recipe, steps=2)
        result[name] = recipe
    return result


def task_model(task, cfg):
    """The model for fine-tuning a task."""
    shape = dataclasses.replace(cfg, dropout=task.recipe.dropout)
    if task.kind == "span":
        return SpanModel(shape) if task.name == "SQuAD1.1" else AnswerModel(shape)
    return (MultipleChoice if task.kind == "choice" else Classifier)(shape, task.outputs)


def begin_task(task, source, cfg, number, device):
    """The model of run `number` of a task on a device, its Tuning, a line on its weights, and the
    number of trained positions."""
    seed = seed_of(cfg.seed, "fine-tuning", task.name, number)
    seed_everything(seed, "weights")
    model = task_model(task, cfg)
    length = task.recipe.length
    note = start_from(model, source, task.name) + extend_positions(model, source.trained, length)
    model = move(model, device)
    optimizer = make_optimizer(model, cfg.weight_decay, adapt=False)
    # D23* (silent): whole epochs are shuffled, with examples of similar length together. The
    # official code shuffles a buffer of 100 examples
    # D24* (silent): evaluations are evenly spaced. The official code evaluates every 100 steps
    # The model with the best score on dev counts (Sec. 4.2.2)
    tuning = Tuning(
        task, optimizer, schedule, (seed,), cfg.accumulate, task.evaluation_steps(cfg.eval_every))
    return model, tuning, note, max(source.trained or cfg.positions, length)


def average_predictions(kind, several):
    """Sec. 4.9: logarithms of mean probabilities, or mean values of a regression. For SQuAD the
    mean probability of each span, and the mean odds of "no answer".

    >>> members = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]]).log()
    >>> [round(value, 2) for value in average_predictions("class", [*members])[0].exp().tolist()]
    [0.55, 0.45]
    """
    if kind == "value":
        return torch.stack(several).mean(0)
    if kind != "span":
        return torch.stack(several).softmax(-1).mean(0).log()
    # D25 (ours): a span that a model does not list has probability 0 there. The paper averages
    # spans "that have multiple probabilities": a span of one model alone could beat all others
    result = squad.Predictions({}, {}, {})
    for key in several[0]["nbest"]:
        scores = Counter()
        for member in several:
            for span in member["nbest"][key]:
                scores[span["text"]] += span["probability"] / len(several)
        ranked = scores.most_common()
        result.texts[key] = ranked[0][0]
        result.nbest[key] = [{"text": text, "probability": value} for text, value in ranked]
        result.null_odds[key] = statistics.mean(member["null_odds"][key] for member in several)
    return result

# --- the run --------------
# The paper ends here. The functions below need common/ and data/.


PRESETS["demo"] = dict(  # minutes on two cores. lr: 4.4e-3 for batch 32
    vocab_size=1000, layers=2, hidden=64, heads=2, ffn=128, embedding=60,
    positions=128, init_std=0.1, dropout=0.0,
    length=64, steps=10000, batch=32, lr=0.05, warmup=0.1,
    recipe="demo", eval_every=200)
PRESETS["dry_run"] = dict(steps=2, dev_examples=32, train_examples=64, runs=1)
BASELINE_SEQUENCES = 200_000  # the most that the first-token baseline learns from

# Weights to start from

# settings: the model's. weights: by our names. task: the task whose head is included, or "".
# trained: the number of trained positions, or None for all
Pretrained = namedtuple("Pretrained", "path settings weights task trained")
SHAPE = ("vocab_size", "hidden", "heads", "ffn", "embedding", "mapped", "share", "groups",
         "positions")  # taken from --init
# taken from --init, unless a flag differs
# D26 (conflict): --activation may differ, since configurations of v1 models in Hugging Face folders
# say "gelu", though the official code trained them with the tanh form (gelu_new)
OVERRIDABLE = ("layers", "activation", "init_std", "dropout", "recipe")
HEADS = ("head", "span", "answer")


def load_pretrained(cfg, command):
    """The model of --init as Pretrained: a run folder, a task's folder in one, or a Hugging Face
    folder. None without --init."""
    if not cfg.init:
        return None
    config = read_json(Path(cfg.init) / "config.json", "name a run or a Hugging Face folder")
    if "program" in config:  # a run of ours
        record, owned = read_run(cfg.init, cfg, command.program, ("pretrain", "finetune"))
        return Pretrained(cfg.init, record["settings"], owned["model"], record.get("task", ""),
                          record.get("trained"))
    try:
        settings = hf_models.albert_settings(config)
        v2 = not settings["dropout"] and settings["activation"] == "gelu_new"
        settings["recipe"] = config.get("recipe", "v2" if v2 else "table14")
        weights, task = hf_models.read_albert(cfg.init, config, settings["groups"])
    except ValueError as error:
        raise UserError(f"{cfg.init}: {error}") from None
    return Pretrained(cfg.init, settings, weights, task, None)


def resolve(cfg, command, ranks, source):
    """Fill in the settings that follow from the model of --init, the action and the number of
    processes. UserError if a flag contradicts the model, if no model has this shape, or if inputs
    are too long. complete() fills in what follows from the data."""
    changes = {}
    if source:
        changes |= settings_from(cfg, command, source.settings, source.path, SHAPE, OVERRIDABLE)
        changes["tokenizer"] = cfg.tokenizer or source.path
    if command.action == "pretrain":
        accumulate = fit_accumulate(cfg, command, ranks)
        changes["accumulate"] = accumulate
        if cfg.dry_run and "batch" not in command.given:
            changes["batch"] = min(cfg.batch, 8 * accumulate)
    cfg = dataclasses.replace(cfg, **changes)
    try:
        check_shape(cfg)
    except ValueError as error:
        raise UserError(f"{cfg.init or 'the model'}: {error}") from None
    check_length(cfg, command)
    if source:
        check_weights(cfg, source)
    return cfg


def check_weights(cfg, source):
    """UserError if the encoder of a Pretrained lacks weights, or has others."""
    with torch.device("meta"):
        encoder = Encoder(cfg)
    names = {f"encoder.{name}" for name in encoder.state_dict()}
    faults = sorted(names ^ {name for name in source.weights if name.startswith("encoder.")})
    if faults:
        raise UserError(
            f"{source.path}: {len(faults)} of its weights are missing or unexpected, such as "
            f"{faults[0]}; --layers may only differ if the layers share all weights")


def check_length(cfg, command):
    """UserError if inputs are longer than the model's positions."""
    flag = "length" if command.action in ("pretrain", "describe") else "finetune_length"
    longest = getattr(cfg, flag) or 0
    if longest > cfg.positions:
        fix = f"choose a --{flag} of at most {cfg.positions}"
        if not cfg.init:
            fix += f", or --positions {longest}"
        raise UserError(f"inputs of {longest} tokens: the model has {cfg.positions} positions; "
                        f"{fix}")


def complete(cfg, source, data):
    """The settings with the paths of the data and the vocabulary size, the tokenizer's or --init's
    embedding's."""
    size = data.tokenizer.vocab_size
    if source:
        size = len(source.weights["encoder.token_embedding.weight"])
        # a released model may have up to 127 tokens more than its tokenizer
        if not size - 128 < data.tokenizer.vocab_size <= size:
            raise UserError(f"{data.tokenizer.path}: the model of --init has {size} tokens; give "
                            "its own vocabulary with --tokenizer")
    return dataclasses.replace(cfg, **data.flags, vocab_size=size)


def start_from(model, source, task=""):
    """Copy the weights of a Pretrained into a model. Returns a line about it. UserError if a size
    of the encoder differs. The head is loaded if it is this task's and fits."""
    weights = source.weights
    if source.task not in ("", task):
        weights = {name: value for name, value in weights.items()
                   if not name.startswith(HEADS)}
    return load_weights(model, weights, source.path, HEADS)


@torch.no_grad()
def extend_positions(model, trained, length):
    """Copy the rows of the first `trained` positions (None: all) to those after them, up to
    `length`. Returns a line about it, or "" if there are none."""
    # D27 (ours): new position embeddings are repeated copies, as in Longformer (Beltagy et al.
    # 2020). Untrained ones slow the training on longer sequences: after 3,000 demo steps of 16
    # tokens and 1,000 of 128 the held-out loss is 4.46, 4.52, 4.48 with copies and 4.91, 4.90, 4.93
    # without
    # D28 (ours): --init with another --length trains in stages, such as short sequences first. The
    # paper trains in one stage, on sequences of 512 tokens, of which 10% are shorter
    trained = trained or length
    if trained >= length:
        return ""
    rows = model.encoder.position_embedding.weight
    rows[trained:length] = rows[torch.arange(trained, length) % trained]
    return f"; positions {trained} to {length - 1} are copies of 0 to {trained - 1}"


# Actions


def pretrain(cfg, command):
    """Pre-train (Sec. 4.1)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        # D29* (silent): in a vocabulary made here the released one's symbols are not extra tokens,
        # and no token has a digit before a comma (data/text.py)
        # D30* (silent): the lines of a document are joined and split into sentences, and a document
        # ends after 100,000 characters (data/text.py)
        data = open_data(cfg, command, ranks, text=True)
        cfg = complete(cfg, source, data)
        check_pairs(data, cfg)
        before = (source.trained or cfg.positions) if source else 0
        run = Run(cfg, command, ranks, data, trained=max(before, cfg.length))
        if not run.result:
            run.finish(pretrain_language_model(source, data, cfg, run))
        print_scores(run, cfg)


def pretrain_language_model(source, data, cfg, run):
    """Build, train and evaluate the model. Returns its scores and their baselines."""
    seed_everything(cfg.seed, "pretrain", "weights")
    model = LanguageModel(cfg)
    order_head = nn.ModuleList([model.pooler, model.order])
    order_head.requires_grad_(cfg.objective != "none")  # D19
    start = "from scratch"
    if source:
        start = start_from(model, source) + extend_positions(model, source.trained, cfg.length)
    print0(run.ranks, f"{run.start_line(start)}; {count_parameters(model):,} parameters, "
                      f"{cfg.steps} steps")
    model.to(run.ranks.device)
    train_language_model(model, data, cfg, run)
    result = evaluate_language_model(model, data, cfg, run.ranks)
    baselines = {"mlm_accuracy": data.dev.commonest()}
    if cfg.objective != "none":
        trained = min(cfg.steps * cfg.batch, BASELINE_SEQUENCES)
        evaluated = math.ceil(cfg.dev_examples / EVALUATION_BATCH) * EVALUATION_BATCH
        baselines |= first_token_baseline(
            data.train, data.dev, trained, evaluated, cfg.length - 3, SHORT, cfg.vocab_size)
    return {**result, "baselines": baselines}


def check_pairs(data, cfg):
    """UserError if the objective needs sequences with an order and there are none."""
    segments = cut_segments(data.train, cfg, 0, 8192)
    second = segments.length_other if cfg.objective == "nsp" else segments.length_b
    if cfg.objective != "none" and not second.any():
        raise UserError(
            f"{cfg.corpus[0]}: no two sentences of a document (nsp: of two) fit into --length "
            f"{cfg.length}; raise it, or write one sentence per line and blank lines between "
            "documents, or use --objective none")


def print_scores(run, cfg):
    """Print the result of pretrain_language_model."""
    ranks = run.ranks
    result = run.result
    print0(ranks, f"held-out text: MLM loss {result['mlm_loss']:.4f} nats at --length "
                  f"{cfg.length}; losses at other lengths do not compare")
    for name, baseline in result["baselines"].items():
        task = name.removesuffix("_accuracy")
        kind = "majority" if task == "mlm" else "first-token"
        if result[name] is not None:
            print0(ranks, f"{task} accuracy {result[name]:.1%} of {result[f'{task}_labels']} "
                          f"({kind} baseline {baseline:.1%})")
    trained = {name: baseline for name, baseline in result["baselines"].items()
               if name in ("mlm_accuracy", f"{cfg.objective}_accuracy")}
    print_near_baseline(ranks, result, trained)
    print_after_training(run, cfg, "checkpoint.pt")


def method():
    """What common/finetune.py needs from this paper."""
    return Method(
        recipes, load_pretrained, begin_task, load_task, keep_predictions, MEANS,
        {"RACE": RaceTask}, from_mnli=("RTE", "STS-B", "MRPC"))  # Sec. 4.9, footnote 4


def load_task(task, source, cfg):
    """The model of a fine-tuned source."""
    model = task_model(task, cfg)
    hf_models.check_complete(model, source.weights, source.path)
    print(start_from(model, source, task.name))
    return model


def keep_predictions(task, outputs, folder):
    """Keep the predictions of a job for --ensemble."""
    if task.kind == "span":
        outputs = {split: task.answers(each)._asdict() for split, each in outputs.items()}
    save_file(folder / "predictions.pt", {"hashes": example_hashes(task, outputs), **outputs})


def finetune(cfg, command):
    """Fine-tune tasks, --runs times each, or ensemble. RTE, STS-B and MRPC start from MNLI's best
    run, if any (Sec. 4.9, footnote 4)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        names = parse_tasks(command.value, TABLE14, cfg)
        if cfg.ensemble:
            check_ensemble(cfg, command, names)
            cfg = dataclasses.replace(cfg, tokenizer=f"{cfg.ensemble[0]}/{names[0]}")
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        data = open_data(cfg, command, ranks, names)
        cfg = complete(cfg, source, data)
        run = Run(cfg, command, ranks, data)
        print0(ranks, f"fine-tuning: recipe {cfg.recipe}")
        if not run.result:
            if cfg.ensemble:
                run.finish(average_runs(names, data, cfg, run))
            else:
                run.finish(finetune_tasks(method(), names, source, data, cfg, run))
        print_summary(run, cfg)


def average_runs(names, data, cfg, run):
    """The summary of the ensembles of the tasks."""

    jobs = {f"{name}-0": name for name in names}

    def work(job):
        task = open_task(jobs[job], cfg, data.tokenizer, recipes(cfg), {"RACE": RaceTask})
        return ensemble_job(task, cfg, run.folder / "jobs" / job)

    results = run.each("jobs", jobs, work)
    return on_main(run.ranks, summarise, run.folder, [*results.values()], MEANS)


def check_ensemble(cfg, command, names):
    """UserError if a run of --ensemble lacks predictions for a task, has other classes than the
    first, or if --init is given too."""
    if cfg.init:
        raise UserError("--ensemble trains nothing; leave --init out")
    first = cfg.ensemble[0]
    for path in cfg.ensemble:
        for name in names:
            existing(f"{path}/{name}/predictions.pt",
                     f"--ensemble takes runs of --finetune {command.value}")
            one, other = [read_spec(f"{run}/{name}") for run in (first, path)]  # None: no own task
            if one != other:
                raise UserError(
                    f"--ensemble {first} {path}: their training files of {name} differ, "
                    f"{one.description!r} and {other.description!r}; fine-tune both on one file")


def example_hashes(task, splits):
    """{split: a hash of its examples}, to compare the data of an ensemble's members."""
    return {split: seed_of(task.examples[split]) for split in splits}


def ensemble_job(task, cfg, folder):
    """The mean prediction of the runs of --ensemble for a task (Sec. 4.9)."""
    # D31 (silent): the user names the members of an ensemble. The paper chooses them by dev scores
    # (Sec. 4.9), but does not say how
    members = []
    hashes = example_hashes(task, [split for split in task.splits if split != "train"])
    for path in cfg.ensemble:
        predictions = load_file(Path(path) / task.name / "predictions.pt")
        made_for = predictions.get("hashes", {})
        differ = [split for split, each in hashes.items()
                  if split in predictions and made_for.get(split) != each]
        if differ:
            raise UserError(
                f"--ensemble {path}: its predictions on {task.name} are for other data "
                f"({', '.join(differ)}); give the data that it has read, or fine-tune it again")
        members.append(predictions)
    splits = set(task.splits).intersection(*members)  # a member may lack a test split
    outputs = {split: average_predictions(task.kind, [member[split] for member in members])
               for split in task.splits if split in splits}
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "job": folder.name,
        "task": task.name,
        "diverged": None,
        "metrics": write_outputs(task, outputs, folder),
        **task.context(),
    }


def predict(cfg, command):
    """Predict a file of the user with RUN/TASK of --init."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        tokenizer = open_tokenizer(cfg.tokenizer, cfg.init)
        predict_file(method(), source, tokenizer, cfg, command, ranks)


def export(cfg, command):
    """Write the model of --init as a Hugging Face folder."""
    source = load_pretrained(cfg, command)
    cfg = resolve(cfg, command, None, source)
    start_from(LanguageModel(cfg), source)  # a check
    config = read_json(Path(cfg.init) / "config.json")
    length = config.get("settings", config).get("finetune_length")  # for --predict
    cfg = dataclasses.replace(cfg, finetune_length=length)
    tokenizer = open_tokenizer(cfg.tokenizer, cfg.init)
    own = read_spec(cfg.init)
    print(hf_models.write_albert(
        command.value, source.weights, source.task, cfg, max(blocks(cfg)), tokenizer,
        longest_input(source, cfg, own), own))


def longest_input(source, cfg, own):
    """Tokens of the longest input of a Pretrained's training: its task's, or the pre-training's.
    own: the OwnSpec of a user's own task, or None."""
    recipe = recipes(cfg).get("SST-2" if own else source.task)
    if recipe:
        return cfg.finetune_length or recipe.length
    return source.trained or cfg.positions


def describe(cfg, command):
    """The model and the cost of its training as JSON."""
    cfg = resolve(cfg, command, None, load_pretrained(cfg, command))
    by_part = count_parts(cfg)
    total = sum(by_part.values())
    forward = flops(cfg)
    activations = cfg.layers * [layer_activations(cfg.length, cfg.hidden, cfg.ffn)]
    logits = masked_count(cfg.length) * cfg.vocab_size
    result = {
        "parameters": total,
        "parts": by_part,
        "flops": forward,
        "flops_counting": flops.__doc__,
        **training_cost(cfg, total, forward, activations, logits, cfg.steps, cfg.batch),
    }
    print(json.dumps(result, indent=2))


# Command line

COMMON = ("run", "model", "recipe")  # groups of settings
ACTIONS = {  # the function, its help, and the groups of settings that it reads
    "pretrain": (
        pretrain, "pre-train with masked words and sentence order (Sec. 3, 4.1)",
        (*COMMON, "execution", "text", "pre-training")),
    "finetune": (
        finetune, "fine-tune the model of --init, or average runs: CoLA,RACE,... | glue | squad | "
        "a folder of your own with train and dev files",
        (*COMMON, "execution", "tasks", "fine-tuning"), "TASKS"),
    "predict": (
        predict, "predict a file of your own (TSV, SQuAD or RACE JSON) with RUN/TASK of --init, or "
        "with the folder that --export wrote of it", (*COMMON, "execution", "fine-tuning"), "FILE"),
    "export": (export, "write the model of --init as a Hugging Face folder", COMMON, "DIR"),
    "describe": (
        describe, "parameters, FLOPs, memory, cards and days as JSON",
        (*COMMON, "execution", "text", "pre-training")),
}


def check(cfg, command):
    """UserError if --init is missing."""
    reads_weights = command.action in ("predict", "export") or (
        command.action == "finetune" and not cfg.ensemble)
    if reads_weights and not cfg.init:
        raise UserError(f"--{command.action} needs --init, a model")
    if command.action == "describe" and cfg.batch % cfg.accumulate:
        raise UserError(f"--batch {cfg.batch}: must be a multiple of --accumulate {cfg.accumulate}")


def main(argv=None):
    """Run one action."""
    return cli.start(Config, PRESETS, ACTIONS, __doc__, check, argv)


if __name__ == "__main__":
    if "cli" not in globals():
        print("albert.py alone can be imported: model, masks, sentence order and optimizer; "
              "its commands need common/ and data/ of its repository", file=sys.stderr)
        sys.exit(2)
    cli.run(main)
