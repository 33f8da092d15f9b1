"""The difference a plan makes to a model, as frozen data: text, JSON, Graphviz and HTML are all made from it.

Names of steps hold within one unit. Shapes are texts in `b` (batch), `s` (sequence) and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...planner.plan import Plan


@dataclass(frozen=True)
class CutAxis:
    """An axis that is cut: its letter in terms, its size, how many parts, what a rank holds, and which rule cuts it."""

    name: str
    size: int
    padded: int
    parts: int
    local: int
    over: tuple[str, ...]
    rule: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class DimTerm:
    """One dim of a value: its size whole and on a rank, its term (`A:8 · 4 · 128`), and the term in words."""

    whole: str
    local: str
    term: str
    words: str


@dataclass(frozen=True)
class Value:
    """A node on one side: its name, its operator or layer, what else it is given, what it reads, the shapes of its results."""

    name: str
    operator: str
    arguments: str
    inputs: tuple[str, ...]
    shapes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Transfer:
    """What an inserted node does in each phase, over which ranks, and the bytes on the wire and seconds of each; the rows
    whose values the same call sends."""

    forward: str
    backward: str
    of: str
    ranks: int
    over: tuple[str, ...]
    elements: str
    forward_bytes: float
    backward_bytes: float
    forward_seconds: float
    backward_seconds: float
    together: tuple[str, ...] = ()

    @property
    def moves(self) -> bool:
        """Returns if bytes move in some phase; slicing moves none."""
        return bool(self.forward_bytes or self.backward_bytes)


@dataclass(frozen=True)
class Step:
    """One row: a node before, after, or both.

    Attributes:
        change: `same`, `shape` (on a rank it is smaller), `replaced` (another operator or a layer), `inserted` or `removed`.
        role: `input`, `parameter`, `output`, `operator`, `column`, `row`, `vocabulary`, or `collective`.
        state: `whole`, `slice` or `partial`: what a rank holds of the value.
        module: the path of the module it runs in, from the unit.
        block: steps of equal number belong together, as those of a norm do; outlines show them as one.
        axes: letters of the cut axes that the value is a slice of, or that it has partial sums over.
        gradient: what a rank has of the gradient, in words.
        by, why: who made it so and for what reason, in words.
    """

    name: str
    change: str
    role: str
    state: str
    module: str
    block: int
    before: Value | None
    after: Value | None
    dims: tuple[DimTerm, ...]
    axes: tuple[str, ...]
    gradient: str
    transfer: Transfer | None
    by: str
    why: str

    @property
    def either(self) -> Value:
        """The node after, or the one before where there is none after."""
        value = self.after or self.before
        assert value is not None
        return value


@dataclass(frozen=True)
class LayerChange:
    """A module whose class changed."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class UnitDiff:
    """All units of one structure. `unchanged` says why there are no steps, where there are none."""

    instances: tuple[str, ...]
    module: str
    steps: tuple[Step, ...]
    axes: tuple[CutAxis, ...]
    layers: tuple[LayerChange, ...]
    unchanged: str = ""

    def changed(self) -> tuple[Step, ...]:
        """The steps that are not the same before and after."""
        return tuple(step for step in self.steps if step.change != "same")


@dataclass(frozen=True)
class Diff:
    """What one plan does to a model; the units are the plan's, in its order."""

    plan: Plan
    units: tuple[UnitDiff, ...]
