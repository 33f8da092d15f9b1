"""Chain rules from `rules/chains/*.toml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RuleError, nearest
from ..outside.data import brief
from ..outside.rule_files import RULES, read_rules

OUTPUT = "output"


@dataclass(frozen=True)
class ChainRule:
    """One kind of chain; the fields are those of the rule file."""

    name: str
    end: str
    start: str = ""
    starts: int = 1
    through: tuple[str, ...] = ()
    axes: int = 1
    reduces: bool = False
    wider: bool = False
    narrower: bool = False
    widest: bool = False
    inside: bool = False
    share: float = 0.0
    collect: str = ""
    picked: bool = False
    few: bool = False
    alone: bool = False


_CLASS = {"type": "string", "description": "the name of an operator class"}
_FLAG = {"type": "boolean", "description": "true or false"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 64, "description": "a whole number of at least 1"}
_CHAIN = {
    "type": "object",
    "properties": {
        "start": _CLASS,
        "starts": _COUNT,
        "through": {"type": "array", "items": _CLASS, "description": "a list of operator classes"},
        "end": {"type": "string", "description": "an operator class, or 'output'"},
        "axes": _COUNT,
        **dict.fromkeys(("reduces", "wider", "narrower", "widest", "inside", "picked", "few", "alone"), _FLAG),
        "share": {"type": "number", "minimum": 0, "maximum": 1, "description": "a number from 0 to 1"},
        "collect": {"enum": ["gather"], "description": "'gather'"},
    },
    "required": ["end"],
    "additionalProperties": False,
    "description": "a table of settings",
}
SCHEMA = {
    "type": "object",
    "properties": {
        "classes": {
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "items": {"type": "string", "description": "the name of an operator"},
                "description": 'a list of operators such as ["aten.mul"]',
            },
            "description": "a table of operator classes",
        }
    },
    "additionalProperties": _CHAIN,
    "description": "tables of chains",
}


@dataclass(frozen=True)
class ChainRules:
    """All chain rules in order, and the operator classes they speak of."""

    rules: tuple[ChainRule, ...]
    classes: Mapping[str, frozenset[str]]


@functools.cache
def chain_rules(folders: tuple[Path, ...] = ()) -> ChainRules:
    """Read all chain rules; a rule of a later folder replaces an earlier one of the same name.

    Raises RuleError naming file, entry and nearest known word for anything that has no meaning.
    """
    rules: dict[str, ChainRule] = {}
    classes: dict[str, frozenset[str]] = {}
    for folder in (RULES, *folders):
        for path in sorted((folder / "chains").glob("*.toml")):
            data = read_rules(path, SCHEMA)
            for name, operators in data.pop("classes", {}).items():
                classes[name] = classes.get(name, frozenset()) | frozenset(operators)
            for name, entry in data.items():
                rules[name] = _rule(path, name, entry, classes)
    return ChainRules(tuple(rules.values()), classes)


def _rule(path: Path, name: str, entry: Mapping[str, Any], classes: Mapping[str, Any]) -> ChainRule:
    steps = [entry["end"], *entry.get("through", ()), *filter(None, [entry.get("start")])]
    for step in steps:
        if step not in classes and step != OUTPUT:
            raise RuleError(f"{path}: {name} names the unknown class {brief(step)}{nearest(step, {*classes, OUTPUT})}")
    return ChainRule(**{**entry, "name": name, "through": tuple(entry.get("through", ()))})
