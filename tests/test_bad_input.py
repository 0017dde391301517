"""Bad input: one table, one row a cause, with the reader that meets it; a few rows show that the four files share it.

A row is (command, words, changes): the command must end with exit status 2 and one line on stderr that holds the words
(joined by " & "), never in a traceback, a hang or a silent result, and leave no run folder behind. In a command {here}
is the row's own folder, {albert}, {autobert_zero}, {autotinybert}, {mformer} are finished runs, {tuned} a fine-tuning,
{hf} a Hugging Face folder, {corpus} a prepared corpus, {glue}, {squad}, {race}, {pairs}, {cifar10} small data. What a
row changes is called with its folder and the ready ones. All rows run in this process, below common.cli.run.
"""
import fcntl
import importlib
import io
import json
import os
import pickle
import shlex
import shutil
import signal
import struct
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from test_distributed import ALONE

import autobert_zero
import autotinybert
from common import cli, files


# --- what the rows stand on ----------------------------------------------------------------------

def call(command, monkeypatch):
    """The exit status of a command, run in this process as its __main__ would run it."""
    program, *argv = shlex.split(command)
    module = importlib.import_module(program.replace("/", "."))
    monkeypatch.setattr(sys, "argv", [f"{program.removeprefix('data/')}.py", *argv])
    with pytest.raises(SystemExit) as end:
        cli.run(module.main if program == "data/prepare" else lambda: module.main(argv))
    files.release_locks()
    return end.value.code or 0


class Hung(BaseException):
    """No mistake that a program could catch and report."""


@pytest.fixture
def limited(ready):
    """Hung is raised when a test takes more than half a minute."""
    def hung(*_):
        raise Hung
    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def the_line(printed):
    """The one line of stderr that says what is wrong; no traceback stands above it."""
    lines = [line.rsplit("\r", 1)[-1] for line in printed.split("\n") if "error: " in line]
    assert len(lines) == 1 and "Traceback" not in printed, printed
    assert " error: " in lines[0][:30], "the message does not stand on a line of its own: " + lines[0]
    return lines[0]


ARCH = ("'layers=1 hidden=16 ffn=16 heads=1 types=linear decoder_layers=1 decoder_hidden=16 decoder_ffn=16 "
        "decoder_heads=1 decoder_types=linear cross_heads=1 connect=1 cross_types=linear'")
TRAINED = {
    "albert": "--pretrain --corpus {corpus} --layers 1 --hidden 16 --heads 2 --ffn 16 --embedding 8 --positions 64 "
              "--length 60 --dev_rows 4 --batch 2",
    "autobert_zero": "--pretrain --corpus {corpus} --layers 1 --hidden 16 --heads 2 --ffn 16 --batch 2",
    "autotinybert": "--further_train --corpus {corpus} --accumulate 1 --further_steps 2 --eval_every 1 "
                    "--arch 1-16-16-2-16 --largest 1-16-16-2-16 --smallest 1-8-8-1-8 --batch 2",
    "mformer": "--train --task wmt14 --train_text {pairs}/train --test_text {pairs}/train --vocab_size 120 --batch 64 "
               "--held_out 4 --length 40 --layers 1 --decoder_layers 1 --hidden 16 --ffn 16 --heads 1 --connect 1 "
               f"--arch {ARCH}"}
TRAINED = {program: f"{program} {flags} --steps 2 --save_every 1 --device cpu" for program, flags in TRAINED.items()}
FEW = "--finetune_epochs 1 --finetune_batch 4 --finetune_length 16"
TUNED = f"albert --finetune CoLA --init {{albert}} --glue {{glue}} {FEW}"


@pytest.fixture(scope="session")
def ready(demo, tmp_path_factory):
    """{name: folder} of small data and finished runs, made once, with a clock that stands still."""
    root = tmp_path_factory.mktemp("ready")
    names = ("corpus", "glue", "squad", "race", "pairs", "tuned", "cifar10", "hf", *TRAINED)
    found = {name: root / name for name in names}
    put("text.txt", Path(demo["corpus"], "language.txt").read_text()[:40_000])(root, found)
    for path in Path(demo["glue"]).rglob("*.tsv"):
        lines = path.read_text().splitlines(keepends=True)[:6]
        put(path.relative_to(demo["glue"]), "".join(lines))(found["glue"], found)
    for path in Path(demo["squad"]).glob("*.json"):
        content = json.loads(path.read_text())
        content["data"] = [{**content["data"][0], "paragraphs": content["data"][0]["paragraphs"][:2]}]
        put(path.name, content)(found["squad"], found)
    for path in Path(demo["race"]).rglob("0.txt"):
        put(path.relative_to(demo["race"]), path.read_bytes())(found["race"], found)
    for end in ("en", "de"):
        lines = Path(f"{demo['train_text']}.{end}").read_text().split("\n")[:40]
        put(f"train.{end}", "\n".join(lines) + "\n")(found["pairs"], found)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        put(name, Path(demo["cifar10"], name).read_bytes()[:40 * 3073])(found["cifar10"], found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: 7.0)
        made = "data/prepare corpus --corpus {0}/text.txt --to {0}/corpus --vocab_size 300".format(root)
        for name, command in {"corpus": made, **TRAINED, "tuned": TUNED}.items():
            place = "" if name == "corpus" else f" --out {found[name]}"
            assert not call(command.format(**found) + place, patch), name
        for path in root.rglob("checkpoint.pt.previous"):  # so that a damaged checkpoint has none before it
            path.unlink()
        assert not call("albert --export {hf} --init {albert}".format(**found), patch)
    return found


# --- what is done to an input --------------------------------------------------------------------

def put(name, content):
    """Write a file into the row's folder: bytes, text, or what becomes JSON."""
    def change(here, ready):
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, (bytes, str)) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return change


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


def tensors(header, data=b"\0" * 64, size=None):
    """A model.safetensors with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return put("model.safetensors", struct.pack("<Q", len(text) if size is None else size) + text + data)


def tensor(**entry):
    return tensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}})


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


UTF16, DEEP, BINARY = "A man sat.\n".encode("utf-16") * 50, "[" * 100_000, bytes(range(256)) * 20
DIGITS = "9" * 5000  # more than Python turns into a number
BOMB = pickle.dumps({"a": Bomb()})


# --- the table -----------------------------------------------------------------------------------

def rows(command, *causes):
    """Rows of one command; a cause: its words, then what is changed."""
    return [(command, words, changes) for words, *changes in causes]


def each(command, *causes, programs=tuple(TRAINED)):
    """The same rows for several files; {program} and {begin} in the command are the file and an action of it."""
    begin = {"albert": "--pretrain --corpus {corpus}", "autobert_zero": "--pretrain --corpus {corpus}",
             "autotinybert": "--superplm --corpus {corpus}", "mformer": "--train --cifar10 {cifar10} --arch cosformer*"}
    return [row for program in programs
            for row in rows(command.replace("{program}", program).replace("{begin}", begin[program]), *causes)]


def tuning(task, program="albert"):
    """The command of a fine-tuning on the row's data."""
    kind = "squad" if task.startswith("SQuAD") else "race" if task == "RACE" else "glue"
    few = {"autobert_zero": "", "autotinybert": FEW.removeprefix("--finetune_epochs 1 ")}.get(program, FEW)
    return f"{program} --finetune {task} --init {{{program}}} --{kind} {{here}} {few}"


def tune(task, *causes, program="albert"):
    return rows(tuning(task, program), *causes)


# What a row or an entry may hold is tested beside its reader: test_glue.py, test_squad.py, test_tokenization.py.
GLUE = [
    *tune("CoLA", ("CoLA/train.tsv: no such file & --glue",),
          ("no such file", copy("glue", drop("CoLA/train.tsv"), put("CoLA/train.tsv/x", ""))),
          *((f"train.tsv & {words}", copy("glue", put("CoLA/train.tsv", content))) for content, words in (
              (b"", "4 columns"), (UTF16, "UTF-16"), (BINARY, "binary"), (b"x\t1\t\tcaf\xe9\n", ":1: not UTF-8"),
              ("x\t1\t\tA man sat.\nx\tyes\t\tA man.\n", ":2: & 'yes'")))),
    *tune("MNLI", ("dev_mismatched.tsv: no such file", copy("glue", drop("MNLI/dev_mismatched.tsv"))))]

SQUAD = tune("SQuAD2.0", ("train-v2.0.json: no such file & --squad",),
             ("dev-v2.0.json: no such file", copy("squad", drop("dev-v2.0.json"))),
             ("train-v2.0.json & no questions", copy("squad", put("train-v2.0.json", {"data": []}))))
RACE = tune("RACE", ("train/middle: no passages",), ("train/high: no passages", copy("race", drop("train/high/0.txt"))),
            ("0.txt: & passage", copy("race", put("train/high/0.txt", "{}\n"))))

PICTURES = rows(
    "mformer --train --cifar10 {here} --arch cosformer*", ("data_batch_*.bin",),
    ("label 77", copy("cifar10", edit("data_batch_1.bin", lambda content: b"\x4d" + content[1:]))),
    ("3073-byte records", copy("cifar10", edit("data_batch_1.bin", lambda content: content[:-1]))),
    ("fewer than a shard", copy("cifar10", edit("data_batch_1.bin", lambda content: content[:3073]))))

TRANSLATE = f"mformer --train --task wmt14 --train_text {{here}}/train --arch {ARCH} "
PAIRS = [
    *rows(TRANSLATE, ("train.de", copy("pairs", drop("train.de")))),
    *rows(TRANSLATE + "--valid_text {here}/x --vocab_size 120", ("x.en", copy("pairs"))),
    *rows(TRANSLATE + "--vocab_size 99999999", ("pieces, not 99999999", copy("pairs"))),
    *rows(TRANSLATE + "--tokenizer {here}/x", ("spiece.model", copy("pairs")))]

LONG_TEXT = put("a.txt", "A man sat on a mat. He saw a cat.\n\n" * 40)
PIECES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nman\nsat\n"
PRETRAIN = "albert --pretrain --corpus {here}/a.txt "
WORDS = PRETRAIN + "--tokenizer {here}/vocab.txt"  # the same in the three files that read text
TEXT = [
    *rows(PRETRAIN, ("there is no such file or folder",), ("no text", put("a.txt", " \n\t\n\r\n")),
          ("UTF-16", put("a.txt", UTF16)), ("pieces", LONG_TEXT)),
    *rows(PRETRAIN + "--vocab_size 9", ("characters alone", LONG_TEXT)),
    *rows(PRETRAIN + "--tokenizer {here}/x.model", ("x.model", LONG_TEXT),
          ("not a SentencePiece model", LONG_TEXT, put("x.model", BINARY))),
    *rows(WORDS, ("[MASK]", LONG_TEXT, put("vocab.txt", PIECES.replace("[MASK]\n", ""))),
          ("one document", put("a.txt", "A man sat on a mat. "), put("vocab.txt", PIECES)),
          ("do_lower_case", LONG_TEXT, put("vocab.txt", PIECES),
           put("tokenizer_config.json", {"do_lower_case": "no"}))),
    *rows("albert --pretrain --corpus {corpus} --vocab_size 77", ("77",))]

PREPARED = rows("albert --pretrain --corpus {here}", *((words, copy("corpus", change)) for words, change in (
    ("spiece.model", drop("spiece.model")), ("tokens.bin", drop("tokens.bin")),
    ("tokens.bin & cut short", edit("tokens.bin", half)), ("documents.bin & cut short", put("documents.bin", b"")),
    ("meta.json", entries("meta.json", format=2)), ("another tokenizer", entries("meta.json", tokenizer="00")),
    ("tokens.bin", edit("tokens.bin", lambda content: b"\xff" * len(content))),
    ("sentences.bin", edit("sentences.bin", lambda content: b"\x7f" * len(content))),
    ("documents.bin", edit("documents.bin", lambda content: content[::-1])))))


def init(program, *causes, more=""):
    """An action that starts from a changed copy of a run."""
    action = "--evaluate --task wmt14 --test_text {pairs}/train" if program == "mformer" else (
        "--finetune CoLA --glue {glue} --finetune_length 16")
    inside = "run/model" if program == "autotinybert" else "run"
    return rows(f"{program} {action} --init {{here}}/run {more}", *((words, copy(program, to="run"), *(
        lambda here, ready, change=change: change(here / inside, ready) for change in changes))
        for words, *changes in causes))


HUGE = "GB of memory"
NO_NUMBERS = [  # kinds of tensors that load_file() gives and no model has
    lambda value: value.to("meta"), lambda value: value.to_sparse(), lambda value: value.to(torch.float8_e4m3fn),
    lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8), lambda value: value.sum()]
INIT = [
    *(row for program in TRAINED for row in init(
        program, ("checkpoint.pt", edit("checkpoint.pt", half)), ("checkpoint.pt & checksum", edit(
            "checkpoint.pt", flipped)), ("config.json", edit("config.json", half)))),
    *init("albert", ("checkpoint.pt", drop("checkpoint.pt")), ("checkpoint.pt", put("checkpoint.pt", BOMB)),
          ("not finite", words(lambda value: value.fill_(float("nan")))),
          *(("no plain tensor", words(kind)) for kind in NO_NUMBERS),
          *(("checkpoint.pt", weights(lambda *_, content=content: content)) for content in ({"owned": 7}, [7])),
          ("checkpoint.pt", weights(lambda state, model: model.update(dict.fromkeys(model, "text")))),
          ("words", weights(lambda state, model: model.pop("encoder.words.weight"))),
          ("of --init has 7", words(lambda _: torch.zeros(7, 3))),
          ("config.json & hidden", settings(hidden="16")), (HUGE, settings(layers=100000000)),
          ("no run folder of albert.py", entries("config.json", program="mformer")),
          ("spiece.model", put("spiece.model", BINARY)),
          ("301 pieces", drop("spiece.model"), put("vocab.txt", PIECES + "".join(f"w{n}\n" for n in range(293))))),
    *init("albert", ("--hidden",), more="--hidden 32"),
    *init("autobert_zero", ("run", entries("config.json", settings=[])), ("run", settings(arch=7)),
          ("arch", settings(arch="x")), ("no preset tiny", settings(preset="tiny")),
          ("there and", words(lambda _: torch.zeros(7, 3))), ("spiece.model", drop("spiece.model"))),
    *init("autotinybert", ("run", settings(arch="x")), (HUGE, settings(arch="100000-8-8-1-8")),
          ("no run folder of autotinybert.py", entries("config.json", action="evolve"))),
    *init("mformer", ("arch", settings(arch="x")), ("does not hold", weights(lambda state, model: model.update(
              {name: value.flatten() for name, value in model.items()}))),
          (HUGE, settings(arch=ARCH.strip("'").replace("ffn=16", "ffn=900000000")))),
    *rows(TUNED.replace("{albert}", "{tuned}"), ("name one of its models",))]


def folder(words, *changes):
    return words, copy("hf", *changes)


def index(weight_map):
    """A Hugging Face folder whose weights stand in parts."""
    return copy("hf", drop("model.safetensors"), put("model.safetensors.index.json", {"weight_map": weight_map}))


HUGGING_FACE = [
    *rows(TUNED.replace("{albert}", "{here}"), *(folder("safetensors", change) for change in (
        drop("model.safetensors"), edit("model.safetensors", half), tensors({}, size=1 << 62), tensors(DEEP.encode()),
        tensor(shape=[-1, -2]), tensor(dtype="F99"), tensor(data_offsets=[0, 1 << 60]))),
        folder("unexpected weights: a", tensor()), ("index.json", index({"a": 7})),
        ("x.safetensors: no such file", index({"a": "x.safetensors"})),
        folder("pytorch_model.bin", drop("model.safetensors"), put("pytorch_model.bin", BOMB)),
        folder("model_type", put("config.json", "[]")),
        folder("hidden", entries("config.json", hidden_size="16")),
        folder("memory", entries("config.json", hidden_size=16 * 10 ** 9)),
        folder("there and", entries("config.json", hidden_size=32)),
        folder("lacks vocab_size", put("config.json", {"model_type": "albert"})),
        folder("spiece.model", drop("spiece.model"))),
    *rows("autotinybert --finetune CoLA --glue {glue} --init {here}", folder("only bert and electra"),
          folder("config.json", put("config.json", {"model_type": "bert", "hidden_size": "x"})))]

RECORD = {"program": "albert", "action": "pretrain", "settings": {"layers": 7}, "argv": []}


def again(program, *causes):
    """The command of a finished run once more, in a changed copy of its folder."""
    source, command = ("tuned", TUNED) if program == "tuned" else (program, TRAINED[program])
    return rows(command, *((words, copy(source, *changes, to="out")) for words, *changes in causes))


FOLDERS = [
    *rows("albert --finetune SQuAD1.1 --init {albert} --squad {squad} --finetune_length 8", ("do not fit",)),
    *each("{program} {begin}", ("no run folder", put("out/mine.txt", "")), ("process 7 on elsewhere", held),
          ("albert.py --export", put("out/config.json", {**RECORD, "action": "export"})),
          ("no JSON object", put("out/config.json", "[]")),
          ("none of a run", put("out/config.json", {**RECORD, "settings": 7})), ("out", put("out", "a file")),
          programs=["albert"]),
    *rows("albert --pretrain --corpus {corpus} --dry_run", ("--dry_run would", put("out-dry/config.json", RECORD))),
    *again("albert", ("other settings", settings(layers=2)), ("other data", entries("config.json", read={"x": "y"})),
           ("config.json", entries("config.json", read=7)), ("done.json", put("done.json", "[]")),
           ("neither it nor the one before", drop("done.json"), edit("checkpoint.pt", half)),
           ("neither it nor the one before", drop("done.json"), weights(lambda state, _: {**state, "run": "other"})),
           ("checkpoint.pt", drop("done.json"), weights(lambda state, _: {"run": state["run"]}))),
    *again("tuned", *(("jobs/CoLA-0.json & changed by hand", drop("done.json"), change) for change in (
        put("jobs/CoLA-0.json", "{}"), entries("jobs/CoLA-0.json", metrics={"main": "high"})))),
    *rows("albert --export {here} --init {albert}", ("not empty", put("mine.txt", ""))),
    *rows("autotinybert --export {autotinybert} --init {autotinybert}", ("not empty",))]

FLAGS = {  # of an action that would begin at once: what names the mistake
    "all": {"--batch 0": "--batch 0", "--bat 3": "unrecognized"},  # more of them in test_cli.py
    "albert": {
        "--device nonsense": "device", "--device meta": "meta", "--device cuda:99": "--device cuda:99",
        f"--steps {DIGITS}": "--steps", "--vocab_size 99999999999": "vocab_size",
        "--describe": "not allowed", "--hidden 30 --heads 4": "hidden 30", "--groups 3": "groups 3",
        "--length 300 --positions 200": "--length", "--layers 100000000": HUGE, "--positions 900000000": HUGE,
        "--share none --hidden 64 --layers 10001 --heads 1": HUGE},
    "autobert_zero": {"--batch 9 --accumulate 2": "--accumulate", "--hidden 30 --heads 4": "--hidden 30",
                      "--ffn 900000000": HUGE, "--arch nonsense": "arch", "--arch 'Q @ K.T'": "head dim"},
    "autotinybert": {
        "--arch 1-8-8-1-8": "--superplm", "--largest 100000-8-8-1-8 --smallest 1-8-8-1-8": HUGE,
        "--setting distill": "--teacher", "--teacher {here}": "--teacher",
        "--teacher {here} --setting distill": "no model is here", "--smallest 9-999-999-9-999": "small",
        "--latency_threads 100000": "--latency_threads", "--speedup ''": "--speedup"},
    "mformer": {"--beam 3": "no use", "--image 30 --patch 7": "--image", "--augment 1 2": "--augment",
                "--languages en": "--languages", "--image 16000000": "memory", "--arch layers=1": "arch"}}
OTHER = {  # commands that name too little, or what is not there
    "albert --finetune unknown --init {albert}": "choose from", "albert --finetune CoLA": "--init",
    "autotinybert --finetune RACE --init {autotinybert}": "choose from", "autotinybert --export {here}/e": "--init",
    "albert --finetune CoLA --init {here}/x": "no run folder", "mformer --evaluate": "--init",
    "autotinybert --further_train": "--arch",
    "autotinybert --further_train --corpus {corpus} --arch 0-0-0-0-0": "arch",
    "autotinybert --describe --arch 100000000-8-8-1-8": HUGE,
    "mformer --search --task wmt14 --decoder_layers 100000000": HUGE}
KNOBS = [
    *(row for program, said in FLAGS.items() for flags, words in said.items()
      for row in each(f"{{program}} {{begin}} {flags}", (words,), programs=TRAINED if program == "all" else [program])),
    *(row for command, words in OTHER.items() for row in rows(command, (words,)))]

BEST = [
    *(row for begin in ("autobert_zero --pretrain --corpus {corpus}", "mformer --train --cifar10 {cifar10}",
                        "autotinybert --further_train --corpus {corpus}")
      for row in rows(begin + " --arch {here}/best.json", ("best.json", put("best.json", {"arch": 7})))),
    *rows("autobert_zero --pretrain --corpus {corpus} --arch {here}/best.json", *(
        ("best.json", put("best.json", content)) for content in ("{", {}, {"arch": "\ud800"})))]

CORPUS = "data/prepare corpus --corpus {here}/a.txt --to {here}/to "
PREPARE = [
    *rows("data/prepare corpus --corpus {here}/pipe --to {here}/to", ("neither a file nor", lambda here, _: os.mkfifo(
        here / "pipe"))),
    *rows(CORPUS + "--workers 0", ("--workers", LONG_TEXT)),
    *rows(CORPUS + "--to {here}/a.txt --vocab_size 40", ("a.txt", LONG_TEXT)),
    *rows(CORPUS + "--tokenizer {here}/vocab.txt --vocab_size 9", ("8 pieces, not 9", LONG_TEXT, put(
        "vocab.txt", PIECES.removesuffix("\n")))),
    *rows("data/prepare demo --to {here}", ("not empty", put("mine.txt", ""))),
    *rows("data/prepare download glue --to {here}", ("not made by this command", put("glue/x", ""))),
    *rows("data/prepare corpus --corpus {here}/a.txt --to {here} --vocab_size 40",
          ("other files", LONG_TEXT, copy("corpus"))),
    *rows("data/prepare passages --squad {here}/a.txt --to {here}/a.txt", ("already", copy("squad"), lambda here, _: (
        here / "dev-v1.1.json").rename(here / "a.txt"))),
    *rows("autobert_zero --export {here}/net.py --init {autobert_zero}", ("already", put("net.pt", "theirs")))]

TABLE = [*GLUE, *SQUAD, *RACE, *PICTURES, *PAIRS, *TEXT, *PREPARED, *INIT, *HUGGING_FACE, *FOLDERS, *KNOBS, *BEST,
         *PREPARE]


@pytest.mark.parametrize("command, words, changes", TABLE, ids=map(str, range(len(TABLE))))
def test_bad_input_ends_in_one_line(command, words, changes, ready, limited, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    for change in changes:
        change(here, ready)
    before = (here / "out").exists()
    place = "" if command.startswith("data/") else f" --out {here}/out"
    status = call(command.format(here=here, **ready) + place, monkeypatch)
    left = sorted(str(path.relative_to(here)) for path in (here / "out").rglob("*"))
    assert before or not (here / "out").exists(), f"a mistake left a run folder behind: {left}"
    line = the_line(capfd.readouterr().err)
    assert status == 2 and all(word in line for word in words.split(" & ")) and len(line) < 600, line
    assert not (tmp_path / "bomb").exists()


# --- what a command may never delete -------------------------------------------------------------

def link(name, to):
    """A link from the row's folder to a file or folder beside it that is somebody else's."""
    def change(here, ready):
        put(f"../theirs/{to}", "theirs")(here, ready)
        (here / name).unlink(missing_ok=True)
        (here / name).symlink_to((here / "../theirs" / to).parent if name.endswith("jobs") else here / "../theirs" / to)
    return change


MODEL = "--layers 1 --steps 1 --batch 2 --length 60 --dev_rows 4"
KEPT = [  # each would have to delete or overwrite what it reads, or what others wrote
    (f"albert --pretrain --corpus {{corpus}} --init {{here}}/out {MODEL} --restart", "lies in",
     [copy("albert", to="out")]),
    (f"albert --finetune CoLA --glue {{glue}} --init {{here}}/out/CoLA {FEW} --restart", "lies in",
     [copy("tuned", to="out")]),
    (TRAINED["albert"] + " --tokenizer {here}/out/spiece.model --restart", "lies in", [copy("albert", to="out")]),
    (TRAINED["mformer"].replace("--vocab_size 120", "--init {here}/out --restart"), "lies in",
     [copy("mformer", to="out")]),
    (TRAINED["albert"], "no run folder", [put("out/log.jsonl", "theirs")]),
    (TRAINED["albert"] + " --restart", "a link", [copy("albert", to="out"), link("out/jobs", "jobs/a.json")]),
    (TRAINED["albert"] + " --restart", "a link",
     [copy("albert", drop("run.lock"), to="out"), link("out/run.lock", "x")]),
    (TRAINED["albert"] + " --steps 3", "other settings", [copy("albert", to="out")])]


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
    assert call(command.format(here=tmp_path / "here", **ready) + f" --out {tmp_path}/here/out", monkeypatch) == 2
    assert words in the_line(capfd.readouterr().err) and content() == before


def test_restart_deletes_what_runs_write_and_nothing_that_is_named_like_it(ready, tmp_path, monkeypatch):
    out = tmp_path / "out"
    copy("albert", to="out")(tmp_path, ready)
    theirs = ["draft.tmp", "my.tmp.notes", "best.docx", "x.tmp/a", "lock", "checkpoint.pt.mine", "a.partial-x"]
    for name in theirs:
        put(name, "theirs")(out, ready)
    put("config.json.partial-7", "torn")(out, ready)
    assert call(TRAINED["albert"].format(**ready) + f" --out {out} --restart", monkeypatch) == 0
    assert all((out / name).read_text() == "theirs" for name in theirs)
    assert (out / "done.json").exists() and not (out / "config.json.partial-7").exists()


def test_a_vocabulary_is_known_again(ready, tmp_path, monkeypatch, capfd):
    """Beside --init a vocabulary of equal size and other pieces is refused, and so is a kept one that was changed."""
    monkeypatch.chdir(tmp_path)
    lines = (ready["corpus"].parent / "text.txt").read_text().split("\n")
    put("text.txt", "\n".join(line[::-1] for line in lines))(tmp_path, ready)
    assert not call("data/prepare corpus --corpus text.txt --to other --vocab_size 300", monkeypatch)
    command = f"albert --pretrain --init {ready['albert']} {MODEL} --out out"
    assert call(f"{command} --corpus other --tokenizer other/spiece.model", monkeypatch) == 2
    assert "other pieces" in the_line(capfd.readouterr().err)
    copy("albert", to="kept")(tmp_path, ready)
    shutil.copy("other/spiece.model", "kept/spiece.model")
    assert call("albert --export model --init kept", monkeypatch) == 2
    assert "damaged or changed" in the_line(capfd.readouterr().err)


def broken(*_):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("command, words, patches", [
    (TRAINED["albert"], "can't start new thread", {"threading.Thread.start": broken}),
    ("autotinybert --describe", "clock stands still", {"time.process_time": lambda: 7.0}),
    ("mformer --search --cifar10 {cifar10} --cost cpu --batch 8 --held_out 8", "clock stands still",
     {"time.process_time": lambda: 7.0})])
def test_a_machine_without_threads_or_a_clock_is_named(command, words, patches, ready, tmp_path, monkeypatch, capfd):
    for name, instead in patches.items():
        monkeypatch.setattr(name, instead)
    assert call(command.format(**ready) + f" --out {tmp_path}/out", monkeypatch) == 2
    assert words in the_line(capfd.readouterr().err)


@pytest.mark.parametrize("name, content, read", [
    ("predictor.pt", b"PK", autotinybert.learn_latency),
    ("finalists.json", b"{}", lambda cfg, run: autotinybert.confirm([], cfg, run)),
    ("0.scores", b'{"CoLA": 7}', lambda cfg, run: autobert_zero.score_tasks(*[None] * 5, run.folder / "0.scores"))])
def test_what_a_search_keeps_between_its_phases_is_looked_at(name, content, read, tmp_path):
    """Of a candidate: tests of share_out() in test_distributed.py."""
    run = types.SimpleNamespace(folder=tmp_path, ranks=ALONE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(cli.UserError, match=f"{name}: damaged.*; delete it"):
        read(autotinybert.Config(), run)


def test_the_command_of_a_finished_run_ends_well(ready, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name, command in {**TRAINED, "tuned": TUNED}.items():
        assert call(command.format(**ready) + f" --out {ready[name]}", monkeypatch) == 0
    assert "CoLA" in capfd.readouterr().out
