"""Small data and finished runs of all four files for many tests. The fixture `ready` makes them
once."""
import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import filled, release_locks

import autobert_zero
import autotinybert
import mformer
from common import cli
from common.launch import Ranks
from common.tokenization import rules_of

ALONE = Ranks(0, 1, torch.device("cpu"))  # one process
ARCH = (
    "'layers=1 hidden=16 ffn=16 heads=1 types=linear decoder_layers=1 decoder_hidden=16 "
    "decoder_ffn=16 decoder_heads=1 decoder_types=linear cross_heads=1 connect=1 "
    "cross_types=linear'")
TRAINED = {
    "albert":
        "--pretrain --corpus {corpus} --layers 1 --hidden 16 --heads 2 --ffn 16 --embedding 8 "
        "--positions 64 --length 60 --dev_examples 4 --batch 2 --dropout 0.1 --dropout_steps 1",
    "autobert_zero":
        "--pretrain --corpus {corpus} --layers 1 --hidden 16 --heads 2 --ffn 16 --batch 2",
    "autotinybert":
        "--further_train --corpus {corpus} --accumulate 1 --eval_every 1 --arch 1-16-16-2-16 "
        "--batch 2",
    "mformer":
        "--train --task wmt14 --train_text {pairs}/train --test_text {pairs}/train "
        f"--vocab_size 120 --batch 64 --held_out 4 --length 40 --arch {ARCH}",
}
STEPS = {"autotinybert": "--further_steps"}  # flags other than --steps
TRAINED = {
    program: f"{program} {flags} {STEPS.get(program, '--steps')} 2 --save_every 1 --device cpu"
    for program, flags in TRAINED.items()}
FEW = "--finetune_epochs 1 --finetune_batch 4 --finetune_length 64"  # in a search
ONE = f"{FEW} --runs 1"  # in a fine-tuning
SEARCHES = {
    "autobert_zero":
        "--corpus {corpus} --glue {glue} --tasks CoLA,{reviews} "
        "--layers 2 --hidden 16 --heads 2 --ffn 16 "
        "--batch 4 --steps 4 --population 3 --rounds 1 --parents 2 --children 2 --finalists 1 "
        "--weight_sharing biws "
        f"--finalist_times 1 {FEW}",
    "autotinybert":
        "--corpus {corpus} --tasks {reviews} --largest 2-24-40-4-24 --smallest 1-8-8-1-8 "
        "--length 24 --batch 8 --accumulate 2 --samples 2 --steps 4 --further_steps 3 "
        "--eval_every 1 --population 3 --generations 2 --winners 2 --latency_archs 24 "
        "--latency_rounds 1 --latency_length 16 --reference 6-128-512-4-128 --speedup 2 "
        f"{FEW}",
    "mformer":
        "--cifar10 {cifar10} --cost flops --layers 1 2 --hidden 16 --ffn 16 32 --heads 1 2 "
        "--patch 8 --batch 8 --accumulate 2 --held_out 16 --steps 6 --samples 20 "
        "--generations 2 --population 10 --finalists 2",
}
REVIEWS = {  # a user's own task. A search does not read its test file
    "train": 'ID,text,Label\n1,"Good, ""really"" good.",pleased\n2,It broke.,angry\n'
             '3,"Two\nli\u2028nes",meh\n',
    "dev": "text,label,id\nIt broke.,angry,1\nGood.,pleased,2\n",
    "test": "no table",
}
TUNED = f"albert --finetune CoLA --init {{albert}} --glue {{glue}} {ONE}"
RUNS = {
    name: f"{command} {STEPS.get(name, '--steps')} 6 --save_every 2 --accumulate 2"
    for name, command in TRAINED.items()}
RUNS["mformer lowest"] = f"{RUNS['mformer']} --weights lowest"
RUNS["tuned"] = f"{TUNED} --finetune_dropout 0.1 --finetune_epochs 6 --eval_every 2"
for name, words in SEARCHES.items():
    RUNS[f"{name} search"] = f"{name} --search {words} --save_every 2 --device cpu"


def write(path, content):
    """Write a file: bytes, text, or JSON. Returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, (bytes, str)) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


def call(command, monkeypatch):
    """The exit status of a command, run in this process as its __main__ would run it."""
    program, *argv = shlex.split(command)
    module = importlib.import_module(program.replace("/", "."))
    monkeypatch.setattr(sys, "argv", [f"{program.removeprefix('data/')}.py", *argv])
    with pytest.raises(SystemExit) as end:
        cli.run(module.main if program == "data/prepare" else lambda: module.main(argv))
    release_locks()
    return end.value.code or 0


def hold_out_few(patch):
    """Evaluate language models on 64 held-out sequences, not on 256 to 1024."""
    of_networks = autobert_zero.evaluate_language_model
    of_sub_models = autotinybert.evaluate_language_model
    patch.setattr(
        autobert_zero, "evaluate_language_model",
        lambda model, data, cfg, ranks, sequences=0: of_networks(model, data, cfg, ranks, 64))
    patch.setattr(
        autotinybert, "evaluate_language_model",
        lambda model, data, cfg, ranks, sequences=0: of_sub_models(model, data, cfg, ranks, 64))


def pretended_latency(arch, cfg=None):
    """Milliseconds of a machine that does 50 GFLOP/s and pays for each layer and each head."""
    calls = 0.3 * arch.layers + 0.02 * arch.layers * arch.heads
    return autotinybert.flops(arch) / 5e7 + calls + 0.001 * arch.hidden


def pretend(patch):
    """Searches have latencies that are the same in each run, and rankers that need not be good."""
    patch.setattr(autotinybert, "time_model", pretended_latency)
    patch.setattr(mformer, "measure_latency", lambda arch, *_: arch.layers + sum(arch.ffn) / 64)
    patch.setattr(mformer.Ranker, "fit", lambda self, generator: None)
    patch.setattr(mformer.Ranker.importance, "__defaults__", (2,))


def next_command(printed):
    """The next command that a run has printed, for call()."""
    program, words = re.search(r"^next: python (\w+)\.py (.+)$", printed, re.MULTILINE).groups()
    return f"{program} {words}"


class FakeTokenizer:
    vocab_size = 1000
    pad_id = 0
    unk_id = 1
    cls_id = 2
    sep_id = 3
    mask_id = 4
    starts_word = np.arange(1000) % 3 != 0  # every third token continues a word
    file_name = "spiece.model"
    lower = True
    rules = rules_of(True)
    without_comma = False
    save = staticmethod(print)


def make_ready(demo, root):
    """{name: folder} of small data and finished runs, made below `root`."""
    names = ("corpus", "glue", "squad", "race", "pairs", "reviews", "tuned", "cifar10", "hf",
             *TRAINED)
    folders = {name: root / name for name in names}
    write(root / "text.txt", Path(demo["corpus"], "language.txt").read_text()[:40_000])
    for path in Path(demo["glue"]).rglob("*.tsv"):
        lines = path.read_text().splitlines(keepends=True)[:6]
        write(root / "glue" / path.relative_to(demo["glue"]), "".join(lines))
    for path in Path(demo["squad"]).glob("*.json"):
        content = json.loads(path.read_text())
        article = max(content["data"], key=lambda article: len(article["paragraphs"]))
        del article["paragraphs"][4:]  # some questions of the others have no answer
        write(root / "squad" / path.name, {"data": [article]})
    for path in Path(demo["race"]).rglob("0.txt"):
        write(root / "race" / path.relative_to(demo["race"]), path.read_bytes())
    for split, text in REVIEWS.items():
        write(root / "reviews" / f"{split}.csv", text)
    for end in ("en", "de"):
        lines = Path(f"{demo['train_text']}.{end}").read_text().split("\n")[:40]
        write(root / "pairs" / f"train.{end}", "\n".join(lines) + "\n")
    for name in ("data_batch_1.bin", "test_batch.bin"):
        write(root / "cifar10" / name, Path(demo["cifar10"], name).read_bytes()[:40 * 3073])
    with pytest.MonkeyPatch.context() as patch:
        made = "data/prepare corpus --corpus {root}/text.txt --to {corpus} --vocab_size 300"
        assert not call(filled(made, root=root, **folders), patch)
        for name, command in {**TRAINED, "tuned": TUNED}.items():
            assert not call(filled(f"{command} --out {{{name}}}", **folders), patch), name
        assert not call(filled("albert --export {hf} --init {albert}", **folders), patch)
    for path in root.rglob("checkpoint.pt.previous"):  # a damaged checkpoint has no previous one
        path.unlink()
    return folders
