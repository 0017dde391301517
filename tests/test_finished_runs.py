"""What a finished run of all four files leaves: log.jsonl; the next command, which works when it is
pasted; a fine-tuned model, with which --predict answers a user's own file."""
import math
import re
import shutil
from pathlib import Path

import pytest
from conftest import filled
from small_runs import TRAINED, call, next_command, write
from test_bad_input import tuning

import albert
import autobert_zero
from common.files import read_json, read_jsonl


@pytest.mark.parametrize("run", TRAINED)
def test_the_next_command_works_when_it_is_pasted(run, ready, works, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(ready[run], tmp_path / "run")
    log = read_jsonl(out / "log.jsonl")
    losses = [line["loss"] for line in log if "loss" in line]
    assert losses and all(map(math.isfinite, losses))
    works(TRAINED[run] + " --out {out}", out=out)
    printed = capsys.readouterr().out
    assert f"{out}: finished" in printed
    assert Path(re.search("best: (.+)", printed)[1]).exists()
    if run != "mformer":  # text of one's own
        assert "--finetune FOLDER" in printed
    if run in ("albert", "autobert_zero"):  # two steps
        assert "near the baseline" in printed
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.rglob("*")}
    works(next_command(printed))
    assert {*tmp_path.rglob("*")} > before


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_result_of_an_older_version_ends_in_one_line(
        program, ready, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(ready[program], tmp_path / "run")
    write(out / "done.json", {"seconds": 1})
    command = filled(f"{TRAINED[program]} --out {{out}}", **{**ready, "out": out})
    assert call(command, monkeypatch) == 2
    assert re.search("done.json: lacks .* older version .* --restart", capsys.readouterr().err)


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
        program, task, source, name, ready, works, tmp_path):
    """No answer of the file is read."""
    kind, _, rest = source.partition("/")
    text = (ready[kind] / rest).read_text()
    given = write(tmp_path / "mine" / Path(source).name, without_answers(text))
    works(tuning(task, program) + " --out {to}/run", here=ready[kind], to=tmp_path)
    works(f"{program} --predict {given} --init {tmp_path}/run/{task} --out {tmp_path}/out")
    expected = (tmp_path / "run" / task / name).read_text()
    answers = (tmp_path / "out" / name).read_text()
    assert expected.startswith(answers) if task == "RACE" else expected == answers
    assert len(answers) > 2


@pytest.mark.parametrize("file", [albert, autobert_zero])
def test_rte_starts_from_mnlis_model(file, ready, works, tmp_path, monkeypatch):
    started = []
    start_from = file.start_from

    def noted(model, source, *more):
        started.append(Path(source.path).name)
        return start_from(model, source, *more)

    monkeypatch.setattr(file, "start_from", noted)
    tune = tuning("RTE,MNLI", file.__name__) + " --out {out}"
    works(tune, here=ready["glue"], out=tmp_path)
    assert started == [file.__name__, "MNLI-0"]


@pytest.mark.parametrize("program, trained, longer", [
    ("albert", 60, 64), ("autobert_zero", 64, 80)])
def test_inputs_longer_than_in_training_start_from_copies_of_trained_positions(
        program, trained, longer, ready, works, tmp_path, capsys):
    """A model that was fine-tuned on such inputs has trained all their positions."""
    tune = tuning("CoLA", program).replace(f"--init {{{program}}}", "--init {init}")
    told = f"positions {trained} to {longer - 1} are copies of 0 to {trained - 1}\n"
    for init, length, copied in [
            (ready[program], trained, False), (ready[program], longer, True),
            (tmp_path / "1/CoLA", longer, False)]:
        out = tmp_path / str(int(copied))
        works(f"{tune} --finetune_length {length} --out {out} --restart",
              here=ready["glue"], init=init)
        assert (told in capsys.readouterr().out) == copied


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_diverged_fine_tuning_has_the_worst_score(program, ready, works, tmp_path):
    tune = tuning("CoLA", program) + " --finetune_lr 1e30 --out {out}"
    works(tune, here=ready["glue"], out=tmp_path)
    line = read_json(tmp_path / "done.json")["tasks"]["CoLA"]
    assert line["diverged"] > 0
    assert line["metrics"]["main"] == -1.0
    assert not (tmp_path / "CoLA" / "checkpoint.pt").exists()
