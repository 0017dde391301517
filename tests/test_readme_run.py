"""The commands of README.md, data/README.md and MANUAL.md run once (pytest --slow), with small
files in the official layouts as paths, and paper files with --dry_run. The last of two equal flags
applies: SMALL makes networks small. torchrun lines run as one process. test_prepare.py tests
downloads. Commands with a time next to them run as they are, and their times are compared."""
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from small_runs import call, write
from test_readme import BLOCK, PAGES, PAPERS, arguments, commands_of

from common import cli
from data.images import load_cifar10

MADE_BY = """
path/to/prepared: data/prepare.py corpus --corpus path/to/texts --to path/to/prepared
corpora/mine: data/prepare.py corpus --corpus my/texts --to corpora/mine
corpora/wikibooks: data/prepare.py corpus --corpus path/to/texts --to corpora/wikibooks
path/to/bert: autotinybert.py --export path/to/bert --init runs/tiny
BERT: autotinybert.py --export BERT --init runs/tiny
runs/compressed/reviews: autotinybert.py --search --init BERT --tasks my/reviews \
    --out runs/compressed
path/to/electra-base-discriminator: autotinybert.py --init runs/tiny \
    --export path/to/electra-base-discriminator
my/teacher: autotinybert.py --export my/teacher --init runs/tiny
runs/tiny: autotinybert.py --further_train --arch 2-24-48-2-24 --corpus path/to/texts \
    --out runs/tiny
path/to/albert-base-v2: albert.py --export path/to/albert-base-v2 --init runs/small
runs/small: albert.py --pretrain --preset base --corpus path/to/prepared --out runs/small
runs/16: albert.py --pretrain --length 16 --objective none --batch 64 --lr 0.08 --steps 4500 \
    --out runs/16
runs/128: albert.py --pretrain --init runs/16 --out runs/128
runs/albert-pretrain-demo: albert.py --pretrain --corpus my/texts --vocab_size 2000
runs/albert-finetune-demo/reviews: albert.py --finetune my/reviews \
    --init runs/albert-pretrain-demo
runs/autobert_zero-search-base: autobert_zero.py --search --preset base \
    --corpus path/to/prepared --glue path/to/glue
runs/autobert_zero-search-demo: autobert_zero.py --search
runs/autobert_zero-pretrain-demo: autobert_zero.py --pretrain --corpus my/texts --arch bert
runs/autobert_zero-finetune-demo/reviews: autobert_zero.py --finetune my/reviews \
    --init runs/autobert_zero-pretrain-demo
runs/albert-finetune-base/reviews: albert.py --finetune my/reviews --preset base \
    --init path/to/albert-base-v2
runs/autotinybert-search-demo: autotinybert.py --search --speedup 7.2
runs/mformer-search-cifar10-demo: mformer.py --search
runs/mformer-train-cifar10-demo: mformer.py --train \
    --arch runs/mformer-search-cifar10-demo/best.json
runs/mformer-train-images-demo: mformer.py --train --images my/pictures --patch 6 \
    --arch "layers=1 hidden=64 ffn=96 heads=2 types=linear"
runs/mformer-search-wmt14-demo: mformer.py --task wmt14 --search
runs/mformer-train-wmt14-demo: mformer.py --task wmt14 --train \
    --arch runs/mformer-search-wmt14-demo/best.json
"""  # {start of a command: the command that makes it}
MADE_BY = re.sub(r"\s*\\\n\s*", " ", MADE_BY).strip().split("\n")
MADE_BY = dict(line.split(": ") for line in MADE_BY)
NETWORK = "--layers 2 --hidden 16 --heads 2 --ffn 32"
SEARCH = "--layers 1 2 --hidden 16 --ffn 16 32 48 --heads 1 2"
SHAPES = "--largest 2-24-48-2-24 --smallest 1-24-24-2-24 --reference 2-24-48-2-24"
SMALL = {  # pattern of commands: flags to append
    r"--corpus (my/|texts|path/to/texts)|--train_text": "--vocab_size 200",
    r"albert.py --pretrain .*(--preset|--vocab_size)":
        f"{NETWORK} --embedding 8 --length 64 --batch 128 --dev_examples 16",
    r"albert.py --finetune .*--preset": "--finetune_length 64 --finetune_batch 8",
    r"autobert_zero.py --(search|pretrain) --preset": f"{NETWORK} --length 16 --batch 4",
    r"autotinybert.py --search (?!.*limit).*(--preset|--setting)":
        f"{SHAPES} --length 16 --batch 16 --speedup 0.2",
    r"autotinybert.py --latency ": SHAPES,
    r"autotinybert.py --further_train": "--length 16 --batch 16",
    r"autotinybert.py --finetune": "--finetune_length 64",
    r"--preset base --cifar10": f"{SEARCH} --image 32 --batch 8 --cost flops",
    r"--preset base --task wmt14":
        f"{SEARCH} --qkv 16 --decoder_layers 1 --connect 1 --length 64 --batch 600",
    # noise may put the times of so few networks above the limit
    r"--task wmt14 (?!--train)": "--cost flops",
}


def without(module, argv):
    """The arguments without the flags that a dry run sets."""
    known = getattr(module, "DRY_RUN", None) or module.PRESETS["dry_run"]
    known = {name for name, value in known.items() if not isinstance(value, dict)}
    kept = []
    keep = True
    for word in argv:
        if word.startswith("--"):
            keep = word[2:] not in known
        if keep:
            kept.append(word)
    return kept


@pytest.fixture(scope="module")
def home(tmp_path_factory, demo, ready):
    """A folder with the paths of the commands: small data in the official layouts."""
    home = tmp_path_factory.mktemp("home")
    glue = shutil.copytree(ready["glue"], home / "path/to/glue")
    shutil.copytree(glue / "RTE", glue / "WNLI")  # has the layout of RTE, but for the labels
    for path in (glue / "WNLI").iterdir():
        text = path.read_text().replace("not_entailment", "0").replace("entailment", "1")
        path.write_text(text)
    (home / "my").mkdir()
    for name, source in {
        "path/to/squad": ready["squad"],
        "path/to/race": ready["race"],
        "path/to/cifar10": demo["cifar10"],
        "my/glue": glue,
    }.items():
        (home / name).symlink_to(source)
    pictures, labels = load_cifar10(demo["cifar10"], "train")
    arrays = {"images": pictures[:200].permute(0, 2, 3, 1)[:, :24, :24], "labels": labels[:200]}
    (home / "my/pictures").mkdir()
    for name in ("pictures/train", "pictures/test", "new"):
        np.savez(home / f"my/{name}.npz", **arrays)
    write(home / "my/new.fr", "A dog runs.\nTwo men talk.\n")
    write(home / "my/new.csv", "review\nFine\n")
    for name in ("train", "dev"):
        write(home / f"my/reviews/{name}.csv", "review,label\n" + "Good,1\nBad,x\n" * 20)
    text = Path(demo["corpus"], "language.txt").read_text()[:20_000]
    for folder in ("path/to/texts", "my/texts", "my/books", "texts/wiki", "texts/books"):
        write(home / folder / "1.txt", text)
    for part, language in product(("train", "valid", "test"), ("en", "de")):
        lines = Path(f"{demo['train_text']}.{language}").read_text().split("\n")[:400]
        other = {"en": "fr", "de": "it"}[language]
        for name in (f"wmt14/{part}.{language}", f"my/pairs/{part}.{other}"):
            write(home / name, "\n".join(lines) + "\n")
    return home


@pytest.fixture
def run(home, monkeypatch):
    """Run a command in the folder `home`, after the commands that make its inputs."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)  # test_flow.py compiles

    def work(line):
        words = shlex.split(line)
        for flag, word in zip(words, words[1:]):
            source = word.removesuffix("/best.json")
            if flag in ("--to", "--export"):
                shutil.rmtree(word, ignore_errors=True)  # made by another command
            elif flag != "--out" and source in MADE_BY and not Path(source).exists():
                work(MADE_BY[source])
        small = [flags for pattern, flags in SMALL.items() if re.search(pattern, line)]
        file, argv = arguments(line)
        if file in PAPERS:
            module = importlib.import_module(file)
            argv = without(module, argv)
            if not re.search("--(export|describe|predict|evaluate) ", line):
                small.append("--dry_run")
                if "--out" not in argv:  # the next command uses the folder of the page
                    small.append(f"--restart --out {default_out(module, argv)}")
        assert not call(" ".join([file, shlex.join(argv), *small]), monkeypatch)
    return work


def default_out(module, argv):
    """The run folder of a command without --out and --dry_run."""
    folders = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "run_action", lambda function, cfg, command: folders.append(cfg) or 0)
        module.main(argv)
    cfg, = folders
    if module.__name__ == "mformer":  # the data are in the name
        data = "images" if cfg.images else cfg.task
        return cfg.out.replace("-demo", f"-{data}-demo").replace("-base", f"-{data}-base")
    return cfg.out


RUN = re.compile(rf"(?<![/.])\b({'|'.join(PAPERS)})\.py|data/prepare\.py (?!download)")
LINES = [line for page in PAGES[:3] for line in commands_of(page) if RUN.search(line)]


@pytest.mark.slow
@pytest.mark.parametrize("line", dict.fromkeys(LINES), ids=str)
def test_commands_run(line, run):
    run(line)


UNITS = {"second": 1, "minute": 60, "hour": 3600}
TIMED = re.compile(
    r"^((?:python|torchrun|pytest)\b.*?) +#.*?\b(\d+)(?: to (\d+))? (second|minute|hour)s?\b", re.M)
STARTS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "pytest": [sys.executable, "-m", "pytest"],
}


def timed_commands(text):
    """(command, shortest and longest seconds) of the commands in a page's code blocks that have a
    time in their comment, except on files that a user has to bring."""
    blocks = re.sub(r"\s*\\\n\s*", " ", "\n".join(BLOCK.findall(text)))
    for line, low, high, unit in TIMED.findall(blocks):
        if not re.search(r"\b(path/to|my)/", line):
            yield line.strip(), UNITS[unit] * int(low), UNITS[unit] * int(high or low)


def test_times_are_read_from_comments():
    page = ("```bash\npytest    # 2 to 4 minutes\npython a.py \\\n    --b   # data, 10 seconds\n"
            "python c.py  # on GPUs\npython d.py --e my/f  # 1 hour\n```\n")
    assert [*timed_commands(page)] == [("pytest", 120, 240), ("python a.py --b", 10, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("line, low, high", [
    each for page in PAGES[:3] for each in timed_commands(page.read_text(encoding="utf-8"))])
def test_a_command_takes_the_time_that_the_page_gives(line, low, high, tmp_path):
    """Within a factor of three, in a copy of the repository without data and runs."""
    checkout = tmp_path / "checkout"
    left_out = shutil.ignore_patterns(".git", "demo", "cache", "runs", "__pycache__")
    shutil.copytree(ROOT, checkout, ignore=left_out)
    program, *words = shlex.split(line)
    began = time.monotonic()
    subprocess.run([*STARTS[program], *words], cwd=checkout, check=True)
    assert low / 3 <= time.monotonic() - began <= 3 * high
