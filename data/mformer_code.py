"""A network of mformer.py as a Python module in plain torch, with its weights next to it.

The module is templates/mformer_images.py or templates/mformer_translator.py, with its marks filled
in. It contains the source of mformer.py's classes and functions.
"""
import sys

from common.cli import UserError
from common.files import save_file, write_atomic
from data import hf_models
from data.network_code import fill_marks, sources

SETTINGS = {  # that a model reads, by task
    "cifar10": ("head_dim", "qkv", "relative", "dropout", "image", "patch", "classes"),
    "wmt14": ("head_dim", "qkv", "relative", "dropout", "length", "vocab_size"),
}


def keywords(values):
    """The lines of {name: value} as arguments of a call."""
    return "\n".join(f"    {name}={value!r}," for name, value in values.items())


def write_code(model, cfg, data, weights):
    """The source of an ImageModel or a Translator. data: its Pictures or Translations. weights: the
    name of their file."""
    home = sys.modules[type(model).__module__]
    values = {
        "weights": weights,
        "config": keywords({name: getattr(cfg, name) for name in SETTINGS[cfg.task]}),
        "arch": keywords({name: value for name, value in model.arch._asdict().items() if value}),
        # the value includes the empty lines above the sources and their last line end
        "sources": "\n" + "\n".join(sources(home, type(model).__name__)),
    }
    if cfg.task == "cifar10":
        template = "mformer_images.py"
        values |= data.spec  # classes, mean, deviation
    else:
        template = "mformer_translator.py"
        values |= {
            "languages": " to ".join(cfg.languages),
            "vocabulary": data.tokenizer.file_name,
            "pad": data.tokenizer.pad_id,
            "bos": data.tokenizer.bos_id,
            "eos": data.tokenizer.eos_id,
        }
    return fill_marks(hf_models.template(template), values)


def check_export(path, data):
    """UserError for an --export that is no FILE.py, that would overwrite a file, or whose
    vocabulary needs code of this repository."""
    if path.suffix != ".py":
        raise UserError(f"--export {path}: give the name of a file that ends in .py")
    tokenizer = getattr(data, "tokenizer", None)
    targets = [path, path.with_suffix(".pt")]
    if tokenizer:
        targets.append(path.with_name(tokenizer.file_name))
    exists = [each for each in targets if each.exists()]
    if exists:
        raise UserError(f"--export {path}: {exists[0]} exists already; choose another folder")
    if tokenizer and tokenizer.lower:
        raise UserError(f"--export {path}: {tokenizer.path} is a vocabulary of lower case, which "
                        "the file cannot read; train with one of both cases (--tokenizer)")


def write_network(path, model, cfg, data):
    """Write the module and the weights of a model to path, with .pt and, for translation, the
    vocabulary next to it."""
    weights = path.with_suffix(".pt")
    code = write_code(model, cfg, data, weights.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, code)
    save_file(weights, model.state_dict())
    if cfg.task == "wmt14":
        data.tokenizer.save(path.parent)
