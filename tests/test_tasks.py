"""common/tasks.py and common/weights.py: tasks behind one face, jobs, medians; what a run starts from."""
import dataclasses
import json

import numpy as np
import pytest
import torch

from common.cli import UserError
from common.distributed import Ranks
from common.tasks import Recipe, Task, open_task, parse_tasks, run_jobs, show, summarise, tells_nothing
from common.tokenization import load_tokenizer
from common.weights import finite, take_over

ALONE = Ranks(0, 1, torch.device("cpu"))
RECIPES = {name: Recipe(1e-5, 16, epochs=2, length=64, main=main) for name, main in (
    ("MNLI", "accuracy"), ("CoLA", "matthews"), ("STS-B", "pearson+spearman"), ("RTE", "accuracy"),
    ("SQuAD1.1", "f1"), ("SQuAD2.0", "f1"))}


@dataclasses.dataclass
class Config:
    glue: str = ""
    squad: str = ""
    train_rows: int = 40
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


def test_names_are_read_in_any_case_and_unknown_ones_are_refused(demo, tokenizer):
    assert parse_tasks("squad2.0, cola,CoLA", RECIPES) == ["SQuAD2.0", "CoLA"]
    assert parse_tasks("squad", RECIPES) == ["SQuAD1.1", "SQuAD2.0"]
    assert parse_tasks("glue,two", RECIPES, {"two": ["RTE", "MNLI"]}) == ["MNLI", "CoLA", "STS-B", "RTE"]
    for text in ("CoLE", " , "):
        with pytest.raises(UserError, match="choose from MNLI"):
            parse_tasks(text, RECIPES)
    config = Config(glue=str(demo["glue"]), finetune_lr=0.5, finetune_epochs=0.5)  # flags rule over the recipe
    recipe = open_task("CoLA", config, tokenizer, {"CoLA": Recipe(1e-5, 16, steps=900)}).recipe
    assert (recipe.lr, recipe.batch, recipe.steps, recipe.epochs) == (0.5, 16, 0, 0.5)


def test_batches_go_on_where_they_stopped_in_another_order_each_epoch(tasks):
    task = tasks["CoLA"]
    assert task.steps == 6  # 40 rows, 3 batches an epoch
    whole = [batch["index"].tolist() for _, batch in zip(range(7), task.batches(seed=1))]
    assert [batch["index"].tolist() for _, batch in zip(range(3), task.batches(1, start=4))] == whole[4:]
    assert sorted(sum(whole[:3], [])) == sorted(sum(whole[3:6], [])) == list(range(40)) and whole[:3] != whole[3:6]


@pytest.mark.parametrize("name", RECIPES)
def test_true_answers_score_one(tasks, name, tmp_path):
    """What a perfect model would give is collected in the file's order and scores 1 by every metric."""
    task, features = tasks[name], tasks[name].splits["dev"]

    def forward(batch):
        if task.kind == "span":
            return -10 * torch.ones(*batch["ids"].shape, 2)
        labels = torch.as_tensor(features.labels)[batch["index"]]
        return labels[:, None].float() if task.kind == "value" else 9 * torch.eye(task.outputs)[labels]

    outputs = task.collect("dev", forward)
    scores = task.score("dev", outputs)
    assert len(outputs) == len(features) and {*task.metrics} <= scores.keys()
    if task.kind == "span":
        task.write("dev", outputs, tmp_path)
        answers = json.loads((tmp_path / "predictions.json").read_text())
        assert set(answers) == {question.id for question in task.rows["dev"]}
    else:
        assert all(value == pytest.approx(1) for value in scores.values())


def test_beside_a_score_stands_that_of_one_answer_to_every_row(tasks, capsys):
    """The majority's share, 0 for a correlation, "no answer"'s share in SQuAD 2.0; a constant prediction is called
    one, and so is a task on which all candidates of a search are the same."""
    for name, task in tasks.items():
        rows, constant = task.splits["dev"], task.constant
        if task.kind == "span":
            impossible = sum(question.impossible for question in task.rows["dev"]) / len(task.rows["dev"])
            assert constant == pytest.approx(impossible) and (impossible > 0) == (name == "SQuAD2.0")
            continue
        outputs = torch.zeros(len(rows), task.outputs)
        assert task.yardstick(outputs) == {"constant": constant, "one_answer": True}
        assert not task.yardstick()["one_answer"]
        outputs[1, -1] = 1
        assert not task.yardstick(outputs)["one_answer"]
        if name in ("CoLA", "STS-B"):
            assert constant == 0
        else:
            assert constant == pytest.approx(max(np.bincount(rows.labels)) / len(rows))
    show({"tasks": {"RTE": {"metrics": {"main": 0.5}, "median": 0.5, "n": 1, "diverged": 0, "constant": 0.527,
                            "one_answer": True}}, "averages": {}}, ALONE)
    assert "50.00; one answer to every row has 52.70, and that is all it gives" in capsys.readouterr().out
    found = [{"RTE": 0.527, "CoLA": 0.1}, {"RTE": 0.527, "CoLA": 0.2}]
    assert "all 2 candidates have the same score on RTE, which tells nothing" in tells_nothing(found)
    assert "none of 2 candidates is above one answer to every row on CoLA" in tells_nothing(found, {"CoLA": 0.2})
    assert tells_nothing(found[:1]) == tells_nothing([]) == tells_nothing([{"a": 1}, {"a": 2}]) == ""


def job(name, task, score, setting=0, diverged=False):
    return {"job": name, "task": task, "setting": setting, "diverged": diverged, "metrics": {"main": score}}


def test_mnli_comes_first_and_the_tasks_of_few_rows_start_from_its_best_job(tmp_path):
    starts, scores = {}, {"a": 0.5, "b": 0.7, "c": 0.9, "d": 0.1}
    jobs = {"d": "RTE", "a": "MNLI", "b": "MNLI", "c": "CoLA"}

    def work(name, start):
        starts[name] = start
        return job(name, jobs[name], scores[name])

    assert [result["job"] for result in run_jobs(ALONE, tmp_path, jobs, work)] == ["a", "b", "c", "d"]
    assert starts == {"a": None, "b": None, "c": None, "d": tmp_path / "jobs" / "b"}
    run_jobs(ALONE, tmp_path / "alone", {"d": "RTE"}, work)
    assert starts["d"] is None


def test_the_setting_with_the_best_median_stands_for_a_task(tmp_path, capsys):
    results = [job("a1", "RTE", 0.4, 1), job("a2", "RTE", 0.9, 1), job("a3", "RTE", 0.5, 1, diverged=True),
               job("b1", "RTE", 0.6, 2), job("b2", "RTE", 0.1, 2), job("b3", "RTE", 0.7, 2)]
    (tmp_path / "jobs" / "b1").mkdir(parents=True)
    (tmp_path / "jobs" / "b1" / "who").write_text("b1")
    found = summarise(tmp_path, results)
    entry = found["tasks"]["RTE"]
    assert (entry["job"], entry["median"], entry["n"], entry["diverged"]) == ("b1", 0.6, 3, 0)
    assert entry["mean"] == pytest.approx(1.4 / 3) and entry["sd"] == pytest.approx(0.3215, abs=1e-4)
    assert (tmp_path / "RTE" / "who").read_text() == "b1"
    show(found, ALONE)
    assert "60.00 (median of 3" in capsys.readouterr().out


def test_weights_that_do_not_fit_are_refused():
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 3)})
    weights = {"body.weight": torch.zeros(2, 2), "head.weight": torch.zeros(5, 2), "other": torch.zeros(1)}
    note = take_over(model, weights, "there", heads=("head",))
    assert "1 weights taken over" in note and "head.weight, other" in note
    assert "body.bias, head.bias, head.weight" in note
    with pytest.raises(UserError, match=r"head.weight is \(5, 2\) there and \(3, 2\) here"):
        take_over(model, weights, "there")
    with pytest.raises(UserError, match="there: body.weight holds numbers that are not finite"):
        finite({"body.weight": torch.full((2, 2), float("nan"))}, "there")
