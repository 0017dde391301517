"""Write tests/claims/README.md from the results: python -m tests.claims.page"""
import importlib
import inspect

from tests.claims.study import HERE, read, show, studies_of, verdict

PAPERS = {
    "autobert_zero": "AutoBERT-Zero",
    "autotinybert": "AutoTinyBERT",
    "albert": "ALBERT",
    "mformer": "mFormer",
}
HEAD = """\
# What the papers claim, measured

A verdict follows from 95% intervals (Student's t over seeds, paired; a bootstrap over networks
where a rank correlation is judged):

- **holds**: every interval is on the paper's side, or what is counted agrees with the paper;
- **opposite**: every interval is on the other side; **mixed**: some hold, some are opposite;
- **open**: an interval contains both, or fewer than three seeds were run.

The number before an interval is the first value less the second. A verdict is about the size below
the table, which is never the paper's own. Each command belongs to the commit next to it.
"""
COLUMNS = "| the paper says | numbers | here | verdict |\n| --- | --- | --- | --- |"


def show_study(paper, one, record):
    """Size, command, hardware and picture of a study."""
    about = f"{one.hours}, commit {record['commit'][:7]}, {record['hardware']}"
    about += f", torch {record['torch']}"
    size = " ".join(f"{inspect.getdoc(one.function)} {record.get('note', '')}".split())
    link = f"[{one.name}.json](results/{paper}/{one.name}.json)"
    text = [f"**{one.name}** ({link}): {size} `{record['command']}` ({about})."]
    if one.picture:
        text.append(f"![{one.name}](results/{paper}/{one.name}.png)")
    return text


def page():
    """The text of README.md."""
    text = [HEAD]
    for paper, title in PAPERS.items():
        rows = []
        below = []
        module = importlib.import_module(f"tests.claims.{paper}")
        for one in studies_of(vars(module)).values():
            record = read(HERE / "results" / paper / f"{one.name}.json")
            for claim in one.claims:
                intervals = record["intervals"][claim.name]
                here = "<br>".join(show(label, each) for label, each in intervals.items())
                if claim.least:
                    here += f"<br>asked: more than {claim.least:g}"
                says = f'<a id="{claim.name}"></a>{claim.says}'
                judged = verdict(intervals.values(), claim.least)
                rows.append(f"| {says} | {claim.paper} | {here} | {judged} |")
            below += show_study(paper, one, record)
        text += [f"## {title}\n", COLUMNS, *rows, ""]
        text += [f"{line}\n" for line in below]
    return "\n".join(text)


if __name__ == "__main__":
    (HERE / "README.md").write_text(page(), encoding="utf-8")
