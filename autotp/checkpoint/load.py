"""Filling a parallel model: every parameter gets this rank's part of its tensor, and only that is read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..axes.layout import Layout
from ..errors import UsageError
from ..runtime.cut.origin import IsCut
from ..runtime.cut.tensor import as_cut
from ..runtime.groups.ranks import Ranks
from .boxes import elements
from .lazy import Lazy, Meter, read
from .progress import bar

LOADED = "_autotp_loaded"
logger = logging.getLogger("autotp")


@dataclass(frozen=True)
class Loaded:
    """What loading a model took on one rank."""

    bytes_read: int
    bytes_held: int
    bytes_of_checkpoint: int
    seconds: float


def loading(model: nn.Module) -> Loaded:
    """What loading took on this rank: bytes read from files, bytes held, seconds.

    Raises UsageError for a model that `from_pretrained` did not make.
    """
    loaded: Loaded | None = model.__dict__.get(LOADED)
    if loaded is None:
        raise UsageError("the model was not loaded by autotp.from_pretrained, so there is nothing to report")
    return loaded


def empty(model: nn.Module) -> dict[str, Lazy]:
    """Take the lazy tensors out of a dense model, leaving tensors on the meta device; tied ones stay tied."""
    found: dict[str, Lazy] = {}
    made: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        prefix = path + "." if path else ""
        for name, parameter in module._parameters.items():
            if isinstance(parameter, Lazy):
                found[prefix + name] = parameter
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(_meta(parameter), requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if isinstance(buffer, Lazy):
                found[prefix + name] = buffer
                module._buffers[name] = _meta(buffer)
    return found


def _meta(lazy: torch.Tensor) -> torch.Tensor:
    return torch.empty(lazy.shape, dtype=lazy.dtype, device="meta")


def fill(
    model: nn.Module,
    tensors: Mapping[str, Lazy],
    layouts: Mapping[str, tuple[Layout, ...]],
    ranks: Ranks,
    device: torch.device,
    bytes_of_checkpoint: int,
    bytes_looked_at: int = 0,
) -> Loaded:
    """Read this rank's part of every tensor, by its layouts, into a parallel model that was built on the meta device.

    What was looked at before, to build the model, counts as read.
    """
    start = time.perf_counter()
    expected = sum(_size(tensor, layouts.get(name), ranks.rank) for name, tensor in tensors.items())
    with bar("loading", expected, ranks.rank) as tell:
        meter = Meter(bytes_looked_at, tell)

        def part(name: str) -> torch.Tensor:
            return read(tensors[name], layouts.get(name), ranks.rank, meter)

        held = put(model, parts_of(model, tensors, part, device), device)
    loaded = Loaded(meter.count, held, bytes_of_checkpoint, time.perf_counter() - start)
    model.__dict__[LOADED] = loaded
    return loaded


def _size(tensor: Lazy, layouts: tuple[Layout, ...] | None, rank: int) -> int:
    return (elements(layouts, rank) if layouts else tensor.numel()) * tensor.itemsize


def parts_of(
    model: nn.Module, names: Container[str], part: Callable[[str], torch.Tensor], device: torch.device
) -> dict[int, torch.Tensor]:
    """What takes the place of the parameters and buffers of these names, by their identity, on a device; tied ones once."""
    found: dict[int, torch.Tensor] = {}
    for _, _, full_name, tensor in _slots(model):
        if full_name in names and id(tensor) not in found:
            found[id(tensor)] = part(full_name).to(device)
    return found


def put(model: nn.Module, parts: Mapping[int, torch.Tensor], device: torch.device) -> int:
    """Put parts into a model, and its other buffers on the device too. Returns the bytes that all of these hold."""
    made: dict[int, nn.Parameter] = {}
    held = 0
    for module, name, _, tensor in list(_slots(model)):
        if not isinstance(tensor, nn.Parameter):
            module._buffers[name] = parts.get(id(tensor), tensor).to(device)
            held += tensor.nbytes
        elif id(tensor) in parts:
            if id(tensor) not in made:
                made[id(tensor)] = nn.Parameter(parts[id(tensor)], requires_grad=tensor.requires_grad)
                if isinstance(tensor, IsCut):
                    as_cut(made[id(tensor)], tensor.autotp_origin)
                held += parts[id(tensor)].nbytes
            module._parameters[name] = made[id(tensor)]
    return held


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, torch.Tensor]]:
    """Every place of a parameter or buffer: owner, name in it, name in the model, and what is there."""
    for path, module in model.named_modules():
        prefix = path + "." if path else ""
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                yield module, name, prefix + name, tensor


def report(loaded: Loaded, read_by: Sequence[int]) -> None:
    """Log what every rank has read."""
    mib = ", ".join(f"{count / 2**20:.1f}" for count in read_by)
    whole = loaded.bytes_of_checkpoint / 2**20
    logger.info("loaded in %.1f s; of %.1f MiB the ranks have read %s MiB", loaded.seconds, whole, mib)
