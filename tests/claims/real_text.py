"""Do networks that a search found on a made-up task learn real text?

    python -m tests.claims.autobert_zero real_text --jobs 2 --corpus PREPARED     1 core-hour

The plan, written before any run:
- Networks: the best of each of the 12 OP-NAS searches of `open_pairs`, by the score that the search
  saw. For comparison 12 random networks of the same space, BERT's network and the hybrid. All have
  two layers of width 64.
- Text: twelve novels, prepared once (data/prepare.py corpus, 4,000 tokens). A document is a
  paragraph.
- Training: 2,000 steps of 32 sequences of 32 tokens, the demo's settings otherwise. The seeds are
  those of the searches plus 2000.
- Learning rate: of three, the one with the lowest loss of one further seed. BERT has its own, and
  all networks with convolutions have the hybrid's.
- Outcome: the loss of masked words on held-out paragraphs.
- Test: the mean of the paired differences over the 12 seeds and its 95% interval (Student's t).
  Exactly 12 seeds, without further batches. If time ends the study, the complete seeds are reported
  with their number.
"""
import random

import autobert_zero as abz
from tests.claims import search_table
from tests.claims.open_space import BASELINES, FIRST
from tests.claims.pictures import dots
from tests.claims.study import Claim, read, run_all, run_name, study

NETWORKS = 12
RATES = (1e-3, 2e-3, 4e-3)
PILOT = 100  # seed of the runs that choose the learning rates
TRAINING = ("--pretrain --layers 2 --length 32 --short 0 --batch 32 --steps 2000 "
            "--save_every 2000 --held_out 0.02").split()


def random_network(seed):
    """A network of two layers, drawn as a search draws its first candidates."""
    rng = random.Random(f"real text {seed}")
    return abz.arch_text(abz.sample_arch(rng, search_table.settings(seed)))


def held_out_losses(options, runs):
    """{key: loss of masked words} of {key: (architecture, learning rate, seed)}."""
    commands = {}
    for key, (arch, rate, seed) in runs.items():
        commands[run_name("real-text", *key)] = [
            "autobert_zero.py", *TRAINING, "--arch", arch, "--lr", rate, *options.flags,
            "--seed", seed]
    folders = run_all(options, commands).values()
    return {key: read(folder / "done.json")["mlm_loss"] for key, folder in zip(runs, folders)}


@study(
    "1 core-hour after `open_pairs`",
    Claim("real-text", "Networks found on a made-up task learn real text better than BERT, random "
          "networks and the hybrid", "GLUE 86.3 against 83.1 (Table 5)",
          [("BERT", "OP-NAS"), ("random networks", "OP-NAS"), ("hybrid", "OP-NAS")]),
    picture=dots("held-out loss of masked words, nats"))
def real_text(options):
    """Masked words of twelve novels. The plan stands in tests/claims/real_text.py."""
    pilots = {(name, rate): (arch, rate, PILOT)
              for name, arch in BASELINES.items() for rate in RATES}
    losses = held_out_losses(options, pilots)
    rates = {name: min(RATES, key=lambda rate: losses[name, rate]) for name in BASELINES}
    found = read(options.results / "open_pairs.json")["networks"]
    runs = {}
    networks = {}
    for seed in range(FIRST, FIRST + NETWORKS):
        archs = {"OP-NAS": found[f"op-nas-{seed}"][0], "random networks": random_network(seed),
                 **BASELINES}
        networks[seed] = archs
        for arm, arch in archs.items():
            runs[arm, seed] = arch, rates.get(arm, rates["hybrid"]), seed + 2000
    losses = held_out_losses(options, runs)
    values = {arm: [losses[arm, seed] for seed in networks] for arm in networks[FIRST]}
    return {"values": values, "networks": networks, "rates": rates}
