"""Views of cut tensors: several of one tensor, written to in one call, and old ones among the operands of a function."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.errors import RankLostError
from autotp.runtime.cut.views import trained
from autotp.runtime.groups.launch import run_ranks

from .test_cut_padding import equal
from .test_cut_parameters import IDS, Net, on_ranks, planned


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def two(net: Any) -> tuple[Any, Any]:
    return net.blocks[0].up.weight.data, net.blocks[1].up.weight.data


def old_operand(net: Any) -> Any:
    p, q = two(net)
    row, column = p[0], p[:, :1]
    p.mul_(2)
    q.add_(row)
    compared = (q > row).sum()
    p.mul_(2)
    chosen = torch.where(q > 0, q, column)
    p.mul_(2)
    listed = torch._foreach_add([q], [row])
    p.mul_(2)
    q.addcmul_(row, column)
    return [p, q, compared, chosen, listed]


def old_operand_of_its_own_gradient(net: Any) -> Any:
    p = net.blocks[0].up.weight
    p.exp().sum().backward()
    row = p.grad[0]
    nn.utils.clip_grad_norm_([p], 1e-3)
    p.data.sub_(row)
    return [p]


def halves(net: Any) -> Any:
    p, _ = two(net)
    first, second = p[:25], p[25:]
    torch._foreach_add_([first, second], 1.0)
    torch._foreach_mul_([p[:, ::2], p[:, 1::2], p[3]], 3.0)
    torch._foreach_mul_([p, p[3], first, net.blocks[0].up.weight.data[0]], 3.0)
    torch._foreach_add_([first[0], net.blocks[0].up.weight.data, p], 3.0)
    return [p, first, second]


def overlapping(net: Any) -> Any:
    p, _ = two(net)
    rows, column, within = p[2:6], p.T[3], p[4:8][1:, 2:]
    rows.zero_()
    torch._foreach_add_([column], 1.0)
    within.mul_(2)
    rows.add_(1)
    torch._foreach_add_([rows.T, p.view(-1)[100:1000]], 1.0)
    return [p, rows, column, within]


def optimized_halves(net: Any) -> Any:
    found = []
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}):
        p, _ = two(net)
        parts = [nn.Parameter(p[:20]), nn.Parameter(p[20:])]
        for kind in (torch.optim.AdamW, torch.optim.SGD):
            optimizer = kind(parts, lr=0.1, **options)
            for part in parts:
                part.grad = part.detach().sin()
            optimizer.step()
        found += [p.clone(), *parts]
    return found


def optimized_with_others(net: Any) -> Any:
    p, _ = two(net)
    for options in ({"foreach": True}, {"fused": True}):
        parts = [nn.Parameter(p[:20]), net.blocks[1].up.weight, nn.Parameter(torch.ones(5)), net.blocks[0].down.weight]
        optimizer = torch.optim.AdamW([*parts, nn.Parameter(p[20:])], lr=0.1, **options)
        for _ in range(2):
            for part in parts:
                part.grad = part.detach().sin()
            optimizer.step()
    torch._foreach_mul_([p[0], net.blocks[1].up.weight.data, net.blocks[0].up.weight.data], 3.0)
    mixed = torch._foreach_add([p[1], net.blocks[1].up.weight.data, torch.ones(3)], 3.0)
    return [p, *parts, mixed]


def of_other_kinds(net: Any) -> Any:
    p, q = two(net)
    wide = torch.view_as_complex(p.view(50, 16, 2))
    wide.mul_(1j)
    p.view(torch.int64).bitwise_and_(-65536)
    q.diagonal().add_(1)
    q.as_strided((50, 5), (32, 3)).mul_(2)
    q[:, None].expand(50, 3, 32)[:, 1].add_(1)
    return [p, q]


def into_several(net: Any) -> Any:
    p, q = two(net)
    torch.sort(q, 0, out=(p[:, :], torch.empty(50, 32, dtype=torch.int64)))
    torch.aminmax(q, dim=0, out=(p[3], p[4]))
    return [p]


def given_back(net: Any) -> Any:
    p, q = two(net)
    first, second = p[0], p[1]
    least, most = torch.aminmax(torch.arange(224.0).view(7, 32), dim=0, out=(first, second))
    listed = torch._foreach_mul_([first, second], 2.0)
    found = [least is first, most is second, [each is own for each, own in zip(listed, (first, second), strict=True)]]
    mixed = torch.aminmax(q, dim=0, out=(first, second))
    added = first.add_(second)
    return [*found, mixed[0] is first, mixed[1] is second, added is first, [least, most, *listed, p]]


def read_in_turn(net: Any) -> Any:
    p, q = two(net)
    torch._foreach_add_([p, q], [q, p[:]])
    torch._foreach_mul_([q, p], [p, q[0]])
    torch._foreach_mul_([p, q], [q[0], p])
    return [p, q]


def written_in_inference_mode(net: Any) -> Any:
    p, q = two(net)
    ids, earlier = torch.tensor([3, 5, 20]), q[2:]
    nn.functional.batch_norm(torch.arange(64.0).view(2, 32), q[0], q[1].abs_(), training=True)
    nn.functional.embedding(ids, q, max_norm=0.2)
    with torch.inference_mode():
        nn.functional.embedding(ids, p, max_norm=0.1)
        nn.functional.embedding(ids, earlier, max_norm=0.1)
        nn.functional.embedding(ids, p[25:], max_norm=0.1)
        made = p * 2
        nn.functional.embedding(ids, made, max_norm=0.1)
        nn.functional.embedding(ids, made[7:], max_norm=0.1)
        mean, var = net.blocks[0].up.bias.data, net.blocks[1].up.bias.data.abs_()
        nn.functional.batch_norm(torch.arange(100.0).view(2, 50), mean, var, training=True)
        return [each.clone() for each in (p, q, earlier, made, mean, var)]


def numbers_of_other_types(net: Any) -> Any:
    p, _ = two(net)
    pairs, bits, wide = torch.view_as_complex(p.view(50, 16, 2)), p.view(torch.int64), p.view(torch.complex128)
    torch._foreach_mul_([p, pairs], 2)
    torch._foreach_mul_([pairs[0], p[1], wide, pairs.real], 2)
    torch.aminmax(p, dim=1, out=(pairs.real[:, 0], p[:, 3]))
    torch._foreach_neg_([wide.imag, p])
    complex_one = p.to(torch.complex128) * 1j
    turned, real, row = complex_one.conj(), torch.view_as_real(complex_one), complex_one[0]
    torch._foreach_mul_([real[0], complex_one.real, row, complex_one, real], 2)
    torch.add(complex_one[0], 1j, out=turned[1])
    pairs.real = pairs.imag
    return [p, pairs, bits, wide, complex_one, turned, real, row]


class _Swapping(torch.autograd.Function):
    """Two rows change places, which their sums do not tell, and most ranks hold none of them."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        value.data[:2] = value.data[:2].flip(0)
        return value.sum(0)


def written_where_nobody_counts(net: Any) -> Any:
    p, q = two(net)
    views = [p[0], p[30], q[:2], net.blocks[1].up.weight.detach()[1]]
    found = [_Swapping.apply(each) for each in (p, q, p.view(50, 32), q[:7])]
    return [*found, *views, p, q]


RUNS: list[Callable[[Any], Any]] = [
    old_operand,
    old_operand_of_its_own_gradient,
    halves,
    overlapping,
    optimized_halves,
    optimized_with_others,
    of_other_kinds,
    into_several,
    given_back,
    read_in_turn,
    written_in_inference_mode,
    numbers_of_other_types,
    written_where_nobody_counts,
]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_views_are_the_dense_models(run: Callable[[Any], Any], tp: int) -> None:
    true = run(copy.deepcopy(planned(tp)[0]))
    for found in on_ranks(tp, lambda net: equal(run(net), true)):
        assert found


def _order_of_trained(net: Any) -> bool:
    p, _ = two(net)
    last, gone = p[2:4], torch.ones(1)
    trained.pop(id(last), None)
    trained[id(last)] = weakref.ref(gone)  # what had this identity before
    del gone
    kept = nn.Parameter(p[:2])
    last._is_param = True
    # The other rank, a thread here, has views of its own among them.
    return [each for each in list(trained) if each in (id(kept), id(last))] == [id(kept), id(last)]


def _found_gone_in_two_threads(net: Any) -> bool:
    """Between the look at a view that is gone and its removal another thread removes it, or has a new view in its place."""
    new, place = nn.Parameter(two(net)[0][:2]), 2 * net.embed.weight.autotp_origin.ranks.rank

    def removed_by_another() -> None:
        trained.pop(place, None)

    def in_its_place() -> None:
        trained[place + 1] = weakref.ref(new)

    trained.update({place: removed_by_another, place + 1: in_its_place})  # type: ignore[dict-item]
    net(IDS)
    return place not in trained and trained.pop(place + 1)() is new


def _garbage(net: Any, rank: int) -> Any:
    """On one rank Python has come already to what nobody holds any more."""
    kept = nn.Parameter(net.blocks[0].up.weight.data[5:10])
    around: list[Any] = [nn.Parameter(net.blocks[0].up.weight.data[:5])]
    if rank != 1:
        around.append(around)
    del around
    for _ in range(3):
        net.zero_grad()
        net(IDS).square().mean().backward()
        torch.optim.SGD(net.parameters(), 0.1).step()
    return [kept, *net.parameters()]


def test_views_that_are_parameters_and_garbage_on_some_ranks_are_not_gathered() -> None:
    true = _garbage(copy.deepcopy(planned(3)[0]), 0)
    gc.disable()
    try:
        assert all(on_ranks(3, lambda net: equal(_garbage(net, net.embed.weight.autotp_origin.ranks.rank), true)))
    finally:
        gc.enable()


class _Slow:
    """Garbage of which one thread disposes, while others run: a collection that takes its time."""

    def __init__(self, begun: threading.Event) -> None:
        self.begun, self.circle = begun, self

    def __del__(self) -> None:
        self.begun.set()
        time.sleep(0.2)


def _garbage_while_another_collects(net: Any) -> bool:
    true, rank = net(IDS), net.embed.weight.autotp_origin.ranks.rank
    kept: list[Any] = [nn.Parameter(net.blocks[0].up.weight.data[:5])]
    if rank == 0:
        begun = threading.Event()
        _Slow(begun)
        threading.Thread(target=gc.collect).start()
        assert begun.wait(10)
        kept.append(kept)  # a circle, which the other thread has not seen as garbage
    del kept
    net.blocks[0].up.weight.data.mul_(2).div_(2)
    return equal(net(IDS), true)


def test_a_view_that_is_garbage_is_gone_before_a_call_though_another_thread_collects() -> None:
    gc.collect()
    gc.disable()
    try:
        assert on_ranks(2, _garbage_while_another_collects) == [True, True]
    finally:
        gc.enable()


def _on_one_rank() -> str:
    net = autotp.parallelize(Net(), example=(IDS,))
    kept = [nn.Parameter(net.blocks[0].up.weight.data[:5])][torch.distributed.get_rank() :]
    net.blocks[0].up.weight.data.mul_(2)
    with pytest.raises(RankLostError) as said:
        net(IDS)
    return str(said.value) * len(kept)


def test_a_view_that_is_a_parameter_on_one_rank_is_named() -> None:
    assert "has a parameter that is a view of blocks.0.up.weight" in run_ranks(_on_one_rank, 2, timeout_s=5)[0]


def test_views_that_are_parameters_are_looked_after_in_the_order_in_which_they_came() -> None:
    assert all(on_ranks(2, _order_of_trained))


def test_views_that_are_gone_are_forgotten_once_whatever_other_threads_do() -> None:
    assert all(on_ranks(2, _found_gone_in_two_threads))
