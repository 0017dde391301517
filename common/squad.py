"""SQuAD 1.1 and 2.0: questions, windows of tokens, answers cut from the text, the official scores.

A paragraph longer than the model's input is cut into overlapping windows, a new one every `doc_stride` tokens. A token
that lies in several windows may begin an answer only in the one where it has the most context on its shorter side.
Paragraphs and questions are tokenised once and kept flat; a window is five numbers, and its tokens are put together
only when its batch is drawn, so that the 130,000 windows of the whole training set take about as much memory as its
text.

    [CLS] question (at most max_query tokens) [SEP] window of the paragraph [SEP]

A training window without the answer (and every window of an unanswerable question) has its start and end at [CLS] and
`impossible` set, in 1.1 as in 2.0; this is what BERT and ALBERT do.
"""
import warnings
from collections import namedtuple
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common import metrics
from common.cli import UserError
from common.checkpoint import existing, read_json, read_text
from common.glue import Rows, join

MEND = "point --squad at the folder with the official train and dev JSON files"
Question = namedtuple("Question", "id text context answers impossible")  # answers: tuple of (text, start in context)
Predictions = namedtuple("Predictions", "texts nbest null_odds")


def field(mapping, key, kind, place):
    """mapping[key], which must be of this kind."""
    if not isinstance(mapping, dict) or type(mapping.get(key)) is not kind:  # True is no number
        raise UserError(f"{place}: {key!r} is missing or not a {kind.__name__}; take the official SQuAD file")
    return mapping[key]


def read_question(entry, context, place, asked=False):
    """One entry of "qas" as a Question, each answer checked against the paragraph, or asked without any."""
    name = field(entry, "id", str, place)
    place = f"{place}, question {name}"
    if asked:
        return Question(name, field(entry, "question", str, place), context, (), False)
    impossible = entry.get("is_impossible", False)
    answers = []
    for answer in field(entry, "answers", list, place):
        text, start = field(answer, "text", str, place), field(answer, "answer_start", int, place)
        if not text or start < 0 or context[start:start + len(text)] != text:
            raise UserError(f"{place}: the answer {text[:50]!r} is not at character {start}; correct answer_start")
        answers.append((text, start))
    if bool(impossible) == bool(answers):
        raise UserError(f"{place}: {len(answers)} answers and is_impossible {impossible}; correct one of the two")
    return Question(name, field(entry, "question", str, place), context, tuple(answers), bool(impossible))


def files(folder, name):
    """{split: file} of SQuAD1.1 or SQuAD2.0; MissingFile where one is not there."""
    return {split: existing(Path(folder) / f"{split}-v{name[5:]}.json", MEND) for split in ("train", "dev")}


def load(path, asked=False):
    """The questions of a SQuAD JSON file (1.1 or 2.0): a list of Question, asked: without answers. UserError where
    anything is amiss."""
    questions = {}
    content = read_json(path, fix=MEND)
    for number, article in enumerate(field(content, "data", list, str(path)), 1):
        for position, paragraph in enumerate(field(article, "paragraphs", list, f"{path}: article {number}"), 1):
            place = f"{path}: article {number}, paragraph {position}"
            context = field(paragraph, "context", str, place)
            for entry in field(paragraph, "qas", list, place):
                question = read_question(entry, context, place, asked)
                if question.id in questions:
                    raise UserError(f"{place}: a second question {question.id}; ids must be unique")
                questions[question.id] = question
    if not questions:
        raise UserError(f"{path}: no questions; take the official SQuAD file")
    return list(questions.values())


def load_answered(path):
    """The questions of a user's file with their answers; None if it has none. A warning names a
    wrong one."""
    if '"answers"' not in read_text(path, MEND):
        return None
    try:
        return load(path)
    except UserError as error:
        warnings.warn(f"{error}; no score is computed", stacklevel=2)


@lru_cache(maxsize=4096)
def cut_windows(tokens, capacity, stride):
    """Cut a paragraph into windows. Returns an int array (windows, 4): start, length, and the part [own, own_end) of
    the window whose tokens have their best context here: the larger min(tokens to the left, tokens to the right) + 0.01
    x length, the earlier window of equals."""
    step = min(capacity, stride)
    starts = np.arange(0, max(1, tokens - capacity + step), step)
    lengths = np.minimum(capacity, tokens - starts)
    left = np.arange(tokens) - starts[:, None]  # (windows, tokens)
    context = np.minimum(left, lengths[:, None] - 1 - left)
    best = np.where(context >= 0, context + 0.01 * lengths[:, None], -1.0).argmax(axis=0)
    # the scores are tents of one slope, so a window owns one run of tokens; best never falls from left to right
    own = np.searchsorted(best, np.arange(len(starts)), side="left") - starts
    own_end = np.searchsorted(best, np.arange(len(starts)), side="right") - starts
    return np.stack([starts, lengths, own, own_end], axis=1)


@dataclass
class Features:
    """Windows over tokenised questions and paragraphs; W windows, one row of `windows` each:
    question, paragraph, start and length in the paragraph's tokens, own and own_end (see cut_windows)."""
    questions: list
    queries: Rows  # token ids by question
    contexts: Rows  # token ids by paragraph
    char_start: Rows  # for each token of contexts
    char_end: Rows
    windows: np.ndarray  # (W, 6) int32
    targets: np.ndarray | None  # (W, 3) int32: start, end in the window's input, impossible; None without training
    specials: tuple  # ids of [CLS], [SEP], padding
    max_length: int

    def __len__(self):
        return len(self.windows)

    @cached_property
    def offsets(self):
        """(W,) position of the window's first paragraph token in its input."""
        return self.queries.lengths[self.windows[:, 0]] + 2

    @cached_property
    def lengths(self):
        """(W,) tokens of the input, special ones included."""
        return self.offsets + self.windows[:, 3] + 1

    def batch(self, index, width):
        """Of B windows: ids, segments (B, width) int64; lengths (B,) int64; p_mask (B, width) bool, True where no
        answer can begin or end: the question, both [SEP] and the padding ([CLS] stands for "no answer"); with targets
        also start, end (B,) int64 and impossible (B,) float32."""
        question, place, start, length = self.windows[index, :4].T.astype(np.int64)
        query = self.queries, question, 0, self.offsets[index] - 2
        ids, segments = join([query, (self.contexts, place, start, length)], self.specials, width)
        places = np.arange(width) - self.offsets[index, None]
        p_mask = (places < 0) | (places >= length[:, None])
        p_mask[:, 0] = False
        batch = {"ids": ids, "segments": segments, "lengths": self.lengths[index], "p_mask": p_mask}
        if self.targets is not None:
            begin, end, impossible = self.targets[index].T
            batch |= {"start": begin.astype(np.int64), "end": end.astype(np.int64),
                      "impossible": impossible.astype(np.float32)}
        return batch


def window_targets(windows, offset, answer):
    """(windows, 3): start, end, impossible of one question's windows; answer: its tokens in the paragraph."""
    targets = np.tile([0, 0, 1], (len(windows), 1))
    if len(answer):
        start, length = windows[:, 0], windows[:, 1]
        inside = (start <= answer[0]) & (answer[-1] < start + length)
        targets[inside, :2] = answer[[0, -1]] + offset - start[inside, None]
        targets[inside, 2] = 0
    return targets


def features(questions, tokenizer, max_length=384, doc_stride=128, max_query=64, training=False):
    """Questions -> Features. max_length: tokens of an input, special ones included. training: the targets are made,
    from each question's first answer; one warning counts the answers that no token covers (as if not there)."""
    max_query = min(max_query, max_length - 3 - 1)
    queries, contexts, char_start, char_end = Rows(), Rows(), Rows(), Rows()
    places, windows, targets, lost, longer = {}, [], [], [], 0
    for number, question in enumerate(tqdm(questions, desc="windows", disable=None, leave=False)):
        pieces = tokenizer.encode(question.text)
        longer += len(pieces) > max_query
        queries.append(pieces[:max_query])
        if question.context not in places:
            places[question.context] = len(contexts)
            ids, spans = tokenizer.encode_with_offsets(question.context)
            contexts.append(ids)
            char_start.append([span[0] for span in spans])
            char_end.append([span[1] for span in spans])
        place, asked = places[question.context], queries.starts[-1] - queries.starts[-2]
        cut = cut_windows(contexts.starts[place + 1] - contexts.starts[place], max_length - asked - 3, doc_stride)
        windows.append(np.concatenate([np.tile([number, place], (len(cut), 1)), cut], axis=1).astype(np.int32))
        if training:
            text, begin = question.answers[0] if question.answers else ("", -1)
            touched = (np.array(char_end[place]) > begin) & (np.array(char_start[place]) < begin + len(text))
            answer = np.flatnonzero(touched)
            targets.append(window_targets(cut, asked + 2, answer).astype(np.int32))
            lost += [question.id] if question.answers and not len(answer) else []
    if longer:
        warnings.warn(f"{longer} of {len(questions)} questions are longer than {max_query} tokens and are cut",
                      stacklevel=2)
    if lost:
        warnings.warn(f"{len(lost)} answers have no token and count as not there, the first: question {lost[0]}",
                      stacklevel=2)
    specials = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    return Features(questions, queries, contexts, char_start, char_end, np.concatenate(windows),
                    np.concatenate(targets) if training else None, specials, max_length)


def extract(features, start_logits, end_logits, n_best=20, max_answer=30):
    """Answers from start and end logits (W, T) (arrays or CPU tensors, T >= the longest input).

    Tried are the n_best best starts of each window with its n_best best ends. The odds of "no answer" are BERT's: the
    smallest start + end logit at [CLS] of the question's windows, minus the best span's score. Returns Predictions as
    `rank` does.
    """
    start_logits, end_logits = (np.asarray(logits, dtype=np.float32) for logits in (start_logits, end_logits))
    places, length, own, own_end = np.arange(start_logits.shape[1]), *features.windows[:, 3:].T[..., None]
    at, rows, keep = places - features.offsets[:, None], np.arange(len(features))[:, None], min(n_best, len(places))
    start = np.where((at >= own) & (at < own_end), start_logits, -np.inf).astype(np.float64)
    end = np.where((at >= 0) & (at < length), end_logits, -np.inf).astype(np.float64)
    starts, ends = (np.argpartition(-logits, keep - 1, axis=1)[:, :keep] for logits in (start, end))
    scores = start[rows, starts][:, :, None] + end[rows, ends][:, None, :]  # (W, keep, keep)
    span = ends[:, None, :] - starts[:, :, None]
    scores = np.where((span >= 0) & (span < max_answer), scores, -np.inf).reshape(len(scores), -1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :n_best]
    starts, ends, scores = starts[rows, best // keep], ends[rows, best % keep], scores[rows, best]
    return rank(features, starts, ends, scores, start_logits[:, 0] + end_logits[:, 0], True, n_best, max_answer)


def rank(features, starts, ends, scores, null, relative=False, n_best=20, max_answer=30):
    """Answers from candidate spans: starts, ends (W, K) positions in the window's input, scores (W, K), null (W,) the
    score of "no answer" (high = unanswerable), of which the smallest of a question's windows are its odds; relative:
    less the best span's score. This is the entry for a beam (XLNet's and ALBERT's 5 x 5 spans).

    Spans outside the paragraph, with a start whose best context is in another window, or longer than max_answer tokens
    are dropped. Returns Predictions: texts {id: the best answer}, nbest {id: list of {"text", "score", "probability"}},
    null_odds {id: float}.
    """
    starts, ends = (np.asarray(values, dtype=np.int64) - features.offsets[:, None] for values in (starts, ends))
    scores, null = np.asarray(scores, dtype=np.float64), np.asarray(null, dtype=np.float64)
    question = features.windows[:, 0]
    length, own, own_end = (features.windows[:, column, None] for column in (3, 4, 5))
    legal = (starts >= own) & (starts < own_end) & (ends >= starts) & (ends < length) & (ends - starts < max_answer)
    window, place = np.nonzero(legal & (scores > -np.inf))
    order = np.lexsort((-scores[window, place], question[window]))
    window, place = window[order], place[order]
    base = np.asarray(features.contexts.starts)[features.windows[window, 1]] + features.windows[window, 2]
    begin = np.asarray(features.char_start.flat)[base + starts[window, place]]
    stop = np.asarray(features.char_end.flat)[base + ends[window, place]]
    lowest = np.full(len(features.questions), np.inf)
    np.minimum.at(lowest, question, null)
    edges = np.searchsorted(question[window], np.arange(len(features.questions) + 1))
    result = Predictions({}, {}, {})
    for number, asked in enumerate(features.questions):
        here = slice(edges[number], edges[number + 1])
        best = distinct(asked.context, zip(begin[here], stop[here], scores[window[here], place[here]]), n_best)
        result.texts[asked.id], result.nbest[asked.id] = best[0]["text"], best
        result.null_odds[asked.id] = float(lowest[number] - relative * best[0]["score"])
    return result


def distinct(context, spans, n_best):
    """The n_best first different texts of spans (start character, end character, score), and their probabilities."""
    texts = {}
    for begin, stop, value in spans:
        texts.setdefault(context[begin:stop].strip(), float(value))
        if len(texts) == n_best:
            break
    texts = texts or {"": -1e30}  # no legal span: an empty answer that any other beats
    values = np.array(list(texts.values()))
    weights = np.exp(values - values.max())
    return [{"text": text, "score": value, "probability": float(weight)}
            for (text, value), weight in zip(texts.items(), weights / weights.sum())]


def question_scores(question, prediction, version):
    """(exact match, F1) of one prediction, the best over the answers."""
    answers = [text for text, _ in question.answers if version == 1 or metrics.normalize_answer(text)] or [""]
    return (max(metrics.squad_exact(prediction, text) for text in answers),
            max(metrics.squad_f1(prediction, text, version) for text in answers))


def best_threshold(values, odds, answerable, texts, official=True):
    """Best mean score, and the threshold that gives it: answers with larger odds are withdrawn.

    values: (n,) score of each answer if given; answerable: (n,) bool; texts: the answers. The
    official script calls the threshold that withdraws all answers 0.0, though odds may be negative,
    and separates answers of equal odds. With official=False the threshold gives its score.
    """
    order = np.argsort(odds, kind="stable")
    gain = np.where(answerable, values, [-1.0 * bool(text) for text in texts])[order]
    totals = np.concatenate([[0.0], np.cumsum(gain)]) + np.sum(~answerable)  # by answers kept
    ranked = odds[order]
    if not official:
        totals[1:-1][ranked[1:] == ranked[:-1]] = -np.inf
    best = int(np.argmax(totals))
    below_all = 0.0 if official else np.nextafter(ranked[0], -np.inf)
    return totals[best] / len(values), float(ranked[best - 1] if best else below_all)


def evaluate(questions, predictions, null_odds=None, threshold=0.0):
    """The official scores in percent, as the official scripts print them.

    predictions: {id: text}; null_odds: {id: odds of "no answer"}: answers with odds above the
    threshold are withdrawn; None: the threshold that gives the best F1 on this set. Returns exact,
    f1, total; for a set with unanswerable questions (2.0) also the same with HasAns_ and NoAns_ and,
    with null_odds, the threshold and best_exact, best_exact_thresh, best_f1, best_f1_thresh: what
    the official script finds for this set (see best_threshold).
    """
    version = 2 if any(question.impossible for question in questions) else 1
    answerable = np.array([not question.impossible for question in questions])
    texts = [predictions[question.id] for question in questions]
    raw = np.array([question_scores(question, text, version) for question, text in zip(questions, texts)])  # (n, 2)
    odds = np.array([null_odds[question.id] if null_odds else -np.inf for question in questions])
    if version == 1:
        threshold = np.inf
    elif threshold is None:
        threshold = best_threshold(raw[:, 1], odds, answerable, texts, official=False)[1]
    final = np.where((odds > threshold)[:, None], ~answerable[:, None], raw)
    groups = {"": np.ones_like(answerable)} | ({"HasAns_": answerable, "NoAns_": ~answerable} if version == 2 else {})
    result = {}
    for prefix, members in groups.items():
        exact, f1 = 100 * final[members].mean(axis=0) if members.any() else (0.0, 0.0)
        result |= {f"{prefix}exact": float(exact), f"{prefix}f1": float(f1), f"{prefix}total": int(members.sum())}
    if version == 2 and null_odds is not None:
        result["threshold"] = threshold
        for name, values in zip(("exact", "f1"), raw.T):
            best, where = best_threshold(values, odds, answerable, texts)
            result |= {f"best_{name}": float(100 * best), f"best_{name}_thresh": where}
    return result
