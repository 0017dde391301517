"""What the data flags of a command stand for: the demo data where they are left out, and text turned into a tokenizer
and token files."""
import dataclasses
import os
from pathlib import Path

import torch

from common.cli import UserError, written
from common.checkpoint import RunFolder, read_json
from common.distributed import on_main, print0
from common.finetune import task_files
from common.tokenization import load_tokenizer
from data import cifar10, race, translation
from data.corpus import Corpus, read_meta
from data.demo import MARK, make_demo
from data.text import make_corpus, text_files

ROOT = Path(__file__).resolve().parent.parent
DATA = ("corpus", "glue", "squad", "race", "cifar10", "train_text", "valid_text", "test_text")  # data flags
MOST_HELD_OUT = 1000  # documents, where a share is held out: enough to judge by, and of Wikipedia 5% are 300,000


@dataclasses.dataclass
class Data:
    """What a run reads: a tokenizer, the corpus cut in a part to train on and a held-out one, and a
    teacher, each None where it is not needed; and tasks, {name: Task}, of which that of MLM-saved
    is None."""
    device: torch.device
    tokenizer: object = None
    train: Corpus = None
    dev: Corpus = None
    tasks: dict = dataclasses.field(default_factory=dict)
    teacher: torch.nn.Module = None


def open_run(cfg, action, ranks, *needs, tasks=(), **further):
    """Open the run folder and the text: (RunFolder, Data).

    needs: data flags, for each of which the demo data stands in where it was left out. With
    "corpus" the text is opened and cfg.vocab_size set, with "tokenizer" the tokenizer alone, which
    is trained on the corpus where --tokenizer names none. The tokenizer's file is copied into the
    run folder, where --init looks for it. tasks: those that are read of --glue and --squad.
    further: settings beside cfg's that the folder must agree with. What the command names is found
    by its readers before the folder is touched: a mistyped path does not cost the run that
    --restart would replace. Of a finished run nothing but the folder is opened. The caller calls
    run.save_settings(cfg) when it has opened what it reads. """
    asked = {**({"tasks": [*tasks]} if tasks else {}), **dataclasses.asdict(cfg), **further}
    reads_text = "corpus" in needs or "tokenizer" in needs and not cfg.tokenizer
    flags = [name for name in needs if name not in ("corpus", "tokenizer")] + ["corpus"] * reads_text
    demo = fill_in(cfg, ranks, *flags)
    reads = on_main(ranks, find_data, cfg, flags, tasks, action) + on_main(ranks, find_models, cfg, needs)
    run, data = RunFolder(cfg, action, ranks, asked, reads, **demo), Data(ranks.device)
    if run.finished:
        return run, data
    own = cfg.preset == "demo" and not all(is_demo(getattr(cfg, flag)) for flag in flags)
    if own and action != "evaluate" and (action != "finetune" or cfg.finetune_lr):  # else Table 14 holds in albert.py
        print0(ranks, "--preset demo: learning rates and steps that were chosen on demo data; for your own: "
                   "data/README.md, Your own data in ten minutes")
    if reads_text:
        data.tokenizer, data.train, data.dev = open_text(cfg, ranks, run.folder)
        print0(ranks, corpus_line(cfg, data))
    elif "tokenizer" in needs:
        data.tokenizer = load_tokenizer(cfg.tokenizer)
        cfg.vocab_size = data.tokenizer.vocab_size
    if data.tokenizer:
        if "vocab_size" in cfg.given and cfg.vocab_size != asked["vocab_size"]:
            raise UserError(f"--vocab_size {asked['vocab_size']}: {data.tokenizer.path} has {cfg.vocab_size} pieces; "
                            "leave it out")
        if getattr(cfg, "init", ""):
            on_main(ranks, check_vocabulary, Path(cfg.init), data.tokenizer)
        on_main(ranks, keep_vocabulary, run, data.tokenizer)
    return run, data


def find_data(cfg, flags, tasks, action):
    """The files that data flags stand for, found by those who read them: UserError where they are
    not there, or are no text. Of a prepared corpus it is meta.json, which has the digests of the
    others."""
    found = []
    flags = [flag for flag in flags if getattr(cfg, flag)]  # of --init's data some translations may lack a part
    for flag in [*flags, *["dev_corpus"] * bool(getattr(cfg, "dev_corpus", ()))]:
        value = getattr(cfg, flag)
        if flag in ("glue", "squad"):
            found += task_files(tasks, cfg, flag, action != "finetune")
        elif flag.endswith("_text"):
            found += translation.find_sides(value, cfg.languages)
        elif flag == "cifar10":
            found += cifar10.find_batches(value, "test" if action == "evaluate" else "train")
        elif flag == "race":
            for split in ("train", "dev", *["test"] * Path(value, "test").is_dir()):
                for level in race.LEVELS:
                    found += race.passage_files(value, split, level)
        else:
            found += [Path(value[0], "meta.json")] if is_prepared(value) else text_files(value)
    return [str(path) for path in found]


def find_models(cfg, needs):
    """The files of the models and the tokenizer that cfg names in the flags Config.models. A
    tokenizer that is needed is opened."""
    if cfg.tokenizer and ({"corpus", "tokenizer"} & {*needs} or "tokenizer" in cfg.given):
        load_tokenizer(cfg.tokenizer)
    found, values = [], [getattr(cfg, flag) for flag in cfg.models]
    for path in [Path(path) for value in values for path in (value if isinstance(value, tuple) else [value]) if path]:
        own = [path / name for name in ("checkpoint.pt", "spiece.model", "vocab.txt")]  # what is read of a run folder
        found += [file for file in own if file.is_file()] if own[0].is_file() else [path] * path.exists()
    return [str(path) for path in found]


def keep_vocabulary(run, tokenizer):
    """Copy the tokenizer's file into the run folder, and let config.json say which one it is."""
    run.facts["vocabulary"] = tokenizer.describe(tokenizer.save(run.folder))


def check_vocabulary(folder, tokenizer):
    """UserError where the vocabulary in a model's folder, if there is one, is another.
    SentencePiece cuts text by its scores too, so the whole file must be the same."""
    if any((folder / name).is_file() for name in ("spiece.model", "vocab.txt")):
        own = load_tokenizer(folder)
        same = own.fingerprint == tokenizer.fingerprint or (
            own.file_name == "vocab.txt" and own.names == tokenizer.names)
        if not same or own.lower != tokenizer.lower:
            raise UserError(f"{tokenizer.path}: other pieces, scores or case than in {own.path}; a "
                            "model, its teacher and the corpus share one vocabulary: leave "
                            "--tokenizer out, and give the text itself as --corpus")


def is_demo(paths):
    """Whether the value of a data flag is demo data, wherever it was made: demo.json stands above
    it."""
    real = [Path(path).resolve() for path in ([paths] if isinstance(paths, str) else paths)]
    return all(any((folder / MARK).is_file() for folder in (path, *path.parents)) for path in real)


def data_of(init):
    """{data flag: its value} of the run `init`, by its config.json; {} where it read demo data
    alone, or is no run."""
    path = Path(init, "config.json")
    record = read_json(path) if init and path.exists() else {}
    settings = record.get("settings") if isinstance(record, dict) else None
    found = {name: settings[name] for name in DATA if settings.get(name)} if isinstance(settings, dict) else {}
    return {} if all(map(is_demo, found.values())) else found


def words_after_training(cfg, folder, target):
    """The words of the command that comes after a training on text: on demo data a fine-tuning,
    else an export."""
    return (["--finetune", "SST-2"] if is_demo(cfg.corpus) else ["--export", target]) + ["--init", folder]


def fill_in(cfg, ranks, *names):
    """Point the data flags `names` that were left out at the data of --init's run, or else at the
    demo data, which is made on first use: a model of the user's own data goes on with no demo data.
    Returns what config.json says of it."""
    theirs = data_of(getattr(cfg, "init", ""))
    taken = {name: theirs[name] for name in names if name in theirs and not getattr(cfg, name)}
    for name, value in taken.items():
        setattr(cfg, name, tuple(value) if isinstance(value, list) else value)
    if taken:
        words = [f"--{name} {written(getattr(cfg, name))}" for name in taken]
        print0(ranks, f"data of {cfg.init}, by its config.json: {', '.join(words)}")
    missing = [name for name in names if not getattr(cfg, name) and not (theirs and name.endswith("_text"))]
    if missing and theirs:
        raise UserError(f"--{missing[0]}: missing; {cfg.init} was trained on data that is no demo data, so that none "
                        f"stands in: name it, or --{missing[0]} {ROOT / 'data' / 'demo' / missing[0]}")
    if not missing:
        return {}
    print0(ranks, f"no --{', no --'.join(missing)}: using the demo data in {ROOT / 'data' / 'demo'} (made on first use)")
    paths = on_main(ranks, make_demo, ROOT / "data" / "demo")
    for name in missing:
        path = str(paths[name])
        setattr(cfg, name, (path,) if isinstance(getattr(cfg, name), tuple) else path)
    return {"demo_sha256": paths["sha256"]}


def is_prepared(paths):
    """Whether this corpus is one that `data/prepare.py corpus` made."""
    return len(paths) == 1 and (Path(paths[0]) / "meta.json").exists()


def open_text(cfg, ranks, folder):
    """cfg.corpus, cfg.tokenizer and cfg.vocab_size as (tokenizer, Corpus to train on, held-out
    Corpus).

    A corpus that `data/prepare.py corpus` made is used as it is, with the tokenizer beside it.
    Otherwise the tokenizer is trained (unless --tokenizer gives one) and the token files are made
    under folder/corpus, once. Sets cfg.vocab_size to the tokenizer's. cfg.held_out below 1 is the
    share of the documents that is held out, at most MOST_HELD_OUT of them; from 1 on it is their
    number. With cfg.dev_corpus that text is, and nothing of the corpus. """
    target = Path(cfg.corpus[0]) if is_prepared(cfg.corpus) else Path(folder) / "corpus"
    on_main(ranks, make_text, cfg.corpus, target, cfg, cfg.tokenizer)
    tokenizer = load_tokenizer(cfg.tokenizer or target, read_meta(target).get("lower"))
    if tokenizer.mask_id is None:
        raise UserError(f"{tokenizer.path}: the vocabulary lacks [MASK], which pre-training needs; take another")
    cfg.vocab_size = tokenizer.vocab_size
    if getattr(cfg, "dev_corpus", ()):
        apart = Path(folder) / "corpus" / "dev"
        on_main(ranks, make_text, cfg.dev_corpus, apart, cfg, str(tokenizer.path))
        return tokenizer, Corpus(target, tokenizer), Corpus(apart, tokenizer)
    corpus, held = Corpus(target, tokenizer), cfg.held_out
    if held >= max(1, len(corpus.ids)):
        raise UserError(f"--held_out {held:.0f}: {target} has {len(corpus.ids)} documents, and some must be left to "
                        "train on; hold out fewer")
    return tokenizer, *corpus.split(min(held, 1.0), MOST_HELD_OUT if held < 1 else int(held))


def corpus_line(cfg, data):
    """A line on how the corpus was read: its size, and the documents that are held out."""
    size, held = data.train.meta, len(data.dev.ids)
    other = f" documents of {' '.join(cfg.dev_corpus)}" if getattr(cfg, "dev_corpus", ()) else ""
    return (f"{' '.join(cfg.corpus)}: {size['documents']:,} documents, "
            f"{size['sentences']:,} sentences, {size['tokens']:,} tokens; "
            f"held out: {held:,}{other}")


def make_text(paths, target, cfg, tokenizer):
    """Train or copy the tokenizer into the folder target, and make the token files of the text
    there, unless both are there already."""
    if not (target / "meta.json").exists():
        make_corpus(paths, target, cfg.vocab_size, tokenizer, workers=os.cpu_count() or 1)
