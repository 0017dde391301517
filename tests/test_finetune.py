"""common/finetune.py: tasks, training, jobs, medians, means."""
import copy
import importlib
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import ALONE
from test_run import open_run

from albert import Config
import common.tasks
from common import bag_of_words, finetune, glue, run
from common.finetune import (
    Method, Recipe, Tuning, fine_tune, finetune_tasks, open_task, predict, summarise)
from common.glue import Example
from common.tokenization import load_tokenizer

METRICS = {
    "MNLI": "accuracy",
    "CoLA": "matthews",
    "STS-B": "pearson+spearman",
    "SQuAD2.0": "f1",
}


@pytest.fixture(scope="module")
def tasks(demo, ready):
    tokenizer = load_tokenizer(ready["corpus"])
    config = Config(
        glue=str(demo["glue"]), squad=str(demo["squad"]), train_examples=40, dry_run=True)
    recipes = {
        name: Recipe(1e-5, 16, epochs=2, length=64, main=metric)
        for name, metric in METRICS.items()
    }
    return {name: open_task(name, config, tokenizer, recipes) for name in recipes}


@pytest.mark.parametrize("name", ["MNLI", "CoLA", "STS-B"])
def test_true_answers_score_one(tasks, name):
    """A perfect model's outputs, in the file's order, score 1 by every metric."""
    task = tasks[name]
    labels = torch.as_tensor(task.splits["dev"].labels)
    if task.kind == "value":
        answers = labels[:, None].float()
    else:
        answers = torch.eye(task.outputs)[labels]
    model = torch.nn.Module()
    model.forward = lambda batch: answers[batch["index"]]
    outputs = predict(model, task, "dev", Config(), ALONE.device)
    scores = task.score("dev", outputs)
    assert {*task.metrics} <= scores.keys()
    assert scores == pytest.approx(dict.fromkeys(scores, 1))


def test_the_majority_baseline(tasks):
    labels = tasks["MNLI"].splits["dev"].labels
    assert tasks["MNLI"].majority_baseline == max(np.bincount(labels)) / len(labels)
    assert tasks["CoLA"].majority_baseline == 0
    assert not tasks["CoLA"].context()["constant"]
    impossible = [not question.answers for question in tasks["SQuAD2.0"].examples["dev"]]
    assert tasks["SQuAD2.0"].majority_baseline == pytest.approx(np.mean(impossible))


def test_a_bag_of_words_is_the_baseline_of_texts(tasks):
    """Of classes and of values, and it is deterministic."""
    assert tasks["SQuAD2.0"].words_baseline is None
    task = tasks["MNLI"]
    train = [Example((f"w{number % 3}a same", "other"), number % 3) for number in range(40)]
    texts = [example.texts for example in train]
    labels = [example.label for example in train]
    outputs = bag_of_words.linear_outputs(texts, labels, texts, 3)
    assert outputs.argmax(1).tolist() == labels
    assert task.words_baseline["examples"] == len(task.examples["train"]) == 40
    assert 0 < task.context()["words_baseline"]["main"] <= 1
    values = [10.0 + label for label in labels]
    assert bag_of_words.linear_outputs(texts, values, texts, 1)[:, 0].tolist() == pytest.approx(
        values, abs=0.1)
    again = bag_of_words.linear_outputs(texts, labels, texts, 3)
    assert torch.equal(outputs, again)


def test_words_that_two_texts_share_are_features():
    """Neither text alone tells the label. Also with unknown words and without any."""
    words = "aa bb cc dd".split()
    pairs = [(first, second) for first in words for second in words]
    labels = [int(first == second) for first, second in pairs]
    outputs = bag_of_words.linear_outputs(pairs, labels, [*pairs, ("new", "!")], 2)
    assert outputs[:-1].argmax(1).tolist() == labels
    assert outputs.isfinite().all()
    outputs = bag_of_words.linear_outputs([("!",), ("?",), ("?",)], [0, 1, 1], [(".",)], 2)
    assert outputs.softmax(1)[0].tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-3)


def test_only_some_of_many_examples_make_the_baseline(tasks, monkeypatch):
    monkeypatch.setattr(common.tasks, "WORDS_EXAMPLES", 15)
    task = copy.copy(tasks["CoLA"])
    task.__dict__.pop("words_baseline", None)
    assert task.words_baseline["examples"] == 14  # every third of 40


@pytest.mark.peers
@pytest.mark.skipif("PAPERS_DATA" not in os.environ, reason="needs SST-2 in $PAPERS_DATA")
def test_a_bag_of_words_scores_as_scikit_learns():
    """75.8% with 3,000 training examples."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    folder = Path(os.environ["PAPERS_DATA"], "glue")
    train = glue.load(folder, "SST-2", "train")[0][:3000]
    dev = glue.load(folder, "SST-2", "dev")[0]
    labels = np.array([example.label for example in dev])
    vectors = text.TfidfVectorizer(ngram_range=(1, 2))
    inputs = vectors.fit_transform([example.texts[0] for example in train])
    theirs = linear.LogisticRegression(C=10, max_iter=1000)
    theirs.fit(inputs, [example.label for example in train])
    predicted = theirs.predict(vectors.transform([example.texts[0] for example in dev]))
    outputs = bag_of_words.linear_outputs(
        [example.texts for example in train], [example.label for example in train],
        [example.texts for example in dev], 2)
    ours = (outputs.argmax(1).numpy() == labels).mean()
    assert ours == pytest.approx((predicted == labels).mean(), abs=0.002)
    assert ours == pytest.approx(0.758, abs=0.002)


def fine_tuned(task, loss, *run, evaluate_at=(), cfg=Config()):
    """The state after fine-tuning a model of two weights. loss(weight) is its loss."""
    model = torch.nn.Linear(1, 2)
    model.forward = lambda batch: model.weight.T.expand(len(batch["ids"]), 2)
    model.loss = lambda batch: loss(model.weight)
    optimizer = torch.optim.SGD(model.parameters())
    tuning = Tuning(task, optimizer, lambda *place: 0.1, (0,), evaluate_at=evaluate_at)
    return fine_tune(model, tuning, cfg, ALONE.device, *run)


@pytest.mark.parametrize("save_minutes", [30, 0])
def test_a_gradient_that_is_nan_ends_a_fine_tuning_where_it_logs_or_saves(
        tasks, save_minutes, monkeypatch):
    """Before the next evaluation, and before a save."""
    monkeypatch.setattr(run, "SAVE_MINUTES", save_minutes)
    task = tasks["CoLA"]
    state = fine_tuned(task, lambda weight: weight.sum() * math.nan)
    last = 1  # of 5 steps
    assert state["diverged"] == f"CoLA: loss is NaN or infinite at step {last}"
    assert state["best"] is None


def test_each_evaluation_has_a_line_in_the_log_and_a_stopped_job_continues(tasks):
    lines = []
    alone = SimpleNamespace(
        ranks=ALONE, job="CoLA-1", folder=Path(), mark_computed=lambda: None,
        log=lambda *place, **values: lines.append((place, values)))
    task = tasks["CoLA"]
    steps = task.steps
    loss = lambda weight: weight.square().sum()  # noqa: E731
    whole = fine_tuned(task, loss, alone, "training.pt", evaluate_at={3, steps})
    assert {("finetune", 3), ("finetune", steps)} <= {place for place, _ in lines}
    evaluated = [values for place, values in lines if place[1] in (3, steps)]
    assert all(values["dev"]["score"] == 0 and values["loss"] > 0 for values in evaluated)
    again = fine_tuned(task, loss, alone, "training.pt", evaluate_at={3, steps})  # finished
    assert again["score"] == whole["score"]
    assert torch.equal(again["best"]["weight"], whole["best"]["weight"])


def test_the_weights_of_the_best_evaluation_count(tasks, monkeypatch):
    task = tasks["CoLA"]
    scores = iter([0.1, 0.7, 0.3])
    monkeypatch.setattr(task, "score", lambda *_: {"main": next(scores)})
    weights = []

    def loss(weight):
        weights.append(weight.tolist())
        return weight.sum()

    state = fine_tuned(task, loss, evaluate_at={1, 2, 3})
    assert state["score"] == 0.7
    assert state["best"]["weight"].tolist() == weights[2]  # before the third step


def test_micro_batches_have_the_gradient_of_the_batch():
    """Also for unequal sizes."""
    model = torch.nn.Linear(1, 1)
    model.loss = lambda batch: (model.weight * batch["ids"]).mean()
    for accumulate in (1, 2, 3):
        model.weight.grad = None
        batch = {"ids": torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0])}
        loss = finetune.backward(model, batch, accumulate, Config(), ALONE.device)
        assert model.weight.grad.item() == pytest.approx(4)
        torch.testing.assert_close(loss, 4 * model.weight.sum())


BOTH = "no better than the majority baseline and a bag of words; start from a released model"
WORDS = "no better than a bag of words; start from a released model"
MAJORITY = "no better than the majority baseline; start from a released model"
CONSTANT = "all labels of dev are equal"


@pytest.mark.parametrize("headline, score, baseline, words, constant, hint", [
    ("accuracy", 0.6, 0.6, 0.6, False, BOTH),
    ("accuracy", 0.61, 0.6, 0.61, False, WORDS),
    ("accuracy", 0.62, 0.6, 0.61, False, ""),
    ("f1", 0.6, 0.6, None, False, MAJORITY),  # SQuAD
    ("f1", 0.61, 0.6, None, False, ""),
    ("pearson", 0.04, 0.0, 0.02, False, MAJORITY),
    ("pearson", -1.0, 0.0, -0.1, False, BOTH),
    ("pearson", 0.3, 0.0, 0.4, False, WORDS),
    ("pearson", 0.3, 0.0, 0.2, False, ""),
    ("pearson", 0.0, 0.0, 0.1, True, CONSTANT),
    ("accuracy", 1.0, 1.0, 1.0, True, CONSTANT),
])
def test_a_score_that_is_no_better_than_a_baseline_is_told(
        headline, score, baseline, words, constant, hint, capsys):
    entry = {
        "headline": headline,
        "median": score,
        "metrics": {"main": score},
        "majority_baseline": baseline,
        "words_baseline": words and {"main": words, "examples": 3000},
        "constant": constant,
        "n": 1,
        "diverged": 0,
    }
    result = {"tasks": {"reviews": entry}, "means": {}}
    finished = SimpleNamespace(
        ranks=ALONE, folder=Path(), result=result, print_next=lambda *words: None)
    finetune.print_summary(finished, Config())
    printed = capsys.readouterr().out
    for each in (BOTH, WORDS, MAJORITY, CONSTANT):
        assert (each in printed) == (hint == each)
    assert (f"bag of words {100 * (words or 0):.2f} (3,000 examples)" in printed) == bool(words)


def job(name, task, score):
    return {"job": name, "task": task, "diverged": score < 0.2, "metrics": {"main": score}}


@pytest.mark.parametrize("from_mnli, rte", [(("RTE",), "jobs/MNLI-1"), ((), None)])
def test_mnli_comes_first_and_small_tasks_start_from_its_best_job(from_mnli, rte, monkeypatch):
    starts = {}
    scores = {"MNLI-0": 0.5, "MNLI-1": 0.7, "CoLA-0": 0.9, "CoLA-1": 0.8, "RTE-0": 0.1}

    def train(method, source, task, data, cfg, run, name):
        starts[name] = source
        (run.folder / "jobs" / name).mkdir()
        return job(name, task, scores.get(name, 0.1))

    monkeypatch.setattr(finetune, "train_task", train)
    monkeypatch.setattr(finetune, "open_task", lambda name, *_: name)
    method = Method(lambda cfg: {}, lambda cfg, command: cfg.init, None, None, from_mnli=from_mnli)
    run = open_run("run")
    names = ["RTE", "MNLI", "CoLA"]
    data = SimpleNamespace(tokenizer=None)
    result = finetune_tasks(method, names, None, data, Config(runs=2), run)
    assert {*result["tasks"]} == {*names}
    assert result["tasks"]["MNLI"]["median"] == 0.5
    found = starts["RTE-0"] and str(Path(starts["RTE-0"]).relative_to("run"))
    assert found == rte
    assert starts["CoLA-1"] is None
    assert [*starts][-2:] == ["RTE-0", "RTE-1"] or not from_mnli


def test_the_median_job_stands_for_a_task():
    Path("jobs/0.6").mkdir(parents=True)  # the lower one of two in the middle
    results = [job(str(score), "RTE", score) for score in (0.7, 0.6, 0.1, 0.7)]
    entry = summarise(Path(), results, {})["tasks"]["RTE"]
    expected = {
        "median": 0.6,
        "diverged": 1,
        "mean": 2.1 / 4,
        "sd": 0.2872,
    }
    assert {name: entry[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert Path("RTE").is_dir()


@pytest.mark.parametrize("program, row, means", [
    ("autobert_zero", "CoLA 64.5, MRPC 93.3, MNLI 85.5, MNLI dev_mismatched accuracy 85.3, "
     "STS-B 90.8, RTE 81.9, QQP 88.9, QNLI 92.0, SST-2 94.2", {"AVG": 86.3}),  # Table 2
    ("autotinybert", "SQuAD1.1 83.3, SST-2 89.4, MNLI 79.4, MRPC 85.5, CoLA 42.4, QNLI 87.3, "
     "QQP 88.8, STS-B 87.5, RTE 66.3", {"Score": 78.3, "Avg.": 78.9}),  # S1 in Table 1
    ("albert", "SQuAD1.1 f1 89.3, SQuAD1.1 exact 82.3, SQuAD2.0 f1 80.0, SQuAD2.0 exact 77.1, "
     "MNLI 81.6, SST-2 90.3, RACE 64.0", {"Avg": 80.1}),  # base in Table 2
])
def test_means_of_the_papers(program, row, means):
    numbers = {}
    for part in row.split(", "):
        name, value = part.rsplit(" ", 1)
        numbers[name] = float(value)
    names = importlib.import_module(program).MEANS
    computed = {name: finetune.mean_of(numbers, names[name]) for name in names}
    assert computed == pytest.approx(means, abs=0.05)


def test_a_mean_without_all_of_its_numbers_is_left_out():
    Path("jobs/0.6").mkdir(parents=True)
    means = {"one": ("RTE",), "metric": ("RTE main", "RTE"), "two": ("RTE", ("CoLA", "RTE"))}
    result = summarise(Path(), [job("0.6", "RTE", 0.6)], means)
    assert result["means"] == pytest.approx({"one": 0.6, "metric": 0.6})
