"""What concerns a cut tensor, or a view of one, as an object, and not its elements: gradients, hooks, shapes, attributes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import autotp
from autotp.errors import UsageError
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.launch import run_ranks
from tests.contract.parts import HIDDEN, linear
from tests.runtime.test_cut_backwards import IDS, Scaled, Words

F64 = torch.float64


class Net(Words):
    """Both products of a block are square, so that the matrices of the two, which are cut otherwise, have one shape."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks.blocks:
            block.up, block.down = linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN)


def deleted(net: Any) -> list[Any]:
    net.loss().backward()
    for parameter in net.parameters():
        del parameter.grad
    return [parameter.grad for parameter in net.parameters()]


def rows_of_their_own(net: Any) -> list[Any]:
    """Parameters that are views of a cut one: they have gradients, are stepped and copied, and share its memory."""
    table = nn.Embedding.from_pretrained(net.table.weight.data[:10], freeze=False)
    some = nn.ParameterList([nn.Parameter(net.head.weight.detach()[i]) for i in range(3)])
    flat = net.blocks.blocks[0].up.weight.detach().view(-1).requires_grad_()
    optimizer = torch.optim.AdamW([table.weight, *some, flat], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (table(torch.arange(5)).square().sum() + sum((each**3).sum() for each in (*some, flat))).backward()
        optimizer.step()
    copied = copy.deepcopy(table).weight
    own = [table.weight.grad, *(each.grad for each in some), flat.grad, copied, copied.requires_grad]
    del flat.grad
    return [*own, flat.grad, *some, net.table.weight, net.head.weight, net.blocks.blocks[0].up.weight, net.loss()]


def views_in_a_graph(net: Any) -> list[Any]:
    """Hooks of views, gradients with respect to them, retained and asked for, their data, and shapes that are changed."""
    found: list[Any] = []
    for parameter in net.parts():
        view = parameter[1:3]
        view.register_hook(lambda gradient: gradient * 3)
        view.retain_grad()
        (view**2).sum().backward()
        found += [view.grad, view.retains_grad, parameter.grad, *torch.autograd.grad((view**3).sum(), view)]
        shaped = (parameter * 2)[0:2]
        shaped.t_()
        shaped.unsqueeze_(0)
        (shaped**2).sum().backward(inputs=[shaped])
        parameter[0].data.mul_(2)  # of what has a history, without one
        old = parameter.detach()[0], parameter.detach().view(-1)
        parameter.data = parameter.data * 2
        old[0].add_(1)
        found += [*old, parameter]
        given = parameter.data[1:]
        given.grad = torch.ones_like(given)
        found += [tuple(shaped.shape), shaped.grad, given.grad, (parameter * 2)[0].requires_grad]
        given.data = torch.ones(2, dtype=F64)
        given.mul_(2)
        found += [given, parameter]
    return found


def of_sizes(net: Any) -> list[Any]:
    """What is made by a size, which is not a list of numbers."""
    weight = net.head.weight.data
    return [tuple(weight.new(weight.size()).shape), tuple(weight[1:].new(weight[1:].size()).shape)]


def of_two_cuts(net: Any) -> list[Any]:
    """Element by element of tensors that are cut otherwise: each has its whole gradient."""
    upper, lower = net.blocks.blocks[0].up.weight, net.blocks.blocks[1].down.weight
    (upper * lower).square().sum().backward()
    torch._foreach_mul([lower], [upper])[0].norm().backward()
    return [upper.grad, lower.grad]


def recorded_writes(net: Any) -> list[Any]:
    """What has a history and the sizes of the whole, written into data and into what was made of a parameter."""
    found: list[Any] = []
    for parameter in net.parts():
        first, second = (
            torch.ones(shape, dtype=F64, requires_grad=True) for shape in ((len(parameter), 2), (2, HIDDEN))
        )
        data, made = parameter.data, parameter * 3
        data += first @ second
        made.mul_(data).copy_(made * 2)
        made.sub_((first @ second)[:, :1].expand(parameter.shape) + parameter.detach().flip(0))
        found += [data.requires_grad, data.grad_fn is not None]
        found += torch.autograd.grad(made.square().sum() + data[0].sum(), [first, second, parameter], create_graph=True)
        found += torch.autograd.grad(found[-3].norm() + found[-1].norm(), [first, second, parameter])
        parameter.data = data
        found += [parameter, parameter.is_leaf]
    return [*found, net.loss()]


def shapes_that_stay(net: Any) -> list[Any]:
    """Functions that change a shape in place, where there is nothing to change."""
    net.loss().backward()
    for parameter in net.parts():
        parameter.grad.transpose_(0, 0).squeeze_().swapaxes_(1, -1).mul_(2)
        parameter.data.as_strided_(parameter.shape, parameter.stride()).resize_(parameter.shape).resize_as_(parameter)
    return [value for parameter in net.parts() for value in (parameter.grad, parameter)]


def detached_in_place(net: Any) -> list[Any]:
    """Gradients that have a history, which ends in place, and which looking at them under no_grad does not end."""
    found: list[Any] = []
    net.loss().backward(create_graph=True)
    net.zero_grad(set_to_none=False)
    net.loss().backward(create_graph=True)
    with torch.no_grad():
        found += [parameter.grad.norm() for parameter in net.parts()]
    again = sum(parameter.grad.square().sum() for parameter in net.parts())
    found += torch.autograd.grad(again, net.parts(), retain_graph=True)
    for parameter in net.parts():
        doubled = (parameter * 2).detach_()
        parameter.grad = torch.autograd.grad(parameter.square().sum(), parameter, create_graph=True)[0]
        found += [doubled, doubled.requires_grad, parameter.grad.detach_(), parameter.grad.requires_grad]
    return found


def with_attributes(net: Any) -> list[Any]:
    """Names that people give what they keep with a parameter."""
    for parameter in net.parts():
        parameter.origin, parameter.memory, parameter.version = "here", 0, (1, 2)
        row = parameter.data[0]
        row.cut, row.root, row.version = True, None, 3
        row.mul_(2)
    net.loss().backward()
    return [net.loss(), *(p.grad for p in net.parts()), *((p.origin, p.memory, p.version) for p in net.parts())]


def checkpointed(net: Any) -> list[Any]:
    """Checkpoints that are given a parameter, and run a function of it again in the backward."""
    table, head = net.table.weight, net.head.weight
    x = torch.ones(3, HIDDEN, dtype=F64, requires_grad=True)
    product = checkpoint(lambda x, w: (x @ w.T).norm() + w[0].sum(), x, head, use_reentrant=True)
    (net.loss() + product + checkpoint(lambda w: (w @ w.T).norm(), table, use_reentrant=True)).backward()
    return [product, x.grad, table.grad, head.grad]


def beside_torch(net: Any) -> list[Any]:
    """A derivative in a library whose folder begins as torch's does."""
    folder, scope = Path(torch.__file__).parent, {"Scaled": Scaled}
    text = "class Own(Scaled):\n @staticmethod\n def backward(ctx, g): return g * ctx.parameter.detach().norm(), None"
    exec(compile(text, f"{folder}vision/ops.py", "exec"), scope)
    found = torch.autograd.grad(scope["Own"].apply(net.loss(), net.head.weight), net.parts())  # type: ignore[attr-defined]
    return list(found)


def transformed(net: Any) -> list[Any]:
    """Functions that are mapped and differentiated, and read a cut tensor from outside."""
    w, x = net.head.weight.detach(), torch.arange(3.0, dtype=F64)
    derived = [
        torch.func.grad(lambda s: (w * s).norm())(torch.ones(HIDDEN, dtype=F64)),
        *torch.func.jvp(lambda s: torch.where(s > 0, w, w * s), (x[1],), (x[2],)),
    ]
    mapped = [torch.func.vmap(lambda s: (w * s).sum())(x), torch.func.vmap(lambda s: w.sum() * s)(x)]
    return [*derived, *mapped]


def swapped(net: Any) -> list[Any]:
    """Values that are loaded, and dtypes that are changed, by swapping tensors."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for assign in (False, True):
            net.load_state_dict({name: value * 1.1 for name, value in Net().state_dict().items()}, assign=assign)
            net.loss().backward()
            torch.optim.SGD(net.parameters(), lr=0.1).step()
        net.float().double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return [net.loss(), *net.parts()]


def saved(net: Any) -> list[Any]:
    """A file of a state, read as torch reads files that nobody vouches for."""
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        net.head.weight.zero_()
    net.load_state_dict(torch.load(file))
    return [net.loss(), net.head.weight]


def halves_and_copies(net: Any) -> list[Any]:
    """Real and imaginary halves that are set, and shallow copies, which share memory."""
    found: list[Any] = []
    for parameter in net.parts():
        wave = (parameter * (1 + 1j)).detach()
        wave.imag, wave.real = torch.tensor(2.0, dtype=F64), parameter.detach() * 3
        row, twin = wave[1:], copy.copy(parameter)
        row.imag = parameter.detach()[1:]
        with torch.no_grad():
            parameter.real = torch.tensor(0.5, dtype=F64)
            twin.mul_(2)
        found += [wave, wave.abs().sum(), row, parameter, isinstance(twin, nn.Parameter), twin.requires_grad, twin]
    return found


WAYS: dict[str, Callable[[Any], list[Any]]] = {
    way.__name__: way
    for way in (
        *(deleted, rows_of_their_own, views_in_a_graph, of_sizes, of_two_cuts, detached_in_place, with_attributes),
        *(recorded_writes, shapes_that_stay),
        *(checkpointed, beside_torch, transformed, swapped, saved, halves_and_copies),
    )
}


def plain(value: Any) -> Any:
    if isinstance(value, IsCut):
        return value.whole().detach()
    return value.detach().as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value


def on_rank() -> dict[str, list[Any]]:
    """Runs on a rank: everything, one model after the other."""
    found = {}
    for name, way in WAYS.items():
        model = autotp.parallelize(Net(), example=(IDS,))
        found[name] = [plain(value) for value in way(model)]
    return found


@pytest.mark.filterwarnings("ignore:Using backward", "ignore:The .grad attribute", "ignore:`torch.jit")
def test_it_is_as_on_the_dense_model() -> None:
    true = {name: [plain(value) for value in way(Net())] for name, way in WAYS.items()}
    for found in run_ranks(on_rank, 2):
        for name, values in true.items():
            assert len(values) == len(found[name])
            for mine, other in zip(found[name], values, strict=True):
                if isinstance(other, torch.Tensor):
                    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9, msg=name)
                else:
                    assert mine == other, name


def lost(net: Any) -> dict[str, Callable[[], Any]]:
    """Writes whose gradient would be lost, and other shapes and memory in place."""
    a, q = torch.tensor(2.0, dtype=F64, requires_grad=True), net.head.weight.detach().clone()
    result = net.head.weight * 2
    return {
        "would write what wants a gradient into head.weight": lambda: q.mul_(a),
        "addmm_ would write what wants a gradient": lambda: q.addmm_(q @ q.T, a * torch.ones_like(q.T).T),
        "fill_ would write": lambda: q.fill_(a),
        "_foreach_mul_ would write": lambda: torch._foreach_mul_([q], [a]),
        "__setitem__ would write": lambda: q.__setitem__(0, a),
        "add_ would write what wants a gradient into": lambda: q.view(-1)[1:4].add_(a),
        "div_ would write what wants a gradient into": lambda: result[0].div_(3),
        "t_ would change the shape": lambda: net.head.weight.data.t_(),
        "unsqueeze_ would change the shape": lambda: q.unsqueeze_(0),
        "resize_ would change the shape": lambda: q.resize_(3, 4),
        "resize_as_ would give": lambda: q[0].resize_as_(torch.ones(2)),
        "local is a function of head.weight": lambda: setattr(net.head.weight, "local", True),
        "swap_tensors would put": lambda: torch.utils.swap_tensors(net.head.weight, Net().head.weight),
        "set_ would give": lambda: q.set_(torch.ones(2, dtype=F64)),
    }


def told() -> dict[str, str]:
    said = {}
    for name, do in lost(autotp.parallelize(Net(), example=(IDS,))).items():
        try:
            said[name] = f"gives {do()}"
        except UsageError as error:
            said[name] = str(error)
    return said


def test_what_would_be_lost_is_refused() -> None:
    for said in run_ranks(told, 2):
        for name, message in said.items():
            assert name in message
