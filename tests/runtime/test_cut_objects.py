"""What concerns a cut tensor, or a view of one, as an object, and not its elements: gradients, hooks, shapes, attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.errors import UsageError
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.launch import run_ranks
from tests.runtime.test_cut_backwards import IDS, Words

F64 = torch.float64


def deleted(net: Words) -> list[Any]:
    net.loss().backward()
    for parameter in net.parameters():
        del parameter.grad
    return [parameter.grad for parameter in net.parameters()]


WAYS: dict[str, Callable[[Words], list[Any]]] = {way.__name__: way for way in (deleted,)}


def plain(value: Any) -> Any:
    if isinstance(value, IsCut):
        return value.whole().detach()
    return value.detach().as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value


def on_rank() -> dict[str, list[Any]]:
    """Runs on a rank: everything, one model after the other."""
    found = {}
    for name, way in WAYS.items():
        model = autotp.parallelize(Words(), example=(IDS,))
        found[name] = [plain(value) for value in way(model)]
    return found


@pytest.mark.filterwarnings("ignore:Using backward", "ignore:The .grad attribute")
def test_it_is_as_on_the_dense_model() -> None:
    true = {name: [plain(value) for value in way(Words())] for name, way in WAYS.items()}
    for found in run_ranks(on_rank, 2):
        for name, values in true.items():
            assert len(values) == len(found[name])
            for mine, other in zip(found[name], values, strict=True):
                if isinstance(other, torch.Tensor):
                    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9, msg=name)
                else:
                    assert mine == other, name
