"""common/finetune.py: tasks, training, jobs, medians."""
import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from common.distributed import Ranks
from common.finetune import Recipe, fine_tune, open_task, predict, run_jobs, summarise
from common.tokenization import load_tokenizer

ALONE = Ranks(0, 1, torch.device("cpu"))
MAIN = {
    "MNLI": "accuracy",
    "CoLA": "matthews",
    "STS-B": "pearson+spearman",
    "RTE": "accuracy",
    "SQuAD1.1": "f1",
    "SQuAD2.0": "f1",
}
RECIPES = {
    name: Recipe(1e-5, 16, epochs=2, length=64, main=main) for name, main in MAIN.items()}


@dataclasses.dataclass
class Config:
    dtype: str = "float32"
    save_minutes: float = 0
    glue: str = ""
    squad: str = ""
    train_examples: int = 40
    dry_run: bool = False
    finetune_lr: float | None = None
    finetune_epochs: float | None = None


@pytest.fixture(scope="module")
def tokenizer(ready):
    return load_tokenizer(ready["corpus"])


@pytest.fixture(scope="module")
def tasks(demo, tokenizer):
    config = Config(glue=str(demo["glue"]), squad=str(demo["squad"]), dry_run=True)
    return {name: open_task(name, config, tokenizer, RECIPES) for name in RECIPES}


def test_flags_override_the_recipe(demo, tokenizer):
    config = Config(glue=str(demo["glue"]), finetune_lr=0.5, finetune_epochs=0.5)
    task = open_task("CoLA", config, tokenizer, {"CoLA": Recipe(1e-5, 16, steps=900)})
    assert task.recipe == Recipe(0.5, 16, epochs=0.5)


class Perfect(torch.nn.Module):
    """A model that knows the labels of dev."""

    def __init__(self, task):
        super().__init__()
        self.task = task

    def forward(self, batch):
        if self.task.kind == "span":
            return -10 * torch.ones(*batch["ids"].shape, 2)
        labels = torch.as_tensor(self.task.splits["dev"].labels)[batch["index"]]
        if self.task.kind == "value":
            return labels[:, None].float()
        return torch.eye(self.task.outputs)[labels]


@pytest.mark.parametrize("name", RECIPES)
def test_true_answers_score_one(tasks, name, tmp_path):
    """A perfect model's outputs are collected in the file's order and score 1 by every metric."""
    task = tasks[name]
    outputs = predict(Perfect(task), task, "dev", Config(), ALONE.device)
    scores = task.score("dev", outputs)
    assert len(outputs) == len(task.splits["dev"])
    assert {*task.metrics} <= scores.keys()
    if task.kind == "span":
        task.write("dev", outputs, tmp_path)
        answers = json.loads((tmp_path / "predictions.json").read_text())
        assert answers.keys() == {question.id for question in task.examples["dev"]}
    else:
        assert all(value == pytest.approx(1) for value in scores.values())


def test_the_majority_baseline(tasks):
    labels = tasks["MNLI"].splits["dev"].labels
    assert tasks["MNLI"].majority_baseline == max(np.bincount(labels)) / len(labels)
    assert tasks["CoLA"].majority_baseline == 0
    impossible = [question.impossible for question in tasks["SQuAD2.0"].examples["dev"]]
    assert tasks["SQuAD2.0"].majority_baseline == pytest.approx(np.mean(impossible))


def test_a_gradient_that_is_nan_ends_a_fine_tuning_where_it_logs(tasks):
    """Before the next evaluation."""
    model = torch.nn.Linear(1, 1)
    model.loss = lambda batch: model.weight.sum() * math.nan
    task = tasks["RTE"]
    optimizer = torch.optim.SGD(model.parameters())
    state = fine_tune(model, task, optimizer, lambda step: 1.0, Config(), ALONE.device, (0,))
    assert "gradient norm nan" in state["diverged"]
    assert state["step"] == min(task.evaluation_steps()) < task.steps


def job(name, task, score):
    return {"job": name, "task": task, "diverged": score < 0.2, "metrics": {"main": score}}


def test_mnli_comes_first_and_small_tasks_start_from_its_best_job(tmp_path):
    starts = {}
    scores = {"a": 0.5, "b": 0.7, "c": 0.9, "d": 0.1}
    jobs = {"d": "RTE", "a": "MNLI", "b": "MNLI", "c": "CoLA"}

    def work(name, start):
        starts[name] = start
        return job(name, jobs[name], scores[name])

    results = run_jobs(ALONE, tmp_path, jobs, work)
    assert [result["job"] for result in results] == ["a", "b", "c", "d"]
    assert starts == {"a": None, "b": None, "c": None, "d": tmp_path / "jobs" / "b"}


def test_the_median_job_stands_for_a_task(tmp_path):
    (tmp_path / "jobs" / "0.6").mkdir(parents=True)
    results = [job(str(score), "RTE", score) for score in (0.6, 0.1, 0.7)]
    entry = summarise(tmp_path, results)["tasks"]["RTE"]
    values = [entry[name] for name in ("median", "n", "diverged", "mean", "sd")]
    assert values == pytest.approx([0.6, 3, 1, 1.4 / 3, 0.3215], abs=1e-4)
    assert (tmp_path / "RTE").is_dir()
