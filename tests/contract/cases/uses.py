"""Uses of a model that are odd, and right: penalties on gradients, other weights for one call, copies, views of inputs."""

from __future__ import annotations

import decimal
from typing import Any, NamedTuple

import torch

from tests.contract.parts import Mlp, Net, WordNet, call, case, ids, leaf, twins, values


class Two(Mlp):
    def forward(self, x, other):
        return super().forward(x) + other * 2


@case()
def one_tensor_twice():
    net = twins(Two)
    x, y = values(2, 5, 32), values(2, 5, 32, seed=1)
    yield net, (x, y)
    yield call(leaf(2, 5, 32), leaf(2, 5, 32, seed=3))
    z = leaf(2, 5, 32)
    yield call(z, z)
    yield call(run=lambda: net(z[0], z[0]))
    yield call(leaf(2, 5, 32), leaf(2, 5, 32, seed=3))


class GivesInput(Mlp):
    skip = False

    def forward(self, x):
        return x if self.skip else super().forward(x)


@case()
def block_that_gives_its_input():
    net = twins(GivesInput)
    yield net
    yield
    net.blocks[0].skip = True
    yield
    net.blocks[1].skip = True

    def run():
        x = values(2, 5, 32)
        y = net(x)
        y.add_(1)
        return x, y

    yield call(run=run)
    net.blocks[0].skip = False
    yield call(run=run)


@case(compiled=("second derivatives",))
def penalty_on_a_gradient():
    net = twins(lambda i: Smooth(i))
    yield net

    def run():
        x = leaf(2, 5, 32)
        y = net(x)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y, g.square().sum()

    yield call(run=run)
    yield
    yield call(run=run)
    yield call(run=run)


class Smooth(Mlp):
    def middle(self, y):
        return y.tanh()


@case()
def functional_call_with_other_weights():
    net = twins(Smooth)
    yield net

    def run():
        other = {n: (p * 2) for n, p in net.named_parameters()}
        return torch.func.functional_call(net, other, (values(2, 5, 32),))

    yield call(run=run)
    yield
    yield call(run=run)
    yield call(run=run)


@case()
def saved_on_the_host():
    net = twins(Smooth)
    yield net

    def run():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone() * 1, lambda t: t):
            return net(leaf(2, 5, 32))

    yield
    yield call(run=run)
    yield call(run=run)
    yield


@case()
def average_of_the_model():
    net = twins(Smooth)
    yield net
    yield
    average = torch.optim.swa_utils.AveragedModel(net)
    yield call(run=lambda: (net(leaf(2, 5, 32)), average(values(2, 5, 32))))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.5)
    average.update_parameters(net)
    yield call(run=lambda: (net(leaf(2, 5, 32)), average(values(2, 5, 32))))
    yield


@case()
def tied_later():
    net = WordNet(Smooth(0), Smooth(1))
    yield net, (ids(2, 5),)
    yield call(ids(2, 5))
    net.head.weight = net.embed.weight
    yield call(ids(2, 5))
    yield call(ids(3, 5))
    yield call(ids(2, 5))


class Out(NamedTuple):
    y: torch.Tensor
    more: Any


@case()
def tuples_with_names():
    class Named(Mlp):
        def forward(self, x):
            y = super().forward(x if isinstance(x, torch.Tensor) else x.y)
            return Out(y, {"mean": y.mean(-1), "none": None})

    net = twins(Named)
    yield net
    yield call(leaf(2, 5, 32))
    yield call(leaf(3, 5, 32))
    yield call(leaf(2, 5, 32), under=torch.no_grad, backward=False)
    yield call(leaf(2, 5, 32))


@case()
def strides_of_inputs():
    net = twins(Smooth)
    yield net
    yield call(run=lambda: net(leaf(5, 2, 32).transpose(0, 1)))
    yield call(run=lambda: net(leaf(1, 1, 32).expand(2, 5, 32)))
    yield call(run=lambda: net(leaf(2, 5, 64)[..., ::2]))
    yield call(run=lambda: net(leaf(0, 5, 32)))
    yield call(run=lambda: net(leaf(1, 1, 32)))
    yield call(run=lambda: net(leaf(32)))


@case()
def autocast_switched_inside():
    class Casts(Smooth):
        narrow = False

        def after(self, z):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.narrow):
                return z * 2

    net = twins(Casts)
    yield net
    yield
    net.blocks[0].narrow = True
    yield
    net.blocks[0].narrow = False
    yield
    yield


@case()
def gives_a_buffer():
    class Gives(Smooth):
        def __init__(self, index):
            super().__init__()
            self.register_buffer("table", values(5, 32))

        def forward(self, x):
            return super().forward(x) + self.table, self.table

    class Outer(Net):
        def forward(self, x):
            for block in self.blocks:
                x, table = block(x)
                if not torch.is_grad_enabled():
                    table.add_(1)
            return x

    net = Outer(Gives(0), Gives(1))
    yield net
    yield
    yield call(values(2, 5, 32), under=torch.no_grad, backward=False)
    yield
    yield call(values(2, 5, 32), under=torch.no_grad, backward=False)
    yield


@case()
def chained_maps():
    import collections

    class Chain(Smooth):
        def __init__(self, index):
            super().__init__()
            self.first, self.second = {}, {"scale": 2.0}
            self.settings = collections.ChainMap(self.first, self.second)
            self.user = collections.UserDict(a=1.0)

        def after(self, z):
            return z * self.settings["scale"] * self.user.get("a", 5.0)

    net = twins(Chain)
    yield net
    yield
    net.blocks[0].first["scale"] = 3.0
    yield
    net.blocks[1].user["a"] = 4.0
    yield
    del net.blocks[1].user["a"]
    yield


@case()
def bytes_and_arrays():
    import array

    class Bytes(Smooth):
        def __init__(self, index):
            super().__init__()
            self.raw, self.arr = bytearray(b"ab"), array.array("d", [1.0, 2.0])

        def after(self, z):
            return z * self.raw[0] / 97 * self.arr[1]

    net = twins(Bytes)
    yield net
    yield
    net.blocks[0].raw[0] = 99
    yield
    net.blocks[1].arr[1] = 5.0
    yield
    yield


@case()
def bases_of_a_class_changed():
    class First:
        factor = 2.0

    class Second:
        factor = 3.0

    class Has(Smooth, First):
        def after(self, z):
            return z * self.factor

    net = twins(Has)
    yield net
    yield
    Has.__bases__ = (Smooth, Second)
    yield
    yield
    yield


@case()
def vector_of_all_weights():
    net = twins(Smooth)
    yield net
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    yield call(run=lambda: (net(leaf(2, 5, 32)), parameters_to_vector(net.parameters())))
    with torch.no_grad():
        vector_to_parameters(parameters_to_vector(net.parameters()) * 1.5, net.parameters())
    yield
    yield
    yield


@case()
def leaves_seen_by_a_hook_on_the_output():
    net = twins(Smooth)
    yield net

    def run():
        y = net(leaf(2, 5, 32))
        y.register_hook(lambda g: g * 2)
        h = net.blocks[0](leaf(2, 5, 32, seed=2))
        h.retain_grad()
        return y, net.blocks[1](h)

    yield call(run=run)
    yield
    yield call(run=run)
    yield call(run=run)


class Decimals(Mlp):
    def after(self, z):
        return z * float(decimal.Decimal(1) / decimal.Decimal(3))


@case()
def rounding_of_decimal_numbers():
    net = twins(Decimals)
    yield net
    yield
    with decimal.localcontext() as context:
        context.prec = 2
        yield
    yield
    yield
