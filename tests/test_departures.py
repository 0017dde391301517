"""Departures from the papers are numbered without gaps, and the manual lists them."""
import re

import pytest
from conftest import ROOT

from tests import departures


@pytest.mark.parametrize("name", departures.FILES)
def test_numbers_are_complete_and_unique(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    count = re.search(r"(\d+) departures", text)
    assert count, "the docstring says how many departures there are"
    numbers = [number for number, _ in departures.departures(text)]
    assert sorted(numbers) == [*range(1, int(count[1]) + 1)]


def test_the_manual_is_up_to_date():
    manual = (ROOT / "MANUAL.md").read_text(encoding="utf-8")
    assert departures.written(manual) == manual and departures.SECTION.search(manual)
