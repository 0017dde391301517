"""tests/claims: verdicts of hand-made intervals, the page, resuming, and each study at its smallest."""
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, slow

from tests.claims import albert, autobert_zero, autotinybert, mformer, page, study
from tests.claims.study import Claim, Interval

CLAIMS = ROOT / "tests" / "claims"
PAPERS = {"autobert_zero": autobert_zero, "autotinybert": autotinybert, "albert": albert, "mformer": mformer}


@pytest.mark.parametrize("intervals, least, expected", [
    ([(2, 1, 3, 3)], 0, "holds"),
    ([(2, 1, 3, 3)], 1.5, "open"),
    ([(2, 1, 3, 3)], 4, "opposite"),
    ([(-0.4, -0.45, -0.3, 3)], -0.5, "holds"),
    ([(0, -1, 1, 9)], 0, "open"),
    ([(2, 1, 3, 2)], 0, "open"),  # two pairs decide nothing
    ([(2, 2, 2, 0)], 0, "holds"),  # a count
    ([(2, 1, 3, 3), (2, 1, 3, 3)], 0, "holds"),
    ([(2, 1, 3, 3), (0, -1, 1, 3)], 0, "open"),
    ([(2, 1, 3, 3), (-2, -3, -1, 3), (0, -1, 1, 3)], 0, "mixed")])
def test_verdicts(intervals, least, expected):
    assert study.verdict([Interval(*each) for each in intervals], least) == expected


def test_intervals_are_paired_and_of_student():
    claim = Claim("name", "says", "paper", [("a", "b"), ("a", "not measured")])
    found = study.differences(claim, {"a": [3.0, 5.0, 4.0], "b": [1.0, 2.0, 3.0]})
    (label, measured), = found.items()
    assert label == "a 4.000, b 2.000" and measured.n == 3
    assert measured[:3] == pytest.approx((2, 2 - 4.303 / 3 ** 0.5, 2 + 4.303 / 3 ** 0.5))


def test_bootstrap_intervals():
    values = np.random.default_rng(0).normal(size=400)
    mean, low, high, n = study.bootstrap(np.mean, values)
    half = 1.96 * values.std() / 20
    assert n == 400 and mean == values.mean()
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.15 * half)
    assert study.bootstrap(study.kendall, range(30), range(30))[:3] == pytest.approx((1, 1, 1))
    assert study.kendall([1, 1, 1], [1, 2, 3]) == 0


def test_the_page_is_what_the_results_say():
    text = (CLAIMS / "README.md").read_text(encoding="utf-8")
    assert text == page.page()
    claims = [claim for module in PAPERS.values() for one in study.studies_of(vars(module)).values()
              for claim in one.claims]
    assert len({claim.name for claim in claims}) == len(claims) <= 32
    shown = set(re.findall(r"!\[.*?\]\((.*?)\)", text))
    assert shown == {path.relative_to(CLAIMS).as_posix() for path in CLAIMS.rglob("*.png")}


def test_a_study_resumes(tmp_path):
    """A finished run is skipped, a failed one is started again in its folder."""
    program = tmp_path / "program.py"
    program.write_text("import pathlib, sys\nout = pathlib.Path(sys.argv[-1])\n"
                       "out.mkdir(exist_ok=True)\nmark = out / 'begun'\n"
                       "(out / 'done.json' if mark.exists() or 'good' in sys.argv else mark).touch()\n")
    options = SimpleNamespace(runs=tmp_path / "runs", jobs=1, used=set())
    commands = {"one": [program, "good"], "two": [program, "bad"]}
    with pytest.raises(SystemExit, match="two.txt: status 0; the same command resumes"):
        study.run_all(options, commands)
    assert study.run_all(options, commands)["two"] == tmp_path / "runs" / "two"
    assert len((tmp_path / "runs" / "one.seconds").read_text().split()) == 1
    assert len((tmp_path / "runs" / "two.seconds").read_text().split()) == 2
    (tmp_path / "runs" / "one.seconds").write_text("3600.0\n")
    assert study.core_hours(options) == pytest.approx(1, abs=0.01)


def test_mean_cosine_of_known_states():
    assert autobert_zero.mean_cosine(torch.ones(1, 4, 3), torch.tensor([4])) == pytest.approx(1)
    apart_then_padding = torch.cat([torch.eye(4)[None], torch.full((1, 2, 4), 9.0)], 1)
    assert autobert_zero.mean_cosine(apart_then_padding, torch.tensor([4])) == pytest.approx(0, abs=1e-6)


def test_no_search_sees_what_judges_its_winner(demo, tmp_path):
    autobert_zero.hold_out(tmp_path)
    for name in autobert_zero.TASKS:
        lines = {split: set((ROOT / "data/demo/glue" / name / f"{split}.tsv").read_text().splitlines()[1:])
                 for split in ("train", "dev")}
        seen = {split: (tmp_path / name / f"{split}.tsv").read_text().splitlines() for split in lines}
        assert len(seen["dev"]) in (600, 601) and {*seen["train"][1:], *seen["dev"][1:]} <= lines["train"]


SEARCH = ("--steps 2 --length 16 --population 2 --rounds 1 --parents 1 --children 1 --finalists 1 "
          "--finalist_times 1 --train_examples 32 --finetune_epochs 1")
ALBERT = "--steps 2 --batch 2 --dev_examples 64 --train_examples 32 --finetune_epochs 1"
TINY = ("--steps 2 --further_steps 2 --latency_archs 6 --latency_rounds 1 --population 2 --generations 2 "
        "--winners 1 --train_examples 32 --finetune_epochs 1 --batch 8")


@pytest.mark.parametrize("names, flags", [
    ("autobert_zero counts", ""), ("albert parameters", ""), ("mformer counts", ""),
    slow("autobert_zero search weights attention uniformity", SEARCH),
    slow("autobert_zero fidelity", SEARCH), slow("autobert_zero latency", ""),
    slow("autotinybert shape", TINY), slow("autotinybert ranking", TINY),
    slow("autotinybert distillation", TINY), slow("autotinybert latency", ""),
    slow("albert order", ALBERT), slow("albert sharing dropout", ALBERT),
    slow("mformer mixture", "--steps 2 --samples 24 --generations 1 --population 10 --finalists 2 --train_examples 64"),
    slow("mformer translation", "--steps 2 --train_examples 64 --beam 1"), slow("mformer length", "")])
def test_studies_run_at_their_smallest(names, flags, tmp_path):
    """All pairs of arms that the claims compare are measured. Studies in one row share runs."""
    paper, *names = names.split()
    for name in names:
        words = f"{name} --seeds 1 --results {tmp_path} --runs {tmp_path / 'runs'} {flags}".split()
        record = study.main(paper, vars(PAPERS[paper]), words)
        for claim in study.studies_of(vars(PAPERS[paper]))[name].claims:
            pairs = [pair for pair in claim.pairs if not pair[0].endswith("GB")]
            assert len(record["intervals"][claim.name]) >= max(1, len(pairs))
        assert json.loads((tmp_path / f"{name}.json").read_text())["values"]
