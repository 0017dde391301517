"""Departures from the papers are numbered in the order of the file and have a kind, and the pages
are up to date."""
import re

import pytest
from conftest import ROOT

from tests import departures


@pytest.mark.parametrize("name", departures.FILES)
def test_numbers_are_in_order_and_all_have_a_kind(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    count = re.search(r"(\d+) departures", text)
    assert count, "the docstring says how many departures there are"
    found = departures.departures(text)
    assert [number for number, *_ in found] == [*range(1, int(count[1]) + 1)]
    assert {kind for _, kind, _ in found} == {*departures.KINDS}


@pytest.mark.parametrize("page", departures.PAGES)
def test_the_pages_are_up_to_date(page):
    text, expected = departures.written(page)
    assert expected == text and departures.SECTION.search(text)
