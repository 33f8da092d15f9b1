"""Blocks that leave values in the objects that they are given, and a comparison with the dense model."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autotp.checkpoint.full import full_gradients
from autotp.dispatch.apply import apply_plan
from autotp.dispatch.held import ATTRIBUTE
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.tensor import closed
from autotp.session.pipeline import Session

HIDDEN, INNER, HEADS, LIMIT = 12, 48, 3, 1e-12  # what is left is larger than what goes on, and so it is cut


def words(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, length, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER).double(), nn.Linear(INNER, HIDDEN).double()


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

    def swap(self, value: torch.Tensor) -> Any:
        before, self.seen = self.seen, value
        return before


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
        self.blocks, self.read = nn.ModuleList(kind() for _ in range(3)), READS.get(kind, lambda held: held.seen)
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
            assert one.shape == other.shape
            assert float((one - other).abs().max()) <= LIMIT * max(1.0, float(other.abs().max()))


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
