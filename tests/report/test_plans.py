"""Two plans beside each other: what is placed differently, and what either sends."""

import dataclasses
import json

import pytest

import autotp
from autotp.errors import PlanError
from autotp.planner.plan import Plan
from autotp.report import make_console
from autotp.report.diff import compare_plans, plans_text
from tests.families import FAMILIES


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, Plan]:
    config = FAMILIES["llama"].config()
    return autotp.plan(config, 2), autotp.plan(config, 4)


def test_a_plan_is_equal_to_itself(plans: tuple[Plan, Plan]) -> None:
    difference = compare_plans(plans[0], plans[0])
    assert not difference.moved
    first, second = difference.total()
    assert first == second
    assert text_of(plans[0], plans[0]).rstrip().endswith("every parameter is placed alike")


def test_another_size_cuts_in_other_parts(plans: tuple[Plan, Plan]) -> None:
    difference = compare_plans(*plans)
    moved = {m.name: m for m in difference.moved}
    query = moved["model.layers.0.self_attn.q_proj.weight"]
    assert (query.first.local_shape, query.second.local_shape) == ((32, 64), (16, 64))
    assert "model.layers.0.input_layernorm.weight" not in moved
    assert difference.tp == (2, 4)
    assert [t.count for t in difference.total()] == [sum(map(len, collectives(plan))) for plan in plans]
    sent = [sum(c.wire_bytes for unit in collectives(plan) for c in unit) for plan in plans]
    assert [t.bytes for t in difference.total()] == pytest.approx(sent)
    assert json.loads(difference.to_json())["total"][0]["count"] == difference.total()[0].count


def collectives(plan: Plan) -> list[tuple[object, ...]]:
    return [unit.collectives * len(unit.instances) for unit in plan.units]  # type: ignore[misc]


def test_a_parameter_left_whole_is_named_once_for_all_layers(plans: tuple[Plan, Plan]) -> None:
    def whole(unit: object) -> object:
        parameters = tuple(
            dataclasses.replace(p, placement="replicated", layouts=tuple(map(str, p.shape)), local_shape=p.shape)
            if p.name == "mlp.up_proj.weight"
            else p
            for p in unit.parameters  # type: ignore[attr-defined]
        )
        return dataclasses.replace(unit, parameters=parameters)  # type: ignore[type-var]

    edited = dataclasses.replace(plans[0], units=tuple(map(whole, plans[0].units)))
    difference = compare_plans(plans[0], edited)
    assert [(m.first.placement, m.second.placement) for m in difference.moved] == [("column", "replicated")] * 2
    text = text_of(plans[0], edited)
    assert "model.layers.{0..1}.mlp.up_proj.weight" in text
    assert "2 parameters: 2 column » replicated" in text


def test_plans_of_different_models_are_not_compared(plans: tuple[Plan, Plan]) -> None:
    with pytest.raises(PlanError, match="compare two plans of one model"):
        compare_plans(plans[0], autotp.plan(FAMILIES["gpt2"].config(), 2))


def text_of(first: Plan, second: Plan) -> str:
    console = make_console()
    with console.capture() as captured:
        console.print(plans_text(compare_plans(first, second), ("first", "second")))
    return captured.get()
