"""Rarer rows of the certificate, each on a program that breaks it; every text that it may refuse with is expected somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotp.axes.annotation import annotate
from autotp.axes.layout import Cut, Factor, Leaf
from autotp.axes.term import axes_of
from autotp.placement import certificate
from autotp.rewrite.layers import call_layers
from tests.placement.by_hand import EVERYWHERE, Hand
from tests.placement.test_certificate import WANTING, WHOLE, Fused, legal, mlp, refusal
from tests.placement.test_flow import HIDDEN, UP, Mlp
from tests.placement.test_routed import NUMBERS, ROWS, ByEnds, Only
from tests.troubleshooting.texts import texts

OTHER = (Factor(2, 2),)


# -- rows that pick ------------------------------------------------------------------------------------------------


def rows(between: Callable[..., torch.Tensor]) -> Hand:
    return Hand(Only(between), ("up", 0, 0), inputs=(ROWS, NUMBERS))


def mixed() -> Hand:
    return rows(lambda y: y.cumsum(0))


def divided() -> Hand:
    return rows(lambda y: y / (y.square() + 1))


def picked_otherwise() -> Hand:
    return Hand(ByEnds(sort=False), ("stack", 0, 0), ("bias", 0, 0), inputs=(ROWS, NUMBERS))


def written() -> Hand:
    hand = rows(torch.exp)
    annotate(hand.node("exp"), writes=())
    return hand


def picked_by_a_slice() -> Hand:
    hand = rows(torch.exp)
    pick = hand.fact("index").pick
    assert pick is not None
    hand.doctor("index", pick=replace(pick, by=hand.node("up")))
    return hand


def left() -> Hand:
    hand = rows(torch.exp)
    hand.node("output").args = ([hand.node("exp")],)
    return hand


def not_routed() -> Hand:
    hand = mlp()
    hand.put("own", "relu", dims=((0, Leaf(2), EVERYWHERE),), others=("tensor_0",))
    return hand


# -- positions -----------------------------------------------------------------------------------------------------


class Norm(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).relu()


def opened() -> Hand:
    hand = Hand(Norm(), inputs=(WANTING,), positions=True)
    hand.put("opened", "tensor_0")
    return hand


ALONG: Any = ((1, Leaf(3), EVERYWHERE),)


def taken_twice() -> Hand:
    hand = opened()
    hand.put("take_positions", "layer_norm", dims=ALONG)
    return hand


def not_the_positions() -> Hand:
    hand = opened()
    hand.put("gather_positions", "layer_norm", dims=((2, Leaf(3), EVERYWHERE),), others=("tensor_0",))
    return hand


def of_some_ranks() -> Hand:
    hand = opened()
    hand.put("gather_positions", "layer_norm", dims=ALONG, over=OTHER, others=("tensor_0",))
    return hand


def whole_handed_on() -> Hand:
    hand = opened()
    hand.put("gather_positions", "relu", dims=ALONG, others=("tensor_0",))
    hand.put("shut", "gather_positions", others=("tensor_0",))
    return hand


# -- operators -----------------------------------------------------------------------------------------------------


class Segments(nn.Module):
    """A product that sums over two segments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(12 + 4, HIDDEN)), nn.Parameter(torch.randn(HIDDEN, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = nn.functional.linear(x, self.weight).split([12, 4], -1)
        return nn.functional.linear(torch.cat([one.relu(), other], -1), self.out)


def sums_both() -> Hand:
    return Hand(Segments(), ("weight", 0, 0))


class Scaled(Fused):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = nn.functional.linear(x, self.weight * 2.0).split([12, 4], -1)
        return nn.functional.linear(one * other.sum(-1, keepdim=True), self.out)


def summed_behind() -> Hand:
    """A part of the gradient of what is made of a parameter is summed."""
    hand = Hand(Scaled(), ("weight", 0, 0), inputs=(WANTING,))
    hand.put("enter", "tensor_0")
    hand.put("reduce", "linear_1")
    hand.put("enter_part", "mul", where=WHOLE[:2], dims=hand.cut_dim("weight", 0), of="parameter")
    return hand


def lost() -> Hand:
    """The fact of an operator says that its result has other axes than what it reads."""
    hand = legal()
    hand.doctor("relu", outputs=(hand.fact("tensor_0").dims,))
    hand.node("output").args = ([hand.node("relu")],)
    hand.graph.eliminate_dead_code()
    return hand


def layers() -> Hand:
    """A layer reads a slice along an axis of its input, over ranks that its weight is the same on."""
    hand = Hand(Mlp(), UP)
    (batch,) = axes_of(hand.fact("tensor_0").dims[0])
    hand.contract.cuts[batch] = Cut(OTHER, batch.size)  # type: ignore[index]
    hand.slice("tensor_0", "tensor_0")
    node = hand.node("linear_1")
    hand.put("reduce", node.name)
    batch_dim = hand.cut_dim("linear_1", 0, OTHER)
    hand.put("gather", "reduce", dims=batch_dim, over=OTHER)
    call_layers(hand.graph, {"up.weight": ()}, {"up": (False, False)})
    return hand


def short() -> Hand:
    hand = legal(lambda z, x: z - x)
    hand.node("sub").args = hand.node("sub").args[:1]
    return hand


def unknown() -> Hand:
    hand = legal()
    hand.node("reduce").args = (hand.ranks, hand.ranks)
    return hand


def a_list() -> Hand:
    hand = Hand(Fused(), ("weight", 0, 0))
    parts = next(node.name for node in hand.graph.nodes if isinstance(node.meta.get("val"), (list, tuple)))
    hand.put("gather", parts, dims=((2, Leaf(12), EVERYWHERE),))
    return hand


CASES: dict[str, Callable[[], Hand]] = {
    "reads rows that are of no use on some ranks, and does not compute every row by itself": mixed,
    "that are of no use where some numbers make none": divided,
    "reads rows that are of no use on some ranks, and its result is not routed alike": picked_otherwise,
    "writes into rows of which only some are right": written,
    "picks by a value that is not the same on all ranks": picked_by_a_slice,
    "hands on exp, which is with rows of no use": left,
    "keeps a rank's own rows of what is not routed": not_routed,
    "takes positions of what is not the same on all ranks": taken_twice,
    "takes dim 2 for the positions": not_the_positions,
    "parts positions over 2@2, and not over all ranks": of_some_ranks,
    "hands on as positions what is none": whole_handed_on,
    "sums over segments of which some are cut and some are whole": sums_both,
    "reads a parameter whose gradient is summed in part": summed_behind,
    "has a result that is whole over 2@1, though linear is not": lost,
    "gives up_weight a gradient of which each rank has only its part": layers,
    "reads 1 values, where it is to read 2": short,
    "reads ranks, of which nothing is known": unknown,
    "is given a list": a_list,
}


@pytest.mark.parametrize("message", CASES)
def test_refused(message: str) -> None:
    assert message in refusal(CASES[message]())


def test_positions_are_handed_on_as_they_came() -> None:
    hand = opened()
    for name in ("norm_weight", "norm_bias"):
        hand.put("enter", name)
    hand.put("shut", "relu", others=("tensor_0",))
    hand.check()


def test_every_text_is_expected_by_some_test() -> None:
    folder = Path(certificate.__file__).parent
    known = " ".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_certificate*.py"))
    for text in {text for path in folder.glob("*.py") for text in texts(path)}:
        parts = [part.strip(" ,")[:24] for part in re.split("…", text) if len(part) > 8]
        assert any(part in known for part in parts), text
