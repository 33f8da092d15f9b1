"""What a unit gave is given again for the same call, and for no other."""

from __future__ import annotations

import torch
from torch import nn

from autotp.capture.recorded import Recording, sizes_of, types_of
from tests.capture.test_parts import recorded

X = torch.empty(2, 3)
CALL = 0, sizes_of([X], ()), True


def test_a_result_is_for_calls_of_the_same_types_that_leave_nothing() -> None:
    known = Recording(results={CALL: (X.exp(),)}, types={CALL: types_of([X])})
    (given,) = known.result_of(CALL, [X])
    assert (given.shape, given.dtype) == (X.shape, X.dtype)
    assert known.result_of(CALL, [X.half()]) is None
    assert known.result_of(CALL, [X, object()]) is None
    assert known.result_of((1, *CALL[1:]), [X]) is None
    assert known.result_of(CALL, [nn.Parameter(X)]) is None
    known.failed[0] = "it cannot run"
    assert known.result_of(CALL, [X]) is None


def test_a_result_lies_as_it_did_and_a_parameter_is_none() -> None:
    known = Recording(results={CALL: X.t()}, types={CALL: types_of([X])})
    assert known.result_of(CALL, [X]).stride() == (1, 3)
    known.results[CALL] = nn.Parameter(X)
    assert known.result_of(CALL, [X]) is None


def test_results_are_those_of_units_by_their_new_numbers() -> None:
    known = Recording(
        results={CALL: X, (1, *CALL[1:]): X}, types={CALL: [X.dtype], (1, *CALL[1:]): [X.dtype]}, failed={1: "no"}
    )
    other = known.as_units({0: 5, 1: 6})
    assert other.result_of((5, *CALL[1:]), [X]) is not None
    assert other.result_of(CALL, [X]) is None
    assert other.result_of((6, *CALL[1:]), [X]) is None
    assert not known.as_units({}).results


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.down(self.up(x))]


class Adding(nn.Module):
    """Puts something else into the list that each block gives, and casts in every second one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Listing() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(number % 2)):
                given = block(x)
            given.append(x)
            made, before = given
            assert made.dtype == (torch.bfloat16 if number % 2 else torch.float32)
            x = before + made
        return x


def test_what_is_around_units_may_fill_their_lists_and_cast_in_some() -> None:
    model = Adding()
    found = recorded(model, X)
    assert found.on_fakes
    assert not found.failed
    assert found.called == {f"blocks.{number}" for number in range(4)}
    assert not found.resized
