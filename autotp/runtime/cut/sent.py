"""Collectives of torch.distributed that somebody calls with cut tensors: replicas have the same parts, and exchange these."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch.utils import _pytree as pytree

from ...errors import UsageError
from .origin import IsCut, parts_only

MSG_MIXED = (
    "{what} over ranks {others} of this rank's tensor-parallel group would mix different parts of {name}; give it the group of"
    " the replicas, group=mesh['dp'].get_group(), or a whole tensor, .whole()"
)
COLLECTIVES = frozenset(
    function
    for name, function in vars(dist.distributed_c10d).items()
    if type(function) is types.FunctionType and not name.startswith("_")
)


def exchange(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A collective on the parts. Raises UsageError over ranks that have others."""
    cut = [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, IsCut)]
    group = inspect.signature(func).bind(*args, **kwargs).arguments.get("group")
    among = set(dist.get_process_group_ranks(group or dist.group.WORLD))
    for value in cut:
        others = sorted(among & set(value.autotp_origin.ranks.others))
        if others:
            raise UsageError(MSG_MIXED.format(what=func.__name__, others=others, name=value.autotp_origin.name))
    with parts_only():
        result = func(*args, **kwargs)
    for value in cut:
        value.autotp_memory.writes += 1  # what is received may come later: padding has come from padding
    return result
