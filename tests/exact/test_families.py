"""Every family at every size: equal to the dense model, everything cut, exactly the expected collectives."""

from __future__ import annotations

import functools
import math
from collections import Counter

import pytest
from transformers import DeepseekV2Config

from autotp import plan
from autotp.planner.make import make_plan
from autotp.planner.plan import Plan, UnitPlan
from autotp.verify import Verifier
from tests.families import FAMILIES

pytestmark = pytest.mark.matrix

SIZES = (2, 3, 4, 8)
CASES = [pytest.param(name, tp, id=f"{name}-tp{tp}") for name in FAMILIES for tp in SIZES]
# Every family at one size, every size with a part of the families; `make long` has the others.
RUN = [
    pytest.param(name, tp, id=f"{name}-tp{tp}", marks=() if i % len(SIZES) == j else pytest.mark.long)
    for i, name in enumerate(FAMILIES)
    for j, tp in enumerate(SIZES)
]


@functools.cache
def verifier(name: str) -> Verifier:
    """Each model is surveyed, and run whole, only once."""
    return Verifier(FAMILIES[name].config())


@pytest.mark.sample(3, sweep=6, others="long")
@pytest.mark.parametrize(("name", "tp"), RUN)
def test_equals_the_dense_model(name: str, tp: int) -> None:
    report = verifier(name).verify(tp)
    report.raise_for_failure()
    assert report.outputs
    assert any(difference.name.startswith("result of") for difference in report.gradients)


def plan_of(name: str, tp: int) -> Plan:
    known = verifier(name)
    return make_plan(known.dense, known.session.found, tp)


def blocks(plan: Plan) -> list[UnitPlan]:
    """The units of the repeated layers: those whose path ends in a number."""
    return [unit for unit in plan.units if unit.instances[0].rpartition(".")[2].isdigit()]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_block_costs_exactly_these_collectives(name: str) -> None:
    family = FAMILIES[name]
    for unit in blocks(plan_of(name, 2)):
        counted = Counter(f"{c.kind} {c.phase} {c.of}" for c in unit.collectives)
        assert counted == {
            "all_reduce forward activation": family.forward,
            "all_reduce backward activation": family.backward,
            **family.extra,
        }


def test_partial_sums_over_two_mesh_factors_are_reduced_in_one_call() -> None:
    (unit,) = blocks(plan_of("llama", 8))
    forward = [c for c in unit.collectives if c.phase == "forward"]
    assert [(c.ranks, len(c.over)) for c in forward] == [(8, 2), (8, 2)]
    backward = [c for c in unit.collectives if c.phase == "backward" and c.of == "activation"]
    assert [c.ranks for c in backward] == [8, 8]


@pytest.mark.sample(7)
@pytest.mark.parametrize(("name", "tp"), CASES)
def test_every_large_weight_of_a_block_is_cut(name: str, tp: int) -> None:
    config = FAMILIES[name].config()
    key_heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    heads = key_heads or config.num_attention_heads
    for unit in blocks(plan_of(name, tp)):
        for parameter in unit.parameters:
            if len(parameter.shape) == 2:
                # Attention is cut over at least its key heads; what several ranks share is the group's keys and values.
                at_least = min(tp, heads) if parameter.rule == "attention" else tp
                if "falcon" in config.model_type and config.multi_query and not config.new_decoder_architecture:
                    at_least = 1  # one key head, fused with the query heads
                padded = math.prod(layout.padded_size for layout in parameter.parsed())
                assert padded / parameter.local_elements >= at_least, parameter
                assert parameter.placement != "replicated", parameter


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_vocabulary_is_cut_in_embedding_and_head(name: str) -> None:
    plan = plan_of(name, 4)
    vocabulary = FAMILIES[name].config().vocab_size
    tables = [p for unit in plan.units for p in unit.parameters if p.shape[0] == vocabulary and len(p.shape) == 2]
    assert len(tables) == 2
    assert all(table.local_shape[0] == math.ceil(vocabulary / 4) for table in tables)


def test_low_rank_attention_at_its_published_size_sums_two_activations_each_way() -> None:
    """At the tiny size a call's latency outweighs its bytes, and three small values are summed whole; here they are scattered,
    and the gradients of the norms in between are summed."""
    config = DeepseekV2Config(
        hidden_size=5120,
        intermediate_size=12288,
        num_attention_heads=128,
        num_key_value_heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        num_hidden_layers=1,
        first_k_dense_replace=1,
    )
    (unit,) = blocks(plan(config, 8))
    assert Counter(f"{c.kind} {c.phase} {c.of}" for c in unit.collectives) == {
        "all_reduce forward activation": 2,
        "all_gather forward activation": 1,
        "all_reduce backward activation": 2,
        "reduce_scatter backward activation": 1,
        "all_reduce backward parameter": 1,
    }


def test_a_norm_over_cut_heads_sums_one_number_a_token_and_no_more() -> None:
    """Beyond the two sums each way of any sequential block: the statistics of the full-width norms of q and k, together."""
    (unit,) = blocks(plan_of("olmo2", 2))
    for phase in ("forward", "backward"):
        sizes = [c.elements for c in unit.collectives if c.phase == phase and c.of == "activation"]
        assert sorted(sizes) == ["2·b·s", "64·b·s", "64·b·s"]
