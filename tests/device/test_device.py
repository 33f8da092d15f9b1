"""The test device does what a GPU does: it refuses what belongs elsewhere, and has numbers of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import autotp
from autotp.errors import UsageError
from tests.device.models import dense_model
from tests.device.module import BACKEND, DEVICE
from tests.device.ranks import run_on_device

pytestmark = pytest.mark.usefixtures("device")


def refused(function: Any, text: str) -> bool:
    with pytest.raises(RuntimeError, match=text):
        function()
    return True


def alone() -> list[Any]:
    """Runs on a rank."""
    value, elsewhere = torch.randn(3, 4, device=DEVICE), torch.randn(3, 4)
    other = value.to(f"{DEVICE}:3")
    devices = "all tensors to be on the same device"
    found = [
        refused(lambda: value + elsewhere, devices),
        refused(lambda: value + other, devices),
        refused(lambda: value @ elsewhere.T, devices),
        refused(lambda: torch.nn.functional.embedding(torch.arange(2), value), devices),
        refused(lambda: torch.cat([value, elsewhere]), devices),
        refused(lambda: dist.all_reduce(elsewhere), "No backend|sends tensors of its device"),
        refused(
            lambda: _backend().allreduce([elsewhere]),
            "sends tensors of its",
        ),
    ]
    view = value.view(12)[3:6]
    view.zero_()
    found += [bool((value[0, 3] == 0) & (value[1, :2] == 0).all()), value.device == torch.device(DEVICE, 0)]
    torch.manual_seed(1)
    drawn, of_the_cpu = torch.rand(3, device=DEVICE), torch.rand(3)
    torch.get_device_module(DEVICE).manual_seed(1)
    found += [torch.equal(torch.rand(3, device=DEVICE), drawn), not torch.equal(torch.rand(3), of_the_cpu)]
    with torch.autocast(DEVICE, torch.bfloat16):
        found.append((value @ value.T).dtype is torch.bfloat16 and value.exp().dtype is torch.float32)
    found.append(torch.accelerator.current_accelerator() == torch.device(DEVICE))
    return found


def _backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device(DEVICE))  # type: ignore[union-attr]


def test_it_refuses_what_is_elsewhere_and_draws_by_itself() -> None:
    (found,) = run_on_device(alone, 1, world="its backend")
    assert all(found), found


def without_a_backend() -> str:
    """Runs on a rank, which is told to compute where the group sends nothing."""
    assert dist.get_backend_config() == f"{DEVICE}:{BACKEND}"
    with pytest.raises(UsageError) as caught:
        autotp.parallelize(dense_model("gpt2"), device="cpu")
    return str(caught.value)


def test_a_group_that_cannot_send_is_refused_at_once() -> None:
    for text in run_on_device(without_a_backend, 2, world="its backend"):
        assert "sends mock tensors, and this rank computes on cpu" in text
