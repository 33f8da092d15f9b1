"""Random numbers of cut values: another draw on every rank that holds another slice, all of them from the one seed.

The ranks' generators are in step. A rank's draw for a slice begins where that common state and the rank's position say, and
leaves the generator where every rank's draw leaves it. So whoever restores the state, as checkpointing does, draws the
same again. A generator's state is on the host, whatever it draws for: nothing waits for a device.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def state_of(device: torch.device) -> torch.Tensor:
    """The state of the generator that operators on a device draw from by themselves."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def set_state(device: torch.device, state: torch.Tensor) -> None:
    """Let the generator of a device go on from a state."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def apart(position: int, device: torch.device) -> Iterator[None]:
    """Draw, inside, what the rank at a position draws by itself."""
    common = state_of(device)
    torch.rand((), device=device)  # every rank goes on from behind this draw
    after = state_of(device)
    own = torch.Generator(device).manual_seed(_mixed(common.numpy().tobytes(), position))
    set_state(device, own.get_state())
    try:
        yield
    finally:
        set_state(device, after)


_SEEDING = threading.RLock()


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Draw on the CPU, inside, what these numbers say; the generator is left as it was. One thread at a time."""
    generator = torch.default_generator
    with _SEEDING:
        before = generator.get_state()
        generator.manual_seed(_mixed(*numbers))
        try:
            yield
        finally:
            generator.set_state(before)


def _mixed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
