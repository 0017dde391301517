"""Bad input: one table. Each row is a command and what was done to its input; it must end with exit status 2 and one
line on stderr that holds the given words, never in a traceback, a hang or a silent result.

A row is (program, command, change, words). In a command {here} is the row's own empty folder, {albert}, {tinybert},
{zero}, {mformer} are finished runs, {tuned} a fine-tuning, {corpus} a prepared corpus, {glue}, {squad}, {race}, {pairs}
small data. `change` is called with the row's folder and the ready ones, before the command. Words are joined by " & ".
All rows run in this process, as FILE.main([...]) below common.cli.run.
"""
import contextlib
import fcntl
import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import struct
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from common import cli, files

MODULES = {"albert": "albert", "zero": "autobert_zero", "tinybert": "autotinybert", "mformer": "mformer",
           "prepare": "data.prepare"}


# --- what the rows stand on ----------------------------------------------------------------------

def call(program, command, monkeypatch):
    """The exit status of a program's command, run in this process as its __main__ would run it."""
    module, argv = importlib.import_module(MODULES[program]), shlex.split(command)
    monkeypatch.setattr(sys, "argv", [f"{MODULES[program].removeprefix('data.')}.py", *argv])
    with pytest.raises(SystemExit) as end:
        cli.run(module.main if program == "prepare" else lambda: module.main(argv))
    files.release_locks()
    return end.value.code or 0


class Hung(BaseException):
    pass


@contextlib.contextmanager
def limited(seconds):
    """Hung is raised when the block takes longer."""
    def hung(*_):
        raise Hung
    handler = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def the_line(printed):
    """The one line of stderr that says what is wrong; no traceback stands above it."""
    lines = [line.rsplit("\r", 1)[-1] for line in printed.split("\n") if "error: " in line]
    assert len(lines) == 1 and "Traceback" not in printed, printed
    assert " error: " in lines[0][:30], "the message does not stand on a line of its own: " + lines[0]
    return lines[0]


def few_lines(demo, folder, *names, rows=6):
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(Path(demo["glue"], name).read_text().splitlines(keepends=True)[:rows]))


ARCH = ("'layers=1 hidden=16 ffn=16 heads=1 types=linear decoder_layers=1 decoder_hidden=16 decoder_ffn=16 "
        "decoder_heads=1 decoder_types=linear cross_heads=1 connect=1 cross_types=linear' --layers 1 "
        "--decoder_layers 1 --hidden 16 --ffn 16 --heads 1 --connect 1 ")
TINY = "--corpus {corpus} --steps 1 --batch 2 --device cpu --out {0} "
TRAINED = {
    "albert": "--pretrain " + TINY + "--layers 1 --hidden 16 --heads 2 --ffn 16 --embedding 8 --positions 64 "
              "--length 60 --dev_rows 4",
    "zero": "--pretrain " + TINY + "--layers 1 --hidden 16 --heads 2 --ffn 16",
    "tinybert": "--further_train " + TINY + "--accumulate 1 --further_steps 1 --arch 1-16-16-2-16 --largest "
                "1-16-16-2-16 --smallest 1-8-8-1-8",
    "mformer": "--train --task wmt14 --train_text {pairs}/train --test_text {pairs}/train --vocab_size 120 --steps 1 "
               "--batch 64 --held_out 4 --length 40 --out {0} --arch " + ARCH}
TUNED = ("--finetune CoLA --init {albert} --glue {glue} --finetune_batch 4 --finetune_epochs 1 --finetune_length 16 "
         "--out {0}")


@pytest.fixture(scope="session")
def ready(demo, tmp_path_factory):
    """{name: folder} of small data and finished runs, made once."""
    root = tmp_path_factory.mktemp("ready")
    found = {name: root / name for name in ("corpus", "glue", "squad", "race", "pairs", "tuned", "cifar10", "hf",
                                            *TRAINED)}
    (root / "text.txt").write_text(Path(demo["corpus"], "language.txt").read_text()[:40_000])
    few_lines(demo, found["glue"], *(f"{task}/{split}.tsv" for task in ("CoLA", "SST-2", "STS-B", "MRPC")
                                     for split in ("train", "dev")), "MNLI/train.tsv", "MNLI/dev_matched.tsv",
              "MNLI/dev_mismatched.tsv")
    for name in ("train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"):
        content = json.loads(Path(demo["squad"], f"{name}.json").read_text())
        content["data"] = [{**content["data"][0], "paragraphs": content["data"][0]["paragraphs"][:2]}]
        put(f"{name}.json", content)(found["squad"], found)
    for split in ("train", "dev"):
        for level in ("middle", "high"):
            (found["race"] / split / level).mkdir(parents=True)
            shutil.copy(Path(demo["race"], split, level, "0.txt"), found["race"] / split / level / "0.txt")
    found["pairs"].mkdir()
    for end in ("en", "de"):
        lines = Path(f"{demo['train_text']}.{end}").read_text().split("\n")[:40]
        (found["pairs"] / f"train.{end}").write_text("\n".join(lines) + "\n")
    found["cifar10"].mkdir()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (found["cifar10"] / name).write_bytes(Path(demo["cifar10"], name).read_bytes()[:40 * 3073])
    with pytest.MonkeyPatch.context() as patch:
        assert not call("prepare", f"corpus --corpus {root}/text.txt --to {found['corpus']} --vocab_size 300", patch)
        for program, command in TRAINED.items():
            assert not call(program, command.format(found[program], **found), patch), program
        (found["mformer"] / "checkpoint.pt.previous").unlink()
        assert not call("albert", TUNED.format(found["tuned"], **found), patch)
        assert not call("albert", "--export {hf} --init {albert}".format(**found), patch)
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


def copy(source, *changes):
    """Copy what is ready into the row's folder (files of its own), then change it."""
    def change(here, ready):
        shutil.copytree(ready[source], here, dirs_exist_ok=True)
        for more in changes:
            more(here, ready)
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


def settings(**values):
    """Change the settings in config.json."""
    def how(content):
        record = json.loads(content)
        record["settings"].update(values)
        return json.dumps(record).encode()
    return edit("config.json", how)


def entries(name, **values):
    """Change the entries of a JSON file; None takes one out."""
    def how(content):
        record = {**json.loads(content), **values}
        return json.dumps({key: value for key, value in record.items() if value is not None}).encode()
    return edit(name, how)


def weights(how, name="checkpoint.pt"):
    """Change what a checkpoint holds: how(state)."""
    def change(here, ready):
        state = torch.load(here / name, weights_only=True)
        changed = how(state)
        torch.save(state if changed is None else changed, here / name)
    return change


def first(state):
    return next(iter(state["owned"].values()))


def all_nan(state):
    for value in first(state).values():
        value.fill_(float("nan"))


def one_missing(state):
    first(state).pop("encoder.words.weight")


def one_larger(state):
    first(state)["encoder.words.weight"] = torch.zeros(7, 3)


def no_tensors(state):
    for name in first(state):
        first(state)[name] = "a string"


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
    file = open(here / "out" / "lock", "w")
    file.write("process 7 on elsewhere")
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    held.file = file


def both(*changes):
    def change(here, ready):
        for one in changes:
            one(here, ready)
    return change


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("bomb",)


def bomb(name):
    def change(here, ready):
        import pickle
        (here / name).write_bytes(pickle.dumps({"a": Bomb()}))
    return change


UTF16, DEEP, SURROGATE, DIGITS = "A man sat.\n".encode("utf-16") * 50, "[" * 100_000, '{"a": "\\ud800"}', "9" * 5000
BINARY = bytes(range(256)) * 20


# --- the table -----------------------------------------------------------------------------------

SMALL = {"albert": " --finetune_epochs 1 --finetune_batch 4 --finetune_length 16", "zero": "",
         "tinybert": " --finetune_batch 4 --finetune_length 16"}


def tune(program, task):
    """The command of a fine-tuning on the row's data."""
    kind = "squad" if task.startswith("SQuAD") else "race" if task == "RACE" else "glue"
    return program, f"--finetune {task} --init {{{program}}} --{kind} {{here}}{SMALL[program]} --out {{here}}/out"


def glue(program, task, name, content, words):
    return *tune(program, task), copy("glue", put(f"{task}/{name}.tsv", content)), f"{task}/{name}.tsv & {words}"


COLA, HEADER = "x\t1\t\tA man sat.\n", "sentence\tlabel\n"
GLUE = [
    (*tune("albert", "CoLA"), None, "CoLA/train.tsv: no such file & --glue"),
    (*tune("zero", "CoLA"), None, "CoLA/train.tsv: no such file & --glue"),
    (*tune("tinybert", "CoLA"), None, "CoLA/train.tsv: no such file & --glue"),
    (*tune("albert", "CoLA"), copy("glue", drop("CoLA/dev.tsv")), "CoLA/dev.tsv: no such file"),
    (*tune("albert", "CoLA"), copy("glue", drop("CoLA/train.tsv"), put("CoLA/train.tsv/x", "")), "no such file"),
    (*tune("albert", "MNLI"), copy("glue", drop("MNLI/dev_mismatched.tsv")), "dev_mismatched.tsv: no such file"),
    glue("albert", "CoLA", "train", b"", "no row has the 4 columns"),
    glue("zero", "CoLA", "train", "\n\n\n", "no row has the 4 columns"),
    glue("albert", "CoLA", "train", UTF16, "UTF-16"),
    glue("tinybert", "CoLA", "train", "A\tman\tsat\tx\n".encode("utf-16-le") * 9, "UTF-16"),
    glue("zero", "CoLA", "dev", BINARY, "binary"),
    glue("albert", "CoLA", "train", COLA.replace("\n", "\r") * 9, "CoLA"),
    glue("albert", "CoLA", "train", b"x\t1\t\tcaf\xe9\n", ":1: not UTF-8"),
    glue("albert", "CoLA", "train", "x\t1\tno text\n", "no row has the 4 columns"),
    glue("albert", "CoLA", "train", COLA + "x\t2\t\tA man.\n", ":2: CoLA has no label '2'"),
    glue("tinybert", "CoLA", "dev", COLA + "x\tyes\t\tA man.\n", ":2: CoLA has no label 'yes'"),
    glue("albert", "CoLA", "train", "source\tlabel\tnote\tsentence\n" + COLA, ":1: CoLA has no label 'label'"),
    glue("albert", "SST-2", "train", "A man sat.\t1\n", "the header is missing"),
    glue("albert", "SST-2", "train", "sentence\nA man sat.\n", "1 columns, SST-2 has 2"),
    glue("albert", "SST-2", "train", HEADER, "no row has the 2 columns"),
    glue("albert", "SST-2", "train", HEADER + "A man sat.\t-1\n", "no label '-1'"),
    glue("tinybert", "SST-2", "dev", HEADER + "A man sat.\tpositive\n", "no label 'positive'"),
    glue("albert", "STS-B", "train", "h\t" * 9 + "score\n" + "x\t" * 9 + "5.5\n", ":2: STS-B has no score '5.5'"),
    glue("albert", "STS-B", "train", "h\t" * 9 + "score\n" + "x\t" * 9 + "nan\n", "no score 'nan'"),
    glue("zero", "STS-B", "train", "h\t" * 9 + "score\n" + "x\t" * 9 + "high\n", "no score 'high'"),
    glue("albert", "MNLI", "train", "a\tb\tc\n", "3 columns, MNLI has 10"),
    glue("albert", "MNLI", "dev_matched", "h\t" * 11 + "gold_label\n" + "x\t" * 11 + "hidden\n", "no label 'hidden'"),
    glue("zero", "MNLI", "train", BINARY[1:], "MNLI"),
]


def squad(content, words, program="albert", version="1.1", name="train"):
    path = f"{name}-v{version}.json"
    return *tune(program, f"SQuAD{version}"), copy("squad", put(path, content)), f"{path} & {words}"


def paragraphs(*found):
    return {"data": [{"paragraphs": list(found)}]}


def asked(**entry):
    return paragraphs({"context": "A man sat.", "qas": [
        {"id": "q", "question": "Who?", "answers": [{"text": "man", "answer_start": 2}], **entry}]})


def answered(**entry):
    return asked(answers=[{"text": "man", "answer_start": 2, **entry}])


SQUAD = [
    (*tune("albert", "SQuAD1.1"), None, "train-v1.1.json: no such file & --squad"),
    (*tune("zero", "SQuAD2.0"), None, "train-v2.0.json: no such file & --squad"),
    (*tune("tinybert", "SQuAD1.1"), None, "train-v1.1.json: no such file & --squad"),
    (*tune("albert", "SQuAD1.1"), copy("squad", drop("dev-v1.1.json")), "dev-v1.1.json: no such file"),
    squad(b"", "JSON"), squad("{", "JSON", "zero"), squad(half(b'{"data": [{"paragraphs": []}]}'), "JSON"),
    squad(UTF16, "UTF-16"), squad(BINARY, "train"), squad("[1, 2]", "'data' is missing"),
    squad(DEEP, "nested too deeply"), squad('{"data": ' + DIGITS + "}", "JSON"),
    squad('{"data": [' * 50_000, "nested too deeply", "tinybert"),
    squad({"data": {}}, "'data' is missing or not a list"), squad({"data": []}, "no questions"),
    squad({"data": [7]}, "article 1: 'paragraphs' is missing"), squad(paragraphs(), "no questions"),
    squad(paragraphs({"qas": []}), "paragraph 1: 'context' is missing"),
    squad(paragraphs({"context": 7, "qas": []}), "'context' is missing or not a str"),
    squad(paragraphs({"context": "A man."}), "'qas' is missing"), squad(asked(id=7), "'id' is missing or not a str"),
    squad(asked(question=None), "'question' is missing"), squad(asked(answers="man"), "'answers' is missing"),
    squad(asked(answers=[]), "0 answers"), squad(answered(answer_start=3), "not at character 3"),
    squad(answered(answer_start=-8), "not at character"), squad(answered(answer_start=10 ** 30), "not at character"),
    squad(answered(answer_start="2"), "'answer_start' is missing"), squad(answered(text=""), "not at character"),
    squad(answered(answer_start=True), "'answer_start' is missing"), squad(asked(is_impossible=True), "is_impossible"),
    squad(asked(is_impossible=True), "is_impossible", "zero", "2.0"),
    squad(answered(text="\ud800"), "no Unicode"), squad(asked(id="\ud800"), "no Unicode", version="2.0"),
    squad(paragraphs(*2 * asked()["data"][0]["paragraphs"]), "a second question q", name="dev"),
    squad(asked(), "dev", name="nothing-to-see") [:2] + (copy("squad", edit("dev-v1.1.json", half)), "dev-v1.1.json"),
]


def race(content, words, name="0.txt"):
    return *tune("albert", "RACE"), copy("race", drop("train/high/0.txt"), put(f"train/high/{name}", content)), words


PASSAGE = {"id": "x", "article": "A man sat.", "questions": ["Who?"], "options": [["a", "b", "c", "d"]],
           "answers": ["A"]}
RACE = [
    (*tune("albert", "RACE"), None, "train/middle: no all.txt"),
    (*tune("albert", "RACE"), copy("race", drop("dev")), "dev/middle: no all.txt"),
    (*tune("albert", "RACE"), copy("race", drop("train/high/0.txt")), "train/high: no all.txt"),
    race("", "0.txt: no JSON"), race("{", "0.txt: no JSON"), race("[]", "not a RACE passage"),
    race(DEEP, "nested too deeply"), race(UTF16, "UTF-16"), race(BINARY, "0.txt"), race(DIGITS, "0.txt"),
    race({**PASSAGE, "answers": ["E"]}, "question 1 has the answer 'E'"),
    race({**PASSAGE, "answers": [1]}, "question 1 has the answer 1"),
    race({**PASSAGE, "answers": []}, "not a RACE passage"), race({**PASSAGE, "article": 7}, "not a RACE passage"),
    race({**PASSAGE, "options": [["a", "b", "c"]]}, "not a RACE passage"),
    race({**PASSAGE, "options": [["a", "b", "c", 4]]}, "not a RACE passage"),
    race({**PASSAGE, "article": "\ud800"}, "no Unicode"), race({**PASSAGE, "questions": []}, "not a RACE passage"),
    race(json.dumps(PASSAGE) + "\n{}\n", "all.txt:2: not a RACE passage", "all.txt"),
]


def cifar(words, *changes):
    return "mformer", "--train --cifar10 {here} --arch cosformer* --out {here}/out", copy("cifar10", *changes), words


def pairs(words, *changes, more=""):
    return ("mformer", f"--train --task wmt14 --train_text {{here}}/train --arch {ARCH} --out {{here}}/out {more}",
            copy("pairs", *changes), words)


PICTURES_AND_PAIRS = [
    cifar("no data_batch_*.bin", drop("data_batch_1.bin")), cifar("record 1 has the label 77", edit(
        "data_batch_1.bin", lambda content: b"\x4d" + content[1:])),
    cifar("not a whole number of 3073-byte records", edit("data_batch_1.bin", lambda content: content[:-1])),
    cifar("0 bytes are not a whole number", put("data_batch_1.bin", b"")),
    cifar("fewer than a shard", edit("data_batch_1.bin", lambda content: content[:3073])),
    ("mformer", "--train --cifar10 {here}/x --arch cosformer* --out {here}/out", None, "there is no data_batch_*.bin"),
    ("mformer", "--train --cifar10 {here}/x.bin --arch cosformer* --out {here}/out", put("x.bin", b"7"), "x.bin"),
    pairs("train.de", drop("train.de")), pairs("train.en", drop("train.en")),
    pairs("the file ends here", edit("train.de", lambda content: content + b"Ein Mann.\n")),
    pairs("empty", put("train.en", ""), put("train.de", "")), pairs("UTF-16", put("train.de", UTF16)),
    pairs("train.de & binary", put("train.de", BINARY)),
    pairs("x.en", more="--valid_text {here}/x --vocab_size 120"),
    pairs("at most & pieces, not 99999999", more="--vocab_size 99999999"),
    pairs("no spiece.model", more="--tokenizer {here}/x"),
]


def pretrain(program, words, *changes, corpus="{here}/a.txt", more=""):
    action = {"tinybert": "--superplm"}.get(program, "--pretrain")
    return program, f"{action} --corpus {corpus} --out {{here}}/out {more}", both(*changes), words


def corpus(words, *changes, program="albert"):
    return program, pretrain(program, "", corpus="{here}")[1], copy("corpus", *changes), words


def prepared(**values):
    return entries("meta.json", **values)


LONG_TEXT = "A man sat on a mat. He saw a cat.\n\n" * 40
PIECES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nman\nsat\n"
TEXT = [
    pretrain("albert", "there is no such file or folder", corpus="{here}/x"),
    pretrain("zero", "there is no such file or folder", corpus="{here}/x"),
    pretrain("tinybert", "there is no such file or folder", corpus="{here}/x"),
    pretrain("albert", "no *.txt file", corpus="{here}"), pretrain("zero", "no text to train on", put("a.txt", "")),
    pretrain("albert", "UTF-16", put("a.txt", UTF16)), pretrain("zero", "zero bytes", put("a.txt", BINARY)),
    pretrain("albert", "at most & pieces", put("a.txt", LONG_TEXT)),
    pretrain("zero", "characters alone need", put("a.txt", LONG_TEXT), more="--vocab_size 9"),
    pretrain("albert", "vocab_size", put("a.txt", LONG_TEXT), more="--vocab_size 1"),
    pretrain("tinybert", "vocab_size", put("a.txt", LONG_TEXT), more="--vocab_size 99999999999"),
    pretrain("albert", "no text", put("a.txt", " \n\t\n\r\n")),
    pretrain("albert", "one document cannot be split", put("a.txt", "A man sat on a mat. "), put("vocab.txt", PIECES),
             more="--tokenizer {here}/vocab.txt"),
    pretrain("albert", "x.model", put("a.txt", LONG_TEXT), more="--tokenizer {here}/x.model"),
    pretrain("zero", "not a SentencePiece model", put("a.txt", LONG_TEXT), put("x.model", b""),
             more="--tokenizer {here}/x.model"),
    pretrain("albert", "not a SentencePiece model", put("a.txt", LONG_TEXT), put("x.model", BINARY),
             more="--tokenizer {here}/x.model"),
    pretrain("albert", "vocab.txt & UTF-16", put("a.txt", LONG_TEXT), put("vocab.txt", UTF16),
             more="--tokenizer {here}/vocab.txt"),
    pretrain("albert", "lacks <pad>", put("a.txt", LONG_TEXT), put("vocab.txt", ""),
             more="--tokenizer {here}/vocab.txt"),
    pretrain("zero", "lacks [CLS]", put("a.txt", LONG_TEXT), put("vocab.txt", PIECES.replace("[CLS]\n", "")),
             more="--tokenizer {here}/vocab.txt"),
    *(pretrain(program, "[MASK]", put("a.txt", LONG_TEXT), put("vocab.txt", PIECES.replace("[MASK]\n", "")),
               more="--tokenizer {here}/vocab.txt") for program in ("albert", "zero", "tinybert")),
    pretrain("albert", "tokenizer_config.json", put("a.txt", LONG_TEXT), put("vocab.txt", PIECES),
             put("tokenizer_config.json", "[]"), more="--tokenizer {here}/vocab.txt"),
    pretrain("albert", "tokenizer_config.json", put("a.txt", LONG_TEXT), put("vocab.txt", PIECES),
             put("tokenizer_config.json", DEEP), more="--tokenizer {here}/vocab.txt"),
    pretrain("albert", "do_lower_case", put("a.txt", LONG_TEXT), put("vocab.txt", PIECES),
             put("tokenizer_config.json", {"do_lower_case": "no"}), more="--tokenizer {here}/vocab.txt"),
    pretrain("albert", "pieces; leave it out", corpus="{corpus}", more="--vocab_size 77"),
    corpus("spiece.model", drop("spiece.model")), corpus("tokens.bin", drop("tokens.bin")),
    corpus("tokens.bin & cut short", edit("tokens.bin", half)),
    corpus("sentences.bin & cut short", edit("sentences.bin", half), program="zero"),
    corpus("documents.bin & cut short", put("documents.bin", b"")),
    corpus("meta.json", edit("meta.json", half)), corpus("meta.json", put("meta.json", DEEP)),
    corpus("meta.json", put("meta.json", "[]"), program="zero"), corpus("meta.json", put("meta.json", BINARY)),
    corpus("meta.json", prepared(format=2)), corpus("meta.json", prepared(dtype=None)),
    corpus("meta.json", prepared(dtype="object")), corpus("meta.json", prepared(documents="11")),
    corpus("meta.json", prepared(documents=-1)), corpus("meta.json", prepared(documents=10 ** 30)),
    corpus("another tokenizer", prepared(tokenizer="00")), corpus("another tokenizer", prepared(lower=7)),
    corpus("tokens.bin", edit("tokens.bin", lambda content: b"\xff" * len(content)), program="zero"),
    corpus("sentences.bin", edit("sentences.bin", lambda content: b"\x7f" * len(content))),
    corpus("documents.bin", edit("documents.bin", lambda content: content[::-1])),
]


def init(program, words, *changes, more=""):
    """An action that starts from a changed copy of a run; evaluate, or fine-tune."""
    action = "--evaluate" if program == "mformer" else "--finetune CoLA --glue {glue}" + SMALL[program]
    name = "run/model" if program == "tinybert" else "run"

    def change(here, ready):
        shutil.copytree(ready[program], here / "run")
        for one in changes:
            one(here / name, ready)
    text = "--task wmt14 --test_text {pairs}/train " if program == "mformer" else ""
    return program, f"{action} --init {{here}}/run {text}{more} --out {{here}}/out", change, words


def deeper(arch, layers):
    """A text form of mformer.py with so many encoder layers."""
    for name in ("ffn", "heads", "types"):
        arch = re.sub(rf"(?<= {name}=)\w+", lambda found: ",".join([found[0]] * layers), arch)
    return arch.replace("layers=1", f"layers={layers}", 1)


def each(words, *changes, programs=tuple(TRAINED)):
    return [init(program, words, *changes) for program in programs]


INIT = [
    *each("checkpoint.pt", put("checkpoint.pt", b"")), *each("checkpoint.pt", edit("checkpoint.pt", half)),
    *each("checkpoint.pt & checksum", edit("checkpoint.pt", flipped)), *each("not finite", weights(all_nan)),
    *each("checkpoint.pt", drop("checkpoint.pt"), programs=("albert", "zero", "mformer")),
    *each("checkpoint.pt", put("checkpoint.pt", "text")), *each("checkpoint.pt", bomb("checkpoint.pt")),
    *each("checkpoint.pt", weights(lambda state: {"owned": 7})), *each("checkpoint.pt", weights(lambda state: {})),
    *each("checkpoint.pt", weights(lambda state: [state])),
    *each("checkpoint.pt", weights(no_tensors)),
    *each("config.json", edit("config.json", half)), *each("config.json", put("config.json", DEEP)),
    *each("config.json", put("config.json", SURROGATE), programs=("zero", "mformer")),
    *each("run", entries("config.json", settings=[]), programs=("zero", "mformer")),
    *each("run", entries("config.json", settings=None), programs=("zero", "mformer")),
    *each("config.json & hidden", settings(hidden="16"), programs=("albert", "zero")),
    *each("config.json & hidden", settings(hidden=True), programs=("albert", "zero")),
    *each("config.json & hidden", settings(hidden=-16), programs=("albert", "zero")),
    *each("memory", settings(hidden=16 * 10 ** 9), programs=("albert", "zero")),
    *each("GB of memory", settings(layers=100000000), programs=("albert", "zero")),
    *each("GB of memory", settings(hidden=900000, heads=1, embedding=8), programs=("albert", "zero")),
    init("tinybert", "GB of memory", settings(arch="100000-8-8-1-8")),
    init("mformer", "GB of memory", settings(arch=deeper(shlex.split(ARCH)[0], 100_000))),
    init("mformer", "GB of memory", settings(arch=shlex.split(ARCH)[0].replace("ffn=16", "ffn=900000000"))),
    *each("run", settings(arch=7), programs=("zero", "tinybert")),
    init("mformer", "arch", settings(arch=7)),
    *each("arch", settings(arch="x"), programs=("zero", "mformer")), init("tinybert", "run", settings(arch="x")),
    init("albert", "no run folder of albert.py", entries("config.json", program="mformer")),
    init("zero", "no run folder of autobert_zero.py", entries("config.json", program="albert")),
    init("tinybert", "no run folder of autotinybert.py", entries("config.json", action="evolve")),
    init("mformer", "no run folder of mformer.py", entries("config.json", action="describe")),
    init("albert", "words", weights(one_missing)), init("zero", "there and", weights(one_larger)),
    init("tinybert", "there and", weights(one_larger)), init("albert", "of --init has 7", weights(one_larger)),
    init("albert", "leave --hidden out", more="--hidden 32"), init("zero", "leave --hidden out", more="--hidden 32"),
    init("zero", "spiece.model", drop("spiece.model")), init("albert", "spiece.model", put("spiece.model", BINARY)),
    init("albert", "vocab.txt: 8 pieces, and the model of --init has 300", drop("spiece.model"),
         put("vocab.txt", PIECES)),
    init("albert", "vocab.txt: 301 pieces, and the model of --init has 300", drop("spiece.model"),
         put("vocab.txt", PIECES + "".join(f"word{number}\n" for number in range(293)))),
    *((program, f"{action} --init {{here}}/x --out {{here}}/out", None, "x") for program, action in (
        ("albert", "--finetune CoLA"), ("zero", "--finetune CoLA"), ("tinybert", "--finetune CoLA"),
        ("mformer", "--evaluate"), ("albert", "--export {here}/e"), ("tinybert", "--export {here}/e"))),
    ("albert", "--finetune CoLA --init {here} --out {here}/out", copy("zero"), "no run folder of albert.py"),
    ("albert", "--finetune CoLA --init {tuned} --glue {glue} --out {here}/out", None, "name one of its models"),
]


def folder(words, *changes, program="albert", copied="hf"):
    """Fine-tuning from a changed Hugging Face folder."""
    return (program, f"--finetune CoLA --glue {{glue}} --init {{here}} --out {{here}}/out{SMALL[program]}",
            copy(copied, *changes), words)


def parts(index, *changes):
    return drop("model.safetensors"), put("model.safetensors.index.json", index), *changes


HUGGING_FACE = [
    folder("model.safetensors", drop("model.safetensors")), folder("safetensors", edit("model.safetensors", half)),
    folder("safetensors", put("model.safetensors", b"")), folder("safetensors", put("model.safetensors", BINARY)),
    folder("safetensors", tensors({}, size=1 << 62)), folder("safetensors", tensors(b"[]")),
    folder("safetensors", tensors(b'{"a": 7}')), folder("safetensors", tensors(DEEP.encode())),
    folder("safetensors", tensors(("[" + DIGITS + "]").encode())),
    folder("safetensors", tensor(shape=[-2])), folder("safetensors", tensor(shape=[-1, -2])),
    folder("safetensors", tensor(shape=7)), folder("safetensors", tensor(shape=["2"])),
    folder("safetensors", tensor(shape=[1 << 62, 4])), folder("safetensors", tensor(shape=[2.0])),
    folder("safetensors", tensor(dtype="F99")), folder("safetensors", tensor(dtype=[])),
    folder("safetensors", tensor(data_offsets=[-8, 0])), folder("safetensors", tensor(data_offsets=["0", "8"])),
    folder("safetensors", tensor(data_offsets=[8])), folder("safetensors", tensor(data_offsets=[0, 1 << 60])),
    folder("safetensors", tensor(data_offsets=[8, 0])),
    folder("unexpected weights: a", tensor()),
    folder("index.json", *parts("[]")), folder("index.json", *parts("{")), folder("index.json", *parts(DEEP)),
    folder("index.json", *parts({"weight_map": []})), folder("index.json", *parts({"weight_map": {"a": 7}})),
    folder("index.json", *parts({"weight_map": {"a": None, "b": "x"}})),
    folder("x.safetensors: no such file", *parts({"weight_map": {"a": "x.safetensors"}})),
    folder("pytorch_model.bin", drop("model.safetensors"), put("pytorch_model.bin", b"")),
    folder("pytorch_model.bin", drop("model.safetensors"), put("pytorch_model.bin", BINARY)),
    folder("pytorch_model.bin", drop("model.safetensors"), bomb("pytorch_model.bin")),
    folder("model_type is not albert", put("config.json", "{}")), folder("model_type", put("config.json", "[]")),
    folder("config.json", edit("config.json", half)), folder("config.json", put("config.json", UTF16)),
    folder("config.json", put("config.json", DIGITS)),
    folder("hidden", entries("config.json", hidden_size="16")), folder("config.json", entries(
        "config.json", hidden_size=-16)), folder("config.json", entries("config.json", num_attention_heads=0)),
    folder("memory", entries("config.json", hidden_size=16 * 10 ** 9)),
    folder("there and", entries("config.json", hidden_size=32)),
    folder("memory", entries("config.json", num_hidden_layers=10 ** 11)),
    folder("vocab", entries("config.json", vocab_size=None)),
    folder("there is no spiece.model", drop("spiece.model")),
    *(folder("config.json", put("config.json", {"model_type": "bert", **sizes}), program="tinybert") for sizes in (
        {}, {"hidden_size": "x"}, {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": -1,
                                   "num_attention_heads": 2})),
    folder("only bert and electra", program="tinybert"),
]


def out(program, action, words, *changes, more=""):
    """A command into a folder that holds something already."""
    return program, f"{action} --out {{here}}/out {more}", both(*changes), words


RECORD = {"program": "albert", "action": "pretrain", "settings": {"layers": 7}, "argv": []}
STARTS = {"albert": "--pretrain --corpus {corpus}", "zero": "--pretrain --corpus {corpus}",
          "tinybert": "--superplm --corpus {corpus}", "mformer": "--train --cifar10 {cifar10} --arch cosformer*"}


def again(words, *changes, source="albert"):
    """The command of a finished run once more, in a changed copy of its folder."""
    def change(here, ready):
        shutil.copytree(ready[source], here / "out")
        both(*changes)(here / "out", ready)
    return source, TRAINED[source].replace("{0}", "{here}/out"), change, words


def tuning(words, *changes):
    def change(here, ready):
        shutil.copytree(ready["tuned"], here / "out")
        both(drop("done.json"), *changes)(here / "out", ready)
    return ("albert", "--finetune CoLA --init {albert} --glue {glue} --finetune_batch 4 --finetune_epochs 1 "
            "--finetune_length 16 --out {here}/out", change, words)


FOLDERS = [
    *(out(program, action, "not empty and no run folder", put("out/mine.txt", "")) for program, action in
      STARTS.items()),
    *(out(program, action, "in the hands of process 7 on elsewhere", held) for program, action in STARTS.items()),
    *(out(program, action, "config.json", put("out/config.json", DEEP)) for program, action in STARTS.items()),
    *(out(program, action, "none of a run", put("out/config.json", {"a": 1})) for program, action in STARTS.items()),
    *(out(program, action, "holds a run of albert.py --export", put("out/config.json", {**RECORD, "action": "export"}))
      for program, action in STARTS.items()),
    out("zero", STARTS["zero"], "holds a run of albert.py", put("out/config.json", RECORD)),
    out("albert", STARTS["albert"], "no JSON object", put("out/config.json", "[]")),
    out("albert", STARTS["albert"], "none of a run", put("out/config.json", {**RECORD, "settings": 7})),
    out("albert", STARTS["albert"], "out", put("out", "a file")), out("zero", STARTS["zero"], "out", put("out", "")),
    out("albert", STARTS["albert"], "--dry_run would delete it", put("out-dry/config.json", RECORD), more="--dry_run"),
    again("other settings", settings(layers=2)), again("other settings", settings(seed=5), source="zero"),
    again("other settings", settings(seed="x"), source="mformer"),
    again("other data", entries("config.json", read={"x": "y"})), again("config.json", entries("config.json", read=7)),
    again("done.json", put("done.json", "{")), again("done.json", put("done.json", "[]")),
    again("config.json", edit("config.json", half), source="tinybert"),
    again("neither it nor the one before can be read", drop("done.json"), put("checkpoint.pt", b"")),
    again("neither it nor the one before", drop("done.json"), edit("checkpoint.pt", half), source="zero"),
    again("neither it nor the one before", drop("done.json"), weights(lambda state: {**state, "run": "other"})),
    again("checkpoint.pt", drop("done.json"), weights(lambda state: {"run": state["run"]})),
    tuning("jobs/CoLA-0.json", put("jobs/CoLA-0.json", "{")), tuning("jobs/CoLA-0.json", put("jobs/CoLA-0.json", "[]")),
    tuning("jobs/CoLA-0.json", put("jobs/CoLA-0.json", "{}")),
    tuning("jobs/CoLA-0.json", entries("jobs/CoLA-0.json", metrics={"main": "high"})),
    ("albert", "--export {albert} --init {hf}", None, "not empty"),
    ("albert", "--export {here} --init {albert}", put("mine.txt", ""), "not empty"),
    ("tinybert", "--export {tinybert} --init {tinybert}", None, "not empty"),
]


def knob(program, flags, words, action=""):
    """Flags of an action that would begin at once."""
    return program, f"{action or STARTS[program]} {flags} --out {{here}}/out", None, words


ALL = tuple(TRAINED)
KNOBS = [
    *(knob(program, "--device meta", "--device meta") for program in ALL),
    *(knob(program, "--device cpu:7", "--device cpu:7") for program in ALL),
    *(knob(program, "--device nonsense", "knows no such device") for program in ALL),
    *(knob(program, "--device xla", "--device xla") for program in ALL),
    *(knob(program, "--device cuda:99", "--device cuda:99") for program in ALL),
    *(knob(program, "--seed -1", "--seed -1") for program in ALL),
    *(knob(program, "--dtype float16", "invalid choice") for program in ALL),
    *(knob(program, "--batch 0", "--batch 0: choose a number >= 1") for program in ALL),
    *(knob(program, "--lr nan", "--lr nan") for program in ALL),
    *(knob(program, "--lr -1", "--lr -1.0") for program in ALL),
    *(knob(program, "--dropout 1", "--dropout 1.0") for program in ALL),
    *(knob(program, "--steps 0", "--steps 0") for program in ("albert", "mformer")),
    *(knob(program, "--preset huge", "there is no such preset") for program in ALL),
    *(knob(program, "--bat 3", "unrecognized arguments") for program in ALL),
    *(knob(program, "--batch 9 --accumulate 2", "--accumulate") for program in ("zero", "tinybert", "mformer")),
    *(knob(program, "--steps 1e3", "invalid int value") for program in ALL),
    *(knob(program, f"--steps {DIGITS}", "--steps") for program in ALL),
    *(knob(program, "--describe", "not allowed with") for program in ALL),
    knob("albert", "--layers 100000000000", "memory"), knob("zero", "--layers 100000000000", "memory"),
    knob("albert", "--hidden 10000000000 --embedding 8 --heads 1", "memory"),
    knob("albert", "--ffn 100000000000", "memory"), knob("zero", "--ffn 100000000000", "memory"),
    knob("albert", "--positions 100000000000", "memory"), knob("mformer", "--image 16000000", "memory"),
    knob("tinybert", "--largest 99999999999-8-8-1-8 --smallest 1-8-8-1-8", "memory"),
    knob("tinybert", "--arch 99999999999-8-8-1-8", "memory", "--describe"),
    knob("albert", "--layers 100000000000", "memory", "--describe"),
    knob("zero", "--layers 100000000000", "memory", "--describe"),
    *(knob(program, sizes, "at least & GB of memory & 10,000 layers", action)
      for program, first in (("albert", "--pretrain"), ("zero", "--search"), ("mformer", "--search"))
      for action in (first, "--describe")
      for sizes in ("--layers 100000000", "--layers 100000", "--hidden 90000000 --heads 1", "--ffn 900000000")),
    *(knob("mformer", f"--{name} 100000000 --task wmt14", "GB of memory", "--search") for name in (
        "layers", "decoder_layers", "hidden", "qkv")),
    *(knob("tinybert", f"--arch {arch} --init {{tinybert}}", "GB of memory", action) for arch in (
        "100000000-8-8-1-8", "100000-8-8-1-8", "2-900000-8-1-8", "2-8-900000000-1-8", "2-8-8-1-900000000")
      for action in ("--describe", "--further_train --corpus {corpus}", "--export {here}/e")),
    knob("tinybert", "--largest 100000-8-8-1-8 --smallest 1-8-8-1-8", "GB of memory"),
    knob("tinybert", "--reference 100000-8-8-1-8", "--reference & GB of memory"),
    knob("albert", "--share none --hidden 64 --layers 10001 --heads 1", "GB of memory"),
    knob("albert", "--positions 900000000", "positions & GB of memory"),
    knob("albert", "--hidden 30 --heads 4", "hidden 30"), knob("zero", "--hidden 30 --heads 4", "--hidden 30"),
    knob("albert", "--embedding 99999", "embedding 99999"), knob("albert", "--groups 3", "groups 3"),
    knob("albert", "--length 300 --positions 200", "--length"), knob("albert", "", "unknown: choose from & RACE",
                                                                     "--finetune unknown --init {albert}"),
    knob("zero", "", "nothing: choose from", "--finetune nothing"), knob("zero", "", "choose from", "--finetune ,"),
    knob("tinybert", "", "race: choose from", "--finetune RACE --init {tinybert}"),
    knob("albert", "", "--init", "--finetune CoLA"), knob("tinybert", "", "--init", "--finetune CoLA"),
    knob("tinybert", "", "--init", "--export {here}/e"), knob("albert", "", "--init", "--export {here}/e"),
    knob("mformer", "", "--init", "--evaluate"), knob("tinybert", "", "--arch", "--further_train"),
    *(knob(program, f"--arch {arch}", "x.json" if "json" in arch else "arch", action) for program, action in (
        ("zero", "--pretrain --corpus {corpus}"), ("tinybert", "--further_train --corpus {corpus}"),
        ("mformer", "--train --cifar10 {cifar10}")) for arch in (
            "nonsense", "''", "{here}/x.json", "1-2-3", "layers=1", "0-0-0-0-0", "1--8-8-1-8", "🙂")),
    knob("tinybert", "--arch 1-8-8-1-8", "--arch", "--superplm"), knob("mformer", "--beam 0", "--beam 0"),
    knob("mformer", "--beam 3 --task cifar10", "has no use for it"), knob("mformer", "--image 30 --patch 7", "--image"),
    knob("mformer", "--augment 1 2", "--augment"), knob("mformer", "--languages en", "--languages"),
    knob("tinybert", "--setting distill", "--teacher"), knob("tinybert", "--teacher {here}", "--teacher"),
    knob("tinybert", "--teacher {here} --setting distill", "no model is here"),
    knob("tinybert", "--smallest 9-999-999-9-999", "small"),
    knob("tinybert", "--latency_threads 0", "--latency_threads"),
]


def json_arch(program, content, words="best.json"):
    action = {"zero": "--pretrain --corpus {corpus}", "tinybert": "--further_train --corpus {corpus}",
              "mformer": "--train --cifar10 {cifar10}"}[program]
    return (program, f"{action} --arch {{here}}/best.json --out {{here}}/out", put("best.json", content), words)


BEST = [
    json_arch("zero", DEEP),
    json_arch("tinybert", DEEP), json_arch("mformer", DEEP),
    *(json_arch(program, content) for program in ("zero", "tinybert", "mformer")
      for content in ("", "[]", "7", "{}", {"arch": 7}, {"arch": None}, {"arch": "x"}, {"arch": "\ud800"}, BINARY,
                      DIGITS))]


def prepare(command, words, *changes):
    return "prepare", command, both(*changes), words


PREPARE = [
    prepare("corpus --corpus {here}/x --to {here}/to", "there is no such file"),
    prepare("corpus --corpus {here} --to {here}/to", "no *.txt file"),
    prepare("corpus --corpus {here}/a.txt --to {here}/to", "no text to train on", put("a.txt", "")),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --vocab_size 300", "UTF-16", put("a.txt", UTF16)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --vocab_size 300", "zero bytes", put("a.txt", BINARY)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --vocab_size 0", "--vocab_size", put("a.txt", LONG_TEXT)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --vocab_size -5", "--vocab_size", put("a.txt", LONG_TEXT)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --vocab_size 99999999999", "vocab_size",
            put("a.txt", LONG_TEXT)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --workers 0", "--workers", put("a.txt", LONG_TEXT)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --workers -1", "--workers", put("a.txt", LONG_TEXT)),
    prepare("corpus --corpus {here}/a.txt --to {here}/a.txt --vocab_size 40", "a.txt", put("a.txt", LONG_TEXT)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --tokenizer {here}/x", "no spiece.model",
            put("a.txt", LONG_TEXT)),
    prepare("corpus --corpus {here}/a.txt --to {here}/to --tokenizer {here}/vocab.txt --vocab_size 9",
            "8 pieces, not 9", put("a.txt", LONG_TEXT), put("vocab.txt", PIECES.removesuffix("\n"))),
    prepare("corpus --to {here}", "required: --corpus"),
    prepare("demo --to {here}", "not empty and not demo data", put("mine.txt", "")),
    prepare("download nothing", "invalid choice"),
    prepare("download glue --to {here}", "not made by this command", put("glue/x", "")),
    prepare("nothing", "invalid choice"), prepare("corpus --corpus a --to b --nonsense", "unrecognized"),
]

TABLE = [*GLUE, *SQUAD, *RACE, *PICTURES_AND_PAIRS, *TEXT, *INIT, *HUGGING_FACE, *FOLDERS, *KNOBS, *BEST, *PREPARE]


@pytest.mark.parametrize("program, command, change, words", TABLE, ids=map(str, range(len(TABLE))))
def test_bad_input_ends_in_one_line(program, command, change, words, ready, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    if change:
        change(here, ready)
    before = (here / "out").exists()
    with limited(30):
        status = call(program, command.format(here=here, **ready), monkeypatch)
    left = sorted(str(path.relative_to(here)) for path in (here / "out").rglob("*"))
    assert before or not (here / "out").exists(), f"a mistake left a run folder behind: {left}"
    line = the_line(capfd.readouterr().err)
    assert status == 2
    assert all(word in line for word in words.split(" & ")), line
    assert not (tmp_path / "bomb").exists() and len(line) < 600


def test_the_command_of_a_finished_run_ends_well(ready, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for program, command in (*TRAINED.items(), ("albert", TUNED)):
        out = ready["tuned" if command == TUNED else program]
        assert call(program, command.format(out, **ready), monkeypatch) == 0
    assert "CoLA" in capfd.readouterr().out
