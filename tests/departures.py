"""The section "Departures from the papers" of MANUAL.md, from the comments "# D4: ..." of the paper
files. python -m tests.departures writes it. A * marks a departure from the official code."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("autobert_zero.py", "autotinybert.py", "albert.py", "mformer.py")
# the first sentence, or its part before a semicolon
FIRST = re.compile(r".*?((?<!App)\.(?= [A-Z])|(?=; )|$)")
SECTION = re.compile(r"(<!-- departures -->\n).*(<!-- end -->\n)", re.DOTALL)


def departures(text):
    """{number: text} of a file's comments that begin with D and a number, in order. A comment
    continues in the next comment lines, up to the next departure."""
    result = []
    follows = False
    for line in text.split("\n"):
        comment = re.search(r"# D(\d+)(\*?): (.*)", line)
        more = re.fullmatch(r"\s*# (?!-)(.*)", line)
        if comment:
            number, star, words = comment.groups()
            result.append((int(number), [f"D{number}{star}: {words}"]))
        elif more and follows:
            result[-1][1].append(more[1])
        follows = bool(comment or more and follows)
    return [(number, " ".join(lines)) for number, lines in result]


def section():
    """The lists of all files, with the first sentence of each departure."""
    lists = []
    for name in FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        if f"grep -n '# D[0-9]' {name}" in text:
            firsts = [FIRST.match(words)[0].rstrip(".") for _, words in sorted(departures(text))]
            items = [f"- {first}.\n" for first in firsts]
            lists.append(f"\n### {name}\n\n{''.join(items)}")
    return "".join(lists) + "\n"


def written(manual):
    """The text of MANUAL.md with the section as it should be."""
    return SECTION.sub(lambda match: match[1] + section() + match[2], manual)


if __name__ == "__main__":
    path = ROOT / "MANUAL.md"
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
