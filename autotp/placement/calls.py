"""What is sent together: collectives over the same ranks of which none waits for what another one gives are one call.

A call has its latency, whatever it sends, and what is sent together is copied side by side first: small values are joined,
large ones go by themselves. The smallest come first, and each joins the first call that it can and that is cheaper so. It
can if the graph has an order afterwards: nothing that a call waits for may wait for that call. What writes into memory, draws
random numbers or asks an object keeps its place among those that do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..axes.layout import Factor
from ..axes.term import axes_of
from .backward import Backward, Price, Version
from .sequence import SequenceCut
from .sizes import local_share
from .state import Flow
from .typed import TypedGraph, cut_in, is_of_parameters


@dataclass(frozen=True)
class Sent:
    """A value that a collective sends: by itself, or together with others.

    `scattered` are the mesh factors over which the backward of a gather sums the gradient before a rank takes its slice.
    """

    kind: str
    phase: str
    of: str
    version: Version
    over: frozenset[Factor]
    scattered: frozenset[Factor] = frozenset()

    @property
    def node(self) -> torch.fx.Node:
        """The node whose value it is; for a gather the marker behind it."""
        return self.version[0]


# What one call sends, in the order of the graph.
Together: TypeAlias = tuple[Sent, ...]


def calls(
    typed: TypedGraph, flow: Flow, backward: Backward, cut: SequenceCut | None, price: Price
) -> tuple[Together, ...]:
    """Everything that is summed or gathered inside a unit, by the calls that send it."""
    order = {node: number for number, node in enumerate(typed.graph.nodes)}

    def place(sent: Sent) -> tuple[Any, ...]:  # the same on every rank
        return order[sent.node], sent.version[1], sent.kind, sent.phase, sorted(sent.over)

    sent = sorted(set(_sent(typed, flow, backward, cut)), key=place)
    return _Joining(typed, flow, sent, price).run()


def seconds_of(typed: TypedGraph, flow: Flow, calls: Iterable[Together], price: Price) -> float:
    """The price of some calls, their backward included; the same on every rank, whatever their order."""
    return math.fsum(_seconds(typed, flow, call, price) for call in calls)


def _seconds(typed: TypedGraph, flow: Flow, call: Together, price: Price) -> float:
    first = call[0]
    whole = first.kind == "all_gather"
    values = tuple((sent.node, 1.0 if whole else local_share(typed, flow, sent.node)) for sent in call)
    total = price(first.kind, values, _ranks(first.over))
    if first.scattered:
        total += price(scatter_kind(first), values, _ranks(first.scattered))
    return total


def scatter_kind(gather: Sent) -> str:
    """How the backward of a gather sums: at once in slices, if over all ranks that it gathers from."""
    return "reduce_scatter" if gather.scattered == gather.over else "all_reduce"


def _ranks(over: Iterable[Factor]) -> int:
    return math.prod(factor.size for factor in over)


def _sent(typed: TypedGraph, flow: Flow, backward: Backward, cut: SequenceCut | None) -> Iterator[Sent]:
    for node, over in flow.reduces().items():
        if cut is None or not cut.is_cut((node, True)):
            yield Sent("all_reduce", "forward", "activation", (node, True), over)
    scattered = {scatter.node: scatter.over for scatter in backward.scatters}
    for node, fact in typed.facts.items():
        if fact.collects and flow.held[fact.operands[0]]:
            over = flow.varies(fact.operands[0])
            yield Sent("all_gather", "forward", "activation", (node, False), over, scattered.get(node, frozenset()))
    for enter in backward.enters:
        version = enter.node, enter.reduced
        if cut is None or not cut.is_cut(version):  # what gathers a cut value sums its gradient
            of = "parameter" if is_of_parameters(typed, enter.node) else "activation"
            yield Sent("all_reduce", "backward", of, version, enter.over)
    if cut is not None:
        for node, of in cut.sums.items():
            yield Sent("all_reduce", "backward", of, (node, False), frozenset(cut.over))


class _Joining:
    def __init__(self, typed: TypedGraph, flow: Flow, sent: list[Sent], price: Price) -> None:
        self.typed, self.flow, self.sent, self.price = typed, flow, sent, price
        self.order = _Order(_waits(typed, sent))
        self.cost: dict[Together, float] = {}

    def run(self) -> tuple[Together, ...]:
        found: list[Together] = []
        for each in sorted(self.sent, key=lambda sent: self._seconds((sent,))):
            self.order.look_at(each)
            number = next((n for n, call in enumerate(found) if self._joins(each, n, call)), len(found))
            if number == len(found):
                found.append(())
            found[number] = (*found[number], each)
            self.order.add(each, number)
        order = {each: number for number, each in enumerate(self.sent)}
        in_order = [tuple(sorted(call, key=order.__getitem__)) for call in found]
        return tuple(sorted(in_order, key=lambda call: order[call[0]]))

    def _joins(self, each: Sent, number: int, call: Together) -> bool:
        if not self.order.allows(number) or not self._alike(call[0], each):
            return False
        return self._seconds((*call, each)) < self._seconds(call) + self._seconds((each,))

    def _alike(self, one: Sent, other: Sent) -> bool:
        def kind(each: Sent) -> tuple[object, ...]:
            return each.kind, each.phase, each.of, each.over, each.scattered, each.node.meta["val"].dtype

        return self._may_join(one) and self._may_join(other) and kind(one) == kind(other)

    def _may_join(self, each: Sent) -> bool:
        """Returns if a value is one tensor that nobody writes into: who reads what is written reads that memory, and no copy."""
        if isinstance(each.node.meta["val"], (list, tuple)) or each.node in self.flow.written:
            return False
        if each.kind != "all_gather":
            return True
        (value,) = self.typed.facts[each.node].operands
        dims = [term for term in self.typed.facts[value].dims if cut_in(set(axes_of(term)), self.flow.cuts)]
        return len(dims) == 1 and each.scattered in (frozenset(), each.over)

    def _seconds(self, call: Together) -> float:
        if call not in self.cost:
            self.cost[call] = _seconds(self.typed, self.flow, call, self.price)
        return self.cost[call]


def _waits(typed: TypedGraph, sent: list[Sent]) -> Mapping[Sent, frozenset[Sent]]:
    """For everything that is sent what must have been sent before: its value is made from it, or comes after it in order."""
    at: dict[torch.fx.Node, frozenset[Sent]] = {}
    for each in sent:
        at[each.node] = at.get(each.node, frozenset()) | {each}
    behind: dict[torch.fx.Node, frozenset[Sent]] = {}
    in_order, last = keeps_order(typed.graph), frozenset[Sent]()
    for node in typed.graph.nodes:
        sources = [behind[source] | at.get(source, frozenset()) for source in node.all_input_nodes]
        behind[node] = frozenset[Sent]().union(*sources)
        if node in in_order:
            behind[node] = last = behind[node] | last
    # A gradient's sum stands behind the value, and so behind the value's own sum.
    return {each: behind[each.node] | {o for o in at[each.node] if o.phase < each.phase} for each in sent}


class _Order:
    """Which calls must come before which, kept as calls grow: a set of calls is a number with their bits."""

    def __init__(self, waits: Mapping[Sent, frozenset[Sent]]) -> None:
        self.waits, self.call_of = waits, dict[Sent, int]()
        self.after = dict[Sent, set[Sent]]()
        for each, earlier in waits.items():
            for other in earlier:
                self.after.setdefault(other, set()).add(each)
        self.before: list[int] = []  # for every call those that must be over, of which each waits again for others
        self.earlier = self.later = 0

    def look_at(self, each: Sent) -> None:
        """Find the calls that must come before or after something that is not in a call yet."""
        self.earlier = self._closed(self.waits[each])
        behind = self._bits(self.after.get(each, ()))
        self.later = behind | sum(1 << n for n, before in enumerate(self.before) if before & behind)

    def allows(self, number: int) -> bool:
        """Returns if what is looked at can be sent in a call: no call then waits for itself."""
        return not (self.earlier | self.later) >> number & 1

    def add(self, each: Sent, number: int) -> None:
        """Put what is looked at in a call, or in a new one."""
        self.before += [0] * (number == len(self.before))
        self.call_of[each] = number
        self.before[number] |= self.earlier
        own = self.before[number] | 1 << number
        for n, before in enumerate(self.before):
            if (self.later >> n | before >> number) & 1:
                self.before[n] |= own

    def _closed(self, sent: Iterable[Sent]) -> int:
        found = self._bits(sent)
        for number, before in enumerate(self.before):
            if found >> number & 1:
                found |= before
        return found

    def _bits(self, sent: Iterable[Sent]) -> int:
        found = 0
        for each in sent:
            if each in self.call_of:
                found |= 1 << self.call_of[each]
        return found


def keeps_order(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Nodes that must stay in the order they have among each other: those that are not plain functions of tensors and
    numbers, or all that were traced, where memory is written or gradients are turned off and on. What was inserted goes
    where its values are; a view of what is written keeps its place too."""
    called = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    if any("writes" in node.meta or node.target is torch._C._set_grad_enabled for node in called):
        written = {shared for node in called for shared in node.meta.get("writes", ())}
        return frozenset(n for n in called if "collective" not in n.meta or not written.isdisjoint(n.all_input_nodes))
    return frozenset(node for node in called if not _is_function(node))


def _is_function(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "collective" in node.meta or getattr(target, "__module__", "") in ("_operator", "math")
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
