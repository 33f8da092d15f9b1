"""From parts to the whole and back, as functions that autograd knows."""

from __future__ import annotations

import torch

from ...errors import UsageError
from ..collectives.added import SHARED, at_once, is_shared
from ..collectives.slices import assembled
from .memories import is_same_memory


class WholeOf(torch.autograd.Function):
    """Forward, the whole of every rank's part; backward, this rank's part of the gradient, which every rank has whole."""

    @staticmethod
    def forward(part, origin):  # type: ignore[no-untyped-def]
        parts = origin.ranks.all_gather(origin.sent(part.detach()), origin.everybody, "whole")
        return assembled(parts, origin.layouts).to(part.device)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.origin = inputs[1]
        at_once(ctx)

    @staticmethod
    def vmap(info, in_dims, part, origin):  # type: ignore[no-untyped-def]
        raise UsageError(f"one part of {origin.name} per item of a batch has no whole; map over whole tensors")

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        shared, part = is_shared(gradient), PartOf.apply(gradient, ctx.origin)
        if shared:
            part.__dict__[SHARED] = True
        return part, None


class PartOf(torch.autograd.Function):
    """This rank's part of what every rank has whole, as a function of it: a gradient may be differentiated again."""

    @staticmethod
    def forward(whole, origin):  # type: ignore[no-untyped-def]
        part = origin.take(whole)
        # Autograd takes a gradient that nobody else has, by its object, to be the parameter's; this memory is somebody's.
        return part.clone() if is_same_memory(part, whole) else part

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.origin = inputs[1]
        at_once(ctx)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return WholeOf.apply(gradient, ctx.origin), None
