"""Units of equal structure that are called with other sizes: one plan where the trace holds for both, else one for each."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

import autotp
from tests.contract.parts import values

CHANNELS = 12


class Stage(nn.Module):
    """What modulates an image has the size of the smallest one, and is resized."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.by = nn.Conv2d(CHANNELS, 24, 3, padding=1), nn.Conv2d(CHANNELS, 24, 1)
        self.down = nn.Conv2d(24, CHANNELS, 3, padding=1)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        resized = functional.interpolate(by, x.shape[-2:])
        return x + self.down(self.up(x.tanh()) * self.by(resized))


class Decoder(nn.Module):
    """Four equal stages, of which the last two have images of twice the size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.by = nn.Conv2d(CHANNELS, CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.stages = nn.ModuleList(Stage() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, by = self.first(x), self.by(x)
        for number, stage in enumerate(self.stages):
            x = stage(functional.interpolate(x, scale_factor=2.0) if number == 2 else x, by)
        return x


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(CHANNELS, 24), nn.Linear(24, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Shorter(nn.Module):
    """The second half of the blocks has half of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x[: len(x) // 2] if number == 2 else x)
        return x


@pytest.mark.parametrize("tp", [2, 3])
def test_sizes_that_are_constants_of_a_trace_have_plans_of_their_own(tp: int) -> None:
    torch.manual_seed(0)
    model, example = Decoder().double(), (values(2, CHANNELS, 4, 4),)
    units = [unit.instances for unit in autotp.plan(model, tp, example=example).units]
    assert units[-2:] == [("stages.0", "stages.1"), ("stages.2", "stages.3")]
    autotp.verify(model, tp, example=example).raise_for_failure()


def test_sizes_that_vary_have_one_plan() -> None:
    torch.manual_seed(0)
    model, example = Shorter().double(), (values(4, CHANNELS),)
    (unit,) = autotp.plan(model, 2, example=example).units
    assert len(unit.instances) == 4
    autotp.verify(model, 2, example=example).raise_for_failure()


class Lengthened(nn.Module):
    """Each row is repeated as often as a first stack says; the same blocks, and others, go on."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.others = (nn.ModuleList(kind() for _ in range(2)) for kind in (Mlp, Modulated))
        self.length = nn.Linear(CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x)
        lengths = self.length(x).sum(-1).abs().ceil().long() + 1
        x = x.repeat_interleave(lengths, 0)
        for block in (self.blocks[1], *self.others):
            x = block(x)
        return x


@pytest.mark.parametrize("tp", [2, 3])
def test_a_block_whose_call_has_a_size_of_values_stays_whole(tp: int) -> None:
    torch.manual_seed(0)
    model, example = Lengthened().double(), (values(4, CHANNELS),)
    plan = autotp.plan(model, tp, example=example)
    assert ("blocks.0",) in [unit.instances for unit in plan.units]
    reasons = {left.name: left.reason for left in plan.outside}
    assert "whose size depends on values" in reasons["others.0.up.weight"]
    assert "whose size depends on values" in reasons["others.1.up.weight"]
    autotp.verify(model, tp, example=example).raise_for_failure()


class Modulated(Mlp):
    """A block that may be given what modulates it, and what is added to that."""

    def __init__(self) -> None:
        super().__init__()
        self.by, self.more = nn.Linear(CHANNELS, 24), nn.Linear(CHANNELS, 24)

    def forward(
        self, x: torch.Tensor, by: torch.Tensor | None = None, more: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = self.up(x).relu()
        y = y if by is None else y * self.by(by)
        return x + self.down(y if more is None else y * self.more(more))


class Once(nn.Module):
    """The first block is modulated by one tensor, the others by another."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(CHANNELS, CHANNELS)
        self.blocks = nn.ModuleList(Modulated() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        by = self.embed(x)
        first, *others = self.blocks
        x = first(x, by=by)
        for block in others:
            x = block(x, more=by.sin())
        return x


@pytest.mark.parametrize("tp", [2, 3])
def test_blocks_that_are_given_other_tensors_have_plans_of_their_own(tp: int) -> None:
    torch.manual_seed(0)
    model, example = Once().double(), (values(4, CHANNELS),)
    units = [unit.instances for unit in autotp.plan(model, tp, example=example).units]
    assert {("blocks.0",), ("blocks.1", "blocks.2")} <= set(units)
    autotp.verify(model, tp, example=example).raise_for_failure()


class Masked(Mlp):
    """With a mask it sums twice."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x)
        return y if mask is None else y + super().forward(y * mask).tanh()


class Traced(nn.Module):
    """Python that makes a mask for a trace only, as it does where it would have to look at numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Masked() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(x) if isinstance(x, FakeTensor) else None
        for block in self.blocks:
            x = block(x, mask)
        return x


def test_calls_with_other_tensors_than_planned_send_what_is_placed_for_them() -> None:
    torch.manual_seed(0)
    report = autotp.verify(Traced().double(), 2, example=(values(4, CHANNELS),))
    reduces = "all_reduce forward activation"
    assert (report.planned[reduces], report.counted[reduces], report.joined) == (2, 2, {})
    report.raise_for_failure()
