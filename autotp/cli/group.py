"""The group of commands: one line for an error autotp raises on purpose, a traceback for a bug."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from .. import __version__
from ..errors import AutotpError, RankError
from .advise import advise_command
from .calibrate import calibrate_command
from .completion import completion_command
from .demo import demo_command
from .diff import diff_command
from .export import export_command
from .generate import generate_command
from .merge import merge_command
from .options import no_color
from .plan import plan_command
from .shard import shard_command
from .verify import verify_command

INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it


class Group(click.Group):
    """A group whose commands may raise AutotpError, and what ranks raised."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AutotpError as error:
            fail(ctx, str(error), error.exit_code)
        except KeyboardInterrupt:
            click.echo("\nautotp: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if error.__cause__ is None:
                raise
            from ..runtime.groups.launch import RankTraceback

            cause = error.__cause__
            if not isinstance(cause, RankTraceback):
                raise
            click.echo(cause.text, err=True)
            fail(ctx, f"rank {cause.rank}: {type(error).__name__}: {error}", RankError.exit_code)


def fail(context: click.Context, message: str, exit_code: int) -> NoReturn:
    """Say what is wrong in one line, and end."""
    click.echo(f"autotp: error: {' '.join(message.split())}", err=True)
    context.exit(exit_code)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="autotp")
def main() -> None:
    """Tensor parallelism for unmodified PyTorch models: inferred, proved and shown.

    \b
    Examples:
      autotp plan llama --tp 8            what would be cut, and what it costs
      autotp plan ./checkpoint --tp 4     the same for a folder with a config.json
      autotp advise llama --hardware h100-nvlink-8 --tokens 65536 --batch 16
                                          how many ranks, and how many replicas around them
      autotp calibrate my-node --tp 8     this machine's own rates, for --hardware
      autotp diff llama --tp 4 --html diff.html     what happens to every graph
      autotp export llama --tp 4 --to tp_plan     the plan in the words of another system
      autotp verify gpt2 --tp 2           cut model against whole model, all ranks in one process
      autotp generate ./checkpoint --tp 2 --prompt "Once"
                                          text from two ranks on this machine
      autotp demo                         real weights, two real ranks on this machine
      autotp shard ./checkpoint out --tp 8 one folder a rank; autotp merge undoes it
    """


main.add_command(plan_command)
main.add_command(advise_command)
main.add_command(calibrate_command)
main.add_command(diff_command)
main.add_command(export_command)
main.add_command(verify_command)
main.add_command(generate_command)
main.add_command(demo_command)
main.add_command(shard_command)
main.add_command(merge_command)
main.add_command(completion_command)
main.params.append(no_color())
for _command in main.commands.values():
    _command.params.append(no_color())
