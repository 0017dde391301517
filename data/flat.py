"""Weights and gradients of a model as flat tensors: one to sum over shards, and in bfloat16 one to cast."""
import copy

import torch
from torch import nn


def lay_flat(values):
    """(weights, gradients): flat tensors, of which the parameters and their gradients become views."""
    weights = torch.cat([value.detach().flatten() for value in values])
    gradients, start = torch.zeros_like(weights), 0
    for value in values:
        part = slice(start, start + value.numel())
        value.data, value.grad = weights[part].view_as(value), gradients[part].view_as(value)
        start = part.stop
    return weights, gradients


class Flat:
    """weights, gradients: of the parameters `trained` of a model. used: what an update computes with, the model itself
    or, where `to_cast` is given, a twin whose parameters to_cast(twin) are bfloat16: one cast an update in place of
    those that autocast does in every sub-model. All its other parameters are the model's own."""

    def __init__(self, model, trained, to_cast=None):
        cast = to_cast(model) if to_cast else []
        halves = {id(value): nn.Parameter(value.detach().bfloat16()) for value in cast}
        self.weights, self.gradients = lay_flat([*cast, *(value for value in trained if id(value) not in halves)])
        self.used, self.half, self.half_gradients = model, self.weights[:0], self.gradients[:0]
        if to_cast:
            self.used = copy.deepcopy(model, {id(value): value for value in model.parameters()} | halves)
            self.half, self.half_gradients = lay_flat(to_cast(self.used))

    def cast(self):
        """Before an update: the twin's weights."""
        self.half.copy_(self.weights[:len(self.half)])

    def collect(self):
        """After a backward pass: the twin's gradients go to the model's, in float32."""
        self.gradients[:len(self.half)] += self.half_gradients
        self.half_gradients.zero_()
