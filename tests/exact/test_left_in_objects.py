"""What units leave in objects that they are given, and Python between them reads there: whole values, as in the dense model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.dispatch.apply import apply_plan
from autotp.errors import TraceError
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.tensor import closed
from autotp.session.pipeline import Session
from tests.left import (
    HEADS,
    LIMIT,
    READS,
    ByProperty,
    Cache,
    Decoder,
    Held,
    InAttribute,
    InPair,
    Mlp,
    Net,
    OfTheFirst,
    Twice,
    between,
    decoded,
    equals_dense,
    first_rows,
    not_at_all,
    steps,
    words,
)


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("use", [between, first_rows, not_at_all])
@pytest.mark.parametrize("kind", list(READS))
def test_what_is_left_is_whole(kind: type[Mlp], use: Callable[..., torch.Tensor], given: bool, tp: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no call runs whole
        equals_dense(Net(kind, use, given), steps, words(4), tp)


@pytest.mark.parametrize("kind", list(READS))
def test_verification_knows_what_is_gathered_then(kind: type[Mlp]) -> None:
    assert autotp.verify(Net(kind, between, True), tp=3, example=(words(4),)).ok


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("reordered", [False, True])
def test_caches_of_attributes_are_whole_to_the_python_around(reordered: bool, tp: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equals_dense(Decoder(), lambda model: decoded(model, reordered), words(4), tp)


def test_decoding_sends_nothing_for_a_cache_that_nobody_reads() -> None:
    model = Decoder()
    session = Session(model, example=(words(4),))
    plan = session.plan(3)
    compilers = session.compilers(plan)

    @torch.no_grad()
    def on_rank(ranks: Ranks) -> set[str]:
        parallel, caches = apply_plan(copy.deepcopy(model), plan, ranks, compilers), [Cache(), Cache()]
        with ranks.logging() as log:
            for step in range(3):
                parallel(words(8)[:, step : step + 1], caches)
        assert caches[0].keys.local.shape[1] * 3 == HEADS
        return {call.kind for call in log.calls}

    assert simulate(3, on_rank) == [{"all_reduce"}] * 3


class Writes(Mlp):
    """Writes into what the block before it has left."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x)).detach()
        if held.seen is None:
            held.seen = inner * 1
        else:
            held.seen.mul_(2)
        return x + self.down(functional.gelu(self.up(x)))


READS[Writes] = lambda held: held.seen


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("use", [between, not_at_all])
def test_what_is_written_into_is_right(use: Callable[..., torch.Tensor], tp: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equals_dense(Net(Writes, use, True), steps, words(4), tp)


class Hooked(nn.Module):
    """Values that are left are given, too, are left twice, and have hooks."""

    def __init__(self, kind: type[Mlp]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(kind() for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        held = Held()
        for block in self.blocks:
            result = block(x, held)
            x = result[0] if isinstance(result, tuple) else result
            if held.seen.requires_grad:
                held.seen.register_hook(lambda gradient: gradient * 2)
        return x, held.seen * 3


class Given(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> Any:
        inner = functional.gelu(self.up(x))
        held.seen = held.named["seen"] = inner
        return x + self.down(inner), inner


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("kind", [InAttribute, OfTheFirst, Twice, Given])
def test_hooks_on_what_is_left_are_the_block_s_too(kind: type[Mlp], tp: int) -> None:
    equals_dense(Hooked(kind), steps, words(4), tp)


@torch.no_grad()
def written(model: nn.Module) -> list[torch.Tensor]:
    return [closed(each).clone() for length in (4, 7) for each in model(words(length, length))]


def on_processes() -> list[tuple[str, float]]:
    found = []

    def compare(name: str, own: list[torch.Tensor], true: list[torch.Tensor]) -> None:
        found.append((name, max(float((one - other).abs().max()) for one, other in zip(own, true, strict=True))))

    for kind in (InPair, OfTheFirst, ByProperty):
        dense = Net(kind, between, True)
        model = autotp.parallelize(copy.deepcopy(dense), example=(words(4),))
        compare(kind.__name__, steps(model), steps(copy.deepcopy(dense)))
        compare(f"{kind.__name__} compiled", written(torch.compile(model, backend="eager")), written(dense))  # type: ignore[arg-type]
    dense = Decoder()
    model = autotp.parallelize(copy.deepcopy(dense), example=(words(4),))
    for reordered in (False, True):
        true = decoded(dense, reordered)
        compare(f"decoding {reordered}", decoded(model, reordered), true)
        compare(f"compiled decoding {reordered}", decoded(torch.compile(model, backend="eager"), reordered), true)  # type: ignore[arg-type]
    return found


def test_on_three_ranks_also_compiled() -> None:
    for errors in run_ranks(on_processes, 3):
        assert {name: error for name, error in errors if not error < LIMIT} == {}


class ReadsEach(Decoder):
    def forward(self, x: torch.Tensor, caches: list[Cache] | None = None) -> torch.Tensor:
        read = torch.zeros((), dtype=x.dtype)
        for block, cache in zip(self.blocks, caches or [Cache() for _ in self.blocks], strict=True):
            x = block(x, cache)
            read = read + cache.keys.pow(2).mean()
        return x + read


def test_what_every_block_leaves_by_itself_is_there_for_planning() -> None:
    autotp.verify(ReadsEach(), tp=3, example=(words(4),)).raise_for_failure()
    equals_dense(ReadsEach(), steps, words(4), 3)


class Swaps(Mlp):
    """Takes what the block before it has left, of which the first finds none."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        before = held.swap(inner)
        return x + self.down(inner if before is None else inner + before)


READS[Swaps] = lambda held: held.seen


def test_a_method_that_gives_more_tensors_than_it_did_is_refused() -> None:
    with pytest.raises(TraceError, match="a Held gave 1 tensor to a program for 0 tensors"):
        equals_dense(Net(Swaps, not_at_all, False), steps, words(4), 2)
