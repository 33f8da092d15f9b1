"""Recurrent layers as loops of products: LSTM, GRU and RNN over the steps of a sequence, as `torch.nn` documents them.

torch computes a layer in one operator. A trace has its steps, so that each of its matrices may be cut; it holds for one length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

# What is handed from step to step: the hidden state, and a cell's own behind it.
State: TypeAlias = tuple[torch.Tensor, ...]
# The weight and the bias of the hidden state, and what projects it, where they are.
Weights: TypeAlias = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
Cell: TypeAlias = Callable[[torch.Tensor, State, Weights], State]

MOST_STEPS = 128  # of more the operator stays one, and its matrices whole


def _lstm(given: torch.Tensor, state: State, weights: Weights) -> State:
    """c' = sigmoid(f)·c + sigmoid(i)·tanh(g), h' = sigmoid(o)·tanh(c'), projected if that is asked for."""
    hidden, cell = state
    weight, bias, projection = weights
    i, f, g, o = (given + functional.linear(hidden, weight, bias)).chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    hidden = o.sigmoid() * cell.tanh()
    return hidden if projection is None else functional.linear(hidden, projection), cell


def _gru(given: torch.Tensor, state: State, weights: Weights) -> State:
    """n = tanh(n_x + sigmoid(r)·n_h), h' = (1 - sigmoid(z))·n + sigmoid(z)·h."""
    (hidden,) = state
    reset, update, new = given.chunk(3, -1)
    own_reset, own_update, own_new = functional.linear(hidden, *weights[:2]).chunk(3, -1)
    candidate = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (candidate + (update + own_update).sigmoid() * (hidden - candidate),)


def _rnn(given: torch.Tensor, state: State, weights: Weights, *, function: Callable[..., torch.Tensor]) -> State:
    """h' = tanh(x + W·h), or relu."""
    return (function(given + functional.linear(state[0], *weights[:2])),)


aten = torch.ops.aten
_CELLS: Mapping[torch._ops.OpOverload, Cell] = {
    aten.lstm.input: _lstm,
    aten.gru.input: _gru,
    aten.rnn_tanh.input: functools.partial(_rnn, function=torch.tanh),
    aten.rnn_relu.input: functools.partial(_rnn, function=torch.relu),
}


def _written_out(
    cell: Cell,
    value: torch.Tensor,
    state: Any,
    parameters: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """A stack of layers over (steps, batch, width), or (batch, steps, width), as its operator takes them."""
    if value.dim() != 3 or value.shape[1 if batch_first else 0] > MOST_STEPS or (train and dropout and layers > 1):
        return NotImplemented
    states = [each.unbind(0) for each in (state if cell is _lstm else (state,))]
    projects = cell is _lstm and state[0].shape[-1] != state[1].shape[-1]
    size, directions = 2 + 2 * has_biases + projects, 1 + bidirectional
    value, last = value.transpose(0, 1) if batch_first else value, list[State]()
    for layer in range(layers):
        made = []
        for number in range(layer * directions, (layer + 1) * directions):
            own = parameters[number * size : (number + 1) * size]
            first = tuple(each[number] for each in states)
            outputs, end = _layer(cell, value, first, own, has_biases, backwards=number % directions == 1)
            made.append(outputs)
            last.append(end)
        value = made[0] if len(made) == 1 else torch.cat(made, -1)
    ends = [torch.stack(each) for each in zip(*last, strict=True)]
    return (value.transpose(0, 1) if batch_first else value, *ends)


def _layer(
    cell: Cell, value: torch.Tensor, state: State, own: Sequence[torch.Tensor], has_biases: bool, *, backwards: bool
) -> tuple[torch.Tensor, State]:
    """One layer in one direction: the outputs of all steps, and the state after the last."""
    weight, hidden, *others = own
    bias, hidden_bias = others[:2] if has_biases else (None, None)
    projection = others[2 * has_biases] if len(others) > 2 * has_biases else None
    steps = list(functional.linear(value, weight, bias).unbind(0))  # of all steps at once
    found = []
    for given in reversed(steps) if backwards else steps:
        state = cell(given, state, (hidden, hidden_bias, projection))
        found.append(state[0])
    return torch.stack(found[::-1] if backwards else found), state


LOOPS: Mapping[torch._ops.OpOverload, Callable[..., Any]] = {
    operator: functools.partial(_written_out, cell) for operator, cell in _CELLS.items()
}
