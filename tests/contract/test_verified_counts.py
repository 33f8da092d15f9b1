"""The collectives that `autotp.verify` expects are those that run: where calls differ from the one that was planned for, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import autotp
from autotp.checkpoint.full import full_gradients
from autotp.dispatch.apply import apply_plan
from autotp.errors import VerificationError
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.tensor import closed
from autotp.session.pipeline import Session
from tests.contract.parts import HIDDEN, INNER, Mlp, linear, values

# At tp 3 neither of them is a multiple of the ranks, and results are gathered at the end of a block.
NARROW, WIDE = 20, 50


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = linear(NARROW, WIDE), linear(WIDE, NARROW)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).tanh())


class Blocks(nn.Module):
    """Three equal blocks, called in some way."""

    def __init__(self, call: Callable[[Any, torch.Tensor], torch.Tensor], kind: type[nn.Module] = Narrow) -> None:
        super().__init__()
        self.blocks, self.call = nn.ModuleList(kind() for _ in range(3)), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self, x)


def again(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, reentrant: bool = False) -> Any:
    return checkpoint(function, x, use_reentrant=reentrant)


def each(call: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> Callable[[Blocks, torch.Tensor], torch.Tensor]:
    def run(model: Blocks, x: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            x = call(block, x)
        return x

    return run


def some(model: Blocks, x: torch.Tensor) -> torch.Tensor:
    return model.blocks[2](again(model.blocks[1], model.blocks[0](x)))


def several(model: Blocks, x: torch.Tensor) -> torch.Tensor:
    return model.blocks[2](again(lambda y: model.blocks[1](model.blocks[0](y)), x))


def nested(model: Blocks, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: model.blocks[1](again(model.blocks[0], y)), x)


CHECKPOINTS = {
    "each": each(again),
    "each, reentrant": each(
        lambda block, x: again(block, x * 1 if x.requires_grad else x.requires_grad_(), reentrant=True)
    ),
    "one": some,
    "several at once": several,
    "one in another": nested,
    "in training": each(lambda block, x: again(block, x) if block.training else block(x)),
    "a block twice": lambda model, x: again(model.blocks[0], model.blocks[0](x)),
}


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_what_a_checkpoint_sends_again_is_not_compared(how: str, tp: int) -> None:
    torch.manual_seed(0)
    report = autotp.verify(Blocks(CHECKPOINTS[how]), tp, example=(values(2, 3, NARROW),), objective="memory")
    report.raise_for_failure()
    assert all(call.planned and not call.joined.get("all_reduce forward activation") for call in report.calls)


class Attends(nn.Module):
    """Gives its keys and values, too."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.gate = nn.Parameter(values(1, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        q, k, v = (layer(x).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = (q @ k.mT).softmax(-1) @ v * self.gate
        return x + self.o(y.transpose(1, 2).flatten(2)), (k, v)


def unread(model: Blocks, x: torch.Tensor) -> Any:
    """Of the last block only the keys and values are read."""
    y, (k, v) = model.blocks[0](x)
    return k.sum(1), v.sum(1), model.blocks[2](model.blocks[1](y)[0])[1]


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_a_result_that_nobody_reads_has_no_sums(tp: int) -> None:
    torch.manual_seed(0)
    autotp.verify(Blocks(unread, Attends), tp, example=(values(2, 5, HIDDEN),), objective="memory").raise_for_failure()


def test_streams_that_nobody_reads_have_no_gradient_on_any_rank() -> None:
    """Four heads on three ranks are 2 + 2 + 0: the rank without any agrees with the others on what has no gradient."""
    torch.manual_seed(0)
    model, x = Blocks(unread, Attends), values(2, 5, HIDDEN)
    sum(part.sum() for part in tree_leaves(model(x))).backward()  # type: ignore[attr-defined]
    true = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert None in true.values()
    for parameter in model.parameters():
        parameter.grad = None
    session = Session(model, example=(x,), objective="memory")
    plan = session.plan(3)
    assert plan.units[0].layouts()
    compilers = session.compilers(plan)

    def on_rank(ranks: Ranks) -> dict[str, torch.Tensor | None]:
        parallel = apply_plan(copy.deepcopy(model), plan, ranks, compilers)
        sum(closed(part).sum() for part in tree_leaves(parallel(x))).backward()  # type: ignore[union-attr]
        return full_gradients(parallel)

    for found in simulate(3, on_rank):
        assert {name for name in true if found[name] is None} == {name for name in true if true[name] is None}
        for name, gradient in found.items():
            if gradient is not None:
                torch.testing.assert_close(gradient, true[name], rtol=0, atol=1e-12)


D = 16
OF_TORCH: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 32, batch_first=True), 2, enable_nested_tensor=False),
        (values(2, 5, D),),
    ),
    "decoder": lambda: (
        nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 4, 32, batch_first=True), 2),
        (values(2, 5, D), values(2, 7, D)),
    ),
    "both": lambda: (nn.Transformer(D, 4, 2, 2, 32, batch_first=True), (values(2, 5, D), values(2, 7, D))),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", OF_TORCH)
def test_the_transformers_of_torch_send_what_is_planned(name: str, tp: int, wants: bool) -> None:
    """Whether what is given wants a gradient or not: the first of equal layers has other sums where it does not."""
    torch.manual_seed(0)
    model, inputs = OF_TORCH[name]()
    example = tuple(value.requires_grad_(wants) for value in inputs)
    report = autotp.verify(model.double(), tp, example=example)
    report.raise_for_failure()
    assert all(call.planned for call in report.calls)


class Given(nn.Module):
    """Sums once more where it is given more."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.other, self.down = linear(HIDDEN, INNER), linear(HIDDEN, INNER), linear(INNER, HIDDEN)

    def forward(
        self, x: torch.Tensor, other: torch.Tensor | None = None, scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = self.up(x) if other is None else self.up(x) + self.other(other)
        return x + self.down((y if scale is None else y * scale).tanh())


class Initialises(Narrow):
    """At its first call, as its data say."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.begun.item():
            self.up.weight.data.div_(self.up(x).std() + 1)
            self.begun.fill_(True)
        return super().forward(x)


class WritesInTraining(Mlp):
    """Has another program in training."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.square = nn.Parameter(values(HIDDEN)), nn.Parameter(values(HIDDEN, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.gain.data.tanh_()
        return super().forward(x) * self.gain + (x @ self.square).sin() @ self.square.T


def other_tensors(model: Blocks, x: torch.Tensor) -> torch.Tensor:
    first, second, third = model.blocks
    y = second(first(x, other=x if model.training else None), scale=x[..., :1])
    return third(y, x.mean(1, keepdim=True), y[..., :1])


OTHERWISE = {
    "given more in training": Blocks(other_tensors, Given),
    "begins with its first call": Blocks(each(lambda block, x: block(x)), Initialises),
    "writes in training": Blocks(each(lambda block, x: block(x)), WritesInTraining),
    "without gradients": Blocks(each(lambda block, x: block(x) + block(x.detach()).detach()), Given),
}


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("how", OTHERWISE)
def test_calls_other_than_the_planned_one_send_what_is_placed_for_them(how: str, tp: int) -> None:
    width = NARROW if how.startswith("begins") else HIDDEN
    report = autotp.verify(OTHERWISE[how], tp, example=(values(2, 5, width),), objective="memory")
    report.raise_for_failure()
    assert report.elements[1] < report.elements[0]
    assert not any(call.joined.get("all_reduce forward activation") for call in report.calls)


@pytest.mark.parametrize("how", ["given more in training", "writes in training"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_one_sum_more_is_told(monkeypatch: pytest.MonkeyPatch, how: str, phase: str) -> None:
    reduce = Ranks.all_reduce

    def twice(self: Ranks, value: torch.Tensor, factors: Any, when: str, *rest: Any) -> torch.Tensor:
        if when == phase:
            reduce(self, value, factors, when, *rest)
        return reduce(self, value, factors, when, *rest)

    monkeypatch.setattr(Ranks, "all_reduce", twice)
    report = autotp.verify(OTHERWISE[how], 2, example=(values(2, 5, HIDDEN),), objective="memory")
    assert report.exact
    assert all(not call.counts_agree for call in report.calls)
    with pytest.raises(VerificationError, match=r"planned .* counted"):
        report.raise_for_failure()
