"""Random numbers of cut values: another draw on every rank that holds another slice, all of them from the one seed.

The ranks' generators are in step. A rank's draw for a slice begins where a number from that common state and the rank's
position say, and leaves the generator where every rank's draw leaves it. So whoever restores the state, as checkpointing
does, draws the same again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def apart(position: int, device: torch.device) -> Iterator[None]:
    """Draw, inside, what the rank at a position draws by itself."""
    if device.type == "cuda":
        with _apart_on_gpu(position, torch.cuda.default_generators[device.index]):
            yield
        return
    generator = torch.default_generator
    number = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    common = generator.get_state()
    generator.manual_seed(_mixed(number, position))
    try:
        yield
    finally:
        generator.set_state(common)


@contextmanager
def _apart_on_gpu(position: int, generator: torch.Generator) -> Iterator[None]:
    """The same from the seed and the offset, which the host knows: nothing waits for the device."""
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.manual_seed(_mixed(seed, offset, position))
    try:
        yield
    finally:
        drawn = generator.get_offset()
        generator.manual_seed(seed)
        generator.set_offset(offset + drawn)


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


def _mixed(*numbers: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:7], "big")
