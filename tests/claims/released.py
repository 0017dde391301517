"""mformer.py, and its flags, with the lengths of cosFormer's released code (D1), for which it has none."""
import mformer
from common.cli import run

mformer.Config.fixed_lengths = False

if __name__ == "__main__":
    run(mformer.main)
