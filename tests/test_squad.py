"""SQuAD and RACE: files of every shape, windows, answers cut from the text, the official scores."""
import itertools
import json
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import write

from common import glue, squad
from common.cli import UserError
from common.finetune import Recipe, SquadTask
from common.tokenization import load_tokenizer
from data import race
from data.text import train_sentencepiece

WORDS = [
    "".join(parts)
    for parts in itertools.product(("ka", "so", "mi", "tre"), ("lo", "ne", "ri", "du", ""), "strn")]
ODD = [
    "Café", "(1,250)", "Ångström’s", "№7", "U.S.", "½", "naïve-", "“quoted”", "ﬁne", "10%", "A",
    "Kalos!"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    draw = random.Random(0)
    text = "\n".join(" ".join(draw.choices(WORDS + ODD, k=12)) for _ in range(800))
    files = [write(folder / "text.txt", text)]
    return load_tokenizer(train_sentencepiece(files, folder / "spiece.model", vocab_size=130))


def article(paragraphs=6, words=120):
    """SQuAD 2.0 with made-up words: an answer is one to four whole words, every fourth question
    has none."""
    draw = random.Random(0)
    content = []
    for number in range(paragraphs):
        context = "  ".join(" ".join(draw.choices(WORDS + ODD, k=words // 2)) for _ in range(2))
        bounds = [match.start() for match in re.finditer(r"\S+", context)]
        bounds.append(len(context) + 1)
        entries = []
        for k in range(4):
            first = draw.randrange(len(bounds) - 5)
            start = bounds[first]
            text = context[start:bounds[first + draw.randint(1, 4)]].rstrip()
            entries.append({
                "id": f"q{number}-{k}",
                "question": " ".join(draw.choices(WORDS, k=5)),
                "answers": [{"text": text, "answer_start": start}] if k < 3 else [],
                "is_impossible": k == 3})
        content.append({"context": context, "qas": entries})
    return {"version": "x", "data": [{"title": "t", "paragraphs": content}]}


def questions_of(tmp_path, **kwargs):
    return squad.load(write(tmp_path / "squad.json", article(**kwargs)))


# --- files

@pytest.mark.parametrize("change, message", [
    ({"answers": [{"text": "zzz", "answer_start": 0}]}, "'zzz' is not at character 0"),
    ({"is_impossible": True}, "1 answers and is_impossible True"),
    ({"id": "q0-0"}, "a second question q0-0"),
])
def test_mistakes_name_the_file_and_the_question(change, message, tmp_path):
    content = article(paragraphs=2)
    content["data"][0]["paragraphs"][1]["qas"][0].update(change)
    with pytest.raises(UserError, match=f"squad.json.*{message}"):
        squad.load(write(tmp_path / "squad.json", content))


# --- windows

@pytest.mark.parametrize("tokens, capacity, stride", [
    (0, 10, 5),
    (10, 10, 5),
    (11, 10, 5),
    (101, 30, 30),
    (77, 20, 50),
    (60, 1, 1),
    (382, 381, 128),  # where 0.01 x length decides
])
def test_windows_cover_every_token_and_one_owns_it(tokens, capacity, stride):
    windows = squad.cut_windows(tokens, capacity, stride)
    assert (windows[:, 1] <= capacity).all()
    assert windows[0, 0] == 0
    assert windows[-1, :2].sum() == tokens
    assert (np.diff(windows[:, 0]) == min(capacity, stride)).all()
    for token in range(tokens):
        scores = []
        owners = []
        for i, (start, length, own, own_end) in enumerate(windows):
            context = min(token - start, start + length - 1 - token)
            scores.append(context + 0.01 * length if context >= 0 else -1)
            if start + own <= token < start + own_end:
                owners.append(i)
        assert owners == [int(np.argmax(scores))]
        assert max(scores) >= 0


def test_batches_put_the_windows_together(tokenizer, tmp_path):
    questions = questions_of(tmp_path)
    features = squad.features(
        questions, tokenizer, max_length=72, doc_stride=20, max_query=6, training=True)
    assert len(features) > 2 * len(questions)
    seen = []
    for batch in glue.batches(features, 7, seed=1):
        for row, i in enumerate(batch["index"].tolist()):
            question, _, start, length, _, _ = features.windows[i]
            query = tokenizer.encode(questions[question].text)[:6]
            passage, _ = tokenizer.encode_with_offsets(questions[question].context)
            passage = passage[start:start + length]
            expected = [tokenizer.cls_id, *query, tokenizer.sep_id, *passage, tokenizer.sep_id]
            n = len(expected)
            passage_begin = len(query) + 2
            assert n == batch["lengths"][row] <= 72
            assert batch["ids"][row, :n].tolist() == expected
            assert (batch["ids"][row, n:] == tokenizer.pad_id).all()
            assert batch["segments"][row].nonzero().flatten().tolist() == [*range(passage_begin, n)]
            allowed = (~batch["p_mask"][row]).nonzero().flatten().tolist()
            assert allowed == [0, *range(passage_begin, n - 1)]
            assert batch["start"][row] <= batch["end"][row]
            assert not batch["p_mask"][row, batch["end"][row]]
            seen.append(i)
    assert sorted(seen) == list(range(len(features)))


# --- answers

def perfect_logits(features):
    """Logits that name the target of every window."""
    logits = np.full((2, len(features), features.max_length), -10, dtype=np.float32)
    windows = np.arange(len(features))
    logits[0, windows, features.targets[:, 0]] = 10
    logits[1, windows, features.targets[:, 1]] = 10
    return logits


def test_perfect_logits_give_perfect_scores(tokenizer, tmp_path):
    """Targets are the answer, or [CLS] where the window or the paragraph has none."""
    questions = questions_of(tmp_path)
    features = squad.features(questions, tokenizer, 512, 128, training=True)
    impossible = features.targets[:, 2]
    owner = features.windows[:, 0]
    assert not features.targets[impossible == 1, :2].any()
    assert {*owner[impossible == 0]} == {i for i, each in enumerate(questions) if each.answers}
    start, end = perfect_logits(features)
    found = squad.extract(features, start, end, max_answer=40)
    result = squad.evaluate(questions, found.texts, found.null_odds)
    assert result["exact"] == result["NoAns_exact"] == result["best_exact"] == 100.0
    for question in questions:
        if question.answers:
            assert found.texts[question.id] == question.answers[0][0]


def brute_force(features, start, end, number, max_answer):
    """(text, score) of all spans of a question, the best first."""
    spans = {}
    context = features.questions[number].context
    for w, (question, place, first, length, own, own_end) in enumerate(features.windows):
        if question != number:
            continue
        offset = features.offsets[w]
        for i in range(own, own_end):
            for j in range(i, min(i + max_answer, length)):
                left = features.char_start[place][first + i]
                text = context[left:features.char_end[place][first + j]].strip()
                value = float(start[w, offset + i]) + float(end[w, offset + j])
                spans[text] = max(value, spans.get(text, value))
    return sorted(spans.items(), key=lambda pair: -pair[1])


def test_extract_finds_the_best_spans_of_all(tokenizer, tmp_path):
    questions = questions_of(tmp_path, paragraphs=2, words=40)
    features = squad.features(questions, tokenizer, max_length=48, doc_stride=16)
    logits = np.random.default_rng(0).normal(size=(2, len(features), 48)).astype(np.float32)
    start, end = logits
    found = squad.extract(
        features, torch.tensor(start), torch.tensor(end), n_best=48, max_answer=9)
    for number, question in enumerate(questions):
        expected = brute_force(features, start, end, number, max_answer=9)
        texts, values = zip(*expected[:10])
        top = found.nbest[question.id]
        assert found.texts[question.id] == texts[0]
        assert len({entry["text"] for entry in top}) == len(top) == 48
        assert [entry["text"] for entry in top[:10]] == [*texts]
        assert [entry["score"] for entry in top[:10]] == pytest.approx(values)
        assert sum(entry["probability"] for entry in top) == pytest.approx(1.0)
        windows = features.windows[:, 0] == number
        cls = float((start[windows, 0] + end[windows, 0]).min())
        assert found.null_odds[question.id] == pytest.approx(cls - values[0], abs=1e-5)


# --- the official scores

def toy(answers):
    """Questions with these gold answers; () is unanswerable."""
    return [
        squad.Question(f"q{i}", "?", "c", tuple((text, 0) for text in texts), not texts)
        for i, texts in enumerate(answers)]


def test_evaluate_version_1():
    questions = toy([("cat", "a big cat"), ("dog",), ("the", "x y"), ("The",)])
    predictions = {"q0": "big cat!", "q1": "dog house", "q2": "y", "q3": "an"}
    result = squad.evaluate(questions, predictions)
    f1 = 100 * (1 + 2 / 3 + 2 / 3 + 0) / 4
    assert result == {"exact": 50.0, "f1": pytest.approx(f1), "total": 4}


def test_evaluate_version_2_and_its_threshold():
    """q2 and q5 are withdrawn at 0; the gold answer "the" is empty after normalisation. All
    withdrawn: 2 right; by odds come q0 +1, q4 0, q3 +2/3 (exact 0), q5 +1, q2 -1, q1 0."""
    questions = toy([("cat",), ("dog",), (), ("red fox",), (), ("the",)])
    predictions = {"q0": "cat", "q1": "cow", "q2": "x", "q3": "fox", "q4": "", "q5": "an"}
    odds = {"q0": -3.0, "q1": 2.0, "q2": 1.0, "q3": -1.0, "q4": -2.0, "q5": 0.5}
    result = squad.evaluate(questions, predictions, odds)
    assert result["exact"] == pytest.approx(100 * 3 / 6)
    assert result["f1"] == pytest.approx(100 * (3 + 2 / 3) / 6)
    assert result["HasAns_exact"] == pytest.approx(25.0)
    assert result["NoAns_f1"] == 100.0
    assert result["best_exact"] == pytest.approx(100 * 4 / 6)
    assert result["best_f1"] == pytest.approx(100 * (4 + 2 / 3) / 6)
    assert result["best_exact_thresh"] == result["best_f1_thresh"] == 0.5
    again = squad.evaluate(questions, predictions, odds, threshold=0.5)
    assert again["f1"] == pytest.approx(result["best_f1"])


# --- RACE

def passage(number=1, **change):
    text = " ".join(random.Random(number).choices(WORDS, k=60))
    entry = {
        "id": f"high{number}.txt",
        "article": f"kalos tresot {number} {text}",
        "questions": ["minet _ sorir _ ?", "kadut ?"],
        "answers": ["B", "D"],
        "options": [["kalos", "solot", "minet", "tredur"], ["kas", "sot", "ming", "trer"]]}
    return entry | change


def write_race(folder, *names):
    for name in names:
        write(folder / f"{name}.txt", passage(int(name.rpartition("/")[2])))


def test_race_task(tokenizer, tmp_path):
    for level in ("train/middle", "train/high", "dev/middle", "dev/high"):
        write_race(tmp_path, *(f"{level}/{n}" for n in range(6)))
    write_race(tmp_path, "test/middle/1", "test/high/3")
    cfg = SimpleNamespace(race=str(tmp_path), train_examples=10, dry_run=False)
    recipe = Recipe(1e-5, batch=4, epochs=2, length=48)
    task = race.RaceTask("RACE", cfg, tokenizer, recipe)
    sizes = {split: len(part) for split, part in task.splits.items()}
    assert sizes == {"train": 10, "dev": 24, "test": 4}
    levels = [question.level for question in task.examples["train"]]
    assert levels == ["middle"] * 5 + ["high"] * 5  # evenly thinned
    assert task.steps == 6
    question = task.examples["test"][0]  # whose blanks the option fills
    second = tokenizer.encode(question.text.replace("_", question.options[2]))
    first = tokenizer.encode(question.passage)[:48 - 3 - len(second)]
    expected = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
    batch = task.splits["test"].batch(np.array([0]), 48)
    assert batch["ids"][0, 2, :len(expected)].tolist() == expected
    assert batch["labels"][0] == question.answer == 1
    answers = torch.tensor([question.answer for question in task.examples["test"]])
    logits = task.collect(
        "test", lambda batch: torch.nn.functional.one_hot(answers[batch["index"]], 4))
    scores = task.score("test", logits)
    assert scores == {"accuracy": 1.0, "middle": 1.0, "high": 1.0, "main": 1.0}
    task.write("test", logits, tmp_path)
    assert (tmp_path / "test_predictions.txt").read_text() == "B\nD\n" * 2


def test_race_mistakes(tmp_path):
    write(tmp_path / "dev/middle/1.txt", passage(answers=["A", "E"]))
    with pytest.raises(UserError, match="1.txt: question 2 has the answer 'E'"):
        race.load(tmp_path, "dev")


@pytest.mark.parametrize("odds, official", [((-3.0, -2.0, -1.0), (200 / 3, 0.0)),
                                            ((-1.0, -1.0, -1.0), (200 / 3, 0.0)),
                                            ((1.0, 1.0, 3.0), (100, 1.0))])
def test_the_main_score_is_that_of_the_written_answers(odds, official, tmp_path):
    """Also where all odds are negative and no answer at all is best, and where odds are equal: the
    official script's best F1 is then none that its threshold gives."""
    questions = toy([(), ("cat",), ()]) if official[0] < 100 else toy([("cat",), (), ()])
    predictions = {"q0": "cat", "q1": "x", "q2": "y"}
    found = squad.Predictions(predictions, {}, dict(zip(predictions, odds)))
    task = object.__new__(SquadTask)
    task.name, task.examples, task.threshold = "SQuAD2.0", {"dev": questions}, None
    scores = task.score("dev", found)
    assert (100 * scores["best_f1"], scores["best_f1_thresh"]) == pytest.approx(official)
    task.write("dev", found, tmp_path)
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert scores["main"] == scores["f1"] == pytest.approx(squad.evaluate(questions, written)["f1"] / 100)
    assert scores["main"] == pytest.approx(2 / 3)
    again = squad.evaluate(questions, predictions, found.null_odds, scores["threshold"])
    assert again["f1"] == pytest.approx(100 * scores["main"])
