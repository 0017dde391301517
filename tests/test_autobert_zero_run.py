"""autobert_zero.py as a program: what its actions write and how they end."""
import contextlib
import io
import json
import re
import shlex
import shutil

import pytest
import torch
from conftest import filled
from small_runs import SEARCHES

import autobert_zero as abz
from common import cli
from common.checkpoint import keep_model, read_json, read_jsonl
from common.cli import UserError
from common.tokenization import load_tokenizer

FLAGS = (SEARCHES["autobert_zero"].replace("MLM", "CoLA") +
         " --glue {glue} --length 16 --finetune_batch 8 --finetune_epochs 1 --save_every 2"
         " --device cpu")
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
    """The folder of a search and what it printed."""
    out = tmp_path_factory.mktemp("searched") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert abz.main(arguments(ready, "--search", out)) == 0
    return out, printed.getvalue()


def test_a_search_writes_history_best_network_and_the_next_command(
        searched, ready, tmp_path, monkeypatch):
    out, printed = searched
    lines = read_jsonl(out / "history.jsonl")
    assert [line["id"] for line in lines] == list(range(7))
    assert [line["round"] for line in lines] == [0] * 3 + [1] * 4
    best = read_json(out / "best.json")
    first = max(lines, key=lambda line: line["score"])
    assert best["arch"] == first["arch"]  # the one finalist, scored again
    assert best["finalists"] == [{"id": first["id"], "score": best["score"]}]
    assert best["baselines"].keys() == {"BERT", "hybrid"}
    assert best["majority"] == {"CoLA": 0}
    log = [line for line in read_jsonl(out / "log.jsonl") if line["phase"] == "candidate"]
    in_rounds = {line["job"]: line["score"] for line in log if line["job"].startswith("round-")}
    assert in_rounds == {f"round-{line['round']}/{line['id']}": line["score"] for line in lines}
    assert len(log) - len(in_rounds) == 1 + 3  # the warm start; finalist and baselines
    assert not [*out.glob("round-*")]  # history.jsonl has what they had
    weights = torch.load(out / "finalists" / f"{first['id']}.pt")["encoder.token_embedding.weight"]
    assert torch.equal(load(out / "best.py")[1].encoder.token_embedding.weight, weights)
    words = re.search(r"^next: python autobert_zero.py (.+)$", printed, re.MULTILINE)[1]
    monkeypatch.chdir(tmp_path)
    assert abz.main([*shlex.split(words), "--steps", "2", "--batch", "2"]) == 0
    run = tmp_path / "runs/autobert_zero-pretrain-demo"
    settings = read_json(run / "config.json")["settings"]
    assert settings["corpus"] == [str(ready["corpus"])]
    assert settings["arch"] == best["arch"]


def test_a_search_in_which_all_diverge_says_so(ready, tmp_path):
    flags = ["--lr", "1e30", "--finalists", "0", "--warm_times"]
    with pytest.raises(UserError, match="the warm start diverged"):
        abz.main(arguments(ready, "--search", tmp_path, *flags, "1"))
    with pytest.raises(UserError, match="every candidate diverged"):
        abz.main(arguments(ready, "--search", tmp_path, *flags, "0", "--restart"))
    lines = read_jsonl(tmp_path / "history.jsonl")
    assert all(line["diverged"] and line["score"] == 0 for line in lines)


def test_a_search_that_keeps_no_weights_writes_no_best_pt(ready, tmp_path, capsys):
    """Demo candidates share no weights; without finalists their weights are deleted. The next
    command trains the network from scratch."""
    flags = "--finalists", "0", "--warm_times", "0", "--population", "2", "--rounds", "0"
    assert abz.main(arguments(ready, "--search", tmp_path / "run", *flags)) == 0
    assert (tmp_path / "run" / "best.json").exists()
    assert not (tmp_path / "run" / "best.pt").exists()
    words = re.search(r"^next: python autobert_zero.py (.+)$", capsys.readouterr().out,
                      re.MULTILINE)[1]
    more = "--steps", "2", "--batch", "2", "--out", str(tmp_path / "next")
    assert abz.main([*shlex.split(words), *more]) == 0


def test_a_search_is_exported_as_it_ended(searched, tmp_path):
    path = tmp_path / "net.py"
    command = ["--export", str(path), "--init", str(searched[0])]
    assert abz.main(command) == 0
    assert path.read_text().replace("net.pt", "best.pt") == (searched[0] / "best.py").read_text()
    ours = torch.load(tmp_path / "net.pt")
    theirs = torch.load(searched[0] / "best.pt")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    with pytest.raises(UserError, match="exists already"):
        abz.main(command)


def keep_tuned(folder, task, tokenizer, **settings):
    """A folder as --finetune leaves it; returns its model."""
    cfg = abz.Config(tasks=task, layers=2, hidden=16, heads=2, ffn=32, init_std=0.5,
                     vocab_size=300, arch=ARCH, **settings)
    model = abz.TaskModel(abz.parse_arch(ARCH), cfg, 2, task.startswith("SQuAD")).eval()
    keep_model(folder, "finetune", cfg, tokenizer, model=model)
    return model


@pytest.mark.parametrize("task, columns", [
    ("RTE", ("sentence1", "sentence2")),
    ("SST-2", ("sentence",)),
])
def test_an_exported_network_cuts_its_inputs_as_predict_does(
        task, columns, searched, tmp_path, monkeypatch):
    """Texts longer than --finetune_length, alone and in pairs."""
    texts = [
        ("dog " * 30, "cat " * 3),
        ("a dog", "the cat " * 30),
        ("dog " * 9, "cat " * 10),
        ("a dog", "a cat"),
    ]
    texts = [pair[:len(columns)] for pair in texts]
    predicted = []
    monkeypatch.setattr(abz, "answer_file", lambda *others: predicted.append(others[-1]))
    init = tmp_path / task
    keep_tuned(init, task, load_tokenizer(searched[0]), length=64, finetune_length=16)
    rows = [("index", *columns), *(("0", *pair) for pair in texts)]
    file = tmp_path / "texts.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in rows))
    assert abz.main(["--predict", str(file), "--init", str(init)]) == 0
    (tmp_path / "net").mkdir()
    path = tmp_path / "net" / "net.py"
    assert abz.main(["--export", str(path), "--init", str(init)]) == 0
    names, network = load(path)
    tokenizer = load_tokenizer(path.parent).model
    logits = torch.cat([network(names["encode"](tokenizer, *pair)) for pair in texts])
    torch.testing.assert_close(logits, predicted[0])


def test_the_preset_of_the_weights_comes_with_them(ready, tmp_path):
    """A base model is fine-tuned as base; a flag overrides."""
    shutil.copytree(ready["autobert_zero"], tmp_path, dirs_exist_ok=True)
    record = read_json(tmp_path / "config.json")
    record["settings"] |= {"preset": "base", "length": 96, "dropout": 0.3}
    (tmp_path / "config.json").write_text(json.dumps(record))
    argv = ["--finetune", "CoLA", "--init", str(tmp_path), "--finetune_lr", "1e-3"]
    cfg = cli.parse(abz.Config, abz.PRESETS, abz.ACTIONS, "", argv)[2]
    abz.read_run(cfg)
    expected = {"preset": "base", "length": 96, "dropout": 0.3, "layers": 1, "runs": 1,
                "tokenizer": str(tmp_path), "finetune_epochs": None, "finetune_lr": 1e-3}
    assert {name: getattr(cfg, name) for name in expected} == expected


def test_recipes_are_the_papers():
    recipes = abz.recipes(abz.Config())
    glue = recipes["RTE"]
    assert (glue.epochs, glue.lr, glue.warmup) == (3, 2e-5, 0.01)  # App. D.1
    assert (recipes["SQuAD1.1"].epochs, recipes["SQuAD1.1"].batch) == (3, 32)  # App. D.2
    assert (recipes["SQuAD2.0"].epochs, recipes["SQuAD2.0"].batch) == (2, 48)
