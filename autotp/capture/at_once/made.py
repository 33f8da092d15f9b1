"""What an operator gives: sizes, strides and type of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .lengths import Size


@dataclass(frozen=True)
class View:
    """A part of a tensor's memory."""

    of: FakeTensor
    sizes: Sequence[Size]
    strides: Sequence[Size]
    further: Size = 0  # elements from where that tensor begins


@dataclass(frozen=True)
class New:
    """A tensor of its own, without gaps: in order, or with its dims from the outermost to the innermost in another one."""

    sizes: Sequence[Size]
    dtype: torch.dtype
    order: Sequence[int] | None = None


# A tensor that is given back is what the operator was given; some operators make several.
Made: TypeAlias = View | New | FakeTensor | tuple[New, ...] | None


def are_alike(x: FakeTensor, *others: Any) -> bool:
    """Returns if tensors are of one type and on one device."""
    kind = x.dtype, x.fake_device
    return all(type(each) is FakeTensor and (each.dtype, each.fake_device) == kind for each in others)


def is_real(x: Any) -> bool:
    """Returns if this is a tensor of floating point numbers."""
    return isinstance(x, torch.Tensor) and x.is_floating_point()
