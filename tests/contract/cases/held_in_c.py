"""Objects of Python's own library that keep their state in C, or behind methods: held by a block, changed between calls."""

import array
import collections
import ctypes
import decimal
import enum
import fractions
import hashlib
import io
import itertools
import mmap
import pathlib
import queue
import string
import struct
import threading
import weakref
import zlib

import torch

from tests.contract.parts import case, reading


@case()
def sum_of_what_was_hashed():
    digest = hashlib.md5(b"a")
    yield from reading(
        lambda b: 1.0 + digest.digest()[0] % 7, lambda net: digest.update(b"b"), lambda net: digest.update(b"c")
    )


@case()
def length_of_what_is_packed():
    packed = bytearray(b"abcd")
    yield from reading(
        lambda b: float(len(zlib.compress(bytes(packed)))),
        lambda net: packed.extend(range(64)),
        lambda net: packed.clear(),
    )


@case()
def sum_of_packed_numbers():
    packed, form = bytearray(struct.pack("3d", 1.0, 2.0, 3.0)), struct.Struct("3d")

    def put(place, value):
        return lambda net: form.pack_into(packed, 0, *[value if i == place else 1.0 for i in range(3)])

    yield from reading(lambda b: sum(form.unpack(packed)), put(0, 5.0), put(2, 7.0))


@case()
def place_in_a_stream():
    stream = io.BytesIO(b"123456789")
    yield from reading(lambda b: 1.0 + stream.tell(), lambda net: stream.seek(3), lambda net: stream.seek(1))


@case()
def bytes_of_a_stream():
    stream = io.BytesIO(b"1")
    yield from reading(
        lambda b: float(stream.getvalue()), lambda net: stream.write(b"2"), lambda net: stream.write(b"4")
    )


@case()
def next_of_a_round():
    turn = itertools.cycle([1.0, 2.0, 3.0])
    yield from reading(lambda b: next(turn))


@case()
def places_of_a_semaphore():
    places = threading.Semaphore(2)

    def read(b):
        if places.acquire(blocking=False):
            places.release()
            return 2.0
        return 3.0

    def take(net):
        places.acquire()
        places.acquire()

    yield from reading(read, take, lambda net: places.release())


@case()
def what_waits_in_a_queue():
    waiting = queue.Queue()
    yield from reading(lambda b: 1.0 + waiting.qsize(), lambda net: waiting.put(1), lambda net: waiting.get())


@case()
def what_waits_in_a_queue_of_c():
    waiting = queue.SimpleQueue()
    yield from reading(lambda b: 1.0 + waiting.qsize(), lambda net: waiting.put(1), lambda net: waiting.get())


@case()
def what_waits_in_order():
    waiting = queue.PriorityQueue()
    yield from reading(
        lambda b: 1.0 + (waiting.queue[0] if waiting.queue else 0),
        lambda net: waiting.put(3),
        lambda net: waiting.put(2),
    )


@case()
def memory_that_is_mapped():
    memory = mmap.mmap(-1, 8)

    def put(value):
        return lambda net: memory.__setitem__(0, value)

    yield from reading(lambda b: 1.0 + memory[0], put(3), put(5))


@case()
def chain_of_dicts():
    first, second = {}, {"factor": 2.0}
    chain = collections.ChainMap(first, second)
    yield from reading(
        lambda b: chain["factor"],
        lambda net: first.update(factor=3.0),
        lambda net: second.update(factor=4.0) or first.clear(),
    )


@case()
def list_of_a_users():
    held = collections.UserList([1.0])
    yield from reading(lambda b: held[-1], lambda net: held.append(3.0), lambda net: held.append(2.0))


@case()
def numbers_of_an_array():
    held = array.array("d", [1.0, 2.0])
    yield from reading(lambda b: sum(held), lambda net: held.append(3.0), lambda net: held.__setitem__(0, 5.0))


@case()
def numbers_of_a_window():
    held = bytearray([1, 2, 3, 4])
    window = memoryview(held)[1:3]
    yield from reading(
        lambda b: float(sum(window)), lambda net: held.__setitem__(1, 9), lambda net: held.__setitem__(2, 9)
    )


@case()
def numbers_of_a_structure():
    class Pair(ctypes.Structure):
        _fields_ = [("a", ctypes.c_double), ("b", ctypes.c_double)]

    pair = Pair(1.0, 2.0)
    yield from reading(lambda b: pair.a, lambda net: setattr(pair, "a", 3.0), lambda net: setattr(pair, "a", 4.0))


@case()
def numbers_behind_a_pointer():
    number = ctypes.c_double(1.0)
    pointer = ctypes.pointer(number)
    yield from reading(
        lambda b: pointer.contents.value,
        lambda net: setattr(number, "value", 3.0),
        lambda net: setattr(number, "value", 4.0),
    )


@case()
def what_dies_in_a_dict():
    class Thing:
        pass

    things, known = [Thing(), Thing()], weakref.WeakValueDictionary()
    known.update(enumerate(things))
    yield from reading(lambda b: 1.0 + len(known), lambda net: things.pop(), lambda net: things.pop())


@case()
def what_dies_in_a_set():
    class Thing:
        pass

    things = [Thing(), Thing()]
    known = weakref.WeakSet(things)
    yield from reading(lambda b: 1.0 + len(known), lambda net: things.pop(), lambda net: things.pop())


@case()
def precision_of_a_context():
    context = decimal.Context(prec=5)

    def set(digits):
        return lambda net: setattr(context, "prec", digits)

    yield from reading(lambda b: float(context.divide(decimal.Decimal(1), 3)), set(2), set(8))


@case()
def parts_of_a_fraction():
    held = fractions.Fraction(1, 3)
    yield from reading(
        lambda b: float(held), lambda net: setattr(held, "_numerator", 2), lambda net: setattr(held, "_numerator", 5)
    )


@case()
def flags_together():
    class Way(enum.Flag):
        A = 1
        B = 2

    held = [Way.A]
    yield from reading(
        lambda b: 2.0 if Way.B in held[0] else 3.0,
        lambda net: held.__setitem__(0, Way.A | Way.B),
        lambda net: held.__setitem__(0, Way.A),
    )


@case()
def words_of_a_template():
    template = string.Template("$a")
    values = {"a": "2"}
    yield from reading(
        lambda b: float(template.substitute(values)),
        lambda net: values.update(a="3"),
        lambda net: setattr(template, "template", "5"),
    )


@case()
def folder_that_is_there(tmp="/tmp"):
    path = pathlib.Path(tmp) / "autotp-a-folder-of-a-case"
    yield from reading(lambda b: 2.0 if path.parent.name == "tmp" else 3.0)


@case()
def method_of_a_list_in_c():
    held = [3.0, 1.0, 3.0]
    count = held.count
    yield from reading(lambda b: float(count(3.0)), lambda net: held.append(3.0), lambda net: held.clear())


@case()
def method_of_a_dict_in_c():
    held = {"factor": 2.0}
    get = held.get
    yield from reading(lambda b: get("factor", 9.0), lambda net: held.update(factor=3.0), lambda net: held.clear())


@case()
def generator_of_torch():
    generator = torch.Generator()
    yield from reading(
        lambda b: 1.0 + generator.initial_seed() % 7,
        lambda net: generator.manual_seed(3),
        lambda net: generator.manual_seed(5),
    )


@case()
def reversed_list():
    held = [1.0, 2.0]
    yield from reading(lambda b: next(reversed(held)), lambda net: held.append(3.0), lambda net: held.reverse())


@case()
def keys_of_a_dict_as_they_are_now():
    held = {1: 0.0}
    keys = held.keys()
    yield from reading(lambda b: float(max(keys)), lambda net: held.update({5: 0.0}), lambda net: held.pop(5))


@case()
def values_of_a_dict_as_they_are_now():
    held = {1: 2.0}
    found = held.values()
    yield from reading(lambda b: max(found), lambda net: held.update({1: 5.0}), lambda net: held.update({2: 9.0}))
