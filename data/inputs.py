"""What a command reads: the files behind its data flags (the demo data where they are left out),
and text turned into a tokenizer and token files."""
import dataclasses
import os
from pathlib import Path

import torch

from common.cli import UserError, written
from common.checkpoint import RunFolder, read_json
from common.distributed import on_main, print0
from common.finetune import is_demo, task_files
from common.tokenization import load_tokenizer
from data import cifar10, race, translation
from data.corpus import Corpus, read_meta
from data.demo import make_demo
from data.text import make_corpus, text_files

DEMO = Path(__file__).resolve().parent / "demo"
DATA = ("glue", "squad", "race", "cifar10", "train_text", "valid_text", "test_text", "corpus")
MOST_HELD_OUT = 1000  # documents, where --held_out is a fraction: 5% of Wikipedia are 300,000


@dataclasses.dataclass
class Data:
    """What a run reads; None where it is not needed. tasks: {name: Task}, None for MLM-saved."""
    device: torch.device
    tokenizer: object = None
    train: Corpus = None
    dev: Corpus = None
    tasks: dict = dataclasses.field(default_factory=dict)
    teacher: torch.nn.Module = None


def open_run(cfg, action, ranks, *needs, tasks=()):
    """Open the run folder and the text: (RunFolder, Data).

    needs: data flags; the demo data are used for those that are left out. With "corpus" the text is
    opened and cfg.vocab_size set; with "tokenizer" the tokenizer alone, which is trained on the
    corpus where --tokenizer names none. tasks: those that are read of --glue and --squad.

    Reads all that the command names before it touches the folder, so that a mistyped path does not
    cost the run that --restart would replace. Of a finished run it opens the folder alone. The
    caller calls run.save_settings(cfg) when it has opened what it reads.
    """
    given = dataclasses.asdict(cfg)
    if tasks:
        given = {"tasks": [*tasks], **given}
    text = "corpus" in needs or "tokenizer" in needs and not cfg.tokenizer
    flags = [name for name in DATA if name in needs or name == "corpus" and text]
    facts = fill_in(cfg, ranks, flags)
    reads = on_main(ranks, lambda: {
        "models": find_models(cfg, "tokenizer" in needs or text),
        **find_data(cfg, flags, tasks, action)})
    run = RunFolder(cfg, action, ranks, given, reads, **facts)
    data = Data(ranks.device)
    if run.finished:
        return run, data
    if text:
        data.tokenizer, data.train, data.dev = open_text(cfg, ranks, run.folder)
        print0(ranks, corpus_line(cfg, data))
    elif "tokenizer" in needs:
        data.tokenizer = load_tokenizer(cfg.tokenizer)
    if data.tokenizer:
        size = data.tokenizer.vocab_size
        if "vocab_size" in cfg.given and cfg.vocab_size != size:
            raise UserError(f"--vocab_size {cfg.vocab_size}: {data.tokenizer.path} has {size} "
                            "tokens; leave it out")
        cfg.vocab_size = size
        if getattr(cfg, "init", ""):
            on_main(ranks, check_vocabulary, Path(cfg.init), data.tokenizer)
        on_main(ranks, keep_vocabulary, run, data.tokenizer)
    return run, data


# --- files ---------------------------------------------------------------------------------------

def find_data(cfg, flags, tasks, action):
    """{data flag: its files}; UserError where one is missing, or is not text. Of a prepared corpus
    it is meta.json, which has the digests of the others."""
    reads = {}
    for flag in [*flags, "dev_corpus"]:
        value = getattr(cfg, flag, "")
        if not value:  # of a run's data some translations may lack a part
            continue
        files = []
        if flag in ("glue", "squad"):
            files += task_files(tasks, cfg, flag, action != "finetune")
        elif flag == "race":
            for split in ("train", "dev", *["test"] * Path(value, "test").is_dir()):
                for level in race.LEVELS:
                    files += race.passage_files(value, split, level)
        elif flag == "cifar10":
            files += cifar10.find_batches(value, "test" if action == "evaluate" else "train")
        elif flag.endswith("_text"):
            files += translation.find_sides(value, cfg.languages)
        else:
            files += [Path(value[0], "meta.json")] if is_prepared(value) else text_files(value)
        reads[flag] = [str(path) for path in files]
    return reads


def find_models(cfg, tokenizer):
    """The files of the models and the tokenizer that the flags cfg.models name. Opens --tokenizer
    if it is needed."""
    if cfg.tokenizer and (tokenizer or "tokenizer" in cfg.given):
        load_tokenizer(cfg.tokenizer)
    files = []
    for flag in cfg.models:
        value = getattr(cfg, flag)
        for path in map(Path, [value] if isinstance(value, str) else value):
            if (path / "checkpoint.pt").is_file():  # a run folder
                names = ("checkpoint.pt", "spiece.model", "vocab.txt")
                files += [path / name for name in names if (path / name).is_file()]
            elif value and path.exists():
                files.append(path)
    return [str(path) for path in files]


# --- the demo data -------------------------------------------------------------------------------

def data_of(init):
    """{data flag: its value} of the run `init`; {} if it is none, or has read demo data alone."""
    path = Path(init, "config.json")
    settings = read_json(path, dict).get("settings", {}) if init and path.exists() else {}
    values = {name: settings[name] for name in DATA if settings.get(name)}
    return {} if all(map(is_demo, values.values())) else values


def fill_in(cfg, ranks, flags):
    """Set the data flags that were left out: to the data of --init's run, so that a model of the
    user's own data never continues with demo data, or else to the demo data, which are made on
    first use. Returns facts for config.json."""
    missing = [name for name in flags if not getattr(cfg, name)]
    theirs = data_of(getattr(cfg, "init", ""))
    values = {name: theirs[name] for name in missing if name in theirs}
    if values:
        words = [f"--{name} {written(value)}" for name, value in values.items()]
        print0(ranks, f"data of {cfg.init}, by its config.json: {', '.join(words)}")
    missing = [name for name in missing if name not in theirs]
    facts = {}
    if theirs:
        needed = [name for name in missing if not name.endswith("_text")]
        if needed:
            raise UserError(f"--{needed[0]}: missing, and {cfg.init} was not trained on demo data; "
                            f"name it, or --{needed[0]} {DEMO / needed[0]}")
    elif missing:
        print0(ranks, f"no --{', no --'.join(missing)}: using the demo data in {DEMO} (made on "
                      "first use)")
        demo = on_main(ranks, make_demo, DEMO)
        values = {name: demo[name] for name in missing}
        facts = {"demo_sha256": demo["sha256"]}
    for name, value in values.items():
        if isinstance(getattr(cfg, name), tuple):
            value = (value,) if isinstance(value, str) else tuple(value)
        setattr(cfg, name, value)
    return facts


def words_after_training(cfg, folder, target):
    """The words of the command that follows a training on text: on demo data a fine-tuning, else an
    export."""
    action = ["--finetune", "SST-2"] if is_demo(cfg.corpus) else ["--export", target]
    return [*action, "--init", folder]


# --- text and vocabulary -------------------------------------------------------------------------

def is_prepared(paths):
    """Whether this corpus was made by `data/prepare.py corpus`."""
    return len(paths) == 1 and (Path(paths[0]) / "meta.json").exists()


def open_text(cfg, ranks, folder):
    """(tokenizer, Corpus to train on, held-out Corpus) of cfg.corpus.

    A prepared corpus is used with the tokenizer in its folder. Otherwise the tokenizer is trained,
    unless --tokenizer gives one, and the token files are made in folder/corpus, once. cfg.held_out
    below 1 is the fraction of the documents that is held out, at most MOST_HELD_OUT of them; from 1
    on it is their number. With cfg.dev_corpus that text is held out, and nothing of the corpus.
    """
    target = Path(cfg.corpus[0]) if is_prepared(cfg.corpus) else Path(folder) / "corpus"
    on_main(ranks, make_text, cfg.corpus, target, cfg, cfg.tokenizer)
    tokenizer = load_tokenizer(cfg.tokenizer or target, read_meta(target).get("lower"))
    if tokenizer.mask_id is None:
        raise UserError(f"{tokenizer.path}: lacks [MASK], which pre-training needs; use another")
    corpus = Corpus(target, tokenizer)
    if getattr(cfg, "dev_corpus", ()):
        dev = Path(folder) / "corpus" / "dev"
        on_main(ranks, make_text, cfg.dev_corpus, dev, cfg, str(tokenizer.path))
        return tokenizer, corpus, Corpus(dev, tokenizer)
    held_out = cfg.held_out
    if held_out >= max(1, len(corpus.ids)):
        raise UserError(f"--held_out {held_out:.0f}: {target} has {len(corpus.ids)} documents; "
                        "hold out fewer")
    most = MOST_HELD_OUT if held_out < 1 else int(held_out)
    return tokenizer, *corpus.split(min(held_out, 1.0), most)


def make_text(paths, target, cfg, tokenizer):
    """Make the tokenizer and the token files of text in the folder target, unless they are there.
    """
    if not (target / "meta.json").exists():
        make_corpus(paths, target, cfg.vocab_size, tokenizer, workers=os.cpu_count() or 1)


def corpus_line(cfg, data):
    """A line on the size of the corpus and the documents that are held out."""
    meta = data.train.meta
    counts = ", ".join(f"{meta[name]:,} {name}" for name in ("documents", "sentences", "tokens"))
    other = f" documents of {' '.join(cfg.dev_corpus)}" if getattr(cfg, "dev_corpus", ()) else ""
    return f"{' '.join(cfg.corpus)}: {counts}; held out: {len(data.dev.ids):,}{other}"


def keep_vocabulary(run, tokenizer):
    """Copy the tokenizer's file into the run folder, where --init looks for it."""
    tokenizer.save(run.folder)


def check_vocabulary(folder, tokenizer):
    """UserError where the vocabulary in a model's folder, if there is one, is another.
    SentencePiece cuts text by its scores too, so the whole file must be the same."""
    if any((folder / name).is_file() for name in ("spiece.model", "vocab.txt")):
        own = load_tokenizer(folder)
        same = own.fingerprint == tokenizer.fingerprint
        if own.file_name == "vocab.txt":
            same = own.names == tokenizer.names
        if not same or own.lower != tokenizer.lower:
            raise UserError(f"{tokenizer.path}: other pieces, scores or case than in {own.path}; a "
                            "model, its teacher and the corpus share one vocabulary: leave "
                            "--tokenizer out, and give the text itself as --corpus")
