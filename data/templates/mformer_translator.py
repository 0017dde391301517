# The template of the file that `python mformer.py --export FILE.py` writes for translation. It is
# read as text and never imported. data/mformer_code.py replaces each mark FILL_*, and drops these
# lines.
"""A translator (mFormer, arXiv:2207.13955), in plain PyTorch: from FILL_languages.

    network = load("FILL_weights").eval()
    pieces = sentencepiece.SentencePieceProcessor(model_file="FILL_vocabulary")
    translations = translate(network, pieces, ["a line", "another line"])

It decodes greedily. `python mformer.py --predict` has a beam search, which translates better.
The classes are from mformer.py. Comments D1, D2, ... are departures from the paper.
B batch, T tokens, S source tokens, H hidden, N heads, D head dim, V vocabulary, C chunks, M length
in the cosine (Eq. 3's N), R CONFIG.relative, K beams (1 here).
"""
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = SimpleNamespace(
FILL_config
)
ARCH = SimpleNamespace(
FILL_arch
)
PAD = FILL_pad
BOS = FILL_bos
EOS = FILL_eos
FILL_sources

@torch.no_grad()
def generate(network, source, lengths):
    """The most likely next token again and again: ids (B, T), EOS from the end of each on. source
    (B, S) ids, lengths (B,), both with EOS."""
    encoded = network.encode(source, lengths)
    caches = [[] for _ in network.decoder_layers]
    limits = (lengths + lengths // 2 + 10).clamp(max=CONFIG.length - 1)  # tokens, with EOS
    tokens = torch.full_like(source[:, :1], BOS)
    ids = tokens[:, :0]
    for step in range(int(limits.max())):
        logits = network.decode(tokens, encoded, None, caches, step)[:, -1]  # (B, V)
        logits[:, [PAD, BOS]] = -math.inf
        if step == 0:
            logits[:, EOS] = -math.inf
        tokens = logits.argmax(-1, keepdim=True)
        ended = (step + 1 >= limits) | (ids == EOS).any(1)
        tokens[ended] = EOS
        ids = torch.cat([ids, tokens], dim=1)
        if (tokens == EOS).all():
            break
    return ids


def translate(network, pieces, lines):
    """The translation of each line. pieces: a sentencepiece.SentencePieceProcessor. All lines are
    one batch. Longer ones are cut. An empty line gives ""."""
    device = network.token_embedding.device
    encoded = [pieces.encode(line)[:CONFIG.length - 1] for line in lines]
    sources = [torch.tensor([*ids, EOS], device=device) for ids in encoded]
    lengths = torch.tensor([len(source) for source in sources], device=device)
    source = nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=PAD)
    texts = []
    for given, ids in zip(encoded, generate(network, source, lengths).tolist()):
        ids = [i for i in ids if i not in (PAD, BOS, EOS)]
        texts.append(pieces.decode(ids) if given else "")
    return texts


def load(path):
    """The network with the weights of a file."""
    network = Translator(ARCH, CONFIG)
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network
