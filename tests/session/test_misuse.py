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


def test_other_inputs_and_averaged_slices_are_refused() -> None:
    run_ranks(call_wrongly, 2)
