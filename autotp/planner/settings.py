"""Settings: parts of a model that somebody wants left whole, or cut by one chain rule and no other, on top of what the planner
would choose."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from ..axes.term import axes_of_dims
from ..chains.match import NearMiss, Proposal
from ..errors import UsageError, nearest
from .choose import UnitProblem
from .survey import Survey

REPLICATE = "replicate"


def apply_settings(model: nn.Module, found: Survey, settings: Mapping[str, str]) -> Survey:
    """The survey without the chains that settings forbid. Units of one structure that are set differently part ways.

    A pattern matches parameters and whole modules by their paths; `*` stands for anything. What it is set to is `replicate`,
    or a chain rule: of the parameters that the rule can cut, no other cuts any.
    Raises UsageError for a pattern that matches nothing, naming the nearest name, and for a rule that cuts nothing there.
    """
    if not settings:
        return found
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for pattern in settings:
        if not any(_matches(name, pattern) for name in names):
            raise UsageError(f"no parameter is at {pattern!r}{nearest(pattern, _places(names))}")
    for pattern, value in settings.items():
        _check(found, pattern, value)
    return _divide(found, settings)


def _check(found: Survey, pattern: str, value: str) -> None:
    """Raises UsageError for what is neither `replicate` nor a chain rule that cuts something at a pattern."""
    known = {
        proposal.rule.name
        for unit in found.units
        for proposal in (found.problems[unit.shape].proposals if unit.shape in found.problems else ())
        if any(_matches(_path(unit.path, name), pattern) for name in proposal.parameters)
    }
    if value != REPLICATE and value not in known:
        rules = ", ".join([REPLICATE, *sorted(known)])
        raise UsageError(
            f"{value!r} is no setting for {pattern!r}; the ones there are: {rules}. --why PARAMETER says what stops others"
        )


def _path(unit: str, name: str) -> str:
    return f"{unit}.{name}".lstrip(".")


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")


def _places(names: list[str]) -> set[str]:
    parts = (name.split(".") for name in names)
    return {".".join(path[:end]) for path in parts for end in range(1, len(path) + 1)}


def _divide(found: Survey, settings: Mapping[str, str]) -> Survey:
    """Units of one structure with equal settings keep one problem; those with others get one of their own."""
    numbers: dict[tuple[int, frozenset[tuple[str, str]]], int] = {}
    result = replace(found, traced={}, problems={}, varying={}, units=())
    units = []
    for unit in found.units:
        problem = found.problems.get(unit.shape)
        own = problem.parameters() if problem else ()
        asked = frozenset((n, v) for n in own for p, v in settings.items() if _matches(_path(unit.path, n), p))
        number = numbers.setdefault((unit.shape, asked), len(numbers))
        units.append(replace(unit, shape=number))
        if problem is not None and number not in result.problems:
            result.problems[number] = _without(problem, asked)
            result.traced[number] = found.traced[unit.shape]
            result.varying[number] = found.varying[unit.shape]
    return replace(result, units=tuple(units))


def _without(problem: UnitProblem, asked: frozenset[tuple[str, str]]) -> UnitProblem:
    """The problem less every chain that would cut a parameter which is to be whole, or cut by another rule."""
    dims = problem.parameters()
    rules = {(name, p.rule.name) for p in problem.proposals for name in p.parameters}
    reasons = {REPLICATE: "left whole as set"}
    out: dict[Proposal, str] = {}
    for name, value in asked:
        own = axes_of_dims(dims[name])
        for p in problem.proposals:
            other = value == REPLICATE or (p.rule.name != value and (name, value) in rules)
            if other and own & set(p.axes):
                out[p] = reasons.get(value, f"cut by rule {value} as set")
    misses = tuple(NearMiss(p.rule.name, p.rule.end, p.site, p.parameters, reason) for p, reason in out.items())
    proposals = tuple(p for p in problem.proposals if p not in out)
    return replace(problem, proposals=proposals, misses=(*problem.misses, *misses))
