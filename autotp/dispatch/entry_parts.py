"""The part of an entry that takes a call apart, as Python text, and leaves where the call is not like the one at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from ..capture.contract.laying import lies_as
from ..capture.signature import CallSite, Slot
from ..capture.traced import Traced

_PLAIN = (torch.Tensor, nn.Parameter)


class Code(Protocol):
    """The entry that this is for."""

    site: CallSite
    traced: Traced
    handles: list[str]

    def constant(self, value: Any, always: bool = False) -> str:
        """A constant as text."""

    def other_than(self, text: str, again: str, value: Any) -> list[str]:
        """What must not be true of a text that gives a constant."""

    def conditions(self, tensors: Sequence[str], numbers: Sequence[str]) -> list[str]:
        """The conditions on sizes and numbers, as what must not be true."""


class Parts:
    """The lines that take a call apart and leave if it does not look like the one at hand."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.leaves = iter(code.site.leaves)
        self.lines: list[str] = []
        self.tensors: list[str] = []
        self.numbers: list[str] = []
        self.count = 0

    def check(self, checks: Sequence[str]) -> None:
        if checks:
            self.lines.append(f"if {' or '.join(checks)}: return other")

    def take(self, value: Any, text: str) -> bool:
        """Add lines for what stands at a place of the call; returns if there can be any."""
        kind = type(value)
        if kind in (tuple, list):
            self.check([f"type({text}) is not {kind.__name__}", f"len({text}) != {len(value)}"])
            return all(self.take(part, self._named(f"{text}[{i}]")) for i, part in enumerate(value))
        if kind is dict and all(type(name) is str for name in value):
            self.check([f"type({text}) is not dict", f"tuple({text}) != {tuple(value)!r}"])
            return all(self.take(part, self._named(f"{text}[{name!r}]")) for name, part in value.items())
        if isinstance(value, (tuple, list, dict)) or (isinstance(value, torch.Tensor) and kind not in _PLAIN):
            return False
        self._take_leaf(value, text, next(self.leaves))
        return True

    def _named(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"part_{self.count} = {text}")
        return f"part_{self.count}"

    def _take_leaf(self, value: Any, text: str, leaf: Any) -> None:
        if not isinstance(leaf, Slot):
            self._take_constant(value, text)
        elif leaf.kind == "tensor":
            self._take_tensor(value, text)
        elif leaf.kind == "number":
            self.check([f"type({text}) is not int"])
            self.numbers.append(text)
        else:
            self._take_handle(value, text, leaf.number)

    def _take_constant(self, value: Any, text: str) -> None:
        self.check(self.code.other_than(text, text, value))

    def _take_tensor(self, value: torch.Tensor, text: str) -> None:
        kind, dtype, layout, device = map(self.code.constant, (type(value), value.dtype, value.layout, value.device))
        looks = [f"type({text}) is not {kind}", f"{text}.dtype is not {dtype}", f"{text}.layout is not {layout}"]
        self.check([*looks, f"{text}.device != {device}", f"{text}.requires_grad is not {value.requires_grad}"])
        same = self.code.site.same[len(self.tensors)]
        others = [at for at in range(len(self.tensors)) if self.code.site.same[at] == at and at != same]
        self.check([f"{text} is {self.tensors[at]}" for at in others])
        if same < len(self.tensors):
            self.check([f"{text} is not {self.tensors[same]}"])
        self.tensors.append(text)

    def _take_handle(self, value: Any, text: str, number: int) -> None:
        handles = self.code.handles
        if number < len(handles):
            self.check([f"{text} is not {handles[number]}"])
            return
        kind = self.code.constant(type(value))
        self.check([f"type({text}) is not {kind}", *(f"{text} is {handle}" for handle in handles)])
        handles.append(text)

    def sizes(self, numbers: Sequence[str]) -> list[str]:
        """What must not be true of the sizes of the tensors, and of the numbers."""
        guards, checks = self.code.traced.guards, list[str]()
        for at, laying in guards.layings.items():
            text, order = self.tensors[at], laying.order
            if laying.is_dense:
                laid = "" if list(order) == sorted(order) else f".permute{order}"
                checks.append(f"not {text}{laid}.is_contiguous()")
            else:
                checks.append(f"not {self.code.constant(lies_as)}({text}, {self.code.constant(laying)})")
        for i, (text, tensor) in enumerate(zip(self.tensors, self.code.site.tensors, strict=True)):
            small = {dim: size for dim, size in enumerate(tensor.shape) if size < 2}
            known = small | {dim: size for (at, dim), size in guards.constants.items() if at == i and dim is not None}
            if len(known) == tensor.dim():
                checks.append(f"{text}.shape != {tuple(known[dim] for dim in range(tensor.dim()))}")
                continue
            checks.append(f"{text}.dim() != {tensor.dim()}")
            for dim in range(tensor.dim()):
                checks.append(f"{text}.shape[{dim}] " + (f"!= {known[dim]}" if dim in known else "< 2"))
        checks += [f"{numbers[at]} != {value}" for (at, dim), value in guards.constants.items() if dim is None]
        return checks + self.code.conditions(self.tensors, numbers)
