"""tests/claims: verdicts of made intervals, the page, and each study at its smallest."""
import dataclasses
import importlib
import json
import re
import shutil
import statistics
from pathlib import Path

import pytest
from conftest import slow

from tests.claims import (
    autobert_zero, compress, open_space, page, real_text, search_table, study)
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


def test_a_planned_study_is_not_measured(monkeypatch):
    shutil.copytree(study.HERE / "results", "results")
    Path("results/albert/order.json").unlink()
    monkeypatch.setattr(page, "HERE", Path())
    row, = [line for line in page.page().split("\n") if 'id="order"' in line]
    assert row.endswith("|  | not measured |")


def test_the_demo_and_the_front_page_say_how_often_the_search_won():
    facts = json.loads((study.HERE / "results/autobert_zero/demo.json").read_text())["facts"]
    counts = [facts[name]["above"] for name in ("BERT", "hybrid")]
    assert re.findall(r"\d+", autobert_zero.abz.DEMO_SEEDS) == list(map(str, counts))
    front = (study.ROOT / "README.md").read_text(encoding="utf-8")
    words = "one two three four five six seven eight nine ten".split()
    assert f"above BERT in {words[facts['BERT']['above'] - 1]}, tied in one and below in" in front
    assert facts["hybrid"] == {"above": 10, "tie": 0, "below": 0}
    assert facts["BERT"]["tie"] == facts["BERT"]["below"] == 1


def test_arms_of_the_compression_are_paired_by_limit_and_seed(monkeypatch):
    monkeypatch.setattr(compress, "read_shape", lambda bert: "6-384-1536-12-384")
    tasks = dict.fromkeys(compress.SPEEDUPS)
    starts = {(task, start, seed): start for task in tasks for seed in (1, 2)
              for start, _ in compress.ARMS.values()}
    shapes = {speedup: dict.fromkeys(compress.KINDS, f"4-{100 * speedup}-4-1-4")
              for speedup in compress.SPEEDUPS["SST-2"]}
    jobs = compress.planned("bert", tasks, starts, shapes, (1, 2))
    gains = {arm: number for number, arm in enumerate([*compress.ARMS, "random sample"])}
    scores = {}
    for key in jobs:
        kind, _, rest = key[1].partition(", ")
        limit, _, arm = rest.partition(", ")
        scores[key] = float(limit or 0) / 10 + key[-1] / 100 + gains.get(arm or kind, 0) / 1000
    times = {(key[2], int8): 1.0 for key in jobs for int8 in (False, True)}
    values = compress.report(scores, {}, times, shapes, (1, 2))["values"]
    for claim in compress.compress.claims:
        for one, other in claim.pairs:
            if other != "BERT's rule at its time":
                measured = [a - b for a, b in zip(values[one], values[other], strict=True)]
                gain = gains[one] - gains[other.removesuffix(", one seed")]
                assert measured == pytest.approx([gain / 10] * len(measured))


def test_the_front_page_has_the_numbers_of_the_compression():
    rows = json.loads((study.HERE / "results/autotinybert/compress.json").read_text())["table"]
    rows = {row["model"]: row for row in rows if row["task"] == "SST-2"}
    front = (study.ROOT / "README.md").read_text(encoding="utf-8")
    shown = {name: f"{statistics.mean(row['int8_scores']):.1f}% at {row['int8_ms']:.1f}"
             for name, row in rows.items() if "int8_scores" in row}
    searched = ", ".join(shown[f"searched, {limit}, found, distilled"] for limit in (1.6, 2, 3))
    first = ", ".join(shown[f"first {count} layers"] for count in (4, 3, 2))
    assert f"SST-2: whole {shown['whole']} ms; searched {searched}; first layers {first}" in front
    gaps = [statistics.mean(rows[f"searched, {limit}, found, distilled"]["int8_scores"])
            - statistics.mean(rows[f"first {count} layers"]["int8_scores"])
            for limit, count in compress.RULE.items()]
    assert f"is {min(gaps):.0f} to {max(gaps):.0f} points above first layers" in front


def measured_numbers(anchors):
    """The numbers of claims on the page, the means of their studies' arms, and the replays after
    20 candidates."""
    text = page.page()
    lines = [line for line in text.split("\n") for anchor in anchors if f'"{anchor}"' in line]
    if "not-decided" in anchors:
        lines.append(text.partition("## Not decided")[2])
    numbers = [float(number) for line in lines for number in re.findall(r"[\d.]*\d", line)]
    for paper in page.PAPERS:
        module = vars(importlib.import_module(f"tests.claims.{paper}"))
        for name, one in study.studies_of(module).items():
            if {claim.name for claim in one.claims} & {*anchors}:
                record = study.read(study.HERE / "results" / paper / f"{name}.json")
                numbers += [statistics.mean(each) for each in record["values"].values()]
                for curve in record.get("curves", {}).get("MNLI, up to 100", {}).values():
                    numbers += curve["20"]
    return numbers


def test_every_number_of_the_evidence_is_in_its_record():
    front = (study.ROOT / "README.md").read_text(encoding="utf-8")
    checked = 0
    for line in front.partition("## Evidence")[2].split("\n"):
        anchors = re.findall(r"tests/claims/README.md#([\w-]+)", line)
        if not anchors or "compress-shape" in anchors:  # has a test of its own
            continue
        _, _, here, *_ = line.split("|")
        numbers = measured_numbers(anchors)
        for shown in re.findall(r"\d+\.\d+", here):
            half = 0.5001 * 10 ** -len(shown.partition(".")[2])
            near = [number for number in numbers
                    if min(abs(number - float(shown)), abs(100 * number - float(shown))) < half]
            assert near, (shown, anchors)
            checked += 1
    assert checked > 20


def test_the_front_page_says_how_many_seeds_learned_the_order_of_days():
    values = [study.read(study.HERE / f"results/albert/{name}.json")["values"]["sop on SOP"]
              for name in ("order_days", "order_days_longer")]
    at_chance = [sum(value < 60 for value in each) for each in values]
    assert at_chance == [3, 1]
    front = (study.ROOT / "README.md").read_text(encoding="utf-8")
    assert "n = 9 (three at chance; with twice the steps, one)" in front


@pytest.mark.peers
def test_the_plot_of_the_front_page_is_what_the_results_say():
    search_plot = pytest.importorskip("tests.claims.search_plot")
    path = search_plot.draw("dark", Path())
    assert path.read_text() == (study.HERE / "results" / path.name).read_text()


ALBERT = "--steps 2 --batch 2 --dev_examples 64"
TINY = (
    "--steps 2 --further_steps 2 --latency_archs 6 --latency_rounds 1 --population 2 "
    "--generations 2 --winners 1 --train_examples 32 --finetune_epochs 1 --batch 8")
MIXTURE = (
    "--steps 2 --samples 24 --generations 1 --population 10 --finalists 2 --train_examples 64")


@pytest.mark.parametrize("names, flags", [
    ("autobert_zero counts", ""),
    ("albert parameters", ""),
    ("mformer counts", ""),
    slow("autobert_zero latency", ""),
    slow("autotinybert shape", TINY),
    slow("autotinybert distillation", TINY),
    slow("autotinybert latency", ""),
    slow("albert order", ALBERT),
    slow("albert order_days order_days_longer", ALBERT),
    slow("albert order_novels", ALBERT),
    slow("albert sharing", ALBERT),
    slow("albert dropout", ALBERT),
    slow("mformer mixture", MIXTURE),
    slow("mformer translation", "--steps 2 --train_examples 64 --beam 1"),
    slow("mformer length", ""),
])
def test_studies_run_at_their_smallest(names, flags):
    """Measures all pairs of arms of the claims. Studies of one row use the same runs."""
    paper, *names = names.split()
    module = vars(importlib.import_module(f"tests.claims.{paper}"))
    for name in names:
        words = f"{name} --seeds 1 --results {Path().resolve()} --runs runs {flags}"
        record = study.main(paper, module, words.split())
        assert "--results path/to/" in record["command"]  # no folder of this machine
        for claim in study.studies_of(module)[name].claims:
            pairs = [pair for pair in claim.pairs if not pair[0].endswith("GB")]
            assert len(record["intervals"][claim.name]) >= max(1, len(pairs))
        assert json.loads(Path(f"{name}.json").read_text())["values"]


@pytest.mark.slow
def test_studies_of_the_open_space_run_at_their_smallest(monkeypatch):
    settings = search_table.settings

    def smallest(seed, glue=""):
        return dataclasses.replace(settings(seed, glue), steps=2, warm_times=1)

    monkeypatch.setattr(search_table, "settings", smallest)
    monkeypatch.setattr(search_table, "TASKS", {"MNLI": 64, "SST-2": 64, "STS-B": 64})
    small = {"population": 2, "rounds": 1, "parents": 1, "children": 1}
    for name, value in {"PAIRS": 2, "BEST": 2, "TIMES": 2, "SEARCH": small}.items():
        monkeypatch.setattr(open_space, name, value)
    monkeypatch.setattr(real_text, "NETWORKS", 2)
    monkeypatch.setattr(real_text, "RATES", (1e-3,))
    monkeypatch.setattr(real_text, "TRAINING", [*real_text.TRAINING, "--steps", 2])
    for name in ("open_pairs", "open_parts", "real_text"):
        words = f"{name} --jobs 2 --results . --runs runs"
        record = study.main("autobert_zero", vars(autobert_zero), words.split())
        assert all(len(scores) == 2 for scores in record["values"].values())
        assert record["intervals"].keys() == {
            claim.name for claim in vars(autobert_zero)[name].claims}
    histories = [search_table.read_lines(Path(f"runs/open/searches/{strategy}-200.jsonl"))
                 for strategy in open_space.STRATEGIES]
    assert [len(history) for history in histories] == [3, 3]
    first = [[line["arch"] for line in history[:2]] for history in histories]
    assert first[0] == first[1]  # the searches of a pair begin alike


def test_parts_of_a_network_are_replaced_as_in_table_5():
    bert = open_space.BASELINES["BERT"].split(" | ")[0]
    arch = "softmax(Q @ K.T) @ V | conv31"
    both = [open_space.with_attention(arch, replacement)
            for replacement in (open_space.abz.parse_formula(bert), None)]
    assert both == [f"{bert} | conv31", "conv31 | conv31"]
    assert open_space.with_attention(f"{bert} | {bert}", None) == "conv3 | conv3"
