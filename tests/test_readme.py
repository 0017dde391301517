"""README.md, data/README.md, MANUAL.md and tests/claims/*.md: every command names files, actions
and flags that exist, links lead somewhere. tests/test_readme_run.py runs the commands.
"""
import importlib
import json
import re
import shlex

import pytest
from conftest import ROOT, slow

import albert
from common import cli, distributed
from data import prepare

PAPERS = ("autobert_zero", "autotinybert", "albert", "mformer")
PAGES = [*(ROOT / name for name in ("README.md", "data/README.md", "MANUAL.md")),
         *sorted((ROOT / "tests" / "claims").glob("*.md"))]


def commands_of(path):
    """The commands of a page: lines of its code blocks up to three blanks, and what stands in backticks."""
    text = re.sub(r"\s*\\\n\s*", " ", path.read_text(encoding="utf-8"))
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"^(.*&& |srun \S+ )", "", re.split(r"\s{3,}|\s{2,}#", line)[0])
             for block in blocks for line in block.split("\n")]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [line for line in [*lines, *inline] if re.match(r"(python|torchrun|pytest) \S", line)]


COMMANDS = list(dict.fromkeys(line for page in PAGES for line in commands_of(page)))
OF_FILES = [line for line in COMMANDS if re.search(rf"(?<![/.])\b({'|'.join(PAPERS)})\.py", line)]
OF_CLAIMS = [line for line in COMMANDS if re.search(rf"-m tests\.claims\.({'|'.join(PAPERS)})\b", line)]
OTHERS = [line for line in COMMANDS if line not in (*OF_FILES, *OF_CLAIMS)]


def arguments(line):
    """(paper file, its arguments) of a command."""
    words = shlex.split(line)
    place = next(place for place, word in enumerate(words) if word.endswith(".py"))
    return words[place].removesuffix(".py"), words[place + 1:]


@pytest.mark.parametrize("line", [line for line in OF_FILES if "--help" not in line])
def test_commands_name_what_exists(line, monkeypatch):
    file, argv = arguments(line)
    module, found = importlib.import_module(file), []
    for place in (cli, module):
        monkeypatch.setattr(place, "start", lambda *handed, **others: found.append(handed), raising=False)
    module.main(argv)
    if argv:
        action, _, config = cli.parse(*found[0][:3], "a test", argv)
        assert action and config.given <= vars(config).keys()


@pytest.mark.parametrize("line", OF_CLAIMS)
def test_commands_of_claims_name_what_exists(line):
    """The study is there, and a flag is study.py's, the study's own or the paper file's."""
    words = shlex.split(line)
    paper = next(word for word in words if word.startswith("tests.claims.")).rpartition(".")[2]
    claims = importlib.import_module(f"tests.claims.{paper}")
    name = words[words.index(f"tests.claims.{paper}") + 1]
    assert name in (*claims.CLAIMS, "redraw", "page", "--help")
    config = importlib.import_module(paper).Config
    known = {"folders", "jobs", "seeds", "runs", "results", "help", *config.__dataclass_fields__}
    own = claims.CLAIMS[name].flags if name in claims.CLAIMS else ()
    assert [word for word in words if word.startswith("--") and word[2:] not in {*known, *own}] == []


@pytest.mark.parametrize("line", OTHERS)
def test_other_commands_name_what_exists(line):
    words = shlex.split(line.replace("PAPER", "albert"))
    scripts = [word.replace("FILE", "albert") for word in words if word.endswith(".py")]  # a page may speak of FILE.py
    assert all((ROOT / script).exists() for script in scripts)
    if words[1] == "data/prepare.py":
        prepare.parser().parse_args(words[2:])
    elif words[0] != "pytest" and "-m" not in words[:2]:
        source = "".join((ROOT / script).read_text(encoding="utf-8") for script in scripts if (ROOT / script).exists())
        assert all(f'"{word}"' in source for word in words if word.startswith("--"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    """To a file, and there to a heading or an anchor."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!http)([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            there = target.read_text(encoding="utf-8")
            titles = [re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
                      for title in re.findall(r"^#+ (.*)", there, re.MULTILINE)]
            assert f'<a id="{anchor}">' in there or anchor in titles, link


# --- the front page ---------------

FRONT = (ROOT / "README.md").read_text(encoding="utf-8")
def test_what_to_read_first_is_there():
    for paper, names in zip(PAPERS, re.findall(r"^\*\*Read first:\*\* (.*)\.$", FRONT, re.MULTILINE), strict=True):
        assert all(hasattr(importlib.import_module(paper), name) for name in re.findall(r"`(\w+)`", names)), names


COSTS = {  # flags of --describe, and how many such runs the front page's row is about
    "autobert_zero": ("--preset base --arch autobert-zero", 775),  # candidates of a search
    "autotinybert": ("--preset base --steps 586000", 1),  # 5 passes over 30 million sequences, 256 in a step
    "albert": ("--preset base --accumulate 64", 1),
    "mformer": ("--preset base", 1),
}


@pytest.mark.parametrize(
    "file", [slow(file) if file == "autotinybert" else file for file in PAPERS])
def test_costs_on_the_front_page_are_those_of_describe(file, capsys):
    flags, runs = COSTS[file]
    importlib.import_module(file).main(["--describe", *flags.split()])
    cost = json.loads(capsys.readouterr().out)
    row = next(line for line in FRONT.splitlines() if line.startswith(f"| `{file}.py`"))
    number, unit, memory = re.search(r"([\d.]+) (days|hours|minutes), (\d+) GB", row).groups()
    units = {"days": 1, "hours": 24, "minutes": 1440}
    assert float(number) == pytest.approx(cost["days"]["H100"] * runs * units[unit], rel=0.07)
    assert int(memory) == round(cost["memory_gb"]["total"])


def test_days_by_hand():
    """3 x 91.5 GFLOPs a sequence (albert.flops), 125,000 steps of 4,096, 35% of 989 TFLOPs a second."""
    cfg = albert.Config(**albert.PRESETS["base"], preset="base", accumulate=64)
    cost = distributed.training_cost(cfg, 0, albert.flops(cfg), [distributed.layer_activations(512, 768, 3072)] * 12,
                                     0, 125_000, 4096)
    days = 3 * 91.543e9 * 4096 * 125_000 / (0.35 * 989e12) / 86400
    assert cost["days"]["H100"] == pytest.approx(days, rel=0.01)
    # 34 bytes a number of the hidden states where ffn = 4 hidden: Korthikanti et al. 2022
    assert cost["memory_gb"]["activations"] == pytest.approx(64 * 12 * 512 * 34 * 768 / 1e9, rel=0.01)
