"""Parallel layers: what a rank holds of a linear layer or a table. The collectives around them are nodes of the program, which
calls `local_forward`. Their `forward` is the dense layer's, which anybody else calls: it reads whole weights.

A layer takes the place of the dense one by changing its class, so its name, its hooks and its identity stay. The new
class is one of both kinds: whoever asks is told that a linear layer is one, of the whole's sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..axes.layout import Layout, factors_of, is_even, is_padded, ordered, parts_of
from .collectives import gather, lookup, reduce
from .products import linear
from .ranks import Ranks
from .slices import keep_padding_zero


class ParallelLayer(nn.Module):
    """Shared by all parallel layers: the layouts of the parameters and this rank's place.

    `transposed` layers keep their weight as (in, out), the others as (out, in). `apart` says that no other rank holds any of
    this part of the weight, and so computes anything that must be equal to the bit.
    """

    ranks: Ranks
    layouts: dict[str, Sequence[Layout]]
    padded: frozenset[str]
    transposed: bool
    apart: bool

    @staticmethod
    def become(
        module: nn.Module, kind: type[ParallelLayer], ranks: Ranks, layouts: dict[str, Sequence[Layout]]
    ) -> None:
        """Turn a dense layer into a parallel one, in place."""
        module.__class__ = _both(kind, type(module))
        padded = frozenset(name for name, own in layouts.items() if any(map(is_padded, own)))
        transposed = module.__dict__.get("transposed", False)
        apart = _is_apart(layouts.get("weight", ()), ranks.size)
        module.__dict__.update(ranks=ranks, layouts=layouts, padded=padded, transposed=transposed, apart=apart)

    @staticmethod
    def undo(module: nn.Module) -> None:
        """Give a layer its dense class back; its parameters stay this rank's."""
        if isinstance(module, ParallelLayer):
            module.__class__ = _dense(type(module))
            for name in ("ranks", "layouts", "padded", "transposed", "apart"):
                del module.__dict__[name]

    def local(self, name: str) -> torch.Tensor | None:
        """A parameter as it enters the computation: the padding gets no gradient."""
        parameter = self._parameters.get(name)
        if parameter is None or name not in self.padded:
            return parameter
        return keep_padding_zero(parameter, self.layouts[name], self.ranks.rank)

    def product(self, value: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The value times the weight, plus the bias."""
        weight = self.local("weight")
        assert weight is not None
        if self.transposed:
            weight = weight.t()
        return (linear if self.apart else torch.nn.functional.linear)(value, weight, bias)

    def extra_repr(self) -> str:
        weight = getattr(self, "weight", None)
        held = tuple(weight.shape) if isinstance(weight, torch.Tensor) else ()
        layouts = ", ".join(str(layout) for layout in self.layouts.get("weight", ()))
        return f"local={held}, weight=[{layouts}], rank={self.ranks.rank} of {self.ranks.size}"


def _is_apart(layouts: Sequence[Layout], size: int) -> bool:
    over = frozenset(factor for layout in layouts for factor in factors_of(layout))
    return parts_of(ordered(over)) == size and all(is_even(layout) for layout in layouts if factors_of(layout))


# The attribute of a made class that names the dense one, which is the one that a model's code knows.
DENSE_CLASS = "_autotp_dense_class"
_made: dict[tuple[type, type], type[ParallelLayer]] = {}


def _both(kind: type[ParallelLayer], dense: type[nn.Module]) -> type[ParallelLayer]:
    """The class of what is both, always the same one."""
    if (kind, dense) not in _made:
        _made[kind, dense] = type(kind.__name__, (kind, dense), {"__module__": kind.__module__, DENSE_CLASS: dense})
    return _made[kind, dense]


def _dense(kind: type) -> type:
    """The dense class of a made one. A class that somebody derived from a made one, as parametrizations do, is derived again."""
    if kind in _made.values():
        return kind.__bases__[1]
    bases = tuple(_dense(base) if issubclass(base, ParallelLayer) else base for base in kind.__bases__)
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__", DENSE_CLASS)}
    return type(kind)(kind.__name__, bases, own)


class ColumnParallelLinear(ParallelLayer):
    """Holds some of the outputs; the input is whole, the output this rank's slice."""

    def local_forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.product(value, self.local("bias"))


class RowParallelLinear(ParallelLayer):
    """Holds some of the inputs; the input is this rank's slice, the output a partial sum without the bias.

    The program reduces the sum, together with others where it can, and adds the bias once after that.
    """

    def local_forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.product(value)


class VocabParallelEmbedding(ParallelLayer):
    """Holds some of the rows; gives whole vectors, at one all-reduce."""

    def local_forward(self, indices: torch.Tensor) -> torch.Tensor:
        weight, rows = self.local("weight"), self.layouts["weight"][0]
        assert weight is not None
        return reduce(lookup(weight, indices, self.ranks, rows), self.ranks, rows.cut.over)  # type: ignore[union-attr]


class VocabParallelHead(ColumnParallelLinear):
    """Holds some of the outputs and gathers them: whole logits on every rank, at one all-gather."""

    def local_forward(self, value: torch.Tensor) -> torch.Tensor:
        outputs = self.layouts["weight"][1 if self.transposed else 0]
        over = ordered(frozenset(outputs.cut.over))  # type: ignore[union-attr]
        return gather(super().local_forward(value), self.ranks, over, value.dim() - 1, outputs)
