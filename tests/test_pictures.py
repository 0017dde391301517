"""The pictures of tests/claims/: what is drawn, and, where matplotlib is installed, how the axes count."""
import json
import types
from unittest import mock

import pytest

from tests.claims import autobert_zero as claims
from tests.claims import study

SETTINGS = {"strategy": "op-nas", "no_weight_sharing": False, "alpha": 0.01, "ucb_unit": 100.0, "tasks": "MLM", "layers": 2}


@pytest.fixture
def searches(tmp_path):
    """Two run folders of a search with three candidates."""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        record = {"program": "autobert_zero", "action": "search", "settings": SETTINGS}
        (folder / "config.json").write_text(json.dumps(record))
        lines = [{"id": place, "round": 0, "parent": None, "arch": "conv3 | conv5", "score": score, "scores": {},
                  "diverged": False, "seconds": 1} for place, score in enumerate((0.2 + number, 0.1, 0.5 + number))]
        (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return types.SimpleNamespace(folders=[tmp_path / "0", tmp_path / "1"], flags=[])


def test_the_best_so_far_is_drawn_in_steps(searches, monkeypatch):
    drawn, axes = [], mock.MagicMock()
    axes.step.return_value = [mock.MagicMock()]
    monkeypatch.setattr(study, "write", lambda *table, draw, **others: drawn.append(draw))
    claims.search(searches)
    drawn[0](axes)
    (places, means), how = axes.step.call_args
    assert list(places) == [1, 2, 3] and means == pytest.approx([0.7, 0.7, 1.0]) and how["where"] == "post"
    assert axes.fill_between.call_args[1]["step"] == "post" and not axes.plot.called


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
