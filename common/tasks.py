"""The interface of all tasks, their recipes, and batches of their examples.

GlueTask (common/glue.py), SquadTask (common/squad.py) and RaceTask (data/race.py) are the tasks.
"""
import dataclasses
import functools
import itertools
import math
from collections import namedtuple

import numpy as np
import torch

from common import bag_of_words

POOL = 50  # batches sorted by length together
WORDS_EXAMPLES = 20_000  # training examples of the baseline of words


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A paper's settings for fine-tuning a task."""
    lr: float
    batch: int
    epochs: float = 0  # passes over the training examples, overridden by `steps`
    steps: int = 0
    warmup: float = 0.1  # fraction of the steps
    dropout: float = 0.1
    length: int = 128  # longest input in tokens
    main: str = "accuracy"  # the reported metric. "a+b" is the mean of two


# examples: {split: list}. file: for --predict. spec: more facts on the task.
# skipped: {split: number of malformed lines}
Source = namedtuple("Source", "examples file spec skipped", defaults=(None, {}))


class Task:
    """The interface of a task: data, metrics and official files.

    name. kind: "class", "value" (a regression), "span" or "choice". outputs: numbers from a head
    (of a span: per token). metrics: names in a score. recipe: Recipe. examples: {split: list}, with
    "train" and "dev". file: for --predict. splits: {split: the features of its examples}.

    A subclass is defined next to the reader of its data and made from (name, source, tokenizer,
    recipe). Its sources come from read(name, folder, search) or, for a user's own file, from
    read_file(name, path, model). model: the folder of the tuned model. search: read only train and
    dev.
    """

    def __init__(self, name, kind, outputs, metrics, recipe, source, splits):
        self.name = name
        self.kind = kind
        self.outputs = outputs
        self.metrics = metrics
        self.recipe = recipe
        self.examples = source.examples
        self.file = source.file
        self.skipped = source.skipped
        self.splits = splits

    @property
    def steps(self):
        """Steps of a fine-tuning."""
        per_epoch = math.ceil(len(self.splits["train"]) / self.recipe.batch)
        return self.recipe.steps or max(1, round(self.recipe.epochs * per_epoch))

    def evaluation_steps(self, every=0):
        """Steps at which to evaluate: every `every` steps, or, if 0, up to 20 times, capped so that
        evaluation sees fewer examples than training. Always includes the last step."""
        if every:
            return {*range(every, self.steps, every), self.steps}
        trained = self.steps * self.recipe.batch
        count = min(20, self.steps, trained // len(self.splits["dev"])) or 1
        return {round(self.steps * number / count) for number in range(1, count + 1)}

    @functools.cached_property
    def majority_baseline(self):
        """The best "main" on dev of a constant prediction: a class, a value, an option or "no
        answer"."""
        return max(self.score("dev", outputs)["main"] for outputs in self.constant_outputs())

    def constant_outputs(self):
        """Outputs for dev that predict the same for all examples."""
        width = self.outputs * self.splits["dev"].lengths[0].size  # a choice has four inputs
        return torch.eye(width)[:, None].expand(-1, len(self.examples["dev"]), -1)  # (n, width)

    @functools.cached_property
    def words_baseline(self):
        """{"main": "main" on dev of a linear model of words, "examples": those that it learns from}
        of a task with one or two texts. Others have None. Uses up to WORDS_EXAMPLES training
        examples at even distances."""
        if self.kind not in ("class", "value"):
            return None
        every = math.ceil(len(self.examples["train"]) / WORDS_EXAMPLES)
        train = self.examples["train"][::every]
        outputs = bag_of_words.linear_outputs(
            [example.texts for example in train], [example.label for example in train],
            [example.texts for example in self.examples["dev"]], self.outputs)
        return {"main": self.score("dev", outputs)["main"], "examples": len(train)}

    def context(self):
        """The context of a printed score: "headline", the name of the main metric,
        "majority_baseline", "words_baseline", "skipped" lines of each split, and a "file" for
        --predict. Of GLUE also "constant": whether all labels of dev are equal."""
        return {"headline": self.recipe.main, "majority_baseline": self.majority_baseline,
                "words_baseline": self.words_baseline, "skipped": self.skipped,
                "file": str(self.file)}

    @staticmethod
    def choose(examples, count):
        """`count` examples of a split."""
        return examples[:count]

    @staticmethod
    def texts(example):
        """The texts of an example."""
        return example.texts

    def standard_error(self, score):
        """The standard error of a score over the dev examples: exact for accuracy, an upper bound
        for a mean of fractions such as F1, an approximation for a correlation."""
        spread = 1 - score ** 2
        if self.recipe.main in ("accuracy", "f1"):
            spread = math.sqrt(score * (1 - score))
        return spread / math.sqrt(len(self.examples["dev"]))

    def batches(self, seed, start=0):
        """Endless training batches from step `start`: dictionaries of CPU tensors. Each epoch has
        its own order."""
        per_epoch = math.ceil(len(self.splits["train"]) / self.recipe.batch)
        first, skipped = divmod(start, per_epoch)
        for epoch in itertools.count(first):
            epoch_batches = batches(self.splits["train"], self.recipe.batch, seed, epoch)
            yield from itertools.islice(epoch_batches, skipped if epoch == first else 0, None)


def sorted_labels(labels):
    """The different labels, words, in order: numbers by size, or else by the alphabet."""
    labels = sorted({*labels})
    try:
        return sorted(labels, key=float)
    except ValueError:
        return labels


# Batches


def join(pairs, specials, width):
    """Inputs of a model from token ids: [CLS] A [SEP] B [SEP] for (A, B), [CLS] A [SEP] for (A,).

    specials: ids of [CLS], [SEP], padding. Returns int64 arrays (B, width): ids, and
    token_type_ids, which are 1 in B and the [SEP] after it.
    """
    cls_id, sep_id, pad_id = specials
    ids = np.full((len(pairs), width), pad_id, dtype=np.int64)
    token_type_ids = np.zeros_like(ids)
    for index, (first, *second) in enumerate(pairs):
        tokens = [cls_id, *first, sep_id]
        begin = len(tokens)
        for part in second:
            tokens += [*part, sep_id]
        ids[index, :len(tokens)] = tokens
        token_type_ids[index, begin:len(tokens)] = 1
    return ids, token_type_ids


def batch_indices(lengths, batch_size, seed, epoch):
    """Yield the indices of the examples of each batch.

    With a seed: shuffled by (seed, epoch), cut into pools of POOL batches, sorted by length inside
    a pool, and the batches shuffled. Without a seed: all examples from short to long.
    """
    order = np.argsort(lengths, kind="stable")
    starts = np.arange(0, len(lengths), batch_size)
    if seed is not None:
        random = np.random.default_rng([seed % 2 ** 63, epoch])  # numpy takes no negative seed
        order = random.permutation(len(lengths))
        pools = np.split(order, np.arange(POOL * batch_size, len(order), POOL * batch_size))
        pools = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
        order = np.concatenate(pools)
        starts = random.permutation(starts)
    for start in starts:
        yield order[start:start + batch_size]


def batches(features, batch_size, seed=None, epoch=0):
    """Yield features.batch(index, width) as dictionaries of CPU tensors, with "index" (B,) int64.

    features: of any task. batch_indices gives the order. The width is the longest example in the
    batch, rounded up to a multiple of 8 for GPUs, up to max_length. "lengths" is missing if all
    sequences are full, since attention then needs no mask, and GPUs can use flash kernels.
    """
    longest = features.lengths.reshape(len(features), -1).max(axis=1)  # of RACE's four inputs
    for index in batch_indices(longest, batch_size, seed, epoch):
        width = min(-(-int(longest[index].max()) // 8) * 8, features.max_length)
        batch = features.batch(index, width)
        batch["index"] = index
        if (batch["lengths"] == width).all():
            del batch["lengths"]
        yield {name: torch.from_numpy(value) for name, value in batch.items()}
