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

from common.cli import Stop, UserError
from common.distributed import Ranks
from common.tokenization import load_tokenizer
from data import inputs, text as module
from data.corpus import Corpus, Segments, join
from data.text import (
    Layout, chunks, layout_of, prepare_corpus, read_documents, split_sentences)

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
        lines += [
            " ".join(rng.choice(WORDS, rng.integers(3, 13)))
            for _ in range(count)
        ]
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return load_tokenizer(write(path, "\n".join(names) + "\n"))


@pytest.fixture(scope="module")
def small(tokenizer, tmp_path_factory):
    """40 documents of 1 to 40 sentences."""
    folder = tmp_path_factory.mktemp("small")
    text = write(folder / "text.txt", sentence_text(range(1, 41)))
    return prepare_corpus([text], tokenizer, folder / "out")


def words_of(corpus):
    return [WORDS[i - 5] for i in corpus.tokens]


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


def test_wrapped_prose_is_joined_then_split(tmp_path):
    """A file of paragraphs is one document."""
    paragraphs = [SENTENCES, SENTENCES[2:], SENTENCES * 3] * 4
    text = "\r\n\r\n".join(textwrap.fill(" ".join(each), 40) for each in paragraphs)
    layout = layout_of(write(tmp_path / "a.txt", text))
    assert layout == Layout(wrapped=True, split=True, blank_ends=False)
    assert read_documents(text, layout) == [sum(paragraphs, [])]


@pytest.mark.parametrize("text", [
    sentence_text([5, 3, 9]),
    "the cat sat\nthe dog ran home\n\nsee the man\nwho is he\n",
    "A cat ran.\n\nA dog ran home.\n\nHe saw it.\n",
])
def test_sentence_lines_are_taken_as_they_are(tmp_path, text):
    layout = layout_of(write(tmp_path / "a.txt", text))
    assert layout == Layout(wrapped=False, split=False, blank_ends=True)
    documents = [block.split("\n") for block in text.strip().split("\n\n")]
    assert read_documents(text, layout) == documents


@pytest.mark.parametrize("text", [sentence_text([30] * 20), "中文" * 3000, PROSE * 100])
def test_chunks_cover_a_file_and_cut_no_word(tmp_path, monkeypatch, text):
    monkeypatch.setattr(module, "CHUNK", 700)
    monkeypatch.setattr(module, "WINDOW", 100)
    raw = text.encode()
    cuts = list(chunks(write(tmp_path / "a.txt", raw)))
    assert len(cuts) > 5
    parts = [raw[start:end] for _, start, end, _ in cuts]
    assert "".join(part.decode() for part in parts) == text
    if " " in text:
        assert all(part[-1:].isspace() for part in parts[:-1])


# --- preparing -----------------------------------------------------------------------------------

def test_files_say_what_the_text_says(tmp_path, tokenizer):
    write(tmp_path / "b" / "z.txt", "w1 w2\nw3\n\nw4 w5 w6\n")
    write(tmp_path / "b" / "not-text.csv", "w99\n")
    # a line that gives no token is no sentence
    write(tmp_path / "a.text", "\ufeffw7\n\u0301\nw8 w9\n")
    corpus = prepare_corpus([tmp_path / "b", tmp_path / "a.text"], tokenizer, tmp_path / "out")
    assert words_of(corpus) == WORDS[1:10]
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


@pytest.mark.parametrize("name", ["tokens.bin", "meta.json", "vocabulary.json", "vocab.txt"])
def test_no_file_of_others_is_overwritten(name, tmp_path, tokenizer):
    text = write(tmp_path / "text.txt", "w1 w2\n" * 9)
    theirs = write(tmp_path / "out" / name, "{}")
    given = str(tokenizer.path) if name == "vocab.txt" else ""
    with pytest.raises(UserError, match=f"{name}: in the way"):
        module.make_corpus([text], theirs.parent, 30, given)
    assert theirs.read_text() == "{}"
    assert list(theirs.parent.iterdir()) == [theirs]


def test_bad_bytes_are_replaced_counted_and_told_once(tmp_path, tokenizer, capsys):
    text = b"w1 \x93w2\x94 w3\n\xef\xbf\xbd w4\n"
    files = [write(tmp_path / name, text) for name in ("a.txt", "b.txt")]
    corpus = prepare_corpus(files, tokenizer, tmp_path / "out")
    assert corpus.meta["replaced"] == 4
    assert words_of(corpus) == WORDS[1:5] * 2
    assert capsys.readouterr().err.count("not all is UTF-8") == 1


def test_a_prepared_folder_is_reused_until_the_text_changes(tmp_path, tokenizer):
    text = write(tmp_path / "t.txt", "w1 w2\n")
    prepare_corpus([text], tokenizer, tmp_path / "out")
    made = (tmp_path / "out/tokens.bin").stat()
    prepare_corpus([text], tokenizer, tmp_path / "out")
    assert (tmp_path / "out/tokens.bin").stat() == made
    write(text, "w1 w2 w3\n")
    assert len(prepare_corpus([text], tokenizer, tmp_path / "out").tokens) == 3


# --- examples ------------------------------------------------------------------------------------

def numbered(folder, lengths, per_document, tokens=None):
    """A corpus of sentences of these lengths; token i is i unless others are given."""
    total = sum(lengths)
    tokens = np.arange(total) if tokens is None else tokens
    write_meta(folder, "uint32", total, len(lengths), len(per_document))
    tokens.astype(np.uint32).tofile(folder / "tokens.bin")
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


def document_of(corpus, positions):
    return np.searchsorted(corpus.bounds[1], positions, side="right")


def together(*examples):
    return Segments(*map(torch.cat, zip(*(vars(each).values() for each in examples))))


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
    corpus = numbered(
        tmp_path,
        rng.choice([3, 5, 8, 13, 40], sum(documents)),
        documents
    )
    segments = parts(make(corpus, 0, 2000, length, 1))
    column = torch.arange(length)
    for tokens, size in segments:  # consecutive, padded with 0
        assert torch.equal(
            tokens,
            (tokens[:, :1] + column) * (column < size[:, None])
        )
    begins = [tokens[:, 0].numpy() for tokens, _ in segments]
    sizes = [size.numpy() for _, size in segments]
    ends = [begin + size for begin, size in zip(begins, sizes)]
    assert (sizes[0] > 0).all()
    assert (sizes[0] + np.maximum(sizes[1], sizes[2]) <= length).all()
    paired = sizes[1] > 0
    assert paired.mean() > 0.4
    assert np.array_equal(begins[1][paired], ends[0][paired])
    ours = document_of(corpus, begins[0])
    assert np.array_equal(
        ours,
        document_of(corpus, begins[0] + sizes[0] + sizes[1] - 1)
    )
    told = sizes[2] > 0
    assert told.sum() >= (0.8 * paired.sum() if len(documents) > 1 else 0)
    theirs = document_of(corpus, begins[2])
    assert (theirs != ours)[told].all()
    assert (begins[2] != corpus.bounds[0][theirs])[told].all()
    cuts = [begins[1][paired], begins[2][told]]
    if make == RUNS:
        cuts += [
            begins[0][paired],
            ends[1][paired],
            ends[2][told]
        ]
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


def test_resume_and_ranks(small):
    """Any way to cut the range of positions gives the same examples, across an epoch's end."""
    slots = small.slots(30)

    def make(position, count, seed=5):
        return small.segments(position, count, 30, seed)
    whole = make(slots - 20, 64)
    for tokens, expected in zip(parts(together(make(slots - 20, 7), make(slots - 13, 57))),
                                parts(whole)):
        assert all(map(torch.equal, tokens, expected))
    for other in (make(slots - 20, 64, seed=6), make(2 * slots - 20, 64)):
        assert not torch.equal(
            parts(other)[0][0],
            parts(whole)[0][0]
        )


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


def test_held_out_documents(small, tokenizer):
    """--held_out: a fraction, evenly spread, or a number of documents."""
    def split(held_out):
        cfg = SimpleNamespace(
            corpus=(str(small.folder),), tokenizer=str(tokenizer.path), held_out=held_out)
        return inputs.open_text(
            cfg,
            Ranks(0, 1, torch.device("cpu")),
            None
        )[1:]
    train, dev = split(0.1)
    assert sorted([*train.ids, *dev.ids]) == list(range(40))
    assert np.diff(dev.ids).min() >= 9
    counts = [len(split(held_out)[1].ids) for held_out in (0.001, 0.5, 39.0)]
    assert counts == [1, 20, 39]
    with pytest.raises(UserError, match="--held_out 40: .* has 40 documents"):
        split(40.0)


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


@pytest.mark.parametrize("empty_b, ids, types, lengths", [
    (False, [[2, 5, 6, 3, 7, 3, 0], [2, 8, 3, 0, 0, 0, 0]], [4, 5], [6, 3]),
    (True, [[2, 5, 6, 3, 7, 3, 0], [2, 8, 3, 3, 0, 0, 0]], [4, 5, 10], [6, 4]),
])
def test_join(empty_b, ids, types, lengths):
    tokenizer = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0)
    a = torch.tensor([[5, 6, 9, 9], [8, 9, 9, 9]])
    b = torch.tensor([[7, 9, 9, 9], [9, 9, 9, 9]])
    sizes = torch.tensor([[2, 1], [1, 0]])
    joined = join(a, sizes[0], b, sizes[1], tokenizer, empty_b)
    assert joined[0].tolist() == ids
    assert joined[1].flatten().nonzero().flatten().tolist() == types
    assert joined[2].tolist() == lengths
