"""Parameters with several names: each is one parameter, so all units that read it hold the same part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..axes.layout import is_whole, layout_of, local_indices
from .choose import Choice, UnitProblem
from .parameters import Holder
from .select import Select
from .survey import Survey


def choose_tied(
    found: Survey,
    problems: Mapping[int, UnitProblem],
    select: Select,
    tp: int,
    tied: Iterable[list[str]],
    holders: Mapping[str, Holder],
) -> dict[int, Choice]:
    """Choose; where a tied parameter would be cut in two ways, or would be cut and is read outside of units, its units agree."""
    problems = dict(problems)
    choices = select(problems)
    for names in tied:
        of_names = {name: _place_of(found, problems, name, names) for name in names}
        places = {name: place for name, place in of_names.items() if place is not None}
        held = {_held(problems[shape], choices[shape], name, tp) for shape, name in places.values()}
        inside = {holders[name] for name in places}
        is_outside = any(holders[name] not in inside for name in names)
        if len(held) > 1 or (is_outside and any(held)):
            problems = select.agree(problems, list(dict.fromkeys(places.values())), must_be_whole=is_outside)
            choices = select(problems)
    return choices


def _place_of(
    found: Survey, problems: Mapping[int, UnitProblem], name: str, tied: Iterable[str]
) -> tuple[int, str] | None:
    """The unit shape that reads a parameter, and the name it has there: a unit reads all its tied names as one."""
    for unit in found.units:
        prefix = unit.path + "." if unit.path else ""
        if name.startswith(prefix) and unit.shape in problems:
            read = problems[unit.shape].parameters()
            inside = (other.removeprefix(prefix) for other in (name, *tied) if other.startswith(prefix))
            inner = next((other for other in inside if other in read), None)
            if inner is not None:
                return unit.shape, inner
    return None


def _held(problem: UnitProblem, choice: Choice, name: str, tp: int) -> tuple[object, ...]:
    """What every rank holds of a parameter; empty if everything."""
    layouts = [layout_of(term, choice.cuts) for term in problem.parameters()[name]]
    if all(map(is_whole, layouts)):
        return ()
    return tuple(tuple(map(tuple, (local_indices(layout, rank) for layout in layouts))) for rank in range(tp))
