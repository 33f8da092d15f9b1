"""`autotp plan`: what would be cut how, what it saves, what it costs, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ..errors import UsageError
from ..huggingface.names import check_named
from ..planner.cost import hardware as node
from ..planner.estimate import Estimate
from ..planner.plan import Plan
from ..session.arguments import Wishes, check_size, parse_setting, rule_folders
from .kept import AGAIN, Question, show
from .options import (
    MODEL_HELP,
    Sizes,
    batch_option,
    hardware_option,
    importing,
    json_option,
    memory_option,
    model_argument,
    objective_option,
    read_plan,
    rules_option,
    sequence_auto_option,
    sequence_option,
    settings_option,
    tokens_option,
    workload_option,
)
from .shipped import Shipped
from .view import plan_view, sizes_view, text_of


@click.command("plan", epilog=MODEL_HELP)
@model_argument
@click.option("--tp", type=int, metavar="N", help="Number of tensor-parallel ranks.")
@click.option("--compare", type=Sizes(), metavar="N,N", default=(), help="Only these numbers of ranks, side by side.")
@click.option("--why", "parameter", metavar="PARAMETER", help="Only one parameter: its term, rule and alternatives.")
@settings_option
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Show this plan, edited or not."
)
@sequence_option
@sequence_auto_option
@hardware_option
@tokens_option
@batch_option
@objective_option
@workload_option
@memory_option
@rules_option
@json_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write the plan to a file, as JSON.")
@click.option(
    "--again", AGAIN, is_flag=True, help="Plan it here and now, also what was asked before or came with autotp."
)
def plan_command(
    model: str,
    tp: int | None,
    compare: tuple[int, ...],
    parameter: str | None,
    settings: tuple[str, ...],
    plan_file: Path | None,
    sequence_parallel: bool,
    sequence_parallel_auto: bool,
    hardware: str,
    tokens: int,
    batch: int,
    objective: str,
    workload: str,
    memory_gib: float | None,
    rules: tuple[Path, ...],
    as_json: bool,
    out: Path | None,
    again: bool,
) -> None:
    """Plan tensor parallelism for MODEL. Needs no weights, no GPU and no other process.

    \b
    Examples:
      autotp plan llama --tp 8
      autotp plan llama --compare 2,4,8 --tokens 16384 --batch 4
      autotp plan llama --tp 8 --sequence-parallel-auto --tokens 65536
      autotp plan llama --tp 8 --objective time --workload decode --memory-gib 20
      autotp plan ./checkpoint --tp 4 --hardware a100-nvlink-8
      autotp plan llama --tp 4 --why model.layers.0.self_attn.k_proj.weight
      autotp plan gpt2 --tp 2 --set 'transformer.h.*.mlp=replicate' --out plan.json
      autotp plan gpt2 --plan plan.json
      autotp plan gpt2 --tp 2 --json | jq '.units[].instances'
    """
    check(tp, compare, parameter, plan_file, tokens, out)
    check_named(model)
    edited = read_plan(plan_file, "--plan") if plan_file is not None else None
    sizes = compare or ((tp if tp is not None else edited.tp if edited else 0),)
    for size in sizes:
        check_size(size)
    positions: bool | Literal["auto"] = "auto" if sequence_parallel_auto else sequence_parallel
    wishes = Wishes(
        hardware=hardware,
        tokens=tokens,
        objective=objective,
        workload=workload,
        memory_gib=memory_gib,
        rules=rule_folders(rules),
        settings=dict(map(parse_setting, settings)),
        sequence_parallel=positions,
    )
    node(hardware, rule_folders(rules))
    question = Question.of(model, rule_folders(rules)) if plan_file is None and out is None else None
    if (
        question is not None
        and not again
        and (question.is_answered() or is_shipped(model, sizes, bool(compare), as_json))
    ):
        return
    with importing():
        from .work.plan import print_plan
    print_plan(
        model,
        sizes,
        wishes,
        edited=edited,
        side_by_side=bool(compare),
        parameter=parameter,
        batch=batch,
        as_json=as_json,
        out=out,
        question=question,
    )


def is_shipped(model: str, sizes: tuple[int, ...], side_by_side: bool, as_json: bool) -> bool:
    """Print plans that came with autotp, if they are what is asked for."""
    shipped = Shipped.of(model, sizes, own=("model", "tp", "compare", "as_json"))
    if shipped is None:
        return False
    plans, estimates = shipped.plans, shipped.estimates

    def estimate(plan: Plan) -> Estimate:
        return estimates[plan.tp]

    view = (
        sizes_view(plans.values(), estimate, as_json) if side_by_side else plan_view(plans[sizes[0]], estimate, as_json)
    )
    show(text_of(view))
    if (note := shipped.note()) is not None:
        click.echo(note, err=True)
    return True


def check(
    tp: int | None,
    compare: tuple[int, ...],
    parameter: str | None,
    plan_file: Path | None,
    tokens: int,
    out: Path | None,
) -> None:
    """Raises UsageError for arguments that do not go together."""
    if tokens < 1:
        raise UsageError(f"--tokens must be at least 1, not {tokens}")
    if sum((tp is not None, bool(compare), plan_file is not None)) != 1:
        raise UsageError("give one of --tp N, --compare N,N and --plan FILE, as in --tp 4")
    if compare and (parameter is not None or out is not None):
        raise UsageError("--why and --out are about one plan: give --tp N instead of --compare")
