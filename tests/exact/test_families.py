"""Every family at every size: equal to the dense model, everything cut, exactly the expected collectives."""

from __future__ import annotations

import math

import pytest

import autotp
from autotp.planner.plan import Plan, UnitPlan
from tests.families import FAMILIES, Family

SIZES = (2, 3, 4, 8)
CASES = [pytest.param(family, tp, id=f"{name}-tp{tp}") for name, family in FAMILIES.items() for tp in SIZES]


@pytest.mark.parametrize(("family", "tp"), CASES)
def test_equals_the_dense_model(family: Family, tp: int) -> None:
    report = autotp.verify(family.config(), tp)
    report.raise_for_failure()
    assert report.outputs
    assert any(difference.name.startswith("result of") for difference in report.gradients)


def blocks(plan: Plan) -> list[UnitPlan]:
    """The units of the repeated layers: those whose path ends in a number."""
    return [unit for unit in plan.units if unit.instances[0].rpartition(".")[2].isdigit()]


@pytest.mark.parametrize("family", [pytest.param(f, id=name) for name, f in FAMILIES.items()])
def test_a_block_costs_exactly_these_collectives(family: Family) -> None:
    for unit in blocks(autotp.plan(family.config(), 2)):
        counted: dict[str, int] = {}
        for c in unit.collectives:
            counted[f"{c.kind} {c.phase} {c.of}"] = counted.get(f"{c.kind} {c.phase} {c.of}", 0) + 1
        expected = {
            "all_reduce forward activation": family.forward,
            "all_reduce backward activation": family.backward,
            **family.extra,
        }
        assert counted == expected


def test_partial_sums_over_two_mesh_factors_are_reduced_in_one_call() -> None:
    (unit,) = blocks(autotp.plan(FAMILIES["llama"].config(), 8))
    forward = [c for c in unit.collectives if c.phase == "forward"]
    assert [(c.ranks, len(c.over)) for c in forward] == [(8, 2), (8, 2)]
    backward = [c for c in unit.collectives if c.phase == "backward" and c.of == "activation"]
    assert [c.ranks for c in backward] == [8, 8]


@pytest.mark.parametrize(("family", "tp"), CASES)
def test_every_large_weight_of_a_block_is_cut(family: Family, tp: int) -> None:
    config = family.config()
    key_heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    heads = key_heads or config.num_attention_heads
    for unit in blocks(autotp.plan(config, tp)):
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
    plan = autotp.plan(FAMILIES[name].config(), 4)
    vocabulary = FAMILIES[name].config().vocab_size
    tables = [p for unit in plan.units for p in unit.parameters if p.shape[0] == vocabulary and len(p.shape) == 2]
    assert len(tables) == 2
    assert all(table.local_shape[0] == math.ceil(vocabulary / 4) for table in tables)
