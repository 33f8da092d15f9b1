"""Objects in a call: what a block asks of them, which is something else at the next call."""

import copy
import enum
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from tests.contract.parts import HIDDEN, Mlp, call, case, leaf, twins, values


class Held:
    def __init__(self, **held):
        self.__dict__.update(held)


class Asks(Mlp):
    """Computes a function of what it is given."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x, *given):
        return x + self.down(self.up(self.norm(x)).relu() * self.read(*given))


def asked(read, *given):
    """Two blocks are given the same, then the next; an example of its own was looked at before."""
    yield twins(lambda index: Asks(read)), (leaf(2, 5, 32), copy.deepcopy(given[0]))
    for each in given:
        yield call(leaf(2, 5, 32), each)


class Sized(Held):
    def __len__(self):
        return len(self.kept)


class Switched(Held):
    def __bool__(self):
        return self.on


@case()
def object_that_is_empty():
    yield from asked(lambda a: 2.0 if a else 1.0, *(Sized(kept=kept) for kept in ([], [1], [], [1, 2], [])))


@case()
def object_that_says_no():
    yield from asked(lambda a: 2.0 if not a else 1.0, *(Switched(on=on) for on in (True, False, True, False)))


@case()
def attribute_of_what_is_given_that_comes_and_goes():
    def read(a):
        try:
            found = a.other
        except AttributeError:
            found = 5.0
        return found + getattr(a, "number", 1.0) + (7.0 if hasattr(a, "third") else 0.0)

    yield from asked(read, Held(), Held(number=3.0), Held(other=1.0), Held(third=0), Held(number=2.0, third=1), Held())


@case()
def kind_of_a_number_in_an_object():
    def read(a):
        return (2.0 if isinstance(a.number, float) else 3.0) + math.copysign(1.0, a.number)

    yield from asked(read, *(Held(number=number) for number in (1, 1.0, True, 0.0, -0.0, 0, 1)))


@case()
def kind_of_a_part_of_an_object():
    yield from asked(
        lambda a: 2.0 if isinstance(a.part, Sized) else 1.0, *(Held(part=p(kept=[])) for p in (Held, Sized) * 2)
    )


@case()
def looks_of_a_tensor_in_an_object():
    def read(a):
        return a.kept.dim() + float(a.kept.shape[0]) + (0.5 if a.kept.dtype == torch.float32 else 0.0)

    kept = values(3), values(3, 2), values(3).float(), values(4), values(2, 3, 4), values(3)
    yield from asked(read, *(Held(kept=each) for each in kept))


@case()
def parts_of_an_object_one_by_one():
    yield from asked(lambda a: sum(a.kept), *(Held(kept=kept) for kept in ([1.0], [1.0, 2.0], [1.0], [3.0, 1.0, 1.0])))


class Steps(Held):
    def step(self):
        self.number += 1
        return self.number


class Slotted:
    __slots__ = ("number",)

    def __init__(self):
        self.number = 0.0

    def step(self):
        self.number += 1
        return self.number


class Keeps(Held):
    def step(self):
        self.keep(self.kept)
        return float(len(self.kept))


@case()
def object_that_counts():
    yield from asked(lambda a: a.step(), *[Steps(number=1.0)] * 3, Steps(number=5), Steps(number=7))


@case()
def objects_that_count_where_nothing_sees_it():
    yield from asked(lambda a: a.step(), *[Slotted()] * 4)


def filled(held, keep):
    """Objects that put something into what they keep, each time they are asked."""
    yield from asked(lambda a: a.step(), *[Keeps(kept=held, keep=keep)] * 4)


@case()
def object_that_fills_a_deque():
    yield from filled(deque(), lambda kept: kept.append(1))


@case()
def object_that_fills_bytes():
    yield from filled(bytearray(), lambda kept: kept.append(1))


@case()
def object_that_fills_a_dict():
    yield from filled({}, lambda kept: kept.setdefault(len(kept)))


@case()
def object_that_is_written_to():
    def read(a):
        a.seen.append(1.0)
        return float(len(a.seen))

    yield from asked(read, *(Held(seen=[]) for _ in range(4)))


@dataclass
class Pair:
    number: float = 1.0
    other: Any = None


@case()
def objects_that_are_equal():
    net = twins(lambda index: Asks(lambda a, b: 2.0 if a == b else 1.0))
    yield net, (leaf(2, 5, 32), Pair(), Pair())
    for number in (1.0, 2.0, 1.0, 3.0):
        yield call(leaf(2, 5, 32), Pair(), Pair(number))


@case()
def object_as_text_and_copied():
    yield from asked(lambda a: copy.deepcopy(a).number + len(repr(a)), *(Pair(n) for n in (1.0, 2.0, 1.25, 4.0)))


@case()
def memory_that_is_the_input():
    """Attention to itself, where the memory that is given is the input itself."""

    class Attends(Mlp):
        def forward(self, x, memory=None):
            y = super().forward(x)
            return y if memory is None or memory is x else y * memory.mean()

    net = twins(lambda index: Attends())
    x, other = leaf(2, 5, 32), leaf(2, 5, 32, seed=4)
    yield net, (x, values(2, 5, 32))
    for given in ((x, x), (x, other), (x,), (other, other), (x, other), (x, x)):
        yield call(*given)


@case()
def two_that_are_given_and_are_one():
    net = twins(lambda index: Asks(lambda a, b: (a * 2.0 if a is b else a + b).sum()))
    a, b = values(32), values(32, seed=4)
    yield net, (leaf(2, 5, 32), a, b)
    for given in ((a, b), (a, a), (b, b), (b, a), (a, a)):
        yield call(leaf(2, 5, 32), *given)


@case()
def zeros_of_complex_numbers():
    yield from asked(lambda a: 2.0 + math.copysign(1.0, a.imag), *(complex(0, part) for part in (0.0, -0.0) * 2))


class Unit(enum.Enum):
    SMALL = 1
    LARGE = 2


class Named(str):
    pass


@case()
def constants_that_have_attributes():
    def factor(a):
        return getattr(a, "factor", 1.0)

    first, second = Named("a"), Named("a")
    first.factor, second.factor, Unit.SMALL.factor = 2.0, 3.0, 4.0
    yield twins(lambda index: Asks(factor)), (leaf(2, 5, 32), first)
    for given in (first, second, first, Unit.SMALL, Unit.LARGE):
        yield call(leaf(2, 5, 32), given)
    Unit.SMALL.factor, Unit.LARGE.factor = 5.0, 6.0
    yield call(leaf(2, 5, 32), Unit.SMALL)
    yield call(leaf(2, 5, 32), Unit.LARGE)


class Other(Held):
    pass


@case()
def class_of_what_is_given():
    yield from asked(
        lambda held: (2.0 if type(held) is Other else 1.0) + len(type(held).__name__) + 4.0 * callable(held),
        Held(n=1.5),
        Other(n=1.5),
        Held(n=1.5),
        Other(n=3.0),
    )


class Remembers(Mlp):
    """Compares what it is given by what it is."""

    def __init__(self):
        super().__init__()
        self.kept = torch.ones(2, 5, HIDDEN, dtype=torch.float64)

    def forward(self, x, other=None):
        same = other is x or other is self.kept
        return x + self.down(self.up(self.norm(x)).relu() * (1.0 if same else 3.0))


class RemembersAtTimes(Remembers):
    """The same, where a condition says which is compared."""

    def forward(self, x, other=None):
        same = (other if self.training else self.norm) is self.kept
        return x + self.down(self.up(self.norm(x)).relu() * (1.0 if same else 3.0))


class RemembersInside(Remembers):
    """The same, in a function of its own."""

    def forward(self, x, other=None):
        def is_kept(own):
            return other is own.kept

        return x + self.down(self.up(self.norm(x)).relu() * (1.0 if is_kept(self) else 3.0))


def given_what_is_kept(kind):
    net = twins(lambda index: kind())
    yield net, (leaf(2, 5, HIDDEN), leaf(2, 5, HIDDEN))
    for kept in (False, True, False, True):
        yield call(leaf(2, 5, HIDDEN), net.blocks[1].kept if kept else leaf(2, 5, HIDDEN))


@case()
def input_that_is_something_of_the_block():
    yield from given_what_is_kept(Remembers)


@case()
def input_that_is_at_times_something_of_the_block():
    yield from given_what_is_kept(RemembersAtTimes)


@case()
def input_that_a_function_compares():
    yield from given_what_is_kept(RemembersInside)


@case()
def parts_of_what_is_given_that_are_one():
    def are_one(held):
        return held.a is held.b

    one, other = values(3), values(3, seed=4)
    pairs = [(one, one), (one, other), (other, other), (other, one)]
    yield from asked(lambda held: 2.0 if are_one(held) else 1.0, *(Held(a=a, b=b) for a, b in pairs))
