"""Contractions whose shape depends on their arguments."""

from __future__ import annotations

from dataclasses import replace

from ..call import Call
from ..facts import Fact
from ..record import Rule
from ..signature import Group, Signature
from ..term import Dims


def matmul(call: Call) -> Fact:
    """Matrix product with broadcast leading dims, vectors included."""
    left, right = call.dims(call.get("self")), call.dims(call.get("other"))
    inner = right[-2] if len(right) > 1 else right[-1]
    call.equal(left[-1], inner)
    leading = call.broadcast([left[:-2], right[:-2]])
    rows: Dims = left[-2:-1] if len(left) > 1 else ()
    columns: Dims = right[-1:] if len(right) > 1 else ()
    return call.fact((*leading, *rows, *columns), contracts=[left[-1]], linear=[[0], [1]], zeros=[[0], [1]])


def addmm(call: Call) -> Fact:
    """bias + x w, for a matrix and for batches of them; scaled by beta and alpha."""
    bias, left, right = (call.dims(operand) for operand in call.operands)
    call.equal(left[-1], right[-2])
    leading = call.broadcast([left[:-2], right[:-2]])
    dims = (*leading, left[-2], right[-1])
    call.broadcast([dims, bias])
    return call.fact(dims, contracts=[left[-1]], zeros=[[0, 1], [0, 2]])


def distances(call: Call) -> Fact:
    """cdist: of every row of one operand to every row of the other."""
    left, right = (call.dims(operand) for operand in call.operands)
    call.pin([left[-1], right[-1]], "a distance is along this dimension")
    return call.fact((*call.broadcast([left[:-2], right[:-2]]), left[-2], right[-2]))


def cross(call: Call) -> Fact:
    """The product of vectors in three dimensions, which must be whole."""
    dims = call.broadcast([call.dims(operand) for operand in call.operands])
    call.pin([dims[call.dim(call.get("dim"), len(dims))]], "it mixes the parts of vectors along this dimension")
    return call.fact(dims, linear=[[0], [1]], zeros=[[0], [1]])


def einsum(call: Call) -> Fact:
    """The equation is the signature; linear in every operand, since it multiplies all of them."""
    inputs, arrow, output = call.get("equation").replace(" ", "").partition("->")
    texts = inputs.split(",")
    dotted = [len(call.dims(o)) - len(t.replace("...", "")) for o, t in zip(call.operands, texts, strict=True)]
    if not arrow:
        output = "..." * ("..." in inputs) + "".join(
            sorted(c for c in set(inputs) - {",", "."} if inputs.count(c) == 1)
        )
    groups = [_names(text, count) for text, count in zip(texts, dotted, strict=True)]
    signature = Signature(tuple(groups), (_names(output, max(dotted)),), frozenset())
    each = tuple(frozenset([i]) for i in range(len(call.operands)))
    return replace(signature(call), linear=each, zeros=each)


def _names(text: str, dotted: int) -> Group:
    """A name for every dim: its letter, or its place from the right among those that the dots stand for."""
    before, dots, after = text.partition("...")
    return Group((*before, *(str(i) for i in range(dotted if dots else 0, 0, -1)), *after), False, False)


RULES: dict[str, Rule] = {
    "aten.matmul": matmul,
    "aten.addmm": addmm,
    "aten.baddbmm": addmm,
    "aten.einsum": einsum,
    "aten._cdist_forward": distances,
    "aten.linalg_cross": cross,
}
