"""A cross-entropy of logits that are cut over ranks is torch's, where labels are left out and logits are infinite too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.logits import Head, cut_logits

TOKENS, IGNORED, INF = 6, -100, float("inf")
T = torch.Tensor


def plain(logits: T, target: T) -> tuple[T, T]:
    return logits, target


def nothing_counts(logits: T, target: T) -> tuple[T, T]:
    return logits, torch.full_like(target, IGNORED)


def some_count(logits: T, target: T) -> tuple[T, T]:
    target[::2] = IGNORED
    return logits, target


def never(entry: int) -> Callable[[T, T], tuple[T, T]]:
    """A logit that no token has."""

    def change(logits: T, target: T) -> tuple[T, T]:
        logits[:, entry] = -INF
        return logits, torch.where(target == entry, (entry + 1) % logits.shape[1], target)

    return change


def ignored_row(value: float) -> Callable[[T, T], tuple[T, T]]:
    def change(logits: T, target: T) -> tuple[T, T]:
        logits[1] = value
        target[1] = IGNORED
        return logits, target

    return change


def as_bytes(logits: T, target: T) -> tuple[T, T]:
    return logits, target.to(torch.uint8)


CHANGES: dict[str, Callable[[T, T], tuple[T, T]]] = {
    "plain": plain,
    "bytes": as_bytes,
    "nothing counts": nothing_counts,
    "some count": some_count,
    **{f"never {entry}": never(entry) for entry in (0, 2, 3, 4, 6)},
    "a row of nans": ignored_row(float("nan")),
    "an infinite row": ignored_row(INF),
    "a row without any": ignored_row(-INF),
}


def given(change: str, vocabulary: int) -> tuple[T, T]:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, vocabulary, dtype=torch.float64, generator=draw)
    return CHANGES[change](logits, torch.randint(0, vocabulary, (TOKENS,), generator=draw))


def results(logits: T, target: T, found: T, **options: Any) -> list[T]:
    """The loss, and the gradient of the logits, also of a loss that is a number again where it was none."""
    losses = functional.cross_entropy(found, target, **options)
    (gradient,) = torch.autograd.grad(losses.nan_to_num(nan=0.0, posinf=0.0).sum(), logits)
    return [losses.detach(), gradient]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("change", CHANGES)
def test_a_loss_is_that_of_whole_logits(change: str, ranks: int) -> None:
    vocabulary = 7
    layout = Leaf(vocabulary, Cut((Factor(ranks, 1),), -(-vocabulary // ranks) * ranks))
    for options in ({}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.2}):
        if "never" in change and "label_smoothing" in options:
            continue  # infinite in the dense model too
        dense, target = given(change, vocabulary)
        true = results(dense.requires_grad_(), target, dense, **options)  # type: ignore[arg-type]

        def on_rank(own: Ranks, options: dict[str, Any] = options) -> list[T]:
            logits, target = given(change, vocabulary)
            head = Head(own, layout)
            whole = logits.requires_grad_()
            cut = cut_logits(head.own(whole), head)
            losses = functional.cross_entropy(cut, target, **options)
            (gradient,) = torch.autograd.grad(losses.nan_to_num(nan=0.0, posinf=0.0).sum(), whole)
            return [losses.detach(), gradient]

        parts = simulate(ranks, on_rank)
        for losses, _ in parts:
            assert torch.allclose(losses, true[0], rtol=1e-12, atol=1e-12, equal_nan=True), options
        gradient = torch.stack([part for _, part in parts]).sum(0)
        assert torch.allclose(gradient, true[1], rtol=1e-12, atol=1e-12, equal_nan=True), options
