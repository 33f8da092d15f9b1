"""Parameters that come to be, or cease to be, one and the same while the model runs."""

from __future__ import annotations

import torch
from torch import nn

from tests.contract.parts import HIDDEN, INNER, Mlp, call, case, leaf, twins


@case(refusal=("backward",))
def a_block_that_was_whole_takes_the_weight_of_one_that_is_cut():
    net = twins(Mlp, 2)
    hook = net.blocks[1].down.register_full_backward_pre_hook(lambda module, given: (given[0] * 2,))
    yield net
    hook.remove()
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(2, 7, HIDDEN))
    net.blocks[1].down.weight = net.blocks[0].down.weight
    yield call(leaf(3, 3, HIDDEN))
    net.blocks[0], net.blocks[1] = net.blocks[1], net.blocks[0]
    yield call(leaf(3, 5, HIDDEN))


class WithHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Mlp(i) for i in range(2))
        self.narrow = nn.Linear(INNER, HIDDEN)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.narrow(x.repeat(1, 1, 2)[..., :INNER])


@case()
def a_layer_outside_takes_a_weight_of_a_block():
    net = WithHead().double()
    yield net, (leaf(2, 5, HIDDEN),)
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(2, 7, HIDDEN))
    net.narrow.weight = net.blocks[0].down.weight
    yield call(leaf(3, 3, HIDDEN))
    net.narrow.weight = nn.Parameter(net.narrow.weight.detach().clone())
    yield call(leaf(3, 5, HIDDEN))


@case()
def a_block_takes_the_weight_of_a_layer_outside():
    net = WithHead().double()
    yield net, (leaf(2, 5, HIDDEN),)
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(2, 7, HIDDEN))
    net.blocks[0].down.weight = net.narrow.weight
    yield call(leaf(3, 3, HIDDEN))
    net.blocks[1].down.weight = net.narrow.weight
    yield call(leaf(3, 5, HIDDEN))


class WithWords(WithHead):
    """Reads the weights of its head beside its logits."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(HIDDEN, 40)

    def forward(self, x):
        logits = self.head(super().forward(x))
        scaled = logits * self.head.bias + self.head.weight[:, 0]
        mixed = torch.nn.functional.linear(logits, self.head.weight.T, self.head.weight[0])
        return mixed + torch.outer(logits[0, 0], self.head.bias).sum() + (scaled @ self.head.weight).relu()


@case()
def logits_meet_weights_of_the_head():
    net = WithWords().double()
    yield net, (leaf(2, 5, HIDDEN),)
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(3, 5, HIDDEN))
    with torch.no_grad():
        net.head.weight.mul_(0.5)
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(2, 7, HIDDEN), backward=False, under=torch.no_grad)
