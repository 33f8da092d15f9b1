"""Products of groups of rows, each with a matrix of its own, as one operator for all types and sizes.

torch's operator for them has kernels for some types and for sizes of whole multiples of 16 bytes only, and runs without
data in bfloat16 alone. A slice of a matrix need not have such a size, and exactness is shown in float64. So where
a model calls torch's operator, this one is traced: the same kernel where there is one, else a loop over the groups.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

KERNELS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_ALIGNMENT = 16  # bytes


@torch.library.custom_op("autotp::grouped_mm", mutates_args=())
def grouped_mm(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows [n, k] times matrices [e, k, m]: the i-th matrix for the rows up to ends[i] [e], which end with the last row."""
    result = rows.new_empty(rows.shape[0], matrices.shape[-1])
    if _has_kernel(rows, matrices, result):
        return torch.ops.aten._grouped_mm.default(rows, matrices, ends)
    for matrix, start, end in _groups(matrices, ends):
        torch.mm(rows[start:end], matrix, out=result[start:end])
    return result


@torch.library.custom_op("autotp::grouped_outer", mutates_args=())
def grouped_outer(rows: torch.Tensor, others: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The sum of the outer products of rows [n, k] and others [n, m] over the rows of every group [e, k, m]."""
    result = rows.new_zeros(ends.shape[0], rows.shape[-1], others.shape[-1])
    if _has_kernel(rows, others, result):
        return torch.ops.aten._grouped_mm.default(rows.t(), others, ends)
    for product, start, end in _groups(result, ends):
        torch.mm(rows[start:end].t(), others[start:end], out=product)
    return result


def _groups(each: torch.Tensor, ends: torch.Tensor) -> list[tuple[torch.Tensor, int, int]]:
    """What belongs to every group that has rows, with its first row and the one behind its last."""
    bounds = [0, *ends.tolist()]
    spans = zip(each.unbind(0), bounds[:-1], bounds[1:], strict=True)
    return [(own, start, end) for own, start, end in spans if start < end]


def _has_kernel(*operands: torch.Tensor) -> bool:
    """Returns if torch's kernels take values of this type, and rows or columns of these sizes."""
    first = operands[0]
    if first.dtype not in KERNELS or not first.shape[0]:
        return False
    return _runs_on(first.device) and all(_is_aligned(operand) for operand in operands)


@functools.cache
def _runs_on(device: torch.device) -> bool:
    """Returns if torch's operator runs on a device at all: older ones have no kernel for it."""
    rows = torch.zeros(_ALIGNMENT, _ALIGNMENT, dtype=torch.bfloat16, device=device)
    try:
        torch.ops.aten._grouped_mm.default(
            rows, rows[None], torch.full((1,), _ALIGNMENT, dtype=torch.int32, device=device)
        )
    except RuntimeError:  # NotImplementedError is one
        return False
    return True


def _is_aligned(operand: torch.Tensor) -> bool:
    strides, sizes = operand.stride()[-2:], operand.shape[-2:]
    for minor in (0, 1):
        if strides[minor] == 1 and strides[1 - minor] >= max(1, sizes[minor]):
            return strides[1 - minor] * operand.element_size() % _ALIGNMENT == operand.data_ptr() % _ALIGNMENT == 0
    return False


@grouped_mm.register_fake
def _(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[-1])


@grouped_outer.register_fake
def _(rows: torch.Tensor, others: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[-1], others.shape[-1])


def _keep(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    rows, matrices, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_rows = grouped_mm(gradient, matrices.transpose(-2, -1), ends) if ctx.needs_input_grad[0] else None
    of_matrices = grouped_outer(rows, gradient, ends) if ctx.needs_input_grad[1] else None
    return of_rows, of_matrices, None


grouped_mm.register_autograd(_backward, setup_context=_keep)


_GROUPED = torch._grouped_mm  # every operator is compared with it, and whoever asks torch for a name may be observed


class GroupedProducts(TorchFunctionMode):
    """Inside the context, calls of torch's operator with rows, matrices and ends are calls of the one here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _GROUPED:
            named = dict(zip(("self", "mat2", "offs", "bias", "out_dtype"), args, strict=False)) | kwargs
            rows, matrices, ends = (named.pop(name, None) for name in ("self", "mat2", "offs"))
            plain = ends is not None and (rows.dim(), matrices.dim()) == (2, 3)
            if plain and all(value is None for value in named.values()):
                return torch.ops.autotp.grouped_mm.default(rows, matrices, ends)
        return func(*args, **kwargs)
