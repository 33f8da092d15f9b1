"""Why one parameter is placed as it is: its terms in words, the rule, and what the alternatives would cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ..axes.layout import Cut, layout_of
from ..axes.term import Axis, Product, Sum, Term, resolve
from ..errors import UnsoundPlanError, UsageError, nearest
from .balance import waiting
from .choose import UnitProblem, placed
from .cost import Hardware, Workload
from .plan import ParameterPlan, Plan
from .survey import Survey
from .weigh import Weigher

MOST_COMBINATIONS = 4096  # of the unit's cuts that are looked at, those of least memory


@dataclass(frozen=True)
class DimWhy:
    """One dim of a parameter: its size, its term in words, its layout, and what keeps parts of it whole."""

    size: int
    words: str
    layout: str
    pins: tuple[str, ...]


@dataclass(frozen=True)
class Alternative:
    """Another way to hold the parameter, with the best of everything else in its unit beside it.

    `elements` are the unit's parameters on a rank, `bytes` and `seconds` those of its collectives in one step, the time that
    ranks wait for the busiest included; `refused` is the reason if it cannot be done.
    """

    layouts: tuple[str, ...]
    elements: int
    bytes: float
    seconds: float
    chosen: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Why:
    """One parameter: where it is, how it is placed and why, and every other way there was."""

    name: str
    units: int
    parameter: ParameterPlan
    dims: tuple[DimWhy, ...]
    alternatives: tuple[Alternative, ...]
    misses: tuple[str, ...]


def why(found: Survey, plan: Plan, name: str, machine: Hardware, workload: Workload) -> Why:
    """Explain a parameter of a planned model. Raises UsageError for one that no unit has, with the reason or the nearest."""
    for unit in plan.units:
        for path in unit.instances:
            inner = name.removeprefix(f"{path}." if path else "")
            parameter = next((p for p in unit.parameters if p.name == inner and (path == "" or inner != name)), None)
            if parameter is not None:
                shape = next(u.shape for u in found.units if u.path == path)
                problem = found.problems[shape]
                return _Explainer(problem, plan.tp, Weigher(problem.graph, machine, workload)).why(
                    name, len(unit.instances), parameter
                )
    outside = next((p for p in plan.outside if p.name == name), None)
    if outside is not None:
        raise UsageError(f"{name} is whole on every rank: {outside.reason}")
    known = [f"{path}.{p.name}".lstrip(".") for unit in plan.units for path in unit.instances for p in unit.parameters]
    raise UsageError(f"the model has no parameter {name!r}{_nearest(name, known)}")


def _nearest(name: str, known: list[str]) -> str:
    text = nearest(name, known)
    return text if text.startswith("; did") else "; `autotp plan` lists them all"


class _Explainer:
    def __init__(self, problem: UnitProblem, ranks: int, weigher: Weigher) -> None:
        self.problem, self.ranks, self.weigher = problem, ranks, weigher

    def why(self, name: str, units: int, parameter: ParameterPlan) -> Why:
        terms = self.problem.parameters()[parameter.name]
        layouts = parameter.layouts
        dims = tuple(
            DimWhy(size, in_words(term), layout, tuple(_pins(term)))
            for size, term, layout in zip(parameter.shape, terms, layouts, strict=True)
        )
        misses = (str(miss) for miss in self.problem.misses if parameter.name in miss.parameters)
        return Why(name, units, parameter, dims, tuple(self._alternatives(parameter)), tuple(misses))

    def _alternatives(self, parameter: ParameterPlan) -> Iterator[Alternative]:
        """Every way to cut the parameter, in order of memory: the best combination that has it, of those of least memory."""
        terms = self.problem.parameters()[parameter.name]
        groups: dict[tuple[str, ...], list[tuple[int, dict[Axis, Cut]]]] = {}
        for elements, cuts in itertools.islice(self.problem.combinations(self.ranks), MOST_COMBINATIONS):
            key = tuple(str(layout_of(term, cuts)) for term in terms)
            groups.setdefault(key, []).append((elements, cuts))
        for layouts, candidates in groups.items():
            yield self._best(layouts, candidates, layouts == parameter.layouts)

    def _best(
        self, layouts: tuple[str, ...], candidates: list[tuple[int, dict[Axis, Cut]]], chosen: bool
    ) -> Alternative:
        """The combination of the least memory that can be placed, and of those the fastest."""
        refused, best = "", None
        for elements, cuts in candidates:
            if best is not None and elements > best.elements:
                break
            try:
                placement = placed(self.problem, cuts, self.weigher)
            except UnsoundPlanError as error:
                refused = refused or str(error)
                continue
            collectives = list(self.weigher.collectives(placement))
            sent = sum(c.bytes for c in collectives)
            seconds = sum(c.seconds for c in collectives) + waiting(placement, self.weigher)
            if best is None or seconds < best.seconds:
                best = Alternative(layouts, elements, sent, seconds, chosen)
        return best or Alternative(layouts, candidates[0][0], 0.0, 0.0, chosen, refused)


def in_words(term: Term) -> str:
    """What a dimension is made of, in words."""
    term = resolve(term)
    if isinstance(term, Axis):
        return f"one axis of {term.size}"
    if isinstance(term, Product):
        sizes = [in_words(part).removeprefix("one axis of ") for part in term.parts]
        return " times ".join(f"({s})" if " " in s else s for s in sizes) + ", major to minor" if sizes else "of size 1"
    parts = [in_words(part).removeprefix("one axis of ").removesuffix(", major to minor") for part in term.parts]
    if len(set(parts)) == 1:
        return f"{len(parts)} segments of {parts[0]}"
    return f"{len(parts)} segments: {_counted(parts)}"


def _counted(parts: list[str]) -> str:
    """Equal neighbours once, with their number."""
    runs: list[tuple[str, int]] = []
    for part in parts:
        runs = [*runs[:-1], (part, runs[-1][1] + 1)] if runs and runs[-1][0] == part else [*runs, (part, 1)]
    return ", then ".join(f"{count} of {part}" if count > 1 else part for part, count in runs)


def _pins(term: Term) -> Iterator[str]:
    """What needs parts of a dimension whole, once for each operator."""
    term = resolve(term)
    if isinstance(term, (Product, Sum)):
        seen = dict.fromkeys(words for part in term.parts for words in _pins(part))
        yield from list(seen)[:3]
    elif term.pins:
        yield f"an axis of {term.size} stays whole at {term.pins[0]}"
