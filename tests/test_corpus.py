"""Corpora: how text is read, whole or no token files, and the segments cut from them."""
import json
import multiprocessing
import signal
import textwrap
import time
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import write

from common.cli import Stop, UserError
from common.distributed import Ranks
from common.tokenization import load_tokenizer
from data import inputs
from data import text as module
from data.corpus import Corpus, Segments, epoch_order, join
from data.text import Layout, chunks, layout_of, prepare_corpus, read_documents, split_sentences, train_sentencepiece

WORDS = [f"w{i}" for i in range(3000)]
SENTENCES = ["Mr. Hale came home at noon.", "He was tired of the road, and of the rain that had followed him home.",
             '"Is there any tea?" he asked.', "Nobody answered him."]
PROSE = " ".join(SENTENCES) + " "


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
    text = "\n\n".join(textwrap.fill(" ".join(paragraph), width) for paragraph in paragraphs).replace("\n", "\r\n")
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


def test_documents_in_prose_are_bounded():
    text, layout = textwrap.fill(PROSE * 2000, 70), Layout(wrapped=True, split=True, blank_ends=False)
    sizes = [sum(map(len, document)) for document in read_documents(text, layout)]
    assert len(sizes) > 2 and max(sizes) < module.LONGEST_DOCUMENT + 200


@pytest.mark.parametrize("text", [sentence_text([30] * 20), "中文" * 3000, "word " * 3000, "line\n" * 3000,
                                  textwrap.fill(PROSE * 100, 70)])
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


@pytest.mark.parametrize("what", ["read_documents", "sentencepiece.SentencePieceTrainer.train"])
def test_what_workers_do_is_given_up_at_once(what, tmp_path, tokenizer, monkeypatch):
    """As by SIGTERM, while the caller waits. The process that trains a vocabulary is a worker too."""
    def too_long(*_, **more):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as C++ does, which lets no handler run
        time.sleep(8)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])

    def stop(*_):
        raise Stop
    monkeypatch.setattr(f"data.text.{what}", too_long)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    text, began = write(tmp_path / "text.txt", "w1 w2\n"), time.monotonic()
    with pytest.raises(Stop):
        if what == "read_documents":
            prepare_corpus([text], tokenizer, tmp_path / "out", workers=2)
        else:
            train_sentencepiece([text], tmp_path / "spiece.model", 30)
    signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 5 and not multiprocessing.active_children()
    assert not list(tmp_path.glob("out/*"))


def test_one_process_does_it_all_where_there_can_be_no_workers(tmp_path, tokenizer, monkeypatch, capsys):
    def none(*args, **more):
        raise FileNotFoundError(2, "No such file or directory")
    monkeypatch.setattr(module, "ProcessPoolExecutor", none)
    text = write(tmp_path / "text.txt", "w1 w2\n")
    assert len(prepare_corpus([text], tokenizer, tmp_path / "out", workers=2).tokens) == 2
    assert "/dev/shm" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tokens.bin", "meta.json", "vocabulary.json", "spiece.model", "vocab.txt"])
def test_no_file_of_others_is_overwritten(name, tmp_path, tokenizer):
    text, out = write(tmp_path / "text.txt", "w1 w2\n" * 9), tmp_path / "out"
    out.mkdir()
    write(out / name, "{}")
    with pytest.raises(UserError, match=f"{name}: in the way"):
        module.make_corpus([text], out, 30, str(tokenizer.path) if name == "vocab.txt" else "")
    assert (out / name).read_text() == "{}" and len(list(out.iterdir())) == 1


def test_bad_bytes_are_replaced_counted_and_told_once(tmp_path, tokenizer, capsys):
    files = [write(tmp_path / f"{n}.txt", b"w1 \x93w2\x94 w3\n\xef\xbf\xbd w4\n") for n in "ab"]
    corpus = prepare_corpus(files, tokenizer, tmp_path / "out")
    assert corpus.meta["replaced"] == 4 and [WORDS[i - 5] for i in corpus.tokens] == ["w1", "w2", "w3", "w4"] * 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "a.txt: not all is UTF-8" in told[0]


def test_a_prepared_folder_is_reused_until_the_text_changes(tmp_path, tokenizer, monkeypatch):
    text, out = write(tmp_path / "t.txt", "w1 w2\n"), tmp_path / "out"
    first = prepare_corpus([text], tokenizer, out)
    monkeypatch.setattr(module, "encode_chunk", lambda *job: pytest.fail("the corpus was made again"))
    assert prepare_corpus([text], tokenizer, out).meta == first.meta
    monkeypatch.undo()
    write(text, "w1 w2 w3\n")
    assert len(prepare_corpus([text], tokenizer, out).tokens) == 3


# --- segments ---------------------------------------------------------------------------------------

def test_each_epoch_takes_all_slots_in_another_order():
    orders = [epoch_order(seed, epoch, 500, 3)[0] for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    assert all(sorted(order) == list(range(500)) for order in orders)
    assert all((one != other).mean() > 0.9 for one, other in zip(orders, [*orders[1:], np.arange(500)]))


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
    for make, short in ((Corpus.segments, 0.0), (Corpus.segments, 0.1), (Corpus.sentence_runs, 0.1)):
        found = make(corpus, 0, 4 * slots, length - 3, 0, short)
        begin, size = found.first[:, 0].numpy(), (found.first_length + found.second_length).numpy()
        seen = np.zeros(len(corpus.tokens) + 1)
        np.add.at(seen, begin, 1)
        np.add.at(seen, begin + size, -1)
        seen, epochs = seen.cumsum()[:-1], np.split(begin, 4)
        assert all((one != other).mean() > 0.9 for one, other in zip(epochs, epochs[1:]))  # epochs differ
        assert short or (seen == 4).all() and not set(epochs[0]) >= set(epochs[1])  # once an epoch, cut elsewhere
        parts = [(a + (b - a) * np.arange(11) // 10).tolist() for a, b in zip(starts, ends)]
        shares = [np.mean([seen[cuts[k]:cuts[k + 1]].mean() for cuts in parts]) for k in range(10)] + [
            np.mean([seen[a:a + 50].mean() for a in starts]), np.mean([seen[b - 50:b].mean() for b in ends])]
        assert 0.75 < min(shares) / seen.mean() and max(shares) / seen.mean() < 1.25, (make, short, shares)


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


def test_resume_and_ranks(small):
    """Any way to part the range of positions gives the same examples, across the end of an epoch."""
    position = small.slots(30) - 20
    whole = small.segments(position, 64, 30, seed=5)
    parts = [vars(small.segments(position + a, b - a, 30, seed=5)).values() for a, b in ((0, 7), (7, 40), (40, 64))]
    assert same(whole, Segments(*map(torch.cat, zip(*parts))))
    assert not same(whole, small.segments(position, 64, 30, seed=6))
    assert not same(whole, small.segments(position + small.slots(30), 64, 30, seed=5))


@pytest.mark.parametrize("documents", [[60] * 50, [2, 3, 5, 1, 8] * 160, [3000]])
def test_sentence_runs_are_whole_consecutive_and_of_one_document(documents, tmp_path):
    rng = np.random.default_rng(0)
    corpus = made_by_hand(tmp_path, rng.choice([3, 5, 8, 13, 40], sum(documents)).tolist(), documents)  # token i is i

    def documents_of(part, size, rows):
        """Those of the runs in these rows, which are whole sentences of one."""
        starts = part[rows, 0].numpy()
        ends = starts + size[rows].numpy()
        found, last = (np.searchsorted(corpus.bounds[1], place, side="right") for place in (starts, ends - 1))
        assert (np.isin(starts, corpus.sentences[:-1]) & np.isin(ends, corpus.sentences[1:]) & (found == last)).all()
        return found

    for length in (32, 100):
        found = corpus.sentence_runs(0, 2000, length, seed=1)
        (a, b, c), pairs = (found.first_length, found.second_length, found.other_length), found.second_length > 0
        assert (a > 0).all() and (a + b <= length).all() and (a + c <= length).all() and not c[~pairs].any()
        assert (found.second[pairs, 0] == found.first[pairs, 0] + a[pairs]).all()  # no gap
        assert (documents_of(found.first, a, pairs) == documents_of(found.second, b, pairs)).all()
        one = pairs & (c > 0)
        assert (documents_of(found.first, a, one) != documents_of(found.other, c, one)).all()
        assert one.sum() > 0.9 * pairs.sum() if len(documents) > 1 else not one.any()
        lone = found.first[~pairs, 0].numpy(), (found.first[~pairs, 0] + a[~pairs] - 1).numpy()  # stays in a document
        assert np.equal(*(np.searchsorted(corpus.bounds[1], place, side="right") for place in lone)).all()


def told(segments, wrong):
    """(share of the second half of the rows that ridge regression on the first half gets right, its error at chance)
    from the sizes and the pieces at the ends of two parts: are they in order ("second": or swapped), or do they belong
    together ("other": or is that in second's place)?"""
    parts = [(vars(segments)[name], vars(segments)[f"{name}_length"]) for name in ("first", "second", wrong)]
    used = (parts[1][1] > 0) & (parts[2][1] > 0)

    def features(tokens, size):
        last = tokens.gather(1, (size - 1).clamp(min=0)[:, None])[:, 0]
        pieces = [torch.nn.functional.one_hot(piece, 60) for piece in (tokens[:, 0], last)]
        return torch.cat([*pieces, size[:, None] / 32, (size[:, None] / 32) ** 2], 1)[used].double()

    first, second, third = (features(*part) for part in parts)
    labels, half = torch.arange(len(first)) % 2, len(first) // 2
    not_so = [second, first] if wrong == "second" else [first, third]
    x = torch.where(labels[:, None] == 1, torch.cat([first, second], 1), torch.cat(not_so, 1))
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    known = x[:half]
    products = known.T @ known + torch.eye(x.shape[1])
    weight = torch.linalg.solve(products, known.T @ (2.0 * labels[:half] - 1).double())
    return ((x[half:] @ weight > 0) == labels[half:].bool()).double().mean(), 0.5 / (len(x) - half) ** 0.5


@pytest.mark.parametrize("sizes", [(2, 7), (1, 60)])
def test_whole_sentences_do_not_tell_their_order(sizes, tmp_path):
    """Text whose order says nothing, but whose sentences begin and end with pieces of their own; what is fitted on some
    documents is asked about others. Parts cut anywhere are told at once."""
    rng, made = np.random.default_rng(0), {Corpus.sentence_runs: [], Corpus.segments: []}
    for half in range(2):
        documents = rng.integers(*sizes, 60000 // sum(sizes)).tolist()  # no example twice
        lengths = np.clip(rng.lognormal(2.3, 0.6, sum(documents)), 3, 60).astype(int)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = rng.integers(10, 50, starts[-1])
        tokens[starts[:-1]] = rng.integers(50, 55, len(lengths))
        tokens[starts[1:] - 1] = rng.integers(55, 60, len(lengths))
        corpus = made_by_hand(tmp_path / str(half), lengths.tolist(), documents, tokens)
        for make, found in made.items():
            found.append(vars(make(corpus, 0, 5000, 60, seed=1)).values())
    whole, cut = (Segments(*map(torch.cat, zip(*found))) for found in made.values())
    for wrong in ("second", "other"):
        right, error = told(whole, wrong)
        assert abs(right - 0.5) < 2 * error + 0.005 * (wrong == "other"), (wrong, right, error)
    assert told(cut, "second")[0] > 0.65


def test_split_by_documents(small):
    train, dev = small.split(0.1)
    assert len(dev.ids) == 4 and sorted([*train.ids, *dev.ids]) == list(range(40))
    assert np.array_equal(dev.ids, small.split(0.1)[1].ids) and np.diff(dev.ids).min() >= 9
    assert train.slots(30) + dev.slots(30) == small.slots(30)


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
    assert corpus.collect(8, [(last, 5) * 3]).first.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert corpus.segments(2**40, 64, 2**20, seed=0, short_prob=0.0).first_length.sum() > 60 * 2**20


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
