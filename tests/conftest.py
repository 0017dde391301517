"""Shared by all tests: the repository on the path, one thread, the demo data, markers."""
import fcntl
import shlex
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from common import files, launch  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true",
                     help="run the tests that take more than a few seconds too")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than a few seconds; needs --slow")
    config.addinivalue_line("markers", "peers: needs packages of tests/requirements-peers.txt")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="takes more than a few seconds: pytest --slow runs it")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def demo():
    """Paths of the demo data, made on first use."""
    from data.prepare import make_demo
    return make_demo(ROOT / "data" / "demo")


@pytest.fixture(scope="session", autouse=True)
def few_held_out():
    """Models are evaluated on few held-out sequences."""
    from small_runs import hold_out_few
    with pytest.MonkeyPatch.context() as patch:
        hold_out_few(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def modules(tmp_path_factory):
    """transformers keeps the code of folders that it opens in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield


@pytest.fixture(scope="session")
def ready(demo, tmp_path_factory):
    """{name: folder} of small data and finished runs (small_runs.py). No test writes there."""
    from small_runs import make_ready
    return make_ready(demo, tmp_path_factory.mktemp("ready"))


@pytest.fixture(scope="session")
def finished(ready, tmp_path_factory):
    """finished(name): the folder of one of small_runs.RUNS, made on first use. No test writes
    there."""
    from small_runs import RUNS, call, pretend
    folders = {}

    def finish(name):
        if name not in folders:
            torch.set_num_threads(1)
            folders[name] = tmp_path_factory.mktemp("finished") / "run"
            command = filled(f"{RUNS[name]} --out {{out}}", out=folders[name], **ready)
            with pytest.MonkeyPatch.context() as patch:
                pretend(patch)
                assert call(command, patch) == 0
        return folders[name]
    return finish


def release_locks():
    """Release the locks of this process, as its end would."""
    while files._locks:
        with files._locks.popitem()[1] as file:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked worker may still have the file open


@pytest.fixture(autouse=True)
def one_thread():
    """One thread, and after a test no lock of a run folder and no note of SIGTERM."""
    torch.set_num_threads(1)
    yield
    release_locks()
    launch.SIGTERM.clear()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test runs in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def works(ready, monkeypatch):
    """works(command): run a command in this process, which must succeed. Its {names} are replaced
    by paths of `ready`, and by given ones."""
    from small_runs import call

    def work(command, **paths):
        assert call(filled(command, **{**ready, **paths}), monkeypatch) == 0
    return work


def filled(command, **paths):
    """A command line with its {names} replaced by paths, quoted if they have blanks."""
    return command.format(**{name: shlex.quote(str(path)) for name, path in paths.items()})


def slow(*values):
    """A row of a table of tests that takes more than a few seconds."""
    return pytest.param(*values, marks=pytest.mark.slow)
