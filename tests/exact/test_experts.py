"""Mixtures of experts: equal to the dense model, cut inside every expert, one sum a block's experts cost forward."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.huggingface.models import build_model
from autotp.planner.cost import Workload
from autotp.planner.make import make_plan
from autotp.planner.plan import Plan, UnitPlan
from autotp.verify import Verifier
from tests.families import MIXTURES

SIZES = (2, 3, 4)
# So many tokens that bytes count, and not the number of calls, as they do at published sizes.
MANY = Workload(tokens=10**7)


@functools.cache
def verifier(name: str) -> Verifier:
    return Verifier(MIXTURES[name].config())


def plan_of(name: str, tp: int, workload: Workload = MANY) -> Plan:
    found = verifier(name)
    return make_plan(found.dense, found.found, tp, workload=workload)


def blocks(plan: Plan) -> list[UnitPlan]:
    return [unit for unit in plan.units if unit.instances[0].rpartition(".")[2].isdigit()]


@pytest.mark.parametrize(("name", "tp"), [(name, tp) for name in MIXTURES for tp in SIZES])
def test_equals_the_loop_over_chosen_experts(name: str, tp: int) -> None:
    """Every gradient is compared, those of the routers and of the inputs of every block included."""
    verifier(name).verify(tp, plan_of(name, tp)).raise_for_failure()


@pytest.mark.parametrize("name", MIXTURES)
def test_attention_and_all_experts_of_a_block_cost_one_sum_each(name: str) -> None:
    for unit in blocks(plan_of(name, 2)):
        assert unit.count("forward", kind="all_reduce") == MIXTURES[name].forward


@pytest.mark.parametrize("name", MIXTURES)
def test_every_expert_is_cut_and_the_router_is_not(name: str) -> None:
    for unit in blocks(plan_of(name, 4)):
        stacked = [p for p in unit.parameters if len(p.shape) == 3]
        assert [p.placement for p in stacked] == ["column", "row"]
        assert all(p.local_shape[0] == p.shape[0] == 4 for p in stacked)
        assert all(p.local_elements * 4 == p.elements // 30 * 32 for p in stacked)
        assert {p.placement for p in unit.parameters if p.shape == (4, 64)} == {"replicated"}


def test_few_tokens_are_summed_where_that_saves_calls() -> None:
    """A small sum of the router's gradient is not worth it then, and routed and shared experts are summed apart."""
    plan = plan_of("qwen2_moe", 2, Workload())
    assert [unit.count("forward") for unit in blocks(plan)] == [3]
    verifier("qwen2_moe").verify(2, plan).raise_for_failure()


@pytest.mark.parametrize(("name", "implementation"), [("mixtral", "grouped_mm"), ("gpt_oss", "batched_mm")])
def test_other_implementations_of_the_same_experts(name: str, implementation: str) -> None:
    config = MIXTURES[name].config()
    config._experts_implementation = implementation
    found = Verifier(config)
    report = found.verify(3)
    report.raise_for_failure()
    assert report.elements[1] < 0.5 * report.elements[0]
    torch.testing.assert_close(found.outputs, verifier(name).outputs, rtol=1e-9, atol=1e-9)


def test_a_configuration_keeps_the_implementation_it_asks_for() -> None:
    model = build_model(MIXTURES["mixtral"].config())
    autotp.plan(model, 2)
    assert model.config._experts_implementation == "eager"
    experts = model.model.layers[0].mlp.experts.to_empty(device="cpu")
    assert "IndexAdd" in str(_operators(experts(torch.randn(3, 64), torch.zeros(3, 2).long(), torch.rand(3, 2))))


def _operators(value: torch.Tensor) -> set[str]:
    """The names of all operators that a value's gradient goes through."""
    seen, open_ = set[str](), [value.grad_fn]
    while open_:
        node = open_.pop()
        if node is not None:
            seen.add(type(node).__name__)
            open_ += [before for before, _ in node.next_functions]
    return seen


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class ListOfExperts(nn.Module):
    """Experts that are modules: each computes all tokens, and the router weighs what it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(16, 3), nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, result = self.router(x).softmax(-1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            result = result + expert(x) * weights[..., i : i + 1]
        return x + result


class OnlyChosen(ListOfExperts):
    """The experts that are modules compute the tokens that chose them, which only the data say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).argmax(-1)
        result = torch.zeros_like(x)
        for i in chosen.unique().tolist():
            result[chosen == i] = self.experts[i](x[chosen == i])
        return x + result


class Stack(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


X = torch.randn(2, 5, 16, requires_grad=True)


@pytest.mark.parametrize("tp", SIZES)
def test_experts_that_are_modules_share_one_sum(tp: int) -> None:
    plan = autotp.plan(Stack(ListOfExperts), tp, example=(X,), tokens=10**7)
    (unit,) = plan.units
    assert unit.count("forward") == 1
    autotp.verify(Stack(ListOfExperts), tp, plan=plan, example=(X,)).raise_for_failure()


def test_experts_that_the_data_choose_stay_whole_with_the_reason() -> None:
    model = Stack(OnlyChosen)
    plan = autotp.plan(
        copy.deepcopy(model).to("meta"), 2, example=(X,)
    )  # with weights, the experts that are chosen are known
    autotp.verify(model, 2, plan=plan, example=(X,)).raise_for_failure()
    autotp.verify(model, 2, example=(X,)).raise_for_failure()
    whole = [parameter for parameter in plan.outside if "experts" in parameter.name]
    assert len(whole) == 2 * 3 * 6
    assert all("data" in parameter.reason.lower() for parameter in whole)
