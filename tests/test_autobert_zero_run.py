"""autobert_zero.py as a program: what its actions leave, and what stops them."""
import contextlib
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch

import autobert_zero as abz
from common import cli
from common.cli import UserError
from common.checkpoint import keep_model, read_jsonl
from common.finetune import parse_tasks
from common.tokenization import load_tokenizer
from conftest import filled, slow
from small_runs import SEARCHES

FLAGS = (SEARCHES["autobert_zero"].replace("MLM", "CoLA") +
         " --glue {glue} --length 16 --finetune_batch 8 --finetune_epochs 1 --save_every 2 --device cpu")


def arguments(ready, action, out, *more):
    return [*action.split(), *shlex.split(filled(FLAGS, **ready)), "--out", str(out), *more]


@pytest.fixture(scope="module")
def searched(ready, tmp_path_factory):
    """A search that ran without interruption, and what it printed."""
    out = tmp_path_factory.mktemp("searched") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert abz.main(arguments(ready, "--search", out)) == 0
    return out, printed.getvalue()


def test_search_leaves_what_the_design_says(searched, ready, capsys):
    out, printed = searched
    lines = read_jsonl(out / "history.jsonl")
    assert [line["id"] for line in lines] == list(range(7)) and [line["round"] for line in lines] == [0] * 3 + [1] * 4
    best = json.loads((out / "best.json").read_text())
    first = max(lines, key=lambda line: line["score"])  # --finalists 1: it is trained alone, and scored again
    assert best["arch"] == first["arch"] and best["finalists"] == [{"id": first["id"], "score": best["score"]}]
    assert len(best["baselines"]) == 3 and len([*(out / "baselines").glob("*.json")]) == 3
    assert not [*out.glob("round-*")]  # history.jsonl holds what they held
    assert best["majority"] == {"CoLA": 0} and "(majority baseline 0.00)" in printed
    meta = json.loads((ready["corpus"] / "meta.json").read_text())
    held = max(1, round(0.05 * meta["documents"]))
    size = f"{meta['documents']} documents, {meta['sentences']:,} sentences, {meta['tokens']:,} tokens"
    assert f"{ready['corpus']}: {size}; held out: {held}\n" in printed
    written = {}
    exec((out / "best.py").read_text(), written)
    assert written["load"](out / "best.pt").encoder.token_embedding.weight.shape == (300, 16)
    scored = torch.load(out / "finalists" / "0.pt")["encoder.token_embedding.weight"]
    assert torch.equal(written["load"](out / "best.pt").encoder.token_embedding.weight, scored)
    assert abz.main(arguments(ready, "--search", out)) == 0
    again = capsys.readouterr().out
    assert "finished" in again and again.endswith(printed[printed.index("best of"):])


def test_the_next_command_of_a_search_trains_what_it_found_on_its_text(searched, ready, tmp_path, monkeypatch, capsys):
    out, printed = searched
    words = re.search(r"^next: python autobert_zero.py (.+)$", printed, re.MULTILINE)[1]
    monkeypatch.chdir(tmp_path)
    assert abz.main([*shlex.split(words), "--steps", "2", "--batch", "2"]) == 0
    settings = json.loads((tmp_path / "runs/autobert_zero-pretrain-demo/config.json").read_text())["settings"]
    assert settings["corpus"] == [str(ready["corpus"])] and settings["arch"] == abz.read_best(out / "best.json")
    assert re.search(r"accuracy \d+\.\d\d% \(majority baseline \d+\.\d\d%\), loss", capsys.readouterr().out)


def test_a_search_in_which_all_diverge_says_so(ready, tmp_path):
    for flags, words in (["--warm_times", "1"], "the warm start diverged"), (
            ["--warm_times", "0", "--restart"], "every candidate diverged"):
        with pytest.raises(UserError, match=words):
            abz.main(arguments(ready, "--search", tmp_path, "--lr", "1e30", "--finalists", "0", *flags))
    assert all(line["diverged"] and line["score"] == 0 for line in read_jsonl(tmp_path / "history.jsonl"))


@pytest.mark.parametrize("error", [abz.Diverged("gradient norm nan"), torch.OutOfMemoryError("no memory")])
def test_a_candidate_that_fails_scores_0(monkeypatch, tmp_path, error):
    def fail(*arguments, **named):
        raise error
    cfg = abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8)
    monkeypatch.setattr(abz, "train_language_model", fail)
    data = type("Data", (), {"device": torch.device("cpu"), "tasks": {"CoLA": None}})
    result = abz.evaluate_candidate((3,), 0, abz.SuperNet(cfg), data, cfg, tmp_path / "0")
    assert result["score"] == 0 and result["diverged"] == type(error).__name__ and (tmp_path / "0.pt").exists()


def test_the_best_finalist_is_returned():
    """The scores that count are those of training alone (D37); one that diverges there does not win."""
    history = [{"id": number, "arch": "", "score": score, "diverged": False} for number, score in enumerate((3, 2, 1))]
    alone = [{"score": score, "diverged": score == 9} for score in (0.1, 0.3, 9)]
    again = [{**line, **result} for line, result in zip(history, alone)]
    assert abz.pick_best(again, history) == {**history[1], **alone[1]}
    assert abz.pick_best(again[2:], history) == abz.pick_best([], history) == history[0]


def test_a_search_is_exported_as_it_ended(searched, tmp_path, capsys):
    path = tmp_path / "net.py"
    assert abz.main(["--export", str(path), "--init", str(searched[0])]) == 0
    assert path.read_text().replace("net.pt", "best.pt") == (searched[0] / "best.py").read_text()
    ours, theirs = (torch.load(file) for file in (tmp_path / "net.pt", searched[0] / "best.pt"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert "newly initialised: none" in capsys.readouterr().out
    blank = str(tmp_path / "net work.py"), "--init", str(searched[0])  # cannot be imported
    for name, *more in ((str(path), "--init", str(searched[0])), ("net.txt",), ("net.py",), blank):
        with pytest.raises(UserError, match="--export"):
            abz.main(["--export", name, *more])


ALONE = """
import net, sentencepiece, torch
batch = net.encode(sentencepiece.SentencePieceProcessor(model_file="spiece.model"), *{texts})
print(net.LABELS, batch["ids"].tolist(), net.load("net.pt").eval()(batch).tolist(), sep="\\n")
"""


def test_an_exported_network_cuts_its_inputs_as_predict_does(searched, tmp_path, monkeypatch):
    """Texts longer than --finetune_length, which is part of the export: alone and in pairs, either one the longer."""
    arch = "conv3 | softmax(scale(Q @ K.T)) @ V"
    texts = [("dog " * 30, "cat " * 3), ("a dog", "the cat " * 30), ("dog " * 9, "cat " * 10), ("a dog", "a cat")]
    predicted = []
    monkeypatch.setattr(abz, "answer_file", lambda path, cfg, task, outputs: predicted.append(outputs))
    for task, columns in ("RTE", ("sentence1", "sentence2")), ("SST-2", ("sentence",)):
        cfg = abz.Config(tasks=task, layers=2, hidden=16, heads=2, ffn=32, init_std=0.5, vocab_size=300, arch=arch,
                         length=64, finetune_length=16)
        model = abz.TaskModel(abz.parse_arch(arch), cfg, 2)
        keep_model(tmp_path / task, "finetune", cfg, load_tokenizer(searched[0]), model=model)
        rows = [("index", *columns), *((str(number), *pair[:len(columns)]) for number, pair in enumerate(texts))]
        (tmp_path / f"{task}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
        assert abz.main(["--predict", str(tmp_path / f"{task}.tsv"), "--init", str(tmp_path / task)]) == 0
        (folder := tmp_path / f"{task}-net").mkdir()
        assert abz.main(["--export", str(folder / "net.py"), "--init", str(tmp_path / task)]) == 0
        exec(compile((folder / "net.py").read_text(), "net.py", "exec"), net := {})
        network, pieces = net["load"](folder / "net.pt").eval(), load_tokenizer(folder).model
        found = torch.cat([network(net["encode"](pieces, *row[1:])) for row in rows[1:]])
        torch.testing.assert_close(found, predicted.pop())


@pytest.mark.parametrize("task, labels", [("RTE", ("entailment", "not_entailment")),
                                          slow("SQuAD1.1", ("start", "end"))])
def test_a_tuned_model_answers_alone_in_an_empty_folder(searched, tmp_path, task, labels):
    """With torch and sentencepiece, from two texts."""
    texts = "The  ``Cat'' sees a Dög .", "a dog"
    tokenizer, arch = load_tokenizer(searched[0]), "conv3 | softmax(scale(Q @ K.T)) @ V"
    cfg = abz.Config(tasks=task, layers=2, hidden=16, heads=2, ffn=32, init_std=0.5, vocab_size=300, arch=arch)
    model = abz.TaskModel(abz.parse_arch(arch), cfg, 2, task.startswith("SQuAD")).eval()
    keep_model(tmp_path / task, "finetune", cfg, tokenizer, model=model)
    (tmp_path / "alone").mkdir()
    assert abz.main(["--export", str(tmp_path / "alone" / "net.py"), "--init", str(tmp_path / task)]) == 0
    ran = subprocess.run([sys.executable, "-E", "-c", ALONE.format(texts=texts)], cwd=tmp_path / "alone",
                         capture_output=True, text=True)
    names, ids, logits = ran.stdout.splitlines()
    first, second = map(tokenizer.encode, texts)
    row = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
    segments = torch.tensor([[0] * (len(first) + 2) + [1] * (len(row) - len(first) - 2)])
    expected = model({"ids": torch.tensor([row]), "segments": segments, "lengths": torch.tensor([len(row)])})
    assert names == str(labels) and json.loads(ids) == [row]
    torch.testing.assert_close(torch.tensor(json.loads(logits)), expected)


def test_the_preset_of_the_weights_comes_with_them(ready, tmp_path):
    """What a base model is fine-tuned with is base's, without a word; a flag rules."""
    shutil.copytree(ready["autobert_zero"], tmp_path, dirs_exist_ok=True)
    record = json.loads((tmp_path / "config.json").read_text())
    record["settings"] |= {"preset": "base", "length": 96, "dropout": 0.3}
    (tmp_path / "config.json").write_text(json.dumps(record))
    argv = ["--finetune", "CoLA", "--init", str(tmp_path), "--finetune_lr", "1e-3"]
    cfg = cli.parse(abz.Config, abz.PRESETS, abz.ACTIONS, "", argv)[2]
    abz.read_run(cfg)
    assert (cfg.preset, cfg.length, cfg.dropout, cfg.layers, cfg.tokenizer) == ("base", 96, 0.3, 1, str(tmp_path))
    assert (cfg.runs, cfg.finetune_epochs, cfg.finetune_lr) == (1, None, 1e-3)


def test_the_grid_has_a_job_for_every_setting_of_the_appendix(ready, tmp_path, monkeypatch):
    """And the models of the jobs that were not chosen go."""
    seen = []

    def job(task, cfg, arch, source, folder, data, run):
        seen.append((cfg.finetune_lr, cfg.weight_decay, cfg.eval_every))
        folder.mkdir()
        (folder / "checkpoint.pt").touch()
        return {"job": folder.name, "task": task.name, "setting": seen[-1], "start": "", "diverged": None,
                "metrics": {"matthews": 0.1, "main": len(seen) / 100}, "headline": "matthews",
                "majority_baseline": 0.0, "constant": ""}
    monkeypatch.setattr(abz, "train_task", job)
    more = "--arch", "conv3 | conv5", "--grid", "--runs", "1"
    assert abz.main(arguments(ready, "--finetune CoLA", tmp_path, *more)) == 0 and len(seen) == 24
    rates = [1e-5, 1.5e-5, 2e-5, 3e-5, 4e-5, 5e-5]  # App. D.2, with weight decays and evaluation intervals
    assert set(seen) == set(itertools.product(rates, [0.1, 0.01], [100, 10]))
    best = json.loads((tmp_path / "done.json").read_text())["tasks"]["CoLA"]
    assert tuple(best["setting"]) == seen[-1] and len(list((tmp_path / "jobs").glob("*.json"))) == 24
    assert [path.parent.name for path in tmp_path.glob("jobs/*/checkpoint.pt")] == [best["job"]]


def test_recipes_are_the_papers():
    known = abz.recipes(abz.Config())
    assert (known["RTE"].epochs, known["RTE"].lr, known["RTE"].warmup) == (3, 2e-5, 0.01)  # App. D.1
    assert (known["SQuAD1.1"].epochs, known["SQuAD1.1"].batch) == (3, 32)  # App. D.2
    assert (known["SQuAD2.0"].epochs, known["SQuAD2.0"].batch) == (2, 48)
    assert parse_tasks("squad1.1 glue", known, abz.GROUPS) == [
        "SQuAD1.1", "MNLI", "CoLA", "MRPC", "STS-B", "SST-2", "QQP", "QNLI", "RTE"]


