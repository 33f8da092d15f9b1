"""Lookups: what is indexed must be whole, except the rows of a parameter, which may be spread over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ..annotation import annotation
from ..call import Call, is_tensor, operator_name
from ..facts import Fact
from ..record import Rule
from ..rules import CLASSES
from ..term import ONE, Dims, Term

_ZEROS = ("aten.zeros", "aten.new_zeros", "aten.zeros_like")


def embedding(call: Call) -> Fact:
    """A lookup sums over the rows with a one-hot index: cut rows leave a partial sum on every rank."""
    rows, width = call.dims(call.get("weight"))
    indices = call.dims(call.get("indices"))
    if call.get("weight").op != "get_attr":
        call.pin([rows], "its table is no parameter")
    if call.get("scale_grad_by_freq") or call.get("sparse"):
        call.pin([rows, *indices], "its gradient counts the rows")
    return call.fact((*indices, width), contracts=[rows], zeros=[[0]], looks_up=True)


def index(call: Call) -> Fact:
    """x[i, j, :]: indexed dims are whole; the result of the index comes where the first index was. The first dim of a
    parameter may be spread where each row of the result picks its part of it."""
    source = call.dims(call.get("self"))
    indices = list(call.get("indices"))
    used = [position for position, value in enumerate(indices) if value is not None]
    if _picks(call, indices):
        (rows,) = call.dims(indices[0])
        pick = call.pick(rows, 0, source[0], indices[0], ends=False)
        return call.fact((rows, *source[1:]), linear=[[0]], zeros=[[0]], pick=pick)
    call.pin([source[position] for position in used], "it is indexed by data")
    joint = call.broadcast([call.dims(indices[position]) for position in used])
    if used != list(range(used[0], used[0] + len(used))):
        return _whole(call, [*source, *joint])
    before, after = source[: used[0]], source[used[-1] + 1 :]
    dims = (*before, *joint, *after)
    if any(indices[p].meta["val"].dtype == torch.bool for p in used) or [d.size for d in dims] != call.shape():
        return _whole(call, [*source, *joint])
    return call.fact(dims, linear=[[0]], zeros=[[0]])


def _picks(call: Call, indices: list[torch.fx.Node | None]) -> bool:
    """Returns if one list of whole numbers says which part of a parameter is in every row of the result."""
    table, numbers = call.get("self"), indices[0]
    if not (table.op == "get_attr" and annotation(table).parameter and len(indices) == 1 and numbers is not None):
        return False
    value = numbers.meta["val"]
    return value.dim() == 1 and value.dtype in (torch.int32, torch.int64)


def index_put(call: Call) -> Fact:
    """x[i, :] = y: indexed dims are whole; the values have the others, aligned from the right."""
    target, values = call.dims(call.get("self")), call.dims(call.get("values"))
    indices = list(call.get("indices"))
    used = [position for position, value in enumerate(indices) if value is not None]
    joint = call.broadcast([call.dims(indices[position]) for position in used])
    masks = any(indices[position].meta["val"].dtype == torch.bool for position in used)
    if masks or used != list(range(used[0], used[0] + len(used))):
        return _whole(call, [*target, *values, *joint])
    call.pin([*(target[position] for position in used), *joint], "it is indexed by data")
    call.broadcast([(*target[: used[0]], *joint, *target[used[-1] + 1 :]), values])
    together = [[0, len(call.operands) - 1]]
    return call.fact(target, linear=together, zeros=together)


def gather(call: Call) -> Fact:
    source, chosen = call.dims(call.get("self")), call.dims(call.get("index"))
    position = call.dim(call.get("dim"), len(source))
    _match(call, source, chosen, position)
    return call.fact(chosen, linear=[[0]], zeros=[[0]])


def scatter(call: Call) -> Fact:
    """scatter and its kin: whole along the dim, element by element along the others of equal size."""
    target, chosen = call.dims(call.get("self")), call.dims(call.get("index"))
    position = call.dim(call.get("dim"), len(target))
    _match(call, target, chosen, position)
    if isinstance(call.get("src"), torch.fx.Node):
        _match(call, target, call.dims(call.get("src")), position)
    return call.fact(target)


def index_add(call: Call) -> Fact:
    """Values are added to some places along a dim, which is whole; element by element along the others."""
    target, source = call.dims(call.get("self")), call.dims(call.get("source"))
    position = call.dim(call.get("dim"), len(target))
    call.pin([target[position], source[position], *call.dims(call.get("index"))], "it is indexed by data")
    for i, (left, right) in enumerate(zip(target, source, strict=True)):
        if i != position:
            call.equal(left, right)
    places = [0, 2]
    from_nothing = operator_name(call.get("self").target) in _ZEROS
    return call.fact(target, linear=[places, *([[2]] if from_nothing else [])], zeros=[places])


def index_copy(call: Call) -> Fact:
    """As `index_add`, in the place of what was there; `index_fill` puts one number there."""
    return replace(index_add(call), linear=(frozenset([0, 2]),))


def index_fill(call: Call) -> Fact:
    dims = call.dims(call.get("self"))
    call.pin([dims[call.dim(call.get("dim"), len(dims))], *call.dims(call.get("index"))], "it is indexed by data")
    return call.fact(dims)


def index_select(call: Call) -> Fact:
    dims = call.dims(call.get("self"))
    position = call.dim(call.get("dim"), len(dims))
    call.pin([dims[position]], "it is indexed by data")
    chosen = call.dims(call.get("index")) or (ONE,)
    call.pin(chosen, "it is indexed by data")
    return call.fact((*dims[:position], *chosen, *dims[position + 1 :]), linear=[[0]], zeros=[[0]])


def bucketize(call: Call) -> Fact:
    """Between which of all boundaries each number lies."""
    call.pin(call.dims(call.get("boundaries")), "it is indexed by data")
    return call.fact(call.dims(call.get("self")))


def is_in(call: Call) -> Fact:
    """Which elements are among all of some others."""
    others = call.get("test_elements", call.get("test_element"))
    elements = call.get("elements", call.get("element"))
    if not is_tensor(elements):
        return _whole(call, list(call.dims(others)))
    call.pin(call.dims(others) if is_tensor(others) else (), "it is indexed by data")
    return call.fact(call.dims(elements))


def where(call: Call) -> Fact:
    """Every element is that of one operand or of the other, and linear in both together; in one, where the other is zero."""
    return _chosen(call, [call.get("self"), call.get("other")], range(1, len(call.operands)))


def masked_fill(call: Call) -> Fact:
    """As `where`, between an operand and one number for all."""
    return _chosen(call, [call.get("value")], [0, *range(2, len(call.operands))])


def _chosen(call: Call, values: list[Any], places: Iterable[int]) -> Fact:
    fact, groups = CLASSES["other"](call), (frozenset(places),)
    is_linear = all(is_tensor(value) or value == 0 for value in values) and groups[0]
    return replace(fact, linear=groups, zeros=groups) if is_linear else fact


def search_sorted(call: Call) -> Fact:
    """As `bucketize`, for one list of limits; for one list each, all stays whole."""
    limits, numbers = call.dims(call.get("sorted_sequence")), call.get("self")
    if len(limits) > 1 or not is_tensor(numbers):
        return _whole(call, [*limits, *(call.dims(numbers) if is_tensor(numbers) else ())])
    call.pin(limits, "it is indexed by data")
    return call.fact(call.dims(numbers))


def one_hot(call: Call) -> Fact:
    classes = call.fresh([call.shape()[-1]])
    call.pin(classes, "its classes are counted here")
    return call.fact((*call.dims(call.get("self")), *classes))


def _match(call: Call, source: Dims, chosen: Dims, position: int) -> None:
    call.pin([source[position], chosen[position]], "it is indexed by data")
    for i, (left, right) in enumerate(zip(source, chosen, strict=True)):
        if i != position:
            if left.size == right.size:
                call.equal(left, right)
            else:
                call.pin([left, right], "it is indexed by data")


def _whole(call: Call, terms: list[Term]) -> Fact:
    call.pin(terms, "it is indexed by data")
    fresh = call.fresh(call.shape())
    call.pin(fresh, "it is indexed by data")
    return call.fact(fresh)


RULES: dict[str, Rule] = {
    "aten.embedding": embedding,
    "aten.index": index,
    "aten.index_put": index_put,
    "aten.gather": gather,
    "aten.scatter": scatter,
    "aten.scatter_add": scatter,
    "aten.scatter_reduce": scatter,
    "aten.index_copy": index_copy,
    "aten.index_fill": index_fill,
    "aten.searchsorted": search_sorted,
    "aten.index_add": index_add,
    "aten.index_select": index_select,
    "aten.one_hot": one_hot,
    "aten.bucketize": bucketize,
    "aten.isin": is_in,
    "aten.where": where,
    "aten.masked_fill": masked_fill,
}
