"""SQuAD 1.1 and 2.0: questions, windows of tokens, answers cut from the text, the official scores.

    [CLS] question (at most MAX_QUERY tokens) [SEP] window of the paragraph [SEP]

A paragraph longer than the model's input is cut into overlapping windows, a new one every
`doc_stride` tokens. A token in several windows may begin an answer only in the window that owns it,
where it has the most context on its shorter side. Paragraphs and questions are tokenised once.
Windows are assembled only when their batch is drawn.

A training window without the answer, and every window of an unanswerable question, has its start
and end at [CLS] and `impossible` set, in 1.1 and 2.0, as in BERT and ALBERT.
"""
import math
from array import array
from collections import Counter, namedtuple
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from common import metrics, tasks
from common.cli import UserError
from common.files import existing, read_json, write_json

FIX = "point --squad at the folder with the official train and dev JSON files"
LAYOUT = ("an article has paragraphs; a paragraph context and qas; each of qas an id of its own, "
          "question and answers; an answer text and answer_start")
MAX_QUERY = 64  # tokens of a question
N_BEST = 20  # starts, ends and answers to keep, as in the official script of BERT
MAX_ANSWER = 30  # tokens
THRESHOLD = "threshold.json"  # for "no answer", next to a model of SQuAD 2.0
# indices in Features of question and paragraph, first token in the paragraph and number of tokens.
# The window owns the tokens from own to own_end, counted in the window
WINDOW = np.dtype([(name, np.int32) for name in (
    "question", "paragraph", "start", "length", "own", "own_end")])
# a tokenised paragraph: token ids, and start and end of each token in the text
Context = namedtuple("Context", "ids starts ends")
# answers: tuple of (text, start in context), empty if unanswerable
Question = namedtuple("Question", "id text context answers")
Predictions = namedtuple("Predictions", "texts nbest null_odds")


# Files


def read_answers(entry, context, place):
    """The answers of an entry of "qas", none if it says that it is impossible. Raises UserError if
    one is not in the paragraph."""
    impossible = entry.get("is_impossible", False)
    if impossible not in (True, False):
        raise ValueError(f"is_impossible is {impossible!r}, neither true nor false")
    if impossible:
        return ()
    answers = tuple((answer["text"], answer["answer_start"]) for answer in entry["answers"])
    for text, start in answers:
        if not text or start < 0 or not context.startswith(text, start):
            raise UserError(f"{place}: the answer {text[:50]!r} is not at character {start}; "
                            "correct answer_start, or set is_impossible to true")
    return answers


def files(folder, name):
    """{split: file} of SQuAD1.1 or SQuAD2.0. Raises UserError."""
    version = name.removeprefix("SQuAD")
    return {split: existing(Path(folder) / f"{split}-v{version}.json", FIX)
            for split in ("train", "dev")}


def load(path, with_answers=True):
    """The questions of a SQuAD JSON file: a list of Question. Raises UserError for another layout,
    or for a wrong answer if answers are read."""
    content = read_json(path, "use the layout of the official SQuAD files")
    questions = []
    place = path
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for entry in paragraph["qas"]:
                    place = f"{path}: question number {len(questions) + 1}"
                    place = f"{path}: question {entry['id']}"
                    "".join([entry["question"], context]).encode()  # fails: no text
                    answers = read_answers(entry, context, place) if with_answers else ()
                    questions.append(Question(entry["id"], entry["question"], context, answers))
    except KeyError as error:
        raise UserError(f"{place}: a part lacks {error}; {LAYOUT}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{place}: not in the official layout ({type(error).__name__}: {error}); "
                        f"{LAYOUT}") from None
    ids = Counter(question.id for question in questions)
    if not questions or len(ids) < len(questions):
        fault = f"two questions have the id {ids.most_common(1)[0][0]!r}" if ids else "no questions"
        raise UserError(f"{path}: {fault}; {LAYOUT}")
    return questions


# Windows


@lru_cache(maxsize=4096)
def cut_windows(tokens, capacity, stride):
    """Cut a paragraph into windows. Returns an int array (windows, 4): start, length, and the range
    [own, own_end) of tokens that the window owns, counted in the window.

    The owner of a token is the window with the largest min(tokens to the left, tokens to the right)
    + 0.01 x length, the first of equal ones.
    """
    step = min(capacity, stride)
    starts = np.arange(0, max(1, tokens - capacity + step), step)
    lengths = np.minimum(capacity, tokens - starts)
    left = np.arange(tokens) - starts[:, None]  # (windows, tokens)
    context = np.minimum(left, lengths[:, None] - 1 - left)
    owner = np.where(context >= 0, context + 0.01 * lengths[:, None], -1.0).argmax(axis=0)
    # the owner never decreases from left to right, so a window owns one run of tokens
    windows = np.arange(len(starts))
    own = np.searchsorted(owner, windows, side="left") - starts
    own_end = np.searchsorted(owner, windows, side="right") - starts
    return np.stack([starts, lengths, own, own_end], axis=1)


@dataclass
class Features:
    """W windows over tokenised questions and paragraphs."""
    questions: list
    queries: list  # token ids of each question
    contexts: list  # the Context of each paragraph
    windows: np.ndarray  # (W,) of WINDOW
    targets: np.ndarray | None  # (W, 3): start, end in the input, impossible. None for evaluation
    specials: tuple  # ids of [CLS], [SEP], padding
    max_length: int

    def __len__(self):
        return len(self.windows)

    @cached_property
    def offsets(self):
        """(W,) position of the window's first paragraph token in its input."""
        return np.array([len(query) for query in self.queries])[self.windows["question"]] + 2

    @cached_property
    def lengths(self):
        """(W,) tokens of the input, special ones included."""
        return self.offsets + self.windows["length"] + 1

    def batch(self, index, width):
        """B windows: ids, token_type_ids (B, width), lengths (B,), int64, and p_mask (B, width)
        bool, True where no answer can begin or end: the question, both [SEP] and the padding ([CLS]
        means "no answer"). With targets also start, end (B,) int64, impossible (B,) float32.
        """
        pairs = [(self.queries[question], self.contexts[paragraph].ids[start:start + length])
                 for question, paragraph, start, length, _, _ in self.windows[index].tolist()]
        ids, token_type_ids = tasks.join(pairs, self.specials, width)
        positions = np.arange(width) - self.offsets[index, None]
        p_mask = (positions < 0) | (positions >= self.windows["length"][index, None])
        p_mask[:, 0] = False
        batch = {
            "ids": ids,
            "token_type_ids": token_type_ids,
            "lengths": self.lengths[index],
            "p_mask": p_mask,
        }
        if self.targets is not None:
            start, end, impossible = self.targets[index].T
            batch["start"] = start.astype(np.int64)
            batch["end"] = end.astype(np.int64)
            batch["impossible"] = impossible.astype(np.float32)
        return batch


def window_targets(windows, offset, answer):
    """(n, 3): start, end, impossible of a question's n windows from cut_windows. answer: the
    indices of its tokens in the paragraph, empty if unanswerable."""
    targets = np.tile([0, 0, 1], (len(windows), 1))
    if len(answer):
        start, length, _, _ = windows.T
        inside = (start <= answer[0]) & (answer[-1] < start + length)
        targets[inside, :2] = answer[[0, -1]] + offset - start[inside, None]
        targets[inside, 2] = 0
    return targets


def answer_tokens(question, starts, ends):
    """The indices of the paragraph's tokens that overlap the first answer."""
    if not question.answers:
        return np.array([], dtype=np.int64)
    text, begin = question.answers[0]
    return np.flatnonzero((np.array(ends) > begin) & (np.array(starts) < begin + len(text)))


def encode_context(tokenizer, text):
    """The Context of a paragraph's text."""
    ids, spans = tokenizer.encode_with_offsets(text)
    starts, ends = zip(*spans) if spans else ((), ())
    return Context(array("i", ids), array("i", starts), array("i", ends))


def features(questions, tokenizer, max_length, doc_stride, training=False):
    """Questions -> Features. max_length: tokens of an input, special ones included. training: with
    targets, from each question's first answer. An answer without a token counts as missing."""
    max_query = min(MAX_QUERY, max_length - 3 - 1)
    queries = []
    contexts = []
    paragraphs = {}  # {text: its index in contexts}
    windows = []
    targets = []
    for number, question in enumerate(questions):
        query = tokenizer.encode(question.text)[:max_query]
        queries.append(query)
        if question.context not in paragraphs:
            paragraphs[question.context] = len(contexts)
            contexts.append(encode_context(tokenizer, question.context))
        paragraph = paragraphs[question.context]
        ids, starts, ends = contexts[paragraph]
        own = cut_windows(len(ids), max_length - len(query) - 3, doc_stride)
        which = np.tile([number, paragraph], (len(own), 1))
        windows.append(np.concatenate([which, own], axis=1).astype(np.int32))
        if training:
            answer = answer_tokens(question, starts, ends)
            targets.append(window_targets(own, len(query) + 2, answer).astype(np.int32))
    windows = np.concatenate(windows).view(WINDOW)[:, 0]
    targets = np.concatenate(targets) if training else None
    return Features(
        questions, queries, contexts, windows, targets, tokenizer.specials, max_length)


# Answers


def extract(features, start_logits, end_logits):
    """Answers from start and end logits (W, T) (arrays or CPU tensors, T >= the longest input).

    As in the official script of BERT, the N_BEST best starts of each window are combined with its
    N_BEST best ends, and illegal spans dropped. The odds of "no answer" are BERT's: the smallest
    start + end logit at [CLS] of the question's windows, minus the best span's score. Returns
    Predictions as `rank` does.
    """
    start_logits = torch.as_tensor(start_logits, dtype=torch.float64)
    end_logits = torch.as_tensor(end_logits, dtype=torch.float64)
    null = start_logits[:, 0].float() + end_logits[:, 0].float()
    kept = min(N_BEST, start_logits.shape[1])
    start_scores, starts = start_logits.topk(kept)
    end_scores, ends = end_logits.topk(kept)
    scores = start_scores.repeat_interleave(kept, 1) + end_scores.repeat(1, kept)  # (W, kept ** 2)
    return rank(features, starts.repeat_interleave(kept, 1), ends.repeat(1, kept), scores, null,
                relative=True)


def rank(features, starts, ends, scores, null, relative=False):
    """Answers from K candidate spans of each window, also of a beam (XLNet's and ALBERT's 5 x 5).

    starts, ends: (W, K) positions in the window's input. Drops spans outside the paragraph, spans
    whose start the window does not own, and spans longer than MAX_ANSWER tokens. scores: (W, K).
    null: (W,) scores of "no answer". A question has the smallest of its windows. relative: subtract
    the best span's score from it. Returns Predictions: texts {id: the best answer}, nbest {id: list
    of {"text", "score", "probability"}}, null_odds {id: float}.
    """
    spans = [[] for _ in features.questions]  # (score, start, end) in characters
    lowest = np.full(len(spans), np.inf)
    np.minimum.at(lowest, features.windows["question"], np.asarray(null, dtype=np.float64))
    starts = np.asarray(starts) - features.offsets[:, None]
    ends = np.asarray(ends) - features.offsets[:, None]
    length, own, own_end = (
        features.windows[name][:, None] for name in ("length", "own", "own_end"))  # (W, 1)
    legal = (own <= starts) & (starts < own_end) & (starts <= ends)
    legal &= ends < np.minimum(length, starts + MAX_ANSWER)
    indices = np.nonzero(legal)
    columns = (indices[0], starts[indices], ends[indices], np.asarray(scores)[indices])
    for window, start, end, score in zip(*map(np.ndarray.tolist, columns)):
        number, paragraph, first, *_ = features.windows[window]
        _, char_starts, char_ends = features.contexts[paragraph]
        spans[number].append((score, char_starts[first + int(start)], char_ends[first + int(end)]))
    result = Predictions({}, {}, {})
    for question, own_spans, odds in zip(features.questions, spans, lowest.tolist()):
        best = distinct(question.context, own_spans)
        result.texts[question.id] = best[0]["text"]
        result.nbest[question.id] = best
        result.null_odds[question.id] = odds - relative * best[0]["score"]
    return result


def distinct(context, spans):
    """The N_BEST best distinct texts of spans (score, start, end), and their probabilities."""
    texts = {}
    for score, start, end in sorted(spans, key=lambda span: -span[0]):
        texts.setdefault(context[start:end].strip(), score)
        if len(texts) == N_BEST:
            break
    texts = texts or {"": -1e30}  # no legal span: an empty answer with the lowest score
    scores = np.array(list(texts.values()))
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    return [{"text": text, "score": score, "probability": float(weight)}
            for (text, score), weight in zip(texts.items(), weights)]


# Scores


def question_scores(question, prediction, version):
    """(exact match, F1) of one prediction, the best over the answers."""
    answers = [text for text, _ in question.answers]
    if version == 2:
        answers = [text for text in answers if metrics.normalize_answer(text)]
    answers = answers or [""]
    exact = max(metrics.squad_exact(prediction, text) for text in answers)
    f1 = max(metrics.squad_f1(prediction, text, version) for text in answers)
    return exact, f1


def best_threshold(f1, odds, answerable, texts):
    """The threshold with the best mean F1. Answers with larger odds are withdrawn.

    f1: (n,) of each answer. answerable: (n,) bool. texts: the answers.
    """
    order = np.argsort(odds, kind="stable")
    ranked = odds[order]
    gain = np.where(answerable, f1, [-1.0 * bool(text) for text in texts])[order]
    totals = np.concatenate([[0.0], np.cumsum(gain)])  # by number of answers kept
    totals[1:-1][ranked[1:] == ranked[:-1]] = -np.inf  # no threshold separates equal odds
    best = int(np.argmax(totals))
    return float(ranked[best - 1] if best else np.nextafter(ranked[0], -np.inf))


def evaluate(questions, predictions, null_odds=None):
    """The official scores, as fractions: exact and f1.

    predictions: {id: text}. null_odds: {id: odds of "no answer"}. With them and unanswerable
    questions (2.0), answers with odds above the threshold with the best F1 are withdrawn, and the
    result has this threshold.
    """
    answerable = np.array([bool(question.answers) for question in questions])
    version = 1 if answerable.all() else 2
    texts = [predictions[question.id] for question in questions]
    scores = np.array([question_scores(question, text, version)
                       for question, text in zip(questions, texts)])  # (n, 2)
    result = {}
    if version == 2 and null_odds is not None:
        odds = np.array([null_odds[question.id] for question in questions])
        threshold = best_threshold(scores[:, 1], odds, answerable, texts)
        result["threshold"] = threshold
        scores = np.where((odds > threshold)[:, None], ~answerable[:, None], scores)
    exact, f1 = scores.mean(axis=0).tolist()
    return {"exact": exact, "f1": f1, **result}


# The task


class SquadTask(tasks.Task):
    """A span of the paragraph. In 2.0 [CLS] means "no answer". The file of --predict is the only
    split, "dev"."""

    def __init__(self, name, source, tokenizer, recipe):
        self.threshold = source.spec  # for "no answer". None: the best on dev
        stride = min(128, recipe.length // 3)
        windows = {split: features(questions, tokenizer, recipe.length, stride, split == "train")
                   for split, questions in source.examples.items()}
        super().__init__(name, "span", 2, ("exact", "f1", "main"), recipe, source, windows)

    @staticmethod
    def read(name, folder, search=False):
        paths = files(folder, name)
        return tasks.Source({split: load(path) for split, path in paths.items()}, paths["dev"])

    @staticmethod
    def texts(example):
        return example.text, example.context

    @staticmethod
    def read_file(name, path, model):
        """With the model's threshold for "no answer"."""
        kept = Path(model, THRESHOLD)
        threshold = read_json(kept)["threshold"] if kept.exists() else 0.0
        return tasks.Source({"dev": load(path, with_answers=False)}, path, threshold)

    def constant_outputs(self):
        empty = {question.id: "" for question in self.examples["dev"]}
        return [Predictions(empty, {}, dict.fromkeys(empty, 0.0))]

    def answers(self, outputs):
        """Predictions on dev. outputs: start and end logits (W, T, 2) of the windows, a beam as in
        rank, or Predictions, which are returned."""
        if isinstance(outputs, Predictions):
            return outputs
        if isinstance(outputs, tuple):
            return rank(self.splits["dev"], *outputs)
        return extract(self.splits["dev"], outputs[..., 0], outputs[..., 1])

    def score(self, split, outputs):
        """The official scores as fractions. "main" is F1. In 2.0 answers whose odds of "no answer"
        exceed the threshold with the best F1 on dev are withdrawn, as in the written files."""
        predictions = self.answers(outputs)
        odds = predictions.null_odds if self.name == "SQuAD2.0" else None
        scores = evaluate(self.examples["dev"], predictions.texts, odds)
        return {**scores, "main": scores["f1"]}

    def write(self, split, outputs, folder):
        """Write predictions.json, nbest_predictions.json and null_odds.json. Returns the path of
        the first. In 2.0 answers above the threshold are withdrawn. The file THRESHOLD has it."""
        predictions = self.answers(outputs)
        texts = predictions.texts
        if self.name == "SQuAD2.0":
            threshold = self.threshold
            if threshold is None:
                threshold = self.score(split, predictions).get("threshold", math.inf)
                write_json(Path(folder, THRESHOLD), {"threshold": threshold})
            texts = {name: "" if predictions.null_odds[name] > threshold else text
                     for name, text in texts.items()}
        files = {
            "predictions": texts,
            "nbest_predictions": predictions.nbest,
            "null_odds": predictions.null_odds,
        }
        for name, content in files.items():
            write_json(Path(folder, f"{name}.json"), content)
        return Path(folder, "predictions.json")
