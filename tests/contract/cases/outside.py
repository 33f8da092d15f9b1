"""The outer Python reads a parameter that is cut; modules and tensors held by other roads; aliases."""

import torch
from torch import nn

from tests.contract.parts import HIDDEN, INNER, Mlp, WordNet, call, case, ids, linear, twins


class ReadsTable(WordNet):
    """The head is the embedding, read by another road."""

    def __init__(self, how):
        super().__init__(Mlp(), Mlp())
        del self.head
        self.how = how

    def logits(self, x):
        return self.how(self.embed, x)


def reads_table(how):
    yield ReadsTable(how), (ids(2, 5),)
    for seed in range(4):
        yield call(ids(2 + seed % 2, 5, seed=seed))


@case()
def table_transposed():
    yield from reads_table(lambda embed, x: x @ embed.weight.T)


@case()
def table_transposed_in_its_matrix():
    yield from reads_table(lambda embed, x: x @ embed.weight.mT)


@case()
def data_of_a_table():
    yield from reads_table(lambda embed, x: x @ embed.weight.data.t())


@case()
def detached_table():
    yield from reads_table(lambda embed, x: x @ embed.weight.detach().transpose(0, 1))


@case()
def rows_of_a_table():
    yield from reads_table(lambda embed, x: x * embed.weight[3] + embed.weight[-1])


@case()
def sum_of_a_table():
    yield from reads_table(lambda embed, x: x * embed.weight.sum() + embed.weight.norm())


@case()
def shape_of_a_table():
    yield from reads_table(lambda embed, x: x * embed.weight.shape[0] / embed.weight.numel())


class ReadsWeights(nn.Module):
    """Weights of the blocks are read by the outer Python."""

    def __init__(self, how):
        super().__init__()
        self.blocks = nn.ModuleList([Mlp(), Mlp()])
        self.how = how

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.how(self, x)


def reads_weights(how):
    yield ReadsWeights(how)
    for _ in range(4):
        yield


@case()
def penalty_on_all_weights():
    yield from reads_weights(lambda net, x: x.sum() + sum(p.square().sum() for p in net.parameters()))


@case()
def weight_of_a_block_read_outside():
    yield from reads_weights(lambda net, x: x @ net.blocks[0].down.weight @ net.blocks[1].up.weight)


class Ties(Mlp):
    def __init__(self, tied):
        super().__init__()
        self.first, self.second = linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN)
        if tied:
            self.second.weight = self.first.weight

    def before(self, x):
        return self.second(self.first(x).relu())


@case()
def one_of_two_ties_its_weights():
    net = twins(lambda index: Ties(index == 0))
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].first.weight.mul_(2)
    yield
    yield
    yield


class TiesCut(Mlp):
    def __init__(self, tied):
        super().__init__()
        self.up_2, self.down_2 = linear(HIDDEN, INNER), linear(INNER, HIDDEN)
        if tied:
            self.up_2.weight, self.down_2.weight = self.up.weight, self.down.weight

    def after(self, z):
        return z + self.down_2(self.up_2(z).tanh())


@case()
def one_of_two_ties_its_cut_weights():
    net = twins(lambda index: TiesCut(index == 0))
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].up.weight.mul_(2)
        net.blocks[1].up.weight.mul_(3)
    yield
    yield
    yield


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, y):
        return y.relu() * self.factor


class CallsMethod(Mlp):
    def __init__(self, scale):
        super().__init__()
        self.function = scale.apply

    def middle(self, y):
        return self.function(y)


@case()
def methods_of_two_objects():
    net = twins(lambda index: CallsMethod(Scale(2.0 + index)))
    yield net
    yield
    net.blocks[0].function.__self__.factor = 7.0
    yield
    net.blocks[1].function = net.blocks[0].function
    yield
    net.blocks[1].function = Scale(0.5).apply
    yield


class HoldsList(Mlp):
    """A linear that the module does not know it has."""

    def __init__(self, index):
        super().__init__()
        self.hidden = [linear(HIDDEN, HIDDEN)]

    def before(self, x):
        return self.hidden[0](x)


@case()
def modules_in_a_plain_list():
    net = twins(HoldsList)
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].hidden[0].weight.mul_(2)
    yield
    net.blocks[1].hidden[0] = net.blocks[0].hidden[0]
    yield
    net.blocks[1].hidden = [linear(HIDDEN, HIDDEN), None]
    yield


class HoldsNormInList(Mlp):
    def __init__(self, index):
        super().__init__()
        self.again = [self.up]

    def middle(self, y):
        return y + self.again[0].bias + self.again[0].weight.sum(1)


@case()
def known_module_in_a_plain_list():
    yield twins(HoldsNormInList)
    for _ in range(4):
        yield
