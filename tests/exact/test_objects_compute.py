"""Objects whose own methods compute with what blocks leave in them, or hand it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.left import Held, Mlp, Net, between, equals_dense, not_at_all, steps, words


class Own(Held):
    def halve(self) -> None:
        self.seen = self.seen / 2

    def halve_in_place(self) -> None:
        self.seen.mul_(0.5)

    def shift(self, x: torch.Tensor) -> None:
        self.seen = self.seen + x.mean()

    def largest(self) -> torch.Tensor:
        return self.seen.amax(-1, keepdim=True)

    def scaled(self) -> torch.Tensor:
        self.seen = self.seen / (1 + self.seen.norm())
        return self.seen

    def push(self, value: torch.Tensor) -> torch.Tensor:
        self.items.append(value)
        return self.items[-1]

    def total(self) -> torch.Tensor:
        return sum(item for item in self.items if item is not None)  # type: ignore[no-any-return]

    def add(self, value: torch.Tensor) -> None:
        self.seen = value if self.seen is None else self.seen + value


class Halved(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        held.halve()
        return x + self.down(held.seen)


class HalvedInPlace(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        held.halve_in_place()
        return x + self.down(held.seen)


class Shifted(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        held.shift(x)
        return x + self.down(held.seen)


class ByTheLargest(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        return x + self.down(held.seen) * held.largest()


class Scaled(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        return x + self.down(held.scaled())


class Swapped(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        return x + self.down(held.swap(held.seen * 2))


class Pushed(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        return x + self.down(held.push(functional.gelu(self.up(x))))


class Summed(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.push(functional.gelu(self.up(x)))
        return x + self.down(held.total())


class Added(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.add(functional.gelu(self.up(x)))
        return x + self.down(held.seen)


class AddedBefore(Mlp):
    def forward(self, x: torch.Tensor, held: Own) -> torch.Tensor:
        held.add(x)
        return x + self.down(functional.gelu(self.up(held.seen)))


KINDS = (Halved, HalvedInPlace, Shifted, ByTheLargest, Scaled, Swapped, Pushed, Summed, Added, AddedBefore)


def last(held: Held) -> Any:
    return held.items[-1] if held.seen is None else held.seen


class Computing(Net):
    def forward(self, x: torch.Tensor) -> Any:
        held = Own()
        for block in self.blocks:
            x = self.use(block(x, held), last(held))
        return x, last(held)


@pytest.mark.sample(8)
@pytest.mark.filterwarnings("ignore:.*computes some calls with whole weights")
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("use", [not_at_all, between])
@pytest.mark.parametrize("kind", KINDS)
def test_what_methods_make_is_right(kind: type[Mlp], use: Callable[..., torch.Tensor], tp: int) -> None:
    equals_dense(Computing(kind, use, True), steps, words(4), tp)
