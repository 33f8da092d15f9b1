"""Blocks that a plan cuts and that have no program for some calls, and modules within them that do: what the block's Python does
around and between those."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.contract.parts import HIDDEN, Mlp, call, case, leaf, twins


class Counted(nn.Module):
    """Writes state once `counting` is on, and then has no program; its modules are called, read and changed."""

    counting = False

    def __init__(self, index=0):
        super().__init__()
        self.calls, self.seen = 0, []
        self.first, self.second = Mlp(index), Mlp(index + 1)

    def forward(self, x):
        if self.counting:
            self.calls += 1
            self.seen.append(tuple(x.shape))
        return self.between(self.first(x))

    def between(self, y):
        return self.second(y) * (1 + self.calls / 10)


def count(net):
    for block in net.blocks:
        block.counting = True


def counted(net):
    """Calls of several sizes, all but the first while the blocks count."""
    yield net
    count(net)
    yield
    for rows, length in ((3, 5), (2, 4), (1, 6)):
        yield call(leaf(rows, length, HIDDEN))


@case()
def parts_of_a_block_that_counts():
    net = twins(Counted)
    yield net
    count(net)
    yield
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(1, 7, HIDDEN))
    yield call(leaf(2, 5, HIDDEN), backward=False, under=torch.no_grad)


class ReadsWeights(Counted):
    def between(self, y):
        tied = nn.functional.linear(y, self.first.down.weight @ self.second.up.weight)
        return self.second(y) + tied.tanh() * self.second.norm.weight.sum()


@case()
def parts_whose_weights_the_block_reads_as_well():
    yield from counted(twins(ReadsWeights))


class Writes(Counted):
    """Writes into what a part gave, and changes what the next one reads."""

    def between(self, y):
        y.mul_(2.0)
        self.second.factor = float(self.calls)
        return self.second(y).add_(y)


class Scaled(Mlp):
    factor = 1.0

    def middle(self, y):
        return y.relu() * self.factor


class WritesScaled(Writes):
    def __init__(self, index=0):
        super().__init__(index)
        self.second = Scaled(index)


@case()
def parts_that_the_block_changes_between_calls():
    net = twins(WritesScaled)
    yield net
    count(net)
    for rows in range(1, 6):
        yield call(leaf(rows, 5, HIDDEN))


class Twice(Counted):
    def between(self, y):
        return self.first(self.second(self.first(y)))


@case()
def part_that_is_called_several_times():
    yield from counted(twins(Twice))


class Recomputed(Counted):
    def between(self, y):
        return checkpoint(self.second, y, use_reentrant=False) + checkpoint(self.first, y, use_reentrant=True)


@case()
def parts_that_are_checkpointed():
    yield from counted(twins(Recomputed))


class Again(torch.autograd.Function):
    """A checkpoint by hand: computes a function again in the backward."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(ctx.run(x), gradient)
        return None, x.grad


class ComputedAgain(Counted):
    def between(self, y):
        with torch.no_grad():
            target = self.second(y).mean()
        with torch.autograd.graph.save_on_cpu():
            y = self.second(y)
        return Again.apply(self.first, y) - target


@case()
def parts_that_are_computed_again_by_hand():
    yield from counted(twins(ComputedAgain))


@case()
def parts_in_every_other_call():
    net = twins(Counted)
    yield net
    for turn in range(6):
        for block in net.blocks[: turn // 2 + 1]:
            block.counting = not block.counting
        yield call(leaf(2, 5, HIDDEN))
    net.blocks[0].first.up.weight.requires_grad_(False)
    yield call(leaf(2, 5, HIDDEN))
    net.blocks[0].counting = True
    yield call(leaf(2, 5, HIDDEN))


class Tied(Counted):
    def __init__(self, index=0):
        super().__init__(index)
        self.second.up.weight = self.first.up.weight

    def between(self, y):
        return self.second(x=y) + nn.functional.linear(y, self.first.up.weight).mean(dim=-1, keepdim=True)


@case()
def parts_that_are_tied():
    net = twins(Tied)
    yield net
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(3, 5, HIDDEN))
    net.blocks[0].second.up.weight = nn.Parameter(net.blocks[0].first.up.weight.detach() * 2)
    yield call(leaf(2, 4, HIDDEN))
    yield call(leaf(2, 6, HIDDEN))


class Several(Mlp):
    """Gives several values, one of which it was given, and writes a buffer in training."""

    def __init__(self, index=0):
        super().__init__(index)
        self.middle_norm = nn.BatchNorm1d(self.up.out_features, dtype=torch.float64)

    def forward(self, x, *, scale=None):
        y = self.up(self.norm(x))
        y = self.middle_norm(y.flatten(0, 1)).view_as(y).relu()
        return {"out": self.down(y), "given": x, "hidden": y, "scale": scale}


class ReadsSeveral(Counted):
    def __init__(self, index=0):
        super().__init__(index)
        self.first = Several(index)

    def forward(self, x):
        if self.counting:
            self.calls += 1
        found = self.first(x, scale=torch.ones(()) * (1 + self.calls))
        y = self.second(found["out"] * found["scale"] + found["given"])
        return y + found["hidden"].sin().mean() + found["hidden"].mean(dim=-1, keepdim=True)


@case()
def parts_that_give_several_values():
    net = twins(ReadsSeveral)
    yield net
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    net.train()
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(2, 4, HIDDEN))
    net.eval()
    yield call(leaf(2, 6, HIDDEN))


class Exchanged(Counted):
    """Puts other functions into its parts while it runs."""

    def between(self, y):
        before = self.second.forward
        y = before(y) + type(self.second).forward(self.second, y)
        self.second.forward = lambda x: before(x.sin())
        y = self.second(y)
        del self.second.forward
        return self.second(y)


@case()
def parts_that_get_functions_while_the_block_runs():
    net = twins(Exchanged)
    yield net
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(2, 4, HIDDEN), backward=False, under=torch.no_grad)
    yield call(leaf(2, 6, HIDDEN))


class Slopes(Counted):
    def between(self, y):
        with torch.enable_grad():
            z = y if y.requires_grad else y.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.second(z).square().sum(), z, create_graph=True)
        return y - 0.1 * slope


@case()
def parts_within_a_gradient():
    net = twins(Slopes)
    yield net
    count(net)
    yield
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(2, 4, HIDDEN), backward=False, under=torch.no_grad)
    yield call(leaf(1, 6, HIDDEN))


class Hooked(Counted):
    def __init__(self, index=0):
        super().__init__(index)
        self.first.register_forward_hook(lambda module, args, out: out * 1.5)
        self.second.up.register_full_backward_hook(lambda module, given, taken: (given[0] * 2,))
        self.second.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


@case()
def parts_with_hooks():
    net = twins(Hooked)
    yield net
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    hook = net.blocks[0].first.down.register_forward_hook(lambda module, args, out: out.sin())
    yield call(leaf(3, 5, HIDDEN))
    hook.remove()
    net.blocks[1].first.register_full_backward_hook(lambda module, given, taken: (given[0] * 3,))
    yield call(leaf(2, 4, HIDDEN))
    yield call(leaf(2, 6, HIDDEN))


@case()
def part_with_a_forward_of_its_own():
    net = twins(Counted)
    yield net
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    part = net.blocks[0].second
    part.forward = lambda x: part.down(part.up(x).sigmoid())
    yield call(leaf(3, 5, HIDDEN))
    part.up.forward = lambda x: nn.functional.linear(x, part.up.weight)
    yield call(leaf(2, 4, HIDDEN))
    del part.forward
    yield call(leaf(2, 6, HIDDEN))


@case()
def parts_that_are_replaced():
    net = twins(Counted)
    yield net
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    net.blocks[0].first, net.blocks[1].first = net.blocks[1].first, net.blocks[0].first
    yield call(leaf(3, 5, HIDDEN))
    net.blocks[0].second = nn.Linear(HIDDEN, HIDDEN, dtype=torch.float64)
    yield call(leaf(2, 4, HIDDEN))
    net.blocks[1].second.up.weight = nn.Parameter(net.blocks[1].second.up.weight.detach() * 2)
    yield call(leaf(2, 6, HIDDEN))


class Stopped(Exception):
    pass


class Fails(Counted):
    def between(self, y):
        if self.calls == 2:
            raise Stopped
        return self.second(y)


@case()
def block_that_fails_between_its_parts():
    net = twins(Fails)

    def run(x):
        try:
            return net(x)
        except Stopped:
            return x * 1.0

    yield net
    count(net)
    for rows in range(1, 5):
        yield call(leaf(rows, 5, HIDDEN), run=run)


class Shared(nn.Module):
    """Blocks that have one module in common."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Counted(i) for i in range(2))
        self.blocks[1].second = self.blocks[0].second

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@case()
def part_that_two_blocks_share():
    net = Shared().double()
    yield net, (leaf(2, 5, HIDDEN),)
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(3, 5, HIDDEN))
    yield call(leaf(2, 4, HIDDEN))
    yield call(leaf(2, 6, HIDDEN))


class Listed(nn.Module):
    """Keeps its parts in lists and dicts, and calls what they hold by themselves."""

    counting = False

    def __init__(self, index=0):
        super().__init__()
        self.calls = 0
        self.steps = nn.ModuleList([nn.ModuleDict({"mlp": Mlp(index)}), nn.Sequential(Mlp(index), nn.Tanh())])

    def forward(self, x):
        if self.counting:
            self.calls += 1
        return self.steps[1](self.steps[0]["mlp"](x)) + self.steps[1][0](x) / (1 + self.calls)


@case()
def parts_in_lists_and_dicts():
    yield from counted(twins(Listed))


class Store:
    """An object in the call of a block and of its parts; what it keeps the block reads, too."""

    def __init__(self):
        self.kept = None

    def keep(self, value):
        self.kept = value if self.kept is None else torch.cat([self.kept, value], dim=1)
        return self.kept


class Keeps(Mlp):
    def forward(self, x, store=None):
        y = self.up(self.norm(x)).relu()
        if store is not None:
            y = store.keep(y)[:, -x.shape[1] :] + y
        return x + self.down(y)


class ReadsStore(nn.Module):
    counting = False

    def __init__(self, index=0):
        super().__init__()
        self.calls = 0
        self.first, self.second = Keeps(index), Mlp(index)

    def forward(self, x, store=None):
        if self.counting:
            self.calls += 1
        y = self.first(x, store)
        if store is not None:
            y = y + store.kept.mean(dim=(1, 2))[:, None, None] * self.calls
        return self.second(y)


class WithStores(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(ReadsStore(i) for i in range(2))

    def forward(self, x, stores=None):
        for i, block in enumerate(self.blocks):
            x = block(x, None if stores is None else stores[i])
        return x


@case()
def parts_that_are_given_an_object():
    net = WithStores().double()
    yield net, (leaf(2, 5, HIDDEN),)
    count(net)
    yield call(leaf(2, 5, HIDDEN))
    stores = [Store(), Store()]
    yield call(leaf(2, 5, HIDDEN), stores, backward=False, under=torch.no_grad)
    yield call(leaf(2, 1, HIDDEN), stores, backward=False, under=torch.no_grad)
    yield call(leaf(2, 3, HIDDEN), stores, backward=False, under=torch.no_grad)
