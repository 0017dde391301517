"""Tokenizers: released rules (expected ids checked once against Hugging Face's slow tokenizers),
offsets, training."""
import ast
import random
import re
import shutil
import unicodedata
from pathlib import Path
from unittest import mock

import pytest
from small_runs import write

from common.cli import UserError
from common.tokenization import load_tokenizer, preprocess
from data.hf_models import template
from data.text import train_sentencepiece

WORDPIECES = """
    [PAD] [UNK] [CLS] [SEP] [MASK] the cafe ##s un ##aff ##able , . ! ' " [ ] mask 中 国 is ##tan
    ##bul σας a ##b ##a $ ½ et fi ##ﬁ ﬁ ##ne naive … 2011 ##1 ##ﬁn""".split()
NASTY = [
    "Café naïve", "cafe\u0301", "\u0301cafe", "ﬁnd the ﬁsh", "中国 the man", "😀 cat❤️ dog",
    "👩‍👩‍👧 x", "½ of … it", "  two\t\n words ", "``quoted''", "In 2011, a1, x", "İstanbul ΣΑΣ",
    "ＡＢ ㌔", "ab\u200bcd", "", "   ", "각하 한국", "\u0301"]
NUMBERS = "In 2011, x5, y"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A small text where subwords such as "2," pay."""
    draw = random.Random(0)
    lines = [
        f"In {draw.choice((2011, 1999, 5))}, the {draw.choice(('Café', 'dog'))} had "
        f"{draw.randrange(10)},{draw.randrange(1000):03d} coins (x{draw.randrange(9)}, y) - "
        f"£{draw.randrange(99)}.\n"
        for _ in range(3000)]
    return write(tmp_path_factory.mktemp("text") / "text.txt", "".join(lines))


@pytest.fixture(scope="module")
def spiece(text):
    return train_sentencepiece([text], text.parent / "spiece.model", vocab_size=90)


@pytest.fixture(scope="module")
def released(text):
    """A vocabulary like ALBERT's, with subwords such as "2011,"."""
    with mock.patch("data.text.DELIMITER", ""):
        return train_sentencepiece([text], text.parent / "released.model", vocab_size=90)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    return load_tokenizer(write(path, "\n".join(WORDPIECES) + "\n"))


def test_trained_ids_follow_albert(spiece):
    tokenizer = load_tokenizer(spiece.parent)
    assert tokenizer.names[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert not {0, 2, 3, 4} & {*tokenizer.encode("<pad> [CLS] [SEP] [MASK]")}


def test_digit_comma_rule(released, spiece):
    """ALBERT cuts "2," into "2" and ",". At a word's start the digits keep their ▁. A vocabulary of
    data/text.py has no such subword."""
    tokenizer = load_tokenizer(released)
    text = preprocess(NUMBERS)
    raw = tokenizer.model.encode(text, out_type=str)
    assert any(re.search(r"\d,$", name) for name in raw)
    assert not load_tokenizer(spiece).without_comma
    names = [tokenizer.names[i] for i in tokenizer.encode(NUMBERS)]
    assert not any(re.search(r"\d,$", name) for name in names)
    assert "".join(names) == "▁in▁2011,▁x5,▁y"
    exported = {}
    code = ast.parse(template("network.py"))
    code.body = [node for node in code.body if getattr(node, "name", "") == "split_commas"]
    exec(compile(code, "network.py", "exec"), exported)
    assert exported["split_commas"](tokenizer.model, text) == tokenizer.encode(NUMBERS)


def test_word_starts_truth_table(spiece, wordpiece):
    """ALBERT's is_start_piece, and BERT's ##."""
    rule = type(load_tokenizer(spiece)).begins_word
    yes = ["▁the", "▁", "<s>", "1", "23", ",", "-", "€", "café", "a1"]
    assert all(map(rule, yes))
    assert not any(map(rule, ["the", "ing", "--", "a"]))
    assert wordpiece.starts_word.tolist() == [name[:2] != "##" for name in WORDPIECES]


@pytest.mark.parametrize("raw, expected", [
    ("The Cafés!", "the cafe ##s !"),
    ("unaffable, unaffabl", "un ##aff ##able , [UNK]"),
    ("e\u0301t É\u200bt", "et et"),
    ("中国is", "中 国 is"),
    ("İsTanbul ΣΑΣ", "is ##tan ##bul σας"),
    ("[MASK]", "[ mask ]"),
    ("a$a…½ ½ a\x85b", "a $ a … ½ ½ a ##b"),
    ("a\u2028a\u00a0a", "a a a"),
    ("ﬁne naïve", "ﬁ ##ne naive"),
    ("a" * 101, "[UNK]"),
])
def test_wordpiece_rules(wordpiece, raw, expected):
    assert [wordpiece.names[i] for i in wordpiece.encode(raw)] == expected.split()


@pytest.fixture(scope="module")
def kinds(spiece, wordpiece):
    paths = (spiece, wordpiece.path)
    return [load_tokenizer(path, lower) for path in paths for lower in (True, False)]


@pytest.mark.parametrize("raw", NASTY)
def test_offsets_agree_with_encode(kinds, raw):
    for tokenizer in kinds:
        ids, spans = tokenizer.encode_with_offsets(raw)
        assert ids == tokenizer.encode(raw)
        assert all(0 <= a <= b <= len(raw) for a, b in spans)
        assert [a for a, _ in spans] == sorted(a for a, _ in spans)
        covered = {k for a, b in spans for k in range(a, b)}
        assert all(k in covered for k, c in enumerate(raw) if c.isalnum()), spans


RULED = [  # accents, Chinese, ß, a dotted capital I
    "müsste", "Müßiggang", "Café naïve", "cafe\u0301", "中国 the man", "the中国man", "İstanbul", "ÆØ",
    "Straße", "ÀÉÎ", "the cafe", "UN-affable", "国", "mask 2011", "naïve中", "ı İ i I", "ﬁnd",
    "a1 b.",
    "[ ]", "\u0301"]


@pytest.mark.peers
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_the_rules_of_bert_are_those_of_transformers(lower, strip_accents, chinese):
    """For vocab.txt with tokenizer_config.json, and for the tokenizer.json of transformers 5."""
    transformers = pytest.importorskip("transformers")
    letters = sorted({char for text in RULED for part in (text, text.lower())
                      for char in (part + unicodedata.normalize("NFD", part)) if char.strip()})
    words = dict.fromkeys([*WORDPIECES, "müsste", "straße", "the中国man", *letters,
                           *(f"##{char}" for char in letters)])
    write("vocab.txt", "\n".join(words) + "\n")
    settings = {"do_lower_case": lower, "strip_accents": strip_accents,
                "tokenize_chinese_chars": chinese}
    write("tokenizer_config.json", settings)
    theirs = transformers.BertTokenizer(str("vocab.txt"), **settings)
    expected = theirs(RULED, add_special_tokens=False)["input_ids"]
    ours = load_tokenizer(".")
    assert ours.encode_batch(RULED) == expected
    assert [ours.encode_with_offsets(text)[0] for text in RULED] == expected
    theirs.save_pretrained("fast")
    Path("fast/vocab.txt").unlink(missing_ok=True)
    fast = load_tokenizer("fast")
    assert fast.encode_batch(RULED) == expected
    again = load_tokenizer(fast.save(Path("again")).parent)
    assert (again.names, again.rules) == (fast.names, ours.rules)


def test_a_unigram_vocabulary_in_a_tokenizer_json_is_refused():
    write("tokenizer.json", {"model": {"type": "Unigram", "vocab": []}})
    with pytest.raises(UserError, match="spiece.model"):
        load_tokenizer(".")


def test_accents_in_lower_case_are_refused_for_sentencepiece(spiece):
    shutil.copy(spiece, ".")
    write("tokenizer_config.json", {"do_lower_case": True, "keep_accents": True})
    with pytest.raises(UserError, match="keep_accents True"):
        load_tokenizer(".")
