"""data/: downloads survive network failures."""
import contextlib
import hashlib
import io
import shutil
import tarfile
from pathlib import Path

import pytest
from small_runs import write

from common.cli import UserError
from data.download import download, put


@pytest.mark.parametrize("documents, flags", [("file", " --objective none"), ("blank", "")])
def test_the_next_command_after_a_corpus_of_books_has_no_objective(
        documents, flags, works, capsys):
    write("books/a.txt", "A man sat on a mat. He saw a cat.\n\n" * 40)
    works(f"data/prepare corpus --corpus books --to out --vocab_size 20 --documents {documents}")
    next_line = capsys.readouterr().out.splitlines()[-1]
    assert next_line == f"next: python albert.py --pretrain --corpus out{flags}"


def offered(folder, name, content, place=""):
    """A line of the table for a file that `folder` offers from now on."""
    write(f"{folder}/{name}", content)
    return f"{name} {hashlib.sha256(content).hexdigest()} {place}\n"


def tar(*names):
    """A .tar.gz with empty files of these names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_set_is_made_once_of_files_and_archives_without_their_top_folder(tmp_path):
    there = tmp_path / "there"
    content = tar("top/test_batch.bin", "__MACOSX/top/b", "stray")
    lines = offered(there, "AX.tsv", b"index", "diagnostic/diagnostic.tsv")
    lines += offered(there, "binary.tar.gz", content, "binary")
    table = {"glue": (f"file://{there}/", lines)}
    folder = download("glue", Path(), table)
    assert files_of(folder) == {"diagnostic/diagnostic.tsv", "binary/test_batch.bin"}
    assert Path("archives/glue/AX.tsv").exists()  # it may be the user's
    shutil.rmtree(there)
    assert download("glue", Path(), table) == folder


def test_complete_files_are_kept_when_another_cannot_be_fetched(tmp_path):
    there = tmp_path / "there"
    good = offered(there, "a.json", b"a")
    both = good + offered(there, "b.json", b"b")

    def get(lines):
        return download("squad", Path(), {"squad": (f"file://{there}/", lines)})

    for wrong in ("gone.json 0", f"b.json {'0' * 64}"):
        with pytest.raises(UserError, match=wrong[:4]):
            get(good + wrong)
    (there / "a.json").unlink()  # it is not fetched again
    assert files_of(get(both)) == {"a.json", "b.json"}


@pytest.mark.parametrize("member", ["../a", "top/../../a"])
def test_archives_cannot_write_elsewhere(member):
    archive = write("a.tar.gz", tar(member))
    with contextlib.suppress(tarfile.TarError):
        put(archive, Path("to"))
    assert not Path("a").exists()
