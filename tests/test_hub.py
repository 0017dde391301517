"""Text of a set with a column of text: local parquet and JSON lines, read as sets of the Hub are.
Needs `datasets`."""
import json
import sys

import pytest

from common.cli import UserError
from data import hub
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
            import pyarrow
            import pyarrow.parquet
            pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
        else:
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in column))
    return tmp_path / "set"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.peers
def test_a_row_becomes_a_document_of_sentences(source, tmp_path):
    paths = hub.fetch_text(source, "", tmp_path / "out")
    documents = read_documents(paths[1].read_text(), layout_of(paths[1]))
    assert len(paths) == 3
    assert len(documents) == 5
    assert documents[0] == SENTENCES


@pytest.mark.peers
def test_a_stopped_command_goes_on_with_the_same_bytes(source, tmp_path, monkeypatch):
    hub.fetch_text(source, "", tmp_path / "whole")
    split = hub.sentences_of
    seen = []

    def stop(text):
        seen.append(text)
        if len(seen) == 8:  # in the second file
            raise KeyboardInterrupt
        return split(text)

    monkeypatch.setattr(hub, "sentences_of", stop)
    with pytest.raises(KeyboardInterrupt):
        hub.fetch_text(source, "", tmp_path / "stopped")
    assert sorted(contents(tmp_path / "stopped")) == ["00000.txt", "hub.json"]
    (tmp_path / "stopped" / "00001.txt.partial-7").write_text("torn")  # as SIGKILL leaves it
    hub.fetch_text(source, "", tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert seen[8] == seen[6]  # the second file began again, the first did not


def test_without_the_package_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        hub.fetch_text("wikimedia/wikipedia", "20231101.en", tmp_path / "out")
    assert not (tmp_path / "out").exists()
