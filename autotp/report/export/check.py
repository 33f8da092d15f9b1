"""Whether a model's own code runs on the smaller values that its cut layers give it.

Other systems keep that code as it is. Where it counts on whole sizes (a `view` with the number of heads in it), it fails
there, and the plan is refused here. The calls that are tried have sizes that no number of ranks divides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ...capture.clone import on_meta
from ...capture.record import record
from ...capture.units import find_units
from ...errors import PlanError, TraceError
from ...planner.survey import Example
from .layers import COLUMN, ROW, Layer


def check_runs(model: nn.Module, layers: Iterable[Layer], ranks: int, calls: Sequence[Example]) -> None:
    """Raises PlanError with what failed if the model cannot run with its layers cut."""
    local = on_meta(model)
    for layer in layers:
        for path in layer.paths:
            if layer.kind in (COLUMN, ROW) and not layer.gathered:
                _cut(local.get_submodule(path), layer.kind, ranks)
    try:
        found = record(local, find_units(local), *calls[0])
        reason = next(iter(found.failed.values()), "")
    except TraceError as error:
        reason = str(error)
    if reason:
        raise PlanError(
            f"the model's own code counts on whole sizes, which other systems do not change ({reason}); run this plan with "
            "autotp.parallelize"
        )


def _cut(module: nn.Module, kind: str, ranks: int) -> None:
    """Make a linear layer as small as it is on a rank."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        shape = list(parameter.shape)
        dim = 0 if kind == COLUMN else len(shape) - 1
        if kind == COLUMN or len(shape) > 1:
            shape[dim] //= ranks
        module._parameters[name] = nn.Parameter(torch.empty(shape, dtype=parameter.dtype, device="meta"))
