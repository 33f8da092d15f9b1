"""Layers as each system writes them down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from ...errors import PlanError, UsageError, nearest
from ...planner.survey import Example
from ..diff.data import Diff
from .check import check_runs
from .layers import COLUMN, NUMBER, ROW, SHARED, VOCABULARY, Layer, layers_of


def tp_plan(layers: Iterable[Layer]) -> dict[str, str]:
    """transformers: styles by path, numbers written as `*`. It has a style for every layer."""
    styles = {
        COLUMN: "colwise",
        ROW: "rowwise",
        VOCABULARY: "embedding_rowwise",
        SHARED: "replicated_with_grad_allreduce",
    }
    return {
        path: "colwise_gather_output" if layer.gathered else styles[layer.kind] for path, layer in _patterns(layers)
    }


def torch_plan(layers: Iterable[Layer]) -> dict[str, dict[str, str]]:
    """torch.distributed.tensor.parallel: classes with their layouts by path, as text; `torch_styles` makes objects of it."""
    found = {}
    for path, layer in _patterns(layers):
        if layer.kind == SHARED:
            raise PlanError(
                f"the gradient of {path} is summed over the ranks, and torch's styles have none that does that; export to tp_plan"
            )
        if layer.kind == COLUMN:
            found[path] = {
                "style": "ColwiseParallel",
                "output_layouts": "Replicate()" if layer.gathered else "Shard(-1)",
            }
        else:
            layouts = {"input_layouts": "Replicate()"} if layer.kind == VOCABULARY else {}
            found[path] = {"style": "RowwiseParallel", **layouts}
    return found


def deepspeed(layers: Iterable[Layer]) -> dict[str, Any]:
    """DeepSpeed: the `partition_config` of its configuration's `tensor_parallel`; everything unnamed is left whole."""
    specs = []
    for path, layer in _patterns(layers):
        if layer.kind == VOCABULARY:
            raise PlanError(
                f"{path} is cut along the vocabulary, and DeepSpeed's layer specs cut linear layers only; to leave it whole, "
                f"plan with --set '{path}=replicate'"
            )
        spec: dict[str, Any] = {"patterns": [f"^{_regex(path)}\\.weight$"]}
        if layer.kind == SHARED:
            specs.append({**spec, "partition_type": "skip", "grad_allreduce": True})
        else:
            specs.append({**spec, "partition_type": layer.kind, **({"gather_output": True} if layer.gathered else {})})
    return {"use_default_specs": False, "layer_specs": specs}


def _regex(path: str) -> str:
    return re.escape(path).replace(r"\*", r"\d+")


def _patterns(layers: Iterable[Layer]) -> Iterator[tuple[str, Layer]]:
    """Layers by path with numbers as `*`. Raises PlanError where units that differ only in number are cut differently."""
    found: dict[str, Layer] = {}
    for layer in layers:
        for pattern in dict.fromkeys(NUMBER.sub(".*", path) for path in layer.paths):
            other = found.setdefault(pattern, layer)
            if (other.kind, other.gathered) != (layer.kind, layer.gathered):
                raise PlanError(
                    f"{layer.paths[0]} and {other.paths[0]} are cut differently, and there {pattern} is one entry"
                )
    yield from found.items()


SYSTEMS: Mapping[str, Callable[[Iterable[Layer]], Any]] = {
    "tp_plan": tp_plan,
    "torch": torch_plan,
    "deepspeed": deepspeed,
}


def export(model: nn.Module, diff: Diff, system: str, calls: Sequence[Example]) -> Any:
    """A plan for another system, as plain data. `calls` are example calls of the model.

    Raises UsageError for an unknown system, PlanError for a plan that it cannot express, with the reason.
    """
    if system not in SYSTEMS:
        raise UsageError(f"no exporter for {system!r}{nearest(system, SYSTEMS)}")
    layers = layers_of(model, diff)
    data = SYSTEMS[system](layers)
    check_runs(model, layers, diff.plan.tp, calls)
    return data


def torch_styles(plan: Mapping[str, Mapping[str, str]], model: nn.Module) -> dict[str, Any]:
    """The objects that `parallelize_module` takes, for every module of a model that an exported plan names."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    layouts: dict[str, Any] = {"Replicate()": Replicate(), "Shard(-1)": Shard(-1)}
    classes: dict[str, Any] = {"ColwiseParallel": ColwiseParallel, "RowwiseParallel": RowwiseParallel}
    found = {}
    for path, _ in model.named_modules():
        entry = plan.get(NUMBER.sub(".*", path))
        if entry is not None:
            arguments = {key: layouts[value] for key, value in entry.items() if key != "style"}
            found[path] = classes[entry["style"]](**arguments)
    return found
