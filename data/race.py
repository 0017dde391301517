"""RACE: reading comprehension with four options (Lai et al. 2017).

The folders RACE/{train,dev,test}/{middle,high} hold .txt files with one JSON object per passage.
A question becomes four inputs, one per option, as in ALBERT's code:

    [CLS] passage [SEP] question with the option [SEP]

The option replaces every "_" of the question, or follows it if there is none. This second part
keeps its last MAX_QA tokens. The passage is truncated at its end.
"""
import warnings
from collections import namedtuple
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common import glue, tasks
from common.cli import UserError
from common.files import read_json, write_atomic

LEVELS = ("middle", "high")
LAYOUT = "--race takes the official folder: train|dev|test/middle|high/NUMBER.txt, a passage a file"
MAX_QA = 128  # tokens of question and option
LETTERS = ("A", "B", "C", "D")  # of the options

# answer: 0..3. level: "middle" or "high"
Question = namedtuple("Question", "passage text options answer level")


def splits(folder):
    return ["train", "dev", *["test"] * Path(folder, "test").is_dir()]


def passage_files(folder, split):
    """The files of a split: middle school before high school, in the order of their numbers. One
    level may be missing."""
    files = []
    for level in LEVELS:
        inside = Path(folder, split, level).glob("*.txt")
        files += sorted(inside, key=lambda path: (len(path.name), path.name))
    if not files:
        raise UserError(f"{folder}/{split}: no passages here; {LAYOUT}")
    return files


def read_passage(path, answered=True):
    """The questions of one passage's file. answered=False: a user's file, where every answer is
    A."""
    entry = read_json(path, LAYOUT)
    questions = []
    try:
        texts = entry["questions"]
        answers = entry["answers"] if answered else LETTERS[:1] * len(texts)
        if not texts:
            raise ValueError
        entries = zip(texts, entry["options"], answers, strict=True)
        for number, (text, options, answer) in enumerate(entries):
            if len(options) != len(LETTERS):
                raise ValueError
            if answer not in LETTERS:
                raise UserError(f"{path}: question {number + 1} has the answer {answer!r}; it must "
                                "be A, B, C or D")
            "".join([entry["article"], text, *options]).encode()  # fails where one is no text
            questions.append(Question(entry["article"], text, options, LETTERS.index(answer),
                                      path.parent.name))
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a RACE passage (article, questions, four options and an "
                        "answer each)") from None
    return questions


def load(folder, split):
    """The questions of "train", "dev" or "test"."""
    return [question for path in passage_files(folder, split) for question in read_passage(path)]


class Features(glue.Features):
    """Like GLUE's Features, but each example in `pairs` has four pairs, one per option."""

    @cached_property
    def lengths(self):
        """(n, 4) int64 tokens of each input, special ones included."""
        return np.array([[len(passage) + len(option) + 3 for passage, option in four]
                         for four in self.pairs])

    def batch(self, index, width):
        """A batch of B questions, all int64: ids, token_type_ids (B, 4, width), lengths (B, 4),
        labels (B,)."""
        shape = len(index), len(LETTERS), width
        pairs = [pair for i in index for pair in self.pairs[i]]
        ids, token_type_ids = tasks.join(pairs, self.specials, width)
        return {"ids": ids.reshape(shape), "token_type_ids": token_type_ids.reshape(shape),
                "lengths": self.lengths[index], "labels": self.labels[index]}


def features(questions, tokenizer, max_length):
    """Questions -> Features. max_length: tokens of an input, [CLS] and [SEP] included."""
    room = max_length - 3
    pairs = []
    passages = {}  # token ids by text
    for question in tqdm(questions, desc="encode RACE", disable=None, leave=False):
        if question.passage not in passages:
            ids = tokenizer.encode(question.passage)[:room]
            passages[question.passage] = np.array(ids, np.int32)
        text = question.text if "_" in question.text else question.text + " _"
        pairs.append([])
        for option in question.options:
            ids = np.array(tokenizer.encode(text.replace("_", option)), np.int32)
            ids = ids[-min(MAX_QA, room):]
            # views of one array
            pairs[-1].append((passages[question.passage][:room - len(ids)], ids))
    empty = sum(not len(passage) for four in pairs for passage, _ in four)
    message = (f"in {empty} of {len(pairs) * len(LETTERS)} inputs of RACE question and option "
               f"leave no room for the passage; raise --finetune_length {max_length}")
    if empty == len(pairs) * len(LETTERS):
        raise UserError(message)
    if empty:
        warnings.warn(message)
    labels = np.array([question.answer for question in questions], np.int64)
    return Features(pairs, labels, tokenizer.specials, max_length)


class RaceTask(tasks.Task):
    """Which of four options is right. A head gives one number per option. Test has labels, and is a
    split if its folder exists."""

    def __init__(self, name, source, tokenizer, recipe):
        encoded = {split: features(questions, tokenizer, recipe.length)
                   for split, questions in source.examples.items()}
        metrics = "accuracy", *LEVELS, "main"
        super().__init__(name, "choice", 1, metrics, recipe, source, encoded)

    @staticmethod
    def read(name, folder, search=False):
        examples = {split: load(folder, split) for split in splits(folder)}
        return tasks.Source(examples, passage_files(folder, "dev")[0])

    @staticmethod
    def read_file(name, path, model):
        return tasks.Source({"test": read_passage(path, answered=False)}, path)

    @staticmethod
    def choose(examples, count):
        """`count` evenly spaced questions, so that both levels are included."""
        total = len(examples)
        count = min(count or total, total)
        return [examples[i * total // count] for i in range(count)]

    def score(self, split, outputs):
        """{"main", "accuracy", "middle", "high"} as fractions, without levels that have no
        questions. outputs: (n, 4)."""
        right = np.asarray(outputs).argmax(1) == self.splits[split].labels
        levels = [question.level for question in self.examples[split]]
        scores = {"accuracy": float(right.mean())}
        for level in dict.fromkeys(levels):
            scores[level] = float(right[np.array(levels) == level].mean())
        return {**scores, "main": scores[self.recipe.main]}

    def write(self, split, outputs, folder):
        """Write the chosen option of each question of dev or test, one letter per line. Returns the
        path."""
        if split != "train":
            path = Path(folder) / f"{split}_predictions.txt"
            letters = [LETTERS[choice] for choice in np.asarray(outputs).argmax(1)]
            write_atomic(path, "\n".join([*letters, ""]))
            return path
