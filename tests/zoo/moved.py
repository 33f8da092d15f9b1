"""How far a dense model moves by itself: what it gives when its numbers change by a few roundings.

Another order of a sum is such a change. Where a norm over two numbers, or a softmax with one entry of nearly one, makes much of
it, no form of the model can be nearer to another.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autotp.verify import Verifier
from autotp.verify.calls import Call
from autotp.verify.copies import OnlyCopies, copied
from autotp.verify.report import compare
from autotp.verify.runs import called

ROUNDINGS, DRAWS = 1e-15, 4
NO_DIGIT = 0.1  # what moves by so much of itself is noise, as a gradient is that is zero but for roundings


def moved(verifier: Verifier) -> dict[str, float]:
    """The largest difference of every output and gradient when weights and inputs are a few roundings away; any, of noise."""
    found: dict[str, float] = {}
    for run in verifier.runs:
        for draw in range(DRAWS):
            generator = torch.Generator().manual_seed(draw)
            dense, inputs = copied(verifier.dense), copy.deepcopy(run.call.inputs)
            with torch.no_grad():
                for parameter in dense.parameters():
                    parameter.copy_(_other(parameter, generator))
            call = Call(run.call.name, pytree.tree_map(lambda leaf: _other(leaf, generator), inputs), run.call.training)  # noqa: B023
            with OnlyCopies(*verifier.only_copies.models):
                outputs, gradients = called(dense, call, verifier.seed, verifier.paths)
            for true, own in ((run.outputs, outputs), (run.gradients, gradients)):
                for difference in compare(true, own, true if own is gradients else {}, call.name):
                    found[difference.name] = max(found.get(difference.name, 0.0), difference.error)
    return {name: math.inf if far > NO_DIGIT else far for name, far in found.items()}


def _other(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return (value.detach() * (1 + ROUNDINGS * noise)).requires_grad_(value.requires_grad)
