"""Corpora: how text is read, whole or no token files, and the segments cut from them."""
import errno
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from albert import sentence_runs
from common.cli import UserError
from common.distributed import Ranks
from common.tokenization import load_tokenizer
from conftest import ROOT
from data import inputs
from data import text as module
from data.corpus import Corpus, join, permute
from data.text import Layout, chunks, layout_of, prepare_corpus, read_documents, split_sentences

WORDS = [f"w{i}" for i in range(3000)]
SENTENCES = ["Mr. Hale came home at noon.", "He was tired of the road, and of the rain that had followed him home.",
             '"Is there any tea?" he asked.', "Nobody answered him."]
PROSE = " ".join(SENTENCES).split()


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def wrap(words, width):
    """Greedy line filling."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def sentence_text(documents, seed=0):
    """BERT's format: documents of some sentences of 3 to 12 words each."""
    draw = np.random.default_rng(seed)
    return "\n\n".join("\n".join(" ".join(draw.choice(WORDS, draw.integers(3, 13))) for _ in range(count))
                       for count in documents) + "\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    return load_tokenizer(write(path, "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n"))


@pytest.fixture(scope="module")
def small(tokenizer, tmp_path_factory):
    """40 documents of 1 to 40 sentences."""
    folder = tmp_path_factory.mktemp("small")
    text = write(folder / "text.txt", sentence_text(list(range(1, 41))))
    return prepare_corpus([text], tokenizer, folder / "out")


def contents(folder):
    return [(folder / f"{name}.bin").read_bytes() for name in module.NAMES]


# --- reading text ---------------------------------------------------------------------------------

@pytest.mark.parametrize("text, sentences", [
    ("Mr. J. R. Smith saw Dr. No. He ran.", ["Mr. J. R. Smith saw Dr. No.", "He ran."]),
    ("No. 5 is alive. No. He is not.", ["No. 5 is alive.", "No.", "He is not."]),
    ("He came. \"Stop!\" she said. “Why?” Tom asked.", ["He came.", "\"Stop!\" she said.", "“Why?”", "Tom asked."]),
    ("It was I. You knew.", ["It was I.", "You knew."]),
    ("Wait... what? Yes (he did.) Fine.", ["Wait... what?", "Yes (he did.)", "Fine."]),
    ("The U.S. Army, i.e. them. Done.", ["The U.S. Army, i.e. them.", "Done."]),
    ('the film " Drum . " He left .', ['the film " Drum . "', "He left ."]),
    ("他走了。“好！”她说。", ["他走了。", "“好！”", "她说。"]),
    ("no end here", ["no end here"]), ("", [])])
def test_split_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize("width", [40, 72, 100])
def test_wrapped_prose_is_joined_then_split(tmp_path, width):
    paragraphs = [SENTENCES[k % 4:] + SENTENCES * (k % 3 + 1) for k in range(12)]
    text = "\n\n".join(wrap(" ".join(paragraph).split(), width) for paragraph in paragraphs).replace("\n", "\r\n")
    layout = layout_of(write(tmp_path / "a.txt", text))
    assert layout == Layout(wrapped=True, split=True, blank_ends=False)
    assert read_documents(text, layout) == [list(chain.from_iterable(paragraphs))]  # one document, not one a paragraph


@pytest.mark.parametrize("text", ["A cat.\nA dog.\n\nA man ran.\nHe ran home.\n", sentence_text([5, 3, 9]),
                                  "the cat sat\nthe dog ran home\n\nsee the man\nwho is he\n",
                                  "A cat ran.\n\nA dog ran home.\n\nHe saw it.\n"])
def test_sentence_lines_are_taken_as_they_are(tmp_path, text):
    layout = layout_of(write(tmp_path / "a.txt", text))
    assert layout == Layout(wrapped=False, split=False, blank_ends=True)
    assert read_documents(text, layout) == [block.split("\n") for block in text.strip().split("\n\n")]


def test_wikitext(tmp_path):
    body = "He ran . She saw him on 4 May . They met .\n It was late . Nobody came to the house .\n"
    text = f" \n = One = \n \n {body} \n = = Early life = = \n \n {body} \n = Two = \n \n {body}"
    layout = layout_of(write(tmp_path / "a.txt", text))
    assert layout == Layout(wrapped=False, split=True, blank_ends=False)
    documents = read_documents(text, layout)
    assert [document[0] for document in documents] == ["= One =", "= Two ="]
    assert documents[1] == ["= Two =", "He ran .", "She saw him on 4 May .", "They met .", "It was late .",
                            "Nobody came to the house ."]


def test_headings_and_size_end_documents_in_prose():
    layout = Layout(wrapped=True, split=True, blank_ends=False)
    paragraph = wrap(PROSE * 4, 70)
    text = "\n\n".join(["CONTENTS", "CHAPTER I", "CHAPTER II", *[paragraph] * 4, "CHAPTER II", *[paragraph] * 3])
    assert [document[0] for document in read_documents(text, layout)] == ["CONTENTS", "CHAPTER II"]
    endless = wrap(PROSE * 2000, 70)
    sizes = [sum(map(len, document)) for document in read_documents(endless, layout)]
    assert len(sizes) > 2 and max(sizes) < module.LONGEST_DOCUMENT + 200


def test_real_layouts(real_data):
    books, wiki = (sorted((real_data / "corpus" / name).glob("*.txt")) for name in ("books", "wiki"))
    assert books and all(layout_of(path) == Layout(True, True, False) for path in books)
    assert wiki and all(layout_of(path) == Layout(False, True, False) for path in wiki)
    assert layout_of(real_data / "multi30k" / "train.en") == Layout(False, False, True)


def test_binary_text_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"a\.txt: UTF-16 or binary"):
        layout_of(write(tmp_path / "a.txt", "hello".encode("utf-16")))


@pytest.mark.parametrize("text", [sentence_text([30] * 20), "中文" * 3000, "word " * 3000, "line\n" * 3000,
                                  wrap(PROSE * 100, 70)])
def test_chunks_cover_a_file_and_cut_no_word(tmp_path, monkeypatch, text):
    monkeypatch.setattr(module, "CHUNK", 700)
    monkeypatch.setattr(module, "WINDOW", 100)
    raw = text.encode()
    cuts = list(chunks(write(tmp_path / "a.txt", raw)))
    assert len(cuts) > 5 and cuts[0][1] == 0 and cuts[-1][2] == len(raw)
    assert all(before[2] == after[1] for before, after in zip(cuts, cuts[1:]))
    assert "".join(raw[start:end].decode() for _, start, end, _ in cuts) == text  # no character is cut
    if " " in text or "\n" in text:
        assert all(raw[start - 1:start].isspace() for _, start, _, _ in cuts[1:])


# --- preparing --------------------------------------------------------------------------------------

def test_files_say_what_the_text_says(tmp_path, tokenizer):
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "z.txt", "w1 w2\nw3\n\nw4 w5 w6\n")
    write(tmp_path / "b" / "not-text.csv", "w99\n")
    write(tmp_path / "a.text", "\ufeffw7\n\u0301\nw8 w9\n")  # the second line gives no token, so it is no sentence
    corpus = prepare_corpus([tmp_path / "b", tmp_path / "a.text"], tokenizer, tmp_path / "out")
    assert [WORDS[i - 5] for i in corpus.tokens] == [f"w{i}" for i in range(1, 10)]
    assert corpus.sentences.tolist() == [0, 2, 3, 6, 7, 9] and corpus.documents.tolist() == [0, 2, 3, 5]
    assert corpus.tokens.dtype == np.uint16 and corpus.sentences.dtype == corpus.documents.dtype == np.int64
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["documents.bin", "meta.json", "sentences.bin", "tokens.bin"]


def test_workers_do_not_change_the_files(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 5000)
    monkeypatch.setattr(module, "WINDOW", 3000)  # holds the end of a document, so documents stay as they are
    text = write(tmp_path / "text.txt", sentence_text([20] * 100))
    assert len(list(chunks(text))) > 10
    one, two = (prepare_corpus([text], tokenizer, tmp_path / str(n), workers=n) for n in (1, 2))
    assert contents(one.folder) == contents(two.folder)
    monkeypatch.undo()
    whole = prepare_corpus([text], tokenizer, tmp_path / "whole")
    assert len(list(chunks(text))) == 1 and contents(one.folder) == contents(whole.folder) and len(whole.tokens) > 10000


def test_token_width(tmp_path, tokenizer):
    vocab = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"x{i}" for i in range(65536))]) + "\n"
    large = load_tokenizer(write(tmp_path / "vocab.txt", vocab))
    corpus = prepare_corpus([write(tmp_path / "t.txt", "x1 x65535\n")], large, tmp_path / "out")
    assert corpus.tokens.dtype == np.uint32 and corpus.tokens.tolist() == [6, 65540]
    assert [module.token_dtype(SimpleNamespace(vocab_size=n)).name for n in (65536, 65537)] == ["uint16", "uint32"]


def test_bad_bytes_are_replaced_counted_and_told_once(tmp_path, tokenizer, capsys):
    files = [write(tmp_path / f"{n}.txt", b"w1 \x93w2\x94 w3\n\xef\xbf\xbd w4\n") for n in "ab"]
    corpus = prepare_corpus(files, tokenizer, tmp_path / "out")
    assert corpus.meta["replaced"] == 4 and [WORDS[i - 5] for i in corpus.tokens] == ["w1", "w2", "w3", "w4"] * 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "a.txt: not all is UTF-8" in told[0]


@pytest.mark.parametrize("text", ["", "\n \n\n", "\u0301\n"])
def test_a_corpus_without_sentences_is_refused(tmp_path, tokenizer, text):
    with pytest.raises(UserError, match=r"t\.txt: there is no sentence"):
        prepare_corpus([write(tmp_path / "t.txt", text)], tokenizer, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_an_empty_file_among_others_is_fine(tmp_path, tokenizer):
    files = [write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", "w1\n")]
    assert len(prepare_corpus(files, tokenizer, tmp_path / "out").tokens) == 1


@pytest.mark.parametrize("paths, message", [(["absent"], "absent: there is no such"), ([], "no text file was given")])
def test_missing_paths(tmp_path, tokenizer, paths, message):
    with pytest.raises(UserError, match=message):
        prepare_corpus([tmp_path / path for path in paths], tokenizer, tmp_path / "out")


def test_a_prepared_folder_is_reused_until_the_text_changes(tmp_path, tokenizer, monkeypatch):
    text, out = write(tmp_path / "t.txt", "w1 w2\n"), tmp_path / "out"
    first = prepare_corpus([text], tokenizer, out)
    monkeypatch.setattr(module, "encode_chunk", lambda *job: pytest.fail("the corpus was made again"))
    assert prepare_corpus([text], tokenizer, out).meta == first.meta
    monkeypatch.undo()
    write(text, "w1 w2 w3\n")
    assert len(prepare_corpus([text], tokenizer, out).tokens) == 3


def test_a_full_disk_passes_up_and_leaves_the_old_corpus(tmp_path, tokenizer):
    old, large = write(tmp_path / "old.txt", "w1\n"), write(tmp_path / "large.txt", sentence_text([50] * 60))
    out = prepare_corpus([old], tokenizer, tmp_path / "out").folder
    before, limits = contents(out), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))  # a write beyond it fails as on a full disk
    try:
        with pytest.raises(OSError) as caught:
            prepare_corpus([large], tokenizer, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert contents(out) == before and Corpus(out).meta["tokens"] == 1 and not list(out.glob("*.part"))


KILLED = """
import sys, time
from common.tokenization import load_tokenizer
from data import text
text.CHUNK, text.WINDOW, encode = 2000, 200, text.encode_chunk
def slow(*job):
    time.sleep(0.05)
    return encode(*job)
text.encode_chunk = slow
text.prepare_corpus([sys.argv[1]], load_tokenizer(sys.argv[2]), sys.argv[3], workers=int(sys.argv[4]))
"""


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_killed_preparation_does_not_look_whole(tmp_path, tokenizer):
    """SIGKILL half-way: Corpus refuses the folder, the workers end too, and the next run makes it whole."""
    text, out = write(tmp_path / "t.txt", sentence_text([30] * 200)), tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(text), str(tokenizer.path), str(out), "2"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    part, deadline = out / "tokens.bin.part", time.time() + 180
    while not (part.exists() and part.stat().st_size) and time.time() < deadline:
        time.sleep(0.02)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        workers = [int(pid) for pid in file.read().split()]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert part.stat().st_size and len(workers) == 2
    with pytest.raises(UserError, match="no finished corpus"):
        Corpus(out)
    while any(map(alive, workers)) and time.time() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, workers))
    prepare_corpus([text], tokenizer, out)
    fresh = prepare_corpus([text], tokenizer, tmp_path / "fresh")
    assert contents(out) == contents(fresh.folder) and not list(out.glob("*.part"))


def test_opening_errors(tmp_path, tokenizer, small):
    with pytest.raises(UserError, match="no finished corpus"):
        Corpus(tmp_path)
    write(tmp_path / "meta.json", "[1]")
    with pytest.raises(UserError, match="no finished corpus"):
        Corpus(tmp_path)
    for path in small.folder.iterdir():
        write(tmp_path / path.name, path.read_bytes())
    other = load_tokenizer(tokenizer.path, lower=False)
    with pytest.raises(UserError, match="another tokenizer"):
        Corpus(tmp_path, other)
    os.truncate(tmp_path / "sentences.bin", 16)
    with pytest.raises(UserError, match=r"sentences\.bin: the file is missing or cut short"):
        Corpus(tmp_path, tokenizer)


# --- segments ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("total", [1, 2, 3, 5, 64, 65, 1000, 4097])
def test_permute_is_a_bijection(total):
    orders = [permute(np.arange(total), total, np.full(total, key, np.uint64)) for key in (1, 2**63 + 7)]
    for order in orders:
        assert sorted(order) == list(range(total))
    assert total < 64 or not np.array_equal(*orders)


def test_permute_is_far_from_the_identity_and_has_no_size_limit():
    total = 3 * 2**40 + 1
    index = np.concatenate([np.arange(5000), np.arange(total - 5000, total)])
    order = permute(index, total, np.full(10000, 9, np.uint64))
    assert len(set(order)) == 10000 and order.min() >= 0 and order.max() < total
    assert abs(order.mean() / total - 0.5) < 0.02 and abs(np.corrcoef(index, order)[0, 1]) < 0.05


def runs(corpus, segments):
    """(row, first's length, second's length, both as one list) of each row."""
    for row in range(len(segments.first)):
        a, b = int(segments.first_length[row]), int(segments.second_length[row])
        yield row, a, b, torch.cat([segments.first[row, :a], segments.second[row, :b]]).tolist()


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Token k of this corpus is k, so a segment's place can be read off; 50 documents of 1..60 sentences of 1..20."""
    folder = tmp_path_factory.mktemp("counted")
    draw = np.random.default_rng(1)
    per_document = draw.integers(1, 61, 50)
    lengths = draw.integers(1, 21, per_document.sum())
    return made_by_hand(folder, lengths, per_document)


def made_by_hand(folder, lengths, per_document, tokens=None):
    """A corpus of sentences of these lengths; token i is i unless others are given."""
    folder.mkdir(exist_ok=True)
    sentences, documents = np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([[0], np.cumsum(per_document)])
    (np.arange(sentences[-1]) if tokens is None else tokens).astype(np.uint32).tofile(folder / "tokens.bin")
    sentences.astype(np.int64).tofile(folder / "sentences.bin")
    documents.astype(np.int64).tofile(folder / "documents.bin")
    meta = {"format": 1, "dtype": "uint32", "tokenizer": "", "lower": True, "tokens": int(sentences[-1]),
            "sentences": len(lengths), "documents": len(per_document)}
    write(folder / "meta.json", json.dumps(meta))
    return Corpus(folder)


def test_segments_are_runs_of_one_document_cut_at_sentences(counted):
    length, starts, ends = 60, *counted.bounds
    segments = counted.segments(0, 2000, length, seed=3)
    boundaries = set(counted.sentences.tolist())
    for row, a, b, run in runs(counted, segments):
        assert run == list(range(run[0], run[0] + a + b)) and 1 <= a + b <= length
        document = np.searchsorted(ends, run[0], side="right")
        assert starts[document] <= run[0] and run[-1] < ends[document]
        inside = sorted(boundaries & set(range(run[0] + 1, run[-1] + 1)))
        assert segments.sentences[row] == len(inside) + 1
        assert (run[0] + a in inside) if inside else b == 0
        c = int(segments.other_length[row])
        other = segments.other[row, :c].tolist()
        assert c + a <= length
        if c:
            theirs = np.searchsorted(ends, other[0], side="right")
            assert other == list(range(other[0], other[0] + c)) and other[-1] < ends[theirs]
            # like second never the beginning of a document, and as long: no classifier tells the two by that
            assert theirs != document and other[0] in boundaries and other[0] != starts[theirs] and c == b
        for part, size in ((segments.first, a), (segments.second, b), (segments.other, c)):
            assert not part[row, size:].any() and part.dtype == torch.int64
    assert (segments.second_length > 0).float().mean() > 0.8 and (segments.other_length > 0).float().mean() > 0.7


def test_the_cut_is_uniform_over_the_boundaries(tmp_path):
    corpus = made_by_hand(tmp_path, [10] * 6, [6])  # one document of six sentences, one slot: boundaries 10, 20, .., 50
    cut = corpus.segments(0, 5000, 60, seed=0, short_prob=0.0).first_length
    assert sorted(set(cut.tolist())) == [10, 20, 30, 40, 50]
    assert all(abs((cut == place).float().mean() - 0.2) < 0.03 for place in (10, 20, 30, 40, 50))


@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("least, most", [(510, 1018), (1019, 2000)])
def test_every_place_of_a_document_is_shown_about_as_often(least, most, length, tmp_path):
    """By tenths of the documents and by their first and last 50 tokens. Segments show each token once an epoch where
    none is drawn short; runs of whole sentences leave out what does not fit."""
    draw, lengths, per_document = np.random.default_rng(0), [], []
    for tokens in draw.integers(least, most + 1, 120):
        ends = np.minimum(np.cumsum(np.clip(draw.lognormal(3.0, 0.6, tokens), 3, 120).astype(int)), tokens)
        lengths += np.diff(np.unique(ends), prepend=0).tolist()
        per_document.append(len(np.unique(ends)))
    corpus = made_by_hand(tmp_path, lengths, per_document)
    slots, (starts, ends) = corpus.slots(length - 3), corpus.bounds
    for make, short in ((Corpus.segments, 0.0), (Corpus.segments, 0.1), (sentence_runs, 0.1)):
        orders, seen = [], np.zeros(len(corpus.tokens) + 1)
        for epoch in range(4):
            found = make(corpus, epoch * slots, slots, length - 3, 0, short)
            begin, size = found.first[:, 0].numpy(), (found.first_length + found.second_length).numpy()
            np.add.at(seen, begin, 1)
            np.add.at(seen, begin + size, -1)
            orders.append(begin)
        seen = seen.cumsum()[:-1]
        assert all((one != other).mean() > 0.9 for one, other in zip(orders, orders[1:]))  # epochs differ
        if not short:
            assert (seen == 4).all() and not set(orders[0]) >= set(orders[1])  # once an epoch, cut elsewhere
        tenths = [np.concatenate([seen[a + (b - a) * k // 10:a + (b - a) * (k + 1) // 10] for a, b in zip(starts, ends)])
                  for k in range(10)] + [np.stack([seen[a:a + 50] for a in starts])] + [
                      np.stack([seen[b - 50:b] for b in ends])]
        shares = [part.mean() / seen.mean() for part in tenths]
        assert 0.75 < min(shares) and max(shares) < 1.25, (make, short, shares)


def test_short_targets(tmp_path):
    corpus = made_by_hand(tmp_path, [10] * 2000, [1000, 1000])
    segments = corpus.segments(0, 20000, 50, seed=1)
    size = segments.first_length + segments.second_length
    short = size < 50
    assert abs(short.float().mean() - 0.1 * 48 / 49) < 0.01 and size[short].min() == 2 and size[short].max() == 49
    assert abs(size[short].float().mean() - 25.5) < 1
    full = corpus.segments(0, 5000, 50, seed=1, short_prob=0.0)
    assert (full.first_length + full.second_length == 50).all()


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(vars(a).values(), vars(b).values()))


def joined(parts):
    return SimpleNamespace(**{name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def test_resume_and_ranks(small):
    """Any way to part the range of positions gives the same examples, across the end of an epoch and after pickling."""
    position = small.slots(30) - 20
    whole = small.segments(position, 64, 30, seed=5)
    parts = [small.segments(position + a, b - a, 30, seed=5) for a, b in ((0, 7), (7, 40), (40, 64))]
    assert same(whole, joined(parts))
    assert same(whole, pickle.loads(pickle.dumps(small)).segments(position, 64, 30, seed=5))
    assert not same(whole, small.segments(position, 64, 30, seed=6))
    assert not same(whole, small.segments(position + small.slots(30), 64, 30, seed=5))


def test_one_document_draws_other_from_the_rest_of_it(tmp_path):
    corpus = made_by_hand(tmp_path, [5] * 100, [100])
    segments = corpus.segments(0, 500, 40, seed=0, short_prob=0.0)
    for row, a, b, run in runs(corpus, segments):
        other = segments.other[row, :int(segments.other_length[row])].tolist()
        assert len(other) == b and not set(run) & set(other) and other == list(range(other[0], other[0] + b))
    assert len(set(segments.other[:, 0].tolist())) > 100
    alone = made_by_hand(tmp_path, [5] * 8, [8])
    assert not alone.segments(0, 10, 40, seed=0, short_prob=0.0).other_length.any()


def same_tokens(corpus, begin, size):
    """Whether runs that begin at tokens `begin` are whole sentences of one document; corpus: of token i being i."""
    starts, ends = begin.numpy(), (begin + size).numpy()
    inside = np.searchsorted(corpus.bounds[1], starts, side="right") == np.searchsorted(corpus.bounds[1], ends - 1, side="right")
    return np.isin(starts, corpus.sentences[:-1]) & np.isin(ends, corpus.sentences[1:]) & inside


@pytest.mark.parametrize("documents", [[60] * 50, [2, 3, 5, 1, 8] * 160, [3000]])
def test_sentence_runs_are_whole_consecutive_and_of_one_document(documents, tmp_path):
    rng = np.random.default_rng(0)
    corpus = made_by_hand(tmp_path, rng.choice([3, 5, 8, 13, 40], sum(documents)).tolist(), documents)  # token i is i
    for length in (32, 100):
        found = sentence_runs(corpus, 0, 2000, length, seed=1)
        (a, b, c), pairs = (found.first_length, found.second_length, found.other_length), found.second_length > 0
        assert (a > 0).all() and (a + b <= length).all() and (a + c <= length).all() and not c[~pairs].any()
        assert (found.second[pairs, 0] == found.first[pairs, 0] + a[pairs]).all()  # no gap
        one = pairs & (c > 0)
        assert same_tokens(corpus, found.first[pairs, 0], a[pairs]).all() and same_tokens(corpus, found.second[pairs, 0], b[pairs]).all()
        assert same_tokens(corpus, found.other[one, 0], c[one]).all()
        place = np.searchsorted(corpus.bounds[0], np.stack([found.first[one, 0], found.other[one, 0]]), side="right")
        assert (place[0] != place[1]).all() and (one.sum() > 0.9 * pairs.sum() if len(documents) > 1 else not one.any())
        assert (found.sentences[pairs] >= 2).all() and (found.sentences[~pairs] == 1).all()
    # what has no label lies within two sentences that do not fit, and is as long as its drawn size
    lone = found.first[~pairs, 0].numpy()
    number = np.searchsorted(corpus.sentences, lone, side="right") - 1
    assert ((a == length) | (a >= 2) & (b == 0))[~pairs].all() and (lone + a[~pairs].numpy() <= corpus.sentences[np.minimum(number + 2, sum(documents))]).all()


def test_sentence_runs_go_over_all_sentences_in_every_epoch_in_another_order(tmp_path):
    rng = np.random.default_rng(0)
    corpus = made_by_hand(tmp_path, rng.integers(3, 20, 600).tolist(), [30] * 20)
    total, starts = corpus.slots(60), []
    for epoch in range(3):
        found = sentence_runs(corpus, epoch * total, total, 60, seed=0, short_prob=0.0)
        starts.append(found.first[:, 0].tolist())
        ends = (found.first_length + found.second_length + found.first[:, 0]).numpy()
        seen = np.concatenate([np.arange(begin, end) for begin, end in zip(starts[-1], ends)])
        assert len(np.unique(seen)) > 0.6 * corpus.sentences[-1]
    assert starts[0] != starts[1] != starts[2]
    whole = sentence_runs(corpus, 7, 20, 60, seed=3)  # any part of the stream can be asked for
    part = sentence_runs(corpus, 15, 12, 60, seed=3)
    assert all(torch.equal(value, vars(whole)[name][8:]) for name, value in vars(part).items())
    documents = made_by_hand(tmp_path / "short", [9] * 40, [4] * 10)  # documents that fit come whole
    found = sentence_runs(documents, 0, 60, 60, seed=0, short_prob=0.0)
    assert (found.first_length + found.second_length == 36).all()
    alone = made_by_hand(tmp_path / "one", [50], [1])  # one long sentence: all of it is seen, without a label
    found = sentence_runs(alone, 0, 200, 20, seed=0, short_prob=0.0)
    assert not found.second_length.any() and set(found.first.flatten().tolist()) == set(range(50))


def linear_probe(segments, wrong):
    """(accuracy on the second half of a linear classifier, its standard error at chance) that looks at the sizes and at
    the pieces at the ends of two parts and says whether they are in order ("second" swapped), or belong together
    ("other" in second's place)."""
    parts = {name: (vars(segments)[name], vars(segments)[f"{name}_length"]) for name in ("first", "second", "other")}
    used = (parts["second"][1] > 0) & (parts[wrong][1] > 0)
    label = torch.rand(len(used), generator=torch.Generator().manual_seed(0)) < 0.5
    pair = [[torch.where(label[:, None] if one.dim() > 1 else label, one, two) for one, two in zip(*both)] for both in (
        (parts["second"], parts["first"]) if wrong == "second" else (parts["first"], parts["first"]),
        (parts["first"], parts["second"]) if wrong == "second" else (parts["other"], parts["second"]))]
    columns = []
    for tokens, size in pair:
        last = tokens.gather(1, (size - 1).clamp(min=0)[:, None])[:, 0]
        columns += [torch.nn.functional.one_hot(piece, 60) for piece in (tokens[:, 0], last)]
        columns += [size[:, None] / 32, (size[:, None] / 32) ** 2]
    x, y = torch.cat([column.float() for column in columns], 1)[used], label[used].float()
    weights, half = torch.zeros(x.shape[1] + 1, requires_grad=True), len(y) // 2
    optimizer = torch.optim.LBFGS([weights], max_iter=30)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x[:half] @ weights[1:] + weights[0], y[:half])
        (loss + 1e-3 * weights.square().sum()).backward()
        return loss

    optimizer.step(closure)
    right = ((x[half:] @ weights[1:] + weights[0] > 0) == y[half:].bool()).float().mean().item()
    return right, 0.5 / (len(y) - half) ** 0.5


@pytest.mark.parametrize("sizes", [(2, 7), (1, 60)])
def test_whole_sentences_do_not_tell_their_order(sizes, tmp_path):
    """Text whose order says nothing, but whose sentences begin and end with pieces of their own; the probe learns on
    some documents and is asked about others. Parts cut anywhere are told at once."""
    rng, halves, cut = np.random.default_rng(0), [], []
    for half in range(2):
        documents = rng.integers(*sizes, 60000 // sum(sizes)).tolist()  # no example twice
        lengths = np.clip(rng.lognormal(2.3, 0.6, sum(documents)), 3, 60).astype(int)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = rng.integers(10, 50, starts[-1])
        tokens[starts[:-1]], tokens[starts[1:] - 1] = rng.integers(50, 55, len(lengths)), rng.integers(55, 60, len(lengths))
        corpus = made_by_hand(tmp_path / str(half), lengths.tolist(), documents, tokens)
        halves.append(sentence_runs(corpus, 0, 5000, 60, seed=1))
        cut.append(corpus.segments(0, 5000, 60, seed=1))
    halves, cut = (type(each[0])(*(torch.cat(parts) for parts in zip(*(vars(one).values() for one in each)))) for each in (halves, cut))
    for wrong in ("second", "other"):
        right, error = linear_probe(halves, wrong)
        assert abs(right - 0.5) < 2 * error + 0.005 * (wrong == "other"), (wrong, right, error)
    assert linear_probe(cut, "second")[0] > 0.65


def test_length_too_small(small):
    with pytest.raises(UserError, match="length 1 leaves no room"):
        small.segments(0, 4, 1, seed=0)


def test_split_by_documents(small):
    train, dev = small.split(0.1)
    assert len(dev.ids) == 4 and sorted([*train.ids, *dev.ids]) == list(range(40))
    assert np.array_equal(dev.ids, small.split(0.1)[1].ids) and np.diff(dev.ids).min() >= 9
    assert [len(part.ids) for part in small.split(0.0001)] == [39, 1]
    assert [len(part.ids) for part in small.split(1.0)] == [1, 39]
    assert [len(part.ids) for part in small.split(0.5, cap=3)] == [37, 3]
    assert np.array_equal(small.split(0.1, cap=40)[1].ids, dev.ids)
    assert train.slots(30) + dev.slots(30) == small.slots(30)
    copy = pickle.loads(pickle.dumps(dev))
    assert same(copy.segments(0, 16, 30, 0), dev.segments(0, 16, 30, 0))


def test_what_is_held_out_is_a_share_with_a_cap_or_a_number(small, tokenizer, monkeypatch):
    """--held_out: 5% as it was without the flag; of a large corpus at most 1,000; from 1 on that many."""
    def parts(held_out):
        cfg = SimpleNamespace(corpus=(str(small.folder),), tokenizer=str(tokenizer.path), held_out=held_out)
        return inputs.open_text(cfg, Ranks(0, 1, torch.device("cpu")), None)[1:]
    assert all(np.array_equal(ours.ids, before.ids) for ours, before in zip(parts(0.05), small.split()))
    assert [len(parts(held_out)[1].ids) for held_out in (0.001, 0.5, 1.0, 7.0, 39.0)] == [1, 20, 1, 7, 39]
    monkeypatch.setattr(inputs, "MOST_HELD_OUT", 3)
    assert len(parts(0.5)[1].ids) == 3 and len(parts(7.0)[1].ids) == 7
    with pytest.raises(UserError, match="--held_out 40: .* has 40 documents"):
        parts(40.0)


def test_a_view_stays_in_its_documents(counted):
    train, dev = counted.split(0.2)
    starts, ends = counted.bounds
    for part in (train, dev):
        segments = part.segments(0, 300, 40, seed=0)
        tokens = torch.cat([segments.first[segments.first_length > 0, 0], segments.other[segments.other_length > 0, 0]])
        assert set(np.searchsorted(ends, tokens.numpy(), side="right")) <= set(part.ids)


def test_one_document_cannot_be_split(tmp_path):
    with pytest.raises(UserError, match="one document cannot be split"):
        made_by_hand(tmp_path, [5], [1]).split()


def test_positions_beyond_32_bits(tmp_path):
    """A (sparse) corpus of 5 G tokens, like one of more than 16 GB of text."""
    total, last = 5 * 2**30, 4 * 2**30 + 12345
    np.array([0, last, last + 9, total], np.int64).tofile(tmp_path / "sentences.bin")
    np.array([0, 1, 3], np.int64).tofile(tmp_path / "documents.bin")
    with open(tmp_path / "tokens.bin", "wb") as file:
        file.truncate(2 * total)
        file.seek(2 * last)
        np.arange(1, 1001, dtype=np.uint16).tofile(file)
    write(tmp_path / "meta.json", json.dumps({"format": 1, "dtype": "uint16", "tokenizer": "", "lower": True,
                                              "tokens": total, "sentences": 3, "documents": 2}))
    corpus = Corpus(tmp_path)
    assert corpus.slots(128) == -(-last // 128) + -(-(total - last) // 128)
    part = np.array([last]), np.array([5])
    assert corpus.collect(8, part, part, part, part[1]).first.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert corpus.segments(2**40, 64, 128, seed=0, short_prob=0.0).first_length.sum() > 60 * 128


# --- packing ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("empty_second", [False, True])
def test_join_packs_like_lists(empty_second):
    tokenizer = SimpleNamespace(cls_id=2, sep_id=3, pad_id=0)
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(5, 90, (2, 300, 9), generator=generator)
    a, b = torch.randint(1, 9, (300,), generator=generator), torch.randint(0, 9, (300,), generator=generator)
    b = torch.minimum(b, 9 - a)
    ids, kinds, lengths = join(first, a, second, b, tokenizer, empty_second)
    assert ids.shape == kinds.shape == (300, 12) and ids.dtype == kinds.dtype == lengths.dtype == torch.int64
    for row in range(300):
        one = [2, *first[row, :a[row]].tolist(), 3]
        two = [*second[row, :b[row]].tolist(), 3] if b[row] or empty_second else []
        assert lengths[row] == len(one + two)
        filling = [0] * (12 - len(one + two))
        assert ids[row].tolist() == one + two + filling
        assert kinds[row].tolist() == [0] * len(one) + [1] * len(two) + filling
