"""A training run's state as a folder of `torch.distributed.checkpoint` that is written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import AutotpError, CheckpointError, UsageError, in_one_line
from ..runtime.groups.processes import ProcessRanks
from .agree import share, together
from .replace import settle
from .target import Target, saying

SAVE, LOAD = "autotp.TrainingState.save", "autotp.TrainingState.load"


def save_state(entries: dict[str, Any], folder: Path, *, overwrite: bool) -> None:
    """Write entries of a distributed checkpoint; every process calls it.

    Raises CheckpointError, the same on all, and then the folder is what it was before.
    """
    everyone = _everyone()
    target = Target(folder, SAVE, overwrite)
    with ExitStack() as stack:

        def begin() -> str:
            return str(stack.enter_context(target.written())) if everyone.rank == 0 else ""

        new = share(everyone, SAVE, begin)[0]
        _together(f"write {folder}", lambda: save(entries, checkpoint_id=new))
        together(everyone, SAVE, stack.close)


def load_state(entries: dict[str, Any], folder: Path) -> None:
    """Read what `save_state`, or `torch.distributed.checkpoint` itself, wrote into entries, in place; every process calls it.

    Raises CheckpointError, the same on all.
    """
    everyone = _everyone()

    def begin() -> None:
        if everyone.rank == 0:
            with saying(folder):
                settle(folder.resolve())
            if not (folder / ".metadata").is_file():
                raise CheckpointError(f"{folder} has no whole state of a training run: there is no .metadata in it")

    together(everyone, LOAD, begin)
    _together(f"read {folder}", lambda: load(entries, checkpoint_id=folder))


def _everyone() -> ProcessRanks:
    """All processes of the run, whatever groups they form."""
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("there is no process group; call torch.distributed.init_process_group() first, under torchrun")
    return ProcessRanks([list(range(dist.get_world_size()))])


def _together(what: str, step: Callable[[], object]) -> None:
    """A step of torch's, which raises the same on all ranks."""
    try:
        step()
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, AutotpError):
            raise type(cause)(str(cause)) from error
        raise CheckpointError(f"cannot {what}: rank {rank}: {in_one_line(cause)}") from error
