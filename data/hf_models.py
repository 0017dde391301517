"""Read and write Hugging Face folders without the safetensors package: ALBERT for albert.py, BERT
and ELECTRA for autotinybert.py.

A .safetensors file is an 8-byte little-endian length, a JSON header of that length ({name: dtype,
shape, data_offsets}) and the raw tensors. pytorch_model.bin is read with weights_only=True. So no
file can run code.

ALBERT: a layer group of transformers is one attention and one feed-forward block. albert.py has a
list of each, since Table 4 shares one and not the other.

BERT and ELECTRA: transformers has three matrices (outputs, inputs) for query, key and value.
autotinybert.py has one tensor (3, heads, width, inputs), and (hidden, heads, width) for the output
projection (hidden, heads x width).

The vocabulary is spiece.model or vocab.txt, from which transformers builds its own AlbertTokenizer
(pip install sentencepiece protobuf) or BertTokenizer. tokenizer_config.json names the class.
Ordinary text gives the same ids as common/tokenization.py. transformers 5 differs in these cases:
- "[MASK]" or "<unk>" in a text is a special token there, and text here.
- Unigrams: among segmentations with equal scores, as of "====", it may choose another. A final
  capital sigma becomes σ. Spaces and control characters such as U+0085 are treated differently.
- A cased SentencePiece vocabulary: `` and '' become " there.
- A released ALBERT vocabulary: a "▁" follows each of its symbols ( ) " - . – £ €, and a token such
  as "▁2011," is not cut again. Vocabularies of data/text.py have neither.
"""
import functools
import json
import re
from pathlib import Path

import numpy as np
import torch

from common import folder_task, glue
from common.cli import UserError
from common.files import atomic, existing, load_file, read_json, write_atomic, write_json
from common.run import finite, load_weights

TEMPLATES = Path(__file__).resolve().parent / "templates"
EPSILON = 1e-12  # of all LayerNorms
MOST_LAYERS = 100
WRAPPERS = ("model_state_dict", "state_dict", "model")  # keys of the weights among others
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64}


# --- files ---------------------------------------------------------------------------------------

def read_weights(folder):
    """{name: tensor} of the model.safetensors or pytorch_model.bin in a folder, or without it of
    the parts in its index, as in transformers."""
    readers = {"model.safetensors": read_safetensors, "pytorch_model.bin": load_file}
    for name, read in readers.items():
        index = Path(folder) / f"{name}.index.json"
        parts = [name] if Path(folder, name).is_file() else read_index(index)
        if parts:
            weights = {}
            for part in parts:
                path = existing(Path(folder, part), f"{index} names it; fetch it too")
                weights |= finite(unwrap(read(path), path), path)
            return weights
    raise UserError(f"{folder}: no {' and no '.join(readers)}; give the folder of a PyTorch model, "
                    "with one of them")


def read_index(path):
    """The names of the files in an index, or [] if there is none."""
    if not path.is_file():
        return []
    weight_map = read_json(path).get("weight_map")
    names = [*weight_map.values()] if isinstance(weight_map, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: no weight_map with the file of each weight; fetch it again")
    return sorted(set(names))


def unwrap(content, path):
    """{name: tensor} of the content of a file, without the wrappers of training scripts, of
    DistributedDataParallel and of torch.compile."""
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(map(torch.is_tensor, content.values())):
        raise UserError(f"{path}: not a dictionary of tensors; save model.state_dict() in it")
    return {re.sub(r"^(module\.|model\.)+", "", str(name).replace("_orig_mod.", "")): value
            for name, value in content.items()}


def read_safetensors(path):
    """{name: tensor} of one .safetensors file."""
    content = np.fromfile(path, np.uint8)
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    try:
        header = json.loads(bytes(content[8:start]))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = content[start + begin:start + end]
            dtype = DTYPES[entry["dtype"]]
            tensors[name] = torch.frombuffer(raw, dtype=dtype).view(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        raise UserError(f"{path}: damaged, cut short or of other types than {', '.join(DTYPES)}; "
                        "fetch it again") from None
    return tensors


def write_weights(path, tensors):
    """Write {name: tensor} as a .safetensors file, in float32."""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + 4 * tensor.numel()
        header[name] = {
            "dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors to 8 bytes
    with atomic(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().float().cpu().contiguous().numpy())


def write_folder(folder, weights, config, tokenizer, length, own=None):
    """Write a Hugging Face folder: weights by their names there, config.json, the tokenizer, and
    the OwnSpec of a user's own task. length: as in write_tokenizer."""
    folder = Path(folder)
    if folder.is_file() or folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"--export {folder}: not an empty folder; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "model.safetensors", weights)
    write_json(folder / "config.json", config)
    tokenizer.save(folder)
    write_tokenizer(folder, tokenizer, length)
    if own:
        folder_task.write_spec(folder, own)


def write_tokenizer(folder, tokenizer, length):
    """Write tokenizer_config.json next to a vocabulary. length: tokens of the longest input that
    the model was trained on. Tokenizers of transformers cut longer ones, as --predict does."""
    word_piece = tokenizer.file_name == "vocab.txt"
    config = {
        "tokenizer_class": "BertTokenizer" if word_piece else "AlbertTokenizer",
        **tokenizer.settings(),
        "model_max_length": length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    write_json(Path(folder) / "tokenizer_config.json", config)


def opener(tokenizer, kind, folder, trust=""):
    """The call with which transformers opens a folder, and the packages that it needs."""
    packages = "transformers"
    if tokenizer.file_name == "spiece.model":
        packages += " sentencepiece protobuf; without protobuf it says that tiktoken is required"
    return f"{kind}.from_pretrained({str(folder)!r}{trust}) (pip install {packages})"


def check_complete(model, weights, folder):
    """UserError if weights lack a part of a model that predicts."""
    missing = sorted(model.state_dict().keys() - weights.keys())
    if missing:
        raise UserError(f"{folder}: the weight {missing[0]} is missing, and --predict needs all; "
                        "name RUN/TASK of a --finetune, or export it again")


def template(name):
    """The text of a file in templates/, without the comment above its docstring."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return text[text.index('"""'):]


def names_of(table, count):
    """{our module: theirs} of a table whose names have {} for a number below count."""
    return {ours.format(number): theirs.format(number)
            for ours, theirs in table.items() for number in range(count)}


def check_config(config, required, sizes=()):
    """ValueError if a key of `sizes` is missing or no number above 0, or a key differs from
    `required`."""
    missing = [key for key in sizes if key not in config]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    for key in sizes:
        if not isinstance(config[key], int) or config[key] < 1:
            raise ValueError(f"config.json has {key} {config[key]!r}, not a number above 0")
    for key, only in required.items():
        if config.get(key, only) != only:
            raise ValueError(f"{key} is {config[key]}; only {only} can be read")


# --- ALBERT --------------------------------------------------------------------------------------

GROUP = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
ALBERT_NAMES = {  # our module: theirs. {} is the number of a block here, of a group there
    "encoder.token_embedding": "albert.embeddings.word_embeddings",
    "encoder.position_embedding": "albert.embeddings.position_embeddings",
    "encoder.token_type_embedding": "albert.embeddings.token_type_embeddings",
    "encoder.norm": "albert.embeddings.LayerNorm",
    "encoder.mapping": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.attentions.{}.query": f"{GROUP}.attention.query",
    "encoder.attentions.{}.key": f"{GROUP}.attention.key",
    "encoder.attentions.{}.value": f"{GROUP}.attention.value",
    "encoder.attentions.{}.output": f"{GROUP}.attention.dense",
    "encoder.attentions.{}.norm": f"{GROUP}.attention.LayerNorm",
    "encoder.ffns.{}.fc1": f"{GROUP}.ffn",
    "encoder.ffns.{}.fc2": f"{GROUP}.ffn_output",
    "encoder.ffns.{}.norm": f"{GROUP}.full_layer_layer_norm",
    "pooler": "albert.pooler",
    "mlm": "predictions",
    "mlm.transform": "predictions.dense",
    "mlm.norm": "predictions.LayerNorm",
    "order": "sop_classifier.classifier",
    "head": "classifier",
    "span": "qa_outputs",
}
# buffers and tied weights
IGNORED = re.compile(r"albert\.embeddings\.(position_ids|token_type_ids)|predictions\.decoder\.\w+")
ALBERT_SETTINGS = {  # our setting: their key
    "vocab_size": "vocab_size",
    "embedding": "embedding_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "groups": "num_hidden_groups",
    "activation": "hidden_act",
    "positions": "max_position_embeddings",
    "init_std": "initializer_range",
    "dropout": "hidden_dropout_prob",
}
ALBERT_DEFAULTS = {  # of keys that may be missing
    "num_hidden_groups": 1,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
    "hidden_dropout_prob": 0.0,
}
ALBERT_FRACTIONS = ("initializer_range", "hidden_dropout_prob")
ALBERT_REQUIRED = {  # the only values that albert.py supports
    "model_type": "albert",
    "inner_group_num": 1,
    "type_vocab_size": 2,
    "layer_norm_eps": EPSILON,
}
ALBERT_CLASSES = {  # of a task, or of a head
    "RACE": "AlbertForMultipleChoice",
    "mlm": "AlbertForPreTraining",
    "head": "AlbertForSequenceClassification",
    "span": "AlbertForQuestionAnswering",
}


def albert_settings(config):
    """albert.py's settings of a config.json. ValueError if albert.py cannot build the model."""
    config = {**ALBERT_DEFAULTS, **config}
    for key in ALBERT_FRACTIONS:
        if not isinstance(config[key], (int, float)) or not 0 <= config[key] < 1:
            raise ValueError(f"config.json has {key} {config[key]!r}, not a number from 0 to 1")
    dropout = {"attention_probs_dropout_prob": config["hidden_dropout_prob"]}
    sizes = {*ALBERT_SETTINGS.values()} - {"hidden_act", *ALBERT_FRACTIONS}
    check_config(config, {**ALBERT_REQUIRED, **dropout}, sorted(sizes))
    settings = {ours: config[theirs] for ours, theirs in ALBERT_SETTINGS.items()}
    return {**settings, "share": "all", "mapped": settings["embedding"] == settings["hidden"]}


def read_albert(folder, config, groups):
    """({our name: weight} of a folder, the task of its head, or ""). Our config.json names the
    task. Others name a class, which gives "RACE" or "SQuAD1.1", or else serves as the task.
    ValueError if a name belongs to no ALBERT with `groups` groups."""
    modules = {theirs: ours for ours, theirs in names_of(ALBERT_NAMES, groups).items()}
    renamed = {}
    for name, value in read_weights(folder).items():
        name = re.sub("^(?=embeddings|encoder|pooler)", "albert.", name)  # of a bare AlbertModel
        module, _, leaf = name.rpartition(".")
        if module in modules:
            renamed[f"{modules[module]}.{leaf}"] = value.float()
        elif not IGNORED.fullmatch(name):
            raise ValueError(f"unexpected weight {name}")
    if not {"head.weight", "span.weight"} & renamed.keys():
        return renamed, ""
    kind = next(iter(config.get("architectures") or ()), "")
    by_class = {ALBERT_CLASSES["RACE"]: "RACE", ALBERT_CLASSES["span"]: "SQuAD1.1"}
    return renamed, by_class.get(kind) or config.get("finetuning_task") or kind


def rename_albert(weights, groups):
    """{their name: weight}. Partly shared blocks are written as `groups` groups, which compute the
    same. Without a mapping theirs is an identity (D5). Omits parts that theirs lacks (the SQuAD
    v2.0 head)."""
    result = {}
    for ours, theirs in ALBERT_NAMES.items():
        start, blank, _ = ours.partition("{}")
        blocks = {name.split(".")[2] for name in weights if blank and name.startswith(start)}
        for group in range(groups if blocks else 1):
            block = group * len(blocks) // groups
            for leaf in ("weight", "bias"):
                name = f"{ours.format(block)}.{leaf}"
                if name in weights:
                    result[f"{theirs.format(group)}.{leaf}"] = weights[name].clone()
    if "encoder.mapping.weight" not in weights:
        width = len(weights["encoder.norm.weight"])
        mapping = ALBERT_NAMES["encoder.mapping"]
        result[f"{mapping}.weight"] = torch.eye(width)
        result[f"{mapping}.bias"] = torch.zeros(width)
    return result


def label_names(task, weights, own=None):
    """Names of the outputs of a classifier, two without a head. own: the OwnSpec of a user's own
    task."""
    labels = own.labels if own else glue.TASKS[task].labels if task in glue.TASKS else ()
    outputs = len(weights.get("head.weight", "01"))
    return labels or [f"LABEL_{number}" for number in range(outputs)]


def head_settings(labels, classifier=True):
    """Settings of config.json for the names of a head's outputs. A classifier with one output is a
    regression, whose values transformers' pipelines change unless the settings say so."""
    settings = {
        "id2label": dict(enumerate(labels)),
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    if classifier and len(labels) == 1:
        settings["problem_type"] = "regression"
    return settings


def albert_config(cfg, architecture, groups, labels, task):
    """config.json for transformers. labels: from label_names."""
    return {
        **{theirs: getattr(cfg, ours) for ours, theirs in ALBERT_SETTINGS.items()},
        **ALBERT_REQUIRED,
        "architectures": [architecture],
        "embedding_size": cfg.embedding or cfg.hidden,
        "num_hidden_groups": groups,
        "attention_probs_dropout_prob": cfg.dropout,
        **head_settings(labels, architecture == ALBERT_CLASSES["head"]),
        "finetuning_task": task,
        "finetune_length": cfg.finetune_length,
        "recipe": cfg.recipe,
    }


def write_albert(folder, weights, task, cfg, groups, tokenizer, length, own=None):
    """Write a model of albert.py, with the head of `task` if any, as a folder. Returns a line about
    it. length: as in write_tokenizer. own: the OwnSpec of a user's own task."""
    heads = [name.split(".")[0] for name in weights]
    kinds = [ALBERT_CLASSES[kind] for kind in (task, *heads) if kind in ALBERT_CLASSES]
    kinds.append("AlbertModel")
    weights, own = folder_task.export_head(weights, own)
    theirs = rename_albert(weights, groups)
    config = albert_config(cfg, kinds[0], groups, label_names(task, weights, own), task)
    write_folder(folder, theirs, config, tokenizer, length, own)
    line = (f"{folder}: {kinds[0]}, {sum(map(torch.numel, theirs.values())):,} parameters; open it "
            f"with {opener(tokenizer, kinds[0], folder)}")
    if "answer" in heads:
        line += "; without the SQuAD v2.0 head, which Hugging Face's ALBERT lacks"
    return line


# --- BERT and ELECTRA ----------------------------------------------------------------------------

LAYER = "bert.encoder.layer.{}"
BERT_NAMES = {  # our module: theirs. {} is the number of a layer
    "encoder.token_embedding": "bert.embeddings.word_embeddings",
    "encoder.position_embedding": "bert.embeddings.position_embeddings",
    "encoder.token_type_embedding": "bert.embeddings.token_type_embeddings",
    "encoder.norm": "bert.embeddings.LayerNorm",
    "encoder.project": "bert.embeddings_project",
    "encoder.layers.{}.query": f"{LAYER}.attention.self.query",
    "encoder.layers.{}.key": f"{LAYER}.attention.self.key",
    "encoder.layers.{}.value": f"{LAYER}.attention.self.value",
    "encoder.layers.{}.output": f"{LAYER}.attention.output.dense",
    "encoder.layers.{}.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    "encoder.layers.{}.fc1": f"{LAYER}.intermediate.dense",
    "encoder.layers.{}.fc2": f"{LAYER}.output.dense",
    "encoder.layers.{}.ffn_norm": f"{LAYER}.output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "fit": "fit",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "decoder": "cls.predictions",
    "head": "classifier",
}
QKV = "query", "key", "value"
ATTENTION = re.compile(r"encoder\.layers\.\d+\.(query|key|value)\.\w+")
EMBEDDINGS = "encoder.token_embedding.weight", "encoder.position_embedding.weight"
SIZES = "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "qkv_size"
BERT_REQUIRED = {  # the only values that autotinybert.py supports
    "hidden_act": "gelu",
    "layer_norm_eps": EPSILON,
    "position_embedding_type": "absolute",
}
CLASSES = "", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"


def model_folder(path, first="model"):
    """The folder of a run's model: its model/ or superplm/, `first` before the other, else path
    itself. Raises UserError if there is none yet."""
    path = Path(path)
    inside = [path / name for name in (first, "model", "superplm")]
    folder = next((each for each in inside if (each / "done.json").exists()), path)
    config = folder / "config.json"
    if not config.exists():
        raise UserError(f"{folder}: no model here (config.json is missing); give a run or a "
                        "Hugging Face folder")
    searches = read_json(config).get("action") == "search"
    if searches and not (folder / "checkpoint.pt").exists():
        raise UserError(f"{folder}: its search has no model yet; first run its command again, "
                        "which continues it")
    return folder


def load_bert(model, weights, folder):
    """Copy weights into a LanguageModel, or a teacher's {"encoder": Encoder}. Returns a line about
    loaded, new and ignored weights. UserError if a part of the encoder is missing or does not
    fit."""
    for name in model.state_dict().keys() - weights.keys():
        if name.startswith("encoder.") and "pooler" not in name:
            raise UserError(f"{folder}: {name} is missing; this is not a complete BERT")
    return load_weights(model, weights, folder)


def bert_sizes(folder, config):
    """(layers, hidden, ffn, heads, qkv) of a config.json. Raises UserError or ValueError if
    autotinybert.py cannot build the model."""
    kind = config.get("model_type", "bert")  # many old folders do not name it
    if kind not in ("bert", "electra", "autotinybert"):
        raise UserError(f"{folder}: model_type is {kind}; only bert and electra can be read")
    config = {"qkv_size": config.get("hidden_size"), **config}
    check_config(config, BERT_REQUIRED, SIZES)
    sizes = tuple(config[name] for name in SIZES)
    if sizes[4] % sizes[3]:
        raise ValueError(f"config.json has num_attention_heads {sizes[3]}, which do not divide the "
                         f"width {sizes[4]}")
    return sizes


def read_bert(folder, heads):
    """{our name: weight} of a folder. Unknown names are kept. ValueError if a weight is missing, or
    cannot be divided into the heads."""
    modules = {theirs: ours for ours, theirs in names_of(BERT_NAMES, MOST_LAYERS).items()}
    weights = {}
    for name, value in read_weights(folder).items():
        name = re.sub(r"^(electra\.|(?=embeddings|encoder\.layer|pooler))", "bert.", name)
        name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
        module, _, leaf = name.rpartition(".")
        weights[f"{modules.get(module, module)}.{leaf}"] = value
    if "decoder.bias" in weights:
        weights["decoder_bias"] = weights.pop("decoder.bias")
    layers = [name.rsplit(".", 2)[0] for name in weights if ATTENTION.fullmatch(name)]
    layers = list(dict.fromkeys(layers))
    names = [f"{layer}.{part}.{leaf}" for layer in layers for part in (*QKV, "output")
             for leaf in ("weight", "bias")]
    for name in (*EMBEDDINGS, *names):
        if name not in weights:
            raise ValueError(f"the weight {name} is missing")
    for layer in layers:
        add_heads(weights, layer, heads)
    return weights


def add_heads(weights, layer, heads):
    """Replace query, key, value and output of a layer by tensors with an axis of heads. ValueError
    if it cannot be divided."""
    for leaf, ours in (("weight", "qkv"), ("bias", "qkv_bias")):
        parts = [weights.pop(f"{layer}.{part}.{leaf}") for part in QKV]
        shapes = {tuple(part.shape) for part in parts}
        if len(shapes) > 1 or len(parts[0]) % heads:
            raise ValueError(f"{layer}: query, key and value of {shapes} cannot have {heads} heads")
        weights[f"{layer}.{ours}"] = torch.stack(parts).unflatten(1, (heads, -1))  # (3, N, D, ...)
    output = weights.pop(f"{layer}.output.weight")
    if output.shape[-1] % heads:
        raise ValueError(f"{layer}: an output of {tuple(output.shape)} cannot have {heads} heads")
    weights[f"{layer}.output"] = output.unflatten(1, (heads, -1))  # (H, N, D)
    weights[f"{layer}.output_bias"] = weights.pop(f"{layer}.output.bias")


def rename_bert(weights, spans=False):
    """{their name: weight} of {our name: weight}. spans: the head is for SQuAD."""
    modules = {**names_of(BERT_NAMES, MOST_LAYERS), "head": "qa_outputs" if spans else "classifier"}
    result = {}
    for name, value in weights.items():
        module, _, leaf = name.rpartition(".")
        kind = "bias" if leaf.endswith("bias") else "weight"
        if leaf in ("qkv", "qkv_bias"):
            for part, each in zip(QKV, value):
                result[f"{modules[f'{module}.{part}']}.{kind}"] = each.flatten(0, 1)
        elif leaf == "output":
            result[f"{modules[name]}.weight"] = value.flatten(1)
        else:
            own = name.removesuffix(f"_{kind}").removesuffix(f".{kind}")
            result[f"{modules[own]}.{kind}"] = value
    return result


def bert_config(weights, shape, dropout, tokenizer, kind):
    """config.json for transformers. kind: one of CLASSES."""
    sizes = dict(zip(SIZES, shape))
    name = "Bert" if sizes["qkv_size"] == sizes["hidden_size"] else "AutoTinyBert"
    config = {
        "model_type": name.lower(),
        "architectures": [name + (kind or "Model")],
        **BERT_REQUIRED,
        **sizes,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_position_embeddings": len(weights["encoder.position_embedding.weight"]),
        "vocab_size": len(weights["encoder.token_embedding.weight"]),
        "pad_token_id": tokenizer.pad_id,
    }
    if name != "Bert":
        module = f"modeling_autotinybert.{name}"
        config["auto_map"] = {"AutoConfig": f"{module}Config"}
        for each in CLASSES:
            config["auto_map"][f"AutoModel{each}"] = module + (each or "Model")
    return config


def write_bert(folder, weights, shape, tokenizer, length, source, head=()):
    """Write {our name: weight} as a folder. Returns a line that says how to open it.

    shape: the numbers of SIZES. length: as in write_tokenizer. head: the weights of a task's head,
    which replaces the pre-training heads. source: the folder whose config.json names the task.
    """
    task = ""
    own = None
    record = read_json(Path(source) / "config.json")
    settings = record.get("settings", record)  # of a run, or of a Hugging Face folder
    dropout = settings.get("dropout", settings.get("hidden_dropout_prob", 0.1))
    kind = "ForMaskedLM" if "transform.weight" in weights else ""
    if head:
        task = record.get("task", "")
        kind = "ForQuestionAnswering" if task == "SQuAD1.1" else "ForSequenceClassification"
        encoder = {name: value for name, value in weights.items() if name.startswith("encoder.")}
        weights, own = folder_task.export_head(
            {**encoder, **head}, folder_task.read_spec(source))
    config = bert_config(weights, shape, dropout, tokenizer, kind)
    config |= head_settings(label_names(task, weights, own))
    if head:
        config["finetune_length"] = length  # for --predict
    renamed = rename_bert(weights, task == "SQuAD1.1")
    write_folder(folder, renamed, config, tokenizer, length, own)
    trust = ""
    if "auto_map" in config:  # a separate width of query, key and value needs code
        name = "modeling_autotinybert.py"
        write_atomic(Path(folder, name), template(name))
        trust = ", trust_remote_code=True"
    command = opener(tokenizer, f"AutoModel{kind}", folder, trust)
    return f"{folder}: written; open it with {command}"


def open_exported(folder, batch, length, device):
    """A function that runs a folder of write_bert on `batch` sequences of `length` tokens, or None
    without transformers."""
    try:
        from transformers import AutoModel, logging
    except ImportError:
        return None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)  # the code is write_bert's
    ids = torch.zeros(batch, length, dtype=torch.long, device=device)
    return functools.partial(model.eval().to(device), input_ids=ids, token_type_ids=ids,
                             attention_mask=ids + 1)
