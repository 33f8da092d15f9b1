"""What tells calls apart."""

import pytest
import torch
from torch import nn

from autotp.capture.signature import call_site


def test_keys_of_dicts_that_are_equal_are_told_apart() -> None:
    keys = [call_site(nn.Linear(2, 2), ({key: 2.0},), {}).key for key in (1, True, 1.0)]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("one", [True, False])
def test_a_tensor_that_is_there_twice_is_told_from_two(one: bool) -> None:
    first = torch.ones(2)
    site = call_site(nn.Linear(2, 2), (first, first if one else first.clone()), {})
    assert site.same == ((0, 0) if one else (0, 1))
