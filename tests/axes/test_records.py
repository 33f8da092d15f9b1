"""What the record of an operator says beside its rule: proved on the operator, or read where it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import torch

import autotp
from autotp.axes.facts import Local
from autotp.axes.rules import operator_rules
from autotp.errors import RuleError
from autotp.rewrite.localise import _ACTIONS

aten = torch.ops.aten
RECORDS = operator_rules()
# The stages that know operators, and files there that name some: a table of one concern each, beside the records.
STAGES = ("capture", "chains", "placement", "planner", "rewrite")
TABLES = {
    "capture/composite.py": "which operators are taken apart",
    "capture/bags.py": "how bags are looked up and summed",
    "capture/at_once/__init__.py": "which sizes the results of common operators have",
    "capture/fake.py": "what copies a new tensor",
    "capture/grouped.py": "how a product of groups of rows is done and derived",
    "capture/loops.py": "what recurrent layers do in a step",
    "capture/memory.py": "copies that a written value needs",
    "capture/normalise.py": "which operators are others in disguise",
    "capture/replace.py": "reading sizes",
    "capture/sizes.py": "reading sizes",
    "chains/rules.py": "an example in a text",
    "placement/norms.py": "how a norm is written out",
    "placement/prepare.py": "operators with a bias, and sums",
    "rewrite/direct.py": "the fastest way to call an operator",
    "rewrite/layers.py": "which operators a parallel layer does",
    "rewrite/localise.py": "what an operator with local arguments is",
    "rewrite/picks.py": "a lookup that picks",
    "placement/positions.py": "reading sizes",
}


def test_operators_are_named_in_their_records() -> None:
    package = Path(autotp.__file__).parent
    named = {
        path.relative_to(package).as_posix()
        for stage in STAGES
        for path in (package / stage).rglob("*.py")
        if re.search(r"\baten\.", path.read_text(encoding="utf-8"))
    }
    assert named == TABLES.keys(), "what is known of an operator goes into its record (axes/record.py)"


def test_every_kind_of_local_argument_has_its_function() -> None:
    assert {*get_args(Local)} - {""} == _ACTIONS.keys()
    assert {record.local for record in RECORDS.values()} - {""} == _ACTIONS.keys()


def names(**said: object) -> set[str]:
    """The operators of torch whose record says so."""
    found = {n for n, record in RECORDS.items() if all(getattr(record, key) == value for key, value in said.items())}
    return {name.removeprefix("aten.") for name in found}


# Arguments behind the operand, where an operator needs some.
ARGUMENTS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("softmax", "log_softmax", "unsqueeze", "squeeze"), (0,)),
    **dict.fromkeys(("_softmax", "_log_softmax"), (0, False)),
    "full_like": (2.0,),
    "select": (0, 1),
    "slice": (0, 1, 2),
    "transpose": (0, 1),
    "unfold": (0, 2, 1),
    "permute": ([1, 0],),
    "view": ([1, 3, 4],),
}


def result_of(name: str) -> torch.Tensor:
    """An operator on positive numbers that want a gradient, and do not lie in order."""
    operand = (torch.rand(4, 3) + 0.5).t().requires_grad_()
    return getattr(aten, name)(operand, *ARGUMENTS.get(name, ()))


@pytest.mark.parametrize("name", sorted(names(gradient="result")))
def test_a_derivative_that_is_said_to_read_the_result_does(name: str) -> None:
    saved = dir(result_of(name).grad_fn)
    assert "_saved_result" in saved
    assert "_saved_self" not in saved


@pytest.mark.parametrize("name", sorted(names(gradient="none")))
def test_what_is_said_to_have_no_derivative_has_none(name: str) -> None:
    assert not result_of(name).requires_grad


@pytest.mark.parametrize("name", sorted(names(view=True)))
def test_what_is_said_to_be_a_view_is_one(name: str) -> None:
    assert result_of(name)._is_view()


def test_a_folder_says_what_a_derivative_reads(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    mine = tmp_path / "ops" / "mine.toml"
    mine.write_text('[mine.pointwise]\nother = ["step"]\n[mine.gradient]\nnone = ["step"]\n', encoding="utf-8")
    assert operator_rules((tmp_path,))["mine.step"].gradient == "none"


def test_another_rule_leaves_the_rest_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "mine.toml").write_text('[aten.pointwise]\nother = ["tanh"]\n', encoding="utf-8")
    assert operator_rules((tmp_path,))["aten.tanh"].gradient == "result"


def test_a_derivative_of_an_operator_without_a_rule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "mine.toml").write_text('[mine.gradient]\nnone = ["step"]\n', encoding="utf-8")
    with pytest.raises(RuleError, match=r"mine\.toml: the table of gradients names mine\.step, which has no rule"):
        operator_rules((tmp_path,))
