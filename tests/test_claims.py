"""tests/claims: verdicts of made intervals, the page, and each study at its smallest."""
import importlib
import json

import pytest
from conftest import slow

from tests.claims import page, study
from tests.claims.study import Interval

ABOVE = (2, 1, 3, 3)  # mean, low, high, pairs
BELOW = (-2, -3, -1, 3)
AROUND = (0, -1, 1, 9)


@pytest.mark.parametrize("intervals, least, expected", [
    ([ABOVE], 0, "holds"),
    ([ABOVE], 1.5, "open"),
    ([ABOVE], 4, "opposite"),
    ([(2, 1, 3, 2)], 0, "open"),  # two pairs decide nothing
    ([ABOVE, AROUND], 0, "open"),
    ([ABOVE, BELOW, AROUND], 0, "mixed"),
])
def test_verdicts(intervals, least, expected):
    assert study.verdict([Interval(*each) for each in intervals], least) == expected


def test_the_page_is_what_the_results_say():
    assert (study.HERE / "README.md").read_text(encoding="utf-8") == page.page()


@pytest.mark.peers
def test_the_plot_of_the_front_page_is_what_the_results_say(tmp_path):
    search_plot = pytest.importorskip("tests.claims.search_plot")
    path = search_plot.draw("dark", tmp_path)
    assert path.read_text() == (study.HERE / "results" / path.name).read_text()


SEARCH = (
    "--steps 2 --length 16 --population 2 --rounds 1 --parents 1 --children 1 --finalists 1 "
    "--finalist_times 1 --train_examples 32 --finetune_epochs 1")
ALBERT = "--steps 2 --batch 2 --dev_examples 64 --train_examples 32 --finetune_epochs 1"
TINY = (
    "--steps 2 --further_steps 2 --latency_archs 6 --latency_rounds 1 --population 2 "
    "--generations 2 --winners 1 --train_examples 32 --finetune_epochs 1 --batch 8")
MIXTURE = (
    "--steps 2 --samples 24 --generations 1 --population 10 --finalists 2 --train_examples 64")


@pytest.mark.parametrize("names, flags", [
    ("autobert_zero counts", ""),
    ("albert parameters", ""),
    ("mformer counts", ""),
    slow("autobert_zero search again longer weights attention uniformity", SEARCH),
    slow("autobert_zero fidelity", SEARCH),
    slow("autobert_zero latency", ""),
    slow("autotinybert shape", TINY),
    slow("autotinybert ranking", TINY),
    slow("autotinybert distillation", TINY),
    slow("autotinybert latency", ""),
    slow("albert order", ALBERT),
    slow("albert sharing dropout", ALBERT),
    slow("mformer mixture", MIXTURE),
    slow("mformer translation", "--steps 2 --train_examples 64 --beam 1"),
    slow("mformer length", ""),
])
def test_studies_run_at_their_smallest(names, flags, tmp_path):
    """All pairs of arms that the claims compare are measured. Studies in one row share runs."""
    paper, *names = names.split()
    module = vars(importlib.import_module(f"tests.claims.{paper}"))
    for name in names:
        words = f"{name} --seeds 1 --results {tmp_path} --runs {tmp_path}/runs {flags}"
        record = study.main(paper, module, words.split())
        for claim in study.studies_of(module)[name].claims:
            pairs = [pair for pair in claim.pairs if not pair[0].endswith("GB")]
            assert len(record["intervals"][claim.name]) >= max(1, len(pairs))
        assert json.loads((tmp_path / f"{name}.json").read_text())["values"]
