"""Plans that were made before, kept on disk with what programs need to know beside them: loading the same checkpoint again
surveys nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..dispatch.apply import check_plan
from ..dispatch.calls import UnitCalls
from ..errors import PlanError
from ..huggingface import models
from ..outside.data import parse_json, read_text
from ..outside.kept import digest_of, folder, keep, sources_digest
from ..planner.parameters import Parameters
from ..planner.plan import Plan
from ..planner.records import read_record
from .pipeline import Session


@dataclass(frozen=True)
class Prepared:
    """A plan, as JSON, and what its survey says of the calls of its units."""

    plan: str
    calls: tuple[UnitCalls, ...] = ()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Prepared:
        """Raises PlanError for anything else."""
        found: Prepared = read_record(cls, parse_json(text, "what was kept", PlanError), "what was kept")
        return found


def cached_plan(session: Session, tp: int) -> Prepared:
    """The plan of a session, or the one that was made before for an equal one, in this or another process.

    Equal are: names, shapes and dtypes of parameters, the configuration, what was asked for, the source files of every class
    in the model, all rules, and the versions of autotp (its sources), torch and transformers. A folder that cannot be read or
    written only costs time. A plan for an example is not kept, since of that much may decide.
    """
    if session.example is not None:
        return _prepared(session, session.plan(tp))
    file = folder() / f"{_key(session, tp)}.json"
    try:
        found = Prepared.from_json(read_text(file, PlanError))
        check_plan(session.module, Plan.from_json(found.plan), tp)
        return found
    except PlanError:
        found = _prepared(session, session.plan(tp))
    keep(file, found.to_json())
    return found


def accept_once(session: Session, plan: Plan, tp: int) -> Prepared:
    """Prove that a plan is sound for a session's model, unless that was done before for an equal plan and an equal session."""
    check_plan(session.module, plan, tp)
    if session.example is not None:
        session.accepted(plan, tp)
        return _prepared(session, plan)
    digest = hashlib.sha256(plan.to_json().encode()).hexdigest()
    file = folder() / f"{_key(session, tp)}-{digest}.proved"
    try:
        return Prepared.from_json(read_text(file, PlanError))
    except PlanError:
        session.accepted(plan, tp)
    found = _prepared(session, plan)
    keep(file, found.to_json())
    return found


def _prepared(session: Session, plan: Plan) -> Prepared:
    return Prepared(plan.to_json(), session.calls(plan))


def _key(session: Session, tp: int) -> str:
    model: Any = session.module
    asked = (
        session.machine,
        session.workload,
        session.objective,
        session.wanted,
        sorted(session.settings.items()),
        session.gather_logits,
        session.sequence_parallel,
    )
    versions = torch.__version__, models.VERSION
    dtypes = sorted({str(parameter.dtype) for parameter in model.parameters()})
    config = sorted(vars(model.config).items(), key=lambda entry: entry[0])
    text = repr((versions, tp, Parameters(model).fingerprint(), dtypes, config, asked, sources_digest(session.folders)))
    return digest_of(text, class_files(model))


def class_files(model: nn.Module) -> Iterator[Path]:
    """The files with the classes of a model's modules, and of their configurations."""
    parts = [*model.modules(), *(getattr(module, "config", None) for module in model.modules())]
    modules = {type(part).__module__ for part in parts} - {"builtins"}
    files = (getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules))
    yield from (Path(file) for file in files if file)
