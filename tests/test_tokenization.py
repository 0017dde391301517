"""Tokenizers: released rules (expected ids checked once against Hugging Face's slow tokenizers), offsets, training."""
import pickle
import random
from unittest import mock

import pytest
import sentencepiece

from common.cli import UserError
from common.tokenization import load_tokenizer, preprocess, preprocess_aligned
from data.text import train_sentencepiece

WORDPIECES = """[PAD] [UNK] [CLS] [SEP] [MASK] the cafe ##s un ##aff ##able , . ! ' " [ ] mask 中 国 is ##tan ##bul σας a
    ##b ##a $ ½ et fi ##ﬁ ﬁ ##ne naive … 2011 ##1 ##ﬁn""".split()
NASTY = ["Café naïve", "cafe\u0301", "\u0301cafe", "ﬁnd the ﬁsh", "中国 the man", "😀 cat❤️ dog", "👩‍👩‍👧 x",
         "½ of … it", "  two\t\n words ", "``quoted''", "In 2011, a1, x", "İstanbul ΣΑΣ", "ＡＢ ㌔", "ab\u200bcd", "",
         "   ", "각하 한국", "\u0301"]


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A small text in which pieces such as "2," are worth having."""
    draw = random.Random(0)
    places = ["2011", "1999", "5"]
    lines = [f"In {draw.choice(places)}, the {draw.choice(['Café', 'dog'])} had {draw.randrange(10)},"
             f"{draw.randrange(1000):03d} coins (x{draw.randrange(9)}, y) - £{draw.randrange(99)}."
             for _ in range(3000)]
    return write(tmp_path_factory.mktemp("text") / "text.txt", lines)


@pytest.fixture(scope="module")
def spiece(text):
    return train_sentencepiece([text], text.parent / "spiece.model", vocab_size=90)


@pytest.fixture(scope="module")
def released(text):
    """A vocabulary like ALBERT's own: it has pieces such as "2011,"."""
    with mock.patch("data.text.DELIMITER", ""):
        return train_sentencepiece([text], text.parent / "released.model", vocab_size=90)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return load_tokenizer(write(tmp_path_factory.mktemp("bert") / "vocab.txt", WORDPIECES))


def test_trained_ids_follow_albert(spiece):
    tokenizer = load_tokenizer(spiece.parent)
    assert tokenizer.names[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.vocab_size == 90 and tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (tokenizer.cls_id, tokenizer.sep_id) == (2, 3)
    assert not {0, 2, 3, 4} & set(tokenizer.encode("<pad> [CLS] [SEP] [MASK]"))


def test_training_is_deterministic(text, spiece, tmp_path):
    again = train_sentencepiece(text.parent, tmp_path / "m" / "other.model", vocab_size=90)
    assert again.read_bytes() == spiece.read_bytes()


@pytest.mark.parametrize("raw, clean", [
    ("  A\t b\n", "a b"), ("``x''", '"x"'), ("Café", "cafe"), ("e\u0301", "e"), ("ﬁ½", "fi1⁄2"),
    ("\u0902", "\u0902"), ("ΣΑΣ", "σας")])
def test_preprocess(raw, clean):
    assert preprocess(raw) == clean


@pytest.mark.parametrize("raw", NASTY)
def test_aligned_preprocess_is_preprocess(raw):
    clean, starts, ends = preprocess_aligned(raw)
    assert clean == preprocess(raw) and len(starts) == len(ends) == len(clean)
    assert all(0 <= a < b <= len(raw) for a, b in zip(starts, ends))


def test_digit_comma_rule(released):
    """ "2," is cut into "2" and ","; at a word's start the digits keep their ▁, inside a word they get none."""
    tokenizer = load_tokenizer(released)
    raw = tokenizer.model.encode(preprocess("In 2011, x5, y"), out_type=str)
    assert any(piece[-1] == "," and len(piece) > 1 for piece in raw)  # or the test would show nothing
    pieces = [tokenizer.names[i] for i in tokenizer.encode("In 2011, x5, y")]
    assert not any(len(piece) > 1 and piece[-1] == "," for piece in pieces)
    assert "".join(pieces) == "▁in▁2011,▁x5,▁y"
    assert all(tokenizer.names[new[-1]] == "," for new in tokenizer.recut.values())


def test_a_trained_vocabulary_needs_no_digit_comma_rule(spiece, released):
    ours = load_tokenizer(spiece)
    assert load_tokenizer(released).recut and not ours.recut
    assert "".join(ours.names[i] for i in ours.encode("In 2011, x5, y")) == "▁in▁2011,▁x5,▁y"
    assert not any(ours.model.is_unused(i) or ord("\ue000") in map(ord, name) for i, name in enumerate(ours.names))


def test_word_starts_truth_table(spiece, wordpiece):
    """facts of ALBERT's is_start_piece, and BERT's ##."""
    rule = type(load_tokenizer(spiece)).begins_word
    yes, no = ["▁the", "▁", "<s>", "1", "23", ",", "-", "€", "café", "a1"], ["the", "ing", "--", "a"]
    assert [rule(piece) for piece in yes + no] == [True] * len(yes) + [False] * len(no)
    assert wordpiece.starts_word.tolist() == [name[:2] != "##" for name in WORDPIECES]


@pytest.mark.parametrize("raw, pieces", [
    ("The Cafés!", "the cafe ##s !"), ("unaffable, unaffabl", "un ##aff ##able , [UNK]"),
    ("e\u0301t É\u200bt", "et et"), ("中国is", "中 国 is"), ("İsTanbul ΣΑΣ", "is ##tan ##bul σας"),
    ("[MASK]", "[ mask ]"), ("a$a…½ ½ a\x85b", "a $ a … ½ ½ a ##b"),
    ("a\x00\ufffdb", "a ##b"), ("a\u2028a\u00a0a", "a a a"), ("ﬁne naïve", "ﬁ ##ne naive"),
    ("a" * 101, "[UNK]"), ("", "")])
def test_wordpiece_rules(wordpiece, raw, pieces):
    assert [wordpiece.names[i] for i in wordpiece.encode(raw)] == pieces.split()


@pytest.fixture(scope="module")
def kinds(spiece, wordpiece):
    return [load_tokenizer(path, lower) for path in (spiece, wordpiece.path) for lower in (True, False)]


@pytest.mark.parametrize("raw", NASTY)
def test_offsets_agree_with_encode(kinds, raw):
    for tokenizer in kinds:
        ids, spans = tokenizer.encode_with_offsets(raw)
        assert ids == tokenizer.encode(raw)
        assert all(0 <= a <= b <= len(raw) for a, b in spans)
        assert [a for a, _ in spans] == sorted(a for a, _ in spans)
        covered = {k for a, b in spans for k in range(a, b)}
        assert all(k in covered for k, c in enumerate(raw) if c.isalnum()), (raw, spans)


def test_uncased_off_keeps_the_text(spiece):
    plain = load_tokenizer(spiece, lower=False)
    sentence = "the dog had 2,011 coins."
    assert plain.decode([plain.bos_id, *plain.encode(sentence), plain.eos_id]) == sentence
    assert plain.unk_id in plain.encode("The") and plain.unk_id not in load_tokenizer(spiece).encode("The")


def test_foreign_model_is_read_by_piece_names(text, tmp_path):
    """Ids come from the names <pad>, [CLS], .. wherever they stand."""
    common = {"input": str(text), "vocab_size": 80, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(model_prefix=str(tmp_path / "a"), unk_id=0, bos_id=-1, eos_id=-1, pad_id=1,
                                             control_symbols=["[MASK]", "[SEP]", "[CLS]"], **common)
    tokenizer = load_tokenizer(tmp_path / "a.model")
    ids = tokenizer.unk_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.sep_id, tokenizer.cls_id
    assert ids == (0, 1, 2, 3, 4)
    sentencepiece.SentencePieceTrainer.train(model_prefix=str(tmp_path / "c"), bos_id=-1, **common)
    with pytest.raises(UserError, match=r"c\.model: the vocabulary lacks <pad>, \[CLS\]"):
        load_tokenizer(tmp_path / "c.model")


def test_save_and_pickle(spiece, wordpiece, tmp_path):
    for tokenizer, name in ((load_tokenizer(spiece, lower=False), "spiece.model"), (wordpiece, "vocab.txt")):
        target = tokenizer.save(tmp_path / name[:2])
        assert target.name == name and target.read_bytes() == tokenizer.path.read_bytes()
        read = load_tokenizer(target.parent)  # case is kept, or not, as it was
        assert (read.fingerprint, read.lower) == (tokenizer.fingerprint, tokenizer.lower)
        beside = {path.name for path in target.parent.iterdir()} - {name}
        assert beside == (set() if read.lower else {"tokenizer_config.json"})
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert copy.lower == tokenizer.lower and copy.encode("The dog") == tokenizer.encode("The dog")
