"""A network that autobert_zero.py found, as a Python module in plain torch and as a drawing.

The module has the source of autobert_zero.py's own classes and functions. Only the attentions are
generated: a class for each of them, with a line for each of its products, sums and softmaxes.
"""
import ast
import sys
from pathlib import Path

from common.files import save_file, write_atomic
from data import hf_models

SPAN = ("start", "end")  # labels of a head for answers to questions
AXES = {"nd": "(B, N, T, D)", "dn": "(B, N, D, T)", "nn": "(B, N, T, T)", "dd": "(B, N, D, D)"}
PYTHON = {  # an operation of Table 1 as an expression of its operands
    "neg": "-({0})",
    "transpose": "({0}).transpose(-1, -2)",
    "scale": "({0}) / self.scale",
    "softmax": "F.softmax({0}, dim=-1)",
    "logsigmoid": "F.logsigmoid({0})",
    "softsign": "F.softsign({0})",
    "add": "({0}) + ({1})",
    "matmul": "({0}) @ ({1})",
    "cosine": "cosine({0}, {1})",
    "euclidean": "euclidean({0}, {1})",
}
CALLS = {  # by what the network was trained for
    "words": "tokens, pairs = network({**batch, 'masked_positions': positions})\n"
             "    # logits (M, V) at positions (M,) of ids.flatten(); (B, 2) of the next sentence",
    "classes": "logits = network(batch)  # (B, labels), as in LABELS",
    "spans": "logits = network(batch)  # (B, T, 2), start and end of an answer",
}

HEAD = '''"""A language model found by a search (AutoBERT-Zero, arXiv:2107.07445), in plain PyTorch.

    network = load("{weights}").eval()
    {call}
    states = network.encoder(**batch)  # (B, T, H), for a head of your own

A batch has ids, token_type_ids (0 or 1): (B, T) int64, padded with anything; lengths: (B,) real
tokens.
A sequence is CLS, text, SEP or CLS, first, SEP, second, SEP, and has at most LENGTH tokens.
The vocabulary is {tokenizer.file_name} next to this file, {case}.
The classes are those of autobert_zero.py. Comments D1, D2, ... are departures from the paper.
B batch, T tokens, H hidden, N heads, D head dim, V vocabulary, E embedding, K kernel.

{layers}
"""
import math
import unicodedata
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

CONFIG = SimpleNamespace(
    vocab_size={cfg.vocab_size},
    hidden={cfg.hidden},
    heads={cfg.heads},
    ffn={cfg.ffn},
    embedding={cfg.embedding},
    dropout={cfg.dropout},
    init_std={cfg.init_std},
    recompute={cfg.recompute},
)
LENGTH = {length}  # tokens of the longest sequence that the network was trained on
PAD = {tokenizer.pad_id}
UNK = {tokenizer.unk_id}
CLS = {tokenizer.cls_id}
SEP = {tokenizer.sep_id}
MASK = {tokenizer.mask_id}
LABELS = {labels}  # of a task's head
'''

CLEAN = '''
def clean(text):
    """A text as the vocabulary was trained on it."""
    text = " ".join(text.split()).replace("``", '"').replace("\'\'", '"')
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c)).lower()
'''

COMMAS = '''
def split_commas(pieces, text):
    """The ids of a text. ALBERT's rule: "▁2011," is split again, without its comma."""
    ids = []
    for i in pieces.encode(text):
        name = pieces.id_to_piece(i)
        if not (name[-1] == "," and name[-2:-1].isdecimal()):
            ids.append(i)
            continue
        parts = pieces.encode(name[:-1].replace("▁", ""), out_type=str)
        if name[0] != "▁":  # inside a word: without the ▁ that encode adds
            parts[0] = parts[0].removeprefix("▁")
        ids += [pieces.piece_to_id(part) for part in [*parts, ","] if part]
    return ids
'''

ENCODE = '''
def encode(pieces, first, second=""):
    """A batch of one: a text or two, cut to LENGTH tokens. pieces: a
    sentencepiece.SentencePieceProcessor."""
    first = {encode}{clean}(first))
    second = {encode}{clean}(second))
    room = LENGTH - 3 if second else LENGTH - 2
    keep = {keep}
    ids = [CLS, *first[:keep], SEP]
    token_type_ids = [0] * len(ids)
    if second:
        ids += [*second[:room - keep], SEP]
        token_type_ids += [1] * (len(ids) - len(token_type_ids))
    lengths = torch.tensor([len(ids)])
    token_type_ids = torch.tensor([token_type_ids])
    return {{"ids": torch.tensor([ids]), "token_type_ids": token_type_ids, "lengths": lengths}}
'''
KEEP = "min(len(first), max(room - len(second), (room + 1) // 2))  # the longer text is cut"
KEEP_QUESTION = "min(len(first), 64)  # of the question; a longer passage loses its end"

ATTENTION = '''
class Attention(nn.Module):
    """Projections of x, a found formula in each head, W_O (Eq. 1)."""
    reads = ""  # inputs of the formula, of Q, K, V, P

    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads = heads
        self.scale = math.sqrt(hidden // heads)
        self.dropout = nn.Dropout(dropout)
        self.inputs = nn.Linear(hidden, len(self.reads) * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x, mask):
        B, T, H = x.shape
        stacked = self.inputs(x).view(B, T, len(self.reads), self.heads, H // self.heads)
        mixed = self.mix(mask, *stacked.permute(2, 0, 3, 1, 4))  # of (B, N, T, D) each
        return self.output(mixed.transpose(1, 2).reshape(B, T, H))  # (B, N, T, D) -> (B, T, H)
'''

LOAD = '''
ARCH = [{arch}]


def make_network():
    """The network with random weights."""
    return {network}


def load(path):
    """The network with the weights of a file."""
    network = make_network()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network
'''

TRANSFORMERS = '''"""A network for transformers:

    model = AutoModel.from_pretrained(FOLDER, trust_remote_code=True)
"""
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .network import make_network


class NetworkConfig(PretrainedConfig):
    model_type = "autobert_zero"


class NetworkModel(PreTrainedModel):
    config_class = NetworkConfig

    def __init__(self, config):
        super().__init__(config)
        self.network = make_network()
        self.post_init()

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **others):
        """Ids (B, T) -> last_hidden_state (B, T, H). attention_mask: 1 at real tokens, which come
        first. self.network has the heads that the network was trained with."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        lengths = None
        if attention_mask is not None:
            lengths = attention_mask.sum(-1)
            if (attention_mask.diff(dim=-1) > 0).any():
                raise ValueError("attention_mask: zeros stand before ones, and this network has "
                                 "its padding on the right; set tokenizer.padding_side='right'")
        states = self.network.encoder(input_ids, token_type_ids, lengths)
        return BaseModelOutput(last_hidden_state=states)
'''


def replaced(text, old, new):
    """The text with `new` in the one place where `old` stands."""
    before, after = text.split(old)  # a ValueError anywhere else
    return before + new + after


def sources(home, *names):
    """[source] of some classes and functions of the module `home` and of what they use, in its
    order. Layers get a generated class of attentions."""
    # by name: line numbers change when the file is edited while a search runs
    text = Path(home.__file__).read_text(encoding="utf-8")
    text = replaced(text, "AttentionMixer(layer, ", "layer(")
    nodes = {node.name: node for node in ast.parse(text).body
             if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    todo = list(names)
    result = {}  # name: (line, source); constants come first
    while todo:
        name = todo.pop()
        value = getattr(home, name, None)
        if name in result:
            continue
        if isinstance(value, (int, float, tuple)):
            result[name] = 0, f"{name} = {value}"
        elif name in nodes:
            source = ast.get_source_segment(text, nodes[name])
            result[name] = nodes[name].lineno, f"\n{source}\n"
            todo += [part.id for part in ast.walk(nodes[name]) if isinstance(part, ast.Name)]
    return [source for _, source in sorted(result.values())]


def expression(op, operands, axes):
    """One operation in Python. operands: their expressions; axes: their shapes ("nd", ...)."""
    filled = ()  # operands in which padding is filled, as in hide_padding()
    if axes[0][1] == "n" and op in ("softmax", "cosine", "euclidean"):
        filled = range(len(operands))
        rest = "-1, -math.inf, mask" if op == "softmax" else "-1, 0.0, mask"
    elif op == "matmul" and axes[1][0] == "n":
        filled = 1,
        rest = "-2, 0.0, mask"
    for number in filled:
        operands[number] = f"fill_padding({operands[number]}, {rest})"
    text = PYTHON[op].format(*operands)
    if op == "softmax" and axes[0] == "nn":
        text = f"self.dropout({text})"
    return ast.unparse(ast.parse(text))  # without needless parentheses


def attention_class(home, title, attention):
    """The source of an attention. An operation on one operand is written where it is read, if it is
    read once."""
    inputs = home.used_inputs(attention)
    path = home.path_of(attention)
    reads = home.count_reads(attention)
    texts = dict(zip(inputs, inputs))
    lines = []
    for operation, shape in path.items():
        op, *operands = operation
        parts = [texts[operand] for operand in operands]
        text = expression(op, parts, [path.get(operand, "nd") for operand in operands])
        unary = len(operands) == 1 and op != "softmax"
        inline = unary and reads[operation] == 1 and len(text) < 60
        if operation == attention:
            lines.append(f"return {text}")
        elif not inline:
            name = f"{op}{len(lines) + 1}"
            lines.append(f"{name} = {text}  # {AXES[shape]}")
            text = name
        texts[operation] = text
    formula = home.formula(attention).replace("; ", "\n    ")
    body = "\n        ".join(lines)
    return f'''
class {title}(Attention):
    """{formula}"""
    reads = "{"".join(inputs)}"

    def mix(self, mask, {", ".join(inputs)}):
        {body}
'''


def write_code(home, arch, weights, cfg, tokenizer, labels, length):
    """The source of a network. weights: the name of its file; labels: of the outputs of a task's
    head, None of a language model; length: tokens of its longest sequence."""
    titles = {}  # of each attention its class
    for number, layer in enumerate(arch, 1):
        if not isinstance(layer, int):
            titles.setdefault(layer, f"Attention{number}")
    mixers = [attention_class(home, title, layer) for layer, title in titles.items()]
    model = "TaskModel" if labels else "LanguageModel"
    spans = labels == SPAN
    helpers = ("fill_padding", "cosine", "euclidean")
    helpers = [name for name in helpers if f"{name}(" in "".join(mixers)]
    kind = "words" if labels is None else "spans" if spans else "classes"
    layers = [f"{number:4}  {home.arch_text([layer])}" for number, layer in enumerate(arch, 1)]
    case = "of lower case" if tokenizer.lower else "which keeps case"
    parts = [HEAD.format(weights=weights, call=CALLS[kind], tokenizer=tokenizer, case=case, cfg=cfg,
                         layers="\n".join(layers), length=length, labels=labels)]
    if tokenizer.file_name == "spiece.model":
        clean = "clean" if tokenizer.lower else ""
        encode = "pieces.encode("
        parts += [CLEAN] if clean else []
        if tokenizer.without_comma:
            encode = "split_commas(pieces, "
            parts.append(COMMAS)
        parts.append(ENCODE.format(
            encode=encode, clean=clean, keep=KEEP_QUESTION if spans else KEEP))
    parts += [*sources(home, *helpers, model), ATTENTION, *mixers]
    heads = f", len(LABELS), spans={spans}" if labels else ""
    classes = ", ".join(str(titles.get(layer, layer)) for layer in arch)
    parts.append(LOAD.format(arch=classes, network=f"{model}(ARCH, CONFIG{heads})"))
    return "\n".join(parts)


def write_network(path, model, cfg, tokenizer, labels, length):
    """Write the module, the drawing and the weights of a LanguageModel (with labels: a TaskModel):
    path, and .mmd, .pt and the vocabulary next to it."""
    home = sys.modules[type(model).__module__]
    weights = path.with_suffix(".pt")
    code = write_code(home, model.encoder.arch, weights.name, cfg, tokenizer, labels, length)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, code)
    write_atomic(path.with_suffix(".mmd"), mermaid(home, model.encoder.arch))
    tokenizer.save(path.parent)
    save_file(weights, model.state_dict())


def write_hugging_face(folder, model, cfg, tokenizer, labels, length):
    """write_network as FOLDER/network.py, with what AutoModel of transformers needs."""
    classes = {"AutoConfig": "modeling.NetworkConfig", "AutoModel": "modeling.NetworkModel"}
    config = {
        "model_type": "autobert_zero",
        "architectures": ["NetworkModel"],
        "auto_map": classes,
        "hidden_size": cfg.hidden,
        "vocab_size": cfg.vocab_size,
        "max_position_embeddings": 512,
    }
    if labels and labels != SPAN:
        config["id2label"] = dict(enumerate(labels))
    weights = {f"network.{name}": value for name, value in model.state_dict().items()}
    hf_models.write_folder(folder, weights, config, tokenizer)
    write_network(folder / "network.py", model, cfg, tokenizer, labels, length)
    write_atomic(folder / "modeling.py", TRANSFORMERS)


def mermaid(home, arch):
    """The architecture as a Mermaid flowchart, one subgraph a layer."""
    lines = ["flowchart BT"]
    for number, layer in enumerate(arch, 1):
        if isinstance(layer, int):
            lines.append(f'  L{number}["{number}: convolution, kernel {layer}"]')
            continue
        lines.append(f"  subgraph L{number}[{number}: attention]")
        lines.append("    direction BT")
        inputs = home.used_inputs(layer)
        nodes = dict(zip(inputs, inputs))
        lines += [f"    L{number}_{name}(({name}))" for name in inputs]
        for operation in home.path_of(layer):
            op, *operands = operation
            nodes[operation] = len(nodes)
            lines.append(f"    L{number}_{nodes[operation]}[{op}]")
            lines += [f"    L{number}_{nodes[operand]} --> L{number}_{nodes[operation]}"
                      for operand in operands]
        lines.append("  end")
    lines += [f"  L{number} --> L{number + 1}" for number in range(1, len(arch))]
    return "\n".join(lines) + "\n"
