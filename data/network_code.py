"""A network that autobert_zero.py found, as a Python module in plain torch and as a drawing.

The module is templates/network.py, with its marks filled in. It contains the source of
autobert_zero.py's classes and functions. Only the attentions are generated: a class per attention,
with a line for each product, sum and softmax.
"""
import ast
import re
import sys
from pathlib import Path

from common.cli import UserError
from common.files import save_file, write_atomic
from data import hf_models

MARK = re.compile(r"FILL_(\w+)")
SPAN = ("start", "end")  # labels of a head for answers to questions
AXES = {"nd": "(B, N, T, D)", "dn": "(B, N, D, T)", "nn": "(B, N, T, T)", "dd": "(B, N, D, D)"}
PYTHON = {  # an operation of Table 1 as a format of its operands
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
CALLS = {  # by training target
    "words": "tokens, pairs = network({**batch, 'masked_positions': positions})\n"
             "    # logits (M, V) at positions (M,) of ids.flatten(); (B, 2) of the next sentence",
    "classes": "logits = network(batch)  # (B, labels), as in LABELS",
    "spans": "logits = network(batch)  # (B, T, 2), start and end of an answer",
}
SETTINGS = "vocab_size", "hidden", "heads", "ffn", "embedding", "dropout", "init_std", "recompute"


def fill_marks(text, values):
    """The text of a template with its marks FILL_NAME replaced by values."""
    marks = MARK.findall(text)
    if sorted(marks) != sorted(values):
        raise ValueError(f"the template has the marks {marks}, and the values are {[*values]}")
    return MARK.sub(lambda match: str(values[match[1]]), text)


def sources(home, *names):
    """[source] of some classes and functions of the module `home` and their dependencies, in its
    order. Layers get a generated class of attentions."""
    # by name, since line numbers change if the file is edited during a search
    text = Path(home.__file__).read_text(encoding="utf-8")
    text = text.replace("AttentionMixer(layer, ", "layer(")  # of autobert_zero.py
    nodes = {node.name: node for node in ast.parse(text).body
             if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    todo = list(names)
    result = {}  # name: (line, source). Constants come first
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
    """One operation in Python. operands: their expressions. axes: their shapes ("nd", ...)."""
    filled = ()  # operands with filled padding, as in hide_padding()
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
    """The source of an attention. A unary operation that is read once is written inline."""
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
    """The source of a network. weights: the name of its file. labels: names of the outputs of a
    task's head, None for a language model. length: tokens of its longest sequence."""
    titles = {}  # the class of each attention
    for number, layer in enumerate(arch, 1):
        if not isinstance(layer, int):
            titles.setdefault(layer, f"Attention{number}")
    mixers = [attention_class(home, title, layer) for layer, title in titles.items()]
    model = "TaskModel" if labels else "LanguageModel"
    spans = labels == SPAN
    helpers = ("fill_padding", "cosine", "euclidean")
    helpers = [name for name in helpers if f"{name}(" in "".join(mixers)]
    kind = "words" if labels is None else "spans" if spans else "classes"
    heads = f", outputs, spans={spans}" if labels else ""
    before, encoding, after = hf_models.template("network.py").split("FILL_encoding\n")
    if tokenizer.file_name != "spiece.model":
        encoding = ""
    values = {name: getattr(cfg, name) for name in SETTINGS}
    for name in ("pad", "unk", "cls", "sep", "mask"):
        values[name] = getattr(tokenizer, f"{name}_id")
    # sources and attentions: the values include the empty lines above them and their last line end
    return fill_marks(before + encoding + after, values | {
        "weights": weights,
        "call": CALLS[kind],
        "vocabulary": tokenizer.file_name,
        "lower": tokenizer.lower,
        "layers": "\n".join(
            f"{number:4}  {home.arch_text([layer])}" for number, layer in enumerate(arch, 1)),
        "length": length,
        "labels": labels,
        "sources": "\n" + "\n".join(sources(home, *helpers, model)),
        "attentions": "".join(f"\n{mixer}" for mixer in mixers),
        "arch": ", ".join(str(titles.get(layer, layer)) for layer in arch),
        "outputs": len(labels or ()),
        "network": f"{model}(ARCH, config{heads})",
    })


def write_network(path, model, cfg, tokenizer, labels, length):
    """Write the module, the drawing and the weights of a LanguageModel (with labels: a TaskModel)
    to path, with .mmd, .pt and the vocabulary next to it."""
    home = sys.modules[type(model).__module__]
    weights = path.with_suffix(".pt")
    code = write_code(home, model.encoder.arch, weights.name, cfg, tokenizer, labels, length)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, code)
    write_atomic(path.with_suffix(".mmd"), mermaid(home, model.encoder.arch))
    tokenizer.save(path.parent)
    save_file(weights, model.state_dict())


def refuse_to_overwrite(path, tokenizer):
    """Raise UserError if a file of write_network exists, unless it is this vocabulary."""
    exists = [each for each in map(path.with_suffix, (".py", ".pt", ".mmd")) if each.exists()]
    vocabulary = path.with_name(tokenizer.file_name)
    if vocabulary.exists() and vocabulary.read_bytes() != tokenizer.path.read_bytes():
        exists.append(vocabulary)
    if exists:
        raise UserError(f"--export {path}: {exists[0]} exists already; choose another folder")


def write_hugging_face(folder, model, cfg, tokenizer, labels, length):
    """write_network as FOLDER/network.py, with files for AutoModel of transformers. Returns the
    call that opens it."""
    kind = "" if labels in (None, SPAN) else "ForSequenceClassification"
    own = f"Network{kind or 'Model'}"
    classes = {"AutoConfig": "modeling.NetworkConfig", "AutoModel": "modeling.NetworkModel",
               f"AutoModel{kind}": f"modeling.{own}"}
    config = {
        "model_type": "autobert_zero",
        "architectures": [own],
        "auto_map": classes,
        "hidden_size": cfg.hidden,
        "vocab_size": cfg.vocab_size,
        "max_position_embeddings": 512,
        "initializer_range": cfg.init_std,
    }
    if kind:
        config |= hf_models.head_settings(labels)
    weights = {f"network.{name}": value for name, value in model.state_dict().items()}
    hf_models.write_folder(folder, weights, config, tokenizer, length)
    write_network(folder / "network.py", model, cfg, tokenizer, labels, length)
    write_atomic(folder / "modeling.py", hf_models.template("modeling.py"))
    return hf_models.opener(
        tokenizer, f"AutoModel{kind}", folder, ", trust_remote_code=True")


def mermaid(home, arch):
    """The architecture as a Mermaid flowchart, one subgraph per layer."""
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
