"""The pictures of the studies, drawn from their records: dots per seed, or lines."""
import statistics

CARD = "#fcfcfa"  # opaque, for light and dark pages
INK = "#24292f"
COLOURS = ("#0072b2", "#c8500a", "#00805c", "#a04f94", "#8a6d1d", "#b0124f", "#24292f", "#6b7280")
STYLE = {
    "figure.facecolor": CARD,
    "axes.facecolor": CARD,
    "savefig.facecolor": CARD,
    "text.color": INK,
    "axes.grid": True,
    "grid.color": "#dcdfe3",
    "legend.frameon": False,
    "legend.fontsize": "small",
}


def draw(path, picture, record):
    """Draw a picture of a record if matplotlib is installed."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return print(f"no picture {path.name}: pip install matplotlib")
    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": matplotlib.cycler(color=COLOURS)}):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        picture(figure.add_subplot(), record)
        figure.savefig(path, dpi=110)


def dots(label):
    """A picture of record["values"]. A diamond is the mean of an arm, a dot is a seed."""
    def picture(axes, record):
        arms = record["values"]
        for row, values in enumerate(arms.values()):
            axes.plot(statistics.mean(values), row, "D", color=COLOURS[1])
            axes.plot(values, [row] * len(values), ".", color=INK)
        axes.set_yticks(range(len(arms)), arms)
        axes.invert_yaxis()
        axes.set_xlabel(f"{label} (diamond: mean, dot: seed)")
    return picture


def lines(x, y, marker="o-", scale="linear", diagonal=False):
    """A picture of record["lines"], {name: [[x, y], ...]}.

    A name is "NAME" or "NAME, seed". Lines of one NAME have the same colour, and only the first is
    in the legend.
    """
    def picture(axes, record):
        named = {}
        for name, points in record["lines"].items():
            group = name.split(", ")[0]
            label = group if group not in named else None
            colour = named.setdefault(group, COLOURS[len(named) % len(COLOURS)])
            axes.plot(*zip(*points), marker, color=colour, label=label, markersize=4)
        if diagonal:
            axes.axline((1, 1), slope=1, color="gray", linewidth=1)
        axes.set(xlabel=x, ylabel=y, xscale=scale, yscale=scale)
        axes.legend()
    return picture
