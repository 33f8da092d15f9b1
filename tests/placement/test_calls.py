"""What is sent in one call: small values of which none is behind another, in an order that the rewritten graph still has."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from autotp.axes.annotation import annotate
from autotp.axes.facts import Fact
from autotp.axes.layout import Factor
from autotp.placement.backward import Values
from autotp.placement.calls import _Order, _waits
from autotp.placement.place import Placement
from autotp.placement.placed import placed_as
from autotp.placement.steps import Step
from autotp.placement.transition import Transition
from autotp.placement.typed import TypedGraph, is_of_parameters
from autotp.rewrite.build import build
from autotp.runtime.collectives.slices import take
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from tests.placement.test_flow import HIDDEN, INNER, UP, Mlp, X, exact, per_element, placed

OTHER_UP = ("other.weight", 0, 0)


def normalised(y: torch.Tensor) -> torch.Tensor:
    """A norm over all of a cut dim: it sums a number a row over the ranks."""
    return y * (y.square().sum(-1, keepdim=True) + 1).rsqrt()


class Two(nn.Module):
    """Two projections, cut alike, what is made of each, and the product of both."""

    def __init__(self, one: Callable[..., torch.Tensor], other: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.functions = one, other
        self.up, self.other = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.functions
        return self.down(one(self.up(x)) * other(self.other(x)))


def cut(module: nn.Module, price: Callable[[str, Values, int], float] = per_element) -> Placement:
    return placed(module, UP, OTHER_UP, ("down.weight", 1, 0), inputs=(X.clone().requires_grad_(),), price=price)


def latency(kind: str, values: Values, ranks: int) -> float:
    """A call costs as much as sending, or as copying, 50 elements."""
    return 50 + per_element(kind, values, ranks) * (2 if len(values) > 1 else 1)


def equals_dense(module: nn.Module) -> None:
    """Two ranks compute what the whole module does, and its gradients; joined calls are the only ones there are."""
    placement = cut(module, latency)
    program = build(placement, {}, "module")

    def run(ranks: Ranks) -> list[torch.Tensor]:
        own, x = copy.deepcopy(module), X.clone().requires_grad_()
        for name, layouts in program.layouts.items():
            parameter = own.get_parameter(name)
            parameter.data = take(parameter.detach(), layouts, ranks.rank)
        with ranks.logging() as log:
            (result,) = program.run(own, ranks, x)
            result.square().sum().backward()
        assert len(log.calls) == len(placement.calls)
        return [result.detach(), x.grad, *(parameter.grad for parameter in own.parameters())]

    x = X.clone().requires_grad_()
    module(x).square().sum().backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    names = [name for name, _ in module.named_parameters()]
    for rank, (result, gradient, *own) in enumerate(simulate(2, run)):
        torch.testing.assert_close(result, module(X))
        torch.testing.assert_close(gradient, x.grad)
        for name, local, whole in zip(names, own, gradients, strict=True):
            torch.testing.assert_close(local, take(whole, program.layouts[name], rank))


def forward(placement: Placement) -> list[list[str]]:
    return [[step.about.name for step in call] for call in placement.calls if call[0].record.phase == "forward"]


def test_sums_that_wait_for_nothing_of_each_other_are_one_call() -> None:
    module = Two(normalised, normalised)
    sizes = [len(call) for call in forward(cut(module, latency))]
    assert sizes == [2, 1]
    equals_dense(module)


def test_a_sum_that_is_made_of_another_comes_after_it() -> None:
    module = Two(lambda y: normalised(normalised(y).relu()), torch.relu)
    assert [len(call) for call in forward(cut(module, latency))] == [1, 1, 1]
    equals_dense(module)


def test_the_second_of_one_chain_may_go_with_the_only_one_of_another() -> None:
    """Values are taken in the order of the graph, which is why it goes with the first; either way two calls are three sums."""
    module = Two(lambda y: normalised(normalised(y).relu()), normalised)
    assert sorted(len(call) for call in forward(cut(module, latency))) == [1, 1, 2]
    equals_dense(module)


def test_large_values_go_by_themselves() -> None:
    """Copying the sum of six rows of 16 costs more than a call, that of six numbers less."""
    placement = cut(Two(normalised, normalised), latency)
    assert [len(call) for call in forward(placement)] == [2, 1]
    assert [len(call) for call in forward(cut(Two(normalised, normalised)))] == [1, 1, 1]


def test_values_of_other_dtypes_do_not_lie_side_by_side() -> None:
    module = Two(normalised, lambda y: normalised(y.double()).float())
    assert [len(call) for call in forward(cut(module, latency))] == [1, 1, 1]


def test_calls_that_would_wait_for_one_another_are_not_made() -> None:
    """The first sums of both chains are of other dtypes, the second ones the other way round: joining both pairs would let
    each call wait for the other."""

    def one(y: torch.Tensor) -> torch.Tensor:
        return normalised(normalised(y).double()).float()

    def other(y: torch.Tensor) -> torch.Tensor:
        return normalised(normalised(y.double()).float())

    module = Two(one, other)
    assert sorted(len(call) for call in forward(cut(module, latency))) == [1, 1, 1, 2]
    equals_dense(module)


def noisy(y: torch.Tensor) -> torch.Tensor:
    return normalised(y) * torch.rand(1)


def test_random_numbers_are_drawn_in_the_model_s_order() -> None:
    placement = cut(Two(noisy, noisy), latency)
    assert [len(call) for call in forward(placement)] == [2, 1]
    before = [node.name for node in placement.typed.graph.nodes if node.target is torch.ops.aten.rand.default]
    assert len(before) == 2
    after = build(placement, {}, "two").graph
    assert [placed_as(node).origin for node in after.nodes if placed_as(node).origin in before] == before


def test_a_draw_between_two_sums_keeps_them_apart() -> None:
    """The first draw is behind the first sum, and the second sum is behind the second draw, which comes after the first."""
    module = Two(lambda y: dropout(normalised(y)), lambda y: normalised(dropout(y)))
    assert [len(call) for call in forward(cut(module, latency))] == [1, 1, 1]


class Detour(Two):
    """Gradients are off for a while, so that everything keeps its order; both sums are there before one is read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.up(x), self.other(x)
        with torch.no_grad():
            middle = x.mean(-1, keepdim=True)
        first = one.square().sum(-1, keepdim=True)
        second = other.square().sum(-1, keepdim=True)
        return self.down(one * (first + 1).rsqrt() * other * (second + 1).rsqrt()) + middle


def test_a_call_stands_behind_all_of_its_values_where_everything_keeps_its_order() -> None:
    module = Detour(torch.relu, torch.relu)
    assert [len(call) for call in forward(cut(module, latency))] == [2, 1]
    equals_dense(module)


class Written(Two):
    """What is summed of the first projection is written into, after both sums are there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.up(x), self.other(x)
        first = one.square().sum(-1, keepdim=True)
        second = other.square().sum(-1, keepdim=True)
        first[:, 0].add_(1)
        return self.down(one * first.rsqrt() * other * (second + 1).rsqrt())


def test_what_is_written_in_place_is_sent_alone() -> None:
    module = Written(torch.relu, torch.relu)
    assert all(len(call) == 1 for call in forward(cut(module, latency)))
    equals_dense(module)


class WrittenBefore(Two):
    """Both projections read what is written into before, so that each has a sum of its own for its gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        x[:, 0].add_(1)
        return self.down(self.up(x).relu() * self.other(x).relu())


def test_a_sum_for_each_reader_of_what_is_written_is_a_call_for_each() -> None:
    placement = cut(WrittenBefore(torch.relu, torch.relu), latency)
    assert [len(call) for call in placement.calls if call[0].record.does == "enter"] == [1, 1]
    equals_dense(WrittenBefore(torch.relu, torch.relu))


def test_gradients_of_parameters_are_one_call_and_those_of_activations_another() -> None:
    class Scaled(Mlp):
        """Whole weights inside of a cut region, as of a norm over every head."""

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

        def between(self, y: torch.Tensor) -> torch.Tensor:
            return (y * self.scale + self.shift).relu()

    placement = placed(Scaled(), UP, ("down.weight", 1, 0), inputs=(X.clone().requires_grad_(),), price=latency)
    backward = [[step.about.name for step in call] for call in placement.calls if call[0].record.phase == "backward"]
    assert sorted(map(sorted, backward)) == [["scale", "shift"], ["tensor_0"]]
    assert exact(Scaled(), X.clone().requires_grad_()) == {
        "all_reduce forward activation": 1,
        "all_reduce backward activation": 1,
        "all_reduce backward parameter": 1,
    }


@pytest.mark.parametrize("seed", range(30))
def test_what_may_join_is_what_leaves_an_order(seed: int) -> None:
    """Calls that grow in any order wait for each other as a graph of them says that is looked at as a whole."""
    draw, count = random.Random(seed), 24
    waits: dict[int, frozenset[int]] = {}
    for number in range(count):
        direct = [other for other in range(number) if draw.random() < 0.1]
        waits[number] = frozenset(direct).union(*(waits[other] for other in direct))
    order, calls = _Order([sum(1 << other for other in waits[n]) for n in range(count)]), list[set[int]]()
    for each in draw.sample(range(count), count):
        order.look_at(each)
        allowed = [number for number in range(len(calls)) if order.allows(number)]
        trials = [[*calls[:n], calls[n] | {each}, *calls[n + 1 :]] for n in range(len(calls))]
        assert allowed == [n for n, trial in enumerate(trials) if _has_an_order(trial, waits)]
        number = draw.choice([*allowed, len(calls)])
        calls[number : number + 1] = [(calls[number] if number < len(calls) else set()) | {each}]
        order.add(each, number)


def test_what_takes_what_another_step_gives_waits_for_it() -> None:
    graph, over = torch.fx.Graph(), (Factor(2, 1),)
    x = graph.placeholder("x")
    graph.output((x,))
    first = Step(Transition("reduce", over), x, about=x)
    second = Step(Transition("gather", over), first, about=x)
    assert _waits(TypedGraph(graph, {x: Fact((), ())}), [first, second]) == [0b00, 0b01]


def _has_an_order(calls: list[set[int]], waits: dict[int, frozenset[int]]) -> bool:
    call_of = {each: number for number, call in enumerate(calls) for each in call}
    edges = {(call_of[other], call_of[each]) for each in call_of for other in waits[each] if other in call_of}
    return nx.is_directed_acyclic_graph(nx.DiGraph(edges))


def test_a_long_chain_of_parameters_is_followed() -> None:
    """A value that is made of a parameter in a thousand steps is one of parameters, and the steps are no depth of calls."""
    graph, facts = torch.fx.Graph(), {}
    node = graph.create_node("get_attr", "weight")
    annotate(node, parameter=True)
    facts[node] = Fact((), ())
    for _ in range(5000):
        last, node = node, graph.call_function(torch.neg, (node,))
        facts[node] = Fact((), (last, last))
    assert is_of_parameters(TypedGraph(graph, facts), node)
    facts[last] = Fact((), (graph.placeholder("x"),))
    facts[facts[last].operands[0]] = Fact((), ())
    assert not is_of_parameters(TypedGraph(graph, facts), node)
