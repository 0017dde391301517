"""python tests/bench.py peers: a whole training step of these files beside one of Hugging Face's transformers, on the
same shapes with the same dropout in float32; and fine-tuning, and beam search. One step of each in turn, A B A B.

Ratio: theirs / ours, the median of the rounds' own ratios, and the smallest and the largest. Ours is the files' own
update (fused AdamW; LAMB in ALBERT), theirs the model's own loss with torch's AdamW as it comes; both clip. Batches are
made before, rows are full, and theirs get the mask of ones that their collators make.
"""
import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import albert
import autobert_zero
import mformer
from common import glue
from common.distributed import Ranks, prepare_model
from data.parallel import beam_search

CPU = torch.device("cpu")
WIDTHS = {  # of BERT; tiny is for the test
    "tiny": dict(layers=2, hidden=16, heads=2, ffn=32, vocab_size=100),
    "small": dict(layers=12, hidden=256, heads=4, ffn=1024, vocab_size=30000),
    "base": dict(layers=12, hidden=768, heads=12, ffn=3072, vocab_size=30000)}


def numbers(*shape, below):
    return torch.randint(below, shape)


def size_of(model):
    return sum(value.numel() for value in model.parameters())


def stepper(model, loss_of):
    """One update of a transformers model: torch's AdamW with its defaults, the gradient clipped at 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    def step(*inputs):
        loss_of(*inputs).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def their_config(kind, shape, **more):
    """A transformers configuration of the shape, dropout 0.1 everywhere."""
    return kind(vocab_size=shape["vocab_size"], num_hidden_layers=shape["layers"], hidden_size=shape["hidden"],
                num_attention_heads=shape["heads"], intermediate_size=shape["ffn"], max_position_embeddings=512,
                hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **more)


def masked_text(rows, tokens, vocab):
    """(ids, segments, positions, labels, order): text with 15% of each row to be predicted; positions (rows, M)."""
    M = max(1, round(0.15 * tokens))
    positions = torch.rand(rows, tokens).argsort(1)[:, :M]
    return (numbers(rows, tokens, below=vocab), numbers(rows, tokens, below=2), positions,
            numbers(rows, M, below=vocab), numbers(rows, below=2))


def for_them(text):
    """What their pre-training models take."""
    ids, segments, positions, labels, order = text
    return dict(input_ids=ids, token_type_ids=segments, attention_mask=torch.ones_like(ids),
                labels=torch.full_like(ids, -100).scatter(1, positions, labels)), order


def bert(shape, rows, tokens, arch="bert"):
    """autobert_zero.py's update of an architecture, and BertForPreTraining's."""
    from transformers import BertConfig, BertForPreTraining
    cfg = autobert_zero.Config(**shape, dtype="float32", dropout=0.1)
    ours = autobert_zero.LanguageModel(autobert_zero.read_arch(arch, cfg.layers), cfg).train()
    ours = prepare_model(ours, Ranks(0, 1, CPU))
    optimizer = autobert_zero.make_optimizer(ours, cfg.weight_decay)
    text = ids, segments, positions, labels, order = masked_text(rows, tokens, cfg.vocab_size)
    places = (positions + tokens * torch.arange(rows)[:, None]).flatten()
    batch = ids, segments, torch.full((rows,), tokens), places, labels.flatten(), order

    def step():
        losses, _ = autobert_zero.language_losses(ours, batch, cfg, CPU)
        sum(losses).backward()
        nn.utils.clip_grad_norm_(ours.parameters(), autobert_zero.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    theirs = BertForPreTraining(their_config(BertConfig, shape)).train()
    inputs, labels = for_them(text)
    update = stepper(theirs, lambda: theirs(**inputs, next_sentence_label=labels).loss)
    return step, update, {"ours": size_of(ours), "theirs": size_of(theirs)}


def albert_base(shape, rows, tokens):
    """albert.py's update, and AlbertForPreTraining's."""
    from transformers import AlbertConfig, AlbertForPreTraining
    E = min(128, shape["hidden"])
    cfg = albert.Config(**shape, embedding=E, dtype="float32", dropout=0.1, length=tokens)
    ours, sums, ranks = albert.LanguageModel(cfg).train(), torch.zeros(3), Ranks(0, 1, CPU)
    ours = prepare_model(ours, ranks)
    optimizer = albert.Lamb(ours.parameters(), 1e-4, weight_decay=cfg.weight_decay)
    text = ids, segments, positions, labels, order = masked_text(rows, tokens, cfg.vocab_size)
    batch = ids, segments, torch.full((rows,), tokens), positions, labels, order
    theirs = AlbertForPreTraining(their_config(AlbertConfig, shape, embedding_size=E)).train()
    inputs, labels = for_them(text)
    update = stepper(theirs, lambda: theirs(**inputs, sentence_order_label=labels).loss)
    return (lambda: albert.update(ours, ours, optimizer, [batch], sums, cfg, ranks), update,
            {"ours": size_of(ours), "theirs": size_of(theirs)})


class Sentences:
    """Rows of mixed lengths for common.glue.batches: log-normal, the median 33 tokens, as GLUE's pairs about are."""

    def __init__(self, rows, longest, vocab):
        draw, self.max_length = np.random.default_rng(0), longest
        self.lengths = np.exp(draw.normal(3.5, 0.5, rows)).round().clip(8, longest).astype(np.int64)
        self.ids, self.labels = draw.integers(4, vocab, (rows, longest)), draw.integers(2, size=rows)

    def __len__(self):
        return len(self.lengths)

    def batch(self, index, width):
        real = np.arange(width) < self.lengths[index, None]
        ids = np.where(real, self.ids[index, :width], 0)
        return {"ids": ids, "segments": np.zeros_like(ids), "lengths": self.lengths[index],
                "labels": self.labels[index]}


def fine_tuning(shape, rows, tokens, batches=4):
    """`batches` fine-tuning updates of BERT: autobert_zero.py's in batches of like lengths, and those of
    BertForSequenceClassification on the same sentences, padded to `tokens`."""
    from transformers import BertConfig, BertForSequenceClassification
    cfg, text = autobert_zero.Config(**shape, dtype="float32"), Sentences(rows * batches, tokens, shape["vocab_size"])
    ours = autobert_zero.TaskModel(autobert_zero.read_arch("bert", cfg.layers), cfg, 2).train()
    optimizer, task = autobert_zero.make_optimizer(ours, cfg.weight_decay), SimpleNamespace(kind="class")
    padded = {name: torch.from_numpy(value) for name, value in text.batch(np.arange(len(text)), tokens).items()}
    seen = (torch.arange(tokens) < padded["lengths"][:, None]).long()

    def steps():
        for batch in glue.batches(text, rows, seed=0):
            logits = ours(batch["ids"], batch["segments"], batch["lengths"])
            autobert_zero.task_loss(task, logits.float(), batch).backward()
            nn.utils.clip_grad_norm_(ours.parameters(), autobert_zero.CLIP)
            optimizer.step()
            optimizer.zero_grad()

    theirs = BertForSequenceClassification(their_config(BertConfig, shape, num_labels=2)).train()
    update = stepper(theirs, lambda part: theirs(
        input_ids=padded["ids"][part], token_type_ids=padded["segments"][part], attention_mask=seen[part],
        labels=padded["labels"][part]).loss)

    def their_steps():
        for part in torch.arange(len(text)).split(rows):
            update(part)
    return steps, their_steps, {"ours": size_of(ours), "theirs": size_of(theirs)}


def translation(shape, rows, tokens, beam=4):
    """Beam search of mformer.py over a plain Transformer, cast as --evaluate does it, and generate() of MarianMTModel:
    as many steps as the source has tokens. Length penalty 1 with random weights, by which no search of ours ends early;
    theirs knows no end mark, which is faster than to forbid it."""
    from transformers import MarianConfig, MarianMTModel
    L, H, N, ffn, V = (shape[name] for name in ("layers", "hidden", "heads", "ffn", "vocab_size"))
    each = {"ffn": ffn, "heads": N, "types": "plain"}
    side = {name: ",".join([str(value)] * L) for name, value in each.items()}
    words = [f"layers={L} hidden={H} decoder_layers={L} decoder_hidden={H}"]
    words += [f"{name}={side[part]}" for part in side for name in (part, f"decoder_{part}")]
    words += [f"cross_heads={side['heads']} cross_types={side['types']} connect={','.join(['1'] * L)}"]
    cfg = mformer.Config(task="wmt14", vocab_size=V, qkv=H, length=max(64, tokens + 1), dtype="float32")
    ours = mformer.cast(mformer.make_model(mformer.parse_arch(" ".join(words), cfg), cfg), cfg, CPU)
    source, lengths = numbers(rows, tokens, below=V - 4) + 4, torch.full((rows,), tokens)
    theirs = MarianMTModel(MarianConfig(
        vocab_size=V, d_model=H, encoder_layers=L, decoder_layers=L, encoder_attention_heads=N, encoder_ffn_dim=ffn,
        decoder_attention_heads=N, decoder_ffn_dim=ffn, max_position_embeddings=cfg.length, activation_function="relu",
        pad_token_id=0, eos_token_id=None, bos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=None)).eval()
    about, decode = {"ours": size_of(ours), "theirs": size_of(theirs), "steps": 0}, ours.decode

    def counted(*args):
        about["steps"] += 1
        return decode(*args)

    ours.decode = counted

    def search():
        about["steps"] = 0
        return beam_search(ours, source, lengths, tokens, 1, 2, (0, 1), beam, 1.0)

    def generate():
        with torch.no_grad():
            found = theirs.generate(source, attention_mask=torch.ones_like(source), num_beams=beam, do_sample=False,
                                    max_new_tokens=tokens, length_penalty=1.0)
        about["their_steps"] = found.shape[1] - 1
    return search, generate, about


TRANSFORMER = dict(layers=6, hidden=512, heads=8, ffn=2048, vocab_size=32768)  # base, Vaswani et al. 2017
ROWS = {  # name: (function, width, rows, tokens)
    "bert-small-8": (bert, "small", 8, 128), "bert-small-32": (bert, "small", 32, 128),
    "bert-base": (bert, "base", 8, 128),
    "autobert-zero-base": (lambda *sizes: bert(*sizes, arch="autobert-zero"), "base", 8, 128),
    "albert-base": (albert_base, "base", 8, 128), "fine-tuning": (fine_tuning, "small", 32, 128),
    "beam-search": (translation, TRANSFORMER, 16, 30)}

GOALS = {"bert-small-8": 1.9, "bert-small-32": 2.2, "bert-base": 1.5, "autobert-zero-base": 1.65, "albert-base": 1.15,
         "fine-tuning": 1.8, "beam-search": 2.0}  # of theirs / ours


def paired(ours, theirs, rounds):
    """Seconds of both, run in turns, after one turn each to warm up, and the ratio."""
    seconds = {"ours": [], "theirs": []}
    for number in range(rounds + 1):
        for name, function in (("ours", ours), ("theirs", theirs)):
            began = time.perf_counter()
            function()
            seconds[name] += [time.perf_counter() - began] * (number > 0)
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"])]
    return {**{f"{name}_s": statistics.median(values) for name, values in seconds.items()},
            "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios), "n": rounds}


def processor():
    """The processor's name."""
    found = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")] if Path("/proc/cpuinfo").exists() else []
    return found[0] if found else platform.processor() or platform.machine()


def measure(names, rounds, tiny=False):
    """{row: what paired() found, parameters of both, the load of the machine before and after}."""
    found = {}
    for name in names:
        make, width, rows, tokens = ROWS[name]
        torch.manual_seed(0)
        if tiny:
            width, rows, tokens = "tiny", 2, 16
            # the published layers are twelve
            shape = {**WIDTHS[width], **({"layers": 12} if name.startswith("autobert") else {})}
        else:
            shape = width if isinstance(width, dict) else WIDTHS[width]
        ours, theirs, about = make(shape, rows, tokens)
        load = os.getloadavg()[0]
        found[name] = {**paired(ours, theirs, rounds), "parameters": about, "rows": rows, "tokens": tokens,
                       "load": [round(load, 2), round(os.getloadavg()[0], 2)]}
        print(table({name: found[name]}, head=not found.keys() - {name}), flush=True)
    return found


def table(rows, head=True):
    """The rows as Markdown."""
    lines = ["| step | ours s | theirs s | theirs / ours | lowest to highest | goal | n | load |",
             "|---|---|---|---|---|---|---|---|"] if head else []
    return "\n".join(lines + [
        f"| {name}, {row['rows']} x {row['tokens']} | {row['ours_s']:.3f} | {row['theirs_s']:.3f} | {row['ratio']:.2f} "
        f"| {row['lowest']:.2f} to {row['highest']:.2f} | {GOALS[name]} | {row['n']} "
        f"| {row['load'][0]} to {row['load'][1]} |" for name, row in rows.items()])


def main(argv):
    """peers [--rows NAME,NAME] [--rounds N] [--threads N] [--tiny] [--out FILE.json]"""
    parser = argparse.ArgumentParser(prog="bench.py peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="of " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="two rows of 16 tokens: does everything run")
    parser.add_argument("--out", default="", help="also write JSON here")
    own = parser.parse_args(argv)
    try:
        import transformers
    except ImportError:
        sys.exit("peers: transformers is missing; pip install transformers")
    names = own.rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        sys.exit(f"peers: no row {unknown[0]}; choose from {', '.join(ROWS)}")
    torch.set_num_threads(own.threads)
    transformers.logging.set_verbosity_error()
    machine = {"processor": processor(), "cores": os.cpu_count(), "threads": own.threads, "torch": torch.__version__,
               "transformers": transformers.__version__, "date": time.strftime("%Y-%m-%d")}
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    found = {**machine, "command": " ".join(["python tests/bench.py peers", *argv]),
             "rows": measure(names, own.rounds, own.tiny)}
    if own.out:
        Path(own.out).write_text(json.dumps(found, indent=1))
    return found
