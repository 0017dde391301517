"""Words remembered: token ids are those of whole sentences, whatever the text, and however often words give way."""
import pickle
import random
from itertools import chain
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from common.tokenization import load_tokenizer
from data import words as module
from data.text import chunks, read_documents
from data.vocabulary import train_sentencepiece
from data.words import WordCache, longest_apart

WORDS = """the The THE cafe Café café cafe\u0301 \u0301 \u0301cafe naïve İstanbul ΣΑΣ ΣΑΣ, ﬁsh ½ … ㌔ ﷺ ＡＢ 中国 각하 😀
 ❤️ 👩‍👩‍👧 ▁ a▁b ▁▁ [CLS] [MASK] <unk> <pad> <s> ``quoted'' '' `` "Stop!" 2011, 1,000,000 a1, 5 £9.99 - – — co-operate ==
 \u200b ab\u200bcd \ufeff \x00 a\x00 \x01 \x85 \x7f a\x1cb a\tb \u3000 x\u3000y \xa0 x\xa0 ¨ \u0903
 responsibilities l’Empereur!” pocket-handkerchief,""".replace("\n ", " ").split(" ")
FIFTEEN = "fifteen-letters"  # as long as words are that have a slot; 256 bytes: a length that ends in a zero byte
SAMPLE = WORDS + [FIFTEEN, FIFTEEN + "\x0f" + "z" * 240, "x" * 15, "x" * 16, "x" * 17, "y" * 150, "é" * 7, "é" * 8, "", ""]


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def odd_sentences(count, seed=0):
    """Sentences of 0 to 300 words, most of them short."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(SAMPLE, k=draw.choice([0, 1, 2, 5, 10, 20, 300]))) for _ in range(count)]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    draw = random.Random(0)
    parts = "the dog and café had 2,011 coins of ba ke lo mi tu ".split(" ")
    plain = ["".join(draw.choices(parts, k=9)) for _ in range(500)]
    text = write(folder / "text.txt", plain + [line for line in odd_sentences(500, seed=1) if line.strip()])
    train_sentencepiece([text], folder / "ours.model", 200)
    train_sentencepiece([text], folder / "cased.model", 200, lower=False)
    with mock.patch("data.vocabulary.steady", lambda model, lower: model):
        train_sentencepiece([text], folder / "released.model", 200)
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] the ca ##fe ##f ##e x ##x ##xx 2011 , . 中 国 is ##tan a ##b co - σας …"
    write(folder / "vocab.txt", pieces.split())
    return folder


@pytest.fixture(params=["ours.model", "cased.model", "released.model", "vocab.txt"])
def name(request):
    return request.param


def same(cache, sentences):
    """Whether the cache gives the ids that the tokenizer gives for whole sentences."""
    ids, lengths = cache.encode(sentences)
    rows = cache.tokenizer.encode_batch(sentences)
    assert ids.dtype == module.token_dtype(cache.tokenizer) and lengths.dtype == np.int64
    return lengths.tolist() == [len(row) for row in rows] and ids.tolist() == [i for row in rows for i in row]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("slots, ids", [(1, 1), (8, 50), (1 << 12, 1 << 14)])
def test_ids_are_those_of_whole_sentences(vocabularies, name, lower, slots, ids, monkeypatch):
    """With few slots words take each other's places all the time; with room for few ids all is forgotten often."""
    for constant, value in ("SLOTS", slots), ("IDS", ids), ("BLOCK", 7):
        monkeypatch.setattr(module, constant, value)
    cache = WordCache(load_tokenizer(vocabularies / name, lower))
    assert all(same(cache, odd_sentences(40, seed)) for seed in range(6))
    assert same(cache, []) and same(cache, [""]) and same(cache, ["", "the", "", ""])


def test_words_are_encoded_once_where_that_is_exact(vocabularies, name):
    """Scores of the released kind are rounded when they are summed, so there whole sentences are asked for."""
    cache = WordCache(load_tokenizer(vocabularies / name, lower=name != "cased.model"))
    sentence = "the dog and the café had the responsibilities"
    with mock.patch.object(cache.tokenizer, "encode_batch", wraps=cache.tokenizer.encode_batch) as asked:
        cache.encode([sentence, "the dog", sentence])
        cache.encode(["had café"])
    asked = [call.args[0] for call in asked.call_args_list]
    if name == "released.model":
        assert asked == [[sentence, "the dog", sentence], ["had café"]]
    else:
        assert asked == [["the", "dog", "and", "café", "had", "responsibilities"]]


def test_too_long_a_sentence_is_asked_for_whole(vocabularies):
    cache = WordCache(load_tokenizer(vocabularies / "ours.model"))
    fits = ("the dog " * 200)[:cache.longest - 1]
    assert 400 < cache.longest < 1000 and len(fits) == cache.longest - 1
    with mock.patch.object(cache.tokenizer, "encode_batch", wraps=cache.tokenizer.encode_batch) as asked:
        cache.encode([fits, fits + "x", "the dog"])
    assert fits not in asked.call_args.args[0] and fits + "x" in asked.call_args.args[0]


@pytest.mark.parametrize("change", ["spaces", "sentence pieces"])
def test_models_whose_pieces_or_blanks_join_words(vocabularies, change):
    tokenizer = load_tokenizer(vocabularies / "ours.model")
    assert longest_apart(tokenizer) > 0
    if change == "spaces":
        tokenizer.model = mock.Mock(wraps=tokenizer.model, encode=lambda text: [5] * len(text))
    else:
        tokenizer.names[-1] = "a▁b"
    assert longest_apart(tokenizer) == 0


def test_memory_does_not_grow(vocabularies, monkeypatch):
    monkeypatch.setattr(module, "IDS", 1000)
    cache = WordCache(load_tokenizer(vocabularies / "ours.model"))
    for k in range(100):
        assert same(cache, [f"word{k}x{n}" for n in range(50)])
    assert len(cache.ids) < 4000


def test_a_cache_travels_empty(vocabularies):
    cache = WordCache(load_tokenizer(vocabularies / "ours.model"))
    cache.encode(["the dog"])
    assert len(pickle.dumps(cache)) < 1000
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.used == 0 and same(copy, ["the dog"])


def sentences_of(path):
    """A file's sentences, as data/text.py reads them."""
    for _, start, end, layout in chunks(path):
        text = path.read_bytes()[start:end].decode("utf-8", errors="replace")
        yield list(chain.from_iterable(read_documents(text, layout)))


def test_the_demo_corpus(demo, vocabularies, name):
    cache = WordCache(load_tokenizer(vocabularies / name))
    found = [part for path in sorted(Path(demo["corpus"]).glob("*.txt")) for part in sentences_of(path)]
    assert len(found) > 3 and all(same(cache, sentences) for sentences in found)


def test_real_text(real_data, vocabularies, name):
    cache = WordCache(load_tokenizer(vocabularies / name))
    for path in real_data / "corpus/books/moby-dick--or-the-whale.txt", real_data / "corpus/wiki/wikitext-2.test.txt":
        assert all(same(cache, sentences) for sentences in sentences_of(path))
