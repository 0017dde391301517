"""A network that autobert_zero.py found, written as a Python module in plain torch and as a drawing.

A layer is the kernel size of a convolution, or an Attention.
"""
import re
from typing import NamedTuple

from common.files import save_file, write_atomic

INPUTS = ("Q", "K", "V", "P")
SHORT = ("neg", "transpose", "scale", "logsigmoid", "softsign")
SPAN = ("start", "end")  # labels of a head for answers to questions
AXES = {"nd": "(B, N, T, D)", "dn": "(B, N, D, T)", "nn": "(B, N, T, T)", "dd": "(B, N, D, D)"}


class Attention(NamedTuple):
    operations: tuple  # ("name", operand, ...); operands 0 to 3 are Q, K, V, P, operand 4 + i is operation i
    shapes: tuple  # of all operands: "nd" for tokens x head dim, "dn", "nn", "dd"
    reads: list  # the inputs that are used
    formula: str  # what stands in the docstring


HEAD = '''"""A language model's backbone that was found by a search (AutoBERT-Zero, arXiv:2107.07445), in plain PyTorch.

    network = load("{weights}").eval()                  # the weights that stand beside this file
    {call}
    states = network.encoder(ids, segments, lengths)   # (B, T, H), to fine-tune on

ids, segments (0 or 1): (B, T) int64, rows filled up with anything; lengths: (B,) real tokens of each row.
The vocabulary is {vocabulary} beside this file, {case}; a row is CLS, text, SEP or CLS, first, SEP, second, SEP.
B batch, T tokens, H hidden, N heads, D head dim, V vocabulary, E embedding.

{layers}
"""
{imports}import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, HIDDEN, HEADS, FEED_FORWARD, EMBEDDING, DROPOUT = {sizes}
PAD, UNK, CLS, SEP, MASK = {specials}  # ids


def split(x, parts):
    """(B, T, parts H) -> parts tensors (B, N, T, D)."""
    B, T, _ = x.shape
    return x.view(B, T, parts, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4).unbind(0)


def join(x):
    """(B, N, T, D) -> (B, T, H)."""
    return x.transpose(1, 2).flatten(2)
'''

CLEAN = '''
def clean(text):
    """A text as the vocabulary was trained on it."""
    text = " ".join(text.split()).replace("``", '"').replace("\'\'", '"')
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()
'''

ENCODE = '''
def encode(pieces, first, second=""):
    """ids, segments (1, T) and lengths (1,) of a text or two; pieces: a sentencepiece.SentencePieceProcessor."""
    first, second = (pieces.encode({text}) for text in (first, second))
    ids = [CLS, *first, SEP, *second, *[SEP] * bool(second)]
    segments = [0] * (len(first) + 2) + [1] * (len(ids) - len(first) - 2)
    return torch.tensor([ids]), torch.tensor([segments]), torch.tensor([len(ids)])
'''

HELPERS = {
    "softmax_over_tokens": '''
def softmax_over_tokens(x, mask):
    """Softmax of (B, N, *, T) over its last axis; padding gets nothing. mask: (B, T), True at real tokens."""
    return F.softmax(x.masked_fill(~mask[:, None, None, :], float("-inf")), dim=-1)
''',
    "hide_rows": '''
def hide_rows(x, mask):
    """(B, N, T, *) with zeros where a row is padding, so that a sum over tokens does not see it."""
    return torch.where(mask[:, None, :, None], x, 0.0)
''',
    "hide_columns": '''
def hide_columns(x, mask):
    """(B, N, *, T) with zeros where a column is padding."""
    return torch.where(mask[:, None, None, :], x, 0.0)
''',
    "cosine": '''
def cosine(x, y):
    """Cosine similarity of every row of x with every row of y."""
    return F.normalize(x, dim=-1, eps=1e-6) @ F.normalize(y, dim=-1, eps=1e-6).transpose(-1, -2)
''',
    "euclidean": '''
def euclidean(x, y):
    """Distance of every row of x from every row of y."""
    squares = x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * x @ y.transpose(-1, -2)
    return squares.clamp_min(1e-6).sqrt()
'''}

CONVOLUTION = '''
class Convolution(nn.Module):
    """Gated lightweight convolution: the channels of a head share one kernel, which softmax normalises."""

    def __init__(self, size):
        super().__init__()
        self.inputs = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.kernel = nn.Parameter(torch.randn(HEADS, size))
        self.output = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, mask):
        x = F.glu(self.inputs(x), dim=-1)  # (B, T, 2H) -> (B, T, H)
        x = torch.where(mask[..., None], x, 0.0)  # padding is zeros
        weights = F.softmax(self.kernel, dim=-1).repeat_interleave(HIDDEN // HEADS, dim=0)[:, None]  # (H, 1, size)
        x = F.conv1d(x.transpose(1, 2), weights, padding=self.kernel.shape[1] // 2, groups=HIDDEN)  # (B, H, T)
        return self.output(x.transpose(1, 2))
'''

TAIL = '''

class Layer(nn.Module):
    """Mixer of tokens, residual, LayerNorm, feed-forward, residual, LayerNorm."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer
        self.mixer_norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.expand = nn.Linear(HIDDEN, FEED_FORWARD)
        self.shrink = nn.Linear(FEED_FORWARD, HIDDEN)
        self.ffn_norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, mask):
        x = self.mixer_norm(x + self.dropout(self.mixer(x, mask)))
        return self.ffn_norm(x + self.dropout(self.shrink(F.gelu(self.expand(x)))))


class Encoder(nn.Module):
    """Embeddings and layers: ids, segments (B, T), lengths (B,) -> (B, T, H)."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, EMBEDDING)
        self.positions = nn.Embedding(512, EMBEDDING)
        self.segments = nn.Embedding(2, EMBEDDING)
        self.norm = nn.LayerNorm(EMBEDDING, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)
        self.project = nn.Linear(EMBEDDING, HIDDEN) if EMBEDDING != HIDDEN else nn.Identity()
        self.layers = nn.ModuleList(Layer(mixer) for mixer in (
{mixers}
        ))

    def forward(self, ids, segments, lengths):
        positions = torch.arange(ids.shape[1], device=ids.device)
        mask = positions[None] < lengths[:, None]  # (B, T), True at real tokens
        x = self.words(ids) + self.positions(positions) + self.segments(segments)  # (B, T, E)
        x = self.project(self.dropout(self.norm(x)))  # (B, T, H)
        for layer in self.layers:
            x = layer(x, mask)
        return x
'''

NETWORKS = {  # by what it was trained for: (how it is called, its class)
    "words": ("words, pairs = network(ids, segments, lengths)     # logits (B, T, V), (B, 2) of the next sentence", '''

class Network(nn.Module):
    """Encoder with the heads for masked words and next sentences."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.pooler = nn.Linear(HIDDEN, HIDDEN)
        self.next_sentence = nn.Linear(HIDDEN, 2)
        self.transform = nn.Linear(HIDDEN, EMBEDDING)
        self.norm = nn.LayerNorm(EMBEDDING, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))  # the output matrix is the word embedding

    def forward(self, ids, segments, lengths):
        x = self.encoder(ids, segments, lengths)  # (B, T, H)
        words = self.norm(F.gelu(self.transform(x)))  # (B, T, E)
        words = F.linear(words, self.encoder.words.weight, self.bias)  # (B, T, V)
        return words, self.next_sentence(torch.tanh(self.pooler(x[:, 0])))
'''),
    "classes": ("logits = network(ids, segments, lengths)           # (B, labels), in the order of LABELS", '''

class Network(nn.Module):
    """Encoder with the head that was tuned on a task."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.pooler = nn.Linear(HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(HIDDEN, len(LABELS))

    def forward(self, ids, segments, lengths):
        x = self.encoder(ids, segments, lengths)  # (B, T, H)
        return self.head(self.dropout(torch.tanh(self.pooler(x[:, 0]))))
'''),
    "spans": ("logits = network(ids, segments, lengths)           # (B, T, 2), of where an answer starts and ends", '''

class Network(nn.Module):
    """Encoder with the head that was tuned on questions: where an answer starts and ends."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(HIDDEN, len(LABELS))

    def forward(self, ids, segments, lengths):
        return self.head(self.encoder(ids, segments, lengths))  # (B, T, 2)
''')}

LOAD = '''

def load(path):
    """The network with the weights of a file."""
    network = Network()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network
'''


def expression(op, operands, result, weighs, used):
    """The Python expression of one operation. operands: [(text, shape)]; weighs: the first of them is a softmax over
    tokens, which is 0 at padding; `used` collects the helpers that it calls."""
    (x, shape), (y, _) = operands[0], operands[-1]
    if op == "softmax" and result[1] == "n":
        used.add("softmax_over_tokens")
        return f"softmax_over_tokens({x}, mask)"
    if op in ("softmax", "logsigmoid", "softsign"):
        return f"F.{op}({x}{', dim=-1' if op == 'softmax' else ''})"
    if op in ("cosine", "euclidean"):
        used.add(op)
        if shape[1] == "n":
            used.add("hide_columns")
            x, y = f"hide_columns({x}, mask)", f"hide_columns({y}, mask)"
        return f"{op}({x}, {y})"
    if op == "matmul" and shape[1] == "n" and not weighs:
        used.add("hide_rows")
        y = f"hide_rows({y}, mask)"
    alone = re.compile(r"-?[\w.]+(\([^()]*\))?|.*\.transpose\(-1, -2\)").fullmatch  # needs no parentheses
    x, y = (text if alone(text) else f"({text})" for text in (x, y))
    x = f"({x})" if x[0] == "-" and op == "transpose" else x
    return {"neg": f"-{x}", "transpose": f"{x}.transpose(-1, -2)", "add": f"{x} + {y}", "matmul": f"{x} @ {y}",
            "scale": f"{x} / (HIDDEN // HEADS) ** 0.5"}[op]


def attention_class(name, attention, used):
    """The source of one attention. What is read once and takes one operand stands where it is read; the rest has a
    line and a name: scores, weights, or a letter."""
    reads, letters = [INPUTS[index] for index in attention.reads], iter("abcdefghijklmnopqrstuvwyz")
    count = [operand for _, *rest in attention.operations for operand in rest].count
    texts, lines = list(INPUTS), [f"{', '.join(reads)} = split(self.inputs(x), {len(reads)})  # {AXES['nd']} each"]
    for index, (op, *operands) in enumerate(attention.operations, len(INPUTS)):
        shape, readers = attention.shapes[index], [node[0] for node in attention.operations if index in node[1:]]
        over = attention.operations[operands[0] - len(INPUTS)][0] == "softmax" if operands[0] >= len(INPUTS) else False
        text = expression(op, [(texts[operand], attention.shapes[operand]) for operand in operands], shape,
                          over and attention.shapes[operands[0]][1] == "n", used)
        texts.append(text)
        last = index == len(attention.shapes) - 1
        if not last and count(index) == 1 and op in SHORT and len(text) < 60 and readers != ["softmax"]:
            continue
        wanted = "weights" if op == "softmax" and shape == "nn" else "scores" if readers == ["softmax"] else ""
        texts[-1] = "mixed" if last else wanted if wanted and wanted not in texts else next(letters)
        lines.append(f"{texts[-1]} = {text}  # {AXES[shape]}")
        if op == "softmax" and shape == "nn":
            lines.append(f"{texts[-1]} = F.dropout({texts[-1]}, DROPOUT, self.training)")
    docstring, body = attention.formula.replace("; ", "\n    "), "\n        ".join(lines)
    return f'''
class {name}(nn.Module):
    """{docstring}"""

    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(HIDDEN, {len(reads)} * HIDDEN)  # of {', '.join(reads)}, one above the other
        self.output = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, mask):
        {body}
        return self.output(join(mixed))
'''


def write_code(layers, weights, cfg, tokenizer, labels):
    """The source of a network. layers: kernel sizes and Attentions; weights: the name of its file of weights; cfg:
    vocab_size, hidden, heads, ffn, embedding (0: hidden) and dropout; labels: what the outputs of a task's head are
    called, None of a model of words."""
    used, classes, mixers, table = set(), {}, [], []
    for number, layer in enumerate(layers, 1):
        mixer, what = f"Convolution({layer})", f"convolution of {layer} tokens"
        if not isinstance(layer, int):
            mixer, what = classes.setdefault(layer, f"Attention{number}") + "()", layer.formula
        mixers.append(f"            {mixer},")
        table.append(f"{number:4}  {what}")
    bodies = [attention_class(name, attention, used) for attention, name in classes.items()]
    if any(isinstance(layer, int) for layer in layers):
        bodies.insert(0, CONVOLUTION)
    helpers = [text for name, text in HELPERS.items() if name in used]
    sizes = cfg.vocab_size, cfg.hidden, cfg.heads, cfg.ffn, cfg.embedding or cfg.hidden, cfg.dropout
    call, network = NETWORKS["words" if labels is None else "spans" if labels == SPAN else "classes"]
    specials = ", ".join(str(getattr(tokenizer, f"{role}_id")) for role in ("pad", "unk", "cls", "sep", "mask"))
    ours, lower = tokenizer.file_name == "spiece.model", tokenizer.lower
    head = HEAD.format(weights=weights, layers="\n".join(table), sizes=", ".join(map(str, sizes)), specials=specials,
                       call=call, vocabulary=tokenizer.file_name, case="of lower case" if lower else "which keeps case",
                       imports="import unicodedata\n\n" if ours and lower else "")
    head += f"LABELS = {labels}\n" if labels else ""
    if ours:
        helpers[:0] = [CLEAN, ENCODE.format(text="clean(text)")] if lower else [ENCODE.format(text="text")]
    return "\n".join([head, *helpers, *bodies]) + TAIL.format(mixers="\n".join(mixers)) + network + LOAD


def write_network(path, layers, weights, cfg, tokenizer, labels=None):
    """Write the module, the drawing and the weights of a LanguageModel (with labels: a TaskModel): path, and .mmd, .pt
    and the vocabulary beside it."""
    write_atomic(path, write_code(layers, path.with_suffix(".pt").name, cfg, tokenizer, labels))
    tokenizer.save(path.parent)
    write_atomic(path.with_suffix(".mmd"), mermaid(layers))
    save_file(path.with_suffix(".pt"), {name.replace(".attention.", ".mixer.").replace(".conv.", ".mixer."): value
                                        for name, value in weights.items()})


def mermaid(layers):
    """The architecture as a Mermaid flowchart, one subgraph a layer."""
    lines = ["flowchart BT"]
    for number, layer in enumerate(layers, 1):
        if isinstance(layer, int):
            lines.append(f'  L{number}["{number}: convolution, kernel {layer}"]')
            continue
        lines += [f"  subgraph L{number}[{number}: attention]", "    direction BT"]
        lines += [f"    L{number}_{index}(({INPUTS[index]}))" for index in layer.reads]
        for index, (op, *operands) in enumerate(layer.operations, len(INPUTS)):
            lines.append(f"    L{number}_{index}[{op}]")
            lines += [f"    L{number}_{operand} --> L{number}_{index}" for operand in operands]
        lines.append("  end")
    return "\n".join(lines + [f"  L{number} --> L{number + 1}" for number in range(1, len(layers))]) + "\n"
