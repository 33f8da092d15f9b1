"""What Python and the system say of the process: folders, arguments, threads, caches, the interpreter."""

import contextlib
import decimal
import functools
import gc
import inspect
import locale
import os
import random
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings

import numpy
import torch

from tests.contract.parts import case, reading


@functools.cache
def squared(n):
    return float(n * n)


def asked(read, first, second):
    yield from reading(read, lambda net: first(), lambda net: second())


@case(processes=True)
def hits_of_a_cache():
    yield from asked(lambda b: 1.0 + squared.cache_info().currsize, lambda: squared(3), lambda: squared(4))


@case(processes=True)
def hits_of_a_cache_by_word():
    yield from asked(lambda b: 1.0 + getattr(squared, "cache_info")().hits, lambda: squared(3), lambda: squared(3))  # noqa: B009


@case(processes=True)
def folder_of_the_process():
    before = os.getcwd()
    yield from asked(lambda b: float(len(os.getcwd())), lambda: os.chdir("/"), lambda: os.chdir(before))


@case(processes=True)
def arguments_of_the_process():
    yield from asked(lambda b: 1.0 + len(sys.argv), lambda: sys.argv.append("--more"), lambda: sys.argv.pop())


@case(processes=True)
def threads_of_python():
    stop, threads = threading.Event(), []

    def begin():
        threads.append(threading.Thread(target=stop.wait, daemon=True))
        threads[-1].start()

    def end():
        stop.set()
        threads[-1].join()

    yield from asked(lambda b: float(threading.active_count()), begin, end)


@case(processes=True)
def name_of_the_thread():
    thread = threading.current_thread()
    before = thread.name

    def named(name):
        return lambda: setattr(thread, "name", name)

    yield from asked(lambda b: 1.0 + len(threading.current_thread().name), named("a longer name"), named(before))


@case(processes=True)
def default_type_of_numbers():
    yield from asked(
        lambda b: 2.0 if torch.get_default_dtype() == torch.float32 else 3.0,
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    )


@case(processes=True)
def rounding_of_decimals():
    def precise(digits):
        return lambda: setattr(decimal.getcontext(), "prec", digits)

    yield from asked(lambda b: float(decimal.Decimal(1) / 3), precise(3), precise(28))


@case(processes=True)
def number_format_of_the_place():
    yield from asked(
        lambda b: 1.0 + len(locale.setlocale(locale.LC_NUMERIC)),
        lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"),
        lambda: locale.setlocale(locale.LC_NUMERIC, "C"),
    )


@case(processes=True)
def file_that_is_read():
    file = tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False)  # noqa: SIM115

    def write(text):
        with open(file.name, "w") as opened:
            opened.write(text)

    write("2.0")

    def read(b):
        with open(file.name) as opened:
            return float(opened.read())

    yield from asked(read, lambda: write("3.0"), lambda: write("5.0"))


@case(processes=True)
def file_that_is_there():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "flag")
    yield from asked(
        lambda b: 2.0 if os.path.exists(path) else 3.0, lambda: open(path, "w").close(), lambda: os.remove(path)
    )


@case(processes=True)
def whether_garbage_is_collected():
    yield from asked(lambda b: 2.0 if gc.isenabled() else 3.0, gc.disable, gc.enable)


@case(processes=True)
def whether_memory_is_traced():
    yield from asked(lambda b: 2.0 if tracemalloc.is_tracing() else 3.0, tracemalloc.start, tracemalloc.stop)


@case(processes=True)
def references_of_a_list():
    held, more = [1.0], []
    yield from asked(lambda b: float(sys.getrefcount(held)), lambda: more.append(held), more.clear)


@case(processes=True)
def depth_of_the_stack():
    yield from asked(lambda b: 2.0 if len(inspect.stack()) > 500 else 3.0, lambda: None, lambda: None)


@case(processes=True)
def variables_of_the_caller():
    yield from asked(lambda b: float(len(sys._getframe(0).f_globals.get("MORE", "a"))), lambda: None, lambda: None)


@case(processes=True)
def clock():
    yield from asked(lambda b: 2.0 if time.monotonic() > 0 else 3.0, lambda: None, lambda: None)


@case(processes=True)
def hooks_of_the_interpreter():
    yield from asked(
        lambda b: 2.0 if sys.displayhook is sys.__displayhook__ else 3.0,
        lambda: setattr(sys, "displayhook", print),
        lambda: setattr(sys, "displayhook", sys.__displayhook__),
    )


@case(processes=True)
def warning_that_becomes_an_error():
    def read(b):
        try:
            warnings.warn("often", UserWarning, stacklevel=1)
        except UserWarning:
            return 2.0
        return 3.0

    stack = contextlib.ExitStack()

    def strict():
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")

    yield from asked(read, strict, stack.close)


@case(processes=True)
def state_of_pythons_generator():
    yield from asked(lambda b: 1.0 + random.getstate()[1][0] % 7, lambda: random.seed(3), lambda: random.seed(4))


@case(processes=True)
def state_of_numpys_generator():
    yield from asked(
        lambda b: 1.0 + int(numpy.random.get_state()[1][0]) % 7,
        lambda: numpy.random.seed(3),
        lambda: numpy.random.seed(4),
    )


@case(processes=True)
def state_of_torchs_generator():
    yield from asked(
        lambda b: 1.0 + float(torch.get_rng_state().long().sum() % 7),
        lambda: torch.manual_seed(3),
        lambda: torch.manual_seed(4),
    )


@case(processes=True)
def whether_lower_types_are_chosen():
    yield from asked(
        lambda b: 2.0 if torch.is_autocast_enabled("cpu") else 3.0,
        lambda: torch.set_autocast_enabled("cpu", False),
        lambda: None,
    )


@case(processes=True)
def way_of_attention():
    yield from asked(
        lambda b: 2.0 if torch.backends.cuda.math_sdp_enabled() else 3.0,
        lambda: torch.backends.cuda.enable_math_sdp(False),
        lambda: torch.backends.cuda.enable_math_sdp(True),
    )


@case(processes=True)
def digits_of_printed_tensors():
    yield from asked(
        lambda b: 1.0 + torch._tensor_str.PRINT_OPTS.precision,
        lambda: torch.set_printoptions(precision=6),
        lambda: torch.set_printoptions(precision=4),
    )
