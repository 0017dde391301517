"""What each phase of the four papers takes at its full size: memory and FLOPs of an update and of an evaluation,
rehearsed on tensors without content (common/describe.py), where no command of a file prints them.

    python -m tests.claims.rehearsal ['PHASE' ...]      writes results/rehearsal.json; all phases: some minutes

`python tests/bench.py page` makes rehearsal.md of it.
"""
import functools
import json
import math
import random
import sys
from types import SimpleNamespace
from unittest import mock

import torch

import albert
import autobert_zero
import autotinybert
import mformer
from common import describe
from common.describe import ids
from common.tasks import EVALUATED
from tests.claims.study import RESULTS


def albert_at(preset="base", **settings):
    return albert.Config(**{**albert.PRESETS[preset], "preset": preset, "accumulate": 1, **settings})


def fine_tuning(cfg, task, arch=None):
    """As describe.rehearse takes it: an update of fine-tuning on a task in rows of the recipe's length, and a batch of
    its prediction, of as many rows as common.tasks.Task.collect takes. arch: the architecture, but of ALBERT."""
    file, device = sys.modules[cfg.program], torch.get_default_device()
    recipe = file.recipes()[task] if cfg.program == "autotinybert" else file.recipes(cfg)[task]
    kind = "span" if task.startswith("SQuAD") else "choice" if task == "RACE" else "class"
    outputs, shape = 1 if kind == "choice" else 2, (4, recipe.length) if kind == "choice" else (recipe.length,)
    if cfg.program == "albert":
        model = file.task_model(SimpleNamespace(name=task, kind=kind, recipe=recipe, outputs=outputs), cfg)
        optimizer = file.Lamb(model.parameters(), recipe.lr, adapt=False)
    else:
        model = (file.TaskModel(arch, cfg, outputs, kind == "span") if cfg.program == "autobert_zero" else
                 file.TaskModel(file.Encoder(arch, cfg.vocab_size, cfg.dropout), outputs, kind == "span"))
        optimizer = file.make_optimizer(model, cfg.weight_decay)

    def forward(batch):
        return model(batch) if cfg.program == "albert" else model(batch["ids"], batch["segments"], batch["lengths"])

    def loss_of(batch):
        with file.autocast(cfg.dtype, device):
            found = model.loss(batch) if cfg.program == "albert" else forward(batch).float()
        return found if cfg.program == "albert" else file.task_loss(SimpleNamespace(kind=kind), found, batch)

    def batch(rows):
        zeros = ids(rows)
        return {"ids": ids(rows, *shape), "segments": ids(rows, *shape), "lengths": ids(rows, *shape[:-1]),
                "labels": zeros, "start": zeros, "end": zeros, "impossible": torch.zeros(rows),
                "p_mask": torch.zeros(rows, recipe.length, dtype=torch.bool)}

    def step(rows, shards):
        model.train()
        if cfg.program == "autobert_zero":  # its fine-tuning knows no shards
            for _ in range(shards):
                file.update_task(model, optimizer, SimpleNamespace(kind=kind), batch(rows), cfg, device)
            return
        for _ in range(shards):
            loss_of(batch(rows)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), file.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    def look():
        model.eval()
        with file.autocast(cfg.dtype, device):
            return forward(batch(min(4 * recipe.batch, EVALUATED // math.prod(shape))))

    return optimizer, step, look


def albert_phases():
    for preset, rows, recompute in (("base", 64, False), ("large", 64, False), ("xlarge", 32, False),
                                    ("xxlarge", 32, False), ("xxlarge", 8, False), ("xxlarge", 8, True),
                                    ("bert-base", 64, False), ("bert-large", 32, False)):
        phase = f"pre-training, {rows} rows of 512" + " --recompute" * recompute
        yield (("albert", preset, phase), albert_at(preset, dtype="bfloat16", recompute=recompute), albert.rehearsal,
               (rows, 2))
    for preset, task, rows in (("base", "MNLI", 128), ("base", "SQuAD1.1", 48), ("xlarge", "RACE", 32),
                               ("xlarge", "RACE", 4), ("xxlarge", "RACE", 4), ("xxlarge", "SQuAD1.1", 12),
                               ("xxlarge", "SQuAD2.0", 48), ("xxlarge", "SQuAD2.0", 12), ("xxlarge", "MNLI", 16),
                               ("xxlarge", "CoLA", 16)):
        yield (("albert", preset, f"{task}, {rows} rows of the {albert.TABLE14[task][1]}"),
               albert_at(preset, dtype="bfloat16"), functools.partial(fine_tuning, task=task), (rows, 2))


def autobert_zero_phases():
    """A candidate here is the one of the initial population that keeps most matrices of tokens x tokens."""
    rng = random.Random("0 round 0")
    drawn = [autobert_zero.sample_arch(rng, 12) for _ in range(100)]
    heaviest = max(drawn, key=lambda arch: sum(autobert_zero.infer_graph(layer).count("nn") for layer in arch
                                               if not isinstance(layer, int)))
    for preset, rows, name in (("small", 320, "autobert-zero"), ("small", 320, "bert"), ("base", 160, "autobert-zero"),
                               ("base", 160, "bert"), ("base", 160, "a candidate"), ("large", 80, "autobert-zero")):
        cfg = autobert_zero.Config(**{name: value for name, value in autobert_zero.PRESETS[preset].items()
                                      if not isinstance(value, dict)}, preset=preset, batch=rows, dtype="bfloat16")
        shared = name == "a candidate"
        arch = heaviest if shared else autobert_zero.read_arch(name, cfg.layers)
        yield (("autobert_zero", preset, f"pre-training of {name}, {rows} rows of 128"), cfg,
               functools.partial(autobert_zero.rehearsal, arch=arch, shared=shared), (rows, 1))
        tasks = {"autobert-zero": ("MNLI", "SQuAD1.1"), "a candidate": ("MNLI",)}.get(name, ())
        for task in tasks if preset == "base" else ():
            yield (("autobert_zero", preset, f"{task} with {name}, 32 rows of the 32"), cfg,
                   functools.partial(fine_tuning, task=task, arch=arch), (32, 2))


def autotinybert_phases():
    whole = autotinybert.parse_arch(autotinybert.Config.largest)
    for phase, samples, teacher in (("SuperPLM", 3, None), ("SuperPLM, distilled", 3, "12-768-3072-12-768"),
                                    ("further training", 0, None)):
        cfg = autotinybert.Config(preset="base", dtype="bfloat16", setting="distill" if teacher else "mlm")
        build = functools.partial(autotinybert.rehearsal, arch=whole, samples=samples,
                                  teacher=teacher and autotinybert.parse_arch(teacher))
        yield ("autotinybert", "base", f"{phase}, sub-batches of 16 rows of 128"), cfg, build, (16, 2)
    for task in ("SQuAD1.1", "MNLI"):  # the proxy tasks, for which the whole is the largest candidate
        rows, cfg = autotinybert.TABLE_D1[task][0], autotinybert.Config(preset="base", dtype="bfloat16")
        yield (("autotinybert", "base", f"{task}, {rows} rows of the {rows}"), cfg,
               functools.partial(fine_tuning, task=task, arch=whole), (rows, 2))


def mformer_phases():
    for task, rows, what in (("cifar10", 64, "64 pictures"), ("wmt14", 4400, "shards of 4,400 tokens")):
        base = {key: value for key, value in mformer.PRESETS[task]["base"].items() if key != "search"}
        cfg = mformer.Config(**{"preset": "base", "task": task, "dtype": "bfloat16", **base})
        space, arch = mformer.space_of(cfg), mformer.parse_arch("mformer", cfg)
        supernet = functools.partial(mformer.rehearsal, arch=mformer.widest(space), space=space)
        training = functools.partial(mformer.rehearsal, arch=arch)
        yield ("mformer", f"base {task}", f"super-net, {what}"), cfg, supernet, (rows, 2)
        yield ("mformer", f"base {task}", f"training, {what}"), cfg, training, (rows, 2)
    yield (("mformer", "base wmt14", f"beam search, {cfg.beam} beams, 64 sentences of {cfg.length} pieces"), cfg,
           functools.partial(beams, arch=arch), (64, 1))


def beams(cfg, arch):
    """No update; the beam search of 64 sentences of --length pieces, in which none ends early: what its loop reads back
    from the device has no content here."""
    model, longest = mformer.make_model(arch, cfg).eval(), cfg.length - 1

    def look():
        source = describe.ids(64, cfg.length)
        known = dict(__bool__=lambda tensor: True, __int__=lambda tensor: longest, tolist=lambda tensor: [])
        with mformer.autocast(cfg.dtype, torch.device("cpu")), mock.patch.multiple(type(source), **known):
            mformer.beam_search(model, source, describe.ids(64), longest, 1, 2, (0, 1), cfg.beam)
    return torch.optim.SGD(model.parameters(), 0.0), lambda rows, shards: None, look


def phases():
    """{(file, preset, phase): (cfg, build, (rows, shards))}: what describe.rehearse takes, at the paper's full size."""
    files = albert_phases(), autobert_zero_phases(), autotinybert_phases(), mformer_phases()
    return {key: phase for each in files for key, *phase in each}


def rehearse_all(path, *wanted):
    """Rehearse the phases whose names hold a word of `wanted`, or all, and write them to PATH; returns
    all that stand there."""
    for key, phase in phases().items():
        if any(word in name for word in wanted or [""] for name in (" | ".join(key), ", ".join(key))):
            (memory,), name = describe.rehearse(*phase), " | ".join(key)
            rows = json.loads(path.read_text()) if path.exists() else {}
            peak = max(memory["update"], memory["evaluation"])
            card = min((size for size, *_ in describe.CARDS.values() if peak <= size * 1e9), default=None)
            rows[name] = {**memory, "peak": peak, "card_gb": card}
            path.write_text(json.dumps(rows, indent=1))
    return json.loads(path.read_text())


if __name__ == "__main__":
    rehearse_all(RESULTS / "rehearsal.json", *sys.argv[1:])
