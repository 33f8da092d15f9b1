"""`autotp completion`: what makes a shell complete commands, options, models and nodes."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete autotp's commands, options, model types and nodes.

    \b
    Examples:
      eval "$(autotp completion bash)"                                      in ~/.bashrc
      eval "$(autotp completion zsh)"                                       in ~/.zshrc
      autotp completion fish > ~/.config/fish/completions/autotp.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "autotp", "_AUTOTP_COMPLETE").source())
