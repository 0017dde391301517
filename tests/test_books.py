"""Project Gutenberg's books: what belongs to the licence, duplicates, resuming; and the licence in a plain corpus."""
import random

import pytest

from common.cli import UserError
from data import books, outputs
from data.text import body_of, chunks, layout_of, read_documents

HEAD = """The Project Gutenberg eBook of A Walk, by A. Body

This ebook is for the use of anyone anywhere in the United States and
most other parts of the world at no cost.

Title: A Walk

Character set encoding: UTF-8

*** START OF {this} PROJECT GUTENBERG EBOOK A WALK ***

Produced by Anonymous Volunteers and the Distributed
Proofreading Team

[Illustration: The hill]

A WALK

by A. Body

"""
TAIL = """
FINIS

End of the Project Gutenberg EBook of A Walk, by A. Body

*** END OF {this} PROJECT GUTENBERG EBOOK A WALK ***

Updated editions will replace the previous one.
""" + "Section 1. General Terms of Use.\n" * 300
WORDS = "the old house stood on a hill above some river where Mr. Brown had long kept his boats and sold none".split()


def prose(seed, paragraphs=80):
    """Hard-wrapped paragraphs of made-up sentences."""
    rng, found = random.Random(seed), []
    for _ in range(paragraphs):
        words = [word for _ in range(4) for word in ["Then", *rng.choices(WORDS, k=12), "_end_ of it."]]
        lines, line = [], ""
        for word in words:
            if len(line) + len(word) > 70:
                lines.append(line)
                line = ""
            line = f"{line} {word}".strip()
        found.append("\n".join([*lines, line]))
    return "\n\n".join(found) + "\n"


def book(seed, this="THE", head=HEAD, tail=TAIL):
    return head.format(this=this) + prose(seed) + "\n       *       *       *\n\n" + tail.format(this=this)


@pytest.fixture
def library(tmp_path):
    """Four books, one of them three times: as UTF-8, in an old file in Latin-1, without its licence."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, seed in (("1.txt", 1), ("2.txt", 2), ("3.txt", 3)):
        folder.joinpath(name).write_text(book(seed), encoding="utf-8")
    old = HEAD.replace("*** START OF {this} PROJECT GUTENBERG EBOOK A WALK ***",
                       "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*")
    folder.joinpath("2-8.txt").write_bytes((old + "Café.\n\n" + prose(2)).encode("latin-1"))
    folder.joinpath("2-plain.txt").write_text(prose(2))
    folder.joinpath("4.txt").write_text(prose(4))
    folder.joinpath("short.txt").write_text("A notice.\n")
    return folder


@pytest.mark.parametrize("this", ["THE", "THIS"])
def test_the_licence_is_found(tmp_path, this):
    path = tmp_path / "a.txt"
    path.write_text(book(1, this))
    start, end = body_of(path)
    body = path.read_text()[start:end].strip()
    assert body.startswith("Produced by") and body.endswith("FINIS")
    path.write_text(book(1, this, head=HEAD.replace("EBOOK A WALK ***", "EBOOK A LONG\nWALK INDEED ***")))
    assert path.read_text()[body_of(path)[0]:].strip().startswith("Produced by")
    path.write_text("Prose about *** START OF a race, and the End of Project Gutenberg.")
    assert body_of(path) == (0, path.stat().st_size)


def test_what_a_book_becomes(tmp_path):
    (tmp_path / "in.txt").write_text(book(1))
    state = books.extract_books([tmp_path / "in.txt"], tmp_path / "out", progress=False)
    text = (tmp_path / "out" / "books-0000.txt").read_text()
    lines = text.rstrip("\n").split("\n")
    assert lines[:2] == ["A WALK", "by A. Body"] and lines[-1] == "FINIS" and "" not in lines
    assert "_" not in text and "Illustration" not in text and "*" not in text and "Volunteers" not in text
    assert sum(line.endswith("end of it.") for line in lines) == 80 * 4  # one sentence a line; no cut after "Mr."
    assert state["counts"]["with_licence"] == 1 and text.endswith("\n\n")


def test_duplicates_and_workers(library, tmp_path, monkeypatch):
    monkeypatch.setattr(books, "SHARE", 30_000)
    states = [books.extract_books([library], tmp_path / f"out{workers}", workers, False) for workers in (1, 2)]
    assert states[0] == states[1]
    counts = states[0]["counts"]
    assert {key: counts[key] for key in ("books", "kept", "duplicates", "short", "not_utf8")} == {
        "books": 7, "kept": 4, "duplicates": 2, "short": 1, "not_utf8": 1}
    assert "4 of 7 books" in books.summary(states[0])
    path = tmp_path / "out1" / "books-0000.txt"
    assert path.read_bytes() == (tmp_path / "out2" / "books-0000.txt").read_bytes()
    assert len(read_documents(path.read_text(), layout_of(path))) == 4


def test_books_go_on_from_wherever_they_stopped(library, tmp_path, monkeypatch):
    monkeypatch.setattr(books, "SHARE", 1)
    monkeypatch.setattr(outputs, "FILE_BYTES", 20_000)
    save, moments, place = outputs.TextFiles.save, [], -1

    def stop(output):
        if len(moments) == place:
            raise KeyboardInterrupt
        moments.append(1)
        save(output)
    monkeypatch.setattr(outputs.TextFiles, "save", stop)
    whole = books.extract_books([library], tmp_path / "whole", progress=False)
    assert len(moments) > 7
    for place in range(1, len(moments)):
        moments.clear()
        monkeypatch.setattr(outputs.TextFiles, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            books.extract_books([library], tmp_path / str(place), progress=False)
        monkeypatch.setattr(outputs.TextFiles, "save", save)
        assert books.extract_books([library], tmp_path / str(place), progress=False) == whole
        for path in (tmp_path / "whole").iterdir():
            assert (tmp_path / str(place) / path.name).read_bytes() == path.read_bytes()


def test_mistakes_are_named(library, tmp_path):
    with pytest.raises(UserError, match="not empty"):
        books.extract_books([library], library, progress=False)
    with pytest.raises(UserError, match="no such file or folder"):
        books.extract_books([tmp_path / "gone"], tmp_path / "out", progress=False)


def test_a_plain_corpus_leaves_the_licence_out_and_says_so(tmp_path, capsys):
    from common.tokenization import load_tokenizer
    from data.text import prepare_corpus
    from data.vocabulary import train_sentencepiece
    path = tmp_path / "in.txt"
    path.write_text(book(1) + "\n")
    (_, start, end, _), = chunks(path)
    body = path.read_bytes()[start:end]
    assert b"General Terms" not in body and b"anyone anywhere" not in body
    tokenizer = load_tokenizer(train_sentencepiece([path], tmp_path / "spiece.model", 60))
    prepare_corpus([path], tokenizer, tmp_path / "out", progress=False)
    assert "1 of 1 files have Project Gutenberg's licence" in capsys.readouterr().err
