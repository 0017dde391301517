"""Studies of AutoBERT-Zero: python -m tests.claims.autobert_zero NAME (see study.py)"""
import argparse
from multiprocessing import get_context

import torch

import autobert_zero as abz
from common.launch import peak_memory
from data.demo import make_demo
from data.text import make_corpus
from tests.claims import search_replay, search_table
from tests.claims.open_space import open_pairs, open_parts, open_reliability
from tests.claims.pictures import lines
from tests.claims.real_text import real_text
from tests.claims.search_sharing import sharing
from tests.claims.search_tasks import write_tasks
from tests.claims.study import (
    ROOT, Claim, bootstrap, counted, in_turns, main, read, run_all, study)


@study(
    "seconds",
    Claim("counts", "AutoBERT-Zero has fewer parameters and FLOPs than BERT",
          "104 M and 23 G against 110 M and 29 G (Table 2)"))
def counts(options):
    """Base size, 128 tokens. A number agrees if it rounds to the printed one, a ratio of FLOPs if
    it is within 0.1."""
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


@study(
    "1 core-hour",
    Claim("demo-bert", "The network that the demo's search finds is better than BERT",
          "GLUE 86.3 against 83.1 (Table 2)", [("found", "BERT")]),
    Claim("demo-hybrid", "... and than a hybrid of convolutions and attentions",
          "our question", [("found", "hybrid")]))
def demo(options):
    """The first command of the front page with ten seeds, fixed in advance. Accuracy on MNLI-demo
    of the found network and of the two hand-designed ones, each trained once more in the same
    command. "facts": in how many searches the found network was above, tied with (by the dev
    examples) and below the other."""
    commands = {f"demo-{seed}": ["autobert_zero.py", "--search", "--seed", seed, *options.flags]
                for seed in range(10)}
    results = [read(folder / "done.json") for folder in run_all(options, commands).values()]
    values = {"found": [each["score"] for each in results]}
    facts = {}
    for name in ("BERT", "hybrid"):
        values[name] = [each["baselines"][name]["score"] for each in results]
        leads = [abz.lead_over(each, name) for each in results]
        facts[name] = {kind: leads.count(kind) for kind in ("above", "tie", "below")}
    return {"values": values, "facts": facts}


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
    """Base size with random weights, 128 tokens. Latency: 20 alternating rounds, 8 sequences on one
    CPU thread (CPU time), or 128 on a GPU. Memory: the peak of five new processes, 128
    sequences."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = {"AutoBERT-Zero": "autobert-zero", "BERT": "bert"}
    values = {}
    # Before this process grows, since a new process starts with the peak of the old one.
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
    "6 core-hours",
    Claim("table-reliability", "One training of a candidate ranks the networks of a closed space",
          "our question", least=0.7))
def table(options):
    """All networks of two layers in a closed space (search_table.py), each trained as a candidate
    of the demo's search with some seeds, on graded tasks (search_tasks.py). The intervals are
    of the reliability of one training, ICC(1,1), by a bootstrap over networks. "facts" has the
    distribution, the best networks, the ranks of BERT and the hybrid, and the value of each layer.
    `--minutes N` ends earlier, and the same command continues. STS-B is trained apart, with
    `--tasks STS-B --seeds 2`."""
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
                                 flags.minutes, tuple(flags.tasks.split(",")),
                                 search_table.SEEDS[:options.seeds])
    lines = search_table.read_lines(folder / "table.jsonl")
    facts = {}
    intervals = {}
    for task in search_table.TASKS:
        if not search_table.columns_of(lines, task):
            continue
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
    Claim("replay-second", "OP-NAS finds better networks than random search on a second task",
          "our question"),
    Claim("replay-evolution", "OP-NAS finds better networks than an evolution with uniform "
          "mutations", "curves (Figure 6)"),
    picture=lines("candidates", "true score of the five best, MNLI, up to 775"))
def replay(options):
    """Searches of 1,000 seeds, replayed on the record of `table` (search_replay.py). A search sees
    the scores of one training seed. The other seeds judge its result. The intervals are of the
    difference in the mean true score of the five best, paired over searches, given the table. A
    task judges if one training ranks its networks, which SST-2 does not.
    "curves" has the true scores of the best and of the five best. "variants" has one change each of
    OP-NAS, with 100 seeds."""
    record = read(options.results / "table.json")
    scores = search_table.unpack(record["scores"])
    return search_replay.report(scores, search_replay.run_experiments(scores, options.jobs))


if __name__ == "__main__":
    main("autobert_zero", globals())  # includes the imported studies
