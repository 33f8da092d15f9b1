"""Whatever runs in a backward, or beside it, sees whole tensors: on real ranks, also where only one of them has padding."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.errors import UsageError
from autotp.runtime.cut.given import given
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.launch import run_ranks
from tests.contract.parts import HIDDEN, Mlp, twins, values

VOCABULARY = 37  # no number of ranks here divides it
IDS = torch.arange(10).view(2, 5)
Steps = Callable[["Words"], list[torch.Tensor]]


class Words(nn.Module):
    """Ids to logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, HIDDEN, dtype=torch.float64)
        self.blocks = twins(lambda index: Mlp())
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.float64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.table(ids)))  # type: ignore[no-any-return]

    def loss(self) -> torch.Tensor:
        logits = self(IDS)
        return functional.cross_entropy(logits.flatten(0, 1), (3 * IDS % VOCABULARY).flatten())

    def parts(self) -> list[nn.Parameter]:
        """Parameters that are cut, in ways of their own."""
        return [self.table.weight, self.blocks.blocks[0].up.weight, self.blocks.blocks[1].down.weight, self.head.weight]


def unit(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / gradient.norm()


def hooked(net: Words) -> list[torch.Tensor]:
    """Hooks that norm gradients: in a backward, in one to some inputs, and in `autograd.grad`."""
    seen: list[torch.Tensor] = []
    for parameter in net.parts():
        parameter.register_hook(lambda gradient: (seen.append(gradient.norm().detach()), unit(gradient))[1])
    net.loss().backward()
    found = [parameter.grad.sum(0) for parameter in net.parts() if parameter.grad is not None]
    net.zero_grad()
    net.loss().backward(inputs=net.parts())
    found += [parameter.grad.sum(-1) for parameter in net.parts() if parameter.grad is not None]
    found += [gradient.sum(0) for gradient in torch.autograd.grad(net.loss(), net.parts())]
    return [*found, *seen]


def clipped_in_hooks(net: Words) -> list[torch.Tensor]:
    """Each parameter steps as soon as its gradient is there, clipped by its own norm; other hooks look at another parameter."""

    def step(parameter: torch.Tensor) -> None:
        nn.utils.clip_grad_norm_([parameter], 0.1)
        with torch.no_grad():
            parameter.sub_(parameter.grad)  # type: ignore[arg-type]
        parameter.grad = None

    seen: list[torch.Tensor] = []
    net.blocks.blocks[0].norm.weight.register_hook(lambda g: seen.append(net.head.weight.detach().norm() + g.sum()))
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    losses = []
    for _ in range(3):
        losses.append(net.loss())
        losses[-1].backward(inputs=net.parts() if len(losses) == 2 else None)
    return [*(loss.detach() for loss in losses), *seen]


class Scaled(torch.autograd.Function):
    """Its derivative looks at a parameter."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        ctx.parameter = parameter
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.parameter.detach().norm(), None


def derived(net: Words) -> list[torch.Tensor]:
    weight = net.head.weight
    return [*torch.autograd.grad(Scaled.apply(net.loss(), weight), net.parts()), *unused(net)]


def unused(net: Words) -> list[torch.Tensor]:
    """Gradients of what a result is not made of: none, or zeros if these are asked for."""
    penalty = net.table.weight.square().sum()
    absent = torch.autograd.grad(penalty, net.parts(), allow_unused=True, retain_graph=True)
    assert [gradient is None for gradient in absent] == [False, True, True, True]
    return [gradient.sum(0) for gradient in torch.autograd.grad(penalty, net.parts(), materialize_grads=True)]


def merged(net: Words) -> list[torch.Tensor]:
    """Coefficients that are learned, in lists."""
    with torch.no_grad():
        values_of = [parameter.detach() for parameter in net.parts()]
    alphas = [torch.tensor(0.5 + i, dtype=torch.float64, requires_grad=True) for i in range(len(values_of))]
    sum(each.square().sum() for each in torch._foreach_mul(values_of, alphas)).backward()  # type: ignore[union-attr]
    wider = torch._foreach_add(values_of[:1], [torch.ones(2, *values_of[0].shape, dtype=torch.float64)])
    return [*(alpha.grad for alpha in alphas), wider[0].sum((0, 1)), torch.ones(1).new_tensor([1.0])]  # type: ignore[list-item]


def compiled(net: Words) -> list[torch.Tensor]:
    """Functions of gradients, compiled, for tensors of several shapes."""
    net.loss().backward()
    squared = torch.compile(lambda g: g.square().mean().sqrt(), backend="aot_eager")
    normed = torch.compile(lambda g: g / g.norm() * g.shape[0], backend="aot_eager")
    gradients = [parameter.grad for parameter in net.parts()]
    return [*(squared(g) for g in gradients), *(normed(g).sum(0) for g in gradients)]


def given_gradients(net: Words) -> list[torch.Tensor]:
    """Gradients that somebody computes, as copies, and as memory that is written to before it is read."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        losses.append(net.loss().detach())
        for parameter in net.parts():
            mine = values(*parameter.shape, seed=step)
            parameter.grad = mine
            mine.mul_(0.5 + step)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def twice(net: Words) -> list[torch.Tensor]:
    """Derivatives of derivatives, of what is computed with parts: by `autograd.grad`, and by a backward that is recorded."""
    weight = net.head.weight
    tangent = torch.ones_like(weight)
    along = torch.autograd.functional.jvp(lambda w: w.square().sum() + w.norm(), weight, tangent)[1]
    (first,) = torch.autograd.grad((weight**3).sum() + weight.norm(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    (net.table.weight.norm() + (weight**3).sum()).backward(create_graph=True)
    assert net.table.weight.grad is not None
    (third,) = torch.autograd.grad(net.table.weight.grad.square().sum() + weight.sum(), net.table.weight)
    return [along, second.sum(0), third.sum(0)]


def sparse(net: Words) -> list[torch.Tensor]:
    """A table that is told to give a sparse gradient after it was cut."""
    net.loss().backward()
    net.table.sparse = True
    net.loss().backward()
    assert net.table.weight.grad is not None
    return [net.table.weight.grad.to_dense().sum(-1)]


WAYS: dict[str, Steps] = {
    way.__name__: way for way in (twice, hooked, clipped_in_hooks, derived, merged, compiled, given_gradients, sparse)
}


def on_rank(name: str) -> list[torch.Tensor]:
    dense = Words()
    model = autotp.parallelize(copy.deepcopy(dense), example=(IDS,))
    assert all(isinstance(parameter, IsCut) for parameter in model.parts())
    found = WAYS[name](model)
    return [each.detach() if type(each) is torch.Tensor else each.whole() for each in found]


@pytest.mark.filterwarnings("ignore:Using backward")  # with create_graph, as asked
@pytest.mark.parametrize(
    ("name", "size"), [*((name, 2) for name in WAYS), pytest.param("hooked", 3), pytest.param("clipped_in_hooks", 3)]
)
def test_it_is_as_on_the_dense_model(name: str, size: int) -> None:
    true = [each.detach() for each in WAYS[name](Words())]
    for found in run_ranks(on_rank, size, name):
        assert len(found) == len(true)
        for mine, other in zip(found, true, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def given_again(net: Words) -> None:
    mine = torch.ones(net.head.weight.shape, dtype=torch.float64)
    net.head.weight.data = mine
    mine.add_(1)
    with suppress(UsageError):
        net.loss()
    net.head.weight.data = mine.clone()
    net.loss()


def gone(net: Words) -> None:
    """What was given to a parameter that is gone says nothing of one that has its identity now."""
    key, first = id(net.head.weight), torch.ones(net.head.weight.shape, dtype=torch.float64)
    other = autotp.parallelize(Words(), example=(IDS,))
    other.head.weight.data = first
    known = given[id(other.head.weight)]
    del other
    gc.collect()
    given[key] = known
    first.add_(1)
    net.loss()
    assert key not in given


def kept() -> list[str]:
    """What is refused: a buffer for all gradients, memory and gradient both written to, a dense twin that steps, several
    gradients at a time, a sparse one."""
    told = []

    def refused(way: Callable[[Words], None]) -> None:
        dense = Words()
        try:
            way(autotp.parallelize(copy.deepcopy(dense), example=(IDS,)))
            told.append("nothing")
        except UsageError as error:
            told.append(str(error))

    def one_buffer(net: Words) -> None:
        parameters = list(net.parameters())
        buffer = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for parameter, part in zip(parameters, buffer.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view(parameter.shape)
        net.loss().backward()

    def both(net: Words) -> None:
        mine = torch.ones(net.head.weight.shape, dtype=torch.float64)
        net.head.weight.grad = mine
        net.head.weight.grad.mul_(2)
        mine.add_(1)
        net.head.weight.grad.norm()

    def twin(net: Words) -> None:
        dense = Words()
        for mine, other in zip(net.parameters(), dense.parameters(), strict=True):
            mine.data = other.data
        net.loss()  # so far nobody has written into what both have
        dense.loss().backward()
        torch.optim.SGD(dense.parameters(), lr=0.5).step()
        with suppress(UsageError):
            net.loss()
        del dense, other
        net.loss()  # an error that was caught has put nothing right

    def several(net: Words) -> None:
        losses = torch.stack([net.loss(), 2 * net.loss()])
        torch.autograd.grad(losses, net.head.weight, torch.eye(2, dtype=torch.float64), is_grads_batched=True)

    def sparse_rows(net: Words) -> None:
        net.head.weight.grad = torch.ones(net.head.weight.shape, dtype=torch.float64).to_sparse()

    for way in (one_buffer, both, twin, given_again, gone, several, sparse_rows):
        refused(way)
    return told


def test_memory_that_somebody_goes_on_with_is_refused() -> None:
    for buffer, both, twin, given_again, gone, several, sparse_rows in run_ranks(kept, 2):
        assert "is still held by somebody" in buffer
        assert "and so was the gradient" in both
        assert "was written to afterwards" in twin
        assert given_again == "nothing"
        assert gone == "nothing"
        assert "once for each" in several
        assert "give .to_dense()" in sparse_rows
