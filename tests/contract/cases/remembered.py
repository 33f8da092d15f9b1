"""Functions that remember their results, and blocks, parts and tensors that are told by who they are, from places that a trace
cannot give another one."""

from __future__ import annotations

import functools

import numpy
import torch
from torch import nn

from tests.contract.parts import INNER, Mlp, call, case, leaf, twins, values


class Applies(Mlp):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def middle(self, y):
        return self.f(y)


LEVEL = [1.0]


@functools.lru_cache
def bounded(number):
    return number * LEVEL[0]


@case()
def bounded_cache_stale():
    bounded.cache_clear()
    LEVEL[0] = 1.0
    yield twins(lambda index: Applies(lambda y: y.relu() * bounded(2.0)))
    yield
    LEVEL[0] = 3.0
    yield
    yield call(leaf(3, 5, 32))
    bounded.cache_clear()
    yield
    yield


@functools.lru_cache(maxsize=1)
def single(number):
    return number * LEVEL[0]


@case()
def evicting_cache():
    single.cache_clear()
    LEVEL[0] = 1.0
    yield twins(lambda index: Applies(lambda y: y.relu() * single(2.0) * single(3.0)))
    yield
    LEVEL[0] = 3.0
    yield
    yield
    yield


class Conf:
    def __init__(self, s):
        self.s = s


@functools.cache
def of_object(c):
    return c.s


@case()
def cache_of_objects():
    of_object.cache_clear()
    c = Conf(2.0)
    yield twins(lambda index: Applies(lambda y: y.relu() * of_object(c)))
    yield
    c.s = 3.0
    yield
    of_object.cache_clear()
    yield
    yield


class ByBlock(Mlp):
    k = 2.0

    @functools.lru_cache  # noqa: B019
    def scale(self):
        return self.k

    def middle(self, y):
        return y.relu() * self.scale()


@case()
def cache_by_block():
    ByBlock.scale.cache_clear()
    net = twins(lambda i: ByBlock())
    yield net
    yield
    net.blocks[0].k = 3.0
    yield
    ByBlock.scale.cache_clear()
    yield
    yield


class ByBlock2(Mlp):
    k = 2.0

    @functools.cache  # noqa: B019
    def scale(self):
        return self.k

    def middle(self, y):
        return y.relu() * self.scale()


@case()
def cache_by_block_unbounded():
    ByBlock2.scale.cache_clear()
    net = twins(lambda i: ByBlock2())
    yield net
    yield
    net.blocks[0].k = 3.0
    yield
    ByBlock2.scale.cache_clear()
    yield
    yield


class ByPart(Mlp):
    def middle(self, y):
        return y.relu() * eps_of(self.norm)


@functools.cache
def eps_of(norm):
    return norm.eps * 1e5


@case()
def cache_by_part():
    eps_of.cache_clear()
    net = twins(lambda i: ByPart())
    yield net
    yield
    net.blocks[0].norm.eps = 1e-3
    yield
    eps_of.cache_clear()
    yield
    yield


@functools.cache
def of_a_tuple(pair):
    return pair[0].norm.eps * 1e5 * pair[1]


class ByTuple(Mlp):
    def middle(self, y):
        return y.relu() * of_a_tuple((self, 2.0))


@case()
def cache_by_tuple():
    of_a_tuple.cache_clear()
    net = twins(lambda i: ByTuple())
    yield net
    yield
    net.blocks[0].norm.eps = 1e-3
    yield
    of_a_tuple.cache_clear()
    yield
    yield


@functools.cache
def of_a_tensor(t):
    return LEVEL[0]


class ByTensor(Mlp):
    def middle(self, y):
        return y.relu() * of_a_tensor(self.norm.weight)


@case()
def cache_by_weight():
    of_a_tensor.cache_clear()
    LEVEL[0] = 1.0
    net = twins(lambda i: ByTensor())
    yield net
    yield
    LEVEL[0] = 3.0
    yield
    of_a_tensor.cache_clear()
    yield
    yield


ACTIVE = []


class InList(Mlp):
    def middle(self, y):
        return y.relu() * (2.0 if self in ACTIVE else 3.0)


@case()
def block_in_a_list():
    ACTIVE.clear()
    net = twins(lambda i: InList())
    ACTIVE.append(net.blocks[0])
    yield net
    yield
    ACTIVE[0] = net.blocks[1]
    yield
    ACTIVE.clear()
    yield
    yield


class IsOne(Mlp):
    def middle(self, y):
        return y.relu() * (2.0 if self is CHOSEN["one"] else 3.0 if self == CHOSEN["two"] else 4.0)


CHOSEN = {}


@case()
def block_is_one():
    net = twins(lambda i: IsOne())
    CHOSEN.update(one=net.blocks[0], two=None)
    yield net
    yield
    CHOSEN.update(one=None, two=net.blocks[1])
    yield
    yield
    CHOSEN.clear()
    CHOSEN.update(one=net, two=net)
    yield


class PartIsOne(Mlp):
    def middle(self, y):
        return (
            y.relu() * (2.0 if self.norm is CHOSEN["one"] else 3.0) * (2.0 if self.up.weight is CHOSEN["two"] else 3.0)
        )


@case()
def part_is_one():
    net = twins(lambda i: PartIsOne())
    CHOSEN.clear()
    CHOSEN.update(one=net.blocks[0].norm, two=None)
    yield net
    yield
    CHOSEN.update(one=None, two=net.blocks[1].up.weight)
    yield
    CHOSEN.update(one=None, two=net.blocks[0].norm.weight)
    yield
    yield


class Memo(Mlp):
    def middle(self, y):
        return y.relu() * self.table.setdefault("k", LEVEL[0])

    def __init__(self):
        super().__init__()
        self.table = {}


@case()
def setdefault_memo():
    LEVEL[0] = 2.0
    net = twins(lambda i: Memo())
    yield net
    yield
    LEVEL[0] = 3.0
    yield
    net.blocks[0].table.clear()
    yield
    yield


class Prop(Mlp):
    @functools.cached_property
    def scale(self):
        return LEVEL[0]

    def middle(self, y):
        return y.relu() * self.scale


@case()
def cached_property_of_block():
    LEVEL[0] = 2.0
    net = twins(lambda i: Prop())
    yield net
    yield
    LEVEL[0] = 3.0
    yield
    del net.blocks[0].scale
    yield
    yield


class Lazy(Mlp):
    table = None

    def middle(self, y):
        if self.table is None or self.table.shape[0] < y.shape[1]:
            self.table = torch.arange(y.shape[1], dtype=y.dtype)
        return y.relu() * self.table[: y.shape[1], None]


@case()
def table_made_lazily():
    net = twins(lambda i: Lazy())
    yield net
    yield call(leaf(2, 3, 32))
    yield call(leaf(2, 5, 32))
    yield call(leaf(2, 4, 32))
    net.blocks[0].table = None
    yield call(leaf(2, 4, 32))


class Kept(Mlp):
    current = None

    def middle(self, y):
        return y.relu() * (2.0 if self.current is self else 3.0)


@case()
def block_in_its_class():
    net = twins(lambda i: Kept())
    Kept.current = net.blocks[0]
    yield net
    yield
    Kept.current = net.blocks[1]
    yield
    Kept.current = None
    yield
    yield


class Kept2(Mlp):
    current = None

    def middle(self, y):
        return y.relu() * (2.0 if Kept2.current is self else 3.0)


@case()
def block_in_its_class_named():
    net = twins(lambda i: Kept2())
    Kept2.current = net.blocks[0]
    yield net
    yield
    Kept2.current = net.blocks[1]
    yield
    Kept2.current = None
    yield
    yield


GLOBAL_BLOCK = None


class Kept3(Mlp):
    def middle(self, y):
        return y.relu() * (2.0 if GLOBAL_BLOCK is self else 3.0)


@case()
def block_is_global():
    global GLOBAL_BLOCK
    net = twins(lambda i: Kept3())
    GLOBAL_BLOCK = net.blocks[0]
    yield net
    yield
    GLOBAL_BLOCK = net.blocks[1]
    yield
    GLOBAL_BLOCK = None
    yield
    yield


def helper_of(chosen):
    def f(block, y):
        return y * (2.0 if block is chosen[0] else 3.0)

    return f


HELP = []


class Kept4(Mlp):
    def middle(self, y):
        return HELP[0](self, y.relu())


@case()
def block_in_a_closure_of_a_global():
    net = twins(lambda i: Kept4())
    chosen = [net.blocks[0]]
    HELP[:] = [helper_of(chosen)]
    yield net
    yield
    chosen[0] = net.blocks[1]
    yield

    def direct(c):
        return lambda block, y: y * (2.0 if block is c else 5.0)

    HELP[:] = [direct(net.blocks[0])]
    yield
    yield


class Kept5(Mlp):
    def forward(self, x, other=None):
        return super().forward(x) * (2.0 if other is self else 3.0)


class Net5(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Kept5(), Kept5()])
        self.which = 0

    def forward(self, x):
        for b in self.blocks:
            x = b(x, self.blocks[self.which])
        return x


@case()
def block_as_an_argument():
    net = Net5()
    yield net
    yield
    net.which = 1
    yield
    yield
    yield


class Buf(Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("t", values(INNER, seed=3))
        self.u = values(INNER, seed=4)

    def middle(self, y):
        return y.relu() * (2.0 if self.t is TENSORS[0] else 3.0) * (2.0 if self.u is TENSORS[1] else 3.0)


TENSORS = [None, None]


@case()
def buffer_is_one():
    net = twins(lambda i: Buf())
    TENSORS[:] = [net.blocks[0].t, None]
    yield net
    yield
    TENSORS[:] = [None, net.blocks[1].u]
    yield
    TENSORS[:] = [net.blocks[1].t, net.blocks[0].u]
    yield
    yield


class Friends(Mlp):
    def middle(self, y):
        return y.relu() * (2.0 if self.friends[0] is self else 3.0) * (2.0 if self in self.friends else 5.0)


@case()
def block_among_its_friends():
    net = twins(lambda i: Friends())
    for b in net.blocks:
        b.__dict__["friends"] = [net.blocks[0]]
    yield net
    yield
    net.blocks[0].friends[0] = net.blocks[1]
    yield
    net.blocks[1].friends.append(net.blocks[1])
    yield
    yield


class Meth(Mlp):
    def helper(self, y, block):
        return y * (2.0 if self is block else 3.0)

    def middle(self, y):
        return METHODS[0](y.relu(), self)


METHODS = []


@case()
def method_of_a_block_global():
    net = twins(lambda i: Meth())
    METHODS[:] = [net.blocks[0].helper]
    yield net
    yield
    METHODS[:] = [net.blocks[1].helper]
    yield
    METHODS[:] = [functools.partial(Meth.helper, net.blocks[0])]
    yield
    yield


class BufW(Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("t", values(INNER, seed=3))

    def middle(self, y):
        self.t.mul_(0.5)
        return y.relu().detach() * TENSORS[0].detach().clone() * self.t.detach().clone() + y


@case()
def buffer_read_by_a_view():
    net = twins(lambda i: BufW())
    TENSORS[:] = [net.blocks[0].t[:], None]
    yield net
    yield
    yield
    TENSORS[0] = net.blocks[1].t
    yield
    net.blocks[1].t.fill_(1.0)
    yield


class LevelB(Mlp):
    def middle(self, y):
        return y.relu() * bounded(2.0)


@case()
def cache_filled_by_planning():
    bounded.cache_clear()
    LEVEL[0] = 1.0
    net = twins(lambda i: LevelB())
    yield net
    LEVEL[0] = 3.0
    yield
    LEVEL[0] = 5.0
    yield
    bounded.cache_clear()
    yield
    yield


@functools.lru_cache
def table_of(n):
    return torch.arange(n, dtype=torch.float64) * LEVEL[0]


class TableB(Mlp):
    def middle(self, y):
        return y.relu() * table_of(y.shape[1])[:, None]


@case()
def bounded_cache_of_tensors():
    table_of.cache_clear()
    LEVEL[0] = 1.0
    net = twins(lambda i: TableB())
    yield net
    yield call(leaf(2, 3, 32))
    LEVEL[0] = 3.0
    yield call(leaf(2, 4, 32))
    yield call(leaf(2, 3, 32))
    table_of.cache_clear()
    yield call(leaf(2, 3, 32))


@case()
def ufunc_that_is_replaced_and_one_that_calls_python():
    def level(number):
        return number * LEVEL[0]

    LEVEL[0] = 1.0
    scale, root = numpy.frompyfunc(level, 1, 1), [numpy.sqrt]
    yield twins(lambda index: Applies(lambda y: y.relu() * float(scale(2.0)) * float(root[0](4.0))))
    yield
    LEVEL[0] = 3.0
    yield
    root[0] = numpy.square
    yield call(leaf(3, 5, 32))
    yield call(leaf(2, 4, 32))
