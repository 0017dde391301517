"""Speed, measured.  python tests/bench.py PART [flags], PART --help:

peers     a training step of each file, fine-tuning and beam search beside Hugging Face's transformers
gpu       the first ten minutes on a card: every action, every training at the paper's size beside what is forecast

Compare ratios: what is compared runs in turns, A B A B, after one turn to warm up. Seconds are wall clock.
"""
import argparse
import contextlib
import gc
import importlib
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from conftest import ROOT, filled
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import albert
import autobert_zero
import mformer
from common import distributed, glue
from common.distributed import Ranks, prepare_model
from common.runs import processor
from data.prepare import make_demo
from tests.claims import study

CPU = torch.device("cpu")


def this_machine():
    return {"processor": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
            "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


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
    ours, sums = prepare_model(albert.LanguageModel(cfg).train(), ranks), torch.zeros(4)
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
    side = L, H, (ffn,) * L, (N,) * L, ("plain",) * L
    arch = mformer.Arch(*side, *side, cross_heads=(N,) * L, connect=(1,) * L, cross_types=("plain",) * L)
    cfg = mformer.Config(task="wmt14", vocab_size=V, qkv=H, length=max(64, tokens + 1), dtype="float32")
    ours = mformer.cast(mformer.make_model(arch, cfg), cfg, CPU)
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
    return study.table("step | ours s | theirs s | theirs / ours | lowest to highest | goal | n | load".split(" | "), [
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
        times = study.in_turns({"ours": ours, "theirs": theirs}, own.rounds, warm_up=1)
        seconds = {side: [each / 1000 for each in turns] for side, turns in times.items()}
        ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"])]
        found["rows"][name] = {
            **{f"{side}_s": statistics.median(values) for side, values in seconds.items()},
            "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios), "n": own.rounds,
            "parameters": about, "rows": rows, "tokens": tokens,
            "load": [round(load, 2), round(os.getloadavg()[0], 2)]}
    return found, peers_table(found)


# --- gpu -----------------------------------------------------------------------------------------
# The files' own commands run in this process, so that a hook behind every update sees them.

DRY = """
albert.py --pretrain --out {to}/lite
albert.py --finetune CoLA,SQuAD2.0,RACE --init {to}/lite-dry --out {to}/lite-tasks
albert.py --predict {demo}/glue/CoLA/test.tsv --init {to}/lite-tasks-dry/CoLA --out {to}/lite-answers
albert.py --export {to}/lite-hf --init {to}/lite-dry
autobert_zero.py --search --out {to}/zero
autobert_zero.py --pretrain --init {to}/zero-dry --out {to}/zero-text
autobert_zero.py --finetune CoLA,SQuAD2.0 --init {to}/zero-text-dry --out {to}/zero-tasks
autobert_zero.py --predict {demo}/glue/CoLA/test.tsv --init {to}/zero-tasks-dry/CoLA --out {to}/zero-answers
autobert_zero.py --export {to}/zero.py --init {to}/zero-text-dry
autotinybert.py --search --latency_device cuda --out {to}/tiny
autotinybert.py --further_train --arch 2-32-64-2-32 --out {to}/tiny-text
autotinybert.py --finetune SST-2,SQuAD1.1 --init {to}/tiny-text-dry --out {to}/tiny-tasks
autotinybert.py --predict {demo}/glue/SST-2/test.tsv --init {to}/tiny-tasks-dry/SST-2 --out {to}/tiny-answers
autotinybert.py --export {to}/tiny-hf --init {to}/tiny-text-dry
mformer.py --search --out {to}/pictures
mformer.py --train --arch {to}/pictures-dry/best.json --out {to}/pictures-net
mformer.py --evaluate --init {to}/pictures-net-dry --out {to}/pictures-score
mformer.py --task wmt14 --search --out {to}/words
mformer.py --task wmt14 --train --arch {to}/words-dry/best.json --out {to}/words-net
mformer.py --task wmt14 --evaluate --init {to}/words-net-dry --out {to}/words-score"""
TEXT = "--preset base --tokenizer {to}/vocab.txt"
TRAININGS = (  # command, its flags at the paper's size and, with --small, at the demo's; its folder is its number
    ("albert.py --pretrain --steps 9999", f"{TEXT} --batch 512 --accumulate 8", ""),
    ("albert.py --finetune SST-2 --init {to}/0", "--preset base", ""),
    ("autobert_zero.py --pretrain --steps 9999", TEXT, ""),
    ("autobert_zero.py --finetune SST-2 --init {to}/2", "--preset base", ""),
    ("autotinybert.py --superplm --steps 9999", TEXT, ""),
    # to its end: a stopped one leaves no model to fine-tune
    ("autotinybert.py --further_train --further_steps 24", f"{TEXT} --arch 8-768-3072-12-768", "--arch 4-96-384-6-96"),
    ("autotinybert.py --finetune SST-2 --init {to}/5", "--preset base", ""),
    ("mformer.py --train --steps 9999", "--preset base --arch mformer", "--arch {to}/pictures-dry/best.json"),
    ("mformer.py --task wmt14 --train --steps 9999", "--preset base --arch mformer --vocab_size 2000",
     "--arch {to}/words-dry/best.json"))
PIECES = 30000  # of TEXT's vocabulary


def write_vocabulary(path, demo):
    """The demo text is too small to train as many pieces as the paper's: its characters and words, and filler."""
    text = "\n".join(part.read_text(encoding="utf-8") for part in sorted((demo / "corpus").glob("*.txt"))).lower()
    letters = sorted({letter for letter in text if not letter.isspace()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *[f"##{letter}" for letter in letters],
              *re.findall(r"[a-z]+", text), *map("filler{}".format, range(PIECES))]
    path.write_text("\n".join([*dict.fromkeys(pieces)][:PIECES]) + "\n", encoding="utf-8")


def called(command):
    """What a command of a paper file prints; SIGTERM may end it early."""
    (file, *words), text = shlex.split(command), io.StringIO()
    with (contextlib.redirect_stdout(text), contextlib.redirect_stderr(text),
          mock.patch.object(distributed, "_stop_requested", False)):
        importlib.import_module(file.removesuffix(".py")).main(words)
    return text.getvalue()


class Watch:
    """A hook behind every update: their times, a trace of the third, and after six of them and so many seconds SIGTERM,
    on which a run saves and ends."""

    def __init__(self, seconds):
        self.seconds, self.times, self.trace = seconds, [], torch.profiler.profile()

    def __call__(self, *_):
        if len(self.times) == 1:
            self.trace.start()
        elif len(self.times) == 2:
            torch.cuda.synchronize()
            self.trace.stop()
        self.times.append(time.perf_counter())
        if len(self.times) >= 6 and self.times[-1] - self.times[0] > self.seconds:
            signal.raise_signal(signal.SIGTERM)


def train_on_card(command, seconds, card):
    """The cells of a training's row."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    watch, folder = Watch(seconds), Path(shlex.split(command)[-1])
    hook = register_optimizer_step_post_hook(watch)
    try:
        called(command)
    finally:
        hook.remove()
    each = (watch.times[-1] - watch.times[2]) / (len(watch.times) - 3)  # seconds an update
    kernels, operators, waits = (sum(getattr(event, value) for event in watch.trace.key_averages() if kind in event.key)
                                 for kind, value in (("LaunchKernel", "count"), ("aten::", "count"),
                                                     ("Synchronize", "self_cpu_time_total")))
    peak, speed, known = torch.cuda.max_memory_allocated() / 1e9, f"{1 / each:.1f} updates", ["", "", ""]
    if "--finetune" not in command:
        settings = json.loads((folder / "config.json").read_text())["settings"]
        unit = "pictures" if settings.get("task") == "cifar10" else "tokens"
        count = settings["batch"] * (settings["length"] if "mformer" not in command else 1)
        words = re.sub("--(pretrain|superplm|further_train|train) ", "--describe ", command)
        words = re.sub(r"--tokenizer .*?vocab.txt", f"--vocab_size {PIECES}", words)
        said = json.loads(called(words))
        usual = said["days"][card] * 86400 / said["steps"]
        speed = f"{count / each:,.0f} {unit}"
        share = f"{distributed.UTILIZATION * usual / each:.1%}"
        known = [f"{count / usual:,.0f}", share, f"{said['memory_gb']['total']:.3g}"]
    return [speed, *known[:2], f"{peak:.3g}", known[2], f"{kernels or operators:,}", f"{waits / 1e6:.3f}"]


def gpu(own):
    """The first ten minutes on a card: two steps of every action, then half a minute of each training at the paper's
    size, its vocabulary aside in mformer.py. It stops at the first failure. Expected is 35% of the card's peak, a usual
    run's share. --small: demo sizes, a few seconds; of a simulated card no speed means anything, it never waits, and
    operators stand in for launches."""
    if not torch.cuda.is_available():
        sys.exit("bench.py gpu: torch sees no CUDA device on this machine; run it where there is one")
    name, to, demo, began = torch.cuda.get_device_name(), tempfile.mkdtemp(), ROOT / "data" / "demo", time.time()
    card, found = next((known for known in distributed.CARDS if known in name), "H100"), []
    make_demo(demo)
    write_vocabulary(Path(to, "vocab.txt"), demo)
    head = "command, a second, expected, of the peak, peak GB, --describe, launches, s the host waits".split(", ")
    print(f"{name}, torch {torch.__version__}, in {to}, beside {card}'s peak" + ", small sizes" * own.small,
          study.table(head, []), sep="\n")
    commands = [f"{line} --dry_run" for line in DRY.split("\n")[1:]]
    commands += [f"{line} {small if own.small else base} --out {{to}}/{number}"
                 for number, (line, base, small) in enumerate(TRAININGS)]
    for command in commands:
        found.append([f"`{command.replace('{to}/', '').format(demo=demo)}`"])
        command = filled(command, to=to, demo=demo)
        print(*found[-1], file=sys.stderr, flush=True)  # a failure, and what the profiler says, stand behind it
        seconds = math.inf if "--further_steps" in command else 3 if own.small else 30
        try:
            cells = [called(command) and "runs"] if "--dry_run" in command else train_on_card(command, seconds, card)
        except BaseException:
            print(f"stopped here.\nSend in all that is printed, {to} without its .pt files, and what nvidia-smi says.",
                  flush=True)
            raise
        found[-1] += cells
        print("|", " | ".join([*found[-1], *[""] * (7 - len(cells))]), "|", flush=True)
    shutil.rmtree(to)
    return {"card": name, "rows": found}, f"{name}: all of it ran, in {time.time() - began:.0f} s"


def main(argv):
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_subparsers(required=True, metavar="PART")
    flags = {part: chosen.add_parser(part.__name__, description=part.__doc__) for part in (
        peers, gpu)}
    for part, own in flags.items():
        own.set_defaults(part=part)
        own.add_argument("--out", help="write JSON here")
    flags[peers].add_argument("--tiny", action="store_true", help="the smallest sizes: does everything run")
    flags[peers].add_argument("--rows", nargs="+", choices=PEERS, default=[*PEERS])
    flags[peers].add_argument("--rounds", type=int, default=6)
    flags[peers].add_argument("--threads", type=int, default=2)
    flags[gpu].add_argument("--small", action="store_true", help="demo sizes, three seconds of each training")
    own = parser.parse_args(argv)
    found, table = own.part(own)
    print(table)
    if own.out:
        found = {"command": shlex.join(["python", "tests/bench.py", *argv]), **found}
        Path(own.out).write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
