"""Whose memory a parameter is: one that is cut gets memory of its own, and tensors that shared it would be left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ..capture.contract.apart import range_of
from ..capture.opaque import tensors_of
from ..errors import UsageError
from ..runtime.cut.memories import holders_of
from ..runtime.cut.origin import IsCut
from .in_place import InPlace

MSG_SHARED = (
    "{name}, which is to be cut, and {other} are two tensors over one memory, which a cut parameter leaves; let both be one"
    " nn.Parameter, or leave {name} whole in the plan"
)


def check_memory(model: nn.Module, names: Iterable[str]) -> None:
    """Raises UsageError if a parameter that is to be cut shares its memory with another tensor that a module has."""
    wanted = {id(model.get_parameter(name)): name for name in names}
    held = sorted(_ranges(model), key=lambda found: found[:2])
    last = held[0] if held else None  # the one that ends last of those before
    for own in held[1:]:
        assert last is not None
        shared = own[0] < last[1]
        for one, other in ((last, own), (own, last)):
            if shared and id(one[3]) in wanted:
                raise UsageError(MSG_SHARED.format(name=one[2], other=other[2]))
        last = max(last, own, key=lambda found: found[1])


def part_gradients(model: nn.Module) -> None:
    """Give the gradients that one call has summed, which lie side by side in one memory, memory of their own: else each of them
    looks as if somebody held it, once its parameter is cut."""
    found: dict[int, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        gradient = None if isinstance(parameter, IsCut) else parameter.grad
        if gradient is not None and holders_of(gradient) > 1:
            found.setdefault(gradient.untyped_storage()._cdata, []).append(parameter)
    for parameters in found.values():
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if holders_of(gradients[0]) == len(gradients):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()


def _ranges(model: nn.Module) -> Iterator[tuple[int, int, str, torch.Tensor]]:
    """Where tensors that modules have, in whatever they hold, begin and end in memory, as far as they have any."""
    seen, walked = set[int](), set[int]()
    for path, module in model.named_modules():
        held = {
            **module._parameters,
            **module._buffers,
            **{n: v for n, v in vars(module).items() if n not in _OF_MODULES and not isinstance(v, InPlace)},
        }
        for name, value in held.items():
            for tensor in tensors_of(value, walked):
                if id(tensor) not in seen and type(tensor) in (torch.Tensor, nn.Parameter):
                    seen.add(id(tensor))
                    yield from _range(tensor, f"{path}.{name}".lstrip("."))


_OF_MODULES = frozenset(vars(nn.Module()))


def _range(tensor: torch.Tensor, name: str) -> Iterator[tuple[int, int, str, torch.Tensor]]:
    begin, end = range_of(tensor)
    if begin:
        yield begin, end, name, tensor
