"""Padding of cut tensors is zero whatever is computed of them, so that programs compute what the dense model does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.runtime.groups.launch import run_ranks

from .test_cut_parameters import IDS, Net, on_ranks, planned, same


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def equal(found: Any, true: Any) -> bool:
    """As `same`, on a rank: what is cut is gathered there."""
    if isinstance(true, (list, tuple)):
        return len(found) == len(true) and all(equal(a, b) for a, b in zip(found, true, strict=True))
    if not isinstance(true, torch.Tensor):
        return bool(found == true or same(found, true))
    return same(found.detach().whole() if hasattr(found, "whole") else found, true.detach())


def smooth(net: Any) -> Any:
    """The loss of a net, and its gradients after a backward."""
    loss = net(IDS).square().mean()
    loss.backward()
    return [loss.detach(), *[p.grad for p in net.parameters()]]


def given_as_parameter(net: Any) -> Any:
    net.blocks[0].down.weight = nn.Parameter(torch.full_like(net.blocks[0].down.weight, 0.1))
    net.blocks[0].up.bias = nn.Parameter(net.blocks[0].up.bias.detach() + 1)
    net.blocks[1].up.weight = nn.Parameter(1 / net.blocks[1].up.weight)
    return smooth(net)


def given_to_a_call(net: Any) -> Any:
    values = {name: value.cos() for name, value in net.named_parameters()}
    loss = torch.func.functional_call(net, values, (IDS,)).square().mean()
    loss.backward()
    return [loss.detach(), *[p.grad for p in net.parameters()]]


def assigned(net: Any) -> Any:
    for block in net.blocks:
        values = {name: value.detach() + 1 for name, value in block.named_parameters()}
        block.load_state_dict(values, assign=True)
    return smooth(net)


def swapped(net: Any) -> Any:
    for parameter in net.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().exp()))
    return smooth(net)


def copied(net: Any) -> Any:
    net.blocks[0].down.weight = nn.Parameter(copy.deepcopy(net.blocks[0].down.weight.detach() + 1))
    return smooth(net)


def in_lists(net: Any) -> Any:
    held = list(net.parameters())
    for parameter, value in zip(held, torch._foreach_add([p.detach() for p in held], 1), strict=True):
        parameter.data = value
    return smooth(net)


def recorded_where_it_has_no_slope(net: Any) -> Any:
    net.zero_grad()
    held = list(net.parameters())
    total = sum(p.abs().sqrt().sum() + (1 / p).mean() + (p.square().log() * p).square().sum() for p in held)
    total.backward()
    return [p.grad for p in held]


def twice(net: Any) -> Any:
    held = list(net.parameters())
    gradients = torch.autograd.grad(sum((1 / p).cos().sum() for p in held), held, create_graph=True)
    sum((g * p.cos()).mean() for g, p in zip(gradients, held, strict=True)).backward()
    return [p.grad for p in held]


def scaled(net: Any) -> Any:
    """A scaler of gradients looks at each of them for what is not finite."""
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    loss = net(IDS).square().mean() + sum(1e-4 * p.abs().sqrt().sum() for p in net.parameters())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return [scaler.get_scale(), *net.parameters()]


def scaled_and_seen(net: Any) -> Any:
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(net(IDS).square().mean()).backward()
    rows = [p.grad[0] for p in net.parameters() if p.grad is not None]
    scaler.unscale_(optimizer)
    return [scaler.get_scale(), rows]


def scaled_after_a_cast(net: Any) -> Any:
    weight = net.blocks[0].up.weight
    optimizer, scaler = torch.optim.SGD([weight], 0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    narrow = weight.float()
    narrow.abs_().sqrt_()
    scaler.scale(narrow.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return [scaler.get_scale(), weight]


def written_before_backward(net: Any) -> Any:
    weight = net.blocks[0].up.weight.data
    factor = torch.full((50, 32), 2.0, requires_grad=True)
    value = weight * 1
    value *= factor
    value.exp_()
    value.sum().backward()
    return [factor.grad, value.detach()]


def divided(net: Any) -> Any:
    count = torch.full_like(net.blocks[0].up.weight, 3, dtype=torch.int64).add_(1)
    other = (net.blocks[0].up.weight.detach() * 1000).long()
    found = [100 // count, other % count, torch.div(100, count, rounding_mode="trunc"), other.remainder_(count)]
    by_rows, by_all = torch.arange(1, 51)[:, None], torch.arange(1, 1601).view(50, 32)
    found += [other // by_rows, torch.fmod(other, by_all), other.clone().floor_divide_(by_rows)]
    other //= by_all
    return [*found, other]


def narrow(net: Any) -> Any:
    small = torch.ones_like(net.blocks[0].up.weight, dtype=torch.float8_e4m3fn)
    return [small.to(torch.float64).sum(), (net.blocks[0].down.weight + 1).to(torch.uint16).long()]


RUNS: list[Callable[[Any], Any]] = [
    given_as_parameter,
    given_to_a_call,
    assigned,
    swapped,
    copied,
    in_lists,
    recorded_where_it_has_no_slope,
    twice,
    scaled,
    scaled_and_seen,
    scaled_after_a_cast,
    written_before_backward,
    divided,
    narrow,
]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_padding_does_not_come_through(run: Callable[[Any], Any], tp: int) -> None:
    true = run(copy.deepcopy(planned(tp)[0]))
    for found in on_ranks(tp, lambda net: equal(run(net), true)):
        assert found


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_who_looks_for_what_is_no_number_finds_none() -> None:
    true = recorded_where_it_has_no_slope(copy.deepcopy(planned(3)[0]))
    with torch.autograd.set_detect_anomaly(True):
        for found in on_ranks(3, lambda net: equal(recorded_where_it_has_no_slope(net), true)):
            assert found


def compiled() -> Any:
    """Runs on a rank: steps of a compiled net of which the last rank alone has padding."""
    torch.set_default_dtype(torch.float64)
    found = []
    for make in (
        lambda net: net,
        lambda net: torch.compile(autotp.parallelize(net, example=(IDS,)), backend="aot_eager"),
    ):
        torch.manual_seed(0)
        net = make(Net(30))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for ids in (IDS, IDS + 1, IDS // 2):
            optimizer.zero_grad()
            net(ids).square().mean().backward()
            optimizer.step()
        found.append([p.detach() for p in net.parameters()])
    torch.set_default_dtype(torch.float32)
    return equal(found[1], found[0])


def test_a_compiled_net_trains_where_one_rank_alone_has_padding() -> None:
    assert all(run_ranks(compiled, 3))
