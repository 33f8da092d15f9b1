"""Recording: what the Python between the units sees, without any unit being run more often than it must."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn

import autotp
from autotp.capture.record import record
from autotp.capture.units import find_units
from tests.contract.parts import HIDDEN, Mlp, Net, values

WIDTH, BLOCKS = 16, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        print("run")  # state that it writes would be put back
        wide = self.up(value)
        return self.down(wide.relu()), wide


class Towers(nn.Module):
    """Two sequences of different lengths through equal blocks, as encoders and decoders have them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[: BLOCKS // 2]:
            first, _ = block(first)
        for block in self.blocks[BLOCKS // 2 :]:
            second, wide = block(second)
        return torch.cat([first, second, wide[..., :WIDTH]], 1)


def test_equal_blocks_give_results_of_the_sizes_they_are_called_with(capsys: pytest.CaptureFixture[str]) -> None:
    model = Towers()
    recording = record(model, find_units(model), (torch.zeros(2, 5, WIDTH), torch.zeros(2, 3, WIDTH)), {})
    assert recording.result.shape == (2, 5 + 3 + 3, WIDTH)
    assert capsys.readouterr().out.count("run") == 2  # one for each length, at any depth
    assert len(recording.calls) == 1
    assert recording.failed == {}


def test_a_result_that_is_read_after_one_of_the_calls_is_read() -> None:
    model = Towers()
    recording = record(model, find_units(model), (torch.zeros(2, 5, WIDTH), torch.zeros(2, 3, WIDTH)), {})
    assert list(recording.unread.values()) == [frozenset()]


class Forgiving(Net):
    """Goes on where a block fails, and says how far it has come."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.tried = 0
        for block in self.blocks:
            try:
                self.tried += 1
                x = block(x)
            except Exception:
                print("failed")
            finally:
                print("tried", self.tried)
        return x


def test_a_run_ends_with_the_last_shape_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = Forgiving(Mlp(0), Mlp(1)).double()
    units = find_units(model)
    whole = record(model, units, (values(2, 5, HIDDEN),), {})
    assert whole.called == {"blocks.0", "blocks.1"}
    assert whole.result is not None
    capsys.readouterr()
    first = record(model, units, (values(3, 5, HIDDEN),), {}, until=whole.calls.keys())
    assert first.called == {"blocks.0"}
    assert first.calls.keys() == whole.calls.keys()
    assert first.result is None
    assert capsys.readouterr().out == "tried 1\n"
    assert "tried" not in vars(model)  # what a run writes is put back, also if it ends early


class Rooted(Net):
    """Calls a function of numpy between its blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x * float(numpy.sqrt(4.0)))
        return out


def test_a_model_whose_own_python_calls_numpy_is_cut() -> None:
    plan = autotp.plan(Rooted(Mlp(0), Mlp(1)).double(), tp=2, example=(values(2, 5, HIDDEN),))
    assert any(unit.layouts() for unit in plan.units)
