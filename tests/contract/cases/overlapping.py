"""Tensors of the state, and inputs, that lie in one memory, into which a block writes while a sum waits."""

import torch

from tests.contract.parts import HIDDEN, INNER, Mlp, Net, case, linear, twins


def wide(*sizes):
    return torch.linspace(-1, 1, torch.Size(sizes).numel(), dtype=torch.float64).reshape(sizes)


class Writes(Mlp):
    """Reads three tensors, then writes into a fourth, between two sums that may be one."""

    def __init__(self, packed=False):
        super().__init__()
        self.other = linear(INNER, HIDDEN)
        held = wide(4 * HIDDEN) if packed else None
        written, table, plain, listed = (
            wide(HIDDEN) * (i + 1) if held is None else held[i * 5 : i * 5 + HIDDEN] for i in range(4)
        )
        self.register_buffer("written", written)
        self.register_buffer("table", table)
        self.plain, self.listed = plain, [listed]

    def forward(self, x):
        y = self.middle(self.up(self.norm(x)))
        first = self.down(y) + self.table + self.plain + self.listed[0]
        self.written.add_(0.5)
        return x + first + self.other(y)


@case()
def state_that_is_views_of_one_tensor():
    net = twins(lambda index: Writes(packed=True))
    yield net
    yield
    yield
    net.eval()
    yield
    yield


@case()
def state_that_comes_to_be_in_one_memory():
    net = twins(lambda index: Writes())
    yield net
    yield
    net.blocks[0].table.data = net.blocks[0].written
    yield
    net.blocks[1].plain.data = net.blocks[1].written
    yield
    net.blocks[0].listed[0].set_(net.blocks[0].written)
    yield
    net.blocks[0].table.data = net.blocks[0].table.clone()
    yield
    net.blocks[1].table = net.blocks[1].written.view(-1)
    yield


@case()
def state_of_one_tensor_side_by_side():
    net = twins(lambda index: Writes())
    for block in net.blocks:
        block.written, block.table = wide(2, HIDDEN).clone().unbind()
    yield net
    yield
    yield
    net.eval()
    yield
    yield


class WritesInput(Mlp):
    def __init__(self):
        super().__init__()
        self.other = linear(INNER, HIDDEN)
        self.register_buffer("table", wide(HIDDEN))

    def forward(self, x, written, read):
        y = self.middle(self.up(self.norm(x)))
        first = self.down(y) + read + self.table
        written.add_(0.5)
        return x + first + self.other(y)


class Gives(Net):
    """Gives its blocks two tensors: apart, one of them twice, one in the other, or one that a block has itself."""

    def __init__(self):
        super().__init__(WritesInput(), WritesInput())
        self.way = "apart"

    def forward(self, x):
        for block in self.blocks:
            written = wide(HIDDEN)
            read = {"apart": written.clone(), "twice": written, "view": written.view(-1)}.get(self.way, written + 1)
            if self.way == "own":
                written = block.table
            if self.way == "in its own":
                written = block.table[:]
            x = block(x, written, read) + written
        return x


@case()
def inputs_that_lie_in_one_memory():
    net = Gives()
    yield net
    for way in ("apart", "view", "twice", "own", "apart", "in its own", "view"):
        net.way = way
        yield


@case()
def inputs_that_lie_in_one_memory_from_the_start():
    net = Gives()
    net.way = "view"
    yield net
    for way in ("view", "apart", "own", "view", "twice"):
        net.way = way
        yield
