"""What blocks do to objects of Python's own libraries that they share: these count, remember and hand on."""

import ctypes
import decimal
import functools
import hashlib
import io
import logging
import queue
import threading
import weakref
from typing import Any

from tests.contract.cases.memos import calls
from tests.contract.parts import case


@case()
def text_that_grows():
    text = io.StringIO()

    def read(block, y):
        text.write("x")
        return 0.1 * len(text.getvalue())

    yield from calls(read)


@case()
def digest_that_goes_on():
    digest = hashlib.sha256()

    def read(block, y):
        digest.update(b"x")
        return 1.0 + digest.digest()[0] % 7

    yield from calls(read)


@case()
def queue_that_fills_up():
    waiting: queue.Queue[int] = queue.Queue()

    def read(block, y):
        waiting.put(1)
        return 0.1 * waiting.qsize()

    yield from calls(read, waiting.get)


@case()
def number_of_c_that_grows():
    number = ctypes.c_int(0)

    def read(block, y):
        number.value += 1
        return 0.1 * number.value

    yield from calls(read)


@case()
def event_that_is_set():
    event = threading.Event()

    def read(block, y):
        found = 1.0 if event.is_set() else 2.0
        event.set()
        return found

    yield from calls(read, event.clear)


@case()
def lock_that_a_block_takes():
    lock = threading.Lock()

    def read(block, y):
        return 1.0 + lock.acquire(blocking=False)

    yield from calls(read, lock.release, None, lock.release)


@case()
def entries_of_what_may_go():
    class Owner:
        pass

    owner, entries = Owner(), weakref.WeakKeyDictionary[Any, int]()

    def read(block, y):
        entries[owner] = entries.get(owner, 0) + 1
        return 0.1 * entries[owner]

    yield from calls(read, entries.clear)


@case()
def handler_of_a_logger():
    class Counting(logging.Handler):
        seen = 0

        def emit(self, record):
            self.seen += 1

    logger, handler = logging.Logger("blocks"), Counting()
    logger.addHandler(handler)

    def read(block, y):
        logger.warning("a call")
        return 0.1 * handler.seen

    yield from calls(read, lambda: logger.setLevel(logging.ERROR), lambda: logger.setLevel(logging.INFO))


@case()
def digits_of_decimals():
    before = decimal.getcontext().prec

    def read(block, y):
        decimal.getcontext().prec = decimal.getcontext().prec % 9 + 3
        return float(decimal.Decimal(1) / decimal.Decimal(7))

    yield from calls(read)
    decimal.getcontext().prec = before


@case()
def function_that_learns():
    @functools.singledispatch
    def factor(value):
        return 1.0

    def read(block, y):
        found = factor(1)
        factor.register(int)(lambda value: found + 0.5)
        return found

    yield from calls(read)
