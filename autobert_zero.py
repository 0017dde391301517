"""AutoBERT-Zero: Evolving BERT Backbone from Scratch (Gao, Xu, Shi, Ren, Yu, Liang, Jiang, Li; AAAI 2022,
arXiv:2107.07445v3).

A language model's backbone is searched from primitive operations. Every layer is either a lightweight convolution or an
attention of its own, and an attention is any graph of ten operations over two to four projections of its input. An
evolution whose mutations follow what the operations have scored so far (OP-NAS) proposes candidates, and a super-net
that remembers trained weights (BIWS) makes each one cheap to judge.

Run:     torchrun autobert_zero.py --search                            search on demo data, minutes on two CPU cores
         torchrun --nproc_per_node=8 autobert_zero.py --search --preset base --corpus TEXTS --glue GLUE  as in the paper
         torchrun --nproc_per_node=8 autobert_zero.py --pretrain --preset base --arch runs/x/best.json --corpus TEXTS
         python autobert_zero.py --finetune CoLA,MRPC --init runs/y --glue GLUE
Map:     Table 1 -> OPS, infer          Sec. 3.1 -> sample_graph, sample_arch   Fig. 7 -> PUBLISHED
         Alg. 1 -> search               Sec. 3.2 -> propose, SuperNet           Eq. 1, 2 -> AttentionMixer
         Eq. 3 -> ucb                   Fig. 5 -> uniformity                    Fig. 6 -> analyze_search
         Fig. 8 -> analyze_fidelity     Table 5 -> ablate                       Table 6 -> PRESETS
         Table 7 -> measure             App. D.1 -> evaluate_candidate          App. D.2 -> pretrain, finetune
Differs: D1  softsign is x / (1 + |x|), as arXiv's Table 1 has it; x / (1 + x) of the AAAI print has a pole.
         D2  `scale` always divides by sqrt(d_h): attention graphs run per head, d_x of Table 1 is the head's width.
         D3  No scalar nodes: Table 1's operations reach everything in Figure 7 with matrices alone.
         D4  cosine and euclidean are pairwise over the rows of their operands (n x d, m x d -> n x m), the reading
             under which they can score.
         D5  Padding: a softmax over tokens leaves padding out, a contraction over tokens lets nothing of it in. The
             paper does not say.
         D6  V alone under layers 10 and 12 of the published network (Figure 7 draws an `add` with one operand there).
         D7  Intra-layer mutation is one edit (replace, insert or delete an operation); the paper gives no operator. See
             edit_graph.
         D8  An operation never tried has the mean score of its position and the bonus of one trial: Eq. 3 is infinite
             there, its softmax undefined.
         D9  Scores enter Eq. 3 in percent (--ucb_unit 100), the unit of the paper's tables; alpha 0.01 in the unit 0..1
             leaves softmax(u) uniform.
         D10 When several candidates of one round trained the same weight, the super-net takes the best-scoring
             candidate's. See SuperNet.write_back.
         D11 The initial population is evaluated in rounds of the later size, so that the super-net learns from its
             start.
         D12 A diverged candidate scores 0 (each task's score is cut off at 0, its chance level or below) and is never a
             parent.
         D13 SentencePiece vocabulary unless a BERT vocab.txt is given with --tokenizer; the paper has WordPiece.
         D14 Named architectures at other depths than 12, and Table 5's convolution-only one: see named_arch, ablate.
         D15 --tasks takes MLM beside GLUE tasks: held-out masked-word accuracy. The demo uses it, since minutes of
             training leave most GLUE tasks at chance.
         D16 The random inter-layer mutation happens in half of the children, so that a child can differ in one
             attention.
         D17 15% of a batch's text is masked, not of each sequence, for static shapes; segments may begin in
             mid-sentence.
         D18 A convolution's kernel begins with deviation 1 (0 would make all heads average their window alike).
         D19 A candidate's score is the mean over --tasks, MNLI by its matched half alone; none is tried twice.
         D20 Fine-tuning ends with the weights that were best on dev at one of App. D.2's evaluations.
"""
import ast
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import random
import re
import shutil
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

# B batch, T tokens, H hidden, N heads, D head dim, V vocab, E embedding, M masked positions of a batch, I inputs of an
# attention graph, K kernel size

# --- configuration -------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    """Every knob. The comment is the help text; a preset overrides the default, a flag the preset."""
    preset: str = "demo"  # demo (minutes on two cores) | small | base | large (Table 6)
    out: str = ""  # run folder; default runs/autobert_zero-ACTION-PRESET
    restart: bool = False  # begin anew in a run folder that is there
    seed: int = 0  # of everything drawn
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = "auto"  # auto (bfloat16 autocast on GPUs that have it) | float32 | bfloat16
    dry_run: bool = False  # two real steps of every phase, on tiny budgets
    # data
    corpus: tuple[str, ...] = ()  # text files or folders to pre-train on; default: the demo text
    glue: str = ""  # folder with the GLUE tasks in their official layout; default: the demo tasks
    tokenizer: str = ""  # spiece.model or vocab.txt to use; default: train one on the corpus
    vocab_size: int = 30000  # pieces of the vocabulary, App. D.2 (D13)
    squad: str = ""  # folder with SQuAD's train-v1.1.json, ...; default: the demo questions
    tasks: str = "CoLA,MRPC,STS-B,SST-2,QQP,MNLI,QNLI,RTE"  # proxy tasks of the search; MLM: held-out text (D15)
    train_rows: int = 0  # use only so many training rows of each task; 0: all
    # model
    arch: str = "autobert-zero"  # autobert-zero | bert | a text form | a best.json
    variant: str = ""  # att | conv: the ablations of Table 5 of --arch
    layers: int = 12  # L
    hidden: int = 768  # d
    heads: int = 12  # A
    ffn: int = 3072  # d_ff
    embedding: int = 0  # width of the word embeddings; 0: hidden. 128 gives the paper's 13M small model
    dropout: float = 0.1  # hidden and attention dropout, Table 6
    init_std: float = 0.02  # deviation of the initial weights; BERT's 0.02 suits widths near 768
    # pre-training: a candidate's in --search, the whole one in --pretrain
    length: int = 128  # tokens a sequence, special ones included
    steps: int = 40000  # updates, Sec. 4.1
    batch: int = 160  # sequences an update, App. D.1
    lr: float = 2e-4  # peak learning rate, App. D.1
    warmup: float = 0.02  # share of the steps, App. D.1
    weight_decay: float = 0.01  # AdamW, on everything but biases and LayerNorms
    clip: float = 1.0  # largest gradient norm
    mask_rate: float = 0.15  # share of the tokens predicted
    epochs: int = 0  # passes over the corpus in place of --steps, --pretrain only
    accumulate: int = 1  # logical shards of a batch, computed one after the other and shared out over the processes
    compile: bool = False  # torch.compile the model, in pre-training
    recompute: bool = False  # gradient checkpointing: half the memory for a third more time
    init: str = ""  # run folder of --search or --pretrain to start from
    save_every: int = 1000  # steps between checkpoints, within a fine-tuning too
    log_every: int = 50  # steps between lines of the log
    eval_every: int = 100  # steps between looks at held-out text or at dev, App. D.2
    # fine-tuning
    finetune_epochs: int = 3  # App. D.1
    finetune_batch: int = 32  # sentences an update
    finetune_lr: float = 2e-5  # App. D.1
    finetune_warmup: float = 0.01  # share of the steps, App. D.1
    squad_length: int = 384  # tokens of a question with its window
    runs: int = 1  # seeds of each fine-tuning; the median counts
    grid: bool = False  # search the learning rates and weight decays of App. D.2
    # search
    strategy: str = "op-nas"  # op-nas | evolution (mutations uniform) | random
    population: int = 100  # initial random candidates, Sec. 4.1
    rounds: int = 27  # rounds after the initial population; 100 + 27 x 25 = 775 candidates
    parents: int = 5  # K of Alg. 1
    children: int = 5  # a parent, Sec. 4.1
    alpha: float = 0.01  # exploration in Eq. 3
    ucb_unit: float = 100.0  # scores enter Eq. 3 multiplied by this; see D9
    max_path: int = 12  # longest attention graph, in operations
    no_weight_sharing: bool = False  # every candidate starts from the same random weights instead of the super-net
    # description and analysis
    measure: bool = False  # --describe: time a forward on this device too
    measure_batch: int = 128  # sequences of that forward, App. D.3
    folders: tuple[str, ...] = ()  # --analyze: the run folders to look at
    samples: int = 0  # --analyze: sentences (uniformity; 0: 1280) or architectures (fidelity; 0: 6, as Figure 8)
    given = frozenset()  # not a setting: the flags that were given on the command line


DEMO = dict(vocab_size=1000, layers=4, hidden=64, heads=4, ffn=128, length=32, dropout=0.0, init_std=0.07, batch=64,
            lr=2e-3, warmup=0.1, finetune_lr=1e-3, finetune_warmup=0.1, finetune_epochs=2, tasks="MLM,CoLA",
            measure_batch=32)
PRESETS = {
    "demo": {**DEMO, "search": dict(steps=160, train_rows=800, population=12, rounds=4, parents=2, children=2),
             "pretrain": dict(length=64, batch=32, steps=3000, log_every=100, eval_every=500, save_every=500),
             "finetune": dict(length=64, squad_length=128, runs=3), "analyze": dict(steps=1000, train_rows=800)},
    "small": {"hidden": 256, "heads": 4, "ffn": 1024, "pretrain": dict(lr=1e-4, warmup=0.01, batch=320, epochs=40),
              "finetune": dict(runs=3)},
    "base": {"pretrain": dict(lr=1e-4, warmup=0.01, epochs=40)},
    "large": {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096,
              "pretrain": dict(lr=1e-4, warmup=0.02, batch=80, epochs=40)},
}

# --- search space --------------------------------------------------------------------------------
# An architecture is a tuple of layers. A layer is an int, the kernel size of a convolution, or a graph: a tuple of
# operations in evaluation order, each ("name", operand) or ("name", operand, operand). Operands 0..3 are Q, K, V, P;
# operand 4 + i is the result of operation i; the last operation is the output. A shape is a pair of axes: "nd" is
# tokens x head dim, "nn" tokens x tokens.

KERNELS = (3, 5, 7, 9, 15, 31, 65)  # Sec. 3.1, Inter-layer Search Space (1)
INPUTS = ("Q", "K", "V", "P")  # Sec. 3.1, Intra-layer Search Space (1)
UNARY = ("neg", "transpose", "scale", "softmax", "logsigmoid", "softsign")  # Table 1
BINARY = ("add", "matmul", "cosine", "euclidean")  # Table 1
OPS = UNARY + BINARY  # D3


def infer(op, *shapes):
    """Shape of op's result from its operands' shapes; None where the operation is not legal on them."""
    first, second = shapes[0], shapes[-1]
    if op == "transpose":
        return first[::-1]
    if op in UNARY:
        return first
    if op == "add":
        return first if first == second else None
    if op == "matmul":
        return first[0] + second[1] if first[1] == second[0] else None
    return first[0] + second[0] if first[1] == second[1] else None  # D4: rows against rows


def infer_graph(graph):
    """Shapes of all operands of a graph: [Q, K, V, P, operation 0, ...]; None where an operation is illegal."""
    shapes = ["nd"] * len(INPUTS)
    for op, *operands in graph:
        shape = infer(op, *(shapes[operand] for operand in operands))
        if shape is None:
            return None
        shapes.append(shape)
    return shapes


def canonical(graph):
    """The same function in one fixed order of operations: post-order from the output, equal sub-expressions merged,
    what the output does not use left out, the operands of add sorted. Two graphs with the same canonical form are the
    same architecture."""
    keys = list(INPUTS)  # a name for each operand's whole expression
    for op, *operands in graph:
        parts = [keys[operand] for operand in operands]
        keys.append(op + hashlib.blake2b("|".join([op] + (sorted(parts) if op == "add" else parts)).encode(),
                                         digest_size=12).hexdigest())
    order, place = [], {key: index for index, key in enumerate(INPUTS)}

    def visit(operand):
        if keys[operand] not in place:
            op, *operands = graph[operand - len(INPUTS)]
            if op == "add":
                operands = sorted(operands, key=keys.__getitem__)
            node = (op, *[visit(each) for each in operands])
            place[keys[operand]] = len(INPUTS) + len(order)
            order.append(node)
        return place[keys[operand]]

    visit(len(keys) - 1)
    return tuple(order)


def used_inputs(graph):
    """Indices of the inputs that a graph reads, in the order Q, K, V, P."""
    return sorted({operand for _, *operands in graph for operand in operands if operand < len(INPUTS)})


def why_illegal(graph, max_path=None):
    """None for a legal graph in canonical form, else the reason in words."""
    shapes = infer_graph(graph)
    if shapes is None:
        return "an operation's operands have shapes that do not fit"
    if shapes[-1] != "nd" or not graph:
        return "the output is not tokens x head dim"
    if not 2 <= len(used_inputs(graph)) <= len(INPUTS):
        return "an attention reads 2 to 4 of Q, K, V, P"
    if max_path and len(graph) > max_path:
        return f"{len(graph)} operations, more than --max_path {max_path}"
    return None


def grow(rng, length):
    """One attempt at a random graph of `length` operations: every step may use any operand, but never leaves more loose
    ends than the operations that are left can tie together. None where the attempt ran dry."""
    shapes = {operand: "nd" for operand in rng.sample(range(len(INPUTS)), rng.randint(2, len(INPUTS)))}
    loose, graph = set(shapes), []
    for left in reversed(range(length)):  # operations to come after this one
        for _ in range(30):
            op = rng.choice(OPS)
            pool = [sorted(loose) if rng.random() < 0.5 else list(shapes) for _ in range(1 if op in UNARY else 2)]
            operands = [rng.choice(each) for each in pool]
            shape, loose_then = (infer(op, *(shapes[operand] for operand in operands)),
                                 len(loose.difference(operands)) + 1)
            if shape and loose_then - 1 <= left and (left or shape == "nd"):
                break
        else:
            return None
        graph.append((op, *operands))
        loose = loose.difference(operands) | {len(INPUTS) + len(graph) - 1}
        shapes[len(INPUTS) + len(graph) - 1] = shape
    return tuple(graph)


def sample_graph(rng, max_path):
    """A random legal graph; every legal graph of up to max_path operations can come (Sec. 3.1: illegal ones are
    rejected early)."""
    while True:
        graph = grow(rng, rng.randint(1, max_path))
        if graph:
            graph = canonical(graph)
            if not why_illegal(graph, max_path):
                return graph


def sample_arch(rng, layers, max_path):
    """A random architecture: each layer a convolution or an attention with equal chance."""
    return tuple(rng.choice(KERNELS) if rng.random() < 0.5 else sample_graph(rng, max_path) for _ in range(layers))


# The text form: layers joined by " | "; a convolution is conv65; an attention is a formula, a sub-expression used twice
# gets a name first: "a = logsigmoid(Q); softmax(scale(a @ K.T)) @ a".

FUNCTIONS = {"neg": "neg", "scale": "scale", "softmax": "softmax", "logsigmoid": "logsigmoid", "softsign": "softsign",
             "cosine": "cos", "euclidean": "dist"}


def formula(graph):
    """The text form of a graph."""
    uses = defaultdict(int)
    for _, *operands in graph:
        for operand in set(operands):
            uses[operand] += 1
        if len(operands) == 2 and operands[0] == operands[1]:
            uses[operands[0]] += 1
    # texts: (text, how tightly it binds)
    texts, lines, names = [(name, 3) for name in INPUTS], [], iter("abcdefghijklmnorstuvwxyz")
    for index, (op, *operands) in enumerate(graph, len(INPUTS)):
        parts = [texts[operand] for operand in operands]
        if op == "transpose":
            text = (_wrapped(parts[0], 3) + ".T", 3)
        elif op == "add":
            text = (f"{_wrapped(parts[0], 1)} + {_wrapped(parts[1], 2)}", 1)
        elif op == "matmul":
            text = (f"{_wrapped(parts[0], 2)} @ {_wrapped(parts[1], 3)}", 2)
        else:
            text = (f"{FUNCTIONS[op]}({', '.join(part for part, _ in parts)})", 3)
        if uses[index] > 1:
            name = next(names, None) or f"x{index}"
            lines.append(f"{name} = {text[0]}")
            text = (name, 3)
        texts.append(text)
    return "; ".join(lines + [texts[-1][0]])


def _wrapped(part, tightness):
    text, binds = part
    return text if binds >= tightness else f"({text})"


def parse_formula(text):
    """The canonical graph of a formula; ValueError says what is wrong with it. Nothing is evaluated: the syntax tree is
    read."""
    graph, names = [], {name: index for index, name in enumerate(INPUTS)}

    def node(op, *operands):
        graph.append((op, *operands))
        return len(INPUTS) + len(graph) - 1

    def read(tree):
        if isinstance(tree, ast.Name) and tree.id in names:
            return names[tree.id]
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.MatMult)):
            return node("add" if isinstance(tree.op, ast.Add) else "matmul", read(tree.left), read(tree.right))
        if isinstance(tree, ast.Attribute) and tree.attr == "T":
            return node("transpose", read(tree.value))
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return node("neg", read(tree.operand))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            op = next((op for op, name in FUNCTIONS.items() if name == tree.func.id), None)
            if op and len(tree.args) == (1 if op in UNARY else 2) and not tree.keywords:
                return node(op, *map(read, tree.args))
        raise ValueError(f"{ast.unparse(tree)!r} is not a formula over Q, K, V, P with +, @, .T and "
                         f"{', '.join(FUNCTIONS.values())}")

    try:
        *bindings, output = [statement for part in text.split(";") for statement in ast.parse(part.strip()).body]
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r} is not a formula") from None
    for binding in bindings:
        target = binding.targets[0] if isinstance(binding, ast.Assign) and len(binding.targets) == 1 else None
        if not isinstance(target, ast.Name) or target.id in INPUTS:
            raise ValueError(f"{ast.unparse(binding)!r}: only names other than Q, K, V, P can be bound before the "
                             "formula")
        names[target.id] = read(binding.value)
    if not isinstance(output, ast.Expr):
        raise ValueError(f"{text!r} ends without a formula")
    result = read(output.value)
    if result < len(INPUTS):
        raise ValueError(f"{text!r} has no operation")
    used = canonical(tuple(graph[:result - len(INPUTS) + 1]))
    reason = why_illegal(used)
    if reason:
        raise ValueError(f"{text!r}: {reason}")
    return used


def arch_text(arch):
    """The text form of an architecture; parse_arch(arch_text(a)) == a."""
    return " | ".join(f"conv{layer}" if isinstance(layer, int) else formula(layer) for layer in arch)


def parse_arch(text):
    """The architecture of a text form; ValueError names the layer that is wrong."""
    layers = []
    for number, part in enumerate(text.split("|"), 1):
        kernel = re.fullmatch(r"conv(\d+)", part.strip())
        try:
            if kernel and int(kernel[1]) not in KERNELS:
                raise ValueError(f"kernel size {kernel[1]}; there are {', '.join(map(str, KERNELS))}")
            layers.append(int(kernel[1]) if kernel else parse_formula(part.strip()))
        except (ValueError, RecursionError, MemoryError) as error:  # the last two: a formula of thousands of operations
            raise ValueError(f"layer {number}: {str(error) or 'too long'}") from None
    return tuple(layers)


BERT_ATTENTION = "softmax(scale(Q @ K.T)) @ V"  # Eq. 2
PUBLISHED = (  # Figure 7: six pairs of a convolution and an attention; D6
    "conv65 | softmax(scale(Q @ neg(logsigmoid(neg(K)).T))) @ (K + Q)",
    "conv9 | softmax(scale(Q @ neg((logsigmoid(logsigmoid(Q) + (Q + K))).T))) @ Q",
    "conv3 | softmax(scale(Q @ neg(logsigmoid(K).T))) @ Q",
    "conv7 | softmax(scale(Q @ neg(logsigmoid(K).T))) @ Q",
    "conv7 | softmax(scale(Q @ (scale(K) + (softsign(scale(softsign(K))) + V)).T)) @ V",
    "conv3 | softmax(scale(Q @ (scale(K) + V).T)) @ V",
)
NAMED = ("autobert-zero", "autobert-zero-att", "autobert-zero-conv", "bert")


def named_arch(name, layers):
    """One of NAMED with `layers` layers. autobert-zero has 12; a multiple of 12 repeats each (conv, attention) pair
    right after itself (App. D.2); fewer layers take pairs evenly spaced from first to last (D14), an odd number drops
    the last attention."""
    if name == "bert":
        return parse_arch(BERT_ATTENTION) * layers
    count = (layers + 1) // 2
    if count > len(PUBLISHED):
        chosen = [index * len(PUBLISHED) // count for index in range(count)]
    else:
        chosen = [round(index * (len(PUBLISHED) - 1) / max(count - 1, 1)) for index in range(count)]
    pairs = [parse_arch(PUBLISHED[index]) for index in chosen]
    return ablate(tuple(layer for pair in pairs for layer in pair), name.removeprefix("autobert-zero"))[:layers]


def ablate(arch, kind):
    """Table 5: "-att" replaces each convolution with the attention layer directly behind it (the last ones: before it),
    "-conv" each attention with the convolution before it (our choice; the first ones: behind it). "" changes nothing.
    ValueError where there is nothing to take."""
    keep = {"-att": tuple, "-conv": int}.get(kind)
    if keep is None:
        return arch
    result, indices = [], range(len(arch))
    for index, layer in enumerate(arch):
        nearby = sorted(indices, key=lambda other: ((other - index) * (1 if keep is tuple else -1) < 0,
                                                    abs(other - index)))
        chosen = next((arch[other] for other in nearby if isinstance(arch[other], keep)), None)
        if chosen is None:
            raise ValueError(f"the architecture has no {'attention' if keep is tuple else 'convolution'} layer to "
                             f"build {kind} from")
        result.append(chosen)
    return tuple(result)


def mermaid(arch):
    """The architecture as a Mermaid flowchart, one subgraph a layer."""
    lines = ["flowchart BT"]
    for number, layer in enumerate(arch, 1):
        if isinstance(layer, int):
            lines.append(f'  L{number}["{number}: convolution, kernel {layer}"]')
            continue
        lines += [f"  subgraph L{number}[{number}: attention]", "    direction BT"]
        lines += [f"    L{number}_{index}(({INPUTS[index]}))" for index in used_inputs(layer)]
        for index, (op, *operands) in enumerate(layer, len(INPUTS)):
            lines.append(f"    L{number}_{index}[{op}]")
            lines += [f"    L{number}_{operand} --> L{number}_{index}" for operand in operands]
        lines.append("  end")
    return "\n".join(lines + [f"  L{number} --> L{number + 1}" for number in range(1, len(arch))]) + "\n"

# --- model ---------------------------------------------------------------------------------------


def hide(x, axes, contracted, mask):
    """x with zeros where the contracted axis stands on padding (D5). x (B, N, *axes), mask (B, T) True at real tokens
    or None."""
    if mask is None or axes[contracted] != "n":
        return x
    return torch.where(mask[:, None, :, None] if contracted == 0 else mask[:, None, None, :], x, 0.0)


def run_op(op, values, axes, mask, dropout):
    """One operation of Table 1 on (B, N, *, *) tensors; axes are the operands' shapes."""
    x, y = values[0], values[-1]
    if op == "neg":
        return -x
    if op == "transpose":
        return x.transpose(-1, -2)
    if op == "logsigmoid":
        return F.logsigmoid(x)
    if op == "softsign":
        return F.softsign(x)  # D1
    if op == "add":
        return x + y
    if op == "softmax":
        if axes[0][1] == "n" and mask is not None:
            x = x.masked_fill(~mask[:, None, None, :], float("-inf"))  # D5
        weights = F.softmax(x, dim=-1)
        return F.dropout(weights, dropout) if axes[0] == "nn" else weights
    if op == "matmul":
        return hide(x, axes[0], 1, mask) @ hide(y, axes[1], 0, mask)
    x, y = hide(x, axes[0], 1, mask), hide(y, axes[1], 1, mask)
    if op == "cosine":
        return F.normalize(x, dim=-1, eps=1e-6) @ F.normalize(y, dim=-1, eps=1e-6).transpose(-1, -2)
    # without the matrix-product shortcut, whose rounding the root would magnify where rows coincide
    return torch.cdist(x.contiguous(), y.contiguous(), compute_mode="donot_use_mm_for_euclid_dist")


def find_softmax_attention(graph):
    """(A, X, C, the four operations) where a graph's output is softmax(scale(A @ X)) @ C with A, C tokens x head dim
    and X head dim x tokens, else None. Such a graph runs as scaled_dot_product_attention(A, X^T, C), which never keeps
    the tokens x tokens matrix."""
    first = len(INPUTS)

    def only(operand, op):
        """operand's own operands if it is an `op` that nothing else reads, else None."""
        if operand < first or graph[operand - first][0] != op or sum(operand in node[1:] for node in graph) != 1:
            return None
        return graph[operand - first][1:]

    if graph[-1][0] != "matmul" or graph[-1][1] == graph[-1][2]:
        return None
    weights, values = graph[-1][1:]
    scaled = only(weights, "softmax")
    scores = scaled and only(scaled[0], "scale")
    product = scores and only(scores[0], "matmul")
    shapes = infer_graph(graph)
    if product and shapes[product[0]] == "nd" and shapes[product[1]] == "dn":
        return *product, values, {len(shapes) - 1, weights, scaled[0], scores[0]}
    return None


def run_graph(graph, inputs, mask=None, dropout=0.0, fuse=True):
    """The output (B, N, T, D) of an attention graph.

    inputs: {operand: (B, N, T, D)} for the inputs it reads; mask (B, T) True at real tokens, None where all are;
    dropout on the attention weights. fuse=False evaluates node by node even where the graph has the form of a softmax
    attention.
    """
    shapes, found = infer_graph(graph), find_softmax_attention(graph) if fuse else None
    values, wanted = dict(inputs), set(range(len(INPUTS), len(INPUTS) + len(graph)))
    if found:  # the attention's own operations
        wanted -= found[3]
    for index, (op, *operands) in enumerate(graph, len(INPUTS)):
        if index in wanted:
            if op == "scale":
                values[index] = values[operands[0]] / math.sqrt(next(iter(inputs.values())).shape[-1])  # D2
            else:
                values[index] = run_op(op, [values[each] for each in operands], [shapes[each] for each in operands],
                                       mask, dropout)
    if not found:
        return values[len(INPUTS) + len(graph) - 1]
    query, key, value = values[found[0]], values[found[1]].transpose(-1, -2), values[found[2]]
    visible = None if mask is None else mask[:, None, None, :]
    return F.scaled_dot_product_attention(query, key, hide(value, "nd", 0, mask), visible, dropout)


class AttentionMixer(nn.Module):
    """A searched attention: its inputs are projections of x, its graph runs per head, W_O ends it. (B, T, H) -> (B, T,
    H)."""

    def __init__(self, graph, hidden, heads, dropout):
        super().__init__()
        self.graph, self.heads, self.dropout, self.reads = graph, heads, dropout, used_inputs(graph)
        self.inputs = nn.Linear(hidden, len(self.reads) * hidden)  # W_Q, W_K, W_V, W_P stacked, those that are read
        self.output = nn.Linear(hidden, hidden)  # W_O

    def forward(self, x, mask):
        B, T, H = x.shape
        # (I, B, N, T, D)
        stacked = self.inputs(x).view(B, T, len(self.reads), self.heads, H // self.heads).permute(2, 0, 3, 1, 4)
        mixed = run_graph(self.graph, dict(zip(self.reads, stacked)), mask, self.dropout if self.training else 0.0)
        return self.output(mixed.transpose(1, 2).reshape(B, T, H))  # (B, N, T, D) -> (B, T, H)


BAND_FROM = 9  # kernel sizes from here on run as a band matrix, below as a grouped convolution
BAND_TOKENS = 1024  # longer sequences always run as a grouped convolution: a band matrix grows with the square


def light_conv(x, kernel, band=None):
    """Lightweight convolution (Wu et al. 2018): each head has one softmax-normalised kernel for all its channels. x (B,
    T, H), kernel (N, K) raw.

    As a band matrix (T x T a head) its cost does not depend on K; as a grouped convolution it grows with K. band=None
    takes the faster one.
    """
    B, T, H = x.shape
    N, K = kernel.shape
    weights = F.softmax(kernel.float(), dim=-1).to(x.dtype)
    if band is None:
        band = K >= BAND_FROM and T <= BAND_TOKENS
    if not band:
        weights = weights.repeat_interleave(H // N, dim=0)[:, None]  # (N, K) -> (H, 1, K)
        return F.conv1d(x.transpose(1, 2), weights, padding=K // 2, groups=H).transpose(1, 2)
    offsets = torch.arange(T, device=x.device)
    offsets = offsets[None, :] - offsets[:, None] + K // 2  # (T, T): which weight joins output i and input j
    matrix = weights[:, offsets.clamp(0, K - 1)] * ((offsets >= 0) & (offsets < K))  # (N, T, T)
    heads = x.view(B, T, N, H // N).transpose(1, 2)  # (B, N, T, D)
    return (matrix @ heads).transpose(1, 2).reshape(B, T, H)


class ConvMixer(nn.Module):
    """A convolution layer's mixer: linear d -> 2d, GLU, lightweight convolution, linear d -> d (Sec. 3.1, Inter-layer
    (1)). (B, T, H) -> (B, T, H).

    transform: in a search, the matrix that adapts the centre of the shared 65-kernel to this size (Sec. 3.2, BIWS (1));
    shared by all heads.
    """

    def __init__(self, size, hidden, heads, shared=False):
        super().__init__()
        self.inputs = nn.Linear(hidden, 2 * hidden)
        self.kernel = nn.Parameter(torch.randn(heads, size))  # D18
        self.transform = nn.Parameter(torch.eye(size)) if shared and size < max(KERNELS) else None
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x, mask):
        x = F.glu(self.inputs(x), dim=-1)  # (B, T, 2H) -> (B, T, H)
        if mask is not None:
            x = torch.where(mask[..., None], x, 0.0)  # zeros go into the convolution (D5)
        kernel = self.kernel if self.transform is None else self.kernel @ self.transform
        return self.output(light_conv(x, kernel))


class Layer(nn.Module):
    """Mixer, residual, LayerNorm, feed-forward, residual, LayerNorm, as in BERT. (B, T, H) -> (B, T, H)."""

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
        mixer = self.conv if hasattr(self, "conv") else self.attention  # the names of the super-net's two branches
        x = self.mixer_norm(x + self.dropout(mixer(x, mask)))
        return self.ffn_norm(x + self.dropout(self.shrink(F.gelu(self.expand(x)))))


class Encoder(nn.Module):
    """Embeddings and layers. forward: ids, segments (B, T), lengths (B,) real tokens of each row -> (B, T, H), with
    every_layer a list of the embeddings and each layer's output.

    shared: build the convolutions with the transformation matrices of the super-net.
    """

    def __init__(self, arch, cfg, shared=False):
        super().__init__()
        if cfg.hidden % cfg.heads:
            raise ValueError(f"hidden {cfg.hidden} is no multiple of heads {cfg.heads}")
        E = cfg.embedding or cfg.hidden
        self.arch = arch
        self.words = nn.Embedding(cfg.vocab_size, E)
        self.positions = nn.Embedding(512, E)
        self.segments = nn.Embedding(2, E)
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.dropout = nn.Dropout(cfg.dropout)
        self.project = nn.Linear(E, cfg.hidden) if E != cfg.hidden else nn.Identity()
        self.layers = nn.ModuleList(Layer(layer, cfg, shared) for layer in arch)
        self.recompute = cfg.recompute
        init_weights(self, cfg.init_std)

    def forward(self, ids, segments, lengths, every_layer=False):
        T = ids.shape[1]
        positions = torch.arange(T, device=ids.device)
        mask = positions[None] < lengths[:, None]  # (B, T)
        x = self.words(ids) + self.positions(positions) + self.segments(segments)  # (B, T, E)
        x = self.project(self.dropout(self.norm(x)))  # (B, T, H)
        states = [x]
        for layer in self.layers:
            x = checkpoint(layer, x, mask, use_reentrant=False) if self.recompute and self.training else layer(x, mask)
            states = [*states, x] if every_layer else [x]
        return states if every_layer else x


def init_weights(model, std):
    """BERT's initialisation: normal weights, zero biases."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class LanguageModel(nn.Module):
    """Encoder with the masked-language-model head (at the masked positions only) and the next-sentence head."""

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

    def forward(self, ids, segments, lengths, positions):
        """positions (M,): where in ids.flatten() words are to be predicted. Returns MLM logits (M, V) and next-sentence
        logits (B, 2)."""
        x = self.encoder(ids, segments, lengths)  # (B, T, H)
        masked = x.flatten(0, 1)[positions]  # (M, H)
        masked = self.norm(F.gelu(self.transform(masked)))  # (M, E)
        logits = F.linear(masked, self.encoder.words.weight, self.bias)  # (M, V)
        return logits, self.next_sentence(torch.tanh(self.pooler(x[:, 0])))


class Classifier(nn.Module):
    """Encoder, pooler and a linear head: logits (B, outputs); one output is a regression."""

    def __init__(self, arch, cfg, outputs, shared=False):
        super().__init__()
        self.encoder = Encoder(arch, cfg, shared)
        self.pooler = nn.Linear(cfg.hidden, cfg.hidden)
        self.dropout = nn.Dropout(cfg.dropout)
        self.head = nn.Linear(cfg.hidden, outputs)
        init_weights(self, cfg.init_std)

    def forward(self, ids, segments, lengths):
        return self.head(self.dropout(torch.tanh(self.pooler(self.encoder(ids, segments, lengths)[:, 0]))))


class SpanReader(nn.Module):
    """Encoder and a linear head on every token: logits of start and end (B, T, 2), for SQuAD."""

    def __init__(self, arch, cfg):
        super().__init__()
        self.encoder = Encoder(arch, cfg)
        self.head = nn.Linear(cfg.hidden, 2)
        init_weights(self, cfg.init_std)

    def forward(self, ids, segments, lengths):
        return self.head(self.encoder(ids, segments, lengths))

# --- supernet ------------------------------------------------------------------------------------


def slot(name, value, arch):
    """Where a candidate's weight lives in the super-net: (name there, indices of the rows, indices of the columns; None
    is all of them)."""
    found = re.fullmatch(r"encoder\.layers\.(\d+)\.(attention\.inputs\.\w+|conv\.kernel|conv\.transform)", name)
    if not found:
        return name, None, None
    layer = arch[int(found[1])]
    if found[2] == "conv.transform":
        return f"{name}.{layer}", None, None
    if found[2] == "conv.kernel":  # the centre of the largest kernel, Figure 3
        first = (max(KERNELS) - layer) // 2
        return name, None, torch.arange(first, first + layer)
    width = value.shape[0] // len(used_inputs(layer))  # the blocks of Q, K, V, P that the graph reads
    return name, torch.cat([torch.arange(index * width, (index + 1) * width) for index in used_inputs(layer)]), None


def take(tensor, rows, columns):
    """The part of a tensor that rows and columns name."""
    tensor = tensor if rows is None else tensor[rows]
    return tensor if columns is None else tensor[:, columns]


class SuperNet:
    """Bi-branch weight sharing (Sec. 3.2): in each layer an attention of four inputs and a convolution of kernel 65,
    with a transformation matrix for each smaller kernel. It is never run: candidates take their weights from it and
    give them back."""

    def __init__(self, cfg):
        everything = canonical(parse_formula("Q + K + V + P"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cfg.seed)
            attention = LanguageModel((everything,) * cfg.layers, cfg, shared=True)
            convolution = LanguageModel((max(KERNELS),) * cfg.layers, cfg, shared=True)
        self.weights = {**convolution.state_dict(), **attention.state_dict()}
        for layer in range(cfg.layers):
            for size in KERNELS[:-1]:
                self.weights[f"encoder.layers.{layer}.conv.transform.{size}"] = torch.eye(size)

    def fetch(self, model):
        """Copy a candidate's weights from the super-net into the model (a LanguageModel with shared=True)."""
        with torch.no_grad():
            for name, value in model.state_dict().items():
                there, rows, columns = slot(name, value, model.encoder.arch)
                value.copy_(take(self.weights[there], rows, columns))

    def write_back(self, candidates):
        """Take over the trained weights of one round: an iterable of (arch, state_dict) from the best score to the
        worst.

        Each candidate writes the weights that no better one has written (D10). So the order in which they finished does
        not matter, the best candidate's layers stay together as they were trained, and no two trained networks are
        averaged, which does not give a trained network.
        """
        written = {}
        for arch, state in candidates:
            for name, value in state.items():
                there, rows, columns = slot(name, value, arch)
                target = self.weights[there]
                done = written.setdefault(there, torch.zeros_like(target, dtype=torch.bool))
                rows = torch.arange(target.shape[0]) if rows is None else rows
                index = (rows,) if columns is None else (rows[:, None], columns[None])
                target[index] = torch.where(done[index], target[index], value)
                done[index] = True

    def start_from(self, given):
        """Take over what read_run returned: another search's super-net, or one trained network where its architecture
        has weights."""
        from common.cli import UserError
        weights, searched, arch = given
        size = weights["encoder.words.weight"].shape
        if size != self.weights["encoder.words.weight"].shape:
            raise UserError(f"--init: its vocabulary and width {tuple(size)} differ from this run's; use its tokenizer")
        if searched:
            self.load_state_dict(weights)
        else:
            self.write_back([(arch, weights)])

    def state_dict(self):
        return self.weights

    def load_state_dict(self, state):
        self.weights = {name: value.cpu() for name, value in state.items()}

# --- search --------------------------------------------------------------------------------------


def ucb(totals, counts, alpha):
    """Eq. 3 for one position: u_i = mu_i + alpha sqrt(2 log N / N_i).

    totals, counts: summed scores and number of samples of each option. An option never sampled takes the mean of all
    and N_i = 1 (D8).
    """
    N = sum(counts)
    mean = sum(totals) / max(N, 1)
    bonus = math.sqrt(2 * math.log(max(N, 1)))
    return [(total / count if count else mean) + alpha * bonus / math.sqrt(max(count, 1))
            for total, count in zip(totals, counts)]


def softmax(scores):
    """Probabilities from scores (Sec. 3.2: p = softmax(u))."""
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


class OperationPriority:
    """What the history says about operations: a distribution for each position of the path, shared by all attention
    layers, as many as the longest path seen; and one over kernel sizes for each layer (Sec. 3.2)."""

    def __init__(self, history, cfg):
        self.cfg, self.cells = cfg, defaultdict(lambda: ([0.0] * len(OPS), [0] * len(OPS)))
        self.kernels = defaultdict(lambda: ([0.0] * len(KERNELS), [0] * len(KERNELS)))
        for line in history:
            for number, layer in enumerate(parse_arch(line["arch"])):
                score = line["score"] * cfg.ucb_unit  # D9
                if isinstance(layer, int):
                    self._count(self.kernels[number], KERNELS.index(layer), score)
                    continue
                for position, (op, *_) in enumerate(layer):
                    self._count(self.cells[position], OPS.index(op), score)

    @staticmethod
    def _count(cell, option, score):
        cell[0][option] += score
        cell[1][option] += 1

    def operation_probabilities(self, position):
        """Over OPS, at a position of the path from 0."""
        if self.cfg.strategy != "op-nas" or position not in self.cells:
            return [1 / len(OPS)] * len(OPS)
        return softmax(ucb(*self.cells[position], self.cfg.alpha))

    def kernel_probabilities(self, layer):
        """Over KERNELS, at a layer from 0."""
        if self.cfg.strategy != "op-nas" or layer not in self.kernels:
            return [1 / len(KERNELS)] * len(KERNELS)
        return softmax(ucb(*self.kernels[layer], self.cfg.alpha))


def edit_graph(graph, rng, priority, max_path):
    """A legal graph one edit away, None where none was found: at a random position of the path an operation is
    replaced, inserted behind or deleted; the new operation is drawn from that position's distribution, its second
    operand from what stands before it (D7). Illegal outcomes are drawn again; where a position's distribution is so
    peaked that nothing legal comes up, all operations get the same chance."""
    first = len(INPUTS)
    for attempt in range(400):
        position = rng.randrange(len(graph))
        weights = priority.operation_probabilities(position) if attempt < 200 else [1] * len(OPS)
        op = rng.choices(OPS, weights)[0]
        kind = rng.choice(("replace", "insert", "delete"))
        nodes = [list(node) for node in graph]
        if kind == "delete":  # readers of the deleted operation read one of its operands; canonical() drops it
            by = rng.choice(nodes[position][1:])
            child = [[name, *[by if operand == first + position else operand for operand in operands]]
                     for name, *operands in nodes]
            if position == len(graph) - 1:  # the output itself is deleted: its operand is the output now
                child = child[:max(by - first + 1, 0)]
        else:
            operands = list(nodes[position][1:]) if kind == "replace" else [first + position]
            second = rng.randrange(first + position)
            if op in BINARY and len(operands) == 1:
                operands = rng.sample([operands[0], second], 2)
            elif op in UNARY:
                operands = [rng.choice(operands)]
            if kind == "replace":
                child = nodes[:position] + [[op, *operands]] + nodes[position + 1:]
            else:  # what came behind moves up by one and reads the new operation in place of the old
                behind = [[name, *[operand + (operand >= first + position) for operand in rest]]
                          for name, *rest in nodes[position + 1:]]
                child = nodes[:position + 1] + [[op, *operands]] + behind
        child = canonical(tuple(map(tuple, child))) if child and infer_graph(child) else None
        if child and child != graph and not why_illegal(child, max_path):
            return child
    return None


def mutate(parent, rng, priority, cfg):
    """A child (Alg. 1, lines 6 and 7): in half of the cases one random layer changes its kind (D16), then one random
    layer is changed inside, guided by the priorities.

    A layer that becomes an attention takes a random one of the parent's, or a random graph; one that becomes a
    convolution takes a random kernel. A convolution that is changed inside draws its kernel from the layer's
    distribution.
    """
    child = list(parent)
    if rng.random() < 0.5:  # inter-layer: random mutation, as in plain evolution
        layer = rng.randrange(len(child))
        attentions = [other for other in parent if not isinstance(other, int)]
        if not isinstance(child[layer], int):
            child[layer] = rng.choice(KERNELS)
        elif attentions and rng.random() < 0.5:
            child[layer] = rng.choice(attentions)
        else:
            child[layer] = sample_graph(rng, cfg.max_path)
    layer = rng.randrange(len(child))  # intra-layer
    if isinstance(child[layer], int):
        child[layer] = rng.choices(KERNELS, priority.kernel_probabilities(layer))[0]
    else:
        child[layer] = edit_graph(child[layer], rng, priority, cfg.max_path) or sample_graph(rng, cfg.max_path)
    return tuple(child)


def round_sizes(cfg):
    """Candidates in each round: the initial population in rounds of the later size (D11), then the children of the
    parents."""
    later = cfg.parents * cfg.children
    initial = [min(later, cfg.population - start) for start in range(0, cfg.population, later)]
    return initial + [later] * cfg.rounds


def propose(history, number, cfg):
    """The candidates of a round, [(parent's id or None, arch)]: a function of the history, the round's number and the
    seed alone, so every process proposes the same and a resumed search proposes what it would have. No architecture is
    proposed twice (D19)."""
    rng = random.Random(f"{cfg.seed} round {number}")
    seen, proposals = {line["arch"] for line in history}, []
    size, initial = round_sizes(cfg)[number], len(round_sizes(cfg)) - cfg.rounds
    ranked = sorted((line for line in history if not line["diverged"]), key=lambda line: (-line["score"], line["id"]))
    parents = [] if number < initial or cfg.strategy == "random" else ranked[:cfg.parents]  # Alg. 1, line 4
    priority = OperationPriority(history, cfg)
    while len(proposals) < size:
        parent = parents[len(proposals) // cfg.children % len(parents)] if parents else None
        for _ in range(100):  # a parent whose whole neighbourhood is known gives way to a random architecture
            arch = (mutate(parse_arch(parent["arch"]), rng, priority, cfg) if parent
                    else sample_arch(rng, cfg.layers, cfg.max_path))
            if arch_text(arch) not in seen:
                break
        else:
            parent, arch = None, sample_arch(rng, cfg.layers, cfg.max_path)
        seen.add(arch_text(arch))
        proposals.append((parent["id"] if parent else None, arch))
    return proposals


def evaluate_candidate(arch, number, supernet, data, cfg, path, tick):
    """Pre-train and fine-tune one candidate (App. D.1). Returns {score, scores, diverged, seconds} and its weights as
    pre-trained.

    number: of the round, which rules the text it sees. path: where the state inside the candidate is kept, so that it
    can be resumed. tick(n): progress.
    """
    from common.distributed import Checkpoint, Ranks
    began, alone = time.perf_counter(), Ranks(0, 1, data.device)
    model = LanguageModel(arch, cfg, shared=True)
    supernet.fetch(model)
    model.to(data.device)
    result = {"score": 0.0, "scores": {}, "diverged": False}  # D12
    try:
        checkpoint = Checkpoint(path, alone, model=model) if cfg.save_every < cfg.steps else None
        train_language_model(model, data, cfg, alone, checkpoint, first=number * cfg.steps * cfg.batch, tick=tick)
        result["scores"] = score_tasks(model, arch, data.tasks, cfg, data.device, tick=tick)
        result["score"] = sum(result["scores"].values()) / len(data.tasks)  # D19
    except Diverged:
        result["diverged"] = True
    result["seconds"] = round(time.perf_counter() - began, 3)
    return result, {name: value.cpu() for name, value in model.state_dict().items()}


def score_tasks(model, arch, tasks, cfg, device, shared=True, tick=lambda done: None):
    """{task: main metric on dev, not below 0 (D12)} after fine-tuning a copy of the language model's encoder on each
    task."""
    from common.distributed import seed_everything
    scores = {}
    for task in tasks:
        if task.name == "MLM":
            scores["MLM"] = task.accuracy(model, cfg)
            continue
        seed_everything(cfg.seed, "head", task.name)  # the same head whether or not the candidate was resumed
        classifier = Classifier(arch, cfg, task.outputs, shared)
        classifier.encoder.load_state_dict(model.encoder.state_dict())
        classifier.pooler.load_state_dict(model.pooler.state_dict())
        scores[task.name] = max(train_task(classifier, task, cfg, device, tick)["main"], 0.0)
    return scores


def search(cfg):
    """OP-NAS (Algorithm 1). The candidates of a round are shared out over the processes; all else is the same on each
    of them."""
    from common.distributed import Checkpoint, Stop, barrier, launch, on_main, progress, say, stopping
    with launch(cfg.device) as ranks:
        given = read_run(cfg) if cfg.init else None
        run, data = open_run(cfg, "search", ranks, tasks=True)
        if run.finished:
            say(ranks, f"{run.folder}: this search is finished (--restart begins anew)\n")
            return show_best(run.finished, ranks)
        supernet, sizes, folder = SuperNet(cfg), round_sizes(cfg), run.folder / "candidates"
        if given:
            supernet.start_from(given)
        checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, supernet=supernet)
        history = checkpoint.restore().get("history", [])
        on_main(ranks, record_history, run, history)
        work = cfg.steps + sum(task.steps(cfg) for task in data.tasks)
        bar = progress(ranks, sum(sizes) * work, "search", start=len(history) * work)
        while len(history) < sum(sizes):
            number = next(number for number in range(len(sizes)) if sum(sizes[:number + 1]) > len(history))
            proposals, first = propose(history, number, cfg), len(history)  # Alg. 1, lines 4 to 7
            best = max((line["score"] for line in history), default=0.0)
            with contextlib.suppress(Stop):  # a rank that is told to stop meets the others below
                for index in range(ranks.rank, len(proposals), ranks.size):
                    bar.set_description(f"round {number + 1}/{len(sizes)} candidate {first + index + 1}/{sum(sizes)} "
                                        f"best {best:.4f}")
                    evaluate_once(folder / str(first + index), proposals[index][1], number, supernet, data, cfg,
                                  lambda done: bar.update(done * ranks.size))  # Alg. 1, lines 8 and 9
            if stopping(ranks):
                raise Stop
            history += finish_round(folder, proposals, number, first, supernet, cfg)  # Alg. 1, line 11
            checkpoint.save(history=history)
            barrier(ranks)  # every rank has read the candidates' files
            on_main(ranks, record_round, run, history, first)
        bar.close()
        result = on_main(ranks, record_best, run, history)
        show_best(result, ranks)


def evaluate_once(path, arch, number, supernet, data, cfg, tick):
    """evaluate_candidate, with its outcome kept in path.pt (weights) and path.json (the rest, written last), so that a
    candidate that is done is not done again."""
    from common.distributed import save_file, write_atomic
    if not path.with_suffix(".json").exists():
        result, weights = evaluate_candidate(arch, number, supernet, data, cfg, path.with_suffix(".training.pt"), tick)
        save_file(path.with_suffix(".pt"), weights)
        write_atomic(path.with_suffix(".json"), json.dumps(result))
        for left in path.parent.glob(f"{path.name}.training.pt*"):  # model and optimizer, twice
            left.unlink()


def finish_round(folder, proposals, number, first, supernet, cfg):
    """The history's lines of a round whose candidates are all done; writes their weights back into the super-net."""
    from common.distributed import load_file
    results = [json.loads((folder / f"{first + index}.json").read_text()) for index in range(len(proposals))]
    ranking = sorted((index for index, result in enumerate(results) if not result["diverged"]),
                     key=lambda index: -results[index]["score"])
    if not cfg.no_weight_sharing:  # one candidate's weights are in memory at a time
        supernet.write_back((proposals[index][1], load_file(folder / f"{first + index}.pt")) for index in ranking)
    return [{"id": first + index, "round": number, "parent": parent, "arch": arch_text(arch), **result}
            for index, ((parent, arch), result) in enumerate(zip(proposals, results))]


def record_history(run, history):
    """Write history.jsonl as the checkpoint has it and drop the files of candidates that it holds."""
    from common.distributed import write_atomic
    folder = run.folder / "candidates"
    folder.mkdir(exist_ok=True)
    write_atomic(run.folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
    for path in folder.glob("[0-9]*"):  # others are the file system's own
        if int(path.name.split(".")[0]) < len(history):
            path.unlink()


def record_round(run, history, first):
    """After a round, when the checkpoint holds it: history.jsonl and a line of the log."""
    record_history(run, history)
    scores = [line["score"] for line in history]
    run.log(phase="search", round=history[-1]["round"], candidates=len(history), best=max(scores),
            mean=statistics.mean(scores[first:]))


def record_best(run, history):
    """Write best.json and the picture of the architecture, and mark the run as finished. Returns best.json's object;
    UserError where every candidate diverged."""
    from common.cli import UserError
    from common.distributed import write_atomic
    best = max((line for line in history if not line["diverged"]), key=lambda line: line["score"], default=None)
    if best is None:
        raise UserError(f"{run.folder}: every candidate diverged; lower --lr, then --restart")
    result = {**{key: best[key] for key in ("arch", "score", "scores", "id")}, "candidates": len(history)}
    write_atomic(run.folder / "best.json", json.dumps(result, indent=2))
    write_atomic(run.folder / "best.mmd", mermaid(parse_arch(result["arch"])))
    run.finish(result)
    return result


def show_best(best, ranks):
    """Print the architecture that a search found, a layer a line."""
    from common.distributed import say
    scores = ", ".join(f"{name} {score:.4f}" for name, score in best["scores"].items())
    say(ranks, f"best of {best['candidates']} candidates: number {best['id']}, score {best['score']:.4f} ({scores})")
    for number, layer in enumerate(parse_arch(best["arch"]), 1):
        say(ranks, f"  {number:2d}  convolution  kernel {layer}" if isinstance(layer, int)
            else f"  {number:2d}  attention    {formula(layer)}")

# --- objective -----------------------------------------------------------------------------------


def next_sentence_pairs(segments, tokenizer, generator):
    """[CLS] A [SEP] B [SEP] with B the continuation (label 0) or, in half of the cases and where there is none, text
    from elsewhere (label 1).

    segments: common.corpus.Segments. Returns ids, segments (R, T), lengths (R,), labels (R,), with T = the segments'
    width + 3.
    """
    R, width = segments.first.shape
    other = (torch.rand(R, generator=generator) < 0.5) | (segments.second_length == 0)
    second = torch.where(other[:, None], segments.other, segments.second)
    a, b = segments.first_length[:, None], torch.where(other, segments.other_length, segments.second_length)[:, None]
    special = torch.tensor([[tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]]).expand(R, -1)
    pieces, place = torch.cat([segments.first, second, special], 1), torch.arange(width + 3)  # (R, 2 width + 3)
    source = torch.where(place <= a, place - 1, place + width - 2 - a)  # (R, T): which piece stands at each place
    source[:, 0] = 2 * width
    source.scatter_(1, torch.cat([a + 1, a + b + 2], 1), 2 * width + 1)
    after = place > a + b + 2
    kinds = (place > a + 1) & ~after
    return pieces.gather(1, source.masked_fill_(after, 2 * width + 2)), kinds.long(), (a + b + 3)[:, 0], other.long()


def mask_tokens(ids, tokenizer, rate, generator):
    """BERT's masking: `rate` of the text is to be predicted; of it 80% becomes [MASK], 10% a random piece, 10% stays.

    ids (B, T). Returns the changed ids, positions (M,) in ids.flatten() and labels (M,). M depends on B and T alone, so
    that shapes are static; label -100 marks what padding leaves over.
    """
    M = max(1, round(rate * ids.numel()))  # D17
    text = ((ids != tokenizer.pad_id) & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)).flatten().nonzero()[:, 0]
    chosen = text[torch.randperm(len(text), generator=generator)[:max(1, round(rate * len(text)))]]
    labels, kind = ids.flatten()[chosen], torch.rand(len(chosen), generator=generator)
    random_piece = torch.randint(tokenizer.vocab_size, (len(chosen),), generator=generator)
    changed = ids.flatten().index_put((chosen,), torch.where(kind < 0.8, tokenizer.mask_id,
                                                             torch.where(kind < 0.9, random_piece, labels)))
    left = (0, M - len(chosen))
    return changed.view_as(ids), F.pad(chosen, left), F.pad(labels, left, value=-100)

# --- training ------------------------------------------------------------------------------------

CHECK_EVERY = 20  # steps between looks at the gradient norm, each of which makes a GPU wait


class Diverged(Exception):
    """A loss or a gradient became infinite or not a number."""


@dataclasses.dataclass
class Data:
    """What a run reads: text, tasks and their features, on one device."""
    tokenizer: object
    train: object  # common.corpus.Corpus to train on
    dev: object  # held-out part
    tasks: list  # of GlueTask: the proxy tasks of a search
    device: torch.device


def open_run(cfg, action, ranks, flags=("corpus", "glue"), tasks=False):
    """Open the run folder and what the run reads. flags: the data flags that the demo data stands in for; tasks: read
    the proxy tasks too. Returns (RunFolder, Data)."""
    from common.distributed import RunFolder
    from common.inputs import fill_in, open_text
    from common.tokenization import load_tokenizer
    settings = dataclasses.asdict(cfg)
    demo = fill_in(cfg, ranks, *flags)
    run = RunFolder(cfg.out, settings, action, ranks, cfg.restart, demo)
    if cfg.tokenizer and "corpus" not in flags:
        tokenizer = load_tokenizer(cfg.tokenizer)
        cfg.vocab_size = tokenizer.vocab_size
        return run, Data(tokenizer, None, None, [], ranks.device)
    text = open_text(cfg, ranks, run.folder)
    data = Data(text.tokenizer, text.train, text.dev, [], ranks.device)
    data.tasks = proxy_tasks(cfg, data) if tasks else []
    return run, data


def proxy_tasks(cfg, data):
    """What --tasks names: GLUE tasks, and MLM for held-out text (D15). UserError where there is none."""
    from common import glue
    from common.cli import UserError
    from common.distributed import Ranks
    names = cfg.tasks.replace(",", " ").split()
    others = [name for name in names if name.upper() != "MLM"]
    found = [GlueTask(task, data.tokenizer, cfg) for task in glue.parse_tasks(" ".join(others))] if others else []
    found += [HeldOutText(data, Ranks(0, 1, data.device))] * any(name.upper() == "MLM" for name in names)
    if not found:
        raise UserError("--tasks: name at least one task")
    return found


def schedule(step, steps, warmup):
    """Share of the peak learning rate at a step: linear up over warmup x steps, then linear down to 0 (App. D.1)."""
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else (steps - step) / max(1, steps - rise)


def make_optimizer(model, weight_decay):
    """AdamW as BERT has it: weight decay on all matrices, kernels and transformation matrices too, not on biases and
    LayerNorms."""
    decayed = [value for value in model.parameters() if value.dim() > 1]
    plain = [value for value in model.parameters() if value.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6, fused=True)  # betas: Table 6


def set_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def language_batch(data, corpus, cfg, position, rows):
    """Examples position .. position + rows - 1 of a corpus's endless stream, as tensors on the device: the arguments of
    language_losses."""
    from common.distributed import seed_of
    generator = torch.Generator().manual_seed(seed_of(cfg.seed, "mask", position))
    segments = corpus.segments(position, rows, cfg.length - 3, cfg.seed)
    ids, kinds, lengths, next_labels = next_sentence_pairs(segments, data.tokenizer, generator)
    ids, positions, labels = mask_tokens(ids, data.tokenizer, cfg.mask_rate, generator)
    batch = (ids, kinds, lengths, positions, labels, next_labels)
    return [(tensor.pin_memory() if data.device.type == "cuda" else tensor).to(data.device, non_blocking=True)
            for tensor in batch]


def language_losses(model, ids, kinds, lengths, positions, labels, next_labels):
    """(masked-language-model loss, next-sentence loss), to be added (Sec. 4.1), and the logits."""
    logits, next_logits = model(ids, kinds, lengths, positions)  # (M, V), (B, 2)
    losses = F.cross_entropy(logits.float(), labels), F.cross_entropy(next_logits.float(), next_labels)
    return losses, (logits, next_logits)


def wrap(model, cfg, ranks):
    """The model as it is trained: compiled where asked, data-parallel where there are several processes."""
    if cfg.compile:
        torch.compiler.reset()  # a search compiles one network after the other, and after eight torch would give up
    network = torch.compile(model) if cfg.compile else model
    if ranks.size == 1:
        return network
    return nn.parallel.DistributedDataParallel(
        network, device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None)


def train_language_model(model, data, cfg, ranks, checkpoint=None, first=0, tick=lambda done: None, report=None):
    """Masked-language-model and next-sentence pre-training from example number `first` on.

    A batch is cut in --accumulate logical shards (at least one a process), each with a seed of its own: with the same
    number of shards, examples, masks and dropout of a step do not depend on the number of processes. report(step,
    losses, rate) is called every --log_every and --eval_every steps. Raises Diverged, and Stop after SIGTERM (state
    saved).
    """
    from common.cli import UserError
    from common.distributed import Stop, autocast, seed_everything, shard_range, stopping
    optimizer, start = make_optimizer(model, cfg.weight_decay), 0
    if checkpoint:
        checkpoint.owned["optimizer"] = optimizer
        start = checkpoint.restore().get("step", 0)
        tick(start)
    network, shards = wrap(model, cfg, ranks), max(cfg.accumulate, ranks.size)
    if cfg.batch % shards:
        raise UserError(f"--batch {cfg.batch}: must be a multiple of the {shards} shards it is cut in (--accumulate)")
    mine, rows = shard_range(ranks, shards), cfg.batch // shards
    model.train()
    for step in range(start, cfg.steps):
        rate = cfg.lr * schedule(step, cfg.steps, cfg.warmup)
        set_rate(optimizer, rate)
        for shard in mine:
            seed_everything(cfg.seed, "language model", first, step, shard)
            batch = language_batch(data, data.train, cfg, first + step * cfg.batch + shard * rows, rows)
            lone = ranks.size == 1 or shard == mine[-1]  # gradients travel with the last shard
            with contextlib.nullcontext() if lone else network.no_sync():
                with autocast(cfg.dtype, data.device):
                    losses, _ = language_losses(network, *batch)
                (sum(losses) / len(mine)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        optimizer.zero_grad()
        tick(1)
        done, last = step + 1, step + 1 == cfg.steps
        shown = report and (last or done % cfg.log_every == 0 or done % cfg.eval_every == 0)
        saved = checkpoint and (last or done % cfg.save_every == 0)
        look = last or shown or saved or done % CHECK_EVERY == 0
        if look and not math.isfinite(norm):  # once it is not, the weights are lost, and it stays so
            raise Diverged(f"gradient norm {norm} at or before step {done}")
        if shown:
            report(done, losses, rate)
        stop = (look or ranks.size == 1) and stopping(ranks)
        if saved or checkpoint and stop:
            checkpoint.save(step=done)
        if stop:
            raise Stop


@torch.no_grad()
def evaluate_language_model(model, data, cfg, ranks, batches=16):
    """Loss and accuracy of both objectives on held-out text, the same examples for every model; shared out over the
    processes."""
    from common.distributed import autocast, reduce_mean
    model.eval()
    sums, rows = torch.zeros(5, dtype=torch.float64), max(1, min(32, cfg.batch))
    for index in range(ranks.rank, batches, ranks.size):
        batch = language_batch(data, data.dev, dataclasses.replace(cfg, seed=0), index * rows, rows)
        labels, next_labels = batch[4:]
        with autocast(cfg.dtype, data.device):
            losses, (logits, next_logits) = language_losses(model, *batch)
        right = (logits.argmax(-1) == labels).sum() / (labels >= 0).sum()
        sums += torch.tensor([*losses, right, (next_logits.argmax(-1) == next_labels).float().mean(), 1.0],
                             dtype=torch.float64)
    model.train()
    names = ("mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
    means = reduce_mean(ranks, *sums.tolist())
    return {name: value / means[-1] for name, value in zip(names, means)}


def pretrain(cfg):
    """Full training of one architecture (App. D.2), from scratch or from a run folder (--init; a search's:
    AutoBERT-Zero*)."""
    from common.cli import UserError
    from common.distributed import Checkpoint, launch, peak_flops, peak_memory, progress, say, seed_everything
    with launch(cfg.device) as ranks:
        start_at = read_run(cfg) if cfg.init else None
        arch = settle_arch(cfg)
        run, data = open_run(cfg, "pretrain", ranks, ("corpus",))
        if run.finished:
            return say(ranks, f"{run.folder}: this run is finished: {run.finished} (--restart begins anew)")
        seed_everything(cfg.seed, "model")
        model = LanguageModel(arch, cfg)
        if start_at:
            say(ranks, start_from(model, start_at))
        model.to(ranks.device)
        if cfg.epochs and "steps" not in cfg.given:
            cfg.steps = math.ceil(cfg.epochs * data.train.slots(cfg.length - 3) / cfg.batch)
        bar, roof = progress(ranks, cfg.steps, "pretrain"), peak_flops(ranks.device, cfg.dtype)
        flops, clock = count_flops(arch, cfg, cfg.length), [0.0, 0]
        # a token, forward and backward; the vocabulary head sees the masked positions alone
        cost = 3 * (flops["layers"] + cfg.mask_rate * flops["vocabulary_head"]) / cfg.length

        def report(step, losses, rate):
            mlm, nsp = (loss.item() for loss in losses)  # waits for the device, so that the clock counts what is done
            seconds, steps = time.perf_counter() - clock[0], step - clock[1]
            speed = steps * cfg.batch * cfg.length / seconds if clock[1] else None  # the first steps warm up
            record = {"step": step, "mlm": mlm, "nsp": nsp, "lr": rate, "tokens_per_second": speed,
                      "share_of_peak": speed and speed * cost / (roof * ranks.size),
                      "memory_mb": peak_memory(ranks.device)}
            if step % cfg.eval_every == 0:
                record["held_out"] = evaluate_language_model(model, data, cfg, ranks)
            bar.set_postfix(mlm=f"{mlm:.3f}", lr=f"{rate:.1e}", tok_s=f"{speed or 0:.0f}")
            run.log(phase="pretrain", **record)
            clock[:] = time.perf_counter(), step

        checkpoint = Checkpoint(run.folder / "checkpoint.pt", ranks, model=model)
        try:
            train_language_model(model, data, cfg, ranks, checkpoint, tick=bar.update, report=report)
        except Diverged as error:
            bar.close()
            raise UserError(f"{run.folder}: the training diverged ({error}); lower --lr or raise --warmup, and "
                            "--restart") from None
        result = evaluate_language_model(model, data, cfg, ranks, batches=64)
        bar.close()
        run.finish(result)
        say(ranks, "held-out text:", ", ".join(f"{name} {value:.4f}" for name, value in result.items()))


def settle_arch(cfg):
    """read_arch, with the architecture itself instead of its name or file put in cfg: what a run folder remembers."""
    arch = read_arch(cfg)
    cfg.arch, cfg.variant = arch_text(arch), ""
    return arch


def read_arch(cfg):
    """The architecture that --arch, --variant and --layers name; UserError where it is none."""
    from common.cli import UserError
    try:
        if cfg.arch.endswith(".json"):
            best = json.loads(Path(cfg.arch).read_text(encoding="utf-8-sig"))
            if not isinstance(best, dict) or not isinstance(best.get("arch"), str):
                raise ValueError('the file holds no object with an "arch"')
            arch = parse_arch(best["arch"])
        else:
            arch = named_arch(cfg.arch, cfg.layers) if cfg.arch in NAMED else parse_arch(cfg.arch)
        arch = ablate(arch, cfg.variant and f"-{cfg.variant}")
        if len(arch) == 12 and cfg.layers == 24:  # App. D.2: large repeats each pair right after itself
            arch = tuple(layer for pair in range(0, 12, 2) for layer in arch[pair:pair + 2] * 2)
    except ValueError as error:  # a file that is no JSON too
        raise UserError(f"--arch {cfg.arch}: {error}; names are {', '.join(NAMED)}") from None
    if len(arch) != cfg.layers:
        raise UserError(f"--arch {cfg.arch}: has {len(arch)} layers where --layers says {cfg.layers}; set --layers "
                        f"{len(arch)}")
    return arch


SHAPE = ("layers", "hidden", "heads", "ffn", "embedding")  # settings that rule the shapes of the weights


def read_settings(folder, *actions):
    """The settings in a run folder of one of these actions; UserError where it is none."""
    from common.cli import UserError
    path = Path(folder) / "config.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path}: cannot be read; name the run folder of a --{' or --'.join(actions)}") from None
    action = record.get("action") if isinstance(record, dict) else None
    if action not in actions:
        raise UserError(f"{folder}: no run folder of --{' or --'.join(actions)}"
                        + (f" but one of --{action}" if action else "") + "; name another")
    if not {*SHAPE, "arch", "ucb_unit"} <= record["settings"].keys():
        raise UserError(f"{folder}: a run of another program; name one of autobert_zero.py")
    return {**record["settings"], "action": action}


def take_settings(cfg, folder, settings, names):
    """Set cfg's settings of these names, and its tokenizer unless one is given, to those of a run folder. A flag that
    says otherwise is a UserError."""
    from common.cli import UserError
    for name in names:
        if name in cfg.given and getattr(cfg, name) != settings[name]:
            raise UserError(f"--{name} {getattr(cfg, name)}: {folder} has {settings[name]}; leave --{name} out")
        setattr(cfg, name, settings[name])
    own = str(Path(folder) / "corpus")  # made for this run, unless its --corpus was a prepared one
    there = own if Path(own).exists() else settings["tokenizer"] or [*settings["corpus"], own][0]
    cfg.tokenizer = cfg.tokenizer or there


def read_history(folder):
    """The evaluated candidates of a search, as history.jsonl has them; UserError where there is none."""
    from common.cli import UserError
    from common.distributed import read_jsonl
    history = read_jsonl(Path(folder) / "history.jsonl")
    if not history:
        raise UserError(f"{folder}: no candidate is evaluated yet")
    return history


def read_run(cfg):
    """What --init points at: a run folder of --pretrain or --search. Returns (weights, whether they are a super-net,
    else their architecture).

    Sets the model's shape, the tokenizer and, where --arch names none, the architecture in cfg to the folder's. A flag
    that says otherwise is a UserError.
    """
    from common.cli import UserError
    from common.distributed import load_newest
    folder, settings = Path(cfg.init), read_settings(cfg.init, "search", "pretrain")
    searched = settings["action"] == "search"
    take_settings(cfg, folder, settings, (*SHAPE, *(() if searched else ("arch", "variant"))))
    if searched and "arch" not in cfg.given:
        if not (folder / "best.json").exists():
            raise UserError(f"{folder}: this search is not finished; finish it, or name an architecture with --arch")
        cfg.arch = str(folder / "best.json")
    if not (folder / "done.json").exists():
        print(f"warning: {folder}: not finished; its newest checkpoint is taken", file=sys.stderr)
    state = load_newest(folder / "checkpoint.pt")["owned"]
    return state["supernet" if searched else "model"], searched, None if searched else read_arch(cfg)


def start_from(model, source):
    """Load what read_run returned into a LanguageModel or a Classifier; says what was taken over, made anew and left
    out. A shape that does not fit is a UserError unless it belongs to a head."""
    from common.cli import UserError
    weights, searched, _ = source
    arch, taken, anew = model.encoder.arch, [], []
    state = model.state_dict()
    for name, value in state.items():
        there, rows, columns = slot(name, value, arch) if searched else (name, None, None)
        if there not in weights:
            anew.append(name)
            continue
        given = take(weights[there], rows, columns)
        if name.endswith("conv.kernel") and searched and value.shape[1] < max(KERNELS):
            # the adapted kernel, Sec. 3.2
            given = given @ weights[f"{there.removesuffix('kernel')}transform.{value.shape[1]}"]
        if given.shape != value.shape:
            raise UserError(f"--init: {name} is {tuple(given.shape)} there and {tuple(value.shape)} here; use the same "
                            "sizes and the same tokenizer")
        value.copy_(given)
        taken.append(there)
    left = sorted(set(weights) - set(taken)) if not searched else []
    return (f"--init: {len(taken)} weights taken over; made anew: {', '.join(anew) or 'none'}; "
            f"left out: {', '.join(left) or 'none'}")


class HeldOutText:
    """The proxy task "MLM": the share of masked words of held-out text that a candidate finds, without any fine-tuning
    (D15)."""
    name = "MLM"

    def __init__(self, data, ranks):
        self.data, self.ranks = data, ranks

    def steps(self, cfg):
        return 0

    def accuracy(self, model, cfg):
        return evaluate_language_model(model, self.data, cfg, self.ranks, batches=32)["mlm_accuracy"]


class GlueTask:
    """One GLUE task. splits: those of common.glue.load to read. As SquadTask, it has what a fine-tuning problem needs:
    name, metrics, outputs, span, steps, batches, loss, evaluate and predict."""

    def __init__(self, task, tokenizer, cfg, splits=("train", "dev")):
        from common import glue
        self.task, self.name, self.metrics, self.outputs, self.span = task, task.name, task.metrics, task.classes, False
        examples = {split: glue.load(cfg.glue, task, split).head(cfg.train_rows if split == "train" or cfg.dry_run
                                                                 else 0) for split in splits}
        self.features = {split: glue.encode(examples[split], tokenizer, cfg.length) for split in splits}

    def steps(self, cfg):
        """Updates of one fine-tuning."""
        return cfg.finetune_epochs * math.ceil(len(self.features["train"]) / cfg.finetune_batch)

    def batches(self, cfg, epoch):
        from common import glue
        return glue.batches(self.features["train"], cfg.finetune_batch, seed=cfg.seed, epoch=epoch)

    def loss(self, logits, batch):
        """Cross-entropy of logits (B, classes), or squared error where the task is a regression."""
        return (F.mse_loss(logits[:, 0], batch["labels"]) if self.task.regression
                else F.cross_entropy(logits, batch["labels"]))

    def evaluate(self, model, cfg, device):
        """The official metrics on dev, as shares; "main" is the one that counts."""
        from common import glue
        return glue.score(self.task, self.logits(model, "dev", cfg, device), self.features["dev"].labels)

    def logits(self, model, split, cfg, device):
        """(n, classes) in the order of the file, as a numpy array."""
        from common import glue
        logits = torch.zeros(len(self.features[split]), self.outputs)
        for batch in glue.batches(self.features[split], 4 * cfg.finetune_batch):
            logits[batch["index"]] = infer_batch(model, batch, cfg, device)
        return logits.numpy()

    def predict(self, model, cfg, device, folder):
        """Write the submission files of the test splits, or raise Diverged. Returns MNLI's mismatched score, if any."""
        from common import glue
        for split in self.features:
            if split.startswith("test"):
                logits = self.logits(model, split, cfg, device)
                if not math.isfinite(logits.sum()):
                    raise Diverged(f"{split} of {self.name}: what it predicts is no number")
                glue.write_submission(folder, self.task, logits, split)
        if "dev_mismatched" not in self.features:
            return {}
        logits = self.logits(model, "dev_mismatched", cfg, device)
        return {"mismatched": glue.score(self.task, logits, self.features["dev_mismatched"].labels)["main"]}


class SquadTask:
    """SQuAD 1.1 ("squad1") or 2.0 ("squad2"): a span of the paragraph, [CLS] standing for "no answer"."""

    def __init__(self, name, tokenizer, cfg):
        from common import squad
        self.name, self.metrics, self.outputs, self.span = name, ("exact", "f1"), 2, True
        version = {"squad1": "v1.1", "squad2": "v2.0"}[name]
        self.questions = {split: squad.load(Path(cfg.squad) / f"{split}-{version}.json") for split in ("train", "dev")}
        for split in ("train", "dev") if cfg.dry_run else ("train",):
            self.questions[split] = self.questions[split][:cfg.train_rows or None]
        self.features = {split: squad.features(questions, tokenizer, cfg.squad_length, cfg.squad_length // 3,
                                               training=split == "train")
                         for split, questions in self.questions.items()}

    def steps(self, cfg):
        return cfg.finetune_epochs * math.ceil(len(self.features["train"]) / cfg.finetune_batch)

    def batches(self, cfg, epoch):
        from common import squad
        return squad.batches(self.features["train"], cfg.finetune_batch, seed=cfg.seed, epoch=epoch)

    def loss(self, logits, batch):
        """Mean cross-entropy of start and end; logits (B, T, 2)."""
        logits = logits.masked_fill(batch["p_mask"][..., None], -1e4)
        return (F.cross_entropy(logits[..., 0], batch["start"]) + F.cross_entropy(logits[..., 1], batch["end"])) / 2

    def answers(self, model, cfg, device):
        """common.squad.Predictions on dev."""
        from common import squad
        features = self.features["dev"]
        logits = torch.full((len(features), cfg.squad_length, 2), -1e4)
        for batch in squad.batches(features, 4 * cfg.finetune_batch):
            logits[batch["index"], :batch["ids"].shape[1]] = infer_batch(model, batch, cfg, device)
        return squad.extract(features, logits[..., 0], logits[..., 1])

    def evaluate(self, model, cfg, device):
        """The official scores; "main" is F1 as a share, for 2.0 at the best no-answer threshold."""
        from common import squad
        found = self.answers(model, cfg, device)
        result = squad.evaluate(self.questions["dev"], found.texts, found.null_odds if self.name == "squad2" else None)
        return {**result, "main": result.get("best_f1", result["f1"]) / 100}

    def predict(self, model, cfg, device, folder):
        """Write predictions.json (2.0: answers above the threshold withdrawn) and null_odds.json."""
        from common import squad
        from common.distributed import write_atomic
        found = self.answers(model, cfg, device)
        result = squad.evaluate(self.questions["dev"], found.texts, found.null_odds)
        limit = result.get("best_f1_thresh", math.inf)
        texts = {name: "" if found.null_odds.get(name, 0) > limit else text for name, text in found.texts.items()}
        write_atomic(Path(folder) / "predictions.json", json.dumps(texts, indent=1))
        write_atomic(Path(folder) / "null_odds.json", json.dumps(found.null_odds, indent=1))
        return {}


@torch.no_grad()
def infer_batch(model, batch, cfg, device):
    """A model's outputs for a batch of features, on the CPU in float32."""
    from common.distributed import autocast
    model.eval()
    with autocast(cfg.dtype, device):
        return model(*(batch[key].to(device) for key in ("ids", "segments", "lengths"))).float().cpu()


def train_task(model, task, cfg, device, tick=lambda done: None, keep_best=False, checkpoint=None):
    """Fine-tune on one task (App. D.1, D.2); returns its metrics on dev.

    keep_best: look at dev every --eval_every steps and end with the best weights seen (D20); otherwise the last weights
    count. Raises Diverged, and Stop after SIGTERM (state saved where there is a checkpoint).
    """
    from common.distributed import Stop, autocast, seed_everything, stop_requested
    model.to(device)
    optimizer, step, steps, kept = make_optimizer(model, cfg.weight_decay), 0, task.steps(cfg), {}
    if checkpoint:
        checkpoint.owned.update(model=model, optimizer=optimizer)
        kept = checkpoint.restore()
    start, best = kept.get("step", 0), kept.get("best")
    for epoch in range(cfg.finetune_epochs):
        for batch in task.batches(cfg, epoch):
            if step < start:  # done before a kill
                step += 1
                continue
            set_rate(optimizer, cfg.finetune_lr * schedule(step, steps, cfg.finetune_warmup))
            seed_everything(cfg.seed, "fine-tuning", task.name, step)
            batch = {key: value.to(device) for key, value in batch.items()}
            model.train()
            with autocast(cfg.dtype, device):
                logits = model(batch["ids"], batch["segments"], batch["lengths"])
            task.loss(logits.float(), batch).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            tick(1)
            if (step % CHECK_EVERY == 0 or step == steps) and not math.isfinite(norm):
                raise Diverged(f"gradient norm {norm} at or before step {step} of {task.name}")
            if keep_best and (step % cfg.eval_every == 0 or step == steps):
                result = task.evaluate(model, cfg, device)
                if best is None or result["main"] > best[0]["main"]:
                    best = result, {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            stop = stop_requested()
            if checkpoint and (stop or step % cfg.save_every == 0):
                checkpoint.save(step=step, best=best)
            if stop:
                raise Stop
    if keep_best:
        model.load_state_dict(best[1])
        return best[0]
    return task.evaluate(model, cfg, device)


FROM_MNLI = ("RTE", "STS-B", "MRPC")  # App. D.2: fine-tuned from an MNLI checkpoint


def open_task(name, tokenizer, cfg):
    """The fine-tuning problem of a name in --finetune, with every split that is there. UserError where it is unknown.
    """
    from common import glue
    if name in ("squad1", "squad2"):
        return SquadTask(name, tokenizer, cfg)
    task, folder = glue.parse_tasks(name)[0], Path(cfg.glue) / glue.parse_tasks(name)[0].name
    two = ("_matched", "_mismatched") if task.name == "MNLI" else ("",)
    splits = ["train", "dev"] + ["dev_mismatched"] * (len(two) == 2)
    splits += [split for split, ending in zip(("test", "test_mismatched"), two)
               if (folder / f"test{ending}.tsv").exists()]
    return GlueTask(task, tokenizer, cfg, splits)


def task_names(text):
    """["CoLA", "squad1", ...] of "CoLA,squad1" or "glue", the paper's eight tasks (no WNLI); MNLI first, since others
    start from it."""
    from common import glue
    from common.cli import UserError
    parts = text.lower().replace(",", " ").split()
    parts = [name for part in parts for name in (Config.tasks.split(",") if part == "glue" else [part])]
    squads = list(dict.fromkeys(part for part in parts if part in ("squad1", "squad2")))
    rest = ",".join(part for part in parts if part not in ("squad1", "squad2"))
    names = [task.name for task in glue.parse_tasks(rest)] if rest else []
    if not names + squads:
        raise UserError("--finetune: name at least one task, glue, squad1 or squad2")
    return sorted(names, key=lambda name: name != "MNLI") + squads


LEARNING_RATES, WEIGHT_DECAYS = (1e-5, 1.5e-5, 2e-5, 3e-5, 4e-5, 5e-5), (0.1, 0.01)  # App. D.2


def finetune_jobs(names, cfg):
    """[(task, run, settings of its own)]: --runs seeds, and with --grid each learning rate and weight decay of App.
    D.2."""
    jobs = []
    for name in names:
        paper = {"squad1": dict(finetune_batch=32), "squad2": dict(finetune_batch=48, finetune_epochs=2)}.get(name, {})
        own = {key: value for key, value in paper.items() if cfg.preset != "demo" and key not in cfg.given}
        points = ([dict(finetune_lr=lr, weight_decay=decay) for lr in LEARNING_RATES for decay in WEIGHT_DECAYS]
                  if cfg.grid else [{}])
        jobs += [(name, number, {**own, **point, "seed": cfg.seed + number})
                 for point in points for number in range(cfg.runs)]
    return jobs


def finetune(cfg, text):
    """Fine-tune on GLUE and SQuAD (App. D.2). The jobs are shared out over the processes; a job that is done is not
    done again."""
    from common.distributed import Stop, launch, on_main, progress, stopping
    with launch(cfg.device) as ranks:
        names, source = task_names(text), read_run(cfg) if cfg.init else None
        arch = settle_arch(cfg)
        squads, cfg.tasks = [name for name in names if name.startswith("squad")], text
        flags = [flag for flag, read in (("corpus", not cfg.tokenizer), ("glue", len(squads) < len(names)),
                                         ("squad", squads)) if read]
        run, data = open_run(cfg, "finetune", ranks, flags)
        if run.finished:
            return show_scores(run.finished, ranks)
        jobs, folder = finetune_jobs(names, cfg), run.folder / "jobs"
        on_main(ranks, lambda: folder.mkdir(exist_ok=True))
        opened = functools.cache(lambda name: open_task(name, data.tokenizer, cfg))
        bar = progress(ranks, len(jobs), "fine-tuning")
        for stage in ([job for job in jobs if job[0] == "MNLI"], [job for job in jobs if job[0] != "MNLI"]):
            with contextlib.suppress(Stop):  # a rank that is told to stop meets the others below
                for name, number, own in stage[ranks.rank::ranks.size]:
                    job = dataclasses.replace(cfg, **own)
                    path = folder / f"{name}-{number}-{job.finetune_lr}-{job.weight_decay}.json"
                    if not path.exists():
                        bar.set_description(f"fine-tuning {name}, run {number + 1}")
                        finetune_one(opened(name), number, job, arch, source, data.device, path)
                    bar.update(ranks.size)
            if stopping(ranks):
                raise Stop
        bar.close()
        result = on_main(ranks, summarise, run.folder, names, cfg.preset == "small")
        run.finish(result)
        show_scores(result, ranks)


def finetune_one(task, number, cfg, arch, source, device, path):
    """One job: a task, a seed, one setting. Writes its predictions, for MNLI its weights, and its result file last;
    continues where it was killed."""
    from common.distributed import Checkpoint, Ranks, load_file, save_file, seed_everything, write_atomic
    began, mnli, note, diverged = time.perf_counter(), best_job(path.parent, "MNLI"), "from scratch", None
    checkpoint = Checkpoint(path.with_name(f"{path.stem}.training.pt"), Ranks(0, 1, device))
    seed_everything(cfg.seed, "head", task.name)
    model = SpanReader(arch, cfg) if task.span else Classifier(arch, cfg, task.outputs)
    if task.name in FROM_MNLI and mnli:
        weights = load_file(path.parent / f"{mnli['job']}.pt")
        note = f"from {mnli['job']}; " + start_from(
            model, ({name: value for name, value in weights.items() if not name.startswith("head")}, False, arch))
    elif source:
        note = start_from(model, source)
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    try:
        metrics = train_task(model, task, cfg, device, keep_best=True, checkpoint=checkpoint)
        metrics.update(task.predict(model, cfg, device, folder))
    except Diverged as error:
        metrics, diverged = dict.fromkeys((*task.metrics, "main"), 0.0), str(error)
    if task.name == "MNLI":
        save_file(path.with_name(f"{folder.name}.pt"),
                  {name: value.cpu() for name, value in model.state_dict().items()})
    write_atomic(path, json.dumps({"job": folder.name, "task": task.name, "run": number, "lr": cfg.finetune_lr,
                                   "weight_decay": cfg.weight_decay, "metrics": metrics, "start": note,
                                   "diverged": diverged, "seconds": round(time.perf_counter() - began, 2)}, indent=1))
    checkpoint.remove()


def read_jobs(folder, name):
    """The results of a task's jobs that are done."""
    jobs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob(f"{name}-*.json"))]
    return [job for job in jobs if job["task"] == name]


def best_job(folder, name):
    """The job of a task with the best dev score, None where there is none that has not diverged."""
    jobs = [job for job in read_jobs(folder, name) if not job.get("diverged")]
    return max(jobs, key=lambda job: job["metrics"]["main"], default=None)


def summarise(folder, names, small):
    """{tasks: {task: median, mean, sd, n, setting, metrics of the median run}, averages}; the setting with the best
    median stands for a task. The predictions of each median run are copied to folder/submission."""
    from common import glue
    tasks = {}
    for name in names:
        settings = defaultdict(list)
        for job in read_jobs(folder / "jobs", name):
            settings[job["lr"], job["weight_decay"]].append(job)
        runs = max(settings.values(), key=lambda jobs: statistics.median(job["metrics"]["main"] for job in jobs))
        runs.sort(key=lambda job: job["metrics"]["main"])
        scores, middle = [job["metrics"]["main"] for job in runs], runs[len(runs) // 2]
        tasks[name] = {"median": statistics.median(scores), "mean": statistics.mean(scores),
                       "sd": statistics.stdev(scores) if len(scores) > 1 else 0.0,
                       "n": len(scores), "lr": middle["lr"], "weight_decay": middle["weight_decay"],
                       "metrics": middle["metrics"], "start": middle["start"],
                       "diverged": sum(bool(job.get("diverged")) for job in runs)}
        shutil.copytree(folder / "jobs" / middle["job"], folder / "submission", dirs_exist_ok=True)
    scores = {name: entry["metrics"] for name, entry in tasks.items() if not name.startswith("squad")}
    for name in {"MRPC", "QQP"} & scores.keys() if small else ():  # Sec. 4.2, footnote 2
        scores[name] = {**scores[name], "main": scores[name]["accuracy"]}
    if "mismatched" in scores.get("MNLI", {}):
        scores["MNLI-mm"] = {"main": scores["MNLI"]["mismatched"]}
    return {"tasks": tasks, "averages": glue.averages(scores) if scores else {}}


def show_scores(result, ranks):
    """Print a line a task and the two averages, named apart."""
    from common.distributed import say
    for name, entry in result["tasks"].items():
        others = ", ".join(f"{key} {value:.4g}" for key, value in entry["metrics"].items()
                           if isinstance(value, float) and key != "main")
        say(ranks, f"{name:8s} median {entry['median']:.4f}  mean {entry['mean']:.4f}  sd {entry['sd']:.4f}  "
                   f"n {entry['n']}  ({others})" + (f"  {entry['diverged']} diverged" if entry.get("diverged") else ""))
    for name, value in result["averages"].items():
        say(ranks, f"{name}: {value}")


# Counting and analyses.


def count_flops(arch, cfg, T):
    """FLOPs of one forward of T tokens, 2 a multiply-add, matrix products and convolutions only: {"layers",
    "vocabulary_head"}."""
    H, E, total = cfg.hidden, cfg.embedding or cfg.hidden, 0
    sizes = {"n": T, "d": H // cfg.heads}
    for layer in arch:
        total += 2 * T * H * cfg.ffn + T * H * H  # feed-forward, W_O or its like
        if isinstance(layer, int):
            total += 2 * T * H * H + layer * T * H  # d -> 2d, the kernel
            continue
        total += len(used_inputs(layer)) * T * H * H
        shapes = infer_graph(layer)
        for index, (op, *operands) in enumerate(layer, len(INPUTS)):
            if op in ("matmul", "cosine", "euclidean"):
                total += cfg.heads * sizes[shapes[index][0]] * sizes[shapes[index][1]] * sizes[shapes[operands[0]][1]]
    if E != H:
        total += T * E * H
    return {"layers": 2 * total, "vocabulary_head": 2 * T * (H * E + E * cfg.vocab_size)}


def count_parameters(arch, cfg):
    """Unique parameters by part, from the model built without memory, and the paper's "#Params of Att" (Tables 3, 5):
    the projections that make a layer's inputs, with biases, without W_O."""
    with torch.device("meta"):
        model = LanguageModel(arch, cfg)
    parts = {"embeddings": 0, "layers": 0, "pooler": 0, "heads": 0}
    for name, value in model.named_parameters():
        part = ("layers" if ".layers." in name else "embeddings" if name.startswith("encoder")
                else "pooler" if name.startswith("pooler") else "heads")
        parts[part] += value.numel()
    inputs = sum(2 if isinstance(layer, int) else len(used_inputs(layer)) for layer in arch)
    return parts, inputs * (cfg.hidden ** 2 + cfg.hidden)


PUBLISHED_COUNTS = {  # (name, layers, hidden): parameters, those of the attention, FLOPs of 128 tokens; Tables 2 to 5
    ("bert", 12, 768): ("110M", "21.3M", 2.9e10),
    ("autobert-zero", 12, 768): ("104M", "15.4M", 2.3e10),
    ("autobert-zero-att", 12, 768): (None, "16.5M", None),
    ("autobert-zero-conv", 12, 768): (None, "15.4M", None),
    ("bert", 24, 1024): ("340M", None, 8.7e10),
    ("autobert-zero", 24, 1024): ("318M", None, 6.8e10),
    ("autobert-zero", 12, 256): ("13M", None, 2.9e9),
}


def describe(cfg):
    """Print one JSON object: parameters, FLOPs, the published figures beside them, and with --measure latency and
    memory (Table 7)."""
    if cfg.init:
        cfg.vocab_size = len(read_run(cfg)[0]["encoder.words.weight"])
    arch = read_arch(cfg)
    parts, attention = count_parameters(arch, cfg)
    flops = count_flops(arch, cfg, 128)
    published = PUBLISHED_COUNTS.get((cfg.arch + (cfg.variant and f"-{cfg.variant}"), cfg.layers, cfg.hidden))
    report = {"arch": arch_text(arch), "parameters": sum(parts.values()), "parts": parts,
              "attention_parameters": attention, "flops": flops["layers"],
              "flops_with_vocabulary_head": sum(flops.values()),
              "flops_counting": "one forward of 128 tokens, 2 per multiply-add, matrix products and convolutions; "
                                "embeddings are look-ups"}
    if published:
        report["published"] = dict(zip(("parameters", "attention_parameters", "flops"), published))
    if cfg.measure:
        report["measured"] = measure(arch, cfg)
    print(json.dumps(report, indent=2))


@torch.no_grad()
def measure(arch, cfg, rounds=5):
    """Seconds and, on GPUs, peak memory of a forward of --measure_batch sequences, beside BERT of the same shape, in
    turns (Table 7, App. D.3)."""
    from common.distributed import autocast, pick_device
    device, seconds = pick_device(cfg.device), {"this": [], "bert": []}
    models = {"this": Encoder(arch, cfg).to(device).eval(),
              "bert": Encoder(named_arch("bert", cfg.layers), cfg).to(device).eval()}
    ids = torch.randint(cfg.vocab_size, (cfg.measure_batch, cfg.length), device=device)
    kinds, lengths, memory = torch.zeros_like(ids), torch.full((cfg.measure_batch,), cfg.length, device=device), {}
    for number in range(rounds + 1):  # the first round warms up
        for name, model in models.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            began = time.perf_counter()
            with autocast(cfg.dtype, device):
                model(ids, kinds, lengths)[0, 0, 0].item()  # waits for the device
            seconds[name] += [time.perf_counter() - began] * (number > 0)
            if device.type == "cuda":
                other = models["bert" if name == "this" else "this"]  # its weights are on the device too
                own = torch.cuda.max_memory_allocated(device) - sum(value.nbytes for value in other.parameters())
                memory[name] = own / 1e6
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    return {"batch": cfg.measure_batch, "length": cfg.length, "seconds": middle["this"], "bert_seconds": middle["bert"],
            "bert_over_this": middle["bert"] / middle["this"], "peak_memory_mb": memory.get("this"),
            "bert_peak_memory_mb": memory.get("bert")}


def analyze(cfg, name):
    """One of ANALYSES; each writes a table, its numbers and a picture into --out."""
    from common.cli import UserError
    from common.distributed import launch
    if name not in ANALYSES:
        raise UserError(f"--analyze {name}: there is no such analysis; choose from {', '.join(ANALYSES)}")
    folders = cfg.folders or ((cfg.init,) if cfg.init else ())
    if not folders:
        raise UserError("which runs? name them with --folders DIR...")
    if name in ("fidelity", "operations") and len(folders) > 1:
        raise UserError(f"--analyze {name} looks at one search; name one folder")
    with launch(cfg.device) as ranks:
        if ranks.size > 1:
            raise UserError("--analyze runs in one process; start it with python")
        ANALYSES[name](cfg, [Path(folder) for folder in folders], ranks)


def uniformity(states, lengths):
    """Figure 5's two measures, a value a layer, averaged over the sequences; padding is left out.

    states: [(B, T, H)] of every layer; lengths (B,). Residual: ||X - 1 x^T|| / ||X||, Frobenius norms, x the mean token
    (0: all tokens alike). Cosine: mean over pairs of different tokens.
    """
    mask = (torch.arange(states[0].shape[1], device=lengths.device) < lengths[:, None])[..., None]  # (B, T, 1)
    count, residuals, cosines = lengths[:, None].float(), [], []
    for X in states:
        X = X.float() * mask
        centred = (X - X.sum(1, keepdim=True) / count[..., None]) * mask
        residuals.append((centred.flatten(1).norm(dim=1) / X.flatten(1).norm(dim=1)).mean().item())
        total = F.normalize(X, dim=-1).sum(1).square().sum(-1)  # the sum over all pairs, each token with itself too
        cosines.append(((total - count[:, 0]) / (count[:, 0] * (count[:, 0] - 1))).mean().item())
    return residuals, cosines


@torch.no_grad()
def analyze_uniformity(cfg, folders, ranks):
    """Figure 5: how alike the tokens' representations become, layer by layer, on --samples examples of the first of
    --tasks (STS-B)."""
    from common import glue
    from common.cli import UserError
    from common.inputs import fill_in
    from common.report import write_report
    fill_in(cfg, ranks, "glue")
    task = glue.parse_tasks(cfg.tasks if "tasks" in cfg.given else "STS-B")[0]
    examples = glue.load(cfg.glue, task, "train").head(cfg.samples or 1280)
    columns, curves = ["layer"], []
    for folder in folders:
        residuals, cosines = measure_uniformity(cfg, folder, task, examples, ranks.device)
        columns += [f"residual {folder.name}", f"cosine {folder.name}"]
        curves += [residuals, cosines]
    if len({len(curve) for curve in curves}) > 1:
        raise UserError("--folders: the runs have different numbers of layers; compare equal ones")
    rows = [[layer, *values] for layer, values in enumerate(zip(*curves))]

    def draw(axes):
        for name, curve in zip(columns[1:], curves):
            axes.plot(range(len(curve)), curve, marker="o", linestyle="-" if name.startswith("residual") else "--",
                      label=name)
        axes.set(xlabel="layer (0: embeddings)", ylabel="relative residual, mean cosine",
                 title=f"Token uniformity on {task.name}")
        axes.legend(frameon=False, fontsize=8)

    write_report(cfg.out, "uniformity", columns, rows, {"samples": len(examples), "task": task.name}, draw)


def measure_uniformity(cfg, folder, task, examples, device):
    """The two curves of one run, averaged over the examples."""
    from common import glue
    from common.tokenization import load_tokenizer
    own = dataclasses.replace(cfg, init=str(folder), tokenizer="")
    source, tokenizer = read_run(own), load_tokenizer(own.tokenizer)
    own.vocab_size = tokenizer.vocab_size
    model = Classifier(read_arch(own), own, task.classes)
    start_from(model, source)
    encoder, features = model.encoder.to(device).eval(), glue.encode(examples, tokenizer, cfg.length)
    totals = torch.zeros(2, own.layers + 1)
    for batch in glue.batches(features, 64):
        ids, kinds, lengths = (batch[key].to(device) for key in ("ids", "segments", "lengths"))
        totals += len(ids) * torch.tensor(uniformity(encoder(ids, kinds, lengths, every_layer=True), lengths))
    return (totals / len(features)).tolist()


def analyze_fidelity(cfg, folders, ranks):
    """Figure 8: --samples architectures of a search's history, evenly spaced by score, are trained alone, on the text
    and the tasks of the search; Kendall's tau, by task, between the score in the search and the score alone. Continues
    where it stopped, inside a network's pre-training too."""
    from common import metrics
    from common.distributed import progress
    from common.report import write_report
    folder, settings = folders[0], read_settings(folders[0], "search")
    take_settings(cfg, folder, settings, (*SHAPE, "tasks", "length", "init_std", "dropout"))  # as the candidates were
    cfg.corpus, cfg.glue = cfg.corpus or tuple(settings["corpus"]), cfg.glue or settings["glue"]
    cfg.init = str(folder)
    history = sorted((line for line in read_history(folder) if not line["diverged"]), key=lambda line: line["score"])
    run, data = open_run(cfg, "analyze", ranks, tasks=True)
    count = min(cfg.samples or 6, len(history))
    bar, rows, names = progress(ranks, count, "stand-alone training"), [], [task.name for task in data.tasks]
    for index in range(count):
        line = history[index * (len(history) - 1) // max(count - 1, 1)]
        scores = train_alone(parse_arch(line["arch"]), data, cfg, ranks, run.folder / f"alone-{line['id']}.json")
        both = [value for name in names for value in (line["scores"][name], scores[name])]
        rows.append([line["id"], line["score"], sum(scores.values()) / len(scores), *both])
        bar.update(1)
    bar.close()
    columns = ["id"] + [f"{name} {where}" for name in ["mean", *names] for where in ("in search", "alone")]
    taus = {name: metrics.kendall([row[1 + 2 * place] for row in rows], [row[2 + 2 * place] for row in rows])
            for place, name in enumerate(["mean", *names])}

    def draw(axes):
        axes.scatter([row[1] for row in rows], [row[2] for row in rows])
        axes.set(xlabel="score in the search", ylabel="score trained alone", title=f"Kendall's tau {taus['mean']:.2f}")

    write_report(cfg.out, "fidelity", columns, rows, {"kendall": taus}, draw)
    print("Kendall's tau:", ", ".join(f"{name} {value:.3f}" for name, value in taus.items()))


def train_alone(arch, data, cfg, ranks, path):
    """{task: score} of an architecture trained from scratch, kept in a file; 0 for each where it diverged (D12)."""
    from common.distributed import Checkpoint, seed_everything, write_atomic
    if not path.exists():
        seed_everything(cfg.seed, "model")
        model = LanguageModel(arch, cfg).to(ranks.device)
        checkpoint = Checkpoint(path.with_suffix(".pt"), ranks, model=model)
        try:
            train_language_model(model, data, cfg, ranks, checkpoint)
            scores = score_tasks(model, arch, data.tasks, cfg, ranks.device, shared=False)
        except Diverged:
            scores = {task.name: 0.0 for task in data.tasks}
        write_atomic(path, json.dumps(scores))
        checkpoint.remove()
    return json.loads(path.read_text(encoding="utf-8"))


def analyze_search(cfg, folders, ranks):
    """Figure 6: the best score so far by number of evaluated candidates, mean and spread over the seeds of each
    strategy among --folders."""
    from common.cli import UserError
    from common.report import write_report
    curves, tasks = defaultdict(list), set()
    for folder in folders:
        settings = read_settings(folder, "search")
        name = settings["strategy"] + (", no weight sharing" if settings["no_weight_sharing"] else "")
        if settings["strategy"] == "op-nas":
            name += f" (alpha {settings['alpha']}, unit {settings['ucb_unit']})"
        tasks.add(settings["tasks"])
        if len(tasks) > 1:
            raise UserError(f"{folder}: a search on other tasks, {settings['tasks']}; compare searches of equal tasks")
        scores = [line["score"] for line in read_history(folder)]
        curves[name].append([max(scores[:index + 1]) for index in range(len(scores))])
    shortest = min(len(curve) for group in curves.values() for curve in group)
    marks = sorted({shortest, *[mark for mark in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 100, 200, 400, 800)
                                if mark < shortest]})
    rows, summary = [], {}
    for name, group in curves.items():
        means = [statistics.mean(curve[index] for curve in group) for index in range(shortest)]
        spreads = [statistics.stdev(curve[index] for curve in group) if len(group) > 1 else 0.0
                   for index in range(shortest)]
        summary[name] = {"mean": means, "sd": spreads, "runs": len(group)}
        rows.append([name, len(group), *[f"{means[mark - 1]:.4f} ± {spreads[mark - 1]:.4f}" for mark in marks]])

    def draw(axes):
        for name, group in summary.items():
            line, = axes.plot(range(1, shortest + 1), group["mean"], label=f"{name} (n {group['runs']})")
            low, high = ([mean + sign * sd for mean, sd in zip(group["mean"], group["sd"])] for sign in (-1, 1))
            axes.fill_between(range(1, shortest + 1), low, high, alpha=0.15, color=line.get_color())
        axes.set(xlabel="evaluated candidates", ylabel="best score so far",
                 title="Search (mean and standard deviation)")
        axes.legend(frameon=False)

    write_report(cfg.out, "search", ["strategy", "runs", *[f"after {mark}" for mark in marks]], rows,
                 {"curves": summary}, draw)


def analyze_operations(cfg, folders, ranks):
    """What the UCB of a search has learned: the probability of each operation by position, and of each kernel size by
    layer."""
    from common.report import write_report
    settings = read_settings(folders[0], "search")
    own = dataclasses.replace(cfg, layers=settings["layers"], alpha=settings["alpha"], ucb_unit=settings["ucb_unit"],
                              strategy="op-nas")
    priority = OperationPriority(read_history(folders[0]), own)
    positions = [priority.operation_probabilities(position) for position in range(len(priority.cells))]
    kernels = [priority.kernel_probabilities(layer) for layer in range(own.layers)]

    def draw(axes):
        image = axes.imshow(positions, aspect="auto", cmap="viridis")
        axes.set_xticks(range(len(OPS)), OPS, rotation=45, ha="right")
        axes.set(ylabel="position of the path", title="Probability of each operation")
        axes.figure.colorbar(image)

    write_report(cfg.out, "operations", ["position", *OPS], [[index, *row] for index, row in enumerate(positions)],
                 {}, draw)
    write_report(cfg.out, "kernels", ["layer", *KERNELS], [[index + 1, *row] for index, row in enumerate(kernels)])


ANALYSES = {"uniformity": analyze_uniformity, "fidelity": analyze_fidelity, "search": analyze_search,
            "operations": analyze_operations}

# --- command line --------------------------------------------------------------------------------


ACTIONS = {
    "search": ("search for an architecture (Algorithm 1)", None),
    "pretrain": ("train --arch in full (App. D.2), from scratch or from --init", None),
    "finetune": ("fine-tune on these tasks (GLUE names, glue, squad1, squad2), from --init", "TASKS"),
    "analyze": ("uniformity | fidelity | search | operations", "NAME"),
    "describe": ("parameters, FLOPs and, with --measure, speed of --arch as JSON", None),
}


def shrink(cfg):
    """--dry_run: two real steps of every phase, in a folder of their own that is made anew each time."""
    cfg.steps, cfg.epochs, cfg.finetune_epochs, cfg.train_rows, cfg.runs, cfg.grid = (
        2, 0, 1, 2 * cfg.finetune_batch, 1, False)
    cfg.population, cfg.rounds, cfg.parents, cfg.children, cfg.samples = 2, 1, 1, 2, 2
    cfg.log_every = cfg.eval_every = 1
    cfg.out, cfg.restart, cfg.given = cfg.out.rstrip("/") + "-dry", True, cfg.given | {"finetune_epochs"}


AT_LEAST = {"max_path": 2, "length": 8, "squad_length": 32, "finetune_epochs": 1, "finetune_batch": 1, "seed": 0}
AT_MOST = {"length": 512, "squad_length": 512, "warmup": 1, "finetune_warmup": 1, "seed": 2 ** 63 - 1}


def check(cfg):
    """Refuse settings that cannot work, in one line; what common.cli.LIMITS refuses does not come so far."""
    from common.cli import UserError
    for name, value in vars(cfg).items():
        if name in AT_LEAST and value < AT_LEAST[name]:
            raise UserError(f"--{name} {value}: must be at least {AT_LEAST[name]}")
        if name in AT_MOST and value > AT_MOST[name]:
            raise UserError(f"--{name} {value}: must be at most {AT_MOST[name]}")
    for name, choices in (("strategy", ("op-nas", "evolution", "random")), ("variant", ("", "att", "conv"))):
        if getattr(cfg, name) not in choices:
            raise UserError(f"--{name} {getattr(cfg, name)}: choose {' or '.join(filter(None, choices))}")
    if cfg.hidden % cfg.heads:
        raise UserError(f"--hidden {cfg.hidden}: must be a multiple of --heads {cfg.heads}")
    if cfg.batch % cfg.accumulate:
        raise UserError(f"--batch {cfg.batch}: must be a multiple of --accumulate {cfg.accumulate}")
    if {"steps", "epochs"} <= cfg.given:
        raise UserError("--steps and --epochs: give one of them")
    if cfg.init and Path(cfg.init).resolve() == Path(cfg.out).resolve():
        raise UserError(f"--out {cfg.out}: is --init too; choose another")


def main(argv=None):
    """Run one action of the command line."""
    from common.cli import UserError, parse
    from common.distributed import Stop
    action, value, cfg = parse(Config, PRESETS, ACTIONS, __doc__, argv)
    if action is None:
        return 0
    cfg.out = cfg.out or f"runs/autobert_zero-{action}-{f'{value}-' if action == 'analyze' else ''}{cfg.preset}"
    check(cfg)
    if cfg.dry_run:
        shrink(cfg)
    actions = {"search": search, "pretrain": pretrain, "finetune": finetune, "analyze": analyze, "describe": describe}
    try:
        actions[action](cfg, *([] if value is True else [value]))
    except Stop:
        print("stopped; the same command continues", file=sys.stderr)
    except torch.OutOfMemoryError:
        raise UserError(f"{cfg.out}: out of device memory; the same command with --recompute continues") from None
    return 0


if __name__ == "__main__":
    from common.cli import run
    run(main)
