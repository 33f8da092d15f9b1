"""The public functions: plan, diff, parallelize, verify and what reads a parallel model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from .boundaries import with_boundaries
from .capture.suitable import check_suitable
from .checkpoint.state import attach
from .dispatch.again import apply_again, held_layouts, is_changed, values_added
from .dispatch.apply import apply_plan, check_plan, make_compilers
from .dispatch.held import ATTRIBUTE, dense_structure
from .errors import UsageError
from .gate import accept
from .huggingface import models
from .huggingface.adapters import carrier, say_whole_sizes
from .huggingface.checkpointing import keep_checkpointing, leave_checkpointing
from .huggingface.examples import examples_for
from .huggingface.generation import keep_in_step
from .huggingface.losses import reading_of_logits
from .huggingface.recording import refuse_recordings
from .misuse import refuse_misuse
from .planner import cost
from .planner.cost import DEFAULT_HARDWARE, Workload
from .planner.extend import extend_plan
from .planner.make import make_plan
from .planner.plan import Plan
from .planner.survey import Survey, survey
from .report.diff import GraphDiff, make_diff
from .runtime.devices import rank_device
from .runtime.moving import move
from .runtime.ranks import ProcessRanks, Ranks

# What a user may name as a model: a module, a transformers configuration, a folder, a config.json or a type name.
Source: TypeAlias = Any
Model = TypeVar("Model", bound=nn.Module)


def plan(
    model: Source,
    tp: int,
    *,
    example: Any = None,
    hardware: str = DEFAULT_HARDWARE,
    tokens: int = 4096,
    gather_logits: bool = True,
    sequence_parallel: bool = False,
    rules: Sequence[str | Path] = (),
) -> Plan:
    """Plan tensor parallelism for `tp` ranks. Needs no process group, no weights and no GPU.

    Args:
        model: an `nn.Module` (any device, meta included), a transformers configuration, a folder or `config.json`, a model
            id in the local cache, or a model type such as `"llama"`.
        tp: number of ranks, at least 1.
        example: for a module that is not from transformers, the arguments of one forward: a tensor, a tuple of
            arguments, a dict of keyword arguments, or `(args, kwargs)`. Only shapes and dtypes matter.
        hardware: a node from `rules/hardware`, used to weigh collectives against each other.
        tokens: tokens of one step that collectives are weighed at.
        gather_logits: whether a head over the vocabulary gives whole logits on every rank. Else they are a `DTensor` cut over
            the vocabulary, and nothing is sent; `.full_tensor()` makes them whole.
        sequence_parallel: whether blocks hand on values cut over the positions of a sequence, of any length: a rank keeps less
            for the backward, and sends as much. Calls without gradients, and sequences shorter than `tp`, are not cut.
        rules: folders with rules of your own, laid out as `rules/` is.

    Raises:
        UsageError: an argument is wrong. RuleError: a rule file is wrong.
    """
    check_size(tp)
    folders = rule_folders(rules)
    machine = cost.hardware(hardware, folders)
    module = models.resolve(model)
    examples = examples_for(module, example)
    found = survey(module, examples, folders)
    made = make_plan(
        module,
        found,
        tp,
        machine,
        Workload(tokens=tokens),
        gather_logits=gather_logits,
        sequence_parallel=sequence_parallel,
    )
    made = with_boundaries(module, found, made, examples[0], folders)
    return replace(made, loss=reading_of_logits(module, found)) if gather_logits and tp > 1 else made


def diff(
    model: Source,
    tp: int,
    *,
    plan: Plan | None = None,
    compare: Sequence[int] = (),
    example: Any = None,
    hardware: str = DEFAULT_HARDWARE,
    tokens: int = 4096,
    rules: Sequence[str | Path] = (),
) -> GraphDiff:
    """What parallelisation over `tp` ranks does to the graph of every unit: see `.text()`, `.html(path)`, `.json()`.

    Needs no process group, no weights and no GPU; the model is left as it is.

    Args:
        model, example, hardware, tokens, rules: as for `autotp.plan`.
        tp: number of ranks, at least 1.
        plan: the plan to show; the best one unless given.
        compare: further numbers of ranks, shown beside the first.

    Raises:
        UsageError: an argument is wrong. PlanError: the plan is for another model or number of ranks.
        UnsoundPlanError: the plan cuts what must stay whole.
    """
    for size in (tp, *compare):
        check_size(size)
    folders = rule_folders(rules)
    machine, workload = cost.hardware(hardware, folders), Workload(tokens=tokens)
    module = models.resolve(model)
    if plan is not None:
        check_plan(module, plan, tp)
    found = survey(module, examples_for(module, example), folders)

    def planned(size: int) -> Plan:
        given = plan if size == tp else None
        return given or make_plan(module, found, size, machine, workload)

    return GraphDiff(tuple(make_diff(module, found, planned(size), folders) for size in dict.fromkeys((tp, *compare))))


def parallelize(
    model: Model,
    tp: int | None = None,
    *,
    mesh: DeviceMesh | None = None,
    plan: Plan | None = None,
    gather_logits: bool = True,
    sequence_parallel: bool = False,
    sum_in_float32: bool = False,
    device: torch.device | str | None = None,
    example: Any = None,
    rules: Sequence[str | Path] = (),
) -> Model:
    """Make a model one rank's part of a tensor-parallel model, in place, and return it.

    Call it on every rank inside `torchrun`, on equal models. This rank's part goes onto the accelerator that is its own, which
    is the current device afterwards; inputs are expected there. Parameters on the meta device stay there.

    Call it again after adapters were added to a parallel model, or merged and taken out: what is cut stays as it is, and
    what is new is cut with it. Make the optimizer after that.

    Args:
        model: the dense module; its weights may be on any device. For one of peft's, the model within it.
        tp: number of ranks; the world size unless given. It must divide the world size: neighbouring ranks form a group.
        mesh: a one-dimensional mesh, or one with a dim named "tp", instead of `tp`. Its groups are the ones used.
        plan: a plan from `autotp.plan`, edited or not; made here unless given.
        gather_logits, sequence_parallel: as for `autotp.plan`; a given plan says it itself.
        sum_in_float32: whether ranks add up bfloat16 and float16 values in float32, which sends twice the planned bytes.
        device: where this rank computes. Unless given, the accelerator that the model is on or that the mesh or the process group
            is for, of several the current one or that of number `LOCAL_RANK`; the CPU where there is none.
        example: as for `autotp.plan`.
        rules: as for `autotp.plan`.

    Raises:
        UsageError: no process group, or a wrong argument. PlanError: the plan is for another model or group.
        UnsoundPlanError: the plan cuts what must stay whole. Where the model's inputs are not known, and no example is given,
            that is found at the first call of the unit.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"parallelize takes an nn.Module, not {type(model).__name__}; autotp.plan takes configurations too"
        )
    check_suitable(model)
    inner, folders = carrier(model), rule_folders(rules)
    if ATTRIBUTE in inner.__dict__ and is_changed(inner) and plan is None:
        parallelize_again(inner, example, folders)
        move(model, inner.__dict__[ATTRIBUTE].ranks.device)
        return model
    ranks = process_ranks(tp, mesh, device, model)
    ranks.sum_in_float32 = sum_in_float32
    if plan is not None:
        check_plan(inner, plan, ranks.size)
    found: Survey | None = None
    if plan is None or example is not None or models.is_transformers_model(inner):
        examples = examples_for(inner, example)
        found = survey(inner, examples, folders)
    if plan is not None and found is not None:
        accept(inner, plan, ranks.size, found, folders)
    if plan is None:
        assert found is not None
        plan = make_plan(inner, found, ranks.size, gather_logits=gather_logits, sequence_parallel=sequence_parallel)
        plan = with_boundaries(inner, found, plan, examples[0], folders)
    ranks.check_agreement(plan.to_json(), "plans")
    apply_plan(inner, plan, ranks, make_compilers(plan, found, folders))
    move(model, ranks.device)
    join_ranks(inner, ranks)
    return model


def process_ranks(
    tp: int | None, mesh: DeviceMesh | None, device: torch.device | str | None, model: nn.Module | None = None
) -> ProcessRanks:
    """This process among the ranks of its tensor-parallel group, on its device. Raises UsageError for a wrong argument."""
    lines = group_lines(tp, mesh)
    line = mesh["tp"] if mesh is not None and mesh.ndim > 1 else mesh
    return ProcessRanks(lines, rank_device(device, mesh, model), line)


def parallelize_again(model: nn.Module, example: Any, folders: tuple[Path, ...]) -> None:
    """Cut what was added to a parallel model as the layers are that it was added to.

    Raises PlanError or UnsoundPlanError, before anything is changed, if what is cut already cannot stay so.
    """
    state, dense = model.__dict__[ATTRIBUTE], dense_structure(model)
    examples = examples_for(dense, example)
    found = survey(dense, examples, folders)
    machine = cost.hardware(state.plan.hardware, folders)
    plan = extend_plan(state.plan, dense, found, held_layouts(model), machine)
    plan = with_boundaries(dense, found, plan, examples[0], folders)
    state.ranks.check_agreement(plan.to_json(), "plans")
    state.ranks.check_agreement(values_added(model), "adapters")
    leave_checkpointing(model)
    apply_again(model, dense, plan, make_compilers(plan, found, folders))
    keep_checkpointing(model)
    say_whole_sizes(model)


def join_ranks(model: nn.Module, ranks: Ranks, *, by_store: bool = False) -> None:
    """What a parallel model's own methods need to know of its ranks: `generate`, `state_dict`, `load_state_dict`,
    `gradient_checkpointing_enable`; what it cannot record; and one state of random numbers, by the store if `by_store`."""
    if models.can_generate(model):
        keep_in_step(model, ranks)
    refuse_recordings(model)
    refuse_misuse(model, ranks)
    keep_checkpointing(model)
    say_whole_sizes(model)
    ranks.share_random_state(by_store=by_store)  # dropout of what is whole draws the same on all ranks
    attach(model)


def check_size(tp: object) -> None:
    """Raises UsageError unless tp is a whole number of at least one."""
    if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1:
        raise UsageError(f"tp must be a whole number of at least 1, not {tp!r}")


def rule_folders(rules: Sequence[str | Path]) -> tuple[Path, ...]:
    """Folders of rules as paths. Raises UsageError for one that does not exist."""
    folders = tuple(Path(folder) for folder in ([rules] if isinstance(rules, (str, Path)) else rules))
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"the rules folder {folder} does not exist")
    return folders


def group_lines(tp: int | None, mesh: DeviceMesh | None) -> list[list[int]]:
    """The global ranks of every tensor-parallel group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("there is no process group; call torch.distributed.init_process_group() first, under torchrun")
    world = dist.get_world_size()
    if mesh is not None:
        if tp is not None:
            raise UsageError("give tp or mesh, not both")
        return _mesh_lines(mesh)
    size = world if tp is None else tp
    check_size(size)
    if size > world or world % size:
        raise UsageError(f"tp={size} does not divide the {world} ranks of the process group")
    return [list(range(first, first + size)) for first in range(0, world, size)]


def _mesh_lines(mesh: DeviceMesh) -> list[list[int]]:
    dim = _dim_of(mesh)
    lines: list[list[int]] = mesh.mesh.movedim(dim, -1).reshape(-1, mesh.size(dim)).tolist()
    return lines


def _dim_of(mesh: DeviceMesh) -> int:
    """Which dim of a mesh is the tensor-parallel one."""
    names = mesh.mesh_dim_names or ()
    if mesh.ndim > 1 and "tp" not in names:
        raise UsageError(f"a mesh of {mesh.ndim} dims needs one named 'tp', this one has {list(names)}")
    return names.index("tp") if mesh.ndim > 1 else 0
