"""Gradients of cut parameters have memory of their own wherever the dense model's have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import autotp
from autotp.errors import UsageError
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify.float64 import Float64
from tests.contract.parts import HIDDEN, Mlp, twins, values
from tests.contract.play import cut

from .test_cut_padding import equal
from .test_cut_parameters import IDS, on_ranks, planned


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def loss(net: Any) -> Any:
    return net(IDS).square().mean()


def kept_by_a_hook(net: Any) -> Any:
    weight, seen = net.blocks[0].up.weight, []
    weight.register_hook(seen.append)
    loss(net).backward()
    weight.grad.zero_()
    return [*seen, weight.grad]


def kept_by_a_hook_that_writes(net: Any) -> Any:
    weight, seen = net.blocks[0].up.weight, []

    def hook(gradient: Any) -> Any:
        seen.append(gradient.mul_(2))
        return gradient

    weight.register_hook(hook)
    loss(net).backward()
    weight.grad.zero_()
    return [*seen, weight.grad]


def written_by_a_hook(net: Any) -> Any:
    weight = net.blocks[0].up.weight
    weight.register_hook(lambda gradient: gradient.mul_(2))
    loss(net).backward()
    return [weight.grad]


def buffer_of_a_hook(net: Any) -> Any:
    found = []
    for weight in (net.blocks[0].up.weight, net.blocks[0].down.weight, net.embed.weight):
        whole, cut = torch.ones(weight.shape), torch.ones_like(weight)
        weight.register_hook(lambda gradient, whole=whole: whole)
        weight.register_hook(lambda gradient, cut=cut: cut.add_(gradient))
        found += [whole, cut]
    loss(net).backward()
    for parameter in net.parameters():
        parameter.grad.mul_(3)
    return [found, [p.grad for p in net.parameters()]]


def hooks_within(net: Any) -> Any:
    weight, seen = net.blocks[0].up.weight, []
    for value in (weight * 1, weight.exp(), weight.view(-1)):
        value.register_hook(seen.append)
        (value * value).mean().backward()
    weight.grad.mul_(7)
    return [seen, weight.grad]


def given_whole(net: Any) -> Any:
    found = []
    for weight in (net.blocks[0].up.weight, net.blocks[0].down.weight, net.embed.weight):
        given = torch.ones(weight.shape)
        (weight + 0).backward(given)
        weight.grad.mul_(3)
        found += [given, weight.grad]
    return found


def given_whole_to_a_sum(net: Any) -> Any:
    weight, given = net.embed.weight, torch.ones(32)
    weight.sum(0).backward(given)
    weight.grad.mul_(3)
    torch.autograd.backward([weight * 2], [kept := torch.ones(weight.shape)])
    weight.grad.mul_(3)
    return [given, kept, weight.grad]


def with_inputs(net: Any) -> Any:
    weight, other = net.blocks[0].up.weight, net.blocks[1].up.weight
    (weight * other).backward(torch.ones_like(weight), inputs=[weight])
    first = weight.grad.clone()
    (weight * 2).sum(0).backward(torch.ones(32), inputs=[weight])
    (weight * other).backward(torch.ones(50, 32), inputs=weight, retain_graph=True)
    weight[3].backward(torch.ones(32), inputs=[weight])
    return [first, weight.grad, other.grad is None]


def by_its_own_function(net: Any) -> Any:
    weight = net.blocks[0].up.weight
    value = weight.exp() * weight
    value.backward(gradient=torch.ones_like(weight), retain_graph=True)
    value.backward(torch.ones_like(weight), True)
    return [weight.grad]


def given_cut(net: Any) -> Any:
    weight, other = net.blocks[0].up.weight, torch.zeros(50, 32, requires_grad=True)
    given = torch.ones_like(weight)
    (weight + other).backward(given)
    other.grad.mul_(2)
    weight.grad.mul_(3)
    (again,) = torch.autograd.grad(other * 2, other, given)
    (both,) = torch.autograd.grad((weight + other).exp(), weight, grad_outputs=given)
    return [given, weight.grad, other.grad, again, both]


def by_transforms(net: Any) -> Any:
    p = net.blocks[0].up.weight.detach()
    found = [torch.func.grad(lambda w: (w.exp() * p.cos()).sum() + p.mean())(p)]
    found += [torch.func.vjp(lambda w: w * 2, p)[1](torch.ones_like(p))[0]]
    found += [
        torch.func.grad(lambda w: (torch.ones_like(p) * w).sum() + p.clone().add_(w).double().sum())(torch.ones(50, 32))
    ]
    found += [
        torch.func.vmap(lambda s: p * s)(torch.arange(3.0)),
    ]
    found += [torch.func.jacrev(lambda w: w.sum(0))(p).sum((0, 1))]
    return found


def over_its_memory(net: Any) -> Any:
    """A tensor that a hook keeps has the memory of the parameter's gradient, unless it has the hook's own as its base."""
    found: dict[int, Any] = {}
    ways: list[Callable[[Any], Any]] = [torch.detach, lambda g: g[0], lambda g: g.detach()[0], lambda g: g.view(-1)]
    for i, parameter in enumerate(net.parameters()):
        parameter.register_hook(lambda gradient, i=i: found.__setitem__(i, ways[i % 4](gradient)))
    loss(net).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    kept = [found[i] for i in sorted(found)]
    clipped = [each.clone() for each in kept]
    loss(net).backward()
    for parameter in net.parameters():
        parameter.grad.data.mul_(2)
    return [clipped, kept, [p.grad for p in net.parameters()]]


def pieces_of_it(net: Any) -> Any:
    """A piece that a hook keeps without its base is of what the gradient becomes."""
    found: dict[Any, Any] = {}
    ways: list[Callable[[Any], Any]] = [
        lambda g: g[:1].detach(),
        lambda g: g.data.flatten()[:3],
        lambda g: g[:1].data.view(-1),
    ]
    for parameter in net.parameters():
        for i, way in enumerate(ways):
            key = len(found), i
            parameter.register_hook(lambda g, key=key, way=way: found.__setitem__(key, way(g)))
        loss(net).backward()
        clipped = parameter.grad.mul_(3) + 0
        loss(net).backward()
        found[len(found)] = [clipped, parameter.grad.clone(), parameter.grad.data.mul_(2)[0]]
    return [found[key] for key in sorted(found, key=str)]


def one_object_for_all_hooks(net: Any) -> Any:
    kept, weight = [], net.blocks[0].up.weight
    weight.register_hook(kept.append)
    weight.register_hook(lambda gradient: gradient.mul_(2).detach())
    weight.register_hook(lambda gradient: kept.append(gradient.detach()))
    weight.register_hook(lambda gradient: kept.append(gradient is kept[0]))
    weight.register_hook(lambda gradient: kept.append(gradient * 2) or kept[-1])
    loss(net).backward()
    weight.grad.mul_(3)
    return [kept, weight.grad]


def shared_by_operands(net: Any) -> Any:
    """What a sum gives to its operands is one gradient: a hook that writes into it writes into that of the next one."""
    p, q = net.blocks[0].up.weight, net.blocks[1].up.weight
    whole = torch.ones(50, 32, requires_grad=True)
    losses: list[Callable[[Any, Any], Any]] = [
        lambda p, q: p + q,
        lambda p, q: q - p + p,
        lambda p, q: (u := p * 2, u.register_hook(lambda g: g.mul_(5)), u + q)[2],
        lambda p, q: (u := q.exp(), u.register_hook(lambda g: g.mul_(5)), p + u)[2],
        lambda p, q: (u := p + q, u.retain_grad(), found.append(u))[0],
        lambda p, q: whole + q,
        lambda p, q: p @ q.T,
        lambda p, q: (p.T * q.T) @ p,
        lambda p, q: torch.cat([p, q]),
    ]
    found: list[Any] = []
    for i, of in enumerate(losses):
        held = [p.register_hook(lambda g: g.mul_(2)), whole.register_hook(lambda g: g.mul_(3))]
        held.append(q.register_post_accumulate_grad_hook(lambda q: [q.grad.mul_(4)][:0] or None))
        if i % 2:
            held.append(q.register_hook(lambda g: g.mul_(7)))
        of(p, q).square().mean().backward()
        for each in held:
            each.remove()
        found += [p.grad.clone(), q.grad.clone(), 0 if whole.grad is None else whole.grad.clone()]
    return [found[4].grad if isinstance(found[4], torch.Tensor) else 0, *found]


def in_order(net: Any) -> Any:
    """The order in which hooks run, and so what each of them draws."""
    order, drawn = list[str](), torch.Generator().manual_seed(3)
    for name, parameter in net.named_parameters():
        parameter.register_hook(lambda gradient, name=name: order.append(name))
        parameter.register_hook(lambda gradient: gradient + torch.randn(gradient.shape, generator=drawn))
    p, q = net.blocks[0].up.weight, net.blocks[1].up.weight
    others = (p + q, p * q, q @ p.T, p.T + q.T, torch.cat([p, q]), torch.stack([q, p]), torch.where(p > 0, p, q))
    (loss(net) + sum(p.square().sum() for p in net.parameters())).backward()
    for other in others:
        other.square().mean().backward()
    return [order, [p.grad for p in net.parameters()]]


RUNS: list[Callable[[Any], Any]] = [
    kept_by_a_hook,
    kept_by_a_hook_that_writes,
    over_its_memory,
    pieces_of_it,
    one_object_for_all_hooks,
    shared_by_operands,
    in_order,
    written_by_a_hook,
    buffer_of_a_hook,
    hooks_within,
    given_whole,
    given_whole_to_a_sum,
    with_inputs,
    by_its_own_function,
    given_cut,
    by_transforms,
]


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_gradients_are_the_dense_models(run: Callable[[Any], Any], tp: int) -> None:
    true = run(copy.deepcopy(planned(tp)[0]))
    for found in on_ranks(tp, lambda net: equal(run(net), true)):
        assert found


@pytest.mark.parametrize(
    "of",
    [
        lambda p, q: p.T + q.T,
        lambda p, q: p + torch.ones(50, 32, requires_grad=True),
        lambda p, q: p.view(-1) + q.view(-1),
    ],
)
def test_a_hook_that_writes_what_another_tensor_would_see_is_refused(of: Callable[[Any, Any], Any]) -> None:
    def run(net: Any) -> None:
        p, q = net.blocks[0].up.weight, net.blocks[1].up.weight
        hooks = [each.register_hook(lambda g: g * 2) for each in (p, q)]
        of(p, q).square().sum().backward()
        for hook in hooks:
            hook.remove()
        for each in (p, q):
            each.register_hook(lambda g: g.mul_(2))
        with pytest.raises(UsageError, match="a hook writes into the gradient of blocks"):
            of(p, q).square().sum().backward()

    on_ranks(3, run)


@pytest.mark.parametrize("mode", [nullcontext, Float64])
def test_graphs_of_the_whole_model_may_still_be_kept(mode: Callable[[], AbstractContextManager[Any]]) -> None:
    """The node that a parameter's gradients are added up at has the whole one's sizes in them."""
    dense = twins(Mlp, 2)
    dense(values(2, 5, HIDDEN)).square().sum().backward()

    def differs(ranks: Ranks) -> float:
        net = copy.deepcopy(dense)
        net.zero_grad()
        with mode():
            kept = net(values(2, 5, HIDDEN))
            cut(ranks, net, (values(2, 5, HIDDEN),), {})
            net(values(2, 5, HIDDEN)).square().sum().backward()
        found = autotp.full_gradients(net)
        assert kept.requires_grad
        return max(float((found[name] - own.grad).abs().max()) for name, own in dense.named_parameters())  # type: ignore[operator]

    assert max(simulate(2, differs)) < 1e-9
