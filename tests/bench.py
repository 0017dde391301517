"""Speed, measured.  python tests/bench.py PART [flags], PART --help:

peers     a training step of each file, fine-tuning and beam search beside Hugging Face's transformers
curves    cost against length, text, candidates and processes; speed and memory of every demo
gpu       every phase at the paper's size on a GPU, beside what is forecast; without a GPU: the list
page      the tables of tests/claims/rehearsal.md, from what these have written; measures nothing

Compare ratios: what is compared runs in turns, A B A B, after one turn to warm up. Seconds are wall clock.
"""
import argparse
import gc
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from conftest import ROOT
from torch import nn

import albert
import autobert_zero
import mformer
from common import describe, glue
from common.distributed import Ranks, prepare_model
from common.runs import processor
from data.prepare import make_demo
from tests.claims import rehearsal

CLAIMS = ROOT / "tests" / "claims"
CPU = torch.device("cpu")


def in_turns(functions, rounds):
    """{name: seconds of each round} of functions that run in turns."""
    seconds = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def this_machine():
    return {"processor": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
            "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def row_of(*cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def markdown(head, rows=()):
    """A table; head: its columns, with bars between them."""
    return "\n".join([f"| {head} |", "|---" * (head.count("|") + 1) + "|", *(row_of(*row) for row in rows)])


# --- peers ---------------------------------------------------------------------------------------
# Ours is a file's own update (fused AdamW; LAMB in ALBERT). Theirs is the model's own loss with torch's AdamW as it
# comes. Both clip, drop 0.1 everywhere and compute in float32. Batches are made before; theirs get the mask of ones
# that their collators make.

TINY = dict(layers=2, hidden=16, heads=2, ffn=32, vocab_size=100)
SMALL = dict(layers=12, hidden=256, heads=4, ffn=1024, vocab_size=30000)
BASE = dict(layers=12, hidden=768, heads=12, ffn=3072, vocab_size=30000)
TRANSFORMER = dict(layers=6, hidden=512, heads=8, ffn=2048, vocab_size=32768)  # base, Vaswani et al. 2017


def sizes_of(ours, theirs):
    return {name: sum(value.numel() for value in model.parameters()) for name, model in
            (("ours", ours), ("theirs", theirs))}


def their_update(model, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    def update(*inputs):
        loss_of(*inputs).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return update


def their_config(kind, shape, **more):
    return kind(vocab_size=shape["vocab_size"], num_hidden_layers=shape["layers"], hidden_size=shape["hidden"],
                num_attention_heads=shape["heads"], intermediate_size=shape["ffn"], max_position_embeddings=512,
                hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **more)


def masked_text(rows, tokens, vocab):
    """(ids, segments, places, words, order) of full rows whose masked places are 15%, and the same for transformers."""
    M = max(1, round(0.15 * tokens))
    ids, segments = torch.randint(vocab, (rows, tokens)), torch.randint(2, (rows, tokens))
    places, words = torch.rand(rows, tokens).argsort(1)[:, :M], torch.randint(vocab, (rows, M))
    theirs = dict(input_ids=ids, token_type_ids=segments, attention_mask=torch.ones_like(ids),
                  labels=torch.full_like(ids, -100).scatter(1, places, words))
    return (ids, segments, places, words, torch.randint(2, (rows,))), theirs


def bert(shape, rows, tokens, arch="bert"):
    from transformers import BertConfig, BertForPreTraining
    cfg, ranks = autobert_zero.Config(**shape, dtype="float32", dropout=0.1), Ranks(0, 1, CPU)
    ours = autobert_zero.LanguageModel(autobert_zero.read_arch(arch, cfg.layers), cfg).train()
    ours, optimizer = prepare_model(ours, ranks), autobert_zero.make_optimizer(ours, cfg.weight_decay)
    (ids, segments, places, words, order), inputs = masked_text(rows, tokens, cfg.vocab_size)
    places = (places + tokens * torch.arange(rows)[:, None]).flatten()
    batch = ids, segments, torch.full((rows,), tokens), places, words.flatten(), order
    theirs = BertForPreTraining(their_config(BertConfig, shape)).train()
    return (lambda: autobert_zero.update(ours, optimizer, iter([batch]), cfg, ranks),
            their_update(theirs, lambda: theirs(**inputs, next_sentence_label=order).loss), sizes_of(ours, theirs))


def albert_base(shape, rows, tokens):
    from transformers import AlbertConfig, AlbertForPreTraining
    E = min(128, shape["hidden"] // 2)
    cfg, ranks = albert.Config(**shape, embedding=E, dtype="float32", dropout=0.1, length=tokens), Ranks(0, 1, CPU)
    ours, sums = prepare_model(albert.LanguageModel(cfg).train(), ranks), torch.zeros(3)
    optimizer = albert.Lamb(ours.parameters(), 1e-4, weight_decay=cfg.weight_decay)
    (ids, segments, places, words, order), inputs = masked_text(rows, tokens, cfg.vocab_size)
    batch = ids, segments, torch.full((rows,), tokens), places, words, order
    theirs = AlbertForPreTraining(their_config(AlbertConfig, shape, embedding_size=E)).train()
    return (lambda: albert.update(ours, ours, optimizer, [batch], sums, cfg, ranks),
            their_update(theirs, lambda: theirs(**inputs, sentence_order_label=order).loss), sizes_of(ours, theirs))


def sentences(rows, longest, vocab):
    """Features of a task whose lengths are log-normal, the median 33 tokens, about as those of GLUE's pairs."""
    draw = np.random.default_rng(0)
    lengths = np.exp(draw.normal(3.5, 0.5, rows)).round().clip(8, longest).astype(int)
    words = glue.Rows(draw.integers(4, vocab, length - 2).tolist() for length in lengths)  # [CLS] and [SEP] are added
    return glue.Features([words], draw.integers(2, size=rows), (1, 2, 0), longest)


def fine_tuning(shape, rows, tokens, updates=4):
    """Ours in batches of like lengths, theirs on the same sentences padded to `tokens`."""
    from transformers import BertConfig, BertForSequenceClassification
    cfg, text = autobert_zero.Config(**shape, dtype="float32"), sentences(rows * updates, tokens, shape["vocab_size"])
    ours = autobert_zero.TaskModel(autobert_zero.read_arch("bert", cfg.layers), cfg, 2).train()
    optimizer, task = autobert_zero.make_optimizer(ours, cfg.weight_decay), SimpleNamespace(kind="class")
    theirs = BertForSequenceClassification(their_config(BertConfig, shape, num_labels=2)).train()
    update = their_update(theirs, lambda batch: theirs(**batch).loss)
    parts = [text.batch(part, tokens) for part in np.arange(len(text)).reshape(-1, rows)]
    padded = [dict(input_ids=torch.from_numpy(part["ids"]), labels=torch.from_numpy(part["labels"]),
                   attention_mask=torch.from_numpy(np.arange(tokens) < part["lengths"][:, None]).long())
              for part in parts]

    def our_updates():
        for batch in glue.batches(text, rows, seed=0):
            autobert_zero.update_task(ours, optimizer, task, batch, cfg, CPU)
    return our_updates, lambda: [update(batch) for batch in padded], sizes_of(ours, theirs)


def translation(shape, rows, tokens, beam=4):
    """mformer.py's beam search over a plain Transformer beside generate(): as many steps as the source has tokens. With
    random weights and length penalty 1 no search of ours ends early; theirs has no end mark, which is faster than to
    forbid one."""
    from transformers import MarianConfig, MarianMTModel
    L, H, N, ffn, V = (shape[name] for name in ("layers", "hidden", "heads", "ffn", "vocab_size"))
    side = "layers={0} {1}hidden={2} {1}ffn={3} {1}heads={4} {1}types={5}"
    each = [",".join([str(value)] * L) for value in (ffn, N, "plain")]
    words = (side.format(L, "", H, *each) + " decoder_" + side.format(L, "decoder_", H, *each)
             + f" cross_heads={each[1]} cross_types={each[2]} connect={','.join(['1'] * L)}")
    cfg = mformer.Config(task="wmt14", vocab_size=V, qkv=H, length=max(64, tokens + 1), dtype="float32")
    ours = mformer.cast(mformer.make_model(mformer.parse_arch(words, cfg), cfg), cfg, CPU)
    source, lengths = torch.randint(4, V, (rows, tokens)), torch.full((rows,), tokens)
    theirs = MarianMTModel(MarianConfig(
        vocab_size=V, d_model=H, encoder_layers=L, decoder_layers=L, encoder_attention_heads=N, encoder_ffn_dim=ffn,
        decoder_attention_heads=N, decoder_ffn_dim=ffn, max_position_embeddings=cfg.length, activation_function="relu",
        pad_token_id=0, eos_token_id=None, bos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=None)).eval()
    about = sizes_of(ours, theirs)

    def search():
        with mock.patch.object(ours, "decode", wraps=ours.decode) as decode:
            mformer.beam_search(ours, source, lengths, tokens, 1, 2, (0, 1), beam, 1.0)
        about["steps"] = decode.call_count

    def generate():
        with torch.no_grad():
            found = theirs.generate(source, attention_mask=torch.ones_like(source), num_beams=beam, do_sample=False,
                                    max_new_tokens=tokens, length_penalty=1.0)
        about["their_steps"] = found.shape[1] - 1
    return search, generate, about


PEERS = {  # name: (function, shape, rows, tokens, goal of theirs / ours)
    "bert-small-8": (bert, SMALL, 8, 128, 1.9), "bert-small-32": (bert, SMALL, 32, 128, 2.2),
    "bert-base": (bert, BASE, 8, 128, 1.5),
    "autobert-zero-base": (lambda *sizes: bert(*sizes, arch="autobert-zero"), BASE, 8, 128, 1.65),
    "albert-base": (albert_base, BASE, 8, 128, 1.15), "fine-tuning": (fine_tuning, SMALL, 32, 128, 1.8),
    "beam-search": (translation, TRANSFORMER, 16, 30, 2.0)}


def peers_table(found):
    return markdown("step | ours s | theirs s | theirs / ours | lowest to highest | goal | n | load", [
        (f"{name}, {row['rows']} x {row['tokens']}", f"{row['ours_s']:.3f}", f"{row['theirs_s']:.3f}",
         f"{row['ratio']:.2f}", f"{row['lowest']:.2f} to {row['highest']:.2f}", PEERS[name][-1], row["n"],
         "{} to {}".format(*row["load"])) for name, row in found["rows"].items()])


def peers(own):
    import transformers
    torch.set_num_threads(own.threads)
    transformers.logging.set_verbosity_error()
    found = {**this_machine(), "transformers": transformers.__version__, "rows": {}}
    for name in own.rows:
        make, shape, rows, tokens, _ = PEERS[name]
        if own.tiny:  # the published network has twelve layers
            shape, rows, tokens = {**TINY, "layers": 12 if name == "autobert-zero-base" else 2}, 2, 16
        torch.manual_seed(0)
        ours, theirs, about = make(shape, rows, tokens)
        load = os.getloadavg()[0]
        seconds = in_turns({"ours": ours, "theirs": theirs}, own.rounds)
        ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"])]
        found["rows"][name] = {
            **{f"{side}_s": statistics.median(values) for side, values in seconds.items()},
            "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios), "n": own.rounds,
            "parameters": about, "rows": rows, "tokens": tokens,
            "load": [round(load, 2), round(os.getloadavg()[0], 2)]}
    return found, peers_table(found)


# --- curves --------------------------------------------------------------------------------------

NETWORKS = {"ALBERT": "", "BERT": "bert", "AutoBERT-Zero": "autobert-zero", "convolutions": "autobert-zero/conv-only"}
IMAGES = "layers=2 hidden=64 ffn=96,96 heads=4,4 types=softmax,linear"
TEXTS = (f"{IMAGES} decoder_layers=1 decoder_hidden=64 decoder_ffn=96 decoder_heads=4 decoder_types=softmax "
         "cross_heads=4 connect=1 cross_types=softmax")
SEARCH = "autobert_zero.py --search --tasks MLM --steps {updates} --parents 2 --rounds 0 --population {candidates}"
TRAIN = "albert.py --pretrain --accumulate 2 --steps {updates}"
DEMOS = ("albert.py --pretrain --length 16 --batch 64 --steps {updates}", "albert.py --pretrain --steps {updates}",
         "autobert_zero.py --pretrain --steps {updates}",
         "autobert_zero.py --search --population 2 --rounds 1 --parents 1",
         "autotinybert.py --superplm --steps {updates}",
         f"mformer.py --train --arch '{IMAGES}' --steps {{updates}}",
         f"mformer.py --task wmt14 --train --arch '{TEXTS}' --steps {{updates}}")


def run_command(command, folder, processes=1, threads=None):
    """Seconds, CPU seconds and peak memory (of the largest process) of a command of this repository, and how many
    tokens, pictures, ... a second its log has (the median line)."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    out, log = folder / f"run-{time.time_ns()}", folder / "log.txt"
    argv = [sys.executable, *launch, *shlex.split(command), "--to" if "data/" in command else "--out", str(out)]
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    began = time.perf_counter()
    with open(log, "w") as file:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode, seconds = status, time.perf_counter() - began
    if status:
        sys.exit(f"{command}: {log.read_text()[-2000:]}")
    lines = (out / "log.jsonl").read_text().splitlines() if (out / "log.jsonl").exists() else []
    speeds = [(value, key) for line in lines for key, value in json.loads(line).items()
              if key.endswith("_per_second") and value]
    return {"command": command.replace(f"{folder}/", ""), "processes": processes, "seconds": round(seconds, 2),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 2), "peak_mb": round(used.ru_maxrss / 1e3),
            "a_second": round(statistics.median(value for value, _ in speeds)) if speeds else None,
            "unit": speeds[0][1].removesuffix("_per_second") if speeds else None}


def steps_by_length(lengths, tokens, rounds, **shape):
    """{network: [microseconds a token of a training step, for each length]}; tokens: of a step."""
    found = {name: [] for name in NETWORKS}
    for length in lengths:
        functions, rows = {}, max(1, tokens // length)
        for name, arch in NETWORKS.items():
            if not arch:
                cfg = albert.Config(**shape, embedding=shape["hidden"] // 2, length=length, dtype="float32")
                _, step, _ = albert.rehearsal(cfg)
            else:
                cfg = autobert_zero.Config(**shape, length=length, dtype="float32")
                network = autobert_zero.read_arch(arch, cfg.layers)
                _, step, _ = autobert_zero.rehearsal(cfg, network)
            functions[name] = lambda step=step: step(rows, 1)
        for name, seconds in in_turns(functions, rounds).items():
            found[name].append(round(1e6 * statistics.median(seconds) / (rows * length), 2))
    return found


def text_of(megabytes, folder):
    """A file of so many MB of the demo's text, repeated where that is too short."""
    path, size = folder / f"{megabytes}.txt", int(1e6 * megabytes)
    text = b"".join(part.read_bytes() for part in sorted((ROOT / "data" / "demo" / "corpus").glob("*.txt")))
    path.write_bytes((text * (size // len(text) + 1))[:size])
    return path


def curves_table(found):
    networks = found["length"]["microseconds a token"]
    runs = [*found["corpus"], *found["candidates"], *itertools.chain(*found["processes"].values()), *found["demos"]]
    return (markdown("tokens a row | " + " | ".join(networks) + " (µs a token of a step)", [
        (tokens, *(f"{values[place]:.1f}" for values in networks.values()))
        for place, tokens in enumerate(found["length"]["tokens"])])
        + "\n\n" + markdown("command | processes | s | CPU s | peak MB | a second", [
            (f"`{run['command']}`", run["processes"], f"{run['seconds']:.1f}", f"{run['cpu_seconds']:.1f}",
             run["peak_mb"], f"{run['a_second']:,} {run['unit']}" if run["unit"] else "") for run in runs]))


def curves(own):
    """Wants an idle machine: at most eight minutes on two cores. Every run begins with reading the demo data and
    training a vocabulary on it."""
    updates, sizes, candidates, demos = (20, (0.1,), (1,), DEMOS[1:2]) if own.tiny else (
        200, (1, 2, 4, 8), (3, 6, 12), DEMOS)
    shape = TINY if own.tiny else dict(layers=12, hidden=128, heads=4, ffn=512, vocab_size=4000)
    lengths, tokens, rounds = ((8, 16), 32, 1) if own.tiny else ((32, 64, 128, 256, 512), 2048, 3)
    make_demo(ROOT / "data" / "demo")
    found = {"machine": {**this_machine(), "load": os.getloadavg()[0]}}
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.time()
        found["corpus"] = [{"mb": size, **run_command(
            f"data/prepare.py corpus --vocab_size 1000 --corpus {text_of(size, folder)}", folder)} for size in sizes]
        found["candidates"] = [{"candidates": each, **run_command(
            SEARCH.format(updates=updates // 8, candidates=each), folder)} for each in candidates]
        alike = {"training": TRAIN.format(updates=2 * updates),
                 "search": SEARCH.format(updates=updates // 8, candidates=candidates[-1])}
        found["processes"] = {kind: [run_command(command, folder, number, threads=1) for number in (1, 2)]
                              for kind, command in alike.items()}
        found["demos"] = [run_command(demo.format(updates=updates), folder) for demo in demos]
    # last: it makes this process large, and a child's peak begins there
    steps = steps_by_length(lengths, tokens, rounds, **{**shape, "layers": 12})  # as the published network has
    found["length"] = {"tokens": list(lengths), "microseconds a token": steps}
    found["machine"]["seconds"] = round(time.time() - began)
    return found, curves_table(found)


# --- gpu -----------------------------------------------------------------------------------------

SOURCES = """Sources of a row, gpu 'PHASE'. Peak: tests/claims/results/rehearsal.json, made by `python
-m tests.claims.rehearsal 'PHASE'`, the step on tensors without content. A step: the FLOPs of that row at 35% (a usual
run's share) of {card}'s {peak:.0f} TFLOP/s in bfloat16 (its data sheet: CARDS in common/describe.py). Waits: 0, as
`python -m pytest tests/test_flow.py` counts them on a CPU in the files' own loops."""


def timed(device, cfg, build, size, steps=10, updates=True):
    """(seconds of a step, synchronisations in one); updates=False: of the largest evaluation, where no update is."""
    cuda = device.type == "cuda"
    finish, debug = (torch.cuda.synchronize, torch.cuda.set_sync_debug_mode) if cuda else (bool, bool)

    def seconds_of(function, times):
        began = finish() or time.perf_counter()
        for _ in range(times):
            function()
        return ((finish() or time.perf_counter()) - began) / times

    with torch.device(device):
        _, step, look = build(cfg)
        step(*size)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            debug("warn")
            step(*size)
            debug("default")
        waits = sum("synchroniz" in str(warning.message) for warning in found)
        update = seconds_of(lambda: step(*size), steps)
        with torch.no_grad():
            look()
            return (update if updates else seconds_of(look, 1)), waits


def on_gpu(phase, cfg, build, size):
    """What is measured of a phase: peak GB, ms of a step, waits."""
    if phase["peak"] > torch.cuda.get_device_properties(0).total_memory:
        return "does not fit", "", ""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        seconds, waits = timed(torch.device("cuda"), cfg, build, size, updates=bool(phase["flops"]))
    except torch.OutOfMemoryError:
        return "out of memory", "", ""
    return f"{torch.cuda.max_memory_allocated() / 1e9:.1f}", f"{1e3 * seconds:,.0f}", waits


def gpu(own):
    phases, there = json.loads((CLAIMS / "results" / "rehearsal.json").read_text()), torch.cuda.is_available()
    name = torch.cuda.get_device_name() if there else "no GPU here: the list of what one must confirm"
    card = next((known for known in describe.CARDS if known in name), own.card)
    peak, found = describe.CARDS[card][1], []
    print(name, SOURCES.format(card=card, peak=peak / 1e12), markdown(
        "command | peak GB, expected | measured | ms a step, expected | measured | waits in a step"), sep="\n")
    for key, run in rehearsal.phases().items():
        if own.words not in ", ".join(key):
            continue
        phase = phases[" | ".join(key)]
        measured = on_gpu(phase, *run) if there else ("", "", "")
        expected = 1e3 * (phase["flops"] or phase["evaluation_flops"]) / (0.35 * peak)
        found.append([f"`python tests/bench.py gpu '{', '.join(key)}'`", f"{phase['peak'] / 1e9:.1f}", measured[0],
                      f"{expected:,.0f}", *measured[1:]])
        print(row_of(*found[-1]), flush=True)
    return {"rows": found}, ""


# --- page ----------------------------------------------------------------------------------------

def fits_table(found):
    return markdown("file | preset | phase | peak | evaluation | largest | largest there | smallest card, GB", [
        (*name.split(" | "), f"{phase['peak'] / 1e9:.1f}", f"{phase['evaluation'] / 1e9:.1f}",
         f"{phase['largest'] / 1e9:.2f}", f"{phase['evaluation_largest'] / 1e9:.2f}", phase["card_gb"] or "none")
        for name, phase in sorted(found.items())])


def page(own=None, folder=CLAIMS):
    """Each table stands between <!-- NAME --> and <!-- end -->; what stands around them is written by hand."""
    text = (folder / "rehearsal.md").read_text(encoding="utf-8")
    for name, table in {"rehearsal": fits_table, "peers": peers_table, "curves": curves_table}.items():
        path = folder / "results" / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        about = {**found.get("machine", {}), **found}
        head = ("{processor}, {cores} cores, {threads} threads, torch {torch}, {date}: `{command}`.\n\n".format(**about)
                if "command" in about else "")
        made = f"<!-- {name} -->\n{head}{table(found)}\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _: made, text, flags=re.DOTALL)
    (folder / "rehearsal.md").write_text(text, encoding="utf-8")
    return {}, f"{folder / 'rehearsal.md'}: made anew"


def main(argv):
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_subparsers(required=True, metavar="PART")
    flags = {part: chosen.add_parser(part.__name__, description=part.__doc__) for part in (
        peers, curves, gpu, page)}
    for part, own in flags.items():
        own.set_defaults(part=part)
        own.add_argument("--out", help="write JSON here")
    for part in (peers, curves):
        flags[part].add_argument("--tiny", action="store_true", help="the smallest sizes: does everything run")
    flags[peers].add_argument("--rows", nargs="+", choices=PEERS, default=[*PEERS])
    flags[peers].add_argument("--rounds", type=int, default=6)
    flags[peers].add_argument("--threads", type=int, default=2)
    flags[gpu].add_argument("words", nargs="?", default="", help="of the phases to run")
    flags[gpu].add_argument("--card", default="H100", choices=describe.CARDS, help="in the list without a GPU")
    own = parser.parse_args(argv)
    found, table = own.part(own)
    print(table)
    if own.out:
        found = {"command": shlex.join(["python", "tests/bench.py", *argv]), **found}
        Path(own.out).write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
