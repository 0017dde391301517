"""The pictures of tests/claims/: their sizes and colours, what is drawn, and, where matplotlib is installed, how axes
count and that a picture comes out of the results that stand here."""
import json
import re
import struct
from unittest import mock

import pytest
from conftest import ROOT

from tests.claims import pictures, study

DRAWN = sorted((ROOT / "tests" / "claims").rglob("*.png"))


def test_the_best_so_far_is_drawn_in_steps():
    """A line a seed and search, of which the first alone has a name."""
    axes = mock.MagicMock()
    pictures.draw_searches(axes, {"search_scores": [{"OP-NAS": [0.2, 0.1, 0.5]}, {"OP-NAS": [0.3, 0.4, 0.1]}]})
    lines = [(list(places), best, how["where"], how["label"]) for (places, best), how in axes.step.call_args_list]
    assert lines == [([1, 2, 3], [0.2, 0.2, 0.5], "post", "OP-NAS"), ([1, 2, 3], [0.3, 0.4, 0.4], "post", None)]


def test_columns_are_drawn_by_group():
    axes, rows = mock.MagicMock(), [["a", 1, 5, "x"], ["b", 2, 6, "y"], ["a", 3, 7, "z"]]
    record = {"columns": ["kind", "n", "value", "name"], "rows": rows}
    pictures.of_columns("n", "value", "kind", named="name")(axes, record)
    assert [(call.args, call.kwargs["label"]) for call in axes.plot.call_args_list] == [
        (([1, 3], [5, 7]), "a"), (([2], [6]), "b")]
    assert [call.args[0] for call in axes.annotate.call_args_list] == ["x", "z", "y"]


@pytest.mark.peers
def test_layers_are_counted_in_whole_numbers(tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib.figure", reason="draws: pip install matplotlib")
    figures, real = [], matplotlib.Figure
    monkeypatch.setattr(matplotlib, "Figure", lambda **how: figures.append(real(**how)) or figures[-1])
    for label, whole in (("layer (0: embeddings)", True), ("score", False)):
        def draw(axes, label=label):
            axes.plot([0, 1, 2], [1, 2, 3])
            axes.set(xlabel=label)
        assert study.draw_figure(tmp_path / "x.png", draw)
        ticks = figures[-1].axes[0].get_xticks()
        assert all(tick == int(tick) for tick in ticks) == whole


def contrast(one, other):
    """Of two colours as #rrggbb, after WCAG 2: 1 to 21; 3 is asked of lines, 4.5 of text."""
    def light(colour):
        parts = [int(colour[place:place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_colours_can_be_read_on_the_card():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast(pictures.INK, pictures.CARD) > 12
    assert min(contrast(each, pictures.CARD) for each in pictures.COLOURS) > 3
    assert len(set(pictures.COLOURS)) == len(pictures.COLOURS)


def test_a_model_has_one_colour():
    assert pictures.colour("BERT, 4 times the updates", 3) == pictures.colour("bert") != pictures.colour("hybrid")
    assert pictures.colour("causal linear") != pictures.colour("linear") == pictures.colour("Linear")
    assert pictures.colour("something", 9) == pictures.COLOURS[1] != pictures.colour("something", 2)


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.relative_to(DRAWN[0].parents[2]).as_posix())
def test_every_picture_is_small_and_belongs_to_a_result(path):
    content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) < 60_000
    assert 600 <= width <= 1400 and 300 <= height <= 1000
    assert json.loads(path.with_suffix(".json").read_text())["picture"] == path.name


def test_pages_and_results_name_pictures_that_are_there():
    pages = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "tests" / "claims").glob("*.md"))]
    shown = {path for text in pages
             for path in re.findall(r"!\[.*?\]\((?:tests/claims/)?(.*?)\)", re.sub(r"<!--.*?-->", "", text))}
    results = ROOT / "tests" / "claims" / "results"
    named = {(path.parent / name).relative_to(results.parent).as_posix() for path in results.rglob("*.json")
             if (name := json.loads(path.read_text()).get("picture"))}
    assert shown == named == {path.relative_to(results.parent).as_posix() for path in DRAWN}


@pytest.mark.peers
def test_pictures_are_drawn_again_from_their_results(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="draws: pip install matplotlib")
    pytest.importorskip("matplotlib", reason="draws: pip install matplotlib")
    for paper in pictures.PICTURES:
        folder = tmp_path / paper
        folder.mkdir()
        for path in (ROOT / "tests" / "claims" / "results" / paper).glob("*.json"):
            (folder / path.name).write_text(path.read_text())
        study.main(paper, {}, ["redraw", "--results", str(folder)])
        drawn = list(folder.glob("*.png"))
        assert len(drawn) == sum((folder / f"{name}.json").exists() for name in pictures.PICTURES[paper])
        for path in drawn:
            corner = image.open(path).convert("RGBA").getpixel((0, 0))
            assert path.stat().st_size < 60_000 and corner[3] == 255 and min(corner[:3]) > 240  # opaque and light
