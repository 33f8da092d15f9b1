"""What is sent together: steps over the same ranks of which none waits for what another one gives are one call.

A call has its latency, whatever it sends, and what is sent together is copied side by side first: small values are joined,
large ones go by themselves. The smallest come first, and each joins the first call that it can and that is cheaper so. It
can if the graph has an order afterwards: nothing that a call waits for may wait for that call. What writes into memory, draws
random numbers or asks an object keeps its place among those that do.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from ..axes.annotation import annotation
from ..axes.layout import parts_of
from ..axes.operators.collect import collect
from .backward import Price
from .placed import placed_as
from .sizes import step_share
from .state import Flow
from .steps import Step, Steps
from .typed import TypedGraph

# The steps that one call does, in the order of the graph.
Together: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True)
class Sent:
    """One collective that a call is: its kind, when it runs, what of, and the nodes whose values it sends; the numbers of the
    unit's results that are computed from these, if they are such results themselves, and if gradients are what is sent."""

    kind: str
    phase: str
    of: str
    nodes: tuple[str, ...]
    results: frozenset[int]
    is_result: bool
    of_gradients: bool


def sent(typed: TypedGraph, flow: Flow, calls: Iterable[Together]) -> Iterator[Sent]:
    """The collectives of some calls."""
    (output,) = typed.graph.find_nodes(op="output")
    given, found = list(output.args[0]), dict[torch.fx.Node, frozenset[int]]()
    for node in reversed(typed.graph.nodes):
        own = frozenset(number for number, result in enumerate(given) if result is node)
        found[node] = own.union(*(found[user] for user in node.users))
    for call in calls:
        nodes = [step.about for step in call]
        results = frozenset[int]().union(*(found[node] for node in nodes))
        for sending in call[0].record.sends(gradient=nodes[0] in flow.gradient):
            names, is_result = tuple(node.name for node in nodes), all(node in given for node in nodes)
            record, again = call[0].record, sending.kind == "all_gather" and call[0].record.again
            of_gradients = sending.phase == "backward" and not again
            yield Sent(sending.kind, sending.phase, record.of, names, results, is_result, of_gradients)


# Steps of which one call may do several.
_JOIN = frozenset({"reduce", "enter", "gather"})


def calls(typed: TypedGraph, flow: Flow, steps: Steps, price: Price) -> tuple[Together, ...]:
    """Every step that sends, by the calls that do them."""
    order = {node: number for number, node in enumerate(typed.graph.nodes)}

    def place(step: Step) -> tuple[Any, ...]:  # the same on every rank
        record = step.record
        return order[step.about], step.is_of_sum, record.kind, record.phase, record.over

    return _Joining(typed, flow, sorted((step for step in steps if step.record.sends()), key=place), price).run()


def seconds_of(typed: TypedGraph, flow: Flow, calls: Iterable[Together], price: Price) -> float:
    """The price of some calls, their backward included; the same on every rank, whatever their order."""
    return math.fsum(_seconds(typed, flow, call, price) for call in calls)


def _seconds(typed: TypedGraph, flow: Flow, call: Together, price: Price) -> float:
    values = tuple((step.about, float(step_share(typed, flow, step))) for step in call)
    sendings = call[0].record.sends(gradient=call[0].about in flow.gradient)
    return sum(price(sending.kind, values, parts_of(sending.over)) for sending in sendings)


class _Joining:
    def __init__(self, typed: TypedGraph, flow: Flow, sent: list[Step], price: Price) -> None:
        self.typed, self.flow, self.sent, self.price = typed, flow, sent, price
        self.order, self.going_on = _Order(_waits(typed, sent)), _going_on(typed, flow)
        self.cost: dict[Together, float] = {}

    def run(self) -> tuple[Together, ...]:
        found: list[Together] = []
        order = {each: number for number, each in enumerate(self.sent)}
        for each in sorted(self.sent, key=lambda step: self._seconds((step,))):
            self.order.look_at(order[each])
            number = next((n for n, call in enumerate(found) if self._joins(each, n, call)), len(found))
            if number == len(found):
                found.append(())
            found[number] = (*found[number], each)
            self.order.add(order[each], number)
        in_order = [tuple(sorted(call, key=order.__getitem__)) for call in found]
        return tuple(sorted(in_order, key=lambda call: order[call[0]]))

    def _joins(self, each: Step, number: int, call: Together) -> bool:
        if not self.order.allows(number) or not self._alike(call[0], each):
            return False
        return self._seconds((*call, each)) < self._seconds(call) + self._seconds((each,))

    def _alike(self, one: Step, other: Step) -> bool:
        def kind(step: Step) -> tuple[object, ...]:
            return replace(step.record, dims=()), step.about.meta["val"].dtype

        return self._may_join(one) and self._may_join(other) and kind(one) == kind(other)

    def _may_join(self, each: Step) -> bool:
        """Returns if a value is one tensor that nobody writes into: who reads what is written reads that memory, and no copy."""
        record = each.record
        if record.does not in _JOIN or isinstance(each.about.meta["val"], (list, tuple)):
            return False
        if each.about in self.flow.written:
            return False
        if record.does != "gather":
            return True
        # Gathered when it is read: the unit computes with it by way of that.
        if each.about in self.going_on:
            return False
        return sum(step.record.does == "gather" for step in each.path) == 1 and record.summed in ((), record.over)

    def _seconds(self, call: Together) -> float:
        if call not in self.cost:
            self.cost[call] = _seconds(self.typed, self.flow, call, self.price)
        return self.cost[call]


def _going_on(typed: TypedGraph, flow: Flow) -> frozenset[torch.fx.Node]:
    """Results that have a gradient and that the unit computes with."""
    (output,) = typed.graph.find_nodes(op="output")
    own = [node for node in output.all_input_nodes if node in flow.gradient]
    return frozenset(node for node in own if any(user in flow.gradient for user in node.users))


def _waits(typed: TypedGraph, sent: Sequence[Step]) -> list[int]:
    """For everything that is sent what must have been sent before: its value is made from it, or comes after it in order. A set
    of steps is a number with their bits."""
    bits = {each: 1 << number for number, each in enumerate(sent)}
    at: dict[torch.fx.Node, int] = {}
    for each, bit in bits.items():
        at[each.about] = at.get(each.about, 0) | bit
    behind: dict[torch.fx.Node, int] = {}
    in_order, last = keeps_order(typed.graph), 0
    for node in typed.graph.nodes:
        found = 0
        for source in node.all_input_nodes:
            found |= behind[source] | at.get(source, 0)
        if node in in_order:
            found = last = found | last
        behind[node] = found
    return [_joined((behind[each.about], *(bits.get(step, 0) for step in each.path[:-1]))) for each in sent]


def _joined(sets: Iterable[int]) -> int:
    return functools.reduce(operator.or_, sets, 0)


class _Order:
    """Which calls must come before which, kept as calls grow: a set of calls, or of steps, is a number with their bits."""

    def __init__(self, waits: Sequence[int]) -> None:
        self.waits = waits
        self.after = [_joined(1 << n for n, earlier in enumerate(waits) if earlier >> m & 1) for m in range(len(waits))]
        self.steps: list[int] = []  # of every call
        self.before: list[int] = []  # for every call those that must be over, of which each waits again for others
        self.earlier = self.later = 0

    def look_at(self, step: int) -> None:
        """Find the calls that must come before or after something that is not in a call yet."""
        self.earlier = self._closed(self.waits[step])
        behind = self._calls(self.after[step])
        self.later = behind | _joined(1 << n for n, before in enumerate(self.before) if before & behind)

    def allows(self, number: int) -> bool:
        """Returns if what is looked at can be sent in a call: no call then waits for itself."""
        return not (self.earlier | self.later) >> number & 1

    def add(self, step: int, number: int) -> None:
        """Put what is looked at in a call, or in a new one."""
        if number == len(self.before):
            self.before.append(0)
            self.steps.append(0)
        self.steps[number] |= 1 << step
        self.before[number] |= self.earlier
        own = self.before[number] | 1 << number
        for n, before in enumerate(self.before):
            if (self.later >> n | before >> number) & 1:
                self.before[n] |= own

    def _closed(self, steps: int) -> int:
        found = self._calls(steps)
        for number, before in enumerate(self.before):
            if found >> number & 1:
                found |= before
        return found

    def _calls(self, steps: int) -> int:
        return _joined(1 << n for n, own in enumerate(self.steps) if own & steps)


def keeps_order(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Nodes that must stay in the order they have among each other: those that are not plain functions of tensors and
    numbers, or all that were traced, where memory is written or gradients are turned off and on. What was inserted goes
    where its values are; a view of what is written keeps its place too."""
    called = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    if any(annotation(node).writes is not None or node.target is torch._C._set_grad_enabled for node in called):
        written = {shared for node in called for shared in (annotation(node).writes or ())}
        return frozenset(
            n for n in called if placed_as(n).collective is None or not written.isdisjoint(n.all_input_nodes)
        )
    return frozenset(node for node in called if not _is_function(node))


def _is_function(node: torch.fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return _is_pure(target)
    is_plain = target is collect or getattr(target, "__module__", "") in ("_operator", "math")
    return is_plain or placed_as(node).collective is not None


@functools.cache
def _is_pure(target: torch._ops.OpOverload) -> bool:
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
