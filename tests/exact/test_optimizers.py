"""Every way to step and to clip equals the dense run after ten steps, in float64: torch's own optimizers, those of other
packages, and what people write by hand. Where one is refused, that is before its first step has changed anything."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import bitsandbytes
import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import autotp
from autotp.api import join_ranks
from autotp.axes.layout_text import parse_layout
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.planner.survey import survey
from autotp.runtime.cut.origin import Origin
from autotp.runtime.cut.tensor import cut_in_place
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate

STEPS = 10


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that call what is deprecated
        yield
    torch.set_default_dtype(torch.float32)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 26), nn.Linear(26, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(torch.tanh(self.up(self.norm(value))))


class Net(nn.Module):
    """A table of a size that no number of ranks divides, and two blocks."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        value = self.embed(ids)
        for block in self.blocks:
            value = block(value)
        return value


IDS = torch.arange(15).reshape(3, 5) * 2 % 31


@functools.cache
def planned(tp: int) -> tuple[Net, Any, Any]:
    """A dense net in float64, its plan and its programs."""
    torch.manual_seed(0)
    dense = Net().double()
    plan = autotp.plan(dense, tp, example=(IDS,))
    return dense, plan, make_compilers(plan, survey(dense, examples_for(dense, (IDS,)), ()))


class InDouble(TorchFunctionMode):
    """Nothing is made narrower than float64: Newton-Schulz in bfloat16 would turn the last bit of a sum into the first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        narrow = (torch.bfloat16, torch.float32, torch.float16)
        if func in (torch.Tensor.bfloat16, torch.Tensor.float, torch.Tensor.half):
            return args[0]
        args = tuple(torch.float64 if value in narrow else value for value in args) if func is torch.Tensor.to else args
        if kwargs.get("dtype") in narrow:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


Step = Callable[[Any, torch.optim.Optimizer], None]


def train(model: Any, make: Callable[[Any], torch.optim.Optimizer], adjust: Step | None = None) -> None:
    """Ten steps; `adjust` is what is done between backward and step."""
    optimizer: Any = make(model)
    if hasattr(optimizer, "train"):
        optimizer.train()
    for step in range(STEPS):

        def loss(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            value = (model((IDS + step) % 31) - 0.3).square().mean()
            value.backward()
            return value

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(loss)
            continue
        loss()
        if adjust is not None:
            adjust(model, optimizer)
        optimizer.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()


def furthest(tp: int, make: Callable[[Any], torch.optim.Optimizer], adjust: Step | None = None) -> float:
    """The largest difference of a parameter, of any rank, to the dense run, over how far the dense run has moved it."""
    start, plan, compilers = planned(tp)
    dense = copy.deepcopy(start)

    def in_double() -> Any:
        return InDouble() if make in NARROW else nullcontext()

    with in_double():
        train(dense, make, adjust)

    def on_rank(ranks: Ranks) -> Any:
        model = apply_plan(copy.deepcopy(start), plan, ranks, compilers)
        join_ranks(model, ranks)
        with in_double():
            train(model, make, adjust)
        return autotp.full_state_dict(model)

    worst = 0.0
    for state in simulate(tp, on_rank):
        for name, parameter in dense.named_parameters():
            before = start.get_parameter(name)
            moved = float((parameter - before).abs().max())
            assert moved > 0, name
            worst = max(worst, float((state[name] - parameter).abs().max()) / moved)
    return worst


def matrices(optimizer: Any, **settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """A matrix optimizer for all that has two dims, AdamW for the rest."""

    def make(model: Any) -> torch.optim.Optimizer:
        two = [p for p in model.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters() if p.dim() != 2]
        return Both(optimizer(two, **settings), torch.optim.AdamW(rest, 1e-2))

    return make


class Both(torch.optim.Optimizer):
    """Two optimizers that step together."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> None:
        for part in self.parts:
            part.step()


def every(optimizer: Any, *args: Any, **settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda model: optimizer(model.parameters(), *args, **settings)


own, other = torch.optim, pytorch_optimizer
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": every(own.SGD, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": every(own.AdamW, 1e-2),
    "AdamW, one by one": every(own.AdamW, 1e-2, foreach=False),
    "AdamW, fused": every(own.AdamW, 1e-2, fused=True),
    "Adam, amsgrad": every(own.Adam, 1e-2, amsgrad=True, weight_decay=0.1),
    "Adagrad": every(own.Adagrad, 1e-2),
    "Adadelta": every(own.Adadelta, 1.0),
    "Adamax": every(own.Adamax, 1e-2),
    "NAdam": every(own.NAdam, 1e-2),
    "RAdam": every(own.RAdam, 1e-2),
    "RMSprop": every(own.RMSprop, 1e-3, centered=True, momentum=0.5),
    "Rprop": every(own.Rprop, 1e-3),
    "ASGD": every(own.ASGD, 1e-2),
    "LBFGS": every(own.LBFGS, 0.5, max_iter=3),
    "LBFGS, line search": every(own.LBFGS, 1.0, max_iter=3, line_search_fn="strong_wolfe"),
    "Adafactor": every(own.Adafactor, 1e-2),
    "Muon": matrices(own.Muon, lr=1e-2),
    "LAMB": every(other.Lamb, 1e-2),
    "LARS": every(other.LARS, 1e-1),
    "Lion": every(other.Lion, 1e-3),
    "Shampoo": every(other.Shampoo, 1e-2),
    # Sides longer than that have a null space, whose directions are chance.
    "SOAP": every(other.SOAP, 1e-2, precondition_frequency=3, max_precondition_dim=12, eps=1e-3),
    "Adafactor of another package": every(other.AdaFactor, 1e-2),
    "AdaBelief": every(other.AdaBelief, 1e-2),
    "Adan": every(other.Adan, 1e-2),
    "Prodigy": every(other.Prodigy, 1.0),
    "schedule-free": every(schedulefree.AdamWScheduleFree, lr=1e-2),
}
NARROW = {OPTIMIZERS["Muon"]}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_on_the_dense_model(name: str) -> None:
    assert furthest(2, OPTIMIZERS[name]) < 1e-9


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_on_the_dense_model_at_three_ranks(name: str) -> None:
    assert furthest(3, OPTIMIZERS[name]) < 1e-9


def test_a_state_of_eight_bits_is_that_of_the_dense_model_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    start, *steps = (torch.randn(66, 128, generator=draw, dtype=torch.float32) for _ in range(4))

    def stepped(parameter: nn.Parameter) -> torch.Tensor:
        optimizer = bitsandbytes.optim.Adam8bit([parameter], 1e-2, min_8bit_size=16)
        for gradient in steps:
            parameter.grad = gradient.clone()
            optimizer.step()
        return parameter.detach()

    true = stepped(nn.Parameter(start.clone()))

    def on_rank(ranks: Ranks) -> torch.Tensor:
        parameter: Any = nn.Parameter(start.clone())
        cut_in_place(parameter, Origin((parse_layout("66>68/4@1"), parse_layout("128")), ranks))
        return stepped(parameter).whole()  # type: ignore[attr-defined]

    assert not torch.equal(true, start)
    assert all(torch.equal(found, true) for found in simulate(4, on_rank))


# -- clipping and looking at gradients by hand -----------------------------------------------------------------------


def gradients(model: Any) -> list[Any]:
    return [p.grad for p in model.parameters()]


def by_squares(model: Any, optimizer: Any) -> None:
    total = sum((g**2).sum() for g in gradients(model)) ** 0.5
    for gradient in gradients(model):
        gradient.mul_(0.1 / total)


def by_largest(model: Any, optimizer: Any) -> None:
    largest = max(float(g.abs().max()) for g in gradients(model))
    for gradient in gradients(model):
        gradient.div_(largest)


def by_flat_norm(model: Any, optimizer: Any) -> None:
    norm = torch.cat([g.flatten() for g in gradients(model)]).norm()
    for p in model.parameters():
        p.grad = p.grad / norm


def by_median(model: Any, optimizer: Any) -> None:
    for gradient in gradients(model):
        middle = gradient.abs().median() + 1e-3
        gradient.clamp_(-middle, middle)


def by_rows(model: Any, optimizer: Any) -> None:
    for gradient in gradients(model):
        gradient.div_(gradient.norm(dim=-1, keepdim=True) + 1e-3)


def centred(model: Any, optimizer: Any) -> None:
    for gradient in gradients(model):
        if gradient.dim() > 1:
            gradient.sub_(gradient.mean(dim=tuple(range(1, gradient.dim())), keepdim=True))


def in_a_ball(model: Any, optimizer: Any) -> None:
    for p in model.parameters():
        p.data.mul_(min(1.0, 2.0 / (float(p.data.norm()) + 1e-6)))


def by_units(model: Any, optimizer: Any) -> None:
    """Adaptive clipping: by the norms of rows of parameter and gradient."""
    for p in model.parameters():
        if p.dim() == 2:
            allowed = 0.01 * p.detach().norm(dim=1, keepdim=True).clamp(min=1e-3)
            found = p.grad.norm(dim=1, keepdim=True).clamp(min=1e-6)
            p.grad.copy_(torch.where(found > allowed, p.grad * (allowed / found), p.grad))


def by_mean_square(model: Any, optimizer: Any) -> None:
    for p in model.parameters():
        p.grad /= p.grad.norm() / p.grad.numel() ** 0.5


def signal_to_noise(model: Any, optimizer: Any) -> None:
    for group in optimizer.param_groups:
        norms = [p.grad.norm() / (p.norm() + 1) for p in group["params"]]
        group["lr"] = float(1e-2 / (1 + torch.stack(norms).mean()))


def scaled(model: Any, optimizer: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=3.0)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)


WAYS: dict[str, Step] = {
    "squares": by_squares,
    "largest entry": by_largest,
    "one flat norm": by_flat_norm,
    "median": by_median,
    "rows": by_rows,
    "centred rows": centred,
    "ball": in_a_ball,
    "norms of units": by_units,
    "mean square": by_mean_square,
    "rates from norms": signal_to_noise,
    "torch's own": scaled,
}


@pytest.mark.parametrize("name", WAYS)
def test_clipping_by_hand_is_that_of_the_dense_model(name: str) -> None:
    assert furthest(3, every(own.SGD, 0.1, momentum=0.9), WAYS[name]) < 1e-9
