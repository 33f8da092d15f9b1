"""`autotp.verify` compares copies, and what holds the model in some other way than a module is the copy's too, or is refused."""

from __future__ import annotations

import functools
import importlib
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.errors import UsageError, VerificationError
from autotp.verify.copies import copied
from tests.contract.parts import Mlp, WordNet, ids, twins

EXAMPLE = (ids(2, 5),)


class Holder:
    def __init__(self, owner: nn.Module) -> None:
        self.owner = owner

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.owner.embed.weight.t()


class Slots:
    __slots__ = ("function",)


class Tied(WordNet):
    """Makes its logits with the table of its words, which something that is no module reads."""

    def __init__(self, make: Callable[[nn.Module], Any]) -> None:
        super().__init__(*twins(Mlp).blocks)
        self.head, self.tied = None, make(self)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        tied = self.tied
        while not callable(tied):
            tied = tied.function if isinstance(tied, Slots) else next(iter(dict(tied).values()))
        return tied(x)


def over_self(net: nn.Module) -> Any:
    return lambda x: x @ net.embed.weight.t()


def over_the_weight(net: nn.Module) -> Any:
    weight = net.embed.weight
    return lambda x: x @ weight.t()


def nested(net: nn.Module) -> Any:
    function = over_self(net)
    for _ in range(9):
        function = (lambda inner: lambda x: inner(x))(function)
    return function


def in_slots(net: nn.Module) -> Any:
    held = Slots()
    held.function = over_self(net)
    return held


def over_itself(net: nn.Module) -> Any:
    def again(x: torch.Tensor, times: int = 2) -> torch.Tensor:
        return again(x, times - 1) if times else x @ net.embed.weight.t()

    return again


def by_a_reference(net: nn.Module) -> Any:
    net.reference = types.SimpleNamespace(to=weakref.ref(net))
    return lambda x, held=net.reference: x @ held.to().embed.weight.t()


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "a lambda": over_self,
    "the weight itself": over_the_weight,
    "a default": lambda net: lambda x, table=net.embed: x @ table.weight.t(),
    "a partial": lambda net: functools.partial(lambda weight, x: x @ weight.t(), net.embed.weight),
    "a method of another object": lambda net: Holder(net).__call__,
    "an object": Holder,
    "a dict in a dict": lambda net: {"a": {"b": over_self(net)}},
    "nine lambdas": nested,
    "slots": in_slots,
    "a function over itself": over_itself,
    "a weak reference": by_a_reference,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_computes_with_its_own_weights(way: str) -> None:
    net = Tied(WAYS[way])
    twin = copied(net)
    twin(*EXAMPLE).sum().backward()
    assert all(parameter.grad is None for parameter in net.parameters())
    assert twin.embed.weight.grad is not None
    dense = Tied(WAYS[way])
    dense.load_state_dict(net.state_dict())
    dense(*EXAMPLE).sum().backward()
    assert torch.equal(twin.embed.weight.grad, dense.embed.weight.grad)


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", WAYS)
def test_verify_judges_the_parameters_themselves(way: str) -> None:
    report = autotp.verify(Tied(WAYS[way]), 2, example=EXAMPLE)
    report.raise_for_failure()
    assert "embed.weight" in {difference.name for difference in report.gradients}


def test_a_lost_gradient_of_a_closure_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient that is scaled by half on its way through the lambda differs from the dense one."""
    module = importlib.import_module("autotp.verify.verifier")
    apply_plan = module.apply_plan

    def applied(model: nn.Module, *rest: Any) -> nn.Module:
        parallel = apply_plan(model, *rest)
        inner = parallel.tied
        parallel.tied = lambda x: inner(x) * 0.5 + inner(x).detach() * 0.5
        return parallel

    monkeypatch.setattr(module, "apply_plan", applied)
    with pytest.raises(VerificationError):
        autotp.verify(Tied(over_self), 2, example=EXAMPLE).raise_for_failure()


class Global(WordNet):
    owner: tuple[nn.Module, ...] = ()

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.owner[0].embed.weight.t()


def test_a_model_that_is_held_from_outside_is_refused() -> None:
    net = Global()
    Global.owner = (net,)
    with pytest.raises(UsageError, match=r"embed\.weight of the model that verify has copied"):
        autotp.verify(net, 2, example=EXAMPLE)


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    net = WordNet()
    net.stream = (number for number in range(3))
    with pytest.raises(UsageError, match="cannot be copied"):
        autotp.verify(net, 2, example=EXAMPLE)
