"""Logits cut over the vocabulary: the loss reads slices, pointwise functions keep them, everything else sees whole logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.errors import UsageError
from autotp.runtime.collectives.slices import take
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.logits import Head, cut_logits
from autotp.runtime.results.settled import settle
from autotp.runtime.results.tensor import CutResult
from autotp.runtime.results.traced import TracedLogits

V = 10  # over 4 ranks: 3, 3, 3 and 1 entries, each with room for 3; over 7: two ranks have none
BIAS = torch.linspace(-1, 1, V, dtype=torch.float64).requires_grad_()
ROW = torch.linspace(1, 2, V, dtype=torch.float64).requires_grad_()
SCALE = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)


def targets() -> torch.Tensor:
    target = torch.arange(6) * 7 % V
    target[2] = -100
    return target


def loss_of(value: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return F.cross_entropy(value.view(-1, V), targets(), **kwargs)


def soft(value: torch.Tensor) -> torch.Tensor:
    return (value / 3).tanh() * 3


# What a model may do with logits of shape (2, 3, V), and whether anybody gathers them.
CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "mean": (loss_of, False),
    "sum": (lambda x: loss_of(x, reduction="sum") / 5, False),
    "none": (lambda x: loss_of(x, reduction="none").square().sum(), False),
    "smoothing": (lambda x: loss_of(x, label_smoothing=0.1), False),
    "smoothed sum": (lambda x: loss_of(x, label_smoothing=0.3, reduction="sum"), False),
    "ignored": (lambda x: F.cross_entropy(x.view(-1, V), targets().abs() % V, ignore_index=4), False),
    "module": (lambda x: nn.CrossEntropyLoss()(x.reshape(-1, x.size(-1)), targets()), False),
    "soft cap": (lambda x: loss_of(soft(x)), False),
    "activations": (lambda x: loss_of(F.silu(x) + F.gelu(BIAS).mean()), False),
    "a quotient of them": (lambda x: loss_of(torch.div(BIAS, x)), True),
    "a quotient by a row": (lambda x: loss_of(x / ROW), False),
    "a quotient by some rows": (lambda x: loss_of(torch.div(x, ROW.expand(3, V))), True),
    "a quotient by a row that nobody learns": (lambda x: loss_of(x.div(ROW.detach())), False),
    "a quotient by a row of truths": (lambda x: loss_of(x / (ROW > 0)), False),
    "a quotient by a row of numbers": (lambda x: loss_of(x / torch.arange(1, V + 1)), False),
    "a quotient by a row, whole": (lambda x: (x / ROW).square().sum(), True),
    "a quotient by themselves": (lambda x: loss_of(x / x * x), True),
    "an activation in place": (lambda x: loss_of(F.relu(x * 2, True)), True),
    "scale": (lambda x: loss_of(x * SCALE), False),
    "bias": (lambda x: loss_of(BIAS + x), False),
    "shift": (lambda x: F.cross_entropy(x[..., :-1, :].contiguous().view(-1, V), targets()[:4]), False),
    "rows": (lambda x: F.cross_entropy(x[:, 1:].flatten(0, 1), targets()[:4]), False),
    "mask": (lambda x: F.cross_entropy(x[torch.arange(6).view(2, 3) > 2], targets()[:3]), False),
    "weights": (lambda x: loss_of(x, weight=torch.arange(1.0, V + 1, dtype=torch.float64)), True),
    "log softmax": (lambda x: -x.log_softmax(-1)[..., 3].sum(), True),
    "columns": (lambda x: x[..., 2:5].square().sum(), True),
    "classes first": (lambda x: F.cross_entropy(x.transpose(1, 2), targets().view(2, 3)), True),
    "both": (lambda x: loss_of(x) + x.logsumexp(-1).square().mean(), True),
    "in place": (lambda x: x.clone().mul_(2).sin().sum(), True),
    "own": (lambda x: loss_of(x * x.exp()), True),
}


def dense() -> torch.Tensor:
    return torch.randn(2, 3, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4


def layout(size: int) -> Leaf:
    return Leaf(V, Cut((Factor(size, 1),), -(-V // size) * size))


@pytest.mark.parametrize("make", [cut_logits, TracedLogits])
@pytest.mark.parametrize("size", [2, 4, 7])
def test_whatever_is_done_with_cut_logits_is_exact(size: int, make: Callable[..., Any]) -> None:
    for name, (function, gathers) in CASES.items():
        whole = dense().requires_grad_()
        expected = function(whole)
        wanted = torch.autograd.grad(expected, (whole, BIAS, SCALE, ROW), allow_unused=True)

        def run(ranks: Ranks, function: Any = function) -> tuple[Any, ...]:
            part = take(dense(), [None, None, layout(size)], ranks.rank).requires_grad_()
            with ranks.logging() as log:
                loss = function(make(part, Head(ranks, layout(size))))
            return loss, torch.autograd.grad(loss, (part, BIAS, SCALE, ROW), allow_unused=True), log.calls

        for rank, (loss, gradients, calls) in enumerate(simulate(size, run)):
            assert torch.allclose(loss, expected, rtol=1e-13, atol=1e-13), name
            assert torch.allclose(
                gradients[0], take(wanted[0], [None, None, layout(size)], rank), rtol=1e-13, atol=1e-13
            ), name
            for own, other in zip(gradients[1:], wanted[1:], strict=True):
                assert own is other is None or torch.allclose(own, other, rtol=1e-13, atol=1e-13), name
            kinds = [(call.kind, call.elements) for call in calls]
            if name == "mean":
                assert kinds == [("all_reduce", 6), ("all_reduce", 12)]
            # A method of another tensor comes under a name that tracing gives it.
            assert any(kind == "all_gather" for kind, _ in kinds) == (
                gathers or (make is TracedLogits and name == "bias")
            ), name


def test_nothing_to_predict_is_no_number_and_a_wrong_target_is_an_error() -> None:
    def run(ranks: Ranks) -> float:
        part = take(dense(), [None, None, layout(2)], ranks.rank)
        return float(F.cross_entropy(cut_logits(part, Head(ranks, layout(2))).view(-1, V), torch.full((6,), -100)))

    assert all(loss != loss for loss in simulate(2, run))

    def wrong(ranks: Ranks) -> None:
        part = take(dense(), [None, None, layout(2)], ranks.rank)
        F.cross_entropy(cut_logits(part, Head(ranks, layout(2))).view(-1, V), torch.full((6,), V))

    with pytest.raises(RuntimeError, match="out of bounds"):
        simulate(2, wrong)


def test_a_second_derivative_of_the_loss_is_refused_where_it_is_asked_for() -> None:
    def run(ranks: Ranks) -> torch.Tensor:
        part = take(dense(), [None, None, layout(2)], ranks.rank).requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(cut_logits(part, Head(ranks, layout(2)))), part, create_graph=True)
        with pytest.raises(UsageError, match="has no second derivatives"):
            gradient.square().sum().backward()
        return gradient.detach()

    whole = dense().requires_grad_()
    (wanted,) = torch.autograd.grad(loss_of(whole), whole)
    for rank, gradient in enumerate(simulate(2, run)):
        assert torch.allclose(gradient, take(wanted, [None, None, layout(2)], rank))


def test_bfloat16_is_computed_in_float32() -> None:
    def run(ranks: Ranks) -> torch.Tensor:
        part = take(dense().bfloat16(), [None, None, layout(2)], ranks.rank)
        return loss_of(cut_logits(part, Head(ranks, layout(2))))

    expected = loss_of(dense().bfloat16().float()).bfloat16()
    for loss in simulate(2, run):
        assert loss.dtype == torch.bfloat16
        assert torch.equal(loss, expected)


def test_logits_that_no_loss_has_read_leave_the_model_whole() -> None:
    def run(ranks: Ranks) -> tuple[Any, torch.Tensor, Any]:
        part = take(dense(), [None, None, layout(2)], ranks.rank).requires_grad_()
        lost, plain = cut_logits(part, Head(ranks, layout(2))), cut_logits(part, Head(ranks, layout(2)))
        loss_of(lost * 2)
        result = settle(None, (), {"lost": lost, "plain": plain, "parts": {"more": (1, plain * 3)}})
        (gradient,) = torch.autograd.grad((result["plain"].sin() + result["parts"]["more"][1]).sum(), part)
        assert type(result["parts"]["more"][1]) is torch.Tensor
        return type(result["lost"]), result["plain"].detach(), gradient

    for rank, (kind, whole, gradient) in enumerate(simulate(2, run)):
        assert kind is CutResult  # simulated ranks have no distributed tensors
        assert type(whole) is torch.Tensor
        assert torch.equal(whole, dense())
        assert torch.allclose(gradient, take(dense().cos() + 3, [None, None, layout(2)], rank))
