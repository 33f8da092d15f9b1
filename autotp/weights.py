"""Weights in and out: what `from_pretrained` and `save_pretrained` of the public API do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .api import examples_for
from .checkpoint import save
from .checkpoint.agree import together
from .checkpoint.folder import Entries, read_folder
from .checkpoint.full import state_of
from .checkpoint.lazy import Lazy
from .checkpoint.load import empty, fill
from .errors import UsageError
from .huggingface import models, pretrained
from .planner.make import make_plan
from .planner.plan import Plan
from .planner.survey import Survey, survey
from .rewrite.apply import apply_plan, make_compilers
from .runtime.ranks import Ranks

LOAD, SAVE = "autotp.from_pretrained", "autotp.save_pretrained"
ARRIVE_S = 300.0


@dataclass(frozen=True)
class Opened:
    """A checkpoint whose model is built, on the meta device, and whose tensors are not read yet."""

    model: Any
    tensors: Mapping[str, Lazy]
    nbytes: int


def open_checkpoint(source: str | Path, dtype: torch.dtype | str | None = None) -> Opened:
    """Build the model of a checkpoint. Raises CheckpointError if a file or a tensor is missing, cut off or wrong."""
    folder = pretrained.local_folder(source)
    entries = read_folder(folder)
    model = pretrained.load_dense(folder, models.config_of(folder), lazily(entries), dtype)
    return Opened(model, empty(model), sum(entry.nbytes for entry in entries.values()))


def place(
    opened: Opened,
    ranks: Ranks,
    plan: Plan | None = None,
    device: torch.device | None = None,
    rules: tuple[Path, ...] = (),
) -> Any:
    """Make an opened model one rank's part of a parallel one, and read that part."""
    with together(ranks, LOAD):
        found = survey(opened.model, examples_for(opened.model, None), rules)
        plan = make_plan(opened.model, found, ranks.size) if plan is None else plan
    apply(opened.model, plan, found, ranks, rules)
    fill(opened.model, opened.tensors, ranks, device or ranks.device, opened.nbytes)
    return opened.model


def load(
    source: str | Path,
    ranks: Ranks,
    *,
    dtype: torch.dtype | str | None = None,
    plan: Plan | None = None,
    device: torch.device | None = None,
    rules: Sequence[Path] = (),
) -> Any:
    """One rank's part of the model in a checkpoint; see `autotp.from_pretrained`."""
    with together(ranks, LOAD, ARRIVE_S):
        opened = open_checkpoint(source, dtype)
    return place(opened, ranks, plan, device, tuple(rules))


def apply(model: nn.Module, plan: Plan, found: Survey | None, ranks: Ranks, rules: tuple[Path, ...]) -> None:
    """Apply a plan that all ranks agree on."""
    ranks.check_agreement(plan.to_json(), "plans")
    apply_plan(model, plan, ranks, make_compilers(plan, found, rules))


def lazily(entries: Entries) -> dict[str, Lazy]:
    """The tensors of a checkpoint, not read yet."""
    return {name: Lazy.of(entry, entry.shape, entry.dtype) for name, entry in entries.items()}


def save_model(model: nn.Module, folder: str | Path, *, max_shard_size: int | str = "50GB") -> None:
    """An ordinary checkpoint of a parallel model; see `autotp.save_pretrained`."""
    ranks = state_of(model).ranks
    if not models.is_transformers_model(model):
        raise UsageError(
            f"{type(model).__name__} is no transformers model, so it has no checkpoint format of its own; save what"
            " autotp.full_state_dict(model) returns"
        )
    tensors = save.gathered(model)
    files = pretrained.original_format(model, tensors)
    metadata = {"total_parameters": pretrained.dense_twin(model, tensors).num_parameters()}

    def write_configs(new: Path) -> None:
        pretrained.write_configs(model, new)  # type: ignore[arg-type]

    save.save(files, Path(folder), ranks, max_shard_size, metadata, write_configs, SAVE)
