"""Writes into memory by other roads than a tensor's own operators, and past autograd."""

import ctypes
from http import HTTPMethod

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils import dlpack

from tests.contract.parts import HIDDEN, INNER, Mlp, Net, call, case, leaf, linear, twins, values


class Writes(Mlp):
    """What `write` gives for the values before the first product, and for those between the two."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def before(self, x):
        return self.write(x)


class WritesInside(Writes):
    def before(self, x):
        return x

    def middle(self, y):
        return self.write(y.relu())


def writing(write):
    yield Net(Writes(write), WritesInside(write))
    for _ in range(4):
        yield


def table(y):
    return torch.zeros(1, y.shape[1], y.shape[2], dtype=y.dtype)


class PositionTable(nn.Module):
    """A table that is filled through its `.data`, as that of joint positions of words and frames."""

    def __init__(self):
        super().__init__()
        self.a, self.b = linear(HIDDEN, INNER), linear(INNER, HIDDEN)

    def forward(self, x):
        p, q = torch.zeros(1, x.shape[1], HIDDEN), x.new_zeros(1, x.shape[1], HIDDEN)
        p.data[:, 2:] = 1.0
        q.data[:, 2:].copy_(torch.ones(1, x.shape[1] - 2, HIDDEN))
        return self.b(functional.gelu(self.a(x + p + q)))


@case()
def a_table_filled_through_its_data():
    yield PositionTable()
    for _ in range(4):
        yield


class PositionTableOutside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks = PositionTable(), twins(Mlp)

    def forward(self, x):
        q = x.new_zeros(1, x.shape[1], HIDDEN)
        q.data[:, 2:].copy_(torch.ones(1, x.shape[1] - 2, HIDDEN))
        return self.blocks(self.first(x) + q)


@case()
def a_table_filled_through_its_data_outside_of_blocks():
    yield PositionTableOutside()
    for _ in range(4):
        yield


@case()
def data_given_and_exchanged():
    def write(y):
        one, other, scaled = torch.zeros_like(y), torch.ones_like(y), y * 2
        one.data, other.data = other.data, one.data
        scaled.data = scaled.detach() * 3
        return y * one + other + scaled

    yield from writing(write)


@case()
def data_of_a_value_in_use():
    def write(y):
        scaled = y * 2
        scaled.data.detach()[:, 1:].mul_(3.0)
        return scaled.sin() + y

    yield from writing(write)


@case()
def memory_given_to_dlpack():
    def write(y):
        z = table(y)
        dlpack.from_dlpack(dlpack.to_dlpack(z))[:, 1:] = 2.0
        return z * y

    yield from writing(write)


@case()
def memory_taken_by_dlpack():
    def write(y):
        z, w = table(y), table(y)
        torch.from_dlpack(z)[:, 1:] = 2.0
        numpy.from_dlpack(w)[:, :1] = 3.0
        return (z + w) * y

    yield from writing(write)


@case()
def memory_of_a_numpy_array():
    def write(y):
        array = numpy.zeros((1, y.shape[1], y.shape[2]))
        z = torch.from_numpy(array)
        array[:, 1:] = 2.0
        return z * y

    yield from writing(write)


@case()
def bytes_of_a_storage():
    def write(y):
        z = torch.zeros(y.shape[2], dtype=y.dtype)
        z.untyped_storage()[7] = 63  # the high byte of a number
        return z + y

    yield from writing(write)


@case()
def bytes_behind_an_address():
    def write(y):
        z, w = torch.ones(y.shape[2], dtype=y.dtype), torch.ones(y.shape[2], dtype=y.dtype)
        ctypes.memset(z.data_ptr(), 0, 8)
        return z * y if z.data_ptr() != w.data_ptr() else y

    yield from writing(write)


@case()
def copies_without_gradients():
    """What autograd does not see leaves the gradient of what was there."""

    def write(y):
        z = y * 1.5
        with torch.no_grad():
            z.copy_(torch.ones_like(z))
        return z * y

    yield from writing(write)


@case()
def writes_without_gradients_into_views():
    def write(y):
        z = y * 1.5
        with torch.no_grad():
            z[:, 1:].mul_(2.0)
            z[:, :1].copy_(y[:, :1] * 3)
        return z + z.sin()

    yield from writing(write)


@case()
def writes_with_gradients_and_then_without():
    def write(y):
        z = torch.zeros_like(y)
        early = z[:, 1:]
        z.copy_(y * 2)
        with torch.no_grad():
            z.add_(1.0)
        return z.sin() + early.sum()

    yield from writing(write)


@case()
def writes_through_expanded_and_strided_views():
    def write(y):
        z, w = torch.zeros(1, 1, y.shape[2], dtype=y.dtype), table(y)
        wide = z.expand(1, y.shape[1], y.shape[2])
        z.add_(2.0)
        w.as_strided((1, 2, y.shape[2]), w.stride()).fill_(1.0)
        w.transpose(1, 2).diagonal(dim1=1, dim2=2).mul_(3.0)
        return wide * y + w

    yield from writing(write)


@case()
def results_written_into_given_tensors():
    def write(y):
        z, w = torch.zeros(y.shape, dtype=y.dtype), torch.zeros(0, dtype=y.dtype)
        torch.add(y.detach()[:, 1:], 1.0, out=z[:, 1:])
        with torch.no_grad():
            w.set_(y.detach() * 2)
        return z * y + w

    yield from writing(write)


KERNELS = {HTTPMethod.GET: torch.relu, HTTPMethod.PUT: torch.tanh}


class Chooses(Mlp):
    """Looks a function up by a member of an enumeration that is a word as well."""

    def __init__(self, index):
        super().__init__()
        self.kernel = HTTPMethod.GET

    def middle(self, y):
        return KERNELS[self.kernel](y)


@case()
def members_of_an_enumeration_as_keys():
    net = twins(Chooses)
    yield net
    yield
    yield
    KERNELS[HTTPMethod.GET] = torch.sin
    yield
    net.blocks[1].kernel = HTTPMethod.PUT
    yield
    KERNELS[HTTPMethod.GET] = torch.relu


class Clipped(Mlp):
    """Keeps weights small through their `data`, as maps of states do; in training only."""

    def before(self, x):
        if self.training:
            self.up.weight.data.clamp_(-0.1, 0.1)
            self.down.bias.data.mul_(0.5)
        return x


@case()
def weights_clipped_through_their_data():
    net = twins(Clipped)
    net.eval()
    yield net
    yield call(leaf(2, 5, HIDDEN))
    net.train()
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(2, 4, HIDDEN))
    net.eval()
    yield call(leaf(2, 4, HIDDEN), backward=False, under=torch.no_grad)


class Clips(Mlp):
    """A gain, which its own forward writes through its `.data`."""

    def __init__(self, write, inner=False):
        super().__init__()
        self.write, self.inner = write, inner
        self.gain = nn.Parameter(values(INNER if inner else HIDDEN, seed=7))

    def middle(self, y):
        return self.write(self, y.relu()) if self.inner else y.relu()

    def after(self, z):
        return z if self.inner else self.write(self, z)


def clipping(write, inner=False):
    """Calls of both modes; two whose backward comes after both; and one behind a write from outside."""
    net = twins(lambda i: Clips(write, inner))
    yield net
    yield
    net.eval()
    yield
    net.train()

    def run():
        return net(leaf(2, 5, HIDDEN)) + net(leaf(2, 5, HIDDEN, seed=3)).sin()

    yield call(run=run)
    net.blocks[1].gain.data.mul_(3.0)
    yield
    with torch.no_grad():
        net.blocks[0].gain.add_(1.0)
    yield call(run=run)


def clipped(self, z):
    self.gain.data.clamp_(-0.5, 0.5)
    return z * self.gain


@case()
def a_parameter_clipped_through_its_data():
    yield from clipping(clipped)


@case()
def a_cut_parameter_clipped_through_its_data():
    yield from clipping(clipped, inner=True)


@case()
def a_parameter_clipped_in_training():
    yield from clipping(lambda self, z: clipped(self, z) if self.training else z * self.gain)


@case()
def a_part_of_a_parameter_written_through_its_data():
    def write(self, z):
        self.gain.data[3:].mul_(0.9)
        self.gain.data[:2] = 0.25
        return z * self.gain

    yield from clipping(write)


@case()
def an_average_kept_in_a_parameter():
    def write(self, z):
        self.gain.data.mul_(0.9).add_(z.detach().mean((0, 1)), alpha=0.1)
        return z * self.gain

    yield from clipping(write)


@case()
def a_parameter_written_through_its_data_after_it_was_read():
    def write(self, z):
        y = z * self.gain
        self.gain.data.mul_(0.9)
        return y * self.gain

    yield from clipping(write)


@case()
def a_parameter_written_through_data_that_is_kept():
    def write(self, z):
        held = self.gain.data
        y = z + held
        held.mul_(0.9)
        return y + held + self.gain

    yield from clipping(write)


@case()
def a_parameter_written_through_its_data_with_what_is_read_of_it():
    def write(self, z):
        self.gain.data /= self.gain.detach().abs().max()
        return z * self.gain

    yield from clipping(write)
