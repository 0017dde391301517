"""Weights in the files of Hugging Face folders, read and written without the safetensors package.

A .safetensors file is an 8-byte little-endian length, a JSON header of that length ({name: dtype, shape, data_offsets})
and the raw tensors behind it, so no code of a stranger is ever run; pytorch_model.bin is read with weights_only=True,
which runs none either.
"""
import json
import math
import os
from pathlib import Path

import torch

from common.cli import UserError
from common.files import atomic, load_file, parse_json, read_json
from common.weights import finite

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
