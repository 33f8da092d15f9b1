"""Parameters that are cut, and then replaced, exchanged, shared, renamed, pruned or taken away."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.contract.parts import HIDDEN, INNER, Mlp, call, case, twins, values


class Square(Mlp):
    """Two linears of one shape, of which one is cut by its outputs and one by its inputs."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.up, self.down = (nn.Linear(HIDDEN, HIDDEN, dtype=torch.float64) for _ in range(2))


@case()
def cut_weight_replaced():
    net = twins(Mlp)
    yield net
    yield
    net.blocks[0].up.weight = nn.Parameter(values(INNER, HIDDEN, seed=5))
    yield
    net.blocks[1].down.weight = nn.Parameter(values(HIDDEN, INNER, seed=6))
    net.blocks[1].up.bias = nn.Parameter(values(INNER, seed=7))
    yield
    yield


@case()
def cut_weight_of_the_other_block():
    net = twins(Mlp)
    yield net
    yield
    net.blocks[1].up.weight = net.blocks[0].up.weight
    yield
    net.blocks[0].down.bias = net.blocks[1].down.bias
    yield
    yield


@case()
def cut_weights_exchanged():
    net = twins(Mlp)
    yield net
    yield
    one, other = (block.up for block in net.blocks)
    one.weight, other.weight = other.weight, one.weight
    yield
    one._parameters, other._parameters = other._parameters, one._parameters
    yield
    yield


@case()
def weight_cut_otherwise_put_in_its_place():
    net = twins(Square)
    yield net
    yield
    block = net.blocks[0]
    block.down.weight = block.up.weight
    yield
    block.up.weight = net.blocks[1].down.weight
    yield
    yield


@case()
def cut_bias_taken_away():
    net = twins(Mlp)
    yield net
    yield
    net.blocks[0].up.bias = None
    yield
    net.blocks[1].down.bias = None
    yield
    yield


@case()
def cut_bias_deleted_and_made_again():
    net = twins(Mlp)
    yield net
    yield
    for block in net.blocks:
        del block.up.bias
        block.up.register_parameter("bias", None)
    yield
    net.blocks[0].up.bias = nn.Parameter(values(INNER, seed=3))
    yield
    yield


@case()
def weight_pruned_later():
    net = twins(Mlp)
    yield net
    yield
    prune.l1_unstructured(net.blocks[0].up, "weight", amount=0.5)
    yield
    yield
    prune.remove(net.blocks[0].up, "weight")
    yield


@case()
def weight_norm_later():
    net = twins(Mlp)
    yield net
    yield
    parametrizations.weight_norm(net.blocks[0].up)
    yield
    yield
    nn.utils.parametrize.remove_parametrizations(net.blocks[0].up, "weight")
    yield


@case()
def weight_as_an_attribute():
    """A buffer or a plain tensor takes the place of the parameter."""
    net = twins(Mlp)
    yield net
    yield
    up = net.blocks[0].up
    del up.weight
    up.weight = values(INNER, HIDDEN, seed=2)
    yield
    del up.weight
    up.register_buffer("weight", values(INNER, HIDDEN, seed=4))
    yield
    yield


@case()
def weight_under_another_name():
    class Renamed(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(x, self.other if hasattr(self, "other") else self.weight, self.bias)

    class Own(Mlp):
        def __init__(self, index=0):
            super().__init__(index)
            self.up = Renamed(HIDDEN, INNER, dtype=torch.float64)

    net = twins(Own)
    yield net
    yield
    up = net.blocks[0].up
    up.other = up.weight
    yield
    del up.weight
    yield
    yield


@case()
def weight_data_replaced():
    net = twins(Mlp)
    yield net
    yield
    net.blocks[0].up.weight.data = values(INNER, HIDDEN, seed=5)
    yield
    with torch.no_grad():
        net.blocks[1].down.weight.data = net.blocks[0].down.weight.data * 2
    yield
    yield


@case()
def weights_from_a_vector():
    net = twins(Mlp)
    yield net
    yield
    with torch.no_grad():
        vector = nn.utils.parameters_to_vector(net.parameters())
        nn.utils.vector_to_parameters(vector * 0.5, net.parameters())
    yield
    yield call(run=lambda: nn.utils.parameters_to_vector(net.blocks[0].up.parameters()))
    yield


@case()
def weights_set_again_by_init():
    net = twins(Mlp)
    yield net
    yield
    torch.manual_seed(3)
    net.blocks[0].up.reset_parameters()
    yield
    torch.manual_seed(4)
    nn.init.xavier_uniform_(net.blocks[1].down.weight)
    nn.init.orthogonal_(net.blocks[1].up.weight)
    yield
    for block in net.blocks:
        nn.init.trunc_normal_(block.up.weight, std=0.02)
        nn.init.eye_(block.down.weight)
        nn.init.constant_(block.up.bias, 0.1)
    yield


@case()
def state_loaded_into_a_layer():
    net = twins(Mlp)
    yield net
    yield
    net.blocks[0].up.load_state_dict({"weight": values(INNER, HIDDEN, seed=5), "bias": values(INNER, seed=6)})
    yield
    net.blocks[1].load_state_dict(net.blocks[0].state_dict())
    yield
    net.blocks[0].up.load_state_dict(
        {"weight": nn.Parameter(values(INNER, HIDDEN, seed=7)), "bias": values(INNER, seed=8)}, assign=True
    )
    yield


@case()
def layer_of_other_sizes_put_in():
    """A linear layer's own attributes say what they said; its weights are of another width."""
    net = twins(Mlp)
    yield net
    yield
    block = net.blocks[0]
    block.up.weight = nn.Parameter(values(2 * INNER, HIDDEN, seed=1))
    block.up.bias = nn.Parameter(values(2 * INNER, seed=2))
    block.down.weight = nn.Parameter(values(HIDDEN, 2 * INNER, seed=3))
    yield
    yield
    yield


class Masked(Mlp):
    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.mask = torch.ones(INNER, HIDDEN, dtype=torch.float64)
        self.register_buffer("other", torch.ones(HIDDEN, INNER, dtype=torch.float64))

    def forward(self, x):
        y = nn.functional.linear(self.norm(x), self.up.weight * self.mask, self.up.bias).relu()
        return x + nn.functional.linear(y, self.down.weight * self.other, self.down.bias)


@case()
def state_made_of_a_cut_weight():
    net = twins(Masked)
    yield net
    yield
    block = net.blocks[0]
    block.mask = (block.up.weight.detach() > 0).double()
    yield
    block.other = (block.down.weight.detach() > 0).double()
    yield
    net.blocks[1].mask = block.mask
    yield
    block.mask.mul_(3)
    yield
    net.blocks[1].other.copy_(block.other)
    yield


@case()
def average_of_weights_kept_in_buffers():
    """As an exponential average of the weights does."""
    net = twins(Masked)
    yield net
    for _ in range(4):
        yield
        with torch.no_grad():
            for block in net.blocks:
                block.mask = 0.5 * block.mask + 0.5 * block.up.weight
                block.other.lerp_(block.down.weight, 0.5)


@case()
def rows_of_a_cut_weight_as_a_parameter():
    """It shares memory with the weight, and is trained beside it."""

    class Own(Mlp):
        def after(self, x):
            return x * (1 + self.rows.sum()) if hasattr(self, "rows") else x

    net = twins(Own)
    yield net
    yield
    block = net.blocks[0]
    block.rows = nn.Parameter(block.up.weight.data[:3])
    yield
    with torch.no_grad():
        block.rows.mul_(1.5)
    yield
    with torch.no_grad():
        block.up.weight.mul_(0.5)
    yield
