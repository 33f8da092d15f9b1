"""Blocks that had a program and then get a call that can have none: their Python runs as it stands, on the module's own
parameters, whatever it does with them."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.contract.parts import HIDDEN, INNER, Call, Mlp, call, case, leaf, linear, twins, values


def script(code):
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):  # torch says that TorchScript is old, 2.15 in other words
            warnings.simplefilter("ignore", kind)
        return torch.jit.script(code)


class Sometimes(Mlp):
    """Does something in calls that branch on data, `odd`, which have no program, and goes on with what it found."""

    def __init__(self, act):
        super().__init__()
        self.act, self.odd, self.notes = act, False, []

    def middle(self, y):
        if self.odd and float(y.detach().sum()) < 1e9:
            return self.act(self, y).relu()
        return y.relu()


def sometimes(act, between=lambda net: None):
    net = twins(lambda i: Sometimes(act))
    yield net
    for number in range(5):
        for block in net.blocks:
            block.odd = number in (1, 2, 4)
        yield
        if number == 2:
            between(net)


def doubled(net):
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)


@case()
def whole_keeps_a_weight():
    def act(block, y):
        block.notes.append(block.up.weight)
        return y * block.notes[0].sum()

    yield from sometimes(act, doubled)


@case()
def whole_writes_data():
    def act(block, y):
        block.down.weight.data.mul_(1.1)
        return y

    yield from sometimes(act)


@case()
def whole_writes_without_gradients():
    def act(block, y):
        with torch.no_grad():
            block.down.bias.add_(0.1)
            block.down.weight.add_(0.1)
        return y

    yield from sometimes(act)


@case()
def whole_asks_for_parameters():
    def act(block, y):
        return y * sum(isinstance(p, nn.Parameter) for p in block.parameters())

    yield from sometimes(act)


@case()
def whole_asks_who_a_parameter_is():
    def act(block, y):
        block.notes.append(block.up.weight)
        return y * (1.0 + all(note is block.up.weight for note in block.notes) + len(block.notes))

    yield from sometimes(act, doubled)


@case()
def whole_hooks_a_weight():
    def act(block, y):
        block.up.weight.register_hook(lambda gradient: gradient * 2)
        return y

    yield from sometimes(act)


@case()
def whole_reads_gradients():
    def act(block, y):
        return y * (1.0 if block.up.weight.grad is None else 1.0 + block.up.weight.grad.norm())

    yield from sometimes(act)


@case()
def whole_forgets_gradients():
    def act(block, y):
        block.zero_grad()
        return y

    yield from sometimes(act)


@case()
def whole_steps():
    def act(block, y):
        if block.down.weight.grad is not None:
            torch.optim.SGD(block.down.parameters(), lr=1e-3).step()
        return y

    yield from sometimes(act)


@case()
def whole_tags_a_weight():
    def act(block, y):
        block.up.weight.times = getattr(block.up.weight, "times", 0) + 1
        return y * block.up.weight.times

    yield from sometimes(act)


@case()
def whole_freezes_a_weight():
    def act(block, y):
        block.up.weight.requires_grad_(not block.up.weight.requires_grad)
        return y

    yield from sometimes(act)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.flatten(0, -2).t() @ gradient.flatten(0, -2)


@case()
def whole_has_its_own_derivative():
    yield from sometimes(lambda block, y: y + Product.apply(Product.apply(y, block.up.weight), block.down.weight))


@case()
def whole_checkpoints():
    def act(block, y):
        return checkpoint(lambda z: F.linear(F.linear(z, block.down.weight), block.up.weight), y, use_reentrant=False)

    yield from sometimes(act)


@case()
def whole_checkpoints_reentrant():
    def act(block, y):
        return checkpoint(lambda z: F.linear(F.linear(z, block.down.weight), block.up.weight), y, use_reentrant=True)

    yield from sometimes(act)


@case()
def whole_differentiates():
    def act(block, y):
        (slope,) = torch.autograd.grad(block.down(y).square().sum(), [block.down.weight], create_graph=True)
        return y * slope.sum()

    yield from sometimes(act)


@case()
def whole_calls_with_other_weights():
    def act(block, y):
        weights = {name: p * 2 for name, p in block.down.named_parameters()}
        return y * torch.func.functional_call(block.down, weights, y).mean()

    yield from sometimes(act)


@case()
def whole_maps_over_a_batch():
    yield from sometimes(
        lambda block, y: y + torch.vmap(lambda z: F.linear(F.linear(z, block.down.weight), block.up.weight))(y)
    )


@case()
def whole_takes_a_functional_gradient():
    def act(block, y):
        slope = torch.func.grad(lambda w: F.linear(y, w).square().sum())(block.down.weight)
        return y * slope.mean()

    yield from sometimes(act)


@script
def scripted(x, weight):
    return x + x @ weight @ weight.t()


@case()
def whole_scripted():
    yield from sometimes(lambda block, y: scripted(y, block.up.weight))


@case()
def whole_writes_to_numpy():
    yield from sometimes(lambda block, y: y * float(block.up.weight.detach().numpy().sum()))


@case()
def whole_lists_numbers():
    yield from sometimes(lambda block, y: y * sum(block.up.bias.tolist()))


@case()
def whole_compares_shapes():
    def act(block, y):
        return y * block.up.weight.shape[0] * block.up.weight.numel() * block.up.weight.stride()[0] * 1e-4

    yield from sometimes(act)


class Recurrent(nn.Module):
    """A recurrent layer between the two of an MLP; odd calls read it in their Python."""

    def __init__(self):
        super().__init__()
        self.up, self.down = linear(HIDDEN, INNER), linear(INNER, HIDDEN)
        self.odd = False

    def forward(self, x):
        y = self.up(x)
        if self.odd and float(y.detach().sum()) < 1e9:
            y = y + torch.stack([row @ self.up.weight.t() for row in x.unbind(0)])
            y = F.multi_head_attention_forward(
                *(y[0][:, None],) * 3, INNER, 4, torch.cat([self.up.weight @ self.down.weight] * 3, 0), None, None, None,
                False, 0.0, self.up.weight @ self.down.weight, None, need_weights=False,
            )[0][None, :, 0] + y  # fmt: skip
        return x + self.down(y.tanh())


@case()
def whole_attends_with_weights():
    net = twins(lambda i: Recurrent())
    yield net
    for number in range(4):
        for block in net.blocks:
            block.odd = number in (1, 3)
        yield


@case()
def whole_replaces_a_weight():
    def act(block, y):
        block.norm.weight = nn.Parameter(block.norm.weight.detach() * 1.1)
        return y

    yield from sometimes(act)


@case()
def whole_replaces_a_cut_weight():
    def act(block, y):
        block.up.weight = nn.Parameter(block.up.weight.detach() * 1.1)
        return y

    yield from sometimes(act)


@case()
def whole_loads():
    def act(block, y):
        block.down.load_state_dict({name: value * 1.1 for name, value in block.down.state_dict().items()})
        return y

    yield from sometimes(act)


@case()
def whole_exchanges_rows():
    def act(block, y):
        with torch.no_grad():
            block.down.weight[0], block.down.weight[1:3] = block.down.weight[1].clone(), values(2, INNER)
        return y

    yield from sometimes(act)


@case()
def outer_gradient_penalty_of_a_cut_weight():
    net = twins(lambda i: Mlp())
    yield net

    def penalty(x):
        weight = net.blocks[0].up.weight
        out = net.blocks[1](x + torch.tanh(x @ weight.t() @ weight))
        (slope,) = torch.autograd.grad((x @ weight.t()).tanh().pow(2).sum(), weight, create_graph=True)
        return out + slope.pow(2).sum() + slope[0, 1]

    for number in range(4):
        yield call(values(2, 3, HIDDEN, seed=number), run=penalty)
        if number == 1:
            doubled(net)


def outer(run):
    """A block, and Python outside of it that reads a cut weight of another block by `run`."""
    net = twins(lambda i: Mlp())
    yield net
    for number in range(4):
        x = values(2, 3, HIDDEN, seed=number).requires_grad_()
        yield call(x, run=lambda x: net.blocks[0](x) + run(x, net.blocks[1].up.weight))
        if number == 1:
            doubled(net)


@case()
def outer_derivative_of_its_own():
    yield from outer(lambda x, weight: Product.apply(Product.apply(x, weight.t()), weight))


@script
def size(weight):
    return weight.pow(2).sum()


@case()
def outer_scripted():
    yield from outer(lambda x, weight: x * size(weight))


class Scripted(nn.Module):
    def forward(self, x, weight):
        return x * weight.mean()


@case()
def outer_scripted_module():
    scripted_module = script(Scripted())
    yield from outer(lambda x, weight: scripted_module(x, weight))


@case()
def outer_vmap_over_rows():
    yield from outer(lambda x, weight: x * torch.vmap(lambda row: row.square().sum())(weight).sum())


@case()
def outer_functional_gradient():
    yield from outer(lambda x, weight: x * torch.func.grad(lambda w: w.square().sum())(weight).sum())


@case()
def outer_jacobian():
    yield from outer(lambda x, weight: x * torch.func.jacrev(lambda w: w.square().sum(0))(weight).sum())


@case(processes=True)  # torch counts the levels of forward mode once a process
def outer_forward_mode():
    def slope(x, weight):
        return x * torch.func.jvp(lambda w: w.square().sum(), (weight,), (torch.ones(INNER, HIDDEN, dtype=x.dtype),))[1]

    yield from outer(slope)


@case()
def outer_functional_call_of_the_net():
    net = twins(lambda i: Mlp())
    yield net

    def run(x):
        def loss(weights):
            return torch.func.functional_call(net, weights, x).square().sum()

        slopes = torch.func.grad(loss)({name: p.detach() for name, p in net.named_parameters()})
        return x * sum(slope.sum() for slope in slopes.values())

    for number in range(4):
        yield call(values(2, 3, HIDDEN, seed=number).requires_grad_(), run=run)


@case()
def outer_operator_by_its_overload():
    yield from outer(lambda x, weight: x * torch.ops.aten.sum.default(torch.ops.aten.mm(weight, weight.t())))


@case()
def outer_hessian():
    def run(x, weight):
        return x * torch.autograd.functional.jvp(lambda w: w.square().sum(), weight, torch.ones_like(weight))[1]

    yield from outer(run)


@case(refusal=("forward-mode",))
def forward_mode_derivative():
    net = twins(lambda index: Mlp())

    def run(x):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
            return tuple(torch.autograd.forward_ad.unpack_dual(net(dual)))

    yield net
    yield
    for seed in range(3):
        yield Call((leaf(2, 5, HIDDEN, seed=seed),), run=run, backward=False)


@case()
def hooks_of_saved_tensors_forbidden():
    net = twins(lambda index: Mlp())

    def run(x):
        with torch.no_grad(), torch.autograd.graph.disable_saved_tensors_hooks("no"):
            return net(x)

    yield net
    for seed in range(4):
        yield Call((leaf(2, 5, HIDDEN, seed=seed),), run=run, backward=False)
