"""Parameters of blocks that the Python around them uses by itself, whichever block has them and whoever holds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from autotp.capture.leaves import leaves_of
from autotp.capture.record import record
from autotp.capture.units import find_units

WIDTH, BLOCKS = 8, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Around(nn.Module):
    """Adds up a weight that `of` gives beside what the blocks do."""

    def __init__(self, of: Callable[[Around], torch.Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.scale, self.of = nn.Parameter(torch.ones(WIDTH)), of
        self.held = [self.blocks[2].down.bias]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x + self.of(self).sum()


def used(model: nn.Module) -> dict[str, str]:
    return record(model, find_units(model), (torch.zeros(2, WIDTH),), {}).used_outside


@pytest.mark.parametrize("number", range(BLOCKS))
def test_a_weight_of_any_block_is_known_by_the_name_in_the_first(number: int) -> None:
    assert used(Around(lambda model: model.blocks[number].up.weight)) == {"blocks.0.up.weight": "sum"}


@pytest.mark.parametrize("number", range(BLOCKS))
def test_a_bias_that_the_model_has_under_a_name_of_its_own(number: int) -> None:
    model = Around(lambda model: model.scale)
    assert used(model) == {}
    model.scale = model.blocks[number].down.bias
    assert used(model) == {"blocks.0.down.bias": "sum"}


def test_a_bias_that_a_list_holds() -> None:
    assert used(Around(lambda model: model.held[0])) == {"blocks.0.down.bias": "sum"}


def test_blocks_whose_parts_hold_each_other() -> None:
    model = Around(lambda model: model.blocks[1].down.weight)
    for block in model.blocks:
        block.up.back = [block]  # in a list, as it would be a part else
        block.add_module("again", block.up)
    assert used(model) == {"blocks.0.down.weight": "sum"}


@pytest.mark.parametrize(
    "tree",
    [
        ((1, [2, None], {"a": torch.Size([3]), "b": ()}), {}),
        torch.finfo(torch.float32),
        torch.max(torch.eye(2), 0),  # a named tuple
        [{"x": slice(1)}, {1: [[[True]]]}, "word"],
        (),
    ],
)
def test_leaves_are_those_that_torch_finds(tree: object) -> None:
    found, expected = leaves_of(tree), pytree.tree_leaves(tree)
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected, strict=True))
