"""Who is who: the block and its parts by other ways than attributes, its place among its siblings, its class and memory, and
arguments that are equal and yet not the same."""

from __future__ import annotations

import collections
import contextvars
import copy
import enum
import inspect
import math
import types
from typing import Any

import numpy
import torch
from torch import nn

from tests.contract.parts import HIDDEN, INNER, Mlp, Net, Reads, call, case, leaf, linear, twins, values


def changed(net, change):
    yield net
    yield
    change(net)
    for _ in range(3):
        yield


# -- parts of a block that it holds elsewhere, too ---------------------------------------------------------------------


class Holds(Mlp):
    """Reads a part of its own from `held`, made by a function of the block."""

    def __init__(self, hold, read):
        super().__init__()
        self.held, self.read = hold(self), read

    def middle(self, y):
        return y.relu() * self.read(self.held)


class Object:
    """Holds what it is given."""

    def __init__(self, part):
        self.part = part


def nested(value, depth):
    return value if not depth else [nested(value, depth - 1)]


def first(value):
    return first(value[0]) if isinstance(value, list) else value.weight.mean()


def holding(hold, read):
    yield from changed(twins(lambda i: Holds(hold, read)), lambda net: net.blocks[0].norm.weight.data.fill_(3.0))


@case()
def part_in_a_namespace():
    yield from holding(lambda b: types.SimpleNamespace(norm=b.norm), lambda held: held.norm.weight.mean())


@case()
def cut_part_in_a_namespace():
    yield from holding(lambda b: types.SimpleNamespace(up=b.up), lambda held: held.up.bias.mean())


@case()
def part_in_an_ordered_dict():
    yield from holding(lambda b: collections.OrderedDict(n=b.norm), lambda held: held["n"].weight.mean())


@case()
def part_in_a_deque():
    yield from holding(lambda b: collections.deque([b.norm]), lambda held: held[0].weight.mean())


@case()
def part_in_a_list_of_an_object():
    yield from holding(lambda b: Object([b.norm]), lambda held: held.part[0].weight.mean())


@case()
def cut_part_in_a_dict_of_an_object():
    yield from holding(lambda b: Object({"up": b.up}), lambda held: held.part["up"].bias.mean())


@case()
def part_deep_in_lists():
    yield from holding(lambda b: nested(b.norm, 9), first)


@case()
def part_as_a_default():
    def hold(block):
        def scale(part=block.norm):
            return part.weight.mean()

        return scale

    yield from holding(hold, lambda held: held())


@case()
def part_as_a_keyword_of_a_function():
    def hold(block):
        def scale(*, part=block.norm):
            return part.weight.mean()

        return scale

    yield from holding(hold, lambda held: held())


@case()
def hook_with_a_part_as_a_default():
    net = twins(lambda i: Mlp())
    for block in net.blocks:
        block.norm.register_forward_hook(lambda m, args, out, b=block: out + b.norm.bias.mean() + b.norm.weight.mean())
    yield from changed(net, lambda net: net.blocks[0].norm.bias.data.fill_(2.0))


class Picks(Mlp):
    """Holds one of two norms."""

    def __init__(self, hold, read):
        super().__init__()
        self.other = nn.LayerNorm(HIDDEN, dtype=torch.float64)
        self.other.weight.data.fill_(3.0)
        self.held, self.read = hold(self.norm), read

    def before(self, x):
        return self.read(self.held)(x) * 1.5


def picking(hold, read, put):
    def change(net):
        put(net.blocks[0], net.blocks[0].other)

    yield from changed(twins(lambda i: Picks(hold, read)), change)


@case()
def list_with_another_part():
    yield from picking(lambda n: [n], lambda held: held[0], lambda b, other: b.held.__setitem__(0, other))


@case()
def dict_with_another_part():
    yield from picking(lambda n: {"n": n}, lambda held: held["n"], lambda b, other: b.held.__setitem__("n", other))


@case()
def object_with_another_part():
    yield from picking(Object, lambda held: held.part, lambda b, other: setattr(b.held, "part", other))


@case()
def object_with_another_block():
    net = twins(lambda i: Reads(lambda block: 2.0 if block.held.part is block else 3.0))
    for block in net.blocks:
        object.__setattr__(block, "held", Object(block))
    yield from changed(net, lambda net: setattr(net.blocks[0].held, "part", net.blocks[1]))


# -- its place ---------------------------------------------------------------------------------------------------------


class Numbered(Mlp):
    def __init__(self, index, read):
        super().__init__()
        self.index, self.read = index, read

    def middle(self, y):
        return y.relu() if self.read(self.index) else y.tanh() * 2


def numbered_anew(net):
    del net.blocks[0]
    for i, block in enumerate(net.blocks):
        block.index = i


@case()
def blocks_numbered_anew():
    yield from changed(twins(lambda i: Numbered(i, lambda index: index % 2), 4), numbered_anew)


@case()
def places_exchanged():
    def change(net):
        net.blocks[0].index, net.blocks[1].index = 1, 0

    yield from changed(twins(lambda i: Numbered(i, [True, False, True].__getitem__)), change)


@case()
def place_that_is_no_number_any_more():
    yield from changed(
        twins(lambda i: Numbered(i, lambda index: index is not None and index > 0)),
        lambda net: setattr(net.blocks[1], "index", None),
    )


@case()
def state_by_the_id_of_a_block():
    def states(given={}):  # noqa: B006 - nobody takes note of what a function has by default
        return given

    net = twins(lambda i: Reads(lambda block: states().get(id(block), 1.0)))
    states().update({id(block): i + 2.0 for i, block in enumerate(net.blocks)})
    yield from changed(net, lambda net: states().update({id(net.blocks[0]): 7.0}))


# -- its class ---------------------------------------------------------------------------------------------------------


class Odd(nn.Linear):
    """Has attributes and methods that a library might want to have, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.padded, self.ranks, self.layouts, self.apart, self.transposed = 2.0, 1.0, 3.0, 1.0, 0.0

    def local(self, x):
        return x * self.padded * self.layouts

    def product(self, x):
        return nn.functional.linear(x, self.weight, self.bias) * self.ranks

    def forward(self, x):
        return self.product(self.local(x))


@case()
def layer_with_names_of_its_own():
    def make(i):
        block = Mlp()
        block.up, block.down = Odd(HIDDEN, INNER, dtype=torch.float64), Odd(INNER, HIDDEN, dtype=torch.float64)
        return block

    torch.manual_seed(0)
    yield from changed(twins(make), lambda net: setattr(net.blocks[0].up, "padded", 0.5))


@case()
def layers_found_by_type():
    def change(net):
        for part in net.modules():
            if type(part) is nn.Linear:
                part.weight.data.mul_(0.5)
            if part.__class__.__name__ == "Linear":
                part.weight.data.add_(0.1)

    yield from changed(twins(lambda i: Mlp()), change)


class Base(Mlp):
    def middle(self, y):
        return y.relu()


class Derived(Base):
    @classmethod
    def factor(cls):
        return 2.0

    def middle(self, y):
        return super().middle(y) * type(self).factor()


def replacing(owner: Any, name: str, value: Any, net: Any):
    """One call with the class as it is, and then with another member."""
    before = vars(owner)[name]
    yield net
    yield
    try:
        setattr(owner, name, value)
        yield
        yield
    finally:
        setattr(owner, name, before)
    yield


@case()
def method_of_the_base_replaced():
    yield from replacing(Base, "middle", lambda self, y: y.tanh() * 3, twins(lambda i: Derived()))


@case()
def class_method_replaced():
    yield from replacing(Derived, "factor", classmethod(lambda cls: 5.0), twins(lambda i: Derived()))


class Truth:
    def __bool__(self):
        return True

    def __len__(self):
        return 2

    def __call__(self):
        return 2.0


@case()
def truth_replaced():
    held = Truth()
    yield from replacing(
        Truth, "__bool__", lambda self: False, twins(lambda i: Reads(lambda block: 2.0 if held else 3.0))
    )


@case()
def length_replaced():
    held = Truth()
    yield from replacing(Truth, "__len__", lambda self: 4, twins(lambda i: Reads(lambda block: float(len(held)))))


@case()
def call_replaced():
    held = Truth()
    yield from replacing(Truth, "__call__", lambda self: 4.0, twins(lambda i: Reads(lambda block: held())))


class Level(enum.Enum):
    LOW = 1

    def factor(self):
        return 2.0


@case()
def method_of_an_enumeration_replaced():
    yield from replacing(Level, "factor", lambda self: 4.0, twins(lambda i: Reads(lambda block: Level.LOW.factor())))


class Table(dict):
    def best(self):
        return 2.0


@case()
def method_of_a_dict_replaced():
    held = Table()
    yield from replacing(Table, "best", lambda self: 4.0, twins(lambda i: Reads(lambda block: held.best())))


class Passes(Net):
    """Gives its blocks what they say that they take."""

    def forward(self, x):
        for block in self.blocks:
            known = inspect.signature(block.forward).parameters
            x = block(x, **{name: value for name, value in {"scale": 3.0, "other": 1.0}.items() if name in known})
        return x


class Takes(Mlp):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale


@case()
def signature_of_a_block():
    yield from changed(Passes(Takes(), Takes()), lambda net: None)


# -- its memory --------------------------------------------------------------------------------------------------------

MEMORY = ("over one memory",)


class Sibling(Mlp):
    def __init__(self, i=0):
        super().__init__()
        self.down.weight.data = self.up.weight.data.t()


@case(refusal=MEMORY)
def weights_tied_by_memory():
    yield from changed(twins(Sibling), lambda net: torch.optim.SGD(net.parameters(), lr=0.1).step())


@case(refusal=MEMORY)
def weight_and_a_list_over_one_memory():
    net = twins(lambda i: Reads(lambda block: block.held[0].sum()))
    for block in net.blocks:
        block.held = [block.up.weight.data]
    yield from changed(net, lambda net: net.blocks[0].up.weight.data.mul_(2.0))


@case()
def lazy_layer_put_in():
    def change(net):
        net.blocks[0].up = nn.LazyLinear(INNER, dtype=torch.float64)
        torch.manual_seed(1)

    yield from changed(twins(lambda i: Mlp()), change)


@case()
def buffers_counted():
    yield from changed(
        twins(lambda i: Reads(lambda block: 2.0 + len(dict(block.named_buffers())))),
        lambda net: net.blocks[0].register_buffer("extra", torch.ones(1)),
    )


@case()
def one_block_under_two_names():
    net = twins(lambda i: Mlp())
    net.first = net.blocks[0]
    net.others = nn.ModuleList([net.blocks[1], net.blocks[0]])
    yield from changed(net, lambda net: net.blocks[0].up.weight.data.mul_(2.0))


# -- arguments, and what a context holds -------------------------------------------------------------------------------


class Given(Mlp):
    def forward(self, x, g=None):
        kind = 7.0 if g is True else 5.0 if type(g) is float else 3.0
        return super().forward(x) * math.copysign(kind, g or (g if isinstance(g, float) else 1.0))


@case()
def equal_arguments_of_other_kinds():
    x = values(2, 5, HIDDEN)
    yield Alone(), (x,)
    for given in (True, 1.0, numpy.float64(1.0), 0.0, -0.0, 0.0, True):
        yield call(leaf(2, 5, HIDDEN), given)


class Alone(Net):
    """Hands an argument on."""

    def __init__(self):
        super().__init__(Given(), Given())

    def forward(self, x, g=None):
        for block in self.blocks:
            x = block(x, g)
        return x


VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("factor", default=1.0)


class Counts(Mlp):
    def middle(self, y):
        VARIABLE.set(VARIABLE.get() + 1)
        return y.relu() * VARIABLE.get()


@case()
def variable_of_the_context_that_counts():
    VARIABLE.set(1.0)
    yield from changed(twins(lambda i: Counts()), lambda net: VARIABLE.set(3.0))


COLLECTED: contextvars.ContextVar[dict[str, list[torch.Tensor]] | None] = contextvars.ContextVar(
    "collected", default=None
)


class Asks(Mlp):
    def middle(self, y):
        collected = COLLECTED.get()
        return y.relu() * (1.0 if collected is None or "scales" not in collected else len(collected["scales"]) + 2.0)


@case()
def variable_of_the_context_that_holds_tensors():
    COLLECTED.set(None)
    net = twins(lambda i: Asks())
    yield net
    for block in net.blocks:
        block.register_forward_hook(
            lambda module, args, out: (COLLECTED.get() or {}).setdefault("outs", []).append(out)
        )
    COLLECTED.set({"outs": []})
    yield
    COLLECTED.set({"outs": [torch.zeros(2, 3)], "scales": [torch.ones(2)]})
    yield
    COLLECTED.get()["scales"].append(torch.ones(2))
    yield
    COLLECTED.set(None)
    yield


# -- gradients ---------------------------------------------------------------------------------------------------------


class Force(Mlp):
    def forward(self, x):
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            energy = self.down(self.up(z).tanh()).square().sum()
            (slope,) = torch.autograd.grad(energy, z, create_graph=True)
        return x - 0.1 * slope


@case()
def gradient_in_a_forward():
    yield from changed(twins(lambda i: Force()), lambda net: net.blocks[0].up.weight.data.mul_(2.0))


@case()
def backward_to_some_inputs():
    net = twins(lambda i: Mlp())
    yield net
    yield

    def run():
        x = leaf(2, 5, HIDDEN, seed=3)
        out = net(x)
        out.sum().backward(inputs=[net.blocks[0].up.weight, net.blocks[1].norm.weight, x])
        return x.grad.clone(), *[p.grad.sum() for p in net.parameters() if p.grad is not None]

    yield call(run=run, backward=False)
    yield call(run=run, backward=False)
    yield call(run=run, backward=False)


class Hooked(Net):
    """Scales gradients between its blocks by what their weights are then."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            if x.requires_grad:
                x.register_hook(lambda g, b=block: g * b.up.weight.detach().sum() + b.down.weight.detach()[0, 40])
        return x


@case()
def hook_that_reads_a_cut_weight_in_a_backward():
    yield from changed(Hooked(Mlp(), Mlp()), lambda net: net.blocks[0].up.weight.data.mul_(2.0))


@case()
def backward_hook_of_the_model_that_reads_cut_weights():
    net = twins(lambda i: Mlp())
    net.register_full_backward_hook(
        lambda m, inner, outer: tuple(g * m.blocks[0].up.weight.detach().norm() for g in inner)
    )
    yield net, (leaf(2, 5, HIDDEN),)
    for _ in range(4):
        yield call(leaf(2, 5, HIDDEN))


@case()
def weight_given_for_one_call_that_wants_a_gradient():
    net = twins(lambda i: Mlp())
    yield net
    yield

    def run():
        weight = values(INNER, HIDDEN, seed=3).requires_grad_()
        out = torch.func.functional_call(net, {"blocks.0.up.weight": weight}, (leaf(2, 5, HIDDEN, seed=1),))
        out.sum().backward()
        return out.detach(), weight.grad.detach().clone()

    yield call(run=run, backward=False)
    yield call(run=run, backward=False)
    yield call(run=run, backward=False)


# -- settings of libraries ---------------------------------------------------------------------------------------------


@case()
def what_numpy_does_about_overflow():
    net = twins(lambda i: Reads(lambda block: 2.0 if numpy.geterr()["over"] == "warn" else 3.0))
    yield net
    yield
    yield call(under=lambda: numpy.errstate(over="ignore"))
    yield
    yield


@case()
def dtype_of_autocast_asked():
    net = twins(lambda i: Reads(lambda block: 2.0 if torch.get_autocast_dtype("cpu") == torch.bfloat16 else 3.0))
    yield net
    yield
    try:
        torch.set_autocast_dtype("cpu", torch.float16)
        yield
    finally:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    yield
    yield


@case()
def blocks_copied_before():
    net = twins(lambda i: Numbered(i, lambda index: index > 0))
    net.blocks.append(copy.deepcopy(net.blocks[0]))
    net.extra = linear(HIDDEN, HIDDEN)
    yield from changed(net, lambda net: setattr(net.blocks[2], "index", 2))


@case()
def graph_of_the_whole_model_kept():
    net = twins(lambda i: Mlp())
    kept = net(leaf(2, 5, HIDDEN)).sum()
    yield net
    yield
    yield
    yield
    assert kept.requires_grad
    yield


@case()
def hook_typed_at_a_prompt():
    net, scope = twins(lambda i: Mlp()), dict[str, Any]()
    exec(
        compile("def hook(gradient): return gradient * net.blocks[0].up.weight.detach().shape[0]", "<stdin>", "exec"),
        scope,
    )
    scope["net"] = net

    def run():
        x = leaf(2, 5, HIDDEN, seed=3)
        out = net(x)
        out.register_hook(scope["hook"])
        out.sum().backward()
        return x.grad.clone()

    yield net
    yield
    yield call(run=run, backward=False)
    yield call(run=run, backward=False)
    yield
