"""`autotp shard` and `autotp merge`: an ordinary checkpoint into one folder a rank, and back."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from torch import nn

from .api import check_size, examples_for
from .checkpoint import ranked, save
from .checkpoint.folder import WEIGHTS
from .checkpoint.full import state_of
from .checkpoint.lazy import Lazy, read
from .checkpoint.progress import bar
from .checkpoint.replace import replacing
from .checkpoint.write import Writer
from .errors import UsageError
from .huggingface import pretrained
from .opening import Opened, first_names, open_checkpoint, part_of_rank
from .planner.make import make_plan
from .planner.plan import Plan
from .planner.survey import survey
from .rewrite.apply import apply_plan, make_compilers
from .runtime.cut.origin import IsCut
from .runtime.simulate import alone


def shard(source: str | Path, out: str | Path, tp: int, *, plan: Plan | None = None) -> Plan:
    """Cut an ordinary checkpoint into one folder a rank, which `autotp.from_pretrained` opens without cutting.

    Needs no process group and never holds more than one whole tensor; returns the plan.

    Args:
        source: the folder of a checkpoint, or a model id.
        out: the folder to write; one that is there is replaced when everything is written.
        tp: number of ranks.
        plan: how to cut; made here unless given.

    Raises:
        CheckpointError: a file cannot be read or written. UsageError, PlanError: an argument is wrong.
    """
    check_size(tp)
    opened = open_checkpoint(source)
    if opened.plan is not None:
        raise UsageError(f"{source} is cut for {opened.plan.tp} ranks already; run autotp merge first")
    model = opened.model
    if plan is None:
        plan = make_plan(model, survey(model, examples_for(model, None)), tp)
    apply_plan(model, plan, alone(tp), make_compilers(plan, None))
    with replacing(Path(out), lambda name: True) as new, ExitStack() as stack:
        copy_others(opened.folder, new)
        plan.save(new / ranked.PLAN)
        ranked.Manifest.of(tp, opened.stored).save(new)
        if opened.computed_from:
            _write_whole(new / ranked.COMPUTED, opened.computed_from)
        _write_ranks(model, opened.tensors, new, tp, stack)
    return plan


def _write_whole(file: Path, tensors: Mapping[str, Lazy]) -> None:
    with Writer(file, {n: (t.dtype, t.shape) for n, t in tensors.items()}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, read(tensor))


def _write_ranks(model: nn.Module, tensors: Mapping[str, Lazy], folder: Path, tp: int, stack: ExitStack) -> None:
    layouts = state_of(model).layouts
    state = {n: t.local() if isinstance(t, IsCut) else t for n, t in model.state_dict(keep_vars=True).items()}
    held = {n: t for n, t in state.items() if n in tensors and first_names(model)[n] == n}
    writers = []
    for rank in range(tp):
        own = ranked.rank_folder(folder, rank, tp)
        own.mkdir()
        writers.append(stack.enter_context(Writer(own / WEIGHTS, {n: (t.dtype, t.shape) for n, t in held.items()})))
    total = sum(tensor.numel() * tensor.itemsize for tensor in held.values())
    with bar("cutting", total * tp, 0) as tell:
        for name, tensor in held.items():
            for rank, writer in enumerate(writers):
                writer.write(name, read(tensors[name], layouts.get(name), rank))
                tell(tensor.numel() * tensor.itemsize)


def copy_others(source: Path, target: Path) -> None:
    """Copy what a checkpoint folder has besides weights: configurations, tokenizers, code."""
    for file in source.iterdir():
        own = file.name in (ranked.MANIFEST, ranked.PLAN, ranked.COMPUTED) and ranked.is_ranked(source)
        if file.is_file() and not own and not save.is_weights(file.name):
            shutil.copy2(file, target / file.name)


def merge(source: str | Path, out: str | Path, *, max_shard_size: int | str = "50GB") -> None:
    """Undo `shard`: an ordinary checkpoint again, equal to the one that was cut.

    Args:
        source: the folder that `shard` wrote, with all its ranks.
        out: the folder to write.
        max_shard_size: size of the largest file, such as "5GB".

    Raises:
        CheckpointError: a file cannot be read or written, or a rank's folder is missing.
    """
    opened = open_checkpoint(source)
    if opened.plan is None:
        raise UsageError(f"{source} is an ordinary checkpoint already; merge takes the folder that autotp shard wrote")
    apply_plan(opened.model, opened.plan, alone(opened.plan.tp), make_compilers(opened.plan, None))
    tensors = _assembled(opened, opened.plan.tp)
    files = pretrained.original_format(opened.model, tensors)
    metadata = {"total_parameters": pretrained.dense_twin(opened.model, tensors).num_parameters()}

    def copy_configs(new: Path) -> None:
        copy_others(opened.folder, new)

    save.save(files, Path(out), alone(1), max_shard_size, metadata, copy_configs, "autotp.merge")


def _assembled(opened: Opened, tp: int) -> dict[str, Lazy]:
    layouts = state_of(opened.model).layouts
    ranks = [part_of_rank(opened, rank) for rank in range(tp)]
    found: dict[str, Lazy] = {}
    for name, like in opened.tensors.items():
        source = ranked.Assembled(tuple(rank[name] for rank in ranks), layouts[name]) if name in layouts else None
        found[name] = Lazy.of(source, like.shape, like.dtype) if source else ranks[0][name]
    return found
