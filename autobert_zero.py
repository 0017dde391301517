"""AutoBERT-Zero: Evolving BERT Backbone from Scratch (Gao, Xu, Shi, Ren, Yu, Liang, Jiang, Li; AAAI 2022,
arXiv:2107.07445v3).

A search finds a language model's backbone: each layer a lightweight convolution or an attention of its own, any graph
of ten operations on two to four projections of its input. An evolution whose mutations follow what the operations
scored so far (OP-NAS) proposes candidates; a super-net that remembers weights (BIWS) makes each cheap to judge.

Run:     python autobert_zero.py --search --dry_run     two steps of every phase, under a minute
         torchrun --nproc_per_node=2 autobert_zero.py --search    on demo data, five minutes on two CPU cores
         torchrun --nproc_per_node=8 autobert_zero.py --search --preset base --corpus TEXTS --glue GLUE  as in the paper
Tour:    the map row by row: what a layer can be, how it runs and shares weights, the search. Skip at first
         in_order, the text form, find_softmax_attention, the edits and fine-tuning.
Map:     Table 1 -> OPS, infer, run_op    Sec. 3.1 -> sample_arch, grow       Fig. 7 -> PUBLISHED
         Eq. 1, 2 -> AttentionMixer       Sec. 3.2 -> SuperNet, propose       Eq. 3 -> ucb
         Alg. 1 -> search                 App. D.1 -> evaluate_candidate      App. D.2 -> pretrain, finetune
         Fig. 5, 6, 8, Table 7 -> tests/claims
Differs: D1 softsign with |x| · D2 scale by d_h · D3 no scalar nodes · D4 pairwise cosine, euclidean ·
         D5 padding hidden · D6 V alone in layers 10, 12 · D7 one edit a mutation · D8 untried operations ·
         D9 Eq. 3 in deviations, 10% uniform · D10 the best candidate writes · D11 initial rounds ·
         D12 diverged: score 0, no parent · D13 SentencePiece · D14 other depths, conv-only · D15 MLM as proxy task ·
         D16 half change a kind · D17 masks by batch · D18 kernels begin random · D19 mean of tasks, none twice ·
         D20 best on dev · D21 N by position · D22 tokens mix · D23 a third attentions · D24 copied attentions ·
         D25 dropout on n x n softmax · D26 latency on random ids · D27 no Fig. 9 to 11 · D28 segments anywhere ·
         D29 paths up to 12 · D30 one FFN · D31 diverged: the worst in Eq. 3 · D32 negative metrics: 0 ·
         D33 N_i by occurrence · D34 fixed rounds · D35 delete, rewire by chance · D36 best look by 2,000 rows ·
         D37 finalists · D38 random attentions by their gain · D39 short rows · D40 warm start
"""
import ast
import copy
import dataclasses
import functools
import itertools
import json
import math
import random
import re
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

# B batch, T tokens, H hidden, N heads, D head dim, V vocab, E embedding, M masked places, I graph inputs, K kernel

# --- configuration --------


@dataclasses.dataclass
class Config:
    """Every knob. Its comment is the help text and ends in the range; a preset overrides the default, a flag both."""
    preset: str = "demo"  # demo (minutes on two cores) | small | base | large (Table 6)
    out: str = ""  # run folder; default runs/autobert_zero-ACTION-PRESET
    restart: bool = False  # begin anew in the run folder
    seed: int = 0  # of everything that is drawn by chance [0, 4294967295]
    device: str = "auto"  # auto | cpu | cuda
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs that have it
    dry_run: bool = False  # two real steps of every phase
    # data
    corpus: tuple[str, ...] = ()  # text files or folders; default: demo text
    glue: str = ""  # folder of the GLUE tasks, official layout; default: demo tasks
    squad: str = ""  # folder of train-v1.1.json, ...; default: demo questions
    tokenizer: str = ""  # vocab.txt (the paper's kind) or spiece.model; default: a trained SentencePiece (D13)
    vocab_size: int = 30000  # pieces, App. D.2 [>= 1]
    held_out: float = 0.05  # share of the documents held out, at most 1,000; from 1 on how many [> 0]
    tasks: str = "CoLA,MRPC,STS-B,SST-2,QQP,MNLI,QNLI,RTE"  # proxy tasks of the search; MLM: held-out text (D15)
    train_rows: int = 0  # training rows of each task; 0: all
    # model
    arch: str = "autobert-zero"  # autobert-zero | bert | a text form | a best.json; with /att-only, /conv-only: Table 5
    layers: int = 12  # L [>= 1]
    hidden: int = 768  # d [>= 1]
    heads: int = 12  # A [>= 1]
    ffn: int = 3072  # d_ff [>= 1]
    embedding: int = 0  # width of word embeddings; 0: hidden; 128 gives the 13M of small
    dropout: float = 0.1  # hidden and attention dropout, Table 6 [0, 1)
    init_std: float = 0.02  # of the initial weights; 0.02 suits widths near 768 [> 0]
    # pre-training, in --search of a candidate
    length: int = 128  # tokens a sequence, special ones included [8, 512]
    steps: int = 40000  # updates, Sec. 4.1; 0: 40 passes over the corpus, App. D.2, --pretrain only
    batch: int = 160  # sequences an update, App. D.1 [>= 1]
    lr: float = 2e-4  # peak learning rate, App. D.1 [> 0]
    warmup: float = 0.02  # share of the steps, App. D.1 [0, 1]
    short: float = 0.0  # share of the steps, the first, in short rows: a quarter of --length, four times as many [0, 1]
    weight_decay: float = 0.01  # AdamW's, in fine-tuning too (App. D.1)
    accumulate: int = 1  # parts of a batch; in --pretrain, if not given, raised to a multiple of the processes [>= 1]
    compile: bool = False  # torch.compile, in pre-training
    recompute: bool = False  # gradient checkpointing: half the memory, a third more time
    init: str = ""  # run folder to start from: of a search (its super-net), a pre-training, a fine-tuning's TASK
    save_every: int = 1000  # steps between checkpoints and, in --pretrain, looks at held-out text [>= 1]
    save_minutes: float = 0  # minutes between checkpoints too; 0: none
    # fine-tuning; left out: as in recipes()
    finetune_lr: float | None = None  # peak learning rate [> 0]
    finetune_batch: int | None = None  # rows an update [>= 1]
    finetune_epochs: int | None = None  # passes over the rows [>= 1]
    finetune_warmup: float | None = None  # share of the steps [0, 1]
    finetune_length: int | None = None  # tokens of a row; else --length, of SQuAD 384 [8, 512]
    eval_every: int = 100  # steps between looks at dev, App. D.2; 0: up to 20 looks in all
    runs: int = 1  # seeds of each fine-tuning; the median counts [>= 1]
    grid: bool = False  # fine-tune at every setting of App. D.2, the best one counts
    # search
    strategy: Literal["op-nas", "evolution", "random"] = "op-nas"  # evolution: mutations are uniform
    population: int = 100  # initial random candidates, Sec. 4.1 [>= 1]
    rounds: int = 27  # after the population; D34: fixed, Alg. 1 goes to convergence; 100 + 27 x 25 = 775 candidates
    parents: int = 5  # K of Alg. 1, Sec. 4.1 [>= 1]
    children: int = 5  # of each parent, Sec. 4.1 [>= 1]
    alpha: float = 0.01  # exploration in Eq. 3; c of App. D.1 [0, 1000]
    no_weight_sharing: bool = False  # candidates write nothing back to the super-net
    finalists: int = 0  # of the best candidates, trained alone and scored again (D37); 0: none, as in the paper [>= 0]
    finalist_times: int = 1  # a finalist's updates, in a candidate's --steps [>= 1]
    warm_times: int = 0  # updates of the warm start, in a candidate's --steps (D40); 0: no warm start [>= 0]
    given = frozenset()  # no knobs: the flags that were given, the file's name, what its run folders hold
    program = "autobert_zero"
    models = "init", "tokenizer"  # flags that name what is read beside the data
    writes = ("round-*", "warm-start", "by-hand", "finalists", "CoLA", "MRPC", "STS-B", "SST-2", "QQP", "MNLI", "QNLI",
              "RTE", "WNLI", "SQuAD?.?")


PRESETS = {
    "demo": dict(
        vocab_size=1000, tasks="MLM,CoLA,RTE", layers=4, hidden=64, heads=4, ffn=128, dropout=0.0, init_std=0.07,
        length=64, batch=32, lr=2e-3, warmup=0.1, short=0.5, finetune_lr=1e-3, finetune_batch=32, finetune_epochs=2,
        finetune_warmup=0.1,
        search=dict(batch=8, lr=3e-3, steps=500, train_rows=1600, finetune_batch=16, population=8, rounds=3, parents=2,
                    children=2, finalists=2, finalist_times=2, no_weight_sharing=True, warm_times=3),
        pretrain=dict(steps=3000, save_every=500), finetune=dict(runs=3, eval_every=0)),
    "small": dict(hidden=256, heads=4, ffn=1024, pretrain=dict(lr=1e-4, warmup=0.01, batch=320, steps=0),
                  finetune=dict(runs=3)),
    "base": dict(pretrain=dict(lr=1e-4, warmup=0.01, steps=0)),
    "large": dict(layers=24, hidden=1024, heads=16, ffn=4096, pretrain=dict(lr=1e-4, warmup=0.02, batch=80, steps=0)),
    "dry_run": dict(steps=2, save_every=1, train_rows=64, finetune_epochs=1, eval_every=1, runs=1, grid=False,
                    population=2, rounds=1, parents=1, children=1, finalists=2, finalist_times=1, warm_times=1),
}
EPOCHS = 40  # of --pretrain with --steps 0, App. D.2
CLIP = 1.0  # largest gradient norm, BERT's
MASK_RATE = 0.15  # of the tokens, as in BERT
MAX_PATH = 12  # operations of a searched attention; D29: the paper sets no limit, Figure 7's longest has 11
SHARPNESS = 4  # of the priorities (D9): a pilot of the simulation in tests/claims gained nothing with 1
LOG_EVERY = 50  # steps between lines of the log

# --- search space ---------
# An architecture is a tuple of layers: an int, the kernel size of a convolution, or a graph, a tuple of operations in
# order of evaluation, each ("name", operand[, operand]). Operands 0..3 are Q, K, V, P, operand 4 + i is operation i;
# the last is the output. A shape is "nd", tokens x head dim, or "dn", "nn", "dd".

KERNELS = (3, 5, 7, 9, 15, 31, 65)  # Sec. 3.1, Inter-layer (1)
INPUTS = ("Q", "K", "V", "P")  # Sec. 3.1, Intra-layer (1)
UNARY = ("neg", "transpose", "scale", "softmax", "logsigmoid", "softsign")  # Table 1
PRODUCTS = ("matmul", "cosine", "euclidean")  # Table 1, those that sum over an axis
BINARY = ("add", *PRODUCTS)  # Table 1
OPS = UNARY + BINARY  # D3: on matrices alone, no scalar nodes (Sec. 3.1); these reach all of Figure 7


def infer(op, *shapes):
    """Shape of op's result from its operands' shapes; None where it is not legal on them."""
    first, second = shapes[0], shapes[-1]
    if op == "transpose":
        return first[::-1]
    if op in UNARY:
        return first
    if op == "add":
        return first if first == second else None
    if op == "matmul":
        second = second[::-1]
    # D4: cosine and euclidean hold rows against rows, n x d and m x d -> n x m: so they can score
    return first[0] + second[0] if first[1] == second[1] else None


def infer_graph(graph):
    """Shapes of Q, K, V, P and all operations; None where one is illegal."""
    shapes = ["nd"] * len(INPUTS)
    for op, *operands in graph:
        shapes.append(infer(op, *(shapes[operand] for operand in operands)))
        if shapes[-1] is None:
            return None
    return shapes


def in_order(graph, output, names):
    """The operations that the operand `output` needs, inputs renamed by `names`: in post-order from it, equal parts
    merged, of the operands of add that of fewer operations first, of as many that whose operations sort first."""

    @functools.cache
    def form(operand):
        """(operations, number of the last of them) that make an operand."""
        if operand < len(INPUTS):
            return (), names[operand]
        op, *operands = graph[operand - len(INPUTS)]
        parts, merged, reads = [form(each) for each in operands], [], []
        if op == "add":
            parts.sort(key=lambda part: (len(part[0]), part))
        for operations, result in parts:
            numbers = list(range(len(INPUTS)))  # where each operand of the part stands in `merged`
            for name, *others in operations:
                operation = (name, *[numbers[other] for other in others])
                if operation not in merged:
                    merged.append(operation)
                numbers.append(len(INPUTS) + merged.index(operation))
            reads.append(numbers[result])
        return (*merged, (op, *reads)), len(INPUTS) + len(merged)

    return form(output)[0]


def canonical(graph):
    """The form by which graphs are compared, without operations that the last one does not need. Where the operands of
    an add stand is a property of the graph, not of the names of its inputs: of all namings that with the smallest form
    decides, so that Q + neg(K) and neg(Q) + K have the same operations at the same positions."""
    graph = in_order(graph, len(INPUTS) + len(graph) - 1, range(len(INPUTS)))
    if not any(op == "add" for op, *_ in graph):
        return graph
    forms = []
    for names in itertools.permutations(used_inputs(graph)):
        form = in_order(graph, len(INPUTS) + len(graph) - 1, {name: number for number, name in enumerate(names)})
        back = dict(enumerate(names))
        forms.append((form, tuple((op, *[back.get(each, each) for each in operands]) for op, *operands in form)))
    return min(forms)[1]


def used_inputs(graph):
    """Numbers of the inputs that a graph reads, sorted."""
    return sorted({operand for _, *operands in graph for operand in operands if operand < len(INPUTS)})


def why_illegal(graph, max_path=None):
    """None for a legal graph, else the reason. With max_path as a search wants it: no longer than that, and D22: a
    mixer of tokens."""
    shapes = infer_graph(graph)
    if shapes is None:
        return "an operation's operands do not fit"
    if shapes[-1] != "nd" or not graph:
        return "the output is not tokens x head dim" if graph else "it does not end in an operation"
    if len(used_inputs(graph)) < 2:
        return "an attention reads 2 to 4 of Q, K, V, P"
    if max_path and len(graph) > max_path:
        return f"{len(graph)} operations, more than {max_path}"
    over_tokens = [op in PRODUCTS or (op, shape) == ("softmax", "dn")
                   for (op, *_), shape in zip(graph, shapes[len(INPUTS):])]
    if max_path and not any(over_tokens):
        return "no token sees another"
    return None


# The text form: layers joined by " | ", a convolution conv65, an attention a formula that names what is used twice:
# "a = logsigmoid(Q); softmax(scale(a @ K.T)) @ a".

FUNCTIONS = {op: {"cosine": "cos", "euclidean": "dist"}.get(op, op) for op in OPS
             if op not in ("transpose", "add", "matmul")}


def formula(graph):
    """The text form of a graph."""
    reads = [operand for _, *operands in graph for operand in operands]
    lines, names, trees = [], iter("abcdefghijklmnorstuvwxyz"), [ast.Name(name) for name in INPUTS]
    for index, (op, *operands) in enumerate(graph, len(INPUTS)):
        parts = [trees[operand] for operand in operands]
        if op == "transpose":
            tree = ast.Attribute(*parts, "T")
        elif op in ("add", "matmul"):
            tree = ast.BinOp(parts[0], ast.Add() if op == "add" else ast.MatMult(), parts[1])
        else:
            tree = ast.Call(ast.Name(FUNCTIONS[op]), parts, [])
        if reads.count(index) > 1:
            name = next(names, None) or f"x{index}"
            lines.append(f"{name} = {ast.unparse(tree)}")
            tree = ast.Name(name)
        trees.append(tree)
    return "; ".join([*lines, ast.unparse(trees[-1])])


def parse_formula(text):
    """The canonical graph of a formula; ValueError says what is wrong."""
    graph, names = [], {name: index for index, name in enumerate(INPUTS)}
    calls = {name: op for op, name in FUNCTIONS.items()}

    def read(tree):
        """The operand number of an expression, appended to graph."""
        match tree:
            case ast.Name(name) if name in names:
                return names[name]
            case ast.BinOp(left, ast.Add() | ast.MatMult() as sign, right):
                op, *parts = "add" if isinstance(sign, ast.Add) else "matmul", left, right
            case ast.Attribute(value, "T"):
                op, *parts = "transpose", value
            case ast.UnaryOp(ast.USub(), operand):
                op, *parts = "neg", operand
            case ast.Call(ast.Name(name), parts, []) if name in calls and len(parts) == 1 + (calls[name] in BINARY):
                op = calls[name]
            case _:
                known = ", ".join(f"{name}(x{', y' * (op in BINARY)})" for name, op in calls.items())
                raise ValueError(f"{ast.unparse(tree)!r} is none of Q, K, V, P, x + y, x @ y, x.T, {known}")
        graph.append((op, *map(read, parts)))
        return len(INPUTS) + len(graph) - 1

    try:
        *bindings, output = [statement for part in text.split(";") for statement in ast.parse(part.strip()).body]
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r} is not a formula") from None
    for binding in bindings:
        match binding:
            case ast.Assign([ast.Name(name)], value) if name not in INPUTS:
                names[name] = read(value)
            case _:
                raise ValueError(f"{ast.unparse(binding)!r}: only other names than Q, K, V, P can be bound")
    result = read(output.value) if isinstance(output, ast.Expr) else 0
    graph = canonical(tuple(graph[:result - len(INPUTS) + 1])) if result >= len(INPUTS) else ()
    if reason := why_illegal(graph):
        raise ValueError(f"{text!r}: {reason}")
    return graph


def arch_text(arch):
    """The text form of an architecture, which parse_arch reads."""
    return " | ".join(f"conv{layer}" if isinstance(layer, int) else formula(layer) for layer in arch)


@functools.cache
def parse_arch(text):
    """The architecture of a text form; ValueError names the wrong layer."""
    layers = []
    for number, part in enumerate(text.split("|"), 1):
        kernel = re.fullmatch(r"conv(\d+)", part.strip())
        try:
            if kernel and int(kernel[1]) not in KERNELS:
                raise ValueError(f"kernel size {kernel[1]}; there are {', '.join(map(str, KERNELS))}")
            layers.append(int(kernel[1]) if kernel else parse_formula(part.strip()))
        except (ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"layer {number}: {str(error) or 'too long'}") from None
    return tuple(layers)


BERT_ATTENTION = "softmax(scale(Q @ K.T)) @ V"  # Eq. 2
PUBLISHED = " | ".join((  # Figure 7: six pairs of a convolution and an attention
    "conv65 | softmax(scale(Q @ neg(logsigmoid(neg(K)).T))) @ (K + Q)",
    "conv9 | softmax(scale(Q @ neg((logsigmoid(logsigmoid(Q) + (Q + K))).T))) @ Q",
    "conv3 | softmax(scale(Q @ neg(logsigmoid(K).T))) @ Q",
    "conv7 | softmax(scale(Q @ neg(logsigmoid(K).T))) @ Q",
    # D6: V alone in the last two, as in the text's formula; the figure draws an `add` of one operand
    "conv7 | softmax(scale(Q @ (scale(K) + (softsign(scale(softsign(K))) + V)).T)) @ V",
    "conv3 | softmax(scale(Q @ (scale(K) + V).T)) @ V",
))


def ablate(arch, kind):
    """Table 5: "att-only" replaces a convolution with the attention behind it (the last ones: before it), "conv-only"
    an attention with the convolution before it (D14: our choice). D27: AutoBERT-att, -conv and
    w/o-desc of Tables 2 and 3 are other searched networks, which only Figures 9 to 11 show."""
    wanted, direction = (int, -1) if kind == "conv-only" else (tuple, 1)
    kept = [index for index, layer in enumerate(arch) if isinstance(layer, wanted)]
    if not kept:
        raise ValueError(f"the architecture has no layer to build {kind} from")

    def nearest(index):
        """The layer for place `index`: in the direction first, then the nearest."""
        return arch[min(kept, key=lambda other: ((other - index) * direction < 0, abs(other - index)))]

    return tuple(map(nearest, range(len(arch))))


def stretch(arch, layers):
    """Pairs of layers at another depth: more of them repeat each right after itself (App. D.2, large), fewer (D14: the
    paper has none) are evenly spaced; an odd number drops the last layer."""
    pairs, count = len(arch) // 2, (layers + 1) // 2
    chosen = [index * pairs // count if count > pairs else round(index * (pairs - 1) / max(count - 1, 1))
              for index in range(count)]
    return tuple(layer for pair in chosen for layer in arch[2 * pair:2 * pair + 2])[:layers]


def read_best(path):
    """The text form of the architecture in a search's best.json; ValueError says why there is none."""
    try:
        best = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"no best.json of a search ({error})") from None
    if not isinstance(best, dict) or not isinstance(best.get("arch"), str):
        raise ValueError('the file holds no object with an "arch"')
    return best["arch"]


def read_arch(name, layers):
    """The architecture of --arch and --layers; ValueError says what is wrong."""
    text, kind = re.fullmatch("(.*?)(?:/(att-only|conv-only))?", name, re.DOTALL).groups()
    if text.endswith(".json"):
        text = read_best(text)
    arch = parse_arch({"autobert-zero": PUBLISHED, "bert": " | ".join([BERT_ATTENTION] * layers)}.get(text, text))
    arch = ablate(arch, kind) if kind else arch
    if text == "autobert-zero" or (len(arch), layers) == (12, 24):
        arch = stretch(arch, layers)
    if len(arch) != layers:
        raise ValueError(f"it has {len(arch)} layers; set --layers {len(arch)}")
    return arch

# --- model ----------------


def hide(x, axes, contracted, mask):
    """x (B, N, *, *) of shape `axes`, zero at padding where its axis `contracted` (0 or 1), over which a product will
    sum, is one of tokens; mask (B, T) True at real tokens, or None. D5: no sum sees padding; the paper has none."""
    if mask is None or axes[contracted] != "n":
        return x
    return torch.where(mask[:, None, :, None] if contracted == 0 else mask[:, None, None, :], x, 0.0)


SIMPLE = {"neg": torch.neg, "transpose": lambda x: x.transpose(-1, -2), "add": torch.add, "logsigmoid": F.logsigmoid,
          "softsign": F.softsign}  # D1: x / (1 + |x|), as arXiv's Table 1; x / (1 + x) of the AAAI print has a pole


def run_op(op, values, axes, mask, dropout):
    """An operation of Table 1 but scale on (B, N, *, *) tensors; axes: the shape of each ("nd", ...)."""
    if op in SIMPLE:
        return SIMPLE[op](*values)
    x, y = values[0], values[-1]
    if op == "softmax":
        weights = softmax_over_tokens(x, mask) if axes[0][1] == "n" else F.softmax(x, dim=-1)
        return F.dropout(weights, dropout) if axes[0] == "nn" else weights  # D25: on token-by-token weights alone
    if op == "matmul":
        return hide(x, axes[0], 1, mask) @ hide(y, axes[1], 0, mask)
    x = hide(x, axes[0], 1, mask)
    y = hide(y, axes[1], 1, mask)
    return cosine(x, y) if op == "cosine" else euclidean(x, y)


def softmax_over_tokens(x, mask):
    """Softmax of (B, N, *, T) over its last axis. D5: padding gets nothing; mask as in hide."""
    if mask is not None:
        x = x.masked_fill(~mask[:, None, None, :], float("-inf"))
    return F.softmax(x, dim=-1)


def cosine(x, y):
    """Cosine similarity of every row of x (B, N, n, d) with every row of y (B, N, m, d): (B, N, n, m)."""
    return F.normalize(x, dim=-1, eps=1e-6) @ F.normalize(y, dim=-1, eps=1e-6).transpose(-1, -2)


def euclidean(x, y):
    """Distance of every row of x (B, N, n, d) from every row of y (B, N, m, d): (B, N, n, m)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):  # differences of large numbers: never in bfloat16
        x = x.to(wide)
        y = y.to(wide)
        squares = x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * x @ y.transpose(-1, -2)
        return squares.clamp_min(1e-6).sqrt()  # no (B, N, T, T, D) buffer; a finite gradient at 0


def find_softmax_attention(graph):
    """Where a graph ends in the pattern softmax(scale(A @ X)) @ C with A, C "nd" and X "dn", and nothing else reads its
    parts: the operands A, X and C, and the set of its four operations; else None. Such an end runs as
    scaled_dot_product_attention, which never keeps the "nn"."""
    readers = [operand for _, *operands in graph for operand in operands]
    operand, chain = len(INPUTS) + len(graph) - 1, []
    for op in ("matmul", "softmax", "scale", "matmul"):  # from the output back, along the first operands
        node = graph[operand - len(INPUTS)] if operand >= len(INPUTS) else (None,)
        if node[0] != op or readers.count(operand) != bool(chain):  # nothing reads the output, one the others
            return None
        chain.append(operand)
        operand = node[1]
    (_, query, key), value, shapes = node, graph[-1][2], infer_graph(graph)
    return (query, key, value, set(chain)) if (shapes[query], shapes[key]) == ("nd", "dn") else None


def run_graph(graph, inputs, mask=None, dropout=0.0, plan=None):
    """The output (B, N, T, D) of a graph. inputs: {operand: (B, N, T, D)} of those it reads; mask (B, T) as in hide;
    plan: (infer_graph, find_softmax_attention) of the graph, where it runs often."""
    shapes, fused = plan or (infer_graph(graph), find_softmax_attention(graph))
    values, width = dict(inputs), next(iter(inputs.values())).shape[-1]
    for index, (op, *operands) in enumerate(graph, len(INPUTS)):
        if fused and index in fused[3]:
            continue
        if op == "scale":
            values[index] = values[operands[0]] / math.sqrt(width)  # D2: Eq. 2's d_h, not Table 1's d_x, the width of x
        else:
            axes = [shapes[each] for each in operands]
            values[index] = run_op(op, [values[each] for each in operands], axes, mask, dropout)
    if not fused:
        return values[len(shapes) - 1]
    query, key, value = values[fused[0]], values[fused[1]].transpose(-1, -2), values[fused[2]]
    visible = None if mask is None else mask[:, None, None, :]
    return F.scaled_dot_product_attention(query, key, hide(value, "nd", 0, mask), visible, dropout)


class AttentionMixer(nn.Module):
    """Projections of x, the graph in each head, W_O (Eq. 1)."""

    def __init__(self, graph, hidden, heads, dropout):
        super().__init__()
        self.graph, self.heads, self.dropout, self.reads = graph, heads, dropout, used_inputs(graph)
        self.plan = infer_graph(graph), find_softmax_attention(graph)
        self.inputs = nn.Linear(hidden, len(self.reads) * hidden)  # W_Q, W_K, W_V, W_P
        self.output = nn.Linear(hidden, hidden)  # W_O

    def forward(self, x, mask):
        B, T, H = x.shape
        stacked = self.inputs(x).view(B, T, len(self.reads), self.heads, H // self.heads)  # (B, T, I, N, D)
        inputs = dict(zip(self.reads, stacked.permute(2, 0, 3, 1, 4)))  # (I, B, N, T, D)
        mixed = run_graph(self.graph, inputs, mask, self.dropout if self.training else 0.0, self.plan)
        return self.output(mixed.transpose(1, 2).reshape(B, T, H))  # (B, N, T, D) -> (B, T, H)


BAND_FROM, BAND_TOKENS = 9, 1024  # smallest kernel, longest sequence that run as a band matrix


def band_matrix(weights, T):
    """(N, T, T): a product with it convolves T tokens with kernels (N, K). Of T = 3 and a kernel a b c it is

        b c .
        a b c
        . a b

    which are the columns 1 to 3 of a b c 0 0 0 a b c 0 0 0 a b c 0 0 0, read in rows of T + K - 1 = 5: a copy of the
    kernel and its T zeros are one longer than a row, so that each row begins one place further back in its copy."""
    N, K = weights.shape
    copies = F.pad(weights[:, None].expand(N, T, K), (0, T)).flatten(1)  # (N, T (K + T))
    rows = copies[:, :T * (T + K - 1)].view(N, T, T + K - 1)
    return rows[..., K // 2:K // 2 + T]


def light_conv(x, kernel):
    """Lightweight convolution (Wu et al. 2018) of x (B, T, H): softmax of kernel (N, K), one row for a head's channels.
    As a product with a band matrix its cost does not grow with K."""
    B, T, H = x.shape
    N, K = kernel.shape
    weights = F.softmax(kernel.float(), dim=-1).to(x.dtype)
    if K < BAND_FROM or T > BAND_TOKENS:
        weights = weights.repeat_interleave(H // N, dim=0)[:, None]  # (N, K) -> (H, 1, K)
        return F.conv1d(x.transpose(1, 2), weights, padding=K // 2, groups=H).transpose(1, 2)
    heads = x.view(B, T, N, H // N).permute(2, 1, 0, 3).reshape(N, T, -1)  # (B, T, H) -> (N, T, B D)
    mixed = band_matrix(weights, T) @ heads  # (N, T, B D)
    return mixed.view(N, T, B, H // N).permute(2, 1, 0, 3).reshape(B, T, H)


class ConvMixer(nn.Module):
    """Linear d -> 2d, GLU, lightweight convolution, linear d -> d (Sec. 3.1, Inter-layer (1)). In a search a transform
    adapts the centre of the shared 65-kernel (Sec. 3.2, BIWS (1))."""

    def __init__(self, size, hidden, heads, shared=False):
        super().__init__()
        self.inputs = nn.Linear(hidden, 2 * hidden)
        self.kernel = nn.Parameter(torch.randn(heads, size))  # D18: 0 would make all heads average alike
        self.transform = nn.Parameter(torch.eye(size)) if shared and size < max(KERNELS) else None
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x, mask):
        x = F.glu(self.inputs(x), dim=-1)  # (B, T, 2H) -> (B, T, H)
        if mask is not None:
            x = torch.where(mask[..., None], x, 0.0)  # D5
        kernel = self.kernel if self.transform is None else self.kernel @ self.transform
        return self.output(light_conv(x, kernel))


class Layer(nn.Module):
    """BERT's layer with another mixer: x (B, T, H), mask (B, T) -> (B, T, H)."""

    def __init__(self, layer, cfg, shared):
        super().__init__()
        if isinstance(layer, int):
            self.conv = ConvMixer(layer, cfg.hidden, cfg.heads, shared)
        else:
            self.attention = AttentionMixer(layer, cfg.hidden, cfg.heads, cfg.dropout)
        self.mixer_norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.expand = nn.Linear(cfg.hidden, cfg.ffn)
        self.shrink = nn.Linear(cfg.ffn, cfg.hidden)
        self.ffn_norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, mask):
        mixer = self.conv if hasattr(self, "conv") else self.attention
        x = self.mixer_norm(x + self.dropout(mixer(x, mask)))
        return self.ffn_norm(x + self.dropout(self.shrink(F.gelu(self.expand(x)))))


class Encoder(nn.Module):
    """Embeddings and layers: ids, segments (B, T), lengths (B,) real tokens of each row, or None where every row is
    full -> (B, T, H)."""

    def __init__(self, arch, cfg, shared=False):
        super().__init__()
        E = cfg.embedding or cfg.hidden
        self.arch, self.recompute = arch, cfg.recompute
        self.words = nn.Embedding(cfg.vocab_size, E)
        self.positions = nn.Embedding(512, E)
        self.segments = nn.Embedding(2, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        self.project = nn.Linear(E, cfg.hidden) if E != cfg.hidden else nn.Identity()
        self.layers = nn.ModuleList(Layer(layer, cfg, shared) for layer in arch)
        init_weights(self, cfg.init_std)

    def forward(self, ids, segments, lengths):
        T = ids.shape[1]
        positions = torch.arange(T, device=ids.device)
        # (B, T); an empty row sees its first piece: a softmax over nothing would be no number
        mask = None if lengths is None else positions < lengths.clamp(min=1)[:, None]
        x = self.words(ids) + self.positions(positions) + self.segments(segments)  # (B, T, E)
        x = self.project(self.dropout(self.norm(x)))  # (B, T, H)
        for layer in self.layers:
            x = recompute(layer, x, mask, use_reentrant=False) if self.recompute and self.training else layer(x, mask)
        return x


def init_weights(model, std):
    """BERT's initialisation."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class LanguageModel(nn.Module):
    """Encoder with heads for masked words and for the next sentence."""

    def __init__(self, arch, cfg, shared=False):
        super().__init__()
        E = cfg.embedding or cfg.hidden
        self.encoder = Encoder(arch, cfg, shared)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.next_sentence = nn.Linear(cfg.hidden, 2)
        self.transform = nn.Linear(cfg.hidden, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))  # the output matrix is the word embedding
        init_weights(self, cfg.init_std)

    def forward(self, ids, segments, lengths, places):
        """MLM logits (M, V) at places (M,) of ids.flatten(), and next-sentence logits (B, 2)."""
        x = self.encoder(ids, segments, lengths)  # (B, T, H)
        masked = x.flatten(0, 1)[places]  # (M, H)
        masked = self.norm(F.gelu(self.transform(masked)))  # (M, E)
        logits = F.linear(masked, self.encoder.words.weight, self.bias)  # (M, V)
        return logits, self.next_sentence(torch.tanh(self.pooler(x[:, 0])))


class TaskModel(nn.Module):
    """Encoder and a linear head: logits (B, outputs) of the first token, or of spans (B, T, outputs)."""

    def __init__(self, arch, cfg, outputs, spans=False, shared=False):
        super().__init__()
        self.encoder, self.spans, self.dropout = Encoder(arch, cfg, shared), spans, nn.Dropout(cfg.dropout)
        if not spans:
            self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.head = nn.Linear(cfg.hidden, outputs)
        init_weights(self, cfg.init_std)

    def forward(self, ids, segments, lengths):
        x = self.encoder(ids, segments, lengths)  # (B, T, H)
        return self.head(x if self.spans else self.dropout(torch.tanh(self.pooler(x[:, 0]))))


def count_products(graph, tokens, width):
    """Multiply-adds of a graph in one head."""
    shapes, sizes, total = infer_graph(graph), {"n": tokens, "d": width}, 0
    for (op, *operands), (rows, columns) in zip(graph, shapes[len(INPUTS):]):
        if op in PRODUCTS:
            total += sizes[rows] * sizes[columns] * sizes[shapes[operands[0]][1]]
    return total


def count(arch, cfg):
    """Parameters of a LanguageModel by part; "#Params of Att" (Tables 3, 5), which are the projections that make the
    mixers' inputs, without W_O; and FLOPs of one forward of 128 tokens."""
    with torch.device("meta"):
        model = LanguageModel(arch, cfg)
    total, encoder, layers, pooler = (sum(value.numel() for value in module.parameters()) for module in (
        model, model.encoder, model.encoder.layers, model.pooler))
    parts = {"embeddings": encoder - layers, "layers": layers, "pooler": pooler, "heads": total - encoder - pooler}
    H, E, T = cfg.hidden, cfg.embedding or cfg.hidden, 128
    projections, products = 0, T * E * H if E != H else 0  # products: multiply-adds
    for layer in arch:
        inputs = 2 if isinstance(layer, int) else len(used_inputs(layer))  # d -> 2d of a convolution, or Q, K, V, P
        projections += inputs
        products += (inputs + 1) * T * H * H + 2 * T * H * cfg.ffn  # W_O or its like, and the feed-forward
        if isinstance(layer, int):
            products += layer * T * H  # the taps alone; as a band, light_conv multiplies T numbers in their place
        else:
            products += cfg.heads * count_products(layer, T, H // cfg.heads)
    head = T * (H * E + E * cfg.vocab_size)
    return {"parameters": total, "parts": parts, "attention_parameters": projections * (H * H + H),
            "flops": 2 * products, "flops_with_vocabulary_head": 2 * (products + head),
            "flops_counting": "one forward of 128 tokens, 2 per multiply-add, matrix products and convolutions; "
                              "embeddings are look-ups"}

# --- supernet -------------


def slot(name, value, arch):
    """Where the super-net has a candidate's weight: (name there, index of the part)."""
    found = re.fullmatch(r"encoder\.layers\.(\d+)\.(attention\.inputs\.\w+|conv\.kernel|conv\.transform)", name)
    if not found:
        return name, ...
    layer = arch[int(found[1])]
    if found[2] == "conv.transform":
        return f"{name}.{layer}", ...
    if found[2] == "conv.kernel":  # the centre of the largest kernel, Figure 3
        first = (max(KERNELS) - layer) // 2
        return name, (slice(None), slice(first, first + layer))
    reads = used_inputs(layer)
    width = value.shape[0] // len(reads)
    return name, torch.cat([torch.arange(index * width, (index + 1) * width) for index in reads])


def cut_out(weights, model):
    """{name: weight} that a model takes from a super-net. A candidate has transforms of its own; where a model stands
    alone, the super-net's adapt its kernels (Sec. 3.2, BIWS (1))."""
    state, found = model.state_dict(), {}
    for name, value in state.items():
        there, part = slot(name, value, model.encoder.arch)
        if there in weights:
            found[name] = weights[there][part]
            transform = name.replace("conv.kernel", "conv.transform")
            if transform not in state and value.shape[1] < max(KERNELS):
                found[name] = found[name] @ weights[f"{transform}.{value.shape[1]}"]
    return found


class SuperNet:
    """Bi-branch weight sharing (Sec. 3.2, BIWS): a layer has an attention of four inputs, a convolution of kernel 65, a
    matrix for each smaller kernel, one FFN (D30: our choice). It is never run: candidates take and return weights."""

    def __init__(self, cfg):
        everything = parse_formula("Q + K + V + P")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cfg.seed)
            attention = LanguageModel((everything,) * cfg.layers, cfg, shared=True)
            convolution = LanguageModel((max(KERNELS),) * cfg.layers, cfg, shared=True)
        self.weights = {**convolution.state_dict(), **attention.state_dict()}
        for layer, size in itertools.product(range(cfg.layers), KERNELS[:-1]):
            self.weights[f"encoder.layers.{layer}.conv.transform.{size}"] = torch.eye(size)

    def fetch(self, model):
        """Copy a candidate's weights into its LanguageModel."""
        model.load_state_dict(cut_out(self.weights, model))

    def write_back(self, candidates):
        """Take over a round's weights, (arch, state_dict) from the best score to the worst. D10: each writes what no
        better one has written: layers trained together stay together, and a mean is no network."""
        written = {}
        for arch, state in candidates:
            for name, value in state.items():
                there, part = slot(name, value, arch)
                target = self.weights[there]
                done = written.setdefault(there, torch.zeros_like(target, dtype=torch.bool))
                target[part] = torch.where(done[part], target[part], value)
                done[part] = True

    def take_rest(self, weights):
        """Take over a network's weights but for its convolutions and attentions."""
        self.weights.update({name: value for name, value in weights.items()
                             if not re.search(r"layers\.\d+\.(attention|conv)\.", name)})

    def state_dict(self):
        return self.weights

    def load_state_dict(self, state):
        self.weights = {name: value.cpu() for name, value in state.items()}

# --- search ---------------


def grow(rng, length, draw=None):
    """A random graph of `length` operations, or None. Loose ends, what none reads yet, never outnumber what those
    to come can tie. draw(position) gives an operation; uniform ones if it is left out."""
    shapes = {operand: "nd" for operand in rng.sample(range(len(INPUTS)), rng.randint(2, len(INPUTS)))}
    loose, graph = set(shapes), []
    for left in reversed(range(length)):
        for _ in range(30):
            op = draw(len(graph)) if draw else rng.choice(OPS)
            pool = [sorted(loose) if rng.random() < 0.5 else list(shapes) for _ in range(1 if op in UNARY else 2)]
            operands = [rng.choice(each) for each in pool]
            shape, others = infer(op, *map(shapes.get, operands)), loose.difference(operands)
            if shape and len(others) <= left and (left or shape == "nd"):
                break
        else:
            return None
        newest = len(INPUTS) + len(graph)
        graph.append((op, *operands))
        loose, shapes[newest] = others | {newest}, shape
    return tuple(graph)


@torch.no_grad()
def gain(graph, tokens=32, width=16):
    """How large what an attention of this graph adds to its input is before any training, the input's size being 1.
    BERT's initialisation at hidden 768 makes inputs of deviation 0.55 of a token's, and W_O does so once more."""
    generator = torch.Generator().manual_seed(0)
    values = 0.55 * torch.randn(len(INPUTS), 1, 1, tokens, width, generator=generator)
    return 0.55 * run_graph(graph, dict(enumerate(values))).square().mean().sqrt().item()


def sample_graph(rng, draw=None):
    """A random legal graph of up to MAX_PATH operations (Sec. 3.1: illegal ones are rejected early). D38: none that
    adds next to nothing, as V + neg(V), or more than half of its input's size, as many a product that sums over tokens
    without a softmax: LayerNorm then leaves little of the input, and the network does not learn. Mutations still reach
    all legal graphs."""
    while True:
        graph = canonical(grow(rng, rng.randint(1, MAX_PATH), draw) or ())
        if not why_illegal(graph, MAX_PATH) and 0.001 < gain(graph) < 0.5:
            return graph


def sample_arch(rng, layers):
    """A random architecture. D23: a layer is an attention with a chance of one third, else a convolution, since three
    random attentions in four layers hardly ever learn; the paper does not say."""
    return tuple(sample_graph(rng) if rng.random() < 1 / 3 else rng.choice(KERNELS) for _ in range(layers))


def ucb(totals, counts, alpha):
    """Eq. 3: u_i = mu_i + alpha sqrt(2 log N / N_i), from each option's summed scores and number of samples. D8: mu_i
    averages one sample more, the mean of all, so that a single one decides nothing; an option never tried has just
    that, and N_i = 1. D21: N counts the samples at this position alone."""
    N = sum(counts)
    mean, bonus = sum(totals) / max(N, 1), math.sqrt(2 * math.log(max(N, 1)))
    return [(total + mean) / (count + 1) + alpha * bonus / math.sqrt(max(count, 1))
            for total, count in zip(totals, counts)]


def ranked(history):
    """The candidates that did not diverge, the best first."""
    return sorted((line for line in history if not line["diverged"]), key=lambda line: -line["score"])


class OperationPriority:
    """What the history says (Sec. 3.2): a distribution over OPS at each position, shared by all attention layers, and
    one over KERNELS in each layer."""

    def __init__(self, history, cfg):
        self.cfg, self.cells = cfg, {}  # {(options, position): (summed scores, numbers of samples)}
        scores = [line["score"] for line in ranked(history)] or [0.0]
        mean, deviation = statistics.fmean(scores), statistics.pstdev(scores) or 1.0
        for line in history:
            score = scores[-1] if line["diverged"] else line["score"]  # D31: 0 would banish all that it is made of
            score = (score - mean) / deviation
            for number, layer in enumerate(parse_arch(line["arch"])):
                if isinstance(layer, int):
                    self.add(KERNELS, number, layer, score)
                    continue
                for position, (op, *_) in enumerate(layer):
                    self.add(OPS, position, op, score)

    def add(self, options, position, option, score):
        """One sample more. D33: N_i of Eq. 3 counts the occurrences in evaluated candidates, which most mutations only
        hand down; the paper's counts what was sampled."""
        totals, counts = self.cells.setdefault((options, position), ([0.0] * len(options), [0] * len(options)))
        totals[options.index(option)] += score
        counts[options.index(option)] += 1

    def probabilities(self, options, position, legal=None):
        """Of OPS at a position of a path, or of KERNELS in the layer `position`; 0 for what is not `legal`: the softmax
        (Sec. 3.2) of Eq. 3. D9: in units of a SHARPNESS-th of the standard deviation of all candidates' scores, so that
        neither the unit of a metric nor their spread decides how strongly they are followed; a tenth is uniform, or
        what failed once would never be tried again."""
        allowed = [option in (legal or options) for option in options]
        cell = self.cells.get((options, position)) if self.cfg.strategy == "op-nas" else None
        scores = ucb(*cell, self.cfg.alpha) if cell else [0.0] * len(options)
        top = max(itertools.compress(scores, allowed))
        weights = [math.exp(SHARPNESS * (score - top)) if may else 0.0 for score, may in zip(scores, allowed)]
        return [0.9 * weight / sum(weights) + 0.1 * may / sum(allowed) for weight, may in zip(weights, allowed)]


def applied(operands, below):
    """Every operation on these operands; to a single one a binary operation takes any numbered below `below`."""
    for op in OPS:
        if op in UNARY:
            yield from ((op, operand) for operand in operands)
        elif len(operands) == 2:
            yield (op, *operands)
        else:
            yield from ((op, *both) for other in range(below) for both in ((operands[0], other), (other, operands[0])))


# The edits of an attention (D7: the paper names none). Each yields (new operation or None, operations in any order, the
# operand that is the output) for all that it can make at operation `index`; some of it is illegal.


def put(graph, index, operation):
    """The graph with another operation in the place of one."""
    return (*graph[:index], operation, *graph[index + 1:])


def redirect(graph, old, new):
    """The graph with all readers of one operand reading another, and its output."""
    output = new if old == len(INPUTS) + len(graph) - 1 else len(INPUTS) + len(graph) - 1
    return tuple((op, *[new if each == old else each for each in operands]) for op, *operands in graph), output


def replace(graph, index):
    """Another operation on the same operands; a binary one in the place of a binary one also with one of them turned,
    by a transpose that comes or goes. Without that cos(a, b), a @ b.T and dist(a, b) cannot become each other: the way
    from one to the next leads through an illegal graph."""
    op, *operands = graph[index]
    added = len(INPUTS) + len(graph)
    for new in applied(operands, len(INPUTS) + index):
        yield new[0], put(graph, index, new), added - 1
    for side, new in itertools.product(range(len(operands)), BINARY if op in BINARY else ()):
        source = graph[operands[side] - len(INPUTS)] if operands[side] >= len(INPUTS) else ("input",)
        turned = source[1] if source[0] == "transpose" else added
        changed = new, *operands[:side], turned, *operands[side + 1:]
        yield new, (*put(graph, index, changed), ("transpose", operands[side])), added - 1


def insert(graph, index):
    """A new operation behind this one, for all its readers, or on the edge from one of its operands."""
    here, added, (op, *operands) = len(INPUTS) + index, len(INPUTS) + len(graph), graph[index]
    behind, output = redirect(graph, here, added)
    for new in applied([here], here):
        yield new[0], (*behind, new), output
    for side, operand in enumerate(operands):
        reader = op, *operands[:side], added, *operands[side + 1:]
        for new in applied([operand], here):
            yield new[0], (*put(graph, index, reader), new), added - 1


def delete(graph, index):
    """Its readers, or the output where it was the last, take one of its operands."""
    for operand in graph[index][1:]:
        yield None, *redirect(graph, len(INPUTS) + index, operand)


def rewire(graph, index):
    """It reads another operand."""
    op, *operands = graph[index]
    for side, other in itertools.product(range(len(operands)), range(len(INPUTS) + index)):
        rewired = op, *operands[:side], other, *operands[side + 1:]
        yield None, put(graph, index, rewired), len(INPUTS) + len(graph) - 1


EDITS = (replace, insert, delete, rewire)  # D35: the last two make no new operation, so Eq. 3 has no say in them


def edit_graph(graph, rng, priority):
    """A legal graph one edit away, or None. Edit and place are random; a new operation is drawn by the priorities of
    that place: those of the first k positions for a path of k (Sec. 3.2), so that one put on an edge or behind counts
    by the operation next to it."""
    for edit, index in sorted(itertools.product(EDITS, range(len(graph))), key=lambda each: rng.random()):
        children = {}  # {new operation or None: those that it makes}
        for op, *child in edit(graph, index):
            children.setdefault(op, []).append(child)
        while children:
            op = None if None in children else rng.choices(OPS, priority.probabilities(OPS, index, children))[0]
            for child in sorted(children.pop(op), key=lambda each: rng.random()):
                child = in_order(*child, range(len(INPUTS)))
                if not why_illegal(child, MAX_PATH) and (child := canonical(child)) != graph:
                    return child
    return None


def mutate(parent, rng, priority):
    """A child (Alg. 1, lines 6, 7): half the time (D16: so that it can differ in one attention alone) a random layer
    changes its kind; then a random layer changes inside. All operations and kernels are drawn by the priorities."""
    child = list(parent)

    def draw(options, position):
        return rng.choices(options, priority.probabilities(options, position))[0]

    if rng.random() < 0.5:  # inter-layer
        layer = rng.randrange(len(child))
        attentions = [other for other in parent if not isinstance(other, int)]
        if not isinstance(child[layer], int):
            child[layer] = draw(KERNELS, layer)
        elif attentions and rng.random() < 0.5:  # D24: half of the new ones are another layer's
            child[layer] = rng.choice(attentions)
        else:
            child[layer] = sample_graph(rng, draw=functools.partial(draw, OPS))
    layer = rng.randrange(len(child))  # intra-layer
    if isinstance(child[layer], int):
        child[layer] = draw(KERNELS, layer)
    else:
        child[layer] = edit_graph(child[layer], rng, priority) or child[layer]
    return tuple(child)


def round_sizes(cfg):
    """Candidates in each round: the initial population, then children. D11: the population comes in rounds of the
    same size, so that the super-net learns from its start."""
    later = cfg.parents * cfg.children
    initial = [min(later, cfg.population - start) for start in range(0, cfg.population, later)]
    return initial + [later] * cfg.rounds


def propose(history, number, cfg):
    """The candidates of a round, [(parent's id or None, arch)], none twice (D19), the same in every process."""
    rng = random.Random(f"{cfg.seed} round {number}")
    seen, proposals = {line["arch"] for line in history}, []
    size, initial = round_sizes(cfg)[number], len(round_sizes(cfg)) - cfg.rounds
    parents = [] if number < initial or cfg.strategy == "random" else ranked(history)[:cfg.parents]  # Alg. 1, line 4
    priority = OperationPriority(history, cfg)  # Alg. 1, line 12
    while len(proposals) < size:
        parent = parents[len(proposals) // cfg.children % len(parents)] if parents else None
        arch = mutate(parse_arch(parent["arch"]), rng, priority) if parent else sample_arch(rng, cfg.layers)
        if (text := arch_text(arch)) not in seen:
            seen.add(text)
            proposals.append((parent["id"] if parent else None, arch))
    return proposals


def evaluate_candidate(arch, number, supernet, tasks, data, cfg, path):
    """Pre-train and fine-tune one candidate (App. D.1): {score, scores, diverged, seconds}; path.pt gets its
    pre-trained weights. number: of the round, each of which has its own text; what is trained again has that of 0."""
    began, alone = time.perf_counter(), Ranks(0, 1, data.device)
    model, scores, diverged = LanguageModel(arch, cfg, shared=True), {}, False
    supernet.fetch(model)  # Alg. 1, line 8
    checkpoint = Checkpoint(path.with_suffix(".training.pt"), alone, model=move(model, data.device))
    try:
        train_language_model(model, data, cfg, alone, checkpoint, first=number * cfg.steps * cfg.batch)
        scores = score_tasks(model, arch, tasks, data, cfg, path.with_suffix(".scores"))
    except (Diverged, torch.OutOfMemoryError) as error:
        diverged = type(error).__name__  # D12: it scores 0 and is never a parent
    save_file(path.with_suffix(".pt"), to_host(model.state_dict()))
    checkpoint.remove()
    score = sum(scores.values()) / len(tasks)  # D19: the mean over --tasks, MNLI by its matched half alone
    return {"score": score, "scores": scores, "diverged": diverged, "seconds": round(time.perf_counter() - began, 3)}


def score_tasks(model, arch, tasks, data, cfg, path, shared=True):
    """{task: main metric on dev} of a copy of the model tuned on each, kept in path. D32: a negative metric counts as
    0, which a diverged candidate has. D15: MLM is the share of held-out masked words that it finds; minutes leave GLUE
    at chance."""
    scores = read_result(path) if path.exists() else {}
    for name in [name for name in tasks if name not in scores]:
        if name == "MLM":
            scores[name] = evaluate_language_model(model, data, cfg, Ranks(0, 1, data.device), 32)["mlm_accuracy"]
        else:
            seed_everything(cfg.seed, "head", name)
            tuned = move(TaskModel(arch, cfg, tasks[name].outputs, shared=shared), data.device)
            tuned.load_state_dict(model.state_dict(), strict=False)  # encoder and pooler
            scores[name] = max(train_task(tuned, tasks[name], cfg, data.device)["main"], 0.0)
        write_result(path, scores)
    return scores


def record_round(run, number, history):
    """Write history.jsonl as the checkpoint has it, and delete the folder of the round, whose results it now holds."""
    write_atomic(run.folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
    shutil.rmtree(run.folder / f"round-{number}", ignore_errors=True)


HYBRID = "conv3 | BERT's attention, in turn"


def by_hand(layers):
    """{name: architecture} of what a person types in ten seconds, and a search has to beat."""
    both = ("conv3", BERT_ATTENTION) * layers
    return {"BERT": parse_arch(" | ".join([BERT_ATTENTION] * layers)), "convolutions": (3,) * layers,
            HYBRID: parse_arch(" | ".join(both[:layers]))}


def train_again(archs, first, times, run, name, tasks, data, cfg):
    """[evaluate_candidate's result for each architecture], trained for `times` a candidate's updates from the weights
    of the super-net `first`; the run's folder NAME has what they have learnt."""
    folder, own = run.folder / name, dataclasses.replace(cfg, steps=times * cfg.steps)

    def evaluate(number):
        return evaluate_candidate(archs[int(number)], 0, first, tasks, data, own, folder / number)

    return share_out(run.ranks, [*map(str, range(len(archs)))], folder, name, evaluate)


def first_super_net(source, run, data, cfg):
    """The super-net with whose weights a search begins: random ones, or those of --init. D40: or the embeddings, FFNs,
    norms and heads of a network typed by hand, the one that learns soonest, after --warm_times x --steps updates; its
    convolutions and attentions stay random. Then a candidate's few updates show what its mixers are good for, and
    without sharing all candidates begin with weights of the same age. In the paper all begin random."""
    first = SuperNet(cfg)
    if source:
        model = LanguageModel(source[1], cfg) if source[1] else first
        say(run.ranks, start_from(model, source))
        first.write_back([(source[1], model.state_dict())] if source[1] else [])
    elif cfg.warm_times:
        archs = [by_hand(cfg.layers)[HYBRID]]
        result, = train_again(archs, first, cfg.warm_times, run, "warm-start", {"MLM": None}, data, cfg)
        if result["diverged"]:
            raise UserError(f"{run.folder}: the warm start failed ({result['diverged']}); lower --lr, --restart")
        first.take_rest(load_file(run.folder / "warm-start" / "0.pt"))
    return first


def score_by_hand(first, run, tasks, data, cfg):
    """{name: score} of what a person types, where there are finalists to stand beside."""
    if not cfg.finalists:
        return {}
    known = by_hand(cfg.layers)
    results = train_again([*known.values()], first, cfg.finalist_times, run, "by-hand", tasks, data, cfg)
    return {name: result["score"] for name, result in zip(known, results)}


def choose(history, finalists, alone):
    """The line of history that a search returns: of the finalists the one that scores best alone, with the scores that
    it has there; without them, or where all of them diverge, the best candidate's (Alg. 1, line 13)."""
    return (ranked([{**line, **result} for line, result in zip(finalists, alone)]) or ranked(history))[0]


def score_finalists(history, supernet, first, run, tasks, data, cfg):
    """(choose's line, [{id, score} of each finalist]). D37: each is trained once more, from the super-net `first` for
    --finalist_times x --steps updates, since a candidate's score depends on the age of the super-net that it started
    from, and the best of many noisy scores is in part luck; the paper returns that. The super-net takes over the
    weights with which the chosen one has scored, so that best.pt and --init have them."""
    finalists = ranked(history)[:cfg.finalists]
    archs = [parse_arch(line["arch"]) for line in finalists]
    alone = train_again(archs, first, cfg.finalist_times, run, "finalists", tasks, data, cfg) if finalists else []
    best = choose(history, finalists, alone)
    for number, (line, result) in enumerate(zip(finalists, alone)):
        if line["id"] == best["id"] and not result["diverged"]:
            supernet.write_back([(archs[number], load_file(run.folder / "finalists" / f"{number}.pt"))])
    return best, [{"id": line["id"], "score": result["score"]} for line, result in zip(finalists, alone)]


def show_best(run, cfg):
    """Print what a finished search found, one layer a line, and its score beside that of networks typed by hand."""
    best, ranks = run.finished, run.ranks
    constants = {name: f", one answer {100 * score:.2f}" for name, score in best.get("constants", {}).items()}
    scores = "; ".join(f"{name} {100 * score:.2f}{constants.get(name, '')}" for name, score in best["scores"].items())
    lines = [f"best of {best['candidates']} candidates: {best['id']}, with {100 * best['score']:.2f} ({scores})"]
    lines += [f"  {number:2d}  {layer}" for number, layer in enumerate(best["arch"].split(" | "), 1)]
    lines += ["trained as long, by hand:"] * bool(best["by_hand"])
    lines += [f"{100 * score:6.2f}  {name}" for name, score in best["by_hand"].items()]
    say(ranks, "\n".join(lines))
    run.ends(cfg, "best.json", "--pretrain", "--init", run.folder)


def search(cfg):
    """OP-NAS (Alg. 1)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = read_run(cfg, "search") if cfg.init else None
        run, data = open_run(cfg, "search", ranks, "corpus", "glue", tasks=proxy_names(cfg))
        if run.finished:
            return show_best(run, cfg)
        run.settle(cfg)
        tasks, sizes = open_proxies(cfg, data), round_sizes(cfg)
        constants = {name: task.constant if task else data.dev.commonest() for name, task in tasks.items()}
        first = first_super_net(source, run, data, cfg)
        supernet = copy.deepcopy(first) if cfg.finalists else first
        checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, supernet=supernet)
        history = checkpoint.restore().get("history", [])
        typed = score_by_hand(first, run, tasks, data, cfg)
        begin = history[-1]["round"] + 1 if history else 0
        on_main(ranks, record_round, run, begin - 1, history)
        for number in range(begin, len(sizes)):
            folder, best = run.folder / f"round-{number}", max((line["score"] for line in history), default=0.0)
            proposals = dict(enumerate(propose(history, number, cfg), len(history)))  # Alg. 1, lines 1, 4 to 7

            def evaluate(name):
                parent, arch = proposals[int(name)]
                result = evaluate_candidate(arch, number, supernet, tasks, data, cfg, folder / name)
                return {"id": int(name), "round": number, "parent": parent, "arch": arch_text(arch), **result}

            label = f"round {number + 1}/{len(sizes)}, best so far {100 * best:.2f}"
            lines = share_out(ranks, [*map(str, proposals)], folder, label, evaluate)  # Alg. 1, lines 2, 8, 9
            history += lines  # Alg. 1, line 11
            if not cfg.no_weight_sharing:  # Sec. 3.2, BIWS (1): after each round
                supernet.write_back((proposals[line["id"]][1], load_file(folder / f"{line['id']}.pt"))
                                    for line in ranked(lines))
            checkpoint.save(history=history)
            gather(ranks, None)  # a round's files go when all have read them
            on_main(ranks, record_round, run, number, history)
            if words := tells_nothing([line["scores"] for line in ranked(lines)], constants):
                say(ranks, words)
            run.log("search", number, candidates=len(history), best=max(line["score"] for line in history))
        if not ranked(history):
            raise UserError(f"{run.folder}: every candidate diverged; lower --lr, --restart")
        best, finalists = score_finalists(history, supernet, first, run, tasks, data, cfg)
        checkpoint.save(history=history)
        result = {key: best[key] for key in ("arch", "score", "scores", "id")} | {
            "candidates": len(history), "by_hand": typed, "constants": constants, "finalists": finalists}
        on_main(ranks, write_atomic, run.folder / "best.json", json.dumps(result, indent=2))
        on_main(ranks, write_best, run.folder / "best.py", parse_arch(best["arch"]), (supernet.weights, None, ""), cfg,
                data.tokenizer)
        run.finish(result)
        show_best(run, cfg)

# --- objective ------------


def draw_next_sentence(segments, generator):
    """Ids (B, width), lengths (B,) and labels (B,) of what stands behind B segments: the continuation (0) or, half the
    time, text from elsewhere (1). D28: a run without a sentence boundary has no label, -100: text from elsewhere
    begins with a sentence, which would give it away."""
    single = (segments.second_length == 0) | (segments.other_length == 0)
    other = (torch.rand(len(single), generator=generator) < 0.5) & ~single
    return (torch.where(other[:, None], segments.other, segments.second),
            torch.where(other, segments.other_length, segments.second_length), other.long().masked_fill(single, -100))


def mask_tokens(ids, tokenizer, rate, generator):
    """BERT's masking: `rate` of the text in ids (B, T) is predicted; 80% of it becomes [MASK], 10% a random piece, 10%
    stays. Returns changed ids, places (M,) in ids.flatten() and labels (M,), -100 where padding leaves none. D17: the
    share is of the batch, so that M depends on B and T alone."""
    M = max(1, round(rate * ids.numel()))
    special = torch.tensor([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id])
    text = (~torch.isin(ids, special)).flatten().nonzero()[:, 0]
    chosen = text[torch.randperm(len(text), generator=generator)[:max(1, round(rate * len(text)))]]
    labels, kind = ids.flatten()[chosen], torch.rand(len(chosen), generator=generator)
    random_piece = torch.randint(tokenizer.vocab_size, (len(chosen),), generator=generator)
    seen = torch.where(kind < 0.8, tokenizer.mask_id, torch.where(kind < 0.9, random_piece, labels))
    changed = ids.flatten().index_put((chosen,), seen)
    left = (0, M - len(chosen))
    return changed.view_as(ids), F.pad(chosen, left), F.pad(labels, left, value=-100)

# --- training -------------

if (Path(__file__).parent / "common").is_dir():  # this file alone imports, builds its model, steps its search
    from common import glue
    from common.cli import Diverged, Stop, UserError, check_memory, run, settings_of, start
    from common.describe import forecast, ids
    from common.distributed import (Pace, Ranks, autocast, gather, launch, move, no_sync_until, on_main, per_second,
                                    prefetch, prepare_model, progress, reduce_mean, say, seed_everything, seed_of,
                                    send, set_shards, shard_range, share_out, to_host)
    from common.files import load_file, read_json, read_result, save_file, write_atomic, write_result
    from common.runs import Checkpoint
    from common.tasks import (GlueTask, Recipe, answer_file, end_tuning, open_file, open_task, parse_tasks, run_jobs,
                              show, summarise, tells_nothing)
    from common.tokenization import load_tokenizer
    from common.weights import keep_model, read_init, take_over, take_settings
    from data.corpus import join
    from data.inputs import open_run, words_after_training
    from data.network_code import SPAN, write_network

NINE = "mean of App. C's nine numbers"
GROUPS = {"glue": ["MNLI", "CoLA", "MRPC", "STS-B", "SST-2", "QQP", "QNLI", "RTE"]}  # the paper's, no WNLI
# App. D.2: learning rate, weight decay, steps between looks at dev
GRID = tuple(itertools.product((1e-5, 1.5e-5, 2e-5, 3e-5, 4e-5, 5e-5), (0.1, 0.01), (100, 10)))
LOOK_ROWS = 2000  # of GLUE's dev, at --eval_every; D36: the best look is by these, all of QQP's cost too much
CHECK_EVERY = 20  # steps between looks at the norm, which make a GPU wait


def schedule(step, steps, warmup):
    """Share of the peak rate: linear up over warmup x steps, then linear down to 0 (App. D.1)."""
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else (steps - step) / max(1, steps - rise)


def make_optimizer(model, weight_decay):
    """Adam with BERT's weight decay: on all matrices but transforms, near the identity."""
    groups = [{"params": [value for name, value in model.named_parameters()
                          if (value.dim() > 1 and not name.endswith("conv.transform")) == decayed],
               "weight_decay": weight_decay * decayed} for decayed in (True, False)]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6, fused=True)  # betas: Table 6


def language_batch(data, corpus, cfg, first, rows):
    """The examples from number `first` on of an endless stream. D28: its segments may begin in mid-sentence, where
    BERT's do not."""
    generator = torch.Generator().manual_seed(seed_of(cfg.seed, "mask", first))
    text = corpus.segments(first, rows, cfg.length - 3, cfg.seed)
    second, second_length, next_labels = draw_next_sentence(text, generator)
    ids, segments, lengths = join(text.first, text.first_length, second, second_length, data.tokenizer,
                                  empty_second=True)  # [CLS] A [SEP] B [SEP], (B, T)
    ids, places, labels = mask_tokens(ids, data.tokenizer, MASK_RATE, generator)
    return send((ids, segments, lengths, places, labels, next_labels), data.device)


def parts_of(cfg, ranks, first, step):
    """The settings, the number of the first example and the rows of each part of an update's batch that is this
    process's. D39: a network of attention alone hardly learns from long rows what stands where, so it begins in short
    ones, of 8 tokens or more. BERT had 128 of 512 in 90% of its updates, for speed; this paper has 128 throughout."""
    times = min(4, cfg.length // 8) if step < round(cfg.short * cfg.steps) else 1
    own, rows = dataclasses.replace(cfg, length=cfg.length // times), times * cfg.batch // cfg.accumulate
    for shard in shard_range(ranks, cfg.accumulate):
        yield own, times * (first + step * cfg.batch) + shard * rows, rows


def language_losses(model, batch, cfg, device):
    """Masked-language-model and next-sentence loss (Sec. 4.1; 0 without a label), and [(logits, labels)] of both."""
    with autocast(cfg.dtype, device):
        logits = model(*batch[:4])  # (M, V), (B, 2)
    answers = [(scores.float(), labels) for scores, labels in zip(logits, batch[4:])]
    return [F.cross_entropy(scores, labels, reduction="sum") / (labels >= 0).sum().clamp_min(1)
            for scores, labels in answers], answers


def update(network, optimizer, batches, cfg, ranks, *key):
    """One update of pre-training from the next batches, one for each of the --accumulate shards that are this
    process's. A shard seeds its dropout by its number and `key`, whatever the number of processes. Returns the mean
    losses of these shards (2,) and the norm of the gradient."""
    shards, total = shard_range(ranks, cfg.accumulate), 0.0
    for shard in shards:
        seed_everything(cfg.seed, "language model", *key, shard)
        with no_sync_until(network, ranks, last=shard == shards[-1]):
            losses, _ = language_losses(network, next(batches), cfg, ranks.device)
            (sum(losses) / len(shards)).backward()
        total = total + torch.stack(losses).detach() / len(shards)
    norm = nn.utils.clip_grad_norm_(network.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm


def train_language_model(model, data, cfg, ranks, checkpoint, first=0, report=None):
    """Pre-training on the examples from `first` on, from the checkpoint on. Calls report(step, losses, rate); raises
    Diverged, Stop. The host waits for a GPU in every 20th update, where it reports and where it saves."""
    checkpoint.owned["optimizer"] = optimizer = make_optimizer(model, cfg.weight_decay)
    begin, pace = checkpoint.restore().get("step", 0), Pace(ranks, cfg.save_minutes)
    network = prepare_model(model, ranks, cfg.compile)
    batches = prefetch(language_batch(data, data.train, *part) for step in range(begin, cfg.steps)
                       for part in parts_of(cfg, ranks, first, step))
    model.train()
    for step in range(begin, cfg.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate = cfg.lr * schedule(step, cfg.steps, cfg.warmup)
        losses, norm = update(network, optimizer, batches, cfg, ranks, first, step)
        done, (stop, save, log) = step + 1, pace()
        save = save or stop or done == cfg.steps or done % cfg.save_every == 0
        log = log or save or done % LOG_EVERY == 0
        if (log or done % CHECK_EVERY == 0) and not math.isfinite(norm):
            raise Diverged(f"gradient norm {norm} at or before step {done}")
        if log and report:
            report(done, losses, rate)
        if save:
            checkpoint.save(step=done)
        if stop:
            raise Stop


@torch.no_grad()
def evaluate_language_model(model, data, cfg, ranks, batches=16):
    """Loss and accuracy of both objectives on held-out text, on the same examples for all seeds. The host waits for a
    GPU once, where it reads the sums."""
    rows, own = min(32, cfg.batch), dataclasses.replace(cfg, seed=0)
    sums = torch.zeros(6, dtype=torch.float64, device=data.device)  # of both objectives: losses, right answers, labels
    model.eval()
    for first in range(ranks.rank * rows, batches * rows, ranks.size * rows):
        losses, answers = language_losses(model, language_batch(data, data.dev, own, first, rows), cfg, data.device)
        counts = [(labels >= 0).sum() for _, labels in answers]
        right = [(logits.argmax(-1) == labels).sum() for logits, labels in answers]
        sums += torch.stack([*(loss * count for loss, count in zip(losses, counts)), *right, *counts])
    model.train()
    *found, words, pairs = reduce_mean(ranks, *sums.tolist())
    names = "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"
    return {name: value / (count or 1) for name, value, count in zip(names, found, (words, pairs) * 2)}


def show_pretrained(run, cfg):
    found = run.finished
    beside = f" (one answer to all: {100 * found['mlm_constant']:.2f}%)" if "mlm_constant" in found else ""
    pairs = (f"{100 * found['nsp_accuracy']:.2f}% of the next sentences judged right, loss {found['nsp_loss']:.4f} nats"
             if found["nsp_loss"] else "no next sentences, for want of a second document")
    say(run.ranks, f"held-out text: {100 * found['mlm_accuracy']:.2f}% of the masked words found{beside}, loss "
                   f"{found['mlm_loss']:.4f} nats; {pairs}")
    run.ends(cfg, "checkpoint.pt", *words_after_training(cfg, run.folder, run.folder / "network.py"))


def pretrain(cfg):
    """Train --arch in full (App. D.2), from scratch or --init (a search's: AutoBERT-Zero*)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = read_run(cfg, "pretrain") if cfg.init else None
        arch = settle_arch(cfg)
        set_shards(cfg, ranks)
        run, data = open_run(cfg, "pretrain", ranks, "corpus")
        if run.finished:
            return show_pretrained(run, cfg)
        cfg.steps = cfg.steps or math.ceil(EPOCHS * data.train.slots(cfg.length - 3) / cfg.batch)
        run.settle(cfg)
        seed_everything(cfg.seed, "model")
        model = LanguageModel(arch, cfg)
        if source:
            say(ranks, start_from(model, source))
        model.to(ranks.device)
        bar, clock = progress(ranks, cfg.steps, "pretrain"), []  # clock: [step, seconds] of the last report

        def report(step, losses, rate):
            mlm, nsp = reduce_mean(ranks, *losses.tolist())
            speed = per_second((step - clock[0]) * cfg.batch * cfg.length, clock[1]) if clock else None
            held_out = evaluate_language_model(model, data, cfg, ranks) if step % cfg.save_every == 0 else None
            bar.set_postfix(mlm_loss=f"{mlm:.3f}", lr=f"{rate:.1e}", tok_s=speed or "?")
            bar.update(step - bar.n)
            run.log("pretrain", step, loss=mlm + nsp, mlm_loss=mlm, order_loss=nsp, lr=rate, tokens_per_second=speed,
                    dev=held_out)
            clock[:] = step, time.perf_counter()

        checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, model=model)
        train_language_model(model, data, cfg, ranks, checkpoint, report=report)
        result = evaluate_language_model(model, data, cfg, ranks, batches=64)
        bar.close()
        run.finish({**result, "mlm_constant": data.dev.commonest()})
        show_pretrained(run, cfg)


# --arch and --init: what an action starts from.

SHAPE = ("layers", "hidden", "heads", "ffn", "embedding")
FOLLOWED = ("preset", "length", "dropout", "init_std")  # follow the weights unless a flag says otherwise


def settle_arch(cfg):
    """read_arch of cfg, which keeps the text form."""
    try:
        arch = read_arch(cfg.arch, cfg.layers)
    except ValueError as error:
        raise UserError(f"--arch {cfg.arch}: {error}; names are autobert-zero and bert, "
                        "/att-only or /conv-only behind them") from None
    cfg.arch = arch_text(arch)
    return arch


def read_run(cfg, action="describe"):
    """(weights, architecture or None of a super-net, "--init") of --init, whose shape, tokenizer, preset cfg takes."""
    before = cfg.preset
    owned = read_init(cfg, {"search": SHAPE, "pretrain": (*SHAPE, "arch"), "finetune": (*SHAPE, "arch")}, FOLLOWED)
    if cfg.preset != before:
        preset = {**vars(Config()), **settings_of(PRESETS, cfg.preset, action, ACTIONS)}
        kept = {*SHAPE, *FOLLOWED, *cfg.given, "arch", "tokenizer", "out", "restart"}
        kept.update(PRESETS["dry_run"] if cfg.dry_run else ())
        for name in preset.keys() - kept:
            setattr(cfg, name, preset[name])
    check(cfg, action)
    arch = settle_arch(cfg) if "model" in owned else None
    weights = owned["model" if arch else "supernet"]
    if not arch and "arch" not in cfg.given:
        cfg.arch = str(Path(cfg.init) / "best.json")
        if not Path(cfg.arch).exists():
            raise UserError(f"{cfg.init}: this search is not finished; finish it, or name an --arch")
    if action == "describe":
        pieces = {"vocab_size": len(weights["encoder.words.weight"])}
        take_settings(cfg, pieces, Path(cfg.init), ("vocab_size",))
    return weights, arch, "--init"


def start_from(model, source):
    """Load what read_run returned into a model or a super-net; a line about it."""
    weights, arch, name = source
    if arch is None and not isinstance(model, SuperNet):
        weights = cut_out(weights, model)
    return take_over(model, weights, name, heads=("head",))


def write_best(path, arch, source, cfg, tokenizer, labels=None, length=None):
    """Write a network as FILE.py, .mmd (a drawing), .pt and its vocabulary, from start_from's source; returns its line.
    labels: of the outputs of a task's head; length: tokens of its longest input, by default cfg's."""
    model = TaskModel(arch, cfg, len(labels), labels == SPAN) if labels else LanguageModel(arch, cfg)
    note = start_from(model, source)
    write_network(path, model, cfg, tokenizer, labels, length or cfg.length)
    return note


def export(cfg, name):
    """write_best of --init: a search, a pre-training, or a fine-tuning's RUN/TASK."""
    path, source, labels, length = Path(name), read_run(cfg) if cfg.init else None, None, cfg.length
    if any(path.with_suffix(ending).exists() for ending in (".py", ".mmd", ".pt")):
        raise UserError(f"--export {name}: it, or its .mmd or .pt, is there already; choose another name")
    if path.suffix != ".py" or not path.parent.is_dir() or not source:
        raise UserError(f"--export {name}: name a new .py in a folder that is there, and --init")
    tokenizer = load_tokenizer(cfg.tokenizer)
    beside = path.with_name(tokenizer.file_name)
    if beside.exists() and beside.read_bytes() != tokenizer.path.read_bytes():
        raise UserError(f"--export {name}: {beside} is the vocabulary of another network; choose another folder")
    if "head.weight" in source[0]:
        settings = read_json(Path(cfg.init) / "config.json")["settings"]
        task = settings["tasks"]
        length = settings.get("finetune_length") or recipes(cfg)[task].length
        labels = SPAN if task.startswith("SQuAD") else glue.TASKS[task].labels or ("score",)
    note = write_best(path, settle_arch(cfg), source, cfg, tokenizer, labels, length)
    print(f"{note}\n{path}: written, its weights, drawing and {tokenizer.file_name} beside it")


# Fine-tuning. A job is one run of one task at one setting.


def recipes(cfg):
    """How each task is fine-tuned (App. D.1, D.2), GLUE's rows as long as pre-training's. What they leave out, GLUE's
    batch and SQuAD's length, is BERT's (Sec. 4.1)."""
    paper = dict(lr=2e-5, epochs=3, warmup=0.01)
    found = {name: Recipe(batch=32, length=cfg.length, main=task.metrics[0], **paper)
             for name, task in glue.TASKS.items()}
    if cfg.preset == "small":  # Sec. 4.2, footnote 2
        found |= {name: dataclasses.replace(found[name], main="accuracy") for name in ("MRPC", "QQP")}
    length = 128 if cfg.preset == "demo" else 384
    return found | {"SQuAD1.1": Recipe(batch=32, length=length, main="f1", **paper),
                    "SQuAD2.0": Recipe(batch=48, length=length, main="f1", **{**paper, "epochs": 2})}


def proxy_names(cfg):
    return parse_tasks(cfg.tasks, {**glue.TASKS, "MLM": None}, GROUPS)


def open_proxies(cfg, data):
    """{name: Task} of --tasks; MLM, which comes last, has none."""
    names = proxy_names(cfg)
    kinds = dict.fromkeys(glue.TASKS, functools.partial(GlueTask, search=True))
    tasks = {name: open_task(name, cfg, data.tokenizer, recipes(cfg), kinds) for name in names if name != "MLM"}
    return tasks | ({"MLM": None} if "MLM" in names else {})


def task_loss(task, logits, batch):
    """Cross-entropy of logits (B, classes); a value's squared error; of a span (B, T, 2) the mean of start and end."""
    if task.kind == "span":
        logits = logits.masked_fill(batch["p_mask"][..., None], -1e4)  # no answer there
        return (F.cross_entropy(logits[..., 0], batch["start"]) + F.cross_entropy(logits[..., 1], batch["end"])) / 2
    if task.kind == "value":
        return F.mse_loss(logits[:, 0], batch["labels"])
    return F.cross_entropy(logits, batch["labels"])


@torch.no_grad()
def predict(model, task, split, cfg, device):
    """Logits of a split's rows, on the CPU; raises Diverged where they are no numbers."""
    model.eval()
    with autocast(cfg.dtype, device):
        logits = task.collect(split, lambda batch: model(*(
            send([batch["ids"], batch["segments"], batch.get("lengths")], device))))
    if not logits.isfinite().all():
        raise Diverged(f"{split} of {task.name}: what it predicts is no number")
    return logits


def update_task(model, optimizer, task, batch, cfg, device):
    """One update of fine-tuning from a batch on the device; returns the loss and the norm of the gradient."""
    with autocast(cfg.dtype, device):
        logits = model(batch["ids"], batch["segments"], batch.get("lengths"))
    loss = task_loss(task, logits.float(), batch)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), norm


def train_task(model, task, cfg, device, checkpoint=None, run=None):
    """Fine-tune on one task; its metrics on dev: in a search of the last weights; with a checkpoint, from which it goes
    on, of the best at --eval_every (D20: the paper does not say what it reports), each a line in the run's log. The
    host waits for a GPU in every 20th update, where it looks and where it saves."""
    optimizer, kept = make_optimizer(move(model, device), cfg.weight_decay), {}
    if checkpoint:
        checkpoint.owned.update(model=model, optimizer=optimizer)
        kept = checkpoint.restore()
    begin, best, steps = kept.get("step", 0), kept.get("best"), task.steps
    rows, pace = "look" if "look" in task.splits else "dev", Pace(Ranks(0, 1, device), cfg.save_minutes)
    looks = task.looks(cfg.eval_every, rows) if checkpoint else ()
    batches = prefetch(send(batch, device) for batch in task.batches(cfg.seed, begin))
    for step, batch in zip(range(begin, steps), batches):
        for group in optimizer.param_groups:
            group["lr"] = rate = (cfg.finetune_lr or task.recipe.lr) * schedule(step, steps, task.recipe.warmup)
        seed_everything(cfg.seed, "fine-tuning", task.name, step)
        loss, norm = update_task(model.train(), optimizer, task, batch, cfg, device)
        done, last, (stop, save, _) = step + 1, step + 1 == steps, pace()
        if (last or done % CHECK_EVERY == 0) and not math.isfinite(norm):
            raise Diverged(f"gradient norm {norm} at or before step {done} of {task.name}")
        if done in looks:
            main = task.score(rows, predict(model, task, rows, cfg, device))["main"]
            run.log("finetune", done, every_rank=True, job=checkpoint.path.parent.name, loss=loss.item(), lr=rate,
                    dev={"score": main})
            if not best or main > best[0]:
                best = main, to_host(model.state_dict())
        if checkpoint and (stop or save or done % cfg.save_every == 0):
            checkpoint.save(step=done, best=best)
        if stop:
            raise Stop
    if best:
        model.load_state_dict(send(best[1], device))
    return task.score("dev", predict(model, task, "dev", cfg, device))


def finetune_job(task, cfg, arch, source, folder, data, run):
    """Train one job; its folder gets every split's predictions and the model."""
    seed_everything(cfg.seed, "head", task.name)
    model, diverged, found = TaskModel(arch, cfg, task.outputs, task.kind == "span"), None, {}
    note = start_from(model, source) if source else "from scratch"
    folder.mkdir(exist_ok=True)
    checkpoint = Checkpoint(folder / "training.pt", Ranks(0, 1, data.device))
    try:
        metrics = train_task(model, task, cfg, data.device, checkpoint, run)
        for split in [split for split in task.splits if split not in ("train", "look")]:
            found[split] = predict(model, task, split, cfg, data.device)
            task.write(split, found[split], folder)
        if "dev_mismatched" in found:
            metrics["mismatched"] = task.score("dev_mismatched", found["dev_mismatched"])["main"]
        keep_model(folder, "finetune", dataclasses.replace(cfg, tasks=task.name), data.tokenizer, model=model)
    except Diverged as error:
        metrics, diverged = dict.fromkeys(task.metrics, 0.0), str(error)
    checkpoint.remove()
    return {"job": folder.name, "task": task.name, "setting": [cfg.finetune_lr, cfg.weight_decay, cfg.eval_every],
            "metrics": metrics, "start": note, "diverged": diverged, **task.yardstick(found.get("dev"))}


def answer(cfg, path):
    """Answer a file of the user's own with RUN/TASK of --init."""
    with launch(cfg.device, cfg.dtype) as ranks:
        weights, arch, _ = read_run(cfg, "finetune")
        tokenizer = load_tokenizer(cfg.tokenizer)
        cfg.vocab_size = tokenizer.vocab_size
        task = open_file(path, cfg, tokenizer, recipes(cfg))
        model = TaskModel(arch, cfg, task.outputs, task.kind == "span").to(ranks.device)
        model.load_state_dict(weights)
        outputs = predict(model, task, *task.splits, cfg, ranks.device)
        say(ranks, on_main(ranks, answer_file, path, cfg, task, outputs))


def keep_chosen(folder, result):
    """Delete the models of the jobs that no task's result stands on."""
    chosen = {entry["job"] for entry in result["tasks"].values()}
    for path in folder.glob("*/checkpoint.pt*"):
        if path.parent.name not in chosen:
            path.unlink()


def show_tuned(run, cfg):
    show(run.finished, run.ranks, NINE)
    end_tuning(run, cfg)


def finetune(cfg, text):
    """--runs seeds a task, with --grid at every setting of App. D.2; RTE, STS-B, MRPC go on from the best MNLI job."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = read_run(cfg, "finetune") if cfg.init else None
        paper = recipes(cfg)
        names = parse_tasks(text, paper, GROUPS)
        arch, cfg.tasks = settle_arch(cfg), ",".join(names)
        needs = {"squad" if name.startswith("SQuAD") else "glue" for name in names}
        run, data = open_run(cfg, "finetune", ranks, "tokenizer", *sorted(needs), tasks=names)
        if run.finished:
            return show_tuned(run, cfg)
        run.settle(cfg)
        jobs = {}

        @functools.cache
        def opened(name):
            task = open_task(name, cfg, data.tokenizer, paper)
            if task.kind != "span":
                rows = task.rows["dev"].head(LOOK_ROWS)
                task.splits["look"] = glue.encode(rows, data.tokenizer, task.recipe.length)
            return task

        for name, number in itertools.product(names, range(cfg.runs)):
            one = cfg.finetune_lr or paper[name].lr, cfg.weight_decay, cfg.eval_every
            for lr, decay, every in GRID if cfg.grid else [one]:
                jobs[f"{name}-{number}-{lr}-{decay}-{every}"] = name, dataclasses.replace(
                    cfg, finetune_lr=lr, weight_decay=decay, eval_every=every, seed=cfg.seed + number)

        def work(job, mnli):
            name, own = jobs[job]
            start_at = (load_file(mnli / "checkpoint.pt")["owned"]["model"], arch, mnli.name) if mnli else source
            return finetune_job(opened(name), own, arch, start_at, run.folder / "jobs" / job, data, run)

        results = run_jobs(ranks, run.folder, {job: name for job, (name, _) in jobs.items()}, work)
        result = on_main(ranks, summarise, run.folder, results)
        run.finish(result)
        on_main(ranks, keep_chosen, run.folder / "jobs", result)
        show_tuned(run, cfg)


def rehearsal(cfg, arch, shared=False):
    """(optimizer, step, look) of pre-training on batches without content (shared: of a search's candidate):
    step(rows, shards) is an update, look() the largest evaluation."""
    model = LanguageModel(arch, cfg, shared)
    optimizer, alone = make_optimizer(model, cfg.weight_decay), Ranks(0, 1, model.bias.device)

    def batch(rows):
        T, M = cfg.length, max(1, round(MASK_RATE * rows * cfg.length))
        return ids(rows, T), ids(rows, T), ids(rows), ids(M), ids(M), ids(rows)

    def step(rows, shards):
        own = dataclasses.replace(cfg, accumulate=shards)
        update(model.train(), optimizer, map(batch, [rows] * shards), own, alone, "rehearsal")

    def look():
        _, answers = language_losses(model.eval(), batch(min(32, cfg.batch)), cfg, alone.device)
        return [logits.argmax(-1) for logits, _ in answers]

    return optimizer, step, look


def describe(cfg):
    """Print count of --arch or --init, and what pre-training it takes, as JSON."""
    if cfg.init:
        read_run(cfg)
    arch = settle_arch(cfg)
    needs = forecast(cfg, functools.partial(rehearsal, arch=arch), cfg.steps)
    print(json.dumps({"arch": cfg.arch, **count(arch, cfg), **needs}, indent=2))

# --- command line ---------


def check(cfg, action):
    """Refuse settings that do not go together, and models larger than the memory."""
    check_memory(f"hidden {cfg.hidden}, ffn {cfg.ffn}", cfg.layers, cfg.layers * cfg.hidden * (cfg.hidden + cfg.ffn))
    if cfg.hidden % cfg.heads:
        raise UserError(f"--hidden {cfg.hidden}: must be a multiple of --heads {cfg.heads}")
    if cfg.batch % cfg.accumulate:
        raise UserError(f"--batch {cfg.batch}: must be a multiple of --accumulate {cfg.accumulate}")
    if cfg.init and cfg.warm_times and "warm_times" in cfg.given:
        raise UserError(f"--warm_times {cfg.warm_times}: --init is what the search begins with; leave one out")
    if action == "search" and not cfg.steps:
        raise UserError("--steps 0: a candidate needs updates")
    if cfg.init and Path(cfg.init).resolve() == Path(cfg.out).resolve():
        raise UserError(f"--out {cfg.out}: is --init too; choose another")


ACTIONS = {
    "search": (search, "search for an architecture (Alg. 1)"),
    "pretrain": (pretrain, "train --arch in full (App. D.2)"),
    "finetune": (finetune, "fine-tune --arch or --init on tasks (CoLA, ..., SQuAD1.1, glue, squad)", "TASKS"),
    "predict": (answer, "answer a file of your own (TSV or SQuAD JSON) with RUN/TASK of --init", "FILE"),
    "export": (export, "write the network of --init as a module of plain torch, its weights and vocabulary", "FILE.py"),
    "describe": (describe, "parameters, FLOPs, memory, cards and days of --arch as JSON")}


def main(argv=None):
    """Run one action."""
    return start(Config, PRESETS, ACTIONS, __doc__, check, argv)


if __name__ == "__main__":
    if "run" not in globals():
        print("autobert_zero.py alone is to be imported: operations, model, super-net and searcher; "
              "its commands need common/ and data/ of its repository beside it", file=sys.stderr)
        sys.exit(2)
    run(main)
