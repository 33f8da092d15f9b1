"""Whose memory a parameter is: one that is cut gets memory of its own, and tensors that shared it would be left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ..capture.opaque import tensors_of
from ..errors import UsageError

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


def _ranges(model: nn.Module) -> Iterator[tuple[int, int, str, torch.Tensor]]:
    """Where tensors that modules have, in whatever they hold, begin and end in memory, as far as they have any."""
    seen, walked = set[int](), set[int]()
    for path, module in model.named_modules():
        held = {
            **module._parameters,
            **module._buffers,
            **{n: v for n, v in vars(module).items() if n not in _OF_MODULES},
        }
        for name, value in held.items():
            for tensor in tensors_of(value, walked):
                if id(tensor) not in seen and type(tensor) in (torch.Tensor, nn.Parameter):
                    seen.add(id(tensor))
                    yield from _range(tensor, f"{path}.{name}".lstrip("."))


_OF_MODULES = frozenset(vars(nn.Module()))


def _range(tensor: torch.Tensor, name: str) -> Iterator[tuple[int, int, str, torch.Tensor]]:
    if tensor.layout is not torch.strided or isinstance(tensor, FakeTensor) or tensor.is_meta or not tensor.numel():
        return
    span = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if tensor.data_ptr():
        yield tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size(), name, tensor
