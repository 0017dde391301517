"""The weights of a network that only predicts, laid out for a CPU.

    model = pack(model.eval(), Linear)     # Linear: mformer.py's

In float32 F.linear calls MKL, which lays a weight out anew for each product and keeps AVX-512 to Intel's processors.
oneDNN uses what the processor has and takes weights that lie ready in its own order. One thread of an AMD EPYC with
AVX-512, 64 rows by 512 x 512: 0.36 ms with MKL, 0.16 ms packed; by 512 x 32,768: 36 and 11 ms. Only rounding differs.
"""
import platform

import torch

SMALLEST = 2 ** 16  # weights of a matrix; a smaller one gains nothing


def packed(weight, bias=None):
    """F.linear of a weight (outputs, inputs), by the operators that torch's compiler uses (2.8 to 2.13)."""
    weight = torch.ops.mkldnn._reorder_linear_weight(weight)
    return lambda x, *_: torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@torch.no_grad()
def pack(model, kind):
    """The model with the larger of its modules of class `kind`, linear maps of all their outputs, packed, and its
    logits, if it has words. The weights themselves are let go."""
    if not torch.backends.mkldnn.is_available() or platform.machine() not in ("x86_64", "AMD64"):  # seen to run there
        return model
    for part in model.modules():
        if isinstance(part, kind) and part.weight.numel() >= SMALLEST:
            part.forward, part.weight = packed(part.weight.flatten(0, -2), part.bias.flatten()), None
    if hasattr(model, "words") and model.words.numel() >= SMALLEST:
        model.logits = packed(model.words[:, :model.arch.decoder_hidden])
    return model
