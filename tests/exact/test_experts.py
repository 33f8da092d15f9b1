"""Mixtures of experts: equal to the dense model, cut inside every expert or over experts, at one sum forward for a block's."""

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
from autotp.planner.plan import ParameterPlan, Plan, UnitPlan
from autotp.planner.settings import apply_settings
from autotp.verify import Verifier
from tests.families import MIXTURES

SIZES = (2, 3, 4)
# So many tokens that bytes count, and not the number of calls, as they do at published sizes.
MANY = Workload(tokens=10**7)


@functools.cache
def verifier(name: str) -> Verifier:
    return Verifier(MIXTURES[name].config())


INSIDE, APART = "experts", "whole_experts"
# Those with groups of rows, or stacks that are indexed.
GROUPED = [name for name in MIXTURES if name != "llama4_text"]


def plan_of(name: str, tp: int, workload: Workload = MANY, rule: str = "") -> Plan:
    """The best plan, or the best of those whose experts are cut by one rule."""
    found = verifier(name)
    survey = apply_settings(found.dense, found.session.found, {"*.experts": rule} if rule else {})
    return make_plan(found.dense, survey, tp, workload=workload)


def stacks_of(unit: UnitPlan) -> list[ParameterPlan]:
    return [p for p in unit.parameters if len(p.shape) == 3]


def blocks(plan: Plan) -> list[UnitPlan]:
    return [unit for unit in plan.units if unit.instances[0].rpartition(".")[2].isdigit()]


WAYS = [("llama4_text", ""), *((name, rule) for name in GROUPED for rule in (INSIDE, APART))]


CASES = [  # of four experts three ranks have two, two and none
    pytest.param(*way, tp, marks=() if tp == 2 or "mixtral" in way else pytest.mark.long)
    for way in WAYS
    for tp in (2, 3, 4)
]


@pytest.mark.sample(2, sweep=4, others="long")
@pytest.mark.parametrize(("name", "rule", "tp"), CASES)
def test_equals_the_loop_over_chosen_experts(name: str, rule: str, tp: int) -> None:
    """Every gradient is compared, those of the routers and of the inputs of every block included."""
    verifier(name).verify(tp, plan_of(name, tp, rule=rule)).raise_for_failure()


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "rule"), WAYS)
def test_attention_and_all_experts_of_a_block_cost_one_sum_each(name: str, rule: str) -> None:
    for unit in blocks(plan_of(name, 2, rule=rule)):
        assert unit.count("forward", kind="all_reduce") == MIXTURES[name].forward


@pytest.mark.parametrize("name", MIXTURES)
def test_every_expert_is_cut_and_the_router_is_not(name: str) -> None:
    for unit in blocks(plan_of(name, 4, rule=INSIDE if name in GROUPED else "")):
        assert [p.placement for p in stacks_of(unit)] == ["column", "row"]
        assert all(p.local_shape[0] == p.shape[0] == 4 for p in stacks_of(unit))
        assert all(p.local_elements * 4 == p.elements // 30 * 32 for p in stacks_of(unit))
        assert {p.placement for p in unit.parameters if p.shape == (4, 64) and "experts" not in p.name} == {
            "replicated"
        }


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(("tp", "experts"), [(2, 2), (3, 2), (4, 1)])
def test_a_rank_has_some_experts_whole_and_the_router_too(name: str, tp: int, experts: int) -> None:
    """Of four experts over three ranks the last has none."""
    for unit in blocks(plan_of(name, tp, rule=APART)):
        assert [p.placement for p in stacks_of(unit)] == ["expert", "expert"]
        assert all(p.local_shape == (experts, *p.shape[1:]) for p in stacks_of(unit))
        assert {p.placement for p in unit.parameters if p.shape == (4, 64) and "experts" not in p.name} == {
            "replicated"
        }


@pytest.mark.parametrize(
    ("name", "expected"), [("mixtral", [INSIDE, INSIDE, APART]), ("gpt_oss", [APART, INSIDE, APART])]
)
def test_the_way_of_less_memory_is_taken_else_the_one_with_even_work(name: str, expected: list[str]) -> None:
    """Two ranks divide the inner width of 30 and the four experts, three ranks only the width, four only the experts. Biases of
    what experts give are divided by whole experts alone."""
    rules = [{p.rule for unit in blocks(plan_of(name, tp)) for p in stacks_of(unit)} for tp in SIZES]
    assert rules == [{rule} for rule in expected]


def test_few_tokens_are_summed_where_that_saves_calls() -> None:
    """A small sum of the router's gradient is not worth it then: routed and shared experts are sent in one call, unadded."""
    plan = plan_of("qwen2_moe", 2, Workload())
    (block,) = blocks(plan)
    assert [c.elements for c in block.collectives if c.phase == "forward"] == ["64·b·s", "192·b·s"]
    assert block.count("backward", of="parameter") == 0
    verifier("qwen2_moe").verify(2, plan).raise_for_failure()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "implementation"), [("mixtral", "grouped_mm"), ("gpt_oss", "batched_mm")])
def test_other_implementations_of_the_same_experts(name: str, implementation: str) -> None:
    config = MIXTURES[name].config()
    config._experts_implementation = implementation
    found = Verifier(config)
    apart = make_plan(found.dense, apply_settings(found.dense, found.session.found, {"*.experts": APART}), 4)
    for report in (found.verify(3), found.verify(4, apart)):
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


class InTurn(ListOfExperts):
    """The experts that are modules compute, one after the other, the tokens that chose them, and are added up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, 16)
        weights, chosen = self.router(rows).softmax(-1).topk(2)
        mask = functional.one_hot(chosen, 3).permute(2, 1, 0)
        result = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            place, which = torch.where(mask[i])
            result.index_add_(0, which, expert(rows[which]) * weights[which, place, None])
        return x + result.reshape(x.shape)


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


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [ListOfExperts, InTurn])
@pytest.mark.parametrize("tp", SIZES)
def test_experts_that_are_modules_share_one_sum(kind: type[nn.Module], tp: int) -> None:
    plan = autotp.plan(Stack(kind), tp, example=(X,), tokens=10**7)
    (unit,) = plan.units
    assert unit.count("forward") == 1
    assert {p.placement for p in unit.parameters if "experts" in p.name and len(p.shape) == 2} == {"column", "row"}
    autotp.verify(Stack(kind), tp, plan=plan, example=(X,)).raise_for_failure()


class Several(ListOfExperts):
    """More experts than there are combinations of their cuts to try."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(16, 13), nn.ModuleList(Expert() for _ in range(13))


def test_many_experts_that_are_modules_are_cut_alike() -> None:
    (unit,) = autotp.plan(Stack(Several), 2, example=(X,), tokens=10**7).units
    assert unit.count("forward") == 1
    assert {p.local_elements * 2 for p in unit.parameters if "weight" in p.name and "experts" in p.name} == {16 * 24}


def test_experts_that_the_data_choose_stay_whole_with_the_reason() -> None:
    model = Stack(OnlyChosen)
    plan = autotp.plan(
        copy.deepcopy(model).to("meta"), 2, example=(X,)
    )  # with weights, the experts that are chosen are known
    autotp.verify(model, 2, plan=plan, example=(X,)).raise_for_failure()
    whole = [parameter for parameter in plan.outside if "experts" in parameter.name]
    assert len(whole) == 2 * 3 * 6
    assert all("data" in parameter.reason.lower() for parameter in whole)


@pytest.mark.parametrize("seed", range(2))
def test_collectives_are_counted_for_the_experts_that_were_chosen(seed: int) -> None:
    torch.manual_seed(seed)
    report = autotp.verify(Stack(OnlyChosen), 2, example=(torch.randn(2, 3, 16, requires_grad=True),))
    report.raise_for_failure()
    assert 2 <= report.counted["all_reduce forward activation"] <= 6


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = ListOfExperts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.block(x))


def test_collectives_of_a_unit_that_is_called_twice_are_counted_twice() -> None:
    report = autotp.verify(Twice(), 2, example=(X,))
    report.raise_for_failure()
    assert report.counted == {"all_reduce forward activation": 6, "all_reduce backward activation": 6}  # three experts
