"""How inputs lie in memory: a fake lies as the tensor that it stands for, and a block given slices has a program."""

from __future__ import annotations

import itertools

import pytest
import torch

from autotp.capture.contract.laying import Laying, laying_of, lies_as

BASE = torch.arange(2.0 * 4 * 6 * 10).reshape(2, 4, 6, 10)
GIVEN = {
    "dense": BASE,
    "turned": BASE.permute(0, 2, 3, 1),
    "first rows": BASE[:, :2],
    "every second": BASE[:, ::2],
    "first columns": BASE[..., :3],
    "one of the last dim": BASE[..., 3],
    "one of a middle dim": BASE[:, :, 2],
    "slices turned": BASE[:, :3, :, ::3].transpose(1, 3),
    "repeated": torch.ones(2, 1, 6).expand(2, 5, 6),
    "repeated in front": torch.arange(6.0).expand(2, 4, 6),
    "repeated and sliced": BASE[0, :, 0, ::2][:, None].expand(4, 3, 5),
    "one number": torch.ones(1).expand(3, 4),
    "sizes of one": BASE[:, :1, :, ::5][:1],
    "no dims": torch.tensor(1.0),
    "nothing": BASE[:, :0, ::2],
    "windows": torch.arange(12.0).unfold(0, 4, 2),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_what_lies_so_has_the_views_of_the_given(given: torch.Tensor) -> None:
    laying = laying_of(given)
    made = laying.empty(given.shape, given.dtype, given.device)
    assert made.shape == given.shape
    assert laying_of(made) == laying
    assert lies_as(given, laying)
    assert lies_as(made, laying)
    assert made.is_contiguous() == given.is_contiguous()
    for length in range(1, given.dim()):
        for start in range(given.dim() - length):
            assert _merges(made, start, length) == _merges(given, start, length), (start, length)


def _merges(tensor: torch.Tensor, start: int, length: int) -> bool:
    """If some dims in a row are one in a view."""
    try:
        tensor.view(*tensor.shape[:start], -1, *tensor.shape[start + length + 1 :])
    except RuntimeError:
        return False
    return True


def test_layings_are_told_apart() -> None:
    """Those of equal shapes, unless views of both are alike."""
    for one, other in itertools.combinations(GIVEN.values(), 2):
        if one.shape == other.shape:
            assert not lies_as(one, laying_of(other))
    assert laying_of(BASE) == Laying((0, 1, 2, 3))
