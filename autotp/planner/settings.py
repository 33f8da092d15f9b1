"""Settings: parts of a model that somebody wants left whole, on top of what the planner would choose."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from ..axes.term import axes_of_dims
from ..chains.match import NearMiss
from ..errors import UsageError, nearest
from .choose import UnitProblem
from .survey import Survey

REPLICATE = "replicate"


def parse_setting(text: str) -> tuple[str, str]:
    """`PATTERN=replicate` as its two parts. Raises UsageError for anything else."""
    pattern, equals, value = text.partition("=")
    if not equals or not pattern:
        raise UsageError(f"{text!r} is no setting; write PATTERN=replicate, as in 'model.layers.*.mlp=replicate'")
    _check(value)
    return pattern, value


def _check(value: str) -> None:
    if value != REPLICATE:
        raise UsageError(
            f"{value!r} is no setting; the only one is replicate: the planner cuts everything else as far as it can, and "
            "--why PARAMETER says what stops it"
        )


def apply_settings(model: nn.Module, found: Survey, settings: Mapping[str, str]) -> Survey:
    """The survey without the chains that settings forbid. Units of one structure that are set differently part ways.

    A pattern matches parameters and whole modules by their paths; `*` stands for anything.
    Raises UsageError for a pattern that matches nothing, naming the nearest name.
    """
    for value in settings.values():
        _check(value)
    if not settings:
        return found
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for pattern in settings:
        if not any(_matches(name, pattern) for name in names):
            raise UsageError(f"no parameter is at {pattern!r}{nearest(pattern, _places(names))}")
    return _divide(found, settings)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")


def _places(names: list[str]) -> set[str]:
    parts = (name.split(".") for name in names)
    return {".".join(path[:end]) for path in parts for end in range(1, len(path) + 1)}


def _divide(found: Survey, settings: Mapping[str, str]) -> Survey:
    """Units of one structure with equal settings keep one problem; those with others get one of their own."""
    numbers: dict[tuple[int, frozenset[str]], int] = {}
    result = replace(found, traced={}, problems={}, varying={}, units=())
    units = []
    for unit in found.units:
        problem = found.problems.get(unit.shape)
        own = problem.parameters() if problem else ()
        whole = frozenset(n for n in own if any(_matches(f"{unit.path}.{n}".lstrip("."), p) for p in settings))
        number = numbers.setdefault((unit.shape, whole), len(numbers))
        units.append(replace(unit, shape=number))
        if problem is not None and number not in result.problems:
            result.problems[number] = _without(problem, whole)
            result.traced[number] = found.traced[unit.shape]
            result.varying[number] = found.varying[unit.shape]
    return replace(result, units=tuple(units))


def _without(problem: UnitProblem, whole: frozenset[str]) -> UnitProblem:
    """The problem less every chain that would cut one of some parameters."""
    dims = problem.parameters()
    kept = axes_of_dims(term for name in whole for term in dims[name])
    out = [p for p in problem.proposals if kept & set(p.axes)]
    misses = tuple(NearMiss(p.rule.name, p.rule.end, p.site, p.parameters, "left whole as set") for p in out)
    proposals = tuple(p for p in problem.proposals if p not in out)
    return replace(problem, proposals=proposals, misses=(*problem.misses, *misses))
