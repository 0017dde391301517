"""common/cli.py: a dataclass as a command line."""
import dataclasses
import importlib

import pytest

from common import cli

FILES = ("autobert_zero", "albert", "autotinybert", "mformer")


@dataclasses.dataclass
class Config:
    preset: str = "demo"  # which numbers
    batch: int = 8  # rows an update
    lr: float = 1e-3  # learning rate
    widths: tuple[int, ...] = (4, 8)  # choices
    dropout: float = 0.1  # share dropped
    fast: bool = False  # a switch


PRESETS = {"demo": {"lr": 2e-3, "train": {"batch": 16}}, "base": {}}
ACTIONS = {"train": ("train", None), "tune": ("tune on tasks", "TASKS")}


def parse(text):
    return cli.parse(Config, PRESETS, ACTIONS, "a test", text.split())


def test_flags_override_the_action_which_overrides_the_preset():
    action, value, config = parse("--train --widths 2 4 6 --fast")
    assert (action, value) == ("train", True)
    assert (config.batch, config.lr, config.widths, config.fast) == (16, 2e-3, (2, 4, 6), True)
    assert config.given == {"widths", "fast"}
    assert parse("--tune a,b --batch 3 --preset base")[1:] == ("a,b", Config("base", batch=3))


@pytest.mark.parametrize("text, words", [
    ("--train --batch 0", "--batch 0: choose at least 1"), ("--train --lr nan", "--lr nan: choose above 0"),
    ("--train --lr inf", "--lr inf"), ("--train --dropout 1", "--dropout 1.0: choose 0 or more and below 1"),
    ("--train --widths 4 -1", "--widths -1: choose 0 or more"), ("--train --batch x", "invalid int value: 'x'"),
    ("--train --tune a", "not allowed with"), ("--train --bat 3", "unrecognized"),
    ("--train --preset huge", "choose from demo, base")])
def test_mistakes_end_in_one_line(text, words, capsys):
    with pytest.raises(SystemExit) as error:
        parse(text)
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1


def test_help_has_the_comments(capsys):
    assert parse("")[0] is None
    printed = capsys.readouterr().out
    assert "rows an update (default: 8)" in printed and "--tune TASKS" in printed


def test_limits_name_knobs_that_exist():
    fields = {field.name for file in FILES for field in dataclasses.fields(importlib.import_module(file).Config)}
    named = [name for _, _, names in cli.LIMITS for name in names.split()]
    assert len(named) == len(set(named)) and set(named) <= fields


@pytest.mark.parametrize("file", FILES)
def test_defaults_and_presets_are_within_the_limits(file):
    module = importlib.import_module(file)

    def numbers(settings):
        for name, value in settings.items():
            yield from numbers(value) if isinstance(value, dict) else [(name, value)]

    checked = [*numbers(module.PRESETS), *numbers(dataclasses.asdict(module.Config()))]
    parser = cli.Parser()
    for name, value in checked:
        if not isinstance(value, (bool, str)):
            cli.check_number(parser, name, value)
    assert len(checked) > 60


@pytest.mark.parametrize("file", [file for file in FILES if file != "mformer"])
def test_something_is_masked(file, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module(file).main(["--pretrain" if file != "autotinybert" else "--superplm", "--mask_rate", "0"])
    assert "--mask_rate 0.0: choose above 0 and below 1" in capsys.readouterr().err


@pytest.mark.parametrize("file", FILES)
def test_a_dry_run_stays_out_of_the_folder_of_the_real_one(file):
    module = importlib.import_module(file)
    module.shrink(cfg := module.Config(out="runs/one/"))
    assert cfg.out == "runs/one-dry"
