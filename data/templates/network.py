# The template of the file that `python autobert_zero.py --export FILE.py` writes. It is read as
# text and never imported. data/network_code.py replaces each mark FILL_*, keeps the functions
# between two marks FILL_encoding only for a SentencePiece vocabulary, and drops these lines.
"""A language model found by a search (AutoBERT-Zero, arXiv:2107.07445), in plain PyTorch.

    network = load("FILL_weights").eval()
    FILL_call
    states = network.encoder(**batch)  # (B, T, H), for a head of your own

A batch has ids, token_type_ids (0 or 1): (B, T) int64, padded with anything, and lengths (B,) of
real tokens. A sequence is CLS, text, SEP or CLS, first, SEP, second, SEP, and has at most LENGTH
tokens.
The vocabulary is FILL_vocabulary next to this file.
The classes are from autobert_zero.py. Comments D1, D2, ... are departures from the paper.
B batch, T tokens, H hidden, N heads, D head dim, V vocabulary, E embedding, K kernel.

FILL_layers
"""
import math
import unicodedata
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

CONFIG = SimpleNamespace(
    vocab_size=FILL_vocab_size,
    hidden=FILL_hidden,
    heads=FILL_heads,
    ffn=FILL_ffn,
    embedding=FILL_embedding,
    dropout=FILL_dropout,
    init_std=FILL_init_std,
    recompute=FILL_recompute,
)
LENGTH = FILL_length  # tokens of the longest sequence that the network was trained on
PAD = FILL_pad
UNK = FILL_unk
CLS = FILL_cls
SEP = FILL_sep
MASK = FILL_mask
LABELS = FILL_labels  # of a task's head
LOWER = FILL_lower  # whether the vocabulary is of lower case
FILL_encoding


def clean(text):
    """A text as a vocabulary of lower case was trained on it."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


def split_commas(pieces, text):
    """The ids of a text. ALBERT's rule: "▁2011," is split again, without its comma."""
    ids = []
    for i in pieces.encode(text):
        name = pieces.id_to_piece(i)
        if not (name[-1] == "," and name[-2:-1].isdecimal()):
            ids.append(i)
            continue
        parts = pieces.encode(name[:-1].replace("▁", ""), out_type=str)
        if name[0] != "▁":  # inside a word: without the ▁ that encode adds
            parts[0] = parts[0].removeprefix("▁")
        ids += [pieces.piece_to_id(part) for part in [*parts, ","] if part]
    return ids


def encode(pieces, first, second=""):
    """A batch of one: a text or two, cut to LENGTH tokens. pieces: a
    sentencepiece.SentencePieceProcessor."""
    first, second = [split_commas(pieces, clean(text)) if LOWER else pieces.encode(text)
                     for text in (first, second)]
    room = LENGTH - 3 if second else LENGTH - 2
    keep = min(len(first), max(room - len(second), (room + 1) // 2))  # the longer text is cut
    if LABELS == ("start", "end"):  # a question and a passage, which loses its end
        keep = min(len(first), 64)
    ids = [CLS, *first[:keep], SEP]
    token_type_ids = [0] * len(ids)
    if second:
        ids += [*second[:room - keep], SEP]
        token_type_ids += [1] * (len(ids) - len(token_type_ids))
    lengths = torch.tensor([len(ids)])
    token_type_ids = torch.tensor([token_type_ids])
    return {"ids": torch.tensor([ids]), "token_type_ids": token_type_ids, "lengths": lengths}
FILL_encoding
FILL_sources

class Attention(nn.Module):
    """Projections of x, a found formula in each head, W_O (Eq. 1)."""
    reads = ""  # inputs of the formula, of Q, K, V, P

    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads = heads
        self.scale = math.sqrt(hidden // heads)
        self.dropout = nn.Dropout(dropout)
        self.inputs = nn.Linear(hidden, len(self.reads) * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x, mask):
        B, T, H = x.shape
        stacked = self.inputs(x).view(B, T, len(self.reads), self.heads, H // self.heads)
        mixed = self.mix(mask, *stacked.permute(2, 0, 3, 1, 4))  # of (B, N, T, D) each
        return self.output(mixed.transpose(1, 2).reshape(B, T, H))  # (B, N, T, D) -> (B, T, H)
FILL_attentions

ARCH = [FILL_arch]


def make_network(config=CONFIG, outputs=FILL_outputs):
    """The network with random weights. outputs: of a task's head."""
    return FILL_network


def load(path):
    """The network with the weights of a file."""
    network = make_network()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network
