"""What depends on who calls, and what libraries keep for all: errors, contexts, loops, modes, warnings, tables of C."""

import asyncio
import contextlib
import contextvars
import csv
import decimal
import logging
import sys
import warnings

import torch
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from tests.contract.parts import Mlp, call, case, reading, twins, values


def handling(read):
    """Calls of blocks, every second of them while an error is handled."""

    net = next(reading(read))

    def within(*given):
        try:
            raise ValueError
        except ValueError:
            return net(*given)

    yield net
    for _ in range(2):
        yield call(values(2, 5, 32))
        yield call(values(2, 5, 32), run=within)


@case()
def error_that_is_handled():
    yield from handling(lambda b: 2.0 if sys.exc_info()[0] is None else 5.0)


def context_of_an_error():
    try:
        raise KeyError
    except KeyError as error:
        return 2.0 if error.__context__ is None else 5.0


@case()
def error_behind_another():
    yield from handling(lambda b: context_of_an_error())


@case()
def stack_of_contexts():
    def read(block):
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(KeyError))
            return 2.0

    yield from handling(read)


VARIABLE = contextvars.ContextVar("variable_of_a_case", default=2.0)


@case()
def all_variables_of_a_context():
    def read(block):
        return {each.name: value for each, value in contextvars.copy_context().items()}.get("variable_of_a_case", 2.0)

    tokens = []

    def put(value):
        return lambda net: tokens.append(VARIABLE.set(value))

    yield from reading(read, put(5.0), put(3.0), put(2.0))
    VARIABLE.reset(tokens[0])


def running():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return 2.0
    return 5.0


@case()
def loop_that_runs():
    net = next(reading(lambda b: running()))

    def within(*given):
        async def go():
            return net(*given)

        return asyncio.run(go())

    yield net
    for _ in range(2):
        yield call(values(2, 5, 32))
        yield call(values(2, 5, 32), run=within)


class Rounds(TorchDispatchMode):
    """Products are rounded."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        is_product = function in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return (result * 4).round() / 4 if is_product else result


@case()
def mode_of_operators():
    yield twins(Mlp)
    yield call(values(2, 5, 32), backward=False)
    yield call(values(2, 5, 32), backward=False, under=Rounds)
    yield call(values(2, 5, 32), backward=False)
    yield call(values(2, 5, 32), backward=False, under=Rounds)


@case()
def errors_of_decimal_numbers():
    def read(block):
        try:
            return float(decimal.Decimal(1) / decimal.Decimal(3))
        except decimal.Inexact:
            return 5.0

    def trap(is_error):
        return lambda net: decimal.getcontext().traps.__setitem__(decimal.Inexact, is_error)

    yield from reading(read, trap(True), trap(False), trap(True))
    trap(False)(None)


@case()
def filters_of_warnings_that_a_block_sets():
    def read(block):
        warnings.filterwarnings("ignore", "what a block says")
        return 2.0

    def check(net):
        assert any(each[1] and each[1].pattern == "what a block says" for each in warnings.filters)
        warnings.filters[:] = [each for each in warnings.filters if not each[1]]

    with warnings.catch_warnings():
        warnings.filters[:] = [each for each in warnings.filters if not each[1]]
        yield from reading(read, check, check, check)


@case()
def warnings_caught_inside():
    def read(block):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("what a block says", stacklevel=1)
        return 2.0

    yield from reading(read, *[lambda net: None] * 3)


@case(processes=True)
def dialects_of_tables():
    def add(name):
        return lambda net: csv.register_dialect(name, delimiter=";")

    yield from reading(lambda b: float(len(csv.list_dialects())), add("a"), add("b"), add("c"))
    for name in "abc":
        csv.unregister_dialect(name)


@case(processes=True)
def dialect_that_a_block_adds():
    def read(block):
        csv.register_dialect("of a block", delimiter=";")
        return 2.0

    yield from reading(read, *[lambda net: csv.unregister_dialect("of a block")] * 3)
    csv.unregister_dialect("of a block")


@case()
def object_of_torch_with_numbers():
    held = prune.L1Unstructured(amount=0.5)
    yield from reading(
        lambda b: b.held.amount,
        *[lambda net, to=to: setattr(held, "amount", to) for to in (0.25, 0.75, 0.5)],
        held=held,
    )


@case()
def future_of_torch():
    held = [None]

    def put(is_done):
        def change(net):
            held[0] = torch.futures.Future()
            if is_done:
                held[0].set_result(1)

        return change

    yield from reading(
        lambda b: 2.0 if b.held[0] is None or b.held[0].done() else 5.0,
        put(False),
        lambda net: held[0].set_result(1),
        put(False),
        held=held,
    )


@case()
def attribute_of_a_logger():
    def put(to):
        return lambda net: setattr(log, "factor", to)

    log = logging.Logger("of a case")
    log.factor = 2.0
    yield from reading(lambda b: b.held.factor, put(5.0), put(3.0), put(2.0), held=log)


class Tells:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append(1)


@case()
def object_that_does_something_as_it_goes():
    log = []

    def read(block):
        tells = Tells(log)
        return 2.0 + len(tells.log)

    def check(net):
        assert log == [1] * len(log)
        del log[3:]

    yield from reading(read, check, check, check)
