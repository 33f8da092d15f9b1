"""Objects in a call, of which code asks what their class has: special methods, attributes of the class, who they are."""

import collections
import contextlib
import copy
import dataclasses
import functools
import json
import operator

from tests.contract.cases.given_objects import Asks, Held, asked
from tests.contract.parts import Mlp, call, case, leaf, twins


class Plain(Held):
    "ab"

    FACTOR = 2.0

    def times(self, y):
        return y * self.s


def plain(*numbers):
    return [Plain(s=number, flag=1) for number in numbers]


@case()
def attributes_of_what_is_given_in_one():
    yield from asked(lambda a: vars(a).get("s", 1.0) + a.__dict__["s"], *plain(2.0, 3.0, 2.0, 4.0))


@case()
def names_in_what_is_given():
    yield from asked(lambda a: 2.0 if "s" in dir(a) else 1.0, *plain(2.0, 3.0), Held(), Held(s=1))


@case()
def description_of_what_is_given():
    yield from asked(lambda a: float(len(a.__doc__) + len(a.__module__)), *plain(2.0, 3.0, 2.0, 3.0))


@case()
def special_methods_that_are_not_there():
    names = "__len__", "__iter__", "__float__", "__contains__", "__getitem__", "__call__", "__reversed__"
    yield from asked(lambda a: sum(hasattr(a, name) for name in names) + a.s, *plain(2.0, 3.0, 2.0, 4.0))


@case()
def attribute_of_what_is_given_that_is_deleted():
    def read(a):
        with contextlib.suppress(AttributeError):
            del a.flag
        return 2.0 if hasattr(a, "flag") else 3.0

    yield from asked(read, *plain(2.0, 3.0, 2.0, 4.0))


SEEN = []


@dataclasses.dataclass(frozen=True)
class Frozen:
    s: float


@case()
def frozen_object_that_is_written_to():
    SEEN[:] = [Frozen(2.0), Frozen(2.0), Frozen(3.0), Frozen(2.0)]

    def read(a):
        object.__setattr__(a, "seen", 1)
        return a.s

    yield from asked(read, *SEEN)


class Row:
    def __init__(self, *held):
        self.held = held

    def __len__(self):
        return len(self.held)

    def __getitem__(self, index):
        return self.held[index]

    def __reversed__(self):
        return iter([10 * each for each in self.held])


@case()
def sequence_that_is_reversed():
    yield from asked(lambda a: sum(reversed(a)), Row(2.0, 3.0), Row(2.0, 4.0), Row(1.0), Row(5.0))


@case()
def sequence_that_is_matched():
    def read(a):
        match a:
            case [first, _]:
                return first
        return 1.0

    yield from asked(read, *(collections.deque(each) for each in ([2.0, 1.0], [3.0, 1.0], [4.0], [2.0, 1.0])))


@case()
def mapping_that_is_matched():
    def read(a):
        match a:
            case {"s": found}:
                return found
        return 1.0

    yield from asked(read, *(collections.UserDict(each) for each in ({"s": 2.0}, {"s": 3.0}, {"t": 3.0}, {"s": 2.0})))


class Counts(Held):
    def __mod__(self, other):
        return self.s % other

    def __next__(self):
        return self.s


def otherwise(function):
    def read(a):
        try:
            return function(a)
        except TypeError:
            return 7.0

    return read


def counts():
    return [Counts(s=1.0), Counts(s=2.0), Held(), Counts(s=1.0)]


@case()
def rest_of_what_is_given():
    yield from asked(otherwise(lambda a: a % 3), *counts())


@case()
def next_of_what_is_given():
    yield from asked(otherwise(next), *counts())


@case()
def negative_of_what_is_given():
    yield from asked(otherwise(lambda a: -a), *counts())


DEFAULT = Held(s=2.0)


@case()
def operator_that_compares_what_is_given():
    yield from asked(lambda a: 1.0 if operator.is_(a, DEFAULT) else 3.0, DEFAULT, Held(s=2.0), DEFAULT, Held(s=2.0))


@case()
def sentinel_that_an_object_gives():
    class Kept(Held):
        def get(self, name, otherwise):
            return getattr(self, name, otherwise)

    missing = object()
    yield from asked(
        lambda a: 1.0 if operator.is_(a.get("s", missing), missing) else 3.0, Kept(), Kept(s=2.0), Kept(), Kept(s=3.0)
    )


@case()
def list_in_an_object_as_json():
    text = lambda a: float(len(json.dumps(a.s, default=lambda other: None)))  # noqa: E731
    yield from asked(text, *(Held(s=each) for each in ([1, 2], [1, 2, 3], [1], [1, 2])))


@case()
def attribute_of_the_class_of_what_is_given():
    Plain.FACTOR = 2.0
    yield twins(lambda index: Given(lambda a: type(a).FACTOR + a.__class__.FACTOR)), (leaf(2, 5, 32), *plain(1.0))
    for factor in (2.0, 5.0, 2.0, 3.0):
        Plain.FACTOR = factor
        yield call(leaf(2, 5, 32), *plain(1.0))
    Plain.FACTOR = 2.0


@case()
def method_of_the_class_of_what_is_given():
    own = Plain.times
    yield twins(lambda index: Given(lambda a: type(a).times(a, 3.0))), (leaf(2, 5, 32), *plain(1.0))
    for method in (own, lambda self, y: y * self.s * 3, own, lambda self, y: y):
        Plain.times = method
        yield call(leaf(2, 5, 32), *plain(1.0))
    Plain.times = own


class Given(Mlp):
    """Computes a function of what it is given."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x, given):
        return x + self.down(self.up(self.norm(x)).relu() * self.read(given))


@dataclasses.dataclass(frozen=True)
class Activation:
    name: str
    factor: float = dataclasses.field(compare=False)

    def __call__(self, y):
        return y * self.factor


@case()
def functions_that_are_equal():
    yield from asked(lambda act: act(2.0), *(Activation("a", factor) for factor in (2.0, 3.0, 2.0, 4.0)))


class Counting:
    reads = 0

    @property
    def s(self):
        self.reads += 1
        return float(self.reads)


@case()
def property_of_what_is_given_that_counts():
    yield from asked(lambda a: a.s, Counting(), Counting(), *[Counting()] * 2)


class Point(collections.namedtuple("Point", "a b")):
    pass


def with_more(held, more):
    if more:
        held.more = more
    return held


@case()
def attribute_of_a_namedtuple():
    yield from asked(
        lambda p: p.a * getattr(p, "more", 1.0), *(with_more(Point(2.0, 3.0), more) for more in (0, 3.0, 0, 4.0))
    )


@case()
def attribute_of_an_ordered_dict():
    made = [with_more(collections.OrderedDict(a=2.0), more) for more in (0, 3.0, 0, 4.0)]
    yield from asked(lambda p: p["a"] * getattr(p, "more", 1.0), *made)


@case()
def numbers_in_an_ordered_dict():
    yield from asked(lambda p: p["a"] + p["b"], *(collections.OrderedDict(a=a, b=2.0) for a in (1.0, 2.0, 2.0, 5.0)))


@case()
def tensors_in_a_dict_with_a_default():
    yield from asked(lambda p: p["a"] * p["b"], *(collections.defaultdict(int, a=leaf(1), b=2.0) for _ in range(4)))


# -- classes that change between calls ---------------------------------------------------------------------------------


BEFORE = {"__name__": "Changing", "__bases__": (Plain,)}


def changing(read, **changes):
    """A class gets what it had not, and loses it again."""
    kind = type("Changing", (Plain,), {})
    given = kind(s=2.0, flag=1)
    yield twins(lambda index: Asks(read)), (leaf(2, 5, 32), copy.deepcopy(given))
    yield call(leaf(2, 5, 32), given)
    for name, held in changes.items():
        setattr(kind, name, held)
    yield call(leaf(2, 5, 32), given)
    yield call(leaf(2, 5, 32), kind(s=3.0, flag=1))
    for name in changes:
        if name in BEFORE:
            setattr(kind, name, BEFORE[name])
        else:
            delattr(kind, name)
    yield call(leaf(2, 5, 32), given)


class Sentinel(Plain):
    pass


@case()
def class_that_learns_to_be_false():
    yield from changing(lambda a: 2.0 if a else 3.0, __bool__=lambda self: False)


@case()
def class_that_learns_its_length():
    yield from changing(lambda a: 2.0 if hasattr(a, "__len__") else 3.0, __len__=lambda self: 1)


@case()
def class_that_learns_to_be_called():
    yield from changing(lambda a: 2.0 if callable(a) else 3.0, __call__=lambda self: 1)


@case()
def class_under_another_name():
    yield from changing(lambda a: float(len(type(a).__name__)), __name__="Other")


@case()
def class_with_other_bases():
    yield from changing(lambda a: 2.0 if isinstance(a, Sentinel) else 3.0, __bases__=(Sentinel,))


# -- what an item of a container is asked for --------------------------------------------------------------------------


def renamed(function):
    """As libraries rename an argument: a text names the class of the first one."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        name = f"{args[0].__class__.__name__}.{function.__name__}"
        if "old" in kwargs:
            kwargs["factor"] = kwargs.pop("old") * len(name)
        return function(*args, **kwargs)

    return wrapper


class Renamed(Asks):
    @renamed
    def forward(self, x, factor=2.0):
        return x + self.down(self.up(self.norm(x)).relu() * factor)


class RenamedOther(Renamed):
    pass


@case()
def argument_that_is_renamed():
    net = twins(lambda index: Renamed(None))
    yield net, (leaf(2, 5, 32),)
    yield call(leaf(2, 5, 32))
    yield call(leaf(2, 5, 32), old=3.0)
    net.blocks[1].__class__ = RenamedOther
    yield call(leaf(2, 5, 32), old=3.0)
    yield call(leaf(2, 5, 32), factor=3.0)
