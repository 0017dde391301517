"""Models in Hugging Face's layout, read and written under the names of albert.py and autotinybert.py.

ALBERT: a layer group there is one attention and one feed-forward block, which are lists of their own in albert.py,
since Table 4 shares one and not the other. Both sides store a linear map as (outputs, inputs).

BERT and ELECTRA: query, key and value are three matrices (outputs, inputs) there and one tensor (3, heads, width,
inputs) in autotinybert.py; their output projection (hidden, heads x width) is (hidden, heads, width) there. All else is
taken as it is.
"""
import dataclasses
import math
import re
from pathlib import Path

import torch

from common import glue
from common.cli import UserError
from common.checkpoint import read_init, read_json, take_over, write_atomic
from data.hf_folder import read_weights, write_folder

EPSILON = 1e-12  # of all LayerNorms

# --- ALBERT ----------------------------------------------------------------------------------------------------------
GROUP = "albert.encoder.albert_layer_groups.{}.albert_layers.0."
ALBERT_NAMES = (  # (our module, theirs); {} is the number of a block here, of a group there
    ("encoder.token_embedding", "albert.embeddings.word_embeddings"),
    ("encoder.position_embedding", "albert.embeddings.position_embeddings"),
    ("encoder.token_type_embedding", "albert.embeddings.token_type_embeddings"),
    ("encoder.norm", "albert.embeddings.LayerNorm"),
    ("encoder.mapping", "albert.encoder.embedding_hidden_mapping_in"),
    *((f"encoder.attentions.{{}}.{ours}", f"{GROUP}attention.{theirs}") for ours, theirs in (
        ("query", "query"), ("key", "key"), ("value", "value"), ("output", "dense"), ("norm", "LayerNorm"))),
    ("encoder.ffns.{}.fc1", f"{GROUP}ffn"), ("encoder.ffns.{}.fc2", f"{GROUP}ffn_output"),
    ("encoder.ffns.{}.norm", f"{GROUP}full_layer_layer_norm"),
    ("pooler", "albert.pooler"), ("mlm", "predictions"), ("mlm.transform", "predictions.dense"),
    ("mlm.norm", "predictions.LayerNorm"), ("order", "sop_classifier.classifier"), ("head", "classifier"),
    ("span", "qa_outputs"))
IGNORED = re.compile(r"albert\.embeddings\.(position_ids|token_type_ids)|predictions\.decoder\.\w+")  # buffers, tied
ALBERT_SETTINGS = (  # (our setting, their key, what is meant where it is missing; None: it may not be)
    ("vocab_size", "vocab_size", None), ("embedding", "embedding_size", None), ("hidden", "hidden_size", None),
    ("layers", "num_hidden_layers", None), ("heads", "num_attention_heads", None), ("ffn", "intermediate_size", None),
    ("groups", "num_hidden_groups", 1), ("activation", "hidden_act", "gelu_new"),
    ("positions", "max_position_embeddings", 512), ("init_std", "initializer_range", 0.02),
    ("dropout", "hidden_dropout_prob", 0.0))
ALBERT_CLASSES = {"RACE": "AlbertForMultipleChoice",  # of a task, or of a head
                  "mlm": "AlbertForPreTraining", "head": "AlbertForSequenceClassification",
                  "span": "AlbertForQuestionAnswering"}


def albert_settings(config):
    """albert.py's settings of a config.json. ValueError where it describes what albert.py cannot build."""
    if not isinstance(config, dict) or config.get("model_type") != "albert":
        raise ValueError("model_type is not albert")
    missing = [theirs for _, theirs, default in ALBERT_SETTINGS if default is None and theirs not in config]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    for key, only in (("inner_group_num", 1), ("type_vocab_size", 2), ("layer_norm_eps", EPSILON),
                      ("attention_probs_dropout_prob", config.get("hidden_dropout_prob", 0.0))):
        if config.get(key, only) != only:
            raise ValueError(f"{key} {config[key]}: only {only} is built")
    return {"share": "all", "mapped": config["embedding_size"] == config["hidden_size"],
            **{ours: config.get(theirs, default) for ours, theirs, default in ALBERT_SETTINGS}}


def read_albert(folder, config, groups):
    """({our name: weight} of a folder, the task whose head is among them: that of our config.json,
    "RACE" and "SQuAD1.1" by their class, for other classes' heads their class, else ""). ValueError
    lists the names that belong to no ALBERT of so many groups."""
    weights = read_weights(folder)
    if "embeddings.word_embeddings.weight" in weights:  # a bare AlbertModel
        weights = {f"albert.{name}": value for name, value in weights.items()}
    modules = {theirs.format(group): ours.format(group) for ours, theirs in ALBERT_NAMES for group in range(groups)}
    split = {name: name.rsplit(".", 1) for name in weights if not IGNORED.fullmatch(name)}
    strange = [name for name, (module, *_) in split.items() if module not in modules]
    if strange:
        raise ValueError(f"unexpected weights: {', '.join(strange)}")
    found = {f"{modules[module]}.{leaf}": weights[name].float() for name, (module, leaf) in split.items()}
    kind = next(iter(config.get("architectures") or ()), "")
    by_class = {ALBERT_CLASSES["RACE"]: "RACE", ALBERT_CLASSES["span"]: "SQuAD1.1"}
    own = by_class.get(kind) or config.get("finetuning_task") or kind
    return found, own if {"head.weight", "span.weight"} & found.keys() else ""


def rename_albert(weights, groups):
    """{their name: weight}. What is shared in parts is written out as `groups` groups, which computes the same; without
    a mapping theirs is an identity (D9). Parts that theirs lacks (the SQuAD v2.0 head) are left out."""
    result = {}
    for ours, theirs in ALBERT_NAMES:
        blocks = {name.split(".")[2] for name in weights if "{}" in ours and name.startswith(ours.partition("{}")[0])}
        for group in range(groups if blocks else 1):
            for leaf in ("weight", "bias"):
                name = f"{ours.format(group * len(blocks) // groups)}.{leaf}"
                if name in weights:
                    result[f"{theirs.format(group)}.{leaf}"] = weights[name].clone()
    if "encoder.mapping.weight" not in weights:
        width = len(weights["encoder.norm.weight"])
        result["albert.encoder.embedding_hidden_mapping_in.weight"] = torch.eye(width)
        result["albert.encoder.embedding_hidden_mapping_in.bias"] = torch.zeros(width)
    return result


def albert_config(cfg, architecture, outputs, groups, labels=(), task=""):
    """config.json for transformers. outputs: of the head, where it is a classifier's; labels: their names."""
    names = labels or [f"LABEL_{number}" for number in range(outputs)]
    return {**{theirs: getattr(cfg, ours) for ours, theirs, _ in ALBERT_SETTINGS},
            "architectures": [architecture], "model_type": "albert", "embedding_size": cfg.embedding or cfg.hidden,
            "num_hidden_groups": groups, "inner_group_num": 1, "type_vocab_size": 2,
            "attention_probs_dropout_prob": cfg.dropout, "classifier_dropout_prob": 0.1, "layer_norm_eps": EPSILON,
            "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
            **({"finetuning_task": task} if task in glue.TASKS else {}),
            **({"finetune_length": cfg.finetune_length} if task and cfg.finetune_length else {}),
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)}}


def write_albert(folder, weights, task, cfg, groups, tokenizer):
    """Write a model of albert.py, and the head of `task` if that is a task's, as a folder; the line returned says what
    it is."""
    kinds, theirs = [task, *(name.split(".")[0] for name in weights)], rename_albert(weights, groups)
    architecture = next((ALBERT_CLASSES[kind] for kind in kinds if kind in ALBERT_CLASSES), "AlbertModel")
    if architecture == "AlbertModel":
        theirs = {name.removeprefix("albert."): value for name, value in theirs.items()}
    outputs = len(weights["head.weight"]) if "head.weight" in weights else 2
    labels = glue.TASKS[task].labels if task in glue.TASKS else ()
    write_folder(folder, theirs, albert_config(cfg, architecture, outputs, groups, labels, task), tokenizer)
    lost = "; the SQuAD v2.0 head, which Hugging Face's ALBERT has not, is left out" if "answer" in kinds else ""
    return f"{folder}: {architecture}, {sum(value.numel() for value in theirs.values()):,} numbers{lost}"


# --- BERT and ELECTRA ------------------------------------------------------------------------------------------------
BERT_NAMES = {  # our module: theirs; {} is the number of a layer
    "encoder.token_embedding": "bert.embeddings.word_embeddings",
    "encoder.position_embedding": "bert.embeddings.position_embeddings",
    "encoder.token_type_embedding": "bert.embeddings.token_type_embeddings",
    "encoder.norm": "bert.embeddings.LayerNorm", "encoder.project": "bert.embeddings_project",
    "encoder.pooler": "bert.pooler.dense", "fit": "fit",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "decoder": "cls.predictions", "head": "classifier",
    **{f"encoder.layers.{{}}.{ours}": f"bert.encoder.layer.{{}}.{theirs}" for ours, theirs in (
        ("query", "attention.self.query"), ("key", "attention.self.key"),
        ("value", "attention.self.value"), ("output", "attention.output.dense"),
        ("attention_norm", "attention.output.LayerNorm"), ("fc1", "intermediate.dense"),
        ("fc2", "output.dense"), ("ffn_norm", "output.LayerNorm"))}}
QKV = ("query", "key", "value")
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "qkv_size")
FIXED = {"hidden_act": "gelu", "layer_norm_eps": EPSILON, "position_embedding_type": "absolute"}  # all that runs here
MODELING = '''"""BERT whose query, key and value have a width of their own, `qkv_size`, as in AutoTinyBERT (Figure B.1):
what AutoModel.from_pretrained(FOLDER, trust_remote_code=True) runs."""
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification, BertModel


class AutoTinyBertConfig(BertConfig):
    model_type = "autotinybert"


class OwnWidth:
    """Gives the attention of a BERT, which is built with one head, the heads and the width of its config."""
    config_class = AutoTinyBertConfig

    def __init__(self, config, *args, **more):
        heads, config.num_attention_heads = config.num_attention_heads, 1  # those of a BERT divide the hidden size
        super().__init__(config, *args, **more)
        config.num_attention_heads = heads
        for layer in self.base_model.encoder.layer:
            attention, width = layer.attention.self, config.qkv_size
            attention.num_attention_heads, attention.attention_head_size = heads, width // heads
            attention.all_head_size, attention.scaling = width, (width // heads) ** -0.5
            for name in ("query", "key", "value"):
                setattr(attention, name, nn.Linear(config.hidden_size, width))
            layer.attention.output.dense = nn.Linear(width, config.hidden_size)
        self.post_init()


class AutoTinyBertModel(OwnWidth, BertModel):
    pass


class AutoTinyBertForMaskedLM(OwnWidth, BertForMaskedLM):
    pass


class AutoTinyBertForSequenceClassification(OwnWidth, BertForSequenceClassification):
    pass


class AutoTinyBertForQuestionAnswering(OwnWidth, BertForQuestionAnswering):
    pass
'''
AUTO = {"AutoConfig": "Config", "AutoModel": "Model", **{  # class of transformers: the end of ours
    f"AutoModel{kind}": kind for kind in ("ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering")}}


def model_folder(path, first="model"):
    """Where the model of a run is: its model/ or superplm/, `first` before the other, else path itself."""
    found = next((Path(path) / name for name in (first, "model", "superplm")
                  if (Path(path) / name / "checkpoint.pt").exists()), Path(path))
    if not (found / "config.json").exists():
        raise UserError(f"{found}: no model is here (config.json is missing); give a run or a Hugging Face folder")
    return found


def read_model(path, cfg, arch="", first="model"):
    """(folder, architecture as text, {our name: weight}) of a run folder or a Hugging Face folder. Where a run's model
    is not the `arch` that is wanted, its SuperPLM is taken, which all architectures are parts of."""
    folder, whole = model_folder(path, first), model_folder(path, "superplm")
    config = read_json(folder / "config.json", dict)
    if "model_type" in config:
        shape = bert_sizes(folder, config)
        return folder, "-".join(map(str, shape)), read_bert(folder, shape[3])
    own = dataclasses.replace(cfg, init=str(folder))  # read_init fills in the model's arch
    weights = read_init(own, dict.fromkeys(("search", "superplm", "further_train", "finetune"), ("arch",)))["model"]
    if arch not in ("", own.arch) and whole != folder:
        return read_model(whole, cfg)
    return folder, own.arch, weights


def fill(model, weights, folder):
    """Copy weights into a LanguageModel, or a teacher's {"encoder": Encoder}. The line returned
    says what was loaded, newly initialised and ignored; UserError where a part of the encoder is
    missing or does not fit."""
    state = model.state_dict()
    for name in state.keys() - weights.keys():
        if name.startswith("encoder.") and "pooler" not in name:
            raise UserError(f"{folder}: {name} is missing; this is no whole BERT")
    vocab, padded = (len(each["encoder.token_embedding.weight"]) for each in (state, weights))
    if padded == vocab or padded not in [math.ceil(vocab / size) * size for size in (8, 64, 128)]:
        return take_over(model, weights, folder)
    by_token = {"encoder.token_embedding.weight", "decoder_bias"} & weights.keys()
    words = take_over(model, weights | {name: weights[name][:vocab] for name in by_token}, folder)
    return f"{words}; the last {padded - vocab} rows of its embedding are padding and ignored"


def bert_sizes(folder, config):
    """(layers, hidden, ffn, heads, qkv) that a config.json describes; UserError where it needs what does not run here.
    """
    readable = {"model_type": ("bert", "electra", "autotinybert"), **{key: (value,) for key, value in FIXED.items()}}
    for key, values in readable.items():
        if config.get(key, values[0]) not in values:
            raise UserError(f"{folder}: {key} is {config[key]!r}; only {' and '.join(map(str, values))} can be read")
    config = {"qkv_size": config.get("hidden_size"), **config}
    missing = [name for name in SIZES if type(config.get(name)) is not int]
    if missing:
        raise UserError(f"{folder / 'config.json'}: this describes no architecture ({missing[0]} is no whole number)")
    return tuple(config[name] for name in SIZES)


def partner(names, module):
    """What a module is called on the other side, by {name: name there}; None where there is no such module."""
    found = names.get(re.sub(r"\.\d+\.", ".{}.", module))
    return found and found.format(*re.findall(r"\.(\d+)\.", module))


def read_bert(folder, heads):
    """{our name: weight} of a folder; names that are none of a BERT's stay as they are."""
    names, weights = {theirs: ours for ours, theirs in BERT_NAMES.items()}, {}
    for name, value in read_weights(folder).items():
        name = re.sub(r"^(electra\.|(?=embeddings|encoder\.layer|pooler))", "bert.", name)
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        module, _, kind = name.rpartition(".")
        weights[f"{partner(names, module) or module}.{kind}"] = value
    if "decoder.bias" in weights:
        weights["decoder_bias"] = weights.pop("decoder.bias")
    for layer in [name.removesuffix("query.weight") for name in weights if name.endswith(".query.weight")]:
        try:
            for kind, ours in (("weight", "qkv"), ("bias", "qkv_bias")):
                stack = torch.stack([weights.pop(f"{layer}{part}.{kind}") for part in QKV])
                weights[layer + ours] = stack.unflatten(1, (heads, -1))  # (3, heads, width, inputs)
            output = weights.pop(f"{layer}output.weight").unflatten(1, (heads, -1))  # (hidden, heads, width)
            weights |= {f"{layer}output": output, f"{layer}output_bias": weights.pop(f"{layer}output.bias")}
        except (RuntimeError, ValueError, KeyError):
            raise UserError(f"{folder}: {layer}qkv is not whole, or does not fit {heads} heads") from None
    return weights


def rename_bert(weights, spans=False):
    """{their name: weight} of {our name: weight}. spans: the head is one of SQuAD."""
    names, result = {**BERT_NAMES, "head": "qa_outputs" if spans else "classifier"}, {}
    for name, value in weights.items():
        module, _, leaf = name.rpartition(".")
        kind, parts = "bias" if leaf.endswith("bias") else "weight", {module: value}
        if leaf in ("qkv", "qkv_bias"):
            parts = {f"{module}.{part}": each.flatten(0, 1) for part, each in zip(QKV, value)}
        elif leaf in ("output", "output_bias", "decoder_bias"):
            parts = {name.removesuffix("_bias"): value.flatten(1) if leaf == "output" else value}
        result |= {f"{partner(names, ours)}.{kind}": each for ours, each in parts.items()}
    return result


def write_bert(folder, weights, shape, dropout, tokenizer, source="", head=()):
    """Write {our name: weight} as a folder. shape: the numbers of SIZES; head: the weights of the task's head, if there
    is one, in place of the pre-training heads; source: the folder whose config.json names the task. The line returned
    says what was written, and what opens it. UserError where the folder is not empty."""
    task = read_json(Path(source) / "config.json", dict).get("settings", {}).get("tasks") if head else None
    weights = {name: value for name, value in weights.items() if name.startswith("encoder." if head else "")}
    weights |= dict(head)
    folder = Path(folder)
    kind, more = "ForMaskedLM" if "transform.weight" in weights else "Model", {}
    if "head.weight" in weights:
        labels = range(len(weights["head.weight"]))
        kind = "ForQuestionAnswering" if task == "SQuAD1.1" else "ForSequenceClassification"
        more = {"id2label": {number: f"LABEL_{number}" for number in labels},
                "label2id": {f"LABEL_{number}": number for number in labels}}
    positions, name = len(weights["encoder.position_embedding.weight"]), "Bert" if shape[4] == shape[1] else "AutoTinyBert"
    if name != "Bert":
        more["auto_map"] = {auto: f"modeling_autotinybert.{name}{ours}" for auto, ours in AUTO.items()}
    config = {"model_type": name.lower(), "architectures": [f"{name}{kind}"], **more, **FIXED,
              "initializer_range": 0.02, **dict(zip(SIZES, shape)), "hidden_dropout_prob": dropout,
              "attention_probs_dropout_prob": dropout, "max_position_embeddings": positions, "type_vocab_size": 2,
              "vocab_size": len(weights["encoder.token_embedding.weight"]), "pad_token_id": tokenizer.pad_id}
    write_folder(folder, rename_bert(weights, task == "SQuAD1.1"), config, tokenizer)
    if name != "Bert":
        write_atomic(folder / "modeling_autotinybert.py", MODELING)
    encoder = sum(value.numel() for key, value in weights.items() if key.startswith("encoder."))
    rest = sum(value.numel() for value in weights.values()) - encoder
    opens = f"AutoModel{kind.removeprefix('Model')}.from_pretrained(DIR)"
    if name != "Bert":  # its width of query, key and value needs code, which comes with the folder
        trust = "DIR, trust_remote_code=True)"
        opens = (f"{opens.replace('DIR)', trust)} and AutoTokenizer.from_pretrained({trust}; "
                 "without that argument both ask whether to run the code in DIR")
    head = f" and {rest:,} of the head" * bool(rest)
    return (f"{folder}: {name}{kind} {'-'.join(map(str, shape))}, {encoder:,} parameters of the "
            f"encoder{head}; open it with {opens}")
