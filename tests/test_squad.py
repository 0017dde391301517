"""SQuAD and RACE: windows, answers cut from the text, the official scores."""
import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import write

from common import squad
from common.cli import UserError
from common.tasks import Recipe
from common.tokenization import load_tokenizer
from data import race


@pytest.fixture(scope="module")
def tokenizer(ready):
    return load_tokenizer(ready["corpus"])


@pytest.fixture(scope="module")
def questions(ready):
    """Questions of four paragraphs, some unanswerable."""
    return squad.load(ready["squad"] / "dev-v2.0.json")


def write_questions(*changes):
    """A file with a question for each of `changes`, {key: its value, or None for no key}."""
    answers = [{"text": "man", "answer_start": 2}]
    entries = []
    for number, change in enumerate(changes):
        entry = {"id": str(number), "question": "?", "answers": answers, **change}
        entries.append({key: value for key, value in entry.items() if value is not None})
    paragraph = {"context": "A man sat.", "qas": entries}
    return write("squad.json", {"data": [{"paragraphs": [paragraph]}]})


@pytest.mark.parametrize("changes, words", [
    ([dict(answers=[{"text": "zzz", "answer_start": 0}])],
     "squad.json: question 0.*'zzz' is not at character 0"),
    ([dict(question=1)], "squad.json.*official layout"),
    ([dict(question=None)], "squad.json: question 0: a part lacks 'question'; .*qas an id"),
    ([{}, dict(id=None)], "question number 2: a part lacks 'id'; .*each of qas an id of its own"),
    ([dict(id="a"), dict(id="a")], "two questions have the id 'a'; .*an id of its own"),
    ([dict(answers=[{"text": "", "answer_start": -1}])], "set is_impossible to true"),
    ([dict(is_impossible="false")], "is_impossible is 'false', neither true nor false"),
])
def test_mistakes_name_the_file_and_the_question(changes, words):
    with pytest.raises(UserError, match=words):
        squad.load(write_questions(*changes))


@pytest.mark.parametrize("change, answers", [
    ({}, (("man", 2),)),
    (dict(is_impossible=False), (("man", 2),)),
    (dict(is_impossible=True), ()),  # the answers are plausible ones
    (dict(is_impossible=True, answers=[{"text": "", "answer_start": -1}]), ()),
    (dict(is_impossible=True, answers=None), ()),
    (dict(answers=[]), ()),
])
def test_an_impossible_question_has_no_answer(change, answers):
    question, = squad.load(write_questions(change))
    assert question.answers == answers


# Windows


@pytest.mark.parametrize("tokens, capacity, stride", [
    (0, 10, 5),
    (11, 10, 5),
    (101, 30, 30),
    (382, 381, 128),  # where 0.01 x length decides
])
def test_windows_cover_every_token_and_one_owns_it(tokens, capacity, stride):
    windows = squad.cut_windows(tokens, capacity, stride)
    assert (windows[:, 1] <= capacity).all()
    assert (np.diff(windows[:, 0]) == min(capacity, stride)).all()
    assert windows[-1, :2].sum() == tokens
    start, length, own, own_end = windows.T
    for token in range(tokens):
        context = np.minimum(token - start, start + length - 1 - token)
        scores = np.where(context >= 0, context + 0.01 * length, -1)
        owners = (start + own <= token) & (token < start + own_end)
        assert owners.nonzero()[0].tolist() == [scores.argmax()]


def test_batches_put_the_windows_together(tokenizer, questions, monkeypatch):
    monkeypatch.setattr(squad, "MAX_QUERY", 6)
    features = squad.features(questions, tokenizer, 72, 20, training=True)
    batch = features.batch(np.arange(len(features)), 72)
    for i, (question, _, start, length, _, _) in enumerate(features.windows):
        query = tokenizer.encode(questions[question].text)[:6]
        passage, _ = tokenizer.encode_with_offsets(questions[question].context)
        passage = passage[start:start + length]
        expected = [
            tokenizer.cls_id,
            *query,
            tokenizer.sep_id,
            *passage,
            tokenizer.sep_id,
        ]
        n = len(expected)
        positions = [*range(len(query) + 2, n - 1)]  # of the paragraph
        types = batch["token_type_ids"][i]
        masked = batch["p_mask"][i]
        assert batch["ids"][i].tolist() == expected + [tokenizer.pad_id] * (72 - n)
        assert types.nonzero()[0].tolist() == [*positions, n - 1]
        assert (~masked).nonzero()[0].tolist() == [0, *positions]


# Answers


def test_perfect_logits_give_perfect_scores(tokenizer, questions):
    """Targets are the answer, or [CLS] if window or paragraph has none."""
    features = squad.features(questions, tokenizer, 512, 128, training=True)
    impossible = features.targets[:, 2] == 1
    assert not features.targets[impossible, :2].any()
    logits = np.eye(512)[features.targets[:, :2].T]
    predictions = squad.extract(features, *logits)
    result = squad.evaluate(questions, predictions.texts, predictions.null_odds)
    assert result["exact"] == 1.0


def brute_force(features, start, end):
    """{text: the best score of its spans} of each question."""
    spans = [{} for _ in features.questions]
    for w, (number, paragraph, first, length, own, own_end) in enumerate(features.windows):
        context = features.questions[number].context
        _, starts, ends = features.contexts[paragraph]
        offset = features.offsets[w]
        for i in range(own, own_end):
            for j in range(i, min(i + squad.MAX_ANSWER, length)):
                text = context[starts[first + i]:ends[first + j]].strip()
                score = float(start[w, offset + i] + end[w, offset + j])
                known = spans[number].get(text, score)
                spans[number][text] = max(score, known)
    return spans


def test_extract_returns_the_best_of_all_spans(tokenizer, questions, monkeypatch):
    monkeypatch.setattr(squad, "N_BEST", 48)
    monkeypatch.setattr(squad, "MAX_ANSWER", 9)
    features = squad.features(questions, tokenizer, max_length=48, doc_stride=16)
    shape = (2, len(features), 48)
    start, end = np.random.default_rng(0).normal(size=shape)
    predictions = squad.extract(features, start, end)
    spans = brute_force(features, start, end)
    for number, question in enumerate(questions):
        scores = spans[number]
        expected = sorted(scores, key=scores.get, reverse=True)
        best = predictions.nbest[question.id]
        assert predictions.texts[question.id] == expected[0]
        assert [entry["text"] for entry in best] == expected[:48]
        windows = features.windows["question"] == number
        null = (start[windows, 0] + end[windows, 0]).min()
        odds = predictions.null_odds[question.id]
        assert odds == pytest.approx(null - scores[expected[0]], abs=1e-5)


# The official scores


def questions_with(*answers):
    """Questions with these answers. () is unanswerable."""
    return [
        squad.Question(f"q{i}", "?", "c", tuple((text, 0) for text in texts))
        for i, texts in enumerate(answers)
    ]


def by_id(*values):
    return {f"q{i}": value for i, value in enumerate(values)}


def test_the_official_scores():
    """q2 and q1 are withdrawn above 0.5. The answer "the" is empty after normalisation."""
    questions = questions_with(
        ("fat cat", "cat"),
        ("dog",),
        (),
        ("red fox",),
        (),
        ("the",),
    )
    predictions = by_id("The cat!", "cow", "x", "fox", "", "an")
    odds = by_id(-3.0, 2.0, 1.0, 0.0, -2.0, 0.5)
    # by odds come q0 +1, q4 0, q3 +2/3 (exact 0), q5 +1, q2 -1, q1 0
    result = squad.evaluate(questions, predictions, odds)
    assert result == {
        "exact": 4 / 6,
        "f1": pytest.approx((4 + 2 / 3) / 6),
        "threshold": 0.5,
    }


def test_the_main_score_is_the_score_of_the_written_answers():
    """The odds of the questions are equal, so no threshold separates them."""
    predictions = squad.Predictions(by_id("cat", "x", "y"), {}, by_id(1.0, 1.0, 1.0))
    task = object.__new__(squad.SquadTask)
    task.name = "SQuAD2.0"
    task.examples = {"dev": questions_with(("cat",), (), ())}
    task.threshold = None
    scores = task.score("dev", predictions)
    task.write("dev", predictions, Path())
    written = json.loads(Path("predictions.json").read_text())
    result = squad.evaluate(task.examples["dev"], written)
    assert scores["main"] == pytest.approx(2 / 3)
    assert result["f1"] == pytest.approx(2 / 3)


# RACE

PASSAGE = {
    "id": "high1.txt",
    "article": "A man sat on a mat. " * 9,
    "questions": ["A _ sat on a _ ?", "Who sat ?"],
    "answers": ["B", "D"],
    "options": [
        ["dog", "man", "cat", "mat"],
        ["a", "mat", "or", "man"],
    ],
}


def test_race(tokenizer):
    """Four sequences of a question, with the option in its blanks, and official answers."""
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            write(f"{split}/{level}/1.txt", PASSAGE)
    recipe = Recipe(1e-5, batch=4, epochs=2, length=48)
    task = race.RaceTask("RACE", race.RaceTask.read("RACE", "."), tokenizer, recipe)
    second = tokenizer.encode("A cat sat on a cat ?")
    first = tokenizer.encode(PASSAGE["article"])[:48 - 3 - len(second)]
    expected = [
        tokenizer.cls_id,
        *first,
        tokenizer.sep_id,
        *second,
        tokenizer.sep_id,
    ]
    batch = task.splits["test"].batch(np.array([0]), 48)
    assert batch["ids"][0, 2, :len(expected)].tolist() == expected
    outputs = np.eye(4)[[1, 1, 1, 1]]
    assert task.score("test", outputs) == {
        "accuracy": 0.5,
        "middle": 0.5,
        "high": 0.5,
        "main": 0.5,
    }
    task.write("test", outputs, Path())
    assert Path("test_predictions.txt").read_text() == "B\n" * 4
