"""Hooks, forwards of an instance's own, and what is kept by a gradient hook."""

from tests.contract.parts import Mlp, case, twins


def doubles(module, args, result):
    return result * 2


def halves(module, args):
    return (args[0] / 2,)


@case()
def forward_hook_on_a_norm():
    net = twins(Mlp)
    net.blocks[0].norm.register_forward_hook(doubles)
    yield net
    yield
    yield
    net.eval()
    yield
    yield


@case()
def forward_hook_on_equal_norms():
    net = twins(Mlp)
    for block in net.blocks:
        block.norm.register_forward_hook(doubles)
    yield net
    yield
    yield
    yield
    yield


@case()
def forward_hook_after_the_first_call():
    net = twins(Mlp)
    yield net
    yield
    handle = net.blocks[1].norm.register_forward_hook(doubles)
    yield
    yield
    handle.remove()
    yield


@case()
def forward_pre_hook():
    net = twins(Mlp)
    net.blocks[0].norm.register_forward_pre_hook(halves)
    yield net
    yield
    handle = net.blocks[1].norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    yield
    yield
    handle.remove()
    yield


@case(refusal=("hook",))
def full_backward_hook():
    net, seen = twins(Mlp), []
    net.seen = seen
    net.blocks[0].norm.register_full_backward_hook(lambda module, wanted, given: (wanted[0] * 2,))
    yield net
    yield
    yield
    yield
    yield


@case(refusal=("hook",))
def full_backward_hook_after_the_first_call():
    net = twins(Mlp)
    yield net
    yield
    handle = net.blocks[0].norm.register_full_backward_hook(lambda module, wanted, given: (wanted[0] * 2,))
    yield
    yield
    handle.remove()
    yield


@case(refusal=("hook",))
def full_backward_hook_on_a_layer():
    net = twins(Mlp)
    net.blocks[0].up.register_full_backward_hook(lambda module, wanted, given: (wanted[0] * 2,))
    yield net
    yield
    yield
    yield
    yield


@case(refusal=("hook",))
def full_backward_pre_hook():
    net = twins(Mlp)
    net.blocks[1].norm.register_full_backward_pre_hook(lambda module, given: (given[0] * 2,))
    yield net
    yield
    yield
    yield
    yield


@case()
def full_backward_hook_on_a_block():
    net = twins(Mlp)
    net.blocks[0].register_full_backward_hook(lambda module, wanted, given: (wanted[0] * 2,))
    yield net
    yield
    net.blocks[1].register_full_backward_pre_hook(lambda module, given: (given[0] * 3,))
    yield
    yield
    yield


@case()
def gradient_hook_on_a_cut_weight():
    net = twins(Mlp)
    net.blocks[0].up.weight.register_hook(lambda gradient: gradient * 3)
    yield net
    yield
    yield
    yield
    yield


@case()
def gradient_hook_on_a_norms_weight():
    net = twins(Mlp)
    net.blocks[0].norm.weight.register_hook(lambda gradient: gradient * 3)
    yield net
    yield
    net.blocks[1].norm.bias.register_hook(lambda gradient: gradient * 2)
    yield
    yield
    yield


@case()
def gradient_hook_on_a_cut_weight_after_the_first_call():
    net = twins(Mlp)
    yield net
    yield
    handle = net.blocks[0].up.weight.register_hook(lambda gradient: gradient * 3)
    yield
    yield
    handle.remove()
    yield


@case()
def accumulated_gradient_hook():
    net = twins(Mlp)
    net.notes = []
    net.blocks[0].down.weight.register_post_accumulate_grad_hook(
        lambda weight: net.notes.append(weight.grad is not None)
    )
    yield net
    yield
    yield
    yield
    yield


@case()
def own_forward_of_a_norm():
    net = twins(Mlp)
    norm = net.blocks[0].norm
    norm.forward = lambda x: x * 2
    yield net
    yield
    yield
    yield
    yield


@case()
def own_forward_of_a_norm_after_the_first_call():
    net = twins(Mlp)
    yield net
    yield
    norm = net.blocks[1].norm
    first = norm.forward
    norm.forward = lambda x: first(x) * 2
    yield
    yield
    del norm.forward
    yield


@case()
def own_forward_of_a_cut_linear():
    net = twins(Mlp)
    up = net.blocks[0].up
    first = up.forward
    up.forward = lambda x: first(x) * 2
    yield net
    yield
    yield
    yield
    yield


@case()
def forward_hook_on_a_cut_linear():
    net = twins(Mlp)
    net.blocks[0].up.register_forward_hook(doubles)
    yield net
    yield
    handle = net.blocks[1].down.register_forward_hook(doubles)
    yield
    handle.remove()
    yield
    net.blocks[1].up.register_forward_pre_hook(halves)
    yield


@case()
def forward_hook_on_a_block():
    net = twins(Mlp)
    net.blocks[0].register_forward_hook(doubles)
    yield net
    yield
    net.blocks[1].register_forward_pre_hook(halves)
    yield
    yield
    yield


@case()
def forward_hook_that_collects():
    net = twins(Mlp)
    net.collected = []

    def keep(module, args, result):
        net.collected.append(result.detach().sum())

    net.blocks[0].norm.register_forward_hook(keep)
    yield net
    yield
    yield
    yield
    yield


@case()
def forward_hook_that_reads_what_is_cut():
    net = twins(Mlp)
    net.collected = []
    net.blocks[0].up.register_forward_hook(lambda module, args, result: net.collected.append(result.detach().clone()))
    yield net
    yield
    yield
    yield
    yield


@case(refusal=("hook",))
def gradient_hook_that_looks_across_a_cut_weight():
    net = twins(Mlp)
    net.blocks[0].up.weight.register_hook(lambda gradient: gradient / gradient.abs().max() + gradient.mean())
    yield net
    yield
    yield
    yield
    yield
