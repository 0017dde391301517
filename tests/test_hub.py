"""Text of a set with a column of text: local JSON lines, read as sets of the Hub are. Needs
`datasets`."""
import json
import sys

import pytest

from common.cli import UserError
from data import download
from data.text import layout_of, read_documents

TEXT = "Mr. Hale saw {} and {}. He went home.\n\nNobody came."
SENTENCES = ["Mr. Hale saw 1 and 0.", "He went home.", "Nobody came."]


@pytest.fixture
def source(tmp_path):
    """A folder of three files of five documents each; a row without text among them."""
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    for number in range(3):
        texts = [*(TEXT.format(number, row) for row in range(5)), None, ""]
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (tmp_path / "set" / f"{number}.jsonl").write_text("".join(lines))
    return tmp_path / "set"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.peers
def test_a_killed_command_continues_with_the_same_bytes(source, tmp_path, monkeypatch):
    paths = download.fetch_text(source, "", tmp_path / "whole")
    assert len(paths) == 3
    documents = read_documents(paths[1].read_text(), layout_of(paths[1]))
    assert len(documents) == 5
    assert documents[0] == SENTENCES
    sentences_of = download.sentences_of
    seen = []

    def stop(text):
        seen.append(text)
        if len(seen) == 8:  # in the second file
            raise KeyboardInterrupt
        return sentences_of(text)
    monkeypatch.setattr(download, "sentences_of", stop)
    with pytest.raises(KeyboardInterrupt):
        download.fetch_text(source, "", tmp_path / "out")
    assert contents(tmp_path / "out").keys() == {"00000.txt", "hub.json"}
    (tmp_path / "out" / "00001.txt.partial-7").write_text("torn")  # as SIGKILL leaves it
    download.fetch_text(source, "", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_without_the_package_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        download.fetch_text("wikimedia/wikipedia", "20231101.en", tmp_path / "out")
