"""Functions, closures, globals, classes and control flow that change between calls."""

import contextvars
import functools
import random
import threading
import time

import torch
from torch import nn

from tests.contract.parts import HIDDEN, INNER, Mlp, call, case, leaf, twins, values


class Applies(Mlp):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def middle(self, y):
        return self.function(y)


def scaled(y, factor=2.0):
    return y.relu() * factor


@case()
def partial_function():
    net = twins(lambda index: Applies(functools.partial(scaled, factor=3.0)))
    yield net
    yield
    net.blocks[0].function = functools.partial(scaled, factor=5.0)
    yield
    net.blocks[1].function.keywords["factor"] = 7.0
    yield
    net.blocks[1].function = scaled
    yield


@case()
def default_of_a_function():
    net = twins(lambda index: Applies(scaled))
    yield net
    yield
    scaled.__defaults__ = (3.0,)
    yield
    scaled.__defaults__ = (4.0,)
    yield
    yield


@case()
def code_of_a_function():
    def other(y, factor=2.0):
        return y.tanh() * factor

    yield twins(lambda index: Applies(scaled))
    yield
    scaled.__code__ = other.__code__
    yield
    yield
    yield


def noted(y):
    return y.relu() * noted.factor


noted.factor = 2.0


@case()
def attribute_of_a_function():
    yield twins(lambda index: Applies(noted))
    yield
    noted.factor = 3.0
    yield
    yield
    yield


class Remembers(Mlp):
    """A list as a default is one for all calls."""

    def middle(self, y, memo=[]):  # noqa: B006
        memo.append(1.0)
        return y.relu() * len(memo)


@case()
def default_as_a_memory():
    yield twins(lambda index: Remembers())
    for _ in range(4):
        yield


def factory(factor):
    def apply(y):
        return y.relu() * factor

    return apply


@case()
def closures_of_a_factory():
    net = twins(lambda index: Applies(factory(2.0 + index)))
    yield net
    yield
    net.blocks[0].function = factory(5.0)
    yield
    net.blocks[1].function.__closure__[0].cell_contents = 7.0
    yield
    yield


@case()
def counter_of_a_closure():
    calls = 0

    def counting(y):
        nonlocal calls
        calls += 1
        return y.relu() * calls

    yield twins(lambda index: Applies(counting))
    for _ in range(4):
        yield


COUNTER = 0


def counting_globally(y):
    global COUNTER
    COUNTER += 1
    return y.relu() * COUNTER


@case()
def counter_of_the_module():
    global COUNTER
    yield twins(lambda index: Applies(counting_globally))
    yield
    yield
    COUNTER = 0
    yield
    yield


CACHE = {}


def cached(y):
    key = tuple(y.shape)
    if key not in CACHE:
        CACHE[key] = values(INNER, seed=len(CACHE))
    return y.relu() * CACHE[key]


@case()
def cache_of_the_module():
    yield twins(lambda index: Applies(cached))
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(3, 5, HIDDEN))
    CACHE.clear()
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(2, 5, HIDDEN))


LEVEL = [1.0]


@functools.cache
def level_of(number):
    return number * LEVEL[0]


@case()
def cached_number_that_depends_on_state():
    yield twins(lambda index: Applies(lambda y: y.relu() * level_of(2.0)))
    yield
    LEVEL[0] = 3.0
    yield
    level_of.cache_clear()
    yield
    yield


class Registers(Mlp):
    known = {"factor": 2.0}  # noqa: RUF012

    def middle(self, y):
        return y.relu() * self.known["factor"]


@case()
def dict_of_a_class():
    yield twins(lambda index: Registers())
    yield
    Registers.known["factor"] = 3.0
    yield
    Registers.known = {"factor": 4.0}
    yield
    yield


class Meta(type):
    factor = 2.0


class HasMeta:
    pass


class OfMeta(metaclass=Meta):
    pass


@case()
def attribute_of_a_metaclass():
    yield twins(lambda index: Applies(lambda y: y.relu() * OfMeta.factor))
    yield
    Meta.factor = 3.0
    yield
    OfMeta.factor = 4.0
    yield
    yield


class CountsInClass(Mlp):
    made = 0

    def middle(self, y):
        type(self).made += 1
        return y.relu() * type(self).made


@case()
def counter_of_a_class():
    yield twins(lambda index: CountsInClass())
    for _ in range(4):
        yield


class Inherits(Registers):
    pass


@case()
def attribute_of_a_parent_class():
    yield twins(lambda index: Inherits())
    yield
    Registers.known = {"factor": 5.0}
    yield
    Inherits.known = {"factor": 6.0}
    yield
    del Inherits.known
    yield


@case()
def method_of_the_class_replaced():
    yield twins(lambda index: Registers())
    yield
    Registers.middle = lambda self, y: y.tanh()
    yield
    yield
    Registers.middle = lambda self, y: y.tanh() * 2
    yield


@case()
def forward_of_the_class_replaced():
    yield twins(lambda index: Registers())
    yield
    first = Registers.forward
    Registers.forward = lambda self, x: first(self, x) * 2
    yield
    yield
    Registers.forward = first
    yield


@case(shared=((nn.ReLU, "forward"),))
def forward_of_a_class_of_torch_replaced():
    net = twins(lambda index: Applies(nn.ReLU()))
    yield net
    yield
    nn.ReLU.forward = lambda self, y: y.tanh()
    yield
    yield
    yield


class Other(Mlp):
    def middle(self, y):
        return y.tanh() * 3


@case()
def class_of_a_block_replaced():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].__class__ = Other
    yield
    net.blocks[1].__class__ = Other
    yield
    net.blocks[0].__class__ = Mlp
    yield


class Louder(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * 3


@case()
def class_of_an_inner_module_replaced():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].norm.__class__ = Louder
    yield
    yield
    net.blocks[0].norm.__class__ = nn.LayerNorm
    yield


@case()
def method_of_one_block_replaced():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].middle = lambda y: y.tanh()
    yield
    yield
    del net.blocks[0].middle
    yield


@case()
def method_of_one_block_replaced_before():
    net = twins(lambda index: Mlp())
    net.blocks[1].middle = lambda y: y.tanh()
    yield net
    yield
    yield
    del net.blocks[1].middle
    yield
    yield


CONTEXT = contextvars.ContextVar("CONTEXT", default=2.0)


@case()
def context_variable():
    yield twins(lambda index: Applies(lambda y: y.relu() * CONTEXT.get()))
    yield
    token = CONTEXT.set(3.0)
    yield
    yield
    CONTEXT.reset(token)
    yield


LOCAL = threading.local()


@case()
def state_of_a_thread():
    LOCAL.factor = 2.0
    yield twins(lambda index: Applies(lambda y: y.relu() * LOCAL.factor))
    yield
    LOCAL.factor = 3.0
    yield
    yield
    yield


@case()
def random_number_in_a_block():
    yield twins(lambda index: Applies(lambda y: y.relu() * random.random()))
    for _ in range(4):
        yield


CLOCK = [1.0]


@case(shared=((time, "monotonic"),))
def clock_in_a_block():
    first = time.monotonic
    yield twins(lambda index: Applies(lambda y: y.relu() * (2.0 if time.monotonic() > first() + 1000 else 1.0)))
    yield
    time.monotonic = lambda: first() + 10_000
    yield
    time.monotonic = first
    yield
    yield


class Tries(Mlp):
    def __init__(self):
        super().__init__()
        self.known = {}

    def middle(self, y):
        try:
            return y.relu() * self.known["factor"]
        except KeyError:
            return y.tanh()


@case()
def failure_that_is_caught():
    net = twins(lambda index: Tries())
    yield net
    yield
    net.blocks[0].known["factor"] = 3.0
    yield
    net.blocks[1].known = {"factor": 2.0}
    yield
    net.blocks[0].known.clear()
    yield


class Optional(Mlp):
    def middle(self, y):
        factor = getattr(self, "factor", None)
        return y.tanh() if factor is None else y.relu() * factor


@case()
def attribute_that_comes_and_goes():
    net = twins(lambda index: Optional())
    yield net
    yield
    net.blocks[0].factor = 2.0
    yield
    setattr(net.blocks[1], "fac" + "tor", 3.0)
    yield
    del net.blocks[0].factor
    vars(net.blocks[1])["factor"] = 4.0
    yield
    net.blocks[0].__dict__.update(factor=5.0)
    yield


class SetsByName(Mlp):
    def __init__(self):
        super().__init__()
        self.a = self.b = 1.0

    def middle(self, y):
        y = y.relu() * self.a + self.b
        setattr(self, "a" if self.a < self.b + 2 else "b", self.a + 1)
        vars(self)["b"] += 0.5
        self.__dict__.update(c=self.a * self.b)
        return y * self.c


@case()
def attributes_written_by_name():
    yield twins(lambda index: SetsByName())
    for _ in range(5):
        yield


class Collects(Mlp):
    def __init__(self):
        super().__init__()
        self.seen, self.sizes, self.last = [], {}, None

    def middle(self, y):
        self.seen.append(y.detach().sum())
        self.sizes[tuple(y.shape)] = self.sizes.get(tuple(y.shape), 0) + 1
        self.last = y.detach()
        return y.relu() * len(self.seen)


@case()
def tensors_collected_by_a_block():
    yield twins(lambda index: Collects())
    for _ in range(4):
        yield


class KeepsLast(Mlp):
    """What one call leaves, the next one reads."""

    def __init__(self):
        super().__init__()
        self.last = None

    def after(self, z):
        z = z if self.last is None else z + self.last
        self.last = z.detach().mean((0, 1))
        return z


@case()
def last_result_read_by_the_next_call():
    net = twins(lambda index: KeepsLast())
    yield net
    yield
    yield
    net.blocks[0].last = None
    yield
    yield


class PassesOn(Mlp):
    """A block leaves a tensor for the next block."""

    def __init__(self, board, index):
        super().__init__()
        self.board, self.index = board, index

    def middle(self, y):
        y = y.relu()
        if self.index:
            y = y + self.board["left"]
        self.board["left"] = y
        return y


@case()
def tensor_left_for_the_next_block():
    board = {}
    yield twins(lambda index: PassesOn(board, index), 3)
    for _ in range(4):
        yield


class ReadsTraining(Mlp):
    def middle(self, y):
        return y.relu() * (2.0 if self.training else 3.0)


@case()
def mode_read_by_the_block():
    net = twins(lambda index: ReadsTraining())
    yield net
    yield
    net.eval()
    yield
    net.blocks[0].train()
    yield
    net.blocks[0].training = False
    net.blocks[1].training = True
    yield


@case()
def flag_of_a_sibling():
    """A block reads what another block holds."""
    net = twins(lambda index: ReadsTraining(), 3)
    for block in net.blocks:
        block.__dict__["first"] = net.blocks[0]
    ReadsTraining.middle = lambda self, y: y.relu() * getattr(self.first, "factor", 2.0)
    yield net
    yield
    net.blocks[0].factor = 5.0
    yield
    net.blocks[0].factor = 6.0
    yield
    del net.blocks[0].factor
    yield


class ReadsGradients(Mlp):
    def middle(self, y):
        return y.relu() * (2.0 if torch.is_grad_enabled() else 3.0) * (2.0 if y.requires_grad else 1.0)


@case()
def whether_gradients_are_wanted():
    net = twins(lambda index: ReadsGradients())
    yield net
    yield
    yield call(under=torch.no_grad, backward=False)
    yield call(under=torch.inference_mode, backward=False)
    yield
    net.requires_grad_(False)
    yield call(values(2, 5, HIDDEN), backward=False)


@case()
def a_block_that_runs_whole_in_inference_mode():
    net = twins(Mlp)
    yield net
    net.blocks[0].seen = seen = []
    net.blocks[0].norm.register_forward_hook(lambda module, args, result: seen.append(float(result.detach().sum())))
    yield call(under=torch.inference_mode, backward=False)
    yield
    yield call(values(2, 5, 32), run=lambda x: net(x) * seen[-1])
    yield call(under=torch.inference_mode, backward=False)


@case()
def a_model_that_was_made_in_inference_mode():
    with torch.inference_mode():
        net = twins(Mlp)
    yield net, (values(2, 5, 32),)
    yield call(values(2, 5, 32), backward=False, under=torch.inference_mode)
    yield call(values(3, 5, 32), backward=False, under=torch.no_grad)
    yield call(values(2, 5, 32), backward=False, under=torch.inference_mode)
    net.blocks[0].norm.register_forward_hook(lambda module, args, result: result * 2)
    yield call(values(3, 5, 32), backward=False, under=torch.inference_mode)
