"""What a block says of the tensors that its backward needs: a checkpoint runs its Python again there, hooks give others back."""

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils import checkpoint as again

from tests.contract.parts import INNER, Mlp, Net, call, case, twins

COUNTS = {"calls": 0}


class Checkpointed(Mlp):
    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.register_buffer("seen", torch.zeros(INNER, dtype=torch.float64))
        self.plain, self.steps = torch.zeros(()), 0

    def inner(self, y):
        return y.tanh()

    def middle(self, y):
        return again.checkpoint(self.inner, y, use_reentrant=False, **self.options)


class WithStatistics(Checkpointed):
    def __init__(self, **options):
        super().__init__(**options)
        self.statistics = nn.BatchNorm1d(INNER).double()

    def inner(self, y):
        return self.statistics(y.flatten(0, -2)).view_as(y).tanh()


class WritesBuffer(Checkpointed):
    def inner(self, y):
        self.seen.mul_(0.5).add_(y.detach().flatten(0, -2).mean(0))
        return (y * (1 + 0.1 * self.seen)).tanh()


class GivesBuffer(Checkpointed):
    def inner(self, y):
        self.seen = 0.5 * self.seen + y.detach().flatten(0, -2).mean(0)
        return (y * (1 + 0.1 * self.seen)).tanh()


class WritesPlain(Checkpointed):
    def inner(self, y):
        self.plain += 1
        return (y * (1 + 0.1 * self.plain)).tanh()


class Counts(Checkpointed):
    def inner(self, y):
        self.steps += 1
        COUNTS["calls"] += 1
        return (y * (1 + 0.1 * self.steps + 0.01 * COUNTS["calls"])).tanh()


class WritesBefore(Checkpointed):
    """What it writes is not in the checkpoint, and is written once."""

    def middle(self, y):
        self.seen.add_(1)
        return super().middle(y) * (1 + 0.1 * self.seen)


class Rounded(Checkpointed):
    def middle(self, y):
        with saved_tensors_hooks(lambda kept: (kept * 8).round() / 8, lambda kept: kept):
            return y.tanh().square()


class OnCpu(Checkpointed):
    def middle(self, y):
        with save_on_cpu():
            return y.tanh().square()


class HookedInCheckpoint(Rounded):
    def middle(self, y):
        return again.checkpoint(super().middle, y, use_reentrant=False)


def selective():
    return again.create_selective_checkpoint_contexts([torch.ops.aten.tanh.default])


class InSequence(Checkpointed):
    def __init__(self):
        super().__init__()
        self.steps_of = nn.Sequential(nn.Linear(INNER, INNER), nn.BatchNorm1d(INNER), nn.Tanh()).double()

    def middle(self, y):
        rows = y.flatten(0, -2)
        return again.checkpoint_sequential(self.steps_of, 2, rows, use_reentrant=False).view_as(y)


def several_calls(net):
    yield net
    yield
    yield
    net.eval()
    yield
    net.train()
    yield call(under=torch.no_grad, backward=False)
    yield


@case()
def checkpointed_statistics():
    yield from several_calls(twins(lambda index: WithStatistics()))


@case()
def checkpointed_statistics_without_random_state():
    yield from several_calls(twins(lambda index: WithStatistics(preserve_rng_state=False)))


@case()
def checkpointed_statistics_of_some():
    yield from several_calls(twins(lambda index: WithStatistics() if index else Checkpointed()))


@case()
def checkpointed_buffer():
    yield from several_calls(twins(lambda index: WritesBuffer()))


@case()
def checkpointed_buffer_selectively():
    yield from several_calls(twins(lambda index: WritesBuffer(context_fn=selective)))


@case()
def checkpointed_selectively():
    yield from several_calls(twins(lambda index: Checkpointed(context_fn=selective)))


@case()
def checkpointed_buffer_that_is_given():
    yield from several_calls(twins(lambda index: GivesBuffer()))


@case()
def checkpointed_plain_tensor():
    yield from several_calls(twins(lambda index: WritesPlain()))


@case()
def checkpointed_counters():
    COUNTS["calls"] = 0
    yield from several_calls(twins(lambda index: Counts()))


@case()
def buffer_beside_a_checkpoint():
    yield from several_calls(twins(lambda index: WritesBefore()))


@case()
def kept_rounded():
    yield from several_calls(twins(lambda index: Rounded()))


@case()
def kept_rounded_in_a_checkpoint():
    yield from several_calls(twins(lambda index: HookedInCheckpoint()))


@case()
def kept_on_another_device():
    yield from several_calls(twins(lambda index: OnCpu()))


@case()
def checkpointed_in_sequence():
    yield from several_calls(twins(lambda index: InSequence()))


class Around(Net):
    """Checkpoints its blocks: what these write, the backward writes again, and computes with."""

    def __init__(self, kind):
        super().__init__(kind(), kind())

    def forward(self, x):
        for block in self.blocks:
            x = again.checkpoint(block, x, use_reentrant=False)
        return x


class WritesBufferBare(WritesBuffer):
    def middle(self, y):
        return self.inner(y)


class CountsBare(Counts):
    def middle(self, y):
        return self.inner(y)


class HasStatisticsBare(WithStatistics):
    def middle(self, y):
        return self.inner(y)


@case()
def buffer_that_is_written_again():
    yield from several_calls(Around(WritesBufferBare))


@case()
def counters_that_count_again():
    COUNTS["calls"] = 0
    yield from several_calls(Around(CountsBare))


@case()
def statistics_that_are_written_again():
    yield from several_calls(Around(HasStatisticsBare))
