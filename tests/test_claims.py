"""tests/claims: what published.json lists is in the code, the studies, the pages and README; the pictures."""
import functools
import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from conftest import ROOT

from tests.claims import pictures, study

CLAIMS = ROOT / "tests" / "claims"
PAPERS = ("autobert_zero", "autotinybert", "albert", "mformer")
ENTRIES = json.loads((CLAIMS / "published.json").read_text(encoding="utf-8"))
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


def test_entries_are_well_formed():
    for entry in ENTRIES:
        values = entry["value"] if isinstance(entry["value"], list) else [entry["value"]]
        assert list(entry) == ["paper", "table", "row", "value", "unit", "used"], entry
        assert entry["paper"] in PAPERS and PLACE.fullmatch(entry["table"]) and entry["row"] and entry["used"], entry
        assert all(type(value) in (int, float) or re.fullmatch(r"\d+(-\d+){4}", value) for value in values), entry
        for place in entry["used"]:
            assert place.startswith(("tests/", *(f"{paper}." for paper in PAPERS))), entry
            if place.startswith("tests/test_"):
                assert f'"{entry["table"]}"' in (ROOT / place).read_text(encoding="utf-8"), entry
    assert len(study.published_numbers()) == len(ENTRIES) > 200  # no two for one place


@pytest.mark.parametrize("paper", PAPERS)
def test_the_code_has_the_papers_numbers(paper):
    places = [(place, entry["value"]) for entry in ENTRIES for place in entry["used"] if place.startswith(f"{paper}.")]
    assert len(places) > 5 and [place for place, value in places if value_at(place) != value] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_the_studies_quote_what_is_listed_for_them(paper, monkeypatch):
    quoted = []
    monkeypatch.setattr(study, "published",
                        lambda *place: quoted.append(place) or study.published_numbers()[place]["value"])
    monkeypatch.delitem(sys.modules, f"tests.claims.{paper}", raising=False)  # run_module warns of what is there
    runpy.run_module(f"tests.claims.{paper}", run_name="quoted")
    assert {*quoted} == {names(entry) for entry in ENTRIES if f"tests/claims/{paper}.py" in entry["used"]}


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


def test_where_albert_contradicts_itself():
    albert = functools.partial(study.published, "albert")
    fast, slow = (albert("Table 2", f"{name} base, speed-up") for name in ("ALBERT", "BERT"))
    assert round(fast / slow, 2) == albert("Table 2", "ALBERT base, speed-up over BERT base, 5.6 / 4.7")


# --- pictures -----------------

def test_the_best_so_far_is_drawn_over_the_time_that_it_took():
    """A line a seed and search, of which the first alone has a name."""
    axes = mock.MagicMock()
    pictures.draw_searches(axes, {"searches": [{"OP-NAS": [[0.2, 60], [0.1, 30], [0.5, 60]]},
                                               {"OP-NAS": [[0.3, 60], [0.4, 60]]}]})
    lines = [(minutes, best, how["where"], how["label"]) for (minutes, best, _), how in axes.step.call_args_list]
    assert lines == [([1, 1.5, 2.5], [0.2, 0.2, 0.5], "post", "OP-NAS"), ([1, 2], [0.3, 0.4], "post", None)]


def test_pictures_belong_to_results_and_are_shown():
    shown = {path for page in (ROOT / "README.md", *CLAIMS.glob("*.md")) for path in re.findall(
        r"!\[.*?\]\((?:tests/claims/)?(.*?)\)", re.sub(r"<!--.*?-->", "", page.read_text()))}
    named = {(path.parent / name).relative_to(CLAIMS).as_posix() for path in CLAIMS.rglob("results/**/*.json")
             if (name := json.loads(path.read_text()).get("picture"))}
    assert shown == named == {path.relative_to(CLAIMS).as_posix() for path in CLAIMS.rglob("*.png")}


@pytest.mark.peers
def test_pictures_are_drawn_again_from_their_results(tmp_path):
    pytest.importorskip("matplotlib")
    for paper in PAPERS:
        claims, folder = importlib.import_module(f"tests.claims.{paper}").CLAIMS, tmp_path / paper
        folder.mkdir()
        for path in (CLAIMS / "results" / paper).glob("*.json"):
            (folder / path.name).write_text(path.read_text())
        study.main(paper, claims, ["redraw", "--results", str(folder)])
        wanted = {name for name, each in claims.items() if each.picture and (folder / f"{name}.json").exists()}
        assert {path.stem for path in folder.glob("*.png")} == wanted


# --- old results --------------

OF = {"simulation": "searches"} | dict.fromkeys(("counts", "parameters", "flops", "space"), "counts") | dict.fromkeys(
    ("latency", "predictor", "length", "networks"), "times")  # study: what it is of; every other one is trained


def git(*words):
    """The finished command; a checkout without its whole history skips the test."""
    def run(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if not shutil.which("git") or run("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs the whole history: git fetch --unshallow")
    return run(*words)


def comes_after(commit, earlier):
    return git("merge-base", "--is-ancestor", earlier, commit).returncode == 0


def test_no_result_is_older_than_the_last_commit_that_changed_it():
    """results/changes.json lists these commits; the figures of a single run name their own where last bits changed."""
    changes = json.loads((CLAIMS / "results" / "changes.json").read_text(encoding="utf-8"))["changes"]
    assert all(comes_after("HEAD", change["commit"]) and {*change["files"]} <= {*PAPERS} for change in changes)
    readme, old = (ROOT / "README.md").read_text(encoding="utf-8"), []
    for path in CLAIMS.glob("results/*/*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        for change in changes:
            if (path.parent.name not in change["files"] or OF.get(path.stem, "trained") not in change["of"]
                    or path.stem in change.get("but", ())):
                continue
            single = record.get("n", 0) <= 1 and "seeds" not in record and record["commit"][:7] not in readme
            if (change["kind"] == "results" or single) and not comes_after(record["commit"], change["commit"]):
                old.append((path.name, change))
    assert old == []


def test_commits_that_a_page_names_are_in_the_history():
    """Whoever wants to know what ran can look at it."""
    named = {commit for page in (ROOT / "README.md", *CLAIMS.glob("*.md")) for commit in re.findall(
        r"\b(?=[0-9a-f]*\d)(?=[0-9]*[a-f])[0-9a-f]{7}\b", page.read_text(encoding="utf-8"))}
    assert len(named) > 3 and [commit for commit in sorted(named) if not comes_after("HEAD", commit)] == []
