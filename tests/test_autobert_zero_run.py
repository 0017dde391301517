"""autobert_zero.py as a program: every action, killed and resumed, on one and two processes, with broken input."""
import functools
import itertools
import json
import os
import random
import shutil
import signal
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
from tests.claims import autobert_zero as claims, variants
from tests.claims import study

SIZES = ["--layers", "2", "--hidden", "16", "--heads", "2", "--ffn", "32", "--vocab_size", "36", "--length", "16",
         "--batch", "8", "--steps", "6", "--finetune_batch", "8", "--finetune_epochs", "1", "--save_every", "2"]
BUDGET = ["--population", "3", "--rounds", "1", "--parents", "2"]
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


def started(arguments):
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env=ENVIRONMENT)


def wait_for(path, process):
    while not path.exists():
        time.sleep(0.02)
        assert process.poll() is None


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


def test_search_leaves_what_the_design_says(searched, files):
    out, result = searched
    lines = history(out)
    assert [line["id"] for line in lines] == list(range(7)) and [line["round"] for line in lines] == [0] * 3 + [1] * 4
    best = json.loads((out / "best.json").read_text())
    assert best["score"] == max(line["score"] for line in lines) and best["arch"] == lines[best["id"]]["arch"]
    assert (out / "best.mmd").read_text().startswith("flowchart")
    written = {}
    exec((out / "best.py").read_text(), written)
    assert written["load"](out / "best.pt").encoder.words.weight.shape == (36, 16)
    settings = json.loads((out / "config.json").read_text())
    assert settings["settings"]["steps"] == 6 and settings["environment"]["threads"] == 1
    assert "best of 7 candidates" in result.stdout and "round 2/2, best" in result.stderr
    again = run(command(files, ["--search"], out, *BUDGET))
    assert again.returncode == 0 and "finished" in again.stdout and again.stdout.endswith(
        result.stdout[result.stdout.index("best of"):])


def test_other_settings_are_refused_by_name(searched, files):
    result = run(command(files, ["--search"], searched[0], *BUDGET, "--lr", "0.5"))
    assert result.returncode == 2 and "lr (" in result.stderr and result.stderr.count("\n") == 1


def test_killed_in_a_round_the_search_continues_to_the_same_history(searched, files, tmp_path):
    process = started(command(files, ["--search"], tmp_path / "run", *BUDGET))
    wait_for(tmp_path / "run" / "round-1" / "3.json", process)
    process.kill()
    process.communicate()
    assert not (tmp_path / "run" / "done.json").exists()
    assert run(command(files, ["--search"], tmp_path / "run", *BUDGET)).returncode == 0
    assert history(tmp_path / "run") == history(searched[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_killed_anywhere_the_search_continues_to_the_same_history(searched, files, tmp_path, kind):
    """Killed after ever longer times, each time somewhere else, until it is through."""
    out, delay, kills = tmp_path / "run", 2.2, 0
    while True:
        process = started(command(files, ["--search"], out, *BUDGET))
        try:
            process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            process.send_signal(kind)
            process.communicate()
            kills, delay = kills + 1, delay * 1.15  # on a slow machine too it gets through in the end
            assert kills < 40
            continue
        assert process.returncode == 0
        if (out / "best.json").exists():
            break
    assert kills > 0
    assert history(out) == history(searched[0])


@pytest.mark.slow
def test_a_torn_checkpoint_and_a_lost_line_do_no_harm(searched, files, tmp_path):
    """The newest checkpoint is empty: the one before it is taken. history.jsonl lost its end: it is written again."""
    out = tmp_path / "run"
    shutil.copytree(searched[0], out)
    (out / "done.json").unlink()
    (out / "checkpoint.pt").write_bytes(b"")
    (out / "history.jsonl").write_text("")
    result = run(command(files, ["--search"], out, *BUDGET))
    assert result.returncode == 0 and "checkpoint before it" in result.stderr, result.stderr
    assert history(out) == history(searched[0])


def test_restart_deletes_runs_of_its_own_kind_only(files, tmp_path):
    foreign = tmp_path / "model"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "bert"}')
    (foreign / "model.safetensors").write_text("weights")
    result = run(command(files, ["--search"], foreign, *BUDGET, "--restart"))
    assert result.returncode == 2 and (foreign / "model.safetensors").exists() and "Traceback" not in result.stderr


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


def test_a_log_has_its_speed_from_the_second_line_on(files, tmp_path):
    assert abz.main(command(files, ["--pretrain"], tmp_path, "--arch", "conv3 | conv5")[2:]) == 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    speeds = [line["tokens_per_second"] for line in lines if line["phase"] == "pretrain"]
    assert len(speeds) == 3 and speeds[0] is None and min(speeds[1:]) > 0  # --save_every 2 of 6 updates


class Killed(Exception):
    pass


def test_batches_made_ahead_change_nothing(files, tmp_path, monkeypatch, capsys):
    """The same weights after a kill, and where no thread makes the batches; --describe reads how many pieces it has."""
    more = "--arch", "conv3 | softmax(scale(Q @ K.T)) @ V", "--dropout", "0.1", "--accumulate", "2"
    whole, parts = (command(files, ["--pretrain"], tmp_path / name, *more)[2:] for name in ("whole", "parts"))
    assert abz.main(whole) == 0
    no_sync_until, calls = abz.no_sync_until, itertools.count()

    def dying(*args, **kwargs):
        if next(calls) == 9:  # in the second shard of update 5, after the checkpoint of update 4
            raise Killed
        return no_sync_until(*args, **kwargs)
    monkeypatch.setattr(abz, "prefetch", iter)
    monkeypatch.setattr(abz, "no_sync_until", dying)
    with pytest.raises(Killed):
        abz.main(parts)
    monkeypatch.undo()
    assert abz.main(parts) == 0
    first, second = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["owned"]["model"]
                     for name in ("whole", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    capsys.readouterr()
    for action in (["--describe"], ["--export", str(tmp_path / "net.py")]):
        assert "--vocab_size 37: " in mistake(capsys, monkeypatch, [
            *action, "--init", str(tmp_path / "whole"), "--vocab_size", "37"]) and not (tmp_path / "net.py").exists()


def test_the_best_so_far_moves_within_a_round(files, tmp_path, monkeypatch):
    """The bar is told a better score after the candidate that has it, not after the round."""
    shown, share_out = [], abz.share_out

    def spied(ranks, names, folder, label, work):
        return share_out(ranks, names, folder, lambda: shown.append(label()) or shown[-1], work)
    scores = iter((0.1, 0.3, 0.2, 0.4, 0.1, 0.1, 0.1))
    monkeypatch.setattr(abz, "share_out", spied)
    monkeypatch.setattr(abz, "evaluate_candidate", lambda arch, number, supernet, tasks, data, cfg, path: (
        torch.save({}, path.with_suffix(".pt")) or {"score": next(scores), "scores": {}, "diverged": False}))
    assert abz.main(command(files, ["--search"], tmp_path, *BUDGET)[2:]) == 0
    assert [text.split("best ")[1] for text in shown] == [
        "0.0000", "0.1000", "0.3000", "0.3000", "0.3000", "0.4000", "0.4000", "0.4000", "0.4000"]


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
def test_a_candidate_that_fails_is_the_worst_and_the_search_goes_on(monkeypatch, tmp_path, error):
    cfg = abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8)
    monkeypatch.setattr(abz, "train_language_model", raising(error))
    data = type("Data", (), {"device": torch.device("cpu")})
    result = abz.evaluate_candidate((3,), 0, abz.SuperNet(cfg), {"CoLA": None}, data, cfg, tmp_path / "0")
    assert result["score"] == 0 and result["diverged"] == type(error).__name__ and (tmp_path / "0.pt").exists()


def test_the_models_of_jobs_that_were_not_chosen_go(tmp_path):
    for job in ("CoLA-0", "CoLA-1"):
        (tmp_path / job).mkdir()
        (tmp_path / job / "checkpoint.pt").touch()
    abz.keep_chosen(tmp_path, {"tasks": {"CoLA": {"job": "CoLA-1"}}})
    assert [path.parent.name for path in tmp_path.glob("*/checkpoint.pt")] == ["CoLA-1"]


def test_two_processes_write_the_same_history(searched, files, tmp_path):
    result = run(command(files, ["--search"], tmp_path / "run", *BUDGET, processes=2))
    assert result.returncode == 0, result.stderr
    assert history(tmp_path / "run") == history(searched[0])


@pytest.mark.slow
def test_strategies_run_and_are_told_apart(files, tmp_path):
    for strategy in ("evolution", "random"):
        assert run(command(files, ["--search"], tmp_path / strategy, "--population", "2", "--rounds", "1", "--parents",
                           "1", "--strategy", strategy, "--no_weight_sharing")).returncode == 0
    assert all(line["parent"] is None for line in history(tmp_path / "random"))
    assert history(tmp_path / "evolution")[-1]["parent"] is not None


@pytest.mark.slow
def test_pretraining_resumes_to_the_same_weights_and_feeds_fine_tuning(files, tmp_path):
    whole, parts, two = tmp_path / "whole", tmp_path / "parts", tmp_path / "two"
    more = ["--arch", "conv3 | softmax(scale(Q @ K.T)) @ V", "--dropout", "0.1", "--steps", "100", "--accumulate", "2"]
    assert run(command(files, ["--pretrain"], whole, *more)).returncode == 0
    process = started(command(files, ["--pretrain"], parts, *more))
    wait_for(parts / "checkpoint.pt", process)
    process.kill()
    process.communicate()
    assert run(command(files, ["--pretrain"], parts, *more)).returncode == 0
    process = started(command(files, ["--pretrain"], two, *more, processes=2))
    wait_for(two / "checkpoint.pt", process)
    process.terminate()  # torchrun hands it on to both
    assert "stopped; the same command continues" in process.communicate()[1] and not (two / "done.json").exists()
    assert run(command(files, ["--pretrain"], two, *more, processes=2)).returncode == 0
    first, second, third = (torch.load(folder / "checkpoint.pt", weights_only=True)["owned"]["model"]
                            for folder in (whole, parts, two))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert max((first[name] - third[name]).abs().max().item() for name in first) < 1e-5  # two shards on one or two
    steps = [json.loads(line)["step"] for line in (whole / "log.jsonl").read_text().splitlines() if "mlm" in line]
    assert steps == list(range(2, 101, 2))
    tuned = run(command(files, ["--finetune", "CoLA"], tmp_path / "tuned", "--init", str(whole), "--runs", "2"))
    assert tuned.returncode == 0, tuned.stderr
    scores = json.loads((tmp_path / "tuned" / "done.json").read_text())
    assert scores["tasks"]["CoLA"]["n"] == 2 and "taken over" in scores["tasks"]["CoLA"]["start"]
    again = run(command(files, ["--finetune", "CoLA"], tmp_path / "again", "--init", str(tmp_path / "tuned" / "CoLA")))
    assert again.returncode == 0 and "made anew: none" in (tmp_path / "again" / "done.json").read_text()


def test_fine_tuning_continues_inside_a_job(monkeypatch, tmp_path):
    """Told to stop at step 5 of 12, it ends with the weights and the best score that it would have had."""
    cfg, looks = abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8, eval_every=2), []

    class Task:
        name, kind, steps, recipe, splits = "CoLA", "class", 12, Recipe(lr=0.01, batch=2), {"look": None}

        def batches(self, seed, start):
            for number in range(start, 12):
                ids = torch.arange(12).view(2, 6) + number
                yield {"ids": ids, "segments": ids * 0, "lengths": torch.tensor([6, 6]), "labels": torch.tensor([0, 1])}

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


@pytest.mark.slow
def test_pretraining_starts_from_a_search(searched, files, tmp_path):
    result = run(command(files, ["--pretrain"], tmp_path / "run", "--init", str(searched[0])))
    assert result.returncode == 0, result.stderr
    assert "weights taken over; made anew: none" in result.stdout


@pytest.mark.parametrize("more, words", [
    (["--corpus", "nowhere"], "nowhere"), (["--glue", "nowhere"], "CoLA"), (["--heads", "3"], "--heads"),
    (["--strategy", "best"], "--strategy"), (["--vocab_size", "100000"], "pieces"), (["--preset", "giant"], "--preset"),
    (["--stepz", "3"], "--stepz"), (["--device", "cuda:9"], "cuda"), (["--lr", "-1"], "--lr"),
    (["--alpha", "1e308"], "--alpha"), (["--rounds", "-1"], "--rounds"), (["--tasks", "COLA,XYZ"], "xyz"),
    (["--length", "4"], "--length"), (["--batch", "9", "--accumulate", "2"], "--accumulate"),
    (["--warmup", "2"], "--warmup"), (["--seed", "9" * 20], "--seed"), (["--steps", "0"], "--steps"),
    (["--init", "runs/nowhere"], "config.json")])
def test_mistakes_end_in_one_line(files, tmp_path, capsys, monkeypatch, more, words):
    assert words in mistake(capsys, monkeypatch, command(files, ["--search"], tmp_path / "run", *BUDGET, *more)[2:])


@pytest.mark.parametrize("arch", ["Q @ K", "conv4", "nonsense", "conv3", "missing.json", "bert/conv-only",
                                  "autobert-zero-att",  # Table 2's, whose graph no text gives
                                  pytest.param("Q" + " + Q" * 3000, id="long")])
def test_illegal_architectures_end_in_one_line(capsys, monkeypatch, arch):
    assert arch in mistake(capsys, monkeypatch, ["--describe", "--arch", arch])


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
    for words, arguments in (("other tasks", ["search", "--folders", one, other]),
                             ("no candidate", ["search", "--folders", empty]),
                             ("one run", ["operations", "--folders", one, other]), ("--folders", ["uniformity"]),
                             ("leave --tasks out", ["fidelity", "--folders", one, "--tasks", "CoLA"])):
        with pytest.raises(cli.UserError, match=words):
            study.main("autobert_zero", claims.CLAIMS, [*arguments, "--results", str(tmp_path / "results")])


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


def test_the_grid_has_a_job_for_every_setting(files, tmp_path, monkeypatch):
    seen = []

    def job(task, cfg, arch, source, folder, data):
        seen.append((cfg.finetune_lr, cfg.weight_decay, cfg.eval_every))
        return {"job": folder.name, "task": task.name, "setting": seen[-1], "start": "", "diverged": None,
                "metrics": {"matthews": 0.1, "main": len(seen) / 100}}
    monkeypatch.setattr(abz, "finetune_job", job)
    arguments = command(files, ["--finetune", "CoLA"], tmp_path, "--arch", "conv3 | conv5", "--grid",
                        "--runs", "1")[2:]
    assert abz.main(arguments) == 0 and len(seen) == 24 and set(seen) == set(abz.GRID)
    best = json.loads((tmp_path / "done.json").read_text())["tasks"]["CoLA"]
    assert tuple(best["setting"]) == seen[-1] and len(list((tmp_path / "jobs").glob("*.json"))) == 24


def test_a_full_device_is_one_line(tmp_path, capsys, monkeypatch):
    def search(cfg):
        raise torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setitem(abz.ACTIONS, "search", (search, ""))
    assert "--recompute" in mistake(capsys, monkeypatch, ["--search", "--out", str(tmp_path)])


def test_the_files_of_a_round_go_when_the_history_holds_it(tmp_path):
    for number in range(2):
        (tmp_path / f"round-{number}").mkdir()
        (tmp_path / f"round-{number}" / "0.pt").touch()
    abz.record_round(type("Run", (), {"folder": tmp_path}), 0, [{"id": 0}])
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-1"]
    assert (tmp_path / "history.jsonl").read_text() == '{"id": 0}\n'


def test_a_diverged_fine_tuning_scores_0_and_is_counted(tmp_path, capsys, monkeypatch):
    cfg, results = abz.Config(vocab_size=9, layers=1, hidden=8, heads=2, ffn=8, finetune_lr=0.1), []
    alone = distributed.Ranks(0, 1, torch.device("cpu"))
    data = type("Data", (), {"device": alone.device, "tokenizer": None})

    class Task:
        name, kind, outputs, metrics, splits = "MRPC", "class", 2, ("f1", "accuracy", "main"), {"train": []}
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


def test_a_prediction_that_is_no_number_is_a_diverged_fine_tuning():
    """Not a mistake of the user's, which would end the program in the midst of its jobs, each time anew."""
    task = type("Task", (), {"name": "CoLA", "collect": lambda *_: torch.tensor([[0.0, float("nan")]])})()
    with pytest.raises(abz.Diverged, match="test of CoLA"):
        abz.predict(torch.nn.Identity(), task, "test", abz.Config(), torch.device("cpu"))


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


@pytest.mark.parametrize("more, total, attention, flops, published", [
    ((), 103_800_218, 15_355_392, 2.055e10, (("Table 2", "AutoBERT-Zero, parameters"),
                                             ("Table 3", "AutoBERT-Zero, parameters of attention"))),
    (("--arch", "bert"), 109_705_010, 21_261_312, 2.235e10, (("Table 2", "BERT-base, parameters"),
                                                             ("Table 3", "BERT-base, parameters of attention"))),
    (("--arch", "autobert-zero/att-only"), 104_980_274, 16_536_576, None, (
        None, ("Table 5", "Att-only, parameters of attention"))),
    (("--arch", "autobert-zero/conv-only"), 102_620_162, 14_174_208, None, (None, None)),  # the paper: 15.4M
    (("--arch", "bert", "--preset", "large"), 335_691_058, None, None, (None, None)),
    (("--preset", "small", "--embedding", "128"), 12_888_106, None, None, (
        ("Table 4", "AutoBERT-Zero-small, parameters"), None))])
def test_describe_is_one_json_object(capsys, monkeypatch, more, total, attention, flops, published):
    """The counts of Tables 2 to 5, ours to the unit and rounded as the paper prints them."""
    monkeypatch.setattr(abz, "forecast", lambda *others: {"memory": {}})  # test_rehearsal.py has it
    assert abz.main(["--describe", "--preset", "base", *more]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parameters"] == sum(report["parts"].values()) == total
    assert attention in (None, report["attention_parameters"])
    for ours, digits, place in zip((total, attention), (0, 1), published):
        assert place is None or round(ours / 1e6, digits) == study.published("autobert_zero", *place)
    if flops:
        assert report["flops"] == pytest.approx(flops, rel=1e-3)
        assert report["flops_with_vocabulary_head"] == pytest.approx(flops + 6e9, rel=0.01)


def test_without_an_action_the_help_is_printed():
    result = run([sys.executable, "autobert_zero.py"])
    assert result.returncode == 0 and "--search" in result.stdout


def claim(name, results, *arguments):
    assert study.main("autobert_zero", claims.CLAIMS, [name, "--results", str(results), "--runs", str(results / "runs"),
                                                       *map(str, arguments)]) == 0
    return json.loads((results / f"{name}.json").read_text())


@pytest.mark.parametrize("name, more, rows", [
    ("search", [], 1), ("operations", [], 2), ("diagram", [], 2),
    ("uniformity", ["--samples", "8", "--tasks", "CoLA"], 3),
    pytest.param("fidelity", ["--samples", "2", "--epochs", "1", "--batch", "32"], 2, marks=pytest.mark.slow)])
def test_claims_of_a_search(searched, files, tmp_path, name, more, rows):
    more = more + ["--corpus", files / "corpus", "--glue", files / "glue"] if more else []
    found = claim(name, tmp_path, "--folders", searched[0], *more)
    assert len(found["rows"]) >= rows
    assert name != "diagram" or "```mermaid\nflowchart" in found["text"] and found["rows"][0][1] in found["text"]
    if name == "fidelity":  # one epoch of 38 documents, not the preset's 3,000 updates
        assert set(found["kendall"]) == {"mean", "CoLA"} and found["batch"] == 32 and 2 < found["steps"] < 100


@pytest.mark.slow
def test_claim_of_table_5(tmp_path):
    found = claim("hybrid", tmp_path, "--updates", "2", "--seeds", "1", "--train_rows", "32", "--finetune_epochs", "1")
    assert [row[0] for row in found["rows"]] == list(claims.ARMS) and len(found["differences"]) == 8


@pytest.mark.slow
def test_claim_of_table_5_on_other_tasks(tmp_path):
    """The demo's files in place of the real ones; one arm and one task less."""
    for name in ("CoLA", "MRPC"):
        shutil.copytree(ROOT / "data/demo/glue" / name, tmp_path / "glue" / name)
    (tmp_path / "glue" / "SST-2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "glue" / "SST-2" / f"{split}.tsv").write_text(
            "sentence\tlabel\n" + "".join(f"{word} film\t{label}\n" for label, word in enumerate(("bad", "good")) for _ in range(8)))
    found = claim("hybrid_real", tmp_path, "--updates", "2", "--seeds", "1", "--train_rows", "32", "--finetune_epochs", "1",
                  "--glue", tmp_path / "glue", "--vocab_size", "300")
    assert [row[0] for row in found["rows"]] == list(claims.ARMS)[:-1] and len(found["differences"]) == 6
    assert found["columns"][3:] == ["CoLA", "MRPC", "SST-2", "mean of three"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["op_nas", "op_nas_demo"])
def test_claim_of_the_search(tmp_path, name):
    """OP-NAS and random search share their initial candidates; the search sees none of the dev rows that judge it."""
    found = claim(name, tmp_path, "--updates", "2", "--seeds", "1", "--train_rows", "32", "--finetune_epochs", "1",
                  "--steps", "2", "--length", "16", "--population", "2", "--rounds", "1", "--parents", "1")
    assert len(found["rows"]) == 6 and set(found["differences"]) == {row[0] for row in found["rows"][1:]}
    scores, = found["search_scores"]
    assert scores["OP-NAS"][:2] == scores["random search"][:2] and len(scores["OP-NAS"]) == 3
    rows = {split: set((ROOT / "data/demo/glue/RTE" / f"{split}.tsv").read_text().splitlines()[1:])
            for split in ("train", "dev")}
    cut = tmp_path / "runs" / "glue" / "RTE"
    seen = {line for split in rows for line in (cut / f"{split}.tsv").read_text().splitlines()[1:]}
    assert seen == rows["train"] and not seen & rows["dev"]


@pytest.mark.slow
@pytest.mark.parametrize("rival", list(claims.SEARCHES)[2:])
def test_a_changed_search_stands_beside_op_nas(tmp_path, rival):
    study.main("autobert_zero", claims.CLAIMS, [
        "op_nas", "--results", str(tmp_path), "--runs", str(tmp_path / "runs"), "--against", rival, *(
            "--updates 2 --seeds 1 --train_rows 32 --finetune_epochs 1 --steps 2 --length 16 --population 2 --rounds 1 "
            "--parents 1").split()])
    found = json.loads((tmp_path / f"op_nas-{rival}.json").read_text())
    assert [row[0] for row in found["rows"]][:2] == ["OP-NAS", claims.SEARCHES[rival][0]]
    settings = json.loads((tmp_path / "runs" / f"search-{rival}-0" / "config.json").read_text())["settings"]
    assert (settings["strategy"], settings["ucb_unit"], settings["no_weight_sharing"]) == (
        "evolution" if rival == "evolution" else "op-nas", 1 if rival == "eq-3" else 100, rival == "no-sharing")


def test_parts_of_a_search_that_no_flag_changes(monkeypatch):
    """Means of what several candidates wrote, and nothing where none did; edits without rewiring; a wrong name."""
    cfg = abz.Config(layers=1, hidden=8, heads=2, ffn=8, vocab_size=20)
    supernet, arch = abz.SuperNet(cfg), (3,)
    before = {name: value.clone() for name, value in supernet.weights.items()}
    state = abz.LanguageModel(arch, cfg, shared=True).state_dict()
    variants.write_mean(supernet, [(arch, {name: value + 1 for name, value in state.items()}), (arch, state)])
    there, part = abz.slot("bias", state["bias"], arch)
    assert torch.allclose(supernet.weights[there][part], state["bias"] + 0.5)
    untouched = "encoder.layers.0.conv.transform.5"
    assert torch.equal(supernet.weights[untouched], before[untouched])
    for name in ("EDITS", "main"):
        monkeypatch.setattr(abz, name, getattr(abz, name))
    monkeypatch.setattr(abz.SuperNet, "write_back", abz.SuperNet.write_back)
    abz.main = lambda argv: (argv, abz.EDITS, abz.SuperNet.write_back)
    assert variants.main(["no-rewiring", "--search"])[:2] == (["--search"], (abz.replace, abz.insert, abz.delete))
    assert variants.main(["averaging", "--search"])[2] is variants.write_mean
    with pytest.raises(UserError, match="there are averaging and no-rewiring"):
        variants.main([])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "attention_demo"])
def test_claim_of_the_demo_s_winner(tmp_path, name):
    """It and itself of convolutions alone; a winner of convolutions alone has no attention to ask about."""
    folder, tiny = tmp_path / "search", ["--updates", "2", "--seeds", "1", "--train_rows", "32", "--finetune_epochs", "1"]
    folder.mkdir()
    scores = {"conv3 | Q @ K.T @ V | conv5 | conv3": 0.4, "conv3 | conv5 | conv5 | conv3": 0.3, "conv7 | Q + K | Q + K | Q + K": 0.2}
    (folder / "history.jsonl").write_text("".join(json.dumps({"arch": arch, "score": score}) + "\n"
                                                  for arch, score in scores.items()))
    (folder / "best.json").write_text(json.dumps({"arch": next(iter(scores))}))
    found = claim(name, tmp_path, "--folders", folder, *tiny)
    assert [row[1] for row in found["rows"]] == [0.4, 0.3] and "not judged" in found["verdict"]
    assert list(found["networks"].values()) == ["conv3 | Q @ K.T @ V | conv5 | conv3", "conv3 | Q @ K.T @ V | conv5 | conv3/conv-only"]
    (folder / "best.json").write_text(json.dumps({"arch": "conv3 | conv5 | conv5 | conv3"}))
    with pytest.raises(UserError, match="convolutions alone"):
        claim(name, tmp_path, "--folders", folder, *tiny)


def test_claims_without_a_run(tmp_path):
    assert claim("counts", tmp_path)["rows"][1][1] == "103,800,218"
    rows = claim("latency", tmp_path, "--sequences", "2", "--device", "cpu")["rows"]
    assert [row[0] for row in rows] == ["this", "bert"]


def test_the_page_is_made_of_the_results():
    assert (ROOT / "tests" / "claims" / "autobert_zero.md").read_text() == study.page("autobert_zero")


def test_uniformity_of_known_states():
    alike, apart = torch.ones(1, 4, 3), torch.eye(4)[None]
    apart_then_padding = torch.cat([apart, torch.full((1, 2, 4), 9.0)], 1)
    residual, cosine = claims.uniformity_of([alike], torch.tensor([4]))
    assert residual[0] == pytest.approx(0, abs=1e-6) and cosine[0] == pytest.approx(1)
    residual, cosine = claims.uniformity_of([apart_then_padding], torch.tensor([4]))
    assert residual[0] == pytest.approx(0.75 ** 0.5) and cosine[0] == pytest.approx(0, abs=1e-6)


def test_glue_is_the_papers_eight_tasks():
    known = abz.recipes(abz.Config())
    assert parse_tasks("squad1.1 glue", known, abz.GROUPS) == [
        "SQuAD1.1", "MNLI", "CoLA", "MRPC", "STS-B", "SST-2", "QQP", "QNLI", "RTE"]
    assert parse_tasks("wnli,mnli,squad1.1,squad1.1", known, abz.GROUPS) == ["WNLI", "MNLI", "SQuAD1.1"]
    assert known["MRPC"].length == 128


def test_fine_tuning_is_as_the_appendix_says():
    known, paper = abz.recipes(abz.Config()), functools.partial(study.published, "autobert_zero")
    first, second, rows = known["SQuAD1.1"], known["SQuAD2.0"], known["RTE"]
    assert (rows.epochs, rows.lr, rows.warmup) == (
        paper("App. D.1", "epochs of fine-tuning"), paper("App. D.1", "learning rate of fine-tuning"),
        paper("App. D.1", "warm-up of fine-tuning"))
    assert (first.epochs, first.batch) == (paper("App. D.2", "SQuAD v1.1, epochs"), paper("App. D.2", "SQuAD v1.1, batch"))
    assert (second.epochs, second.batch) == (paper("App. D.2", "SQuAD v2.0, epochs"),
                                             paper("App. D.2", "SQuAD v2.0, batch"))
    assert set(abz.GRID) == set(itertools.product(
        paper("App. D.2", "learning rates of the grid"), paper("App. D.2", "weight decays of the grid"),
        paper("App. D.2", "evaluation intervals of the grid"))) and len(abz.GRID) == 24
