"""A rank that breaks off: the others hear of it, and all go on only after an error that they all had."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import autotp
from autotp.checkpoint.agree import together
from autotp.errors import AutotpError, RankLostError
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.processes import ProcessRanks
from autotp.runtime.transport import host
from autotp.runtime.transport.alarm import Alarm
from tests.contract.parts import HIDDEN, Mlp, twins, values


class Stop(Exception):
    """What a hook raises to leave a call."""


def models() -> tuple[Any, Any]:
    torch.manual_seed(0)
    dense = twins(lambda index: Mlp())
    return dense, autotp.parallelize(copy.deepcopy(dense), example=(values(2, 5, HIDDEN),))


def given(seed: int) -> torch.Tensor:
    return values(2, 5, HIDDEN, seed=seed)


def raising(*unused: Any) -> None:
    raise Stop("enough")


def in_call(model: Any) -> None:
    """Leaves a call after its first block."""
    handle = model.blocks[0].register_forward_hook(raising)
    try:
        with pytest.raises(Stop):
            model(given(2).requires_grad_())
    finally:
        handle.remove()


def in_backward(model: Any) -> None:
    """Leaves a backward before its last block."""
    x = given(2).requires_grad_()
    handles = []

    def watch(_: Any, __: Any, result: torch.Tensor) -> None:
        result.register_hook(raising)

    handles.append(model.blocks[0].register_forward_hook(watch))
    loss = model(x).sum()
    handles[0].remove()
    with pytest.raises(Stop):
        loss.backward()


def in_inner_call(model: Any) -> None:
    """A call within a call that its caller leaves."""

    def again(*unused: Any) -> None:
        handle.remove()
        in_call(model)

    handle = model.blocks[1].register_forward_pre_hook(again)
    model(given(5))


LEAVING: dict[str, Callable[[Any], None]] = {"call": in_call, "backward": in_backward, "call in a call": in_inner_call}


def all_leave(way: str) -> list[float]:
    """Differences to the dense model after every rank has left in the same place, twice."""
    host.KEEPS_ORDER = way == "shared"
    dense, model = models()
    found = []
    for _ in range(2):
        for leave in LEAVING.values():
            leave(model)
            found.append(far(model, dense))
    return found


def far(model: Any, dense: Any) -> float:
    """The largest difference of outputs and gradients, of one call and its backward."""
    found = []
    for each in (model, dense):
        x = given(3).requires_grad_()
        result = each(x)
        result.square().sum().backward()
        found.append((result.detach(), x.grad))
    return max(float((own - true).abs().max()) for own, true in zip(*found, strict=True))


@pytest.mark.parametrize("way", ["shared", "gloo"])
def test_all_go_on_after_an_error_that_they_all_had(way: str) -> None:
    for found in run_ranks(all_leave, 2, way):
        assert max(found) < 1e-12


def one_leaves(way: str, name: str) -> tuple[str, float]:
    """What each rank's next call ends with, and how soon, after rank 1 has left by itself."""
    host.KEEPS_ORDER = way == "shared"
    _, model = models()
    x = given(2).requires_grad_()
    model(x).sum().backward()
    start = time.monotonic()
    try:
        if dist.get_rank() == 1:
            LEAVING[name](model)
        for _ in range(2):  # the same shapes: what is sent would fit
            model(x).sum().backward()
    except RankLostError as error:
        return str(error), time.monotonic() - start
    return "went on", 0.0


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["shared", "gloo"])
@pytest.mark.parametrize("name", ["call", "backward"])
def test_one_that_leaves_alone_ends_all(way: str, name: str) -> None:
    for told, seconds in run_ranks(one_leaves, 2, way, name):
        assert told != "went on"
        assert seconds < 15


def steps() -> list[str]:
    """A step that one rank fails in while the other is in a collective, and one after it."""
    host.KEEPS_ORDER = False  # over gloo, which has nothing to leave a collective by
    ranks, told = ProcessRanks([[0, 1]]), []
    ranks.check_agreement("", "a collective that all reach, for which their group is made")
    for failing in (1, 2):

        def step(failing: int = failing) -> None:
            if dist.get_rank() == failing:
                raise OSError(28, "no space", "file")
            ranks.check_agreement("", "a collective that only the others reach")

        with pytest.raises(AutotpError) as caught:
            together(ranks, "step", step)
        told.append(str(caught.value))
    return told


def test_a_step_that_fails_on_one_rank_fails_on_all_and_ends_their_collectives() -> None:
    for first, second in run_ranks(steps, 2):
        assert first == "cannot read or write file: no space"
        assert "broke before" in second


def test_a_stack_that_goes_on_while_it_is_read_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that has given its value on meanwhile does not know any more who asked for it: the stack seems to end there."""

    def counting() -> Iterator[int]:
        yield 1

    suspended = counting()
    next(suspended)
    alarm, me = Alarm([0]), threading.get_ident()
    alarm._calls, alarm._thread = [1], me
    assert alarm._is_broken()
    monkeypatch.setattr(sys, "_current_frames", lambda: {me: suspended.gi_frame})
    assert not alarm._is_broken()
