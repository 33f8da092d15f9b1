"""Chain rules from `rules/chains/*.toml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..axes.rules import RULES, read_toml
from ..errors import RuleError, nearest

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
    inside: bool = False
    share: float = 0.0
    collect: str = ""
    picked: bool = False


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
            data = read_toml(path)
            for name, operators in data.pop("classes", {}).items():
                classes[name] = classes.get(name, frozenset()) | frozenset(operators)
            for name, entry in data.items():
                rules[name] = _rule(path, name, entry, classes)
    return ChainRules(tuple(rules.values()), classes)


def _rule(path: Path, name: str, entry: Mapping[str, Any], classes: Mapping[str, Any]) -> ChainRule:
    if not isinstance(entry, dict):
        raise RuleError(f"{path}: chain {name} should be a table of settings, not {entry!r}")
    known = {field.name: field.default for field in fields(ChainRule) if field.name != "name"}
    for key in entry.keys() - known.keys():
        raise RuleError(f"{path}: unknown key {key!r} in chain {name}{nearest(key, known)}")
    for key, value in entry.items():
        wanted = list if key == "through" else str if key == "end" else type(known[key])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise RuleError(f"{path}: {key} of chain {name} should be of type {wanted.__name__}, not {value!r}")
    if entry.get("collect", "gather") != "gather":
        raise RuleError(f"{path}: chain {name} collects by {entry['collect']!r}; known: gather")
    if "end" not in entry:
        raise RuleError(f"{path}: chain {name} has no 'end'; name an operator class or 'output'")
    steps = [entry["end"], *entry.get("through", ())] + ([entry["start"]] if entry.get("start") else [])
    for step in steps:
        if step not in classes and step != OUTPUT:
            raise RuleError(f"{path}: chain {name} names the unknown class {step!r}{nearest(step, {*classes, OUTPUT})}")
    return ChainRule(**{**entry, "name": name, "through": tuple(entry.get("through", ()))})
