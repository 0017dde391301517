"""README.md: every command names files, actions and flags that exist, and the demo's commands run."""
import importlib
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

from common import cli

TEXT = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
LINES = [re.split(r"\s{3,}", line)[0] for block in BLOCKS for line in re.sub(r" {2,}(?=--)", " ", block).split("\n")
         if re.match(r"(python|torchrun) ", line)]
PAPERS = [line for line in LINES if re.search(r"\b(autobert_zero|autotinybert|albert|mformer)\.py", line)]


def arguments(line):
    """(paper file, its arguments) of a command."""
    words = shlex.split(line)
    place = next(place for place, word in enumerate(words) if word.endswith(".py"))
    return words[place].removesuffix(".py"), words[place + 1:]


def test_the_front_page_is_a_page():
    assert TEXT.count("\n") <= 220 and len(TEXT.encode()) <= 18_000 and len(PAPERS) > 20


@pytest.mark.parametrize("line", PAPERS)
def test_commands_name_what_exists(line, monkeypatch):
    file, argv = arguments(line)
    module, found = importlib.import_module(file), []
    for place in (cli, module):
        monkeypatch.setattr(place, "start", lambda *handed, **others: found.append(handed), raising=False)
    module.main(argv)
    action, _, config = cli.parse(*found[0][:3], "a test", argv)
    assert action and config.given <= vars(config).keys()


@pytest.mark.parametrize("line", [line for line in LINES if line not in PAPERS and "--help" not in line])
def test_other_commands_name_what_exists(line):
    words = shlex.split(line)
    assert (ROOT / words[1]).exists()
    known = subprocess.run([sys.executable, ROOT / words[1], words[2], "--help"], capture_output=True, text=True).stdout
    assert all(word in known for word in words if word.startswith("--"))


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)]+)\)", TEXT)
    assert len(links) > 4 and all((ROOT / link).exists() for link in links)


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in PAPERS if not re.search(r"--preset (?!demo)|path/to|runs/", line)])
def test_the_demo_commands_run(line, tmp_path, demo):
    file, argv = arguments(line)
    ran = subprocess.run([sys.executable, ROOT / f"{file}.py", *argv, "--dry_run", "--out", tmp_path / "run"],
                         capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
