# The template of the file that `python autotinybert.py --export FILE.py` writes. It is read as text
# and never imported. data/bert_code.py replaces each mark FILL_*, and drops these lines.
"""A small BERT, FILL_arch (layers-hidden-ffn-heads-qkv), in plain PyTorch.

    FILL_use

A batch has ids, token_type_ids (0 or 1): (B, T) int64, padded with anything, and lengths (B,) of
real tokens, unless all are full. At most LENGTH tokens were seen in training.
Weights and vocabulary are the files WEIGHTS and VOCABULARY, next to this file.
The classes are from autotinybert.py (AutoTinyBERT, arXiv:2107.13686).
B batch, T tokens, N heads, D width of a head, H hidden.
"""
import re
import unicodedata
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent
WEIGHTS = HERE / "FILL_weights"
VOCABULARY = HERE / "FILL_vocabulary"
HIDDEN = FILL_hidden
SHAPES = FILL_shapes  # ffn, heads and width of query, key and value of each layer
VOCAB_SIZE = FILL_vocab_size
POSITIONS = FILL_positions
LENGTH = FILL_length
LABELS = FILL_labels  # of the outputs, () without a head
SPANS = FILL_spans  # whether the outputs are start and end of an answer, for each token
QUANTIZE = FILL_quantize  # whether linear layers use 8-bit integers
UNK = FILL_unk
CLS = FILL_cls
SEP = FILL_sep
LOWER = FILL_lower  # whether the vocabulary is of lower case
FILL_tokenization

def encode(first, second=""):
    """A batch of one: a text or two, cut to LENGTH tokens."""
    first = tokenize(first)
    second = tokenize(second)
    room = LENGTH - 3 if second else LENGTH - 2
    keep = min(len(first), max(room - len(second), (room + 1) // 2))  # the longer text is cut
    if SPANS:  # a question and a passage, which loses its end
        keep = min(len(first), 64)
    ids = [CLS, *first[:keep], SEP]
    token_type_ids = [0] * len(ids)
    if second:
        ids += [*second[:room - keep], SEP]
        token_type_ids += [1] * (len(ids) - len(token_type_ids))
    return {"ids": torch.tensor([ids]), "token_type_ids": torch.tensor([token_type_ids])}
FILL_sources

def load(quantized=QUANTIZE):
    """The model with its weights."""
    model = PlainBert(HIDDEN, SHAPES, VOCAB_SIZE, POSITIONS, len(LABELS), SPANS)
    model.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    model.eval()
    return quantize(model) if quantized else model


@torch.no_grad()
def predict(model, first, second=""):
    """FILL_returns"""
    outputs = model(encode(first, second))
    if len(LABELS) < 2 or SPANS:
        return outputs.item() if LABELS and not SPANS else outputs
    return dict(zip(LABELS, outputs.softmax(-1)[0].tolist()))
