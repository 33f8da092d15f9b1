"""What units leave in objects while something else goes on: memory that is shared or written into, checkpoints, parts that run
whole, other ways to make keys and values."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import autotp
from autotp.runtime.results.tensor import closed
from tests.left import (
    HEADS,
    HIDDEN,
    INNER,
    READS,
    Cache,
    Decoder,
    Held,
    InAttribute,
    Mlp,
    Net,
    OfTheFirst,
    Twice,
    between,
    decoded,
    equals_dense,
    steps,
    words,
)


class Views(Mlp):
    """Leaves one memory at three places."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        held.seen = functional.gelu(self.up(x))
        inner = held.seen
        held.items[0], held.items[1] = inner[:, :1], inner.transpose(1, 2)
        return x + self.down(inner)


class ViewsOfItsOwn(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        held.seen, held.items[0], held.items[1] = inner, inner[:, :1], inner.transpose(1, 2)
        return x + self.down(inner)


class Moves(Mlp):
    """Puts what it finds at a second place."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = functional.gelu(self.up(x))
        if held.seen is None:
            held.seen = held.items[0] = held.items[1] = inner
            return x + self.down(inner)
        seen = held.seen
        held.items[0] = held.items[1] = seen
        return x + self.down(inner + seen)


class Prints(OfTheFirst):
    """Runs whole in longer calls."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        if x.shape[1] > 5:
            print(end="")
        return super().forward(x, held)


class PrintsTwice(Twice):
    """Runs whole in longer calls, and leaves a value in all."""

    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        if x.shape[1] > 5:
            print(end="")
        return super().forward(x, held)


class Masks(Mlp):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        inner = self.up(x)
        held.seen, held.items[0], held.items[1] = inner, inner > 0, (inner * 10).long()
        return x + self.down(inner.relu())


class Blocks(nn.Module):
    def __init__(self, kind: type[Mlp], run: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.run = nn.ModuleList(kind() for _ in range(3)), run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self.blocks, x)


def writes_outside(blocks: Any, x: torch.Tensor) -> Any:
    held = Held()
    for block in blocks:
        x = block(x, held)
        if not torch.is_grad_enabled():
            held.seen[:, :1] = 0.5
    return x, held.seen * 1


def writes_into_a_view(blocks: Any, x: torch.Tensor) -> Any:
    held = Held()
    for block in blocks:
        x = block(x, held)
    if not torch.is_grad_enabled():
        held.items[0].mul_(3)
    return x, held.seen * 1, held.items[0] * 1, held.items[1] * 1


def checkpointed(blocks: Any, x: torch.Tensor) -> Any:
    held, read = Held(), torch.zeros((), dtype=x.dtype)
    for block in blocks:
        x = checkpoint(block, x, held, use_reentrant=False) if torch.is_grad_enabled() else block(x, held)
        read = read + held.seen.pow(2).mean()
    return x + read


def detached(blocks: Any, x: torch.Tensor) -> Any:
    held = Held()
    for block in blocks:
        x = block(x, held)
        held.seen = held.seen.detach()
    return x, held.seen


def copied(blocks: Any, x: torch.Tensor) -> Any:
    held = Held()
    for block in blocks:
        x = block(x, held)
        held = held if torch.is_grad_enabled() else copy.deepcopy(held)
    return x, held.seen * 1


def in_turns(blocks: Any, x: torch.Tensor) -> Any:
    held, other = Held(), Held()
    for block in blocks:
        x = block(x, held)
        other.seen = held.seen
        held, other = other, held
    return x, held.seen + other.seen


def together(blocks: Any, x: torch.Tensor) -> Any:
    held, found = Held(), []
    for block in blocks:
        x = block(x, held)
        found.append(held.seen)
    return x, torch.stack(found), torch.cat(found, -1), found[0].chunk(3, -1)[1]


def differentiated(blocks: Any, x: torch.Tensor) -> Any:
    held = Held()
    for block in blocks:
        x = block(x, held)
    if not torch.is_grad_enabled():
        return x, held.seen
    (gradient,) = torch.autograd.grad(held.seen.pow(3).sum(), held.seen, create_graph=True)
    return x, gradient.pow(2)


def other_dtypes(blocks: Any, x: torch.Tensor) -> Any:
    held = Held()
    for block in blocks:
        x = block(x, held)
    return x * held.items[0].double().mean(), held.items[1].double()


CASES = [
    (InAttribute, writes_outside),
    (OfTheFirst, writes_outside),
    (Twice, writes_outside),
    (Views, writes_into_a_view),
    (ViewsOfItsOwn, writes_into_a_view),
    (Moves, writes_into_a_view),
    (InAttribute, checkpointed),
    (OfTheFirst, detached),
    (InAttribute, detached),
    (OfTheFirst, copied),
    (InAttribute, in_turns),
    (OfTheFirst, in_turns),
    (InAttribute, together),
    (OfTheFirst, together),
    (InAttribute, differentiated),
    (OfTheFirst, differentiated),
    (Prints, together),
    (Masks, other_dtypes),
]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize(("kind", "run"), CASES)
def test_it_is_as_in_the_dense_model(kind: type[Mlp], run: Callable[..., Any], tp: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if kind in (Prints, Moves) or run is copied else "error")  # these run whole
        equals_dense(Blocks(kind, run), steps, words(4), tp)


@pytest.mark.parametrize("tp", [2, 3])
def test_a_block_that_runs_whole_reads_what_others_have_left(tp: int) -> None:
    model = Blocks(OfTheFirst, together)
    model.blocks[1] = Prints()
    with pytest.warns(UserWarning, match="whole weights"):
        equals_dense(model, steps, words(4), tp)


def narrow(block: Mlp) -> Mlp:
    """As wide as a slice of the others."""
    block.up, block.down = nn.Linear(HIDDEN, INNER // 2).double(), nn.Linear(INNER // 2, HIDDEN).double()
    return block


@pytest.mark.parametrize("kinds", [(OfTheFirst, OfTheFirst), (OfTheFirst, Prints), (Twice, PrintsTwice)])
def test_a_whole_of_the_size_of_a_slice_is_a_whole(kinds: tuple[type[Mlp], type[Mlp]]) -> None:
    def run(blocks: Any, x: torch.Tensor) -> Any:
        wide, slim = Held(), Held()
        for number, block in enumerate(blocks):
            x = block(x, wide if number < 2 else slim)
        return x, wide.seen * 1, slim.seen * 1

    model = Blocks(OfTheFirst, run)
    model.blocks = nn.ModuleList([*model.blocks[:2], *(narrow(kind()) for kind in kinds)])
    with warnings.catch_warnings():
        warnings.simplefilter("error" if kinds[0] is kinds[1] else "ignore")
        equals_dense(model, steps, words(4), 2)


@pytest.mark.parametrize("kind", list(READS))
def test_with_blocks_cut_over_positions(kind: type[Mlp]) -> None:
    autotp.verify(Net(kind, between, True), tp=3, example=(words(6),), sequence_parallel=True).raise_for_failure()


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "mul_": lambda seen: seen.mul_(2),
    "relu_": lambda seen: seen.relu_(),
    "an item": lambda seen: seen.__setitem__((slice(None), slice(0, 1)), 0.5),
    "copy_": lambda seen: seen.copy_(seen.detach() * 3),
    "masked_fill_": lambda seen: seen.masked_fill_(seen > 0, 0.25),
}


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("name", list(WRITES))
def test_blocks_write_into_what_others_have_left(name: str, is_read: bool) -> None:
    class Writes(Mlp):
        def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
            inner = functional.gelu(self.up(x))
            if held.seen is None:
                held.seen = inner * 1
            else:
                WRITES[name](held.seen)
            return x + self.down(inner + held.seen)

    def run(blocks: Any, x: torch.Tensor) -> Any:
        held, read = Held(), torch.zeros((), dtype=x.dtype)
        for block in blocks:
            x = block(x, held)
            read = read + held.seen.pow(2).mean() if is_read else read
        return x + read, held.seen * 1

    @torch.no_grad()
    def use(model: nn.Module) -> list[torch.Tensor]:
        return [closed(each).clone() for length in (4, 7) for each in model(words(length))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equals_dense(Blocks(Writes, run), use, words(4), 3)


FUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunk": lambda t: (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in t.chunk(3, -1)),
    "unbind": lambda t: t.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0),
    "items": lambda t: tuple(t.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)[i] for i in range(3)),
    "in heads": lambda t: t.unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(3, -1),
}


class Fused(nn.Module):
    """As `Attention`, of one matrix: what it keeps are parts of one memory."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.qkv, self.o, self.way = nn.Linear(HIDDEN, 3 * HIDDEN).double(), nn.Linear(HIDDEN, HIDDEN).double(), way

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        q, k, v = FUSED[self.way](self.qkv(x))
        if cache.keys is not None:
            k, v = torch.cat([cache.keys, k], 2), torch.cat([cache.values, v], 2)
        cache.keys, cache.values = k, v
        return x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("way", list(FUSED))
def test_parts_of_one_matrix_are_kept_cut(way: str) -> None:
    model = Decoder()
    model.blocks = nn.ModuleList(Fused(way) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equals_dense(model, lambda model: decoded(model, True), words(4), 3)
