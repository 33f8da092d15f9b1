"""Convolutions and what else moves over places: channels are axes, the places themselves stay whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..call import Call
from ..facts import Fact
from ..record import Operator, Rule
from ..term import Dims, Product, Term

_WINDOW = "a window slides along this dimension"


def convolution(call: Call) -> Fact:
    """conv1d, conv2d, conv3d: a group of channels is made of a group of channels, which are summed over."""
    return _of_groups(call, transposed=False)


def transposed(call: Call) -> Fact:
    """conv_transpose1d, 2d, 3d: the same, with a kernel whose first dim is that of the input's channels."""
    return _of_groups(call, transposed=True)


def _of_groups(call: Call, *, transposed: bool) -> Fact:
    source, kernel = call.dims(call.get("input")), call.dims(call.get("weight"))
    channel, count = len(source) - len(kernel) + 1, call.get("groups", 1)
    (groups,) = call.fresh([count])
    inner, outer = call.fresh([source[channel].size // count, call.shape()[channel] // count])
    read, made = Product((groups, inner)), Product((groups, outer))
    call.equal(source[channel], read)
    for dim, term in zip(kernel, (read, outer) if transposed else (made, inner), strict=False):
        call.equal(dim, term)
    bias = call.get("bias")
    if bias is not None:
        call.equal(call.dims(bias)[0], made)
    places = call.fresh(call.shape()[channel + 1 :])
    call.pin([*source[channel + 1 :], *kernel[2:], *places], _WINDOW)
    added = [] if bias is None else [2]
    fact = call.fact(
        (*source[:channel], made, *places),
        contracts=[inner] if inner.size > 1 else [],
        linear=[] if added else [[0], [1]],
        zeros=[[0, *added], [1, *added]],
        counts=groups,
    )
    return replace(fact, brought=channel - len(source))


def over_places(dims: int, *, linear: bool) -> Callable[[Call], Fact]:
    """Pooling and resizing over the last dims, each channel by itself."""

    def rule(call: Call) -> Fact:
        name = "input" if "input" in call.arguments else "self"
        source = call.dims(call.get(name))
        value = call.node.meta["val"]
        several = isinstance(value, (list, tuple))
        kept = len(source) - dims
        places = call.fresh(call.shape(0 if several else None)[kept:])
        call.pin([*source[kept:], *places], _WINDOW)
        result = (*source[:kept], *places)
        if several:  # beside the values, their places
            return replace(call.fact(result, result, zeros=[[0]]), zero_results=1)
        return call.fact(result, linear=[[0]] if linear else [], zeros=[[0]])

    return rule


def shuffled(call: Call) -> Fact:
    """pixel_shuffle: a channel's factors become factors of both places."""
    source, factor = call.dims(call.get("self")), call.get("upscale_factor")
    *leading, channels, rows, columns = source
    (kept, down, across) = call.fresh([channels.size // factor**2, factor, factor])
    call.equal(channels, Product((kept, down, across)))
    call.pin([down, across], "it becomes a part of a place")
    return call.fact((*leading, kept, Product((rows, down)), Product((columns, across))), linear=[[0]], zeros=[[0]])


def unshuffled(call: Call) -> Fact:
    """pixel_unshuffle: factors of both places become factors of a channel."""
    source, factor = call.dims(call.get("self")), call.get("downscale_factor")
    *leading, channels, rows, columns = source
    made: list[Term] = []
    for place in (rows, columns):
        far, near = call.fresh([place.size // factor, factor])
        call.equal(place, Product((far, near)))
        call.pin([near], "it becomes a part of a channel")
        made += [far, near]
    high, down, wide, across = made
    return call.fact((*leading, Product((channels, down, across)), high, wide), linear=[[0]], zeros=[[0]])


def group_normalised(call: Call) -> Fact:
    """group_norm: the groups are free, the statistics are sums over the channels of each (see `placement/norms.py`)."""
    source, count = call.dims(call.get("input")), call.get("num_groups")
    return _normalised(call, source, count)


def instance_normalised(call: Call) -> Fact:
    """instance_norm: each channel has statistics of its own. Running ones are written into, all at once."""
    source = call.dims(call.get("input"))
    if call.get("running_mean") is not None:
        return pinned(call)
    return _normalised(call, source, source[1].size)


def _normalised(call: Call, source: Dims, count: int) -> Fact:
    groups, inner = call.fresh([count, source[1].size // count])
    call.equal(source[1], Product((groups, inner)))
    call.pin(source[2:], "its statistics need it whole")
    parameters = [call.dims(call.get(name)) for name in ("weight", "bias") if call.get(name) is not None]
    for (dim,) in parameters:
        call.equal(dim, source[1])
    scale = call.operands.index(call.get("weight")) if call.get("weight") is not None else 0
    shift = [call.operands.index(call.get("bias"))] if call.get("bias") is not None else []
    if not call.get("eps"):
        call.pin([groups], "zeros have no finite norm without an eps")
    return call.fact(source, contracts=[inner], zeros=[[0, *shift], [scale, *shift]], counts=groups)


def batch_normalised(call: Call) -> Fact:
    """batch_norm: each channel has statistics of its own, of the whole batch, or those that it is given.

    What it writes of them it writes into whole buffers, which it does not read then (see `placement/norms.py`).
    """
    source, running = call.dims(call.get("input")), call.get("running_mean") is not None
    own = call.get("training") or not running
    used = [name for name in ("weight", "bias") if call.get(name) is not None]
    used += ["running_mean", "running_var"] if not own else []
    for name in used:
        call.equal(call.dims(call.get(name))[0], source[1])
    if own:
        call.pin([source[0], *source[2:]], "its statistics need it whole")
        written = [call.dims(call.get(name))[0] for name in ("running_mean", "running_var") if running]
        call.pin(written, "its running statistics are written whole")
    if not call.get("eps") or (running and not isinstance(call.get("momentum"), float)):
        call.pin([source[1]], "its momentum is not known, or its eps is zero")
    place = {name: call.operands.index(call.get(name)) for name in used}
    shift = [place["bias"]] if "bias" in place else []
    mean = [place["running_mean"]] if "running_mean" in place else []
    scaled = [[place["weight"], *shift]] if "weight" in place else []
    return call.fact(source, zeros=[[0, *mean, *shift], *scaled])


def pinned(call: Call) -> Fact:
    """An instance_norm that writes its running statistics: all of it is whole."""
    for operand in call.operands:
        call.pin(call.dims(operand), "its statistics need it whole")
    return call.fact(call.dims(call.get("input")))


def shuffled_channels(call: Call) -> Fact:
    """channel_shuffle: groups of channels become channels of groups."""
    source, count = call.dims(call.get("self")), call.get("groups")
    groups, inner = call.fresh([count, source[1].size // count])
    call.equal(source[1], Product((groups, inner)))
    result = (source[0], Product((inner, groups)), *source[2:])
    return call.fact(result, linear=[[0]], zeros=[[0]], counts=groups)


def bent(call: Call) -> Fact:
    """prelu: negative numbers times a factor, which each channel has for itself, or all have together."""
    source, (factors,) = call.dims(call.get("self")), call.dims(call.get("weight"))
    if len(source) > 1 and factors.size == source[1].size:
        call.equal(factors, source[1])
    else:
        call.pin([factors], "all channels have this factor")
    return call.fact(source, zeros=[[0]])


def windows(call: Call) -> Fact:
    """im2col (unfold): each channel's window becomes a part of the channel; places are counted in one dim."""
    *leading, channels, rows, columns = call.dims(call.get("self"))
    inside, places = call.fresh([call.shape()[-2] // channels.size, call.shape()[-1]])
    call.pin([rows, columns, inside, places], _WINDOW)
    return call.fact((*leading, Product((channels, inside)), places), linear=[[0]], zeros=[[0]])


def from_windows(call: Call) -> Fact:
    """col2im (fold): the reverse, where windows meet they are summed."""
    *leading, read, places = call.dims(call.get("self"))
    channels, rows, columns = call.fresh(call.shape()[-3:])
    (inside,) = call.fresh([read.size // channels.size])
    call.equal(read, Product((channels, inside)))
    call.pin([rows, columns, inside, places], _WINDOW)
    return call.fact((*leading, channels, rows, columns), linear=[[0]], zeros=[[0]])


def sampled(call: Call) -> Fact:
    """grid_sample: each channel at the places of a grid, which gives one for every place of the result."""
    (samples, channels, *places), (own, *result, coordinates) = (call.dims(operand) for operand in call.operands)
    call.equal(samples, own)
    call.pin([*places, coordinates], "it is sampled along this dimension")
    return call.fact((samples, channels, *result), linear=[[0]], zeros=[[0]])


def _named(pattern: str, numbers: str = "123") -> list[tuple[str, int]]:
    return [(f"aten.{pattern.format(number)}", int(number)) for number in numbers]


RULES: dict[str, Rule] = {
    **{name: Operator(convolution, local="count", argument="groups") for name, _ in _named("conv{}d")},
    **{name: Operator(transposed, local="count", argument="groups") for name, _ in _named("conv_transpose{}d")},
    **{
        name: over_places(dims, linear=True)
        for pattern in ("avg_pool{}d", "adaptive_avg_pool{}d", "upsample_nearest{}d", "_upsample_nearest_exact{}d")
        for name, dims in _named(pattern)
    },
    "aten.upsample_linear1d": over_places(1, linear=True),
    "aten.upsample_trilinear3d": over_places(3, linear=True),
    **{
        f"aten.{name}": over_places(2, linear=True)
        for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
    },
    **{
        name: over_places(dims, linear=False)
        for pattern in ("max_pool{}d", "max_pool{}d_with_indices", "adaptive_max_pool{}d")
        for name, dims in _named(pattern)
    },
    "aten.pixel_shuffle": shuffled,
    "aten.pixel_unshuffle": unshuffled,
    "aten.group_norm": Operator(group_normalised, local="count", argument="num_groups"),
    "aten.instance_norm": instance_normalised,
    "aten.batch_norm": batch_normalised,
    "aten.channel_shuffle": Operator(shuffled_channels, local="count", argument="groups"),
    "aten.prelu": bent,
    **dict.fromkeys(("aten.grid_sampler_2d", "aten.grid_sampler_3d"), sampled),
    "aten.im2col": windows,
    "aten.col2im": from_windows,
}
