"""BLEU of a corpus in two conventions, which are not comparable.

    corpus_bleu(hypotheses, references)         # percent; what sacrebleu prints of raw text
    tokenised_bleu(hypotheses, references)      # percent; in which English-German was quoted before: 28.4 of the
                                                # Transformer, 28.34 and 26 to 28 of the papers here; half a point to a
                                                # point higher

The second is the recipe of tensor2tensor's get_ende_bleu.sh, in its order: Unicode punctuation replaced, the Moses
tokenizer for German, compounds split at their hyphens ("Rich-Text" becomes "Rich ##AT##-##AT## Text"), multi-bleu.perl.
There the reference is WMT's newstest2014 as Stanford's group tokenised it; here the raw reference takes the same way as
the translation, which is as near as raw files come.
"""
import math
import re
from collections import Counter

import numpy as np

# --- sacrebleu

SYMBOLS = re.compile(r"([!-&(-+/:-@\[-`{-~])")  # ASCII punctuation without ' , - .
MARK_AFTER_OTHER = re.compile(r"([^0-9])([.,])")
MARK_BEFORE_OTHER = re.compile(r"([.,])([^0-9])")
DASH_AFTER_DIGIT = re.compile(r"([0-9])(-)")
ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))


def tokenize_13a(line):
    """The tokens of mteval-v13a, in which BLEU is quoted: symbols stand alone, '.' and ',' except inside numbers, '-'
    after a digit."""
    line = line.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in ENTITIES:
        line = line.replace(entity, character)
    line = SYMBOLS.sub(r" \1 ", f" {line} ")
    line = MARK_BEFORE_OTHER.sub(r" \1 \2", MARK_AFTER_OTHER.sub(r"\1 \2 ", line))
    return DASH_AFTER_DIGIT.sub(r"\1 \2 ", line).split()


def ngrams(tokens, size):
    return Counter(zip(*(tokens[shift:] for shift in range(size))))


def count_ngrams(hypotheses, references):
    """(n-grams that match (4,), n-grams (4,), brevity penalty) of equally many token lists; ValueError otherwise."""
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    matched, total, lengths = np.zeros(4), np.zeros(4), np.zeros(2)
    for ours, theirs in zip(hypotheses, references):
        lengths += len(ours), len(theirs)
        for size in range(1, 5):
            matched[size - 1] += sum((ngrams(ours, size) & ngrams(theirs, size)).values())
            total[size - 1] += max(0, len(ours) - size + 1)
    return matched, total, min(1.0, math.exp(1 - lengths[1] / lengths[0])) if lengths[0] else 0.0


def corpus_bleu(hypotheses, references):
    """BLEU-4 of a corpus in percent, one reference a sentence: case-sensitive, 13a tokens, exponential smoothing
    (sacrebleu's default).

    hypotheses, references: equally long lists of raw sentences. 0.0 where the corpus has no 4-gram or nothing matches.
    """
    matched, total, brevity = count_ngrams(*([tokenize_13a(line) for line in side] for side in (hypotheses, references)))
    if not matched.any() or not total.all():
        return 0.0
    missed = np.cumsum(matched == 0)  # the k-th order without a match counts as half a match, a quarter, ...
    precisions = np.where(matched > 0, matched, 0.5 ** missed) / total
    return float(100 * brevity * math.exp(np.log(precisions).mean()))


# --- tokenised, German

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
    matched, total, brevity = count_ngrams(hypotheses, references)
    if not matched.all():
        return 0.0
    return float(100 * brevity * math.exp(np.log(matched / total).mean()))


def tokenised_bleu(hypotheses, references, compounds=True):
    """BLEU in percent of raw German sentences, tokenised and with compounds split (get_ende_bleu.sh).

    hypotheses, references: equally long lists of raw sentences, else ValueError. compounds: split at hyphens.
    """
    sides = [[tokenize_german(line) for line in side] for side in (hypotheses, references)]
    if compounds:
        sides = [[split_compounds(tokens) for tokens in side] for side in sides]
    return multi_bleu(*sides)


# --- what has not converged

def repeated_words(lines):
    """Share of the words of these sentences, their first ones aside, that repeat the word before them; 0.0 where there
    are none."""
    repeats = [one == two for line in lines for one, two in zip(line.split(), line.split()[1:])]
    return sum(repeats) / max(1, len(repeats))
