"""Draw the studies `replay` and `open_pairs` of AutoBERT-Zero for light and dark front pages:

    python -m tests.claims.search_plot    (pip install matplotlib)
"""
import matplotlib
from matplotlib.figure import Figure

from tests.claims.study import HERE, interval, read

COLOURS = {  # ink, then a colour per strategy
    "light": ("#24292f", "#c8500a", "#0072b2", "#00805c"),
    "dark": ("#e6edf3", "#ffa657", "#58a6ff", "#56d364"),
}
STRATEGIES = ("OP-NAS", "random search", "evolution")
JUDGED = {"OP-NAS": "found by OP-NAS", "random search": "found at random",
          "hybrid": "hybrid", "BERT": "BERT"}


def draw_curves(axes, record, colours, ink):
    """The true score of the five best networks against the number of candidates."""
    curves = record["curves"]["MNLI, up to 100"]
    for name, colour in zip(STRATEGIES, colours):
        counts = [int(count) for count in curves[name]]
        scores = [100 * five_best for _, five_best in curves[name].values()]
        axes.plot(counts, scores, "o-", color=colour, label=name, markersize=4)
    best = 100 * record["best of the table"]["MNLI"]
    axes.axhline(best, color=ink, linewidth=1, linestyle=":")
    axes.annotate("best network", (20, best), xytext=(0, 4), textcoords="offset points",
                  color=ink, fontsize="small")
    axes.set(xscale="log", ylim=(82, 100), xlabel="candidates",
             ylabel="accuracy of the five best, %", title="Closed space: 1,000 searches each")
    axes.set_xticks(counts, counts)
    axes.minorticks_off()
    axes.legend(frameon=False, loc="lower right")


def draw_judged(axes, values, colours, ink):
    """Each search or training, and the mean with its 95% interval."""
    shown = (*colours[:2], ink, ink)
    for row, (name, colour) in enumerate(zip(JUDGED, shown)):
        scores = [100 * value for value in values[name]]
        mean, low, high, n = interval(scores)
        axes.plot(scores, [row + 0.22] * n, ".", color=ink, alpha=0.5)
        axes.errorbar(mean, row, xerr=[[mean - low], [high - mean]], fmt="D", color=colour)
    axes.set_yticks(range(len(JUDGED)), JUDGED.values())
    axes.set(xlabel="accuracy, %", title=f"Open space: {n} searches each",
             ylim=(len(JUDGED) - 0.4, -0.6))


def draw(theme, folder=HERE / "results"):
    """Write search-THEME.svg into a folder. Returns its path."""
    results = HERE / "results" / "autobert_zero"
    ink, *colours = COLOURS[theme]
    style = {"text.color": ink, "axes.labelcolor": ink, "axes.edgecolor": ink,
             "xtick.color": ink, "ytick.color": ink, "axes.spines.top": False,
             "axes.spines.right": False, "svg.hashsalt": "search"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_curves(left, read(results / "replay.json"), colours, ink)
        draw_judged(right, read(results / "open_pairs.json")["values"], colours, ink)
        path = folder / f"search-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        return path


if __name__ == "__main__":
    for theme in COLOURS:
        print(draw(theme))
