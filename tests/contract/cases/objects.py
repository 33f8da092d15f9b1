"""Numbers in objects of every kind, which change between calls."""

import enum
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace

import numpy
import torch
from torch import nn

from tests.contract.parts import INNER, Mlp, Net, call, case, leaf, twins, values


class Holds(Mlp):
    """Computes a function of something it holds."""

    def __init__(self, held, read):
        super().__init__()
        self.held, self.read = held, read

    def middle(self, y):
        return y.relu() * self.read(self.held)


def holding(held, read, *changes):
    """Two blocks hold the same; it changes between calls."""
    net = twins(lambda index: Holds(held, read))
    yield net
    yield
    for change in changes:
        new = change(held)
        if new is not None:
            net.blocks[0].held = new
        yield
    for _ in range(max(2, 3 - len(changes))):
        yield


@dataclass
class Config:
    factor: float = 2.0
    steps: list = field(default_factory=lambda: [1.0, 2.0])
    inner: object = None


@case()
def dataclass_config():
    def change(config):
        config.factor = 3.0

    def grow(config):
        config.steps.append(0.5)

    yield from holding(Config(), lambda c: c.factor + sum(c.steps), change, grow)


@dataclass(frozen=True)
class Frozen:
    factor: float = 2.0


@case()
def frozen_dataclass_replaced():
    def force(config):
        object.__setattr__(config, "factor", 5.0)

    yield from holding(Frozen(), lambda c: c.factor, lambda c: Frozen(3.0), force)


class Slotted:
    __slots__ = ("factor", "inner")

    def __init__(self, factor):
        self.factor = factor


@case()
def object_with_slots():
    def change(held):
        held.factor = 3.0

    def add(held):
        held.inner = 1.0

    yield from holding(Slotted(2.0), lambda s: s.factor + (4.0 if hasattr(s, "inner") else 0.0), change, add)


Point = namedtuple("Point", "x y")


@case()
def named_tuple_replaced():
    yield from holding(
        Point(1.0, 2.0), lambda p: p.x * p.y, lambda p: Point(3.0, 2.0), lambda p: (5.0, 6.0) and Point(1.0, 7.0)
    )


@case()
def nested_objects():
    config = SimpleNamespace(model=SimpleNamespace(mlp={"scale": [1.0, 2.0]}))

    def deep(c):
        c.model.mlp["scale"][1] = 7.0

    def middle(c):
        c.model = SimpleNamespace(mlp={"scale": [3.0, 3.0]})

    yield from holding(config, lambda c: c.model.mlp["scale"][1], deep, middle)


@case()
def nested_dicts():
    def deep(d):
        d["a"]["b"]["c"] = 3.0

    def gone(d):
        del d["a"]["b"]["c"]

    yield from holding({"a": {"b": {"c": 2.0}}}, lambda d: d["a"]["b"].get("c", 9.0), deep, gone)


@case()
def default_dict_that_reading_fills():
    def change(d):
        d["factor"] = 3.0

    yield from holding(defaultdict(lambda: 2.0), lambda d: d["factor"] + len(d), change)


@case()
def order_of_a_dict():
    def turn(d):
        d.move_to_end("a")

    yield from holding(OrderedDict(a=1.0, b=2.0), lambda d: next(iter(d.values())), turn)


@case()
def keys_sorted():
    def add(d):
        d["0"] = 5.0

    yield from holding({"b": 1.0, "a": 2.0}, lambda d: d[sorted(d)[0]], add)


@case()
def key_made_of_text():
    def change(d):
        d["factor_3"] = 4.0

    def change_number(d):
        d["number"] = 1

    held = {"number": 3, "factor_3": 2.0, "factor_1": 0.5}
    yield from holding(held, lambda d: d[f"factor_{d['number']}"], change, change_number)


@case()
def membership_in_a_set():
    yield from holding({"a"}, lambda s: 2.0 if "b" in s else 1.0, lambda s: s.add("b"), lambda s: s.clear())


@case()
def length_of_a_list():
    yield from holding([1, 2], len, lambda li: li.append(3), lambda li: li.pop(0) and None, lambda li: li.clear())


@case()
def list_sorted_in_place():
    yield from holding(
        [1.0, 3.0, 2.0], lambda li: li[1], lambda li: li.sort(), lambda li: li.reverse(), lambda li: li.pop() and None
    )


@case()
def deque_rotated():
    yield from holding(deque([1.0, 2.0, 3.0]), lambda d: d[0], lambda d: d.rotate(1), lambda d: d.popleft() and None)


@case()
def view_of_a_dict():
    base = {"factor": 2.0}

    def change(view):
        base["factor"] = 3.0

    yield from holding(MappingProxyType(base), lambda view: view["factor"], change)


@case()
def array_of_numpy():
    def change(a):
        a[1] = 5.0

    def all_of_it(a):
        a *= 2

    yield from holding(numpy.array([1.0, 2.0]), lambda a: float(a[1]), change, all_of_it)


@case()
def array_of_numpy_made_a_tensor():
    def change(a):
        a += 1

    yield from holding(numpy.arange(float(INNER)), lambda a: torch.from_numpy(a), change, change)


class Mode(enum.Enum):
    SOFT = 1
    HARD = 2


@case()
def enumeration():
    def harder(held):
        held["mode"] = Mode.HARD

    yield from holding({"mode": Mode.SOFT}, lambda h: 2.0 if h["mode"] is Mode.SOFT else 3.0, harder)


@case()
def enumeration_replaced():
    yield from holding(Mode.SOFT, lambda m: m.value, lambda m: Mode.HARD, lambda m: Mode.SOFT)


class Target:
    factor = 2.0


@case()
def weak_reference():
    first = Target()
    weak = {"target": weakref.ref(first)}

    def change(held):
        first.factor = 3.0

    def other(held):
        held["kept"] = Target()
        held["kept"].factor = 5.0
        held["target"] = weakref.ref(held["kept"])

    yield from holding(weak, lambda w: w["target"]().factor, change, other)


@case()
def aliases_later():
    """Two lists that are equal, and become one."""

    def one(held):
        held["b"] = held["a"]

    def apart(held):
        held["b"] = list(held["a"])

    yield from holding({"a": [1.0], "b": [1.0]}, lambda h: 2.0 if h["a"] is h["b"] else 3.0, one, apart)


@case()
def kind_of_an_attribute():
    yield from holding(2.0, lambda h: h if isinstance(h, float) else h[0] * 10, lambda h: [2.0], lambda h: (3.0,))


@case()
def type_of_a_number():
    """1, 1.0 and True are equal."""
    yield from holding(
        1, lambda h: {int: 2.0, float: 3.0, bool: 4.0}[type(h)], lambda h: 1.0, lambda h: True, lambda h: 1
    )


@case()
def not_a_number_and_signed_zero():
    import math

    yield from holding(0.0, lambda h: 2.0 + math.copysign(1.0, h), lambda h: -0.0, lambda h: 0.0)


class Descriptor:
    """Gives another number each time it has been set."""

    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, owner, kind=None):
        return self if owner is None else getattr(owner, self.name, 2.0) * self.factor

    def __set__(self, owner, value):
        setattr(owner, self.name, value)

    factor = 1.0


class HasDescriptor(Mlp):
    scale = Descriptor()

    def middle(self, y):
        return y.relu() * self.scale


@case()
def descriptor():
    net = twins(lambda index: HasDescriptor())
    yield net
    yield
    net.blocks[0].scale = 3.0
    yield
    Descriptor.factor = 2.0
    yield
    yield


class CountsReads:
    """A property that counts how often it is read."""

    def __init__(self):
        self.reads = 0

    @property
    def factor(self):
        self.reads += 1
        return float(self.reads)


@case()
def property_that_counts():
    yield from holding(CountsReads(), lambda h: h.factor)


class Answers:
    def __init__(self):
        self.known = {"factor": 2.0}

    def __getattr__(self, name):
        if name.startswith("__") or name == "known":
            raise AttributeError(name)
        return self.known[name]


@case()
def object_that_answers():
    def change(held):
        held.known["factor"] = 3.0

    def hide(held):
        held.factor = 5.0

    yield from holding(Answers(), lambda h: h.factor, change, hide)


class Watches:
    def __init__(self):
        self.factor = 2.0

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        return value * 10 if name == "factor" else value


@case()
def object_that_watches():
    def change(held):
        held.factor = 3.0

    yield from holding(Watches(), lambda h: h.factor, change)


class Callable:
    def __init__(self):
        self.factor = 2.0

    def __call__(self, y):
        return y * self.factor

    def __mul__(self, other):
        return self.factor * other

    def __bool__(self):
        return self.factor > 2

    def __len__(self):
        return int(self.factor)

    def __float__(self):
        return self.factor


@case()
def operators_of_an_object():
    def change(held):
        held.factor = 3.0

    yield from holding(Callable(), lambda h: h(2.0) + (h * 3) + (5.0 if h else 1.0) + len(h) + float(h), change)


@case()
def iterator_as_an_attribute():
    yield from holding(iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]), next)


def numbers():
    number = 1.0
    while True:
        number += 1
        yield number


@case()
def generator_as_an_attribute():
    yield from holding(numbers(), next)


@case()
def two_models_share_a_config():
    config = SimpleNamespace(factor=2.0)
    first = twins(lambda index: Holds(config, lambda c: c.factor))
    other = twins(lambda index: Holds(config, lambda c: c.factor))
    yield first
    yield

    def both(x):
        config.factor += 1
        return first(x) + other(x)

    yield call(leaf(2, 5, 32), run=both)
    other.blocks[0].held.factor = 7.0
    yield
    yield call(leaf(2, 5, 32), run=both)


class HoldsTensors(Mlp):
    def __init__(self, index):
        super().__init__()
        self.factors = {"a": values(INNER, seed=index), "b": [values(1, seed=5)]}

    def middle(self, y):
        return y.relu() * self.factors["a"] + self.factors["b"][0]


@case()
def tensors_in_containers():
    net = twins(HoldsTensors)
    yield net
    yield
    net.blocks[0].factors["a"] = values(INNER, seed=8)
    yield
    net.blocks[1].factors["b"].insert(0, values(INNER, seed=9))
    yield
    net.blocks[0].factors = net.blocks[1].factors
    yield


@case()
def tensor_that_wants_a_gradient_in_a_list():
    net = twins(HoldsTensors)
    net.blocks[0].factors["a"].requires_grad_()
    yield net
    yield
    net.blocks[1].factors["a"].requires_grad_()
    yield
    net.blocks[0].factors["a"].requires_grad_(False)
    yield
    yield


@case()
def number_of_a_tensor():
    def change(t):
        t.fill_(3.0)

    yield from holding(
        torch.tensor(2.0, dtype=torch.float64), lambda t: t.item(), change, lambda t: torch.tensor(4.0).double()
    )


@case()
def parameter_in_a_list():
    shared = [nn.Parameter(values(INNER))]

    def change(held):
        with torch.no_grad():
            held[0].mul_(2)

    def other(held):
        held[0] = nn.Parameter(values(INNER, seed=3))

    yield from holding(shared, lambda h: h[0], change, other)


class Makes(OrderedDict):
    """A table that makes an object of an entry whenever it is asked, as tables of activations do."""

    def __getitem__(self, name):
        return super().__getitem__(name)()


@case()
def table_that_makes_its_entries():
    def other(table):
        dict.__setitem__(table, "act", nn.Tanh)

    yield from holding(Makes(act=nn.ReLU), lambda table: table["act"](torch.ones(1).double()), other)


@dataclass
class Seen:
    """What a block has seen, for whoever calls it."""

    first: torch.Tensor
    scale: float = 1.0
    others: list = field(default_factory=list)

    def total(self):
        return self.first.square().mean() * self.scale + sum(other.sum() for other in self.others)


class Showing(Mlp):
    def __init__(self, index=0, seen=None):
        super().__init__(index)
        self.seen, self.scale = seen, 2.0

    def forward(self, x):
        y = self.up(self.norm(x)).relu()
        if self.seen is not None:  # one that it keeps
            self.seen.first = y[..., :3]
            return x + self.down(y), self.seen
        return x + self.down(y), Seen(y, self.scale, [y[0], x.mean()])


class Looking(Net):
    def forward(self, x):
        totals = []
        for block in self.blocks:
            x, seen = block(x)
            totals.append(seen.total())
            seen.scale += 1  # of an instance that is nobody else's
            seen.others.clear()
        return x * sum(totals)


def set_scale(net, scale):
    for block in net.blocks:
        block.scale = scale


@case()
def dataclass_that_a_block_gives():
    net = Looking(Showing(), Showing())
    yield net
    yield
    yield
    set_scale(net, 3.0)
    yield
    yield


@case()
def dataclass_that_a_block_keeps_and_gives():
    seen = Seen(torch.zeros(1, dtype=torch.float64))
    yield Looking(Showing(seen=seen), Showing())
    for _ in range(4):
        yield


@dataclass
class SeenByName(dict):
    """A dict that has fields, too."""

    first: torch.Tensor


@case()
def dataclass_that_is_a_dict():
    class Naming(Mlp):
        def forward(self, x):
            y = self.up(self.norm(x)).relu()
            seen = SeenByName(y.mean())
            seen["more"] = y.square().mean()
            return x + self.down(y), seen

    class Reading(Net):
        def forward(self, x):
            total = 0.0
            for block in self.blocks:
                x, seen = block(x)
                total = total + seen.first + seen["more"]
            return x * total

    yield Reading(Naming(), Naming())
    for _ in range(4):
        yield


@dataclass(frozen=True)
class FrozenSeen:
    first: torch.Tensor
    number: int = field(init=False, default=3)


@case()
def frozen_dataclass_that_a_block_gives():
    class Freezing(Mlp):
        def forward(self, x):
            y = self.up(self.norm(x)).relu()
            return x + self.down(y), [FrozenSeen(y.mean()), {"last": FrozenSeen(y.sum())}]

    class Reading(Net):
        def forward(self, x):
            total = 0.0
            for block in self.blocks:
                x, (one, others) = block(x)
                total = total + one.first * one.number + others["last"].first
            return x * total

    yield Reading(Freezing(), Freezing())
    for _ in range(4):
        yield
