"""Where the rules are, and reading one of their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RuleError
from .data import parse_toml
from .schema import conform

RULES = next(
    folder for folder in (Path(__file__).parents[1] / "rules", Path(__file__).parents[2] / "rules") if folder.is_dir()
)


def rule_tables(path: Path) -> dict[str, Any]:
    """A rule file as data. Raises RuleError for one that is no TOML."""
    return parse_toml(path, RuleError, "see docs/rules.md for the format")


def read_rules(path: Path, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A rule file as data that its schema allows. Raises RuleError naming the file, the entry and what is expected.

    The files that come with autotp are compared with their schemas by the tests, and not at each start.
    """
    data = rule_tables(path)
    if RULES not in path.parents:
        conform(data, schema, str(path), RuleError)
    return data
