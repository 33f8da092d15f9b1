"""Cross-entropy over a vocabulary of which every rank holds some: three numbers a token are reduced, logits never gathered."""

from __future__ import annotations

import torch

from ...axes.layout import Factors, Leaf
from ...errors import UsageError
from ...outside.own import FUNCTIONS
from ..groups.ranks import Ranks

MSG_TWICE = (
    "a cross-entropy of logits that are cut over ranks has no second derivatives (create_graph=True); compute it of whole ones:"
    " -logits.log_softmax(-1) at the targets"
)


class _Once(torch.autograd.Function):
    """A gradient that has none itself: who asks for one is told."""

    @staticmethod
    def forward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        raise UsageError(MSG_TWICE)


class _CutLoss(torch.autograd.Function):
    """The loss of every token, by the formula of the log-sum-exp; backward is local: softmax less the wanted distribution."""

    @staticmethod
    def forward(ctx, logits, target, ranks, over, vocabulary, ignored, smoothing):  # type: ignore[no-untyped-def]
        target = target.long()  # bytes may be given
        first = ranks.coordinate(over) * logits.shape[1]
        present = max(0, min(logits.shape[1], vocabulary - first))
        held = logits[:, :present]
        place, here, counts = target - first, (target >= first) & (target < first + present), target != ignored
        torch._assert_async(((target >= 0) & (target < vocabulary) | ~counts).all(), "a target is out of bounds")
        place = torch.where(here, place, 0).unsqueeze(1)
        # A rank may hold padding only: its largest logit is none.
        largest = held.amax(1) if present else held.new_full((len(held),), float("-inf"))
        largest = ranks.all_reduce(largest, over, "loss", op="max")
        shifted = held - largest.unsqueeze(1)
        # Where nothing counts a logit may be infinite, or none: it is left out, not multiplied with zero.
        nothing = torch.zeros_like(largest)
        wanted = torch.where(here, shifted.gather(1, place).squeeze(1), nothing) if present else nothing
        sums = [wanted, shifted.sum(1)] if smoothing else [wanted]
        exponentials = shifted.exp_()
        wanted, total, *rest = ranks.all_reduce(
            FUNCTIONS.stack([sums[0], exponentials.sum(1), *sums[1:]]), over, "loss"
        )
        loss = total.log() - (1 - smoothing) * wanted
        if smoothing:
            loss = loss - smoothing / vocabulary * rest[0]
        ctx.save_for_backward(exponentials, total, place, here, counts)
        ctx.width, ctx.smoothing, ctx.vocabulary = logits.shape[1], smoothing, vocabulary
        return torch.where(counts, loss, nothing)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            part = _CutLoss.of_logits(ctx, gradient)
        # Torch's own `once_differentiable` would take this for a constant where only logits have a history.
        if torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling():
            part = _Once.apply(part.requires_grad_())
        return part, None, None, None, None, None, None

    @staticmethod
    def of_logits(ctx, gradient):  # type: ignore[no-untyped-def]
        """The gradient of this rank's logits."""
        exponentials, total, place, here, counts = ctx.saved_tensors
        scale = torch.where(counts, gradient, 0.0).unsqueeze(1)  # where nothing counts the mean's gradient is infinite
        part = exponentials * (scale / total.unsqueeze(1))
        if ctx.smoothing:
            part -= scale * (ctx.smoothing / ctx.vocabulary)
        if part.shape[1]:
            part.scatter_add_(1, place, -(1 - ctx.smoothing) * scale * here.unsqueeze(1))
        if part.shape[1] < ctx.width:
            part = torch.nn.functional.pad(part, (0, ctx.width - part.shape[1]))
        return part


def cut_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    ranks: Ranks,
    layout: Leaf,
    *,
    ignored: int = -100,
    reduction: str = "mean",
    smoothing: float = 0.0,
) -> torch.Tensor:
    """`F.cross_entropy` of whole logits (tokens, vocabulary), from this rank's (tokens, local) with its padding.

    `target` (tokens,) is whole. Two all-reduces forward, of one and of two numbers a token (three with `smoothing`), and none
    backward. Narrow floats are computed in float32. Raises RuntimeError for a target that is no entry of the vocabulary.
    """
    assert layout.cut is not None
    narrow = logits.dtype in (torch.float16, torch.bfloat16)
    wide = logits.float() if narrow else logits
    over: Factors = layout.cut.over
    losses = _CutLoss.apply(wide, target, ranks, over, layout.size, ignored, smoothing)
    if reduction == "mean":
        losses = losses.sum() / (target != ignored).sum()
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(logits.dtype) if narrow and not torch.is_autocast_enabled(logits.device.type) else losses
