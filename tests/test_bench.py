"""tests/bench.py: each comparison runs at its smallest size."""
import bench
import pytest


@pytest.mark.peers
def test_peers():
    pytest.importorskip("transformers")
    results = bench.main("peers --small --rounds 2 --threads 1".split())
    assert results.keys() == bench.PEERS.keys()
    for row in results.values():
        assert 0 < row["lowest"] <= row["ratio"] <= row["highest"]
