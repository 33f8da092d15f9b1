"""The plan as data: JSON and back, what cannot be read, what it counts; planning does not depend on depth."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autotp
from autotp.errors import PlanError, UsageError
from autotp.huggingface import models
from autotp.planner.plan import Plan, UnitPlan
from tests.families import FAMILIES

NAMES = ("llama", "gpt2", "phi3", "deepseek_v2", "bloom", "bert")


@functools.cache
def planned(name: str, tp: int = 4) -> Plan:
    return autotp.plan(FAMILIES[name].config(), tp)


@pytest.mark.sample(6)
@pytest.mark.parametrize("tp", [2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_json_and_back_is_the_identity(name: str, tp: int) -> None:
    plan = planned(name, tp)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert hash(again) == hash(plan)


def test_a_file_and_back_is_the_identity(tmp_path: Path) -> None:
    planned("llama").save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == planned("llama")


def edited(change: Callable[[dict[str, Any]], Any]) -> str:
    data = json.loads(planned("llama").to_json())
    change(data)
    return json.dumps(data)


def gate(data: dict[str, Any]) -> dict[str, Any]:
    """The entry of the gate's weight in the first block."""
    unit = next(unit for unit in data["units"] if unit["instances"][0].endswith(".0"))
    return next(p for p in unit["parameters"] if p["name"] == "mlp.gate_proj.weight")


def test_what_is_edited_here_is_what_the_plan_has() -> None:
    entry = gate(json.loads(planned("llama").to_json()))
    assert (entry["layouts"], entry["shape"]) == (["160/2@2,2@1", "64"], [160, 64])


UNREADABLE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another version": (lambda d: d.update(version=2), r"no plan of version 1; make one with autotp\.plan"),
    "no version": (lambda d: d.pop("version"), r"no plan of version 1"),
    "unknown field": (lambda d: d.update(speed=1), r"plan has the unknown fields \['speed'\] and lacks \[\]"),
    "missing field": (lambda d: d.pop("fingerprint"), r"plan has the unknown fields \[\] and lacks \['fingerprint'\]"),
    "unknown field inside": (
        lambda d: gate(d).update(cut=1),
        r"plan\.units\[1\]\.parameters\[\d+\] has the unknown fields \['cut'\]",
    ),
    "missing field inside": (lambda d: gate(d).pop("layouts"), r"parameters\[\d+\] .* lacks \['layouts'\]"),
    "no list": (lambda d: d.update(units=5), r"plan\.units should be a list, not 5"),
    "no object": (lambda d: d.update(units=[5]), r"plan\.units\[0\] should be an object with the fields of UnitPlan"),
    "text for a number": (lambda d: d.update(tp="4"), r"plan\.tp should be of type int, not '4'"),
    "truth for a number": (lambda d: d.update(tp=True), r"plan\.tp should be of type int, not True"),
    "number for a text": (lambda d: gate(d).update(layouts=[160, 64]), r"layouts\[0\] should be of type str, not 160"),
    "no layout": (lambda d: gate(d).update(layouts=["160/x", "64"]), r"cannot read the layout '160/x' at '/x'"),
    "open bracket": (lambda d: gate(d).update(layouts=["(2 · 80", "64"]), r"cannot read the layout '\(2 · 80'"),
    "layout that does not divide": (
        lambda d: gate(d).update(layouts=["160/3@1", "64"]),
        r"the layout '160/3@1' does not divide: 160 into 3 parts",
    ),
    "padding of a whole axis": (lambda d: gate(d).update(layouts=["160>162", "64"]), r"pads an axis that is not cut"),
    "factor of no ranks": (lambda d: gate(d).update(layouts=["160/2@0", "64"]), r"mesh factor of no ranks"),
    "wrong shape": (
        lambda d: gate(d).update(layouts=["80/4@1", "64"]),
        r"mlp\.gate_proj\.weight' has the shape \(160, 64\), its layouts \['80/4@1', '64'\]",
    ),
    "too few dims": (lambda d: gate(d).update(layouts=["160/4@1"]), r"has the shape \(160, 64\), its layouts"),
    "more ranks than there are": (
        lambda d: gate(d).update(layouts=["160/8@1", "64"], local_shape=[20, 64]),
        r"model\.layers\.0 overlap or do not make up 4 ranks",
    ),
    "overlapping factors": (
        lambda d: gate(d).update(layouts=["160/4@1", "64"], local_shape=[40, 64]),
        r"mesh factors 2@1, 2@2, 4@1",
    ),
}


@pytest.mark.parametrize(("change", "message"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_plan_says_why(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_json(edited(change))


@pytest.mark.parametrize("text", ["", "{", "no json"])
def test_what_is_no_json_says_so(text: str) -> None:
    with pytest.raises(PlanError, match="the plan is no JSON: "):
        Plan.from_json(text)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"plan"'])
def test_what_is_no_object_is_no_plan(text: str) -> None:
    with pytest.raises(PlanError, match="no plan of version 1"):
        Plan.from_json(text)


def test_an_edit_that_is_right_can_be_read() -> None:
    """Left whole by hand."""
    plan = Plan.from_json(edited(lambda d: gate(d).update(layouts=["160", "64"], local_shape=[160, 64])))
    unit = plan.unit_of("model.layers.0")
    assert unit is not None
    assert "mlp.gate_proj.weight" not in unit.layouts()
    assert "mlp.up_proj.weight" in unit.layouts()


@pytest.mark.parametrize("tp", [0, -1, 2.0, "2", True])
def test_a_size_that_is_none_is_refused(tp: Any) -> None:
    with pytest.raises(UsageError, match="tp must be a whole number of at least 1"):
        autotp.plan(FAMILIES["llama"].config(), tp)


def test_one_rank_cuts_nothing() -> None:
    plan = planned("llama", 1)
    assert all(not unit.layouts() and not unit.collectives for unit in plan.units)
    whole, local = plan.elements()
    assert whole == local


@pytest.mark.parametrize("name", NAMES)
def test_elements_count_every_parameter_once(name: str) -> None:
    model = models.resolve(FAMILIES[name].config())
    whole, local = planned(name, 2).elements()
    assert whole == sum(parameter.numel() for parameter in model.parameters())
    assert whole / 2 <= local < whole


def test_tied_parameters_count_once() -> None:
    plan = planned("gpt2", 2)
    assert plan.tied
    (names,) = plan.tied
    untied = dataclasses.replace(plan, tied=())
    table = 250 * 64
    assert len(names) == 2
    assert untied.elements()[0] - plan.elements()[0] == table
    assert untied.elements()[1] - plan.elements()[1] == table // 2


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3"])
def test_planning_is_the_same_at_any_depth(name: str) -> None:
    depth = "n_layer" if name == "gpt2" else "num_hidden_layers"
    plans = [
        autotp.plan(type(FAMILIES[name])(name, {**FAMILIES[name].settings, depth: layers}).config(), 4)
        for layers in (2, 12)
    ]
    shallow, deep = ([dataclasses.replace(unit, instances=unit.instances[:1]) for unit in p.units] for p in plans)
    assert shallow == deep
    assert [len(unit.instances) for unit in plans[1].units if len(unit.instances) > 1] == [12]


def test_a_unit_counts_its_collectives() -> None:
    (unit,) = (unit for unit in planned("llama").units if unit.instances[0].endswith(".0"))
    assert isinstance(unit, UnitPlan)
    assert (unit.count("forward"), unit.count("backward")) == (2, 2)
    assert unit.count("forward", kind="all_gather") == 0
    assert unit.count("backward", "parameter") == len([c for c in unit.collectives if c.of == "parameter"])
