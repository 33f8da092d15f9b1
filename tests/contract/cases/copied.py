"""Objects that C reads where nothing observes it: copied, pickled, compared and shown; and what finds attributes otherwise."""

import copy
import operator
import pickle
import types
from collections import OrderedDict, deque

from tests.contract.parts import Mlp, Net, case, reading


class Config:
    def __init__(self, factor):
        self.factor, self.other = factor, 1


class Slotted:
    __slots__ = ("__dict__", "factor")

    def __init__(self, factor):
        self.factor, self.other = factor, 1


class Stateful(Config):
    def __getstate__(self):
        return {"factor": self.factor}


class Pairs(OrderedDict):
    """A dict with an attribute."""


class Reads(Mlp):
    """Reads an object of its own."""

    def __init__(self, held, read):
        super().__init__()
        self.held, self.read = held, read

    def middle(self, y):
        return y.relu() * self.read(self.held)


def changing(made, read):
    """Calls of blocks that read an object's factor, which changes."""
    copy.copy(made())  # from the first copy on, a class keeps what it has found out of itself
    net = Net(*(Reads(made(), read) for _ in range(2)))
    yield net
    yield
    for factor in (5.0, 7.0, 2.0):
        for block in net.blocks:
            block.held.factor = factor
        yield


@case()
def copy_of_an_object():
    yield from changing(lambda: Config(2.0), lambda held: copy.copy(held).factor)


@case()
def deep_copy_of_an_object():
    yield from changing(lambda: Config(2.0), lambda held: copy.deepcopy(held).factor)


@case()
def pickled_object():
    yield from changing(lambda: Config(2.0), lambda held: pickle.loads(pickle.dumps(held)).factor)


@case()
def pickled_object_with_slots():
    yield from changing(lambda: Slotted(2.0), lambda held: pickle.loads(pickle.dumps(held)).factor)


class Super(Config):
    def __getstate__(self):
        return dict(super().__getstate__(), other=3)


@case()
def copy_of_an_object_that_asks_its_base_what_it_holds():
    yield from changing(lambda: Super(2.0), lambda held: copy.copy(held).factor)


@case()
def copy_of_an_object_that_says_what_it_holds():
    yield from changing(lambda: Stateful(2.0), lambda held: copy.copy(held).factor)


@case()
def state_that_an_object_gives():
    yield from changing(lambda: Config(2.0), lambda held: held.__getstate__()["factor"])


@case()
def state_that_the_class_of_all_gives():
    yield from changing(lambda: Config(2.0), lambda held: object.__getstate__(held)["factor"])


@case()
def copy_of_a_dict_with_attributes():
    def made():
        held = Pairs(a=1.0)
        held.factor = 2.0
        return held

    yield from changing(made, lambda held: copy.copy(held).factor)


class Space(types.SimpleNamespace):
    pass


@case()
def namespace_of_a_class_of_its_own_compared():
    other = Space(factor=2.0)
    yield from changing(lambda: Space(factor=2.0), lambda held: 2.0 if held == other else 3.0)


@case()
def namespace_of_a_class_of_its_own_shown():
    yield from changing(lambda: Space(factor=2.0), lambda held: float(repr(held).split("=")[1][:-1]))


class Slot:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor


@case()
def slot_read_through_the_class():
    yield from changing(lambda: Slot(2.0), lambda held: Slot.factor.__get__(held))


@case()
def length_that_a_deque_can_have():
    def to(length):
        return lambda net: [setattr(block, "held", deque([1.0], length)) for block in net.blocks]

    yield from reading(lambda b: float(b.held.maxlen), to(3), to(1000), to(2), held=deque([1.0], 2))


class Times:
    def __init__(self, by):
        self.by = by

    def times(self, config, power=None):
        return self.by * config.factor ** (power.factor if power else 1.0)


def put(held, factor):
    return lambda net: setattr(held, "factor", factor)


@case()
def argument_of_a_method_caller():
    config = Config(2.0)
    caller = operator.methodcaller("times", config)
    yield from reading(lambda b: caller(Times(2.0)), put(config, 5.0), put(config, 7.0), put(config, 2.0))


@case()
def named_argument_of_a_method_caller():
    config, power = Config(2.0), Config(1.5)
    caller = operator.methodcaller("times", config, power=power)
    yield from reading(lambda b: caller(Times(2.0)), put(power, 0.5), put(power, 2.0), put(power, 1.5))


@case()
def getters_of_equal_blocks():
    def to(index):
        return lambda net: [setattr(block, "held", operator.itemgetter(index)) for block in net.blocks]

    row = {1: 2.0, 2: 5.0, "a": 7.0}
    yield from reading(lambda b: b.held(row), to(2), to("a"), to(1), held=operator.itemgetter(1))


class Scaled(property):
    factor = 1.0

    def __get__(self, holder, owner=None):
        return self if holder is None else super().__get__(holder, owner) * self.factor


class HasScale:
    def __init__(self):
        self.factor = 2.0

    @Scaled
    def scale(self):
        return self.factor


@case()
def property_of_a_class_of_its_own():
    scale = HasScale.scale
    yield from reading(lambda b: b.held.scale, put(scale, 5.0), put(scale, 3.0), put(scale, 1.0), held=HasScale())


@case()
def object_behind_a_property_of_a_class_of_its_own():
    yield from changing(HasScale, lambda held: held.scale)
