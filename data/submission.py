"""One folder and its .zip for the GLUE leaderboard, from what fine-tunings wrote.

    made = make_submission(["runs/albert-finetune-base"], "submission/")     # submission/*.tsv, submission.zip

Every fine-tuning writes the file of a task to its run folder's TASK/, MNLI three of them: both halves of its test set,
and AX, the diagnostic set, which is answered by the MNLI model. FILES is what the leaderboard wants of each file; all
is checked before anything is written, so that no upload (two a day) is lost on a file of the wrong form.
"""
import zipfile
from pathlib import Path
from typing import NamedTuple

from common.cli import UserError
from common.files import atomic, read_text
from common.glue import TASKS

HEADER = "index\tprediction"


class Wanted(NamedTuple):
    """One file of a submission: the task whose folder it is in, its rows, its labels (none: a number from 0 to 5)."""
    task: str
    rows: int
    labels: tuple


# File names and labels: gluebenchmark.com/faq and its sample submission. Rows: those of the official test files.
FILES = {"CoLA": 1_063, "SST-2": 1_821, "MRPC": 1_725, "STS-B": 1_379, "QQP": 390_965, "MNLI-m": 9_796,
         "MNLI-mm": 9_847, "QNLI": 5_463, "RTE": 3_000, "WNLI": 146, "AX": 1_104}
FILES = {name: Wanted(task, rows, TASKS[task].labels) for name, rows in FILES.items()
         for task in [name if name in TASKS else "MNLI"]}


def find(runs, name):
    """The file of a name in the run folders, None where there is none. UserError where there are two."""
    found = [path for run in runs if (path := Path(run) / FILES[name].task / f"{name}.tsv").is_file()]
    if len(found) > 1:
        raise UserError(f"{found[0]} and {found[1]}: two files for one place; name run folders of which one has it")
    return found[0] if found else None


def check(path, wanted):
    """The text of a file. UserError names the first line that the leaderboard would refuse."""
    lines = read_text(path, "fine-tune again").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    if not lines or lines[0] != HEADER:
        raise UserError(f"{path}:1: the header must be index, a tab, prediction")
    if len(lines) - 1 != wanted.rows:
        raise UserError(f"{path}: {len(lines) - 1:,} predictions, the official test file has {wanted.rows:,}; "
                        "fine-tune with the official files in --glue (demo data and a dry run have fewer)")
    for number, line in enumerate(lines[1:]):
        index, _, label = line.partition("\t")
        if index != str(number):
            raise UserError(f"{path}:{number + 2}: index {index!r} where {number} must stand; fine-tune again")
        if wanted.labels and label not in wanted.labels or not wanted.labels and not is_score(label):
            form = f"one of {', '.join(wanted.labels)}" if wanted.labels else "a number from 0 to 5"
            raise UserError(f"{path}:{number + 2}: prediction {label!r}, it must be {form}; fine-tune again")
    return "\n".join(lines) + "\n"


def is_score(text):
    try:
        return 0 <= float(text) <= 5
    except ValueError:
        return False


def constant(wanted):
    """A file that always says the same: the first label, or 2.5."""
    label = wanted.labels[0] if wanted.labels else "2.5"
    return HEADER + "\n" + "".join(f"{number}\t{label}\n" for number in range(wanted.rows))


def make_submission(runs, folder, fill=()):
    """Write the eleven files and FOLDER.zip; returns {file name: the path it came from, None where it was filled in}.

    fill: names of files for which a constant may stand where no run has them (WNLI: what BERT's authors left out, AX).
    UserError: a run folder that is missing, a file that is missing, there twice, or not as FILES says.
    """
    folder = Path(folder)
    if unknown := [name for name in fill if name not in FILES]:
        raise UserError(f"--fill {unknown[0]}: choose from {', '.join(FILES)}")
    if missing := [run for run in runs if not Path(run).is_dir()]:
        raise UserError(f"{missing[0]}: no such run folder")
    found = {name: find(runs, name) for name in FILES}
    missing = [name for name, path in found.items() if path is None and name not in fill]
    if missing:
        lacking = ", ".join(f"{FILES[name].task}/{name}.tsv" for name in missing)
        raise UserError(f"{', '.join(map(str, runs))}: no {lacking}; fine-tune with the official test files in --glue "
                        f"(AX: MNLI with diagnostic/diagnostic.tsv), or --fill {' '.join(missing)} with a constant")
    texts = {name: check(path, FILES[name]) if path else constant(FILES[name]) for name, path in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with atomic(folder / f"{name}.tsv") as file:
            file.write(text.encode())
    with atomic(folder.with_name(folder.name + ".zip")) as file, zipfile.ZipFile(
            file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():  # the leaderboard wants the files at the top of the archive
            archive.writestr(zipfile.ZipInfo(f"{name}.tsv", (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return found
