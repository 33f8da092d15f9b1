"""What functions of torch, and Python, say of a tensor that no graph has: a tensor of a trace says something else, or nothing."""

from __future__ import annotations

import torch

LEAVES = {
    torch.Tensor.register_hook: "register_hook",
    torch.Tensor.register_post_accumulate_grad_hook: "register_post_accumulate_grad_hook",
    torch.Tensor.retain_grad: "retain_grad",
    torch.Tensor.data.__set__: "the data",  # type: ignore[attr-defined]
    torch.Tensor.backward: "backward",
    torch.Tensor.set_: "set_",
}
NUMBERS = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__float__,
        torch.Tensor.__index__,
        torch.equal,
        torch.allclose,
    }
)
TEXTS = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__})
# Memory itself, which a tensor of a trace has none of: what is written there is lost, or ends the process.
MEMORY = {
    getattr(torch.Tensor, name): name
    for name in ("untyped_storage", "storage", "_typed_storage", "data_ptr", "__dlpack__", "const_data_ptr")
    if hasattr(torch.Tensor, name)
}
# What autograd and the memory say of a tensor: of one that stands for another in a trace, something else.
OF_THE_TENSOR = (
    {
        torch.Tensor.is_inference: "is_inference",
        torch.is_inference: "is_inference",
        torch.Tensor.storage_offset: "storage_offset",
        torch.Tensor.is_shared: "is_shared",
        torch.Tensor.is_pinned: "is_pinned",
        torch.Tensor.is_conj: "is_conj",
        torch.is_conj: "is_conj",
        torch.Tensor.is_neg: "is_neg",
        torch.is_neg: "is_neg",
        torch.Tensor.is_set_to: "is_set_to",
        torch.Tensor.storage_type: "storage_type",
        torch.Tensor.__dir__: "all that it has",
    }
    | {
        getattr(torch.Tensor, name): name
        for name in ("_is_view", "_use_count", "_is_zerotensor", "_view_func", "_view_func_unsafe")
        if hasattr(torch.Tensor, name)
    }
    | {
        getattr(torch.Tensor, name).__get__: name
        for name in (
            *(
                "is_leaf",
                "grad_fn",
                "_grad_fn",
                "output_nr",
                "retains_grad",
                "_version",
                "_base",
                "name",
                "grad_dtype",
                "_cdata",
            ),
            *("_backward_hooks", "_post_accumulate_grad_hooks", "_has_symbolic_sizes_strides"),
        )
        if hasattr(getattr(torch.Tensor, name, None), "__get__")
    }
)
# The same for what Python itself answers, of a number as well.
OF_PYTHON = frozenset(
    {"__class__", "__dict__", "__doc__", "__module__", "__annotations__", "__getstate__", "_python_dispatch"}
)
