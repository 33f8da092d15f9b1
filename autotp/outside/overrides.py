"""Classes of other packages that ours stand in for: where one is written otherwise in another version, ours would be asked no
more, or be given something else, and nobody would notice. So that is an error when our class is made."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from ..errors import UsageError

MSG_OTHER = "{ours} stands in for {base}, and here {what}; it is known to work with {known}: install one of these"
T = TypeVar("T", bound=type)
# Classes and functions of others, and names that are in their code as long as they do what ours count on.
Mentions: TypeAlias = Mapping[Any, Sequence[str]]


def standing_in(base: type, known: str, mentions: Mentions | None = None) -> Callable[[T], T]:
    """A decorator of a class that stands in for one of another package, from which it derives.

    What is marked with `override` must be the base's too: a method of the same parameters, or an attribute in its code. What is
    not must be ours alone. Raises UsageError, which says what is otherwise, and the versions that are `known`.
    """

    def checked(ours: T) -> T:
        found = [*_otherwise(ours, base), *_unmentioned(mentions or {})]
        if found:
            what = ", ".join(found)
            raise UsageError(MSG_OTHER.format(ours=ours.__name__, base=base.__name__, what=what, known=known))
        return ours

    return checked


def _unmentioned(mentions: Mentions) -> Iterator[str]:
    for owner, names in mentions.items():
        yield from (f"{owner.__qualname__} has no {name}" for name in names if name not in names_in(owner))


def _otherwise(ours: type, base: type) -> Iterator[str]:
    for name, own in vars(ours).items():
        function = own.fget if isinstance(own, property) else own
        if not isinstance(function, types.FunctionType) or name.startswith("__"):
            continue
        true = inspect.getattr_static(base, name, None)
        if not getattr(function, "__override__", False):
            if true is not None:
                yield f"it has a {name} of its own"
        elif isinstance(own, property):
            if name not in names_in(base):
                yield f"it has no {name}"
        elif not callable(true):
            yield f"it has no {name}"
        elif (there := _parameters(true)) != (here := _parameters(function)):
            yield f"its {name} takes ({', '.join(there)}) and not ({', '.join(here)})"


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def names_in(base: Any) -> set[str]:
    """Every attribute and global that the code of a class, or of a function, names."""
    held = vars(base).values() if isinstance(base, type) else (base,)
    codes = [function.__code__ for function in map(_plain, held) if isinstance(function, types.FunctionType)]
    found: set[str] = set()
    while codes:
        code = codes.pop()
        found.update(code.co_names)
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return found


def _plain(held: Any) -> Any:
    """The function itself of what a class has under a name."""
    held = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
    return inspect.unwrap(held) if callable(held) else held
