"""A cut tensor is the whole to whoever uses it, however it is cut: in functions, in its gradient, and where it is written."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.runtime.collectives.slices import take
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
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
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_whatever_uses_it_gives_what_the_whole_gives(use: str, kind: str) -> None:
    def of_whole(make: Callable[[T], T]) -> tuple[T, T]:
        x = X.clone().requires_grad_()
        found = USES[use](make(x.tanh()))
        (gradient,) = torch.autograd.grad((found * found.detach().cos()).sum(), x)
        return found.detach(), gradient

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
