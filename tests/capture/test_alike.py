"""Which units a trace holds for: what all have in common is looked at once, and what they have of their own each time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autotp
from autotp.capture.contract.alike import Alike
from autotp.session.study import Study
from autotp.verify import verify

WIDTH = 8


class Options:
    def __init__(self, scale: float, *, deep: float = 1.0) -> None:
        self.scale, self.inner = scale, {"deep": [deep]}


class Block(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)) * self.options.scale * self.options.inner["deep"][0])


class Stack(nn.Module):
    def __init__(self, *options: Options) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, options))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


EXAMPLE = ((torch.randn(2, 3, WIDTH, dtype=torch.float64),), {})
SHARED, EQUAL, OTHER, DEEP = Options(2.0), Options(2.0), Options(3.0), Options(2.0, deep=5.0)


@pytest.mark.parametrize(
    "options",
    [
        [SHARED] * 5,
        [SHARED, SHARED, EQUAL, OTHER, DEEP, SHARED],
        [SHARED, SHARED, OTHER, SHARED, DEEP],
        [SHARED, EQUAL, SHARED, OTHER, EQUAL],
        [OTHER, SHARED, SHARED, EQUAL, OTHER],
    ],
)
def test_units_share_a_plan_if_all_that_is_read_is_equal(options: list[Options]) -> None:
    torch.manual_seed(0)
    model = Stack(*options).double()
    of_values: dict[tuple[float, float], tuple[str, ...]] = {}
    for place, each in enumerate(options):
        values = each.scale, each.inner["deep"][0]
        of_values[values] = (*of_values.get(values, ()), f"blocks.{place}")
    plan = autotp.plan(model, tp=2, example=EXAMPLE)
    assert sorted(unit.instances for unit in plan.units) == sorted(of_values.values())
    verify(model, tp=2, example=EXAMPLE).raise_for_failure()


def test_what_units_have_of_their_own_is_found_in_each() -> None:
    model = Stack(*[SHARED] * 6).double()
    found = Study(model, example=EXAMPLE).found
    alike = Alike(found.traced[found.units[0].shape].contract)
    blocks = list(model.blocks)
    assert all(map(alike.fits, blocks[:3]))
    assert 0 < len(alike.steps) < len(alike.contract.guards)
    blocks[3].down.register_forward_hook(lambda *given: None)
    assert not alike.fits(blocks[3])
    blocks[4].up.forward = torch.relu  # in place of the class's
    assert not alike.fits(blocks[4])
    blocks[4].up = nn.Linear(WIDTH, 4 * WIDTH).double()  # as good as the one before
    assert alike.fits(blocks[4])
    blocks[4].up = nn.Identity()
    assert not alike.fits(blocks[4])
    blocks[5].options = EQUAL
    assert alike.fits(blocks[5])
    blocks[5].options = OTHER
    assert not alike.fits(blocks[5])
    blocks[5].options, blocks[5].up.weight = SHARED, blocks[5].down.weight  # one in place of two
    assert not alike.fits(blocks[5])


class Scaled(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) * sum(self.options.inner)


@pytest.mark.parametrize("other", [3.0, None, Options(2.0), nn.Linear(1, 1), {"deep": 1.0}, [5.0], "word", Scaled])
def test_nothing_is_looked_up_in_what_another_unit_has_not(other: object) -> None:
    """Each unit has a list of its own; what the last one has instead has no length, say."""
    options = [Options(2.0) for _ in range(4)]
    for each in options:
        each.inner = [2.0]  # type: ignore[assignment]
    model = Stack(*[SHARED] * 4).double()
    for number, each in enumerate(options):
        model.blocks[number] = Scaled(each).double()
    found = Study(model, example=EXAMPLE).found
    alike = Alike(found.traced[found.units[0].shape].contract)
    assert all(map(alike.fits, model.blocks))
    options[3].inner = other  # type: ignore[assignment]
    assert not alike.fits(model.blocks[3])
    assert alike.fits(model.blocks[2])


class Paired(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.options
        return x + self.down(torch.relu(self.up(x))) * sum(own.left) * sum(own.right)


def test_which_objects_are_one_is_asked_of_each_unit() -> None:
    options = [Options(2.0) for _ in range(5)]
    for each in options:
        each.left = each.right = [2.0]
    model = Stack(*[SHARED] * 5).double()
    for number, each in enumerate(options):
        model.blocks[number] = Paired(each).double()
    found = Study(model, example=EXAMPLE).found
    alike = Alike(found.traced[found.units[0].shape].contract)
    assert all(map(alike.fits, model.blocks))
    options[3].right = [2.0]
    assert not alike.fits(model.blocks[3])


def test_units_fit_in_the_modes_of_the_first_alone() -> None:
    model = Stack(*[SHARED] * 4).double()
    found = Study(model, example=EXAMPLE).found
    alike = Alike(found.traced[found.units[0].shape].contract)
    assert all(map(alike.fits, model.blocks))
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert not alike.fits(model.blocks[3])
    finally:
        torch.set_default_dtype(before)
    assert alike.fits(model.blocks[3])
