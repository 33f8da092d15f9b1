"""A trace as data, for calls like the one that it was made for, in any process that finds what it found."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree

from ...axes.rules import function_rules
from ..contract.laying import Laying
from ..reads import HandleGuard, HandleRead
from ..signature import CallSite
from ..symbols import Guards
from ..traced import Traced
from .contracts import contract_data, contract_of
from .formulas import formula_of
from .graphs import GraphReader, GraphWriter, constant_data, constant_of
from .names import UnnamedError
from .texts import texts_in
from .values import value_data, value_of

logger = logging.getLogger("autotp")


def trace_data(traced: Traced, unit: nn.Module) -> dict[str, Any] | None:
    """A trace that holds for a unit as data; None if another process could not use it: it has something that has no name."""
    try:
        return _data(traced, unit)
    except UnnamedError:
        return None
    except Exception as error:  # from objects of a model's own, and from torch for a container that it has no name for
        logger.info("a trace is not kept: %r", error)
        return None


def _data(traced: Traced, unit: nn.Module) -> dict[str, Any]:
    own = {name: held for name, held in traced.constants.items() if name not in traced.contract.tensors}
    graph = GraphWriter(traced.graph, traced.symbols, traced.constants)
    guards = traced.guards
    return {
        "contract": contract_data(traced.contract, unit, traced.site.handles),
        "handles": [
            [guard.read.handle, value_data(guard.read.path), texts_in(guard.value), guard.varies]
            for guard in traced.handle_guards
        ],
        "reads": [[read.handle, value_data(read.path)] for read in traced.reads],
        "positions": None if traced.positions is None else [*traced.positions],
        "outputs": value_data(traced.outputs),
        "tree": pytree.treespec_dumps(traced.out_spec),
        "constants": {name: constant_data(held) for name, held in own.items()},
        "places": [[symbol.name, *place] for symbol, place in guards.symbols.items()],
        "conditions": [graph.formula(condition) for condition in guards.conditions],
        "sizes": [[*place, value] for place, value in guards.constants.items()],
        "layings": [[n, [*each.order], [*each.gaps], [*each.repeats]] for n, each in guards.layings.items()],
        "nodes": graph.nodes,
        "tensors": graph.kinds,
        "symbols": graph.symbols(),
    }


def trace_of(
    data: Mapping[str, Any], unit: nn.Module, site: CallSite, positions: tuple[int, ...], rules: tuple[Path, ...]
) -> Traced | None:
    """The trace of some data for a call of a unit, None if it does not hold for that, or the data is none."""
    try:
        return _trace(data, unit, site, positions, rules)
    except UnnamedError:
        return None
    except Exception as error:  # from data of another form, and from objects that are read
        logger.info("a trace is not read: %r", error)
        return None


def _trace(
    data: Mapping[str, Any], unit: nn.Module, site: CallSite, positions: tuple[int, ...], rules: tuple[Path, ...]
) -> Traced | None:
    places = None if data["positions"] is None else tuple(data["positions"])
    if places not in (None, positions):
        return None
    handle_guards = []
    for handle, path, text, varies in data["handles"]:
        read = HandleRead(handle, value_of(path))
        value = read.of(site.handles, positions)
        if texts_in(value) != text:
            return None
        handle_guards.append(HandleGuard(read, value, varies))
    contract = contract_of(data["contract"], unit)
    if contract is None:
        return None
    constants = {name: constant_of(*held) for name, held in data["constants"].items()}
    constants |= {name: source.get(unit) for name, source in contract.tensors.items()}
    graph = GraphReader(data, constants, function_rules(rules))
    guards = Guards(
        {graph.named[name]: (number, dim) for name, number, dim in data["places"]},
        [formula_of(each, graph.named) for each in data["conditions"]],
        {(number, dim): value for number, dim, value in data["sizes"]},
        {n: Laying(tuple(order), frozenset(gaps), frozenset(r)) for n, order, gaps, r in data["layings"]},
    )
    traced = Traced(
        graph=graph.graph,
        site=site,
        outputs=value_of(data["outputs"]),
        out_spec=pytree.treespec_loads(data["tree"]),
        guards=guards,
        handle_guards=tuple(handle_guards),
        reads=tuple(HandleRead(handle, value_of(path)) for handle, path in data["reads"]),
        constants=constants,
        positions=places,
        contract=contract,
        symbols=graph.symbols,
    )
    return traced if traced.valid_for(site, positions) else None
