# The part of templates/bert.py for a vocab.txt. It is read as text and never imported.
"""WordPiece."""
STRIP_ACCENTS = FILL_strip_accents
CHINESE = FILL_chinese  # whether each Chinese character is a word
NAMES = VOCABULARY.read_text(encoding="utf-8").removesuffix("\n").split("\n")
NUMBERS = {name: number for number, name in enumerate(NAMES)}
SPACE = re.compile("[ \t\n\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
CJK = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
                 "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]")


def clean(text):
    """A text without control characters and, by the vocabulary's rules, case and accents."""
    text = "".join(c for c in text if c != "\ufffd" and unicodedata.category(c)[0] != "C")
    if LOWER:
        text = text.lower()
    if STRIP_ACCENTS:
        text = unicodedata.normalize("NFD", text)
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return text


def is_word(char):
    """Whether a character is a separate word: punctuation, signs, Chinese."""
    return (char.isascii() and not char.isalnum() or unicodedata.category(char)[0] == "P"
            or CHINESE and CJK.match(char) is not None)


def subwords(word):
    """The ids of the longest subwords from the left, or UNK if they do not reach the end."""
    ids = []
    start = 0
    while start < len(word) <= 100:
        prefix = "##" if start else ""
        known = [end for end in range(start + 1, len(word) + 1)
                 if prefix + word[start:end] in NUMBERS]
        if not known:
            return [UNK]
        ids.append(NUMBERS[prefix + word[start:known[-1]]])
        start = known[-1]
    return ids or [UNK]


def tokenize(text):
    """The ids of a text."""
    ids = []
    for stretch in SPACE.split(text):
        spaced = "".join(f" {c} " if is_word(c) else c for c in clean(stretch))
        for word in spaced.split():
            ids += subwords(word)
    return ids
