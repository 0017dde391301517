"""What the data flags of a command stand for: the demo data where they are left out, and text turned into a tokenizer
and token files."""
import dataclasses
import os
from pathlib import Path

import torch

from common.cli import UserError
from common.corpus import Corpus, read_meta
from common.distributed import on_main, say
from common.runs import RunFolder
from common.tokenization import load_tokenizer, train_sentencepiece
from data.prepare import make_demo
from data.text import prepare_corpus

ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass
class Data:
    """A tokenizer, and the corpus cut in a part to train on and a held-out one; None where they are not needed."""
    device: torch.device
    tokenizer: object = None
    train: Corpus = None
    dev: Corpus = None


def open_run(cfg, action, ranks, *needs):
    """Open the run folder and the text: (RunFolder, Data).

    needs: data flags, for each of which the demo data stands in where it was left out; with "corpus" the text is
    opened, with "tokenizer" the tokenizer alone, which is trained on the corpus where --tokenizer names none. The
    tokenizer's file is copied into the run folder, where --init looks for it. Sets cfg.vocab_size. Of a finished run
    nothing but the folder is opened.
    """
    settings = dataclasses.asdict(cfg)
    reads_text = "corpus" in needs or "tokenizer" in needs and not cfg.tokenizer
    flags = [name for name in needs if name not in ("corpus", "tokenizer")] + ["corpus"] * reads_text
    demo = fill_in(cfg, ranks, *flags)
    run, data = RunFolder(cfg, action, ranks, settings, **demo), Data(ranks.device)
    if run.finished:
        return run, data
    if reads_text:
        data.tokenizer, data.train, data.dev = open_text(cfg, ranks, run.folder)
    elif "tokenizer" in needs:
        data.tokenizer = load_tokenizer(cfg.tokenizer)
        cfg.vocab_size = data.tokenizer.vocab_size
    if data.tokenizer:
        on_main(ranks, lambda: str(data.tokenizer.save(run.folder)))
    return run, data


def fill_in(cfg, ranks, *names):
    """Point the data flags `names` that were left out at the demo data, which is made on first use. Returns what
    config.json says about it."""
    missing = [name for name in names if not getattr(cfg, name)]
    if not missing:
        return {}
    say(ranks, f"no --{', no --'.join(missing)}: using the demo data in {ROOT / 'data' / 'demo'} (made on first use)")
    paths = on_main(ranks, make_demo, ROOT / "data" / "demo")
    for name in missing:
        path = str(paths[name])
        setattr(cfg, name, (path,) if isinstance(getattr(cfg, name), tuple) else path)
    return {"demo_sha256": paths["sha256"]}


def open_text(cfg, ranks, folder):
    """cfg.corpus, cfg.tokenizer and cfg.vocab_size as (tokenizer, Corpus to train on, held-out Corpus).

    A corpus that `data/prepare.py corpus` made (one folder with meta.json) is used as it is, with the tokenizer beside
    it. Otherwise the tokenizer is trained (unless --tokenizer gives one) and the token files are made under
    folder/corpus, once. Sets cfg.vocab_size to the tokenizer's. Held out are 5% of the documents, or what the knobs
    held_out (a share) and held_out_most (documents, 0 for any number) say in a Config that has them.
    """
    prepared = len(cfg.corpus) == 1 and (Path(cfg.corpus[0]) / "meta.json").exists()
    target = Path(cfg.corpus[0]) if prepared else Path(folder) / "corpus"
    if not prepared:
        on_main(ranks, make_text, cfg, target, ranks)
    tokenizer = load_tokenizer(cfg.tokenizer or target, read_meta(target).get("lower"))
    cfg.vocab_size = tokenizer.vocab_size
    return tokenizer, *Corpus(target, tokenizer).split(getattr(cfg, "held_out", 0.05), getattr(cfg, "held_out_most", 0))


def make_text(cfg, target, ranks):
    """Train or copy the tokenizer into the folder target, and make the token files there, unless both are there
    already."""
    if (target / "meta.json").exists():
        return
    for path in cfg.corpus:
        if not Path(path).exists():
            raise UserError(f"{path}: no such file or folder; "
                            "--corpus takes text files, folders of .txt files, or a prepared corpus")
    target.mkdir(parents=True, exist_ok=True)
    workers = os.cpu_count() or 1
    if not cfg.tokenizer and not (target / "spiece.model").exists():
        say(ranks, f"training a vocabulary of {cfg.vocab_size} pieces")
        train_sentencepiece(cfg.corpus, target / "spiece.model", cfg.vocab_size, threads=workers)
    tokenizer = load_tokenizer(cfg.tokenizer or target)
    if cfg.tokenizer:
        tokenizer.save(target)
    prepare_corpus(cfg.corpus, tokenizer, target, workers=workers)
