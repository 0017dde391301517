"""common/cli.py: a dataclass as a command line."""
import dataclasses
import importlib
import io
import sys

import pytest
import torch._dynamo
from small_runs import ALONE, write

from common import cli, launch


@dataclasses.dataclass(frozen=True)
class Config:
    preset: str = "demo"  # which numbers
    out: str = ""  # run folder
    restart: bool = False  # begin again
    dry_run: bool = False  # two steps
    init: str = ""  # run folder to start from
    batch: int = 8  # examples in a step [>= 1]
    lr: float = 1e-3  # learning rate [> 0]
    # shape, of the model
    widths: tuple[int, ...] = (4, 8)  # choices
    dropout: float = 0.1  # rate [0, 1)
    fast: bool = False  # a switch


PRESETS = {
    "demo": {"lr": 2e-3, "train": {"batch": 16}},
    "base": {},
    "dry_run": {"batch": 2, "tune": {"lr": 0.5}},
}
ACTIONS = {
    "train": (print, "train", ("run", "shape")),
    "tune": (print, "tune on tasks", ("run",), "TASKS"),
}


def parse(text):
    return cli.parse(Config, PRESETS, ACTIONS, "a test", text.split())


def test_flags_override_the_action_which_overrides_the_preset():
    command, config = parse("--train --widths 2 4 6 --fast")
    assert command == cli.Command("test_cli", "train", given=frozenset({"widths", "fast"}))
    assert config.batch == 16
    assert config.widths == (2, 4, 6)
    assert config.out == "runs/test_cli-train-demo"
    command, config = parse("--tune a b --batch 3 --preset base --out x")
    assert command.value == "a,b"
    assert config == Config("base", "x", batch=3)


def test_the_help_has_what_the_preset_sets_for_each_action(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    printed = " ".join(capsys.readouterr().out.split())
    assert "[>= 1] (default: 8; with --train: 16)" in printed
    assert "learning rate [> 0] (default: 0.002)" in printed
    assert "a switch" in printed and "a switch (" not in printed


def test_the_help_of_mformer_has_what_a_run_of_each_task_takes(capsys):
    module = importlib.import_module("mformer")
    taken = {}
    for task in ("cifar10", "wmt14"):
        flags = ["--train", "--task", task]
        _, taken[task] = cli.parse(
            module.Config, module.presets_of(flags), module.actions_of(task), "a test", flags)
    with pytest.raises(SystemExit):
        module.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"with --task wmt14: {taken['wmt14'].vocab_size})" in printed
    steps = taken["cifar10"].steps, taken["wmt14"].steps
    assert "(default: {}; with --task wmt14: {})".format(*steps) in printed


def test_a_dry_run_overrides_the_preset_and_has_a_temporary_folder():
    _, config = parse("--tune a --batch 7 --dry_run")
    assert config == Config(out="", dry_run=True, batch=7, lr=0.5)
    _, config = parse("--tune a --out x --dry_run")
    assert config.out == "x"


def test_a_model_carries_its_preset_unless_another_is_given(capsys):
    write("run/config.json", {"settings": {"preset": "base"}})
    write("other/config.json", "{")
    assert parse("--train --init run")[1].preset == "base"
    assert "--preset base: as in run" in capsys.readouterr().err
    for text in ("--train --init run --preset demo", "--train --init other", "--train --init none"):
        assert parse(text)[1].preset == "demo"
    assert not capsys.readouterr().err


@pytest.mark.parametrize("text, words", [
    ("--train --batch x", "invalid int value: 'x'"),
    ("--train --batch 0", "--batch 0"),
    ("--train --lr nan", "--lr nan"),
    ("--train --dropout 1", "--dropout 1.0"),
    ("--train --widths 4 -1", "--widths -1"),
    ("--train --preset dry_run", "invalid choice: 'dry_run'"),
    ("--train --tune a", "not allowed with"),
    ("--batch 3", "need an action: --train, --tune"),
    ("--tune a --fast", "--fast: --tune does not read it; --train reads it"),
])
def test_mistakes_end_in_one_line(text, words, capsys):
    with pytest.raises(SystemExit) as error:
        cli.run(lambda: parse(text))
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1


def test_output_survives_an_encoding_without_a_character_and_a_closed_stream(monkeypatch):
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as end:
        cli.run(lambda: launch.print0(ALONE, "runs/\xe9"))
    assert not end.value.code
    assert ascii_only.buffer.getvalue() == b"runs/\\xe9\n"
    print("dropped", file=sys.stderr, flush=True)


def test_a_failure_of_the_compiler_is_one_line(capsys):
    def fail(config, command):
        raise torch._dynamo.exc.BackendCompilerFailed(print, RuntimeError("no C++ compiler"), None)

    actions = {"train": (fail, "train", ("run",))}
    with pytest.raises(SystemExit) as error:
        cli.run(lambda: cli.start(
            Config, PRESETS, actions, "a test", lambda *_: None, ["--train"]))
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert "--compile failed" in printed and printed.count("\n") == 1


@pytest.mark.parametrize("command, readers", [
    ("albert --finetune CoLA --init x --length 64", "--pretrain and --describe"),
    ("albert --finetune CoLA --init x --objective sop", "--pretrain and --describe"),
    ("albert --finetune CoLA --init x --weight_decay 0", ""),
    ("albert --pretrain --recipe v2", ""),  # kept for later fine-tunings
    ("albert --pretrain --steps 5", ""),
    ("albert --export x --init x --out y", "--pretrain and --finetune and --predict"),
    ("albert --describe --layers 3", ""),
    ("albert --describe --glue x", "--finetune reads it"),
    ("autobert_zero --finetune CoLA --length 64", ""),  # of the model
    ("autobert_zero --finetune CoLA --steps 5", "--search and --pretrain and --describe"),
    ("autobert_zero --search --arch bert", "--pretrain and --finetune and --predict"),
    ("autobert_zero --search --runs 3", "--finetune reads it"),
    ("autobert_zero --search --population 9 --finetune_lr 1", ""),
    ("autobert_zero --pretrain --population 9", "--search reads it"),
    ("autotinybert --further_train --arch 1-8-8-1-8 --speedup 2", "--search"),
    ("autotinybert --finetune CoLA --init x --lr 1", "--search"),
    ("autotinybert --export x --init x --arch 1-8-8-1-8", ""),
    ("mformer --train --arch mformer --samples 40", "--search"),
    ("mformer --search --samples 40", ""),
    ("mformer --evaluate --init x --lr 1", "--train"),
    ("mformer --evaluate --init x --cost flops", ""),
    ("mformer --describe --steps 5", ""),
    ("mformer --train --arch mformer --beam 2", "--task wmt14"),
    ("mformer --train --arch mformer --task wmt14 --patch 2", "--task cifar10"),
])
def test_a_flag_that_the_action_does_not_read_is_refused(command, readers, monkeypatch):
    file, *words = command.split()
    module = importlib.import_module(file)
    monkeypatch.setattr(cli, "make_config", lambda *_: module.Config())
    monkeypatch.setattr(module, "check", lambda *_: None)
    called = []
    monkeypatch.setattr(cli, "run_action", lambda *_: called.append(0) or 0)
    if readers:
        with pytest.raises(cli.UserError, match="does not read it") as error:
            module.main(words)
        assert readers in str(error.value)
    else:
        assert module.main(words) == 0
    assert len(called) == (not readers)


@pytest.mark.parametrize("file", ["albert", "autobert_zero", "autotinybert", "mformer"])
def test_actions_read_all_groups_of_settings_and_no_others(file):
    module = importlib.import_module(file)
    groups = {cli.group_of(module.Config, field.name)
              for field in dataclasses.fields(module.Config)}
    tasks = ("cifar10", "wmt14") if file == "mformer" else [None]
    tables = [module.actions_of(task) if task else module.ACTIONS for task in tasks]
    read = {group for table in tables for action in table.values() for group in action[2]}
    assert read == groups


@pytest.mark.parametrize("file, others", [
    ("albert", set()), ("autobert_zero", set()), ("autotinybert", set()),
    ("mformer", {"batch", "accumulate"})])  # of one GPU
def test_the_defaults_are_the_preset_base(file, others):
    module = importlib.import_module(file)
    defaults = dataclasses.asdict(module.Config())
    base = module.presets_of([])["base"] if file == "mformer" else module.PRESETS["base"]
    assert defaults["preset"] == "base"
    for name, value in base.items():
        assert name in others or isinstance(value, dict) or value == defaults[name]


def test_the_title_of_a_group_may_have_two_lines():
    title = cli.field_groups(importlib.import_module("mformer").Config)["hidden"]
    assert title.startswith("search space (") and title.endswith("are the decoder's too")


TRAINING = [
    "albert --pretrain",
    "autobert_zero --pretrain",
    "autotinybert --superplm",
    "autotinybert --further_train --arch 4-96-384-6-96",
    "mformer --train",
    "mformer --search",
    "mformer --train --task wmt14",
    "mformer --search --task wmt14",
]


def every_preset():
    for command in TRAINING:
        file, *words = command.split()
        module = importlib.import_module(file)
        presets = module.presets_of(words) if hasattr(module, "presets_of") else module.PRESETS
        for preset in presets:
            if preset != "dry_run":
                yield f"{command} --preset {preset}"


@pytest.mark.parametrize("command", [*every_preset()])
def test_every_preset_passes_its_checks_and_shares_its_micro_batches(command, monkeypatch):
    """On eight processes. Nothing is computed: the action keeps the settings."""
    file, *words = command.split()
    module = importlib.import_module(file)
    configs = []
    monkeypatch.setattr(cli, "run_action", lambda *args: configs.append(args[1:]) or 0)
    assert module.main(words) == 0
    (cfg, command), = configs
    ranks = [launch.Ranks(rank, 8, None) for rank in range(8)]
    accumulate = launch.fit_accumulate(cfg, command, ranks[0])
    shares = [[*launch.micro_batch_numbers(each, accumulate)] for each in ranks]
    assert sorted(sum(shares, [])) == [*range(accumulate)]
    assert {len(share) for share in shares} == {accumulate // 8}
