"""Dumps and models from a server on this machine: layouts, checksums, what a machine without a network is told."""
import bz2
import hashlib
import json

import pytest

from common.cli import UserError
from data import released
from data.released import download_dump, download_model
from tests.test_prepare import server  # noqa: F401  (a fixture)

DUMP = "pages-articles-multistream.xml.bz2"
INDEX = "pages-articles-multistream-index.txt.bz2"


@pytest.fixture
def mirror(server):  # noqa: F811
    """Its address; it has the dump of 20260101 whole, the one of 20260201 without its articles."""
    contents, sums = {DUMP: bz2.compress(b"<mediawiki></mediawiki>" * 99), INDEX: bz2.compress(b"0:1:A\n")}, {}
    for date in ("20260101", "20260201"):
        sums[date] = f"{'0' * 40}  simplewiki-{date}-all-titles.gz\n"
    for name, content in contents.items():
        server.contents[f"/simplewiki/20260101/simplewiki-20260101-{name}"] = content
        sums["20260101"] += f"{hashlib.sha1(content).hexdigest()}  simplewiki-20260101-{name}\n"
    for date, text in sums.items():
        server.contents[f"/simplewiki/{date}/simplewiki-{date}-sha1sums.txt"] = text.encode()
    server.contents["/simplewiki/latest/simplewiki-latest-sha1sums.txt"] = sums["20260101"].encode()
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_a_dump_by_date(server, mirror, tmp_path):  # noqa: F811
    path = download_dump(tmp_path, "simple", "20260101", mirror)
    assert path == tmp_path / "wikipedia" / "simplewiki-20260101" / f"simplewiki-20260101-{DUMP}"
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"simplewiki-20260101-{INDEX}", "source.json"}
    assert json.loads((path.parent / "source.json").read_text())["files"][0]["digest"].startswith("sha1:")
    asked = len(server.requests)
    assert download_dump(tmp_path, "simple", "20260101", mirror) == path and len(server.requests) == asked


def test_the_latest_dump_has_a_date(mirror, tmp_path):
    assert download_dump(tmp_path, "simple", "latest", mirror).name == f"simplewiki-20260101-{DUMP}"


def test_a_broken_transfer_of_a_dump_goes_on(server, mirror, tmp_path):  # noqa: F811
    folder = tmp_path / "wikipedia" / "simplewiki-20260101"
    folder.mkdir(parents=True)
    content = server.contents[f"/simplewiki/20260101/simplewiki-20260101-{DUMP}"]
    (folder / f"simplewiki-20260101-{DUMP}.part").write_bytes(content[:20])
    assert download_dump(tmp_path, "simple", "20260101", mirror).read_bytes() == content
    assert (f"/simplewiki/20260101/simplewiki-20260101-{DUMP}", "bytes=20-") in server.requests


def test_dumps_that_are_not_to_be_had(server, mirror, tmp_path, capsys):  # noqa: F811
    with pytest.raises(UserError, match=r"20260201/: the dump has no simplewiki-20260201-pages.* \(yet\)"):
        download_dump(tmp_path, "simple", "20260201", mirror)
    with pytest.raises(UserError, match="the server answers 404"):
        download_dump(tmp_path, "simple", "20250101", mirror)
    assert f"{mirror}/simplewiki/20250101/simplewiki-20250101-{DUMP}" in capsys.readouterr().out
    with pytest.raises(UserError, match="a date is YYYYMMDD or latest"):
        download_dump(tmp_path, "simple", "yesterday", mirror)
    server.contents["/simplewiki/20260301/simplewiki-20260301-sha1sums.txt"] = b"<html>moved</html>"
    with pytest.raises(UserError, match="no list of SHA-1 checksums"):
        download_dump(tmp_path, "simple", "20260301", mirror)


def test_a_wrong_checksum_of_a_dump(server, mirror, tmp_path):  # noqa: F811
    server.contents[f"/simplewiki/20260101/simplewiki-20260101-{DUMP}"] += b"x"
    with pytest.raises(UserError, match="checksum mismatch"):
        download_dump(tmp_path, "simple", "20260101", mirror)
    by_hand = tmp_path / "wikipedia" / "simplewiki-20260101" / f"simplewiki-20260101-{DUMP}"
    by_hand.write_bytes(b"another file, put there by hand")
    with pytest.raises(UserError, match="checksum mismatch.*delete the file"):
        download_dump(tmp_path, "simple", "20260101", mirror)


@pytest.fixture
def hub(server, monkeypatch):  # noqa: F811
    """Its address; it has a small model with one file on record and one that is not."""
    contents = {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", "config.json": b"{}"}
    for name, content in contents.items():
        server.contents[f"/some/model/resolve/main/{name}"] = content
    digest = "sha256:" + hashlib.sha256(contents["vocab.txt"]).hexdigest()
    wanted = {"vocab.txt": (len(contents["vocab.txt"]), digest), "config.json": released.UNKNOWN}
    monkeypatch.setitem(released.MODELS, "model", ("some/model", wanted))
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_a_model_and_its_checksums(server, hub, tmp_path, capsys):  # noqa: F811
    folder = download_model("model", tmp_path, hub)
    rows = json.loads((folder / "source.json").read_text())["files"]
    assert [row["digest_from"].split(",")[0] for row in rows] == ["on record", "computed at the first download"]
    assert "no official checksum is on record for config.json" in capsys.readouterr().out
    from common.tokenization import load_tokenizer
    assert load_tokenizer(folder).vocab_size == 6
    asked = len(server.requests)
    assert download_model("model", tmp_path, hub) == folder and len(server.requests) == asked
    (folder / "config.json").write_text("{} ")
    with pytest.raises(UserError, match="config.json: checksum mismatch"):
        download_model("model", tmp_path, hub)
    (folder / "config.json").unlink()
    assert download_model("model", tmp_path, hub) == folder and (folder / "config.json").read_text() == "{}"
    (folder / "config.json").unlink()
    server.contents["/some/model/resolve/main/config.json"] = b"{1}"
    with pytest.raises(UserError, match="checksum mismatch"):
        download_model("model", tmp_path, hub)


def test_without_a_network_the_files_are_listed(tmp_path, capsys):
    with pytest.raises(UserError, match="no connection"):
        download_model("bert-base", tmp_path, "http://127.0.0.1:9")
    said = capsys.readouterr().out
    assert "http://127.0.0.1:9/google-bert/bert-base-uncased/resolve/main/model.safetensors  440,449,768 bytes" in said
    assert f"put into {tmp_path / 'bert-base'}" in said


def test_the_table_of_models():
    for name, (repository, files) in released.MODELS.items():
        assert {"vocab.txt", "spiece.model"} & set(files), name
        assert all(not digest or len(digest) == 71 for _, digest in files.values())
