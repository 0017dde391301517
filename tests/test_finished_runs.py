"""What a finished run of all four files leaves: log.jsonl; the next command, which
works when it is pasted; a fine-tuned model, with which --predict answers a user's own file."""
import math
import re
import shutil
from pathlib import Path

import pytest
from conftest import filled
from small_runs import TRAINED, call, write
from test_bad_input import the_line, tuning

from common.checkpoint import read_json, read_jsonl
@pytest.mark.parametrize("run", [*TRAINED, "tuned"])
def test_the_log_of_a_run(run, ready):
    """Finite numbers, and seconds that go on."""
    lines = [line for line in read_jsonl(ready[run] / "log.jsonl") if "event" not in line]
    for line in lines:
        assert {"phase", "step", "memory_mb", "seconds"} <= line.keys()
        numbers = [value for value in line.values() if isinstance(value, (int, float))]
        assert all(map(math.isfinite, numbers))
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)
    assert any("lr" in line for line in lines)
    assert any("loss" in line for line in lines)


# --- the next command ---

@pytest.mark.parametrize("run", TRAINED)
def test_the_next_command_works_when_it_is_pasted(run, ready, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(ready[run], tmp_path / "run")
    assert not call(filled(TRAINED[run] + " --out {out}", out=out, **ready), monkeypatch)
    printed = capsys.readouterr().out
    assert f"{out}: finished" in printed
    assert Path(re.search("best: (.+)", printed)[1]).exists()
    program, words = re.search(r"^next: python (\w+)\.py (.+)$", printed, re.MULTILINE).groups()
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.rglob("*")}
    assert not call(f"{program} {words}", monkeypatch)
    made = {*tmp_path.rglob("*")} - before
    assert made


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

def tune_and_predict(program, task, source, folder, ready, monkeypatch, change=str):
    """Fine-tune, then let the model answer a changed copy of a file: both folders."""
    kind, _, rest = source.partition("/")
    given = ready[kind] / rest
    given = write(folder / f"mine{given.suffix}", change(given.read_text()))
    tune = tuning(task, program).replace("{here}", f"{{{kind}}}") + " --out {run}"
    paths = {**ready, "given": given, "run": folder / "run", "out": folder / "out"}
    assert not call(filled(tune, **paths), monkeypatch)
    predict = f"{program} --predict {{given}} --init {{run}}/{task} --out {{out}}"
    assert not call(filled(predict, **paths), monkeypatch)
    return paths["run"], paths["out"]


def without_answers(text):
    text = text.replace('"is_impossible": true', '"is_impossible": false')
    return text.replace('"answers"', '"x"')


@pytest.mark.parametrize("program, task, source, name", [
    ("autotinybert", "MNLI", "glue/MNLI/test_matched.tsv", "MNLI-m.tsv"),
    ("autobert_zero", "SQuAD1.1", "squad/dev-v1.1.json", "predictions.json"),
    ("albert", "SQuAD2.0", "squad/dev-v2.0.json", "predictions.json"),
    ("albert", "RACE", "race/test/middle/0.txt", "test_predictions.txt"),
])
def test_a_tuned_model_answers_a_file_as_it_answered_its_examples(
        program, task, source, name, ready, tmp_path, monkeypatch):
    """No answer or label of the file is read."""
    change = str if source.endswith("tsv") else without_answers
    run, out = tune_and_predict(program, task, source, tmp_path, ready, monkeypatch, change)
    expected = (run / task / name).read_text()
    answers = (out / name).read_text()
    assert expected.startswith(answers) if task == "RACE" else expected == answers
    assert len(answers) > 2


def test_a_file_with_labels_is_scored_as_in_its_fine_tuning(ready, tmp_path, monkeypatch, capsys):
    source = "glue/SST-2/dev.tsv"
    run, _ = tune_and_predict("autobert_zero", "SST-2", source, tmp_path, ready, monkeypatch)
    score = float(re.findall("SST-2 on .*accuracy (.+)", capsys.readouterr().out)[-1])
    tuned = read_json(run / "done.json")["tasks"]["SST-2"]["metrics"]
    assert score == pytest.approx(100 * tuned["main"], abs=0.01)


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_diverged_fine_tuning_has_the_worst_score(program, ready, tmp_path, monkeypatch):
    tune = tuning("CoLA", program).replace("{here}", "{glue}") + " --finetune_lr 1e30 --out {out}"
    assert not call(filled(tune, out=tmp_path, **ready), monkeypatch)
    line = read_json(tmp_path / "done.json")["tasks"]["CoLA"]
    assert line["diverged"] > 0
    assert line["metrics"]["main"] == -1.0
    assert not (tmp_path / "CoLA" / "checkpoint.pt").exists()
