"""Traces that are kept on disk, so that another process with the same code and state traces nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from ..capture.disk.names import UnnamedError
from ..capture.disk.texts import texts_in
from ..capture.disk.traces import trace_data, trace_of
from ..capture.opaque import Widths
from ..capture.signature import CallSite
from ..capture.traced import Traced
from ..capture.varying import VaryingDims
from ..outside.kept import folder, keep, sources_digest
from .live import LiveUnit
from .structure import signature_of

MOST = 8  # traces for calls of one kind: of units in other states, or at other places among their siblings
logger = logging.getLogger("autotp")


def _versions(rules: tuple[Path, ...]) -> str:
    """All that decides about traces and is not in them: autotp, the rules, Python, torch and numpy."""
    versions = platform.python_version(), torch.__version__, numpy.__version__, sources_digest(rules)
    return hashlib.sha256(repr(versions).encode()).hexdigest()


@dataclass(frozen=True)
class KeptTraces:
    """The traces of the calls of one kind, in a folder of their own."""

    folder: Path
    rules: tuple[Path, ...]

    @classmethod
    def of(
        cls,
        call: LiveUnit,
        site: CallSite,
        varying: VaryingDims,
        unread: frozenset[int],
        widths: Widths,
        rules: tuple[Path, ...],
    ) -> KeptTraces | None:
        """Those for a call of a unit; the rest is as for `trace`. None where the call has what is in no other process."""
        try:
            key = texts_in([*site.key, list(site.same)])
        except UnnamedError:
            return None
        except Exception as error:  # from torch, for a container that it has no name for
            logger.info("a call's traces are not kept: %r", error)
            return None
        told = (
            key,
            signature_of(call.module),
            call.unit.positions,
            varying.said(site),
            sorted(unread),
            widths.said() if site.handles else "",
        )
        name = hashlib.sha256(repr(told).encode()).hexdigest()
        return cls(folder() / "traces" / _versions(rules) / name, rules)

    def find(self, call: LiveUnit, site: CallSite) -> Traced | None:
        """The first one that holds for a call of a unit, None if none does."""
        for file in self._files():
            traced = trace_of(_read(file), call.module, site, call.positions, self.rules)
            if traced is not None and call.holds(traced.contract, site.tensors):
                return traced
        return None

    def keep(self, traced: Traced, call: LiveUnit) -> None:
        """Write one that holds for a unit, if it can be written. Processes that write the same write one file."""
        data = trace_data(traced, call.module)
        if data is None:
            return
        text = json.dumps(data)
        keep(self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json", text)
        with contextlib.suppress(OSError):
            for file in self._files()[MOST:]:
                file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The newest one first."""
        with contextlib.suppress(OSError):
            return sorted(self.folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        return []


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        logger.info("%s is not read: %s", file, error)
        return {}
