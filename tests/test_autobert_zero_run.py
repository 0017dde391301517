"""autobert_zero.py as a program: what its actions write and how they end."""
import re
import shlex

import pytest
import torch
from conftest import filled
from small_runs import SEARCHES

import autobert_zero as abz
from common import glue
from common.checkpoint import keep_model, read_json, read_jsonl
from common.cli import UserError
from common.tokenization import load_tokenizer

FLAGS = SEARCHES["autobert_zero"] + " --length 16 --finetune_length 16 --device cpu"
ARCH = "conv3 | softmax(scale(Q @ K.T)) @ V"


def arguments(ready, action, out, *more):
    return [*action.split(), *shlex.split(filled(FLAGS, **ready)), "--out", str(out), *more]


def load(path):
    """The names of an exported module, and its network."""
    names = {}
    exec(path.read_text(), names)
    return names, names["load"](path.with_suffix(".pt")).eval()


@pytest.fixture(scope="module")
def searched(ready, tmp_path_factory):
    """The folder of a search."""
    out = tmp_path_factory.mktemp("searched") / "run"
    assert abz.main(arguments(ready, "--search", out)) == 0
    return out


def test_a_search_writes_history_best_network_and_the_next_command(
        searched, ready, tmp_path, monkeypatch, capsys):
    lines = read_jsonl(searched / "history.jsonl")
    assert [line["id"] for line in lines] == list(range(7))
    assert [line["round"] for line in lines] == [0] * 3 + [1] * 4
    best = read_json(searched / "best.json")
    first = max(lines, key=lambda line: line["score"])
    assert best["arch"] == first["arch"]  # the one finalist, scored again
    assert [line["score"] for line in best["finalists"]] == [best["score"]]
    assert best["baselines"].keys() == {"BERT", "hybrid", "majority"}
    assert not [*searched.glob("round-*")]  # history.jsonl has what they had
    assert abz.main(arguments(ready, "--search", searched)) == 0  # prints the result again
    words = re.search(r"^next: python autobert_zero.py (.+)$", capsys.readouterr().out,
                      re.MULTILINE)[1]
    monkeypatch.chdir(tmp_path)
    assert abz.main([*shlex.split(words), "--steps", "2", "--batch", "2"]) == 0
    run = tmp_path / "runs/autobert_zero-pretrain-demo"
    settings = read_json(run / "config.json")["settings"]
    assert settings["corpus"] == [str(ready["corpus"])]
    assert settings["arch"] == best["arch"]


def test_a_search_in_which_all_diverge_says_so(ready, tmp_path):
    command = arguments(ready, "--search", tmp_path, "--lr", "1e30")
    with pytest.raises(UserError, match="the warm start diverged"):
        abz.main([*command, "--warm_times", "1", "--restart"])
    with pytest.raises(UserError, match="every candidate diverged"):
        abz.main([*command, "--warm_times", "0", "--restart"])
    lines = read_jsonl(tmp_path / "history.jsonl")
    assert all(line["diverged"] and line["score"] == 0 for line in lines)


def test_the_network_of_a_search_is_exported_as_it_ended(searched, tmp_path):
    """With the weights of the finalist, trained again."""
    path = tmp_path / "net.py"
    command = ["--export", str(path), "--init", str(searched)]
    assert abz.main(command) == 0
    best = read_json(searched / "best.json")["id"]
    name = "encoder.token_embedding.weight"
    weights = torch.load(searched / "finalists" / f"{best}.pt")[name]
    assert torch.equal(load(path)[1].state_dict()[name], weights)
    assert torch.equal(load(searched / "best.py")[1].state_dict()[name], weights)
    assert "flowchart" in (searched / "best.mmd").read_text()
    with pytest.raises(UserError, match="exists already"):
        abz.main(command)


@pytest.mark.peers
def test_auto_model_opens_an_exported_folder(searched, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "folder"
    assert abz.main(["--export", str(folder), "--init", str(searched)]) == 0
    theirs = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    ours = load(folder / "network.py")[1].encoder
    ids = torch.randint(5, 100, (2, 12))
    lengths = torch.tensor([12, 7])
    mask = (torch.arange(12) < lengths[:, None]).long()
    states = theirs(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(states, ours(ids, torch.zeros_like(ids), lengths))


def keep_tuned(folder, task, tokenizer, **settings):
    """A folder as --finetune leaves it; returns its model."""
    cfg = abz.Config(tasks=task, layers=2, hidden=16, heads=2, ffn=32, init_std=0.5,
                     vocab_size=300, arch=ARCH, **settings)
    model = abz.TaskModel(abz.parse_arch(ARCH), cfg, 2, task.startswith("SQuAD")).eval()
    keep_model(folder, "finetune", cfg, tokenizer, model=model)
    return model


@pytest.mark.parametrize("task", ["RTE", "SST-2"])
def test_an_exported_network_cuts_its_inputs_as_predict_does(
        task, searched, tmp_path, monkeypatch):
    """Texts longer than --finetune_length, alone and in pairs."""
    columns = glue.TASKS[task].test_text
    texts = [("dog " * 30, "cat " * 3), ("a dog", "the cat " * 30), ("a dog", "a cat")]
    texts = [pair[:len(columns)] for pair in texts]
    predicted = []
    monkeypatch.setattr(abz, "answer_file", lambda *others: predicted.append(others[-1]))
    init = tmp_path / task
    keep_tuned(init, task, load_tokenizer(searched), length=64, finetune_length=16)
    rows = [("index", *columns), *(("0", *pair) for pair in texts)]
    file = tmp_path / "texts.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in rows))
    assert abz.main(["--predict", str(file), "--init", str(init)]) == 0
    path = tmp_path / "net.py"
    assert abz.main(["--export", str(path), "--init", str(init)]) == 0
    names, network = load(path)
    tokenizer = load_tokenizer(tmp_path).model
    logits = torch.cat([network(names["encode"](tokenizer, *pair)) for pair in texts])
    torch.testing.assert_close(logits, predicted[0])


def test_recipes_are_the_papers():
    recipes = abz.recipes(abz.Config())
    glue = recipes["RTE"]
    assert (glue.epochs, glue.lr, glue.warmup) == (3, 2e-5, 0.01)  # App. D.1
    assert (recipes["SQuAD1.1"].epochs, recipes["SQuAD1.1"].batch) == (3, 32)  # App. D.2
    assert (recipes["SQuAD2.0"].epochs, recipes["SQuAD2.0"].batch) == (2, 48)
