"""autobert_zero.py as a program: every action, killed and resumed, on one and two processes, with broken input."""
import functools
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import autobert_zero as abz
from common.cli import UserError
from common import cli, distributed
from common.runs import Checkpoint
from common.tasks import Recipe, parse_tasks, show, summarise
from conftest import ROOT
from tests.claims import autobert_zero as claims
from tests.claims import study

SIZES = ["--layers", "2", "--hidden", "16", "--heads", "2", "--ffn", "32", "--vocab_size", "36", "--length", "16",
         "--batch", "8", "--steps", "6", "--finetune_batch", "8", "--finetune_epochs", "1", "--save_every", "2"]
BUDGET = ["--population", "3", "--rounds", "1", "--parents", "2", "--children", "2", "--finalists", "1"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small corpus and a small CoLA: does the sentence begin with a capital animal?"""
    folder, rng = tmp_path_factory.mktemp("files"), random.Random(0)
    names, verbs = ["cat", "dog", "bird", "fish", "horse"], ["sees", "hears", "likes", "follows"]

    def sentence():
        return f"The {rng.choice(names)} {rng.choice(verbs)} the {rng.choice(names)} near the river ."
    (folder / "corpus").mkdir()
    (folder / "corpus" / "text.txt").write_text("\n\n".join("\n".join(sentence() for _ in range(8)) for _ in range(40)))
    (folder / "glue" / "CoLA").mkdir(parents=True)
    for split, rows in (("train", 40), ("dev", 24)):
        lines = (f"x\t{index % 2}\t\t{sentence() if index % 2 else ' '.join(reversed(sentence().split()))}"
                 for index in range(rows))
        (folder / "glue" / "CoLA" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def command(files, action, out, *more, processes=1):
    start = [sys.executable] if processes == 1 else [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return start + ["autobert_zero.py", *action, "--corpus", str(files / "corpus"), "--glue", str(files / "glue"),
                    "--tasks", "CoLA", "--out", str(out), "--device", "cpu", *SIZES, *more]


def run(*arguments, **options):
    return subprocess.run(*arguments, cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT, **options)


def mistake(capsys, monkeypatch, arguments):
    """The one line in which the program ends with exit status 2."""
    monkeypatch.setattr(sys, "argv", ["autobert_zero.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.run(abz.main)
    text = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and "\n" not in text, text
    return text


def history(out):
    lines = [json.loads(line) for line in (Path(out) / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def searched(files, tmp_path_factory):
    """A search that ran without interruption."""
    out = tmp_path_factory.mktemp("searched") / "run"
    result = run(command(files, ["--search"], out, *BUDGET))
    assert result.returncode == 0, result.stderr
    return out, result


def test_search_leaves_what_the_design_says(searched, files, capsys):
    out, result = searched
    lines = history(out)
    assert [line["id"] for line in lines] == list(range(7)) and [line["round"] for line in lines] == [0] * 3 + [1] * 4
    best = json.loads((out / "best.json").read_text())
    first = max(lines, key=lambda line: line["score"])  # --finalists 1: it is trained alone, and scored again
    assert best["arch"] == first["arch"] and best["finalists"] == [{"id": first["id"], "score": best["score"]}]
    assert len(best["by_hand"]) == 3 and len([*(out / "by-hand").glob("*.json")]) == 3
    assert not [*out.glob("round-*")]  # history.jsonl holds what they held
    written = {}
    exec((out / "best.py").read_text(), written)
    assert written["load"](out / "best.pt").encoder.words.weight.shape == (36, 16)
    assert abz.main(command(files, ["--search"], out, *BUDGET)[2:]) == 0
    again = capsys.readouterr().out
    assert "finished" in again and again.endswith(result.stdout[result.stdout.index("best of"):])


@pytest.mark.slow
def test_a_search_in_which_all_diverge_says_so(files, tmp_path):
    result = run(command(files, ["--search"], tmp_path / "run", *BUDGET, "--lr", "1e30"))
    assert result.returncode == 2 and "every candidate diverged" in result.stderr
    assert all(line["diverged"] and line["score"] == 0 for line in history(tmp_path / "run"))


def test_a_diverged_pretraining_ends_before_it_logs_or_saves_what_is_no_number(files, tmp_path, monkeypatch):
    """Steps that save are looked at, not every 20th alone."""
    arguments = command(files, ["--pretrain"], tmp_path, "--arch", "conv3 | conv5", "--lr", "1e30", "--save_every", "2",
                        "--steps", "60")[2:]
    with pytest.raises(cli.UserError, match="diverged.*step [1-6]\\)"):
        abz.main(arguments)
    log = (tmp_path / "log.jsonl").read_text() if (tmp_path / "log.jsonl").exists() else ""
    assert "NaN" not in log and "Infinity" not in log
    if (tmp_path / "checkpoint.pt").exists():
        weights = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["owned"]["model"]
        assert all(value.isfinite().all() for value in weights.values())


def test_a_killed_pretraining_goes_on_to_the_same_weights(files, tmp_path, monkeypatch):
    """Also where no thread makes the batches. The log has the speed from its second line on."""
    more = "--arch", "conv3 | softmax(scale(Q @ K.T)) @ V", "--dropout", "0.1", "--accumulate", "2"
    whole, parts = (command(files, ["--pretrain"], tmp_path / name, *more)[2:] for name in ("whole", "parts"))
    assert abz.main(whole) == 0
    no_sync_until, calls = abz.no_sync_until, itertools.count()

    def dying(*args, **kwargs):
        if next(calls) == 9:  # in the second shard of update 5, after the checkpoint of update 4
            raise KeyError("killed")
        return no_sync_until(*args, **kwargs)
    monkeypatch.setattr(abz, "prefetch", iter)
    monkeypatch.setattr(abz, "no_sync_until", dying)
    with pytest.raises(KeyError):
        abz.main(parts)
    monkeypatch.undo()
    assert abz.main(parts) == 0
    first, second = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["owned"]["model"]
                     for name in ("whole", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    speeds = [line["tokens_per_second"] for line in lines if line["phase"] == "pretrain"]
    assert len(speeds) == 3 and speeds[0] is None and min(speeds[1:]) > 0  # --save_every 2 of 6 updates


def test_heads_do_not_depend_on_what_was_drawn_before(monkeypatch, tmp_path):
    """A candidate killed while it is fine-tuned must resume with the heads that it would have had."""
    heads, cfg = [], abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8)

    class Task:
        name, outputs = "CoLA", 2
    monkeypatch.setattr(abz, "train_task", lambda model, *_: heads.append(model.head.weight.clone()) or {"main": 0.5})
    model, data = abz.LanguageModel((3,), cfg, shared=True), type("Data", (), {"device": torch.device("cpu")})
    for number in range(3):
        torch.rand(7)
        path = tmp_path / f"{min(number, 1)}.scores"
        assert abz.score_tasks(model, (3,), {"CoLA": Task}, data, cfg, path) == {"CoLA": 0.5}
    assert torch.equal(*heads)  # and the third finds its score in the file


@pytest.mark.parametrize("error", [abz.Diverged("gradient norm nan"), torch.OutOfMemoryError("no memory")])
def test_a_candidate_that_fails_scores_0(monkeypatch, tmp_path, error):
    cfg = abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8)
    monkeypatch.setattr(abz, "train_language_model", raising(error))
    data = type("Data", (), {"device": torch.device("cpu")})
    result = abz.evaluate_candidate((3,), 0, abz.SuperNet(cfg), {"CoLA": None}, data, cfg, tmp_path / "0")
    assert result["score"] == 0 and result["diverged"] == type(error).__name__ and (tmp_path / "0.pt").exists()


def test_two_processes_stopped_and_one_that_goes_on_write_the_same_history(searched, files, tmp_path):
    """Two share the candidates until SIGTERM in the second round; the same command on one process ends the search."""
    out = tmp_path / "run"
    process = subprocess.Popen(command(files, ["--search"], out, *BUDGET, processes=2), cwd=ROOT, env=ENVIRONMENT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (out / "round-1" / "3.json").exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.terminate()  # torchrun hands it on to both
    assert "stopped; the same command continues" in process.communicate()[1] and not (out / "done.json").exists()
    assert run(command(files, ["--search"], out, *BUDGET)).returncode == 0
    assert history(out) == history(searched[0])


def test_the_best_finalist_is_returned():
    """The scores that count are those of training alone (D37); one that diverges there does not win."""
    history = [{"id": number, "arch": "", "score": score, "diverged": False} for number, score in enumerate((3, 2, 1))]
    alone = [{"score": score, "diverged": score == 9} for score in (0.1, 0.3, 9)]
    assert abz.choose(history, history, alone) == {**history[1], **alone[1]}
    assert abz.choose(history, history[2:], alone[2:]) == abz.choose(history, [], []) == history[0]


@pytest.mark.slow
def test_strategies_run_and_are_told_apart(files, tmp_path):
    for strategy in ("evolution", "random"):
        assert run(command(files, ["--search"], tmp_path / strategy, "--population", "2", "--rounds", "1", "--parents",
                           "1", "--children", "1", "--strategy", strategy, "--no_weight_sharing")).returncode == 0
    assert all(line["parent"] is None for line in history(tmp_path / "random"))
    assert history(tmp_path / "evolution")[-1]["parent"] is not None


@pytest.mark.slow
def test_pretraining_on_two_processes_has_the_same_weights_and_feeds_fine_tuning(searched, files, tmp_path):
    """From scratch, and from a search's super-net."""
    more = ["--arch", "conv3 | softmax(scale(Q @ K.T)) @ V", "--dropout", "0.1", "--accumulate", "2"]
    for name, processes in (("one", 1), ("two", 2)):
        assert run(command(files, ["--pretrain"], tmp_path / name, *more, processes=processes)).returncode == 0
    first, second = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["owned"]["model"]
                     for name in ("one", "two"))
    assert max((first[name] - second[name]).abs().max().item() for name in first) < 1e-5
    more = "--init", str(tmp_path / "one"), "--runs", "2"
    tuned = run(command(files, ["--finetune", "CoLA"], tmp_path / "tuned", *more))
    assert tuned.returncode == 0, tuned.stderr
    scores = json.loads((tmp_path / "tuned" / "done.json").read_text())
    assert scores["tasks"]["CoLA"]["n"] == 2 and "taken over" in scores["tasks"]["CoLA"]["start"]
    again = run(command(files, ["--finetune", "CoLA"], tmp_path / "again", "--init", str(tmp_path / "tuned" / "CoLA")))
    assert again.returncode == 0 and "made anew: none" in (tmp_path / "again" / "done.json").read_text()
    result = run(command(files, ["--pretrain"], tmp_path / "run", "--init", str(searched[0])))
    assert result.returncode == 0 and "weights taken over; made anew: none" in result.stdout


def test_fine_tuning_continues_inside_a_job(monkeypatch, tmp_path):
    """Told to stop at step 5 of 12, it ends with the weights and the best score that it would have had."""
    cfg, looks = abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8, eval_every=2), []

    class Task:
        name, kind, steps, recipe, splits = "CoLA", "class", 12, Recipe(lr=0.01, batch=2), {"look": None}

        def batches(self, seed, start):
            for number in range(start, 12):
                ids = torch.arange(12).view(2, 6) + number
                yield {"ids": ids, "segments": ids * 0, "lengths": torch.tensor([6, 6]), "labels": torch.tensor([0, 1])}

        def looks(self, every, split):
            return {*range(every, 13, every)}

        def score(self, split, outputs):
            looks.append(split)
            return {"main": -abs(outputs - 0.02)}

    def tune(path, stop_at=None):
        torch.manual_seed(0)
        model, asked = abz.TaskModel((3,), cfg, 2), iter(range(1, 100))
        monkeypatch.setattr(abz, "Pace", lambda *_: lambda: (next(asked) == stop_at, False, False))
        checkpoint = Checkpoint(path, distributed.Ranks(0, 1, torch.device("cpu")))
        return abz.train_task(model, Task(), cfg, torch.device("cpu"), checkpoint), model.state_dict()
    monkeypatch.setattr(abz, "predict", lambda model, *_: model.head.weight[0, 0].item())
    whole = tune(tmp_path / "whole.pt")
    with pytest.raises(distributed.Stop):
        tune(tmp_path / "parts.pt", stop_at=5)
    parts = tune(tmp_path / "parts.pt")
    assert looks == ["look"] * 6 + ["dev"] + ["look"] * 6 + ["dev"] and parts[0] == whole[0]
    assert all(torch.equal(parts[1][name], whole[1][name]) for name in whole[1])


@pytest.mark.slow
def test_fine_tuning_of_mnli_is_where_rte_starts(files, tmp_path):
    """App. D.2; also the averages and the submission files."""
    glue, rows = tmp_path / "glue", [("The cat sees the dog .", f"A dog {'is seen' if index % 2 else 'likes it'} .")
                                     for index in range(24)]
    for task, labels, splits in (("MNLI", ("neutral", "entailment"), ("train", "dev_matched", "dev_mismatched")),
                                 ("RTE", ("entailment", "not_entailment"), ("train", "dev", "test"))):
        (glue / task).mkdir(parents=True)
        middle = [*"abcdefg"] if task == "MNLI" else []
        for split in splits:
            ends = [] if split == "test" else ["gold_label"]
            lines = [["index", *middle, "sentence1", "sentence2", *ends]]
            for index, row in enumerate(rows):
                lines.append([str(index), *middle, *row, *([labels[index % 2]] if ends else [])])
            (glue / task / f"{split}.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    result = run(command(files, ["--finetune", "RTE,MNLI"], tmp_path / "run", "--arch", "conv3 | conv5", "--glue",
                         str(glue), "--runs", "2"))
    assert result.returncode == 0, result.stderr
    scores = json.loads((tmp_path / "run" / "done.json").read_text())
    assert scores["tasks"]["RTE"]["start"].startswith("MNLI-") and "mismatched" in scores["tasks"]["MNLI"]["metrics"]
    assert scores["averages"]["paper_avg"] is not None and (tmp_path / "run" / "RTE" / "RTE.tsv").exists()


@pytest.mark.parametrize("more, words", [
    (["--heads", "3"], "--heads"), (["--vocab_size", "100000"], "pieces"), (["--tasks", "COLA,XYZ"], "xyz"),
    (["--batch", "9", "--accumulate", "2"], "--accumulate"), (["--steps", "0"], "--steps"),
    *[(["--describe", "--arch", arch], arch) for arch in (
        "Q @ K", "conv3", "missing.json", "bert/conv-only", "Q" + " + Q" * 3000)]], ids=range(10))
def test_mistakes_end_in_one_line(files, tmp_path, capsys, monkeypatch, more, words):
    arguments = more if more[0] == "--describe" else command(files, ["--search"], tmp_path / "run", *BUDGET, *more)[2:]
    assert words in mistake(capsys, monkeypatch, arguments)


def test_a_search_is_exported_as_it_ended(searched, tmp_path, capsys, monkeypatch):
    path = tmp_path / "net.py"
    assert abz.main(["--export", str(path), "--init", str(searched[0])]) == 0
    assert path.read_text().replace("net.pt", "best.pt") == (searched[0] / "best.py").read_text()
    ours, theirs = (torch.load(file) for file in (tmp_path / "net.pt", searched[0] / "best.pt"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert "made anew: none" in capsys.readouterr().out
    for name, *more in ((str(path), "--init", str(searched[0])), ("net.txt",), ("net.py",)):
        assert "--export" in mistake(capsys, monkeypatch, ["--export", name, *more])


def run_folder(path, scores=(0.5,), program="autobert_zero", **settings):
    """What a claim, or --init, reads of a search."""
    path.mkdir()
    own = {**vars(abz.Config()), "tasks": "MLM", "layers": 2, **settings}
    (path / "config.json").write_text(json.dumps({"program": program, "action": "search", "settings": own}))
    lines = [{"id": number, "arch": "conv3 | Q + K", "score": score, "diverged": False}
             for number, score in enumerate(scores)]
    (path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "done.json").write_text("{}")
    torch.save({"values": {}, "owned": {"supernet": {}}}, path / "checkpoint.pt")
    return str(path)


def test_run_folders_that_do_not_fit_end_in_one_line(tmp_path, capsys, monkeypatch):
    one, foreign = run_folder(tmp_path / "one"), run_folder(tmp_path / "foreign", program="mformer")
    for words, arguments in (("mformer", ["--describe", "--init", foreign]),
                             ("not finished", ["--describe", "--init", one]),
                             ("is --init too", ["--search", "--init", "runs/autobert_zero-search-demo"])):
        assert words in mistake(capsys, monkeypatch, arguments)
    other, empty = run_folder(tmp_path / "other", tasks="CoLA"), run_folder(tmp_path / "empty", scores=())
    for words, arguments in (("no candidate", [empty]), ("one run", [one, other]),
                             ("leave --tasks out", [one, "--tasks", "CoLA"])):
        with pytest.raises(cli.UserError, match=words):
            claim("fidelity", tmp_path, "--folders", *arguments)


def test_settings_follow_the_weights(tmp_path):
    """What a base model is fine-tuned with is base's, without a word; a flag rules."""
    folder = run_folder(tmp_path / "base", preset="base", length=96, dropout=0.3, layers=3)
    for flags, action, expected in (
            ([], "finetune", dict(preset="base", length=96, dropout=0.3, layers=3, init_std=0.02, finetune_lr=None,
                                  finetune_epochs=None, runs=1)),
            (["--length", "40", "--finetune_lr", "1e-3"], "finetune", dict(length=40, finetune_lr=1e-3, dropout=0.3)),
            (["--preset", "small"], "finetune", dict(preset="small", length=96, runs=3)),
            (["--dry_run"], "pretrain", dict(preset="base", steps=2, save_every=1, warmup=0.01, batch=160))):
        value = ["CoLA"] if action == "finetune" else []
        cfg = cli.parse(abz.Config, abz.PRESETS, abz.ACTIONS, "", [f"--{action}", *value, "--init", folder, *flags])[2]
        (tmp_path / "base" / "best.json").write_text('{"arch": "conv3 | Q + K | conv5"}')
        abz.read_run(cfg, action)
        assert {name: getattr(cfg, name) for name in expected} == expected
        assert cfg.out.startswith(f"runs/autobert_zero-{action}") and cfg.tokenizer == folder


def test_the_grid_has_a_job_for_every_setting_of_the_appendix(files, tmp_path, monkeypatch):
    """And the models of the jobs that were not chosen go."""
    seen, paper = [], functools.partial(study.published, "autobert_zero", "App. D.2")

    def job(task, cfg, arch, source, folder, data):
        seen.append((cfg.finetune_lr, cfg.weight_decay, cfg.eval_every))
        folder.mkdir()
        (folder / "checkpoint.pt").touch()
        return {"job": folder.name, "task": task.name, "setting": seen[-1], "start": "", "diverged": None,
                "metrics": {"matthews": 0.1, "main": len(seen) / 100}}
    monkeypatch.setattr(abz, "finetune_job", job)
    arguments = command(files, ["--finetune", "CoLA"], tmp_path, "--arch", "conv3 | conv5", "--grid", "--runs", "1")[2:]
    assert abz.main(arguments) == 0 and len(seen) == 24
    names = "learning rates of the grid", "weight decays of the grid", "evaluation intervals of the grid"
    assert set(seen) == set(itertools.product(*map(paper, names)))
    best = json.loads((tmp_path / "done.json").read_text())["tasks"]["CoLA"]
    assert tuple(best["setting"]) == seen[-1] and len(list((tmp_path / "jobs").glob("*.json"))) == 24
    assert [path.parent.name for path in tmp_path.glob("jobs/*/checkpoint.pt")] == [best["job"]]


def test_recipes_are_the_papers():
    known, paper = abz.recipes(abz.Config()), functools.partial(study.published, "autobert_zero")
    names = "epochs of fine-tuning", "learning rate of fine-tuning", "warm-up of fine-tuning"
    assert [known["RTE"].epochs, known["RTE"].lr, known["RTE"].warmup] == [paper("App. D.1", name) for name in names]
    for task, name in (("SQuAD1.1", "SQuAD v1.1"), ("SQuAD2.0", "SQuAD v2.0")):
        assert known[task].epochs == paper("App. D.2", f"{name}, epochs")
        assert known[task].batch == paper("App. D.2", f"{name}, batch")
    assert parse_tasks("squad1.1 glue", known, abz.GROUPS) == [
        "SQuAD1.1", "MNLI", "CoLA", "MRPC", "STS-B", "SST-2", "QQP", "QNLI", "RTE"]


def test_describe_is_one_json_object(capsys, monkeypatch):
    monkeypatch.setattr(abz, "forecast", lambda *others: {"memory": {}})  # tested beside common/describe.py
    assert abz.main(["--describe", "--preset", "base"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 103_800_218


def test_a_diverged_fine_tuning_scores_0_and_is_counted(tmp_path, capsys, monkeypatch):
    cfg, results = abz.Config(vocab_size=9, layers=1, hidden=8, heads=2, ffn=8, finetune_lr=0.1), []
    alone = distributed.Ranks(0, 1, torch.device("cpu"))
    data = type("Data", (), {"device": alone.device, "tokenizer": None})

    class Task:
        name, kind, outputs, metrics, splits = "MRPC", "class", 2, ("f1", "accuracy", "main"), {"train": []}
        yardstick = staticmethod(dict)
    (tmp_path / "jobs").mkdir()
    for number, outcome in enumerate((abz.Diverged("gradient norm nan"), None, None)):
        monkeypatch.setattr(abz, "train_task", raising(outcome) if outcome else lambda *_: {
            "f1": 0.6, "accuracy": 0.8, "main": 0.6})
        folder = tmp_path / "jobs" / f"MRPC-{number}"
        results.append(abz.finetune_job(Task, cfg, (3,), None, folder, data))
    result = summarise(tmp_path, results)
    assert result["tasks"]["MRPC"]["diverged"] == 1 and result["averages"]["paper_avg"] == 0.6
    show(result, alone)
    assert "1 diverged" in capsys.readouterr().out and (tmp_path / "MRPC" / "checkpoint.pt").exists()


def raising(error):
    def function(*arguments, **named):
        raise error
    return function


def test_held_out_examples_do_not_depend_on_the_number_of_processes(monkeypatch):
    seen, device = [], torch.device("cpu")

    def losses(model, batch, cfg, device):
        return [torch.zeros(())] * 2, [(torch.zeros(2, 2), torch.zeros(2))] * 2
    monkeypatch.setattr(abz, "language_losses", losses)
    monkeypatch.setattr(abz, "language_batch", lambda data, corpus, cfg, position, rows: seen.append(position))
    monkeypatch.setattr(abz, "reduce_mean", lambda ranks, *values: [1.0] * len(values))
    data = type("Data", (), {"dev": None, "device": device})
    for size in (1, 32):
        for rank in range(size):
            ranks = distributed.Ranks(rank, size, device)
            abz.evaluate_language_model(torch.nn.Identity(), data, abz.Config(batch=2), ranks)
    assert sorted(seen) == sorted(2 * [2 * number for number in range(16)])


def claim(name, results, *arguments):
    assert study.main("autobert_zero", claims.CLAIMS, [name, "--results", str(results), "--runs", str(results / "runs"),
                                                       *map(str, arguments)]) == 0
    return json.loads((results / f"{name}.json").read_text())


@pytest.mark.parametrize("name, more, rows", [
    ("uniformity", ["--samples", "8", "--tasks", "CoLA"], 3),
    pytest.param("fidelity", ["--samples", "2", "--epochs", "1", "--batch", "32"], 2, marks=pytest.mark.slow)])
def test_claims_of_a_search(searched, files, tmp_path, name, more, rows):
    more = more + ["--corpus", files / "corpus", "--glue", files / "glue"]
    found = claim(name, tmp_path, "--folders", searched[0], *more)
    assert len(found["rows"]) >= rows
    if name == "fidelity":  # one epoch of 38 documents, not the preset's 3,000 updates
        assert set(found["kendall"]) == {"mean", "CoLA"} and found["batch"] == 32 and 2 < found["steps"] < 100


@pytest.mark.slow
def test_claim_of_table_5(tmp_path):
    found = claim("hybrid", tmp_path, "--updates", "2", "--seeds", "1", "--train_rows", "32", "--finetune_epochs", "1")
    assert [row[0] for row in found["rows"]] == list(claims.ARMS) and len(found["differences"]) == 8


def test_table_5_is_judged_in_pairs_of_seeds(tmp_path, monkeypatch):
    """Of made-up scores: a hybrid that is ahead in the mean, and swings from seed to seed, holds nothing."""
    def made_up(options, seed, arms, steps, tasks):
        return {arm: {**dict.fromkeys(("loss", "MLM", *tasks), 0.5), "mean": (arm != "convolution only") + seed * (
            arm == "hybrid") * (-1) ** seed} for arm in arms}
    monkeypatch.setattr(claims, "pretrain_and_tune", made_up)
    found = claim("hybrid_real", tmp_path)
    assert [row[0] for row in found["rows"]] == list(claims.ARMS)[:-1] and len(found["differences"]) == 6
    assert found["columns"][3:] == ["CoLA", "MRPC", "SST-2", "mean of three"]
    assert found["verdict"].startswith("does not hold at this size: hybrid - convolution only +1.333 [-2.462, +5.128]")
    assert found["differences"]["published layers - convolution only"] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["op_nas", "op_nas_demo"])
def test_claim_of_the_search(tmp_path, name):
    """OP-NAS and random search share their initial candidates; the search sees none of the dev rows that judge it."""
    found = claim(name, tmp_path, "--updates", "2", "--seeds", "1", "--train_rows", "32", "--finetune_epochs", "1",
                  "--steps", "2", "--length", "16", "--population", "2", "--rounds", "1", "--parents", "1")
    assert len(found["rows"]) == 6 and set(found["differences"]) == {f"OP-NAS - {row[0]}" for row in found["rows"][1:]}
    scores, = found["search_scores"]
    assert scores["OP-NAS"][:2] == scores["random search"][:2] and len(scores["OP-NAS"]) == 3
    rows = {split: set((ROOT / "data/demo/glue/RTE" / f"{split}.tsv").read_text().splitlines()[1:])
            for split in ("train", "dev")}
    cut = tmp_path / "runs" / "glue" / "RTE"
    seen = {line for split in rows for line in (cut / f"{split}.tsv").read_text().splitlines()[1:]}
    assert seen == rows["train"] and not seen & rows["dev"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "attention_demo"])
def test_claim_of_the_demo_s_winner(tmp_path, name):
    """It and itself of convolutions alone; a winner of convolutions alone has no attention to ask about."""
    folder, tiny = tmp_path / "search", "--updates 2 --seeds 1 --train_rows 32 --finetune_epochs 1".split()
    folder.mkdir()
    first, second = "conv3 | Q @ K.T @ V | conv5 | conv3", "conv3 | conv5 | conv5 | conv3"
    (folder / "history.jsonl").write_text("".join(json.dumps({"arch": arch, "score": score}) + "\n"
                                                  for arch, score in ((first, 0.4), (second, 0.3))))
    (folder / "best.json").write_text(json.dumps({"arch": first}))
    found = claim(name, tmp_path, "--folders", folder, *tiny)
    assert [row[1] for row in found["rows"]] == [0.4, 0.3] and "not judged" in found["verdict"]
    assert list(found["networks"].values()) == [first, f"{first}/conv-only"]
    (folder / "best.json").write_text(json.dumps({"arch": second}))
    with pytest.raises(UserError, match="convolutions alone"):
        claim(name, tmp_path, "--folders", folder, *tiny)


def test_claims_without_a_run(tmp_path):
    assert claim("counts", tmp_path)["rows"][1][1] == "103,800,218"
    rows = claim("latency", tmp_path, "--sequences", "2", "--device", "cpu")["rows"]
    assert [row[0] for row in rows] == ["this", "bert"]


def test_uniformity_of_known_states():
    alike, apart = torch.ones(1, 4, 3), torch.eye(4)[None]
    apart_then_padding = torch.cat([apart, torch.full((1, 2, 4), 9.0)], 1)
    residual, cosine = claims.uniformity_of([alike], torch.tensor([4]))
    assert residual[0] == pytest.approx(0, abs=1e-6) and cosine[0] == pytest.approx(1)
    residual, cosine = claims.uniformity_of([apart_then_padding], torch.tensor([4]))
    assert residual[0] == pytest.approx(0.75 ** 0.5) and cosine[0] == pytest.approx(0, abs=1e-6)
