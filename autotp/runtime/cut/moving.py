"""Moving what a rank holds of a model to the device where it computes."""

from __future__ import annotations

import torch
from torch import nn

from ..devices.devices import slots_of
from .origin import IsCut, parts_only
from .tensor import as_cut


def move(model: nn.Module, device: torch.device) -> None:
    """Put what a model holds on a device: tied parameters stay tied, and what is on the meta device stays there."""
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for slots, name, tensor in slots_of(model):
        if tensor.device not in (device, torch.device("meta")):
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor, _moved(tensor, device)
            slots[name] = moved[id(tensor)][1]


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    with parts_only():
        there = tensor.detach().as_subclass(torch.Tensor).to(device)
        if isinstance(tensor, nn.Parameter):
            there = nn.Parameter(there, requires_grad=tensor.requires_grad)
    if isinstance(tensor, IsCut):
        as_cut(there, tensor.autotp_origin)
    own = ("autotp_origin", "autotp_memory")
    there.__dict__.update({name: value for name, value in tensor.__dict__.items() if name not in own})
    return there
