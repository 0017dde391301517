"""Speed, measured: python tests/bench.py [graphs] [convolutions] [data] [steps]. Medians over interleaved rounds; compare the ratios.

graphs        softmax attentions fused (scaled_dot_product_attention) against node by node, time and memory at 128 and 512 tokens
convolutions  the lightweight convolution as a band matrix against a grouped convolution, by kernel size
data          cutting and masking pre-training examples in one process, tokens a second
steps         training steps a second of the demo-size model
"""
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402  (the path comes first)

import autobert_zero as abz  # noqa: E402


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
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: total.append(tensor.numel() * tensor.element_size()) or tensor, lambda tensor: tensor):
        function()
    return sum(total)


def graphs():
    print("| graph | tokens | fused ms | node by node ms | time ratio | memory ratio |\n|---|---|---|---|---|---|")
    for name, text in [("BERT", abz.BERT_ATTENTION)] + [(f"layer {2 * index + 2}", pair.split(" | ")[1]) for index, pair in enumerate(abz.PUBLISHED)]:
        graph = abz.parse_formula(text)
        for tokens, batch in ((128, 8), (512, 2)):
            inputs = {index: torch.randn(batch, 12, tokens, 64, requires_grad=True) for index in abz.used_inputs(graph)}
            mask = torch.ones(batch, tokens, dtype=torch.bool)

            def forward(fuse):
                return abz.run_graph(graph, inputs, mask, fuse=fuse)
            times = interleaved({fuse: lambda fuse=fuse: forward(fuse).sum().backward() for fuse in (True, False)})
            memory = saved_bytes(lambda: forward(False)) / saved_bytes(lambda: forward(True))
            print(f"| {name} | {tokens} | {1e3 * times[True]:.1f} | {1e3 * times[False]:.1f} | {times[False] / times[True]:.2f} | {memory:.2f} |")


def convolutions():
    print("| kernel | band ms | grouped ms | taken ms |\n|---|---|---|---|")
    for size in abz.KERNELS:
        x, kernel = torch.randn(8, 128, 768, requires_grad=True), torch.randn(12, size, requires_grad=True)
        times = interleaved({band: lambda band=band: abz.light_conv(x, kernel, band).sum().backward() for band in (True, False, None)})
        print(f"| {size} | {1e3 * times[True]:.1f} | {1e3 * times[False]:.1f} | {1e3 * times[None]:.1f} |")


def demo_data(cfg):
    """Tokenizer and token files of the demo text."""
    from common.distributed import Ranks
    from common.inputs import fill_in, open_text
    ranks = Ranks(0, 1, torch.device("cpu"))
    fill_in(cfg, ranks, "corpus")
    text = open_text(cfg, ranks, tempfile.mkdtemp())
    return abz.Data(text.tokenizer, text.train, text.dev, [], ranks.device, None)


def demo_config():
    return abz.Config(**{name: value for name, value in abz.PRESETS["demo"].items() if not isinstance(value, dict)})


def data():
    cfg = dataclasses.replace(demo_config(), length=128)
    source, place = demo_data(cfg), iter(range(0, 10**9, 1024))
    for rows in (256, 1024):
        seconds = interleaved({
            "cut": lambda: source.train.segments(next(place), rows, cfg.length - 3, 0),
            "cut, paired and masked": lambda: abz.language_batch(source, source.train, cfg, next(place), rows)}, 200)
        for name, each in seconds.items():
            speed = rows * cfg.length / each / 1e6
            print(f"{rows} x {cfg.length}, {name}: {speed:.1f} million tokens/s, {torch.get_num_threads()} threads")


def steps():
    cfg = dataclasses.replace(demo_config(), steps=60)
    source = demo_data(cfg)
    from common.distributed import Ranks
    for name in ("bert", "autobert-zero"):
        model = abz.LanguageModel(abz.named_arch(name, cfg.layers), cfg)
        began = time.perf_counter()
        abz.train_language_model(model, source, cfg, Ranks(0, 1, torch.device("cpu")))
        rate = cfg.steps / (time.perf_counter() - began)
        print(f"{name}: {rate:.1f} steps/s of {cfg.batch} x {cfg.length} tokens, {rate * cfg.batch * cfg.length / 1e3:.1f} thousand tokens/s")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["graphs", "convolutions", "data", "steps"]:
        print(f"\n{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
        {"graphs": graphs, "convolutions": convolutions, "data": data, "steps": steps}[name]()
