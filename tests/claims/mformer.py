"""What mFormer's paper claims, re-made: python -m tests.claims.mformer NAME ... (study.py says how).

Flags that are none of a study's belong to mformer.py: --task, --preset, --cost, data flags and so on. importance and
ranker read the run folder of a finished --search (--folders); length and networks time with --cost.
"""
import argparse
import dataclasses
import functools
import math
import os
import statistics
import time

import numpy as np
import torch

import mformer as mf
from common.distributed import Ranks, pick_device
from common.files import read_json
from data.cifar10 import Pictures, load_cifar10
from data.translation import Translations
from tests.claims import pictures
from tests.claims.study import (Found, Study, as_program, in_turns, interval, mean_sd, named, paired, published,
                                read_flags, run_all, run_settings)


def config_of(options):
    """The Config of the paper file's flags, and the device."""
    cfg = read_flags(mf, options, "train", mf.presets_of(options.flags))
    mf.check(cfg, "train")
    return cfg, Ranks(0, 1, pick_device(cfg.device))


def searched(options):
    """(configuration, space, history lines of the samples, weights) of the finished search that --folders names."""
    folder, = named(options, one=True)
    weights, _, space = mf.read_run(mf.Config(init=str(folder)))
    limit = read_json(folder / "best.json", dict, "name the folder of a finished --search")["latency_limit"]
    cfg = run_settings(folder, mf.Config, init=str(folder), latency_limit=limit)
    return cfg, space, samples_of(folder), weights


def samples_of(folder):
    """The history lines of the sub-nets that a search has sampled."""
    return [line for line in mf.read_history(folder / "history.jsonl") if line["round"] == "sample"]


def measured_archs(lines, cfg):
    """(architectures, losses, latencies) of the history lines whose losses are numbers."""
    lines = [line for line in lines if line["scores"]["loss"] < mf.WORST]
    return ([mf.parse_arch(line["arch"], cfg) for line in lines],
            *([line["scores"][name] for line in lines] for name in ("loss", "latency")))


FIRST = {"cifar10": ("types", "layers"), "wmt14": ("decoder_layers",) * 2}  # in Sec. 7: accuracy, efficiency


def importance(options):
    """The features ranked for accuracy and for efficiency."""
    cfg, space, lines, _ = searched(options)
    archs, losses, latencies = measured_archs(lines, cfg)
    rows = []
    for name, values in (("accuracy", losses), ("efficiency", latencies)):
        per_seed = [mf.Ranker(space, archs, values, seed).importance() for seed in range(5)]  # five cuts of the samples
        means = {feature: sum(each[feature] for each in per_seed) / len(per_seed) for feature in per_seed[0]}
        rows += [[name, rank, mf.FEATURES[feature].title, lost]
                 for rank, (feature, lost) in enumerate(sorted(means.items(), key=lambda item: -item[1]), 1)]

    firsts = [title for _, rank, title, _ in rows if rank == 1]
    wanted = [mf.FEATURES[name].title for name in FIRST[cfg.task]]
    facts = {f"{kind}: {first} comes first, in the paper {want}": first == want
             for kind, first, want in zip(("accuracy", "efficiency"), firsts, wanted)}
    return Found(["regarding", "rank", "feature", "pair accuracy lost"], rows, facts=facts, n=1)


# Further question: how many measured sub-nets does a ranker need (Sec. 3.1.2 says 2,000), and does pruning help at
# equal cost? 500 samples of one super-net on CIFAR-10 at 65 tokens, whose latencies are FLOPs and so exact:
#     python mformer.py --search --preset small --cost flops --samples 500 --cifar10 path/to/cifar-10-batches-bin
#         --out runs/ranked
# Rankers are fitted to 50, 100, 200 and 400 of them and asked about the others in five parts. H1: Kendall's tau of the
# loss ranker is above 0.8 with 400, by the interval over the five parts. H2: the best loss that a search in the pruned
# space finds is below that in the whole space, paired by seed, three seeds, by the 95% interval. 25 core-minutes.
SIZES = 20, 50, 100, 200, 400


def ranker(options):
    """How well rankers order sub-nets they were not fitted to, and what pruning brings at equal cost."""
    cfg, space, lines, weights = searched(options)
    archs, *values = measured_archs(lines, cfg)
    rows, taus, least = [], {}, len(archs) - len(archs[::5])  # what every part leaves to learn from
    for size in [size for size in SIZES if size < least] + [least]:
        for name, wanted in zip(("loss", "latency"), values):
            pairs, scores = list(zip(archs, wanted)), []
            for part in range(5):
                known = [pair for place, pair in enumerate(pairs) if place % 5 != part]
                known = known[:size]
                unseen, truth = zip(*pairs[part::5])
                scores.append(mf.agreement(mf.Ranker(space, *zip(*known), part).rank_scores(unseen), truth))
            rows.append([f"{name} ranker", len(known), *(number for kind in zip(*scores) for number in mean_sd(kind))])
            taus[name] = [tau for tau, _ in scores]  # in the end with all that every part leaves
    ranks = Ranks(0, 1, pick_device(cfg.device))
    # by the settings of the search, so that nothing is held out that its super-net was trained on
    data = (Pictures if cfg.task == "cifar10" else Translations)(cfg, ranks, options.folders[0])
    supernet = mf.extract(weights, mf.widest(space), cfg, space).to(ranks.device).eval()
    bests = {}
    for keep in (cfg.keep or 3, 0):
        best, means = bests.setdefault(keep, []), []
        for seed in range(options.seeds):
            found, about = mf.rank_and_evolve(space, lines, dataclasses.replace(cfg, keep=keep, seed=seed))
            found = [arch for arch in found
                     if mf.measure_latency(arch, cfg, ranks.device)[0] <= about["latency_limit"]]
            measured = [mf.held_out_loss(supernet, data, cfg, arch) for arch in found[:cfg.finalists]]
            best.append(min(measured))
            means.append(sum(measured) / len(measured))
        rows.append([f"keep {keep}" if keep else "whole space", about["architectures_pruned"], *mean_sd(best),
                     *mean_sd(means)])
    pruned, whole = bests.values()
    gaps = {"what pruning gains in loss": interval([two - one for one, two in zip(pruned, whole)]),
            f"Kendall's tau of the loss ranker with {least} sub-nets": interval(taus["loss"])}
    return Found(["ranker or search", "sub-nets, or architectures", "tau, or best loss", "sd",
                  "pair accuracy, or finalists' loss", "sd"], rows, gaps, n=options.seeds,
                 numbers={"best losses": {"pruned": pruned, "whole": whole}})


def train_variants(options, cfg, variants):
    """Train {name: architecture} from scratch with --seeds seeds each and evaluate: {name: [result of each seed]}. What
    is named "as released" has the lengths of cosFormer's code."""
    if cfg.cifar10:  # missing test data end this before it trains
        load_cifar10(cfg.cifar10, "test")
    runs = {f"{name.replace(' ', '-')}-{seed}": (name, arch, cfg.seed + seed) for seed in range(options.seeds)
            for name, arch in variants.items()}
    programs = {run: "tests.claims.released" if "as-released" in run else "mformer.py" for run in runs}
    trained = run_all(options, {run: [programs[run], "--train", *options.flags, "--arch", mf.arch_text(arch), "--seed",
                                      seed] for run, (_, arch, seed) in runs.items()})
    folders = run_all(options, {f"{run}-score": [programs[run], "--evaluate", *options.flags, "--init", folder]
                                for run, folder in trained.items()})
    return {name: [read_json(folders[f"{run}-score"] / "done.json") for run in runs if runs[run][0] == name]
            for name in variants}


SHORT = 0.7  # of softmax's time: what a mixture is asked for


# Primary question: at a length where linear attention can win time, does a search over mixed attention find a better
# network than one over softmax? CIFAR-10 at patches of 2 (257 tokens), the space of the preset `long` (2 to 4 layers,
# width 48 to 80, heads of 16). Hypotheses, on test accuracy, paired by seed:
#     H1  the winner of the mixed search beats that of the softmax search under the same limit in FLOPs
#     H2  it is within one point of its own twin with softmax in all layers, at 0.7 of that one's latency or less
#     H3  its twin with linear attention in all layers is two points lower or more (else there is nothing to mix)
# Each is judged by the 95% interval over the seeds (of the latency: that of the median over the turns). Also reported,
# without a hypothesis: the winner
# of the linear search, the twin with plain softmax (the paper's has relative positions, and the claim is about that
# one), the best of the mixed search's random samples within the limit (what ranking and evolution add).
# Budget: --limit 0.09 GFLOPs a picture, where softmax affords two layers of 64 and linear attention four; three
# searches, seed 0, a super-net each, 100 samples on 250 held-out pictures, 5 finalists; at most seven networks, from
# scratch, all 10,000 pictures, 800 updates of 16: some 90 core-minutes.
# Stopping rule: three seeds, no more, whatever comes out. The test pictures are scored once a network and seed; with
# 2,000 of them the standard error of an accuracy is about 1 point. When all runs are finished, the same command times
# the networks again: once, at the end, on an idle machine.
def search_spaces(options, cfg, spaces):
    """{"SPACE search": the architecture that a search of each space finds under --limit, in GFLOPs}."""
    folders = run_all(options, {f"search-{space}": [
        "mformer.py", "--search", *options.flags, "--space", space, "--latency_limit", options.limit, "--samples",
        options.samples, "--held_out", options.held_out, "--seed", 0] for space in spaces})
    return {f"{space} search": mf.parse_arch(read_json(folders[f"search-{space}"] / "best.json")["arch"], cfg)
            for space in spaces}


def networks_of(options):
    """{role: architecture} of the three searches under one limit in FLOPs, the mixed winner's twins of one type (D13)
    and the best of the mixed search's random samples."""
    cfg, _ = config_of(options)
    found = search_spaces(options, cfg, ("mixed", "softmax", "linear"))
    samples = [line for line in samples_of(options.runs / "search-mixed") if line["scores"]["latency"] <= options.limit]
    twins = {f"mixed, all {kind}": mf.retype(found["mixed search"], kind)
             for kind in ("softmax", "linear", "plain")}
    return {**found, **twins, "best random sample": mf.parse_arch(max(samples, key=lambda line: line["score"])["arch"],
                                                                  cfg)}


def clock_of(cfg, device):
    """Seconds of the wall, with --cost cpu those of this process; a GPU's work is waited for."""
    def clock():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.process_time() if cfg.cost == "cpu" and device.type == "cpu" else time.perf_counter()
    return clock


@torch.no_grad()
def time_networks(archs, cfg, device, turns):
    """{name: ms of a picture in each turn} of {name: architecture}, with random weights."""
    image, calls = torch.randn(1, 3, cfg.image, cfg.image, device=device), {}
    for name, arch in archs.items():
        calls[name] = functools.partial(mf.make_model(arch, cfg).to(device).eval(), image)
    return in_turns(calls, turns, clock_of(cfg, device))


def middle(values):
    """(low, median, high): the median and its 95% interval, by ranks."""
    ranked, half = sorted(values), 0.98 * math.sqrt(len(values))
    low, high = math.floor(len(values) / 2 - half), math.ceil(len(values) / 2 + half)
    return ranked[max(0, low)], statistics.median(ranked), ranked[min(high, len(values) - 1)]


def mixed(options):
    """Mixed, softmax and linear searches at 257 tokens under one limit in FLOPs, and the winners from scratch."""
    cfg, ranks = config_of(options)
    archs = networks_of(options)
    firsts = {arch: role for role, arch in reversed(archs.items())}  # what several found is trained once
    same = {role: firsts[arch] for role, arch in archs.items()}
    alone = {role: archs[role] for role in dict.fromkeys(same.values())}
    found, load = train_variants(options, cfg, alone), os.getloadavg()[0]
    times = time_networks(alone, cfg, ranks.device, options.turns)
    scores = {role: [row["accuracy"] for row in found[same[role]]] for role in archs}
    gaps = {role: interval([one - two for one, two in zip(scores["mixed search"], scores[role])])
            for role in archs if role != "mixed search"}
    ratios = {role: middle([one / two for one, two in zip(times["mixed search"], times[same[role]])])
              for role in archs}
    low, ratio, high = ratios["mixed, all softmax"]
    said = {**{f"accuracy, mixed search - {role}": gap for role, gap in gaps.items()},
            f"{SHORT} less its share of its softmax twin's time": (SHORT - ratio, SHORT - high, SHORT - low)}
    rows = [[role, *("–" if each is None else each for each in (*mean_sd(scores[role]), *gaps.get(role, [None] * 3))),
             found[same[role]][0]["flops"] / 1e6, statistics.median(times[same[role]]), ratios[role][1],
             mf.arch_text(arch)] for role, arch in archs.items()]
    kinds = {*archs["mixed search"].types}
    return Found(["network", "accuracy", "sd", "mixed - it", "low", "high", "MFLOPs", "ms", "mixed : it",
                  "architecture"], rows, said, n=options.seeds, says=f"The mixed search found {' and '.join(kinds)} "
                 f"attention. Times were taken at a load of {load:.1f} on {torch.get_num_threads()} threads",
                 numbers={"runs": found, "same": same, "ms": times, "ratios": ratios, "load": load,
                          "test_pictures": found["mixed search"][0]["examples"]})


# Primary question: what is a mixture for? Made-up pictures of 65 tokens, whose rows are black and white at random and
# repeat themselves after 2, 3, 4 or 5 columns, which is their class: places must be told apart exactly. Three layers,
# where softmax may stand in each; a search is held to a limit that no network of softmax alone meets. Hypotheses, on
# test accuracy, paired by seed, by the 95% interval:
#     H1  softmax in all three layers beats linear attention in all
#     H2  so does softmax in a single layer, in each of the three places
#     H3  the winner of the mixed search beats that of the linear search under the same limit
#     H4  it is within two points of softmax in all layers
# Pilots, with seeds that do not count: softmax in any one layer of three had .98 or more after 1,500 updates of 32,
# linear attention in four layers .28 after 2,000, one answer to all .25. A first form had 257 tokens and 1,200 updates
# of 16; it was stopped in its first network, since one super-net (seed 100) had learnt something, another nothing.
# Budget: 1,600 updates of 32 for super-nets and networks, 100 samples; 60 core-minutes. Stopping rule: three seeds. The
# baseline was added after the runs: it reads no order, only how many squares of each row are white.
PERIODS = 2, 3, 4, 5
SINGLE = "first", "second", "third"


def striped_pictures(count, seed):
    """(count, 3073) uint8 in CIFAR-10's layout: eight rows of eight squares, each row repeating itself."""
    rng = np.random.default_rng(seed)
    labels, squares = rng.integers(len(PERIODS), size=count), rng.integers(2, size=(count, 8, 8))
    columns = np.arange(8) % np.take(PERIODS, labels)[:, None]  # (count, 8): which of the first ones each repeats
    plane = 255 * np.take_along_axis(squares, columns[:, None], 2).repeat(4, 1).repeat(4, 2).reshape(count, -1)
    return np.concatenate([labels[:, None], plane, plane, plane], 1).astype(np.uint8)


def by_row_sums(*records):
    """Accuracy on the second records of a naive Bayes rule, learnt from the first, on how many rows have how many white
    squares."""
    (known, labels), (seen, wanted) = ((np.eye(9)[(part[:, 1:1025:4].reshape(-1, 32, 8)[:, ::4] > 0).sum(2)].sum(1),
                                        part[:, 0]) for part in records)
    rates = np.log([known[labels == one].sum(0) / known[labels == one].sum() + 1e-6 for one in range(len(PERIODS))])
    return float(((seen @ rates.T).argmax(1) == wanted).mean())


def periods(options):
    """One softmax layer among linear ones, in each place, and what searches find, where exact places count."""
    folder = options.runs / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    records = striped_pictures(10_000, 0), striped_pictures(2_000, 1)
    for name, part in zip(("data_batch_1", "test_batch"), records):
        part.tofile(folder / f"{name}.bin")
    options.flags += ["--cifar10", str(folder)]
    cfg, _ = config_of(options)
    softmax = mf.parse_arch("layers=3 hidden=64 ffn=128,128,128 heads=4,4,4 types=softmax,softmax,softmax", cfg)
    archs = {"all softmax": softmax, "all linear": mf.retype(softmax, "linear")} | {
        f"softmax {place}": softmax._replace(types=tuple("softmax" if one == place else "linear" for one in SINGLE))
        for place in SINGLE} | search_spaces(options, cfg, ("mixed", "linear"))
    found = train_variants(options, cfg, archs)
    scores = {role: [row["accuracy"] for row in rows] for role, rows in found.items()}
    wanted = [("all softmax", "all linear"), *((f"softmax {place}", "all linear") for place in SINGLE),
              ("mixed search", "linear search"), ("mixed search", "all softmax")]
    rows = [[role, *mean_sd(scores[role]), found[role][0]["flops"] / 1e6, mf.arch_text(arch)]
            for role, arch in archs.items()] + [["naive Bayes, no network", by_row_sums(*records), *[None] * 3]]
    return Found(["network", "accuracy", "sd", "MFLOPs", "architecture"], rows,
                 {f"accuracy, {one} - {two}": paired(scores, one, two) for one, two in wanted}, n=options.seeds,
                 numbers={"runs": found})


# Further question: what does each type of attention cost in translation, and do the lengths of cosFormer's code (D1)
# explain the paper's collapse? (mFormer's own code for translation is not released.) Multi30k, English to German, three
# encoder layers and two decoder layers of width 64, four heads, 1,500 updates of 1,024 tokens. Arms: softmax alone; the
# second encoder layer linear, as in the paper's mFormer; all encoder layers linear, which is the paper's "all linear"
# (D13, D14); both attentions of the decoder linear (Sec. 8). The last two also as released: the cosine's M is that of
# the padded row, when decoding of the prefix, and padding takes part. Hypotheses, on test BLEU, in pairs of seeds:
#     H1  half of softmax's BLEU is more than that of a linear encoder, and H2 than that of a linear decoder (collapse)
#     H3  softmax beats the mixture, and the mixture the linear encoder (Table 5)
#     H4  true lengths beat the released ones, in the encoder and in the decoder
# Pilot, with seed 100: linear everywhere had 14.4 BLEU, and 13.5 as released, so that H1 and H2 are not expected to
# hold. Judged by 95% intervals. Stopping rule: three seeds, whatever comes out. A seed takes 17 core-minutes.
TRANSLATOR = ("layers=3 hidden=64 ffn=128,128,128 heads=4,4,4 types=softmax,softmax,softmax decoder_layers=2 "
              "decoder_hidden=64 decoder_ffn=128,128 decoder_heads=4,4 decoder_types=softmax,softmax cross_heads=4,4 "
              "connect=1,1 cross_types=softmax,softmax")


def translation(options):
    """BLEU of one network with softmax, linear attention in a place of its own, and linear attention as released."""
    cfg, _ = config_of(options)
    softmax = mf.parse_arch(TRANSLATOR, cfg)
    encoder, decoder = mf.retype(softmax, "linear", mf.PARTS[:1]), mf.retype(softmax, "linear", mf.PARTS[1:])
    archs = {"softmax": softmax, "mixture": softmax._replace(types=("softmax", "linear", "softmax")),
             "linear encoder": encoder, "linear encoder as released": encoder,
             "linear decoder": decoder, "linear decoder as released": decoder}
    found = train_variants(options, cfg, archs)
    scores = {role: [row["bleu"] for row in rows] for role, rows in found.items()}
    gaps = {f"half of softmax's - {side}": interval([half / 2 - one for half, one in zip(scores["softmax"],
                                                                                        scores[side])])
            for side in ("linear encoder", "linear decoder")}
    wanted = [("softmax", "mixture"), ("mixture", "linear encoder"),
              *((side, f"{side} as released") for side in ("linear encoder", "linear decoder"))]
    gaps |= {f"{one} - {two}": paired(scores, one, two) for one, two in wanted}
    rows = [[role, *mean_sd(scores[role]), 100 * statistics.mean(row["repeated_words"] for row in each)]
            for role, each in found.items()]
    return Found(["network", "BLEU", "sd", "repeated words, %"], rows, gaps, n=options.seeds, numbers={"runs": found})


# Further question: from which length on does one softmax layer among four save time in a whole network? Pictures of 32
# x 32 in patches of 4, 2 and 1 (65, 257 and 1,025 tokens), four layers of width 64, four heads of 16, random weights,
# all types in turns. H1: with relative positions, as in the paper, the mix takes 0.7 of the time of softmax alone or
# less, the share that `mixed` asks for; H2: so it does with plain softmax, whose softmax layer the mix then has too. By
# the interval of the median over the turns, at 1,025 tokens. A minute on an idle machine; nothing is trained.
PATCHES = 4, 2, 1


def networks(options):
    """How long a picture takes in whole networks of each type and of one softmax layer in four, at three lengths."""
    rows, found = [], {}
    for patch in PATCHES:
        cfg, ranks = config_of(argparse.Namespace(flags=["--preset", "long", *options.flags, "--patch", str(patch)]))
        types = {f"{name}{mix}": [kind, *[rest] * 3] for kind, name in (("softmax", "relative"), ("plain", "plain"))
                 for rest, mix in ((kind, " softmax"), ("linear", ", one softmax of four"))}
        types["linear"] = ["linear"] * 4
        times = time_networks({name: mf.parse_arch("layers=4 hidden=64 ffn=128,128,128,128 heads=4,4,4,4 types="
                                                   + ",".join(each), cfg) for name, each in types.items()},
                              cfg, ranks.device, options.turns)
        tokens = (cfg.image // patch) ** 2 + 1
        for name in types:
            alone = times.get(f"{name.split(',')[0]} softmax", times[name])
            low, ratio, high = middle([one / two for one, two in zip(times[name], alone)])
            found[tokens, name] = low, ratio, high
            rows.append([tokens, name, statistics.median(times[name]), ratio, low, high])
    shares = {kind: found[tokens, f"{kind}, one softmax of four"] for kind in ("relative", "plain")}
    gaps = {f"{SHORT} less the mix's share of the time of {kind} softmax at {tokens:,} tokens":
            (SHORT - ratio, SHORT - high, SHORT - low) for kind, (low, ratio, high) in shares.items()}
    return Found(["tokens", "network", "ms", "of softmax alone", "from", "to"], rows, gaps, n=options.turns,
                 says=", ".join(f"the mixture takes {ratio:.2f} of the time of {kind} softmax" for kind, (_, ratio, _)
                                in shares.items()), numbers={"load": os.getloadavg()[0]})


def attention_call(kind, tokens, device):
    """What one attention does, 8 heads of 64, batch 1: a function that returns its output (1, 8, T, 64)."""
    heads, dim = 8, 64
    q, k, v = (torch.randn(1, heads, tokens, dim, device=device, requires_grad=True) for _ in range(3))
    table = torch.randn(29, dim, device=device, requires_grad=True)
    cosines = mf.cosines_at(torch.arange(tokens, device=device), tokens)
    return {"plain softmax": lambda: mf.softmax_attention(q, k, v),
            "relative softmax": lambda: mf.softmax_attention(q, k, v, table=table),
            "linear": lambda: mf.linear_attention(q, k, v, cosines),
            "causal linear": lambda: mf.causal_linear_attention(q, k, v, cosines)}[kind]


def attention_memory(attend, device):
    """(MB that stay for the backward pass, MB allocated at once, None where the device does not count them)."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attend().sum().backward()
    return sum(kept.values()) / 1e6, torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None


def attention_costs(kinds, tokens, device, clock):
    """A row for each attention at this length: [kind, tokens, forward ms, forward and backward ms (medians over
    interleaved turns), MB kept, peak MB]."""
    calls = {kind: attention_call(kind, tokens, device) for kind in kinds}
    both = {kind: lambda attend=attend: attend().sum().backward() for kind, attend in calls.items()}
    turns = 20480 // tokens
    forward, whole = (in_turns(each, max(5, min(80, turns)), clock) for each in (calls, both))
    return [[kind, tokens, statistics.median(forward[kind]), statistics.median(whole[kind]),
             *attention_memory(calls[kind], device)] for kind in kinds]


def length_summary(rows):
    """{type: [the power of the length with which time and kept memory grow from 1,024 tokens on, and where linear gets
    faster than it]}."""
    costs, summary = {}, {}
    for kind, tokens, _, whole, kept, _ in rows:
        costs.setdefault(kind, {})[tokens] = whole, kept
    for kind, cost in costs.items():
        powers = [math.log(cost[max(cost)][part] / cost[1024][part]) / math.log(max(cost) / 1024) for part in (0, 1)]
        slower = [tokens for tokens in cost if costs["linear"][tokens][0] >= cost[tokens][0]]
        faster = [tokens for tokens in cost if tokens > max(slower, default=0)]
        summary[kind] = [*powers, min(faster, default=None)]
    return summary


def length(options):
    """Time and memory of the attentions by themselves."""
    cfg, ranks = config_of(options)
    clock, rows = clock_of(cfg, ranks.device), []
    for tokens in (256, 512, 1024, 2048, 4096, 8192):
        kinds = ["plain softmax", "linear", "causal linear"]
        if tokens <= 4096:  # beyond, its scores would fill more than 8 GB
            kinds.append("relative softmax")
        if tokens <= max(2048, options.longest):
            rows += attention_costs(kinds, tokens, ranks.device, clock)
    summary = length_summary(rows)
    grows = {kind: time for kind, (time, *_) in summary.items()}
    fastest = max(summary[kind][2] or math.inf for kind in summary if "softmax" in kind)
    return Found(["type", "tokens", "forward ms", "forward and backward ms", "kept MB", "peak MB"], rows, facts={
        f"linear attention's time grows with the power {grows['linear']:.2f} of the length": grows["linear"] < 1.3,
        f"plain softmax attention's time grows with the power {grows['plain softmax']:.2f} of the length":
        grows["plain softmax"] > 1.6,
        f"linear attention is the fastest from {fastest} tokens on": fastest <= 512},
        numbers={"growth": summary, "load": os.getloadavg()[0]})


def paper_parameters(arch, cfg):
    """Parameters as the paper's tables count them: CIFAR-10 as its code sums them up, translation by the rule that
    gives the three numbers of Table 3. Table 5's vanilla rows are whole, with 37,000 pieces: 0.6% above its 213 M."""
    E, ffn = arch.hidden, [2 * arch.hidden * width + width + arch.hidden for width in (*arch.ffn, *arch.decoder_ffn)]
    if cfg.task == "wmt14":
        attention = 4 * E * E + 4 * E
        encoder = sum(ffn[:arch.layers]) + arch.layers * (attention + 4 * E)
        if mf.retype(arch, "plain", mf.PARTS) == mf.PUBLISHED["wmt14"]["transformer"]:
            return encoder + sum(ffn[arch.layers:]) + arch.decoder_layers * (2 * attention + 6 * E) + 37000 * E
        inputs = 6 * (E * E + E)  # of a decoder's layer no more than its attentions' inputs
        return encoder + arch.decoder_layers * inputs + 4 * E
    widest_qkv = 512 if E == 512 else 448  # of the network that the row was cut from
    extra = {"linear": 4096, "softmax": 29 * 448, "plain": 0}
    return (sum(4 * E * 64 * heads + 3 * widest_qkv + 5 * E + inner + extra[kind]
                for inner, heads, kind in zip(ffn, arch.heads, arch.types)) + 768 * E + 13 * E + 10)


def paper_flops(arch, cfg, honest=False):
    """2 x multiply-adds as the paper's tables count them. Its profiler did not see the products of linear attention;
    honest adds them.

    Translation: 30 source and 30 target tokens and an output layer of 32,768 pieces: the vanilla Transformer's 12.65 G
    (12.7 printed); the searched ones come out 3 to 5% below the paper, whose rule is not public, cosFormer 6%.
    """
    E, images = arch.hidden, cfg.task == "cifar10"
    T = 197 if images else 30
    total = 196 * 768 * E + T * E * (2 * arch.layers + 2) + 10 * E if images else T * 32768 * E
    for width, heads, kind in zip(arch.ffn, arch.heads, arch.types):
        Q = 64 * heads if images else E
        total += T * (4 * E * Q + 2 * E * width) + mixing(kind, T, T, Q, heads, honest)
        if images:  # its profiler saw some element-wise products
            total += T * Q * {"linear": 5, "softmax": 1 + T, "plain": 1}[kind]
    for layer in range(arch.decoder_layers):
        keys = T * arch.connect[layer]
        total += T * (6 * E * E + 2 * E * arch.decoder_ffn[layer]) + 2 * keys * E * E
        total += mixing(arch.decoder_types[layer], T, T, E, arch.decoder_heads[layer], honest)
        total += mixing(arch.cross_types[layer], T, keys, E, arch.cross_heads[layer], honest)
    return 2 * total


def mixing(kind, queries, keys, qkv, heads, honest):
    """Multiply-adds of an attention behind its projections: quadratic for softmax; for linear keys x 2D x D and back,
    seen by honest counts only."""
    if kind == "linear":
        width = qkv // heads
        return honest * heads * ((queries + keys) * 2 * width * width + queries * 2 * width)
    return 2 * queries * keys * qkv


def counts(options):
    """Parameters and FLOPs of the published networks by the paper's counting and the honest one."""
    cfg, _ = config_of(options)
    paper = mf.Config(**{key: value for key, value in mf.PRESETS[cfg.task]["base"].items() if key != "search"},
                      task=cfg.task)
    rows, away, where = [], [], "CIFAR-10" if cfg.task == "cifar10" else "WMT'14"
    for name in mf.TABLE_5:
        arch = mf.parse_arch(name, paper)
        rows.append([name, f"{paper_parameters(arch, paper):,}", paper_flops(arch, paper) / 1e9,
                     paper_flops(arch, paper, True) / 1e9, mf.model_flops(arch, paper) / 1e9])
        millions, giga = (published("mformer", "Table 5", f"{where}, {name}, {what}")
                          for what in ("parameters", "FLOPS"))
        away += [abs(paper_parameters(arch, paper) / 1e6 / millions - 1), abs(rows[-1][2] / giga - 1)]
    mixed, softmax = (next(row for row in rows if row[0] == name) for name in ("mformer", "mformer-softmax"))
    printed, honest = (100 * (1 - mixed[column] / softmax[column]) for column in (2, 3))
    return Found(["network", "parameters, paper's counting", "GFLOPs, paper's counting", "GFLOPs, honest",
                  "GFLOPs this file does"], rows,
                 facts={f"all are within {100 * max(away):.2f}% of the printed numbers": max(away) < 0.001,
                        f"saving: {printed:.1f}% of the FLOPs by the paper's counting, {honest:.1f}% by the honest one":
                        abs(honest / printed - 1) < 0.1})


CLAIMS = {
    "counts": Study(counts, "Parameters and FLOPs of Tables 3 and 5"),
    "importance": Study(importance, "The number of layers rules efficiency, the attention type the accuracy on images "
                        "(Sec. 7)", picture=pictures.of_columns("rank", "pair accuracy lost", "regarding",
                                                                named="feature")),
    "ranker": Study(ranker, "Two rankers order architectures; pruning the space helps the search (Sec. 3.1.2)"),
    "mixed": Study(mixed, "A search over mixed attention beats one over softmax at the same limit (Table 5), at 257 "
                   "tokens", {"limit": 0.09, "samples": 100, "held_out": 250, "turns": 60},
                   ["--preset", "long", "--batch", 16, "--steps", 800], pictures.draw_mixed),
    "periods": Study(periods, "One softmax layer of three is enough where exact places count, and "
                     "a search finds it", {"limit": 0.016, "samples": 100, "held_out": 250},
                     ["--preset", "small", "--cost", "flops", "--layers", 3, "--hidden", 64, "--ffn", 120, 124, 128,
                      "--heads", 4, "--augment", 1, 0, 0, 0, "--batch", 32, "--steps", 1600]),
    "translation": Study(translation, "Linear attention collapses in translation (Table 5, Sec. 8)",
                         settings=["--task", "wmt14", "--preset", "small", "--steps", 1500]),
    "networks": Study(networks, f"One softmax layer of four takes {SHORT} of the time of softmax alone, or less, at "
                      "1,025 tokens", {"turns": 40}, picture=pictures.of_columns(
                          "tokens", "ms", "network", logarithmic=True, ylabel="ms of a picture",
                          title="Four layers of width 64, forward")),
    "length": Study(length, "Linear attention grows linearly with the length and softmax does not", {"longest": 8192},
                    picture=pictures.of_columns("tokens", "forward and backward ms", "type", logarithmic=True,
                                                title="One attention: 8 heads of 64, batch 1"))}


if __name__ == "__main__":
    as_program("mformer", CLAIMS)
