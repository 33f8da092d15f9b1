"""Taking units apart: what cannot be traced is tried by its children, if the Python around those can run without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol, TypeVar

from torch import nn

from ..capture.units import Unit
from ..errors import TraceError


class Round(Protocol):
    """A survey of one choice of units."""

    model: nn.Module
    broken: frozenset[int]  # the shapes of those that did not even run
    unsized: set[int]  # and of those that are given nothing of a known size, as their parts will be

    @property
    def units(self) -> tuple[Unit, ...]: ...

    def run(self, known: Set[str]) -> Mapping[str, str]: ...

    def foreseen(self, taken: Set[str], split: frozenset[str]) -> Mapping[str, str]: ...


AnyRound = TypeVar("AnyRound", bound=Round)


class Alone(nn.Module):
    """A module of a model without the rest of it, under the path that it has there. It is called as that is."""

    def __init__(self, model: nn.Module, unit: Unit) -> None:
        super().__init__()
        self.__unit, holder = unit, self._modules
        *above, name = unit.path.split(".")
        for each in above:
            between = holder[each] = nn.Module()
            holder = between._modules
        holder[name] = unit.module(model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__unit.module(self).forward(*args, **kwargs)


def take_apart(
    round_of: Callable[[frozenset[str], AnyRound | None], AnyRound],
    earlier: AnyRound | None = None,
    split: frozenset[str] = frozenset(),
    *,
    foreseeing: bool,
) -> tuple[AnyRound, frozenset[str], dict[str, str]]:
    """Survey a model again and again, each time with what failed taken apart, until nothing is left to take apart. `round_of` is
    given what is to be, and the survey before. What a unit taken apart has in it that will have to be is `foreseeing`, if wanted,
    by that unit alone, since the whole model takes longer.

    Returns the last survey, the paths of what was taken apart, and why units failed, those taken apart included.
    """
    failures: dict[str, str] = {}
    foreseen: Mapping[str, str] = {}
    last = closed = frozenset[str]()
    found = earlier
    while True:
        found = round_of(split.union(foreseen), found)
        try:
            failed = found.run(closed.union(split, foreseen))
        except TraceError as error:
            if foreseen:  # one level after the other then
                foreseen, foreseeing = {}, False
            elif last:
                split, last, closed = split - last, frozenset(), closed | last
            else:
                return found, split, {unit.path: str(error) for unit in found.units}
            continue
        failures |= {**foreseen, **failed}
        split = split.union(foreseen)
        ran, last = apart(found, failed.keys() - split - closed)
        if not ran | last:
            return found, split, failures
        split |= ran | last
        foreseen = found.foreseen(ran | last, split) if foreseeing else {}


def apart(found: Round, failed: Set[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The failed units to take apart: all that ran but could not be traced, and one structure of those that did not run.

    What is around the parts of the latter becomes Python outside of units, which may be just what cannot run.
    """
    units = [unit for unit in found.units if unit.path in failed and unit.shape not in found.unsized]
    units = [unit for unit in units if list(unit.module(found.model).children())]
    ran = frozenset(unit.path for unit in units if unit.shape not in found.broken)
    rest = [unit for unit in units if unit.shape in found.broken]
    return ran, frozenset(unit.path for unit in rest if unit.shape == rest[0].shape)
