"""Bad input: one table, one row a cause, with the reader that meets it; a few rows show that the four files share it.

A row is (command, words, changes): the command must end with exit status 2 and one line on stderr that holds the words
(joined by " & "), never in a traceback, a hang or a silent result, and leave no run folder behind. In a command {here}
is the row's own folder, {albert}, {autobert_zero}, {autotinybert}, {mformer} are finished runs, {tuned} a fine-tuning,
{hf} a Hugging Face folder, {corpus} a prepared corpus, {glue}, {squad}, {race}, {pairs}, {cifar10} small data. What a
row changes is called with its folder and the ready ones. All rows run in this process, below common.cli.run.
"""
import fcntl
import io
import json
import os
import pickle
import re
import shutil
import signal
import struct
import zipfile

import pytest
import torch
from conftest import filled
from small_runs import ARCH, FEW, TRAINED, TUNED, call, write


# --- what the rows stand on ----------------------------------------------------------------------

@pytest.fixture
def limited(ready):
    """A test that takes more than half a minute has failed."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("half a minute has passed"))
    signal.alarm(30)
    yield
    signal.alarm(0)


def the_line(printed):
    """The one line of stderr that says what is wrong; no traceback stands above it."""
    lines = [line.rsplit("\r", 1)[-1] for line in printed.split("\n") if "error: " in line]
    assert len(lines) == 1 and "Traceback" not in printed, printed
    assert " error: " in lines[0][:30], "the message does not stand on a line of its own: " + lines[0]
    return lines[0]


# --- what is done to an input --------------------------------------------------------------------

def put(name, content):
    """Write a file into the row's folder: bytes, text, or what becomes JSON."""
    return lambda here, ready: write(here / name, content)


def copy(source, *changes, to="."):
    """Copy what is ready into the row's folder (files of its own), then change it."""
    def change(here, ready):
        shutil.copytree(ready[source], here / to, dirs_exist_ok=True)
        for more in changes:
            more(here / to, ready)
    return change


def edit(name, how):
    """Change a file: how(bytes) -> bytes."""
    def change(here, ready):
        (here / name).write_bytes(how((here / name).read_bytes()))
    return change


def drop(*names):
    def change(here, ready):
        for name in names:
            shutil.rmtree(here / name) if (here / name).is_dir() else (here / name).unlink()
    return change


def entries(name, **values):
    """Change entries of a JSON file."""
    return edit(name, lambda content: json.dumps({**json.loads(content), **values}).encode())


def settings(**values):
    """Change settings in a run's config.json."""
    def change(here, ready):
        known = json.loads((here / "config.json").read_text())["settings"]
        entries("config.json", settings={**known, **values})(here, ready)
    return change


def weights(how):
    """Change what checkpoint.pt holds: how(state, its first model's tensors) returns what is saved, or changes them."""
    def change(here, ready):
        state = torch.load(here / "checkpoint.pt", weights_only=True)
        changed = how(state, next(iter(state["owned"].values())))
        torch.save(changed if isinstance(changed, (dict, list)) else state, here / "checkpoint.pt")
    return change


def words(how):
    """Change the word embeddings in checkpoint.pt: how(tensor) returns what takes their place."""
    name = "encoder.words.weight"
    return weights(lambda state, model: model.update({name: how(model[name])}))


def flipped(content):
    """A bit of the largest tensor flips."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        place = content.index(archive.read(largest), largest.header_offset)
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1:]


def half(content):
    return content[:len(content) // 2]


def tensor(**entry):
    """A model.safetensors whose header says this of its only tensor."""
    text = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()
    return put("model.safetensors", struct.pack("<Q", len(text)) + text + b"\0" * 64)


def held(here, ready):
    """Another process has the run in its hands."""
    (here / "out").mkdir()
    held.file = open(here / "out" / "run.lock", "w")
    held.file.write("process 7 on elsewhere")
    held.file.flush()
    fcntl.flock(held.file, fcntl.LOCK_EX)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("bomb",)


UTF16, BINARY = "A man sat.\n".encode("utf-16") * 50, bytes(range(256)) * 20
BOMB = pickle.dumps({"a": Bomb()})


# --- the table -----------------------------------------------------------------------------------

def rows(command, *causes):
    """Rows of one command; a cause: its words, then what is changed."""
    return [(command, words, changes) for words, *changes in causes]


BEGIN = {  # an action of each file
    "albert": "--pretrain --corpus {corpus}", "autobert_zero": "--pretrain --corpus {corpus}",
    "autotinybert": "--superplm --corpus {corpus}", "mformer": "--train --cifar10 {cifar10} --arch cosformer*"}


def tuning(task, program="albert"):
    """The command of a fine-tuning on the row's data."""
    kind = "squad" if task.startswith("SQuAD") else "race" if task == "RACE" else "glue"
    few = {"autobert_zero": "", "autotinybert": FEW.removeprefix("--finetune_epochs 1 ")}.get(program, FEW)
    return f"{program} --finetune {task} --init {{{program}}} --{kind} {{here}} {few}"


# What a row or an entry may hold is tested beside its reader: test_glue.py, test_squad.py, test_tokenization.py.
TASKS = [
    *rows(tuning("CoLA"), ("CoLA/train.tsv: no such file & --glue",),
          *((f"train.tsv & {words}", copy("glue", put("CoLA/train.tsv", content))) for content, words in (
              (UTF16, "UTF-16"), (BINARY, "binary"), (b"x\t1\t\tcaf\xe9\n", ":1: not UTF-8")))),
    *rows(tuning("SQuAD2.0"), ("train-v2.0.json: no such file & --squad",),
          ("train-v2.0.json & no questions", copy("squad", put("train-v2.0.json", {"data": []})))),
    *rows(tuning("RACE"), ("train/middle: no passages",),
          ("train/middle: no questions", copy("race", entries(
              "train/middle/0.txt", questions=[], options=[], answers=[]))))]

PICTURES = rows(
    "mformer --train --cifar10 {here} --arch cosformer*", ("data_batch_*.bin",),
    ("label 77", copy("cifar10", edit("data_batch_1.bin", lambda content: b"\x4d" + content[1:]))),
    ("3073-byte records", copy("cifar10", edit("data_batch_1.bin", lambda content: content[:-1]))),
    ("fewer than a shard", copy("cifar10", edit("data_batch_1.bin", lambda content: content[:3073]))))

TRANSLATE = f"mformer --train --task wmt14 --train_text {{here}}/train --arch {ARCH} "
PAIRS = [
    *rows(TRANSLATE, ("train.de", copy("pairs", drop("train.de")))),
    *rows(TRANSLATE + "--vocab_size 99999999", ("no vocab_size 99999999", copy("pairs")))]

LONG_TEXT = put("a.txt", "A man sat on a mat. He saw a cat.\n\n" * 40)
PIECES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nman\nsat\n"
PRETRAIN = "albert --pretrain --corpus {here}/a.txt "
WORDS = PRETRAIN + "--tokenizer {here}/vocab.txt"  # the same in the three files that read text
TEXT = [
    *rows(PRETRAIN, ("there is no such file or folder",), ("no text", put("a.txt", " \n\t\n\r\n")),
          ("UTF-16", put("a.txt", UTF16)), ("set it to a value", LONG_TEXT)),
    *rows(PRETRAIN + "--vocab_size 9", ("smaller than required_chars", LONG_TEXT)),
    *rows(PRETRAIN + "--tokenizer {here}/x.model", ("not a SentencePiece model", LONG_TEXT, put("x.model", BINARY))),
    *rows(WORDS, ("[MASK]", LONG_TEXT, put("vocab.txt", PIECES.replace("[MASK]\n", ""))),
          ("one document", put("a.txt", "A man sat on a mat. "), put("vocab.txt", PIECES))),
    *rows(PRETRAIN + "--tokenizer {corpus}", ("no two sentences", put("a.txt", "A man sat on a mat.\n\n" * 400))),
    *rows("albert --pretrain --corpus {corpus} --vocab_size 77", ("77",))]

PREPARED = rows("albert --pretrain --corpus {here}", *((words, copy("corpus", change)) for words, change in (
    ("spiece.model", drop("spiece.model")), ("tokens.bin", drop("tokens.bin")),
    ("tokens.bin & cut short", edit("tokens.bin", half)), ("meta.json", entries("meta.json", format=2)),
    ("meta.json", entries("meta.json", tokens="many")),
    ("another tokenizer", entries("meta.json", tokenizer="00")),
    ("documents.bin", edit("documents.bin", lambda content: content[::-1])))))


def init(program, *causes):
    """An action that starts from a changed copy of a run."""
    action = "--evaluate --task wmt14 --test_text {pairs}/train" if program == "mformer" else (
        "--finetune CoLA --glue {glue} --finetune_length 16")
    inside = "run/model" if program == "autotinybert" else "run"
    return rows(f"{program} {action} --init {{here}}/run", *((words, copy(program, to="run"), *(
        lambda here, ready, change=change: change(here / inside, ready) for change in changes))
        for words, *changes in causes))


HUGE = "GB of memory"
INIT = [
    *(row for program in TRAINED for row in init(
        program, ("checkpoint.pt", edit("checkpoint.pt", half)), ("checkpoint.pt & checksum", edit(
            "checkpoint.pt", flipped)), ("config.json", edit("config.json", half)))),
    *init("albert", ("checkpoint.pt", drop("checkpoint.pt")), ("checkpoint.pt", put("checkpoint.pt", BOMB)),
          ("not finite", words(lambda value: value.fill_(float("nan")))),
          *(("no plain tensor", words(kind)) for kind in (torch.Tensor.to_sparse, torch.Tensor.sum)),
          ("checkpoint.pt", weights(lambda *_: {"owned": 7})),
          ("words", weights(lambda state, model: model.pop("encoder.words.weight"))),
          ("of --init has 7", words(lambda _: torch.zeros(7, 3))),
          ("config.json & hidden", settings(hidden="16")), (HUGE, settings(layers=100000000)),
          ("no run folder of albert.py", entries("config.json", program="mformer")),
          ("spiece.model: damaged or changed",
           lambda here, ready: shutil.copy(ready["mformer"] / "spiece.model", here))),
    *init("autobert_zero", ("arch", settings(arch="x")), ("there and", words(lambda _: torch.zeros(7, 3)))),
    *init("autotinybert", ("run", settings(arch="x"))),
    *init("mformer", ("arch", settings(arch="x")), ("does not hold", weights(lambda state, model: model.update(
        {name: value.flatten() for name, value in model.items()})))),
    *rows(TUNED.replace("{albert}", "{tuned}"), ("name one of its models",))]


def folder(words, *changes):
    return words, copy("hf", *changes)


HUGGING_FACE = [
    *rows(TUNED.replace("{albert}", "{here}"), *(folder("safetensors", change) for change in (
        drop("model.safetensors"), edit("model.safetensors", half), tensor(shape=[-1, -2]), tensor(dtype="F99"))),
        folder("unexpected weights: a", tensor()),
        folder("pytorch_model.bin", drop("model.safetensors"), put("pytorch_model.bin", BOMB)),
        folder("hidden", entries("config.json", hidden_size="16")), folder("spiece.model", drop("spiece.model"))),
    *rows("autotinybert --finetune CoLA --glue {glue} --init {here}", folder("only bert and electra"),
          folder("config.json", put("config.json", {"model_type": "bert", "hidden_size": "x"})))]

RECORD = {"program": "albert", "action": "pretrain", "settings": {"layers": 7}, "argv": []}


FOLDERS = [
    *rows(f"albert {BEGIN['albert']}", ("no run folder", put("out/mine.txt", "")), ("process 7 on elsewhere", held),
          ("albert.py --export", put("out/config.json", {**RECORD, "action": "export"})),
          ("none of a run", put("out/config.json", {**RECORD, "settings": 7})), ("out", put("out", "a file"))),
    *rows(TRAINED["albert"], ("of another run & --restart", copy("albert", drop("done.json"), weights(
        lambda state, _: {**state, "run": "other"}), to="out"))),
    *rows(TUNED, ("jobs/CoLA-0.json & changed by hand", copy(
        "tuned", drop("done.json"), put("jobs/CoLA-0.json", "{}"), to="out"))),
    *rows("albert --export {here} --init {albert}", ("not empty", put("mine.txt", "")))]

FLAGS = {  # of an action that would begin at once: what names the mistake; more of them in test_cli.py
    "albert": {
        "--device nonsense": "device", "--device meta": "meta", "--device cuda:99": "--device cuda:99",
        "--hidden 30 --heads 4": "hidden 30", "--groups 3": "groups 3", "--length 300 --positions 200": "--length",
        "--layers 100000000": HUGE},
    "autobert_zero": {"--batch 9 --accumulate 2": "--accumulate", "--hidden 30 --heads 4": "--hidden 30",
                      "--init {autobert_zero} --warm_times 2": "--warm_times",
                      "--ffn 900000000": HUGE, "--arch nonsense": "arch", "--arch 'Q @ K.T'": "head dim"},
    "autotinybert": {
        "--arch 1-8-8-1-8": "--superplm",
        "--setting distill": "--teacher", "--teacher {here}": "--teacher",
        "--teacher {here} --setting distill": "no model is here", "--smallest 9-999-999-9-999": "small",
        "--teacher {autotinybert} --setting distill": "the teacher has 2 heads",
        "--latency_threads 100000": "--latency_threads", "--speedup ''": "--speedup",
        "--population 1000000000": "--population"},
    "mformer": {"--train_text x": "no use", "--beam 3": "no use", "--image 30 --patch 7": "--image",
                "--augment 1 2": "--augment", "--augment 2 9 3 7": "at most 1", "--languages en": "--languages",
                "--qkv 64 --head_dim 8": "--head_dim", "--image 16000000": "memory", "--arch layers=1": "arch"}}
OTHER = {  # commands that name too little, or what is not there
    "albert --finetune unknown --init {albert}": "choose from", "albert --finetune CoLA": "--init",
    "albert --finetune CoLA --init {here}/x": "no run folder", "mformer --evaluate": "--init",
    "mformer --train --task wmt14 --init {mformer} --vocab_size 7": "leave these flags out",
    "autotinybert --further_train": "--arch"}
KNOBS = [
    *(row for program, said in FLAGS.items() for flags, words in {"--batch 0": "--batch 0", **said}.items()
      for row in rows(f"{program} {BEGIN[program]} {flags}", (words,))),
    *(row for command, words in OTHER.items() for row in rows(command, (words,)))]

BEST = [row for begin in ("autobert_zero --pretrain --corpus {corpus}", "mformer --train --cifar10 {cifar10}",
                          "autotinybert --further_train --corpus {corpus}")
        for row in rows(begin + " --arch {here}/best.json", ("best.json", put("best.json", {"arch": 7})))]

PREPARE = [
    *rows("data/prepare corpus --corpus {here}/a.txt --to {here}/to --tokenizer {here}/vocab.txt --vocab_size 9",
          ("not allowed with",)),
    *rows("data/prepare corpus --corpus {here}/a.txt --to {here}/to --workers 0", ("from 1 to",)),
    *rows("data/prepare demo --to {here}", ("not empty", put("mine.txt", ""))),
    *rows("data/prepare download glue --to {here}", ("not made by this command", put("glue/x", ""))),
    *rows("data/prepare corpus --corpus {here}/a.txt --to {here} --vocab_size 40",
          ("other files", LONG_TEXT, copy("corpus"))),
    *rows("data/prepare passages --squad {squad}/dev-v1.1.json --to {here}/a.txt", ("already", LONG_TEXT)),
    *rows("albert --predict {here}/mine.tsv --init {albert}",
          ("no model that was fine-tuned on a task", put("mine.tsv", "sentence\nA man sat.\n"))),
    *rows("albert --predict {here}/mine.tsv --init {tuned}/CoLA",
          ("mine.tsv:1: no column is named sentence", put("mine.tsv", "text\nA man sat.\n")),
          ("mine.tsv: no row", put("mine.tsv", "sentence\n"))),
    *rows("autobert_zero --export {here}/net.py --init {autobert_zero}", ("already", put("net.pt", "theirs")))]

TABLE = [*TASKS, *PICTURES, *PAIRS, *TEXT, *PREPARED, *INIT, *HUGGING_FACE, *FOLDERS, *KNOBS, *BEST, *PREPARE]


@pytest.mark.parametrize("command, words, changes", TABLE, ids=map(str, range(len(TABLE))))
def test_bad_input_ends_in_one_line(command, words, changes, ready, limited, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    for change in changes:
        change(here, ready)
    before = (here / "out").exists()
    place = "" if command.startswith("data/") else " --out {here}/out"
    status = call(filled(command + place, here=here, **ready), monkeypatch)
    left = sorted(str(path.relative_to(here)) for path in (here / "out").rglob("*"))
    assert before or not (here / "out").exists(), f"a mistake left a run folder behind: {left}"
    line = the_line(capfd.readouterr().err)
    assert status == 2 and all(word in line for word in words.split(" & ")) and len(line) < 600, line
    assert not (tmp_path / "bomb").exists()


@pytest.mark.parametrize("program, more", [
    ("albert", "--steps 60 --warmup 0 --lr 1e30"), ("autobert_zero", "--steps 60 --warmup 0 --lr 1e30"),
    ("autotinybert", "--further_steps 400 --save_every 1000 --eval_every 1000 --lr 1e30")])
def test_a_training_that_diverges_ends_in_one_line_before_it_saves(program, more, ready, tmp_path, monkeypatch, capfd):
    """Steps that save are looked at, and where none does for long every hundredth."""
    command = filled(f"{TRAINED[program]} {more} --out {{here}}/out", here=tmp_path, **ready)
    assert call(command, monkeypatch) == 2
    assert re.search(r"(not finite|diverged).*(step|update) ([1-6]|100)\b", the_line(capfd.readouterr().err))
    for path in tmp_path.rglob("checkpoint.pt"):
        assert all(value.isfinite().all() for value in torch.load(path)["owned"]["model"].values())


# --- what a command may never delete -------------------------------------------------------------

def link(here, ready):
    """The jobs of a run are a link to a folder that is somebody else's."""
    put("theirs/a.json", "theirs")(here, ready)
    (here / "out/jobs").symlink_to(here / "theirs")


MODEL = "--layers 1 --steps 1 --batch 2 --length 60 --dev_rows 4"
KEPT = [  # each would have to delete or overwrite what it reads, or what others wrote
    (f"albert --pretrain --corpus {{corpus}} --init {{here}}/out {MODEL} --restart", "lies in",
     [copy("albert", to="out")]),
    (f"albert --finetune CoLA --glue {{glue}} --init {{here}}/out/CoLA {FEW} --restart", "lies in",
     [copy("tuned", to="out")]),
    (TRAINED["albert"] + " --tokenizer {here}/out/spiece.model --restart", "lies in", [copy("albert", to="out")]),
    (TRAINED["albert"], "no run folder", [put("out/log.jsonl", "theirs")]),
    (TRAINED["albert"] + " --restart", "a link", [copy("albert", to="out"), link]),
    *((f"{command} --restart", "typo", [copy(source, to="out")]) for source, command in (  # a mistyped path
        ("tuned", TUNED.replace("{glue}", "typo")), ("tuned", tuning("SQuAD1.1").replace("{here}", "typo")),
        ("tuned", tuning("RACE").replace("{here}", "typo")), ("albert", "albert --pretrain --corpus typo.txt"),
        ("albert", TRAINED["albert"] + " --tokenizer typo.model"),
        ("mformer", TRAINED["mformer"] + " --train_text typo"),
        ("mformer", "mformer " + BEGIN["mformer"].replace("{cifar10}", "typo"))))]


@pytest.mark.parametrize("command, words, changes", KEPT, ids=map(str, range(len(KEPT))))
def test_nothing_that_a_command_reads_or_others_wrote_is_deleted(command, words, changes, ready, limited, tmp_path,
                                                                 monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for change in changes:
        change(tmp_path / "here", ready)

    def content():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "run.lock"}

    before = content()
    assert call(filled(command + " --out {here}/out", here=tmp_path / "here", **ready), monkeypatch) == 2
    assert words in the_line(capfd.readouterr().err) and content() == before


def test_restart_deletes_what_runs_write_and_nothing_that_is_named_like_it(ready, tmp_path, monkeypatch):
    out = tmp_path / "out"
    copy("albert", to="out")(tmp_path, ready)
    theirs = ["draft.tmp", "my.tmp.notes", "best.docx", "x.tmp/a", "lock", "checkpoint.pt.mine", "a.partial-x"]
    for name in theirs:
        put(name, "theirs")(out, ready)
    put("config.json.partial-7", "torn")(out, ready)
    assert call(filled(TRAINED["albert"] + " --out {out} --restart", out=out, **ready), monkeypatch) == 0
    assert all((out / name).read_text() == "theirs" for name in theirs)
    assert (out / "done.json").exists() and not (out / "config.json.partial-7").exists()


def test_a_vocabulary_of_equal_size_and_other_pieces_is_refused_beside_init(ready, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    lines = (ready["corpus"].parent / "text.txt").read_text().split("\n")
    put("text.txt", "\n".join(line[::-1] for line in lines))(tmp_path, ready)
    assert not call("data/prepare corpus --corpus text.txt --to other --vocab_size 300", monkeypatch)
    command = filled(f"albert --pretrain --init {{albert}} {MODEL} --out out", **ready)
    assert call(f"{command} --corpus other --tokenizer other/spiece.model", monkeypatch) == 2
    assert "other pieces" in the_line(capfd.readouterr().err)


def test_the_tasks_that_are_read_are_fingerprinted_and_no_others(ready, tmp_path, monkeypatch, capfd):
    glue = shutil.copytree(ready["glue"], tmp_path / "glue")
    command = filled(TUNED + " --out {out}", albert=ready["albert"], glue=glue, out=tmp_path / "out")
    assert not call(command, monkeypatch)
    (glue / "RTE" / "train.tsv").write_text("another")
    assert not call(command, monkeypatch)
    (glue / "CoLA" / "dev.tsv").write_text("another")
    assert call(command, monkeypatch) == 2
    assert "CoLA/dev.tsv has changed since" in the_line(capfd.readouterr().err)


def broken(*_):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("command, words, patches", [
    (TRAINED["albert"], "can't start new thread", {"threading.Thread.start": broken}),
    ("autotinybert --describe", "clock stands still", {"time.process_time": lambda: 7.0}),
    ("mformer --search --cifar10 {cifar10} --cost cpu --latency_limit 5 --batch 8 --held_out 8", "clock stands still",
     {"time.process_time": lambda: 7.0})])
def test_a_machine_without_threads_or_a_clock_is_named(command, words, patches, ready, tmp_path, monkeypatch, capfd):
    for name, instead in patches.items():
        monkeypatch.setattr(name, instead)
    assert call(filled(command + " --out {here}/out", here=tmp_path, **ready), monkeypatch) == 2
    assert words in the_line(capfd.readouterr().err)
