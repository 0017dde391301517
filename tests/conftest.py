"""Shared by all tests: the repository on the path, a fixed number of threads, the demo data made once."""
import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data that $PAPERS_DATA names; the test is skipped where it is unset."""
    folder = os.environ.get("PAPERS_DATA")
    if not folder:
        pytest.skip("needs real data: set PAPERS_DATA to a folder with corpus/, glue/, squad/ (see data/README.md)")
    return Path(folder)


@pytest.fixture(scope="session")
def demo():
    """Paths of the demo data, made on first use."""
    from data.prepare import make_demo
    return make_demo(ROOT / "data" / "demo")


@pytest.fixture(autouse=True)
def threads():
    torch.set_num_threads(1)
