"""Departures from the papers are numbered without gaps, and the manual lists them."""
import re

import pytest
from conftest import ROOT

from tests import departures


@pytest.mark.parametrize("name", departures.FILES)
def test_numbers_are_complete_and_unique(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    count = re.search(r"(\d+) departures", text)
    if not count:
        pytest.skip("lists its departures in the docstring")
    numbers = [number for number, _ in departures.departures(text)]
    assert sorted(numbers) == [*range(1, int(count[1]) + 1)]


def test_the_manual_is_up_to_date():
    manual = (ROOT / "MANUAL.md").read_text(encoding="utf-8")
    assert departures.written(manual) == manual and departures.SECTION.search(manual)


def test_a_departure_goes_on_in_the_comments_that_follow():
    text = "x = 1  # D2: one\n# D1*: two\n# lines\ny = 2\n# no departure\n"
    assert departures.departures(text) == [(2, "D2: one"), (1, "D1*: two lines")]
