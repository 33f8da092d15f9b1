"""Opening a checkpoint: the model is built on the meta device, and its tensors are not read yet."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..checkpoint import ranked
from ..checkpoint.folder import read_folder
from ..checkpoint.full import state_of
from ..checkpoint.lazy import Lazy
from ..checkpoint.load import empty
from ..checkpoint.marker import MARKER
from ..checkpoint.replace import settle
from ..checkpoint.stored import InMemory, Stored
from ..checkpoint.target import saying
from ..errors import CheckpointError
from ..huggingface import models, pretrained
from ..planner.plan import Plan


@dataclass(frozen=True)
class Opened:
    """A checkpoint: its model, on the meta device, and the model's tensors by their own names.

    Those of a checkpoint that is cut already, which comes with its plan, cannot be read before a rank is known.
    `computed_from` are tensors of the files whose data transformers looked at, say to see if two are equal and may be tied.
    """

    folder: Path
    model: Any
    tensors: Mapping[str, Lazy]
    stored: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    plan: Plan | None = None
    computed_from: Mapping[str, Lazy] = field(default_factory=dict)
    seen: tuple[int, ...] = ()

    def check_unchanged(self) -> None:
        """Raises CheckpointError if another folder is in the place of the one that was opened: what was read may be of both."""
        if self.seen != seen(self.folder):
            raise CheckpointError(f"{self.folder} was replaced while it was read; read it again")

    @property
    def nbytes(self) -> int:
        """Size of the whole checkpoint."""
        return sum(torch.Size(shape).numel() * dtype.itemsize for dtype, shape in self.stored.values())


def open_checkpoint(source: str | Path, dtype: torch.dtype | str | None = None) -> Opened:
    """Open a folder or a model id. Raises CheckpointError if a file or a tensor is missing, cut off or wrong."""
    with saying(Path(source)):
        settle(Path(source).resolve())
    folder = pretrained.local_folder(source)
    before = seen(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"the folder {folder} has no config.json, so it is not known which model is in it")
    if ranked.is_ranked(folder):
        return replace(_open_ranked(folder, dtype), seen=before)
    looked_at: set[str] = set()
    tensors = {
        name: Lazy.of(_Noted(name, entry, looked_at), entry.shape, entry.dtype)
        for name, entry in read_folder(folder).items()
    }
    opened = _opened(folder, tensors, dtype)
    return replace(opened, seen=before, computed_from={name: tensors[name] for name in sorted(looked_at)})


def seen(folder: Path) -> tuple[int, ...]:
    """What differs when a folder, or what is in it, has been replaced by `checkpoint.target`."""
    found: list[int] = []
    for path in (folder, folder / MARKER):
        with suppress(OSError):
            status = path.stat()
            found += [status.st_dev, status.st_ino, status.st_mtime_ns if path.name == MARKER else 0]
    return tuple(found)


@dataclass(frozen=True)
class _Noted:
    """A source that notes if somebody looks at it."""

    name: str
    source: Stored | InMemory
    looked_at: set[str]

    @property
    def file(self) -> Path:
        return self.source.file

    def open(self) -> torch.Tensor:
        self.looked_at.add(self.name)
        return self.source.open()


def _open_ranked(folder: Path, dtype: torch.dtype | str | None) -> Opened:
    manifest, file = ranked.Manifest.load(folder), folder / ranked.PLAN
    manifest.check(folder, ranked.PLAN)
    plan = Plan.load(file)
    if plan.tp != manifest.tp:
        raise CheckpointError(f"{file} is for {plan.tp} ranks, {folder / ranked.MANIFEST} for {manifest.tp}")
    return _opened(folder, manifest.tensors_of(folder), dtype, plan)


def _opened(
    folder: Path, tensors: Mapping[str, Lazy], dtype: torch.dtype | str | None, plan: Plan | None = None
) -> Opened:
    model = pretrained.load_dense(folder, models.config_of(folder), tensors, dtype)
    stored = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    return Opened(folder, model, empty(model), stored, plan)


def part_of_rank(opened: Opened, rank: int) -> dict[str, Lazy]:
    """A rank's part of every tensor of a checkpoint that is cut already, whose plan has been applied to the model.

    Raises CheckpointError for a folder that does not fit the plan.
    """
    assert opened.plan is not None
    layouts, stored_as = state_of(opened.model).layouts, first_names(opened.model)
    folder = opened.folder / ranked.rank_name(rank, opened.plan.tp)
    entries = ranked.Manifest.load(opened.folder).entries_of(opened.folder, rank)
    return {
        name: ranked.part_of(entries, folder, stored_as[name], layouts.get(name), like)
        for name, like in opened.tensors.items()
    }


def first_names(model: nn.Module) -> dict[str, str]:
    """The name under which a rank's file has a tensor, for every name: tied ones are stored once."""
    names: dict[int, str] = {}
    return {name: names.setdefault(id(t), name) for name, t in model.state_dict(keep_vars=True).items()}
