"""More places for a number: those that are looked up by a name that is not written out, or that C code reads."""

from __future__ import annotations

from tests.contract.kinds import Kind

PRIVATE = """class Private{n}:
    __slots__ = ("__x",)

    def __init__(self):
        self.__x = 2.0

    def get(self):
        return self.__x

    def put(self, x):
        self.__x = x
"""

SETTINGS = """class Settings{n}(types.ModuleType):
    pass


M{n} = Settings{n}("settings_of_{n}")
M{n}.x = 2.0"""

COPIED = """class Copied{n}:
    def __init__(self, x):
        self.x = x
"""

SPACE = """class Space{n}(SimpleNamespace):
    pass
"""

SCALED = """class Scaled{n}(property):
    factor = 2.0

    def __get__(self, owner, kind=None):
        return self if owner is None else self.factor"""

AGAIN = """def r{n}(self, v):
    self.b{n}.add_(1)
    return self.b{n}.clone() * v.sigmoid().mean()"""

ROUNDED = """def r{n}(self, v):
    with saved_tensors_hooks(lambda kept: kept.round(decimals=1), lambda kept: kept):
        return v.mean().square() * self.a{n}"""

MORE_KINDS: dict[str, Kind] = {
    "size of a tensor": Kind(
        "(self.b{n}.sum() / self.b{n}.numel() + len(self.l{n}[0]))",
        ("self.b{n}.resize_(1 + len(self.b{n})).fill_(2)",),
        (
            "net.blocks[{b}].b{n}.resize_(3).fill_({v})",
            "net.blocks[{b}].b{n}.data = torch.full((2,), {v}, dtype=torch.float64)",
            "net.blocks[{b}].l{n}[0].data = torch.full((int({v}),), {v}, dtype=torch.float64)",
        ),
        init="self.register_buffer('b{n}', 2 * values(1).square())\nself.l{n} = [torch.ones(2, dtype=torch.float64)]",
        is_tensor=True,
    ),
    "type of a tensor": Kind(
        "(2.0 if self.b{n}.dtype == torch.float64 else 3.0)",
        (),
        (
            "net.blocks[{b}].b{n}.data = net.blocks[{b}].b{n}.data.float()",
            "net.blocks[{b}].b{n}.data = net.blocks[{b}].b{n}.data.double()",
        ),
        init="self.register_buffer('b{n}', values(2))",
    ),
    "tensors in one memory": Kind(
        "self.t{n}[:width]",
        ("self.b{n}.add_(1)", "self.b{n}[:9].mul_(0.5)"),
        (
            "net.blocks[{b}].t{n}.data = net.blocks[{b}].b{n}",
            "net.blocks[{b}].t{n}.data = net.blocks[{b}].b{n}.flip(0)",
            "net.blocks[{b}].t{n} = net.blocks[{b}].t{n}.clone()",
            "net.blocks[{b}].t{n} = net.blocks[0].b{n}[:]",
        ),
        init="held = values(60)\nself.register_buffer('b{n}', held[:48])\nself.t{n} = held[5:53]",
        is_tensor=True,
    ),
    "written in a checkpoint": Kind(
        "checkpoint(self.r{n}, v, use_reentrant=False)",
        (),
        ("net.blocks[{b}].b{n}.fill_({v})",),
        body=AGAIN,
        init="self.register_buffer('b{n}', values(1))",
        is_tensor=True,
    ),
    "rounded for the backward": Kind(
        "self.r{n}(v)", (), ("net.blocks[{b}].a{n} = {v}",), body=ROUNDED, init="self.a{n} = 2.0", is_tensor=True
    ),
    "buffer that may be missing": Kind(
        "(3.0 if hasattr(self, 'l{n}') else 2.0)",
        (),
        (
            "net.blocks[{b}].register_buffer('l{n}', torch.ones(1, dtype=torch.float64))",
            "net.blocks[{b}]._buffers.pop('l{n}', None)",
        ),
    ),
    "how many buffers": Kind(
        "(1.0 + len(list(self.norm.buffers())))",
        (),
        (
            "net.blocks[{b}].norm.register_buffer('l{n}', torch.ones(1))",
            "net.blocks[{b}].norm._buffers.pop('l{n}', None)",
        ),
    ),
    "attributes by a list of names": Kind(
        "sum(getattr(self, name) for name in dir(self) if name.startswith('q{n}_'))",
        ("self.q{n}_first += 1",),
        ("net.blocks[{b}].q{n}_second = {v}", "vars(net.blocks[{b}]).pop('q{n}_second', None)"),
        init="self.q{n}_first = 2.0",
    ),
    "name of a Python module": Kind(
        "getattr(M{n}, 'x')",
        ("setattr(M{n}, 'x', M{n}.x + 1)",),
        ("M{n}.x = {v}",),
        top="M{n} = types.ModuleType('settings_of_{n}')\nM{n}.x = 2.0",
    ),
    "dict of a Python module": Kind("vars(M{n})['x']", ("M{n}.x += 1",), ("M{n}.x = {v}",), top=SETTINGS),
    "private slot": Kind(
        "self.o{n}.get()",
        ("self.o{n}.put(self.o{n}.get() + 1)",),
        ("net.blocks[{b}].o{n}.put({v})", "net.blocks[{b}].o{n} = Private{n}()"),
        top=PRIVATE,
        init="self.o{n} = Private{n}()",
    ),
    "copy of a config": Kind(
        "copy.copy(self.o{n}).x",
        ("self.o{n} = copy.deepcopy(self.o{n})\nself.o{n}.x += 1",),
        ("net.blocks[{b}].o{n}.x = {v}", "net.blocks[{b}].o{n} = Copied{n}({v})"),
        top=COPIED,
        init="self.o{n} = Copied{n}(2.0)",
    ),
    "equal config": Kind(
        "(2.0 if self.o{n} == SPACE{n} else 3.0)",
        ("self.o{n}.x += 1",),
        ("net.blocks[{b}].o{n}.x = {v}", "SPACE{n}.x = {v}"),
        top=SPACE + "\n\nSPACE{n} = Space{n}(x=2.0)",
        init="self.o{n} = Space{n}(x=2.0)",
    ),
    "record": Kind(
        "float(self.r{n}['x'])",
        ("self.r{n}['x'] += 1",),
        ("net.blocks[{b}].r{n}['x'] = {v}",),
        init="self.r{n} = numpy.array([(2.0, 3)], dtype=[('x', 'f8'), ('n', 'i4')])[0]",
    ),
    "first of a set": Kind(
        "float(next(iter(self.s{n})) / 8)",
        (),
        (
            "net.blocks[{b}].s{n}.clear()\nnet.blocks[{b}].s{n}.update([int({v}) * 8, 16])",
            "net.blocks[{b}].s{n}.add(8)",
        ),
        init="self.s{n} = {{16}}",
    ),
    "kind of a key": Kind(
        "float(len(str(next(iter(self.d{n})))))",
        (),
        (
            "net.blocks[{b}].d{n}[True] = net.blocks[{b}].d{n}.pop(1)",
            "net.blocks[{b}].d{n}[1.0] = net.blocks[{b}].d{n}.pop(1)",
        ),
        init="self.d{n} = {{1: None}}",
    ),
    "argument of a call of a method": Kind(
        "operator.methodcaller('times', self.o{n})(TIMES{n})",
        ("self.o{n}.x += 1",),
        ("net.blocks[{b}].o{n}.x = {v}",),
        top="class Times{n}:\n    def times(self, o):\n        return o.x\n\n\nTIMES{n} = Times{n}()",
        init="self.o{n} = SimpleNamespace(x=2.0)",
    ),
    "kind of property": Kind(
        "self.y{n}", (), ("vars(Block)['y{n}'].factor = {v}",), top=SCALED, body="y{n} = Scaled{n}()"
    ),
    "own weights in a list": Kind(
        "(9 * self.w{n}[0].square().mean())",
        ("self.w{n}.reverse()",),
        (
            "net.blocks[{b}].w{n}[0] = net.blocks[{b}].down.weight",
            "net.blocks[{b}].w{n}[0] = net.blocks[0].up.weight",
            "net.blocks[{b}].w{n} = [nn.Parameter(values(3, 3, seed=int({v})))] * 2",
        ),
        init="self.w{n} = [self.up.weight, self.norm.weight]",
        is_tensor=True,
    ),
    "own weight in a partial function": Kind(
        "(9 * self.f{n}().square().mean())",
        (),
        (
            "net.blocks[{b}].f{n} = functools.partial(torch.clone, net.blocks[{b}].down.weight)",
            "net.blocks[{b}].f{n} = functools.partial(torch.relu, net.blocks[0].up.weight)",
        ),
        init="self.f{n} = functools.partial(torch.clone, self.up.weight)",
        is_tensor=True,
    ),
    "own weight by a weak reference": Kind(
        "(9 * self.r{n}['x']().square().mean())",
        (),
        (
            "net.blocks[{b}].r{n}['x'] = weakref.ref(net.blocks[{b}].norm.weight)",
            "net.blocks[{b}].r{n} = {{'x': weakref.ref(net.blocks[{b}].down.weight)}}",
        ),
        init="self.r{n} = {{'x': weakref.ref(self.up.weight)}}",
        is_tensor=True,
    ),
    "object of torch": Kind(
        "self.o{n}.amount",
        (),
        ("net.blocks[{b}].o{n}.amount = {v}",),
        init="self.o{n} = prune.L1Unstructured(amount=2)",
    ),
}
