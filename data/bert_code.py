"""A BERT of one architecture as a module in plain torch, for autotinybert.py --export FILE.py.

The module is templates/bert.py, with its marks filled in. It contains the source of
autotinybert.py's PlainBert, and a tokenizer for the vocabulary."""
import ast
import importlib.util
import sys

from common.files import save_file, write_atomic
from data import hf_models
from data.network_code import SPAN, fill_marks, sources

CALLS = {  # by kind: a call of predict(), and what it returns
    "classes": ('print({module}.predict(model, "A text."))  # or two texts',
                "{label: probability} of a text or two."),
    "value": ('print({module}.predict(model, "A text."))  # or two texts',
              "The value of a text or two."),
    "spans": ('scores = {module}.predict(model, "A question?", "A passage.")',
              "The scores (1, T, 2) of start and end of an answer, for a question and a passage."),
    "states": ('states, pooled = {module}.predict(model, "A text.")',
               "The states (1, T, H) and the pooled state (1, H) of a text or two."),
}
SPIECE = '''import sentencepiece

PIECES = sentencepiece.SentencePieceProcessor(model_file=str(VOCABULARY))


{functions}


def tokenize(text):
    """The ids of a text."""
    return split_commas(PIECES, clean(text)) if LOWER else PIECES.encode(text)
'''


def tokenization(tokenizer):
    """The source of a function `tokenize` for a vocabulary."""
    if tokenizer.file_name == "vocab.txt":
        rules = tokenizer.rules
        text = hf_models.template("wordpiece.py").partition("\n")[2]
        return fill_marks(text, {"strip_accents": rules.strip_accents, "chinese": rules.chinese})
    text = hf_models.template("network.py")
    functions = [ast.get_source_segment(text, node) for node in ast.parse(text).body
                 if getattr(node, "name", "") in ("clean", "split_commas")]
    return SPIECE.format(functions="\n\n\n".join(functions))


def kind_of(labels):
    """A key of CALLS."""
    if not labels:
        return "states"
    if labels == SPAN:
        return "spans"
    return "classes" if len(labels) > 1 else "value"


def write_module(path, model, arch, tokenizer, labels, length, quantized):
    """Write the module, its weights and the vocabulary next to it.

    model: a PlainBert. arch: its Arch. labels: names of the outputs of its head, () without one.
    length: tokens of the longest input in training. quantized: whether load() quantises."""
    home = sys.modules[type(model).__module__]
    weights = path.with_suffix(".pt")
    call, returns = CALLS[kind_of(labels)]
    code = fill_marks(hf_models.template("bert.py"), {
        "arch": arch,
        "use": "\n    ".join([f"import {path.stem}", f"model = {path.stem}.load()",
                              call.format(module=path.stem)]),
        "weights": weights.name,
        "vocabulary": tokenizer.file_name,
        "hidden": arch.hidden,
        "shapes": f"{arch.layers} * {arch.shapes[:1]}" if len({*arch.shapes}) == 1 else arch.shapes,
        "vocab_size": len(model.token_embedding.weight),
        "positions": len(model.position_embedding.weight),
        "length": length,
        "labels": tuple(labels),
        "spans": model.spans,
        "quantize": quantized,
        "unk": tokenizer.unk_id,
        "cls": tokenizer.cls_id,
        "sep": tokenizer.sep_id,
        "lower": tokenizer.lower,
        "tokenization": tokenization(tokenizer),
        "sources": "\n" + "\n".join(sources(home, "PlainBert", "quantize")),
        "returns": returns,
    })
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, code)
    tokenizer.save(path.parent)
    save_file(weights, model.state_dict())


def open_module(path):
    """The module in a file of write_module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
