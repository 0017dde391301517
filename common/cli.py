"""A dataclass as a command line.

A paper file keeps every setting in one dataclass, one line each:

    dropout: float = 0.1  # hidden and attention dropout, Table 6 [0, 1)

The type says how to parse (Literal[...] gives the choices). The trailing comment is the help text,
and the range at its end is checked: an interval as above, `[>= 1]` or `[> 0]`. The default is
`[>= 0]`. A comment line above a block of fields is the title of a group in the help. Flags override
presets, and presets override defaults. Abbreviations and unknown flags are errors.
"""
import argparse
import dataclasses
import functools
import inspect
import json
import os
import re
import sys
import types
import typing
import warnings
from pathlib import Path

import torch
from tqdm import tqdm

RANGE = re.compile(r"([\[(])(-?[\d.]+), (-?[\d.]+)([\])])$|\[(>=?) (-?[\d.]+)\]$")
# a departure ("# D5: ..."), the title of a group, or a field
GROUPS = re.compile(
    r"^ {4}(?:# D\d.*(?:\n {4}#.*)*|# (.+(?:\n {4}# .+)*)|(\w+):)", re.MULTILINE)
STOPPED = 128 + 15  # exit status of an unfinished run after SIGTERM
PRESET = "demo"  # without --preset
RELEASED = "released"  # for a Hugging Face folder as --init, where a file has this preset
COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")  # modules of torch.compile
# torch's messages for sizes that it cannot allocate
TOO_LARGE = ("can't allocate memory", "not enough memory", "MPS backend out of memory",
             "Storage size calculation overflowed", "Overflow when unpacking")


class UserError(Exception):
    """A mistake of the user, printed as one line with the place and the fix. Exit status 2."""


class Stop(BaseException):
    """Stop after SIGTERM, raised by a loop that has saved its state, or between jobs. Like
    KeyboardInterrupt, it is not caught by `except Exception`."""


class Diverged(Exception):
    """A loss, a gradient or a prediction became NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Command:
    """The parts of a command line besides settings.

    program: name of the paper file. action: its name, with its value or "". given: names of the
    given flags. Other settings may follow from --init or data.
    """
    program: str
    action: str
    value: str = ""
    given: frozenset = frozenset()


@functools.cache
def field_comments(config_class):
    """{field: its trailing comment} of a dataclass, read from the source."""
    source = inspect.getsource(config_class)
    return dict(re.findall(r"^ {4}(\w+)\s*:[^#\n]*#\s*(.+?)\s*$", source, re.MULTILINE))


@functools.cache
def field_groups(config_class):
    """{field: the comment above its block}, the titles of the groups in the help."""
    groups = {}
    title = "run"
    for comment, field in GROUPS.findall(inspect.getsource(config_class)):
        title = re.sub(r"\n {4}# ", " ", comment) or title
        groups[field] = title
    return groups


def kind_of(field):
    """(type of one value, choices or None, number of values: None for one, "+" for any number)."""
    kind = field.type
    if isinstance(kind, types.UnionType):  # `float | None`: None means "not given"
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Literal:
        return str, typing.get_args(kind), None
    if typing.get_origin(kind) is tuple:
        kind, *others = typing.get_args(kind)
        return kind, None, "+" if others == [...] else 1 + len(others)
    return kind, None, None


def written(value):
    """A setting as written on a command line."""
    if isinstance(value, (tuple, list)):
        return " ".join(map(written, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def listed(names):
    """Names as a list in a sentence. A name with a comma is quoted."""
    return ", ".join(f'"{name}"' if "," in name else name for name in names)


def shown_default(field, preset):
    """The help text for a field's default in a preset and, where it differs, in the dictionaries in
    it, {ACTION: {field: value, ...}}."""
    values = {"default": preset.get(field.name, field.default)}
    for name, more in preset.items():
        if isinstance(more, dict):
            values[f"with --{name}"] = more.get(field.name, values["default"])
    words = [f"{name}: {written(value)}" for name, value in values.items()
             if value not in ("", (), None) and value is not False
             and (name == "default" or value != values["default"])]
    return f" ({'; '.join(words)})" if words else ""


def add_field(parser, field, comment, preset):
    """Add one field as a flag, with the preset's value in the help. bool fields are switches and
    default to False. tuple[X, X] takes two values, tuple[X, ...] and `tasks` take any number."""
    kind, choices, nargs = kind_of(field)
    comment += shown_default(field, preset)
    options = {"default": argparse.SUPPRESS, "help": comment.replace("%", "%%")}
    if kind is bool:
        options["action"] = "store_true"
    else:
        options |= {"metavar": field.name.upper(), "type": kind, "choices": choices}
        options["nargs"] = "+" if field.name == "tasks" else nargs
    parser.add_argument(f"--{field.name}", **options)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message[:400]} (--help lists the flags)\n")


def check_range(name, value, comment):
    """Raise UserError if a number is outside the range at the end of the comment."""
    match = RANGE.search(comment) or RANGE.search("[>= 0]")
    opening, low, high, closing, sign, least = match.groups()
    low = float(low or least)
    high = float(high or "inf")
    low_allowed = opening == "[" or sign == ">="
    inside = low < value < high or value == low and low_allowed or value == high and closing == "]"
    if not inside:
        raise UserError(f"--{name} {value}: the range is {match.group()}")


def check_ranges(config):
    """Raise UserError if a setting is out of range."""
    comments = field_comments(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if kind_of(field)[0] in (int, float) and value is not None:
            for one in value if isinstance(value, tuple) else [value]:
                check_range(field.name, one, comments.get(field.name, ""))


def make_parser(config_class, presets, preset, actions, description):
    """The ArgumentParser of a paper file. Its help shows the settings of a preset."""
    parser = Parser(description=description, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_argument_group("actions, exactly one per call")
    group = group.add_mutually_exclusive_group()
    for name, (_, help_text, _, *metavar) in actions.items():
        options = {"metavar": metavar[0]} if metavar else {"action": "store_true"}
        if metavar == ["TASKS"]:
            options["nargs"] = "+"
        group.add_argument(f"--{name}", dest=f"action_{name}", default=argparse.SUPPRESS,
                           help=help_text, **options)
    groups = {}
    for field in dataclasses.fields(config_class):
        title = field_groups(config_class)[field.name]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        comment = field_comments(config_class).get(field.name, "")
        add_field(groups[title], field, comment, {"preset": preset, **presets[preset]})
    return parser


def choose_preset(presets, argv):
    """The preset of --preset, or of the run of --init, or the default."""
    first = Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=[name for name in presets if name != "dry_run"])
    first.add_argument("--init", default="")
    flags = first.parse_known_args(argv)[0]
    preset = flags.preset or settings_of(flags.init).get("preset")
    if not preset and RELEASED in presets and Path(flags.init, "config.json").is_file():
        preset = RELEASED
    if preset not in presets:
        return PRESET
    if not flags.preset and preset != PRESET:
        reason = "for" if preset == RELEASED else "as in"
        print(f"--preset {preset}: {reason} {flags.init}", file=sys.stderr, flush=True)
    return preset


def settings_of(folder):
    """The settings in a run folder's config.json, or {}. The run's own reader tells of a damaged
    file."""
    try:
        record = json.loads(Path(folder or "", "config.json").read_text(encoding="utf-8"))
        return dict(record.get("settings", {}))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def parse(config_class, presets, actions, description, argv):
    """Parse a paper file's command line: (Command, config), or (None, None) without an action,
    after printing the help. A mistake exits with one line and status 2."""
    preset = choose_preset(presets, argv)
    parser = make_parser(config_class, presets, preset, actions, description)
    given = vars(parser.parse_args(argv))
    for name, values in given.items():
        if isinstance(values, list):
            several = isinstance(getattr(config_class, name, None), tuple)
            given[name] = tuple(values) if several else ",".join(values)
    action, = [name for name in actions if f"action_{name}" in given] or [None]
    if action is None:
        if given:
            parser.error(f"these flags need an action: --{', --'.join(actions)}")
        parser.print_help()
        return None, None
    value = given.pop(f"action_{action}")
    program = Path(inspect.getsourcefile(config_class)).stem
    command = Command(program, action, "" if value is True else value, frozenset(given))
    refuse_unread(config_class, command, actions)
    return command, make_config(config_class, presets, preset, command, given)


def refuse_unread(config_class, command, actions):
    """UserError for a given flag of a group that the action does not read."""
    for name in sorted(command.given):
        group = group_of(config_class, name)
        if group not in actions[command.action][2]:
            readers = [f"--{other}" for other in actions if group in actions[other][2]]
            who = f"{' and '.join(readers)} {'reads' if len(readers) == 1 else 'read'} it"
            if not readers:  # a group of another --task
                who = f"it is for {field_groups(config_class)[name]}"
            raise UserError(f"--{name}: --{command.action} does not read it; {who}")


def make_config(config_class, presets, preset, command, given):
    """The config of a preset, an action and the given flags."""
    action = command.action
    settings = {"preset": preset}
    for name in (preset, "dry_run") if given.get("dry_run") else (preset,):
        settings |= presets[name] | presets[name].get(action, {})
    settings = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    settings |= given
    if not settings.get("out") and not settings.get("dry_run"):  # a dry run has a temporary folder
        settings["out"] = f"runs/{command.program}-{action}-{preset}"
    config = config_class(**settings)
    check_ranges(config)
    return config


def group_of(config_class, name):
    """The name of a field's group: its title up to the first comma, dot, colon or bracket."""
    return re.split(r" ?[,.:(]", field_groups(config_class)[name])[0]


def start(config_class, presets, actions, description, check, argv):
    """Parse the command line of a paper file and run its action. Returns the exit status.

    config_class: frozen dataclass with the fields preset, out, restart and dry_run. presets:
    {preset: {field: value, ACTION: {field: value, ...}}}, where the inner ones apply to that action
    only. The help shows other inner ones too, such as "task wmt14". --dry_run applies
    presets["dry_run"] on top. actions: {name: (function, help, groups of fields that it reads)},
    and a METAVAR if the action takes a value. A flag of another group is an error. An action is
    called as function(config, command). check(config, command): raises UserError for other
    mistakes. argv: the words, or None for those of this process.
    """
    command, config = parse(config_class, presets, actions, description, argv)
    if command is None:
        return 0
    check(config, command)
    return run_action(actions[command.action][0], config, command)


def run_action(function, config, command):
    """Call function(config, command). A training that was stopped or cannot go on ends in one line.
    Returns the exit status."""
    try:
        function(config, command)
    except Stop:
        print("stopped; the same command continues", file=sys.stderr)
        return STOPPED
    except Diverged as error:
        raise UserError(f"the training diverged ({error}); choose a lower learning rate, and "
                        "--restart") from None
    except Exception as error:
        if is_too_large(error):
            raise UserError("out of memory; try a larger --accumulate, a smaller "
                            "--batch, smaller sizes or, where it is a flag, --recompute") from None
        if not type(error).__module__.startswith(COMPILER):
            raise
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"--compile failed ({type(error).__name__}: {reason}); leave "
                        "it out, or try again") from None
    return 0


def is_too_large(error):
    """Whether an error means that memory is too small. For CPU memory and for sizes above 2^63
    torch raises other types of errors than for a GPU."""
    return (isinstance(error, (torch.OutOfMemoryError, MemoryError))
            or any(words in str(error) for words in TOO_LARGE))


def prepare_output():
    """Make printing safe: characters that the terminal cannot encode become escapes, and text for a
    closed stream is dropped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        getattr(sys, name).reconfigure(errors="backslashreplace")


def run(main):
    """Call main() as a program. A UserError or a full disk exits with one line and status 2, Ctrl-C
    with status 130."""
    prepare_output()
    if os.environ.get("RANK", "0") != "0":
        warnings.simplefilter("ignore")  # the first process prints them
    warnings.formatwarning = lambda message, *place, **others: f"warning: {message}\n"
    try:
        sys.exit(main())
    except (UserError, OSError) as error:
        status = 2
        message = "error: " + str(error).replace("\n", " ")[:2000]
    except KeyboardInterrupt:
        status = 130
        message = "interrupted; the same command continues where it stopped"
    # tqdm clears a progress bar, so that the message has a line of its own
    tqdm.write(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(status)
