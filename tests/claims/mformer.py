"""What mFormer claims, measured: python -m tests.claims.mformer NAME [--folders DIR...] [flags of mformer.py]

    counts               the rules behind data/published.py              (--task wmt14)
    importance ranker    read the run folder of a finished --search       (--folders runs/mformer-search-cifar10-demo)
    types decoder        train and evaluate variants of one architecture  (--arch, data flags, --preset ...)
    pareto               reads run folders of --evaluate                  (--folders runs/a runs/b ...)
    shape                reads --arch NAMES, default: the published ones
    length               times the attentions by themselves               (--cost cpu, --longest 2048)
"""
import argparse
import dataclasses
import math
import time

import torch

import mformer as mf
from common.cli import UserError, parse
from common.distributed import Ranks, pick_device
from common.files import read_json, read_jsonl
from data.cifar10 import Pictures, load_cifar10
from data.inputs import fill_in
from data.parallel import Translations, read_pairs
from data.published import MFORMER
from tests.claims.study import as_program, mean_sd, published, run_all, write
from tests.claims.study import main as study

KINDS = ("mFormer", "mFormer (all Softmax)", "mFormer (all linear)")
TABLE_5 = {task: [published("mformer", "Table 5", f"{task}, {kind}") for kind in KINDS]  # BLEU, accuracy in percent
           for task in ("WMT'14", "CIFAR-10")}
IN_DECODER = published("mformer", "Sec. 8", "linear attention in the decoder")  # BLEU


def own_flags(options, **defaults):
    """Take the flags of a claim out of options.flags: {name: value}."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, value in defaults.items():
        several = {"nargs": "+"} if isinstance(value, list) else {}
        parser.add_argument(f"--{name}", default=value, type=type(value) if isinstance(value, int) else str, **several)
    given, options.flags = parser.parse_known_args(options.flags)
    return given


def config_of(options):
    """The Config of the paper file's flags, and the device."""
    cfg = parse(mf.Config, mf.presets_of(options.flags), mf.ACTIONS, "", ["--train", *options.flags])[2]
    mf.check(cfg, "train")
    return cfg, Ranks(0, 1, pick_device(cfg.device))


def searched(options):
    """(configuration, space, history lines of the samples, weights) of the finished search that --folders names."""
    if not options.folders:
        raise UserError("--folders: missing; name the run folder of a finished --search")
    cfg = mf.Config(init=str(options.folders[0]))
    weights, _, space = mf.read_run(cfg)
    settings = read_json(options.folders[0] / "config.json")["settings"]
    cfg = mf.Config(**{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()})
    lines = read_samples(options.folders[0] / "history.jsonl")
    if not space or not lines:
        raise UserError(f"{options.folders[0]}: no history.jsonl with samples; name the folder of a finished --search")
    cfg.init = str(options.folders[0])
    cfg.latency_limit = read_json(options.folders[0] / "best.json", dict).get("latency_limit", 0.0)
    return cfg, space, lines, weights


def read_samples(path):
    """The history lines of the sub-nets that a search has sampled; [] where there is no history.jsonl."""
    try:
        return [line for line in read_jsonl(path) if line["round"] == "sample" and line["arch"] and {*line["scores"]}]
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not written by --search; name another folder") from None


def measured_archs(lines, cfg):
    """(architectures, losses, latencies) of the history lines whose losses are numbers."""
    lines = [line for line in lines if line["scores"]["loss"] < mf.WORST]
    if len(lines) < 20:
        raise UserError(f"only {len(lines)} sub-nets have a loss that is a number; it takes 20")
    return ([mf.parse_arch(line["arch"], cfg) for line in lines],
            *([line["scores"][name] for line in lines] for name in ("loss", "latency")))


def importance(options):
    """Sec. 7: the features ranked for accuracy and for efficiency"""
    cfg, space, lines, _ = searched(options)
    archs, losses, latencies = measured_archs(lines, cfg)
    rows = []
    for name, values in (("accuracy", losses), ("efficiency", latencies)):
        per_seed = [mf.Ranker(space, archs, values, seed).importance() for seed in range(5)]  # five cuts of the samples
        means = {feature: sum(each[feature] for each in per_seed) / len(per_seed) for feature in per_seed[0]}
        rows += [[name, rank, mf.FEATURES[feature].title, lost]
                 for rank, (feature, lost) in enumerate(sorted(means.items(), key=lambda item: -item[1]), 1)]

    def draw(axes):
        for regarding, rank, title, lost in rows:
            axes.scatter(rank, lost, label=f"{title} ({regarding})")
        axes.set(xlabel="rank", ylabel="pair accuracy lost")
        axes.legend(fontsize="small")
    write(options, ["regarding", "rank", "feature", "pair accuracy lost"], rows, draw=draw,
          claim="The number of layers rules efficiency, the attention type the accuracy on images (Sec. 7)",
          paper="translation: En-De Connect and Dec Layer Num first for accuracy, Dec Layer Num for efficiency; "
                "CIFAR-10: attention type first for accuracy, Enc Layer Num for efficiency")


def ranker(options):
    """Sec. 3.1.2: how well rankers order sub-nets they were not fitted to, and what pruning brings at equal cost"""
    cfg, space, lines, weights = searched(options)
    archs, *values = measured_archs(lines, cfg)
    rows = []
    for share in (0.25, 0.5, 1.0):
        for name, wanted in zip(("loss", "latency"), values):
            pairs, scores = list(zip(archs, wanted)), []
            for part in range(5):
                known = [pair for place, pair in enumerate(pairs) if place % 5 != part]
                known = known[:max(20, round(share * len(known)))]  # fewer teach nothing
                unseen, truth = zip(*pairs[part::5])
                scores.append(mf.agreement(mf.Ranker(space, *zip(*known), part).score(unseen), truth))
            rows.append([f"{name} ranker", len(known), *(number for kind in zip(*scores) for number in mean_sd(kind))])
    data, ranks = held_out_data(cfg, options)
    supernet = mf.extract(weights, mf.widest(space), cfg, space).to(ranks.device).eval()
    for keep in (cfg.keep or 3, 0):
        best, means = [], []
        for seed in range(options.seeds):
            found, about = mf.rank_and_evolve(space, lines, dataclasses.replace(cfg, keep=keep, seed=seed))
            measured = [mf.held_out_loss(supernet, data, cfg, arch) for arch in found]
            best.append(min(measured))
            means.append(sum(measured) / len(measured))
        rows.append([f"keep {keep}" if keep else "whole space", about["architectures_pruned"], *mean_sd(best),
                     *mean_sd(means)])
    write(options, ["ranker or search", "sub-nets, or architectures", "tau, or best loss", "sd",
                    "pair accuracy, or finalists' loss", "sd"], rows,
          claim="Two rankers order architectures; pruning the space helps the search (Sec. 3.1.2)")


def held_out_data(cfg, options):
    """The data of a search: the same flags, so that nothing is held out that its super-net was trained on."""
    ranks = Ranks(0, 1, pick_device(cfg.device))
    names = ("cifar10",) if cfg.task == "cifar10" else ("train_text", "valid_text", "test_text")
    if not any(getattr(cfg, name) for name in names):
        fill_in(cfg, ranks, *names)
    if cfg.task == "wmt14":
        cfg.vocab_size = len(mf.read_run(dataclasses.replace(cfg))[0]["words"])
    return (Pictures if cfg.task == "cifar10" else Translations)(cfg, ranks, options.folders[0]), ranks


def compare_variants(options, cfg, variants, **claim):
    """Train {name: architecture} from scratch with --seeds seeds each, evaluate, and write a row each."""
    score = "accuracy" if cfg.task == "cifar10" else "bleu"
    if cfg.cifar10:  # missing test data end this before it trains
        load_cifar10(cfg.cifar10, "test")
    elif cfg.task == "wmt14" and cfg.train_text:
        if not cfg.test_text:
            raise UserError("--test_text: missing; give the PREFIX of the text to be scored on")
        read_pairs(cfg.test_text, *cfg.languages)
    runs = {f"{name.replace(' ', '-')}-{seed}": (name, arch, cfg.seed + seed) for name, arch in variants.items()
            for seed in range(options.seeds)}
    trained = run_all(options, {run: ["mformer.py", "--train", *options.flags, "--arch", mf.arch_text(arch), "--seed",
                                      seed] for run, (_, arch, seed) in runs.items()})
    own_flags(options, vocab_size="", tokenizer="")  # a trained network brings its own
    folders = run_all(options, {f"{run}-score": ["mformer.py", "--evaluate", *options.flags, "--init", folder]
                                for run, folder in trained.items()})
    found = {name: [read_json(folders[f"{run}-score"] / "done.json") for run in runs if runs[run][0] == name]
             for name in variants}
    rows = [[name, *mean_sd([row[score] for row in done]), " ".join(f"{row[score]:.4g}" for row in done),
             done[0]["parameters"], done[0]["flops"] / 1e9, done[0]["latency"]] for name, done in found.items()]
    write(options, ["architecture", score, "sd", "each", "parameters", "GFLOPs", "latency"], rows,
          numbers={"runs": {name: [{key: value for key, value in row.items() if key != "translations"} for row in done]
                            for name, done in found.items()}}, **claim)


def distinct(variants):
    """Without a variant that is another over again."""
    return {name: arch for number, (name, arch) in enumerate(variants.items())
            if arch not in list(variants.values())[:number]}


def types(options):
    """Table 5: an architecture as found, with softmax everywhere, with linear attention in all encoder layers (D13)"""
    given = own_flags(options, arch="")
    cfg, ranks = config_of(options)
    cfg.arch = given.arch
    arch = mf.chosen_arch(cfg, ranks)
    compare_variants(options, cfg, distinct({"as found": arch, "all softmax": mf.retype(arch, "softmax", mf.PARTS),
                                             "all linear": mf.retype(arch, "linear")}),
                     claim="Mixed attention scores like softmax, linear attention alone does not (Table 5)",
                     paper="; ".join(f"{task} {', '.join(map(str, scores))}" for task, scores in TABLE_5.items()))


def decoder(options):
    """Sec. 8: linear attention in the decoder's self-attention, its cross-attention, both"""
    given = own_flags(options, arch="")
    cfg, ranks = config_of(options)
    if cfg.task != "wmt14":
        raise UserError("decoder: images have no decoder; add --task wmt14")
    cfg.arch = given.arch
    arch = mf.retype(mf.chosen_arch(cfg, ranks), "softmax", ("decoder_types", "cross_types"))
    cases = {"none": (), "self": ("decoder_types",), "cross": ("cross_types",),
             "both": ("decoder_types", "cross_types")}
    compare_variants(options, cfg, {f"linear in decoder {name}": mf.retype(arch, "linear", parts)
                                    for name, parts in cases.items()},
                     claim="Linear attention in the decoder breaks a translator (Sec. 8)",
                     paper=f"{IN_DECODER} BLEU in all cases")


def shape(options):
    """Figures 5 and 6: widths, heads, types and connections layer by layer"""
    given = own_flags(options, arch=[])
    cfg, ranks = config_of(options)
    rows = []
    for name in given.arch or mf.PUBLISHED[cfg.task]:
        arch = mf.chosen_arch(dataclasses.replace(cfg, arch=str(name)), ranks)
        rows += [[name, title, " ".join(map(str, getattr(arch, feature)))]
                 for feature, (title, depth) in mf.FEATURES.items() if depth and getattr(arch, feature)]

    def draw(axes):
        for name, title, values in rows:
            if title == "Enc FFN Dim":
                axes.plot([int(value) for value in values.split()], marker="o", label=name)
        axes.set(xlabel="layer", ylabel="Enc FFN Dim")
        axes.legend(fontsize="small")
    write(options, ["architecture", "feature", "layer by layer"], rows, draw=draw,
          claim="cosFormer* wants shallow and thin networks (Figures 5 and 6)",
          paper="published is cosFormer*'s list for CIFAR-10 alone; the others are made to the paper's totals")


def pareto(options):
    """Figure 1: score against FLOPs; on the front is what none beats in both"""
    found = []
    for folder in options.folders:
        done = read_json(folder / "done.json")
        score = next((key for key in ("accuracy", "bleu") if isinstance(done, dict) and key in done), None)
        if score and {"parameters", "flops", "latency"} <= done.keys():
            found.append([str(folder), score, done[score], done["flops"], done["latency"], done["parameters"]])
    if not found or len({row[1] for row in found}) > 1:
        raise UserError("--folders: no folder holds any score, or they hold different ones; name finished folders of "
                        "--evaluate of one task")

    def beaten(row):
        return any(other[2] >= row[2] and other[3] <= row[3] and other[2:4] != row[2:4] for other in found)

    def draw(axes):
        for folder, score, value, flops, _, parameters in found:
            axes.scatter(flops, value, s=parameters / 4e4, label=folder, alpha=0.6)
        axes.set(xlabel="FLOPs", ylabel=found[0][1])
        axes.legend(fontsize="small")
    write(options, ["folder", found[0][1], "FLOPs", "latency", "parameters", "on the front"],
          [[row[0], *row[2:], not beaten(row)] for row in found], draw=draw,
          claim="mFormer balances score and FLOPs (Figure 1)", paper="mFormer is on the front of both tasks")


def attention_cost(kind, tokens, device, clock, runs=3):
    """What one attention costs, 8 heads of 64, batch 1: [tokens, kind, forward ms, backward ms: least of several runs;
    kept MB: what stays for the backward pass; peak MB: all that was allocated at once, where the device counts it]."""
    heads, dim, best, kept = 8, 64, [math.inf] * 2, {}
    q, k, v = (torch.randn(1, heads, tokens, dim, device=device, requires_grad=True) for _ in range(3))
    table, turns = torch.randn(29, dim, device=device, requires_grad=True), mf.fixed_turns(tokens, device)
    attend = {"plain softmax": lambda: mf.softmax_attention(q, k, v),
              "relative softmax": lambda: mf.softmax_attention(q, k, v, table),
              "linear": lambda: mf.linear_attention(q, k, v, turns),
              "causal linear": lambda: mf.causal_linear_attention(q, k, v, turns)}[kind]

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attend()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(runs):
        began = clock()
        out = attend()
        middle = clock()
        out.sum().backward()
        best = [min(best[0], middle - began), min(best[1], clock() - middle)]
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None
    return [kind, tokens, 1000 * best[0], 1000 * best[1], sum(kept.values()) / 1e6, peak]


def length_summary(rows):
    """For each type [type, the power of the length with which time and kept memory grow from 1,024 tokens on, and where
    linear gets faster than it]."""
    summary, kinds = [], dict.fromkeys(row[0] for row in rows)
    costs = {kind: {tokens: (forward + backward, kept) for name, tokens, forward, backward, kept, _ in rows
                    if name == kind} for kind in kinds}
    for kind, cost in costs.items():
        powers = [math.log(cost[max(cost)][part] / cost[1024][part]) / math.log(max(cost) / 1024) for part in (0, 1)]
        slower = [tokens for tokens in cost if costs["linear"][tokens][0] >= cost[tokens][0]]
        summary.append([kind, *powers, min([tokens for tokens in cost if tokens > max(slower, default=0)],
                                           default=None)])
    return summary


def length(options):
    """Linear attention grows linearly with the length, softmax does not: time and memory of the attentions"""
    given = own_flags(options, longest=8192)
    cfg, ranks = config_of(options)
    device = ranks.device

    def clock():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.process_time() if cfg.cost == "cpu" and device.type == "cpu" else time.perf_counter()
    rows = [attention_cost(kind, tokens, device, clock)
            for tokens in (256, 512, 1024, 2048, 4096, 8192) if tokens <= max(2048, given.longest)
            for kind in ("plain softmax", "relative softmax", "linear", "causal linear")
            if kind != "relative softmax" or tokens <= 4096]  # its scores would fill more than 8 GB

    def draw(axes):
        for kind in dict.fromkeys(row[0] for row in rows):
            own = [row for row in rows if row[0] == kind]
            axes.loglog([row[1] for row in own], [row[2] + row[3] for row in own], marker="o", label=kind)
        axes.set(xlabel="tokens", ylabel="forward and backward, ms")
        axes.legend(fontsize="small")
    summary = [dict(zip(("type", "power_of_time", "power_of_memory", "linear_faster_from"), row))
               for row in length_summary(rows)]
    write(options, ["type", "tokens", "forward ms", "backward ms", "kept MB", "peak MB"], rows, draw=draw,
          claim="Linear attention grows linearly with the length and softmax does not", numbers={"growth": summary})
    for row in summary:
        print(row)


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
    """Tables 3 and 5: parameters and FLOPs of the published networks by the paper's counting and the honest one"""
    cfg, _ = config_of(options)
    paper = mf.Config(**{key: value for key, value in mf.PRESETS[cfg.task]["base"].items() if key != "search"},
                      task=cfg.task)
    rows = []
    for name in MFORMER[cfg.task]:
        arch = mf.parse_arch(name, paper)
        rows.append([name, f"{paper_parameters(arch, paper):,}", paper_flops(arch, paper) / 1e9,
                     paper_flops(arch, paper, True) / 1e9, mf.model_flops(arch, paper) / 1e9])
    write(options, ["network", "parameters, paper's counting", "GFLOPs, paper's counting", "GFLOPs, honest",
                    "GFLOPs this file does"], rows, claim="Parameters and FLOPs of Tables 3 and 5")


CLAIMS = {function.__name__: function
          for function in (counts, importance, ranker, types, decoder, shape, pareto, length)}


def main(argv=None):
    return study("mformer", CLAIMS, argv)


if __name__ == "__main__":
    as_program("mformer", CLAIMS)
