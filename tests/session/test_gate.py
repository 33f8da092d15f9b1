"""Plans that somebody gives are proved where they are taken: what is about another model, or unsound, changes nothing."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import autotp
from autotp.cli import main
from autotp.errors import AutotpError, PlanError, UnsoundPlanError
from autotp.huggingface.models import build_model
from autotp.planner.plan import Plan
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Verifier
from tests.checkpoint.models import simulated, write
from tests.checkpoint.test_outside import contents
from tests.families import FAMILIES

BLOCK = "model.layers.0"


@functools.cache
def good() -> str:
    return autotp.plan(FAMILIES["llama"].config(), 2).to_json()


@functools.cache
def verifier() -> Verifier:
    return Verifier(FAMILIES["llama"].config())


def edited(change: Callable[[dict[str, Any]], Any]) -> str:
    data = json.loads(good())
    change(data)
    return json.dumps(data)


def unit(data: dict[str, Any]) -> dict[str, Any]:
    return next(unit for unit in data["units"] if unit["instances"][0] == BLOCK)


def entry(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(p for p in unit(data)["parameters"] if p["name"].startswith(name))


def lay_out(name: str, *layouts: str, local: tuple[int, ...] = ()) -> Callable[[dict[str, Any]], Any]:
    return lambda data: entry(data, name).update(layouts=list(layouts), **({"local_shape": local} if local else {}))


def whole(data: dict[str, Any], *names: str) -> None:
    for name in names:
        shape = entry(data, name)["shape"]
        entry(data, name).update(layouts=list(map(str, shape)), local_shape=shape)


UP = {"name": f"{BLOCK}.mlp.up_proj.weight", "shape": [160, 64], "reason": ""}
# What no plan can say: refused by Plan.load.
IMPOSSIBLE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "twice in a leaf": (lay_out("self_attn.q_proj", "64/2@1,2@1", "64", local=(16, 64)), "is cut twice over the same ranks"),
    "twice in a product": (lay_out("self_attn.q_proj", "(2/2@1 · 32/2@1)", "64", local=(16, 64)), "is cut twice"),
    "twice in a nested product": (lay_out("self_attn.q_proj", "([1/2@1 + 1] · 32/2@1)", "64"), "does not divide|pads|cut twice"),
    "in both dims": (lay_out("self_attn.q_proj", "64/2@1", "64/2@1", local=(32, 32)), "is cut twice"),
    "another local_shape": (lay_out("mlp.gate_proj", "160/2@1", "64", local=(160, 64)), r"its layouts give a rank \(80, 64\)"),
    "only layouts": (lay_out("mlp.gate_proj", "160", "64"), r"the local_shape \(80, 64\), its layouts give a rank \(160, 64\)"),
    "no tokens": (lambda d: d.update(tokens=0), "at least 1 token"),
    "fewer tokens": (lambda d: d.update(tokens=-5), "should be a number of at least 0"),
    "no bytes": (lambda d: d.update(element_bytes=0), "at least 1 token and 1 byte an element"),
    "no ranks": (lambda d: d.update(tp=0), "a plan is for 1 to"),
    "huge ranks": (lambda d: d.update(tp=2**40), "a plan is for 1 to"),
    "huge number": (lambda d: d.update(tokens=10**400), "below 2\\^62, not a whole number of"),
    "huger number": (lambda d: entry(d, "mlp.gate_proj").update(shape=[10**30, 64]), "below 2\\^62"),
    "text in place of a number": (lambda d: d.update(tokens="many"), r"plan\.tokens should be of type int, not 'many'"),
    "an instance twice": (lambda d: unit(d)["instances"].append(BLOCK), "the instance 'model.layers.0' is in the plan twice"),
    "a unit twice": (lambda d: d["units"].append(unit(d)), "is in the plan twice; name each one once"),
    "a parameter twice": (lambda d: unit(d)["parameters"].append(entry(d, "mlp.up")), "up_proj.weight' is in the plan twice"),
    "outside twice": (lambda d: d["outside"].append(d["outside"][0]), "is in the plan twice"),
    "outside and inside": (lambda d: d["outside"].append(UP), "is in the plan twice"),
    "no instances": (lambda d: unit(d).update(instances=[]), "has no instances"),
    "what is not there is collected": (lambda d: unit(d).update(collected=["x"]), "collects 'x', which it does not have"),
    "another word": (lambda d: entry(d, "mlp.up").update(placement="diagonal"), "has the placement 'diagonal'; known: column"),
    "huge padding": (lay_out("mlp.gate_proj", "160>1600000/2@1", "64"), "pads more than there is"),
    "deep layout": (lay_out("mlp.gate_proj", "(" * 5000 + "160" + ")" * 5000, "64"), "cannot read the layout"),
    "long number": (lay_out("mlp.gate_proj", "1" * 5000, "64"), "cannot read the layout"),
    "long layout": (lay_out("mlp.gate_proj", "[" + " + ".join(["1"] * 99_999) + "]", "64"), "cannot read the layout"),
    "no layout": (lay_out("mlp.gate_proj", "", "64"), "cannot read the layout ''"),
    "infinite cost": (lambda d: unit(d)["collectives"][0].update(seconds=1e400), "no JSON: Infinity"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_what_no_plan_can_say_is_not_loaded(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    (tmp_path / "plan.json").write_text(edited(change))
    with pytest.raises(PlanError, match=message) as caught:
        Plan.load(tmp_path / "plan.json")
    assert str(caught.value).startswith(str(tmp_path / "plan.json"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"version": 1, "version": 1}', '{"version": 1' + "0" * 5000 + "}", '{"version": NaN}', "\ufeff{}"],
)
def test_what_is_no_json_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError):
        Plan.load(tmp_path / "plan.json")


def test_a_file_that_cannot_be_read_is_a_plan_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "text"):
        with pytest.raises(PlanError, match="cannot read"):
            Plan.load(path)


# What another model's plan says, and what is unsound: refused by everything that takes a plan.
def no_norm(data: dict[str, Any]) -> None:
    unit(data)["parameters"].remove(entry(data, "input_layernorm"))


def apart(data: dict[str, Any]) -> None:
    """Both of two different units as one."""
    other = next(u for u in data["units"] if u["instances"] == ["lm_head"])
    table = next(u for u in data["units"] if u["instances"] == ["model.embed_tokens"])
    data["units"].remove(other)
    table["instances"].append("lm_head")


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an unknown parameter": (lambda d: entry(d, "mlp.up").update(name="mlp.x"), "mlp.x', which the model has not"),
    "an unknown instance": (lambda d: unit(d)["instances"].append("model.layers.7"), "no unit of the model is there"),
    "a part of a unit": (lambda d: unit(d)["instances"].append("model.layers.0.mlp"), "no unit of the model is there|differ"),
    "a missing parameter": (no_norm, "lacks the parameter 'model.layers.0.input_layernorm.weight'"),
    "a missing instance": (lambda d: unit(d)["instances"].pop(), "lacks the parameter 'model.layers.1."),
    "a missing unit": (lambda d: d["units"].remove(unit(d)), "lacks the parameter"),
    "units that differ": (apart, "differ in structure"),
    "another shape": (lambda d: d["outside"][0].update(shape=[65]), r"in the shape \(65,\), the model in \(64,\)"),
    "tied": (lambda d: d.update(tied=[["lm_head.weight", "model.embed_tokens.weight"]]), "only in the plan .* are tied together"),
    "another model": (lambda d: d.update(fingerprint="0"), "the plan is for another model"),
    "queries by halves of heads": (
        lay_out("self_attn.q_proj", "(2 · 32/2@1)", "64", local=(32, 64)), "takes? apart|differently|another parameter"),
    "up without down": (lambda d: whole(d, "mlp.down_proj"), "keeps whole an axis of 160 that another parameter cuts"),
    "a norm's width": (lay_out("input_layernorm", "64/2@1", local=(32,)), "keeps whole|cut but must be whole|cuts an axis"),
}  # fmt: skip


@pytest.mark.sample(7)
@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_an_unsound_plan_is_refused_by_all_that_take_one(
    checkpoint: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    plan, model = Plan.from_json(edited(change)), build_model(FAMILIES["llama"].config(), meta=False)
    before, files = copy.deepcopy(model.state_dict()), contents(checkpoint.parent)
    takers: tuple[Callable[[], object], ...] = (
        lambda: autotp.diff(model, 2, plan=plan),
        lambda: verifier().verify(2, plan),
        lambda: autotp.shard(checkpoint, checkpoint.parent / "cut", 2, plan=plan),
        lambda: simulated(checkpoint, 2, plan),
    )
    for take in takers:
        with pytest.raises(PlanError, match=message) as caught:
            take()
        assert "\n" not in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert contents(checkpoint.parent) == files


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    write("llama", folder / "a")
    return folder / "a"


def give(texts: list[str]) -> list[tuple[str, bool]]:
    """Plans given to `parallelize` on a rank: the kind of error, and whether the model was left as it was."""
    found = []
    for text in texts:
        model = build_model(FAMILIES["llama"].config(), meta=False)
        before = copy.deepcopy(model.state_dict())
        try:
            autotp.parallelize(model, plan=Plan.from_json(text))
            kind = ""
        except AutotpError as error:
            kind = type(error).__name__
        same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        found.append((kind, same and "_autotp" not in vars(model)))
    return found


def test_parallelize_proves_a_plan_before_it_cuts() -> None:
    changes = [change for change, _ in REFUSED.values()]
    for found in run_ranks(give, 2, [edited(change) for change in changes]):
        assert all(kind in ("PlanError", "UnsoundPlanError") and left for kind, left in found), found


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.softmax(self.up(x), -1))


def test_an_axis_that_must_stay_whole_is_found_before_the_first_call() -> None:
    model, example = Gated(), torch.randn(2, 8)
    data = json.loads(autotp.plan(model, 2, example=example).to_json())
    for parameter in data["units"][0]["parameters"]:
        cut = {"up.weight": 0, "up.bias": 0, "down.weight": 1}.get(parameter["name"])
        if cut is not None:
            parameter["layouts"][cut], parameter["local_shape"][cut] = "16/2@1", 8
    with pytest.raises(UnsoundPlanError, match="must be whole at softmax"):
        autotp.verify(model, 2, plan=Plan.from_json(json.dumps(data)), example=example)


def test_an_edit_that_is_sound_is_taken(checkpoint: Path, tmp_path: Path) -> None:
    plan = Plan.from_json(edited(lambda d: whole(d, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")))
    autotp.verify(build_model(FAMILIES["llama"].config()), 2, plan=plan).raise_for_failure()
    autotp.shard(checkpoint, tmp_path / "cut", 2, plan=plan)
    autotp.merge(tmp_path / "cut", tmp_path / "b")
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "arguments", [("plan",), ("diff", "--tp", 2), ("verify", "--tp", 2), ("export", "--to", "tp_plan")]
)
def test_the_commands_refuse_it_in_one_line(checkpoint: Path, tmp_path: Path, arguments: tuple[object, ...]) -> None:
    for change in (REFUSED["up without down"][0], REFUSED["a missing instance"][0], IMPOSSIBLE["twice in a leaf"][0]):
        (tmp_path / "plan.json").write_text(edited(change))
        command = [arguments[0], checkpoint, *arguments[1:], "--plan", tmp_path / "plan.json"]
        result = CliRunner().invoke(main, list(map(str, command)), catch_exceptions=False)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("autotp: error: ")
        assert result.stderr.count("\n") == 1
