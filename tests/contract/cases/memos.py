"""What code finds out once and keeps where all blocks look: tables by class, backends, what the first call alone does."""

import functools
from typing import Any

import torch
from torch import nn

from tests.contract.parts import Mlp, Net, case


class Kept(Mlp):
    """Multiplies with what a function finds for a tensor, which no block owns."""


def calls(read: Any, *changes: Any, blocks: int = 3):
    """Calls of blocks that multiply with what `read` gives for their hidden values, with changes in between."""

    class Block(Kept):
        def middle(self, y):
            return y.tanh() * read(self, y)

    yield Net(*(Block() for _ in range(blocks)))
    for change in (*changes, *[None] * (3 - len(changes))):
        yield
        if change is not None:
            change()
    yield


def backends():
    """A class with classes made of it, and a function that finds the one for a tensor and keeps it."""

    class Backend:
        factor = 1.0

        def takes(self, value):
            return False

    class Numbers(Backend):
        factor = 0.5

        def takes(self, value):
            return isinstance(value, torch.Tensor)

    known: dict[type, Backend] = {}

    def find(value):
        kind = type(value)
        found = known.get(kind)
        if found is not None:
            return found
        below = []
        kinds = Backend.__subclasses__()
        while kinds:
            each = kinds.pop()
            kinds += each.__subclasses__()
            below.append(each)
        for each in below:
            backend = each()
            if backend.takes(value):
                known[kind] = backend
                return backend
        raise RuntimeError("no backend")

    return Backend, Numbers, known, find


@case()
def backend_that_is_found_once():
    _, numbers, known, find = backends()
    made = []

    def newer():
        class Newer(numbers):
            factor = 0.25

        made.append(Newer)
        known.clear()

    yield from calls(lambda block, y: find(y).factor, lambda: setattr(numbers, "factor", 2.0), newer, known.clear)


@case()
def classes_that_are_counted():
    base, *kept = backends()  # a class is there as long as somebody has it
    made = []
    yield from calls(
        lambda block, y: 1.0 + len(base.__subclasses__()),
        lambda: made.append(type("More", (base,), {})),
        lambda: kept.append(type("Another", (base,), {})),
        lambda: made.append(type("Most", (base,), {})),
    )


class kind:
    """Has the name of an attribute that is asked, and no classes made of it."""


@case()
def classes_that_are_counted_of_an_attribute():
    base, *kept = backends()
    held = functools.partial(base)
    held.kind = base
    yield from calls(
        lambda block, y: 1.0 + len(held.kind.__subclasses__()),
        lambda: kept.append(type("More", (base,), {})),
        lambda: kept.append(type("Another", (base,), {})),
    )


@case()
def first_call_that_does_more():
    seen: dict[str, bool] = {}

    def read(block, y):
        if "once" in seen:
            return 1.0
        seen["once"] = True
        return 3.0

    yield from calls(read, None, seen.clear)


@case()
def second_call_that_does_more():
    seen: list[int] = []

    def read(block, y):
        if len(seen) < 5:
            seen.append(1)
        return 1.0 + len(seen)

    yield from calls(read)


@case()
def counter_that_all_blocks_share():
    count = {"calls": 0}

    def read(block, y):
        count["calls"] += 1
        return 1.0 / count["calls"]

    yield from calls(read)


@case()
def tensor_that_is_kept_by_its_width():
    kept: dict[int, torch.Tensor] = {}

    def read(block, y):
        if y.shape[-1] not in kept:
            kept[y.shape[-1]] = torch.linspace(0.5, 1.5, y.shape[-1], dtype=y.dtype)
        return kept[y.shape[-1]]

    yield from calls(read, None, kept.clear)


@case()
def factors_by_class():
    table = {torch.Tensor: 0.5, nn.Parameter: 3.0}
    yield from calls(
        lambda block, y: table[type(y)] * table[type(block.up.weight)] + table[type(block.up.weight * 2)],
        lambda: table.update({torch.Tensor: 0.75}),
        lambda: table.update({nn.Parameter: 2.0}),
    )


def counted_memo(wrapped: Any):
    """A memoised function that notes what it was asked for, which the blocks count."""
    asked: list[int] = []

    def found(factor, width):
        asked.append(width)
        return factor * width

    memo = wrapped(found)
    yield from calls(lambda block, y: memo(y.shape[-1] % 7) + len(asked), memo.cache_clear, None, memo.cache_clear)


@case()
def memo_that_notes_what_it_is_asked():
    def wrapped(found):
        @functools.cache
        def memo(width):
            return found(0.125, width)

        return memo

    yield from counted_memo(wrapped)


@case()
def memo_of_a_few_that_notes_what_it_is_asked():
    def wrapped(found):
        @functools.lru_cache(maxsize=2)
        def memo(width):
            return found(0.25, width)

        return memo

    yield from counted_memo(wrapped)


@case()
def memo_without_a_name():
    yield from counted_memo(lambda found: functools.lru_cache(functools.partial(found, 0.125)))


@case()
def memo_beside_what_is_refused():
    written = torch.zeros(1, dtype=torch.float64)

    @functools.cache
    def memo(width):
        written.add_(1.0)
        return 0.125 * width

    def read(block, y):
        found = memo(y.shape[-1] % 7)
        print(end="")  # for which there is no program
        return found + written

    yield from calls(read, memo.cache_clear)
