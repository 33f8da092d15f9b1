"""transformers' own tensor parallelism as a plan: which style cuts what, and which collectives each style runs.

A style is about one module. What it sends is read off transformers/distributed/tensor_parallel.py, and the tests count it
on real ranks.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import PlanError, UsageError, nearest
from ..outside.data import parse_json, read_text
from ..planner.cost import Hardware, wire_bytes
from ..planner.plan import CollectivePlan, ParameterPlan, Plan, UnitPlan

_NUMBER = re.compile(r"\.\d+(?=\.|$)")
COLUMN, ROW, TABLE, HIDDEN = "column", "row", "vocabulary", "hidden"
_EXPERTS, _LATENT, _SUMMED = "moe_tp_experts", "mla_kv_a_proj", "all_reduce"
_IN, _OUT, _ROTATED, _CHOSEN = "in", "out", "rotated", "chosen"

# Style -> how it cuts the weight, and its collectives on an activation: kind, phase, and whose features they are on: those
# that a module takes or gives, the ones that are rotated with the position, or a number for each expert of a token.
_ENTER = ("all_reduce", "backward", _IN)
_SUM = ("all_reduce", "forward", _OUT)
_STYLES: Mapping[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "colwise": (COLUMN, (_ENTER,)),
    "packed_colwise": (COLUMN, (_ENTER,)),
    "colwise_gather_output": (COLUMN, (("all_gather", "forward", _OUT), _ENTER)),
    "colwise_rep": (COLUMN, (("all_gather", "forward", _OUT), _ENTER)),
    "rowwise": (ROW, (_SUM,)),
    "rowwise_split_input": (ROW, (_SUM, ("all_gather", "backward", _IN))),
    "rowwise_rep": (ROW, (_SUM, ("all_gather", "backward", _IN))),
    "packed_rowwise": (ROW, (_SUM,)),
    _LATENT: ("", (("all_reduce", "backward", _ROTATED),)),
    _EXPERTS: ("", (_SUM, _ENTER, ("all_reduce", "backward", _CHOSEN))),
    _SUMMED: ("", (_SUM,)),
    "moe_identity_expert": ("", ()),
    "local_params": ("", ()),
    "embedding_rowwise": (TABLE, (_SUM,)),
    "embedding_colwise": (HIDDEN, (("all_gather", "forward", _OUT),)),
    "replicated_with_grad_allreduce": ("", ()),
    "replicate": ("", ()),
}
_PACKED = frozenset({"packed_colwise", "packed_rowwise"})  # of two matrices side by side, each cut by itself
_OWN = {COLUMN: "colwise", ROW: "rowwise", TABLE: "embedding_rowwise"}

_CHOICES = ("num_experts_per_tok", "moe_topk")  # what configs call the number of experts of a token


def own_styles(model: nn.Module) -> dict[str, str]:
    """The styles that transformers has for a model; empty where it has none."""
    return dict(getattr(model, "_tp_plan", None) or {})


def read_styles(path: Path) -> dict[str, str]:
    """Styles from a JSON file of a `tp_plan`. Raises UsageError if it is none."""
    data = parse_json(read_text(path, UsageError), f"--against {path}", UsageError)
    if not isinstance(data, dict) or not all(isinstance(style, str) for style in data.values()):
        raise UsageError(f"--against {path} is no tp_plan; it should be an object of styles by module path")
    return data


def layer_styles(plan: Plan) -> dict[str, str]:
    """Styles that cut what a plan cuts, each layer by itself: what one writes by hand for a model that has no plan."""
    found = {}
    for unit in plan.units:
        gathers = any(c.kind == "all_gather" and c.phase == "forward" for c in unit.collectives)
        for parameter in unit.parameters:
            if parameter.placement in _OWN and len(parameter.shape) == 2:
                collected = parameter.name in unit.collected or (gathers and len(unit.parameters) <= 2)
                style = (
                    "colwise_gather_output"
                    if collected and parameter.placement == COLUMN
                    else _OWN[parameter.placement]
                )
                name = f"{unit.instances[0]}.{parameter.name}".lstrip(".").rpartition(".")[0]
                found[_NUMBER.sub(".*", name)] = style
    return found


def plan_of_styles(model: nn.Module, ours: Plan, styles: Mapping[str, str], machine: Hardware) -> Plan:
    """What transformers would do, in the units of our plan, so that the two can be compared.

    Raises PlanError for a style that is not known here.
    """
    importer = _Importer(model, ours, styles, machine)
    return replace(ours, units=tuple(map(importer.unit, ours.units)), around=())


class _Importer:
    def __init__(self, model: nn.Module, ours: Plan, styles: Mapping[str, str], machine: Hardware) -> None:
        self.model, self.ours, self.styles, self.machine = model, ours, styles, machine

    def unit(self, unit: UnitPlan) -> UnitPlan:
        path = unit.instances[0]
        collectives = [c for name, style in self._modules(path) for c in self._collectives(path, name, style)]
        parameters = tuple(self._parameter(path, parameter) for parameter in unit.parameters)
        return replace(
            unit, parameters=parameters, collectives=tuple(collectives), collected=(), not_cut=(), sequence=False
        )

    def _style(self, path: str) -> str:
        style = self.styles.get(_NUMBER.sub(".*", path), "")
        if style and style not in _STYLES:
            raise PlanError(f"{path} has the style {style!r}, whose collectives are not known{nearest(style, _STYLES)}")
        return style

    def _modules(self, unit: str) -> Iterator[tuple[str, str]]:
        """Every module of a unit with a style, by its full path."""
        for name, _ in self.model.get_submodule(unit).named_modules():
            path = ".".join(filter(None, (unit, name)))
            if style := self._style(path):
                yield path, style

    def _collectives(self, unit: str, path: str, style: str) -> Iterator[CollectivePlan]:
        module = self.model.get_submodule(path)
        name = path.removeprefix(f"{unit}.")
        if style == "replicated_with_grad_allreduce":
            size = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            yield self._collective("all_reduce", "backward", "parameter", name, size, "")
        features = self._features_of_experts(path, module, style) if style == _EXPERTS else _features(module)
        if style == _LATENT:
            features[_ROTATED] = self._setting(path, style, "qk_rope_head_dim")
        if style == _SUMMED:
            features[_OUT] = self._setting(path, style, "hidden_size")
        for kind, phase, whose in _STYLES[style][1]:
            if features[whose]:
                yield self._collective(kind, phase, "activation", name, features[whose], "·b·s")

    def _setting(self, path: str, style: str, *names: str) -> int:
        """The first of these settings that the model's config has. Raises PlanError if it has none."""
        config = getattr(self.model, "config", None)
        text = config.get_text_config() if config is not None else None
        found = next((number for name in names if (number := getattr(text, name, None)) is not None), None)
        if found is None:
            raise PlanError(f"{path} has the style {style!r}, and the model's config has no {' or '.join(names)}")
        return int(found)

    def _features_of_experts(self, path: str, module: nn.Module, style: str) -> dict[str, int]:
        """Of experts in one module: it takes a token once, with the experts that the token chose, or once for every expert."""
        hidden = self._setting(path, style, "hidden_size")
        if len(inspect.signature(module.forward).parameters) < 2:
            everything = hidden * next(module.parameters()).shape[0]
            return {_IN: everything, _OUT: everything, _CHOSEN: 0}
        return {_IN: hidden, _OUT: hidden, _CHOSEN: self._setting(path, style, *_CHOICES)}

    def _collective(self, kind: str, phase: str, of: str, node: str, size: int, per: str) -> CollectivePlan:
        ranks = self.ours.tp
        whole = size * self.ours.element_bytes * (self.ours.tokens if per else 1)
        return CollectivePlan(
            kind=kind,
            phase=phase,
            of=of,
            nodes=(node,),
            ranks=ranks,
            over=(f"{ranks}@1",),
            elements=f"{size}{per}",
            wire_bytes=wire_bytes(kind, whole, ranks),
            seconds=self.machine.seconds(kind, whole, ranks),
        )

    def _parameter(self, unit: str, parameter: ParameterPlan) -> ParameterPlan:
        path, _, leaf = f"{unit}.{parameter.name}".lstrip(".").rpartition(".")
        alone = self._style(f"{path}.{leaf}")  # of a parameter of its own, without a layer: experts are stacked in it
        style = alone or self._style(path)
        module, cut = self.model.get_submodule(path), _STYLES[style][0] if style else ""
        dim = _cut_dim_alone(cut, parameter.shape) if alone else _cut_dim(module, cut, parameter.shape, leaf)
        shape, layouts = list(parameter.shape), list(map(str, parameter.shape))
        if dim is not None:
            is_packed = style in _PACKED and shape[dim] % 2 == 0
            layouts[dim], shape[dim] = _layout(shape[dim], self.ours.tp, segments=2 if is_packed else 1)
        return replace(
            parameter,
            placement=cut if dim is not None and cut != HIDDEN else COLUMN if dim is not None else "replicated",
            layouts=tuple(layouts),
            local_shape=tuple(shape),
            rule="",
            reason=f"transformers' style {style}" if style else "transformers' plan does not name it",
        )


def _layout(size: int, ranks: int, *, segments: int) -> tuple[str, int]:
    """How a dim is cut, in words, and what a rank has of it: of each of its equal segments a part, padded to the largest."""
    own = size // segments
    part = math.ceil(own / ranks)
    text = f"{own}{'' if part * ranks == own else f'>{part * ranks}'}/{ranks}@1"
    return (text if segments == 1 else f"[{' + '.join([text] * segments)}]"), part * segments


def _cut_dim(module: nn.Module, cut: str, shape: tuple[int, ...], leaf: str) -> int | None:
    """The dim that a style cuts: outputs of a column, inputs of a row, whose bias is whole."""
    if cut == ROW:
        return _input_dim(module) if len(shape) > 1 else None
    if cut == HIDDEN:
        return len(shape) - 1
    if cut == COLUMN and len(shape) > 1:
        return 1 - _input_dim(module)
    return 0 if cut else None


def _cut_dim_alone(cut: str, shape: tuple[int, ...]) -> int | None:
    """The dim of a parameter that has a style of its own: the last one of a row, the one before it of a column."""
    return {COLUMN: max(len(shape) - 2, 0), ROW: len(shape) - 1}.get(cut)


def _input_dim(module: nn.Module) -> int:
    """The dim of a weight that its inputs are along: the second, but for layers that keep it the other way round."""
    return 1 if isinstance(module, (nn.Linear, nn.Embedding)) else 0


def _features(module: Any) -> dict[str, int]:
    """Inputs and outputs of a module."""
    if isinstance(module, nn.Embedding):
        return {_IN: module.num_embeddings, _OUT: module.embedding_dim}
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        return {_IN: 0, _OUT: 0}
    inputs = _input_dim(module)
    return {_IN: weight.shape[inputs], _OUT: weight.shape[1 - inputs]}
