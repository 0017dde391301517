"""Bad input: one table, with about one line per reader. The four files have some readers in common.

A line is (command, words, changes). The command must end with exit status 2 and one line on stderr
that contains the words (joined by " & "), never with a traceback or a silent result, and change no
file. It may leave a new run folder without results. In a command {here} is the line's own folder.
{albert}, {autobert_zero}, {autotinybert}, {mformer} are finished runs, {tuned} a fine-tuning, {hf}
a Hugging Face folder, {corpus} a prepared corpus, and {glue}, {squad}, {race}, {pairs}, {cifar10}
small data. A change is called with the line's folder and the ready ones. All run in this process,
below common.cli.run.
"""
import fcntl
import os
import pickle
import re
import shutil

import pytest
import torch
from conftest import filled
from small_runs import ARCH, ONE, SEARCHES, TRAINED, TUNED, call, write

# files of a run without results
PREPARED = {"config.json", "spiece.model", "vocab.txt", "tokenizer_config.json", "images.json"}


# --- what is done to an input --------------------------------------------------------------------

def put(name, content):
    """Write a file: bytes, text, or JSON."""
    return lambda here, ready: write(here / name, content)


def copy(source, *changes, to="."):
    """Copy ready files, then change them."""
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
    """Some bits flip, also outside the padding between tensors."""
    changed = bytearray(content)
    for part in range(1, 8):
        changed[len(content) * part // 8] ^= 4
    return bytes(changed)


def half(content):
    return content[:len(content) // 2]


def held(here, ready):
    """Another process has locked the run."""
    held.file = open(write(here / "out" / "run.lock", "process 7 on elsewhere"))
    fcntl.flock(held.file, fcntl.LOCK_EX)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("bomb",)


BOMB = pickle.dumps({"a": Bomb()})


# --- the table -----------------------------------------------------------------------------------

def tuning(task, program="albert"):
    """The command of a fine-tuning on the line's data."""
    kind = "squad" if task.startswith("SQuAD") else "race" if task == "RACE" else "glue"
    few = ONE.removeprefix("--finetune_epochs 1 ") if program == "autotinybert" else ONE
    return f"{program} --finetune {task} --init {{{program}}} --{kind} {{here}} {few}"


IMAGES = "mformer --train --cifar10 {here} --arch cosformer*"
PRETRAIN = "albert --pretrain --corpus {here}/a.txt"
LONG_TEXT = put("a.txt", "A man sat on a mat. He saw a cat.\n\n" * 40)
INIT = TUNED.replace("{albert}", "{here}")
ALBERT = copy("albert", to="out")

STOPPED = {"action": "search", "argv": ["autobert_zero.py", "--search", "--seed", "7"]}

# The content of lines and entries is tested with their readers: test_glue.py, test_squad.py.
TABLE = [
    # data
    (tuning("CoLA"), "CoLA/train.tsv: no such file & --glue"),
    (TUNED.replace("CoLA", "glue"), "lacks WNLI & has: CoLA,SST-2,MRPC"),
    (tuning("SQuAD2.0"), "train-v2.0.json: no such file & --squad"),
    (tuning("RACE"), "here/train: no passages & train|dev|test/middle|high/NUMBER.txt"),
    (tuning("RACE").replace("--finetune_length 64", "--finetune_length 8"),
     "no room for the passage & --finetune_length", copy("race")),
    ("albert --finetune CoLA --ensemble {albert}", "predictions.pt & runs of --finetune CoLA"),
    ("albert --pretrain --corpus {corpus} --init {hf} --length 200", "at most 64"),
    (IMAGES, "3073-byte records", copy("cifar10", edit("data_batch_1.bin", lambda old: old[:-1]))),
    (f"mformer --train --task wmt14 --train_text {{here}}/train --arch {ARCH}", "train.de",
     copy("pairs", drop("train.de"))),
    (PRETRAIN, "there is no such file or folder"),
    (PRETRAIN + " --tokenizer {here}/x.model", "not a SentencePiece model", LONG_TEXT,
     put("x.model", BOMB)),
    (PRETRAIN + " --tokenizer {here}/vocab.txt", "[MASK]", LONG_TEXT,
     put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nman\nsat\n")),
    ("albert --pretrain --corpus {here}", "tokens.bin & cut short",
     copy("corpus", edit("tokens.bin", half))),
    ("albert --predict {here}/mine.tsv --init {tuned}/CoLA", "mine.tsv:1: no column is named",
     put("mine.tsv", "text\nA man sat.\n")),
    ("albert --predict {here}/p.CSV --init {tuned}/CoLA", "p.CSV: CoLA reads .tsv files",
     put("p.CSV", 'sentence\n"A man, ""old"", sat."\n')),
    ("data/prepare corpus --corpus {here}/a.txt --to {here}/to --workers 0", "--workers 0: & >= 1",
     LONG_TEXT),
    # weights
    (INIT, "config.json: not JSON", copy("albert", put("config.json", "[" * 100_000))),
    (INIT, "checkpoint.pt", copy("albert", edit("checkpoint.pt", half))),
    (INIT, "checkpoint.pt & checksum", copy("albert", edit("checkpoint.pt", flipped))),
    (INIT, "checkpoint.pt", copy("albert", put("checkpoint.pt", BOMB))),
    (INIT, "NaN or infinite", copy("albert", broken)),
    ("mformer --evaluate --init {albert}", "not a run folder of mformer.py"),
    ("mformer --train --images {here} --arch cosformer*", "train.npz: no such file & np.savez"),
    ("mformer --train --images {here} --arch cosformer*", "not an .npz file & data/README",
     put("train.npz", b"PK\3\4")),
    ("mformer --predict {here}/x.en", "--init is missing"),
    ("mformer --predict {here}/x.en --init {mformer}", "x.en: no such file"),
    (TUNED.replace("{albert}", "{tuned}"), "name one of its models"),
    (INIT, "safetensors", copy("hf", edit("model.safetensors", half))),
    (INIT, "lacks & hidden_size", copy("hf", put("config.json", {"vocab_size": 300}))),
    (INIT, "1.bin: no such file", copy("hf", drop("model.safetensors"),
     put("pytorch_model.bin.index.json", {"weight_map": {"a": "1.bin"}}))),
    (INIT, "pytorch_model.bin",
     copy("hf", drop("model.safetensors"), put("pytorch_model.bin", BOMB))),
    ("autotinybert --finetune CoLA --glue {glue} --init {hf}", "only bert and electra"),
    ("autotinybert --finetune CoLA --glue {glue} --init {albert}", "not a run folder of auto"),
    ("autotinybert --search --init {albert}", "not a run folder of autotinybert"),
    ("autobert_zero --describe --arch {here}/best.json", "best.json: no such file"),
    # folders
    ("albert --pretrain --corpus {corpus}", "process 7 on elsewhere", held),
    ("albert --export {here} --init {albert}", "not an empty folder", put("mine.txt", "")),
    ("autobert_zero --export {here}/mine.txt --init {autobert_zero}", "not an empty folder",
     put("mine.txt", "")),
    ("autobert_zero --export {here}/net.py --init {autobert_zero}", "already",
     put("net.pt", "theirs")),
    ("autobert_zero --export . --init {autobert_zero}", "not an empty folder"),
    ("albert --export {here}/hf --init {albert} --tokenizer {here}/vocab.txt", "other tokens",
     put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")),
    ("data/prepare demo --to {here}", "not empty", put("mine.txt", "")),
    ("data/prepare corpus --corpus {here}/a.txt --to {here} --vocab_size 40", "other files",
     LONG_TEXT, copy("corpus")),
    # would delete or overwrite what it reads, or what others wrote
    ("albert --pretrain --corpus {corpus} --init {here}/out --length 60 --restart", "contains",
     ALBERT),
    (TRAINED["albert"], "not a run folder", put("out/log.jsonl", "theirs")),
    (TUNED.replace("{glue}", "typo") + " --restart", "typo", copy("tuned", to="out")),  # mistyped
    (TRAINED["albert"] + " --restart", "not a run folder", copy("tuned", to="out")),
    # flags (more in test_cli.py)
    ("albert --pretrain --corpus {corpus} --device cuda:99", "device cuda:99"),
    ("albert --pretrain --corpus {corpus} --hidden 30 --heads 4", "hidden 30"),
    ("mformer --train --task wmt14 --init {mformer} --vocab_size 7", "--vocab_size & leave it out"),
    ("mformer --train --arch mformer --beam 2", "--beam & --task wmt14"),
    ("mformer --train --task wmt14 --arch mformer --cifar10 {cifar10}", "--cifar10 & --task cifar10"),
    ("mformer --train --arch mformer --layers 2", "--layers & --search"),
    (f"mformer --train --arch {ARCH}", "--task wmt14 fits it"),
    ("mformer --train --arch cosformer* --cifar10 {cifar10} --held_out 0 --weights lowest",
     "--held_out 0: & --weights lowest needs examples"),
    ("mformer --train", "--arch is missing"),
    (f"mformer --search {SEARCHES['mformer']} --layers 1 --ffn 16", "the rankers need 20"),
    (f"mformer --search {SEARCHES['mformer']} --latency_limit 1e-6",
     "the fastest architecture takes"),
    (f"autotinybert --search {SEARCHES['autotinybert']} --init {{autotinybert}}",
     "layers 2 of 2-24-40-4-24 is more than the 1 of 1-16-16-2-16"),
    ("autotinybert --search --speedup 2 --latency_limit 1", "give one of them"),
    ("autotinybert --search --proxy States-saved", "add --setting distill"),
    ("autotinybert --finetune CoLA --glue {glue} --init {autotinybert} --task_teacher {glue}",
     "config.json: no such file; --task_teacher is a run of --finetune CoLA"),
    ("autotinybert --search --proxy CoLA", "--proxy CoLA: choose from MLM-saved, States-saved and"),
    ("autotinybert --export small.py --init {autotinybert} --quantize --latency_device cuda",
     "--quantize: for CPUs"),
    ("autotinybert --export folder --init {autotinybert} --quantize", "name a file, FILE.py"),
    ("autotinybert --search --latency_limit 0", "--latency_limit 0.0: & > 0"),
    ("mformer --search --latency_limit 0", "--latency_limit 0.0: & > 0"),
    ("mformer --train --task wmt14 --languages fr fr", "--languages fr fr & two different"),
    ("autobert_zero --search --steps 0", "--steps 0"),
    ("autobert_zero --search --init_std 0.00001", "--init_std"),  # no graph passes D31
    ("autobert_zero --search --tasks ''", "choose from"),
    ("autobert_zero --search --arch bert", "--arch & --pretrain and --finetune"),
    ("albert --describe --layers 100000000000", "--layers & [1, 1000]"),
    ("mformer --describe --layers 100000000000", "--layers & [1, 1000]"),
    ("autotinybert --describe --arch 100000000000-96-384-6-96", "1000 layers"),
    ("albert --describe --hidden 10000000000 --heads 1", "out of memory"),
    ("albert --describe --hidden 100000000000000000000 --heads 1", "out of memory"),
    ("autobert_zero --describe --arch {here}/a.json", "a best.json", put("a.json", {})),
    ("autobert_zero --describe --arch {here}/a.json", "a best.json", put("a.json", 5)),
    ("autobert_zero --export {here}/net.py --init {here}", "autobert_zero.py --search --seed 7",
     put("config.json", STOPPED), put("checkpoint.pt", "")),
]


@pytest.fixture
def fails(ready, tmp_path, monkeypatch, capfd):
    """fails(command): the line on stderr of a command that ends with status 2."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(tmp_path)

    def run(command):
        has_none = command.startswith("data/") or " --export " in command or (
            " --describe " in command)
        place = "" if has_none else " --out {here}/out"
        assert call(filled(command + place, here=here, **ready), monkeypatch) == 2
        printed = capfd.readouterr().err
        assert "Traceback" not in printed
        line, = [line for line in printed.split("\n") if "error: " in line]
        return line
    run.here = here
    return run


def content(folder):
    """{path: bytes, or False for a folder}. A run's lock may appear."""
    paths = [path for path in folder.rglob("*") if path.name != "run.lock"]
    return {path: path.is_file() and path.read_bytes() for path in paths}


def left(out, before):
    """The files of a run in a new folder before its first step, {} unless the folder is new."""
    new = {} if out in before else content(out)
    assert {path.name for path in new if path.is_file()} <= PREPARED
    return {out: False, **new} if new else {}


@pytest.mark.parametrize("case", TABLE, ids=map(str, range(len(TABLE))))
def test_bad_input_ends_in_one_line_and_changes_no_file(case, fails, ready):
    command, said, *changes = case
    for change in changes:
        change(fails.here, ready)
    before = content(fails.here)
    line = fails(command)
    assert all(word in line for word in said.split(" & ")), line
    assert len(line) < 600
    assert content(fails.here) == before | left(fails.here / "out", before), "a file has changed"
    assert not (fails.here.parent / "bomb").exists()


@pytest.mark.parametrize("program, more", [
    ("albert", "--steps 60 --warmup 0"),
    ("autobert_zero", "--steps 60 --warmup 0"),
    ("autotinybert", "--further_steps 400 --save_every 1000 --eval_every 1000"),
])
def test_a_training_that_diverges_ends_in_one_line_before_it_saves(program, more, fails):
    """Checked at steps that save, or that log if no save follows for long."""
    line = fails(f"{TRAINED[program]} {more} --lr 1e30")
    assert re.search(r"diverged.* step ([1-6]|20)\b", line)
    for path in fails.here.rglob("checkpoint.pt"):
        weights = torch.load(path)["owned"]["model"].values()
        assert all(value.isfinite().all() for value in weights)


def test_the_corrected_command_takes_over_the_folder_of_a_mistake(fails, works, ready):
    command = TRAINED["albert"].replace("{corpus}", str(ready["corpus"].parent / "text.txt"))
    fails(f"{command} --vocab_size 300 --held_out 99999")
    works(f"{command} --vocab_size 300 --out {fails.here}/out")


def test_a_missing_file_is_told_before_demo_data_are_made(fails, monkeypatch):
    monkeypatch.delattr("data.inputs.make_demo")
    assert "no such file" in fails("autobert_zero --search --corpus {here}/none")


def test_a_vocabulary_of_equal_size_and_other_subwords_is_refused(ready, fails, works):
    text = (ready["corpus"].parent / "text.txt").read_text()
    write(fails.here / "text.txt", "\n".join(line[::-1] for line in text.split("\n")))
    works("data/prepare corpus --corpus here/text.txt --to here/other --vocab_size 300")
    command = "albert --pretrain --init {albert} --length 60 --corpus here/other"
    assert "spiece.model: other" in fails(f"{command} --tokenizer here/other/spiece.model")
