"""Corpora: how text is read, whole or no token files, and the examples cut from them."""
import json
import multiprocessing
import signal
import textwrap
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import write

from common import glue
from common.cli import Stop, UserError
from common.tokenization import load_tokenizer
from data import text as module
from data.corpus import Corpus, join
from data.text import chunks, make_corpus, prepare_corpus, read_documents, split_sentences

WORDS = [f"w{i}" for i in range(3000)]
SENTENCES = [
    "Mr. Hale came home at noon.",
    "He was tired of the road, and of the rain that had followed him home.",
    '"Is there any tea?" he asked.',
    "Nobody answered him.",
]
PROSE = " ".join(SENTENCES) + " "
SEGMENTS = Corpus.segments
RUNS = Corpus.sentence_runs


def sentence_text(documents):
    """BERT's format: documents of some sentences of 3 to 12 words each."""
    rng = np.random.default_rng(0)
    lines = []
    for count in documents:
        lines += [" ".join(rng.choice(WORDS, rng.integers(3, 13))) for _ in range(count)]
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return load_tokenizer(write(path, "\n".join(names) + "\n"))


# --- reading text --------------------------------------------------------------------------------

@pytest.mark.parametrize("text, sentences", [
    ("Mr. J. R. Smith saw Dr. No. He ran.", ["Mr. J. R. Smith saw Dr. No.", "He ran."]),
    ("No. 5 is alive. No. He is not.", ["No. 5 is alive.", "No.", "He is not."]),
    ('"Stop!" she said. “Why?” Tom asked.', ['"Stop!" she said.', "“Why?”", "Tom asked."]),
    ("It was I. You knew.", ["It was I.", "You knew."]),
    ("Wait... what? Yes (he did.) Fine.", ["Wait... what?", "Yes (he did.)", "Fine."]),
    ("The U.S. Army, i.e. them. Done.", ["The U.S. Army, i.e. them.", "Done."]),
    ('the film " Drum . " He left .', ['the film " Drum . "', "He left ."]),
    ("他走了。“好！”她说。", ["他走了。", "“好！”", "她说。"]),
    ("no end here", ["no end here"]),
    ("", []),
])
def test_split_sentences(text, sentences):
    assert split_sentences(text) == sentences


LINES = [["He ran.", "See Dr. No", "now!"], ["“Why?”", "i do not know."]]


@pytest.mark.parametrize("text, documents", [
    ("\r\n \r\n".join(textwrap.fill(" ".join(each), 50) for each in (SENTENCES, SENTENCES[2:])),
     [SENTENCES, SENTENCES[2:]]),
    ("\n\n".join("\n".join(lines) for lines in LINES), [["He ran.", "See Dr. No now!"], LINES[1]]),
    ("the cat sat \nhe ran\n\n\nsee the man\n", [["the cat sat", "he ran"], ["see the man"]]),
    ("One. " * 30_000, [["One."] * 25_000, ["One."] * 5_000]),
])
def test_documents_end_at_blank_lines_and_sentences_at_signs(text, documents):
    """Wrapped text; a sentence per line, of which one goes on; lines without signs; a long one."""
    assert read_documents(text) == documents


@pytest.mark.parametrize("text", [PROSE * 100, "中文" * 3000])
def test_chunks_cover_a_file_and_cut_no_word(tmp_path, monkeypatch, text):
    monkeypatch.setattr(module, "CHUNK", 700)
    monkeypatch.setattr(module, "WINDOW", 100)
    raw = text.encode()
    cuts = list(chunks(write(tmp_path / "a.txt", raw)))
    assert len(cuts) > 5
    parts = [raw[start:end] for _, start, end in cuts]
    assert "".join(part.decode() for part in parts) == text
    if " " in text:
        assert all(part[-1:].isspace() for part in parts[:-1])


# --- preparing -----------------------------------------------------------------------------------

def test_files_say_what_the_text_says(tmp_path, tokenizer):
    """Without a byte-order mark, bytes that are not UTF-8 and sentences without tokens."""
    write(tmp_path / "b" / "z.txt", "w1 w2\nw3\n\nw4 w5 w6\n")
    write(tmp_path / "b" / "not-text.csv", "w99\n")
    write(tmp_path / "a.text", b"\xef\xbb\xbfw7\n\xcc\x81\nw8\x94 w9\n")
    corpus = prepare_corpus([tmp_path / "b", tmp_path / "a.text"], tokenizer, tmp_path / "out")
    assert [WORDS[i - 5] for i in corpus.tokens] == WORDS[1:10]
    assert corpus.sentences.tolist() == [0, 2, 3, 6, 7, 9]
    assert corpus.documents.tolist() == [0, 2, 3, 5]
    assert corpus.tokens.dtype == np.uint16


def test_workers_do_not_change_the_files(tmp_path, tokenizer, monkeypatch):
    text = write(tmp_path / "text.txt", sentence_text([20] * 100))
    whole = prepare_corpus([text], tokenizer, tmp_path / "whole")
    monkeypatch.setattr(module, "CHUNK", 5000)
    monkeypatch.setattr(module, "WINDOW", 3000)  # holds the end of a document
    assert len(list(chunks(text))) > 10
    for workers in (1, 2):
        corpus = prepare_corpus([text], tokenizer, tmp_path / str(workers), workers=workers)
        for name in module.NAMES:
            assert np.array_equal(getattr(corpus, name), getattr(whole, name))


def test_workers_are_killed_when_the_program_is_told_to_stop(tmp_path, tokenizer, monkeypatch):
    """As by SIGTERM, while the caller waits."""
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
        text = write(tmp_path / "text.txt", "w1 w2\n")
        prepare_corpus([text], tokenizer, tmp_path / "out", workers=2)
    signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 5
    assert not multiprocessing.active_children()


def test_a_folder_is_made_once_and_holds_nothing_else(tmp_path, tokenizer):
    """The vocabulary is given, or trained."""
    text = write(tmp_path / "t.txt", "w1 w2 ab bc cd.\n" * 9)
    theirs = write(tmp_path / "theirs" / "tokens.bin", "{}")
    for given in ("", str(tokenizer.path)):
        folder = tmp_path / f"out{bool(given)}"
        make_corpus([text], folder, 14, given)
        before = (folder / "tokens.bin").stat()
        make_corpus([text], folder, 14, given)
        assert (folder / "tokens.bin").stat() == before
        with pytest.raises(UserError, match="holds other files"):
            make_corpus([text], theirs.parent, 14, given)
    assert [*theirs.parent.iterdir()] == [theirs]
    write(text, "w1 w2 w3\n")
    with pytest.raises(UserError, match="holds other files"):
        make_corpus([text], folder, 14, given)


# --- examples ------------------------------------------------------------------------------------

def numbered(folder, lengths, per_document):
    """A corpus of sentences of these lengths; token i is i."""
    total = sum(lengths)
    write_meta(folder, "uint32", total, len(lengths), len(per_document))
    np.arange(total, dtype=np.uint32).tofile(folder / "tokens.bin")
    np.cumsum([0, *lengths]).tofile(folder / "sentences.bin")
    np.cumsum([0, *per_document]).tofile(folder / "documents.bin")
    return Corpus(folder)


def write_meta(folder, dtype, tokens, sentences, documents):
    meta = {"format": 1, "dtype": dtype, "tokenizer": "", "lower": True, "tokens": int(tokens),
            "sentences": sentences, "documents": documents}
    write(folder / "meta.json", json.dumps(meta))


def parts(segments):
    """(tokens, lengths) of A, B and what another document has in place of B."""
    values = list(vars(segments).values())
    return list(zip(values[::2], values[1::2]))


@pytest.mark.parametrize("make, documents", [
    (SEGMENTS, [60] * 50),
    (RUNS, [60] * 50),
    (RUNS, [2, 3, 5, 1, 8] * 160),
    (RUNS, [3000]),
])
@pytest.mark.parametrize("length", [32, 100])
def test_examples_are_consecutive_text_of_one_document_cut_at_sentences(
        make, documents, length, tmp_path):
    """And "other" is text of another document, not from its beginning."""
    rng = np.random.default_rng(0)
    corpus = numbered(tmp_path, rng.choice([3, 5, 8, 13, 40], sum(documents)), documents)
    segments = parts(make(corpus, 0, 2000, length, 1))
    column = torch.arange(length)
    for tokens, size in segments:  # consecutive, padded with 0
        assert torch.equal(tokens, (tokens[:, :1] + column) * (column < size[:, None]))
    begins = np.array([tokens[:, 0].numpy() for tokens, _ in segments])
    sizes = np.array([size.numpy() for _, size in segments])
    ends = begins + sizes
    assert (sizes[0] > 0).all()
    assert (sizes[0] + sizes[1:].max(axis=0) <= length).all()
    _, paired, told = sizes > 0
    assert paired.mean() > 0.4
    assert told.sum() >= (0.8 * paired.sum() if len(documents) > 1 else 0)
    assert np.array_equal(begins[1][paired], ends[0][paired])
    starts, stops = corpus.bounds
    first, last, theirs = [np.searchsorted(stops, positions, side="right")
                           for positions in (begins[0], ends[:2].max(axis=0) - 1, begins[2])]
    assert np.array_equal(first, last)
    assert (theirs != first)[told].all()
    assert (begins[2] != starts[theirs])[told].all()
    cuts = [begins[1][paired], begins[2][told]]
    if make == RUNS:
        cuts += [begins[0][paired], ends[1][paired], ends[2][told]]
    assert np.isin(np.concatenate(cuts), corpus.sentences).all()


def test_segments_show_each_token_once_an_epoch(tmp_path):
    corpus = numbered(tmp_path, [10] * 200, [100, 100])
    epochs = []
    slots = corpus.slots(30)
    for epoch in (0, 1):
        segments = parts(corpus.segments(epoch * slots, slots, 30, seed=0, short_prob=0.0))
        shown = [tokens[row, :size] for tokens, sizes in segments[:2]
                 for row, size in enumerate(sizes)]
        epochs.append(torch.cat(shown).tolist())
        assert sorted(epochs[-1]) == [*range(2000)]
    assert epochs[0] != epochs[1]


def test_resume_and_ranks(tmp_path):
    """Any way to cut the range of positions gives the same examples, across an epoch's end."""
    small = numbered(tmp_path, [7] * 820, range(1, 41))
    first = small.slots(30) - 20
    whole = small.segments(first, 64, 30, seed=5)
    pieces = [small.segments(first, 7, 30, 5), small.segments(first + 7, 57, 30, 5)]
    for name, value in vars(whole).items():
        assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), value)
    for other in (small.segments(first, 64, 30, 6), small.segments(2 * first + 20, 64, 30, 5)):
        assert not torch.equal(other.segment_a, whole.segment_a)


@pytest.mark.parametrize("sizes", [(2, 7), (1, 60)])
def test_the_lengths_of_whole_sentences_do_not_tell_their_order(sizes, tmp_path):
    """The mean difference of two parts is below a tenth of its standard deviation."""
    rng = np.random.default_rng(0)
    documents = rng.integers(*sizes, 60000 // sum(sizes))  # no example twice
    lengths = rng.lognormal(2.3, 0.6, documents.sum())
    lengths = lengths.clip(3, 60).astype(int)
    runs = numbered(tmp_path, lengths, documents).sentence_runs(0, 5000, 60, 1)
    used = (runs.length_b > 0) & (runs.length_other > 0)
    for length in (runs.length_b, runs.length_other):
        difference = (runs.length_a - length)[used].double()
        assert difference.mean().abs() < 0.1 * difference.std()


def test_held_out_documents(tmp_path):
    """--held_out: a fraction, evenly spread, or a number of documents."""
    small = numbered(tmp_path, [7] * 40, [1] * 40)
    train, dev = small.split(0.1)
    assert sorted([*train.ids, *dev.ids]) == list(range(40))
    assert np.diff(dev.ids).min() >= 9
    assert [len(small.split(held_out)[1].ids) for held_out in (0.001, 0.5, 39.0)] == [1, 20, 39]
    with pytest.raises(UserError, match="--held_out 40: .* has 40 documents"):
        small.split(40.0)


def test_positions_beyond_32_bits(tmp_path):
    """A (sparse) corpus of 5 G tokens, like one of more than 16 GB of text."""
    total = 5 * 2**30
    last = 4 * 2**30 + 12345
    np.array([0, last, last + 9, total]).tofile(tmp_path / "sentences.bin")
    np.array([0, 1, 3]).tofile(tmp_path / "documents.bin")
    with open(tmp_path / "tokens.bin", "wb") as file:
        file.truncate(2 * total)
        file.seek(2 * last)
        file.write(np.arange(1, 1001, dtype=np.uint16))
    write_meta(tmp_path, "uint16", total, 3, 2)
    (tokens, _), *_ = parts(Corpus(tmp_path).collect(8, [(last, 5) * 3]))
    assert tokens.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]


def test_join_is_that_of_glue():
    """empty_b: an example without B keeps its second [SEP]."""
    tokenizer = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0)
    a, b = torch.randint(5, 90, (2, 30, 8))
    size_a = torch.arange(30) % 9
    size_b = (8 - size_a) * (torch.arange(30) % 2)
    pairs = [(one[:m].tolist(), other[:n].tolist())
             for one, m, other, n in zip(a, size_a, b, size_b)]
    for empty_b in (False, True):
        wanted = [pair if empty_b or pair[1] else pair[:1] for pair in pairs]
        expected = glue.join(wanted, (2, 3, 0), 11)
        *joined, lengths = join(a, size_a, b, size_b, tokenizer, empty_b)
        assert np.array_equal(joined, expected)
        assert lengths.tolist() == (expected[0] > 0).sum(axis=1).tolist()
