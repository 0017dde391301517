"""Damaged files of every kind that is read: flipped bits, cut, swapped, doubled and lost parts, values of other kinds
in JSON. A command on them ends with the right result or in one clear line. Case n is drawn from seed n.

Text that was damaged and is still text (a sentence, a number in a table, weights without a checksum) is another input:
any result is right. What has a checksum (checkpoints, token files) must give the result of the undamaged files.
"""
import json
import random
import re
import shutil

import pytest
from test_bad_input import ARCH, FEW, PIECES, TRAINED, TUNED, call, limited, put, ready, the_line, tuning  # noqa: F401

CASES = 450
NASTY = (None, True, -1, 0, 10 ** 12, 10 ** 400, 1.5, float("nan"), "", "x", "\ud800", [], {}, [[]], ["x"], [-1])


def ground(*sources, **written):
    """The undamaged input: copies of ready folders, and files."""
    def make(here, ready):
        for source in sources:
            source, _, inside = source.partition(" as ")
            shutil.copytree(ready[source], here / inside, dirs_exist_ok=True)
        for name, content in written.items():
            put(name.replace("_", "."), content)(here, ready)
    return make


STARTED = {program: f"{program} --finetune CoLA --glue {{glue}} --init {{here}}" for program in TRAINED}
STARTED["albert"] += f" {FEW}"
STARTED["mformer"] = "mformer --evaluate --task wmt14 --test_text {pairs}/train --init {here}"
MODELS = ("albert", "autobert_zero", "autotinybert")

# (command, the undamaged input, files that are damaged, whether what comes out must not change)
KINDS = [
    (tuning("STS-B"), ground("glue"), ("STS-B/train.tsv", "STS-B/dev.tsv"), False),
    (tuning("SQuAD2.0"), ground("squad"), ("train-v2.0.json", "dev-v2.0.json"), False),
    (tuning("RACE"), ground("race"), ("train/high/0.txt", "dev/middle/0.txt"), False),
    ("mformer --train --task wmt14 --train_text {here}/train --vocab_size 120 --steps 1 --batch 64 --held_out 4 "
     "--length 40 --arch " + ARCH, ground("pairs"), ("train.en", "train.de"), False),
    ("mformer --train --cifar10 {here} --steps 1 --batch 4 --held_out 4 --layers 1 --hidden 16 --ffn 16 --heads 1 "
     "--arch 'layers=1 hidden=16 ffn=16 heads=1 types=linear'", ground("cifar10"), ("data_batch_1.bin",), False),
    *((TRAINED[program].replace("{corpus}", "{here}"), ground("corpus"),
       ("meta.json", "tokens.bin", "sentences.bin", "documents.bin", "spiece.model"), True) for program in MODELS),
    (TRAINED["autobert_zero"].replace("{corpus}", "{here}/a.text --tokenizer {here}/vocab.txt"),
     ground(a_text="A man sat on a mat. He saw a cat.\n\n" * 40, vocab_txt=PIECES), ("a.text", "vocab.txt"), False),
    *((STARTED[program], ground(program), ("config.json", "checkpoint.pt", "spiece.model"), False)
      for program in ("albert", "autobert_zero", "mformer")),
    (STARTED["autotinybert"], ground("autotinybert"), ("model/config.json", "model/checkpoint.pt"), False),
    (STARTED["albert"], ground("hf"), ("config.json", "model.safetensors", "tokenizer_config.json"), False),
    *((TRAINED[program], ground(f"{program} as out"), ("out/config.json", "out/done.json"), False)
      for program in TRAINED),
    (TRAINED["albert"], lambda here, ready: (ground("albert as out")(here, ready),
                                             (here / "out/done.json").unlink()), ("out/checkpoint.pt",), True),
    (TUNED, lambda here, ready: (ground("tuned as out")(here, ready), (here / "out/done.json").unlink()),
     ("out/jobs/CoLA-0.json", "out/config.json"), False),
    ("autobert_zero --describe --arch {here}/best.json", ground(best_json={"arch": "bert"}), ("best.json",), False),
    ("data/prepare corpus --corpus {here}/a.text --vocab_size 19 --to {here}/out",
     ground(a_text="A man sat on a mat. He saw a cat.\n\n" * 40), ("a.text",), False),
]


def damage_bytes(content, rng):
    """One to three flipped bits, or a part that is cut off, lost, swapped with another or overwritten."""
    size = len(content)
    a, b, c = sorted(rng.randrange(size + 1) for _ in range(3))
    return rng.choice((
        lambda: content[:a], lambda: content[:a] + content[b:], lambda: b"",
        lambda: content[:a] + content[b:c] + content[a:b] + content[c:],
        lambda: content[:a] + rng.randbytes(min(64, b - a)) + content[a + min(64, b - a):],
        lambda: flip(content, rng), lambda: flip(content, rng), lambda: flip(content, rng)))()


def flip(content, rng):
    content = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def damage_value(value, rng):
    """JSON of which one value anywhere has become another, or is gone."""
    places = []

    def walk(inside):
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            places.append((inside, key))
            if isinstance(inside[key], (dict, list)):
                walk(inside[key])
    walk(value)
    inside, key = rng.choice(places or [([value], 0)])
    if rng.random() < 0.2:
        del inside[key]
    else:
        inside[key] = rng.choice(NASTY)
    return json.dumps(value).encode()


def outcome(here):
    """What a run left behind that says what came out; times aside."""
    texts = [path.read_text() for path in sorted((here / "out").rglob("done.json"))]
    return [re.sub(r'"(seconds|tokens_s|tok_s)": [^,}]*', "", text) for text in texts]


UNDAMAGED = {}  # {kind: what comes out of the undamaged input}


def run_once(kind, here, ready, monkeypatch):
    command = KINDS[kind][0]
    place = "" if command.startswith("data/") or "--describe" in command else f" --out {here}/out"
    return call(command.format(here=here, **ready) + place, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CASES))
def test_a_damaged_file_gives_the_right_result_or_one_line(  # noqa: F811
        seed, ready, limited, tmp_path, monkeypatch, capfd):
    rng = random.Random(seed)
    kind = seed % len(KINDS)
    _, make, names, same = KINDS[kind]
    monkeypatch.chdir(tmp_path)
    if same and kind not in UNDAMAGED:
        make(tmp_path / "whole", ready)
        assert run_once(kind, tmp_path / "whole", ready, monkeypatch) == 0
        UNDAMAGED[kind] = outcome(tmp_path / "whole")
        capfd.readouterr()
    here = tmp_path / "here"
    here.mkdir()
    make(here, ready)
    path = here / rng.choice(names)
    before = path.read_bytes()
    as_json = path.suffix == ".json" and rng.random() < 0.6
    path.write_bytes(damage_value(json.loads(before), rng) if as_json else damage_bytes(before or b"\0", rng))
    status = run_once(kind, here, ready, monkeypatch)
    printed = capfd.readouterr().err
    if status == 2:
        assert len(the_line(printed)) < 1000
    else:
        assert status == 0 and "Traceback" not in printed
        assert not same or outcome(here) == UNDAMAGED[kind] or path.read_bytes() == before
