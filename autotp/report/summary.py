"""A plan on one page: what a rank holds, what it sends, how long that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..planner.cost import hardware_presets
from ..planner.plan import CollectivePlan, Plan
from .text import add_row, byte_size, duration, make_table, number, paragraphs, place_of


def plan_summary(plan: Plan) -> Group:
    """The model, its parameters and weights whole and on a rank, and the collectives of every unit and of one step."""
    return paragraphs(
        (
            _sizes(plan),
            _collectives(plan),
            *(Text(said) for said in (plan.objective, plan.positions, plan.loss, plan.sizes) if said),
        )
    )


def _sizes(plan: Plan) -> Table:
    whole, local = plan.elements()
    each = plan.element_bytes
    table = Table.grid(padding=(0, 2))
    add_row(table, ("model", plan.model))
    add_row(table, ("ranks", f"{plan.tp}{_beyond_node(plan)}"))
    add_row(table, ("weighed at", f"{number(plan.tokens)} tokens a step on {plan.hardware}"))
    add_row(table, ("parameters", f"{number(local)} a rank of {number(whole)} ({share(local, whole)})"))
    add_row(
        table, ("weights", f"{byte_size(local * each)} a rank of {byte_size(whole * each)}, {each} bytes an element")
    )
    return table


def _beyond_node(plan: Plan) -> str:
    """A caution where the ranks do not fit the node whose links the times are of."""
    node = hardware_presets().get(plan.hardware)
    if node is None or plan.tp <= node.gpus:
        return ""
    return f", more than the {node.gpus} that one {node.name} has: times between nodes are longer than shown"


def share(part: float, whole: float) -> str:
    """A part as a percentage."""
    return f"{part / whole:.1%}" if whole else "nothing"


def _collectives(plan: Plan) -> Table:
    columns = ("collectives of one unit", ">units", "forward", "backward", "parameter sums", ">wire bytes", ">time")
    table = make_table(columns)
    busy = [unit for unit in plan.units if unit.collectives]
    for unit in busy:
        own = unit.collectives
        cells = (_kinds(of_phase(own, "forward")), _kinds(of_phase(own, "backward")), _kinds(of_parameters(own)))
        add_row(table, (place_of(unit.instances), len(unit.instances), *cells, *_price(own)))
    if plan.around:
        kinds = (_kinds(of_phase(plan.around, "forward")), _kinds(of_phase(plan.around, "backward")), "-")
        add_row(table, ("where positions are cut and joined", "", *kinds, *_price(plan.around)))
    table.add_section()
    step = plan.step()
    forward = [c for c in step if c.phase == "forward"]
    backward = [c for c in step if c.phase != "forward"]
    for name, some in (("one forward", forward), ("one backward", backward), ("one step", step)):
        counts = (len(of_phase(some, "forward")), len(of_phase(some, "backward")), len(of_parameters(some)))
        add_row(table, (name, "", *counts, *_price(some)), style="bold" if some is step else "")
    return table


def of_phase(collectives: Iterable[CollectivePlan], phase: str) -> list[CollectivePlan]:
    """Those on activations in one phase."""
    return [c for c in collectives if c.phase == phase and c.of != "parameter"]


def of_parameters(collectives: Iterable[CollectivePlan]) -> list[CollectivePlan]:
    """The sums of gradients of replicated parameters that a cut region uses."""
    return [c for c in collectives if c.of == "parameter"]


def _kinds(collectives: Sequence[CollectivePlan]) -> str:
    counts = Counter(kind_name(c.kind) for c in collectives)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "-"


def kind_name(kind: str) -> str:
    """A kind of collective as prose spells it."""
    return kind.replace("_", "-")


def _price(collectives: Sequence[CollectivePlan]) -> tuple[str, str]:
    return byte_size(sum(c.wire_bytes for c in collectives)), duration(sum(c.seconds for c in collectives))
