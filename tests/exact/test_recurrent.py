"""LSTM, GRU and RNN of torch.nn: equal to the dense layers for any length and state, and cut for the least memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import autotp
from autotp.capture.loops import MOST_STEPS
from autotp.dispatch.apply import apply_plan
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.pipeline import Session

WIDTH, HIDDEN = 10, 12


class Sequences(nn.Module):
    """A recurrent layer between two others; `state` is what it begins with, if anything."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        options = {"batch_first": True, **options}
        self.layer = kind(WIDTH, HIDDEN, **options)
        sides = 2 if self.layer.bidirectional else 1
        self.head = nn.Linear(sides * (self.layer.proj_size or HIDDEN), 6)

    def forward(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        outputs, state = self.layer(x, state)
        return self.head(outputs), state


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm, projected": (nn.LSTM, {"proj_size": 6, "num_layers": 2}),
    "lstm without biases": (nn.LSTM, {"bias": False, "batch_first": False}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "gru, both ways": (nn.GRU, {"bidirectional": True, "bias": False}),
    "rnn": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
}


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def built(name: str) -> nn.Module:
    kind, options = KINDS[name]
    torch.manual_seed(0)
    return Sequences(kind, **options).double()


@pytest.mark.sample(3)
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_layers_are_cut_for_the_least_memory(name: str, tp: int) -> None:
    model, example = built(name), numbers(3, 4, WIDTH)
    whole, local = autotp.plan(model, tp, example=example, objective="memory").elements()
    assert local < 1.2 * whole / tp
    autotp.verify(model, tp, example=example, objective="memory").raise_for_failure()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Lengths that change, a state that is handed on, training and not, a weight that is replaced."""
    found, state = list[Any](), None
    for number, length in enumerate((4, 7, 4, 1)):
        model.train(number != 2)
        outputs, state = model(numbers(2, length, WIDTH), state)
        loss = outputs.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(each.detach() for each in state) if isinstance(state, tuple) else state.detach()
        found += [loss.detach(), state]
    return found


def on_rank(dense: nn.Module) -> list[Any]:
    model = autotp.parallelize(copy.deepcopy(dense), example=numbers(2, 4, WIDTH), objective="memory")
    return steps(model, torch.optim.Adam(model.parameters(), 0.01))


@pytest.mark.parametrize("name", ["lstm, both ways", "gru"])
def test_real_ranks_train_alike(name: str) -> None:
    dense = built(name)
    true = copy.deepcopy(dense)
    expected = steps(true, torch.optim.Adam(true.parameters(), 0.01))
    for found in run_ranks(on_rank, 2, dense, timeout_s=60):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*whole weights")
def test_what_is_no_loop_of_products_is_whole_and_right() -> None:
    """More steps than are written out, sequences of different lengths in one, and dropout between layers."""
    dense, example = built("lstm"), numbers(2, 4, WIDTH)
    packed = pack_padded_sequence(numbers(2, 5, WIDTH), torch.tensor([5, 3]), batch_first=True)
    long = numbers(1, MOST_STEPS + 1, WIDTH)
    session = Session(dense, example=example, objective="memory")
    plan = session.plan(2)
    compilers = session.compilers(plan)

    def run(ranks: Any) -> list[Any]:
        model: Any = apply_plan(copy.deepcopy(dense), plan, ranks, compilers)
        return [model(example)[0], model(long)[0], model.layer(packed)[0].data, model(example)[0]]

    true = [dense(example)[0], dense(long)[0], dense.layer(packed)[0].data, dense(example)[0]]
    for found in simulate(2, run):
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)


class Packed(nn.Module):
    """Takes and gives sequences of different lengths in one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.GRU(WIDTH, 6, batch_first=True), nn.Linear(6, WIDTH)

    def forward(self, packed: PackedSequence) -> PackedSequence:
        found, _ = self.layer(packed)
        return found._replace(data=packed.data + self.out(found.data))


class BetweenPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Packed() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, torch.full((len(x),), x.shape[1]), batch_first=True)
        for block in self.blocks:
            packed = block(packed)
        return pad_packed_sequence(packed, batch_first=True)[0]


@pytest.mark.filterwarnings("ignore:.*whole weights")
def test_packed_sequences_between_blocks() -> None:
    torch.manual_seed(0)
    autotp.verify(BetweenPacked().double(), 2, example=(numbers(2, 5, WIDTH),)).raise_for_failure()
