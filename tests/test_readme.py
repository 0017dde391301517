"""README.md, data/README.md and tests/claims/*.md: every command names files, actions and flags that exist, links lead
somewhere, the pages of claims say what the results say. tests/test_readme_run.py runs the commands.
"""
import importlib
import json
import re
import shlex
import subprocess

import pytest
from conftest import ROOT

from common import cli
from data import prepare
from tests.claims import study

PAPERS = ("autobert_zero", "autotinybert", "albert", "mformer")
PAGES = [ROOT / "README.md", ROOT / "data" / "README.md", *sorted((ROOT / "tests" / "claims").glob("*.md"))]


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


@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_of_claims_is_made_of_the_results(paper):
    page = (ROOT / "tests" / "claims" / f"{paper}.md").read_text(encoding="utf-8")
    assert page == study.page(paper) and not re.search(r"\{(Table|Sec|Figure|App)", page)
    assert all(f'<a id="{claim.name}">' in page for claim in study.CLAIMS[paper])


def test_a_result_judges_its_claim_and_without_one_it_is_not_run(tmp_path):
    def section(name):
        page = study.page("albert", tmp_path)
        return re.search(rf'^## [^\n]*<a id="{name}">.*?(?=^## )', page, re.DOTALL | re.MULTILINE).group()
    (tmp_path / "albert").mkdir()
    assert "**Not run.**" in section("order") and "Ours:" not in section("order") and "It takes:" in section("speed")
    record = {"claim": "Measured anew", "columns": ["a"], "rows": [[1.0]], "commit": "1234567890", "run_seconds": 120.0}
    for name, verdict in (("order", "holds: by 3 points [2, 4]"), ("smoothness", "not judged: one seed")):
        (tmp_path / "albert" / f"{name}.json").write_text(json.dumps({**record, "verdict": verdict}))
    assert "**Holds.** By 3 points [2, 4].\n" in section("order") and "Ours: " in section("order")
    assert "(at 1234567, its runs 2 min)" in section("order")
    assert "**Not judged.** One seed." in section("layers")
    (tmp_path / "albert" / "order-many.json").write_text(json.dumps({**record, "verdict": "does not hold: by 1 point"}))
    assert "**Holds in part.** By the first table it holds: by 3 points [2, 4].\n" in section("order")
    assert "*Measured anew.* Does not hold: by 1 point." in section("order")


def test_every_commit_that_a_result_names_is_in_the_history():
    """Here, not in a commit that was rewritten before it came here: whoever wants to know what ran can look at it."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("needs the whole history: git fetch --unshallow")
    known = git("rev-list", "HEAD").split()
    for path in study.RESULTS.rglob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        said = f"{record.get('commit')} {record.get('verdict')}"
        for commit in re.findall(r"\b(?=[0-9a-f]*\d)(?=[0-9]*[a-f])[0-9a-f]{7,40}\b", said):
            assert any(each.startswith(commit) for each in known), (path.name, commit)


def test_days_are_those_of_the_rehearsed_flops():
    """3 x 91.5 GFLOPs a row (albert.py's own count), 125,000 updates of 4,096 rows, 35% of 989 TFLOPs a second."""
    days = study.days_of("albert | base | pre-training, 64 rows of 512", 2, 4096 * 125_000)
    assert days == pytest.approx(3 * 91.543e9 * 4096 * 125_000 / (0.35 * 989e12) / 86400, rel=0.03)
    assert study.fill("{days: albert | base | pre-training, 64 rows of 512, 2 shards: 512e6}", "albert") == "4.8 days"
