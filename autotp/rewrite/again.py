"""A parallel model whose modules were changed, by adding adapters to its layers for example: back to a dense structure, so
that it can be planned again. What a rank holds already stays where it is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..axes.layout import Layout
from ..capture.clone import on_meta
from ..planner.plan import Plan, UnitPlan
from ..runtime.layers import ParallelLayer
from .apply import ATTRIBUTE, HELD, Held, Parallel, held_in, install, module_paths
from .aside import WholeForward
from .compiler import Compiler
from .unit import UnitForward


def is_changed(model: nn.Module) -> bool:
    """Returns if a parallel model has other modules than when it was made parallel."""
    state: Parallel = model.__dict__[ATTRIBUTE]
    return state.modules != module_paths(model)


def values_added(model: nn.Module) -> str:
    """A text that is equal where the parameters are that nothing cuts yet, in modules that were not there before."""
    before, held = frozenset(model.__dict__[ATTRIBUTE].modules), held_layouts(model)
    return "\n".join(
        f"{name} {float(parameter.detach().double().sum())!r}"
        for name, parameter in model.named_parameters()
        if name not in held and name.rpartition(".")[0] not in before and not parameter.is_meta
    )


def held_layouts(model: nn.Module) -> dict[str, tuple[Layout, ...]]:
    """How the parameters that are cut already are cut, by the names they have now."""
    return {name: held.layouts for name, held in held_in(model)}


def dense_structure(model: nn.Module) -> nn.Module:
    """The structure of a parallel model as it were dense, on the meta device: classes and shapes are those of the whole."""
    twin = on_meta(model, _whole_shapes(model))
    for module in twin.modules():
        ParallelLayer.undo(module)
        module.__dict__.pop(HELD, None)
    twin.__dict__.pop(ATTRIBUTE, None)
    return twin


def _whole_shapes(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """The whole's shape for every parameter that is cut, by identity."""
    found = {}
    for module in model.modules():
        held: Mapping[str, Held] = module.__dict__.get(HELD, {})
        found.update({id(module._parameters[name]): own.shape for name, own in held.items()})
    return found


def apply_again(model: nn.Module, dense: nn.Module, plan: Plan, compilers: Mapping[UnitPlan, Compiler]) -> None:
    """Apply a plan for the present modules of a parallel model, in place. The plan may not cut otherwise what is cut."""
    ranks = model.__dict__[ATTRIBUTE].ranks
    for module in model.modules():
        ParallelLayer.undo(module)
        if isinstance(module.__dict__.get("forward"), (UnitForward, WholeForward)):
            del module.__dict__["forward"]
    install(model, dense, plan, ranks, compilers)
