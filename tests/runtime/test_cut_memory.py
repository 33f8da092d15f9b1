"""Which cut tensors share memory: those that do on the dense model, or it is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autotp.errors import UsageError

from .test_cut_padding import equal
from .test_cut_parameters import IDS, on_ranks, planned


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def data_of_another(net: Any) -> Any:
    p, q = net.blocks[0].up.weight, net.blocks[1].up.weight
    old, row = p.data[1], q.data[0]
    p.data = q.data
    p.data.zero_()
    q.data[3].add_(1)
    return [p, q, row, old, net(IDS)]


def data_as_a_view_of_all(net: Any) -> Any:
    p, q = net.blocks[0].up.weight, net.blocks[1].up.weight
    row = q.data[0]
    p.data = q.data.view(-1).view(50, 32)
    p.data = p.data.reshape(50, 32)
    p.data.mul_(2)
    return [p, q, row]


def gradient_of_another(net: Any) -> Any:
    p, q = net.blocks[0].up.weight, net.blocks[1].up.weight
    given = torch.zeros_like(p)
    row = given[0]
    p.grad = given
    q.grad = given.view(-1).view_as(q)
    p.grad.data.add_(1)
    q.grad.mul_(3)
    return [given, row, p.grad, q.grad]


def fresh(net: Any) -> Any:
    p, q = net.blocks[0].up.weight, net.blocks[0].down.weight
    q.data = (p.data * 2).T
    q.grad = (p.data * 3).T
    q.data = q.data.T.clone().T
    p.data = q.data.T.clone()
    p.data.add_(1)
    return [p, q, q.grad, net(IDS)]


def gradient_of_a_view(net: Any) -> Any:
    p = net.blocks[0].up.weight
    p.grad = torch.ones_like(p)
    part = nn.Parameter(p.data[:20])
    part.grad = p.grad[:20]
    part.grad.mul_(3)
    torch.optim.SGD([part], 0.1).step()
    p.grad[0].add_(5)
    return [p, p.grad, part, part.grad]


def copied(net: Any) -> Any:
    p = net.blocks[0].up.weight
    first, second, third, state = copy.deepcopy([p.data, p.detach(), p, p.data * 1])
    first.zero_()
    second[1].add_(2)
    assert isinstance(third, nn.Parameter)
    return [first, second, third, state, p]


def copied_with_views(net: Any) -> Any:
    p = net.blocks[0].up.weight
    net(IDS).square().mean().backward()
    turned, rows, whole, bits, pairs = copy.deepcopy(
        [p.data.T, p.data[:3], p.detach(), p.data.view(torch.int64), torch.view_as_complex(p.data.view(50, 16, 2))]
    )
    turned.mul_(2)
    rows.add_(1)
    pairs.mul_(1j)
    bits[4].zero_()
    again = copy.deepcopy({"rows": rows, "whole": whole})
    again["whole"].mul_(3)
    gradient, first, other = copy.deepcopy((p.grad, p.grad[0], p))
    first.zero_()
    return [turned, rows, whole, bits, pairs, *again.values(), gradient, first, other, p, p.grad]


def in_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False), len(file.getvalue()) // 4096


def saved_with_views(net: Any) -> Any:
    p = net.blocks[0].up.weight
    p.note = "kept"
    net(IDS).square().mean().backward()
    (first, rows, turned, same), size = in_a_file([p, p.data[:3], p.data.T, p.detach()])
    rows.mul_(2)
    turned.add_(1)
    (gradient, row), _ = in_a_file([p.grad, p.grad[0]])
    row.zero_()
    net.blocks[1].up.weight.data = p.data
    tied, length = in_a_file({name: parameter.data for name, parameter in net.named_parameters()})
    tied["blocks.1.up.weight"].mul_(2)
    (view,), _ = in_a_file([p.data[1:3]])
    return [
        first,
        first.note,
        isinstance(first, nn.Parameter),
        rows,
        turned,
        same,
        size,
        gradient,
        row,
        *tied.values(),
        length,
        view,
    ]


def one_object(net: Any) -> Any:
    """A gradient that is given is the parameter's, whatever is done to the object later."""
    p, q = net.blocks[0].up.weight, net.blocks[1].up.weight
    net(IDS).square().mean().backward()
    first = p.grad
    p.grad = first
    q.grad = first
    found = [p.grad is first, q.grad is first]
    p.grad = copied = q.grad * 2
    copied.data = torch.ones(50, 32)
    q.grad.data = q.grad.data * 3
    return [*found, p.grad is copied, p.grad, q.grad, first]


def written_as_parts(net: Any) -> Any:
    """What is written into a part, or by autograd, is in views of `.data` too, which has a count of its own."""

    def part(tensor: Any) -> Any:
        return tensor.local() if hasattr(tensor, "local") else tensor

    net(IDS).square().mean().backward()
    found = []
    for parameter in net.parameters():
        kept = [parameter.data[:1], parameter.detach()[:1], parameter.data.data.view(-1)[:2]]
        kept += [parameter.grad.data[:1], parameter.grad[:1]]
        for do in (part(parameter.data), part(parameter.detach()), part(parameter.grad.data), part(parameter.grad)):
            do.mul_(2)
            found += [each.clone() for each in kept]
        found += kept
    net(IDS).square().mean().backward()
    return [*found, *net.parameters()]


def before_backward(net: Any) -> Any:
    loss = net(IDS).square().mean()
    for parameter in net.parameters():
        parameter.grad = None
    loss.backward()
    for parameter in net.parameters():
        parameter.data = parameter.data * 1.5
    return [[p.grad for p in net.parameters()], net(IDS)]


RUNS: list[Callable[[Any], Any]] = [
    data_of_another,
    data_as_a_view_of_all,
    gradient_of_another,
    fresh,
    gradient_of_a_view,
    copied,
    copied_with_views,
    saved_with_views,
    one_object,
    written_as_parts,
    before_backward,
]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_memory_is_shared_as_on_the_dense_model(run: Callable[[Any], Any], tp: int) -> None:
    true = run(copy.deepcopy(planned(tp)[0]))
    for found in on_ranks(tp, lambda net: equal(run(net), true)):
        assert found


def data_of_one_that_is_cut_otherwise(net: Any) -> None:
    net.blocks[0].down.weight.data = net.blocks[0].up.weight.data.T


def gradient_of_one_that_is_cut_otherwise(net: Any) -> None:
    net(IDS).sum().backward()
    net.blocks[0].down.weight.grad = net.blocks[0].up.weight.grad.T


def part_of_another(net: Any) -> None:
    net.blocks[0].up.bias.data = net.embed.weight.data.view(-1)[:50]


def gradient_of_equal_sizes(net: Any) -> None:
    second = torch.ones_like(net.blocks[0].down.weight)
    net.extra = nn.Parameter(net.blocks[0].down.weight.data * 2)
    net.extra.grad = second * 2
    net.blocks[0].up.weight.grad = net.extra.grad.T


REFUSED = [
    data_of_one_that_is_cut_otherwise,
    gradient_of_one_that_is_cut_otherwise,
    part_of_another,
    gradient_of_equal_sizes,
]


@pytest.mark.parametrize("run", REFUSED, ids=lambda run: run.__name__)
def test_memory_of_what_is_cut_otherwise_is_refused(run: Callable[[Any], None]) -> None:
    with pytest.raises(UsageError, match=r"of .*\.weight|of embed.weight"):
        on_ranks(2, run)
