"""The layers of all four papers in the frame of autobert_zero.py: its study `together`; and as a program (python -m
tests.claims.together --pretrain --arch NAME, with the flags of autobert_zero.py) the training of one network."""
import dataclasses
import itertools
import json
import statistics
import time

import torch
from torch import nn

import albert
import autobert_zero as abz
import autotinybert as tiny
import mformer as mf
from common.cli import run, start
from common.distributed import Ranks, launch, prepare_model, seed_everything
from common.files import read_json, write_atomic
from common.runs import Checkpoint
from data.inputs import open_run
from tests.claims import study

# Primary question, which none of the papers asks: at equal time, which of the four ideas beats BERT's rule? Four layers
# of width 64, an FFN of 256, four heads: BERT; one ALBERT layer in the place of four; AutoTinyBERT's shape, which the
# study `shape` found in the time of that BERT; softmax and linear attention in turn, as mFormer's translator begins;
# what AutoBERT-Zero's demo search found with the seed of the run; convolutions (added after four runs) and a hybrid.
# Each has the time of --updates of BERT's updates of 2,048 tokens, half in rows of 16 tokens, half of 64. Then it is
# tuned on all rows of TASKS, whose mean on dev is judged in pairs of seeds, by the 95% interval. H1: each idea beats
# BERT; H2: AutoBERT-Zero's beats the others; H3: the hybrid beats BERT and convolutions. Three seeds, no more.
SHAPE = tiny.parse_arch("3-84-236-5-80")
MIXTURE = "layers=4 hidden=64 ffn=256,256,256,256 heads=4,4,4,4 types=softmax,linear,softmax,linear"
TASKS = {"CoLA": "matthews", "MRPC": "accuracy", "QNLI": "accuracy", "RTE": "accuracy"}


class Placed(nn.Module):
    """A layer of another file in the frame, run by call: x (B, T, H), mask (B, T) or None -> x."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x, mask):
        return self.call(self.layer, x, None if mask is None else mask[:, None, None])


def albert_layers(cfg):
    own = albert.Config(hidden=cfg.hidden, heads=cfg.heads, ffn=cfg.ffn, dropout=cfg.dropout)
    shared = nn.ModuleList([albert.Attention(own), albert.FeedForward(own)])
    return [Placed(shared, lambda layer, x, mask: layer[1](layer[0](x, x, mask)))] * cfg.layers


def autotinybert_layers(cfg):
    return [Placed(layer, lambda layer, x, mask: layer(x, mask)) for layer in tiny.Encoder(SHAPE, 1).layers]


def mformer_layers(cfg):
    """With one norm more at the end, since they have theirs in front."""
    own = mf.Config(head_dim=cfg.hidden // cfg.heads)
    arch = mf.parse_arch(MIXTURE, own)

    def call(layer, x, mask):
        T, mask = x.shape[1], mask if mask is None else mask[:, 0, 0]
        return layer(x, arch, mf.cosines_at(torch.arange(T, device=x.device), T if mask is None else mask.sum(1)), mask)
    return [*(Placed(mf.Layer(number, arch, own, None), call) for number in range(cfg.layers)),
            Placed(mf.LayerNorm(cfg.hidden), lambda norm, x, mask: norm(x))]


IDEAS = {"ALBERT": albert_layers, "AutoTinyBERT": autotinybert_layers, "mFormer": mformer_layers}


def in_frame(Model, cfg, *outputs):
    """abz.LanguageModel or abz.TaskModel with the layers of --arch: of IDEAS, or what autobert_zero.py takes."""
    if cfg.arch not in IDEAS:
        return Model(abz.read_arch(cfg.arch, cfg.layers), cfg, *outputs)
    width = SHAPE.hidden if cfg.arch == "AutoTinyBERT" else cfg.hidden
    model = Model((), dataclasses.replace(cfg, hidden=width), *outputs)
    model.encoder.layers.extend(IDEAS[cfg.arch](cfg))
    for name, value in model.encoder.layers.named_parameters():  # they begin like the frame's
        if "bias" in name or value.dim() > 1:
            nn.init.normal_(value, std=0.0 if "bias" in name else cfg.init_std)
    return model


def halves(cfg):  # of pre-training; their updates have as many tokens
    return [dataclasses.replace(cfg, length=length, batch=cfg.batch * cfg.length // length, steps=cfg.steps // 2,
                                short=0.0) for length in (16, cfg.length)]


def train(cfg):
    """Train --arch on masked words, tune it on TASKS, and score both on held-out text and on dev."""
    with launch(cfg.device, cfg.dtype) as ranks:
        opened, data = open_run(cfg, "pretrain", ranks, "corpus", "glue", tasks=[*TASKS])
        if opened.finished:
            return
        seed_everything(cfg.seed, "model")
        model = in_frame(abz.LanguageModel, cfg).to(ranks.device)
        for half in halves(cfg):
            checkpoint = Checkpoint(opened.folder / f"round-{half.length}.pt", ranks, model=model)
            abz.train_language_model(model, data, half, ranks, checkpoint)
        found = abz.evaluate_language_model(model, data, cfg, ranks, batches=64)
        for name, metric in TASKS.items():
            task = abz.open_task(name, cfg, data.tokenizer, abz.recipes(cfg))
            seed_everything(cfg.seed, "head", name)
            tuned = in_frame(abz.TaskModel, cfg, task.outputs)
            tuned.load_state_dict(model.state_dict(), strict=False)
            found[name] = abz.train_task(tuned, task, cfg, ranks.device)[metric]
        found["mean"] = statistics.mean(found[name] for name in TASKS)
        opened.finish({**found, "parameters": sum(value.numel() for value in model.parameters())})


def times_of(archs, cfg):
    """{--arch: median ms of an update of each half} on one thread, of rows with a mask, which real ones have."""
    torch.set_num_threads(1)
    ranks, calls, batches = Ranks(0, 1, torch.device("cpu")), {}, []
    for half in halves(cfg):
        ids = torch.randint(cfg.vocab_size, (half.batch, half.length))
        places = torch.arange(0, ids.numel(), 7)  # every seventh word is masked
        batches.append((ids, 0 * ids, 0 * ids[:, 0] + half.length, places, ids.flatten()[places], 0 * ids[:, 0]))
    for arch in archs:
        model = in_frame(abz.LanguageModel, dataclasses.replace(cfg, arch=arch))
        parts = prepare_model(model, ranks, False), abz.make_optimizer(model, cfg.weight_decay)
        calls[arch] = lambda parts=parts: [abz.update(*parts, iter([batch]), cfg, ranks, 0) for batch in batches]
    return {arch: statistics.median(times) for arch, times in study.in_turns(calls, 40, time.process_time).items()}


def together(options):
    cfg, path = study.read_flags(abz, options, "pretrain"), options.runs / "ms.json"
    found = read_json(study.RESULTS / "autobert_zero" / "op_nas.json")["networks"][:options.seeds]
    arms = [{"AutoBERT-Zero": each["OP-NAS"], "hybrid": each["hybrid"], **dict(zip(IDEAS, IDEAS)),
             "convolution": " | ".join(["conv3"] * 4), "BERT": "bert"} for each in found]
    names = {arch for each in arms for arch in each.values()}
    if not path.exists() or not names <= {*read_json(path)}:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(times_of(names, cfg)))
    ms = read_json(path)
    steps = {arch: round(options.updates * ms["bert"] / each) for arch, each in ms.items()}
    folders = study.run_all(options, {f"{arm}-{seed}": [
        "tests.claims.together", "--pretrain", *options.flags, "--arch", arch, "--steps", steps[arch], "--seed", seed]
        for seed, each in enumerate(arms) for arm, arch in each.items()})
    each = [{arm: read_json(folders[f"{arm}-{seed}"] / "done.json") for arm in arms[0]} for seed in range(len(arms))]
    rows = [[arm, *(study.show_mean([100 * seed[arm][key] for seed in each])
                    for key in ("mlm_accuracy", *TASKS, "mean"))] for arm in arms[0]]
    gaps = {f"{one} - {two}": study.interval([100 * (seed[one]["mean"] - seed[two]["mean"]) for seed in each])
            for one, two in itertools.combinations(arms[0], 2)}
    return study.Found(["network", "masked words", *TASKS, "mean"], rows, gaps, n=len(arms),
                       numbers={"seeds": each, "ms": ms, "updates": steps, "networks": arms})


if __name__ == "__main__":
    run(lambda: start(abz.Config, abz.PRESETS, {**abz.ACTIONS, "pretrain": (train, "a network of the study")}, __doc__))
