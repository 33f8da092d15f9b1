"""Symbolic sizes: every dim of an input that is known to vary gets a symbol of its own, and every trace its guards."""

from __future__ import annotations

import ast
import builtins
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import sympy.tensor.tensor  # which the first sum of symbols imports, in the middle of a first call
import torch
from torch._dynamo.source import ConstantSource
from torch._guards import SLoc
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, ShapeEnv

from ..errors import TraceError
from .contract.laying import Layings, densely, laying_of, lies_as
from .fake import LATE, SOON, TracedFakes

# Where a value is read off at run time: (tensor, dim), or (number, None).
Place: TypeAlias = tuple[int, int | None]


class _Env(ShapeEnv):
    """Does not say from which line a symbol or a guard comes: nobody asks, and to find that out it would import torch.export with
    half of the compiler, and walk the stack for each. A symbol has the number of the name that it is made with (`size_3`),
    whatever other symbols there are."""

    def _generate_unique_id(self, source_name: str) -> int:
        kind, _, digits = source_name.rpartition("_")
        number = int(digits) if kind in ("size", "read") and digits.isdecimal() else None
        if number is None or number in self.unique_ids:
            return super()._generate_unique_id(source_name)
        self.unique_ids.add(number)
        return number

    def _get_stack_summary(self, *args: Any, **kwargs: Any) -> tuple[SLoc, str]:
        return SLoc("a trace", None), ""


class _Guessing(_Env):
    """Has one answer for every condition on data that is not there."""

    answer = True

    def evaluate_expr(self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        try:
            return super().evaluate_expr(orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            # A size is asked for its number. To sympy each symbol is a condition too.
            if isinstance(orig_expr, sympy.Symbol) or not isinstance(orig_expr, sympy.logic.boolalg.Boolean):
                raise
            return sympy.true if self.answer else sympy.false


class Symbols:
    """The symbols of one trace, and the guards under which it is valid. A run that only looks at what is `called` has few
    symbols; with `guess` every condition on data is taken as that in it."""

    def __init__(self, device: torch.device | None = None, *, called: bool = False, guess: bool | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.env = _Env()
        if guess is not None:
            self.env = _Guessing()
            self.env.answer = guess
        self.mode = TracedFakes(self.env, SOON if called else LATE)
        self.reads = set[sympy.Symbol]()  # of numbers that a program reads while it runs
        self.made: dict[sympy.Symbol, tuple[str, int]] = {}  # with which names, and what each stood for
        self._names: dict[sympy.Symbol, Place] = {}
        self._constants: dict[Place, int] = {}

    def size(self, hint: int) -> Any:
        """A fresh symbolic size; sizes zero and one are constants."""
        return hint if hint < 2 else self.named(f"size_{len(self.made) + 1}", hint)

    def named(self, name: str, hint: int) -> Any:
        """A symbolic number that is made with a name: `size_` and a number, or `read_` and a number for one that a program reads
        while it runs, for which zero and one are like any other."""
        source, is_read = ConstantSource(name), name.startswith("read_")
        manner: dict[str, Any] = {"positive": None, "do_not_specialize_zero_one": True} if is_read else {}
        symbol = self.env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, **manner)
        self.made[symbol] = name, hint
        if is_read:
            self.reads.add(symbol)
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    def tensor(self, like: torch.Tensor, dynamic: Collection[int] = (), gaps: bool = False) -> torch.Tensor:
        """A fake tensor like a given one: same dtype, device and order of strides, symbolic sizes in dynamic dims. It lies in
        memory without the gaps of the given one unless they are wanted.

        A meta tensor has no device of its own; it counts as one on the device of this trace.
        """
        device = self.device if like.device.type == "meta" else like.device
        if not dynamic and like.is_contiguous() and like.layout is torch.strided:
            return self.plain(like.shape, like.dtype, device)
        sizes = [self.size(int(size)) if i in dynamic else int(size) for i, size in enumerate(like.shape)]
        laying = laying_of(like) if gaps else densely(like)
        with self.mode, torch.no_grad():
            if gaps and not dynamic and like.layout is torch.strided:
                return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
            return laying.empty(sizes, like.dtype, device)

    def plain(self, sizes: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A contiguous fake tensor."""
        # Several times as fast as to make one in the mode.
        return FakeTensor(self.mode, torch.empty(sizes, dtype=dtype, device="meta"), device)

    def bind(self, position: int, fake: torch.Tensor) -> None:
        """Note that a symbol's value is to be read off this dim of this input at run time."""
        for dim, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):  # type: ignore[unreachable]
                self._names[size.node._expr] = (position, dim)  # type: ignore[unreachable]
            else:
                self._constants[position, dim] = int(size)

    def number(self, position: int, value: int, varies: bool) -> Any:
        """The number at a place of the call: symbolic if it varies and is larger than one, which is checked, else a constant."""
        number = self.size(value) if varies else value
        if isinstance(number, torch.SymInt):
            self._names[number.node._expr] = (position, None)
        else:
            self._constants[position, None] = value
        return number

    def read(self, value: int) -> Any:
        """A fresh symbolic number for one that a program reads while it runs; zero and one are like any other."""
        return self.named(f"read_{len(self.made) + 1}", value)

    def guards(self, layings: Layings) -> Guards:
        """The conditions on input sizes under which the trace holds, sizes that are constants in it included, and on how those
        inputs lie in memory that are in `layings`.

        Raises TraceError if a condition depends on data.
        """
        conditions = self._conditions()
        for one, other in filter(None, map(_equal_symbols, conditions)):
            self.equate(one, other)
        if any(self.env.is_unbacked_symint(symbol) for c in conditions for symbol in c.free_symbols):
            raise TraceError("a branch depends on a tensor's value; compute it outside of the block")
        usable = [condition for condition in conditions if condition.free_symbols <= self._names.keys()]
        # What was taken as larger than one, and comes first: a size below two has a key of its own, a number may be any.
        numbers = [symbol for symbol, (_, dim) in self._names.items() if dim is None]
        usable = [*(sympy.StrictGreaterThan(symbol, 1, evaluate=False) for symbol in numbers), *usable]
        return Guards({symbol: self._names[symbol] for symbol in symbols_of(usable)}, usable, self._constants, layings)

    def later_conditions(self) -> list[sympy.Basic]:
        """The conditions on sizes and numbers that are known only while the program runs."""
        return [condition for condition in self._conditions() if not condition.free_symbols <= self._names.keys()]

    def settled(self, expression: sympy.Basic) -> sympy.Basic:
        """An expression in which sizes and numbers that were found to be equal are one."""
        return self.env.replace(expression)

    def equate(self, symbol: sympy.Symbol, other: sympy.Expr) -> None:
        """Take a size or number from now on for what it was found to be equal to."""
        self.env._set_replacement(symbol, other, "a condition says that they are equal")

    def places(self, symbol: sympy.Symbol) -> list[Place]:
        """All places of the call where the value of a settled symbol is read off."""
        return [place for own, place in self._names.items() if self.settled(own) == symbol]

    def place(self, symbol: sympy.Symbol) -> Place | None:
        """Where a symbol's value is read off the call, None if it is known only while the program runs."""
        return self._names.get(symbol)

    def _conditions(self) -> list[sympy.Basic]:
        return [guard.expr for guard in self.env.guards if guard.expr is not sympy.true]


class Guards:
    """A check of input sizes and numbers, compiled once: the `conditions` on symbols, with the place of each; and, of inputs of
    which it matters, how they lie in memory. Raises TraceError for a condition that has no text."""

    def __init__(
        self,
        symbols: Mapping[sympy.Symbol, Place],
        conditions: Sequence[sympy.Basic],
        constants: Mapping[Place, int],
        layings: Layings,
    ) -> None:
        self.symbols, self.conditions, self.places = dict(symbols), tuple(conditions), tuple(symbols.values())
        self.constants, self.layings = dict(constants), dict(layings)
        self.check = _compiled(tuple(map(str, symbols)), conditions_text(conditions))

    def hold(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> bool:
        """Returns if the sizes of these inputs, and these numbers, satisfy every condition."""

        def at(place: Place) -> int:
            position, dim = place
            return numbers[position] if dim is None else tensors[position].shape[dim]

        if any(at(place) != value for place, value in self.constants.items()):
            return False
        if not all(lies_as(tensors[number], laying) for number, laying in self.layings.items()):
            return False
        return bool(self.check(*map(at, self.places)))


@dataclass(frozen=True)
class LaterCheck:
    """A check, in a program, of conditions on what opaque objects gave it, over values of `symbols` in their order.

    The values numbered in `lengths` were taken as larger than one while tracing; where one of them is none or one, which
    broadcasts like any other, nothing is checked.
    """

    symbols: tuple[sympy.Symbol, ...]
    lengths: tuple[int, ...]
    conditions: tuple[sympy.Basic, ...]

    @functools.cached_property
    def function(self) -> Callable[[Sequence[int]], None]:
        """The check as a program calls it. It raises TraceError if a condition does not hold."""
        return _later_check(self)


@functools.cache
def _later_check(check: LaterCheck) -> Callable[[Sequence[int]], None]:
    names, lengths, text = tuple(map(str, check.symbols)), check.lengths, conditions_text(check.conditions)
    holds = _compiled(names, text)

    def check_lengths(values: Sequence[int]) -> None:
        for i in lengths:
            if values[i] < 2:
                return
        if not holds(*values):
            raise TraceError(f"an opaque object gave sizes {list(values)} to a program for {text} ({', '.join(names)})")

    torch.fx.node.has_side_effect(check_lengths)
    vars(check_lengths)[_CHECK] = check
    return check_lengths


_CHECK = "autotp_check"


def later_check_of(function: Any) -> LaterCheck | None:
    """The check that a function of a program makes, None for any other function."""
    return getattr(function, "__dict__", {}).get(_CHECK)


@functools.cache
def _compiled(names: tuple[str, ...], text: str) -> Callable[..., bool]:
    """A function of the named values. Raises TraceError for what has no such text."""
    scope: dict[str, Any] = {"floor_div": lambda a, b: a // b, "mod": lambda a, b: a % b, "Max": max, "Min": min}
    scope |= {"math": math, "torch": torch}
    read = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    if unknown := sorted(read - {*names, *scope, *vars(builtins)}):
        raise TraceError(f"it branches on {unknown[0].partition('_')[2] or unknown[0]} of a size or number that varies")
    check: Callable[..., bool] = eval(f"lambda {', '.join(names)}: {text}", scope)
    return check


def _equal_symbols(condition: sympy.Basic) -> tuple[sympy.Symbol, sympy.Symbol] | None:
    """Two sizes that a condition says are equal, also where both sides have a product with the same other sizes."""
    if not isinstance(condition, sympy.Eq) or not condition.lhs.is_polynomial() or not condition.rhs.is_polynomial():
        return None
    _, factors = sympy.factor_list(condition.lhs - condition.rhs)
    # No size is zero, so the difference is none of these.
    differences = [factor for factor, _ in factors if not factor.is_Symbol]
    symbols = sorted(differences[0].free_symbols, key=str) if len(differences) == 1 else []
    if len(symbols) == 2 and differences[0] in (symbols[0] - symbols[1], symbols[1] - symbols[0]):
        return symbols[1], symbols[0]
    return None


def conditions_text(conditions: Sequence[sympy.Basic]) -> str:
    """Python that says if all conditions hold."""
    return " and ".join(f"({_python(condition)})" for condition in conditions) or "True"


def symbols_of(conditions: Sequence[sympy.Basic]) -> list[sympy.Symbol]:
    return sorted({symbol for condition in conditions for symbol in condition.free_symbols}, key=str)


def _python(condition: sympy.Basic) -> str:
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(condition))


def is_float(tensor: torch.Tensor) -> bool:
    """Returns if a tensor's numbers may have gradients."""
    return tensor.is_floating_point() or tensor.is_complex()


def as_parameter(fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor that nobody else has, as a parameter, without the copy that torch makes of it."""
    fake._is_param = True
    return fake
