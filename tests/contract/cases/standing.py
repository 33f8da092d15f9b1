"""What stands for numbers, places among blocks and tensors while a unit is traced, asked what it is in less usual ways."""

import builtins
import dataclasses
import fractions
import functools
import json
import numbers
import pprint
import reprlib

import torch

from tests.contract.cases.numbers import given
from tests.contract.parts import HIDDEN, Mlp, call, case, leaf, twins

IS = isinstance


@case()
def number_that_another_name_asks_about():
    yield from given(lambda n: n if IS(n, int) else 10, 2, 3, 4, 5)


@case()
def number_that_a_default_asks_about():
    def read(n, isinstance=isinstance):
        return n if isinstance(n, int) else 10

    yield from given(read, 2, 3, 4, 5)


@case()
def class_of_a_number_by_a_default():
    yield from given(lambda n, kind=type: n if kind(n) is int else 10, 2, 3, 4, 5)


@case()
def class_that_a_number_has():
    yield from given(lambda n: {int: 3.0}.get(n.__class__, 10.0) + n, 2, 3, 4, 5)


@case()
def class_that_a_number_has_by_its_name():
    yield from given(lambda n: {int: 3.0}.get(getattr(n, "__class__"), 10.0) + n, 2, 3, 4, 5)  # noqa: B009


@case()
def number_as_json():
    yield from given(lambda n: float(len(json.dumps({"n": n}, default=str))), 2, 3, 4, 5)


@case()
def number_that_the_module_of_builtins_is_asked_about():
    yield from given(lambda n: n if builtins.isinstance(n, int) else 10, 2, 3, 4, 5)


@case()
def number_that_what_every_module_has_is_asked_about():
    def read(n):
        has = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
        return n if has["isinstance"](n, int) else 10

    yield from given(read, 2, 3, 4, 5)


@case()
def number_that_is_handed_on_with_the_question():
    yield from given(
        lambda n: n if functools.partial(isinstance, n)(int) and all(map(isinstance, [n], [int])) else 10, 2, 3, 4, 5
    )


@case()
def number_that_code_made_of_text_asks_about():
    def read(n):
        made = {}
        exec("def ask(n):\n    return n if isinstance(n, int) and not callable(n) else 10", made)
        return made["ask"](n) + eval("round(n, 1) if isinstance(n, int) else 10", {"n": n})

    yield from given(read, 2, 3, 4, 5)


@case()
def number_that_a_fraction_is_made_of():
    yield from given(lambda n: float(fractions.Fraction(n, 3)), 2, 3, 4, 5)


@case()
def number_that_a_class_of_others_is_asked_about():
    yield from given(lambda n: n if isinstance(n, numbers.Integral) and issubclass(type(n), int) else 10, 2, 3, 4, 5)


@case()
def number_that_the_class_of_its_class_is_asked_about():
    yield from given(lambda n: n if type.__instancecheck__(int, n) else 10, 2, 3, 4, 5)


@case()
def number_as_a_library_writes_it():
    yield from given(lambda n: len(pprint.pformat([n])) + len(reprlib.repr(n)), 2, 30, 400, 5)


class Placed(Mlp):
    """Computes a function of its place among others."""

    def __init__(self, index, read):
        super().__init__()
        self.index, self.read = index, read

    def after(self, z):
        return z * self.read(self.index)


def placed(read):
    yield twins(lambda index: Placed(index, read))
    for _ in range(4):
        yield


@case()
def place_that_another_name_asks_about():
    yield from placed(lambda index: 2.0 if IS(index, int) else 5.0)


@case()
def place_as_json():
    yield from placed(lambda index: float(len(json.dumps({"index": index, "more": 100**index}, default=str))))


@dataclasses.dataclass
class Info:
    index: int


@case()
def place_that_is_copied():
    yield from placed(lambda index: dataclasses.asdict(Info(index))["index"] + 1.0)


@case()
def place_that_is_asked_for_its_parts():
    yield from placed(lambda index: index.numerator + index.bit_length() + round(index, 1) + (index ^ 1) + 1.0)


class Looks(Mlp):
    """Computes a function of its input and itself."""

    def __init__(self, look):
        super().__init__()
        self.look = look

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu() * self.look(self, x))


def looked(look, *inputs, change=lambda net: None):
    net = twins(lambda index: Looks(look), 1)
    yield net
    for number, made in enumerate(inputs or (leaf,) * 4):
        if number == 2:
            change(net)
        yield call(made(2, 5, HIDDEN))


def tagged(*shape):
    made = leaf(*shape)
    made.tag = 3.0
    return made


def view(*shape):
    return leaf(*shape)[:]


@case()
def name_of_the_class_of_an_input():
    yield from looked(lambda own, x: 2.0 if x.__class__.__name__ == "Tensor" else 3.0)


@case()
def description_of_an_input():
    yield from looked(lambda own, x: 2.0 if (x.__doc__, x.__module__) == (torch.Tensor.__doc__, "torch") else 3.0)


@case()
def attributes_of_an_input_in_one():
    yield from looked(lambda own, x: vars(x).get("tag", 1.0) + x.__dict__.get("tag", 1.0), leaf, tagged, leaf, tagged)


@case()
def attributes_of_a_parameter_in_one():
    yield from looked(
        lambda own, x: vars(own.up.weight).get("tag", 2.0),
        change=_tag,
    )


def _tag(net):
    for part in net.modules():
        if isinstance(part, Looks):
            part.up.weight.tag = 5.0


@case()
def input_that_is_a_view():
    yield from looked(lambda own, x: 2.0 if x._is_view() else 5.0, leaf, view, leaf, view)


@case()
def order_of_the_dims_of_an_input():
    yield from looked(
        lambda own, x: 2.0 if x.dim_order() == (0, 1, 2) else 5.0,
        leaf,
        lambda *s: leaf(s[1], s[0], s[2]).transpose(0, 1),
        leaf,
        view,
    )


@case()
def attributes_of_a_block_in_one():
    yield from looked(
        lambda own, x: float(len(own.__class__.__name__) + ("look" in vars(own)) + len(own.norm.__class__.__name__))
    )
