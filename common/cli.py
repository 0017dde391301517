"""A dataclass as a command line.

A paper file keeps every knob in one dataclass, one line a knob:

    dropout: float = 0.1  # hidden and attention dropout, Table 6 [0, 1)

The type rules the parsing (Literal[...] gives the choices), the trailing comment is the help text, and the range at its
end is enforced: an interval as above, `[>= 1]` or `[> 0]`; a number without one may not be negative. A preset overrides
the default, a flag the preset. Abbreviations and unknown flags are errors.
"""
import argparse
import dataclasses
import functools
import inspect
import itertools
import os
import re
import signal
import sys
import types
import typing
import warnings
from pathlib import Path

import torch
from tqdm import tqdm

RANGE = re.compile(r"([\[(])(-?[\d.]+), (-?[\d.]+)([\])])$|\[(>=?) (-?[\d.]+)\]$")
STOPPED = 128 + 15  # exit status of a run that SIGTERM ended before it had finished
MACHINE = re.compile("can't start new thread|the clock stands still")  # a RuntimeError that no program can mend
TOO_LARGE = re.compile("tried to allocate|Storage size calculation overflowed|exceeds? .*memory")  # RuntimeErrors
MESSAGE = 20_000  # characters of an error that are shown: a file may hold one string of 50 MB
LARGEST = {float: 3e38, int: 10 ** 9}  # of a knob: what a float32 holds, what no machine has the memory or time for
PRESET = "demo"  # where no flag names one
DEEPEST = 10_000  # layers; what torch keeps of a layer without weights takes 20 to 40 kB and 2 to 7 ms to build


class UserError(Exception):
    """A mistake the user can mend: shown as one line that names the place and the mend, exit status 2."""


class MissingFile(UserError):
    """A file that the user names, or a setting, is not there."""


class Stop(BaseException):
    """Raised because SIGTERM asked to stop, by a loop that has saved its state, or wherever the program was. As with
    KeyboardInterrupt, no `except Exception` takes it for a broken file."""


class Diverged(Exception):
    """A loss, a gradient or a prediction became infinite or not a number."""


@functools.cache
def field_comments(config_class):
    """{field: its trailing comment} of a dataclass, read from the source."""
    return dict(re.findall(r"^ {4}(\w+)\s*:[^#\n]*#\s*(.+?)\s*$", inspect.getsource(config_class), re.MULTILINE))


def kind_of(field):
    """(type of one value, choices or None, whether several values are taken, whether None is a value) of a field."""
    kind, optional = field.type, isinstance(field.type, types.UnionType)
    if optional:  # `float | None`: None means "not given"
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is typing.Literal:
        return str, typing.get_args(kind), False, optional
    if typing.get_origin(kind) is tuple:
        return typing.get_args(kind)[0], None, True, optional
    return kind, None, False, optional


def written(value):
    """A setting as it is written on a command line."""
    if isinstance(value, tuple):
        return " ".join(map(written, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def several_values(kind):
    """Parses one word of a flag that takes several values: commas separate them as blanks do, but not
    in the name of a path that exists."""
    def split(word):
        parts = [part for part in word.split(",") if part]
        if not parts:
            raise ValueError
        return [kind(part) for part in ([word] if Path(word).exists() else parts)]
    split.__name__ = kind.__name__
    return split


def add_field(parser, field, comment, preset, actions):
    """One dataclass field as one flag, with what a preset sets, for all actions and for single ones. bool fields are
    switches and default to False; tuple[X, ...] takes several."""
    kind, choices, several, _ = kind_of(field)
    values = {"default:": preset.get(field.name, field.default), **{
        f"--{action}": preset[action][field.name] for action in actions if field.name in preset.get(action, {})}}
    shown = [f"{name} {written(value)}" for name, value in values.items() if value not in ("", ()) and
             value is not None and value is not False]
    words = comment + f" ({'; '.join(shown)})" * bool(shown)
    options = {"dest": field.name, "default": argparse.SUPPRESS, "help": words.replace("%", "%%")}
    if kind is bool:
        options["action"] = "store_true"
    elif several or field.name == "tasks":
        options |= {"type": several_values(kind), "metavar": field.name.upper(), "nargs": "+"}
    else:
        options |= {"type": kind, "metavar": field.name.upper()}
        options |= {"choices": choices} if choices else {}
    parser.add_argument(f"--{field.name}", **options)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message[:400]} (--help lists the flags)\n")


def check_setting(config_class, name, value):
    """UserError where a value is not what the knob `name` takes: its type, choices, and the range at the end of its
    comment, or larger than any machine."""
    kind, choices, several, optional = kind_of({field.name: field for field in dataclasses.fields(config_class)}[name])
    for one in value if several and isinstance(value, tuple) else [value]:
        if one is None and optional:
            continue
        if type(one) not in ((int, float) if kind is float else (kind,)) or choices and one not in choices:
            raise UserError(f"{name} {value!r}: must be {', '.join(choices or [f'of type {kind.__name__}'])}")
        if kind not in (int, float):
            continue
        if abs(one) > LARGEST[kind] and name != "seed":
            raise UserError(f"--{name} {one}: too large; choose a number up to {LARGEST[kind]:.0e}")
        found = RANGE.search(field_comments(config_class).get(name, "")) or RANGE.search("[>= 0]")
        opening, low, high, closing, sign, least = found.groups()
        low, high = float(low or least), float(high or "inf")
        if not (low < one < high or one == low and (opening == "[" or sign == ">=")
                or one == high and closing == "]"):
            words = f"in {found.group()}" if opening else f"{sign} {least}"
            raise UserError(f"--{name} {one}: choose a number {words}")


def check_memory(place, layers, weights):
    """UserError, which names the place, where a model of so many weights in so many layers needs more memory than this
    machine has, or has more layers than DEEPEST. Called before anything is built."""
    needs, has = 4 * weights + 30_000 * layers, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needs > has or layers > DEEPEST:
        raise UserError(f"{place}: needs at least {needs / 1e9:,.1f} GB of memory, this machine has {has / 1e9:,.1f} "
                        f"GB; choose smaller sizes, and at most {DEEPEST:,} layers")


def freeze(config):
    """From here on an assignment to a knob of this config raises: config.json has said what is computed. A changed copy
    is made by dataclasses.replace."""
    def assign(self, name, value):
        if "frozen" in vars(self):
            raise AttributeError(f"cfg.{name}: settled before config.json was written; take dataclasses.replace")
        object.__setattr__(self, name, value)

    type(config).__setattr__ = assign
    config.frozen = True


def settings_of(presets, preset, action, actions):
    """The settings of a preset for an action: {field: value}."""
    if preset not in presets:
        names = ", ".join(name for name in presets if name != "dry_run")
        raise UserError(f"there is no preset {preset}, which --preset or the run of --init names; choose from {names}")
    found = {**presets[preset], **presets[preset].get(action, {})}
    return {name: value for name, value in found.items() if name not in actions}


def parse(config_class, presets, actions, description, argv=None):
    """Parse a paper file's command line; start() is what a paper file calls. Returns (action, its value or True,
    config); (None, None, config) where no action was given, after printing the help. Errors exit with status 2 and one
    line."""
    first = Parser(add_help=False, allow_abbrev=False)  # the help tells what the preset sets
    first.add_argument("--preset", default=PRESET)
    preset = first.parse_known_args(argv)[0].preset
    parser = Parser(description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_argument_group("actions, exactly one a call").add_mutually_exclusive_group()
    for name, (_, help_text, *metavar) in actions.items():
        kind = {"metavar": metavar[0]} if metavar else {"action": "store_true"}
        if metavar == ["TASKS"]:
            kind |= {"nargs": "+", "type": several_values(str)}
        group.add_argument(f"--{name}", dest=f"action_{name}", default=argparse.SUPPRESS, help=help_text, **kind)
    settings, comments = parser.add_argument_group("settings"), field_comments(config_class)
    for field in dataclasses.fields(config_class):
        shown = {"preset": preset, **presets.get(preset, {})}
        add_field(settings, field, comments.get(field.name, ""), shown, actions)
    for word in sys.argv[1:] if argv is None else argv:
        if word != word.encode("utf-8", "replace").decode():
            parser.error(f"{word!r}: a name that is not UTF-8; rename the file or folder")
    given = vars(parser.parse_args(argv))
    tuples = {field.name for field in dataclasses.fields(config_class) if kind_of(field)[2]}
    for name, words in given.items():
        if isinstance(words, list):
            values = tuple(itertools.chain(*words))
            given[name] = values if name in tuples else ",".join(values)
    chosen = [(key.removeprefix("action_"), given.pop(key)) for key in list(given) if key.startswith("action_")]
    action, value = chosen[0] if chosen else (None, None)
    real = {name: values for name, values in presets.items() if name != "dry_run"}
    config = config_class(**{"preset": preset, **settings_of(real, preset, action, actions), **given})
    config.given, config.action = frozenset(given), action
    config.program = Path(inspect.getsourcefile(config_class)).stem
    if config.dry_run:
        for name, setting in settings_of(presets, "dry_run", action, actions).items():
            setattr(config, name, setting)
    for field in dataclasses.fields(config):
        check_setting(config_class, field.name, getattr(config, field.name))
    config.out = config.out or f"runs/{config.program}-{action}-{preset}"
    if config.dry_run:  # a folder of its own, made anew each time
        config.out, config.restart = config.out.rstrip("/") + "-dry", True
    if not chosen and given:
        parser.error(f"these flags need an action: --{', --'.join(actions)}")
    if not chosen:
        parser.print_help()
    return action, value, config


def start(config_class, presets, actions, description, check=None, argv=None):
    """Parse the command line of a paper file and run its action.

    config_class: dataclass with the fields preset, out, restart and dry_run. presets: {preset: {field: value, ACTION:
    {field: value, ...}}}, the inner ones for that action alone; presets["dry_run"] is laid over all else with
    --dry_run. actions: {name: (function, help)}, or (function, help, METAVAR) where the action takes a value, called
    as function(config) or function(config, value). The config's attribute `given` names the flags that were given,
    `action` the action, `program` the file. check(config, action): what else the file refuses, before the action.
    """
    action, value, config = parse(config_class, presets, actions, description, argv)
    if action is None:
        return 0
    if check:
        check(config, action)
    try:
        actions[action][0](config, *([] if value is True else [value]))
    except Stop:
        print("stopped; the same command continues", file=sys.stderr)
        return STOPPED
    except Diverged as error:
        raise UserError(f"{config.out}: the training diverged ({error}); choose a lower learning rate, and --restart"
                        ) from None
    except UserError:
        if hasattr(config, "run"):
            config.run.discard()
        raise
    except torch.OutOfMemoryError:
        words = "--recompute" if hasattr(config, "recompute") else "a larger --accumulate or a smaller --batch"
        raise UserError(f"{config.out}: out of device memory; try again with {words}") from None
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own for the CPU's memory
        if not isinstance(error, MemoryError) and not TOO_LARGE.search(str(error)):
            raise
        if hasattr(config, "run"):
            config.run.discard()
        raise UserError(f"{config.out}: these sizes need more memory than there is; choose smaller ones") from None
    return 0


def run(main):
    """Call main() as a program: a UserError or a full disk ends in one line and exit status 2, Ctrl-C in status 130."""
    sys.stderr = sys.stderr or open(os.devnull, "w")  # None where the caller has closed it
    for stream in filter(None, (sys.stdout, sys.stderr)):
        if hasattr(stream, "reconfigure"):  # help texts hold characters that an ASCII terminal has not
            stream.reconfigure(errors="replace")
    if os.environ.get("RANK", "0") != "0":
        warnings.simplefilter("ignore")  # the first process prints them
    warnings.formatwarning = lambda message, *place, **others: f"warning: {message}\n"  # no line of source below it
    try:
        status = main()
    except UserError as error:
        text = str(error).replace("\n", " ")
        status, message = 2, f"error: {text if len(text) < MESSAGE else text[:200] + ' ... ' + text[-200:]}"
    except RuntimeError as error:
        if not MACHINE.match(str(error)):
            raise
        status, message = 2, f"error: {error}: this machine, or its limits (ulimit -u), must be mended first"
    except OSError as error:
        if error.errno is None:
            raise
        status, message = 2, f"error: {error.filename or ('output' if error.errno == 32 else 'disk')}: {error.strerror}"
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # keys that are held down
        status, message = 130, "interrupted; the same command continues where it stopped"
    else:
        sys.exit(status)
    for bar in list(getattr(tqdm, "_instances", ())):  # the line stands below a bar that was cut short
        bar.close()
    print(f"{sys.argv[0].rsplit('/', 1)[-1]}: {message}", file=sys.stderr)
    sys.exit(status)
