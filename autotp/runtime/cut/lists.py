"""Functions of lists of tensors, as optimizers use them: those at one place of the lists belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .kinds import label, written_by
from .operands import fits, held_for, is_whole_of, joins, note_written, result_of
from .origin import IsCut, parts_only
from .views import WholeView
from .whole import memory_of, on_whole

T = torch.Tensor


def foreach(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One function for lists of tensors, element by element: those at one place belong together."""
    lists = [value for value in (*args, *kwargs.values()) if _is_list(value)]
    written = {id(value): value for value in written_by(func, args, kwargs)}
    columns = list(zip(*lists, strict=True))
    if any(isinstance(value, WholeView) for value in written.values()):
        return _apart(func, args, kwargs, columns)
    if written and _reads_written(columns, written):
        return on_whole(func, args, kwargs)
    leaders = [next((value for value in column if isinstance(value, IsCut)), None) for column in columns]
    for leader, column in zip(leaders, columns, strict=True):
        if leader is None:
            continue
        wholes = [v for v in column if (id(v) in written or not written) and is_whole_of(leader, v)]
        otherwise = [v for v in column if id(v) in written and not fits(leader, v) and isinstance(v, IsCut)]
        if wholes or otherwise or not all(value is leader or joins(leader, value) for value in column):
            return on_whole(func, args, kwargs)

    def seen(value: Any) -> Any:
        return value.taken(label(func)) if isinstance(value, WholeView) else value

    held = [
        [
            value if leader is None or id(value) in written else held_for(leader, value, func)
            for value in map(seen, column)
        ]
        for leader, column in zip(leaders, columns, strict=True)
    ]
    rows = {id(own): list(row) for own, row in zip(lists, zip(*held, strict=True), strict=True)}

    def row(value: Any) -> Any:
        return rows[id(value)] if _is_list(value) else value

    with parts_only():
        result = func(*map(row, args), **{name: row(value) for name, value in kwargs.items()})
    for value in written.values():
        note_written(value)
    if not isinstance(result, (list, tuple)):
        return result
    return [
        value if leader is None else result_of(leader, value, []) for leader, value in zip(leaders, result, strict=True)
    ]


def _reads_written(columns: list[tuple[Any, ...]], written: Mapping[int, Any]) -> bool:
    """Returns if a view that is read is of what is written: it is to see what was written at the places before its own."""
    read = {memory_of(value) for column in columns for value in column if isinstance(value, WholeView)}
    return bool(read) and any(memory_of(value) in read for value in written.values() if isinstance(value, IsCut))


def _apart(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], columns: list[tuple[Any, ...]]) -> Any:
    """The function for columns with views, which needs wholes, and for all others; for all at once if they share memory."""
    with_views = [any(isinstance(value, WholeView) for value in column) for column in columns]
    memories: tuple[set[int], set[int]] = set(), set()
    for has, column in zip(with_views, columns, strict=True):
        memories[has].update(memory_of(value) for value in column if isinstance(value, (IsCut, WholeView)))
    if all(with_views) or memories[0] & memories[1]:
        return on_whole(func, args, kwargs)

    def of(chosen: bool) -> Any:
        def row(value: Any) -> Any:
            # Of tensors, or of a number for each.
            is_list = isinstance(value, (list, tuple)) and len(value) == len(columns)
            return [v for v, has in zip(value, with_views, strict=True) if has is chosen] if is_list else value

        return func(*map(row, args), **{name: row(value) for name, value in kwargs.items()})

    found = of(chosen=False), of(chosen=True)
    if not isinstance(found[0], (list, tuple)):
        return found[0]
    rest = iter(found[0]), iter(found[1])
    return [next(rest[has]) for has in with_views]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], T)


def unscale(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Unscaling for a gradient scaler: what one rank finds not finite, all have found, so that all skip the step."""
    gradients, found, scale = args
    if any(isinstance(gradient, WholeView) for gradient in gradients):
        return on_whole(func, args, kwargs)
    for gradient in gradients:
        if isinstance(gradient, IsCut):
            gradient.zero_padding()  # a derivative at zero may be no number
    with parts_only():
        func(gradients, found, scale)
    for gradient in gradients:
        note_written(gradient)
    cut = next(gradient for gradient in gradients if isinstance(gradient, IsCut))
    return found.copy_(cut.autotp_origin.all_reduce(found, "unscaling", "max"))
