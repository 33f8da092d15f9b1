"""A contract's check sees every way to write to a dict, a class and what they hold; once that is taken back it can be bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autotp.capture.contract.guards import Contract, Guard
from autotp.capture.contract.source import MISSING, Source


class Config:
    width = 3


class Narrow(Config):
    pass


class Other:
    width = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.table, self.norm = Narrow(), {"a": 1.5, "b": None}, nn.LayerNorm(4)


ROOT = Source(None, "unit")
CONFIG = Source(ROOT, "attribute", "config")
TABLE = Source(ROOT, "attribute", "table")
KIND = Source(CONFIG, "type")
READ = (
    CONFIG,
    TABLE,
    KIND,
    Source(TABLE, "content"),
    Source(TABLE, "item", "a"),
    Source(ROOT, "hooks", "_forward_hooks"),
    Source(ROOT, "attribute", "extra"),
    Source(CONFIG, "attribute", "width"),
    Source(KIND, "class", "width"),
    Source(KIND, "absent", "depth"),
)

# How somebody writes to what was read, and takes it back.
WRITES: dict[str, tuple[Callable[[Block], Any], Callable[[Block], Any]]] = {
    "an attribute": (lambda b: setattr(b, "extra", 1), lambda b: delattr(b, "extra")),
    "an attribute behind its back": (lambda b: b.__dict__.update(extra=1), lambda b: b.__dict__.pop("extra")),
    "an item": (lambda b: b.table.update(a=2.5), lambda b: b.table.update(a=A)),
    "an equal item": (lambda b: b.table.update(a=float("1.5")), lambda b: b.table.update(a=A)),
    "the order of keys": (
        lambda b: b.table.update(a=b.table.pop("a")),
        lambda b: b.table.update(b=b.table.pop("b")),
    ),
    "an item that is added": (lambda b: b.table.setdefault("c", 1), lambda b: b.table.popitem()),
    "a hook": (lambda b: b._forward_hooks.update({7: print}), lambda b: b._forward_hooks.clear()),
    "the dict of hooks": (
        lambda b: b.__dict__.update(_forward_hooks=OrderedDict({7: print})),
        lambda b: b.__dict__["_forward_hooks"].clear(),
    ),
    "an object's own": (lambda b: setattr(b.config, "width", 4), lambda b: delattr(b.config, "width")),
    "a class": (lambda b: setattr(Narrow, "width", 4), lambda b: delattr(Narrow, "width")),
    "a class before": (lambda b: setattr(Config, "width", 4), lambda b: setattr(Config, "width", 3)),
    "what a class did not have": (lambda b: setattr(Config, "depth", 4), lambda b: delattr(Config, "depth")),
    "the order of classes": (
        lambda b: setattr(Narrow, "__bases__", (Other, Config)),
        lambda b: setattr(Narrow, "__bases__", (Config,)),
    ),
    "an object's class": (
        lambda b: setattr(b.config, "__class__", Other),
        lambda b: setattr(b.config, "__class__", Narrow),
    ),
}
A = 1.5


def bound_to(block: Block) -> Any:
    found: dict[Source, Any] = {}
    guards = tuple(Guard(source, source.get(block, found)) for source in READ)
    assert found[READ[6]] is MISSING
    bound = Contract(guards).bind(block)
    assert bound is not None
    return bound


@pytest.mark.parametrize("name", WRITES)
def test_every_write_is_seen_and_may_be_taken_back(name: str) -> None:
    block = Block()
    block.table["a"] = A
    write, take_back = WRITES[name]
    bound = bound_to(block)
    assert bound.holds()
    write(block)
    try:
        assert not bound.holds()
    finally:
        take_back(block)
    assert bound_to(block).holds()


def test_what_was_not_read_may_change() -> None:
    block = Block()
    bound = bound_to(block)
    for number in range(3):
        block.train(number % 2 == 0)
        block.register_buffer("count", torch.tensor(number))
        Config.unread = number  # type: ignore[attr-defined]
        assert bound.holds()
