"""Draw the study `again` of AutoBERT-Zero for the front page, for light and dark pages:

    python -m tests.claims.search_plot    (pip install matplotlib)
"""
import statistics

import matplotlib
from matplotlib.figure import Figure

from tests.claims.study import HERE, interval, read

COLOURS = {"light": ("#24292f", "#0072b2", "#c8500a"), "dark": ("#e6edf3", "#58a6ff", "#ffa657")}
ROUNDS = {"8 random": (0, 8), "round 1": (8, 12), "round 2": (12, 16), "round 3": (16, 20)}
JUDGED = ("OP-NAS", "random search", "BERT", "hybrid")


def draw_rounds(axes, scores, colours):
    """The mean score of the candidates of each round, with its standard error over the seeds."""
    for (name, searches), colour in zip(scores.items(), colours):
        means = []
        errors = []
        for first, last in ROUNDS.values():
            seeds = [100 * statistics.mean(each[first:last]) for each in searches]
            means.append(statistics.mean(seeds))
            errors.append(statistics.stdev(seeds) / len(seeds) ** 0.5)
        axes.errorbar(list(ROUNDS), means, errors, fmt="o-", capsize=3, color=colour, label=name)
    axes.set(ylabel="mean score of candidates, %")
    axes.set_title(f"{len(searches)} searches of 20 candidates")
    axes.legend(frameon=False)


def draw_judged(axes, values, accent, colour, ink):
    """Each seed, and the mean with its 95% interval."""
    for row, name in enumerate(JUDGED):
        scores = [100 * value for value in values[name]]
        mean, low, high, _ = interval(scores)
        shown = colour if row else accent
        axes.plot(scores, [row + 0.22] * len(scores), ".", color=ink, alpha=0.5)
        axes.errorbar(mean, row, xerr=[[mean - low], [high - mean]], fmt="D", color=shown)
    axes.set_yticks(range(len(JUDGED)), ["found by OP-NAS", "found at random", *JUDGED[2:]])
    axes.set(xlabel="accuracy on three tasks, %", title="Trained from scratch",
             ylim=(len(JUDGED) - 0.4, -0.6))


def draw(theme, folder=HERE / "results"):
    """Write search-THEME.svg into a folder; returns its path."""
    record = read(HERE / "results" / "autobert_zero" / "again.json")
    ink, colour, accent = COLOURS[theme]
    style = {"text.color": ink, "axes.labelcolor": ink, "axes.edgecolor": ink,
             "xtick.color": ink, "ytick.color": ink, "axes.spines.top": False,
             "axes.spines.right": False, "svg.hashsalt": "search"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_rounds(left, record["scores"], (accent, colour))
        draw_judged(right, record["values"], accent, colour, ink)
        path = folder / f"search-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        return path


if __name__ == "__main__":
    for theme in COLOURS:
        print(draw(theme))
