"""Symbolic sizes: every dim of an input that is known to vary gets a symbol of its own, and every trace its guards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from ..errors import TraceError


class Symbols:
    """The symbols of one trace, and the guards under which it is valid."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self._names: dict[sympy.Symbol, tuple[int, int]] = {}
        self._constants: dict[tuple[int, int], int] = {}
        self._count = 0

    def size(self, hint: int) -> Any:
        """A fresh symbolic size; sizes zero and one are constants."""
        if hint < 2:
            return hint
        self._count += 1
        source = ConstantSource(f"size_{self._count}")
        symbol = self.env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    def tensor(self, like: torch.Tensor, dynamic: Collection[int] = ()) -> torch.Tensor:
        """A fake tensor like a given one: same dtype, device and order of strides, symbolic sizes in dynamic dims.

        A meta tensor has no device of its own; it counts as one on the device of this trace.
        """
        device = self.device if like.device.type == "meta" else like.device
        sizes = [self.size(int(size)) if i in dynamic else int(size) for i, size in enumerate(like.shape)]
        order = _stride_order(like)
        with self.mode, torch.no_grad():
            fake = torch.empty([sizes[i] for i in order], dtype=like.dtype, device=device)
            if list(order) != list(range(like.dim())):
                fake = fake.permute([order.index(i) for i in range(like.dim())])
        return fake

    def bind(self, position: int, fake: torch.Tensor) -> None:
        """Note that a symbol's value is to be read off this dim of this input at run time."""
        for dim, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):  # type: ignore[unreachable]
                self._names[size.node._expr] = (position, dim)  # type: ignore[unreachable]
            else:
                self._constants[position, dim] = int(size)

    def guards(self) -> Guards:
        """The conditions on input sizes under which the trace holds, sizes that are constants in it included.

        Raises TraceError if a condition depends on data.
        """
        free: set[sympy.Symbol] = set()
        conditions = [guard.expr for guard in self.env.guards]
        for condition in conditions:
            free |= condition.free_symbols
        bound = sorted((symbol for symbol in free if symbol in self._names), key=str)
        if any(self.env.is_unbacked_symint(symbol) for symbol in free):
            raise TraceError("a branch depends on a tensor's value; compute it outside of the block")
        usable = [c for c in conditions if c.free_symbols <= set(bound) and c is not sympy.true]
        return Guards(tuple(self._names[symbol] for symbol in bound), tuple(map(str, bound)), usable, self._constants)


class Guards:
    """A check of input sizes, compiled once."""

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        names: Sequence[str],
        conditions: Sequence[sympy.Basic],
        constants: Mapping[tuple[int, int], int],
    ) -> None:
        self.places = tuple(places)
        self.constants = dict(constants)
        self.text = " and ".join(f"({_python(condition)})" for condition in conditions) or "True"
        code = f"lambda {', '.join(names)}: {self.text}"
        self._check = eval(code, {"floor_div": lambda a, b: a // b, "mod": lambda a, b: a % b, "Max": max, "Min": min})

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Returns if the sizes of these inputs satisfy every condition."""
        for (position, dim), size in self.constants.items():
            if tensors[position].shape[dim] != size:
                return False
        return bool(self._check(*(tensors[position].shape[dim] for position, dim in self.places)))


def _python(condition: sympy.Basic) -> str:
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(condition))


def _stride_order(tensor: torch.Tensor) -> list[int]:
    """Dims from the largest stride to the smallest, in place where they do not decide (size one, expanded)."""
    strides = [int(stride) for stride in tensor.stride()] if tensor.layout is torch.strided else []
    if not strides or any(s == 0 for s in strides) or tensor.is_contiguous():
        return list(range(tensor.dim()))
    return sorted(range(tensor.dim()), key=lambda i: -strides[i])
