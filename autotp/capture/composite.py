"""Operators that torch puts together of others: where no rule is for one, a trace has those that it is made of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..axes.rules import operator_rules
from .bags import BAGS
from .loops import LOOPS
from .signature import autocast_dtype

_COMPOSITE = "CompositeImplicitAutograd"
# The first are loops, of which there is more to say (see `loops.py`). The others are about tensors and not about the numbers in
# them.
_NEVER_APART = frozenset(
    """
    lstm gru rnn_tanh rnn_relu
    data detach_ pin_memory requires_grad_ resolve_conj resolve_neg retain_grad set_ set_data type_as
    """.split()
)


@functools.cache
def composites(rules: tuple[Path, ...] = ()) -> Mapping[torch._ops.OpOverload, Callable[..., Any]]:
    """For every operator that is made of others, and that no rule is for, torch's or in these folders: those, called in turn."""
    ruled = operator_rules(rules)
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, own = name.partition("::")
        packet, _, overload = own.partition(".")
        if namespace == "aten" and f"aten.{packet}" not in ruled and _is_apart(name, packet):
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if operator not in BAGS and _gives_tensors(operator):
                found[operator] = functools.partial(_take_apart, operator, operator.decompose)
    return found | {operator: functools.partial(_take_apart, operator, loop) for operator, loop in LOOPS.items()}


def _is_apart(name: str, packet: str) -> bool:
    private = packet.startswith("_") or packet in _NEVER_APART
    return not private and torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)


def _gives_tensors(operator: torch._ops.OpOverload) -> bool:
    """Returns if an operator computes tensors, and draws none."""
    drawn = torch.Tag.nondeterministic_seeded in operator.tags
    returns = [str(each.type) for each in operator._schema.returns]
    return bool(returns) and all(each.endswith(("Tensor", "List[Tensor]")) for each in returns) and not drawn


def _take_apart(operator: torch._ops.OpOverload, parts: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    if any(_computes_otherwise(operator, device) for device in {value.device.type for value in given}):
        return NotImplemented
    try:
        return parts(*args, **kwargs)
    except RuntimeError:  # code that asks for sizes as numbers, which symbols are not: the operator stays one
        return NotImplemented


def _computes_otherwise(operator: torch._ops.OpOverload, device: str) -> bool:
    """Returns if a device need not compute what the parts say: it has a kernel of its own, or autocast, which may compute the
    operator in another type than each of its parts."""
    has_kernel = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, operator.name())
    own = torch._C._dispatch_key_for_device(device)
    return has_kernel(own) or (autocast_dtype(device) is not None and has_kernel(f"Autocast{own}"))
