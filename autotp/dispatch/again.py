"""A parallel model whose modules were changed, by adding adapters to its layers for example: back to a dense structure, so
that it can be planned again. What a rank holds already stays where it is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..axes.layout import Layout
from ..planner.plan import Plan, UnitPlan
from ..runtime.layers.parallel import remove_layer
from .apply import Parallel, install, module_paths, planned_units
from .compiler import Compiler
from .held import ATTRIBUTE, held_in


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


def apply_again(model: nn.Module, dense: nn.Module, plan: Plan, compilers: Mapping[UnitPlan, Compiler]) -> None:
    """Apply a plan for the present modules of a parallel model, in place. The plan may not cut otherwise what is cut."""
    ranks = model.__dict__[ATTRIBUTE].ranks
    for module in model.modules():
        remove_layer(module)
    install(model, planned_units(dense, plan), plan, ranks, compilers)
