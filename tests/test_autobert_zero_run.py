"""autobert_zero.py as a program: the outputs of its actions."""
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import filled
from small_runs import ALONE, REVIEWS, RUNS, TRAINED, call, next_command, write
from torch.testing import assert_close

import autobert_zero as abz
from common import finetune, glue
from common.files import read_json, read_jsonl
from common.run import keep_model
from common.cli import Command
from common.tokenization import load_tokenizer

SEARCH = f"{RUNS['autobert_zero search']} --out {{out}}"
ARCH = "conv3 | softmax(scale(Q @ K.T)) @ V"


def load(path):
    """The names of an exported module, and its network."""
    names = {}
    exec(path.read_text(), names)
    return names, names["load"](path.with_suffix(".pt")).eval()


@pytest.fixture
def searched(finished):
    """The folder of a search."""
    return finished("autobert_zero search")


def test_a_search_writes_history_best_network_and_the_next_command(searched, works, capsys):
    lines = read_jsonl(searched / "history.jsonl")
    assert [line["round"] for line in lines] == [0] * 3 + [1] * 4
    assert lines[0]["scores"].keys() == {"CoLA", "reviews"}
    best = read_json(searched / "best.json")
    first = max(lines, key=lambda line: line["score"])
    assert best["arch"] == first["arch"]  # the one finalist, scored again
    assert best["baselines"].keys() == {"BERT", "hybrid", "majority", "bag of words"}
    works(SEARCH, out=searched)  # prints the result again
    command = next_command(capsys.readouterr().out)
    works(f"{command} --steps 2 --batch 2")
    settings = read_json("runs/autobert_zero-pretrain-demo/config.json")["settings"]
    assert settings["arch"] == best["arch"]


def test_a_search_in_which_all_diverge_says_so(ready, monkeypatch, capsys):
    command = filled(f"{SEARCH} --lr 1e30 --warm_times 0", out="run", **ready)
    assert call(command, monkeypatch) == 2
    assert "every candidate diverged" in capsys.readouterr().err
    for line in read_jsonl("run/history.jsonl"):
        assert line["diverged"]
        assert line["score"] == 0


def test_the_network_of_a_search_is_exported_as_it_ended(searched, works):
    """With the weights of the finalist, trained again."""
    path = Path("new/net.py")
    works("autobert_zero --export {path} --init {searched}", path=path, searched=searched)
    best = read_json(searched / "best.json")["id"]
    saved = torch.load(searched / "finalists" / f"{best}.pt")
    name = "encoder.token_embedding.weight"
    for module in (path, searched / "best.py"):
        state = load(module)[1].state_dict()
        assert torch.equal(state[name], saved[name])


@pytest.mark.parametrize("name", ["majority", "bag of words"])
def test_a_search_that_does_not_beat_a_baseline_says_so(name, searched, works, capsys):
    shutil.copytree(searched, "run")
    result = read_json("run/done.json")
    for score, said in ((0.0, False), (1.0, True)):
        result["baselines"][name]["score"] = score
        result["score"] = 0.9
        write("run/done.json", result)
        works(SEARCH, out="run")
        assert (f"does not beat the {name} baseline" in capsys.readouterr().out) == said


def test_the_plan_is_of_the_slowest_process(monkeypatch, capsys):
    monkeypatch.setattr(abz, "measure_seconds", lambda data, cfg: (1.0, 5.0))
    monkeypatch.setattr(abz, "gather", lambda ranks, own: [own, (4.0, 2.0)])
    abz.print_plan(SimpleNamespace(ranks=ALONE), None, abz.Config(steps=10, population=6, rounds=0))
    assert "6 candidates of 45 s each; about 5 minute(s)" in capsys.readouterr().out


def keep_tuned(folder, task, tokenizer):
    """A folder as --finetune leaves it."""
    cfg = abz.Config(
        tasks=task,
        layers=2,
        hidden=16,
        heads=2,
        ffn=32,
        init_std=0.5,
        vocab_size=300,
        arch=ARCH,
        length=64,
        finetune_length=16)
    model = abz.TaskModel(abz.parse_arch(ARCH), cfg, 2, False)
    keep_model(folder, Command("autobert_zero", "finetune"), cfg, tokenizer, task=task, model=model)


@pytest.mark.peers
@pytest.mark.parametrize("kind, task", [
    ("Model", ""), ("Model", "RTE"), ("ModelForSequenceClassification", "RTE")])
def test_auto_model_opens_an_exported_folder(kind, task, searched, works, capsys):
    transformers = pytest.importorskip("transformers")
    folder = Path("folder")
    init = searched
    if task:
        init = Path(task)
        keep_tuned(init, task, load_tokenizer(searched))
    write("spiece.model", "theirs")
    works("autobert_zero --export {to} --init {init}", to=folder, init=init)
    printed = capsys.readouterr().out
    assert f"Auto{kind}" in printed
    assert "without protobuf it says that tiktoken is required" in printed
    automatic = getattr(transformers, f"Auto{kind}")
    theirs = automatic.from_pretrained(folder, trust_remote_code=True).eval()
    ours = load(folder / "network.py")[1]
    ids = torch.randint(5, 100, (2, 12))
    lengths = torch.tensor([12, 7])
    mask = (torch.arange(12) < lengths[:, None]).long()
    batch = {"ids": ids, "token_type_ids": torch.zeros_like(ids), "lengths": lengths}
    expected = ours.encoder(**batch) if kind == "Model" else ours(batch)
    assert_close(theirs(ids, mask, return_dict=False)[0], expected)
    if kind.endswith("Classification"):
        labels = torch.tensor([1, 0])
        loss = theirs(ids, attention_mask=mask, labels=labels).loss
        assert_close(loss, torch.nn.functional.cross_entropy(expected, labels))
    with pytest.raises(ValueError, match="padding_side='right'"):
        theirs(ids, attention_mask=mask.flip(1))


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["Model", "ModelForSequenceClassification"])
def test_auto_model_changes_an_exported_network(kind, ready, works):
    """The states of all layers, another number of labels, and more tokens, also when read again."""
    transformers = pytest.importorskip("transformers")
    init = ready["autobert_zero"]
    changes = {}
    if kind.endswith("Classification"):
        init = Path("RTE")
        keep_tuned(init, "RTE", load_tokenizer(ready["autobert_zero"]))
        changes = {"num_labels": 5, "ignore_mismatched_sizes": True}
    works("autobert_zero --export folder --init {init}", init=init)
    automatic = getattr(transformers, f"Auto{kind}")
    network = automatic.from_pretrained("folder", trust_remote_code=True, **changes).eval()
    ids = torch.randint(5, 100, (2, 12))
    mask = (torch.arange(12) < 9).long().expand(2, 12)
    output = network(ids, mask, output_hidden_states=True)
    encoder = load(Path("folder/network.py"))[1].encoder
    batch = {"ids": ids, "token_type_ids": torch.zeros_like(ids), "lengths": mask.sum(1)}
    assert len(output.hidden_states) == 1 + len(encoder.layers)
    assert_close(output.hidden_states[-1], encoder(**batch))
    assert_close(encoder.layers[0](output.hidden_states[0], mask > 0), output.hidden_states[1])
    assert network(ids, mask).hidden_states is None
    if changes:
        assert output.logits.shape == (2, 5)
    with pytest.raises(ValueError, match="output_attentions"):
        network(ids, mask, output_attentions=True)
    network.resize_token_embeddings(network.config.vocab_size + 3)
    network.save_pretrained("larger")
    again = automatic.from_pretrained("larger", trust_remote_code=True).eval()
    last = torch.full((1, 4), again.config.vocab_size - 1)
    assert_close(again(last)[0], network(last)[0])
    if not changes:  # the head for masked words has grown too
        batch = {"ids": last, "token_type_ids": 0 * last, "masked_positions": torch.arange(4)}
        assert again.network(batch)[0].shape == (4, again.config.vocab_size)


@pytest.mark.parametrize("task, texts", [
    ("RTE", [("dog " * 30, "cat " * 3), ("a dog", "the cat " * 30)]),
    ("SST-2", [("dog " * 30,), ("a dog",)]),
])
def test_an_exported_network_cuts_its_inputs_as_predict_does(
        task, texts, searched, works, monkeypatch):
    """Texts longer than --finetune_length, alone and in pairs."""
    predicted = []
    monkeypatch.setattr(finetune, "answer_file", lambda *others: predicted.append(others[3]))
    init = Path(task)
    keep_tuned(init, task, load_tokenizer(searched))
    rows = [("index", *glue.TASKS[task].text)]
    rows += [("0", *pair) for pair in texts]
    lines = ["\t".join(row) for row in rows]
    file = write("texts.tsv", "\n".join(lines))
    path = Path("net.py")
    for action in (f"--predict {file}", f"--export {path}"):
        works(f"autobert_zero {action} --init {init}")
    names, network = load(path)
    tokenizer = load_tokenizer(".").model
    encode = names["encode"]
    logits = [network(encode(tokenizer, *pair)) for pair in texts]
    assert_close(torch.cat(logits), predicted[0])


@pytest.mark.parametrize("task, flags, size", [
    ("reviews", "", 25),  # as many as the text allows
    ("reviews", "--vocab_size 24", 24),
    ("SQuAD1.1,CoLA", "--glue {glue} --squad {squad} --vocab_size 200", 200),
])
def test_without_a_corpus_the_vocabulary_is_of_the_tasks_own_training_text(
        task, flags, size, works, monkeypatch, capsys):
    """No demo data are read."""
    monkeypatch.delattr("data.inputs.make_demo")
    for split in ("train", "dev"):
        write(f"reviews/{split}.csv", REVIEWS[split])
    few = "--finetune_epochs 1 --runs 1 --finetune_length 64 --layers 1 --hidden 16 --ffn 16"
    tune = f"autobert_zero --finetune {task} {flags} {few} --heads 2 --arch conv3 --device cpu"
    works(f"{tune} --out run")
    tokenizer = load_tokenizer(Path("run", task.split(",")[-1]))
    told = f"a vocabulary of {tokenizer.vocab_size} tokens, from the training text of"
    assert told in capsys.readouterr().out
    assert tokenizer.unk_id not in tokenizer.encode("it broke")
    assert tokenizer.vocab_size == read_json("run/config.json")["settings"]["vocab_size"]
    assert tokenizer.vocab_size == size


def test_a_vocabulary_that_the_tasks_do_not_allow_is_told(monkeypatch, capsys):
    for split in ("train", "dev"):
        write(f"reviews/{split}.csv", REVIEWS[split])
    assert call("autobert_zero --finetune reviews --vocab_size 999 --out run", monkeypatch) == 2
    line = capsys.readouterr().err
    assert "the training text of reviews: too little text" in line and "the largest" in line


def test_recipes_are_the_papers():
    recipes = abz.recipes(abz.Config())
    rte = recipes["RTE"]
    assert (rte.epochs, rte.lr, rte.warmup) == (3, 2e-5, 0.01)  # App. D.1
    for task, epochs, batch in (("SQuAD1.1", 3, 32), ("SQuAD2.0", 2, 48)):  # App. D.2
        assert (recipes[task].epochs, recipes[task].batch) == (epochs, batch)


def test_positions_are_copied_once_where_short_sequences_end(works, monkeypatch):
    """D50: of 32 positions the first 8 are trained in the first two of four steps."""
    same = []
    train_step = abz.train_step

    def step_with_a_look(step, network, *others):
        rows = network.encoder.position_embedding.weight.detach().clone()
        same.append(all(torch.equal(rows[first:first + 8], rows[:8]) for first in (8, 16, 24)))
        return train_step(step, network, *others)

    monkeypatch.setattr(abz, "train_step", step_with_a_look)
    words = f"--arch '{ARCH}' --layers 2 --short 0.5 --steps 4 --length 32"
    works(f"{TRAINED['autobert_zero']} {words} --out run")
    assert same == [False, False, True, False]
    assert read_json("run/config.json")["trained"] == 32


@pytest.mark.parametrize("short, trained", [(0.99, 8), (1, 8), (0.5, 32)])
def test_the_positions_of_the_longest_sequences_count_as_trained(short, trained):
    cfg = abz.Config(length=32, steps=4, short=short)
    assert abz.trained_positions(None, cfg) == trained
    assert abz.trained_positions(SimpleNamespace(trained=64), cfg) == 64
