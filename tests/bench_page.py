"""python tests/bench.py page: tests/claims/rehearsal.md from what test_rehearsal.py and bench.py schedule, peers and
curves have found. Measures nothing."""
import json
from pathlib import Path

import bench_curves
import bench_peers
import bench_schedule

CLAIMS = Path(__file__).parent / "claims"

FITS = """# At the paper's size

## What fits

Bytes in GB (10^9) of one process in bfloat16 with the rules of CUDA's autocast, from `python tests/test_rehearsal.py`:
real steps on tensors without content (common/describe.py), on a CPU; no GPU has confirmed them. Peak: the larger of
the second shard's update and the largest evaluation. Largest: the largest tensor of the update, of the evaluation, that
is no weight, gradient or state of the optimizer. A candidate is the one of AutoBERT-Zero's first hundred that keeps
most matrices of tokens x tokens; a beam search ends no sentence early. "4 rows of the 32": so many at once of a batch.

| file | preset | phase | peak | evaluation | largest | largest there | smallest card, GB |
|---|---|---|---|---|---|---|---|
"""


def fits(rows):
    """The table of results/rehearsal.json."""
    return "".join(f"| {name} | {row['peak'] / 1e9:.1f} | {row['evaluation'] / 1e9:.1f} | {row['largest'] / 1e9:.2f} "
                   f"| {row['evaluation_largest'] / 1e9:.2f} | {row['card_gb'] or 'none'} |\n"
                   for name, row in sorted(rows.items()))


SCHEDULE = """
## Many processes

Shares of their time in which processes work, simulated by `python tests/bench.py schedule` from the measured seconds of
demo searches' candidates (networks of up to four layers; deeper ones are more alike) and the updates or rows of the
tasks. Fixed: process r of n does jobs r, r + n, ..., as it was; claims: whoever is free takes the next, as searches do
it; longest first: the next that takes longest, as fine-tuning does it. A search in rounds of 25 cannot use more than 25
processes, whatever the way.

"""

MACHINES = """
## Several machines

One folder must be the same for all: that of the run (`--out`), on a shared file system: process 0 writes, all read. The
data, the vocabulary and this repository may be copies, at the same paths; each machine needs the same version of torch
and as many threads a process (OMP_NUM_THREADS). Each machine starts one group of processes, and they meet at one port:

```
#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --time=24:00:00
#SBATCH --signal=TERM@120          # two minutes before the end; the same sbatch again goes on
export OMP_NUM_THREADS=8
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit torchrun --nnodes="$SLURM_NNODES" --nproc_per_node=8 \\
    --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="$first:29500" \\
    albert.py --pretrain --preset base --accumulate 64 --corpus path/to/prepared --out path/to/run
```

Without SLURM: the same torchrun line on each machine, or `--node_rank=0`, `1`, ... in place of the two `--rdzv_backend`
and `--rdzv_id`. tests/test_machines.py does both with two groups on one machine: weights and histories end as those of
one group of two processes, bit for bit. No network between real machines was tried, nor SLURM.
"""
NOTES = {
    "peers": "Everything else stood still. On this processor most of the gain is the library: our wide linear maps go to "
             "oneDNN in pre-training (common/distributed.py), and packed in beam search (data/packed.py), theirs to MKL "
             "as they come. BERT base again with nine rounds: 1.48 (0.85 to 1.92).",
    "curves": "Everything else stood still."}


def page(folder=CLAIMS):
    """The text of FOLDER/rehearsal.md from FOLDER/results."""
    results = folder / "results"
    found = {name: json.loads((results / f"{name}.json").read_text())
             for name in ("rehearsal", "peers", "curves") if (results / f"{name}.json").exists()}
    text = FITS + fits(found["rehearsal"]) + SCHEDULE + bench_schedule.table() + "\n" + MACHINES
    for name, title, table in (("peers", "Beside transformers", lambda: bench_peers.table(found["peers"]["rows"])),
                               ("curves", "What costs what", lambda: bench_curves.tables(found["curves"]))):
        if name in found:
            about = {**found[name].get("machine", {}), **found[name]}
            text += (f"\n## {title}\n\n{about['processor']}, {about['cores']} cores, {about['threads']} threads, torch "
                     f"{about['torch']}, {about['date']}: `{about['command']}`. {NOTES[name]}\n\n{table()}\n")
    if (results / "curves.png").exists():
        text += "\n![cost against length, text, candidates and processes](results/curves.png)\n"
    return text


def write(folder=CLAIMS):
    (folder / "rehearsal.md").write_text(page(folder))


def main(argv):
    write()
