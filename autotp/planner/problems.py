"""The problems of units: which axes of a traced unit may be cut, and what proposes so."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path

import torch

from ..axes.annotation import copied
from ..axes.facts import Typing
from ..axes.infer import infer
from ..axes.rules import operator_rules
from ..axes.term import Pin, pin
from ..capture.traced import Traced
from ..capture.units import Unit
from ..chains.collect import alone, mark_collected, marked_proposals, through
from ..chains.match import NearMiss, Proposal, match_chains, open_misses
from ..chains.rules import chain_rules
from ..chains.single import single_axes
from .alike import described
from .choose import UnitProblem


class Problems:
    """The problems of traced units, by some rules and for an objective; units whose graphs say the same have one."""

    def __init__(self, rules: tuple[Path, ...], objective: str) -> None:
        self.operator_rules, self.chain_rules, self.objective = operator_rules(rules), chain_rules(rules), objective
        self._known: dict[Hashable, UnitProblem] = {}

    def of(self, unit: Unit, traced: Traced, used_outside: Mapping[str, str]) -> UnitProblem:
        """The problem of a unit, where others use parameters with the operators that are given by the names of those."""
        kind = described(traced, unit.path, used_outside)
        if kind not in self._known:
            self._known[kind] = self._problem(unit, traced, used_outside)
        return self._known[kind]

    def _problem(self, unit: Unit, traced: Traced, used_outside: Mapping[str, str]) -> UnitProblem:
        graph = traced.graph
        typing, proposals, misses = self._match(unit, graph, used_outside)
        proposals += alone(graph, typing, self.chain_rules, proposals, few=True)
        if self.objective != "balanced":
            proposals += alone(graph, typing, self.chain_rules, proposals, few=False)
        collected = {name: p.rule for p in proposals if p.rule.collect for name in p.parameters}
        whole, is_marked = graph, bool(collected)
        while is_marked:
            graph, _ = copied(whole)
            mark_collected(graph, collected)
            typing, proposals, misses = self._match(unit, graph, used_outside)
            needless = through(graph, typing)
            is_marked = bool(needless)
            collected = {name: rule for name, rule in collected.items() if name not in needless}
        if graph is not whole:
            proposals = [p for p in proposals if not p.rule.collect] + marked_proposals(graph, typing, collected)
            misses = open_misses(proposals, misses)
        if self.objective == "time":
            proposals += single_axes(graph, typing, proposals)
        return UnitProblem(graph, typing, tuple(proposals), tuple(misses), traced.unread)

    def _match(
        self, unit: Unit, graph: torch.fx.Graph, used_outside: Mapping[str, str]
    ) -> tuple[Typing, list[Proposal], list[NearMiss]]:
        typing = infer(graph, self.operator_rules)
        for node in graph.nodes:
            operator = used_outside.get(f"{unit.path}.{node.target}" if unit.path else str(node.target))
            if node.op == "get_attr" and operator is not None:
                for term in typing.dims(node):
                    pin(term, Pin(node.name, operator, "the model uses this parameter outside of its module"))
        return typing, *match_chains(graph, typing, self.chain_rules)
