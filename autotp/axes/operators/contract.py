"""Contractions whose shape depends on their arguments."""

from __future__ import annotations

from ..call import Call
from ..facts import Fact
from ..signature import parse_signature
from ..term import Dims, Term, axis


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


def einsum(call: Call) -> Fact:
    """The equation is the signature."""
    left, right = call.get("equation").replace(" ", "").split("->")
    spaced = ", ".join(" ".join(group.replace("...", ".")) for group in [*left.split(",")])
    text = f"{spaced} -> {' '.join(right.replace('...', '.'))}".replace(".", "...")
    return parse_signature(text)(call)


def convolution(call: Call) -> Fact:
    """conv1d, conv2d: channels are contracted, or, depthwise, kept; the places stay whole."""
    source, kernel = call.dims(call.get("input")), call.dims(call.get("weight"))
    shape, groups = call.shape(), call.get("groups", 1)
    call.pin([*source[2:], *kernel[2:]], "a window slides along this dimension")
    contracted: list[Term] = []
    if groups == 1:
        call.equal(source[1], kernel[1])
        contracted = [source[1]]
    elif groups == source[1].size == kernel[0].size:
        call.equal(source[1], kernel[0])
    else:
        call.pin([source[1], kernel[0], kernel[1]], "its channels are in groups")
    if call.get("bias") is not None:
        call.equal(call.dims(call.get("bias"))[0], kernel[0])
    places = tuple(axis(size) for size in shape[2:])
    call.pin(places, "a window slides along this dimension")
    bias = list(range(2, len(call.operands)))
    return call.fact(
        (source[0], kernel[0], *places),
        contracts=contracted,
        linear=[] if bias else [[0], [1]],
        zeros=[[0, *bias], [1, *bias]],
    )


RULES = {
    "aten.matmul": matmul,
    "aten.addmm": addmm,
    "aten.baddbmm": addmm,
    "aten.einsum": einsum,
    "aten.conv1d": convolution,
    "aten.conv2d": convolution,
    "aten.conv3d": convolution,
}
