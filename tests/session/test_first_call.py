"""A module whose inputs are not known is cut at its first call."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import autotp
from autotp.errors import PlacementError, UsageError
from autotp.runtime.cut.origin import IsCut
from autotp.runtime.groups.launch import run_ranks
from tests.contract.parts import HIDDEN, Mlp, twins, values


class Denoiser(nn.Module):
    """What a pipeline calls again and again, by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = twins(lambda index: Mlp())
        self.fails = False

    def forward(self, sample: torch.Tensor, *, time: torch.Tensor, plain: bool = True) -> Any:
        """What is left of the noise."""
        found = self.inner(sample + time[:, None, None])
        if self.fails:
            raise ArithmeticError("as asked")
        return found if plain else {"sample": found}


def pipeline(model: nn.Module, steps: int = 4) -> torch.Tensor:
    sample = values(2, 5, HIDDEN)
    with torch.no_grad():
        for step in range(steps):
            time = torch.full((2,), 1.0 / (step + 1), dtype=torch.float64)
            sample = sample - 0.1 * model(sample, time=time, plain=False)["sample"]
    return sample


def is_cut(model: nn.Module) -> bool:
    return any(isinstance(parameter, IsCut) for parameter in model.parameters())


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except (UsageError, PlacementError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_a_pipeline() -> tuple[torch.Tensor, bool, bool, float]:
    dense = Denoiser()
    model = autotp.parallelize(copy.deepcopy(dense))
    before = is_cut(model)
    signature = inspect.signature(model.forward)
    assert signature == inspect.signature(dense.forward)
    found = pipeline(model)
    far = 0.0
    x, time = values(3, 4, HIDDEN, seed=3), values(3)
    for one in (model, dense):  # gradients, later
        one.zero_grad()
        one(x, time=time).square().sum().backward()
    for name, gradient in autotp.full_gradients(model).items():
        true = dense.get_parameter(name).grad
        assert gradient is not None
        assert true is not None
        far = max(far, float((gradient - true).abs().max()))
    assert "forward" not in model.__dict__
    return found, before, is_cut(model), far


def test_the_pipelines_result_is_the_dense_ones_and_gradients_come_later() -> None:
    true = pipeline(Denoiser())
    for found, before, after, far in run_ranks(in_a_pipeline, 2):
        assert (before, after) == (False, True)
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)
        assert far < 1e-9


def with_hooks() -> tuple[list[str], torch.Tensor]:
    """Hooks of the user on the model itself, from before it was made parallel."""
    model, said = Denoiser(), list[str]()

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        said.append("before" if type(args[0]) is torch.Tensor else "traced")
        return (2 * args[0],), kwargs

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(lambda module, args, output: said.append("after"))
    parallel = autotp.parallelize(copy.deepcopy(model))
    found = pipeline(parallel, steps=2)
    return said, found - pipeline(model, steps=2)


def test_hooks_on_the_model_see_each_call_once() -> None:
    for said, far in run_ranks(with_hooks, 2):
        assert far.abs().max() < 1e-9
        assert said[-8:] == ["before", "after"] * 4


def refused() -> list[str]:
    model = autotp.parallelize(Denoiser())
    x, time = values(2, 5, HIDDEN), values(2)
    other = x + dist.get_rank()

    def with_optimizer() -> None:
        optimizer = torch.optim.SGD(model.parameters())
        with torch.no_grad():
            model(x, time=time)
        del optimizer

    def with_other_inputs() -> None:
        with torch.no_grad():
            model(other, time=time)

    found = [
        refusal(lambda: model(x, time=time)),
        refusal(with_optimizer),
        refusal(with_other_inputs),
        refusal(lambda: copy.deepcopy(model)),
        refusal(lambda: pickle.dumps(model)),
    ]
    assert not is_cut(model)
    return found


def test_what_was_made_of_whole_parameters_is_refused() -> None:
    for gradients, optimizer, inputs, copied, pickled in run_ranks(refused, 2):
        assert "wants gradients" in gradients
        assert "example=" in gradients
        assert "a SGD has its whole parameters" in optimizer
        assert inputs.startswith("PlacementError")
        assert "inputs" in inputs
        assert copied == pickled
        assert "first call" in copied


def in_other_modes() -> list[torch.Tensor]:
    """First calls that fail, under inference mode, under autocast, and compiled; after a second parallelize too."""
    found = []
    failing = autotp.parallelize(Denoiser())
    failing.fails = True
    try:
        pipeline(failing)
    except ArithmeticError:
        failing.fails = False
    found.append(pipeline(failing))
    inferring = autotp.parallelize(autotp.parallelize(Denoiser()))
    with torch.inference_mode():
        inferring(values(2, 5, HIDDEN), time=values(2))
    assert not any(parameter.is_inference() for parameter in inferring.parameters())
    found.append(pipeline(inferring))
    cast = autotp.parallelize(Denoiser())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cast(values(2, 5, HIDDEN), time=values(2))
    found.append(pipeline(cast))
    compiled = autotp.parallelize(Denoiser())
    found.append(pipeline(torch.compile(compiled, backend="aot_eager")))  # type: ignore[arg-type]
    assert all(map(is_cut, (failing, inferring, cast, compiled)))
    return found


def test_the_first_call_may_be_in_any_mode() -> None:
    true = pipeline(Denoiser())
    for results in run_ranks(in_other_modes, 2):
        for found in results:
            torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)
