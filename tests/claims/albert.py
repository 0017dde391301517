"""What ALBERT's paper claims, re-made: python -m tests.claims.albert NAME ... (study.py says how).

Flags that are no study's belong to albert.py: --init, --preset, --corpus, --length and so on.

The commands of the older tables (old-*.json) are those of their commits. Since then --lr is the rate of 4,096 sequences
(5e-3 at --batch 32 is 0.0566 now), --warmup a share of the steps, --embedding 0 what E = H was (no mapping),
--train_rows the first rows of GLUE and SQuAD instead of evenly spaced ones, SQuAD's windows of a short
--finetune_length overlap by two thirds, --eval_every counts updates of a fine-tuning, MNLI always starts RTE, STS-B and
MRPC, and a task's folder holds its median run, not its best. Segments are whole sentences with no gap between them
(they were moved, and text fell out between), which changes what all those runs have read.
"""
import dataclasses
import functools
import statistics
import time

import torch
import torch.nn.functional as F

import albert
from common import cli
from common.distributed import autocast, launch, pick_device, seed_everything
from data.inputs import open_run
from tests.claims import study

paper = functools.partial(study.published, "albert")
SHARES = {"all-shared": "all", "shared-attention": "attention", "shared-FFN": "ffn", "not-shared": "none"}
CONFIGURATIONS = (  # (table, configuration, settings)
    ("Table 1", "BERT base", albert.PRESETS["bert-base"]),
    ("Table 1", "BERT large", albert.PRESETS["bert-large"]),
    *(("Table 1", f"ALBERT {name}", albert.PRESETS[name]) for name in ("base", "large", "xlarge", "xxlarge")),
    *(("Table 3", f"{name} E={E}", dict(embedding=E % 768, share=SHARES[name]))  # E = H is 0: no mapping (D9)
      for name in ("not-shared", "all-shared") for E in (64, 128, 256, 768)),
    *(("Table 4", f"{name} E={E}", dict(embedding=E % 768, share=share))
      for E in (768, 128) for name, share in SHARES.items()),
    ("Table 12", "H=4096, 3 layers", dict(albert.PRESETS["xxlarge"], layers=3)),
    ("Table 12", "H=6144, 3 layers", dict(layers=3, hidden=6144, heads=96, ffn=24576)))
PUBLISHED = tuple((*row, paper(row[0], f"{row[1]}, parameters")) for row in CONFIGURATIONS)  # and millions
XXLARGE = [paper(table, "ALBERT xxlarge, parameters") for table in ("Table 1", "Sec. 3.2")] + [
    paper("Table 12", "H=4096, 3 layers, parameters")]  # three numbers for one
TABLE2 = {name: paper("Table 2", f"{title}, speed-up") for name, title in (  # of training, over BERT large
    ("bert-base", "BERT base"), ("bert-large", "BERT large"), ("base", "ALBERT base"), ("large", "ALBERT large"),
    ("xlarge", "ALBERT xlarge"), ("xxlarge", "ALBERT xxlarge"))}
LAYERS = paper("Figure 1", "layers of BERT-large and ALBERT-large")


def read_flags(options):
    """The Config of albert.py's flags, as its --pretrain would read them, and what --init holds."""
    cfg = cli.parse(albert.Config, albert.PRESETS, {"pretrain": (None, "")}, "", ["--pretrain", *options.flags])[2]
    source = albert.read_source(cfg)
    if cfg.length > cfg.positions:
        raise cli.UserError(f"--length {cfg.length}: the model has {cfg.positions} positions (--positions)")
    return cfg, source


def parameters(options):
    """Tables 1, 3, 4, 12: our counts beside the published ones, and the countings that agree"""
    columns = ["table", "configuration", "paper", "A no pooler", "B with pooler", "C with heads", "D wide positions",
               "agrees"]
    rows = []
    for table, name, settings, published in PUBLISHED:
        found = albert.countings(albert.Config(**settings))
        agrees = ", ".join(key for key, value in found.items() if round(value / 1e6) == published)
        nearest = min((value / 1e6 - published for value in found.values()), key=abs)
        rows.append([table, name, f"{published}M", *(f"{value:,}" for value in found.values()),
                     agrees or f"none; nearest: {nearest:+.1f}M"])
    agreeing = sum(not row[-1].startswith("none") for row in rows)
    study.write(options, columns, rows, claim="Parameters of the configurations of Tables 1, 3, 4 and 12",
                verdict=f"holds in part: {agreeing} of {len(rows)} rows agree with one of four ways to count",
                paper="xxlarge has {}M (Tables 1, 2), {}M (Sec. 3.2) or {}M (Table 12)".format(*XXLARGE))


@torch.no_grad()
def layer_distances(model, batches):
    """Figure 1: for each layer the mean over all real tokens of the L2 distance and of the angle, in degrees, between
    its input and its output.

    model: an Encoder; batches: of (ids, segments, lengths). Returns [{"layer", "l2", "degrees"}].
    """
    model.eval()
    totals, tokens, states, layer = torch.zeros(model.depth, 2, dtype=torch.float64), 0, [], model.layer

    def watched(number, x, mask):
        states.append(x)
        return layer(number, x, mask)

    model.layer = watched
    for ids, segments, lengths in batches:
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        states.clear()
        states.append(model(ids, segments, lengths))
        states[:] = [state[real].double() for state in states]  # (tokens, H), L + 1 times
        for number, (before, after) in enumerate(zip(states, states[1:])):
            cosine = F.cosine_similarity(before, after, dim=-1).clamp(-1, 1)
            totals[number] += torch.stack([(after - before).norm(dim=-1).sum(),
                                           torch.rad2deg(cosine.acos()).sum()]).cpu()
        tokens += int(real.sum())
    return [{"layer": number, "l2": l2, "degrees": degrees}
            for number, (l2, degrees) in enumerate((totals / tokens).tolist(), 1)]


def draw_layers(axes, curves):
    """Figure 1's two measures on two axes."""
    for side, key, style, label in ((axes, "l2", "-", "L2 distance of input and output (solid)"),
                                    (axes.twinx(), "degrees", "--", "their angle in degrees (dashed)")):
        for name, lines in curves.items():
            side.plot([line["layer"] for line in lines], [line[key] for line in lines], style, label=name)
        side.set(xlabel="layer", ylabel=label, ylim=(0, None))
    axes.legend(frameon=False)


def layers(options):
    """Figure 1 for the model of --init and, as a control, for the same model with random weights"""
    cfg, source = read_flags(options)
    cfg.out = str(options.runs)
    with launch(cfg.device) as ranks:
        _, text = open_run(cfg, "layers", ranks, "corpus")
        rows, curves = min(16, cfg.dev_rows), {}
        # held-out text of the corpus, with masks as in training: the paper does not say what it read
        batches = [albert.language_batch(text.dev, text.tokenizer, cfg, "none", position, rows, ranks.device)[:3]
                   for position in range(0, cfg.dev_rows, rows)]
        for name, weights in (("trained", source), ("random", None)):
            if name == "random" or weights:
                seed_everything(cfg.seed, "pretrain", "weights")
                model = albert.LanguageModel(cfg)
                if weights:
                    print(albert.start_from(model, weights))
                curves[name] = layer_distances(model.encoder.to(ranks.device), batches)
    table = [[lines[0]["layer"], *(line[key] for line in lines for key in ("l2", "degrees"))]
             for lines in zip(*curves.values())]
    study.write(options, ["layer", *(f"{name} {key}" for name in curves for key in ("L2", "degrees"))], table,
                claim="Figure 1: layers change their input smoothly, and never stop changing it",
                paper="distances and angles oscillate and do not converge to zero after "
                f"{LAYERS} layers (a picture, no numbers)",
                draw=lambda axes: draw_layers(axes, curves))


def flops(options):
    """Table 2: BERT large's FLOPs a sequence over those of each row, beside the published speed-ups"""
    found = {name: albert.flops(albert.Config(**albert.PRESETS[name])) for name in TABLE2}
    rows = [[name, f"{value:,}", found["bert-large"] / value, TABLE2[name], TABLE2[name] * value / found["bert-large"]]
            for name, value in found.items()]
    study.write(options, ["preset", "FLOPs, 512 tokens", "BERT large / row", "paper", "paper / ours"], rows,
                claim="Table 2: speed-ups over BERT large, by the products of matrices alone",
                verdict="not explained by FLOPs: the published ratios are 1.4 to 2.3 times what they give",
                paper="training throughput on many TPUs, where shared weights save optimizer, memory and exchange")


def training_seconds(models, cfg, device, turns):
    """{name: seconds of an update} of each turn: the models take turns, so that a machine that slows down slows all."""
    rows, M = cfg.batch // cfg.accumulate, albert.masked_count(cfg)
    optimizers = {name: albert.Lamb(model.parameters(), 1e-4) for name, model in models.items()}
    ids, lengths = (torch.randint(5, cfg.vocab_size, (rows, cfg.length), device=device),
                    torch.full((rows,), cfg.length, device=device))
    positions, order = (torch.arange(M, device=device).expand(rows, M),
                        torch.zeros(rows, dtype=torch.long, device=device))
    seconds = {name: [] for name in models}
    for name in list(models) * (1 + turns):  # the first turn warms up
        began = time.perf_counter()
        with autocast(cfg.dtype, device):
            logits, order_logits = models[name](ids, torch.zeros_like(ids), lengths, positions)
        loss = (albert.mean_loss(logits.flatten(0, 1), ids[:, :M].flatten()) + albert.mean_loss(order_logits, order))
        loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad()
        next(models[name].parameters()).sum().item()  # wait for the device
        seconds[name].append(time.perf_counter() - began)
    return seconds


def speed(options, turns=8):
    """Table 2: throughput in training of --preset, of BERT of its shape and of BERT large, against which the paper's
    rows are, --batch / --accumulate rows at once"""
    # A ratio is the median over the turns, "from" and "to" are the second-lowest and second-highest. One process: what
    # ALBERT saves in communication does not show. FLOPs count matrix products, not the optimizer.
    cfg, _ = read_flags(options)
    device, rows = pick_device(cfg.device), cfg.batch // cfg.accumulate
    shapes = {"ALBERT": cfg, "BERT of its shape": dataclasses.replace(cfg, share="none", groups=1, embedding=0)}
    if cfg.preset != "demo":
        shapes["BERT large"] = dataclasses.replace(cfg, **albert.PRESETS["bert-large"])
    models = {name: albert.LanguageModel(shape).to(device).train() for name, shape in shapes.items()}
    seconds = training_seconds(models, cfg, device, turns)
    table = []
    for name, times in seconds.items():
        row = [name, f"{albert.count(models[name]):,}", round(rows * cfg.length / statistics.median(times[1:]))]
        for other, others in list(seconds.items())[1:]:
            ratios = sorted(theirs / own for own, theirs in zip(times[1:], others[1:]))
            by_flops = albert.flops(shapes[other]) / albert.flops(shapes[name])
            row += [statistics.median(ratios), ratios[1], ratios[-2], by_flops]
        table.append(row)
    columns = [column for other in list(shapes)[1:] for column in (f"to {other}", "from", "to", "by FLOPs")]
    study.write(options, ["model", "parameters", "tokens/s", *columns], table,
                claim="Table 2: how fast ALBERT trains, against BERT of the same shape and against BERT large",
                numbers={"seconds_each": seconds},
                paper="times BERT large's throughput, on many TPUs: " + ", ".join(f"{name} {value}"
                                                                                 for name, value in TABLE2.items()))


CLAIMS = {"parameters": parameters, "layers": layers, "flops": flops, "speed": speed}

if __name__ == "__main__":
    study.as_program("albert", CLAIMS)
