"""The published schema of plan files: it is what the code says, takes every plan, and refuses what is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import autotp
from autotp.planner.schema import plan_schema
from tests.families import FAMILIES

PUBLISHED = Path(__file__).parents[2] / "docs" / "plan.schema.json"


def test_the_published_schema_is_that_of_the_code() -> None:
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == plan_schema()
    jsonschema.Draft202012Validator.check_schema(plan_schema())


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "deepseek_v2", "olmo2", "bert"])
def test_every_plan_fits_the_schema(name: str) -> None:
    jsonschema.validate(json.loads(autotp.plan(FAMILIES[name].config(), 4).to_json()), plan_schema())


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version=2),
        lambda d: d.update(tp=0),
        lambda d: d.update(speed=1),
        lambda d: d.pop("fingerprint"),
        lambda d: d["units"][0]["parameters"][0].update(placement="diagonal"),
        lambda d: d["units"][0]["parameters"][0].update(layouts=[160]),
        lambda d: d["units"][0]["collectives"][0].update(kind="broadcast"),
    ],
)
def test_what_is_no_plan_does_not_fit(change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(autotp.plan(FAMILIES["llama"].config(), 2).to_json())
    change(data)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, plan_schema())
