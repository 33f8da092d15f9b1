"""What a plan means for a rank: operations and kept values as torch counts them, memory, time, formulas."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

import autotp
from autotp.errors import PlanError, UsageError
from autotp.huggingface.models import build_model
from autotp.planner.estimate import Estimate, Time
from autotp.planner.formula import evaluate, sizes
from autotp.planner.plan import OutsidePlan, Plan
from autotp.planner.work import Work, work_of
from autotp.session.study import Study
from tests.families import FAMILIES

BATCH, SEQUENCE = 4, 64
# Families whose attention is one operator on the CPU as well: others keep there what a fused kernel would not.
FUSED = ("llama", "phi3", "gpt2", "gpt_neox", "bert")


@functools.cache
def studied(name: str) -> Study:
    return Study(FAMILIES[name].config(), tokens=BATCH * SEQUENCE)


@functools.cache
def planned(name: str, tp: int) -> tuple[Plan, Estimate]:
    plan = studied(name).plan(tp)
    return plan, studied(name).estimate(plan, BATCH)


def total(name: str, tp: int, what: str) -> float:
    study, found = studied(name), 0.0
    shapes = {unit.path: unit.shape for unit in study.working.units}
    for unit in planned(name, tp)[0].units:
        work = work_of(unit, study.working.traced[shapes[unit.instances[0]]], study.machine, study.workload, (), tp)
        found += len(unit.instances) * Work.number(getattr(work, what), sizes(BATCH, SEQUENCE))
    return found


def dense(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return build_model(FAMILIES[name].config(), meta=False).bfloat16(), torch.randint(3, 200, (BATCH, SEQUENCE))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "gemma2", "deepseek_v2"])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    """Attention that is fused on the CPU is not counted by torch: its two products are added by hand."""
    model, ids = dense(name)
    with FlopCounterMode(display=False) as counter:
        model(ids)
    config = FAMILIES[name].config()
    counted = counter.get_total_flops()
    if not any("bmm" in str(operator) for operator in counter.get_flop_counts()["Global"]):
        value = getattr(config, "v_head_dim", None) or config.hidden_size // config.num_attention_heads
        query = getattr(config, "qk_nope_head_dim", 0) + getattr(config, "qk_rope_head_dim", 0) or value
        layers = config.num_hidden_layers
        counted += layers * 2 * BATCH * config.num_attention_heads * SEQUENCE**2 * (query + value)
    assert total(name, 1, "flops") == counted


@pytest.mark.parametrize("name", FUSED)
def test_kept_values_are_those_that_autograd_keeps(name: str) -> None:
    """Within 15 %: the statistics of norms and attention, and copies to other dtypes, are small or counted alike."""
    model, ids = dense(name)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids)
    true = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert total(name, 1, "saved") == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2"])
def test_two_ranks_compute_half_and_keep_less(name: str) -> None:
    assert total(name, 2, "flops") == total(name, 1, "flops") / 2
    assert total(name, 1, "saved") / 2 < total(name, 2, "saved") < total(name, 1, "saved")
    assert total(name, 2, "cached") == total(name, 1, "cached") / 2


def test_the_cache_has_a_key_and_a_value_of_every_position() -> None:
    """2 layers, keys and values, 2 groups of 8, two bytes; 4 ranks share the 2 groups."""
    assert planned("llama", 1)[1].memory.cache == 2 * 2 * BATCH * SEQUENCE * 2 * 8 * 2
    assert planned("llama", 4)[1].memory.cache == 2 * 2 * BATCH * SEQUENCE * 8 * 2
    assert planned("bert", 2)[1].memory.cache == 0


def test_of_the_inputs_of_a_convolution_a_cache_keeps_no_more_for_more_positions() -> None:
    """Of those that pass by one is counted: 24 layers of 1,536 channels, with 16 states each, of four bytes."""
    study = Study(AutoConfig.for_model("mamba", intermediate_size=1536, num_hidden_layers=24))
    for sequence in (64, 4096):
        assert study.estimate_of(study.plan(1), 3, sequence).memory.cache == 3 * 24 * 1536 * (16 * 4 + 2)


def test_memory_follows_from_the_parameters() -> None:
    plan, found = planned("llama", 2)
    elements = plan.elements()[1]
    memory = found.memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (2 * elements, 2 * elements, 12 * elements)
    assert memory.training == 16 * elements + memory.activations
    assert memory.serving == 2 * elements + memory.cache
    assert not found.unknown


def test_traffic_is_that_of_the_plan() -> None:
    plan, found = planned("llama", 4)
    for unit, traffic in zip((unit for unit in plan.units if unit.collectives), found.traffic, strict=True):
        for phase in ("forward", "backward"):
            sent = sum(c.wire_bytes for c in unit.collectives if c.phase == phase and c.of == "activation")
            assert getattr(traffic, phase) * plan.tokens == pytest.approx(sent)


def test_one_rank_sends_nothing() -> None:
    found = planned("llama", 1)[1]
    assert (found.step.communication, found.step.share, found.token.communication) == (0, 0, 0)
    assert found.step.total > 0


def test_a_share_is_of_the_whole() -> None:
    time = Time(3.0, 1.0) + Time(0.0, 1.0)
    assert (time.total, time.share) == (5.0, 0.4)
    assert Time(0.0, 0.0).share == 0


def test_sequences_must_be_equal() -> None:
    with pytest.raises(UsageError, match="256 tokens cannot be 3 sequences of equal length"):
        studied("llama").estimate(planned("llama", 2)[0], 3)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("64·b·s", 64 * 4 * 7),
        ("3·b·s^2/2 + 5", 4 * 49 * 1.5 + 5),
        ("-s - 2·m", -7 - 18),
        ("8·b·(((s + 1)//3))", 8 * 4 * 2),
    ],
)
def test_formulas_are_read(formula: str, expected: float) -> None:
    assert evaluate(formula, sizes(4, 7, 9)) == expected


@pytest.mark.parametrize("formula", ["", "q·s", "s +", "open('x')", "s if b else 1", "1/0"])
def test_what_is_no_formula_says_so(formula: str) -> None:
    with pytest.raises(PlanError, match="cannot read the formula"):
        evaluate(formula, sizes(1, 1))


def test_what_is_not_counted_is_named() -> None:
    """Nothing is left out in silence: units without a trace, and matrices outside of all units."""
    plan = autotp.plan(FAMILIES["llama"].config(), 2)
    study = studied("llama")
    before, study.working.traced = study.working.traced, {}
    try:
        found = study.estimate(plan, BATCH)
    finally:
        study.working.traced = before
    assert "model.layers.0: it is not traced" in found.unknown
    outside = OutsidePlan("model.extra.weight", (8, 8), "the model cannot run on fake tensors")
    found = study.estimate(dataclasses.replace(plan, units=(), outside=(outside,)), BATCH)
    assert found.unknown == (
        "1 matrices outside of all units, as model.extra.weight: the model cannot run on fake tensors",
    )
    assert found.memory.activations == 0
