"""Hugging Face folders that the three BERT files write and read: what transformers does with them,
and what is wrong with them."""
import shutil
from pathlib import Path

import pytest
import torch
from conftest import filled
from small_runs import ONE, call, write

from common.files import read_json
from data import hf_models

BERTS = ["albert", "autobert_zero", "autotinybert"]


def tune(works, program, labels):
    """Fine-tune `run/stars` on a task with these labels, and export it as `hf`."""
    rows = [f"A {word} day.,{label}\n" for word, label in zip(("good", "bad", "long"), labels)]
    for split in ("train", "dev"):
        write(f"stars/{split}.csv", "text,label\n" + "".join(rows))
    few = ONE.removeprefix("--finetune_epochs 1 ") + " --device cpu"
    works(f"{program} --finetune stars --init {{{program}}} --out run {few}")
    works(f"{program} --export hf --init run/stars")


@pytest.mark.peers
@pytest.mark.parametrize("program", BERTS)
def test_a_pipeline_gives_the_values_of_predict(program, works):
    """Of an exported regression. A text is longer than the inputs of the fine-tuning."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("google.protobuf")
    tune(works, program, [52.5, 51.25, 54.0])
    texts = ["A good day.", "A bad day. " * 40, "It was long."]
    write("new.csv", "text\n" + "".join(f"{text}\n" for text in texts))
    works(f"{program} --predict new.csv --init run/stars --out predicted")
    lines = Path("predicted/test.csv").read_text().splitlines()[1:]
    values = [line.rpartition(",")[2] for line in lines]
    pipeline = transformers.pipeline("text-classification", "hf", trust_remote_code=True)
    scores = [result["score"] for result in pipeline(texts, truncation=True)]
    assert len({*scores}) == 3
    assert scores == pytest.approx([*map(float, values)], abs=1e-3)


@pytest.mark.parametrize("program", BERTS)
def test_a_folder_has_its_labels_both_ways_and_the_length_of_its_inputs(program, works):
    tune(works, program, ["meh", "angry", "pleased"])
    config = read_json("hf/config.json")
    assert config["id2label"] == {"0": "angry", "1": "meh", "2": "pleased"}
    assert config["label2id"] == {"angry": 0, "meh": 1, "pleased": 2}
    assert "problem_type" not in config
    assert read_json("hf/tokenizer_config.json")["model_max_length"] == 64


@pytest.mark.parametrize("program, length", [
    ("albert", 60), ("autobert_zero", 64), ("autotinybert", 48)])
def test_a_pre_trained_folder_has_the_length_of_its_sequences(program, length, works):
    works(f"{program} --export hf --init {{{program}}}")
    assert read_json("hf/tokenizer_config.json")["model_max_length"] == length


# Folders of others


def edited(**changes):
    """Change entries of hf/config.json."""
    return lambda: write("hf/config.json", {**read_json("hf/config.json"), **changes})


def saved(wrap):
    """Put wrap({name: weight}) into hf/pytorch_model.bin, in place of model.safetensors."""
    def change():
        weights = hf_models.read_weights("hf")
        Path("hf/model.safetensors").unlink()
        torch.save(wrap(weights), "hf/pytorch_model.bin")
    return change


def without(part):
    """Leave out the weights whose names contain `part`."""
    return saved(lambda weights: {
        name: value for name, value in weights.items() if part not in name})


def indexed(content):
    """Put an index in place of model.safetensors."""
    def change():
        Path("hf/model.safetensors").unlink()
        write("hf/model.safetensors.index.json", content)
    return change


NO_WEIGHTS = "not a dictionary of tensors; save model.state_dict()"


@pytest.mark.parametrize("program, change, said", [
    ("albert", edited(num_hidden_layers=0), "num_hidden_layers 0, not a number above 0"),
    ("albert", edited(hidden_size=None), "hidden_size None, not a number"),
    ("albert", edited(num_attention_heads=3), "not a multiple of heads 3"),
    ("albert", edited(hidden_act=None), "activation None: choose from"),
    ("albert", edited(initializer_range=None), "initializer_range None, not a number"),
    ("albert", edited(hidden_dropout_prob="0"), "hidden_dropout_prob '0', not a number"),
    ("albert", without("query.weight"), "query.weight"),
    ("albert", saved(lambda weights: [*weights.values()]), NO_WEIGHTS),
    ("albert", saved(lambda weights: {"net": weights}), NO_WEIGHTS),
    ("albert", indexed({"metadata": {}}), "index.json: no weight_map"),
    ("albert", indexed({"weight_map": ["a"]}), "index.json: no weight_map"),
    ("autotinybert", edited(num_hidden_layers=0), "num_hidden_layers 0, not a number above 0"),
    ("autotinybert", edited(intermediate_size=None), "intermediate_size None, not a number"),
    ("autotinybert", edited(num_attention_heads=3, qkv_size=16), "3, which do not divide"),
    ("autotinybert", edited(num_attention_heads=5, qkv_size=15), "cannot have 5 heads"),
    ("autotinybert", without("self.query.weight"), "query.weight is missing"),
    ("autotinybert", without("self.key.weight"), "key.weight is missing"),
    ("autotinybert", without("self.value.bias"), "value.bias is missing"),
    ("autotinybert", without("word_embeddings"), "token_embedding.weight is missing"),
    ("autotinybert", saved(lambda weights: [*weights.values()]), NO_WEIGHTS),
    ("autotinybert", indexed({}), "index.json: no weight_map"),
])
def test_a_faulty_folder_ends_in_one_line(program, change, said, ready, monkeypatch, capsys):
    export = f"{program} --export hf --init {{{program}}}"
    assert call(filled(export, **ready), monkeypatch) == 0
    change()
    tuning = f"{program} --finetune CoLA --init hf --glue {{glue}}"
    assert call(filled(tuning, **ready), monkeypatch) == 2
    line, = [line for line in capsys.readouterr().err.split("\n") if "error: " in line]
    assert "hf" in line and said in line


@pytest.mark.parametrize("program", ["albert", "autotinybert"])
def test_a_folder_without_its_head_predicts_nothing(program, works, monkeypatch, capsys):
    tune(works, program, ["meh", "angry", "pleased"])
    without("classifier")()
    write("new.csv", "text\nGood.\n")
    assert call(f"{program} --predict new.csv --init hf --out out", monkeypatch) == 2
    assert "hf: the weight head.bias is missing" in capsys.readouterr().err


@pytest.mark.parametrize("wrap", [
    lambda weights: {"epoch": 3, "model_state_dict": weights},
    lambda weights: {"state_dict": {f"model.{name}": each for name, each in weights.items()}},
    lambda weights: {f"module._orig_mod.{name}": each for name, each in weights.items()},
])
def test_weights_are_read_without_the_wrappers_of_training_scripts(wrap, ready):
    shutil.copytree(ready["hf"], "hf")
    expected = hf_models.read_weights("hf")
    saved(wrap)()
    weights = hf_models.read_weights("hf")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_single_file_is_taken_before_an_index(ready):
    """As in transformers."""
    shutil.copytree(ready["hf"], "hf")
    expected = hf_models.read_weights("hf")
    write("hf/model.safetensors.index.json", {"weight_map": {"a": "none.safetensors"}})
    assert hf_models.read_weights("hf").keys() == expected.keys()
