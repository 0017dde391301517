"""A baseline for the order of two segments: logistic regression on the first token of each. A model
knows the order only if it scores higher."""
import torch
import torch.nn.functional as F

from common.bag_of_words import minimize


def first_token_baseline(train, dev, train_size, dev_size, length, short, vocab_size):
    """{"nsp_accuracy", "sop_accuracy"} on the first dev_size sequences of the Corpus dev, learned
    from the first train_size of train. A tie counts one half.

    length, short: as in Corpus.sentence_runs.
    """
    a, b, foreign = first_tokens(train, train_size, length, short)
    dev_a, dev_b, dev_foreign = first_tokens(dev, dev_size, length, short)
    result = {}
    if len(a) and len(dev_a):
        order = logistic_regression(lambda w: w[a] - w[b], torch.ones(len(a)), vocab_size)
        result["sop_accuracy"] = accuracy_of(order[dev_a] - order[dev_b])
    if len(foreign) and len(dev_foreign):
        tokens = torch.cat([b, foreign])
        labels = torch.cat([torch.ones(len(b)), torch.zeros(len(foreign))])
        # the last weight is the bias
        follows = logistic_regression(lambda w: w[tokens] + w[-1], labels, vocab_size + 1)
        margins = torch.cat([follows[dev_b] + follows[-1], -follows[dev_foreign] - follows[-1]])
        result["nsp_accuracy"] = accuracy_of(margins)
    return result


def first_tokens(corpus, size, length, short):
    """The first tokens of first and second segments (n,) (n,), and of segments from another
    document (m,), in the first `size` sequences of a corpus."""
    columns = []
    for number in range(0, size, 8192):
        segments = corpus.sentence_runs(number, min(8192, size - number), length, 0, short)
        pair = segments.length_b > 0
        foreign = segments.length_other > 0
        columns.append((
            segments.segment_a[pair, 0], segments.segment_b[pair, 0], segments.other[foreign, 0]))
    return [torch.cat(column) for column in zip(*columns)]


def logistic_regression(margins, labels, size):
    """Weights (size,) of the margin of an example, margins(weights) (n,), for labels (n,) of 0 and
    1, with the penalty |w|^2 / 2 on the summed loss."""

    def loss(weights):
        error = F.binary_cross_entropy_with_logits(margins(weights), labels, reduction="sum")
        return (error + weights.square().sum() / 2) / len(labels)

    return minimize(loss, size)


def accuracy_of(margins):
    """The fraction of positive margins. 0 counts one half."""
    return (1 + margins.sign().mean().item()) / 2
