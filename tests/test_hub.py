"""Text of a set with a column of text: local parquet and JSON lines, read as sets of the Hub are. Needs `datasets`."""
import json
import sys

import pytest

from common.cli import UserError
from data import hub
from data.text import layout_of, read_documents

ROWS = [[f"Mr. Hale saw {shard} and {row}. He went home.\n\nNobody came." for row in range(5)] for shard in range(3)]
SENTENCES = ["Mr. Hale saw 1 and 0.", "He went home.", "Nobody came."]


@pytest.fixture(params=["parquet", "jsonl"])
def source(request, tmp_path):
    """A folder of three files of five documents each; a row without text among them."""
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    for shard, texts in enumerate(ROWS):
        path, column = tmp_path / "set" / f"{shard}.{request.param}", [*texts, None, ""]
        if request.param == "parquet":
            import pyarrow
            import pyarrow.parquet
            pyarrow.parquet.write_table(pyarrow.table({"id": range(len(column)), "text": column}), path)
        else:
            path.write_text("".join(json.dumps({"id": row, "text": text}) + "\n" for row, text in enumerate(column)))
    return tmp_path / "set"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.peers
def test_a_row_becomes_a_document_of_sentences(source, tmp_path):
    paths = hub.fetch_text(source, "", tmp_path / "out")
    text = paths[1].read_text()
    documents = read_documents(text, layout_of(paths[1]))
    assert len(paths) == 3 and len(documents) == 5 and documents[0] == SENTENCES


@pytest.mark.peers
def test_a_stopped_command_goes_on_with_the_same_bytes(source, tmp_path, monkeypatch):
    hub.fetch_text(source, "", tmp_path / "whole")
    split, seen = hub.sentences_of, []

    def stop(text):
        seen.append(text)
        if len(seen) == 8:  # in the second shard
            raise KeyboardInterrupt
        return split(text)

    monkeypatch.setattr(hub, "sentences_of", stop)
    with pytest.raises(KeyboardInterrupt):
        hub.fetch_text(source, "", tmp_path / "stopped")
    assert sorted(contents(tmp_path / "stopped")) == ["00000.txt", "hub.json"]
    (tmp_path / "stopped" / "00001.txt.partial-7").write_text("torn")  # as SIGKILL leaves it
    hub.fetch_text(source, "", tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole") and len(seen) > 8 + 5
    assert seen[8] == seen[6]  # the second shard began anew, the first did not


@pytest.mark.peers
def test_mistakes_end_in_one_line(source, tmp_path):
    with pytest.raises(UserError, match="--column words: the set has no such column; choose from id, text"):
        hub.fetch_text(source, "", tmp_path / "a", column="words")
    with pytest.raises(UserError, match="made from something else"):
        hub.fetch_text(source, "", tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        hub.fetch_text(source, "", tmp_path / "b")
    with pytest.raises(UserError, match="name a .parquet or a .jsonl file"):
        hub.fetch_text(tmp_path / "b", "", tmp_path / "c")


def test_without_the_package_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        hub.fetch_text("wikimedia/wikipedia", "20231101.en", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrapped_lines_are_joined():
    text = ("It was late in the day, and Mr. Hale\nhad come home. He was so tired that he\n"
            "went to bed at once, and nobody said a\nword to him.")
    assert hub.sentences_of(text) == ["It was late in the day, and Mr. Hale had come home.",
                                      "He was so tired that he went to bed at once, and nobody said a word to him."]
    assert hub.sentences_of("One line\nAnother. Two.") == ["One line", "Another.", "Two."]
