"""Matching chains on a typed graph: every dimension that a parameter sums over, every one of which rows pick a part each, and
every one that leaves the unit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from ..axes.annotation import annotation
from ..axes.call import operator_name
from ..axes.facts import Typing, parameter_of
from ..axes.term import Axis, Pin, Sum, Term, axes_of, axes_of_dims, resolve
from .places import Places
from .rules import OUTPUT, ChainRule, ChainRules


@dataclass(frozen=True)
class Proposal:
    """A chain that may be cut: `axes` in order of preference, `site` where the dimension ends."""

    rule: ChainRule
    site: str
    axes: tuple[Axis, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class NearMiss:
    """A chain that may not be cut: the rule that came closest, the step that failed, where and why."""

    rule: str
    step: str
    site: str
    parameters: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(self.parameters)}: rule {self.rule}, step {self.step}: {self.reason}"


# In place of the number of steps that did match: an operator without a rule stands there; the chain does not end.
_UNKNOWN, _ENDLESS = 1000, -1


@dataclass(frozen=True)
class _Candidate:
    """A dimension with the node where it ends; `site` is the output node for one that leaves the unit. `picked`: it ends
    because rows pick a part of it each, and is not summed over."""

    site: torch.fx.Node
    term: Term
    source: torch.fx.Node | None = None
    picked: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(dict.fromkeys(axes_of(self.term)))


def match_chains(graph: torch.fx.Graph, typing: Typing, rules: ChainRules) -> tuple[list[Proposal], list[NearMiss]]:
    """All chains of a graph, proposed or explained."""
    proposals: list[Proposal] = []
    near: list[tuple[int, NearMiss]] = []
    places = Places(typing)
    for candidate in _candidates(graph, typing):
        about = [rule for rule in rules.rules if _is_about(rule, candidate, rules)]
        matches = [_Match(graph, typing, places, rules, rule, candidate).outcome() for rule in about]
        proposal = next((match for match in matches if isinstance(match, Proposal)), None)
        if proposal is not None:
            if not any(set(proposal.axes) & set(other.axes) for other in proposals):
                proposals.append(proposal)
            continue
        close = [match for match in matches if isinstance(match, tuple)]
        if close:
            near.append(max(close, key=lambda pair: pair[0]))
    covered = {name for p in proposals if not p.rule.collect for name in p.parameters}
    proposals = [p for p in proposals if not (p.rule.collect and covered & set(p.parameters))]
    return proposals, open_misses(proposals, _ordered([*near, *_stopped(graph, typing, rules)]))


def open_misses(proposals: Iterable[Proposal], misses: Iterable[NearMiss]) -> list[NearMiss]:
    """The first miss about every parameter that no proposal covers."""
    taken = {name for proposal in proposals for name in proposal.parameters}
    found: list[NearMiss] = []
    for miss in misses:
        left = tuple(name for name in miss.parameters if name not in taken)
        if left:
            found.append(replace(miss, parameters=left))
            taken |= set(left)
    return found


def _ordered(near: Iterable[tuple[int, NearMiss]]) -> list[NearMiss]:
    """The misses that explain the most first.

    An operator without a rule explains the most, then a chain that ends, then one that only begins. Among equals, the
    miss about the fewest parameters, then the one that came nearest.
    """

    def order(pair: tuple[int, NearMiss]) -> tuple[bool, bool, int, int]:
        depth, miss = pair
        return depth != _UNKNOWN, depth == _ENDLESS, len(miss.parameters), -depth

    return [miss for _, miss in sorted(near, key=order)]


def _stopped(graph: torch.fx.Graph, typing: Typing, rules: ChainRules) -> Iterator[tuple[int, NearMiss]]:
    """A miss for every matrix that begins a chain whose dimension some operator needs whole, whether it ends or not."""
    for weight in filter(_is_weight, graph.nodes):
        for user in readers(weight, typing):
            rule = next(
                (r for r in rules.rules if r.start and operator_name(user.target) in rules.classes[r.start]), None
            )
            contracted = axes_of_dims(typing.facts[user].contracts)
            axes = [axis for term in typing.dims(weight) for axis in axes_of(term) if axis not in contracted]
            if rule and axes and all(axis.pins for axis in axes):
                unknown = any(pin.node in typing.unruled for pin in axes[0].pins)
                reason = f"it must stay whole at {_pin_of(axes[:1], typing)}"
                miss = NearMiss(rule.name, rule.end, user.name, (str(weight.target),), reason)
                yield _UNKNOWN if unknown else _ENDLESS, miss
                break


def readers(weight: torch.fx.Node, typing: Typing) -> Iterator[torch.fx.Node]:
    """The operators that read a weight, as it is or behind what hands it on."""
    for user in [user for user in weight.users if user in typing.facts]:
        if parameter_of(typing.facts, user) is not None:
            yield from readers(user, typing)
        else:
            yield user


def _candidates(graph: torch.fx.Graph, typing: Typing) -> Iterator[_Candidate]:
    for node, fact in typing.facts.items():
        if weights_of(node, typing):
            for term in fact.contracts:
                yield from (_Candidate(node, segment) for segment in _segments(resolve(term)))
            if fact.pick is not None and any(w.meta["val"].dim() > 2 for w in weights_of(node, typing)):
                yield _Candidate(node, resolve(fact.pick.choice), picked=True)
    output = next(iter(reversed(graph.nodes)))
    for node in output.all_input_nodes:
        if node in typing.facts and len(typing.facts[node].outputs) == 1:
            yield from (_Candidate(output, resolve(term), node) for term in reversed(typing.dims(node)))


def _segments(term: Term) -> list[Term]:
    """A dimension, or the segments of a sum that have no axis in common, each of which is made in its own way. Placement sees to
    it that they are cut together."""
    if not isinstance(term, Sum):
        return [term]
    groups: list[list[Term]] = []
    for part in term.parts:
        axes = set(axes_of(part))
        same = [group for group in groups if axes & axes_of_dims(group)]
        groups = [group for group in groups if group not in same] + [[*itertools.chain.from_iterable(same), part]]
    return [resolve(Sum(tuple(group))) for group in groups]


def _is_weight(node: torch.fx.Node | None) -> bool:
    return node is not None and annotation(node).parameter and node.meta["val"].dim() >= 2


def weights_of(node: torch.fx.Node, typing: Typing) -> list[torch.fx.Node]:
    """The weights that an operator reads, as they are or behind what hands them on."""
    found = [parameter_of(typing.facts, operand) for operand in typing.facts[node].operands]
    return [weight for weight in found if weight is not None and _is_weight(weight)]


def _is_about(rule: ChainRule, candidate: _Candidate, rules: ChainRules) -> bool:
    """Returns if a rule's chains end as this one does."""
    site = candidate.site
    if (rule.end == OUTPUT) != (site.op == "output") or rule.picked != candidate.picked or rule.alone:
        return False
    return rule.end == OUTPUT or operator_name(site.target) in rules.classes[rule.end]


class _Match:
    """One rule tried on one candidate."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        typing: Typing,
        places: Places,
        rules: ChainRules,
        rule: ChainRule,
        candidate: _Candidate,
    ) -> None:
        self.typing, self.rules, self.rule, self.candidate = typing, rules, rule, candidate
        free = [axis for axis in candidate.axes if not axis.pins]
        self.all_axes = set(candidate.axes)
        self.results = next(iter(reversed(graph.nodes))).all_input_nodes
        self.axes = tuple(free[: rule.axes])
        having = places.having(set(self.axes) or self.all_axes)
        self.nodes = [n for n in having if n.op == "call_function"]
        self.weights = [n for n in having if _is_weight(n)]
        self.own_weights = frozenset(self.weights)

    def outcome(self) -> Proposal | tuple[int, NearMiss] | None:
        """A proposal, a near miss with the number of steps that did match, or None if the rule is about something else."""
        rule, site = self.rule, self.candidate.site
        starts = [node for node in self.nodes if rule.start and self._is_start(node)]
        if rule.start and len(starts) < rule.starts:
            return self._unruled()
        depth = 1
        passed = [operator_name(node.target) for node in self.nodes]
        for step in rule.through:
            place = next((i for i, name in enumerate(passed) if name in self.rules.classes[step]), None)
            if place is None:
                return self._miss(depth, step, "no such operator on the way", pinned=True)
            passed, depth = passed[place + 1 :], depth + 1
        return self._refusal(starts, depth) or Proposal(rule, site.name, self.axes, self._covered(starts))

    def _unruled(self) -> tuple[int, NearMiss] | None:
        """A chain that an operator without a rule keeps from beginning; any other is about something else."""
        unknown = any(pin.node in self.typing.unruled for axis in self.all_axes for pin in axis.pins)
        return self._miss(_UNKNOWN, "start", "", pinned=True) if unknown and not self.axes else None

    def _covered(self, starts: list[torch.fx.Node]) -> tuple[str, ...]:
        """The parameters the rule cuts: all that have the dimension, or only those that bring it in."""
        if not self.rule.collect:
            return tuple(str(weight.target) for weight in self.weights)
        brought = {operand for start in starts for operand in self.typing.facts[start].operands}
        return tuple(str(weight.target) for weight in self.weights if weight in brought)

    def _is_start(self, node: torch.fx.Node) -> bool:
        """Returns if a parameter brings the axis in here without summing over it."""
        if operator_name(node.target) not in self.rules.classes[self.rule.start]:
            return False
        fact = self.typing.facts[node]
        if any(not self.all_axes.isdisjoint(axes_of(term)) for term in fact.contracts):
            return False
        read = fact.operands if self.rule.collect else weights_of(node, self.typing)
        return not self.own_weights.isdisjoint(read)

    def _refusal(self, starts: list[torch.fx.Node], depth: int) -> tuple[int, NearMiss] | None:
        rule = self.rule
        if not self.axes:
            return self._miss(depth, rule.end, "", pinned=True)
        if not self.weights:
            return depth, NearMiss(rule.name, rule.end, self.candidate.site.name, (), "no parameter has this dimension")
        if all(
            any(sum(axis in axes_of(d) for d in self.typing.dims(w)) > 1 for w in self.weights) for axis in self.axes
        ):
            return self._miss(depth, rule.end, "both dimensions of a matrix are this one")
        if rule.inside and set(self.axes) & self._leaving():
            return self._miss(depth, rule.end, "a result of the unit has it")
        statistics = [n for n in self.nodes if n is not self.candidate.site and self._sums(n)]
        if statistics and not rule.reduces:
            return self._miss(
                depth + 1, "through", f"{statistics[0].name} ({operator_name(statistics[0].target)}) sums over it"
            )
        growths = [self._growth(start) for start in starts]
        wrong = (
            (rule.wider and any(growth <= 0 for growth in growths))
            or (rule.narrower and any(growth > 0 for growth in growths))
            or (rule.widest and (any(growth < 0 for growth in growths) or self._growth(self.candidate.site) > 0))
        )
        if wrong:
            return self._miss(depth + 1, rule.end, "collecting it would cost more than computing it everywhere")
        return None

    def _leaving(self) -> set[Axis]:
        """The axes that results of the unit have."""
        typed = [node for node in self.results if node in self.typing.facts]
        return {axis for node in typed for dims in self.typing.facts[node].outputs for axis in axes_of_dims(dims)}

    def _sums(self, node: torch.fx.Node) -> bool:
        """Returns if a node sums over the axis without a parameter: a statistic."""
        fact = self.typing.facts[node]
        contracted = {axis for term in fact.contracts for axis in axes_of(term)}
        return bool(contracted & set(self.axes)) and not weights_of(node, self.typing)

    def _growth(self, node: torch.fx.Node) -> int:
        """By how much what an operator's weights make is larger than what they sum over."""
        fact = self.typing.facts[node]
        read, made = axes_of_dims(fact.contracts), axes_of_dims(fact.dims)
        brought = [
            term.size
            for weight in weights_of(node, self.typing)
            for term in self.typing.dims(weight)
            if not read & set(axes_of(term)) and made & set(axes_of(term))
        ]
        return max(brought, default=0) - sum(term.size for term in fact.contracts)

    def _miss(self, depth: int, step: str, reason: str, *, pinned: bool = False) -> tuple[int, NearMiss]:
        if pinned and self.all_axes and not self.axes:
            reason = f"it must stay whole at {_pin_of(self.candidate.axes, self.typing)}"
        names = tuple(str(weight.target) for weight in self.weights)
        return depth, NearMiss(self.rule.name, step, self.candidate.site.name, names, reason)


def _pin_of(axes: Iterable[Axis], typing: Typing) -> Pin:
    """Why axes stay whole: an operator without a rule if there is one, else the first that needs them so."""
    pins = [pin for axis in axes for pin in axis.pins]
    return next((pin for pin in pins if pin.node in typing.unruled), pins[0])
