"""The commands of README.md, data/README.md and tests/claims/*.md run, where their paths are small files in the
official layouts; those of paper files with --dry_run, two real steps of every phase. The last of two flags counts:
SMALL makes networks small. Lines of torchrun run as one process. ONLY_PARSED says what does not run, and why."""
import functools
import glob
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from test_prepare import row, server, tar  # noqa: F401  (server: a fixture)
from test_readme import OF_CLAIMS, OF_FILES, OTHERS, PAPERS, arguments

from data import download, prepare
from tests.claims import study

ONLY_PARSED = {  # beginning of a command: why it does not run here
    "pytest": "would run this file",
    "python tests/bench.py": "minutes to hours of timing; tests/test_bench.py runs each part at its smallest size",
    "python tests/kills.py": "minutes of kills; tests/test_kills.py runs it with few",
    "python tests/test_rehearsal.py": "half an hour; the slow tests of that file run the same phases",
}
MADE_BY = {  # what a command starts from: the command that makes it
    "path/to/prepared": "python data/prepare.py corpus --corpus path/to/texts --to path/to/prepared",
    "corpora/wikibooks": "python data/prepare.py corpus --corpus path/to/texts --to corpora/wikibooks",
    "corpora/mine/spiece.model": "python data/prepare.py corpus --corpus texts/ --to corpora/mine",
    "path/to/bert": "python autotinybert.py --export path/to/bert --init runs/tiny",
    "path/to/electra-base-discriminator":
        "python autotinybert.py --export path/to/electra-base-discriminator --init runs/tiny",
    "my/teacher": "python autotinybert.py --export my/teacher --init runs/tiny",
    "runs/tiny": "python autotinybert.py --further_train --arch 2-24-48-2-24 --corpus path/to/texts --out runs/tiny",
    "runs/super": "python autotinybert.py --further_train --arch 3-48-192-8-48 --corpus path/to/texts --out runs/super",
    "path/to/albert-base-v2": "python albert.py --export path/to/albert-base-v2 --init runs/small",
    "path/to/albert-xxlarge-v2": "python albert.py --export path/to/albert-xxlarge-v2 --init runs/small",
    "runs/small": "python albert.py --pretrain --preset base --corpus path/to/prepared --out runs/small",
    "runs/16": "python albert.py --pretrain --length 16 --batch 64 --lr 0.08 --steps 4500 --out runs/16",
    "runs/64": "python albert.py --pretrain --init runs/16 --out runs/64",
    "runs/autobert_zero-search-base":
        "python autobert_zero.py --search --preset base --corpus path/to/prepared --glue path/to/glue",
    "runs/pre": "python autobert_zero.py --pretrain --corpus path/to/corpus --out runs/pre",
    "runs/autobert_zero-search-demo": "torchrun autobert_zero.py --search",
    "runs/autobert_zero-pretrain-demo": "python autobert_zero.py --pretrain --corpus my/texts --arch bert",
    "runs/autotinybert-search-demo": "python autotinybert.py --search --speedup 7.2",
    "runs/mformer-search-cifar10-demo": "python mformer.py --search",
    "runs/mformer-train-cifar10-demo": "python mformer.py --train --arch runs/mformer-search-cifar10-demo/best.json",
}
SMALL = {  # pattern of commands: flags behind them
    r"--corpus (my/|texts|path/to/(corpus|novels|texts))|--train_text": "--vocab_size 200",
    r"--corpus texts/wiki": "--vocab_size 200",
    r"albert.py --pretrain .*(--preset|--vocab_size)": "--layers 2 --hidden 16 --heads 2 --ffn 32 --embedding 8 "
                                                       "--length 64 --batch 128 --dev_rows 16",
    r"albert.py --finetune .*--preset": "--finetune_length 64 --finetune_batch 8",
    r"autobert_zero.py --(search|pretrain) --preset": "--layers 2 --hidden 16 --heads 2 --ffn 32 --length 16 --batch 4",
    r"autotinybert.py --(?!finetune|describe).*(--preset|--setting|--strategy|--latency_device|--out)":
        "--largest 2-24-48-2-24 --smallest 1-24-24-2-24 --reference 2-24-48-2-24 --length 16 --batch 16 --speedup 0.2",
    r"autotinybert.py --finetune": "--finetune_length 64",
    r"--preset base --cifar10": "--layers 1 2 --hidden 16 --ffn 16 32 48 --heads 1 2 --image 32 --batch 8 "
                                "--cost flops",
    r"--preset base --task wmt14": "--layers 1 2 --hidden 16 --ffn 16 32 --heads 1 2 --qkv 16 --decoder_layers 1 "
                                   "--connect 1 --length 64 --batch 600",
    r"--task wmt14": "--cost flops",  # times of so few networks are alike, and noise may put all above the limit
}
SLOW = (r"^(?!.*(path/to/(?!folder)|my/|corpora/)).*(autobert_zero|autotinybert|albert|mformer).py|"  # on the demo data
        r"--task wmt14|--preset long|--layers (6|12)|--search .*(--population|--strategy)")


def cut(source, target, end, keep):
    """Copy a text file as far as the `keep`th `end`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(end.join(source.read_text(encoding="utf-8").split(end)[:keep]) + end, encoding="utf-8")


def few_questions(source, target):
    """Copy the first questions of one of SQuAD's files."""
    content = json.loads(source.read_text(encoding="utf-8"))
    articles = [{**article, "paragraphs": article["paragraphs"][:2]} for article in content["data"][:6]]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({**content, "data": articles}))


def make_tasks(home, demo):
    """GLUE, SQuAD and RACE."""
    for file in (demo / "glue").rglob("*.tsv"):
        for folder in ("path/to/glue", "my/glue"):
            cut(file, home / folder / file.relative_to(demo / "glue"), "\n", 40)
    for file in (home / "path/to/glue/RTE").iterdir():  # WNLI has its layout, but for the labels
        (home / "path/to/glue/WNLI").mkdir(exist_ok=True)
        text = file.read_text(encoding="utf-8").replace("not_entailment", "0").replace("entailment", "1")
        (home / "path/to/glue/WNLI" / file.name).write_text(text, encoding="utf-8")
    for folder in ("path/to", "."):
        for file in (demo / "squad").glob("*.json"):
            few_questions(file, home / folder / "squad" / file.name)
        for file in (demo / "race").rglob("1?.txt"):
            cut(file, home / folder / "race" / file.relative_to(demo / "race"), "\n", 9)


def make_text(home, demo):
    """Corpora and parallel text."""
    for folder in ("path/to/corpus", "path/to/novels", "path/to/texts", "my/texts", "texts", "texts/wiki", "texts/books"):
        cut(demo / "corpus" / "language.txt", home / folder / "1.txt", "\n\n", 50)
    for prefix, endings in (("path/to/", "en de"), ("wmt14/", "en de"), ("my/pairs/", "fr it")):
        for part, rows in (("train", 400), ("valid", 60), ("test", 60)):
            name = prefix + ("val" if prefix + part == "path/to/valid" else part)
            for theirs, ours in zip(("en", "de"), endings.split()):
                cut(demo / "translation" / f"{part}.{theirs}", home / f"{name}.{ours}", "\n", rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory, demo):
    """A folder with what the commands name: the demo data, whose layouts are the official ones, cut short."""
    home, demo = tmp_path_factory.mktemp("home"), Path(demo["corpus"]).parent
    make_tasks(home, demo)
    make_text(home, demo)
    for folder in ("path/to/cifar10", "path/to/cifar-10-batches-bin", "my/pictures"):
        (home / folder).mkdir(parents=True)
        for file in (demo / "cifar10").iterdir():
            (home / folder / file.name).write_bytes(file.read_bytes()[:60 * 3073])
    return home


@pytest.fixture
def run(home, monkeypatch, capsys):
    """Run a command in the folder `home`, and before it what makes what it starts from. That of a paper file
    leaves the result of a finished run, what it exports, or JSON on the screen."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)  # tests/test_flow.py compiles

    def files():
        return {(path, path.stat().st_mtime_ns) for path in home.rglob("*") if path.is_file()}

    def work(line, *more):
        words = shlex.split(line)
        for flag, word in zip(words, words[1:]):
            source = word.removesuffix("/best.json")
            if flag in ("--to", "--export") and "download" not in line:
                shutil.rmtree(word, ignore_errors=True)  # what another command has made there
            elif flag != "--out" and source in MADE_BY and not Path(source).exists():
                work(MADE_BY[source])
        small = [flag for pattern, flags in SMALL.items() if re.search(pattern, line) for flag in flags.split()]
        if "data/prepare.py" in line:
            found = [path for word in words[2:] for path in sorted(glob.glob(word)) or [word]]  # as a shell does
            monkeypatch.setattr(sys, "argv", ["prepare.py", *found, *small, *map(str, more)])
            return prepare.main()
        (file, argv), before, _ = arguments(line), files(), capsys.readouterr()
        dry = [] if re.search("--(export|describe) ", line) else ["--dry_run"]
        assert importlib.import_module(file).main([*argv, *small, *dry]) == 0
        made = {path.name for path, _ in files() - before}
        finished = made & {"done.json", "predictor.pt"} if dry else made
        assert finished or json.loads(capsys.readouterr().out)["parameters"]
        for folder in Path("runs").glob("*-dry"):  # the next command finds it by the name that it has on the page
            if not (known := folder.with_name(folder.name.removesuffix("-dry"))).exists():
                known.symlink_to(folder.name)
    return work


def cases(lines):
    return [pytest.param(line, marks=pytest.mark.slow if re.search(SLOW, line) else (), id=line) for line in lines]


@pytest.mark.parametrize("line", cases(line for line in OF_FILES if "--help" not in line))
def test_commands_of_paper_files_run(line, run):
    run(line)


@pytest.mark.parametrize("line", cases(line for line in OTHERS if re.search("prepare.py (?!download|hub)", line)))
def test_commands_that_prepare_data_run(line, run, home, capsys):
    run(line)
    made = re.search(r"--to (\S+)", line)
    assert capsys.readouterr().out and (not made or [*home.glob(f"{made[1].rstrip('/')}*")])


def official(file, home):
    """What stands for a file of the table of downloads: an archive, in the official one's layout, of what is in
    `home`."""
    to = home / "path/to"
    if file.data_set == "squad":
        return (to / "squad" / file.name).read_bytes()
    if file.holds in ("MRPC", "diagnostic"):
        return b"7\t8\n" if "ids" in file.name else b"Quality\tID\tID\tA\tB\r\n1\t7\t8\tOne.\tTwo.\r\n"
    if file.data_set == "wmt14":
        return tar({name: b'<seg id="1"> One. </seg>' if name.endswith("sgm") else b"One.\n"
                    for name in file.holds.split()[1:]})
    if file.url.startswith("https://huggingface.co"):
        return b"{}"
    folder = to / (f"glue/{file.holds}" if file.data_set == "glue" else file.data_set)
    return tar({f"top/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()})


@pytest.mark.parametrize("line", cases(line for line in OTHERS if "prepare.py download" in line))
def test_commands_that_download_run(line, run, home, server, monkeypatch, tmp_path, capsys):  # noqa: F811
    """From a server on this machine."""
    table = [row(server, file.data_set, file.name, official(file, home), file.holds) for file in download.FILES]
    monkeypatch.setattr(prepare, "download", functools.partial(download.download, files=table))
    run(line, "--to", tmp_path)
    assert capsys.readouterr().out.count(": complete") == len(re.search("download (.*?)(?: --|$)", line)[1].split())


@pytest.mark.parametrize("paper", PAPERS)
def test_without_an_action_the_help_is_printed(paper, capsys):
    assert importlib.import_module(paper).main([]) == 0 and "--describe" in capsys.readouterr().out


def test_what_is_only_parsed_is_on_a_page_and_nothing_else_is_left_out():
    parsed = [line for line in OTHERS if line.startswith(tuple(ONLY_PARSED))]
    assert {line for line in OTHERS if "data/prepare.py" not in line} == {*parsed, "python FILE.py"}
    assert all(any(line.startswith(beginning) for line in parsed) for beginning in ONLY_PARSED)
    for file, word in re.findall(r"pytest (\S+) -k (\w+)", "\n".join(parsed)):
        assert re.search(rf"^def test_\w*{word}", (ROOT / file).read_text(), re.MULTILINE), word


# --- studies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", OF_CLAIMS)
def test_studies_are_run_by_a_test(line, monkeypatch, capsys):
    """At the smallest size, by the tests of the paper's file; here the pages and the list of studies."""
    paper, name = re.search(r"tests\.claims\.(\w+) (\S+)", line).groups()
    claims, written = importlib.import_module(f"tests.claims.{paper}").CLAIMS, {}
    monkeypatch.setattr(study, "write_atomic", lambda path, text: written.update({path: text}))
    if name == "page":
        study.main(paper, claims, [name])
        (path, text), = written.items()
        assert path.name == f"{paper}.md" and path.read_text(encoding="utf-8") == text
    elif name == "--help":
        with pytest.raises(SystemExit):
            study.main(paper, claims, [name])
        said = capsys.readouterr().out
        assert all(name in said for name in claims)
    else:
        tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob(f"test_{paper}*.py"))
        called = rf'claim(ed)?\("{name}"|\("{name}", \[|"name", .*"{name}"|^ +.*\("{name}", .*\),?$'
        assert re.search(called, tests, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("paper, name", [("autobert_zero", "counts"), ("autotinybert", "space"), ("albert", "flops"),
                                         ("mformer", "counts"), ("mformer", "shape")])
def test_claims_that_count_run(paper, name, tmp_path):
    ran = subprocess.run([sys.executable, "-m", f"tests.claims.{paper}", name, "--results", tmp_path], cwd=ROOT,
                         capture_output=True, text=True)
    assert ran.returncode == 0 and (tmp_path / f"{name}.json").exists(), ran.stderr
