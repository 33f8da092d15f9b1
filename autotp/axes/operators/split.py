"""Splitting and joining: where sums come from."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..call import Call
from ..facts import Fact
from ..record import Operator, Rule
from ..term import Dims, Product, Sum, Term, axis

_END = 2**62


def split(call: Call) -> Fact:
    """split, split_with_sizes, chunk: the dim is the sum of the parts."""
    dims = call.dims(call.get("self"))
    position = call.dim(call.get("dim", 0), len(dims))
    sizes = [call.sizes(part.shape[position]) for part in call.node.meta["val"]]
    parts = [axis(size) for size in sizes]
    call.equal(dims[position], Sum(tuple(parts)))
    return call.layout_fact(*(_replace(dims, position, part) for part in parts))


def slice_(call: Call) -> Fact:
    """A contiguous slice is one segment of a sum; a strided one the major part of (dim/step · step)."""
    dims = call.dims(call.get("self"))
    position, step = call.dim(call.get("dim", 0), len(dims)), call.get("step", 1)
    size, length = dims[position].size, call.shape()[position]
    start = _offset(call, call.get("start"), size)
    if length == size and step == 1:
        return call.layout_fact(dims)
    if step != 1:
        return _strided(call, dims, position, step, start)
    if start is None or start + length > size or not length:
        call.pin([dims[position]], "it takes a part whose place is not known" if length else "it takes nothing of it")
        return call.layout_fact(_replace(dims, position, axis(length)))
    part = axis(length)
    parts = [axis(start), part, axis(size - start - length)]
    call.equal(dims[position], Sum(tuple(p for p in parts if p.size)))
    return _taking(call.layout_fact(_replace(dims, position, part)), position, call.get("start") or 0, length)


def slice_scatter(call: Call) -> Fact:
    """One segment of a sum is replaced by another value."""
    dims, source = call.dims(call.get("self")), call.dims(call.get("src"))
    position = call.dim(call.get("dim", 0), len(dims))
    size, length = dims[position].size, source[position].size
    start = _offset(call, call.get("start"), size)
    if start is None or call.get("step", 1) != 1 or start + length > size:
        call.pin([dims[position], source[position]], "it writes a part whose place is not known")
    else:
        parts = [axis(start), source[position], axis(size - start - length)]
        call.equal(dims[position], Sum(tuple(p for p in parts if p.size)))
    for i, (left, right) in enumerate(zip(dims, source, strict=True)):
        if i != position:
            call.equal(left, right)
    return call.layout_fact(dims)


def _offset(call: Call, value: object, size: int) -> int | None:
    if value is None:
        return 0
    start = call.sizes(value)
    return max(start + size, 0) if start < 0 else start if start < _END else None


def _strided(call: Call, dims: Dims, position: int, step: int, start: int | None) -> Fact:
    length = call.shape()[position]
    part = axis(length)
    if isinstance(step, int) and start is not None and start < step and length * step == dims[position].size:
        inner = axis(step)
        call.equal(dims[position], Product((part, inner)))
        call.pin([inner], "it takes one of every few elements")
    else:
        call.pin([dims[position]], "it takes one of every few elements")
    return call.layout_fact(_replace(dims, position, part))


def select(call: Call) -> Fact:
    """One index of a dim, which must be whole for it."""
    dims = call.dims(call.get("self"))
    position = call.dim(call.get("dim"), len(dims))
    call.pin([dims[position]], "it takes one index of this dimension")
    return _taking(call.layout_fact(dims[:position] + dims[position + 1 :]), position, call.get("index"), 1)


def _taking(fact: Fact, dim: int, start: object, length: int) -> Fact:
    """The fact of a view that takes so many positions of a dim, if it is known where they begin."""
    if isinstance(start, int) and start >= 0:
        return replace(fact, takes=(dim, range(start, start + length)))
    return fact


def unbind(call: Call) -> Fact:
    dims = call.dims(call.get("self"))
    position = call.dim(call.get("dim", 0), len(dims))
    call.pin([dims[position]], "it takes the dimension apart")
    rest = dims[:position] + dims[position + 1 :]
    return call.layout_fact(*([rest] * len(call.node.meta["val"])))


def cat(call: Call) -> Fact:
    """The dim is the sum of the operands'; all other dims are equal."""
    # torch skips vectors that hold nothing.
    values = [dims for dims in map(call.dims, call.operands) if [term.size for term in dims] != [0]]
    position = call.dim(call.get("dim", 0), len(values[0]))
    for dims in values[1:]:
        for i, (left, right) in enumerate(zip(values[0], dims, strict=True)):
            if i != position:
                call.equal(left, right)
    parts = [dims[position] for dims in values if dims[position].size] or [values[0][position]]
    return call.layout_fact(_replace(values[0], position, Sum(tuple(parts))))


def gated(call: Call) -> Fact:
    """glu: the first half of the dim, times a gate made of the second."""
    dims = call.dims(call.get("self"))
    position = call.dim(call.get("dim", -1), len(dims))
    half = axis(call.shape()[position])
    call.equal(dims[position], Sum((half, half)))
    return call.fact(_replace(dims, position, half), zeros=[[0]])


def stack(call: Call) -> Fact:
    """A new dim that counts the operands; it is a sum of ones and cannot be cut."""
    values = [call.dims(operand) for operand in call.operands]
    position = call.dim(call.get("dim", 0), len(values[0]) + 1)
    joint = call.broadcast(values)
    count = axis(len(values))
    call.pin([count], "it counts the values stacked here")
    return call.layout_fact((*joint[:position], count, *joint[position:]))


def getitem(call: Call) -> Fact:
    """One result of an operator that has several."""
    source, number = call.node.args
    assert isinstance(source, torch.fx.Node) and isinstance(number, int)
    fact = call.fact_of(source)
    zero = fact.zero_results is None or number < fact.zero_results
    itself = (frozenset([0]),)
    return Fact((fact.outputs[number],), (source,), linear=itself, zeros=itself if zero else ())


def pad(call: Call) -> Fact:
    """Padding at the ends: the padded dims must be whole, the others are untouched."""
    dims, amounts = call.dims(call.get("self")), list(call.get("pad"))
    result = list(dims)
    for i, (first, last) in enumerate(zip(amounts[::2], amounts[1::2], strict=True), start=1):
        if not (isinstance(first, int) and isinstance(last, int) and first == last == 0):
            result[-i] = axis(call.shape()[-i])
            call.pin([dims[-i], result[-i]], "it is padded here")
    of_zeros = call.get("mode", "constant") != "constant" or not call.get("value")
    return call.fact(tuple(result), linear=[[0]] if of_zeros else (), zeros=[[0]] if of_zeros else ())


def _replace(dims: Dims, position: int, term: Term) -> Dims:
    return (*dims[:position], term, *dims[position + 1 :])


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "aten.split",
            "aten.split_with_sizes",
            "aten.unsafe_split",
            "aten.unsafe_split_with_sizes",
            "aten.chunk",
            "aten.tensor_split",
        ),
        Operator(split, local="split"),
    ),
    "aten.slice": Operator(slice_, local="slice", view=True),
    "aten.slice_scatter": Operator(slice_scatter, local="slice"),
    "aten.select": Operator(select, view=True),
    "aten.unbind": unbind,
    "aten.cat": cat,
    "aten.concat": cat,
    "aten.concatenate": cat,
    "aten.stack": stack,
    "aten.glu": gated,
    "getitem": getitem,
    "aten.pad": pad,
    "aten.constant_pad_nd": pad,
}
