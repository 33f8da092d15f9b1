"""A number changes where a block's Python reads it."""

import os
from types import SimpleNamespace

import torch
from torch import nn

from tests.contract.parts import INNER, Mlp, call, case, leaf, twins, values

FACTOR = 2.0


class ReadsGlobal(Mlp):
    def middle(self, y):
        return y.relu() * FACTOR


@case()
def module_global():
    global FACTOR
    yield twins(ReadsGlobal)
    yield
    FACTOR = 3.0
    yield
    yield
    FACTOR = 2.0
    yield


class ReadsConfig(Mlp):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def middle(self, y):
        return y.relu() * self.config.factor


@case()
def field_of_a_config():
    config = SimpleNamespace(factor=2.0)
    yield twins(lambda index: ReadsConfig(config))
    yield
    config.factor = 3.0
    yield
    yield
    config.factor = 0.5
    yield


@case()
def one_block_gets_a_config_of_its_own():
    config = SimpleNamespace(factor=2.0)
    net = twins(lambda index: ReadsConfig(config))
    yield net
    yield
    net.blocks[1].config = SimpleNamespace(factor=5.0)
    yield
    config.factor = 3.0
    yield
    net.blocks[1].config = config
    yield


@case()
def closure_cell():
    factor = 2.0

    class ReadsCell(Mlp):
        def middle(self, y):
            return y.relu() * factor

    yield twins(ReadsCell)
    yield
    factor = 3.0
    yield
    yield
    factor = 2.0
    yield


class ReadsClass(Mlp):
    factor = 2.0

    def middle(self, y):
        return y.relu() * self.factor


@case()
def class_attribute():
    net = twins(ReadsClass)
    yield net
    yield
    ReadsClass.factor = 3.0
    yield
    net.blocks[0].factor = 4.0
    yield
    del net.blocks[0].factor
    yield


class ReadsEnvironment(Mlp):
    def middle(self, y):
        return y.relu() * float(os.environ.get("CONTRACT_FACTOR", "2"))


@case()
def environment():
    yield twins(ReadsEnvironment)
    yield
    os.environ["CONTRACT_FACTOR"] = "3"
    yield
    yield
    del os.environ["CONTRACT_FACTOR"]
    yield


def activation(y):
    return y.relu()


class CallsHelper(Mlp):
    def middle(self, y):
        return activation(y)


@case()
def helper_of_the_module_replaced():
    global activation
    yield twins(CallsHelper)
    yield
    first, activation = activation, torch.tanh
    yield
    activation = torch.sigmoid
    yield
    activation = first
    yield


class HoldsTensor(Mlp):
    def __init__(self, index):
        super().__init__()
        self.factor = values(1, seed=index)

    def middle(self, y):
        return y.relu() * self.factor


@case()
def plain_tensor_replaced():
    net = twins(HoldsTensor)
    yield net
    yield
    net.blocks[0].factor = values(1, seed=7)
    yield
    net.blocks[1].factor = net.blocks[0].factor
    yield
    net.blocks[1].factor = values(INNER, seed=8)
    yield


@case()
def plain_tensor_written_in_place():
    net = twins(HoldsTensor)
    yield net
    yield
    net.blocks[0].factor.mul_(2)
    yield
    net.blocks[1].factor.data = values(1, seed=9)
    yield
    net.blocks[1].factor[:] = 3
    yield


class ReadsDict(Mlp):
    def __init__(self, index):
        super().__init__()
        self.numbers = {"factor": 2.0}
        self.steps = [1.0, 0.5]

    def middle(self, y):
        for step in self.steps:
            y = y * step
        return y.relu() * self.numbers["factor"]


@case()
def dict_and_list_attributes():
    net = twins(ReadsDict)
    yield net
    yield
    net.blocks[0].numbers["factor"] = 3.0
    yield
    net.blocks[1].steps.append(4.0)
    yield
    net.blocks[1].steps = [2.0]
    net.blocks[0].numbers = {"factor": 2.0}
    yield


class HasProperty(Mlp):
    def __init__(self, index):
        super().__init__()
        self._factor = 1.0

    @property
    def factor(self):
        return 2 * self._factor

    @factor.setter
    def factor(self, value):
        self._factor = value

    def middle(self, y):
        return y.relu() * self.factor


@case()
def properties():
    net = twins(HasProperty)
    yield net
    yield
    net.blocks[0].factor = 3.0
    yield
    net.blocks[1]._factor = 4.0
    yield
    net.blocks[0].factor = 1.0
    yield


class Repeats(Mlp):
    def __init__(self, index):
        super().__init__()
        self.times = 1

    def middle(self, y):
        for i in range(self.times):
            y = y.relu() * (1 + i)
        return y


@case()
def numbers_of_loops():
    net = twins(Repeats)
    yield net
    yield
    net.blocks[0].times = 3
    yield
    net.blocks[1].times = 0
    yield
    net.blocks[0].times = net.blocks[1].times = 1
    yield


class TakesFlags(Mlp):
    def forward(self, x, twice=False, factor=1.0):
        y = self.up(self.norm(x)).relu()
        return x + self.down(y * 2 if twice else y) * factor


@case()
def flags_and_numbers_as_arguments():
    yield twins(TakesFlags)
    yield call(leaf(2, 5, 32), twice=True)
    yield call(leaf(2, 5, 32), factor=3.0)
    yield call(leaf(3, 5, 32), True, 2)
    yield call(leaf(2, 5, 32), False, torch.tensor(2.0, dtype=torch.float64))
    yield call(leaf(2, 5, 32), twice=0, factor=torch.tensor(3, dtype=torch.int64))


class Divides(Mlp):
    def forward(self, x, items=None):
        y = self.down(self.up(self.norm(x)).relu())
        return x + (y if items is None else y / items)


@case()
def number_then_tensor_of_no_dims():
    yield twins(Divides)
    yield call(leaf(2, 5, 32), items=7)
    yield call(leaf(2, 5, 32), items=torch.tensor(9))
    yield call(leaf(2, 5, 32))
    yield call(leaf(2, 5, 32), items=11)
    yield call(leaf(2, 5, 32), items=torch.tensor(13.0, dtype=torch.float64))


class Loss(nn.Module):
    """A model whose loss divides by a number, which trainers give as one or as a tensor."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, items=None):
        y = self.inner(x).square().sum()
        return y / items if items is not None else y / x.numel()


@case()
def number_then_tensor_for_the_loss():
    yield Loss(twins(Mlp))
    yield call(leaf(2, 5, 32), items=7)
    yield call(leaf(2, 5, 32), items=torch.tensor(9))
    yield call(leaf(2, 5, 32))
    yield call(leaf(2, 5, 32), items=11)


class HoldsTable(Mlp):
    """A table that grows with the length."""

    def __init__(self, index):
        super().__init__()
        self.register_buffer("table", values(3, INNER), persistent=False)

    def middle(self, y):
        if y.shape[1] > self.table.shape[0]:
            self.table = values(y.shape[1], INNER)
        return y.relu() * self.table[: y.shape[1]]


@case()
def table_that_grows_with_the_length():
    yield twins(HoldsTable), (values(2, 3, 32),)
    for length in (3, 5, 4, 9, 2):
        yield call(leaf(2, length, 32))


class Branches(Mlp):
    def middle(self, y):
        return y.relu() if y.sum() > 0 else y.tanh() * 2


@case()
def branches_on_data():
    yield twins(Branches)
    for seed in range(5):
        yield call(leaf(2, 5, 32, seed=seed))


class HasGetattr(Mlp):
    def __init__(self, index):
        super().__init__()
        self.extra = {"factor": 2.0}

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in self.__dict__.get("extra", {}):
                return self.__dict__["extra"][name]
            raise

    def middle(self, y):
        return y.relu() * self.factor


@case()
def getattr_of_its_own():
    net = twins(HasGetattr)
    yield net
    yield
    net.blocks[0].extra["factor"] = 3.0
    yield
    net.blocks[1].extra = {"factor": 4.0}
    yield
    net.blocks[0].factor = 5.0
    yield
