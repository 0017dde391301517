"""--predict: RUN/TASK answers a file of the user's own as fine-tuning answered the same rows."""
import json
import shutil
from pathlib import Path

import pytest
from small_runs import call
from test_bad_input import the_line, tuning
from test_log import lines_of

from common.tasks import read_threshold


@pytest.mark.parametrize("program, task, source, found", [
    ("autotinybert", "MNLI", "glue/MNLI/test_matched.tsv", "MNLI-m.tsv"),
    ("autobert_zero", "SQuAD1.1", "squad/dev-v1.1.json", "predictions.json"),
    ("albert", "SQuAD2.0", "squad/dev-v2.0.json", "predictions.json"),
    ("albert", "RACE", "race/test/middle/0.txt", "test_predictions.txt")])
def test_a_tuned_model_answers_a_file_as_it_answered_its_rows(program, task, source, found, ready, tmp_path,
                                                              monkeypatch):
    """No answer or label is read of the file; what the model writes stands beside it, or in --out."""
    kind, _, rest = source.partition("/")
    given = Path(shutil.copy(ready[kind] / rest, tmp_path / f"mine{Path(rest).suffix}"))
    if given.suffix != ".tsv":
        content = given.read_text()
        given.write_text(content.replace('"is_impossible": true', '"is_impossible": false').replace('"answers"', '"x"'))
    tune = tuning(task, program).replace("{here}", str(ready[kind])).format(**ready)
    assert not call(f"{tune} --out {tmp_path}/run", monkeypatch)
    assert {(line["phase"], line["job"]) for line in lines_of(tmp_path / "run")} == {("finetune", job.stem) for job in (
        tmp_path / "run" / "jobs").glob("*.json")}
    for more, out in (("", tmp_path / "mine-predictions"), (f"--out {tmp_path}/out", tmp_path / "out")):
        assert not call(f"{program} --predict {given} --init {tmp_path}/run/{task} {more}", monkeypatch)
        expected = (tmp_path / "run" / task / found).read_text()
        answers = (out / found).read_text()
        assert expected.startswith(answers) if task == "RACE" else expected == answers
        assert len(answers) > 2


def test_the_threshold_of_no_answer_is_that_of_the_tuned_model(tmp_path):
    (tmp_path / "jobs").mkdir()
    assert read_threshold(tmp_path / "SQuAD2.0", "SQuAD2.0") == 0
    entry = {"metrics": {"best_f1_thresh": -1.5}}
    (tmp_path / "done.json").write_text(json.dumps({"tasks": {"SQuAD2.0": entry}}))
    (tmp_path / "jobs" / "SQuAD2.0-1.json").write_text(json.dumps({"metrics": {"best_f1_thresh": 2.5}}))
    assert read_threshold(tmp_path / "SQuAD2.0", "SQuAD2.0") == -1.5
    assert read_threshold(tmp_path / "jobs" / "SQuAD2.0-1", "SQuAD2.0") == 2.5


@pytest.mark.parametrize("content, init, message", [
    ("sentence\tlabel\nA man sat.\t1\n", "{albert}", "no model that was fine-tuned on a task; name RUN/TASK"),
    ("text\nA man sat.\n", "{tuned}/CoLA", "mine.tsv:1: no column is named sentence"),
    ("sentence\n", "{tuned}/CoLA", "mine.tsv: no row")])
def test_mistakes(content, init, message, ready, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.tsv").write_text(content)
    assert call(f"albert --predict {tmp_path}/mine.tsv --init {init.format(**ready)}", monkeypatch) == 2
    assert message in the_line(capsys.readouterr().err)
    assert not (tmp_path / "mine-predictions").exists()
