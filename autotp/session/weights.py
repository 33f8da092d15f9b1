"""`autotp.from_pretrained`: a checkpoint as one rank's part of a parallel model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ..capture.clone import on_meta
from ..checkpoint.agree import share, together
from ..checkpoint.full import state_of
from ..checkpoint.load import fill, loading, report
from ..dispatch.apply import apply_plan, make_compilers
from ..dispatch.calls import UnitCalls
from ..dispatch.compiler import Compiler
from ..errors import PlanError, UsageError
from ..outside.kept import sources_digest
from ..planner.plan import Plan, UnitPlan
from ..runtime.cut.moving import move
from ..runtime.groups.ranks import Ranks
from .arguments import Wishes, check_wishes, rule_folders
from .built import Built, build_lazily
from .equal import check_equal_models
from .first_call import cut_at_first_call
from .groups import join_ranks, process_ranks
from .opening import Opened, open_checkpoint, part_of_rank
from .pipeline import Session
from .plan_cache import Prepared, accept_once, cached_plan

T = TypeVar("T")
LOAD = "autotp.from_pretrained"
ARRIVE_S = 600.0
MSG_EXAMPLE = (
    "example= goes with build=: the inputs of a model of transformers are known; leave it out, or give the function that builds"
    " your module"
)
MSG_OTHER_SIZE = "{folder} is cut for {tp} ranks, not for {size}; run autotp merge, and load or cut what it writes"


def from_pretrained(
    source: str | Path,
    tp: int | None = None,
    *,
    mesh: DeviceMesh | None = None,
    dtype: torch.dtype | str | None = None,
    plan: Plan | None = None,
    sum_in_float32: bool = False,
    device: torch.device | str | None = None,
    build: Callable[[], nn.Module] | None = None,
    example: Any = None,
    **wishes: Unpack[Wishes],
) -> Any:
    """Load a model as one rank's part of a tensor-parallel one; each rank reads only what it keeps.

    Call it on every rank inside `torchrun`. The model is in eval mode, as from transformers. `autotp.loading(model)` says what
    this rank read, and rank 0 logs it for all ranks.

    Args:
        source: the folder of a checkpoint (safetensors or `pytorch_model.bin`, one file or several with an index), a folder
            that `autotp.shard` wrote, or a model id. With `build`, a folder or a file whose tensors have the names that the
            module gives them.
        tp: number of ranks; the world size unless given.
        mesh: as for `autotp.parallelize`.
        dtype: of the weights. Without it, the one that transformers takes: that of the configuration, else of the checkpoint;
            with `build`, that of the checkpoint.
        plan: a plan from `autotp.plan`. Without it, rank 0 makes the plan, and keeps it in the folder `$AUTOTP_CACHE`
            (`~/.cache/autotp/plans` if that is not set) for the next time that an equal model is loaded. Traces are kept there,
            too.
        device: where this rank computes and its weights go, as for `autotp.parallelize`.
        sum_in_float32: as for `autotp.parallelize`.
        build: makes the dense module, for one that is not from transformers. Its parameters are never in memory.
        example: as for `autotp.plan`, with `build`. Without it, and without a plan, the module is cut, and its weights are read,
            at its first call, which must be one without gradients.
        wishes: as for `autotp.plan`.

    Raises:
        CheckpointError: a file is missing or cut off, a tensor is missing, unexpected or of a wrong shape. The message
            names file and tensor and is the same on all ranks; no rank has computed anything then.
        UsageError: there is no process group, or an argument is wrong.
        PlanError: the plan is for another model or group, or unsound.
    """
    check_wishes(wishes)
    ranks = process_ranks(tp, mesh, device)
    ranks.sum_in_float32 = sum_in_float32
    if build is None:
        if example is not None:
            raise UsageError(MSG_EXAMPLE)
        return place(lambda: open_checkpoint(source, dtype), ranks, plan, **wishes)
    if isinstance(dtype, str):
        raise UsageError(f"with build=, dtype is a torch.dtype or left out, not {dtype!r}")
    make, cast = build, dtype
    if example is None and plan is None:
        return place_at_first_call(lambda: build_lazily(make, source, cast), ranks, **wishes)
    return place(lambda: build_lazily(make, source, cast).opened(), ranks, plan, example, **wishes)


def place_at_first_call(building: Callable[[], Built], ranks: Ranks, **wishes: Unpack[Wishes]) -> nn.Module:
    """Build a model whose first call cuts it and reads this rank's part of its checkpoint; until then nothing is read."""
    share(ranks, LOAD, lambda: "", ARRIVE_S)
    built = _Later(building)
    together(ranks, LOAD, built)
    model = built().model

    def cut(session: Session) -> None:
        check_equal_models(model, ranks)
        plan = session.plan(ranks.size)
        ranks.check_agreement(plan.to_json(), "plans")
        opened = built().opened()
        together(ranks, LOAD, lambda: _read(opened, plan, ranks, session.compilers(plan, keeps=True)))
        join_ranks(model, ranks)

    cut_at_first_call(model, ranks, lambda given: Session(on_meta(model), example=given, **wishes), cut)
    return model


def _read(opened: Opened, plan: Plan, ranks: Ranks, compilers: dict[UnitPlan, Compiler]) -> str:
    """Make an opened model this rank's part of a parallel one, and read that. Returns the number of bytes."""
    model = opened.model
    apply_plan(model, plan, ranks, compilers)
    tensors, layouts = opened.tensors, state_of(model).layouts
    if opened.plan is not None:
        tensors, layouts = part_of_rank(opened, ranks.rank), {}
    looked_at = sum(tensor.nbytes for tensor in opened.computed_from.values())
    loaded = fill(model, tensors, layouts, ranks, ranks.device, opened.nbytes, looked_at)
    move(model, ranks.device)  # what is no tensor of the checkpoint
    opened.check_unchanged()
    return str(loaded.bytes_read)


def place(
    opening: Callable[[], Opened],
    ranks: Ranks,
    plan: Plan | None = None,
    example: Any = None,
    **wishes: Unpack[Wishes],
) -> Any:
    """Open a checkpoint, make its model one rank's part of a parallel one, and read that part.

    The ranks meet three times: when all have called, when all have opened the checkpoint and agree on a plan, and when all have
    read. The first one alone is short of time: what is opened may have to be downloaded first, on some hosts.
    """
    opened = _Later(opening)
    session = _Later(lambda: Session(opened().model, example=example, **wishes))
    folders = rule_folders(wishes.get("rules", ()))

    def choose() -> str:
        if ranks.rank:
            sources_digest(folders)  # which traces are looked up by: now, while rank 0 is at the plan
        chosen = _given(opened(), plan, ranks.size)
        if ranks.rank == 0 and chosen is None:
            return cached_plan(session(), ranks.size).to_json()
        if ranks.rank == 0 and chosen is not None and session().knows_inputs:
            return accept_once(session(), chosen, ranks.size).to_json()
        return "" if chosen is None else Prepared(chosen.to_json()).to_json()

    share(ranks, LOAD, lambda: "", ARRIVE_S)
    plan, calls = _agreed(share(ranks, LOAD, choose))
    model = opened().model
    check_equal_models(model, ranks)
    compilers = make_compilers(plan, None, folders, calls, keeps=True)
    read_by = [int(text) for text in share(ranks, LOAD, lambda: _read(opened(), plan, ranks, compilers))]
    if ranks.rank == 0:
        report(loading(model), read_by)
    join_ranks(model, ranks, by_store=True)
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


def _agreed(said: Sequence[str]) -> tuple[Plan, tuple[UnitCalls, ...]]:
    """The plan of all ranks, the one given to every rank or the one that rank 0 made, and what rank 0 knows of its calls. Raises
    PlanError if the plans differ."""
    found = [Prepared.from_json(text) for text in said if text]
    if len({each.plan for each in found}) != 1:
        raise PlanError("the ranks were given different plans; give the same one to all, or none")
    return Plan.from_json(found[0].plan), found[0].calls
