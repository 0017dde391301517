"""The data of a command: the files of its data flags (default: demo data), and text turned into a
tokenizer and token files, once, in a cache."""
import dataclasses
import hashlib
import json
import tempfile
from pathlib import Path

import sentencepiece
import torch

from common.cli import UserError, settings_of, written
from common.files import fingerprints, read_json, waiting_lock, write_atomic
from common.finetune import data_flags, is_demo, task_files, training_texts
from common.folder_task import FolderName, read_folder
from common.launch import on_main, print0
from common.tokenization import FAST, load_tokenizer
from data import images, race, translation
from data.corpus import Corpus
from data.demo import make_demo
from data.text import cached_corpus, text_files, train_sentencepiece

HERE = Path(__file__).resolve().parent
DEMO = HERE / "demo"
CACHE = HERE / "cache"  # of vocabularies and token files, unless --cache is given
NEAR = 0.02  # above a baseline: the model has learned little more
DATA = ("glue", "squad", "race", "cifar10", "images", "train_text", "valid_text", "test_text",
        "corpus")


@dataclasses.dataclass
class Data:
    """The data of a run, None if not needed. tasks: {name: Task}, None for MLM-saved. flags: {data
    flag: its value}, with the demo data filled in. files: {flag: the files that it stands for}."""
    device: torch.device
    tokenizer: object = None
    train: Corpus = None
    dev: Corpus = None
    tasks: dict = dataclasses.field(default_factory=dict)
    teacher: torch.nn.Module = None
    task_teachers: dict = dataclasses.field(default_factory=dict)
    means: torch.Tensor = None  # of the teacher's states
    flags: dict = dataclasses.field(default_factory=dict)
    files: dict = dataclasses.field(default_factory=dict)


def pick(cfg, names):
    """{name: value} of some settings."""
    return {name: getattr(cfg, name) for name in names}


def open_data(cfg, command, ranks, tasks=(), text=False):
    """Open the data of an action of a BERT: check that the files of all data flags exist, then load
    the tokenizer, and with `text` the corpus. Files of `tasks` are only checked here. Each job
    reads its own. Without --tokenizer and text a vocabulary is trained on the tasks' text.

    UserError for a missing or unsuitable file, before a run folder is touched."""
    of_tasks = text and tasks and not cfg.corpus and lacks_text(cfg.init)
    flags = [*data_flags(tasks), *(["corpus"] if text and not of_tasks else [])]
    data = find_data(cfg, command, ranks, pick(cfg, flags), tasks)
    if of_tasks:
        path = on_main(ranks, cached_task_text, tasks, dataclasses.replace(cfg, **data.flags),
                       data.files)
        data.flags["corpus"] = (path,)
        data.files["corpus"] = [path]
        print0(ranks, f"--corpus: the training text of {', '.join(tasks)}")
    if text:
        open_corpus(data, dataclasses.replace(cfg, **data.flags), ranks)
    elif cfg.tokenizer:
        data.tokenizer = open_tokenizer(cfg.tokenizer, cfg.init)
    else:
        cfg = dataclasses.replace(cfg, **data.flags)
        exact = "vocab_size" in command.given
        data.tokenizer = load_tokenizer(on_main(
            ranks, cached_vocabulary, tasks, cfg, data.files, exact))
        print0(ranks, f"a vocabulary of {data.tokenizer.vocab_size:,} tokens, from the training "
                      f"text of {', '.join(tasks)}")
    if "vocab_size" in command.given and cfg.vocab_size != data.tokenizer.vocab_size:
        raise UserError(f"--vocab_size {cfg.vocab_size}: {data.tokenizer.path} has "
                        f"{data.tokenizer.vocab_size} tokens; leave it out")
    return data


def find_data(cfg, command, ranks, values, tasks=(), languages=()):
    """A Data with the values and the files of data flags, which default to the demo data.

    values: {data flag of the action: its value}. tasks: names, which --glue and --squad must
    contain. languages: endings of the files of parallel text."""
    action = command.action
    # before the demo data are made, so that a wrong path costs no time
    given = on_main(ranks, find_files, values, tasks, languages, action)
    data = Data(ranks.device, flags=fill_in(values, cfg.init, ranks))
    filled = on_main(ranks, find_files, data.flags, tasks, languages, action)
    data.files = {**given, **filled, **on_main(ranks, find_own_tasks, tasks, action)}
    return data


def open_corpus(data, cfg, ranks):
    """Open the text and the vocabulary of --corpus in a Data.

    A prepared corpus is used with the tokenizer in its folder. Otherwise the tokenizer is
    --tokenizer or trained on the text, and the token files are made once, in the cache."""
    folder = Path(cfg.corpus[0])
    if not is_prepared(cfg.corpus):
        folder = on_main(
            ranks, cached_corpus, cfg.corpus, cfg.cache or CACHE, cfg.vocab_size, cfg.tokenizer)
    data.tokenizer = load_tokenizer(cfg.tokenizer or folder)
    if data.tokenizer.mask_id is None:
        raise UserError(f"{data.tokenizer.path}: lacks [MASK], which pre-training needs; use "
                        "another")
    data.train, data.dev = Corpus(folder, data.tokenizer).split(cfg.held_out)
    summary = data.train.summary(len(data.dev.ids), hint=not is_demo(cfg.corpus))
    print0(ranks, f"{' '.join(cfg.corpus)}: {summary}")
    if cfg.init:
        on_main(ranks, check_vocabulary, Path(cfg.init), data.tokenizer)


def cached_vocabulary(names, cfg, files, exact):
    """The vocabulary in the cache that is trained on the training text of tasks, made once. It has
    fewer than --vocab_size tokens if the text does not allow more, unless exact."""

    def make(path, scratch):
        file = Path(scratch, "text.txt")
        file.write_text("\n".join(training_texts(names, cfg)), encoding="utf-8")
        try:
            train_sentencepiece([file], path, cfg.vocab_size, exact=exact)
        except UserError as error:
            place = f"the training text of {', '.join(names)}"
            raise UserError(str(error).replace(str(file), place)) from None

    return cached_file("spiece.model", make, names, cfg, files,
                       cfg.vocab_size, exact, sentencepiece.__version__)


def cached_task_text(names, cfg, files):
    """The file in the cache with the training text of tasks, made once. A text is a document."""

    def make(path, scratch):
        lines = (" ".join(text.split()) for text in training_texts(names, cfg))
        write_atomic(path, "\n\n".join(lines) + "\n")

    return str(cached_file("text.txt", make, names, cfg, files))


def cached_file(file, make, names, cfg, files, *more):
    """The path of a file in the cache that follows from the files of tasks and `more`. Written by
    make(path, folder for other files), once."""
    key = [names, {flag: fingerprints(paths) for flag, paths in files.items()}, *more]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    kind = Path(file).stem.replace("spiece", "vocabulary")
    folder = Path(cfg.cache or CACHE, f"{kind}-{digest}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    with waiting_lock(folder / "lock"), tempfile.TemporaryDirectory() as scratch:
        if not path.exists():
            make(path, scratch)
    return path


# --- files ---------------------------------------------------------------------------------------

def find_files(values, tasks, languages, action):
    """{data flag: its files} of {data flag: value}. UserError if one is missing, or is not text. A
    prepared corpus has meta.json, with the fingerprints of the text."""
    reads = {}
    for flag, value in values.items():
        if not value:  # parallel text may have no valid or test part
            continue
        if flag in ("glue", "squad"):
            files = task_files(tasks, flag, value, action != "finetune")
        elif flag == "race":
            files = [path for split in race.splits(value)
                     for path in race.passage_files(value, split)]
        elif flag in ("cifar10", "images"):
            files = images.find_images(flag, value, "test" if action == "evaluate" else "train")
        elif flag.endswith("_text"):
            files = translation.find_sides(value, languages)
        else:
            files = [Path(value[0], "meta.json")] if is_prepared(value) else text_files(value)
        reads[flag] = list(map(str, files))
    return reads


def find_own_tasks(tasks, action):
    """{flag: files} of the user's own tasks. Reads them, to find mistakes early."""
    flag, search = ("finetune", False) if action == "finetune" else ("tasks", True)
    paths = []
    for name in tasks:
        if isinstance(name, FolderName):
            task, splits = read_folder(name, search)
            counts = ", ".join(f"{len(examples):,} {split}" for split, examples in splits.items())
            print(f"{name.path}: {task.description}; examples: {counts}{task.other_kind}",
                  flush=True)
            paths += map(str, name.files(search).values())
    return {flag: paths} if paths else {}


# --- the demo data -------------------------------------------------------------------------------

def tuned_task(folder):
    """The task of a fine-tuned model in a folder, "" for another folder."""
    path = Path(folder or "", "config.json")
    record = read_json(path) if path.is_file() else {}
    return record.get("task", "") if record.get("action") == "finetune" else ""


def lacks_text(init):
    """Whether --init is a Hugging Face folder, or fine-tuned without a corpus."""
    if not Path(init, "config.json").is_file():
        return False
    return not settings_of(init) or bool(tuned_task(init)) and "corpus" not in data_of(init)


def data_of(init):
    """{data flag: its value} of the run `init`, or {} if it is not a run, or has read only demo
    data."""
    settings = settings_of(init)
    values = {name: settings[name] for name in DATA if settings.get(name)}
    return {} if all(map(is_demo, values.values())) else values


def fill_in(data, init, ranks):
    """{data flag: value} for missing values in `data`: the data of the run `init`, or else the demo
    data, which are made on first use. UserError if a model of the user's own data would continue on
    demo data."""
    missing = [name for name, value in data.items() if not value]
    filled = {}
    values = data_of(init)
    origin = f"the data of {init}"
    if missing and not values:
        origin = "demo data"
        values = on_main(ranks, make_demo, DEMO)
    for name in missing:
        if name in values:
            value = values[name]
            if isinstance(data[name], tuple):
                value = (value,) if isinstance(value, str) else tuple(value)
            filled[name] = value
            print0(ranks, f"--{name} {written(value)}: {origin}")
        elif not name.endswith("_text"):
            raise UserError(f"--{name}: missing, and {init} was not trained on demo data; "
                            f"name it, or --{name} {DEMO / name}")
    return filled


def print_near_baseline(ranks, scores, baselines):
    """Print which of the held-out accuracies {name: value} are near their baselines."""
    near = [name for name, baseline in baselines.items()
            if scores[name] is not None and scores[name] < baseline + NEAR]
    for name in near:
        hint = ("first tokens tell as much, and more steps need not help (tests/claims/README.md, "
                "order-novels)")
        if name == "mlm_accuracy":
            hint = ("more --steps help, and short sequences first: a run of --length 16, then "
                    "--init with the full --length")
        print0(ranks, f"{name}: near the baseline; {hint}")


def print_after_training(run, cfg, weights, ending="-exported"):
    """Print the result of a training on text, and the next commands: a fine-tuning and, on the
    user's own data, an export."""
    demo = is_demo(cfg.corpus)
    if demo:
        run.print_next(cfg, weights, "--finetune", "SST-2", "--init", run.folder)
    else:
        exported = f"{run.folder}{ending}"
        run.print_next(cfg, weights, "--export", exported, "--init", run.folder, same=())
    if not (cfg.dry_run or demo):
        print0(run.ranks, f"with a FOLDER of your own, of train.tsv and dev.tsv (data/README.md): "
                          f"python {run.command.program}.py --finetune FOLDER --init {run.folder}")


# --- text and vocabulary -------------------------------------------------------------------------

def is_prepared(paths):
    """Whether `data/prepare.py corpus` made this corpus."""
    return len(paths) == 1 and (Path(paths[0]) / "meta.json").exists()


def open_tokenizer(path, init):
    """The tokenizer of --tokenizer. UserError if it is not --init's."""
    tokenizer = load_tokenizer(path)
    if init:
        check_vocabulary(Path(init), tokenizer)
    return tokenizer


def check_vocabulary(folder, tokenizer):
    """UserError if a model's folder has a different vocabulary."""
    if any((folder / name).is_file() for name in ("spiece.model", "vocab.txt", FAST)):
        own = load_tokenizer(folder)
        if (own.names, own.rules) != (tokenizer.names, tokenizer.rules):
            raise UserError(f"{tokenizer.path}: other tokens, case or accents than in {own.path}; "
                            "a model, its teacher and the corpus share one vocabulary: leave "
                            "--tokenizer out, and give the text itself as --corpus")
