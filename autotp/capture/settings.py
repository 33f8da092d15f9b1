"""The plain Python state of a unit's modules, for which a program is specialised: switches, factors, lists of names.

A program is made from what a block's Python did with them once. Where somebody changes one later, an adapter is switched
off for example, the block runs another program.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

# Kept elsewhere: part of every call's key, and what a copy for tracing leaves out.
_ELSEWHERE = frozenset(vars(nn.Module())) | {"training", "gradient_checkpointing"}
_PLAIN = (bool, int, float, str, type(None), torch.dtype)


class Settings:
    """The settings of a module and of all within, but for positions, which are those that a dense twin of it has.

    `first` are those that the programs of the unit are made for as long as `variant` is empty.
    """

    def __init__(
        self, module: nn.Module, twin: nn.Module, positions: Collection[tuple[str, str]], first: str | None = None
    ) -> None:
        self.fits = [path for path, _ in module.named_modules()] == [path for path, _ in twin.named_modules()]
        self.parents = [(part._modules, tuple(part._modules.values())) for part in module.modules() if part._modules]
        self.leaves = [part._modules for part in module.modules() if not part._modules]
        self.names = [
            (path, name)
            for path, part in (twin.named_modules() if self.fits else ())
            for name, value in vars(part).items()
            if name not in _ELSEWHERE and (path, name) not in positions and _is_plain(value)
        ]
        self.places = [(vars(module.get_submodule(path)), name) for path, name in self.names]
        self._note()
        self.first = self.text if first is None else first

    def _note(self) -> None:
        self.values = copy.deepcopy([held.get(name) for held, name in self.places])
        self.text = repr(self.values)

    def same_modules(self) -> bool:
        """Returns if no module was put in, taken out or replaced."""
        if not self.fits or any(self.leaves):
            return False
        return all(tuple(now.values()) == before for now, before in self.parents)

    def variant(self) -> str:
        """What tells the present settings from the first ones; empty if nothing does."""
        if [held.get(name) for held, name in self.places] != self.values:
            self._note()
        return "" if self.text == self.first else self.text

    def give(self, twin: nn.Module) -> None:
        """Let a twin have the present settings."""
        for (path, name), (held, _) in zip(self.names, self.places, strict=True):
            vars(twin.get_submodule(path))[name] = copy.deepcopy(held.get(name))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    return isinstance(value, _PLAIN)
