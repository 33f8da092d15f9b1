"""Placement on small modules: where partial sums go, what is sliced and when, what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

import autotp
from autotp.axes.layout import Cut, Factor
from autotp.axes.term import Axis, axes_of
from autotp.errors import PlacementError, UnsoundPlanError
from autotp.huggingface.examples import examples_for
from autotp.placement.backward import Backward, Price, Values
from autotp.placement.conjugate import Conjugates
from autotp.placement.place import Placement, Waits, place
from autotp.planner.choose import UnitProblem
from autotp.planner.survey import survey
from autotp.rewrite.build import build
from autotp.runtime.collectives.slices import take
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate

HIDDEN, INNER, HEADS = 16, 24, 4
X = torch.randn(2, 3, HIDDEN)
OVER = Factor(2, 1)
# Where a cut is: the n-th axis of a dim of a parameter.
Place: TypeAlias = tuple[str, int, int]
UP, DOWN = ("up.weight", 0, 0), ("down.weight", 1, 0)


class Mlp(nn.Module):
    """Up, something between, down, something after."""

    def __init__(self, inner: int = INNER, *, bias: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, inner, bias=bias), nn.Linear(inner, HIDDEN, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.down(self.between(self.up(x))))

    def between(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu()

    def after(self, z: torch.Tensor) -> torch.Tensor:
        return z


def problem_of(module: nn.Module, *inputs: torch.Tensor) -> UnitProblem:
    found = survey(module, examples_for(module, inputs or (X,)))
    assert not found.failures
    (problem,) = found.problems.values()
    return problem


def per_call(kind: str, values: Values, ranks: int) -> float:
    return 1.0


def per_element(kind: str, values: Values, ranks: int) -> float:
    def count(node: torch.fx.Node) -> int:
        return math.prod(int(size) if isinstance(size, int) else size.node.hint for size in node.meta["val"].shape)

    return sum(share * count(node) for node, share in values)


def placed(
    module: nn.Module,
    *places: Place,
    inputs: tuple[torch.Tensor, ...] = (),
    over: Factor = OVER,
    price: Price = per_call,
    waits: Waits | None = None,
) -> Placement:
    """A module cut along these axes over one mesh factor."""
    problem = problem_of(module, *inputs)
    dims = problem.parameters()
    axes = {list(axes_of(dims[name][dim]))[number] for name, dim, number in places}
    cuts = {axis: Cut((over,), -(-axis.size // over.size) * over.size) for axis in axes}
    return place(problem.graph, problem.typing, cuts, price, waits=waits)


def node_of(placement: Placement, name: str) -> torch.fx.Node:
    return next(node for node in placement.typed.graph.nodes if node.name == name)


def reduced(placement: Placement) -> dict[str, set[str]]:
    """Which values are reduced, and who reads each so."""
    found: dict[str, set[str]] = {}
    for (consumer, operand), use in placement.flow.uses.items():
        if use.reduce:
            found.setdefault(operand.name, set()).add(consumer.name)
    return found


def exact(module: nn.Module, *inputs: torch.Tensor, tp: int = 2) -> dict[str, int]:
    """The collectives that ran, after the planned module was found to equal the whole one."""
    report = autotp.verify(module, tp, example=inputs or (X,))
    report.raise_for_failure()
    return dict(report.counted)


# -- partial sums --------------------------------------------------------------------------------------------------


class Parallel(nn.Module):
    """A parallel residual: two branches read the same input and are added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Mlp(bias=True), Mlp(bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.one(x) + self.other(x)


def test_partial_sums_of_a_parallel_residual_are_reduced_once() -> None:
    placement = placed(Parallel(), ("one.up.weight", 0, 0), ("other.up.weight", 0, 0))
    (total,) = reduced(placement)
    operands = node_of(placement, total).args
    assert {operand.name for operand in operands if isinstance(operand, torch.fx.Node)} == {"linear_1", "linear_3"}
    assert exact(Parallel()) == {"all_reduce forward activation": 1}


def test_one_branch_alone_is_reduced_alone() -> None:
    assert reduced(placed(Parallel(), ("one.up.weight", 0, 0))).keys() == {"linear_1"}


def test_a_bias_is_added_after_the_reduction() -> None:
    placement = placed(Mlp(bias=True), UP)
    ((total, (reader,)),) = reduced(placement).items()
    assert len(node_of(placement, total).args) == 2  # the product without its bias
    added = node_of(placement, reader)
    assert added.target is torch.ops.aten.add.Tensor
    bias = node_of(placement, "down_bias")
    assert bias in added.args
    assert not placement.flow.varies(bias)
    assert exact(Mlp(bias=True)) == {"all_reduce forward activation": 1}


class Weighed(nn.Module):
    """Two branches, each weighed by a number a token that wants a gradient."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.one, self.other = Mlp(bias=bias), Mlp(bias=bias)

    def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.one(x) * a + self.other(x) * b


WEIGHED = X, *(torch.rand(2, 3, 1, requires_grad=True) for _ in range(2))
BOTH = ("one.up.weight", 0, 0), ("other.up.weight", 0, 0)


@pytest.mark.parametrize("bias", [False, True])
def test_a_sum_waits_for_a_product_where_that_costs_less(bias: bool) -> None:
    module = Weighed(bias=bias)
    placement = placed(module, *BOTH, inputs=WEIGHED, price=per_element)
    (total,) = reduced(placement)
    assert node_of(placement, total).target is torch.ops.aten.add.Tensor
    assert {enter.node.name for enter in placement.backward.enters} == {"tensor_1", "tensor_2"}
    assert len(reduced(placed(module, *BOTH, inputs=WEIGHED))) == 2


def test_one_product_alone_is_not_worth_waiting_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found, whole = list[Conjugates](), Conjugates.cheapest

    def counted(conjugates: Conjugates) -> Backward:
        found.append(conjugates)
        return whole(conjugates)

    monkeypatch.setattr(Conjugates, "cheapest", counted)
    assert reduced(placed(Weighed(), BOTH[0], inputs=WEIGHED, price=per_element)).keys() == {"linear_1"}
    assert len(found) == 1  # to wait sends more both ways: where its gradients are summed is not looked for


class Resized(nn.Module):
    """An MLP of a value that is made smaller, or larger, step by step."""

    def __init__(self, *steps: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.steps, self.mlp = steps, Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return self.mlp(x)


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ((torch.exp, lambda x: x[:1], torch.sin), "sin"),
        ((torch.exp, lambda x: x.repeat(3, 1, 1), torch.sin), "exp"),
        ((torch.exp, lambda x: x[:1], lambda x: x.repeat(3, 1, 1)), "slice_1"),
    ],
)
def test_a_gradient_is_summed_where_the_values_in_a_row_are_smallest(steps: Any, where: str) -> None:
    x = X.clone().requires_grad_()
    placement = placed(Resized(*steps), ("mlp.up.weight", 0, 0), inputs=(x,), price=per_element)
    assert [enter.node.name for enter in placement.backward.enters] == [where]


class Scaled(Weighed):
    """Another one, with parameters of other names and another constant."""

    def __init__(self, scale: float, other: str) -> None:
        super().__init__()
        self.scale, self.name = scale, other
        setattr(self, other, self.other)
        del self.other

    def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.one(x) * a + getattr(self, self.name)(x) * b * self.scale


def test_what_waits_in_a_unit_waits_in_one_like_it_and_is_found_anew_in_another() -> None:
    waits, asked = dict[Hashable, frozenset[str]](), list[str]()

    def counted(kind: str, values: Values, ranks: int) -> float:
        asked.append(kind)
        return per_element(kind, values, ranks)

    def found(scale: float, other: str, number: int = 2, price: Price = counted) -> tuple[set[str], int]:
        asked.clear()
        places = (("one.up.weight", 0, 0), (f"{other}.up.weight", 0, 0))[:number]
        made = placed(Scaled(scale, other), *places, inputs=WEIGHED, price=price, waits=waits)
        alone = placed(Scaled(scale, other), *places, inputs=WEIGHED, price=price)
        assert reduced(made) == reduced(alone)
        return set(reduced(made)), len(asked)

    first, prices = found(0.5, "second")
    again, fewer = found(0.25, "third")
    assert again == first
    assert len(first) == len(waits) == 1
    assert fewer < prices
    assert len(found(0.5, "second", number=1)[0]) == 1
    assert len(waits) == 2  # cut otherwise
    assert len(found(0.5, "second", price=per_call)[0]) == 2
    assert len(waits) == 3  # priced otherwise


def test_a_bias_of_a_cut_output_is_cut_with_it() -> None:
    placement = placed(Mlp(bias=True), UP)
    assert placement.flow.held[node_of(placement, "up_bias")] == placement.flow.held[node_of(placement, "linear")]


class After(Mlp):
    """An operator on the partial sum of an MLP."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def after(self, z: torch.Tensor) -> torch.Tensor:
        return self.function(z)


@pytest.mark.parametrize(
    "function", [torch.relu, torch.exp, lambda z: z + 1, lambda z: z * z], ids=["relu", "exp", "shifted", "squared"]
)
def test_a_partial_sum_is_not_carried_through_what_is_not_linear(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert reduced(placed(After(function), UP)).keys() == {"linear_1"}
    assert exact(After(function)) == {"all_reduce forward activation": 1}


@pytest.mark.parametrize(
    "function",
    [lambda z: z * 3, lambda z: -z, lambda z: z.transpose(0, 1), lambda z: z / 7, lambda z: z.sum(-1)],
    ids=["scaled", "negative", "transposed", "divided", "summed"],
)
def test_a_partial_sum_is_carried_through_what_is_linear(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    placement = placed(After(function), UP)
    assert reduced(placement).keys() != {"linear_1"}
    assert list(reduced(placement).values()) == [{"output"}]
    assert exact(After(function)) == {"all_reduce forward activation": 1}


def test_a_partial_sum_is_reduced_before_it_grows() -> None:
    placement = placed(After(lambda z: z.unsqueeze(1).expand(-1, 5, -1, -1)), UP)
    assert reduced(placement).keys() <= {"linear_1", "unsqueeze"}
    assert exact(After(lambda z: z.unsqueeze(1).expand(-1, 5, -1, -1))) == {"all_reduce forward activation": 1}


# -- whole values that meet slices ---------------------------------------------------------------------------------


class PerHead(nn.Module):
    """Heads with an input of one row for each, which is worked on before it meets them (as alibi is)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, HEADS * 6, bias=False), nn.Linear(HEADS * 6, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        y = self.up(x).unflatten(-1, (HEADS, 6))
        return self.down((y * (slopes * 2 + 1).exp().unsqueeze(-1)).relu().flatten(-2))


SLOPES = torch.linspace(0.1, 1, HEADS)


def test_a_whole_value_is_sliced_where_it_meets_a_slice_and_not_before() -> None:
    placement = placed(PerHead(), ("up.weight", 0, 0), inputs=(X, SLOPES))
    takes = {(consumer.name, operand.name) for (consumer, operand), use in placement.flow.uses.items() if use.take}
    assert takes == {("mul_1", "unsqueeze")}
    for name in ("tensor_1", "mul", "add", "exp", "unsqueeze"):
        assert not placement.flow.held[node_of(placement, name)], name
    assert exact(PerHead(), X, SLOPES) == {"all_reduce forward activation": 1}


def test_a_sliced_input_that_wants_a_gradient_gets_the_sum_of_all_ranks() -> None:
    slopes = SLOPES.clone().requires_grad_()
    placement = placed(PerHead(), ("up.weight", 0, 0), inputs=(X, slopes))
    (enter,) = placement.backward.enters
    assert enter.over == {OVER}
    assert enter.node.name in {"tensor_1", "mul", "add", "exp", "unsqueeze"}
    counted = {"all_reduce forward activation": 1, "all_reduce backward activation": 1}
    assert exact(PerHead(), X, slopes) == counted


class Projections(nn.Module):
    """Attention in a residual: q, k and v of one input behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return x + self.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_q_k_and_v_share_one_sum_of_their_input_s_gradient() -> None:
    placement = placed(Projections(), ("q.weight", 0, 0))
    (enter,) = placement.backward.enters
    assert (enter.node.name, enter.over) == ("layer_norm", frozenset({OVER}))
    assert {consumer.name for consumer in enter.consumers} == {"linear", "linear_1", "linear_2"}
    wanting = torch.randn(2, 3, HIDDEN, requires_grad=True)
    assert exact(Projections(), wanting) == {"all_reduce forward activation": 1, "all_reduce backward activation": 1}


def test_where_the_input_wants_no_gradient_the_norm_s_weights_have_the_smaller_sum() -> None:
    assert exact(Projections()) == {"all_reduce forward activation": 1, "all_reduce backward parameter": 1}


class Stack(nn.Module):
    """The first of equal layers is given data, the others want its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Projections() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_all_layers_of_a_stack_have_one_placement() -> None:
    assert exact(Stack()) == {"all_reduce forward activation": 3, "all_reduce backward activation": 3}


# -- what is refused -----------------------------------------------------------------------------------------------


def test_two_axes_of_one_weight_over_the_same_ranks_are_refused() -> None:
    """The ranks would hold the blocks of a diagonal."""
    with pytest.raises(UnsoundPlanError, match=r"up_weight \(up\.weight\) would be cut twice over the same ranks"):
        placed(Mlp(), UP, ("up.weight", 1, 0))


def test_mesh_factors_that_do_not_nest_are_refused() -> None:
    problem = problem_of(Parallel())
    dims = problem.parameters()
    factors = {"one.up.weight": Factor(2, 1), "other.up.weight": Factor(3, 1)}
    cuts = {next(axes_of(dims[name][0])): Cut((factor,), INNER) for name, factor in factors.items()}
    with pytest.raises(PlacementError, match=r"mesh factors 2@1, 3@1 do not nest"):
        place(problem.graph, problem.typing, cuts, per_call)


class Added(nn.Module):
    """A product that adds twice its bias in the same step."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(2, HIDDEN, INNER) / 4)
        self.down = nn.Parameter(torch.randn(2, INNER, HIDDEN) / 4)
        self.bias = nn.Parameter(torch.randn(2, 1, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = x.flatten(0, 1).expand(2, -1, -1)
        return torch.baddbmm(self.bias, torch.bmm(twice, self.up).relu(), self.down, beta=2)


def test_a_contraction_that_adds_something_in_one_step_is_refused() -> None:
    message = r"baddbmm \(aten\.baddbmm\.default\) sums over a cut axis and adds something else in one step"
    with pytest.raises(UnsoundPlanError, match=message):
        placed(Added(), ("up", 2, 0))


class Between(Mlp):
    """An operator between up and down, on a width that two ranks do not divide."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], inner: int = 25) -> None:
        super().__init__(inner)
        self.function = function

    def between(self, y: torch.Tensor) -> torch.Tensor:
        return self.function(y)


@pytest.mark.parametrize(
    "function",
    [torch.relu, torch.tanh, lambda y: y * y.sigmoid(), lambda y: y * 3],
    ids=["relu", "tanh", "swish", "scaled"],
)
def test_padding_that_stays_zero_may_be_summed(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert reduced(placed(Between(function), UP)).keys() == {"linear_1"}
    assert exact(Between(function)) == {"all_reduce forward activation": 1}


class Statistic(Between):
    """The sum of what is between."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(self.up(x))
        return self.down(y / y.sum(-1, keepdim=True))


def test_padding_that_is_not_zero_is_not_summed() -> None:
    message = (
        r"sum_1 sums over an axis of 25 padded to 26, and the padding is not zero there; choose a tensor-parallel size"
    )
    with pytest.raises(UnsoundPlanError, match=message):
        placed(Statistic(torch.exp), UP)
    placed(Statistic(torch.exp, inner=24), UP)
    placed(Statistic(torch.relu), UP)


def test_padding_of_a_weight_is_zero_so_its_product_may_be_summed() -> None:
    """Behind exp the activation's padding is one, but the weight it meets is zero there."""
    placed(Between(torch.exp), UP)
    assert exact(Between(torch.exp)) == {"all_reduce forward activation": 1}


def test_what_must_stay_whole_is_not_cut() -> None:
    with pytest.raises(
        UnsoundPlanError, match=r"an axis of 24 is cut but must be whole at softmax \(aten\.softmax\): "
    ):
        placed(Between(lambda y: y.softmax(-1), INNER), UP)


# -- the graph -----------------------------------------------------------------------------------------------------


def test_a_cut_names_axes_of_the_graph() -> None:
    """The traced graph is not changed by placing it, so that it can be placed again."""
    problem = problem_of(Mlp(bias=True))
    (proposal,) = problem.proposals
    (axis,) = proposal.axes
    assert isinstance(axis, Axis)
    before = str(problem.graph)
    for _ in range(2):
        place(problem.graph, problem.typing, {axis: Cut((OVER,), INNER)}, lambda *_: 1.0)
    assert str(problem.graph) == before


# -- parameters of several segments --------------------------------------------------------------------------------


class Segments(nn.Module):
    """One projection of q, k and z: k has no repeats, and z not even groups."""

    def __init__(self) -> None:
        super().__init__()
        self.qkz, self.out = nn.Linear(HIDDEN, 16 + 8 + 4, bias=False), nn.Linear(16, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, z = self.qkz(x).split([16, 8, 4], -1)
        heads = q.unflatten(-1, (2, 2, 4)) * k.unflatten(-1, (2, 1, 4)) * z.tanh().sum(-1)[..., None, None, None]
        return self.out((heads * heads.softmax(-1)).flatten(2))


def test_each_segment_s_gradient_is_summed_over_the_ranks_that_have_it_alike() -> None:
    module, over = Segments(), (Factor(2, 2), Factor(2, 1))
    problem = problem_of(module)
    groups, repeats = list(axes_of(problem.parameters()["qkz.weight"][0]))[:2]
    cuts = {axis: Cut((factor,), 2) for axis, factor in zip((groups, repeats), over, strict=True)}
    program = build(place(problem.graph, problem.typing, cuts, per_call), {}, "segments")

    def run(ranks: Ranks) -> list[torch.Tensor]:
        own = copy.deepcopy(module)
        for name, layouts in program.layouts.items():
            parameter = own.get_parameter(name)
            parameter.data = take(parameter.detach(), layouts, ranks.rank)
        (result,) = program.run(own, ranks, X)
        result.square().sum().backward()
        return [result.detach(), *(parameter.grad for parameter in own.parameters() if parameter.grad is not None)]

    module(X).square().sum().backward()
    for rank, (result, *gradients) in enumerate(simulate(4, run)):
        torch.testing.assert_close(result, module(X))
        for (name, parameter), local in zip(module.named_parameters(), gradients, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(local, take(parameter.grad, program.layouts[name], rank))
