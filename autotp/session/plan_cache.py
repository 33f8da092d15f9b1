"""Plans that were made before, kept on disk: loading the same checkpoint again does not plan again."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..dispatch.apply import check_plan
from ..errors import PlanError
from ..huggingface import models
from ..outside.rule_files import RULES
from ..planner.plan import Plan
from ..planner.survey import fingerprint_of
from .pipeline import Session

FOLDER_VARIABLE = "AUTOTP_CACHE"
PACKAGE = Path(__file__).parents[1]
logger = logging.getLogger("autotp")


def cached_plan(session: Session, tp: int) -> Plan:
    """The plan of a session, or the one that was made before for an equal one, in this or another process.

    Equal are: names, shapes and dtypes of parameters, the configuration, what was asked for, the source files of every class
    in the model, all rules, and the versions of autotp (its sources), torch and transformers. A folder that cannot be read or
    written only costs time. A plan for an example is not kept, since of that much may decide.
    """
    model = session.module
    if session.example is not None:
        return session.plan(tp)
    file = _folder() / f"{_key(session, tp)}.json"
    try:
        plan = Plan.load(file)
        check_plan(model, plan, tp)
        return plan
    except PlanError:
        plan = session.plan(tp)
    _keep(file, plan.to_json())
    return plan


def accept_once(session: Session, plan: Plan, tp: int) -> None:
    """Prove that a plan is sound for a session's model, unless that was done before for an equal plan and an equal session."""
    check_plan(session.module, plan, tp)
    if session.example is not None:
        session.accepted(plan, tp)
        return
    text = plan.to_json()
    file = _folder() / f"{_key(session, tp)}-{hashlib.sha256(text.encode()).hexdigest()}.proved"
    if not file.is_file():
        session.accepted(plan, tp)
        _keep(file, "")


def _keep(file: Path, text: str) -> None:
    try:
        _write(file, text)
    except OSError as error:
        logger.info("what was planned or proved is not kept: %s", error)


def _folder() -> Path:
    """`$AUTOTP_CACHE`, else the folder for it among the user's cached files."""
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotp" / "plans"


def _key(session: Session, tp: int) -> str:
    model: Any = session.module
    asked = (
        session.machine,
        session.workload,
        session.objective,
        sorted(session.settings.items()),
        session.gather_logits,
        session.sequence_parallel,
    )
    versions = torch.__version__, models.VERSION
    dtypes = sorted({str(parameter.dtype) for parameter in model.parameters()})
    config = sorted(vars(model.config).items(), key=lambda entry: entry[0])
    digest = hashlib.sha256(repr((versions, tp, fingerprint_of(model), dtypes, config, asked)).encode())
    for file in _sources(model, session.folders):
        digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _sources(model: nn.Module, rules: Iterable[Path]) -> Iterator[Path]:
    """Every file that decides about a plan, but those of installed versions that do not change."""
    modules = {type(module).__module__ for module in model.modules()} - {"builtins"}
    files = (getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules))
    yield from (Path(file) for file in files if file)
    for folder, pattern in ((PACKAGE, "*.py"), *((folder, "*.toml") for folder in (RULES, *rules))):
        yield from sorted(folder.rglob(pattern))


def _write(file: Path, text: str) -> None:
    """In one step, so that another process never reads half a plan."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, suffix=".tmp", delete=False) as new:
        new.write(text)
    os.replace(new.name, file)
