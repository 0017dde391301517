"""A dataclass as a command line.

A paper file keeps every knob in one dataclass, one line a knob:

    lr: float = 1e-4  # peak learning rate, Table 6

The type rules the parsing, the trailing comment is the help text, a preset overrides the default, a flag overrides the
preset. Abbreviations, unknown flags and numbers that make no sense (LIMITS) are errors.
"""
import argparse
import dataclasses
import inspect
import math
import re
import sys
import types
import typing


class UserError(Exception):
    """A mistake the user can mend: shown as one line that names the place and the mend, exit status 2."""


def field_comments(config_class):
    """{field name: its trailing comment} of a dataclass, read from the source; empty where the source is not at hand.
    """
    try:
        source = inspect.getsource(config_class)
    except OSError:
        return {}
    return dict(re.findall(r"^ {4}(\w+)\s*:[^#\n]*#\s*(.+?)\s*$", source, re.MULTILINE))


def add_field(parser, field, help_text):
    """One dataclass field as one flag. bool fields are switches and must default to False; tuple[X, ...] takes several
    values."""
    kind = field.type if not isinstance(field.type, str) else eval_type(field.type)
    optional = isinstance(kind, types.UnionType)
    if optional:  # `float | None`: None means "not given"
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    shown = "" if optional or field.default in ("", ()) else f" (default: {field.default})"
    options = {"dest": field.name, "default": argparse.SUPPRESS, "help": (help_text + shown).replace("%", "%%")}
    if kind is bool:
        parser.add_argument(f"--{field.name}", action="store_true", **options)
    elif typing.get_origin(kind) is tuple:
        parser.add_argument(f"--{field.name}", nargs="+", type=typing.get_args(kind)[0], metavar=field.name.upper(),
                            **options)
    else:
        parser.add_argument(f"--{field.name}", type=kind, metavar=field.name.upper(), **options)


def eval_type(text):
    """The type a postponed annotation names; only the handful that a Config may use."""
    known = {"int": int, "float": float, "str": str, "bool": bool,
             "int | None": int | None, "float | None": float | None, "str | None": str | None,
             "tuple[str, ...]": tuple[str, ...], "tuple[int, ...]": tuple[int, ...]}
    return known[text]


LIMITS = (  # (in words, test, knobs): the numbers that a flag takes; a name means the same in all files
    ("at least 1", lambda value: value >= 1,
     "accumulate average batch beam children connect cross_heads decoder_ffn decoder_heads decoder_hidden "
     "decoder_layers dev_rows eval_every evaluations ffn finalists generations groups head_dim heads hidden image "
     "latency_batch latency_length latency_rounds latency_runs latency_threads layers length log_every look_every "
     "look_nets max_path measure_batch min_hidden min_qkv ngram parents patch population positions relative runs "
     "save_every squad_length steps vocab_size width_step winners"),
    ("above 0", lambda value: value > 0, "clip crop_area init_std lr speedup speedups ucb_unit"),
    ("0 or more and below 1", lambda value: 0 <= value < 1,
     "classifier_dropout drop_architectures dropout label_smoothing"),
    ("above 0 and below 1", lambda value: 0 < value < 1, "mask_rate"),
    ("0 to 1", lambda value: 0 <= value <= 1, "erase exploration jitter mutation stability"),
    ("-1, or 0 or more and below 1", lambda value: value == -1 or 0 <= value < 1, "finetune_dropout"),
    ("any number", lambda value: True, "seed"),
    ("0 or more", lambda value: value >= 0, ""),  # all others
)


def check_number(parser, name, value):
    """End with one line where a number given to a flag makes no sense (LIMITS, and all must be finite)."""
    words, fits, _ = next((row for row in LIMITS if name in row[2].split()), LIMITS[-1])
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(number, (int, float)) and not (math.isfinite(number) and fits(number)):
            parser.error(f"--{name} {number}: choose {words}")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (--help lists the flags)\n")


def parse(config_class, presets, actions, description, argv=None):
    """Parse a paper file's command line.

    config_class: dataclass with a field `preset`; presets: {preset: {field: value, ACTION: {field: value, ...}}}, the
    inner ones for that action alone; actions: {name: (help, metavar or None)}, the metavar for an action that takes a
    value (`--finetune TASKS`). The config's attribute `given` names the flags that were given. Returns (action, its
    value or True, config); (None, None, config) where no action was given, after printing the help. Errors exit with
    status 2 and one line.
    """
    parser = Parser(description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_argument_group("actions, exactly one a call").add_mutually_exclusive_group()
    for name, (help_text, metavar) in actions.items():
        kind = {"metavar": metavar} if metavar else {"action": "store_true"}
        group.add_argument(f"--{name}", dest=f"action_{name}", default=argparse.SUPPRESS, help=help_text, **kind)
    settings, comments = parser.add_argument_group("settings"), field_comments(config_class)
    for field in dataclasses.fields(config_class):
        add_field(settings, field, comments.get(field.name, ""))
    given = vars(parser.parse_args(argv))
    chosen = [(key.removeprefix("action_"), given.pop(key)) for key in list(given) if key.startswith("action_")]
    for name, number in given.items():
        check_number(parser, name, number)
    preset = given.get("preset", config_class().preset)
    if preset not in presets:
        parser.error(f"--preset {preset}: there is no such preset; choose from {', '.join(presets)}")
    action, value = chosen[0] if chosen else (None, None)
    defaults = {**presets[preset], **presets[preset].get(action, {})}
    for name in actions:
        defaults.pop(name, None)
    config = config_class(**{**defaults, **given, "preset": preset})
    config.given = frozenset(given)
    for name, setting in vars(config).items():
        if isinstance(setting, list):
            setattr(config, name, tuple(setting))
    if not chosen:
        parser.print_help()
    return action, value, config


def run(main):
    """Call main() as a program: a UserError or a full disk ends in one line on stderr and exit status 2, Ctrl-C in exit
    status 130."""
    name = sys.argv[0].rsplit("/", 1)[-1]
    try:
        sys.exit(main())
    except UserError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno is None:
            raise
        print(f"{name}: error: {error.filename or 'disk'}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command continues where it stopped", file=sys.stderr)
        sys.exit(130)
