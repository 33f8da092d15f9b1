"""The collectives of a host group as operators, so that a compiled graph keeps them.

Calling an operator that is written in Python costs more than a small collective does. So the operators are for graphs
and for whoever watches operators; a plain call goes straight to the group.
"""

from __future__ import annotations

import weakref

import torch

from .shared import HostGroup

_library = torch.library.Library("autotp", "FRAGMENT")
_groups: weakref.WeakValueDictionary[str, HostGroup] = weakref.WeakValueDictionary()

for _schema in (
    "shared_all_reduce(Tensor value, str op, str group) -> Tensor",
    "shared_all_gather(Tensor value, int size, str group) -> Tensor",
    "shared_reduce_scatter(Tensor parts, str op, str group) -> Tensor",
):
    _library.define(_schema, tags=torch.Tag.pt2_compliant_tag)


def register(name: str, group: HostGroup) -> None:
    """Let graphs refer to a group by a name that is the same on all of its ranks; they do not keep it alive."""
    _groups[name] = group


def all_reduce(value: torch.Tensor, op: str, group: HostGroup, name: str) -> torch.Tensor:
    """As `HostGroup.all_reduce`, for the group that is registered under `name`."""
    return group.all_reduce(value, op) if is_plain(value) else torch.ops.autotp.shared_all_reduce(value, op, name)


def all_gather(value: torch.Tensor, group: HostGroup, name: str) -> torch.Tensor:
    """As `HostGroup.all_gather`, for the group that is registered under `name`."""
    return group.all_gather(value) if is_plain(value) else torch.ops.autotp.shared_all_gather(value, group.size, name)


def reduce_scatter(parts: torch.Tensor, op: str, group: HostGroup, name: str) -> torch.Tensor:
    """As `HostGroup.reduce_scatter`, for the group that is registered under `name`."""
    if is_plain(parts):
        return group.reduce_scatter(parts, op)
    return torch.ops.autotp.shared_reduce_scatter(parts, op, name)


def is_plain(value: torch.Tensor) -> bool:
    """Returns if nobody traces, compiles or watches this call."""
    return (
        not torch.compiler.is_compiling() and type(value) is torch.Tensor and not torch._C._len_torch_dispatch_stack()
    )


_library.impl("shared_all_reduce", lambda value, op, group: _groups[group].all_reduce(value, op), "CPU")
_library.impl("shared_all_gather", lambda value, size, group: _groups[group].all_gather(value), "CPU")
_library.impl("shared_reduce_scatter", lambda parts, op, group: _groups[group].reduce_scatter(parts, op), "CPU")


@torch.library.register_fake("autotp::shared_all_reduce", lib=_library)  # type: ignore[untyped-decorator]
def _(value: torch.Tensor, op: str, group: str) -> torch.Tensor:
    return torch.empty_like(value, memory_format=torch.contiguous_format)


@torch.library.register_fake("autotp::shared_all_gather", lib=_library)  # type: ignore[untyped-decorator]
def _(value: torch.Tensor, size: int, group: str) -> torch.Tensor:
    return value.new_empty((size, *value.shape))


@torch.library.register_fake("autotp::shared_reduce_scatter", lib=_library)  # type: ignore[untyped-decorator]
def _(parts: torch.Tensor, op: str, group: str) -> torch.Tensor:
    return parts.new_empty(parts.shape[1:])
