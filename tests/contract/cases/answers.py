"""What libraries say from state of their own: settings of torch, loggers, registries, the system; and what a block tells them."""

import abc
import builtins
import contextlib
import ctypes
import datetime
import functools
import io
import logging
import multiprocessing
import sys
import types
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from tests.contract.parts import Mlp, call, case, leaf, reading, twins

HELD = [2.0]


def held(value):
    return lambda net: HELD.__setitem__(0, value)


@case(processes=True)
def seed_of_torch():
    yield from reading(
        lambda b: float(torch.initial_seed() % 5), lambda net: torch.manual_seed(3), lambda net: torch.manual_seed(4)
    )


@case(processes=True)
def whether_anomalies_are_looked_for():
    yield from reading(
        lambda b: 2.0 if torch.is_anomaly_enabled() else 3.0,
        lambda net: torch.autograd.set_detect_anomaly(True),
        lambda net: torch.autograd.set_detect_anomaly(False),
    )


@case(processes=True)
def precision_of_products():
    yield from reading(
        lambda b: 2.0 if torch.get_float32_matmul_precision() == "highest" else 3.0,
        lambda net: torch.set_float32_matmul_precision("high"),
        lambda net: torch.set_float32_matmul_precision("highest"),
    )


@case(processes=True)
def threads_of_torch():
    def set(n):
        return lambda net: torch.set_num_threads(n)

    yield from reading(lambda b: float(torch.get_num_threads()), set(2), set(1))


@case(processes=True)
def flag_of_a_backend():
    def set(n):
        return lambda net: setattr(torch.backends.mkldnn, "enabled", n)

    yield from reading(lambda b: 2.0 if torch.backends.mkldnn.enabled else 3.0, set(False), set(True))


@case()
def level_of_a_logger():
    log = logging.getLogger("some.where")
    yield from reading(
        lambda b: 2.0 if log.isEnabledFor(logging.INFO) else 3.0,
        lambda net: log.setLevel(logging.DEBUG),
        lambda net: log.setLevel(logging.ERROR),
    )


@case()
def level_of_the_root_logger():
    log = logging.getLogger("some.where.else")
    root = logging.getLogger()
    old = root.level
    yield from reading(
        lambda b: 2.0 if log.isEnabledFor(logging.INFO) else 3.0,
        lambda net: root.setLevel(logging.DEBUG),
        lambda net: root.setLevel(logging.ERROR),
    )
    root.setLevel(old)


@case(processes=True)
def handlers_of_a_logger():
    log, handler = logging.getLogger("some.where.handled"), logging.NullHandler()
    yield from reading(
        lambda b: 2.0 if log.handlers else 3.0,
        lambda net: log.addHandler(handler),
        lambda net: log.removeHandler(handler),
    )


@case()
def frame_of_the_caller():
    class Looks(Mlp):
        def middle(self, y):
            frame = sys._getframe()
            while frame is not None and "strength" not in frame.f_locals:
                frame = frame.f_back
            return y.relu() * (frame.f_locals["strength"] if frame else 1.0)

    net = twins(lambda i: Looks())

    def run(strength):
        return net(leaf(2, 5, 32))

    yield net
    yield call(run=lambda: run(2.0))
    yield call(run=lambda: run(3.0))
    yield call(run=lambda: run(4.0))
    yield call(run=lambda: run(2.0))


@case()
def generator_of_its_own():
    gen = torch.Generator()

    class Draws(Mlp):
        def middle(self, y):
            return y.relu() * torch.rand(y.shape[-1:] if False else (1,), generator=gen, dtype=torch.float64)

    net = twins(lambda i: Draws())
    gen.manual_seed(0)
    yield net
    gen.manual_seed(0)
    yield
    yield
    gen.manual_seed(1)
    yield
    yield


@case()
def class_registered_with_an_abstract_one():
    class Base(abc.ABC):
        @abc.abstractmethod
        def ask(self):
            raise NotImplementedError

    class Other:
        pass

    thing = Other()
    yield from reading(
        lambda b: 2.0 if isinstance(thing, Base) else 3.0, lambda net: Base.register(Other), lambda net: None
    )


@case(processes=True)
def function_dispatched_by_class():
    @functools.singledispatch
    def factor(value):
        return 2.0

    yield from reading(
        lambda b: factor(1),
        lambda net: factor.register(int, lambda value: 3.0),
        lambda net: factor.register(object, lambda value: 5.0),
    )


@case()
def date_in_a_block():
    yield from reading(lambda b: float(datetime.datetime.now().year), lambda net: None)


@case()
def unique_number_in_a_block():
    yield from reading(lambda b: 1.0 + uuid.uuid4().int * 0, lambda net: None)


@case()
def memory_shared_by_processes():
    number = multiprocessing.Value("d", 2.0)
    yield from reading(
        lambda b: number.value, lambda net: setattr(number, "value", 3.0), lambda net: setattr(number, "value", 4.0)
    )


@case()
def number_of_c():
    number = ctypes.c_double(2.0)
    yield from reading(
        lambda b: number.value, lambda net: setattr(number, "value", 3.0), lambda net: setattr(number, "value", 4.0)
    )


@case(processes=True)
def imported_where_it_is_used():
    made = types.ModuleType("made_here")
    made.FACTOR = 2.0
    sys.modules["made_here"] = made

    def read(block):
        from made_here import FACTOR

        return FACTOR

    def other(net):
        again = types.ModuleType("made_here")
        again.FACTOR = 5.0
        sys.modules["made_here"] = again

    try:
        yield from reading(read, lambda net: setattr(made, "FACTOR", 3.0), other)
    finally:
        sys.modules.pop("made_here", None)


@case()
def python_module_that_answers():
    made = types.ModuleType("made_there")
    made.table = {"FACTOR": 2.0}

    def answers(name):
        if name not in made.table:
            raise AttributeError(name)
        return made.table[name] * 2

    def answers_otherwise(name):
        if name not in made.table:
            raise AttributeError(name)
        return 7.0

    def read(block):
        import made_there

        return made_there.FACTOR

    def other(net):
        made.__getattr__ = answers_otherwise

    made.__getattr__ = answers
    sys.modules["made_there"] = made
    try:
        yield from reading(read, lambda net: made.table.update(FACTOR=3.0), other)
    finally:
        sys.modules.pop("made_there", None)


@case()
def seed_set_by_a_block():
    class F(Mlp):
        def middle(self, y):
            torch.manual_seed(3)
            return torch.nn.functional.dropout(y.relu(), 0.0)

        def after(self, z):
            return z

    net = twins(lambda i: F())

    def run():
        y = net(leaf(2, 5, 32))
        return y, torch.rand(3)

    yield net
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)


@case()
def read_by_a_thread_of_the_block():
    def read(block):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: HELD[0]).result()

    HELD[0] = 2.0
    yield from reading(read, held(3.0), held(4.0))


@case(processes=True)
def printed_by_a_block():

    class F(Mlp):
        def middle(self, y):
            print("here")
            return y.relu()

    net = twins(lambda i: F())

    def run():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            y = net(leaf(2, 5, 32))
        return y, torch.tensor(float(len(out.getvalue())))

    yield net
    for _ in range(4):
        yield call(run=run)


@case(processes=True)
def function_of_torch_replaced():
    class B(Mlp):
        def middle(self, y):
            return F.gelu(y)

    net = twins(lambda i: B())
    own = F.gelu
    yield net
    yield
    F.gelu = lambda x: own(x) * 3
    try:
        yield
        yield
    finally:
        F.gelu = own
    yield


@case(processes=True)
def function_of_a_module_of_torch_replaced():
    net = twins(lambda i: Mlp())
    own = F.layer_norm
    yield net
    yield
    F.layer_norm = lambda *a, **k: own(*a, **k) * 3
    try:
        yield
        yield
    finally:
        F.layer_norm = own
    yield


@case(processes=True)
def builtin_of_the_user():
    builtins.SOME_FACTOR = 2.0

    class B(Mlp):
        def middle(self, y):
            return y.relu() * SOME_FACTOR  # noqa: F821

    net = twins(lambda i: B())
    yield net
    yield
    builtins.SOME_FACTOR = 3.0
    yield
    builtins.SOME_FACTOR = 4.0
    yield
    yield


class Thing:
    def __init__(self, factor):
        self.factor = factor


@case()
def weak_dict():
    things = [Thing(2.0), Thing(3.0)]
    weak = weakref.WeakValueDictionary(dict(enumerate(things)))
    yield from reading(
        lambda b: float(len(weak)) + sum(t.factor for t in weak.values()),
        lambda net: things.pop(),
        lambda net: setattr(things[0], "factor", 7.0),
    )


@case()
def weak_set():
    things = [Thing(2.0), Thing(3.0)]
    weak = weakref.WeakSet(things)
    yield from reading(
        lambda b: sum(t.factor for t in weak), lambda net: things.pop(), lambda net: setattr(things[0], "factor", 7.0)
    )


@case()
def weak_proxy():
    thing = Thing(2.0)
    proxy = weakref.proxy(thing)
    yield from reading(
        lambda b: proxy.factor, lambda net: setattr(thing, "factor", 3.0), lambda net: setattr(thing, "factor", 4.0)
    )


@case()
def view_of_a_dict_of_types():
    d = {"factor": 2.0}
    view = types.MappingProxyType(d)
    yield from reading(lambda b: view["factor"], lambda net: d.update(factor=3.0), lambda net: d.update(factor=4.0))


@case()
def dict_that_answers_for_what_it_lacks():
    class Registry(dict):
        def __missing__(self, key):
            return HELD[0]

    reg = Registry()
    HELD[0] = 2.0
    yield from reading(lambda b: reg["x"], lambda net: HELD.__setitem__(0, 3.0), lambda net: reg.update(x=5.0))


@case()
def set_of_objects():
    things = {Thing(2.0), Thing(3.0)}
    yield from reading(
        lambda b: sum(t.factor for t in things),
        lambda net: [setattr(t, "factor", 5.0) for t in things],
        lambda net: things.add(Thing(1.0)),
    )


@case()
def objects_as_keys():
    things = {Thing(2.0): 1, Thing(3.0): 2}
    yield from reading(
        lambda b: sum(t.factor for t in things),
        lambda net: [setattr(t, "factor", 5.0) for t in things],
        lambda net: things.update({Thing(1.0): 2}),
    )
