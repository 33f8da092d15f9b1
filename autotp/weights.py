"""Weights in and out of a parallel model: `autotp.from_pretrained` and `autotp.save_pretrained`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from .api import join_ranks, process_ranks, rule_folders
from .capture.clone import on_meta
from .checkpoint import save
from .checkpoint.agree import share, together
from .checkpoint.full import state_of
from .checkpoint.load import fill, loading, report
from .checkpoint.target import Target
from .dispatch.apply import apply_plan, check_plan, make_compilers
from .dispatch.compiler import Compiler
from .errors import PlanError, UsageError
from .gate import accept
from .huggingface import adapters, models, pretrained
from .huggingface.examples import examples_for
from .opening import Opened, open_checkpoint, part_of_rank
from .plan_cache import cached_plan, once
from .planner.make import make_plan
from .planner.plan import Plan, UnitPlan
from .planner.survey import survey
from .runtime.ranks import Ranks

T = TypeVar("T")
LOAD, SAVE = "autotp.from_pretrained", "autotp.save_pretrained"
ARRIVE_S = 600.0
MSG_OTHER_SIZE = "{folder} is cut for {tp} ranks, not for {size}; run autotp merge, and load or cut what it writes"


def from_pretrained(
    source: str | Path,
    tp: int | None = None,
    *,
    mesh: DeviceMesh | None = None,
    dtype: torch.dtype | str | None = None,
    plan: Plan | None = None,
    device: torch.device | str | None = None,
    rules: Sequence[str | Path] = (),
) -> Any:
    """Load a transformers model as one rank's part of a tensor-parallel one; each rank reads only what it keeps.

    Call it on every rank inside `torchrun`. The model comes in eval mode, as from transformers. What it read is
    in `autotp.loading(model)`, and rank 0 logs it for all ranks.

    Args:
        source: the folder of a checkpoint (safetensors or `pytorch_model.bin`, one file or several with an index), a folder
            that `autotp.shard` wrote, or a model id.
        tp: number of ranks; the world size unless given.
        mesh: as for `autotp.parallelize`.
        dtype: of the weights; what transformers takes unless given: that of the configuration, else of the checkpoint.
        plan: a plan from `autotp.plan`. Unless given, rank 0 makes it, and keeps it in `$AUTOTP_CACHE` (`~/.cache/autotp/plans`
            unless set) for the next time an equal model is loaded.
        device: where this rank computes and its weights go, as for `autotp.parallelize`.
        rules: as for `autotp.plan`.

    Raises:
        CheckpointError: a file is missing or cut off, a tensor is missing, unexpected or of a wrong shape. The message
            names file and tensor and is the same on all ranks; no rank has computed anything then.
        UsageError: no process group, or a wrong argument. PlanError: the plan is for another model or group, or unsound.
    """
    ranks, folders = process_ranks(tp, mesh, device), rule_folders(rules)
    return place(lambda: open_checkpoint(source, dtype), ranks, plan, folders)


def place(
    opening: Callable[[], Opened],
    ranks: Ranks,
    plan: Plan | None = None,
    rules: tuple[Path, ...] = (),
) -> Any:
    """Open a checkpoint, make its model one rank's part of a parallel one, and read that part.

    The ranks meet twice: when all have opened the checkpoint and agree on a plan, and when all have read.
    """
    opened, found = _Later(opening), _Later(lambda: survey(opened().model, examples_for(opened().model, None), rules))
    dense = _Later(lambda: on_meta(opened().model))

    def choose() -> str:
        chosen, model = _given(opened(), plan, ranks.size), opened().model
        if ranks.rank == 0 and chosen is None:
            chosen = cached_plan(model, ranks.size, rules, lambda: make_plan(model, found(), ranks.size))
        elif ranks.rank == 0 and chosen is not None:
            given = chosen
            check_plan(model, given, ranks.size)
            once(model, given, rules, lambda: accept(model, given, ranks.size, found(), rules))
        elif ranks.rank:
            dense()  # meanwhile
        return "" if chosen is None else chosen.to_json()

    plan = _agreed(share(ranks, LOAD, choose, ARRIVE_S))
    model, structure = opened().model, dense()
    compilers = make_compilers(plan, found.value, rules)

    def read() -> str:
        apply_plan(model, plan, ranks, compilers)
        tensors, layouts = opened().tensors, state_of(model).layouts
        if opened().plan is not None:
            tensors, layouts = part_of_rank(opened(), ranks.rank), {}
        looked_at = sum(tensor.nbytes for tensor in opened().computed_from.values())
        loaded = fill(model, tensors, layouts, ranks, ranks.device, opened().nbytes, looked_at)
        opened().check_unchanged()
        return str(loaded.bytes_read)

    read_by = [int(text) for text in share(ranks, LOAD, read)]
    if ranks.rank == 0:
        report(loading(model), read_by)
    join_ranks(model, ranks, by_store=True)
    if found.value is None:
        _SurveyLater(structure, plan, rules, compilers).attach(model)
    return model


class _Later(Generic[T]):
    """A value that is made when first asked for; `value` is None before."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.make = make
        self.value: T | None = None

    def __call__(self) -> T:
        if self.value is None:
            self.value = self.make()
        return self.value


def _given(opened: Opened, plan: Plan | None, size: int) -> Plan | None:
    """The plan that was given, by the caller or by a checkpoint that is cut already. Raises UsageError or PlanError."""
    if opened.plan is None:
        return plan
    if opened.plan.tp != size:
        raise UsageError(MSG_OTHER_SIZE.format(folder=opened.folder, tp=opened.plan.tp, size=size))
    if plan not in (None, opened.plan):
        raise PlanError(f"{opened.folder} is cut by another plan; leave out plan=, or load the ordinary checkpoint")
    return opened.plan


def _agreed(plans: Sequence[str]) -> Plan:
    """The plan of all ranks: the one given to every rank, or the one that rank 0 made. Raises PlanError if they differ."""
    different = {plan for plan in plans if plan}
    if len(different) != 1:
        raise PlanError("the ranks were given different plans; give the same one to all, or none")
    return Plan.from_json(different.pop())


@dataclass(frozen=True)
class _SurveyLater:
    """What running a model needs to know beyond its plan is found out at its first forward, not while it loads."""

    dense: nn.Module
    plan: Plan
    rules: tuple[Path, ...]
    compilers: dict[UnitPlan, Compiler]

    def attach(self, model: nn.Module) -> None:
        """Wait for the first forward."""

        def run(module: nn.Module, args: Any) -> None:
            del module._forward_pre_hooks[handle.id]  # of this module: a copy has the hook too
            self()

        handle = model.register_forward_pre_hook(run)

    def __call__(self) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            found = survey(self.dense, examples_for(self.dense, None), self.rules)
        for unit, compiler in make_compilers(self.plan, found, self.rules).items():
            known = self.compilers[unit]
            known.varying, known.unread, known.surveyed = compiler.varying, compiler.unread, compiler.surveyed


def save_pretrained(
    model: nn.Module, folder: str | Path, *, max_shard_size: int | str = "50GB", overwrite: bool = True
) -> None:
    """Write a parallel transformers model as an ordinary checkpoint, which `AutoModel.from_pretrained` opens; of one of
    peft's the adapters, which `PeftModel.from_pretrained` opens.

    Every rank must call it; rank 0 puts one tensor after the other together and writes it. The folder is replaced in one
    step at the end, so an error or a killed process leaves what was there. Of the files that are there only those that an
    earlier call wrote are replaced: others, such as a tokenizer's, stay, and weights of others are refused.

    Args:
        model: what `from_pretrained` or `parallelize` returned.
        folder: where to write.
        max_shard_size: size of the largest file, such as "5GB".
        overwrite: whether to replace what an earlier call wrote.

    Raises:
        CheckpointError: a file cannot be written, or somebody else's would be replaced; the message names it and the tensor,
            and is the same on all ranks.
        UsageError: some rank did not call it, or the model is not parallel or not from transformers.
    """
    ranks = state_of(model).ranks
    if adapters.is_adapted(model):
        _save_adapters(model, Target(Path(folder), SAVE, overwrite, True, adapters.is_adapters), ranks)
        return
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

    target = Target(Path(folder), SAVE, overwrite, True, save.is_weights)
    save.save(files, target, ranks, max_shard_size, metadata, write_configs)


def _save_adapters(model: nn.Module, target: Target, ranks: Ranks) -> None:
    ranks.exchange("", SAVE, save.PATIENCE_S)
    tensors = adapters.whole_adapters(model)

    def write() -> None:
        if ranks.rank == 0 and ranks.replica == 0:
            with target.written() as new:
                adapters.write_adapters(model, new, tensors)

    together(ranks, SAVE, write)
