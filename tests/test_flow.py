"""How a training step flows. Nothing in it waits for the device but where it is logged: counted in the files' own
training loops, on the CPU. Slow: torch.compile with the inductor breaks no graph and gives eager's losses."""
import contextlib
import itertools
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import slow
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import albert
import autobert_zero
import autotinybert
import mformer
from common.distributed import Ranks
from common.tasks import Recipe

CPU, TORCH = torch.device("cpu"), Path(torch.__file__).parent
RANKS = Ranks(0, 1, CPU)
FILES = ("albert.py", "autobert_zero.py", "autotinybert.py", "mformer.py")
# operations whose result the host must have before it goes on; indexing with a mask is looked at apart
READING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "repeat_interleave")


def place():
    """FILE:FUNCTION, the innermost of the paper files that is running, or of all where it is none's."""
    frame = sys._getframe(2)
    while frame and Path(frame.f_code.co_filename).name not in FILES:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}:{frame.f_code.co_name}" if frame else "elsewhere"


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket.__name__
        masks = name.startswith("index") and any(
            torch.is_tensor(each) and each.dtype in (torch.bool, torch.uint8) for each in itertools.chain(
                *(value for value in args if isinstance(value, (list, tuple)))))
        if masks or name in READING:
            self.note("read")
        return func(*args, **(kwargs or {}))


class Calls(TorchFunctionMode):
    """What no operation shows on a CPU: there tolist() reads memory, and a copy to the device is none."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        moved = [value for value in (*args[1:2], kwargs.get("device")) if isinstance(value, (str, torch.device))]
        if name in ("tolist", "cpu", "numpy"):
            self.note("read")
        elif moved and name in ("to", "tensor", "as_tensor", "new_tensor") and not kwargs.get("non_blocking"):
            if TORCH not in Path(sys._getframe(1).f_code.co_filename).parents:  # which moves from a device to itself
                self.note("copy")  # set_sync_debug_mode says so too: the host waits until pageable memory is sent
        return func(*args, **kwargs)


class Waits(contextlib.ExitStack):
    """waits.seen: [(updates done, "read" or "copy", place)] of a block of code. Where a loop asks Pace, after the
    optimizer's step, an update ends."""

    def __init__(self, monkeypatch, *modules):
        super().__init__()
        self.updates, self.seen = 0, []
        for module in modules:
            monkeypatch.setattr(module, "Pace", lambda *args: self.beat)

    def note(self, kind):
        self.seen.append((self.updates, kind, place()))

    def beat(self):
        self.updates += 1
        return False, False, False

    def __enter__(self):
        for part in (Operations(), Calls()):
            part.note = self.note
            self.enter_context(part)
        return self

    def between(self, every):
        """{(kind, place)} in updates with no line of the log before them; every: updates between lines."""
        assert self.updates > 2 * every  # there were lines, and updates without
        assert any(number and number % every == 0 for number, *_ in self.seen)
        return {tuple(found) for number, *found in self.seen if number % every}


def numbers(*shape, below=50):
    return torch.randint(below, shape)


def full(rows, tokens):
    return torch.full((rows,), tokens)


def kept(*args, **owned):
    """A checkpoint that keeps nothing."""
    return SimpleNamespace(owned=owned, ranks=RANKS, path=Path("none"), restore=dict, save=lambda **values: None,
                           remove=lambda: None)


RUN = SimpleNamespace(ranks=RANKS, log=lambda *place, **values: None, folder=Path("none"))
SMALL = dict(layers=2, hidden=16, heads=2, ffn=32, vocab_size=50, length=16, dropout=0.1, dtype="float32")


def test_the_counter_sees_what_waits(monkeypatch):
    x, seen = torch.randn(4), []
    waiting = (lambda: x[0].item(), lambda: float(x[0]), lambda: bool(x[0] > 0), x.tolist, x.cpu, x.numpy, x.nonzero,
               lambda: x[x > 0], lambda: torch.where(x > 0), lambda: x.masked_select(x > 0), lambda: x.to("cpu"),
               lambda: torch.tensor(1.0, device="cpu"), lambda: x.repeat_interleave(torch.tensor([1, 1, 1, 1])))
    flowing = (lambda: x.to("cpu", non_blocking=True), lambda: x.to(torch.float64), lambda: torch.where(x > 0, x, 0.0),
               lambda: x[torch.tensor([0])], lambda: x.masked_fill(x > 0, 1.0), lambda: x[0] > 0)
    for function in (*waiting, *flowing):
        with Waits(monkeypatch) as waits:
            function()
        seen.append(len(waits.seen))
    assert all(seen[:len(waiting)]) and not any(seen[len(waiting):])


def test_albert_waits_where_it_logs(monkeypatch):
    cfg = albert.Config(**{**SMALL, "embedding": 8}, steps=40, batch=4, accumulate=1, save_every=1000, positions=16)
    model, M = albert.LanguageModel(cfg), albert.masked_count(cfg)

    def made(corpus, tokenizer, cfg, objective, position, rows, device):
        return [numbers(rows, 16), numbers(rows, 16, below=2), full(rows, 16), numbers(rows, M, below=16),
                numbers(rows, M), numbers(rows, below=2)]

    monkeypatch.setattr(albert, "language_batch", made)
    optimizer, text = albert.Lamb(model.parameters(), 1e-3), SimpleNamespace(train=None, tokenizer=None)
    with Waits(monkeypatch, albert) as waits:
        albert.train_language_model(model, text, cfg, RANKS, RUN, kept(), optimizer)
    assert waits.between(every=2) == set()


@pytest.mark.parametrize("name", ["conv65 | conv3", slow("autobert-zero"), slow("bert")])
def test_autobert_zero_waits_where_it_logs(name, monkeypatch):
    monkeypatch.setattr(autobert_zero, "LOG_EVERY", 10)
    monkeypatch.setattr(autobert_zero, "CHECK_EVERY", 4)
    layers = 2 if "|" in name else 12
    cfg = autobert_zero.Config(**{**SMALL, "layers": layers}, steps=24, batch=4, accumulate=2, save_every=1000)
    model = autobert_zero.LanguageModel(autobert_zero.read_arch(name, layers), cfg)

    def made(data, corpus, cfg, position, rows):
        return [numbers(rows, 16), numbers(rows, 16, below=2), full(rows, 16), numbers(5, below=rows * 16), numbers(5),
                numbers(rows, below=2)]

    monkeypatch.setattr(autobert_zero, "language_batch", made)
    with Waits(monkeypatch, autobert_zero) as waits:
        autobert_zero.train_language_model(model, SimpleNamespace(train=None), cfg, RANKS, kept(),
                                           report=lambda step, losses, rate: [loss.item() for loss in losses])
    # the norm is looked at every CHECK_EVERY updates, so that a run that has diverged ends before its next log
    looks = {number for number, *_ in waits.seen if number}
    assert looks == {*range(4, 25, 4), 10}
    assert waits.between(every=2) == set()


@pytest.mark.parametrize("kind", ["super-net", slow("distilled"), slow("further")])
def test_autotinybert_waits_where_it_logs(kind, monkeypatch, tmp_path):
    arch, fit = autotinybert.parse_arch("2-32-64-2-32"), 32 * (kind == "distilled")
    cfg = autotinybert.Config(vocab_size=50, length=16, largest="2-32-64-2-32", smallest="1-16-16-1-16", batch=4,
                              accumulate=2, eval_every=5, save_every=1000, dtype="float32", steps=15, lr=1e-4,
                              setting="distill" if fit else "mlm")
    data = autotinybert.Data(CPU, teacher=autotinybert.Encoder(arch, 50).eval() if fit else None)

    def made(text, data, cfg, phase, position, rows, count):
        for _ in range(count):
            masked = [] if fit else [numbers(rows, 2, below=16), numbers(rows, 2)]
            yield [numbers(rows, 16), numbers(rows, 16, below=2), full(rows, 12), *masked]

    monkeypatch.setattr(autotinybert, "text_batches", made)
    monkeypatch.setattr(autotinybert, "Checkpoint", kept)
    monkeypatch.setattr(autotinybert, "keep_model", lambda *args, **models: None)
    archs = [autotinybert.parse_arch("1-16-32-2-32" if fit else "1-16-32-1-16"), arch]
    model = autotinybert.LanguageModel(arch, 50, 0.1, fit)

    def networks(step, number):
        return [model] if kind == "further" else [autotinybert.sub_model(model, arch) for arch in archs]
    with Waits(monkeypatch, autotinybert) as waits:
        autotinybert.pretrain(model, "superplm", networks, data, cfg, RUN, tmp_path / kind, 0.1)
    assert waits.between(every=5) == set()


IMAGES = "layers=2 hidden=16 ffn=32,32 heads=2,2 types=softmax,linear"
TEXTS = IMAGES + (" decoder_layers=2 decoder_hidden=16 decoder_ffn=32,32 decoder_heads=2,2 decoder_types=softmax,linear"
                  " cross_heads=2,2 connect=1,2 cross_types=softmax,linear")


def mformer_of(task, **settings):
    """(cfg, arch, batch) of a tiny network; batch(rows, tokens) of its task."""
    cfg = mformer.Config(task=task, image=16, patch=4, vocab_size=50, length=16, qkv=16 * (task == "wmt14"), head_dim=8,
                         relative=2, dtype="float32", **settings)

    def batch(rows=4, tokens=12):
        if task == "cifar10":
            return [torch.randn(rows, 3, 16, 16), numbers(rows, below=10)]
        return [numbers(rows, tokens), full(rows, tokens), numbers(rows, tokens + 1), numbers(rows, tokens + 1)]
    return cfg, mformer.parse_arch(IMAGES if task == "cifar10" else TEXTS, cfg), batch


@pytest.mark.parametrize("task, searching", [
    ("cifar10", False), ("wmt14", True), slow("cifar10", True), slow("wmt14", False)])
def test_mformer_waits_where_it_logs(task, searching, monkeypatch):
    cfg, arch, batch = mformer_of(task, steps=15, batch=8, accumulate=2, save_every=5, dropout=0.1,
                                  layers=(2,), hidden=(16,), ffn=(16, 32), heads=(1, 2), decoder_layers=(1, 2),
                                  connect=(1, 2))
    space = mformer.space_of(cfg) if searching else None
    model = mformer.make_model(mformer.widest(space) if space else arch, cfg, space)
    data = SimpleNamespace(batch=lambda number: batch(), unit="rows", set_aside=0)
    monkeypatch.setattr(mformer, "Checkpoint", kept)
    monkeypatch.setattr(mformer, "LastWeights", lambda *args: SimpleNamespace(
        save=lambda *args: None, mean=model.state_dict, remove=lambda: None))
    with Waits(monkeypatch, mformer) as waits:
        mformer.train_network(model, data, cfg, RANKS, RUN, space)
    assert waits.between(every=5) == set()


def of_finetuning(name):
    """train(task) of a file."""
    settings = dict(layers=2, hidden=16, heads=2, ffn=32, vocab_size=50, dtype="float32")
    if name == "albert":
        cfg = albert.Config(**settings, embedding=8, positions=16, accumulate=2)
        model = albert.Classifier(cfg, 2)
        return lambda task: albert.train_task(model, task, 0, cfg, Path("none"), CPU, RUN)
    if name == "autobert_zero":
        cfg = autobert_zero.Config(**settings, save_every=1000)
        model = autobert_zero.TaskModel(autobert_zero.read_arch("bert", 2), cfg, 2)
        return lambda task: autobert_zero.train_task(model, task, cfg, CPU, kept(), RUN)
    cfg = autotinybert.Config(dtype="float32")
    cfg.run, encoder = RUN, autotinybert.Encoder(autotinybert.parse_arch("2-16-32-2-16"), 50)
    return lambda task: autotinybert.fine_tune(encoder, task, cfg, CPU, 0, "job")


@pytest.mark.parametrize("file", [albert, autobert_zero, autotinybert])
def test_fine_tunings_wait_where_they_log_or_look(file, monkeypatch):
    batch = {"ids": numbers(4, 16), "segments": numbers(4, 16, below=2), "lengths": full(4, 14),
             "labels": numbers(4, below=2)}
    task = SimpleNamespace(
        name="CoLA", kind="class", outputs=2, steps=100, recipe=Recipe(1e-4, 4), splits={},
        batches=lambda *start: itertools.repeat(batch), looks=lambda *every: {*range(5, 101, 5)},
        collect=lambda split, forward: forward(batch), score=lambda *outputs: {"main": 0.5})
    monkeypatch.setattr(autobert_zero, "CHECK_EVERY", 5)
    monkeypatch.setattr(albert, "Checkpoint", kept)
    train = of_finetuning(file.__name__)
    with Waits(monkeypatch, file) as waits:
        train(task)
    # albert looks before it asks Pace, the others behind it
    assert {number % 5 for number, *_ in waits.seen if number} == {4 if file is albert else 0}


# --- torch.compile ---------------------------------------------------------------------------------------------------

def step_of(name):
    """(model, loss(network, batch), batches): three or more updates of a file, rows of several lengths where it
    has them."""
    batch = [numbers(4, 16), numbers(4, 16, below=2), full(4, 14)]
    if name == "albert":
        cfg = albert.Config(**{**SMALL, "dropout": 0.0, "embedding": 8}, positions=16)
        M = albert.masked_count(cfg)
        batch += [numbers(4, M, below=14), numbers(4, M)]

        def loss(network, batch):
            words, order = network(*batch[:4])
            return albert.mean_loss(words.flatten(0, 1), batch[4].flatten()) + order.square().mean()
        return albert.LanguageModel(cfg), loss, [batch] * 3
    if name == "autobert-zero":
        cfg = autobert_zero.Config(**{**SMALL, "layers": 12, "dropout": 0.0})
        batch += [numbers(9, below=64), numbers(9), numbers(4, below=2)]
        return (autobert_zero.LanguageModel(autobert_zero.read_arch(name, 12), cfg),
                lambda network, batch: sum(autobert_zero.language_losses(network, batch, cfg, CPU)[0]), [batch] * 3)
    if name == "autotinybert":
        model, batch = autotinybert.LanguageModel(autotinybert.parse_arch("2-32-64-2-32"), 50), batch[:2]
        batches = [[*batch, full(4, 14) if turn % 2 else None, numbers(4, 2, below=14), numbers(4, 2)]
                   for turn in range(4)]
        return model, autotinybert.masked_loss, batches
    cfg, arch, batch = mformer_of(name)
    arch = arch._replace(decoder_types=("softmax",) * 2) if arch.decoder_layers else arch  # as the published ones
    batches = [batch(rows, tokens) for rows, tokens in ((6, 8), (4, 12), (3, 15))]

    def loss(network, batch):
        total, count = mformer.smoothed_loss(network, batch)
        return total / count
    return mformer.make_model(arch, cfg), loss, batches if name == "wmt14" else batches[1:2] * 3


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="the inductor needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["albert", "autobert-zero", "autotinybert", "cifar10", "wmt14"])
def test_compiled_is_eager(name, tmp_path, monkeypatch):
    """Losses and gradients; no graph breaks, and at most two are compiled anew. Decoders of linear attention are left
    out: torch 2.13 makes no code of their backward pass at lengths that vary."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a kill leaves damaged files in the common one
    torch.manual_seed(0)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model, loss, batches = step_of(name)
    network = torch.compile(model.train(), fullgraph=True)
    for batch in batches:
        losses, gradients = [], []
        for each in (model, network):
            model.zero_grad()
            losses.append(loss(each, batch))
            losses[-1].backward()
            gradients.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
        torch.testing.assert_close(*losses, rtol=0, atol=1e-4)
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-3)
    counts = torch._dynamo.utils.counters
    assert not counts["graph_break"] and 1 <= counts["stats"]["unique_graphs"] <= 3
