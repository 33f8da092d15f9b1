"""What a traced operator writes into is what its schema says, whichever operand that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from autotp.axes.annotation import annotation
from autotp.capture.signature import call_site
from autotp.capture.trace import trace
from autotp.capture.units import Unit
from autotp.capture.varying import VaryingDims

Writes = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


class Keeps(nn.Module):
    """Writes what it is given into two buffers, and reads them."""

    def __init__(self, write: Writes, sizes: Sequence[int]) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("first", torch.zeros(sizes))
        self.register_buffer("second", torch.zeros(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(x, self.first, self.second)
        return x * self.first.sum() + self.second.sum()


def observed(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    on, zero = torch.ones(1, dtype=torch.long), torch.zeros(1, dtype=torch.int32)
    torch.fused_moving_avg_obs_fake_quant(x, on, on, first, second, torch.ones(1), zero, 0.1, 0, 255, -1)


@pytest.mark.parametrize(
    ("write", "sizes", "times", "written"),
    [
        (lambda x, first, second: first.add_(x), (3, 4), 1, {"first"}),
        (lambda x, first, second: torch.mul(x, 2.0, out=second), (3, 4), 1, {"second"}),
        (lambda x, first, second: torch.mul(x, 2.0, out=second).add_(1.0), (3, 4), 2, {"second"}),
        (lambda x, first, second: torch.aminmax(x, dim=0, out=(first, second)), (4,), 1, {"first", "second"}),
        (observed, (1,), 1, {"first", "second"}),
    ],
)
def test_what_an_operator_writes_into(write: Writes, sizes: Sequence[int], times: int, written: set[str]) -> None:
    module, varying = Keeps(write, sizes), VaryingDims()
    site = call_site(module, (torch.ones(3, 4),), {})
    varying.observe(site)
    graph = trace(module, Unit("", 0), site, varying).graph
    shared = [writes for node in graph.nodes if (writes := annotation(node).writes) is not None]
    assert len(shared) == times
    for writes in shared:
        assert {str(each.target) for each in writes if each.op == "get_attr"} & {"first", "second"} == written
        assert not any(each.op == "placeholder" for each in writes)
