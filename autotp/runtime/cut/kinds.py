"""Which functions of torch's are which kind; all that are not named here are given whole tensors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

T = torch.Tensor
_PLACES = (torch, T, functional, torch.special)
_WRITING = """__iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__
 __ilshift__ __irshift__ __setitem__""".split()


def _is_elementwise(overloads: Any) -> bool:
    """Returns if an operator computes each element of its result from the elements at its place, as torch itself says."""
    own = [getattr(overloads, name) for name in overloads.overloads()]
    own = [each for each in own if not any(argument.is_out for argument in each._schema.arguments)]
    own = [each for each in own if any(isinstance(arg.type, torch.TensorType) for arg in each._schema.arguments)]
    return bool(own) and all(
        torch.Tag.pointwise in each.tags
        and torch.Tag.nondeterministic_seeded not in each.tags
        and len(each._schema.returns) == 1
        for each in own
    )


def _found(names: Sequence[str]) -> Iterator[Any]:
    for place in _PLACES:
        for name in names:
            for form in (name, f"{name}_"):
                if callable(getattr(place, form, None)):
                    yield getattr(place, form)


# What torch gives no tag: composites, copies, and what makes a tensor of the same sizes.
_ALSO = """absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh clone conj contiguous copy detach divide empty_like
 fill fix full_like greater greater_equal isclose isfinite isinf isnan isreal less less_equal masked_fill multiply negative
 not_equal ones_like positive relu requires_grad subtract true_divide floor_divide zero zeros_like copysign""".split()
_OPERATORS = """add radd sub rsub mul rmul truediv rtruediv div rdiv floordiv rfloordiv mod rmod pow rpow neg pos abs invert eq ne
 lt le gt ge and rand or ror xor rxor lshift rshift rlshift rrshift""".split()
_NOT = ("equal",)  # one answer for all elements

_tagged = [
    name
    for name in sorted({n.rstrip("_") for place in _PLACES for n in dir(place) if not n.startswith("_")} - {*_NOT})
    if hasattr(getattr(torch.ops.aten, name, None), "overloads") and _is_elementwise(getattr(torch.ops.aten, name))
]
ELEMENTWISE = frozenset(
    [*_found([*_tagged, *_ALSO])]
    + [getattr(T, f"__{name}__") for name in _OPERATORS if hasattr(T, f"__{name}__")]
    + [getattr(T, name) for name in _WRITING if hasattr(T, name) and name != "__setitem__"]
)
# What may give a tensor itself, or another over its memory.
SHARING = frozenset([*_found(["contiguous", "positive", "detach", "conj"]), T.__pos__])
# What gives the gradient that it gets to several operands as it is.
PASSING = frozenset(
    [*_found("add sub subtract rsub".split())]
    + [getattr(T, f"__{start}{name}__") for name in ("add", "sub") for start in ("", "r", "i")]
)
DIVIDING = frozenset(
    [*_found("div divide floor_divide remainder fmod".split())]
    + [
        getattr(T, f"__{end}{name}__")
        for name in ("floordiv", "mod")
        for end in ("", "r", "i")
        if hasattr(T, f"__{end}{name}__")
    ]
)
CASTS = frozenset(
    getattr(T, name)
    for name in """to type_as type float double half bfloat16 int long short bool char byte pin_memory cfloat cdouble
    chalf""".split()
    + [name for name in dir(T) if hasattr(getattr(torch, name, None), "is_available")]  # one for each kind of device
)
FOREACH = frozenset(
    getattr(torch, f"_foreach_{name}{end}")
    for name in (*_tagged, "copy", "zero")
    for end in ("", "_")
    if hasattr(torch, f"_foreach_{name}{end}")
) | {torch._fused_adagrad_, torch._fused_adam_, torch._fused_adamw_, torch._fused_sgd_}


def getter(name: str) -> Any:
    """What torch calls to read an attribute of a tensor."""
    return getattr(T, name).__get__


def setter(name: str) -> Any:
    """What torch calls to write one."""
    return getattr(T, name).__set__


def deleter(name: str) -> Any:
    """What torch calls to delete one."""
    return getattr(T, name).__delete__


def _getters(names: str) -> list[Any]:
    return [getter(name) for name in names.split() if hasattr(T, name)]


def _methods(names: str) -> list[Any]:
    return [getattr(place, name) for name in names.split() for place in (T, torch) if hasattr(place, name)]


# What is asked of the memory, or of autograd, and is the same for the whole: the part answers.
OF_PART = frozenset(
    _getters(
        """_backward_hooks _base _grad_fn _post_accumulate_grad_hooks _version device dtype grad_fn itemsize layout name names
        output_nr requires_grad retains_grad volatile grad_dtype _has_grad_dtype_override"""
    )
    + [getter(name) for name in dir(T) if name.startswith("is_") and inspect.isdatadescriptor(getattr(T, name))]
    + [setter(name) for name in ("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")]
    + _methods(
        """__format__ _is_view data_ptr element_size get_device has_names is_complex is_conj is_contiguous is_floating_point
        is_inference is_neg is_pinned is_shared is_signed record_stream requires_grad_
        retain_grad share_memory_ storage storage_offset storage_type untyped_storage _typed_storage is_coalesced _is_zerotensor
        _dimI _dimV _nnz sparse_dim dense_dim __dlpack_device__ is_tensor is_storage"""
    )
)  # fmt: skip
# What changes the shape of a tensor that stays in its memory, and what gives it another memory.
RESHAPING = frozenset(
    place
    for name in "as_strided_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_".split()
    for place in (getattr(T, name), getattr(torch.ops.aten, name))
)
MEMORY = frozenset(_methods("resize_ resize_as_"))
# What autograd and optimizers have of a tensor, whatever is in it.
OF_OBJECT = frozenset(
    [getter("grad"), deleter("grad"), T.register_hook, T.register_post_accumulate_grad_hook, T.detach_]
)
# What sets initial values: its own code runs without gradients.
INITIAL = frozenset(getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_"))
OF_SIZES = frozenset(
    _getters("shape nbytes ndim") + _methods("size numel nelement stride dim ndimension __len__ dim_order")
)
OF_TYPE = frozenset([T.new_zeros, T.new_ones, T.new_empty, T.new_full, T.new_tensor, T.new, T.new_empty_strided])


def label(func: Any) -> str:
    """What a function is called, for a message."""
    name = getattr(func, "__name__", str(func)).partition(".")[0]
    return getattr(getattr(func, "__self__", None), "__name__", name) if name in ("__get__", "__set__") else name


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors that a function writes into: as its schema says, or by torch's own convention for names."""
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _written_by_schema(func, args, kwargs)
    name = getattr(func, "__name__", "").partition(".")[0]
    first = args[0] if args else next(iter(kwargs.values()), None)
    if name.startswith("_fused_"):
        return [tensor for value in args if isinstance(value, (list, tuple)) for tensor in value]
    found = list(_tensors(kwargs.get("out")))
    if name in _WRITING or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace"):
        found += _tensors(first)
    return found


def counts_writes(func: Any) -> bool:
    """Returns if torch counts what a function writes: the statistics of a batch are written without that."""
    return not label(func).removeprefix("native_").startswith(("batch_norm", "instance_norm"))


def _written_by_schema(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    overloads = (
        [func] if isinstance(func, torch._ops.OpOverload) else [getattr(func, name) for name in func.overloads()]
    )
    found: list[Any] = []
    for overload in overloads:
        for i, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                found += [tensor for tensor in _tensors(value) if not any(tensor is other for other in found)]
    return found


def _tensors(value: Any) -> Sequence[T]:
    return [value] if isinstance(value, T) else list(value) if isinstance(value, (list, tuple)) else []
