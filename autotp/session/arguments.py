"""Arguments that the public functions have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from ..errors import UsageError, nearest

MOST_SIMULATED = 64
AUTO = "auto"  # of `sequence_parallel`
MSG_TOO_MANY = (
    "verify runs all {tp} ranks in this process, and at most {most}; verify at a smaller tp that divides it, or run real"
    " ranks"
)

# What a user may name as a model: a module, a transformers configuration, a folder, a config.json or a type name.
Source: TypeAlias = Any


class Wishes(TypedDict, total=False):
    """How a model is to be cut: what everything takes that plans, with the meaning that `autotp.plan` gives."""

    hardware: str
    tokens: int
    objective: str
    workload: str
    memory_gib: float | None
    settings: Mapping[str, str] | None
    gather_logits: bool
    sequence_parallel: bool | Literal["auto"]
    rules: Sequence[str | Path]


def check_wishes(wishes: Wishes) -> None:
    """Raises UsageError for an argument that there is not."""
    for name in wishes.keys() - Wishes.__annotations__.keys():
        raise UsageError(f"there is no argument {name!r}{nearest(name, Wishes.__annotations__)}")
    positions = wishes.get("sequence_parallel", False)
    if positions not in (False, True, AUTO):
        raise UsageError(f"sequence_parallel is True, False or {AUTO!r}, not {positions!r}")


def check_size(tp: object) -> None:
    """Raises UsageError unless tp is a whole number of at least one."""
    if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1:
        raise UsageError(f"tp must be a whole number of at least 1, not {tp!r}")


def rule_folders(rules: Sequence[str | Path]) -> tuple[Path, ...]:
    """Folders of rules as paths. Raises UsageError for one that does not exist."""
    folders = tuple(Path(folder) for folder in ([rules] if isinstance(rules, (str, Path)) else rules))
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"the rules folder {folder} does not exist")
    return folders


def parse_setting(text: str) -> tuple[str, str]:
    """`PATTERN=replicate` or `PATTERN=RULE` as its two parts. Raises UsageError for anything else."""
    pattern, equals, value = text.partition("=")
    if not equals or not pattern or not value:
        raise UsageError(
            f"{text!r} is no setting; write PATTERN=replicate, as in 'model.layers.*.mlp=replicate', or the name of a chain "
            "rule in its place"
        )
    return pattern, value


def check_simulated(tp: object) -> None:
    """Raises UsageError unless tp is a number of ranks that one process can simulate."""
    check_size(tp)
    if isinstance(tp, int) and tp > MOST_SIMULATED:
        raise UsageError(MSG_TOO_MANY.format(tp=tp, most=MOST_SIMULATED))
