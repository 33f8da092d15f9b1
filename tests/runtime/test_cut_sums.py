"""Sums, means, norms and extremes of cut tensors of every kind of number: exact, and of the dense model's type."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from .test_cut_padding import equal
from .test_cut_parameters import on_ranks, planned


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def weights(net: Any) -> list[Any]:
    return [net.blocks[0].up.weight.detach(), net.blocks[0].down.weight.detach(), net.blocks[0].up.bias.detach()]


def halves(net: Any) -> Any:
    found = []
    for weight in weights(net):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            value = (weight * 0 + 200).to(dtype)
            wanted = value.clone().requires_grad_()
            wanted.mean().backward()
            found += [value.mean(), value.sum(), value.max(), wanted.grad, value.mean(dtype=torch.float32)]
    return [[value.double(), str(value.dtype)] for value in found]


def integers(net: Any) -> Any:
    found = []
    for weight in weights(net):
        for scale in (58, 61):
            value = (weight * 2.0**scale).long()
            value.view(-1)[3] += 1
            found += [value.sum(), value.abs().sum(), value.max(), value.min(), value.amax(), value.amin()]
        least = torch.full_like(value, torch.iinfo(torch.int64).min)
        small = (weight * 100).to(torch.int8)
        found += [least.max(), least.min(), small.sum(), small.max(), small.min(), small.sum(dtype=torch.int32)]
        found += [(weight > 0).sum(), (weight > 0).max(), (weight < -9).min(), (weight > 0).any(), (weight > 0).all()]
        small = (weight.detach() * 9).to(torch.uint8)
        found += [small.any(), torch.all(small), torch.any(small == 300), torch.any(weight.detach() != 0)]
        found += [torch.count_nonzero(small), weight.sum(dtype=torch.int32), small.sum(dtype=torch.float32)]
    return [[int(value), str(value.dtype)] for value in found]


def complex_ones(net: Any) -> Any:
    found = []
    for weight in weights(net):
        value = weight * (1 + 2j)
        found += [value.norm(), torch.linalg.vector_norm(value, 3), value.sum(), value.mean(), value.norm(float("inf"))]
        found += [
            torch._foreach_norm([value])[0],
            torch.linalg.vector_norm(value.to(torch.complex64), dtype=torch.complex128),
        ]
    return [[str(value.dtype), value.real.double()] for value in found]


def recorded(net: Any) -> Any:
    weight = net.blocks[0].up.weight
    (weight.square().mean() + weight.mean() * 3 + weight.sum().cos()).backward()
    first = weight.grad.clone()
    (slope,) = torch.autograd.grad(weight.square().mean().exp(), weight, create_graph=True)
    slope.mean().backward()
    return [first, weight.grad]


RUNS: list[Callable[[Any], Any]] = [halves, integers, complex_ones, recorded]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_sums_are_the_dense_models(run: Callable[[Any], Any], tp: int) -> None:
    true = run(copy.deepcopy(planned(tp)[0]))
    for found in on_ranks(tp, lambda net: equal(run(net), true)):
        assert found
