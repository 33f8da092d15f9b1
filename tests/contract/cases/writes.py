"""State that a block writes."""

import functools
import random

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.contract.parts import HIDDEN, INNER, Mlp, Net, call, case, leaf, linear, twins, values


class Averages(Mlp):
    def __init__(self, index):
        super().__init__()
        self.register_buffer("ema", values(HIDDEN, seed=index))

    def after(self, z):
        self.ema = 0.5 * self.ema + 0.5 * z.detach().mean((0, 1))
        return z * self.ema


@case()
def average_in_a_buffer():
    yield twins(Averages)
    for _ in range(5):
        yield


class AveragesInner(Mlp):
    def __init__(self, index):
        super().__init__()
        self.register_buffer("ema", values(INNER, seed=index))

    def middle(self, y):
        y = y.relu()
        self.ema = 0.5 * self.ema + 0.5 * y.detach().mean((0, 1))
        return y - self.ema


@case()
def average_of_what_is_cut():
    yield twins(AveragesInner)
    for _ in range(4):
        yield


class Counts(Mlp):
    def __init__(self, index):
        super().__init__()
        self.calls = 0

    def middle(self, y):
        self.calls += 1
        return y.relu() * self.calls


@case()
def counter_as_a_factor():
    net = twins(Counts)
    yield net
    yield
    yield
    net.blocks[0].calls = 0
    yield
    yield


class WritesBetweenSums(Mlp):
    """Two partial sums are one, and the state between them is read before it is written."""

    def __init__(self, index):
        super().__init__()
        self.other_up, self.other_down = linear(HIDDEN, INNER), linear(INNER, HIDDEN)
        self.register_buffer("state", values(HIDDEN, seed=index))

    def forward(self, x):
        p, q = self.down(self.up(x).relu()), self.other_down(self.other_up(x).relu())
        a = p + self.state
        self.state.add_(1)
        return a + q


@case()
def written_between_merged_sums():
    yield twins(WritesBetweenSums)
    for _ in range(4):
        yield


class WritesBetweenProducts(Mlp):
    def __init__(self, index):
        super().__init__()
        self.register_buffer("state", values(INNER, seed=index))

    def middle(self, y):
        a = y + self.state
        self.state.mul_(0.5)
        b = y.relu() - self.state
        self.state += 1
        return a + b


@case()
def written_between_products():
    yield twins(WritesBetweenProducts)
    for _ in range(4):
        yield


@functools.cache
def table(length, width):
    return torch.arange(length * width, dtype=torch.float64).reshape(length, width) / (length * width)


class UsesCache(Mlp):
    def middle(self, y):
        return y.relu() + table(y.shape[1], INNER)


@case()
def cached_function():
    yield twins(UsesCache)
    for length in (5, 3, 5, 7):
        yield call(leaf(2, length, HIDDEN))
    table.cache_clear()
    yield


class DropsLayers(Net):
    def forward(self, x):
        for block in self.blocks:
            if random.random() < 0.5:
                x = block(x)
        return x


@case()
def random_layer_drop():
    yield DropsLayers(*(Mlp() for _ in range(6)))
    for _ in range(6):
        yield


class DropsItself(Mlp):
    def forward(self, x):
        return x if random.random() < 0.5 else super().forward(x)


@case()
def block_drops_itself_at_random():
    yield twins(DropsItself, 4)
    for _ in range(6):
        yield


class Normed(Mlp):
    def __init__(self, kind):
        super().__init__()
        self.up = kind(self.up)


@case()
def weight_norm():
    net = twins(lambda index: Normed(nn.utils.parametrizations.weight_norm))
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].up.parametrizations.weight.original0.mul_(2)
    yield
    yield
    yield


@case()
def spectral_norm():
    net = twins(lambda index: Normed(nn.utils.parametrizations.spectral_norm))
    yield net
    yield
    yield
    net.eval()
    yield
    net.train()
    yield


class HasBatchNorm(Mlp):
    def __init__(self, index):
        super().__init__()
        self.batch = nn.BatchNorm1d(INNER, dtype=torch.float64)

    def middle(self, y):
        return self.batch(y.transpose(1, 2)).transpose(1, 2).relu()


@case()
def batch_norm():
    net = twins(HasBatchNorm)
    yield net
    yield
    yield
    net.eval()
    yield
    net.blocks[0].batch.train()
    yield
    net.train()
    yield


class ReadsStatistics(HasBatchNorm):
    """Runs its norm twice, and reads what it has written between the two and behind them."""

    def middle(self, y):
        first = self.batch(y.transpose(1, 2))
        between = self.batch.running_mean.sum() + self.batch.running_var.mean()
        second = self.batch(first.relu() * 2)
        return second.transpose(1, 2).relu() + between * self.batch.running_mean.sum() + self.batch.num_batches_tracked


@case()
def statistics_that_are_read():
    net = twins(ReadsStatistics, 3)
    yield net
    yield
    net.blocks[1].batch.momentum = 0.4
    yield
    net.blocks[2].batch.eval()
    yield
    with torch.no_grad():
        net.blocks[0].batch.running_var.mul_(3)
    net.blocks[0].batch.track_running_stats = False
    yield
    net.eval()
    yield
    net.train()
    net.blocks[0].batch.track_running_stats = True
    net.blocks[1].batch.reset_running_stats()
    yield
    yield


class HasDropout(Mlp):
    def __init__(self, index):
        super().__init__()
        self.dropout = nn.Dropout(0.0)

    def middle(self, y):
        return self.dropout(y.relu()) * (2.0 if self.dropout.training else 1.0)


@case()
def inner_modes():
    net = twins(HasDropout)
    yield net
    yield
    net.blocks[0].dropout.eval()
    yield
    net.blocks[0].dropout.train()
    net.blocks[1].eval()
    yield
    net.eval()
    yield
    net.train()
    yield


class Checkpoints(Mlp):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def inner(self, x):
        return self.down(self.up(x).relu())

    def forward(self, x):
        return x + checkpoint(self.inner, self.norm(x), use_reentrant=self.reentrant)


@case()
def checkpoint_inside():
    net = twins(lambda index: Checkpoints(False))
    yield net
    yield
    yield
    net.eval()
    yield
    yield call(under=torch.no_grad, backward=False)


@case()
def reentrant_checkpoint_inside():
    net = twins(lambda index: Checkpoints(True))
    yield net
    yield
    yield
    net.eval()
    yield
    yield


class Detaches(Mlp):
    def __init__(self, index):
        super().__init__()
        self.how = "detach"

    def after(self, z):
        if self.how == "detach":
            return z + z.detach()
        with torch.no_grad():
            factor = z.mean(-1, keepdim=True)
        return z * factor


@case()
def detached_inside():
    net = twins(Detaches)
    yield net
    yield
    net.blocks[0].how = "no_grad"
    yield
    yield call(under=torch.no_grad, backward=False)
    yield call(under=torch.inference_mode, backward=False)
    yield


@case()
def toggled_requires_grad():
    net = twins(Mlp)
    yield net
    yield
    net.blocks[0].up.weight.requires_grad_(False)
    yield
    net.blocks[1].requires_grad_(False)
    yield
    net.requires_grad_(True)
    yield
    net.requires_grad_(False)
    yield


@case()
def whole_parameter_replaced():
    net = twins(Mlp)
    yield net
    yield
    net.blocks[0].norm.weight = nn.Parameter(values(HIDDEN, seed=5))
    yield
    net.blocks[1].norm.bias = net.blocks[0].norm.bias
    yield
    net.blocks[1].norm.weight = nn.Parameter(values(HIDDEN, seed=6), requires_grad=False)
    yield


@case()
def blocks_swapped_and_removed():
    net = twins(Mlp, 4)
    yield net
    yield
    net.blocks[0], net.blocks[2] = net.blocks[2], net.blocks[0]
    yield
    del net.blocks[1]
    yield
    del net.blocks[0]
    yield


@case()
def block_in_two_places():
    net = twins(Mlp, 3)
    yield net
    yield
    net.blocks[2] = net.blocks[0]
    yield
    yield
    net.blocks.append(net.blocks[1])
    yield


KEPT = [torch.full((4,), 2.0, dtype=torch.float64)]


def writing(write):
    """A tensor in a global list that a block reads and then writes, in one way or another."""

    class Writes(Mlp):
        def after(self, z):
            z = z * KEPT[0].mean().clone()
            write(KEPT[0])
            return z

    yield twins(Writes)
    for _ in range(2):
        yield
    KEPT[0].fill_(3.0)
    for _ in range(2):
        yield


@case()
def tensor_in_a_global_list_written():
    yield from writing(lambda tensor: tensor.add_(0.5))


@case()
def tensor_in_a_global_list_written_through_a_view():
    yield from writing(lambda tensor: tensor[1:3].mul_(1.5))


@case()
def tensor_in_a_global_list_written_through_its_data():
    yield from writing(lambda tensor: tensor.data.add_(0.5))


@case()
def tensor_in_a_global_list_written_by_item():
    yield from writing(lambda tensor: tensor.__setitem__(0, 1.5))


@case()
def tensor_in_a_global_list_written_as_a_result():
    yield from writing(lambda tensor: torch.add(tensor, 0.5, out=tensor))


@case()
def tensors_in_a_global_list_written_at_once():
    yield from writing(lambda tensor: torch._foreach_add_([tensor], 0.5))


def scale():
    """A function that keeps a number, as many do."""


scale.factor = 2.0


@case()
def attribute_of_a_function_written():
    class Writes(Mlp):
        def after(self, z):
            scale.factor += 1
            return z * scale.factor

    yield twins(Writes)
    for _ in range(2):
        yield
    scale.factor = 1.0
    for _ in range(2):
        yield


@case()
def attribute_of_a_function_that_is_kept():
    class Reads(Mlp):
        def __init__(self, index):
            super().__init__()
            self.function = scale

        def after(self, z):
            return z * self.function.factor

    yield twins(Reads)
    for _ in range(2):
        yield
    scale.factor = 3.0
    for _ in range(2):
        yield


def counted(x=2.0):
    return x


class CountsInADefault(Mlp):
    def after(self, z):
        counted.__defaults__ = (counted() + 1,)
        return z * counted()


@case()
def default_of_a_function_written():
    yield twins(lambda index: CountsInADefault())
    for _ in range(4):
        yield
