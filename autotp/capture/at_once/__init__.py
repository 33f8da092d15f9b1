"""What the operators that blocks are made of give, where it is plain to see: sizes, strides and type.

What is said here is what torch says; where it is not plain, nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import elementwise, tensors, views
from .made import Made

aten = torch.ops.aten

_ALONE = "neg abs exp log sqrt rsqrt reciprocal sin cos tanh sigmoid silu gelu relu softplus hardswish clamp".split()
_COMPARED = "eq ne lt le gt ge".split()
AT_ONCE: Mapping[Any, Callable[..., Made]] = {
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default), views.viewed),
    aten.transpose.int: views.transposed,
    aten.t.default: views.turned,
    aten.permute.default: views.permuted,
    aten.unsqueeze.default: views.unsqueezed,
    aten.expand.default: views.expanded,
    aten.slice.Tensor: views.sliced,
    aten.select.int: views.selected,
    aten.clone.default: elementwise.cloned,
    aten.copy_.default: elementwise.copied_into,
    aten._to_copy.default: elementwise.converted,
    **{getattr(aten, name).default: elementwise.of_one for name in _ALONE},
    aten.pow.Tensor_Scalar: elementwise.of_one,
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), elementwise.of_two),
    **{getattr(aten, name).Tensor: elementwise.compared for name in _COMPARED},
    aten.floor_divide.default: elementwise.divided_down,
    aten.where.self: elementwise.chosen,
    **dict.fromkeys((aten.mean.dim, aten.sum.dim_IntList), tensors.reduced),
    **dict.fromkeys((aten.mm.default, aten.bmm.default), tensors.product),
    aten.addmm.default: tensors.product_and_bias,
    aten.embedding.default: tensors.looked_up,
    aten.index.Tensor: tensors.indexed,
    aten._softmax.default: tensors.softmax,
    aten.convolution.default: tensors.convolved,
    aten.native_layer_norm.default: tensors.layer_norm,
    aten.native_batch_norm.default: tensors.batch_norm,
    aten._native_batch_norm_legit_no_training.default: tensors.batch_norm_by_running,
    aten.cat.default: tensors.joined,
    aten.stack.default: tensors.stacked,
}
