"""Blocks that find cut parameters in the objects that they are given, and what methods of objects give them."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.left import HIDDEN, Mlp, equals_dense, steps, words


class Holder:
    """Has a parameter of the first block in every way in which an object can have it."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table, self.named, self.pair = table, {"table": table}, (None, table)
        self.inner = types.SimpleNamespace(table=table)

    def get(self) -> torch.Tensor:
        return self.table

    @property
    def own(self) -> torch.Tensor:
        return self.table

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table.T

    def take(self, name: str) -> Any:
        return self.named.pop(name)


class Only:
    """Has it once: where there are several, what is written shows in the others, and such a block has no program."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table


def gated(block: Mlp, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x + block.down(functional.gelu(block.up(x))) + (x @ table.T).relu() @ table


class ByAttribute(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return gated(self, x, holder.table)


class ByMethod(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return gated(self, x, holder.get())


class ByProperty(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return gated(self, x, holder.own)


class ByItem(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return gated(self, x, holder.named["table"])


class ByPair(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return gated(self, x, holder.pair[1])


class InAnother(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return gated(self, x, holder.inner.table)


class OfItsData(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return gated(self, x, holder.table.data)


class MethodComputes(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x))) + holder.times(x).relu() @ holder.table


class AfterAChange(Mlp):
    def forward(self, x: torch.Tensor, holder: Any) -> torch.Tensor:
        holder.seen = x
        return gated(self, x, holder.table) / holder.table.shape[0]


class LeavesItThere(Mlp):
    def forward(self, x: torch.Tensor, holder: Any) -> torch.Tensor:
        holder.kept, holder.more = holder.table, holder.table * 2
        return x + self.down(functional.gelu(self.up(x))) + (x @ holder.kept.T).relu() @ holder.more


class LeavesItsOwn(Mlp):
    """Reads the weight of the block before it."""

    def forward(self, x: torch.Tensor, holder: Any) -> torch.Tensor:
        before, holder.kept = getattr(holder, "kept", None), self.up.weight
        return x + self.down(functional.gelu(self.up(x))) if before is None else gated(self, x, before)


class TakesBack(Mlp):
    """What it leaves is cut, and comes back by way of a method that changes the object."""

    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        holder.named["inner"] = functional.gelu(self.up(x))
        return x + self.down(holder.take("inner"))


KINDS = (
    ByAttribute, ByMethod, ByProperty, ByItem, ByPair, InAnother, OfItsData, MethodComputes, AfterAChange, LeavesItThere,
    LeavesItsOwn, TakesBack,
)  # fmt: skip
VIEWS = {
    "itself": lambda weight: weight,
    "detached": lambda weight: weight.detach(),
    "rows": lambda weight: weight[:HIDDEN],
    "twice": lambda weight: weight * 2,
}


class Net(nn.Module):
    def __init__(self, kind: type[Mlp], view: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.blocks, self.view = Mlp(), nn.ModuleList(kind() for _ in range(2)), VIEWS[view]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        holder = getattr(type(self.blocks[0]), "holder", Holder)(self.view(self.first.up.weight))
        x = x + self.first.down(functional.gelu(self.first.up(x)))
        for block in self.blocks:
            x = block(x, holder)
        return x


@pytest.mark.sample(12)
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_parameter_in_an_object_is_whole(kind: type[Mlp], view: str, tp: int) -> None:
    equals_dense(Net(kind, view), steps, words(3), tp)


@torch.no_grad()
def written(model: nn.Module) -> list[torch.Tensor]:
    """Outputs of calls without gradients, between which the weights change."""
    found = []
    for number, length in enumerate((4, 7, 4)):
        found.append(model(words(length, number)))
        for parameter in model.parameters():
            parameter.mul_(0.75)
    return found


class WritesThere(Mlp):
    holder = Only

    def forward(self, x: torch.Tensor, holder: Only) -> torch.Tensor:
        with torch.no_grad():
            holder.table.mul_(0.9)
        return gated(self, x, holder.table)


class WritesARow(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        with torch.no_grad():
            holder.get()[1].mul_(0.9)
        return gated(self, x, holder.table)


class WritesWhatItTakes(Mlp):
    def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
        table = holder.named["table"]
        holder.take("table").mul_(0.9)
        holder.named["table"] = table
        return gated(self, x, table)


@pytest.mark.filterwarnings("ignore:.*writes into a cut parameter")
@pytest.mark.parametrize(
    "kind", [ByAttribute, MethodComputes, AfterAChange, WritesThere, WritesARow, WritesWhatItTakes]
)
def test_it_is_as_it_is_now(kind: type[Mlp]) -> None:
    equals_dense(Net(kind, "itself"), written, words(3), 2)
