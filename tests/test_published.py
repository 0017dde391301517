"""tests/claims/published.json: well-formed, agrees with itself, with the code, the claims and README, and is quoted."""
import ast
import functools
import importlib
import json
import re
import runpy
import sys

import pytest

from conftest import ROOT
from tests.claims import study

PAPERS = ("autobert_zero", "autotinybert", "albert", "mformer")
PATH = ROOT / "tests" / "claims" / "published.json"
ENTRIES = json.loads(PATH.read_text(encoding="utf-8"))
PLACE = re.compile(r"(Table (\d+|[A-F]\.\d)|Figure \d+|Sec\. \d+(\.\d+)*|App\. [A-F](\.\d+)?)")


def value_at(path):
    """What stands at module.name.name...: attributes, keys (which may hold dots), indices, a slice :N."""
    module, _, rest = path.partition(".")
    found = importlib.import_module(module)
    while rest:
        if isinstance(found, dict):
            name = max((key for key in found if f"{rest}.".startswith(f"{key}.")), key=len)
        else:
            name = rest.split(".")[0]
        rest = rest[len(name) + 1:]
        if isinstance(found, dict):
            found = found[name]
        elif isinstance(found, tuple):
            found = found[:int(name[1:])] if name[0] == ":" else found[int(name)]
        else:
            found = getattr(found, name)
    return list(found) if isinstance(found, tuple) else found


def names(entry):
    return entry["paper"], entry["table"], entry["row"]


def numbers_of(text):
    return re.findall(r"\d+(?:\.\d+)?", text)


def test_entries_are_well_formed():
    keys = ["paper", "table", "row", "value", "unit", "used"]
    for entry in ENTRIES:
        values = entry["value"] if isinstance(entry["value"], list) else [entry["value"]]
        assert list(entry) == keys and entry["paper"] in PAPERS and PLACE.fullmatch(entry["table"]), entry
        assert entry["row"] and values and isinstance(entry["unit"], str) and entry["used"], entry
        assert all(type(value) in (int, float) or re.fullmatch(r"\d+(-\d+){4}", value) for value in values), entry
    assert len(study.published_numbers()) == len(ENTRIES) > 200  # no two for one place
    assert [entry["paper"] for entry in ENTRIES] == sorted((entry["paper"] for entry in ENTRIES), key=PAPERS.index)
    assert PATH.read_text(encoding="utf-8").count("\n") == len(ENTRIES) + 2  # a line each


@pytest.mark.parametrize("paper", PAPERS)
def test_the_code_has_the_papers_numbers(paper):
    places = [(place, entry["value"]) for entry in ENTRIES for place in entry["used"] if place.startswith(f"{paper}.")]
    assert len(places) > 5 and [place for place, value in places if value_at(place) != value] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_the_claims_quote_what_is_listed_for_them(paper, monkeypatch):
    quoted = []
    monkeypatch.setattr(study, "published",
                        lambda *place: quoted.append(place) or study.published_numbers()[place]["value"])
    monkeypatch.delitem(sys.modules, f"tests.claims.{paper}", raising=False)  # run_module warns of what is there
    runpy.run_module(f"tests.claims.{paper}", run_name="quoted")
    listed = [names(entry) for entry in ENTRIES if f"tests/claims/{paper}.py" in entry["used"]]
    assert set(quoted) == set(listed)


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_type_no_number_of_a_paper(paper):
    """In what study.write gets as paper= no number is typed but those of tables and sections."""
    tree = ast.parse((ROOT / "tests" / "claims" / f"{paper}.py").read_text(encoding="utf-8"))
    said = [keyword.value for call in ast.walk(tree) if isinstance(call, ast.Call) for keyword in call.keywords
            if keyword.arg == "paper"]
    texts = [part.value for value in said for part in ast.walk(value) if isinstance(part, ast.Constant)
             if isinstance(part.value, str) and not re.fullmatch(r"\.\df", part.value)]
    places = re.compile(r"Tables? \d+(, \d+)*|Sec\. [\d.]+|CIFAR-10")
    typed = [text for text in texts if re.search(r"\d", places.sub("", text))]
    assert texts and not typed


@pytest.mark.parametrize("paper", PAPERS)
def test_the_list_of_claims_types_no_number_of_a_paper(paper):
    """What listed.py says for the paper are published.json's numbers; a row that is listed for it alone is quoted."""
    places = re.compile(r"WMT'14|CIFAR-10|BERT-base|SQuAD2\.0|S[1-5]\b|(of|for|at) E\b|F1")
    quoted = set()
    for claim in study.CLAIMS[paper]:
        for text in (claim.paper, claim.needs):
            quoted |= {(paper, *found) for found in study.PLACE.findall(text)}
            study.fill(text, paper)  # KeyError where there is no such number
        typed = study.PLACE.sub("", claim.paper)
        for size in ("v1.1", "v2.0", "of 64, 128, 256, 768", "E = 768 and 128", "of 1024, 2048, 4096, 6144",
                     "for 1, 3, 6, 12, 24, 48 layers", "of 12 and 24 layers", "batches of 128 on a V100", "V100 hours"):
            typed = typed.replace(size, "")
        assert not re.search(r"\d", places.sub("", typed)), (claim.name, typed)
    alone = [entry for entry in ENTRIES if entry["paper"] == paper and entry["used"] == ["tests/claims/listed.py"]]
    assert {names(entry) for entry in alone} <= quoted


def test_readme_quotes_what_is_listed_for_it():
    """Every "paper: X" and "X there" of the front page is an entry's value, of the paper in whose section it stands."""
    sections = re.split(r"^## ", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    by_title = dict(zip(PAPERS, ("AutoBERT-Zero\n", "AutoTinyBERT\n", "ALBERT\n", "mFormer\n")))
    for paper, title in by_title.items():
        text = next(section for section in sections if section.startswith(title)).replace("\n", " ")
        said = re.findall(r"paper(?:'s|:| says| itself says)? (\d[\d., and]*)|(\d[\d.]*)(?: M)? there", text)
        found = {number for pair in said for part in pair for number in numbers_of(part)}
        listed = {str(entry["value"]) for entry in ENTRIES if entry["paper"] == paper and "README.md" in entry["used"]}
        assert found == listed and found, paper


def test_tests_quote_what_is_listed_for_them():
    for entry in ENTRIES:
        for place in (place for place in entry["used"] if place.startswith("tests/test_")):
            assert f'"{entry["table"]}"' in (ROOT / place).read_text(encoding="utf-8"), entry
        known = ("README.md", "tests/")
        assert all(place.startswith((*known, *(f"{paper}." for paper in PAPERS))) for place in entry["used"])


def test_where_albert_contradicts_itself():
    albert = functools.partial(study.published, "albert")
    fast, slow = (albert("Table 2", f"{name} base, speed-up") for name in ("ALBERT", "BERT"))
    assert round(fast / slow, 2) == albert("Table 2", "ALBERT base, speed-up over BERT base, 5.6 / 4.7")
