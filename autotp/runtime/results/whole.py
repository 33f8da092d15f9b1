"""What stands for a whole value, to whom takes it whole: a cut parameter, a view of one, a result of a unit."""

from __future__ import annotations

import torch

from ..cut.origin import IsCut
from ..cut.views import WholeView
from .tensor import CutResult, closed


def is_of_parameter(value: torch.Tensor) -> bool:
    """Returns if a tensor is a cut parameter or a view of one."""
    return isinstance(value, (IsCut, WholeView))


def stands_for_whole(value: torch.Tensor) -> bool:
    """Returns if a program cannot take a tensor as it is."""
    return is_of_parameter(value) or (isinstance(value, CutResult) and not value.policy.taken_cut)


def taken_whole(value: torch.Tensor, what: str) -> torch.Tensor:
    """A tensor as a program takes it: whole and plain, with its history. `what` asks for it, for errors."""
    if isinstance(value, IsCut):
        return value.whole(what)
    return value.taken(what) if isinstance(value, WholeView) else closed(value)
