"""Prepare data: make the demo data, download the real sets, turn a corpus into token files.

    python data/prepare.py demo                                      made from documentation on this machine, in under a minute
    python data/prepare.py download glue squad race cifar10 wmt14    from the official addresses, checked
    python data/prepare.py corpus --corpus TEXT... --to DIR          tokenizer and memory-mapped token files

README.md beside this file says what each set is, and whose.
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
if __name__ == "__main__":  # run as a program, Python's search path starts with data/ and not with the repository
    sys.path.insert(0, str(HERE.parent))

from data.demo import make_demo  # noqa: E402, F401  (offered here: `from data.prepare import make_demo`)
