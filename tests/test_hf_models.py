"""Hugging Face folders that the three BERT files write and read: what transformers does with them,
and what is wrong with them."""
from pathlib import Path

import pytest
from small_runs import FEW, write

from common.files import read_json

BERTS = ["albert", "autobert_zero", "autotinybert"]


def tune(works, program, labels):
    """Fine-tune `run/stars` on a task with these labels, and export it as `hf`."""
    rows = [f"A {word} day.,{label}\n" for word, label in zip(("good", "bad", "long"), labels)]
    for split in ("train", "dev"):
        write(f"stars/{split}.csv", "text,label\n" + "".join(rows))
    few = FEW.removeprefix("--finetune_epochs 1 ") + " --device cpu"
    works(f"{program} --finetune stars --init {{{program}}} --out run {few}")
    works(f"{program} --export hf --init run/stars")


@pytest.mark.peers
@pytest.mark.parametrize("program", BERTS)
def test_a_pipeline_gives_the_values_of_predict(program, works, transformers):
    """Of an exported regression. A text is longer than the inputs of the fine-tuning."""
    pytest.importorskip("google.protobuf")
    tune(works, program, [52.5, 51.25, 54.0])
    texts = ["A good day.", "A bad day. " * 40, "It was long."]
    write("new.csv", "text\n" + "".join(f"{text}\n" for text in texts))
    works(f"{program} --predict new.csv --init run/stars --out predicted")
    values = Path("predicted/test.tsv").read_text().split()[3::2]
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
