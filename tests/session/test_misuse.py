"""Calls that would give wrong numbers silently are refused, on every rank."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autotp
from autotp.errors import AutotpError, PlacementError, UsageError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.session.misuse import CHECK_INPUTS
from tests.contract.parts import HIDDEN, Mlp, twins, values
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


class Dropping(nn.Module):
    """Blocks with dropout of whole values, in a module of its own or by the function alone."""

    def __init__(self, by_module: bool) -> None:
        super().__init__()
        self.inner = twins(lambda index: Mlp())
        self.drop = nn.Dropout(0.5) if by_module else None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.inner(value)
        return nn.functional.dropout(value, 0.5, self.training) if self.drop is None else self.drop(value)


def seeded_apart(by_module: bool) -> list[str]:
    """Runs on a rank: what each call says where ranks are seeded alike, and where they are not."""
    torch.manual_seed(0)
    model = autotp.parallelize(Dropping(by_module), example=(values(2, 5, HIDDEN),))
    said = []
    for training, seed in ((False, dist.get_rank()), (True, 7), (True, dist.get_rank()), (True, dist.get_rank())):
        model.train(training)
        torch.manual_seed(seed)
        try:
            found = model(values(2, 5, HIDDEN))
            said.append(f"{float(found.detach().sum()):.12f}")
        except AutotpError as error:
            return [*said, type(error).__name__]
    return said


@pytest.mark.parametrize("by_module", [True, False], ids=["module", "function"])
def test_ranks_that_would_drop_different_values_are_refused(by_module: bool) -> None:
    (calm, drawn, *refused), other = run_ranks(seeded_apart, 2, by_module)
    assert other[:2] == [calm, drawn]
    assert calm != drawn
    assert refused == ["RankLostError"]


def seeded_apart_at_first() -> str:
    for by_module in (True, False):
        torch.manual_seed(0)
        model = autotp.parallelize(Dropping(by_module), example=(values(2, 5, HIDDEN),)).train()
        torch.manual_seed(dist.get_rank())
        with pytest.raises(PlacementError, match=r"different random states.*seed all alike"):
            model(values(2, 5, HIDDEN))
    os.environ[CHECK_INPUTS] = "0"
    torch.manual_seed(0)
    model = autotp.parallelize(Dropping(by_module=True), example=(values(2, 5, HIDDEN),)).train()
    torch.manual_seed(dist.get_rank())
    model(values(2, 5, HIDDEN))
    model(values(2, 5, HIDDEN, seed=dist.get_rank()))  # nor are inputs compared
    return "refused, and with the switch not"


def test_the_first_call_is_refused_and_a_switch_leaves_that_to_the_user() -> None:
    assert run_ranks(seeded_apart_at_first, 2) == ["refused, and with the switch not"] * 2
