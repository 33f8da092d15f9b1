"""What commands share: the arguments that several take, and the import of what does the work. Nothing here imports torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ..errors import PlanError
from ..huggingface.names import names_in_files
from ..outside.progress import working
from ..planner.cost import DEFAULT_HARDWARE, Workload, hardware_names
from ..planner.plan import Plan

MODEL_HELP = "MODEL is a folder, a config.json, a model id in the local cache, or a type such as llama or gpt2."


def complete_model(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a MODEL may begin with: known types, and files."""
    kinds = [CompletionItem(kind) for kind in sorted(names_in_files()) if kind.startswith(incomplete)]
    return [*kinds, CompletionItem(incomplete, type="file")]


def complete_hardware(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of known nodes."""
    return [CompletionItem(name) for name in hardware_names() if name.startswith(incomplete)]


model_argument = click.argument("model", shell_complete=complete_model)
tp_option = click.option("--tp", type=int, required=True, metavar="N", help="Number of tensor-parallel ranks.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what this command wrote there before.")
rules_option = click.option(
    "--rules",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder with rules of your own; may be repeated.",
)
settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATTERN=replicate|RULE",
    help="Leave a part whole, or let one chain rule alone cut it; may be repeated.",
)

hardware_option = click.option(
    "--hardware",
    default=DEFAULT_HARDWARE,
    show_default=True,
    metavar="NAME",
    shell_complete=complete_hardware,
    help=f"The node whose speeds count: {', '.join(hardware_names())}.",
)
tokens_option = click.option(
    "--tokens", default=Workload.tokens, show_default=True, metavar="T", help="Tokens of one step."
)
objective_option = click.option(
    "--objective",
    type=click.Choice(["balanced", "memory", "time"]),
    default="balanced",
    show_default=True,
    help="Cut all that is worth a collective, all that can be cut, or for the least time of --workload in --memory-gib.",
)
workload_option = click.option(
    "--workload",
    type=click.Choice(["training", "prefill", "decode", "mix"]),
    default="mix",
    show_default=True,
    help="With --objective time: what is to be fast.",
)
memory_option = click.option(
    "--memory-gib",
    type=float,
    metavar="G",
    help="With --objective time: the most that a rank may hold; half of the hardware's unless given.",
)
sequence_option = click.option(
    "--sequence-parallel", is_flag=True, help="Cut what blocks hand on over the positions of a sequence, in training."
)
sequence_auto_option = click.option(
    "--sequence-parallel-auto", is_flag=True, help="The same, if a training step would not fit a rank without."
)
batch_option = click.option(
    "--batch", default=1, show_default=True, metavar="B", help="Sequences that these tokens are, of equal length."
)


class Sizes(click.ParamType[tuple[int, ...]]):
    """Numbers with commas between them: `2,4,8`."""

    name = "sizes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers of ranks; write it as 2,4,8", param, ctx)


def read_plan(path: Path, what: str) -> Plan:
    """Read a plan. Raises PlanError if that is impossible."""
    try:
        return Plan.load(path)
    except PlanError as error:
        raise type(error)(f"{what}: {error}") from error


def _plain(context: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        before = os.environ.get("NO_COLOR")
        os.environ["NO_COLOR"] = "1"
        context.call_on_close(lambda: os.environ.pop("NO_COLOR") if before is None else None)


def no_color() -> click.Option:
    """The option that every command takes, beside the variable NO_COLOR."""
    return click.Option(
        ["--no-color"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_plain,
        help="No colour; also NO_COLOR=1.",
    )


@contextmanager
def importing() -> Iterator[None]:
    """Around the import of what does a command's work. From then on until the command ends, transformers is quiet."""
    with working("importing torch and transformers"):
        from ..huggingface.pretrained import quiet

        click.get_current_context().with_resource(quiet(logging.ERROR))
        yield
