"""Memory that was given as the `.data` of a cut parameter: the parameter has a copy of its part, so a later write there must not
go unnoticed."""

from __future__ import annotations

import torch

from ...errors import UsageError

MSG_WRITTEN = (
    "the tensor that was given as .data of {name} was written to afterwards; {name} is cut over ranks and has memory of its own:"
    " write to the parameter itself, under torch.no_grad()"
)
# By the parameter's identity: its name, a second tensor over the memory, and how often that was written to.
given: dict[int, tuple[str, torch.Tensor, int]] = {}


def note_given(parameter: torch.Tensor, name: str, value: torch.Tensor) -> None:
    """A parameter has a copy of its part of a value from now on."""
    given.pop(id(parameter), None)
    if not value.is_inference():
        second = value.detach()
        given[id(parameter)] = name, second, second._version


def check_given() -> None:
    """Raises UsageError if given memory was written to; what nobody else holds any more is forgotten."""
    for key, (name, second, writes) in list(given.items()):
        if second._version != writes:
            given.clear()
            raise UsageError(MSG_WRITTEN.format(name=name))
        if torch._C._storage_Use_Count(second.untyped_storage()._cdata) <= 2:  # the tensor here, and what asks
            del given[key]
