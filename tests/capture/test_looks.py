"""What tensors of the state look like to a program."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from autotp.capture.contract.looks import Looks


class Kind(torch.Tensor):
    """A class of its own."""


ONES = torch.ones(2, 3)
TENSORS = [
    ONES,
    torch.zeros(2, 3),
    torch.ones(3, 2),
    torch.ones(2, 3, 1),
    ONES.double(),
    ONES.clone().requires_grad_(),
    ONES.as_subclass(Kind),
    nn.Parameter(ONES),
    nn.Parameter(ONES, requires_grad=False),
    nn.Parameter(ONES.double()),
    nn.Buffer(ONES.clone()),
]


def test_a_tensor_looks_like_another_if_all_that_is_known_of_both_is_equal() -> None:
    for one, other in itertools.product(TENSORS, repeat=2):
        assert Looks.of(one).are_of(other) is (Looks.of(one) == Looks.of(other))


def test_values_do_not_matter_nor_whether_a_parameter_is_frozen() -> None:
    alike = {
        (n, m) for n, m in itertools.combinations(range(len(TENSORS)), 2) if Looks.of(TENSORS[n]).are_of(TENSORS[m])
    }
    assert alike == {(0, 1), (0, 10), (1, 10), (7, 8)}
