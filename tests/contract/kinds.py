"""Where a generated block keeps a number: how it is made, read, written by the block, and changed from outside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Python text in which `{n}` is the state's number, `{b}` a block's and `{v}` a value.

    `top` stands in the module, `local` before the class, `body` in the class, `init` in its `__init__`. A `name` is declared
    global or nonlocal where it is written. What `is_tensor` reads tensors.
    """

    read: str
    writes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    top: str = ""
    local: str = ""
    body: str = ""
    init: str = ""
    globals: str = ""
    nonlocals: str = ""
    is_tensor: bool = False


PROPERTY = """@property
def p{n}(self):
    return self._p{n} * 1.0

@p{n}.setter
def p{n}(self, value):
    self._p{n} = value"""

ANSWERS = """class Answers{n}:
    def __init__(self):
        self.known = {{"x": 2.0}}

    def __getattr__(self, name):
        if name == "x":
            return self.known["x"]
        raise AttributeError(name)
"""

SLOTS = """class Slots{n}:
    __slots__ = ("x",)

    def __init__(self):
        self.x = 2.0
"""

HANDLER = """class Handler{n}(logging.Handler):
    seen = 2.0

    def emit(self, record):
        self.seen += 1


G{n}, H{n} = logging.Logger("x"), Handler{n}()
G{n}.addHandler(H{n})"""

KINDS: dict[str, Kind] = {
    "module global": Kind("G{n}", ("G{n} += 1",), ("G{n} = {v}",), top="G{n} = 2.0", globals="G{n}"),
    "cell": Kind("c{n}", ("c{n} += 1",), ("c{n} = {v}",), local="c{n} = 2.0", nonlocals="c{n}"),
    "class attribute": Kind(
        "self.k{n}",
        ("type(self).k{n} += 1", "self.k{n} += 1"),
        ("Block.k{n} = {v}", "net.blocks[{b}].k{n} = {v}"),
        body="k{n} = 2.0",
    ),
    "attribute": Kind(
        "self.a{n}",
        ("self.a{n} += 1", 'setattr(self, "a{n}", self.a{n} + 1)', 'self.__dict__["a{n}"] += 1'),
        ("net.blocks[{b}].a{n} = {v}", 'vars(net.blocks[{b}])["a{n}"] = {v}'),
        init="self.a{n} = 2.0",
    ),
    "attribute of an inner module": Kind(
        "self.norm.a{n}", ("self.norm.a{n} += 1",), ("net.blocks[{b}].norm.a{n} = {v}",), init="self.norm.a{n} = 2.0"
    ),
    "shared config": Kind(
        "self.o{n}.x",
        ("self.o{n}.x += 1",),
        ("O{n}.x = {v}", "net.blocks[{b}].o{n} = SimpleNamespace(x={v})", "net.blocks[{b}].o{n} = O{n}"),
        top="O{n} = SimpleNamespace(x=2.0)",
        init="self.o{n} = O{n}",
    ),
    "own config": Kind(
        "self.o{n}.x",
        ("self.o{n}.x += 1",),
        ("net.blocks[{b}].o{n}.x = {v}", "net.blocks[0].o{n} = net.blocks[1].o{n}"),
        init="self.o{n} = SimpleNamespace(x=2.0)",
    ),
    "nested object": Kind(
        "self.o{n}.inner.values['x'][0]",
        ("self.o{n}.inner.values['x'][0] += 1",),
        (
            "net.blocks[{b}].o{n}.inner.values['x'] = [{v}]",
            "net.blocks[{b}].o{n}.inner = SimpleNamespace(values={{'x': [{v}]}})",
        ),
        init="self.o{n} = SimpleNamespace(inner=SimpleNamespace(values={{'x': [2.0]}}))",
    ),
    "dict": Kind(
        "self.d{n}['x']",
        ("self.d{n}['x'] += 1", "self.d{n} = {{'x': self.d{n}['x'] + 1}}", "self.d{n}.update(x=self.d{n}['x'] + 1)"),
        ("net.blocks[{b}].d{n}['x'] = {v}", "net.blocks[{b}].d{n} = {{'x': {v}}}"),
        init="self.d{n} = {{'x': 2.0}}",
    ),
    "shared dict": Kind(
        "D{n}.get('x', 1.0)",
        ("D{n}['x'] = D{n}.get('x', 1.0) + 1",),
        ("D{n}['x'] = {v}", "D{n}.clear()"),
        top="D{n} = {{'x': 2.0}}",
    ),
    "default dict": Kind(
        "self.d{n}['x']",
        ("self.d{n}['x'] += 1",),
        ("net.blocks[{b}].d{n}['x'] = {v}", "net.blocks[{b}].d{n}.clear()"),
        init="self.d{n} = defaultdict(lambda: 2.0)",
    ),
    "list": Kind(
        "self.l{n}[-1]",
        ("self.l{n}.append(self.l{n}[-1] + 1)", "self.l{n}[-1] += 1"),
        ("net.blocks[{b}].l{n}.append({v})", "net.blocks[{b}].l{n}.sort()", "net.blocks[{b}].l{n} = [{v}]"),
        init="self.l{n} = [3.0, 2.0]",
    ),
    "length of a list": Kind(
        "len(self.l{n})",
        ("self.l{n}.append(None)",),
        ("net.blocks[{b}].l{n}.append({v})", "net.blocks[{b}].l{n}.clear()"),
        init="self.l{n} = [1, 2]",
    ),
    "deque": Kind(
        "self.q{n}[0]",
        ("self.q{n}.rotate(1)", "self.q{n}.appendleft(self.q{n}[0] + 1)"),
        ("net.blocks[{b}].q{n}.rotate(1)", "net.blocks[{b}].q{n}.appendleft({v})"),
        init="self.q{n} = deque([1.0, 2.0, 3.0])",
    ),
    "set": Kind(
        "(3.0 if 'x' in self.s{n} else 2.0)",
        ("self.s{n} ^= {{'x'}}",),
        ("net.blocks[{b}].s{n} ^= {{'x'}}", "net.blocks[{b}].s{n} = {{'x', {v}}}"),
        init="self.s{n} = {{'y'}}",
    ),
    "property": Kind(
        "self.p{n}",
        ("self.p{n} = self.p{n} + 1",),
        ("net.blocks[{b}].p{n} = {v}", "net.blocks[{b}]._p{n} = {v}"),
        body=PROPERTY,
        init="self._p{n} = 2.0",
    ),
    "object that answers": Kind(
        "self.o{n}.x",
        ("self.o{n}.known['x'] += 1", "self.o{n}.x = self.o{n}.x + 1"),
        ("net.blocks[{b}].o{n}.known['x'] = {v}",),
        top=ANSWERS,
        init="self.o{n} = Answers{n}()",
    ),
    "slots": Kind(
        "self.o{n}.x",
        ("self.o{n}.x += 1",),
        ("net.blocks[{b}].o{n}.x = {v}",),
        top=SLOTS,
        init="self.o{n} = Slots{n}()",
    ),
    "environment": Kind(
        "float(os.environ.get('CONTRACT_X{n}', 2))",
        ("os.environ['CONTRACT_X{n}'] = str(float(os.environ.get('CONTRACT_X{n}', 2)) + 1)",),
        ("os.environ['CONTRACT_X{n}'] = str({v})", "os.environ.pop('CONTRACT_X{n}', None)"),
    ),
    "function": Kind(
        "f{n}()",
        (),
        ("f{n} = lambda: {v}", "f{n}.__defaults__ = ({v},)"),
        top="def f{n}(x=2.0):\n    return x\n",
        globals="f{n}",
    ),
    "default of a function": Kind(
        "f{n}()",
        ("f{n}.__defaults__ = (f{n}() + 1,)",),
        ("f{n}.__defaults__ = ({v},)",),
        top="def f{n}(x=2.0):\n    return x\n",
    ),
    "attribute of a function": Kind(
        "f{n}.x", ("f{n}.x += 1",), ("f{n}.x = {v}",), top="def f{n}():\n    pass\n\n\nf{n}.x = 2.0"
    ),
    "function held by a block": Kind(
        "self.f{n}()",
        ("self.f{n} = functools.partial(float, self.f{n}() + 1)",),
        ("net.blocks[{b}].f{n} = functools.partial(float, {v})", "net.blocks[{b}].f{n} = lambda: {v}"),
        init="self.f{n} = functools.partial(float, 2.0)",
    ),
    "partial of a method": Kind(
        "self.f{n}()",
        ("self.l{n}[0] += 1",),
        ("net.blocks[{b}].l{n}[0] = {v}", "net.blocks[{b}].l{n}.insert(0, {v})"),
        init="self.l{n} = [2.0]\nself.f{n} = functools.partial(self.l{n}.__getitem__, 0)",
    ),
    "buffer": Kind(
        "self.b{n}",
        ("self.b{n}.add_(1)", "self.b{n} = 0.5 * self.b{n} + 1"),
        ("net.blocks[{b}].b{n}.fill_({v})", "net.blocks[{b}].b{n} = torch.tensor([{v}], dtype=torch.float64)"),
        init='self.register_buffer("b{n}", torch.tensor([2.0], dtype=torch.float64))',
        is_tensor=True,
    ),
    "tensor": Kind(
        "self.t{n}",
        ("self.t{n}.add_(1)", "self.t{n} = 0.5 * self.t{n} + 1"),
        ("net.blocks[{b}].t{n}.fill_({v})", "net.blocks[{b}].t{n} = torch.tensor([{v}], dtype=torch.float64)"),
        init="self.t{n} = torch.tensor([2.0], dtype=torch.float64)",
        is_tensor=True,
    ),
    "wide buffer": Kind(
        "self.b{n}[:width]",
        ("self.b{n}[0] += 1", "self.b{n} = self.b{n}.flip(0)"),
        ("net.blocks[{b}].b{n}[1] = {v}", "net.blocks[{b}].b{n} = torch.full((48,), {v}, dtype=torch.float64)"),
        init='self.register_buffer("b{n}", torch.linspace(0, 2, 48, dtype=torch.float64))',
        is_tensor=True,
    ),
    "tensor of the module": Kind(
        "T{n}[0]",
        ("T{n}[0].add_(1)", "T{n}[0] = 0.5 * T{n}[0] + 1"),
        ("T{n}[0].fill_({v})", "T{n}[0] = torch.tensor([{v}], dtype=torch.float64)"),
        top="T{n} = [torch.tensor([2.0], dtype=torch.float64)]",
        is_tensor=True,
    ),
    "array": Kind(
        "float(self.n{n}[1])",
        ("self.n{n}[1] += 1", "self.n{n} = self.n{n} + 1"),
        ("net.blocks[{b}].n{n}[1] = {v}", "net.blocks[{b}].n{n} = numpy.array([1.0, {v}])"),
        init="self.n{n} = numpy.array([1.0, 2.0])",
    ),
    "mode of an inner module": Kind(
        "(2.0 if self.drop.training else 3.0)",
        ("self.drop.training = not self.drop.training",),
        ("net.blocks[{b}].drop.eval()", "net.blocks[{b}].drop.train()"),
    ),
    "mode of the block": Kind(
        "(2.0 if self.training else 3.0)", (), ("net.blocks[{b}].eval()", "net.blocks[{b}].train()")
    ),
    "attribute that may be missing": Kind(
        "getattr(self, 'm{n}', 2.0)",
        ("self.m{n} = getattr(self, 'm{n}', 2.0) + 1",),
        ("net.blocks[{b}].m{n} = {v}", "vars(net.blocks[{b}]).pop('m{n}', None)"),
    ),
    "another block's attribute": Kind(
        "getattr(self.friends[0], 'm{n}', 2.0)",
        ("self.friends[0].m{n} = getattr(self.friends[0], 'm{n}', 2.0) + 1",),
        ("net.blocks[0].m{n} = {v}",),
    ),
    "frozen dataclass": Kind(
        "self.o{n}.x",
        ("self.o{n} = Point{n}(self.o{n}.x + 1)",),
        ("net.blocks[{b}].o{n} = Point{n}({v})", "object.__setattr__(net.blocks[{b}].o{n}, 'x', {v})"),
        top="@dataclass(frozen=True)\nclass Point{n}:\n    x: float = 2.0\n",
        init="self.o{n} = Point{n}()",
    ),
    "iterator": Kind(
        "next(self.i{n})",
        (),
        ("net.blocks[{b}].i{n} = itertools.count({v})",),
        init="self.i{n} = itertools.count(2.0, 0.5)",
    ),
    "cached function": Kind(
        "f{n}(2)",
        (),
        ("V{n}[0] = {v}", "f{n}.cache_clear()", "V{n}[0] = {v}\nf{n}.cache_clear()"),
        top="V{n} = [2.0]\n\n\n@functools.cache\ndef f{n}(x):\n    return V{n}[0] * x / 2\n",
    ),
    "cached function that counts": Kind(
        "(f{n}(2) + V{n}[1])",
        (),
        ("V{n}[0] = {v}", "f{n}.cache_clear()", "V{n}[1] = {v}\nf{n}.cache_clear()"),
        top="V{n} = [2.0, 0.0]\n\n\n@functools.lru_cache(2)\ndef f{n}(x):\n    V{n}[1] += 1\n    return V{n}[0] * x / 2\n",
    ),
    "table that is filled once": Kind(
        "D{n}.setdefault('x', V{n}[0])",
        (),
        ("D{n}.clear()", "V{n}[0] = {v}", "V{n}[0] = {v}\nD{n}.clear()"),
        top="V{n}, D{n} = [2.0], {{}}",
    ),
    "lock": Kind(
        "(3.0 if L{n}.locked() else 2.0)",
        ("L{n}.acquire(blocking=False)",),
        ("L{n}.locked() and L{n}.release()", "L{n}.acquire(blocking=False)"),
        top="L{n} = threading.Lock()",
    ),
    "handler of a logger": Kind(
        "H{n}.seen",
        ("G{n}.warning('a call')", "H{n}.seen += 1"),
        ("H{n}.seen = {v}", "G{n}.disabled = not G{n}.disabled", "G{n}.setLevel(50)"),
        top=HANDLER,
    ),
    "classes made of a class": Kind(
        "(1.0 + len(B{n}.__subclasses__()))",
        (),
        ("K{n}.append(type('Another', (B{n},), {{}}))", "K{n}.append(type('Last', (K{n}[-1],), {{}}))"),
        top="class B{n}:\n    pass\n\n\nK{n} = [B{n}]",
    ),
}
