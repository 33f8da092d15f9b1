"""`autotp.verify`. This file is imported with the package, so that `autotp.verify` is the function and not this folder; what
verifies is imported by the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ..session.arguments import Source, Wishes, check_simulated

if TYPE_CHECKING:
    from ..planner.plan import Plan
    from .report import Report


def verify(
    model: Source,
    tp: int,
    *,
    plan: Plan | None = None,
    example: Any = None,
    seed: int = 0,
    **wishes: Unpack[Wishes],
) -> Report:
    """Compare a model's parallel form with the dense one in float64: outputs, every gradient, collectives.

    Both are called three times: in eval mode, with other inputs in training mode, and again as the first time. So a difference
    that one call leaves for the next one is found, and buffers that calls change are compared too. Dropout drops nothing. If the
    dense model fails in the second call, or draws random numbers in training, another call is made instead; the report names it.

    All ranks are simulated in this process, so it works without GPUs or a launcher, for up to 64 ranks. The model is copied, and
    computes entirely in float64. Grouped products have no kernel in float64: they are computed group by group, in the dense
    model too. An error is relative to the largest entry of the tensor. Where the true gradient is zero (as that of a key bias),
    it is relative to the largest gradient of the model.

    Args:
        model: as for `autotp.plan`. A model without weights gets random ones.
        tp: number of ranks.
        plan: the plan to verify. Without it, the best one.
        example: for a module that is not from transformers, the arguments of one forward, with real tensors.
        seed: of random weights, inputs and output weights.
        wishes: as for `autotp.plan`. A plan that is given has its own; `rules` must be given again.

    Raises:
        UsageError: the dense model fails on the example inputs, or an argument is wrong.
        PlanError: the plan is for another model or another number of ranks.
    """
    check_simulated(tp)
    from .verifier import Verifier

    verifier = Verifier(model, seed=seed, example=example, **wishes)
    return verifier.verify(tp, plan)
