"""Studies of AutoBERT-Zero: python -m tests.claims.autobert_zero NAME (study.py says how)."""
import argparse
import json
import statistics
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F

import autobert_zero as abz
from common import glue, tasks
from common.cli import Command
from common.distributed import peak_memory
from common.tokenization import load_tokenizer
from data.demo import make_demo
from data.text import make_corpus
from tests.claims import search_replay, search_table
from tests.claims.pictures import dots, lines
from tests.claims.search_tasks import write_tasks
from tests.claims.study import (
    ROOT, Claim, bootstrap, counted, in_turns, kendall, main, read, run_all, run_name, study)

PROGRAM = "autobert_zero.py"
TASKS = "QNLI", "RTE", "MNLI"
HYBRID = f"conv3 | {abz.BERT_ATTENTION} | conv3 | {abz.BERT_ATTENTION}"
FIRST = 6  # first seed of a search; pilots used earlier seeds
HELD_OUT = 1200  # training examples that serve a search as its dev set, as many as the demo has
BASELINES = {"hybrid": HYBRID, "BERT": "bert"}
# how a network is judged: pre-trained once, fine-tuned with three seeds
JUDGE = ["--steps", 1500, "--batch", 16, "--lr", 3e-3, "--finetune_lr", 2e-3]
JUDGE += ["--finetune_epochs", 1]
MEAN = "mean accuracy of QNLI, RTE, MNLI"


def hold_out(folder):
    """A GLUE folder for searches: train and dev are parts of the demo's train. Dev judges
    winners."""
    source = Path(make_demo(ROOT / "data" / "demo")["glue"])
    for name in TASKS:
        text = (source / name / "train.tsv").read_text(encoding="utf-8")
        examples = text.splitlines(keepends=True)
        cut = len(examples) - HELD_OUT
        (folder / name).mkdir(parents=True, exist_ok=True)
        splits = {"train": examples[:cut], "dev": examples[:1] + examples[cut:]}
        for split, part in splits.items():
            path = glue.path_of(folder, name, split)
            path.write_text("".join(part), encoding="utf-8")
    return folder.resolve()


def shared_weights(**changes):
    """Flags of the demo's search with shared weights, which the preset `demo` turns off."""
    demo = {**abz.PRESETS["demo"], **abz.PRESETS["demo"]["search"], **changes}
    flags = ["--preset", "base"]
    for name, value in demo.items():
        if type(value) in (int, float, str):
            flags += [f"--{name}", value]
    return flags


def run_searches(options, *strategies, first=FIRST, flags=()):
    """{(strategy, seed): run folder} of the demo's search, or with other flags."""
    held_out = hold_out(options.runs / "glue")
    keys = []
    commands = {}
    for seed in range(first, first + options.seeds):
        for strategy in strategies:
            keys.append((strategy, seed))
            commands[f"search-{strategy}-{seed}"] = [
                PROGRAM, "--search", "--strategy", strategy, "--seed", seed, *flags,
                *options.flags, "--glue", held_out]
    return dict(zip(keys, run_all(options, commands).values()))


def train(options, arms, runs=3, trainings=1):
    """{(arm, seed): mean score} of {(arm, seed): an architecture, or flags of its start}.

    Each network is pre-trained and, with `runs` seeds, fine-tuned on TASKS, as in the demo but for
    JUDGE. Dev scores count. trainings: the number of training seeds: the arm's, that plus 100 and
    so on."""
    keys = [*product(range(trainings), arms)]
    pretraining = {}
    for training, (arm, seed) in keys:
        network = arms[arm, seed]
        start = ["--arch", network] if isinstance(network, str) else network
        seed += 100 * training
        name = run_name("pretrain", arm, seed)
        pretraining[name] = [PROGRAM, "--pretrain", *start, "--seed", seed, *JUDGE, *options.flags]
    finetuning = {}
    for (training, (arm, seed)), folder in zip(keys, run_all(options, pretraining).values()):
        seed += 100 * training
        for task in TASKS:  # one command each: in a common one RTE starts from MNLI's model
            finetuning[run_name("tune", arm, seed, task)] = [
                PROGRAM, "--finetune", task, "--runs", runs, "--init", folder, "--seed", seed,
                *JUDGE, *options.flags]
    values = {}
    folders = run_all(options, finetuning).values()
    for ((_, key), task), folder in zip(product(keys, TASKS), folders):
        mean = read(folder / "done.json")["tasks"][task]["mean"]
        values.setdefault(key, []).append(mean)
    return {key: statistics.mean(each) for key, each in values.items()}


def by_arm(scores):
    """{arm: [score of each seed]} of {(arm, seed): score}."""
    values = {}
    for (arm, _), score in scores.items():
        values.setdefault(arm, []).append(score)
    return values


def winner(folder):
    return read(folder / "best.json")["arch"]


def search_and_train(options, first, children=12, flags=(), baselines=BASELINES, **training):
    """The record of `search`, from a first seed on. children: the number of candidates of a search
    after its initial population."""
    names = {"op-nas": "OP-NAS", "random": "random search"}
    searches = run_searches(options, *names, first=first, flags=flags)
    arms = {(names[one], seed): winner(folder) for (one, seed), folder in searches.items()}
    for seed in range(first, first + options.seeds):
        arms |= {(name, seed): arch for name, arch in baselines.items()}
    values = by_arm(train(options, arms, **training))
    later = {"op-nas": "children", "random": "random candidates"}
    scores = {name: [] for name in names.values()}
    for (one, _), folder in searches.items():
        each = [*candidates(folder).values()]
        scores[names[one]].append(each)
        values.setdefault(later[one], []).append(statistics.mean(each[-children:]))
    return {"values": values, "scores": scores}


@study("2.5 core-hours", picture=dots(MEAN))
def search(options):
    """Four layers of width 64 on demo data; searches of 20 candidates. The search scores
    networks on the tasks of the demo preset. Winners and baselines are then trained from scratch
    with the seed of their search (1,500 steps of pre-training, three seeds of fine-tuning) and
    judged by the mean of three tasks, on dev examples that no search has seen. Children and random
    candidates: mean score in the search of the last 12 candidates."""
    return search_and_train(options, FIRST)


@study(
    "2.5 core-hours after `search`",
    Claim("again-random", "OP-NAS finds better networks than random search",
          "curves (Figure 6)",
          [("OP-NAS", "random search"), ("new OP-NAS", "new random search")]),
    Claim("again-children", "Children of OP-NAS are better than random candidates",
          "curves (Figure 6)", [("children", "random candidates")]),
    Claim("again-bert", "The searched network is better than BERT, and than a hybrid by hand",
          "GLUE 86.3 against 83.1 (Table 5)",
          [("OP-NAS", "BERT"), ("new OP-NAS", "new BERT"),
           ("OP-NAS", "hybrid"), ("new OP-NAS", "new hybrid")]),
    picture=dots(MEAN))
def again(options):
    """As `search`, whose six seeds left these claims open, with six other seeds ("new") and with
    all twelve. No third batch follows. The claim on children was left out of the declaration by
    mistake."""
    record = search_and_train(options, FIRST + 6)
    before = read(options.results / "search.json")
    record["values"] |= {f"new {name}": values for name, values in record["values"].items()}
    for part in ("values", "scores"):
        for name, earlier in before[part].items():
            record[part][name] = earlier + record[part][name]
    return record


@study(
    "2.3 core-hours",
    Claim("longer", "With 56 candidates OP-NAS finds better networks than random search, and "
          "its children are better than random candidates", "curves (Figure 6)",
          [("OP-NAS", "random search"), ("children", "random candidates")]),
    picture=dots(MEAN))
def longer(options):
    """As `search`, with other seeds and another search: 56 candidates that share weights, of 4,000
    training examples each, and four finalists. Two training seeds judge each winner. Children: the
    last 48 candidates. No other batch follows."""
    flags = shared_weights(rounds=12, train_examples=4000, finalists=4)
    return search_and_train(options, FIRST + 12, 48, flags, {}, runs=1, trainings=2)


@study(
    "0.6 core-hours after `search`",
    Claim("weights", "The weights of the search help the network that it found",
          "GLUE 87.7 against 86.3 (Table 2)", [("warm OP-NAS", "OP-NAS")]),
    picture=dots(MEAN))
def weights(options):
    """As in `search`. Warm networks start from the weights of the search."""
    arms = {}
    for (_, seed), folder in run_searches(options, "op-nas").items():
        arms["OP-NAS", seed] = winner(folder)
        arms["warm OP-NAS", seed] = ["--init", folder]
    return {"values": by_arm(train(options, arms))}


def without_attention(arch, replacement=""):
    """The architecture with one layer in the place of each attention: `replacement`, or as in Table
    5 the convolution before it (the first one, where none is before it)."""
    layers = arch.split(" | ")
    before = next(layer for layer in layers if layer.startswith("conv"))
    others = []
    for layer in layers:
        before = layer if layer.startswith("conv") else before
        others.append(before if layer == before else replacement or before)
    return " | ".join(others)


@study(
    "0.6 core-hours after `search`",
    Claim("attention", "The attention that was found is better than what may stand in its place",
          "GLUE 86.3; BERT's attention alone 84.8, convolution alone 73.3 (Table 5)",
          [("winner", "BERT's attention"), ("winner", "convolutions")]),
    picture=dots(MEAN))
def attention(options):
    """The network with the best score of all searches of `search`, and itself with BERT's
    attention or convolutions in the place of its attentions; other training seeds than those of
    the search."""
    folders = run_searches(options, "op-nas").values()
    arch = winner(max(folders, key=lambda folder: read(folder / "best.json")["score"]))
    networks = {
        "winner": arch,
        "BERT's attention": without_attention(arch, abz.BERT_ATTENTION),
        "convolutions": without_attention(arch),
    }
    arms = {(arm, seed): networks[arm] for arm in networks for seed in range(options.seeds)}
    return {"values": by_arm(train(options, arms)), "networks": networks}


def candidates(folder):
    """{architecture: score} of a search."""
    text = (folder / "history.jsonl").read_text(encoding="utf-8")
    lines = map(json.loads, text.splitlines())
    return {line["arch"]: line["score"] for line in lines}


def has_bit(arch):
    """Has the network what nearly all good ones have: a convolution, and an attention as last
    layer?"""
    layers = arch.split(" | ")
    return "conv" in arch and not layers[-1].startswith("conv")


@study(
    "2 core-hours",
    Claim("fidelity", "The scores of a search rank networks as full training does",
          "a picture (Figure 8)", least=0.2),
    Claim("fidelity-baselines", "For comparison: the number of convolutions, and one full training "
          "with the other, rank networks as well", "our question", least=0.2),
    Claim("biws", "At equal cost, scores with shared weights (BIWS) rank better than without",
          "saves 80% of the cost (Sec. 3.2)"),
    picture=lines("score in the search", MEAN, "o"))
def fidelity(options):
    """Random networks with a convolution and an attention as last layer, about 16 of 64. Two
    searches score each of them at equal cost, one with shared weights, one without. Kendall's tau
    is between the scores and training from scratch: 1,500 steps of pre-training and two seeds of
    fine-tuning, the mean of two such trainings. "one training": tau between these two."""
    flags = shared_weights(finalists=0, rounds=14)  # 8 + 14 x 4 candidates
    command = [PROGRAM, "--search", "--strategy", "random", *flags, "--seed", FIRST]
    command += [*options.flags, "--glue", hold_out(options.runs / "glue")]
    folders = run_all(options, {"fidelity-shared": command,
                                "fidelity-alone": [*command, "--no_weight_sharing"]})
    shared, alone = map(candidates, folders.values())
    archs = [arch for arch in shared if arch in alone and has_bit(arch)]
    trained = []
    for seed in range(2):
        arms = {(f"candidate {number}", seed): arch for number, arch in enumerate(archs)}
        trained.append([*train(options, arms, runs=2).values()])
    truth = [statistics.mean(pair) for pair in zip(*trained)]
    scores = {
        "shared": [shared[arch] for arch in archs],
        "alone": [alone[arch] for arch in archs],
    }
    convolutions = [arch.count("conv") for arch in archs]  # a score that costs nothing
    taus = {f"tau, {name}": bootstrap(kendall, values, truth) for name, values in scores.items()}
    gain = bootstrap(lambda one, other, full: kendall(one, full) - kendall(other, full),
                     *scores.values(), truth)
    return {
        "values": {**scores, "full": truth},
        "intervals": {
            "fidelity": taus,
            "biws": {"tau, shared - alone": gain},
            "fidelity-baselines": {
                "tau, number of convolutions": bootstrap(kendall, convolutions, truth),
                "tau, one training with the other": bootstrap(kendall, *trained)},
        },
        "lines": {name: [*zip(values, truth)] for name, values in scores.items()},
        "networks": archs,
    }


def mean_cosine(X, lengths):
    """Mean cosine of all pairs of different tokens of a sequence, without padding.

    X: (B, T, H); lengths: (B,)."""
    mask = (torch.arange(X.shape[1]) < lengths[:, None])[..., None]  # (B, T, 1)
    total = (F.normalize(X.float(), dim=-1) * mask).sum(1).square().sum(-1)  # over all pairs
    return ((total - lengths) / (lengths * (lengths - 1))).mean().item()


@torch.no_grad()
def cosines_of(folder):
    """Mean cosine of tokens in the embeddings and behind each layer of a pre-trained network."""
    cfg = abz.Config(init=str(folder))
    command = Command("autobert_zero", "describe")
    source = abz.load_pretrained(cfg, command)
    cfg = abz.resolve(cfg, command, None, source)
    tokenizer = load_tokenizer(cfg.tokenizer)
    model = abz.LanguageModel(abz.parse_arch(cfg.arch), cfg).eval()
    abz.start_from(model, source)
    path = make_demo(ROOT / "data" / "demo")["glue"]
    examples = glue.load(path, glue.TASKS["STS-B"], "train")[:256]
    batch = next(iter(tasks.batches(glue.encode(examples, tokenizer, cfg.length), 256)))
    states = []
    layers = model.encoder.layers
    layers[0].register_forward_pre_hook(lambda layer, inputs: states.append(inputs[0]))
    for layer in layers:
        layer.register_forward_hook(lambda layer, inputs, output: states.append(output))
    model.encoder(batch["ids"], batch["token_type_ids"], batch["lengths"])
    return [mean_cosine(state, batch["lengths"]) for state in states]


@study(
    "seconds after `search`",
    Claim("uniformity", "Tokens stay more different from each other than in BERT",
          "curves (Figure 5)", [("BERT", "OP-NAS")]),
    picture=lines("layer (0: embeddings)", "mean cosine of pairs of tokens"))
def uniformity(options):
    """The pre-trained networks of `search` on 256 pairs of sentences of STS-B. The mean cosine
    behind the last layer is compared: higher is more uniform."""
    arms = {}
    for (_, seed), folder in run_searches(options, "op-nas").items():
        arms["OP-NAS", seed] = winner(folder)
        arms["BERT", seed] = "bert"
        arms["hybrid", seed] = HYBRID
    train(options, arms)
    curves = {key: cosines_of(options.runs / run_name("pretrain", *key)) for key in arms}
    return {
        "values": by_arm({key: curve[-1] for key, curve in curves.items()}),
        "lines": {f"{arm}, {seed}": [*enumerate(curves[arm, seed])] for arm, seed in curves},
    }


@study(
    "seconds",
    Claim("counts", "AutoBERT-Zero has fewer parameters and FLOPs than BERT",
          "104 M and 23 G against 110 M and 29 G (Table 2)"))
def counts(options):
    """Base size, 128 tokens; a number agrees if it rounds to the printed one, a ratio of FLOPs
    if it is within 0.1."""
    cfg = abz.Config()
    printed = {"AutoBERT-Zero": ("autobert-zero", 104), "BERT": ("bert", 110)}
    measured = {}
    flops = []
    for title, (name, millions) in printed.items():
        cost = abz.count(abz.read_arch(name, cfg.layers), cfg)
        label = f"{title} {cost['parameters']:,} parameters"
        measured[label] = counted(0.5 - abs(cost["parameters"] / 1e6 - millions))
        flops.append(cost["flops_with_vocabulary_head"])
    ratio = flops[1] / flops[0]
    label = f"BERT has {ratio:.2f} times the FLOPs, in print 1.26 times"
    measured[label] = counted(0.1 - abs(ratio - 29 / 23))
    return {"values": {"FLOPs": flops}, "intervals": {"counts": measured}}


def forward_of(name, device, sequences):
    """The forward pass of an encoder of base size with random weights, as a function."""
    cfg = abz.Config()
    model = abz.Encoder(abz.read_arch(name, cfg.layers), cfg).to(device).eval()
    ids = torch.randint(cfg.vocab_size, (sequences, 128), device=device)
    lengths = torch.full((sequences,), 128, device=device)
    return torch.no_grad()(lambda: model(ids, torch.zeros_like(ids), lengths))


def memory_of(name, device):
    """GB that an encoder and its forward pass add to the peak memory of a new process."""
    before = peak_memory(device)
    forward_of(name, device, 128)()
    return (peak_memory(device) - before) / 1000


@study(
    "some minutes",
    Claim("latency", "AutoBERT-Zero is faster than BERT and takes less memory",
          "27.2 s and 2.1 GB against 29.3 s and 2.5 GB (Table 7)",
          [("BERT, s", "AutoBERT-Zero, s"), ("BERT, GB", "AutoBERT-Zero, GB")]))
def latency(options):
    """Base size with random weights, 128 tokens. Latency: 20 rounds in turns, 8 sequences on one
    CPU thread (CPU time), or 128 on a GPU. Memory: the peak of five new processes, 128
    sequences."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = {"AutoBERT-Zero": "autobert-zero", "BERT": "bert"}
    values = {}
    # Before this process grows: a new process starts with the peak of the old one.
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for title, name in names.items():
            values[f"{title}, GB"] = pool.starmap(memory_of, [(name, device)] * 5, chunksize=1)
    torch.set_num_threads(1)
    sequences = 128 if device.type == "cuda" else 8
    calls = {f"{title}, s": forward_of(name, device, sequences) for title, name in names.items()}
    for name, times in in_turns(calls, 20).items():
        values[name] = [ms / 1000 for ms in times]
    return {"values": values}


@study(
    "5 core-hours",
    Claim("table-reliability", "One training of a candidate ranks the networks of a closed space",
          "our question", least=0.7))
def table(options):
    """All networks of two layers in a closed space (search_table.py), each trained as a candidate
    of the demo's search with some seeds, on two graded tasks (search_tasks.py). The intervals are
    those of the reliability of one training, ICC(1,1), by a bootstrap over networks. "facts" has
    the distribution, the best networks, where BERT and the hybrid stand, and what each layer is
    worth. `--minutes N` ends earlier; the same command continues. `--tasks MNLI` trains on one."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--tasks", default="MNLI,SST-2")
    flags = parser.parse_args(options.flags)
    folder = options.runs / "table"
    if flags.minutes:
        corpus = folder / "corpus"
        if not (corpus / "meta.json").exists():
            text = make_demo(ROOT / "data" / "demo")["corpus"]
            make_corpus((text,), corpus, abz.PRESETS["demo"]["vocab_size"], "", workers=1)
        tasks = write_tasks(folder / "tasks")
        search_table.train_table(folder / "table.jsonl", corpus, tasks, options.jobs,
                                 flags.minutes, tuple(flags.tasks.split(",")))
    lines = search_table.read_lines(folder / "table.jsonl")
    facts = {}
    intervals = {}
    for task in search_table.TASKS:
        scores = search_table.scores_of(lines, task)
        facts[task] = search_table.rounded(search_table.describe(scores))
        intervals[f"ICC, {task}"] = bootstrap(search_table.reliability_of, *zip(*scores.values()))
    return {
        "values": {task: each["quantiles"] for task, each in facts.items()},
        "intervals": {"table-reliability": intervals},
        "facts": facts,
        "layers": search_table.LAYERS,
        "scores": search_table.pack(lines),
    }


@study(
    "10 core-minutes after `table`",
    Claim("replay-random", "OP-NAS finds better networks than random search",
          "curves (Figure 6)"),
    Claim("replay-evolution", "OP-NAS finds better networks than an evolution with uniform "
          "mutations", "curves (Figure 6)"),
    Claim("replay-printed", "Our changes of Eq. 3 (D8, D9) find better networks than the "
          "printed rule", "our question"),
    picture=lines("candidates", "true score of the five best, MNLI, up to 775"))
def replay(options):
    """Searches of 1,000 seeds, replayed on the record of `table` (search_replay.py). A search sees
    the scores of one training seed; what it found is judged by the others. The intervals are those
    of the difference in the mean true score of the five best, paired over searches, given the
    table. "curves" has the true scores of the best and of the five best; "variants" one change each
    of OP-NAS, of 200 seeds."""
    record = read(options.results / "table.json")
    scores = search_table.unpack(record["scores"])
    return search_replay.report(scores, search_replay.run_experiments(scores, options.jobs))


if __name__ == "__main__":
    main("autobert_zero", globals())
