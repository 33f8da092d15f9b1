"""What cases are written with: blocks with something to cut, and calls.

A case is a generator. It gives a model first, which the runner makes parallel or not, or `(model, example)`, or with a dict of
what else `parallelize` is given. Every further `yield` is one call, and between two of them the case changes what it likes.
`yield` alone calls the model on numbers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

HIDDEN, INNER = 32, 48
Case: TypeAlias = Callable[[], Generator[Any, Any, None]]


@dataclass(frozen=True)
class Expected:
    """What holds for a case. Refusals, where they are allowed, say one of the words in `refusal`, or, where they are allowed
    only if the model is compiled, in `compiled`; `shared` are the attributes of torch's own classes that the case changes:
    (owner, name)."""

    refusal: tuple[str, ...] = ()
    shared: tuple[tuple[Any, str], ...] = ()
    processes: bool = False
    compiled: tuple[str, ...] = ()


def case(
    *,
    refusal: tuple[str, ...] = (),
    shared: tuple[tuple[Any, str], ...] = (),
    processes: bool = False,
    compiled: tuple[str, ...] = (),
) -> Callable[[Case], Case]:
    """Marks a case; see `Expected`. With `processes` it runs on ranks that are processes only."""

    def mark(function: Case) -> Case:
        function.expected = Expected(refusal, shared, processes, compiled)  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class Call:
    """One call of a model, `run` in place of the model itself, inside a context; then a backward, unless there is none."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    run: Callable[..., Any] | None = None
    backward: bool = True
    under: Callable[[], AbstractContextManager[Any]] = nullcontext


def call(
    *args: Any,
    run: Callable[..., Any] | None = None,
    backward: bool = True,
    under: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **kwargs: Any,
) -> Call:
    """A call with these arguments."""
    return Call(args, kwargs, run, backward, under)


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    """An input that wants a gradient."""
    return values(*shape, seed=seed).requires_grad_()


def ids(*shape: int, seed: int = 0, below: int = 40) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias, dtype=torch.float64)


class Mlp(nn.Module):
    """A residual MLP with a norm; a case puts something `before` it, in its `middle` or `after` it."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN, dtype=torch.float64)
        self.up, self.down = linear(HIDDEN, INNER), linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.after(self.down(self.middle(self.up(self.before(self.norm(x))))))

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu()

    def after(self, z: torch.Tensor) -> torch.Tensor:
        return z


class Net(nn.Module):
    """Blocks one after the other; what else a call is given goes to each of them."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, *args, **kwargs)
        return x


class WordNet(nn.Module):
    """An embedding, blocks and a head, which a case may write otherwise."""

    def __init__(self, *blocks: nn.Module, words: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, HIDDEN, dtype=torch.float64)
        self.blocks = nn.ModuleList(blocks)
        self.head = linear(HIDDEN, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.logits(x)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def twins(kind: Callable[..., nn.Module], count: int = 2) -> Net:
    """A net of equal blocks, each told its place."""
    return Net(*(kind(index) for index in range(count)))


class Reads(Mlp):
    """Multiplies with what a function of the block gives."""

    def __init__(self, read: Callable[[Any], Any], held: Any = None) -> None:
        super().__init__()
        self.read, self.held = read, held

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu() * self.read(self)


def reading(read: Callable[[Any], Any], *changes: Callable[[Any], Any], held: Any = None) -> Iterator[Any]:
    """Calls of a net whose blocks read something, with a change before each but the first."""
    net = twins(lambda index: Reads(read, held))
    yield net
    yield
    for change in changes:
        change(net)
        yield
    for _ in range(max(1, 3 - len(changes))):
        yield
