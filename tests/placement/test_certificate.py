"""What each row of the certificate refuses, on programs made by hand; the same programs made right are accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autotp.axes.annotation import annotate
from autotp.axes.layout import Factor, Leaf
from autotp.errors import PlacementError
from autotp.placement.certificate import operators, transitions
from autotp.placement.certificate.check import certify
from autotp.placement.place import Placement
from autotp.placement.placed import fact_of, placed_as, say
from autotp.placement.transition import DOES, Joined
from autotp.rewrite.build import build
from tests.placement.by_hand import EVERYWHERE, TWO_BY_TWO, Hand
from tests.placement.mutants import transitions as transitions_in
from tests.placement.test_calls import Two, cut, latency, normalised
from tests.placement.test_flow import HIDDEN, SLOPES, UP, Added, Mlp, PerHead, X, placed
from tests.placement.test_routed import NUMBERS, ROWS, Only
from tests.placement.test_sequence import placed as placed_on_positions

WANTING = X.clone().requires_grad_()
OTHER = (Factor(2, 2),)


class Between(Mlp):
    """Something else behind the second layer."""

    def __init__(self, after: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.last = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(super().forward(x), x)


def mlp(after: Callable[..., torch.Tensor] = lambda z, x: z) -> Hand:
    """x -> linear -> relu -> linear_1, cut in the width between them."""
    return Hand(Between(after), UP, inputs=(WANTING,))


def legal(after: Callable[..., torch.Tensor] = lambda z, x: z) -> Hand:
    hand = mlp(after)
    hand.put("enter", "tensor_0", "linear")
    hand.put("reduce", "linear_1")
    return hand


def refusal(hand: Hand) -> str:
    with pytest.raises(PlacementError) as caught:
        hand.check()
    return str(caught.value)


def test_a_right_program_is_accepted_with_what_a_rank_has_of_every_value() -> None:
    hand = legal()
    found = hand.check()
    assert found.values[hand.node("relu")].slices == set(EVERYWHERE)
    assert found.values[hand.node("linear_1")].partial == set(EVERYWHERE)
    assert found.gradients[hand.node("enter")].varies == set(EVERYWHERE)
    assert not found.gradients[hand.node("tensor_0")].varies


# -- forward: partial sums -----------------------------------------------------------------------------------------


def test_a_partial_sum_does_not_leave() -> None:
    assert refusal(mlp()) == "the output hands on linear_1, which is a partial sum"


def test_a_partial_sum_is_not_read_by_what_is_not_linear() -> None:
    hand = mlp(lambda z, x: z.tanh())
    assert refusal(hand).startswith(
        "tanh (aten.tanh.default) reads linear_1 as a partial sum over 2@1, in which it is not"
    )


def test_a_whole_value_is_not_added_to_a_partial_sum_on_every_rank() -> None:
    hand = mlp(lambda z, x: z + x)
    assert "add (aten.add.Tensor) reads linear_1 as a partial sum over 2@1, in which it is not linear" in refusal(hand)
    hand.put("enter", "tensor_0", "linear")
    hand.put("once", "tensor_0", "add")
    hand.put("reduce", "add")
    hand.check()


def test_a_sum_is_not_summed_again() -> None:
    hand = legal()
    hand.put("reduce", "reduce")
    assert refusal(hand) == "reduce_1 (reduce) sums over 2@1 what is no partial sum there"


def test_a_partial_sum_over_other_ranks_stays_one() -> None:
    hand = mlp()
    hand.put("enter", "tensor_0")
    hand.put("reduce", "linear_1", over=OTHER)
    assert refusal(hand) == "reduce (reduce) sums over 2@2 what is no partial sum there"


def test_what_differs_is_not_counted_once() -> None:
    hand = legal()
    hand.put("once", "relu")
    assert refusal(hand) == "count_once (count_once) counts once what differs over 2@1"


def test_parts_of_different_sums_are_not_multiplied() -> None:
    class Third(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.third = nn.Linear(HIDDEN, 8, bias=False)

        def after(self, z: torch.Tensor) -> torch.Tensor:
            return self.third(z)

    assert "multiplies a partial sum over 2@1 with a slice over the same ranks" in refusal(
        Hand(Third(), UP, ("third.weight", 0, 0))
    )


# -- forward: slices -----------------------------------------------------------------------------------------------


def test_slices_and_whole_values_do_not_meet() -> None:
    hand = Hand(PerHead(), ("up.weight", 0, 0), inputs=(X, SLOPES))
    assert refusal(hand) == "mul_1 (aten.mul.Tensor) reads all of unsqueeze along an axis of 4, beside slices"
    hand.slice("unsqueeze", "unsqueeze", "mul_1")
    last = next(node.name for node in reversed(hand.graph.nodes) if node.op == "call_function")
    hand.put("reduce", last)
    hand.check()


def test_a_slice_does_not_leave() -> None:
    hand = legal(lambda z, x: z)
    hand.node("output").args = ([hand.node("relu")],)
    assert refusal(hand) == "the output hands on relu, which is a slice"


def test_a_copy_is_read_before_its_memory_is_written_again() -> None:
    hand = Hand(PerHead(), ("up.weight", 0, 0), inputs=(X, SLOPES))
    copied, source = hand.node(hand.slice("unsqueeze", "unsqueeze", "mul_1")), hand.node("unsqueeze")
    with hand.graph.inserting_after(copied):
        writer = hand.graph.call_function(torch.ops.aten.add_.Tensor, (source, 1))
    writer.meta["val"] = source.meta["val"]
    say(writer, fact=replace(fact_of(source), operands=(source,)), origin="add_")
    hand.put("reduce", next(node.name for node in reversed(hand.graph.nodes) if node.op == "call_function"))
    hand.check()
    annotate(writer, writes=(source,))
    assert "reads slice_to_rank, which was copied before its memory was written" in refusal(hand)


def test_two_axes_over_the_same_ranks_are_refused() -> None:
    hand = Hand(Mlp(), UP, ("up.weight", 1, 0))
    assert refusal(hand) == "up_weight (up.weight) would be cut twice over the same ranks"


def test_a_contraction_adds_nothing_else() -> None:
    message = "sums over a cut axis and adds something else in one step"
    assert message in refusal(Hand(Added(), ("up", 2, 0)))


def test_a_result_without_the_axis_of_its_operands_is_refused() -> None:
    hand = Hand(PerHead(), ("up.weight", 0, 0), inputs=(X, SLOPES))
    hand.slice("unsqueeze", "unsqueeze", "mul_1")
    hand.doctor("mul_1", outputs=(hand.fact("tensor_0").dims,))
    assert refusal(hand) == "mul_1 (aten.mul.Tensor) has no axis of 4 in its result, along which it reads slices"


def test_an_operator_reads_what_it_is_to_read() -> None:
    hand = legal(lambda z, x: z - x)
    hand.node("sub").args = hand.node("sub").args[::-1]
    assert refusal(hand) == "sub (aten.sub.Tensor) reads tensor_0, where it is to read linear_1"


@pytest.mark.parametrize(
    "change",
    [
        lambda record: replace(record, over=OTHER),
        lambda record: replace(record, dims=record.dims[:-1]),
        lambda record: replace(record, dims=tuple((d, Leaf(4), over) for d, _, over in record.dims)),
    ],
    ids=["other ranks", "a dim less", "nothing taken"],
)
def test_a_slice_is_one_along_the_axes_of_its_value(change: Callable[[Any], Any]) -> None:
    hand = Hand(PerHead(), ("up.weight", 0, 0), inputs=(X, SLOPES))
    node = hand.node(hand.slice("unsqueeze", "unsqueeze", "mul_1"))
    say(node, transition=change(placed_as(node).transition))
    assert refusal(hand) == "slice_to_rank (slice_to_rank) takes a slice that is none along its value's axes"


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("gather", ""),
        ("logits", ""),
        ("defer", ""),
        ("keep", ""),
        ("reduce", "sums over 2@1 what is no partial sum there"),
    ],
)
def test_a_slice_is_gathered(does: str, message: str) -> None:
    hand = mlp()
    hand.put("enter", "tensor_0")
    hand.node("output").args = ([hand.node("relu")],)
    hand.put(does, "relu", "output", **({} if does == "reduce" else {"dims": hand.cut_dim("relu", 2)}))
    if message:
        assert message in refusal(hand)
    else:
        hand.check()


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (((2, Leaf(24), EVERYWHERE),), "takes dim 2 for one that is cut as 24 over 2@1"),
        (((1, Leaf(3), EVERYWHERE),), "takes dim 1 for one that is cut as 3 over 2@1"),
        ((), "gathers over 2@1 what is cut over "),
    ],
)
def test_a_gather_says_what_is_cut(dims: Any, message: str) -> None:
    hand = mlp()
    hand.node("output").args = ([hand.node("relu")],)
    hand.put("defer", "relu", "output", dims=dims)
    assert message in refusal(hand)


def test_logits_are_in_the_last_dim() -> None:
    hand = mlp(lambda z, x: z)
    hand.node("output").args = ([hand.node("relu")],)
    hand.put("logits", "relu", "output", dims=((1, Leaf(3), EVERYWHERE),))
    assert "takes dim 1 for that of logits" in refusal(hand)


def test_what_is_for_whoever_gets_the_results_is_read_by_nobody_else() -> None:
    hand = mlp()
    hand.put("logits", "linear", "relu", dims=hand.cut_dim("linear", 2))
    assert "relu (aten.relu.default) reads linear, which is as whoever gets the unit's results has it" in refusal(hand)
    hand.put("reduce", "gather")
    assert "reduce (reduce) reads linear, which is as whoever gets the unit's results has it" in refusal(hand)


# -- backward ------------------------------------------------------------------------------------------------------


def test_what_is_given_has_all_of_its_gradient() -> None:
    hand = mlp()
    hand.put("reduce", "linear_1")
    assert refusal(hand) == "tensor_0 (tensor_0) has a gradient of which each rank has only its part over 2@1"


def test_a_gradient_is_not_summed_twice() -> None:
    hand = legal()
    hand.put("enter", "enter")
    assert refusal(hand) == "enter (enter) sums a gradient over 2@1 of which every rank has all"


def test_a_gradient_of_a_partial_sum_is_not_summed() -> None:
    hand = legal()
    hand.put("enter", "reduce")
    assert refusal(hand) == "enter_1 (enter) sums a gradient over 2@1 of which every rank has all"


def test_all_readers_give_gradients_of_one_kind() -> None:
    hand = mlp(lambda z, x: z + x)
    hand.put("reduce", "linear_1")
    hand.put("enter", "tensor_0")
    message = refusal(hand)
    assert message.startswith("enter (enter) has a gradient that varies over 2@1 by way of ")
    assert "add (aten.add.Tensor)" in message


def test_a_reduction_hands_on_a_gradient_that_is_whole() -> None:
    hand = mlp(lambda z, x: z)
    hand.put("enter", "tensor_0")
    hand.put("leave", hand.put("reduce", "linear_1"))
    assert refusal(hand) == "reduce (reduce) hands on a gradient of which each rank has only its part over 2@1"


def test_a_gradient_of_a_slice_is_not_counted_once() -> None:
    hand = legal()
    hand.put("leave", "relu")
    assert "counts the gradient of what differs over 2@1 once" in refusal(hand)


def test_what_was_whole_before_it_was_sliced_has_a_varying_gradient() -> None:
    inputs = X, SLOPES.clone().requires_grad_()
    hand = Hand(PerHead(), ("up.weight", 0, 0), inputs=inputs)
    hand.slice("unsqueeze", "unsqueeze", "mul_1")
    last = next(node.name for node in reversed(hand.graph.nodes) if node.op == "call_function")
    hand.put("reduce", last)
    assert refusal(hand).startswith("tensor_1 (tensor_1) has a gradient of which each rank has only its part")
    hand.put("enter", "unsqueeze")
    hand.check()


class Normalised(Mlp):
    """What is between is needed whole, and sliced again."""

    def between(self, y: torch.Tensor) -> torch.Tensor:
        return y.softmax(-1)


@pytest.mark.parametrize(("summed", "enters"), [(EVERYWHERE, False), ((), True)])
def test_a_gather_sums_what_varies_behind_it(summed: Any, enters: bool) -> None:
    """Behind the gather the value is sliced again: either the gather sums, or what is behind it does."""

    def gathered(*, summed: Any, enters: bool) -> Hand:
        hand = Hand(Normalised(), UP, inputs=(WANTING,))
        hand.put("enter", "tensor_0")
        hand.put("reduce", "linear_1")
        hand.put("gather", "linear", dims=hand.cut_dim("linear", 2), summed=summed)
        whole = hand.put("enter", "softmax") if enters else "softmax"
        hand.slice(whole, "softmax", "linear_1")
        return hand

    gathered(summed=summed, enters=enters).check()
    message = refusal(gathered(summed=summed, enters=not enters))
    wrong = (
        "sums a gradient over 2@1 of which every rank has all"
        if summed
        else "takes its slice of a gradient of which each"
    )
    assert wrong in message


def test_an_operator_has_the_whole_of_what_it_needs_whole() -> None:
    hand = Hand(Normalised(), UP)
    hand.put("reduce", "linear_1")
    assert refusal(hand) == "softmax (aten.softmax.int) needs an axis of 24 whole"


# -- parameters of which some segments are whole -------------------------------------------------------------------


class Fused(nn.Module):
    """One projection of two segments, of which the second has no axis of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(12 + 4, HIDDEN)), nn.Parameter(torch.randn(HIDDEN, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = nn.functional.linear(x, self.weight).split([12, 4], -1)
        return nn.functional.linear(one * other.sum(-1, keepdim=True), self.out)


WHOLE = tuple(range(6, 10))


def fused(*parts: tuple[int, ...]) -> Hand:
    hand = Hand(Fused(), ("weight", 0, 0), inputs=(WANTING,))
    hand.put("enter", "tensor_0")
    hand.put("reduce", "linear_1")
    source = "weight"
    for where in parts:
        source = hand.put("enter_part", source, where=where, dims=hand.cut_dim("weight", 0), of="parameter")
    return hand


def test_whole_segments_of_a_parameter_are_summed_once() -> None:
    fused(WHOLE).check()
    fused(WHOLE[:1], WHOLE[1:]).check()
    unsummed = "weight (weight) has a gradient of which each rank has only its part over 2@1"
    assert refusal(fused()) == refusal(fused(WHOLE[:2])) == unsummed
    assert "twice, or where it does not vary" in refusal(fused(WHOLE[:2], WHOLE))
    assert "sums positions of a gradient of which a rank has its slice" in refusal(fused((5, *WHOLE)))


def test_a_parameter_of_which_a_part_is_a_slice_is_not_summed_as_a_whole() -> None:
    hand = fused()
    hand.put("enter", "weight")
    assert "sums a gradient over 2@1 of which a rank has its slice in some segments" in refusal(hand)


def test_the_gradient_of_a_whole_segment_is_not_summed_before_the_slice_beside_it() -> None:
    hand = fused(WHOLE)
    hand.put("enter", "getitem_1")
    assert "of which every rank has all, beside slices" in refusal(hand)


# -- rows that pick ------------------------------------------------------------------------------------------------


def routed(change: Callable[[torch.fx.Node], None]) -> str:
    placement = placed(Only(torch.exp), ("up", 0, 0), inputs=(ROWS, NUMBERS))
    graph = build(placement, {}, "rows").graph
    change(
        next(node for node in graph.nodes if placed_as(node).transition and placed_as(node).transition.does == "own")
    )
    with pytest.raises(PlacementError) as caught:
        certify(graph, placement.contract)
    return str(caught.value)


def test_rows_of_no_use_are_not_read_by_what_mixes_rows() -> None:
    message = routed(lambda node: node.replace_all_uses_with(node.args[0]))  # type: ignore[arg-type]
    assert "sums over 2@1 what is no partial sum there" in message


def test_own_rows_are_kept_once_and_those_that_are_right() -> None:
    def other(**changes: Any) -> Callable[[torch.fx.Node], None]:
        def change(node: torch.fx.Node) -> None:
            say(node, transition=replace(placed_as(node).transition, **changes))

        return change

    wrong = "keeps other rows than those that are right on a rank"
    assert wrong in routed(other(ends=True))
    assert wrong in routed(other(over=OTHER))
    assert wrong in routed(other(dims=((1, Leaf(4), EVERYWHERE),)))


# -- positions -----------------------------------------------------------------------------------------------------


def on_positions(does: str, change: Callable[[torch.fx.Node], None], place: int = 0) -> str:
    placement = placed_on_positions()
    graph = build(placement, {}, "positions").graph
    found = [node for node in transitions_in(graph) if placed_as(node).transition.does == does]
    change(found[place])
    graph.eliminate_dead_code()
    with pytest.raises(PlacementError) as caught:
        certify(graph, placement.contract)
    return str(caught.value)


def gone(node: torch.fx.Node) -> None:
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]


def again(node: torch.fx.Node) -> None:
    with node.graph.inserting_after(node):
        made = node.graph.call_function(node.target, (node, *node.args[1:]))  # type: ignore[arg-type]
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


@pytest.mark.parametrize(
    ("does", "change", "message"),
    [
        ("opened", gone, "which is as whoever gets the unit's results has it"),
        ("opened", again, "opens what is not cut over positions"),
        ("shut", gone, "the output hands on add, which is a slice"),
        ("shut", again, "which is as whoever gets the unit's results has it"),
        ("gather_positions", gone, "would be cut twice over the same ranks"),
        ("gather_positions", again, "gathers positions of what is whole"),
        ("scatter_sum", gone, "reads linear_1 as a partial sum|reads all of linear_1"),
        ("scatter_sum", again, "sums over 2@1 what is no partial sum there"),
        ("enter", gone, "has a gradient of which each rank has only its part"),
    ],
)
def test_positions(does: str, change: Callable[[torch.fx.Node], None], message: str) -> None:
    found = on_positions(does, change)
    assert any(part in found for part in message.split("|")), found


# -- calls for several, and mesh factors ---------------------------------------------------------------------------


def joined() -> tuple[torch.fx.Graph, Placement, list[torch.fx.Node]]:
    placement = cut(Two(normalised, normalised), latency)
    graph = build(placement, {}, "two").graph
    parts = [node for node in graph.nodes if getattr(placed_as(node).transition, "number", None) is not None]
    return graph, placement, parts


def test_a_call_for_several_hands_on_what_it_says() -> None:
    graph, placement, (one, other, *_) = joined()
    certify(graph, placement.contract)
    one.args, other.args = (one.args[0], other.args[1]), (other.args[0], one.args[1])
    say(one, transition=replace(placed_as(one).transition, number=1))
    with pytest.raises(PlacementError, match="hands on a result of reduce_together that is not what it says"):
        certify(graph, placement.contract)


def test_what_is_handed_on_is_of_a_call_for_several() -> None:
    graph, placement, (one, *_) = joined()
    one.args = (one.args[0], one.args[0])
    with pytest.raises(PlacementError, match="which is no call for several"):
        certify(graph, placement.contract)


def test_a_call_for_several_does_the_same_to_each() -> None:
    graph, placement, (one, *_) = joined()
    call: Any = one.args[1]
    first, *rest = placed_as(call).joined.parts
    say(call, joined=Joined((first, *(replace(part, over=OTHER) for part in rest))))
    with pytest.raises(PlacementError, match="that is not what it says"):
        certify(graph, placement.contract)


def test_mesh_factors_nest() -> None:
    hand = legal()
    hand.put("leave", "reduce", over=(Factor(3, 1),))
    assert refusal(hand) == "a program's mesh factors 2@1, 3@1 do not nest"


def test_factors_are_the_ranks_that_they_are_written_as() -> None:
    """Four ranks as one factor, or as two by two."""
    hand = Hand(Between(lambda z, x: z), UP, inputs=(WANTING,), over={UP: TWO_BY_TWO})
    hand.put("enter", "tensor_0", over=(Factor(4, 1),))
    hand.put("reduce", "linear_1", over=(Factor(4, 1),))
    hand.check()


def test_every_kind_of_node_has_a_row_forward_and_backward() -> None:
    assert transitions.FORWARD.keys() == transitions.BACKWARD.keys() == DOES.keys()


def test_every_row_for_operators_is_broken_here() -> None:
    assert {row.__name__ for row in operators.ROWS} == {
        "_are_open",
        "_agree",
        "_are_whole_where_needed",
        "_are_linear",
        "_sums",
        "_loses_nothing",
    }
