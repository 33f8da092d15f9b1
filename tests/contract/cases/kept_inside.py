"""What objects keep where no attribute shows it: objects written in C, numbers with attributes, orders, closures, generators."""

import collections
import contextvars
import functools
import itertools
import operator
import re
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.contract.parts import HIDDEN, Mlp, Net, call, case, linear, reading, twins


def put(value: Callable[[], Any]):
    """A change: every block holds something new, all of them the same."""

    def change(net):
        new = value()
        for block in net.blocks:
            block.held = new

    return change


def two_kinds(held: Any, read: Callable[[Any], float]):
    """Calls of blocks of two classes, and of two of one, that all read one thing from their closures."""

    class One(Mlp):
        def middle(self, y):
            return y.relu() * read(held)

    class Other(Mlp):
        def middle(self, y):
            return y.tanh() * read(held)

    yield Net(One(), Other(), One())
    for _ in range(4):
        yield


@case()
def pattern_that_is_replaced():
    yield from reading(
        lambda b: float(len(b.held.findall("aabbb"))),
        put(lambda: re.compile("b")),
        put(lambda: re.compile("B", re.IGNORECASE)),
        put(lambda: re.compile("[ab]")),
        held=re.compile("a"),
    )


@case()
def getters_that_are_replaced():
    yield from reading(
        lambda b: b.held({"a": 1.0, "b": 5.0}),
        put(lambda: operator.itemgetter("b")),
        put(lambda: operator.itemgetter("a")),
        put(lambda: operator.methodcaller("get", "c", 3.0)),
        held=operator.itemgetter("a"),
    )


@case()
def rows_of_a_database():
    base = sqlite3.connect(":memory:")
    base.execute("create table numbers (number real)")

    def insert(number):
        return lambda net: base.execute("insert into numbers values (?)", (number,))

    insert(2.0)(None)
    yield from reading(
        lambda b: base.execute("select sum(number) from numbers").fetchone()[0], insert(1.0), insert(4.0), insert(3.0)
    )


class Number(float):
    """A number that has more to say."""

    unit = 1.0


@case()
def number_with_an_attribute():
    def number(unit):
        made = Number(2.0)
        made.unit = unit
        return made

    def later(net):
        net.blocks[0].held.unit = 7.0

    yield from reading(
        lambda b: b.held * b.held.unit, put(lambda: number(5.0)), later, put(lambda: Number(2.0)), held=number(3.0)
    )


def replaced(owner: Any, name: str, net: nn.Module, *args: Any):
    """Calls before, while and after a function of torch is another one, which the block's own code finds there."""
    real = getattr(owner, name)
    yield (net, args) if args else net
    yield call(*args) if args else None
    setattr(owner, name, lambda *given, **named: real(*given, **named) * 1.5)
    try:
        yield call(*args) if args else None
        yield call(*args) if args else None
    finally:
        setattr(owner, name, real)
    yield call(*args) if args else None


@case(processes=True)
def linear_of_torch_that_is_replaced():
    yield from replaced(F, "linear", twins(Mlp))


@case(processes=True)
def linear_of_torch_that_was_replaced_before():
    real = F.linear
    F.linear = lambda *given, **named: real(*given, **named) * 1.5
    try:
        yield twins(Mlp)
        for _ in range(3):
            yield
    finally:
        F.linear = real
    yield


class Words(nn.Module):
    """Ids in, what they mean to a few blocks out."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(400, HIDDEN, dtype=torch.float64)
        self.blocks, self.head = twins(Mlp).blocks, linear(HIDDEN, 400)

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@case(processes=True)
def embedding_of_torch_that_is_replaced():
    yield from replaced(F, "embedding", Words(), torch.arange(10).view(2, 5))


@case(processes=True)
def sum_of_torch_that_is_replaced():
    class Summed(Mlp):
        def middle(self, y):
            return torch.cat([torch.sigmoid(y), y], -1)[..., : y.shape[-1]] + torch.sum(y, -1, keepdim=True)

    yield from replaced(torch, "sum", twins(lambda index: Summed()))


@case(processes=True)
def join_of_torch_that_is_replaced():
    class Joined(Mlp):
        def middle(self, y):
            return torch.cat([torch.sigmoid(y), y], -1)[..., : y.shape[-1]]

    yield from replaced(torch, "cat", twins(lambda index: Joined()))


@case()
def count_in_a_closure_of_the_model():
    count = 0

    class Counting(Net):
        def forward(self, x):
            nonlocal count
            count += 1
            return super().forward(x) * count

    yield Counting(Mlp(), Mlp())
    for _ in range(4):
        yield


@case()
def list_among_the_defaults_of_the_model():
    class Remembering(Net):
        def forward(self, x, memo=[]):  # noqa: B006
            memo.append(1)
            return super().forward(x) * len(memo)

    yield Remembering(Mlp(), Mlp())
    for _ in range(4):
        yield


@case()
def iterator_of_two_kinds_of_blocks():
    yield from two_kinds(itertools.count(1), next)


@case()
def iterator_of_the_model_itself():
    numbers = itertools.cycle((1.0, 3.0, 2.0))

    class Stepping(Net):
        def forward(self, x):
            return super().forward(x) * next(numbers)

    yield Stepping(Mlp(), Mlp())
    for _ in range(4):
        yield


@case()
def generator_of_torch_that_numbers_are_drawn_from():
    yield from two_kinds(
        torch.Generator().manual_seed(3), lambda held: 1.0 + float(torch.rand((), generator=held, dtype=torch.float64))
    )


@case()
def seed_of_a_generator_of_torch():
    generator = torch.Generator().manual_seed(1)

    def seed(number):
        return lambda net: generator.manual_seed(number)

    yield from reading(lambda b: float(generator.initial_seed()), seed(5), seed(3), seed(1))


@case()
def engine_of_numbers_that_fill_a_space():
    yield from two_kinds(torch.quasirandom.SobolEngine(1), lambda held: 1.0 + held.draw(1).item())


@case()
def setting_of_a_scaler():
    def scale(number):
        def change(net):
            net.blocks[0].held._init_scale = number

        return change

    yield from reading(
        lambda b: b.held._init_scale,
        scale(4.0),
        scale(2.0),
        scale(5.0),
        held=torch.amp.GradScaler("cpu", init_scale=3.0),
    )


@case()
def order_that_is_moved():
    def first(held):
        held.move_to_end(next(iter(held)))
        return held[next(iter(held))]

    yield from two_kinds(collections.OrderedDict(a=1.0, b=2.0, c=3.0), first)


@case()
def variable_of_the_context_that_had_no_value():
    def count(held):
        held.set(held.get() + 1)
        return held.get()

    yield from two_kinds(contextvars.ContextVar("counter", default=1.0), count)


@case()
def attribute_of_a_thread_that_was_not_there():
    def count(held):
        held.number = getattr(held, "number", 0) + 1
        return held.number

    yield from two_kinds(threading.local(), count)


@case()
def list_that_a_memo_keeps():
    def longer(held):
        held().append(0)
        return float(len(held()))

    yield from two_kinds(functools.lru_cache(None)(lambda: [0]), longer)


class Made:
    """Says what it was told when it was made."""

    def __init__(self, number=1.0):
        self.number = number


@case()
def defaults_of_a_constructor():
    def default(number):
        return lambda net: setattr(Made.__init__, "__defaults__", (number,))

    default(1.0)(None)
    yield from reading(lambda b: Made().number, default(5.0), default(2.0), default(1.0))


@case()
def memory_that_is_looked_at():
    numbers = bytearray(8)
    view = memoryview(numbers)

    def write(number):
        return lambda net: view.__setitem__(0, number)

    yield from reading(lambda b: 1.0 + view[0], write(4), lambda net: numbers.__setitem__(0, 2), write(7))


@case()
def memory_that_is_counted_in():
    def count(held):
        held[0] += 1
        return float(held[0])

    yield from two_kinds(memoryview(bytearray(8)), count)


@case()
def tensor_as_text():
    yield from reading(lambda b: 0.1 * len(f"{torch.tensor(1 / 3)} {torch.tensor([2.0])!r}"))


@case()
def groups_that_the_input_says():
    class Modulating(nn.Module):
        """Each sample has kernels of its own, in one convolution of as many groups."""

        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(4, 4, 1, 1, dtype=torch.float64))
            self.up, self.down = (nn.Conv2d(*sizes, 1, dtype=torch.float64) for sizes in ((4, 8), (8, 4)))

        def forward(self, x):
            count = x.shape[0]
            y = F.conv2d(x.reshape(1, -1, *x.shape[2:]), self.kernel.repeat(count, 1, 1, 1), groups=count)
            return x + self.down(self.up(y.view_as(x)).relu())

    def images(count):
        return torch.randn(count, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(count))

    yield nn.Sequential(Modulating(), Modulating()), (images(2),)
    for count in (2, 3, 1, 2):
        yield call(images(count))
