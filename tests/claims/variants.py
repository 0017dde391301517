"""autobert_zero.py with one part of its search changed: python tests/claims/variants.py PART --search ...

    averaging      a round's candidates write the mean of their weights into the super-net (against D10)
    no-rewiring    edits of an attention do not let an operation read another operand (against D7)

Asked about by `python -m tests.claims.autobert_zero op_nas --against PART`.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

import autobert_zero as abz
from common.cli import UserError, run


def write_mean(supernet, candidates):
    """SuperNet.write_back, but that what several candidates have trained becomes their mean."""
    sums, counts = {}, {}
    with torch.no_grad():
        for arch, state in candidates:
            for name, value in state.items():
                there, part = abz.slot(name, value, arch)
                target = supernet.weights[there]
                total = sums.setdefault(there, torch.zeros_like(target))
                count = counts.setdefault(there, torch.zeros_like(target))
                total[part] += value
                count[part] += 1
        for there, total in sums.items():
            supernet.weights[there] = torch.where(counts[there] > 0, total / counts[there].clamp_min(1),
                                                  supernet.weights[there])


def main(argv):
    part, *argv = argv or [""]
    if part == "averaging":
        abz.SuperNet.write_back = write_mean
    elif part == "no-rewiring":
        abz.EDITS = tuple(edit for edit in abz.EDITS if edit is not abz.rewire)
    else:
        raise UserError(f"{part or 'PART'}: there are averaging and no-rewiring; name one before --search")
    return abz.main(argv)


if __name__ == "__main__":
    run(lambda: main(sys.argv[1:]))
