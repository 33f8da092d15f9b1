"""What a model returns holds nothing that is still to be communicated, whatever holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.processes import ProcessRanks
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.deferred import deferred
from autotp.runtime.results.logits import Head, cut_logits
from autotp.runtime.results.settled import settle


class Pair(NamedTuple):
    number: int
    value: torch.Tensor


@dataclass(frozen=True)
class Held:
    value: torch.Tensor


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda value: value, lambda result: result),
    "list": (lambda value: [1, value], lambda result: result[1]),
    "named tuple": (lambda value: Pair(1, value), lambda result: result.value),
    "dataclass": (Held, lambda result: result.value),
    "dataclass in a dict": (lambda value: {"held": Held(value)}, lambda result: result["held"].value),
    "object": (lambda value: SimpleNamespace(value=value), lambda result: result.value),
}


LAYOUT = Leaf(4, Cut((Factor(2, 1),), 4))


def of_logits(ranks: Ranks) -> torch.Tensor:
    return cut_logits(torch.full((1, 1, 2), float(ranks.rank)), Head(ranks, LAYOUT))


def of_deferred(ranks: Ranks) -> torch.Tensor:
    return deferred(torch.full((1, 1, 2), float(ranks.rank)), ranks, [(2, LAYOUT, (Factor(2, 1),))])


@pytest.mark.parametrize("make", [of_logits, of_deferred])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_returns_is_whole(kind: str, make: Callable[[Ranks], torch.Tensor]) -> None:
    hold, read = KINDS[kind]

    def run(ranks: Ranks) -> Any:
        given = hold(make(ranks))
        result = settle(None, (), given)
        assert type(result) is type(given) or kind == "tensor"
        return read(result)

    values = simulate(2, run)
    assert [type(value) for value in values] == [torch.Tensor, torch.Tensor]
    # One rank alone reads it.
    assert torch.equal(values[0], torch.tensor([[[0.0, 0, 1, 1]]]))


def test_a_result_without_anything_to_settle_stays_the_same_object() -> None:
    result = (torch.ones(2), [1, "a"], {"b": None})
    assert settle(None, (), result) is result


def written_and_kept() -> tuple[torch.Tensor, torch.Tensor]:
    """Runs on a rank: logits that are to be returned cut, after the model's own code has written into them."""
    ranks = ProcessRanks([[0, 1]], torch.device("cpu"))
    part = torch.full((1, 1, 2), float(ranks.rank + 1), requires_grad=True)
    logits: Any = cut_logits(part * 1, Head(ranks, LAYOUT, kept=True))
    logits[..., 0] = 7.0
    settled: Any = settle(None, (), logits)
    return settled.full_tensor().detach(), torch.tensor(settled.placements[0].dim)


def test_what_was_written_into_kept_logits_is_returned() -> None:
    for whole, dim in run_ranks(written_and_kept, 2):
        assert whole.tolist() == [[[7.0, 1.0, 2.0, 2.0]]]
        assert dim == 2
