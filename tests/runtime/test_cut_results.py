"""A cut tensor is the whole to whoever uses it, however it is cut: in functions, in its gradient, and where it is written."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.errors import UsageError
from autotp.runtime.collectives.slices import take
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results import memory
from autotp.runtime.results.deferred import deferred
from autotp.runtime.results.logits import Head, cut_logits
from autotp.runtime.results.sequence import cut_over_positions
from autotp.runtime.results.tensor import CutResult, closed

X = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
T = torch.Tensor


def layout(of: int, size: int) -> Leaf:
    return Leaf(of, Cut((Factor(size, 1),), -(-of // size) * size))


def as_logits(x: T, ranks: Ranks) -> T:
    head = Head(ranks, layout(6, ranks.size))
    return cut_logits(head.own(x), head)


def as_deferred(x: T, ranks: Ranks) -> T:
    head = Head(ranks, layout(6, ranks.size))
    return deferred(head.own(x), ranks, [(2, head.layout, (Factor(ranks.size, 1),))])


KINDS: dict[str, Callable[[T, Ranks], T]] = {
    "logits": as_logits,
    "deferred": as_deferred,
    "positions": cut_over_positions,
}


def read_before(y: T) -> T:
    with torch.no_grad():
        y.sum()
    return y * y


def written(y: T) -> T:
    z = y * 1 if type(y) is T else y
    z.mul_(2)
    return z.sin() + z


def read_and_written(y: T) -> T:
    z = y * 1 if type(y) is T else y
    total = z.sum()
    z.add_(total)
    return z * z


def rows_written(y: T) -> T:
    z = y * 1 if type(y) is T else y
    z[:, 1] = z[:, 0] * 3
    return z.cos() * z


def by_number(y: T) -> T:
    return y * float(y.detach().numpy().sum()) + y * y.tolist()[0][0][0] + y * y.detach()[0, 0, 1].item()


def copied(y: T) -> T:
    stored = io.BytesIO()
    torch.save(y.detach(), stored)
    stored.seek(0)
    return y * copy.deepcopy(y.detach()) + y.detach().clone() * y * torch.load(stored)


def closed_and_written(y: T) -> T:
    first, second = closed(y), closed(y)
    z = first * 1
    z.mul_(3)
    return z + second + y


def with_others(y: T) -> T:
    return torch.cat([y, y.detach()], dim=1)[:, 2:7] @ torch.stack([y[0, :, :], y[1]]).sum(0).T


def hooked(y: T) -> T:
    y.register_hook(lambda gradient: gradient * 2)
    return y * y


def hooked_at_last(y: T) -> T:
    total = (y * 2).tanh() + y[..., -1:, :]
    y.register_hook(lambda gradient: gradient * 2 / (1 + gradient.norm()))
    return total


def hook_that_writes(y: T) -> T:
    def hook(gradient: T) -> T:
        gradient = gradient.clone()
        gradient[:, 0] = 1
        gradient.view(-1)[::3].mul_(3)
        return gradient

    y.register_hook(hook)
    return y.view(-1, 6).abs().view(2, 5, 6)


def node_hooked(y: T) -> T:
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
    return y.square()


def gradients_taken(y: T) -> T:
    y.retain_grad()
    (y * 3).square().sum().backward(retain_graph=True, inputs=[y])
    (again,) = torch.autograd.grad((y * 3).square()[:, 1:].sum(), y)
    assert y.grad is not None
    return y * (y.grad + again)


def leaf(y: T) -> T:
    z = y.detach().requires_grad_()
    (z.exp() * 2).sum().backward()
    assert z.grad is not None
    return y * z.grad


def views_written(y: T) -> T:
    z = y * 1 if type(y) is T else y
    z[0].mul_(2)
    z[:, -1].add_(1)
    z.view(-1, 6)[3].zero_()
    return z.exp() * z


def views_follow(y: T) -> T:
    z = y * 1 if type(y) is T else y
    last, flat = z[:, -1], z.view(-1, 6)
    before = last.argmax(-1).sum()
    z.mul_(2)
    last.sin_()
    flat[..., 2].add_(before)
    return z * z + flat.view(2, 5, 6).cos() + last.sum()


def own_data(y: T) -> T:
    z = y * 1 if type(y) is T else y
    z.data[:, 1] = 0
    z.detach()[0].add_(2)
    z.data = z.data * 2
    return z.square() + z.detach()[:, :1]


def itself(y: T) -> T:
    z = y * 1 if type(y) is T else y
    z.double().mul_(2)
    return z.contiguous().square()


# `written` and its like write into the value itself, where it is cut; a dense value they write into is one of its own.
USES: dict[str, Callable[[T], T]] = {
    "squares": lambda y: y * y,
    "softmax": lambda y: y.softmax(-1) * y,
    "over positions": lambda y: y - y.mean(1, keepdim=True) ** 2,
    "einsum": lambda y: torch.einsum("bld,bmd->blm", y, y),
    "an expression of views": lambda y: y.transpose(1, 2).reshape(2, -1)[:, ::3] * y.flatten(1)[:, ::3],
    "read without gradients before": read_before,
    "written": written,
    "read, then written": read_and_written,
    "rows written": rows_written,
    "numbers": by_number,
    "copies": copied,
    "closed": closed_and_written,
    "beside others": with_others,
    "hook": hooked,
    "a hook at last": hooked_at_last,
    "a hook that writes": hook_that_writes,
    "a hook of the node": node_hooked,
    "gradients of it": gradients_taken,
    "leaf": leaf,
    "views written": views_written,
    "views follow": views_follow,
    "data": own_data,
    "itself": itself,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_whatever_uses_it_gives_what_the_whole_gives(use: str, kind: str) -> None:
    def of_whole(make: Callable[[T], T]) -> tuple[T, T]:
        x = X.clone().requires_grad_()
        found = USES[use](make(x.tanh()))
        (gradient,) = torch.autograd.grad((found * found.detach().cos()).sum(), x)
        return closed(found).detach(), gradient

    true = of_whole(lambda y: y)

    def run(ranks: Ranks) -> tuple[T, ...]:
        def cut(y: T) -> T:
            made = KINDS[kind](y, ranks)
            assert type(made) is CutResult
            assert made.shape == X.shape
            return made

        return of_whole(cut)

    results = simulate(3, run)
    parts = torch.stack([gradient for _, gradient in results])
    for gradient in parts if kind == "positions" else [parts.sum(0)]:  # of a slice, each rank has the part that it took
        assert torch.allclose(gradient, true[1], rtol=1e-12, atol=1e-12)
    for found, _ in results:
        assert torch.allclose(found, true[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["logits", "deferred"])
def test_its_gradient_has_a_gradient(kind: str) -> None:
    def twice(make: Callable[[T], T]) -> T:
        x = X.clone().requires_grad_()
        y = x.tanh()
        (gradient,) = torch.autograd.grad(make(y).pow(3).sum(), y, create_graph=True)
        (second,) = torch.autograd.grad(gradient.pow(2).sum(), x)
        return second

    def run(ranks: Ranks) -> T:
        return twice(lambda y: KINDS[kind](y, ranks))

    assert torch.allclose(sum(simulate(3, run)), twice(lambda y: y), rtol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_its_shape_is_not_changed_in_place(kind: str) -> None:
    def run(ranks: Ranks) -> None:
        KINDS[kind](X, ranks).transpose_(0, 1)

    with pytest.raises(UsageError, match="go on with what it gives"):
        simulate(2, run)

    def other_data(ranks: Ranks) -> None:
        KINDS[kind](X, ranks).data = X[0]

    with pytest.raises(UsageError, match="of another kind"):
        simulate(2, other_data)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_handed_on_whole_is_still_its_memory(kind: str) -> None:
    def run(ranks: Ranks) -> tuple[T, T]:
        y = KINDS[kind](X, ranks)
        row = y[:, 1]
        closed(y).mul_(2)
        first = y * 1
        closed(row).add_(1)
        return first, y * 1

    for first, second in simulate(3, run):
        assert torch.equal(first, X * 2)
        assert torch.equal(second[:, 1], X[:, 1] * 2 + 1)
        assert torch.equal(second[:, 2], X[:, 2] * 2)


@pytest.mark.parametrize(("at_once", "elements"), [(0, 4), (20, 20)], ids=["a view", "little more"])
def test_views_and_gradients_of_logits_are_gathered_for_who_reads_them_alone(
    at_once: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "AT_ONCE", at_once)

    def run(ranks: Ranks) -> list[tuple[str, int]]:
        x = X.clone().requires_grad_()
        y = as_logits(x, ranks)
        y.register_hook(lambda gradient: None)
        y.retain_grad()
        with ranks.logging() as log:
            y[:, -1].argmax(-1)
            rows = (y.view(-1, 6).tanh()[1:].unsqueeze(0) * 2).squeeze(0)
            torch.nn.functional.cross_entropy(rows, torch.arange(9) % 6).backward()
        return [(call.kind, call.elements) for call in log.calls if call.kind == "all_gather"]

    for calls in simulate(3, run):
        assert calls == [("all_gather", elements)]  # two rows, or all


def test_the_second_view_of_what_is_large_is_gathered_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "AT_ONCE", 0)

    def run(ranks: Ranks) -> tuple[list[T], list[int]]:
        y = as_logits(X, ranks)
        with ranks.logging() as log:
            rows = [closed(y[:, i]) for i in range(X.shape[1])]
        return rows, [call.elements for call in log.calls]

    for rows, sizes in simulate(3, run):
        assert all(torch.equal(row, X[:, i]) for i, row in enumerate(rows))
        assert sizes == [4, 20]


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_of_it_is_right_or_refused(kind: str) -> None:
    def transformed(y: T) -> T:
        return torch.func.vmap(lambda row: row * row.sum())(y)  # type: ignore[no-any-return]

    def run(ranks: Ranks) -> Any:
        try:
            return transformed(KINDS[kind](X, ranks))
        except (RuntimeError, NotImplementedError) as error:
            return str(error)

    for found in simulate(2, run):
        assert isinstance(found, str) or torch.allclose(found, transformed(X))


def test_the_part_is_the_ranks_own() -> None:
    def run(ranks: Ranks) -> T:
        made: Any = as_logits(X, ranks)
        return made.local  # type: ignore[no-any-return]

    for rank, local in enumerate(simulate(4, run)):
        assert torch.equal(local, take(X, [None, None, layout(6, 4)], rank))
