"""A baseline for tasks with one or two texts: a linear model of their words and pairs of words.

The features have tf-idf weights, as in scikit-learn's TfidfVectorizer(ngram_range=(1, 2)). A task
with classes has multinomial logistic regression, a regression has ridge regression, both with the
penalty |w|^2 / 10 on the summed loss (for two classes, this is scikit-learn's C=10). Of two texts,
the words of each and the words that they share are separate features.
"""
import itertools
import math
import re
import warnings
from collections import Counter

import torch
import torch.nn.functional as F

WORD = re.compile(r"\w\w+")
LONGEST = 1000  # words of a text, the first ones
PENALTY = 0.1  # on the squared weights


def linear_outputs(train_texts, labels, texts, classes):
    """Outputs for `texts` of a linear model of train_texts: logits (n, classes), or values (n, 1)
    of a regression.

    texts: a tuple of one or two strings per example. labels: class numbers (n,), or values.
    """
    examples = [features_of(each) for each in train_texts]
    frequencies = Counter(itertools.chain.from_iterable(examples))
    idf = {name: math.log((1 + len(examples)) / (1 + count)) + 1
           for name, count in frequencies.items()}
    numbers = {name: number for number, name in enumerate(frequencies)}
    inputs = tf_idf(examples, numbers, idf)
    transposed = compressed(inputs.t())
    inputs = compressed(inputs)
    labels = torch.as_tensor(labels)
    is_value = labels.is_floating_point()
    center = labels.mean() if is_value else 0.0

    def loss(weights):
        outputs = Product.apply(weights[:-1], inputs, transposed) + weights[-1]
        if is_value:
            error = (outputs[:, 0] - (labels - center)).square().sum() / 2
        else:
            error = F.cross_entropy(outputs, labels, reduction="sum")
        return (error + PENALTY * weights[:-1].square().sum()) / len(labels)

    weights = minimize(loss, (len(numbers) + 1, classes))
    matrix = tf_idf([features_of(each) for each in texts], numbers, idf)
    return matrix @ weights[:-1] + weights[-1] + center


def minimize(loss, shape):
    """The weights that minimize loss(weights), by L-BFGS from zeros."""
    weights = torch.zeros(shape, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=100, history_size=10, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(weights)
        value.backward()
        return value

    optimizer.step(closure)
    return weights.detach()


class Product(torch.autograd.Function):
    """matrix @ weights, differentiable in weights. torch's own derivative of a sparse product takes
    ten times as long."""

    @staticmethod
    def forward(ctx, weights, matrix, transposed):
        ctx.transposed = transposed
        return matrix @ weights

    @staticmethod
    def backward(ctx, gradient):
        return ctx.transposed @ gradient.contiguous(), None, None


def compressed(matrix):
    """A sparse matrix in the format with the fastest product."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR")  # is a beta feature, says torch
        with torch.sparse.check_sparse_tensor_invariants(False):
            return matrix.to_sparse_csr()


def features_of(texts):
    """Counter of the features of an example: words, and pairs of words, as (text number, words).
    Words that two texts share are (word,), too.

    >>> sorted(features_of(("Good soup", "good")), key=str)
    [('good',), (0, 'good soup'), (0, 'good'), (0, 'soup'), (1, 'good')]
    """
    counts = Counter()
    sides = []
    for number, text in enumerate(texts):
        matches = itertools.islice(WORD.finditer(text.lower()), LONGEST)
        words = [match.group() for match in matches]
        pairs = [f"{first} {second}" for first, second in itertools.pairwise(words)]
        counts.update((number, word) for word in words + pairs)
        sides.append(dict.fromkeys(words))
    if len(sides) == 2:
        counts.update((word,) for word in sides[0] if word in sides[1])
    return counts


def tf_idf(examples, numbers, idf):
    """Sparse matrix (n, features) of examples, {feature: count} each. Rows have length 1. Features
    without a number are ignored."""
    rows = []
    columns = []
    values = []
    for row, counts in enumerate(examples):
        known = {name: count * idf[name] for name, count in counts.items() if name in numbers}
        norm = math.hypot(*known.values())
        rows += [row] * len(known)
        columns += [numbers[name] for name in known]
        values += [value / norm for value in known.values()]
    size = len(examples), len(numbers)
    index = torch.tensor([rows, columns], dtype=torch.int64)
    matrix = torch.sparse_coo_tensor(
        index, values, size, dtype=torch.float32, check_invariants=False)
    return matrix.coalesce()
