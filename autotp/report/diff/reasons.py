"""Who made a node what it is, and why, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ...axes.annotation import annotation
from ...axes.layout import Factor, ordered, parts_of
from ...axes.term import Axis
from ...placement.placed import placed_as
from ...placement.transition import Transition
from ...placement.typed import is_parameter
from ...planner.plan import ParameterPlan
from .graphs import inputs_of, is_visible
from .sides import Held, Sides

INSERTED, CONJUGATE, TRACED = "collective insertion", "conjugate of a cut", "the model"
LOCALISED, LAYERS, REWRITTEN = "localisation", "layer replacement", "preparation"


class Reasons:
    """Reasons for the nodes of one unit. `parameters` are the plan's, `ranks` the tensor-parallel size."""

    def __init__(self, sides: Sides, parameters: Mapping[str, ParameterPlan], ranks: int) -> None:
        self.sides, self.parameters, self.total = sides, parameters, ranks
        self.rules = dict(self._rules())

    def _rules(self) -> Iterable[tuple[Axis, str]]:
        """The rule that cuts each axis."""
        for node, _ in self.sides.facts.values():
            plan = self.parameters.get(str(node.target)) if is_parameter(node) else None
            if plan is not None and plan.rule:
                yield from ((axis, plan.rule) for axis in self.sides.flow.held[node])

    def ranks(self, over: Iterable[Factor]) -> str:
        """Some mesh factors in words: `groups of 4 ranks, 2 apart`; all of them: `all 8 ranks`."""
        factors = ordered(frozenset(over))
        count = parts_of(factors)
        if count == self.total:
            return "both ranks" if count == 2 else f"all {count} ranks"
        apart = f", {factors[0].stride} apart" if len(factors) == 1 and factors[0].stride > 1 else ""
        return f"groups of {count} ranks{apart}"

    def among(self, over: Iterable[Factor]) -> str:
        """Where some mesh factors lie: `on all 8 ranks`, `within groups of 4 ranks, 2 apart`."""
        words = self.ranks(over)
        return f"within {words}" if words.startswith("groups") else f"on {words}"

    def letters(self, axes: Iterable[Axis]) -> str:
        """Some cut axes by name."""
        return " and ".join(self.sides.words.letters(axes))

    def of(self, node: torch.fx.Node) -> tuple[str, str]:
        """Who and why for a node of the graph after."""
        if (transition := placed_as(node).transition) is not None:
            by, why = self._inserted(node, transition)
            others = [_title(self.sides.source(other)) for other in placed_as(node).together]
            return by, f"{why}. One call sends it together with {_list(others)}" if others else why
        if placed_as(node).made:
            return REWRITTEN, placed_as(node).made
        if node.op in ("output", "placeholder", "get_attr"):
            whole = "what leaves the unit is whole on every rank" if node.op == "output" else "whole on every rank"
            return self.parameter(str(node.target)) if is_parameter(node) else (TRACED, whole)
        held = self.sides.held[node]
        layer = self.sides.layer_of(node)
        if layer is not None:
            return LAYERS, f"{layer.before} became {layer.after}: {self._operator(node, held)}"
        rules = dict.fromkeys(self.rules[axis] for axis in held.axes | held.summed if axis in self.rules)
        return f"rule {' and '.join(rules)}" if rules else TRACED, self._operator(node, held)

    def parameter(self, name: str) -> tuple[str, str]:
        """Why a parameter is held as it is."""
        plan = self.parameters.get(name)
        if plan is None:
            return TRACED, "whole on every rank"
        return f"rule {plan.rule}" if plan.rule else TRACED, f"{plan.placement}: {plan.reason}"

    def _operator(self, node: torch.fx.Node, held: Held) -> str:
        if held.partial:
            before = {factor for source in inputs_of(node) for factor in self.sides.held[source].partial}
            if before >= held.partial:
                return "linear in partial sums, so its result is one too: no collective is needed yet"
            return f"sums over {self.letters(held.summed)}, of which a rank has a slice: its result is a partial sum"
        origin = self.sides.origin(node)
        if origin is not None and (routed := self.sides.flow.routed.get(origin[0])) is not None:
            return f"a rank computes the rows that pick its slice along {self.letters([routed.routing.choice])}"
        if held.axes:
            return f"a rank computes its slice along {self.letters(held.axes)}"
        return "the same on every rank, computed by each"

    def _inserted(self, node: torch.fx.Node, what: Transition) -> tuple[str, str]:
        source = self.sides.source(node)
        name, readers, ranks = _title(source), _names(node.users), self.among(what.over)
        if what.kind == "all_reduce" and what.phase == "forward":
            return INSERTED, (
                f"{name} is a partial sum, its parts {ranks}; the whole sum is wanted by {readers}, so they are added "
                "here. Backward it is the identity: the gradient is the same on all of them"
            )
        if what.kind == "all_reduce":
            value = f"the parameter {name}" if what.of == "parameter" else name
            return CONJUGATE, (
                f"{value} is the same {ranks}, and slices are made of it further on, by way of {readers}: each rank "
                "computes its part of the gradient, and backward the parts are added once. Forward it is the identity"
            )
        if what.kind in _POSITIONS:
            return INSERTED, _POSITIONS[what.kind].format(name=name, readers=readers)
        if what.kind == "leave":
            return CONJUGATE, (
                f"{name} leaves the unit and is the same {ranks}, while its gradient inside is a sum of their parts: "
                "the gradient from outside counts once, on the first of them"
            )
        if what.kind == "once":
            return (
                INSERTED,
                f"{name} is the same {ranks} and is added to a partial sum by {readers}: the first of them has it",
            )
        if what.kind == "own":
            return INSERTED, (
                f"of the rows of {name}, those that picked what other ranks hold become zero: a partial sum for {readers}"
            )
        if what.kind == "slice":
            letters = self.letters(self.sides.held[node].axes - self.sides.held[next(inputs_of(node))].axes)
            return (
                INSERTED,
                f"{name} is whole, and slices along {letters} are wanted by {readers}: each rank takes its own",
            )
        if what.phase == "deferred":
            return (
                INSERTED,
                f"{name} leaves the unit as slices, since nobody is known to read it; it is gathered if read",
            )
        return INSERTED, f"{name} is a slice {ranks}, and all of it is wanted by {readers}"


_POSITIONS = {
    "opened": "a rank has its positions of {name} only, and computes on them",
    "shut": "{name} leaves the unit as this rank's positions",
    "gather_positions": "a rank has its positions of {name}, and all are wanted by {readers}; backward they are gathered again "
    "rather than kept, and the ranks' gradients are reduced and scattered",
    "take_positions": "{name} is whole, and this rank's positions of it are wanted by {readers}; backward the gradients of all "
    "positions are gathered",
    "reduce_scatter": "{name} is a partial sum, and this rank's positions of the sum are wanted by {readers}; backward the "
    "gradients of all positions are gathered",
}


def _names(users: Iterable[torch.fx.Node]) -> str:
    """The readers of a value in words: `a, b and c`."""
    return _list([_title(user) for user in users if is_visible(user)]) or "nobody"


def _list(names: list[str]) -> str:
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _title(node: torch.fx.Node) -> str:
    """What to call a node in a sentence: the path of a layer or parameter, else the module and the name of an operator."""
    if node.op == "output":
        return "whoever reads the unit's result"
    if node.op in ("call_module", "get_attr"):
        return str(node.target)
    name, module = (placed_as(node).origin or node.name), annotation(node).module
    return f"{module} ({name})" if module else name
