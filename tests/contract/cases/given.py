"""What torch's own functions are given: functions that they call, objects of a model's classes that they read."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.contract.parts import Mlp, case, twins

SCALE = 1.5


class Given(Mlp):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def middle(self, y):
        return self.function(y.relu())


def calls_of(function, *changes):
    net = twins(lambda index: Given(function))
    yield net
    yield
    for change in changes:
        change()
        yield
    for _ in range(3 - len(changes)):
        yield


def scaled(factor):
    global SCALE
    SCALE = factor


@case()
def distance_that_reads_a_global():
    scaled(1.5)

    def distance(one, other):
        return (one - other).abs().mean(-1) * SCALE

    yield from calls_of(
        lambda y: y * F.triplet_margin_with_distance_loss(y, y * 0.5, y * 2, distance_function=distance),
        lambda: scaled(3.0),
    )


@case()
def distance_that_counts():
    counted = 0

    def distance(one, other):
        nonlocal counted
        counted += 1
        return (one - other).abs().mean(-1) * counted

    loss = nn.TripletMarginWithDistanceLoss(distance_function=distance)
    yield from calls_of(lambda y: y * loss(y, y * 0.5, y * 2))


class Sequence:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        if index:
            raise IndexError
        return SCALE


@case()
def tensor_of_an_object():
    scaled(1.5)
    held = Sequence()
    yield from calls_of(lambda y: y * torch.tensor(held, dtype=torch.float64), lambda: scaled(3.0))


class Answers:
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return args[0] * SCALE if function in (torch.mul, torch.Tensor.mul) else NotImplemented


@case()
def object_that_answers_for_torch():
    scaled(1.5)
    held = Answers()
    yield from calls_of(lambda y: torch.mul(y, held), lambda: scaled(3.0))


class OwnNormal(torch.distributions.Normal):
    pass


class OwnTransform(torch.distributions.AffineTransform):
    pass


@case()
def distribution_of_an_own_class():
    held = OwnNormal(torch.tensor(0.5, dtype=torch.float64), 1.0)
    change = lambda: setattr(held, "loc", torch.tensor(3.0, dtype=torch.float64))  # noqa: E731
    yield from calls_of(lambda y: y * held.mean, change)


@case()
def transform_of_an_own_class():
    held = OwnTransform(0.5, 2.0)
    yield from calls_of(lambda y: held(y), lambda: setattr(held, "scale", 3.0), lambda: setattr(held, "loc", 1.0))
