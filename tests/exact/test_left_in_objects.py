"""What units leave in objects that they are given, and Python between them reads there: whole values, as in the dense model."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.checkpoint.full import full_gradients
from autotp.dispatch.apply import apply_plan
from autotp.dispatch.held import ATTRIBUTE
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.tensor import closed
from autotp.session.pipeline import Session

HIDDEN, HEADS, LIMIT = 12, 3, 1e-12


def words(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, length, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 21).double(), nn.Linear(21, HIDDEN).double()


class Held:
    """What is given to all blocks."""

    def __init__(self) -> None:
        self.seen: Any = None
        self.items: list[Any] = [None] * 3
        self.named: dict[str, Any] = {}
        self.inner = types.SimpleNamespace(pair=None)
        self._doubled: Any = None

    @property
    def doubled(self) -> Any:
        return self._doubled

    @doubled.setter
    def doubled(self, value: torch.Tensor) -> None:
        self._doubled = value * 2


class InAttribute(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        return x + self.down(held.seen)


class InItem(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        held.named["seen"] = functional.gelu(self.up(x))
        return x + self.down(held.named["seen"])


class InList(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        held.items[1] = inner.transpose(1, 2)
        return x + self.down(inner)


class InPair(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        held.inner.pair = (inner, x)
        return x + self.down(inner)


class ByProperty(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        held.doubled = inner
        return x + self.down(inner)


class OfTheFirst(Mlp):
    """Every block but the first adds what that has left."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        if held.seen is None:
            held.seen = inner
        else:
            inner = inner + held.seen / 2
        return x + self.down(inner)


class Twice(Mlp):
    """Reads what the block before it has left, and leaves what it has made of that."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        held.seen = inner if held.seen is None else torch.cat([held.seen, inner.flip(1)], 1)
        return x + self.down(held.seen[:, : x.shape[1]])


READS: dict[type[Mlp], Callable[[Held], torch.Tensor]] = {
    InAttribute: lambda held: held.seen,
    InItem: lambda held: held.named["seen"],
    InList: lambda held: held.items[1],
    InPair: lambda held: held.inner.pair[0],
    ByProperty: lambda held: held.doubled,
    OfTheFirst: lambda held: held.seen,
    Twice: lambda held: held.seen,
}


def between(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x + seen.pow(2).mean()


def first_rows(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x * seen[:, :1].amax()


def not_at_all(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x


class Net(nn.Module):
    """Blocks that are given one object, what is done with that between them, and whether it is given back."""

    def __init__(self, kind: type[Mlp], use: Callable[..., torch.Tensor], given: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.read = nn.ModuleList(kind() for _ in range(3)), READS[kind]
        self.use, self.given = use, given

    def forward(self, x: torch.Tensor) -> Any:
        held = Held()
        for block in self.blocks:
            x = self.use(block(x, held), self.read(held))
        return (x, self.read(held)) if self.given else x


def steps(model: nn.Module) -> list[torch.Tensor]:
    """Outputs and gradients of two calls of other sizes, and of one without gradients between them."""
    found = []
    for number, length in enumerate((4, 7)):
        x = words(length, number).requires_grad_()
        results = model(x)
        results = results if isinstance(results, tuple) else (results,)
        sum(
            (each * torch.linspace(0, 1, each.numel(), dtype=each.dtype).view_as(each)).sum() for each in results
        ).backward()
        found += [*results, x.grad]
        with torch.no_grad():
            results = model(words(length, number + 2))
            found += results if isinstance(results, tuple) else (results,)
    with torch.no_grad():
        own = full_gradients(model) if ATTRIBUTE in vars(model) else {n: p.grad for n, p in model.named_parameters()}
        return [closed(each).clone() for each in found] + [own[name] for name, _ in model.named_parameters()]


def equals_dense(
    model: nn.Module, use: Callable[[nn.Module], list[torch.Tensor]], example: torch.Tensor, tp: int
) -> None:
    true = use(copy.deepcopy(model))
    session = Session(model, example=(example,))
    plan = session.plan(tp)
    assert plan.units
    compilers = session.compilers(plan)
    for found in simulate(tp, lambda ranks: use(apply_plan(copy.deepcopy(model), plan, ranks, compilers))):
        for one, other in zip(found, true, strict=True):
            torch.testing.assert_close(one, other, rtol=LIMIT, atol=LIMIT)


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


class Cache:
    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None


class Attention(nn.Module):
    """Keeps its keys and values in attributes of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN).double() for _ in range(4))

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        if cache.keys is not None:
            k, v = torch.cat([cache.keys, k], 2), torch.cat([cache.values, v], 2)
        cache.keys, cache.values = k, v
        return x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: torch.Tensor, caches: list[Cache] | None = None) -> torch.Tensor:
        for block, cache in zip(self.blocks, caches or [Cache() for _ in self.blocks], strict=True):
            x = block(x, cache)
        return x


@torch.no_grad()
def decoded(model: nn.Module, reordered: bool) -> list[torch.Tensor]:
    """Some steps with caches, of which the rows are put in another order, as a search over beams does."""
    caches, x = [Cache(), Cache()], words(8)
    found = [model(x[:, :4], caches)]
    for step in range(4, 8):
        found.append(model(x[:, step : step + 1], caches))
        if reordered and step == 5:
            for cache in caches:
                cache.keys, cache.values = cache.keys.flip(0), cache.values.flip(0)
    return [closed(each).clone() for each in (*found, caches[0].keys, caches[1].values[:, :, -1])]


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
