"""What a finished run of all four files leaves: log.jsonl, config.json; the next command, which
works when it is pasted; a fine-tuned model, with which --predict answers a user's own file."""
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, filled
from small_runs import TRAINED, TUNED, call
from test_bad_input import the_line, tuning

from common.finetune import read_threshold

ALWAYS = {"phase", "step", "memory_mb", "seconds"}
LOGGED = ALWAYS | {
    "job", "loss", "mlm_loss", "order_loss", "norm", "lr", "tokens_per_second",
    "images_per_second", "candidates", "best"}


def lines_of(folder):
    """The lines of a run's log, checked: their keys, finite numbers, and seconds that go on."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "event" not in line]
    for line in lines:
        assert ALWAYS <= line.keys()
        assert {key for key in line if not key.startswith("dev_")} <= LOGGED
        numbers = [value for value in line.values() if isinstance(value, (int, float))]
        assert all(map(math.isfinite, numbers))
    seconds = [line["seconds"] for line in lines]
    assert seconds and seconds == sorted(seconds)
    return lines


@pytest.mark.parametrize("run", [*TRAINED, "tuned"])
def test_the_log_of_a_run(run, ready):
    lines = lines_of(ready[run])
    assert any("lr" in line for line in lines)
    assert any("loss" in line for line in lines)


def test_the_page_lists_the_keys():
    page = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in LOGGED)


@pytest.mark.parametrize("run", TRAINED)
def test_config_json_has_the_settings_that_are_computed(run, ready):
    record = json.loads((ready[run] / "config.json").read_text())
    assert all(record["settings"][name] for name in ("steps", "vocab_size"))
    assert record["vocabulary"]["pieces"] == record["settings"]["vocab_size"]


# --- the next command ---

@pytest.mark.parametrize("run", [*TRAINED, "tuned"])
def test_the_next_command_works_when_it_is_pasted(run, ready, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(ready[run], tmp_path / "run")
    command = {**TRAINED, "tuned": TUNED}[run]
    assert not call(filled(command + " --out {out}", out=out, **ready), monkeypatch)
    printed = capsys.readouterr().out
    assert f"{out}: finished" in printed
    assert Path(re.search("best: (.+)", printed)[1]).exists()
    program, words = re.search(r"^next: python (\w+)\.py (.+)$", printed, re.MULTILINE).groups()
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.rglob("*")}
    assert not call(f"{program} {words}", monkeypatch)
    made = {*tmp_path.rglob("*")} - before
    assert made
    for path in made if run == "mformer" else ():
        if path.name == "config.json":  # no demo text
            settings = json.loads(path.read_text())["settings"]
            assert settings["test_text"] == f"{ready['pairs']}/train"


@pytest.mark.parametrize("program, train", [
    ("albert", "--pretrain --steps 2 --batch 2"),
    ("autobert_zero", "--pretrain --steps 2 --batch 2"),
    ("autotinybert", "--further_train --further_steps 2 --accumulate 1 --batch 2"),
])
def test_a_model_of_text_of_ones_own_continues_with_its_own_text(
        program, train, ready, tmp_path, monkeypatch, capsys):
    """And with no demo task."""
    paths = {"model": ready[program], "here": tmp_path}
    tune = f"{program} --finetune RTE --init {{model}} --finetune_length 16 --out {{here}}/out"
    assert call(filled(tune, **paths), monkeypatch) == 2
    assert not (tmp_path / "out").exists()
    assert "--glue: missing" in the_line(capsys.readouterr().err)
    more = f"{program} {train} --init {{model}} --out {{here}}/more"
    assert not call(filled(more, **paths), monkeypatch)
    assert f"--corpus {ready['corpus']}" in capsys.readouterr().out


# --- --predict ---

@pytest.mark.parametrize("program, task, source, name", [
    ("autotinybert", "MNLI", "glue/MNLI/test_matched.tsv", "MNLI-m.tsv"),
    ("autobert_zero", "SQuAD1.1", "squad/dev-v1.1.json", "predictions.json"),
    ("albert", "SQuAD2.0", "squad/dev-v2.0.json", "predictions.json"),
    ("albert", "RACE", "race/test/middle/0.txt", "test_predictions.txt"),
])
def test_a_tuned_model_answers_a_file_as_it_answered_its_examples(
        program, task, source, name, ready, tmp_path, monkeypatch):
    """No answer or label of the file is read."""
    kind, _, rest = source.partition("/")
    given = Path(shutil.copy(ready[kind] / rest, tmp_path / f"mine{Path(rest).suffix}"))
    if given.suffix != ".tsv":
        content = given.read_text().replace('"is_impossible": true', '"is_impossible": false')
        given.write_text(content.replace('"answers"', '"x"'))
    tune = tuning(task, program).replace("{here}", f"{{{kind}}}") + " --out {run}"
    run = tmp_path / "run"
    out = tmp_path / "out"
    assert not call(filled(tune, run=run, **ready), monkeypatch)
    predict = f"{program} --predict {{given}} --init {{model}} --out {{out}}"
    assert not call(filled(predict, given=given, model=run / task, out=out), monkeypatch)
    expected = (run / task / name).read_text()
    answers = (out / name).read_text()
    assert expected.startswith(answers) if task == "RACE" else expected == answers
    assert len(answers) > 2


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_diverged_fine_tuning_has_the_worst_score(
        program, ready, tmp_path, monkeypatch, capsys):
    tune = tuning("CoLA", program).replace("{here}", "{glue}") + " --finetune_lr 1e30 --out {out}"
    assert not call(filled(tune, out=tmp_path, **ready), monkeypatch)
    line = json.loads((tmp_path / "done.json").read_text())["tasks"]["CoLA"]
    assert line["diverged"] > 0
    assert line["metrics"]["main"] == -1.0
    assert "diverged" in capsys.readouterr().out
    assert not (tmp_path / "CoLA" / "checkpoint.pt").exists()


def test_the_threshold_of_no_answer_is_that_of_the_tuned_model(tmp_path):
    (tmp_path / "jobs").mkdir()
    assert read_threshold(tmp_path / "SQuAD2.0", "SQuAD2.0") == 0
    assert read_threshold(tmp_path / "SQuAD1.1", "SQuAD1.1") == math.inf
    entry = {"metrics": {"threshold": -1.5, "best_f1_thresh": 0.0}}
    (tmp_path / "done.json").write_text(json.dumps({"tasks": {"SQuAD2.0": entry}}))
    job = {"metrics": {"threshold": 2.5}}
    (tmp_path / "jobs" / "SQuAD2.0-1.json").write_text(json.dumps(job))
    assert read_threshold(tmp_path / "SQuAD2.0", "SQuAD2.0") == -1.5
    assert read_threshold(tmp_path / "jobs" / "SQuAD2.0-1", "SQuAD2.0") == 2.5


@pytest.mark.parametrize("program, task, source", [
    ("autobert_zero", "SST-2", "glue/SST-2/dev.tsv"),
    ("autotinybert", "SQuAD1.1", "squad/dev-v1.1.json"),
])
def test_a_file_with_labels_is_scored_as_in_its_fine_tuning(
        program, task, source, ready, tmp_path, monkeypatch, capsys):
    kind, _, rest = source.partition("/")
    given = Path(shutil.copy(ready[kind] / rest, tmp_path / f"mine{Path(rest).suffix}"))
    tune = tuning(task, program).replace("{here}", f"{{{kind}}}") + " --out {run}"
    run = tmp_path / "run"
    assert not call(filled(tune, run=run, **ready), monkeypatch)
    command = f"{program} --predict {{given}} --init {{model}}"
    capsys.readouterr()
    assert not call(filled(command, given=given, model=run / task), monkeypatch)
    printed = capsys.readouterr().out
    assert Path(re.search("^(.+): predictions of", printed, re.MULTILINE)[1]).is_file()
    score = float(re.search(f"{task} on .*(?:accuracy|f1) (.+)", printed)[1])
    tuned = json.loads((run / "done.json").read_text())["tasks"][task]["metrics"]
    assert score == pytest.approx(100 * tuned["main"], abs=0.01)
