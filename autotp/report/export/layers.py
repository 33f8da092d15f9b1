"""A plan as a list of layers, as other systems see one: each weight is cut by itself, each layer has its own collective.

A plan says more than that. Refused is what a list of layers cannot say: padding, segments that are cut one by one, weights
that only some ranks share, slices and sums anywhere but at a layer's boundary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ...axes.layout import Layout, is_whole, local_indices
from ...errors import PlanError
from ...planner.plan import ParameterPlan, UnitPlan
from ..diff.data import Diff, Step, UnitDiff

NUMBER = re.compile(r"\.\d+(?=\.|$)")  # of a layer among its siblings
COLUMN, ROW, VOCABULARY, SHARED = "column", "row", "vocabulary", "shared"


@dataclass(frozen=True)
class Layer:
    """One module of every unit in `paths`: how its weight is cut, and whether its result is gathered.

    `shared` layers are whole, and their gradients are summed over the ranks.
    """

    paths: tuple[str, ...]
    kind: str
    gathered: bool = False


def layers_of(model: nn.Module, diff: Diff) -> tuple[Layer, ...]:
    """The layers of a plan. Raises PlanError naming what no list of layers can say."""
    return tuple(
        layer
        for plan, changes in zip(diff.plan.units, diff.units, strict=True)
        if plan.layouts() or plan.collectives
        for layer in _Reader(model, diff.plan.tp, plan, changes).layers()
    )


def refusal(name: str, why: str, leave: str) -> PlanError:
    """The error for something that cannot be said, with the part to leave whole instead."""
    pattern = NUMBER.sub(".*", leave)
    return PlanError(f"{name} {why}; to leave it whole, plan with --set '{pattern}=replicate'")


class _Reader:
    def __init__(self, model: nn.Module, ranks: int, plan: UnitPlan, changes: UnitDiff) -> None:
        self.ranks, self.plan, self.changes = ranks, plan, changes
        self.unit = plan.instances[0]
        self.module = model.get_submodule(self.unit)
        self.steps: Mapping[str, Step] = {step.name: step for step in changes.steps}

    def layers(self) -> Iterator[Layer]:
        gathered, shared = set(), set()
        for step in self.changes.steps:
            if step.transfer is not None and step.transfer.moves:
                gathered |= self._gathered(step)
                shared |= self._shared(step)
        for parameter in self.plan.parameters:
            layouts = parameter.parsed()
            path, _, leaf = parameter.name.rpartition(".")
            if any(not is_whole(layout) for layout in layouts):
                self._check(path, leaf, parameter, layouts)
                if leaf == "weight":
                    yield Layer(self._paths(path), parameter.placement, path in gathered)
            elif path in shared:
                yield Layer(self._paths(path), SHARED)

    def _paths(self, path: str) -> tuple[str, ...]:
        return tuple(".".join(filter(None, (unit, path))) for unit in self.plan.instances)

    def _name(self, inner: str) -> str:
        return ".".join(filter(None, (self.unit, inner)))

    def _check(self, path: str, leaf: str, parameter: ParameterPlan, layouts: tuple[Layout, ...]) -> None:
        """Raises PlanError unless a parameter is one piece of an ordinary layer's weight or bias."""
        module, name = self.module.get_submodule(path), self._name(parameter.name)
        linear, table = isinstance(module, nn.Linear), type(module) is nn.Embedding
        if leaf not in ("weight", "bias") or not (linear or table):
            kind = type(module).__name__
            raise refusal(
                name, f"belongs to a {kind}, and only linear layers and embeddings can be cut there", self._name(path)
            )
        for rank in range(self.ranks):
            for layout, size in zip(layouts, parameter.shape, strict=True):
                if not is_whole(layout) and not _one_piece(layout, size, rank, self.ranks):
                    text = f"has the layout {layout}, and there a rank gets one of {self.ranks} equal pieces in a row"
                    raise refusal(name, text, self._name(path))

    def _gathered(self, step: Step) -> set[str]:
        """The layer whose result a step gathers. Raises PlanError for a gather or slice elsewhere."""
        assert step.transfer is not None
        kind = step.transfer.forward
        if kind == "all-gather":
            source = self._source(step)
            if step.transfer.backward == "reduce-scatter":
                raise self._elsewhere(step, "reduce-scatter of the gradient")
            if source is not None and source.role == COLUMN:
                return {self._layer(source)}
        elif kind == "identity":
            if step.transfer.of == "parameter" or self._enters_layers(step):
                return set()
            raise self._elsewhere(step, f"{step.transfer.backward} of the gradient")
        elif kind == "all-reduce" and self._from_layers(step):
            return set()
        raise self._elsewhere(step, kind)

    def _enters_layers(self, step: Step) -> bool:
        """Returns if only column-parallel layers read a value: each sums its own input's gradient there."""
        readers = [other for other in self.changes.steps if step.name in other.either.inputs]
        return all(reader.role == COLUMN for reader in readers)

    def _elsewhere(self, step: Step, kind: str) -> PlanError:
        where = ".".join(filter(None, (self.unit, step.module))) or "the model"
        text = f"needs {_a(kind)} at {step.name} that is not at the end of a layer, and there only layers communicate"
        return refusal(where, text, where)

    def _shared(self, step: Step) -> set[str]:
        """The module with the parameter whose gradient a step sums."""
        assert step.transfer is not None
        if step.transfer.of != "parameter":
            return set()
        source = self._source(step)
        name = source.name if source is not None else ""
        for parameter in self.plan.parameters:
            if parameter.name.replace(".", "_") == name.replace(".", "_"):
                path = parameter.name.rpartition(".")[0]
                if any(not is_whole(layout) for layout in parameter.parsed()):
                    cut = ", ".join(parameter.layouts)
                    text = f"is cut in fewer parts than there are ranks ({cut}), and there every rank has its own"
                    raise refusal(self._name(parameter.name), text, self._name(path))
                return {path}
        raise self._elsewhere(step, "sum of gradients")

    def _source(self, step: Step) -> Step | None:
        inputs = step.either.inputs
        return self.steps.get(inputs[0]) if inputs else None

    def _layer(self, step: Step) -> str:
        """The path of the layer that a step calls."""
        return step.either.operator if step.either.operator in dict(self.module.named_modules()) else step.module

    def _from_layers(self, step: Step) -> bool:
        """Returns if a sum adds nothing but the partial results of layers: each may as well be summed by itself."""
        waiting, found = [step.either.inputs], False
        while waiting:
            for name in waiting.pop():
                source = self.steps.get(name)
                if source is None or source.state != "partial":
                    continue
                if source.role in (ROW, VOCABULARY):
                    found = True
                elif any(self._partial(inner) for inner in source.either.inputs):
                    waiting.append(source.either.inputs)
                else:
                    return False
        return found

    def _partial(self, name: str) -> bool:
        return name in self.steps and self.steps[name].state == "partial"


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _one_piece(layout: Layout, size: int, rank: int, ranks: int) -> bool:
    """Returns if a rank holds the piece of its number out of equal ones."""
    if size % ranks:
        return False
    indices = torch.as_tensor(local_indices(layout, rank)).tolist()
    piece = size // ranks
    return bool(indices == list(range(rank * piece, (rank + 1) * piece)))
