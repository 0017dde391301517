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

- **holds**: every interval is on the paper's side, or a count agrees with the paper;
- **opposite**: every interval is on the other side; **mixed**: some hold, some are opposite;
- **open**: an interval contains both, or fewer than three seeds were run.

The number before an interval is the first value minus the second. A verdict holds for the size
below the table. Counts, latencies and speed-ups are of networks of the papers' sizes; all trained
networks are smaller. Each command belongs to the commit next to it.

![AutoBERT-Zero: 1,000 replayed searches, and twenty searches](results/search-light.svg)
"""
UNDECIDED = """\
## Not decided

These claims were measured, and intervals include 0. Their records and commands are in commit
1d0092d. `n` seeds would give a power of .8 for the measured difference, unless the row names
another one.

| claim | measured | needs |
| --- | --- | --- |
| AutoBERT-Zero: tokens stay more different from each other than in BERT (Figure 5) | mean cosine \
after the last of four layers, BERT minus OP-NAS: +0.025 [-0.011, +0.061], n = 6 | n = 12, or more \
layers: the paper has twelve |
| ALBERT: a small embedding suffices (Table 3) | E = 32 minus E = 64, width 64: -1.4 [-3.0, +0.3] \
points of masked words, n = 3 | by held-out loss, in which seeds differ by 0.04 nats: n = 76 for \
0.02 nats, 4 core-hours for one width |
| ALBERT: SOP helps pairs of sentences (Table 5) | RTE and MRPC, SOP minus no loss: +3.4 [-5.7, \
+12.4] points, n = 3 | n = 50 for one point: 25 core-hours |
| mFormer: a mixture is as good as softmax (Table 5) | accuracy at equal FLOPs: -0.020 [-0.073, \
+0.034] on stripes, -0.010 [-0.038, +0.018] on demo images; n = 6 | n = 51 for two points: 17 \
core-hours. At 2,026 tokens, where linear attention pays, one image takes 0.21 s per softmax layer \
of one head, and 0.005 s per linear one: 37 core-hours for two arms, three seeds and as many \
images |
| mFormer: the search beats random sampling | +0.053 [-0.032, +0.138] on stripes, +0.013 [-0.023, \
+0.050] on demo images; n = 6 | n = 18 and 57: 6 and 19 core-hours |
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
            path = HERE / "results" / paper / f"{one.name}.json"
            record = read(path) if path.exists() else {"intervals": {}}  # planned, and not run yet
            for claim in one.claims:
                intervals = record["intervals"].get(claim.name, {})
                here = "<br>".join(show(label, each) for label, each in intervals.items())
                if claim.least:
                    here += f"<br>required: more than {claim.least:g}"
                says = f'<a id="{claim.name}"></a>{claim.says}'
                judged = verdict(intervals.values(), claim.least) if intervals else "not measured"
                rows.append(f"| {says} | {claim.paper} | {here} | {judged} |")
            if path.exists():
                below += show_study(paper, one, record)
        text += [f"## {title}\n", COLUMNS, *rows, ""]
        text += [f"{line}\n" for line in below]
    text.append(UNDECIDED)
    return "\n".join(text)


if __name__ == "__main__":
    (HERE / "README.md").write_text(page(), encoding="utf-8")
