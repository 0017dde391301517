"""The pictures of tests/claims: how they look, and how each is drawn from the JSON record of its result.

A picture is a light card with dark ink, opaque, so that it reads alike on GitHub's light and dark pages. Colours have a
contrast of 3 and more with the card.
"""
import io
import itertools
import re
import statistics

CARD, INK = "#fcfcfa", "#24292f"
COLOURS = ("#0072b2", "#c8500a", "#00805c", "#a04f94", "#8a6d1d", "#b0124f", "#24292f", "#6b7280")
STYLE = {"figure.facecolor": CARD, "axes.facecolor": CARD, "savefig.facecolor": CARD, "legend.facecolor": CARD,
         "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": "#8c959f", "xtick.color": INK, "ytick.color": INK,
         "axes.grid": True, "grid.color": "#dcdfe3", "axes.axisbelow": True, "axes.spines.top": False,
         "axes.spines.right": False, "legend.frameon": False, "font.size": 10.5, "axes.titlesize": 11.5,
         "lines.linewidth": 1.8, "lines.markersize": 5}
MARKERS = "os^Dv"
MODELS = {  # one colour a model in all pictures: how its name begins -> place in COLOURS
    "op-nas": 0, "evolution": 2, "random": 7, "bert": 1, "published": 0, "hybrid": 2, "convolution": 3, "linear": 0,
    "causal linear": 5, "relative softmax": 1, "plain softmax": 4}
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


def of_columns(x, y, by, named=None, logarithmic=False, **labels):
    """A function that draws two columns of a record's table against each other: markers of one colour for each value of
    the column `by`, with what the column `named` says beside them, joined by lines where the axes are logarithmic."""
    def draw(axes, record):
        across, up, group = (record["columns"].index(name) for name in (x, y, by))
        for place, name in enumerate(dict.fromkeys(row[group] for row in record["rows"])):
            own = [row for row in record["rows"] if row[group] == name]
            axes.plot([row[across] for row in own], [row[up] for row in own], label=name, color=colour(name, place),
                      marker=MARKERS[place % len(MARKERS)], linestyle="-" if logarithmic else "")
            for row in own if named else []:
                axes.annotate(row[record["columns"].index(named)], (row[across], row[up]), fontsize="small")
        if logarithmic:
            marks = sorted({row[across] for row in record["rows"]})
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(marks, [f"{mark:,}" for mark in marks])
            axes.minorticks_off()
        axes.set(**{"xlabel": x, "ylabel": y, **labels})
    return draw


def draw_networks(axes, record):
    """A bar a network, a dot a seed."""
    arms = list(record["seeds"][0])
    for place, arm in enumerate(arms):
        values = [seed[arm]["mean"] for seed in record["seeds"]]
        axes.barh(place, statistics.mean(values), color=colour(arm, place), alpha=0.6)
        axes.plot(values, [place] * len(values), ".", color=INK)
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
    axes.set(xlabel="mean of CoLA (Matthews), MRPC, QNLI, RTE", title="A bar a mean, a dot a seed")


def draw_searches(axes, record):
    """Figure 6 of AutoBERT-Zero: the best score so far of each search, a line a seed and a dot a candidate."""
    for place, name in enumerate(record["searches"][0]):
        for number, candidates in enumerate(seed[name] for seed in record["searches"]):
            scores, seconds = zip(*candidates)
            axes.step([total / 60 for total in itertools.accumulate(seconds)], list(itertools.accumulate(scores, max)),
                      ".-", where="post", color=colour(name, place), label=None if number else name)
    axes.set(xlabel="core-minutes", ylabel="best score so far", title="A line a search, a dot a candidate")


def draw_fidelity(axes, record):
    """Figure 8 of AutoBERT-Zero: scores in the search against those of full training."""
    axes.plot([100 * row[1] for row in record["rows"]], [100 * row[-1] for row in record["rows"]], "o")
    axes.set(xlabel="score in the search, %", ylabel="mean of four tasks, fully trained, %",
             title=f"Kendall's tau {next(iter(record['differences'].values()))[0]:.2f}")


def draw_uniformity(axes, record):
    """Figure 5 of AutoBERT-Zero: two curves a run, in its colour."""
    for place, name in enumerate(record["columns"][1:]):
        axes.plot([row[0] for row in record["rows"]], [row[1 + place] for row in record["rows"]], marker="o",
                  color=COLOURS[place // 2], linestyle="--" if name.startswith("cosine") else "-", label=name)
    axes.set(xlabel="layer (0: embeddings)", ylabel="relative residual, mean cosine",
             title=f"Token uniformity on {record['task']}")


def draw_speedups(axes, record):
    """Each model's measured speed-up against the published one, beside the line on which they agree."""
    families = {"AutoTinyBERT": "searched", "BERT": "BERT's rule (BERT-S)", "PF": "Turc et al. (PF)"}
    rows = record["rows"][1:]  # without BERT-base itself
    for place, (family, label) in enumerate(families.items()):
        for distilled in (False, True):
            own = [row for row in rows if row[0].split("-")[0] == family and ("KD" in row[0]) == distilled]
            if own:
                axes.scatter([row[4] for row in own], [row[3] for row in own], marker=MARKERS[place],
                             edgecolors=COLOURS[place], facecolors="none" if distilled else COLOURS[place],
                             label=label + ", distillation" * distilled)
    least, most = 0.9 * min(min(row[3:5]) for row in rows), 1.1 * max(max(row[3:5]) for row in rows)
    axes.plot([1, most], [1, most], color="gray", linewidth=1, label="as published")
    axes.set(xscale="log", yscale="log", xlabel="published speed-up over BERT-base (times)",
             ylabel="measured here (times)", title="One CPU thread, a sequence of 128 tokens")
    axes.minorticks_off()
    marks = [mark for mark in (1, 2, 3, 5, 7, 10, 15, 20, 30, 40) if mark < most]
    axes.set_xticks(marks, marks)
    axes.set_yticks(marks, marks)
    axes.set(xlim=(least, most), ylim=(least, most))
    axes.legend(fontsize=8)


def draw_ranking(axes, record):
    """Figure 4 of AutoTinyBERT: one-shot scores against those of models trained alone, a colour a variant."""
    scores = {tuple(key): score for *key, score in record["scores"]}
    for place, label in enumerate(label for label in record["pairwise"] if label != "stand-alone"):
        own = [(seed, arch) for seed, kind, arch in scores if kind == label]
        axes.plot([scores[seed, "stand-alone", arch] for seed, arch in own],
                  [scores[seed, label, arch] for seed, arch in own], MARKERS[place % len(MARKERS)], label=label)
    axes.set(xlabel="stand-alone", ylabel="one-shot", title="Figure 4")


def draw_shapes(axes, record):
    """What the searched shape gains over the rule's and over a random search's, against the limit: means, intervals."""
    limits = dict.fromkeys(row[0] for row in record["rows"])
    for place, kind in enumerate(("rule", "random search")):
        found = [record["differences"][f"as fast as {limit}: {kind} - searched, nats"] for limit in limits]
        ends = [[gap[0] - (gap[1] or gap[0]) for gap in found], [(gap[2] or gap[0]) - gap[0] for gap in found]]
        axes.errorbar([record["milliseconds"][limit] for limit in limits], [gap[0] for gap in found], ends,
                      marker=MARKERS[place], capsize=4, linestyle=":", label=f"over {kind}")
    axes.axhline(0, color=COLOURS[-1], linewidth=1)
    axes.set(xlabel="limit: milliseconds a sequence of encoder and pooler", ylabel="loss less that of the searched "
             "shape, nats", title="What a search for a shape gains; 95% intervals over seeds")


def draw_sharing(axes, record):
    """Masked words against E: a line a sharing, a dot a seed."""
    lines = {}
    for name, values in record["seeds"].items():
        sharing, _, E = name.partition(" E=")
        lines.setdefault(sharing, {})[int(E)] = [100 * value for value in values]
    for place, (sharing, words) in enumerate(lines.items()):
        axes.plot(list(words), [statistics.mean(values) for values in words.values()], marker=MARKERS[place],
                  color=COLOURS[place], label=sharing)
        axes.plot([E for E in words for _ in words[E]], sum(words.values(), []), ".", color=COLOURS[place], alpha=0.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(words), [f"{E}" + " = H" * (E == max(words)) for E in words])
    axes.set(xlabel="E, dimensions of an embedding", ylabel="masked words found, %", title="A dot a seed, lines: means")


def draw_layers(axes, record):
    """Figure 1 of ALBERT: the angle between each layer's input and its output, means over seeds."""
    for place, (name, *degrees, _) in enumerate(record["rows"]):
        axes.plot(range(1, len(degrees) + 1), [*map(float, degrees)], color=COLOURS[place], label=name)
    axes.set(xlabel="layer", ylabel="angle of input and output, degrees", ylim=(0, None))


def draw_mixed(axes, record):
    """Accuracy against the time of a picture, a dot a seed; roles of one architecture share their dots."""
    for name in dict.fromkeys(record["same"].values()):
        accuracies = [run["accuracy"] for run in record["runs"][name]]
        axes.plot([statistics.median(record["ms"][name])] * len(accuracies), accuracies, "o", alpha=0.8,
                  label=" = ".join(role for role, same in record["same"].items() if same == name))
    axes.set(xlabel="ms of a picture", ylabel="test accuracy", title="A dot a seed")
