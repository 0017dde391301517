"""autobert_zero.py as a program: every action, killed and resumed, on one and two processes, with broken input."""
import dataclasses
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
from common import cli, distributed
from conftest import ROOT

SIZES = ["--layers", "2", "--hidden", "16", "--heads", "2", "--ffn", "32", "--vocab_size", "36", "--length", "16", "--batch", "8", "--steps", "6",
         "--finetune_batch", "8", "--finetune_epochs", "1", "--save_every", "2"]
BUDGET = ["--population", "3", "--rounds", "2", "--parents", "1", "--children", "2"]


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
        lines = (f"x\t{index % 2}\t\t{sentence() if index % 2 else ' '.join(reversed(sentence().split()))}" for index in range(rows))
        (folder / "glue" / "CoLA" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def command(files, action, out, *more, processes=1):
    start = [sys.executable, "autobert_zero.py"] if processes == 1 else [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "autobert_zero.py"]
    return start + [*action, "--corpus", str(files / "corpus"), "--glue", str(files / "glue"), "--tasks", "CoLA", "--out", str(out), "--device", "cpu",
                    *SIZES, *more]


def run(*arguments, **options):
    return subprocess.run(*arguments, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)


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
    assert [line["id"] for line in lines] == list(range(7)) and [line["round"] for line in lines] == [0, 0, 1, 2, 2, 3, 3]
    best = json.loads((out / "best.json").read_text())
    assert best["score"] == max(line["score"] for line in lines) and best["arch"] == lines[best["id"]]["arch"]
    assert (out / "best.mmd").read_text().startswith("flowchart")
    settings = json.loads((out / "config.json").read_text())
    assert settings["settings"]["steps"] == 6 and settings["environment"]["threads"] == 1
    assert "best of 7 candidates" in result.stdout and "round 4/4 candidate 7/7 best" in result.stderr
    again = run(command(files, ["--search"], out, *BUDGET))
    assert again.returncode == 0 and "finished" in again.stdout


def test_other_settings_are_refused_by_name(searched, files):
    result = run(command(files, ["--search"], searched[0], *BUDGET, "--lr", "0.5"))
    assert result.returncode == 2 and "lr (" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_killed_anywhere_the_search_continues_to_the_same_history(searched, files, tmp_path, kind):
    """Killed after ever longer times, each time somewhere else, until it is through."""
    out, delay, kills = tmp_path / "run", 2.2, 0
    while True:
        process = subprocess.Popen(command(files, ["--search"], out, *BUDGET), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
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


def test_a_search_in_which_all_diverge_says_so(files, tmp_path):
    result = run(command(files, ["--search"], tmp_path / "run", *BUDGET, "--lr", "1e30"))
    assert result.returncode == 2 and "every candidate diverged" in result.stderr
    assert all(line["diverged"] and line["score"] == 0 for line in history(tmp_path / "run"))


def test_a_diverged_pretraining_ends_before_it_logs_or_saves_what_is_no_number(files, tmp_path, monkeypatch):
    """Steps that log or save are looked at, not every 20th alone."""
    arguments = command(files, ["--pretrain"], tmp_path, "--arch", "conv3 | conv5", "--lr", "1e30", "--log_every", "1", "--save_every", "3", "--steps", "60")[2:]
    monkeypatch.setattr(sys, "argv", ["autobert_zero.py", *arguments])
    with pytest.raises(cli.UserError, match="diverged.*step [1-5];?"):
        abz.main()
    assert "NaN" not in (tmp_path / "log.jsonl").read_text() and "Infinity" not in (tmp_path / "log.jsonl").read_text()
    if (tmp_path / "checkpoint.pt").exists():
        weights = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["owned"]["model"]
        assert all(value.isfinite().all() for value in weights.values())


def test_heads_do_not_depend_on_what_was_drawn_before(monkeypatch):
    """A candidate killed while it is fine-tuned must resume with the heads that it would have had."""
    heads, cfg = [], abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8)

    class Task:
        name, outputs = "CoLA", 2
    monkeypatch.setattr(abz, "train_task", lambda model, *rest: heads.append(model.head.weight.clone()) or {"main": 0.5})
    model = abz.LanguageModel((3,), cfg, shared=True)
    for _ in range(2):
        torch.rand(7)
        abz.score_tasks(model, (3,), [Task], cfg, torch.device("cpu"))
    assert torch.equal(*heads)


def test_two_processes_write_the_same_history(searched, files, tmp_path):
    result = run(command(files, ["--search"], tmp_path / "run", *BUDGET, processes=2))
    assert result.returncode == 0, result.stderr
    assert history(tmp_path / "run") == history(searched[0])


def test_strategies_run_and_are_told_apart(files, tmp_path):
    for strategy in ("evolution", "random"):
        assert run(command(files, ["--search"], tmp_path / strategy, "--population", "2", "--rounds", "1", "--parents", "1", "--children", "2",
                           "--strategy", strategy, "--no_weight_sharing")).returncode == 0
    assert all(line["parent"] is None for line in history(tmp_path / "random"))
    assert history(tmp_path / "evolution")[-1]["parent"] is not None


def test_pretraining_resumes_to_the_same_weights_and_feeds_fine_tuning(files, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = ["--arch", "conv3 | softmax(scale(Q @ K.T)) @ V", "--dropout", "0.1", "--log_every", "1", "--steps", "100", "--accumulate", "2"]
    assert run(command(files, ["--pretrain"], whole, *more)).returncode == 0
    process = subprocess.Popen(command(files, ["--pretrain"], parts, *more), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not (parts / "checkpoint.pt").exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.kill()
    process.wait()
    assert run(command(files, ["--pretrain"], parts, *more)).returncode == 0
    first, second = (torch.load(folder / "checkpoint.pt", weights_only=True)["owned"]["model"] for folder in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)
    two = tmp_path / "two"
    process = subprocess.Popen(command(files, ["--pretrain"], two, *more, processes=2), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not (two / "checkpoint.pt").exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.terminate()  # torchrun hands it on to both
    assert "stopped; the same command continues" in process.communicate()[1] and not (two / "done.json").exists()
    assert run(command(files, ["--pretrain"], two, *more, processes=2)).returncode == 0
    third = torch.load(two / "checkpoint.pt", weights_only=True)["owned"]["model"]
    assert max((first[name] - third[name]).abs().max().item() for name in first) < 1e-5  # two shards on one process, or on two
    steps = [json.loads(line)["step"] for line in (whole / "log.jsonl").read_text().splitlines() if "mlm" in line]
    assert steps == list(range(1, 101))
    tuned = run(command(files, ["--finetune", "CoLA"], tmp_path / "tuned", "--init", str(whole), "--runs", "2"))
    assert tuned.returncode == 0, tuned.stderr
    scores = json.loads((tmp_path / "tuned" / "done.json").read_text())
    assert scores["tasks"]["CoLA"]["n"] == 2 and "taken over" in scores["tasks"]["CoLA"]["start"]


def test_fine_tuning_continues_inside_a_job(monkeypatch, tmp_path):
    """Told to stop at step 5 of 12, it ends with the weights and the best score that it would have had."""
    cfg, looks = abz.Config(vocab_size=40, layers=1, hidden=8, heads=2, ffn=8, eval_every=2, finetune_epochs=3, finetune_lr=0.01), []

    class Task:
        name, outputs, steps = "CoLA", 2, lambda self, cfg: 12
        loss = staticmethod(lambda logits, batch: torch.nn.functional.cross_entropy(logits, batch["labels"]))

        def batches(self, cfg, epoch):
            for number in range(4):
                ids = torch.arange(12).view(2, 6) + epoch + number
                yield {"ids": ids, "segments": ids * 0, "lengths": torch.tensor([6, 6]), "labels": torch.tensor([0, 1])}

        def evaluate(self, model, cfg, device):
            looks.append(len(looks))
            return {"main": -abs(model.head.weight[0, 0].item() - 0.02)}

    def tune(path, stop_at=None):
        torch.manual_seed(0)
        model, asked = abz.Classifier((3,), cfg, 2), iter(range(1, 100))
        monkeypatch.setattr(distributed, "stop_requested", lambda: next(asked) == stop_at)
        checkpoint = distributed.Checkpoint(path, distributed.Ranks(0, 1, torch.device("cpu")))
        return abz.train_task(model, Task(), cfg, torch.device("cpu"), keep_best=True, checkpoint=checkpoint), model.state_dict()
    whole = tune(tmp_path / "whole.pt")
    with pytest.raises(distributed.Stop):
        tune(tmp_path / "parts.pt", stop_at=5)
    parts = tune(tmp_path / "parts.pt")
    assert len(looks) == 12 and parts[0] == whole[0] and all(torch.equal(parts[1][name], whole[1][name]) for name in whole[1])


def test_fine_tuning_of_mnli_is_where_rte_starts(files, tmp_path):
    """App. D.2; also squad1, the averages and the submission files."""
    glue, rows = tmp_path / "glue", [f"{index}\tThe cat sees the dog .\tA dog {'is seen' if index % 2 else 'likes it'} ." for index in range(24)]
    for task, label in (("MNLI", ("neutral", "entailment")), ("RTE", ("entailment", "not_entailment"))):
        (glue / task).mkdir(parents=True)
        middle, header = ("\t".join("x" * 7) + "\t", "\t".join(["index", *"abcdefg", "sentence1", "sentence2", "gold_label"])) if task == "MNLI" else (
            "", "index\tsentence1\tsentence2\tlabel")
        lines = []
        for index, row in enumerate(rows):
            number, first, second = row.split("\t")
            lines.append(f"{number}\t{middle}{first}\t{second}\t{label[index % 2]}")
        for split in ("train", "dev", "test") if task == "RTE" else ("train", "dev_matched", "dev_mismatched"):
            cut = (lambda line: line.rsplit("\t", 1)[0]) if split == "test" else str
            (glue / task / f"{split}.tsv").write_text("\n".join(cut(line) for line in [header, *lines]) + "\n")
    result = run(command(files, ["--finetune", "RTE,MNLI"], tmp_path / "run", "--arch", "conv3 | conv5", "--glue", str(glue), "--runs", "2"))
    assert result.returncode == 0, result.stderr
    scores = json.loads((tmp_path / "run" / "done.json").read_text())
    assert scores["tasks"]["RTE"]["start"].startswith("from MNLI-") and "mismatched" in scores["tasks"]["MNLI"]["metrics"]
    assert scores["averages"]["paper_avg"] is not None and (tmp_path / "run" / "submission" / "RTE.tsv").exists()


def test_pretraining_starts_from_a_search(searched, files, tmp_path):
    result = run(command(files, ["--pretrain"], tmp_path / "run", "--init", str(searched[0])))
    assert result.returncode == 0, result.stderr
    assert "weights taken over; made anew: none" in result.stdout


@pytest.mark.parametrize("more, words", [
    (["--corpus", "nowhere"], "nowhere"), (["--glue", "nowhere"], "CoLA"), (["--heads", "3"], "--heads"), (["--strategy", "best"], "--strategy"),
    (["--vocab_size", "100000"], "pieces"), (["--preset", "giant"], "--preset"), (["--stepz", "3"], "--stepz"), (["--device", "cuda:9"], "cuda"),
    (["--max_path", "1"], "--max_path"), (["--lr", "-1"], "--lr"), (["--alpha", "inf"], "--alpha"), (["--rounds", "-1"], "--rounds"),
    (["--tasks", "COLA,XYZ"], "XYZ"), (["--length", "4"], "--length"), (["--batch", "9", "--accumulate", "2"], "--accumulate"),
    (["--warmup", "2"], "--warmup"), (["--seed", "9" * 20], "--seed"), (["--init", "runs/nowhere"], "config.json")])
def test_mistakes_end_in_one_line(files, tmp_path, capsys, monkeypatch, more, words):
    assert words in mistake(capsys, monkeypatch, command(files, ["--search"], tmp_path / "run", *BUDGET, *more)[2:])


@pytest.mark.parametrize("arch", ["Q @ K", "conv4", "nonsense", "conv3", "missing.json", pytest.param("Q" + " + Q" * 3000, id="long")])
def test_illegal_architectures_end_in_one_line(capsys, monkeypatch, arch):
    assert arch in mistake(capsys, monkeypatch, ["--describe", "--arch", arch])


def run_folder(path, action="search", scores=(0.5,), **settings):
    """What an analysis reads of a run."""
    path.mkdir()
    own = {**dataclasses.asdict(abz.Config()), "tasks": "MLM", "layers": 2, **settings}
    (path / "config.json").write_text(json.dumps({"action": action, "settings": own}))
    (path / "history.jsonl").write_text("".join(json.dumps({"id": number, "arch": "conv3 | Q + K", "score": score, "diverged": False}) + "\n"
                                                for number, score in enumerate(scores)))
    return str(path)


def test_run_folders_that_do_not_fit_end_in_one_line(tmp_path, capsys, monkeypatch):
    one, other = run_folder(tmp_path / "one"), run_folder(tmp_path / "other", tasks="CoLA")
    empty, foreign = run_folder(tmp_path / "empty", scores=()), run_folder(tmp_path / "foreign", "pretrain")
    config = json.loads((tmp_path / "foreign" / "config.json").read_text())
    del config["settings"]["ucb_unit"]
    (tmp_path / "foreign" / "config.json").write_text(json.dumps(config))
    for words, arguments in (
            ("another program", ["--describe", "--init", foreign]), ("not finished", ["--describe", "--init", one]),
            ("other tasks", ["--analyze", "search", "--folders", one, other]), ("one search", ["--analyze", "operations", "--folders", one, other]),
            ("no candidate", ["--analyze", "operations", "--folders", empty]), ("no candidate", ["--analyze", "search", "--folders", empty]),
            ("leave --tasks out", ["--analyze", "fidelity", "--folders", one, "--tasks", "CoLA"]),
            ("is --init too", ["--search", "--init", "runs/autobert_zero-search-demo"])):
        assert words in mistake(capsys, monkeypatch, [*arguments, *([] if "search" in arguments[0] else ["--out", str(tmp_path / "out")])])


def test_the_tokenizer_of_a_run_is_found_where_its_text_was(tmp_path):
    """A search on a prepared corpus has no corpus folder of its own."""
    for settings, expected in (({"corpus": ("prepared",)}, "prepared"), ({"corpus": ("text",), "tokenizer": "vocab.txt"}, "vocab.txt")):
        cfg = abz.Config(layers=4)
        abz.take_settings(cfg, tmp_path, {"layers": 2, "tokenizer": "", **settings}, ["layers"])
        assert (cfg.layers, cfg.tokenizer) == (2, expected)
    (tmp_path / "corpus").mkdir()
    abz.take_settings(cfg := abz.Config(), tmp_path, {"tokenizer": "", "corpus": ()}, [])
    assert cfg.tokenizer == str(tmp_path / "corpus")


def test_a_full_device_is_one_line(tmp_path, capsys, monkeypatch):
    def search(cfg):
        raise torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(abz, "search", search)
    assert "--recompute" in mistake(capsys, monkeypatch, ["--search", "--out", str(tmp_path)])


def test_files_of_the_file_system_stay_among_the_candidates(tmp_path):
    for name in (".nfs0001", "0.pt", "1.json"):
        (tmp_path / "candidates").mkdir(exist_ok=True)
        (tmp_path / "candidates" / name).touch()
    run = type("Run", (), {"folder": tmp_path})
    abz.record_history(run, [{"id": 0}])
    assert sorted(path.name for path in (tmp_path / "candidates").iterdir()) == [".nfs0001", "1.json"]


def test_a_diverged_fine_tuning_scores_0_and_is_counted(tmp_path, capsys):
    """Once its job's file broke the averages; RTE never starts from a diverged MNLI."""
    alone, cpu, cfg = distributed.Ranks(0, 1, torch.device("cpu")), torch.device("cpu"), abz.Config(vocab_size=9, layers=1, hidden=8, heads=2, ffn=8)

    class Task:
        name, outputs, span, metrics = "MRPC", 2, False, ("f1", "accuracy")
    (tmp_path / "jobs").mkdir()
    for number, outcome in enumerate((abz.Diverged("gradient norm nan"), None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(abz, "train_task", raising(outcome) if outcome else lambda *rest, **more: {"f1": 0.6, "accuracy": 0.8, "main": 0.6})
            Task.predict = lambda *rest: {}
            abz.finetune_one(Task, number, cfg, (3,), None, cpu, tmp_path / "jobs" / f"MRPC-{number}-0.1-0.1.json")
    for small, score in ((False, 0.6), (True, 0.8)):  # an even number of runs: the upper of the middle two
        result = abz.summarise(tmp_path, ["MRPC"], small)
        assert result["tasks"]["MRPC"]["diverged"] == 1 and result["averages"]["paper_avg"] == score
    abz.show_scores(result, alone)
    assert "1 diverged" in capsys.readouterr().out
    assert abz.best_job(tmp_path / "jobs", "MRPC")["run"] == 1


def test_a_prediction_that_is_no_number_is_a_diverged_fine_tuning(tmp_path, monkeypatch):
    """Not a mistake of the user's, which would end the program in the midst of its jobs, each time anew."""
    task = abz.GlueTask.__new__(abz.GlueTask)
    task.name, task.features = "CoLA", {"train": [], "test": []}
    monkeypatch.setattr(abz.GlueTask, "logits", lambda *rest: torch.tensor([[0.0, float("nan")]]).numpy())
    with pytest.raises(abz.Diverged, match="test of CoLA"):
        task.predict(None, None, None, tmp_path)


def raising(error):
    def function(*arguments, **named):
        raise error
    return function


def test_held_out_examples_do_not_depend_on_the_number_of_processes(monkeypatch):
    cfg, seen = abz.Config(batch=2), []
    monkeypatch.setattr(abz, "language_batch", lambda data, corpus, cfg, position, rows: seen.append(position) or [torch.zeros(2, 2)] * 6)
    monkeypatch.setattr(abz, "language_losses", lambda *rest: ((torch.zeros(()),) * 2, (torch.zeros(2, 2, 2),) * 2))
    monkeypatch.setattr(distributed, "reduce_mean", lambda ranks, *values: [1.0] * len(values))
    data = type("Data", (), {"dev": None, "device": torch.device("cpu")})
    for size in (1, 32):
        for rank in range(size):
            abz.evaluate_language_model(torch.nn.Identity(), data, cfg, distributed.Ranks(rank, size, data.device))
    assert sorted(seen) == sorted(2 * [2 * number for number in range(16)])


@pytest.mark.parametrize("more, total, attention, flops, published", [
    ((), 103_800_218, 15_355_392, 2.055e10, ["104M", "15.4M", 2.3e10]), (("--arch", "bert"), 109_705_010, 21_261_312, 2.235e10, ["110M", "21.3M", 2.9e10]),
    (("--variant", "att"), 104_980_274, 16_536_576, None, [None, "16.5M", None]), (("--variant", "conv"), 102_620_162, 14_174_208, None, [None, "15.4M", None]),
    (("--arch", "bert", "--preset", "large"), 335_691_058, None, None, ["340M", None, 8.7e10])])
def test_describe_is_one_json_object(capsys, monkeypatch, more, total, attention, flops, published):
    """The counts of Tables 2 to 5 beside the published ones."""
    monkeypatch.setattr(sys, "argv", ["autobert_zero.py", "--describe", "--preset", "base", *more])
    assert abz.main() == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parameters"] == sum(report["parts"].values()) == total and list(report["published"].values()) == published
    assert attention in (None, report["attention_parameters"])
    if flops:
        assert report["flops"] == pytest.approx(flops, rel=1e-3) and report["flops_with_vocabulary_head"] == pytest.approx(flops + 6e9, rel=0.01)


def test_without_an_action_the_help_is_printed():
    result = run([sys.executable, "autobert_zero.py"])
    assert result.returncode == 0 and "--search" in result.stdout


@pytest.mark.parametrize("name", ["search", "operations", "fidelity"])
def test_analyses_of_a_search(searched, files, tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, "argv", command(files, ["--analyze", name], tmp_path / name, "--folders", str(searched[0]), "--samples", "2")[1:])
    assert abz.main() == 0
    report = json.loads((tmp_path / name / f"{name}.json").read_text())
    assert len(report["rows"]) >= 1 and (tmp_path / name / f"{name}.md").exists()


def test_uniformity_of_known_states():
    alike, apart = torch.ones(1, 4, 3), torch.eye(4)[None]
    apart_then_padding = torch.cat([apart, torch.full((1, 2, 4), 9.0)], 1)
    residual, cosine = abz.uniformity([alike], torch.tensor([4]))
    assert residual[0] == pytest.approx(0, abs=1e-6) and cosine[0] == pytest.approx(1)
    residual, cosine = abz.uniformity([apart_then_padding], torch.tensor([4]))
    assert residual[0] == pytest.approx(0.75 ** 0.5) and cosine[0] == pytest.approx(0, abs=1e-6)


def test_glue_is_the_papers_eight_tasks_with_mnli_first():
    assert abz.task_names("squad1 glue") == ["MNLI", "CoLA", "MRPC", "STS-B", "SST-2", "QQP", "QNLI", "RTE", "squad1"]
    assert abz.task_names("wnli,mnli,squad1,squad1") == ["MNLI", "WNLI", "squad1"]
