"""README.md, data/README.md, MANUAL.md, EXERCISES.md, tests/claims/*.md and tests/bench.py: every
command names files, actions and flags that exist, links lead somewhere. tests/test_readme_run.py
runs the commands of the pages."""
import importlib
import json
import re
import shlex
from itertools import product
from pathlib import Path

import bench
import pytest
from conftest import ROOT, slow
from small_runs import ALONE, write
from torch.testing import assert_close

import albert
import autobert_zero as abz
from common import cli, launch
from data import prepare
from data.images import Pictures, load_cifar10, read_npz

PAPERS = ("autobert_zero", "autotinybert", "albert", "mformer")
PAGES = [
    ROOT / "README.md",
    ROOT / "data/README.md",
    ROOT / "MANUAL.md",
    ROOT / "EXERCISES.md",
    ROOT / "tests/claims/README.md",
]
FRONT = PAGES[0].read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands_of(path):
    """The commands of a page: in its code blocks, up to three blanks, and in backticks."""
    text = re.sub(r"\s*\\\n\s*", " ", path.read_text(encoding="utf-8"))
    lines = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    for line in "\n".join(BLOCK.findall(text)).split("\n"):
        line = re.split(r"\s{3,}|\s{2,}#", line)[0]
        lines.append(re.sub(r"^(.*&& |srun \S+ )", "", line))
    return [line for line in lines if re.match(r"(python|torchrun|pytest) \S", line)]


COMMANDS = sorted({line for page in PAGES for line in commands_of(page)})
COMMANDS += filter(None, (bench.DRY + bench.TRAININGS).split("\n"))
OF_FILES = [
    line
    for line in COMMANDS
    if re.search(rf"(?<![/.])\b({'|'.join(PAPERS)})\.py", line)
]
OTHERS = [line for line in COMMANDS if line not in OF_FILES]


def arguments(line):
    """(paper file, its arguments) of a command."""
    words = shlex.split(line)
    while not words[0].endswith(".py"):
        words.pop(0)
    return words[0].removesuffix(".py"), words[1:]


@pytest.mark.parametrize("line", [line for line in OF_FILES if "--help" not in line])
def test_commands_name_what_exists(line, monkeypatch):
    file, argv = arguments(line)
    module = importlib.import_module(file)

    def start(config_class, presets, actions, *more, **others):
        if argv:
            assert cli.parse(config_class, presets, actions, "a test", argv)[0]
    for place in (cli, module):
        monkeypatch.setattr(place, "start", start, raising=False)
    module.main(argv)


@pytest.mark.parametrize("line", OTHERS)
def test_other_commands_name_what_exists(line):
    """Scripts exist, and so do the flags of data commands."""
    words = shlex.split(line.replace("FILE", "albert"))
    assert all((ROOT / word).exists() for word in words if word.endswith(".py"))
    if words[1] == "data/prepare.py":
        prepare.parser().parse_args(words[2:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    """To a file, and a heading or an anchor there."""
    text = page.read_text("utf-8")
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        if not anchor:
            continue
        there = target.read_text("utf-8")
        titles = "\n".join(re.findall(r"^#+ (.*)", there, re.MULTILINE))
        titles = re.sub(r"[^\w\n -]", "", titles)
        known = titles.lower().replace(" ", "-").split("\n")
        assert anchor in known or f'<a id="{anchor}">' in there, anchor


@pytest.mark.parametrize("file, flags, runs", [
    ("autobert_zero", "--arch autobert-zero --steps 40000 --batch 160", 775),  # candidates
    slow("autotinybert", "--steps 586000", 1),  # 5 epochs of 30 million sequences
    ("albert", "--accumulate 64", 1),
    ("mformer", "", 1),
])
def test_costs_on_the_front_page_are_those_of_describe(file, flags, runs, capsys):
    importlib.import_module(file).main(["--describe", "--preset", "base", *flags.split()])
    cost = json.loads(capsys.readouterr().out)
    row = re.search(rf"^\| `{file}.py`.*", FRONT, re.MULTILINE)[0]
    number, unit, memory = re.search(r"([\d.]+) (days|hours|minutes), (\d+) GB", row).groups()
    per_day = {"days": 1, "hours": 24, "minutes": 1440}[unit]
    expected = cost["days"]["H100"] * runs * per_day
    assert float(number) == pytest.approx(expected, rel=0.07)
    assert int(memory) == round(cost["memory_gb"]["total"])


def test_days_of_fine_tuning_on_the_front_page():
    """775 candidates, three passes over the training examples of GLUE without WNLI."""
    cfg = abz.Config()
    cost = abz.count(abz.read_arch(cfg.arch, cfg.layers), cfg)
    seconds = 3 * cost["flops"] * 3 * 949_098 / (launch.UTILIZATION * 989e12)
    days, = re.findall(r"and ([\d.]+) days of fine-tuning", FRONT)
    assert float(days) == pytest.approx(775 * seconds / 86400, rel=0.02)


def test_days_and_memory():
    """3 x 91.5 GFLOPs per sequence (albert.flops), 125,000 steps of 4,096, 35% of 989 TFLOP/s. And
    34 bytes per number of the hidden states if ffn = 4 hidden: Korthikanti et al. 2022."""
    cfg = albert.Config(**albert.PRESETS["base"], preset="base", accumulate=64)
    layers = [launch.layer_activations(512, 768, 3072)] * 12
    cost = launch.training_cost(
        cfg,
        parameters=0,
        flops=albert.flops(cfg),
        activations=layers,
        logits=0,
        steps=125_000,
        examples=4096
    )
    days = 3 * 91.543e9 * 4096 * 125_000 / (0.35 * 989e12) / 86400
    activations = 64 * 12 * 512 * 34 * 768 / 1e9
    assert cost["days"]["H100"] == pytest.approx(days, rel=0.01)
    assert cost["memory_gb"]["activations"] == pytest.approx(activations, rel=0.01)


@pytest.mark.parametrize("page", ["README.md", "MANUAL.md"])
def test_python_of_the_pages_runs(page, ready, works):
    """A model of albert.py, sentence states of a trained one, and a network of mformer.py."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {}
    if page == "MANUAL.md":
        works("mformer --train --cifar10 {cifar10} --arch 'layers=1 hidden=16 ffn=16 heads=1 "
              "types=linear' --batch 8 --steps 1 --device cpu")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code.replace("runs/128", str(ready["albert"])), names)
    if page == "README.md":
        assert all(value.isfinite().all() for value in names["model"].parameters())
    else:
        assert names["states"].shape[:2] == names["ids"].shape
        check_images(names, ready["cifar10"])


def check_images(names, folder):
    """The manual's lines about a network for images normalise as --predict does."""
    images, _ = load_cifar10(folder, "test")
    expected = Pictures(ALONE, 32, names["spec"]).pixels(images)
    assert_close((images / 255 - names["mean"]) / names["deviation"], expected)
    assert names["logits"].shape == (2, 10)
    assert {*names["classes"]} <= {*names["spec"]["classes"]}


def python_of_data(word):
    """The Python code on data/README.md that has a word."""
    text = (ROOT / "data/README.md").read_text(encoding="utf-8")
    code, = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in code]
    return code


def test_the_lines_that_cut_the_licence_of_a_book():
    book = ("Licence.\n*** START OF THE PROJECT GUTENBERG EBOOK A\nLONG TITLE ***\n\n"
            "A cat *** sat.\n\n***END OF THE PROJECT GUTENBERG EBOOK A ***\nLicence.\n")
    write("gutenberg/1.txt", book.replace("\n", "\r\n"))
    exec(python_of_data("gutenberg"), {})
    assert Path("my/books/1.txt").read_text() == "A cat *** sat.\n"


def test_the_lines_that_make_npz_files_of_pictures(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    monkeypatch.chdir(tmp_path)
    for split, label in product(("train", "test"), ("cat", "dog")):
        folder = tmp_path / "photos" / split / label
        folder.mkdir(parents=True)
        image.new("L", (60, 40)).save(folder / "1.png")
    code = python_of_data("PIL")
    assert code.count("\n") <= 8
    exec(code, {})
    for split in ("train", "test"):
        images, labels = read_npz(tmp_path / "my" / "pictures" / f"{split}.npz")
        assert images.shape == (2, 3, 48, 48)
        assert labels.tolist() == ["cat", "dog"]
