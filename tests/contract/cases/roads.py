"""State that a block reads by other roads: classes, Python modules, C functions, attributes of tensors, torch's settings."""

import copy
import dataclasses
import enum
import functools
import gc
import operator
import sys
import tempfile
import types
from pathlib import Path

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.contract.parts import HIDDEN, INNER, Mlp, Reads, call, case, leaf, reading, twins, values

FACTOR = 2.0


class Config:
    factor = 2.0
    steps = (1.0, 2.0)


def set_class(value):
    return lambda net: setattr(Config, "factor", value)


@case()
def class_as_a_config():
    yield from reading(lambda block: block.held.factor, set_class(3.0), set_class(4.0), held=Config)


@case()
def class_in_a_dict():
    yield from reading(lambda block: block.held["config"].factor, set_class(3.0), held={"config": Config})


@case()
def class_in_a_variable():
    def read(block):
        config = Config
        return config.factor

    yield from reading(read, set_class(3.0))


@case()
def class_of_an_object():
    yield from reading(
        lambda block: type(block.held).factor + block.held.__class__.factor, set_class(3.0), held=Config()
    )


class HasClassNumber(Mlp):
    factor = 2.0

    @classmethod
    def scale(cls):
        return cls.factor

    def middle(self, y):
        return y.relu() * self.scale() * type(self).factor


@case()
def class_of_the_block():
    yield twins(lambda index: HasClassNumber())
    yield
    HasClassNumber.factor = 3.0
    yield
    HasClassNumber.scale = classmethod(lambda cls: 5.0)
    yield
    yield


@case()
def class_asked_by_name():
    def change(net):
        Config.extra = 3.0

    yield from reading(
        lambda block: getattr(Config, "extra", 2.0) + hasattr(Config, "extra") + vars(Config).get("extra", 1.0), change
    )


@case()
def python_module_as_a_config():
    settings = types.ModuleType("settings")
    settings.factor = 2.0

    def change(net):
        settings.factor = 3.0

    yield from reading(lambda block: block.held.factor, change, held=settings)


@case()
def python_module_in_a_variable():
    def read(block):
        module = sys.modules[__name__]
        return module.FACTOR

    def change(net):
        global FACTOR
        FACTOR = 3.0

    yield from reading(read, change)


@case()
def globals_as_a_dict():
    def change(net):
        global FACTOR
        FACTOR = 3.0

    yield from reading(lambda block: globals()["FACTOR"], change)


@case()
def evaluated_text():
    def change(net):
        global FACTOR
        FACTOR = 3.0

    yield from reading(lambda block: eval("FACTOR * 1.0"), change)


@case()
def read_by_c():
    held = types.SimpleNamespace(x=2.0, y=[1.0, 2.0], z={"a": 1.0})

    def read(block):
        first, second = block.held.y
        pairs = sum(block.held.y) + max(block.held.z.values()) + operator.attrgetter("held.x")(block)
        return (
            pairs
            + len(str(block.held.z)) / 10
            + operator.itemgetter(0)(block.held.y)
            + [*block.held.y][1]
            + first * second
        )

    def change(net):
        held.x = 3.0

    def deeper(net):
        held.y[1] = 5.0

    def deepest(net):
        held.z["a"] = 123.0

    yield from reading(read, change, deeper, deepest, held=held)


@dataclasses.dataclass
class Data:
    factor: float = 2.0
    other: float = 1.0


@case()
def copied_and_compared():
    data = Data()

    def read(block):
        equal = block.held == Data()
        return copy.copy(block.held).factor + dataclasses.asdict(block.held)["other"] + (1.0 if equal else 2.0)

    def change(net):
        data.factor = 3.0

    def other(net):
        data.other = 4.0

    yield from reading(read, change, other, held=data)


class Keeps:
    """Computes a number once."""

    def __init__(self):
        self.base = 2.0

    @functools.cached_property
    def factor(self):
        return self.base * 1.5


@case()
def cached_property_of_an_object():
    held = Keeps()

    def change(net):
        held.base = 4.0

    def forget(net):
        held.__dict__.pop("factor", None)

    yield from reading(lambda block: block.held.factor, change, forget, held=held)


BASE = [2.0]


@functools.cache
def scaled(number):
    return number * BASE[0]


@case()
def memory_of_a_function_filled_by_others():
    def change(net):
        BASE[0] = 3.0
        scaled.cache_clear()
        scaled(1.0)

    yield from reading(lambda block: scaled(1.0), change)


class Kind(enum.Enum):
    SOFT = 1
    HARD = 2


@case()
def attribute_of_an_enumeration():
    Kind.SOFT.factor = 2.0

    def change(net):
        Kind.SOFT.factor = 3.0

    yield from reading(lambda block: block.held.factor, change, held=Kind.SOFT)


@case()
def attribute_of_a_parameter():
    def change(net):
        net.blocks[0].norm.weight.factor = 3.0

    yield from reading(lambda block: getattr(block.norm.weight, "factor", 2.0), change)


@case()
def attribute_of_a_tensor():
    tensor = values(1)
    tensor.factor = 2.0

    def change(net):
        tensor.factor = 3.0

    yield from reading(lambda block: block.held.factor, change, held=tensor)


@case()
def gradient_read_by_the_block():
    def read(block):
        return 2.0 if block.norm.weight.grad is None else 3.0

    net = twins(lambda index: Reads(read))
    yield net
    yield

    def twice(x):
        net(x).sum().backward()
        return net(x)

    for seed in range(3):
        yield call(leaf(2, 5, HIDDEN, seed=seed), run=twice)


@case()
def whether_a_parameter_wants_a_gradient():
    def change(net):
        net.blocks[0].norm.weight.requires_grad_(False)

    def cut(net):
        net.blocks[1].up.weight.requires_grad_(False)

    yield from reading(
        lambda b: (2.0 if b.norm.weight.requires_grad else 3.0) + (1.0 if b.up.weight.requires_grad else 4.0),
        change,
        cut,
    )


class Penalises(Mlp):
    def after(self, z):
        return z * (1 + sum(p.square().mean() for p in self.parameters())) + len(list(self.named_children()))


@case()
def all_parameters_of_a_block():
    net = twins(lambda index: Penalises())
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].up.weight.mul_(2)
    yield
    yield
    yield


@case()
def size_of_a_cut_weight():
    yield from reading(
        lambda block: block.up.weight.shape[0] / block.up.out_features + block.down.weight.numel() / 1000
    )


@case()
def entries_of_a_cut_weight():
    yield from reading(lambda block: block.up.weight[:, 0].sum() + block.up.bias.max() + block.down.weight[0].norm())


@case()
def object_of_torch_as_a_config():
    held = torch.distributions.AffineTransform(0.0, 2.0)

    def change(net):
        held.scale = 3.0

    yield from reading(lambda block: block.held.scale, change, held=held)


@case(shared=((nn.Linear, "factor"),))
def attribute_given_to_a_class_of_torch():
    def change(net):
        nn.Linear.factor = 3.0

    yield from reading(lambda block: getattr(block.up, "factor", 2.0), change)


@case()
def settings_of_torch():
    def on(net):
        torch.use_deterministic_algorithms(True)

    def off(net):
        torch.use_deterministic_algorithms(False)

    yield from reading(lambda block: 3.0 if torch.are_deterministic_algorithms_enabled() else 2.0, on, off)


@case()
def inference_mode_read_by_the_block():
    yield twins(lambda index: Reads(lambda block: 3.0 if torch.is_inference_mode_enabled() else 2.0))
    yield
    yield call(under=torch.no_grad, backward=False)
    yield call(under=torch.inference_mode, backward=False)
    yield call(under=torch.no_grad, backward=False)


@case()
def state_of_the_interpreter():
    def off(net):
        gc.disable()

    def on(net):
        gc.enable()

    yield from reading(lambda block: 2.0 if gc.isenabled() else 3.0, off, on)


@case()
def file_read_by_a_block():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "factor"
        path.write_text("2.0")
        yield from reading(lambda block: float(path.read_text()), lambda net: path.write_text("3.0"))


class Scales(TorchFunctionMode):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func in (torch.relu, torch.Tensor.relu) else result


@case()
def modes_with_numbers():
    yield twins(lambda index: Mlp())
    yield call(under=lambda: Scales(2.0))
    yield call(under=lambda: Scales(3.0))
    yield
    yield call(under=lambda: Scales(4.0))


class ReadsOwnDefault(Mlp):
    def forward(self, x, factor=2.0):
        return super().forward(x) * factor


@case()
def default_of_the_forward():
    yield twins(lambda index: ReadsOwnDefault())
    yield
    ReadsOwnDefault.forward.__defaults__ = (3.0,)
    yield
    yield
    yield


class Registry:
    known = {}  # noqa: RUF012

    def __class_getitem__(cls, name):
        return cls.known[name]


@case()
def registry_of_functions():
    Registry.known["act"] = torch.relu
    yield from reading(
        lambda block: Registry["act"](block.norm.bias.sum() + 1) + 1,
        lambda net: Registry.known.update(act=torch.tanh),
    )


class WritesClass(Mlp):
    def middle(self, y):
        kind = type(self)
        kind.total = getattr(kind, "total", 0.0) + 1.0
        return y.relu() * kind.total


@case()
def class_written_by_a_block():
    yield twins(lambda index: WritesClass())
    for _ in range(4):
        yield


class WritesElsewhere(Mlp):
    def middle(self, y):
        globals()["WRITTEN"] = globals().get("WRITTEN", 0.0) + 1.0
        sys.modules[__name__].OTHER = WRITTEN  # noqa: F821
        return y.relu() * OTHER  # noqa: F821


@case()
def globals_written_as_a_dict():
    yield twins(lambda index: WritesElsewhere())
    for _ in range(4):
        yield


class WritesTensorAttribute(Mlp):
    def middle(self, y):
        weight = self.norm.weight
        weight.calls = getattr(weight, "calls", 0) + 1
        return y.relu() * weight.calls


@case()
def attribute_of_a_parameter_written():
    net = twins(lambda index: WritesTensorAttribute())
    yield net
    for _ in range(4):
        yield


class WritesFile(Mlp):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def middle(self, y):
        with self.path.open("a") as file:
            file.write("x")
        return y.relu() * len(self.path.read_text())


@case()
def file_written_by_a_block():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls"
        yield twins(lambda index: WritesFile(path))
        for _ in range(4):
            yield


class KeepsGraph(Mlp):
    """Keeps a tensor with its history, and lets the outer Python add it to the loss."""

    def after(self, z):
        self.penalty = z.square().mean()
        return z


class AddsPenalties(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([KeepsGraph(), KeepsGraph()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x, sum(block.penalty for block in self.blocks)


@case()
def penalty_kept_for_the_loss():
    yield AddsPenalties()
    for _ in range(4):
        yield


@case()
def hook_that_keeps_what_is_cut_with_its_graph():
    net, kept = twins(lambda index: Mlp()), []
    net.blocks[0].up.register_forward_hook(lambda module, args, result: kept.append(result))

    def both(x):
        kept.clear()
        return net(x), kept[0].square().mean()

    yield net
    for seed in range(4):
        yield call(leaf(2, 5, HIDDEN, seed=seed), run=both)


@case()
def wide_factor_in_a_class():
    def change(net):
        Config.wide = values(INNER, seed=4)

    Config.wide = values(INNER, seed=3)
    yield from reading(lambda block: type(block.held).wide, change, held=Config())
