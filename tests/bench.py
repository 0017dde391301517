"""Speed, measured: python tests/bench.py [graphs] [convolutions] [data] [steps]. Medians over interleaved rounds;
compare the ratios.

graphs        softmax attentions fused (scaled_dot_product_attention) against node by node, time and memory at 128 and
              512 tokens
convolutions  the lightweight convolution as a band matrix against a grouped convolution, by kernel size
data          cutting and masking pre-training examples in one process, tokens a second
steps         training steps a second of the demo-size model

Alone, with flags of their own (NAME --help):
peers         training steps beside those of Hugging Face's transformers
gpu           every phase at the paper's size on a GPU, beside what the rehearsal expects; without one: the list
schedule      how busy many processes are with candidates and fine-tuning jobs, simulated
curves        cost against length, text, candidates, processes; speed and memory of every demo
page          tests/claims/rehearsal.md from what these have written
"""
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALONE = ("peers", "gpu", "schedule", "curves", "page")
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402  (the path comes first)

import autobert_zero as abz  # noqa: E402
from common.distributed import Ranks  # noqa: E402
from data.corpus import join  # noqa: E402
from data.inputs import Data, fill_in, open_text  # noqa: E402


def interleaved(functions, rounds=9):
    """{name: median seconds} of functions run in turns, after one round to warm up."""
    seconds = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            seconds[name] += [time.perf_counter() - began] * (number > 0)
    return {name: statistics.median(values) for name, values in seconds.items()}


def saved_bytes(function):
    """Bytes that the forward of function keeps for its backward."""
    total = []

    def keep(tensor):
        total.append(tensor.numel() * tensor.element_size())
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function()
    return sum(total)


def graphs(sizes=((128, 8), (512, 2)), heads=12, rounds=9):
    """sizes: (tokens, rows) of the inputs."""
    print("| graph | tokens | fused ms | node by node ms | time ratio | memory ratio |\n|---|---|---|---|---|---|")
    found = {f"layer {number}": layer for number, layer in enumerate(abz.parse_arch(abz.PUBLISHED), 1)
             if not isinstance(layer, int)}
    for name, graph in {"BERT": abz.parse_formula(abz.BERT_ATTENTION), **found}.items():
        for tokens, rows in sizes:
            inputs = {index: torch.randn(rows, heads, tokens, 64, requires_grad=True)
                      for index in abz.used_inputs(graph)}
            mask, plan = torch.ones(rows, tokens, dtype=torch.bool), abz.plan_graph(graph)
            plans = {True: plan, False: (plan[0], None)}

            def forward(fuse):
                return abz.run_graph(graph, inputs, mask, plan=plans[fuse])
            times = interleaved({fuse: lambda fuse=fuse: forward(fuse).sum().backward() for fuse in (True, False)},
                                rounds)
            memory = saved_bytes(lambda: forward(False)) / saved_bytes(lambda: forward(True))
            print(f"| {name} | {tokens} | {1e3 * times[True]:.1f} | {1e3 * times[False]:.1f} "
                  f"| {times[False] / times[True]:.2f} | {memory:.2f} |")


def convolutions(rows=8, tokens=128, rounds=9):
    print("| kernel | band ms | grouped ms | taken ms |\n|---|---|---|---|")
    for size in abz.KERNELS:
        x, kernel = torch.randn(rows, tokens, 768, requires_grad=True), torch.randn(12, size, requires_grad=True)
        times = interleaved({band: lambda band=band: abz.light_conv(x, kernel, band).sum().backward()
                             for band in (True, False, None)}, rounds)
        print(f"| {size} | {1e3 * times[True]:.1f} | {1e3 * times[False]:.1f} | {1e3 * times[None]:.1f} |")


def masked_batch(source, cfg, position, rows):
    """Examples as autobert_zero.py's pre-training makes them."""
    generator = torch.Generator().manual_seed(position)
    segments = source.train.segments(position, rows, cfg.length - 3, cfg.seed)
    second, second_length, _ = abz.draw_next_sentence(segments, generator)
    ids, _, _ = join(segments.first, segments.first_length, second, second_length, source.tokenizer, empty_second=True)
    return abz.mask_tokens(ids, source.tokenizer, abz.MASK_RATE, generator)


def data(sizes=(256, 1024), rounds=200, corpus=()):
    """sizes: rows of a batch; corpus: text files in place of the demo's."""
    demo = {name: value for name, value in abz.PRESETS["demo"].items() if not isinstance(value, dict)}
    cfg, ranks = abz.Config(**{**demo, "length": 128, "corpus": corpus}), Ranks(0, 1, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        fill_in(cfg, ranks, "corpus")
        source = Data(ranks.device, *open_text(cfg, ranks, folder))
        place = iter(range(0, 10**9, 1024))
        for rows in sizes:
            seconds = interleaved({
                "cut": lambda: source.train.segments(next(place), rows, cfg.length - 3, 0),
                "cut, paired and masked": lambda: masked_batch(source, cfg, next(place), rows)},
                rounds)
            for name, each in seconds.items():
                print(f"{rows} x {cfg.length}, {name}: {rows * cfg.length / each / 1e6:.3g} million tokens/s")


def steps(updates=250, batch=64, length=32, corpus=()):
    """Pre-training runs of the demo-size model, by the command line; log.jsonl says how fast they were."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bert", "autobert-zero"):
            flags = {"arch": name, "steps": updates, "save_every": updates, "batch": batch, "length": length,
                     "device": "cpu", "out": f"{folder}/{name}"}
            words = [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]
            words += ["--corpus", *corpus] if corpus else []
            subprocess.run([sys.executable, "autobert_zero.py", "--pretrain", *words], cwd=ROOT, check=True,
                           stdout=subprocess.DEVNULL)
            lines = Path(flags["out"], "log.jsonl").read_text(encoding="utf-8").splitlines()
            speed = statistics.median(filter(None, (json.loads(line).get("tokens_per_second") for line in lines)))
            print(f"{name}: {speed / batch / length:.1f} steps/s of {batch} x {length} tokens, "
                  f"{speed / 1e3:.1f} thousand tokens/s")
            corpus = (f"{folder}/{name}/corpus",)  # the token files are made once


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in ALONE:
        importlib.import_module(f"bench_{sys.argv[1]}").main(sys.argv[2:])
        sys.exit()
    for part in sys.argv[1:] or ["graphs", "convolutions", "data", "steps"]:
        print(f"\n{part}, torch {torch.__version__}, {torch.get_num_threads()} threads")
        {"graphs": graphs, "convolutions": convolutions, "data": data, "steps": steps}[part]()
