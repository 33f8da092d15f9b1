"""The work of one unit on one rank under a plan, as formulas in the sizes of a call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sympy

from ..axes.annotation import copied
from ..axes.infer import infer
from ..axes.rules import operator_rules
from ..capture.traced import Traced
from ..chains.collect import mark_collected
from ..placement.impose import impose
from ..placement.place import Placement, place
from .cost import Hardware, Workload
from .counter import Counter
from .plan import UnitPlan
from .sizing import number_at
from .weigh import Weigher


@dataclass(frozen=True)
class Work:
    """One unit on one rank, as formulas in b, s and the length of the keys.

    Attributes:
        flops: operations of a forward, on average.
        waits: operations of the busiest rank beyond these (see `Counter.beyond`).
        read: elements of the weights that every call reads; of tables that are looked up it reads some rows.
        saved: bytes kept for the backward.
        cached: bytes that its cache keeps.
    """

    flops: sympy.Expr
    waits: sympy.Expr
    read: float
    saved: sympy.Expr
    cached: sympy.Expr

    def share(self, part: float) -> Work:
        """A part of the work."""
        own = sympy.Float(part)
        return Work(self.flops * own, self.waits * own, self.read * part, self.saved * own, self.cached * own)

    @staticmethod
    def number(formula: sympy.Expr, values: dict[str, float]) -> float:
        """A formula at some sizes."""
        return number_at(formula, values)


def work_of(
    plan: UnitPlan, traced: Traced, machine: Hardware, workload: Workload, rules: tuple[Path, ...], ranks: int
) -> Work:
    """The work of a unit whose parameters have a plan's layouts. Raises UnsoundPlanError for layouts that cannot be."""
    placement, weigher = placed_as_planned(plan, traced, machine, workload, rules, ranks)
    return counted(Counter(placement, weigher))


def counted(counter: Counter) -> Work:
    """What was counted."""
    return Work(
        flops=counter.all_flops(),
        waits=counter.beyond(),
        read=counter.read(),
        saved=counter.saved(),
        cached=counter.cached(),
    )


def placed_as_planned(
    plan: UnitPlan,
    traced: Traced,
    machine: Hardware,
    workload: Workload,
    rules: tuple[Path, ...],
    ranks: int,
    *,
    backward: bool = True,
) -> tuple[Placement, Weigher]:
    """The placement of a traced unit under its plan, and what prices it. Raises UnsoundPlanError for layouts that cannot be."""
    graph, _ = copied(traced.graph)
    mark_collected(graph, plan.collected)
    typing = infer(graph, operator_rules(rules))
    cuts = impose(graph, typing, plan.layouts())
    weigher = Weigher(graph, machine, workload)
    sequence = ranks if plan.sequence and backward else 0
    given = graph, typing, cuts, weigher.price, traced.unread
    placement = place(*given, keep=plan.keep, backward=backward, sequence=sequence)
    return placement, weigher
