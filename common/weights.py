"""What a model starts from: run folders of ours, and weights by name taken over into a model."""
import dataclasses
import json
import sys
from pathlib import Path

import torch

from common.cli import UserError, check_setting
from common.distributed import to_host
from common.files import newest, partials, read_json, save_file, write_atomic, write_result
from common.runs import FORMAT
from common.tokenization import describe_file


def finite(weights, path):
    """Return the weights. UserError where one of them is infinite or not a number, or of a kind that no model here has:
    a tensor without values or places, of 8 bits, quantized, or one number."""
    for name, value in weights.items():
        numbers = value.is_floating_point() and value.element_size() > 1 or value.dtype in (torch.int64, torch.bool)
        if value.is_meta or value.is_quantized or value.layout is not torch.strided or not numbers or not value.dim():
            kind = f"{value.layout} {value.dtype}, shape {tuple(value.shape)}, on {value.device}"
            raise UserError(f"{path}: {name} is no plain tensor of numbers ({kind}); save the weights as float32")
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(f"{path}: {name} holds numbers that are not finite; this model has diverged")
    return weights


def take_settings(cfg, settings, source, names, also=()):
    """Let cfg take over what `settings` of a model say: `names`, of which a flag that says otherwise is a UserError,
    and `also`, over which a flag rules. Values that no flag could have are a UserError too."""
    for name in (*names, *also):
        value = tuple(settings[name]) if isinstance(settings[name], list) else settings[name]
        try:
            check_setting(type(cfg), name, value)
        except UserError as error:
            raise UserError(f"{source / 'config.json'}: {error}") from None
        if name in names and name in cfg.given and getattr(cfg, name) != value:
            raise UserError(f"--{name} {getattr(cfg, name)}: {source} has {value}; leave --{name} out")
        if name in names or name not in cfg.given:
            setattr(cfg, name, value)


def read_init(cfg, names, also=()):
    """What the newest checkpoint of the run folder cfg.init owns: {"model" or another name: weights by name}.

    names: {action that may have made it: the settings that cfg takes over}; a flag that says otherwise is a UserError.
    also: settings that cfg takes over where no flag says otherwise. The tokenizer is the folder's unless one is given.
    """
    folder = Path(cfg.init)
    if not (folder / "config.json").exists():
        raise UserError(f"{folder}: no run folder is here (config.json is missing); "
                        f"name one of --{' or --'.join(names)}")
    record = read_json(folder / "config.json", dict, "name another folder")
    settings, action = record.get("settings"), record.get("action")
    if not isinstance(settings, dict) or not isinstance(action, str):
        raise UserError(f"{folder / 'config.json'}: none of a run; name a run folder of {cfg.program}.py")
    if action not in names or record.get("program") != cfg.program:
        made_by = f" but of {record.get('program')}.py --{action}"
        raise UserError(f"{folder}: no run folder of {cfg.program}.py --{' or --'.join(names)}{made_by}; name another")
    if not {*names[action], *also} <= settings.keys():
        raise UserError(f"{folder}: made by another version of this program, which alone can read it; name another")
    take_settings(cfg, settings, folder, names[action], also)
    cfg.tokenizer = getattr(cfg, "tokenizer", "") or str(folder)
    if not (folder / "checkpoint.pt").exists() and not (folder / "checkpoint.pt.previous").exists():
        models = ", ".join(str(path.parent) for path in sorted(folder.glob("*/checkpoint.pt")))
        raise UserError(f"{folder}: " + (f"a run of --finetune; name one of its models: {models}" if models else
                                         "nothing is trained yet (checkpoint.pt is missing); "
                                         "the command that made it goes on"))
    if not (folder / "done.json").exists():
        print(f"warning: {folder}: not finished; its newest checkpoint is taken", file=sys.stderr)
    _, state = newest(folder / "checkpoint.pt")
    owned = state.get("owned") if isinstance(state, dict) else None
    if not owned or not isinstance(owned, dict) or not all(
            isinstance(model, dict) and all(isinstance(value, torch.Tensor) for value in model.values())
            for name, model in owned.items() if name != "optimizer"):
        raise UserError(f"{folder / 'checkpoint.pt'}: no checkpoint of {cfg.program}.py; name another folder")
    return {name: model if name == "optimizer" else finite(model, folder) for name, model in owned.items()}


@torch.no_grad()
def take_over(model, weights, source, heads=()):
    """Copy weights into a model name by name; the line returned says what was taken over, made anew and left out.
    heads: first parts of names that may have another shape: they are made anew. Any other misfit is a UserError."""
    state, taken = model.state_dict(), []
    for name in [name for name in state if name in weights]:
        given = weights[name]
        if given.shape == state[name].shape:
            state[name].copy_(given)
            taken.append(name)
        elif name.split(".")[0] not in heads:
            raise UserError(f"{source}: {name} is {tuple(given.shape)} there and {tuple(state[name].shape)} here; "
                            "use the same sizes and the same tokenizer")
    anew, left_out = sorted(state.keys() - {*taken}), sorted(weights.keys() - {*taken})
    return (f"{source}: {len(taken)} weights taken over; made anew: {', '.join(anew) or 'none'}; "
            f"left out: {', '.join(left_out) or 'none'}")


def keep_model(folder, action, cfg, tokenizer, **owned):
    """Write what read_init reads into a folder of its own: config.json, the tokenizer's file, checkpoint.pt, done.json.
    owned: {name: module, or weights by name}."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in partials(folder):  # of a process that was killed here
        left.unlink()
    record = {"format": FORMAT, "program": cfg.program, "action": action, "settings": dataclasses.asdict(cfg), "argv": sys.argv,
              "vocabulary": describe_file(tokenizer, tokenizer.save(folder))}
    write_atomic(folder / "config.json", json.dumps(record, indent=2))
    states = {name: thing.state_dict() if hasattr(thing, "state_dict") else thing for name, thing in owned.items()}
    save_file(folder / "checkpoint.pt", {"values": {}, "owned": {
        name: to_host(state) for name, state in states.items()}})
    write_result(folder / "done.json", {})
