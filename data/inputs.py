"""What the data flags of a command stand for: the demo data where they are left out, and text turned into a tokenizer
and token files."""
import dataclasses
import glob
import os
from pathlib import Path

import torch

from common.cli import MissingFile, UserError
from common.distributed import on_main, say
from common.files import lock, release_locks
from common.glue import TASKS, file_of
from common.runs import RunFolder
from common.tokenization import load_tokenizer
from data.corpus import Corpus, read_meta
from data.prepare import make_demo
from data.text import layout_of, make_corpus, text_files

ROOT = Path(__file__).resolve().parent.parent
MOST_HELD_OUT = 1000  # documents, where a share is held out: enough to judge by, and of Wikipedia 5% are 300,000
MENDS = {"glue": "point --glue at the folder that holds the tasks' folders",
         "squad": "point --squad at the folder with the official train and dev JSON files"}
OTHERS = ("init", "tokenizer", "teacher", "arch", "ensemble", "dev_corpus")  # further flags that name files


@dataclasses.dataclass
class Data:
    """A tokenizer, and the corpus cut in a part to train on and a held-out one; None where they are not needed."""
    device: torch.device
    tokenizer: object = None
    train: Corpus = None
    dev: Corpus = None


def open_run(cfg, action, ranks, *needs, only=None, **further):
    """Open the run folder and the text: (RunFolder, Data).

    needs: data flags, for each of which the demo data stands in where it was left out; with "corpus" the text is
    opened, with "tokenizer" the tokenizer alone, which is trained on the corpus where --tokenizer names none. The
    tokenizer's file is copied into the run folder, where --init looks for it. Sets cfg.vocab_size. Of a finished run
    nothing but the folder is opened. further: settings beside cfg's that the folder must agree with, such as tasks.
    only: the tasks that are read of GLUE and SQuAD, where neither further["tasks"] nor cfg.tasks names them. What is
    to be read is looked at first: what a mistyped path costs is not the run that --restart would replace.
    """
    settings = {**dataclasses.asdict(cfg), **further}
    reads_text = "corpus" in needs or "tokenizer" in needs and not cfg.tokenizer
    flags = [name for name in needs if name not in ("corpus", "tokenizer")] + ["corpus"] * reads_text
    demo = fill_in(cfg, ranks, *flags)
    tasks = tasks_of(cfg, only or further.get("tasks"))
    named = {"dev_corpus"} | ({"tokenizer"} if {"corpus", "tokenizer"} & {*needs} else {"tokenizer"} & cfg.given)
    on_main(ranks, look, cfg, action, [*flags, *(name for name in sorted(named) if getattr(cfg, name, ""))], tasks)
    reads = [path for name in (*flags, *OTHERS) for path in (
        what_is_read(getattr(cfg, name, "")) if tasks is None or name not in MENDS else task_files(cfg, name, tasks))]
    run, data = RunFolder(cfg, action, ranks, settings, reads, **demo), Data(ranks.device)
    if run.finished:
        return run, data
    if reads_text:
        data.tokenizer, data.train, data.dev = open_text(cfg, ranks, run.folder)
    elif "tokenizer" in needs:
        data.tokenizer = load_tokenizer(cfg.tokenizer)
        cfg.vocab_size = data.tokenizer.vocab_size
    if data.tokenizer:
        if "vocab_size" in cfg.given and cfg.vocab_size != settings["vocab_size"]:
            raise UserError(f"--vocab_size {settings['vocab_size']}: {data.tokenizer.path} has {cfg.vocab_size} pieces; "
                            "leave it out")
        on_main(ranks, keep_vocabulary, run, data.tokenizer)
    return run, data


def send(batch, device):
    """[the tensors of a batch on the device; None stays]. To a GPU from pinned memory, so that the host does not wait
    for what the device is still at."""
    pinned = [value.pin_memory() if device.type == "cuda" and value is not None else value for value in batch]
    return [value if value is None else value.to(device, non_blocking=True) for value in pinned]


def keep_vocabulary(run, tokenizer):
    """Copy the tokenizer's file into the run folder; config.json is to say which one it is."""
    run.facts["vocabulary"] = {"file": tokenizer.save(run.folder).name, "pieces": tokenizer.vocab_size,
                               "fingerprint": tokenizer.fingerprint}


def tasks_of(cfg, names=None):
    """The tasks of GLUE and SQuAD that a run reads, None where cfg.tasks has words that stand for several."""
    words = names or getattr(cfg, "tasks", "").replace(",", " ").split()
    known = {name.lower(): name for name in (*TASKS, "SQuAD1.1", "SQuAD2.0", "RACE", "MLM")}
    return [known[word.lower()] for word in words] if all(word.lower() in known for word in words) else None


def task_files(cfg, flag, tasks):
    """What a run reads of --glue or --squad: the tasks' folders (MNLI: AX too), or their files."""
    folder = Path(getattr(cfg, flag))
    if flag == "squad":
        return [folder / f"{split}-v{name[5:]}.json" for name in tasks if name.startswith("SQuAD")
                for split in ("train", "dev")]
    found = [folder / name for name in tasks if name in TASKS]
    return found + [folder / "diagnostic"] * ("MNLI" in tasks and (folder / "diagnostic").exists())


def look(cfg, action, flags, tasks):
    """UserError where something that a command names is not there, or is no text."""
    for flag in flags:
        value = getattr(cfg, flag)
        if flag in ("corpus", "dev_corpus"):
            prepared = len(value) == 1 and (Path(value[0]) / "meta.json").exists()
            for path in [] if prepared else text_files(value):
                layout_of(path)
        elif flag == "tokenizer":
            load_tokenizer(value)
        elif flag in MENDS:
            look_at_tasks(cfg, action, flag, tasks)
        elif flag.endswith("_text"):
            for ending in cfg.languages:
                if not Path(f"{value}.{ending}").is_file():
                    raise MissingFile(f"{value}.{ending}: no such file; --{flag} PREFIX stands for "
                                      f"{' and '.join(f'PREFIX.{name}' for name in cfg.languages)}")
        elif flag == "cifar10" and not any(Path(value).glob("*_batch*.bin")):
            raise UserError(f"{value}: there is no data_batch_*.bin; point --cifar10 at the binary version")
        elif not what_is_read(value):
            raise UserError(f"--{flag} {value}: there is no such file or folder; check the path")


def look_at_tasks(cfg, action, flag, tasks):
    """MissingFile where a task's train or dev file is not there: of the last one that is named as of the first."""
    for path in task_files(cfg, flag, tasks or ()):
        splits = ["train", "dev", *["dev_mismatched"] * (path.name == "MNLI" and action == "finetune")]
        files = [path / file_of(path.name, split) for split in splits if path.name in TASKS]
        for file in [path] if flag == "squad" else files:
            if not file.is_file():
                named = action == "finetune" or "tasks" in cfg.given
                words = "" if named else f"; the preset's --tasks names {path.name}"
                raise MissingFile(f"{file}: no such file; {MENDS[flag]}{words}")


def what_is_read(value):
    """The files and folders that the value of a data flag stands for. Of a run folder its checkpoint counts."""
    found = []
    for path in map(Path, filter(None, value if isinstance(value, tuple) else (value,))):
        own = [path / name for name in ("checkpoint.pt", "spiece.model", "vocab.txt") if os.path.isfile(path / name)]
        if os.path.isfile(path / "checkpoint.pt"):
            found += own
        elif os.path.exists(path):  # False, where pathlib fails, of an architecture's text: too long for a name
            found.append(path)
        else:  # a PREFIX of parallel text, or a name; what is missing is named by who reads it
            found += sorted(path.parent.glob(f"{glob.escape(path.name)}.*")) if path.name else []
    return found


def fill_in(cfg, ranks, *names):
    """Point the data flags `names` that were left out at the demo data, which is made on first use. Returns what
    config.json says about it."""
    missing = [name for name in names if not getattr(cfg, name)]
    if not missing:
        return {}
    say(ranks, f"no --{', no --'.join(missing)}: using the demo data in {ROOT / 'data' / 'demo'} (made on first use)")
    paths = on_main(ranks, made_once, ROOT / "data" / "demo")
    for name in missing:
        path = str(paths[name])
        setattr(cfg, name, (path,) if isinstance(getattr(cfg, name), tuple) else path)
    return {"demo_sha256": paths["sha256"]}


def made_once(folder):
    """make_demo, by one of the runs that want it at once; the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    held = folder.with_name(f"{folder.name}.lock")
    lock(held, wait=True, what="the demo data")
    try:
        return make_demo(folder)
    finally:
        release_locks(held)


def open_text(cfg, ranks, folder):
    """cfg.corpus, cfg.tokenizer and cfg.vocab_size as (tokenizer, Corpus to train on, held-out Corpus).

    A corpus that `data/prepare.py corpus` made (one folder with meta.json) is used as it is, with the tokenizer beside
    it. Otherwise the tokenizer is trained (unless --tokenizer gives one) and the token files are made under
    folder/corpus, once. Sets cfg.vocab_size to the tokenizer's. cfg.held_out below 1 is the share of the documents that
    is held out, at most MOST_HELD_OUT of them; from 1 on it is their number. With cfg.dev_corpus that text is, and
    nothing of the corpus.
    """
    prepared = len(cfg.corpus) == 1 and (Path(cfg.corpus[0]) / "meta.json").exists()
    target = Path(cfg.corpus[0]) if prepared else Path(folder) / "corpus"
    if not prepared:
        on_main(ranks, make_text, cfg.corpus, target, cfg, cfg.tokenizer, ranks)
    tokenizer = load_tokenizer(cfg.tokenizer or target, read_meta(target).get("lower"))
    if tokenizer.mask_id is None:
        raise UserError(f"{tokenizer.path}: the vocabulary lacks [MASK], which pre-training needs; take another")
    cfg.vocab_size = tokenizer.vocab_size
    if getattr(cfg, "dev_corpus", ()):
        apart = Path(folder) / "corpus" / "dev"
        on_main(ranks, make_text, cfg.dev_corpus, apart, cfg, str(tokenizer.path), ranks)
        return tokenizer, Corpus(target, tokenizer), Corpus(apart, tokenizer)
    corpus, held = Corpus(target, tokenizer), cfg.held_out
    if held >= max(1, len(corpus.ids)):
        raise UserError(f"--held_out {held:.0f}: {target} has {len(corpus.ids)} documents, and some must be left to train "
                        "on; hold out fewer")
    return tokenizer, *corpus.split(min(held, 1.0), MOST_HELD_OUT if held < 1 else int(held))


def make_text(paths, target, cfg, tokenizer, ranks):
    """Train or copy the tokenizer into the folder target, and make the token files of the text there, unless both are
    there already."""
    if not (target / "meta.json").exists():
        make_corpus(paths, target, cfg.vocab_size, tokenizer, workers=os.cpu_count() or 1,
                    tell=lambda words: say(ranks, words))
