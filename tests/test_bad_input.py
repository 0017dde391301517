"""Bad input: one table, about one line for each reader, some of which the four files share.

A line is (command, words, changes): the command must end with exit status 2 and one line on stderr
that holds the words (joined by " & "), never in a traceback, a hang or a silent result, and leave
no run folder. In a command {here} is the line's own folder, {albert}, {autobert_zero},
{autotinybert}, {mformer} are finished runs, {tuned} a fine-tuning, {hf} a Hugging Face folder,
{corpus} a prepared corpus, {glue}, {squad}, {race}, {pairs}, {cifar10} small data. A change is
called with the line's folder and the ready ones. All run in this process, below common.cli.run.
"""
import fcntl
import io
import os
import pickle
import re
import shutil
import signal
import zipfile

import pytest
import torch
from conftest import filled
from small_runs import ARCH, FEW, SEARCHES, TRAINED, TUNED, call, write


# --- what the lines stand on ----------------------------------------------------------------------

@pytest.fixture
def limited(ready):
    """A test that takes more than half a minute has failed."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("half a minute has passed"))
    signal.alarm(30)
    yield
    signal.alarm(0)


def the_line(printed):
    """The one line of stderr that says what is wrong; no traceback stands above it."""
    lines = [
        line.rsplit("\r", 1)[-1]
        for line in printed.split("\n")
        if "error: " in line
    ]
    assert len(lines) == 1 and "Traceback" not in printed, printed
    assert " error: " in lines[0][:30], "the message is not on a line of its own: " + lines[0]
    return lines[0]


# --- what is done to an input --------------------------------------------------------------------

def put(name, content):
    """Write a file: bytes, text, or what becomes JSON."""
    return lambda here, ready: write(here / name, content)


def copy(source, *changes, to="."):
    """Copy what is ready (files of its own), then change it."""
    def change(here, ready):
        shutil.copytree(ready[source], here / to, dirs_exist_ok=True)
        for more in changes:
            more(here / to, ready)
    return change


def edit(name, how):
    """Change a file: how(bytes) -> bytes."""
    return lambda here, ready: write(here / name, how((here / name).read_bytes()))


def drop(name):
    return lambda here, ready: (here / name).unlink()


def broken(here, ready):
    """NaN in the token embeddings of albert.py."""
    state = torch.load(here / "checkpoint.pt", weights_only=True)
    state["owned"]["model"]["encoder.token_embedding.weight"].fill_(float("nan"))
    torch.save(state, here / "checkpoint.pt")


def flipped(content):
    """A bit of the largest tensor flips."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        place = content.index(archive.read(largest), largest.header_offset)
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1:]


def half(content):
    return content[:len(content) // 2]


def held(here, ready):
    """Another process has locked the run."""
    held.file = open(write(here / "out" / "run.lock", "process 7 on elsewhere"))
    fcntl.flock(held.file, fcntl.LOCK_EX)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("bomb",)


UTF16 = "A man sat.\n".encode("utf-16") * 50
BOMB = pickle.dumps({"a": Bomb()})


# --- the table -----------------------------------------------------------------------------------

def tuning(task, program="albert"):
    """The command of a fine-tuning on the line's data."""
    kind = "squad" if task.startswith("SQuAD") else "race" if task == "RACE" else "glue"
    few = "" if program == "autobert_zero" else FEW
    if program == "autotinybert":
        few = FEW.removeprefix("--finetune_epochs 1 ")
    return f"{program} --finetune {task} --init {{{program}}} --{kind} {{here}} {few}"


IMAGES = "mformer --train --cifar10 {here} --arch cosformer*"
TRANSLATE = f"mformer --train --task wmt14 --train_text {{here}}/train --arch {ARCH}"
PRETRAIN = "albert --pretrain --corpus {here}/a.txt"
WORDS = PRETRAIN + " --tokenizer {here}/vocab.txt"  # the same in the three files that read text
PREPARED = "albert --pretrain --corpus {here}"
LONG_TEXT = put("a.txt", "A man sat on a mat. He saw a cat.\n\n" * 40)
SUBWORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nman\nsat\n"

# What a line or an entry may hold is tested beside its reader: test_glue.py, test_squad.py.
DATA = [
    (tuning("CoLA"), "CoLA/train.tsv: no such file & --glue"),
    (tuning("CoLA"), "train.tsv & UTF-16", copy("glue", put("CoLA/train.tsv", UTF16))),
    (tuning("SQuAD2.0"), "train-v2.0.json: no such file & --squad"),
    (tuning("RACE"), "train/middle: no passages"),
    (IMAGES, "data_batch_*.bin"),
    (IMAGES, "3073-byte records", copy("cifar10", edit("data_batch_1.bin", lambda old: old[:-1]))),
    (TRANSLATE, "train.de", copy("pairs", drop("train.de"))),
    (PRETRAIN, "there is no such file or folder"),
    (PRETRAIN, "no text", put("a.txt", " \n\t\n\r\n")),
    (PRETRAIN + " --tokenizer {here}/x.model", "not a SentencePiece model", LONG_TEXT,
     put("x.model", BOMB)),
    (WORDS, "[MASK]", LONG_TEXT, put("vocab.txt", SUBWORDS.replace("[MASK]\n", ""))),
    (PREPARED, "spiece.model", copy("corpus", drop("spiece.model"))),
    (PREPARED, "tokens.bin & cut short", copy("corpus", edit("tokens.bin", half))),
]


def init(program, said, change):
    """An action that starts from a changed copy of a run."""
    action = "--finetune CoLA --glue {glue} --finetune_length 16"
    if program == "mformer":
        action = "--evaluate --task wmt14 --test_text {pairs}/train"
    inside = "run/model" if program == "autotinybert" else "run"
    changed = lambda here, ready: change(here / inside, ready)  # noqa: E731
    return f"{program} {action} --init {{here}}/run", said, copy(program, to="run"), changed


HF = TUNED.replace("{albert}", "{here}")
INIT = [
    init("albert", "checkpoint.pt", edit("checkpoint.pt", half)),
    *(init(each, "checkpoint.pt & checksum", edit("checkpoint.pt", flipped)) for each in TRAINED),
    init("albert", "checkpoint.pt", put("checkpoint.pt", BOMB)),
    init("albert", "NaN or infinite", broken),
    init("albert", "no run folder of albert.py", put("config.json", {"program": "mformer"})),
    ("mformer --evaluate --init {here}", "no run folder of mformer.py", put("config.json", {})),
    (TUNED.replace("{albert}", "{tuned}"), "name one of its models"),
    (HF, "safetensors", copy("hf", edit("model.safetensors", half))),
    (HF, "pytorch_model.bin",
     copy("hf", drop("model.safetensors"), put("pytorch_model.bin", BOMB))),
    ("autotinybert --finetune CoLA --glue {glue} --init {here}/hf", "only bert and electra",
     copy("hf", to="hf")),
]
BEGIN = {  # an action of each file
    "albert": "albert --pretrain --corpus {corpus}",
    "autobert_zero": "autobert_zero --pretrain --corpus {corpus}",
    "autotinybert": "autotinybert --superplm --corpus {corpus}",
    "mformer": "mformer --train --cifar10 {cifar10} --arch cosformer*",
}
FOLDERS = [
    (BEGIN["albert"], "no run folder", put("out/mine.txt", "")),
    (BEGIN["albert"], "process 7 on elsewhere", held),
    ("albert --export {here} --init {albert}", "not empty", put("mine.txt", "")),
    ("autobert_zero --export {here}/net.py --init {autobert_zero}", "already",
     put("net.pt", "theirs")),
    ("data/prepare demo --to {here}", "not empty", put("mine.txt", "")),
    ("data/prepare download glue --to {here}", "not made by this command", put("glue/x", "")),
    ("data/prepare corpus --corpus {here}/a.txt --to {here} --vocab_size 40", "other files",
     LONG_TEXT, copy("corpus")),
]
FLAGS = [  # more of them in test_cli.py
    (BEGIN["albert"] + " --device cuda:99", "--device cuda:99"),
    (BEGIN["albert"] + " --hidden 30 --heads 4", "hidden 30"),
    (BEGIN["autotinybert"] + " --teacher {autotinybert} --setting distill", "2 heads"),
    ("mformer --train --task wmt14 --init {mformer} --vocab_size 7", "leave these flags out"),
    (f"mformer --search {SEARCHES['mformer']} --layers 1 --ffn 16", "the rankers need 20"),
    (f"autotinybert --evolve {SEARCHES['autotinybert']} --init {{autotinybert}}", "never trained"),
    *((f"{command} --arch {{here}}/best.json", "best.json", put("best.json", {"arch": 7}))
      for command in (BEGIN["autobert_zero"], BEGIN["mformer"])),
    ("albert --predict {here}/mine.tsv --init {tuned}/CoLA", "mine.tsv:1: no column is named",
     put("mine.tsv", "text\nA man sat.\n")),
]
TABLE = [*DATA, *INIT, *FOLDERS, *FLAGS]


@pytest.fixture
def fails(ready, limited, tmp_path, monkeypatch, capfd):
    """fails(command, *changes): the line on stderr of a command that ends with status 2."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(tmp_path)

    def run(command, *changes, seen=lambda: None):
        for change in changes:
            change(here, ready)
        seen()
        place = "" if command.startswith("data/") else " --out {here}/out"
        assert call(filled(command + place, here=here, **ready), monkeypatch) == 2
        return the_line(capfd.readouterr().err)
    run.here = here
    return run


@pytest.mark.parametrize("case", TABLE, ids=map(str, range(len(TABLE))))
def test_bad_input_ends_in_one_line(case, fails):
    command, said, *changes = case
    out = fails.here / "out"
    before = []
    line = fails(command, *changes, seen=lambda: before.append(out.exists()))
    assert before[0] or not out.exists(), "a mistake left a run folder behind"
    assert all(word in line for word in said.split(" & ")), line
    assert len(line) < 600
    assert not (fails.here.parent / "bomb").exists()


@pytest.mark.parametrize("program, more", [
    ("albert", "--steps 60 --warmup 0"),
    ("autobert_zero", "--steps 60 --warmup 0"),
    ("autotinybert", "--further_steps 400 --save_every 1000 --eval_every 1000"),
])
def test_a_training_that_diverges_ends_in_one_line_before_it_saves(program, more, fails):
    """Steps that save are checked, and where none does for long every hundredth."""
    line = fails(f"{TRAINED[program]} {more} --lr 1e30")
    assert re.search(r"(not finite|diverged).*(step|update) ([1-6]|100)\b", line)
    for path in fails.here.rglob("checkpoint.pt"):
        weights = torch.load(path)["owned"]["model"].values()
        assert all(value.isfinite().all() for value in weights)


# --- what a command may never delete -------------------------------------------------------------

ALBERT = copy("albert", to="out")
KEPT = [  # each would have to delete or overwrite what it reads, or what others wrote
    ("albert --pretrain --corpus {corpus} --init {here}/out --length 60 --restart", "lies in",
     ALBERT),
    (TRAINED["albert"] + " --tokenizer {here}/out/spiece.model --restart", "lies in", ALBERT),
    (TRAINED["albert"], "no run folder", put("out/log.jsonl", "theirs")),
    (TUNED.replace("{glue}", "typo") + " --restart", "typo", copy("tuned", to="out")),  # mistyped
]


@pytest.mark.parametrize("case", KEPT, ids=map(str, range(len(KEPT))))
def test_nothing_that_a_command_reads_or_others_wrote_is_deleted(case, fails):
    command, said, *changes = case
    before = {}

    def content():
        files = [path for path in fails.here.rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in files if path.name != "run.lock"}
    line = fails(command, *changes, seen=lambda: before.update(content()))
    assert said in line
    assert content() == before


def test_restart_deletes_what_runs_write_and_nothing_that_is_named_like_it(
        ready, tmp_path, monkeypatch):
    out = tmp_path / "out"
    ALBERT(tmp_path, ready)
    theirs = ["draft.tmp", "my.tmp.notes", "x.tmp/a", "lock", "checkpoint.pt.mine", "a.partial-x"]
    for name in theirs:
        write(out / name, "theirs")
    write(out / "config.json.partial-7", "torn")
    write(tmp_path / "theirs/a.json", "theirs")
    (out / "jobs").symlink_to(tmp_path / "theirs")
    assert not call(filled(TRAINED["albert"] + " --out {out} --restart", out=out, **ready),
                    monkeypatch)
    assert all((out / name).read_text() == "theirs" for name in theirs)
    assert (tmp_path / "theirs/a.json").exists()
    assert (out / "done.json").exists()
    assert not (out / "config.json.partial-7").exists()


def test_a_vocabulary_of_equal_size_and_other_subwords_is_refused(ready, fails, monkeypatch):
    text = (ready["corpus"].parent / "text.txt").read_text()
    write(
        fails.here / "text.txt",
        "\n".join(line[::-1] for line in text.split("\n"))
    )
    make = "data/prepare corpus --corpus here/text.txt --to here/other --vocab_size 300"
    assert not call(make, monkeypatch)
    command = "albert --pretrain --init {albert} --length 60 --corpus here/other"
    assert "other pieces" in fails(f"{command} --tokenizer here/other/spiece.model")
