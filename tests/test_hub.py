"""Text of a set with a column of text: local parquet and JSON lines, read as sets of the Hub are.
Needs `datasets`."""
import json
import sys

import pytest

from common.cli import UserError
from data import download
from data.text import layout_of, read_documents

TEXT = "Mr. Hale saw {} and {}. He went home.\n\nNobody came."
SENTENCES = ["Mr. Hale saw 1 and 0.", "He went home.", "Nobody came."]


@pytest.fixture(params=["parquet", "jsonl"])
def source(request, tmp_path):
    """A folder of three files of five documents each; a row without text among them."""
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    for shard in range(3):
        path = tmp_path / "set" / f"{shard}.{request.param}"
        column = [*(TEXT.format(shard, row) for row in range(5)), None, ""]
        if request.param == "parquet":
            import pyarrow.parquet
            pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
        else:
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in column))
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
