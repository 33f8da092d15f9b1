"""The public functions for a model in memory: plan, diff, parallelize. Each is a few lines on the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from .capture.suitable import check_suitable
from .dispatch.again import is_changed
from .dispatch.apply import check_plan
from .dispatch.held import ATTRIBUTE
from .errors import UsageError
from .huggingface.adapters import carrier
from .planner.plan import Plan
from .report.diff import GraphDiff
from .runtime.cut.moving import move
from .session.arguments import Source, Wishes, check_size
from .session.first_call import cut_at_first_call
from .session.groups import join_ranks, process_ranks
from .session.parallel import cut_again, cut_model
from .session.pipeline import Session
from .session.study import Study

Model = TypeVar("Model", bound=nn.Module)


def plan(
    model: Source,
    tp: int,
    *,
    example: Any = None,
    **wishes: Unpack[Wishes],
) -> Plan:
    """Plan tensor parallelism for `tp` ranks. Needs no process group, no weights and no GPU.

    Args:
        model: an `nn.Module` (any device, meta included), a transformers configuration, a folder or `config.json`, a model
            id in the local cache, or a model type such as `"llama"`.
        tp: number of ranks, at least 1.
        example: for a module that is not from transformers, the arguments of one forward: a tensor, a tuple of
            arguments, a dict of keyword arguments, `(args, kwargs)`, or `autotp.Arguments(...)`, which is given what the forward
            is given. Only shapes and dtypes matter.
        wishes: how the model is cut, each by name:

            - `hardware` (str): a node from `rules/hardware`. Its rates decide which collectives are cheaper.
            - `tokens` (int): the number of tokens in one step, for which collectives are compared.
            - `objective` (str): `"balanced"`, the least memory of a rank without matrices that are gathered right where they are
              used, and among equals the least time; `"memory"`, the least memory, such matrices' results being gathered too; or
              `"time"`, the least time of the `workload` in at most `memory_gib`.
            - `workload` (str): with `objective="time"`, what is to be fast: `"training"` (a step), `"prefill"`, `"decode"` (one
              token of 8 sequences), or `"mix"`: a step, a prefill and 128 such tokens.
            - `memory_gib` (float): with `objective="time"`, the most that a rank may hold, in GiB, of weights, and in training of
              gradients and optimizer state. Half of the hardware's memory unless given.
            - `settings` (a mapping of str to str): parts of the model that stay whole, or that one chain rule alone may cut, as
              in `{"model.layers.*.mlp": "replicate"}`.
            - `gather_logits` (bool): whether a head over the vocabulary gives whole logits on every rank. If not, they are a
              `DTensor` cut over the vocabulary, and nothing is sent; `.full_tensor()` makes them whole.
            - `sequence_parallel` (bool or `"auto"`): whether blocks pass on values that are cut over the positions of a sequence,
              of any length. A rank then keeps less for the backward, and sends somewhat more. Calls without gradients, and
              sequences shorter than `tp`, are not cut. `"auto"`: where a training step of `tokens` in one sequence takes more
              than 90 % of the hardware's memory without, by estimate.
            - `rules` (a sequence of paths): folders with your own rules, laid out like `rules/`.

    Raises:
        UsageError: an argument is wrong.
        RuleError: a rule file is wrong.
    """
    check_size(tp)
    return Study(model, example=example, **wishes).plan(tp)


def diff(
    model: Source,
    tp: int,
    *,
    plan: Plan | None = None,
    compare: Sequence[int] = (),
    example: Any = None,
    **wishes: Unpack[Wishes],
) -> GraphDiff:
    """Show what cutting a model over `tp` ranks does to the graph of every unit: `.text()`, `.html(path)`, `.json()`.

    Needs no process group, no weights and no GPU; the model is left as it is.

    Args:
        model: as for `autotp.plan`.
        tp: number of ranks, at least 1.
        plan: the plan to show; the best one unless given.
        compare: further numbers of ranks, shown beside the first.
        example: as for `autotp.plan`.
        wishes: as for `autotp.plan`.

    Raises:
        UsageError: an argument is wrong.
        PlanError: the plan is for another model or number of ranks.
        UnsoundPlanError: the plan cuts what must stay whole.
    """
    for size in (tp, *compare):
        check_size(size)
    session = Study(model, example=example, **wishes)
    if plan is not None:
        check_plan(session.module, plan, tp)

    def planned(size: int) -> Plan:
        given = plan if size == tp else None
        return given or session.plan(size)

    return GraphDiff(tuple(session.diff(planned(size)) for size in dict.fromkeys((tp, *compare))))


def parallelize(
    model: Model,
    tp: int | None = None,
    *,
    mesh: DeviceMesh | None = None,
    plan: Plan | None = None,
    sum_in_float32: bool = False,
    device: torch.device | str | None = None,
    example: Any = None,
    **wishes: Unpack[Wishes],
) -> Model:
    """Make a model one rank's part of a tensor-parallel model, in place, and return it.

    Call it on every rank inside `torchrun`, on equal models. The part of this rank goes onto this rank's accelerator, which then
    is the current device; put inputs there. Parameters on the meta device stay there.

    Call it again after you added adapters to a parallel model, or merged and removed them. What is cut already stays as it is,
    and the new parameters are cut too. Make the optimizer after that.

    Args:
        model: the dense module; its weights may be on any device. Of a model of peft, the model inside is cut.
        tp: number of ranks; the world size unless given. It must divide the world size: neighbouring ranks form a group.
        mesh: a mesh of one dimension, or one with a dimension named "tp", instead of `tp`. Its groups are used.
        plan: a plan from `autotp.plan`, edited or not. Without it, the best plan is made here.
        sum_in_float32: whether ranks add up bfloat16 and float16 values in float32, which sends twice the planned bytes.
        device: where this rank computes. Without it, this is the accelerator that the model is on, or that the mesh or the
            process group is for; of several the current one, or number `LOCAL_RANK`; the CPU if there is none.
        example: as for `autotp.plan`. Without it, and without a plan, a module that is not from transformers is cut at its first
            call, which must be one without gradients: as a part of a pipeline is called. Until then it stays whole.
        wishes: as for `autotp.plan`. A plan that is given has its own; `rules` must be given again.

    Raises:
        UsageError: there is no process group, or an argument is wrong.
        PlacementError: the ranks' models have different numbers in a parameter or buffer, of each of which a sample is compared.
        PlanError: the plan is for another model or group.
        UnsoundPlanError: the plan cuts what must stay whole. If the inputs of the model are not known and there is no
            `example`, the first call of the unit raises it.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"parallelize takes an nn.Module, not {type(model).__name__}; autotp.plan takes configurations too"
        )
    check_suitable(model)
    inner = carrier(model)
    if ATTRIBUTE in inner.__dict__ and is_changed(inner) and plan is None:
        cut_again(inner, example=example, rules=wishes.get("rules", ()))
        move(model, inner.__dict__[ATTRIBUTE].ranks.device)
        return model
    session = Session(inner, example=example, **wishes)
    ranks = process_ranks(tp, mesh, device, model)
    ranks.sum_in_float32 = sum_in_float32

    def cut(session: Session) -> None:
        cut_model(session, ranks, plan)
        move(model, ranks.device)
        join_ranks(inner, ranks)

    if plan is None and not session.knows_inputs:
        cut_at_first_call(inner, ranks, lambda given: Session(inner, example=given, **wishes), cut)
    else:
        cut(session)
    return model
