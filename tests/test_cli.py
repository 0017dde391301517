"""common/cli.py: a dataclass as a command line."""
import dataclasses
import importlib
import io
import sys
import warnings

import pytest
import torch._dynamo
from small_runs import ALONE

from common import cli, distributed


@dataclasses.dataclass(frozen=True)
class Config:
    preset: str = "demo"  # which numbers
    out: str = ""  # run folder
    restart: bool = False  # begin again
    dry_run: bool = False  # two steps
    batch: int = 8  # examples in a step [>= 1]
    lr: float = 1e-3  # learning rate [> 0]
    widths: tuple[int, ...] = (4, 8)  # choices
    dropout: float = 0.1  # rate [0, 1)
    fast: bool = False  # a switch


PRESETS = {
    "demo": {"lr": 2e-3, "train": {"batch": 16}},
    "base": {},
    "dry_run": {"batch": 2, "tune": {"lr": 0.5}},
}
ACTIONS = {"train": (print, "train"), "tune": (print, "tune on tasks", "TASKS")}


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
            module.Config, module.presets_of(flags), module.ACTIONS, "a test", flags)
    with pytest.raises(SystemExit):
        module.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"with --task wmt14: {taken['wmt14'].vocab_size})" in printed
    steps = taken["cifar10"].steps, taken["wmt14"].steps
    assert "(default: {}; with --task wmt14: {})".format(*steps) in printed


def test_a_dry_run_overrides_the_preset_and_stays_out_of_the_folder_of_the_real_one():
    _, config = parse("--tune a --out x/ --batch 7 --dry_run")
    assert config == Config(out="x-dry", restart=True, dry_run=True, batch=7, lr=0.5)


@pytest.mark.parametrize("text, words", [
    ("--train --batch x", "invalid int value: 'x'"),
    ("--train --batch 0", "--batch 0"),
    ("--train --lr nan", "--lr nan"),
    ("--train --dropout 1", "--dropout 1.0"),
    ("--train --widths 4 -1", "--widths -1"),
    ("--train --preset dry_run", "invalid choice: 'dry_run'"),
    ("--train --tune a", "not allowed with"),
    ("--batch 3", "need an action: --train, --tune"),
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
        cli.run(lambda: distributed.print0(ALONE, "runs/\xe9"))
    assert not end.value.code
    assert ascii_only.buffer.getvalue() == b"runs/\\xe9\n"
    print("dropped", file=sys.stderr, flush=True)


def test_a_failure_of_the_compiler_is_one_line(capsys):
    def fail(config, command):
        raise torch._dynamo.exc.BackendCompilerFailed(print, RuntimeError("no C++ compiler"), None)

    actions = {"train": (fail, "train")}
    with pytest.raises(SystemExit) as error:
        cli.run(lambda: cli.start(
            Config, PRESETS, actions, "a test", lambda *_: None, {}, {}, ["--train"]))
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert "--compile failed" in printed and printed.count("\n") == 1


@pytest.mark.parametrize("command, told", [
    ("autotinybert --further_train --arch 1-8-8-1-8 --steps 9", "--further_steps counts"),
    ("autotinybert --further_train --arch 1-8-8-1-8 --steps 9 --further_steps 9", ""),
    ("autotinybert --finetune CoLA --init x --lr 1", "--finetune_lr counts"),
    ("autotinybert --finetune MLM-saved --init x --length 64", ""),
    ("albert --finetune CoLA --init x --length 64", "--length: --finetune does not read it"),
    ("autobert_zero --finetune CoLA --length 64", ""),  # read
    ("autobert_zero --finetune CoLA --steps 5", "--finetune_epochs counts"),
    ("albert --pretrain --steps 5", ""),
    ("mformer --train --arch mformer --samples 40", "--samples: --train does not read it"),
    ("mformer --search --samples 40", ""),
    ("mformer --evaluate --init x --lr 1", "--lr: --evaluate does not read it"),
    ("mformer --evaluate --init x --cost flops", ""),
    ("mformer --describe --lr 1", "--lr: --describe does not read it"),
    ("mformer --describe --steps 5", ""),
    ("mformer --predict x.npz --init x --cost flops", "--cost: --predict does not read it"),
    ("mformer --predict x.npz --init x --restart", "--restart: --predict does not read it"),
    ("mformer --evaluate --init x --seed 5", "--seed: --evaluate does not read it"),
    ("mformer --evaluate --init x --images i --restart", ""),
    ("mformer --describe --images i", "--images: --describe does not read it"),
    ("albert --predict x.tsv --init x --seed 5", "--seed: --predict does not read it"),
    ("albert --export x --init x --out y", "--out: --export does not read it"),
    ("albert --describe --layers 3", ""),
    ("albert --describe --corpus x", "--corpus: --describe does not read it"),
    ("autobert_zero --predict x.tsv --init x --runs 2", "--runs: --predict does not read it"),
    ("autobert_zero --describe --arch bert --length 64", ""),
    ("autotinybert --describe --tensorboard", "--tensorboard: --describe does not read it"),
    ("autotinybert --export x --init x --arch 1-8-8-1-8", ""),
    ("autobert_zero --pretrain --population 9", "--population: --pretrain does not read it"),
    ("autobert_zero --pretrain --finetune_lr 1", "--finetune_lr: --pretrain does not read it"),
    ("autobert_zero --search --runs 3", "--runs: --search does not read it"),
    ("autobert_zero --search --population 9 --finetune_lr 1", ""),
    ("autotinybert --further_train --arch 1-8-8-1-8 --speedup 2", "--speedup: --further_train"),
    ("autotinybert --latency --population 9", ""),  # a setting of the run folder
    ("albert --finetune CoLA --init x --objective sop", "--objective: --finetune does not"),
    ("albert --finetune CoLA --init x --weight_decay 0", ""),
    ("albert --pretrain --recipe v2", ""),  # kept for later fine-tunings
    ("mformer --train --arch mformer --beam 2 --task wmt14", "--beam: --train does not read it"),
])
def test_a_flag_that_the_action_does_not_read_is_told(command, told, monkeypatch):
    file, *words = command.split()
    module = importlib.import_module(file)
    _, *more = module.ACTIONS[words[0][2:]]
    monkeypatch.setitem(module.ACTIONS, words[0][2:], (lambda *args: None, *more))
    with warnings.catch_warnings(record=True) as printed:
        assert module.main(words) == 0
    assert [told in str(each.message) for each in printed] == [True] * bool(told)


@pytest.mark.parametrize("file", ["albert", "autobert_zero", "autotinybert", "mformer"])
def test_the_tables_of_read_flags_name_actions_and_flags(file):
    module = importlib.import_module(file)
    flags = {field.name for field in dataclasses.fields(module.Config)}
    groups = {cli.group_of(module.Config, flag) for flag in flags}
    for table, known in (module.READS, flags), (module.UNREAD, flags | groups):
        assert table.keys() <= module.ACTIONS.keys()
        for names in table.values():
            assert {*names} <= known


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
    monkeypatch.setitem(module.ACTIONS, words[0][2:], (lambda *args: configs.append(args), "help"))
    assert module.main(words) == 0
    (cfg, command), = configs
    ranks = [distributed.Ranks(rank, 8, None) for rank in range(8)]
    accumulate = distributed.fit_accumulate(cfg, command, ranks[0])
    shares = [[*distributed.micro_batch_numbers(each, accumulate)] for each in ranks]
    assert sorted(sum(shares, [])) == [*range(accumulate)]
    assert {len(share) for share in shares} == {accumulate // 8}
