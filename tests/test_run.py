"""Run folders, values that are kept, training loops that are stopped."""
import dataclasses
import functools
import math
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import release_locks
from small_runs import ALONE, write

from common.cli import Command, Diverged, Stop, UserError
from common.files import read_json, read_jsonl
from common.run import Loop, Means, Run


@dataclasses.dataclass
class Config:
    lr: float = 1.0
    steps: int = 10
    widths: tuple = ()
    dry_run: bool = False
    # execution: may differ
    out: str = ""
    restart: bool = False
    device: str = "cpu"
    save_every: int = 3
    tensorboard: bool = False


def open_run(folder, reads=None, program="albert", **settings):
    release_locks()
    cfg = Config(out=str(folder), **settings)
    return Run(cfg, Command(program, "search"), ALONE, SimpleNamespace(files=reads or {}))


def test_a_run_is_resumed_and_refused_to_others():
    write(open_run("run", widths=(1, 2)).folder / "finalists/0.pt.partial-7", "torn")
    open_run("run", widths=(1, 2)).log("train", 1, loss=2.0)
    run = open_run("run", widths=(1, 2))
    run.once("value.json", dict)
    run.log("train", 1, loss=2.0)
    with open("run/log.jsonl", "a") as log:
        log.write('{"phase": "train", "st')  # cut short by a crash
    open_run("run", widths=(1, 2), device="cuda")
    lines = read_jsonl("run/log.jsonl")
    assert [line.get("event") for line in lines] == [None, "resumed"]
    assert read_json("run/config.json")["settings"]["device"] == "cuda"
    assert not [*Path("run").rglob("*.partial-7")]
    with pytest.raises(UserError, match=r"lr \(1.0 there, 2.0 here"):
        open_run("run", lr=2.0, widths=(1, 2))
    for other in ({"program": "mformer"}, {"program": "mformer", "restart": True}):
        with pytest.raises(UserError, match="not a run folder of mformer.py"):
            open_run("run", **other)


def test_a_folder_without_results_is_taken_over():
    open_run("run")
    assert not open_run("run", lr=2.0).result
    open_run("run", lr=2.0).finish({"loss": (1, 2)})
    assert open_run("run", lr=2.0).result == {"loss": [1, 2]}
    with pytest.raises(UserError, match="lr"):
        open_run("run")
    write("mine/notes.txt", "")
    with pytest.raises(UserError, match="not a run folder"):
        open_run("mine", restart=True)  # no run made it


def test_restart_renames_the_old_run_and_deletes_nothing(capsys, monkeypatch):
    open_run("run").finish({"loss": 1})
    write("run/CoLA/notes.txt", "mine")
    assert open_run("run", lr=2.0, restart=True).result is None
    old, = Path().glob("run-*")
    assert (old / "CoLA/notes.txt").read_text() == "mine"
    assert read_json(old / "done.json") == {"loss": 1}
    assert "the old run is now" in capsys.readouterr().out
    open_run("run", lr=2.0).finish({"loss": 2})
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # the same command, after a failure
    assert open_run("run", lr=2.0, restart=True).result == {"loss": 2}


def test_data_that_change_are_refused():
    glue = write("glue.tsv", "1")
    text = write("data/1.txt", "1")
    begin = functools.partial(open_run, "run", {"corpus": [Path("data")], "glue": [glue]})
    begin().once("value.json", dict)
    for flag, path in {"glue": glue, "corpus": text}.items():
        before = path.read_text()
        write(path, "2")
        with pytest.raises(UserError, match=f"the files of --{flag} have changed"):
            begin()
        write(path, before)
    with pytest.raises(UserError, match="one contains the other"):
        open_run("data/run", {"corpus": [Path("data")]})


def test_a_dry_run_leaves_no_folder(monkeypatch):
    ends = []
    monkeypatch.setattr("atexit.register", lambda *call, **more: ends.append((call, more)))
    run = open_run("", dry_run=True)
    run.finish({})
    assert (run.folder / "done.json").exists()
    (delete, *arguments), more = ends.pop()
    delete(*arguments, **more)
    assert not run.folder.exists()


def test_a_value_is_computed_once():
    calls = []
    for _ in range(2):
        value = open_run("run").once("value.json", lambda *words: calls.append(words) or words, 1, 2)
        assert value == [1, 2]
    assert calls == [(1, 2)]


def test_jobs_are_done_once_each_and_a_stop_reaches_all():
    done = []
    reported = {}

    def work(name):
        done.append(name)
        if name == "c" and done.count("c") == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            raise Stop  # as a Loop does
        return {"name": name}

    def each():
        return open_run("run").each(
            "jobs", list("dcba"), work, cost=list("dcba").index, report=reported.__setitem__)

    with pytest.raises(Stop):
        each()
    assert done == list("abc")  # the highest cost first
    ALONE.stop.clear()
    assert each() == {name: {"name": name} for name in "dcba"} == reported
    assert done == list("abccd")


def test_one_process_does_what_is_timed():
    ranks = dataclasses.replace(ALONE, rank=1)
    run = open_run("run")
    write("run/times/a.json", "1")
    run.ranks = ranks
    assert run.each("times", ["a"], lambda name: 2 / 0, processes=1) == {"a": 1}


def train(run, until=math.inf, **settings):
    """Train y = 2 x, stopped by SIGTERM in step `until`. Returns the model, the steps, a counter in
    the state."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    loop = Loop(run, "train", Config(**settings), model=model, optimizer=optimizer)
    steps = []
    for step, batch in loop(iter(range(loop.begin, 100))):
        assert batch == step
        steps.append(step)
        loss = (model(torch.ones(1, 1)) - 2).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loop.evaluates(step):
            loop.state["evaluations"] = loop.state.get("evaluations", 0) + 1
        if step == until:
            os.kill(os.getpid(), signal.SIGTERM)
        loop.after(step, {"loss": loss.detach()}, [{"ids": torch.ones(2)}], lr=0.1)
    return model.weight.item(), steps, loop.state


def test_a_loop_that_is_stopped_continues_as_if_it_had_not_been():
    whole = train(open_run("whole"))
    assert whole[1:] == ([*range(10)], {"evaluations": 3})  # after steps 7, 4, 1
    with pytest.raises(Stop):
        train(open_run("run"), until=4)
    ALONE.stop.clear()
    assert torch.load("run/checkpoint.pt")["step"] == 5
    weight, steps, state = train(open_run("run"))
    assert (weight, steps, state) == (whole[0], [5, 6, 7, 8, 9], whole[2])
    assert torch.load("run/checkpoint.pt")["owned"].keys() == {"model"}
    assert train(open_run("run")) == (whole[0], [], whole[2])  # finished
    line = read_jsonl("whole/log.jsonl")[-1]
    assert line["step"] == 10 and line["lr"] == 0.1 and line["tokens_per_second"] > 0


def test_sigterm_in_the_last_step_loses_nothing():
    """The loop finishes, and the next one stops after a step."""
    run = open_run("run")
    assert train(run, until=9)[1] == [*range(10)]
    shutil.move("run/checkpoint.pt", "kept.pt")
    with pytest.raises(Stop):
        train(run)
    ALONE.stop.clear()


def test_a_damaged_checkpoint_ends_in_one_line():
    train(open_run("run"))
    path = Path("run/checkpoint.pt")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="not a readable checkpoint.*--restart begins"):
        train(open_run("run"))


def test_means_are_over_the_steps_since_the_last():
    means = Means(ALONE)
    for losses in ([1.0, 2.0, 6.0], [4.0]):
        for loss in losses:
            means.add({"loss": torch.tensor(loss)}, [{"labels": torch.ones(8)}])
        assert means.take(7)["loss"] == sum(losses) / len(losses)
    means.add({"loss": torch.tensor(math.nan)}, [{"labels": torch.ones(8)}])
    with pytest.raises(Diverged, match="loss is NaN or infinite at step 9"):
        means.take(9)


def test_a_system_without_locks_runs_without_them(monkeypatch):
    monkeypatch.setattr("common.files.fcntl", None)
    with pytest.warns(UserWarning, match="no locks"):
        open_run("run")


def test_tensorboard_has_the_numbers_of_the_log():
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = open_run("run", tensorboard=True).alone("CoLA-1")
    run.log("finetune", 7, loss=0.5, dev={"score": 0.25})
    scalars = events.EventAccumulator("run/tensorboard").Reload().Scalars("finetune/CoLA-1/dev_score")
    assert [(scalar.step, scalar.value) for scalar in scalars] == [(7, 0.25)]
