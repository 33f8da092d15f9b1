"""Numbers in memory that can be written to, or that lie elsewhere: records and objects in numpy's arrays, pointers of C."""

import ctypes

import numpy

from tests.contract.parts import case, reading


def record(factor):
    return numpy.array([(factor, 3)], dtype=[("factor", "f8"), ("n", "i4")])[0]


@case()
def record_of_an_array():
    held = record(2.0)

    def put(factor):
        return lambda net: held.__setitem__("factor", factor)

    yield from reading(lambda b: float(b.held["factor"]), put(5.0), put(-0.0), put(0.0), held=held)


@case()
def record_that_a_block_writes():
    held = record(2.0)

    def write(block):
        held["n"] = 7
        return 2.0

    def check(net):
        assert held["n"] == 7
        held["n"] = 0

    yield from reading(write, check, check, check, held=held)


@case()
def records_that_a_block_writes():
    held = numpy.zeros(3, dtype=[("factor", "f8"), ("n", "i4")])

    def write(block):
        held["n"][1] += 1
        return float(held["n"][1])

    yield from reading(write, *[lambda net: None] * 3, held=held)


@case()
def shape_of_an_array_that_a_block_sets():
    held = numpy.zeros(6)

    def write(block):
        held.shape = (3, 2)
        return 2.0

    def check(net):
        assert held.shape == (3, 2)
        held.shape = (6,)

    yield from reading(write, check, check, check, held=held)


class Number(numpy.float32):
    pass


@case()
def attribute_of_a_number_of_numpy():
    held = Number(2.0)
    held.extra = 2.0

    def put(factor):
        return lambda net: setattr(held, "extra", factor)

    yield from reading(lambda b: b.held.extra, put(5.0), put(3.0), put(2.0), held=held)


class Config:
    def __init__(self, factor):
        self.factor = factor


@case()
def object_in_an_array():
    config = Config(2.0)
    held = numpy.array([config, None], dtype=object)

    def put(factor):
        return lambda net: setattr(config, "factor", factor)

    yield from reading(lambda b: b.held[0].factor, put(5.0), put(3.0), put(2.0), held=held)


NUMBER = ctypes.c_double(2.0)
POINTER = ctypes.pointer(NUMBER)


def number(value):
    return lambda net: setattr(NUMBER, "value", value)


@case()
def pointer_of_c():
    yield from reading(lambda b: POINTER.contents.value, number(5.0), number(3.0), number(2.0))


class Pair(ctypes.Structure):
    _fields_ = (("factor", ctypes.c_double), ("other", ctypes.POINTER(ctypes.c_double)))


@case()
def pointer_in_a_structure_of_c():
    held = Pair(2.0, POINTER)
    yield from reading(lambda b: b.held.other.contents.value, number(5.0), number(3.0), number(2.0), held=held)


class Row(ctypes.Structure):
    _fields_ = (("factor", ctypes.c_double), ("row", ctypes.c_double * 3))


@case()
def structure_of_c():
    held = Row(2.0)

    def put(value):
        return lambda net: held.row.__setitem__(1, value)

    yield from reading(lambda b: b.held.factor + b.held.row[1], put(5.0), put(3.0), put(2.0), held=held)
