"""What a call hands over, and what a block does to it: attributes of inputs, aliases among them, containers that it fills."""

import types
from fractions import Fraction

import numpy
import torch
from torch import nn

from tests.contract.parts import Mlp, Net, call, case, leaf, twins, values

HELD = [2.0]


class Asks(Mlp):
    def __init__(self, ask):
        super().__init__()
        self.ask = ask

    def forward(self, x):
        return super().forward(x) * self.ask(x)


@case()
def made_in_inference_mode():
    net = twins(lambda i: Asks(lambda x: 2.0 if x.is_inference() else 3.0))
    with torch.inference_mode():
        made = values(2, 5, 32)
    yield net
    yield call(values(2, 5, 32), under=torch.no_grad, backward=False)
    yield call(made, under=torch.no_grad, backward=False)
    yield call(made, under=torch.inference_mode, backward=False)
    yield call(values(2, 5, 32), under=torch.no_grad, backward=False)


def tagged(tag, **kw):
    x = leaf(2, 5, 32)
    if tag:
        x.tag = tag
    return x


@case()
def attribute_of_an_input():
    net = Net(Asks(lambda x: getattr(x, "tag", 1.0)))
    yield net
    yield call(tagged(0))
    yield call(tagged(3.0))
    yield call(tagged(2.0))
    yield call(tagged(0))


@case()
def leaf_and_version_of_an_input():
    net = Net(Asks(lambda x: (2.0 if x.is_leaf else 3.0) + x._version + (0 if x.grad_fn is None else 1)))
    yield net
    yield call(leaf(2, 5, 32))
    yield call(run=lambda: net(leaf(2, 5, 32) * 2))
    x = values(2, 5, 32)
    x.add_(1)
    yield call(x)
    yield call(leaf(2, 5, 32))


@case()
def place_in_memory():
    net = Net(Asks(lambda x: (2.0 if x.is_contiguous() else 3.0) + x.stride(0) + x.storage_offset()))
    yield net
    yield call(leaf(2, 5, 32))
    yield call(run=lambda: net(leaf(5, 2, 32).transpose(0, 1)))
    yield call(run=lambda: net(leaf(3, 5, 32)[1:]))
    yield call(leaf(2, 5, 32))


@case()
def whether_an_input_is_contiguous():
    net = Net(Asks(lambda x: 2.0 if x.is_contiguous() else 3.0))
    yield net
    yield call(leaf(2, 5, 32))
    yield call(run=lambda: net(leaf(5, 2, 32).transpose(0, 1)))
    yield call(run=lambda: net(leaf(3, 5, 32)[1:]))
    yield call(leaf(2, 5, 32))


@case()
def strides_read_by_the_block():
    net = Net(Asks(lambda x: 1.0 * x.stride(0)))
    yield net
    yield call(leaf(2, 5, 32))
    yield call(run=lambda: net(leaf(5, 2, 32).transpose(0, 1)))
    yield call(run=lambda: net(leaf(2, 5, 64)[..., ::2]))
    yield call(leaf(2, 5, 32))


@case()
def conjugate_of_an_input():
    net = Net(Asks(lambda x: 2.0 if x.is_conj() or x.is_neg() else 3.0))

    def imag():
        z = torch.complex(values(2, 5, 32), values(2, 5, 32, seed=1))
        return net(z.conj().imag)

    yield net
    yield call(leaf(2, 5, 32))
    yield call(run=imag)
    yield call(leaf(2, 5, 32))
    yield call(run=imag)


@case()
def gradient_of_an_input():
    net = Net(Asks(lambda x: 1.0 if x.grad is None else 2.0))
    x = leaf(2, 5, 32)
    yield net
    yield call(x)
    yield call(x)
    yield call(leaf(2, 5, 32))
    yield call(x)


class Overlaps(Mlp):
    def forward(self, x, y):
        x.mul_(2.0)
        return super().forward(x) + y


@case()
def inputs_that_share_memory():
    net = Net(Overlaps())

    def shared():
        x = values(2, 5, 32)
        return net(x, x)

    def views():
        x = values(2, 5, 64)
        return net(x[..., :32], x[..., 16:48])

    def apart():
        return net(values(2, 5, 32), values(2, 5, 32, seed=1))

    yield net, (values(2, 5, 32), values(2, 5, 32, seed=1))
    yield call(run=apart, backward=False, under=torch.no_grad)
    yield call(run=shared, backward=False, under=torch.no_grad)
    yield call(run=views, backward=False, under=torch.no_grad)
    yield call(run=apart, backward=False, under=torch.no_grad)


@case()
def list_that_a_block_gives():
    class F(Mlp):
        def __init__(self):
            super().__init__()
            self.items = [1.0]

        def forward(self, x):
            return super().forward(x) * len(self.items), self.items

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([F(), F()])

        def forward(self, x):
            for b in self.blocks:
                x, items = b(x)
                items.append(2.0)
            return x

    yield N()
    yield
    yield
    yield
    yield


class Views(Mlp):
    def forward(self, x):
        return super().forward(x), x[:, 1:], x


@case()
def view_of_the_input_given():
    net = Net(Views())

    def run():
        x = values(2, 5, 32)
        y, v, w = net(x)
        v.mul_(3.0)
        w.add_(1.0)
        return y, v, w, x

    yield net
    yield call(run=run, backward=False, under=torch.no_grad)
    yield call(run=run, backward=False, under=torch.no_grad)
    yield call(run=run, backward=False, under=torch.no_grad)
    yield call(run=run, backward=False)


@case()
def own_parameters_given():
    class F(Mlp):
        def forward(self, x):
            return super().forward(x), self.norm.weight, self.up.weight

    net = Net(F())
    yield net
    yield
    yield
    with torch.no_grad():
        net.blocks[0].up.weight.mul_(2.0)
    yield
    yield


@case()
def input_written():
    class F(Mlp):
        def forward(self, x):
            y = super().forward(x * 1)
            x.add_(1.0)
            return y

    net = twins(lambda i: F())

    def run(grad=False):
        x = leaf(2, 5, 32) if grad else values(2, 5, 32)
        w = x * 1
        y = net(w)
        return y, w

    yield net
    yield call(run=run)
    yield call(run=run, under=torch.no_grad, backward=False)
    yield call(run=run)
    yield call(run=lambda: run(False))


@case()
def list_and_dict_filled_by_a_block():
    class F(Mlp):
        def forward(self, x, acc, named=None):
            y = super().forward(x) * (len(acc) + 1)
            acc.append(y)
            if named is not None:
                named["last"] = y.detach()
            return y

    net = twins(lambda i: F())

    def run(named):
        acc, names = [], {}
        y = net(leaf(2, 5, 32), acc, names if named else None)
        return y, acc, names

    yield net, (leaf(2, 5, 32), [])
    yield call(run=lambda: run(False))
    yield call(run=lambda: run(True))
    yield call(run=lambda: run(False))
    yield call(run=lambda: run(True))


class Takes(Mlp):
    def forward(self, x, what):
        return super().forward(x) * self.number(what)

    def number(self, what):
        if callable(what):
            return what()
        if isinstance(what, slice):
            return float(what.start)
        if hasattr(what, "factor"):
            return what.factor
        return float(what)


def counted(value):
    return lambda: value


@case()
def arguments_of_many_kinds():
    net = twins(lambda i: Takes())
    thing = types.SimpleNamespace(factor=2.0)
    yield net, (leaf(2, 5, 32), 2.0)
    yield call(leaf(2, 5, 32), numpy.float64(0.5))
    yield call(leaf(2, 5, 32), numpy.float64(0.75))
    yield call(leaf(2, 5, 32), Fraction(1, 3))
    yield call(leaf(2, 5, 32), Fraction(2, 3))
    yield call(leaf(2, 5, 32), slice(1, 2))
    yield call(leaf(2, 5, 32), slice(2, 2))
    yield call(leaf(2, 5, 32), counted(2.0))
    yield call(leaf(2, 5, 32), counted(3.0))
    yield call(leaf(2, 5, 32), thing)
    thing.factor = 3.0
    yield call(leaf(2, 5, 32), thing)
    yield call(leaf(2, 5, 32), numpy.array(2.0))
    yield call(leaf(2, 5, 32), numpy.array(3.0))
    yield call(leaf(2, 5, 32), True)
    yield call(leaf(2, 5, 32), "3")
    yield call(leaf(2, 5, 32), b"4")


@case()
def module_as_an_argument():
    class F(Mlp):
        def forward(self, x, norm):
            return super().forward(norm(x))

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(32, dtype=torch.float64)
            self.blocks = nn.ModuleList([F(), F()])

        def forward(self, x):
            for b in self.blocks:
                x = b(x, self.norm)
            return x

    net = N()
    yield net
    yield
    yield
    net.norm.eps = 0.5
    yield
    yield


@case()
def cut_parameter_as_an_argument():
    class F(Mlp):
        def forward(self, x, scale, table):
            return super().forward(x * scale) + (x @ table.T).relu() @ table

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(values(32))
            self.first = Mlp()
            self.blocks = nn.ModuleList([F(), F()])

        def forward(self, x):
            x = self.first(x)
            for b in self.blocks:
                x = b(x, self.scale, self.blocks[0].up.weight)
            return x

    yield N()
    yield
    yield
    yield
    yield


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.relu else result


@case(refusal=("Doubling",))
def input_of_a_class_of_its_own():
    net = twins(lambda i: Mlp())
    yield net
    yield call(leaf(2, 5, 32))
    yield call(run=lambda: net(values(2, 5, 32).as_subclass(Doubling)).as_subclass(torch.Tensor))
    yield call(leaf(2, 5, 32))
    yield call(run=lambda: net(values(2, 5, 32).as_subclass(Doubling)).as_subclass(torch.Tensor))


@case()
def class_of_an_input():
    class B(Mlp):
        def forward(self, x):
            return (
                super().forward(x)
                * (2.0 if type(x) is torch.Tensor else 3.0)
                * (5.0 if isinstance(x, nn.Parameter) else 1.0)
            )

    net = Net(B())
    yield net
    yield call(leaf(2, 5, 32))
    yield call(nn.Parameter(values(2, 5, 32)))
    yield call(leaf(2, 5, 32))
    yield call(values(2, 5, 32))


@case()
def numbers_given():
    class B(Mlp):
        def forward(self, x):
            return super().forward(x), x.shape[0] * 2, x.dtype == torch.float64, HELD[0], x.shape

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([B(), B()])

        def forward(self, x):
            for b in self.blocks:
                x, a, c, d, e = b(x)
                x = x * a + c * d + e[0]
            return x

    HELD[0] = 2.0
    yield N()
    yield call(leaf(2, 5, 32))
    yield call(leaf(3, 5, 32))
    HELD[0] = 3.0
    yield call(leaf(4, 5, 32))
    yield call(leaf(2, 5, 32))


@case(refusal=("needs a gradient",))
def object_with_a_cut_parameter():
    class B(Mlp):
        def forward(self, x, holder):
            return super().forward(x) + (x @ holder.table.T).relu() @ holder.table

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Mlp()
            self.blocks = nn.ModuleList([B(), B()])

        def forward(self, x):
            holder = types.SimpleNamespace(table=self.first.up.weight)
            x = self.first(x)
            for b in self.blocks:
                x = b(x, holder)
            return x

    yield N()
    yield
    yield
    yield
    yield


@case()
def container_with_a_cut_parameter():
    class B(Mlp):
        def forward(self, x, holder):
            return super().forward(x) + (x @ holder["t"][0].T).relu() @ holder["t"][0]

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Mlp()
            self.blocks = nn.ModuleList([B(), B()])

        def forward(self, x):
            x = self.first(x)
            for b in self.blocks:
                x = b(x, {"t": [self.first.up.weight]})
            return x

    yield N()
    yield
    yield
    yield
    yield


@case()
def iterators_as_arguments():
    class B(Mlp):
        def forward(self, x, items):
            return super().forward(x) * sum(items)

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([B(), B()])

        def forward(self, x):
            for b in self.blocks:
                x = b(x, (i * HELD[0] for i in range(3)))
                x = b(x, iter([1.0, HELD[0]]))
                x = b(x, {1.0, HELD[0]})
                x = b(x, range(int(HELD[0])))
            return x

    HELD[0] = 2.0
    yield N()
    yield
    HELD[0] = 3.0
    yield
    yield
    yield


@case()
def tensor_that_blocks_share():
    shared = values(32)

    class B(Mlp):
        def __init__(self):
            super().__init__()
            self.t = shared

        def after(self, z):
            return z * self.t

    net = twins(lambda i: B())
    yield net
    yield
    shared.mul_(2)
    yield
    net.blocks[0].t = shared * 3
    yield
    yield


@case()
def identity_of_what_is_given():
    class B(Mlp):
        def forward(self, x):
            y = super().forward(x)
            return {"y": y, "same": y, "x": x, "list": [y, x]}

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([B(), B()])

        def forward(self, x):
            for b in self.blocks:
                d = b(x)
                x = (
                    d["y"]
                    + (1.0 if d["y"] is d["same"] else 2.0)
                    + (3.0 if d["x"] is x else 4.0)
                    + (5.0 if d["list"][0] is d["y"] else 6.0)
                )
            return x

    yield N()
    yield
    yield
    yield
    yield


@case()
def blocks_in_an_order_that_changes():
    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Mlp(i) for i in range(3)])
            self.order = [0, 1, 2]

        def forward(self, x):
            for i in self.order:
                x = self.blocks[i](x)
            return x

    net = N()
    yield net
    yield
    net.order = [2, 0]
    yield
    net.order = [1, 1, 0, 2]
    yield
    net.order.reverse()
    yield


@case()
def buffer_of_nothing_and_something():
    class B(Mlp):
        def __init__(self):
            super().__init__()
            self.register_buffer("gain", None)

        def middle(self, y):
            return y.relu() if self.gain is None else y.relu() * self.gain

    net = twins(lambda i: B())
    yield net
    yield
    net.blocks[0].gain = values(48)
    yield
    net.blocks[0].gain = None
    net.blocks[1].gain = values(48, seed=3)
    yield
    del net.blocks[0].gain
    net.blocks[0].gain = values(48, seed=4)
    yield


@case()
def tensor_made_of_a_number():
    class B(Mlp):
        def middle(self, y):
            return y.relu() * torch.zeros((), dtype=y.dtype, device=y.device).add(HELD[0]).to(torch.float32).to(y.dtype)

    net = twins(lambda i: B())
    HELD[0] = 2.0
    yield net
    yield
    HELD[0] = 3.0
    yield
    yield
    yield


@case()
def tensor_made_of_a_list():
    table = [1.0, 2.0, 3.0]

    class B(Mlp):
        def middle(self, y):
            return y.relu() * torch.tensor(table, dtype=torch.float64).sum()

    net = twins(lambda i: B())
    yield net
    yield
    table[0] = 5.0
    yield
    table.append(1.0)
    yield
    yield


@case()
def tensor_that_the_model_keeps():
    class B(Mlp):
        def forward(self, x, bias):
            return super().forward(x) + bias

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([B(), B()])
            self.bias = None

        def forward(self, x):
            if self.bias is None or self.bias.shape != x.shape:
                self.bias = torch.ones_like(x)
            for b in self.blocks:
                x = b(x, self.bias)
                self.bias = self.bias + x.detach()
            return x

    yield N(), (leaf(2, 5, 32),)
    yield call(leaf(2, 5, 32))
    yield call(leaf(2, 5, 32))
    yield call(leaf(3, 5, 32))
    yield call(leaf(3, 5, 32))


@case()
def result_written_by_the_caller():
    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Mlp(), Mlp(), Mlp()])

        def forward(self, x):
            for b in self.blocks:
                y = b(x)
                y[:, 0] = 1.0
                y.mul_(2.0)
                x = y
            return x

    yield N()
    yield
    yield
    yield
    yield
