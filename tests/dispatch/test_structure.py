"""Modules and parameters that were put in, taken out or replaced since a block was cut are noticed, wherever they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
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


def other_parameter(block: nn.Sequential) -> None:
    block[0].weight = nn.Parameter(torch.ones(4, 4))


def no_bias(block: nn.Sequential) -> None:
    block[1][0].bias = None


def new_parameter(block: nn.Sequential) -> None:
    block.register_parameter("scale", nn.Parameter(torch.ones(4)))


def new_name(block: nn.Sequential) -> None:
    block[0]._parameters["weights"] = block[0]._parameters.pop("weight")


def other_dicts(block: nn.Sequential) -> None:
    block[0]._parameters = dict(nn.Linear(4, 4)._parameters)


CHANGES = [put_into_a_part, put_into_one_without_parts, replace, take_out]
CHANGES += [other_parameter, no_bias, new_parameter, new_name, other_dicts]


@pytest.mark.parametrize("change", CHANGES)
def test_other_modules_and_parameters_are_noticed(change: Callable[[nn.Sequential], None]) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    structure = Structure(block)
    assert structure.is_same()
    change(block)
    assert not structure.is_same()
