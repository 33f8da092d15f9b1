"""What is read of a class itself, and not of its objects."""

import contextvars
import itertools
import types

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.contract.parts import Mlp, case, reading, twins


def replaced(first, second, use):
    class Block(Mlp):
        thing = first

        def middle(self, y):
            return use(type(self), y)

    yield twins(Block)
    yield
    Block.thing = second
    for _ in range(3):
        yield


@case()
def function_of_torchs_in_a_class():
    yield from replaced(torch.relu, torch.tanh, lambda kind, y: kind.thing(y))


@case()
def module_in_a_class():
    yield from replaced(nn.ReLU(), nn.Tanh(), lambda kind, y: kind.thing(y))


@case()
def class_in_a_class():
    held = [types.new_class("Held", exec_body=lambda space, n=n: space.update(n=n)) for n in (1.5, 3.0)]
    yield from replaced(*held, lambda kind, y: y * kind.thing.n)


@case()
def variable_of_the_context_in_a_class():
    held = [contextvars.ContextVar("held", default=n) for n in (1.5, 3.0)]
    yield from replaced(*held, lambda kind, y: y * kind.thing.get())


@case()
def iterator_in_a_class():
    yield from replaced(itertools.count(1), itertools.count(5), lambda kind, y: y * next(kind.thing))


class Made:
    def __new__(cls, memo=[]):  # noqa: B006
        memo.append(1)
        made = super().__new__(cls)
        made.size = len(memo)
        return made


@case()
def default_of_what_makes_an_object():
    Made.__new__.__defaults__[0].clear()
    yield from reading(lambda block: Made().size)


@case()
def set_of_data():
    data = TensorDataset(torch.ones(2, dtype=torch.float64))
    change = lambda net: setattr(data, "tensors", (torch.full((2,), 3.0, dtype=torch.float64),))  # noqa: E731
    yield from reading(lambda block: data[0][0], change)
