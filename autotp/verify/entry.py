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

    Both are called three times: in eval mode, with other inputs in training mode, and as the first time; so what a call leaves
    for the next one shows, and buffers that calls change are compared too. Dropout drops nothing. Where the dense model fails in
    the second call, or draws random numbers in training, that call is one that it can make; the report names it.

    All ranks are simulated in this process, so it works without GPUs or a launcher, for up to 64 ranks. The model is copied, and
    computes entirely in float64: grouped products, which have no such kernel, group by group, in the dense model too. A
    difference is relative to the tensor's largest entry, or to the model's largest gradient where the true one vanishes
    (as a key bias's does).

    Args:
        model: as for `autotp.plan`; without weights it gets random ones.
        tp: number of ranks.
        plan: the plan to verify; the best one unless given.
        example: for a module not from transformers the arguments of one forward, on real tensors.
        seed: of random weights, inputs and output weights.
        wishes: as for `autotp.plan`; a given plan says them itself, but for the rules.

    Raises:
        UsageError: the dense model fails on the example inputs, or an argument is wrong.
        PlanError: the plan is for another model or another number of ranks.
    """
    check_simulated(tp)
    from .verifier import Verifier

    verifier = Verifier(model, seed=seed, example=example, **wishes)
    return verifier.verify(tp, plan)
