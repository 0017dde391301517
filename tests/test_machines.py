"""Several machines: two torchrun groups of one process each, which meet as those of two machines do, end as one group
of two processes ends."""
import os
import shlex
import socket
import subprocess
import sys

import pytest
from kills import COMMANDS, ROOT, differences, undisturbed


def groups(words):
    """Run the command line as two groups of a process, to their end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = [subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1",
         f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_backend=c10d", "--rdzv_id=7", *words],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        assert [process.wait(300) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("program, name", [("albert", "pretrain"), ("autobert_zero", "search")])
def test_two_groups_end_as_one(tmp_path, demo, program, name):
    words = [f"{program}.py", *shlex.split(COMMANDS[program][name])]
    groups([*words, "--out", str(tmp_path / "two")])
    one, _ = undisturbed(program, name, tmp_path, 2)
    assert differences(one, tmp_path / "two") == []
