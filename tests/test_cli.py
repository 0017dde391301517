"""common/cli.py: a dataclass as a command line."""
import dataclasses
import importlib
from typing import Literal

import pytest
import torch

from common import cli, distributed


@dataclasses.dataclass
class Config:
    preset: str = "demo"  # which numbers
    out: str = ""  # run folder
    restart: bool = False  # begin anew
    dry_run: bool = False  # two steps
    batch: int = 8  # rows an update [>= 1]
    lr: float = 1e-3  # learning rate [> 0]
    widths: tuple[int, ...] = (4, 8)  # choices
    dropout: float = 0.1  # share dropped [0, 1)
    kind: Literal["one", "two"] = "one"  # of two
    tuned: float | None = None  # a rate, if given
    fast: bool = False  # a switch
    given = frozenset()


PRESETS = {"demo": {"lr": 2e-3, "train": {"batch": 16}}, "base": {}, "dry_run": {"batch": 2, "tune": {"lr": 0.5}}}
ACTIONS = {"train": (print, "train"), "tune": (print, "tune on tasks", "TASKS")}


def parse(text):
    return cli.parse(Config, PRESETS, ACTIONS, "a test", text.split())


def test_flags_override_the_action_which_overrides_the_preset():
    action, value, config = parse("--train --widths 2 4 6 --fast")
    assert (action, value) == ("train", True)
    assert (config.batch, config.lr, config.widths, config.fast) == (16, 2e-3, (2, 4, 6), True)
    assert config.given == {"widths", "fast"} and config.out == "runs/test_cli-train-demo"
    assert parse("--tune a,b --batch 3 --preset base --out x")[1:] == ("a,b", Config("base", "x", batch=3))


def test_a_dry_run_is_laid_over_all_and_stays_out_of_the_real_ones_folder():
    config = parse("--tune a --out runs/one/ --batch 7 --dry_run")[2]
    assert (config.batch, config.lr, config.out, config.restart) == (2, 0.5, "runs/one-dry", True)


@pytest.mark.parametrize("text, words", [
    ("--batch 0", "--batch 0: choose a number >= 1"), ("--lr nan", "--lr nan: choose a number > 0"),
    ("--lr inf", "--lr inf"), ("--dropout 1", r"--dropout 1.0: choose a number in \[0, 1\)"),
    ("--widths 4 -1", "--widths -1: choose a number >= 0"), ("--tuned -1", "--tuned -1.0"),
    ("--preset huge", "no preset huge.*choose from demo, base"), ("--preset dry_run", "no preset dry_run")])
def test_values_that_a_flag_does_not_take_end_in_one_line(text, words):
    with pytest.raises(cli.UserError, match=words):
        parse(f"--train {text}")


@pytest.mark.parametrize("text, words", [
    ("--train --batch x", "invalid int value: 'x'"), ("--train --tune a", "not allowed with"),
    ("--train --bat 3", "unrecognized"), ("--train --kind three", "choose from"),
    ("--batch 3", "need an action: --train, --tune")])
def test_mistakes_end_in_one_line(text, words, capsys):
    with pytest.raises(SystemExit) as error:
        parse(text)
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1


# --- every preset on eight processes ---------------------------------------------------------------

TRAINING = {  # command lines that train on shards
    "albert": ["--pretrain"], "autobert_zero": ["--pretrain"],
    "autotinybert": ["--superplm", "--further_train --arch 4-96-384-6-96"],
    "mformer": ["--train", "--search", "--train --task wmt14", "--search --task wmt14"]}


def every_preset():
    for file, commands in TRAINING.items():
        module = importlib.import_module(file)
        for command in commands:
            presets = module.presets_of(command.split()) if hasattr(module, "presets_of") else module.PRESETS
            for preset in presets:
                if preset != "dry_run":
                    yield file, f"{command} --preset {preset}"


@pytest.mark.parametrize("file, command", list(every_preset()))
def test_every_preset_passes_its_checks_and_shares_its_shards_to_eight_processes(file, command, monkeypatch):
    """Nothing is computed: the action that start() would call gets the settings, and the shards are shared out."""
    module, found, start = importlib.import_module(file), [], cli.start

    def stopped(config_class, presets, actions, description, check=None, argv=None):
        actions = {name: (found.append, *rest) for name, (_, *rest) in actions.items()}
        return start(config_class, presets, actions, description, check, argv)
    for place in (cli, module):
        monkeypatch.setattr(place, "start", stopped, raising=False)
    assert module.main(command.split()) == 0
    config, processes = found[0], [distributed.Ranks(rank, 8, None) for rank in range(8)]
    distributed.set_shards(config, processes[0])
    shares = [len(distributed.shard_range(ranks, config.accumulate)) for ranks in processes]
    assert shares == 8 * [config.accumulate // 8] and shares[0] > 0 and config.batch % config.accumulate == 0
