"""A hunt for input that is believed wrongly: mutated plans, headers, indices, rule files and hardware files.

Each gives an error of autotp's, of one line, or a result equal to the dense model's; never another exception, never a wrong
number, and never much more time or memory. `make sweep` tries 200 of each, `make hunt-files` 5,000; what was found is in
the tests beside what it is about. A case is told again by its number alone.
"""

from __future__ import annotations

import functools
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import nn

import autotp
from autotp.axes.rules import operator_rules
from autotp.chains.rules import chain_rules
from autotp.checkpoint.boxes import boxes
from autotp.checkpoint.folder import INDEX, read_folder
from autotp.checkpoint.lazy import Lazy, read
from autotp.outside.rule_files import RULES
from autotp.planner.cost import hardware_presets
from autotp.planner.plan import Plan
from autotp.runtime.collectives.slices import take
from autotp.verify import Verifier
from tests.families import FAMILIES
from tests.hunt.bounds import outcome_of
from tests.hunt.mutate import mutated_bytes, mutated_data, mutated_lines

COUNT = int(os.environ.get("HUNT", "200"))
FIRST = int(os.environ.get("HUNT_FROM", "0"))
TP = 2


def hunt(kind: str, case: Callable[[random.Random], str]) -> None:
    found = {}
    for number in range(FIRST, FIRST + COUNT):
        wrong = outcome_of(functools.partial(case, random.Random(f"{kind} {number}")))
        if wrong:
            found[number] = wrong
    assert not found, "\n".join(f"{kind} {number}: {wrong}" for number, wrong in found.items())


# Plans


@functools.cache
def verifier() -> Verifier:
    return Verifier(FAMILIES["llama"].config())


@functools.cache
def good_plan() -> str:
    return verifier().plan(TP).to_json()


def decides(plan: Plan) -> Any:
    """What of a plan says how a model is cut and run."""
    units = tuple(
        (unit.instances, tuple((p.name, p.layouts, p.placement) for p in unit.parameters), unit.collected)
        for unit in plan.units
    )
    flags = tuple((unit.keep, unit.sequence) for unit in plan.units)
    return units, flags, plan.hardware, plan.tokens, plan.element_bytes


@functools.cache
def is_equal(plan: Plan) -> str:
    report = verifier().verify(plan.tp, plan)
    return "" if report.exact else f"differs: {report.worst()}"


known: dict[Any, str] = {}


def plan_case(chance: random.Random) -> str:
    text = good_plan()
    if chance.random() < 0.15:
        text = mutated_bytes(text.encode(), chance).decode("utf-8", "replace")
    else:
        text = json.dumps(mutated_data(json.loads(text), chance))
    plan = Plan.from_json(text)
    key = decides(plan)
    if key == decides(Plan.from_json(good_plan())):
        return "" if autotp.diff(verifier().dense, TP, plan=plan) else "no diff"
    if key not in known:
        known[key] = is_equal(plan) or is_kept(plan)
    return known[key]


def is_kept(plan: Plan) -> str:
    """Whether the parts that the ranks hold make up every parameter."""
    for unit in plan.units:
        for name, layouts in unit.layouts().items():
            whole = torch.arange(float(torch.Size(layout.size for layout in layouts).numel()))
            whole = whole.reshape([layout.size for layout in layouts])
            again = torch.full_like(whole, -1)
            for rank in range(plan.tp):
                part = take(whole, layouts, rank)
                for box in boxes(layouts, rank):
                    box.in_whole(again).copy_(box.of(part))
            if not torch.equal(again, whole):
                return f"{name} is lost"
    return ""


@pytest.mark.sweep
def test_plans() -> None:
    hunt("plan", plan_case)


# Files of checkpoints

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.arange(6, 12).reshape(3, 2),
    "c.weight": torch.tensor(3.5, dtype=torch.bfloat16),
    "d": torch.zeros(0, 4),
    "e": torch.arange(5, dtype=torch.uint8),
}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    alike = (one[n].dtype == other[n].dtype and torch.equal(one[n], other[n]) for n in one.keys() & other.keys())
    return one.keys() == other.keys() and all(alike)


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    return {name: read(Lazy.of(entry, entry.shape, entry.dtype)) for name, entry in read_folder(folder).items()}


@pytest.mark.sweep
def test_headers(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file, {"format": "pt"})
    good = file.read_bytes()
    end = 8 + struct.unpack("<Q", good[:8])[0]

    def case(chance: random.Random) -> str:
        if chance.random() < 0.4:
            made = mutated_bytes(good[:end], chance) + good[end:]
        else:
            header = json.dumps(mutated_data(json.loads(good[8:end]), chance)).encode()
            made = struct.pack("<Q", len(header)) + header + good[end:]
        file.write_bytes(made)
        found = read_all(tmp_path)
        return "" if same(found, load(made)) else "other tensors than the library's"

    hunt("header", case)


@pytest.mark.sweep
def test_indices(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file({"a": torch.ones(99)}, tmp_path / "x")
    parts = ({"a": TENSORS["a"], "b": TENSORS["b"]}, {"c.weight": TENSORS["c.weight"], "d": TENSORS["d"]})
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name, tensors in zip(names, parts, strict=True):
        save_file(tensors, tmp_path / "model" / name)
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {n: f for f, own in zip(names, parts, strict=True) for n in own},
    }
    expected = parts[0] | parts[1]

    def case(chance: random.Random) -> str:
        text = json.dumps(index, indent=1).encode()
        changed = chance.random() < 0.6
        made = json.dumps(mutated_data(index, chance)).encode() if changed else mutated_bytes(text, chance)
        (tmp_path / "model" / INDEX).write_bytes(made)
        found = read_all(tmp_path / "model")
        return "" if same(found, {name: expected[name] for name in found}) else "other tensors than the files have"

    hunt("index", case)


# Rules and hardware


class Small(nn.Module):
    """A gated perceptron behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.gate, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def verified(folder: Path) -> str:
    """What is wrong with the model as it is planned and run under the rules of a folder."""
    example = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    report = autotp.verify(Small(), TP, example=example, rules=[folder])
    return "" if report.ok else f"differs: {report.worst()}, {report.planned}, {report.counted}"


def file_case(folder: Path, kind: str, name: str) -> Callable[[random.Random], str]:
    """Cases of one file of rules, each in the same place; what was read once is read again."""
    good = (RULES / kind / name).read_bytes()
    (folder / kind).mkdir(exist_ok=True)
    seen: set[str] = set()

    def case(chance: random.Random) -> str:
        bytewise = chance.random() < 0.4
        made = mutated_bytes(good, chance) if bytewise else mutated_lines(good.decode(), chance).encode()
        (folder / kind / name).write_bytes(made)
        for cache in (operator_rules, chain_rules, hardware_presets):
            cache.cache_clear()
        said = repr((chain_rules((folder,)), hardware_presets((folder,)) if kind == "hardware" else ""))
        if said in seen:
            return ""
        seen.add(said)
        if kind == "ops":  # an operator's rule is believed: it is read, or refused
            return "" if operator_rules((folder,)) else "no rules"
        return verified(folder)

    return case


FILES = [("ops", "pointwise.toml"), ("ops", "linear.toml"), ("ops", "functions.toml"), ("ops", "grouped.toml")]


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "name"), [("chains", "chains.toml"), ("hardware", "presets.toml"), *FILES])
def test_rule_files(tmp_path: Path, kind: str, name: str) -> None:
    try:
        hunt(f"{kind}/{name}", file_case(tmp_path, kind, name))
    finally:
        for cache in (operator_rules, chain_rules, hardware_presets):
            cache.cache_clear()


def test_the_hunt_finds_what_is_wrong() -> None:
    """What is not as it should be is said, whichever way."""

    def unknown() -> str:
        raise KeyError("a")

    def two_lines() -> str:
        raise autotp.UsageError("one\ntwo")

    def refused() -> str:
        raise autotp.UsageError("one line")

    assert outcome_of(unknown).startswith("KeyError")
    assert outcome_of(two_lines).startswith("not one line")
    assert outcome_of(refused) == outcome_of(str) == ""
