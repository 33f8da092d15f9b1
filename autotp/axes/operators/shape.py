"""Views: the elements stay, their dims are renamed."""

from __future__ import annotations

from ..call import Call
from ..facts import Fact
from ..record import Operator, Rule
from ..term import ONE, Product, Term, axis


def view(call: Call) -> Fact:
    """view, reshape, flatten, unflatten: the product of the dims before is the product of the dims after."""
    before, after = call.dims(call.get("self")), call.fresh(call.shape())
    call.reshape(before, after)
    if call.get("dtype") is not None:  # the bits of the elements as other numbers
        return call.fact(after, zeros=[[0]])
    return call.layout_fact(after)


def view_as(call: Call) -> Fact:
    """Like view, with the sizes (and so the axes) of a second operand."""
    after = call.dims(call.get("other"))
    call.reshape(call.dims(call.get("self")), after)
    return call.fact(after, linear=[[0]], zeros=[[0]])


def transpose(call: Call) -> Fact:
    dims = list(call.dims(call.get("self")))
    first, second = (call.dim(call.get(name), len(dims)) for name in ("dim0", "dim1"))
    dims[first], dims[second] = dims[second], dims[first]
    return call.layout_fact(tuple(dims))


def reverse(call: Call) -> Fact:
    """t, numpy_T, mT on a matrix."""
    return call.layout_fact(tuple(reversed(call.dims(call.get("self")))))


def permute(call: Call) -> Fact:
    dims = call.dims(call.get("self"))
    return call.layout_fact(tuple(dims[i] for i in call.dim_list(call.get("dims"), len(dims))))


def unsqueeze(call: Call) -> Fact:
    dims = list(call.dims(call.get("self")))
    dims.insert(call.dim(call.get("dim"), len(dims) + 1), ONE)
    return call.layout_fact(tuple(dims))


def squeeze(call: Call) -> Fact:
    dims = call.dims(call.get("self"))
    asked = [] if call.get("dim") == [] else call.dim_list(call.get("dim"), len(dims))
    drop = {i for i in asked if dims[i].size == 1}
    return call.layout_fact(tuple(dim for i, dim in enumerate(dims) if i not in drop))


def expand(call: Call) -> Fact:
    """A dim of size one becomes any size: an axis created here, along which all values are equal."""
    before, sizes = call.dims(call.get("self")), call.shape()
    offset = len(sizes) - len(before)
    after: list[Term] = [axis(size) for size in sizes]
    created = []
    for i, size in enumerate(sizes):
        if i >= offset and before[i - offset].size == size:
            after[i] = before[i - offset]
        else:
            created.append(after[i])
    return call.layout_fact(tuple(after), creates=created)


def expand_as(call: Call) -> Fact:
    """Like expand, with the sizes (and so the axes) of a second operand."""
    before, like = call.dims(call.get("self")), call.dims(call.get("other"))
    joint = call.broadcast([before, like], len(like))
    return call.fact(joint, linear=[[0]], zeros=[[0]])


def repeat_interleave(call: Call) -> Fact:
    """Every element n times in a row: the dim becomes (dim · n), n created here."""
    repeats = call.get("repeats")
    if not isinstance(repeats, int) or call.get("dim") is None:
        fresh = call.fresh(call.shape())
        call.pin([*fresh, *(dim for operand in call.operands for dim in call.dims(operand))], "the repeats are data")
        return call.fact(fresh)
    dims = list(call.dims(call.get("self")))
    position = call.dim(call.get("dim"), len(dims))
    copies = axis(repeats)
    dims[position] = Product((dims[position], copies))
    return call.layout_fact(tuple(dims), creates=[copies])


def repeat(call: Call) -> Fact:
    """The whole dim n times: the dim becomes (n · dim), n created here."""
    dims, after = call.dims(call.get("self")), call.shape()
    dims = (ONE,) * (len(after) - len(dims)) + dims
    # Of nothing there are as many copies as one likes.
    copies = [axis(size // dim.size if dim.size else 1) for size, dim in zip(after, dims, strict=True)]
    return call.layout_fact(tuple(Product((copy, dim)) for copy, dim in zip(copies, dims, strict=True)), creates=copies)


def paired(call: Call) -> Fact:
    """view_as_complex: the last dim, of size two, becomes one number."""
    dims = call.dims(call.get("self"))
    call.pin(dims[-1:], "it holds the two parts of a complex number")
    return call.layout_fact(dims[:-1])


def unpaired(call: Call) -> Fact:
    """view_as_real: one complex number becomes a dim of size two."""
    parts = call.fresh([2])
    call.pin(parts, "it holds the two parts of a complex number")
    return call.layout_fact((*call.dims(call.get("self")), *parts))


def flip(call: Call) -> Fact:
    """flip and roll move elements along a dim, which must be whole for it."""
    dims = call.dims(call.get("self"))
    call.pin([dims[i] for i in call.dim_list(call.get("dims"), len(dims))], "it moves elements along this dimension")
    return call.layout_fact(dims)


def triangle(call: Call) -> Fact:
    """tril and triu: where an element stands in the last two dims says whether it is kept."""
    dims = call.dims(call.get("self"))
    call.pin(dims[-2:], "it keeps what is on one side of a diagonal of this dimension")
    return call.layout_fact(dims)


def unfold(call: Call) -> Fact:
    """Windows along a dim, as a dim of their own behind all others."""
    dims, after = call.dims(call.get("self")), call.shape()
    position = call.dim(call.get("dimension"), len(dims))
    count, window = call.fresh([after[position], after[-1]])
    call.pin([dims[position], count, window], "a window slides along this dimension")
    return call.layout_fact((*dims[:position], count, *dims[position + 1 :], window))


def diagonal(call: Call) -> Fact:
    """What stands on a diagonal of two dims becomes one dim, behind all others."""
    dims = call.dims(call.get("self"))
    both = [call.dim(call.get(name), len(dims)) for name in ("dim1", "dim2")]
    (along,) = call.fresh(call.shape()[-1:])
    call.pin([*(dims[i] for i in both), along], _DIAGONAL)
    return call.layout_fact((*(dim for i, dim in enumerate(dims) if i not in both), along))


def diag_embed(call: Call) -> Fact:
    """The last dim becomes a diagonal of two dims, zero elsewhere."""
    dims, after = call.dims(call.get("self")), call.shape()
    both = [call.dim(call.get(name), len(after)) for name in ("dim1", "dim2")]
    square = dict(zip(both, call.fresh(after[i] for i in both), strict=True))
    call.pin([dims[-1], *square.values()], _DIAGONAL)
    others = iter(dims[:-1])
    return call.layout_fact(tuple(square[i] if i in square else next(others) for i in range(len(after))))


_DIAGONAL = "it has a diagonal along this dimension"
RULES: dict[str, Rule] = {
    "aten.view": Operator(view, local="sizes", argument="size", view=True),
    "aten.reshape": Operator(view, local="sizes", argument="shape"),
    "aten._unsafe_view": Operator(view, local="sizes", argument="size"),
    "aten.flatten": view,
    "aten.unflatten": Operator(view, local="unflatten"),
    "aten.view_as": view_as,
    "aten.reshape_as": view_as,
    "aten.transpose": Operator(transpose, view=True),
    "aten.t": reverse,
    "aten.numpy_T": reverse,
    "aten.permute": Operator(permute, view=True),
    "aten.unsqueeze": Operator(unsqueeze, view=True),
    "aten.squeeze": Operator(squeeze, local="squeeze", view=True),
    "aten.expand": Operator(expand, local="sizes", argument="size"),
    "aten.broadcast_to": Operator(expand, local="sizes", argument="size"),
    "aten.view_as_complex": paired,
    "aten.view_as_real": unpaired,
    "aten.expand_as": expand_as,
    "aten.repeat_interleave": Operator(repeat_interleave, local="repeat"),
    "aten.repeat": Operator(repeat, local="repeats", argument="repeats"),
    "aten.tile": Operator(repeat, local="repeats", argument="dims"),
    "aten.unfold": Operator(unfold, view=True),
    "aten.diagonal": Operator(diagonal, view=True),
    "aten.diag_embed": diag_embed,
    "aten.flip": flip,
    "aten.roll": flip,
    "aten.tril": triangle,
    "aten.triu": triangle,
}
