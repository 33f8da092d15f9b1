"""Blocks that freeze and thaw their own parameters as they run, and what they say of other tensors."""

import torch

from tests.contract.parts import Mlp, call, case, leaf, twins, values


class Freezes(Mlp):
    """Says which parameters are trained before it uses them."""

    thaw = False

    def __init__(self, say):
        super().__init__()
        self.say = say

    def middle(self, y):
        self.say(self)
        return y.relu()


def saying(say):
    yield twins(lambda index: Freezes(say))
    for _ in range(4):
        yield


@case()
def norm_frozen_by_its_block():
    yield from saying(lambda block: block.norm.requires_grad_(False))


@case()
def weight_frozen_by_its_block():
    def say(block):
        block.norm.weight.requires_grad = False

    yield from saying(say)


@case()
def cut_weight_frozen_by_its_block():
    yield from saying(lambda block: block.down.requires_grad_(False))


@case()
def norm_frozen_and_thawed_in_turn():
    yield from saying(lambda block: block.norm.requires_grad_(not block.norm.weight.requires_grad))


@case()
def norm_thawed_as_it_was():
    yield from saying(lambda block: block.norm.requires_grad_(True))


@case()
def norm_frozen_by_an_attribute():
    net = twins(lambda index: Freezes(lambda block: block.norm.requires_grad_(block.thaw)))
    for block in net.blocks:
        block.thaw = True
    yield net
    yield
    net.blocks[0].thaw = False
    yield
    yield
    net.blocks[0].thaw = True
    yield


class Wants(Mlp):
    """Gives a value that wants a gradient, though nothing that it is made of may want one."""

    def before(self, x):
        return x.requires_grad_(True)

    def middle(self, y):
        return y.relu() + torch.ones(y.shape[1], 1, dtype=y.dtype).requires_grad_(False)


@case()
def value_that_is_told_to_want_a_gradient():
    net = twins(lambda index: Wants())
    yield net
    yield
    net.requires_grad_(False)
    yield call(leaf(2, 5, 32))
    yield call(run=lambda: net(values(2, 5, 32)), backward=False)
    net.requires_grad_(True)
    yield
