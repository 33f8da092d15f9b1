"""The plan: frozen names and numbers. What is cut how, which collectives run, and why; and why not for the rest."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..axes.layout import Layout, ProductLayout, factors_of, is_whole, most_cut
from ..axes.layout_text import parse_layout
from ..errors import PlanError, UnsoundPlanError
from ..outside.data import brief, parse_json, read_text
from .records import read_record

VERSION = 1
MOST_RANKS = 2**20
PLACEMENTS = ("column", "row", "vocabulary", "expert", "replicated")


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter of a unit: `layouts` per dim, `placement` in one word, the rule that proposed it and the reason."""

    name: str
    shape: tuple[int, ...]
    placement: str
    layouts: tuple[str, ...]
    local_shape: tuple[int, ...]
    rule: str
    reason: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def local_elements(self) -> int:
        return math.prod(self.local_shape)

    def parsed(self) -> tuple[Layout, ...]:
        """The layouts as data. Raises PlanError for a text that is none, or that does not fit the shape."""
        layouts = tuple(map(parse_layout, self.layouts))
        if tuple(layout.size for layout in layouts) != self.shape:
            raise PlanError(
                f"{brief(self.name)} has the shape {self.shape}, its layouts {[str(layout) for layout in layouts]}"
            )
        return layouts

    def check(self) -> None:
        """Raises PlanError unless the layouts give every element to some rank, and `local_shape` is what they give a rank."""
        layouts = self.parsed()
        twice = [factor for factor, count in most_cut(ProductLayout(layouts)).items() if count > 1]
        if twice:
            raise UnsoundPlanError(
                f"{brief(self.name)} is cut twice over the same ranks ({twice[0]}) by {', '.join(self.layouts)}, so that parts"
                " of it would be on no rank"
            )
        local = tuple(layout.local_size for layout in layouts)
        if self.local_shape != local:
            raise PlanError(
                f"{brief(self.name)} has the local_shape {self.local_shape}, its layouts give a rank {local}; write that"
            )
        if self.placement not in PLACEMENTS:
            raise PlanError(
                f"{brief(self.name)} has the placement {brief(self.placement)}; known: {', '.join(PLACEMENTS)}"
            )


@dataclass(frozen=True)
class CollectivePlan:
    """One collective of a unit's step: one call for the values of all its nodes. `elements` is a formula in b (batch) and s
    (sequence)."""

    kind: str
    phase: str
    of: str
    nodes: tuple[str, ...]
    ranks: int
    over: tuple[str, ...]
    elements: str
    wire_bytes: float
    seconds: float


@dataclass(frozen=True)
class UnitPlan:
    """All units of one structure: where they are, their parameters, their collectives, what was not cut and why.

    What the parameters in `collected` make is gathered right after it is made; with `keep` the results stay cut. With
    `sequence` it takes and hands on a value that is cut over its positions, and `collectives` are those of such a call.
    """

    instances: tuple[str, ...]
    parameters: tuple[ParameterPlan, ...]
    collectives: tuple[CollectivePlan, ...]
    collected: tuple[str, ...] = ()
    not_cut: tuple[str, ...] = ()
    keep: bool = False
    sequence: bool = False

    def layouts(self) -> dict[str, tuple[Layout, ...]]:
        """The layouts of the parameters that are cut, by name."""
        parsed = {parameter.name: parameter.parsed() for parameter in self.parameters}
        return {name: layouts for name, layouts in parsed.items() if not all(map(is_whole, layouts))}

    def count(self, phase: str, of: str = "activation", kind: str | None = None) -> int:
        """Collectives of one unit in one phase, on activations or on parameters."""
        return sum(c.phase == phase and c.of == of and kind in (None, c.kind) for c in self.collectives)


@dataclass(frozen=True)
class OutsidePlan:
    """A parameter that belongs to no unit and stays replicated."""

    name: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Plan:
    """A tensor-parallel plan, as frozen data. A plan that is written as JSON and read again is equal to itself.

    `loss` says in words what a loss adds to the work of the units. `around` are the collectives with which the cut over positions
    begins and ends, and `positions` says why it is there or not, where that was to be found out. `objective` says in words what
    it is best for, where that is not the least memory. `sizes` says where only one call could be made to plan from, so that it is
    not known which sizes vary.
    """

    version: int
    model: str
    fingerprint: str
    tp: int
    hardware: str
    tokens: int
    element_bytes: int
    units: tuple[UnitPlan, ...]
    outside: tuple[OutsidePlan, ...]
    tied: tuple[tuple[str, ...], ...] = ()
    loss: str = ""
    around: tuple[CollectivePlan, ...] = ()
    sizes: str = ""
    objective: str = ""
    positions: str = ""

    def to_json(self) -> str:
        """The plan as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan. Raises PlanError for another version, for anything that is not a plan, and for what no plan can say."""
        data = parse_json(text, "the plan", PlanError)
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise PlanError(f"this is no plan of version {VERSION}; make one with autotp.plan(...)")
        plan: Self = read_record(cls, data, "plan")
        plan.check()
        return plan

    def check(self) -> None:
        """Raises PlanError for what is wrong in a plan of any model: numbers out of range, names that occur twice, layouts that
        do not give a whole parameter, mesh factors that do not divide the number of ranks."""
        if not 1 <= self.tp <= MOST_RANKS or self.tokens < 1 or self.element_bytes < 1:
            raise PlanError(
                f"a plan is for 1 to {MOST_RANKS} ranks, and at least 1 token and 1 byte an element, not for tp {self.tp},"
                f" tokens {self.tokens} and element_bytes {self.element_bytes}"
            )
        _check_once([path for unit in self.units for path in unit.instances], "instance")
        _check_once([name for name, _ in self._shapes()], "parameter")
        _check_once([name for names in self.tied for name in names], "tied name")
        self._check_layouts()

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter of the model, by its name there."""
        return dict(self._shapes())

    def _shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        inside = (
            (f"{path}.{parameter.name}" if path else parameter.name, parameter.shape)
            for unit in self.units
            for path in unit.instances
            for parameter in unit.parameters
        )
        return [*inside, *((parameter.name, parameter.shape) for parameter in self.outside)]

    def _check_layouts(self) -> None:
        for unit in self.units:
            if not unit.instances:
                raise PlanError("a unit of the plan has no instances; name the modules that it is about")
            if strange := set(unit.collected) - {parameter.name for parameter in unit.parameters}:
                raise PlanError(f"{brief(unit.instances[0])} collects {brief(min(strange))}, which it does not have")
            for parameter in unit.parameters:
                parameter.check()
            factors = {f for layouts in unit.layouts().values() for layout in layouts for f in factors_of(layout)}
            end = 1
            for factor in sorted(factors, key=lambda factor: factor.stride):
                if factor.stride % end or self.tp % (factor.stride * factor.size):
                    raise PlanError(
                        f"the mesh factors {', '.join(sorted(map(str, factors)))} of {unit.instances[0] or 'the model'} overlap"
                        f" or do not make up {self.tp} ranks; write every axis over the same ones, as in 2@4,4@1 for 8 ranks"
                    )
                end = factor.stride * factor.size

    def save(self, path: str | Path) -> None:
        """Write the plan to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a plan from a file. Raises PlanError naming the file, for one that cannot be read too."""
        try:
            return cls.from_json(read_text(Path(path), PlanError))
        except PlanError as error:
            raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from error

    def unit_of(self, path: str) -> UnitPlan | None:
        """The unit plan of the module at a path."""
        return next((unit for unit in self.units if path in unit.instances), None)

    def step(self) -> list[CollectivePlan]:
        """The collectives of one step in which every unit is called once."""
        return [*(c for unit in self.units for _ in unit.instances for c in unit.collectives), *self.around]

    def elements(self) -> tuple[int, int]:
        """Number of parameters of the whole model and of one rank; a tied parameter counts once."""
        again = {name for names in self.tied for name in names[1:]}
        whole = local = 0
        for unit in self.units:
            for path in unit.instances:
                for parameter in unit.parameters:
                    if (f"{path}.{parameter.name}" if path else parameter.name) not in again:
                        whole, local = whole + parameter.elements, local + parameter.local_elements
        outside = sum(math.prod(parameter.shape) for parameter in self.outside if parameter.name not in again)
        return whole + outside, local + outside


def _check_once(names: Iterable[str], what: str) -> None:
    """Raises PlanError for a name that is there twice."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise PlanError(f"the {what} {brief(twice[0])} is in the plan twice; name each one once")
