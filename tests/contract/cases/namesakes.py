"""Things that are called like others."""

import torch

from tests.contract.parts import HIDDEN, INNER, Mlp, call, case, leaf, twins

HEADS = 4


class GeLUFunction(torch.autograd.Function):
    """Called like one that works on single elements; this one does not."""

    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y * y.sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y.sum(-1, keepdim=True) + (gradient * y).sum(-1, keepdim=True)


class AppliesNamesake(Mlp):
    def middle(self, y):
        return GeLUFunction.apply(y)


@case(refusal=("GeLUFunction",))
def derivative_of_the_same_name():
    yield twins(AppliesNamesake)
    for _ in range(4):
        yield


class Mixer:
    """Looks like a cache, and mixes heads."""

    def update(self, k, v, *args, **kwargs):
        return k.flip(1) + k.mean(1, keepdim=True), v.cumsum(1)


class Attends(Mlp):
    def __init__(self, index):
        super().__init__()
        from tests.contract.parts import linear

        self.q, self.k, self.v, self.o = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.index = index

    def forward(self, x, cache=None):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        return super().forward(x)


@case(refusal=("Mixer",))
def cache_that_mixes_heads():
    yield twins(Attends)
    yield call(leaf(2, 5, HIDDEN), cache=Mixer())
    yield call(leaf(2, 5, HIDDEN))
    yield call(leaf(3, 5, HIDDEN), Mixer())
    yield call(leaf(2, 4, HIDDEN), cache=Mixer())


def mamba_selective_scan(hidden_states, dt, A, B, C, D, z=None, delta_bias=None):
    """Called like a scan whose channels are apart; these are not."""
    return hidden_states * dt.sum(1, keepdim=True) + D.sum() + A.sum() * B.mean() * C.mean(), None


class Scans(Mlp):
    def __init__(self, index):
        super().__init__()
        from torch import nn

        self.a, self.d = nn.Parameter(torch.ones(INNER, 3).double()), nn.Parameter(torch.ones(INNER).double())

    def middle(self, y):
        t = y.transpose(1, 2)
        b = y.new_ones(y.shape[0], 3, y.shape[1])
        return mamba_selective_scan(t, t.sigmoid(), self.a, b, b, self.d)[0].transpose(1, 2)


@case(refusal=("mamba_selective_scan",))
def function_named_like_a_scan():
    yield twins(Scans)
    for _ in range(4):
        yield
