"""Tensors of the state that get other sizes or another type in place; operators that write into others than their first."""

import torch
from torch import nn
from torch.ao.quantization import FusedMovingAvgObsFakeQuantize, PerChannelMinMaxObserver
from torch.nn import functional

from tests.contract.parts import INNER, Mlp, case, linear, twins


def wide(*sizes):
    return torch.ones(sizes, dtype=torch.float64)


class Holds(Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", wide(1))
        self.plain, self.listed = wide(1), [wide(1)]
        self.scale = nn.Parameter(wide(1), requires_grad=False)  # a gradient has the sizes of when its graph began

    def middle(self, y):
        y = y * self.table.sum() * self.plain.sum() * self.listed[0].sum() * self.scale.sum()
        ways = 1 + 2 * self.plain.numel() + 3 * len(self.listed[0]) + 5 * self.table.shape[0] + 7 * self.scale.numel()
        return (y * ways).tanh()


@case()
def state_that_is_resized():
    net = twins(lambda index: Holds())
    yield net
    yield
    net.blocks[0].table.resize_(3).fill_(1.5)
    yield
    net.blocks[1].plain.resize_(2).fill_(0.5)
    yield
    net.blocks[0].listed[0].resize_(4).fill_(0.5)
    yield


@case()
def state_that_is_given_other_data():
    net = twins(lambda index: Holds())
    yield net
    yield
    net.blocks[0].table.data = wide(3)
    yield
    net.blocks[1].plain.data = wide(2)
    yield
    net.blocks[0].listed[0].data = wide(4)
    yield
    net.blocks[1].scale.data = wide(2)
    yield


class AsksForTypes(Holds):
    def middle(self, y):
        held = (self.table, self.plain, self.listed[0], self.scale, self.up.bias, self.down.weight)
        return (y * sum(number for number, tensor in enumerate(held, 1) if tensor.dtype == torch.float64)).tanh()


@case()
def state_of_another_type():
    net = twins(lambda index: AsksForTypes())
    yield net
    yield
    net.blocks[0].table.data = net.blocks[0].table.float()
    yield
    net.blocks[1].plain.data = net.blocks[1].plain.float()
    yield
    net.blocks[0].listed[0].data = net.blocks[0].listed[0].float()
    yield
    net.blocks[1].scale.data = net.blocks[1].scale.data.float()
    yield


class ComputesInDouble(AsksForTypes):
    """Computes with its layers' weights in one type, whatever they are kept in."""

    def forward(self, x):
        y = self.middle(functional.linear(x, self.up.weight.double(), self.up.bias.double()))
        return x + functional.linear(y, self.down.weight.double(), self.down.bias.double())


@case()
def cut_weights_of_another_type():
    net = twins(lambda index: ComputesInDouble())
    yield net
    yield
    net.blocks[0].down.float()
    yield
    net.blocks[1].up.bias.grad, net.blocks[1].up.bias.data = None, net.blocks[1].up.bias.data.float()
    yield
    net.blocks[0].down.double()
    yield


@case()
def listed_tensor_that_wants_a_gradient():
    net = twins(lambda index: Holds())
    yield net
    yield
    net.blocks[0].listed[0].requires_grad_()
    yield
    net.blocks[1].plain.requires_grad_()
    yield
    net.blocks[0].listed[0].requires_grad_(False)
    yield


class FindsWidth(Mlp):
    """A buffer that has no size before the first call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", wide(0))

    def middle(self, y):
        found = y.detach().flatten(0, -2).amax(0)
        if self.largest.numel() == 0:
            self.largest.resize_(found.shape)
        else:
            found = torch.max(found, self.largest)
        self.largest.copy_(found)
        return y / (1 + self.largest.abs())


@case()
def buffer_that_finds_its_width():
    net = twins(lambda index: FindsWidth())
    yield net
    yield
    yield
    net.blocks[0].largest.resize_(0)
    yield
    yield


class Observed(Mlp):
    def __init__(self):
        super().__init__()
        self.observer = PerChannelMinMaxObserver(ch_axis=1).double()

    def middle(self, y):
        self.observer(y.flatten(0, -2))
        return y * self.observer.max_val / (1 + self.observer.min_val.abs())


@case()
def quantization_observer():
    net = twins(lambda index: Observed())
    yield net
    yield
    yield
    yield
    net.blocks[0].observer.reset_min_max_vals()
    yield


class FakeQuantized(Mlp):
    def __init__(self):
        super().__init__()
        self.quantizer = FusedMovingAvgObsFakeQuantize()

    def middle(self, y):
        return self.quantizer(y.float()).double() * self.quantizer.scale.double()


@case()
def fused_fake_quantization():
    net = twins(lambda index: FakeQuantized())
    yield net
    yield
    yield
    net.eval()
    yield
    net.blocks[0].quantizer.disable_fake_quant()
    yield


class WritesOut(Mlp):
    """Adds to a sum what it writes into a buffer of its own, twice."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", wide(INNER))
        self.other = linear(INNER, INNER)

    def middle(self, y):
        rows = y.detach().flatten(0, -2)
        first = self.other(y)
        torch.mean(rows, 0, out=self.kept)
        second = first + self.kept
        torch.sum(rows, 0, out=self.kept)
        return second * y + self.other(self.kept.clone())


@case()
def results_that_are_written_into_a_buffer():
    net = twins(lambda index: WritesOut())
    yield net
    yield
    yield
    net.eval()
    yield
    yield


class WritesSeveral(Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("least", wide(0))
        self.register_buffer("most", wide(0))

    def middle(self, y):
        rows = y.detach().flatten(0, -2)
        before = y * (1 + self.least.sum())
        torch.aminmax(rows, dim=0, out=(self.least, self.most))
        return before * (self.most - self.least)


@case()
def results_that_are_written_into_two_buffers():
    net = twins(lambda index: WritesSeveral())
    yield net
    yield
    yield
    net.blocks[0].least.resize_(0)
    yield
    yield
