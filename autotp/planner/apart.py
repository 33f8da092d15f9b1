"""Which units of one structure the trace of the first of them stands for in a plan."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..axes.annotation import annotation
from ..capture.contract.alike import Alike
from ..capture.recorded import Recording
from ..capture.traced import Traced
from ..capture.units import Unit
from ..capture.varying import sized_site
from ..errors import TraceError


def strangers(model: nn.Module, traced: Traced, unit: Unit, others: Sequence[Unit], recording: Recording) -> list[Unit]:
    """Those of some units for which the trace of this one does not hold: their state is another, they are called with other
    sizes, or may read other parameters since they are in other places."""
    is_for_all, alike = _is_for_all_places(model, traced, unit, recording), Alike(traced.contract)

    def holds(other: Unit) -> bool:
        return is_for_all and alike.fits(other.module(model)) and _has_its_sizes(model, traced, other, recording)

    return [other for other in others if not holds(other)]


def _is_for_all_places(model: nn.Module, traced: Traced, unit: Unit, recording: Recording) -> bool:
    """Returns if a trace reads all parameters that its unit has, or nothing that says which one of its siblings this is: a block
    may choose by that what it reads of them."""
    if traced.positions is None and unit.path not in recording.told:
        return True
    module = unit.module(model)
    named = dict(module.named_parameters(remove_duplicate=False))
    names = (str(node.target) for node in traced.graph.nodes if node.op == "get_attr" and annotation(node).parameter)
    read = {id(named[name]) for name in names}
    return all(id(parameter) in read for parameter in named.values())


def _has_its_sizes(model: nn.Module, traced: Traced, unit: Unit, recording: Recording) -> bool:
    """Returns if a trace holds for the tensors that a unit is called with, which ones there are, and their sizes. Calls that
    differ in more than that have programs of their own, but one plan."""
    if unit.path not in recording.resized and unit.shape not in recording.origins:
        return True
    try:
        site = sized_site(unit.module(model), *recording.call_of(unit))
    except TraceError:
        return False
    if site.paths("tensor") != traced.site.paths("tensor"):
        return False
    return site.key != traced.site.key or traced.valid_for(site, traced.positions or ())
