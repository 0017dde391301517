"""Draw a finished search of autobert_zero.py for the front page, for light and dark pages:

    python -m tests.claims.search_plot runs/autobert_zero-search-demo    (pip install matplotlib)
"""
import itertools
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from common.checkpoint import read_json, read_jsonl

HERE = Path(__file__).parent / "results"
COLOURS = {"light": ("#24292f", "#0072b2", "#c8500a"), "dark": ("#e6edf3", "#58a6ff", "#ffa657")}


def draw_candidates(axes, history, colour, accent):
    """The score of each candidate, and the best so far."""
    scores = [100 * line["score"] for line in history]
    axes.plot(scores, "o", color=colour, alpha=0.7, label="a candidate")
    axes.step(range(len(scores)), list(itertools.accumulate(scores, max)), color=accent,
              where="post", label="best so far")
    axes.set(xlabel="candidate", ylabel="score in the search, %", title="The search")
    children = next(line["id"] for line in history if line["parent"] is not None)
    axes.axvline(children - 0.5, color="gray", linestyle="--", linewidth=1)
    axes.text(children - 0.3, 0.3, "children of the best", color="gray",
              transform=axes.get_xaxis_transform())
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def draw_comparison(axes, best, colour, accent):
    """The best network and the baselines, trained alike, with two standard errors."""
    rows = {name: each["score"] for name, each in best["baselines"].items()}
    chance = 100 * rows.pop("majority")
    rows = {"found network": best["score"], **rows}
    for row, (name, score) in enumerate(rows.items()):
        axes.errorbar(100 * score, row, xerr=200 * best["standard_error"], fmt="o",
                      color=colour if row else accent)
    axes.axvline(chance, color="gray", linestyle="--", linewidth=1)
    axes.text(chance, len(rows) - 0.55, " majority", color="gray")
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="score when trained longer, %", ylim=(len(rows) - 0.4, -0.6),
             title="Against hand-designed networks")


def draw(run, theme):
    """Write search-THEME.svg of a run folder."""
    ink, colour, accent = COLOURS[theme]
    style = {"text.color": ink, "axes.labelcolor": ink, "axes.edgecolor": ink,
             "xtick.color": ink, "ytick.color": ink, "axes.spines.top": False,
             "axes.spines.right": False, "svg.hashsalt": "search"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 3), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        draw_candidates(left, read_jsonl(run / "history.jsonl"), colour, accent)
        draw_comparison(right, read_json(run / "best.json"), colour, accent)
        path = HERE / f"search-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        print(path)


if __name__ == "__main__":
    for theme in COLOURS:
        draw(Path(sys.argv[1]), theme)
