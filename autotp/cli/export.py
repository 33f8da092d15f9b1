"""`autotp export`: a plan in the words of another system."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import UsageError
from ..huggingface.names import check_named
from ..session.arguments import check_size, parse_setting, rule_folders
from .options import MODEL_HELP, importing, model_argument, read_plan, rules_option, settings_option

SYSTEMS = ("tp_plan", "torch", "deepspeed")


@click.command("export", epilog=MODEL_HELP)
@model_argument
@click.option("--tp", type=int, metavar="N", help="Number of tensor-parallel ranks.")
@click.option("--to", "system", type=click.Choice(SYSTEMS), required=True, help="The system to write for.")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="The plan; the best one unless given."
)
@settings_option
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
    check_named(model)
    wanted, folders = dict(map(parse_setting, settings)), rule_folders(rules)
    if tp is not None:
        check_size(tp)
    with importing():
        from .work.export import print_export
    print_export(model, tp, given, system, wanted, folders)
