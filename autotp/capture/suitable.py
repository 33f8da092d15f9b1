"""Modules that cannot be looked at as they are: each is refused in one line, before anything is done to it."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import UsageError

MSG_SCRIPT = "{name} is a ScriptModule, whose Python is gone, so it cannot be traced; give the module it was made from"
MSG_LAZY = "{name} is a lazy parameter, without a shape until the first forward; run one forward of the model first"
MSG_LAYOUT = "{name} is a parameter with the layout {layout}, and only dense ones can be cut; make it dense first"
MSG_DOT = "{name} has a module with a dot in its name, {own!r}, which looks like a path; give it another name"


def check_suitable(model: nn.Module) -> None:
    """Raises UsageError naming the first module or parameter that is of a kind that cannot be traced or cut."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(MSG_SCRIPT.format(name=path or type(module).__name__))
        for own in module._modules:
            if "." in own:
                raise UsageError(MSG_DOT.format(name=path or type(module).__name__, own=own))
        for name, tensor in chain(module._parameters.items(), module._buffers.items()):
            if type(tensor) is nn.Parameter and tensor.layout is torch.strided:  # as most are
                continue
            if is_lazy(tensor):
                raise UsageError(MSG_LAZY.format(name=f"{path}.{name}" if path else name))
            if isinstance(tensor, nn.Parameter) and tensor.layout is not torch.strided:
                layout = str(tensor.layout).removeprefix("torch.")
                raise UsageError(MSG_LAYOUT.format(name=f"{path}.{name}" if path else name, layout=layout))
