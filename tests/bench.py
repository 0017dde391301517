"""Speed, measured.  python tests/bench.py PART [--small]

peers     training steps beside transformers
gpu       twelve minutes on a card: every action, then each training at the paper's size, and a
          table of speed, share of the card's peak and memory. Its shares were not measured on a
          card yet: the code ran on a simulated one

Compare ratios: ours and theirs alternate, after one turn to warm up. Seconds are wall clock.
"""
import argparse
import contextlib
import importlib
import io
import json
import shlex
import signal
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from timeit import timeit

import torch
from conftest import ROOT, filled
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import albert
import autobert_zero
from common.launch import CARDS, SIGTERM, UTILIZATION, Ranks, prepare_model
from data.prepare import make_demo

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)

# --- peers ---------------------------------------------------------------------------------------
# Ours is a file's training step (fused AdamW, LAMB in ALBERT). Theirs is the model's loss with
# torch's default AdamW. Both clip, have dropout 0.1 everywhere and compute in float32. Batches are
# made before. Theirs get the mask of ones that their collators make.

SHAPES = {  # layers, hidden, heads, ffn, vocab_size
    "tiny": (2, 16, 2, 32, 100),
    "small": (12, 256, 4, 1024, 30000),
    "base": (12, 768, 12, 3072, 30000),
}


def their_step(model, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    def step(*inputs):
        loss_of(*inputs).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def their_config(kind, shape, **more):
    return kind(
        vocab_size=shape["vocab_size"],
        num_hidden_layers=shape["layers"],
        hidden_size=shape["hidden"],
        num_attention_heads=shape["heads"],
        intermediate_size=shape["ffn"],
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        **more)


def masked_text(batch, tokens, vocab):
    """ids, segments, lengths, masked positions (15%), their tokens, order, and theirs as
    keywords."""
    M = round(0.15 * tokens)
    ids = torch.randint(vocab, (batch, tokens))
    segments = torch.randint(2, (batch, tokens))
    positions = torch.rand(batch, tokens).argsort(1)[:, :M]
    masked = torch.randint(vocab, (batch, M))
    labels = torch.full_like(ids, -100).scatter(1, positions, masked)
    theirs = dict(
        input_ids=ids, token_type_ids=segments, attention_mask=torch.ones_like(ids), labels=labels)
    lengths = torch.full((batch,), tokens)
    return [ids, segments, lengths, positions, masked, torch.randint(2, (batch,))], theirs


def bert(shape, batch, tokens):
    from transformers import BertConfig, BertForPreTraining
    cfg = autobert_zero.Config(**shape, dtype="float32", dropout=0.1)
    arch = autobert_zero.read_arch("bert", cfg.layers)
    ours = prepare_model(autobert_zero.LanguageModel(arch, cfg).train(), ALONE)
    optimizer = autobert_zero.make_optimizer(ours, cfg.weight_decay)
    (*text, positions, masked, order), inputs = masked_text(batch, tokens, cfg.vocab_size)
    positions = positions + tokens * torch.arange(batch)[:, None]
    names = "ids", "token_type_ids", "lengths", "masked_positions", "labels", "next_labels"
    batches = [dict(zip(names, (*text, positions.flatten(), masked.flatten(), order)))]
    theirs = BertForPreTraining(their_config(BertConfig, shape)).train()
    step = their_step(theirs, lambda: theirs(**inputs, next_sentence_label=order).loss)
    return lambda: autobert_zero.train_step(0, ours, optimizer, batches, cfg, ALONE), step


def albert_base(shape, batch, tokens):
    from transformers import AlbertConfig, AlbertForPreTraining
    E = min(128, shape["hidden"] // 2)
    cfg = albert.Config(**shape, embedding=E, dtype="float32", dropout=0.1, length=tokens,
                        batch=batch)
    ours = prepare_model(albert.LanguageModel(cfg).train(), ALONE)
    optimizer = albert.Lamb(ours.parameters(), 1e-4, weight_decay=cfg.weight_decay)
    made, inputs = masked_text(batch, tokens, cfg.vocab_size)
    names = "ids", "token_type_ids", "lengths", "masked_positions", "labels", "order_labels"
    batches = [dict(zip(names, made))]
    theirs = AlbertForPreTraining(their_config(AlbertConfig, shape, embedding_size=E)).train()
    step = their_step(theirs, lambda: theirs(**inputs, sentence_order_label=made[-1]).loss)
    return lambda: albert.train_step(0, ours, optimizer, batches, cfg, ALONE), step


PEERS = {  # name: function, shape, batch, tokens, goal of theirs / ours
    "bert-small-8": (bert, "small", 8, 128, 1.9),
    "bert-small-32": (bert, "small", 32, 128, 2.2),
    "bert-base": (bert, "base", 8, 128, 1.5),
    "albert-base": (albert_base, "base", 8, 128, 1.15),
}


def peers(own):
    torch.set_num_threads(own.threads)
    results = {}
    for name, (make, shape, batch, tokens, goal) in PEERS.items():
        sizes = SHAPES["tiny" if own.small else shape]
        shape = dict(zip(("layers", "hidden", "heads", "ffn", "vocab_size"), sizes))
        torch.manual_seed(0)
        calls = make(shape, 2 if own.small else batch, tokens)
        turns = [[timeit(call, number=1) for call in calls] for _ in range(own.rounds + 1)][1:]
        ratios = sorted(theirs / ours for ours, theirs in turns)
        results[name] = {
            "ours_s": statistics.median(ours for ours, _ in turns),
            "ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1],
            "goal": goal}
        print(name, *(f"{key} {value:.3g}" for key, value in results[name].items()), flush=True)
    return results


# --- gpu -----------------------------------------------------------------------------------------
# The files' commands run in this process, so that a hook after every step sees them.

DRY = """
albert.py --pretrain --out {to}/lite
albert.py --finetune CoLA,SQuAD2.0,RACE --init {to}/lite --out {to}/lite-tasks
albert.py --predict {demo}/glue/CoLA/test.tsv --init {to}/lite-tasks/CoLA --out {to}/answers
albert.py --export {to}/lite-hf --init {to}/lite
autobert_zero.py --search --out {to}/zero
autobert_zero.py --pretrain --init {to}/zero --out {to}/zero-text
autobert_zero.py --finetune CoLA,SQuAD2.0 --init {to}/zero-text --out {to}/zero-tasks
autobert_zero.py --export {to}/zero.py --init {to}/zero-text
autotinybert.py --search --latency_device cuda --out {to}/tiny
autotinybert.py --further_train --arch 2-32-64-2-32 --out {to}/tiny-text
autotinybert.py --finetune SST-2,SQuAD1.1 --init {to}/tiny-text --out {to}/tiny-tasks
autotinybert.py --export {to}/tiny-hf --init {to}/tiny-text
mformer.py --search --out {to}/images
mformer.py --train --arch {to}/images/best.json --out {to}/images-net
mformer.py --evaluate --init {to}/images-net --out {to}/images-score
mformer.py --export {to}/images.py --init {to}/images-net
mformer.py --task wmt14 --search --out {to}/texts
mformer.py --task wmt14 --train --arch {to}/texts/best.json --out {to}/texts-net
mformer.py --task wmt14 --evaluate --init {to}/texts-net --out {to}/texts-score
mformer.py --export {to}/texts-code/net.py --init {to}/texts-net
"""
TRAININGS = """
albert.py --pretrain --batch 512 --accumulate 8 --vocab_size 2000 --out {to}/0
albert.py --finetune SST-2 --init {to}/0 --out {to}/1
autobert_zero.py --pretrain --vocab_size 2000 --out {to}/2
autobert_zero.py --finetune SST-2 --init {to}/2 --out {to}/3
autotinybert.py --superplm --vocab_size 2000 --out {to}/4
mformer.py --train --arch mformer --out {to}/5
mformer.py --train --task wmt14 --arch mformer --vocab_size 2000 --out {to}/6
"""  # at --preset base, except for the vocabulary: the demo text is small


PEAKS = CARDS | {"H200": 989e12, "L40S": 362e12, "RTX 4090": 165e12}  # dense bfloat16, FLOP/s
MINUTES = 12  # of bench.py gpu
SHORTEST = 20  # seconds of a training, also if the ones before took too long


def quietly(command):
    """The output of a command of a paper file. SIGTERM may end it early."""
    file, *words = shlex.split(command)
    SIGTERM.clear()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        importlib.import_module(file.removesuffix(".py")).main(words)
    return output.getvalue()


def step_flops(command):
    """FLOPs of a step of a pre-training, from the days that --describe counts for a million steps.
    None for a fine-tuning, which it does not count."""
    file, action, *words = shlex.split(command)
    if action == "--finetune":
        return None
    end = words.index("--out")
    words = [file, "--describe", *words[:end], *words[end + 2:], "--steps", "1000000"]
    days = json.loads(quietly(shlex.join(words)))["days"]["H100"]
    return days * 86400 * CARDS["H100"] * UTILIZATION / 1e6


def peak_of_card(width):
    """(FLOP/s of bfloat16 products, where the number is from). A card that is not in PEAKS does a
    product of matrices of this width."""
    name = torch.cuda.get_device_name()
    for card, peak in PEAKS.items():
        if card in name:
            return peak, f"data sheet of the {card}"
    one = torch.ones(width, width, device="cuda", dtype=torch.bfloat16)

    def multiply(times=20):
        for _ in range(times):
            one @ one
        torch.cuda.synchronize()
    multiply()  # warm up
    return 20 * 2 * width ** 3 / timeit(multiply, number=1), "measured, a product of matrices"


def train_on_card(command, seconds):
    """(steps per second, peak memory in GB, lines where the host waits for the card in steps 3 to
    6: only the log may). After `seconds`, SIGTERM makes the run save and end."""
    began = time.perf_counter()
    times = []

    def watch(*_):
        times.append(time.perf_counter())
        torch.cuda.set_sync_debug_mode("warn" if 3 <= len(times) < 6 else "default")
        if len(times) > 6 and times[-1] - began > seconds:
            signal.raise_signal(signal.SIGTERM)
    torch.cuda.reset_peak_memory_stats()
    hook = register_optimizer_step_post_hook(watch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            quietly(command)
        finally:
            hook.remove()
            torch.cuda.set_sync_debug_mode("default")
    waits = {
        f"{Path(each.filename).name}:{each.lineno}" for each in caught
        if "synchroniz" in str(each.message)}
    speed = (len(times) - 4) / (times[-1] - times[3])
    return speed, torch.cuda.max_memory_allocated() / 1e9, sorted(waits)


def table_row(command, speed, flops, peak, memory):
    """A training's row of the table. flops: of a step, or None."""
    file, action, *words = shlex.split(command)
    phase = " ".join([action.removeprefix("--"), *({*words} & {"SST-2", "wmt14"})])
    share = f"{flops * speed / peak:.1%}" if flops else "-"
    return f"| {file} | {phase} | {speed:.3g} | {share} | {memory:.3g} |"


def gpu(own):
    """Two steps of every action, then each training at the paper's size. The first failure ends
    it."""
    if not torch.cuda.is_available():
        sys.exit("bench.py gpu: torch sees no CUDA device on this machine")
    end = time.perf_counter() + 60 * own.minutes
    demo = ROOT / "data" / "demo"
    make_demo(demo)
    to = tempfile.mkdtemp()
    print(torch.cuda.get_device_name(), torch.__version__, to)
    for line in DRY.strip().split("\n"):
        print(line, flush=True)
        quietly(filled(f"{line} --dry_run", to=to, demo=demo))
    peak, source = peak_of_card(256 if own.small else 8192)
    lines = TRAININGS.strip().split("\n")
    rows = []
    for left, line in zip(range(len(lines), 0, -1), lines):
        command = filled(f"{line} --preset {'demo' if own.small else 'base'}", to=to)
        seconds = max(SHORTEST, (end - time.perf_counter()) / left)
        flops = step_flops(command)
        speed, memory, waits = train_on_card(command, seconds)
        rows.append(table_row(command, speed, flops, peak, memory))
        print(line, f"waits at {waits}", sep="\n  ", flush=True)
    print(f"\n{torch.cuda.get_device_name()}, peak {peak / 1e12:.4g} TFLOP/s ({source})\n",
          "| file | phase | steps per second | share of the peak | peak memory, GB |",
          "|---|---|---|---|---|", *rows, sep="\n")


def main(argv):
    parser = argparse.ArgumentParser(
        prog="bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("peers", "gpu"))
    parser.add_argument("--small", action="store_true", help="the smallest sizes, or demo sizes")
    parser.add_argument("--rounds", type=int, default=6, help="of peers")
    parser.add_argument("--threads", type=int, default=2, help="of peers")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of gpu, all in all")
    own = parser.parse_args(argv)
    return {"peers": peers, "gpu": gpu}[own.part](own)


if __name__ == "__main__":
    main(sys.argv[1:])
