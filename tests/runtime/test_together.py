"""Several values in one call: the numbers and gradients of a call for each, whatever of them wants a gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.runtime.collectives import single, together
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate

SIZE = 3
OVER = (Factor(SIZE, 1),)
# Of 7 columns the last rank has one, and two that are padding.
LAYOUT = Leaf(7, Cut(OVER, 9))
PLACES = [(1, LAYOUT), (0, LAYOUT), (2, LAYOUT)]
SHAPES = [(2, 3), (3,), (1, 2, 3)]

Values = tuple[torch.Tensor, ...]
Way = Callable[[Values, Ranks], Values]


def gathered(values: Values, ranks: Ranks, *, summed: bool) -> Values:
    return together.gather_together(values, ranks, OVER, PLACES, summed)


def gathered_alone(values: Values, ranks: Ranks, *, summed: bool) -> Values:
    over = OVER if summed else ()
    return tuple(single.gather(v, ranks, OVER, *place, over) for v, place in zip(values, PLACES, strict=False))


WAYS: dict[str, tuple[Way, Way, int]] = {
    "reduce": (
        lambda values, ranks: together.reduce_together(values, ranks, OVER),
        lambda values, ranks: tuple(single.reduce(value, ranks, OVER) for value in values),
        1,
    ),
    "enter": (
        lambda values, ranks: together.enter_together(values, ranks, OVER, "parameter"),
        lambda values, ranks: tuple(single.enter(value, ranks, OVER, "parameter") for value in values),
        1,
    ),
    "gather": (
        lambda values, ranks: gathered(values, ranks, summed=False),
        lambda values, ranks: gathered_alone(values, ranks, summed=False),
        1,
    ),
    "gather and scatter": (
        lambda values, ranks: gathered(values, ranks, summed=True),
        lambda values, ranks: gathered_alone(values, ranks, summed=True),
        2,
    ),
}


def on_ranks(
    way: Way, wanting: tuple[bool, ...], read: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> list[object]:
    """Results, gradients, and the number of calls, of every rank; only the results in `read` are read."""

    def run(ranks: Ranks) -> object:
        generator = torch.Generator().manual_seed(ranks.rank)
        values = tuple(
            torch.randn(shape, generator=generator).to(dtype).requires_grad_(wants)
            for shape, wants, dtype in zip(SHAPES, wanting, dtypes, strict=False)
        )
        with ranks.logging() as log:
            results = way(values, ranks)
            total = sum(((results[i] * (i + 1 + ranks.rank)).square().sum() for i in read), torch.zeros(()))
            if total.requires_grad:
                total.backward()
        return [result.detach() for result in results], [value.grad for value in values], log.calls

    return simulate(SIZE, run)


def assert_alike(name: str, wanting: tuple[bool, ...], read: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> int:
    """Returns the number of calls that the values took together."""
    joined, alone, _ = WAYS[name]
    found, expected = on_ranks(joined, wanting, read, dtypes), on_ranks(alone, wanting, read, dtypes)
    for (results, gradients, calls), (others, other_gradients, other_calls) in zip(found, expected, strict=True):  # type: ignore[misc]
        torch.testing.assert_close(results, others)
        for one, other in zip(gradients, other_gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)
        assert len(calls) <= len(other_calls)
        assert {(c.kind, c.phase, c.of) for c in calls} == {(c.kind, c.phase, c.of) for c in other_calls}
    return len(found[0][2])  # type: ignore[index]


FLOATS = (torch.float32,) * 3


@pytest.mark.parametrize("name", WAYS)
def test_all_values_are_one_call(name: str) -> None:
    assert assert_alike(name, (True, True, True), (0, 1, 2), FLOATS) == WAYS[name][2]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("wanting", [(True, False, True), (False, True, False), (False, False, False)], ids=str)
def test_some_want_no_gradient(name: str, wanting: tuple[bool, ...]) -> None:
    assert_alike(name, wanting, (0, 1, 2), FLOATS)


@pytest.mark.parametrize("name", ["reduce", "enter"])
@pytest.mark.parametrize("read", [(0, 2), (1,), ()], ids=str)
def test_some_results_are_not_read(name: str, read: tuple[int, ...]) -> None:
    assert_alike(name, (True, True, True), read, FLOATS)


@pytest.mark.parametrize("name", WAYS)
def test_other_dtypes_than_one_another_are_sent_apart(name: str) -> None:
    """Under autocast: laid side by side they would be converted."""
    dtypes = (torch.float32, torch.bfloat16, torch.float32)
    assert assert_alike(name, (True, True, True), (0, 1, 2), dtypes) == 3 * WAYS[name][2]


@pytest.mark.parametrize("name", WAYS)
def test_nothing_is_recorded_without_gradients(name: str) -> None:
    joined, _, _ = WAYS[name]

    def run(ranks: Ranks) -> bool:
        values = tuple(torch.ones(shape, requires_grad=True) for shape in SHAPES)
        with torch.no_grad():
            return any(result.grad_fn is not None for result in joined(values, ranks))

    assert simulate(SIZE, run) == [False] * SIZE
