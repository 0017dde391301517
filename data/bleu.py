"""The tokenised BLEU in which English-German was quoted before sacrebleu: 28.4 of the Transformer, 28.34 and 26 to 28
of the papers here. Not comparable with sacrebleu's BLEU of raw text (common/metrics.py corpus_bleu), which is lower by
about half a point to a point.

    tokenised_bleu(hypotheses, references)      # percent

The recipe of tensor2tensor's get_ende_bleu.sh, in its order: Unicode punctuation replaced, the Moses tokenizer for
German, compounds split at their hyphens ("Rich-Text" becomes "Rich ##AT##-##AT## Text"), multi-bleu.perl. There the
reference is WMT's newstest2014 as Stanford's group tokenised it; here the raw reference takes the same way as the
translation, which is as near as raw files come.
"""
import math
import re

import numpy as np

from common.metrics import ngrams

# replace-unicode-punctuation.perl
PUNCTUATION = str.maketrans({
    "，": ",", "。": ". ", "、": ",", "”": '"', "“": '"', "∶": ":", "：": ":", "？": "?", "《": '"', "》": '"', "）": ")",
    "！": "!", "（": "(", "；": ";", "１": "1", "」": '"', "「": '"', "０": "0", "３": "3", "２": "2", "５": "5", "６": "6",
    "９": "9", "７": "7", "８": "8", "４": "4", "．": ". ", "～": "~", "’": "'", "…": "...", "━": "-", "〈": "<", "〉": ">",
    "【": "[", "】": "]", "％": "%"})
# A full stop stays at these words: common German abbreviations, a list of our own and not that of Moses, which matters
# little since both sides are cut alike. As in Moses it also stays at single letters, ordinals to 99, Roman ones to XX.
ABBREVIATIONS = frozenset("""Adm Chr Co Corp Dr Gen Hr Hrn Hrsg Ing Jh Kap Ltd Maj Mio Mr Mrd Mrs Ms Prof Rev Sen Sr St
    Std Str Tel Univ Zt abs allg bes bzgl bzw ca Ca dergl dgl einschl engl etc evtl ff franz gegr ggf inkl insb jun lat
    lfd max min nördl orig pp sen sog sogen südl u urspr usf usw vgl vs zzgl""".split())
ORDINAL = re.compile(r"[^\W\d_]|[1-9]\d?|x{0,1}(?:i[xv]|v?i{1,3}|v|x)|X{0,1}(?:I[XV]|V?I{1,3}|V|X)")
NUMBERED = frozenset(("No", "Nos", "Art", "Nr"))  # only before a number
OTHER = re.compile(r"([^\w\s.'`,-]|_)")
DOTS = re.compile(r"\.(\.+)")
COMMA = re.compile(r"(?<=[^\d]),|,(?=[^\d])")
COMPOUND = re.compile(r"(\S)-(\S)")


def tokenize_german(line):
    """The tokens of the Moses tokenizer (tokenizer.perl -l de) after replace-unicode-punctuation.perl."""
    line = OTHER.sub(r" \1 ", " " + line.translate(PUNCTUATION) + " ")
    line = DOTS.sub(lambda match: f" DOT{len(match.group())}MULTI ", line)  # "..." is one token
    line = COMMA.sub(" , ", line).replace("'", " ' ")
    words, found = line.split(), []
    for number, word in enumerate(words):
        stem, following = word[:-1], words[number + 1] if number + 1 < len(words) else ""
        if word.endswith(".") and stem and not keeps_stop(stem, following):
            found += [stem, "."]
        else:
            found.append(word)
    return [re.sub(r"^DOT(\d+)MULTI$", lambda match: "." * int(match.group(1)), word) for word in found]


def keeps_stop(stem, following):
    """Whether a full stop belongs to the word before it: inside an abbreviation, before a small letter."""
    dotted = "." in stem and any(map(str.isalpha, stem))
    number = stem in NUMBERED and following[:1].isdigit()
    return (dotted or number or stem in ABBREVIATIONS or ORDINAL.fullmatch(stem) is not None
            or following[:1].islower())


def split_compounds(tokens):
    """Words with hyphens as several: "Rich-Text" -> "Rich", "##AT##-##AT##", "Text"."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", " ".join(tokens)).split()


def multi_bleu(hypotheses, references):
    """BLEU-4 of token lists in percent, one reference each, not smoothed (multi-bleu.perl): 0.0 where an order has no
    match."""
    matched, total, lengths = np.zeros(4), np.zeros(4), np.zeros(2)
    for ours, theirs in zip(hypotheses, references, strict=True):
        lengths += len(ours), len(theirs)
        for size in range(1, 5):
            matched[size - 1] += sum((ngrams(ours, size) & ngrams(theirs, size)).values())
            total[size - 1] += max(0, len(ours) - size + 1)
    if not matched.all():
        return 0.0
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    return float(100 * brevity * math.exp(np.log(matched / total).mean()))


def tokenised_bleu(hypotheses, references, compounds=True):
    """BLEU in percent of raw German sentences, tokenised and with compounds split (get_ende_bleu.sh).

    hypotheses, references: equally long lists of raw sentences, else ValueError. compounds: split at hyphens.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    sides = [[tokenize_german(line) for line in side] for side in (hypotheses, references)]
    if compounds:
        sides = [[split_compounds(tokens) for tokens in side] for side in sides]
    return multi_bleu(*sides)
