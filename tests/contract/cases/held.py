"""Parameters that a module holds once more: in lists, dicts, tuples, partial functions, weak references, and recurrent layers."""

from __future__ import annotations

import functools
import weakref

import torch
from torch import nn
from torch.nn import functional

from tests.contract.parts import HIDDEN, INNER, Mlp, call, case, twins, values


class InList(Mlp):
    """An MLP that reads its weights from a list."""

    def __init__(self, index=0):
        super().__init__(index)
        self.held = self.hold(self.up.weight, self.down.weight)

    @staticmethod
    def hold(*weights):
        return list(weights)

    def forward(self, x):
        y = functional.linear(self.norm(x), self.held[0], self.up.bias)
        return x + functional.linear(y.relu(), self.held[1], self.down.bias)


def changed(net):
    """The weights, then what the list holds, then the list."""
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].up.weight.mul_(1.5)
        net.blocks[1].held[1].mul_(0.5)
    yield
    net.blocks[0].held[0] = nn.Parameter(values(INNER, HIDDEN, seed=3))
    yield
    net.blocks[1].held = [net.blocks[1].up.weight, net.blocks[0].down.weight]
    yield
    net.blocks[0].held = [net.blocks[0].up.weight, net.blocks[0].down.weight]
    yield


@case()
def weights_in_a_list():
    yield from changed(twins(InList))


@case()
def weights_in_a_list_of_one_block():
    """The other block's list holds its neighbour's."""
    net = twins(InList)
    net.blocks[1].held = net.blocks[0].held
    yield net
    yield
    with torch.no_grad():
        net.blocks[1].up.weight.mul_(1.5)
        net.blocks[0].down.weight.mul_(0.5)
    yield
    net.blocks[1].held = [net.blocks[1].up.weight, net.blocks[1].down.weight]
    yield
    yield


@case()
def replaced_weight_that_a_list_still_holds():
    net = twins(InList)
    yield net
    yield
    net.blocks[0].up.weight = nn.Parameter(values(INNER, HIDDEN, seed=3))
    yield
    net.blocks[0].held[0] = net.blocks[0].up.weight
    yield
    yield


@case()
def weights_in_a_tuple_within_a_dict():
    class InDict(InList):
        @staticmethod
        def hold(*weights):
            return {0: (weights[0], 2.0), 1: weights[1]}

        def forward(self, x):
            weight, factor = self.held[0]
            y = functional.linear(self.norm(x), weight, self.up.bias) * factor
            return x + functional.linear(y.relu(), self.held[1], self.down.bias)

    net = twins(InDict)
    yield net
    yield
    net.blocks[0].held[0] = (net.blocks[0].up.weight, 0.5)
    yield
    with torch.no_grad():
        net.blocks[1].held[1].mul_(0.5)
    yield
    net.blocks[0].held[0] = (net.blocks[1].up.weight, 0.5)
    yield


@case()
def list_of_weights_that_grows():
    class Chain(Mlp):
        def __init__(self, index=0):
            super().__init__(index)
            self.held = [self.up.weight, self.down.weight]

        def forward(self, x):
            y = self.norm(x)
            for weight in self.held:
                y = functional.linear(y, weight).tanh()
            return x + y

    net = twins(Chain)
    yield net
    yield
    net.blocks[0].held += [net.blocks[0].up.weight, net.blocks[0].down.weight]
    yield
    net.blocks[1].held.reverse()
    net.blocks[1].held.reverse()
    yield
    del net.blocks[0].held[2:]
    yield


@case()
def whether_a_list_holds_this_weight():
    class Asks(InList):
        def after(self, z):
            return z

        def forward(self, x):
            factor = 2.0 if self.held[0] is self.up.weight else 0.5
            return super().forward(x) * factor

    net = twins(Asks)
    yield net
    yield
    net.blocks[0].held[0] = nn.Parameter(net.blocks[0].up.weight.detach().clone())
    yield
    yield
    yield


@case()
def list_of_weights_that_the_call_changes():
    class Turns(InList):
        def forward(self, x):
            result = super().forward(x)
            self.held[0] = self.up.weight if self.held[0] is not self.up.weight else self.other
            return result

    net = twins(Turns)
    for block in net.blocks:
        block.other = nn.Parameter(values(INNER, HIDDEN, seed=5))
    yield net
    for _ in range(4):
        yield


@case()
def weak_references_to_weights():
    class Weak(InList):
        @staticmethod
        def hold(*weights):
            return [weakref.ref(weight) for weight in weights]

        def forward(self, x):
            y = functional.linear(self.norm(x), self.held[0](), self.up.bias)
            return x + functional.linear(y.relu(), self.held[1](), self.down.bias)

    net = twins(Weak)
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].up.weight.mul_(1.5)
    yield
    kept = net.blocks[0].up.weight
    net.blocks[0].up.weight = nn.Parameter(values(INNER, HIDDEN, seed=3))
    yield
    net.blocks[0].held[0] = weakref.ref(net.blocks[0].up.weight)
    yield
    del kept


@case()
def weight_in_a_partial_function():
    class Partial(Mlp):
        def __init__(self, index=0):
            super().__init__(index)
            self.first = functools.partial(functional.linear, weight=self.up.weight)

        def forward(self, x):
            return x + self.down(self.first(self.norm(x)).relu())

    net = twins(Partial)
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].up.weight.mul_(1.5)
    yield
    net.blocks[1].first = functools.partial(functional.linear, weight=net.blocks[0].up.weight)
    yield
    yield


@case()
def weights_and_buffers_in_a_list():
    class Both(InList):
        def __init__(self, index=0):
            super().__init__(index)
            self.register_buffer("scale", values(INNER, seed=2))
            self.held = [self.up.weight, self.scale]

        def forward(self, x):
            return x + self.down(functional.linear(self.norm(x), self.held[0]) * self.held[1])

    net = twins(Both)
    yield net
    yield
    net.blocks[0].scale.mul_(2)
    yield
    net.blocks[1].held[1] = values(INNER, seed=4)
    yield
    yield


def recurrent(kind, **options):
    class Recurrent(Mlp):
        def __init__(self, index=0):
            super().__init__(index)
            self.steps = kind(HIDDEN, HIDDEN, batch_first=True, dtype=torch.float64, **options)

        def before(self, x):
            return self.steps(x)[0]

    net = twins(Recurrent)
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].steps.weight_hh_l0.mul_(0.5)
    yield
    net.blocks[1].steps.weight_ih_l0 = nn.Parameter(values(*net.blocks[1].steps.weight_ih_l0.shape, seed=5) / 8)
    yield call(values(2, 7, HIDDEN, seed=6))
    net.eval()
    net.blocks[0].steps.bias_hh_l0 = net.blocks[1].steps.bias_hh_l0
    yield call(values(2, 7, HIDDEN, seed=7))
    net.train()
    yield


@case()
def lstm_whose_weights_change():
    yield from recurrent(nn.LSTM)


@case()
def gru_of_two_layers_whose_weights_change():
    yield from recurrent(nn.GRU, num_layers=2)


@case()
def lstm_with_dropout_between_its_layers():
    yield from recurrent(nn.LSTM, num_layers=2, dropout=0.5)


@case()
def rnn_that_is_replaced():
    class Recurrent(Mlp):
        def __init__(self, index=0):
            super().__init__(index)
            self.steps = nn.RNN(HIDDEN, HIDDEN, batch_first=True, dtype=torch.float64)

        def before(self, x):
            return self.steps(x)[0]

    net = twins(Recurrent)
    yield net
    yield
    net.blocks[0].steps = nn.RNN(HIDDEN, HIDDEN, nonlinearity="relu", batch_first=True, dtype=torch.float64)
    yield
    net.blocks[1].steps = net.blocks[0].steps
    yield
    yield
