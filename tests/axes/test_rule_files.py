"""Rule and hardware files that are clumsy or damaged: one line with the file, the entry and what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

import autotp
from autotp.axes.rule_schema import operator_schema
from autotp.axes.rules import CLASSES
from autotp.chains import rules as chains
from autotp.errors import RuleError
from autotp.outside.rule_files import RULES, rule_tables
from autotp.outside.schema import conform
from autotp.planner import cost
from autotp.planner.cost import hardware

NODE = {"gpus": "8", "tflops_bf16": "1.0", "memory_gib": "1", "memory_gbps": "1", "link_gbps": "1", "latency_us": "0"}


def node(**changed: str) -> str:
    return "[mine]\n" + "".join(f"{key} = {value}\n" for key, value in {**NODE, **changed}.items() if value)


CASES: dict[str, tuple[str, str, str]] = {
    "a class of no list": ("chains", "[classes]\na = 3\n", "classes.a is 3; expected a list of operators"),
    "classes of no table": ("chains", "classes = 3\n", "classes is 3; expected a table of operator classes"),
    "a class of numbers": ("chains", "[classes]\na = [1, 2]\n", r"classes.a\[1\] is 2; expected the name of an operator"),
    "negative starts": ("chains", '[x]\nend = "linear"\nstarts = -1\n', "x.starts is -1; expected a whole number of at least 1"),
    "starts of a fraction": ("chains", '[x]\nend = "linear"\nstarts = 1.0\n', "x.starts is 1.0; expected a whole number"),
    "a share of more than all": ("chains", '[x]\nend = "linear"\nshare = 2\n', "x.share is 2; expected a number from 0 to 1"),
    "no end": ("chains", '[x]\nstart = "linear"\n', "x lacks 'end'; expected an operator class, or 'output'"),
    "operators of numbers": ("ops", "[aten.pointwise]\nother = [1, 2]\n", r"aten.pointwise.other\[1\] is 2; expected the name"),
    "a date": ("ops", "[aten]\nmm = 2001-01-01\n", "aten.mm is datetime.date.* expected a signature, or a table with one"),
    "a long signature": ("ops", f'[aten]\nmm = "{"a" * 9999}"\n', "expected a signature"),
    "text for a number": ("hardware", node(gpus='"8"'), "mine.gpus is '8'; expected a whole number of at least 1"),
    "zero": ("hardware", node(tflops_bf16="0"), "mine.tflops_bf16 is 0; expected a number above 0"),
    "zero GPUs": ("hardware", node(gpus="0"), "mine.gpus is 0; expected a whole number of at least 1"),
    "a negative rate": ("hardware", node(link_gbps="-1"), "mine.link_gbps is -1; expected a number above 0"),
    "no number": ("hardware", node(link_gbps="nan"), "mine.link_gbps is nan; expected a number that is finite"),
    "infinite": ("hardware", node(memory_gbps="inf"), "mine.memory_gbps is inf; expected a number that is finite"),
    "huge": ("hardware", node(gpus="9" * 4000), "mine.gpus is a whole number of .* bits; expected"),
    "huger": ("hardware", node(gpus="9" * 5000), "see docs/rules.md for the format"),
    "a missing key": ("hardware", node(latency_us=""), "mine lacks 'latency_us'; expected a number of at least 0"),
    "an unknown key": ("hardware", node(latency="1"), "unknown key 'latency' in mine; did you mean 'latency_us'"),
    "no table": ("hardware", "mine = 8\n", r"mine is 8; expected a table such as \[my-node\]"),
    "deep": ("hardware", "a = " + "[" * 99_999, "nested too deeply|see docs/rules.md"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "message"), CASES.values(), ids=CASES.keys())
def test_a_file_is_checked_before_it_is_used(tmp_path: Path, kind: str, text: str, message: str) -> None:
    (tmp_path / kind).mkdir()
    file = tmp_path / kind / "a.toml"
    file.write_text(text)
    check(tmp_path, kind, file, message)


def test_the_files_that_come_with_autotp_are_what_their_schemas_allow() -> None:
    """They are not compared with these when they are read."""
    schemas = {"chains": chains.SCHEMA, "ops": operator_schema(CLASSES), "hardware": cost.SCHEMA}
    files = sorted(RULES.rglob("*.toml"))
    assert {path.parent.name for path in files} == schemas.keys()
    for path in files:
        conform(rule_tables(path), schemas[path.parent.name], str(path), RuleError)


@pytest.mark.parametrize("kind", ["chains", "ops", "hardware"])
def test_what_is_no_text_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "one" / kind).mkdir(parents=True)
    (tmp_path / "one" / kind / "a.toml").write_bytes(b"a = \xff")
    check(tmp_path / "one", kind, tmp_path / "one" / kind / "a.toml", "is not UTF-8")
    (tmp_path / "two" / kind / "a.toml").mkdir(parents=True)
    check(tmp_path / "two", kind, tmp_path / "two" / kind / "a.toml", "Is a directory")


def check(folder: Path, kind: str, file: Path, message: str) -> None:
    with pytest.raises(RuleError, match=message) as caught:
        hardware("mine", (folder,)) if kind == "hardware" else autotp.plan("gpt2", 2, rules=[folder])
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
