"""The outputs of finished runs of all four files: log.jsonl, the next command, which works when
pasted, and a fine-tuned model, with which --predict answers a user's own file."""
import math
import re
import shutil
from pathlib import Path

import pytest
from small_runs import TRAINED, next_command, write
from test_bad_input import tuning

import albert
import autobert_zero
from common.files import read_json, read_jsonl


@pytest.mark.parametrize("run", TRAINED)
def test_the_next_command_works_when_it_is_pasted(run, ready, works, capsys):
    shutil.copytree(ready[run], "run")
    log = read_jsonl("run/log.jsonl")
    losses = [line["loss"] for line in log if "loss" in line]
    assert losses and all(map(math.isfinite, losses))
    works(TRAINED[run] + " --out run")
    printed = capsys.readouterr().out
    assert "run: finished" in printed
    assert Path(re.search("result: (.+)", printed)[1]).exists()
    if run != "mformer":  # a user's own text
        assert "--finetune FOLDER" in printed
        assert re.search(r"at --length \d+; losses at other lengths do not compare", printed)
    if run in ("albert", "autobert_zero"):  # two steps
        assert "mlm_accuracy: near the baseline; more --steps help" in printed
    if run == "mformer":
        assert re.search(r"held-out loss [\d.]+ \(a uniform guess: [\d.]+\)", printed)
    before = {*Path().rglob("*")}
    works(next_command(printed))
    assert {*Path().rglob("*")} > before


@pytest.mark.parametrize("run", TRAINED)
def test_a_training_that_continues_does_not_say_from_scratch(run, ready, works, capsys):
    shutil.copytree(ready[run], "run")
    Path("run/done.json").unlink()
    works(f"{TRAINED[run]} --out run")
    printed = capsys.readouterr().out
    assert "from scratch" not in printed
    if run != "autotinybert":  # never says how a training starts
        assert "continues from run/checkpoint.pt; " in printed


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
        program, task, source, name, ready, works):
    """No answer of the file is read."""
    kind, _, rest = source.partition("/")
    text = (ready[kind] / rest).read_text()
    given = write(f"mine/{Path(source).name}", without_answers(text))
    works(tuning(task, program) + " --out run", here=ready[kind])
    works(f"{program} --predict {given} --init run/{task} --out out")
    expected = Path("run", task, name).read_text()
    answers = Path("out", name).read_text()
    assert expected.startswith(answers) if task == "RACE" else expected == answers
    assert len(answers) > 2


@pytest.mark.parametrize("file", [albert, autobert_zero])
def test_rte_starts_from_mnlis_model(file, ready, works, monkeypatch):
    started = []
    start_from = file.start_from

    def noted(model, source, *more):
        started.append(Path(source.path).name)
        return start_from(model, source, *more)

    monkeypatch.setattr(file, "start_from", noted)
    works(tuning("RTE,MNLI", file.__name__) + " --out run", here=ready["glue"])
    assert started == [file.__name__, "MNLI-0"]


@pytest.mark.parametrize("program, trained", [("albert", 60), ("autobert_zero", 64)])
def test_a_task_that_starts_from_mnli_keeps_the_number_of_trained_positions(
        program, trained, ready, works):
    """Else a later --init with longer inputs would overwrite trained positions."""
    works(tuning("MNLI,RTE", program) + " --finetune_length 24 --out run", here=ready["glue"])
    kept = [read_json(f"run/{task}/config.json")["trained"] for task in ("MNLI", "RTE")]
    assert kept == [trained, trained]


@pytest.mark.parametrize("program, trained, longer", [
    ("albert", 60, 64), ("autobert_zero", 64, 80), ("autotinybert", 48, 64)])
def test_inputs_longer_than_in_training_start_from_copies_of_trained_positions(
        program, trained, longer, ready, works, capsys):
    """A model that was fine-tuned on such inputs has trained all their positions."""
    tune = tuning("CoLA", program).replace(f"--init {{{program}}}", "--init {init}")
    told = f"positions {trained} to {longer - 1} are copies of 0 to {trained - 1}\n"
    for init, length, copied in [
            (ready[program], trained, False), (ready[program], longer, True),
            ("1/CoLA", longer, False)]:
        works(f"{tune} --finetune_length {length} --out {int(copied)} --restart",
              here=ready["glue"], init=init)
        assert (told in capsys.readouterr().out) == copied


@pytest.mark.parametrize("program", ["albert", "autobert_zero", "autotinybert"])
def test_a_diverged_fine_tuning_has_the_worst_score(program, ready, works):
    works(tuning("CoLA", program) + " --finetune_lr 1e30 --out run", here=ready["glue"])
    line = read_json("run/done.json")["tasks"]["CoLA"]
    assert line["diverged"] > 0
    assert line["metrics"]["main"] == -1.0
    assert not Path("run/CoLA/checkpoint.pt").exists()
