"""The departures from the papers: the section of MANUAL.md and the counts of README.md, from the
comments "# D4 (silent): ..." of the paper files. python -m tests.departures writes both. A * marks
a departure from the official code.

silent: the paper does not say. conflict: the paper, its code, or two places of one of them
disagree. ours: a choice of this repository."""
import re
import textwrap
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("autobert_zero.py", "autotinybert.py", "albert.py", "mformer.py")
KINDS = ("silent", "conflict", "ours")
# the first sentence, or its part before a semicolon
FIRST = re.compile(r".*?((?<!App)\.(?= [A-Z])|(?=; )|$)")
SECTION = re.compile(r"(<!-- departures -->\n).*(<!-- end -->\n)", re.DOTALL)


def departures(text):
    """[(number, kind, text)] of a file's comments that begin with D and a number, in order. A
    comment continues in the next comment lines, up to the next departure."""
    result = []
    follows = False
    for line in text.split("\n"):
        comment = re.search(r"# (D(\d+)\*?(?: \((\w+)\))?: .*)", line)
        more = re.fullmatch(r"\s*# (?!-)(.*)", line)
        if comment:
            words, number, kind = comment.groups()
            result.append((int(number), kind, [words]))
        elif more and follows:
            result[-1][2].append(more[1])
        follows = bool(comment or more and follows)
    return [(number, kind, " ".join(lines)) for number, kind, lines in result]


def manual():
    """The lists of all files, with the first sentence of each departure."""
    lists = []
    for name in FILES:
        found = departures((ROOT / name).read_text(encoding="utf-8"))
        items = [f"- {FIRST.match(text)[0].rstrip('.')}.\n" for *_, text in sorted(found)]
        lists.append(f"\n### {name}\n\n{''.join(items)}")
    return "".join(lists) + "\n"


def front():
    """The number of departures of each kind in each file."""
    texts = []
    for name in FILES:
        found = departures((ROOT / name).read_text(encoding="utf-8"))
        kinds = Counter(kind for _, kind, _ in found)
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
        texts.append(f"`{name}` {len(found)} ({counts})")
    return textwrap.fill(f"{'; '.join(texts)}.", 120) + "\n"


PAGES = {"MANUAL.md": manual, "README.md": front}


def written(page):
    """(the text of a page, the text with the section as it should be)."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = PAGES[page]()
    return text, SECTION.sub(lambda match: match[1] + section + match[2], text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written(page)[1], encoding="utf-8")
