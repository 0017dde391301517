"""RACE: reading comprehension with four options, from the folders RACE/{train,dev,test}/{middle,high}: a .txt file
with one JSON object for each passage. A question becomes four inputs, one an option, as ALBERT's code does it:

    [CLS] passage [SEP] question with the option [SEP]

where every "_" of the question is replaced by the option, which otherwise follows the question; of this second part the
last max_qa tokens are kept, and the passage is cut at its end.
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
OPTIONS = 4

Question = namedtuple("Question", "id passage text options answer level")  # answer: 0..3, level: "middle" or "high"


def passage_files(folder, split, level):
    """The files of one level, in the order of their numbers. UserError where there is none."""
    place = Path(folder) / split / level
    if paths := sorted(place.glob("*.txt"), key=lambda path: (len(path.name), path.name)):
        return paths
    raise UserError(f"{place}: no passages are here; point --race at the official folder with train and dev")


def read_passage(path, level, asked=False):
    """The questions of one passage's file. asked: a user's file, which may have no answers (-1)."""
    entry = read_json(path, fix="download it again")
    try:
        name, passage = str(entry["id"]), entry["article"]
        unanswered = asked and "answers" not in entry
        answers = [None] * len(entry["questions"]) if unanswered else entry["answers"]
        rows = list(zip(entry["questions"], entry["options"], answers, strict=True))
        texts = [passage, *(text for question, options, _ in rows for text in (question, *options))]
        well = all(isinstance(text, str) for text in texts) and all(len(options) == OPTIONS for _, options, _ in rows)
    except (ValueError, KeyError, TypeError):
        well = False
    if not well:
        raise UserError(f"{path}: not a RACE passage (id, article, questions, {OPTIONS} options and an answer each); "
                        "download it again")
    for number, (text, options, answer) in enumerate(rows):
        if answer not in tuple("ABCD") and not unanswered:
            raise UserError(f"{path}: question {number + 1} has the answer {answer!r}; it must be A, B, C or D")
        right = -1 if unanswered else "ABCD".index(answer)
        yield Question(f"{name}-{number}", passage, text, tuple(options), right, level)


def load(folder, split):
    """The questions of one split ("train", "dev" or "test"), middle school before high school: a list of Question."""
    questions = []
    for level in LEVELS:
        found = [question for path in passage_files(folder, split, level) for question in read_passage(path, level)]
        if not found:
            raise UserError(f"{Path(folder) / split / level}: no questions; take the official RACE folder")
        questions += found
    return questions


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
        """(n, 4) tokens of each input, special ones included."""
        return (self.used + [len(ids) + 3 for ids in self.options]).reshape(-1, OPTIONS)

    def batch(self, index, width):
        """Of B questions: ids, segments (B, 4, width) int64, lengths (B, 4) int64, labels (B,) int64."""
        pairs = [(self.passages[self.place[row]][:self.used[row]], self.options[row])
                 for i in index for row in range(OPTIONS * i, OPTIONS * (i + 1))]
        ids, segments = join(pairs, self.specials, width)
        shape = len(index), OPTIONS, width
        return {"ids": ids.reshape(shape), "segments": segments.reshape(shape), "lengths": self.lengths[index],
                "labels": np.array([self.questions[row].answer for row in index], dtype=np.int64)}


def features(questions, tokenizer, max_length=512, max_qa=128):
    """Questions -> Features; max_length: tokens of an input, special ones included; max_qa: of them for question and
    option."""
    room = max_length - 3
    if room < 1 or max_qa < 1:
        raise UserError(f"max_length {max_length}, max_qa {max_qa}: no room for a question; raise them")
    passages, options, places = [], [], {}
    for question in tqdm(questions, desc="encode RACE", disable=None, leave=False):
        if question.passage not in places:
            places[question.passage] = len(passages)
            passages.append(array("i", tokenizer.encode(question.passage)[:room]))
        text = question.text if "_" in question.text else question.text + " _"
        for ids in tokenizer.encode_batch([text.replace("_", option) for option in question.options]):
            options.append(array("i", ids[-min(max_qa, room):]))
    place = np.array([places[question.passage] for question in questions], dtype=np.int64).repeat(OPTIONS)
    used = np.array([min(len(passages[i]), room - len(ids)) for i, ids in zip(place, options)])
    specials = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    return Features(questions, passages, options, place, used, specials, max_length)


class RaceTask(Task):
    """Which of four options is right; a head gives one number for each. Test has labels, and is a split where its
    folder is there. Fewer training rows are taken at even distances: one level comes after the other."""

    def __init__(self, name, cfg, tokenizer, recipe, file=None):
        self.examples = {"test": list(read_passage(file, LEVELS[0], asked=True))} if file else {}
        for split in () if file else ("train", "dev", "test"):
            if split != "test" or (Path(cfg.race) / split).is_dir():
                found = load(cfg.race, split)
                rows = min(limit(split, cfg) or len(found), len(found))
                self.examples[split] = [found[row * len(found) // rows] for row in range(rows)]
        super().__init__(name, "choice", 1, ("accuracy", *LEVELS, "main"), recipe,
                         {split: features(rows, tokenizer, recipe.length) for split, rows in self.examples.items()})

    def score(self, split, outputs):
        """{"main", "accuracy", "middle", "high"} as shares (a level without questions is left out). outputs: (n, 4)."""
        chosen = np.asarray(outputs).argmax(axis=1)
        right = {name: [] for name in ("accuracy", *LEVELS)}
        for question, choice in zip(self.examples[split], chosen, strict=True):
            right["accuracy"].append(choice == question.answer)
            right[question.level].append(choice == question.answer)
        found = {name: float(np.mean(each)) for name, each in right.items() if each}
        return {**found, "main": found[self.recipe.main]}

    def score_file(self, outputs):
        """The accuracy on the user's own file; {} where it has no answers."""
        has_answers = all(question.answer >= 0 for question in self.examples["test"])
        return {"accuracy": self.score("test", outputs)["accuracy"]} if has_answers else {}

    def write(self, split, outputs, folder):
        """Write the chosen option of each question of dev or test, a letter a line; returns the
        path."""
        if split != "train":
            path = Path(folder) / f"{split}_predictions.txt"
            chosen = np.asarray(outputs).argmax(axis=1)
            write_atomic(path, "".join("ABCD"[choice] + "\n" for choice in chosen))
            return path
