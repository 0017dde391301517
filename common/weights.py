"""Weights to start from: run folders of ours, and Hugging Face folders read and written without the safetensors
package.

A .safetensors file is an 8-byte little-endian length, a JSON header of that length ({name: dtype, shape, data_offsets})
and the raw tensors behind it, so no code of a stranger is ever run; pytorch_model.bin is read with weights_only=True,
which runs none either.
"""
import dataclasses
import json
import math
import os
import sys
from pathlib import Path

import torch

from common.cli import UserError, check_setting
from common.files import atomic, load_file, load_newest, parse_json, read_json, save_file, write_atomic

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
CODES = {dtype: code for code, dtype in DTYPES.items()}
NAMES = ("model.safetensors", "pytorch_model.bin")  # in the order in which they are preferred


def read_weights(path):
    """{name: tensor} of a .safetensors or .bin file, or of a folder that holds one, whole or in parts with an index."""
    path = Path(path)
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; give a folder with {' or '.join(NAMES)}")
    weights = read_safetensors(path) if path.suffix == ".safetensors" else load_file(path)
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise UserError(f"{path}: this holds something else than tensors by name; give the file of a model's weights")
    return finite(weights, path)


def finite(weights, path):
    """The weights; UserError where one of them is not a number, or infinite."""
    for name, value in weights.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(f"{path}: {name} holds numbers that are not finite; this model has diverged")
    return weights


def read_folder(folder):
    """The weights of a Hugging Face folder."""
    for name in NAMES:
        if (folder / name).is_file():
            return read_weights(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = read_json(index, dict, "fetch it again").get("weight_map")
            if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
                raise UserError(f"{index}: no weight_map of names to files is in it; fetch it again")
            return {key: value for part in sorted({*parts.values()})
                    for key, value in read_weights(folder / Path(part).name).items()}
    raise UserError(f"{folder}: no {' and no '.join(NAMES)} is here; give the folder of a PyTorch model")


def read_safetensors(path):
    """{name: tensor} of one .safetensors file."""
    tensors = {}
    with open(path, "rb") as file:
        size, room = int.from_bytes(file.read(8), "little"), os.path.getsize(path) - 8
        if size > room:
            raise UserError(f"{path}: no safetensors file, or cut short in its header; fetch it again")
        header = parse_json(file.read(size).decode(errors="replace"), f"{path}, its header", dict)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            try:
                (begin, end), shape, dtype = entry["data_offsets"], entry["shape"], DTYPES[entry["dtype"]]
                sound = all(type(number) is int and number >= 0 for number in (begin, end, *shape))
            except (ValueError, KeyError, TypeError):
                sound = False
            if not sound or end > room - size or end - begin != math.prod(shape) * dtype.itemsize:
                raise UserError(f"{path}: damaged or cut short, this cannot be tensor {name}: {str(entry)[:100]}; "
                                "fetch it again")
            file.seek(8 + size + begin)
            raw = bytearray(file.read(end - begin))
            tensors[name] = (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).view(shape)
    return tensors


def write_weights(path, tensors):
    """Write {name: tensor} as a .safetensors file, whole or not at all."""
    path, header, offset = Path(path), {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8
    with atomic(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


# --- run folders ---------------------------------------------------------------------------------

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
    if action not in names or record.get("program") != cfg.program or not {*names[action], *also} <= settings.keys():
        made_by = f" but of {record.get('program')}.py --{action}"
        raise UserError(f"{folder}: no run folder of {cfg.program}.py --{' or --'.join(names)}{made_by}; name another")
    take_settings(cfg, settings, folder, names[action], also)
    cfg.tokenizer = getattr(cfg, "tokenizer", "") or str(folder)
    if not (folder / "checkpoint.pt").exists() and not (folder / "checkpoint.pt.previous").exists():
        models = ", ".join(str(path.parent) for path in sorted(folder.glob("*/checkpoint.pt")))
        raise UserError(f"{folder}: " + (f"a run of several tasks; name one of its models: {models}" if models else
                                         "nothing is trained yet (checkpoint.pt is missing); "
                                         "the command that made it goes on"))
    if not (folder / "done.json").exists():
        print(f"warning: {folder}: not finished; its newest checkpoint is taken", file=sys.stderr)
    state = load_newest(folder / "checkpoint.pt")
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
    if tokenizer:
        tokenizer.save(folder)
    record = {"program": cfg.program, "action": action, "settings": dataclasses.asdict(cfg), "argv": sys.argv}
    write_atomic(folder / "config.json", json.dumps(record, indent=2))
    states = {name: thing.state_dict() if hasattr(thing, "state_dict") else thing for name, thing in owned.items()}
    save_file(folder / "checkpoint.pt", {"values": {}, "owned": {
        name: {key: value.cpu() for key, value in state.items()} for name, state in states.items()}})
    write_atomic(folder / "done.json", "{}")
