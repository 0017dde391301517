"""What the GLUE leaderboard is sent: names, columns, rows, labels; AX from the diagnostic set; what is refused."""
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from common import glue
from common.cli import UserError
from data.submission import FILES, HEADER, constant, make_submission

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def run(tmp_path):
    """A run folder of a fine-tuning with all eleven files, the labels of each in turn."""
    for name, wanted in FILES.items():
        path = tmp_path / "run" / wanted.task / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        labels = wanted.labels or ("0.000", "4.275", "5.000")
        path.write_text(HEADER + "\n" + "".join(f"{n}\t{labels[n % len(labels)]}\n" for n in range(wanted.rows)))
    return tmp_path / "run"


def test_the_eleven_files_and_their_zip(run, tmp_path):
    found = make_submission([run], tmp_path / "out")
    names = {"AX", "CoLA", "MNLI-m", "MNLI-mm", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI"}
    assert set(found) == names and {path.stem for path in (tmp_path / "out").iterdir()} == names
    assert found["AX"] == run / "MNLI" / "AX.tsv"
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in names)
        for name, path in found.items():
            assert archive.read(f"{name}.tsv") == path.read_bytes() == (tmp_path / "out" / f"{name}.tsv").read_bytes()
    content = (tmp_path / "out.zip").read_bytes()
    make_submission([run], tmp_path / "out")
    assert (tmp_path / "out.zip").read_bytes() == content


def test_files_may_come_from_several_runs_and_be_filled_in(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (run / "QNLI").rename(other / "QNLI")
    (run / "WNLI" / "WNLI.tsv").unlink()
    found = make_submission([run, other], tmp_path / "out", fill=["WNLI", "AX"])
    assert found["QNLI"] == other / "QNLI" / "QNLI.tsv" and found["WNLI"] is None and found["AX"] is not None
    assert (tmp_path / "out" / "WNLI.tsv").read_text() == constant(FILES["WNLI"])
    with pytest.raises(UserError, match=r"no WNLI/WNLI.tsv; .*--fill WNLI"):
        make_submission([run, other], tmp_path / "out")
    with pytest.raises(UserError, match="--fill WLNI: choose from"):
        make_submission([run], tmp_path / "out", fill=["WLNI"])
    (run / "QNLI").mkdir()
    (run / "QNLI" / "QNLI.tsv").write_text("")
    with pytest.raises(UserError, match="two files for one place"):
        make_submission([run, other], tmp_path / "out", fill=["WNLI"])
    with pytest.raises(UserError, match="gone: no such run folder"):
        make_submission([tmp_path / "gone"], tmp_path / "out")


@pytest.mark.parametrize("name, change, said", [
    ("CoLA", lambda text: text.replace("index\tprediction", "id\tlabel"), "CoLA.tsv:1: the header must be"),
    ("RTE", lambda text: text[:text.index("2999")], "2,999 predictions, the official test file has 3,000"),
    ("MRPC", lambda text: text.replace("\n7\t", "\n8\t"), "MRPC.tsv:9: index '8' where 7 must stand"),
    ("QNLI", lambda text: text.replace("3\tnot_entailment", "3\t1"), "QNLI.tsv:5: prediction '1', .* not_entailment"),
    ("AX", lambda text: text.replace("1\tentailment", "1\tnot_entailment", 1), "AX.tsv:3: prediction 'not_entail"),
    ("STS-B", lambda text: text.replace("5.000", "5.001", 1), "STS-B.tsv:4: prediction '5.001', it must be a number"),
    ("STS-B", lambda text: text.replace("5.000", "nan", 1), "it must be a number from 0 to 5"),
])
def test_what_the_leaderboard_would_refuse_is_not_written(run, tmp_path, name, change, said):
    path = run / FILES[name].task / f"{name}.tsv"
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=said):
        make_submission([run], tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.zip").exists()


def test_the_diagnostic_set_goes_through_the_mnli_model(tmp_path):
    (tmp_path / "MNLI").mkdir()
    (tmp_path / "diagnostic").mkdir()
    path = tmp_path / "diagnostic" / "diagnostic.tsv"
    path.write_text("index\tsentence1\tsentence2\n0\tA cat.\tAn animal.\n1\tA dog.\tNo dog.\n", encoding="utf-8")
    rows = glue.load(tmp_path, "MNLI", "test_diagnostic")
    assert rows.first == ["A cat.", "A dog."] and rows.second == ["An animal.", "No dog."] and rows.labels is None
    written = glue.write_submission(tmp_path / "out", "MNLI", torch.eye(3)[[1, 0]], "test_diagnostic")
    assert written.name == "AX.tsv" and written.read_text() == HEADER + "\n0\tentailment\n1\tcontradiction\n"
    path.write_text("Lexical Semantics\tLogic\tDomain\tPremise\tHypothesis\tLabel\n\t\t\tA.\tB.\tneutral\n")
    with pytest.raises(UserError, match="take GLUE's AX.tsv"):
        glue.load(tmp_path, "MNLI", "test_diagnostic")
    with pytest.raises(UserError, match="no split"):
        glue.load(tmp_path, "CoLA", "test_diagnostic")


def test_the_command(run, tmp_path):
    command = [sys.executable, "data/prepare.py", "submission", "--runs", str(run), "--to", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "out.zip: ready" in done.stdout, done.stderr
    (run / "AX.tsv").unlink(missing_ok=True)
    (run / "MNLI" / "AX.tsv").unlink()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "MNLI/AX.tsv" in done.stderr
