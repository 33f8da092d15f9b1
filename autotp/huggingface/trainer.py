"""transformers' `Trainer` for a parallel model. Needs accelerate, as `Trainer` does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from transformers import Trainer, TrainingArguments
from typing_extensions import override

from ..axes.layout import Factor
from ..checkpoint.full import state_of
from ..errors import UsageError
from ..outside.overrides import standing_in
from ..runtime.groups.processes import ProcessRanks
from ..runtime.groups.ranks import Ranks
from ..runtime.groups.registry import group_of
from .saving import save_pretrained

MSG_ALONE = (
    "the gradients of this model are not averaged over its {replicas} replicas; call"
    " torch.distributed.fsdp.fully_shard(model, mesh=mesh['dp']) before making the trainer"
)
MSG_APART = "accelerate hands out batches to neighbouring ranks; make the tensor-parallel dim of the mesh the last one"
_MENTIONS = {
    Trainer: (
        *("accelerator", "gather_function", "gather_for_metrics", "get_tp_size", "create_accelerator_and_postprocess"),
        *("_sync_replicated_trainable_parameters", "_defer_fsdp_gradient_reduction", "_save"),
    ),
    TrainingArguments: ("_setup_devices", "distributed_state"),
    Accelerator: ("device_mesh",),
    Accelerator.gather_for_metrics: ("gather",),
}


@standing_in(Trainer, "transformers 5.20 to 5.24, and accelerate 1.15", _MENTIONS)
class ParallelTrainer(Trainer):
    """A `transformers.Trainer` for what `autotp.parallelize` returned; takes all arguments that `Trainer` does.

    The ranks of a tensor-parallel group get the same batches, groups different ones; nothing is put around the model, and
    what the trainer saves is a whole checkpoint, without the optimizer's state. Several groups need
    `fully_shard(model, mesh=mesh["dp"])` first.

    Raises UsageError for a model that is not parallel, or whose gradients nobody averages over the groups.
    """

    def __init__(self, model: Any, args: Any = None, **others: Any) -> None:
        self.ranks = state_of(model).ranks
        _check(model, self.ranks)
        args = TrainingArguments("tmp_trainer") if args is None else args
        _compute_on(self.ranks.device, args)
        super().__init__(model, args, **others)

    @property
    @override
    def is_distributed_loading_by_transformers(self) -> bool:
        """What a model is called that sees to its own placement and gradients: nobody is to wrap it or shard it again."""
        return True

    @is_distributed_loading_by_transformers.setter
    def is_distributed_loading_by_transformers(self, value: bool) -> None:
        """It is so, whatever loaded the model."""

    @override
    def get_tp_size(self) -> int:
        """How many ranks get the same batch."""
        return self.ranks.size

    @override
    def create_accelerator_and_postprocess(self) -> None:
        """Let accelerate know which ranks get the same batch, and count what they all found once."""
        super().create_accelerator_and_postprocess()
        if isinstance(self.ranks, ProcessRanks) and dist.get_world_size() > 1:
            self.accelerator.state.device_mesh = _mesh(self.ranks)
            self.gather_function = self.accelerator.gather_for_metrics = self._gather_for_metrics

    def _gather_for_metrics(self, values: Any, use_gather_object: bool = False) -> Any:
        accelerator = self.accelerator
        gather = accelerator.gather

        def once(values: Any) -> Any:
            return pytree.tree_map_only(torch.Tensor, self._first_of_groups, gather(values))

        accelerator.gather = once
        try:
            return type(accelerator).gather_for_metrics(accelerator, values, use_gather_object)
        finally:
            del accelerator.gather

    def _first_of_groups(self, gathered: torch.Tensor) -> torch.Tensor:
        """The rows of each group's first rank among those of all ranks."""
        ranks = gathered.reshape(dist.get_world_size(), -1, *gathered.shape[1:])
        return ranks[:: self.ranks.size].flatten(0, 1)

    @override
    def _sync_replicated_trainable_parameters(self, model: Any) -> None:
        """Nothing: what is no DTensor is this rank's own part, or has had its gradient summed."""

    @override
    @contextmanager
    def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
        model: Any = self.model
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    @override
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Every rank takes part in writing the model; the first one writes what else there is."""
        model: Any = self.model
        folder = str(output_dir or self.args.output_dir)
        save_pretrained(model, folder)
        if self.args.should_save:
            model.__dict__["save_pretrained"] = lambda *args, **kwargs: None  # done
            try:
                super()._save(folder, state_dict)
            finally:
                del model.__dict__["save_pretrained"]


def _mesh(ranks: ProcessRanks) -> DeviceMesh:
    """All ranks, those of a tensor-parallel group in a row."""
    rows = torch.tensor(ranks.lines)
    replicas = group_of(tuple(map(tuple, rows.T.tolist())), ranks, None)
    groups = [replicas.process_group, ranks.group((Factor(ranks.size, 1),))]
    return DeviceMesh.from_group(groups, ranks.device.type, mesh=rows, mesh_dim_names=("dp_shard", "tp"))


def _check(model: Any, ranks: Ranks) -> None:
    """Raises UsageError where groups would train by themselves, or would be given parts of the same batches."""
    if ranks.replicas > 1 and not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise UsageError(MSG_ALONE.format(replicas=ranks.replicas))
    if dist.get_rank() != ranks.replica * ranks.size + ranks.rank:
        raise UsageError(MSG_APART)


def _compute_on(device: torch.device, args: TrainingArguments) -> None:
    """Let a trainer compute where the model is: accelerate knows a list of accelerators, and takes the CPU, and this process for
    the only one, where there is another."""
    if args.device.type == device.type:
        return
    args.__dict__["_setup_devices"] = device
    state: Any = args.distributed_state
    state.device = device
    if state.distributed_type == DistributedType.NO:
        state.distributed_type = DistributedType.MULTI_CPU  # many processes, of no kind that is asked for its name
        state.num_processes, state.process_index = dist.get_world_size(), dist.get_rank()
        state.local_process_index = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        state.backend = dist.get_backend()
