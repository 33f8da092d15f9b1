"""Shapes and terms as text: symbolic sizes as letters, cut axes by name, every dim in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch

from ...axes.facts import Fact
from ...axes.layout import Cut, Cuts, layout_of, parts_of
from ...axes.term import Axis, Sum, Term, axes_of, resolve
from ...planner.plan import ParameterPlan
from ...planner.sizing import Sizing
from .data import CutAxis, DimTerm


class Words:
    """Texts for the values of one placed unit. `cuts` are its cut axes, in the order in which they are named; `positions` has
    the axis of positions, where they are cut, and over how many ranks."""

    def __init__(
        self,
        sizing: Sizing,
        facts: Mapping[torch.fx.Node, Fact],
        cuts: Cuts,
        positions: Mapping[Axis, int] | None = None,
    ) -> None:
        self.sizing, self.cuts, self.positions = sizing, cuts, positions or {}
        self.names = {axis: _letter(number) for number, axis in enumerate(cuts)}
        self.symbols = dict(self._symbols(facts))

    def _symbols(self, facts: Mapping[torch.fx.Node, Fact]) -> Iterable[tuple[int, str]]:
        """The letters of symbolic sizes, by the numbers that stand for them in terms."""
        for node, fact in facts.items():
            value = node.meta["val"]
            for size, term in zip(value.shape, fact.dims, strict=True) if isinstance(value, torch.Tensor) else ():
                letter = str(self.expression(size))
                if not letter.isdecimal() and isinstance(resolve(term), Axis):
                    yield term.size, letter

    def expression(self, size: Any) -> Any:
        """A size as a number or a formula in letters."""
        return size if isinstance(size, int) else size.node.expr.xreplace(self.sizing.letters)

    def shape(self, value: torch.Tensor) -> tuple[str, ...]:
        """The whole shape of a traced value."""
        return tuple(_text(self.expression(size)) for size in value.shape)

    def local_shape(self, value: torch.Tensor, dims: Iterable[Term], held: frozenset[Axis]) -> tuple[str, ...]:
        """The shape that a rank has of a value that is a slice along some axes."""
        return tuple(self._local(size, term, held) for size, term in zip(value.shape, dims, strict=True))

    def _local(self, size: Any, term: Term, held: frozenset[Axis]) -> str:
        single = resolve(term)
        if isinstance(single, Axis) and single in held and single in self.positions:
            return _text(sympy.expand(self.expression(size) * sympy.Rational(1, self.positions[single])))
        layout = layout_of(term, {axis: self.cuts[axis] for axis in held if axis in self.cuts})
        if layout.local_size == layout.size:
            return _text(self.expression(size))
        return _text(sympy.expand(self.expression(size) * sympy.Rational(layout.local_size, layout.size)))

    def dims(self, value: torch.Tensor, dims: Iterable[Term], held: frozenset[Axis]) -> tuple[DimTerm, ...]:
        """Every dim of a value: sizes, term, and the term in words."""
        return tuple(
            DimTerm(
                _text(self.expression(size)), self._local(size, term, held), self.term(term), self.in_words(term, held)
            )
            for size, term in zip(value.shape, dims, strict=True)
        )

    def term(self, term: Term) -> str:
        """A term as text; cut axes by their letters."""
        term = resolve(term)
        if isinstance(term, Axis):
            size = self.symbols.get(term.size, str(term.size))
            return f"{self.names[term]}:{size}" if term in self.names else size
        parts = [self.term(part) for part in term.parts]
        if isinstance(term, Sum):
            return f"[{' + '.join(parts)}]"
        return " · ".join(f"({p})" if " + " in p and not p.startswith("[") else p for p in parts) or "1"

    def in_words(self, term: Term, held: frozenset[Axis]) -> str:
        """What a rank has along one dim, and why the rest of it is whole."""
        found = list(dict.fromkeys(axes_of(term)))
        if held & self.positions.keys() & set(found):
            return f"positions, cut in {self.positions[found[0]]}: as evenly as they divide"
        cut = [self._cut_in_words(axis, self.cuts[axis], axis in held) for axis in found if axis in self.cuts]
        if not cut:
            return f"whole{self._pinned(found)}"
        others = [axis for axis in found if axis not in self.cuts]
        return "; ".join([*cut, *([f"the rest whole{self._pinned(others)}"] if others else [])])

    def _cut_in_words(self, axis: Axis, cut: Cut, held: bool) -> str:
        name = f"{self.names[axis]}, an axis of {axis.size}"
        if not held:
            return f"{name}, whole here"
        padding = f", padded to {cut.padded}" if cut.padded != axis.size else ""
        return f"{name}{padding}, cut in {parts_of(cut.over)}: {cut.local} on a rank"

    def _pinned(self, axes: Iterable[Axis]) -> str:
        pins = [axis.pins[0] for axis in axes if axis.pins]
        return f", as {pins[0]}" if pins else ""

    def argument(self, value: Any) -> str:
        """An argument that is no tensor, as text; sizes that the program computes as formulas."""
        if isinstance(value, torch.fx.Node):
            size = self._computed(value)
            return value.name if size is None else _text(size)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.argument, value))}]"
        if isinstance(value, int) and not isinstance(value, bool) and value >= 2**62:
            return "end"
        return str(value).removeprefix("torch.")

    def _computed(self, value: Any) -> Any:
        """What a node that computes a size gives; None for another one."""
        if not isinstance(value, torch.fx.Node):
            return value
        size = value.meta.get("val")
        if isinstance(size, (int, torch.SymInt)):
            return self.expression(size)
        if size is not None or value.op != "call_function" or len(value.args) != 2:
            return None
        left, right = map(self._computed, value.args)
        if left is None or right is None:
            return None
        if getattr(value.target, "__name__", "") == "floordiv":
            return sympy.expand(left * sympy.Rational(1, right))
        return sympy.expand(left * right) if getattr(value.target, "__name__", "") == "mul" else None

    def cut_axes(self, parameters: Iterable[tuple[ParameterPlan, tuple[Term, ...]]]) -> tuple[CutAxis, ...]:
        """The named axes, each with the rule that cuts it and the parameters that have it."""
        holders: dict[Axis, list[ParameterPlan]] = {axis: [] for axis in self.cuts}
        for parameter, dims in parameters:
            for axis in dict.fromkeys(axis for term in dims for axis in axes_of(term) if axis in self.cuts):
                holders[axis].append(parameter)
        return tuple(
            CutAxis(
                name=self.names[axis],
                size=axis.size,
                padded=cut.padded,
                parts=parts_of(cut.over),
                local=cut.local,
                over=tuple(map(str, cut.over)),
                rule=next((p.rule for p in holders[axis] if p.rule), ""),
                parameters=tuple(p.name for p in holders[axis]),
            )
            for axis, cut in self.cuts.items()
        )

    def letters(self, axes: Iterable[Axis]) -> tuple[str, ...]:
        """The names of some cut axes, in order."""
        wanted = set(axes)
        return tuple(name for axis, name in self.names.items() if axis in wanted)


def _letter(number: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    round_, place = divmod(number, 26)
    return chr(ord("A") + place) + (str(round_) if round_ else "")


def _text(size: Any) -> str:
    return str(size).replace("**", "^").replace("*", "·")
