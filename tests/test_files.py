"""common/files.py: fingerprints."""
import os

import pytest
from small_runs import write

from common import files


@pytest.mark.parametrize("position", [0, 40 << 20, (48 << 20) - 1])
def test_a_change_inside_a_large_file_changes_its_fingerprint(position):
    """Between the parts of a file of 48 MB that a sparse hash would read."""
    path = write("a.npz", bytes(48 << 20))
    before = files.fingerprints([path])
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(b"1")
    assert files.fingerprints([path]) != before


def test_of_a_huge_file_the_time_and_the_ends_count(monkeypatch):
    monkeypatch.setattr(files, "WHOLE", 100)
    monkeypatch.setattr(files, "PART", 10)
    path = write("a.txt", bytes(200))

    def fingerprint(position, time):
        write(path, bytes(position) + b"1" + bytes(199 - position))
        os.utime(path, ns=(time, time))
        return files.fingerprints([path])

    assert fingerprint(50, 1) == fingerprint(60, 1)
    different = {fingerprint(50, 1), fingerprint(5, 1), fingerprint(195, 1), fingerprint(50, 2)}
    assert len(different) == 4
