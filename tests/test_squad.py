"""SQuAD and RACE: windows, answers cut from the text, the official scores."""
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import write

from common import glue, squad
from common.cli import UserError
from common.finetune import Recipe, SquadTask, predict
from common.tokenization import load_tokenizer
from data import race


@pytest.fixture(scope="module")
def tokenizer(ready):
    return load_tokenizer(ready["corpus"])


@pytest.fixture(scope="module")
def questions(ready):
    """Of four paragraphs; some have no answer."""
    return squad.load(ready["squad"] / "dev-v2.0.json")


@pytest.mark.parametrize("change, message", [
    ({"answers": [{"text": "zzz", "answer_start": 0}]}, "'zzz' is not at character 0"),
    ({"answers": 7}, "not in the official layout"),
])
def test_mistakes_name_the_file_and_the_question(change, message, tmp_path):
    question = {"id": "1", "question": "?", **change}
    content = {"data": [{"paragraphs": [{"context": "A man sat.", "qas": [question]}]}]}
    path = write(tmp_path / "squad.json", content)
    with pytest.raises(UserError, match=f"squad.json: question 1.*{message}"):
        squad.load(path)
    content["data"] *= 2
    with pytest.raises(UserError, match="two with one id"):
        squad.load(write(path, content), with_answers=False)


# Windows


@pytest.mark.parametrize("tokens, capacity, stride", [
    (0, 10, 5),
    (11, 10, 5),
    (101, 30, 30),
    (77, 20, 50),
    (60, 1, 1),
    (382, 381, 128),  # where 0.01 x length decides
])
def test_windows_cover_every_token_and_one_owns_it(tokens, capacity, stride):
    windows = squad.cut_windows(tokens, capacity, stride)
    assert (windows[:, 1] <= capacity).all()
    assert (np.diff(windows[:, 0]) == min(capacity, stride)).all()
    assert windows[-1, :2].sum() == tokens
    for token in range(tokens):
        scores = []
        owners = []
        for i, (start, length, own, own_end) in enumerate(windows):
            context = min(token - start, start + length - 1 - token)
            scores.append(context + 0.01 * length if context >= 0 else -1)
            if start + own <= token < start + own_end:
                owners.append(i)
        assert owners == [np.argmax(scores)]
        assert max(scores) >= 0


def test_batches_put_the_windows_together(tokenizer, questions):
    features = squad.features(questions, tokenizer, 72, 20, max_query=6, training=True)
    assert len(features) > 2 * len(questions)
    seen = []
    for batch in glue.batches(features, 1, seed=1):
        row = {name: value[0] for name, value in batch.items()}
        question, _, start, length, _, _ = features.windows[row["index"]]
        query = tokenizer.encode(questions[question].text)[:6]
        passage, _ = tokenizer.encode_with_offsets(questions[question].context)
        passage = passage[start:start + length]
        expected = [tokenizer.cls_id, *query, tokenizer.sep_id, *passage, tokenizer.sep_id]
        n = len(expected)
        positions = [*range(len(query) + 2, n - 1)]  # of the paragraph
        assert row["ids"][:n].tolist() == expected
        assert (row["ids"][n:] == tokenizer.pad_id).all()
        assert row["token_type_ids"].nonzero().flatten().tolist() == [*positions, n - 1]
        assert (~row["p_mask"]).nonzero().flatten().tolist() == [0, *positions]
        seen.append(int(row["index"]))
    assert sorted(seen) == [*range(len(features))]


# Answers


def test_perfect_logits_give_perfect_scores(tokenizer, questions):
    """Targets are the answer, or [CLS] where the window or the paragraph has none."""
    features = squad.features(questions, tokenizer, 512, 128, training=True)
    impossible = features.targets[:, 2] == 1
    assert not features.targets[impossible, :2].any()
    answered = {*features.windows[~impossible, 0]}
    assert answered == {i for i, question in enumerate(questions) if question.answers}
    logits = np.full((2, len(features), 512), -10.0)
    for side in (0, 1):
        logits[side, np.arange(len(features)), features.targets[:, side]] = 10
    predictions = squad.extract(features, *logits)
    result = squad.evaluate(questions, predictions.texts, predictions.null_odds)
    assert result["exact"] == 1.0


def brute_force(features, start, end, number):
    """[(text, score)] of all spans of a question, the best first."""
    spans = {}
    context = features.questions[number].context
    for w, (question, paragraph, first, length, own, own_end) in enumerate(features.windows):
        _, char_starts, char_ends = features.contexts[paragraph]
        offset = features.offsets[w]
        for i in range(own, own_end) if question == number else ():
            for j in range(i, min(i + squad.MAX_ANSWER, length)):
                text = context[char_starts[first + i]:char_ends[first + j]].strip()
                score = float(start[w, offset + i]) + float(end[w, offset + j])
                spans[text] = max(score, spans.get(text, score))
    return sorted(spans.items(), key=lambda span: -span[1])


def test_extract_returns_the_best_of_all_spans(tokenizer, questions, monkeypatch):
    monkeypatch.setattr(squad, "N_BEST", 48)
    monkeypatch.setattr(squad, "MAX_ANSWER", 9)
    features = squad.features(questions, tokenizer, max_length=48, doc_stride=16)
    logits = np.random.default_rng(0).normal(size=(2, len(features), 48))
    start, end = logits.astype(np.float32)
    predictions = squad.extract(features, start, end)
    for number, question in enumerate(questions):
        expected = brute_force(features, start, end, number)
        best = predictions.nbest[question.id]
        assert predictions.texts[question.id] == expected[0][0]
        assert [entry["text"] for entry in best] == [text for text, _ in expected[:48]]
        assert sum(entry["probability"] for entry in best) == pytest.approx(1.0)
        windows = features.windows[:, 0] == number
        null = (start[windows, 0] + end[windows, 0]).min()
        odds = predictions.null_odds[question.id]
        assert odds == pytest.approx(null - expected[0][1], abs=1e-5)


# The official scores


def questions_with(*answers):
    """Questions with these answers; () is unanswerable."""
    return [squad.Question(f"q{i}", "?", "c", tuple((text, 0) for text in texts), not texts)
            for i, texts in enumerate(answers)]


def by_id(*values):
    return {f"q{i}": value for i, value in enumerate(values)}


def test_evaluate_version_1():
    questions = questions_with(("cat", "a big cat"), ("dog",), ("the", "x y"), ("The",))
    result = squad.evaluate(questions, by_id("big cat!", "dog house", "y", "an"))
    assert result == {"exact": 0.5, "f1": pytest.approx((1 + 2 / 3 + 2 / 3 + 0) / 4)}


def test_evaluate_version_2():
    """q2 and q5 are withdrawn at 0. The answer "the" is empty after normalisation."""
    questions = questions_with(("cat",), ("dog",), (), ("red fox",), (), ("the",))
    predictions = by_id("cat", "cow", "x", "fox", "", "an")
    odds = by_id(-3.0, 2.0, 1.0, -1.0, -2.0, 0.5)
    result = squad.evaluate(questions, predictions, odds)
    assert result == {"exact": 3 / 6, "f1": pytest.approx((3 + 2 / 3) / 6), "threshold": 0.0}
    # by odds come q0 +1, q4 0, q3 +2/3 (exact 0), q5 +1, q2 -1, q1 0
    assert squad.evaluate(questions, predictions, odds, None)["threshold"] == 0.5


def test_the_main_score_is_the_score_of_the_written_answers(tmp_path):
    """The odds of two questions are equal: no threshold separates them."""
    predictions = squad.Predictions(by_id("cat", "x", "y"), {}, by_id(1.0, 1.0, 3.0))
    task = object.__new__(SquadTask)
    task.name = "SQuAD2.0"
    task.examples = {"dev": questions_with(("cat",), (), ())}
    task.threshold = None
    scores = task.score("dev", predictions)
    task.write("dev", predictions, tmp_path)
    written = json.loads((tmp_path / "predictions.json").read_text())
    score = squad.evaluate(task.examples["dev"], written)["f1"]
    assert scores["main"] == pytest.approx(score) == pytest.approx(2 / 3)


# RACE

PASSAGE = {
    "id": "high1.txt",
    "article": "A man sat on a mat. " * 9,
    "questions": ["A _ sat on a _ ?", "Who sat ?"],
    "answers": ["B", "D"],
    "options": [["dog", "man", "cat", "mat"], ["a", "mat", "or", "man"]],
}


def test_race(tokenizer, tmp_path):
    """Four sequences of a question, with the option in its blanks, and official answers."""
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            write(tmp_path / split / level / "1.txt", PASSAGE)
    cfg = SimpleNamespace(race=str(tmp_path), train_examples=0, dry_run=False)
    task = race.RaceTask(
        "RACE",
        cfg,
        tokenizer,
        Recipe(1e-5, batch=4, epochs=2, length=48)
    )
    second = tokenizer.encode("A cat sat on a cat ?")
    first = tokenizer.encode(PASSAGE["article"])[:48 - 3 - len(second)]
    expected = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
    batch = task.splits["test"].batch(np.array([0]), 48)
    assert batch["ids"][0, 2, :len(expected)].tolist() == expected
    model = torch.nn.Module()
    model.forward = lambda batch: torch.eye(4)[[1] * len(batch["index"])]
    logits = predict(model, task, "test", SimpleNamespace(dtype="float32"), torch.device("cpu"))
    scores = task.score("test", logits)
    assert scores == {"accuracy": 0.5, "middle": 0.5, "high": 0.5, "main": 0.5}
    task.write("test", logits, tmp_path)
    assert (tmp_path / "test_predictions.txt").read_text() == "B\n" * 4
    write(tmp_path / "dev/middle/1.txt", {**PASSAGE, "answers": ["A", "E"]})
    with pytest.raises(UserError, match="1.txt: question 2 has the answer 'E'"):
        race.load(tmp_path, "dev")
