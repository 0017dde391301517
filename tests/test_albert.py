"""albert.py: published counts, parity with transformers, LAMB, n-grams, sentence order,
fine-tuning."""
import copy
import dataclasses
import shutil
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import albert
from common.files import read_json, write_json
from common.cli import Command
from common.finetune import Recipe
from common.tokenization import load_tokenizer
from data import hf_models
from data.inputs import Data
from data.order_baseline import first_token_baseline
from data.text import train_sentencepiece
from small_runs import ALONE, TRAINED, call, write
from tests.claims import albert as claims

TINY = albert.Config(vocab_size=60, layers=4, hidden=16, heads=2, ffn=32, embedding=8, dropout=0.0,
                     positions=40, length=16)


def tiny(**changes):
    return dataclasses.replace(TINY, **changes)


def example():
    """A batch: ids, token_type_ids (3, 12), lengths (3,) with padding."""
    ids = torch.randint(
        5,
        60,
        (3, 12),
        generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([12, 9, 5])
    token_type_ids = (torch.arange(12) >= 5).long().repeat(3, 1)
    ids[torch.arange(12) >= lengths[:, None]] = 0
    return {"ids": ids, "token_type_ids": token_type_ids, "lengths": lengths}


close = torch.testing.assert_close

# --- parameters ----------------------------------------------------------------------------------

COUNTS = """
bert-base                                       108,490,752 109,081,344 109,705,010
bert-large                                      333,557,760 334,607,360 335,691,058
base                                            11,092,992  11,683,584  11,813,810
large                                           16,634,368  17,683,968  17,847,474
xlarge                                          54,528,512  58,724,864  59,021,490
xxlarge                                         205,814,272 222,595,584 223,158,450
base layers=3 hidden=6144 heads=96 ffn=24576    457,763,328 495,518,208 496,347,314
base share=none embedding=64                    87,057,408  87,648,000  87,728,882
base share=none                                 89,059,584  89,650,176  89,780,402
base share=none embedding=256                   93,063,936  93,654,528  93,883,442
base embedding=64                               9,090,816   9,681,408   9,762,290
base embedding=256                              15,097,344  15,687,936  15,916,850
base embedding=0                                30,524,160  31,114,752  31,738,418
base embedding=768                              30,524,160  31,114,752  31,738,418
base embedding=768 mapped=1                     31,114,752  31,705,344  32,329,010
base embedding=0 share=attention                82,487,808  83,078,400  83,702,066
base embedding=0 share=ffn                      56,527,104  57,117,696  57,741,362
base share=attention                            63,056,640  63,647,232  63,777,458
base share=ffn                                  37,095,936  37,686,528  37,816,754
base groups=2                                   18,180,864  18,771,456  18,901,682
base groups=4                                   32,356,608  32,947,200  33,077,426
"""  # settings, then counts of the encoder, with its pooler, with all heads (Tables 1, 3, 4, 12)


@pytest.mark.parametrize("row", COUNTS.strip().split("\n"))
def test_parameter_counts_to_the_unit(row):
    preset, *changes, encoder, pooled, whole = row.split()
    settings = {**albert.PRESETS[preset]}
    for change in changes:
        name, value = change.split("=")
        settings[name] = int(value) if value.isdigit() else value
    cfg = albert.Config(**settings)
    counts = claims.countings(cfg)
    assert [f"{counts[name]:,}" for name in "ABC"] == [encoder, pooled, whole]


# --- model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"share": "none", "embedding": 0}, {"recompute": True}])
def test_the_last_layer_only_at_masked_positions_and_recomputation(changes):
    """The same states, [CLS] first, and the same gradients."""
    torch.manual_seed(0)
    part = albert.Encoder(tiny(**changes)).train()
    whole = copy.deepcopy(part)
    whole.recompute = False
    positions = torch.tensor([[3, 1], [5, 5], [2, 4]])
    states = part(*example().values(), positions)
    expected = albert.gather_positions(
        whole(*example().values()),
        F.pad(positions, (1, 0)))
    close(states, expected, rtol=0, atol=1e-6)
    states.square().sum().backward()
    expected.square().sum().backward()
    for one, two in zip(part.parameters(), whole.parameters()):
        close(
            one.grad,
            two.grad,
            rtol=1e-4,
            atol=1e-5)


def test_dropout_of_the_ffn_output_is_applied_until_it_is_removed():
    """Hugging Face builds it but never calls it."""
    block = albert.FeedForward(tiny(dropout=0.5)).train()
    x = torch.randn(1, 4, 16)
    assert not torch.equal(block(x), block(x))
    albert.remove_dropout(block)
    assert torch.equal(block(x), block(x))


@torch.no_grad()
def test_the_answer_head_is_xlnets():
    """The end given the start: a map of [token; start]. The beam is wide enough for all spans."""
    torch.manual_seed(0)
    model = albert.AnswerModel(tiny(), beams=12).eval()
    batch = example()
    p_mask = batch["token_type_ids"] == 0
    starts, ends, scores, _ = model({**batch, "p_mask": p_mask})
    x = model.encoder(*batch.values())
    start = model.answer.start(x)[..., 0].masked_fill(p_mask, -1e30)
    pairs = torch.cat(
        [x, x[:, 6:7].expand_as(x)],
        dim=-1)
    mixed = model.answer.end_norm(torch.tanh(model.answer.end_mix(pairs)))
    end = model.answer.end(mixed)[..., 0].masked_fill(p_mask, -1e30)
    expected = start.log_softmax(-1)[:, 6] + end.log_softmax(-1)[:, 8]
    close(
        scores[(starts == 6) & (ends == 8)],
        expected,
        rtol=1e-5,
        atol=1e-5)


def test_the_loss_of_the_answer_head():
    """The mean for start and end, given the true start, and half the loss of "no answer"."""
    model = albert.AnswerModel(tiny())
    start, end = torch.randn(2, 3, 7)
    null = torch.tensor([2.0, -1.0, 0.5])
    batch = {"start": torch.tensor([4, 0, 2]), "end": torch.tensor([5, 0, 6]), "p_mask": None,
             "impossible": torch.tensor([0.0, 1.0, 0.0])}
    model.read = lambda batch: (None, start, null)
    model.end_logits = lambda x, starts, p_mask: torch.where(
        starts[..., None] == batch["start"][:, None, None], end[:, None], 0.0)
    spans = F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])
    none = (F.softplus(null[[0, 2]]).sum() + F.softplus(-null[1])) / 3
    close(model.loss(batch), spans / 2 + none / 2)


# --- Hugging Face --------------------------------------------------------------------------------

HEADS = {  # name: (our model, its outputs, the end of their class's name, their labels)
    "pretraining": (albert.LanguageModel, 2, "PreTraining", {}),
    "classification": (
        albert.Classifier, 3, "SequenceClassification", {"labels": torch.tensor([2, 0, 1])}),
    "regression": (
        albert.Classifier, 1, "SequenceClassification", {"labels": torch.tensor([2.5, 0.0, 1.0])}),
    "choice": (albert.MultipleChoice, 1, "MultipleChoice", {"labels": torch.tensor([1])}),
    "span": (
        albert.SpanModel, 2, "QuestionAnswering",
        {"start_positions": torch.tensor([2, 0, 1]), "end_positions": torch.tensor([4, 0, 3])}),
}


def outputs_of(kind, model, inputs, lengths):
    """Our loss (not of pre-training) and logits. inputs: with transformers' names."""
    names = {"input_ids": "ids", "start_positions": "start", "end_positions": "end"}
    batch = {
        names.get(name, name): value
        for name, value in inputs.items()}
    batch["lengths"] = lengths
    if kind == "pretraining":
        return model({**batch, "masked_positions": torch.arange(12).expand(3, 12)})
    logits = model(batch)
    return [
        model.loss(batch),
        *(logits.unbind(-1) if kind == "span" else [logits])]


@pytest.fixture
def tokenizer(ready):
    return load_tokenizer(ready["corpus"])


def read_back(folder):
    """(Config, Pretrained) of a folder given as --init."""
    return resolved(tiny(init=str(folder)))


def resolved(cfg, *given):
    """(Config, Pretrained) of an export with these flags."""
    command = Command("albert", "export", given=frozenset(given))
    source = albert.load_pretrained(cfg, command)
    return albert.resolve(cfg, command, ALONE, source), source


@pytest.mark.peers
@pytest.mark.parametrize("kind, changes", [
    *((kind, {"num_hidden_groups": 2}) for kind in HEADS),
    ("pretraining", {"embedding_size": 16, "hidden_act": "gelu"}),  # E = H has a mapping there
])
@torch.no_grad()
def test_parity_with_transformers(kind, changes, tokenizer):
    """For a folder that they write and we read, and one that we write and they read."""
    transformers = pytest.importorskip("transformers")
    our_class, outputs, name, labels = HEADS[kind]
    settings = dict(
        vocab_size=60, embedding_size=8, hidden_size=16, num_hidden_layers=4,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=40,
        num_labels=outputs)
    make = getattr(transformers, f"AlbertFor{name}")
    make(transformers.AlbertConfig(**settings | changes)).save_pretrained("theirs")
    cfg, source = read_back("theirs")
    ours = our_class(cfg, *[outputs] * issubclass(our_class, albert.Classifier)).eval()
    albert.start_from(ours, source, source.task)
    task = "RACE" if kind == "choice" else ""
    hf_models.write_albert(
        Path("ours"), ours.state_dict(), task, cfg, cfg.groups, tokenizer, 12)
    batch = example()
    lengths = batch["lengths"]
    inputs = {"input_ids": batch["ids"], "token_type_ids": batch["token_type_ids"]}
    if kind == "choice":  # three options of one question
        inputs = {
            name: value[None]
            for name, value in inputs.items()}
        lengths = lengths[None]
    visible = (torch.arange(12) < lengths[..., None]).long()
    results = outputs_of(
        kind,
        ours,
        {**inputs, **labels},
        lengths)
    for folder in ("theirs", "ours"):
        theirs, info = make.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["mismatched_keys"]
        expected = theirs.eval()(**inputs, **labels, attention_mask=visible).to_tuple()
        for one, other in zip(results, expected):
            close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize("lower", [True, False])
def test_transformers_reads_the_exported_vocabulary(lower):
    """It gives our ids for lines of Python's documentation."""
    pytest.importorskip("google.protobuf")
    transformers = pytest.importorskip("transformers")
    lines = [line for text in topics.values() for line in text.split("\n") if line.strip()][::20]
    write("text/text.txt", "\n".join(lines))
    path = train_sentencepiece([Path("text")], Path("spiece.model"), 1000, lower=lower)
    ours = load_tokenizer(path, lower)
    hf_models.write_tokenizer(Path(), ours, 512)
    write("config.json", {"model_type": "albert"})
    theirs = transformers.AutoTokenizer.from_pretrained(".")
    ids = theirs(lines, add_special_tokens=False)["input_ids"]
    different = sum(
        one != other
        for one, other in zip(ours.encode_batch(lines), ids))
    assert different < len(lines) / 100  # lines with signs and quotes of two characters
    pair = theirs("the stone", "was small")["input_ids"]
    assert theirs.decode(pair) == "[CLS] the stone[SEP] was small[SEP]"


@pytest.mark.parametrize("task, kept", [("CoLA", True), ("RTE", False), ("", False)])
def test_a_head_of_another_task_is_ignored(task, kept, tokenizer):
    heads = albert.Classifier(TINY, 2).state_dict()
    hf_models.write_albert(Path(), heads, task, TINY, 1, tokenizer, 16)
    cfg, source = read_back(".")
    model = albert.Classifier(cfg, 2)
    albert.start_from(model, source, "CoLA")
    assert torch.equal(model.head.weight, heads["head.weight"]) == kept


# --- LAMB and the schedule -----------------------------------------------------------------------

@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("shape, scale", [((3, 4), 1), ((3, 4), 0), ((5,), 1), ((), 1)])
def test_lamb_is_that_of_the_official_code(shape, scale, adapt):
    """lamb_optimizer.py in numpy, for a matrix, a zero matrix, and a bias and a scalar, which are
    excluded."""
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(scale * torch.randn(shape, dtype=torch.float64))
    optimizer = albert.Lamb(
        [parameter],
        lr=0.1,
        adapt=adapt)
    w = parameter.detach().numpy().copy()
    m = 0
    v = 0
    for lr in (0.01, 0.02, 0.005):
        parameter.grad = torch.randn_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        g = parameter.grad.numpy()
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        u = m / (np.sqrt(v) + 1e-6)
        ratio = 1
        if len(shape) > 1:
            u = u + 0.01 * w
            if adapt and np.linalg.norm(w) > 0:
                ratio = np.linalg.norm(w) / np.linalg.norm(u)
        w = w - lr * ratio * u
    np.testing.assert_allclose(
        parameter.detach(),
        w,
        atol=1e-9)


def test_lamb_takes_groups_a_closure_and_its_saved_state():
    """As the optimizers of torch: a group has the settings of an optimizer of its own."""
    torch.manual_seed(0)
    values = [torch.randn(3, 4), torch.randn(5), torch.randn(())]
    together = [torch.nn.Parameter(value.clone()) for value in values]
    apart = [torch.nn.Parameter(value.clone()) for value in values]
    settings = [dict(lr=0.1, weight_decay=0.5, adapt=False), dict(lr=0.2), dict(lr=0.3)]
    optimizer = albert.Lamb([{"params": together[:1], **settings[0]},
                             {"params": together[1:2]}], lr=0.2)
    optimizer.add_param_group({"params": together[2], **settings[2]})
    several = [albert.Lamb([each], **options) for each, options in zip(apart, settings)]

    def loss_of(parameters):
        loss = sum(each.square().sum() for each in parameters)
        loss.backward()
        return loss

    for _ in range(3):
        loss = optimizer.step(lambda: loss_of(together))
        close(loss, loss_of(apart))
        optimizer.zero_grad()
        for each in several:
            assert each.step(None) is None
            each.zero_grad()
        again = albert.Lamb(optimizer.param_groups, lr=0.0)
        again.load_state_dict(optimizer.state_dict())
        optimizer = again
    for one, other in zip(together, apart):
        assert torch.equal(one, other)


# --- pre-training --------------------------------------------------------------------------------

def test_nsp_needs_two_documents():
    pairs = SimpleNamespace(length_b=torch.ones(2), length_other=torch.zeros(2))
    text = Data(ALONE.device, train=SimpleNamespace(sentence_runs=lambda *_, others: pairs))
    with pytest.raises(albert.UserError):
        albert.check_pairs(text, tiny(corpus=("text",), objective="nsp"))


def test_depth_warm_start_loads_everything(ready):
    """Table 11: one layer's model fills one of four layers."""
    cfg, source = resolved(albert.Config(init=str(ready["albert"]), layers=4), "layers")
    model = albert.LanguageModel(cfg)
    albert.start_from(model, source)
    assert model.encoder.depth == 4
    assert all(torch.equal(value, source.weights[name])
               for name, value in model.state_dict().items())


def test_a_depth_warm_start_without_shared_weights_costs_no_run(works, monkeypatch, capsys):
    """It is refused before --restart deletes the run in the folder."""
    works(f"{TRAINED['albert']} --share none --groups 1 --out unshared")
    works(f"{TRAINED['albert']} --out run")
    command = "albert --pretrain --init unshared --layers 2 --length 60 --out run --restart"
    assert call(command, monkeypatch) == 2
    line, = [line for line in capsys.readouterr().err.split("\n") if "error: " in line]
    assert "of its weights are missing or unexpected" in line and "--layers" in line
    assert len(line) < 300
    assert Path("run/done.json").exists()


# --- fine-tuning ---------------------------------------------------------------------------------

def test_an_ensemble_of_a_model_and_itself_has_its_scores(ready, works):
    """Sec. 4.9. A member without a predicted test split leaves only the scores of dev."""
    shutil.copytree(ready["tuned"], "again")
    predictions = torch.load("again/CoLA/predictions.pt")
    del predictions["test"]
    torch.save(predictions, "again/CoLA/predictions.pt")
    works("albert --finetune CoLA --ensemble {tuned} again --glue {glue} --out mean")
    one, other = [
        read_json(f"{run}/done.json")["tasks"]["CoLA"]["metrics"] for run in ("again", "mean")]
    assert one == other


def test_an_ensemble_refuses_predictions_for_another_test_file(ready, works, monkeypatch, capsys):
    """Also one of equal length, which would get the predictions for the old texts."""
    shutil.copytree(ready["glue"], "glue")
    path = Path("glue/CoLA/test.tsv")
    text = path.read_text()
    path.write_text(text[:-5] + "new.\n")
    command = f"albert --finetune CoLA --ensemble {ready['tuned']} --glue glue"
    assert call(f"{command} --out no", monkeypatch) == 2
    assert "CoLA are for other data (test); " in capsys.readouterr().err
    path.write_text(text)
    works(f"{command} --out mean")


def test_ensembles_average_the_spans_that_several_models_propose():
    """D25: a single model does not beat two."""
    members = [{"nbest": {"q": [{"text": text, "probability": value}
                                for text, value in spans.items()]},
                "null_odds": {"q": odds}}
               for spans, odds in [({"a": 0.6, "b": 0.4}, 1), ({"c": 0.5, "a": 0.5}, 1),
                                   ({"z": 1.0}, -3.5)]]
    mean = albert.average_predictions("span", members)
    assert mean.texts == {"q": "a"}
    assert mean.nbest["q"][0]["probability"] == pytest.approx(1.1 / 3)
    assert mean.null_odds == {"q": -0.5}


def test_recipes_are_table_14():
    assert albert.recipes(albert.Config())["SQuAD1.1"] == Recipe(
        5e-5, 48, steps=3649, warmup=365 / 3649, dropout=0.0, length=384, main="f1")


@pytest.mark.parametrize("given, lr, steps", [((), 1e-3, 0), (("recipe",), 3e-5, 800)])
def test_the_recipe_is_the_models_unless_a_flag_names_one(given, lr, steps, ready):
    cfg, _ = resolved(albert.Config(init=str(ready["albert"])), *given)
    recipe = albert.recipes(cfg)["RTE"]
    assert (recipe.lr, recipe.steps) == (lr, steps)


def test_the_recipe_of_v2_models(tokenizer):
    """Recognised by config.json: no dropout, and half the learning rate for RACE."""
    state = albert.LanguageModel(TINY).state_dict()
    hf_models.write_albert(Path(), state, "", TINY, 1, tokenizer, 16)
    config = read_json("config.json")
    del config["recipe"]  # only in our folders
    write_json("config.json", config)
    recipes = albert.recipes(read_back(".")[0])
    assert (recipes["RACE"].lr, recipes["RACE"].dropout) == (1e-5, 0)
    assert (recipes["RTE"].lr, recipes["RTE"].dropout) == (3e-5, 0)


def test_the_first_token_baseline_learns_which_token_begins_which_segment():
    """Token 7 begins a first segment in three of four sequences, token 8 a second one."""
    def sentence_runs(number, size, *_):
        swapped = torch.arange(number, number + size) % 4 == 0
        begins = torch.where(swapped, 8, 7)[:, None]
        full = torch.ones(size, dtype=torch.long)
        return SimpleNamespace(
            segment_a=begins, length_a=full, segment_b=15 - begins, length_b=full,
            other=begins, length_other=0 * full)

    corpus = SimpleNamespace(sentence_runs=sentence_runs)
    result = first_token_baseline(corpus, corpus, 1600, 64, 61, 0.1, 60)
    assert result == {"sop_accuracy": 0.75}


def test_a_folder_without_model_type_and_in_parts_is_read(ready):
    """Like many published folders and sharded ones, in both formats."""
    whole = resolved(albert.Config(init=str(ready["hf"])))[1].weights
    config = read_json(ready["hf"] / "config.json")
    del config["model_type"]
    weights = hf_models.read_safetensors(ready["hf"] / "model.safetensors")
    names = sorted(weights)
    halves = {"1": names[::2], "2": names[1::2]}
    for kind, save in {"model.safetensors": hf_models.write_weights,
                       "pytorch_model.bin": lambda path, part: torch.save(part, path)}.items():
        folder = Path(kind)
        shutil.copytree(ready["hf"], folder)
        (folder / "model.safetensors").unlink()
        write(folder / "config.json", config)
        for number, half in halves.items():
            save(folder / f"{number}-{kind}", {name: weights[name] for name in half})
        weight_map = {name: f"{number}-{kind}" for number, half in halves.items() for name in half}
        write(folder / f"{kind}.index.json", {"weight_map": weight_map})
        source = resolved(albert.Config(init=str(folder)))[1]
        assert source.weights.keys() == whole.keys()
        assert all(torch.equal(source.weights[name], whole[name]) for name in whole)


def test_the_activation_of_a_folder_may_be_overridden(ready):
    """D26."""
    cfg, _ = resolved(albert.Config(init=str(ready["hf"]), activation="gelu"), "activation")
    assert cfg.activation == "gelu"
    assert resolved(albert.Config(init=str(ready["hf"])))[0].activation == "gelu_new"
