"""Parts left whole by settings, why a parameter is placed as it is, and advice."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from autotp.errors import UsageError
from autotp.planner.advise import SERVE, TRAIN, Advice, advise
from autotp.planner.cost import Hardware
from autotp.planner.estimate import Estimate
from autotp.planner.plan import Plan
from autotp.planner.spare import padded, shared
from autotp.planner.why import Why
from autotp.session.arguments import parse_setting
from autotp.session.study import Study
from autotp.verify import verify
from tests.families import FAMILIES, LLAMA_LIKE, MIXTURES, Family


@functools.cache
def studied(name: str) -> Study:
    return Study(FAMILIES[name].config())


def test_a_setting_leaves_a_part_whole_and_the_plan_is_exact() -> None:
    config = FAMILIES["llama"].config()
    plan = Study(config, settings={"model.layers.*.mlp": "replicate"}).plan(2)
    (unit,) = (unit for unit in plan.units if len(unit.instances) == 2)
    placements = {p.name: p.placement for p in unit.parameters}
    assert {placements[name] for name in placements if name.startswith("mlp.")} == {"replicated"}
    assert placements["self_attn.q_proj.weight"] == "column"
    assert any("left whole as set" in entry for entry in unit.not_cut)
    report = verify(config, 2, plan=plan)
    assert report.ok


def test_layers_that_are_set_differently_part_ways() -> None:
    config = FAMILIES["llama"].config()
    plan = Study(config, settings={"model.layers.1.mlp.up_proj": "replicate"}).plan(2)
    first, second = (plan.unit_of(f"model.layers.{i}") for i in (0, 1))
    assert first is not None
    assert second is not None
    assert (first.count("forward"), second.count("forward")) == (2, 1)
    assert (first.instances, second.instances) == (("model.layers.0",), ("model.layers.1",))
    assert verify(config, 2, plan=plan).ok


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlp", "'mlp' is no setting; write PATTERN=replicate"),
        ("=replicate", "'=replicate' is no setting"),
        ("mlp=", "'mlp=' is no setting; write PATTERN=replicate, .* or the name of a chain rule"),
    ],
)
def test_a_setting_that_is_none_says_why(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_setting(text)


@pytest.mark.parametrize("value", ["column", "gated_mpl"])
def test_a_rule_that_cuts_nothing_there_names_those_that_do(value: str) -> None:
    message = rf"'{value}' is no setting for '\*\.mlp'; the ones there are: replicate, gated_mlp\. --why PARAMETER says"
    with pytest.raises(UsageError, match=message):
        Study(FAMILIES["llama"].config(), settings={"*.mlp": value}).plan(2)


@pytest.mark.parametrize(("rule", "other"), [("experts", "whole_experts"), ("whole_experts", "experts")])
def test_a_rule_that_is_set_is_the_only_one(rule: str, other: str) -> None:
    plan = Study(MIXTURES["mixtral"].config(), settings={"model.layers.*": rule}).plan(2)
    unit = plan.unit_of("model.layers.0")
    assert unit is not None
    assert {p.rule for p in unit.parameters} == {"", "attention", rule}
    assert any(f"rule {other}" in entry and f"cut by rule {rule} as set" in entry for entry in unit.not_cut)


def test_a_pattern_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"no parameter is at 'model\.layers\.0\.mpl'; did you mean 'model\.layers\.0\.mlp'\?"
    ):
        Study(FAMILIES["llama"].config(), settings={"model.layers.0.mpl": "replicate"}).plan(2)


def explained(name: str, tp: int, parameter: str) -> Why:
    study = studied(name)
    return study.why(study.plan(tp), parameter)


def test_why_says_what_a_dimension_is_made_of() -> None:
    query = explained("llama", 4, "model.layers.1.self_attn.q_proj.weight")
    assert query.dims[0].words == "2 times 4 times (2 segments of 4), major to minor"
    assert "scaled_dot_product_attention" in query.dims[0].pins[0]
    assert (query.units, query.parameter.rule) == (2, "attention")
    fused = explained("phi3", 2, "model.layers.0.self_attn.qkv_proj.weight")
    assert fused.dims[0].words.startswith(
        "3 segments: 2 times 4 times (2 segments of 4), then 2 times (2 segments of 4)"
    )


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_the_chosen_way_is_the_best_of_all(name: str) -> None:
    study = studied(name)
    plan = study.plan(4)
    for unit in plan.units:
        for parameter in unit.parameters:
            if parameter.placement != "replicated":
                found = study.why(plan, f"{unit.instances[0]}.{parameter.name}".lstrip("."))
                (chosen,) = (a for a in found.alternatives if a.chosen)
                possible = [a for a in found.alternatives if not a.refused]
                assert chosen == min(possible, key=lambda a: (a.elements, a.seconds))
                assert chosen.elements == sum(p.local_elements for p in unit.parameters)
                assert len(possible) > 1


def test_why_of_what_is_whole_gives_the_reason() -> None:
    norm = explained("llama", 2, "model.layers.0.input_layernorm.weight")
    assert norm.parameter.placement == "replicated"
    with pytest.raises(UsageError, match=r"model\.norm\.weight is whole on every rank: it belongs to no unit"):
        explained("llama", 2, "model.norm.weight")
    with pytest.raises(UsageError, match=r"no parameter 'model\.layers\.0\.self_attn\.q_prj\.weight'; did you mean"):
        explained("llama", 2, "model.layers.0.self_attn.q_prj.weight")


def test_sizes_that_do_not_divide_are_listed() -> None:
    heads = Family("llama", {**LLAMA_LIKE, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48})
    plan = Study(heads.config()).plan(4)
    assert "model.layers.0.self_attn.q_proj.weight" in padded(plan)
    assert "model.layers.0.self_attn.k_proj.weight" in shared(plan)
    assert "model.layers.0.self_attn.q_proj.weight" not in shared(plan)
    fused = studied("phi3").plan(4)
    assert "model.layers.0.self_attn.qkv_proj.weight" in shared(fused)
    even = studied("gpt2").plan(2)
    assert not shared(even)


NODE = Hardware("node", 4, tflops_bf16=1, memory_gib=1, memory_gbps=100, link_gbps=10, latency_us=5)


@functools.cache
def small() -> Study:
    return Study(FAMILIES["gpt2"].config(), tokens=64)


def advised(purpose: str, memory_gib: float, batch: int = 8) -> Advice:
    study = small()
    node = Hardware("node", 4, 1, memory_gib, 100, 10, 5)
    study.machine = node

    def made(tp: int, sequences: int) -> tuple[Plan, Estimate]:
        plan = study.plan(tp)
        return plan, study.estimate_of(plan, sequences, 64)

    return advise(made, node, purpose, 64 * batch, batch)


@pytest.mark.parametrize("purpose", [TRAIN, SERVE])
def test_advice_is_the_fastest_that_fits(purpose: str) -> None:
    advice = advised(purpose, 80)
    assert [(o.tp, o.dp) for o in advice.options] == [(1, 4), (2, 2), (4, 1)]
    assert advice.best is not None
    assert all(advice.rate(advice.best) >= advice.rate(o) for o in advice.options if o.fits)
    assert advice.best.tp == 1  # a model this small is not worth cutting


def test_what_does_not_fit_is_not_advised() -> None:
    plenty = advised(SERVE, 80)
    sizes = sorted(o.memory for o in plenty.options)
    tight = advised(SERVE, (sizes[0] + sizes[1]) / 2 / 0.9 / 2**30)
    assert tight.best is not None
    assert tight.best.memory == sizes[0]
    assert advised(SERVE, 1e-6).best is None


def test_no_advice_where_work_is_not_known() -> None:
    study = small()

    def made(tp: int, sequences: int) -> tuple[Plan, Estimate]:
        plan = study.plan(tp)
        return plan, dataclasses.replace(study.estimate_of(plan, sequences, 64), unknown=("h.0: it is not traced",))

    with pytest.raises(UsageError, match=r"no advice for GPT2LMHeadModel, .* h\.0: it is not traced"):
        advise(made, NODE, SERVE, 64, 1)


def test_replicas_without_a_sequence_are_no_gain() -> None:
    """One sequence cannot be spread over replicas: more ranks for it may be."""
    advice = advised(SERVE, 80, batch=1)
    assert [o.batch for o in advice.options] == [1, 1, 1]
    assert advice.best is not None
    assert advice.best.seconds == min(o.seconds for o in advice.options)
