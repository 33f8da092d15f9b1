"""What a model returns: nothing in it is still to be communicated, since one rank may look at it while others do not."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch

from .deferred import Deferred
from .logits import CutLogits, settled_logits
from .sequence import CutSequence, made_whole


def settle(module: Any, args: Any, result: Any) -> Any:
    """What a model returns, as its forward hook: logits that a loss has read stay cut, as a distributed tensor where ranks
    are processes; all others become whole, and so does what is cut over positions or was gathered for nobody yet.

    Looks into dicts, lists, tuples and dataclasses, and into a returned object of any other class.
    """
    if torch.compiler.is_dynamo_compiling():
        return None
    parts = _settled(result)
    if parts is result and _is_plain_object(result):
        _settle_attributes(result)
    return parts


def _settled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _settled_tensor(value)
    if isinstance(value, dict):
        for name, part in [(name, _settled(part)) for name, part in value.items()]:
            if part is not value[name]:
                value[name] = part
    elif isinstance(value, (tuple, list)):
        parts = [_settled(part) for part in value]
        if not all(map(operator.is_, parts, value)):
            return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    elif dataclasses.is_dataclass(value):
        _settle_attributes(value)
    return value


def _settle_attributes(value: Any) -> None:
    attributes = getattr(value, "__dict__", {})
    for name, part in list(attributes.items()):
        attributes[name] = _settled(part)


def _is_plain_object(value: Any) -> bool:
    return not isinstance(value, (torch.Tensor, dict, tuple, list)) and not dataclasses.is_dataclass(value)


def _settled_tensor(value: torch.Tensor) -> torch.Tensor:
    if isinstance(value, CutLogits):
        return settled_logits(value)
    if isinstance(value, CutSequence):
        return made_whole(value)
    return value.whole() if isinstance(value, Deferred) else value
