"""A parallel model in another module, or with other modules in it, that is made parallel again: it is the dense model still."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.errors import PlanError
from autotp.huggingface.models import build_model
from autotp.planner.plan import ParameterPlan
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES
from tests.parts import distance

IDS = torch.arange(24).reshape(2, 12) * 7 % 200 + 5


def llama() -> Any:
    torch.manual_seed(0)
    return build_model(FAMILIES["llama"].config(), meta=False).double().eval()


class Classifier(nn.Module):
    """A head on a backbone."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.backbone, self.head = backbone, nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 3)).double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(ids, use_cache=False).last_hidden_state.mean(1))


def steps(model: Any) -> list[torch.Tensor]:
    """Numbers of a model and of a copy of it, before and after a step, and gradients."""
    found, twin = [model(IDS).detach()], copy.deepcopy(model)
    model(IDS).square().mean().backward()
    found += [parameter.grad.clone() for parameter in model.parameters()]
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.zero_grad()
    return [*found, model(IDS).detach(), twin(IDS).detach()]


def head_on_rank() -> tuple[float, str]:
    inner = autotp.parallelize(llama().model)
    inner(IDS)  # what a unit has found out in a call is nothing that the model holds
    outer, dense = autotp.parallelize(Classifier(inner), example=(IDS,)), Classifier(llama().model)
    with Float64():
        apart = distance(steps(outer), steps(dense))
    plan = autotp.plan(Classifier(llama().model), tp=2, example=(IDS,))
    units = [replace(unit, parameters=tuple(map(whole, unit.parameters))) for unit in plan.units]
    try:
        autotp.parallelize(Classifier(autotp.parallelize(llama().model)), plan=replace(plan, units=tuple(units)))
    except PlanError as error:
        return apart, str(error)
    return apart, ""


def whole(parameter: ParameterPlan) -> ParameterPlan:
    """A parameter as a plan has it that leaves it whole."""
    sizes = tuple(map(str, parameter.shape))
    return replace(parameter, placement="replicated", layouts=sizes, local_shape=parameter.shape)


@pytest.mark.sweep
def test_a_head_on_a_model_that_is_parallel_already() -> None:
    for apart, said in run_ranks(head_on_rank, 2):
        assert apart < 1e-10
        assert "is cut already, otherwise than planned" in said


class Pair(nn.Module):
    """Two factors in the place of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.down, self.up = nn.Linear(64, 6, bias=False), nn.Linear(6, 160, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


def trained(model: Any) -> Any:
    """A model with the gradients of one more call."""
    with Float64():
        model(IDS, labels=IDS).loss.backward()
    return model


def factored(model: Any) -> Any:
    for layer in model.model.layers:
        layer.mlp.up_proj = Pair().double()
    return trained(model)


def again_on_rank() -> float:
    dense, parallel = factored(llama()), factored(autotp.parallelize(llama()))
    both = trained(autotp.parallelize(parallel)), trained(dense)
    found = [[parameter.grad.clone() for parameter in model.parameters()] for model in both]
    return distance(*found)


@pytest.mark.sweep
def test_gradients_are_there_still_when_a_model_is_made_parallel_again() -> None:
    for apart in run_ranks(again_on_rank, 2):
        assert apart < 1e-10
