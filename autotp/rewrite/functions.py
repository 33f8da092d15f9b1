"""The function of a node that stands between values, made from the record of what it does and from nothing else.

Each takes the value, what else it reads, and the ranks last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..axes.layout import Leaf
from ..placement.transition import Joined, Transition
from ..runtime.collectives import positions, single, together
from ..runtime.layers.routing import has_own_number, is_between_ends, own_rows
from ..runtime.results import sequence
from ..runtime.results.deferred import deferred
from ..runtime.results.logits import Head, cut_logits
from ..runtime.results.traced import TracedLogits

Function = Callable[..., Any]


def function_of(record: Transition | Joined) -> Function:
    """The function of a node that does what a record says."""
    if isinstance(record, Joined):
        return _JOINED[record.does](record)
    if record.number is not None:
        return _part(record.number)
    return _FUNCTIONS[record.does](record)


def _reduce(record: Transition) -> Function:
    factors = record.over

    def reduce(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return single.reduce(value, ranks, factors)

    return reduce


def _once(record: Transition) -> Function:
    factors = record.over

    def count_once(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return single.once(value, ranks, factors)

    return count_once


def _enter(record: Transition) -> Function:
    factors, of = record.over, record.of

    def enter(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return single.enter(value, ranks, factors, of)

    return enter


def _enter_part(record: Transition) -> Function:
    factors, ((dim, _, _),), where = record.over, record.dims, torch.tensor(record.where)

    def enter_part(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return single.enter_part(value, ranks, factors, dim, where)

    return enter_part


def _leave(record: Transition) -> Function:
    factors = record.over

    def leave(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return single.leave(value, ranks, factors)

    return leave


def _slice(record: Transition) -> Function:
    layouts = tuple(layout for _, layout, _ in record.dims)

    def slice_to_rank(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return single.slice_to_rank(value, ranks, layouts)

    return slice_to_rank


def _own(record: Transition) -> Function:
    ((dim, parts, _),), ends = record.dims, record.ends
    assert isinstance(parts, Leaf)

    def keep_own(value: torch.Tensor, by: torch.Tensor, ranks: Any) -> torch.Tensor:
        count = value.shape[dim]
        own = is_between_ends(by, count, ranks, parts) if ends else has_own_number(by, ranks, parts)
        return own_rows(value, own, dim)

    return keep_own


def _gather(record: Transition) -> Function:
    ((dim, layout, over),), summed, of = record.dims, record.summed, record.of

    def gather(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return single.gather(value, ranks, over, dim, layout, summed, of)

    return gather


def _logits(record: Transition) -> Function:
    ((_, layout, _),) = record.dims
    assert isinstance(layout, Leaf)

    def gather(value: torch.Tensor, ranks: Any) -> Any:
        return _as_logits(value, Head(ranks, layout))

    return gather


def _as_logits(local: torch.Tensor, head: Head) -> Any:
    """A slice as the cut logits that it is a part of, in a form that dynamo can follow where it traces."""
    return TracedLogits(local, head) if torch.compiler.is_dynamo_compiling() else cut_logits(local, head)


def _defer(record: Transition) -> Function:
    dims = record.dims

    def defer(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        if not torch.compiler.is_dynamo_compiling():
            return deferred(value, ranks, dims)
        for dim, layout, over in dims:  # a compiled graph knows no lazy values
            value = single.gather(value, ranks, over, dim, layout)
        return value

    return defer


def _keep(record: Transition) -> Function:
    ((dim, layout, over),) = record.dims

    def keep(value: torch.Tensor, ranks: Any) -> Any:
        if isinstance(layout, Leaf) and dim == value.dim() - 1:
            return _as_logits(value, Head(ranks, layout, kept=True))
        return single.keep_cut(value, ranks, over, dim, layout)

    return keep


def _opened(record: Transition) -> Function:
    def opened(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return sequence.opened(value)

    return opened


def _shut(record: Transition) -> Function:
    def shut(value: torch.Tensor, source: torch.Tensor, ranks: Any) -> torch.Tensor:
        return sequence.shut(value, ranks, source.shape[sequence.DIM])

    return shut


def _take_positions(record: Transition) -> Function:
    ((dim, _, _),) = record.dims

    def take_positions(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return positions.take_positions(value, ranks, dim)

    return take_positions


def _gather_positions(record: Transition) -> Function:
    ((dim, _, _),), summed, again = record.dims, record.summed, record.again

    def gather_positions(value: torch.Tensor, source: torch.Tensor, ranks: Any) -> torch.Tensor:
        return positions.gather_positions(value, ranks, dim, source.shape[sequence.DIM], summed, again=again)

    return gather_positions


def _scatter_sum(record: Transition) -> Function:
    ((dim, _, _),) = record.dims

    def scatter_sum(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return positions.scatter_sum(value, ranks, dim)

    return scatter_sum


_FUNCTIONS: Mapping[str, Callable[[Transition], Function]] = {
    "reduce": _reduce,
    "once": _once,
    "enter": _enter,
    "enter_part": _enter_part,
    "leave": _leave,
    "slice": _slice,
    "own": _own,
    "gather": _gather,
    "logits": _logits,
    "defer": _defer,
    "keep": _keep,
    "opened": _opened,
    "shut": _shut,
    "take_positions": _take_positions,
    "gather_positions": _gather_positions,
    "scatter_sum": _scatter_sum,
}


def _part(number: int) -> Function:
    def part(value: Any, results: Any) -> Any:
        return results[number]

    return part


def _reduce_together(record: Joined) -> Function:
    over = record.over

    def reduce_together(values: Any, ranks: Any) -> Any:
        return together.reduce_together(values, ranks, over)

    return reduce_together


def _enter_together(record: Joined) -> Function:
    over, of = record.over, record.of

    def enter_together(values: Any, ranks: Any) -> Any:
        return together.enter_together(values, ranks, over, of)

    return enter_together


def _gather_together(record: Joined) -> Function:
    over, summed, of = record.over, bool(record.parts[0].summed), record.of
    places = [(dim, layout) for ((dim, layout, _),) in (part.dims for part in record.parts)]

    def gather_together(values: Any, ranks: Any) -> Any:
        return together.gather_together(values, ranks, over, places, summed, of)

    return gather_together


_JOINED: Mapping[str, Callable[[Joined], Function]] = {
    "reduce": _reduce_together,
    "enter": _enter_together,
    "gather": _gather_together,
}
