"""python tests/bench.py curves --out FILE.json: what a training step costs against length, what preparing text costs
against its size, a search against its candidates, training and search against processes; and tokens a second and peak
memory of every demo, shortened. Wants an idle machine: at most eight minutes on two cores. FILE.png beside it, where
matplotlib is installed.

Seconds are wall clock; CPU seconds and peak memory (of the largest process) are the system's, of a run and what it
starts. Every run begins with reading the demo data and training a vocabulary on it.
"""
import argparse
import itertools
import json
import os
import resource
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import albert
import autobert_zero
from bench import interleaved
from bench_peers import processor
from data import rehearsals
from data.prepare import make_demo
from tests.claims.study import draw_figure

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = {"ALBERT": "", "BERT": "bert", "AutoBERT-Zero": "autobert-zero", "convolutions": "autobert-zero/conv-only"}
IMAGES = "layers=2 hidden=64 ffn=96,96 heads=4,4 types=softmax,linear"
TEXTS = (f"{IMAGES} decoder_layers=1 decoder_hidden=64 decoder_ffn=96 decoder_heads=4 decoder_types=softmax "
         "cross_heads=4 connect=1 cross_types=softmax")
DEMOS = ("albert.py --pretrain --length 16 --batch 64 --steps {updates}", "albert.py --pretrain --steps {updates}",
         "autobert_zero.py --pretrain --steps {updates}",
         "autobert_zero.py --search --population 2 --rounds 1 --parents 1",
         "autotinybert.py --superplm --steps {updates}",
         f"mformer.py --train --arch '{IMAGES}' --steps {{updates}}",
         f"mformer.py --task wmt14 --train --arch '{TEXTS}' --steps {{updates}}")
SEARCH = "autobert_zero.py --search --tasks MLM --steps {updates} --parents 2 --rounds 0 --population {candidates}"
TRAIN = "albert.py --pretrain --accumulate 2 --steps {updates}"


def run(command, folder, processes=1, threads=None):
    """{"command", "processes", "seconds", "cpu_seconds", "peak_mb", "a_second", "unit"} of a command line of this
    repository; a_second, unit: tokens, pictures, ... a second, where its log has them (the median line)."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    own = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    out, log = folder / f"run-{time.time_ns()}", folder / "log.txt"
    argv = [sys.executable, *launch, *shlex.split(command), "--to" if "data/" in command else "--out", str(out)]
    own_peak, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    child = os.posix_spawn(sys.executable, argv, {**os.environ, **own}, file_actions=[
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2)])
    _, status, used = os.wait4(child, 0)
    seconds = time.perf_counter() - began
    if status:
        sys.exit(f"{command}: {log.read_text()[-2000:]}")
    text = (out / "log.jsonl").read_text() if (out / "log.jsonl").exists() else ""
    speeds = [(value, key) for line in text.splitlines() for key, value in json.loads(line).items()
              if key.endswith("_per_second") and value]
    return {"command": command, "processes": processes, "seconds": round(seconds, 2),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
            "peak_mb": round(used.ru_maxrss / 1e3) if used.ru_maxrss > own_peak else None,
            "a_second": round(statistics.median(value for value, _ in speeds)) if speeds else None,
            "unit": speeds[0][1].removesuffix("_per_second") if speeds else None}


def steps_by_length(lengths, tokens, rounds, **shape):
    """{network: [microseconds a token of a training step, for each length]}, all in turns; tokens: of a step."""
    found = {name: [] for name in NETWORKS}
    for length in lengths:
        functions = {}
        for name, arch in NETWORKS.items():
            if not arch:
                cfg = albert.Config(**shape, embedding=shape["hidden"] // 2, length=length, dtype="float32")
                _, step, _ = rehearsals.albert(albert, cfg)
            else:
                cfg = autobert_zero.Config(**shape, length=length, dtype="float32")
                network = autobert_zero.read_arch(arch, cfg.layers)
                _, step, _ = rehearsals.autobert_zero(autobert_zero, network, cfg)
            functions[name] = lambda step=step, rows=max(1, tokens // length): step(rows, 1)
        for name, seconds in interleaved(functions, rounds).items():
            found[name].append(round(1e6 * seconds / (max(1, tokens // length) * length), 2))
    return found


def text_of(megabytes, folder):
    """A file of so many MB of the demo's text, repeated where that is too short."""
    parts = sorted((ROOT / "data" / "demo" / "corpus").glob("*.txt"))
    path, left = folder / f"{megabytes}.txt", int(1e6 * megabytes)
    with open(path, "wb") as file:
        for part in itertools.cycle(parts):
            left -= file.write(part.read_bytes()[:left])
            if left <= 0:
                return path


def measure(updates=200, lengths=(32, 64, 128, 256, 512), tokens=2048, rounds=3, sizes=(1, 2, 4, 8),
            candidates=(3, 6, 12), processes=(1, 2), demos=DEMOS,
            shape=dict(layers=12, hidden=128, heads=4, ffn=512, vocab_size=4000)):
    """Everything, as one JSON object."""
    make_demo(ROOT / "data" / "demo")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {}
        texts = {size: text_of(size, folder) for size in sizes}
        found["corpus"] = [{"mb": size, **run(f"data/prepare.py corpus --vocab_size 1000 --corpus {text}", folder)}
                           for size, text in texts.items()]
        found["candidates"] = [{"candidates": each, **run(SEARCH.format(updates=updates // 8, candidates=each), folder)}
                               for each in candidates]
        found["processes"] = {
            "training": [run(TRAIN.format(updates=2 * updates), folder, each, 1) for each in processes],
            "search": [run(SEARCH.format(updates=updates // 8, candidates=candidates[-1]), folder, each, 1)
                       for each in processes]}
        found["demos"] = [run(demo.format(updates=updates), folder) for demo in demos]
        for line in found["corpus"]:
            line["command"] = line["command"].replace(f"{folder}/", "")
    # last: a child's peak begins at what this process has held
    found["length"] = {"tokens": list(lengths),
                       "microseconds a token": steps_by_length(lengths, tokens, rounds, **shape)}
    return found


def draw(axes, found):
    """Four panels: length, corpus, candidates, processes."""
    figure, colours = axes.figure, itertools.cycle(f"C{number}" for number in range(10))
    figure.clear()
    figure.set_size_inches(7, 4.6)
    (length, corpus), (candidates, processes) = figure.subplots(2, 2)
    for name, values in found["length"]["microseconds a token"].items():
        length.plot(found["length"]["tokens"], values, "o-", label=name, color=next(colours))
    length.set(xscale="log", xlabel="tokens a row", ylabel="µs a token", title="a training step", ylim=(0, None))
    length.set_xticks(found["length"]["tokens"], found["length"]["tokens"])
    length.minorticks_off()
    length.legend(fontsize="small")
    corpus.plot(*zip(*[(line["mb"], line["seconds"]) for line in found["corpus"]]), "o-")
    corpus.set(xlabel="MB of text", ylabel="s", title="preparing text", ylim=(0, None))
    candidates.plot(*zip(*[(line["candidates"], line["seconds"]) for line in found["candidates"]]), "o-")
    candidates.set(xlabel="candidates", ylabel="s", title="a search", ylim=(0, None))
    for name, lines in found["processes"].items():
        alone = lines[0]["seconds"]
        processes.plot(*zip(*[(line["processes"], alone / line["seconds"]) for line in lines]), "o-", label=name)
    processes.set(xlabel="processes", ylabel="times as fast", title="one thread each", ylim=(0, None))
    processes.set_xticks([line["processes"] for line in lines])
    processes.legend(fontsize="small")


def tables(found):
    """The rows as Markdown."""
    network = found["length"]["microseconds a token"]
    lines = ["| tokens a row | " + " | ".join(network) + " (µs a token of a step) |", "|---" * (len(network) + 1) + "|"]
    lines += [f"| {tokens} | " + " | ".join(f"{values[place]:.1f}" for values in network.values()) + " |"
              for place, tokens in enumerate(found["length"]["tokens"])]
    lines += ["", "| command | processes | s | CPU s | peak MB | a second |", "|---|---|---|---|---|---|"]
    runs = [*found["corpus"], *found["candidates"], *itertools.chain(*found["processes"].values()), *found["demos"]]
    for line in runs:
        speed = f"{line['a_second']:,} {line['unit']}" if line["unit"] else ""
        lines.append(f"| `{line['command']}` | {line['processes']} | {line['seconds']:.1f} | {line['cpu_seconds']:.1f} "
                     f"| {line['peak_mb'] or '?'} | {speed} |")
    return "\n".join(lines)


def main(argv):
    parser = argparse.ArgumentParser(prog="bench.py curves", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="", help="write JSON here, and a picture beside it")
    parser.add_argument("--tiny", action="store_true", help="a few updates of everything: does it run")
    own = parser.parse_args(argv)
    os.chdir(ROOT)
    began, load = time.time(), os.getloadavg()[0]
    tiny = dict(updates=20, lengths=(8, 16), tokens=32, rounds=1, sizes=(0.1,), candidates=(1,), demos=DEMOS[1:2],
                shape=dict(layers=12, hidden=16, heads=2, ffn=32, vocab_size=100))
    found = {"machine": {"processor": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
                         "torch": torch.__version__, "load": load, "date": time.strftime("%Y-%m-%d")},
             **measure(**(tiny if own.tiny else {}))}
    found["machine"] |= {"seconds": round(time.time() - began),
                         "command": " ".join(["python tests/bench.py curves", *argv])}
    print(tables(found))
    if own.out:
        path = Path(own.out)
        if draw_figure(picture := path.with_suffix(".png"), lambda axes: draw(axes, found)):
            from PIL import Image  # which matplotlib needs
            Image.open(picture).quantize(128).save(picture, optimize=True)  # a third of the size
            found["picture"] = picture.name
        path.write_text(json.dumps(found, indent=1))
    return found
