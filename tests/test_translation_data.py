"""The second BLEU and the filters of parallel text."""
import pytest

from common.cli import UserError
from data.bleu import corpus_bleu, multi_bleu, repeated_words, split_compounds, tokenised_bleu, tokenize_german
from data.pairs import filter_pairs


@pytest.mark.parametrize("line, tokens", [
    ("Er sagte: „Das ist gut“, und ging.", 'Er sagte : „ Das ist gut " , und ging .'),
    ("Das kostet 1.234,50 Euro (ca. 3,5%).", "Das kostet 1.234,50 Euro ( ca. 3,5 % ) ."),
    ("Dr. Meier wohnt z.B. in der Rich-Text-Straße 5.", "Dr. Meier wohnt z.B. in der Rich-Text-Straße 5."),
    ("Und dann… nichts....", "Und dann ... nichts ...."),
    ("Am 3. Oktober, Nr. 7, J. Bach's Werk", "Am 3. Oktober , Nr. 7 , J. Bach ' s Werk"),
    ("Am 3. und 1999. Kapitel XIX. der Band endete. Danach", "Am 3. und 1999 . Kapitel XIX. der Band endete . Danach"),
    ("a_b/c & d", "a _ b / c & d"),
    ("", ""),
])
def test_the_moses_tokenizer_for_german(line, tokens):
    assert tokenize_german(line) == tokens.split()


def test_compounds_are_split_as_the_perl_line_does():
    assert split_compounds(["Rich-Text-Format", "-", "a-b", "x-"]) == (
        "Rich ##AT##-##AT## Text ##AT##-##AT## Format - a ##AT##-##AT## b x-".split())
    assert split_compounds(["a-b-c"]) == ["a", "##AT##-##AT##", "b-c"]  # what a match has eaten is not looked at again


def test_multi_bleu_by_hand():
    ours, theirs = "the cat sat on the mat today".split(), "the cat sat on a mat today".split()
    # 6/7 words, 4/6 pairs, 2/5 triples, 1/4 quadruples, equally long
    assert multi_bleu([ours], [theirs]) == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25)
    assert multi_bleu([ours[:5]], [ours]) == pytest.approx(100 * 2.718281828459045 ** (1 - 7 / 5))
    assert multi_bleu([["a", "b"]], [["a", "b"]]) == 0.0 == multi_bleu([[]], [["a"]])  # no smoothing


def test_repeated_words_are_counted():
    assert repeated_words(["the the the cat", "a b a", "", "word"]) == 2 / 5 and repeated_words(["", "word"]) == 0


def test_the_two_bleus_differ_where_they_should():
    references = ["Ein Rich-Text-Format ist hier zu sehen, sagt er.", "Das ist ein guter Tag für uns alle hier."]
    assert tokenised_bleu(references, references) == pytest.approx(100) == corpus_bleu(references, references)
    hypotheses = ["Ein Rich-Media-Format ist hier zu sehen, sagt er.", references[1]]
    assert tokenised_bleu(hypotheses, references) != tokenised_bleu(hypotheses, references, compounds=False)
    # the fourth of the first 14 tokens is wrong, of the 10 after them none
    assert tokenised_bleu(hypotheses, references) == pytest.approx(100 * (
        23 / 24 * 20 / 22 * 17 / 20 * 14 / 18) ** 0.25)
    quotes = ["Er sagte „gut“ und ging dann fort von hier.", "Er sagte „gut\" und ging dann fort von hier."]
    assert tokenised_bleu(quotes[:1], quotes[1:]) == pytest.approx(100) and corpus_bleu(quotes[:1], quotes[1:]) < 90
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        tokenised_bleu(["a"], ["a", "b"])


def write(path, english, german):
    for ending, lines in (("en", english), ("de", german)):
        path.with_suffix(f".{ending}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_filters_count_what_they_drop(tmp_path, monkeypatch):
    monkeypatch.setattr("data.pairs.BLOCK", 2)
    source = write(tmp_path / "a", ["one two", "", "a b c d e f", "x y z", "p q", " r "],
                   ["eins zwei", "leer", "a b c d e f", "x", "p q r", "s"])
    counts = filter_pairs(source, tmp_path / "b", longest=5, progress=False)
    assert counts == {"pairs": 6, "kept": 3, "empty": 1, "too long": 1, "ratio": 1}
    assert (tmp_path / "b.en").read_text() == "one two\np q\nr\n"
    assert (tmp_path / "b.de").read_text() == "eins zwei\np q r\ns\n"
    assert filter_pairs(source, tmp_path / "c", longest=0, ratio=0, progress=False)["kept"] == 5

    class Letters:
        @staticmethod
        def encode_batch(texts):
            return [list(text) for text in texts]
    assert filter_pairs(source, tmp_path / "d", longest=5, tokenizer=Letters, progress=False)["too long"] == 2


def test_mistakes_are_named(tmp_path):
    source = write(tmp_path / "a", ["x", "y"], ["z"])
    with pytest.raises(UserError, match="differ in their number of lines"):
        filter_pairs(source, tmp_path / "b", progress=False)
    with pytest.raises(UserError, match="overwrite"):
        filter_pairs(source, tmp_path / "a", progress=False)
    with pytest.raises(UserError, match="c.en: no such file"):
        filter_pairs(tmp_path / "c", tmp_path / "b", progress=False)
    with pytest.raises(UserError, match="no pair passes"):
        filter_pairs(write(tmp_path / "d", ["a b c"], ["a"]), tmp_path / "b", progress=False)
    assert not list(tmp_path.glob("b.*"))
