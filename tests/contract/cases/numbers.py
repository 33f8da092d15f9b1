"""Whole numbers in a call, which are other ones at the next, and what a block asks about them."""

import math

from tests.contract.parts import Mlp, call, case, leaf, twins


class Numbered(Mlp):
    """Computes a function of a number that it is given."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x, number=1):
        return x + self.down(self.up(self.norm(x)).relu() * self.read(number))


def given(read, *numbers):
    """Numbers for two blocks: the second one says that they vary, so the third program is for many."""
    yield twins(lambda index: Numbered(read)), (leaf(2, 5, 32), numbers[0])
    for number in numbers:
        yield call(leaf(2, 5, 32), number)


@case()
def number_that_is_there_or_none():
    yield from given(lambda n: 2.0 if n else 1.0, 5, 6, 7, 0, 8, 0)


@case()
def number_below_none():
    yield from given(lambda n: (3.0 if n < 0 else 1.0) + abs(n) + max(n, 3), 5, 6, 7, -1, 0, 1, -2, 9)


@case()
def number_that_others_are_divided_by():
    yield from given(lambda n: 12 // n if n and 12 % n > 3 else n or 4, 5, 6, 7, 0, 8, -5)


@case()
def part_of_a_number():
    yield from given(lambda n: int(n / 2) + (2.0 if math.ceil(n * 0.7) > 4 else 0.0), 5, 6, 7, 9, 12, 3)


@case()
def root_and_exponential_of_a_number():
    yield from given(
        lambda n: (2.0 if n**0.5 > 2.3 else 1.0) + (4.0 if math.exp(n / 2) > 20 else 0.0), 5, 6, 7, 9, 4, 2
    )


@case()
def part_of_a_length():
    class Half(Mlp):
        def forward(self, x):
            y = super().forward(x)
            return y if int(x.shape[1] * 0.75) > 4 else y * 2.0

    net = twins(lambda index: Half())
    yield net
    for length in (5, 6, 7, 9, 4, 3):
        yield call(leaf(2, length, 32))


@case()
def class_of_a_number():
    yield from given(
        lambda n: {int: 2.0, float: 3.0}.get(type(n), 5.0) + issubclass(type(n), int) + len(type(n).__name__),
        5,
        6,
        7,
        9,
    )


@case()
def class_of_a_number_asked_twice():
    def inner(n):
        return 2.0 if type(n) in (int, bool) else 5.0

    yield from given(lambda n: inner(n) + (3.0 if type(n) is int else 4.0), 5, 6, 7, 9)


@case()
def number_that_is_matched():
    def read(n):
        match n:
            case 1:
                return 1.5
            case int():
                return 3.0
        return 5.0

    yield from given(read, 5, 6, 7, 1, 9)


@case()
def number_rounded_to_tens():
    yield from given(lambda n: float(round(n, -1)), 5, 6, 14, 25, 88)
