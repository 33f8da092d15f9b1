"""One thing found at two places, of which one is given another; and what things say of themselves: names, which attributes
there are, what they hold that no attribute shows."""

import collections
import contextvars
import datetime
import enum
import functools
import inspect
import operator
import types
from decimal import Decimal
from typing import Any

import numpy
import torch
from torch import nn

from tests.contract.parts import INNER, Mlp, Net, case, reading, twins, values


class Two(Mlp):
    """Reads a first and a second thing, each in its own way."""

    def __init__(self, first: Any, second: Any, use) -> None:
        super().__init__()
        self.first, self.second, self.use = first, second, use

    def middle(self, y):
        return y.relu() * self.use(self.first) + self.use(self.second)


def parted(one: Any, other: Any, use):
    """Calls of blocks that have one thing twice, until one of the two is another thing."""
    net = twins(lambda i: Two(one, one, use))
    yield net
    yield
    net.blocks[0].second = other
    yield
    yield
    net.blocks[1].first = other
    yield


def unlike(one: Any, other: Any, use):
    """Calls of two blocks: one has one thing twice, the other two things."""
    yield Net(Two(one, one, use), Two(one, other, use))
    for _ in range(4):
        yield


def returning(number: float):
    return lambda: number


@case()
def tuple_twice():
    yield from parted((), (0.5,), lambda held: 1.0 + sum(held))


@case()
def tuple_in_two_blocks():
    yield from unlike((1.5, 2.0), (3.0, 2.0), operator.itemgetter(0))


@case()
def closure_twice():
    yield from parted(returning(1.5), returning(3.0), lambda held: held())


@case()
def closure_in_two_blocks():
    yield from unlike(returning(1.5), returning(3.0), lambda held: held())


@case()
def partial_twice():
    yield from parted(
        functools.partial(operator.mul, 1.5), functools.partial(operator.mul, 3.0), lambda held: held(2.0)
    )


@case()
def array_twice():
    yield from parted(numpy.array([1.5]), numpy.array([3.0]), lambda held: float(held[0]))


@case()
def context_variable_twice():
    one, other = (contextvars.ContextVar(str(number), default=number) for number in (1.5, 3.0))
    yield from parted(one, other, lambda held: held.get())


@case()
def sizes_of_pooling():
    class Block(Mlp):
        def __init__(self):
            super().__init__()
            self.pool = nn.AvgPool1d((3,))

        def middle(self, y):
            return y.relu() * self.pool(y).mean()

    net = twins(lambda i: Block())
    yield net
    yield
    for block in net.blocks:
        block.pool.stride = (1,)
    yield
    yield
    yield


@case()
def hook_on_two_modules():
    def made(number: float):
        return lambda module, args, output: output * number

    class Block(Mlp):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.ReLU(), nn.Tanh()

        def middle(self, y):
            return self.other(self.one(y))

    net = twins(lambda i: Block())
    hook, handles = made(2.0), []
    for block in net.blocks:
        handles.append(block.other.register_forward_hook(hook))
        block.one.register_forward_hook(hook)
    yield net
    yield
    for block, handle in zip(net.blocks, handles, strict=True):
        handle.remove()
        block.other.register_forward_hook(made(3.0))
    yield
    yield
    yield


@case()
def function_that_is_one_of_two():
    acts = [lambda y: y.relu(), lambda y: y.relu()]

    class Block(Mlp):
        def __init__(self, index):
            super().__init__()
            self.acts, self.act = acts, acts[index]

        def middle(self, y):
            return self.act(y) * (1.0 if self.act is self.acts[0] else 3.0)

    net = twins(Block)
    yield net
    yield
    net.blocks[0].act = acts[1]
    yield
    yield
    yield


@case()
def name_of_a_function():
    def made(name: str):
        def act(y):
            return y.relu()

        act.__name__ = name
        return act

    class Block(Mlp):
        def __init__(self, index):
            super().__init__()
            self.act = made("ab"[index])

        def middle(self, y):
            return self.act(y) * (3.0 if self.act.__name__ == "b" else 1.0)

    net = twins(Block)
    yield net
    yield
    net.blocks[0].act = made("b")
    yield
    net.blocks[1].act.__name__ = "a"
    yield
    yield


@case()
def attribute_that_comes_later():
    held = types.SimpleNamespace(a=1.0)
    yield from reading(lambda block: getattr(held, "scale", 1.0), lambda number: setattr(held, "scale", 3.0))


@case()
def attribute_of_a_function_that_comes_later():
    def held():
        return 1.0

    yield from reading(lambda block: held() * getattr(held, "scale", 1.0), lambda number: setattr(held, "scale", 3.0))


@case()
def attribute_of_a_python_module_that_comes_later():
    held = types.ModuleType("made_for_a_case")
    yield from reading(lambda block: getattr(held, "scale", 1.0), lambda number: setattr(held, "scale", 3.0))


@case()
def attributes_as_a_dict():
    held = types.SimpleNamespace(inner=type("Plain", (), {})())
    held.inner.a = 1.5
    yield from reading(
        lambda block: sum(vars(held.inner).values()),
        lambda number: setattr(held.inner, "b", 1.0),
        lambda number: setattr(held.inner, "__dict__", {"a": 4.0}),
    )


@case()
def attribute_of_a_partial_in_one_of_two_blocks():
    def plain(y):
        return y.relu()

    one, other = functools.partial(plain), functools.partial(plain)
    other.scale = 3.0

    class Block(Mlp):
        def __init__(self, act):
            super().__init__()
            self.act = act

        def middle(self, y):
            return self.act(y) * getattr(self.act, "scale", 1.0)

    yield Net(Block(one), Block(other))
    for _ in range(4):
        yield


@case()
def private_attribute_of_a_member():
    class Kind(enum.Enum):
        A = 1

    Kind.A._scale = 1.5
    yield from reading(lambda block: Kind.A._scale, lambda number: setattr(Kind.A, "_scale", 3.0))


@case()
def arguments_of_an_error():
    held = ValueError(1.5)
    yield from reading(lambda block: held.args[0], lambda number: setattr(held, "args", (3.0,)))


@case()
def factory_of_a_dict():
    held = collections.defaultdict(returning(1.5))

    def read(block):
        return held.default_factory()

    yield from reading(read, lambda number: setattr(held, "default_factory", returning(3.0)))


@case()
def decimals_that_are_equal():
    yield from reading_of(Decimal("1"), Decimal("1.00"), lambda held: 1.0 - held.as_tuple().exponent)


@case()
def ranges_that_are_equal():
    yield from reading_of(range(0, 3, 2), range(0, 4, 2), lambda held: float(held.stop))


def reading_of(one: Any, other: Any, use):
    """Calls of two blocks that hold things that are equal and not alike, which they change for one another."""

    class Block(Mlp):
        def __init__(self, held):
            super().__init__()
            self.held = held

        def middle(self, y):
            return y.relu() * use(self.held)

    net = Net(Block(one), Block(other))
    yield net
    yield
    net.blocks[0].held, net.blocks[1].held = other, one
    yield
    yield
    yield


@case()
def object_in_a_slice():
    part = slice(type("Plain", (), {})(), None)
    part.start.s = 1.5
    yield from reading(lambda block: part.start.s, lambda number: setattr(part.start, "s", 2.5))


@case()
def zone_of_a_time():
    class Zone(datetime.tzinfo):
        hours = 1

        def utcoffset(self, when):
            return datetime.timedelta(hours=self.hours)

    zone = Zone()
    when = datetime.datetime(2020, 1, 1, tzinfo=zone)
    yield from reading(lambda block: when.utcoffset().total_seconds(), lambda number: setattr(zone, "hours", 2))


@case()
def default_that_is_counted():
    def counted(*, number=1.0):
        return number

    def read(block):
        counted.__kwdefaults__["number"] += 1.0
        return counted()

    yield from reading(read, lambda number: None)


@case()
def signature_that_changes():
    def one(a):
        return a

    def two(a, b):
        return a

    held = types.SimpleNamespace(f=one)
    yield from reading(
        lambda block: float(len(inspect.signature(held.f).parameters)), lambda number: setattr(held, "f", two)
    )


@case()
def attribute_read_past_its_object():
    held = type("Plain", (), {})()
    held.s = 1.5
    yield from reading(lambda block: object.__getattribute__(held, "s"), lambda number: setattr(held, "s", 2.5))


@case()
def attribute_of_a_tuple_that_is_counted():
    class Pair(tuple):
        pass

    held = Pair((1.0,))

    def read(block):
        held.calls = getattr(held, "calls", 0.0) + 1.0
        return held.calls

    yield from reading(read, lambda number: None)


@case()
def variable_that_is_filled_later():
    def made():
        def read(block):
            try:
                return later
            except NameError:
                return 1.0

        def fill(number):
            nonlocal later
            later = 3.0

        return read, fill
        later = None

    read, fill = made()
    yield from reading(read, fill)


class Doubling(torch.Tensor):
    """Its products are twice what they are."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 2.0 if func in (torch.Tensor.mul, torch.mul) else result


@case()
def tensor_of_a_class_of_its_own():
    held = {"scale": values(INNER, seed=3)}

    class Block(Mlp):
        def middle(self, y):
            return y.relu().mul(held["scale"])

    net = twins(lambda i: Block())
    yield net
    yield
    held["scale"] = held["scale"].as_subclass(Doubling)
    yield
    yield
    yield
