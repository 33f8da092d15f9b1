"""What functions wrapped by `functools.lru_cache` and `functools.cache` keep, which Python shows to its collector alone."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .answers import PLAIN

# Of each result of a function that keeps a bounded number: the key, the result, and this class.
_LINK = "_lru_list_elem"

_here = threading.local()


@dataclass(frozen=True)
class Memo:
    """A memoising function, what it kept before a trace called it, and how much it had computed."""

    function: Any
    before: Mapping[Any, Any]
    misses: int

    @property
    def name(self) -> str:
        """What the function is called; one that wraps a partial has no name."""
        return str(getattr(self.function, "__name__", "a memo"))

    def added(self) -> dict[Any, Any]:
        """The results that it has come to keep since then."""
        return {key: result for key, result in (kept(self.function) or {}).items() if key not in self.before}

    def has_dropped(self) -> bool:
        """Returns if it let go of results: it computes these again at the next call, and a program would not."""
        now = kept(self.function)
        computed = self.function.cache_info().misses - self.misses
        return now is None or not self.before.keys() <= now.keys() or computed != len(now) - len(self.before)

    def forget(self, key: Any) -> None:
        """Take one result out."""
        _entries(self.function).pop(key, None)

    def forget_added(self) -> None:
        """Take out all that it has come to keep since then."""
        if not self.before:
            self.function.cache_clear()
        for key in self.added():
            self.forget(key)


@contextmanager
def left_alone() -> Iterator[None]:
    """Inside, traces stand for no call of the model: what its memoising functions come to keep is taken out in the end."""
    noted: dict[int, Memo] = {}
    outer, _here.noted = getattr(_here, "noted", None), noted
    try:
        yield
    finally:
        _here.noted = outer
        for memo in noted.values():
            memo.forget_added()


def note(function: Any) -> Memo:
    """What a memoising function keeps before a trace calls it."""
    memo = Memo(function, kept(function) or {}, function.cache_info().misses)
    noted = getattr(_here, "noted", None)
    if noted is not None:
        noted.setdefault(id(function), memo)
    return memo


def kept(function: Any) -> dict[Any, Any] | None:
    """The results of a memoising function by their keys; None if Python does not show them all."""
    info, held = function.cache_info(), _entries(function)
    if info.maxsize is None:
        return dict(held)
    referents, found = gc.get_referents(function), dict[Any, Any]()
    for place, each in enumerate(referents):
        if isinstance(each, type) and each.__name__ == _LINK and referents[place - 2] in held:
            found[referents[place - 2]] = referents[place - 1]
    return found if len(found) == info.currsize else None


def cache_state(function: Any) -> Any:
    """What a memoising function keeps, by value where that are constants; where nothing shows it, how much it has computed."""
    found = kept(function)
    if found is None:
        info = function.cache_info()
        return info.misses, info.currsize
    return {_said(key): _said(result) for key, result in found.items()}


def _entries(function: Any) -> dict[Any, Any]:
    """The dict that a memoising function looks its keys up in."""
    dicts = (each for each in gc.get_referents(function) if type(each) is dict and each is not vars(function))
    return next(dicts, {})


def _said(value: Any) -> Any:
    if isinstance(value, (list, tuple)):  # a key of several arguments is a list of a class of its own
        return tuple(map(_said, value))
    return repr(value) if isinstance(value, PLAIN) else id(value)
