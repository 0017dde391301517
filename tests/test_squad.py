"""SQuAD and RACE: files of every shape, windows, answers cut from the text, the official scores."""
import itertools
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import write

from common import glue, squad
from common.cli import UserError
from common.tasks import Recipe, SquadTask
from common.tokenization import load_tokenizer
from data import race
from data.text import train_sentencepiece

WORDS = ["".join(parts) for parts in itertools.product(("ka", "so", "mi", "tre"), ("lo", "ne", "ri", "du", ""), "strn")]
ODD = ["Café", "(1,250)", "Ångström’s", "№7", "U.S.", "½", "naïve-", "“quoted”", "ﬁne", "10%", "A", "Kalos!"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("tokenizer"), random.Random(0)
    text = "\n".join(" ".join(draw.choices(WORDS + ODD, k=12)) for _ in range(800))
    files = [write(folder / "text.txt", text)]
    return load_tokenizer(train_sentencepiece(files, folder / "spiece.model", vocab_size=130))


def article(paragraphs=6, words=120, impossible=False, seed=0):
    """SQuAD content with made-up words; every answer is a run of one to four whole words."""
    draw, content = random.Random(seed), []
    for number in range(paragraphs):
        context = "  ".join(" ".join(draw.choices(WORDS + ODD, k=words // 2)) for _ in range(2))
        bounds = [i for i, char in enumerate(context) if char != " " and (i == 0 or context[i - 1] == " ")]
        bounds.append(len(context) + 1)
        entries = []
        for k in range(4):
            first = draw.randrange(len(bounds) - 5)
            text = context[bounds[first]:bounds[first + draw.randint(1, 4)]].rstrip()
            lost = impossible and k == 3
            entry = {"id": f"q{number}-{k}", "question": " ".join(draw.choices(WORDS, k=5)),
                     "answers": [] if lost else [{"text": text, "answer_start": bounds[first]}]}
            entries.append(entry | ({"is_impossible": lost} if impossible else {}))
        content.append({"context": context, "qas": entries})
    return {"version": "x", "data": [{"title": "t", "paragraphs": content}]}


def questions_of(tmp_path, **kwargs):
    return squad.load(write(tmp_path / "squad.json", article(**kwargs)))


def perfect_logits(features):
    """Logits that name the target of every window."""
    start, end = np.full((2, len(features), features.max_length), -10, dtype=np.float32)
    start[np.arange(len(features)), features.targets[:, 0]] = 10
    end[np.arange(len(features)), features.targets[:, 1]] = 10
    return start, end


# --- files

@pytest.mark.parametrize("change, message", [
    (dict(answers=[{"text": "zzz", "answer_start": 0}]), r"q1-0: the answer 'zzz' is not at character 0"),
    (dict(answers=[{"text": "zzz", "answer_start": "3"}]), r"q1-0: 'answer_start' is missing or not a int"),
    (dict(is_impossible=True), r"question q1-0: 1 answers and is_impossible True"),
    (dict(id="q0-0"), r"a second question q0-0")], ids=range(4))
def test_mistakes_name_the_file_and_the_question(change, message, tmp_path):
    content = article(paragraphs=2, impossible=True)
    content["data"][0]["paragraphs"][1]["qas"][0].update(change)
    with pytest.raises(UserError, match=f"squad.json.*{message}.*;"):
        squad.load(write(tmp_path / "squad.json", content))


# --- windows

@pytest.mark.parametrize("tokens, capacity, stride", [
    (0, 10, 5), (10, 10, 5), (11, 10, 5), (101, 30, 30), (77, 20, 50), (60, 1, 1), (333, 64, 7),
    (382, 381, 128)])  # the last: where 0.01 x length decides
def test_windows_cover_every_token_and_one_owns_it(tokens, capacity, stride):
    windows = squad.cut_windows(tokens, capacity, stride)
    assert (windows[:, 1] <= capacity).all() and windows[0, 0] == 0 and windows[-1, :2].sum() == tokens
    assert (np.diff(windows[:, 0]) == min(capacity, stride)).all()
    for token in range(tokens):
        sides = [min(token - start, start + length - 1 - token) for start, length, _, _ in windows]
        scores = [side + 0.01 * length if side >= 0 else -1 for side, length in zip(sides, windows[:, 1])]
        owners = [i for i, (start, _, own, own_end) in enumerate(windows) if start + own <= token < start + own_end]
        assert owners == [int(np.argmax(scores))] and max(scores) >= 0


def test_batches_put_the_windows_together(tokenizer, tmp_path):
    questions = questions_of(tmp_path, impossible=True)
    features = squad.features(questions, tokenizer, max_length=72, doc_stride=20, max_query=6, training=True)
    assert len(features) > 2 * len(questions)
    seen = []
    for batch in glue.batches(features, 7, seed=1):
        for row, i in enumerate(batch["index"].tolist()):
            question, _, start, length, _, _ = features.windows[i]
            query = tokenizer.encode(questions[question].text)[:6]
            passage = tokenizer.encode_with_offsets(questions[question].context)[0][start:start + length]
            expected = [tokenizer.cls_id, *query, tokenizer.sep_id, *passage, tokenizer.sep_id]
            n = len(expected)
            assert batch["ids"][row, :n].tolist() == expected and n == batch["lengths"][row] <= 72
            assert (batch["ids"][row, n:] == tokenizer.pad_id).all()
            assert torch.nonzero(batch["segments"][row]).flatten().tolist() == [*range(len(query) + 2, n)]
            open_places = [0, *range(len(query) + 2, n - 1)]
            assert torch.nonzero(~batch["p_mask"][row]).flatten().tolist() == open_places
            assert batch["start"][row] <= batch["end"][row] and not batch["p_mask"][row, batch["end"][row]]
            seen.append(i)
    assert sorted(seen) == list(range(len(features)))


# --- answers

@pytest.mark.parametrize("max_length, stride", [(384, 128), (64, 24)])
def test_perfect_logits_give_perfect_scores(tokenizer, tmp_path, max_length, stride):
    """Targets are the answer, or [CLS] where the window or the whole paragraph has none; answers are the raw text."""
    questions = questions_of(tmp_path, impossible=True)
    features = squad.features(questions, tokenizer, max_length, stride, training=True)
    begin, end, impossible = features.targets.T
    owner, answered = features.windows[:, 0], [bool(question.answers) for question in questions]
    assert not features.targets[impossible == 1, :2].any() and impossible.sum() >= len(features) / 4
    assert {*owner[impossible == 0]} == {*np.flatnonzero(answered)}
    found = squad.extract(features, *perfect_logits(features), max_answer=40)
    start, own, own_end = (begin - features.offsets, *features.windows[:, 4:].T)
    # in a window that does not own the answer's start, the span is not allowed
    right = {*owner[(impossible == 0) & (start >= own) & (start < own_end)]}
    kept = [question for i, question in enumerate(questions) if i in right or not answered[i]]
    result = squad.evaluate(kept, found.texts, found.null_odds)
    assert {result[name] for name in ("exact", "f1", "HasAns_exact", "NoAns_exact", "best_exact")} == {100.0}
    assert len(kept) > 0.8 * len(questions)
    assert all(found.texts[question.id] == question.answers[0][0] for question in kept if question.answers)


def brute_force(features, start, end, n_best, max_answer):
    """{question number: list of (text, score)} by trying every span."""
    spans = {}
    for w, (number, place, first, length, own, own_end) in enumerate(features.windows):
        offset, context = features.offsets[w], features.questions[number].context
        for i in range(own, own_end):
            for j in range(i, min(i + max_answer, length)):
                text = context[features.char_start[place][first + i]:features.char_end[place][first + j]].strip()
                value, texts = float(start[w, offset + i]) + float(end[w, offset + j]), spans.setdefault(number, {})
                texts[text] = max(value, texts.get(text, value))
    return {number: sorted(texts.items(), key=lambda pair: -pair[1])[:n_best] for number, texts in spans.items()}


def test_extract_finds_the_best_spans_of_all(tokenizer, tmp_path):
    questions = questions_of(tmp_path, paragraphs=2, words=40)
    features = squad.features(questions, tokenizer, max_length=48, doc_stride=16)
    start, end = np.random.default_rng(0).normal(size=(2, len(features), 48)).astype(np.float32)
    found = squad.extract(features, torch.tensor(start), torch.tensor(end), n_best=48, max_answer=9)
    for number, expected in brute_force(features, start, end, 48, 9).items():
        name = questions[number].id
        assert found.texts[name] == expected[0][0]
        top = found.nbest[name]
        assert len(top) == 48 and len({entry["text"] for entry in top}) == 48
        assert [entry["text"] for entry in top[:10]] == [text for text, _ in expected[:10]]
        assert [entry["score"] for entry in top[:10]] == pytest.approx([value for _, value in expected[:10]])
        assert sum(entry["probability"] for entry in top) == pytest.approx(1.0)
        windows = np.flatnonzero(features.windows[:, 0] == number)
        cls = float((start[windows, 0] + end[windows, 0]).min())
        assert found.null_odds[name] == pytest.approx(cls - expected[0][1], abs=1e-5)


# --- the official scores

def toy(answers):
    """Questions with these gold answers; () is unanswerable."""
    return [squad.Question(f"q{i}", "?", "c", tuple((text, 0) for text in texts), not texts)
            for i, texts in enumerate(answers)]


def test_evaluate_version_1():
    questions = toy([("cat", "a big cat"), ("dog",), ("the", "x y"), ("The",)])
    predictions = {"q0": "big cat!", "q1": "dog house", "q2": "y", "q3": "an"}
    result = squad.evaluate(questions, predictions)
    assert result == {"exact": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3 + 2 / 3 + 0) / 4), "total": 4}


def test_evaluate_version_2_and_its_threshold():
    questions = toy([("cat",), ("dog",), (), ("red fox",), (), ("the",)])
    predictions = {"q0": "cat", "q1": "cow", "q2": "x", "q3": "fox", "q4": "", "q5": "an"}
    odds = {"q0": -3.0, "q1": 2.0, "q2": 1.0, "q3": -1.0, "q4": -2.0, "q5": 0.5}
    result = squad.evaluate(questions, predictions, odds)
    # q2 and q5 are withdrawn at 0; the gold answer "the" is empty after normalisation
    assert result["exact"] == pytest.approx(100 * 3 / 6) and result["f1"] == pytest.approx(100 * (3 + 2 / 3) / 6)
    assert (result["HasAns_exact"], result["HasAns_total"]) == (pytest.approx(25.0), 4)
    assert (result["NoAns_exact"], result["NoAns_f1"], result["NoAns_total"]) == (100.0, 100.0, 2)
    # all withdrawn: 2 right; by odds come q0 +1, q4 0, q3 +2/3 (exact 0), q5 +1, q2 -1, q1 0
    assert result["best_exact"] == pytest.approx(100 * 4 / 6) and result["best_exact_thresh"] == 0.5
    assert result["best_f1"] == pytest.approx(100 * (4 + 2 / 3) / 6) and result["best_f1_thresh"] == 0.5
    assert squad.evaluate(questions, predictions, odds, threshold=0.5)["f1"] == pytest.approx(result["best_f1"])
    assert squad.evaluate(questions, predictions, odds, threshold=None)["threshold"] == 0.5


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
    task.name, task.rows, task.threshold = "SQuAD2.0", {"dev": questions}, None
    scores = task.score("dev", found)
    assert (100 * scores["best_f1"], scores["best_f1_thresh"]) == pytest.approx(official)
    task.write("dev", found, tmp_path)
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert scores["main"] == scores["f1"] == pytest.approx(squad.evaluate(questions, written)["f1"] / 100)
    assert scores["main"] == pytest.approx(2 / 3)
    again = squad.evaluate(questions, predictions, found.null_odds, scores["threshold"])
    assert again["f1"] == pytest.approx(100 * scores["main"])


# --- RACE

def passage(number=1, questions=2, **change):
    text = " ".join(random.Random(number).choices(WORDS, k=60))
    entry = {"id": f"high{number}.txt", "article": f"kalos tresot {number} {text}",
             "questions": ["minet _ sorir _ ?", "kadut ?"][:questions], "answers": ["B", "D"][:questions],
             "options": [["kalos", "solot", "minet", "tredur"], ["kas", "sot", "ming", "trer"]][:questions]}
    return entry | change


def race_folder(tmp_path):
    for level, numbers in (("middle", (1, 2, 10)), ("high", (3,))):
        for n in numbers:
            write(tmp_path / "RACE" / "dev" / level / f"{n}.txt", passage(n))
    return tmp_path / "RACE"


def test_race_inputs(tokenizer, tmp_path):
    questions = race.load(race_folder(tmp_path), "dev")
    assert [question.id.split(".")[0] for question in questions[::2]] == ["high1", "high2", "high10", "high3"]
    assert [question.level for question in questions] == ["middle"] * 6 + ["high"] * 2
    features, seen = race.features(questions, tokenizer, max_length=48, max_qa=4), []
    for batch in glue.batches(features, 3, seed=0):
        assert batch["ids"].shape == batch["segments"].shape == (len(batch["index"]), 4, batch["ids"].shape[2])
        for row, i in enumerate(batch["index"].tolist()):
            question = questions[i]
            assert batch["labels"][row] == question.answer == (1, 3)[i % 2]
            for k, option in enumerate(question.options):
                text = question.text.replace("_", option) if i % 2 == 0 else f"{question.text} {option}"
                second = tokenizer.encode(text)[-4:]
                first = tokenizer.encode(question.passage)[:48 - 3 - len(second)]
                n = len(first) + len(second) + 3
                expected = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
                assert batch["ids"][row, k, :n].tolist() == expected and batch["lengths"][row, k] == n
                assert torch.nonzero(batch["segments"][row, k]).flatten().tolist() == [*range(len(first) + 2, n)]
            seen.append(i)
    assert sorted(seen) == list(range(8))


def test_race_task(tokenizer, tmp_path):
    folder = race_folder(tmp_path)
    (folder / "dev").rename(folder / "test")
    for name in ("train/middle", "train/high", "dev/middle", "dev/high"):
        for n in range(6):
            write(folder / f"{name}/{n}.txt", passage(n))
    cfg = SimpleNamespace(race=str(folder), train_rows=10, dry_run=False)
    task = race.RaceTask("RACE", cfg, tokenizer, Recipe(1e-5, batch=4, epochs=2, length=48))
    assert {split: len(part) for split, part in task.splits.items()} == {"train": 10, "dev": 24, "test": 8}
    assert [question.level for question in task.rows["train"]] == ["middle"] * 5 + ["high"] * 5  # evenly thinned
    assert (task.kind, task.outputs, task.steps) == ("choice", 1, 6)
    answers = torch.tensor([question.answer for question in task.rows["test"]])
    logits = task.collect("test", lambda batch: torch.nn.functional.one_hot(answers[batch["index"]], 4))
    assert task.score("test", logits) == {"accuracy": 1.0, "middle": 1.0, "high": 1.0, "main": 1.0}
    task.write("test", logits, tmp_path)
    assert (tmp_path / "test_predictions.txt").read_text() == "B\nD\n" * 4


def test_race_mistakes(tmp_path):
    for entry, message in ((passage(answers=["A"]), "not a RACE passage"),
                           (passage(answers=["A", "E"]), "1.txt: question 2 has the answer 'E'")):
        write(tmp_path / "dev/middle/1.txt", entry)
        with pytest.raises(UserError, match=message):
            race.load(tmp_path, "dev")
