"""Hugging Face folders: weights read and written without the safetensors package, and a model of
ours as a folder with its vocabulary.

A .safetensors file is an 8-byte little-endian length, a JSON header of that length ({name: dtype,
shape, data_offsets}) and the raw tensors behind it, so no code of a stranger is ever run;
pytorch_model.bin is read with weights_only=True, which runs none either.

The vocabulary is spiece.model or vocab.txt, from which transformers builds its own AlbertTokenizer
(pip install sentencepiece protobuf) or BertTokenizer; tokenizer_config.json names the class.
Ordinary text gives the same ids as common/tokenization.py. These differ in transformers 5:
- "[MASK]" or "<unk>" written out in a text is a special token there, and text here.
- Unigrams: of segmentations with equal scores, as of "====", another may be chosen; a final capital
  sigma becomes σ; spaces and control characters such as U+0085 are treated differently.
- A cased SentencePiece vocabulary: `` and '' become " there.
- A released ALBERT vocabulary: a "▁" follows each of its symbols ( ) " - . – £ €, and a token such
  as "▁2011," is not cut again. Vocabularies of data/text.py have neither.
"""
import json
import os
from pathlib import Path

import torch

from common.cli import UserError
from common.checkpoint import atomic, finite, load_file, parse_json, write_atomic

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
CODES = {dtype: code for code, dtype in DTYPES.items()}
NAMES = ("model.safetensors", "pytorch_model.bin")  # in the order in which they are preferred
ROLES = ("pad", "unk", "cls", "sep", "mask")


# --- weights ---------------------------------------------------------------------------------------------------------
def read_weights(path):
    """{name: tensor} of a .safetensors or .bin file, or of the folder that holds one."""
    path = next((file for name in NAMES if (file := Path(path) / name).is_file()), Path(path))
    if not path.is_file():
        raise UserError(f"{path}: no {' and no '.join(NAMES)} is here; give the folder of a PyTorch model")
    weights = read_safetensors(path) if path.suffix == ".safetensors" else load_file(path)
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise UserError(f"{path}: this holds something else than tensors by name; give the file of a model's weights")
    return finite(weights, path)


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
                file.seek(8 + size + begin)
                raw = bytearray(file.read(min(end - begin, room)))
                tensors[name] = (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).view(shape)
            except (ValueError, KeyError, TypeError, RuntimeError, OverflowError, OSError):
                raise UserError(f"{path}: damaged or cut short, this cannot be tensor {name}: {str(entry)[:100]}; "
                                "fetch it again") from None
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


# --- tokenizers and folders ------------------------------------------------------------------------------------------
def write_folder(folder, weights, config, tokenizer):
    """Write a Hugging Face folder: weights under their names there, config.json and the tokenizer. UserError where the
    folder is not empty."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--export {folder}: not empty; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "model.safetensors", weights)
    write_atomic(folder / "config.json", json.dumps(config, indent=2))
    tokenizer.save(folder)
    write_tokenizer(folder, tokenizer, config["max_position_embeddings"])


def write_tokenizer(folder, tokenizer, longest):
    """Write tokenizer_config.json next to a vocabulary. longest: tokens of the longest input."""
    kind = "BertTokenizer" if tokenizer.file_name == "vocab.txt" else "AlbertTokenizer"
    config = {
        "tokenizer_class": kind,
        "do_lower_case": tokenizer.lower,
        "keep_accents": not tokenizer.lower,
        "model_max_length": longest,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    for role in ROLES:
        number = getattr(tokenizer, f"{role}_id")
        if number is not None:
            config[f"{role}_token"] = tokenizer.names[number]
    write_atomic(Path(folder) / "tokenizer_config.json", json.dumps(config, indent=2))
