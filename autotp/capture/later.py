"""Modules within a module that are made when somebody asks for them: hundreds of blocks have them, and few are looked into."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch import nn


class Later(OrderedDict[str, nn.Module | None]):
    """The `_modules` of a module, which `make` gives at the first question; whether a name is among its `names` is known."""

    def __init__(
        self, make: Callable[[], Mapping[str, nn.Module | None]] | None = None, names: Collection[str] = ()
    ) -> None:
        super().__init__()
        self._make, self._names = make, frozenset(names)

    @property
    def is_made(self) -> bool:
        """Returns if somebody has asked."""
        return self._make is None

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) if self.is_made else name in self._names

    def made(self) -> None:
        """Make them, unless they are."""
        make, self._make = self._make, None
        if make is not None:
            OrderedDict.update(self, make())


# What gives a new dict of the same class, which would take what it is given for what makes it: it gives a plain one.
_COPIES = frozenset({"__or__", "__ror__", "copy"})


def _asking(name: str) -> Any:
    plain = getattr(OrderedDict, name)

    def method(self: Later, *args: Any, **kwargs: Any) -> Any:
        self.made()
        return plain(OrderedDict(self.items()) if name in _COPIES else self, *args, **kwargs)

    method.__name__ = name
    return method


# All that a dict answers by what it holds, or changes.
for _name in (
    "__delitem__ __eq__ __getitem__ __ior__ __iter__ __len__ __ne__ __or__ __reduce__ __repr__ __reversed__ __ror__"
    " __setitem__ clear copy get items keys move_to_end pop popitem setdefault update values"
).split():
    setattr(Later, _name, _asking(_name))


def pairs(twin: nn.Module, live: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Every module in a copy by its path, once, with the one that it is a copy of; what is not made yet is left out."""
    seen = set()

    def within(path: str, part: nn.Module, own: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
        if id(part) in seen:
            return
        seen.add(id(part))
        yield path, part, own
        modules: Any = vars(part)["_modules"]
        if isinstance(modules, Later) and not modules.is_made:
            return
        others = vars(own)["_modules"]
        for name, inner in modules.items():
            if inner is not None:
                yield from within(f"{path}.{name}" if path else name, inner, others[name])

    yield from within("", twin, live)
