"""What runs in a block and around it: derivatives of its own, transforms, hooks on values, errors, tensors that are exchanged."""

import contextlib

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.contract.parts import Mlp, call, case, leaf, twins, values

HELD = [2.0]


class ReadsForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * HELD[0]

    @staticmethod
    def backward(ctx, g):
        return g * 2


class ReadsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * HELD[0]


@case()
def derivative_that_reads_forward():
    class F(Mlp):
        def middle(self, y):
            return ReadsForward.apply(y.relu())

    net = twins(lambda i: F())
    HELD[0] = 2.0
    yield net
    yield
    HELD[0] = 3.0
    yield
    HELD[0] = 4.0
    yield
    yield


@case()
def derivative_that_reads_backward():
    class F(Mlp):
        def middle(self, y):
            return ReadsBackward.apply(y.relu())

    net = twins(lambda i: F())
    HELD[0] = 2.0
    yield net
    yield
    HELD[0] = 3.0
    yield
    HELD[0] = 4.0
    yield
    yield


@case()
def hook_on_a_value():
    class F(Mlp):
        def middle(self, y):
            y = y.relu()
            if y.requires_grad:
                y.register_hook(lambda g: g * HELD[0])
            return y

    net = twins(lambda i: F())
    HELD[0] = 2.0
    yield net
    yield
    HELD[0] = 3.0
    yield
    HELD[0] = 4.0
    yield
    yield


@case()
def gradients_turned_off_by_a_block():
    class F(Mlp):
        def middle(self, y):
            y = y.relu()
            torch.set_grad_enabled(False)
            return y

    net = twins(lambda i: F())

    def run():
        try:
            x = leaf(2, 5, 32)
            y = net(x)
            return y * 1, x * 2
        finally:
            torch.set_grad_enabled(True)

    yield net
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)


class Deep(Mlp):
    def forward(self, x, depth=2):
        x = super().forward(x)
        return self(x, depth - 1) if depth else x


@case()
def block_that_calls_itself():
    net = twins(lambda i: Deep())
    yield net
    yield
    yield call(leaf(2, 5, 32), 1)
    yield call(leaf(2, 5, 32), 3)
    yield


@case()
def gradients_asked_for():
    net = twins(lambda i: Mlp())

    def run():
        y = net(leaf(2, 5, 32))
        g = torch.autograd.grad(y.square().sum(), list(net.parameters()), retain_graph=True)
        h = torch.autograd.grad(y.sum(), [net.blocks[1].up.weight, net.blocks[0].norm.bias])
        return [t.square().sum() for t in (*g, *h)]

    yield net
    for _ in range(4):
        yield call(run=run, backward=False)


@case(refusal=("part of the gradient",))
def hook_on_many_gradients():
    net = twins(lambda i: Mlp())
    seen = []

    def note(grads):
        seen.append([None if g is None else float(g.norm()) for g in grads])

    def run():
        y = net(leaf(2, 5, 32))
        return y * (1 + len(seen))

    yield net
    torch.autograd.graph.register_multi_grad_hook(list(net.parameters()), note)
    for _ in range(4):
        yield call(run=run)


@case()
def hook_on_a_node():
    net = twins(lambda i: Mlp())

    def run():
        x = leaf(2, 5, 32) * 1
        y = net(x)
        y.grad_fn.register_prehook(lambda o: tuple(None if g is None else g * 2 for g in o))
        return y

    yield net
    for _ in range(4):
        yield call(run=run)


@case()
def vmap_inside():
    class F(Mlp):
        def middle(self, y):
            return torch.vmap(lambda row: row.relu() * HELD[0])(y)

    net = twins(lambda i: F())
    HELD[0] = 2.0
    yield net
    yield
    HELD[0] = 3.0
    yield
    yield
    yield


@case()
def scripted_inside():
    @torch.jit.script
    def squared(x: torch.Tensor) -> torch.Tensor:
        return x.relu() * x

    class F(Mlp):
        def middle(self, y):
            return squared(y)

    net = twins(lambda i: F())
    yield net
    yield
    yield
    yield
    yield


@case(refusal=("still cut",))
def transform_inside():
    class F(Mlp):
        def middle(self, y):

            return torch.func.grad(lambda v: (v.tanh() * HELD[0]).sum())(y)

    net = twins(lambda i: F())
    HELD[0] = 2.0
    yield net
    yield
    HELD[0] = 3.0
    yield
    yield
    yield


@case()
def error_in_between():
    net = twins(lambda i: Mlp())

    def bad():
        with contextlib.suppress(RuntimeError):
            net(leaf(2, 5, 31))
        return net(leaf(2, 5, 32))

    yield net
    yield
    yield call(run=bad)
    yield
    yield call(run=bad)


@case()
def block_appended():
    net = twins(lambda i: Mlp())
    yield net
    yield
    torch.manual_seed(3)
    net.blocks.append(Mlp())
    yield
    yield
    yield


@case()
def tensors_swapped():
    net = twins(lambda i: Mlp())
    yield net
    yield
    torch.utils.swap_tensors(net.blocks[0].norm.weight, nn.Parameter(values(32, seed=5)))
    yield
    yield
    yield


@case()
def data_set():
    net = twins(lambda i: Mlp())
    yield net
    yield
    net.blocks[0].norm.weight.data = values(32, seed=4)
    net.blocks[0].up.weight.data = net.blocks[0].up.weight.data * 2
    yield
    net.blocks[0].norm.weight.data.set_(values(32, seed=6))
    yield
    yield


@case()
def history_cut_in_place():
    class B(Mlp):
        def middle(self, y):
            z = y.relu()
            w = (z * 1).detach_()
            return z * w

    net = twins(lambda i: B())
    yield net
    yield
    yield
    yield
    yield


@case()
def gradients_turned_on_inside():
    class B(Mlp):
        def middle(self, y):
            with torch.enable_grad():
                z = y.relu() * 2
            with torch.no_grad():
                w = y * 3
            return z + w

    net = twins(lambda i: B())

    def run():
        with torch.no_grad():
            return net(leaf(2, 5, 32))

    yield net
    yield
    yield call(run=run)
    yield
    yield call(run=run)


@case()
def call_of_its_own():
    class B(Mlp):
        def __call__(self, x):
            return super().__call__(x) * HELD[0]

    net = twins(lambda i: B())
    HELD[0] = 2.0
    yield net
    yield
    HELD[0] = 3.0
    yield
    yield
    yield


@case()
def forward_without_gradients():
    class B(Mlp):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x) * HELD[0]

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Mlp()
            self.blocks = nn.ModuleList([B(), B()])

        def forward(self, x):
            x = self.first(x)
            y = x
            for b in self.blocks:
                y = b(y)
            return x * y

    HELD[0] = 2.0
    yield N()
    yield
    HELD[0] = 3.0
    yield
    yield
    yield


@case(processes=True)
def block_compiled():
    net = twins(lambda i: Mlp())
    net.blocks[0].compile(backend="eager")
    yield net
    yield
    net.blocks[1].compile(backend="eager")
    yield
    net.blocks[1].norm.eps = 0.5
    yield
    yield


@case()
def forward_of_the_class_called():
    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Mlp(), Mlp()])

        def forward(self, x):
            for b in self.blocks:
                x = Mlp.forward(b, b(x))
            return x

    yield N()
    yield
    yield
    yield
    yield


@case()
def applied_to_all():
    net = twins(lambda i: Mlp())
    yield net
    yield
    net.apply(lambda m: setattr(m, "eps", 0.5) if isinstance(m, nn.LayerNorm) else None)
    yield
    net.apply(lambda m: m.requires_grad_(False) if isinstance(m, nn.Linear) else None)
    yield
    yield


class Held(Mlp):
    def middle(self, y):
        return y.relu() * HELD[0]


@case()
def state_changed_before_recomputation():
    net = twins(lambda i: Held())
    HELD[0] = 2.0

    def run():
        y = checkpoint(net, leaf(2, 5, 32), use_reentrant=False)
        HELD[0] += 1.0
        return y

    yield net
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)


@case()
def state_changed_before_backward():
    net = twins(lambda i: Held())
    HELD[0] = 2.0

    def run():
        y = net(leaf(2, 5, 32))
        HELD[0] += 1.0
        net.blocks[0].norm.eps += 0.1
        return y

    yield net
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)


@case()
def data_changed_before_backward():
    net = twins(lambda i: Held())
    HELD[0] = 2.0

    def run():
        y = net(leaf(2, 5, 32))
        net.blocks[0].up.weight.data.mul_(2)
        net.blocks[1].norm.weight.data.add_(1)
        net.blocks[1].down.weight.data.mul_(3)
        return y

    yield net
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)
    yield call(run=run)


@case()
def forward_of_a_block_wrapped():
    net = twins(lambda i: Held())
    HELD[0] = 2.0
    yield net
    yield
    old = net.blocks[0].forward
    net.blocks[0].forward = lambda x: old(x) * HELD[0]
    yield
    HELD[0] = 3.0
    yield
    del net.blocks[0].forward
    yield


@case()
def block_in_a_lambda_of_the_model():
    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Mlp(), Mlp()])
            self.twice = lambda x: self.blocks[0](self.blocks[0](x))
            self.weigh = lambda x: x @ self.blocks[1].up.weight.T @ self.blocks[1].down.weight.T

        def forward(self, x):
            return self.blocks[1](self.twice(x)) + self.weigh(x)

    net = N()
    yield net
    yield
    with torch.no_grad():
        net.blocks[1].up.weight.mul_(2)
    yield
    yield
    yield
