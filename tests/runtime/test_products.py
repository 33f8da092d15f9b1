"""Products over a few rows are the products of `torch.nn.functional.linear`, however they are computed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from autotp.runtime import products


@pytest.fixture(autouse=True, params=["as tried"])
def faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What trying both products has shown, or is said to have shown."""
    if isinstance(request.param, bool):
        monkeypatch.setattr(products, "is_turned_faster", lambda rows, threads: request.param)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The way each product went."""
    taken: list[str] = []
    plain, turned = functional.linear, torch.mm
    monkeypatch.setattr(functional, "linear", lambda *args: [taken.append("plain"), plain(*args)][1])
    monkeypatch.setattr(torch, "mm", lambda *args: [taken.append("turned"), turned(*args)][1])
    return taken


@pytest.mark.parametrize("faster", [True, False], indirect=True)
@pytest.mark.parametrize("shape", [(1,), (2,), (4,), (2, 2), (4, 1), (5,), (3, 1, 1), ()])
@pytest.mark.parametrize("biased", [True, False])
def test_every_number_of_rows(shape: tuple[int, ...], biased: bool) -> None:
    value, weight = torch.randn(*shape, 256), torch.randn(512, 256)
    bias = torch.randn(512) if biased else None
    got = products.linear(value, weight, bias)
    expected = functional.linear(value.double(), weight.double(), None if bias is None else bias.double())
    assert got.shape == expected.shape
    assert torch.allclose(got.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("faster", "way"), [(True, "turned"), (False, "plain")], indirect=["faster"])
def test_a_few_rows_go_the_faster_way(way: str, ways: list[str]) -> None:
    products.linear(torch.randn(4, 1, 256), torch.randn(512, 256))
    assert ways == [way]


def test_both_ways_are_tried_once_and_draw_no_random_numbers(ways: list[str]) -> None:
    products.is_turned_faster.cache_clear()
    state = torch.get_rng_state()
    for _ in range(3):
        products.linear(torch.ones(4, 256), torch.ones(512, 256))
    assert torch.equal(torch.get_rng_state(), state)
    assert (min(map(ways.count, ("plain", "turned"))), max(map(ways.count, ("plain", "turned")))) == (3, 6)


@pytest.mark.parametrize("faster", [True], indirect=True)
@pytest.mark.parametrize(
    ("value", "weight"),
    [
        (torch.randn(1, 256), torch.randn(512, 256)),
        (torch.randn(5, 256), torch.randn(512, 256)),
        (torch.randn(4, 2048), torch.randn(512, 2048)),  # the rows do not fit the cache
        (torch.randn(4, 32), torch.randn(32, 32)),  # the weight does
        (torch.randn(4, 256), torch.randn(256, 512).t()),
        (torch.randn(4, 256).double(), torch.randn(512, 256).double()),
        (torch.randn(4, 256), torch.randn(512, 256, requires_grad=True)),
        (torch.randn(4, 0), torch.randn(512, 0)),
    ],
    ids=["one row", "many rows", "long rows", "small weight", "turned weight", "float64", "training", "empty"],
)
def test_all_others_stay(value: torch.Tensor, weight: torch.Tensor, ways: list[str]) -> None:
    result = products.linear(value, weight)
    assert ways == ["plain"]
    assert result.requires_grad == weight.requires_grad
