"""What ALBERT's paper claims, re-made: python -m tests.claims.albert NAME ... (study.py says how).

Flags that are no study's belong to albert.py: --init, --preset, --corpus, --length and so on.
"""
import argparse
import functools
import json
import os
import statistics

import torch
import torch.nn.functional as F

import albert
from common.distributed import seed_everything
from common.files import read_json, read_jsonl, write_atomic
from common.tokenization import load_tokenizer
from data.corpus import Corpus
from data.demo import make_demo
from data.inputs import ROOT
from data.text import make_corpus
from tests.claims import pictures, study
from tests.claims.study import Found, Study

paper = functools.partial(study.published, "albert")
SHARES = {"all-shared": "all", "shared-attention": "attention", "shared-FFN": "ffn", "not-shared": "none"}
CONFIGURATIONS = (  # (table, configuration, settings)
    ("Table 1", "BERT base", albert.PRESETS["bert-base"]),
    ("Table 1", "BERT large", albert.PRESETS["bert-large"]),
    *(("Table 1", f"ALBERT {name}", albert.PRESETS[name]) for name in ("base", "large", "xlarge", "xxlarge")),
    *(("Table 3", f"{name} E={E}", dict(embedding=E, share=SHARES[name]))  # E = H: no mapping (D9)
      for name in ("not-shared", "all-shared") for E in (64, 128, 256, 768)),
    *(("Table 4", f"{name} E={E}", dict(embedding=E, share=share))
      for E in (768, 128) for name, share in SHARES.items()),
    ("Table 12", "H=4096, 3 layers", dict(albert.PRESETS["xxlarge"], layers=3)),
    ("Table 12", "H=6144, 3 layers", dict(layers=3, hidden=6144, heads=96, ffn=24576)))
PUBLISHED = tuple((*row, paper(row[0], f"{row[1]}, parameters")) for row in CONFIGURATIONS)  # and millions
TABLE2 = {name: paper("Table 2", f"{title}, speed-up") for name, title in (  # of training, over BERT large
    ("bert-base", "BERT base"), ("bert-large", "BERT large"), ("base", "ALBERT base"), ("large", "ALBERT large"),
    ("xlarge", "ALBERT xlarge"), ("xxlarge", "ALBERT xxlarge"))}


def countings(cfg):
    """Four ways to count parameters, each right for some rows of Tables 1, 3, 4 and 12: A the encoder, B with pooler,
    C with the heads too, D as B with position and segment tables and their LayerNorm H wide."""
    found = albert.parts(cfg)
    encoder = sum(found[name] for name in ("embeddings", "mapping", "attention", "ffn"))
    pooled = encoder + found["pooler"]
    return {"A": encoder, "B": pooled, "C": sum(found.values()),
            "D": pooled + (cfg.positions + 4) * (cfg.hidden - (cfg.embedding or cfg.hidden))}


def parameters(options):
    rows = []
    for table, name, settings, published in PUBLISHED:
        found = countings(albert.Config(**settings))
        agrees = ", ".join(key for key, value in found.items() if round(value / 1e6) == published)
        nearest = min((value / 1e6 - published for value in found.values()), key=abs)
        rows.append([table, name, f"{published}M", *(f"{value:,}" for value in found.values()),
                     agrees or f"none; nearest: {nearest:+.1f}M"])
    others = [row for row in rows if row[1] != "ALBERT xxlarge"]
    return Found(["table", "configuration", "paper", "A no pooler", "B with pooler", "C with heads",
                  "D wide positions", "agrees"], rows,
                 facts={f"{len(others)} of {len(rows)} rows agree with one of four ways to count":
                        not any(row[-1].startswith("none") for row in others),
                        f"xxlarge: {rows[5][2]} printed, {rows[5][4]} counted with the pooler":
                        not rows[5][-1].startswith("none")})


@torch.no_grad()
def layer_distances(model, batches):
    """Figure 1: for each layer the mean over all real tokens of the L2 distance and of the angle, in degrees, between
    its input and its output.

    model: an Encoder; batches: of (ids, segments, lengths). Returns [{"layer", "l2", "degrees"}].
    """
    model.eval()
    totals, tokens, states, layer = torch.zeros(model.depth, 2, dtype=torch.float64), 0, [], model.layer

    def watched(number, x, mask, places=None):
        states.append(x)
        return layer(number, x, mask, places)

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


def flops(options):
    found = {name: albert.flops(albert.Config(**albert.PRESETS[name])) for name in TABLE2}
    rows = [[name, f"{value:,}", found["bert-large"] / value, TABLE2[name], TABLE2[name] * value / found["bert-large"]]
            for name, value in found.items()]
    ratios = [row[-1] for row in rows if row[0] != "bert-large"]
    return Found(["preset", "FLOPs, 512 tokens", "BERT large / row", "paper", "paper / ours"], rows,
                 facts={f"the published speeds are {min(ratios):.1f} to {max(ratios):.1f} times what the FLOPs give":
                        max(ratios) < 1.2})


# Primary question: does the order of sentences teach what the next sentence does not (Table 5)? Words alone are trained
# at 16 tokens (3,000 updates of 64 rows; two sentences hardly ever fit, so that the arms share this), then 64 tokens
# with the arm's objective (3,000 updates of 32 rows). The arms are sop, nsp, none, and as a control shuffled: SOP with
# labels drawn apart from the order. There are two kinds of text: documents of a few sentences (the demo's, 4 on
# average) and of many (novels, 200 and more, with --many). The arms of a seed share first weights, text, order, masks.
#
# Scores are of held-out documents, one pass or 4,096 sequences: masked words (on pairs in their order, D5), and
# accuracy on SOP's and on NSP's pairs, standard error 1.5 points or less. The model's own head (D4, D5: one head for
# both) says little about a task that it was not trained for: NSP's calls all pairs of SOP consecutive, which is right
# for half of them whatever the model knows, and that of "none" stays as it was drawn. So what is judged is a two-way
# head fitted anew for each model and task: a logistic regression on the state of [CLS], all that the paper's head
# reads, with pairs of the training text. The encoder is left as it is: tuned, it would learn the task then.
#
# Hypotheses, for each text, over differences paired by seed with 95% intervals, in points:
# H1 the NSP model is at chance on SOP: 3 points less what it is above 50 are more than 0 (the paper calls 52.0 chance);
# H2 the SOP model is above chance on SOP: its difference to the control lies above 0;
# H3 so does its difference to the NSP model on SOP;
# H4 NSP is learnt by NSP's model, and H5 by SOP's in part: each one's difference to the control on NSP lies above 0;
# H6 SOP costs no words: its difference to "none" lies above -1 (the paper's is -0.9).
# Stopping rule: three seeds, no more, whatever comes out.
ARMS = ("sop", "nsp", "none", "shuffled")
# the demo's first run, as it was when the questions below were written
SIXTEEN = ["albert.py", "--pretrain", "--length", 16, "--batch", 64, "--lr", 0.08, "--save_minutes", 0.5]


def prepared(options, name, paths, pieces, held_out):
    """(folder with tokenizer and token files of a text, which runs share; --held_out's value; sequences of 64 tokens in
    one pass over the held-out part)."""
    folder = options.runs / "text" / name
    _, corpus = make_corpus(paths or make_demo(ROOT / "data" / "demo")["corpus"], folder, pieces,
                            workers=os.cpu_count() or 1)
    held = held_out if len(corpus.ids) > 2 * held_out else len(corpus.ids) // 5  # a short text gives a fifth
    return folder, held, corpus.split(1.0, held)[1].slots(61)


def cls_states(model, corpus, tokenizer, cfg, objective, rows, device):
    """([CLS] states (n, H), labels (n,)) of the labelled ones of so many sequences of a text, masks as in training."""
    model.eval()
    states, labels = [], []
    for position in range(0, rows, 64):
        *inputs, _, _, order = albert.language_batch(corpus, tokenizer, cfg, objective, position,
                                                     min(64, rows - position), device)
        states.append(model.encoder(*inputs)[:, 0][order != -100])
        labels.append(order[order != -100])
    return torch.cat(states).double(), torch.cat(labels)


def fit_head(states, labels, decay=1e-3):
    """(weight (H,), bias) of the logistic regression of labels on standardised states, as a map of raw ones."""
    with torch.enable_grad():
        scale = states.std(0) + 1e-6
        inputs, targets = (states - states.mean(0)) / scale, labels.double()
        weight = torch.zeros(states.shape[1] + 1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

        def loss():
            optimizer.zero_grad()
            value = (F.binary_cross_entropy_with_logits(inputs @ weight[:-1] + weight[-1], targets)
                     + decay * weight[:-1].square().sum())
            value.backward()
            return value

        optimizer.step(loss)
    raw = weight.detach()[:-1] / scale
    return raw, weight.detach()[-1] - states.mean(0) @ raw


@torch.no_grad()
def score_order(folder, text, held, fitting):
    """What a run of albert.py knows of SOP and NSP: {"mlm", "own nsp", "own sop", "nsp", "sop", "asked", "seconds"},
    kept in the folder. fitting: sequences of the training text on whose pairs the heads are fitted."""
    path = folder / f"scores-{fitting}.json"
    if path.exists():
        return read_json(path)
    done = read_json(folder / "done.json")
    cfg = study.run_settings(folder, albert.Config, seed=0, init=str(folder))
    source, tokenizer = albert.read_source(cfg), load_tokenizer(text)
    model, device = albert.LanguageModel(cfg), torch.device("cpu")
    albert.start_from(model, source)
    train, dev = Corpus(text, tokenizer).split(1.0, held)
    found = {"mlm": done["mlm"], "own nsp": done["nsp"], "own sop": done["sop"], "asked": done["scored"],
             "seconds": read_jsonl(folder / "log.jsonl")[-1]["seconds"]}
    for task in ("nsp", "sop"):
        weight, bias = fit_head(*cls_states(model, train, tokenizer, cfg, task, fitting, device))
        states, labels = cls_states(model, dev, tokenizer, cfg, task, cfg.dev_rows, device)
        found[task] = ((states @ weight + bias > 0) == labels.bool()).double().mean().item()
    write_atomic(path, json.dumps(found))
    return found


def train_arms(options, name, text, held, rows):
    """[{arm: its scores} of each seed] on one kind of text."""
    data = ["--corpus", text, "--held_out", held, *options.flags]
    first = study.run_all(options, {f"{name}-words-{seed}": [
        *SIXTEEN, "--embedding", 48, "--objective", "none", "--seed", seed, "--steps", min(3000, options.updates),
        "--dev_rows", 64, "--save_every", options.updates, *data] for seed in range(options.seeds)})
    arms = {(seed, arm): f"{name}-{arm}-{seed}" for seed in range(options.seeds) for arm in ARMS}
    study.run_all(options, {run: [
        "albert.py", "--pretrain", "--init", first[f"{name}-words-{seed}"], "--objective", arm, "--seed", seed,
        "--steps", options.updates, "--lr", 0.08, "--dev_rows", rows, "--save_every", options.updates,
        "--save_minutes", 0.5, *data] for (seed, arm), run in arms.items()})
    found = {key: score_order(options.runs / run, text, held, options.fitting) for key, run in arms.items()}
    return [{arm: found[seed, arm] for arm in ARMS} for seed in range(options.seeds)]


def gaps_of_order(each):
    """{what: interval, in points} of one text."""
    def gap(task, one, other):
        return study.interval([100 * (seed[one][task] - seed[other][task]) for seed in each])

    return {"3 points less the NSP model's gain on SOP": study.interval([53 - 100 * seed["nsp"]["sop"]
                                                                         for seed in each]),
            "SOP model - control on SOP": gap("sop", "sop", "shuffled"),
            "SOP model - NSP model on SOP": gap("sop", "sop", "nsp"),
            "NSP model - control on NSP": gap("nsp", "nsp", "shuffled"),
            "SOP model - control on NSP": gap("nsp", "sop", "shuffled"),
            "SOP model - none on words": gap("mlm", "sop", "none")}


def order(options):
    options.text = "many" if options.many else "few"
    paths, pieces, held_out = (options.many, 2000, 40) if options.many else (options.few, 1000, 1250)
    options.name += "-many" * bool(options.many)
    text, held, sequences = prepared(options, options.text, paths, options.pieces or pieces, held_out)
    each = train_arms(options, options.text, text, held, min(sequences, 4096))
    rows = [[arm, *(study.show_mean([100 * (seed[arm][key] or 0) for seed in each])
                    for key in ("mlm", "nsp", "sop", "own nsp", "own sop"))] for arm in ARMS]
    gaps = gaps_of_order(each)
    blind = study.side(gaps["SOP model - control on SOP"], n=options.seeds) != "holds"
    return Found(["trained on", "masked words", "NSP", "SOP", "NSP, own head", "SOP, own head"], rows, gaps,
                 n=options.seeds, numbers={"seeds": each}, says="At this size the model that was trained on order does "
                 "not read it either, so that the others' chance says little" * blind)


# Further question: what do E and sharing cost off the plateau of unigrams (Tables 3, 4)? The demo's first run (2
# layers, H = 64, 16 tokens, 3,000 updates of 64 rows, words alone) with E of 16, 32 and 64 = H (without mapping there,
# D9) and four sharings; masked words of at least 20,000 held-out pieces. Differences are paired by seed, with 95%
# intervals.
# H1 (Table 4) sharing everything costs words: not-shared minus all-shared lies above 0 at every E;
# H2 most of it comes from the feed-forward part: shared-attention minus shared-FFN lies above 0 at every E;
# H3 (Table 3) not shared, words gain from E = 16 to 64;
# H4 all-shared, E = 32 is as good as 64: E = 32 minus 64 lies above -0.5 points.
# Stopping rule: three seeds, no more, whatever comes out. A seed takes 20 core-minutes.
WIDTHS = (16, 32, 64)


# Further questions: what do depth, width, groups and dropout do for a shared stack off the plateau (Tables 11, 12, Sec.
# 4.5, Table 8), and what does a wide shared network make of the time of a narrower one that shares nothing (Table 6)?
# The settings are those of `sharing` with E = 32 (mapped to H in all shared networks), every layer shared; one thing
# differs from arm to arm. A hypothesis is a contrast, a weighted sum of the arms' percents of masked words found,
# formed within a seed (same text, order, masks); it holds where the 95% interval over the seeds lies above 0. In "less
# to gain" the first doubling's gain is asked to be larger than the last one's. Width 6,144, where the paper's network
# gets worse, has no counterpart here. Depth, groups, width and smoothness (below) are asked at half the learning rate
# and three times the warm-up: of two pilots of eight layers this one left the plateau. Stopping rule: three seeds of
# each, no more, whatever comes out. A seed takes 7 core-minutes for depth, 6 for groups, 4 for width, 2 for dropout, 6
# for time.
BASE = ["--embedding", 32, "--share", "all"]
GENTLE = ["--lr", 0.04, "--warmup", 0.3]
DEEP = [*GENTLE, "--layers", 8]
WORDS = {"few": (), "updates": 3000, "rows": 11000, "pieces": 1000}


def minus(one, other):
    return {one: 1, other: -1}


def train_arms_on_words(options, arms):
    """{(arm, seed): run folder} of {arm: its flags}."""
    text, held, _ = prepared(options, "few", options.few, options.pieces, 1250)
    runs = {(arm, seed): f"{arm}-{seed}".replace(" ", "") for seed in range(options.seeds) for arm in arms}
    folders = study.run_all(options, {run: [
        *SIXTEEN, *BASE, "--objective", "none", "--steps", options.updates, "--seed", seed, "--dev_rows", options.rows,
        "--save_every", options.updates, "--corpus", text, "--held_out", held, *options.flags, *arms[arm]]
        for (arm, seed), run in runs.items()})
    return {key: folders[run] for key, run in runs.items()}


def compare_words(options, arms, contrasts, updates=None):
    """Train the arms with every seed and judge the contrasts by the masked words that they find.

    updates: {arm: its updates} where they differ."""
    done = {key: read_json(folder / "done.json") for key, folder in train_arms_on_words(options, arms).items()}
    seeds = range(options.seeds)
    words = {arm: [done[arm, seed]["mlm"] for seed in seeds] for arm in arms}
    gaps = {what: study.interval([100 * sum(weight * words[arm][seed] for arm, weight in weights.items())
                                  for seed in seeds]) for what, weights in contrasts.items()}
    rows = [[arm, study.show_mean([100 * share for share in words[arm]]), f"{done[arm, 0]['parameters']:,}",
             *([updates[arm]] if updates else [])] for arm in arms]
    return Found(["network", "masked words", "parameters", *["updates"] * bool(updates)], rows, gaps, n=options.seeds,
                 numbers={"seeds": words, "asked": next(iter(done.values()))["scored"]["mlm"]})


def of_words(claim, arms, contrasts, picture=None):
    """A Study of arms that differ in one thing, {arm: its flags}, and are judged by the masked words that they find.
    contrasts: {what: {arm: weight}}, weighted sums of the arms' percents."""
    return Study(functools.partial(compare_words, arms=arms, contrasts=contrasts), claim, WORDS, picture=picture)


STUDIES = {
    "sharing": of_words(
        "Sharing costs words, most by the feed-forward part, and a small E suffices (Tables 3, 4)",
        {f"{name} E={E}": ["--embedding", E % 64, "--share", SHARES[name]] for name in SHARES for E in WIDTHS},
        {f"{one} - {other} at E = {E}": minus(f"{one} E={E}", f"{other} E={E}")
         for one, other in (("not-shared", "all-shared"), ("shared-attention", "shared-FFN")) for E in WIDTHS}
        | {"E = 64 - E = 16, not-shared": minus("not-shared E=64", "not-shared E=16"),
           "E = 32 - E = 64, all-shared": minus("all-shared E=32", "all-shared E=64")}, pictures.draw_sharing),
    "depth": of_words(
        "Depth helps a shared stack, with less and less to gain (Table 11)",
        {f"{number} layer{'s' * (number > 1)}": [*GENTLE, "--layers", number] for number in (1, 2, 4, 8)},
        {"2 layers beat 1": minus("2 layers", "1 layer"), "4 beat 2": minus("4 layers", "2 layers"),
         "8 beat 4": minus("8 layers", "4 layers"),
         "less to gain": minus("2 layers", "1 layer") | {"8 layers": -1, "4 layers": 1}}),
    "groups": of_words(
        "Smaller groups of shared layers find more words (Sec. 4.5)",
        {f"{number} group{'s' * (number > 1)}": [*GENTLE, "--layers", 4, "--groups", number] for number in (1, 2, 4)},
        {"2 groups beat 1": minus("2 groups", "1 group"), "4 beat 2": minus("4 groups", "2 groups")}),
    "width": of_words(
        "Width helps, with less and less to gain (Table 12)",
        {f"H = {32 * heads}": [*GENTLE, "--hidden", 32 * heads, "--heads", heads, "--ffn", 64 * heads]
         for heads in (1, 2, 4)},
        {"H = 64 beats 32": minus("H = 64", "H = 32"), "128 beats 64": minus("H = 128", "H = 64"),
         "less to gain": {"H = 64": 2, "H = 32": -1, "H = 128": -1}}),
    "dropout": of_words(
        "Without dropout more masked words are found (Table 8)",
        {"none": ["--dropout", 0], "0.1": ["--dropout", 0.1]}, {"without it more words": minus("none", "0.1")})}


def equal_time(options):
    budgets = (1, 2, 4)
    shapes = {"ALBERT": ["--hidden", 128, "--heads", 4, "--ffn", 256], "BERT": ["--embedding", 0, "--share", "none"]}
    slower, updates = slowness(options, shapes), {}
    for times in budgets:
        updates |= {f"BERT, {times}": times * options.updates,
                    f"ALBERT, {times}": round(times * options.updates / slower)}
    arms = {arm: [*shapes[arm.partition(",")[0]], "--steps", steps] for arm, steps in updates.items()}
    contrasts = {f"ALBERT ahead at {times}": minus(f"ALBERT, {times}", f"BERT, {times}") for times in budgets}
    return compare_words(options, arms, contrasts, updates=updates)


def slowness(options, shapes, turns=40):
    """How many times as long an update of the first shape takes as one of the second, both in turns; kept in a file."""
    path = options.runs / "slowness.json"
    if not path.exists():
        torch.set_num_threads(1)  # as the runs have it
        updates = {}
        for name, shape in shapes.items():
            flags = [*map(str, [*SIXTEEN[2:], *BASE, *shape])]
            cfg = study.read_flags(albert, argparse.Namespace(flags=flags), "pretrain")
            _, update, _ = albert.rehearsal(cfg)
            updates[name] = functools.partial(update, cfg.batch, 1)
        one, two = study.in_turns(updates, turns).values()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(statistics.median(a / b for a, b in zip(one, two))))
    return read_json(path, float)


# Further question: do layers that share their weights change their input more smoothly than layers that do not, and do
# they never stop (Figure 1)? Eight layers, shared (the arm of `depth`) and not, as there. The angle between a layer's
# input and its output is measured on 1,024 held-out rows. Roughness of a curve: how far its angles are from the middle
# of their neighbours, in the mean, as a share of the mean angle (a straight line: 0). H1 the unshared network's is
# larger, paired by seed; H2 the shared network's last layer still turns by more than half of its mean angle. Both by
# 95% intervals over three seeds; random weights stand beside them. A seed takes 4 core-minutes for each.
SMOOTH = {"8 layers": DEEP, "8 layers, not shared": [*DEEP, "--share", "none"]}


def roughness(curve):
    degrees = [line["degrees"] for line in curve]
    bends = [abs(here - (before + after) / 2) for before, here, after in zip(degrees, degrees[1:], degrees[2:])]
    return statistics.mean(bends) / statistics.mean(degrees)


def curves_of(folder):
    """layer_distances of a run's model, and of the same model with random weights, on 1,024 rows of the text that it
    held out, with masks as in training (the paper does not say what it read)."""
    cfg = study.run_settings(folder, albert.Config, seed=0, init=str(folder))
    source, tokenizer = albert.read_source(cfg), load_tokenizer(cfg.corpus[0])
    dev = Corpus(cfg.corpus[0], tokenizer).split(1.0, int(cfg.held_out))[1]  # a number of documents
    batches = [albert.language_batch(dev, tokenizer, cfg, "none", position, 64, torch.device("cpu"))[:3]
               for position in range(0, 1024, 64)]
    curves = []
    for trained in (True, False):
        seed_everything(cfg.seed, "pretrain", "weights")
        model = albert.LanguageModel(cfg)
        if trained:
            print(albert.start_from(model, source))
        curves.append(layer_distances(model.encoder, batches))
    return curves


def smoothness(options):
    rows, rough = [], {}
    found = {key: curves_of(folder) for key, folder in train_arms_on_words(options, SMOOTH).items()}
    for arm in SMOOTH:
        for place, kind in enumerate(("trained", "random weights")):
            seeds = [found[arm, seed][place] for seed in range(options.seeds)]
            rough[arm, kind] = [roughness(curve) for curve in seeds]
            means = [statistics.mean(line["degrees"] for line in lines) for lines in zip(*seeds)]
            rows.append([f"{arm}, {kind}", *(f"{degrees:.1f}" for degrees in means), study.show_mean(rough[arm, kind])])
    turns = [[line["degrees"] for line in found["8 layers", seed][0]] for seed in range(options.seeds)]
    gaps = {"roughness, not shared - shared": study.interval([
                two - one for one, two in zip(*(rough[arm, "trained"] for arm in SMOOTH))]),
            "the shared network's last angle - half of its mean": study.interval([
                degrees[-1] - statistics.mean(degrees) / 2 for degrees in turns])}
    return Found(["degrees", *(f"layer {number}" for number in range(1, 9)), "roughness"], rows, gaps, n=options.seeds,
                 numbers={"curves": {f"{arm}, seed {seed}": both for (arm, seed), both in found.items()}})


CLAIMS = {
    "order": Study(order, "Sentence order teaches what the next sentence does not (Table 5)",
                   {"few": (), "many": (), "updates": 3000, "fitting": 8192, "pieces": 0}),
    **STUDIES,
    "equal_time": Study(equal_time, "At equal time the wide network that shares its layers wins (Table 6)",
                        {**WORDS, "updates": 1000}),
    "smoothness": Study(smoothness, "Layers that share their weights change their input smoothly, and never stop "
                        "(Figure 1)", WORDS, picture=pictures.draw_layers),
    "parameters": Study(parameters, "Parameters of the configurations of Tables 1, 3, 4 and 12"),
    "flops": Study(flops, "Table 2: speed-ups over BERT large, by the products of matrices alone")}

if __name__ == "__main__":
    study.as_program("albert", CLAIMS)
