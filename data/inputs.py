"""The inputs of a command: the files of its data flags (default: demo data), and text turned into a
tokenizer and token files."""
import dataclasses
import os
import tempfile
from collections import namedtuple
from pathlib import Path

import torch

from common.cli import UserError, written
from common.files import read_json
from common.distributed import on_main, print0
from common.finetune import is_demo, task_files, training_texts
from common.folder_task import FolderName, read_folder
from common.tokenization import FAST, load_tokenizer
from data import images, race, translation
from data.corpus import Corpus
from data.demo import make_demo
from data.text import make_corpus, text_files, train_sentencepiece

DEMO = Path(__file__).resolve().parent / "demo"
NEAR = 0.02  # above a baseline: the model has learned little more
DATA = ("glue", "squad", "race", "cifar10", "images", "train_text", "valid_text", "test_text",
        "corpus")


@dataclasses.dataclass
class Data:
    """The data of a run, None if not needed. tasks: {name: Task}, None for MLM-saved."""
    device: torch.device
    tokenizer: object = None
    train: Corpus = None
    dev: Corpus = None
    tasks: dict = dataclasses.field(default_factory=dict)
    teacher: torch.nn.Module = None


# the values of the data flags of a run, {flag: value}, and their files, {flag: paths}
Inputs = namedtuple("Inputs", "flags files")


def pick(cfg, names):
    """{name: value} of some settings."""
    return {name: getattr(cfg, name) for name in names}


def find_inputs(ranks, action, data, models, tasks=(), languages=(), opens_tokenizer=True):
    """The Inputs of a run: the files of all data flags, which default to the demo data. Raises
    UserError for a missing file before a run folder is touched, so that a wrong path does not cost
    the run that --restart would replace.

    data: {data flag of the action: its value}. models: {flag: value} of --init, --tokenizer and
    other flags that name models and runs. tasks: names, which --glue and --squad must contain.
    languages: endings of the files of parallel text. opens_tokenizer: open --tokenizer, to find
    mistakes early.
    """
    given = on_main(ranks, find_data, data, tasks, languages, action)  # before demo data are made
    filled = fill_in(data, models["init"], ranks)
    files = on_main(ranks, lambda: {
        **find_models(models, opens_tokenizer),
        **find_own_tasks(tasks, action),
        **given,
        **find_data(filled, tasks, languages, action)})
    return Inputs(filled, files)


def open_corpus(ranks, folder, corpus, *, tokenizer, vocab_size, held_out, init, given):
    """The text and the vocabulary of --corpus, as Data. given: as in Command.

    A prepared corpus is used with the tokenizer in its folder. Otherwise the tokenizer is
    --tokenizer or trained, and the token files are made once, in folder/corpus. `folder` is the run
    folder, where --init looks for the tokenizer."""
    prepared = Path(corpus[0]) if is_prepared(corpus) else Path(folder) / "corpus"

    def make():  # without a result, which on_main would send to all processes
        make_corpus(corpus, prepared, vocab_size, tokenizer, workers=os.cpu_count() or 1,
                    replace=True)

    if not is_prepared(corpus):
        on_main(ranks, make)
    loaded = load_tokenizer(tokenizer or prepared)
    if loaded.mask_id is None:
        raise UserError(f"{loaded.path}: lacks [MASK], which pre-training needs; use another")
    train, dev = Corpus(prepared, loaded).split(held_out)
    summary = train.summary(len(dev.ids), hint=not is_demo(corpus))
    print0(ranks, f"{' '.join(corpus)}: {summary}")
    check_size(loaded, vocab_size, given)
    if init:
        on_main(ranks, check_vocabulary, Path(init), loaded)
    on_main(ranks, loaded.save, folder)
    return Data(ranks.device, loaded, train, dev)


def train_vocabulary(names, cfg, path, given):
    """Train a vocabulary on the training text of tasks, unless the file exists. It has fewer than
    --vocab_size tokens if the text does not allow more and the flag is not given."""
    if path.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "text.txt")
        file.write_text("\n".join(training_texts(names, cfg)), encoding="utf-8")
        try:
            train_sentencepiece([file], path, cfg.vocab_size, exact="vocab_size" in given)
        except UserError as error:
            place = f"the training text of {', '.join(names)}"
            raise UserError(str(error).replace(str(file), place)) from None


def check_size(tokenizer, vocab_size, given):
    """UserError if --vocab_size is given, and a vocabulary has another size."""
    if "vocab_size" in given and vocab_size != tokenizer.vocab_size:
        raise UserError(f"--vocab_size {vocab_size}: {tokenizer.path} has {tokenizer.vocab_size} "
                        "tokens; leave it out")


# --- files ---------------------------------------------------------------------------------------

def find_data(data, tasks, languages, action):
    """{data flag: its files} of {data flag: value}. UserError if one is missing, or is not text. A
    prepared corpus has meta.json, with the fingerprints of the text."""
    reads = {}
    for flag, value in data.items():
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


def find_models(models, opens_tokenizer):
    """{flag: files} of the models and the tokenizer of {flag: value}. A run folder is represented
    by its checkpoint."""
    if opens_tokenizer and models["tokenizer"]:
        load_tokenizer(models["tokenizer"])
    reads = {}
    for flag, value in models.items():
        files = []
        for path in filter(None, [value] if isinstance(value, str) else value):
            inside = [*Path(path).glob("checkpoint.pt")]  # else the checkpoints of its parts
            files += map(str, inside or sorted(Path(path).glob("*/checkpoint.pt")) or [path])
        if files not in reads.values():  # the tokenizer is often --init's
            reads[flag] = files
    return reads


# --- the demo data -------------------------------------------------------------------------------

def data_of(init):
    """{data flag: its value} of the run `init`, or {} if it is not a run, or has read only demo
    data."""
    path = Path(init, "config.json")
    settings = read_json(path).get("settings", {}) if init and path.exists() else {}
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
    action = ["--finetune", "SST-2"] if demo else ["--export", f"{run.folder}{ending}"]
    run.print_result(cfg, weights, *action, "--init", run.folder)
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
