"""RACE: reading comprehension with four options (Lai et al. 2017).

The folders RACE/{train,dev,test}/{middle,high} hold .txt files with one JSON object per passage.
A question becomes four inputs, one per option, as in ALBERT's code:

    [CLS] passage [SEP] question with the option [SEP]

The option replaces every "_" of the question; without one it follows the question. Of this second
part the last max_qa tokens are kept; the passage is truncated at its end.
"""
from array import array
from collections import namedtuple
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common.cli import UserError
from common.checkpoint import read_json, write_atomic
from common.glue import join
from common.finetune import Task, limit

LEVELS = ("middle", "high")
LETTERS = ("A", "B", "C", "D")  # of the options

# answer: 0..3, or -1 where it is not known; level: "middle" or "high"
Question = namedtuple("Question", "id passage text options answer level")


def passage_files(folder, split, level):
    """The files of one level, in the order of their numbers."""
    place = Path(folder) / split / level
    files = sorted(place.glob("*.txt"), key=lambda path: (len(path.name), path.name))
    if not files:
        raise UserError(f"{place}: no passages are here; --race takes the official folder")
    return files


def read_passage(path, level, asked=False):
    """The questions of one passage's file. asked: a user's file, which may have no answers."""
    entry = read_json(path, dict, "download it again")
    questions = []
    try:
        passage = entry["article"]
        unanswered = asked and "answers" not in entry
        answers = entry["questions"] if unanswered else entry["answers"]
        rows = zip(entry["questions"], entry["options"], answers, strict=True)
        for number, (text, options, answer) in enumerate(rows):
            "".join([passage, text, *options])  # a TypeError where one is no text
            if len(options) != len(LETTERS):
                raise ValueError
            if not unanswered and answer not in LETTERS:
                raise UserError(f"{path}: question {number + 1} has the answer {answer!r}; it must "
                                "be A, B, C or D")
            right = -1 if unanswered else LETTERS.index(answer)
            name = f"{entry['id']}-{number}"
            questions.append(Question(name, passage, text, tuple(options), right, level))
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a RACE passage (id, article, questions, four options and an "
                        "answer each); download it again") from None
    return questions


def load(folder, split):
    """The questions of "train", "dev" or "test", middle school before high school."""
    return [question for level in LEVELS for path in passage_files(folder, split, level)
            for question in read_passage(path, level)]


@dataclass
class Features:
    """Tokenised passages and question-option texts of n questions; 4 inputs each."""
    questions: list
    passages: list  # token ids
    options: list  # token ids; 4 i + k: question i with option k
    place: np.ndarray  # (4 n,) int64: the passage of each input
    used: np.ndarray  # (4 n,) int64: how many of its tokens are used
    specials: tuple  # ids of [CLS], [SEP], padding
    max_length: int

    def __len__(self):
        return len(self.questions)

    @cached_property
    def lengths(self):
        """(n, 4) tokens of each input, [CLS] and [SEP] included."""
        sizes = [used + len(option) + 3 for used, option in zip(self.used, self.options)]
        return np.array(sizes).reshape(-1, len(LETTERS))

    def batch(self, index, width):
        """Of B questions, all int64: ids, token_type_ids (B, 4, width), lengths (B, 4), labels
        (B,)."""
        shape = len(index), len(LETTERS), width
        inputs = np.arange(len(self.place)).reshape(-1, len(LETTERS))[index].reshape(-1)
        pairs = [(self.passages[self.place[i]][:self.used[i]], self.options[i]) for i in inputs]
        ids, token_type_ids = join(pairs, self.specials, width)
        return {
            "ids": ids.reshape(shape),
            "token_type_ids": token_type_ids.reshape(shape),
            "lengths": self.lengths[index],
            "labels": np.array([self.questions[i].answer for i in index], dtype=np.int64),
        }


def features(questions, tokenizer, max_length=512, max_qa=128):
    """Questions -> Features. max_length: tokens of an input, [CLS] and [SEP] included; max_qa:
    tokens of question and option."""
    room = max_length - 3
    passages = []
    options = []
    numbers = {}  # of the passages
    for question in tqdm(questions, desc="encode RACE", disable=None, leave=False):
        if question.passage not in numbers:
            numbers[question.passage] = len(passages)
            passages.append(array("i", tokenizer.encode(question.passage)[:room]))
        text = question.text if "_" in question.text else question.text + " _"
        for option in question.options:
            ids = tokenizer.encode(text.replace("_", option))
            options.append(array("i", ids[-min(max_qa, room):]))
    place = [numbers[question.passage] for question in questions]
    place = np.repeat(np.array(place, np.int64), len(LETTERS))
    used = [min(len(passages[i]), room - len(ids)) for i, ids in zip(place, options)]
    specials = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    return Features(questions, passages, options, place, used, specials, max_length)


class RaceTask(Task):
    """Which of four options is right; a head gives one number for each. Test has labels, and is a
    split where its folder exists. Fewer training examples are taken at even distances, since one
    level comes after the other."""

    def __init__(self, name, cfg, tokenizer, recipe, file=None):
        if file:
            self.examples = {"test": read_passage(file, LEVELS[0], asked=True)}
        else:
            names = ["train", "dev", *["test"] * Path(cfg.race, "test").is_dir()]
            self.examples = {split: self.load_some(cfg, split) for split in names}
        splits = {split: features(questions, tokenizer, recipe.length)
                  for split, questions in self.examples.items()}
        super().__init__(name, "choice", 1, ("accuracy", *LEVELS, "main"), recipe, splits)

    def load_some(self, cfg, split):
        questions = load(cfg.race, split)
        total = len(questions)
        count = min(limit(split, cfg) or total, total)
        return [questions[i * total // count] for i in range(count)]

    def score(self, split, outputs):
        """{"main", "accuracy", "middle", "high"} as fractions, without a level that has no
        questions. outputs: (n, 4)."""
        right = {name: [] for name in ("accuracy", *LEVELS)}
        chosen = np.asarray(outputs).argmax(1)
        for question, choice in zip(self.examples[split], chosen, strict=True):
            for name in ("accuracy", question.level):
                right[name].append(choice == question.answer)
        scores = {name: float(np.mean(each)) for name, each in right.items() if each}
        return {**scores, "main": scores[self.recipe.main]}

    def score_file(self, outputs):
        """The accuracy on the user's own file; {} where it has no answers."""
        if any(question.answer < 0 for question in self.examples["test"]):
            return {}
        return {"accuracy": self.score("test", outputs)["accuracy"]}

    def write(self, split, outputs, folder):
        """Write the chosen option of each question of dev or test, one letter per line; returns
        the path."""
        if split != "train":
            path = Path(folder) / f"{split}_predictions.txt"
            letters = [LETTERS[choice] for choice in np.asarray(outputs).argmax(1)]
            write_atomic(path, "\n".join([*letters, ""]))
            return path
