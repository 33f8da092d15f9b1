"""Names that code does not write out: looked up in Python modules, in lists of names, among a module's own parts. And how
inputs lie in memory."""

import contextlib
import math
import types

import torch
from torch import nn
from torch.nn import functional

from tests.contract.parts import HIDDEN, INNER, Mlp, Net, call, case, linear, reading, values


def net_of(after, setup=lambda block: None):
    """Twins that end with what a function makes of their result."""

    class Block(Mlp):
        def __init__(self, index=0):
            super().__init__(index)
            setup(self)

        def after(self, z):
            return after(self, z)

    return Net(*(Block(index) for index in range(2)))


def changing(net, *changes):
    """Four calls, with a change of every block before the second, the third and the fourth."""
    yield net
    yield
    for change in (*changes, *[lambda block: None] * (3 - len(changes))):
        for block in net.blocks:
            change(block)
        yield


# -- Python modules ----------------------------------------------------------------------------------------------------


def settings(kind=types.ModuleType, name="settings_of_somebody"):
    made = kind(name)
    made.SCALE = 1.5
    return made


def by_module(made, read):
    def change(value):
        return lambda block: setattr(made, "SCALE", value)

    yield from changing(net_of(lambda block, z: z * read(made)), change(2.0), change(2.0), change(1.5))


@case()
def a_module_s_name_that_is_looked_up():
    yield from by_module(settings(), lambda made: getattr(made, "SCALE"))  # noqa: B009


@case()
def a_module_s_dict():
    yield from by_module(settings(), lambda made: vars(made)["SCALE"])


@case()
def a_module_s_names():
    made = settings()

    def read(block, z):
        for name in dir(made):
            if name.startswith("SCALE"):
                z = z * getattr(made, name)
        return z

    yield from changing(
        net_of(read), lambda block: setattr(made, "SCALE_TOO", 2.0), lambda block: vars(made).pop("SCALE", None)
    )


@case()
def a_module_of_a_class_of_its_own():
    class Settings(types.ModuleType):
        FACTOR = 2.0

        @property
        def both(self):
            return self.FACTOR * self.SCALE

    yield from by_module(settings(Settings), lambda made: made.SCALE * made.both)


@case()
def a_module_called_like_one_of_python_s():
    def read(made):
        held = made
        return getattr(held, "SCALE")  # noqa: B009

    yield from by_module(settings(name="profile.settings"), read)


@case()
def a_function_of_a_library_that_is_looked_up():
    names = {"name": "sqrt"}
    yield from changing(
        net_of(lambda block, z: z * getattr(math, names["name"])(3.0)), lambda block: names.update(name="exp")
    )


RELU, SOFTMAX = functional.relu, functional.softmax


@case(shared=((functional, "relu"),))
def a_function_of_torch_that_is_looked_up():
    def put(function):
        return lambda block: setattr(functional, "relu", function)

    net = net_of(lambda block, z: getattr(functional, "relu")(z) + z)  # noqa: B009
    try:
        yield from changing(net, put(lambda y, **other: RELU(y) * 3), put(lambda y, **other: RELU(y) * 2), put(RELU))
    finally:
        functional.relu = RELU


@case(shared=((functional, "softmax"),))
def a_function_that_torch_s_own_calls():
    def put(function):
        return lambda block: setattr(functional, "softmax", function)

    def setup(block):
        block.attention = nn.MultiheadAttention(HIDDEN, 4, batch_first=True, dtype=torch.float64)

    net = net_of(lambda block, z: z + block.attention(z, z, z, need_weights=True)[0], setup)
    try:
        yield from changing(net, put(lambda y, dim: SOFTMAX(y * 2, dim)), put(SOFTMAX))
    finally:
        functional.softmax = SOFTMAX


# -- parts of modules --------------------------------------------------------------------------------------------------


@case()
def a_buffer_that_comes_later():
    def read(block, z):
        gain = getattr(block, "gain", None)
        z = z if gain is None else z * gain
        return z * 2 if hasattr(block.up, "gain") else z

    def change(block):
        block.register_buffer("gain", torch.full((HIDDEN,), 3.0, dtype=torch.float64))

    yield from changing(net_of(read), change, lambda block: block.up.register_buffer("gain", torch.ones(1)))


def multiplied_by_buffers(block, z):
    for buffer in block.buffers():
        z = z * buffer * buffer.dim()
    return z


@case()
def a_buffer_that_was_none_among_all():
    def setup(block):
        block.register_buffer("gain", None)
        block.register_buffer("other", torch.ones(HIDDEN, dtype=torch.float64))

    def change(block):
        block.gain = torch.full((HIDDEN,), 3.0, dtype=torch.float64)

    yield from changing(net_of(multiplied_by_buffers, setup), change, lambda block: setattr(block, "gain", None))


@case()
def a_buffer_of_other_sizes_among_all():
    def setup(block):
        block.register_buffer("gain", torch.ones(HIDDEN, dtype=torch.float64))

    def change(block):
        block.gain = torch.full((1, HIDDEN), 2.0, dtype=torch.float64)

    yield from changing(net_of(multiplied_by_buffers, setup), change)


@case()
def modules_in_another_order():
    def setup(block):
        block.last = nn.Sequential(nn.Tanh(), nn.Softplus())

    def change(block):
        first = block.last._modules.pop("0")
        block.last._modules["0"] = first

    yield from changing(net_of(lambda block, z: block.last(z), setup), change)


@case()
def parameters_in_another_order():
    def setup(block):
        block.first = nn.Parameter(values(HIDDEN, seed=1))
        block.second = nn.Parameter(values(HIDDEN, seed=2))

    def read(block, z):
        for parameter in block.parameters(recurse=False):
            z = torch.tanh(z * parameter)
        return z

    def change(block):
        first = block.first
        del block.first
        block.first = first

    yield from changing(net_of(read, setup), change)


@case()
def attributes_by_a_list_of_all_names():
    def setup(block):
        block.gain_first = 2.0

    def read(block, z):
        return z * sum(getattr(block, name) for name in dir(block) if name.startswith("gain_"))

    yield from changing(
        net_of(read, setup),
        lambda block: setattr(block, "gain_second", 3.0),
        lambda block: delattr(block, "gain_first"),
    )


# -- how inputs lie in memory ------------------------------------------------------------------------------------------

PLAIN = values(2, 6, HIDDEN, seed=3)
TURNED = PLAIN.transpose(1, 2).contiguous().transpose(1, 2)  # equal numbers in another order
GAPS = torch.stack([PLAIN, PLAIN], dim=-1)[..., 0]
EXPANDED = PLAIN[:, :1].expand(2, 6, HIDDEN)


class Lying(nn.Module):
    """Gives a result, and what `read` makes of its input."""

    def __init__(self, read):
        super().__init__()
        self.up, self.down, self.read = linear(HIDDEN, INNER), linear(INNER, HIDDEN), read

    def forward(self, x):
        found = self.read(x)
        return self.down(torch.relu(self.up(x))), found


def lying(read):
    net = Lying(read)
    yield net

    def run(given):
        x = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype)
        x = given if 0 in given.stride() else x.copy_(given)
        result, found = net(x)
        if isinstance(found, torch.Tensor) and 0 not in given.stride():
            with torch.no_grad():
                found.add_(1.0)
        return result + x.sum() + (found.sum() if isinstance(found, torch.Tensor) else found)

    for given in (PLAIN, TURNED, GAPS, EXPANDED, PLAIN):
        yield call(given, run=run, backward=False)


@case()
def a_copy_unless_it_lies_in_order():
    yield from lying(lambda x: x.contiguous())


@case()
def a_shape_unless_it_lies_otherwise():
    yield from lying(lambda x: x.reshape(-1, HIDDEN))


@case()
def flat_unless_it_lies_otherwise():
    yield from lying(lambda x: torch.flatten(x, 1))


@case()
def a_view_or_what_takes_its_place():
    def read(x):
        try:
            return x.view(-1, HIDDEN) * 1.0
        except RuntimeError:
            return x.reshape(-1, HIDDEN) * 3.0

    yield from lying(read)


@case()
def the_order_of_dims_in_memory():
    yield from lying(lambda x: float(x.dim_order() == (0, 1, 2)))


@case()
def a_copy_that_is_written():
    def read(x):
        with contextlib.suppress(RuntimeError):  # an expanded tensor cannot be written
            x.contiguous().mul_(2.0)
        return 0.0

    yield from lying(read)


class Named:
    factor = 2.0


@case()
def factor_in_what_a_class_shows():
    names = vars(Named)

    def set(value):
        return lambda net: setattr(Named, "factor", value)

    yield from reading(lambda b: names["factor"], set(3.0), set(2.0))


@case()
def order_in_what_a_dict_shows():
    held = {"b": 3.0, "a": 2.0}
    shown = types.MappingProxyType(held)

    def turn(net):
        held["b"] = held.pop("b")

    yield from reading(lambda b: next(iter(shown.values())), turn, turn, lambda net: held.pop("a"))


@case()
def factor_that_is_written_behind_what_is_shown():
    held = {"n": 2.0}
    shown = types.MappingProxyType(held)

    def read(b):
        held["n"] += 1.0
        return shown["n"]

    yield from reading(read)
