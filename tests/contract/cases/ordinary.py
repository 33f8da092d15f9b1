"""Ordinary Python that nobody thinks of: what C code reads of objects, what libraries keep in their own, calls of every form."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import operator
import struct
import types
import weakref

import torch
from torch import nn

from tests.contract.parts import (
    INNER,
    Mlp,
    call,
    case,
    leaf,
    reading,
    twins,
    values,
)


class Obj:
    def __init__(self, **k):
        self.__dict__.update(k)


def setter(name, value):
    def change(net):
        for b in net.blocks:
            setattr(b.held, name, value)

    return change


@case()
def attrgetter_of_an_object():
    yield from reading(lambda b: operator.attrgetter("scale")(b.held), setter("scale", 3.0), held=Obj(scale=2.0))


@case()
def methodcaller_of_an_object():
    yield from reading(
        lambda b: operator.methodcaller("get", "x")(b.held), lambda n: n.blocks[0].held.update(x=3.0), held={"x": 2.0}
    )


@case()
def vars_of_an_object():
    yield from reading(lambda b: vars(b.held)["scale"], setter("scale", 3.0), held=Obj(scale=2.0))


@case()
def reduce_over_a_list():
    yield from reading(
        lambda b: functools.reduce(operator.mul, b.held), lambda n: n.blocks[0].held.append(2.0), held=[1.0, 1.5]
    )


@case()
def sum_max_sorted():
    yield from reading(
        lambda b: sum(b.held) + max(b.held) + sorted(b.held)[0], lambda n: n.blocks[0].held.append(0.5), held=[1.0, 1.5]
    )


@case()
def map_with_attribute():
    yield from reading(
        lambda b: next(map(operator.attrgetter("s"), b.held)),
        lambda n: setattr(n.blocks[0].held[0], "s", 3.0),
        held=[Obj(s=1.0)],
    )


@case()
def json_of_a_config():
    yield from reading(
        lambda b: len(json.dumps(b.held)) / 10, lambda n: n.blocks[0].held.update(long="value"), held={"a": 1}
    )


@case()
def asdict_of_a_dataclass():
    @dataclasses.dataclass
    class C:
        s: float = 1.0

    c = C()
    yield from reading(lambda b: dataclasses.asdict(b.held)["s"], lambda n: setattr(c, "s", 3.0), held=c)


@case()
def replace_of_a_dataclass():
    @dataclasses.dataclass
    class C:
        s: float = 1.0
        t: float = 2.0

    c = C()
    yield from reading(lambda b: dataclasses.replace(b.held, s=0.5).t, lambda n: setattr(c, "t", 3.0), held=c)


@case()
def match_statement():
    class C:
        __match_args__ = ("s",)

        def __init__(self, s):
            self.s = s

    c = C(1.0)

    def read(b):
        match b.held:
            case C(s=1.0):
                return 0.5
            case C(s):
                return s

    yield from reading(read, lambda n: setattr(c, "s", 3.0), held=c)


@case()
def struct_in_bytes():
    store = bytearray(8)
    struct.pack_into("d", store, 0, 1.5)
    yield from reading(
        lambda b: struct.unpack_from("d", b.held)[0], lambda n: struct.pack_into("d", store, 0, 2.5), held=store
    )


@case()
def user_dict():
    d = collections.UserDict(a=1.5)
    yield from reading(lambda b: b.held["a"], lambda n: d.update(a=2.5), held=d)


@case()
def user_list():
    d = collections.UserList([1.5])
    yield from reading(lambda b: b.held[0], lambda n: d.insert(0, 2.5), held=d)


@case()
def mapping_proxy():
    d = {"a": 1.5}
    yield from reading(lambda b: b.held["a"], lambda n: d.update(a=2.5), held=types.MappingProxyType(d))


@case()
def counter_object():
    c = collections.Counter(a=2)
    yield from reading(lambda b: c["a"] + c.most_common(1)[0][1] / 4, lambda n: c.update(b=5))


@case()
def missing_of_a_dict():
    class D(dict):
        default = 1.5

        def __missing__(self, key):
            return self.default

    d = D()
    yield from reading(
        lambda b: b.held["a"], lambda n: setattr(D, "default", 2.5), lambda n: setattr(d, "default", 3.5), held=d
    )


@case()
def weak_key_descriptor():
    class Desc:
        def __init__(self):
            self.store = weakref.WeakKeyDictionary()

        def __get__(self, o, t=None):
            return self.store.get(o, 1.0)

        def __set__(self, o, v):
            self.store[o] = v

    class B(Mlp):
        scale = Desc()

        def middle(self, y):
            return y.relu() * self.scale

    net = twins(B)
    yield net
    yield
    net.blocks[0].scale = 3.0
    yield
    yield
    yield


@case()
def getattribute_of_a_config():
    class C:
        s = 1.0

        def __getattribute__(self, name):
            if name == "s":
                return object.__getattribute__(self, "real") * 2
            return object.__getattribute__(self, name)

    c = C()
    c.real = 1.0
    yield from reading(lambda b: b.held.s, lambda n: setattr(c, "real", 3.0), held=c)


@case()
def module_getattr():
    m = types.ModuleType("odd_module")
    m.table = {"scale": 1.5}
    m.__getattr__ = lambda name: m.table[name]
    yield from reading(lambda b: b.held.scale, lambda n: m.table.update(scale=2.5), held=m)


@case()
def exception_kept():
    e = ValueError(1.5)

    def change(n):
        e.args = (2.5,)

    yield from reading(lambda b: b.held.args[0], change, held=e)


@case()
def generator_inside():
    store = [1.0, 2.0]

    def gen():
        for s in store:
            yield s * 0.5

    yield from reading(lambda b: sum(gen()), lambda n: store.append(3.0))


@case()
def comprehension_and_walrus():
    store = [1.0, 2.0]
    yield from reading(lambda b: [y for x in store if (y := x * 2) > 1][-1], lambda n: store.append(3.0))


@case()
def star_arguments():
    store = {"a": 1.0}

    def f(a=0.0, b=0.0):
        return a + b

    yield from reading(lambda b: f(**store), lambda n: store.update(b=3.0))


@case()
def format_of_a_state():
    store = [1.5]
    yield from reading(lambda b: float(f"{store[0]:.2f}") + float(str(store[0])), lambda n: store.__setitem__(0, 2.5))


@case()
def global_count():
    counter = itertools.count(1)
    yield from reading(lambda b: next(counter) / 10)


@case()
def complex_numbers_and_fractions():
    from fractions import Fraction

    store = [Fraction(3, 2), 1 + 2j]
    yield from reading(lambda b: float(store[0]) + store[1].imag, lambda n: store.__setitem__(0, Fraction(5, 2)))


class ListBlock(Mlp):
    def __init__(self, i=0):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(values(INNER, seed=3)), nn.Parameter(values(INNER, seed=4))])
        self.named = nn.ParameterDict({"a": nn.Parameter(values(INNER, seed=5))})

    def middle(self, y):
        y = y.relu()
        for s in self.scales:
            y = y * s
        for k in self.named:
            y = y + self.named[k]
        return y


@case()
def parameter_list_grows():
    net = twins(ListBlock)
    yield net
    yield
    for b in net.blocks:
        b.scales.append(nn.Parameter(values(INNER, seed=9)))
    yield
    net.blocks[0].named["b"] = nn.Parameter(values(INNER, seed=7))
    yield
    net.blocks[1].scales[0] = nn.Parameter(values(INNER, seed=8))
    yield


class DictBlock(Mlp):
    def __init__(self, i=0):
        super().__init__()
        self.acts = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})

    def middle(self, y):
        for name, act in self.acts.items():
            y = act(y) * len(name)
        return y


@case()
def module_dict_reordered():
    net = twins(DictBlock)
    yield net
    yield
    d = net.blocks[0].acts
    a = d.pop("a")
    d["a"] = a
    yield
    d["ccc"] = nn.Sigmoid()
    yield
    yield


class Seq(Mlp):
    def __init__(self, i=0):
        super().__init__()
        self.seq = nn.Sequential(nn.ReLU(), nn.Dropout(0.0))

    def middle(self, y):
        return self.seq(y)


@case()
def sequential_edited():
    net = twins(Seq)
    yield net
    yield
    net.blocks[0].seq.append(nn.Tanh())
    yield
    net.blocks[1].seq[0] = nn.GELU()
    yield
    net.blocks[1].seq.insert(0, nn.Sigmoid())
    yield


@case()
def biases_alone_are_trained():
    net = twins(Mlp)
    yield net
    yield
    for n, p in net.named_parameters():
        p.requires_grad_("bias" in n)
    yield
    yield call(values(2, 5, 32))
    net.requires_grad_(True)
    yield


@case()
def hook_that_removes_itself():
    net = twins(Mlp)

    def once(module, args, out):
        handle.remove()
        return out * 2

    handle = net.blocks[0].norm.register_forward_hook(once)
    yield net
    yield
    yield
    handle = net.blocks[1].up.register_forward_hook(once)
    yield
    yield


@case()
def hook_put_in_front():
    net = twins(Mlp)
    net.blocks[0].norm.register_forward_hook(lambda m, a, o: o * 2)
    yield net
    yield
    net.blocks[0].norm.register_forward_hook(lambda m, a, o: o + 1, prepend=True)
    yield
    yield
    yield


@case()
def grads_accumulate_by_hand():
    net = twins(Mlp)
    yield net
    yield
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    yield
    for p in net.parameters():
        p.grad *= 0.5
    yield
    yield


@case()
def odd_shapes():
    net = twins(Mlp)
    yield net
    yield call(leaf(0, 5, 32))
    yield call(leaf(1, 1, 32))
    yield call(leaf(5, 32))
    yield call(leaf(32))
    yield call(leaf(2, 2, 5, 32))
    yield call(leaf(2, 1, 32).expand(2, 5, 32).detach().requires_grad_())
    yield call(leaf(32, 5, 2).permute(2, 1, 0).detach().requires_grad_())


class Outs(Mlp):
    def forward(self, x, extra=None, *more, scale=1.0, **kw):
        y = super().forward(x) * scale
        if more:
            y = y + more[0]
        for k in kw:
            y = y * kw[k]
        return {"x": y, "n": None, "i": 3, "twice": (y, y), "extra": extra}


class OutsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Outs(), Outs()])

    def forward(self, x, *args, **kw):
        for b in self.blocks:
            o = b(x, *args, **kw)
            x = o["x"] + o["twice"][1]
        return o["x"], o["i"], o["n"]


@case()
def arguments_in_many_ways():
    net = OutsNet()
    yield net
    yield call(leaf(2, 5, 32))
    yield call(leaf(2, 5, 32), None, values(2, 5, 32))
    yield call(leaf(2, 5, 32), scale=2.0)
    yield call(leaf(2, 5, 32), scale=torch.tensor(2.0, dtype=torch.float64))
    yield call(leaf(2, 5, 32), a=2.0, b=values(32))
    yield call(leaf(2, 5, 32), b=values(32), a=2.0)
    yield call(leaf(2, 5, 32), extra={"a": (1, values(3))})


@case()
def tensor_in_a_class():
    class B(Mlp):
        table = values(INNER, seed=2)

        def middle(self, y):
            return y * B.table

    net = twins(B)
    yield net
    yield
    B.table = values(INNER, seed=3)
    yield
    B.table.mul_(2)
    yield
    B.table.data = values(INNER, seed=5)
    yield
    yield


@case()
def tensor_resized_and_set():
    t = values(INNER, seed=2)

    class B(Mlp):
        def middle(self, y):
            return y * t

    net = twins(B)
    yield net
    yield
    t.set_(values(INNER, seed=3))
    yield
    t.copy_(values(INNER, seed=4))
    yield
    t.numpy()[:] = 2.0
    yield
    yield


@case()
def super_of_a_changed_base():
    class Base(Mlp):
        def middle(self, y):
            return y.relu()

    class B(Base):
        def middle(self, y):
            return super().middle(y) * 2

    net = twins(B)
    yield net
    yield
    Base.middle = lambda self, y: y.tanh()
    yield
    del Base.middle
    yield
    yield


@case()
def class_inserted_between():
    class Base(Mlp):
        pass

    class B(Base):
        pass

    net = twins(B)
    yield net
    yield
    Base.middle = lambda self, y: y.tanh()
    yield
    B.middle = lambda self, y: y.sigmoid()
    yield
    del B.middle, Base.middle
    yield


@case()
def forward_is_a_partial():
    net = twins(lambda i: Mlp())

    def scaled(self, k, x):
        return type(self).forward(self, x) * k

    for b in net.blocks:
        b.forward = functools.partial(scaled, b, 2.0)
    yield net
    yield
    net.blocks[0].forward = functools.partial(scaled, net.blocks[0], 3.0)
    yield
    del net.blocks[1].forward
    yield
    yield


@case()
def unhashable_and_equal():
    class E:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return True

        __hash__ = None

    e = [E(1.0)]
    yield from reading(lambda b: b.held[0].v, lambda n: e.__setitem__(0, E(2.0)), held=e)


@case()
def equal_keys_of_other_kinds():
    d = {1: 1.5}

    def change(n):
        d.clear()
        d[True] = 1.5

    yield from reading(lambda b: next(iter(b.held)) * 1.0 if type(next(iter(b.held))) is int else 4.0, change, held=d)


@case()
def dict_of_a_class_by_vars():
    class C:
        a = 1.0

    yield from reading(
        lambda b: len([k for k in vars(C) if not k.startswith("_")]) * C.a, lambda n: setattr(C, "b", 2.0)
    )


@case()
def loop_over_named_parameters():
    class B(Mlp):
        def middle(self, y):
            return y.relu() * len([n for n, p in self.named_parameters() if p.requires_grad])

    net = twins(B)
    yield net
    yield
    net.blocks[0].norm.weight.requires_grad_(False)
    yield
    yield
    yield


@case()
def device_and_dtype_asked():
    class B(Mlp):
        def middle(self, y):
            return y.relu() * (2 if next(self.parameters()).dtype == torch.float64 else 3) + torch.ones(
                INNER, dtype=self.up.weight.dtype, device=self.up.weight.device
            )

    net = twins(B)
    yield net
    yield
    yield
    yield
    yield


@case()
def is_training_of_outer():
    net = twins(Mlp)

    class B(Mlp):
        def middle(self, y):
            return y.relu() * (2 if outer().training else 3)

    net = twins(B)
    ref = weakref.ref(net)
    outer = ref
    yield net
    yield
    net.training = False
    yield
    net.train()
    yield
    yield


@case()
def total_ordering_and_compare():
    @functools.total_ordering
    class V:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

    a, b = V(1), V(2)
    yield from reading(lambda blk: 2.0 if a >= b else 3.0, lambda n: setattr(a, "v", 5))


@case()
def chained_properties():
    class C:
        @property
        def a(self):
            return self._a * K[0]

    K = [1.0]
    c = C()
    c._a = 2.0
    yield from reading(lambda b: b.held.a, lambda n: K.__setitem__(0, 3.0), lambda n: setattr(c, "_a", 5.0), held=c)


@case()
def singledispatch_method():
    class B(Mlp):
        @functools.singledispatchmethod
        def scale(self, v):
            return 1.0

        @scale.register
        def _(self, v: int):
            return 2.0

        def middle(self, y):
            return y.relu() * self.scale(self.v)

        v = 3

    net = twins(B)
    yield net
    yield
    net.blocks[0].v = "text"
    yield
    yield
    yield


@case()
def contextlib_in_a_block():
    import contextlib

    K = [1.0]

    @contextlib.contextmanager
    def scaled(v):
        old = K[0]
        K[0] = v
        try:
            yield
        finally:
            K[0] = old

    class B(Mlp):
        def middle(self, y):
            with scaled(2.5):
                y = y * K[0]
            return y.relu() * K[0]

    net = twins(B)
    yield net
    yield
    K[0] = 3.0
    yield
    yield
    yield
