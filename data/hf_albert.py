"""ALBERT folders in Hugging Face's layout, read and written under albert.py's names.

A layer group there is one attention and one feed-forward block, which are lists of their own in albert.py, since
Table 4 shares one and not the other. Both sides store a linear map as (outputs, inputs): weights are taken as they are.
"""
import re

import torch

from common import glue
from data.hf_folder import write_folder
from data.hf_weights import read_weights

GROUP = "albert.encoder.albert_layer_groups.{}.albert_layers.0."
NAMES = (  # (our module, theirs); {} is the number of a block here, of a group there
    ("encoder.words", "albert.embeddings.word_embeddings"),
    ("encoder.positions", "albert.embeddings.position_embeddings"),
    ("encoder.segments", "albert.embeddings.token_type_embeddings"),
    ("encoder.norm", "albert.embeddings.LayerNorm"),
    ("encoder.mapping", "albert.encoder.embedding_hidden_mapping_in"),
    *((f"encoder.attentions.{{}}.{ours}", f"{GROUP}attention.{theirs}") for ours, theirs in (
        ("query", "query"), ("key", "key"), ("value", "value"), ("output", "dense"), ("norm", "LayerNorm"))),
    ("encoder.ffns.{}.expand", f"{GROUP}ffn"), ("encoder.ffns.{}.shrink", f"{GROUP}ffn_output"),
    ("encoder.ffns.{}.norm", f"{GROUP}full_layer_layer_norm"),
    ("pooler", "albert.pooler"), ("mlm", "predictions"), ("mlm.transform", "predictions.dense"),
    ("mlm.norm", "predictions.LayerNorm"), ("order", "sop_classifier.classifier"), ("head", "classifier"),
    ("span", "qa_outputs"))
IGNORED = re.compile(r"albert\.embeddings\.(position_ids|token_type_ids)|predictions\.decoder\.\w+")  # buffers, tied
SETTINGS = (  # (our setting, their key, what is meant where it is missing; None: it may not be)
    ("vocab_size", "vocab_size", None), ("embedding", "embedding_size", None), ("hidden", "hidden_size", None),
    ("layers", "num_hidden_layers", None), ("heads", "num_attention_heads", None), ("ffn", "intermediate_size", None),
    ("groups", "num_hidden_groups", 1), ("activation", "hidden_act", "gelu_new"),
    ("positions", "max_position_embeddings", 512), ("init_std", "initializer_range", 0.02),
    ("dropout", "hidden_dropout_prob", 0.0))
EPSILON = 1e-12  # of all LayerNorms
CLASSES = {"RACE": "AlbertForMultipleChoice", "mlm": "AlbertForPreTraining",  # of a task, or of a head
              "head": "AlbertForSequenceClassification", "span": "AlbertForQuestionAnswering"}



def settings(config):
    """albert.py's settings of a config.json. ValueError where it describes what albert.py cannot build."""
    if not isinstance(config, dict) or config.get("model_type") != "albert":
        raise ValueError("model_type is not albert")
    missing = [theirs for _, theirs, default in SETTINGS if default is None and theirs not in config]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    if config.get("inner_group_num", 1) != 1 or config.get("type_vocab_size", 2) != 2:
        raise ValueError("inner_group_num and type_vocab_size: only 1 and 2 are built")
    if config.get("layer_norm_eps", EPSILON) != EPSILON:
        raise ValueError(f"layer_norm_eps {config['layer_norm_eps']}: only {EPSILON} is built")
    found = {"share": "all", **{ours: config.get(theirs, default) for ours, theirs, default in SETTINGS}}
    if config.get("attention_probs_dropout_prob", found["dropout"]) != found["dropout"]:
        raise ValueError(f"attention_probs_dropout_prob {config['attention_probs_dropout_prob']}: hidden_dropout_prob "
                         f"is {found['dropout']}, and only one for both is built; make them equal in config.json")
    if found["activation"] in ("gelu_pytorch_tanh", "gelu_fast"):
        found["activation"] = "gelu_new"
    return found


def read(folder, config, groups):
    """({our name: weight} of a folder, the task whose head is among them: "RACE" or "" for any). ValueError lists the
    names that belong to no ALBERT of so many groups."""
    weights = read_weights(folder)
    if "embeddings.word_embeddings.weight" in weights:  # a bare AlbertModel
        weights = {f"albert.{name}": value for name, value in weights.items()}
    tied, words = (weights.get(f"{name}.weight") for name in ("predictions.decoder", NAMES[0][1]))
    if tied is not None and words is not None and not torch.equal(tied, words):
        raise ValueError("predictions.decoder.weight differs from the word embeddings; ALBERT's are tied")
    modules = {theirs.format(group): ours.format(group) for ours, theirs in NAMES for group in range(groups)}
    split = {name: name.rsplit(".", 1) for name in weights if not IGNORED.fullmatch(name)}
    strange = [name for name, (module, *_) in split.items() if module not in modules]
    if strange:
        raise ValueError(f"unexpected weights: {', '.join(strange)}")
    return ({f"{modules[module]}.{leaf}": weights[name].float() for name, (module, leaf) in split.items()},
            "RACE" if CLASSES["RACE"] in config.get("architectures", ()) else "")


def rename(weights, groups):
    """{their name: weight}. What is shared in parts is written out as `groups` groups, which computes the same; without
    a mapping theirs is an identity (D9). Parts that theirs lacks (the SQuAD v2.0 head) are left out."""
    result = {}
    for ours, theirs in NAMES:
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


def make_config(cfg, architecture, outputs, groups, labels=()):
    """config.json for transformers. outputs: of the head, where it is a classifier's; labels: their names."""
    names = labels or [f"LABEL_{number}" for number in range(outputs)]
    return {**{theirs: getattr(cfg, ours) for ours, theirs, _ in SETTINGS},
            "architectures": [architecture], "model_type": "albert", "embedding_size": cfg.embedding or cfg.hidden,
            "num_hidden_groups": groups, "inner_group_num": 1, "type_vocab_size": 2,
            "attention_probs_dropout_prob": cfg.dropout, "classifier_dropout_prob": 0.1, "layer_norm_eps": EPSILON,
            "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
            "id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def write(folder, weights, task, cfg, groups, tokenizer):
    """Write a model of albert.py, and the head of `task` if that is a task's, as a folder; the line returned says what
    it is."""
    kinds, theirs = [task, *(name.split(".")[0] for name in weights)], rename(weights, groups)
    architecture = next((CLASSES[kind] for kind in kinds if kind in CLASSES), "AlbertModel")
    if architecture == "AlbertModel":
        theirs = {name.removeprefix("albert."): value for name, value in theirs.items()}
    outputs = len(weights["head.weight"]) if "head.weight" in weights else 2
    labels = glue.TASKS[task].labels if task in glue.TASKS else ()
    write_folder(folder, theirs, make_config(cfg, architecture, outputs, groups, labels), tokenizer)
    lost = "; the SQuAD v2.0 head, which Hugging Face's ALBERT has not, is left out" if "answer" in kinds else ""
    return f"{folder}: {architecture}, {sum(value.numel() for value in theirs.values()):,} numbers{lost}"
