"""What a parallel model refuses to compute, since the numbers would be wrong and nobody would see it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from ..errors import UsageError
from ..runtime.ranks import ProcessRanks, Ranks

MSG_AVERAGED = (
    "DistributedDataParallel would average the gradients of different slices: its process group has ranks {others} of this"
    " rank's tensor-parallel group; give it the group of the replicas, process_group=mesh['dp'].get_group(), or train with"
    " autotp.ParallelTrainer"
)


def refuse_misuse(model: nn.Module, ranks: Ranks) -> None:
    """Let calls of a parallel model raise UsageError inside a DDP over its own group, and the first one PlacementError where
    the ranks have different inputs."""
    if ranks.size > 1:
        model.register_forward_pre_hook(_Check(ranks), with_kwargs=True)


class _Check:
    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.compared = ranks, False

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        _check_average(self.ranks)
        if not self.compared:
            self.compared = True
            self.ranks.check_agreement(_digest((args, kwargs)), "inputs")


def _check_average(ranks: Ranks) -> None:
    around = DistributedDataParallel._get_active_ddp_module()
    if around is not None and isinstance(ranks, ProcessRanks):
        others = sorted(set(dist.get_process_group_ranks(around.process_group)) & set(ranks.line) - {dist.get_rank()})
        if others:
            raise UsageError(MSG_AVERAGED.format(others=others))


def _digest(inputs: Any) -> str:
    """The same for equal inputs: tensors by their bytes, everything else not at all."""
    found = hashlib.sha256()
    for value in pytree.tree_leaves(inputs):
        if type(value) is torch.Tensor and value.device.type != "meta":
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
