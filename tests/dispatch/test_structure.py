"""Modules that were put in, taken out or replaced since a block was cut are noticed, wherever they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from autotp.dispatch.unit import Structure


def put_into_a_part(block: nn.Sequential) -> None:
    block[1].add_module("more", nn.ReLU())


def put_into_one_without_parts(block: nn.Sequential) -> None:
    block[0].add_module("more", nn.ReLU())


def replace(block: nn.Sequential) -> None:
    block[0] = nn.Linear(4, 4)


def take_out(block: nn.Sequential) -> None:
    del block[0]


@pytest.mark.parametrize("change", [put_into_a_part, put_into_one_without_parts, replace, take_out])
def test_other_modules_are_noticed(change: Callable[[nn.Sequential], None]) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    structure = Structure(block)
    assert structure.same_modules()
    change(block)
    assert not structure.same_modules()
