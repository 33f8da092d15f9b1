"""Calls that would give wrong numbers silently are refused, on every rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import autotp
from autotp.errors import PlacementError, UsageError
from autotp.huggingface.models import build_model
from autotp.runtime.launch import run_ranks
from tests.families import FAMILIES


def call_wrongly() -> None:
    ids = torch.arange(3, 15).reshape(2, 6)
    model = autotp.parallelize(build_model(FAMILIES["llama"].config(), meta=False))
    with pytest.raises(PlacementError, match="different inputs"):
        model(input_ids=ids + dist.get_rank())
    model = autotp.parallelize(build_model(FAMILIES["llama"].config(), meta=False))
    model(input_ids=ids)
    others = [1 - dist.get_rank()]
    with pytest.raises(UsageError, match=rf"process group has ranks \[{others[0]}\]"):
        DistributedDataParallel(model)(input_ids=ids)


def capture() -> list[str]:
    ids = torch.arange(3, 15).reshape(2, 6)
    model = autotp.parallelize(build_model(FAMILIES["llama"].config(), meta=False)).eval()
    model(input_ids=ids)
    messages = []
    for captured in (lambda: torch.jit.trace(model, (ids,), strict=False), lambda: torch.export.export(model, (ids,))):
        with pytest.raises(UsageError) as caught:
            captured()
        messages.append(str(caught.value))
    return messages


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is
def test_captures_that_keep_no_guards_are_refused() -> None:
    for messages in run_ranks(capture, 2):
        assert all("capture the dense model" in message for message in messages)


def test_other_inputs_and_averaged_slices_are_refused() -> None:
    run_ranks(call_wrongly, 2)
