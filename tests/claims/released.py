"""mformer.py with the lengths of its released code in linear attention (D1), which have no flag:
python -m tests.claims.released, with mformer.py's flags."""
import mformer
from common.cli import run

mformer.Config.fixed_lengths = False

if __name__ == "__main__":
    run(mformer.main)
