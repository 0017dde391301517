"""Weights of others: Hugging Face folders read without the safetensors package, and .safetensors files written.

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
from common.distributed import load_file

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
CODES = {dtype: code for code, dtype in DTYPES.items()}
NAMES = ("model.safetensors", "pytorch_model.bin")  # in the order in which they are preferred


def read_weights(path):
    """{name: tensor} of a .safetensors or .bin file, or of a folder that holds one (whole, or in parts with an index).
    UserError otherwise."""
    path = Path(path)
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; give a folder with {' or '.join(NAMES)}")
    weights = read_safetensors(path) if path.suffix == ".safetensors" else load_file(path)
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise UserError(f"{path}: this holds something else than tensors by name; give the file of a model's weights")
    return weights


def read_folder(folder):
    """The weights of a Hugging Face folder."""
    for name in NAMES:
        if (folder / name).is_file():
            return read_weights(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"{index}: no weight_map of names to files is in it; fetch it again") from None
            return {key: value for part in parts for key, value in read_weights(folder / Path(part).name).items()}
    raise UserError(f"{folder}: no {' and no '.join(NAMES)} is here; give the folder of a PyTorch model")


def read_safetensors(path):
    """{name: tensor} of one .safetensors file."""
    tensors = {}
    with open(path, "rb") as file:
        try:
            size = int.from_bytes(file.read(8), "little")
            if size > os.path.getsize(path) - 8:
                raise ValueError("the header is cut short")
            header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                (begin, end), shape, dtype = entry["data_offsets"], entry["shape"], DTYPES[entry["dtype"]]
                file.seek(8 + size + begin)
                raw = bytearray(file.read(end - begin))
                if len(raw) != end - begin or end - begin != math.prod(shape) * dtype.itemsize:
                    raise ValueError(f"{name} is cut short")
                tensors[name] = (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).view(shape)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
            raise UserError(f"{path}: no readable safetensors file ({error}); fetch it again") from None
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
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
