"""Hugging Face folders: weights read and written without the safetensors package, a model of ours as a folder, and its
tokenizer as a tokenizer.json, so that a plain AutoTokenizer, without sentencepiece and protobuf, cuts text as
common/tokenization.py does.

A .safetensors file is an 8-byte little-endian length, a JSON header of that length ({name: dtype, shape, data_offsets})
and the raw tensors behind it, so no code of a stranger is ever run; pytorch_model.bin is read with weights_only=True,
which runs none either.

SentencePiece: pieces and scores of the model, its own normaliser (the precompiled table of characters in spiece.model),
and before it, with `lower`, ALBERT's clean-up. A vocabulary that data/text.py made cuts all text alike here and there,
but for two things: "[MASK]" or "<unk>" written out in a text is a special piece there and text here (there too with
split_special_tokens=True, if its letters are in the vocabulary), and a final capital sigma of a word becomes σ.

Released vocabularies keep two more differences: a piece such as "▁2011," is not used instead of being cut again, and of
cuts that score the same, as of "====", the two may choose different ones.
"""
import base64
import json
import os
import sys
import unicodedata
from pathlib import Path

import torch

from common.cli import UserError
from common.files import atomic, load_file, parse_json, write_atomic
from common.weights import finite
from data.text import NORMAL, SYMBOL, fields

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
CODES = {dtype: code for code, dtype in DTYPES.items()}
NAMES = ("model.safetensors", "pytorch_model.bin")  # in the order in which they are preferred
NEVER = -1e4  # the score of a piece that is not to be used
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
def character_class(wanted):
    """A regular expression of the characters for which wanted(character) holds."""
    codes = [code for code in range(sys.maxunicode + 1) if not 0xd800 <= code < 0xe000 and wanted(chr(code))]
    starts = [code for code, before in zip(codes, [-2, *codes]) if code != before + 1]
    ends = [code for code, after in zip(codes, [*codes[1:], -2]) if code + 1 != after]
    return "[" + "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in zip(starts, ends)) + "]"


def replace(pattern, content, regex=False):
    """A step of a normaliser."""
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": pattern}, "content": content}


def sentencepiece_parts(tokenizer):
    """normalizer, pre_tokenizer, decoder and model of a SentencePieceTokenizer."""
    content, scores, kinds, table = tokenizer.path.read_bytes(), [], [], b""
    for number, value, _ in fields(content):
        found = {key: inside for key, inside, _ in fields(value)} if number in (1, 3) else {}
        if number == 1:  # ModelProto.pieces: piece, score, type
            kinds.append(found.get(3, NORMAL))
            scores.append(tokenizer.model.get_score(len(scores)))
        elif number == 3:  # ModelProto.normalizer_spec
            table = found.get(2, b"")
    best = max(score for score, kind in zip(scores, kinds) if kind == NORMAL)
    for number, (name, kind) in enumerate(zip(tokenizer.names, kinds)):
        if kind == SYMBOL:  # always a piece of its own, as SentencePiece scores it
            scores[number] = len(name) * best - 0.1
        elif kind != NORMAL or number in tokenizer.recut:  # unused, or special: in a text it is none
            scores[number] = NEVER
    steps = [replace(character_class(str.isspace) + "+", " ", regex=True), {"type": "Strip", "strip_left": True,
             "strip_right": True}, replace("``", '"'), replace("''", '"'), {"type": "NFKD"},
             replace(character_class(unicodedata.combining), "", regex=True), {"type": "Lowercase"}]
    steps = steps * tokenizer.lower + [
        *[{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}] * bool(table),
        replace(" {2,}", " ", regex=True), {"type": "Strip", "strip_left": True, "strip_right": True}]
    words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": words, "decoder": words,
            "model": {"type": "Unigram", "unk_id": tokenizer.unk_id, "byte_fallback": False,
                      "vocab": [[name, score] for name, score in zip(tokenizer.names, scores)]}}


def wordpiece_parts(tokenizer):
    """normalizer, pre_tokenizer, decoder and model of a WordPieceTokenizer."""
    lower = tokenizer.lower
    return {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": lower, "lowercase": lower},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##",
                                                                       "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": tokenizer.names[tokenizer.unk_id],
                      "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": tokenizer.index}}


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
    """Write tokenizer.json and tokenizer_config.json of a tokenizer, whose inputs have up to `longest` pieces."""
    ids = {role: number for role in ROLES if (number := getattr(tokenizer, f"{role}_id")) is not None}
    names = {role: tokenizer.names[number] for role, number in ids.items()}
    cls, sep = ({"SpecialToken": {"id": names[role], "type_id": 0}} for role in ("cls", "sep"))
    last = {"SpecialToken": {"id": names["sep"], "type_id": 1}}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    special = {names[role]: {"id": names[role], "ids": [ids[role]], "tokens": [names[role]]} for role in ("cls", "sep")}
    parts = wordpiece_parts(tokenizer) if tokenizer.file_name == "vocab.txt" else sentencepiece_parts(tokenizer)
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [
        {"id": number, "content": tokenizer.names[number], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True} for number in tokenizer.special_ids], **parts,
        "post_processor": {"type": "TemplateProcessing", "single": [cls, first, sep],
                           "pair": [cls, first, sep, second, last], "special_tokens": special}}
    write_atomic(Path(folder) / "tokenizer.json", json.dumps(content, ensure_ascii=False))
    write_atomic(Path(folder) / "tokenizer_config.json", json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": tokenizer.lower, "model_max_length": longest,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **{f"{role}_token": name for role, name in names.items()}}, indent=2))
