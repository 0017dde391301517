"""How the pictures of tests/claims look, and those that are drawn from the JSON files that stand here.

A picture is a light card with dark ink, opaque, so that it reads alike on GitHub's light and dark pages. Colours have a
contrast of 3 and more with the card.
"""
import io
import re

CARD, INK = "#fcfcfa", "#24292f"
COLOURS = ("#0072b2", "#c8500a", "#00805c", "#a04f94", "#8a6d1d", "#b0124f", "#24292f", "#6b7280")
STYLE = {"figure.facecolor": CARD, "axes.facecolor": CARD, "savefig.facecolor": CARD, "legend.facecolor": CARD,
         "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": "#8c959f", "xtick.color": INK, "ytick.color": INK,
         "axes.grid": True, "grid.color": "#dcdfe3", "axes.axisbelow": True, "axes.spines.top": False,
         "axes.spines.right": False, "legend.frameon": False, "font.size": 10.5, "axes.titlesize": 11.5,
         "lines.linewidth": 1.8, "lines.markersize": 5}
MODELS = {  # one colour a model in all pictures: how its name begins -> place in COLOURS
    "op-nas": 0, "evolution": 2, "random": 7, "searched": 0, "autobert": 0, "autotinybert": 0, "albert": 0, "bert": 1,
    "rule": 1, "published": 0, "hybrid": 2, "convolution": 3, "linear": 0, "causal linear": 5, "softmax": 1,
    "relative softmax": 1, "plain softmax": 4, "mixed": 2, "mformer": 2, "all": 0, "attention": 2, "ffn": 3, "none": 1}
COUNTED = ("layer", "rank", "step", "evaluated candidates")  # how the label of an axis of whole numbers begins


def colour(name, place=0):
    """The colour of a model wherever it is drawn; for a name that MODELS does not have, that of its place."""
    known = [key for key in MODELS if re.match(rf"{key}\b", name.lower())]
    return COLOURS[MODELS[max(known, key=len)] if known else place % len(COLOURS)]


def draw_figure(path, draw):
    """Save what draw(axes) draws, in this style, with whole numbers where things are counted and a legend where several
    things have names; False, with a word, where matplotlib is missing."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from PIL import Image  # which matplotlib needs too
    except ImportError:
        print(f"no picture {path.name}: pip install matplotlib")
        return False
    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": matplotlib.cycler(color=COLOURS)}):
        figure, drawn = Figure(figsize=(7, 4.2), layout="constrained"), io.BytesIO()
        draw(figure.add_subplot())
        for axes in figure.axes:
            if axes.get_xlabel().startswith(COUNTED) and axes.get_xscale() == "linear":
                axes.xaxis.get_major_locator().set_params(integer=True)
        named = [axes for axes in figure.axes if axes.get_legend_handles_labels()[1]]
        if len(named) == 1 and not named[0].get_legend():
            named[0].legend(fontsize="small")
        figure.savefig(drawn, dpi=144)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)  # a third of the bytes
    return True


def draw_predictor(axes, record):
    """By how much each predictor errs on the shapes that it has not seen."""
    for place, (kind, guessed) in enumerate(record["predicted"].items()):
        errors = [100 * (guess / took - 1) for guess, took in zip(guessed, record["measured"])]
        axes.semilogx(record["measured"], errors, "os^"[place], markersize=4, color=COLOURS[place], label=kind)
    axes.axhline(0, color=INK, linewidth=1)
    axes.set(xlabel="measured, ms", ylabel="predicted too much, %",
             title=f"{len(record['measured'])} shapes that no predictor has seen")


def draw_length(axes, record):
    """Time of an attention's forward and backward against its tokens."""
    kind, tokens, time = (record["columns"].index(name) for name in ("type", "tokens", "forward and backward ms"))
    for place, (name, mark) in enumerate(zip(dict.fromkeys(row[kind] for row in record["rows"]), "s^oD")):
        own = [row for row in record["rows"] if row[kind] == name]
        axes.loglog([row[tokens] for row in own], [row[time] for row in own], marker=mark, label=name,
                    color=colour(name, place))
    lengths = sorted({row[tokens] for row in record["rows"]})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set(xlabel="tokens", ylabel="forward and backward, ms",
             title="One attention on one CPU thread: 8 heads of 64, batch 1")


def draw_hybrid(axes, record):
    """A bar a network, a dot a seed."""
    arms = list(record["seeds"][0])
    for place, arm in enumerate(arms):
        values = [seed[arm]["mean"] for seed in record["seeds"]]
        axes.barh(place, sum(values) / len(values), color=colour(arm, place), alpha=0.6)
        axes.plot(values, [place] * len(values), ".", color=INK)
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
    axes.set(xlabel="mean of CoLA (Matthews) and MRPC, QNLI, RTE (accuracy)", title="A bar a mean, a dot a seed")


PICTURES = {  # {paper: {result: draw(axes, its record)}}: drawn without measuring again
    "autobert_zero": {"hybrid": draw_hybrid}, "albert": {}, "mformer": {"length": draw_length},
    "autotinybert": {"predictor": draw_predictor}}
