"""Values that are no attributes of Python objects: sizes, numbers in memory, locks, settings of the interpreter; and copies."""

import array
import copy
import ctypes
import queue
import sys
import threading
import warnings

import torch
from torch import nn

from tests.contract.parts import HIDDEN, INNER, Mlp, call, case, leaf, linear, twins


class IsInt(Mlp):
    def __init__(self, index=0):
        super().__init__()
        self.index = index

    def middle(self, y):
        factor = 3.0 if isinstance(y.shape[1], int) else 5.0
        factor += 1.0 if isinstance(self.index, int) else 2.0
        return y.relu() * factor


@case()
def size_is_an_int():
    yield twins(lambda index: IsInt(index))
    yield
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(2, 7, HIDDEN))
    yield


class TypeInt(IsInt):
    def middle(self, y):
        factor = 3.0 if type(y.shape[1]) is int else 5.0
        factor += 1.0 if type(self.index) is int else 2.0
        factor += 1.0 if type(y.size(1)) is int else 2.0
        return y.relu() * factor


@case()
def size_is_of_type_int():
    yield twins(lambda index: TypeInt(index))
    yield
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(2, 7, HIDDEN))
    yield


class TypeOfShape(Mlp):
    def middle(self, y):
        factor = 3.0 if type(y.shape) is torch.Size else 5.0
        factor += 1.0 if isinstance(y.shape, tuple) else 2.0
        return y.relu() * factor * (1.0 if f"{y.shape[1]}".isdigit() else 4.0) * float(str(y.shape[1]))


@case()
def shape_as_text():
    yield twins(lambda index: TypeOfShape())
    yield
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(2, 7, HIDDEN))
    yield


class SizeKey(Mlp):
    def __init__(self):
        super().__init__()
        self.table = {4: 2.0, 5: 3.0, 7: 5.0}

    def middle(self, y):
        return y.relu() * self.table.get(y.shape[1], 1.0)


@case()
def size_as_a_key():
    net = twins(lambda index: SizeKey())
    yield net
    yield
    yield call(leaf(2, 5, HIDDEN))
    net.blocks[0].table[7] = 9.0
    yield call(leaf(2, 7, HIDDEN))
    yield call(leaf(2, 6, HIDDEN))


@case()
def shallow_copy_of_a_block():
    net = twins(lambda index: Mlp())
    yield net
    yield
    twin = copy.copy(net.blocks[0])
    yield call(leaf(2, 4, HIDDEN), run=lambda x: net.blocks[1](twin(x)))
    net.blocks[1] = twin
    yield
    yield


@case()
def deep_copy_of_a_block():
    net = twins(lambda index: Mlp())
    yield net
    yield
    twin = copy.deepcopy(net.blocks[0])
    yield call(leaf(2, 4, HIDDEN), run=lambda x: net.blocks[1](twin(x)))
    yield
    yield


class Arrays(Mlp):
    def __init__(self):
        super().__init__()
        self.seen = array.array("d", [0.0])
        self.bytes = bytearray(b"\x01")
        self.queue = queue.SimpleQueue()
        self.number = ctypes.c_int(0)

    def middle(self, y):
        self.seen[0] += 1.0
        return y.relu() * self.seen[0]


@case()
def array_written():
    net = twins(lambda index: Arrays())
    yield net
    yield
    net.blocks[0].seen[0] = 7.0
    yield
    yield
    yield


class Bytes(Arrays):
    def middle(self, y):
        self.bytes[0] += 1
        return y.relu() * self.bytes[0]


@case()
def bytearray_written():
    net = twins(lambda index: Bytes())
    yield net
    yield
    net.blocks[0].bytes[0] = 7
    yield
    yield
    yield


class BytesInView(Mlp):
    def __init__(self):
        super().__init__()
        self.bytes = bytearray(b"\x01\x02")
        self.view = memoryview(self.bytes)

    def middle(self, y):
        view = self.view
        view[0] = self.bytes[0] + 1
        return y.relu() * self.bytes[0]


@case()
def bytearray_written_through_a_view():
    yield twins(lambda index: BytesInView())
    for _ in range(4):
        yield


class Queued(Arrays):
    def middle(self, y):
        self.queue.put(1)
        return y.relu() * self.queue.qsize()


@case()
def queue_written():
    net = twins(lambda index: Queued())
    yield net
    yield
    net.blocks[0].queue.put(1)
    yield
    yield
    yield


class Ctypes(Arrays):
    def middle(self, y):
        self.number.value += 1
        return y.relu() * self.number.value


@case()
def ctypes_written():
    net = twins(lambda index: Ctypes())
    yield net
    yield
    net.blocks[0].number.value = 7
    yield
    yield
    yield


class ReadArrays(Arrays):
    def middle(self, y):
        return y.relu() * (self.seen[0] + self.bytes[0] + self.queue.qsize() + self.number.value)


@case()
def arrays_read():
    net = twins(lambda index: ReadArrays())
    yield net
    yield
    net.blocks[0].seen[0] = 7.0
    yield
    net.blocks[0].bytes[0] = 9
    yield
    net.blocks[0].queue.put(1)
    yield
    net.blocks[0].number.value = 2
    yield


class Locked(Mlp):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.rlock = threading.RLock()
        self.event = threading.Event()
        self.sem = threading.Semaphore(3)

    def middle(self, y):
        return (
            y.relu()
            * (2.0 if self.lock.locked() else 3.0)
            * (2.0 if self.event.is_set() else 5.0)
            * (1 + self.sem._value)
        )


@case()
def lock_and_event():
    net = twins(lambda index: Locked())
    yield net
    yield
    net.blocks[0].lock.acquire()
    yield
    net.blocks[0].event.set()
    yield
    net.blocks[1].sem.acquire()
    yield


class Annotated(Mlp):
    """one"""

    scale: float

    def middle(self, y):
        return y.relu() * len(type(self).__doc__ or "")


@case(shared=((Annotated, "__doc__"),))
def doc_of_a_class():
    net = twins(lambda index: Annotated())
    yield net
    yield
    Annotated.__doc__ = "other"
    yield
    yield
    yield
    yield


class Deep(Mlp):
    def middle(self, y):
        return y.relu() * (sys.getrecursionlimit() / 1000)


@case(processes=True)
def recursion_limit():
    net = twins(lambda index: Deep())
    yield net
    yield
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(old + 1000)
    yield
    sys.setrecursionlimit(old)
    yield
    yield


class Warned(Mlp):
    def middle(self, y):
        try:
            warnings.warn("careful", UserWarning, stacklevel=2)
        except UserWarning:
            return y.relu() * 3.0
        return y.relu()


@case()
def warnings_as_errors():
    net = twins(lambda index: Warned())
    yield net

    class Ignored:
        def __init__(self, how):
            self.how = how

        def __enter__(self):
            self.context = warnings.catch_warnings()
            self.context.__enter__()
            warnings.simplefilter(self.how)

        def __exit__(self, *args):
            return self.context.__exit__(*args)

    yield call(leaf(2, 4, HIDDEN), under=lambda: Ignored("ignore"))
    yield call(leaf(2, 4, HIDDEN), under=lambda: Ignored("error"))
    yield call(leaf(2, 4, HIDDEN), under=lambda: Ignored("ignore"))
    yield call(leaf(2, 4, HIDDEN), under=lambda: Ignored("error"))


@case(refusal=("has memory of its own",))
def flat_data_after():
    net = twins(lambda index: Mlp())
    yield net
    yield
    with torch.no_grad():
        for p in net.parameters():
            flat = p.data.clone().view(-1)
            p.data = flat.view(p.shape)
            flat.mul_(1.5)
    yield
    yield
    yield


@case()
def grad_is_a_view_of_a_flat_tensor():
    net = twins(lambda index: Mlp())
    yield net
    yield
    total = sum(p.numel() for p in net.parameters())
    flat = torch.zeros(total, dtype=torch.float64)
    at = 0
    for p in net.parameters():
        p.grad = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    yield
    with torch.no_grad():
        flat.mul_(0.5)
    at = 0
    with torch.no_grad():
        for p in net.parameters():
            p.add_(flat[at : at + p.numel()].view(p.shape), alpha=-0.1)
            at += p.numel()
    yield
    yield
    yield


class Quoted(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN, dtype=torch.float64)
        self.add_module('it\'s "up"', linear(HIDDEN, INNER))
        self.add_module("down\\", linear(INNER, HIDDEN))

    def forward(self, x):
        return x + getattr(self, "down\\")(getattr(self, 'it\'s "up"')(self.norm(x)).relu())


@case()
def names_with_quotes():
    yield twins(lambda index: Quoted())
    yield
    yield
    yield
    yield


class NotesNames(Mlp):
    def __init__(self):
        object.__setattr__(self, "names", [])
        super().__init__()

    def __setattr__(self, name, value):
        self.names.append(name)
        super().__setattr__(name, value)

    def middle(self, y):
        return y.relu() * len(self.names)


@case()
def setattr_notes_names():
    net = twins(lambda index: NotesNames())
    yield net
    yield
    net.blocks[0].other = 3
    yield
    net.blocks[0].train(False)
    yield
    yield


class Sink:
    def __init__(self):
        self.tensor = torch.zeros(2, 4, INNER, dtype=torch.float64)

    def put(self, y):
        self.tensor.copy_(y.detach())
        return y


class Writes(Mlp):
    def __init__(self, sink):
        super().__init__()
        self.sink = sink

    def middle(self, y):
        return self.sink.put(y.relu()) + self.sink.tensor.sum()


@case()
def object_written_into():
    sink = Sink()
    net = twins(lambda index: Writes(sink))
    yield net
    yield call(leaf(2, 4, HIDDEN))
    yield call(leaf(2, 4, HIDDEN, seed=1))
    sink.tensor.zero_()
    yield call(leaf(2, 4, HIDDEN, seed=2))
    yield call(leaf(2, 4, HIDDEN, seed=1))


class Defaults(Mlp):
    def middle(self, y, factors={"a": 2.0}, more=[3.0]):  # noqa
        return y.relu() * factors["a"] * more[0]


@case()
def defaults_changed_in_place():
    net = twins(lambda index: Defaults())
    yield net
    yield
    Defaults.middle.__defaults__[0]["a"] = 5.0
    yield
    Defaults.middle.__defaults__[1][0] = 7.0
    yield
    Defaults.middle.__defaults__[0]["a"] = 2.0
    Defaults.middle.__defaults__[1][0] = 3.0
    yield
