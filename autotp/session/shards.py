"""`autotp shard` and `autotp merge`: an ordinary checkpoint into one folder a rank, and back."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Unpack

from torch import nn

from ..checkpoint import ranked, save
from ..checkpoint.folder import WEIGHTS, inside
from ..checkpoint.full import state_of
from ..checkpoint.lazy import Lazy, read
from ..checkpoint.marker import MARKER, STAGING
from ..checkpoint.progress import bar
from ..checkpoint.target import Target
from ..checkpoint.write import Writer
from ..dispatch.apply import apply_plan, make_compilers
from ..errors import UsageError
from ..huggingface import pretrained
from ..planner.plan import Plan
from ..runtime.cut.origin import IsCut
from ..runtime.groups.simulate import alone
from .arguments import Wishes, check_size
from .opening import Opened, first_names, open_checkpoint, part_of_rank
from .pipeline import Session

SHARD, MERGE = "autotp.shard", "autotp.merge"


def shard(
    source: str | Path,
    out: str | Path,
    tp: int,
    *,
    plan: Plan | None = None,
    overwrite: bool = False,
    **wishes: Unpack[Wishes],
) -> Plan:
    """Cut an ordinary checkpoint into one folder for each rank, which `autotp.from_pretrained` loads without cutting.

    Needs no process group, and has at most one whole tensor in memory. Returns the plan.

    Args:
        source: the folder of a checkpoint, or a model id.
        out: the folder to write, new or empty.
        tp: number of ranks.
        plan: how to cut; made here unless given.
        overwrite: whether to replace what an earlier `shard` wrote there, when everything is written.
        wishes: as for `autotp.plan`.

    Raises:
        CheckpointError: a file cannot be read or written, or `out` has something that `shard` did not write.
        UsageError: an argument is wrong.
        PlanError: the plan is for another model or number of ranks.
    """
    check_size(tp)
    opened = open_checkpoint(source)
    target = Target(Path(out), SHARD, overwrite, source=opened.folder)
    target.check()
    if opened.plan is not None:
        raise UsageError(f"{source} is cut for {opened.plan.tp} ranks already; run autotp merge first")
    model = opened.model
    session = Session(model, **wishes)
    if plan is None:
        plan = session.plan(tp)
    else:
        session.accepted(plan, tp)
    apply_plan(model, plan, alone(tp), make_compilers(plan, None))
    with target.written() as new:
        copy_others(opened.folder, new)
        plan.save(new / ranked.PLAN)
        if opened.computed_from:
            _write_whole(new / ranked.COMPUTED, opened.computed_from)
        _write_ranks(model, opened.tensors, new, tp)
        ranked.Manifest.of(tp, opened.stored, new).save(new)
        opened.check_unchanged()
    return plan


def _write_whole(file: Path, tensors: Mapping[str, Lazy]) -> None:
    with Writer(file, {n: (t.dtype, t.shape) for n, t in tensors.items()}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, read(tensor))


def _write_ranks(model: nn.Module, tensors: Mapping[str, Lazy], folder: Path, tp: int) -> None:
    layouts = state_of(model).layouts
    state = {n: t.local() if isinstance(t, IsCut) else t for n, t in model.state_dict(keep_vars=True).items()}
    held = {n: t for n, t in state.items() if n in tensors and first_names(model)[n] == n}
    shapes = {n: (t.dtype, t.shape) for n, t in held.items()}
    total = sum(tensor.numel() * tensor.itemsize for tensor in held.values())
    with ExitStack() as stack, bar("cutting", total * tp, 0) as tell:
        writers = []
        for rank in range(tp):
            own = folder / ranked.rank_name(rank, tp)
            own.mkdir()
            writers.append(stack.enter_context(Writer(own / WEIGHTS, shapes, ranked.metadata_of(rank, tp))))
        for name, tensor in held.items():
            for rank, writer in enumerate(writers):
                writer.write(name, read(tensors[name], layouts.get(name), rank))
                tell(tensor.numel() * tensor.itemsize)


def copy_others(source: Path, target: Path) -> None:
    """Copy what a checkpoint folder has besides weights: configurations, tokenizers, code."""
    for file in source.iterdir():
        cut = file.name in (ranked.MANIFEST, ranked.PLAN, ranked.COMPUTED) and ranked.is_ranked(source)
        own = cut or file.name in (MARKER, STAGING)
        if file.is_file() and not own and not save.is_weights(file.name):
            shutil.copy2(inside(source, file.name), target / file.name)


def merge(source: str | Path, out: str | Path, *, max_shard_size: int | str = "50GB", overwrite: bool = False) -> None:
    """Undo `shard`: write an ordinary checkpoint, equal to the one that was cut.

    Args:
        source: the folder that `shard` wrote, with all its ranks.
        out: the folder to write, new or empty.
        max_shard_size: size of the largest file, such as "5GB".
        overwrite: whether to replace what an earlier `merge` wrote there, when everything is written.

    Raises:
        CheckpointError: a file cannot be read or written, a rank's folder is missing or is not what `shard` wrote, or `out` has
            something that `merge` did not write.
    """
    opened = open_checkpoint(source)
    target = Target(Path(out), MERGE, overwrite, source=opened.folder)
    target.check()
    if opened.plan is None:
        raise UsageError(f"{source} is an ordinary checkpoint already; merge takes the folder that autotp shard wrote")
    apply_plan(opened.model, opened.plan, alone(opened.plan.tp), make_compilers(opened.plan, None))
    tensors = _assembled(opened, opened.plan.tp)
    files = pretrained.original_format(opened.model, tensors)
    metadata = {"total_parameters": pretrained.dense_twin(opened.model, tensors).num_parameters()}

    def copy_configs(new: Path) -> None:
        copy_others(opened.folder, new)

    save.save(files, target, alone(1), max_shard_size, metadata, copy_configs, opened.check_unchanged)


def _assembled(opened: Opened, tp: int) -> dict[str, Lazy]:
    layouts = state_of(opened.model).layouts
    ranks = [part_of_rank(opened, rank) for rank in range(tp)]
    found: dict[str, Lazy] = {}
    for name, like in opened.tensors.items():
        source = ranked.Assembled(tuple(rank[name] for rank in ranks), layouts[name]) if name in layouts else None
        found[name] = Lazy.of(source, like.shape, like.dtype) if source else ranks[0][name]
    return found
