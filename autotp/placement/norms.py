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
from ..axes.facts import Fact
from ..axes.layout import Cuts
from ..axes.operators.collect import collect
from ..axes.rules import operator_rules, rule_for
from ..axes.sizes import Sizes
from .placed import say
from .typed import TypedGraph, cut_in

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node

_WHY = "a norm over a cut dimension is written out: each rank has a part of its statistics"
_WHY_RUNNING = "each rank has the statistics of its own channels: they are gathered into the running ones"


def write_out_norms(typed: TypedGraph, cuts: Cuts) -> None:
    """`rms_norm` and `layer_norm` that are cut along what they normalise become operators that sum, and others that do not."""
    for node in [node for node in typed.graph.nodes if node.target in _WRITTEN]:
        if not cut_in(typed.contracted(node), cuts):
            continue
        with typed.graph.inserting_before(node):
            writer = _Writer(typed, cuts)
            result = writer.converted(_WRITTEN[node.target](writer, named_arguments(node)), node.meta["val"].dtype)
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
            wide = write.converted(value, get_computation_dtype(value.meta["val"].dtype))
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

    def converted(self, value: Node, dtype: torch.dtype) -> Node:
        return value if value.meta["val"].dtype == dtype else self(aten.to.dtype, value, dtype)

    def read(self, named: dict[str, Any]) -> tuple[Node, list[int]]:
        """What is normalised, in the type that it is computed in (halves as floats), and along which dims."""
        value = named["input"]
        wide = self.converted(value, get_computation_dtype(value.meta["val"].dtype))
        return wide, list(range(-len(named["normalized_shape"]), 0))

    def scaled(self, value: Node, by: Node, named: dict[str, Any]) -> Node:
        """A value times the reciprocal of its size, then the norm's own scale and shift."""
        result = self(aten.mul.Tensor, value, by)
        if is_tensor(named["weight"]):
            result = self(aten.mul.Tensor, result, named["weight"])
        if is_tensor(named.get("bias")):
            result = self(aten.add.Tensor, result, named["bias"])
        return result

    def reciprocal(self, value: Node, over: list[int], eps: float) -> Node:
        """One by the root of the mean square."""
        mean = self(aten.mean.dim, self(aten.mul.Tensor, value, value), over, True)
        return self(aten.rsqrt.default, self(aten.add.Scalar, mean, eps))

    def is_padded(self, value: Node) -> bool:
        return any(self.cuts[axis].padded != axis.size for axis in cut_in(self.typed.axes(value), self.cuts))

    def whole_ones(self, like: Node, shape: list[int]) -> Node:
        """Ones for the normalised dims that every rank makes whole, so that its slice of them has zeros for padding."""
        return self._put(aten.new_ones.default, (like, shape), Fact((self.typed.facts[like].dims[-len(shape) :],)))


def _rms_norm(write: _Writer, named: dict[str, Any]) -> Node:
    """x / sqrt(mean(x²) + eps) · weight, as `torch.nn.functional.rms_norm` computes it."""
    wide, over = write.read(named)
    eps = torch.finfo(wide.meta["val"].dtype).eps if named["eps"] is None else named["eps"]
    return write.scaled(wide, write.reciprocal(wide, over, eps), named)


def _layer_norm(write: _Writer, named: dict[str, Any]) -> Node:
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) · weight + bias, as `torch.nn.functional.layer_norm` computes it.

    Where a slice is padded, less the mean its padding is no longer zero: it is made so again.
    """
    wide, over = write.read(named)
    centred = write(aten.sub.Tensor, wide, write(aten.mean.dim, wide, over, True))
    if write.is_padded(centred):
        centred = write(aten.mul.Tensor, centred, write.whole_ones(wide, named["normalized_shape"]))
    return write.scaled(centred, write.reciprocal(centred, over, named["eps"]), named)


_WRITTEN = {aten.rms_norm.default: _rms_norm, aten.layer_norm.default: _layer_norm}
