"""`autotp export`: a plan in the words of another system."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..errors import UsageError
from ..planner.settings import parse_setting
from ..report.export import SYSTEMS
from ..session.study import Study
from .options import MODEL_HELP, model_argument, read_plan, rules_option, working


@click.command("export", epilog=MODEL_HELP)
@model_argument
@click.option("--tp", type=int, metavar="N", help="Number of tensor-parallel ranks.")
@click.option("--to", "system", type=click.Choice(list(SYSTEMS)), required=True, help="The system to write for.")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="The plan; the best one unless given."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATTERN=replicate|RULE",
    help="Leave a part whole, or let one chain rule alone cut it; may be repeated.",
)
@rules_option
def export_command(
    model: str, tp: int | None, system: str, plan_file: Path | None, settings: tuple[str, ...], rules: tuple[Path, ...]
) -> None:
    """Print a plan for MODEL as another system reads it, as JSON, or say why that system cannot express it.

    \b
    tp_plan    transformers: from_pretrained(..., distributed_config=DistributedConfig(tp_size=N, tp_plan=...))
    torch      torch.distributed.tensor.parallel, through autotp.report.export.systems.torch_styles
    deepspeed  the partition_config of DeepSpeed's "tensor_parallel" settings

    \b
    Examples:
      autotp export llama --tp 4 --to tp_plan
      autotp export llama --tp 4 --to deepspeed --set model.embed_tokens=replicate > partition_config.json
      autotp export gpt_neox --plan plan.json --to torch
    """
    if (tp is None) == (plan_file is None):
        raise UsageError("give either --tp N or --plan FILE, as in --tp 4")
    given = read_plan(plan_file, "--plan") if plan_file is not None else None
    with working(f"planning {model}"):
        study = Study(model, rules=rules, settings=dict(map(parse_setting, settings)))
        plan = given if given is not None else study.plan(tp or 0)
        data = study.export(plan, system)
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
