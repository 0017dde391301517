"""What the data flags of a command stand for: looked at before a folder is touched, fingerprinted as far as read."""
import dataclasses
import importlib
import json

import pytest
import torch

from common.cli import UserError
from common.distributed import Ranks
from common.files import release_locks
from common.runs import RunFolder
from data.inputs import open_run

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def unlocked():
    yield
    release_locks()


@dataclasses.dataclass
class Config:
    out: str
    restart: bool = False
    dry_run: bool = False
    corpus: tuple = ()
    glue: str = ""
    squad: str = ""
    cifar10: str = ""
    race: str = ""
    train_text: str = ""
    languages: tuple = ("en", "de")
    tokenizer: str = ""
    tasks: str = ""
    vocab_size: int = 30
    held_out: float = 0.05
    program, given, models, preset = "albert", frozenset(), ("tokenizer",), "base"


@pytest.fixture
def command(tmp_path):
    """command(action, *needs, **settings): opens a run folder as a paper file does."""
    def given(action, *needs, tasks="", **settings):
        config = Config(str(tmp_path / "run"), tasks=tasks, **settings)
        run, _ = open_run(config, action, ALONE, *needs, tasks=tasks.split(",") if tasks else ())
        release_locks()
        return run
    return given


@pytest.fixture
def glue(tmp_path):
    for name in ("RTE", "MRPC", "CoLA"):
        (tmp_path / "glue" / name).mkdir(parents=True)
        for split in ("train", "dev"):
            (tmp_path / "glue" / name / f"{split}.tsv").write_text(f"{name} {split}\n")
    return tmp_path / "glue"


@pytest.mark.parametrize("flag, value", [
    ("glue", "typo"), ("squad", "typo"), ("cifar10", "typo"), ("race", "typo"), ("train_text", "typo"),
    ("corpus", ("typo.txt",)), ("tokenizer", "typo.model")])
def test_a_mistyped_path_does_not_cost_the_run_that_restart_would_replace(command, glue, flag, value):
    command("finetune", "glue", glue=str(glue), tasks="RTE").log("finetune", 1)
    folder = command("finetune", "glue", glue=str(glue), tasks="RTE").folder
    (folder / "checkpoint.pt").write_text("weeks of work")
    wrong = {"glue": str(glue), flag: value}
    with pytest.raises(UserError, match="typo.*no "):
        command("finetune", "glue", *([flag] if flag != "glue" else []), tasks="RTE,SQuAD1.1", restart=True, **wrong)
    assert (folder / "checkpoint.pt").read_text() == "weeks of work"
    command("finetune", "glue", glue=str(glue), tasks="RTE", restart=True)
    assert not (folder / "checkpoint.pt").exists()


def test_the_tasks_that_are_read_are_fingerprinted_and_no_others(command, glue):
    folder = command("finetune", "glue", glue=str(glue), tasks="RTE").folder
    (folder / "checkpoint.pt").touch()
    assert {name.rsplit("/", 2)[-2] for name in json.loads((folder / "config.json").read_text())["read"]} == {"RTE"}
    (glue / "CoLA" / "train.tsv").write_text("another")
    (glue / "QNLI").mkdir()
    command("finetune", "glue", glue=str(glue), tasks="RTE")
    (glue / "RTE" / "dev.tsv").write_text("another")
    with pytest.raises(UserError, match="RTE/dev.tsv has changed since"):
        command("finetune", "glue", glue=str(glue), tasks="RTE")


# --- cfg is settled before config.json is written --------------------------------------------------------------------

TINY = {"albert": "--layers 1", "autobert_zero": "--layers 2 --runs 1",
        "mformer": "--cost flops --layers 1 --hidden 16 24 --ffn 16 24 32",
        "autotinybert": "--largest 2-32-64-2-32 --smallest 1-16-16-1-16"}
SETTLED = {  # actions that open a run folder, in their order: {0} is the folder of the first; whether they read text
    "albert": [("--pretrain", True), ("--finetune RTE --init {0}", False)],
    "autobert_zero": [("--search --tasks CoLA", True), ("--pretrain --arch bert --steps 0", True),
                      ("--finetune CoLA --init {1}", False)],
    "autotinybert": [("--superplm", True), ("--further_train --arch 1-32-64-2-32", True),
                     ("--finetune SST-2 --init {1}", False)],
    "mformer": [("--search", False), ("--train --arch {0}/best.json", False), ("--evaluate --init {1}", False)]}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Flags of a small text and vocabulary."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("a man sat on a mat.\nhe saw a cat.\n\nit ran.\n\n" * 80)
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] a man sat on mat he saw cat it ran ."
    (folder / "vocab.txt").write_text(pieces.replace(" ", "\n") + "\n")
    return f" --corpus {folder}/a.txt --tokenizer {folder}/vocab.txt --length 16 --batch 8"


@pytest.mark.parametrize("file", SETTLED)
def test_config_json_says_what_is_computed_and_nothing_is_assigned_behind_it(file, text, demo, tmp_path, monkeypatch):
    settled, settle = [], RunFolder.settle
    monkeypatch.setattr(RunFolder, "settle", lambda run, cfg: (settle(run, cfg), settled.append(cfg)))
    folders = [f"{tmp_path}/{number}-dry" for number in range(len(SETTLED[file]))]
    for number, (command, reads_text) in enumerate(SETTLED[file]):
        data = text if reads_text else f" --glue {demo['glue']}" * ("--finetune" in command)
        words = f"{command.format(*folders)} {TINY[file]}{data} --dry_run --device cpu"
        importlib.import_module(file).main([*words.split(), "--out", f"{tmp_path}/{number}"])
        cfg, record = settled[number], json.loads((tmp_path / f"{number}-dry" / "config.json").read_text())
        with pytest.raises(AttributeError, match="settled before config.json"):
            cfg.seed = 1
        assert len(settled) == number + 1  # and as it was written it still stands: nothing has assigned to it since
        assert record["settings"] | json.loads(json.dumps(dataclasses.asdict(cfg))) == record["settings"]
        assert all(record["settings"][name] for name in record.get("asked", ())) and record["settings"].get("steps", 1)
        assert not reads_text or record["vocabulary"]["pieces"] == 16 == cfg.vocab_size


def test_0_steps_become_a_number_and_the_0_that_was_asked_for_resumes(text, tmp_path, capsys):
    """Ten passes over the corpus of a model from scratch; then the same command, and one that asks for that number."""
    words = f"--further_train --arch 1-16-32-1-16 --further_steps 0 --out {tmp_path}/run --device cpu{text}".split()
    autotinybert = importlib.import_module("autotinybert")
    autotinybert.main(words)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["further_steps"] > 2 and config["asked"]["further_steps"] == 0
    autotinybert.main(words)
    assert "finished" in capsys.readouterr().out
    steps = str(config["settings"]["further_steps"])
    with pytest.raises(UserError, match=f"other settings: further_steps .0 there, {steps} here.;"):
        autotinybert.main([*words, "--further_steps", steps])
