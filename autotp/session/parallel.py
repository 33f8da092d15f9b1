"""A dense model in memory becomes one rank's part of a parallel one, and again where modules were added to it."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..dispatch.again import apply_again, held_layouts, values_added
from ..dispatch.apply import apply_plan
from ..dispatch.held import ATTRIBUTE, dense_structure
from ..huggingface.adapters import say_whole_sizes
from ..huggingface.checkpointing import keep_checkpointing, leave_checkpointing
from ..planner.plan import Plan
from ..runtime.groups.ranks import Ranks
from .equal import check_equal_models
from .pipeline import Session


def cut_model(session: Session, ranks: Ranks, plan: Plan | None = None) -> None:
    """Cut a session's model by a plan, or by the best one, on every rank alike.

    Raises PlanError or UnsoundPlanError for a plan that is not about the model, or wrong for it, and PlacementError if the ranks'
    models are not equal.
    """
    check_equal_models(session.module, ranks)
    if plan is None:
        plan = session.plan(ranks.size)
    elif session.knows_inputs:
        session.accepted(plan, ranks.size)
    ranks.check_agreement(plan.to_json(), "plans")
    leave_checkpointing(session.module)  # of parts that are parallel already
    apply_plan(session.module, plan, ranks, session.compilers(plan, keeps=True))


def cut_again(model: nn.Module, **options: Any) -> None:
    """Cut what was added to a parallel model as the layers are that it was added to; `options` are those of a session.

    Raises PlanError or UnsoundPlanError, before anything is changed, if what is cut already cannot stay so.
    """
    state, dense = model.__dict__[ATTRIBUTE], dense_structure(model)
    session = Session(dense, hardware=state.plan.hardware, tokens=state.plan.tokens, **options)
    plan = session.extended(state.plan, held_layouts(model))
    state.ranks.check_agreement(plan.to_json(), "plans")
    state.ranks.check_agreement(values_added(model), "adapters")
    leave_checkpointing(model)
    apply_again(model, dense, plan, session.compilers(plan))
    keep_checkpointing(model)
    say_whole_sizes(model)
