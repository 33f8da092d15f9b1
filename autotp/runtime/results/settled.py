"""What a model returns: nothing in it is still to be communicated, since one rank may look at it while others do not."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch

from .tensor import CutResult
from .traced import TracedLogits, may_break, skip_outermost


def settle(module: Any, args: Any, result: Any) -> Any:
    """What a model returns, as its forward hook: logits that a loss has read stay cut, as a distributed tensor where ranks
    are processes; all others become whole, and so does what is cut over positions or was gathered for nobody yet.

    Looks into dicts, lists, tuples and dataclasses, and into a returned object of any other class.
    """
    if torch.compiler.is_dynamo_compiling():
        skip_outermost()
        if not (_has_lost(result) and may_break()):
            return _settle(result)
    return _settle_uncompiled(result)


def _has_lost(result: Any) -> bool:
    """Returns if a result has logits that a loss has read cut."""
    parts = [result]
    if isinstance(result, (tuple, list)):
        parts = list(result)
    elif not isinstance(result, (torch.Tensor, TracedLogits)):
        parts = list((result if isinstance(result, dict) else getattr(result, "__dict__", {})).values())
    return any(isinstance(part, TracedLogits) and part.head.lost and not part.is_whole for part in parts)


def _settle(result: Any) -> Any:
    if not isinstance(result, (torch.Tensor, TracedLogits, dict, tuple, list)):
        _settle_values(getattr(result, "__dict__", {}))
    return _settled(result)


# The backward of a compiled graph would want a gradient of the distributed tensors in it even where nobody reads them.
_settle_uncompiled = torch.compiler.disable(_settle)


def _settled(value: Any) -> Any:
    if isinstance(value, CutResult):
        return value.policy.settled(value)
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, TracedLogits):
        return value.settled()
    if isinstance(value, dict):
        _settle_values(value)
    elif isinstance(value, (tuple, list)):
        parts = [_settled(part) for part in value]
        if not all(map(operator.is_, parts, value)):
            return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    elif dataclasses.is_dataclass(value):
        _settle_values(getattr(value, "__dict__", {}))
    return value


def _settle_values(values: Any) -> None:
    for name, part in [(name, _settled(part)) for name, part in values.items()]:
        if part is not values[name]:
            values[name] = part
