"""The plan: frozen names and numbers. What is cut how, which collectives run, and why; and why not for the rest."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints

from ..axes.layout import Layout, factors_of, is_whole, parse_layout
from ..errors import PlanError

VERSION = 1


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
                f"{self.name} has the shape {self.shape}, its layouts {[str(layout) for layout in layouts]}"
            )
        return layouts


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
    """A tensor-parallel plan. JSON and back is the identity. `loss` says what a loss adds to what the units do, `around` are the
    collectives where values cut over positions begin and end, each at a unit.
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

    def to_json(self) -> str:
        """The plan as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan. Raises PlanError for another version and for anything that is not a plan."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"the plan is no JSON: {error}") from error
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise PlanError(f"this is no plan of version {VERSION}; make one with autotp.plan(...)")
        plan: Self = _read(cls, data, "plan")
        plan.check_layouts()
        return plan

    def check_layouts(self) -> None:
        """Raises PlanError for a layout that is none, and for mesh factors that are no factors of this plan's ranks."""
        for unit in self.units:
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
        """Read a plan from a file."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def unit_of(self, path: str) -> UnitPlan | None:
        """The unit plan of the module at a path."""
        return next((unit for unit in self.units if path in unit.instances), None)

    def step(self, calls: Mapping[str, int] | None = None) -> list[CollectivePlan]:
        """The collectives of one step, each as often as it runs: once for every unit, or as often as `calls` says of its path."""

        def times(unit: UnitPlan) -> int:
            return len(unit.instances) if calls is None else sum(calls.get(path, 0) for path in unit.instances)

        return [*(c for unit in self.units for c in unit.collectives * times(unit)), *self.around]

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


def _read(kind: type[Any], data: Any, where: str) -> Any:
    """Build a frozen dataclass from plain data, field by field."""
    if not isinstance(data, dict):
        raise PlanError(f"{where} should be an object with the fields of {kind.__name__}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    strange = data.keys() - known.keys()
    missing = {n for n, f in known.items() if f.default is dataclasses.MISSING} - data.keys()
    if strange or missing:
        raise PlanError(f"{where} has the unknown fields {sorted(strange)} and lacks {sorted(missing)}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value of the type a field is declared with: a dataclass, a tuple of one type, or a plain one."""
    if dataclasses.is_dataclass(hint):
        return _read(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise PlanError(f"{where} should be a list, not {value!r}")
        return tuple(_value(get_args(hint)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if not isinstance(value, (int, float) if hint is float else hint) or isinstance(value, bool) != (hint is bool):
        raise PlanError(f"{where} should be of type {hint.__name__}, not {value!r}")
    return value
