"""tests/bench.py: each comparison runs at its smallest size, and the numbers of the table of a
card."""
import bench
import pytest

import albert
import mformer


def test_a_share_of_the_peak_is_of_the_flops_of_a_step():
    """3 forward passes of each example of --batch. At 10 steps a second and a peak of 1 TFLOP/s."""
    images = "mformer.py --train --arch cosformer* --image 32 --patch 8 --batch 8 --out a"
    cfg = mformer.Config(image=32, patch=8, head_dim=16)  # of the preset demo
    arch = mformer.parse_arch("cosformer*", cfg)
    expected = 3 * 8 * mformer.model_flops(arch, cfg)
    flops = bench.step_flops(images)
    assert flops == pytest.approx(expected, rel=0.01)
    row = f"| mformer.py | train | 10 | {10 * flops / 1e12:.1%} | 2.5 |"
    assert bench.table_row(images, 10, flops, 1e12, 2.5) == row
    text = "albert.py --pretrain --preset base --batch 512 --accumulate 8 --out a"
    expected = 3 * 512 * albert.flops(albert.Config())
    assert bench.step_flops(text) == pytest.approx(expected, rel=0.01)


def test_a_fine_tuning_has_no_share():
    tuning = "albert.py --finetune SST-2 --init a --out b"
    assert bench.step_flops(tuning) is None
    row = "| albert.py | finetune SST-2 | 0.123 | - | 1 |"
    assert bench.table_row(tuning, 0.12345, None, 1e12, 1.0) == row


@pytest.mark.peers
def test_peers():
    pytest.importorskip("transformers")
    results = bench.main("peers --small --rounds 2 --threads 1".split())
    assert results.keys() == bench.PEERS.keys()
    for row in results.values():
        assert 0 < row["lowest"] <= row["ratio"] <= row["highest"]
