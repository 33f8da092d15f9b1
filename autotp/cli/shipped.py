"""Plans that come with autotp: of the types of models that transformers knows, at their default sizes and with default options.

A plan needs the model's class, and to import that takes longer than to plan. What is here was planned when this version of
autotp was made, and holds for a type as long as the files with its classes are what they were then, and so are the rules.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..errors import PlanError
from ..outside.rule_files import RULES
from ..planner.estimate import Estimate
from ..planner.plan import Plan
from ..planner.records import read_record

FILE = Path(__file__).with_name("shipped.jsonl.xz")
SIZES = (2, 4, 8)
LIBRARIES = ("torch", "transformers")
MSG_MADE = "planned with {made} when this autotp was made; --again plans it with what is installed"


@dataclass(frozen=True)
class Shipped:
    """Plans of one type with what each takes, by number of ranks, and the versions of libraries that they were made with."""

    plans: Mapping[int, Plan]
    estimates: Mapping[int, Estimate]
    versions: tuple[str, ...]

    @staticmethod
    def of(model: str, sizes: Sequence[int], own: Iterable[str]) -> Shipped | None:
        """The plans of a type for these sizes; None where there are none, or where the command that runs was given an option
        that decides about them. `own` names the options that do not."""
        context = click.get_current_context()
        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = {name for name, source in sources.items() if source is not ParameterSource.DEFAULT}
        if given - set(own) or Path(model).exists():
            return None
        try:
            return _read(model, sizes)
        except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, PlanError):
            return None

    def note(self) -> str | None:
        """What to say of versions, unless the installed ones are those."""
        return None if self.versions == versions() else MSG_MADE.format(made=" and ".join(self.versions))


def _read(model: str, sizes: Sequence[int]) -> Shipped | None:
    with lzma.open(FILE, "rt", encoding="utf-8") as lines:
        head = json.loads(next(lines, ""))
        line = next((line for line in lines if line.startswith(f'["{model}", ')), None)
    if line is None or head["rules"] != rules_digest():
        return None
    _, classes, files, made = json.loads(line)
    if not {str(size) for size in sizes} <= made.keys() or classes != classes_digest(files):
        return None
    return Shipped(
        {size: Plan.from_json(json.dumps(made[str(size)]["plan"])) for size in sizes},
        {size: read_record(Estimate, made[str(size)]["estimate"], f"the estimate of {model}") for size in sizes},
        tuple(head["versions"]),
    )


def versions() -> tuple[str, ...]:
    """The libraries that are installed, without what tells builds of one version apart."""
    return tuple(f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in LIBRARIES)


def rules_digest() -> str:
    """A hash of the rules that come with autotp."""
    return _digest((str(file.relative_to(RULES)), file) for file in sorted(RULES.rglob("*.toml")))


def classes_digest(files: Iterable[str]) -> str:
    """A hash of files of transformers, named as they lie in it. Raises OSError where one is gone."""
    return _digest((file, transformers_folder() / file) for file in files)


def transformers_folder() -> Path:
    """Where transformers lies, found without importing it. Raises FileNotFoundError where it is not installed."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("transformers")
    return Path(spec.origin).parent


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def as_line(model: str, files: Sequence[str], made: Mapping[int, tuple[Plan, Mapping[str, Any]]]) -> str:
    """How plans of a type, each with its estimate as plain data, stand in the file."""
    plans = {
        size: {"plan": json.loads(plan.to_json()), "estimate": estimate} for size, (plan, estimate) in made.items()
    }
    return json.dumps([model, classes_digest(files), list(files), plans], ensure_ascii=False)
