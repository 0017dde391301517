"""Corpora: reading text, whole or no token files, and the examples cut from them."""
import fcntl
import math
import multiprocessing
import os
import re
import signal
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import write

from common import tasks
from common.cli import Stop, UserError
from common.tokenization import load_tokenizer
from data import text as module
from data.corpus import Corpus, join
from data.text import (
    chunks, make_corpus, prepare_corpus, read_documents, split_sentences, text_files)

WORDS = [f"w{i}" for i in range(3000)]
SENTENCES = [
    "Mr. Hale came home at noon.",
    "He was tired of the road, and of the rain that had followed him home.",
    '"Is there any tea?" he asked.',
    "Nobody answered him.",
]
PROSE = " ".join(SENTENCES) + " "
RUNS = Corpus.sentence_runs


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    special = "[PAD] [UNK] [CLS] [SEP] [MASK]"
    names = [*special.split(), *WORDS]
    write(path, "\n".join(names))
    return load_tokenizer(path)


# --- reading text --------------------------------------------------------------------------------

@pytest.mark.parametrize("text, sentences", [
    ("Mr. J. R. Smith saw Dr. No. He ran.", ["Mr. J. R. Smith saw Dr. No.", "He ran."]),
    ('"Stop!" she said. “Why?” Tom asked.', ['"Stop!" she said.', "“Why?”", "Tom asked."]),
    ("The U.S. Army, i.e. them. Done.", ["The U.S. Army, i.e. them.", "Done."]),
    ('the film " Drum . " He left .', ['the film " Drum . "', "He left ."]),
    ("他走了。“好！”她说。", ["他走了。", "“好！”", "她说。"]),
])
def test_split_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize("text, documents", [
    ("\r\n \r\n".join([textwrap.fill(PROSE, 50)] * 2), [SENTENCES] * 2),
    (
        "He ran.\nSee Dr. No\nnow!\n\n“Why?”\ni do not know.",
        [["He ran.", "See Dr. No now!"], ["“Why?”", "i do not know."]],
    ),
    (
        "the cat sat \nhe ran\n\n\nsee the man\n",
        [["the cat sat", "he ran"], ["see the man"]],
    ),
    ("One. " * 30_000, [["One."] * 25_000, ["One."] * 5_000]),
])
def test_documents_end_at_blank_lines_and_sentences_at_signs(text, documents):
    """Wrapped text, a sentence per line with one continued, lines without signs, and a long one."""
    assert read_documents(text) == documents


@pytest.mark.parametrize("end, sizes", [
    ("blank", [2, 1, 1]),
    ("file", [4]),
    ("line", [1, 1, 1, 1]),
])
def test_a_document_ends_at_a_blank_line_or_with_the_file_or_a_line(end, sizes):
    documents = read_documents("He ran.\nWhy?\n\nI know.\n \nNo.\n", end)
    assert [len(document) for document in documents] == sizes


LINE = "w1 w2 ab bc cd.\n"
PARAGRAPH = LINE * 6 + "\n"


@pytest.mark.parametrize("text, documents, summary", [
    (f"{LINE}w1.\nw2.\nw1.\n\n" * 9, "blank", "36 sentences, 9 documents .median of 4 sent.*s.$"),
    (f"{LINE}\n" * 9, "blank", "median of 1 sentences.; hint: "),
    (f"{LINE}\n" * 9, "file", "9 sentences, 1 documents .median of 9 sentences."),
    (PARAGRAPH * 120, "blank", "median of 6 sentences.; hint: "),  # a book
    ((LINE * 80 + "\n" + PARAGRAPH * 19) * 6, "blank", "median of 6 sentences.$"),  # articles
])
def test_short_documents_and_paragraphs_of_a_book_get_a_hint(text, documents, summary):
    _, corpus = make_corpus([write("t.txt", text)], "out", 14, documents=documents)
    assert re.search(summary, corpus.summary())


def test_a_vocabulary_too_large_for_the_text_names_the_largest(capsys, monkeypatch):
    text = write("t.txt", "the cat sat on the mat.\nthe dog ran.\n" * 5)
    message = (r"t.txt: too little text for a vocabulary of 30000 tokens; give more text, or "
               r"--vocab_size 20, the largest that it allows$")
    with pytest.raises(UserError, match=message):
        make_corpus([text], "out", 30_000)
    with pytest.raises(UserError, match="--vocab_size 5 is below 19"):
        make_corpus([text], "out", 5)
    monkeypatch.setattr(module, "VOCABULARIES", ((math.inf, 19),))
    with pytest.raises(UserError, match="--vocab_size 20, the largest .*; 19 suits it$"):
        make_corpus([text], "out", 30_000)
    tokenizer, _ = make_corpus([text], "out", 20)
    assert tokenizer.vocab_size == 20
    assert "hint" not in capsys.readouterr().out


def test_chunks_cover_a_file_and_cut_no_word(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 700)
    monkeypatch.setattr(module, "WINDOW", 100)
    text = PROSE * 100 + "中文" * 3000
    raw = text.encode()
    file = write("a.txt", raw)
    parts = [raw[start:end] for _, start, end in chunks(file)]
    assert b"".join(parts) == raw
    for part in parts:
        part.decode()
    assert all(part[-1:].isspace() for part in parts[:20])


# --- preparing -----------------------------------------------------------------------------------

def test_files_say_what_the_text_says(tokenizer):
    """Without a byte-order mark, non-UTF-8 bytes and sentences without tokens."""
    write("b/z.txt", "w1 w2\nw3\n\nw4 w5 w6\n")
    write("a.text", b"\xef\xbb\xbfw7\n\xcc\x81\nw8\x94 w9\n")
    corpus = prepare_corpus(["b", "a.text"], tokenizer, "out")
    assert [WORDS[i - 5] for i in corpus.tokens] == WORDS[1:10]
    assert corpus.sentences.tolist() == [0, 2, 3, 6, 7, 9]
    assert corpus.documents.tolist() == [0, 2, 3, 5]


def test_workers_do_not_change_the_files(tokenizer, monkeypatch):
    documents = "\n\n".join(WORDS).replace("7\n", "7")  # of one word or two
    text = write("text.txt", documents)
    whole = prepare_corpus([text], tokenizer, "whole")
    monkeypatch.setattr(module, "CHUNK", 1000)
    monkeypatch.setattr(module, "WINDOW", 600)  # holds the end of a document
    corpus = prepare_corpus([text], tokenizer, "parts", workers=2)
    for name in module.NAMES:
        expected = getattr(whole, name)
        assert np.array_equal(getattr(corpus, name), expected)


def test_a_folder_is_made_once():
    text = write("t.txt", "w1 w2 ab bc cd.\n" * 9)
    make_corpus([text], "out", 14, "")
    file = Path("out/tokens.bin")
    before = file.stat()
    make_corpus([text], "out", 14, "")
    assert file.stat() == before
    with pytest.raises(UserError, match="was made with --vocab_size 14, now 15;"):
        make_corpus([text], "out", 15)
    with pytest.raises(UserError, match="--documents blank, now file;"):
        make_corpus([text], "out", 14, documents="file")
    tokenizer, _ = make_corpus([text], "out", 15, replace=True)
    assert tokenizer.vocab_size == 15


def test_two_processes_do_not_make_a_corpus_in_one_folder(monkeypatch):
    """The second one stops, also if the first one ends between its check and its lock."""
    text = write("t.txt", "w1 w2 ab bc cd.\n" * 9)
    with open(write("out/run.lock", "process 7 on elsewhere")) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="out: locked by process 7 on elsewhere; wait"):
            make_corpus([text], "out", 14)
        assert [path.name for path in Path("out").iterdir()] == ["run.lock"]

    whole = module.lock

    def late(path):
        monkeypatch.setattr(module, "lock", whole)
        make_corpus([text], "out", 14, documents="file")

    monkeypatch.setattr(module, "lock", late)
    with pytest.raises(UserError, match="out: was made with --documents file, now blank"):
        make_corpus([text], "out", 14)
    assert Corpus("out").meta["documents"] == 1


def test_a_process_that_waits_for_the_cache_uses_what_the_other_has_made(monkeypatch):
    """The other one holds the folder's lock until it ends."""
    text = write("t.txt", "w1 w2 ab bc cd.\n" * 9)
    wait = module.waiting_lock

    def late(path):
        monkeypatch.setattr(module, "waiting_lock", wait)
        module.cached_corpus([text], "cache", 14)
        monkeypatch.setattr(module, "make_corpus", None)
        return wait(path)

    monkeypatch.setattr(module, "waiting_lock", late)
    folder = module.cached_corpus([text], "cache", 14)
    assert Corpus(folder).meta["documents"] == 1


def test_a_folder_of_another_kind_gets_no_lock():
    text = write("t.txt", "w1 w2 ab bc cd.\n" * 9)
    write("mine/a.txt", "theirs")
    with pytest.raises(UserError, match="mine: "):
        make_corpus([text], "mine", 14)
    assert [path.name for path in Path("mine").iterdir()] == ["a.txt"]


def test_only_regular_files_are_text():
    write("b/a.txt", "A man sat.\n")
    write("b/c.txt/d.txt", "A man ran.\n")
    os.mkfifo("b/pipe.txt")
    with pytest.warns(UserWarning, match="b/pipe.txt: not read") as told:
        files = text_files(["b"])
    assert [path.as_posix() for path in files] == ["b/a.txt", "b/c.txt/d.txt"]
    assert len(told) == 1
    with pytest.raises(UserError, match="b/pipe.txt: there is no such file"):
        text_files(["b/pipe.txt"])


# --- examples ------------------------------------------------------------------------------------

def numbered(lengths, per_document):
    """A corpus of sentences of these lengths. Token i is i."""
    tokens = np.arange(sum(lengths), dtype=np.uint32)
    write_corpus(tokens.size, lengths, per_document, "uint32")
    tokens.tofile("tokens.bin")
    return Corpus(".")


def write_corpus(tokens, lengths, per_document, dtype):
    """Everything except the tokens."""
    meta = {
        "format": 1,
        "dtype": dtype,
        "tokenizer": "",
        "lower": True,
        "tokens": tokens,
        "sentences": len(lengths),
        "documents": len(per_document),
    }
    write("meta.json", meta)
    np.cumsum([0, *lengths]).tofile("sentences.bin")
    np.cumsum([0, *per_document]).tofile("documents.bin")


def parts(segments):
    """(tokens, lengths) of A, B and the replacement of B from another document."""
    values = list(vars(segments).values())
    return [*zip(values[::2], values[1::2])]


@pytest.mark.parametrize("make, documents, length", [
    (Corpus.segments, [60] * 50, 32),
    (RUNS, [2, 3, 5, 1, 8] * 160, 100),
    (RUNS, [3000], 32),
])
def test_examples_are_consecutive_text_of_one_document_cut_at_sentences(make, documents, length):
    """"other" is text of another document."""
    rng = np.random.default_rng(0)
    lengths = rng.choice([3, 5, 8, 13, 40], sum(documents))
    corpus = numbered(lengths, documents)
    _, stops = corpus.bounds
    sentences = {*corpus.sentences.tolist()}
    columns = [zip(tokens.tolist(), sizes.tolist())
               for tokens, sizes in parts(make(corpus, 0, 2000, length, 1))]
    paired = 0
    told = 0
    for (a, size_a), (b, size_b), (other, size_other) in zip(*columns):
        for tokens, size in ((a, size_a), (b, size_b), (other, size_other)):
            assert tokens == [*range(tokens[0], tokens[0] + size)] + [0] * (length - size)
        assert size_a
        assert size_a + max(size_b, size_other) <= length
        end = a[0] + size_a
        if size_b:
            paired += 1
            assert b[0] == end
            end += size_b
            assert {b[0], *([a[0], end] if make == RUNS else [])} <= sentences
        first, last, theirs = np.searchsorted(stops, [a[0], end - 1, other[0]], side="right")
        assert first == last
        if size_other:
            told += 1
            assert theirs != first
            assert other[0] in sentences
    assert paired > 800
    assert told > 600 or len(documents) == 1


def test_segments_show_each_token_once_an_epoch():
    corpus = numbered([10] * 200, [100, 100])
    epochs = []
    slots = corpus.slots(30)
    for begin in (0, slots):
        shown = []
        segments = corpus.segments(begin, slots, 30, seed=0, short_prob=0.0)
        for tokens, sizes in parts(segments)[:2]:
            for row, size in zip(tokens, sizes):
                shown += row[:size].tolist()
        assert sorted(shown) == [*range(2000)]
        epochs.append(shown)
    assert epochs[0] != epochs[1]


def test_an_example_has_all_the_random_numbers_that_it_draws(monkeypatch):
    """The longest path: a short example of whole sentences, with text of another document."""
    corpus = numbered([3] * 400, [4] * 100)
    corpus.sentence_runs(0, 64, 30, seed=3456, short_prob=1.0)
    monkeypatch.setattr("data.corpus.DRAWS", 19)
    with pytest.raises(StopIteration):
        corpus.sentence_runs(0, 64, 30, seed=3457, short_prob=1.0)


@pytest.mark.parametrize("make", [Corpus.segments, RUNS])
def test_examples_without_other_text_are_the_same(make):
    corpus = numbered([7] * 820, range(1, 41))
    whole = make(corpus, 0, 200, 30, 5)
    less = make(corpus, 0, 200, 30, 5, others=False)
    assert whole.length_other.any() and not less.length_other.any()
    for name in ("segment_a", "length_a", "segment_b", "length_b"):
        assert torch.equal(getattr(less, name), getattr(whole, name))


def test_resume_and_ranks():
    """Any division of the range of positions gives the same examples, across an epoch's end."""
    small = numbered([7] * 820, range(1, 41))
    first = small.slots(30) - 20
    whole = small.segments(first, 64, 30, seed=5)
    begun = small.segments(first, 7, 30, seed=5)
    rest = small.segments(first + 7, 57, 30, seed=5)
    for name, value in vars(whole).items():
        pieces = [getattr(begun, name), getattr(rest, name)]
        assert torch.equal(torch.cat(pieces), value)


def test_the_lengths_of_whole_sentences_do_not_tell_their_order():
    """The mean difference of two parts is below a tenth of its standard deviation."""
    rng = np.random.default_rng(0)
    documents = rng.integers(2, 7, 6000)  # no example twice
    lengths = rng.lognormal(2.3, 0.6, documents.sum())
    lengths = lengths.clip(3, 60).astype(int)
    corpus = numbered(lengths, documents)
    runs = corpus.sentence_runs(0, 5000, 60, 1)
    used = (runs.length_b * runs.length_other).bool()
    for length in (runs.length_b, runs.length_other):
        differences = runs.length_a - length
        difference = differences[used].double()
        mean = difference.mean()
        assert mean.abs() < 0.1 * difference.std()


def test_held_out_documents():
    """--held_out: an evenly spread fraction, or a number of documents."""
    small = numbered([7] * 40, [1] * 40)
    train, dev = small.split(0.1)
    assert sorted([*train.ids, *dev.ids]) == [*range(40)]
    assert np.diff(dev.ids).min() >= 9
    _, dev = small.split(39.0)
    assert len(dev.ids) == 39


def test_positions_beyond_32_bits():
    """A (sparse) corpus of 4 G tokens, like one of more than 16 GB of text."""
    last = 2**32 + 12345
    write_corpus(last + 9, [last, 9], [1, 1], "uint16")
    with open("tokens.bin", "wb") as file:
        file.seek(2 * last)
        file.write(np.arange(1, 10, dtype=np.uint16))
    corpus = Corpus(".")
    segments = corpus.collect(8, [(last, 5) * 3])
    tokens = segments.segment_a[0].tolist()
    assert tokens == [1, 2, 3, 4, 5, 0, 0, 0]


@pytest.mark.parametrize("empty_b", [False, True])
def test_join_is_that_of_glue(empty_b):
    """empty_b: without B an example keeps its second [SEP]."""
    tokenizer = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0)
    a = torch.tensor([
        [5, 6, 99],
        [7, 99, 99],
    ])
    size_a = torch.tensor([2, 1])
    size_b = torch.tensor([1, 0])
    *joined, lengths = join(a, size_a, a, size_b, tokenizer, empty_b)
    second = [[7], []] if empty_b else [[7]]
    pairs = [[[5, 6], [5]], second]
    expected = tasks.join(pairs, (2, 3, 0), 6)
    assert np.array_equal(joined, expected)
    assert lengths.tolist() == [6, 3 + empty_b]


def test_workers_are_killed_when_the_program_is_told_to_stop(tokenizer, monkeypatch):
    """As with SIGTERM, while the caller waits."""
    def too_long(*_, **more):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(8)

    def stop(*_):
        raise Stop
    monkeypatch.setattr("data.text.read_documents", too_long)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    began = time.monotonic()
    with pytest.raises(Stop):
        text = write("text.txt", "w1 w2\n")
        prepare_corpus([text], tokenizer, "out", workers=2)
    signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 5
    assert not multiprocessing.active_children()
