"""Modules put in, taken out, replaced or moved after the model was made parallel."""

import copy
import functools

import torch
from torch import nn

from tests.contract.parts import HIDDEN, INNER, Mlp, Net, call, case, leaf, linear, twins, values


class Adds(nn.Module):
    """A low-rank adapter around a layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.a, self.b = inner, linear(inner.in_features, 2), linear(2, inner.out_features)

    def forward(self, x):
        return self.inner(x) + self.b(self.a(x))


@case()
def cut_layer_replaced_by_a_whole_one():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].up = linear(HIDDEN, INNER)
    yield
    yield
    net.blocks[1].down = linear(INNER, HIDDEN)
    yield
    yield call(under=torch.no_grad, backward=False)


@case()
def cut_layer_replaced_and_put_back():
    net = twins(lambda index: Mlp())
    yield net
    yield
    old = net.blocks[0].up
    net.blocks[0].up = linear(HIDDEN, INNER)
    yield
    net.blocks[0].up = old
    yield
    net.blocks[0].up = linear(HIDDEN, INNER)
    yield
    yield


@case()
def cut_layers_of_two_blocks_exchanged():
    net = twins(lambda index: Mlp())
    yield net
    yield
    one, other = net.blocks[0], net.blocks[1]
    one.up, other.up = other.up, one.up
    yield
    yield
    one.norm, other.norm = other.norm, one.norm
    yield
    yield


@case()
def adapters_put_into_the_blocks():
    net = twins(lambda index: Mlp())
    yield net
    yield
    for block in net.blocks:
        block.up, block.down = Adds(block.up), Adds(block.down)
    yield
    yield
    for block in net.blocks:
        block.up = block.up.inner
    yield
    yield call(under=torch.no_grad, backward=False)


@case()
def one_layer_in_two_places():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[1].up = net.blocks[0].up
    yield
    yield
    net.blocks[0].norm = net.blocks[1].norm
    yield
    yield


@case()
def layer_of_a_block_used_outside():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.extra = net.blocks[0].up

    def both():
        x = leaf(2, 5, HIDDEN, seed=7)
        return net(x), net.extra(x)

    yield call(run=both)
    yield call(run=both)
    yield call(run=both, under=torch.no_grad, backward=False)


class MayNormalise(Mlp):
    def __init__(self):
        super().__init__()
        self.more = nn.ModuleList()

    def middle(self, y):
        for layer in self.more:
            y = layer(y)
        return y.relu()


@case()
def layers_put_into_an_empty_list():
    net = twins(lambda index: MayNormalise())
    yield net
    yield
    net.blocks[0].more.append(nn.LayerNorm(INNER, dtype=torch.float64))
    yield
    net.blocks[0].more.append(linear(INNER, INNER))
    yield
    yield
    net.blocks[0].more.pop(0)
    yield
    del net.blocks[0].more[0]
    yield


@case()
def optional_layer_taken_out():
    class Optional(Mlp):
        def __init__(self):
            super().__init__()
            self.gate = linear(HIDDEN, INNER)

        def before(self, x):
            self.given = x
            return x

        def forward(self, x):
            y = self.up(self.norm(x)).relu()
            return x + self.down(y if self.gate is None else y * self.gate(x).sigmoid())

    net = twins(lambda index: Optional())
    yield net
    yield
    net.blocks[1].gate = None
    yield
    yield
    net.blocks[1].gate = linear(HIDDEN, INNER)
    yield


@case()
def copied_after_a_change():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].norm = nn.LayerNorm(HIDDEN, eps=0.5, dtype=torch.float64)
    yield
    net.blocks.append(copy.deepcopy(net.blocks[0]))
    yield
    net.blocks[2].norm = nn.Identity()
    yield
    net.blocks.append(copy.deepcopy(net.blocks[2]))
    yield
    yield


@case(refusal=("was given a block of the model",))
def block_put_into_another_block():
    class Holds(Mlp):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()

        def after(self, z):
            return self.inner(z)

    net = Net(Holds(), Holds(), Mlp())
    yield net
    yield
    net.blocks[0].inner = net.blocks[2]
    yield
    yield
    yield


@case()
def equal_layers_of_other_sizes():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].up, net.blocks[0].down = linear(HIDDEN, 2 * INNER), linear(2 * INNER, HIDDEN)
    yield
    net.blocks[1].up, net.blocks[1].down = linear(HIDDEN, 7), linear(7, HIDDEN)
    yield
    with torch.no_grad():
        net.blocks[1].up.weight.add_(values(7, HIDDEN))
    yield


class Processor:
    """A plain object that computes for the block that holds it."""

    def __init__(self, scale):
        self.scale, self.calls = scale, 0

    def __call__(self, block, y):
        return y.relu() * self.scale

    def of(self, block, y):
        return y.tanh() * self.scale


class Counting(Processor):
    def __call__(self, block, y):
        self.calls += 1
        return y.relu() * (self.scale + self.calls)


class Processed(Mlp):
    def __init__(self, processor):
        super().__init__()
        self.processor = processor

    def middle(self, y):
        return self.processor(self, y)


def processed(*processors):
    return Net(*map(Processed, processors))


@case()
def a_processor_of_its_own_in_each_block():
    net = processed(Processor(0.5), Processor(0.5), Processor(0.5))
    yield net
    yield
    yield
    net.blocks[1].processor.scale = 0.25
    yield
    net.blocks[2].processor = net.blocks[1].processor
    yield
    net.blocks[1].processor.scale = 0.75
    yield


@case()
def processors_of_other_settings():
    net = processed(Processor(0.5), Processor(0.25), Processor(0.5), Counting(0.5))
    yield net
    yield
    yield
    net.blocks[0].processor.scale = 0.25
    yield
    net.blocks[0].processor.__class__ = Counting
    yield
    yield


@case()
def methods_and_partials_of_other_objects():
    net = processed(
        Processor(0.5).of,
        Processor(0.25).of,
        functools.partial(Processor(0.5).of),
        functools.partial(Processor(0.75).of),
        functools.partial(lambda block, y, by: y.sin() * by, by=2.0),
        functools.partial(lambda block, y, by: y.sin() * by, by=3.0),
    )
    yield net
    yield
    yield
    net.blocks[1].processor.__self__.scale = 0.5
    yield
    net.blocks[3].processor = net.blocks[2].processor
    yield


@case()
def one_closure_over_another_value_in_each_block():
    def over(scale):
        processor = Processor(scale)
        return lambda block, y: processor(block, y) + scale

    yield processed(over(0.5), over(0.5), over(0.25))
    for _ in range(4):
        yield
