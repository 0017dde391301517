"""AutoBERT-Zero: Evolving BERT Backbone from Scratch (Gao, Xu, Shi, Ren, Yu, Liang, Jiang, Li; AAAI
2022, arXiv:2107.07445v3).

A search finds the backbone of a language model. Each layer is a lightweight convolution or an
attention: a graph of primitive operations on two to four projections of its input. OP-NAS, an
evolution, proposes candidates: its mutations prefer operations with high scores so far. A super-net
with shared weights (BIWS) makes candidates cheap to evaluate.

With scores as fractions the preference has almost no effect (D36): with the paper's alpha of 0.01
and mean scores of 0.77 to 0.83, ten operations have probabilities of 0.097 to 0.103. The paper
gives no unit. In percent the best operation would be drawn most of the time.

Run:     python autobert_zero.py --search --dry_run     a few steps of every phase, under a minute
         torchrun --nproc_per_node=2 autobert_zero.py --search     demo data, about 3 minutes
         python autobert_zero.py --search --preset base --corpus DIR --glue DIR   as in the paper
Map:     Table 1 -> infer, table_1        Eq. 1, 2 -> AttentionMixer       Fig. 7 -> PUBLISHED
         Sec. 3.1 -> ConvMixer, sample_arch, grow    Eq. 3 -> ucb    Fig. 3 -> SuperNet, slot
         Alg. 1 -> op_nas                 App. D.1 -> score_candidate      App. D.2 -> pretrain
         Fig. 6, Table 7 -> tests/claims          Table 5, Fig. 5 -> EXERCISES.md
         Fig. 8 needs many full trainings: tests/claims, table and sharing, has small ones
         Fig. 9 to 11 are drawings that the text does not give
Symbols: the paper's           here                              shape
         n, d, d_h, H or A     T, hidden, head_dim, heads
         X, W_Q to W_P, W_O    x, inputs, output                 (B, T, H), (I H, H), (H, H)
         Q, K, V, P            INPUTS                            (B, N, T, D) each
         kernel, its matrix    kernel, transform                 (N, K), (K, K)
         super-net             SuperNet, slot
         M, A, K, P            history, sample_arch, parents     Alg. 1
         p, p', c              parent, child                     Alg. 1
         u_i, mu_i, N_i, N     bounds, mu, N_i, N                Eq. 3, one each for an operation
         p_1 ... p_n           probabilities                     Sec. 3.2
Tour:    infer, path_of, table_1, run_graph, AttentionMixer, ConvMixer (what a layer can be),
         SuperNet (how candidates share weights), train_step, ucb, OperationPriority, mutate,
         propose, score_candidate, op_nas (Alg. 1). Skip at first: canonical, the text form,
         find_softmax_attention, band_matrix, slot, grow, the edits, and what follows op_nas.
Differs: There are 51 departures from the paper, D1 to D51: grep -n '# D[0-9]' autobert_zero.py
"""
import ast
import collections
import copy
import dataclasses
import functools
import itertools
import json
import math
import random
import shlex
import shutil
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Literal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute
from torch.utils.flop_counter import FlopCounterMode

if (Path(__file__).parent / "common" / "launch.py").exists():  # a copy of this file has no commands
    from common import cli, glue
    from common.cli import Diverged, UserError
    from common.files import jsonl, load_file, read_json, save_file, write_atomic, write_json
    from common.finetune import (
        Method, Recipe, Tuning, fine_tune, finetune_tasks, open_task, parse_tasks, percent,
        predict_file, print_summary, shown_name)
    from common.finetune import predict as predict_split
    from common.folder_task import export_head, read_spec
    from common.launch import (
        Ranks, autocast, fit_accumulate, gather, generator_of, launch, layer_activations,
        micro_batch_numbers, move, no_sync_until, on_main, prepare_model, print0, print_device_use,
        reduce_mean, seed_everything, send, to_host, total_over, training_cost)
    from common.run import Loop, Run, load_weights, read_run, set_rate, settings_from
    from data.corpus import join
    from data.inputs import open_data, open_tokenizer, print_after_training, print_near_baseline
    from data.network_code import SPAN, refuse_to_overwrite, write_hugging_face, write_network

# B batch, T tokens, H hidden, N heads, D head dim, V vocab, E embedding, M masked, K kernel,
# I inputs of an attention


# --- configuration --------

@dataclasses.dataclass(frozen=True)
class Config:
    """The settings. A trailing comment is the help text of the flag and ends in its range. Flags
    override presets, and presets override defaults. The defaults are the preset base. The command
    line starts from the preset demo."""
    preset: str = "base"  # demo (minutes on two cores) | small | base | large (Table 6)
    seed: int = 0  # random seed [0, 4294967295]
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs that have it
    accumulate: int = 1  # micro-batches per step. Default: raised to fit the processes [>= 1]
    dry_run: bool = False  # run a few steps of every phase, unless flags say otherwise
    init: str = ""  # run folder to start from: a search's super-net, a pre-training, RUN/TASK
    # D1 (ours): the default vocabulary is SentencePiece's, trained on the corpus, or without one
    # on the training text of the tasks. The paper has WordPiece
    tokenizer: str = ""  # vocab.txt (the paper's kind) or spiece.model. Default: trained
    weight_decay: float = 0.01  # of AdamW. BERT's in pre-training, App. D.1's in fine-tuning
    # execution: may differ when a run continues
    out: str = ""  # run folder. Default: runs/autobert_zero-ACTION-PRESET
    restart: bool = False  # rename the run in the run folder and start again
    device: str = "auto"  # auto (cuda, else cpu) | cpu | cuda | mps, xpu (not tested)
    compile: bool = False  # torch.compile, in pre-training
    recompute: bool = False  # activation recomputation: half the memory, a third more time
    save_every: int = 1000  # steps between checkpoints and, in --pretrain, evaluations [>= 1]
    tensorboard: bool = False  # also log to RUN/tensorboard (pip install tensorboard)
    cache: str = ""  # folder of vocabularies and token files. Default: data/cache
    # text
    corpus: tuple[str, ...] = ()  # text files or folders. Default: demo text, in --finetune none
    vocab_size: int = 30000  # tokens, App. D.2 [>= 1]
    # D2 (silent): pre-training is evaluated on held-out documents
    held_out: float = 0.05  # documents: fraction (below 1, capped at 1,000) or count [> 0]
    # architecture
    arch: str = "autobert-zero"  # autobert-zero | bert | text form | best.json
    # model
    layers: int = 12  # L [1, 1000]
    hidden: int = 768  # d [>= 1]
    heads: int = 12  # A [>= 1]
    ffn: int = 3072  # d_ff [>= 1]
    embedding: int = 0  # of tokens. 0: hidden. 128: small's 13M of Table 4 (Table 6's 256: 16.8M)
    length: int = 128  # tokens in a sequence, special ones included [8, 512]
    dropout: float = 0.1  # hidden and attention dropout, Table 6 [0, 1)
    init_std: float = 0.02  # of the initial weights. 0.02 suits widths near 768 [0.001, 0.2]
    # pre-training (in --search, of a candidate)
    steps: int = 40000  # Sec. 4.1. 0: 40 passes over the corpus, App. D.2, --pretrain only
    batch: int = 160  # sequences per step, App. D.1 [>= 1]
    lr: float = 2e-4  # peak learning rate, App. D.1 [> 0]
    warmup: float = 0.02  # fraction of the steps, App. D.1 [0, 1]
    short: float = 0.0  # fraction of the steps, at the start, with length / 4 (D26) [0, 1]
    # tasks
    glue: str = ""  # folder of the GLUE tasks, official layout. Default: demo tasks
    squad: str = ""  # folder of train-v1.1.json, ... Default: demo questions
    columns: str = ""  # text columns of your own task: NAME[,NAME]. Default: usual names
    labels: Literal["auto", "classes", "numbers"] = "auto"  # of your own task
    train_examples: int = 0  # training examples of each task (0: all)
    # fine-tuning, by default as in recipes()
    finetune_lr: float | None = None  # peak learning rate [> 0]
    finetune_batch: int | None = None  # examples per step [>= 1]
    finetune_epochs: int | None = None  # passes over the examples [>= 1]
    finetune_length: int | None = None  # tokens in an input. Default: --length, SQuAD 384 [8, 512]
    # scores of --finetune
    eval_every: int = 100  # steps between evaluations on dev, App. D.2. 0: up to 20 in all
    runs: int = 1  # seeds of each fine-tuning. The median is reported [>= 1]
    # search
    tasks: str = "CoLA,MRPC,STS-B,SST-2,QQP,MNLI,QNLI,RTE"  # proxy tasks, or folders
    strategy: Literal["op-nas", "evolution", "random"] = "op-nas"  # evolution: uniform mutations
    population: int = 100  # initial random candidates, Sec. 4.1 [>= 1]
    # D3 (ours): a search has a fixed number of rounds. Alg. 1 runs until convergence. 100 + 27 x
    # 25 = 775 candidates
    rounds: int = 27  # after the population
    parents: int = 5  # K of Alg. 1, Sec. 4.1 [>= 1]
    children: int = 5  # of each parent, Sec. 4.1 [>= 1]
    alpha: float = 0.01  # exploration in Eq. 3, c of App. D.1. Weak below 0.1 [0, 1000]
    weight_sharing: Literal["biws", "none"] = "biws"  # biws: candidates write weights back | none
    finalists: int = 0  # best candidates trained again, alone (D48). 0: none, as in the paper
    finalist_times: int = 1  # finalists get this many times a candidate's steps and examples [>= 1]
    warm_times: int = 0  # the warm start has this many times --steps (D47). 0 or --init: none


PRESETS = {
    "small": dict(
        hidden=256, heads=4, ffn=1024,
        pretrain=dict(lr=1e-4, warmup=0.01, batch=320, steps=0),
        finetune=dict(runs=3)),
    "base": dict(
        pretrain=dict(lr=1e-4, warmup=0.01, steps=0)),
    "large": dict(
        layers=24, hidden=1024, heads=16, ffn=4096,
        pretrain=dict(lr=1e-4, warmup=0.02, batch=80, steps=0)),
}
EPOCHS = 40  # of --pretrain with --steps 0, App. D.2


# --- search space ---------

# An architecture is a tuple of layers. A layer is an int, the kernel size of a convolution, or an
# expression, an attention. An expression is a nested tuple of inputs and operations, such as
# ("matmul", ("softmax", ("matmul", "Q", ("transpose", "K"))), "V"). Equal sub-expressions are one
# operation. A shape is "nd" (tokens x head dim), "dn", "nn" or "dd".
# D4 (ours): an attention has at most 12 operations. The paper sets no limit, and Figure 7's
# longest has 11
MAX_PATH = 12
KERNELS = (3, 5, 7, 9, 15, 31, 65)  # Sec. 3.1, Inter-layer (1)
INPUTS = ("Q", "K", "V", "P")  # Sec. 3.1, Intra-layer (1)
UNARY = ("neg", "transpose", "scale", "softmax", "logsigmoid", "softsign")  # Table 1
PRODUCTS = ("matmul", "cosine", "euclidean")  # Table 1, the binary operations that sum over an axis
BINARY = ("add", *PRODUCTS)  # Table 1
# D5 (ours): operations take matrices alone, no scalars as in Sec. 3.1. They suffice for all of
# Figure 7
OPS = UNARY + BINARY


def infer(op, *shapes):
    """The shape of an operation's result, or None if it is illegal on operands of these shapes.

    >>> infer("matmul", "nd", "dn"), infer("matmul", "nd", "nd"), infer("cosine", "nd", "nd")
    ('nn', None, 'nn')
    """
    if None in shapes:
        return None
    first = shapes[0]
    second = shapes[-1]
    if op == "transpose":
        return first[::-1]
    if op in UNARY:
        return first
    if op == "add":
        return first if first == second else None
    if op == "matmul":
        return first[0] + second[1] if first[1] == second[0] else None
    # D6 (silent): cosine and euclidean compare the rows of both matrices, n x d and m x d -> n x m,
    # so that they can score
    return first[0] + second[0] if first[1] == second[1] else None


def path_of(expression):
    """{operation: shape} of the distinct operations of an expression, in order of evaluation. The
    shape of an illegal operation is None.

    >>> path = path_of(("matmul", ("matmul", "Q", ("transpose", "K")), "V"))
    >>> {formula(operation): shape for operation, shape in path.items()}
    {'K.T': 'dn', 'Q @ K.T': 'nn', 'Q @ K.T @ V': 'nd'}
    """
    path = {}

    def visit(part):
        """The shape of an input or an operation. Its operands precede it in the path."""
        if part in INPUTS:
            return "nd"
        if part not in path:
            op, *operands = part
            path[part] = infer(op, *map(visit, operands))
        return path[part]

    visit(expression)
    return path


def count_reads(expression):
    """{input or operation: how often the operations of an expression read it}."""
    return collections.Counter(
        operand for _, *operands in path_of(expression) for operand in operands)


def used_inputs(expression):
    """The inputs that an expression reads, in the order of INPUTS."""
    reads = count_reads(expression)
    return [name for name in INPUTS if reads[name]]


def names_in(expression):
    """The operations and inputs of an expression, from left to right in its nested tuple."""
    if expression in INPUTS:
        return [expression]
    op, *operands = expression
    return sum(map(names_in, operands), [op])


def canonical(expression):
    """The form for comparing expressions: the operands of add are sorted.

    >>> canonical(("add", ("add", "K", "Q"), "P"))
    ('add', 'P', ('add', 'Q', 'K'))
    """

    def order(operand):
        """The number of operations, then the operations, then the inputs."""
        names = names_in(operand)
        operations = [name for name in names if name in OPS]
        inputs = [INPUTS.index(name) for name in names if name in INPUTS]
        return len(operations), operations, inputs

    if expression in INPUTS:
        return expression
    op, *operands = expression
    operands = [canonical(operand) for operand in operands]
    if op == "add":
        operands.sort(key=order)
    return op, *operands


def why_illegal(expression):
    """None for a legal attention, else the reason."""
    path = path_of(expression)
    if not path:
        return "it does not end in an operation"
    if None in path.values():
        return "the shapes of an operation's operands do not fit"
    if path[expression] != "nd":
        return "the output is not tokens x head dim"
    if len(used_inputs(expression)) < 2:
        return "an attention reads 2 to 4 of Q, K, V, P"
    if len(path) > MAX_PATH:
        return f"it has {len(path)} operations, more than {MAX_PATH}"
    return None


def searchable(expression):
    """Whether a search may propose an attention."""
    # D7 (ours): a searched attention mixes tokens, by a product or a softmax over tokens. The
    # paper does not ask for it
    mixes = any(op in PRODUCTS or (op, shape) == ("softmax", "dn")
                for (op, *_), shape in path_of(expression).items())
    return mixes and not why_illegal(expression)


# The text form joins layers by " | ". A convolution is "conv65". An attention is a formula, and a
# result that is read twice has a name: "a = logsigmoid(Q); softmax(scale(a @ K.T)) @ a".
TEXT = {
    "neg": "neg({})", "transpose": "{}.T", "scale": "scale({})", "softmax": "softmax({})",
    "logsigmoid": "logsigmoid({})", "softsign": "softsign({})", "add": "({} + {})",
    "matmul": "({} @ {})", "cosine": "cos({}, {})", "euclidean": "dist({}, {})"}


def formula(expression):
    """The text form of an expression."""
    reads = count_reads(expression)
    names = iter("abcdefghijklmnopqrstuvwxyz")
    statements = []
    texts = dict(zip(INPUTS, INPUTS))
    for part in path_of(expression):
        op, *operands = part
        text = TEXT[op].format(*[texts[operand] for operand in operands])
        if reads[part] > 1:
            name = next(names)
            statements.append(f"{name} = {text}")
            text = name
        texts[part] = text
    tree = ast.parse("; ".join([*statements, text]))
    return ast.unparse(tree).replace("\n", "; ")  # without needless parentheses


def read_tree(tree, names):
    """The expression of a Python syntax tree. names: {name: expression}. Raises OverflowError if it
    is too long, and ValueError or KeyError if it is not a formula."""
    match tree:
        case ast.Name(name):
            return names[name]
        case ast.BinOp(left, ast.Add(), right):
            parts = "add", left, right
        case ast.BinOp(left, ast.MatMult(), right):
            parts = "matmul", left, right
        case ast.Attribute(value, "T"):
            parts = "transpose", value
        case ast.Call(ast.Name(name), values, []):
            parts = {"cos": "cosine", "dist": "euclidean"}.get(name, name), *values
        case _:
            raise ValueError
    op, *operands = parts
    if op not in OPS or len(operands) != (1 if op in UNARY else 2):
        raise ValueError
    expression = op, *[read_tree(operand, names) for operand in operands]
    if len(path_of(expression)) > MAX_PATH:  # early: repeated "c = a + a" grows exponentially
        raise OverflowError
    return expression


def parse_formula(text):
    """The canonical expression of a formula. Raises ValueError with the reason."""
    names = dict(zip(INPUTS, INPUTS))
    shown = repr(text if len(text) < 200 else text[:200] + "...")
    try:
        *assignments, output = ast.parse(text.strip()).body
        for statement in assignments:
            name = statement.targets[0].id
            if name in names:  # a result has one name, and inputs keep theirs
                raise ValueError
            names[name] = read_tree(statement.value, names)
        expression = canonical(read_tree(output.value, names))
    except (OverflowError, RecursionError, MemoryError):
        raise ValueError(f"{shown}: more than {MAX_PATH} operations") from None
    except (SyntaxError, AttributeError, KeyError, ValueError):
        raise ValueError(f"{shown} is not a formula of Q, K, V, P: x + y, x @ y, x.T, neg, scale, "
                         "softmax, logsigmoid, softsign, cos, dist") from None
    if reason := why_illegal(expression):
        raise ValueError(f"{shown}: {reason}")
    return expression


def arch_text(arch):
    """The text form of an architecture (parse_arch reads it)."""
    layers = [f"conv{layer}" if isinstance(layer, int) else formula(layer) for layer in arch]
    return " | ".join(layers)


@functools.cache
def parse_arch(text):
    """The architecture of a text form. Raises ValueError that names the wrong layer."""
    kernels = {f"conv{size}": size for size in KERNELS}
    layers = []
    for number, part in enumerate(text.split("|"), 1):
        try:
            layers.append(kernels.get(part.strip()) or parse_formula(part))
        except ValueError as error:
            raise ValueError(f"layer {number}: neither {', '.join(kernels)}, nor a legal "
                             f"attention: {error}") from None
    return tuple(layers)


BERT_ATTENTION = "softmax(scale(Q @ K.T)) @ V"  # Eq. 2
PUBLISHED = " | ".join((  # Figure 7: six pairs of a convolution and an attention
    "conv65 | softmax(scale(Q @ neg(logsigmoid(neg(K)).T))) @ (K + Q)",
    "conv9 | softmax(scale(Q @ neg((logsigmoid(logsigmoid(Q) + (Q + K))).T))) @ Q",
    "conv3 | softmax(scale(Q @ neg(logsigmoid(K).T))) @ Q",
    "conv7 | softmax(scale(Q @ neg(logsigmoid(K).T))) @ Q",
    # D8 (conflict): layers 10 and 12 add plain V, as the text has for layer 12. The figure's `add`
    # has one operand
    "conv7 | softmax(scale(Q @ (scale(K) + (softsign(scale(softsign(K))) + V)).T)) @ V",
    "conv3 | softmax(scale(Q @ (scale(K) + V).T)) @ V",
))
# D9 (ours): AutoBERT-att, -conv and w/o-desc (Tables 2, 3) are not built. The paper only draws
# them


def stretch(arch, layers):
    """Evenly spaced pairs of layers of an architecture, for another depth. Twice the depth repeats
    each pair after itself (App. D.2, large). An odd depth drops the last layer."""
    # D10 (ours): depths other than 12 and 24 have evenly spaced pairs. The paper has no other
    # depths
    pairs = [arch[first:first + 2] for first in range(0, len(arch), 2)]
    last = len(pairs) - 1
    count = (layers + 1) // 2
    result = ()
    for index in range(count):
        result += pairs[round(index * last / max(count - 1, 1))]
    return result[:layers]


def read_arch(name, layers):
    """The architecture of --arch and --layers. Raises ValueError with the reason."""
    if name.endswith(".json"):
        try:
            name = json.loads(Path(name).read_text(encoding="utf-8"))["arch"]
            if not isinstance(name, str):
                raise TypeError
        except OSError:
            raise ValueError("no such file; name the best.json of a search") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError("it has no architecture; name a best.json") from None
    named = {"autobert-zero": PUBLISHED, "bert": " | ".join([BERT_ATTENTION] * layers)}
    arch = parse_arch(named.get(name, name))
    doubled = len(arch) % 2 == 0 and layers == 2 * len(arch)
    if name == "autobert-zero" or doubled:
        arch = stretch(arch, layers)
    if len(arch) != layers:
        raise ValueError(f"it has {len(arch)} layer(s); set --layers {len(arch)}")
    return arch


# --- model ----------------

def cosine(x, y):
    """Cosine similarity of each row of x (B, N, n, d) with each of y (B, N, m, d): (B, N, n, m)."""
    x = F.normalize(x, dim=-1, eps=1e-6)
    y = F.normalize(y, dim=-1, eps=1e-6)
    return x @ y.transpose(-1, -2)


def euclidean(x, y):
    """Distance of each row of x (B, N, n, d) from each of y (B, N, m, d): (B, N, n, m). A matrix
    product avoids a buffer of (B, N, n, m, d). Autocast keeps it in float32."""
    distances = torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist")
    # D11 (ours): a distance is at least 0.001. Less is rounding error, which a later cosine
    # amplifies
    return distances.clamp_min(0.001)


def table_1(head_dim):
    """The operations of Table 1 as functions of (B, N, *, *) tensors."""
    return {
        "neg": torch.neg,
        "transpose": lambda x: x.transpose(-1, -2),
        # D12 (conflict): scale divides by the root of Eq. 2's d_h. Table 1 has d_x and does not
        # define it
        "scale": lambda x: x / math.sqrt(head_dim),
        "softmax": lambda x: F.softmax(x, dim=-1),
        "logsigmoid": F.logsigmoid,
        # D13 (conflict): softsign is x / (1 + |x|), as in arXiv's Table 1. AAAI's x / (1 + x) has a
        # pole
        "softsign": F.softsign,
        "add": torch.add,
        "matmul": torch.matmul,
        "cosine": cosine,
        "euclidean": euclidean,
    }


def fill_padding(x, axis, value, mask):
    """Replace the padding of x (B, N, *, *) by a value. axis: the axis of tokens, -2 or -1. mask:
    (B, T), True at real tokens, or None."""
    if mask is None:
        return x
    visible = mask[:, None, :, None] if axis == -2 else mask[:, None, None, :]
    return torch.where(visible, x, value)


def hide_padding(op, operands, shape, mask):
    """The operands of an operation, with padding replaced so that sums over tokens ignore it.
    shape: of the first operand. Sums run over its last axis."""
    # D14 (silent): no sum includes padding
    if shape[1] != "n":
        return operands
    x = operands[0]
    y = operands[-1]
    if op == "softmax":
        return [fill_padding(x, -1, -math.inf, mask)]
    if op in ("cosine", "euclidean"):  # they sum over the last axis of both
        return [fill_padding(x, -1, 0.0, mask), fill_padding(y, -1, 0.0, mask)]
    if op == "matmul":
        return [x, fill_padding(y, -2, 0.0, mask)]  # one side is enough: x is finite
    return operands


def run_graph(path, inputs, mask=None, dropout=0.0):
    """{input or operation: its value (B, N, *, *)} of a path_of(expression).

    inputs: {name: (B, N, T, D)}. mask: (B, T), True at real tokens, or None."""
    values = dict(inputs)
    table = table_1(head_dim=next(iter(inputs.values())).shape[-1])
    for operation, shape in path.items():
        op, *parts = operation
        operands = [values[part] for part in parts]
        operands = hide_padding(op, operands, path.get(parts[0], "nd"), mask)
        values[operation] = table[op](*operands)
        # D15 (silent): only an n x n softmax has dropout. The paper does not say where
        if (op, shape) == ("softmax", "nn"):
            values[operation] = F.dropout(values[operation], dropout)
    return values


def find_softmax_attention(expression):
    """(A, X, C) if the expression is softmax(scale(A @ X)) @ C, else None.

    It runs as scaled_dot_product_attention, which does not store the n x n weights. A and C must be
    "nd" and X "dn". No other operation may read softmax(...), scale(...) or A @ X.
    """
    match expression:
        case "matmul", ("softmax", ("scale", ("matmul", A, X) as scores) as scaled) as weights, C:
            path = path_of(expression)
            shapes = path.get(A, "nd"), path.get(X, "nd")
            reads = count_reads(expression)
            read_once = all(reads[part] == 1 for part in (weights, scaled, scores))
            if shapes == ("nd", "dn") and read_once:
                return A, X, C
    return None


def softmax_attention(query, key, value, mask, dropout):
    """softmax(scale(query @ key)) @ value of (B, N, T, D), (B, N, D, T) and (B, N, T, D)."""
    value = fill_padding(value, -2, 0.0, mask)
    visible = None if mask is None else mask[:, None, None, :]  # (B, 1, 1, T)
    return F.scaled_dot_product_attention(query, key.transpose(-1, -2), value, visible, dropout)


class AttentionMixer(nn.Module):
    """Projections of x, an expression in each head, and W_O (Eq. 1). x (B, T, H), mask (B, T) ->
    (B, T, H)."""

    def __init__(self, expression, hidden, heads, dropout):
        super().__init__()
        self.expression = expression
        self.heads = heads
        self.dropout = dropout
        self.reads = used_inputs(expression)
        self.fused = find_softmax_attention(expression)
        self.path = {}  # for run_graph: everything, or the operands of the fused attention
        for part in self.fused or [expression]:
            self.path |= path_of(part)
        self.inputs = nn.Linear(hidden, len(self.reads) * hidden)  # W_Q, W_K, W_V, W_P
        self.output = nn.Linear(hidden, hidden)  # W_O

    def forward(self, x, mask):
        B, T, H = x.shape
        I = len(self.reads)
        N = self.heads
        stacked = self.inputs(x).view(B, T, I, N, H // N)  # (B, T, I, N, D)
        inputs = dict(zip(self.reads, stacked.permute(2, 0, 3, 1, 4)))  # I x (B, N, T, D)
        dropout = self.dropout if self.training else 0.0
        values = run_graph(self.path, inputs, mask, dropout)
        if self.fused:
            query, key, value = [values[part] for part in self.fused]
            mixed = softmax_attention(query, key, value, mask, dropout)
        else:
            mixed = values[self.expression]  # (B, N, T, D)
        return self.output(mixed.transpose(1, 2).reshape(B, T, H))


BAND_FROM = 9  # smallest kernel that runs as a band matrix: 1.2 to 1.5 times a demo step's speed
BAND_TOKENS = 1024  # longest sequence that runs as a band matrix


def band_matrix(weights, T):
    """(N, T, T): multiplying by it convolves T tokens with kernels (N, K).

    Row t holds the kernel, centred at column t:

    >>> band_matrix(torch.tensor([[1, 2, 3]]), T=3)[0].tolist()
    [[2, 3, 0], [1, 2, 3], [0, 1, 2]]

    T copies of a kernel a b c, each followed by T zeros, are a b c 0 0 0 a b c 0 0 0 a b c 0 0 0.
    In rows of T + K - 1 = 5, each copy begins one column later. The middle T columns are the
    result:

        a | b c 0 | 0
        0 | a b c | 0
        0 | 0 a b | c
    """
    N, K = weights.shape
    copies = F.pad(weights[:, None].expand(N, T, K), (0, T)).flatten(1)  # (N, T (K + T))
    rows = copies[:, :T * (T + K - 1)].view(N, T, T + K - 1)
    return rows[..., K // 2:K // 2 + T]


def light_conv(x, kernel):
    """Lightweight convolution (Wu et al. 2018) of x (B, T, H). A softmax normalises the kernel (N,
    K). The channels of a head share one row of it."""
    B, T, H = x.shape
    N, K = kernel.shape
    weights = F.softmax(kernel.float(), dim=-1).to(x.dtype)
    if K < BAND_FROM or T > BAND_TOKENS or x.is_meta:  # on meta: for count()
        weights = weights.repeat_interleave(H // N, dim=0)[:, None]  # (N, K) -> (H, 1, K)
        return F.conv1d(x.transpose(1, 2), weights, padding=K // 2, groups=H).transpose(1, 2)
    heads = x.view(B, T, N, H // N).permute(2, 1, 0, 3)  # (N, T, B, D)
    mixed = band_matrix(weights, T) @ heads.flatten(2)  # (N, T, B D)
    return mixed.view_as(heads).permute(2, 1, 0, 3).reshape(B, T, H)


class ConvMixer(nn.Module):
    """Linear d -> 2d, GLU, lightweight convolution, linear d -> d (Sec. 3.1, Inter-layer (1)).

    shared: the kernel is the centre of the super-net's 65-kernel, adapted by a transform (Sec. 3.2,
    BIWS (1)). x (B, T, H), mask (B, T) -> (B, T, H).
    """

    def __init__(self, size, hidden, heads, shared=False):
        super().__init__()
        self.inputs = nn.Linear(hidden, 2 * hidden)
        # D16 (silent): kernels start random. With zeros all heads would average alike
        self.kernel = nn.Parameter(torch.randn(heads, size))
        self.transform = nn.Parameter(torch.eye(size)) if shared and size < max(KERNELS) else None
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x, mask):
        x = F.glu(self.inputs(x), dim=-1)  # (B, T, 2H) -> (B, T, H)
        if mask is not None:
            x = torch.where(mask[..., None], x, 0.0)  # D14
        kernel = self.kernel if self.transform is None else self.kernel @ self.transform
        return self.output(light_conv(x, kernel))


class Layer(nn.Module):
    """BERT's post-norm layer with another mixer. x (B, T, H), mask (B, T) -> (B, T, H)."""

    def __init__(self, layer, cfg, shared):
        super().__init__()
        if isinstance(layer, int):
            self.conv = ConvMixer(layer, cfg.hidden, cfg.heads, shared)
        else:
            self.attention = AttentionMixer(layer, cfg.hidden, cfg.heads, cfg.dropout)
        self.mixer_norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.fc1 = nn.Linear(cfg.hidden, cfg.ffn)
        self.fc2 = nn.Linear(cfg.ffn, cfg.hidden)
        self.ffn_norm = nn.LayerNorm(cfg.hidden, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, mask):
        mixer = self.conv if hasattr(self, "conv") else self.attention
        x = self.mixer_norm(x + self.dropout(mixer(x, mask)))
        return self.ffn_norm(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class Encoder(nn.Module):
    """Embeddings and layers. ids, token type ids (B, T), lengths (B,) -> (B, T, H).

    lengths: real tokens in each sequence, or None if there is no padding.
    """

    def __init__(self, arch, cfg, shared=False):
        super().__init__()
        E = cfg.embedding or cfg.hidden
        self.arch = arch
        self.recompute = cfg.recompute
        self.token_embedding = nn.Embedding(cfg.vocab_size, E)
        self.position_embedding = nn.Embedding(512, E)
        self.token_type_embedding = nn.Embedding(2, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        self.project = nn.Linear(E, cfg.hidden) if E != cfg.hidden else nn.Identity()
        self.layers = nn.ModuleList(Layer(layer, cfg, shared) for layer in arch)
        init_weights(self, cfg.init_std)

    def forward(self, ids, token_type_ids, lengths):
        T = ids.shape[1]
        positions = torch.arange(T, device=ids.device)
        mask = None
        if lengths is not None:
            # an empty sequence sees its first token: a softmax over nothing is NaN
            mask = positions < lengths.clamp(min=1)[:, None]  # (B, T)
        x = self.token_embedding(ids) + self.position_embedding(positions)  # (B, T, E)
        x = x + self.token_type_embedding(token_type_ids)
        x = self.project(self.dropout(self.norm(x)))  # (B, T, H)
        for layer in self.layers:
            if self.recompute and self.training:
                x = recompute(layer, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
        return x


def init_weights(model, std):
    """BERT's initialisation."""
    # D17 (silent): weights are not truncated at two standard deviations
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class LanguageModel(nn.Module):
    """Encoder with heads for masked tokens and for next-sentence prediction."""

    def __init__(self, arch, cfg, shared=False):
        super().__init__()
        E = cfg.embedding or cfg.hidden
        self.encoder = Encoder(arch, cfg, shared)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        # D18 (conflict): all sizes train NSP too, as in Sec. 4.1 and App. D.2. Table 4 lists MLM
        # alone for small and large
        self.next_sentence = nn.Linear(cfg.hidden, 2)
        self.transform = nn.Linear(cfg.hidden, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))  # the matrix is tied to the embedding
        init_weights(self, cfg.init_std)

    def forward(self, batch):
        """MLM logits (M, V) at the masked_positions (M,) in ids.flatten(), and NSP logits (B,
        2)."""
        x = self.encoder(batch["ids"], batch["token_type_ids"], batch.get("lengths"))  # (B, T, H)
        masked = x.flatten(0, 1)[batch["masked_positions"]]  # (M, H)
        masked = self.norm(F.gelu(self.transform(masked)))  # (M, E)
        logits = F.linear(masked, self.encoder.token_embedding.weight, self.bias)  # (M, V)
        return logits, self.next_sentence(torch.tanh(self.pooler(x[:, 0])))


class TaskModel(nn.Module):
    """Encoder and linear head. A batch {"ids", "token_type_ids" (B, T), "lengths" (B,) unless all
    are full, ...} -> logits (B, outputs) of [CLS], or (B, T, outputs) of spans. One output is a
    regression."""

    def __init__(self, arch, cfg, outputs, spans=False, shared=False):
        super().__init__()
        self.encoder = Encoder(arch, cfg, shared)
        self.spans = spans
        self.dropout = nn.Dropout(cfg.dropout)
        if not spans:
            self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.head = nn.Linear(cfg.hidden, outputs)
        init_weights(self, cfg.init_std)

    def forward(self, batch):
        x = self.encoder(batch["ids"], batch["token_type_ids"], batch.get("lengths"))  # (B, T, H)
        if self.spans:
            return self.head(x)
        return self.head(self.dropout(torch.tanh(self.pooler(x[:, 0]))))

    def loss(self, batch):
        """Cross-entropy of classes, squared error of a regression, or the mean cross-entropy of a
        span's start and end."""
        logits = self(batch).float()
        if self.spans:
            logits = logits.masked_fill(batch["p_mask"][..., None], -1e4)  # no answer there
            start, end = logits.unbind(-1)  # 2 x (B, T)
            start_loss = F.cross_entropy(start, batch["start"])
            end_loss = F.cross_entropy(end, batch["end"])
            return (start_loss + end_loss) / 2
        if logits.shape[1] == 1:
            return F.mse_loss(logits[:, 0], batch["labels"])
        return F.cross_entropy(logits, batch["labels"])


def count_parameters(module):
    return sum(value.numel() for value in module.parameters())


def distance_flops(x, y, **others):
    """FLOPs of torch.cdist, from the shapes of its operands."""
    return 2 * math.prod(x) * y[-2]


def count(arch, cfg):
    """The parameters of a LanguageModel and the FLOPs of a forward pass of 128 tokens.

    attention_parameters is "#Params of Att" of Tables 3 and 5: the input projections of the mixers,
    without W_O.
    """
    # D19 (ours): FLOPs are of matrix products and convolutions, and embeddings are look-ups. App.
    # D.3 counts as ELECTRA, which adds element-wise operations, and embeddings as products. Neither
    # count gives the 2.3e10 of Table 2: here 2.06e10, and with embeddings as products 2.65e10
    custom = {torch.ops.aten._euclidean_dist: distance_flops}
    with torch.device("meta"):
        model = LanguageModel(arch, cfg)
        ids = torch.zeros(1, 128, dtype=torch.long)
        with FlopCounterMode(display=False, custom_mapping=custom) as counter:
            model.encoder(ids, ids, None)
    total = count_parameters(model)
    encoder = count_parameters(model.encoder)
    layers = count_parameters(model.encoder.layers)
    pooler = count_parameters(model.pooler)
    E = cfg.embedding or cfg.hidden
    projections = [each.inputs for each in model.modules() if hasattr(each, "inputs")]
    flops = counter.get_total_flops()
    return {
        "parameters": total,
        "parts": {"embeddings": encoder - layers, "layers": layers, "pooler": pooler,
                  "heads": total - encoder - pooler},
        "attention_parameters": sum(map(count_parameters, projections)),
        "flops": flops,
        "flops_with_vocabulary_head": flops + 2 * 128 * E * (cfg.hidden + cfg.vocab_size),
        "flops_counting": "a forward pass of 128 tokens: matrix products and convolutions, "
                          "2 per multiply-add; embeddings are look-ups",
    }


# --- supernet -------------

def slot(name, value, arch):
    """Where the super-net stores a candidate's weight: (name there, index of the part).

    Other weights than those of these three kinds keep name and shape. Layer 0 is an attention of Q
    and P, two rows each, and layer 1 a convolution with kernel 9:

    >>> arch = parse_arch("softmax(scale(Q @ P.T)) @ Q | conv9")
    >>> name, rows = slot("encoder.layers.0.attention.inputs.bias", torch.zeros(4), arch)
    >>> rows.tolist()  # of Q, K, V, P
    [0, 1, 6, 7]
    >>> slot("encoder.layers.1.conv.kernel", torch.zeros(2, 9), arch)[1]  # the centre of 65
    (slice(None, None, None), slice(28, 37, None))
    >>> slot("encoder.layers.1.conv.transform", torch.eye(9), arch)
    ('encoder.layers.1.conv.transform.9', Ellipsis)
    """
    everything = ...
    match name.split("."):
        case "encoder", "layers", number, "attention", "inputs", _:
            reads = used_inputs(arch[int(number)])
            width = len(value) // len(reads)
            rows = [torch.arange(width) + width * INPUTS.index(each) for each in reads]
            return name, torch.cat(rows)
        case "encoder", "layers", number, "conv", "kernel":  # Figure 3
            size = arch[int(number)]
            first = (max(KERNELS) - size) // 2
            return name, (slice(None), slice(first, first + size))
        case "encoder", "layers", number, "conv", "transform":
            return f"{name}.{arch[int(number)]}", everything
    return name, everything


def cut_out(weights, model):
    """{name: weight} that a model takes from a super-net's weights, which have no head of a task.

    A candidate also takes the transforms of its kernels (Sec. 3.2, BIWS (1)). A model outside a
    search has no transforms, since its kernels are multiplied by them.
    """
    state = model.state_dict()
    taken = {}
    for name, value in state.items():
        there, part = slot(name, value, model.encoder.arch)
        if there not in weights:
            continue
        taken[name] = weights[there][part]
        if name.endswith("conv.kernel"):
            transform = name.replace("kernel", "transform")
            size = value.shape[1]
            if transform not in state and size < max(KERNELS):
                taken[name] = taken[name] @ weights[f"{transform}.{size}"]
    return taken


class SuperNet:
    """Bi-branch weight sharing (Sec. 3.2, BIWS; Figure 3). It never runs. Candidates fetch weights
    and write them back. A layer, and what an attention of Q and P and a convolution take from it:

        attention     W_Q    W_K    W_V    W_P    W_O
                      ^^^                  ^^^    ^^^          softmax(scale(Q @ P.T)) @ Q
        convolution   0 ........ 28 ... 36 ........ 64         kernel of each head
                                 ^^^^^^^^^                     conv9: the centre, times transform 9
                      transforms 3  5  7  9  15  31            one for each smaller kernel
                                          ^
                      its input and output projections         both conv9 and conv65
        both          FFN, LayerNorms                          every candidate
    """

    def __init__(self, cfg):
        # D20 (silent): both branches share one FFN
        four_inputs = parse_formula("Q + K + V + P")  # has the projections of all inputs
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cfg.seed)
            attention = LanguageModel((four_inputs,) * cfg.layers, cfg, shared=True)
            convolution = LanguageModel((max(KERNELS),) * cfg.layers, cfg, shared=True)
        self.weights = {**convolution.state_dict(), **attention.state_dict()}
        for layer, size in itertools.product(range(cfg.layers), KERNELS[:-1]):
            self.weights[f"encoder.layers.{layer}.conv.transform.{size}"] = torch.eye(size)

    def fetch(self, model):
        """Copy a candidate's weights into its LanguageModel."""
        model.load_state_dict(cut_out(self.weights, model))

    def write_back(self, candidates):
        """Copy the weights of a round: pairs (arch, state_dict), the best score last."""
        # D21 (silent): a weight comes from the round's best candidate that has it, after
        # pre-training. A mean over candidates is not a network. The paper says neither how, nor
        # whether fine-tuned weights are meant
        for arch, state in candidates:
            for name, value in state.items():
                there, part = slot(name, value, arch)
                self.weights[there][part] = value

    def load_rest(self, weights):
        """Copy a network's weights, except its convolutions and attentions."""
        for name, value in weights.items():
            if ".attention." not in name and ".conv." not in name:
                self.weights[name] = value

    def state_dict(self):
        return self.weights

    def load_state_dict(self, state):
        self.weights = {name: value.cpu() for name, value in state.items()}


# --- objective ------------

MASK_RATE = 0.15  # of the tokens, as in BERT


def draw_next_sentence(segments, generator):
    """The second segments of B pairs: ids (B, width), lengths (B,) and NSP labels (B,). Half
    continue the first segment (label 0), half are text from elsewhere (label 1)."""
    # D22 (ours): the first segment may begin, and the second end, in mid-sentence, unlike BERT's.
    # Text without a sentence boundary has no label (-100): text from elsewhere begins with a
    # sentence, so the first words would reveal the label
    single = (segments.length_b == 0) | (segments.length_other == 0)
    other = (torch.rand(len(single), generator=generator) < 0.5) & ~single
    ids = torch.where(other[:, None], segments.other, segments.segment_b)
    lengths = torch.where(other, segments.length_other, segments.length_b)
    return ids, lengths, other.long().masked_fill(single, -100)


def mask_tokens(ids, tokenizer, generator):
    """BERT's masking of ids (B, T): MASK_RATE of the tokens are predicted. 80% of these become
    [MASK], 10% a random token, and 10% stay.

    Returns the changed ids, the masked positions (M,) in ids.flatten() and the labels (M,). M
    depends on B and T alone. If fewer than M tokens are masked, filler has the label -100.

    >>> class tokenizer:
    ...     pad_id, cls_id, sep_id, mask_id, vocab_size = 0, 2, 3, 4, 1000
    >>> ids = torch.tensor([[2, 11, 12, 3, 21, 22, 23, 3]] * 20)  # 8 tokens, 5 of text
    >>> changed, positions, labels = mask_tokens(ids, tokenizer, torch.Generator())
    >>> len(labels), (labels != -100).sum().item()  # 15% of 160, and of 100
    (24, 15)
    >>> torch.equal(ids.flatten()[positions[:15]], labels[:15])
    True
    """
    # D23 (ours): the masking rate holds for a micro-batch, so that short sequences (D26) have the
    # same. BERT rounds it for each sequence: 8 tokens have 5 of text, and one of 5 is 20%
    M = max(1, round(MASK_RATE * ids.numel()))
    special = torch.tensor([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id])
    text = (~torch.isin(ids, special)).flatten().nonzero()[:, 0]
    chosen = text[torch.randperm(len(text), generator=generator)]
    chosen = chosen[:max(1, round(MASK_RATE * len(text)))]
    labels = ids.flatten()[chosen]
    kind = torch.rand(len(chosen), generator=generator)
    random_token = torch.randint(tokenizer.vocab_size, (len(chosen),), generator=generator)
    shown = torch.where(kind < 0.9, random_token, labels)
    shown = torch.where(kind < 0.8, tokenizer.mask_id, shown)
    changed = ids.flatten().index_put((chosen,), shown).view_as(ids)
    filler = (0, M - len(chosen))
    return changed, F.pad(chosen, filler), F.pad(labels, filler, value=-100)


def summed_loss(logits, labels):
    """Cross-entropy of logits (n, classes), summed over labels (n,) other than -100."""
    return F.cross_entropy(logits.float(), labels, reduction="sum")


# --- training -------------

CLIP = 1.0  # largest gradient norm, BERT's
EVALUATION_BATCH = 64  # sequences per batch of an evaluation


def schedule(step, steps, warmup):
    """Fraction of the peak learning rate: linear warm-up for warmup x steps, then linear decay to 0
    (App. D.1).

    >>> [schedule(step, 8, 0.5) for step in range(9)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return (steps - step) / max(1, steps - rise)


def learning_rate(step, cfg):
    """The learning rate of a step of pre-training."""
    return cfg.lr * schedule(step, cfg.steps, cfg.warmup)


def make_optimizer(model, weight_decay):
    """AdamW with weight decay on all matrices except transforms."""
    # D24 (silent): transforms have no weight decay, so that they stay near the identity
    decayed = []
    others = []
    for name, value in model.named_parameters():
        matrix = value.dim() > 1 and not name.endswith("conv.transform")
        (decayed if matrix else others).append(value)
    groups = [{"params": decayed, "weight_decay": weight_decay},
              {"params": others, "weight_decay": 0.0}]
    # D25 (ours): weight decay is decoupled (AdamW). App. D.2 says Adam
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6, fused=True)  # betas: Table 6


def language_batch(segments, tokenizer, cfg, seed_number, device):
    """data.corpus.Segments as a batch on the device: ids, token_type_ids (B, T), lengths (B,)
    unless there is no padding, masked_positions and labels (M,), next_labels (B,). Label -100:
    nothing to predict. seed_number: different for each batch of the same length."""
    generator = generator_of(cfg.seed, "mask", seed_number)
    second, second_length, next_labels = draw_next_sentence(segments, generator)
    ids, token_type_ids, lengths = join(  # [CLS] A [SEP] B [SEP]
        segments.segment_a, segments.length_a, second, second_length, tokenizer, empty_b=True)
    # rounds T up, so that torch.compile meets few widths
    multiple = max(8, cfg.length // 8)
    width = min(cfg.length, multiple * math.ceil(int(lengths.max()) / multiple))
    ids, masked_positions, labels = mask_tokens(ids[:, :width], tokenizer, generator)
    batch = {
        "ids": ids,
        "token_type_ids": token_type_ids[:, :width],
        "masked_positions": masked_positions,
        "labels": labels,
        "next_labels": next_labels,
    }
    if (lengths < width).any():  # GPUs have flash attention for full sequences only
        batch["lengths"] = lengths
    return send(batch, device)


# D26 (ours): training may start with short sequences, from which an attention-only network learns
# word order sooner. The first --short of the steps have four times as many sequences of a quarter
# of the length (at least 8 tokens). BERT had 128 of 512 tokens in 90% of its steps. This paper
# names 128 (App. D.2)


def short_steps(cfg):
    """The number of steps with short sequences, at the start."""
    return round(cfg.short * cfg.steps)


def short_times(cfg):
    """Short sequences per sequence of --length: 4, or fewer to leave at least 8 tokens."""
    return min(4, cfg.length // 8)


def training_batches(data, cfg, ranks, begin, round_number=0):
    """Yield this process's list of micro-batches for each step from `begin`. A micro-batch is the
    same for any number of processes."""
    # D27 (silent): all candidates of a round read the same text, and the next round reads on. The
    # paper does not say which text a candidate reads
    for step in range(begin, cfg.steps):
        times = short_times(cfg) if step < short_steps(cfg) else 1
        step_cfg = dataclasses.replace(cfg, length=cfg.length // times)
        first = times * cfg.batch * (round_number * cfg.steps + step)
        segments = data.train.segments(first, times * cfg.batch, step_cfg.length - 3, cfg.seed)
        # D28 (silent): the sequences of a step are sorted by length into its --accumulate
        # micro-batches, so that few are padded. The paper does not say how a batch is divided
        lengths = segments.length_a + segments.length_b
        size = times * cfg.batch // cfg.accumulate
        micro_batches = lengths.argsort(stable=True).split(size)
        batches = []
        for micro in micro_batch_numbers(ranks, cfg.accumulate):
            examples = segments[micro_batches[micro]]
            seed_number = first + micro * size
            batches.append(language_batch(
                examples, data.tokenizer, step_cfg, seed_number, ranks.device))
        yield batches


def count_labels(batch):
    """The divisors of the two losses (2,): masked tokens, and sequences with a next-sentence
    label."""
    return torch.stack([(batch[name] != -100).sum() for name in ("labels", "next_labels")])


def summed_losses(network, batch, cfg):
    """The losses of masked tokens and of next sentences (2,), summed over labels (Sec. 4.1, App.
    D.2)."""
    with autocast(cfg.dtype, batch["ids"].device):
        logits, next_logits = network(batch)  # (M, V), (B, 2)
    return torch.stack([summed_loss(logits, batch["labels"]),
                        summed_loss(next_logits, batch["next_labels"])])


def train_step(step, network, optimizer, batches, cfg, ranks, round_number=0):
    """One step on this process's micro-batches. Returns {name: tensor ()}: the loss, its two parts
    and the gradient norm. Their means over the processes are those of the whole batch."""
    totals = total_over(ranks, sum(map(count_labels, batches)))  # (2,) of all processes
    totals = totals.clamp(min=1) / ranks.size  # gradients are averaged over the processes
    losses = torch.zeros_like(totals)
    first = round_number * cfg.steps * cfg.batch  # differs between rounds
    for micro, batch in zip(micro_batch_numbers(ranks, cfg.accumulate), batches):
        seed_everything(cfg.seed, "language model", first, step, micro)  # dropout
        with no_sync_until(network, ranks, last=batch is batches[-1]):  # one exchange a step
            loss = summed_losses(network, batch, cfg) / totals
            loss.sum().backward()
        losses += loss.detach()
    norm = nn.utils.clip_grad_norm_(network.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": losses.sum(), "mlm_loss": losses[0], "nsp_loss": losses[1], "norm": norm}


def train_language_model(model, data, cfg, run):
    """Pre-train on a data.inputs.Data, from the checkpoint. Raises Diverged, and Stop after
    SIGTERM."""
    ranks = run.ranks
    optimizer = make_optimizer(model, cfg.weight_decay)
    loop = Loop(run, "pretrain", cfg, model=model, optimizer=optimizer)
    network = prepare_model(model, ranks, cfg.compile)
    for step, batches in loop(training_batches(data, cfg, ranks, loop.begin)):
        if step and step == short_steps(cfg) and not cfg.init:  # short sequences end (D50)
            line = extend_positions(model, cfg.length // short_times(cfg), cfg.length)
            print0(ranks, f"step {step}{line}")
        rate = learning_rate(step, cfg)
        set_rate(optimizer, rate)
        model.train()
        numbers = train_step(step, network, optimizer, batches, cfg, ranks)
        dev = evaluate_language_model(model, data, cfg, ranks) if loop.evaluates(step) else {}
        loop.after(step, numbers, batches, dev, lr=rate)
    if cfg.dry_run:
        flops = forward_flops(model.encoder.arch, cfg)
        print_device_use(ranks, loop.speed, flops / cfg.length)


@torch.no_grad()
def evaluate_language_model(model, data, cfg, ranks, sequences=512):
    """{"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"} on held-out sequences, which are the
    same for all seeds and batch sizes. The host waits for a GPU once, to read the sums."""
    cfg = dataclasses.replace(cfg, seed=0)
    dtype = torch.float32 if ranks.device.type == "mps" else torch.float64  # mps has no float64
    sums = torch.zeros(2, 3, dtype=dtype, device=ranks.device)  # loss, right, labels
    model.eval()
    stride = ranks.size * EVALUATION_BATCH
    for number in range(ranks.rank * EVALUATION_BATCH, sequences, stride):
        segments = data.dev.segments(number, EVALUATION_BATCH, cfg.length - 3, cfg.seed)
        batch = language_batch(segments, data.tokenizer, cfg, number, ranks.device)
        with autocast(cfg.dtype, ranks.device):
            logits, next_logits = model(batch)
        answers = (logits, batch["labels"]), (next_logits, batch["next_labels"])
        for total, (scores, labels) in zip(sums, answers):
            right = (scores.argmax(-1) == labels).sum()
            total += torch.stack([summed_loss(scores, labels), right, (labels != -100).sum()])
    means = reduce_mean(ranks, *sums.flatten().tolist())
    result = {}
    for name, (loss, right, labelled) in {"mlm": means[:3], "nsp": means[3:]}.items():
        if labelled:  # NSP needs more than one document
            result[f"{name}_loss"] = loss / labelled
            result[f"{name}_accuracy"] = right / labelled
    return result


# Fine-tuning (App. D.1, D.2)
GROUPS = {"glue": Config.tasks.split(",")}  # no WNLI
MEANS = {"AVG": (*GROUPS["glue"], "MNLI dev_mismatched accuracy")}  # App. C, without WNLI


def recipes(cfg):
    """{task: how it is fine-tuned} (App. D.1, D.2). GLUE inputs are as long as in pre-training. The
    paper gives neither GLUE's batch nor SQuAD's length: they are BERT's (Sec. 4.1)."""
    # D29 (ours): fine-tuning has App. D.1's learning rate, warm-up and weight decay, and one
    # evaluation interval. App. D.2 chooses among 12 pairs of rate and decay, and two intervals
    warmup = 0.1 if cfg.preset == "demo" else 0.01
    paper = {"lr": 2e-5, "epochs": 3, "warmup": warmup, "batch": 32}
    table = {name: Recipe(length=cfg.length, main=task.metrics[0], **paper)
             for name, task in glue.TASKS.items()}
    if cfg.preset == "small":  # Sec. 4.2, footnote 2
        for name in ("MRPC", "QQP"):
            table[name] = dataclasses.replace(table[name], main="accuracy")
    table["SQuAD1.1"] = Recipe(length=384, main="f1", **paper)
    table["SQuAD2.0"] = dataclasses.replace(table["SQuAD1.1"], batch=48, epochs=2)
    return table


def begin_task(task, source, cfg, number, device):
    """The model of run `number` of a task on a device, its Tuning, a line on its weights, and the
    number of trained positions."""
    seed = cfg.seed + number
    seed_everything(seed, "head", task.name)
    model = TaskModel(parse_arch(cfg.arch), cfg, task.outputs, task.kind == "span")
    note = "from scratch"
    trained = task.recipe.length
    if source:
        note = start_from(model, source) + extend_positions(model, source.trained, trained)
        trained = max(trained, source.trained)
    model = move(model, device)
    optimizer = make_optimizer(model, cfg.weight_decay)
    # D30 (silent): the reported weights are from the best evaluation on dev. The paper does not say
    # which it reports
    tuning = Tuning(task, optimizer, schedule, (seed, "fine-tuning", task.name), cfg.accumulate,
                    task.evaluation_steps(cfg.eval_every))
    return model, tuning, note, trained


# --- search ---------------

def draw_operation(rng, readable, unread):
    """A random operation and its operands. Each is drawn from `unread` with probability 1/2, else
    from `readable`."""
    op = rng.choice(OPS)
    pools = []
    for _ in range(1 if op in UNARY else 2):
        pools.append(unread if rng.random() < 0.5 else readable)
    return op, [rng.choice(pool) for pool in pools]


def grow(rng, length):
    """A random expression of up to `length` operations, or None if 30 draws in a row do not fit.

    In the end only the output may be unread. An operation joins at most two unread results into
    one. So when `left` operations remain, at most `left` results are unread besides the newest.
    """
    results = list(INPUTS)  # expressions. The numbers below are indices of this list
    shapes = ["nd"] * len(INPUTS)
    readable = rng.sample(range(len(INPUTS)), rng.randint(2, len(INPUTS)))
    unread = sorted(readable)
    for left in reversed(range(length)):  # the number of operations after this one
        for _ in range(30):
            op, operands = draw_operation(rng, readable, unread)
            shape = infer(op, *[shapes[number] for number in operands])
            still_unread = [number for number in unread if number not in operands]
            can_join = len(still_unread) <= left
            can_end = left > 0 or shape == "nd"
            if shape and can_join and can_end:
                break
        else:
            return None
        newest = len(results)
        results.append((op, *[results[number] for number in operands]))
        shapes.append(shape)
        readable.append(newest)
        unread = [*still_unread, newest]
    return canonical(results[-1])


@torch.no_grad()
def gain(expression, cfg):
    """The root mean square of the output of an untrained attention layer whose input has root mean
    square 1, with the length, head dim and initialisation of cfg."""
    generator = torch.Generator().manual_seed(0)
    factor = cfg.init_std * math.sqrt(cfg.hidden)  # of an untrained projection, 0.55 in BERT-base
    shape = len(INPUTS), 1, 1, cfg.length, cfg.hidden // cfg.heads  # I x (B, N, T, D)
    inputs = factor * torch.randn(shape, generator=generator)
    values = run_graph(path_of(expression), dict(zip(INPUTS, inputs)))
    root_mean_square = values[expression].square().mean().sqrt().item()
    return factor * root_mean_square  # W_O has the same factor


def sample_attention(rng, cfg):
    """A random legal attention of up to MAX_PATH operations (Sec. 3.1: illegal ones are rejected
    early)."""
    # D31 (ours): the output of a random attention has 0.001 to 0.5 of its input's size. V + neg(V)
    # adds nothing. Many products over tokens without a softmax add so much that LayerNorm
    # suppresses the input, and the network does not learn. Edits have no such limit
    while True:
        expression = grow(rng, rng.randint(1, MAX_PATH))
        if expression and searchable(expression) and 0.001 < gain(expression, cfg) < 0.5:
            return expression


def sample_arch(rng, cfg):
    """A random architecture."""
    # D32 (silent): a layer is an attention with probability 1/3, else a convolution. Three random
    # attentions in four layers rarely learn
    return tuple(sample_attention(rng, cfg) if rng.random() < 1 / 3 else rng.choice(KERNELS)
                 for _ in range(cfg.layers))


def ucb(samples, alpha):
    """Eq. 3 for each option i: u_i = mu_i + alpha sqrt(2 log N / N_i). samples: for each option,
    the scores of the candidates that have it.

    N = 5 and sqrt(2 log 5) = 1.794, so that the bonus is 0.1794 for N_i = 1, and half for N_i = 4.
    An untried option has the mean of all samples, 0.7 (D34):

    >>> [round(bound, 3) for bound in ucb([[1.0, 0.5, 0.5, 1.0], [0.5], []], alpha=0.1)]
    [0.84, 0.679, 0.879]

    The softmax of scores of 0.80 and 0.83, and of the same in percent (D36):

    >>> for scores in ([[0.80], [0.83]], [[80.0], [83.0]]):
    ...     chances = torch.tensor(ucb(scores, alpha=0.01)).softmax(0)
    ...     print([round(chance, 3) for chance in chances.tolist()])
    [0.493, 0.507]
    [0.047, 0.953]
    """
    # D33 (ours): N, N_i and mu_i are of the samples at one position. In the paper N counts all
    # operations, and mu_i is the mean over all paths with the operation
    N = max(1, sum(map(len, samples)))
    mean = sum(map(sum, samples)) / N
    bonus = alpha * math.sqrt(2 * math.log(N))
    bounds = []
    for scores in samples:
        # D34 (silent): an untried option has the mean of all samples, and N_i = 1, since Eq. 3
        # divides by N_i
        N_i = max(1, len(scores))
        mu = sum(scores) / N_i if scores else mean
        bounds.append(mu + bonus / math.sqrt(N_i))
    return bounds


def ranked(history):
    """The candidates that did not diverge, the best first."""
    lines = [line for line in history if not line["diverged"]]
    return sorted(lines, key=lambda line: -line["score"])


class OperationPriority:
    """Priorities of operations from the history (Sec. 3.2): one distribution over OPS per position,
    for all attention layers, and one over KERNELS per layer. Other strategies than op-nas have no
    samples, so that all options are equally probable."""

    def __init__(self, history, cfg):
        self.alpha = cfg.alpha
        # {(position, operation) or (layer, kernel): scores of the candidates that have it}
        self.samples = collections.defaultdict(list)
        if cfg.strategy != "op-nas":
            return
        for line in history:
            for number, layer in enumerate(parse_arch(line["arch"])):
                if isinstance(layer, int):
                    self.samples[number, layer].append(line["score"])
                    continue
                # D35 (ours): N_i of Eq. 3 counts the occurrences of an operation in evaluated
                # candidates. The paper counts how often it was sampled. A child inherits most
                # operations
                for position, (op, *_) in enumerate(path_of(layer)):
                    self.samples[position, op].append(line["score"])

    def probabilities(self, options, position, legal=None):
        """Probabilities of OPS at a position of a path, or of KERNELS in the layer `position`: the
        softmax of Eq. 3 over the `legal` options (Sec. 3.2), and 0 for the others."""
        # D36 (silent): scores are fractions, so that the softmax is nearly uniform. The paper gives
        # no unit. Percent makes it nearly a maximum, and found worse networks (tests/claims,
        # replay)
        samples = [self.samples[position, option] for option in options]
        bounds = dict(zip(options, ucb(samples, self.alpha)))
        legal = legal or options
        top = max(bounds[option] for option in legal)  # so that exp does not overflow
        weights = [math.exp(bounds[option] - top) if option in legal else 0.0
                   for option in options]
        return [weight / sum(weights) for weight in weights]


# The edits of an attention. Each yields replacements for the operation `old`. Some are illegal.
# `others` are the inputs and the operations before `old` in the path.
# D37 (silent): a mutation is one of these five edits of an attention. The paper names none


def applied(operands, others):
    """Every operation on these operands. A unary operation reads one of them. A binary operation
    reads both, or a single operand and one of `others`."""
    for op in OPS:
        if op in UNARY:
            yield from ((op, operand) for operand in operands)
        elif len(operands) == 2:
            yield op, *operands
        else:
            for other in others:
                yield op, operands[0], other
                yield op, other, operands[0]


def with_operand(operation, side, operand):
    """The operation with its operand 0 or 1 replaced."""
    op, *operands = operation
    operands[side] = operand
    return op, *operands


def replace(old, others):
    """Another operation on the same operands. One operand of a binary operation may also gain or
    lose a transpose: cos(a, b) becomes a @ b.T in one edit, since no step between them is legal.

    >>> bert = parse_formula(BERT_ATTENTION)
    >>> cosine = parse_formula("softmax(scale(cos(Q, K))) @ V")
    >>> cosine in legal_children(bert, replace, 1), bert in legal_children(cosine, replace, 0)
    (True, True)
    """
    op, *operands = old
    yield from applied(operands, others)
    if op in BINARY:
        for side, operand in enumerate(operands):
            other = operand[1] if operand[0] == "transpose" else ("transpose", operand)
            for new in BINARY:
                yield with_operand((new, *operands), side, other)


def append(old, others):
    """A new operation after this one, for all its readers."""
    yield from applied([old], others)


def insert(old, others):
    """A new operation on the edge from one of the operands."""
    for side, operand in enumerate(old[1:]):
        for new in applied([operand], others):
            yield with_operand(old, side, new)


def delete(old, others):
    """One of the operands in place of the operation. BERT's attention can lose two of its five:

    >>> for index in range(5):
    ...     children = legal_children(parse_formula(BERT_ATTENTION), delete, index)
    ...     print([formula(child) for child in children])
    []
    []
    ['softmax(Q @ K.T) @ V']
    ['scale(Q @ K.T) @ V']
    []
    """
    yield from old[1:]


def rewire(old, others):
    """The operation reads another operand."""
    for side, other in itertools.product(range(len(old) - 1), others):
        yield with_operand(old, side, other)


EDITS = (replace, append, insert, delete, rewire)


def substitute(expression, old, new):
    """The expression with every `old` replaced by `new`."""
    if expression == old:
        return new
    if expression in INPUTS:
        return expression
    return expression[0], *[substitute(operand, old, new) for operand in expression[1:]]


def legal_children(parent, edit, index):
    """The attentions that a search may propose, from an edit of the operation at an index of the
    parent's path."""
    path = [*path_of(parent)]
    old = path[index]
    edited = edit(old, [*INPUTS, *path[:index]])
    children = [canonical(substitute(parent, old, new)) for new in edited]
    return [child for child in dict.fromkeys(children) if child != parent and searchable(child)]


def choose(children, position, rng, priority):
    """One of the children. The priorities draw the operation at a position of their paths, or at
    the end of shorter paths. The choice among children with that operation is uniform."""
    by_operation = collections.defaultdict(list)
    for child in children:
        path = [*path_of(child)]
        op, *_ = path[min(position, len(path) - 1)]
        by_operation[op].append(child)
    chances = priority.probabilities(OPS, position, by_operation)
    return rng.choice(by_operation[rng.choices(OPS, chances)[0]])


def edit_attention(parent, rng, priority):
    """A legal attention one edit away, or the parent if there is none.

    The edit and the edited operation are uniform. The priorities of a position draw the operation
    that the child has there (Sec. 3.2: a path of length k uses the first k distributions). It is
    the new one, unless the edit changes the order of evaluation: neg(Q) @ K.T evaluates neg before
    K.T, which keeps its operation at the position.
    """
    edits = [*itertools.product(EDITS, range(len(path_of(parent))))]
    for edit, index in rng.sample(edits, len(edits)):
        children = legal_children(parent, edit, index)
        if not children:
            continue
        if edit in (delete, rewire):
            # D38 (ours): delete and rewire make no new operation, so they are drawn uniformly
            return rng.choice(children)
        # D39 (ours): an operation appended to the last one is drawn by the priorities of position k
        # + 1. The paper has k positions
        position = index + 1 if edit is append else index
        return choose(children, position, rng, priority)
    return parent


def mutate(parent, rng, priority, cfg):
    """A child of an architecture (Alg. 1, lines 6, 7). First, a random layer may change its kind.
    Then a random layer changes inside, by the priorities."""
    child = list(parent)
    # D40 (ours): only half of the children change a kind, so that a child can differ in one layer
    if rng.random() < 0.5:  # line 6: inter-layer, as in a plain evolution (Sec. 3.2)
        layer = rng.randrange(len(child))
        attentions = [other for other in parent if not isinstance(other, int)]
        if not isinstance(child[layer], int):
            child[layer] = rng.choice(KERNELS)
        elif attentions and rng.random() < 0.5:
            # D41 (ours): half of the new attentions are copies of another layer's
            child[layer] = rng.choice(attentions)
        else:
            child[layer] = sample_attention(rng, cfg)
    layer = rng.randrange(len(child))  # line 7: intra-layer
    if isinstance(child[layer], int):
        child[layer] = rng.choices(KERNELS, priority.probabilities(KERNELS, layer))[0]
    else:
        child[layer] = edit_attention(child[layer], rng, priority)
    return tuple(child)


def round_sizes(cfg):
    """The number of candidates per round: the initial population, then children.

    >>> round_sizes(Config(population=60, rounds=2))
    [25, 25, 10, 25, 25]
    """
    later = cfg.parents * cfg.children
    # D42 (ours): the population is split into rounds of the same size, so that the super-net learns
    # from the start
    initial = [min(later, cfg.population - start) for start in range(0, cfg.population, later)]
    return initial + [later] * cfg.rounds


def propose(history, number, cfg):
    """The candidates of a round (Alg. 1, lines 1, 4 to 7, 12), [(id of the parent or None,
    architecture)], equal in every process.

    history: the candidates so far, dicts with "id", "arch" (text), "score" and "diverged".
    """
    rng = random.Random(f"{cfg.seed} round {number}")
    sizes = round_sizes(cfg)
    initial = number < len(sizes) - cfg.rounds
    parents = []
    if not initial and cfg.strategy != "random":
        parents = ranked(history)[:cfg.parents]  # line 4
    priority = OperationPriority(history, cfg)  # line 12
    seen = {line["arch"] for line in history}
    proposals = []
    while len(proposals) < sizes[number]:
        if parents:
            turn = len(proposals) // cfg.children  # line 5: a parent's children are one turn
            line = parents[turn % len(parents)]
            parent = line["id"]
            arch = mutate(parse_arch(line["arch"]), rng, priority, cfg)  # lines 6, 7
        else:
            parent = None
            arch = sample_arch(rng, cfg)  # line 1
        text = arch_text(arch)
        if text not in seen:  # no duplicates (D44)
            seen.add(text)
            proposals.append((parent, arch))
    return proposals


def score_candidate(arch, round_number, supernet, data, cfg, path):
    """Evaluate one candidate (Alg. 1, lines 8, 9; App. D.1, "model evaluation"): pre-train it, then
    fine-tune copies of it on the proxy tasks. Returns {score, scores, diverged, seconds}. Saves the
    pre-trained weights as path.pt.

    Each round reads its own part of the text. The warm start and the finalists have more steps:
    they read round 0's part, and on into the next.
    """
    began = time.perf_counter()
    model = LanguageModel(arch, cfg, shared=True)
    supernet.fetch(model)  # line 8
    model = move(model, data.device)
    checkpoint = path.with_suffix(".training.pt")
    scores = {}
    diverged = False
    try:  # line 9
        train_candidate(
            model, data, cfg, Ranks(0, 1, data.device), checkpoint, round_number)
        scores = {name: score_task(model, task, cfg, data.device)
                  for name, task in data.tasks.items()}
    except Diverged:
        # D43 (silent): such a candidate scores 0, also in Eq. 3, and is never a parent
        diverged = True
    save_file(path.with_suffix(".pt"), to_host(model.state_dict()))
    checkpoint.unlink(missing_ok=True)
    # D44 (silent): a score is the mean over --tasks, with MNLI's matched half, and no candidate is
    # evaluated twice (propose)
    score = sum(scores.values()) / max(len(scores), 1)
    seconds = round(time.perf_counter() - began, 3)
    return {"score": score, "scores": scores, "diverged": diverged, "seconds": seconds}


def train_candidate(model, data, cfg, ranks, file, round_number):
    """Pre-train one candidate in one process, from the checkpoint `file`. Raises Diverged, and Stop
    after SIGTERM."""
    optimizer = make_optimizer(model, cfg.weight_decay)
    loop = Loop(None, "pretrain", cfg, ranks=ranks, file=file, model=model, optimizer=optimizer)
    network = prepare_model(model, ranks, cfg.compile)
    for step, batches in loop(training_batches(data, cfg, ranks, loop.begin, round_number)):
        set_rate(optimizer, learning_rate(step, cfg))
        model.train()
        numbers = train_step(step, network, optimizer, batches, cfg, ranks, round_number)
        loop.after(step, numbers)


def score_task(model, task, cfg, device):
    """Fine-tune a copy of the model on a proxy task. Returns its main metric on dev."""
    seed_everything(cfg.seed, "head", task.name)
    tuned = move(TaskModel(model.encoder.arch, cfg, task.outputs, shared=True), device)
    tuned.load_state_dict(model.state_dict(), strict=False)  # encoder and pooler
    optimizer = make_optimizer(tuned, cfg.weight_decay)
    key = (cfg.seed, "fine-tuning", task.name)
    state = fine_tune(tuned, Tuning(task, optimizer, schedule, key), cfg, device)
    if state["diverged"]:
        raise Diverged(state["diverged"])
    # D45 (silent): a negative metric counts as 0, the score of a diverged candidate
    return max(task.score("dev", predict_split(tuned, task, "dev", cfg, device))["main"], 0.0)


def score_candidates(archs, round_number, supernet, run, name, data, cfg, best=1.0):
    """Evaluate {id: architecture}, distributed over the processes. Returns {id: result}. Long
    formulas go first, since they tend to take longest.

    The folder `name` of the run keeps results and weights, so that a stopped run continues. Prints
    and logs a line for each, with a star where the score is above `best`.
    """
    folder = run.folder / name
    texts = {key: arch_text(arch) for key, arch in archs.items()}

    def evaluate(key):
        return score_candidate(archs[key], round_number, supernet, data, cfg, folder / str(key))

    def report(key, result):
        if data.tasks:  # a warm start has none
            print0(run.ranks, candidate_line(key, result, archs[key], best, cfg))
        run.log("candidate", round_number, job=f"{name}/{key}", arch=texts[key], **result)

    return run.each(
        name, list(archs), evaluate, cost=lambda key: len(texts[key]), report=report)


def op_nas(supernet, loop, run, data, cfg):
    """OP-NAS (Algorithm 1). Returns the history of all candidates, M. Its lines:

         1      draw a population of random architectures (`sample_arch`)
         2      evaluate it (`score_candidate`)
         3      repeat, here for a fixed number of rounds (D3)
         4          the parents are the K candidates with the best scores (`propose`)
         5          for each parent, `children` times
         6              change the kind of a random layer, here in half of the children (`mutate`)
         7              change a random layer inside; the priorities draw the operation (`choose`)
         8              take the child's weights from the super-net (`SuperNet.fetch`)
         9              pre-train the child and score it on the proxy tasks
        10      end for. BIWS writes the weights of the round back (`SuperNet.write_back`)
        11          add the children to the history
        12          compute Eq. 3 again from the history (`OperationPriority`)
        13      until the last round

    The initial population is split into rounds too (D42). A round is a step of the loop, so that a
    stopped search continues with its current round."""
    history = loop.state.setdefault("history", [])
    for number, _ in loop():  # lines 3, 13
        forget_round(run, number - 1)  # its results are in the checkpoint
        write_history(run, history)
        proposals = propose(history, number, cfg)  # lines 1, 4 to 7, 12
        by_id = dict(enumerate(proposals, len(history)))
        archs = {key: arch for key, (_, arch) in by_id.items()}
        best = score_to_beat(history, data)
        results = score_candidates(  # lines 2, 8, 9
            archs, number, supernet, run, f"round-{number}", data, cfg, best)
        lines = [
            {"id": key, "round": number, "parent": parent, "arch": arch_text(arch), **results[key]}
            for key, (parent, arch) in by_id.items()]
        if cfg.weight_sharing == "biws":  # line 10. Sec. 3.2, BIWS (1): after each round
            supernet.write_back(
                (archs[line["id"]], load_file(run.folder / f"round-{number}" / f"{line['id']}.pt"))
                for line in reversed(ranked(lines)))
        history += lines  # line 11
        best = max(line["score"] for line in history)
        loop.after(number, {}, candidates=len(history), best=best)
    forget_round(run, loop.steps - 1)
    write_history(run, history)
    return history


# Around Algorithm 1: a warm start, baselines, finalists


def hand_designed(layers):
    """{name: architecture} of the baselines. The hybrid alternates conv3 and BERT's attention."""
    alternating = (parse_arch(f"conv3 | {BERT_ATTENTION}") * layers)[:layers]
    return {"BERT": read_arch("bert", layers), "hybrid": alternating}


def majority_baseline(tasks):
    """{score, scores by task} of the majority baseline."""
    scores = {name: task.majority_baseline for name, task in tasks.items()}
    return {"score": statistics.mean(scores.values()), "scores": scores}


def text_baselines(tasks):
    """{name: {score, scores by task}} of the majority baseline and, if all tasks have one, of a bag
    of words."""
    baselines = {"majority": majority_baseline(tasks)}
    words = {name: task.words_baseline for name, task in tasks.items()}
    if all(words.values()):
        scores = {name: each["main"] for name, each in words.items()}
        baselines["bag of words"] = {"score": statistics.mean(scores.values()), "scores": scores}
    return baselines


def score_to_beat(history, data):
    """The best score so far, or the majority baseline's."""
    return max([majority_baseline(data.tasks)["score"], *(line["score"] for line in history)])


def first_super_net(source, run, data, cfg):
    """The super-net at the beginning of a search: random, with --init's weights, or after a warm
    start."""
    # D46 (silent): without --init and warm start the first super-net is random
    first = SuperNet(cfg)
    if source and source.arch:
        seed_everything(cfg.seed, "model")  # for the heads, which a fine-tuned model lacks
        model = LanguageModel(parse_arch(source.arch), cfg)
        print0(run.ranks, start_from(model, source))
        first.write_back([(model.encoder.arch, model.state_dict())])
    elif source:
        print0(run.ranks, start_from(first, source))
    elif cfg.warm_times:
        warm_start(first, run, data, cfg)
    return first


def warm_start(supernet, run, data, cfg):
    """Train the hand-designed network that learns soonest, and copy its weights except its mixers
    into the super-net."""
    # D47 (ours): a warm start trains the parts that all candidates share: embeddings, FFNs, norms
    # and heads. A candidate's few steps then train mainly its convolutions and attentions, which
    # start random
    archs = {"hybrid": hand_designed(cfg.layers)["hybrid"]}
    longer = dataclasses.replace(cfg, steps=cfg.warm_times * cfg.steps)
    no_tasks = dataclasses.replace(data, tasks={})
    result = score_candidates(archs, 0, supernet, run, "warm-start", no_tasks, longer)["hybrid"]
    if result["diverged"]:
        raise UserError(f"{run.folder}: the warm start diverged; lower --lr, --restart")
    supernet.load_rest(load_file(run.folder / "warm-start" / "hybrid.pt"))


def open_proxies(names, cfg, data):
    """The data with the train and dev examples of a search's proxy tasks."""
    tasks = {name: open_task(name, cfg, data.tokenizer, recipes(cfg), search=True)
             for name in names}
    return dataclasses.replace(data, tasks=tasks)


def train_finalists(history, first, run, data, cfg):
    """Train the best --finalists candidates and the baselines again. Returns the candidates'
    history lines with their new results, and {name: result} of the baselines."""
    if not cfg.finalists:
        return [], {}
    # D48 (ours): the best candidates are trained again, alone and from the first super-net. A
    # candidate's score depends on the age of its super-net, and the best of many noisy scores is
    # partly luck. The paper takes the best candidate (Sec. 4.2)
    lines = ranked(history)[:cfg.finalists]
    baselines = hand_designed(cfg.layers)
    archs = baselines | {line["id"]: parse_arch(line["arch"]) for line in lines}
    longer = dataclasses.replace(cfg, steps=cfg.finalist_times * cfg.steps,
                                 train_examples=cfg.finalist_times * cfg.train_examples)
    if cfg.train_examples:  # --finalist_times as many
        data = open_proxies(data.tasks, longer, data)
    results = score_candidates(archs, 0, first, run, "finalists", data, longer)
    finalists = [{**line, **results[line["id"]]} for line in lines]
    return finalists, {name: results[name] for name in baselines}


# --- the run --------------

# The paper ends here. The functions below need common/ and data/.

PRESETS["demo"] = dict(  # minutes on two cores
    vocab_size=1000,
    tasks="MNLI",
    layers=4, hidden=64, heads=4, ffn=128,
    dropout=0.0,
    init_std=0.07,
    length=64,
    batch=32,
    lr=2e-3,
    warmup=0.1,
    short=0.5,
    finetune_lr=1e-3,
    finetune_batch=16,
    finetune_epochs=2,
    search=dict(
        # with two layers a single short training ranks networks on the demo's MNLI (ICC 0.93)
        layers=2,
        batch=8,
        lr=3e-3,
        steps=50,
        finetune_lr=2e-3,
        finetune_epochs=1,
        finetune_length=72,
        train_examples=5000,
        population=8, rounds=3, parents=2, children=2,
        finalists=2, finalist_times=15,
        # D49 (ours): the demo shares no weights: each candidate starts from the same weights. The
        # other presets share them, as in the paper
        weight_sharing="none",
        warm_times=10),
    pretrain=dict(steps=3000, save_every=500),
    finetune=dict(
        runs=3,
        eval_every=0,
        finetune_length=128))
PRESETS["dry_run"] = dict(
    steps=2,
    save_every=1,
    train_examples=64,
    finetune_epochs=1,
    eval_every=1,
    runs=1,
    population=2, rounds=1, parents=1, children=1,
    finalists=2, finalist_times=1,
    warm_times=1)

# Weights to start from

# settings: the run's. arch: the model's text form, or "" for a super-net. trained: the number of
# trained positions. task: the task whose head is included, or ""
Pretrained = collections.namedtuple("Pretrained", "path settings weights arch trained task")
SHAPE = ("layers", "hidden", "heads", "ffn", "embedding", "vocab_size")  # taken from --init
OVERRIDABLE = ("length", "dropout", "init_std")  # taken from --init, unless a flag is given


def refuse_stopped_search(cfg, command):
    """Raise UserError if --init is an unfinished search, which has no best network. Another search,
    or an explicit --arch, needs only its saved super-net."""
    folder = Path(cfg.init)
    config = folder / "config.json"
    record = read_json(config) if config.exists() else {}
    if record.get("action") != "search" or (folder / "done.json").exists():
        return
    needs_best = command.action == "export" or (
        command.action != "search" and "arch" not in command.given)
    if needs_best or not (folder / "checkpoint.pt").exists():
        words = shlex.join(record["argv"][1:])
        raise UserError(f"{folder}: this search has not ended; first run its command again, which "
                        f"continues it: python {command.program}.py {words}")


def load_pretrained(cfg, command):
    """The model or super-net of --init as Pretrained, or None without --init."""
    if not cfg.init:
        return None
    refuse_stopped_search(cfg, command)
    record, owned = read_run(cfg.init, cfg, command.program, ("search", "pretrain", "finetune"))
    settings = record["settings"]
    trained = record.get("trained", settings["length"])
    if "model" in owned:
        return Pretrained(cfg.init, settings, owned["model"], settings["arch"], trained,
                          record.get("task", ""))
    if not Path(cfg.init, "best.pt").exists():
        warnings.warn(f"{cfg.init}: no best.pt; its convolutions and attentions may be untrained")
    return Pretrained(cfg.init, settings, owned["supernet"], "", trained, "")


def resolve(cfg, command, ranks, source):
    """Fill in the settings that follow from --init, the action and the number of processes. Turn
    --arch into its text form. UserError if a flag contradicts the model or the architecture is
    illegal. complete() fills in what follows from the data."""
    changes = {}
    if source:
        names = (*SHAPE, "arch") if source.arch else SHAPE
        changes |= settings_from(cfg, command, source.settings, source.path, names, OVERRIDABLE)
        changes["tokenizer"] = cfg.tokenizer or str(Path(source.path))
        changes["warm_times"] = 0  # --init replaces it
        if not source.arch and "arch" not in command.given:
            changes["arch"] = f"{source.path}/best.json"
    if command.action == "pretrain":
        changes["accumulate"] = fit_accumulate(cfg, command, ranks)
    cfg = dataclasses.replace(cfg, **changes)
    if command.action == "search":
        return cfg
    try:
        arch = read_arch(cfg.arch, cfg.layers)
    except ValueError as error:
        raise UserError(f"--arch {cfg.arch}: {error}; names are autobert-zero and bert") from None
    return dataclasses.replace(cfg, arch=arch_text(arch))


def complete(cfg, data):
    """Fill in the settings that follow from the data: their paths, the vocabulary size, and with
    --steps 0 the steps of EPOCHS passes over the corpus."""
    cfg = dataclasses.replace(cfg, **data.flags, vocab_size=data.tokenizer.vocab_size)
    if cfg.steps or not data.train:
        return cfg
    sequences = EPOCHS * data.train.slots(cfg.length - 3)
    return dataclasses.replace(cfg, steps=math.ceil(sequences / cfg.batch))


def trained_positions(source, cfg):
    """The number of trained positions after a training: --init's, or those of its sequences."""
    times = short_times(cfg) if short_steps(cfg) == cfg.steps else 1  # --short 1
    return max(source.trained if source else 0, cfg.length // times)


def start_from(model, source):
    """Copy the weights of a Pretrained into a model or super-net. Returns a line about it."""
    weights = source.weights
    if not source.arch and not isinstance(model, SuperNet):
        weights = cut_out(weights, model)
    line = load_weights(model, weights, source.path, heads=("head",))
    return f"{line}; trained on sequences of {source.trained} tokens"


@torch.no_grad()
def extend_positions(model, trained, length):
    """Copy the embeddings of the `trained` first positions to the positions after them. Returns a
    line about it, or "" if there are none."""
    # D50 (ours): new position embeddings are repeated copies, as in Longformer (Beltagy et al.
    # 2020). Untrained ones slow the training. --pretrain copies where --init was shorter and where
    # --short ends, and --finetune where inputs are longer. The paper has one length
    if trained >= length:
        return ""
    rows = model.encoder.position_embedding.weight
    rows[trained:length] = rows[torch.arange(trained, length) % trained]
    return f"; positions {trained} to {length - 1} are copies of 0 to {trained - 1}"


# Actions


def search(cfg, command):
    """Search for an architecture, then train the finalists again."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        names = parse_tasks(cfg.tasks, glue.TASKS, cfg, GROUPS)
        cfg = dataclasses.replace(cfg, tasks=",".join(names))
        data = open_data(cfg, command, ranks, names, text=True)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data, trained=trained_positions(source, cfg))
        if not run.result:
            data = open_proxies(names, cfg, data)
            print_plan(run, data, cfg)
            run.finish(search_and_train_again(source, run, data, cfg))
        print_best(run, cfg)


def search_and_train_again(source, run, data, cfg):
    """A warm start, Algorithm 1, then finalists and baselines. Writes best.json and, if trained
    weights are kept, best.py and best.pt. Returns the content of best.json."""
    first = first_super_net(source, run, data, cfg)
    supernet = copy.deepcopy(first)
    rounds = len(round_sizes(cfg))
    loop = Loop(run, "search", cfg, steps=rounds, save_at=range(1, rounds + 1), supernet=supernet)
    history = op_nas(supernet, loop, run, data, cfg)
    if not ranked(history):
        raise UserError(f"{run.folder}: every candidate diverged; lower --lr or --finetune_lr, "
                        "--restart")
    finalists, baselines = train_finalists(history, first, run, data, cfg)
    best = (ranked(finalists) or ranked(history))[0]
    arch = parse_arch(best["arch"])
    trained_again = best in finalists
    if trained_again:  # --init uses its weights
        weights = load_file(run.folder / "finalists" / f"{best['id']}.pt")
        supernet.write_back([(arch, weights)])
        loop.finish()
    errors = [task.standard_error(best["scores"][name]) for name, task in data.tasks.items()]
    result = {
        **{key: best[key] for key in ("id", "arch", "score", "scores")},
        "standard_error": math.hypot(*errors) / len(errors),
        "candidates": len(history),
        "finalists": finalists,
        "baselines": {**baselines, **text_baselines(data.tasks)},
    }
    on_main(run.ranks, write_json, run.folder / "best.json", result)
    if trained_again or cfg.weight_sharing == "biws":  # else no trained weights are kept
        model = LanguageModel(arch, cfg)
        model.load_state_dict(cut_out(supernet.weights, model))
        on_main(run.ranks, write_network, run.folder / "best.py", model, cfg, data.tokenizer,
                None, cfg.length)
    return result


def write_history(run, history):
    """Write history.jsonl."""
    on_main(run.ranks, write_atomic, run.folder / "history.jsonl", jsonl(history))


def forget_round(run, number):
    """Delete the folder of a finished round, once all processes have read it."""
    gather(run.ranks, None)  # waits for all processes
    if run.ranks.main:
        shutil.rmtree(run.folder / f"round-{number}", ignore_errors=True)


def pretrain(cfg, command):
    """Train --arch in full (App. D.2), from scratch or from --init (a search's: AutoBERT-Zero*)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        data = open_data(cfg, command, ranks, text=True)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data, trained=trained_positions(source, cfg))
        if not run.result:
            run.finish(pretrain_language_model(source, data, cfg, run))
        print_scores(run, cfg)


def pretrain_language_model(source, data, cfg, run):
    """Build, train and evaluate the model. Returns its scores and their baseline."""
    seed_everything(cfg.seed, "model")
    model = LanguageModel(parse_arch(cfg.arch), cfg)
    start = "from scratch"
    if source:
        start = start_from(model, source) + extend_positions(model, source.trained, cfg.length)
    print0(run.ranks, f"{run.start_line(start)}; {count_parameters(model):,} parameters, "
                      f"{cfg.steps} steps")
    model.to(run.ranks.device)
    train_language_model(model, data, cfg, run)
    result = evaluate_language_model(model, data, cfg, run.ranks, sequences=2048)
    return {**result, "mlm_majority": data.dev.commonest()}


def method():
    """What common/finetune.py needs from this paper."""
    return Method(
        recipes, load_pretrained, begin_task, load_task, means=MEANS,
        from_mnli=("RTE", "STS-B", "MRPC"))  # App. D.2


def load_task(task, source, cfg):
    """The model of a fine-tuned source."""
    model = TaskModel(parse_arch(cfg.arch), cfg, task.outputs, task.kind == "span")
    model.load_state_dict(source.weights)
    return model


def finetune(cfg, command):
    """Fine-tune --init, or --arch from scratch, on tasks. RTE, STS-B and MRPC start from the best
    MNLI job if MNLI is among the tasks (App. D.2)."""
    with launch(cfg.device, cfg.dtype) as ranks:
        names = parse_tasks(command.value, recipes(cfg), cfg, GROUPS)
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        text = bool(cfg.corpus) and not cfg.tokenizer  # to train a vocabulary
        data = open_data(cfg, command, ranks, names, text)
        cfg = complete(cfg, data)
        run = Run(cfg, command, ranks, data)
        if not run.result:
            run.finish(finetune_tasks(method(), names, source, data, cfg, run))
        print_summary(run, cfg)


def predict(cfg, command):
    """Predict a file of the user with RUN/TASK of --init."""
    with launch(cfg.device, cfg.dtype) as ranks:
        source = load_pretrained(cfg, command)
        cfg = resolve(cfg, command, ranks, source)
        tokenizer = open_tokenizer(cfg.tokenizer, cfg.init)
        predict_file(method(), source, tokenizer, cfg, command, ranks)


def export(cfg, command):
    """Write the network of --init (a search, a pre-training or a fine-tuning's RUN/TASK) as FILE.py
    with weights, drawing and vocabulary next to it, or as a folder for AutoModel of
    transformers."""
    path = Path(command.value)
    source = load_pretrained(cfg, command)
    cfg = resolve(cfg, command, None, source)
    tokenizer = open_tokenizer(cfg.tokenizer, cfg.init)
    model, labels, length = network_to_export(source, cfg)
    if path.suffix == ".py":
        refuse_to_overwrite(path, tokenizer)
        write_network(path, model, cfg, tokenizer, labels, length)
        use = "its first lines say how to use it"
    else:
        opener = write_hugging_face(path, model, cfg, tokenizer, labels, length)
        use = f"open it with {opener}"
    print(f"{path}: written, with weights, drawing and {tokenizer.file_name}; {use}")


def network_to_export(source, cfg):
    """(the model of --init, the labels of its task or None, the length of its inputs)."""
    arch = parse_arch(cfg.arch)
    if "head.weight" not in source.weights:  # a task's
        model = LanguageModel(arch, cfg)
        print(start_from(model, source))
        return model, None, source.trained
    name = source.task
    own = read_spec(cfg.init)  # of a user's own task, else None
    task = own or glue.TASKS.get(name)  # None: SQuAD
    labels = SPAN
    if task:
        labels = task.labels or ("score",)  # a regression has no labels
    recipe = recipes(cfg)["SST-2" if own else name]
    model = TaskModel(arch, cfg, len(labels), labels == SPAN)
    print(start_from(model, source._replace(weights=export_head(source.weights, own)[0])))
    return model, labels, source.settings["finetune_length"] or recipe.length


def forward_flops(arch, cfg):
    """FLOPs of a forward pass of one pre-training sequence, scaled linearly from 128 tokens, with
    the vocabulary head at masked tokens alone."""
    counts = count(arch, cfg)
    head = counts["flops_with_vocabulary_head"] - counts["flops"]
    return (counts["flops"] + MASK_RATE * head) * cfg.length / 128


# D51 (ours): tests/claims measure latency, on random ids. The paper uses QNLI's training set (App.
# D.3)


def describe(cfg, command):
    """Print the counts of --arch or --init and the cost of its pre-training as JSON."""
    cfg = resolve(cfg, command, None, load_pretrained(cfg, command))
    pretraining = PRESETS[cfg.preset].get("pretrain", {})
    cfg = dataclasses.replace(
        cfg, **{name: pretraining[name] for name in pretraining.keys() - command.given})
    # without reading the corpus: 40 passes over BERT's 3.3 billion words stand for --steps 0
    steps = cfg.steps or round(EPOCHS * 3.3e9 / (cfg.length - 3) / cfg.batch)
    arch = parse_arch(cfg.arch)
    counts = count(arch, cfg)
    activations = cfg.layers * [layer_activations(cfg.length, cfg.hidden, cfg.ffn)]
    logits = round(MASK_RATE * cfg.length) * cfg.vocab_size
    cost = training_cost(cfg, counts["parameters"], forward_flops(arch, cfg), activations, logits,
                         steps, cfg.batch)
    print(json.dumps({"arch": cfg.arch, **counts, **cost}, indent=2))


# What is printed

# tests/claims/README.md#demo-bert
DEMO_SEEDS = ("of ten seeds of the demo the found network was above BERT in 8, and above the "
              "hybrid in 10")


def measure_seconds(data, cfg):
    """(seconds of a pre-training step, seconds of a candidate's fine-tunings), from a few steps of
    the hybrid. Assumes that a token costs the same in both."""
    alone = Ranks(0, 1, data.device)
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(hand_designed(cfg.layers)["hybrid"], cfg, shared=True)
    model = move(model, data.device)
    optimizer = make_optimizer(model, cfg.weight_decay)
    last = cfg.steps - 1  # has full-length sequences (D26)
    for _ in range(4):  # the first are slower, so the last counts
        began = time.perf_counter()
        batches = next(training_batches(data, cfg, alone, last))
        numbers = train_step(last, model, optimizer, batches, cfg, alone)
        float(numbers["norm"])  # waits for a GPU
        seconds = time.perf_counter() - began
    tokens = sum(task.steps * task.recipe.batch * task.splits["train"].lengths.mean()
                 for task in data.tasks.values())
    return seconds, seconds * tokens / (cfg.batch * cfg.length)


def print_plan(run, data, cfg):
    """Print the phases of a search and their estimated time. All processes measure at the same
    time, as in training."""
    measured = gather(run.ranks, measure_seconds(data, cfg))
    step, tuning = map(max, zip(*measured))  # of the slowest process
    training = cfg.steps * step
    waves = sum(math.ceil(size / run.ranks.size) for size in round_sizes(cfg))
    seconds = cfg.warm_times * training + waves * (training + tuning)
    phases = [f"{sum(round_sizes(cfg))} candidates of {training + tuning:.0f} s each"]
    if cfg.warm_times:
        phases.insert(0, f"a warm start of {cfg.warm_times} x {cfg.steps} steps")
    if cfg.finalists:
        names = list(hand_designed(cfg.layers))
        waves = math.ceil((cfg.finalists + len(names)) / run.ranks.size)
        seconds += waves * (cfg.finalist_times * training + tuning)
        phases.append(f"then the best {cfg.finalists} again and {' and '.join(names)}, "
                      f"{cfg.finalist_times} x {cfg.steps} steps each")
    minutes = math.ceil(seconds / 60)
    print0(run.ranks, f"plan: {', '.join(phases)}; about {minutes:,} minute(s) with "
                      f"{run.ranks.size} process(es)")
    print0(run.ranks, "a line for each candidate: number, score and its parts in percent, seconds, "
                      "layers (att5: an attention of 5 operations); * better than "
                      "earlier rounds and the majority baseline")


def candidate_line(key, result, arch, best, cfg):
    """The line of a candidate. A star marks a score above `best`."""
    mark = "*" if result["score"] > best else " "
    words = "diverged" if result["diverged"] else task_scores(result, cfg)
    return f"{mark} {key:>9}  {words}  {result['seconds']:.0f} s  {short_form(arch)}"


def task_scores(result, cfg):
    """The mean score and the scores by task, as text."""
    by_task = {shown_name(name, cfg): score for name, score in result["scores"].items()}
    return percent({"mean": result["score"], **by_task})


def short_form(arch):
    """The kinds of the layers: conv3 att5 is a convolution with kernel 3 and an attention of 5
    operations."""
    return " ".join(f"conv{layer}" if isinstance(layer, int) else f"att{len(path_of(layer))}"
                    for layer in arch)


def simplify(expression):
    """An equal expression with fewer minus signs.

    A minus sign moves out of linear and odd operations. A cosine ignores the scale of its operands.
    This is for display. A search keeps the formulas that it drew.

    >>> formula(simplify(parse_formula("neg(cos(Q, K)) @ neg(P)")))
    'cos(Q, K) @ P'
    """

    def simple(part):
        if part in INPUTS:
            return part
        op, *operands = part
        part = op, *map(simple, operands)
        match part:
            case ("neg", ("neg", x)) | ("transpose", ("transpose", x)):
                return x
            case ("transpose" | "scale" | "softsign", ("neg", x)):
                return "neg", simple((op, x))
            case ("matmul" | "cosine", ("neg", x), y) | ("matmul" | "cosine", x, ("neg", y)):
                return simple(("neg", (op, x, y)))
            case ("cosine", ("scale", x), y) | ("cosine", x, ("scale", y)):
                return simple(("cosine", x, y))
        return part

    shorter = canonical(simple(expression))
    return min(expression, shorter, key=lambda each: len(path_of(each)))


def tie_margin(result):
    """A lead that counts as a tie: two standard errors of a difference, by the dev examples."""
    return 2 * math.sqrt(2) * result["standard_error"]


def lead_over(result, name):
    """How the best network of a search's result compares with a baseline: above, tie or below."""
    lead = result["score"] - result["baselines"][name]["score"]
    if abs(lead) < tie_margin(result):
        return "tie"
    return "above" if lead > 0 else "below"


def print_best(run, cfg):
    """Print the scores of the best network and the baselines, its layers, and the next command."""
    best = run.result
    margin = tie_margin(best)
    lines = [f"best of {best['candidates']} candidates, scores in percent",
             f"  candidate {best['id']:<6} {task_scores(best, cfg)}"]
    for name, other in best["baselines"].items():
        lead = best["score"] - other["score"]
        tie = ", a tie" if lead_over(best, name) == "tie" else ""
        lines.append(f"  {name:16} {task_scores(other, cfg)}  (lead {100 * lead:+.2f}{tie})")
    lines.append(f"a lead of less than {100 * margin:.2f} is a tie, by the number of dev examples; "
                 "another seed of the training can change more")
    if run.command.given <= {"seed", "out", "restart", "device", "cache"}:  # the demo as it is
        lines.append(f"one seed proves nothing; {DEMO_SEEDS}")
    for name in ("majority", "bag of words"):
        if best["score"] <= best["baselines"].get(name, {"score": -math.inf})["score"]:
            lines.append(f"this does not beat the {name} baseline; train candidates for more "
                         "--steps and --finetune_epochs, or on more --train_examples")
    lines.append("layers, formulas simplified:")
    for number, layer in enumerate(parse_arch(best["arch"]), 1):
        if not isinstance(layer, int):
            layer = simplify(layer)
        lines.append(f"  {number:2d}  {arch_text([layer])}")
    print0(run.ranks, "\n".join(lines))
    if (run.folder / "best.pt").exists():
        print0(run.ranks, f"code: {run.folder / 'best.py'}; drawing: best.mmd (Mermaid)")
        run.print_next(cfg, "best.json", "--pretrain", "--init", run.folder)
    else:
        print0(run.ranks, "no best.pt: without shared weights and without --finalists no trained "
                          "weights are kept")
        run.print_next(cfg, "best.json", "--pretrain", "--arch", run.folder / "best.json",
                         same=("preset", "device", *SHAPE, "corpus", "tokenizer"))


def print_scores(run, cfg):
    """Print the result of pretrain_language_model."""
    result = run.result
    accuracies = {name: value for name, value in result.items() if name.endswith("accuracy")}
    print0(run.ranks, f"held-out text: {percent(accuracies)}; majority baseline of masked words "
                      f"{100 * result['mlm_majority']:.2f}; MLM loss {result['mlm_loss']:.4f} nats "
                      f"at --length {cfg.length}; losses at other lengths do not compare")
    print_near_baseline(run.ranks, result, {"mlm_accuracy": result["mlm_majority"]})
    print_after_training(run, cfg, "checkpoint.pt", "/network.py")


# Command line


def check(cfg, command):
    """Refuse contradictory settings."""
    if cfg.hidden % cfg.heads:
        raise UserError(f"--hidden {cfg.hidden}: must be a multiple of --heads {cfg.heads}")
    if cfg.batch % cfg.accumulate:
        raise UserError(f"--batch {cfg.batch}: must be a multiple of --accumulate {cfg.accumulate}")
    if command.action == "search" and not cfg.steps:
        raise UserError("--steps 0: only --pretrain takes passes over the corpus")
    if command.action in ("predict", "export") and not cfg.init:
        raise UserError(f"--{command.action}: name the run of the model with --init")


COMMON = ("run", "architecture", "model")  # groups of settings
ACTIONS = {  # the function, its help, and the groups of settings that it reads
    "search": (
        search, "search for an architecture (Alg. 1)",
        ("run", "execution", "text", "model", "pre-training", "tasks", "fine-tuning", "search")),
    "pretrain": (
        pretrain, "train --arch in full (App. D.2)",
        (*COMMON, "execution", "text", "pre-training")),
    "finetune": (
        finetune, "fine-tune --arch or --init on tasks (CoLA, ..., glue, squad, a folder of your "
        "own with train and dev files)",
        (*COMMON, "execution", "text", "tasks", "fine-tuning", "scores of --finetune"), "TASKS"),
    "predict": (
        predict, "predict a file of yours (TSV, SQuAD JSON) with --init RUN/TASK",
        (*COMMON, "execution", "fine-tuning"), "FILE"),
    "export": (
        export, "write the network of --init as plain torch, or as a folder for AutoModel",
        COMMON, "FILE.py|DIR"),
    "describe": (
        describe, "parameters, FLOPs, memory and days of --arch as JSON",
        (*COMMON, "execution", "text", "pre-training")),
}


def main(argv=None):
    """Run one action."""
    return cli.start(Config, PRESETS, ACTIONS, __doc__, check, argv)


if __name__ == "__main__":
    if "cli" not in globals():
        print("autobert_zero.py alone can be imported; its commands need common/ and data/ of "
              "its repository", file=sys.stderr)
        sys.exit(2)
    cli.run(main)
