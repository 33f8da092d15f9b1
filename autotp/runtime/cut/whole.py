"""A function that is not known to work on parts: it is given whole tensors, and computes the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from ...errors import UsageError
from .kinds import label, written_by
from .origin import IsCut, parts_only
from .views import WholeView

MSG_IN_PLACE = (
    "{what} would write into {name}, a cut parameter that wants a gradient; write inside torch.no_grad(), or into .data"
)


def on_whole(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function of whole tensors in place of cut ones. What it writes into them is taken over.

    What it gives that shares memory with a whole one is a view of that; see `WholeView`.
    """
    what, written = label(func), written_by(func, args, kwargs)
    wholes: dict[int, tuple[IsCut, torch.Tensor]] = {}

    def whole(value: Any) -> Any:
        if isinstance(value, WholeView):
            return value.plain()
        if not isinstance(value, IsCut):
            return value
        if id(value) not in wholes:
            wholes[id(value)] = value, value.whole(what)
        return wholes[id(value)][1]

    for value in written:
        _refuse_recorded_write(value, what)
    args, kwargs = pytree.tree_map(whole, (tuple(args), dict(kwargs)))
    result = func(*args, **kwargs)
    for value in written:
        if isinstance(value, IsCut):
            value.store(wholes[id(value)][1])
    sources = list(wholes.values())
    return pytree.tree_map(lambda leaf: _given_back(leaf, sources), result)


def _given_back(leaf: Any, sources: Sequence[tuple[IsCut, torch.Tensor]]) -> Any:
    """What a function of whole tensors gives: a cut one itself, a view of a whole one, or something of its own."""
    if isinstance(leaf, numpy.ndarray):
        leaf.flags.writeable = False  # a copy here, where the dense model's shares its memory
    if type(leaf) is not torch.Tensor:
        return leaf
    for cut, whole in sources:
        if leaf is whole:
            return cut
        if WholeView.shares_memory(leaf, whole):
            return WholeView.of(leaf, cut, whole)
    return leaf


def _refuse_recorded_write(value: Any, what: str) -> None:
    if isinstance(value, IsCut):
        with parts_only():
            recorded = torch.is_grad_enabled() and value.requires_grad  # type: ignore[attr-defined]
        if recorded:
            raise UsageError(MSG_IN_PLACE.format(what=what, name=value.origin.name))
