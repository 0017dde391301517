"""What a GPU must be able to rely on: masks that hide a whole row give numbers in bfloat16 too; batches and models come
over as they were. On a machine with a GPU these tests run on it; with $PAPERS_CARD, the folder of a simulated GPU's
card.py, they run on that one too."""
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import kills
import pytest
import torch

import albert
import autobert_zero as abz
import autotinybert as atb
import mformer as mf
from common.distributed import launch, move, send, to_host
from common.files import read_jsonl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = torch.tensor([9, 0, 3])  # the second row is empty
SHAPE = dict(vocab_size=50, layers=2, hidden=16, heads=2, ffn=32, dropout=0.1)
OVER_TOKENS = "(K @ softmax(Q.T)).T.T @ V + dist(Q, P) @ softsign(V)"  # a softmax of "dn"
WORDS = mf.Config(task="wmt14", layers=(3,), hidden=(24,), ffn=(32,), heads=(2,), decoder_layers=(1,), qkv=32,
                  relative=3, length=40, vocab_size=50)


def text():
    """ids, segments (3, 9), lengths (3,)"""
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    return send((ids, (ids > 25).long(), LENGTHS), DEVICE)


def of_autobert(arch):
    model = abz.LanguageModel(abz.read_arch(arch, 2), abz.Config(**SHAPE)).to(DEVICE)
    return model, lambda: model(*text(), torch.arange(8, device=DEVICE))


def of_random_autobert(seed):
    return of_autobert(abz.arch_text(abz.sample_arch(random.Random(seed), 2)))


def of_autotinybert(fit):
    model = atb.LanguageModel(atb.parse_arch("2-16-32-2-16"), 50, 0.1, fit).to(DEVICE)
    def loss():
        states, scores = model.student(*text())
        return atb.distillation_loss((states, scores), (states.detach() + 1, scores.detach() + 1), text()[2])
    return model, loss if fit else lambda: model(*text(), torch.zeros(3, 2, dtype=torch.long, device=DEVICE))


def of_albert(head):
    model = head(albert.Config(embedding=8, positions=16, **SHAPE)).to(DEVICE)
    hidden = torch.arange(9) >= LENGTHS[:, None]  # of the empty row no place is left for an answer
    batch = {"p_mask": hidden, "start": LENGTHS - LENGTHS, "end": LENGTHS - LENGTHS, "impossible": torch.ones(3)}
    batch = send(batch, DEVICE) | dict(zip(("ids", "segments", "lengths"), text()))
    return model, (lambda: model.loss(batch)) if head is albert.AnswerModel else lambda: model(batch)


def of_mformer(attn_type):
    arch = mf.retype(mf.sample_arch(mf.space_of(WORDS), random.Random(0)), attn_type, mf.PARTS)
    model, (ids, target, lengths) = mf.Translator(arch, WORDS).to(DEVICE), text()
    return model, lambda: model(ids, lengths, target)


CASES = [(of_autobert, "bert"), (of_autobert, f"conv9 | {OVER_TOKENS}"),
         *((of_random_autobert, seed) for seed in range(6)), (of_autotinybert, 0), (of_autotinybert, 24),
         (of_albert, albert.SpanModel), (of_albert, albert.AnswerModel),
         *((of_mformer, attn_type) for attn_type in mf.TYPES)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make, kind", CASES)
def test_a_row_without_tokens_gives_numbers_and_gradients(make, kind, dtype):
    """Softmaxes over tokens, attention fused and by operations, raw scores of distillation, spans without a place for
    an answer, the cross-attention of an empty source."""
    torch.manual_seed(0)
    model, forward = make(kind)
    with torch.autocast(DEVICE.type, dtype, enabled=dtype is not torch.float32):
        found = forward()
    found = found if isinstance(found, tuple) else (found,)
    sum(part.float().square().sum() for part in found).backward()
    assert all(part.isfinite().all() for part in found)
    assert all(value.grad.isfinite().all() for value in model.parameters() if value.grad is not None)


def test_an_empty_source_is_translated():
    torch.manual_seed(0)
    model = of_mformer("softmax")[0].to(torch.bfloat16).eval()
    found = mf.beam_search(model, text()[0], LENGTHS.to(DEVICE), longest=20, bos=2, eos=3)
    assert len(found) == 3 and all(score > float("-inf") for _, score in found)


def test_batches_and_models_travel_unchanged():
    batch = {"ids": torch.arange(6).view(2, 3), "none": None}
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sent, moved = send(batch, DEVICE), move(model, DEVICE)
    assert sent["none"] is None and sent["ids"].device.type == moved.weight.device.type == DEVICE.type
    assert not moved.bias.requires_grad and isinstance(moved.weight, torch.nn.Parameter)
    kept = to_host(moved.state_dict())
    with torch.no_grad():
        moved.weight.zero_()  # what is kept is a copy
    assert torch.equal(sent["ids"].cpu(), batch["ids"])
    assert all(torch.equal(kept[name], value) for name, value in before.items())


def test_float32_is_multiplied_in_tf32_on_a_gpu_alone():
    before = torch.get_float32_matmul_precision()
    for dtype in ("bfloat16", "float32"):
        with launch("auto", dtype):
            high = dtype == "float32" and DEVICE.type == "cuda"
            assert torch.get_float32_matmul_precision() == ("high" if high else before)
    torch.set_float32_matmul_precision(before)


SIMULATED = pytest.mark.skipif(
    "PAPERS_CARD" not in os.environ, reason="$PAPERS_CARD names no folder of a simulated GPU's onto_card.py")
TRAININGS = {"albert": "pretrain", "autobert_zero": "pretrain", "mformer": "train"}  # of tests/kills.py


def start_training(program, folder, cards=0):
    """The process of a small training on so many simulated GPUs; 0: on the CPU."""
    words = shlex.split(kills.COMMANDS[program][TRAININGS[program]])
    onto = [str(Path(os.environ["PAPERS_CARD"]) / "onto_card.py")] if cards else []
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={cards}"] if cards > 1 else []
    return subprocess.Popen(
        [sys.executable, *torchrun, *onto, f"{program}.py", *words, "--accumulate", "2", "--dropout", "0", "--dtype",
         "float32", "--out", str(folder), *([] if cards else ["--device", "cpu"])], cwd=kills.ROOT,
        start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "CARD_COUNT": str(max(cards, 1))})


def losses_of(folder):
    """{step: training loss}. Weights differ by more, since AdamW divides by gradients that are nearly zero."""
    return {line["step"]: line["loss"] for line in read_jsonl(folder / "log.jsonl") if "loss" in line}


@SIMULATED
def test_the_same_on_a_simulated_gpu():
    code = ("import sys, card; card.install(); import pytest; "
            "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1]]))")
    others = {name: value for name, value in os.environ.items() if name != "PAPERS_CARD"}
    path = os.pathsep.join([os.environ["PAPERS_CARD"], str(Path(__file__).parent.parent)])
    result = subprocess.run([sys.executable, "-c", code, __file__], env={**others, "PYTHONPATH": path},
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@SIMULATED
@pytest.mark.slow
@pytest.mark.parametrize("program", TRAININGS)
def test_two_gpus_and_a_run_that_changes_its_device_train_as_a_cpu_does(program, tmp_path):
    """Gradients are averaged over two GPUs; a run that is killed on a GPU goes on on the CPU."""
    assert start_training(program, tmp_path / "cpu").wait() == 0
    assert start_training(program, tmp_path / "two", cards=2).wait() == 0
    moved = start_training(program, tmp_path / "moved", cards=1)
    while not (tmp_path / "moved" / "checkpoint.pt").exists():
        assert moved.poll() is None
        time.sleep(0.1)
    os.killpg(moved.pid, signal.SIGKILL)
    moved.wait()
    assert start_training(program, tmp_path / "moved").wait() == 0
    wanted = losses_of(tmp_path / "cpu")
    for name in ("two", "moved"):
        found = losses_of(tmp_path / name)
        assert found and found == pytest.approx({step: wanted[step] for step in found}, rel=1e-4), name
