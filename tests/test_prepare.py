"""data/: downloads survive what networks do."""
import contextlib
import hashlib
import io
import os
import shutil
import tarfile

import pytest
from small_runs import write

from common.cli import UserError
from data import download


def offered(folder, name, content, place=""):
    """A line of the table for a file that is offered in `folder` from now on."""
    write(folder / name, content)
    return f"{name} {hashlib.sha256(content).hexdigest()} {place}\n"


def tar(names):
    """A .tar.gz with files of these names and contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_set_is_made_once_of_files_and_archives_without_their_top_folder(tmp_path):
    there = tmp_path / "there"
    members = {"top/test_batch.bin": b"a", "__MACOSX/top/b": b"b", "stray": b"c"}
    lines = offered(there, "AX.tsv", b"index", "diagnostic/diagnostic.tsv")
    lines += offered(there, "binary.tar.gz", tar(members), "binary")
    table = {"glue": (f"file://{there}/", lines)}
    folder = download.download("glue", tmp_path, table)
    assert files_of(folder) == {"diagnostic/diagnostic.tsv", "binary/test_batch.bin"}
    assert (tmp_path / "archives/glue/AX.tsv").read_bytes() == b"index"  # it may be the user's
    shutil.rmtree(there)
    assert download.download("glue", tmp_path, table) == folder


@pytest.mark.parametrize("wrong", ["gone.json 0", f"b.json {'0' * 64}"])
def test_complete_files_are_kept_when_another_cannot_be_fetched(wrong, tmp_path):
    there = tmp_path / "there"
    good = offered(there, "a.json", b"a")
    both = good + offered(there, "b.json", b"b")
    with pytest.raises(UserError, match=wrong.split()[0]):
        download.download("squad", tmp_path, {"squad": (f"file://{there}/", good + wrong)})
    assert not (tmp_path / "squad").exists()
    (there / "a.json").unlink()  # it is not fetched again
    folder = download.download("squad", tmp_path, {"squad": (f"file://{there}/", both)})
    assert files_of(folder) == {"a.json", "b.json"}
    write(tmp_path / "archives/race/a.json", b"other")
    with pytest.raises(UserError, match="a.json: its SHA-256"):
        download.download("race", tmp_path, {"race": (f"file://{there}/", good)})


@pytest.mark.parametrize("member", ["../a", "top/../../a", "/a"])
def test_archives_cannot_write_elsewhere(member, tmp_path):
    write(tmp_path / "a.tar.gz", tar({member: b"x"}))
    with contextlib.suppress(tarfile.TarError):
        download.put(tmp_path / "a.tar.gz", tmp_path / "to")
    outside = {name for name in files_of(tmp_path) if not name.startswith("to/")}
    assert outside == {"a.tar.gz"}
    assert not os.path.exists("/a")
