"""Fused norms over a cut dim are written out: their statistics are small sums over the ranks, all else is element-wise.

So is what a norm over the batch writes of its statistics, where its channels are cut: each rank has those of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch._prims_common import get_computation_dtype

from ..axes.annotation import annotate, annotation
from ..axes.call import Call, is_tensor, named_arguments
from ..axes.facts import Fact, Local
from ..axes.layout import Cuts
from ..axes.operators.collect import collect
from ..axes.rules import operator_rules, rule_for
from ..axes.sizes import Sizes
from ..axes.term import ONE, Dims, axes_of
from .placed import say
from .typed import TypedGraph, cut_in

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node

_WHY = "a norm over a cut dimension is written out: each rank has a part of its statistics"
_WHY_RUNNING = "each rank has the statistics of its own channels: they are gathered into the running ones"


def write_out_norms(typed: TypedGraph, cuts: Cuts) -> None:
    """Norms that are cut along what they normalise become operators that sum, and others that do not."""
    for node in [node for node in typed.graph.nodes if node.target in _WRITTEN]:
        if not cut_in(typed.contracted(node), cuts):
            continue
        with typed.graph.inserting_before(node):
            writer = _Writer(typed, cuts)
            result = writer.converted(
                _WRITTEN[node.target](writer, named_arguments(node), typed.facts[node]), node.meta["val"].dtype
            )
        result.meta = {**node.meta, **result.meta}
        typed.replace_uses(node, result)
        del typed.facts[node]
        typed.graph.erase_node(node)


def write_out_running_statistics(typed: TypedGraph, cuts: Cuts) -> None:
    """`batch_norm` over cut channels in training writes no running statistics: operators before it do, with all ranks' own.

    new = (1 - momentum) · running + momentum · own, the variance without bias, as `torch.nn.functional.batch_norm` has it.
    """
    for node in [node for node in typed.graph.nodes if node.target is aten.batch_norm.default]:
        named = named_arguments(node)
        running = [named["running_mean"], named["running_var"]]
        if not (named["training"] and is_tensor(running[0]) and cut_in(typed.axes(node), cuts)):
            continue
        with typed.graph.inserting_before(node):
            write, momentum = _Writer(typed, cuts, _WHY_RUNNING), named["momentum"]
            value = write(aten.detach.default, named["input"])
            wide = write.wide(value)
            over = [0, *range(2, wide.meta["val"].dim())]
            own = [write(aten.mean.dim, wide, over), write(aten.var.dim, wide, over)]
            every = [write(collect, statistic) for statistic in own]  # before anything is written, so in one call
            for state, new in zip(running, every, strict=True):
                old = write.converted(state, wide.meta["val"].dtype)
                kept, added = write(aten.mul.Scalar, old, 1 - momentum), write(aten.mul.Scalar, new, momentum)
                write.state(state, write.converted(write(aten.add.Tensor, kept, added), state.meta["val"].dtype))
        node.args = tuple(None if name in ("running_mean", "running_var") else value for name, value in named.items())
        node.kwargs = {}
        left = [i for i, operand in enumerate(typed.facts[node].operands) if operand not in running]
        typed.facts[node] = _of_operands(typed.facts[node], left)


def _of_operands(fact: Fact, left: list[int]) -> Fact:
    """The same fact with some of its operands; it claims nothing of the others."""
    zeros = tuple(frozenset(map(left.index, group)) for group in fact.zeros)
    return replace(fact, operands=tuple(fact.operands[i] for i in left), zeros=zeros)


class _Writer:
    """Puts operators of torch's own into a typed graph; each has the dims that its rule gives it."""

    def __init__(self, typed: TypedGraph, cuts: Cuts, why: str = _WHY) -> None:
        self.typed, self.cuts, self.why = typed, cuts, why

    def __call__(self, target: Any, *args: Any) -> Node:
        return self._put(target, args)

    def _put(self, target: Any, args: tuple[Any, ...], fact: Fact | None = None) -> Node:
        node = self.typed.graph.call_function(target, args)
        values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
        node.meta["val"] = target(*values)
        say(node, made=self.why)
        call = Call(node, self.typed.facts, Sizes())
        self.typed.facts[node] = rule_for(call, operator_rules())(call) if fact is None else fact
        return node

    def state(self, state: Node, value: Node) -> None:
        """Write a value into a buffer, and so into all that shares its memory."""
        shared = next((w for n in self.typed.graph.nodes if state in (w := annotation(n).writes or ())), (state,))
        written = self(aten.copy_.default, state, value)
        annotate(written, writes=shared)

    def moved(self, target: Any, value: Node, args: tuple[Any, ...], dims: Dims, local: Local = "") -> Node:
        """A view of a value, whose dims are known: a rule would have names of its own for them."""
        linear = (frozenset([0]),)
        return self._put(target, (value, *args), Fact((dims,), (value,), linear=linear, zeros=linear, local=local))

    def converted(self, value: Node, dtype: torch.dtype) -> Node:
        return value if value.meta["val"].dtype == dtype else self(aten.to.dtype, value, dtype)

    def wide(self, value: Node) -> Node:
        """What is normalised, in the type that it is computed in (halves as floats)."""
        return self.converted(value, get_computation_dtype(value.meta["val"].dtype))

    def beside_places(self, value: Any, places: int) -> Any:
        """One number for each channel, if there are any, with so many dims behind."""
        for _ in range(places if is_tensor(value) else 0):
            value = self(aten.unsqueeze.default, value, -1)
        return value

    def normalised(self, value: Node, over: list[int], eps: float) -> Node:
        """A value by the root of its mean square."""
        mean = self(aten.mean.dim, self(aten.mul.Tensor, value, value), over, True)
        return self(aten.mul.Tensor, value, self(aten.rsqrt.default, self(aten.add.Scalar, mean, eps)))

    def centred(self, value: Node, over: list[int]) -> Node:
        """A value less its mean. Where a slice is padded, its padding is no longer zero by that: it is made so again."""
        less = self(aten.sub.Tensor, value, self(aten.mean.dim, value, over, True))
        dims = self.typed.facts[value].dims[over[0] :]
        padded = [any(self.cuts[axis].padded != axis.size for axis in cut_in(set(axes_of(d)), self.cuts)) for d in dims]
        if not any(padded):
            return less
        # Ones that every rank makes whole, so that its slice of them has zeros for padding.
        shape = [dim.size if is_padded else 1 for dim, is_padded in zip(dims, padded, strict=True)]
        kept = tuple(dim if is_padded else ONE for dim, is_padded in zip(dims, padded, strict=True))
        ones = self._put(aten.new_ones.default, (value, shape), Fact((kept,)))
        return self(aten.mul.Tensor, less, ones)

    def scaled(self, value: Node, scale: Any, shift: Any) -> Node:
        """A value times the norm's own scale, plus its shift, where it has them."""
        value = self(aten.mul.Tensor, value, scale) if is_tensor(scale) else value
        return self(aten.add.Tensor, value, shift) if is_tensor(shift) else value


def _rms_norm(write: _Writer, named: dict[str, Any], _: Fact) -> Node:
    """x / sqrt(mean(x²) + eps) · weight, as `torch.nn.functional.rms_norm` computes it."""
    wide, over = write.wide(named["input"]), _last(named)
    eps = torch.finfo(wide.meta["val"].dtype).eps if named["eps"] is None else named["eps"]
    return write.scaled(write.normalised(wide, over, eps), named["weight"], None)


def _layer_norm(write: _Writer, named: dict[str, Any], _: Fact) -> Node:
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) · weight + bias, as `torch.nn.functional.layer_norm` computes it."""
    over = _last(named)
    centred = write.centred(write.wide(named["input"]), over)
    return write.scaled(write.normalised(centred, over, named["eps"]), named["weight"], named["bias"])


def _last(named: dict[str, Any]) -> list[int]:
    rank, count = named["input"].meta["val"].dim(), len(named["normalized_shape"])
    return list(range(rank - count, rank))


def _group_norm(write: _Writer, named: dict[str, Any], fact: Fact) -> Node:
    """The same over the channels of each group and all places, as `torch.nn.functional.group_norm` computes it."""
    wide, count, (inner,) = write.wide(named["input"]), named["num_groups"], fact.contracts
    assert fact.counts is not None
    batch, channels, *places = fact.dims
    grouped = (batch, fact.counts, inner, *places)
    apart = write.moved(aten.unflatten.int, wide, (1, [count, inner.size]), grouped, "unflatten")
    over = list(range(2, len(fact.dims) + 1))
    normal = write.normalised(write.centred(apart, over), over, named["eps"])
    joined = write.moved(aten.flatten.using_ints, normal, (1, 2), (batch, channels, *places))
    return write.scaled(joined, *(write.beside_places(named[name], len(places)) for name in ("weight", "bias")))


def _length(write: _Writer, named: dict[str, Any], _: Fact) -> Node:
    """The root of the sum of squares, as `torch.linalg.vector_norm` computes it: the gradient is zero where all are."""
    wide, rank = write.wide(named["self"]), named["self"].meta["val"].dim()
    over = list(range(rank)) if named["dim"] is None else named["dim"]
    total = write(aten.sum.dim_IntList, write(aten.mul.Tensor, wide, wide), over, named["keepdim"])
    nothing = write(aten.eq.Scalar, total, 0)
    root = write(aten.sqrt.default, write(aten.masked_fill.Scalar, total, nothing, 1))
    return write(aten.masked_fill.Scalar, root, nothing, 0)


_WRITTEN = {
    aten.linalg_vector_norm.default: _length,
    aten.rms_norm.default: _rms_norm,
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
}
